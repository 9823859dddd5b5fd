"""`heldout power RUN --detect 0.02`: how many samples detect that difference."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from heldout._format import count, number, percent
from heldout.cli._options import renamed_option
from heldout.cli._tables import Cell, Column, Line, Report, Table, name, print_json, print_report
from heldout.cli.compare import name_options_in_errors, refuse_json_and_markdown

if TYPE_CHECKING:
    from heldout.analysis import Plan
    from heldout.store.report import EvalReport

FEW_CLUSTERS = 10
"""The spread between fewer clusters is hardly known."""


@click.command("power")
@click.argument("run", required=False)
@click.option(
    "--detect", type=float, required=True, metavar="D", help="The true difference to detect."
)
@click.option(
    "--baseline",
    metavar="RUN",
    help="Another run on the same samples: then nothing has to be assumed.",
)
@click.option("--against", metavar="RUN", hidden=True)
@click.option("--metric", default="reward", show_default=True, help="reward, passed, or a metric.")
@click.option("--cluster", metavar="KEY", help="Cluster standard errors by this metadata key.")
@click.option("--allow", multiple=True, metavar="KIND", help="What may differ, as for compare.")
@renamed_option(
    "--epochs",
    "repeats",
    formerly=["--repeats"],
    type=int,
    multiple=True,
    metavar="K",
    help="Attempts of each sample; may be given several times.  [default: 1, 2, 4, 8]",
)
@click.option("--power", type=float, default=0.8, show_default=True, help="Statistical power.")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Significance level.")
@click.option(
    "--correlation",
    type=float,
    help="Correlation of the samples' expected scores between the two runs.  [default: 0, the "
    "worst case]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown for GitHub.")
def command(
    run: str | None,
    detect: float,
    baseline: str | None,
    against: str | None,
    metric: str,
    cluster: str | None,
    allow: tuple[str, ...],
    repeats: tuple[int, ...],
    power: float,
    alpha: float,
    correlation: float | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Plan how many samples, and attempts of each, detect a difference from RUN.

    RUN is a directory, a name under outputs/evals, or an eval of a curve: RUN@STEP, RUN@last. The
    plan is for a later comparison of two runs with `heldout compare`, whatever its result.
    """
    from heldout.analysis import plan
    from heldout.analysis.power import REPEATS
    from heldout.cli._load import load_report

    refuse_json_and_markdown(as_json, as_markdown)
    if run is None:  # as version 0.1 took them: --baseline RUN --against OTHER
        run, baseline = baseline, against
    elif against is not None:
        raise click.UsageError("--against is --baseline now: heldout power RUN --baseline OTHER")
    if run is None:
        raise click.UsageError("of which run? heldout power RUN --detect D")
    if baseline is not None and correlation is not None:
        raise click.UsageError("--baseline measures what --correlation guesses: give one of them")
    if allow and baseline is None:
        raise click.UsageError("--allow is for what differs between two runs: add --baseline RUN")
    report = load_report(run)
    with name_options_in_errors(allow):
        made = plan(
            report,
            detect=detect,
            against=None if baseline is None else load_report(baseline),
            power=power,
            alpha=alpha,
            metric=metric,
            cluster=cluster,
            allow=allow,
            repeats=repeats or REPEATS,
            correlation=correlation,
        )
    if as_json:
        print_json({**asdict(made), "notes": notes(made)})
    else:
        print_report(_report(made, report), markdown=as_markdown)


def _report(plan: Plan, report: EvalReport) -> Report:
    from heldout.store.runs import describe_model

    model = describe_model(report.config)
    baseline: list[Cell] = [name(plan.name)]
    if model is not None:
        baseline += [" (model: ", name(model), ")"]
    counts = f"; {count(plan.samples, 'sample')}, {_attempts(plan.repeats)} each"
    if plan.left_out:
        counts += f"; {count(plan.left_out, 'sample')} left out, without a value"
    lines = [Line(*baseline, counts, bullet=True)]
    if plan.against is not None:
        lines.append(Line("variance of its differences from ", name(plan.against), bullet=True))
    aim = Line(
        f"To detect a true difference of {number(plan.detect)} in ",
        name(plan.metric),
        f" at {percent(plan.power)} power and p < {plan.alpha:g}, two runs need:",
    )
    columns = [Column(text, "right") for text in ("repeats", "samples", "attempts of each run")]
    rows = [
        (
            f"{row.repeats}",
            _range(row.at_least, row.samples),
            _range(row.at_least * row.repeats, row.samples * row.repeats),
        )
        for row in plan.rows
    ]
    remarks = [Line(f"note: {note}", bullet=True) for note in notes(plan)]
    conclusions = [Line(_detectable_text(plan)), Line(_repeats_text(plan))]
    return Report([*lines, aim, Table(columns, rows), *conclusions, *remarks])


def _range(least: int, most: int) -> str:
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _attempts(repeats: float) -> str:
    if repeats == 1:
        return "1 attempt"
    return f"{repeats:g} attempts" if repeats == round(repeats) else f"{repeats:.2f} attempts"


def _detectable_text(plan: Plan) -> str:
    these = f"these {count(plan.samples, 'sample')} with {_attempts(plan.repeats)} each"
    if plan.detectable is None:
        return f"The minimum detectable effect of {these} is unknown: they do not vary."
    effect = f"{number(plan.detectable)} at {percent(plan.power)} power"
    return f"Minimum detectable effect of {these}: {effect}."


def _repeats_text(plan: Plan) -> str:
    aim = f"these samples enough to detect {number(plan.detect)}"
    if plan.repeats_for_these is None:
        if plan.components.within is None or not plan.variance_known:
            return f"Whether any number of repeats would make {aim} is unknown."
        return f"No number of repeats would make {aim}."
    if plan.repeats_for_these <= plan.repeats:
        return f"They are enough to detect {number(plan.detect)}."
    return f"{plan.repeats_for_these:,} repeats would make {aim}."


def notes(plan: Plan) -> list[str]:
    """Say what a plan assumes, and what would replace the assumption."""
    lines = []
    if not plan.variance_known:
        lines.append(
            "with one attempt per sample, the variance between attempts is unknown, hence the "
            "ranges; run a few samples several times (--epochs) to narrow them"
        )
    if plan.correlation_assumed:
        lines.append(
            "the two runs are assumed to be uncorrelated, the worst case; with a second run on "
            "these samples (--baseline) the correlation is estimated, and usually fewer are needed"
        )
    lines += [f"{run} is not finished: what ends first may vary less" for run in plan.unfinished]
    if plan.clusters is not None:
        key = "content: equal ones are one" if plan.cluster is None else plan.cluster
        rough = "; from so few clusters that is rough" if plan.clusters < FEW_CLUSTERS else ""
        lines.append(
            f"{plan.design_effect:.2f} times as many, since samples come in {plan.clusters} "
            f"clusters by {key}{rough}"
        )
    lines.append(
        f"this is for a true difference of {number(plan.detect)}; an inconclusive `heldout gate` "
        "names another number, since it plans for the difference that it measured and its distance "
        "from the bound"
    )
    return lines
