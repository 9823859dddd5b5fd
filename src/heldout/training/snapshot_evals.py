"""Evals of a `PeriodicEval` in the background: snapshots that the dispatcher runs.

Scheduling takes a snapshot in the trainer's thread. When the eval has ended, `publish_ended`
publishes its point in that thread, too, since monitors and heartbeats are the user's code.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

from heldout._live.isolation import modules_of, untouched_random_state
from heldout.training.background.dispatcher import AsyncEvalDispatcher
from heldout.training.background.jobs import NotCopyable, Scheduled
from heldout.training.curve.curve_file import EvalHistory
from heldout.training.curve.points import CurvePoint
from heldout.training.curve.publishing import PointPublisher
from heldout.training.curve.scheduled_points import pending_point
from heldout.training.measuring import GetModel, PolicyMeasurer
from heldout.training.run_eval import Known
from heldout.training.runner import EpisodeRunner
from heldout.training.sharding import ShardedModel

log = logging.getLogger("heldout")

FIRST_EVAL_SECONDS = 60.0
"""How long training may wait for the first eval of a run, if a later one is due meanwhile."""


class BackgroundEvals:
    """Schedules the evals of one `PeriodicEval`, and publishes those that have ended.

    Args:
        label: The eval's name.
        measurer: Measures a snapshot.
        publisher: Publishes points.
    """

    def __init__(
        self,
        label: str,
        measurer: PolicyMeasurer,
        publisher: PointPublisher,
    ) -> None:
        self._label, self._measurer, self._publisher = label, measurer, publisher
        self.scheduled: list[Scheduled] = []
        """Evals whose points are not published yet."""
        self._first: Scheduled | None = None
        self._warned: set[str] = set()
        """What was logged once, and is not logged again."""

    def find_model(self, get_model: GetModel) -> Any:
        """Return the model if it could be copied; None if it has to be evaluated inline."""
        try:
            with untouched_random_state():
                model = get_model()
        except Exception:  # noqa: BLE001 - it is asked again, and the reason becomes a skip
            return None
        if model is None:
            return None
        if isinstance(getattr(self._measurer.runner_builder, "prototype", None), EpisodeRunner):
            self.warn_once("episodes are played in the trainer's thread")
            return None
        if not modules_of(model):
            self.warn_once(f"a {type(model).__name__} cannot be copied: it is not a torch module")
            return None
        return model

    def warn_once(self, reason: str) -> None:
        """Log why training waits for evals that could run in the background."""
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning("%s: training waits for evals: %s", self._label, reason)

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

        It also waits for a free snapshot while the first eval runs, for `FIRST_EVAL_SECONDS` at
        most: imports and compilation belong to that eval alone, so evals that are no slower than
        the cadence would lose points to it.

        Args:
            dispatcher: The dispatcher.
            step: The step of the point.
            model: The model in training.
            curve: Its curve.
            final: Whether these are the last weights.
            saved_at: Where these weights can be loaded from.
            deadline: As for `schedule_on`.

        Returns:
            The scheduled eval; None if there can be no snapshot of the model.
        """
        worker = self._measurer.worker
        pool: Any = self._measurer.find_pool() if worker is None else worker
        patience = None
        if self._first is not None and not self._first.done() and not dispatcher.in_event_loop:
            seconds: float | None = FIRST_EVAL_SECONDS
            if isinstance(model, ShardedModel):  # the other processes wait, too
                seconds = model.within_patience(seconds)
            patience = time.monotonic() + (seconds or 0.0)
        try:
            handle = dispatcher.schedule_on(
                curve.file,
                partial(self._evaluate, dispatcher, curve, final),
                pending_point(
                    self._label, step, curve.session, saved_at=saved_at, follows=curve.follows
                ),
                snapshot=partial(pool.try_snapshot, model, step=step),
                pool=pool,
                deadline=deadline,
                patience=patience,
            )
        except NotCopyable as problem:
            self.warn_once(f"the model cannot be copied: {problem}")
            return None
        self.scheduled.append(handle)
        if self._first is None and not handle.done():
            self._first = handle
        return handle

    def _evaluate(
        self,
        dispatcher: AsyncEvalDispatcher,
        curve: EvalHistory,
        final: bool,
        scheduled: Scheduled,
        snapshot: Any,
    ) -> CurvePoint | Known:
        """Evaluate a snapshot, in a thread."""
        return self._measurer.measure_snapshot(
            scheduled.step,
            snapshot,
            curve,
            final=final,
            is_given_up=scheduled.done,
            run_in_trainer=partial(dispatcher.trainer.call, is_given_up=scheduled.done),
        )

    def publish_ended(self, curve: EvalHistory) -> None:
        """Publish the points of evals that have ended, and their progress."""
        ended = [handle for handle in self.scheduled if handle.done()]
        if not ended and not self._measurer.has_progress:
            return
        with untouched_random_state():
            self._measurer.beat_progress()
            for handle in ended:
                self.scheduled.remove(handle)
                if handle.point is None:
                    continue
                if not handle.is_new:
                    self._publisher.reuse(handle.point, curve)
                    continue
                judge = partial(handle.dispatcher.judge, handle)
                point = self._publisher.publish_stored(handle.point, curve, judge)
                self._publisher.raise_if_asked(point)
