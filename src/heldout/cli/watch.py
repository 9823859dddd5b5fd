"""`heldout watch RUN`: draw the curve of a training run while it grows.

The curve file is followed from the byte after the last whole line, so a line that is being written,
or was torn, is read again once it is whole. Curves are drawn in braille characters of 2 x 4 dots;
the band of the interval shares no character with a line, whose dots would drown in it.
"""

from __future__ import annotations

import difflib
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.text import Text

from heldout._format import printable
from heldout.cli._load import find_curve
from heldout.cli._tables import as_line, make_console, render_line, render_table
from heldout.cli.curve import (
    VERDICT_STYLES,
    CurveRun,
    build_curve_table,
    check_metric,
    describe_status,
    format_point,
    group_by_label,
    open_curve,
    shorten_verdict,
)
from heldout.errors import DamagedJournal, HeldoutError, InvalidInput
from heldout.store.jsonl import has_writer, open_to_read, read_header
from heldout.store.run_dir import RunDir, find_run
from heldout.training.curve import CURVE, CURVE_NAME, CurvePoint, current_points, decode_point

if TYPE_CHECKING:
    from heldout.training.verdicts import CurveMonitor

RESIZE_SECONDS = 0.2
"""Seconds between checks of the terminal's size."""
CURVE_ROWS = 8
"""Rows of the curve for which the table below it is made smaller."""
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


@click.command("watch")
@click.argument("run")
@click.option("--metric", default="reward", show_default=True, help="Or pass_rate, or a metric.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between reads of the curve file.",
)
@click.option("--once", is_flag=True, help="Draw the curve as it is and exit.")
def command(run: str, metric: str, interval: float, once: bool) -> None:
    """Draw the curve of RUN while it grows: a run directory, or a name under outputs/evals.

    Waits for a run that does not exist yet, unless --once is given. Ctrl-C ends it. In a pipe it
    prints one line per point, and ends when the training run does.
    """
    watch = _watch_terminal if sys.stdout.isatty() else _watch_pipe
    with suppress(KeyboardInterrupt):
        watch(run, metric, interval, once=once)


# --- Following ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Follower:
    """Reads a curve as it grows.

    Attributes:
        path: curve.jsonl.
        points: The points read so far, without the outcomes of samples.
        damaged: Numbers of lines that cannot be read.
        monitors: Verdicts on the rewards, by label.
    """

    path: Path
    points: list[CurvePoint] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    monitors: dict[str, CurveMonitor] = field(default_factory=dict)
    _offset: int = 0
    _line: int = 0
    _file: tuple[int, int] | None = None

    def poll(self) -> list[CurvePoint]:
        """Read what was appended since the last call.

        Returns:
            The new points.
        """
        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity != self._file or status.st_size < self._offset:
                # Another file by that name, a repaired one for example: read it from its start.
                self.points, self.damaged, self.monitors = [], [], {}
                self._offset, self._line, self._file = 0, 0, identity
            if self._line == 0:
                self._offset = read_header(file, self.path, CURVE)
                if not self._offset:
                    return []
                self._line = 1
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        new = []
        for line in whole.split(b"\n") if newline else []:
            self._line += 1
            try:
                point = decode_point(self.path, self._line, line)
            except DamagedJournal:
                self.damaged.append(self._line)
                continue
            self._judge(point)
            new.append(msgspec.structs.replace(point, outcomes=()))
        self.points.extend(new)
        return new

    def _judge(self, point: CurvePoint) -> None:
        from heldout.training.verdicts import CurveMonitor, terms_of

        monitor = self.monitors.setdefault(point.label, CurveMonitor())
        if point.verdict is not None and (terms := terms_of([point])) != monitor.terms:
            monitor = self.monitors[point.label] = monitor.with_terms(terms)
        with suppress(InvalidInput):  # rewards without a verdict; `heldout show` says why
            monitor.add(point)

    def read_run(self, points: list[CurvePoint]) -> CurveRun:
        """Return the run with these points; its run.json is None while it cannot be read."""
        directory = self.path.parent
        try:
            info = RunDir(directory).read_info()
        except HeldoutError:
            info = None
        return CurveRun(directory, points, 0, info, has_writer(self.path))

    def describe_damage(self) -> str:
        """Return which lines cannot be read."""
        numbers = ", ".join(map(str, self.damaged[:5])) + ", …" * (len(self.damaged) > 5)
        lines = "line" if len(self.damaged) == 1 else "lines"
        return f"{lines} {numbers} of {self.path.name} cannot be read"


def _find_or_wait(run: str, *, once: bool) -> Path | None:
    """Return the directory of the curve, or None where there may be one later."""
    path = find_curve(run)
    if path is None:
        try:
            waiting = not RunDir(find_run(run)).journal.exists()
        except HeldoutError:
            waiting = True
        if once or not waiting:
            open_curve(run)  # raises: it says what is wrong
    return path


def _describe_waiting(run: str) -> str:
    """Say what is waited for, and which run may have been meant if the name is misspelled."""
    path = Path(run)
    directories = [path.parent, *([Path("outputs/evals")] if len(path.parts) == 1 else [])]
    names = [entry.name for folder in directories if folder.is_dir() for entry in folder.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.6)
    curves = [path.with_name(name) for name in near if find_curve(path.with_name(name))]
    hint = f" (did you mean {curves[0]}?)" if curves else ""
    return f"Waiting for {run}/{CURVE_NAME}; Ctrl-C ends{hint}"


# --- Pipe ---------------------------------------------------------------------------------------


def _watch_pipe(run: str, metric: str, interval: float, *, once: bool) -> None:
    path = _find_or_wait(run, once=once)
    if path is None:
        click.echo(printable(_describe_waiting(run)), err=True)
    while path is None:
        time.sleep(interval)
        path = _find_or_wait(run, once=once)
    follower = Follower(path / CURVE_NAME)
    new = current_points(follower.poll())
    damaged = 0
    pending: set[tuple[str, str, int]] = set()
    while True:
        check_metric(follower.points, metric)
        labelled = len(group_by_label(follower.points)) > 1
        for point in new:
            if not (point.pending and point.key in pending):  # the hash of its weights came later
                click.echo(format_point(point, metric, labelled=labelled))
            if point.pending:
                pending.add(point.key)
        if len(follower.damaged) > damaged:
            damaged = len(follower.damaged)
            click.echo(printable(follower.describe_damage()), err=True)
        state = follower.read_run([])
        finished = state.info is not None and state.info.status == "complete" and not state.live
        if once or (finished and not new):
            return
        if not finished:
            time.sleep(interval)
        new = follower.poll()  # once more after the end: the last point comes before it


# --- Terminal -----------------------------------------------------------------------------------


def _watch_terminal(run: str, metric: str, interval: float, *, once: bool) -> None:
    from rich.live import Live

    console = make_console()
    follower: Follower | None = None
    if once:
        follower = Follower(open_curve(run).path / CURVE_NAME)
        follower.poll()
        check_metric(follower.points, metric)
        console.print(draw_screen(follower, metric, console))
        return
    screen: RenderableType = as_line(_describe_waiting(run), "yellow")
    try:
        # The alternate screen is redrawn as a whole when the terminal changes its size.
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                path = _find_or_wait(run, once=False)
                if follower is None and path is not None:
                    follower = Follower(path / CURVE_NAME)
                if follower is not None:
                    follower.poll()
                    check_metric(follower.points, metric)
                    screen = draw_screen(follower, metric, console)
                live.update(screen, refresh=True)
                _wait_for_resize(interval, console)
    except KeyboardInterrupt:
        # The last picture stays when the alternate screen is gone.
        if follower is not None and follower.points:
            console.print(draw_screen(follower, metric, console))


def _wait_for_resize(seconds: float, console: Console) -> None:
    size, end = console.size, time.monotonic() + seconds
    while console.size == size and (left := end - time.monotonic()) > 0:
        time.sleep(min(RESIZE_SECONDS, left))


def draw_screen(follower: Follower, metric: str, console: Console) -> RenderableType:
    """Draw all that fits the terminal: title, status, verdicts, the curve and its last points.

    Args:
        follower: What was read of the curve.
        metric: What to draw: "reward", "pass_rate" or the name of a metric.
        console: The terminal.

    Returns:
        The screen.
    """
    points = current_points(follower.points)
    groups = group_by_label(points)
    width = console.width
    head = [_build_title(list(groups), metric)]
    head.append(render_line(describe_status(follower.read_run(points))))
    head += _build_verdicts(follower, groups, metric, width)
    if follower.damaged:
        head.append(as_line(follower.describe_damage(), "red"))
    room = console.height - 1 - _count_rows(head, console)
    foot: list[RenderableType] = []
    for rows in (6, 3, 1):
        shown = build_curve_table(points[-rows:], width, metric=metric, one_line=True)
        table = render_table(shown.table)
        table.show_edge = False
        foot = [Text(""), table]
        if room - _count_rows(foot, console) >= CURVE_ROWS:
            break
    else:
        foot = []
    series = [_make_series(group, metric) for group in groups.values()]
    drawing = draw_curves(series, width, room - _count_rows(foot, console))
    return Group(*head, drawing, *foot)


def _count_rows(parts: Sequence[RenderableType], console: Console) -> int:
    return sum(len(console.render_lines(part)) for part in parts)


def _build_title(labels: list[str], metric: str) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    for i, (label, colour) in enumerate(zip(labels, cycle(COLOURS), strict=False)):
        title.append(", " if i else "")
        title.append_text(as_line(label, f"bold {colour}" if len(labels) > 1 else "bold"))
    return title.append_text(as_line(f"  {metric}, mean and 95% interval", "dim"))


def _build_verdicts(
    follower: Follower, groups: Mapping[str, Sequence[CurvePoint]], metric: str, width: int
) -> list[Text]:
    """Return one line per eval that has a verdict. It is on the reward, whatever is drawn."""
    lines = []
    for label, points in groups.items():
        monitor = follower.monitors[label]
        with suppress(InvalidInput):
            monitor.update(points)
        if monitor.latest is None:
            continue
        line = as_line(f"{label}: " * (len(groups) > 1) + "reward: " * (metric != "reward"))
        text = shorten_verdict(monitor.latest, width - line.cell_len)
        line.append_text(as_line(text, VERDICT_STYLES[monitor.latest.kind]))
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    return lines


def _make_series(points: Sequence[CurvePoint], metric: str) -> Series:
    from heldout.training.curve import is_fewer, most_asked

    dots, skipped, most = [], [], most_asked(points)
    for point in points:
        value, bounds = point.value_and_interval(metric)
        if value is not None:
            dots.append(Dot(point.step, value, bounds, is_fewer(point, most)))
        elif not point.has_result:
            skipped.append(point.step)
    return Series(dots, skipped)


# --- Braille ------------------------------------------------------------------------------------


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
