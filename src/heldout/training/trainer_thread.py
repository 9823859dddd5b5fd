"""What an eval beside a training has to have done in the thread that trains.

Some things are global to a process: random state, torch's switches, the capture of CUDA graphs.
An eval in a thread of its own must not touch them while training runs; in the thread that trains,
between two steps, it may. That thread comes by now and then (`run_all`): at every step, and
whenever it waits for evals. No other thread runs errands, whoever waits in it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class NobodyCame(Exception):
    """The training is over, and nobody does errands any more."""


class _Errand:
    def __init__(self, work: Callable[[], Any], given_up: Callable[[], bool]) -> None:
        self._work = work
        self.given_up = given_up
        self._done = threading.Event()
        self._given: Any = None
        self._problem: BaseException | None = None

    def run(self) -> None:
        try:
            self._given = self._work()
        except Exception as problem:  # noqa: BLE001 - raised where it was asked for
            self._problem = problem
        except BaseException:  # Ctrl-C is the trainer's
            self._problem = NobodyCame("training was interrupted while it was done in its thread")
            raise
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
        self._trainer = threading.get_ident()

    def is_trainer_here(self) -> bool:
        return threading.get_ident() == self._trainer

    def trainer_is_here(self) -> None:
        """This is the thread that trains; until somebody says so, the one that made this is."""
        self._trainer = threading.get_ident()

    @property
    def due(self) -> bool:
        """Whether there is something to be done in this very thread."""
        return bool(self._waiting) and self.is_trainer_here()

    def ask(self, work: Callable[[], T], given_up: Callable[[], bool] = lambda: False) -> T:
        """Have it done in the thread that trains; waits for that. Where nobody wants it any more,
        it is not done (NobodyCame)."""
        errand = _Errand(work, given_up)
        with self._lock:
            if self._closed:
                errand.give_up()
            else:
                self._waiting.append(errand)
        self._changed()
        found: T = errand.wait()
        return found

    def run_all(self, until: float = math.inf) -> None:
        """What is due here; none is begun after that time (`time.monotonic`)."""
        while self.due and time.monotonic() < until:
            with self._lock:
                if not self._waiting:
                    return
                errand = self._waiting.popleft()
            if errand.given_up():
                errand.give_up()
            else:
                errand.run()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            left = list(self._waiting)
            self._waiting.clear()
        for errand in left:
            errand.give_up()
