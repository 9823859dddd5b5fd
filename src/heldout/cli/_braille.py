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
BITS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""The bit of each dot in a braille character, by row from below and column."""
BRAILLE = 0x2800


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a curve with its interval; a hollow one is of fewer samples than others."""

    x: float
    y: float
    bounds: tuple[float, float] | None = None
    hollow: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its points by x, and steps without a value."""

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
    """Draw curves with their axes into so many columns and rows."""
    xs = [x for curve in series for x in (*(dot.x for dot in curve.dots), *curve.skipped)]
    ys = [y for curve in series for dot in curve.dots for y in (dot.y, *(dot.bounds or ()))]
    if not ys:
        return Text("nothing to draw", "dim")
    if width < 20 or height < 5:
        return Text("no room to draw", "dim")
    rows = height - 2
    low, high = _value_range(min(ys), max(ys))
    labels = {tick: _format_tick(tick, step) for tick, step in make_ticks(low, high, rows // 2)}
    margin = max(map(len, labels.values())) + 1
    columns = width - margin - 1
    canvas = _Canvas(
        _Scale(*_widen(min(xs), max(xs), 0.5), columns * 2), _Scale(low, high, rows * 4), {}
    )
    for colour, curve in zip(cycle(COLOURS), series, strict=False):
        canvas.draw_band(curve.dots, f"dim {colour}")
    for colour, curve in zip(cycle(COLOURS), series, strict=False):
        canvas.draw_line(curve.dots, colour, crowded=len(curve.dots) > columns / 3)
    label_rows = {canvas.up(tick) // 4: label for tick, label in labels.items()}
    text = Text(no_wrap=True)
    for row in reversed(range(rows)):
        label = label_rows.get(row, "")
        text.append(f"{label:>{margin - 1}} {'┤' if label else '│'}", "dim")
        for column in range(columns):
            text.append(*canvas.cells.get((row, column), (" ", "")))
        text.append("\n")
    skipped = {canvas.across(x) // 2 for curve in series for x in curve.skipped}
    return text.append_text(_draw_axis(canvas.across, margin, columns, skipped))


@dataclass(frozen=True, slots=True)
class _Canvas:
    """Characters with their styles by row, from below, and column."""

    across: _Scale
    up: _Scale
    cells: dict[tuple[int, int], tuple[str, str]]

    def set_dots(self, x: int, low: int, high: int, style: str, every: int = 1) -> None:
        """Set dots from low to high. A dot of another style takes the whole character over."""
        for y in range(low + low % every, high + 1, every):
            cell = (y // 4, x // 2)
            character, owner = self.cells.get(cell, (chr(BRAILLE), style))
            bits = ord(character) - BRAILLE if owner == style else 0
            self.cells[cell] = (chr(BRAILLE + (bits | BITS[y % 4][x % 2])), style)

    def draw_band(self, dots: Sequence[Dot], style: str) -> None:
        """Fill the intervals between neighbours; one without a neighbour is a bar."""
        joined: set[Dot] = set()
        for dot, following in pairwise(dots):
            if dot.bounds is None or following.bounds is None:
                continue
            joined |= {dot, following}
            left, right = self.across(dot.x), self.across(following.x)
            for x in range(left + left % 2, right + 1, 2):
                ends = zip(dot.bounds, following.bounds, strict=True)
                low, high = (_between(x, left, right, *end) for end in ends)
                self.set_dots(x, self.up(low), self.up(high), style, every=2)
        for dot in dots:
            if dot.bounds is not None and dot not in joined:
                low, high = dot.bounds
                self.set_dots(self.across(dot.x), self.up(low), self.up(high), style)

    def draw_line(self, dots: Sequence[Dot], style: str, *, crowded: bool) -> None:
        """Join the points, and mark them; of crowded ones only those that are hollow."""
        for dot, following in pairwise(dots):
            left, right = self.across(dot.x), self.across(following.x)
            previous = self.up(dot.y)
            for x in range(left, right + 1):
                y = self.up(_between(x, left, right, dot.y, following.y))
                self.set_dots(x, min(y, previous), max(y, previous), style)
                previous = y
        for dot in dots:
            if dot.hollow or not crowded:
                cell = (self.up(dot.y) // 4, self.across(dot.x) // 2)
                self.cells[cell] = ("○" if dot.hollow else "●", style)


def _between(x: int, left: int, right: int, start: float, end: float) -> float:
    share = (x - left) / (right - left) if right > left else 0.0
    return start * (1 - share) + end * share


def make_ticks(low: float, high: float, most: int) -> Iterator[tuple[float, float]]:
    """Yield round values from low to high, not many more than `most`, with their distance."""
    raw = (high - low) / max(most, 2)
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


def _draw_axis(across: _Scale, margin: int, columns: int, skipped: set[int]) -> Text:
    line, under, free = ["─"] * columns, [" "] * (margin + 1 + columns), 0
    for tick, distance in make_ticks(across.low, across.high, columns // 10):
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
