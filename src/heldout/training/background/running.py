"""Runs scheduled evals, and writes how each ends: once, whichever thread comes first.

Async evaluators run in an event loop, plain ones and snapshots in daemon threads. A result goes to
the curve as soon as it is there, and to loggers with its verdict.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec

from heldout._core.aio import Threads, is_async, settle
from heldout._live.isolation import thread_local_capture_mode
from heldout.errors import InvalidInput
from heldout.training.background.jobs import EvalJob, Evaluator, JobState, JobTable, Scheduled
from heldout.training.background.threads import ChangeCounter, EventLoop
from heldout.training.curve.points import SAME_WEIGHTS, CurvePoint, skip_of
from heldout.training.curve.publishing import PointLog, judge_by_default, point_of
from heldout.training.measuring import Known
from heldout.training.reasons import describe

log = logging.getLogger("heldout")


class JobRunner:
    """Runs the evals of a table.

    Args:
        changes: Its lock is held while the table is read or changed.
        table: The evals.
        points: Sends points to loggers.
        max_seconds: Time limit of one eval.
    """

    def __init__(
        self, changes: ChangeCounter, table: JobTable, points: PointLog, max_seconds: float | None
    ) -> None:
        self._changes, self._table, self._max_seconds = changes, table, max_seconds
        self.points = points
        self.threads = Threads()
        self.loop: EventLoop[EvalJob] = EventLoop(self._run, self._on_breakdown)
        self.latest_step = 0
        """The current training step."""
        self.names: set[tuple[str, str, int]] = set()
        """Keys in use: those of the run directory, whichever dispatcher has it."""
        self.is_closed = False

    def in_flight(self) -> list[EvalJob]:
        """List the evals in flight."""
        with self._changes.lock:
            return self._table.in_flight

    def start_next(self) -> None:
        """Run the queued evals that there is room for."""
        with self._changes.lock:
            jobs = self._table.start_next()
        for job in jobs:
            self.loop.spawn(job)

    async def _run(self, job: EvalJob) -> None:
        began, result = time.monotonic(), None
        problem: BaseException | None = None
        evaluator, job.evaluator = job.evaluator, None  # it may hold weights; no longer than needed
        try:
            with anyio.move_on_after(self._max_seconds) as limit:
                job.scope = limit
                if job.state >= JobState.ENDING or evaluator is None:  # abandoned before it began
                    return
                if job.snapshot is not None:
                    result = await self.threads.run(self._evaluate_snapshot, job, evaluator)
                elif is_async(evaluator):
                    result = await settle(evaluator())
                else:
                    result = await settle(await self.threads.run(_call_plain, evaluator))
            if limit.cancelled_caught:
                problem = InvalidInput(f"not finished after max_seconds={self._max_seconds}")
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                self.abandon([job], "it was cancelled")
                raise
            # Not by us: something that it awaited was. To raise that would end its siblings, too.
            problem = InvalidInput("something that it waited for was cancelled")
        except KeyboardInterrupt as interrupted:
            if not self.loop.has_thread:
                raise  # it is the trainer's
            problem = interrupted
        except BaseException as raised:  # noqa: BLE001 - the reason of the skip
            problem = raised
        finally:
            job.scope = None
        del evaluator
        # In a thread: the disk, loggers and large reports would hold up the loop, and the trainer.
        seconds = time.monotonic() - began
        try:
            await self.threads.run(self._finish, job, result, problem, seconds)
        except Exception as broken:
            if job.state >= JobState.ENDING:  # its line is written, or could not be
                log.error("eval %r of step %s", job.name, job.step, exc_info=broken)
            else:  # no thread can be started: the process ends
                self._finish(job, result, problem, seconds)
        finally:
            result = problem = None  # else it and its traceback hold each other, and the weights

    def _evaluate_snapshot(self, job: EvalJob, evaluator: Evaluator) -> Any:
        """Evaluate a snapshot in a thread. An abandoned eval keeps it: it is still being read."""
        with self._changes.lock:
            snapshot, job.snapshot = job.snapshot, None
        if snapshot is None:
            raise InvalidInput("its snapshot was released before it began")
        try:
            with snapshot.in_use():
                job.weights = snapshot.weights
                if job.weights is not None:
                    # So that `finish` can tell whether it is given the same weights.
                    job.write_ahead(msgspec.structs.replace(job.pending, weights=job.weights))
                result = evaluator(snapshot)
                if (reason := snapshot.why_changed()) is not None:
                    raise InvalidInput(reason)
                return result
        finally:
            snapshot.release()
            self._changes.notify()

    # --- The end of an eval ---

    def _finish(
        self, job: EvalJob, result: Any, problem: BaseException | None, seconds: float
    ) -> None:
        if not self._claim(job):
            return
        point: CurvePoint | None = None
        is_new = not isinstance(result, Known)
        try:
            if isinstance(result, Known):
                point = result.point
                follows = job.pending.follows if point is None else job.step
                skip = skip_of(job.pending, SAME_WEIGHTS, seconds)
                job.write_ahead(msgspec.structs.replace(skip, follows=follows))
            else:
                point, problem = self._append_end(job, result, problem, seconds)
        finally:
            self._end(job, point, is_new=is_new)
        # After its line: a log handler may raise.
        if problem is not None:
            log.warning("eval %r of step %s failed", job.name, job.step, exc_info=problem)
        elif is_new and point is not None and point.skipped is not None:
            log.warning("eval %r of step %s is skipped: %s", job.name, job.step, point.skipped)

    def _append_end(
        self, job: EvalJob, result: Any, problem: BaseException | None, seconds: float
    ) -> tuple[CurvePoint, BaseException | None]:
        """Write what an evaluator returned; a skip with the reason if it is not a result."""
        if problem is None:
            run_dir = None if job.file is None else job.file.run.path
            try:
                point = point_of(result, job.pending, seconds, run_dir)
                return self._append(job, point), None
            except Exception as raised:  # noqa: BLE001 - what it returned is the user's
                problem = raised.with_traceback(None)
        skip = skip_of(job.pending, describe(problem), seconds, retry=job.is_retry)
        return self._append(job, skip), problem

    def skip(self, job: EvalJob, reason: str) -> None:
        """End an eval that does not run."""
        if self._claim(job):
            self.end_dropped(job, reason)

    def end_dropped(self, job: EvalJob, reason: str) -> None:
        """End an eval that was claimed when it gave way to another one."""
        skip = skip_of(job.pending, reason, retry=job.is_retry)
        self._end(job, self._append(job, skip))
        log.warning("eval %r of step %s is skipped: %s", job.name, job.step, reason)

    def abandon(self, jobs: Sequence[EvalJob], reason: str) -> list[EvalJob]:
        """Turn unfinished evals into skips that stay pending."""
        ours = [job for job in jobs if self._claim(job)]
        for job in ours:
            self.loop.call(job.cancel)
            self._end(job, self._append(job, skip_of(job.pending, reason, retry=True)))
        for job in ours:
            log.warning("eval %r of step %s is abandoned: %s", job.name, job.step, reason)
        return ours

    def _on_breakdown(self) -> None:
        self.abandon(self.in_flight(), "its event loop has ended")

    def _claim(self, job: EvalJob) -> bool:
        with self._changes.lock:
            return self._table.claim(job)

    def _append(self, job: EvalJob, point: CurvePoint) -> CurvePoint:
        """Write the point of an eval, and log it unless a verdict is still to come."""
        lag = max(0, self.latest_step - point.step)
        weights = point.weights or job.weights
        point = msgspec.structs.replace(point, lag_steps=lag, weights=weights)
        if job.file is not None:
            if not job.awaits_verdict:
                point = judge_by_default(point, job.file)
            job.file.append(point)
            if self.is_closed:
                job.file.close()
        if not (job.awaits_verdict and point.has_result):
            self.points.log(point, job.file)
        return point

    def _end(self, job: EvalJob, point: CurvePoint | None, *, is_new: bool = True) -> None:
        with self._changes.lock:
            self._table.end(job, point, is_new=is_new)
            if point is None or not point.has_result:
                self.names.discard(job.pending.key)
            self._changes.notify()
        self.start_next()

    # --- The verdict ---

    def judge(self, job: Scheduled, point: CurvePoint) -> None:
        """Set the point of an eval to one with its verdict, and send that to the loggers.

        Args:
            job: An eval of a `PeriodicEval` that has ended.
            point: Its point, whose verdict is on the curve.
        """
        with self._changes.lock:
            was_awaited = self._table.judge(job, point)
        if was_awaited and isinstance(job, EvalJob):
            self.points.log(point, job.file)

    def close(self, logger_seconds: float) -> None:
        """Send loggers what still waits for a verdict, and close them."""
        with self._changes.lock:
            unjudged = self._table.take_unjudged()
        for job in unjudged:  # the trainer's thread has not come back for them
            if job.point is not None:
                self.points.log(job.point, job.file)
        self.points.close(logger_seconds)


def _call_plain(evaluator: Evaluator) -> Any:
    """Call a plain evaluator in a thread, without disturbing CUDA graph captures of training."""
    with thread_local_capture_mode():
        return evaluator()
