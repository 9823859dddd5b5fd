"""Betting against a bound: stakes by hand, fair games, and sets that are used up."""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.stats.stopping import Plan, Prefix, conclude, look, mean_above, mean_below
from heldout.stats.stopping.betting import LARGEST_STAKE, log_stakes


def test_the_first_bet_is_the_one_counted_by_hand() -> None:
    # Tuned to 100, with a variance of 1/4 ahead: λ = √(2 log 40 / 25) = .5432, on 1 - .5.
    stake = math.exp(log_stakes(np.array([1.0]), 0.5, side=0.025, tuned_to=100)[0])
    assert stake == pytest.approx(1 + math.sqrt(2 * math.log(40) / 25) * 0.5)


@pytest.mark.parametrize("tuned_to", [5, 100, None])
@pytest.mark.parametrize("bound", [0.1, 0.5, 0.8])
def test_a_stake_is_a_fair_game_where_the_bound_is_the_truth(
    bound: float, tuned_to: int | None
) -> None:
    expected = 0.0
    for path in product([0.0, 1.0], repeat=6):
        wins = sum(path)
        chance = bound**wins * (1 - bound) ** (6 - wins)
        logs = log_stakes(np.array(path), bound, side=0.025, tuned_to=tuned_to)
        expected += chance * math.exp(logs[-1])
    assert expected == pytest.approx(1)


def test_without_replacement_every_order_of_a_set_is_as_likely_and_the_game_is_fair() -> None:
    grades = [0.1, 0.4, 0.4, 0.9, 1.0]
    stakes = [
        math.exp(
            log_stakes(np.array(path[:3]), sum(grades) / 5, side=0.025, tuned_to=5, size=5)[-1]
        )
        for path in permutations(grades)
    ]
    assert np.mean(stakes) == pytest.approx(1)


def test_no_value_costs_more_than_the_largest_stake() -> None:
    logs = log_stakes(np.zeros(3), 0.999, side=0.025, tuned_to=1)
    assert np.diff(np.concatenate([[0.0], logs])) == pytest.approx(math.log(1 - LARGEST_STAKE))


def test_a_set_that_is_used_up_is_decided_by_its_mean() -> None:
    grades = np.random.default_rng(0).beta(2, 2, 60)
    plan, mean = Plan(60, this_set=True), float(grades.mean())
    for claim, truth in (
        (mean_above(mean - 1e-6), True),
        (mean_above(mean + 1e-6), False),
        (mean_below(mean + 1e-6), True),
    ):
        found = look(plan, claim, Prefix.of(grades))
        assert (found.decision, found.test) == (truth, "without_replacement")
        assert found.interval is not None
        assert found.interval.low == found.interval.high == pytest.approx(mean)


def test_what_is_left_of_a_set_bounds_its_mean() -> None:
    plan = Plan(100, this_set=True)
    found = look(plan, mean_above(0.5), Prefix.of(np.full(80, 0.7)))
    assert found.decision is True  # .56 at least
    assert found.interval is not None
    assert found.interval.low >= 0.56
    assert found.interval.high <= 0.76


def test_values_beyond_the_scale_cannot_be_bet_on() -> None:
    with pytest.raises(InvalidInput, match="betting needs values between 0 and 1"):
        look(Plan(None, "betting"), mean_above(0.5), Prefix.of(np.full(20, 2.0)))


def test_clusters_of_unequal_size_cannot_be_bet_on_and_equal_ones_can() -> None:
    plan = Plan(100, "betting")
    with pytest.raises(InvalidInput, match="these have 1 to 2 items"):
        look(plan, mean_above(0.5), Prefix.of([1.0, 0.0, 1.0], units=[0, 0, 1]))
    units = np.repeat(np.arange(100), 3)
    values = np.repeat(np.arange(100) % 10 < 9, 3)
    assert look(plan, mean_above(0.5), Prefix.of(values, units=units)).decision is True


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_interval_of_a_stream_is_around_its_mean_and_has_no_median(
    values: list[float],
) -> None:
    after = conclude(Plan(None, "betting"), mean_above(0.5), Prefix.of(values))
    assert after.interval is not None
    assert after.interval.low - 1e-6 <= float(np.mean(values)) <= after.interval.high + 1e-6
    assert after.estimate is None
    assert after.method == "betting"


def test_a_stream_is_known_at_least_as_well_as_by_the_predictable_bets_of_ville() -> None:
    """ville 0.1.0: BettingCS(alpha=.05) after the same 1,000 answers, its interval rounded."""
    values = (np.random.default_rng(0).random(1000) < 0.6).astype(np.float64)
    found = look(Plan(None, "betting"), mean_above(0.58), Prefix.of(values)).interval
    assert found is not None
    low, high = 0.4957, 0.6208
    assert found.high - found.low < high - low
    assert max(low, found.low) < float(values.mean()) < min(high, found.high)
