"""Is b better than a? Differences on the same items, on other items, and in many slices.

Every difference is b - a. A result names the test its p-value comes from, and p < 1 - confidence
exactly where the interval leaves out 0.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.stats._input import (
    UNIT_ROUNDING,
    Ids,
    check_fraction,
    check_pairs,
    check_threshold,
    check_values,
    clusters_or_none,
    factorize,
    is_bounded,
)
from heldout.stats.intervals import (
    CONFIDENCE,
    Floats,
    Interval,
    bisect,
    student_p_value,
    t_interval,
    t_quantile,
)
from heldout.stats.moments import Moments

JUST_BEYOND = 1e-9
"""The near end of an interval that leaves out 0 and nothing else; no difference is as small."""
ROUNDING = 1e-12
"""Relative to a value: more than a sum of a thousand values loses, less than any score differs."""

# --- Paired -------------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """What the interval of a paired difference is made of, beside its standard error."""

    degrees: float
    # Independent pairs that would be as uncertain; of values between 0 and 1, what was gained and
    # lost over that many.
    pairs: float
    won: float | None = None
    lost: float = 0.0


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """What b gained over a on the same items.

    Attributes:
        n: Pairs.
        clusters: Clusters of pairs.
        mean_a: Mean of a.
        mean_b: Mean of b.
        difference: Mean of b - a.
        stderr: Its standard error, clustered; None for fewer than two clusters.
        interval: None where unbounded values show no spread.
        confidence: Of the interval.
        p_value: Two-sided, of no difference; None without an interval, but 1 where nothing differs.
        test: "exact" is McNemar's exact test, for 0/1 values without clusters; "score" is McNemar's
            score test, for other values between 0 and 1; "t" is Student's on the differences.
        wins: Pairs with b above a.
        losses: Pairs with b below a.
        ties: Pairs with b equal to a.
        evidence: What interval and p-value are made of.
        gained: Pairs where a fails and b passes; None without a pass threshold.
        lost: Pairs where a passes and b fails; None likewise.
        stayed_passing: Pairs where both pass; None likewise.
        stayed_failing: Pairs where both fail; None likewise.
    """

    n: int
    clusters: int
    mean_a: float
    mean_b: float
    difference: float
    stderr: float | None
    interval: Interval | None
    confidence: float
    p_value: float | None
    test: Literal["exact", "score", "t"]
    wins: int
    losses: int
    ties: int
    evidence: Evidence = field(repr=False, compare=False)
    gained: int | None = None
    lost: int | None = None
    stayed_passing: int | None = None
    stayed_failing: int | None = None

    def interval_at(self, confidence: float) -> Interval | None:
        """Return the interval for another confidence; it leaves out 0 exactly where the test does.

        The exact test decides about 0 alone, Tango's interval about every other difference: its
        near end is moved to 0 where the exact test does not reject. (An interval from the exact
        test would cover 52 to 82% in small sets: it holds given the number of pairs that differ.)
        """
        interval = self.bound_interval(confidence)
        if interval is None or self.p_value is None or self.test != "exact":
            return interval
        if self.p_value >= 1 - confidence:
            return Interval(min(interval.low, 0.0), max(interval.high, 0.0))
        # Beyond p = 0.0005 the exact test can reject where Tango's interval still reaches 0.
        if self.difference > 0:
            return Interval(max(interval.low, JUST_BEYOND), interval.high)
        return Interval(interval.low, min(interval.high, -JUST_BEYOND))

    def bound_interval(self, confidence: float, *, size: float = 1.0) -> Interval | None:
        """Return the interval that a bound other than 0 is held against, such as a margin.

        Args:
            confidence: Of the interval.
            size: How many times as many pairs, which differ as these do.
        """
        check_fraction(confidence, "confidence")
        degrees, pairs, won, lost = self.evidence
        degrees *= size
        if won is None:
            stderr = self.stderr and self.stderr / math.sqrt(size)
            return t_interval(self.difference, stderr, degrees, confidence)
        quantile = t_quantile((1 + confidence) / 2, degrees)
        return tango_interval(won * size, lost * size, pairs * size, quantile)

    def count_flips(
        self, passed_a: NDArray[np.bool_], passed_b: NDArray[np.bool_]
    ) -> PairedDifference:
        """Return the difference with its flips, by which pairs pass."""
        return replace(
            self,
            gained=int((passed_b & ~passed_a).sum()),
            lost=int((passed_a & ~passed_b).sum()),
            stayed_passing=int((passed_a & passed_b).sum()),
            stayed_failing=int((~passed_a & ~passed_b).sum()),
        )


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

    Values between 0 and 1 get Tango's score interval and McNemar's test, which is exact for 0/1
    values without clusters; others get Student's t. With repeats, which repeat of a meets which of
    b is arbitrary: wins, losses and flips depend on it.

    Args:
        a: Results of a.
        b: Results of b.
        clusters: What each pair belongs to, in any order: its sample, where samples were repeated,
            or a metadata key. None: every pair is independent.
        pass_threshold: The value that passes, to count flips.
        confidence: Of the interval.
        bounded: Whether values lie between 0 and 1 by nature; None infers it from the values.

    Raises:
        InvalidInput: The values are not finite numbers, or not aligned.
    """
    values_a, values_b = check_pairs(a, b)
    n = len(values_a)
    codes = clusters_or_none(clusters, n)
    inside = is_bounded(values_a, values_b, bounded=bounded)
    differences = _subtract(values_a, values_b)
    moments = Moments.of(differences, codes)
    mean, groups, degrees = _mean(moments), moments.clusters, moments.degrees
    more, less = differences > 0, differences < 0
    wins, losses = int(more.sum()), int(less.sum())

    p_value, evidence = None, Evidence(degrees, n)
    test: Literal["exact", "score", "t"] = "score" if inside else "t"
    if inside:
        won, lost = _exact_sum(differences[more]), -_exact_sum(differences[less])
        if groups == n and _is_binary(values_a) and _is_binary(values_b):
            test, pairs, degrees = "exact", float(n), math.inf
            p_value = mcnemar_exact(wins, losses)
        else:
            pairs = _effective_pairs(won / n, lost / n, moments.stderr, groups)
            degrees = degrees if groups > 1 else math.inf
            won, lost = won * (pairs / n), lost * (pairs / n)
            p_value = _score_p_value(won, lost, degrees)
        evidence = Evidence(degrees, pairs, won, lost)
    elif moments.stderr:
        p_value = student_p_value(mean / moments.stderr, degrees)
    result = PairedDifference(
        n=n,
        clusters=groups,
        mean_a=_exact_sum(values_a) / n,
        mean_b=_exact_sum(values_b) / n,
        difference=mean,
        stderr=moments.stderr,
        interval=None,
        confidence=confidence,
        p_value=1.0 if wins == losses == 0 else p_value,
        test=test,
        wins=wins,
        losses=losses,
        ties=n - wins - losses,
        evidence=evidence,
    )
    if pass_threshold is not None:
        threshold = check_threshold(pass_threshold)
        result = result.count_flips(values_a >= threshold, values_b >= threshold)
    return replace(result, interval=result.interval_at(confidence))


def _exact_sum(values: Floats) -> float:
    return math.fsum(values.data)  # twice as fast as over the array


def _is_binary(values: Floats) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _subtract(a: Floats, b: Floats) -> Floats:
    differences = b - a
    # 0.1 + 0.2 against 0.3 is a tie, and so are means of the same rewards in another order: what
    # rounding leaves is no win.
    size = np.maximum(np.abs(a), np.abs(b))
    differences[np.abs(differences) <= ROUNDING * size] = 0.0
    if np.ptp(differences) <= 2 * ROUNDING * float(size.max()):
        differences[:] = differences[0]  # all alike, likewise
    return differences


def tango_interval(wins: float, losses: float, pairs: float, quantile: float) -> Interval:
    """Return the score interval of a difference of paired rates: (wins - losses) / pairs.

    T. Tango 1998, Statistics in Medicine 17, 891-908. It leaves out 0 exactly where McNemar's score
    test rejects. Counts may be fractions, where pairs are not
    independent.
    """
    estimate = (wins - losses) / pairs

    def is_accepted(difference: float) -> bool:
        variance = pairs * tango_variance(wins, losses, pairs, difference)
        return (wins - losses - pairs * difference) ** 2 <= quantile * quantile * variance

    low, high = (bisect(estimate, end, is_accepted)[0] for end in (-1.0, 1.0))
    return Interval(low, high)


def tango_variance(wins: float, losses: float, pairs: float, difference: float) -> float:
    """Return the variance of a pair's difference that is most likely under a true difference."""
    linear = (2 * pairs - wins + losses) * difference - wins - losses
    constant = -losses * difference * (1 - difference)
    root = math.sqrt(max(0.0, linear * linear - 8 * pairs * constant))
    # The share of losses that is most likely under this difference: the root of
    # 2n q^2 + linear q + constant, in the form that does not cancel.
    if linear <= 0:
        losing = (root - linear) / (4 * pairs)
    else:
        losing = -2 * constant / (root + linear)
    return 2 * losing + difference * (1 - difference)


def _score_p_value(wins: float, losses: float, degrees: float) -> float:
    """Return the p-value of McNemar's score test (1947, Psychometrika 12).

    It has no continuity correction. Its level stays close to the nominal one (Fagerland, Lydersen
    and Laake 2013, BMC Medical Research Methodology 13:91).
    """
    if wins == losses:
        return 1.0
    return student_p_value((wins - losses) / math.sqrt(wins + losses), degrees)


def mcnemar_exact(wins: int, losses: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: twice the smaller binomial tail."""
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
    """Return the number of independent 0/1 pairs that would be as uncertain.

    J. N. K. Rao and A. J. Scott 1992, Biometrics 48, 577-585. Without any spread it is the number
    of clusters.
    """
    spread = gain + loss - (gain - loss) ** 2
    error = stderr or 0.0
    varies = error * math.sqrt(groups) > UNIT_ROUNDING
    return spread / error**2 if spread > 0 and varies else float(groups)


# --- Unpaired -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UnpairedDifference:
    """What b has over a, of sets of results that do not share their items.

    Attributes:
        n_a: Results of a.
        n_b: Results of b.
        clusters_a: Clusters of a.
        clusters_b: Clusters of b.
        mean_a: Mean of a.
        mean_b: Mean of b.
        difference: Mean of b less the mean of a.
        stderr: Its standard error, clustered; None where either side has fewer than two clusters.
        degrees_of_freedom: Satterthwaite's, for the Welch test; None where there is no spread.
        interval: None where unbounded values show no spread.
        confidence: Of the interval.
        p_value: Two-sided, of no difference; None without an interval.
        test: "welch" is Student's t with unequal variances; "mover" is made of both sides' score
            intervals, for values between 0 and 1.
        sides: The moments of both sides.
    """

    n_a: int
    n_b: int
    clusters_a: int
    clusters_b: int
    mean_a: float
    mean_b: float
    difference: float
    stderr: float | None
    degrees_of_freedom: float | None
    interval: Interval | None
    confidence: float
    p_value: float | None
    test: Literal["welch", "mover"]
    sides: tuple[Moments, Moments] = field(repr=False, compare=False)

    def interval_at(self, confidence: float) -> Interval | None:
        """Return the interval for another confidence."""
        return self.bound_interval(confidence)

    def bound_interval(self, confidence: float, *, size: float = 1.0) -> Interval | None:
        """Return the interval that a bound is held against; it is the same for every bound.

        Args:
            confidence: Of the interval.
            size: How many times as many results on both sides, which vary as these do.
        """
        check_fraction(confidence, "confidence")
        if self.test == "mover":
            return mover_interval(*self.sides, confidence, size=size)
        if self.degrees_of_freedom is None:
            return None
        stderr = self.stderr and self.stderr / math.sqrt(size)
        return t_interval(self.difference, stderr, self.degrees_of_freedom * size, confidence)


def unpaired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    clusters_a: Ids | None = None,
    clusters_b: Ids | None = None,
    confidence: float = CONFIDENCE,
    bounded: bool | None = None,
) -> UnpairedDifference:
    """Compare two sets of results that do not share their items, and are independent.

    Values of any size get Welch's test, clustered (B. L. Welch 1947, Biometrika 34; F. E.
    Satterthwaite 1946, Biometrics 2). Values between 0 and 1 get the interval made of both sides'
    score intervals (R. G. Newcombe 1998, Statistics in Medicine 17, 873-890, method 10; G. Y. Zou
    and A. Donner 2008, Statistics in Medicine 27); its p-value is 1 less the confidence at which
    the interval touches 0.

    Args:
        a: Results of a.
        b: Results of b.
        clusters_a: The cluster of each result of a; None: each is independent.
        clusters_b: The same of b.
        confidence: Of the interval.
        bounded: Whether values lie between 0 and 1 by nature; None infers it from the values.

    Raises:
        InvalidInput: The values are not finite numbers.
    """
    values_a, values_b = check_values(a, "a"), check_values(b, "b")
    codes_a = clusters_or_none(clusters_a, len(values_a), "clusters_a")
    codes_b = clusters_or_none(clusters_b, len(values_b), "clusters_b")
    side_a, side_b = Moments.of(values_a, codes_a), Moments.of(values_b, codes_b)
    mean_a, mean_b = _mean(side_a), _mean(side_b)
    difference = mean_b - mean_a
    stderr, degrees = _welch_error(side_a, side_b)
    inside = is_bounded(values_a, values_b, bounded=bounded)
    p_value = None
    if inside:
        p_value = _mover_p_value(side_a, side_b)
    elif stderr and degrees is not None:
        p_value = student_p_value(difference / stderr, degrees)
    result = UnpairedDifference(
        n_a=side_a.n,
        n_b=side_b.n,
        clusters_a=side_a.clusters,
        clusters_b=side_b.clusters,
        mean_a=mean_a,
        mean_b=mean_b,
        difference=difference,
        stderr=stderr,
        degrees_of_freedom=degrees,
        interval=None,
        confidence=confidence,
        p_value=p_value,
        test="mover" if inside else "welch",
        sides=(side_a, side_b),
    )
    return replace(result, interval=result.interval_at(confidence))


def _welch_error(a: Moments, b: Moments) -> tuple[float | None, float | None]:
    """Return the standard error of the difference, and Satterthwaite's degrees of freedom."""
    if a.stderr is None or b.stderr is None:
        return None, None
    stderr = math.hypot(a.stderr, b.stderr)
    if stderr == 0:
        return 0.0, None
    share_a, share_b = (a.stderr / stderr) ** 2, (b.stderr / stderr) ** 2
    return stderr, 1 / (share_a**2 / a.degrees + share_b**2 / b.degrees)


def _mean(moments: Moments) -> float:
    assert moments.mean is not None, "there are values"
    return moments.mean


def mover_interval(a: Moments, b: Moments, confidence: float, *, size: float = 1.0) -> Interval:
    """Return the interval of b - a made of the score intervals of both, for values in [0, 1]."""
    around_a, around_b = a.interval(confidence, size=size), b.interval(confidence, size=size)
    assert around_a is not None, "there are values"
    assert around_b is not None, "there are values"
    mean_a, mean_b = _mean(a), _mean(b)
    difference = mean_b - mean_a
    below = math.hypot(mean_b - around_b.low, around_a.high - mean_a)
    above = math.hypot(around_b.high - mean_b, mean_a - around_a.low)
    return Interval(max(-1.0, difference - below), min(1.0, difference + above))


def _mover_p_value(a: Moments, b: Moments) -> float:
    """Bisect the logarithm of 1 - confidence; values below 1e-12 are 1e-12."""
    if a.mean == b.mean:
        return 1.0

    def covers_zero(log_p: float) -> bool:
        interval = mover_interval(a, b, 1 - math.exp(log_p))
        return interval.low <= 0 <= interval.high

    least, most = math.log(1e-12), math.log(1 - 1e-9)
    if not covers_zero(least):
        return 1e-12
    inside, outside = bisect(least, most, covers_zero, steps=25)
    return math.exp((inside + outside) / 2)


# --- Slices -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SliceDifference:
    """The difference in one of several slices.

    Attributes:
        label: The slice.
        difference: The difference, as if the slice were the only one.
        adjusted_p_value: Holm's, over all slices; None where the slice has no p-value.
        simultaneous_interval: Bonferroni's: all slices' intervals hold at once, with the confidence
            asked for.
    """

    label: Hashable
    difference: PairedDifference | UnpairedDifference
    adjusted_p_value: float | None
    simultaneous_interval: Interval | None


def slice_differences(
    differences: Mapping[Any, PairedDifference | UnpairedDifference],
    *,
    confidence: float = CONFIDENCE,
    looked_at: int | None = None,
) -> tuple[SliceDifference, ...]:
    """Correct the differences of slices for multiple comparisons.

    Adjusted p-values are Holm's, simultaneous intervals Bonferroni's: a slice can be different by
    its p-value while its interval has 0 in it, never the other way round.

    Args:
        differences: The difference of each slice, by label.
        confidence: Of all intervals at once.
        looked_at: How many slices there are, where some of them have nothing to compare.

    Returns:
        The corrected differences, in the order given.
    """
    check_fraction(confidence, "confidence")
    # A slice that cannot be tested was looked at all the same.
    count = max(len(differences), looked_at or 0)
    p_values = [1.0 if d.p_value is None else d.p_value for d in differences.values()]
    adjusted = holm([*p_values, *[1.0] * (count - len(differences))])[: len(differences)]
    return tuple(
        SliceDifference(
            label=label,
            difference=difference,
            adjusted_p_value=None if difference.p_value is None else p_value,
            simultaneous_interval=difference.interval_at(1 - (1 - confidence) / count),
        )
        for (label, difference), p_value in zip(differences.items(), adjusted, strict=True)
    )


def paired_slices(
    a: ArrayLike,
    b: ArrayLike,
    *,
    labels: Ids,
    clusters: Ids | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[SliceDifference, ...]:
    """Compare two aligned sets of results slice by slice, corrected for multiple comparisons.

    Args:
        a: Results of a.
        b: Results of b.
        labels: The slice of each pair.
        clusters: As for `paired_difference`.
        confidence: Of all intervals at once.

    Returns:
        The corrected differences, in the order of each label's first pair.

    Raises:
        InvalidInput: The values are not finite numbers, or not aligned.
    """
    values_a, values_b = check_pairs(a, b)
    names, codes = factorize(labels, len(values_a), "labels")
    members = clusters_or_none(clusters, len(values_a))
    # Decided for all: a slice of equal values would say less about what they can be.
    inside = is_bounded(values_a, values_b, bounded=None)
    order = np.argsort(codes, kind="stable")
    differences = {}
    for name, rows in zip(names, np.split(order, np.cumsum(np.bincount(codes))[:-1]), strict=True):
        differences[name] = paired_difference(
            values_a[rows],
            values_b[rows],
            clusters=None if members is None else members[rows],
            confidence=confidence,
            bounded=inside,
        )
    return slice_differences(differences, confidence=confidence)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjust p-values: p <= alpha rejects at a family-wise level of alpha.

    S. Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    values = np.array(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    factors = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return tuple(adjusted.tolist())
