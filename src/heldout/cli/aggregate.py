"""`heldout aggregate RUN…`: training runs over tasks in one number, with its interval."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from heldout.analysis import Aggregates, ScoreMatrix

LABELS = {
    "interquartile_mean": "interquartile mean",
    "mean": "mean",
    "median": "median",
    "optimality_gap": "optimality gap",
}


@click.command("aggregate")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--runs", "runs_key", metavar="KEY", help="One RUN: what tells training runs apart.")
@click.option("--tasks", metavar="KEY", help="What tells tasks apart.  [default: one task]")
@click.option(
    "--metric",
    default="reward",
    show_default=True,
    help="Or passed, or a metric, such as return.",
)
@click.option("--optimum", default=1.0, show_default=True, help="What the optimality gap is to.")
@click.option(
    "--against", multiple=True, metavar="RUN", help="A run to beat; several are several runs."
)
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ, as said above.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the resampling."
)
@click.option(
    "--repetitions",
    type=click.IntRange(1),
    default=50_000,
    show_default=True,
    help="So many resamples.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
def command(
    runs: tuple[str, ...],
    runs_key: str | None,
    tasks: str | None,
    metric: str,
    optimum: float,
    against: tuple[str, ...],
    allow: tuple[str, ...],
    seed: int,
    repetitions: int,
    as_json: bool,
) -> None:
    """Sum up what several training runs (seeds) are worth over one or more tasks.

    Each RUN is one training run: a directory, a name under outputs/evals, or an eval of a curve,
    RUN@STEP or RUN@last. With --runs, one RUN holds several, told apart by a metadata key of its
    samples. With --against, also the chance that one of RUN... beats one of those.

    Runs of one task that differ in more than their policy are refused, unless --allow says that
    it is meant: samples, scorer, environment, threshold or incomplete.
    """
    from heldout.analysis import aggregate, score_matrix
    from heldout.cli.compare import in_words_of_options
    from heldout.cli.main import writing
    from heldout.cli.named import load_named
    from heldout.cli.render import print_json

    def matrix(names: tuple[str, ...]) -> ScoreMatrix:
        reports = [load_named(name) for name in names]
        return score_matrix(reports, runs=runs_key, tasks=tasks, metric=metric, allow=allow)

    with in_words_of_options(allow, (), ""):
        found = aggregate(
            matrix(runs),
            matrix(against) if against else None,
            optimum=optimum,
            seed=seed,
            repetitions=repetitions,
            allow=allow,
        )
    with writing():
        if as_json:
            print_json(found.as_dict())
        else:
            _print(found, runs_key)


def _print(found: Aggregates, runs_key: str | None) -> None:
    from heldout.cli.render import as_line, interval, make_console, make_table, number

    console = make_console()
    console.print(as_line(_named(found.matrix, runs_key), "bold"))
    console.print(as_line(_of(found.matrix)))
    if found.against is not None:
        console.print(as_line(f"against {_named(found.against, runs_key)}", "bold"))
        console.print(as_line(_of(found.against)))
    table = make_table()
    table.add_column("", overflow="fold")
    table.add_column("estimate", justify="right", no_wrap=True)
    table.add_column("95% interval", no_wrap=True)
    rows = [(LABELS[name], estimate) for name, estimate in found.estimates.items()]
    if found.improvement is not None:
        rows.append(("chance to beat those against", found.improvement))
    for label, estimate in rows:
        gap = f" to {found.optimum:g}" if label == LABELS["optimality_gap"] else ""
        between = estimate.interval
        table.add_row(
            label + gap,
            number(estimate.value),
            interval(between.low, between.high) if between else "–",
        )
    console.print(table)
    one = found.estimates["interquartile_mean"]
    if any(estimate.interval for _, estimate in rows):
        how = (
            f"intervals: {one.repetitions:,} resamples of runs within each task (seed {one.seed}); "
            "they speak for other runs on the same tasks"
        )
        console.print(as_line(how, "dim"))
    for note in found.notes:
        console.print(as_line(note, "yellow"))


def _named(matrix: ScoreMatrix, runs_key: str | None) -> str:
    from heldout.data_buffer import some_of

    return f"{runs_key} {some_of(matrix.runs)}" if runs_key else some_of(matrix.runs)


def _of(matrix: ScoreMatrix) -> str:
    """What the numbers are over."""
    from heldout.analysis.scores import SINGLE
    from heldout.data_buffer import some_of

    runs, tasks = len(matrix.runs), len(matrix.tasks)
    over = f"{runs} run{'s' * (runs != 1)} x {tasks} task{'s' * (tasks != 1)}"
    named = "" if matrix.tasks == (SINGLE,) else f" ({some_of(matrix.tasks)})"
    return f"{matrix.metric} over {over}{named}, {matrix.items} items in all"
