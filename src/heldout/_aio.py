"""Plain or async, asyncio or trio, this thread or another: the few things that bridge them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol, TypeVar, cast

import anyio
import sniffio

from heldout.errors import printable_error

T = TypeVar("T")


async def settle(value: T | Awaitable[T]) -> T:
    """Await what a plain or async function returned, if it needs awaiting.

    Args:
        value: What the function returned.

    Returns:
        The value, or what came of awaiting it.
    """
    if hasattr(type(value), "__await__"):
        return await cast("Awaitable[T]", value)
    return cast("T", value)


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


# --- Exits in user code -------------------------------------------------------------------------


class Stray(Exception):
    """What was raised is no Exception. Here it would pass for a Ctrl-C or an exit of this thread's
    own."""


in_user_code: ContextVar[bool] = ContextVar("heldout_in_user_code", default=False)
"""Set where an item's functions are called, and so in every task that they start."""


class _Interrupts:
    """Handles SIGINT as it was handled before, and remembers that there was one."""

    def __init__(self, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.previous, self.users, self.seen = previous, 0, False

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        self.seen = True
        return self.previous(number, frame)


class _TaskFactory:
    """Makes tasks whose SystemExit is an error of the task: asyncio would end the loop with it."""

    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self.previous, self.users = previous, 0

    def __call__(self, loop: Any, coro: Any, **options: Any) -> Any:
        if in_user_code.get():
            coro = _Contained(coro)
        if self.previous is not None:
            return self.previous(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine out of which no SystemExit comes, nor a KeyboardInterrupt of its own."""

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro

    def __getattr__(self, name: str) -> Any:  # anyio asks whether it runs: cr_running, cr_frame
        return getattr(self._coro, name)

    def send(self, value: Any) -> Any:
        with _containing():
            return self._coro.send(value)

    def throw(self, *raised: Any) -> Any:
        with _containing():
            return self._coro.throw(*raised)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Any:
        return self._coro.__await__()


@contextmanager
def _containing() -> Iterator[None]:
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as problem:
        if was_interrupted(problem):
            raise
        raise Stray(f"{type(problem).__name__}: {printable_error(problem)}") from problem


def was_interrupted(problem: BaseException) -> bool:
    """Whether this holds the Ctrl-C of a user, and is not user code's own doing."""
    if isinstance(problem, BaseExceptionGroup):
        return any(map(was_interrupted, problem.exceptions))
    if not isinstance(problem, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # signals arrive in the main thread alone
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, _Interrupts):
        return handler.seen
    return handler not in (signal.SIG_IGN, signal.SIG_DFL)


@contextmanager
def exits_contained() -> Iterator[None]:
    """Within, a SystemExit or KeyboardInterrupt in user code is no end of the event loop.

    Tasks that user code starts raise `Stray` instead, and `was_interrupted` can tell the user's own
    Ctrl-C. Both hooks are shared by all that are within at once, and gone after the last.
    """
    loop = current_loop()
    factory: _TaskFactory | None = None
    if isinstance(loop, asyncio.AbstractEventLoop):
        known = loop.get_task_factory()
        factory = known if isinstance(known, _TaskFactory) else _TaskFactory(known)
        factory.users += 1
        loop.set_task_factory(factory)
    interrupts: _Interrupts | None = None
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if isinstance(handler, _Interrupts):
            interrupts = handler
        elif callable(handler):
            interrupts = _Interrupts(handler)
            signal.signal(signal.SIGINT, interrupts)
        if interrupts is not None:
            interrupts.users += 1
    try:
        yield
    finally:
        if factory is not None:
            factory.users -= 1
            if factory.users == 0 and loop.get_task_factory() is factory:
                loop.set_task_factory(factory.previous)
        if interrupts is not None:
            interrupts.users -= 1
            if interrupts.users == 0 and signal.getsignal(signal.SIGINT) is interrupts:
                signal.signal(signal.SIGINT, interrupts.previous)


# --- Two threads --------------------------------------------------------------------------------


class Here(Protocol):
    """Has a function called in the thread that `run_beside` was called in."""

    async def __call__(self, function: Callable[[], T]) -> T: ...


class Abandoned(Exception):
    """What was to be cancelled did not come to an end: something in it blocks its event loop."""


def run_beside(
    main: Callable[[Here], Awaitable[T]],
    *,
    backend: str = "asyncio",
    keep_going: Callable[[], bool] | None = None,
    every: float = 0.5,
    grace: float | None = None,
) -> T | None:
    """Run `main` in an event loop in a thread of its own; this thread does what it hands over.

    Engines are tied to a thread (the current CUDA device, autograd's and a trainer's contexts),
    and the caller may sit in a running event loop of its own, as in a notebook. Where `keep_going`,
    asked every so many seconds, says no, `main` is cancelled and None returned; `grace` bounds how
    long it is then waited for.
    """
    calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    outcome: list[T] = []
    problem: list[BaseException] = []
    cancel: list[Callable[[], None]] = []
    given_up = False

    async def entered() -> None:
        wake = waker()

        async def here(function: Callable[[], Any]) -> Any:
            done = anyio.Event()
            given: list[Any] = []
            raised: list[Exception] = []

            def call() -> None:
                try:
                    given.append(function())
                except Exception as caught:  # noqa: BLE001 - raised where it is awaited
                    raised.append(caught)
                wake(done.set)

            calls.put(call)
            await done.wait()
            if raised:
                raise raised.pop()
            return given[0]

        with anyio.CancelScope() as scope:
            cancel.append(lambda: wake(scope.cancel))
            if given_up:
                scope.cancel()
            outcome.append(await main(here))
            # Not once the loop has closed: it waits for threads that somebody else has blocked.
            calls.put(None)

    def converse() -> None:
        try:
            anyio.run(entered, backend=backend)
        except BaseException as caught:  # noqa: BLE001 - raised in the caller's thread
            while isinstance(caught, BaseExceptionGroup) and len(caught.exceptions) == 1:
                caught = caught.exceptions[0]
            problem.append(caught)
        finally:
            calls.put(None)

    thread = in_own_thread(converse)
    try:
        while keep_going is None or keep_going():
            try:
                call = calls.get(timeout=None if keep_going is None else every)
            except queue.Empty:
                continue
            if call is None:
                break
            call()
        else:
            given_up = True
    except BaseException:
        given_up = True  # Ctrl-C, most likely: what runs over there gets to close first
        raise
    finally:
        if given_up and cancel:
            cancel[0]()
        thread.join(grace)
    if thread.is_alive() and not outcome:
        raise Abandoned(f"what was cancelled had not ended {grace:g} s later: something blocks it")
    if problem and not outcome:
        if isinstance(problem[0], Exception):
            raise problem[0]
        stray = problem[0]
        while isinstance(stray, BaseExceptionGroup):
            stray = stray.exceptions[0]
        raise Stray(f"{type(stray).__name__}: {printable_error(stray)}") from stray
    return outcome[0] if outcome else None


def in_own_thread(work: Callable[[], object]) -> threading.Thread:
    """Started in a thread where an event loop may be run, whatever runs in this one."""
    thread = threading.Thread(
        target=functools.partial(thread_context().run, work), name="heldout-beside", daemon=True
    )
    thread.start()
    return thread
