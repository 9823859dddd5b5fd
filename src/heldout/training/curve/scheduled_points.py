"""Points of scheduled evals: write-ahead lines, skips, and what an evaluator returned."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

import msgspec

from heldout.analysis.passes import summarize_report
from heldout.errors import InvalidInput
from heldout.stats.summary import EMPTY_SUMMARY
from heldout.store.report import EvalReport
from heldout.store.run_dir import now
from heldout.training.curve.points import CurvePoint, check_step, outcomes_of

EvaluatorResult = CurvePoint | EvalReport | Mapping[str, float]
"""What an evaluator returns."""

NOT_FINISHED = "scheduled, not finished"
SAME_WEIGHTS = "the same weights have a point already"


def pending_point(
    name: str,
    step: int,
    session: str = "",
    *,
    weights: str | None = None,
    saved_at: str | os.PathLike[str] | None = None,
    follows: int | None = None,
) -> CurvePoint:
    """Make the write-ahead line of an eval.

    Args:
        name: The eval's name on the curve.
        step: The step of its point.
        session: The attempt it belongs to.
        weights: Hash of the weights it measures, if it is known.
        saved_at: Where those weights were saved.
        follows: See `CurvePoint`.

    Returns:
        A point without a result.

    Raises:
        InvalidInput: An argument is invalid.
    """
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise InvalidInput(f"name must be the eval's name on the curve, got {name!r}")
    if weights is not None and not (isinstance(weights, str) and weights.isprintable()):
        raise InvalidInput(f"weights must be a hash, as a string, got {weights!r:.100}")
    path = None if saved_at is None else os.fspath(saved_at)
    try:
        if path is not None:
            path.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidInput(
            f"saved_at must be a path that can be written down, got {path!a}"
        ) from None
    return CurvePoint(
        label=name,
        step=check_step(step),
        session=session,
        time=now(),
        seconds=0.0,
        skipped=NOT_FINISHED,
        weights=weights,
        pending=True,
        saved_at=path,
        follows=follows,
    )


def skip_of(
    pending: CurvePoint, reason: str, seconds: float = 0.0, *, retry: bool = False
) -> CurvePoint:
    """Make the skip of a scheduled eval.

    Args:
        pending: Its write-ahead line.
        reason: Why it has no result.
        seconds: Its duration.
        retry: Whether it stays pending, so that it can be measured later.
    """
    return msgspec.structs.replace(
        pending,
        time=now(),
        seconds=seconds,
        skipped=reason,
        pending=retry,
        saved_at=pending.saved_at if retry else None,
    )


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
