"""Curves drawn in characters: braille dots for the line, sparser ones for its error band.

A character holds 2 x 4 dots. A band shares no character with a line, whose dots would drown in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""The bit of each dot in a braille character, by row and column."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
SMALLEST = (20, 5)
"""Columns and rows below which nothing can be seen."""


@dataclass(frozen=True, slots=True)
class Dot:
    x: float
    y: float
    bounds: tuple[float, float] | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its points by x, and the places where there is none."""

    dots: Sequence[Dot]
    skipped: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to dots: `low` is the middle of the first, `high` of the last."""

    low: float
    high: float
    count: int

    def __call__(self, value: float) -> int:
        share = (value - self.low) / (self.high - self.low)
        return min(self.count - 1, max(0, round(share * (self.count - 1))))


def draw(series: Sequence[Series], width: int, height: int) -> Text:
    """The curves with their axes, in so many columns and rows."""
    range_x, range_y = _range_x(series), _range_y(series)
    if range_x is None or range_y is None:
        return Text("nothing to draw", "dim")
    if width < SMALLEST[0] or height < SMALLEST[1]:
        return Text("no room to draw", "dim")
    rows = height - 2
    labels = {tick: _said(tick, step) for tick, step in ticks(*range_y, most=max(3, rows // 2))}
    margin = max(map(len, labels.values())) + 1
    columns = width - margin - 1
    across, up = Scale(*range_x, columns * 2), Scale(*range_y, rows * 4)
    canvas = _Canvas(columns, rows)
    for colour, one in zip(_colours(), series, strict=False):
        _draw_band(canvas, one, across, up, colour)
    for colour, one in zip(_colours(), series, strict=False):
        _draw_line(canvas, one, across, up, colour)
    at_row = {rows - 1 - up(tick) // 4: label for tick, label in labels.items()}
    text = Text(no_wrap=True)
    for row in range(rows):
        label = at_row.get(row)
        text.append(f"{label or '':>{margin - 1}} ", "dim")
        text.append("┤" if label else "│", "dim")
        canvas.append_row(text, row)
        text.append("\n")
    skipped = {across(x) // 2 for one in series for x in one.skipped}
    return text.append_text(_axis(across, margin, columns, skipped))


def ticks(low: float, high: float, *, most: int) -> Iterator[tuple[float, float]]:
    """Round values from low to high, at most so many, each with their distance."""
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    distance = next(size * m for m in (1, 2, 5, 10) if size * m >= raw * 0.999)
    first = math.ceil(low / distance - 1e-9)
    for i in range(first, math.floor(high / distance + 1e-9) + 1):
        yield i * distance, distance


def _said(tick: float, distance: float) -> str:
    if not 1e-6 < distance < 1e9:
        return f"{tick:.3g}"
    return f"{tick:.{max(0, -math.floor(math.log10(distance) + 1e-9))}f}"


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def _range_x(series: Sequence[Series]) -> tuple[float, float] | None:
    values = [x for one in series for x in (*(d.x for d in one.dots), *one.skipped)]
    return _widened(min(values), max(values), 0.5) if values else None


def _range_y(series: Sequence[Series]) -> tuple[float, float] | None:
    values = [v for one in series for d in one.dots for v in (d.y, *(d.bounds or ()))]
    if not values:
        return None
    low, high = min(values), max(values)
    margin = 0.04 * (high - low)
    wide = _widened(low - margin, high + margin, 0.05)
    if wide is not None and low >= 0 and high <= 1:
        return max(0.0, wide[0]), min(1.0, wide[1])
    return wide


def _widened(low: float, high: float, least: float) -> tuple[float, float] | None:
    if not math.isfinite(high - low):
        return None
    # Values that differ by rounding alone are one value.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        least = max(least, abs(low) * 1e-6)
        return low - least, high + least
    return low, high


class _Canvas:
    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self._bits: dict[tuple[int, int], tuple[int, str]] = {}
        self._marks: dict[tuple[int, int], tuple[str, str]] = {}

    def dot(self, x: int, y: int, style: str) -> None:
        """Sets a dot, y from below. One of another style takes the whole character over."""
        row, column = self.rows - 1 - y // 4, x // 2
        bit = DOTS[3 - y % 4][x % 2]
        bits, owner = self._bits.get((row, column), (0, style))
        self._bits[row, column] = (bits | bit if owner == style else bit, style)

    def mark(self, x: int, y: int, character: str, style: str) -> None:
        self._marks[self.rows - 1 - y // 4, x // 2] = (character, style)

    def append_row(self, text: Text, row: int) -> None:
        for column in range(self.columns):
            place = (row, column)
            if place in self._marks:
                text.append(*self._marks[place])
            elif place in self._bits:
                bits, style = self._bits[place]
                text.append(chr(0x2800 + bits), style)
            else:
                text.append(" ")


def _between(start: tuple[int, float], end: tuple[int, float]) -> Iterator[tuple[int, float]]:
    """Each x from start to end, with the value on the straight line between them."""
    length = end[0] - start[0]
    for x in range(start[0], end[0] + 1):
        share = (x - start[0]) / length if length else 0.0
        yield x, start[1] * (1 - share) + end[1] * share


def _draw_band(canvas: _Canvas, one: Series, across: Scale, up: Scale, colour: str) -> None:
    style = f"dim {colour}"
    alone = {i for i, dot in enumerate(one.dots) if dot.bounds is not None}
    for i, (dot, following) in enumerate(pairwise(one.dots)):
        if dot.bounds is None or following.bounds is None:
            continue
        alone -= {i, i + 1}
        ends = across(dot.x), across(following.x)
        lows = _between((ends[0], dot.bounds[0]), (ends[1], following.bounds[0]))
        highs = _between((ends[0], dot.bounds[1]), (ends[1], following.bounds[1]))
        for (x, low), (_, high) in zip(lows, highs, strict=True):
            for y in range(up(low), up(high) + 1):
                if x % 2 == 0 and y % 2 == 0:
                    canvas.dot(x, y, style)
    for dot in (one.dots[i] for i in alone):
        # Without a neighbour there is nothing to fill: a bar.
        assert dot.bounds is not None
        for y in range(up(dot.bounds[0]), up(dot.bounds[1]) + 1):
            canvas.dot(across(dot.x), y, style)


def _draw_line(canvas: _Canvas, one: Series, across: Scale, up: Scale, colour: str) -> None:
    previous: int | None = None
    for dot, following in pairwise(one.dots):
        for x, value in _between((across(dot.x), dot.y), (across(following.x), following.y)):
            y = up(value)
            reach = y if previous is None else previous
            for between in range(min(y, reach), max(y, reach) + 1):
                canvas.dot(x, between, colour)
            previous = y
    crowded = len(one.dots) > canvas.columns / 3
    for dot in one.dots:
        if dot.hollow or not crowded:
            canvas.mark(across(dot.x), up(dot.y), "○" if dot.hollow else "●", colour)


def _axis(across: Scale, margin: int, columns: int, skipped: set[int]) -> Text:
    """The line below with its marks, and the steps under it."""
    line, under, free = ["─"] * columns, [" "] * (margin + 1 + columns), 0
    for tick, distance in ticks(across.low, across.high, most=max(2, columns // 10)):
        if tick != round(tick):
            continue  # there are no half steps
        column = across(tick) // 2
        line[column] = "┬"
        label = _said(tick, distance)
        start = min(margin + 1 + column - len(label) // 2, len(under) - len(label))
        if start >= free:
            under[start : start + len(label)] = label
            free = start + len(label) + 1
    text = Text(" " * margin + "└", "dim", no_wrap=True)
    for column, character in enumerate(line):
        text.append("×" if column in skipped else character, "red" if column in skipped else "dim")
    return text.append("\n" + "".join(under).rstrip(), "dim")
