"""`heldout compare A B`: whether B is better than A, and how sure that is.

A report, not a judgement: it exits with 0 whatever the verdict. `heldout gate` passes and fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import click

from heldout._core.format import printable
from heldout._core.plotting import format_of
from heldout.analysis import Comparison, Side, compare, rank
from heldout.analysis.comparison import Difference
from heldout.cli._load import select_results
from heldout.cli._options import Command, format_options
from heldout.cli._tables import decide, make_console, pick, print_json, print_report
from heldout.cli.show import usage_as_dict
from heldout.errors import InvalidInput, NotComparable
from heldout.reporting.comparisons import (
    build_comparison,
    list_flips,
    notes,
    sort_slices,
    verdict_text,
)
from heldout.reporting.names import load_report
from heldout.reporting.rankings import build_ranking, conclude_ranking
from heldout.stats import Interval, SliceDifference
from heldout.store.jsonl import replace_file

JSON_FLIPS = 100
"""Samples each way that JSON lists by default, next to the number of all."""


def comparison_options(command: Command) -> Command:
    """Add the options that `compare` and `gate` share."""
    options = (
        click.option(
            "--metric",
            default="reward",
            show_default=True,
            help="reward, passed, pass@K, pass^K, or the name of a metric.",
        ),
        click.option(
            "--lower-is-better", is_flag=True, help="For a metric such as a loss or a length."
        ),
        click.option(
            "--cluster",
            metavar="KEY",
            help="Cluster standard errors by this key, such as sample_id.",
        ),
        click.option(
            "--pass-threshold",
            type=float,
            metavar="REWARD",
            help="Reward from which an item counts as passed.  [default: the setting of the runs]",
        ),
        click.option("--confidence", default=0.95, show_default=True, help="Of the intervals."),
        click.option(
            "--allow",
            multiple=True,
            metavar="KIND",
            help="What may differ: samples, scorer, environment, threshold or incomplete; for gate "
            "also cached: model turns that all came from the response cache.",
        ),
        click.option(
            "--flips",
            type=click.IntRange(1),
            metavar="N",
            help="List N samples gained, and N lost, with question, target and both answers.",
        ),
        format_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command("compare")
@click.argument("runs", metavar="A B", nargs=-1, required=True)
@click.option("--baseline", metavar="A", help="Run A, where only B is an argument.")
@click.option(
    "--by", multiple=True, metavar="KEY", help="Metadata key to slice by; several combine."
)
@comparison_options
@click.option("--where", metavar="SQL", help="Only results that meet a condition; see heldout sql.")
@click.option("--unpaired", is_flag=True, help="Do not pair the samples that both have.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Plot it, too; .png, .svg or .pdf.",
)
def command(
    runs: tuple[str, ...],
    baseline: str | None,
    where: str | None,
    unpaired: bool,
    flips: int | None,
    format: str | None,
    plot: Path | None,
    **settings: Any,
) -> None:
    """Compare run B with run A by the samples that both have: is B better?

    A run is a directory, a name under outputs/evals (the latest run of that name; NAME@3 the
    third), or an eval of a curve: RUN@STEP, RUN@last (RUN@LABEL:STEP, where a run has curves of
    several labels). `heldout compare B --baseline A` is the same.

    Of three runs or more it says which may be the best: their ranks, with intervals.

    What is not comparable is refused unless --allow names it.

    Exits with 0 whatever the verdict; `heldout gate` is the command that passes or fails.
    """
    names = runs if baseline is None else (baseline, *runs)
    if len(names) < 2 or (baseline is not None and len(runs) > 1):
        raise click.UsageError("which two runs? heldout compare A B, or compare B --baseline A")
    if len(names) > 2:
        of_two = {"--by": settings.pop("by"), "--unpaired": unpaired, "--flips": flips}
        of_two |= {"--plot": plot, "--lower-is-better": settings.pop("lower_is_better")}
        if given := [option for option, value in of_two.items() if value]:
            raise click.UsageError(f"{given[0]} is of two runs, and these are {len(names)}")
        _rank(names, where, format, settings)
        return
    image = None if plot is None else format_of(plot)  # refused before anything is read
    reports = [select_results(load_report(run), where) for run in names]
    with options_in_errors():
        comparison = compare(*reports, paired=not unpaired, **settings)
    if plot is not None and image is not None:
        from heldout.analysis.plot import plot_comparison

        order = [part.label for part in sort_slices(comparison.slices)]
        replace_file(plot, plot_comparison(comparison, order=order, format=image))
        click.echo(printable(f"Wrote {plot}."), err=True)
    if format == "json":
        print_json(comparison_json(comparison, flips), "compare")
    else:
        markdown = format == "markdown"
        report = build_comparison(comparison, flips, markdown=markdown, width=make_console().width)
        print_report(report, markdown=markdown)


def _rank(
    names: Sequence[str], where: str | None, format: str | None, settings: dict[str, Any]
) -> None:
    reports = [select_results(load_report(run), where) for run in names]
    with options_in_errors():
        ranking = rank(reports, **settings)
    if format != "json":
        print_report(build_ranking(ranking), markdown=format == "markdown")
        return
    winner = ranking.winner
    plain = {
        **pick(ranking, "metric", "confidence", "samples", "errors_as"),
        "runs": [
            side_json(run.side)
            | pick(run, "highest", "lowest")
            | {"mean": run.mean, **interval_json(run.interval)}
            for run in ranking.runs
        ],
        "best": [run.side.name for run in ranking.best],
        "winner": {"name": ranking.runs[0].side.name, **pick(winner, "raw", "estimate")}
        | interval_json(winner.interval),
        "mismatches": [asdict(mismatch) for mismatch in ranking.mismatches],
    }
    decision = "best_known" if len(ranking.best) == 1 else "cannot_tell_apart"
    print_json(decide(decision, conclude_ranking(ranking), plain), "compare-ranks")


@contextmanager
def options_in_errors() -> Iterator[None]:
    """Speak of options where an analysis refuses its parameters."""
    try:
        yield
    except NotComparable as refusal:
        options = " ".join(f"--allow {kind}" for kind in refusal.kinds)
        raise NotComparable(f"{refusal} ({options})", refusal.kinds) from None
    except InvalidInput as problem:
        problem.parameters = tuple(f"--{name.replace('_', '-')}" for name in problem.parameters)
        raise


# --- JSON ---------------------------------------------------------------------------------------


def interval_json(around: Interval | None, prefix: str = "") -> dict[str, float | None]:
    """Return the two ends of an interval as JSON has them."""
    low, high = (around.low, around.high) if around else (None, None)
    return {f"{prefix}ci_low": low, f"{prefix}ci_high": high}


def comparison_json(comparison: Comparison, flips: int | None) -> dict[str, Any]:
    """Return a comparison as JSON has it, with the first flips each way and the number of all."""
    by = comparison.by
    listed = list_flips(comparison, flips or JSON_FLIPS, with_texts=flips is not None)
    selections = [side.report.selection for side in (comparison.a, comparison.b)]
    picked = [selection for selection in selections if selection is not None]
    condition = {"where": picked[0].condition, "n_of": [s.of for s in picked]} if picked else {}
    plain = {
        **pick(comparison, "verdict", "metric", "lower_is_better", "pass_threshold"),
        **pick(comparison, "confidence", "paired"),
        **pick(comparison, "errors_as", "minimum_detectable"),
        "by": list(by),
        "a": side_json(comparison.a),
        "b": side_json(comparison.b),
        "overall": _difference_json(comparison.overall),
        "with_errors": comparison.with_errors and _difference_json(comparison.with_errors),
        "slices": [_slice_json(by, part) for part in comparison.slices],
        "slices_with_errors": [_slice_json(by, part) for part in comparison.slices_with_errors],
        "slices_not_compared": [
            dict(zip(by, label, strict=True)) for label in comparison.slices_not_compared
        ],
        "gained": [flip.as_dict("a", "b") for flip in listed if flip.kind == "gained"],
        "lost": [flip.as_dict("a", "b") for flip in listed if flip.kind == "lost"],
        "mismatches": [asdict(mismatch) for mismatch in comparison.mismatches],
        "notes": notes(comparison),
        "gained_total": len(comparison.gained),
        "lost_total": len(comparison.lost),
        "both_fail": [change.id for change in comparison.both_fail[: flips or JSON_FLIPS]],
        "both_fail_total": len(comparison.both_fail),
        **condition,
    }
    return decide(comparison.verdict, verdict_text(comparison, with_names=True), plain)


def side_json(side: Side) -> dict[str, Any]:
    """Return a run of a comparison as JSON has it."""
    return {
        "path": None if side.path is None else str(side.path),
        **pick(side, "name", "samples", "items", "errored", "left_out"),
        **pick(side, "cached", "measured_nothing"),
        **{key: side.report.summary[key] for key in ("mean", "ci_low", "ci_high")},
        "usage": usage_as_dict(side.report),
    }


def _difference_json(difference: Difference) -> dict[str, Any]:
    hidden = {"evidence", "sides", "interval", "confidence"}
    names = [field.name for field in fields(difference) if field.name not in hidden]
    return pick(difference, *names) | interval_json(difference.interval)


def _slice_json(by: Sequence[str], part: SliceDifference) -> dict[str, Any]:
    label: Any = part.label
    return {
        "slice": dict(zip(by, label, strict=True)),
        **_difference_json(part.difference),
        "adjusted_p_value": part.adjusted_p_value,
        **interval_json(part.simultaneous_interval, "simultaneous_"),
    }
