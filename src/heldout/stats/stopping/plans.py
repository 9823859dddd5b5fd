"""When an eval is looked at, and how much error it may spend by then.

Guaranteed: over all looks together each side errs with at most half the level. A spending function
says how much of it may be used up by the time t = n / N (K. K. G. Lan and D. L. DeMets 1983,
Biometrika 70, 659-663); what a look leaves unspent is the next one's. The function depends on the
share of the set alone, and never on what was seen, so it holds whatever looks were skipped. The
last look spends the rest, also where the set turned out smaller than planned.

linear      level / 2 · t: most effects are seen early (the default)
keep_power  1 - Φ(z / √t): like P. C. O'Brien and T. R. Fleming's (1979, Biometrics 35, 549-556);
            little is spent early, and the last look is nearly that of an eval without looks

Where no maximum is known (a stream), no share of it is either, and alpha spending is refused:
`betting` holds there, looked at whenever one likes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, get_args

from heldout.errors import InvalidInput
from heldout.stats._input import check_fraction

Spending = Literal["linear", "keep_power", "betting"]
"""How the error is spent over the looks."""

LOOKS = 20
LEVEL = 0.05
FIRST_OF_STREAM = 20
"""Units of a stream before its first look; each later look is at a tenth more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """When to look at an eval, fixed before it begins.

    A unit is what is independent and what runs as one step: a sample with all its repeats, or a
    cluster with all its samples.

    Attributes:
        n: Units in the set; None where no maximum is known.
        spending: How the error is spent: "linear", "keep_power", or "betting", which spends none
            and holds at any number of looks.
        level: Two-sided; each side has half of it.
        looks: Looks that are planned, at equal shares of the set.
        this_set: Whether the claim is about the mean that this very set would show if all of it
            were run, rather than about questions like these.

    Raises:
        InvalidInput: A value is out of range, or alpha spending has no maximum.
    """

    n: int | None
    spending: Spending = "linear"
    level: float = LEVEL
    looks: int = LOOKS
    this_set: bool = False

    def __post_init__(self) -> None:
        check_fraction(self.level, "level")
        if self.spending not in get_args(Spending):
            raise InvalidInput(
                f"spending must be one of {', '.join(get_args(Spending))}; got {self.spending!r}"
            )
        if self.looks < 1:
            raise InvalidInput(f"looks must be 1 or more; got {self.looks}")
        if self.n is None:
            if self.spending != "betting":
                raise InvalidInput(
                    f"{self.spending} spends error by the share of the set that is done, and a "
                    "stream has no known end: give a maximum, or use betting"
                )
            if self.this_set:
                raise InvalidInput("this_set needs a set of known size, and a stream has none")
        elif self.n < 1:
            raise InvalidInput(f"n must be 1 or more; got {self.n}")

    @property
    def side(self) -> float:
        """The error rate of each side."""
        return self.level / 2

    @property
    def sizes(self) -> tuple[int, ...]:
        """The units done at each look; empty for a stream."""
        if self.n is None:
            return ()
        steps = range(1, self.looks + 1)
        return tuple(dict.fromkeys(-(-step * self.n // self.looks) for step in steps))

    def next_size(self, done: int = 0) -> int | None:
        """Return the units at which the next look is due; None where all looks were made.

        Args:
            done: Units at the look before; 0 before the first.
        """
        if self.n is None:
            return max(FIRST_OF_STREAM, math.ceil(done * 1.1)) if done else FIRST_OF_STREAM
        return next((size for size in self.sizes if size > done), None)

    def has_look_at(self, n: int) -> bool:
        """Return whether a look is planned after n units."""
        size = self.next_size()
        while size is not None and size < n:
            size = self.next_size(size)
        return size == n

    def sizes_until(self, n: int) -> tuple[int, ...]:
        """Return the units at each look up to a prefix of n, which is itself looked at."""
        if self.n is None:
            sizes = []
            size = FIRST_OF_STREAM
            while size < n:
                sizes.append(size)
                size = math.ceil(size * 1.1)
            return (*sizes, n)
        return (*(size for size in self.sizes if size < n), n)

    def spent(self, n: int, *, final: bool = False) -> float:
        """Return the error that one side may have spent after n units.

        Args:
            n: Units done.
            final: Whether there will be no more, also where that is fewer than planned.
        """
        if final or (self.n is not None and n >= self.n):
            return self.side
        if self.n is None or n <= 0:
            return 0.0
        share = n / self.n
        if self.spending == "keep_power":
            normal = NormalDist()
            return 1 - normal.cdf(normal.inv_cdf(1 - self.side) / math.sqrt(share))
        return self.side * share
