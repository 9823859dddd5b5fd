"""Is a judge any good? Its verdicts against people's labels, and against its own second opinion.

    check = await check_judge(Judge("openai:gpt-5-mini"), read_labels("labels.jsonl", "equality"))

Each item is asked about as often as `repeats` says, each time anew. Against the labels stands the
first verdict, since that is how a judge is used; against itself every two verdicts on an item.
An item without a verdict is neither right nor wrong: it is named, and bounds say what the agreement
would be if all of those were wrong, or right. Criteria of one item are clustered.

Pairs are asked about in both orders. A verdict is what both orders say; where they contradict each
other it is a tie, as in scoring, and how often a verdict follows the place is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from heldout.analysis.asking import SWAPPED, Asking, OnAnswer, Opinion
from heldout.analysis.labels import CATEGORIES, MET, NOT_MET, Kind, Label, Labelled, labelled
from heldout.errors import InvalidInput, SystemicFailure
from heldout.stats import Agreement, Rate, agreement_of, rate_of
from heldout.types import Usage

if TYPE_CHECKING:
    from heldout.scoring.judges import Judge

FEW_LABELS = 5
"""Of a class; with fewer, intervals cover less than they say (`heldout.stats.agreement`)."""
WORKERS = 64
"""Questions waited for at once, at most; how many requests are under way is the judge's to say."""


@dataclass(frozen=True, slots=True)
class Judged:
    item: Labelled
    draws: tuple[Opinion, ...]

    @property
    def differs(self) -> bool:
        """Whether the first verdict is another than the label."""
        return self.draws[0].verdict is not None and self.draws[0].verdict != self.item.label


@dataclass(frozen=True, slots=True)
class Position:
    """Of pairs that were asked about in both orders, all draws together, clustered by item."""

    same: Rate
    """The same answer was preferred, or it was a tie, in both orders."""
    first: Rate
    """Whichever stood first was preferred, both times."""
    second: Rate


@dataclass(frozen=True, slots=True)
class JudgeCheck:
    kind: Kind
    judge: dict[str, Any]
    repeats: int
    judged: tuple[Judged, ...]
    against_labels: Agreement
    against_itself: Agreement | None
    """None where no item has two verdicts."""
    position: Position | None
    agreement_at_least: float
    """If the judge were wrong wherever it gave no verdict …"""
    agreement_at_most: float
    """… and if it were right there."""
    usage: Usage | None
    """Of all replies that were asked for now, verdicts or not; None where the endpoint does not
    say."""
    verdicts: int
    cached: int
    notes: tuple[str, ...]

    @property
    def no_verdict(self) -> tuple[Judged, ...]:
        """Items whose first draw has none."""
        return tuple(one for one in self.judged if one.draws[0].verdict is None)

    @property
    def later_without(self) -> int:
        """Draws after the first that have no verdict."""
        return sum(draw.verdict is None for one in self.judged for draw in one.draws[1:])

    @property
    def differences(self) -> tuple[Judged, ...]:
        """Where judge and label differ: what it repeats first, then what it wavers on."""
        found = [one for one in self.judged if one.differs]
        return tuple(sorted(found, key=lambda one: -_times_wrong(one)))

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: plain values, stable keys."""
        return {
            "kind": self.kind,
            "judge": self.judge,
            "items": len(self.judged),
            "repeats": self.repeats,
            "against_labels": agreement_dict(self.against_labels),
            "agreement_at_least": self.agreement_at_least,
            "agreement_at_most": self.agreement_at_most,
            "against_itself": self.against_itself and agreement_dict(self.against_itself),
            "position": self.position
            and {
                name: getattr(self.position, name).as_dict() for name in ("same", "first", "second")
            },
            "no_verdict": [
                {"id": one.item.id, "problem": one.draws[0].problem} for one in self.no_verdict
            ],
            "later_draws_without_verdict": self.later_without,
            "usage": self.usage
            and {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
            },
            "verdicts": self.verdicts,
            "cached": self.cached,
            "notes": list(self.notes),
        }


async def check_judge(
    judge: Judge,
    labels: Iterable[Labelled | Mapping[str, Any]],
    *,
    kind: Kind = "equality",
    repeats: int = 2,
    max_concurrent: int = WORKERS,
    on_answer: OnAnswer | None = None,
) -> JudgeCheck:
    """Ask the judge about every labelled answer, and say how far it agrees (module docstring).

    Labels are those of `read_labels`, or dicts like its lines. `on_answer` is told how many
    questions are done, of how many, and how many of them have no verdict. SystemicFailure where
    there is no verdict at all, or where no further request can do better.
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InvalidInput(f"repeats is a whole number >= 1, got {repeats!r}")
    items = labelled(((f"item {i}", row) for i, row in enumerate(labels)), kind)
    if not items:
        raise InvalidInput("no labels: there is nothing to measure the judge against")
    asking = Asking(judge, kind, on_answer, len(items) * repeats)
    places = [(item, draw) for item in range(len(items)) for draw in range(repeats)]
    await asking.all(((items[item], item, draw) for item, draw in places), max_concurrent)
    judged = tuple(
        Judged(item, tuple(asking.opinions[i, draw] for draw in range(repeats)))
        for i, item in enumerate(items)
    )
    return _check(judged, kind, repeats, judge.identity(), asking)


# --- Counting -----------------------------------------------------------------------------------


def _check(
    judged: tuple[Judged, ...],
    kind: Kind,
    repeats: int,
    identity: dict[str, Any],
    asking: Asking,
) -> JudgeCheck:
    answered = [one for one in judged if one.draws[0].verdict is not None]
    if not answered:
        problem = judged[0].draws[0].problem
        raise SystemicFailure(
            f"the judge gave no verdict on any of {len(judged)} items; on {judged[0].item.id!r}: "
            f"{problem}"
        )
    pairs = [
        (one.item.id, *pair)
        for one in answered
        for pair in _pairs(one.item.label, one.draws[0].verdict)
    ]
    against_labels = _agreement(pairs, kind)
    again = [
        (one.item.id, *pair)
        for one in judged
        for a, b in combinations([d.verdict for d in one.draws if d.verdict is not None], 2)
        for pair in _pairs(a, b)
    ]
    missing = sum(len(one.item.criteria) or 1 for one in judged if one.draws[0].verdict is None)
    count, n = against_labels.agreement.count, against_labels.n
    return JudgeCheck(
        kind=kind,
        judge=identity,
        repeats=repeats,
        judged=judged,
        against_labels=against_labels,
        against_itself=_agreement(again, kind) if again else None,
        position=_position(judged) if kind == "pairwise" else None,
        agreement_at_least=count / (n + missing),
        agreement_at_most=(count + missing) / (n + missing),
        usage=asking.usage,
        verdicts=asking.verdicts,
        cached=asking.cached,
        notes=tuple(_notes(against_labels)),
    )


def _pairs(label: Label, verdict: Label | None) -> list[tuple[str, str]]:
    """One, or one for each criterion."""
    if isinstance(label, dict) and isinstance(verdict, dict):
        names = {True: MET, False: NOT_MET}
        return [(names[met], names[verdict[id]]) for id, met in label.items()]
    assert isinstance(label, str), label
    assert isinstance(verdict, str), verdict
    return [(label, verdict)]


def _agreement(pairs: Sequence[tuple[str, str, str]], kind: Kind) -> Agreement:
    ids, rows, columns = zip(*pairs, strict=True)
    return agreement_of(rows, columns, categories=CATEGORIES[kind], clusters=ids)


def _position(judged: Sequence[Judged]) -> Position | None:
    found = [(one.item.id, *draw.places) for one in judged for draw in one.draws if draw.places]
    ids = [id for id, _, _ in found]

    def rate(holds: Callable[[str, str], bool]) -> Rate:
        return rate_of([holds(own, other) for _, own, other in found], clusters=ids)

    return Position(
        same=rate(lambda own, other: own == SWAPPED[other]),
        first=rate(lambda own, other: own == other == "first"),
        second=rate(lambda own, other: own == other == "second"),
    )


def _notes(found: Agreement) -> Iterator[str]:
    labels = [one.name for one in found.classes if one.recall.n]
    verdicts = [one.name for one in found.classes if one.precision.n]
    if len(labels) == 1:
        yield (
            f"every label is {labels[0]!r}: how the judge does on others is not seen, and kappa "
            "and balanced F1 say nothing of it. Add labels of the other kind"
        )
    for one in found.classes:
        if 0 < one.recall.n < FEW_LABELS:
            yield (
                f"{one.recall.n} of {found.n} labels {'is' if one.recall.n == 1 else 'are'} "
                f"{one.name!r}: with fewer than {FEW_LABELS} of a class, intervals of kappa and "
                "balanced F1 are too short"
            )
    if len(labels) > 1 and len(verdicts) == 1:
        yield f"the judge says {verdicts[0]!r} of everything: it tells nothing apart"


def _times_wrong(one: Judged) -> int:
    return sum(draw.verdict is not None and draw.verdict != one.item.label for draw in one.draws)


# --- As JSON has it -----------------------------------------------------------------------------


def agreement_dict(found: Agreement) -> dict[str, Any]:
    def estimate(name: str) -> dict[str, Any]:
        one = getattr(found, name)
        low, high = (one.interval.low, one.interval.high) if one.interval else (None, None)
        return {"value": one.value, "stderr": one.stderr, "ci_low": low, "ci_high": high}

    return {
        "n": found.n,
        "clusters": found.clusters,
        "confidence": found.confidence,
        "agreement": found.agreement.as_dict(),
        "kappa": estimate("kappa"),
        "balanced_f1": estimate("balanced_f1"),
        "categories": list(found.categories),
        "table": [list(row) for row in found.table],
        "classes": [
            {
                "name": one.name,
                "precision": one.precision.as_dict(),
                "recall": one.recall.as_dict(),
                "f1": one.f1,
            }
            for one in found.classes
        ],
    }
