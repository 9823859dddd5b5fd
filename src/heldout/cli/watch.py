"""`heldout watch RUN`: the curve of a training, drawn as it grows.

Follows curve.jsonl from the byte after the last whole line it has read, so a line that is being
written, or was torn, is read again once it is whole.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from heldout.cli.braille import Series
    from heldout.cli.curves import CurveRun
    from heldout.training.curve import CurvePoint
    from heldout.training.verdicts import CurveMonitor

TICK = 0.2
"""Seconds between looks at the size of the terminal."""
ROWS = 6
"""Points in the table below the curve."""
LEAST_ROWS = 8
"""Rows of the curve for which the table is made smaller."""


@click.command("watch")
@click.argument("run")
@click.option("--metric", default="reward", show_default=True, help="Or pass_rate, or a metric.")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between looks at the file.",
)
@click.option("--once", is_flag=True, help="Show what is there, and end.")
def command(run: str, metric: str, interval: float, once: bool) -> None:
    """Draw the curve of RUN while it grows: a run directory, or a name under outputs/evals.

    A run that is not there yet is waited for, unless --once is given. Ctrl-C ends it. In a pipe it
    prints a line a point, and ends when the training has.
    """
    watch = _watch_terminal if sys.stdout.isatty() else _watch_pipe
    try:
        watch(run, metric, interval, once=once)
    except KeyboardInterrupt:
        pass  # how one stops watching


# --- Following ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Follower:
    """What has been read of a curve so far. Of items' outcomes only the rewards are kept."""

    path: Path
    points: list[CurvePoint] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    """Lines that cannot be read: the others still can."""
    monitors: dict[str, CurveMonitor] = field(default_factory=dict)
    """By label."""
    _offset: int = 0
    _line: int = 0
    _file: tuple[int, int] | None = None

    def poll(self) -> list[CurvePoint]:
        """Points that have come since the last time."""
        from heldout.store.jsonl import open_to_read, read_header
        from heldout.training.curve import CURVE

        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            return []
        with file:
            status = os.fstat(file.fileno())
            which = (status.st_dev, status.st_ino)
            if which != self._file or status.st_size < self._offset:
                # Another file by that name (a repaired one, say): read it from its start.
                self.points, self.damaged, self.monitors = [], [], {}
                self._offset, self._line, self._file = 0, 0, which
            if self._line == 0:
                self._offset = read_header(file, self.path, CURVE)
                self._line = int(self._offset > 0)
                if not self._line:
                    return []
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return self._take(whole.split(b"\n") if newline else [])

    def _take(self, lines: list[bytes]) -> list[CurvePoint]:
        import msgspec

        from heldout.errors import DamagedJournal
        from heldout.training.curve import decode_point

        fresh = []
        for line in lines:
            self._line += 1
            try:
                point = decode_point(self.path, self._line, line)
            except DamagedJournal:
                self.damaged.append(self._line)
                continue
            self._note(point)
            fresh.append(msgspec.structs.replace(point, outcomes=()))
        self.points.extend(fresh)
        return fresh

    def _note(self, point: CurvePoint) -> None:
        from heldout.errors import InvalidInput
        from heldout.training.verdicts import CurveMonitor, terms_of

        monitor = self.monitors.setdefault(point.label, CurveMonitor())
        if point.verdict is not None and (terms := terms_of([point])) != monitor.terms:
            monitor = self.monitors[point.label] = monitor.with_terms(terms)
        with suppress(InvalidInput):  # rewards that cannot be judged; `heldout show` says why
            monitor.add(point)


def _place_of(run: str, *, once: bool) -> Path | None:
    """Where the curve is; None while there is none. Raises where there will be none."""
    from heldout.cli.curves import find_curve, open_curve
    from heldout.errors import HeldoutError
    from heldout.store.run_dir import RunDir, find_run

    path = find_curve(run)
    if path is None:
        try:
            existing = find_run(run)
            waiting = not RunDir(existing).journal.exists()
        except HeldoutError:
            waiting = True
        if once or not waiting:
            open_curve(run)
    return path


def _waiting_for(run: str) -> str:
    """Nobody can tell a run that is to come from one whose name is misspelled: so say both."""
    import difflib

    from heldout.cli.curves import find_curve

    given = Path(run)
    homes = [given.parent, *([Path("outputs/evals")] if len(given.parts) == 1 else [])]
    try:
        names = [place.name for home in homes if home.is_dir() for place in home.iterdir()]
    except OSError:
        names = []
    near = difflib.get_close_matches(given.name, names, n=3, cutoff=0.6)
    there = [str(given.with_name(name)) for name in near if find_curve(given.with_name(name))]
    hint = f" (did you mean {there[0]}? That one is there)" if there else ""
    return f"Waiting for {run}/curve.jsonl; Ctrl-C ends{hint}"


def _damage(follower: Follower) -> str:
    count = len(follower.damaged)
    if not count:
        return ""
    lines = ", ".join(map(str, follower.damaged[:5])) + (", …" if count > 5 else "")
    return f"line{'s' * (count > 1)} {lines} of {follower.path.name} cannot be read"


def _is_finished(follower: Follower) -> bool:
    run = _as_run(follower, [])
    return run.info is not None and run.info.status == "complete" and not run.live


# --- In a pipe ----------------------------------------------------------------------------------


def _watch_pipe(run: str, metric: str, interval: float, *, once: bool) -> None:
    from heldout.cli.curves import by_label, check_metric, point_line
    from heldout.cli.text import printable
    from heldout.training.curve import current_points

    path = _place_of(run, once=once)
    if path is None:
        click.echo(printable(_waiting_for(run)), err=True)
    while path is None:
        time.sleep(interval)
        path = _place_of(run, once=once)
    follower = Follower(path / "curve.jsonl")
    # What was there before is the curve as it stands; what comes is told as it comes.
    fresh = current_points(follower.poll())
    told_of_damage = 0
    pending: set[tuple[str, str, int]] = set()
    while True:
        check_metric(follower.points, metric)
        labelled = len(by_label(follower.points)) > 1
        for point in fresh:
            if not (point.pending and point.key in pending):  # its hash is a line of its own
                click.echo(point_line(point, metric, labelled=labelled).plain)
            if point.pending:
                pending.add(point.key)
        if len(follower.damaged) > told_of_damage:
            told_of_damage = len(follower.damaged)
            click.echo(printable(_damage(follower)), err=True)
        finished = _is_finished(follower)
        if once or (finished and not fresh):
            return
        if not finished:
            time.sleep(interval)
        fresh = follower.poll()  # once more after the end: the last point comes before it


# --- On a terminal ------------------------------------------------------------------------------


def _watch_terminal(run: str, metric: str, interval: float, *, once: bool) -> None:
    from rich.live import Live

    from heldout.cli.curves import check_metric
    from heldout.cli.render import as_line, make_console

    console = make_console()
    follower: Follower | None = None
    frame: RenderableType = as_line(_waiting_for(run), "yellow")

    def look() -> RenderableType:
        nonlocal follower
        path = _place_of(run, once=once)
        if follower is None and path is not None:
            follower = Follower(path / "curve.jsonl")
        if follower is None:
            return frame
        follower.poll()
        check_metric(follower.points, metric)
        return picture(follower, metric, console)

    if once:
        console.print(look())
        return
    try:
        # On a screen of its own, which is redrawn as a whole when the terminal changes its size.
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(look(), refresh=True)
                _wait(interval, console)
    except KeyboardInterrupt:
        # The last picture stays when that screen is gone.
        if follower is not None and follower.points:
            console.print(picture(follower, metric, console))


def _wait(seconds: float, console: Console) -> None:
    """Until the next look at the file, or until the terminal has another size."""
    size, end = console.size, time.monotonic() + seconds
    while console.size == size and (left := end - time.monotonic()) > 0:
        time.sleep(min(TICK, left))


def picture(follower: Follower, metric: str, console: Console) -> RenderableType:
    """All that fits the terminal: what it is, the curve, the last points."""
    from rich.console import Group
    from rich.text import Text

    from heldout.cli.braille import draw
    from heldout.cli.curves import by_label, curve_table, status_text
    from heldout.cli.render import as_line
    from heldout.training.curve import current_points

    points = current_points(follower.points)
    labels = by_label(points)
    head = [_title(list(labels), metric), status_text(_as_run(follower, points))]
    head += _verdicts(follower, labels, metric, console.width)
    if follower.damaged:
        head.append(as_line(_damage(follower), "red"))
    width, height = console.width, console.height - 1
    foot: list[RenderableType] = []
    room = height - _rows(head, console)
    for count in (ROWS, 3, 1):
        shown = curve_table(points[-count:], width, metric=metric)
        shown.table.show_edge = False
        foot = [Text(""), shown.table, *shown.below]
        # On one line each: a long reason would push the curve out.
        for column in shown.table.columns:
            column.no_wrap, column.overflow = True, "ellipsis"
        for line in shown.below:
            line.no_wrap, line.overflow = True, "ellipsis"
        if room - _rows(foot, console) >= LEAST_ROWS:
            break
    else:
        foot = []
    drawing = draw(
        [_series(of_one, metric) for of_one in labels.values()], width, room - _rows(foot, console)
    )
    return Group(*head, drawing, *foot)


def _rows(parts: Sequence[RenderableType], console: Console) -> int:
    return sum(len(console.render_lines(part)) for part in parts)


def _title(labels: list[str], metric: str) -> Text:
    from rich.text import Text

    from heldout.cli.braille import COLOURS
    from heldout.cli.render import as_line

    title = Text(no_wrap=True, overflow="ellipsis")
    for i, label in enumerate(labels):
        title.append(", " if i else "")
        style = f"bold {COLOURS[i % len(COLOURS)]}" if len(labels) > 1 else "bold"
        title.append_text(as_line(label, style))
    return title.append_text(as_line(f"  {metric}, mean and 95% interval", "dim"))


def _verdicts(
    follower: Follower, labels: Mapping[str, Sequence[CurvePoint]], metric: str, width: int
) -> list[Text]:
    """A line an eval that can be judged: what its curve says now, in few words where many do not
    fit. Verdicts are of the reward, whatever is drawn."""
    from heldout.cli.curves import verdict_line
    from heldout.cli.render import as_line
    from heldout.errors import InvalidInput

    lines = []
    for label, points in labels.items():
        monitor = follower.monitors[label]
        with suppress(InvalidInput):
            monitor.update(points)
        if monitor.latest is None:
            continue
        of = f"{label}: " * (len(labels) > 1) + "reward: " * (metric != "reward")
        line = as_line(of) + verdict_line(monitor.latest, width - as_line(of).cell_len)
        line.no_wrap, line.overflow = True, "ellipsis"
        lines.append(line)
    return lines


def _series(points: Sequence[CurvePoint], metric: str) -> Series:
    from heldout.cli.braille import Dot, Series
    from heldout.training.curve import is_fewer, most_asked

    dots, skipped, most = [], [], most_asked(points)
    for point in points:
        value, bounds = point.value_and_interval(metric)
        if value is not None:
            dots.append(Dot(point.step, value, bounds, is_fewer(point, most)))
        elif not point.has_result:
            skipped.append(point.step)
    return Series(dots, skipped)


def _as_run(follower: Follower, points: list[CurvePoint]) -> CurveRun:
    from heldout.cli.curves import CurveRun
    from heldout.errors import HeldoutError
    from heldout.store.jsonl import has_writer
    from heldout.store.run_dir import RunDir

    directory = follower.path.parent
    try:
        info = RunDir(directory).read_info()
    except HeldoutError:
        info = None  # the curve is what is watched; `heldout show` says what is wrong
    return CurveRun(directory, points, 0, info, has_writer(follower.path))
