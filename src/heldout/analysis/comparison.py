"""Is B better than A? Compare two reports sample by sample.

    compare("outputs/evals/before", "outputs/evals/after", by="difficulty")

Samples are paired by id. Every difference is B - A of values that are means over a sample's
repeats, so a sample counts once. What cannot be compared honestly is refused unless it is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from heldout._core.html import as_html
from heldout.analysis._comparability import (
    Mismatch,
    SharedSamples,
    describe_function_change,
    find_changed_settings,
    find_model_versions,
    find_unknown_scorers,
    match_runs,
    merge_labels,
    same_answers,
    unseeded_runs,
)
from heldout.analysis._runs import (
    REWARD,
    LoadedRun,
    Measure,
    RunOrPath,
    clusters_if_any,
    load_run,
    sample_means,
    within_unit,
)
from heldout.errors import InvalidInput
from heldout.stats import (
    CONFIDENCE,
    PairedDifference,
    SliceDifference,
    UnpairedDifference,
    detectable_difference,
    paired_difference,
    slice_differences,
    unpaired_difference,
)
from heldout.stats._input import check_threshold
from heldout.stats.intervals import Floats, Ints
from heldout.stats.summary import has_passed, value_of_errors
from heldout.store.report import EvalReport
from heldout.store.tables import ResultTable, places_by_code

Difference = PairedDifference | UnpairedDifference
ComparisonVerdict = Literal["b_better", "a_better", "b_higher", "a_higher", "inconclusive"]
SliceLabel = tuple[Any, ...]
"""The value of each key that slices are made by."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs of a comparison.

    Attributes:
        name: Its name.
        samples: Its samples.
        items: Its items: samples times repeats.
        errored: Items without a score.
        left_out: Samples that are not compared: the other run lacks them, or a score of them.
        cached: Items all of whose model turns came from the response cache.
        measured_nothing: Whether all model turns behind its scores came from the response cache.
        report: Its report.
    """

    name: str
    samples: int
    items: int
    errored: int
    left_out: int
    cached: int
    measured_nothing: bool
    report: EvalReport = field(repr=False, compare=False)

    @property
    def path(self) -> Path | None:
        """The run directory, if it has one."""
        return self.report.path


@dataclass(frozen=True, slots=True)
class Change:
    """A sample that passes in one run and fails in the other.

    Attributes:
        id: The sample's id.
        a: Its mean reward over repeats in A.
        b: Its mean reward over repeats in B.
    """

    id: str
    a: float
    b: float


class Changes(Sequence[Change]):
    """Changes, built on access: many of a million samples may flip, and ids are slow to read."""

    def __init__(self, table: ResultTable, indices: Ints, a: Floats, b: Floats) -> None:
        self._table, self._indices, self._a, self._b = table, indices, a, b

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        id = self._table.sample_ids[int(self._indices[index])]
        return Change(id, float(self._a[index]), float(self._b[index]))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class PairedSamples:
    """Every sample that both runs have, in the order of A.

    Attributes:
        in_a: Its index among the samples of A.
        in_b: The same of B.
        a: Its value in A, a mean over repeats; NaN where it has none.
        b: The same in B.
        gained: Whether it fails in A and passes in B; of returns, whether it rose.
        lost: Whether it passes in A and fails in B; of returns, whether it fell.
    """

    in_a: Ints
    in_b: Ints
    a: Floats
    b: Floats
    gained: NDArray[np.bool_]
    lost: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What B gained over A.

    Attributes:
        a: The run that is compared with.
        b: The run that is compared.
        metric: "reward", "passed", "pass@k", "pass^k", or the name of a metric.
        lower_is_better: Whether a higher value is worse.
        pass_threshold: The mean reward from which a sample passes; None of returns.
        confidence: Of all intervals.
        cluster: The metadata key that errors are clustered by; None: by content.
        overall: The difference over the samples that have a score in both runs.
        errors_as: What errored items count as in `with_errors` (`value_of_errors`); None where
            nothing errored.
        with_errors: The difference with errored items counted; None if nothing errored.
        minimum_detectable: The true difference that such a comparison detects with 80% power.
        by: The metadata keys of slices.
        slices: The difference in each slice; `label` has one value per key.
        slices_with_errors: The same with errored items counted; empty if nothing errored.
        slices_not_compared: Labels of slices without a sample that has a value in both runs.
        gained: Samples that fail in A and pass in B; none where samples are not paired. Of
            returns, those that rose.
        lost: Samples that pass in A and fail in B; of returns, those that fell.
        both_fail: Samples that fail in both; none of returns.
        samples: Every sample that both runs have; None where samples are not paired.
        mismatches: What differs and was allowed to.
        shared_samples: Samples that both runs have.
        unseeded: Runs whose episodes had no seeds, so that they cannot be paired.
        duplicates: Whether samples of equal content were clustered.
        changed_settings: Settings other than the policy that differ, with both values.
        model_versions: A model's name and its two versions, where the name is the same.
        unknown_scorers: Runs that do not record how they were scored.
        same_answers: Whether both score the same trajectories: a difference is the scorer's.
        scorer_change: How the two scorers of the same answers differ; None where they do not.
    """

    a: Side
    b: Side
    metric: str
    lower_is_better: bool
    pass_threshold: float | None
    confidence: float
    cluster: str | None
    overall: Difference
    errors_as: float | None
    with_errors: Difference | None
    minimum_detectable: float | None
    by: tuple[str, ...]
    slices: tuple[SliceDifference, ...]
    slices_with_errors: tuple[SliceDifference, ...]
    slices_not_compared: tuple[SliceLabel, ...]
    gained: Sequence[Change]
    lost: Sequence[Change]
    both_fail: Sequence[Change]
    mismatches: tuple[Mismatch, ...]
    shared_samples: int
    unseeded: tuple[str, ...]
    duplicates: bool
    changed_settings: Mapping[str, tuple[Any, Any]]
    model_versions: tuple[str, str | None, str | None] | None
    unknown_scorers: tuple[str, ...]
    same_answers: bool
    scorer_change: str | None
    samples: PairedSamples | None = field(repr=False, compare=False)

    def _repr_html_(self) -> str:
        return as_html("comparison", self)

    @property
    def paired(self) -> bool:
        """Whether samples are paired by id."""
        return isinstance(self.overall, PairedDifference)

    @property
    def scored_samples(self) -> str:
        """What `overall` is over, where items errored: "scored in both", or each run's own.

        A run's `mean_scored` is over its own scored items, so it is another number.
        """
        return "scored in both" if self.paired else "scored samples"

    @property
    def verdict(self) -> ComparisonVerdict:
        """The side of 0 that the whole interval lies on, with and without errored items.

        "higher" instead of "better" for a metric, for which more need not be better unless
        `lower_is_better` says so, and for the same answers scored twice.
        """
        signs = {_sign(reading) for reading in (self.overall, self.with_errors) if reading}
        if len(signs) > 1 or signs == {0}:
            return "inconclusive"
        b_is_higher = signs == {1}
        is_metric = Measure(self.metric, self.pass_threshold).metric is not None
        if self.same_answers or (is_metric and not self.lower_is_better):
            return "b_higher" if b_is_higher else "a_higher"
        return "b_better" if b_is_higher != self.lower_is_better else "a_better"


def _sign(difference: Difference) -> int:
    interval = difference.interval
    return 0 if interval is None else int(interval.low > 0) - int(interval.high < 0)


def compare(
    a: RunOrPath,
    b: RunOrPath,
    *,
    by: str | Sequence[str] = (),
    metric: str = REWARD,
    lower_is_better: bool = False,
    cluster: str | None = None,
    allow: Collection[str] = (),
    paired: bool = True,
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare run B with run A.

    Args:
        a: A report, or the path of a run directory.
        b: The same of the other run.
        by: Metadata keys: the difference in each slice, too, corrected for multiple comparisons.
        metric: "reward", "passed", "pass@k", "pass^k", or the name of a metric.
        lower_is_better: Whether a higher value is worse, as of a loss: it decides what errored
            items count as, and which run is better.
        cluster: A metadata key: samples that share its value are not independent.
        allow: What may differ: some of "samples", "scorer", "environment", "threshold" and
            "incomplete".
        paired: Pair the samples that both have; where they share none, or episodes had no seeds,
            all are compared with all.
        pass_threshold: The reward that passes; None takes that of A.
        confidence: Of all intervals.

    Raises:
        NotComparable: Something differs that is not allowed to.
        InvalidInput: There is nothing to compare, or an argument makes no sense.
    """
    by = (by,) if isinstance(by, str) else tuple(by)
    keys = [*by, *([] if cluster is None else [cluster])]
    run_a, run_b = _distinguish_names(load_run(a, keys, name="A"), load_run(b, keys, name="B"))
    threshold = run_a.report.pass_threshold if pass_threshold is None else pass_threshold
    measure = Measure(metric, None if threshold is None else check_threshold(threshold))
    shared, mismatches = match_runs(
        run_a,
        run_b,
        allow,
        f"{run_a.name} and {run_b.name} cannot be compared",
        keys=keys,
        threshold_matters=measure.counts_passes and pass_threshold is None,
    )
    can_pair = len(shared.a) > 0 and not unseeded_runs(run_a, run_b)
    pairs = shared if paired and can_pair else None
    columns, labels = _read_columns(run_a, run_b, pairs, measure, cluster, by)
    bounded = within_unit(*(measure.item_values(run) for run in (run_a, run_b)))
    aligned = _Aligned(columns, pairs, bounded, confidence, labels)
    return _make_comparison(
        run_a, run_b, aligned, measure, shared, mismatches, cluster, by, lower_is_better
    )


def _make_comparison(
    a: LoadedRun,
    b: LoadedRun,
    aligned: _Aligned,
    measure: Measure,
    shared: SharedSamples,
    mismatches: Sequence[Mismatch],
    cluster: str | None,
    by: tuple[str, ...],
    lower_is_better: bool,
) -> Comparison:
    runs = (a, b)
    scored = [measure.sample_values(run) for run in runs]
    rows = aligned.find_rows(scored)
    if min(map(len, rows)) == 0:
        raise InvalidInput(
            f"{a.name} and {b.name} have no sample with a {measure.name} on both sides: there is "
            "nothing to compare"
        )
    overall, slices = aligned.difference(scored, rows), aligned.slice_differences(scored, rows)
    with_errors: Difference | None = None
    slices_with_errors: tuple[SliceDifference, ...] = ()
    errors_as = None
    if a.errored + b.errored:
        of_items = [measure.item_values(run) for run in runs]
        errors_as = value_of_errors(*of_items, lower_is_better=lower_is_better)
        counted = [measure.sample_values(run, errors_as=errors_as) for run in runs]
        counted_rows = aligned.find_rows(counted)
        with_errors = aligned.difference(counted, counted_rows)
        slices_with_errors = aligned.slice_differences(counted, counted_rows)
    compared_labels = {part.label for part in slices}
    rescored = same_answers(a, b)
    return Comparison(
        a=make_side(a, len(rows[0])),
        b=make_side(b, len(rows[1])),
        metric=measure.name,
        lower_is_better=lower_is_better,
        pass_threshold=measure.pass_threshold,
        confidence=aligned.confidence,
        cluster=cluster,
        overall=overall,
        errors_as=errors_as,
        with_errors=with_errors,
        minimum_detectable=detectable_difference(overall),
        by=by,
        slices=slices,
        slices_with_errors=slices_with_errors,
        slices_not_compared=tuple(x for x in aligned.labels.values() if x not in compared_labels),
        gained=aligned.changes(rows, a.table, gained=True),
        lost=aligned.changes(rows, a.table, gained=False),
        both_fail=aligned.failing(rows, a.table),
        mismatches=tuple(mismatches),
        shared_samples=len(shared.a),
        unseeded=unseeded_runs(a, b),
        duplicates=cluster is None and any(side.clusters is not None for side in aligned.columns),
        changed_settings=find_changed_settings(a, b),
        model_versions=find_model_versions(a, b),
        unknown_scorers=find_unknown_scorers(a, b),
        same_answers=rescored,
        scorer_change=describe_function_change(a, b, "score_fn") if rescored else None,
        samples=aligned.paired_samples(scored),
    )


def make_side(run: LoadedRun, compared: int) -> Side:
    """Describe a run and how many of its samples are compared."""
    samples = run.table.samples
    return Side(
        name=run.name,
        samples=samples,
        items=len(run.table.reward),
        errored=run.errored,
        left_out=samples - compared,
        cached=int(run.table.cached.sum()),
        measured_nothing=run.measured_nothing,
        report=run.report,
    )


def _distinguish_names(a: LoadedRun, b: LoadedRun) -> tuple[LoadedRun, LoadedRun]:
    """Name two runs that share a name by their paths, or A and B."""
    if a.name != b.name:
        return a, b
    names = str(a.report.path or "A"), str(b.report.path or "B")
    if names[0] == names[1]:
        names = "A", "B"
    return replace(a, name=names[0]), replace(b, name=names[1])


# --- Aligned samples ----------------------------------------------------------------------------


class _SampleColumns(NamedTuple):
    """One row per sample of one run."""

    rewards: Floats
    passes: NDArray[np.bool_] | None
    slices: Ints
    clusters: Ints | None


def _read_columns(
    a: LoadedRun,
    b: LoadedRun,
    pairs: SharedSamples | None,
    measure: Measure,
    cluster: str | None,
    by: Sequence[str],
) -> tuple[tuple[_SampleColumns, _SampleColumns], dict[int, SliceLabel]]:
    """Return the columns of both runs, and the labels of slices that either of them has."""
    codes = [np.zeros(run.table.samples, dtype=np.int64) for run in (a, b)]
    labels: list[SliceLabel] = [()]
    for key in by:
        numbers, values = merge_labels(a.table.keys[key], b.table.keys[key])
        codes = [c * len(values) + n for c, n in zip(codes, numbers, strict=True)]
        # Only the combinations that occur: all of them might be too many to enumerate.
        present, renumbered = np.unique(np.concatenate(codes), return_inverse=True)
        split = (divmod(code, len(values)) for code in present.tolist())
        labels = [(*labels[before], values[code]) for before, code in split]
        codes = np.split(renumbered.astype(np.int64), [len(codes[0])])

    def read(run: LoadedRun, slices: Ints) -> _SampleColumns:
        rewards = sample_means(run.table, run.table.reward)
        threshold = measure.pass_threshold
        passes = None if threshold is None else has_passed(rewards, threshold)
        return _SampleColumns(rewards, passes, slices, clusters_if_any(run.table, cluster))

    columns = read(a, codes[0]), read(b, codes[1])
    if not by:
        return columns, {}
    # A shared sample of a pair is in the slice that A says.
    only_b = codes[1] if pairs is None else np.delete(codes[1], pairs.b)
    present = np.unique(np.concatenate([codes[0], only_b]))
    return columns, {code: labels[code] for code in present.tolist()}


@dataclass(frozen=True, slots=True)
class _Aligned:
    """The samples of both runs; rows of A and B are the same samples where they are paired."""

    columns: tuple[_SampleColumns, _SampleColumns]
    pairs: SharedSamples | None
    bounded: bool
    confidence: float
    labels: dict[int, SliceLabel]

    def find_rows(self, values: Sequence[Floats]) -> list[Ints]:
        """Return the samples with a value; where they are paired, with a value in both runs."""
        if self.pairs is None:
            return [np.flatnonzero(~np.isnan(side)) for side in values]
        a, b = self.pairs
        known = ~np.isnan(values[0][a]) & ~np.isnan(values[1][b])
        return [a[known], b[known]]

    def difference(self, values: Sequence[Floats], rows: Sequence[Ints]) -> Difference:
        a, b = (side[which] for side, which in zip(values, rows, strict=True))
        clusters_a, clusters_b = (
            None if side.clusters is None else side.clusters[which]
            for side, which in zip(self.columns, rows, strict=True)
        )
        settings: Any = {"confidence": self.confidence, "bounded": self.bounded}
        if self.pairs is None:
            return unpaired_difference(
                a, b, clusters_a=clusters_a, clusters_b=clusters_b, **settings
            )
        difference = paired_difference(a, b, clusters=clusters_a, **settings)
        before, after = (side.passes for side in self.columns)
        if before is None or after is None:
            return difference
        return difference.count_flips(before[rows[0]], after[rows[1]])

    def slice_differences(
        self, values: Sequence[Floats], rows: Sequence[Ints]
    ) -> tuple[SliceDifference, ...]:
        """Return the difference in each slice that both runs have."""
        if not self.labels:
            return ()
        in_a, in_b = (
            dict(places_by_code(side.slices[which]))
            for side, which in zip(self.columns, rows, strict=True)
        )
        if self.pairs is not None:
            in_b = in_a
        differences = {
            self.labels[code]: self.difference(values, [rows[0][in_a[code]], rows[1][in_b[code]]])
            for code in in_a
            if code in in_b
        }
        return slice_differences(
            differences, confidence=self.confidence, looked_at=len(self.labels)
        )

    def changes(
        self, rows: Sequence[Ints], table: ResultTable, *, gained: bool
    ) -> Sequence[Change]:
        """Return the samples whose mean reward passes in one run alone, or is higher in it."""
        if self.pairs is None:
            return ()
        a, b = self.columns
        before, after = self._passes(rows)
        which = np.flatnonzero(after > before if gained else before > after)
        in_a, in_b = rows[0][which], rows[1][which]
        return Changes(table, in_a, a.rewards[in_a], b.rewards[in_b])

    def failing(self, rows: Sequence[Ints], table: ResultTable) -> Sequence[Change]:
        """Return the samples that pass in neither run; none if nothing says what passes."""
        a, b = self.columns
        if self.pairs is None or a.passes is None or b.passes is None:
            return ()
        which = np.flatnonzero(~a.passes[rows[0]] & ~b.passes[rows[1]])
        in_a, in_b = rows[0][which], rows[1][which]
        return Changes(table, in_a, a.rewards[in_a], b.rewards[in_b])

    def _passes(self, rows: Sequence[Ints]) -> list[NDArray[Any]]:
        """Return whether these samples pass in either run; of returns, their rewards."""
        return [
            (side.rewards if side.passes is None else side.passes)[which]
            for side, which in zip(self.columns, rows, strict=True)
        ]

    def paired_samples(self, values: Sequence[Floats]) -> PairedSamples | None:
        """Return every sample that both runs have, those without a value in one included."""
        if self.pairs is None:
            return None
        in_a, in_b = self.pairs
        a, b = values[0][in_a], values[1][in_b]
        known = ~np.isnan(a) & ~np.isnan(b)
        before, after = self._passes([in_a, in_b])
        return PairedSamples(in_a, in_b, a, b, known & (after > before), known & (before > after))
