"""`heldout aggregate RUN…`: training runs over tasks in one number, with its interval."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from heldout._core.format import count, list_some, number
from heldout.analysis.aggregation import (
    SINGLE_TASK,
    Aggregates,
    ScoreMatrix,
    aggregate,
    score_matrix,
)
from heldout.cli._options import format_options
from heldout.cli._tables import decide, print_json, print_report
from heldout.cli.compare import options_in_errors
from heldout.reporting.blocks import Block, Column, Line, Report, Table
from heldout.reporting.comparisons import interval_text
from heldout.reporting.names import load_report
from heldout.stats import BootstrapEstimate, Statistic
from heldout.stats.resampling import count_resamples

LISTED = 5
"""Runs, and tasks, that are listed by name."""
FEW_RUNS = 5
"""Percentile intervals from fewer runs are too narrow: three cannot show how far others differ."""
FEW_RESAMPLES = 200
"""An end of an interval has so few below it that other seeds often find the same one."""
FEW_RUNS_FOR_MEDIAN = 50
"""Those of a median over tasks need more (docs/statistics.md has the coverage)."""


@click.command("aggregate")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--runs",
    "runs_key",
    metavar="KEY",
    help="With one RUN: metadata key that tells training runs apart.",
)
@click.option(
    "--tasks", metavar="KEY", help="Metadata key that tells tasks apart.  [default: one task]"
)
@click.option(
    "--metric",
    default="reward",
    show_default=True,
    help="reward, passed, or a metric such as return.",
)
@click.option(
    "--optimum", default=1.0, show_default=True, help="Optimal score, for the optimality gap."
)
@click.option(
    "--baseline",
    "against",
    multiple=True,
    metavar="RUN",
    help="A run to compare with; several are several runs.",
)
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ; see above.")
@click.option("--seed", default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--repetitions", default=50_000, show_default=True, help="Bootstrap resamples.")
@format_options
def command(
    runs: tuple[str, ...],
    runs_key: str | None,
    tasks: str | None,
    metric: str,
    against: tuple[str, ...],
    format: str | None,
    **settings: Any,
) -> None:
    """Aggregate several training runs (seeds) over one or more tasks.

    Each RUN is one training run: a directory, a name under outputs/evals, or an eval of a curve,
    RUN@STEP or RUN@last. With --runs, one RUN holds several, told apart by a metadata key of its
    samples. With --baseline, also the probability that one of RUN... beats one of those.

    Runs of one task that differ in more than their policy are refused, unless --allow permits it:
    samples, scorer, environment, threshold or incomplete.
    """

    def load_matrix(names: tuple[str, ...]) -> ScoreMatrix:
        reports = [load_report(name) for name in names]
        allow = settings["allow"]
        return score_matrix(reports, runs=runs_key, tasks=tasks, metric=metric, allow=allow)

    with options_in_errors():
        matrices = [load_matrix(names) for names in (runs, against) if names]
        aggregates = aggregate(*matrices, **settings)
    if format == "json":
        plain = {**aggregates.as_dict(), "notes": [*make_notes(aggregates)]}
        print_json(decide(*_conclude(aggregates), plain), "aggregate")
    else:
        print_report(_build_report(aggregates, runs_key), markdown=format == "markdown")


def _conclude(aggregates: Aggregates) -> tuple[str, str]:
    """Return what the interquartile mean says: against the baseline, else by itself."""
    matrix = aggregates.matrix
    runs = f"{count(len(matrix.runs), 'run')} on {count(len(matrix.tasks), 'task')}"
    name: Statistic = "interquartile_mean"
    difference = aggregates.differences.get(name)
    if difference is None:
        value, around = _estimate_cells(aggregates.estimates[name])
        return "estimated", f"Interquartile mean of {matrix.metric}: {value} ({around}), {runs}."
    value, around = _estimate_cells(difference, sign=True)
    text = (
        f"Interquartile mean of {matrix.metric} against the baseline: {value} ({around}), {runs}."
    )
    ends = difference.interval
    if ends is None or ends.low <= 0 <= ends.high:
        return "inconclusive", text
    return ("higher" if ends.low > 0 else "lower"), text


def _build_report(aggregates: Aggregates, runs_key: str | None) -> Report:
    key = f"{runs_key} " if runs_key else ""
    blocks: list[Block] = []
    for prefix, matrix in _matrices(aggregates).items():
        blocks.append(Line(f"{prefix}{key}{list_some(matrix.runs, LISTED, ', ')}", style="bold"))
        over = f"{count(len(matrix.runs), 'run')} x {count(len(matrix.tasks), 'task')}"
        if matrix.tasks != (SINGLE_TASK,):
            over += f" ({list_some(matrix.tasks, LISTED, ', ')})"
        blocks.append(Line(f"{matrix.metric} over {over}, {count(matrix.items, 'item')} in all"))
    labels = _label_statistics(aggregates)
    estimates = {labels[name]: estimate for name, estimate in aggregates.estimates.items()}
    if aggregates.improvement is not None:
        estimates["probability of improvement"] = aggregates.improvement
    rows = [[label, *_estimate_cells(estimate)] for label, estimate in estimates.items()]
    blocks.append(Table([Column("", wrap=True), "estimate", Column("95% interval")], rows))
    if aggregates.against is not None:
        rows = [
            [
                labels[name],
                *_estimate_cells(aggregates.against_estimates[name]),
                *_estimate_cells(difference, sign=True),
            ]
            for name, difference in aggregates.differences.items()
        ]
        label, ends = Column("", wrap=True), Column("95% interval")
        blocks.append(Table([label, "baseline", ends, "difference", ends], rows))
    gap = aggregates.estimates["optimality_gap"]
    if any(estimate.interval for estimate in estimates.values()):
        how = (
            f"intervals: {gap.repetitions:,} resamples of runs within each task (seed {gap.seed}); "
            "they generalize to other runs on the same tasks"
        )
        blocks.append(Line(how, style="dim"))
    return Report([*blocks, *(Line(note, style="yellow") for note in make_notes(aggregates))])


def _label_statistics(aggregates: Aggregates) -> dict[Statistic, str]:
    """Name each statistic, and what the median is of."""
    single = len(aggregates.matrix.tasks) == 1
    return {
        "interquartile_mean": "interquartile mean",
        "mean": "mean",
        "median": "median of the runs" if single else "median over tasks",
        "optimality_gap": f"optimality gap to {aggregates.optimum:g}",
    }


def _estimate_cells(estimate: BootstrapEstimate, *, sign: bool = False) -> list[str]:
    return [number(estimate.value, sign=sign), interval_text(estimate.interval)]


def _matrices(aggregates: Aggregates) -> dict[str, ScoreMatrix]:
    against = {} if aggregates.against is None else {"against ": aggregates.against}
    return {"": aggregates.matrix, **against}


def make_notes(aggregates: Aggregates) -> Iterator[str]:
    """Yield what a reader of the estimates must know to read them right."""
    matrix, improvement = aggregates.matrix, aggregates.improvement
    for prefix, side in _matrices(aggregates).items():
        yield from (prefix.replace(" ", ": ") + note for note in _make_matrix_notes(side))
    if aggregates.against is not None:
        yield from _describe_allowed(aggregates)
    runs = len(matrix.runs)
    few = runs < FEW_RUNS_FOR_MEDIAN and aggregates.estimates["median"].interval is not None
    if few and len(matrix.tasks) > 2:  # of one or two means the median is the mean
        yield (
            f"the interval of a median over tasks is far too narrow for few runs ({runs} here): "
            "prefer the interquartile mean"
        )
    if improvement is not None and improvement.interval is None and improvement.value in (0, 1):
        verb = "beat" if improvement.value else "lose to"
        yield f"all of these runs {verb} all baseline runs; that leaves no interval"
    if matrix.scores.min() >= aggregates.optimum:
        yield f"no score is below {aggregates.optimum:g}, so the gap to it means nothing"


def _make_matrix_notes(matrix: ScoreMatrix) -> Iterator[str]:
    yield from _describe_allowed(matrix)
    if matrix.errored:
        counted = "are in no mean"
        if matrix.errors_as:
            worst = [f"{value:g}" for value in dict.fromkeys(matrix.errors_as)]
            counted = f"count as {list_some(worst, LISTED, ' or ')}"
            if min(matrix.errors_as) < 0:
                counted += ", the lowest reward that a run has on the task"
        yield f"{matrix.errored} of {count(matrix.items, 'item')} errored and {counted}"
    runs = len(matrix.runs)
    if runs > 1 and (matrix.scores == matrix.scores[0]).all():
        yield "on each task all runs scored the same, so there is no interval"
    if runs == 1:
        yield "one run does not show how runs differ: an interval needs several"
    elif runs < FEW_RUNS:
        yield f"intervals from {runs} runs are too narrow: have {FEW_RUNS} at least"
    different = count_resamples(runs, len(matrix.tasks))
    if different <= FEW_RESAMPLES and (matrix.scores != matrix.scores[0]).any():
        yield (
            f"{runs} runs of {count(len(matrix.tasks), 'task')} have {different} different "
            "resamples: the ends of intervals are among those, whatever the seed"
        )


def _describe_allowed(checked: ScoreMatrix | Aggregates) -> Iterator[str]:
    kinds: dict[str, list[str]] = {}
    for mismatch in checked.allowed:
        kinds.setdefault(mismatch.kind, []).append(mismatch.text)
    for kind, texts in kinds.items():
        more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
        yield f"allowed to differ: {kind}: {texts[0]}{more}"
    if checked.may_differ:
        yield "runs in one report share no input, so their samples may differ"
