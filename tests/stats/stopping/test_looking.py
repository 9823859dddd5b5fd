"""Looks and conclusions, of every kind of claim and values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.stats import Interval, wilson
from heldout.stats.intervals import Floats
from heldout.stats.stopping import (
    Claim,
    Conclusion,
    Look,
    Plan,
    Prefix,
    Spending,
    better_than_baseline,
    conclude,
    look,
    mean_above,
    mean_below,
    not_worse_than_baseline,
    within,
)


def outcomes(n: int, share: float, seed: int = 0) -> Floats:
    return (np.random.default_rng(seed).random(n) < share).astype(np.float64)


def flips(n: int, gained: float, lost: float, seed: int = 0) -> Floats:
    shares = [lost, 1 - lost - gained, gained]
    return np.random.default_rng(seed).choice([-1.0, 0.0, 1.0], n, p=shares)


def run(plan: Plan, claim: Claim, values: Floats) -> tuple[Look, Conclusion]:
    """Look as an engine does: at each prefix, until the claim is settled."""
    done, found = 0, None
    while (size := plan.next_size(done)) is not None and size <= len(values):
        prefix = Prefix.of(values[:size])
        found, done = look(plan, claim, prefix), size
        if found.decision is not None:
            break
    assert found is not None
    return found, conclude(plan, claim, prefix)


# --- Plans --------------------------------------------------------------------------------------


def test_looks_are_at_twentieths_rounded_up() -> None:
    assert Plan(1000).sizes == tuple(range(50, 1001, 50))
    assert Plan(30).sizes == (
        2,
        3,
        5,
        6,
        8,
        9,
        11,
        12,
        14,
        15,
        17,
        18,
        20,
        21,
        23,
        24,
        26,
        27,
        29,
        30,
    )
    assert Plan(7).sizes == (1, 2, 3, 4, 5, 6, 7)


def test_the_engine_asks_for_one_look_after_another() -> None:
    plan, sizes, done = Plan(100), [], 0
    while (size := plan.next_size(done)) is not None:
        sizes.append(size)
        done = size
    assert tuple(sizes) == plan.sizes


@pytest.mark.parametrize("spending", ["linear", "keep_power"])
def test_all_is_spent_at_the_end_also_of_a_set_that_shrank(spending: Spending) -> None:
    plan = Plan(1000, spending)
    spent = [plan.spent(n) for n in plan.sizes]
    assert spent == sorted(spent)
    assert spent[-1] == 0.025
    assert plan.spent(700) < 0.025
    assert plan.spent(700, final=True) == 0.025


def test_linear_spends_half_at_half_and_keep_power_as_a_normal_mean_would() -> None:
    assert Plan(1000).spent(500) == 0.0125
    assert Plan(1000, "keep_power").spent(250) == pytest.approx(4.43e-5, rel=1e-2)


def test_alpha_spending_is_refused_for_a_stream_and_betting_is_not() -> None:
    with pytest.raises(InvalidInput, match="no known end: give a maximum, or use betting"):
        Plan(None)
    found, _ = run(Plan(None, "betting"), mean_above(0.5), outcomes(2000, 0.6))
    assert found.decision is True
    assert found.n < 1000


# --- Decisions ----------------------------------------------------------------------------------

CASES: list[tuple[Claim, Floats, bool, str]] = [
    (mean_above(0.8), outcomes(1000, 0.9), True, "binomial"),
    (mean_above(0.8), outcomes(1000, 0.7), False, "binomial"),
    (mean_below(0.8), outcomes(1000, 0.7), True, "binomial"),
    (better_than_baseline(), flips(1000, 0.25, 0.1), True, "paired"),
    (better_than_baseline(), flips(1000, 0.1, 0.25), False, "paired"),
    (not_worse_than_baseline(0.1), flips(1000, 0.15, 0.15), True, "tango"),
    (not_worse_than_baseline(0.02), flips(1000, 0.05, 0.25), False, "tango"),
    (mean_above(0.5), np.random.default_rng(0).beta(4, 2, 1000), True, "t"),
    (mean_below(0.2), np.random.default_rng(0).beta(0.1, 0.9, 1000), True, "t"),
    (mean_below(0.15), np.random.default_rng(0).beta(0.1, 0.9, 1000), True, "betting"),
]


@pytest.mark.parametrize(("claim", "values", "truth", "test"), CASES)
@pytest.mark.parametrize("spending", ["linear", "keep_power"])
def test_a_clear_claim_is_settled_before_the_set_is_used_up(
    claim: Claim, values: Floats, truth: bool, test: str, spending: Spending
) -> None:
    found, after = run(Plan(1000, spending), claim, values)
    assert (found.decision, found.test) == (truth, test)
    assert found.n < 1000
    assert not found.final
    assert (after.decision, after.n, after.looks_used) == (truth, found.n, found.number)
    for interval in (found.interval, after.interval):
        assert interval is not None
        above = interval.low > claim.bound
        assert above == (truth == claim.above)
        assert above or interval.high < claim.bound


def test_keep_power_looks_longer_and_concludes_closer() -> None:
    values = flips(1000, 0.22, 0.1)
    linear, _ = run(Plan(1000), better_than_baseline(), values)
    kept, _ = run(Plan(1000, "keep_power"), better_than_baseline(), values)
    assert linear.n < kept.n


def test_a_claim_that_stays_open_is_open_at_the_end() -> None:
    found, after = run(Plan(400), mean_above(0.5), np.tile([0.0, 1.0], 200))
    assert found.decision is after.decision is None
    assert found.final
    assert found.spent == 0.025
    assert after.interval is not None
    assert after.interval.low < 0.5 < after.interval.high
    assert after.estimate == pytest.approx(0.5, abs=1e-6)


def test_the_plain_mean_is_too_large_and_the_median_less_so() -> None:
    values = [flips(1000, 0.175, 0.125, seed) for seed in range(60)]
    ended = [run(Plan(1000), better_than_baseline(), each)[1] for each in values]
    plain = np.mean([each.mean for each in ended])
    median = np.mean([each.estimate for each in ended if each.estimate is not None])
    assert plain > median > 0.04


def test_a_look_needs_nothing_but_its_prefix() -> None:
    values = outcomes(400, 0.56)
    found, _ = run(Plan(400), mean_above(0.5), values)
    again = look(Plan(400), mean_above(0.5), Prefix.of(values[: found.n]))
    assert again == found


def test_what_was_decided_stays_decided_where_more_was_run() -> None:
    values = outcomes(1000, 0.7)
    found, _ = run(Plan(1000), mean_above(0.6), values)
    values[found.n :] = 0.0
    assert look(Plan(1000), mean_above(0.6), Prefix.of(values)).decision is True


def test_the_last_look_of_a_set_that_shrank_spends_the_rest() -> None:
    values = np.tile([1.0, 1.0, 1.0, 0.0, 0.0], 20)
    early = look(Plan(400), mean_above(0.5), Prefix.of(values))
    assert early.decision is None
    assert early.spent == 0.00625
    last = look(Plan(400), mean_above(0.5), Prefix.of(values), final=True)
    assert last.spent == 0.025
    assert last.interval is not None
    assert early.interval is not None
    assert last.interval.low > early.interval.low


# --- Errors -------------------------------------------------------------------------------------


def test_an_error_is_bounded_both_ways_and_only_what_both_say_is_decided() -> None:
    lower = outcomes(200, 0.9)
    upper = lower.copy()
    lower[:3], upper[:3] = 0.0, 1.0
    settled = look(Plan(200), mean_above(0.7), Prefix.of(lower, upper))
    assert settled.decision is True
    lower[:60], upper[:60] = 0.0, 1.0
    doubtful = look(Plan(200), mean_above(0.7), Prefix.of(lower, upper))
    assert doubtful.decision is None
    assert doubtful.interval is not None
    assert settled.interval is not None
    assert doubtful.interval.low < settled.interval.low
    assert look(Plan(200), mean_above(0.7), Prefix.of(upper)).decision is True


def test_errors_of_pairs_are_bounded_by_what_the_baseline_allows() -> None:
    baseline = np.tile([1.0, 0.0], 50)
    lower, upper = baseline.copy(), baseline.copy()
    lower[:4], upper[:4] = 0.0, 1.0
    prefix = Prefix.of(lower, upper, baseline=baseline)
    assert prefix.lower[:4].tolist() == [-1, 0, -1, 0]
    assert prefix.upper[:4].tolist() == [0, 1, 0, 1]
    assert not prefix.lower[4:].any()


def test_an_upper_value_below_its_lower_is_refused() -> None:
    with pytest.raises(InvalidInput, match="none below it"):
        Prefix.of([1.0, 0.5], [1.0, 0.4])


# --- Units --------------------------------------------------------------------------------------


def test_clusters_are_tested_by_t_from_ten_on() -> None:
    values = np.repeat(outcomes(200, 0.8, seed=1), 4)
    units = np.repeat(np.arange(200), 4)
    plan = Plan(100)
    few = look(plan, mean_above(0.5), Prefix.of(values[:20], units=units[:20]))
    assert (few.n, few.decision, few.interval, few.needed) == (5, None, None, 10)
    enough = look(plan, mean_above(0.5), Prefix.of(values[:160], units=units[:160]))
    assert (enough.n, enough.test, enough.needed) == (40, "t", None)
    assert enough.decision is True


def test_near_an_end_looks_wait_for_more_clusters_and_too_few_say_nothing_at_the_end() -> None:
    def clusters(count: int) -> Prefix:
        return Prefix.of(np.ones(4 * count), units=np.repeat(np.arange(count), 4))

    claim = mean_above(0.95)
    waiting = look(Plan(400), claim, clusters(180))
    assert (waiting.decision, waiting.needed) == (None, 181)
    assert look(Plan(400), claim, clusters(200)).decision is True
    # A set between the two numbers has one look, at its end.
    assert look(Plan(175), claim, clusters(170)).needed == 175
    assert look(Plan(175), claim, clusters(175)).decision is True
    few = conclude(Plan(100), claim, clusters(100))
    assert (few.decision, few.interval) == (None, None)
    assert look(Plan(100), claim, clusters(100)).needed == 171
    # The end of a set that shrank is looked at like any other.
    assert look(Plan(400), claim, clusters(172), final=True).decision is True
    assert look(Plan(400), claim, clusters(150), final=True).needed == 171


def test_a_small_margin_takes_as_many_units_as_losses_would_show_in() -> None:
    def unchanged(count: int) -> Prefix:
        return Prefix.of(np.zeros(2 * count), units=np.repeat(np.arange(count), 2))

    claim = not_worse_than_baseline(0.02)
    assert look(Plan(1000), claim, unchanged(450)).needed == 500
    assert look(Plan(1000), claim, unchanged(500)).needed is None
    assert look(Plan(300), claim, unchanged(300)).needed is None
    assert look(Plan(150), claim, unchanged(150)).needed == 200


def test_copies_of_a_sample_are_no_evidence_of_their_own() -> None:
    alone = outcomes(60, 0.62, seed=4)
    plan = Plan(60)
    copied = Prefix.of(np.repeat(alone, 10), units=np.repeat(np.arange(60), 10))
    as_if = Prefix.of(np.repeat(alone, 10))
    assert look(plan, mean_above(0.5), copied).decision is None
    assert look(Plan(600), mean_above(0.5), as_if).decision is True


def test_clusters_that_are_all_alike_still_have_an_interval() -> None:
    units = np.repeat(np.arange(50), 4)
    found = look(Plan(50), mean_above(0.8), Prefix.of(np.ones(200), units=units))
    assert found.decision is True
    assert found.interval is not None
    assert 0.8 < found.interval.low < 0.95
    none_differ = look(
        Plan(50), not_worse_than_baseline(0.2), Prefix.of(np.zeros(200), units=units)
    )
    assert none_differ.decision is True


@pytest.mark.parametrize("seed", range(3))
def test_a_stop_of_clustered_pairs_has_an_interval_and_a_median(seed: int) -> None:
    units = np.repeat(np.arange(100), 4)
    prefix = Prefix.of(flips(400, 0.15, 0.1, seed), units=units)
    for claim in (not_worse_than_baseline(0.05), better_than_baseline()):
        after = conclude(Plan(100), claim, prefix)
        assert after.test == "t"
        assert after.interval is not None
        assert after.estimate is not None
        assert after.interval.low < after.estimate < after.interval.high
        if after.looks_used == 20:
            assert abs(after.mean - after.estimate) < 0.03


def test_a_prefix_larger_than_the_plan_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the prefix has 12 units, and the plan 10"):
        look(Plan(10), mean_above(0.5), Prefix.of(np.ones(12)))


# --- Precision ----------------------------------------------------------------------------------


def test_precision_stops_at_the_first_look_with_a_narrow_wilson_interval() -> None:
    values = outcomes(2000, 0.9)
    found, after = run(Plan(2000), within(0.02), values)
    assert found.decision is True
    interval = wilson(found.mean, found.n)
    assert after.interval == interval
    assert after.method == "fixed"
    assert interval.high - interval.low <= 0.04
    before = wilson(float(values[: found.n - 100].mean()), found.n - 100)
    assert before.high - before.low > 0.04
    assert run(Plan(100), within(0.02), values)[0].decision is None


# --- Invariants ---------------------------------------------------------------------------------

paths = st.lists(st.sampled_from([0.0, 1.0]), min_size=5, max_size=60)


@settings(max_examples=60, deadline=None)
@given(paths, st.floats(0.05, 0.95), st.sampled_from(["linear", "keep_power"]))
def test_turning_every_answer_around_turns_the_decision_around(
    values: list[float], bound: float, spending: Spending
) -> None:
    plan = Plan(60, spending)
    one = look(plan, mean_above(bound), Prefix.of(values))
    other = look(plan, mean_above(1 - bound), Prefix.of(1 - np.array(values)))
    assert one.decision == (None if other.decision is None else not other.decision)


@settings(max_examples=60, deadline=None)
@given(paths, st.floats(0.05, 0.95))
def test_the_interval_after_the_stop_is_on_the_side_that_was_decided_for(
    values: list[float], bound: float
) -> None:
    plan = Plan(60)
    found, after = run(plan, mean_above(bound), np.array(values))
    assert after.interval is not None
    low, high = after.interval.low, after.interval.high
    assert (after.estimate is None) == (after.method == "repeated")
    assert low <= (after.mean if after.estimate is None else after.estimate) <= high
    if found.decision is None:
        assert low <= bound <= high
    else:
        assert low >= bound if found.decision else high <= bound


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=5, max_size=60))
def test_swapping_the_two_models_turns_pairs_around(values: list[float]) -> None:
    plan, differences = Plan(60), np.array(values)
    one = look(plan, better_than_baseline(), Prefix.of(differences))
    other = look(plan, better_than_baseline(), Prefix.of(-differences))
    assert one.decision == (None if other.decision is None else not other.decision)
    assert one.interval is not None
    assert other.interval is not None
    turned = Interval(-other.interval.high, -other.interval.low)
    assert (one.interval.low, one.interval.high) == pytest.approx(
        (turned.low, turned.high), abs=1e-6
    )


@pytest.mark.parametrize(
    ("claim", "repeats"),
    [
        (better_than_baseline(), 1),
        (better_than_baseline(), 2),
        (not_worse_than_baseline(0.001), 1),  # with repeats it takes more than 300 samples
    ],
)
def test_runs_without_any_difference_have_an_interval_as_narrow_as_the_ordinary_one(
    claim: Claim, repeats: int
) -> None:
    """As of a model that has not changed: the data say nothing of how pairs vary."""
    prefix = Prefix.of(np.zeros(300 * repeats), units=np.repeat(np.arange(300), repeats))
    found = conclude(Plan(300), claim, prefix)
    assert found.decision is None
    assert found.interval is not None
    assert -0.016 < found.interval.low < -0.012 < 0.012 < found.interval.high < 0.016
