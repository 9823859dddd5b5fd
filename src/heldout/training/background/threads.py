"""Where background evals run: an event loop, and at times the trainer's thread.

Random state, torch's flags and the capture of CUDA graphs are global to a process. An eval in its
own thread must not touch them while training runs; in the trainer's thread, between two steps, it
may. That thread runs such calls at every step, and while it waits for evals.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc

from heldout._core.aio import WAIT_SECONDS, start_thread, waker
from heldout.training.measuring import TrainerGone

log = logging.getLogger("heldout")
T = TypeVar("T")


Waits = Iterator[tuple[int, float | None]]
"""A generator that runs as far as it can, then yields the number of changes seen and a timeout. A
thread or a coroutine resumes it at the next change, or after that many seconds."""


class ChangeCounter:
    """A lock, and a count of changes to what it guards that threads and coroutines can wait for."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.count = 0
        self._watchers: set[Callable[[], object]] = set()

    def notify(self) -> None:
        """Count a change, and wake all that wait for one."""
        with self.lock:
            self.count += 1
            self.lock.notify_all()
            for watcher in self._watchers:
                watcher()

    def wait(self, waits: Waits) -> None:
        """Wait in this thread, until `waits` has come to its end."""
        for seen, timeout in waits:
            until = math.inf if timeout is None else time.monotonic() + timeout
            with self.lock:
                while self.count == seen and (left := until - time.monotonic()) > 0:
                    self.lock.wait(min(left, WAIT_SECONDS))

    async def wait_async(self, waits: Waits) -> None:
        """Wait as `wait` does, without blocking the event loop."""
        for seen, timeout in waits:
            event, post = anyio.Event(), waker()
            watcher = partial(post, event.set)
            with self.lock:
                if self.count != seen:
                    continue
                self._watchers.add(watcher)
            try:
                with anyio.move_on_after(timeout):
                    await event.wait()
            finally:
                with self.lock:
                    self._watchers.discard(watcher)


class EventLoop(Generic[T]):
    """The event loop of the evals: the trainer's own, or one in a thread.

    In an `anyio.from_thread.BlockingPortal` each call waits for the loop; a trainer must not wait
    for an evaluator that blocks it.

    Args:
        run: Runs a job, as a task.
        on_breakdown: Called if the loop ends without being closed.
    """

    def __init__(
        self, run: Callable[[T], Coroutine[Any, Any, None]], on_breakdown: Callable[[], object]
    ) -> None:
        self._run, self._on_breakdown = run, on_breakdown
        self._lock = threading.Lock()
        self._post: Callable[[Callable[[], object]], None] | None = None
        self._ident: int | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._thread: threading.Thread | None = None
        self._jobs: deque[T] = deque()
        self._woken: anyio.Event | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether jobs can run."""
        return self._post is not None

    @property
    def is_here(self) -> bool:
        """Whether it runs in this thread, so that waiting for it would deadlock."""
        return self.is_open and self._ident == threading.get_ident()

    @property
    def has_thread(self) -> bool:
        """Whether it runs in its own thread."""
        return self._thread is not None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, if there is one. Thread-safe."""
        if (post := self._post) is not None:
            post(function)

    def spawn(self, job: T) -> None:
        """Run a job.

        Its task is started by a task of the loop: the caller may be another thread, or run under
        another kind of event loop.
        """
        self._jobs.append(job)
        self._wake()

    def _wake(self) -> None:
        self.call(lambda: self._woken.set() if self._woken else None)

    async def _serve(self, group: anyio.abc.TaskGroup) -> None:
        while not self._closed:
            self._woken = anyio.Event()  # before jobs are taken: what comes later wakes this one
            while self._jobs:
                group.start_soon(self._run, self._jobs.popleft())
            await self._woken.wait()

    async def enter(self) -> None:
        """Run in the loop of this task, which must be the one to leave it."""
        if not self.is_open:
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
            self._ident, self._post = threading.get_ident(), waker()
            self._group.start_soon(self._serve, self._group)

    async def leave(self) -> None:
        """Leave the loop of this task, cancelling what runs."""
        if self._group is not None:
            self._post = None
            self._group.cancel_scope.cancel()
            # Not told of any exception, which it would wrap in a group.
            await self._group.__aexit__(None, None, None)

    def start_thread(self) -> None:
        """Start the loop in a thread, unless it runs already or was closed."""
        with self._lock:
            if self.is_open or self._closed:
                return
            ready = threading.Event()
            try:
                self._thread = start_thread(lambda: self._live(ready))
            except RuntimeError as problem:  # the interpreter is on its way out
                log.warning("no thread could be started for evals: %s", problem)
                return
            ready.wait()

    def _live(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._ident, self._post = threading.get_ident(), waker()
            ready.set()
            async with anyio.create_task_group() as group:
                await self._serve(group)
                group.cancel_scope.cancel()

        try:
            anyio.run(main)
        except BaseException as problem:
            log.error("the event loop of evals broke down", exc_info=problem)
        finally:
            self._post = None
            ready.set()
            if not self._closed:
                self._on_breakdown()

    def close(self, seconds: float) -> None:
        """Start no more jobs. A loop in a thread ends, and its tasks are cancelled."""
        self._closed = True
        self._wake()
        if self._thread is not None:
            self._thread.join(seconds)


class TrainerThread:
    """Calls that wait for the trainer's thread.

    Args:
        notify: Called, in the calling thread, when there is something to run.
    """

    def __init__(self, notify: Callable[[], object]) -> None:
        self._notify = notify
        self._lock = threading.Lock()
        self._calls: deque[tuple[Callable[[], Any], Callable[[], bool], Future[Any]]] = deque()
        self._closed = False
        self._ident = threading.get_ident()

    @property
    def is_current(self) -> bool:
        """Whether this is the trainer's thread."""
        return threading.get_ident() == self._ident

    def adopt_current(self) -> None:
        """Make this thread the trainer's; by default it is the thread that made this object."""
        self._ident = threading.get_ident()

    @property
    def has_calls(self) -> bool:
        """Whether there is something to run in this thread."""
        return bool(self._calls) and self.is_current

    def call(self, function: Callable[[], T], is_given_up: Callable[[], bool]) -> T:
        """Call a function in the trainer's thread, and wait for it.

        Args:
            function: The function.
            is_given_up: Whether its result is no longer needed, so that it is not called.

        Returns:
            What it returns. What it raises is raised here.

        Raises:
            TrainerGone: It will not be called.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise TrainerGone("training ended before it could be run in its thread")
            self._calls.append((function, is_given_up, future))
        self._notify()
        try:
            return future.result()
        finally:
            del future  # it and the traceback of its exception would hold each other

    def run_calls(self, until: float = math.inf) -> None:
        """Run what is due, if this is the trainer's thread.

        Args:
            until: No call is started after that time (`time.monotonic`).
        """
        while self.has_calls and time.monotonic() < until:
            with self._lock:
                if not self._calls:
                    return
                function, is_given_up, future = self._calls.popleft()
            if is_given_up():
                future.set_exception(TrainerGone("the eval was abandoned"))
                continue
            try:
                future.set_result(function())
            except Exception as problem:  # noqa: BLE001 - raised where it was asked for
                future.set_exception(problem)
            except BaseException:  # Ctrl-C is the trainer's
                future.set_exception(TrainerGone("training was interrupted"))
                raise

    def close(self) -> None:
        """End waiting calls with TrainerGone: training is over."""
        with self._lock:
            self._closed = True
            calls = list(self._calls)
            self._calls.clear()
        for _, _, future in calls:
            future.set_exception(TrainerGone("training ended before it could be run in its thread"))
