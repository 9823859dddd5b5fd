"""`heldout gate RUN`: may it replace the baseline? For CI: the exit code is the verdict.

0 passes, 1 fails, 3 is inconclusive; 2 and 4 are no verdict at all (see `cli/main.py`, which also
prints a refusal as Markdown for --markdown).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, get_args

import click

from heldout._core.format import count, interval, list_some, number, percent
from heldout.analysis import Check, Gate, SampleAttempts, Side, gate
from heldout.analysis.gating import CheckKind
from heldout.cli import compare
from heldout.cli._tables import decide, make_console, pick, print_json, print_report
from heldout.cli.main import forget_stdout
from heldout.reporting import comparisons
from heldout.reporting.blocks import Block, Column, Line, Report, Span, Table, code
from heldout.reporting.comparisons import interval_text
from heldout.reporting.names import load_report
from heldout.reporting.summaries import label_order
from heldout.store.settled import one_comparison

# Sign, colour and sign in Markdown.
OUTCOMES = {
    "pass": ("✓", "green", "✅"),
    "fail": ("✗", "red", "❌"),
    "errored": ("!", "yellow", "❗"),
    "inconclusive": ("?", "yellow", "❔"),
}
CHECKS_NAMED = 3
"""Checks that the conclusion names."""
WHY_ANOTHER_NUMBER = (
    "Numbers of samples are for clearing the bound; `heldout power` names another, since it plans "
    "for finding a true difference that you choose."
)


@click.command("gate")
@click.argument("run")
@click.option("--baseline", metavar="RUN", help="The run to compare it with.")
@click.option(
    "--no-worse-than",
    type=float,
    metavar="LOSS",
    help="Non-inferiority margin: the loss against the baseline that is tolerated, such as 0.05.",
)
@click.option("--min-mean", type=float, metavar="MEAN", help="The mean has to be at least this.")
@click.option("--max-mean", type=float, metavar="MEAN", help="The mean has to be at most this.")
@click.option(
    "--each-sample",
    type=float,
    metavar="SHARE",
    help="The share of its attempts that every sample has to pass, such as 0.8.",
)
@click.option(
    "--by",
    multiple=True,
    metavar="KEY",
    help="Check every slice by this metadata key, too; several combine.",
)
@click.option(
    "--slice-no-worse-than",
    type=float,
    metavar="LOSS",
    help="What is tolerated in a slice.  [default: --no-worse-than]",
)
@compare.comparison_options
def command(
    run: str, baseline: str | None, flips: int | None, format: str | None, **settings: Any
) -> None:
    """Check RUN against a baseline, a minimum or maximum mean, each sample, or several of these.

    A run is a directory, a name under outputs/evals, or an eval of a curve: RUN@STEP, RUN@last
    (RUN@LABEL:STEP, where a run has curves of several labels).

    Exits with 0: passes. 1: fails. 3: inconclusive, there are too few samples. 2: no verdict, since
    the command was not understood, or the runs cannot be read or compared. 4: no verdict, since it
    depends on what errored items count as.
    """
    before = None if baseline is None else load_report(baseline)
    with compare.options_in_errors():
        verdict = gate(load_report(run), baseline=before, **settings)
    markdown = format == "markdown"
    try:
        if format == "json":
            print_json(_gate_json(verdict, flips), "gate")
        else:
            print_report(_build_report(verdict, flips, markdown=markdown), markdown=markdown)
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()  # the verdict stands, whether or not it is read
    raise click.exceptions.Exit(verdict.exit_code)


def _build_report(gate: Gate, flips: int | None, *, markdown: bool) -> Report:
    checks, sides = _sort_checks(gate), _sides(gate)
    blocks: list[Block] = [comparisons.side_line(label, side) for label, side in sides.items()]
    for label, side in sides.items():  # the first row of `heldout show`: the two are seen to agree
        summary = side.report.summary
        mean = f"{number(summary['mean'])} ({interval(summary['ci_low'], summary['ci_high'])})"
        items = count(summary["n"], "item") + ", errored ones as 0" * bool(side.errored)
        blocks.append(Line(f"reward of {label.partition(',')[0]}: {mean}, {items}"))
    if gate.comparison is not None:
        blocks.append(comparisons.pairing_line(gate.comparison))
    if gate.settled is not None:
        blocks.append(Line(f"This run was stopped by its claim: {gate.settled.sentence}"))
    blocks.append(_build_table(gate, checks))
    if (scope := _scope(gate)) is not None:
        blocks.append(Line(scope, style="dim"))
    if any(side.errored for side in sides.values()):
        text = "The table leaves out errored items, which the rewards above count as 0."
        blocks += [Line(text), *_counted_lines(gate, checks)]
    of_means = [check for check in checks if check.kind != "each_sample"]
    if gate.comparison is None and any(check.n < gate.run.samples for check in of_means):
        text = (
            f"Of {gate.run.samples} samples, those of one cluster (of equal input and ground "
            "truth, unless --cluster names another key, such as sample_id) count once."
        )
        blocks.append(Line(text))
    blocks += [
        Line(code(_check_name(check, gate)), f": {_explain(check, gate)}")
        for check in checks
        if check.outcome != "pass"
    ]
    if any(check.needed or check.needed_if_equal for check in checks):
        blocks.append(Line(WHY_ANOTHER_NUMBER, style="dim"))
    if gate.comparison is not None:
        blocks += comparisons.flip_blocks(gate.comparison, flips, markdown, make_console().width)
        blocks += comparisons.remark_lines(gate.comparison)
    elif gate.run.measured_nothing:
        blocks.append(Line(f"note: {comparisons.nothing_new(gate.run.name)}"))
    _, style, icon = OUTCOMES[gate.outcome]
    return Report(blocks, conclusion=conclude(gate), style=f"bold {style}", icon=icon)


def _sides(gate: Gate) -> dict[str, Side]:
    if gate.comparison is None:
        return {"the run": gate.run}
    return {"A, the baseline": gate.comparison.a, "B, the run": gate.comparison.b}


def _scope(gate: Gate) -> str | None:
    """Say that a gate is not corrected for others with the same baseline; None without one."""
    if gate.settled is not None:
        return gate.settled.scope
    return None if gate.comparison is None else one_comparison(gate.comparison.a.name)


# --- Checks -------------------------------------------------------------------------------------


def _sort_checks(gate: Gate) -> list[Check]:
    """Order checks: overall, slices as people sort them, means."""
    kinds = get_args(CheckKind)
    return sorted(
        gate.checks,
        key=lambda check: (kinds.index(check.kind), label_order((check.slice or {}).values())),
    )


def _check_name(check: Check, gate: Gate) -> str:
    """Name a check: no worse than before by 0.01, level=easy, mean at least 0.5."""
    if check.slice is not None:
        return comparisons.slice_name(check.slice, check.slice.values())
    if gate.settled is not None:
        return gate.settled.claim
    if gate.comparison is not None and check.kind == "overall":
        return f"no worse than {gate.comparison.a.name} by {abs(check.bound):g}"
    if check.kind == "each_sample":
        return f"each sample passes at least {check.bound:.12g} of its attempts"
    return f"mean at {'least' if check.kind == 'min_mean' else 'most'} {check.bound:g}"


def _build_table(gate: Gate, checks: Sequence[Check]) -> Table:
    bounds = Column(f"{percent(gate.confidence)} interval")
    rows = [
        (
            Span(f"{OUTCOMES[check.outcome][0]} {check.outcome}", OUTCOMES[check.outcome][1]),
            code(_check_name(check, gate)),
            _estimate_text(check, check.estimate),
            interval_text(check.interval),
            number(check.bound),
            f"{check.n}",
        )
        for check in checks
    ]
    return Table([Column(""), Column("check", wrap=True), "estimate", bounds, "bound", "n"], rows)


def _counted_lines(gate: Gate, checks: Sequence[Check]) -> list[Line]:
    """Say what errored items count as in the checks that count them as something else than 0."""
    named: dict[float, list[str]] = {}
    for check in checks:
        if check.errors_as:
            named.setdefault(check.errors_as, []).append(_check_name(check, gate))
    return [
        Line(
            f"Where it is counted, an errored item is {errors_as:g}, the worst value: "
            f"{list_some(names, CHECKS_NAMED)}."
        )
        for errors_as, names in named.items()
    ]


def _estimate_text(check: Check, estimate: float | None) -> str:
    return number(estimate, sign=check.kind in ("overall", "slice"))


def _explain(check: Check, gate: Gate) -> str:
    """Say why a check has its outcome, and how many samples would decide it."""
    if check.kind == "each_sample":
        return _describe_below(check)
    counted = _describe_counted(check)
    slices = comparisons.slice_count(gate.comparison) if gate.comparison else 0
    corrected = f", corrected for {slices} slices," if check.corrected and slices > 1 else ""
    verbs = {"pass": "is on the right side of", "fail": "is on the wrong side of"}
    if check.scored is None:
        text = "no sample of it has a value on both sides"
        text += f"; with errored items counted: {counted}" if counted else ""
    elif check.with_errors is not None and check.disputed:
        outcomes = f"{check.scored.outcome}; with them: {check.with_errors.outcome}"
        text = f"without errored items: {outcomes}, {counted}"
    elif check.interval is None:
        text = "the values say nothing about how much they vary"
    else:
        text = f"the interval{corrected} {verbs.get(check.outcome, 'contains')} {check.bound:g}"
    if check.outcome != "inconclusive":
        return text
    return f"{text}; {_describe_needed(check)}"


def _describe_below(check: Check) -> str:
    """Name the samples that do not pass often enough."""
    if not check.below:
        return "every sample does; this is about these attempts, not about further ones"

    def describe(sample: SampleAttempts) -> str:
        errored = f", {sample.errored} errored" if sample.errored else ""
        return f"{sample.sample_id} {sample.passed} of {sample.attempts}{errored}"

    named = list_some([describe(sample) for sample in check.below], CHECKS_NAMED)
    verb = "does not" if len(check.below) == 1 else "do not"
    if check.outcome == "errored":
        verb += ", if errored attempts count as failed"
    return f"{count(len(check.below), 'sample')} {verb}: {named}"


def _describe_needed(check: Check) -> str:
    """Say how many samples would decide, and what that assumes."""
    samples = "samples of that slice" if check.kind == "slice" else "samples"
    if check.needed_is_least and check.needed is not None:
        least = f"at least {check.needed:,} {samples} would decide"
        return f"{least}: nothing varies among these, and others may vary"
    estimate = _estimate_text(check, check.estimate)
    numbers = [(check.needed, f"if {estimate} is right")]
    if check.estimate != 0:
        numbers.append((check.needed_if_equal, "if there is no difference"))
    known = [f"about {needed:,} {samples} {why}" for needed, why in numbers if needed is not None]
    if not known:
        return f"how many {samples} would decide is unknown"
    return f"it would decide at 80% power on {', '.join(known)}"


def _describe_counted(check: Check) -> str | None:
    """Return the reading with errored items counted; None if nothing errored."""
    reading = check.with_errors
    if reading is None:
        return None
    around = "" if reading.interval is None else f" ({interval_text(reading.interval)})"
    return f"{_estimate_text(check, reading.estimate)}{around}, on {reading.n} samples"


def conclude(gate: Gate) -> str:
    """State the verdict, and the checks behind it."""
    if gate.outcome == "pass":
        return "Passes."
    decisive = [check for check in _sort_checks(gate) if check.outcome == gate.outcome]
    names = list_some([_check_name(check, gate) for check in decisive], CHECKS_NAMED)
    # What another package ran (`heldout import`) cannot be run again here.
    sides = _sides(gate).values()
    can_rerun = any(side.errored and not side.report.is_imported for side in sides)
    if gate.outcome == "fail":
        return f"Fails: {names}."
    if gate.outcome == "inconclusive":
        help = " Running the errored items again (--resume) may help." if can_rerun else ""
        disputed = any(check.disputed for check in decisive)
        return f"Inconclusive at this n: {names}.{help if disputed else ''}"
    errored = sum(side.errored for side in sides)
    if errored == 0:  # slices that one run lacks
        return f"No verdict: there is no value on both sides: {names}."
    items = count(errored, "errored item")
    help = " Run again (--resume)." if can_rerun else ""
    return f"No verdict: it depends on what {items} count as: {names}.{help}"


# --- JSON ---------------------------------------------------------------------------------------


def _gate_json(gate: Gate, flips: int | None) -> dict[str, Any]:
    fields = ("kind", "slice", "outcome", "estimate", "corrected", "bound", "n", "errors_as")
    checks = [
        {
            "name": _check_name(check, gate),
            **pick(check, *fields),
            **pick(check, "needed", "needed_if_equal", "needed_is_least"),
            "below": [pick(sample, *SampleAttempts.__slots__) for sample in check.below],
            **compare.interval_json(check.interval),
            "why": _explain(check, gate),
            "other": _describe_counted(check) if check.disputed else None,
        }
        for check in gate.checks
    ]
    plain = {
        **pick(gate, "outcome", "exit_code", "metric", "confidence", "settled"),
        "scope": _scope(gate),
        "run": compare.side_json(gate.run),
        "checks": checks,
        "comparison": gate.comparison and compare.comparison_json(gate.comparison, flips),
    }
    return decide(gate.outcome, conclude(gate), plain)
