"""Sinks: several sinks, none of which holds up training or another.

Each is served by a thread of its own from a queue of its own. `log` puts a result into every queue
and returns: it does not wait, and it does not raise. A sink that raises has lost that result; one
that hangs is given up. Either is said in the log once, counted, and said again at the end: what a
sink did not get is never unknown.

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
from heldout.training.sinks import Fields, Sink
from heldout.training.sinks.lane import Item, Lane, SinkReport, described

log = logging.getLogger("heldout")

__all__ = ["SinkReport", "Sinks", "SinksReport", "checked_sinks"]


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
        sinks = checked_sinks(sinks)
        self._clock = clock
        self._closed = False
        self._pid, self._said_forked = os.getpid(), False
        names = _names(sinks)
        self._lanes = [
            Lane(name, sink, timeout=timeout, capacity=capacity, clock=clock)
            for name, sink in zip(names, sinks, strict=True)
        ]
        # Without it, what waits when a training ends unclosed would be gone without a word.
        atexit.register(self.close)

    def log(self, name: str, step: int, fields: Fields) -> None:
        """To every sink, soon. Never waits, never raises."""
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

    def report(self) -> SinksReport:
        """How it stands. What waits is neither got nor lost."""
        if not self._is_ours:
            return SinksReport(
                tuple(SinkReport(lane.name, 0, problem=self._whose) for lane in self._lanes)
            )
        for lane in self._lanes:
            lane.check()
        return SinksReport(tuple(lane.report() for lane in self._lanes))

    def close(self, timeout: float = 60.0) -> SinksReport:
        """Let every sink take what waits for it, and close it; all of that in `timeout` seconds.
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
            f"these sinks belong to process {self._pid}, and do nothing in its forked child "
            f"{os.getpid()}; make others here"
        )

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def checked_sinks(sinks: Iterable[Sink]) -> tuple[Sink, ...]:
    """All of them, if each is a sink; else what to write instead."""
    if _is_sink(sinks) or isinstance(sinks, type) or not isinstance(sinks, Iterable):
        hint = "; put it into a list: [sink]" if _is_sink(sinks) else ""
        raise InvalidInput(f"sinks are several, in a list, got {sinks!r:.100}{hint}")
    found = tuple(sinks)
    for sink in found:
        if _is_sink(sink):
            continue
        hint = ""
        if isinstance(sink, type):
            hint = f". It is a class: make one, {sink.__name__}(…)"
        elif callable(sink):
            hint = ". CallableSink(fn) makes one of a function"
        raise InvalidInput(
            f"a sink has log(name, step, fields) and close(), got {sink!r:.100}{hint}"
        )
    return found


def _is_sink(thing: object) -> bool:
    methods = (getattr(thing, "log", None), getattr(thing, "close", None))
    return all(map(callable, methods)) and not isinstance(thing, type)


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
