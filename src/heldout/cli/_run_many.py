"""Several evals in one `heldout run`: one after another, one table, one exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heldout._core.format import count, interval, number, printable
from heldout.cli._tables import decide, print_json, print_report
from heldout.errors import HeldoutError, InvalidInput
from heldout.reporting.blocks import Cell, Column, Line, Report, Span, Table, code

if TYPE_CHECKING:
    from heldout.cli.run import PreparedRun
    from heldout.store.report import EvalReport

COULD_NOT_RUN, BAD_INPUT = 4, 2


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What became of one of several evals: its report, or why there is none."""

    file: Path
    report: EvalReport | None
    problem: Exception | None = None


def refuse_options_of_one(has_name: bool, has_ids: bool) -> None:
    """Refuse options that can mean one eval alone."""
    named = [option for option, given in (("--name", has_name), ("--sample-id", has_ids)) if given]
    if named:
        raise click.UsageError(f"{' and '.join(named)} are for one eval, and several are given")


def run_each(
    prepared: Sequence[PreparedRun], run: Callable[[PreparedRun], EvalReport]
) -> list[RunOutcome]:
    """Run the evals one after another. One that fails does not keep the others from running.

    Raises:
        InvalidInput: Two have one name: their runs could not be told apart, nor resumed.
    """
    names = Counter(each.config.experiment_name for each in prepared)
    if twice := [name for name, times in names.items() if times > 1]:
        files = [str(p.file) for p in prepared if p.config.experiment_name == twice[0]]
        raise InvalidInput(
            f"{' and '.join(files)} are both called {twice[0]}: set experiment_name in their config"
        )
    outcomes = []
    for each in prepared:
        try:
            outcomes.append(RunOutcome(each.file, run(each)))
        except (HeldoutError, OSError) as problem:
            click.echo(printable(f"Error: {each.file}: {problem}"), err=True)
            outcomes.append(RunOutcome(each.file, None, problem))
        except KeyboardInterrupt as interruption:
            raise KeyboardInterrupt(
                f"{interruption} The same command with --resume goes on with this eval and those "
                "that are left; what is complete is not run again."
            ) from None
    return outcomes


def print_outcomes(outcomes: Sequence[RunOutcome], as_json: bool) -> None:
    """Print the table of several evals, and exit with the code of the worst."""
    failed = [outcome for outcome in outcomes if outcome.problem is not None]
    if as_json:
        print_json(decide(*_conclude(outcomes), _describe(outcomes)), "run-several")
    else:
        print_report(_build_report(outcomes))
    if failed:
        is_input = all(isinstance(outcome.problem, InvalidInput) for outcome in failed)
        raise click.exceptions.Exit(BAD_INPUT if is_input else COULD_NOT_RUN)
    settled = {o.report.settled.exit_code for o in outcomes if o.report and o.report.settled}
    # A claim that is false is worse than one that was not shown either way.
    raise click.exceptions.Exit(next((code for code in (1, 3) if code in settled), 0))


def _conclude(outcomes: Sequence[RunOutcome]) -> tuple[str, str]:
    failed = sum(outcome.problem is not None for outcome in outcomes)
    of = count(len(outcomes), "eval")
    if failed:
        return "failed", f"{failed} of {of} could not be run."
    return "complete", f"All of {of} have run."


def _describe(outcomes: Iterable[RunOutcome]) -> dict[str, Any]:
    from heldout.cli.run import describe_run

    return {
        "runs": [describe_run(each.report) for each in outcomes if each.report is not None],
        "failures": [
            {
                "file": str(each.file),
                "kind": type(each.problem).__name__,
                "message": str(each.problem),
            }
            for each in outcomes
            if each.problem is not None
        ],
    }


def _build_report(outcomes: Sequence[RunOutcome]) -> Report:
    rows: list[list[Cell]] = []
    for outcome in outcomes:
        report = outcome.report
        if report is None:
            rows.append([str(outcome.file), "", "", Span("failed", "red"), str(outcome.problem)])
            continue
        summary = report.summary
        mean = f"{number(summary['mean'])} ({interval(summary['ci_low'], summary['ci_high'])})"
        said = [count(summary["n_errors"], "error")] if summary["n_errors"] else []
        if report.settled is not None:
            said.append(f"{report.settled.claim}: {report.settled.decision}")
        items = str(summary["n"])
        rows.append([str(outcome.file), mean, items, ", ".join(said), code(str(report.path))])
    columns: list[Column | str] = [
        Column("eval"),
        "mean reward",
        "items",
        "",
        Column("", wrap=True),
    ]
    decision, text = _conclude(outcomes)
    return Report(
        [Table(columns, rows), Line(text, style="bold" if decision == "complete" else "bold red")]
    )


__all__ = ["RunOutcome", "print_outcomes", "refuse_options_of_one", "run_each"]
