"""Exact boundaries for counts of successes, by every path that they can take.

Guaranteed: a true bound is rejected with at most the error spent on each side, for every size,
every bound and every spending function, since the probabilities of all paths are summed up, and
nothing is approximated (the recursion of P. Armitage, C. K. McPherson and B. C. Rowe 1969, JRSS A
132, 235-244, for counts; C. Jennison and B. W. Turnbull 2000, "Group Sequential Methods", ch. 12).

The probability of a path to s successes in n is (number of such paths) · p^s · (1 - p)^(n - s).
The number of paths that cross no boundary is the same for every p, so one recursion gives the
probability of every end under every p; and divided by the paths there are to a total of M in N, the
same recursion gives sampling without replacement, where the ends have hypergeometric weights.

Discordant pairs use it with p = 1/2, given how many pairs differ at each look (Q. McNemar 1947,
Psychometrika 12): a test that holds for all such numbers holds for their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heldout.stats.intervals import Floats, Ints

NEVER = -(10**9)
"""A lower boundary that no count reaches."""
NEGLIGIBLE = 1e-30
"""Relative to the likeliest number of successes of a step: what is left out."""

LogWeight = Callable[[int, Ints], Floats]
"""The logarithm of (the probability of a path to s of n under a hypothesis) / (that under `p`)."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The looks at a growing count of successes, with the boundaries at each.

    Attributes:
        sizes: Trials at each look.
        low: The claim is false at this count or fewer.
        high: The claim is true at this count or more.
    """

    sizes: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    def decide(self, counts: Sequence[int]) -> tuple[int, bool] | None:
        """Return the first look at which counts cross a boundary, and whether it is the upper.

        Args:
            counts: Successes at each look.
        """
        for look, (count, low, high) in enumerate(zip(counts, self.low, self.high, strict=True)):
            if count >= high:
                return look, True
            if count <= low:
                return look, False
        return None

    def arrivals(self, p: float, *, looks: int | None = None) -> list[tuple[Ints, Floats]]:
        """Return the counts at each look, with their probability on paths that are still open.

        Args:
            p: The rate of successes.
            looks: How many looks; None: all.
        """
        density, first, before, found = np.ones(1), 0, 0, []
        for size, low, high in list(zip(self.sizes, self.low, self.high, strict=True))[:looks]:
            start, steps = binomial(size - before, p)
            density, first, before = np.convolve(density, steps), first + start, size
            counts = np.arange(first, first + len(density))
            found.append((counts, density))
            inside = (counts > low) & (counts < high)
            if not inside.any():
                density = np.zeros(1)
                continue
            first, density = int(counts[inside][0]), density[inside]
        return found

    def ends(self, p: float) -> tuple[Floats, Floats]:
        """Return the probability of crossing the lower, and the upper, boundary at each look."""
        arrivals = self.arrivals(p)
        low = [d[c <= at].sum() for (c, d), at in zip(arrivals, self.low, strict=True)]
        high = [d[c >= at].sum() for (c, d), at in zip(arrivals, self.high, strict=True)]
        return np.array(low), np.array(high)


def log_choose(n: int, k: Ints) -> Floats:
    """Return log C(n, k) for each k, which lies between 0 and n."""
    table = _log_factorials(n)
    return np.asarray(table[n] - table[k] - table[n - k])


_factorials: Floats = np.zeros(1)


def _log_factorials(most: int) -> Floats:
    global _factorials
    if len(_factorials) <= most:
        numbers = np.arange(1, max(most, 2 * len(_factorials)) + 1)
        _factorials = np.concatenate([[0.0], np.cumsum(np.log(numbers))])
    return _factorials


def binomial(n: int, p: float) -> tuple[int, Floats]:
    """Return the probabilities of counts of n trials, from the least that is not negligible."""
    if n == 0 or p <= 0 or p >= 1:
        return (n if p >= 1 else 0), np.ones(1)
    counts = np.arange(n + 1)
    logs = log_choose(n, counts) + counts * math.log(p) + (n - counts) * math.log1p(-p)
    kept = np.flatnonzero(logs > logs.max() + math.log(NEGLIGIBLE))
    return int(kept[0]), np.exp(logs[kept[0] : kept[-1] + 1])


def binomial_weight(p: float, reference: float) -> LogWeight:
    """Return what turns the probability of a path under one rate into that under another."""
    success, failure = _log_ratio(p, reference), _log_ratio(1 - p, 1 - reference)

    def weight(n: int, counts: Ints) -> Floats:
        # 0 · -inf is no success asked of a rate that has none.
        wins = np.where(counts > 0, counts * success, 0.0)
        return np.asarray(wins + np.where(counts < n, (n - counts) * failure, 0.0))

    return weight


def _log_ratio(p: float, reference: float) -> float:
    return math.log(p / reference) if p > 0 else -1e300


def hypergeometric_weight(total: int, size: int, reference: float) -> LogWeight:
    """Return what turns it into that of drawing from `size` items with `total` successes."""
    log_success, log_failure = math.log(reference), math.log1p(-reference)
    whole = float(log_choose(size, np.array([total]))[0])

    def weight(n: int, counts: Ints) -> Floats:
        left = total - counts
        possible = (left >= 0) & (left <= size - n)
        ends = log_choose(size - n, np.where(possible, left, 0)) - whole
        paths = counts * log_success + (n - counts) * log_failure
        return np.where(possible, ends - paths, -np.inf)

    return weight


def reweigh(density: Floats, logs: Floats) -> Floats:
    """Return the density under another hypothesis, which may be larger or smaller than a number."""
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        return np.asarray(np.exp(np.log(density) + logs))


def walk(
    sizes: Sequence[int],
    spent: Sequence[float],
    p: float,
    *,
    below: LogWeight | None = None,
    above: LogWeight | None = None,
) -> Walk:
    """Find the boundaries that spend no more than they may.

    Args:
        sizes: Trials at each look, not falling.
        spent: What each side may have spent by then.
        p: The rate that densities are under, and the bound that is tested where no weights are
            given; above 0 and below 1.
        below: Weights of the hypothesis that the upper boundary must not reject by mistake (the
            truth is no more than the bound); None: the rate p.
        above: Weights of the one that the lower boundary must not reject by mistake.
    """
    first, density = 0, np.ones(1)
    before, up, down = 0, 0.0, 0.0
    lows, highs = [], []
    for size, may in zip(sizes, spent, strict=True):
        if size > before:
            start, steps = binomial(size - before, p)
            density, first, before = np.convolve(density, steps), first + start, size
        counts = np.arange(first, first + len(density))
        under = density if below is None else reweigh(density, below(size, counts))
        over = density if above is None else reweigh(density, above(size, counts))
        # Sums from the far ends inwards: the smallest first, so nothing is lost beside 1.
        tail = np.cumsum(under[::-1])
        rejected = int(np.searchsorted(tail, max(0.0, may - up), side="right"))
        up += float(tail[rejected - 1]) if rejected else 0.0
        tail = np.cumsum(over)
        accepted = int(np.searchsorted(tail, max(0.0, may - down), side="right"))
        down += float(tail[accepted - 1]) if accepted else 0.0
        lows.append(first + accepted - 1 if accepted else NEVER)
        highs.append(first + len(density) - rejected)
        density = density[accepted : len(density) - rejected]
        first += accepted
        if not len(density):  # every path has ended
            density = np.zeros(1)
    return Walk(tuple(sizes), tuple(lows), tuple(highs))
