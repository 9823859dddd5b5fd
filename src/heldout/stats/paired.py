"""Is b better than a, on the same items? Whatever makes an item hard makes it hard for both, and
cancels.

Every difference is b - a: what b gained. A result names the test its p-value comes from, and
p < 1 - confidence exactly where the interval leaves out 0.

References: E. Miller, "Adding Error Bars to Evals" (arXiv 2411.00640) for paired and clustered
errors; the others stand beside their functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats.clustered import degrees_of_sizes, leave_out_weights
from heldout.stats.given import (
    Ids,
    check_confidence,
    checked_threshold,
    checked_values,
    cluster_codes,
    is_binary,
    is_bounded,
)
from heldout.stats.student import student_p_value, t_quantile
from heldout.stats.summaries import CONFIDENCE, Floats, Interval, Ints
from heldout.stats.summaries import ROUNDING as UNIT_ROUNDING

ROUNDING = 1e-12
"""Of a value's size: more than sums of a thousand values lose, and less than anybody means."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that an interval and a p-value are made of."""

    mean: float
    stderr: float | None
    groups: int
    # Of values between 0 and 1, else None: sums of what was won and lost, over so many pairs.
    won: float | None
    lost: float
    pairs: float
    degrees: float

    def interval(self, confidence: float) -> Interval | None:
        if self.won is None:
            return t_interval(self.mean, self.stderr, self.degrees, confidence)
        quantile = t_quantile((1 + confidence) / 2, self.degrees)
        return tango_interval(self.won, self.lost, self.pairs, quantile)

    def p_value(self) -> float | None:
        if self.won is not None:
            return _score_p_value(self.won, self.lost, self.degrees)
        return student_p_value(self.mean / self.stderr, self.degrees) if self.stderr else None


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """What b gained over a on the same items. Pairs, where not said otherwise, are counted."""

    n: int
    clusters: int
    mean_a: float
    mean_b: float
    difference: float
    """Mean of b - a."""
    stderr: float | None
    """Clustered; None for fewer than two clusters."""
    interval: Interval | None
    """None where the values say nothing about their spread: unbounded, and alike or of one
    cluster."""
    confidence: float
    p_value: float | None
    """Two-sided, of no difference; None where there is no interval, but 1 where nothing differs."""
    test: Literal["t", "score"]
    """t: Student's on the differences. score: Tango's, for values between 0 and 1."""
    exact_p_value: float | None
    """McNemar's exact test; only for 0/1 values without clusters, else None."""
    wins: int
    losses: int
    ties: int
    gained: int | None
    """Pairs where a fails and b passes; None without a pass threshold, as are the next three."""
    lost: int | None
    stayed_passing: int | None
    stayed_failing: int | None
    evidence: Evidence = field(repr=False, compare=False)

    @property
    def is_binary(self) -> bool:
        """Whether it is of 0/1 values without clusters, which have an exact test."""
        return self.exact_p_value is not None

    def interval_at(self, confidence: float) -> Interval | None:
        """The interval for another confidence."""
        check_confidence(confidence)
        return self.evidence.interval(confidence)


# --- Values of any size -------------------------------------------------------------------------


def paired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    clusters: Ids | None = None,
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
    bounded: bool | None = None,
) -> PairedDifference:
    """Compare two aligned sets of results: a[i] and b[i] are of the same item.

    `clusters` names what each pair belongs to: its sample, where samples were repeated, or a
    metadata key (questions that share a passage). Clusters are taken to be independent, pairs
    inside one are not; they may come in any order. Without it every pair is independent.

    Values between 0 and 1 get a score test and interval, which say something honest where few
    pairs or none differ; others get Student's t with (clusters - 1) degrees of freedom, whose
    assumption is that the mean difference is about normal. `bounded` says whether values lie
    between 0 and 1 by nature; None infers it from the data.

    With repeats, which repeat of a meets which of b is arbitrary: the mean, error and interval do
    not depend on it, wins, losses and flips do. Give means of repeats to count by sample.
    """
    check_confidence(confidence)
    values_a, values_b = checked_values(a, "a"), checked_values(b, "b")
    if len(values_a) != len(values_b):
        raise InvalidInput(
            f"a has {len(values_a)} values and b has {len(values_b)}; paired values are aligned, "
            "one of each per item: use unpaired_difference where the items differ"
        )
    codes = None if clusters is None else cluster_codes(clusters, len(values_a))
    threshold = None if pass_threshold is None else checked_threshold(pass_threshold)
    return _paired(
        values_a,
        values_b,
        codes,
        threshold=threshold,
        confidence=confidence,
        bounded=is_bounded(values_a, values_b, bounded=bounded),
    )


def _paired(
    a: Floats,
    b: Floats,
    codes: Ints | None,
    *,
    threshold: float | None,
    confidence: float,
    bounded: bool,
) -> PairedDifference:
    differences = _differences(a, b)
    n = len(differences)
    mean = math.fsum(differences) / n
    groups, stderr, freedom = _clustered_error(differences, mean, codes)
    more, less = differences > 0, differences < 0
    wins, losses = int(more.sum()), int(less.sum())

    exact = None
    if bounded:
        won, lost = float(differences[more].sum()), float(-differences[less].sum())
        if groups == n and is_binary(a) and is_binary(b):
            pairs, degrees = float(n), math.inf
            exact = mcnemar_exact(wins, losses)
        else:
            pairs = _effective_pairs(won / n, lost / n, stderr, groups)
            degrees = freedom if groups > 1 else math.inf
        scaled = pairs / n
        evidence = Evidence(mean, stderr, groups, won * scaled, lost * scaled, pairs, degrees)
    else:
        evidence = Evidence(mean, stderr, groups, None, 0.0, float(n), freedom)

    gained = dropped = passing = None
    if threshold is not None:
        passed_a, passed_b = a >= threshold, b >= threshold
        passing = int((passed_a & passed_b).sum())
        gained, dropped = int(passed_b.sum()) - passing, int(passed_a.sum()) - passing
    return PairedDifference(
        n=n,
        clusters=groups,
        mean_a=math.fsum(a) / n,
        mean_b=math.fsum(b) / n,
        difference=mean,
        stderr=stderr,
        interval=evidence.interval(confidence),
        confidence=confidence,
        p_value=1.0 if wins == losses == 0 else evidence.p_value(),
        test="score" if bounded else "t",
        exact_p_value=exact,
        wins=wins,
        losses=losses,
        ties=n - wins - losses,
        gained=gained,
        lost=dropped,
        stayed_passing=passing,
        stayed_failing=(
            None
            if gained is None or dropped is None or passing is None
            else n - passing - gained - dropped
        ),
        evidence=evidence,
    )


def _differences(a: Floats, b: Floats) -> Floats:
    differences = b - a
    # 0.1 + 0.2 against 0.3 is a tie, and so are means of the same rewards in another order: what
    # rounding leaves is no win.
    size = np.maximum(np.abs(a), np.abs(b))
    differences[np.abs(differences) <= ROUNDING * size] = 0.0
    if np.ptp(differences) <= 2 * ROUNDING * float(size.max()):
        differences[:] = differences[0]  # all alike, likewise
    return differences


def _clustered_error(
    values: Floats, mean: float, codes: Ints | None
) -> tuple[int, float | None, float]:
    """Number of clusters, the standard error of the mean, and its degrees of freedom.

    As `Moments` has them, from an array (see `clustered.py`).
    """
    groups = len(values) if codes is None else int(codes.max()) + 1
    if groups < 2:
        return groups, None, 0.0
    sizes = np.ones(1) if codes is None else np.bincount(codes).astype(np.float64)
    degrees = float(groups - 1)
    if codes is not None:
        degrees = degrees_of_sizes(sizes)
    residuals = values - mean
    scale = float(np.abs(residuals).max())
    if scale == 0 or values.min() == values.max():
        return groups, 0.0, degrees
    residuals /= scale  # squares neither overflow nor vanish
    if codes is None:
        root = math.sqrt(float(np.dot(residuals, residuals)) * groups / (groups - 1))
        return groups, scale * (root / len(values)), degrees
    weights = leave_out_weights(sizes)
    sums = np.bincount(codes, weights=residuals) * weights
    # What is left of terms that cancel is rounding, which would pass for great certainty.
    parts = np.bincount(codes, weights=np.abs(residuals)) * weights
    if np.dot(sums, sums) <= 1e-26 * np.dot(parts, parts):
        return groups, 0.0, degrees
    return groups, scale * (math.sqrt(float(np.dot(sums, sums))) / len(values)), degrees


def t_interval(
    mean: float, stderr: float | None, degrees: float, confidence: float
) -> Interval | None:
    """Student's t interval (Student 1908, Biometrika 6)."""
    if not stderr:
        return None
    margin = t_quantile((1 + confidence) / 2, degrees) * stderr
    return Interval(mean - margin, mean + margin)


# --- Values between 0 and 1 ---------------------------------------------------------------------


def tango_interval(wins: float, losses: float, pairs: float, quantile: float) -> Interval:
    """Score interval of a difference of paired rates: (wins - losses) / pairs.

    Of `pairs` independent pairs of 0/1 outcomes, b alone passed `wins` and a alone `losses`. The
    differences that a score test does not reject, with the share of losses that is most likely
    under each (T. Tango 1998, Statistics in Medicine 17, 891-908). It has a width at 0 of 40
    discordant pairs, stays inside [-1, 1], and leaves out 0 exactly where McNemar's test without
    a continuity correction rejects. Counts may be fractions, for pairs that are not independent.
    """
    estimate = (wins - losses) / pairs
    low = _tango_bound(wins, losses, pairs, quantile, -1.0) if estimate > -1 else -1.0
    high = _tango_bound(wins, losses, pairs, quantile, 1.0) if estimate < 1 else 1.0
    return Interval(low, high)


def _tango_bound(wins: float, losses: float, pairs: float, quantile: float, end: float) -> float:
    """The difference between the estimate and `end` where the score is `quantile`, by bisection."""
    inside, outside = (wins - losses) / pairs, end
    for _ in range(200):
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            break
        linear = (2 * pairs - wins + losses) * middle - wins - losses
        constant = -losses * middle * (1 - middle)
        root = math.sqrt(max(0.0, linear * linear - 8 * pairs * constant))
        # The root of 2n q^2 + linear q + constant, in the form that does not cancel.
        if linear <= 0:
            losing = (root - linear) / (4 * pairs)
        else:
            losing = -2 * constant / (root + linear)
        variance = pairs * (2 * losing + middle * (1 - middle))
        if (wins - losses - pairs * middle) ** 2 <= quantile * quantile * variance:
            inside = middle
        else:
            outside = middle
    return inside


def _score_p_value(wins: float, losses: float, degrees: float) -> float:
    """McNemar's test, (wins - losses) / sqrt(wins + losses), which Tango's interval inverts.

    Q. McNemar 1947, Psychometrika 12. Without a continuity correction: its level stays close to
    the nominal one, and it has more power than the exact test (Fagerland, Lydersen and Laake
    2013, BMC Medical Research Methodology 13:91). Never above the nominal level is the exact one.
    """
    if wins == losses:
        return 1.0
    return student_p_value((wins - losses) / math.sqrt(wins + losses), degrees)


def mcnemar_exact(wins: int, losses: int) -> float:
    """McNemar's exact test, two-sided: of the pairs that differ, half are wins.

    Twice the smaller binomial tail (the distribution is symmetric). Conditional on the number of
    pairs that differ, so its level is never above the nominal one, and usually well below.
    """
    if wins < 0 or losses < 0:
        raise InvalidInput(f"wins and losses are counts, got {wins} and {losses}")
    n, fewer = wins + losses, min(wins, losses)
    if 2 * fewer >= n - 1:  # as even as can be: both tails meet, and count the middle twice
        return 1.0
    # From P(X = fewer) downwards, each term of Binomial(n, 1/2) is a known fraction of the one
    # above it; sixteen standard deviations further down there is nothing left to add.
    below = np.arange(min(fewer, int(8 * math.sqrt(n)) + 64))
    terms = np.cumprod((fewer - below) / (n - fewer + 1 + below))
    log_first = math.lgamma(n + 1) - math.lgamma(fewer + 1) - math.lgamma(n - fewer + 1)
    return min(1.0, 2 * math.exp(log_first - n * math.log(2)) * (1 + float(terms.sum())))


def _effective_pairs(gain: float, loss: float, stderr: float | None, groups: int) -> float:
    """The number of independent 0/1 pairs that would be as uncertain.

    Such pairs with these shares of wins and losses have variance gain + loss - (gain - loss)^2 per
    pair; partial scores vary less, clustered ones more. Scaling counts by that ratio is Rao and
    Scott's method for clustered 0/1 data (1992, Biometrics 48, 577-585). Without any spread it is
    the number of clusters.
    """
    spread = gain + loss - (gain - loss) ** 2
    error = stderr or 0.0
    varies = error * math.sqrt(groups) > UNIT_ROUNDING
    return spread / error**2 if spread > 0 and varies else float(groups)
