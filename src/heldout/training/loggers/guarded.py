"""Loggers: several loggers, none of which holds up training or another.

Each is served by a thread of its own from a queue of its own. `log` puts a result into every queue
and returns: it does not wait, and it does not raise. A logger that raises has lost that result; one
that hangs is given up. Either is said in the log once, counted, and said again at the end: what a
logger did not get is never unknown.

What no thread can be guarded against is a call that holds Python's interpreter lock.

A forked child has none of these threads, and maybe locks that nobody will ever give back: there,
nothing is done, and nothing waited for.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from heldout.errors import InvalidInput
from heldout.training.loggers import Fields, Logger
from heldout.training.loggers.lane import Item, Lane, LoggerReport, described

log = logging.getLogger("heldout")

__all__ = ["LoggerReport", "Loggers", "LoggersReport", "checked_loggers"]


@dataclass(frozen=True, slots=True)
class LoggersReport:
    """What each of several loggers got, in the order in which they were given."""

    loggers: tuple[LoggerReport, ...]

    @property
    def complete(self) -> bool:
        """Whether every logger has every result."""
        return all(each.complete for each in self.loggers)

    def __iter__(self) -> Iterator[LoggerReport]:
        return iter(self.loggers)

    def __str__(self) -> str:
        return "\n".join(map(str, self.loggers))


class Loggers:
    """`timeout` is how many seconds one call of a logger may take before it is given up; the first
    may have to start a tracker. It is looked at when a result comes, and at the end. `capacity`
    is how many results wait for a logger at most."""

    def __init__(
        self,
        *loggers: Logger,
        timeout: float = 120.0,
        capacity: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_seconds("timeout", timeout)
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise InvalidInput(f"capacity is a whole number >= 1, got {capacity!r}")
        loggers = checked_loggers(loggers)
        self._clock = clock
        self._closed = False
        self._pid, self._said_forked = os.getpid(), False
        names = _names(loggers)
        self._lanes = [
            Lane(name, logger, timeout=timeout, capacity=capacity, clock=clock)
            for name, logger in zip(names, loggers, strict=True)
        ]
        # Without it, what waits when a training ends unclosed would be gone without a word.
        atexit.register(self.close)

    def log(self, name: str, step: int, fields: Fields) -> None:
        """To every logger, soon. Never waits, never raises."""
        if not self._is_ours:
            if not self._said_forked:
                self._said_forked = True
                log.warning("heldout: a result is logged nowhere: %s", self._whose)
            return
        try:
            item = Item(name, step, dict(fields))
        except Exception as problem:
            log.warning("heldout: what was to be logged has no fields", exc_info=problem)
            for lane in self._lanes:
                lane.lose(described(problem))
            return
        for lane in self._lanes:
            lane.put(item)

    def report(self) -> LoggersReport:
        """How it stands. What waits is neither got nor lost."""
        if not self._is_ours:
            return LoggersReport(
                tuple(LoggerReport(lane.name, 0, problem=self._whose) for lane in self._lanes)
            )
        for lane in self._lanes:
            lane.check()
        return LoggersReport(tuple(lane.report() for lane in self._lanes))

    def close(self, timeout: float = 60.0) -> LoggersReport:
        """Let every logger take what waits for it, and close it; all of that in `timeout` seconds.
        What is then still waiting is lost, and said to be."""
        _check_seconds("timeout", timeout)
        if self._closed or not self._is_ours:
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

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._pid

    @property
    def _whose(self) -> str:
        return (
            f"these loggers belong to process {self._pid}, and do nothing in its forked child "
            f"{os.getpid()}; make others here"
        )

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def checked_loggers(loggers: Iterable[Logger]) -> tuple[Logger, ...]:
    """All of them, if each is a logger; else what to write instead."""
    if _is_logger(loggers) or isinstance(loggers, type) or not isinstance(loggers, Iterable):
        hint = "; put it into a list: [logger]" if _is_logger(loggers) else ""
        raise InvalidInput(f"loggers are several, in a list, got {loggers!r:.100}{hint}")
    found = tuple(loggers)
    for logger in found:
        if _is_logger(logger):
            continue
        hint = ""
        if isinstance(logger, type):
            hint = f". It is a class: make one, {logger.__name__}(…)"
        elif callable(logger):
            hint = ". CallableLogger(fn) makes one of a function"
        raise InvalidInput(
            f"a logger has log(name, step, fields) and close(), got {logger!r:.100}{hint}"
        )
    return found


def _is_logger(thing: object) -> bool:
    methods = (getattr(thing, "log", None), getattr(thing, "close", None))
    return all(map(callable, methods)) and not isinstance(thing, type)


def _names(loggers: tuple[Logger, ...]) -> list[str]:
    """What each is called in reports: its class, numbered where there are several."""
    kinds = [type(logger).__name__ for logger in loggers]
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
