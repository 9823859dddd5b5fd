"""Verdicts on a curve: false alarms under repeated looking, power, plateaus, advice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from heldout.stats.intervals import Floats
from heldout.stats.sequential import (
    HALF_SPENT,
    Verdict,
    VerdictKind,
    advise,
    analyze_next,
    critical_value,
    gain_interval,
    monitor,
    spending_share,
)
from tests.slow import figure


def judge(rewards: Any, clusters: Any = None, **settings: Any) -> Verdict:
    """At the last look."""
    return monitor(rewards, clusters, **settings)[-1]


def steady(
    levels: Sequence[float], n: int, rng: np.random.Generator, *, shared: float = 0.9
) -> Floats:
    """Rewards of samples that flip at random each look around a difficulty of their own."""
    own = rng.standard_normal(n)
    cuts = np.array([NormalDist().inv_cdf(level) for level in levels])[:, None]
    fresh = rng.standard_normal((len(levels), n))
    return (math.sqrt(shared) * own + math.sqrt(1 - shared) * fresh < cuts).astype(np.float64)


def drifting(p: float, looks: int, n: int, rng: np.random.Generator) -> Floats:
    """Each look a tenth of the samples is drawn anew, and stays so."""
    state, rows = rng.random(n) < p, []
    for _ in range(looks):
        state = np.where(rng.random(n) < 0.1, rng.random(n) < p, state)
        rows.append(state)
    return np.array(rows, dtype=np.float64)


def kinds(rows: Floats, **options: object) -> list[VerdictKind]:
    return [verdict.kind for verdict in monitor(rows, **{"effect": 0.05, **options})]  # type: ignore[arg-type]


def alarmed(said: Sequence[VerdictKind]) -> bool:
    return "improving" in said or "regressing" in said


# --- False alarms -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("n", "p"), [(20, 0.5), (100, 0.05), (100, 0.9), (400, 0.5)])
def test_a_flat_curve_of_50_looks_has_at_most_5_percent_false_alarms(n: int, p: float) -> None:
    rng = np.random.default_rng([n, round(100 * p)])
    curves = [steady([p] * 51, n, rng, shared=s) for s in (0.9, 0.6, 0.0) for _ in range(7)]
    curves += [drifting(p, 51, n, rng) for _ in range(19)]
    false = sum(alarmed(kinds(rows)) for rows in curves)
    assert figure(false / len(curves)) <= 0.05


@pytest.mark.slow
def test_the_same_flat_curves_fool_an_uncorrected_comparison_with_the_first() -> None:
    rng = np.random.default_rng(0)
    fooled = 0
    for _ in range(60):
        rows = drifting(0.5, 51, 100, rng)
        fooled += stats.ttest_rel(rows[10:].T, rows[:1].T).pvalue.min() < 0.05
    assert figure(fooled / 60) > 0.2


@pytest.mark.slow
def test_few_losing_much_against_many_winning_little_does_not_fool_small_samples() -> None:
    # The mean stays; 1 sample in 20 falls from .95 to 0. At n = 20, 36% of draws have none of it.
    rng = np.random.default_rng(2)
    false = 0
    for _ in range(100):
        after = np.where(rng.random(20) < 0.05, 0.0, 1.0)
        rows = np.vstack([np.full((3, 20), 0.95), np.tile(after, (12, 1))])
        false += alarmed(kinds(rows, bounds=(0.0, 1.0)))
    assert figure(false / 100) <= 0.05


@pytest.mark.slow
def test_copies_in_clusters_do_not_raise_false_alarms() -> None:
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(40), 10).tolist()
    curves = [np.repeat(drifting(0.5, 31, 40, rng), 10, axis=1) for _ in range(20)]
    with_clusters = sum(alarmed([v.kind for v in monitor(c, groups, effect=0.05)]) for c in curves)
    without = sum(alarmed(kinds(c)) for c in curves)
    assert figure(with_clusters / 20) <= 0.05
    assert figure(without / 20) > 0.3


@pytest.mark.slow
def test_errors_at_random_do_not_raise_false_alarms() -> None:
    rng = np.random.default_rng(4)
    false = 0
    for _ in range(40):
        rows = steady([0.5] * 41, 100, rng)
        rows[rng.random(rows.shape) < 0.02] = np.nan
        false += alarmed(kinds(rows))
    assert figure(false / 40) <= 0.05


# --- Power --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gain", "expected"), [(0.1, "improving"), (-0.1, "regressing")])
def test_a_trend_of_10_points_over_20_looks_is_found_at_200_samples(
    gain: float, expected: VerdictKind
) -> None:
    rng = np.random.default_rng(5)
    levels = (0.5 + np.linspace(0, gain, 21)).tolist()
    said = [kinds(steady(levels, 200, rng)) for _ in range(30)]
    assert sum(expected in row for row in said) >= 27


def test_a_collapse_is_found_within_the_next_looks_though_the_start_was_worse_still() -> None:
    rng = np.random.default_rng(6)
    levels = [*np.linspace(0.2, 0.8, 21), 0.4, 0.4]
    found = monitor(steady(levels, 200, rng), effect=0.05)[-1]
    assert found.kind == "regressing"
    assert found.since is not None
    assert found.since >= 13


def rise_then(levels: Sequence[float], n: int, curves: int, seed: int) -> list[list[VerdictKind]]:
    """Verdicts from the peak on, of curves that rise by 20 points over 12 evals first."""
    rng = np.random.default_rng(seed)
    rise = np.linspace(0.4, 0.6, 13).tolist()
    rows = [steady([*rise, *levels], n, rng) for _ in range(curves)]
    return [kinds(row, bounds=(0.0, 1.0))[12:] for row in rows]


def test_a_curve_that_rose_and_has_fallen_by_13_points_is_regressing() -> None:
    """Over six evals, and then for two more."""
    fall = [*(0.6 - 0.13 * np.arange(1, 7) / 6), 0.47, 0.47]
    said = rise_then(fall, 200, 20, seed=7)
    assert sum(row[0] == "improving" for row in said) >= 18
    assert not any("improving" in row[6:] for row in said)
    assert sum(row[-1] == "regressing" for row in said) >= 18


def test_a_fall_by_13_points_at_once_ends_improving_at_once_and_is_regressing_soon() -> None:
    said = rise_then([0.47] * 5, 200, 20, seed=8)
    assert sum(row[0] == "improving" for row in said) >= 18
    assert not any("improving" in row[1:] or "plateau" in row[1:] for row in said)
    assert sum(row[2] == "regressing" for row in said) >= 18


def test_a_rise_that_is_over_is_not_improving_for_ever() -> None:
    said = rise_then([0.6] * 20, 200, 20, seed=9)
    assert sum(row[-1] == "improving" for row in said) <= 4
    assert not any("regressing" in row for row in said)


@pytest.mark.parametrize("n", [64, 200])
def test_a_curve_that_has_stopped_rising_is_seldom_improving_though_it_has_improved(n: int) -> None:
    rng = np.random.default_rng(1)
    levels = [*np.linspace(0.2, 0.7, 8), *[0.7] * 3]  # evals at steps 0, 40 … 400: flat since 280
    found = [judge(steady(levels, n, rng), effect=0.05, bounds=(0, 1)) for _ in range(40)]
    assert sum(verdict.kind == "improving" for verdict in found) <= 8
    stopped = next(v for v in found if v.decided and v.decided.reference == "recent")
    assert (stopped.kind, stopped.decided.old, stopped.decided.new) == (
        "inconclusive",
        (7, 8),
        (9, 10),
    )
    starts = [v.start for v in found if v.start is not None and v.start.gain is not None]
    assert sum(start.gain.sign > 0 for start in starts if start.gain) >= 39
    assert (starts[0].old, starts[0].new) == ((0, 4), (6, 10))


def test_a_ceiling_is_not_improving() -> None:
    row = np.random.default_rng(2).random(64) < 0.5
    rows = np.vstack([row, row | (np.arange(64) < 32), *np.ones((9, 64))]).astype(float)
    said = kinds(rows, bounds=(0, 1))
    assert said[2] == "improving"  # it has just got there
    assert "improving" not in said[5:]


def test_a_rise_that_the_latest_point_contradicts_is_inconclusive_and_names_both() -> None:
    rng = np.random.default_rng(10)
    rows = steady([*np.linspace(0.4, 0.6, 13), 0.47], 200, rng)
    found = monitor(rows, effect=0.05, bounds=(0, 1))[-1]
    assert found.kind == "inconclusive"
    assert found.decided is not None
    assert found.against is not None
    assert found.decided.gain is not None
    assert found.decided.gain.sign > 0
    assert found.against.new == (13, 13)
    assert found.against.gain is not None
    assert found.against.gain.estimate == pytest.approx(-0.13, abs=0.06)


# --- Plateaus -----------------------------------------------------------------------------------


def test_a_long_flat_stretch_with_many_samples_is_a_plateau_though_the_curve_rose_before() -> None:
    rng = np.random.default_rng(8)
    levels = [*np.linspace(0.3, 0.6, 10), *[0.6] * 15]
    rewards = steady(levels, 1500, rng)
    assert judge(rewards, effect=0.05).kind != "plateau"  # nobody knows what a reward can be
    found = judge(rewards, effect=0.05, bounds=(0, 1))
    assert found.kind == "plateau"
    assert found.decided is not None
    assert found.decided.reference == "previous"
    assert found.decided.gain is not None
    assert found.decided.gain.interval.high < 0.05


def test_a_climb_by_the_effect_is_not_called_a_plateau() -> None:
    rng = np.random.default_rng(9)
    levels = (0.3 + 0.05 / 5 * np.arange(41)).tolist()
    wrong = sum("plateau" in kinds(steady(levels, 1000, rng)) for _ in range(30))
    assert wrong / 30 <= 0.05


def test_few_samples_that_show_no_gain_are_no_plateau() -> None:
    said = kinds(steady([0.5] * 30, 20, np.random.default_rng(10)))
    assert set(said) == {"inconclusive"}


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_rewards_that_are_all_zero_say_nothing_at_few_samples(
    bounds: tuple[float, float] | None,
) -> None:
    assert set(kinds(np.zeros((20, 20)), bounds=bounds)) == {"inconclusive"}


# --- What a verdict says ------------------------------------------------------------------------


def test_the_first_point_is_inconclusive_and_has_spent_nothing() -> None:
    found = judge([[1.0, 0.0, 1.0]], effect=0.1)
    assert (found.kind, found.decided, found.alpha_spent) == ("inconclusive", None, 0.0)
    assert found.comparisons == ()


def test_a_verdict_names_blocks_and_samples() -> None:
    rows: list[list[float | None]] = [[0.0, 1.0, 0.0, 1.0]] * 14
    rows[13] = rows[12] = [None, 1.0, 0.0, 1.0]
    previous, trend, peak = judge(rows, effect=0.1, window=4).comparisons  # type: ignore[arg-type]
    assert (previous.old, previous.new) == ((10, 11), (12, 13))
    assert (trend.old, trend.new) == ((2, 5), (10, 13))
    assert (peak.old, peak.new) == ((12, 12), (13, 13))
    assert (previous.n, trend.n) == (3, 4)
    assert previous.gain is not None
    assert previous.gain.estimate == 0.0
    with pytest.raises(FrozenInstanceError):
        previous.n = 4  # type: ignore[misc]


def test_a_short_curve_has_short_windows() -> None:
    rows = steady(np.linspace(0.3, 0.7, 7).tolist(), 100, np.random.default_rng(0))
    blocks = [
        (previous.old, previous.new)
        for verdict in monitor(rows, effect=0.1)
        for previous in verdict.comparisons[:1]
    ]
    assert blocks == [
        ((0, 0), (1, 1)),
        ((1, 1), (2, 2)),
        ((0, 1), (2, 3)),
        ((1, 2), (3, 4)),
        ((0, 2), (3, 5)),
        ((1, 3), (4, 6)),
    ]


@pytest.mark.slow
def test_the_minimum_detectable_gain_is_found_with_80_percent_power() -> None:
    rng = np.random.default_rng(11)
    alpha, sd, n = 0.01, 0.3, 200
    flat = [gain_interval(rng.normal(0, sd, n), alpha=alpha, scale=1.0) for _ in range(300)]
    sizes = [gain.minimum_detectable for gain in flat if gain is not None]
    size = float(np.mean([size for size in sizes if size is not None]))
    gains = [gain_interval(rng.normal(size, sd, n), alpha=alpha, scale=1.0) for _ in range(600)]
    found = sum(gain is not None and gain.interval.low > 0 for gain in gains)
    assert 0.75 < figure(found / 600) < 0.86


@pytest.mark.slow
@pytest.mark.parametrize(("n", "flips"), [(100, 0), (100, 4), (400, 10)])
def test_a_gain_of_rates_that_is_called_detectable_is_found_with_80_percent_power(
    n: int, flips: int
) -> None:
    rng, alpha, both = np.random.default_rng(12), 0.001, flips / 2 / n
    measured = np.repeat([1.0, -1.0, 0.0], [flips // 2, flips // 2, n - flips])
    gain = gain_interval(measured, alpha=alpha, scale=1.0)
    assert gain is not None
    assert gain.minimum_detectable is not None
    shares = [both + gain.minimum_detectable, both, 1 - 2 * both - gain.minimum_detectable]
    draws = rng.choice([1.0, -1.0, 0.0], p=shares, size=(600, n))
    gains = [gain_interval(row, alpha=alpha, scale=1.0) for row in draws]
    found = sum(gain is not None and gain.interval.low > 0 for gain in gains)
    assert 0.75 < figure(found / 600) < 0.9


@pytest.mark.slow
def test_the_guard_against_rare_falls_costs_power_only_once() -> None:
    """Graded rewards that hardly vary: the estimate varies as little, whatever the guard adds."""
    rng = np.random.default_rng(13)
    differences = rng.normal(0, 0.03, 16)
    gain = gain_interval(differences - differences.mean(), alpha=0.001, scale=1.0)
    assert gain is not None
    assert gain.minimum_detectable is not None
    draws = rng.normal(gain.minimum_detectable, 0.03, size=(300, 16))
    gains = [gain_interval(row, alpha=0.001, scale=1.0) for row in draws]
    found = sum(gain is not None and gain.interval.low > 0 for gain in gains)
    assert 0.7 < figure(found / 300) < 0.95


# --- The parts ----------------------------------------------------------------------------------


def test_the_interval_is_scipys_paired_t_once_the_floor_is_small() -> None:
    rng = np.random.default_rng(12)
    a, b = rng.normal(size=5000), rng.normal(0.1, size=5000)
    gain = gain_interval(b - a, alpha=0.01, scale=8)
    expected = stats.ttest_rel(b, a).confidence_interval(0.99)
    assert gain is not None
    assert gain.interval.low == pytest.approx(expected.low, abs=0.002)
    assert gain.interval.high == pytest.approx(expected.high, abs=0.002)
    floor = 2 * (8 / 5000) ** 2
    assert math.sqrt(gain.stderr**2 - floor) == pytest.approx(stats.sem(b - a))


def test_the_floor_is_the_spread_of_two_more_samples() -> None:
    gain = gain_interval(np.zeros(50), alpha=0.05, scale=1.0)
    assert gain is not None
    assert gain.stderr == pytest.approx(math.sqrt(2) / 50)


@given(st.integers(1, 2000))
def test_shares_of_alpha_sum_to_what_is_said_to_be_spent(analyses: int) -> None:
    total = sum(spending_share(t) for t in range(1, analyses + 1))
    assert total == pytest.approx(analyses / (analyses + HALF_SPENT))


def test_the_spent_alpha_of_a_verdict_is_the_sum_of_the_shares_so_far() -> None:
    found = monitor(steady([0.5] * 15, 30, np.random.default_rng(0)), effect=0.1)
    shares = [c.alpha_share for verdict in found for c in verdict.comparisons]
    assert found[-1].alpha_spent == pytest.approx(sum(shares))
    assert found[-1].alpha_spent < 0.05


@pytest.mark.parametrize("correlation", [0.3, 0.8, 0.96])
@pytest.mark.parametrize("alpha", [0.01, 0.0005])
def test_the_critical_value_is_scipys_bivariate_normal_one(
    correlation: float, alpha: float
) -> None:
    previous = 2.5
    c = critical_value(alpha, correlation=correlation, previous=previous)
    joint = stats.multivariate_normal(cov=[[1, correlation], [correlation, 1]])

    def beyond(value: float) -> float:
        inside = joint.cdf([value, previous], lower_limit=[-value, -previous])
        return float(2 * stats.norm.cdf(previous) - 1 - inside)

    assert beyond(c) <= alpha * 1.001 + 1e-7
    assert beyond(c - 0.011) > alpha
    assert c <= critical_value(alpha)


@given(st.integers(0, 2**32 - 1), st.integers(2, 14), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_a_look_is_judged_by_what_was_seen_up_to_it(seed: int, looks: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2, (looks, n)) * np.linspace(1, 3, looks)[:, None]
    rows[rng.random(rows.shape) < 0.1] = np.nan
    options = {"effect": 0.1, "window": 4}
    found = monitor(rows, **options)  # type: ignore[arg-type]
    for look in range(looks):
        assert found[look] == judge(rows[: look + 1], **options)  # type: ignore[arg-type]


def test_a_row_that_came_late_is_compared_and_costs_no_look() -> None:
    rows = steady(np.linspace(0.3, 0.7, 14).tolist(), 200, np.random.default_rng(4))
    before = None
    for count in range(1, 13):
        seen = np.delete(rows, 5, axis=0)[:count]
        before = analyze_next(seen, before, effect=0.1)
    late = analyze_next(rows, before, effect=0.1)
    whole = judge(rows, effect=0.1)
    pairs = zip(late.verdict.comparisons, whole.comparisons, strict=True)
    for here, there in pairs:
        assert here.gain is not None
        assert there.gain is not None
        assert here.gain.estimate == there.gain.estimate
    assert late.counts == {"previous": 12, "trend": 11, "peak": 10, "start": 12}
    assert late.verdict.alpha_spent == judge(rows[:13], effect=0.1).alpha_spent


def test_what_a_look_shares_with_the_one_before_is_paid_once() -> None:
    found = monitor(steady([0.5] * 30, 200, np.random.default_rng(4)), effect=0.1)
    assert all(v.comparisons[0].alpha > v.comparisons[0].alpha_share for v in found[20:])
    assert all(v.comparisons[1].alpha > 1.2 * v.comparisons[1].alpha_share for v in found[20:])


def test_samples_may_be_added_between_looks() -> None:
    rows = steady([0.4, 0.5, 0.6], 60, np.random.default_rng(4))
    before = analyze_next(rows[:2, :40], analyze_next(rows[:1, :40], None, effect=0.1), effect=0.1)
    rows[:2, 40:] = np.nan
    assert analyze_next(rows, before, effect=0.1).verdict == judge(rows, effect=0.1)


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 50), st.floats(-5, 5))
@settings(max_examples=40, deadline=None)
def test_verdicts_do_not_depend_on_the_scale_of_rewards_and_turn_with_their_sign(
    seed: int, factor: float, shift: float
) -> None:
    rng = np.random.default_rng(seed)
    rows = steady(np.linspace(0.2, 0.8, 12).tolist(), 40, rng)
    same = monitor(rows * factor + shift, effect=1e-9)
    plain = [v.kind for v in monitor(rows, effect=1e-9)]
    assert [v.kind for v in same] == plain
    turned = [v.kind for v in monitor(-rows, effect=1e-9)]
    # A rise that has stopped is not improving; a fall that has is regressing.
    pairs = {("improving", "regressing"), ("regressing", "improving")}
    pairs |= {("inconclusive", kind) for kind in ("inconclusive", "regressing")}
    pairs |= {(kind, "inconclusive") for kind in ("inconclusive", "regressing")}
    assert set(zip(plain, turned, strict=True)) <= pairs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"effect": 0.0}, "effect must be more than 0"),
        ({"effect": 0.1, "alpha": 1.0}, "alpha"),
        ({"effect": 0.1, "window": 1}, "window"),
        ({"effect": 0.1, "bounds": (0.0, 0.5)}, "outside the bounds"),
        ({"effect": 0.1, "clusters": ["a"]}, "clusters has 1 ids for 3 values"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        monitor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("rewards", [[], [1.0], [[math.inf, 1.0]]])
def test_rewards_that_are_no_finite_table_are_refused(rewards: list[float]) -> None:
    with pytest.raises(ValueError):
        judge(rewards, effect=0.1)


# --- Advice -------------------------------------------------------------------------------------


def said(*row: VerdictKind) -> list[Verdict]:
    return [Verdict(kind, index, effect=0.05, alpha_spent=0.0) for index, kind in enumerate(row)]


@pytest.mark.parametrize(
    ("row", "stop", "in_a_row"),
    [
        (("inconclusive",) * 50, False, 50),
        (("improving",) * 5, False, 5),
        (("improving", "regressing"), True, 1),
        (("plateau", "plateau"), False, 2),
        (("plateau", "plateau", "plateau"), True, 3),
        (("plateau", "plateau", "inconclusive", "plateau"), False, 1),
    ],
)
def test_advice_is_to_stop_on_a_fall_or_a_lasting_plateau_only(
    row: tuple[VerdictKind, ...], stop: bool, in_a_row: int
) -> None:
    advice = advise(said(*row))
    assert (advice.stop, advice.in_a_row, advice.because) == (stop, in_a_row, row[-1])


def test_advice_can_be_told_never_to_stop_for_a_kind() -> None:
    assert not advise(said("regressing"), regressing=None).stop
    assert not advise(said("plateau", "plateau", "plateau"), plateau=None).stop
    with pytest.raises(ValueError, match="at least one verdict"):
        advise([])
