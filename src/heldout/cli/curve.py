"""`heldout curve`: watch, plot, compare and stop the curve of a training run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from heldout._format import interval, printable, samples
from heldout._plotting import format_of
from heldout.cli._braille import COLOURS, Dot, Series, draw_curves
from heldout.cli._curves import (
    VERDICT_STYLES,
    CurveRun,
    check_metric,
    describe_status,
    format_point,
    group_by_label,
    latest_verdicts,
    open_curve,
    point_as_dict,
    read_curve,
    training_state,
)
from heldout.cli._load import find_curve, list_result_steps, read_texts, saved_eval, select_label
from heldout.cli._options import count_option, json_option
from heldout.cli._tables import (
    Block,
    Flip,
    Line,
    Report,
    as_line,
    build_flips,
    make_console,
    name,
    pick,
    print_json,
    print_report,
    render_line,
)
from heldout.cli.show import command as show_command
from heldout.errors import HeldoutError, InvalidInput
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunDir, replace_file
from heldout.store.runs import find_run
from heldout.training.curve import STOP_NAME, CurvePoint, is_fewer, most_asked, request_stop
from heldout.training.flips import Flips
from heldout.training.flips import flips as find_flips
from heldout.training.plot import NamedCurve
from heldout.training.plot import plot as plot_curves
from heldout.training.verdicts import StepVerdict

ANSWER_SETTINGS = ("attention", "dtype", "temperature", "top_p", "max_new")
"""Settings of decoding that can change answers; the others are about speed."""

metric_option = click.option(
    "--metric", default="reward", show_default=True, help="reward, pass_rate, or a metric."
)


@click.group("curve")
def command() -> None:
    """Read the curve of a training run: its evals by step.

    RUN is the run directory of the training run, or its name under outputs/evals.
    """


command.add_command(show_command, "show")


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
            is_run = RunDir(find_run(run)).journal.exists()
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
                print_json(point_as_dict(point), "curve watch")
            else:
                click.echo(format_point(point, labelled=labelled))
        printed |= fresh
        finished = training_state(curve)["state"] == "finished"
        if once or (finished and not fresh):
            if as_json:
                print_json({"training": training_state(curve)}, "curve watch-end")
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
    run: CurveRun, metric: str, console: Console, verdicts: Mapping[str, StepVerdict]
) -> RenderableType:
    """Draw all that fits the terminal: title, status, verdicts, the curve and its last points."""
    check_metric(run.points, metric)
    groups = group_by_label(run.points)
    width = console.width
    head = [_build_title(list(groups), metric), render_line(describe_status(run))]
    for label, verdict in verdicts.items():
        # It is on the reward, whatever is drawn.
        line = as_line(f"{label}: " * (len(groups) > 1) + "reward: " * (metric != "reward"))
        text = verdict.sentence()
        if line.cell_len + len(text) > width:
            text = verdict.short()
        line.append_text(as_line(text, VERDICT_STYLES[verdict.kind]))
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
    listed = _list_flips(curve.path, change, None if as_json else limit)
    if as_json:
        bounds = changes.interval
        print_json(
            {
                "label": after.label,
                "from": before.step,
                "to": after.step,
                "pass_threshold": pass_threshold,
                **pick(changes, "compared", "stayed_passing", "stayed_failing", "unchanged"),
                **pick(changes, "errored", "not_in_both", "difference", "stderr", "p_value"),
                "ci_low": bounds.low if bounds else None,
                "ci_high": bounds.high if bounds else None,
                "gained": [f.as_dict("before", "after") for f in listed if f.kind == "gained"],
                "lost": [f.as_dict("before", "after") for f in listed if f.kind == "lost"],
            },
            "curve flips",
        )
        return
    blocks: list[Block] = [Line(name(after.label), f", step {before.step} to {after.step}")]
    blocks += build_flips(listed, f"at {before.step}", f"at {after.step}")
    total = len(changes.gained) + len(changes.lost)
    if len(listed) < total:
        text = f"{len(listed)} of {total} are listed; --limit N lists more, --json all."
        blocks.append(Line(text, style="dim"))
    print_report(Report([*blocks, *describe_flips(change)]))


class StepChange(NamedTuple):
    """What changed between two points of a curve."""

    before: CurvePoint
    after: CurvePoint
    flips: Flips
    pass_threshold: float | None
    """The reward that passes; None where rewards are returns, which do not pass or fail."""


def compare_steps(
    results: Sequence[CurvePoint], first: int | None, last: int | None, pass_threshold: float | None
) -> StepChange:
    """Compare two steps of one label; by default the first with the last."""
    before, after = _point_at(results, first, 0), _point_at(results, last, -1)
    rates = before.number("pass_rate"), after.number("pass_rate")
    has_passes = not (before.outcomes and after.outcomes) or rates != (None, None)
    threshold = pass_threshold if has_passes else None
    return StepChange(before, after, find_flips(before, after, threshold), threshold)


def _point_at(results: Sequence[CurvePoint], step: int | None, default: int) -> CurvePoint:
    points = [point for point in results if step in (None, point.step)]
    if not points:
        steps = list_result_steps(results)
        raise InvalidInput(f"no result at step {step}; {steps}" if step is not None else steps)
    return points[default if step is None else 0]


def _list_flips(path: Path, change: StepChange, limit: int | None) -> list[Flip]:
    """List the largest changes, with their texts where the conversations were saved."""
    chosen = []
    for kind, changes in (("gained", change.flips.gained), ("lost", change.flips.lost)):
        ordered = sorted(changes, key=lambda change: -abs(change.after - change.before))
        chosen += [(kind, flip) for flip in (changes if limit is None else ordered[:limit])]
    ids = {flip.id for _, flip in chosen}
    directories = [saved_eval(path, point) for point in (change.before, change.after)]
    old, new = (read_texts(EvalReport.load(d), ids) if d else {} for d in directories)
    return [
        Flip(kind, flip.id, (flip.before, flip.after), (old.get(flip.id), new.get(flip.id)))
        for kind, flip in chosen
    ]


def describe_flips(change: StepChange) -> list[Line]:
    """Say how many samples changed, how far the mean did, and what limits that."""
    before, after, flips, pass_threshold = change
    counts = f"{len(flips.gained)} gained, {len(flips.lost)} lost, "
    if pass_threshold is None:
        text = f"{samples(flips.compared)} compared by reward: {counts}{flips.unchanged} unchanged"
    else:
        text = (
            f"{samples(flips.compared)} compared (passed: ≥ {pass_threshold:g}): {counts}"
            f"{flips.stayed_passing} still pass, {flips.stayed_failing} still fail"
        )
    lines = [Line(text)]
    if flips.difference is not None:
        bounds = flips.interval
        around = interval(bounds.low, bounds.high) if bounds else "no interval, all changed alike"
        lines.append(
            Line(f"mean reward changed by {flips.difference:+.3f} (95%, paired: {around})")
        )
    old, new = before.decoding or {}, after.decoding or {}
    changed = [setting for setting in ANSWER_SETTINGS if old.get(setting) != new.get(setting)]
    warnings = {
        f"run at only one of the steps: {samples(flips.not_in_both)}": flips.not_in_both,
        f"not compared, without a score at one of the steps: {samples(flips.errored)}": (
            flips.errored
        ),
        "the curve has no scores of samples that both steps share": not flips.compared,
        f"not the policy alone changed, but its decoding, too: {', '.join(changed)}": changed,
    }
    return [*lines, *(Line(text, style="yellow") for text, holds in warnings.items() if holds)]


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
        check_metric(points, metric)
        groups = group_by_label(points)
        for label, group in groups.items():
            parts = [run] if len(runs) > 1 else []
            parts += [label] if len(groups) > 1 or not parts else []
            curves.append(NamedCurve(printable(" ".join(parts).replace("\n", "\\n")), group))
    with_passes = pass_rate and metric != "pass_rate"
    replace_file(output, plot_curves(curves, metric, pass_rate=with_passes, format=format))
    if as_json:
        print_json({"path": str(output), "format": format, "runs": list(runs)}, "curve plot")
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
        print_json({"path": stop_file, "reason": reason, "alive": is_alive}, "curve stop")
    else:
        click.echo(printable(f"Asked the training run that writes {path} to stop."))
    if not is_alive:  # not refused: some file systems have no locks
        text = (
            "No process seems to be writing it now. If none is, the request has no effect: a "
            f"training run that starts later removes {path / STOP_NAME}."
        )
        click.echo(printable(text), err=True)
