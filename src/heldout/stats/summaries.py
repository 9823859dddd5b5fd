"""Means with error bars: pure functions over numbers, no I/O, no global random state.

`Moments` takes values in batches and keeps a handful of sums, so a million results need no more
memory than ten. Values come with the cluster they belong to (the sample, when it was repeated):
copies of one question are not independent, and the standard error says so.

References: E. Miller, "Adding Error Bars to Evals" (arXiv 2411.00640) for why errors are clustered,
`clustered.py` for how; E. B. Wilson (1927), JASA 22, for the interval of a rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.stats.clustered import Floats as Floats
from heldout.stats.clustered import Ints as Ints
from heldout.stats.clustered import degrees_of_freedom
from heldout.stats.student import t_quantile

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float


# --- Accumulation -------------------------------------------------------------------------------


ROUNDING = 1e-6
"""Between 0 and 1, what float32 or a sum of weights leaves: no spread, and no way out of bounds."""

_UNIT = 1126
"""Every float is a whole number of 2 ** -_UNIT, so sums of these are exact in any order."""


def whole_numbers(values: Floats) -> tuple[Ints, Ints]:
    """Each value as a whole number times 2 ** (shift - _UNIT)."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64), exponent.astype(np.int64) + (_UNIT - 53)


def _exact_sums(values: Floats) -> tuple[int, int]:
    """The sum in units of 2 ** -_UNIT, and that of squares in units of 2 ** (-2 * _UNIT)."""
    whole, shifts = whole_numbers(values)
    total = squares = 0
    for shift in np.unique(shifts).tolist():
        part = whole[shifts == shift]
        high, low = part >> 27, part & (2**27 - 1)
        total += ((_int_sum(high) << 27) + _int_sum(low)) << shift
        square = (_int_sum(high * high) << 54) + (_int_sum(high * low) << 28) + _int_sum(low * low)
        squares += square << 2 * shift
    return total, squares


def _int_sum(numbers: Ints) -> int:
    """The sum of 64-bit integers, which may itself need more bits."""
    return (int((numbers >> 32).sum()) << 32) + int((numbers & (2**32 - 1)).sum())


@dataclass(slots=True)
class Moments:
    """Mean, spread and clustered standard error of values that arrive batch by batch.

    A cluster's values arrive next to each other (over a batch boundary is fine). Sums are kept as
    integers, without rounding: no number here depends on the order of values or on the batches.
    """

    n: int = 0
    min: float = math.inf
    max: float = -math.inf
    _sum: int = 0
    _squares: int = 0
    _binary: bool = True
    # Of closed clusters of each size: how many, the sum of D (a cluster's sum), and that of its
    # squares.
    _closed: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    # The cluster the last value belonged to: more of it may come.
    _open: int | None = None
    _open_D: int = 0
    _open_m: int = 0

    @classmethod
    def of(cls, values: Floats, clusters: Ints) -> Moments:
        """Of values whose clusters come in any order."""
        order = np.argsort(clusters, kind="stable")
        moments = cls()
        moments.add(values[order], clusters[order])
        return moments

    def add(self, values: Floats, clusters: Ints) -> None:
        if len(values) == 0:
            return
        self.n += len(values)
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))
        off = np.minimum(np.abs(values), np.abs(values - 1))
        self._binary = self._binary and bool((off <= ROUNDING).all())
        total, squares = _exact_sums(values)
        self._sum += total
        self._squares += squares

        starts = np.flatnonzero(np.concatenate(([True], clusters[1:] != clusters[:-1])))
        sizes = np.diff(np.append(starts, len(values)))
        alone = sizes == 1
        alone[0] &= clusters[0] != self._open
        alone[-1] = False
        singles = values[starts[alone]]
        self._close(1, len(singles), *_exact_sums(singles))
        rest = np.repeat(~alone, sizes)
        whole = [
            n << shift
            for n, shift in zip(*map(np.ndarray.tolist, whole_numbers(values[rest])), strict=True)
        ]
        used = 0
        for start, size in zip(starts[~alone].tolist(), sizes[~alone].tolist(), strict=True):
            if clusters[start] != self._open:
                self._closed = self._by_size()
                self._open, self._open_D, self._open_m = int(clusters[start]), 0, 0
            self._open_D += sum(whole[used : used + size])
            self._open_m += size
            used += size

    def _close(self, size: int, count: int, total: int, squares: int) -> None:
        if count:
            before = self._closed.get(size, (0, 0, 0))
            self._closed[size] = (before[0] + count, before[1] + total, before[2] + squares)

    def _by_size(self) -> dict[int, tuple[int, int, int]]:
        """With the cluster that is still open."""
        if self._open is None:
            return self._closed
        count, total, squares = self._closed.get(self._open_m, (0, 0, 0))
        now = (count + 1, total + self._open_D, squares + self._open_D * self._open_D)
        return {**self._closed, self._open_m: now}

    @property
    def clusters(self) -> int:
        return sum(count for count, _, _ in self._by_size().values())

    @property
    def degrees(self) -> float:
        """Of freedom, for Student's t: clusters - 1 where all are of one size, else fewer."""
        sizes = self._by_size()
        if sum(count for count, _, _ in sizes.values()) < 2:
            return 0.0
        return degrees_of_freedom((size, count) for size, (count, _, _) in sizes.items())

    @property
    def mean(self) -> float | None:
        return self._sum / (self.n << _UNIT) if self.n else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for fewer than two values."""
        if self.n < 2:
            return None
        spread = self.n * self._squares - self._sum * self._sum
        return _root(_ratio(spread, self.n * (self.n - 1) << 2 * _UNIT))

    @property
    def stderr(self) -> float | None:
        """Standard error of the mean, clustered; None for fewer than two clusters.

        sqrt((G-1)/G * sum over clusters of (e / (1 - m/n))^2) / n, with e the sum in the cluster of
        (x - mean) and m its size (see `clustered.py`). Where every cluster is a single value it
        is the ordinary std / sqrt(n).
        """
        sizes, groups = self._by_size(), self.clusters
        if groups < 2:
            return None
        n, parts, wholes = self.n, [], []
        for size, (count, total, squares) in sizes.items():
            distance = n * n * squares - 2 * n * size * self._sum * total
            distance += count * (size * self._sum) ** 2
            unit = (n - size) ** 2 << 2 * _UNIT
            parts.append(_ratio(distance, unit))
            wholes.append(_ratio(n * n * squares, unit))
        between = math.fsum(parts)
        if not math.isfinite(between):
            return None
        # Clusters that differ in the last digits of their sums do not differ; a root would blow
        # that up.
        if between <= 1e-30 * math.fsum(wholes):
            return 0.0
        root = _root(between * (groups - 1) / groups)
        return None if root is None else root / n

    def interval(
        self,
        confidence: float = CONFIDENCE,
        *,
        bounded: bool | None = None,
        maybe_count: bool = False,
    ) -> Interval | None:
        """The confidence interval of the mean; None where the values cannot tell.

        Values between 0 and 1 get a score interval, which keeps its width at 0 of 40 and 40 of 40
        and stays inside the bounds; for a plain rate it is Wilson's. Others get the t interval.
        One of those, or several that are all alike, say nothing about their spread. `bounded`
        says whether values lie between 0 and 1 by nature; None infers it from the data, but
        `maybe_count` not from 0s and 1s alone, nor from values that are all alike.
        """
        if maybe_count and (self._binary or self.min == self.max):
            bounded = False
        mean, stderr = self.mean, self.stderr
        if mean is None:
            return None
        if bounded is False or self.min < -ROUNDING or self.max > 1 + ROUNDING:
            if not stderr:
                return None
            margin = t_quantile((1 + confidence) / 2, self.degrees) * stderr
            return Interval(mean - margin, mean + margin)
        rate = min(1.0, max(0.0, mean))
        if self.clusters == self.n and self._binary:
            return wilson(rate, self.n, confidence)
        return _score_interval_from_stderr(
            rate, stderr or 0.0, self.clusters, self.degrees, confidence
        )


# --- Intervals ----------------------------------------------------------------------------------


def wilson(rate: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Wilson's score interval for a rate observed over n independent trials."""
    if not (0 <= rate <= 1 and n > 0):
        raise InvalidInput(
            f"a rate is between 0 and 1 (successes / n), and n above 0; got {rate!r} and {n!r}"
        )
    return score_interval(rate, n, NormalDist().inv_cdf((1 + confidence) / 2))


def median_interval(values: NDArray[Any], confidence: float = CONFIDENCE) -> Interval | None:
    """Distribution-free interval of a median, from order statistics; None for too few values.

    The number of values below the median is binomial (n, 1/2), whatever the distribution, so the
    k-th smallest and k-th largest enclose it with a known probability (Thompson 1936, Annals of
    Mathematical Statistics 7; David and Nagaraja, "Order Statistics", 7.1).
    """
    n = len(values)
    tail, below = (1 - confidence) / 2, 0
    # The most that may be left out on each side: P(Binomial(n, 1/2) < below) <= tail.
    total = 0.0
    while below < n:
        total += math.exp(_log_choose(n, below) - n * math.log(2))
        if total > tail:
            break
        below += 1
    if below == 0:
        return None
    ordered = np.sort(values)
    return Interval(float(ordered[below - 1]), float(ordered[n - below]))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _score_interval_from_stderr(
    rate: float, stderr: float, clusters: int, degrees: float, confidence: float
) -> Interval:
    """A score interval for a mean in [0, 1] whose error is known: clustered, or not binary.

    `rate * (1 - rate) / stderr^2` is the number of independent yes/no trials that would be as
    uncertain (the effective sample size); without any spread, it is the number of clusters.
    """
    spread, error = rate * (1 - rate), stderr * stderr
    varies = stderr * math.sqrt(clusters) > ROUNDING
    effective = spread / error if spread > 0 and varies else float(clusters)
    if clusters < 2:
        return score_interval(rate, effective, NormalDist().inv_cdf((1 + confidence) / 2))
    return score_interval(rate, effective, t_quantile((1 + confidence) / 2, degrees))


def score_interval(rate: float, n: float, quantile: float) -> Interval:
    """That of a rate over n trials, which need not be a whole number; any quantile."""
    square = quantile**2 / n
    center = (rate + square / 2) / (1 + square)
    margin = math.sqrt(rate * (1 - rate) * square + square**2 / 4) / (1 + square)
    # At the ends the formula gives exactly 0 and 1; floating point misses by an ulp.
    low = 0.0 if rate == 0.0 else max(0.0, center - margin)
    high = 1.0 if rate == 1.0 else min(1.0, center + margin)
    return Interval(low, high)


def _ratio(numerator: int, denominator: int) -> float:
    """Correctly rounded; infinite where it is too large."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf


def _root(x: float) -> float | None:
    """Square root of what is not negative; None where it overflowed."""
    return math.sqrt(x) if math.isfinite(x) else None
