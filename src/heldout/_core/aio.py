"""Plain or async, asyncio or trio, this thread or another: the few things that bridge them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import math
import queue
import threading
import time
from asyncio import Task
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, cast

import anyio
import sniffio

from heldout.errors import printable_error

T = TypeVar("T")


async def settle(value: T | Awaitable[T]) -> T:
    """Await what a plain or async function returned, if it needs awaiting."""
    if hasattr(type(value), "__await__"):
        return await cast("Awaitable[T]", value)
    return cast("T", value)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling a function gives a coroutine.

    What a decorator wraps does not count: the wrapper is what is called.
    """
    while isinstance(function, functools.partial):
        function = function.func
    call = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(call)


# --- Event loops --------------------------------------------------------------------------------


def current_loop() -> Any:
    """Return the running event loop: an asyncio loop or a trio token."""
    if sniffio.current_async_library() == "trio":
        import trio

        return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


def waker() -> Callable[[Callable[[], object]], None]:
    """Make a function with which another thread has a function called in this event loop.

    `wake(function)` does not wait for the call.
    """
    loop = current_loop()
    is_asyncio = isinstance(loop, asyncio.AbstractEventLoop)
    soon = loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon

    def wake(function: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is gone, and with it what waited
            soon(function)

    return wake


async def wait_for(future: Future[T]) -> T:
    """Wait for a future of another thread; cancelling the wait cancels the future."""
    done, wake = anyio.Event(), waker()
    future.add_done_callback(lambda _: wake(done.set))
    try:
        await done.wait()
        return future.result()
    finally:
        future.cancel()  # without effect once it is done


# --- Threads ------------------------------------------------------------------------------------


class Threads:
    """Threads for functions that block.

    They are daemons, which those of `anyio.to_thread` are not under asyncio: a function that
    never returns costs its item a timeout, but must not keep the process from ending. An abandoned
    call holds only its own thread, so there is no limit to exhaust.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, and wait for it; on cancellation, abandon the thread."""
        self._closed = False
        done, wake = anyio.Event(), waker()
        outcome: list[CallOutcome] = []
        call = functools.partial(_thread_context().run, function, *args)

        def job() -> None:
            outcome.append(capture(call, BaseException))
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
        return unwrap_outcome(outcome)

    def close(self) -> None:
        """End idle threads now, and busy ones when their call returns."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and with it the messages and the answer


CallOutcome = tuple[Any, BaseException | None]
"""What a call in another thread returned, or raised."""


def capture(call: Callable[[], object], catch: type[BaseException]) -> CallOutcome:
    """Call a function, and return its value, or the exception of type `catch` that it raised."""
    try:
        return call(), None
    except catch as raised:
        return None, raised


def unwrap_outcome(outcome: list[CallOutcome]) -> Any:
    """Return the value of a call or raise its exception, and drop the reference to both."""
    value, problem = outcome.pop()
    try:
        if problem is not None:
            raise problem
        return value
    finally:
        del problem  # else it and its traceback hold each other, and a model with them


def start_thread(work: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread that can run an event loop, even if this thread already runs one."""
    thread = threading.Thread(
        target=functools.partial(_thread_context().run, work), name="heldout-loop", daemon=True
    )
    thread.start()
    return thread


def _thread_context() -> contextvars.Context:
    """Copy the context for another thread, in which no event loop runs yet."""
    context = contextvars.copy_context()
    context.run(sniffio.current_async_library_cvar.set, None)
    return context


# --- Exits in user code -------------------------------------------------------------------------


class UserCode(Protocol):
    """The attempt whose functions are being called."""

    async def metered(self, awaitable: Awaitable[T]) -> T:
        """Await something that belongs to the attempt, and time its steps."""
        ...


in_user_code: ContextVar[UserCode | None] = ContextVar("heldout_in_user_code", default=None)
"""The attempt whose functions are being called, also in every task that they start."""


class SharedUserCode:
    """User code that attempts share, such as that of a server: it is nobody's time."""

    async def metered(self, awaitable: Awaitable[T]) -> T:
        """Await it."""
        return await awaitable


class ContainedExit(Exception):
    """Wraps a BaseException that is not an Exception, which would end the event loop."""

    @classmethod
    def of(cls, problem: BaseException) -> ContainedExit:
        """Wrap an exception, which becomes the cause."""
        stray = cls(f"{type(problem).__name__}: {printable_error(problem)}")
        stray.__cause__ = problem
        return stray


def as_error(problem: BaseException) -> Exception:
    """Return what user code raised as an Exception, which ends its item and nothing else.

    Raises:
        BaseException: It is Ctrl-C, which is nobody's error.
    """
    problem = unwrap_group(problem)
    if isinstance(problem, KeyboardInterrupt):
        raise problem
    if isinstance(problem, BaseExceptionGroup) and problem.subgroup(KeyboardInterrupt):
        raise problem
    return problem if isinstance(problem, Exception) else ContainedExit.of(problem)


def contain_exits() -> None:
    """Turn a SystemExit in a task of user code into an error of that task.

    asyncio would end the loop with it. The hook stays installed in the loop and leaves other tasks
    alone.
    """
    loop = current_loop()
    if isinstance(loop, asyncio.AbstractEventLoop):
        previous = loop.get_task_factory()
        if not isinstance(previous, _TaskFactory):
            loop.set_task_factory(_TaskFactory(previous))


class _TaskFactory:
    def __init__(self, previous: Callable[..., Any] | None) -> None:
        self._make = previous or (lambda loop, coro, **options: Task(coro, loop=loop, **options))

    def __call__(self, loop: Any, coro: Any, **options: Any) -> Any:
        attempt = in_user_code.get()
        if attempt is None:
            return self._make(loop, coro, **options)
        task = self._make(loop, _contain(coro, attempt), **options)
        # Cancelled before it began, it would warn that it was never awaited.
        task.add_done_callback(lambda _: coro.close())
        return task


async def _contain(coro: Coroutine[Any, Any, T], attempt: UserCode) -> T:
    try:
        return await attempt.metered(coro)
    except SystemExit as problem:
        raise ContainedExit.of(problem)  # noqa: B904 - it has its cause


WAIT_SECONDS = 0.5
"""The longest that a thread which takes Ctrl-C sleeps at a time, however long it waits.

Python runs signal handlers in the main thread, between two instructions of its own. A Ctrl-C that
comes when that thread has left Python for a wait, but does not sleep yet, or that the system hands
to another thread, wakes nobody: without a limit it would be lost until what is waited for has come.
On a busy machine this happens.
"""

# --- Two threads --------------------------------------------------------------------------------


class CallerThread(Protocol):
    """Calls a function in the thread that called `run_in_loop_thread`."""

    async def __call__(self, function: Callable[[], T]) -> T:
        """Call a function there, and wait for what it returns or raises."""
        ...


class CancelTimeout(Exception):
    """Cancelled work did not end: something in it blocks its event loop."""


def run_in_loop_thread(
    main: Callable[[CallerThread], Awaitable[T]],
    *,
    keep_going: Callable[[], bool] | None = None,
    every: float = WAIT_SECONDS,
    grace: float | None = None,
) -> T | None:
    """Run an event loop in a thread of its own; this thread makes the calls that it hands over.

    Engines are tied to a thread (the current CUDA device, autograd's and a trainer's contexts),
    and the caller may sit in a running event loop of its own, as in a notebook.

    `keep_going` is polled every `every` seconds. Once it returns False, `main` is cancelled and the
    result is None; if that takes longer than `grace`, `CancelTimeout` is raised. What `main` raises
    is raised here; anything but an Exception is wrapped in `ContainedExit`.
    """
    calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    outcome: list[CallOutcome] = []
    cancel: list[Callable[[], None]] = []
    given_up = False

    async def enter() -> None:
        wake = waker()

        async def caller_thread(function: Callable[[], Any]) -> Any:
            done, answer = anyio.Event(), list[CallOutcome]()

            def call() -> None:
                answer.append(capture(function, Exception))
                wake(done.set)

            calls.put(call)
            await done.wait()
            return unwrap_outcome(answer)

        with anyio.CancelScope() as scope:
            cancel.append(lambda: wake(scope.cancel))
            if given_up:
                scope.cancel()
            outcome.append((await main(caller_thread), None))
            # Not once the loop has closed: it waits for threads that something else has blocked.
            calls.put(None)

    def run_loop() -> None:
        try:
            anyio.run(enter)
            if not outcome:
                outcome.append((None, None))  # it was cancelled
        except BaseException as raised:  # noqa: BLE001 - raised in the caller's thread
            if not outcome:
                problem = unwrap_group(raised)
                is_exit = not isinstance(problem, Exception)
                outcome.append((None, ContainedExit.of(problem) if is_exit else problem))
        finally:
            calls.put(None)

    thread = start_thread(run_loop)
    has_ended = False
    try:
        while not has_ended and (keep_going is None or keep_going()):
            with suppress(queue.Empty):
                call = calls.get(timeout=every)
                has_ended = call is None
                if call is not None:
                    call()
    finally:
        given_up = not has_ended  # or Ctrl-C: what runs over there gets to close first
        if given_up and cancel:
            cancel[0]()
        until = math.inf if grace is None else time.monotonic() + grace
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, every))
    if not outcome:
        raise CancelTimeout(
            f"what was cancelled had not ended {grace:g} s later: something blocks it"
        )
    return cast("T | None", unwrap_outcome(outcome))


def unwrap_group(problem: BaseException) -> BaseException:
    """Unwrap exception groups that hold a single exception."""
    while isinstance(problem, BaseExceptionGroup) and len(problem.exceptions) == 1:
        problem = problem.exceptions[0]
    return problem
