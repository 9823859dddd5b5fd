"""What every test is: the looks at a prefix whose values are known, all gone through again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from heldout.stats.intervals import Interval
from heldout.stats.stopping.claims import Prefix
from heldout.stats.stopping.plans import Plan

TestName = Literal[
    "binomial", "paired", "hypergeometric", "tango", "t", "betting", "without_replacement", "width"
]
Method = Literal["stagewise", "betting", "fixed", "repeated"]

JUST_BEYOND = 1e-9
"""How near an interval may come to a bound that was decided about; no rate is as near."""


class Evidence(ABC):
    """A test with all its looks up to the end of a prefix whose values are known.

    Attributes:
        test: Its name.
        method: How the interval after the stop is made.
        needed: Units without which it says nothing, where there are fewer.
    """

    test: TestName
    method: Method
    needed: int | None = None

    @cached_property
    def crossed(self) -> tuple[int, bool] | None:
        """The units at the first look that decided, and whether the number is above the bound.

        Of precision, whether the interval is narrow enough. None where it is open.
        """
        return self._find_crossing()

    @property
    def decision(self) -> bool | None:
        """Whether the number is above the bound; None where that is open."""
        return self.crossed[1] if self.crossed else None

    @abstractmethod
    def _find_crossing(self) -> tuple[int, bool] | None:
        """Go through the looks and return the first that decides."""

    @abstractmethod
    def repeated_interval(self) -> Interval | None:
        """Return the interval that holds at all looks together."""

    @abstractmethod
    def after_stop(self) -> tuple[Interval | None, float | None]:
        """Return the interval after the stop, and its median."""


def spending(plan: Plan, prefix: Prefix, final: bool) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the units at each look up to the end of a prefix, and what may be spent by each."""
    sizes = plan.sizes_until(prefix.units)
    ends = (*(False for _ in sizes[1:]), final)
    return sizes, tuple(plan.spent(n, final=end) for n, end in zip(sizes, ends, strict=True))


def crossing(sizes: Sequence[int], decided: tuple[int, bool] | None) -> tuple[int, bool] | None:
    """Return the units at the look that decided, in place of its number."""
    return decided and (sizes[decided[0]], decided[1])


def keep_aside(interval: Interval, bound: float, decision: bool | None) -> Interval:
    """Return the interval on the side of the bound that was decided for, or around the bound."""
    low, high = interval.low, interval.high
    if decision is None:
        return Interval(min(low, bound), max(high, bound))
    if decision:
        low = max(low, bound + JUST_BEYOND)
        return Interval(low, max(low, high))
    high = min(high, bound - JUST_BEYOND)
    return Interval(min(low, high), high)


def counts_at(values: object, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sum of the first values at each size."""
    sums = np.cumsum(np.asarray(values, dtype=np.float64))
    return tuple(round(float(sums[size - 1])) for size in sizes)
