"""Where the time of a run went, by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from heldout import EvalConfig, EvalReport, EvalResult, Sample, Score, Trajectory, evaluate
from heldout.analysis import time_use
from heldout.errors import TransientError
from heldout.types import Metric, Stop, Timing, Usage

pytestmark = pytest.mark.anyio


def result(id: str, timing: Timing | None, error: str | None = None) -> EvalResult:
    trajectory = Trajectory((), Stop("environment"), usage=Usage(10, 30), timing=timing)
    score = Score() if error else Score((Metric("right", 1.0, 1.0),))
    return EvalResult(id, Sample(id, {"question": "?"}), trajectory, score, error=error)


def report(results: Sequence[EvalResult], tmp_path: Path) -> EvalReport:
    made = EvalReport(results, {}, {"experiment_name": "x"})
    made.save(tmp_path / "x")
    return EvalReport.load(tmp_path / "x")


def test_stages_add_up_to_the_seconds_of_all_attempts(tmp_path: Path) -> None:
    timed = Timing(10.0, 3, 0, 0, (4.0, 2.0), (1.5, None), 1.0, 0.5)
    use = time_use(report([result("a", timed), result("b", Timing(2.0))], tmp_path))
    stages = {stage.stage: stage.seconds for stage in use.stages}
    assert stages == {
        "model": 5.0,
        "retries": 1.0,
        "environment": 1.5,
        "scoring": 0.5,
        "other": 2.0 + 2.0,  # of the second nothing but the whole is known
    }
    assert sum(stages.values()) == use.attempt_seconds == 12.0
    assert sum(stage.share for stage in use.stages) == pytest.approx(1.0)
    assert (use.requests, use.retried) == (4, 1)
    assert use.tokens_per_model_second == 60 / 5


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


async def test_a_run_measures_scoring_and_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("heldout._evals.rollout.time.perf_counter", lambda: float(next(clock)))
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
