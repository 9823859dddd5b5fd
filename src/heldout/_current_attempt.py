"""The attempt that the running code belongs to, for code below the turn loop.

`rollout.Attempt.run` sets it. Endpoints and judges know nothing of attempts; while they wait for
others they pause its time limit, and judges and simulated users say what they took. Graders that
run programs find what came of them before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from heldout._aio import in_user_code
from heldout.types import OtherUsage, Score, Usage


@dataclass(slots=True, eq=False)
class CurrentAttempt:
    """An attempt that is running: its time limit, and what models other than the policy took."""

    timeout: float | None
    scope: anyio.CancelScope
    other_usage: list[OtherUsage]
    """What judges and simulated users took so far."""
    stored: Score | None = None
    """Where saved trajectories are scored again, the score of before."""
    waited: float = 0.0
    """Seconds that the time limit was paused."""
    _pauses: int = 0
    _paused_at: float = 0.0
    _time_left: float = math.inf

    def pause(self) -> None:
        """Stop the clock, until every pause has ended."""
        if self._pauses == 0:
            self._paused_at = time.perf_counter()
            self._time_left = self.scope.deadline - anyio.current_time()
            self.scope.deadline = math.inf
        self._pauses += 1

    def resume(self) -> None:
        """End a pause."""
        self._pauses -= 1
        if self._pauses == 0:
            self.waited += time.perf_counter() - self._paused_at
            self.scope.deadline = anyio.current_time() + self._time_left


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """Pause the current attempt's time limit: what it waits for here is not its fault."""
    attempt = in_user_code.get()
    if not isinstance(attempt, CurrentAttempt) or attempt.timeout is None:
        yield
        return
    attempt.pause()
    try:
        yield
    finally:
        attempt.resume()


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
