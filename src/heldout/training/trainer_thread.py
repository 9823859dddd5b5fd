"""What an eval in the background has to have run in the trainer's thread.

Random state, torch's switches and the capture of CUDA graphs are global to a process. An eval in a
thread of its own must not touch them while training runs; in the trainer's thread, between two
steps, it may. That thread runs what is due at every step, and whenever it waits for evals. No other
thread does.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class TrainerGone(Exception):
    """Training is over, so that nothing runs in its thread any more."""


class TrainerThread:
    """Calls that wait for the trainer's thread.

    Args:
        notify: Called, in the thread that asks, when there is something to run.
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
        """Take this thread for the trainer's. Until then it is the one that made this object."""
        self._ident = threading.get_ident()

    @property
    def has_calls(self) -> bool:
        """Whether there is something to run in this very thread."""
        return bool(self._calls) and self.is_current

    def call(self, function: Callable[[], T], is_given_up: Callable[[], bool]) -> T:
        """Have a function called in the trainer's thread, and wait for it.

        Args:
            function: The function.
            is_given_up: Whether its result is not wanted any more, so that it is not called.

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
            until: None is begun after that time (`time.monotonic`).
        """
        while self.has_calls and time.monotonic() < until:
            with self._lock:
                if not self._calls:
                    return
                function, is_given_up, future = self._calls.popleft()
            if is_given_up():
                future.set_exception(TrainerGone("the eval was given up on"))
                continue
            try:
                future.set_result(function())
            except Exception as problem:  # noqa: BLE001 - raised where it was asked for
                future.set_exception(problem)
            except BaseException:  # Ctrl-C is the trainer's
                future.set_exception(TrainerGone("training was interrupted"))
                raise

    def close(self) -> None:
        """Training is over: what waits is told so."""
        with self._lock:
            self._closed = True
            calls = list(self._calls)
            self._calls.clear()
        for _, _, future in calls:
            future.set_exception(TrainerGone("training ended before it could be run in its thread"))
