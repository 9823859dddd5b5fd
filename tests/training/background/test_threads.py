"""The trainer's thread: what it waits for, and the calls that wait for it."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from heldout.errors import InvalidInput
from heldout.training.background.threads import TrainerThread, deadline
from heldout.training.measuring import TrainerGone
from tests.conftest import both_loops

LONG = 60.0


def never() -> bool:
    return False


def wait_for_a_call(trainer: TrainerThread) -> None:
    with trainer.lock:
        assert trainer.lock.wait_for(lambda: trainer._calls, LONG)


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_what_is_waited_for_is_asked_once_more_when_time_is_up(seconds: float) -> None:
    until, asked = time.monotonic() + seconds, list[float]()

    def is_over() -> bool:
        asked.append(time.monotonic())
        return False

    TrainerThread().wait(is_over, until)
    assert len(asked) == 1
    assert asked[-1] >= until


@both_loops
def test_a_coroutine_waits_for_a_change_in_another_thread(backend: str) -> None:
    trainer, has_changed = TrainerThread(), threading.Event()

    def change() -> None:
        has_changed.set()
        trainer.notify()

    async def main() -> None:
        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group:
                group.start_soon(trainer.wait_async, has_changed.is_set)
                await anyio.wait_all_tasks_blocked()
                assert not has_changed.is_set()
                threading.Thread(target=change).start()

    anyio.run(main, backend=backend)


def test_a_wait_makes_the_calls_of_other_threads_here() -> None:
    trainer, here = TrainerThread(), threading.get_ident()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(trainer.call, threading.get_ident, never)
        trainer.wait(future.done, deadline(LONG))
        assert future.result(0) == here


def test_no_call_is_begun_when_time_is_up_or_its_result_is_not_wanted() -> None:
    trainer = TrainerThread()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(trainer.call, never, lambda: True)
        wait_for_a_call(trainer)
        trainer.run_calls(until=-math.inf)
        assert len(trainer._calls) == 1
        trainer.run_calls()
        assert not trainer._calls
        given_up = pool.submit(trainer.call, never, lambda: True)
        trainer.wait(given_up.done, deadline(LONG))
        with pytest.raises(TrainerGone, match="abandoned"):
            given_up.result(0)


def test_calls_end_with_the_training() -> None:
    trainer = TrainerThread()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(trainer.call, never, never)
        wait_for_a_call(trainer)
        trainer.close()
        with pytest.raises(TrainerGone, match="training ended"):
            waiting.result(LONG)
    with pytest.raises(TrainerGone, match="training ended"):
        trainer.call(never, never)


def test_a_wait_that_would_deadlock_is_refused() -> None:
    trainer = TrainerThread()
    trainer.check_may_wait("result()")
    trainer.loop_thread = threading.get_ident()
    with pytest.raises(InvalidInput, match="result.. would block the event loop"):
        trainer.check_may_wait("result()")
