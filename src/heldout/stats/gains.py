"""The mean of paired differences, with an interval that few samples, or none that changed, do not
break."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from heldout.stats.clustered import degrees_of_sizes, leave_out_weights
from heldout.stats.student import t_quantile
from heldout.stats.summaries import Floats, Interval, Ints

POWER = 0.8


@dataclass(frozen=True, slots=True)
class Gain:
    """A mean difference with its interval."""

    estimate: float
    interval: Interval
    stderr: float
    minimum_detectable: float


def gain_interval(
    differences: Floats, clusters: Ints | None = None, *, alpha: float, scale: float
) -> Gain | None:
    """Mean of paired differences with a t interval that few samples do not break.

    The standard error is clustered (see `clustered.py`).
    To its square is added 2 (scale * largest cluster / n)^2, where `scale` is the largest possible
    difference: the spread of two more samples, one that rose all the way and one that fell (after
    Agresti and Min 2005, Statistics in Medicine 24). When none of n samples changed, or all by the
    same little, the spread seen is zero and says nothing about changes too rare to have been
    drawn; a Wald interval breaks there. None for fewer than two clusters, or a scale of zero.
    """
    n = len(differences)
    if clusters is None:
        groups, largest, degrees = n, 1.0, float(n - 1)
    else:
        _, members = np.unique(clusters, return_inverse=True)
        sizes = np.bincount(members).astype(np.float64)
        groups, largest = len(sizes), float(sizes.max(initial=0))
    if groups < 2 or scale <= 0:
        return None
    mean = float(differences.mean())
    residuals: Floats = differences - mean
    if clusters is None:
        square = groups / (groups - 1) * float(np.dot(residuals, residuals)) / n**2
    else:
        sums = np.bincount(members, weights=residuals) * leave_out_weights(sizes)
        square = float(np.dot(sums, sums)) / n**2
        degrees = degrees_of_sizes(sizes)
    floor = 2 * (scale * largest / n) ** 2
    stderr = math.sqrt(square + floor)
    quantile = t_quantile(1 - alpha / 2, degrees)
    margin = quantile * stderr
    detectable = (quantile + NormalDist().inv_cdf(POWER)) * stderr
    # A mean of differences cannot be larger than the largest of them can be.
    low, high = max(-scale, mean - margin), min(scale, mean + margin)
    return Gain(mean, Interval(min(low, mean), max(high, mean)), stderr, detectable)
