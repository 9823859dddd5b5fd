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
    Run,
    clusters_if_any,
    load_run,
    pessimistic_value,
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
    UnpairedDifference,
    detectable_rate_difference,
    minimum_detectable,
    paired_difference,
    slice_differences,
    unpaired_difference,
)
from heldout.stats._input import check_threshold
from heldout.stats.summary import has_passed
from heldout.store.columns import places_by_code
from heldout.store.report import EvalReport

Difference = PairedDifference | UnpairedDifference
Verdict = Literal["b_better", "a_better", "b_higher", "a_higher", "inconclusive"]
Label = tuple[Any, ...]
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
        report: Its report.
    """

    name: str
    samples: int
    items: int
    errored: int
    left_out: int
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
        b: The same in B.
    """

    id: str
    a: float
    b: float


class Changes(Sequence[Change]):
    """Changes made on access: of a million samples many may flip, and ids are slow to read."""

    def __init__(self, ids: Sequence[str], indices: Ints, a: Floats, b: Floats) -> None:
        self._ids, self._indices, self._a, self._b = ids, indices, a, b

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Change: ...
    @overload
    def __getitem__(self, index: slice) -> list[Change]: ...
    def __getitem__(self, index: int | slice) -> Change | list[Change]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        id = self._ids[int(self._indices[index])]
        return Change(id, float(self._a[index]), float(self._b[index]))

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What B gained over A.

    Attributes:
        a: The run that is compared with.
        b: The run that is compared.
        metric: "reward", "passed", "pass@k", "pass^k", or the name of a metric.
        pass_threshold: The mean reward from which a sample passes.
        confidence: Of all intervals.
        cluster: The metadata key that errors are clustered by; None: by content.
        overall: The difference over the samples that have a score in both runs.
        errors_as: What errored items count as in `with_errors`: 0, or the least value where some
            are negative. None where nothing errored.
        with_errors: The difference with errored items counted; None where nothing errored.
        minimum_detectable: The true difference that such a comparison detects with 80% power.
        by: The metadata keys of slices.
        slices: The difference in each slice; `label` has one value per key.
        slices_with_errors: The same with errored items counted; empty where nothing errored.
        slices_not_compared: Labels of slices without a sample that has a value in both runs.
        gained: Samples that fail in A and pass in B; none where samples are not paired.
        lost: Samples that pass in A and fail in B.
        mismatches: What differs and was allowed to.
        shared_samples: Samples that both runs have.
        unseeded: Runs whose episodes had no seeds, so that they cannot be paired.
        duplicates: Whether samples of equal content were clustered.
        changed_settings: Settings other than the policy that differ, with both values.
        model_versions: A model's name and its two versions, where the name is the same.
        unknown_scorers: Runs of which it is not recorded how they were scored.
        same_answers: Whether both score the same trajectories: a difference is the scorer's.
        scorer_change: How the two scorers of the same answers differ; None where they do not.
    """

    a: Side
    b: Side
    metric: str
    pass_threshold: float
    confidence: float
    cluster: str | None
    overall: Difference
    errors_as: float | None
    with_errors: Difference | None
    minimum_detectable: float | None
    by: tuple[str, ...]
    slices: tuple[SliceDifference, ...]
    slices_with_errors: tuple[SliceDifference, ...]
    slices_not_compared: tuple[Label, ...]
    gained: Sequence[Change]
    lost: Sequence[Change]
    mismatches: tuple[Mismatch, ...]
    shared_samples: int
    unseeded: tuple[str, ...]
    duplicates: bool
    changed_settings: Mapping[str, tuple[Any, Any]]
    model_versions: tuple[str, str | None, str | None] | None
    unknown_scorers: tuple[str, ...]
    same_answers: bool
    scorer_change: str | None

    def _repr_html_(self) -> str:
        from heldout.viewer.notebook import comparison_html

        return comparison_html(self)

    @property
    def paired(self) -> bool:
        """Whether samples are paired by id."""
        return isinstance(self.overall, PairedDifference)

    @property
    def verdict(self) -> Verdict:
        """The side of 0 that the whole interval lies on, with and without errored items.

        "higher" instead of "better" for a metric, for which more need not be better, and for the
        same answers scored twice.
        """
        signs = {_sign(reading) for reading in (self.overall, self.with_errors) if reading}
        has_better = Measure(self.metric, self.pass_threshold).metric is None
        if signs == {1}:
            return "b_better" if has_better and not self.same_answers else "b_higher"
        if signs == {-1}:
            return "a_better" if has_better and not self.same_answers else "a_higher"
        return "inconclusive"


def _sign(difference: Difference) -> int:
    interval = difference.interval
    return 0 if interval is None else int(interval.low > 0) - int(interval.high < 0)


def compare(
    a: Run,
    b: Run,
    *,
    by: str | Sequence[str] = (),
    metric: str = REWARD,
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
        cluster: A metadata key: samples that share its value are not independent.
        allow: What may differ: some of "samples", "scorer", "environment", "threshold" and
            "incomplete".
        paired: Pair the samples that both have; where they share none, or episodes had no seeds,
            all are compared with all.
        pass_threshold: The reward that passes; None takes that of A.
        confidence: Of all intervals.

    Returns:
        The comparison.

    Raises:
        NotComparable: Something differs that is not allowed to.
        InvalidInput: There is nothing to compare, or an argument makes no sense.
    """
    by = (by,) if isinstance(by, str) else tuple(by)
    keys = [*by, *([] if cluster is None else [cluster])]
    run_a, run_b = _distinguish_names(load_run(a, keys, name="A"), load_run(b, keys, name="B"))
    threshold = run_a.report.pass_threshold if pass_threshold is None else pass_threshold
    measure = Measure(metric, check_threshold(threshold))
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
    samples = _Samples.of(run_a, run_b, pairs, measure, cluster, by, confidence)
    scored, counted = samples.drop_missing(), None
    if min(len(scored.a.samples), len(scored.b.samples)) == 0:
        raise InvalidInput(
            f"{run_a.name} and {run_b.name} have no sample with a {metric} on both sides: there is "
            "nothing to compare"
        )
    if samples.errors_as is not None:
        counted = samples.count_errors().drop_missing()
    overall, slices = scored.difference(), scored.slice_differences()
    compared_labels = {part.label for part in slices}
    rescored = same_answers(run_a, run_b)
    return Comparison(
        a=make_side(run_a, len(scored.a.samples)),
        b=make_side(run_b, len(scored.b.samples)),
        metric=metric,
        pass_threshold=measure.pass_threshold,
        confidence=confidence,
        cluster=cluster,
        overall=overall,
        errors_as=samples.errors_as,
        with_errors=counted.difference() if counted else None,
        minimum_detectable=_minimum_detectable(overall),
        by=by,
        slices=slices,
        slices_with_errors=counted.slice_differences() if counted else (),
        slices_not_compared=tuple(x for x in samples.all_labels() if x not in compared_labels),
        gained=scored.changes(run_a.table.sample_ids, gained=True),
        lost=scored.changes(run_a.table.sample_ids, gained=False),
        mismatches=tuple(mismatches),
        shared_samples=len(shared.a),
        unseeded=unseeded_runs(run_a, run_b),
        duplicates=cluster is None and samples.clustered,
        changed_settings=find_changed_settings(run_a, run_b),
        model_versions=find_model_versions(run_a, run_b),
        unknown_scorers=find_unknown_scorers(run_a, run_b),
        same_answers=rescored,
        scorer_change=describe_function_change(run_a, run_b, "score_fn") if rescored else None,
    )


def make_side(run: LoadedRun, compared: int) -> Side:
    """Describe a run of which so many samples are compared."""
    samples = len(run.table.sample_ids)
    return Side(
        name=run.name,
        samples=samples,
        items=len(run.table.reward),
        errored=run.errored,
        left_out=samples - compared,
        report=run.report,
    )


def _distinguish_names(a: LoadedRun, b: LoadedRun) -> tuple[LoadedRun, LoadedRun]:
    """Call two runs of one name by their paths, or A and B."""
    if a.name != b.name:
        return a, b
    names = str(a.report.path or "A"), str(b.report.path or "B")
    if names[0] == names[1]:
        names = "A", "B"
    return replace(a, name=names[0]), replace(b, name=names[1])


# --- Aligned samples ----------------------------------------------------------------------------


class _Columns(NamedTuple):
    """One row per sample of one run; values are NaN where the sample has none."""

    samples: Ints
    values: Floats
    with_errors: Floats
    rewards: Floats
    passes: NDArray[np.bool_]
    slices: Ints
    clusters: Ints | None

    def take(self, rows: NDArray[Any]) -> _Columns:
        return _Columns._make(None if column is None else column[rows] for column in self)


@dataclass(frozen=True, slots=True)
class _Samples:
    """The samples of both runs; row by row the same ones, where they are paired."""

    a: _Columns
    b: _Columns
    paired: bool
    bounded: bool
    confidence: float
    errors_as: float | None
    by: tuple[str, ...]
    labels: list[Label]
    # Slices of either run; a shared sample of a pair is in the slice that A says.
    present: Ints

    @classmethod
    def of(
        cls,
        a: LoadedRun,
        b: LoadedRun,
        pairs: SharedSamples | None,
        measure: Measure,
        cluster: str | None,
        by: tuple[str, ...],
        confidence: float,
    ) -> _Samples:
        items = [measure.item_values(run) for run in (a, b)]
        errors_as = pessimistic_value(*items) if a.errored + b.errored else None
        codes, labels = _number_slices(a, b, by)
        columns = [
            _make_columns(run, measure, errors_as, cluster, slices)
            for run, slices in zip((a, b), codes, strict=True)
        ]
        if pairs is not None:
            columns = [side.take(rows) for side, rows in zip(columns, pairs, strict=True)]
            codes[1] = np.delete(codes[1], pairs.b)
        column_a, column_b = columns
        return cls(
            column_a,
            column_b,
            paired=pairs is not None,
            bounded=within_unit(*items),
            confidence=confidence,
            errors_as=errors_as,
            by=by,
            labels=labels,
            present=np.unique(np.concatenate(codes)),
        )

    @property
    def clustered(self) -> bool:
        return self.a.clusters is not None or self.b.clusters is not None

    def all_labels(self) -> list[Label]:
        return [self.labels[code] for code in self.present.tolist()] if self.by else []

    def count_errors(self) -> _Samples:
        """Return the second reading, which counts errored items."""
        a, b = (side._replace(values=side.with_errors) for side in (self.a, self.b))
        return replace(self, a=a, b=b)

    def drop_missing(self) -> _Samples:
        """Leave out samples without a value."""
        rows_a, rows_b = ~np.isnan(self.a.values), ~np.isnan(self.b.values)
        if self.paired:
            rows_a = rows_b = rows_a & rows_b
        return replace(self, a=self.a.take(rows_a), b=self.b.take(rows_b))

    def changes(self, ids: Sequence[str], *, gained: bool) -> Sequence[Change]:
        """Return the samples whose mean reward passes in one run alone."""
        if not self.paired:
            return ()
        before, after = self.a.passes, self.b.passes
        rows = np.flatnonzero(after & ~before if gained else before & ~after)
        return Changes(ids, self.a.samples[rows], self.a.rewards[rows], self.b.rewards[rows])

    def difference(self) -> Difference:
        a, b = self.a, self.b
        settings: Any = {"confidence": self.confidence, "bounded": self.bounded}
        if not self.paired:
            return unpaired_difference(
                a.values, b.values, clusters_a=a.clusters, clusters_b=b.clusters, **settings
            )
        paired = paired_difference(a.values, b.values, clusters=a.clusters, **settings)
        return paired.count_flips(a.passes, b.passes)

    def slice_differences(self) -> tuple[SliceDifference, ...]:
        """Return the difference in each slice that both runs have."""
        if not self.by:
            return ()
        rows_a = dict(places_by_code(self.a.slices))
        rows_b = rows_a if self.paired else dict(places_by_code(self.b.slices))
        differences = {}
        for code in rows_a:
            if code in rows_b:
                part = replace(self, a=self.a.take(rows_a[code]), b=self.b.take(rows_b[code]))
                differences[self.labels[code]] = part.difference()
        return slice_differences(
            differences, confidence=self.confidence, looked_at=len(self.present)
        )


def _make_columns(
    run: LoadedRun, measure: Measure, errors_as: float | None, cluster: str | None, slices: Ints
) -> _Columns:
    table = run.table
    rewards, values = sample_means(table, table.reward), measure.sample_values(run)
    with_errors = values if errors_as is None else measure.sample_values(run, errors_as=errors_as)
    return _Columns(
        samples=np.arange(len(table.sample_ids), dtype=np.int64),
        values=values,
        with_errors=with_errors,
        rewards=rewards,
        passes=has_passed(rewards, measure.pass_threshold),
        slices=slices,
        clusters=clusters_if_any(table, cluster),
    )


def _number_slices(a: LoadedRun, b: LoadedRun, by: Sequence[str]) -> tuple[list[Ints], list[Label]]:
    """Return the slice of each sample of both runs, as codes into labels."""
    codes = [np.zeros(len(run.table.sample_ids), dtype=np.int64) for run in (a, b)]
    labels: list[Label] = [()]
    for key in by:
        numbers, values = merge_labels(a.table.keys[key], b.table.keys[key])
        codes = [c * len(values) + n for c, n in zip(codes, numbers, strict=True)]
        # Only the combinations that occur: all of them might be too many to enumerate.
        present, renumbered = np.unique(np.concatenate(codes), return_inverse=True)
        pairs = (divmod(code, len(values)) for code in present.tolist())
        labels = [(*labels[before], values[code]) for before, code in pairs]
        codes = np.split(renumbered.astype(np.int64), [len(codes[0])])
    return codes, labels


def _minimum_detectable(overall: Difference) -> float | None:
    """By the score test's own power for values between 0 and 1, else by Student's t."""
    alpha = 1 - overall.confidence
    if isinstance(overall, UnpairedDifference):
        degrees = overall.degrees_of_freedom
        return degrees and minimum_detectable(overall.stderr, degrees + 1, alpha=alpha)
    degrees, pairs, won, lost = overall.evidence
    if won is None:
        return minimum_detectable(overall.stderr, degrees + 1, alpha=alpha)
    return detectable_rate_difference(lost / pairs, (won + lost) / pairs, pairs, alpha=alpha)
