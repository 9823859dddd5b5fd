"""Tests of a mean difference or a mean through its standard error: Tango's, and Student's t.

Held in good approximation, not exactly. Tango's score test takes the variance that is most likely
under the bound (T. Tango 1998, Statistics in Medicine 17, 891-908), so it is right for rates near
0, where the sample's own variance falsely passes a margin in nearly every run. t is for units that
are means themselves, and for graded values with spread; below 10 units it says nothing.

After the stop, p(θ) is the probability, were θ the truth, to end as far up as this run did or
farther: to have crossed the upper boundary at an earlier look, or to be beyond at this one (the
stagewise order: Tsiatis, Rosner and Mehta 1984, Biometrics 40, 797-803). The ends of the interval
are where p(θ) is half the level and 1 less that; the median is where it is one half (J. Whitehead
1997, "The Design and Analysis of Sequential Clinical Trials", 2nd ed., ch. 5). At the bound itself
p is what the boundaries spend, so interval and decision agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from heldout.stats._input import UNIT_ROUNDING
from heldout.stats.differences import tango_interval, tango_variance
from heldout.stats.intervals import Floats, Interval, Ints
from heldout.stats.moments import Moments
from heldout.stats.stopping.claims import Prefix
from heldout.stats.stopping.evidence import Evidence, counts_at, keep_aside, spending
from heldout.stats.stopping.gaussian import (
    critical_values,
    crossing_probability,
    normal_score,
    solve_probability,
    student_critical,
    tail,
)
from heldout.stats.stopping.plans import Plan


class Tango(Evidence):
    """The difference of paired 0/1 values against any bound, by Tango's score test."""

    test = "tango"
    method = "stagewise"

    def __init__(self, plan: Plan, bound: float, prefix: Prefix, *, final: bool) -> None:
        self._side, self._bound = plan.side, bound
        self.sizes, self.spent = spending(plan, prefix, final)
        self.wins = counts_at(prefix.lower > 0, self.sizes)
        self.losses = counts_at(prefix.lower < 0, self.sizes)
        self._critical = critical_values(tuple(float(n) for n in self.sizes), self.spent)

    def _find_crossing(self) -> tuple[int, bool] | None:
        for look, critical in enumerate(self._critical):
            score = self._score(look)
            if abs(score) >= critical:
                return self.sizes[look], score > 0
        return None

    def _score(self, look: int) -> float:
        wins, losses, n = self.wins[look], self.losses[look], self.sizes[look]
        variance = n * tango_variance(wins, losses, n, self._bound)
        return (wins - losses - n * self._bound) / math.sqrt(variance) if variance > 0 else 0.0

    def bare_interval(self) -> Interval:
        """Return Tango's interval at the critical value of this look, whatever was decided."""
        critical = self._critical[-1]
        if not math.isfinite(critical):
            return Interval(-1.0, 1.0)
        return tango_interval(self.wins[-1], self.losses[-1], self.sizes[-1], critical)

    def repeated_interval(self) -> Interval | None:
        """Return Tango's interval at the critical value of this look."""
        return keep_aside(self.bare_interval(), self._bound, self.decision)

    def after_stop(self) -> tuple[Interval, float]:
        """Return the stagewise interval, and its median."""
        return self.stagewise(self.decision)

    def stagewise(self, decision: bool | None) -> tuple[Interval, float]:
        """Return the stagewise interval, and its median.

        Args:
            decision: What was decided at the last look, by this test or an exact one.
        """
        wins, losses, n = self.wins[-1], self.losses[-1], self.sizes[-1]

        def deviation(difference: float) -> float:
            variance = tango_variance(wins, losses, n, difference)
            return math.sqrt(max(variance, 1e-12))

        return stagewise(
            [float(size) for size in self.sizes],
            self._critical,
            bound=self._bound,
            total=float(wins - losses),
            deviation=deviation,
            decision=decision,
            side=self._side,
            ends=(-1.0, 1.0),
        )


class Students(Evidence):
    """A mean, or a mean difference, of units with spread, by Student's t at each look."""

    test = "t"
    method = "stagewise"

    def __init__(
        self, plan: Plan, bound: float, prefix: Prefix, *, final: bool, paired: bool
    ) -> None:
        self._side, self._bound, self._paired = plan.side, bound, paired
        # Looks with too few units are not made, and what they would have spent is the next one's.
        sizes, spent = spending(plan, prefix, final)
        made = [look for look, n in enumerate(sizes) if n >= LEAST_UNITS]
        self.needed = None if made else LEAST_UNITS
        self._sizes = [float(sizes[look]) for look in made]
        self._looks = [Moments.of(*_values(prefix.first(sizes[look]))) for look in made]
        spends = tuple(spent[look] for look in made)
        self._critical = critical_values(tuple(self._sizes), spends)

    def _find_crossing(self) -> tuple[int, bool] | None:
        for look, size in enumerate(self._sizes):
            interval = self._interval(look)
            if interval is not None and not interval.low <= self._bound <= interval.high:
                return round(size), interval.low > self._bound
        return None

    def _interval(self, look: int) -> Interval | None:
        """Return the interval at the critical value of a look; None where nothing is known."""
        moments, critical = self._looks[look], self._critical[look]
        if not math.isfinite(critical):
            return None
        mean = moments.mean or 0.0
        if _varies(moments):
            reach = student_critical(critical, moments.degrees) * (moments.stderr or 0.0)
            return Interval(mean - reach, mean + reach)
        # All units are alike. Between 0 and 1 there is still an interval: that of as many answers.
        if not self._paired:
            is_bounded = moments.min >= -UNIT_ROUNDING and moments.max <= 1 + UNIT_ROUNDING
            return moments.interval(1 - 2 * tail(critical)) if is_bounded else None
        if abs(mean) > 1:
            return None
        units = moments.clusters
        return tango_interval(max(mean, 0.0) * units, max(-mean, 0.0) * units, units, critical)

    def repeated_interval(self) -> Interval | None:
        """Return Student's interval at the critical value of this look."""
        interval = self._interval(-1) if self._looks else None
        return interval and keep_aside(interval, self._bound, self.decision)

    def after_stop(self) -> tuple[Interval | None, float | None]:
        """Return the stagewise interval, and its median."""
        if not self._looks:
            return None, None
        moments, n = self._looks[-1], self._sizes[-1]
        mean = moments.mean or 0.0
        if not _varies(moments):
            interval = self._interval(-1)
            return interval and keep_aside(interval, self._bound, self.decision), mean
        deviation = (moments.stderr or 0.0) * math.sqrt(n)
        reach = 40 * deviation / math.sqrt(n)
        return stagewise(
            self._sizes,
            self._critical,
            bound=self._bound,
            total=mean * n,
            deviation=lambda _: deviation,
            decision=self.decision,
            side=self._side,
            ends=(mean - reach, mean + reach),
            degrees=moments.degrees,
        )


LEAST_UNITS = 10
"""Units below which t on units is refused: with 5 the error is .033 for .025 (simulated)."""


def _values(prefix: Prefix) -> tuple[Floats, Ints | None]:
    return prefix.lower, prefix.unit


def _varies(moments: Moments) -> bool:
    return (moments.stderr or 0.0) * math.sqrt(moments.clusters) > UNIT_ROUNDING


def stagewise(
    sizes: Sequence[float],
    critical: Sequence[float],
    *,
    bound: float,
    total: float,
    deviation: Callable[[float], float],
    decision: bool | None,
    side: float,
    ends: tuple[float, float],
    degrees: float = math.inf,
) -> tuple[Interval, float]:
    """Return the stagewise interval of a mean that is normal at the looks, and its median.

    Args:
        sizes: Units at each look, the last one being that of the stop.
        critical: The critical z of each.
        bound: What was tested.
        total: The sum of the values at the last look.
        deviation: The standard deviation of a unit, were its mean the argument.
        decision: What was decided at the last look.
        side: The error of each end.
        ends: The least and the largest mean that there could be.
        degrees: Degrees of freedom at the last look.
    """
    n, root = sizes[-1], math.sqrt(sizes[-1])
    spread = deviation(bound)
    reach = [z * spread * math.sqrt(size) for z, size in zip(critical, sizes, strict=True)]
    last = spread * root * student_critical(critical[-1], degrees)
    # A test of the exact kind may decide a hair earlier or later than the normal one: the order of
    # ends is the decision's.
    above = total - n * bound
    if decision is None:
        above = min(max(above, -last), last)
    else:
        above = max(above, last) if decision else min(above, -last)

    def chance(mean: float) -> float:
        """Return P(an end as far up as this or farther), were this the mean."""
        own = deviation(mean)
        drift = [size * (mean - bound) for size in sizes]
        score = normal_score((above - drift[-1]) / (own * root), degrees)
        low = [(-b - d) / own for b, d in zip(reach[:-1], drift, strict=False)]
        high = [(b - d) / own for b, d in zip(reach[:-1], drift, strict=False)]
        return crossing_probability(sizes, low, high, score * root)

    low, median, high = (solve_probability(chance, p, *ends) for p in (side, 0.5, 1 - side))
    return keep_aside(Interval(low, high), bound, decision), median
