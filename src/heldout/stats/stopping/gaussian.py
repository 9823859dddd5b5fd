"""The crossing probabilities of a mean that is looked at several times, where it is normal.

Score statistics at looks have the correlations of a Brownian motion observed at the shares of
information (C. Jennison and B. W. Turnbull 1997, JASA 92, 1330-1341), so that one recursion over
looks gives every crossing probability (Armitage, McPherson and Rowe 1969). Each step is an integral
over where the paths are that have crossed nothing yet, by Gauss and Legendre's rule.

Critical values are of a normal distribution. A look with few degrees of freedom holds its nominal
error against Student's t instead (S. J. Pocock 1977, Biometrika 64, 191-199; Jennison and Turnbull
2000, ch. 11.4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from heldout.stats.intervals import Floats, student_p_value, t_quantile

NODES = 48
FARTHEST = 8.5
"""Standard deviations beyond which a normal distribution has nothing."""

_ROOT = math.sqrt(2)
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(NODES)
_erfc = np.frompyfunc(math.erfc, 1, 1)


def tail(z: float) -> float:
    """Return P(Z >= z)."""
    return math.erfc(z / _ROOT) / 2


def tails(z: Floats) -> Floats:
    """Return P(Z >= z) of each z."""
    return np.asarray(_erfc(z / _ROOT), dtype=np.float64) / 2


class Motion:
    """A Brownian motion with drift 0, on paths that have left no interval yet.

    Advance it to a time, ask what lies beyond, then keep what lies between two bounds.
    """

    def __init__(self) -> None:
        self._time, self._step = 0.0, 0.0
        # Where paths are, and how much weighs each point; at the beginning all are at 0.
        self._at, self._mass = np.zeros(1), np.ones(1)

    def advance(self, time: float) -> None:
        """Go on to a later time."""
        self._step = math.sqrt(time - self._time)
        self._time = time

    def above(self, bound: float) -> float:
        """Return the probability of being above a bound now, without having left before."""
        return float(self._mass @ tails((bound - self._at) / self._step))

    def below(self, bound: float) -> float:
        """Return the probability of being below a bound now, without having left before."""
        return float(self._mass @ tails((self._at - bound) / self._step))

    def keep(self, low: float, high: float) -> None:
        """Go on with the paths between two bounds alone."""
        reach = FARTHEST * self._step
        low, high = (
            max(low, float(self._at.min()) - reach),
            min(high, float(self._at.max()) + reach),
        )
        if not high > low:
            self._at, self._mass = np.zeros(1), np.zeros(1)
            return
        half = (high - low) / 2
        points = low + half * (1 + _POINTS)
        apart = (points[:, None] - self._at) / self._step
        density = np.exp(-apart * apart / 2) @ self._mass / (self._step * math.sqrt(2 * math.pi))
        self._at, self._mass = points, half * _WEIGHTS * density


@lru_cache(maxsize=256)
def critical_values(times: tuple[float, ...], spent: tuple[float, ...]) -> tuple[float, ...]:
    """Return the z at each look beyond which either side spends what it may; inf for nothing.

    Args:
        times: Information at each look, rising.
        spent: What each side may have spent by then.
    """
    motion, used, found = Motion(), 0.0, []
    for time, may in zip(times, spent, strict=True):
        motion.advance(time)
        root, share = math.sqrt(time), may - used
        if share < 1e-15:
            found.append(math.inf)
            motion.keep(-math.inf, math.inf)
            continue

        def kept(z: float, motion: Motion = motion, root: float = root) -> float:
            return 1 - motion.above(z * root)

        z = solve_probability(kept, 1 - share, 0.0, FARTHEST) if share > 1e-9 else -probit(share)
        used += motion.above(z * root)
        found.append(z)
        motion.keep(-z * root, z * root)
    return tuple(found)


def student_critical(z: float, degrees: float) -> float:
    """Return the t that has the error of a z, one-sided."""
    if not math.isfinite(z):
        return math.inf
    return t_quantile(1 - tail(z), degrees)


def normal_score(t: float, degrees: float) -> float:
    """Return the z that has the error of a t."""
    if not math.isfinite(degrees) or t == 0:
        return t
    p = student_p_value(t, degrees) / 2
    z = -NormalDist().inv_cdf(p) if p > 1e-300 else 37.0
    return math.copysign(z, t)


def crossing_probability(
    times: Sequence[float], low: Sequence[float], high: Sequence[float], last: float
) -> float:
    """Return P(above `high` first at an earlier look, or above `last` at the last one).

    Args:
        times: Information at each look.
        low: Where paths end below at each look but the last; of the motion, not of z.
        high: Where paths end above, likewise.
        last: The bound at the last look.
    """
    motion, found = Motion(), 0.0
    for time, lower, upper in zip(times[:-1], low, high, strict=True):
        motion.advance(time)
        found += motion.above(upper)
        motion.keep(lower, upper)
    motion.advance(times[-1])
    return found + motion.above(last)


def solve_probability(
    chance: Callable[[float], float], target: float, low: float, high: float
) -> float:
    """Return where a rising probability meets a target; an end where it does not.

    In units of the normal distribution such a curve is nearly straight, so a secant in a bracket
    (the Illinois rule; M. Dowell and P. Jarratt 1971, BIT 11) needs half a dozen steps.

    Args:
        chance: Rises from `low` to `high`.
        target: The probability to meet.
        low: The least that may be returned.
        high: The largest.
    """
    aim = probit(target)

    def distance(x: float) -> float:
        return probit(chance(x)) - aim

    left, right = distance(low), distance(high)
    if left >= 0:
        return low
    if right <= 0:
        return high
    side, x = 0, low
    for step in range(100):
        # A straight line first; halves where an end is far out, and lines would creep.
        x = (low + high) / 2 if step % 4 == 3 else high - right * (high - low) / (right - left)
        if not low < x < high:
            x = (low + high) / 2
        found = distance(x)
        if abs(found) < 1e-9 or high - low < 1e-12:
            break
        if found < 0:
            low, left = x, found
            right, side = (right / 2 if side == -1 else right), -1
        else:
            high, right = x, found
            left, side = (left / 2 if side == 1 else left), 1
    return x


def probit(p: float) -> float:
    """Return the z below which a normal variable lies with this probability, at most 37."""
    if p <= 1e-300:
        return -37.0
    return NormalDist().inv_cdf(p) if p < 1 - 1e-16 else 9.0
