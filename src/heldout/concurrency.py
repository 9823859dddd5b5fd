"""Plain or async, asyncio or trio, this thread or another: the few things that bridge them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import anyio
import sniffio

T = TypeVar("T")


async def settle(value: T | Awaitable[T]) -> T:
    """Await what a plain-or-async function returned, if it needs awaiting."""
    if inspect.isawaitable(value):
        return await value
    return value


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine.

    An object with an async `__call__` is as async as a function. What a decorator wraps does not
    count: the wrapper is what is called.
    """
    while isinstance(function, functools.partial):
        function = function.func
    called = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(called)


def thread_context() -> contextvars.Context:
    """This context for another thread, in which no event loop runs yet."""
    context = contextvars.copy_context()
    context.run(sniffio.current_async_library_cvar.set, None)
    return context


# --- Threads ------------------------------------------------------------------------------------


class Threads:
    """Threads for functions that block.

    They are daemons, which those of `anyio.to_thread` are not under asyncio: a function that
    never returns costs its item a timeout, but must not keep the process from ending. A call
    that was given up on holds its thread and nobody else's, so there is no limit to starve under.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        self._closed = False
        done, wake = anyio.Event(), waker()
        context = thread_context()
        outcome: list[Any] = []
        problem: list[BaseException] = []

        def job() -> None:
            try:
                outcome.append(context.run(function, *args))
            except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
                problem.append(raised)
            self._idle.append(jobs)
            if self._closed:  # given up on, and done after all
                self.close()
            wake(done.set)

        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = queue.SimpleQueue()
            threading.Thread(
                target=_work, args=(jobs,), name="heldout-function", daemon=True
            ).start()
        jobs.put(job)
        await done.wait()
        try:
            if problem:
                raise problem[0]
            return outcome[0]
        finally:
            problem.clear()  # else it and its traceback hold each other

    def close(self) -> None:
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and with it the messages and the answer


# --- Event loops --------------------------------------------------------------------------------


def current_loop() -> Any:
    """The event loop that runs: an asyncio loop or a trio token."""
    if sniffio.current_async_library() == "trio":
        import trio

        return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


def waker() -> Callable[[Callable[[], object]], None]:
    """How another thread gets a function called in this event loop. It does not wait for that."""
    loop = current_loop()
    is_asyncio = isinstance(loop, asyncio.AbstractEventLoop)
    soon = loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon

    def wake(function: Callable[[], object]) -> None:
        try:
            soon(function)
        except RuntimeError:
            pass  # the loop is gone, and with it whoever waited

    return wake
