"""Is b better than a? Differences of two sets of results: pure functions, numpy only.

`paired_difference` is for results of the same samples, aligned: whatever makes a sample hard makes
it hard for both, and cancels. `unpaired_difference` is for two sets with nothing in common, and is
much less certain. `paired_slices` looks at many parts of the data and pays for looking often.

Every difference is b - a: what b gained. Each result names the test its p-value comes from, and
p < 1 - confidence exactly where the interval leaves out 0.

References: E. Miller, "Adding Error Bars to Evals" (arXiv 2411.00640) for paired and clustered
errors; the others stand beside their functions.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.errors import InvalidInput
from heldout.stats.summaries import (
    CONFIDENCE,
    Floats,
    Interval,
    Ints,
    Moments,
    _incomplete_beta,
)

Test = Literal["t", "score", "welch", "mover"]
Ids = Sequence[Hashable] | NDArray[Any]


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
    test: Test
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


@dataclass(frozen=True, slots=True)
class UnpairedDifference:
    """What b has over a, of sets of results that do not share their items."""

    n_a: int
    n_b: int
    clusters_a: int
    clusters_b: int
    mean_a: float
    mean_b: float
    difference: float
    """Mean of b less the mean of a."""
    stderr: float | None
    """Clustered; None where either side has fewer than two clusters."""
    degrees_of_freedom: float | None
    """Satterthwaite's, which the welch test uses; None where there is no spread."""
    interval: Interval | None
    confidence: float
    p_value: float | None
    test: Test
    """welch: Student's t with unequal variances. mover: from both sides' score intervals, for
    values between 0 and 1."""


@dataclass(frozen=True, slots=True)
class SliceDifference:
    label: Hashable
    difference: PairedDifference
    """Of this slice, as if it were the only one looked at."""
    adjusted_p_value: float | None
    """Holm's, over all slices; None where the slice has no p-value."""
    simultaneous_interval: Interval | None
    """Bonferroni's: all slices' intervals hold at once, with the confidence asked for."""


# --- Paired -------------------------------------------------------------------------------------


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
    _check_confidence(confidence)
    values_a, values_b = checked_values(a, "a"), checked_values(b, "b")
    if len(values_a) != len(values_b):
        raise InvalidInput(
            f"a has {len(values_a)} values and b has {len(values_b)}; paired values are aligned, "
            "one of each per item: use unpaired_difference where the items differ"
        )
    codes = None if clusters is None else cluster_codes(clusters, len(values_a))
    threshold = None if pass_threshold is None else _checked_threshold(pass_threshold)
    return _paired(
        values_a,
        values_b,
        codes,
        threshold=threshold,
        confidence=confidence,
        bounded=_is_bounded(values_a, values_b, bounded=bounded),
    )[0]


@dataclass(frozen=True, slots=True)
class _Evidence:
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
            return _t_interval(self.mean, self.stderr, self.degrees, confidence)
        quantile = student_quantile((1 + confidence) / 2, self.degrees)
        return tango_interval(self.won, self.lost, self.pairs, quantile)

    def p_value(self) -> float | None:
        if self.won is not None:
            return _score_p_value(self.won, self.lost, self.degrees)
        return student_p_value(self.mean / self.stderr, self.degrees) if self.stderr else None


def _paired(
    a: Floats,
    b: Floats,
    codes: Ints | None,
    *,
    threshold: float | None,
    confidence: float,
    bounded: bool,
) -> tuple[PairedDifference, _Evidence]:
    differences = _differences(a, b)
    n = len(differences)
    mean = float(differences.mean())
    groups, stderr = _clustered_error(differences, mean, codes)
    more, less = differences > 0, differences < 0
    wins, losses = int(more.sum()), int(less.sum())

    exact = None
    if bounded:
        won, lost = float(differences[more].sum()), float(-differences[less].sum())
        if groups == n and _is_binary(a) and _is_binary(b):
            pairs, degrees = float(n), math.inf
            exact = mcnemar_exact(wins, losses)
        else:
            pairs = _effective_pairs(won / n, lost / n, stderr, groups)
            degrees = groups - 1 if groups > 1 else math.inf
        scaled = pairs / n
        evidence = _Evidence(mean, stderr, groups, won * scaled, lost * scaled, pairs, degrees)
    else:
        evidence = _Evidence(mean, stderr, groups, None, 0.0, float(n), groups - 1)

    gained = dropped = passing = None
    if threshold is not None:
        passed_a, passed_b = a >= threshold, b >= threshold
        passing = int((passed_a & passed_b).sum())
        gained, dropped = int(passed_b.sum()) - passing, int(passed_a.sum()) - passing
    found = PairedDifference(
        n=n,
        clusters=groups,
        mean_a=float(a.mean()),
        mean_b=float(b.mean()),
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
    )
    return found, evidence


def _differences(a: Floats, b: Floats) -> Floats:
    differences = b - a
    # 0.1 + 0.2 against 0.3 is a tie: what rounding leaves is no win.
    size = np.maximum(np.abs(a), np.abs(b))
    epsilon = float(np.finfo(np.float64).eps)
    differences[np.abs(differences) <= 4 * epsilon * size] = 0.0
    if np.ptp(differences) <= 8 * epsilon * float(size.max()):
        differences[:] = differences[0]  # all alike, likewise
    return differences


def _clustered_error(values: Floats, mean: float, codes: Ints | None) -> tuple[int, float | None]:
    """Number of clusters, and the standard error of the mean: Moments.stderr, from an array.

    sqrt(G/(G-1) * sum over clusters of (sum in the cluster of (x - mean))^2) / n (Miller 2024,
    eq. 4; the G/(G-1) makes it std / sqrt(n) where every cluster is a single value).
    """
    groups = len(values) if codes is None else int(codes.max()) + 1
    if groups < 2:
        return groups, None
    residuals = values - mean
    scale = float(np.abs(residuals).max())
    if scale == 0 or values.min() == values.max():
        return groups, 0.0
    residuals /= scale  # squares neither overflow nor vanish
    sums: Floats = residuals
    if codes is not None:
        sums = np.asarray(np.bincount(codes, weights=residuals), dtype=np.float64)
        # What is left of terms that cancel is rounding, which would pass for great certainty.
        parts = np.bincount(codes, weights=np.abs(residuals))
        if np.dot(sums, sums) <= 1e-26 * np.dot(parts, parts):
            return groups, 0.0
    root = math.sqrt(float(np.dot(sums, sums)) * groups / (groups - 1))
    return groups, scale * (root / len(values))


def _t_interval(
    mean: float, stderr: float | None, degrees: float, confidence: float
) -> Interval | None:
    """Student's t interval (Student 1908, Biometrika 6)."""
    if not stderr:
        return None
    margin = student_quantile((1 + confidence) / 2, degrees) * stderr
    return Interval(mean - margin, mean + margin)


# --- Paired, values between 0 and 1 -------------------------------------------------------------


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
    error = (stderr or 0.0) ** 2
    # Both can round to nothing.
    return spread / error if spread > 0 and error > 0 else float(groups)


# --- Unpaired -----------------------------------------------------------------------------------


def unpaired_difference(
    a: ArrayLike,
    b: ArrayLike,
    *,
    clusters_a: Ids | None = None,
    clusters_b: Ids | None = None,
    confidence: float = CONFIDENCE,
    bounded: bool | None = None,
) -> UnpairedDifference:
    """Compare two sets of results that do not share their items; each side has its clusters.

    Both sides are taken to be independent of each other, so a cluster is never on both. Values of
    any size get Welch's test, with clustered errors and Satterthwaite's degrees of freedom (B. L.
    Welch 1947, Biometrika 34; F. E. Satterthwaite 1946, Biometrics 2). Values between 0 and 1 get
    the interval made of both sides' score intervals, which does not break down at rates of 0 and
    1: Newcombe's for plain rates (1998, Statistics in Medicine 17, 873-890, method 10), in general
    the method of variance estimates recovery (G. Y. Zou and A. Donner 2008, Statistics in Medicine
    27); its p-value is 1 less the confidence at which the interval touches 0.
    """
    _check_confidence(confidence)
    values_a, values_b = checked_values(a, "a"), checked_values(b, "b")
    moments_a = _moments(values_a, clusters_a, "clusters_a")
    moments_b = _moments(values_b, clusters_b, "clusters_b")
    mean_a, mean_b = moments_a.mean, moments_b.mean
    assert mean_a is not None
    assert mean_b is not None
    difference = mean_b - mean_a

    stderr = degrees = interval = p_value = None
    error_a, error_b = moments_a.stderr, moments_b.stderr
    if error_a is not None and error_b is not None:
        stderr = math.hypot(error_a, error_b)
        if stderr > 0:
            share_a, share_b = (error_a / stderr) ** 2, (error_b / stderr) ** 2
            degrees = 1 / (
                share_a**2 / (moments_a.clusters - 1) + share_b**2 / (moments_b.clusters - 1)
            )
    inside = _is_bounded(values_a, values_b, bounded=bounded)
    if inside:
        interval = _mover(moments_a, moments_b, confidence)
        p_value = _mover_p_value(moments_a, moments_b)
    elif stderr and degrees is not None:
        interval = _t_interval(difference, stderr, degrees, confidence)
        p_value = student_p_value(difference / stderr, degrees)
    return UnpairedDifference(
        n_a=len(values_a),
        n_b=len(values_b),
        clusters_a=moments_a.clusters,
        clusters_b=moments_b.clusters,
        mean_a=mean_a,
        mean_b=mean_b,
        difference=difference,
        stderr=stderr,
        degrees_of_freedom=degrees,
        interval=interval,
        confidence=confidence,
        p_value=p_value,
        test="mover" if inside else "welch",
    )


def _moments(values: Floats, clusters: Ids | None, name: str) -> Moments:
    codes = np.arange(len(values), dtype=np.int64)
    if clusters is not None:
        codes = cluster_codes(clusters, len(values), name)
        order = np.argsort(codes, kind="stable")  # Moments wants clusters next to each other
        values, codes = values[order], codes[order]
    moments = Moments()
    moments.add(values, codes)
    return moments


def _mover(a: Moments, b: Moments, confidence: float) -> Interval:
    around_a, around_b = a.interval(confidence), b.interval(confidence)
    mean_a, mean_b = a.mean, b.mean
    # There are values, between 0 and 1: they have a mean, and a score interval.
    assert mean_a is not None
    assert mean_b is not None
    assert around_a is not None
    assert around_b is not None
    difference = mean_b - mean_a
    below = math.hypot(mean_b - around_b.low, around_a.high - mean_a)
    above = math.hypot(around_b.high - mean_b, mean_a - around_a.low)
    return Interval(max(-1.0, difference - below), min(1.0, difference + above))


def _mover_p_value(a: Moments, b: Moments) -> float:
    """By bisection on the logarithm of 1 - confidence; not told apart below 1e-12."""
    if a.mean == b.mean:
        return 1.0

    def covers_zero(log_p: float) -> bool:
        interval = _mover(a, b, 1 - math.exp(log_p))
        return interval.low <= 0 <= interval.high

    inside, outside = math.log(1e-12), math.log(1 - 1e-9)
    if not covers_zero(inside):
        return 1e-12
    while outside - inside > 1e-6:
        middle = (inside + outside) / 2
        if covers_zero(middle):
            inside = middle
        else:
            outside = middle
    return math.exp((inside + outside) / 2)


# --- Many slices --------------------------------------------------------------------------------


def paired_slices(
    a: ArrayLike,
    b: ArrayLike,
    *,
    labels: Ids,
    clusters: Ids | None = None,
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
    bounded: bool | None = None,
) -> tuple[SliceDifference, ...]:
    """`paired_difference` of every slice (a label's pairs), corrected for looking at all of them.

    In the order labels first come. Adjusted p-values are Holm's: the chance of calling any slice
    different that is not is at most 1 - confidence, however the slices depend on each other. The
    intervals are Bonferroni's, each at 1 - (1 - confidence) / slices: Holm's have no counterpart
    that is as short, so a slice can be different by its p-value while its interval has 0 in it,
    never the other way round.
    """
    _check_confidence(confidence)
    values_a, values_b = checked_values(a, "a"), checked_values(b, "b")
    if len(values_a) != len(values_b):
        raise InvalidInput(
            f"a has {len(values_a)} values and b has {len(values_b)}; paired values are aligned"
        )
    names, slices = _factorise(labels, len(values_a), "labels")
    codes = None if clusters is None else cluster_codes(clusters, len(values_a))
    threshold = None if pass_threshold is None else _checked_threshold(pass_threshold)
    inside = _is_bounded(values_a, values_b, bounded=bounded)

    order = np.argsort(slices, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(slices))[:-1])
    found = []
    for part in parts:
        found.append(
            _paired(
                values_a[part],
                values_b[part],
                None if codes is None else np.unique(codes[part], return_inverse=True)[1],
                threshold=threshold,
                confidence=confidence,
                bounded=inside,
            )
        )
    # A slice that cannot be tested was looked at all the same.
    adjusted = holm([1.0 if one.p_value is None else one.p_value for one, _ in found])
    each = 1 - (1 - confidence) / len(found)
    return tuple(
        SliceDifference(
            label=name,
            difference=one,
            adjusted_p_value=None if one.p_value is None else p_value,
            simultaneous_interval=evidence.interval(each),
        )
        for name, (one, evidence), p_value in zip(names, found, adjusted, strict=True)
    )


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values, in the order given: p <= alpha rejects, at a family-wise level of alpha.

    The k-th smallest of m is multiplied by m - k + 1, and none is below one before it (S. Holm
    1979, Scandinavian Journal of Statistics 6, 65-70). Assumes nothing about how they depend.
    """
    given = np.array(p_values, dtype=np.float64)
    wrong = np.flatnonzero(~((given >= 0) & (given <= 1)))
    if len(wrong):
        raise InvalidInput(
            f"p-value {p_values[wrong[0]]!r} at position {wrong[0]} is not between 0 and 1"
        )
    order = np.argsort(given, kind="stable")
    factors = np.arange(len(given), 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * factors))
    return tuple(adjusted.tolist())


# --- Student's t, with any degrees of freedom ---------------------------------------------------


def student_p_value(t: float, degrees: float) -> float:
    """P(|T| >= |t|) of Student's t; infinite degrees of freedom are the normal distribution's."""
    if degrees > 1e8:
        return math.erfc(abs(t) / math.sqrt(2))
    # t^2 may overflow, and x is what would be left of df / (df + t^2).
    x = 1 / (1 + (t / math.sqrt(degrees)) ** 2) if abs(t) < 1e150 else 0.0
    return _incomplete_beta(degrees / 2, 0.5, x)


@lru_cache(maxsize=1024)
def student_quantile(p: float, degrees: float) -> float:
    """The p-quantile of Student's t, for p > 0.5: t_quantile, for any degrees of freedom > 0."""
    if degrees > 1e8:
        return NormalDist().inv_cdf(p)
    low, high = 0.0, 2.0
    while student_p_value(high, degrees) > 2 * (1 - p):
        low, high = high, high * 2
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if student_p_value(middle, degrees) > 2 * (1 - p):
            low = middle
        else:
            high = middle
    return (low + high) / 2


# --- What is given ------------------------------------------------------------------------------

_LARGEST = 1e120
"""Squares and sums of anything smaller are finite."""


def checked_values(values: ArrayLike, name: str) -> Floats:
    """A fresh array of finite numbers, or InvalidInput that says which one is not."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidInput(f"{name} has {array.ndim} dimensions; it is one list of numbers")
    if len(array) == 0:
        raise InvalidInput(f"{name} has no values; there is nothing to compare")
    if array.dtype.kind == "O":
        for position, value in enumerate(array.tolist()):
            if value is None:
                raise InvalidInput(
                    f"{name}[{position}] is None: it has no score; leave that item out of both "
                    "sides, or decide what it counts as"
                )
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{name} is not made of numbers (numpy type {array.dtype})")
    numbers = array.astype(np.float64)
    wrong = np.flatnonzero(~(np.abs(numbers) <= _LARGEST))
    if len(wrong):
        raise InvalidInput(
            f"{name}[{wrong[0]}] is {numbers[wrong[0]]!r} ({len(wrong)} such in all): values are "
            f"finite and at most {_LARGEST:g}; leave such items out of both sides, or decide "
            "what they count as"
        )
    return numbers


def cluster_codes(ids: Ids, n: int, name: str = "clusters") -> Ints:
    """Clusters numbered from 0, without gaps; ids in any order and of any hashable kind."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) == n:
        first = int(ids.min())
        if int(ids.max()) - first <= 4 * n + 1024:  # no need to sort
            from_first = (ids - ids.dtype.type(first)).astype(np.int64)
            present = np.bincount(from_first) > 0
            numbered: Ints = (np.cumsum(present) - 1)[from_first]
            return numbered
        return np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return _factorise(ids, n, name)[1]


def _factorise(ids: Ids, n: int, name: str) -> tuple[list[Hashable], Ints]:
    """The distinct ids in the order they first come, and which of them each one is."""
    listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if len(listed) != n:
        raise InvalidInput(f"{name} has {len(listed)} ids for {n} values; each value has one")
    table: dict[Hashable, int] = {}
    codes = np.fromiter((table.setdefault(each, len(table)) for each in listed), np.int64, n)
    for each, code in table.items():
        if each is None or each != each:  # NaN is not equal to itself
            raise InvalidInput(
                f"{name}[{int(np.argmax(codes == code))}] is {each!r}; every value belongs "
                "somewhere: leave the item out, or name where it belongs"
            )
    return list(table), codes


def _is_bounded(a: Floats, b: Floats, *, bounded: bool | None) -> bool:
    if bounded is False:
        return False
    inside = min(a.min(), b.min()) >= 0 and max(a.max(), b.max()) <= 1
    if bounded and not inside:
        raise InvalidInput(
            f"bounded=True, but values lie between {min(a.min(), b.min()):g} and "
            f"{max(a.max(), b.max()):g}, not between 0 and 1"
        )
    return bool(inside)


def _is_binary(values: Floats) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence is between 0 and 1, such as 0.95; got {confidence!r}")


def _checked_threshold(threshold: float) -> float:
    if not math.isfinite(threshold):
        raise InvalidInput(f"pass_threshold is a number; got {threshold!r}")
    return float(threshold)
