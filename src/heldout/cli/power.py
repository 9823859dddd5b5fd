"""`heldout power RUN --detect 0.02`: how many samples detect it, and what looks save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from heldout._core.format import count, number, percent
from heldout.analysis import SamplePlan, plan
from heldout.analysis.passes import FEW_CLUSTERS
from heldout.cli._options import format_options
from heldout.cli._tables import decide, print_json, print_report
from heldout.cli.compare import options_in_errors
from heldout.reporting.blocks import Line, Report, Table, name
from heldout.reporting.comparisons import name_with_model, nothing_new
from heldout.reporting.names import load_report
from heldout.store.report import EvalReport


@click.command("power")
@click.argument("run")
@click.option(
    "--detect", type=float, required=True, metavar="D", help="The true difference to detect."
)
@click.option(
    "--baseline",
    metavar="RUN",
    help="Another run on the same samples: then nothing has to be assumed.",
)
@click.option("--metric", default="reward", show_default=True, help="reward, passed, or a metric.")
@click.option(
    "--cluster", metavar="KEY", help="Cluster standard errors by this key, such as sample_id."
)
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ, as for compare.")
@click.option(
    "--epochs",
    "repeats",
    type=int,
    multiple=True,
    metavar="K",
    default=(1, 2, 4, 8),
    show_default=True,
    help="Attempts of each sample; may be given several times.",
)
@click.option("--power", type=float, default=0.8, show_default=True, help="Statistical power.")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Significance level.")
@click.option(
    "--correlation",
    type=float,
    help="Correlation of the samples' expected scores between the two runs.  [default: 0, the "
    "worst case]",
)
@click.option(
    "--sequential",
    is_flag=True,
    help="Also what an eval of these samples costs that stops when it is settled.",
)
@click.option("--keep-power", is_flag=True, help="With --sequential: stop later, and miss less.")
@click.option(
    "--no-worse-than",
    "margin",
    type=click.FloatRange(min=0, min_open=True),
    metavar="D",
    help="With --sequential: ask whether it is not worse by D, instead of better.",
)
@format_options
def command(
    run: str,
    baseline: str | None,
    format: str | None,
    sequential: bool,
    keep_power: bool,
    margin: float | None,
    **settings: Any,
) -> None:
    """Plan how many samples, and attempts of each, detect a difference from RUN.

    RUN is a directory, a name under outputs/evals, or an eval of a curve: RUN@STEP, RUN@last. The
    plan is for a later comparison of two runs with `heldout compare`, whatever its result.
    """
    if baseline is not None and settings["correlation"] is not None:
        raise click.UsageError("--baseline measures what --correlation guesses: give one of them")
    if baseline is None and settings["allow"]:
        raise click.UsageError("--allow is for what differs between two runs: add --baseline RUN")
    if not sequential and (keep_power or margin):
        raise click.UsageError("--keep-power and --no-worse-than are for --sequential: add it")
    if sequential:
        settings["sequential"] = "keep_power" if keep_power else "linear"
        settings["margin"] = margin or 0.0
    report = load_report(run)
    other = None if baseline is None else load_report(baseline)
    with options_in_errors():
        planned = plan(report, against=other, **settings)
    if format == "json":
        plain = {**asdict(planned), "notes": [*make_notes(planned)]}
        print_json(decide(*_conclude(planned), plain), "power")
    else:
        print_report(_build_report(planned, report), markdown=format == "markdown")


def _build_report(plan: SamplePlan, report: EvalReport) -> Report:
    counts = f"; {count(plan.samples, 'sample')}, {_describe_attempts(plan)}"
    if plan.left_out:
        counts += f"; {count(plan.left_out, 'sample')} left out, without a value"
    lines = [Line(*name_with_model(plan.name, report), counts)]
    if plan.against is not None:
        lines.append(Line("variance of its differences from ", name(plan.against)))
    aim = f" at {percent(plan.power)} power and p < {plan.alpha:g}, two runs need:"
    lines.append(
        Line(f"To detect a true difference of {number(plan.detect)} in ", name(plan.metric), aim)
    )

    def span(least: int, most: int) -> str:
        return f"{most:,}" if least == most else f"{least:,} to {most:,}"

    rows = [
        (
            f"{row.repeats}",
            span(row.at_least, row.samples),
            span(row.at_least * row.repeats, row.answers),
        )
        for row in plan.rows
    ]
    table = Table(["repeats", "samples", "attempts of each run"], rows)
    repeats = "unknown"
    if plan.repeats_for_these is not None:
        repeats = f"{plan.repeats_for_these:,}"
    elif plan.components.within is not None and plan.variance_known:
        repeats = "no number of them"
    conclusions = [
        Line(_conclude(plan)[1]),
        Line(f"Repeats with which these samples would be enough: {repeats}."),
        *(Line(f"note: {note}") for note in make_notes(plan)),
    ]
    return Report([*lines, table, *conclusions, *_show_expected(plan)])


def _show_expected(plan: SamplePlan) -> list[Line | Table]:
    """Return the table of an eval that stops when it is settled, if it was asked for."""
    if not plan.expected:
        return []
    claim = f"not worse by {plan.margin:g}" if plan.margin else "better"
    rule = ", keeping power" if plan.spending == "keep_power" else ""
    rows = [
        (
            number(row.effect, sign=True),
            f"{row.better:.1%}",
            f"{row.worse:.1%}",
            f"{row.samples:,.0f}",
            f"{row.share:.1%}",
            f"{row.fixed_better:.1%}",
        )
        for row in plan.expected
    ]
    no = "worse by more" if plan.margin else "worse"
    return [
        Line(
            f"Of the next run on these {count(plan.samples, 'sample')}, stopped when it is settled "
            f"whether it is {claim}{rule}:"
        ),
        Table(
            ["true difference", claim, no, "expected samples", "of the set", f"{claim}, all run"],
            rows,
        ),
    ]


def _describe_attempts(plan: SamplePlan) -> str:
    return f"{round(plan.repeats, 2):g} attempt{'s' * (plan.repeats != 1)} each"


def _conclude(plan: SamplePlan) -> tuple[str, str]:
    """Return whether these samples are enough, in a word, and what they detect in a sentence."""
    decision, effect = "unknown", "unknown, since they do not vary"
    if plan.detectable is not None:
        decision = "enough" if plan.detectable <= plan.detect else "too_few"
        effect = f"{number(plan.detectable)} at {percent(plan.power)} power"
    these = f"these {count(plan.samples, 'sample')} with {_describe_attempts(plan)}"
    return decision, f"Minimum detectable effect of {these}: {effect}."


def make_notes(plan: SamplePlan) -> Iterator[str]:
    """Say what a plan assumes, and what would replace the assumption."""
    if not plan.variance_known:
        yield (
            "with one attempt per sample, the variance between attempts is unknown, hence the "
            "ranges; run a few samples several times (--epochs) to narrow them"
        )
    if plan.correlation_assumed:
        yield (
            "the two runs are assumed to be uncorrelated, the worst case; with a second run on "
            "these samples (--baseline) the correlation is estimated, and usually fewer are needed"
        )
    if plan.expected and not plan.margin:
        yield (
            "where there is no difference, hardly any sample is saved: --no-worse-than D asks what "
            "can be settled then"
        )
    for run in plan.unfinished:
        yield f"{run} is not finished: what ends first may vary less"
    for run in plan.cached:
        yield nothing_new(run)
    if plan.clusters is not None:
        key = "content: equal ones are one" if plan.cluster is None else plan.cluster
        rough = "; from so few clusters that is rough" if plan.clusters < FEW_CLUSTERS else ""
        yield (
            f"{plan.design_effect:.2f} times as many, since samples come in {plan.clusters} "
            f"clusters by {key}{rough}"
        )
