"""A scheduled eval: the handle that `schedule` returns, and the dispatcher's own state of it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import anyio

from heldout.errors import InvalidInput
from heldout.training.curve import CurvePoint
from heldout.training.curve_file import CurveFile
from heldout.training.results import EvaluatorResult
from heldout.training.run_eval import Known

if TYPE_CHECKING:
    from heldout.training.dispatcher import AsyncEvalDispatcher

log = logging.getLogger("heldout")

Evaluator = Callable[..., EvaluatorResult | Known | Awaitable[EvaluatorResult]]


class Snapshot(Protocol):
    """Weights of a step: a `WeightSnapshot`, or those sent to a worker."""

    @property
    def weights(self) -> str | None:
        """Hash of the weights, if it is known here."""

    def in_use(self) -> AbstractContextManager[None]:
        """Use it inside this context."""
        ...

    def why_changed(self) -> str | None:
        """Return why its weights are no longer those of its step, if they are not."""

    def release(self) -> None:
        """Free its memory."""


TakeSnapshot = Callable[[], Snapshot | None]


class NotCopyable(InvalidInput):
    """A model has no snapshots, so it is evaluated while training waits."""


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


@dataclass(eq=False, kw_only=True)
class Scheduled:
    """A scheduled eval, as `schedule` returns it."""

    step: int
    name: str
    point: CurvePoint | None = None
    """The point, once the eval has ended; that of a `PeriodicEval` gets its verdict later, in the
    trainer's thread."""
    is_new: bool = True
    """Whether the point was measured now, not by an earlier attempt."""
    dispatcher: AsyncEvalDispatcher = field(repr=False)
    _done: bool = False

    def done(self) -> bool:
        """Whether it has ended, in a result or in a skip."""
        return self._done

    def result(self, timeout: float | None = None) -> CurvePoint | None:
        """Wait for the eval, and return its point.

        Args:
            timeout: Seconds to wait at most; None for no limit.

        Returns:
            The point; None if the eval has not ended in time.

        Raises:
            InvalidInput: Called in the event loop that the eval runs in.
        """
        if not self._done and timeout != 0:
            if self.dispatcher.in_event_loop:
                raise InvalidInput(
                    "result() would block the event loop that the eval runs in; "
                    "`await dispatcher.adrain()` first"
                )
            self.dispatcher.wait_for([self], timeout)
        return self.point


@dataclass(eq=False, kw_only=True, repr=False)
class EvalJob(Scheduled):
    """A scheduled eval, with the dispatcher's own state."""

    evaluator: Evaluator | None
    pending: CurvePoint
    """Its write-ahead line."""
    file: CurveFile | None
    take_snapshot: TakeSnapshot | None = None
    pool: Any = None
    """The pool that its snapshot belongs to: only that pool can reuse it once released."""
    snapshot: Snapshot | None = None
    deadline: float | None = None
    """If given, the eval waits for a slot until then, whatever `when_full` is."""
    again: bool = False
    """Whether it was lost earlier and is rerun; if it fails, it stays pending."""
    is_judged: bool = False
    """Whether a `PeriodicEval` judges its result, before loggers get it."""
    claimed: bool = False
    """Whether its end is being written, which happens once."""
    weights: str | None = None
    """Hash of the snapshot's weights."""
    scope: anyio.CancelScope | None = None
    """Set while it runs, and only used in its event loop: cancelling a scope after its exit would
    cancel whatever runs next."""

    @property
    def eval_key(self) -> tuple[Any, str]:
        """Curve and name, which identify the eval that runs at many steps."""
        return (self.file, self.name)

    def write_ahead(self, point: CurvePoint) -> None:
        """Append a line that is not its result, unless training waits for that."""
        if self.file is not None and self.deadline is None:
            self.file.append(point)

    def cancel(self) -> None:
        """Cancel it, in its event loop."""
        if self.scope is not None:
            self.scope.cancel()

    def release(self) -> None:
        """Release its snapshot."""
        snapshot, self.snapshot = self.snapshot, None
        if snapshot is not None:
            snapshot.release()


def log_wait(jobs: Sequence[EvalJob], timeout: float | None, *, because: str = "") -> None:
    """Log that training waits for evals, if it does."""
    left = [job for job in jobs if not job.done()]
    if left:
        log.warning(
            "%swaiting %s for evals: %s; Ctrl-C abandons them",
            because,
            "without bound" if timeout is None else f"up to {timeout:g} s",
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
