"""Races: several models on the same samples, in the same order; the losers stop.

Guaranteed: with the plan's confidence no truly best model is ever dropped, however many models,
pairs and looks there are. Each ordered pair of k models has 1 / (k (k - 1)) of the level (after
C. E. Bonferroni) and spends it over the looks (`plans`), and a model is dropped when one that is
still in the race beats it. To drop a best model one of its k - 1 pairs must err, which all together
they do with less than the level. (Successive rejects has no level at all: with four models it loses
the best one in 47% of races, where that is ahead by a quarter of what the set detects.)

Where the set is used up with several models left, they cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby

from heldout.errors import InvalidInput
from heldout.stats.intervals import Interval
from heldout.stats.stopping.choosing import gather, moments_of
from heldout.stats.stopping.claims import Claim, Prefix, better_than_baseline, mean_above
from heldout.stats.stopping.expecting import units_needed
from heldout.stats.stopping.looking import hull
from heldout.stats.stopping.plans import Plan


@dataclass(frozen=True, slots=True)
class Dropped:
    """A model that lost.

    Attributes:
        model: Its number.
        by: The number of the model that beat it.
        n: Units at the look where it did.
    """

    model: int
    by: int
    n: int


@dataclass(frozen=True, slots=True)
class Lead:
    """What one model has over another, over the units that both have run.

    Attributes:
        model: The number of the first.
        other: The number of the second.
        n: Units.
        difference: The first's mean less the second's.
        interval: Simultaneous for all pairs and all looks; None where there is none yet.
        decision: Whether the first is better; None where that is open.
    """

    model: int
    other: int
    n: int
    difference: float
    interval: Interval | None
    decision: bool | None


@dataclass(frozen=True, slots=True)
class Standing:
    """How a race stands.

    Attributes:
        survivors: Models that nothing has beaten, the highest mean first.
        dropped: The others, in the order in which they were dropped.
        n: Units of the survivors.
        is_over: Whether one model is left, or there is nothing more to run.
        winner: The model that is left; None where it is not known, or several cannot be told apart.
        means: The mean of each model over the units that it ran.
        intervals: Of each mean, simultaneous for all models and looks: that of the winner is
            corrected for having been picked. None where there is none yet.
        leads: Every pair of models.
    """

    survivors: tuple[int, ...]
    dropped: tuple[Dropped, ...]
    n: int
    is_over: bool
    winner: int | None
    means: tuple[float, ...]
    intervals: tuple[Interval | None, ...]
    leads: tuple[Lead, ...]


def stand(plan: Plan, models: Sequence[Prefix], *, final: bool = False) -> Standing:
    """Return how a race stands after a look.

    Args:
        plan: When looks are made; its level is that of the whole race.
        models: The scores of each model, of the same items in the same order. One that was dropped
            has them up to the look where it was, or beyond: what is beyond has no part in it.
        final: Whether there will be no more.

    Raises:
        InvalidInput: There are fewer than two models, or the plan is about this set.
    """
    k = len(models)
    if k < 2:
        raise InvalidInput(f"a race is between two models or more; got {k}")
    if plan.this_set:
        raise InvalidInput("a race asks which model is better, not what this set would show")
    n = max(model.units for model in models)
    final = final or n == plan.n
    pairs = {pair: _pair(models, pair) for pair in combinations(range(k), 2)}
    of_pair = _pair_plan(plan, k)
    dropped = _drop(
        [
            (first, second, *beaten)
            for (first, second), prefix in pairs.items()
            if (beaten := _decide(of_pair, prefix, final=final and prefix.units == n))
        ]
    )
    ran = dict.fromkeys(range(k), n) | {each.model: each.n for each in dropped}
    readings = [model.first(ran[i]) for i, model in enumerate(models)]
    means = tuple(moments_of(reading.readings()[0]).mean or 0.0 for reading in readings)
    left = sorted(set(range(k)) - {each.model for each in dropped}, key=lambda i: (-means[i], i))
    of_one = replace(plan, level=plan.level / k)
    return Standing(
        survivors=tuple(left),
        dropped=dropped,
        n=n,
        is_over=final or len(left) == 1,
        winner=left[0] if len(left) == 1 else None,
        means=means,
        intervals=tuple(
            # A claim about the mean itself, which stays open: its interval is around it.
            _interval(of_one, mean_above(mean), reading, final=final and reading.units == n)
            for mean, reading in zip(means, readings, strict=True)
        ),
        leads=tuple(
            _lead(of_pair, pair, prefix.first(min(ran[i] for i in pair)), n if final else None)
            for pair, prefix in pairs.items()
        ),
    )


def units_to_race(plan: Plan, models: int, *, clustered: bool = False) -> int | None:
    """Return the least set on which a model could be shown to be better than another one.

    Args:
        plan: With any size; its level is that of the whole race.
        models: How many race.
        clustered: Whether a unit has several items.

    Returns:
        The units, were one model right and the other one wrong in all of them; None where no set
        would do.
    """
    return units_needed(_pair_plan(plan, models), better_than_baseline(), clustered=clustered)


def _pair_plan(plan: Plan, models: int) -> Plan:
    """Return the plan of one pair: each ordered pair has an equal share of the race's level."""
    return replace(plan, level=2 * plan.level / (models * (models - 1)))


def _pair(models: Sequence[Prefix], pair: tuple[int, int]) -> Prefix:
    """Return the differences of two models over the units that both have."""
    first, second = (models[i].first(min(models[j].units for j in pair)) for i in pair)
    if len(first.lower) != len(second.lower):
        raise InvalidInput(
            f"models {pair[0]} and {pair[1]} have {len(first.lower)} and {len(second.lower)} "
            f"items in {first.units} units: a race is over the same items in the same order"
        )
    low, high = first.lower - second.upper, first.upper - second.lower
    known = first.is_known and second.is_known
    return Prefix(low, low if known else high, first.unit, first.units)


def _decide(plan: Plan, differences: Prefix, *, final: bool) -> tuple[int, bool] | None:
    """Return the units at which one of a pair beat the other, and whether it was the first."""
    readings = differences.readings()
    crossed = [gather(plan, better_than_baseline(), each, final=final).crossed for each in readings]
    found = [each for each in crossed if each is not None]
    if len(found) < len(crossed) or len({above for _, above in found}) > 1:
        return None
    return max(n for n, _ in found), found[0][1]


def _drop(beaten: list[tuple[int, int, int, bool]]) -> tuple[Dropped, ...]:
    """Return the models that lost to one that was in the race at that look, in order.

    Args:
        beaten: First and second model of a pair, the units at which one beat the other, and
            whether it was the first.
    """
    dropped: dict[int, Dropped] = {}
    for n, at_look in groupby(sorted(beaten, key=lambda each: each[2]), key=lambda each: each[2]):
        # All that are in the race when a look begins may drop others at it, those included that
        # are dropped at it themselves.
        before = set(dropped)
        for first, second, _, above in at_look:
            winner, loser = (first, second) if above else (second, first)
            if not {winner, loser} & before and loser not in dropped:
                dropped[loser] = Dropped(loser, winner, n)
    return tuple(dropped.values())


def _interval(plan: Plan, claim: Claim, prefix: Prefix, *, final: bool) -> Interval | None:
    evidence = [gather(plan, claim, each, final=final) for each in prefix.readings()]
    return hull([each.repeated_interval() for each in evidence])


def _lead(plan: Plan, pair: tuple[int, int], differences: Prefix, end: int | None) -> Lead:
    final = differences.units == end
    decided = _decide(plan, differences, final=final)
    return Lead(
        model=pair[0],
        other=pair[1],
        n=differences.units,
        difference=float(moments_of(differences.readings()[0]).mean or 0.0),
        interval=_interval(plan, better_than_baseline(), differences, final=final),
        decision=decided and decided[1],
    )
