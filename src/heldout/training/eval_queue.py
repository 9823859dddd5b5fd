"""Which scheduled evals are queued and which run: slots, snapshots, and what gives way."""

from __future__ import annotations

import time
from typing import Any, Literal, get_args

from heldout.errors import InvalidInput
from heldout.training.run_eval import describe
from heldout.training.scheduled import EvalJob, NotCopyable, TakeSnapshot

WhenFull = Literal["wait", "skip", "newest"]

WAIT = "wait"
"""In place of a reason: the eval has to wait for a slot."""


class EvalQueue:
    """The evals in flight. All methods are called with the dispatcher's lock held.

    Args:
        max_pending: How many evals may be in flight, running or queued.
        when_full: As for `AsyncEvalDispatcher`.
        max_running: How many run at once; None for the default.

    Raises:
        InvalidInput: An argument is invalid.
    """

    def __init__(self, max_pending: int, when_full: WhenFull, max_running: int | None) -> None:
        if when_full not in get_args(WhenFull):
            raise InvalidInput(f"when_full is 'wait', 'skip' or 'newest', got {when_full!r}")
        if max_running is None:
            # Only what has not started can give way to something newer: one slot for that.
            max_running = max(1, max_pending - 1) if when_full == "newest" else max_pending
        for name, value in (("max_pending", max_pending), ("max_running", max_running)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} is a whole number >= 1, got {value!r}")
        self._max_pending, self._max_running = max_pending, max_running
        self._when_full: WhenFull = when_full
        self._running: list[EvalJob] = []
        self._queued: list[EvalJob] = []

    @property
    def waits(self) -> bool:
        """Whether an eval waits for a slot if there is none."""
        return self._when_full == "wait"

    @property
    def pending(self) -> list[EvalJob]:
        """Those that run, then those that are queued."""
        return [*self._running, *self._queued]

    def join(self, job: EvalJob, dropped: list[tuple[EvalJob, int]]) -> str | None:
        """Queue an eval with its snapshot and its write-ahead line, if there is a slot.

        Args:
            job: The eval.
            dropped: Those that give way are added here, with the step of the newer one of their
                name.

        Returns:
            None if it has a slot; WAIT if it has to wait for one; otherwise why it gets none.

        Raises:
            NotCopyable: There can be no snapshot of its model.
        """
        try:
            reason = self._why_no_slot(job)
            if reason is None and job.take_snapshot is not None:
                reason = self._take_snapshot(job, job.take_snapshot, dropped)
            if reason is None:
                # Not before it is sure to be queued: else both would be lost.
                if len(self.pending) >= self._max_pending and not dropped:
                    self._drop(self._replaceable(job), dropped)
                self._queued.append(job)
                if job.file is not None:
                    job.file.in_flight.add(job.pending.key)
                    job.write_ahead(job.pending)
        except BaseException:  # Ctrl-C: nothing would ever take it out again
            self.remove(job)
            raise
        if reason == WAIT and job.deadline is not None and time.monotonic() >= job.deadline:
            return "there was no free slot for it in time"
        return reason

    def remove(self, job: EvalJob) -> None:
        """Remove an eval, and free its memory."""
        for jobs in (self._running, self._queued):
            if job in jobs:
                jobs.remove(job)
        if job.file is not None:
            job.file.in_flight.discard(job.pending.key)
        job.release()
        job.evaluator = job.take_snapshot = None

    def start_next(self) -> list[EvalJob]:
        """Return the evals that are to run now."""
        room = self._max_running - len(self._running)
        jobs, self._queued = self._queued[:room], self._queued[room:]
        self._running += jobs
        return jobs

    def _why_no_slot(self, job: EvalJob) -> str | None:
        pending = len(self.pending)
        if pending < self._max_pending:
            return None
        if job.deadline is not None or self._when_full == "wait":
            return WAIT
        if self._when_full == "newest" and self._queued:
            return None  # what is queued gives way, or is the newest of another eval and stays
        return (
            f"{pending} evals were in flight (max_pending={self._max_pending}); "
            "with when_full='wait' training waits instead"
        )

    def _replaceable(self, job: EvalJob, pool: Any = None) -> tuple[EvalJob, int] | None:
        """Find the oldest queued job that has a newer one of its eval, queued or this one.

        Args:
            job: The job that is being queued.
            pool: If given, only evals with a snapshot of this pool.

        Returns:
            The job, and the step of the newest job of its eval.
        """
        newest = {other.eval_key: other for other in (*self._queued, job)}
        for other in self._queued:
            newer = newest[other.eval_key]
            if newer is not other and (pool is None or other.pool is pool):
                return other, newer.step
        return None

    def _take_snapshot(
        self, job: EvalJob, take: TakeSnapshot, dropped: list[tuple[EvalJob, int]]
    ) -> str | None:
        pool, waits = job.pool, job.deadline is not None
        try:
            job.snapshot = take()
            if job.snapshot is None and self._when_full == "newest" and not waits:
                self._drop(self._replaceable(job, pool), dropped)
                job.snapshot = take() if dropped else None
        except NotCopyable:
            raise
        except Exception as problem:  # noqa: BLE001 - the reason of the skip
            return f"snapshot: {describe(problem)}"
        if job.snapshot is not None:
            return None
        if not any(other.pool is pool for other in self.pending):
            return "all snapshots were in use, but by no eval in flight here"
        return WAIT if waits or self._when_full == "wait" else "all snapshots were in use"

    def _drop(
        self,
        replaceable: tuple[EvalJob, int] | None,
        dropped: list[tuple[EvalJob, int]],
    ) -> None:
        if replaceable is not None:
            dropped.append(replaceable)
            self._queued.remove(replaceable[0])
            replaceable[0].release()
