"""Alpha, the chance to be wrong that a whole curve may spend, and what each look gets of it."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from heldout.errors import InvalidInput
from heldout.stats.summaries import Floats, Ints

HALF_SPENT = 20


def spending_share(look: int, *, half_spent: int = HALF_SPENT) -> float:
    """The part of alpha that the look-th comparison (from 1) may use; the parts sum to 1.

    h / ((t + h - 1) (t + h)): after t looks t / (t + h) is spent, so half of it after h looks and
    never all. The choice of shares is free (Lan and DeMets 1983, Biometrika 70; the sum of the
    errors bounds the error). 6 / (pi^2 t^2) spends 61% on the first look, where a trend has not
    begun yet; at look 20 this one allows eight times as much.
    """
    if look < 1 or half_spent < 1:
        raise InvalidInput(f"look and half_spent start at 1, got {look} and {half_spent}")
    return half_spent / ((look + half_spent - 1) * (look + half_spent))


@lru_cache(maxsize=65536)
def critical_value(alpha: float, *, correlation: float = 0.0, previous: float = math.inf) -> float:
    """The c with P(|Z| > c and |Y| <= previous) = alpha, rounded up to hundredths.

    Z is this look's standardised error and Y that of the look before, normal with a correlation
    of at least `correlation`. The chance that any look errs is at most the sum over looks of the
    chance that it errs where the one before did not (Worsley 1982, Biometrika 69). Windows of two
    neighbouring looks are nearly the same, so this c is smaller than the one for alpha alone.
    """
    if not 0 < alpha < 1 or not 0 <= correlation < 1:
        raise InvalidInput(f"need 0 < alpha < 1 and 0 <= correlation < 1: {alpha}, {correlation}")
    alone = -NormalDist().inv_cdf(alpha / 2)
    if correlation == 0 or math.isinf(previous):
        return math.ceil(alone * 100) / 100
    points, weights = _LEGENDRE
    y = previous * points
    density = previous * weights * np.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    spread = math.sqrt(2 * (1 - correlation**2))

    # Y and -Y miss alike: half of the points, twice.
    half = len(y) // 2
    means, halves = (correlation * y[half:] / spread).tolist(), density[half:]

    def beyond(c: float) -> float:
        at = c / spread
        return float(np.dot(halves, [math.erfc(at - m) + math.erfc(at + m) for m in means]))

    # In hundredths: c at `low` misses too often, at `high` it does not. It mostly is near the one
    # before: a bracket around that is tried first.
    low, high = 0, math.ceil(alone * 100)
    near = round(previous * 100)
    for c in (near + 2, near - 3):
        if low < c < high:
            low, high = (low, c) if beyond(c / 100) <= alpha else (c, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(middle / 100) <= alpha else (middle, high)
    return high / 100


_LEGENDRE = np.polynomial.legendre.leggauss(64)


def least_correlation(now: Floats, before: Floats, groups: Ints | None) -> float:
    """A lower 95% bound for how the errors of two comparisons correlate (Fisher 1921), on a grid.

    Over the samples that both have; by cluster, where there are some.
    """
    both = ~np.isnan(now) & ~np.isnan(before)
    if both.sum() < 5:
        return 0.0
    x, y = now[both] - now[both].mean(), before[both] - before[both].mean()
    if groups is not None:
        x, y = (np.bincount(groups[both], weights=values) for values in (x, y))
        present = np.bincount(groups[both]) > 0
        x, y = x[present], y[present]
    norm = math.sqrt(float(np.dot(x, x)) * float(np.dot(y, y)))
    if norm <= 0 or len(x) < 5:
        return 0.0
    r = min(0.999, abs(float(np.dot(x, y)) / norm))
    return max(0.0, math.floor(math.tanh(math.atanh(r) - 1.645 / math.sqrt(len(x) - 3)) * 50) / 50)
