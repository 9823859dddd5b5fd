"""Evals of a `PeriodicEval` in the background: snapshots that the dispatcher runs.

Scheduling takes a snapshot in the trainer's thread. When the eval has ended, `collect` publishes
its point in that thread, too, since monitors and heartbeats are the user's code.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heldout._live.isolation import modules_of, untouched_random_state
from heldout._live.model_copy import NotCopyable
from heldout.errors import InvalidInput
from heldout.training.background.dispatcher import AsyncEvalDispatcher
from heldout.training.background.jobs import Scheduled
from heldout.training.curve.curve_file import EvalHistory
from heldout.training.curve.points import CurvePoint, pending_point
from heldout.training.curve.publishing import PointPublisher
from heldout.training.measuring import Known, Measured, PolicyEval, Task, measure
from heldout.training.ranks import Alone, TimeLimit
from heldout.training.reasons import describe
from heldout.training.runner import EpisodeRunner, LivePolicy
from heldout.training.sharding import ShardedModel

if TYPE_CHECKING:
    from heldout._live.snapshots import SnapshotPool
    from heldout.training.background.worker import EvalWorker

log = logging.getLogger("heldout")

FIRST_EVAL_SECONDS = 60.0
"""How long training may wait for the first eval of a run, if a later one is due meanwhile."""


class SnapshotEvals:
    """Takes snapshots for one `PeriodicEval`, schedules evals of them, and publishes their points.

    Args:
        evals: What is measured.
        publisher: Publishes points.
        worker: The process that evaluates, if there is one.
        snapshots: Copies of the weights, or how many.
        clock: The clock.
    """

    def __init__(
        self,
        evals: PolicyEval,
        publisher: PointPublisher,
        worker: EvalWorker | None,
        snapshots: SnapshotPool | int | None,
        clock: Callable[[], float],
    ) -> None:
        self._evals, self._publisher, self._clock = evals, publisher, clock
        self._worker, self._snapshots = worker, snapshots
        self.scheduled: list[Scheduled] = []
        """Evals whose points are not published yet."""
        self._first: Scheduled | None = None
        self._curve: EvalHistory | None = None
        self._is_finishing = False

    def warn_once(self, reason: str) -> None:
        """Log why training waits for evals that could run in the background."""
        self._evals.warn_once(f"training waits for evals: {reason}")

    # --- Snapshots ---

    def can_copy(self, policy: LivePolicy) -> bool:
        """Whether the model can be evaluated in the background; the reason is logged if not."""
        try:
            model = policy.model
        except Exception:  # noqa: BLE001 - it is asked again, and the reason becomes a skip
            return False
        if model is None:
            return False
        if isinstance(getattr(self._evals.runner_builder, "prototype", None), EpisodeRunner):
            self.warn_once("episodes are played in the trainer's thread")
            return False
        if not modules_of(model):
            self.warn_once(f"a {type(model).__name__} cannot be copied: it is not a torch module")
            return False
        return True

    def _find_pool(self) -> SnapshotPool:
        """Return the pool of snapshots, made at first use."""
        if self._snapshots is None or isinstance(self._snapshots, int):
            from heldout._live.snapshots import SnapshotPool

            self._snapshots = SnapshotPool(size=self._snapshots)
        return self._snapshots

    @contextmanager
    def gathered(self, model: ShardedModel, step: int) -> Iterator[Any]:
        """Gather a sharded model into a whole copy, which is emptied at the end of the block."""
        with untouched_random_state():
            snapshot = self._find_pool().try_snapshot(model, step=step)
        if snapshot is None:
            raise InvalidInput(self._find_pool().say_full())
        try:
            yield snapshot.model
        finally:
            snapshot.release(empty=True)

    def measure_in_worker(self, task: Task, policy: LivePolicy) -> Measured | Known:
        """Have the worker measure the weights in training, which waits."""
        assert self._worker is not None
        try:
            model = policy.model
            if isinstance(model, ShardedModel):
                model.inline = True
            with untouched_random_state():
                snapshot = self._worker.try_snapshot(model, step=task.step)
        except Exception as problem:  # noqa: BLE001 - kept as the reason of the skip
            return Measured(0, skipped=f"model: {describe(problem)}")
        if snapshot is None:
            return Measured(0, skipped=self._worker.say_full())
        try:
            return self._worker.measure(task, snapshot)
        finally:
            snapshot.release()

    # --- Scheduling ---

    def schedule(
        self,
        dispatcher: AsyncEvalDispatcher,
        step: int,
        model: Any,
        curve: EvalHistory,
        *,
        final: bool = False,
        saved_at: str | Path | None = None,
        deadline: float | None = None,
    ) -> Scheduled | None:
        """Schedule an eval. Training waits until its snapshot is taken.

        Args:
            dispatcher: The dispatcher.
            step: The step of the point.
            model: The model in training.
            curve: Its curve.
            final: Whether these are the last weights.
            saved_at: Where these weights can be loaded from.
            deadline: If given, training waits for a snapshot and for the result until then.

        Returns:
            The scheduled eval; None if there can be no snapshot of the model.
        """
        self._curve = curve
        label, session = self._evals.settings.label, curve.session
        job = Scheduled(
            table=dispatcher.jobs,
            evaluator=partial(self._evaluate, curve, final),
            pending=pending_point(label, step, session, saved_at=saved_at, follows=curve.follows),
            file=curve.file,
            pool=self._worker or self._find_pool(),
            model=model,
            waits_until=self._waits_until(dispatcher, model) if deadline is None else deadline,
            is_awaited=deadline is not None,
        )
        try:
            dispatcher.queue(job)
        except NotCopyable as problem:
            self.warn_once(f"the model cannot be copied: {problem}")
            return None
        self.scheduled.append(job)
        if self._first is None and not job.done():
            self._first = job
        return job

    def _waits_until(self, dispatcher: AsyncEvalDispatcher, model: Any) -> float | None:
        """Return until when training waits for a free snapshot; None: as `when_full` says.

        While the first eval runs it waits for `FIRST_EVAL_SECONDS`: imports and compilation belong
        to that eval alone, so evals that are no slower than the cadence would lose points to it.
        """
        seconds: float | None = None
        if not dispatcher.jobs.waits:
            if self._first is None or self._first.done() or dispatcher.trainer.in_event_loop:
                return None
            seconds = FIRST_EVAL_SECONDS
        if isinstance(model, ShardedModel):  # the other processes wait, too
            seconds = model.within_patience(seconds)
        return None if seconds is None else time.monotonic() + seconds

    def wait_for_all(self, dispatcher: AsyncEvalDispatcher, model: Any) -> float:
        """Wait for what is in flight before the last weights are evaluated.

        Returns:
            Until when training waits for those (`time.monotonic`).
        """
        timeout, began = dispatcher.drain_timeout, time.monotonic()
        if isinstance(model, ShardedModel):
            timeout = model.within_patience(timeout)
        dispatcher.wait_for(self.scheduled, timeout)
        return math.inf if timeout is None else began + timeout

    # --- What runs then ---

    def _evaluate(
        self, curve: EvalHistory, final: bool, job: Scheduled, snapshot: Any
    ) -> CurvePoint | Known:
        """Evaluate a snapshot in a thread, and return its point."""
        evals, step, began = self._evals, job.step, self._clock()
        task = evals.task(
            step,
            curve.file.run.path,
            curve,
            # Off the last step a result of a part will do, if these weights have one.
            size=None if final else len(evals.samples),
            final=final,
            limit=TimeLimit.of(evals.settings.max_seconds, Alone()),
            is_given_up=job.done,
        )
        measured: Measured | Known | None
        if self._worker is not None:
            measured = self._worker.measure(task, snapshot)
        else:
            in_trainer = partial(job.table.trainer.call, is_given_up=job.done)
            model = snapshot.model
            measured = measure(task, model, Alone(), snapshot=snapshot, run_in_trainer=in_trainer)
            assert measured is not None
        if isinstance(measured, Known):
            return measured
        return evals.make_point(task, measured, self._clock() - began)

    # --- In the trainer's thread ---

    def collect(self) -> None:
        """Publish the points of evals that have ended, and their progress."""
        curve = self._curve
        if curve is None:
            return
        ended = [job for job in self.scheduled if job.done()]
        if ended or self._evals.has_progress:
            with untouched_random_state():
                self._evals.beat_progress()
                for job in ended:
                    self.scheduled.remove(job)
                    if job.point is not None:
                        self._publish(job, job.point, curve)
        if self._is_finishing and not self.scheduled:
            curve.mark_complete()

    def _publish(self, job: Scheduled, point: CurvePoint, curve: EvalHistory) -> None:
        if not job.is_new:
            self._publisher.reuse(point, curve)
            return
        point = self._publisher.judge_stored(point, curve)
        job.table.judge(job, point)
        self._publisher.add(point, curve)
        self._publisher.raise_if_asked(point)

    def finish(self, curve: EvalHistory) -> None:
        """Mark the curve as complete, as soon as all points are published."""
        self._curve, self._is_finishing = curve, True
        self.collect()
