"""Where a result goes: it becomes a point, is judged, and goes to curve, loggers and heartbeats.

The points of a `PeriodicEval` are judged in the trainer's thread, inline and in the background
alike, since monitors and heartbeats are the user's code. An inline point is one line, with its
verdict. In the background the result is written when it is there, so that a `kill -9` does not lose
it, and the verdict is a line that adds to it. Where a process ends in between, readers judge the
result by the settings in run.json.

A point that was scheduled without a `PeriodicEval` has no monitor of its own. It is judged by a
`CurveMonitor` with its default settings, as readers of the curve judge it.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from numbers import Real
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from heldout._live.isolation import untouched_random_state
from heldout.analysis.passes import summarize_report
from heldout.errors import EvalFailed, InvalidInput
from heldout.stats.summary import EMPTY_SUMMARY, Summary
from heldout.store.report import EvalReport
from heldout.training.curve.curve_file import CurveFile, EvalHistory, remove_steps
from heldout.training.curve.points import (
    CurvePoint,
    current_points,
    encode_point,
    heartbeat_fields,
    outcomes_of,
    read_points,
    skip_of,
    stop_requested,
    verdict_line,
)
from heldout.training.curve.verdicts import CurveMonitor, Judgement
from heldout.training.loggers.base import Loggers
from heldout.training.reasons import describe

log = logging.getLogger("heldout")

# --- The verdict ----------------------------------------------------------------------------------

Monitor = Callable[[Sequence[CurvePoint]], str | Judgement | None]
"""A function of the curve so far, by step. Returns why training should stop, or None; or a
`Judgement`."""


def judge_point(monitor: Monitor, point: CurvePoint, curve: Sequence[CurvePoint]) -> CurvePoint:
    """Ask a monitor about a point.

    Args:
        monitor: The monitor, which may raise what it likes.
        point: The point.
        curve: The curve so far, with the point.

    Returns:
        The point with what the monitor says of it.
    """
    judgement = monitor(curve)
    if not isinstance(judgement, Judgement):
        return msgspec.structs.replace(point, stop=_stop_reason(judgement))
    # What is said of a later step, because this result came late, is not about this one.
    verdict = judgement.verdict
    is_about = verdict is not None and verdict.step == point.step
    judged = msgspec.structs.replace(
        point,
        stop=_stop_reason(judgement.stop),
        verdict=judgement.as_dict() if is_about else point.verdict,
    )
    encode_point(msgspec.structs.replace(judged, outcomes=()))  # a line must hold it
    return judged


def judge_by_default(point: CurvePoint, file: CurveFile) -> CurvePoint:
    """Add the verdict of a default `CurveMonitor` to a point that is to be written to a file.

    A point without rewards of its samples, or with a verdict already, is returned as it is; and so
    is one of an earlier attempt, which later points have been judged without.
    """
    needs_none = point.verdict is not None or not point.has_result or not point.outcomes
    if needs_none or point.session != file.session:
        return point
    try:
        known = [p for p in read_points(file.run.curve) if p.label == point.label]
        return judge_point(CurveMonitor(), point, current_points([*known, point]))
    except Exception as problem:
        log.warning("there is no verdict on step %s", point.step, exc_info=problem)
        return point


def _stop_reason(reason: Any) -> str | None:
    """Return a reason as text that JSON can represent."""
    return str(reason).encode("utf-8", "replace").decode() if reason else None


# --- What an evaluator returned -------------------------------------------------------------------

EvaluatorResult = CurvePoint | EvalReport | Mapping[str, float]
"""What an evaluator returns."""

UNKNOWN: dict[str, int | float | bool | None] = dict.fromkeys(EMPTY_SUMMARY)
"""A summary without any numbers, not even `n`."""


def point_of(result: Any, pending: CurvePoint, seconds: float, run_dir: Path | None) -> CurvePoint:
    """Make the point of a result.

    A dict of numbers has neither a denominator nor a reward: each number becomes a metric without
    error bar. A dict with all the keys of a heldout summary is such a summary.

    Args:
        result: What the evaluator returned.
        pending: The write-ahead line, whose name, step, attempt and weights the point gets.
        seconds: Duration of the eval.
        run_dir: The run directory, if there is one.

    Raises:
        InvalidInput: It is not a result, it has a number that is not finite, or it is a report that
            is not complete: the items that finish first are not a fair sample.
    """
    point = _unchecked_point_of(result, pending, skip_of(pending, "", seconds), run_dir)
    for name, number in (point.summary or {}).items():
        # JSON would store null, which says that the number is not known.
        if isinstance(number, Real) and not math.isfinite(number):
            metric = name.removeprefix("metric_")
            raise InvalidInput(
                f"the evaluator returned {metric} = {float(number)}: numbers must be finite, or "
                "None where they are unknown"
            )
    return point


def _unchecked_point_of(
    result: Any, pending: CurvePoint, point: CurvePoint, run_dir: Path | None
) -> CurvePoint:
    if isinstance(result, CurvePoint):
        return msgspec.structs.replace(
            result,
            label=pending.label,
            step=pending.step,
            session=pending.session,
            weights=result.weights or pending.weights,
            follows=pending.follows,
            summary=None if result.summary is None else {**UNKNOWN, **result.summary},
        )
    if isinstance(result, EvalReport):
        return _point_of_report(result, point, run_dir)
    if isinstance(result, Mapping):
        return msgspec.structs.replace(point, summary=_summary_of(result), skipped=None)
    raise InvalidInput(
        "an evaluator returns a CurvePoint, an EvalReport or a dict of numbers, "
        f"got {result!r:.200}"
    )


def _point_of_report(report: EvalReport, point: CurvePoint, run_dir: Path | None) -> CurvePoint:
    summary, n = report.summary, report.summary["n"]
    if summary.get("complete") is False:
        asked = summary.get("n_asked")
        raise InvalidInput(f"the report has only {n} of {asked} items, those that finished first")
    if not summary["n_scored"]:
        raise InvalidInput(f"all {n} items errored, so there is no mean")
    run = None
    if report.path is not None and run_dir is not None:
        with suppress(ValueError):  # somewhere else
            run = str(report.path.resolve().relative_to(run_dir.resolve()))
    outcomes = outcomes_of(report.results)
    return msgspec.structs.replace(
        point,
        summary=summarize_report(report),
        skipped=None,
        outcomes=outcomes,
        asked=n,
        of=n,
        run=run,
    )


def _summary_of(metrics: Mapping[str, Any]) -> dict[str, int | float | bool | None]:
    if not metrics:
        raise InvalidInput("the evaluator returned an empty dict")
    numbers: dict[str, float | None] = {}
    for name, value in metrics.items():
        try:
            number = None if value is None or isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if not isinstance(name, str) or (number is None and value is not None):
            raise InvalidInput(f"metrics must be names with numbers, got {name!r}: {value!r:.100}")
        numbers[name] = number
    if set(EMPTY_SUMMARY) <= set(metrics):
        return dict(metrics)
    summary = dict(UNKNOWN)
    for name in numbers:
        ends = ("_n", "_stderr", "_ci_low", "_ci_high")
        taken = [f"{name}{end}" for end in ends if f"{name}{end}" in numbers]
        if taken:
            raise InvalidInput(
                f"metric {taken[0]!r} looks like the denominator or error bar of {name!r}; "
                "rename it, or return a report, which has both"
            )
        summary |= dict.fromkeys(f"metric_{name}{end}" for end in ("", *ends))
    return summary | {f"metric_{name}": number for name, number in numbers.items()}


# --- Loggers --------------------------------------------------------------------------------------


class PointLog:
    """Sends points to loggers, under the name of their curve.

    Args:
        loggers: The loggers, each with a thread of its own.
    """

    def __init__(self, loggers: Loggers) -> None:
        self._loggers = loggers
        self._names: dict[str, dict[Path | None, str]] = {}
        """By label and run directory: what loggers know a curve as."""

    def log(self, point: CurvePoint, file: CurveFile | None) -> None:
        """Send a point that is on its curve already.

        Args:
            point: The point.
            file: Its curve. Two curves with the same label get different names in loggers.
        """
        path, label = None if file is None else file.run.path, point.label
        names = self._names.setdefault(label, {})
        if path not in names:
            names[path] = name = f"{label}-{len(names) + 1}" if names else label
            if name != label:
                message = "%s and %s are both called %r; loggers get the second as %r"
                log.warning(message, next(iter(names)), path, label, name)
        fields = {key: v for key, v in heartbeat_fields(point).items() if v is not None}
        self._loggers.log(names[path], point.step, fields)

    def close(self, seconds: float) -> None:
        """Let the loggers store what they have, and close them."""
        self._loggers.close(seconds)


# --- The points of a PeriodicEval -----------------------------------------------------------------


class PointPublisher:
    """Judges the points of one eval, and puts them on its curve and into loggers and heartbeats.

    Args:
        label: The eval's name.
        monitor: As for `PeriodicEval`.
        heartbeat_fn: As for `PeriodicEval`.
        on_error: As for `PeriodicEval`.
        keep_steps: As for `PeriodicEval`.

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
        keep_steps: int | None = None,
    ) -> None:
        _check_monitor(monitor)
        self._label, self._monitor, self._on_error = label, monitor, on_error
        self._keep_steps = keep_steps
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

    def find_stop(self, run_dir: Path) -> str | None:
        """Return why training should stop: what a monitor said, or the file `stop`."""
        if self.stop is None:
            self.stop = stop_requested(run_dir)
        return self.stop

    def within_bounds(self, summary: Summary | None) -> Summary | None:
        """End the intervals of the mean at the `bounds` of the monitor, if it was given any."""
        bounds = self._curve_monitor.terms.bounds
        if summary is None or bounds is None:
            return summary
        ends = {}
        for mean, interval in (("mean", "ci"), ("mean_scored", "ci_scored")):
            keys = (mean, f"{interval}_low", f"{interval}_high")
            value, low, high = (summary.get(key) for key in keys)
            if value is None or low is None or high is None:
                continue
            # An errored item counts as 0, which may lie outside.
            ends[f"{interval}_low"] = min(value, max(low, bounds[0]))
            ends[f"{interval}_high"] = max(value, min(high, bounds[1]))
        return {**summary, **ends}

    def warn_of_plateau(self, n: int, *, is_bounded: bool = True) -> None:
        """Say that the monitor's stop on a plateau is out of reach with so many samples."""
        reason = self._curve_monitor.why_no_plateau(n, is_bounded=is_bounded)
        if reason is not None:
            log.warning("%s: %s", self._label, reason)

    # --- Publishing ---

    def publish(
        self, point: CurvePoint, curve: EvalHistory, point_log: PointLog | None
    ) -> CurvePoint:
        """Publish a point that is not on the curve yet.

        Args:
            point: The point.
            curve: Its curve.
            point_log: Sends it to loggers, if there are any.

        Returns:
            The point with its verdict.
        """
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
        if point_log is not None:
            point_log.log(judged, file)
        self.add(judged, curve)
        return judged

    def judge_stored(self, point: CurvePoint, curve: EvalHistory) -> CurvePoint:
        """Put the verdict on the result of a background eval, which is on the curve already.

        Args:
            point: The result.
            curve: Its curve.

        Returns:
            The point with its verdict: send it to loggers, and then `add` it.
        """
        try:
            judged = self._judge(point, curve)
        except BaseException:
            curve.add(point)
            raise
        if (judged.verdict, judged.stop) != (point.verdict, point.stop):
            curve.file.append(verdict_line(judged))
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

    def add(self, point: CurvePoint, curve: EvalHistory) -> None:
        """Add a point that is on its curve file to what this process knows of it, and say so."""
        attempt = curve.attempt
        is_logged = point.lag_steps is not None  # by the dispatcher
        if point.skipped and not is_logged and not (attempt and attempt[-1].skipped):
            log.warning("%s at step %s is skipped: %s", self._label, point.step, point.skipped)
        curve.add(point)
        if self._keep_steps is not None and point.has_result:
            try:
                remove_steps(curve.file.run.path, curve.points, self._keep_steps)
            except OSError as problem:
                log.warning("%s: keep_steps: %s", self._label, problem)
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
            f"monitor must be a function of the curve so far, or a CurveMonitor, got "
            f"{monitor!r:.100}"
        )


# --- Heartbeats -----------------------------------------------------------------------------------

Heartbeat = Callable[..., object]
"""`heartbeat(name, **fields)` or `heartbeat(name, fields)`. The name is the eval's label, or
`<label>_progress`."""


def checked_heartbeat(heartbeat: Any) -> Callable[[str, dict[str, Any]], object] | None:
    """Return the heartbeat as a function of `(name, fields)`.

    Fields go by keyword where the signature takes any, `step` among them. Otherwise they are one
    dict.

    Raises:
        InvalidInput: The signature takes neither.
    """
    if heartbeat is None:
        return None
    try:
        signature = inspect.signature(heartbeat)
    except TypeError:
        message = f"heartbeat_fn must be a function (name, **fields), got {heartbeat!r:.100}"
        raise InvalidInput(message) from None
    except ValueError:  # a builtin that does not say what it takes
        raise InvalidInput(
            f"heartbeat_fn is a function (name, **fields); the signature of {heartbeat!r:.100} is "
            "unknown",
            hint="lambda name, fields: … says what it takes",
        ) from None
    if _bind(signature, "", step=0, eval_n=0, eval_metric_some_name=0) is not None:
        return lambda name, fields: heartbeat(name, **fields)
    bound = _bind(signature, "", {})
    # `def beat(name, step=None)` would take the dict for the step.
    if bound is not None and not _is_field([*bound.arguments][-1]):
        return cast(Callable[[str, dict[str, Any]], object], heartbeat)
    raise InvalidInput(
        f"heartbeat_fn is called as heartbeat_fn(name, **fields), or (name, fields), which "
        f"{getattr(heartbeat, '__qualname__', heartbeat)!s:.100}{signature} does not take"
    )


def _bind(signature: inspect.Signature, *args: Any, **fields: Any) -> inspect.BoundArguments | None:
    try:
        return signature.bind(*args, **fields)
    except TypeError:
        return None


def _is_field(parameter: str) -> bool:
    return parameter in ("step", "lag_steps") or parameter.startswith("eval_")
