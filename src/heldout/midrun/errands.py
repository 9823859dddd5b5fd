"""What an eval beside a training has to have done in the thread that trains.

Some things are global to a process: random state, torch's switches, the capture of CUDA graphs.
An eval in a thread of its own must not touch them while training runs; in the thread that trains,
between two steps, it may. That thread comes by now and then (`run_all`): at every step, and
whenever it waits for evals.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class NobodyCame(Exception):
    """The training is over, and nobody does errands any more."""


class _Errand:
    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._done = threading.Event()
        self._given: Any = None
        self._problem: BaseException | None = None

    def run(self) -> None:
        try:
            self._given = self._work()
        except Exception as problem:  # noqa: BLE001 - raised where it was asked for
            self._problem = problem
        finally:
            self._done.set()

    def give_up(self) -> None:
        self._problem = NobodyCame("training ended before it could be done in its thread")
        self._done.set()

    def wait(self) -> Any:
        self._done.wait()
        try:
            if self._problem is not None:
                raise self._problem
            return self._given
        finally:
            self._given = self._problem = None  # else it and its traceback hold each other


class Errands:
    """`changed` is called, in the thread that asks, when there is something to do."""

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed
        self._lock = threading.Lock()
        self._waiting: deque[_Errand] = deque()
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def ask(self, work: Callable[[], T]) -> T:
        """Have it done in the thread that trains; waits for that."""
        errand = _Errand(work)
        with self._lock:
            if self._closed:
                errand.give_up()
            else:
                self._waiting.append(errand)
        self._changed()
        found: T = errand.wait()
        return found

    def run_all(self) -> None:
        """In the thread that trains."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                errand = self._waiting.popleft()
            errand.run()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
        for errand in left:
            errand.give_up()
