"""Lane: one logger, the queue of results that wait for it, and the thread that serves it.

Results are got, lost for a reason, or still waiting; a logger that hangs is given up, with whatever
waits for it. `Loggers` has one of these for each logger.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from heldout.errors import printable_error
from heldout.training.loggers import Logger
from heldout.training.loggers.rows import one_line

log = logging.getLogger("heldout")

MOST_KINDS = 20
"""Kinds of errors of one logger that are told apart."""
_LATE_GRACE = 0.001


@dataclass(frozen=True, slots=True)
class LoggerReport:
    """What one logger got."""

    logger: str
    got: int
    lost: dict[str, int] = field(default_factory=dict)
    """How many it did not get, by reason."""
    problem: str | None = None
    """What went wrong when it was closed; it may not have stored all that it got."""

    @property
    def n_lost(self) -> int:
        return sum(self.lost.values())

    @property
    def complete(self) -> bool:
        return not self.lost and self.problem is None

    def __str__(self) -> str:
        reasons = "; ".join(f"{n} × {reason}" for reason, n in self.lost.items())
        said = f"{self.logger}: got {self.got}, lost {self.n_lost}"
        said += f" ({reasons})" if reasons else ""
        return said + (f"; {self.problem}" if self.problem else "")


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    step: int
    fields: dict[str, Any]


class Lane:
    """One logger, its queue, and the thread that serves it."""

    def __init__(
        self,
        name: str,
        logger: Logger,
        *,
        timeout: float,
        capacity: int,
        clock: Callable[[], float],
    ) -> None:
        self.name, self._logger = name, logger
        self._timeout, self._capacity, self._clock = timeout, capacity, clock
        self._changed = threading.Condition()
        self._waiting: deque[Item] = deque()
        self._began: float | None = None
        """When the result that is being logged was begun with."""
        self._closing = self._done = False
        self._given_up: str | None = None
        self._got = 0
        self._lost: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._problem: str | None = None
        self._unsaid: deque[tuple[str, tuple[object, ...], BaseException | None]] = deque()
        """For the log; said without the lock, so that a slow handler holds up nobody else."""
        self._thread = threading.Thread(target=self._serve, name=f"heldout {name}", daemon=True)
        self._thread.start()

    # --- Called by whoever has results ---

    def put(self, item: Item) -> None:
        self.check()
        with self._changed:
            if self._given_up is not None:
                self._lost[self._given_up] += 1
            elif self._closing:
                self._lose_and_say("came after close")
            elif len(self._waiting) >= self._capacity:
                self._lose_and_say(f"{self._capacity} others were waiting already")
            else:
                self._waiting.append(item)
                self._changed.notify_all()
        self._say()

    def lose(self, reason: str) -> None:
        with self._changed:
            self._lost[reason] += 1

    def check(self) -> None:
        """Give the logger up if it hangs."""
        with self._changed:
            if self._began is not None and self._clock() - self._began > self._timeout:
                self._give_up(f"hung: a call did not return in {self._timeout:g} s")
        self._say()

    def begin_closing(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def end_by(self, deadline: float, allowed: float) -> None:
        """Wait until it is closed or given up, which it is at the deadline."""
        while True:
            self.check()
            with self._changed:
                if self._done or self._given_up is not None:
                    return
                now = self._clock()
                if now >= deadline:
                    if self._began is None and not self._waiting:
                        self._problem = (
                            f"close did not return in {allowed:g} s, so that some of what it got "
                            "may not be stored"
                        )
                    self._give_up(f"not done when closed, {allowed:g} s were allowed")
                    return
                until = deadline
                if self._began is not None:
                    until = min(until, self._began + self._timeout + _LATE_GRACE)
                self._changed.wait(max(until - now, 0))

    def report(self) -> LoggerReport:
        with self._changed:
            return LoggerReport(self.name, self._got, dict(self._lost), self._problem)

    # --- In its thread ---

    def _serve(self) -> None:
        while self._given_up is None:
            item = self._next()
            if item is None:
                break
            # A copy for each logger: one that changes it changes nothing for the others.
            call = partial(self._logger.log, item.name, item.step, dict(item.fields))
            problem = self._failure(call)
            with self._changed:
                self._began = None
                self._changed.notify_all()
                if self._given_up is not None:
                    break  # counted as lost already
                if problem is None:
                    self._got += 1
                else:
                    self._lost[self._reason(problem)] += 1
            del item, call, problem  # nothing is held while there is nothing to do
            self._say()
        # Also one that was given up, should it ever come back: it may hold a file or a run.
        problem = self._failure(self._logger.close)
        with self._changed:
            if problem is not None and self._problem is None:
                self._problem = f"closing it failed ({described(problem)})"
            self._done = True
            self._changed.notify_all()
        self._say()

    def _next(self) -> Item | None:
        """The next result, once there is one; None: there will be no more."""
        with self._changed:
            while not self._waiting and not self._closing and self._given_up is None:
                self._changed.wait()
            if not self._waiting:
                return None
            self._began = self._clock()
            self._changed.notify_all()  # whoever closes must know from when on it may hang
            return self._waiting.popleft()

    def _failure(self, call: Callable[[], object]) -> BaseException | None:
        try:
            call()
        except BaseException as problem:  # noqa: BLE001 - returned, and said; the thread lives on
            return problem
        return None

    # --- Without the lock ---

    def _say(self) -> None:
        with suppress(IndexError):  # another thread has said it
            while self._unsaid:
                message, of_what, problem = self._unsaid.popleft()
                log.warning(message, *of_what, exc_info=problem)

    # --- Holding the lock ---

    def _give_up(self, reason: str) -> None:
        if self._given_up is not None or self._done:
            return
        self._given_up = reason
        under_way = 0 if self._began is None else 1
        if under_way:
            # It may still arrive. To say that it did would be a guess.
            self._lost[f"{reason} (this one may have arrived)"] += 1
        if self._waiting:
            self._lost[reason] += len(self._waiting)
        what = "heldout: %s is given up, %s; %s results are lost to it, and so are further ones"
        self._unsaid.append((what, (self.name, reason, under_way + len(self._waiting)), None))
        self._waiting.clear()
        self._began = None
        self._changed.notify_all()

    def _lose_and_say(self, reason: str) -> None:
        if reason not in self._lost:
            what = "heldout: a result is lost to %s: %s"
            self._unsaid.append((what, (self.name, reason), None))
        self._lost[reason] += 1

    def _reason(self, problem: BaseException) -> str:
        """In words, which are those of the first of its kind; that one is said in the log."""
        kind = type(problem).__name__
        if kind not in self._reasons:
            if len(self._reasons) >= MOST_KINDS:
                return "other errors"
            self._reasons[kind] = described(problem)
            what = (
                "heldout: %s failed, and has lost a result; further errors of this kind are "
                "only counted"
            )
            self._unsaid.append((what, (self.name,), problem))
        return self._reasons[kind]


def described(problem: BaseException) -> str:
    said = " ".join(printable_error(problem).split())[:200]
    return one_line(f"{type(problem).__name__}: {said}")
