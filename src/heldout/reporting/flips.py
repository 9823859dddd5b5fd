"""Samples that pass in one of two evals alone: found, listed with their texts, and counted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from heldout._core.format import cut, cut_middle, interval, number, samples
from heldout.errors import InvalidInput
from heldout.reporting.blocks import Line, Span, name
from heldout.reporting.names import list_result_steps
from heldout.store.report import EvalReport
from heldout.training.curve.curve_file import explain_missing, saved_eval
from heldout.training.curve.flips import Flips
from heldout.training.curve.flips import flips as find_flips
from heldout.training.curve.points import CurvePoint

FLIP_CHARACTERS = 240
"""Characters of a question or an answer in a list of flips, at the most."""
ANSWER_SETTINGS = ("attention", "dtype", "temperature", "top_p", "max_new")
"""Settings of decoding that can change answers; the others are about speed."""


class SampleTexts(NamedTuple):
    """What a sample asks, and what was answered."""

    question: str
    target: str | None
    answer: str
    """Of the first attempt; the error where it has none."""


def read_texts(report: EvalReport, ids: Collection[str]) -> dict[str, SampleTexts]:
    """Read the texts of some samples by id, of the first attempt each, where they have messages."""
    texts: dict[str, SampleTexts] = {}
    for result in report.results if ids else ():
        if result.sample_id in ids and result.sample_id not in texts and result.trajectory.messages:
            target = result.sample.ground_truth
            texts[result.sample_id] = SampleTexts(
                result.question,
                None if target is None else str(target),
                result.trajectory.answer if result.ok else f"error: {result.error}",
            )
            if len(texts) == len(ids):
                break
    return texts


OF_REPEATS = "rewards are means over a sample's attempts, and answers are those of the first"


class Flip(NamedTuple):
    """A sample that is "gained" or "lost", its rewards in two runs, and its texts where known."""

    kind: str
    id: str
    rewards: tuple[float, float]
    texts: tuple[SampleTexts | None, SampleTexts | None]

    def label_texts(self, a: str, b: str) -> dict[str, str | None]:
        """Return question, target and both answers by label; empty where none is known."""
        of_a, of_b = self.texts
        either = of_a or of_b
        if either is None:
            return {}
        answers = {a: of_a.answer if of_a else None, b: of_b.answer if of_b else None}
        return {"question": either.question, "target": either.target, **answers}

    def as_dict(self, a: str, b: str) -> dict[str, Any]:
        """Return plain values for JSON; `a` and `b` are the names of the two rewards."""
        rewards = {a: self.rewards[0], b: self.rewards[1]}
        return {"id": self.id, **rewards, **self.label_texts(f"answer_{a}", f"answer_{b}")}


def build_flips(flips: Iterable[Flip], a: str, b: str, width: int) -> list[Line]:
    """List samples that flipped from `a` to `b`, with question, target and both answers.

    Args:
        flips: The samples.
        a: What the first of two evals is called.
        b: What the second one is called.
        width: Columns of the terminal; longer texts are shortened.
    """
    margin = max(len("question"), len(a), len(b)) + 2
    longest = max(40, min(width, FLIP_CHARACTERS)) - margin
    lines = []
    for flip in flips:
        kind = Span(f"{flip.kind} ", {"gained": "green", "lost": "red"}[flip.kind])
        change = Span(f"  {number(flip.rewards[0])} → {number(flip.rewards[1])}", "dim")
        lines.append(Line(kind, name(flip.id), change, wrap=False))
        for label, text in flip.label_texts(a, b).items():
            shorten = cut_middle if label == "question" else cut
            content = "–" if text is None else shorten(" ".join(text.split()), longest)
            lines.append(Line(Span(f"{label:<{margin}}", "dim"), content, wrap=False))
    return lines


class StepChange(NamedTuple):
    """What changed between two points of a curve."""

    before: CurvePoint
    after: CurvePoint
    flips: Flips
    pass_threshold: float | None
    """The reward that passes; None where rewards are returns, which do not pass or fail."""


def compare_steps(
    results: Sequence[CurvePoint], first: int | None, last: int | None, pass_threshold: float | None
) -> StepChange:
    """Compare two steps of one label; by default the first with the last."""
    before, after = _point_at(results, first, 0), _point_at(results, last, -1)
    rates = before.number("pass_rate"), after.number("pass_rate")
    has_passes = not (before.outcomes and after.outcomes) or rates != (None, None)
    threshold = pass_threshold if has_passes else None
    return StepChange(before, after, find_flips(before, after, threshold), threshold)


def _point_at(results: Sequence[CurvePoint], step: int | None, default: int) -> CurvePoint:
    points = [point for point in results if step in (None, point.step)]
    if not points:
        steps = list_result_steps(results)
        raise InvalidInput(f"no result at step {step}; {steps}" if step is not None else steps)
    return points[default if step is None else 0]


def list_step_flips(path: Path, change: StepChange, limit: int | None) -> list[Flip]:
    """List the largest changes, with their texts where the conversations were saved."""
    chosen = []
    for kind, changes in (("gained", change.flips.gained), ("lost", change.flips.lost)):
        ordered = sorted(changes, key=lambda change: -abs(change.after - change.before))
        chosen += [(kind, flip) for flip in (changes if limit is None else ordered[:limit])]
    ids = {flip.id for _, flip in chosen}
    directories = [saved_eval(path, point) for point in (change.before, change.after)]
    old, new = (read_texts(EvalReport.load(d), ids) if d else {} for d in directories)
    return [
        Flip(kind, flip.id, (flip.before, flip.after), (old.get(flip.id), new.get(flip.id)))
        for kind, flip in chosen
    ]


def describe_missing(path: Path, points: Sequence[CurvePoint], change: StepChange) -> list[Line]:
    """Say whose answers cannot be listed, since they were removed."""
    missing = (explain_missing(path, points, point) for point in (change.before, change.after))
    return [Line(text, style="yellow") for text in missing if text is not None]


def describe_flips(change: StepChange) -> list[Line]:
    """Say how many samples changed, how far the mean did, and what limits that."""
    before, after, flips, pass_threshold = change
    counts = f"{len(flips.gained)} gained, {len(flips.lost)} lost, "
    if pass_threshold is None:
        text = f"{samples(flips.compared)} compared by reward: {counts}{flips.unchanged} unchanged"
    else:
        text = (
            f"{samples(flips.compared)} compared (passed: ≥ {pass_threshold:g}): {counts}"
            f"{flips.stayed_passing} still pass, {flips.stayed_failing} still fail"
        )
    lines = [Line(text)]
    if flips.difference is not None:
        bounds = flips.interval
        around = interval(bounds.low, bounds.high) if bounds else "no interval, all changed alike"
        lines.append(
            Line(f"mean reward changed by {flips.difference:+.3f} (95%, paired: {around})")
        )
    has_repeats = any(o.repeat for point in (before, after) for o in point.outcomes)
    if has_repeats and (flips.gained or flips.lost):
        lines.append(Line(OF_REPEATS))
    old, new = before.decoding or {}, after.decoding or {}
    changed = [setting for setting in ANSWER_SETTINGS if old.get(setting) != new.get(setting)]
    warnings = {
        f"run at only one of the steps: {samples(flips.not_in_both)}": flips.not_in_both,
        f"not compared, without a score at one of the steps: {samples(flips.errored)}": (
            flips.errored
        ),
        "the curve has no scores of samples that both steps share": not flips.compared,
        f"not the policy alone changed, but its decoding, too: {', '.join(changed)}": changed,
    }
    return [*lines, *(Line(text, style="yellow") for text, holds in warnings.items() if holds)]
