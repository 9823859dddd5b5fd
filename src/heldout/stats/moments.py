"""Means with clustered standard errors, from an array or from a stream of values.

Errors are the jackknife's over clusters (CR3; R. M. Bell and D. F. McCaffrey 2002, Survey
Methodology 28; J. G. MacKinnon and H. White 1985, Journal of Econometrics 29; E. Miller, "Adding
Error Bars to Evals", arXiv 2411.00640): each cluster's distance from the mean counts as if the mean
had been taken without it, or a cluster that holds most of the values would pass for agreement.
Degrees of freedom are Satterthwaite's (1946, Biometrics 2): G - 1 for G clusters of one size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

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


def clustered_error(
    values: Floats, mean: float, codes: Ints | None
) -> tuple[int, float | None, float]:
    """Return the number of clusters, the standard error of the mean, and its degrees of freedom.

    It is what `Moments` has, in floating point and for codes in any order.
    """
    groups = len(values) if codes is None else int(codes.max(initial=-1)) + 1
    if groups < 2:
        return groups, None, 0.0
    sizes = np.ones(1) if codes is None else np.bincount(codes).astype(np.float64)
    degrees = float(groups - 1) if codes is None else degrees_of_sizes(sizes)
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


# --- Exact sums ---------------------------------------------------------------------------------

# Every float is a whole number of 2 ** -_UNIT, so sums of these are exact in any order.
_UNIT = 1126


def find_changes(numbers: Ints) -> NDArray[np.bool_]:
    """Return, for each number, whether it differs from its predecessor."""
    changes = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=changes[1:])
    return changes


def run_lengths(starts: Ints, n: int) -> Ints:
    """Return the length of each run of n values."""
    return np.append(starts[1:], n) - starts


def _to_integers(values: Floats) -> tuple[Ints, Ints]:
    """Return each value as an integer times 2 ** (shift - _UNIT), and the shifts."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(mantissa, 53).astype(np.int64), exponent.astype(np.int64) + (_UNIT - 53)


def exact_sums(values: Floats, starts: Ints) -> tuple[list[int], list[int]]:
    """Return the sum of each run of values and that of their squares.

    Sums are in units of 2 ** -_UNIT, those of squares in 2 ** (-2 * _UNIT).
    """
    whole, shifts = _to_integers(values)
    runs = np.repeat(np.arange(len(starts)), run_lengths(starts, len(values)))
    sums, squares = [0] * len(starts), [0] * len(starts)
    for shift in np.flatnonzero(np.bincount(shifts[whole != 0])).tolist():
        rows = (shifts == shift) & (whole != 0)
        integers, first = whole[rows], np.flatnonzero(find_changes(runs[rows]))
        high, low = integers >> 27, integers & (2**27 - 1)
        terms = (high, low, high * high, high * low, low * low)
        for run, h, lo, hh, hl, ll in zip(
            runs[rows][first].tolist(), *(_int_sums(term, first) for term in terms), strict=True
        ):
            sums[run] += ((h << 27) + lo) << shift
            squares[run] += ((hh << 54) + (hl << 28) + ll) << 2 * shift
    return sums, squares


def _int_sums(numbers: Ints, starts: Ints) -> list[int]:
    """Sum each run of 64-bit integers; a sum may need more bits."""
    high = np.add.reduceat(numbers >> 32, starts).tolist()
    low = np.add.reduceat(numbers & (2**32 - 1), starts).tolist()
    return [(upper << 32) + lower for upper, lower in zip(high, low, strict=True)]


# --- Moments ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Moments:
    """Mean, spread and clustered standard error of values that arrive batch by batch.

    Sums are kept as integers, without rounding: no number here depends on the order of values or on
    the batches, and a million values need no more memory than ten.

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
    # Of clusters of each size: how many, the sum of their sums, and that of its squares.
    _by_size: dict[int, tuple[int, int, int]] = field(default_factory=dict)

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
        """Add a batch of values that has all values of its clusters.

        Args:
            values: The values.
            clusters: The cluster of each value, equal ones next to each other.
        """
        if len(values) == 0:
            return
        (total,), (squares,) = exact_sums(values, np.zeros(1, np.int64))
        binary = bool(is_near_binary(values).all())
        self.add_sums(len(values), values.min(), values.max(), binary, total, squares)
        starts = np.flatnonzero(find_changes(clusters))
        if len(starts) == len(values):
            self.add_clusters(1, len(values), total, squares)
            return
        sizes = run_lengths(starts, len(values))
        is_single = np.repeat(sizes == 1, sizes)
        if is_single.any():
            (total,), (squares,) = exact_sums(values[is_single], np.zeros(1, np.int64))
            self.add_clusters(1, int(is_single.sum()), total, squares)
        integers, shifts = _to_integers(values[~is_single])
        whole = map(operator.lshift, integers.tolist(), shifts.tolist())
        for size in sizes[sizes > 1].tolist():
            total = sum(islice(whole, size))
            self.add_clusters(size, 1, total, total * total)

    def add_sums(
        self, n: int, low: float, high: float, binary: bool, total: int, squares: int
    ) -> None:
        """Add the exact sums of some values; their clusters are still to be added."""
        self.n += n
        self.min, self.max = min(self.min, float(low)), max(self.max, float(high))
        self._binary = self._binary and binary
        self._sum += total
        self._squares += squares

    def add_clusters(self, size: int, count: int, total: int, squares: int) -> None:
        """Add clusters of one size: the sum of their sums, and that of the sums' squares."""
        before = self._by_size.get(size, (0, 0, 0))
        self._by_size[size] = (before[0] + count, before[1] + total, before[2] + squares)

    @property
    def clusters(self) -> int:
        """The number of clusters."""
        return sum(count for count, _, _ in self._by_size.values())

    @property
    def degrees(self) -> float:
        """Degrees of freedom for Student's t; clusters - 1 where all are of one size."""
        if self.clusters < 2:
            return 0.0
        return degrees_of_freedom((size, count) for size, (count, _, _) in self._by_size.items())

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
        (x - mean) and m its size.
        """
        groups = self.clusters
        if groups < 2:
            return None
        n, parts, wholes = self.n, [], []
        for size, (count, total, squares) in self._by_size.items():
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
        size: float = 1.0,
    ) -> Interval | None:
        """Return the confidence interval of the mean.

        Values between 0 and 1 get a score interval, for a plain rate Wilson's. Others get the t
        interval.

        Args:
            confidence: Of the interval.
            bounded: Whether values lie between 0 and 1 by nature; None infers it from the values.
            maybe_count: Do not infer it from 0s and 1s alone, nor from values that are all alike.
            size: How many times as many values, which vary as these do.

        Returns:
            The interval; None without values, and for unbounded ones that show no spread.
        """
        if maybe_count and (self._binary or self.min == self.max):
            bounded = False
        mean, stderr = self.mean, self.stderr
        if mean is None:
            return None
        if bounded is False or self.min < -UNIT_ROUNDING or self.max > 1 + UNIT_ROUNDING:
            stderr = stderr and stderr / math.sqrt(size)
            return t_interval(mean, stderr, self.degrees * size, confidence)
        rate = min(1.0, max(0.0, mean))
        if self.clusters == self.n and self._binary:
            return wilson(rate, self.n * size, confidence)
        # The number of independent yes/no trials that are as uncertain; without any spread, that of
        # clusters.
        spread, error, clusters = rate * (1 - rate), stderr or 0.0, self.clusters
        varies = error * math.sqrt(clusters) > UNIT_ROUNDING
        effective = spread / (error * error) if spread > 0 and varies else float(clusters)
        degrees = self.degrees * size if clusters > 1 else math.inf
        return score_interval(rate, effective * size, t_quantile((1 + confidence) / 2, degrees))


def is_near_binary(values: Floats) -> NDArray[np.bool_]:
    """Return, for each value, whether it is 0 or 1 up to rounding."""
    return np.asarray(np.minimum(np.abs(values), np.abs(values - 1)) <= UNIT_ROUNDING)


def _ratio(numerator: int, denominator: int) -> float:
    """Correctly rounded; infinite where it is too large."""
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf


def _root(x: float) -> float | None:
    """Square root of what is not negative; None where it overflowed."""
    return math.sqrt(x) if math.isfinite(x) else None
