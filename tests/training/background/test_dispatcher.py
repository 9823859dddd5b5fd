"""Evals beside a training, in one process. `test_dispatcher_process.py` has the ways to end one."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import math
import random
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from heldout import EvalConfig, EvalReport, evaluate
from heldout.errors import InvalidInput, RunBusy, RunDirectoryError
from heldout.stats.summary import EMPTY_SUMMARY
from heldout.store.run_dir import RunDir
from heldout.training import current_points, read_points
from heldout.training.background import dispatcher
from heldout.training.background.dispatcher import (
    AsyncEvalDispatcher,
    Drained,
    get_async_eval_dispatcher,
    pending_evals,
    set_async_eval_dispatcher,
)
from heldout.training.background.jobs import Scheduled
from heldout.training.background.sigterm import open_dispatchers
from heldout.training.curve.curve_file import open_curve_file
from heldout.training.curve.points import CurvePoint, CurveWriter, ItemOutcome, pending_point
from tests.conftest import both_loops, echo_number, exact, make_samples
from tests.training.toys import Rows, periodic, points_of

LONG = 60.0
"""Seconds that no test comes near, unless it hangs."""


class Gate:
    """An evaluator that says when it has begun, and ends when it is told to."""

    def __init__(self, result: Any = None) -> None:
        self.result = {"accuracy": 0.5} if result is None else result
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.begun.set()
        assert self.end.wait(LONG)
        return self.result


async def half() -> dict[str, float]:
    return {"accuracy": 0.5}


async def never() -> dict[str, float]:
    await anyio.sleep_forever()
    raise AssertionError


async def fails() -> dict[str, float]:
    raise ValueError("boom")


def leaves() -> dict[str, float]:
    raise SystemExit("bye")


class Unreadable(Mapping[str, float]):
    """Numbers that cannot be read, as where the device is gone."""

    def __getitem__(self, key: str) -> float:
        raise RuntimeError("device lost")

    def __iter__(self) -> Iterator[str]:
        return iter(["accuracy"])

    def __len__(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    assert not open_dispatchers, "a test left a dispatcher open"


@pytest.fixture
def run(backend: str) -> Callable[..., Any]:
    def in_loop(main: Callable[..., Any]) -> Any:
        async def bounded() -> Any:
            with anyio.fail_after(LONG):
                return await main()

        return anyio.run(bounded, backend=backend)

    return in_loop


def result_of(folder: Path, evaluator: Any, **settings: Any) -> CurvePoint:
    """The point of an eval that was scheduled, which is on the curve, too."""
    with AsyncEvalDispatcher(run_dir=folder) as evals:
        point = evals.schedule(evaluator, **{"step": 1, **settings}).result(LONG)
    assert points_of(folder) == [point]
    return point


def curve_point(**changes: Any) -> CurvePoint:
    given = {"label": "x", "step": 99, "session": "s", "time": "t", "seconds": 3.0, "summary": {}}
    return CurvePoint(**{**given, **changes})


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"max_pending": 0},
        {"max_pending": True},
        {"max_running": 0},
        {"when_full": "drop"},
        {"max_seconds": 0},
    ):
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            AsyncEvalDispatcher(**wrong)


# --- In a synchronous training ------------------------------------------------------------------


@pytest.mark.parametrize("evaluator", [half, lambda: {"accuracy": 0.5}, lambda: half()])
def test_a_result_is_logged_at_its_own_step(tmp_path: Path, evaluator: Any) -> None:
    rows = Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[rows]) as evals:
        handle = evals.schedule(evaluator, step=10, name="held-out", weights="abc")
        point = handle.result(LONG)
        assert handle.done()
    assert points_of(tmp_path) == [point]
    assert (point.label, point.step, point.weights) == ("held-out", 10, "abc")
    assert point.value_and_interval("accuracy") == (0.5, None)
    [(name, step, fields)] = rows
    assert (name, step, fields["eval_metric_accuracy"]) == ("held-out", 10, 0.5)
    assert rows.closed == 1


def test_schedule_does_not_wait_for_the_eval(tmp_path: Path) -> None:
    gate = Gate()
    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        handle = evals.schedule(gate, step=1)
        assert gate.begun.wait(LONG)
        assert not handle.done()
        assert handle.result(timeout=0) is None
        assert points_of(tmp_path) == []
        gate.end.set()
    assert [p.step for p in points_of(tmp_path)] == [1]


def test_two_evals_of_one_name_and_step_are_both_on_the_curve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with AsyncEvalDispatcher(run_dir=tmp_path / "run") as evals:
        evals.schedule(lambda: {"accuracy": 0.25}, step=10)
        evals.schedule(lambda: {"accuracy": 0.75}, step=10)
        evals.schedule(half, step=20)
    found = {
        (p.label, p.step): p.number("metric_accuracy")
        for p in current_points(read_points(tmp_path / "run" / "curve.jsonl"))
    }
    assert found == {("eval", 10): 0.25, ("eval-2", 10): 0.75, ("eval", 20): 0.5}
    assert "Give each its own name=" in caplog.text


def test_a_name_that_has_a_result_at_this_step_is_not_taken_by_another(tmp_path: Path) -> None:
    periodic(tmp_path, label="eval").maybe_run(10)
    for name in ("eval-2", "eval-3"):
        with AsyncEvalDispatcher(run_dir=tmp_path / "run") as evals:
            assert evals.schedule(half, step=10).name == name
    with AsyncEvalDispatcher(run_dir=tmp_path / "other") as evals:
        evals.schedule(fails, step=10).result(LONG)
        assert evals.schedule(half, step=10).name == "eval"  # it is tried again


def test_two_curves_of_one_label_are_two_names_to_a_logger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Rows()
    with AsyncEvalDispatcher(loggers=[rows]):
        for name in ("a", "b"):
            periodic(tmp_path / name).maybe_run(10)
    assert [name for name, _, _ in rows] == ["rl_eval", "rl_eval-2"]
    assert "are both called 'rl_eval'" in caplog.text


def test_results_come_in_any_order_and_say_how_far_behind_they_are(tmp_path: Path) -> None:
    rows, gates = Rows(), {10: Gate(), 20: Gate()}
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[rows]) as evals:
        handles = {step: evals.schedule(gate, step=step) for step, gate in gates.items()}
        gates[20].end.set()
        handles[20].result(LONG)
        evals.poll(27)
        gates[10].end.set()
    assert [(step, fields["lag_steps"]) for _, step, fields in rows] == [(20, 0), (10, 17)]
    assert [p.step for p in points_of(tmp_path)] == [10, 20]
    assert [p.step for p in current_points(points_of(tmp_path))] == [10, 20]
    assert [p.lag_steps for p in points_of(tmp_path)] == [17, 0]


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        (fails, "ValueError: boom"),
        (leaves, "SystemExit: bye"),
        (lambda: None, "an evaluator returns"),
        (lambda: {}, "an empty dict"),
        (lambda: {"accuracy": "good"}, "metrics must be names with numbers"),
        (lambda: {"acc": 0.5, "acc_n": 7.0}, "'acc_n' looks like the denominator or error bar"),
        (Unreadable, "RuntimeError: device lost"),
    ],
)
def test_an_eval_that_fails_is_a_warning_and_a_skip(
    tmp_path: Path, evaluator: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[rows]) as evals:
        evals.schedule(evaluator, step=7)
        evals.schedule(lambda: {"accuracy": 0.5}, step=8)  # the dispatcher has survived it
    skipped, fine = sorted(points_of(tmp_path), key=lambda p: p.step)
    assert skipped.summary is None
    assert reason in str(skipped.skipped)
    assert fine.has_result
    [fields] = [fields for _, step, fields in rows if step == 7]
    assert fields["eval_skipped"]
    assert reason in fields["eval_reason"]
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert pending_evals(tmp_path) == []


def test_an_eval_whose_future_is_cancelled_elsewhere_is_a_skip(tmp_path: Path) -> None:
    async def cancelled() -> dict[str, float]:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future
        raise AssertionError

    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        gate = Gate()
        beside = evals.schedule(gate, step=1)
        point = evals.schedule(cancelled, step=2).result(LONG)
        assert point.skipped == "something that it waited for was cancelled"
        gate.end.set()
        assert beside.result(LONG).has_result


def test_a_loop_that_breaks_down_is_a_skip_and_another_one_is_started(tmp_path: Path) -> None:
    async def breaks(job: Any) -> None:
        raise RuntimeError("broken")

    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        runs, evals._loop._run = evals._loop._run, breaks
        point = evals.schedule(half, step=1).result(LONG)
        assert point.skipped == "its event loop has ended"
        evals._loop._run = runs
        assert evals.schedule(half, step=2).result(LONG).has_result


def test_an_eval_may_take_max_seconds(tmp_path: Path) -> None:
    gate = Gate()
    with AsyncEvalDispatcher(run_dir=tmp_path, max_seconds=0.01) as evals:
        for evaluator in (never, gate):
            point = evals.schedule(evaluator, step=1).result(LONG)
            assert point.skipped == "not finished after max_seconds=0.01"
        gate.end.set()  # too late
    assert not any(p.has_result for p in points_of(tmp_path))


def test_a_logger_that_fails_keeps_nobody_else_from_the_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Rows):
        def log(self, name: str, step: int, fields: Mapping[str, Any]) -> None:
            raise OSError("no network")

        def close(self) -> None:
            raise OSError("still none")

    rows = Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[Broken(), rows]) as evals:
        evals.schedule(half, step=1)
    assert len(points_of(tmp_path)) == len(rows) == 1
    assert "Broken failed" in caplog.messages[0]
    assert "not every result was logged: Broken: got 0, lost 1" in caplog.messages[1]


def test_a_curve_that_cannot_be_written_is_an_error_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(self: CurveWriter, line: bytes) -> None:
        raise OSError("disk full")

    rows = Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[rows]) as evals:
        monkeypatch.setattr(CurveWriter, "append_line", full)
        assert evals.schedule(half, step=1).result(LONG) is not None
    assert len(rows) == 1
    assert "could not be written to the curve" in caplog.text


# --- Where it is full ---------------------------------------------------------------------------


def test_a_full_dispatcher_makes_schedule_wait(tmp_path: Path) -> None:
    first, second = Gate(), Gate()
    with AsyncEvalDispatcher(run_dir=tmp_path, max_pending=1, when_full="wait") as evals:
        evals.schedule(first, step=1)
        scheduled = threading.Event()

        def schedule() -> None:
            evals.schedule(second, step=2)
            scheduled.set()

        threading.Thread(target=schedule, daemon=True).start()
        assert first.begun.wait(LONG)
        assert not scheduled.is_set()
        assert not second.begun.is_set()
        first.end.set()
        second.end.set()
        assert scheduled.wait(LONG)
    assert [p.step for p in points_of(tmp_path)] == [1, 2]


def test_a_full_dispatcher_lets_training_go_on_and_skips_with_its_reason(tmp_path: Path) -> None:
    gate, rows = Gate(), Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[rows], max_pending=1) as evals:
        evals.schedule(gate, step=1)
        handle = evals.schedule(half, step=2)
        assert handle.done()
        gate.end.set()
    result, skipped = points_of(tmp_path)
    assert skipped.step == 2
    assert skipped.skipped == (
        "1 evals were in flight (max_pending=1); "
        'with AsyncEvalDispatcher(when_full="wait") training waits instead'
    )
    assert handle.result() == skipped
    assert (result.step, result.has_result) == (1, True)
    assert [step for _, step, _ in rows] == [2, 1]


def test_a_full_dispatcher_drops_the_oldest_that_has_not_started(tmp_path: Path) -> None:
    gates = {step: Gate() for step in (1, 2, 3)}
    with AsyncEvalDispatcher(run_dir=tmp_path, max_pending=2, when_full="newest") as evals:
        evals.schedule(gates[1], step=1)
        assert gates[1].begun.wait(LONG)
        evals.schedule(gates[2], step=2)
        evals.schedule(gates[3], step=3)
        for gate in gates.values():
            gate.end.set()
    first, dropped, last = points_of(tmp_path)
    assert dropped.step == 2
    assert str(dropped.skipped).startswith("replaced by the eval of step 3")
    assert [(p.step, p.has_result) for p in (first, last)] == [(1, True), (3, True)]
    assert not gates[2].begun.is_set()
    gate = Gate()
    with AsyncEvalDispatcher(max_pending=1, when_full="newest") as evals:
        evals.schedule(gate, step=1)  # what runs never gives way
        assert "1 evals were in flight" in str(evals.schedule(half, step=2).result(0))
        gate.end.set()


def test_the_newest_eval_of_each_name_stays_though_there_is_no_slot_for_it(tmp_path: Path) -> None:
    gate = Gate()
    with AsyncEvalDispatcher(run_dir=tmp_path, max_pending=2, when_full="newest") as evals:
        evals.schedule(gate, step=1, name="a")
        assert gate.begun.wait(LONG)
        for step in (2, 3):
            for name in ("a", "b", "c"):
                evals.schedule(half, step=step, name=name)
        gate.end.set()
    found = {(p.label, p.step): p.skipped for p in points_of(tmp_path)}
    assert {key for key, skipped in found.items() if skipped is None} == {
        *(("a", 1), ("a", 3), ("b", 3), ("c", 3)),
    }
    replaced = [skipped for skipped in found.values() if skipped is not None]
    assert len(replaced) == 3
    assert all(str(text).startswith("replaced by the eval of step 3") for text in replaced)


def test_what_may_run_starts_in_the_order_it_came(tmp_path: Path) -> None:
    first, second, third = gates = Gate(), Gate(), Gate()
    with AsyncEvalDispatcher(run_dir=tmp_path, max_running=2) as evals:
        handles = [evals.schedule(gate, step=step) for step, gate in enumerate(gates)]
        assert first.begun.wait(LONG)
        assert second.begun.wait(LONG)
        assert not third.begun.is_set()
        first.end.set()
        assert third.begun.wait(LONG)
        assert [handle.done() for handle in handles] == [True, False, False]
        second.end.set()
        third.end.set()


# --- Draining -----------------------------------------------------------------------------------


def test_drain_says_what_became_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draining = threading.Event()
    waited = AsyncEvalDispatcher.wait_for

    def wait(self: AsyncEvalDispatcher, jobs: list[Any], timeout: float | None) -> None:
        draining.set()
        waited(self, jobs, timeout)

    def fine() -> dict[str, float]:
        assert draining.wait(LONG)
        return {"accuracy": 0.5}

    def fails_late() -> dict[str, float]:
        assert draining.wait(LONG)
        raise ValueError("boom")

    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        evals.schedule(half, step=1).result(LONG)  # before: not of this drain
        evals.schedule(fine, step=2, name="a")
        evals.schedule(fails_late, step=3, name="b")
        monkeypatch.setattr(AsyncEvalDispatcher, "wait_for", wait)
        drained = evals.drain(None)
        assert (drained.finished, drained.abandoned) == ([("a", 2)], [])
        assert drained.skipped == [("b", 3, "ValueError: boom")]
        assert drained.seconds > 0
        assert evals.drain().finished == []
    assert len(points_of(tmp_path)) == 3


@pytest.mark.parametrize("evaluator", [never, Gate()])
def test_what_is_not_finished_in_time_is_abandoned(tmp_path: Path, evaluator: Any) -> None:
    with AsyncEvalDispatcher(run_dir=tmp_path, max_running=1) as evals:
        handle = evals.schedule(evaluator, step=5, name="slow", saved_at="checkpoint-5")
        evals.schedule(half, step=6, name="queued")
        drained = evals.drain(0.0)
        assert [tuple(e[:2]) for e in drained.abandoned] == [("slow", 5), ("queued", 6)]
        assert drained.abandoned[0].reason == "not finished after waiting 0.0 s (drain)"
        assert handle.done()
        if isinstance(evaluator, Gate):
            evaluator.end.set()  # a result after all: too late
        assert evals.schedule(half, step=9).result(LONG) is not None  # and it goes on
    assert [(p.step, p.has_result) for p in points_of(tmp_path)] == [
        (5, False),
        (6, False),
        (9, True),
    ]
    assert [(p.step, p.saved_at, p.pending) for p in pending_evals(tmp_path)] == [
        (5, "checkpoint-5", True),
        (6, None, True),
    ]


def test_an_eval_that_is_abandoned_gets_to_close_what_it_has(tmp_path: Path) -> None:
    begun, closed = threading.Event(), threading.Event()

    async def evaluator() -> dict[str, float]:
        try:
            begun.set()
            return await never()
        finally:
            closed.set()

    with AsyncEvalDispatcher(when_full="wait") as evals:
        evals.schedule(evaluator, step=1)
        assert begun.wait(LONG)
        evals.drain(0)
        assert closed.wait(LONG)
        assert evals.schedule(half, step=2).result(LONG).has_result


def test_after_ctrl_c_the_block_does_not_wait_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "EXIT_GRACE_SECONDS", 0.01)

    def train() -> None:
        with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
            evals.schedule(never, step=1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert [p.skipped for p in points_of(tmp_path)] == [
        "not finished 0.01 s after the end of training"
    ]


def test_an_interrupted_drain_writes_skips_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, interrupted = AsyncEvalDispatcher.wait_for, []

    def interrupt(self: AsyncEvalDispatcher, jobs: list[Any], timeout: float | None) -> None:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        waited(self, jobs, timeout)

    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        evals.schedule(never, step=1)
        monkeypatch.setattr(AsyncEvalDispatcher, "wait_for", interrupt)
        with pytest.raises(KeyboardInterrupt):
            evals.drain(LONG)
    assert [p.skipped for p in points_of(tmp_path)] == ["the wait for it was interrupted"]


def test_what_is_scheduled_after_the_end_is_a_skip(tmp_path: Path) -> None:
    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        pass
    assert evals.schedule(half, step=1).result(LONG).skipped == "the dispatcher was closed"
    assert [p.step for p in points_of(tmp_path)] == [1]


def test_a_logger_that_hangs_holds_up_neither_training_nor_the_curve(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Hangs(Rows):
        def log(self, name: str, step: int, fields: Mapping[str, Any]) -> None:
            entered.set()
            assert leave.wait(LONG)
            super().log(name, step, fields)

    hangs = Hangs()
    with AsyncEvalDispatcher(
        run_dir=tmp_path, loggers=[hangs], max_pending=1, when_full="skip"
    ) as evals:
        evals.schedule(half, step=1).result(LONG)
        assert entered.wait(LONG)
        evals.schedule(never, step=2)
        evals.schedule(half, step=3)
        assert [e.step for e in evals.drain(0.0).abandoned] == [2]
        assert [p.step for p in points_of(tmp_path)] == [1, 2, 3]
        leave.set()
    assert [step for _, step, _ in hangs] == [1, 3, 2]


# --- In a coroutine trainer ---------------------------------------------------------------------


def test_a_block_that_is_left_in_another_context_drains_all_the_same(tmp_path: Path) -> None:
    context = contextvars.copy_context()
    evals = AsyncEvalDispatcher(run_dir=tmp_path)
    context.run(evals.__enter__)
    evals.schedule(half, step=1)
    evals.__exit__(None, None, None)
    assert [p.has_result for p in points_of(tmp_path)] == [True]


@both_loops
def test_async_evals_share_the_loop_of_the_trainer(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        here, seen, go = threading.get_ident(), [], anyio.Event()

        async def evaluator() -> dict[str, float]:
            seen.append(threading.get_ident())
            await go.wait()  # an event of the trainer's loop
            return {"accuracy": 1.0}

        def plain() -> dict[str, float]:
            seen.append(threading.get_ident())
            return {"accuracy": 1.0}

        async with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
            evals.schedule(evaluator, step=1)
            await evals.aschedule(plain, step=2)
            go.set()
            drained = await evals.adrain(LONG)
        assert ("eval", 1) in drained.finished
        assert [ident == here for ident in seen].count(True) == 1

    run(main)
    assert sorted(p.step for p in points_of(tmp_path)) == [1, 2]


@both_loops
def test_where_it_is_full_aschedule_waits_and_the_loop_goes_on(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        go = anyio.Event()

        async def evaluator() -> dict[str, float]:
            await go.wait()
            return {"accuracy": 1.0}

        waits = AsyncEvalDispatcher(run_dir=tmp_path, max_pending=1, when_full="wait")
        async with waits as evals:
            await evals.aschedule(evaluator, step=1)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(evals.aschedule, half, step=2))
                await anyio.wait_all_tasks_blocked()
                assert points_of(tmp_path) == []
                go.set()

    run(main)
    assert [p.step for p in points_of(tmp_path)] == [1, 2]


@both_loops
def test_in_the_loop_that_evals_run_in_a_plain_call_never_waits(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        waits = AsyncEvalDispatcher(run_dir=tmp_path, max_pending=1, when_full="wait")
        async with waits as evals:
            handle = evals.schedule(never, step=1)
            point = evals.schedule(half, step=2).result()
            assert "use `await aschedule(…)`" in str(point.skipped)
            drained = evals.drain()
            with pytest.raises(
                InvalidInput, match=r"must be awaited: `await dispatcher.drain\(\)`"
            ):
                print(drained.finished)
            with pytest.raises(InvalidInput, match="async with"):
                evals.close()
            with pytest.raises(InvalidInput, match="adrain"):
                handle.result()
            await evals.adrain(0)

    run(main)


def test_a_drain_may_be_awaited_in_the_loop_that_evals_run_in_and_in_another(
    run: Any, tmp_path: Path
) -> None:
    async def own() -> Drained:
        async with AsyncEvalDispatcher(run_dir=tmp_path / "own") as evals:
            evals.schedule(half, step=1)
            assert (await evals.drain(LONG)).finished == [("eval", 1)]
            evals.schedule(never, step=2)
            return await evals.drain(0.0)

    async def other() -> Drained:
        with AsyncEvalDispatcher(run_dir=tmp_path / "other") as evals:
            evals.schedule(half, step=1)
            return await evals.drain()

    assert [(e.step, e.reason) for e in run(own).abandoned] == [
        (2, "not finished after waiting 0.0 s (adrain)")
    ]
    assert run(other).finished == [("eval", 1)]


def test_a_drain_that_nobody_awaits_where_it_must_be_is_a_warning_of_pythons_own(
    run: Any, tmp_path: Path
) -> None:
    async def main() -> None:
        async with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
            with pytest.warns(RuntimeWarning, match=r"adrain' was never awaited"):
                evals.drain()

    run(main)


def test_the_exception_of_a_coroutine_trainer_stays_what_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
            evals.schedule(half, step=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())  # a loop that anyio did not start will do
    assert [p.has_result for p in points_of(tmp_path)] == [True]


@both_loops
def test_a_trainer_that_is_cancelled_leaves_skips_and_ends(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "EXIT_GRACE_SECONDS", 0.01)

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
                evals.schedule(never, step=1)
                evals.schedule(Gate(), step=2)
                await anyio.wait_all_tasks_blocked()
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    run(main)
    assert sorted((p.step, p.has_result) for p in points_of(tmp_path)) == [(1, False), (2, False)]
    assert [p.step for p in pending_evals(tmp_path)] == [1, 2]


@both_loops
def test_a_coroutine_trainer_may_use_one_that_lives_beside_it(run: Any, tmp_path: Path) -> None:
    async def main() -> None:
        here, seen = threading.get_ident(), []

        async def evaluator() -> dict[str, float]:
            seen.append(threading.get_ident())
            await anyio.sleep(0)
            return {"accuracy": 1.0}

        with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
            await evals.aschedule(evaluator, step=1)
            await evals.adrain(LONG)
        assert len(seen) == 1
        assert here not in seen

    run(main)
    assert [p.has_result for p in points_of(tmp_path)] == [True]


# --- What results are as points -----------------------------------------------------------------


def test_metrics_are_a_point_without_denominators_and_without_a_reward(tmp_path: Path) -> None:
    metrics = {"accuracy": np.float32(0.5), "test/length": 3, "broken": None, "on": True}
    rows = Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[rows]) as evals:
        point = evals.schedule(lambda: metrics, step=1).result(LONG)
    assert points_of(tmp_path) == [point]
    assert set(EMPTY_SUMMARY) <= set(point.summary)
    assert point.summary["n"] is None
    assert point.reward is None
    assert set(point.metrics()) == set(metrics)
    assert [point.number(f"metric_{name}") for name in metrics] == [0.5, 3.0, None, 1.0]
    known = {key for key in rows[0][2] if key.startswith("eval_") and key != "eval_seconds"}
    assert known == {"eval_metric_accuracy", "eval_metric_test/length", "eval_metric_on"}


@pytest.mark.parametrize("number", [math.nan, math.inf, np.float32("-inf")])
@pytest.mark.parametrize(
    "make",
    [
        lambda number: {"accuracy": 0.5, "loss": number},
        lambda number: {**EMPTY_SUMMARY, "n": 4, "n_scored": 4, "mean": number},
        lambda number: curve_point(summary={"n": 4, "mean": number}),
    ],
)
def test_a_number_that_is_not_finite_is_a_skip_that_names_it(
    tmp_path: Path, make: Callable[[float], Any], number: float
) -> None:
    point = result_of(tmp_path, lambda: make(number))
    assert not point.has_result
    name = "mean" if "mean" in (getattr(make(number), "summary", None) or make(number)) else "loss"
    assert f"{name} = {float(number)}" in point.skipped
    assert "must be finite" in point.skipped


def test_a_whole_summary_stays_one(tmp_path: Path) -> None:
    summary = {**EMPTY_SUMMARY, "n": 4, "n_scored": 4, "mean": 0.25}
    point = result_of(tmp_path, lambda: summary)
    assert (point.summary, point.reward, point.n) == (summary, 0.25, 4)


def test_a_report_is_its_summary_and_outcomes(tmp_path: Path) -> None:
    async def evaluator() -> Any:
        folder = str(tmp_path / "run" / "steps")
        config = EvalConfig(endpoint=echo_number, experiment_name="one", output_dir=folder)
        return await evaluate(make_samples(3), config, exact)

    point = result_of(tmp_path / "run", evaluator, step=4, weights="abc")
    assert (point.reward, point.n, point.asked, point.of) == (1.0, 3, 3, 3)
    assert point.outcomes == tuple(ItemOutcome(f"s{i}", 1.0) for i in range(3))
    assert point.run == "steps/one"


def test_a_report_with_repeats_has_pass_at_k(tmp_path: Path) -> None:
    answers = iter(["0", "no", "no", "no"])

    async def evaluator() -> Any:
        folder = str(tmp_path / "run" / "steps")
        config = EvalConfig(
            endpoint=lambda messages: next(answers), output_dir=folder, repeats=2, max_concurrent=1
        )
        return await evaluate(make_samples(2), config, exact)

    point = result_of(tmp_path / "run", evaluator)
    assert (point.reward, point.n) == (0.25, 4)
    assert point.value_and_interval("pass@2")[0] == 0.5
    assert point.value_and_interval("pass^2")[0] == 0.0
    assert point.number("pass_at_2_n") == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"complete": False, "n_asked": 9}, "3 of 9 items"),
        ({"n_scored": 0, "mean": None}, "all 3 items errored"),
    ],
)
def test_a_report_without_an_honest_mean_is_a_skip(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    summary = {**EMPTY_SUMMARY, "n": 3, "n_scored": 3, "mean": 0.5, **change}
    point = result_of(tmp_path, lambda: EvalReport([], summary, {}))
    assert point.summary is None
    assert reason in str(point.skipped)


def test_a_point_gets_the_step_and_name_it_was_scheduled_as(tmp_path: Path) -> None:
    given = curve_point(summary={"mean": 0.5}, weights="w")
    point = result_of(tmp_path, lambda: given, step=4, name="held-out")
    assert (point.label, point.step, point.reward, point.seconds) == ("held-out", 4, 0.5, 3.0)
    assert point.weights == "w"
    assert point.session != "s"


def test_a_scheduled_result_has_its_verdict_on_the_curve_and_in_loggers(tmp_path: Path) -> None:
    def result(right: int) -> CurvePoint:
        outcomes = tuple(ItemOutcome(f"s{i}", float(i < right)) for i in range(64))
        summary = {"mean": right / 64, "n": 64, "n_scored": 64}
        return curve_point(summary=summary, outcomes=outcomes)

    rows = Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path, loggers=[rows]) as evals:
        for step, right in enumerate((4, 30, 60), start=1):
            assert evals.schedule(partial(result, right), step=step).result(LONG) is not None
    kinds = [None if p.verdict is None else p.verdict["kind"] for p in points_of(tmp_path)]
    assert kinds[-1] == "improving"
    assert [fields.get("eval_verdict") for _, _, fields in rows] == kinds


def test_a_point_that_could_not_be_read_back_is_a_skip(tmp_path: Path) -> None:
    given = curve_point(outcomes=(ItemOutcome("s1", float("nan")),))
    assert "rewards are finite" in str(result_of(tmp_path, lambda: given).skipped)


# --- The run directory --------------------------------------------------------------------------


def test_the_curve_says_what_is_in_flight(tmp_path: Path) -> None:
    gate = Gate()
    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        evals.schedule(gate, step=3, name="a", weights="abc", saved_at=Path("checkpoint-3"))
        [pending] = pending_evals(tmp_path)
        assert [pending] == read_points(tmp_path / "curve.jsonl")
        assert (pending.label, pending.step, pending.weights) == ("a", 3, "abc")
        assert (pending.saved_at, pending.skipped) == ("checkpoint-3", "scheduled, not finished")
        gate.end.set()
    assert pending_evals(tmp_path) == []
    assert [p.has_result for p in points_of(tmp_path)] == [True]


def killed_run(folder: Path) -> None:
    """What a process leaves that finished step 20 and 40, and was killed during 30 and 50."""
    with AsyncEvalDispatcher(run_dir=folder) as evals:
        for step in (20, 40):
            evals.schedule(half, step=step).result(LONG)
        for step in (30, 50):
            session = evals._file.session
            evals._file.append(pending_point("eval", step, session, saved_at=f"at-{step}"))


def test_the_next_attempt_finds_what_was_lost_once(tmp_path: Path) -> None:
    killed_run(tmp_path)
    for _ in range(2):
        with AsyncEvalDispatcher(run_dir=tmp_path, resume=True):
            pass
    why = "scheduled, not finished"
    lost = read_points(tmp_path / "curve.jsonl")[2:]
    assert [(p.step, p.skipped) for p in lost] == [(30, why), (50, why)]
    assert [p.step for p in pending_evals(tmp_path)] == [30, 50]


def test_what_was_lost_can_be_finished_without_hiding_later_points(tmp_path: Path) -> None:
    killed_run(tmp_path)
    with AsyncEvalDispatcher(run_dir=tmp_path, resume=True) as evals:
        evals.schedule(half, step=60).result(LONG)  # a point of this start comes first
        gate = Gate()
        again = evals.schedule_again(gate, pending_evals(tmp_path)[0])
        assert [p.step for p in pending_evals(tmp_path)] == [30, 50]  # killed now, it is not lost
        gate.end.set()
        again.result(LONG)
    curve = current_points(read_points(tmp_path / "curve.jsonl"))
    assert [(p.step, p.has_result) for p in curve] == [
        (20, True),
        (30, True),
        (40, True),
        (50, False),
        (60, True),
    ]
    assert [p.step for p in pending_evals(tmp_path)] == [50]


def test_a_training_that_goes_back_forgets_what_was_lost_beyond(tmp_path: Path) -> None:
    killed_run(tmp_path)
    with AsyncEvalDispatcher(run_dir=tmp_path, resume=True) as evals:
        evals.schedule(half, step=40).result(LONG)
    assert [p.step for p in pending_evals(tmp_path)] == [30]


def test_a_run_of_another_kind_or_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results.jsonl").touch()
    with pytest.raises(RunDirectoryError, match="another kind"):
        AsyncEvalDispatcher(run_dir=tmp_path / "other")
    (tmp_path / "busy").mkdir()
    held = CurveWriter(tmp_path / "busy" / "curve.jsonl")
    with pytest.raises(RunBusy):
        AsyncEvalDispatcher(run_dir=tmp_path / "busy")
    held.close()


def test_the_run_is_complete_when_the_block_ends(tmp_path: Path) -> None:
    def status() -> str:
        return RunDir(tmp_path).read_info().status

    for _ in range(2):
        with AsyncEvalDispatcher(run_dir=tmp_path):
            assert status() == "running"
        assert status() == "complete"

    def train() -> None:
        with AsyncEvalDispatcher(run_dir=tmp_path):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert status() == "running"


@pytest.mark.parametrize("first", ["dispatcher", "periodic"])
def test_a_curve_shared_with_a_periodic_eval_is_of_one_session(tmp_path: Path, first: str) -> None:
    other = periodic(tmp_path) if first == "periodic" else None
    with AsyncEvalDispatcher(run_dir=tmp_path / "run") as evals:
        evals.schedule(half, step=5).result(LONG)
        other = other or periodic(tmp_path)
        other.maybe_run(10)
        evals.schedule(half, step=15).result(LONG)
    points = points_of(tmp_path / "run")
    assert len({p.session for p in points}) == 1
    assert [(p.label, p.step) for p in current_points(points)] == [
        ("eval", 5),
        ("rl_eval", 10),
        ("eval", 15),
    ]
    assert [p.label for p in other.points] == ["rl_eval"]
    other.run_final(10)  # gives the file back


def test_a_relative_run_dir_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with AsyncEvalDispatcher(run_dir="run") as evals:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        evals.schedule(half, step=1).result(LONG)
    assert [p.step for p in points_of(tmp_path / "run")] == [1]
    assert not (tmp_path / "other" / "run").exists()


def test_ctrl_c_while_a_snapshot_is_taken_leaves_no_ghost(tmp_path: Path) -> None:
    class Interrupted:
        size = 1

        def try_snapshot(self, model: Any, *, step: int) -> Any:
            raise KeyboardInterrupt

    def result(job: Any, snapshot: Any) -> Any:
        raise AssertionError

    with AsyncEvalDispatcher(run_dir=tmp_path, max_pending=1) as evals:
        job = Scheduled(
            table=evals.jobs,
            evaluator=result,
            pending=pending_point("eval", 1),
            file=open_curve_file(tmp_path, evals),
            pool=Interrupted(),
        )
        with pytest.raises(KeyboardInterrupt):
            evals.queue(job)
        point = evals.schedule(half, step=2).result(LONG)
    assert point.has_result


def test_what_was_lost_and_fails_again_stays_pending(tmp_path: Path) -> None:
    killed_run(tmp_path)
    with AsyncEvalDispatcher(run_dir=tmp_path, resume=True) as evals:
        evals.schedule_again(fails, pending_evals(tmp_path)[0]).result(LONG)
        assert [p.step for p in pending_evals(tmp_path)] == [30, 50]
    with (
        AsyncEvalDispatcher(when_full="wait") as nowhere,
        pytest.raises(InvalidInput, match="run_dir"),
    ):
        nowhere.schedule_again(half, pending_evals(tmp_path)[0])


def test_what_cannot_be_scheduled_is_refused() -> None:
    called = half()
    called.close()
    with AsyncEvalDispatcher(when_full="wait") as evals:
        for wrong, why in (
            ({"step": -1}, "step"),
            ({"step": 1.5}, "step"),
            ({"name": ""}, "name"),
            ({"weights": 123}, "weights must be a hash"),
            ({"saved_at": "\udcff"}, "saved_at must be a path"),
            ({"evaluator": 3}, "evaluator must be a function"),
            ({"evaluator": called}, "not its call"),
        ):
            with pytest.raises(InvalidInput, match=why):
                evals.schedule(**{"evaluator": half, "step": 1, **wrong})


def test_results_that_go_nowhere_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with AsyncEvalDispatcher(when_full="wait") as evals:
        evals.schedule(half, step=1).result(LONG)
        evals.schedule(half, step=2).result(LONG)
    assert caplog.text.count("neither run_dir nor loggers") == 1


def test_what_is_waited_for_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatcher, "QUIET_SECONDS", 0.01)
    gate = Gate()

    def train() -> None:
        with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
            evals.schedule(gate, step=7, name="slow")
            assert gate.begun.wait(LONG)
            threading.Timer(0.2, gate.end.set).start()
            raise ValueError("loss is nan")

    with pytest.raises(ValueError, match="nan"):
        train()
    assert "training ended by ValueError: loss is nan; waiting up to 600 s" in caplog.text
    assert "slow of step 7" in caplog.text
    assert [p.has_result for p in points_of(tmp_path)] == [True]


# --- The one that is installed ------------------------------------------------------------------


def test_the_dispatcher_in_use_is_a_matter_of_context() -> None:
    assert get_async_eval_dispatcher() is None
    with AsyncEvalDispatcher(when_full="wait") as one:
        assert get_async_eval_dispatcher() is one
        with AsyncEvalDispatcher() as other:
            assert get_async_eval_dispatcher() is other
            token = set_async_eval_dispatcher(None)
            assert get_async_eval_dispatcher() is None
            token.var.reset(token)
        assert get_async_eval_dispatcher() is one
    assert get_async_eval_dispatcher() is None
    with pytest.raises(InvalidInput, match="an AsyncEvalDispatcher"):
        set_async_eval_dispatcher(AsyncEvalDispatcher)


def test_of_several_processes_the_first_one_evaluates_and_dispatchers_in_others_do_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    called: list[int] = []
    rows = Rows()
    with AsyncEvalDispatcher(run_dir=tmp_path / "run", loggers=[rows]) as evals:
        handle = evals.schedule(lambda: called.append(1) or {"accuracy": 0.5}, step=1)
        assert (handle.done(), handle.result(LONG)) == (True, None)
        assert evals.drain() == Drained()
    assert (called, rows) == ([], [])
    assert not (tmp_path / "run").exists()


# --- Many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("when_full", ["wait", "skip", "newest"])
def test_hundreds_of_evals_are_a_line_each_at_its_step(
    tmp_path: Path, when_full: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    caplog.set_level(logging.CRITICAL, "heldout")
    monkeypatch.setattr("heldout.store.jsonl.os.fsync", lambda fd: None)
    chance, loggers = random.Random(0), [Rows(), Rows()]

    def evaluator(step: int, seconds: float, ending: str) -> Any:
        async def later() -> dict[str, float]:
            await anyio.sleep(seconds)
            if ending == "fails":
                raise ValueError(step)
            return {"step": step}

        return (lambda: {"step": step}) if ending == "plain" else later

    with AsyncEvalDispatcher(
        run_dir=tmp_path, loggers=loggers, max_pending=3, when_full=when_full
    ) as evals:
        for step in range(300):
            ending = chance.choice(["fails", "fine", "fine", "plain"])
            evals.schedule(evaluator(step, chance.uniform(0, 0.02), ending), step=step)
            assert len(evals.jobs.in_flight) <= 3
    points = points_of(tmp_path)
    assert sorted(p.step for p in points) == list(range(300))
    assert all(p.number("metric_step") == p.step for p in points if p.has_result)
    assert {p.step for p in points if p.has_result}
    assert {p.step for p in points if p.skipped}
    for rows in loggers:
        assert sorted((step, "eval_reason" in fields) for _, step, fields in rows) == sorted(
            (p.step, not p.has_result) for p in points
        )
    assert pending_evals(tmp_path) == []


def test_nothing_is_kept_of_evals_that_have_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "heldout")  # a record in the log has its traceback

    class Weights:
        """What an evaluator holds."""

    held: list[weakref.ref[Weights]] = []

    def evaluator(weights: Weights, step: int) -> dict[str, float]:
        if step % 2:
            raise ValueError("boom")
        return {"accuracy": 0.5}

    def some(evals: AsyncEvalDispatcher, count: int) -> int:
        for step in range(count):
            weights = Weights()
            held.append(weakref.ref(weights))
            evals.schedule(partial(evaluator, weights, step), step=step)
            del weights
        evals.drain(LONG)
        alive = sum(ref() is not None for ref in held)
        held.clear()
        return alive

    gc.collect()
    gc.disable()  # what is held by cycles only is held for as long as the training allocates little
    tracemalloc.start()
    try:
        with AsyncEvalDispatcher(when_full="wait") as evals:
            some(evals, 50)  # threads, caches
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            assert some(evals, 300) <= 20  # threads that are just about to let go
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
        gc.enable()
    assert grown < 200_000
