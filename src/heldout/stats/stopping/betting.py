"""Tests of a mean by betting against a bound: no assumption but that values lie between 0 and 1.

Guaranteed: each side errs with at most half the level, at any number of looks, planned or not. A
gambler bets on each value that it will be above the bound; if the mean is no higher, the stake is a
martingale or falls, and P(it ever grows to 1 / error) is at most the error (J. Ville 1939; I.
Waudby-Smith and A. Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS B
86, 1-27). A bet on a value depends on the values before it alone.

With a set of known size the bet is the one that grows fastest where that size would just settle
it, λ² = 2 log(1 / error) / (variance · N), with the variance of the values before (section 4). For
a stream the stake is spread over bets of many sizes, and the best of them carries it (T. M. Cover
1991, Mathematical Finance 1, 1-29). Without replacement the fair price of a value is the mean of
those that are left, were the bound the truth (Waudby-Smith and Ramdas 2020, arXiv 2006.04347), and
once the set is used up the claim is settled.

The set of bounds that the stakes do not refuse is the interval; it covers at any stop. There is no
order of ends for it, so no median either.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from heldout.errors import InvalidInput
from heldout.stats._input import UNIT_ROUNDING
from heldout.stats.intervals import Floats, Interval, bisect
from heldout.stats.stopping.claims import Prefix
from heldout.stats.stopping.evidence import Evidence
from heldout.stats.stopping.plans import Plan

LARGEST_STAKE = 0.75
"""The share of the stake that may be lost on one value."""
PARTS = 3.0 ** -np.arange(6)
"""Parts of the largest bet that the stake of a stream is spread over."""
TINY = 1e-12


class Bets(Evidence):
    """The mean of values between 0 and 1, or of differences of such, against a bound."""

    method = "betting"

    def __init__(
        self, plan: Plan, bound: float, prefix: Prefix, *, final: bool, paired: bool
    ) -> None:
        self._plan, self._paired = plan, paired
        # Differences lie between -1 and 1; all else is on the scale from 0 to 1.
        low, width = (-1.0, 2.0) if paired else (0.0, 1.0)
        self._low, self._width = low, width
        values = (unit_means(prefix) - low) / width
        if values.min() < -UNIT_ROUNDING or values.max() > 1 + UNIT_ROUNDING:
            raise InvalidInput(
                "betting needs values between 0 and 1, and there are others: scale them, or claim "
                "something of `passed`"
            )
        self._values = np.clip(values, 0.0, 1.0)
        self._bound = (bound - low) / width
        self._sizes = np.array(plan.sizes_until(prefix.units))
        # What is final is the whole set, also where it was smaller than planned.
        self._size = (prefix.units if final else plan.n) if plan.this_set else None
        self._final = final
        self.test = "without_replacement" if plan.this_set else "betting"

    def _find_crossing(self) -> tuple[int, bool] | None:
        if self._size and self._final:
            known = float(self._values.sum()) > self._bound * self._size * (1 + ROUNDING)
            return int(self._sizes[-1]), known
        limit = -math.log(self._plan.side)
        more, less = (self._stakes(self._bound, up=up) >= limit for up in (True, False))
        either = more | less
        if not either.any():
            return None
        look = int(np.argmax(either))
        return int(self._sizes[look]), bool(more[look])

    def _stakes(self, bound: float, *, up: bool) -> Floats:
        """Return the logarithm of the stake at each look, of a gambler for more or for less."""
        values = self._values if up else 1 - self._values
        logs = log_stakes(
            values,
            bound if up else 1 - bound,
            side=self._plan.side,
            tuned_to=self._plan.n,
            size=self._size,
        )
        return np.asarray(logs[self._sizes - 1])

    @cached_property
    def _interval(self) -> Interval:
        """Return the bounds that no look has refused."""
        limit = -math.log(self._plan.side)
        mean = float(self._values.mean())
        if self._size and self._final:
            share = self._low + self._width * mean
            return Interval(share, share)
        if self._size:
            # What the values that are left allow is known.
            n, total = len(self._values), float(self._values.sum())
            mean = total / self._size + (self._size - n) / self._size * mean

        def refused(bound: float, up: bool) -> bool:
            return bool(self._stakes(bound, up=up).max() >= limit)

        low = high = mean
        # To a millionth: each bound that is asked about is a game of its own.
        if not refused(mean, True):
            low = bisect(mean, 0.0, lambda m: not refused(m, True), 22)[0]
        if not refused(mean, False):
            high = bisect(mean, 1.0, lambda m: not refused(m, False), 22)[0]
        return Interval(self._low + self._width * low, self._low + self._width * high)

    def repeated_interval(self) -> Interval | None:
        """Return the bounds that no look has refused."""
        return self._interval

    def after_stop(self) -> tuple[Interval, None]:
        """Return the same, since it covers at any stop."""
        return self._interval, None


def unit_means(prefix: Prefix) -> Floats:
    """Return the mean of each unit.

    Raises:
        InvalidInput: Units have unequal numbers of items, so their means are not the mean.
    """
    if prefix.unit is None:
        return prefix.lower
    counts = np.bincount(prefix.unit, minlength=prefix.units)
    if counts.min() < counts.max():
        raise InvalidInput(
            f"betting bets on one unit after another, and these have {counts.min()} to "
            f"{counts.max()} items: use clusters of one size, or none"
        )
    return np.asarray(np.bincount(prefix.unit, prefix.lower) / counts)


def log_stakes(
    values: Floats, bound: float, *, side: float, tuned_to: int | None, size: int | None = None
) -> Floats:
    """Return the logarithm of a stake after each value, bet on a mean above the bound.

    Args:
        values: Between 0 and 1, in order.
        bound: The mean that the bets are against.
        side: The error at which the stake wins.
        tuned_to: The number of values that the bets are best for; None: whenever.
        size: Of the set that values are drawn from without replacement; None: there is no such.
    """
    n = len(values)
    before = np.arange(n)
    sums = np.concatenate([[0.0], np.cumsum(values)[:-1]])
    price = np.full(n, bound)
    if size is not None:
        # The mean of what is left, were the bound the mean of all.
        price = (size * bound - sums) / (size - before)
    most = LARGEST_STAKE / np.maximum(price, TINY)
    gains = values - price
    if tuned_to is None:
        logs = np.logaddexp.reduce([np.cumsum(np.log1p(most * part * gains)) for part in PARTS])
        return np.asarray(logs - math.log(len(PARTS)))
    # The variance of the values before, around the means until then, with one of 1/4 ahead.
    squares = (values - (0.5 + np.cumsum(values)) / (before + 2)) ** 2
    variance = (0.25 + np.concatenate([[0.0], np.cumsum(squares)[:-1]])) / (before + 1)
    wanted = np.sqrt(2 * math.log(1 / side) / (variance * tuned_to))
    logs = np.cumsum(np.log1p(np.minimum(wanted, most) * gains))
    if size is not None:
        # A price below 0: even if all that is left were 0, the mean would be above the bound. Above
        # 1 it cannot be reached any more.
        logs = np.where(np.maximum.accumulate(price < -ROUNDING), np.inf, logs)
        logs = np.where(np.maximum.accumulate(price > 1 + ROUNDING), -np.inf, logs)
    return logs


ROUNDING = 1e-12
"""What sums of a few thousand values leave."""
