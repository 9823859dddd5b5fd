"""What a plan will cost, and what it can settle, before anything runs.

For a mean of 0/1 values the chances are exact: those of every path between the boundaries. For
differences they are a Brownian motion's with a drift (`gaussian`), which is right to about a point
from some fifty units on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from heldout.errors import InvalidInput
from heldout.stats.differences import tango_variance
from heldout.stats.intervals import Floats
from heldout.stats.stopping.choosing import gather
from heldout.stats.stopping.claims import Claim, Prefix
from heldout.stats.stopping.gaussian import Motion, critical_values
from heldout.stats.stopping.plans import Plan
from heldout.stats.stopping.walks import hypergeometric_weight, reweigh, walk

MOST_UNITS = 10_000_000
"""Units beyond which nobody waits for an answer."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """What may be expected of a plan, were this the truth.

    Attributes:
        truth: The true mean, or the true difference.
        above: The probability of deciding that it is above the bound.
        below: The probability of deciding that it is below.
        units: Expected units of the prefix at the stop.
        share: The same as a share of the set.
        fixed_above: The probability of deciding that it is above, of an eval of the whole set that
            is looked at once.
        fixed_below: Likewise, below.
    """

    truth: float
    above: float
    below: float
    units: float
    share: float
    fixed_above: float
    fixed_below: float


def expect_mean(plan: Plan, claim: Claim, truth: float) -> Expectation:
    """Return what to expect of a claim about a mean of independent 0/1 values; exact.

    Args:
        plan: With a known size, and alpha spending.
        claim: About a mean.
        truth: The true rate; of this set, that of the set.

    Raises:
        InvalidInput: The plan or the claim is another, or the truth is not between 0 and 1.
    """
    n = _size_of(plan)
    if claim.about != "mean" or not (0 < claim.bound < 1 and 0 <= truth <= 1):
        raise InvalidInput(
            "expect_mean needs a claim about a mean between 0 and 1, and a truth likewise; got "
            f"{claim.about} with {claim.bound:g} and {truth!r}"
        )
    low, high = _mean_ends(plan, claim.bound, truth)
    once_low, once_high = _mean_ends(replace(plan, looks=1), claim.bound, truth)
    return _expectation(truth, plan.sizes, n, (low, high), (once_low, once_high))


def _mean_ends(plan: Plan, bound: float, truth: float) -> tuple[Floats, Floats]:
    """Return the probabilities of crossing the lower and the upper boundary at each look."""
    spent = [plan.spent(size) for size in plan.sizes]
    if not plan.this_set:
        return walk(plan.sizes, spent, bound).ends(truth)
    n = _size_of(plan)
    most, total = math.floor(bound * n + 1e-9), round(truth * n)
    reference = (most + 0.5) / n
    found = walk(
        plan.sizes,
        spent,
        reference,
        below=hypergeometric_weight(most, n, reference),
        above=hypergeometric_weight(most + 1, n, reference),
    )
    near = min(max(truth, 0.5 / n), 1 - 0.5 / n)
    weight = hypergeometric_weight(total, n, near)
    low, high = [], []
    arrivals = found.arrivals(near)
    for size, (at, density), least, largest in zip(
        found.sizes, arrivals, found.low, found.high, strict=True
    ):
        under = reweigh(density, weight(size, at))
        low.append(under[at <= least].sum())
        high.append(under[at >= largest].sum())
    return np.array(low), np.array(high)


def expect_difference(plan: Plan, claim: Claim, truth: float, *, discordance: float) -> Expectation:
    """Return what to expect of a claim about a difference of paired 0/1 values.

    Args:
        plan: With a known size, and alpha spending.
        claim: About a difference.
        truth: The true difference.
        discordance: The share of pairs that differ.

    Raises:
        InvalidInput: The plan is another, or the truth is larger than the discordance.
    """
    n = _size_of(plan)
    if not abs(truth) <= discordance <= 1 or discordance <= 0:
        raise InvalidInput(
            f"a true difference of {truth:g} needs that many pairs that differ; discordance is "
            f"{discordance!r}"
        )
    wins, losses = (discordance + truth) / 2, (discordance - truth) / 2
    null = math.sqrt(tango_variance(wins * n, losses * n, n, claim.bound))
    std = math.sqrt(max(discordance - truth**2, 1e-12))
    return expect_normal(plan, claim.bound, truth, std=std, null_std=null)


def expect_normal(
    plan: Plan, bound: float, truth: float, *, std: float, null_std: float | None = None
) -> Expectation:
    """Return what to expect where the mean of units is normal.

    Args:
        plan: With a known size, and alpha spending.
        bound: What the claim is held against.
        truth: The true mean of a unit's value.
        std: The standard deviation of a unit's value.
        null_std: That which the test assumes, as a score test does; None: the same.

    Raises:
        InvalidInput: The plan is another, or a standard deviation is not above 0.
    """
    n, null = _size_of(plan), std if null_std is None else null_std
    if not (std > 0 and null > 0):
        raise InvalidInput(f"standard deviations must be above 0; got {std!r} and {null!r}")
    ends, once = (
        _normal_ends(each, bound, truth, null, std) for each in (plan, replace(plan, looks=1))
    )
    return _expectation(truth, plan.sizes, n, ends, once)


def _normal_ends(
    plan: Plan, bound: float, truth: float, null: float, std: float
) -> tuple[Floats, Floats]:
    sizes = tuple(float(size) for size in plan.sizes)
    if plan.this_set:
        # Of a set that is used up everything is known, so information grows without bound.
        n = float(_size_of(plan))
        sizes = tuple(size / max(1 - size / n, 1e-9) for size in sizes)
    critical = critical_values(sizes, tuple(plan.spent(size) for size in plan.sizes))
    motion, low, high = Motion(), [], []
    for size, z in zip(sizes, critical, strict=True):
        motion.advance(size)
        drift, reach = size * (truth - bound) / std, z * null / std * math.sqrt(size)
        low.append(motion.below(-reach - drift))
        high.append(motion.above(reach - drift))
        motion.keep(-reach - drift, reach - drift)
    return np.array(low), np.array(high)


def _size_of(plan: Plan) -> int:
    if plan.n is None or plan.spending == "betting":
        raise InvalidInput("expected calls are known for linear and keep_power, not for betting")
    return plan.n


def _expectation(
    truth: float,
    sizes: Sequence[int],
    n: int,
    ends: tuple[Floats, Floats],
    once: tuple[Floats, Floats],
) -> Expectation:
    low, high = ends
    stopped = low + high
    units = float((stopped * np.array(sizes)).sum() + (1 - stopped.sum()) * n)
    return Expectation(
        truth=truth,
        above=float(high.sum()),
        below=float(low.sum()),
        units=units,
        share=units / n,
        fixed_above=float(once[1].sum()),
        fixed_below=float(once[0].sum()),
    )


# --- What a set can settle ----------------------------------------------------------------------


def units_needed(plan: Plan, claim: Claim, *, clustered: bool = False) -> int | None:
    """Return the least set that could settle a claim as true, were every answer to say so.

    Args:
        plan: With any size.
        claim: What is claimed.
        clustered: Whether a unit has several items.

    Returns:
        The units; None where no set could, or whether one could depends on values that are not
        between 0 and 1.
    """

    def settles(n: int) -> bool:
        best = 1.0 if claim.above else 0.0
        if claim.about == "difference":
            best = 1.0 if claim.above else -1.0
        values = np.full(n * (1 + clustered), best)
        units = np.repeat(np.arange(n), 2) if clustered else None
        whole = replace(plan, n=n) if plan.n is not None else plan
        evidence = gather(whole, claim, Prefix.of(values, units=units), final=True)
        decision = evidence.decision
        return decision is not None and (claim.about == "precision" or decision == claim.above)

    if claim.about == "mean" and not (
        0 <= claim.bound < 1 if claim.above else 0 < claim.bound <= 1
    ):
        return None
    if claim.about == "difference" and not -1 <= claim.bound < 1:
        return None
    most = 1
    while not settles(most):
        most *= 2
        if most > MOST_UNITS:
            return None
    least = most // 2
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (least, middle) if settles(middle) else (middle, most)
    return most


def check_claim(
    plan: Plan, claim: Claim, *, clustered: bool = False, cluster: str | None = None
) -> None:
    """Refuse a claim that the set cannot settle, even where it is used up and all goes well.

    Args:
        plan: With the size of the set; a stream settles everything in time.
        claim: What is claimed.
        clustered: Whether a unit has several items: a sample with repeats, or a cluster.
        cluster: What clusters are made by, for the message.

    Raises:
        InvalidInput: The set is too small; the message says how many units would do.
    """
    if plan.n is None:
        return
    needed = units_needed(plan, claim, clustered=clustered)
    if needed is not None and needed > plan.n:
        raise InvalidInput(
            f"{plan.n:,} {name_units(clustered, cluster)} cannot settle that {describe(claim)}, "
            f"even if every answer speaks for it: that takes {needed:,} or more"
        )


def name_units(clustered: bool, cluster: str | None = None) -> str:
    """Return what to call the units of a set.

    Args:
        clustered: Whether a unit has several items.
        cluster: What clusters are made by, if by a key.
    """
    if cluster is not None:
        return f"clusters by {cluster}"
    return "clusters or repeated samples" if clustered else "samples"


def describe(claim: Claim) -> str:
    """Return a claim in words."""
    if claim.about == "precision":
        return f"the mean is known to ±{claim.bound:g}"
    side = "above" if claim.above else "below"
    if claim.about == "mean":
        return f"the mean is {side} {claim.bound:g}"
    if claim.bound == 0:
        return "the policy is better than the baseline"
    return f"the policy is not worse than the baseline by {-claim.bound:g}"
