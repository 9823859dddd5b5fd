"""What a plan costs before it runs, against all paths and against an independent simulation."""

from __future__ import annotations

from itertools import product

import pytest

from heldout.errors import InvalidInput
from heldout.stats.stopping import (
    Claim,
    Plan,
    Prefix,
    better_than_baseline,
    check_claim,
    expect_difference,
    expect_mean,
    look,
    mean_above,
    mean_below,
    not_worse_than_baseline,
    units_needed,
    within,
)

MDE = 0.0485
"""What 1,000 pairs detect with 80% power, where 30% differ."""


@pytest.mark.parametrize("truth", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("this_set", [False, True])
def test_the_expectation_of_a_mean_is_that_over_all_paths(truth: float, this_set: bool) -> None:
    plan, claim = Plan(10, looks=5, this_set=this_set), mean_above(0.4)
    true = false = units = whole = 0.0
    for path in product([0.0, 1.0], repeat=10):
        wins = sum(path)
        chance = truth**wins * (1 - truth) ** (10 - wins)
        if this_set:
            chance = float(wins == round(truth * 10))
        whole += chance
        if not chance:
            continue
        for size in plan.sizes:
            decision = look(plan, claim, Prefix.of(path[:size])).decision
            if decision is not None or size == 10:
                break
        true += chance * (decision is True)
        false += chance * (decision is False)
        units += chance * size
    found = expect_mean(plan, claim, truth)
    assert found.above == pytest.approx(true / whole, abs=1e-9)
    assert found.below == pytest.approx(false / whole, abs=1e-9)
    assert found.units == pytest.approx(units / whole, abs=1e-9)
    assert found.share == pytest.approx(found.units / 10)


LINEAR = [(0, 0.025, 0.976), (1, 0.72, 0.70), (1.5, 0.98, 0.44), (2, 1, 0.29), (3, 1, 0.154)]
KEEP = [(0, 0.025, 0.988), (1, 0.773, 0.74), (1.5, 0.986, 0.53), (2, 1, 0.39), (3, 1, 0.265)]
"""Effect, decided, share of calls: 40,000 draws a cell, of an independent simulation."""


@pytest.mark.parametrize(
    ("plan", "effect", "decided", "share"),
    [
        (plan, *row)
        for plan, rows in ((Plan(1000), LINEAR), (Plan(1000, "keep_power"), KEEP))
        for row in rows
    ],
)
def test_expected_calls_are_those_that_were_simulated(
    plan: Plan, effect: float, decided: float, share: float
) -> None:
    found = expect_difference(plan, better_than_baseline(), effect * MDE, discordance=0.3)
    assert found.above == pytest.approx(decided, abs=0.006)
    assert found.share == pytest.approx(share, abs=0.015)
    assert found.fixed_above >= found.above - 1e-9


@pytest.mark.parametrize(
    ("plan", "margin", "passes", "share"),
    [
        *((Plan(1000), *row) for row in ((1, 0.71, 0.69), (2, 1, 0.29), (3, 1, 0.16))),
        *((Plan(1000, "keep_power"), *row) for row in ((1, 0.77, 0.74), (2, 1, 0.4), (3, 1, 0.27))),
    ],
)
def test_an_unchanged_model_passes_a_margin_as_it_was_simulated(
    plan: Plan, margin: float, passes: float, share: float
) -> None:
    found = expect_difference(plan, not_worse_than_baseline(margin * MDE), 0.0, discordance=0.3)
    assert found.above == pytest.approx(passes, abs=0.01)
    assert found.share == pytest.approx(share, abs=0.01)


def test_a_forecast_of_this_set_saves_a_fifth_near_the_bound() -> None:
    claim = mean_above(0.8)
    others = expect_mean(Plan(1000), claim, 0.82)
    these = expect_mean(Plan(1000, this_set=True), claim, 0.82)
    assert these.share < 0.8 * others.share
    assert these.above == pytest.approx(1, abs=0.025)


@pytest.mark.parametrize(
    ("claim", "needed"),
    [
        (mean_above(0.99), 368),  # 0.99^368 = .0247, and 0.99^367 = .0250014
        (mean_below(0.01), 368),
        (mean_above(0.5), 6),  # 1/64
        (better_than_baseline(), 6),
        (within(0.02), 93),  # Wilson at 93 of 93: 1 … .9603
        (mean_above(1.0), None),
    ],
)
def test_the_least_set_that_could_settle_a_claim_is_counted(
    claim: Claim, needed: int | None
) -> None:
    assert units_needed(Plan(100), claim) == needed


def test_ten_clusters_are_needed_at_least() -> None:
    assert units_needed(Plan(100), better_than_baseline(), clustered=True) == 10


@pytest.mark.parametrize(
    ("claim", "needed"),
    [
        (mean_above(0.5), 10),
        (mean_above(0.7), 12),
        (mean_above(0.8), 23),
        (mean_below(0.1), 72),
        (mean_above(0.95), 171),
        (not_worse_than_baseline(0.5), 10),
        (not_worse_than_baseline(0.1), 40),
        (not_worse_than_baseline(0.02), 200),
    ],
)
def test_near_an_end_and_for_a_small_margin_more_clusters_are_needed(
    claim: Claim, needed: int
) -> None:
    """20 clusters with a true mean of .95 are called better, or worse, in .1 of runs."""
    assert units_needed(Plan(1000), claim, clustered=True) == needed


def test_a_claim_that_the_set_cannot_settle_is_refused_with_the_size_that_could() -> None:
    message = r"100 samples cannot settle that the mean is above 0.99, .* takes 368 or more"
    with pytest.raises(InvalidInput, match=message):
        check_claim(Plan(100), mean_above(0.99))
    with pytest.raises(InvalidInput, match="8 clusters or repeated samples cannot .* 10 or more"):
        check_claim(Plan(8), better_than_baseline(), clustered=True)
    check_claim(Plan(368), mean_above(0.99))
    check_claim(Plan(None, "betting"), mean_above(0.99))


def test_betting_has_no_expected_calls() -> None:
    with pytest.raises(InvalidInput, match="not for betting"):
        expect_mean(Plan(100, "betting"), mean_above(0.5), 0.6)


def test_a_difference_takes_as_many_pairs_that_differ() -> None:
    with pytest.raises(InvalidInput, match="needs that many pairs that differ"):
        expect_difference(Plan(100), better_than_baseline(), 0.2, discordance=0.1)
