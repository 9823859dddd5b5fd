"""A thread with an event loop of its own, which is checked and started again."""

from __future__ import annotations

import asyncio
import threading

import pytest

from heldout._core.loop_thread import LoopThread


async def thread_name() -> str:
    return threading.current_thread().name


def ask(loop: asyncio.AbstractEventLoop) -> str:
    return asyncio.run_coroutine_threadsafe(thread_name(), loop).result(60)


def test_there_is_one_loop_and_it_is_in_its_own_thread() -> None:
    worker = LoopThread("heldout-test")
    loop = worker.get()
    assert worker.get() is loop
    assert ask(loop) == "heldout-test"
    worker.stop()


def test_a_thread_that_has_ended_is_started_again() -> None:
    worker = LoopThread("heldout-test")
    first = worker.get()
    worker.stop()
    assert not worker.is_current(first)
    second = worker.get()
    assert second is not first
    assert ask(second) == "heldout-test"
    worker.stop()


def test_code_that_exits_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def exits() -> None:
        raise SystemExit(3)

    worker = LoopThread("heldout-test")
    loop = worker.get()
    asyncio.run_coroutine_threadsafe(exits(), loop)
    assert ask(loop) == "heldout-test"
    worker.stop()
    assert "event loop of heldout-test, which goes on: SystemExit" in caplog.text


def test_what_runs_is_cancelled_when_it_stops() -> None:
    worker, began, ended = LoopThread("heldout-test"), threading.Event(), threading.Event()

    async def waits() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asyncio.run_coroutine_threadsafe(waits(), worker.get())
    assert began.wait(60)
    worker.stop()
    assert ended.is_set()
