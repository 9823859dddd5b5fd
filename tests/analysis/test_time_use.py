"""Where the time of a run went, by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import EvalConfig, EvalReport, EvalResult, Message, Sample, Score, Trajectory, evaluate
from heldout.analysis import time_use
from heldout.errors import TransientError
from heldout.models.batch import BatchEndpoint, Request
from heldout.reporting.blocks import plain_blocks
from heldout.reporting.time_report import build_time_report
from heldout.scoring import Rubric
from heldout.scoring.judges import Judge
from heldout.store.run_dir import unused_name
from heldout.types import Metric, Stop, Timing, Usage
from tests.scoring.judges.scripted import said

pytestmark = pytest.mark.anyio


def result(id: str, timing: Timing | None, error: str | None = None) -> EvalResult:
    trajectory = Trajectory((), Stop("environment"), usage=Usage(10, 30), timing=timing)
    score = Score() if error else Score((Metric("right", 1.0, 1.0),))
    return EvalResult(id, Sample(id, {"question": "?"}), trajectory, score, error=error)


def report(results: Sequence[EvalResult], tmp_path: Path) -> EvalReport:
    made = EvalReport(results, {}, {"experiment_name": "x"})
    folder = unused_name(tmp_path)
    made.save(tmp_path / folder)
    return EvalReport.load(tmp_path / folder)


def test_stages_add_up_to_the_seconds_of_all_attempts(tmp_path: Path) -> None:
    timed = Timing(10.0, 3, 0, 0, (4.0, 2.0), (1.5, None), 1.0, 0.5)
    use = time_use(report([result("a", timed), result("b", Timing(2.0))], tmp_path))
    stages = {stage.stage: stage.seconds for stage in use.stages}
    assert stages == {
        "queue": None,  # of an earlier version, which did not record it
        "model": 5.0,
        "retries": 1.0,
        "environment": 1.5,
        "scoring": 0.5,
        "other": 2.0 + 2.0,  # of the second nothing but the whole is known
    }
    assert sum(s or 0.0 for s in stages.values()) == use.attempt_seconds == 12.0
    assert sum(stage.share or 0.0 for stage in use.stages) == pytest.approx(1.0)
    assert (use.requests, use.retried) == (4, 1)
    assert use.tokens_per_model_second == 60 / 5


def stages_of(timing: Timing, tmp_path: Path) -> dict[str, float | None]:
    use = time_use(report([result("a", timing)], tmp_path))
    assert sum(stage.seconds or 0.0 for stage in use.stages) == pytest.approx(timing.seconds)
    return {stage.stage: stage.seconds for stage in use.stages if stage.seconds}


def test_time_in_a_queue_is_taken_out_of_the_stages_that_it_was_part_of(tmp_path: Path) -> None:
    queued = {"model": 3.0, "scoring": 0.25, "environment": 1.0, "other": 0.5}
    timed = Timing(10.0, 3, 0, 0, (4.0, 2.0), (1.5, None), 1.0, 0.5, queued)
    parts = {"queue": 4.75, "model": 2.0, "retries": 1.0, "environment": 0.5, "scoring": 0.25}
    assert stages_of(timed, tmp_path) == {**parts, "other": 1.5}


def test_the_wait_of_a_turn_that_did_not_end_is_a_queue_too(tmp_path: Path) -> None:
    failed = Timing(10.0, 1, 0, 0, (), (), 0.0, None, {"model": 8.0})
    assert stages_of(failed, tmp_path) == {"queue": 8.0, "other": 2.0}
    again = Timing(10.0, 2, 0, 0, (9.0,), (), 6.0, None, {"model": 5.0})  # 2 before it failed
    assert stages_of(again, tmp_path) == {"queue": 5.0, "retries": 4.0, "other": 1.0}


def test_what_did_not_record_its_queue_says_so(tmp_path: Path) -> None:
    old, new = Timing(2.0, 1), Timing(2.0, 1, queue_seconds={})
    for timings, note in (
        ([old], "Time in a queue was not recorded."),
        ([old, new], "Of 1 attempt it was not recorded how long they waited in a queue"),
        ([new], ""),
    ):
        use = time_use(report([result(str(n), t) for n, t in enumerate(timings)], tmp_path))
        texts = str(list(plain_blocks(build_time_report(use).blocks)))
        assert ("not recorded" in texts) == bool(note)
        assert note in texts
        assert (use.stages[0].seconds is None) == (timings == [old])


def test_the_slowest_come_first_and_say_where_their_time_went(tmp_path: Path) -> None:
    slow = [
        result(f"s{n}", Timing(float(n), 1, 0, 0, (0.1,), (n - 0.2,), 0.0, 0.05))
        for n in range(1, 9)
    ]
    errored = result("e", Timing(20.0, 1, 0, 0, (19.0,), ()), error="timeout: too slow")
    use = time_use(report([*slow, errored], tmp_path), slowest=3)
    assert [attempt.sample_id for attempt in use.slowest] == ["e", "s8", "s7"]
    assert [attempt.stage for attempt in use.slowest] == ["model", "environment", "environment"]
    assert use.errored_seconds == 20.0


def test_what_was_not_timed_is_counted_and_not_guessed(tmp_path: Path) -> None:
    use = time_use(report([result("a", None)], tmp_path))
    assert (use.timed, use.untimed, use.attempt_seconds) == (0, 1, 0.0)
    assert use.tokens_per_model_second is None


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second each time it is read."""
    clock = iter(range(1_000_000))
    monkeypatch.setattr("heldout._evals.rollout.time.perf_counter", lambda: float(next(clock)))


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("timeout", [None, 1e9])
async def test_waiting_for_a_judge_is_time_in_a_queue(
    timeout: float | None, tmp_path: Path
) -> None:
    """The judge answers one at a time, and none before all three ask."""
    asked, all_ask = [], anyio.Event()

    async def judged(messages: list[object]) -> str:
        await all_ask.wait()
        return said("equal")

    async def answer(messages: list[object]) -> str:
        asked.append(1)
        if len(asked) == 3:
            all_ask.set()
        return "x"

    rubric = Rubric(Judge(judged, max_concurrent=1).equality())
    samples = [Sample(id, {"question": f"{id}?"}, "x") for id in "abc"]
    config = EvalConfig(endpoint=answer, output_dir=str(tmp_path), timeout=timeout)
    made = await evaluate(samples, config, rubric)
    queues = [r.trajectory.timing.queue_seconds for r in made.results if r.trajectory.timing]
    assert [set(queue or ()) for queue in queues] == [{"scoring"}] * 3
    use = time_use(made)
    assert use.queue_unknown == 0
    assert use.stages[0].stage == "queue"
    assert use.stages[0].seconds == sum(sum((queue or {}).values()) for queue in queues)
    assert sum(stage.seconds or 0.0 for stage in use.stages) == pytest.approx(use.attempt_seconds)


async def test_of_a_batch_what_comes_before_it_begins_is_a_queue_and_the_rest_is_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("heldout._evals.rollout.time.perf_counter", lambda: now[0])

    def answer(requests: Sequence[Request]) -> list[str]:
        now[0] += 100.0
        return ["x"] * len(requests)

    def prepare(sample: Sample) -> list[Message]:
        now[0] += 7.0  # whoever is ready waits for the next one
        return [Message("user", sample.id)]

    async def call(function: Callable[[], Any]) -> Any:
        return function()

    samples = [Sample(id, {"question": "?"}) for id in "ab"]
    endpoint = BatchEndpoint(answer, call, items=2, rows=2)
    config = EvalConfig(endpoint=endpoint, output_dir=str(tmp_path), max_concurrent=2, timeout=None)
    async with anyio.create_task_group() as group:
        group.start_soon(endpoint.serve)
        made = await evaluate(samples, config, lambda t, s: 1.0, prepare)
        group.cancel_scope.cancel()
    stages = {stage.stage: stage.seconds for stage in time_use(made).stages}
    assert stages["queue"] == 7.0
    assert stages["model"] == 200.0


@pytest.mark.usefixtures("ticking")
async def test_a_run_measures_scoring_and_retries(tmp_path: Path) -> None:
    asked = []

    async def fails_once(messages: list[object]) -> str:
        asked.append(1)
        if len(asked) == 1:
            raise TransientError("busy", retry_after=0.0)
        return "x"

    config = EvalConfig(endpoint=fails_once, output_dir=str(tmp_path), timeout=None)
    made = await evaluate([Sample("a", {"question": "?"})], config, lambda t, s: 1.0)
    (only,) = made.results
    timing = only.trajectory.timing
    assert timing is not None
    assert timing.requests == 2
    assert timing.retry_seconds is not None
    assert timing.retry_seconds > 0
    assert timing.score_seconds is not None
    assert timing.score_seconds > 0
    stages = {stage.stage: stage.seconds for stage in time_use(made).stages}
    assert stages["retries"] == timing.retry_seconds
    assert replace(timing, retry_seconds=None) != timing
