"""A look at a prefix: is the claim settled, and what is known so far?

`look` is a pure function of the plan, the claim and the values of the prefix. It goes through all
looks that the plan had up to there, so that nothing has to be remembered between them: a run that
was killed and resumed decides as one that was not. `conclude` says what may be reported once a run
has stopped, whether a look decided or the set was used up.

The level is that of the plan, over all looks together: a true claim is called false with at most
half of it, and a false one true with at most half of it. What holds exactly and what in good
approximation stands at the top of each test's module.
"""

from __future__ import annotations

from dataclasses import dataclass

from heldout.errors import InvalidInput
from heldout.stats.intervals import Interval
from heldout.stats.stopping.choosing import gather, moments_of
from heldout.stats.stopping.claims import Claim, Prefix
from heldout.stats.stopping.evidence import Method, TestName
from heldout.stats.stopping.plans import Plan


@dataclass(frozen=True, slots=True)
class Look:
    """What a look found.

    Attributes:
        number: Which look it was, from 1.
        n: Units in the prefix.
        decision: Whether the claim is true; None where it is not settled, so the run goes on.
        mean: The plain mean of the values, with errors as their lowest; of a difference, the mean
            difference.
        interval: The repeated interval: all of them together hold with the plan's confidence.
            None where there is none yet.
        test: What the claim was held against.
        spent: The error that each side may have spent by now.
        needed: Units without which this test says nothing, where the prefix has fewer; else None.
        final: Whether there are no more looks.
    """

    number: int
    n: int
    decision: bool | None
    mean: float
    interval: Interval | None
    test: TestName
    spent: float
    needed: int | None
    final: bool


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a run that has stopped may say.

    Attributes:
        decision: Whether the claim is true; None where the set was used up and it is inconclusive,
            or the run was ended before.
        estimate: Median-unbiased, from the order in which paths end (see `interval`); None where no
            such order is known, as for betting.
        interval: The stagewise interval: it agrees with the decision, and covers the truth of a run
            that stopped when it liked the look of it.
        mean: The plain mean, which is too large in favour of the decision.
        test: What the claim was held against.
        method: How the interval was made: "stagewise"; "betting"; "fixed", which needs no
            correction (a claim of precision); or "repeated", of a run that was ended while the
            claim was open and the set not used up.
        n: Units in the prefix.
        looks_used: Looks made.
        looks_planned: Looks that the plan had.
    """

    decision: bool | None
    estimate: float | None
    interval: Interval | None
    mean: float
    test: TestName
    method: Method
    n: int
    looks_used: int
    looks_planned: int | None


def look(plan: Plan, claim: Claim, prefix: Prefix, *, final: bool = False) -> Look:
    """Look at a prefix.

    Args:
        plan: When looks are made.
        claim: What is claimed.
        prefix: All values of the first units; at one of `plan.sizes`, or fewer than the plan has at
            the end of a set that shrank.
        final: Whether there will be no more values: the rest of the error is spent.

    Returns:
        The decision, and what is known so far.

    Raises:
        InvalidInput: The values do not fit the plan, or no test of the plan's kind holds for them.
    """
    _check_fits(plan, prefix)
    final = final or prefix.units == plan.n
    evidence = [gather(plan, claim, reading, final=final) for reading in prefix.readings()]
    decisions = {each.decision for each in evidence}
    decision = decisions.pop() if len(decisions) == 1 else None
    if decision is not None and claim.about != "precision":
        decision = decision == claim.above
    return Look(
        number=len(plan.sizes_until(prefix.units)),
        n=prefix.units,
        decision=decision,
        mean=moments_of(prefix.readings()[0]).mean or 0.0,
        interval=hull([each.repeated_interval() for each in evidence]),
        test=evidence[0].test,
        spent=plan.spent(prefix.units, final=final),
        needed=evidence[0].needed,
        final=final,
    )


def conclude(plan: Plan, claim: Claim, prefix: Prefix, *, final: bool = False) -> Conclusion:
    """Return what a run that stopped at this prefix may say.

    Args:
        plan: When looks were made.
        claim: What was claimed.
        prefix: All values of the units up to the look that decided, or up to the end; what is
            beyond that look is left out.
        final: Whether the set was used up, also where it was smaller than planned.

    Raises:
        InvalidInput: As for `look`.
    """
    found = look(plan, claim, prefix, final=final)
    evidence = [gather(plan, claim, reading, final=found.final) for reading in prefix.readings()]
    # What ran beyond the look that decided is no part of the number.
    crossed = [each.crossed for each in evidence]
    decided_at = max((each[0] for each in crossed if each is not None), default=prefix.units)
    if found.decision is not None and decided_at < prefix.units:
        return conclude(plan, claim, prefix.first(decided_at))
    method = evidence[0].method
    if method == "stagewise" and found.decision is None and not found.final:
        # Nothing has ended yet, so there is no end to have an order.
        interval, estimate, method = found.interval, None, "repeated"
    else:
        after = [each.after_stop() for each in evidence]
        interval, estimate = hull([ends for ends, _ in after]), after[0][1]
    return Conclusion(
        decision=found.decision,
        estimate=estimate,
        interval=interval,
        mean=found.mean,
        test=found.test,
        method=method,
        n=found.n,
        looks_used=found.number,
        looks_planned=len(plan.sizes) or None,
    )


def _check_fits(plan: Plan, prefix: Prefix) -> None:
    if plan.n is not None and prefix.units > plan.n:
        raise InvalidInput(f"the prefix has {prefix.units} units, and the plan {plan.n}")


def hull(intervals: list[Interval | None]) -> Interval | None:
    """Return the interval around all readings of what errored; None where one has none."""
    found = [each for each in intervals if each is not None]
    if len(found) < len(intervals):
        return None
    return Interval(min(each.low for each in found), max(each.high for each in found))
