"""Curves drawn with characters: a line of braille dots, its interval shaded, a mark per point."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from rich.text import Text

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
BITS = ((0x40, 0x80), (0x04, 0x20), (0x02, 0x10), (0x01, 0x08))
"""The bit of each dot in a braille character of 2 x 4, by row from below and column."""
BRAILLE = 0x2800


class Dot(NamedTuple):
    """A point of a curve with its interval; a hollow one is of fewer samples than others."""

    x: float
    y: float
    bounds: tuple[float, float] | None = None
    hollow: bool = False


class Series(NamedTuple):
    """One curve: its points by x, and steps without a value."""

    dots: Sequence[Dot]
    skipped: Sequence[float] = ()


class _Axis(NamedTuple):
    """Maps values to dots: `low` to the first, `high` to the last."""

    low: float
    high: float
    size: int

    def locate(self, value: float) -> int:
        return round((value - self.low) / (self.high - self.low) * (self.size - 1))

    def value(self, dot: int) -> float:
        return self.low + dot / (self.size - 1) * (self.high - self.low)


Cells = dict[tuple[int, int], tuple[str, str]]
"""Characters with their styles by row, from below, and column."""


def draw_curves(series: Sequence[Series], width: int, height: int) -> Text:
    """Draw curves with their axes into so many columns and rows."""
    xs = [x for curve in series for x in (*(dot.x for dot in curve.dots), *curve.skipped)]
    ys = [y for curve in series for dot in curve.dots for y in (dot.y, *(dot.bounds or ()))]
    if not ys:
        return Text("nothing to draw", "dim")
    if width < 30 or height < 5:
        return Text("no room to draw", "dim")
    rows = height - 2
    up = _Axis(*_widen(min(ys), max(ys), 0.05), rows * 4)
    labels = {row: f"{up.value(row * 4 + 2):.3g}" for row in (0, rows // 2, rows - 1)}
    margin = max(map(len, labels.values())) + 1
    columns = width - margin - 1
    across = _Axis(*_widen(min(xs), max(xs), 0.5), columns * 2)
    cells: Cells = {}
    for colour, curve in zip(cycle(COLOURS), series, strict=False):
        if curve.dots:
            _draw_line(cells, curve.dots, across, up, colour)
    for colour, curve in zip(cycle(COLOURS), series, strict=False):
        crowded = len(curve.dots) > columns / 3
        for dot in curve.dots:
            if dot.hollow or not crowded:
                cell = (up.locate(dot.y) // 4, across.locate(dot.x) // 2)
                cells[cell] = ("○" if dot.hollow else "●", colour)
    text = Text(no_wrap=True)
    for row in reversed(range(rows)):
        label = labels.get(row, "")
        text.append(f"{label:>{margin - 1}} {'┤' if label else '│'}", "dim")
        for column in range(columns):
            text.append(*cells.get((row, column), (" ", "")))
        text.append("\n")
    skipped = {across.locate(x) // 2 for curve in series for x in curve.skipped}
    text.append(" " * margin + "└", "dim")
    for column in range(columns):
        text.append(*(("×", "red") if column in skipped else ("─", "dim")))
    first, last = f"{min(xs):g}", f"{max(xs):g}"
    return text.append(f"\n{'':{margin + 1}}{first}{last:>{columns - len(first)}}", "dim")


def _draw_line(cells: Cells, dots: Sequence[Dot], across: _Axis, up: _Axis, colour: str) -> None:
    """Join the points of a curve, over the shade of its interval."""
    xs = [across.locate(dot.x) for dot in dots]
    values = [(dot.y, *(dot.bounds or (dot.y, dot.y))) for dot in dots]
    track = range(xs[0], xs[-1] + 1)
    line, low, high = (
        np.rint(np.interp(track, xs, [*map(up.locate, part)])).astype(int).tolist()
        for part in zip(*values, strict=True)
    )
    for i, x in enumerate(track):
        for row in range(low[i] // 4, high[i] // 4 + 1):
            cells.setdefault((row, x // 2), ("░", f"dim {colour}"))
    for i, x in enumerate(track):
        bottom, top = sorted((line[max(0, i - 1)], line[i]))
        for y in range(bottom, top + 1):
            character, style = cells.get((y // 4, x // 2), ("", ""))
            bits = ord(character) if style == colour else BRAILLE
            cells[y // 4, x // 2] = (chr(bits | BITS[y % 4][x % 2]), colour)


def _widen(low: float, high: float, least: float) -> tuple[float, float]:
    # Values that differ by rounding alone are one value.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        least = max(least, abs(low) * 1e-6)
        return low - least, high + least
    return low, high
