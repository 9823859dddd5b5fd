"""Confidence intervals of means, rates and medians, and Student's t distribution.

Score intervals are E. B. Wilson's (1927, JASA 22): they keep their width at 0 of 40 and stay inside
the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONFIDENCE = 0.95
"""The level of every interval that heldout reports."""
NORMAL_DEGREES = 1e8
"""Degrees of freedom above which Student's t is the normal distribution to the last digits."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, both ends included."""

    low: float
    high: float


def bounds_as_dict(interval: Interval | None, prefix: str = "ci") -> dict[str, float | None]:
    """Return the ends of an interval as JSON has them; None where there is none."""
    return {
        f"{prefix}_low": interval.low if interval else None,
        f"{prefix}_high": interval.high if interval else None,
    }


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of successes.

    Attributes:
        count: Successes.
        n: Trials.
        interval: None where there are no trials, or nothing shows how certain the share is.
        stderr: Its standard error, where it is known.
    """

    count: int
    n: int
    interval: Interval | None
    stderr: float | None = None

    @property
    def value(self) -> float | None:
        """The share; None without trials."""
        return self.count / self.n if self.n else None

    def as_dict(self) -> dict[str, Any]:
        """Return the rate as JSON has it."""
        bounds = bounds_as_dict(self.interval)
        return {"value": self.value, "count": self.count, "n": self.n, **bounds}


def independent_rate(count: int, n: int, confidence: float = CONFIDENCE) -> Rate:
    """Return the rate of independent trials with Wilson's interval.

    Args:
        count: Successes.
        n: Trials.
        confidence: Of the interval.
    """
    return Rate(count, n, wilson(count / n, n, confidence) if n else None)


def wilson(rate: float, n: float, confidence: float = CONFIDENCE) -> Interval:
    """Return Wilson's score interval of a rate.

    Args:
        rate: The share of successes.
        n: Independent trials.
        confidence: Of the interval.

    Raises:
        InvalidInput: The rate is not between 0 and 1, or there are no trials.
    """
    if not (0 <= rate <= 1 and n > 0):
        raise InvalidInput(
            f"a rate must be between 0 and 1 (successes / n), and n above 0; got {rate!r} and {n!r}"
        )
    return score_interval(rate, n, NormalDist().inv_cdf((1 + confidence) / 2))


def score_interval(rate: float, n: float, quantile: float) -> Interval:
    """Return the score interval of a rate over n trials, which need not be a whole number."""
    square = quantile**2 / n
    center = (rate + square / 2) / (1 + square)
    margin = math.sqrt(rate * (1 - rate) * square + square**2 / 4) / (1 + square)
    # At the ends the formula gives exactly 0 and 1; floating point misses by an ulp.
    low = 0.0 if rate == 0.0 else max(0.0, center - margin)
    high = 1.0 if rate == 1.0 else min(1.0, center + margin)
    return Interval(low, high)


def t_interval(
    mean: float, stderr: float | None, degrees: float, confidence: float
) -> Interval | None:
    """Return Student's t interval (Student 1908, Biometrika 6).

    None without a spread, and where an end would be larger than any number.
    """
    if not stderr:
        return None
    margin = t_quantile((1 + confidence) / 2, degrees) * stderr
    return Interval(mean - margin, mean + margin) if math.isfinite(abs(mean) + margin) else None


def median_interval(values: NDArray[Any], confidence: float = CONFIDENCE) -> Interval | None:
    """Return a distribution-free interval of a median, from order statistics.

    Thompson 1936, Annals of Mathematical Statistics 7; David and Nagaraja, "Order Statistics", 7.1.

    Args:
        values: The values.
        confidence: Of the interval.

    Returns:
        The interval; None for too few values.
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


def bisect(
    inside: float, outside: float, holds: Callable[[float], bool], steps: int = 200
) -> tuple[float, float]:
    """Return the two adjacent numbers between which a condition stops holding."""
    for _ in range(steps):
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            break
        if holds(middle):
            inside = middle
        else:
            outside = middle
    return inside, outside


# --- Student's t --------------------------------------------------------------------------------


def student_p_value(t: float, degrees: float) -> float:
    """Return P(|T| >= |t|); infinite degrees of freedom are the normal distribution's."""
    if degrees > NORMAL_DEGREES:
        return math.erfc(abs(t) / math.sqrt(2))
    # t^2 may overflow, and x is what would be left of df / (df + t^2).
    x = 1 / (1 + (t / math.sqrt(degrees)) ** 2) if abs(t) < 1e150 else 0.0
    return _incomplete_beta(degrees / 2, 0.5, x)


@lru_cache(maxsize=1024)
def t_quantile(p: float, degrees: float) -> float:
    """Return a quantile of Student's t distribution.

    Args:
        p: The probability below it, above 0.5.
        degrees: Degrees of freedom, above 0.

    Raises:
        InvalidInput: p or the degrees are out of range.
    """
    if not (degrees > 0 and 0.5 < p < 1):
        raise InvalidInput(
            f"t_quantile needs degrees > 0 and 0.5 < p < 1, got degrees={degrees}, p={p}"
        )
    if degrees > NORMAL_DEGREES:
        return NormalDist().inv_cdf(p)
    low, high = 0.0, 2.0
    while student_p_value(high, degrees) > 2 * (1 - p):
        low, high = high, high * 2
    # Newton's steps, which a bracket that shrinks with each of them keeps in place.
    quantile = (low + high) / 2
    for _ in range(200):
        beyond = student_p_value(quantile, degrees) - 2 * (1 - p)
        low, high = (quantile, high) if beyond > 0 else (low, quantile)
        step = beyond / (2 * _density(quantile, degrees))
        before, quantile = quantile, quantile + step
        if not low < quantile < high:
            quantile = (low + high) / 2
        if abs(quantile - before) <= 1e-12 * quantile:
            break
    return quantile


def _density(t: float, degrees: float) -> float:
    half = degrees / 2
    log_front = math.lgamma(half + 0.5) - math.lgamma(half) - math.log(degrees * math.pi) / 2
    return math.exp(log_front - (half + 0.5) * math.log1p(t * t / degrees))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function, by its continued fraction (modified Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + numerator * d)
            c = _nonzero(1 + numerator / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a


def _nonzero(x: float) -> float:
    return x if abs(x) > 1e-300 else 1e-300
