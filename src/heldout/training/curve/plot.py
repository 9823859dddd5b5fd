"""Curves as a figure: the mean with its 95% band.

Hollow points have fewer items than the others; crosses on the axis are skips. The same curves give
the same bytes: no dates, no random ids, no matplotlib settings of the user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heldout._core.plotting import COLOURS, GREY, LARGEST, Format, render_figure, shorten_label
from heldout.errors import InvalidInput
from heldout.stats.intervals import Floats
from heldout.training.curve.points import CurvePoint, is_fewer, most_asked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True)
class NamedCurve:
    """A curve, and its name in the legend."""

    name: str
    points: Sequence[CurvePoint]
    """Points of `current_points`, of one label."""


def plot(
    curves: Sequence[NamedCurve],
    metric: str = "reward",
    *,
    pass_rate: bool = False,
    format: Format = "png",
) -> bytes:
    """Plot a metric of several curves, and below it their pass rate."""
    metrics = [metric, "pass_rate"] if pass_rate else [metric]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
        for panel, shown in zip(panels, metrics, strict=True):
            _draw_panel(panel, curves, shown)
        panels[-1].set_xlabel("training step")
        _add_legend(figure, curves)

    return render_figure(draw, size=(6.0, 3.6 if len(metrics) == 1 else 5.6), format=format)


def _draw_panel(panel: Axes, curves: Sequence[NamedCurve], metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for i, curve in enumerate(curves):
        colour, line = _style(i)
        steps, values, lows, highs, fewer = _numbers(curve, metric)
        panel.fill_between(steps, lows, highs, color=colour, alpha=0.18, linewidth=0)
        panel.plot(steps, values, line, color=colour, linewidth=1.5)
        for marked, face in ((fewer == 0, colour), (fewer == 1, "white")):
            dots: dict[str, Any] = {"color": colour, "markersize": 4, "markerfacecolor": face}
            panel.plot(steps[marked], values[marked], "o", **dots)
        if len(steps) == 1:
            # A band needs two points; alone, its interval is a bar.
            panel.vlines(steps, lows, highs, color=colour, linewidth=1.5)
        skipped = [p.step for p in curve.points if not p.has_result]
        [marks] = panel.plot(
            skipped,
            [0.025 * i] * len(skipped),  # those of one curve do not hide those of another
            "x",
            color=colour,
            markersize=5,
            transform=panel.get_xaxis_transform(),
            clip_on=False,
            zorder=5,
        )
        marks.set_in_layout(False)  # they stand on the axis, and would push the panels apart
    panel.margins(x=0.02)
    panel.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 2.5, 5, 10]))
    panel.set_ylabel(f"held-out {_display_name(metric)} ({_count(curves, metric)})")


def _numbers(curve: NamedCurve, metric: str) -> Floats:
    """Return steps, values, lower and upper bounds (NaN if unknown) and "has fewer items"."""
    rows = []
    most = most_asked(curve.points)
    for point in curve.points:
        value, bounds = point.value_and_interval(metric)
        if value is None:
            continue
        if max(map(abs, (value, *(bounds or ())))) > LARGEST:
            raise InvalidInput(
                f"{metric} is {value:.3g} at step {point.step} of {curve.name}: too large to draw"
            )
        rows.append((point.step, value, *(bounds or (math.nan,) * 2), is_fewer(point, most)))
    return np.array(rows, dtype=np.float64).reshape(-1, 5).T


def _count(curves: Sequence[NamedCurve], metric: str) -> str:
    """Return the number of items of full points; those with fewer are hollow."""
    counts = [
        int(point.number(f"metric_{metric}_n") or point.n)
        for curve in curves
        for most in [most_asked(curve.points)]
        for point in curve.points
        if point.number("n") is not None and not is_fewer(point, most)
    ]
    if not counts:
        return "n unknown"
    low, high = min(counts), max(counts)
    return f"n = {low}" if low == high else f"n = {low}–{high}"


def _display_name(name: str) -> str:
    return "pass rate" if name == "pass_rate" else shorten_label(name)


def _style(index: int) -> tuple[str, str]:
    return COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]


def _add_legend(figure: Any, curves: Sequence[NamedCurve]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for i, curve in enumerate(curves):
        colour, line = _style(i)
        label = _display_name(curve.name)
        handles.append(Line2D([], [], color=colour, linestyle=line, label=label))
    handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label="95% interval"))
    marks: dict[str, Any] = {"color": GREY, "linestyle": "none", "markersize": 4}
    points = [(p, most) for c in curves for most in [most_asked(c.points)] for p in c.points]
    if any(p.has_result and is_fewer(p, most) for p, most in points):
        handles.append(Line2D([], [], marker="o", mfc="white", label="fewer items", **marks))
    if any(not p.has_result for p, _ in points):
        handles.append(Line2D([], [], marker="x", label="skipped", **marks))
    longest = max(len(handle.get_label()) for handle in handles)
    columns = max(1, min(len(handles), 90 // (longest + 6)))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns)
