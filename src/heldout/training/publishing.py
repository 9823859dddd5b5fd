"""Who publishes the points of a `PeriodicEval`: verdict, curve, loggers, heartbeat.

Inline and in the background alike, a point is judged here, in the trainer's thread, since monitors
and heartbeats are the user's code. An inline point is one line, with its verdict. In the background
the dispatcher has written the result by then, so that a `kill -9` does not lose it, and the verdict
is a line that adds to it. Where a process ends in between, readers judge the result by the settings
in run.json.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any, Literal

import msgspec

from heldout.errors import EvalFailed, InvalidInput
from heldout.isolation import untouched_random_state
from heldout.training.curve import CurvePoint, verdict_line
from heldout.training.curve_file import EvalHistory
from heldout.training.dispatcher import get_async_eval_dispatcher
from heldout.training.judging import Monitor, judge_point
from heldout.training.metrics import Heartbeat, checked_heartbeat, heartbeat_fields
from heldout.training.run_eval import describe
from heldout.training.scheduled import Scheduled
from heldout.training.verdicts import CurveMonitor

log = logging.getLogger("heldout")


class PointPublisher:
    """Judges the points of one eval, and puts them on its curve and into loggers and heartbeats.

    Args:
        label: The eval's name.
        monitor: As for `PeriodicEval`.
        heartbeat_fn: As for `PeriodicEval`.
        on_error: As for `PeriodicEval`.

    Raises:
        InvalidInput: The monitor or the heartbeat cannot be called.
    """

    def __init__(
        self,
        label: str,
        monitor: Monitor | None = None,
        heartbeat_fn: Heartbeat | None = None,
        *,
        on_error: Literal["skip", "raise"] = "skip",
    ) -> None:
        _check_monitor(monitor)
        self._label, self._monitor, self._on_error = label, monitor, on_error
        self._heartbeat = checked_heartbeat(heartbeat_fn)
        self._curve_monitor = monitor if isinstance(monitor, CurveMonitor) else CurveMonitor()
        self.stop: str | None = None
        """Why a monitor last asked to stop."""
        self._has_reused = False
        self._failed: set[int] = set()
        """Ids of monitors whose traceback is in the log."""

    @property
    def settings(self) -> dict[str, Any]:
        """What verdicts are made by, as run.json has it."""
        return asdict(self._curve_monitor.terms)

    # --- Publishing ---

    def publish(self, point: CurvePoint, curve: EvalHistory) -> CurvePoint:
        """Publish a point that is not on the curve yet, and return it with its verdict."""
        file = curve.file
        try:
            judged = self._judge(point, curve)
        except BaseException:  # Ctrl-C in a slow monitor: the eval itself has been paid for
            file.append(point)
            curve.add(point)
            raise
        try:
            file.append(judged)
        except InvalidInput as problem:  # a line cannot hold it: what else could be said of it?
            judged = msgspec.structs.replace(
                judged, summary=None, skipped=describe(problem), outcomes=(), decoding=None
            )
            file.append(judged)
        if (dispatcher := get_async_eval_dispatcher()) is not None:
            dispatcher.log_point(judged, file)
        self._add(judged, curve)
        return judged

    def publish_stored(self, scheduled: Scheduled, curve: EvalHistory) -> CurvePoint:
        """Publish the point of a background eval, whose result is on the curve already."""
        point = scheduled.point
        assert point is not None
        try:
            judged = self._judge(point, curve)
        except BaseException:
            curve.add(point)
            raise
        if (judged.verdict, judged.stop) != (point.verdict, point.stop):
            curve.file.append(verdict_line(judged))
        scheduled.dispatcher.publish_judged(scheduled, judged)
        self._add(judged, curve)
        return judged

    def reuse(self, point: CurvePoint, curve: EvalHistory) -> CurvePoint:
        """Use the point that an earlier attempt has measured."""
        if not self._has_reused:
            self._has_reused = True
            log.warning(
                "%s: points from step %s on are on the curve in %s already, and are not measured "
                "again as long as the weights are the same",
                self._label,
                point.step,
                curve.file.run.path,
            )
        curve.follow(point.step)
        if point.stop:
            self.stop = point.stop
        with untouched_random_state():
            self.beat(self._label, {**heartbeat_fields(point), "eval_reused": True})
        return point

    def raise_if_asked(self, point: CurvePoint) -> None:
        """Raise EvalFailed for a skip, or an item's error, with `on_error="raise"`."""
        if self._on_error != "raise":
            return
        errors = [f"sample {item.id!r}: {item.error}" for item in point.outcomes if item.error]
        reason = point.skipped or "; ".join(errors[:1])
        if reason:
            raise EvalFailed(f"{self._label} at step {point.step}: {reason} (on_error='raise')")

    def beat(self, name: str, fields: dict[str, Any]) -> None:
        """Call the heartbeat."""
        if self._heartbeat is None:
            return
        try:
            self._heartbeat(name, fields)
        except Exception as problem:
            log.warning("%s: heartbeat_fn failed", self._label, exc_info=problem)

    def _add(self, point: CurvePoint, curve: EvalHistory) -> None:
        attempt = curve.attempt
        is_logged = point.lag_steps is not None  # by the dispatcher
        if point.skipped and not is_logged and not (attempt and attempt[-1].skipped):
            log.warning("%s at step %s is skipped: %s", self._label, point.step, point.skipped)
        curve.add(point)
        self.beat(self._label, heartbeat_fields(point))

    # --- Judging ---

    def _judge(self, point: CurvePoint, curve: EvalHistory) -> CurvePoint:
        """Add verdicts: the default monitor's first, so that the user's can read it."""
        if point.summary is None:
            return point
        judged = self._ask_monitor(self._curve_monitor, point, curve)
        if self._monitor is not None and self._monitor is not self._curve_monitor:
            judged = self._ask_monitor(self._monitor, judged, curve)
        if judged.stop:
            self.stop = judged.stop
        return judged

    def _ask_monitor(self, monitor: Monitor, point: CurvePoint, curve: EvalHistory) -> CurvePoint:
        try:
            return judge_point(monitor, point, curve.points_with(point))
        except Exception as problem:
            # Once with its traceback: what fails at one point mostly fails at all of them.
            trace = None if id(monitor) in self._failed else problem
            self._failed.add(id(monitor))
            log.warning(
                "%s: the monitor failed at step %s: %s",
                self._label,
                point.step,
                describe(problem),
                exc_info=trace,
            )
            return point


def _check_monitor(monitor: Any) -> None:
    """Check a monitor before training, where a failure would only be logged."""
    if isinstance(monitor, type):
        raise InvalidInput(
            f"monitor is a {monitor.__name__}, not the class: monitor={monitor.__name__}(…)"
        )
    if monitor is not None and not callable(monitor):
        raise InvalidInput(
            f"monitor is a function of the curve so far, or a CurveMonitor, got {monitor!r:.100}"
        )
