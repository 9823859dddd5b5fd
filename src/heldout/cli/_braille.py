"""Curves drawn in braille characters of 2 x 4 dots.

The band of the interval shares no character with a line, whose dots would drown in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise

from rich.text import Text

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a curve.

    Attributes:
        x: The step.
        y: The value.
        bounds: The interval around it.
        hollow: Whether it is of fewer samples than others.
    """

    x: float
    y: float
    bounds: tuple[float, float] | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One curve.

    Attributes:
        dots: Its points by x.
        skipped: Steps without a value.
    """

    dots: Sequence[Dot]
    skipped: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values to dots: `low` to the first, `high` to the last."""

    low: float
    high: float
    count: int

    def __call__(self, value: float) -> int:
        share = (value - self.low) / (self.high - self.low)
        return min(self.count - 1, max(0, round(share * (self.count - 1))))


def draw_curves(series: Sequence[Series], width: int, height: int) -> Text:
    """Draw curves with their axes.

    Args:
        series: The curves.
        width: Columns.
        height: Rows.

    Returns:
        The drawing.
    """
    xs = [x for curve in series for x in (*(dot.x for dot in curve.dots), *curve.skipped)]
    ys = [y for curve in series for dot in curve.dots for y in (dot.y, *(dot.bounds or ()))]
    if not ys:
        return Text("nothing to draw", "dim")
    if width < 20 or height < 5:
        return Text("no room to draw", "dim")
    rows = height - 2
    range_x, range_y = _widen(min(xs), max(xs), 0.5), _value_range(min(ys), max(ys))
    labels = {
        tick: _format_tick(tick, step) for tick, step in make_ticks(*range_y, max(3, rows // 2))
    }
    margin = max(map(len, labels.values())) + 1
    columns = width - margin - 1
    across, up = _Scale(*range_x, columns * 2), _Scale(*range_y, rows * 4)
    canvas = _Canvas(columns, rows)
    for colour, curve in zip(cycle(COLOURS), series, strict=False):
        _draw_band(canvas, curve, across, up, colour)
    for colour, curve in zip(cycle(COLOURS), series, strict=False):
        _draw_line(canvas, curve, across, up, colour)
    label_rows = {rows - 1 - up(tick) // 4: label for tick, label in labels.items()}
    text = Text(no_wrap=True)
    for row in range(rows):
        label = label_rows.get(row)
        text.append(f"{label or '':>{margin - 1}} ", "dim")
        text.append("┤" if label else "│", "dim")
        canvas.append_row(text, row)
        text.append("\n")
    skipped = {across(x) // 2 for curve in series for x in curve.skipped}
    return text.append_text(_draw_axis(across, margin, columns, skipped))


def make_ticks(low: float, high: float, most: int) -> Iterator[tuple[float, float]]:
    """Yield round values from low to high, each with the distance between them.

    Args:
        low: The first.
        high: The last.
        most: Their number, at most.
    """
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    distance = next(size * m for m in (1, 2, 5, 10) if size * m >= raw * 0.999)
    first = math.ceil(low / distance - 1e-9)
    for i in range(first, math.floor(high / distance + 1e-9) + 1):
        yield i * distance, distance


def _format_tick(tick: float, distance: float) -> str:
    if not 1e-6 < distance < 1e9:
        return f"{tick:.3g}"
    return f"{tick:.{max(0, -math.floor(math.log10(distance) + 1e-9))}f}"


def _value_range(low: float, high: float) -> tuple[float, float]:
    margin = 0.04 * (high - low)
    bottom, top = _widen(low - margin, high + margin, 0.05)
    if low >= 0 and high <= 1:
        return max(0.0, bottom), min(1.0, top)
    return bottom, top


def _widen(low: float, high: float, least: float) -> tuple[float, float]:
    # Values that differ by rounding alone are one value.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        least = max(least, abs(low) * 1e-6)
        return low - least, high + least
    return low, high


class _Canvas:
    BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
    """The bit of each dot in a braille character, by row and column."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._bits: dict[tuple[int, int], tuple[int, str]] = {}
        self._marks: dict[tuple[int, int], tuple[str, str]] = {}

    def set_dot(self, x: int, y: int, style: str) -> None:
        """Set a dot, y from below. A dot of another style takes the whole character over."""
        cell = (self.rows - 1 - y // 4, x // 2)
        bit = self.BITS[3 - y % 4][x % 2]
        bits, owner = self._bits.get(cell, (0, style))
        self._bits[cell] = (bits | bit if owner == style else bit, style)

    def set_mark(self, x: int, y: int, character: str, style: str) -> None:
        self._marks[self.rows - 1 - y // 4, x // 2] = (character, style)

    def append_row(self, text: Text, row: int) -> None:
        for cell in ((row, column) for column in range(self.columns)):
            if cell in self._marks:
                text.append(*self._marks[cell])
            elif cell in self._bits:
                bits, style = self._bits[cell]
                text.append(chr(0x2800 + bits), style)
            else:
                text.append(" ")


def _interpolate(start: tuple[int, float], end: tuple[int, float]) -> Iterator[tuple[int, float]]:
    length = end[0] - start[0]
    for x in range(start[0], end[0] + 1):
        share = (x - start[0]) / length if length else 0.0
        yield x, start[1] * (1 - share) + end[1] * share


def _draw_band(canvas: _Canvas, curve: Series, across: _Scale, up: _Scale, colour: str) -> None:
    style = f"dim {colour}"
    alone = {i: dot.bounds for i, dot in enumerate(curve.dots) if dot.bounds is not None}
    for i, (dot, following) in enumerate(pairwise(curve.dots)):
        if dot.bounds is None or following.bounds is None:
            continue
        alone.pop(i, None)
        alone.pop(i + 1, None)
        left, right = across(dot.x), across(following.x)
        lows = _interpolate((left, dot.bounds[0]), (right, following.bounds[0]))
        highs = _interpolate((left, dot.bounds[1]), (right, following.bounds[1]))
        for (x, low), (_, high) in zip(lows, highs, strict=True):
            for y in range(up(low), up(high) + 1):
                if x % 2 == 0 and y % 2 == 0:
                    canvas.set_dot(x, y, style)
    # Without a neighbour there is nothing to fill: a bar.
    for i, (low, high) in alone.items():
        for y in range(up(low), up(high) + 1):
            canvas.set_dot(across(curve.dots[i].x), y, style)


def _draw_line(canvas: _Canvas, curve: Series, across: _Scale, up: _Scale, colour: str) -> None:
    previous: int | None = None
    for dot, following in pairwise(curve.dots):
        for x, value in _interpolate((across(dot.x), dot.y), (across(following.x), following.y)):
            y = up(value)
            start = y if previous is None else previous
            for between in range(min(y, start), max(y, start) + 1):
                canvas.set_dot(x, between, colour)
            previous = y
    crowded = len(curve.dots) > canvas.columns / 3
    for dot in curve.dots:
        if dot.hollow or not crowded:
            canvas.set_mark(across(dot.x), up(dot.y), "○" if dot.hollow else "●", colour)


def _draw_axis(across: _Scale, margin: int, columns: int, skipped: set[int]) -> Text:
    line, under, free = ["─"] * columns, [" "] * (margin + 1 + columns), 0
    for tick, distance in make_ticks(across.low, across.high, max(2, columns // 10)):
        if tick != round(tick):
            continue  # there are no half steps
        column = across(tick) // 2
        line[column] = "┬"
        label = _format_tick(tick, distance)
        start = min(margin + 1 + column - len(label) // 2, len(under) - len(label))
        if start >= free:
            under[start : start + len(label)] = label
            free = start + len(label) + 1
    text = Text(" " * margin + "└", "dim", no_wrap=True)
    for column, character in enumerate(line):
        text.append("×" if column in skipped else character, "red" if column in skipped else "dim")
    return text.append("\n" + "".join(under).rstrip(), "dim")
