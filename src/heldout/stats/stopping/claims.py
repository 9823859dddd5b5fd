"""What is claimed, and the values that the claim is held against.

A claim compares one number, a mean or a mean difference from a baseline, with one bound. It is true
where the whole interval lies above the bound, false where it lies below, and undecided between: two
one-sided tests. "Not worse by 0.02" is such a claim with the bound -0.02, so it is the gate with
two bounds. A claim of precision ("±0.02") is about the width of the interval and needs no test.

An item that errored has no value, but it has bounds. Both readings of all such items, the lowest
and the highest, go through the same looks, and a look decides where both decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats._input import Ids, check_fraction, check_values, cluster_codes
from heldout.stats.intervals import Floats, Ints

About = Literal["mean", "difference", "precision"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A number above or below a bound; made by the functions of this module.

    Attributes:
        about: "mean", of scores; "difference", of paired differences from a baseline; "precision",
            of the interval of a mean.
        bound: What it is compared with; of precision, the half-width.
        above: Whether the claim is that the number lies above the bound.
    """

    about: About
    bound: float
    above: bool = True


def mean_above(bound: float) -> Claim:
    """Claim that the mean is above a bound."""
    return Claim("mean", float(bound))


def mean_below(bound: float) -> Claim:
    """Claim that the mean is below a bound."""
    return Claim("mean", float(bound), above=False)


def better_than_baseline() -> Claim:
    """Claim that the mean difference from the baseline is above 0."""
    return Claim("difference", 0.0)


def not_worse_than_baseline(margin: float) -> Claim:
    """Claim that the mean difference from the baseline is above -margin.

    Raises:
        InvalidInput: The margin is not above 0.
    """
    if not margin > 0:
        raise InvalidInput(f"margin must be above 0; got {margin!r}: 0 is `better than`")
    return Claim("difference", -float(margin))


def within(half_width: float) -> Claim:
    """Claim that the interval of the mean reaches no further than this to either side.

    Raises:
        InvalidInput: The half-width is not between 0 and 1.
    """
    check_fraction(half_width, "half_width")
    return Claim("precision", float(half_width))


@dataclass(frozen=True, slots=True)
class Prefix:
    """The values of the first units, in the order in which the plan has them.

    Attributes:
        lower: A value an item: its score, or its difference from the baseline. For an item that
            errored, the lowest that it could be.
        upper: Likewise, the highest; the same array where nothing errored.
        unit: The unit of each value, from 0 without gaps; None where each value is its own.
        units: How many units there are.
    """

    lower: Floats
    upper: Floats
    unit: Ints | None
    units: int

    @classmethod
    def of(
        cls,
        lower: ArrayLike,
        upper: ArrayLike | None = None,
        *,
        baseline: ArrayLike | None = None,
        units: Ids | None = None,
    ) -> Prefix:
        """Check and align values.

        Args:
            lower: The score of each item; for one that errored, the lowest possible.
            upper: Likewise, the highest possible; None where nothing errored.
            baseline: The baseline's score of each item, for claims about a difference.
            units: The sample or cluster of each item, in any order; None where each item is one.

        Raises:
            InvalidInput: Values are no numbers, not aligned, or an upper value is below its lower.
        """
        low = check_values(lower, "lower")
        high = low if upper is None else check_values(upper, "upper")
        if baseline is not None:
            base = check_values(baseline, "baseline")
            if len(base) != len(low):
                raise InvalidInput(
                    f"baseline has {len(base)} values for {len(low)} items: they are paired"
                )
            same = high is low
            low = low - base
            high = low if same else high - base
        if len(high) != len(low) or (high < low).any():
            raise InvalidInput("upper must have a value for each of lower, and none below it")
        codes = None if units is None else cluster_codes(units, len(low), "units")
        count = len(low) if codes is None else int(codes.max()) + 1
        if count == len(low):
            codes = None
        return cls(low, high, codes, count)

    @property
    def is_known(self) -> bool:
        """Whether every item has a value."""
        return self.lower is self.upper or bool((self.lower == self.upper).all())

    def first(self, units: int) -> Prefix:
        """Return the values of the first units alone."""
        if units >= self.units:
            return self
        if self.unit is None:
            low, high = self.lower[:units], self.upper[:units]
            return Prefix(low, low if self.lower is self.upper else high, None, units)
        kept = self.unit < units
        low = self.lower[kept]
        high = low if self.lower is self.upper else self.upper[kept]
        return Prefix(low, high, self.unit[kept], units)

    def readings(self) -> tuple[Prefix, ...]:
        """Return the readings of what errored: the lowest and the highest, or the only one."""
        if self.is_known:
            return (self,)
        return tuple(
            Prefix(values, values, self.unit, self.units) for values in (self.lower, self.upper)
        )


def are_outcomes(values: Floats) -> bool:
    """Return whether all values are 0 or 1."""
    return bool(((values == 0) | (values == 1)).all())


def are_flips(differences: Floats) -> bool:
    """Return whether all differences are -1, 0 or 1."""
    return bool((np.abs(differences) * (np.abs(differences) - 1) == 0).all())
