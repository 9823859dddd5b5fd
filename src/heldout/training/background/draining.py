"""What became of the evals that a dispatcher has waited for."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heldout.errors import InvalidInput
from heldout.training.background.jobs import EvalJob

log = logging.getLogger("heldout")


class UnfinishedEval(NamedTuple):
    """An eval that ended without a result."""

    name: str
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """What happened to the evals that were pending when `drain` began."""

    finished: list[tuple[str, int]] = field(default_factory=list)
    """(name, step)."""
    skipped: list[UnfinishedEval] = field(default_factory=list)
    abandoned: list[UnfinishedEval] = field(default_factory=list)
    """Evals that had not ended in time. A result that comes later is not recorded."""
    seconds: float = 0.0

    def __await__(self) -> Generator[Any, None, Drained]:
        """Return it at once, so that `await dispatcher.drain()` may be written in any loop."""

        async def itself() -> Drained:
            return self

        return itself().__await__()


class DrainToAwait(Drained):
    """What `drain` returns in the event loop that evals run in, where it cannot wait by itself."""

    __slots__ = ("_drain",)
    _drain: Coroutine[Any, Any, Drained]

    def __init__(self, drain: Coroutine[Any, Any, Drained]) -> None:
        object.__setattr__(self, "_drain", drain)  # Drained is frozen

    def __await__(self) -> Generator[Any, None, Drained]:
        """Wait for the evals, without blocking the loop."""
        return self._drain.__await__()

    def __getattr__(self, name: str) -> Any:
        if name not in Drained.__dataclass_fields__:
            raise AttributeError(name)
        self._drain.close()
        raise InvalidInput(
            "drain() would block the event loop that the evals run in; there, it must be awaited: "
            "`await dispatcher.drain()`"
        )


def log_wait(jobs: Sequence[EvalJob], timeout: float | None, *, because: str = "") -> None:
    """Log that training waits for evals, if it does."""
    left = [job for job in jobs if not job.done()]
    if left:
        log.warning(
            "%swaiting %s for evals: %s; Ctrl-C abandons them",
            because,
            "without limit" if timeout is None else f"up to {timeout:g} s",
            ", ".join(f"{job.name} of step {job.step}" for job in left[:5]),
        )


def sum_up_drain(jobs: Sequence[EvalJob], abandoned: Sequence[EvalJob], seconds: float) -> Drained:
    """Say what became of evals that were waited for."""
    drained = Drained(seconds=seconds)
    for job in jobs:
        reason = "" if job.point is None else job.point.skipped or ""
        if not job.done():
            drained.abandoned.append(
                UnfinishedEval(job.name, job.step, "its line is being written")
            )
        elif job in abandoned:
            drained.abandoned.append(UnfinishedEval(job.name, job.step, reason))
        elif job.point is not None and job.point.summary is None:
            drained.skipped.append(UnfinishedEval(job.name, job.step, reason))
        else:
            drained.finished.append((job.name, job.step))
    return drained
