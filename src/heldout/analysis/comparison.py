"""What a comparison of two reports found: values, and how JSON has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, overload

from heldout.analysis.comparable import Mismatch
from heldout.analysis.measures import Measure
from heldout.stats import Floats, Ints, PairedDifference, SliceDifference, UnpairedDifference

Difference = PairedDifference | UnpairedDifference
Verdict = Literal["better", "worse", "higher", "lower", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two reports."""

    name: str
    path: Path | None
    samples: int
    items: int
    errored: int
    """Items without a score."""
    left_out: int
    """Samples that are not in the comparison: the other side lacks them, or a score of them."""

    def as_dict(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**plain, "path": None if self.path is None else str(self.path)}


@dataclass(frozen=True, slots=True)
class Change:
    """A sample that passes on one side and fails on the other; rewards are means of repeats."""

    id: str
    a: float
    b: float


class Changes(Sequence[Change]):
    """Changes, each made when it is asked for: of a million samples many may flip."""

    def __init__(self, ids: Sequence[str], places: Ints, a: Floats, b: Floats) -> None:
        self._ids, self._places, self._a, self._b = ids, places, a, b

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Change: ...
    @overload
    def __getitem__(self, place: slice) -> list[Change]: ...
    def __getitem__(self, place: int | slice) -> Change | list[Change]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        id = self._ids[int(self._places[place])]
        return Change(id, float(self._a[place]), float(self._b[place]))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Changes({len(self)})"


@dataclass(frozen=True, slots=True)
class Comparison:
    a: Side
    b: Side
    metric: str
    """"reward", "passed", "pass@k", "pass^k", or the name of a metric."""
    pass_threshold: float
    confidence: float
    overall: Difference
    """Over the samples that have a score on both sides."""
    errors_as: float | None
    """What errored items count as in the second reading: 0, or the least value that there is where
    some are negative. None where nothing errored: there is one reading."""
    with_errors: Difference | None
    """The second reading."""
    minimum_detectable: float | None
    """The true difference that this comparison would have seen four times in five."""
    by: tuple[str, ...]
    slices: tuple[SliceDifference, ...]
    """`label` is a tuple of values, one for each key in `by`."""
    slices_with_errors: tuple[SliceDifference, ...]
    """In the second reading; empty where there is none."""
    slices_not_compared: tuple[tuple[Any, ...], ...]
    """Labels of slices of which no sample has a value on both sides."""
    gained: Sequence[Change]
    """Samples that fail in A and pass in B; none where the samples are not paired."""
    lost: Sequence[Change]
    mismatches: tuple[Mismatch, ...]
    notes: tuple[str, ...]
    """What else differs, or limits what the comparison says."""
    same_answers: bool = False
    """Both score the same trajectories: what differs is the grader's, and nobody is better."""

    @property
    def paired(self) -> bool:
        return isinstance(self.overall, PairedDifference)

    @property
    def verdict(self) -> Verdict:
        """Of B, by the interval of the difference; in both readings, where items errored.

        "higher" and "lower" for a metric of one's own, since nobody knows which of them is better,
        and for the same answers scored twice, since none is.
        """
        signs = {_sign(reading) for reading in (self.overall, self.with_errors) if reading}
        if signs == {1}:
            return "better" if self.is_judged else "higher"
        if signs == {-1}:
            return "worse" if self.is_judged else "lower"
        return "cannot tell"

    @property
    def is_judged(self) -> bool:
        return Measure(self.metric, self.pass_threshold).is_judged and not self.same_answers

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: plain values, stable keys."""
        return {
            "verdict": self.verdict,
            "metric": self.metric,
            "pass_threshold": self.pass_threshold,
            "confidence": self.confidence,
            "paired": self.paired,
            "a": self.a.as_dict(),
            "b": self.b.as_dict(),
            "errors_as": self.errors_as,
            "overall": difference_dict(self.overall),
            "with_errors": self.with_errors and difference_dict(self.with_errors),
            "minimum_detectable": self.minimum_detectable,
            "by": list(self.by),
            "slices": [_slice_dict(self.by, part) for part in self.slices],
            "slices_with_errors": [_slice_dict(self.by, part) for part in self.slices_with_errors],
            "slices_not_compared": [
                dict(zip(self.by, label, strict=True)) for label in self.slices_not_compared
            ],
            "gained": [{"id": each.id, "a": each.a, "b": each.b} for each in self.gained],
            "lost": [{"id": each.id, "a": each.a, "b": each.b} for each in self.lost],
            "mismatches": [{"kind": each.kind, "text": each.text} for each in self.mismatches],
            "notes": list(self.notes),
        }


def _sign(difference: Difference) -> int:
    interval = difference.interval
    return 0 if interval is None else int(interval.low > 0) - int(interval.high < 0)


# --- As JSON has it -----------------------------------------------------------------------------


def difference_dict(difference: Difference) -> dict[str, Any]:
    hidden = {"evidence", "sides", "interval", "confidence"}
    plain = {
        field.name: getattr(difference, field.name)
        for field in fields(difference)
        if field.name not in hidden
    }
    interval = difference.interval
    return {
        **plain,
        "ci_low": interval and interval.low,
        "ci_high": interval and interval.high,
    }


def _slice_dict(by: Sequence[str], part: SliceDifference) -> dict[str, Any]:
    assert isinstance(part.label, tuple)
    interval = part.simultaneous_interval
    return {
        "slice": dict(zip(by, part.label, strict=True)),
        **difference_dict(part.difference),
        "adjusted_p_value": part.adjusted_p_value,
        "simultaneous_ci_low": interval and interval.low,
        "simultaneous_ci_high": interval and interval.high,
    }
