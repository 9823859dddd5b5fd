"""What b has over a where the two share no items; each side varies on its own.

Much less certain than a paired difference: what makes samples hard does not cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from heldout.stats.given import Ids, check_confidence, checked_values, cluster_codes, is_bounded
from heldout.stats.paired import t_interval
from heldout.stats.student import student_p_value
from heldout.stats.summaries import CONFIDENCE, Floats, Interval, Moments


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
    test: Literal["welch", "mover"]
    """welch: Student's t with unequal variances. mover: from both sides' score intervals, for
    values between 0 and 1."""
    sides: tuple[Moments, Moments] = field(repr=False, compare=False)

    def interval_at(self, confidence: float) -> Interval | None:
        """The interval for another confidence."""
        check_confidence(confidence)
        if self.test == "mover":
            return _mover(*self.sides, confidence)
        if self.degrees_of_freedom is None:
            return None
        return t_interval(self.difference, self.stderr, self.degrees_of_freedom, confidence)


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
    check_confidence(confidence)
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
            degrees = 1 / (share_a**2 / moments_a.degrees + share_b**2 / moments_b.degrees)
    inside = is_bounded(values_a, values_b, bounded=bounded)
    if inside:
        interval = _mover(moments_a, moments_b, confidence)
        p_value = _mover_p_value(moments_a, moments_b)
    elif stderr and degrees is not None:
        interval = t_interval(difference, stderr, degrees, confidence)
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
        sides=(moments_a, moments_b),
    )


def _moments(values: Floats, clusters: Ids | None, name: str) -> Moments:
    codes = np.arange(len(values), dtype=np.int64)
    if clusters is not None:
        codes = cluster_codes(clusters, len(values), name)
    return Moments.of(values, codes)


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
