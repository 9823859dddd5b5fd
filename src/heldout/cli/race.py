"""`heldout race FILE --model A --model B`: which model is best, for the calls that it takes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from heldout._core.config import DEFAULT_LEVEL
from heldout._core.format import number, printable
from heldout.cli._options import (
    count_option,
    epochs_option,
    limit_option,
    name_options,
    parameters_option,
    settings_options,
)
from heldout.cli.run import (
    RunRequest,
    configure,
    load_eval_file,
    run_directory,
    stdout_for_json,
)
from heldout.store.settled import RACE_SCOPE

if TYPE_CHECKING:
    from heldout._evals.racing import Placed, RaceReport

OF_RUNS = ("names", "level", "keep_power", "cluster", "as_json")
"""Parameters of a race of finished runs; all others are for models that run."""


@click.command("race")
@click.argument("names", metavar="FILE", nargs=-1, required=True)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="A model, as for `heldout run`; two or more.",
)
@limit_option
@epochs_option
@click.option("--level", type=float, default=DEFAULT_LEVEL, show_default=True, metavar="P")
@click.option("--keep-power", is_flag=True, help="Stop later, tell more apart.")
@click.option(
    "--cluster",
    metavar="KEY",
    help="Samples that share a value of this metadata key are not independent.",
)
@click.option(
    "--max-cost",
    type=float,
    metavar="COST",
    help="End when all models together have cost this much; looked at where they are compared.",
)
@parameters_option
@count_option("--max-concurrent", help="Items in flight at once, for each model.")
@name_options(
    name="Runs are called NAME-MODEL.  [default: the name of FILE]",
    resume="Continue the latest race of these models.",
)
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def command(
    names: tuple[str, ...],
    models: tuple[str, ...],
    level: float,
    keep_power: bool,
    cluster: str | None,
    max_cost: float | None,
    config_file: Path | None,
    settings: tuple[str, ...],
    parameters: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Run several models on the eval in FILE until the best is known.

    All answer the same samples in the same order. A model is dropped when another one is shown to
    be better, and costs nothing from then on; with 95% no best model is dropped (--level).

    Without --model, FILE are finished runs, two or more: who would have been dropped where.

    Exits with 0: the best is known. 3: several cannot be told apart, with the samples used up or
    --max-cost reached.
    """
    import asyncio

    from heldout._evals.race import entrants
    from heldout._evals.racing import run_race

    if not models and len(names) > 1:
        _refuse_options_of_models()
        from heldout.analysis.replayed_race import race_runs
        from heldout.reporting.names import load_report

        reports = [load_report(name) for name in names]
        report = race_runs(reports, level=level, keep_power=keep_power, cluster=cluster)
        _print(report, as_json, were_run="would have been")
        raise click.exceptions.Exit(report.exit_code)
    if len(names) > 1:
        raise click.UsageError("a race is of one FILE: --model A --model B, or of finished runs")
    file = Path(names[0])
    with stdout_for_json(as_json), ExitStack() as directories:
        eval_file = load_eval_file(file)
        request = RunRequest.of(config_file, settings, parameters, (), options)
        config = configure(eval_file.config, request.settings)
        configs = entrants(models, config)
        definition = eval_file.define(request.dataset)
        report = asyncio.run(
            run_race(
                definition,
                {
                    model: directories.enter_context(run_directory(own))
                    for model, own in configs.items()
                },
                level=level,
                keep_power=keep_power,
                cluster=cluster,
                max_cost=max_cost,
                announce=lambda line: click.echo(printable(line), err=True),
            )
        )
    _print(report, as_json, were_run="were")
    raise click.exceptions.Exit(report.exit_code)


def _refuse_options_of_models() -> None:
    """Refuse, by the names that were typed, options that finished runs have no use for."""
    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if source is ParameterSource.COMMANDLINE and name not in OF_RUNS:
            typed = max(option.opts, key=len)
            raise click.UsageError(
                f"{typed} is for models that run, and these are finished runs: leave it out, or "
                "give FILE and --model"
            )


def _print(report: RaceReport, as_json: bool, *, were_run: str) -> None:
    from heldout.cli._tables import decide, pick, print_json, print_report
    from heldout.reporting.blocks import Block, Line, Report, Table
    from heldout.reporting.comparisons import interval_text

    if as_json:
        numbers = ("level", "looks_used", "looks_planned", "n_asked", "n_spent", "exit_code")
        plain = pick(report, *numbers) | {"scope": RACE_SCOPE}
        plain["models"] = [_placed_json(each) for each in report.placed]
        print_json(decide(report.decision, report.sentence, plain), "race")
        return
    rows = [
        (
            each.name,
            number(each.mean),
            interval_text(each.interval),
            f"{each.n_decided:,}",
            each.beaten_by or "–",
            number(each.difference, sign=True),
            interval_text(each.difference_interval),
        )
        for each in report.placed
    ]
    columns = ["model", "mean", "interval", "n", "beaten by", "difference", "its interval"]
    share = report.n_spent / (report.n_asked * len(report.placed))
    notes = (
        f"{report.n_spent:,} of {report.n_asked * len(report.placed):,} items {were_run} run "
        f"({share:.0%}), {report.looks_used} of {report.looks_planned} looks. {RACE_SCOPE}"
    )
    blocks: list[Block] = [Table(columns, rows), Line(notes, style="dim")]
    print_report(Report(blocks, conclusion=report.sentence, style="bold"))


def _placed_json(placed: Placed) -> dict[str, Any]:
    around, difference = placed.interval, placed.difference_interval
    return {
        "model": placed.name,
        "path": None if placed.report is None else str(placed.report.path),
        "mean": placed.mean,
        "interval": None if around is None else [around.low, around.high],
        "n_decided": placed.n_decided,
        "beaten_by": placed.beaten_by,
        "difference": placed.difference,
        "difference_interval": None if difference is None else [difference.low, difference.high],
    }
