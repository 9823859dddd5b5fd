"""Student's t distribution, with any degrees of freedom: its tails and its quantiles."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

from heldout.errors import InvalidInput

NORMAL_FROM = 1e8
"""Degrees of freedom above which the normal distribution is the same to the last digits."""


def student_p_value(t: float, degrees: float) -> float:
    """P(|T| >= |t|); infinite degrees of freedom are the normal distribution's."""
    if degrees > NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2))
    # t^2 may overflow, and x is what would be left of df / (df + t^2).
    x = 1 / (1 + (t / math.sqrt(degrees)) ** 2) if abs(t) < 1e150 else 0.0
    return _incomplete_beta(degrees / 2, 0.5, x)


@lru_cache(maxsize=1024)
def t_quantile(p: float, degrees: float) -> float:
    """The p-quantile, for p > 0.5, with any number of degrees of freedom above 0."""
    if not (degrees > 0 and 0.5 < p < 1):
        raise InvalidInput(
            f"t_quantile needs degrees > 0 and 0.5 < p < 1, got degrees={degrees}, p={p}"
        )
    if degrees > NORMAL_FROM:
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
