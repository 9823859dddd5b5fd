"""Whether a time limit was used up, or the machine stood still.

A virtual machine that is paused, a control group that is frozen or a host that swaps stops programs
and whoever watches them. Their clocks go on, so a program that never ran would seem to exceed its
limit. CPU time does not tell the two apart: a program that sleeps uses none, and is too slow all
the same. But a watcher that wakes up at every tick sees that one came seconds late.

Standard library alone: the supervisor imports it.
"""

from __future__ import annotations

import time

STALL_SECONDS = 0.5
"""Wake-ups on a busy machine are late by less."""
MAX_STALLED = 300.0
"""Seconds by which one limit is extended: beyond, nothing can be said of the program."""


class Stalls:
    """When a process did not run although it was to, in seconds of the monotonic clock."""

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []
        self._awake, self._busy = time.monotonic(), 0.0

    def wake(self, slept: float | None, busy: float = 0.0) -> tuple[float, float] | None:
        """Take note of a wake-up, and return the times between which nothing ran, if it was late.

        Args:
            slept: The longest that this process meant to sleep since the last call; None if it
                waited without a limit, so that nothing can be said.
            busy: Seconds that it has worked since its start. They are no stall: a program that
                gives its watcher much to do must not get more time by it.
        """
        now = time.monotonic()
        due = now if slept is None else self._awake + slept + busy - self._busy
        self._awake, self._busy = now, busy
        if now - due < STALL_SECONDS:
            return None
        self.add(due, now)
        return due, now

    def add(self, start: float, end: float) -> None:
        """Take note of a time in which nothing ran."""
        if self._times and start <= self._times[-1][1]:
            start = min(start, self._times[-1][0])
            self._times.pop()
        self._times.append((start, end))
        del self._times[:-1000]

    def since(self, start: float) -> float:
        """Return how many seconds nothing ran since a time."""
        return sum(max(0.0, end - max(start, begin)) for begin, end in self._times)
