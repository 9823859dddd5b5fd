"""Exact tests of counts: a mean of 0/1 values, and pairs of them that differ.

Guaranteed: each side errs with at most half the level, for every truth and every size, since
boundaries come from the probabilities of all paths (`walks`).

The interval after the stop orders paths by where they end: crossing the upper boundary earlier is
more extreme than later, and at one look a larger count is (A. A. Tsiatis, G. L. Rosner and C. R.
Mehta 1984, Biometrics 40, 797-803). So the interval leaves out the bound exactly where a look
decided.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from heldout.stats.intervals import Interval, score_interval
from heldout.stats.stopping.claims import Prefix
from heldout.stats.stopping.evidence import Evidence, counts_at, crossing, keep_aside, spending
from heldout.stats.stopping.gaussian import critical_values, solve_probability
from heldout.stats.stopping.plans import Plan
from heldout.stats.stopping.scores import Tango
from heldout.stats.stopping.walks import (
    Walk,
    binomial_weight,
    hypergeometric_weight,
    reweigh,
    walk,
)

TINY = 1e-12
"""The least rate that is asked about."""


class Outcomes(Evidence):
    """The mean of independent 0/1 values against a bound, by exact binomial spending."""

    test = "binomial"
    method = "stagewise"

    def __init__(self, plan: Plan, bound: float, prefix: Prefix, *, final: bool) -> None:
        self._plan, self._bound = plan, bound
        self._sizes, self._spent = spending(plan, prefix, final)
        self._counts = counts_at(prefix.lower, self._sizes)
        # A bound of 0 or 1 or beyond leaves no path but one; just inside decides alike.
        self._walk = walk(self._sizes, self._spent, min(max(bound, TINY), 1 - TINY))

    def _find_crossing(self) -> tuple[int, bool] | None:
        return crossing(self._sizes, self._walk.decide(self._counts))

    def repeated_interval(self) -> Interval | None:
        """Return Wilson's interval at the critical value of this look."""
        n = self._sizes[-1]
        z = critical_values(tuple(float(size) for size in self._sizes), self._spent)[-1]
        if not math.isfinite(z):
            return Interval(0.0, 1.0)
        return keep_aside(score_interval(self._counts[-1] / n, n, z), self._bound, self.decision)

    def after_stop(self) -> tuple[Interval, float]:
        """Return the stagewise interval, exact, and its median."""
        return stagewise_rate(self._walk, self._counts, self._plan.side)


def stagewise_rate(found: Walk, counts: tuple[int, ...], side: float) -> tuple[Interval, float]:
    """Return the exact stagewise interval of a rate, and its median.

    Args:
        found: The boundaries.
        counts: Successes at each look.
        side: The error of each end.
    """
    crossed = found.decide(counts)
    last = crossed[0] if crossed else len(counts) - 1
    size, count = found.sizes[last], counts[last]
    # One recursion, under a rate near the one observed: under the bound densities may be smaller
    # than any number where the truth is far away.
    near = (count + 0.5) / (size + 1)
    arrivals = found.arrivals(near, looks=last + 1)

    def upward(p: float, own: float) -> float:
        """Return P(an end as extreme upwards or more), this very end with a part of its chance."""
        weight, total = binomial_weight(p, near), 0.0
        for look, (at, density) in enumerate(arrivals):
            under = reweigh(density, weight(found.sizes[look], at))
            if look < last:
                total += float(under[at >= found.high[look]].sum())
            else:
                total += float(under[at > count].sum() + own * under[at == count].sum())
        return total

    low = solve_probability(lambda p: upward(p, 1.0), side, TINY, 1 - TINY)
    high = solve_probability(lambda p: upward(p, 0.0), 1 - side, TINY, 1 - TINY)
    median = solve_probability(lambda p: upward(p, 0.5), 0.5, TINY, 1 - TINY)
    # Where nothing is left to learn on one side, that end is the end of the scale.
    ends = Interval(0.0 if low <= TINY else low, 1.0 if high >= 1 - TINY else high)
    return ends, min(max(median, ends.low), ends.high)


class Pairs(Evidence):
    """The difference of paired 0/1 values against 0, given how many pairs differ at each look.

    The test is exact, and about 0 alone. Intervals are of the difference itself, made of Tango's
    score statistic (`scores`), and held to the side of 0 that the test decided for.
    """

    test = "paired"
    method = "stagewise"

    def __init__(self, plan: Plan, prefix: Prefix, *, final: bool) -> None:
        self._scores = Tango(plan, 0.0, prefix, final=final)
        wins, losses = self._scores.wins, self._scores.losses
        differ = tuple(won + lost for won, lost in zip(wins, losses, strict=True))
        self._walk, self._wins = walk(differ, self._scores.spent, 0.5), wins

    def _find_crossing(self) -> tuple[int, bool] | None:
        return crossing(self._scores.sizes, self._walk.decide(self._wins))

    def repeated_interval(self) -> Interval | None:
        """Return Tango's interval at the critical value of this look."""
        return keep_aside(self._scores.bare_interval(), 0.0, self.decision)

    def after_stop(self) -> tuple[Interval, float]:
        """Return the stagewise interval of the difference, and its median."""
        return self._scores.stagewise(self.decision)


class Drawn(Evidence):
    """The number of successes in this very set, of 0/1 values drawn from it one by one.

    What is claimed is what the full run would show. "The mean is above p" is that there are more
    than p·N successes, so the upper boundary is of sets that have as many as that allows, and the
    lower one of sets that have one more. With the last value everything is known.
    """

    test = "hypergeometric"
    method = "stagewise"

    def __init__(self, plan: Plan, bound: float, prefix: Prefix, *, final: bool) -> None:
        assert plan.n is not None  # a plan of this set has a size
        self._side, self._bound = plan.side, bound
        # What is final is the whole set, also where it was smaller than planned.
        self._final, self._set = final, prefix.units if final else plan.n
        self._sizes, self._spent = spending(plan, prefix, final)
        self._counts = counts_at(prefix.lower, self._sizes)
        # 0.7 · 10 is 7 but for rounding, and 7 of 10 is not above 0.7.
        self._most = math.floor(bound * self._set + 1e-9)
        self._walk = None if final else self._find_boundaries()

    def _find_boundaries(self) -> Walk | None:
        most, size = self._most, self._set
        if not 0 <= most < size:
            return None
        reference = (most + 0.5) / size
        return walk(
            self._sizes,
            self._spent,
            reference,
            below=hypergeometric_weight(most, size, reference),
            above=hypergeometric_weight(most + 1, size, reference),
        )

    def _find_crossing(self) -> tuple[int, bool] | None:
        if self._final:
            return self._sizes[-1], self._counts[-1] > self._most
        if self._walk is None:  # the bound is beyond what any set can have
            return self._sizes[0], self._most < 0
        return crossing(self._sizes, self._walk.decide(self._counts))

    def repeated_interval(self) -> Interval | None:
        """Return the score interval of a part of a set, at the critical value of this look."""
        n, count, size = self._sizes[-1], self._counts[-1], self._set
        low, high = count / size, (count + size - n) / size
        if n == size:
            return Interval(low, high)
        # Information about the set's mean grows without bound as the set is used up.
        informed = tuple(each * size / (size - each) for each in self._sizes)
        z = critical_values(informed, self._spent)[-1]
        if not math.isfinite(z):
            return Interval(low, high)
        found = score_interval(count / n, informed[-1], z)
        within = Interval(min(max(found.low, low), high), max(min(found.high, high), low))
        return keep_aside(within, self._bound, self.decision)

    def after_stop(self) -> tuple[Interval, float]:
        """Return the stagewise interval of the set's mean, exact, and its median."""
        n, count, size = self._sizes[-1], self._counts[-1], self._set
        if n == size or self._walk is None:
            share = count / n
            return self.repeated_interval() or Interval(share, share), share
        found = self._walk
        crossed = found.decide(self._counts)
        last = crossed[0] if crossed else len(self._counts) - 1
        near = (count + 0.5) / (n + 1)
        arrivals = found.arrivals(near, looks=last + 1)

        def upward(total: int, own: float) -> float:
            """Return P(an end as far up as this or farther), were there so many successes."""
            weight, chance = hypergeometric_weight(total, size, near), 0.0
            for look, (at, density) in enumerate(arrivals):
                under = reweigh(density, weight(found.sizes[look], at))
                if look < last:
                    chance += float(under[at >= found.high[look]].sum())
                else:
                    chance += float(under[at > count].sum() + own * under[at == count].sum())
            return chance

        totals = range(count, count + size - n + 1)
        low = bisect_left(totals, True, key=lambda total: upward(total, 1.0) > self._side)
        high = bisect_left(totals, True, key=lambda total: upward(total, 0.0) >= 1 - self._side)
        median = bisect_left(totals, True, key=lambda total: upward(total, 0.5) >= 0.5)
        ends = Interval(totals[min(low, len(totals) - 1)] / size, totals[max(high - 1, 0)] / size)
        return ends, min(max((count + median) / size, ends.low), ends.high)
