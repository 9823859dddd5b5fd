"""A run that is steered while it runs: paused, slowed down, its errored items run again.

The run asks `admit` before it begins an item, and says `release` when one has ended. `poll` reads
the control file (`store/control.py`), once a second. No number depends on it: which items there are
is decided by the dataset, and an attempt is timed from when it begins.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path
from typing import Generic, TypeVar

import anyio

from heldout.errors import RunDirectoryError
from heldout.store.control import RunControl, control_stamp, forget_control, read_control

log = logging.getLogger("heldout")
T = TypeVar("T")


class Steering(Generic[T]):
    """What the control file of a run says, and which items may begin.

    Args:
        run: The run directory.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._stamp: tuple[int, int] | None = None
        self._control = RunControl()
        self._in_flight = 0
        self._changed: anyio.Event | None = None
        self._errored: list[T] = []
        """Items that have errored and were not asked for again."""
        self._again: deque[T] = deque()
        """Items to run again."""

    def begin(self) -> None:
        """Forget what an earlier attempt at the run was asked to do."""
        forget_control(self._run)

    def end(self) -> None:
        """Remove the control file, and say what it asked for too late."""
        before = self._control.retries
        self.poll()
        if self._control.retries > before and self._again:
            log.warning(
                "%s: --retry-errors came as the run ended; run it with --resume instead", self._run
            )
        forget_control(self._run)

    def describe(self) -> str:
        """Return how the run is held back; "" where it is not."""
        if self._control.paused:
            return "paused (heldout ctl --go-on)"
        limit = self._control.max_concurrent
        return f"at most {limit} at a time" if limit is not None else ""

    # --- Items ---

    async def admit(self) -> None:
        """Wait until another item may begin, and count it."""
        while not self._may_begin():
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()
        self._in_flight += 1

    def release(self) -> None:
        """Say that an item has ended."""
        self._in_flight -= 1
        self._wake()

    def keep_errored(self, item: T) -> None:
        """Remember an item that has errored, for when it is asked for again."""
        self._errored.append(item)

    def take_again(self) -> T | None:
        """Return an item that is to be run again; None where there is none."""
        return self._again.popleft() if self._again else None

    def has_again(self) -> bool:
        """Return whether items are to be run again."""
        return bool(self._again)

    def _may_begin(self) -> bool:
        limit = self._control.max_concurrent
        return not self._control.paused and (limit is None or self._in_flight < limit)

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    # --- The control file ---

    def poll(self) -> None:
        """Do what the control file says, where it has changed."""
        stamp = control_stamp(self._run)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            control = read_control(self._run)
        except RunDirectoryError as problem:
            log.warning("%s: the run goes on as it was: %s", self._run, problem)
            return
        if control.retries > self._control.retries:
            self._again.extend(self._errored)
            self._errored.clear()
        self._control = control
        self._wake()


__all__ = ["Steering"]
