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
from typing import Any, Generic, Protocol, TypeVar, cast

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
    """Tell whether calling a function gives a coroutine.

    Args:
        function: A function, a partial of one, or an object with `__call__`. What a decorator wraps
            does not count: the wrapper is what is called.

    Returns:
        Whether it is async.
    """
    while isinstance(function, functools.partial):
        function = function.func
    call = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(call)


def thread_context() -> contextvars.Context:
    """Copy the context for another thread, in which no event loop runs yet.

    Returns:
        The copy.
    """
    context = contextvars.copy_context()
    context.run(sniffio.current_async_library_cvar.set, None)
    return context


# --- Threads ------------------------------------------------------------------------------------


class Threads:
    """Threads for functions that block.

    They are daemons, which those of `anyio.to_thread` are not under asyncio: a function that
    never returns costs its item a timeout, but must not keep the process from ending. A call
    that was given up on holds only its own thread, so there is no limit to starve under.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, and wait for it; cancelled, the thread is given up on.

        Args:
            function: What to call.
            *args: Its arguments.

        Returns:
            What it returned.

        Raises:
            BaseException: What it raised.
        """
        self._closed = False
        done, wake = anyio.Event(), waker()
        result: Result[Any] = Result()
        call = functools.partial(thread_context().run, function, *args)

        def job() -> None:
            result.call(call, catch=BaseException)
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
        return result.take()

    def close(self) -> None:
        """End the threads that are idle; those that are not end with their call."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and with it the messages and the answer


class Result(Generic[T]):
    """What a call in one thread came to, for another to take."""

    __slots__ = ("problem", "values")

    def __init__(self) -> None:
        self.values: list[T] = []
        self.problem: BaseException | None = None

    def call(self, function: Callable[[], T], *, catch: type[BaseException]) -> None:
        """Call a function, and keep what it returns or raises.

        Args:
            function: What to call.
            catch: What to keep of what it raises; anything else is raised here.
        """
        try:
            self.values.append(function())
        except catch as raised:
            self.problem = raised

    def take(self) -> T:
        """Return what the function returned.

        Returns:
            That.

        Raises:
            BaseException: What it raised.
        """
        try:
            if self.problem is not None:
                raise self.problem
            return self.values[0]
        finally:
            self.problem = None  # else it and its traceback hold each other, and a model with them


# --- Event loops --------------------------------------------------------------------------------


def current_loop() -> Any:
    """Return the running event loop: an asyncio loop or a trio token.

    Returns:
        Something that is equal in the same event loop alone.
    """
    if sniffio.current_async_library() == "trio":
        import trio

        return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


def waker() -> Callable[[Callable[[], object]], None]:
    """Make a function with which another thread has a function called in this event loop.

    Returns:
        `wake(function)`, which does not wait for the call.
    """
    loop = current_loop()
    is_asyncio = isinstance(loop, asyncio.AbstractEventLoop)
    soon = loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon

    def wake(function: Callable[[], object]) -> None:
        try:
            soon(function)
        except RuntimeError:
            pass  # the loop is gone, and with it what waited

    return wake


# --- Exits in user code -------------------------------------------------------------------------


class Stray(Exception):
    """Stands for what was raised and is no Exception: it would pass for this thread's Ctrl-C."""


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
    """Tell a user's Ctrl-C from a KeyboardInterrupt that user code raised itself.

    Args:
        problem: What was raised, possibly a group.

    Returns:
        Whether it holds a user's Ctrl-C.
    """
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
def contain_exits() -> Iterator[None]:
    """Keep a SystemExit or KeyboardInterrupt in user code from ending the event loop.

    Tasks that user code starts raise `Stray` instead, and `was_interrupted` can tell the user's own
    Ctrl-C. Both hooks are shared by all that are within at once, and gone after the last.

    Yields:
        Nothing.
    """
    loop = current_loop()
    factory: _TaskFactory | None = None
    if isinstance(loop, asyncio.AbstractEventLoop):
        previous = loop.get_task_factory()
        factory = previous if isinstance(previous, _TaskFactory) else _TaskFactory(previous)
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
    """Has a function called in the thread that `run_in_loop_thread` was called in."""

    async def __call__(self, function: Callable[[], T]) -> T:
        """Call a function there, and wait for what it returns or raises."""
        ...


class Abandoned(Exception):
    """What was to be cancelled did not come to an end: something in it blocks its event loop."""


def run_in_loop_thread(
    main: Callable[[Here], Awaitable[T]],
    *,
    backend: str = "asyncio",
    keep_going: Callable[[], bool] | None = None,
    every: float = 0.5,
    grace: float | None = None,
) -> T | None:
    """Run an event loop in a thread of its own; this thread makes the calls that it hands over.

    Engines are tied to a thread (the current CUDA device, autograd's and a trainer's contexts),
    and the caller may sit in a running event loop of its own, as in a notebook.

    Args:
        main: What to run there; it is given what calls a function here.
        backend: asyncio or trio.
        keep_going: Asked every so often; once it says no, `main` is cancelled.
        every: Seconds between two questions.
        grace: Seconds to wait for the end of what was cancelled; None waits for it.

    Returns:
        What `main` returned; None where it was cancelled.

    Raises:
        Abandoned: What was cancelled did not end within `grace`.
        Exception: What `main` raised; what is no Exception is raised as `Stray`.
    """
    calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    result: Result[T] = Result()
    cancel: list[Callable[[], None]] = []
    given_up = False

    async def enter() -> None:
        wake = waker()

        async def here(function: Callable[[], Any]) -> Any:
            done, answer = anyio.Event(), Result[Any]()

            def call() -> None:
                answer.call(function, catch=Exception)
                wake(done.set)

            calls.put(call)
            await done.wait()
            return answer.take()

        with anyio.CancelScope() as scope:
            cancel.append(lambda: wake(scope.cancel))
            if given_up:
                scope.cancel()
            result.values.append(await main(here))
            # Not once the loop has closed: it waits for threads that something else has blocked.
            calls.put(None)

    def run_loop() -> None:
        try:
            anyio.run(enter, backend=backend)
        except BaseException as raised:  # noqa: BLE001 - raised in the caller's thread
            if not result.values:
                result.problem = _as_exception(raised)
        finally:
            calls.put(None)

    thread = start_thread(run_loop)
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
    if result.values or result.problem is not None:
        return result.take()
    if thread.is_alive():
        raise Abandoned(f"what was cancelled had not ended {grace:g} s later: something blocks it")
    return None


def _as_exception(problem: BaseException) -> Exception:
    """Return what a thread raised, out of groups of one, as something that is no exit here."""
    while isinstance(problem, BaseExceptionGroup) and len(problem.exceptions) == 1:
        problem = problem.exceptions[0]
    if isinstance(problem, Exception):
        return problem
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    stray = Stray(f"{type(problem).__name__}: {printable_error(problem)}")
    stray.__cause__ = problem
    return stray


def start_thread(work: Callable[[], object]) -> threading.Thread:
    """Start a thread in which an event loop may be run, whatever runs in this one.

    Args:
        work: What to call there.

    Returns:
        The thread, a daemon.
    """
    thread = threading.Thread(
        target=functools.partial(thread_context().run, work), name="heldout-loop", daemon=True
    )
    thread.start()
    return thread
