"""`heldout slice RUN --by KEY`: the report for each value of a metadata key."""

from __future__ import annotations

import click

from heldout.store.report import EvalReport
from heldout.store.rundir import find_run


@click.command("slice")
@click.argument("run")
@click.option(
    "--by", multiple=True, required=True, metavar="KEY", help="Metadata key; several combine."
)
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON a slice.")
def command(run: str, by: tuple[str, ...], as_json: bool) -> None:
    """Print a line for each value of KEY in RUN: a run directory, or a name under outputs/evals."""
    from heldout.cli.render import print_json, print_slices

    report = EvalReport.load(find_run(run))
    slices = report.slice(*by)
    if as_json:
        for values, summary in slices.items():
            print_json({"slice": dict(zip(by, values, strict=True)), **summary})
    else:
        print_slices(by, slices, report)
