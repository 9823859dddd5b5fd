"""Which test holds for which claim and values, each with its looks so far.

| claim | values | test |
|---|---|---|
| mean above a bound | 0/1, independent | exact binomial |
| | with clusters; graded, bound in the middle | Student's t on units, from 10 on |
| | graded in [0, 1], bound near an end | betting |
| better than a baseline | 0/1, independent | exact, conditional on the pairs that differ |
| not worse by a margin | 0/1, independent | Tango's score test |
| either | otherwise | Student's t on units, from 10 on |
| any, of this very set | 0/1, independent | hypergeometric |
| | others in [0, 1] | betting without replacement |
| any, of a stream, or with `betting` | in [0, 1] | betting |
| precision | any | none: the ordinary interval |

Which row it is depends on the values seen: as long as all are 0 or 1 they count as 0/1. That costs
no error: a value between is a coin with that chance, and a run that stops while all were 0 or 1
would have stopped with coins, too.
"""

from __future__ import annotations

from heldout.stats._input import UNIT_ROUNDING
from heldout.stats.intervals import Interval
from heldout.stats.moments import Moments
from heldout.stats.stopping.betting import Bets
from heldout.stats.stopping.claims import Claim, Prefix, are_flips, are_outcomes
from heldout.stats.stopping.counts import Drawn, Outcomes, Pairs
from heldout.stats.stopping.evidence import Evidence
from heldout.stats.stopping.plans import Plan
from heldout.stats.stopping.scores import LEAST_UNITS, Students, Tango

MIDDLE = 0.2
"""How far from the ends of the scale a bound is in the middle, where t holds for graded values."""


def moments_of(prefix: Prefix) -> Moments:
    """Return mean and error of a prefix whose values are known."""
    return Moments.of(prefix.lower, prefix.unit)


def gather(plan: Plan, claim: Claim, prefix: Prefix, *, final: bool) -> Evidence:
    """Return the test of a claim, with its looks so far.

    Args:
        plan: When looks are made.
        claim: What is claimed.
        prefix: Known values.
        final: Whether there will be no more.

    Raises:
        InvalidInput: No test of the plan's kind holds for such values.
    """
    if claim.about == "precision":
        return Width(plan, claim.bound, prefix)
    paired, independent = claim.about == "difference", prefix.unit is None
    counts = independent and (are_flips if paired else are_outcomes)(prefix.lower)
    if plan.this_set and counts and not paired:
        return Drawn(plan, claim.bound, prefix, final=final)
    if plan.this_set or plan.spending == "betting":
        return Bets(plan, claim.bound, prefix, final=final, paired=paired)
    if counts:
        if not paired:
            return Outcomes(plan, claim.bound, prefix, final=final)
        if claim.bound == 0:
            return Pairs(plan, prefix, final=final)
        return Tango(plan, claim.bound, prefix, final=final)
    if not paired and independent and _may_be_skewed(prefix, claim.bound):
        return Bets(plan, claim.bound, prefix, final=final, paired=False)
    return Students(plan, claim.bound, prefix, final=final, paired=paired)


def _may_be_skewed(prefix: Prefix, bound: float) -> bool:
    """Return whether graded values with such a mean may be skewed too far for t.

    A mean near an end of the scale is one of rare values at the other end, and t calls such a mean
    too low while these have not come yet. Which test it is must not depend on how skewed the values
    look: they look least so in just those runs.
    """
    in_unit = prefix.lower.min() >= -UNIT_ROUNDING and prefix.lower.max() <= 1 + UNIT_ROUNDING
    return bool(in_unit and not MIDDLE <= bound <= 1 - MIDDLE)


class Width(Evidence):
    """The width of the ordinary interval of a mean: that needs no test, and spends nothing.

    A width depends on the values nearly through their mean alone, and favours no side of it: at
    such a stop Wilson's interval covers .939 to .986 (simulated).
    """

    test = "width"
    method = "fixed"

    def __init__(self, plan: Plan, half_width: float, prefix: Prefix) -> None:
        self._half_width, self._units = half_width, prefix.units
        self._moments = moments_of(prefix)
        self._interval = self._moments.interval(1 - plan.level)
        # Few clusters that are alike by chance would make a narrow interval.
        enough = prefix.unit is None or prefix.units >= LEAST_UNITS
        self.needed = None if enough else LEAST_UNITS

    def _find_crossing(self) -> tuple[int, bool] | None:
        if self._interval is None or self.needed is not None:
            return None
        width = self._interval.high - self._interval.low
        return (self._units, True) if width <= 2 * self._half_width else None

    def repeated_interval(self) -> Interval | None:
        """Return the ordinary interval, which holds at this look alone."""
        return self._interval

    def after_stop(self) -> tuple[Interval | None, float | None]:
        """Return the ordinary interval, and the mean."""
        return self._interval, self._moments.mean
