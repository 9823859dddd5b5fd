"""Several curves in one chart: seeds, runs or eval sets, and the mean over training runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from heldout._core.format import interval, number
from heldout.errors import InvalidInput
from heldout.reporting.curves import CurveRun, read_curve
from heldout.stats import Moments
from heldout.viewer.curve_page import describe_curve, refuse_unmeasured
from heldout.viewer.values import Plain
from heldout.viewer.viewed_run import stamp

MOST_CURVES = 6
SETTINGS = ("samples", "n", "pass_threshold")
FUNCTIONS = ("score_fn", "prepare_messages", "environment_factory", "answer_filter", "settings")
"""What runs of one training have to share, beside the policy and the seed, to be averaged."""


class CurveName(NamedTuple):
    """One curve of the chart."""

    name: str
    path: Path
    label: str


def describe_overlay(curves: Sequence[CurveName], metric: str) -> Plain:
    """Describe curves for one chart, with their mean over training runs where there is one.

    Args:
        curves: The curves, in the order of the legend.
        metric: What is drawn; "" is the first that all of them have, the reward if they do.

    Raises:
        InvalidInput: There are too many, or none; or none of them has the metric.
    """
    if not 0 < len(curves) <= MOST_CURVES:
        raise InvalidInput(f"a chart has 1 to {MOST_CURVES} curves, got {len(curves)}")
    stamped = [(curve.name, curve.path, stamp(curve.path), curve.label) for curve in curves]
    first = [describe_curve(*curve, "") for curve in stamped]
    own = [c["metrics"] for c in first if any(point["result"] for point in c["points"])]
    own = own or [first[0]["metrics"]]
    shared = [name for name in own[0] if all(name in names for names in own)]
    # Curves that share none are drawn by the first one's: the page says which has no such values.
    metric = metric or (shared or own[0])[0]
    described = [describe_curve(*curve, metric) for curve in stamped]
    refuse_unmeasured(described, metric, " and ".join(curve.name for curve in curves))
    series: list[Plain] = [
        {"name": curve.name, **{key: answer.get(key) for key in ("label", "labels", "points")}}
        | {"verdict": answer.get("verdict"), "best": answer.get("best")}
        for curve, answer in zip(curves, described, strict=True)
    ]
    why = _why_no_mean(curves)
    return {
        "metric": metric,
        "metrics": shared,
        "series": series,
        "over_runs": [] if why else _mean_over_runs([one["points"] for one in series]),
        "no_mean": why,
    }


def _why_no_mean(curves: Sequence[CurveName]) -> str | None:
    """Say why curves are not averaged; None where they measure the same in several runs."""
    if len({curve.path for curve in curves}) < len(curves) or len(curves) < 2:
        return "a mean over training runs needs one curve of each of several runs"
    first, *others = (_identify(read_curve(curve.path)) for curve in curves)
    if first.get("samples") is None:
        return f"{curves[0].name} does not record which samples it has"
    for curve, other in zip(curves[1:], others, strict=True):
        different = [key for key, value in first.items() if other.get(key) != value]
        if different:
            return f"{curves[0].name} and {curve.name} differ in {', '.join(different)}"
    return None


def _identify(run: CurveRun) -> dict[str, Any]:
    functions = run.info.functions if run.info else {}
    return {key: run.config.get(key) for key in SETTINGS} | {
        key: functions.get(key) for key in FUNCTIONS
    }


def _mean_over_runs(series: Sequence[Sequence[Plain]]) -> list[Plain]:
    """Average the steps at which every run has a whole eval; a run counts once."""
    by_step = [
        {p["step"]: p["mean"] for p in points if p["mean"] is not None and not p["fewer"]}
        for points in series
    ]
    answer = []
    for step in sorted(set.intersection(*map(set, by_step))):
        moments = Moments.of(np.array([means[step] for means in by_step], dtype=np.float64))
        bounds = moments.interval(maybe_count=True)
        low, high = (bounds.low, bounds.high) if bounds else (None, None)
        answer.append(
            {
                "step": step,
                "mean": moments.mean,
                "low": low,
                "high": high,
                "n": f"{moments.n} runs",
                "text": {"mean": number(moments.mean), "interval": interval(low, high)},
            }
        )
    return answer
