"""Is B better than A? Two reports, compared sample by sample.

    compare("outputs/evals/before", "outputs/evals/after", by="difficulty")

Samples are paired by id: what makes a sample hard makes it hard for both, and cancels. Every
difference is B - A, of values that are means over a sample's repeats, so a sample counts once.
What could not be compared honestly is refused, unless one says that it is meant
(`heldout.analysis.comparable`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heldout.stats import PairedDifference, SliceDifference, UnpairedDifference

Difference = PairedDifference | UnpairedDifference


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


@dataclass(frozen=True, slots=True)
class Change:
    """A sample that passes on one side and fails on the other; rewards are means of repeats."""

    id: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that makes two reports hard to compare, and was allowed."""

    kind: Literal["samples", "scorer", "environment", "threshold", "incomplete"]
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    a: Side
    b: Side
    metric: str
    """"reward", "passed", or the name of a metric."""
    pass_threshold: float
    confidence: float
    overall: Difference
    """Over the samples that have a score on both sides."""
    errors_as_zero: Difference | None
    """The same with every errored item as 0, the reading of a report's `mean`; None where nothing
    errored, or where the metric is one that errored items do not have."""
    minimum_detectable: float | None
    """The true difference that this comparison would have seen four times in five."""
    by: tuple[str, ...]
    slices: tuple[SliceDifference, ...]
    """`label` is a tuple of values, one for each key in `by`."""
    gained: tuple[Change, ...]
    """Samples that fail in A and pass in B; none where the samples are not paired."""
    lost: tuple[Change, ...]
    mismatches: tuple[Mismatch, ...]
    notes: tuple[str, ...]
    """What else differs, or limits what the comparison says."""

    @property
    def paired(self) -> bool:
        return isinstance(self.overall, PairedDifference)

    @property
    def verdict(self) -> Literal["better", "worse", "cannot tell"]:
        """Of B, by the interval of the difference, in every reading of errored items."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: plain values, stable keys."""
        raise NotImplementedError
