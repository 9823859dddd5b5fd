"""`heldout import LOG...` and `heldout export RUN`: logs of other packages to runs, and back."""

from __future__ import annotations

from pathlib import Path

import click

from heldout._core.config import MAX_ERROR_RATE
from heldout._core.format import interval, number, printable
from heldout.cli._options import SettingOption, json_option
from heldout.cli._tables import decide, print_json, print_report
from heldout.cli.run import describe_run, print_run
from heldout.errors import EvalFailed, HeldoutError, InvalidInput
from heldout.reporting.blocks import Cell, Column, Report, Table, code
from heldout.reporting.names import find_run_directory
from heldout.reporting.summaries import describe_own_results
from heldout.store.remote import lasting_name
from heldout.store.report import EvalReport
from heldout.store.runs import ROOT


@click.command("import")
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--name", cls=SettingOption, metavar="NAME", help="Name of the run.  [default: the task's]"
)
@click.option("--into", metavar="DIR", default=ROOT, show_default=True, help="Where runs are made.")
@click.option(
    "--score",
    metavar="NAME",
    help="The score that is the reward.  [default: the headline, or the first]",
)
@click.option(
    "--max-error-rate",
    type=click.FloatRange(0, 1),
    default=MAX_ERROR_RATE,
    show_default=True,
    help="Above this share of errored items a run has no mean; 1 accepts any.",
)
@json_option
def import_command(
    logs: tuple[Path, ...],
    name: str | None,
    into: str,
    score: str | None,
    max_error_rate: float,
    as_json: bool,
) -> None:
    """Make runs of logs that other packages have written, one of each LOG.

    LOG is a log of Inspect (.eval or .json), the samples of an lm-eval task (samples_*.jsonl beside
    results_*.json), results of verifiers (results.jsonl or traces.jsonl), or a folder of these.
    A log that was imported before is not imported again.
    """
    from heldout.adapters.logs import find_logs, import_file

    rows: list[list[Cell]] = []
    failures: list[HeldoutError] = []
    files = find_logs(logs)
    for file in files:
        try:
            run = import_file(
                file, name=name, output_dir=into, score=score, max_error_rate=max_error_rate
            )
        except HeldoutError as problem:  # of one log, which is no reason to leave out the others
            if len(files) == 1:
                raise
            failures.append(problem)
            click.echo(f"Error: {printable(str(problem))}", err=True)
            continue
        report = run.report
        if not run.is_new:
            click.echo(f"{printable(str(file.path))} was imported before", err=True)
        if as_json:
            own = report.config["imported"].get("own_results")
            about = {"log": str(file.path), "is_new": run.is_new, "own_results": own}
            print_json({**describe_run(report), **about}, "import")
        elif len(files) == 1:
            print_run(report, as_json=False)
        else:
            rows.append(_make_row(file.path, report))
            for note in describe_own_results(report):
                click.echo(f"{printable(str(file.path))}: {printable(note)}", err=True)
    if rows:
        columns: list[Column | str] = [Column("log", wrap=True), "n", "errors", "mean"]
        columns += [Column("95% interval"), Column("run", wrap=True)]
        print_report(Report([Table(columns, rows)]))
    if failures:
        text = f"{len(failures)} of {len(files)} logs have no mean, or could not be imported"
        could_run = all(isinstance(problem, InvalidInput) for problem in failures)
        raise InvalidInput(text) if could_run else EvalFailed(text)


def _make_row(log: Path, report: EvalReport) -> list[Cell]:
    summary = report.summary
    assert report.path is not None
    return [
        log.name,
        str(summary["n"]),
        str(summary["n_errors"]),
        number(summary["mean"]),
        interval(summary["ci_low"], summary["ci_high"]),
        code(lasting_name(report.path)),
    ]


@click.command("export")
@click.argument("run")
@click.option(
    "--inspect",
    "inspect_log",
    type=click.Path(path_type=Path),
    metavar="FILE.eval",
    required=True,
    help="Write a log that `inspect view` opens.",
)
@json_option
def export_command(run: str, inspect_log: Path, as_json: bool) -> None:
    """Write a run in a format of another package."""
    from heldout.adapters.logs import export_inspect

    export_inspect(find_run_directory(run), inspect_log)
    if as_json:
        text = f"Written to {inspect_log}."
        print_json(decide("written", text, {"path": str(inspect_log)}), "export")
    else:
        click.echo(f"saved to {inspect_log}")
