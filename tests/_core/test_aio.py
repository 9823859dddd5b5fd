from __future__ import annotations

import threading
import time

import anyio
import pytest

from heldout._core.aio import CallerThread, CancelTimeout, run_in_loop_thread


def test_what_is_handed_over_runs_in_the_callers_thread() -> None:
    here_threads: list[int] = []

    async def main(caller_thread: CallerThread) -> tuple[int, int]:
        await caller_thread(lambda: here_threads.append(threading.get_ident()))
        return threading.get_ident(), await caller_thread(lambda: 41) + 1

    beside, answer = run_in_loop_thread(main) or (0, 0)
    assert here_threads == [threading.get_ident()]
    assert beside != threading.get_ident()
    assert answer == 42


def test_an_exception_over_there_is_raised_here_and_one_from_here_over_there() -> None:
    def fail() -> None:
        raise ValueError("handed over")

    async def main(caller_thread: CallerThread) -> None:
        with pytest.raises(ValueError, match="handed over"):
            await caller_thread(fail)
        raise KeyError("over there")

    with pytest.raises(KeyError, match="over there"):
        run_in_loop_thread(main)


def test_an_interrupt_lets_the_other_side_close_first() -> None:
    closed: list[bool] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def main(caller_thread: CallerThread) -> None:
        try:
            await caller_thread(interrupt)
        finally:
            closed.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_in_loop_thread(main)
    assert closed == [True]


def test_what_is_not_to_keep_going_is_cancelled() -> None:
    closed: list[bool] = []

    async def main(caller_thread: CallerThread) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            closed.append(True)

    asked = iter([True, True, False])
    assert run_in_loop_thread(main, keep_going=lambda: next(asked), every=0.01) is None
    assert closed == [True]


def test_what_blocks_its_loop_is_given_up_after_the_grace() -> None:
    released = threading.Event()

    async def main(caller_thread: CallerThread) -> None:
        released.wait()

    asked = iter([True, False])
    began = time.monotonic()
    with pytest.raises(CancelTimeout, match="0.05 s"):
        run_in_loop_thread(main, keep_going=lambda: next(asked), every=0.01, grace=0.05)
    assert time.monotonic() - began < 30
    released.set()
