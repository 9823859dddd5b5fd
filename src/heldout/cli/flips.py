"""`heldout flips RUN`: which samples a training gained and lost between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from heldout._format import samples

if TYPE_CHECKING:
    from heldout.training.curve import CurvePoint
    from heldout.training.flips import Change, Flips

SETTINGS = ("attention", "dtype", "temperature", "top_p", "max_new")
"""What a point says of decoding that can change answers; the rest is how fast it went."""

MOST_CHANGES = 10
"""Of each kind, where rewards pass nothing: nearly all of them change."""


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

    Where rewards are returns, which pass nothing, it prints whose reward rose and whose fell."""
    from heldout.cli._tables import print_json
    from heldout.cli.curve import open_curve
    from heldout.training.flips import flips

    curve = open_curve(run)
    results = _of_label([point for point in curve.points if point.has_result], label)
    before = _at(results, first, default=0)
    after = _at(results, last, default=-1)
    threshold = curve.pass_threshold if _has_passes(before, after) else None
    found = flips(before, after, threshold)
    if as_json:
        print_json(_as_dict(before, after, found, threshold))
    else:
        _print(before, after, found, threshold)


def _has_passes(before: CurvePoint, after: CurvePoint) -> bool:
    """Whether a reward can pass: of returns there is no pass rate."""
    rates = before.number("pass_rate"), after.number("pass_rate")
    return not (before.outcomes and after.outcomes) or rates != (None, None)


def _of_label(results: list[CurvePoint], label: str | None) -> list[CurvePoint]:
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


def _at(results: Sequence[CurvePoint], step: int | None, *, default: int) -> CurvePoint:
    from heldout.cli._load import list_steps
    from heldout.errors import InvalidInput

    found = [point for point in results if point.step == step]
    if step is None and results:
        return results[default]
    if not found:
        steps = list_steps(point.step for point in results)
        raise InvalidInput(f"no result at step {step}; {steps}" if step is not None else steps)
    return found[0]


def _as_dict(
    before: CurvePoint, after: CurvePoint, found: Flips, pass_threshold: float | None
) -> dict[str, Any]:
    changes = {
        name: [{"id": c.id, "before": c.before, "after": c.after} for c in changed]
        for name, changed in (("gained", found.gained), ("lost", found.lost))
    }
    return {
        "label": after.label,
        "from": before.step,
        "to": after.step,
        "pass_threshold": pass_threshold,
        "compared": found.compared,
        "stayed_passing": found.stayed_passing,
        "stayed_failing": found.stayed_failing,
        **({"unchanged": found.unchanged} if pass_threshold is None else {}),
        "errored": found.errored,
        "not_in_both": found.not_in_both,
        "difference": found.difference,
        "stderr": found.stderr,
        "ci_low": found.interval.low if found.interval else None,
        "ci_high": found.interval.high if found.interval else None,
        "p_value": found.p_value,
        **changes,
    }


def _print(
    before: CurvePoint, after: CurvePoint, found: Flips, pass_threshold: float | None
) -> None:
    from heldout._format import interval, number
    from heldout.cli._tables import as_line, make_console, make_table

    console = make_console()
    title = as_line(after.label, "bold")
    console.print(title.append(f", step {before.step} to {after.step}", "not bold"))
    if found.gained or found.lost:
        table = make_table()
        table.add_column("")
        table.add_column("sample", overflow="fold")
        table.add_column(f"at {before.step}", justify="right", no_wrap=True)
        table.add_column(f"at {after.step}", justify="right", no_wrap=True)
        for name, style, changed in (
            ("gained", "green", found.gained),
            ("lost", "red", found.lost),
        ):
            if pass_threshold is None:
                changed = _largest(changed)
            for change in changed:
                table.add_row(
                    as_line(name, style),
                    as_line(change.id),
                    number(change.before),
                    number(change.after),
                )
        console.print(table)
    if pass_threshold is None:
        gained, lost = f"{len(found.gained)} gained", f"{len(found.lost)} lost"
        if max(len(found.gained), len(found.lost)) > MOST_CHANGES:
            gained += f" (the largest {MOST_CHANGES} of each are listed, all with --json)"
        console.print(
            f"{samples(found.compared)} compared by reward: {gained}, {lost}, "
            f"{found.unchanged} unchanged"
        )
    else:
        console.print(
            f"{samples(found.compared)} compared (passed: ≥ {pass_threshold:g}): "
            f"{len(found.gained)} gained, {len(found.lost)} lost, "
            f"{found.stayed_passing} still pass, {found.stayed_failing} still fail"
        )
    if found.difference is not None:
        low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
        around = interval(low, high) if found.interval else "no interval, all changed alike"
        console.print(f"mean reward changed by {found.difference:+.3f} (95%, paired: {around})")
    for text in _warnings(before, after, found):
        console.print(as_line(text, "yellow"))


def _largest(changes: Sequence[Change]) -> tuple[Change, ...]:
    ordered = sorted(changes, key=lambda change: -abs(change.after - change.before))
    return tuple(ordered[:MOST_CHANGES])


def _warnings(before: CurvePoint, after: CurvePoint, found: Flips) -> list[str]:
    """What the comparison does not cover, or is not made for."""
    texts = []
    if found.not_in_both:
        texts.append(f"run at only one of the steps: {samples(found.not_in_both)}")
    if found.errored:
        texts.append(
            f"not compared, for want of a score at one of the steps: {samples(found.errored)}"
        )
    if not found.compared:
        texts.append("the curve has no scores of samples that both steps share")
    one, other = before.decoding or {}, after.decoding or {}
    changed = [name for name in SETTINGS if one.get(name) != other.get(name)]
    if changed:
        texts.append(f"not the policy alone changed, but how it was run, too: {', '.join(changed)}")
    return texts
