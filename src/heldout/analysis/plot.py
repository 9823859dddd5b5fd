"""A comparison as a forest plot: every difference with its interval, beside the line of none."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from heldout._plotting import COLOURS, GREY, LARGEST, Format, picture, shortened
from heldout.analysis.comparison import Comparison, Difference
from heldout.errors import InvalidInput
from heldout.stats import Interval, PairedDifference

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 200
"""More could not be read, and would make a picture metres high."""
LONGEST = 36
"""Characters of a label."""


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    estimate: float
    interval: Interval | None
    n: str
    whole: bool
    """Of all samples, not of a slice."""
    reading: str
    """What became of errored items in it; empty where none errored."""


def plot_comparison(
    comparison: Comparison,
    *,
    order: Sequence[Hashable] | None = None,
    format: Format = "png",
) -> bytes:
    """The difference overall, in both readings where items errored, and in each slice.

    Slices are in the order of the comparison, or of `order`, which has their labels.
    """
    rows = _rows(comparison, order)
    if len(rows) > MOST_ROWS:
        raise InvalidInput(
            f"{len(comparison.slices)} slices are too many to draw: at most {MOST_ROWS} can be "
            "told apart; slice by a key with fewer values"
        )
    height = 1.2 + 0.24 * len(rows)
    return picture(
        lambda figure: _draw(figure, comparison, rows), size=(6.4, height), format=format
    )


def _rows(comparison: Comparison, order: Sequence[Hashable] | None) -> list[_Row]:
    whole, other = comparison.overall, comparison.with_errors
    scored = "" if other is None else ", scored only"
    found = [_row("all", whole, whole.interval, whole=True, reading=scored)]
    if other is not None:
        reading = f", errored as {comparison.errors_as or 0:g}"
        found.append(_row("all", other, other.interval, whole=True, reading=reading))
    slices = {one.label: one for one in comparison.slices}
    for label in slices if order is None else order:
        one = slices[label]
        interval = one.simultaneous_interval
        found.append(_row(_name(label), one.difference, interval, whole=False, reading=scored))
    return found


def _row(
    name: str, difference: Difference, interval: Interval | None, *, whole: bool, reading: str
) -> _Row:
    numbers = [difference.difference, *((interval.low, interval.high) if interval else ())]
    if max(map(abs, numbers)) > LARGEST:
        raise InvalidInput(
            f"the difference of {name} is {difference.difference:.3g}: too large to draw"
        )
    if isinstance(difference, PairedDifference):
        n = f"{difference.n}"
    else:
        n = f"{difference.n_a}, {difference.n_b}"
    return _Row(name, difference.difference, interval, n, whole, reading)


def _name(label: Hashable) -> str:
    assert isinstance(label, tuple)  # a value for each key
    return ", ".join("–" if value is None else str(value) for value in label)


def _printable(text: str) -> str:
    """What a font has no picture of is spelled out: controls would be boxes, or break a line."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text.replace("\n", "\\n"))


def _tick(row: _Row) -> str:
    return shortened(_printable(row.label), LONGEST - len(row.reading)) + row.reading


def _draw(figure: Figure, comparison: Comparison, rows: Sequence[_Row]) -> None:
    axes = figure.subplots()
    # Half a row of space sets the slices apart.
    heights = [i + (0 if row.whole else 0.5) for i, row in enumerate(rows)]
    for height, row in zip(heights, rows, strict=True):
        colour = COLOURS[0] if row.whole else GREY
        if row.interval is not None:
            axes.plot(
                [row.interval.low, row.interval.high],
                [height, height],
                color=colour,
                linewidth=2.0 if row.whole else 1.4,
                solid_capstyle="butt",
            )
        axes.plot(
            [row.estimate],
            [height],
            "D" if row.whole else "o",
            color=colour,
            markersize=5,
            markerfacecolor=colour if row.interval is not None else "white",
        )
        axes.annotate(
            f"n = {row.n}",
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
    axes.set_yticks(heights, [_tick(row) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(max(heights) + 0.6, -0.6)  # the first on top
    axes.spines["left"].set_visible(False)
    # Of the figure, not of the axes, which long labels leave little room.
    figure.supxlabel(_axis(comparison), fontsize=9)
    names = [shortened(_printable(side.name), 80) for side in (comparison.a, comparison.b)]
    figure.suptitle(f"A: {names[0]}\nB: {names[1]}", fontsize=9, x=0.01, ha="left")


def _axis(comparison: Comparison) -> str:
    metric = shortened(_printable(comparison.metric))
    intervals = f"{100 * comparison.confidence:g}% interval"
    if len(comparison.slices) > 1:
        intervals += f"s; those of the {len(comparison.slices)} slices simultaneous"
    return f"difference in {metric}, B - A ({intervals})"
