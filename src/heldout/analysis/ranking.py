"""Which of several finished runs is best? Ranks with intervals, and a winner that is corrected.

    rank(["outputs/evals/a", "outputs/evals/b", "outputs/evals/c"])

Runs are compared as `compare` does it: by the samples that all of them have, a sample counting
once, and what is not comparable is refused. Where items errored, ranks hold with and without them
(docs/semantics.md, clause 22).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from heldout.analysis._comparability import Mismatch, match_runs
from heldout.analysis._runs import (
    REWARD,
    LoadedRun,
    Measure,
    RunOrPath,
    clusters_if_any,
    load_run,
)
from heldout.analysis.comparison import Side, make_side
from heldout.errors import InvalidInput
from heldout.stats import CONFIDENCE, Interval
from heldout.stats.intervals import Floats, Ints
from heldout.stats.stopping import Ranking, rank_runs
from heldout.stats.summary import value_of_errors
from heldout.stats.winner import Winner


@dataclass(frozen=True, slots=True)
class RankedRun:
    """A run among others.

    Attributes:
        side: The run.
        mean: Its mean over the samples that have a score in all runs.
        interval: The ordinary interval of that mean, which knows of no other run.
        highest: The highest rank that it can have; 1 is the best.
        lowest: The lowest.
    """

    side: Side
    mean: float
    interval: Interval | None
    highest: int
    lowest: int


@dataclass(frozen=True, slots=True)
class RunRanking:
    """Several runs, ranked.

    Attributes:
        runs: The runs, the highest mean first.
        winner: The mean of the first, corrected for having been picked, with its interval.
        metric: What was measured.
        confidence: Of all intervals of ranks together.
        samples: Samples with a score in all runs.
        errors_as: What errored items count as in the second reading; None where nothing errored.
        mismatches: What differs and was allowed to.
    """

    runs: tuple[RankedRun, ...]
    winner: Winner
    metric: str
    confidence: float
    samples: int
    errors_as: float | None
    mismatches: tuple[Mismatch, ...]

    @property
    def best(self) -> tuple[RankedRun, ...]:
        """The runs that may be the best: one where it is known which is."""
        return tuple(run for run in self.runs if run.highest == 1)


def rank(
    runs: Sequence[RunOrPath],
    *,
    metric: str = REWARD,
    cluster: str | None = None,
    allow: Collection[str] = (),
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
) -> RunRanking:
    """Rank finished runs by their means, of which more is better.

    Args:
        runs: Reports, or paths of run directories: two or more.
        metric: As for `compare`, and so are the other arguments.
        cluster: See `compare`.
        allow: See `compare`.
        pass_threshold: See `compare`.
        confidence: Of all intervals of ranks together.

    Raises:
        NotComparable: Something differs that is not allowed to.
        InvalidInput: There are fewer than two runs, or nothing to compare.
    """
    if len(runs) < 2:
        raise InvalidInput(f"ranks are of two runs or more; got {len(runs)}")
    keys = [] if cluster is None else [cluster]
    loaded = [load_run(run, keys, name=f"run {i + 1}") for i, run in enumerate(runs)]
    first = loaded[0]
    threshold = first.report.pass_threshold if pass_threshold is None else pass_threshold
    measure = Measure(metric, threshold)
    shared, mismatches = align_runs(loaded, allow, measure, keys, given=pass_threshold is not None)
    clusters = clusters_if_any(first.table, cluster)

    def values(errors_as: float | None) -> list[Floats]:
        each = (measure.sample_values(run, errors_as=errors_as) for run in loaded)
        return [column[rows] for column, rows in zip(each, shared, strict=True)]

    def ranked(columns: list[Floats]) -> tuple[Ranking, int]:
        known = ~np.isnan(columns).any(axis=0)
        if not known.any():
            raise InvalidInput(f"no sample has a {measure.name} in all runs: nothing to compare")
        of_rows = None if clusters is None else clusters[shared[0]][known]
        found = rank_runs(
            [column[known] for column in columns], clusters=of_rows, confidence=confidence
        )
        return found, int(known.sum())

    scored, samples = ranked(values(None))
    readings, errors_as = [scored], None
    if any(run.errored for run in loaded):
        errors_as = value_of_errors(*(measure.item_values(run) for run in loaded))
        readings.append(ranked(values(errors_as))[0])
    placed = [{rank.run: rank for rank in reading.ranks} for reading in readings]
    return RunRanking(
        runs=tuple(
            RankedRun(
                side=make_side(loaded[one.run], samples),
                mean=one.mean,
                interval=one.interval,
                highest=min(each[one.run].highest for each in placed),
                lowest=max(each[one.run].lowest for each in placed),
            )
            for one in scored.ranks
        ),
        winner=scored.winner,
        metric=metric,
        confidence=confidence,
        samples=samples,
        errors_as=errors_as,
        mismatches=tuple(mismatches),
    )


def align_runs(
    runs: Sequence[LoadedRun],
    allow: Collection[str],
    measure: Measure,
    keys: Sequence[str],
    *,
    given: bool,
) -> tuple[list[Ints], list[Mismatch]]:
    """Return the rows of the samples that all runs have, and what differs and is allowed to."""
    first = runs[0]
    common: Ints = np.arange(first.table.samples, dtype=np.int64)
    places: list[dict[int, int]] = []
    mismatches: list[Mismatch] = []
    for run in runs[1:]:
        shared, differ = match_runs(
            first,
            run,
            allow,
            f"{first.name} and {run.name} cannot be compared",
            keys=keys,
            threshold_matters=measure.counts_passes and not given,
        )
        mismatches += differ
        places.append(dict(zip(shared.a.tolist(), shared.b.tolist(), strict=True)))
        common = np.intersect1d(common, shared.a)
    rows = [common, *(np.array([place[i] for i in common.tolist()], np.int64) for place in places)]
    return rows, [*dict.fromkeys(mismatches)]
