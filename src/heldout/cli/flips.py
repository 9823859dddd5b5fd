"""`heldout flips RUN`: which samples a training run gained and lost between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from heldout._format import interval, number, samples
from heldout.cli._tables import (
    Block,
    Column,
    Line,
    Report,
    Span,
    Table,
    code,
    name,
    print_json,
    print_report,
)

if TYPE_CHECKING:
    from heldout.training.curve import CurvePoint
    from heldout.training.flips import Change, Flips

SETTINGS = ("attention", "dtype", "temperature", "top_p", "max_new")
"""Settings of decoding that can change answers; the others are about speed."""
CHANGES_LISTED = 10
"""Changes of each kind, where rewards do not pass or fail: nearly all of them change."""


@click.command("flips")
@click.argument("run")
@click.option("--from", "first", type=int, metavar="STEP", help="Default: the first with a result.")
@click.option("--to", "last", type=int, metavar="STEP", help="Default: the last with a result.")
@click.option("--label", help="Which eval, where a curve has several.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, on one line.")
def command(
    run: str, first: int | None, last: int | None, label: str | None, as_json: bool
) -> None:
    """Print which samples of RUN pass at one step and fail at another.

    Where rewards are returns, which do not pass or fail, print whose reward rose and whose fell.
    """
    from heldout.cli.curve import open_curve
    from heldout.training.flips import flips

    curve = open_curve(run)
    results = _select_label([point for point in curve.points if point.has_result], label)
    before = _point_at(results, first, default=0)
    after = _point_at(results, last, default=-1)
    threshold = curve.pass_threshold if _has_passes(before, after) else None
    changes = flips(before, after, threshold)
    if as_json:
        print_json(_flips_json(before, after, changes, threshold))
    else:
        print_report(_report(before, after, changes, threshold))


def _has_passes(before: CurvePoint, after: CurvePoint) -> bool:
    """Tell whether a reward can pass: of returns there is no pass rate."""
    rates = before.number("pass_rate"), after.number("pass_rate")
    return not (before.outcomes and after.outcomes) or rates != (None, None)


def _select_label(results: list[CurvePoint], label: str | None) -> list[CurvePoint]:
    from heldout.errors import InvalidInput

    labels = sorted({point.label for point in results})
    if label is None and len(labels) > 1:
        raise InvalidInput(
            f"of which eval? The curve has several: add --label {labels[0]!r}, say; "
            f"there are {', '.join(labels)}"
        )
    if label is not None and label not in labels:
        raise InvalidInput(f"the curve has no eval {label!r}; it has {', '.join(labels)}")
    return [point for point in results if label in (None, point.label)]


def _point_at(results: Sequence[CurvePoint], step: int | None, *, default: int) -> CurvePoint:
    from heldout.cli._load import list_steps
    from heldout.errors import InvalidInput

    if step is None and results:
        return results[default]
    points = [point for point in results if point.step == step]
    if not points:
        steps = list_steps(point.step for point in results)
        raise InvalidInput(f"no result at step {step}; {steps}" if step is not None else steps)
    return points[0]


def _flips_json(
    before: CurvePoint, after: CurvePoint, flips: Flips, pass_threshold: float | None
) -> dict[str, Any]:
    changes = {
        name: [{"id": c.id, "before": c.before, "after": c.after} for c in changed]
        for name, changed in (("gained", flips.gained), ("lost", flips.lost))
    }
    return {
        "label": after.label,
        "from": before.step,
        "to": after.step,
        "pass_threshold": pass_threshold,
        "compared": flips.compared,
        "stayed_passing": flips.stayed_passing,
        "stayed_failing": flips.stayed_failing,
        **({"unchanged": flips.unchanged} if pass_threshold is None else {}),
        "errored": flips.errored,
        "not_in_both": flips.not_in_both,
        "difference": flips.difference,
        "stderr": flips.stderr,
        "ci_low": flips.interval.low if flips.interval else None,
        "ci_high": flips.interval.high if flips.interval else None,
        "p_value": flips.p_value,
        **changes,
    }


def _report(
    before: CurvePoint, after: CurvePoint, flips: Flips, pass_threshold: float | None
) -> Report:
    blocks: list[Block] = [Line(name(after.label), f", step {before.step} to {after.step}")]
    rows = [
        (Span(label, style), code(change.id), number(change.before), number(change.after))
        for label, style, changes in (
            ("gained", "green", flips.gained),
            ("lost", "red", flips.lost),
        )
        for change in (_largest(changes) if pass_threshold is None else changes)
    ]
    if rows:
        columns = [
            Column(""),
            Column("sample", wrap=True),
            Column(f"at {before.step}", "right"),
            Column(f"at {after.step}", "right"),
        ]
        blocks.append(Table(columns, rows))
    blocks.append(Line(_counts_text(flips, pass_threshold)))
    if flips.difference is not None:
        around = "no interval, all changed alike"
        if flips.interval is not None:
            around = interval(flips.interval.low, flips.interval.high)
        change = f"{flips.difference:+.3f} (95%, paired: {around})"
        blocks.append(Line(f"mean reward changed by {change}"))
    blocks += [Line(text, style="yellow") for text in _warnings(before, after, flips)]
    return Report(blocks)


def _counts_text(flips: Flips, pass_threshold: float | None) -> str:
    gained, lost = len(flips.gained), len(flips.lost)
    if pass_threshold is not None:
        return (
            f"{samples(flips.compared)} compared (passed: ≥ {pass_threshold:g}): {gained} gained, "
            f"{lost} lost, {flips.stayed_passing} still pass, {flips.stayed_failing} still fail"
        )
    listed = ""
    if max(gained, lost) > CHANGES_LISTED:
        listed = f" (the largest {CHANGES_LISTED} of each are listed, all with --json)"
    return (
        f"{samples(flips.compared)} compared by reward: {gained} gained{listed}, {lost} lost, "
        f"{flips.unchanged} unchanged"
    )


def _largest(changes: Sequence[Change]) -> tuple[Change, ...]:
    ordered = sorted(changes, key=lambda change: -abs(change.after - change.before))
    return tuple(ordered[:CHANGES_LISTED])


def _warnings(before: CurvePoint, after: CurvePoint, flips: Flips) -> list[str]:
    """Say what the comparison does not cover, or is not made for."""
    texts = []
    if flips.not_in_both:
        texts.append(f"run at only one of the steps: {samples(flips.not_in_both)}")
    if flips.errored:
        texts.append(f"not compared, without a score at one of the steps: {samples(flips.errored)}")
    if not flips.compared:
        texts.append("the curve has no scores of samples that both steps share")
    old, new = before.decoding or {}, after.decoding or {}
    changed = [name for name in SETTINGS if old.get(name) != new.get(name)]
    if changed:
        texts.append(f"not the policy alone changed, but its decoding, too: {', '.join(changed)}")
    return texts
