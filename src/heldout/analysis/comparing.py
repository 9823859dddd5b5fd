"""Is B better than A? Two reports, compared sample by sample.

    compare("outputs/evals/before", "outputs/evals/after", by="difficulty")

Samples are paired by id: what makes a sample hard makes it hard for both, and cancels. Every
difference is B - A, of values that are means over a sample's repeats, so a sample counts once.
What could not be compared honestly is refused, unless one says that it is meant
(`heldout.analysis.comparable`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.analysis.comparable import (
    Shared,
    differing_settings,
    in_common,
    mismatches,
    refuse,
    shared_samples,
)
from heldout.analysis.comparison import Change, Changes, Comparison, Difference, Side
from heldout.analysis.opened import (
    PASSED,
    REWARD,
    Comparable,
    Opened,
    as_zero,
    cluster_numbers,
    item_values,
    opened,
    sample_means,
    within_unit,
)
from heldout.errors import InvalidInput
from heldout.stats import (
    CONFIDENCE,
    Floats,
    Ints,
    PairedDifference,
    SliceDifference,
    minimum_detectable,
    paired_difference,
    slice_differences,
    unpaired_difference,
)


def compare(
    a: Comparable,
    b: Comparable,
    *,
    by: str | Sequence[str] = (),
    metric: str = REWARD,
    cluster: str | None = None,
    allow: Collection[str] = (),
    paired: bool | None = None,
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """What B gained over A; `a` and `b` are reports, or the paths of run directories.

    `by` are metadata keys: the difference in each slice too, corrected for looking at all of them.
    `cluster` is one that says which samples belong together (a shared passage), and widens the
    error bars accordingly. `allow` names what may differ: some of "samples", "scorer",
    "environment", "threshold", "incomplete". `paired` None pairs the samples that both have, and
    compares all with all where they have none in common; False never pairs.
    """
    by = (by,) if isinstance(by, str) else tuple(by)
    keys = (*by, *([cluster] if cluster is not None else []))
    one, other = opened(a, keys, name="A"), opened(b, keys, name="B")
    if one.name == other.name:
        one, other = _told_apart(one, other)
    _refuse_itself(one, other)
    shared = shared_samples(one, other)
    found = mismatches(one, other, shared, keys=keys, threshold_given=pass_threshold is not None)
    refuse(found, allow, f"{one.name} and {other.name} cannot be compared")
    threshold = one.report.pass_threshold if pass_threshold is None else pass_threshold
    notes = differing_settings(one, other)
    pairing = _is_paired(one, other, shared, paired, notes)

    values = [item_values(side.table, metric, threshold, side.name) for side in (one, other)]
    inside = within_unit(*values)
    sides = (one, other)

    def made(readings: Sequence[Floats]) -> _Made:
        means = [sample_means(s.table, v) for s, v in zip(sides, readings, strict=True)]
        rows = _Rows.of(sides, means, shared, by, cluster, paired=pairing)
        return _Made(rows, threshold, confidence, bounded=inside)

    scored = made(values)
    if scored.rows.empty:
        raise InvalidInput(
            f"{one.name} and {other.name} have no sample with a {metric} on both sides: there is "
            "nothing to compare"
        )
    zeros = None
    if metric in (REWARD, PASSED) and one.errored + other.errored:
        zeros = made([as_zero(v) for v in values])
    if alone := scored.one_sided():
        notes.append(f"slices with samples on one side alone, not compared: {alone}")
    overall = scored.difference()
    return Comparison(
        a=side_of(one, len(scored.rows.a)),
        b=side_of(other, len(scored.rows.b)),
        metric=metric,
        pass_threshold=threshold,
        confidence=confidence,
        overall=overall,
        errors_as_zero=zeros.difference() if zeros else None,
        minimum_detectable=_detectable(overall, confidence),
        by=by,
        slices=scored.slices() if by else (),
        slices_errors_as_zero=zeros.slices() if by and zeros else (),
        gained=scored.changes(one.table.sample_ids, gained=True),
        lost=scored.changes(one.table.sample_ids, gained=False),
        mismatches=tuple(found),
        notes=tuple(notes),
    )


def _told_apart(one: Opened, other: Opened) -> tuple[Opened, Opened]:
    """Two runs of one name are called by their paths, or A and B."""
    names = [str(side.report.path or letter) for side, letter in ((one, "A"), (other, "B"))]
    if names[0] == names[1]:
        names = ["A", "B"]
    return replace(one, name=names[0]), replace(other, name=names[1])


def _refuse_itself(one: Opened, other: Opened) -> None:
    paths = [side.report.path for side in (one, other)]
    if None not in paths and paths[0].resolve() == paths[1].resolve():  # type: ignore[union-attr]
        raise InvalidInput(f"{paths[0]} is compared with itself; name two runs")


def _is_paired(
    one: Opened, other: Opened, shared: Shared, wanted: bool | None, notes: list[str]
) -> bool:
    if wanted is False:
        return False
    unseeded = [side.name for side in (one, other) if side.config.get("seeded") is False]
    if unseeded:
        said = f"the episodes of {' and '.join(unseeded)} began wherever the environment chose"
        if wanted:
            raise InvalidInput(f"{said}: there are no pairs of them")
        notes.append(f"not paired: {said}")
        return False
    count = len(shared.in_a)
    if count == 0:
        if wanted:
            raise InvalidInput(f"{one.name} and {other.name} have no sample in common to pair")
        notes.append(
            "not paired: no sample is in both, so what makes samples hard does not cancel; a "
            "paired comparison would be far more certain"
        )
        return False
    left = max(len(one.table.sample_ids), len(other.table.sample_ids)) - count
    if left:
        notes.append(
            f"paired on the {count} samples that both have; unpaired, all would count, with less "
            "certainty"
        )
    return True


# --- Rows ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows:
    """What enters a comparison: for each side the samples that do, their values, and to which
    cluster and slice they belong. Where it is paired, both sides are aligned."""

    a: Ints
    b: Ints
    values_a: Floats
    values_b: Floats
    clusters_a: Ints | None
    clusters_b: Ints | None
    labels_a: Ints
    labels_b: Ints
    labels: list[tuple[Any, ...]]
    """What the numbers stand for."""
    paired: bool

    @classmethod
    def of(
        cls,
        sides: tuple[Opened, Opened],
        means: Sequence[Floats],
        shared: Shared,
        by: Sequence[str],
        cluster: str | None,
        *,
        paired: bool,
    ) -> _Rows:
        present = [~np.isnan(values) for values in means]
        if paired:
            both = present[0][shared.in_a] & present[1][shared.in_b]
            places = [shared.in_a[both], shared.in_b[both]]
        else:
            places = [np.flatnonzero(here).astype(np.int64) for here in present]
        clusters = [None if cluster is None else cluster_numbers(s.table, cluster) for s in sides]
        numbers, labels = _labels(sides, by)
        taken = [
            (p, m[p], None if c is None else c[p], ls[p])
            for p, m, c, ls in zip(places, means, clusters, numbers, strict=True)
        ]
        (a, values_a, clusters_a, labels_a), (b, values_b, clusters_b, labels_b) = taken
        return cls(
            a,
            b,
            values_a,
            values_b,
            clusters_a,
            clusters_b,
            labels_a,
            labels_b,
            labels,
            paired=paired,
        )

    @property
    def empty(self) -> bool:
        return len(self.a) == 0 or len(self.b) == 0

    def slices(self) -> dict[tuple[Any, ...], _Rows]:
        """Those of each label, where both sides have some."""
        in_a = _grouped(self.labels_a)
        in_b = in_a if self.paired else _grouped(self.labels_b)
        return {
            self.labels[number]: self._part(in_a[number], in_b[number])
            for number in in_a
            if number in in_b
        }

    def _part(self, in_a: NDArray[np.intp], in_b: NDArray[np.intp]) -> _Rows:
        return _Rows(
            self.a[in_a],
            self.b[in_b],
            self.values_a[in_a],
            self.values_b[in_b],
            None if self.clusters_a is None else self.clusters_a[in_a],
            None if self.clusters_b is None else self.clusters_b[in_b],
            self.labels_a[in_a],
            self.labels_b[in_b],
            self.labels,
            paired=self.paired,
        )


def _labels(sides: Sequence[Opened], by: Sequence[str]) -> tuple[list[Ints], list[tuple[Any, ...]]]:
    """Of each side's samples the number of their slice, and what the slices are called."""
    numbers = [np.zeros(len(side.table.sample_ids), dtype=np.int64) for side in sides]
    labels: list[tuple[Any, ...]] = [()]
    for key in by:
        codes, values = in_common(*(side.table.keys[key] for side in sides))
        numbers = [n * len(values) + c for n, c in zip(numbers, codes, strict=True)]
        labels = [(*label, value) for label in labels for value in values]
        # Of many keys' combinations few are there.
        present, renumbered = np.unique(np.concatenate(numbers), return_inverse=True)
        labels = [labels[number] for number in present.tolist()]
        numbers = np.split(renumbered.astype(np.int64), [len(numbers[0])])
    return numbers, labels


def _grouped(numbers: Ints) -> dict[int, NDArray[np.intp]]:
    """The places of each number, in the order of the numbers."""
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))


@dataclass(frozen=True, slots=True)
class _Made:
    rows: _Rows
    threshold: float
    confidence: float
    bounded: bool

    def difference(self, rows: _Rows | None = None) -> Difference:
        rows = rows or self.rows
        if rows.paired:
            return paired_difference(
                rows.values_a,
                rows.values_b,
                clusters=rows.clusters_a,
                pass_threshold=self.threshold,
                confidence=self.confidence,
                bounded=self.bounded,
            )
        return unpaired_difference(
            rows.values_a,
            rows.values_b,
            clusters_a=rows.clusters_a,
            clusters_b=rows.clusters_b,
            confidence=self.confidence,
            bounded=self.bounded,
        )

    def one_sided(self) -> int:
        """Slices that only one side has, and that cannot be compared."""
        if self.rows.paired:
            return 0
        return len(np.setxor1d(self.rows.labels_a, self.rows.labels_b))

    def slices(self) -> tuple[SliceDifference, ...]:
        found = {label: self.difference(part) for label, part in self.rows.slices().items()}
        return slice_differences(found, confidence=self.confidence)

    def changes(self, ids: Sequence[str], *, gained: bool) -> Sequence[Change]:
        """Samples that pass on one side alone."""
        if not self.rows.paired:
            return ()
        a, b = self.rows.values_a, self.rows.values_b
        passed_a, passed_b = a >= self.threshold, b >= self.threshold
        which = np.flatnonzero(passed_b & ~passed_a if gained else passed_a & ~passed_b)
        return Changes(ids, self.rows.a[which], a[which], b[which])


def _detectable(overall: Difference, confidence: float) -> float | None:
    if isinstance(overall, PairedDifference):
        clusters = overall.clusters
    else:
        clusters = int(overall.degrees_of_freedom or 0) + 1
    return minimum_detectable(overall.stderr, clusters, alpha=1 - confidence)


def side_of(side: Opened, compared: int) -> Side:
    samples = len(side.table.sample_ids)
    return Side(
        name=side.name,
        path=side.report.path,
        samples=samples,
        items=len(side.table.reward),
        errored=side.errored,
        left_out=samples - compared,
    )
