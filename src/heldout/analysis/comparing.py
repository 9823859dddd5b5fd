"""Is B better than A? Two reports, compared sample by sample.

    compare("outputs/evals/before", "outputs/evals/after", by="difficulty")

Samples are paired by id: what makes a sample hard makes it hard for both, and cancels. Every
difference is B - A, of values that are means over a sample's repeats, so a sample counts once.
What could not be compared honestly is refused, unless one says that it is meant
(`heldout.analysis.comparable`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    refuse_itself,
    same_answers,
    shared_samples,
    unpairable,
)
from heldout.analysis.comparison import Change, Changes, Comparison, Difference, Side
from heldout.analysis.measures import (
    PASSED,
    REWARD,
    Measure,
    least_or_zero,
    sample_means,
    within_unit,
)
from heldout.analysis.opened import Comparable, Opened, cluster_numbers, has_copies, opened
from heldout.errors import InvalidInput
from heldout.stats import (
    CONFIDENCE,
    Floats,
    Ints,
    SliceDifference,
    UnpairedDifference,
    detectable_rate_difference,
    minimum_detectable,
    paired_difference,
    slice_differences,
    unpaired_difference,
)
from heldout.stats.given import checked_threshold
from heldout.stats.summary import has_passed
from heldout.store.columns import places_by_code


def compare(
    a: Comparable | Opened,
    b: Comparable | Opened,
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
    refuse_itself(one, other)
    threshold = one.report.pass_threshold if pass_threshold is None else pass_threshold
    measure = Measure(metric, checked_threshold(threshold))
    shared = shared_samples(one, other)
    counts_passes = metric == PASSED or measure.k is not None
    found = mismatches(
        one,
        other,
        shared,
        keys=keys,
        threshold_matters=counts_passes and pass_threshold is None,
    )
    refuse(found, allow, f"{one.name} and {other.name} cannot be compared")
    notes = differing_settings(one, other)
    of_b = other.report.pass_threshold
    if pass_threshold is None and of_b != threshold:
        notes.append(f"pass_threshold is {threshold:g} and {of_b:g}; flips are by the first")
    sides = (one, other)
    if cluster is None and any(has_copies(side.table) for side in sides):
        notes.append("samples of equal input and ground truth are one cluster, not several")
    items = [measure.items(side.table, side.name) for side in sides]
    rows = _Rows.of(
        sides, measure, shared, by, cluster, paired=_is_paired(*sides, shared, paired, notes)
    )
    settings = _Settings(confidence, bounded=within_unit(*items))
    if rows.empty:
        raise InvalidInput(
            f"{one.name} and {other.name} have no sample with a {metric} on both sides: there is "
            "nothing to compare"
        )
    errors_as, with_errors = None, None
    if one.errored + other.errored:
        errors_as = least_or_zero(*items)
        with_errors = rows.again(sides, measure, errors_as)
    overall = settings.difference(rows)
    labels = rows.all_labels
    compared = rows.slices() if by else {}
    return Comparison(
        a=side_of(one, len(rows.a)),
        b=side_of(other, len(rows.b)),
        metric=metric,
        pass_threshold=threshold,
        confidence=confidence,
        overall=overall,
        errors_as=errors_as,
        with_errors=settings.difference(with_errors) if with_errors else None,
        minimum_detectable=_detectable(overall, confidence),
        by=by,
        slices=settings.slices(compared, len(labels)),
        slices_with_errors=settings.slices(with_errors.slices(), len(labels))
        if by and with_errors
        else (),
        slices_not_compared=tuple(label for label in labels if label not in compared) if by else (),
        gained=rows.changes(one.table.sample_ids, gained=True),
        lost=rows.changes(one.table.sample_ids, gained=False),
        mismatches=tuple(found),
        notes=tuple(notes),
        same_answers=same_answers(one, other),
    )


def _told_apart(one: Opened, other: Opened) -> tuple[Opened, Opened]:
    """Two runs of one name are called by their paths, or A and B."""
    names = [str(side.report.path or letter) for side, letter in ((one, "A"), (other, "B"))]
    if names[0] == names[1]:
        names = ["A", "B"]
    return replace(one, name=names[0]), replace(other, name=names[1])


def _is_paired(
    one: Opened, other: Opened, shared: Shared, wanted: bool | None, notes: list[str]
) -> bool:
    if wanted is False:
        return False
    if said := unpairable(one, other):
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
class _Side:
    """The samples of one side that enter a comparison: their values, their mean rewards and whether
    those pass, and to which cluster and slice they belong."""

    places: Ints
    values: Floats
    rewards: Floats
    passes: NDArray[np.bool_]
    clusters: Ints | None
    labels: Ints

    def __getitem__(self, which: NDArray[Any]) -> _Side:
        clusters = None if self.clusters is None else self.clusters[which]
        return _Side(
            self.places[which],
            self.values[which],
            self.rewards[which],
            self.passes[which],
            clusters,
            self.labels[which],
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """What enters a comparison; where it is paired, both sides are aligned."""

    whole: tuple[_Side, _Side]
    """With samples that have no value; aligned, too."""
    one: _Side
    other: _Side
    labels: list[tuple[Any, ...]]
    """What the numbers of slices stand for."""
    there: Ints
    """Numbers of all slices that either side has samples of, in common or not."""
    paired: bool

    @classmethod
    def of(
        cls,
        sides: tuple[Opened, Opened],
        measure: Measure,
        shared: Shared,
        by: Sequence[str],
        cluster: str | None,
        *,
        paired: bool,
    ) -> _Rows:
        numbers, labels = _labels(sides, by)
        whole = []
        for side, places, of_slice in zip(sides, (shared.in_a, shared.in_b), numbers, strict=True):
            table = side.table
            rewards = sample_means(table, table.reward)
            every = _Side(
                np.arange(len(table.sample_ids), dtype=np.int64),
                measure.samples(table, side.name),
                rewards,
                has_passed(rewards, measure.pass_threshold),
                cluster_numbers(table, cluster)
                if cluster is not None or has_copies(table)
                else None,
                of_slice,
            )
            whole.append(every[places] if paired else every)
        of_b = numbers[1]
        if paired:  # where both have a sample, it is in the slice that A says
            of_b = np.delete(of_b, shared.in_b)
        there = np.unique(np.concatenate([numbers[0], of_b]))
        one, other = whole
        return cls((one, other), one, other, labels, there, paired=paired)._with_values()

    def _with_values(self) -> _Rows:
        """Only samples that have one."""
        one, other = self.whole
        here = [~np.isnan(side.values) for side in self.whole]
        if self.paired:
            here = [here[0] & here[1]] * 2
        return replace(self, one=one[here[0]], other=other[here[1]])

    def again(self, sides: tuple[Opened, Opened], measure: Measure, errors_as: float) -> _Rows:
        """In the other reading of what errored."""
        made = []
        for side, whole in zip(sides, self.whole, strict=True):
            values = measure.samples(side.table, side.name, errors_as=errors_as)
            made.append(replace(whole, values=values[whole.places]))
        return replace(self, whole=(made[0], made[1]))._with_values()

    @property
    def a(self) -> Ints:
        return self.one.places

    @property
    def b(self) -> Ints:
        return self.other.places

    @property
    def empty(self) -> bool:
        return len(self.a) == 0 or len(self.b) == 0

    @property
    def all_labels(self) -> list[tuple[Any, ...]]:
        return [self.labels[number] for number in self.there.tolist()]

    def slices(self) -> dict[tuple[Any, ...], _Rows]:
        """Those of each label, where both sides have some."""
        in_a = dict(places_by_code(self.one.labels))
        in_b = in_a if self.paired else dict(places_by_code(self.other.labels))
        return {
            self.labels[number]: replace(
                self, one=self.one[in_a[number]], other=self.other[in_b[number]]
            )
            for number in in_a
            if number in in_b
        }

    def changes(self, ids: Sequence[str], *, gained: bool) -> Sequence[Change]:
        """Samples whose mean reward passes on one side alone."""
        if not self.paired:
            return ()
        before, after = self.one.passes, self.other.passes
        which = np.flatnonzero(after & ~before if gained else before & ~after)
        return Changes(ids, self.a[which], self.one.rewards[which], self.other.rewards[which])


def _labels(sides: Sequence[Opened], by: Sequence[str]) -> tuple[list[Ints], list[tuple[Any, ...]]]:
    """Of each side's samples the number of their slice, and what the slices are called."""
    numbers = [np.zeros(len(side.table.sample_ids), dtype=np.int64) for side in sides]
    labels: list[tuple[Any, ...]] = [()]
    for key in by:
        codes, values = in_common(*(side.table.keys[key] for side in sides))
        numbers = [n * len(values) + c for n, c in zip(numbers, codes, strict=True)]
        # Only the combinations that are there: all of them might be too many to write down.
        present, renumbered = np.unique(np.concatenate(numbers), return_inverse=True)
        pairs = (divmod(number, len(values)) for number in present.tolist())
        labels = [(*labels[before], values[code]) for before, code in pairs]
        numbers = np.split(renumbered.astype(np.int64), [len(numbers[0])])
    return numbers, labels


@dataclass(frozen=True, slots=True)
class _Settings:
    confidence: float
    bounded: bool

    def difference(self, rows: _Rows) -> Difference:
        one, other = rows.one, rows.other
        if not rows.paired:
            return unpaired_difference(
                one.values,
                other.values,
                clusters_a=one.clusters,
                clusters_b=other.clusters,
                confidence=self.confidence,
                bounded=self.bounded,
            )
        found = paired_difference(
            one.values,
            other.values,
            clusters=one.clusters,
            confidence=self.confidence,
            bounded=self.bounded,
        )
        both = int((one.passes & other.passes).sum())
        gained, lost = int(other.passes.sum()) - both, int(one.passes.sum()) - both
        return replace(
            found,
            gained=gained,
            lost=lost,
            stayed_passing=both,
            stayed_failing=found.n - both - gained - lost,
        )

    def slices(
        self, rows: Mapping[tuple[Any, ...], _Rows], looked_at: int
    ) -> tuple[SliceDifference, ...]:
        found = {label: self.difference(part) for label, part in rows.items()}
        return slice_differences(found, confidence=self.confidence, looked_at=looked_at)


def _detectable(overall: Difference, confidence: float) -> float | None:
    """By the score test's own power where values lie between 0 and 1, else by Student's t."""
    alpha = 1 - confidence
    if isinstance(overall, UnpairedDifference):
        degrees = overall.degrees_of_freedom
        return (
            None
            if degrees is None
            else minimum_detectable(overall.stderr, degrees + 1, alpha=alpha)
        )
    evidence = overall.evidence
    if evidence.won is None:
        return minimum_detectable(overall.stderr, evidence.degrees + 1, alpha=alpha)
    share = (evidence.won + evidence.lost) / evidence.pairs
    return detectable_rate_difference(
        evidence.lost / evidence.pairs, share, evidence.pairs, alpha=alpha
    )


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
