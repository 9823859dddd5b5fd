"""Means with clustered standard errors.

Errors are the jackknife's over clusters (CR3; R. M. Bell and D. F. McCaffrey 2002, Survey
Methodology 28; J. G. MacKinnon and H. White 1985, Journal of Econometrics 29; E. Miller, "Adding
Error Bars to Evals", arXiv 2411.00640): each cluster's distance from the mean counts as if the mean
had been taken without it, or a cluster that holds most of the values would pass for agreement.
Degrees of freedom are Satterthwaite's (1946, Biometrics 2): G - 1 for G clusters of one size.

Every sum is `math.fsum`'s, which rounds once: no number here depends on the order of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

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

NO_SPREAD = 1e-30
"""Squares of distances that are this small beside the squares of the values are rounding."""

# --- Runs of equal numbers ----------------------------------------------------------------------


def find_changes(numbers: Ints) -> NDArray[np.bool_]:
    """Return, for each number, whether it differs from its predecessor."""
    changes = np.ones(len(numbers), dtype=np.bool_)
    np.not_equal(numbers[1:], numbers[:-1], out=changes[1:])
    return changes


def run_lengths(starts: Ints, n: int) -> Ints:
    """Return the length of each run of n values."""
    return np.append(starts[1:], n) - starts


def exact_sums(values: Floats, starts: Ints) -> Floats:
    """Return the sum of each run of values, each rounded once."""
    if len(starts) == len(values):
        return values
    numbers = values.data  # twice as fast as the array, and a view
    cuts = [*starts.tolist(), len(values)]
    return np.array([math.fsum(numbers[begin:end]) for begin, end in pairwise(cuts)])


# --- Clusters -----------------------------------------------------------------------------------


def leave_out_weights(sizes: Floats) -> Floats:
    """Return the factor of each cluster's sum of distances; their square sum is n² the variance."""
    groups, n = len(sizes), float(sizes.sum())
    return np.asarray(np.sqrt((groups - 1) / groups) * n / (n - sizes))


def degrees_of_freedom(sizes: Floats, starts: Ints) -> Floats:
    """Return the degrees of freedom of each run of cluster sizes; 0 for a single cluster."""
    counts = run_lengths(starts, len(sizes))
    unequal = np.minimum.reduceat(sizes, starts) < np.maximum.reduceat(sizes, starts)
    equal = (counts - 1).astype(np.float64)
    if not unequal.any():
        return equal
    n = np.add.reduceat(sizes, starts)
    # Satterthwaite's approximation, as Bell and McCaffrey have it for clusters: the variance is a
    # quadratic form M in the clusters' sums, and has about as many degrees of freedom as a
    # chi-squared variable of the same mean and variance, tr(M)^2 / tr(M^2). Leaving one cluster out
    # at a time makes w_i = n_i n / (n - n_i) the diagonal of M, and w_i w_j / n what is beside it.
    # For equal clusters this is their number - 1. One cluster with half of the values leaves little
    # more than 1, and so a wide interval: with clusters - 1 it would err far more often than said.
    each = np.repeat(n, counts)
    weighted = sizes * each / np.maximum(each - sizes, 1)
    first, second, fourth = (exact_sums(weighted**power, starts) for power in (1, 2, 4))
    found = first**2 / (second + (second**2 - fourth) / n**2)
    return np.asarray(np.where(unequal, found, equal))


# --- Moments ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean, spread and clustered standard error of values.

    Attributes:
        n: Values.
        clusters: Clusters.
        min: The least value; infinity without values.
        max: The largest value; minus infinity without values.
        is_binary: Whether all values are 0 or 1 but for rounding.
        mean: None without values.
        std: Sample standard deviation; None for fewer than two values.
        stderr: Standard error of the mean, clustered; None for fewer than two clusters.
        degrees: Degrees of freedom for Student's t; clusters - 1 where all are of one size.
    """

    n: int = 0
    clusters: int = 0
    min: float = math.inf
    max: float = -math.inf
    is_binary: bool = True
    mean: float | None = None
    std: float | None = None
    stderr: float | None = None
    degrees: float = 0.0

    @classmethod
    def of(cls, values: Floats, clusters: Ids | None = None) -> Moments:
        """Return the moments of values in any order.

        Args:
            values: The values.
            clusters: The cluster of each value; None: each is independent.
        """
        if len(values) == 0:
            return cls()
        codes = np.arange(len(values))
        if clusters is not None:
            codes = cluster_codes(clusters, len(values))
            order = np.argsort(codes, kind="stable")
            values, codes = values[order], codes[order]
        (moments,) = moments_by_group(values, codes, np.zeros(len(values), np.int64), 1)
        return moments

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
        if maybe_count and (self.is_binary or self.min == self.max):
            bounded = False
        mean, stderr = self.mean, self.stderr
        if mean is None:
            return None
        if bounded is False or self.min < -UNIT_ROUNDING or self.max > 1 + UNIT_ROUNDING:
            stderr = stderr and stderr / math.sqrt(size)
            return t_interval(mean, stderr, self.degrees * size, confidence)
        rate = min(1.0, max(0.0, mean))
        if self.clusters == self.n and self.is_binary:
            return wilson(rate, self.n * size, confidence)
        # The number of independent yes/no trials that are as uncertain; without any spread, that of
        # clusters.
        spread, error, clusters = rate * (1 - rate), stderr or 0.0, self.clusters
        varies = error * math.sqrt(clusters) > UNIT_ROUNDING
        effective = spread / (error * error) if spread > 0 and varies else float(clusters)
        degrees = self.degrees * size if clusters > 1 else math.inf
        return score_interval(rate, effective * size, t_quantile((1 + confidence) / 2, degrees))


def moments_by_group(values: Floats, clusters: Ints, groups: Ints, count: int) -> list[Moments]:
    """Return the moments of each group of values.

    The standard error is sqrt((G-1)/G * sum over clusters of (e / (1 - m/n))^2) / n, with e the sum
    in the cluster of (x - mean) and m its size.

    Args:
        values: The values.
        clusters: The cluster of each value.
        groups: The group of each value, from 0 to `count`. Values are sorted by it, and equal
            clusters of a group are next to each other.
        count: How many groups there are; one may be empty.
    """
    found = [Moments()] * count
    if len(values) == 0:
        return found
    is_start = find_changes(groups)
    starts = np.flatnonzero(is_start)
    n = run_lengths(starts, len(values))
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    is_binary = np.logical_and.reduceat(is_near_binary(values), starts)
    # Values of about 1, by a power of two, which rounds nothing: squares neither overflow nor
    # vanish.
    _, exponent = np.frexp(np.maximum(-low, high))
    scaled = np.ldexp(values, -np.repeat(exponent, n))
    alike = low == high
    mean = np.where(alike, scaled[starts], exact_sums(scaled, starts) / n)
    distances = scaled - np.repeat(mean, n)
    squares = exact_sums(distances**2, starts)

    firsts = np.flatnonzero(find_changes(clusters) | is_start)
    sizes = run_lengths(firsts, len(values)).astype(np.float64)
    members = np.searchsorted(firsts, starts)
    clusters_of = run_lengths(members, len(firsts))
    # A cluster that is alone in its group has no weight, and its group no error.
    weights = 1 / np.maximum(np.repeat(n, clusters_of) - sizes, 1)
    between = exact_sums((exact_sums(distances, firsts) * weights) ** 2, members)
    whole = np.add.reduceat((np.add.reduceat(np.abs(scaled), firsts) * weights) ** 2, members)
    # Clusters that differ in the last digits of their sums do not differ; a root would blow that
    # up.
    between[alike | (between <= NO_SPREAD * whole)] = 0.0
    with np.errstate(over="ignore"):
        std = np.ldexp(np.sqrt(squares / np.maximum(n - 1, 1)), exponent)
        stderr = np.ldexp(np.sqrt(between * (clusters_of - 1) / clusters_of), exponent)
    columns = (
        *(groups[starts], n, clusters_of, low, high, is_binary, np.ldexp(mean, exponent)),
        *(std, stderr, degrees_of_freedom(sizes, members)),
    )
    for group, n_, clusters_, low_, high_, binary_, mean_, std_, stderr_, degrees_ in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        found[group] = Moments(
            n=n_,
            clusters=clusters_,
            min=low_,
            max=high_,
            is_binary=binary_,
            mean=mean_,
            std=std_ if n_ > 1 and math.isfinite(std_) else None,
            stderr=stderr_ if clusters_ > 1 and math.isfinite(stderr_) else None,
            degrees=degrees_,
        )
    return found


def is_near_binary(values: Floats) -> NDArray[np.bool_]:
    """Return, for each value, whether it is 0 or 1 up to rounding."""
    return np.asarray(np.minimum(np.abs(values), np.abs(values - 1)) <= UNIT_ROUNDING)
