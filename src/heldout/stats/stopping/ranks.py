"""Ranks of several finished runs on the same items, with intervals, and the winner corrected.

Guaranteed: with the stated confidence every run's true rank lies in its interval, all of them
together. Every pair is tested as `paired_difference` does, p-values are Holm's over all pairs (S.
Holm 1979, Scandinavian Journal of Statistics 6, 65-70), and a run is below those that are better
than it and above those that it is better than (M. Mogstad, J. P. Romano, A. M. Shaikh and D.
Wilhelm 2024, "Inference for ranks", Review of Economic Studies 91, 476-518). Runs that share a rank
in both intervals cannot be told apart.

The winner's own mean is too high by having been picked; `best_of` corrects it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats._input import Ids, check_values
from heldout.stats.differences import PairedDifference, holm, paired_difference
from heldout.stats.intervals import CONFIDENCE, Interval
from heldout.stats.moments import Moments
from heldout.stats.winner import Winner, best_of


@dataclass(frozen=True, slots=True)
class Rank:
    """A run among others.

    Attributes:
        run: Its number.
        mean: Its mean.
        interval: The ordinary interval of its mean, which knows of no other run.
        highest: The highest rank that it can have; 1 is the best.
        lowest: The lowest.
    """

    run: int
    mean: float
    interval: Interval | None
    highest: int
    lowest: int


@dataclass(frozen=True, slots=True)
class RankedPair:
    """Two runs on the same items.

    Attributes:
        run: The number of the one with the higher mean; of equals, the first.
        other: The number of the other.
        difference: What the first has over the other, uncorrected; its interval is simultaneous for
            all pairs.
        adjusted_p: Holm's p-value over all pairs.
        is_better: Whether the first is better, with the confidence that all pairs have together.
    """

    run: int
    other: int
    difference: PairedDifference
    adjusted_p: float
    is_better: bool


@dataclass(frozen=True, slots=True)
class Ranking:
    """Several runs, ranked.

    Attributes:
        ranks: The highest mean first.
        pairs: Every pair of runs.
        best: Runs that may be the best: their interval of ranks begins with 1.
        winner: The run with the highest mean, its mean corrected for having been picked.
        confidence: Of all intervals of ranks together.
        n: Items of each run.
    """

    ranks: tuple[Rank, ...]
    pairs: tuple[RankedPair, ...]
    best: tuple[int, ...]
    winner: Winner
    confidence: float
    n: int


def rank_runs(
    values: Sequence[ArrayLike],
    *,
    clusters: Ids | None = None,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> Ranking:
    """Rank finished runs on the same items.

    Args:
        values: The scores of each run, aligned by item.
        clusters: The sample or cluster of each item, in any order; None: items are independent.
        confidence: Of all intervals of ranks together.
        seed: Of the draws that correct the winner.

    Raises:
        InvalidInput: There are fewer than two runs, or scores are not aligned.
    """
    rows = [check_values(row, f"values[{run}]") for run, row in enumerate(values)]
    if len(rows) < 2:
        raise InvalidInput(f"ranks are of two runs or more; got {len(rows)}")
    if len(lengths := {len(row) for row in rows}) > 1:
        raise InvalidInput(
            f"runs have {min(lengths)} to {max(lengths)} values; they are aligned, one of each run "
            "per item"
        )
    table = np.array(rows)
    runs, n = table.shape
    means = [Moments.of(row, clusters) for row in table]
    order = sorted(range(runs), key=lambda run: (-(means[run].mean or 0.0), run))
    # The higher mean first, so that a difference is never below 0.
    pairs = [*combinations(order, 2)]
    each = 1 - (1 - confidence) / len(pairs)
    found = [
        paired_difference(table[other], table[run], clusters=clusters, confidence=each)
        for run, other in pairs
    ]
    adjusted = holm([1.0 if one.p_value is None else one.p_value for one in found])
    above = [0] * runs
    below = [0] * runs
    ranked = []
    for (run, other), one, p in zip(pairs, found, adjusted, strict=True):
        is_better = p < 1 - confidence
        above[other] += is_better
        below[run] += is_better
        ranked.append(RankedPair(run, other, one, p, is_better))
    return Ranking(
        ranks=tuple(
            Rank(
                run=run,
                mean=means[run].mean or 0.0,
                interval=means[run].interval(confidence),
                highest=1 + above[run],
                lowest=runs - below[run],
            )
            for run in order
        ),
        pairs=tuple(ranked),
        best=tuple(run for run in order if not above[run]),
        winner=best_of(table, clusters, seed=seed),
        confidence=confidence,
        n=n,
    )
