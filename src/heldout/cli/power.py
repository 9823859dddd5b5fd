"""`heldout power --baseline RUN --detect 0.02`: how many samples it takes to see that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from heldout.analysis import Plan
    from heldout.store.report import EvalReport


@click.command("power")
@click.option("--baseline", required=True, metavar="RUN", help="Whose variance to plan with.")
@click.option(
    "--detect", type=float, required=True, metavar="D", help="The true difference to be seen."
)
@click.option("--against", metavar="RUN", help="Another run on its samples: no guess is needed.")
@click.option("--metric", default="reward", show_default=True, help="Or passed, or a metric.")
@click.option("--cluster", metavar="KEY", help="Samples that share its value belong together.")
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ, as for compare.")
@click.option(
    "--repeats",
    type=int,
    multiple=True,
    metavar="K",
    help="Answers to each sample; may be given several times.  [default: 1, 2, 4, 8]",
)
@click.option(
    "--power", type=float, default=0.8, show_default=True, help="How often it is to be seen."
)
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Seen is: p below this.")
@click.option(
    "--correlation",
    type=float,
    help="Of the samples' expected scores in this run and the next.  [default: 0, the worst case]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
def command(
    baseline: str,
    detect: float,
    against: str | None,
    metric: str,
    cluster: str | None,
    allow: tuple[str, ...],
    repeats: tuple[int, ...],
    power: float,
    alpha: float,
    correlation: float | None,
    as_json: bool,
) -> None:
    """Say how many samples and repeats it takes to see a difference from a run.

    A run is a directory, a name under outputs/evals, or an eval of a curve: RUN@STEP, RUN@last.
    """
    from heldout.analysis import plan
    from heldout.analysis.power import REPEATS
    from heldout.cli._load import load_report
    from heldout.cli._tables import print_json
    from heldout.cli.compare import in_words_of_options
    from heldout.cli.main import writing

    if against is not None and correlation is not None:
        raise click.UsageError("--against measures what --correlation guesses: give one of them")
    if allow and against is None:
        raise click.UsageError("--allow is for what differs between two runs: add --against RUN")
    report = load_report(baseline)
    other = None if against is None else load_report(against)
    with in_words_of_options(allow):
        found = plan(
            report,
            detect=detect,
            against=other,
            power=power,
            alpha=alpha,
            metric=metric,
            cluster=cluster,
            allow=allow,
            repeats=repeats or REPEATS,
            correlation=correlation,
        )
    with writing():
        if as_json:
            print_json(found.as_dict())
        else:
            _print(found, report)


def _print(found: Plan, report: EvalReport) -> None:
    from heldout._format import number
    from heldout.cli._tables import as_line, make_console, make_table
    from heldout.cli.differences import Named, Piece, counted, print_pieces
    from heldout.cli.show import describe_model

    console = make_console()
    line: list[Piece] = [Named(found.name)]
    who = describe_model(report.config)
    if who is not None:
        line += [", model: ", Named(who)]
    line.append(f"; {counted(found.samples, 'sample')}, {_answers(found.repeats)} each")
    if found.left_out:
        line.append(f"; {counted(found.left_out, 'sample')} left out, without a value")
    print_pieces(console, line)
    if found.against is not None:
        print_pieces(console, ["variance of its differences from ", Named(found.against)])
    print_pieces(
        console,
        [
            f"To see a true difference of {number(found.detect)} in ",
            Named(found.metric),
            f", {_how_often(found)}, at p < {found.alpha:g}, two runs need:",
        ],
    )
    table = make_table()
    for name in ("repeats", "samples", "answers of each run"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        least, most = row.at_least, row.samples
        table.add_row(
            f"{row.repeats}",
            _range(least, most),
            _range(least * row.repeats, most * row.repeats),
        )
    console.print(table)
    console.print(as_line(_detectable(found)))
    console.print(as_line(_repeats_for_these(found)))
    for note in found.notes:
        console.print(as_line(f"note: {note}"))


def _range(least: int, most: int) -> str:
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _answers(repeats: float) -> str:
    if repeats == 1:
        return "1 answer"
    return f"{repeats:g} answers" if repeats == round(repeats) else f"{repeats:.2f} answers"


def _detectable(found: Plan) -> str:
    from heldout._format import number
    from heldout.cli.differences import counted

    run = f"These {counted(found.samples, 'sample')} with {_answers(found.repeats)} each"
    if found.detectable is None:
        return f"{run} do not vary, so what they would see is not known."
    return f"{run} would see a difference of {number(found.detectable)}, {_how_often(found)}."


def _how_often(found: Plan) -> str:
    return f"{100 * found.power:g}% of the time"


def _repeats_for_these(found: Plan) -> str:
    from heldout._format import number

    aim = f"these samples enough to see {number(found.detect)}"
    if found.repeats_for_these is None:
        if _is_guessed(found):
            return f"Whether any number of repeats would make {aim} is not known."
        return f"No number of repeats would make {aim}."
    if found.repeats_for_these <= found.repeats:
        return f"They are enough to see {number(found.detect)}."
    return f"{found.repeats_for_these:,} repeats would make {aim}."


def _is_guessed(found: Plan) -> bool:
    """Whether how much repeats help was not measured."""
    ranges = any(row.at_least != row.samples for row in found.rows)
    return found.components.within is None or ranges
