"""Tests of a mean difference or a mean through its standard error: Tango's, and Student's t.

Held in good approximation, not exactly. Tango's score test takes the variance that is most likely
under the bound (T. Tango 1998, Statistics in Medicine 17, 891-908), so it is right for rates near
0, where the sample's own variance falsely passes a margin in nearly every run. t is for units that
are means themselves, and for graded values with spread; below 10 units it says nothing, and near
an end of the scale, or for a small margin, below more (`first_look`, `least_units`).

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
from heldout.stats.intervals import Interval, t_quantile
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

TINY = 1e-12
"""The least variance: at the ends of the scale there is none, and all else infinitely far away."""


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
            return math.sqrt(max(variance, TINY))

        return stagewise(
            [float(size) for size in self.sizes],
            self._critical,
            bound=self._bound,
            total=float(wins - losses),
            deviation=deviation,
            assumed=lambda difference: assumed_deviation(wins, losses, n, self._bound, difference),
            decision=decision,
            side=self._side,
            ends=(-1.0, 1.0),
        )


def assumed_deviation(
    wins: float, losses: float, pairs: float, bound: float, difference: float
) -> float:
    """Return the standard deviation that Tango's test assumes where another difference is true.

    The test assumes its bound, and takes from the data how many pairs differ. Under a difference of
    .2 at least a fifth of them do, also where these data have fewer: a boundary of the variance of
    data without any pair that differs would be crossed by every path at once.

    Args:
        wins: Pairs in favour.
        losses: Pairs against.
        pairs: All pairs.
        bound: What the test assumes.
        difference: What is true.
    """
    differ = tango_variance(wins, losses, pairs, difference) + difference**2
    won, lost = (max(differ + sign * difference, 0.0) / 2 * pairs for sign in (1, -1))
    return math.sqrt(max(tango_variance(won, lost, pairs, bound), TINY))


class Students(Evidence):
    """A mean, or a mean difference, of units with spread, by Student's t at each look.

    Between 0 and 1 (differences: -1 and 1) it is the statistic of heldout's ordinary intervals: a
    score with the number of independent answers that would be as uncertain as these units are (J.
    N. K. Rao and A. J. Scott 1992, Biometrics 48, 577-585), against t's quantile. The plain t of
    units whose mean lies near an end errs in up to .3 of runs; this one is at most .01 worse than
    at a single look (simulated, `bench/adaptive_grid.py`).
    """

    test = "t"
    method = "stagewise"

    def __init__(
        self, plan: Plan, bound: float, prefix: Prefix, *, final: bool, paired: bool
    ) -> None:
        self._side, self._bound = plan.side, bound
        # Looks with too few units are not made, and what they would have spent is the next one's.
        sizes, spent = spending(plan, prefix, final)
        first, least = first_look(bound, paired=paired), least_units(bound, paired=paired)
        if final and prefix.units >= least:
            first = min(first, prefix.units)
        made = [look for look, n in enumerate(sizes) if n >= first]
        self.needed = None if made else least if final else min(first, max(least, plan.n or first))
        self._sizes = [float(sizes[look]) for look in made]
        low, high = float(prefix.lower.min()), float(prefix.lower.max())
        inside = low >= -paired - UNIT_ROUNDING and high <= 1 + UNIT_ROUNDING
        kind = _Plain if not inside else _Gains if paired else _Rate
        self._looks = [kind(prefix.first(sizes[look])) for look in made]
        spends = tuple(spent[look] for look in made)
        self._critical = critical_values(tuple(self._sizes), spends)

    def _find_crossing(self) -> tuple[int, bool] | None:
        for size, of_look, critical in zip(self._sizes, self._looks, self._critical, strict=True):
            deviation = of_look.deviation(self._bound)
            apart = (of_look.mean - self._bound) * math.sqrt(size)
            if not math.isfinite(critical) or not deviation > 0:
                continue
            if abs(apart) > deviation * student_critical(critical, of_look.degrees):
                return round(size), apart > 0
        return None

    def repeated_interval(self) -> Interval | None:
        """Return the ordinary interval of such values at the critical value of this look."""
        if not self._looks or not math.isfinite(self._critical[-1]):
            return None
        interval = self._looks[-1].interval(1 - 2 * tail(self._critical[-1]))
        return interval and keep_aside(interval, self._bound, self.decision)

    def after_stop(self) -> tuple[Interval | None, float | None]:
        """Return the stagewise interval, and its median."""
        if not self._looks:
            return None, None
        at_end, n = self._looks[-1], self._sizes[-1]
        if not at_end.deviation(self._bound) > 0:
            return None, at_end.mean
        low, high = at_end.ends
        return stagewise(
            self._sizes,
            self._critical,
            bound=self._bound,
            total=at_end.mean * n,
            deviation=at_end.deviation,
            decision=self.decision,
            side=self._side,
            ends=(min(low, self._bound), max(high, self._bound)),
            degrees=at_end.degrees,
            assumed=lambda mean: at_end.assumed(self._bound, mean),
        )


LEAST_UNITS = 10
"""Units below which t on units is refused: with 5 the error is .033 for .025 (simulated)."""


def first_look(bound: float, *, paired: bool) -> int:
    """Return the units below which a look says nothing, unless it is at the end of the set.

    Near an end of the scale the rare values decide, and units without them pass for agreement. Of a
    mean the number follows from how skewed 0/1 values of that rate are; of a margin from how many
    losses it allows, since where nothing is won all that differs are losses. Looks from there on
    are at most .01 worse than one look at the end (simulated, `bench/adaptive_grid.py`).
    """
    if paired:
        return max(LEAST_UNITS, math.ceil(10 / abs(bound))) if 0 < abs(bound) < 1 else LEAST_UNITS
    return LEAST_UNITS + math.ceil(10 * _squared_skewness(bound))


def least_units(bound: float, *, paired: bool) -> int:
    """Return the units below which the end of the set says nothing either: they are too few.

    From there on one look errs in at most .042 of runs on a side, the items of a cluster being as
    alike as two drawn in advance would make them; a mean of .95 errs in .06 with 40 clusters, and
    in .1 with 20. No gate is passed on fewer than about 4 / margin units that all agree, either.
    """
    if paired:
        return max(LEAST_UNITS, math.ceil(4 / abs(bound))) if 0 < abs(bound) < 1 else LEAST_UNITS
    return max(LEAST_UNITS, math.ceil(10 * _squared_skewness(bound)))


def _squared_skewness(rate: float) -> float:
    return (1 - 2 * rate) ** 2 / (rate * (1 - rate)) if 0 < rate < 1 else 0.0


class _Plain:
    """The values of one look: of any size, with Student's t."""

    def __init__(self, prefix: Prefix) -> None:
        self.moments = Moments.of(prefix.lower, prefix.unit)
        self.mean = self.moments.mean or 0.0
        self.units = self.moments.clusters
        self.degrees = max(self.moments.degrees, 1.0)

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the largest mean worth asking about."""
        reach = 40 * (self.moments.stderr or 0.0)
        return self.mean - reach, self.mean + reach

    def deviation(self, mean: float) -> float:
        """Return the standard deviation of a unit, were this the true mean; 0 if it is unknown."""
        return (self.moments.stderr or 0.0) * math.sqrt(self.units)

    def assumed(self, bound: float, mean: float) -> float:
        """Return the standard deviation that a look assumes that tests a bound, were this true."""
        return self.deviation(bound)

    def interval(self, confidence: float) -> Interval | None:
        """Return the ordinary interval."""
        return self.moments.interval(confidence, bounded=False)


class _Rate(_Plain):
    """The values of one look: between 0 and 1, with the score of a rate."""

    ends = (0.0, 1.0)

    def __init__(self, prefix: Prefix) -> None:
        super().__init__(prefix)
        self.mean = min(1.0, max(0.0, self.mean))
        self.answers = _answers(self.moments, self.mean * (1 - self.mean))

    def deviation(self, mean: float) -> float:
        """Return the standard deviation of a unit, were this the true mean."""
        return math.sqrt(max(mean * (1 - mean), TINY) * self.units / self.answers)

    def interval(self, confidence: float) -> Interval | None:
        """Return the ordinary interval."""
        return self.moments.interval(confidence)


class _Gains(_Plain):
    """The values of one look: differences between -1 and 1, with Tango's score."""

    ends = (-1.0, 1.0)

    def __init__(self, prefix: Prefix) -> None:
        super().__init__(prefix)
        n = len(prefix.lower)
        won = float(prefix.lower.clip(min=0).sum()) / n
        lost = float(-prefix.lower.clip(max=0).sum()) / n
        self.pairs = _answers(self.moments, won + lost - (won - lost) ** 2)
        self.won, self.lost = won * self.pairs, lost * self.pairs

    def deviation(self, mean: float) -> float:
        """Return the standard deviation of a unit, were this the true difference."""
        variance = tango_variance(self.won, self.lost, self.pairs, mean)
        return math.sqrt(max(variance, TINY) * self.units / self.pairs)

    def assumed(self, bound: float, mean: float) -> float:
        """Return the standard deviation that a look assumes that tests a bound, were this true."""
        of_pair = assumed_deviation(self.won, self.lost, self.pairs, bound, mean)
        return of_pair * math.sqrt(self.units / self.pairs)

    def interval(self, confidence: float) -> Interval | None:
        """Return the ordinary interval."""
        quantile = t_quantile((1 + confidence) / 2, self.degrees)
        return tango_interval(self.won, self.lost, self.pairs, quantile)


def _answers(moments: Moments, spread: float) -> float:
    """Return how many independent answers are as uncertain; without spread, that of units."""
    error = moments.stderr or 0.0
    varies = error * math.sqrt(moments.clusters) > UNIT_ROUNDING
    return spread / error**2 if spread > 0 and varies else float(moments.clusters)


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
    assumed: Callable[[float], float],
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
        assumed: The standard deviation of a unit that a look assumes in its test of the bound, were
            its mean the argument.
        degrees: Degrees of freedom at the last look.
    """
    n, root = sizes[-1], math.sqrt(sizes[-1])
    spread = deviation(bound)
    # Of the motion without its drift, in units of the deviation that a look assumed.
    reach = [z * math.sqrt(size) for z, size in zip(critical, sizes, strict=True)]
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
        wide = assumed(mean)
        drift = [size * (mean - bound) for size in sizes]
        score = normal_score((above - drift[-1]) / (own * root), degrees)
        low = [(-b * wide - d) / own for b, d in zip(reach[:-1], drift, strict=False)]
        high = [(b * wide - d) / own for b, d in zip(reach[:-1], drift, strict=False)]
        return crossing_probability(sizes, low, high, score * root)

    low, median, high = (solve_probability(chance, p, *ends) for p in (side, 0.5, 1 - side))
    return keep_aside(Interval(low, high), bound, decision), median
