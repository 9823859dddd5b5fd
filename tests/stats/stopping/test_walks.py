"""Boundaries of counts: levels by every path there is, not by simulation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain, combinations, combinations_with_replacement, pairwise, product
from math import comb, factorial

import numpy as np
import pytest

from heldout.stats.stopping import (
    Claim,
    Plan,
    Prefix,
    Spending,
    better_than_baseline,
    look,
    mean_above,
)
from heldout.stats.stopping.choosing import gather
from heldout.stats.stopping.walks import NEVER, walk

EXACT: tuple[Spending, ...] = ("linear", "keep_power")


def spends(plan: Plan) -> tuple[float, ...]:
    return tuple(plan.spent(n) for n in plan.sizes)


@cache
def decide(plan: Plan, claim: Claim, values: tuple[float, ...]) -> bool | None:
    """What a run decides that stops at the first look that does, or at the end of these values."""
    for size in plan.sizes:
        if size >= len(values):
            break
        earlier = decide(plan, claim, values[:size])
        if earlier is not None:
            return earlier
    prefix = Prefix.of(values)
    return gather(plan, claim, prefix, final=len(values) == plan.n).decision


def sorted_paths(plan: Plan, kinds: tuple[float, ...]) -> Iterator[tuple[tuple[float, ...], int]]:
    """Every path, in one order between looks for all that there are, and how many these are."""
    steps = [later - size for size, later in pairwise((0, *plan.sizes))]
    blocks = [[*combinations_with_replacement(kinds, step)] for step in steps]
    for path in product(*blocks):
        orders = 1
        for block in path:
            orders *= factorial(len(block))
            for kind in kinds:
                orders //= factorial(block.count(kind))
        yield tuple(chain(*path)), orders


def test_a_walk_of_one_look_is_the_exact_binomial_test() -> None:
    # P(9 or 10 of 10 heads) is 11 / 1024 = .0107, of 8 or more .0547.
    found = walk((10,), (0.025,), 0.5)
    assert (found.low, found.high) == ((1,), (9,))


def test_boundaries_of_three_looks_are_those_counted_by_hand() -> None:
    # 2, 4 and 6 fair coins, a quarter spent by each look but the last: 2 of 2 has 1/4 > .05, so
    # nothing ends there. 4 of 4 has 1/16 <= .1; 6 of 6 is no open path any more; of 5 of 6 there
    # are 6 paths but for the two that begin with 4 of 4: 4/64, and with 1/16 that is .125 <= .15.
    found = walk((2, 4, 6), (0.05, 0.1, 0.15), 0.5)
    assert found.high == (3, 4, 5)
    assert found.low == (NEVER, 0, 1)
    low, high = found.ends(0.5)
    assert high.tolist() == pytest.approx([0, 1 / 16, 4 / 64])
    assert low.tolist() == pytest.approx([0, 1 / 16, 4 / 64])


@pytest.mark.parametrize("spending", EXACT)
@pytest.mark.parametrize("bound", [0.2, 0.5, 0.7])
def test_of_all_paths_no_more_than_a_fortieth_errs_on_either_side(
    spending: Spending, bound: float
) -> None:
    plan = Plan(11, spending, looks=5)
    chances = {True: 0.0, False: 0.0, None: 0.0}
    for path, orders in sorted_paths(plan, (0.0, 1.0)):
        wins = sum(path)
        chance = orders * bound**wins * (1 - bound) ** (11 - wins)
        chances[decide(plan, mean_above(bound), path)] += chance
    assert sum(chances.values()) == pytest.approx(1)
    assert chances[True] <= 0.025
    assert chances[False] <= 0.025
    low, high = walk(plan.sizes, spends(plan), bound).ends(bound)
    assert high.sum() == pytest.approx(chances[True], abs=1e-12)
    assert low.sum() == pytest.approx(chances[False], abs=1e-12)


@pytest.mark.parametrize("spending", EXACT)
def test_of_all_paths_of_pairs_no_more_than_a_fortieth_errs_whatever_the_discordance(
    spending: Spending,
) -> None:
    plan = Plan(9, spending, looks=3)
    found: dict[tuple[float, bool | None], int] = {}
    for path, orders in sorted_paths(plan, (-1.0, 0.0, 1.0)):
        key = sum(map(abs, path)), decide(plan, better_than_baseline(), path)
        found[key] = found.get(key, 0) + orders
    assert sum(found.values()) == 3**9
    for discordance in (0.05, 0.3, 0.6, 1.0):
        for side in (True, False):
            error = sum(
                count * (discordance / 2) ** differing * (1 - discordance) ** (9 - differing)
                for (differing, decision), count in found.items()
                if decision is side
            )
            assert error <= 0.025


@pytest.mark.parametrize("total", range(11))
def test_of_all_orders_of_a_set_no_more_than_a_fortieth_is_decided_wrongly(total: int) -> None:
    plan = Plan(10, looks=5, this_set=True)
    wrong = 0
    for wins in combinations(range(10), total):
        values = np.zeros(10)
        values[list(wins)] = 1.0
        wrong += decide(plan, mean_above(0.6), tuple(values)) is not (total > 6)
    assert wrong / comb(10, total) <= 0.025


def test_a_set_that_is_used_up_is_always_decided() -> None:
    plan = Plan(10, this_set=True)
    for total in range(11):
        values = np.arange(10) < total
        found = look(plan, mean_above(0.7), Prefix.of(values))
        assert found.decision is (total > 7)
        assert found.interval is not None
        assert found.interval.low == found.interval.high == total / 10
