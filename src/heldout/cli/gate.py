"""`heldout gate RUN`: may it replace the baseline? For CI: the exit code is the verdict.

0 passes, 1 fails, 3 is inconclusive; 2 and 4 are no verdict at all (see `cli/main.py`, which also
prints a refusal as Markdown for --markdown).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from heldout._format import count, interval, list_some, number, percent
from heldout.analysis import Check, Gate, Reading, Side, gate
from heldout.cli import compare
from heldout.cli._load import load_report
from heldout.cli._tables import (
    Block,
    Column,
    Line,
    Report,
    Section,
    Span,
    Table,
    code,
    number_columns,
    pick,
    print_json,
    print_report,
)
from heldout.cli.compare import interval_text
from heldout.cli.main import forget_stdout
from heldout.cli.show import in_order

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
    "The number of samples is for the difference measured here and its distance from the bound; "
    "`heldout power` names another, since it plans for a true difference that you choose."
)


@click.command("gate")
@click.argument("run")
@click.option("--baseline", metavar="RUN", help="The run to compare it with.")
@click.option(
    "--no-worse-than",
    type=float,
    metavar="LOSS",
    help="Non-inferiority margin: the loss against the baseline that is tolerated, such as 0.01.",
)
@click.option("--min-mean", type=float, metavar="MEAN", help="The mean has to be at least this.")
@click.option("--max-mean", type=float, metavar="MEAN", help="The mean has to be at most this.")
@click.option("--lower-is-better", is_flag=True, help="For a metric such as a loss or a length.")
@click.option(
    "--by",
    "by",
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
    """Check RUN against a baseline, a minimum or maximum mean, or all of them.

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
            print_json(_gate_json(verdict, flips))
        else:
            print_report(_build_report(verdict, flips, markdown=markdown), markdown=markdown)
        sys.stdout.flush()
    except BrokenPipeError:
        forget_stdout()  # the verdict stands, whether or not it is read
    raise click.exceptions.Exit(verdict.exit_code)


def _build_report(gate: Gate, flips: int | None, *, markdown: bool) -> Report:
    checks = _sort_checks(gate)
    sides = _sides(gate)
    blocks: list[Block] = [compare.side_line(label, side) for label, side in sides.items()]
    blocks += [_headline(label.partition(",")[0], side) for label, side in sides.items()]
    if gate.comparison is not None:
        blocks.append(compare.pairing_line(gate.comparison))
    blocks += [_build_table(gate, checks), *map(Line, _footnotes(gate))]
    blocks += [
        Line(code(_check_name(check, gate)), f": {_reason(check, gate)}")
        for check in checks
        if check.outcome != "pass"
    ]
    if any(check.needed is not None for check in checks):
        blocks.append(Line(WHY_ANOTHER_NUMBER, style="dim"))
    if gate.comparison is not None:
        if gate.comparison.by and markdown:
            title = count(len(gate.comparison.slices), "slice")
            blocks.append(Section(title, compare.slice_blocks(gate.comparison)))
        blocks += compare.flip_blocks(gate.comparison, flips, markdown=markdown)
        blocks += compare.remark_lines(gate.comparison)
    _, style, icon = OUTCOMES[gate.outcome]
    return Report(blocks, conclusion=conclude(gate), style=f"bold {style}", icon=icon)


def _sides(gate: Gate) -> dict[str, Side]:
    if gate.comparison is None:
        return {"the run": gate.run}
    return {"A, the baseline": gate.comparison.a, "B, the run": gate.comparison.b}


def _headline(label: str, side: Side) -> Line:
    """Give the first row of `heldout show`, so that the two are seen to agree."""
    summary = side.report.summary
    errors = ", errored ones as 0" if side.errored else ""
    bounds = interval(summary["ci_low"], summary["ci_high"])
    items = count(summary["n"], "item")
    text = f"reward of {label}: {number(summary['mean'])} ({bounds}), {items}{errors}"
    return Line(text)


# --- Checks -------------------------------------------------------------------------------------


def _sort_checks(gate: Gate) -> list[Check]:
    """Order checks: overall, slices as people sort them, means."""
    slices = {tuple(check.slice.values()): check for check in gate.checks if check.slice}
    ordered = iter([slices[label] for label in in_order(slices)])
    return [next(ordered) if check.slice else check for check in gate.checks]


def _check_name(check: Check, gate: Gate) -> str:
    """Name a check: no worse than before by 0.01, level=easy, mean at least 0.5."""
    if check.slice is not None:
        return compare.slice_name(check.slice, check.slice.values())
    if check.kind == "min_mean":
        return f"mean at least {check.bound:g}"
    if check.kind == "max_mean":
        return f"mean at most {check.bound:g}"
    baseline = gate.comparison.a.name if gate.comparison else "the baseline"
    return f"no worse than {baseline} by {abs(check.bound):g}"


def _build_table(gate: Gate, checks: Sequence[Check]) -> Table:
    columns = [
        Column(""),
        Column("check", wrap=True),
        *number_columns("estimate"),
        Column(f"{percent(gate.confidence)} interval"),
        *number_columns("bound", "n"),
    ]
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
    return Table(columns, rows)


def _estimate_text(check: Check, estimate: float | None) -> str:
    return number(estimate, sign=check.kind in ("overall", "slice"))


def _footnotes(gate: Gate) -> Iterator[str]:
    if any(side.errored for side in _sides(gate).values()):
        yield "The table leaves out errored items, which the rewards above count as 0."
    if gate.comparison is None and any(check.n < gate.run.samples for check in gate.checks):
        yield (
            f"Of {gate.run.samples} samples, those of one cluster (of equal input and ground "
            "truth, unless --cluster names another key) count once."
        )


def _reason(check: Check, gate: Gate) -> str:
    """Say why a check has its outcome, and how many samples would decide it."""
    text = _reason_of_outcome(check, gate)
    if check.outcome != "inconclusive":
        return text
    if check.needed is None:
        return f"{text}; how many samples would decide is unknown"
    of = " of that slice" if check.kind == "slice" else ""
    return f"{text}; about {check.needed:,} samples{of} would decide at 80% power"


def _reason_of_outcome(check: Check, gate: Gate) -> str:
    scored, with_errors = check.scored, check.with_errors
    if scored is None:
        text = "no sample of it has a value on both sides"
        if with_errors is not None:
            text += f"; with errored items counted: {_reading_text(check, with_errors)}"
        return text
    if with_errors is not None and check.disputed:
        return (
            f"without errored items: {scored.outcome}; with them: {with_errors.outcome}, "
            f"{_reading_text(check, with_errors)}"
        )
    if scored.interval is None:
        return "the values say nothing about how much they vary"
    noun = "interval"
    slices = compare.slice_count(gate.comparison) if gate.comparison else 0
    if check.corrected and slices > 1:
        noun = f"interval, corrected for {slices} slices,"
    if check.outcome == "inconclusive":
        return f"{check.bound:g} is inside the {noun.rstrip(',')}"
    side = "right" if check.outcome == "pass" else "wrong"
    return f"the whole {noun} is on the {side} side of {check.bound:g}"


def _reading_text(check: Check, reading: Reading) -> str:
    around = "" if reading.interval is None else f" ({interval_text(reading.interval)})"
    return f"{_estimate_text(check, reading.estimate)}{around}, on {reading.n} samples"


# --- Conclusion ---------------------------------------------------------------------------------


def conclude(gate: Gate) -> str:
    """State the verdict, and the checks behind it."""
    if gate.outcome == "pass":
        return "Passes."
    decisive = [check for check in _sort_checks(gate) if check.outcome == gate.outcome]
    names = list_some([_check_name(check, gate) for check in decisive], CHECKS_NAMED)
    if gate.outcome == "fail":
        return f"Fails: {names}."
    if gate.outcome == "inconclusive":
        help = " Running the errored items again (--resume) may help."
        disputed = any(check.disputed for check in decisive)
        return f"Inconclusive at this n: {names}.{help if disputed else ''}"
    errored = sum(side.errored for side in _sides(gate).values())
    if errored == 0:  # slices that one run lacks
        return f"No verdict: there is no value on both sides: {names}."
    items = count(errored, "errored item")
    return f"No verdict: it depends on what {items} count as: {names}. Run again (--resume)."


# --- JSON ---------------------------------------------------------------------------------------


def _gate_json(gate: Gate, flips: int | None) -> dict[str, Any]:
    return {
        **pick(gate, "outcome", "exit_code", "metric", "confidence"),
        "run": compare.side_json(gate.run),
        "checks": [_check_json(check, gate) for check in gate.checks],
        "comparison": gate.comparison and compare.comparison_json(gate.comparison, flips),
    }


def _check_json(check: Check, gate: Gate) -> dict[str, Any]:
    other = check.with_errors if check.disputed else None
    return {
        "name": _check_name(check, gate),
        **pick(check, "kind", "slice", "outcome", "estimate", "corrected", "bound", "n", "needed"),
        **compare.interval_json(check.interval),
        "why": _reason_of_outcome(check, gate),
        "other": other and _reading_text(check, other),
    }
