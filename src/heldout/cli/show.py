"""`heldout show RUN`: the report of a run, finished or not, and what failed in it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click


@click.command("show")
@click.argument("run")
@click.option("--failures", type=click.IntRange(1), metavar="N", help="N items that did not pass.")
@click.option("--repair", is_flag=True, help="Move damaged journal lines aside first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a summary, or a line a failure.")
def command(run: str, failures: int | None, repair: bool, as_json: bool) -> None:
    """Print the report of RUN: a run directory, or a name under outputs/evals."""
    from heldout.cli.render import (
        print_failures,
        print_json,
        print_report,
        result_as_dict,
    )
    from heldout.store.report import EvalReport
    from heldout.store.rundir import RunDir, find_run

    path = find_run(run)
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
