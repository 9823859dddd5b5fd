"""`heldout curve`: watch, plot, compare and stop the curve of a training run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from heldout._core.format import printable
from heldout._core.plotting import format_of
from heldout.cli._braille import COLOURS, Dot, Series, draw_curves
from heldout.cli._options import count_option, json_option
from heldout.cli._tables import (
    as_line,
    decide,
    make_console,
    pick,
    print_json,
    print_report,
    render_line,
)
from heldout.cli.follow import command as follow_command
from heldout.cli.show import command as show_command
from heldout.errors import HeldoutError, InvalidInput
from heldout.reporting.blocks import Block, Line, Report, name
from heldout.reporting.curves import (
    VERDICT_STYLES,
    CurveRun,
    check_metric,
    conclude_point,
    describe_status,
    format_point,
    group_by_label,
    latest_verdicts,
    open_curve,
    point_as_dict,
    read_curve,
    training_state,
)
from heldout.reporting.flips import (
    build_flips,
    compare_steps,
    describe_flips,
    describe_missing,
    list_step_flips,
)
from heldout.reporting.names import find_curve, select_label
from heldout.store.jsonl import replace_file
from heldout.store.run_dir import RunDir
from heldout.store.runs import find_run
from heldout.training.curve.plot import NamedCurve
from heldout.training.curve.plot import plot as plot_curves
from heldout.training.curve.points import STOP_NAME, CurvePoint, is_fewer, most_asked, request_stop
from heldout.training.curve.stored_verdicts import answers, short_verdict

metric_option = click.option(
    "--metric", default="reward", show_default=True, help="reward, pass_rate, or a metric."
)


@click.group("curve")
def command() -> None:
    """Read the curve of a training run: its evals by step.

    RUN is the run directory of the training run, or its name under outputs/evals.
    """


command.add_command(show_command, "show")
command.add_command(follow_command, "follow")


# --- Watch --------------------------------------------------------------------------------------


@command.command("watch")
@click.argument("run")
@metric_option
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between reads of the curve file.",
)
@click.option("--once", is_flag=True, help="Draw the curve as it is and exit.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Stream JSON: one line per point, then one with the state of the training run.",
)
def watch(run: str, metric: str, interval: float, once: bool, as_json: bool) -> None:
    """Draw the curve of RUN while it grows.

    Waits for a run that does not exist yet, unless --once is given. Ctrl-C ends it. In a pipe it
    prints one line per point, and ends when the training run does.
    """
    if "://" in run and not once:
        raise InvalidInput(
            f"{run} is read by way of a copy, which does not grow; --once draws it as it is"
        )
    with suppress(KeyboardInterrupt):
        path = _wait_for_curve(run, interval, once=once)
        if sys.stdout.isatty() and not as_json:
            _watch_terminal(path, metric, interval, once=once)
        else:
            _watch_pipe(path, metric, interval, once=once, as_json=as_json)


def _wait_for_curve(run: str, interval: float, *, once: bool) -> Path:
    """Return the directory of a curve, once it exists where that may be later."""
    announced = False
    while (path := find_curve(run)) is None:
        hint = ""
        try:
            is_run = RunDir(find_run(run)).has_journal
        except HeldoutError as problem:
            is_run = False
            if problem.hint is not None:
                hint = f" ({problem.hint})"
        if once or is_run:
            open_curve(run)  # raises: it says what is wrong
        if not announced:
            text = f"Waiting for {run}/curve.jsonl; Ctrl-C ends{hint}"
            click.echo(printable(text), err=True)
        announced = True
        time.sleep(interval)
    return path


def _watch_pipe(path: Path, metric: str, interval: float, *, once: bool, as_json: bool) -> None:
    printed: set[tuple[object, ...]] = set()
    while True:
        curve = read_curve(path)
        check_metric(curve.points, metric)
        labelled = len(group_by_label(curve.points)) > 1
        # An eval in flight is printed once, though the hash of its weights may come later; a result
        # again if its verdict comes later.
        lines = {
            (*point.key, point.pending or point.time, point.verdict is None): point
            for point in curve.points
        }
        fresh = lines.keys() - printed
        for point in (point for line, point in lines.items() if line in fresh):
            if as_json:
                print_json(decide(*conclude_point(point), point_as_dict(point)), "curve watch")
            else:
                click.echo(format_point(point, labelled=labelled))
        printed |= fresh
        finished = training_state(curve)["state"] == "finished"
        if once or (finished and not fresh):
            if as_json:
                training, text = training_state(curve), as_line(describe_status(curve)).plain
                end = decide(training["state"], text, {"training": training})
                print_json(end, "curve watch-end")
            return
        if not finished:  # else once more at once: the last point comes before the end
            time.sleep(interval)


def _watch_terminal(path: Path, metric: str, interval: float, *, once: bool) -> None:
    console = make_console()
    curve = read_curve(path)
    verdicts = latest_verdicts(curve)
    screen = draw_screen(curve, metric, console, verdicts)
    if not once:
        # The alternate screen is redrawn as a whole when the terminal changes its size.
        with (
            suppress(KeyboardInterrupt),
            Live(screen, console=console, screen=True, auto_refresh=False) as live,
        ):
            while True:
                time.sleep(interval)
                previous, curve = curve, read_curve(path)
                if curve.points != previous.points:
                    verdicts = latest_verdicts(curve)
                screen = draw_screen(curve, metric, console, verdicts)
                live.update(screen, refresh=True)
    console.print(screen)  # the last picture stays when the alternate screen is gone


def draw_screen(
    run: CurveRun, metric: str, console: Console, verdicts: Mapping[str, dict[str, Any]]
) -> RenderableType:
    """Draw all that fits the terminal: title, status, verdicts, the curve and its last points."""
    check_metric(run.points, metric)
    groups = group_by_label(run.points)
    width = console.width
    head = [_build_title(list(groups), metric), render_line(describe_status(run))]
    for label, verdict in verdicts.items():
        # It is on the reward, whatever is drawn.
        line = as_line(f"{label}: " * (len(groups) > 1) + "reward: " * (metric != "reward"))
        text = answers(verdict)[0]
        if line.cell_len + len(text) > width:
            text = short_verdict(verdict)
        line.append_text(as_line(text, VERDICT_STYLES.get(str(verdict["kind"]), "")))
        line.no_wrap, line.overflow = True, "ellipsis"
        head.append(line)
    foot = [Text("")]
    for point in run.points[-max(1, min(6, (console.height - 4) // 6)) :]:
        text = format_point(point, labelled=len(groups) > 1)
        foot.append(
            Text(text, "" if point.has_result else "dim", no_wrap=True, overflow="ellipsis")
        )
    rows = sum(len(console.render_lines(part)) for part in (*head, *foot))
    series = [_make_series(group, metric) for group in groups.values()]
    drawing = draw_curves(series, width, console.height - 1 - rows)
    return Group(*head, drawing, *foot)


def _build_title(labels: list[str], metric: str) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    for i, (label, colour) in enumerate(zip(labels, cycle(COLOURS), strict=False)):
        title.append(", " if i else "")
        title.append_text(as_line(label, f"bold {colour}" if len(labels) > 1 else "bold"))
    return title.append_text(as_line(f"  {metric}, mean and 95% interval", "dim"))


def _make_series(points: Sequence[CurvePoint], metric: str) -> Series:
    dots, skipped, most = [], [], most_asked(points)
    for point in points:
        value, bounds = point.value_and_interval(metric)
        if value is not None:
            dots.append(Dot(point.step, value, bounds, is_fewer(point, most)))
        elif not point.has_result:
            skipped.append(point.step)
    return Series(dots, skipped)


# --- Flips --------------------------------------------------------------------------------------


@command.command("flips")
@click.argument("run")
@click.option(
    "--from",
    "first",
    type=int,
    metavar="STEP",
    help="Step to compare from.  [default: the first with a result]",
)
@click.option(
    "--to",
    "last",
    type=int,
    metavar="STEP",
    help="Step to compare with.  [default: the last with a result]",
)
@click.option("--label", help="Which eval, where a curve has several.")
@count_option("-n", "--limit", default=10, help="List N samples gained, and N lost.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line, with all of them.")
def flips(
    run: str, first: int | None, last: int | None, label: str | None, limit: int, as_json: bool
) -> None:
    """Print which samples of RUN pass at one step and fail at another.

    With question, target and both answers, where the conversations were saved. Where rewards are
    returns, which do not pass or fail, print whose reward rose and whose fell.
    """
    curve = open_curve(run)
    results = [point for point in curve.points if point.has_result]
    labels = sorted({point.label for point in results})
    if label is None and len(labels) > 1:
        raise InvalidInput(f"of which eval? Add --label; there are {', '.join(labels)}")
    change = compare_steps(select_label(results, label), first, last, curve.pass_threshold)
    before, after, changes, pass_threshold = change
    listed = list_step_flips(curve.path, change, None if as_json else limit)
    if as_json:
        bounds = changes.interval
        [counts, *_] = describe_flips(change)
        decision = "inconclusive"
        if bounds is not None and (bounds.low > 0 or bounds.high < 0):
            decision = "higher" if bounds.low > 0 else "lower"
        print_json(
            decide(
                decision,
                as_line(counts).plain,
                {
                    "label": after.label,
                    "from": before.step,
                    "to": after.step,
                    "pass_threshold": pass_threshold,
                    **pick(changes, "compared", "stayed_passing", "stayed_failing", "unchanged"),
                    **pick(changes, "both_fail"),
                    **pick(changes, "errored", "not_in_both", "difference", "stderr", "p_value"),
                    "ci_low": bounds.low if bounds else None,
                    "ci_high": bounds.high if bounds else None,
                    "gained": [f.as_dict("before", "after") for f in listed if f.kind == "gained"],
                    "lost": [f.as_dict("before", "after") for f in listed if f.kind == "lost"],
                },
            ),
            "curve flips",
        )
        return
    blocks: list[Block] = [Line(name(after.label), f", step {before.step} to {after.step}")]
    blocks += build_flips(listed, f"at {before.step}", f"at {after.step}", make_console().width)
    total = len(changes.gained) + len(changes.lost)
    if len(listed) < total:
        text = f"{len(listed)} of {total} are listed; --limit N lists more, --json all."
        blocks.append(Line(text, style="dim"))
    missing = describe_missing(curve.path, curve.points, change)
    print_report(Report([*blocks, *describe_flips(change), *missing]))


# --- Plot and stop ------------------------------------------------------------------------------


@command.command("plot")
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="curve.png",
    show_default=True,
    metavar="FILE",
    help="The file to write: .png, .svg or .pdf.",
)
@metric_option
@click.option("--pass-rate", is_flag=True, help="Add a panel with the pass rate.")
@json_option
def plot(runs: tuple[str, ...], output: Path, metric: str, pass_rate: bool, as_json: bool) -> None:
    """Plot the curves of one RUN or several into one picture."""
    format = format_of(output)
    curves = []
    for run in runs:
        points = open_curve(run).points
        if not any(point.has_result for point in points):
            raise InvalidInput(f"{run} has no result yet: there is nothing to plot")
        check_metric(points, metric, run)
        groups = group_by_label(points)
        for label, group in groups.items():
            parts = [run] if len(runs) > 1 else []
            parts += [label] if len(groups) > 1 or not parts else []
            curves.append(NamedCurve(printable(" ".join(parts).replace("\n", "\\n")), group))
    with_passes = pass_rate and metric != "pass_rate"
    replace_file(output, plot_curves(curves, metric, pass_rate=with_passes, format=format))
    if as_json:
        plain = {"path": str(output), "format": format, "runs": list(runs)}
        print_json(decide("written", f"Written to {output}.", plain), "curve plot")
    else:
        click.echo(printable(f"Wrote {output}."))


@command.command("stop")
@click.argument("run")
@click.option(
    "--reason",
    default="heldout curve stop",
    metavar="TEXT",
    help="Passed to the training run, and shown by `curve show`.",
)
@json_option
def stop(run: str, reason: str, as_json: bool) -> None:
    """Ask the training run that writes RUN to stop.

    It stops at its next check, after an eval or a step. Remove RUN/stop to withdraw the request.
    """
    curve = open_curve(run)
    path, state = curve.path, training_state(curve)["state"]
    if state == "finished":
        raise InvalidInput(f"{path} has finished: there is no training run to stop")
    is_alive = state == "alive"
    request_stop(path, reason)
    if as_json:
        stop_file = str(path / STOP_NAME)
        who = "a process writes the run now" if is_alive else "no process writes the run now"
        plain = {"path": stop_file, "reason": reason, "alive": is_alive}
        print_json(decide("requested", f"Asked {run} to stop; {who}.", plain), "curve stop")
    else:
        click.echo(printable(f"Asked the training run that writes {path} to stop."))
    if not is_alive:  # not refused: some file systems have no locks
        text = (
            "No process seems to be writing it now. If none is, the request has no effect: a "
            f"training run that starts later removes {path / STOP_NAME}."
        )
        click.echo(printable(text), err=True)
