"""Sinks: several sinks, none of which holds up training or another.

Each is served by a thread of its own from a queue of its own. `log` puts a result into every queue
and returns: it does not wait, and it does not raise. A sink that raises has lost that result; one
that hangs is given up. Either is said in the log once, counted, and said again at the end: what a
sink did not get is never unknown.

What no thread can be guarded against is a call that holds Python's interpreter lock.
"""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from heldout.errors import InvalidInput, printable_error
from heldout.midrun.sinks import Fields, Sink

log = logging.getLogger("heldout")

MOST_KINDS = 20
"""Kinds of errors of one sink that are told apart."""
_LATE_GRACE = 0.001


# --- What became of the results -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkReport:
    """What one sink got."""

    sink: str
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
        said = f"{self.sink}: got {self.got}, lost {self.n_lost}"
        said += f" ({reasons})" if reasons else ""
        return said + (f"; {self.problem}" if self.problem else "")


@dataclass(frozen=True, slots=True)
class SinksReport:
    """What each of several sinks got, in the order in which they were given."""

    sinks: tuple[SinkReport, ...]

    @property
    def complete(self) -> bool:
        """Whether every sink has every result."""
        return all(each.complete for each in self.sinks)

    def __iter__(self) -> Iterator[SinkReport]:
        return iter(self.sinks)

    def __str__(self) -> str:
        return "\n".join(map(str, self.sinks))


# --- Several sinks ------------------------------------------------------------------------------


class Sinks:
    """`timeout` is how many seconds one call of a sink may take before it is given up; the first
    may have to start a tracker. It is looked at when a result comes, and at the end. `capacity`
    is how many results wait for a sink at most."""

    def __init__(
        self,
        *sinks: Sink,
        timeout: float = 120.0,
        capacity: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_seconds("timeout", timeout)
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise InvalidInput(f"capacity is a whole number >= 1, got {capacity!r}")
        for sink in sinks:
            if not callable(getattr(sink, "log", None)) or isinstance(sink, type):
                raise InvalidInput(f"a sink has log(name, step, fields), got {sink!r:.100}")
        self._clock = clock
        self._closed = False
        names = _names(sinks)
        self._lanes = [
            _Lane(name, sink, timeout=timeout, capacity=capacity, clock=clock)
            for name, sink in zip(names, sinks, strict=True)
        ]
        # Without it, what waits when a training ends unclosed would be gone without a word.
        atexit.register(self.close)

    def log(self, name: str, step: int, fields: Fields) -> None:
        """To every sink, soon. Never waits, never raises."""
        try:
            item = _Item(name, step, dict(fields))
        except Exception as problem:
            log.warning("heldout: what was to be logged has no fields", exc_info=problem)
            for lane in self._lanes:
                lane.lose(_described(problem))
            return
        for lane in self._lanes:
            lane.put(item)

    def report(self) -> SinksReport:
        """How it stands. What waits is neither got nor lost."""
        for lane in self._lanes:
            lane.check()
        return SinksReport(tuple(lane.report() for lane in self._lanes))

    def close(self, timeout: float = 60.0) -> SinksReport:
        """Let every sink take what waits for it, and close it; all of that in `timeout` seconds.
        What is then still waiting is lost, and said to be."""
        _check_seconds("timeout", timeout)
        if self._closed:
            return self.report()
        self._closed = True
        atexit.unregister(self.close)
        deadline = self._clock() + timeout
        for lane in self._lanes:
            lane.begin_closing()
        for lane in self._lanes:
            lane.end_by(deadline, timeout)
        report = self.report()
        for each in report:
            if not each.complete:
                log.warning("heldout: not every result was logged: %s", each)
        return report

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


# --- One of them --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Item:
    name: str
    step: int
    fields: dict[str, Any]


class _Lane:
    """One sink, its queue, and the thread that serves it."""

    def __init__(
        self, name: str, sink: Sink, *, timeout: float, capacity: int, clock: Callable[[], float]
    ) -> None:
        self._name, self._sink = name, sink
        self._timeout, self._capacity, self._clock = timeout, capacity, clock
        self._changed = threading.Condition()
        self._waiting: deque[_Item] = deque()
        self._began: float | None = None
        """When the result that is being logged was begun with."""
        self._closing = self._done = False
        self._given_up: str | None = None
        self._got = 0
        self._lost: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._serve, name=f"heldout {name}", daemon=True)
        self._thread.start()

    # --- Called by whoever has results ---

    def put(self, item: _Item) -> None:
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

    def lose(self, reason: str) -> None:
        with self._changed:
            self._lost[reason] += 1

    def check(self) -> None:
        """Give the sink up if it hangs."""
        with self._changed:
            if self._began is not None and self._clock() - self._began > self._timeout:
                self._give_up(f"hung: a call did not return in {self._timeout:g} s")

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

    def report(self) -> SinkReport:
        with self._changed:
            return SinkReport(self._name, self._got, dict(self._lost), self._problem)

    # --- In its thread ---

    def _serve(self) -> None:
        while self._given_up is None:
            item = self._next()
            if item is None:
                break
            # A copy for each sink: one that changes it changes nothing for the others.
            call = partial(self._sink.log, item.name, item.step, dict(item.fields))
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
        # Also one that was given up, should it ever come back: it may hold a file or a run.
        problem = self._failure(self._sink.close)
        with self._changed:
            if problem is not None and self._problem is None:
                self._problem = f"closing it failed ({_described(problem)})"
            self._done = True
            self._changed.notify_all()

    def _next(self) -> _Item | None:
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
        log.warning(
            "heldout: %s is given up, %s; %s results are lost to it, and so are further ones",
            self._name,
            reason,
            under_way + len(self._waiting),
        )
        self._waiting.clear()
        self._began = None
        self._changed.notify_all()

    def _lose_and_say(self, reason: str) -> None:
        if reason not in self._lost:
            log.warning("heldout: a result is lost to %s: %s", self._name, reason)
        self._lost[reason] += 1

    def _reason(self, problem: BaseException) -> str:
        """In words, which are those of the first of its kind; that one is said in the log."""
        kind = type(problem).__name__
        if kind not in self._reasons:
            if len(self._reasons) >= MOST_KINDS:
                return "other errors"
            self._reasons[kind] = _described(problem)
            log.warning(
                "heldout: %s failed, and has lost a result; further errors of this kind are "
                "only counted",
                self._name,
                exc_info=problem,
            )
        return self._reasons[kind]


def _described(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {' '.join(printable_error(problem).split())[:200]}"


def _names(sinks: tuple[Sink, ...]) -> list[str]:
    """What each is called in reports: its class, numbered where there are several."""
    kinds = [type(sink).__name__ for sink in sinks]
    seen: Counter[str] = Counter()
    names = []
    for kind in kinds:
        seen[kind] += 1
        names.append(f"{kind} {seen[kind]}" if kinds.count(kind) > 1 else kind)
    return names


def _check_seconds(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise InvalidInput(f"{name} is a number of seconds above 0, got {value!r}")
