"""Whose time it is: what keeps the event loop from going on is charged to nobody else."""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import Any

import anyio
import pytest

from heldout import Sample, Trajectory
from heldout._core.current_attempt import CurrentAttempt, waiting_for_others
from heldout._evals.rollout import Attempt, EvalDefinition
from heldout.scoring import Rubric, part
from tests.conftest import RunEval, make_samples

both_loops = pytest.mark.parametrize("backend", ["asyncio", "trio"])
# Limits leave an item seconds to spare, and what others do takes longer than the limit. A busy
# machine may take the processor away in the middle of a step, and that counts as the item's own.
TIMEOUT = 2.5


@pytest.fixture
def backend() -> str:
    return "asyncio"


class Together:
    """Answers when so many have asked, so that all are in flight at once."""

    def __init__(self, number: int) -> None:
        self.number, self.asked = number, 0
        self.all_asked: anyio.Event | None = None

    async def __call__(self, messages: list[Any]) -> str:
        self.all_asked = self.all_asked or anyio.Event()
        self.asked += 1
        if self.asked == self.number:
            self.all_asked.set()
        await self.all_asked.wait()
        return "x"


@both_loops
def test_the_time_that_neighbours_block_the_loop_is_charged_to_nobody(run_eval: RunEval) -> None:
    def slow(trajectory: Trajectory, sample: Sample) -> float:
        time.sleep(0.2)
        return 1.0

    report = run_eval(
        make_samples(15), slow, endpoint=Together(15), timeout=TIMEOUT, max_concurrent=15
    )
    assert (report.summary["n_scored"], report.summary["mean"]) == (15, 1.0)


@both_loops
def test_what_waits_behind_neighbours_that_block_keeps_its_time(run_eval: RunEval) -> None:
    """Its deadline would pass while they block: it is put off before the loop looks at it."""

    async def answer(messages: list[Any]) -> str:
        if messages[-1].text.endswith("0"):
            await anyio.sleep(0.1)
        return "x"

    def slow(trajectory: Trajectory, sample: Sample) -> float:
        if sample.id != "s0":
            time.sleep(0.4)
        return 1.0

    # Together they block for longer than an item has, and one has far more than it takes.
    samples = [Sample(f"s{i}", {"prompt": f"{i}"}, "x") for i in range(8)]
    report = run_eval(samples, slow, endpoint=answer, timeout=TIMEOUT)
    assert [result.error for result in report.results] == [None] * 8


def test_a_part_that_blocks_in_a_task_of_its_own_is_its_items_time(run_eval: RunEval) -> None:
    async def blocks(sample: Sample) -> float:
        time.sleep(1.2 * TIMEOUT if sample.id == "s1" else 0.0)
        return 1.0

    report = run_eval(make_samples(3), Rubric(blocks), timeout=TIMEOUT, max_error_rate=1)
    errors = [result.error for result in report.results]
    assert errors == [None, f"timeout: not done after {TIMEOUT:g} s (in score_fn)", None]


@pytest.mark.parametrize(
    "run_loop",
    [anyio.run, partial(anyio.run, backend="trio"), lambda main: asyncio.run(main())],
    ids=["anyio.run", "trio", "asyncio.run"],
)
def test_what_the_caller_does_in_the_loop_is_charged_to_nobody(
    run_loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> Any:
        begun, results = anyio.Event(), []

        async def score(trajectory: Trajectory, sample: Sample) -> float:
            begun.set()
            await anyio.sleep(0.1)
            return 1.0

        async def attempt() -> None:
            saved, scored = Trajectory(()), EvalDefinition((), score)
            made = Attempt(Sample("a", {}), definition=scored, timeout=TIMEOUT, trajectory=saved)
            results.append(await made.run())

        async with anyio.create_task_group() as group:
            group.start_soon(attempt)
            await begun.wait()
            time.sleep(1.2 * TIMEOUT)
        return results[0].error

    assert run_loop(main) is None
    assert caplog.records == []  # such as of a callback that raised


@both_loops
def test_time_that_is_blocked_during_a_pause_is_taken_off_once(backend: str) -> None:
    async def main() -> float:
        charged: list[float] = []

        async def attempt(block: float) -> None:
            with anyio.CancelScope() as scope:
                current = CurrentAttempt(10.0, scope, [])

                async def work() -> None:
                    if block:
                        time.sleep(block)
                        return
                    current.pause()
                    for _ in range(5):
                        await anyio.sleep(0)
                    assert scope.deadline == math.inf
                    current.resume()
                    charged.append(current.charged())
                    charged.append(scope.deadline - anyio.current_time())

                await current.limited(work())

        async with anyio.create_task_group() as group:
            group.start_soon(attempt, 0.0)
            group.start_soon(attempt, blocked)
        seconds, left = charged
        assert left == pytest.approx(10.0 - seconds, abs=1.5)  # time passes between the two
        return seconds

    blocked = 3.0
    assert -0.01 < anyio.run(main, backend=backend) < 0.8 * blocked


def test_waiting_for_others_pauses_the_time_limit(run_eval: RunEval) -> None:
    async def score(trajectory: Trajectory, sample: Sample) -> float:
        with waiting_for_others():
            await anyio.sleep(1.2 * TIMEOUT)
        return 1.0

    report = run_eval(make_samples(2), score, timeout=TIMEOUT)
    assert report.summary["n_errors"] == 0


@both_loops
def test_the_function_that_blocks_the_loop_is_named_once_with_the_remedy(
    run_eval: RunEval, caplog: pytest.LogCaptureFixture
) -> None:
    def quick(answer: str) -> float:
        return 1.0

    def sleepy(answer: str) -> float:
        time.sleep(0.25)
        return 1.0

    run_eval(make_samples(10), Rubric(part(quick), part(sleepy, name="lazy")))
    [said] = [r.getMessage() for r in caplog.records if "event loop was blocked" in r.getMessage()]
    assert "by score_fn Rubric, part lazy (" in said
    assert "sleepy (test_loop_clock.py:" in said
    assert "in 10 steps" in said
    assert "anyio.to_process.run_sync" in said


def test_an_eval_that_waits_is_not_said_to_block(
    run_eval: RunEval, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def score(trajectory: Trajectory, sample: Sample) -> float:
        await anyio.sleep(4.0)
        return 1.0

    # Time that the machine takes is blocked time, and it may be more than a tenth.
    monkeypatch.setattr("heldout._evals.engine.MAX_BLOCKED", 0.7)
    run_eval(make_samples(4), score, max_concurrent=4)
    assert "blocked" not in caplog.text
