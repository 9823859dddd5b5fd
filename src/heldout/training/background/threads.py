"""The trainer's thread and those of evals: what one waits for, and what it is asked to call.

Random state, torch's flags and the capture of CUDA graphs are global to a process. An eval in its
own thread must not touch them while training runs; in the trainer's thread, between two steps, it
may. That thread runs such calls at every step, and while it waits for evals.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import anyio

from heldout._core.aio import WAIT_SECONDS, waker
from heldout.errors import InvalidInput
from heldout.training.measuring import TrainerGone

log = logging.getLogger("heldout")
T = TypeVar("T")


def deadline(timeout: float | None) -> float:
    """Return when a timeout that begins now is over; None is no limit."""
    return math.inf if timeout is None else time.monotonic() + timeout


class TrainerThread:
    """The thread that trains: what it waits for, and the calls that wait for it.

    By default it is the thread that makes this object.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition()
        """Guards what is waited for."""
        self.count = 0
        """Changes to that so far."""
        self.loop_thread: int | None = None
        """The thread with the event loop of evals, which may be this one."""
        self.pid = os.getpid()
        self._ident = threading.get_ident()
        self._watchers: set[Callable[[], object]] = set()
        self._calls: deque[tuple[Callable[[], Any], Callable[[], bool], Future[Any]]] = deque()
        self._closed = False

    @property
    def is_current(self) -> bool:
        """Whether this is the trainer's thread."""
        return threading.get_ident() == self._ident

    def adopt_current(self) -> None:
        """Make this thread the trainer's."""
        self._ident = threading.get_ident()

    def is_ours(self, what: str) -> bool:
        """Whether this process has the threads and the locks, which a forked child has not.

        Args:
            what: What was called, for the log.
        """
        if os.getpid() == self.pid:
            return True
        log.error(
            "%s: this AsyncEvalDispatcher belongs to process %s, and does nothing in its forked "
            "child %s; make another one here, with another run_dir",
            what,
            self.pid,
            os.getpid(),
        )
        return False

    # --- Waiting ---

    def notify(self) -> None:
        """Count a change, and wake all that wait for one."""
        with self.lock:
            self.count += 1
            self.lock.notify_all()
            for watcher in self._watchers:
                watcher()

    def wait(self, is_over: Callable[[], bool], until: float = math.inf) -> None:
        """Wait in this thread, and run what evals need in it meanwhile.

        Args:
            is_over: Whether to wait no longer; asked after each change, now and then, and once more
                when time is up.
            until: When that is (`time.monotonic`).
        """
        while True:
            seen, is_up = self.count, time.monotonic() >= until  # first: the question may change it
            if is_over() or is_up:
                return
            self.run_calls(until)
            with self.lock:
                if self.count == seen and (left := until - time.monotonic()) > 0:
                    self.lock.wait(min(left, WAIT_SECONDS))

    async def wait_async(self, is_over: Callable[[], bool], until: float = math.inf) -> None:
        """Wait as `wait` does, without blocking the event loop."""
        while True:
            seen, is_up = self.count, time.monotonic() >= until
            if is_over() or is_up:
                return
            self.run_calls(until)
            with anyio.move_on_after(min(until - time.monotonic(), WAIT_SECONDS)):
                await self.next_change(seen)

    async def next_change(self, seen: int) -> None:
        """Wait until there are more changes than those."""
        event, post = anyio.Event(), waker()
        watcher = partial(post, event.set)
        with self.lock:
            if self.count != seen:
                return
            self._watchers.add(watcher)
        try:
            await event.wait()
        finally:
            with self.lock:
                self._watchers.discard(watcher)

    @property
    def in_event_loop(self) -> bool:
        """Whether evals run in the event loop of this thread, so that waiting would deadlock."""
        return self.loop_thread == threading.get_ident()

    def check_may_wait(self, what: str) -> None:
        """Refuse to wait where that would deadlock.

        Args:
            what: The call that would wait.

        Raises:
            InvalidInput: It would.
        """
        if self.in_event_loop:
            raise InvalidInput(
                f"{what} would block the event loop that the evals run in; there, use "
                "`await adrain()` and `async with`"
            )

    # --- Calls ---

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
        with self.lock:
            if self._closed:
                raise TrainerGone("training ended before it could be run in its thread")
            self._calls.append((function, is_given_up, future))
            self.notify()
        try:
            return future.result()
        finally:
            del future  # it and the traceback of its exception would hold each other

    def run_calls(self, until: float = math.inf) -> None:
        """Run what is due, if this is the trainer's thread.

        Args:
            until: No call is started after that time (`time.monotonic`).
        """
        while self._calls and self.is_current and time.monotonic() < until:
            with self.lock:
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
        with self.lock:
            self._closed = True
            calls = list(self._calls)
            self._calls.clear()
            self.notify()
        for _, _, future in calls:
            future.set_exception(TrainerGone("training ended before it could be run in its thread"))
