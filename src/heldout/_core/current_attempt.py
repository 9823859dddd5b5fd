"""The attempt that the running code belongs to, for code below the turn loop.

`rollout.Attempt.run` sets it. Endpoints and judges know nothing of attempts; while they wait for
others they pause its time limit, and judges and simulated users say what they took. Graders that
run programs find what came of them before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import anyio

from heldout._core.aio import in_user_code
from heldout._core.code import place_of
from heldout._core.loop_clock import LoopClock, MeteredAwait, loop_clock
from heldout.types import OtherUsage, Score, Usage

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class CurrentAttempt:
    """An attempt that is running: its time limit, and what models other than the policy took."""

    timeout: float | None
    scope: anyio.CancelScope
    other_usage: list[OtherUsage]
    """What judges and simulated users took so far."""
    stored: Score | None = None
    """Where saved trajectories are scored again, the score of before."""
    name_called: Callable[[], str] = str
    """Names what the attempt calls at the moment."""
    add_queued: Callable[[float], None] = lambda seconds: None
    """Counts seconds that it waited for a slot, or for its turn."""
    own: float = 0.0
    """Seconds that its own steps kept the event loop."""
    waited: float = 0.0
    """Seconds that the time limit was paused."""
    clock: LoopClock = field(default_factory=loop_clock)
    _started: float = field(default_factory=time.perf_counter)
    _taken_before: float = 0.0
    _pauses: int = 0
    _paused_at: float = 0.0
    _waits: int = 0
    _waits_since: float = 0.0

    def __post_init__(self) -> None:
        self.clock.split()
        self._taken_before = self.clock.taken

    def charged(self) -> float:
        """Return the seconds that count towards the time limit.

        Neither pauses do, nor time in which something else kept the event loop.
        """
        self.clock.split()
        return self._charged()

    def _charged(self) -> float:
        others = self.clock.taken - self._taken_before - self.own
        return time.perf_counter() - self._started - self.waited - others

    async def metered(self, awaitable: Awaitable[T]) -> T:
        """Await something that belongs to the attempt, and time its steps."""
        return await MeteredAwait(awaitable, self.clock, self)

    async def limited(self, awaitable: Awaitable[T]) -> T:
        """Do so under the time limit."""
        if self.timeout is None:
            return await self.metered(awaitable)
        self.clock.add_limited(self)
        try:
            return await self.metered(awaitable)
        finally:
            self.clock.remove_limited(self)

    def called(self) -> str:
        """Name what is being called."""
        part = _part.get()
        return self.name_called() if part is None else f"{self.name_called()}, part {part}"

    def put_off(self) -> None:
        """Move the time limit by what others took."""
        if self.timeout is not None and self._pauses == 0:
            self.scope.deadline = anyio.current_time() + self.timeout - self._charged()

    def pause(self) -> None:
        """Stop the clock, until every pause has ended."""
        if self._pauses == 0:
            self._paused_at = self.charged()
            self.scope.deadline = math.inf
        self._pauses += 1

    def resume(self) -> None:
        """End a pause."""
        self._pauses -= 1
        if self._pauses == 0:
            self.waited += self.charged() - self._paused_at
            self.put_off()

    def begin_wait(self) -> None:
        """Begin to count time in a queue; several waits at once are counted once."""
        if self._waits == 0:
            self._waits_since = time.perf_counter()
        self._waits += 1

    def end_wait(self, served_at: float) -> None:
        """End a wait, which was over at a time before."""
        self._waits -= 1
        if self._waits == 0:
            self.add_queued(max(served_at - self._waits_since, 0.0))


_part: ContextVar[str | None] = ContextVar("heldout_part", default=None)


@contextmanager
def calling_part(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Say which part of a score function is being called."""
    attempt = in_user_code.get()
    if not isinstance(attempt, CurrentAttempt):
        yield
        return
    attempt.clock.split()
    token = _part.set(f"{name} ({place_of(function)})")
    try:
        yield
    finally:
        attempt.clock.split()
        _part.reset(token)


@dataclass(slots=True, eq=False)
class Wait:
    """A wait for others."""

    served_at: float | None = None
    """When its turn came, by `time.perf_counter`, where that is before the wait ends: of a batch,
    when the batch began. What follows is no time in a queue."""


@contextmanager
def waiting_for_others() -> Iterator[Wait]:
    """Pause the current attempt's time limit: what it waits for here is not its fault.

    The time until its turn came is counted as time in a queue.
    """
    attempt, wait = in_user_code.get(), Wait()
    if not isinstance(attempt, CurrentAttempt):
        yield wait
        return
    is_limited = attempt.timeout is not None
    if is_limited:
        attempt.pause()
    attempt.begin_wait()
    try:
        yield wait
    finally:
        attempt.end_wait(time.perf_counter() if wait.served_at is None else wait.served_at)
        if is_limited:
            attempt.resume()


def add_queued(seconds: float) -> None:
    """Count time in a queue for the current attempt, if there is one; its time limit goes on."""
    attempt = in_user_code.get()
    if isinstance(attempt, CurrentAttempt):
        attempt.add_queued(seconds)


def add_other_usage(role: Literal["judge", "user"], model: str, usage: Usage | None) -> None:
    """Count tokens of another model than the policy for the current attempt, if there is one."""
    attempt = in_user_code.get()
    if isinstance(attempt, CurrentAttempt):
        attempt.other_usage.append(OtherUsage(role, model, usage))


def stored_metadata(name: str, value: Any) -> dict[str, Any] | None:
    """Return the metadata of a metric of before in which a field has a value.

    Only where saved trajectories are scored again: what was costly to find is not found again.

    Args:
        name: The field.
        value: What it must be: a hash of all that decides.
    """
    attempt = in_user_code.get()
    stored = attempt.stored if isinstance(attempt, CurrentAttempt) else None
    for metric in () if stored is None else stored.metrics:
        if metric.metadata.get(name) == value:
            return metric.metadata
    return None
