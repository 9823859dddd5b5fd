"""A comparison as a forest plot: every difference with its interval, and a line at 0."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from heldout._core.format import printable
from heldout._core.plotting import COLOURS, GREY, Format, render_figure, shorten_label
from heldout.analysis.comparison import Comparison, Difference
from heldout.errors import InvalidInput
from heldout.stats import Interval, PairedDifference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS_DRAWN = 200
"""More rows could not be read, and would make a picture metres high."""
LABEL_CHARACTERS = 36


class _PlotRow(NamedTuple):
    label: str
    difference: Difference
    interval: Interval | None
    overall: bool


def plot_comparison(
    comparison: Comparison,
    *,
    order: Sequence[Hashable] | None = None,
    format: Format = "png",
) -> bytes:
    """Draw a comparison: the difference overall and in each slice.

    Where items errored, the difference overall is drawn with and without them.

    Args:
        comparison: The comparison.
        order: Labels of the slices in the order to draw them; None: as in the comparison.
        format: The format of the picture.

    Raises:
        InvalidInput: There are too many slices.
    """
    rows = _make_rows(comparison, order)
    if len(rows) > ROWS_DRAWN:
        raise InvalidInput(
            f"{len(comparison.slices)} slices are too many to draw: at most {ROWS_DRAWN} can be "
            "read; slice by a key with fewer values"
        )
    height = 1.2 + 0.24 * len(rows)
    return render_figure(
        lambda figure: _draw(figure, comparison, rows), size=(6.4, height), format=format
    )


def _make_rows(comparison: Comparison, order: Sequence[Hashable] | None) -> list[_PlotRow]:
    overall, counted = comparison.overall, comparison.with_errors
    scored = "" if counted is None else f", {comparison.scored_samples}"
    rows = [_PlotRow(f"all{scored}", overall, overall.interval, overall=True)]
    if counted is not None:
        reading = f", errored as {comparison.errors_as or 0:g}"
        rows.append(_PlotRow(f"all{reading}", counted, counted.interval, overall=True))
    slices = {part.label: part for part in comparison.slices}
    for label in slices if order is None else order:
        part = slices[label]
        assert isinstance(label, tuple), "a value for each key"
        text = printable(", ".join("–" if value is None else str(value) for value in label))
        name = shorten_label(text, LABEL_CHARACTERS - len(scored)) + scored
        rows.append(_PlotRow(name, part.difference, part.simultaneous_interval, overall=False))
    return rows


def _count(difference: Difference) -> str:
    if isinstance(difference, PairedDifference):
        return str(difference.n)
    return f"{difference.n_a}, {difference.n_b}"


def _draw(figure: Figure, comparison: Comparison, rows: Sequence[_PlotRow]) -> None:
    axes = figure.subplots()
    # Half a row of space sets the slices apart.
    heights = [i + (0 if row.overall else 0.5) for i, row in enumerate(rows)]
    for height, row in zip(heights, rows, strict=True):
        colour = COLOURS[0] if row.overall else GREY
        if row.interval is not None:
            axes.plot(
                [row.interval.low, row.interval.high],
                [height, height],
                color=colour,
                linewidth=2.0 if row.overall else 1.4,
                solid_capstyle="butt",
            )
        axes.plot(
            [row.difference.difference],
            [height],
            "D" if row.overall else "o",
            color=colour,
            markersize=5,
            markerfacecolor=colour if row.interval is not None else "white",
        )
        axes.annotate(
            f"n = {_count(row.difference)}",
            (1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=GREY,
            annotation_clip=False,
        )
    axes.axvline(0, color="black", linewidth=0.8, zorder=1)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_yticks(heights, [row.label for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(heights) + 0.6, -0.6)  # the first on top
    axes.spines["left"].set_visible(False)
    # Of the figure, not of the axes, which long labels leave little room.
    figure.supxlabel(_axis_label(comparison), fontsize=9)
    names = [shorten_label(printable(side.name), 80) for side in (comparison.a, comparison.b)]
    figure.suptitle(f"A: {names[0]}\nB: {names[1]}", fontsize=9, x=0.01, ha="left")


def _axis_label(comparison: Comparison) -> str:
    metric = shorten_label(printable(comparison.metric))
    intervals = f"{100 * comparison.confidence:g}% interval"
    if len(comparison.slices) > 1:
        intervals += f"s; those of the {len(comparison.slices)} slices simultaneous"
    return f"difference in {metric}, B - A ({intervals})"
