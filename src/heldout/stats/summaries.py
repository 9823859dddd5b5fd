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


@dataclass(slots=True)
class Moments:
    """Mean, spread and clustered standard error of values that arrive batch by batch.

    A cluster's values arrive next to each other (over a batch boundary is fine). Sums are of the
    distance to the first value ever seen, which keeps them exact where a large mean would not.
    """

    n: int = 0
    min: float = math.inf
    max: float = -math.inf
    _shift: float = 0.0
    _sum: float = 0.0
    _squares: float = 0.0
    _distinct: set[float] = field(default_factory=set)
    # Of closed clusters of each size: how many, the sum of D (a cluster's sum of distances), and
    # that of its squares.
    _closed: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    # The cluster the last value belonged to: more of it may come.
    _open: int | None = None
    _open_D: float = 0.0
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
        if self.n == 0:
            self._shift = float(values[0])
        self.n += len(values)
        self.min = min(self.min, float(values.min()))
        self.max = max(self.max, float(values.max()))
        if len(self._distinct) <= 2:
            self._distinct.update(np.unique(values)[:3].tolist())
        # Sums that overflow become infinite here, and None where they would be reported.
        with np.errstate(over="ignore", invalid="ignore"):
            self._add_sums(values - self._shift, clusters)

    def _add_sums(self, distance: Floats, clusters: Ints) -> None:
        self._sum += float(distance.sum())
        self._squares += float(np.dot(distance, distance))

        starts = np.flatnonzero(np.concatenate(([True], clusters[1:] != clusters[:-1])))
        sums = np.add.reduceat(distance, starts)
        sizes = np.diff(np.append(starts, len(distance))).astype(np.float64)
        if self._open is not None and self._open == clusters[0]:
            sums[0] += self._open_D
            sizes[0] += self._open_m
        else:
            self._close()
        self._close_all(sums[:-1], sizes[:-1])
        self._open = int(clusters[-1])
        self._open_D, self._open_m = float(sums[-1]), int(sizes[-1])

    def _close(self) -> None:
        if self._open is None:
            return
        self._close_all(np.array([self._open_D]), np.array([self._open_m]))
        self._open = None

    def _close_all(self, sums: Floats, sizes: NDArray[Any]) -> None:
        for size in np.unique(sizes).tolist():
            of_size = sums[sizes == size]
            count, total, squares = self._closed.get(int(size), (0, 0.0, 0.0))
            self._closed[int(size)] = (
                count + len(of_size),
                total + float(of_size.sum()),
                squares + float(np.dot(of_size, of_size)),
            )

    def _by_size(self) -> dict[int, tuple[int, float, float]]:
        """With the cluster that is still open."""
        if self._open is None:
            return self._closed
        count, total, squares = self._closed.get(self._open_m, (0, 0.0, 0.0))
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
        return _finite(self._shift + self._sum / self.n) if self.n else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for fewer than two values."""
        if self.n < 2:
            return None
        return _root((self._squares - self._sum * self._sum / self.n) / (self.n - 1))

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
        if self.min == self.max:
            return 0.0  # rounding dust, which a square root would blow up
        mean = self._sum / self.n
        between = largest = 0.0
        for size, (count, total, squares) in sizes.items():
            parts = squares, -2 * mean * size * total, mean * mean * size * size * count
            weight = (self.n / (self.n - size)) ** 2
            between += weight * sum(parts)
            largest += weight * sum(map(abs, parts))
        # What is left of large terms that cancel is rounding, which the root would blow up.
        if between < 1e-14 * largest:
            return 0.0
        root = _root(between * (groups - 1) / groups)
        return None if root is None else root / self.n

    def interval(
        self, confidence: float = CONFIDENCE, *, bounded: bool | None = None
    ) -> Interval | None:
        """The confidence interval of the mean; None where the values cannot tell.

        Values between 0 and 1 get a score interval, which keeps its width at 0 of 40 and 40 of 40
        and stays inside the bounds; for a plain rate it is Wilson's. Others get the t interval.
        One of those, or several that are all alike, say nothing about their spread. `bounded`
        says whether values lie between 0 and 1 by nature; None infers it from the data.
        """
        mean, stderr = self.mean, self.stderr
        if mean is None:
            return None
        if bounded is False or self.min < 0 or self.max > 1:
            if not stderr:
                return None
            margin = t_quantile((1 + confidence) / 2, self.degrees) * stderr
            return Interval(mean - margin, mean + margin)
        rate = min(1.0, max(0.0, mean))
        if self.clusters == self.n and self._distinct <= {0.0, 1.0}:
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
    # Both can round to nothing: at 1 minus an ulp, say.
    effective = spread / error if spread > 0 and error > 0 else float(clusters)
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


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _root(x: float) -> float | None:
    """Square root of what cannot be negative but for rounding; None where it overflowed."""
    return math.sqrt(max(0.0, x)) if math.isfinite(x) else None
