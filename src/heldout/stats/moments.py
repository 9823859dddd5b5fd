"""Means with clustered standard errors, from a stream of values.

`Moments` takes values in batches and keeps a handful of sums, so a million results need no more
memory than ten. Values come with the cluster they belong to (the sample, when it was repeated):
copies of one question are not independent, and the standard error says so (E. Miller, "Adding Error
Bars to Evals", arXiv 2411.00640).

The variance between clusters is estimated by the jackknife: each cluster's distance from the mean
counts as if the mean had been taken without it (CR3; R. M. Bell and D. F. McCaffrey 2002, Survey
Methodology 28; J. G. MacKinnon and H. White 1985, Journal of Econometrics 29). A cluster that holds
most of the values draws the mean to itself, and the plain sum of squares would take that for
agreement: with one of 200 among nine of 5 its 95% interval covers 42%. For clusters of one size it
is the usual estimate, G / (G - 1) times the sum of squares.

Degrees of freedom are those at which Student's t matches the first two moments of that estimate for
independent values (Satterthwaite 1946, Biometrics 2; Bell and McCaffrey 2002): G - 1 for clusters
of one size, and far fewer where few clusters decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from heldout.stats._input import UNIT_ROUNDING, Ids, cluster_codes
from heldout.stats.intervals import (
    CONFIDENCE,
    Floats,
    Interval,
    Ints,
    score_interval,
    t_interval,
    t_quantile,
    wilson,
)

# --- Clusters -----------------------------------------------------------------------------------


def leave_out_weights(sizes: Floats) -> Floats:
    """Return the factor of each cluster's sum of distances; their square sum is n² the variance."""
    groups, n = len(sizes), float(sizes.sum())
    return np.asarray(np.sqrt((groups - 1) / groups) * n / (n - sizes))


def degrees_of_sizes(sizes: Floats) -> float:
    """Return the degrees of freedom of at least two clusters of these sizes."""
    return degrees_of_freedom(zip(*np.unique(sizes, return_counts=True), strict=True))


def degrees_of_freedom(sizes: Iterable[tuple[int, int]]) -> float:
    """Return the degrees of freedom of clusters given as (size, number of clusters of it)."""
    table = np.array(list(sizes), dtype=np.float64)
    size, count = table[:, 0], table[:, 1]
    if len(table) == 1:
        return float(count[0]) - 1
    n = float(np.dot(size, count))
    weighted = size * n / (n - size)
    squares = float(np.dot(weighted**2, count))
    cross = (squares**2 - float(np.dot(weighted**4, count))) / n**2
    return float(np.dot(weighted, count)) ** 2 / (squares + cross)


# --- Moments ------------------------------------------------------------------------------------

# Every float is a whole number of 2 ** -_UNIT, so sums of these are exact in any order.
_UNIT = 1126


def to_integers(values: Floats) -> tuple[Ints, Ints]:
    """Return each value as an integer times 2 ** (shift - _UNIT), and the shifts."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64), exponent.astype(np.int64) + (_UNIT - 53)


def _exact_sums(values: Floats) -> tuple[int, int]:
    """Return the sum in units of 2 ** -_UNIT, and that of squares in 2 ** (-2 * _UNIT)."""
    whole, shifts = to_integers(values)
    total = squares = 0
    for shift in np.unique(shifts).tolist():
        part = whole[shifts == shift]
        high, low = part >> 27, part & (2**27 - 1)
        total += ((_int_sum(high) << 27) + _int_sum(low)) << shift
        square = (_int_sum(high * high) << 54) + (_int_sum(high * low) << 28) + _int_sum(low * low)
        squares += square << 2 * shift
    return total, squares


def _int_sum(numbers: Ints) -> int:
    """Add 64-bit integers; the sum may need more bits."""
    return (int((numbers >> 32).sum()) << 32) + int((numbers & (2**32 - 1)).sum())


@dataclass(slots=True)
class Moments:
    """Mean, spread and clustered standard error of values that arrive batch by batch.

    A cluster's values arrive next to each other (over a batch boundary is fine). Sums are kept as
    integers, without rounding: no number here depends on the order of values or on the batches.

    Attributes:
        n: Values.
        min: The least value; infinity without values.
        max: The largest value; minus infinity without values.
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
    def of(cls, values: Floats, clusters: Ids | None = None) -> Moments:
        """Return the moments of values whose clusters come in any order.

        Args:
            values: The values.
            clusters: The cluster of each value; None: each is independent.
        """
        moments = cls()
        if clusters is None:
            moments.add(values, np.arange(len(values)))
        else:
            codes = cluster_codes(clusters, len(values))
            order = np.argsort(codes, kind="stable")
            moments.add(values[order], codes[order])
        return moments

    def add(self, values: Floats, clusters: Ints) -> None:
        """Add a batch of values.

        Args:
            values: The values.
            clusters: The cluster of each value, equal ones next to each other.
        """
        if len(values) == 0:
            return
        self.n += len(values)
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))
        off = np.minimum(np.abs(values), np.abs(values - 1))
        self._binary = self._binary and bool((off <= UNIT_ROUNDING).all())
        total, squares = _exact_sums(values)
        self._sum += total
        self._squares += squares

        starts = np.flatnonzero(np.concatenate(([True], clusters[1:] != clusters[:-1])))
        sizes = np.diff(np.append(starts, len(values)))
        alone = sizes == 1
        alone[0] &= clusters[0] != self._open
        alone[-1] = False
        rest = np.repeat(~alone, sizes)
        integers, shifts = to_integers(values[rest])
        whole = [n << s for n, s in zip(integers.tolist(), shifts.tolist(), strict=True)]
        if len(whole) < len(values):  # most often all but one value is a cluster of its own
            total -= sum(whole)
            squares -= sum(number * number for number in whole)
            self._close(1, len(values) - len(whole), total, squares)
        used = 0
        for start, size in zip(starts[~alone].tolist(), sizes[~alone].tolist(), strict=True):
            if clusters[start] != self._open:
                self._closed = self._by_size()
                self._open, self._open_D, self._open_m = int(clusters[start]), 0, 0
            self._open_D += sum(whole[used : used + size])
            self._open_m += size
            used += size

    def _close(self, size: int, count: int, total: int, squares: int) -> None:
        before = self._closed.get(size, (0, 0, 0))
        self._closed[size] = (before[0] + count, before[1] + total, before[2] + squares)

    def _by_size(self) -> dict[int, tuple[int, int, int]]:
        """Return the closed clusters by size, with the open one."""
        if self._open is None:
            return self._closed
        count, total, squares = self._closed.get(self._open_m, (0, 0, 0))
        now = (count + 1, total + self._open_D, squares + self._open_D * self._open_D)
        return {**self._closed, self._open_m: now}

    @property
    def clusters(self) -> int:
        """The number of clusters."""
        return sum(count for count, _, _ in self._by_size().values())

    @property
    def degrees(self) -> float:
        """Degrees of freedom for Student's t; clusters - 1 where all are of one size."""
        sizes = self._by_size()
        if sum(count for count, _, _ in sizes.values()) < 2:
            return 0.0
        return degrees_of_freedom((size, count) for size, (count, _, _) in sizes.items())

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
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
        (x - mean) and m its size. Where every cluster is a single value it is the ordinary
        std / sqrt(n).
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
        """Return the confidence interval of the mean.

        Values between 0 and 1 get a score interval, for a plain rate Wilson's. Others get the t
        interval.

        Args:
            confidence: Of the interval.
            bounded: Whether values lie between 0 and 1 by nature; None infers it from the values.
            maybe_count: Do not infer it from 0s and 1s alone, nor from values that are all alike.

        Returns:
            The interval; None without values, and for unbounded ones that show no spread.
        """
        if maybe_count and (self._binary or self.min == self.max):
            bounded = False
        mean, stderr = self.mean, self.stderr
        if mean is None:
            return None
        if bounded is False or self.min < -UNIT_ROUNDING or self.max > 1 + UNIT_ROUNDING:
            return t_interval(mean, stderr, self.degrees, confidence)
        rate = min(1.0, max(0.0, mean))
        if self.clusters == self.n and self._binary:
            return wilson(rate, self.n, confidence)
        return _score_interval_from_stderr(
            rate, stderr or 0.0, self.clusters, self.degrees, confidence
        )


def _score_interval_from_stderr(
    rate: float, stderr: float, clusters: int, degrees: float, confidence: float
) -> Interval:
    """Return a score interval for a mean in [0, 1] whose error is known: clustered, or not binary.

    `rate * (1 - rate) / stderr^2` is the number of independent yes/no trials that would be as
    uncertain (the effective sample size); without any spread, it is the number of clusters.
    """
    spread, error = rate * (1 - rate), stderr * stderr
    varies = stderr * math.sqrt(clusters) > UNIT_ROUNDING
    effective = spread / error if spread > 0 and varies else float(clusters)
    if clusters < 2:
        return score_interval(rate, effective, NormalDist().inv_cdf((1 + confidence) / 2))
    return score_interval(rate, effective, t_quantile((1 + confidence) / 2, degrees))


def _ratio(numerator: int, denominator: int) -> float:
    """Correctly rounded; infinite where it is too large."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf


def _root(x: float) -> float | None:
    """Square root of what is not negative; None where it overflowed."""
    return math.sqrt(x) if math.isfinite(x) else None
