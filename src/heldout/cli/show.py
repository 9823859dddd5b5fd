"""`heldout show RUN`: the report of a run, finished or not, and what failed in it."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from heldout.cli.curves import CurveRun


@click.command("show")
@click.argument("run")
@click.option("--failures", type=click.IntRange(1), metavar="N", help="N items that did not pass.")
@click.option("--repair", is_flag=True, help="Move damaged journal lines aside first.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: a summary, or a line a failure or point."
)
@click.option("--step", type=click.IntRange(0), metavar="N", help="Of a curve: the eval at step N.")
@click.option("--outcomes", is_flag=True, help="With --json, of a curve: every item's reward, too.")
def command(
    run: str, failures: int | None, repair: bool, as_json: bool, step: int | None, outcomes: bool
) -> None:
    """Print the report of RUN: a run directory, or a name under outputs/evals.

    Of a run that was evaluated during training, that is its curve, a line a point; --step prints
    the whole report of one.
    """
    from heldout.cli.curves import find_curve
    from heldout.errors import InvalidInput
    from heldout.store.rundir import find_run

    curve = find_curve(run)
    if curve is None:
        path = find_run(run)
        if step is not None or outcomes:
            asked = "--outcomes" if step is None else "--step"
            raise InvalidInput(f"{path} has no curve.jsonl, so {asked} says nothing of it")
        _show_run(path, failures, repair=repair, as_json=as_json)
    elif step is not None and not outcomes:
        _show_run(_directory_of(curve, step), failures, repair=repair, as_json=as_json)
    else:
        _show_curve(curve, failures, repair=repair, as_json=as_json, outcomes=outcomes, step=step)


def _show_run(path: Path, failures: int | None, *, repair: bool, as_json: bool) -> None:
    from heldout.cli.render import (
        print_failures,
        print_json,
        print_report,
        result_as_dict,
    )
    from heldout.store.report import EvalReport
    from heldout.store.rundir import RunDir

    if repair:
        _repair(path)
    report = EvalReport.load(path)
    if failures is None:
        reason = RunDir(path).read_info().reason
        if as_json:
            about = {"status": report.status, "reason": reason}
            print_json({**about, "config": report.config, "summary": report.summary})
        else:
            print_report(report, reason)
        return
    threshold = report.pass_threshold
    failed = (r for r in report.results if not r.ok or r.score.reward < threshold)
    shown = list(islice(failed, failures))
    if as_json:
        for result in shown:
            print_json(result_as_dict(result))
    else:
        print_failures(shown, report)


def _repair(path: Path) -> None:
    from heldout.cli.run import repair_run
    from heldout.store.rundir import RunDir, now

    moved = repair_run(path)
    if moved:
        # It lacks results now, so it is not complete any more, and says so.
        run = RunDir(path)
        info = run.read_info()
        info.status, info.finished = "interrupted", now()
        info.reason = f"{moved} damaged journal line{'s' * (moved > 1)} moved aside"
        run.write_info(info)


# --- Curves -------------------------------------------------------------------------------------


def _show_curve(
    path: Path,
    failures: int | None,
    *,
    repair: bool,
    as_json: bool,
    outcomes: bool,
    step: int | None,
) -> None:
    from heldout.cli.curves import point_as_dict, read_curve
    from heldout.cli.render import print_json
    from heldout.errors import InvalidInput

    if repair:
        _repair_curve(path)
    run = read_curve(path)
    if failures is not None:
        raise InvalidInput(f"--failures of which eval? Add --step N: {_steps_of(run)}")
    if outcomes and not as_json:
        raise InvalidInput("--outcomes goes with --json: there are too many for a table")
    if as_json:
        points = [point for point in run.points if step in (None, point.step)]
        if step is not None and not points:
            raise InvalidInput(f"{path} has no eval at step {step}; {_steps_of(run)}")
        for point in points:
            print_json(point_as_dict(point, outcomes=outcomes))
    else:
        _print_curve(run)


def _print_curve(run: CurveRun) -> None:
    from heldout.cli.curves import by_label, curve_table, status_text
    from heldout.cli.render import as_line, make_console

    console = make_console()
    labels = by_label(run.points)
    config = run.info.config if run.info else {}
    for label, points in labels.items():
        title = as_line(label, "bold")
        if isinstance(config.get("every_steps"), int) and label == config.get("label"):
            title.append(as_line(f", every {config['every_steps']} steps", "not bold dim"))
        console.print(title)
        curve_table(points, console.width).print(console)
    if run.left_out:
        count = "1 result" if run.left_out == 1 else f"{run.left_out} results"
        text = f"{count} left out: the training was restarted from before, and went another way."
        console.print(as_line(text, "yellow"))
    console.print(status_text(run))
    console.print(as_line(f"kept in {run.path}", "dim"), soft_wrap=True)


def _repair_curve(path: Path) -> None:
    from heldout.cli.text import printable
    from heldout.midrun.curve import CURVE_NAME, repair_curve

    curve = path / CURVE_NAME
    moved = repair_curve(curve)
    text = f"{curve} has no damaged line."
    if moved:
        which = f"line{'s' * (len(moved) > 1)} {', '.join(map(str, moved))}"
        text = f"Moved damaged {which} of {curve} to {curve.with_suffix('.damaged').name}."
    click.echo(printable(text), err=True)


def _directory_of(path: Path, step: int) -> Path:
    """Where the eval at this step is kept: its latest attempt. The curve has no say in it."""
    from heldout.cli.curves import read_curve
    from heldout.errors import RunDirectoryError
    from heldout.store.rundir import RunDir

    steps = path / "steps"
    attempts = []
    for directory in steps.iterdir() if steps.is_dir() else ():
        name = re.fullmatch(r"([0-9]{1,20})(?:-([0-9]{1,20}))?", directory.name, re.ASCII)
        if name and int(name[1]) == step and RunDir(directory).exists():
            attempts.append((int(name[2] or 0), directory))
    if attempts:
        return max(attempts)[1]
    run = read_curve(path)
    for point in run.points:
        if point.step == step:
            why = f", it was skipped: {point.skipped}" if point.skipped else ""
            raise RunDirectoryError(
                f"there is no {steps}/{step:08d}: of step {step} no conversations were kept{why}"
            )
    raise RunDirectoryError(f"{path} has no eval at step {step}; {_steps_of(run)}")


def _steps_of(run: CurveRun) -> str:
    from heldout.cli.curves import named_steps

    return named_steps(point.step for point in run.points if point.has_result)
