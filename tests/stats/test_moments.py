"""Means with error bars, against brute force, scipy and simulation."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from heldout.stats import Moments, t_quantile
from heldout.stats.moments import moments_by_group

finite = st.floats(-1e3, 1e3).map(lambda x: round(x, 6))


def moments(values: list[float], clusters: list[int] | None = None) -> Moments:
    return Moments.of(np.array(values, dtype=np.float64), clusters)


@given(st.lists(finite, min_size=2, max_size=50))
def test_without_repeats_the_standard_error_is_the_ordinary_one(values: list[float]) -> None:
    found = moments(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-7)
    assert found.stderr == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(values)), abs=1e-7)


@given(st.lists(st.lists(finite, min_size=1, max_size=4), min_size=2, max_size=12))
def test_with_repeats_the_standard_error_is_clustered(groups: list[list[float]]) -> None:
    values = [v for group in groups for v in group]
    clusters = [i for i, group in enumerate(groups) for _ in group]
    # The jackknife: how far the mean is without each cluster.
    without = [
        np.mean([v for j, group in enumerate(groups) if j != i for v in group])
        for i in range(len(groups))
    ]
    squares = sum((mean - np.mean(values)) ** 2 for mean in without)
    expected = math.sqrt(squares * (len(groups) - 1) / len(groups))
    assert moments(values, clusters).stderr == pytest.approx(expected, abs=1e-4)


@given(st.lists(finite, min_size=2, max_size=8), st.integers(1, 4))
def test_clusters_of_one_size_have_the_usual_error_and_degrees_of_freedom(
    means: list[float], size: int
) -> None:
    values = [mean + i for mean in means for i in range(size)]
    found = moments(values, [i for i in range(len(means)) for _ in range(size)])
    assert found.stderr == pytest.approx(np.std(means, ddof=1) / math.sqrt(len(means)), abs=1e-4)
    assert found.degrees == pytest.approx(len(means) - 1)


def test_one_cluster_that_holds_nearly_all_leaves_hardly_a_degree_of_freedom() -> None:
    values, clusters = np.arange(245.0), np.repeat(np.arange(10), [200, *[5] * 9])
    assert 1 <= Moments.of(values, clusters).degrees < 2
    assert 8 < Moments.of(values, np.repeat(np.arange(10), [28, 24, *[24] * 7, 25])).degrees < 9


def test_copies_of_one_answer_do_not_shrink_the_error_bar() -> None:
    once = moments([0, 1, 1, 0, 1])
    five_times = moments(
        [v for v in [0, 1, 1, 0, 1] for _ in range(5)], [i // 5 for i in range(25)]
    )
    assert five_times.stderr == pytest.approx(once.stderr)


def test_a_large_mean_does_not_drown_a_small_spread() -> None:
    assert moments([1e9 + 1, 1e9 + 2, 1e9 + 3]).std == pytest.approx(1.0)


def test_one_value_has_no_spread_to_speak_of() -> None:
    one = moments([0.3])
    assert (one.mean, one.std, one.stderr) == (0.3, None, None)
    assert moments([]).mean is None


# --- Intervals ---


@pytest.mark.parametrize(("wins", "n"), [(0, 10), (40, 40), (3, 200)])
def test_a_rate_gets_wilsons_interval(wins: int, n: int) -> None:
    interval = moments([1.0] * wins + [0.0] * (n - wins)).interval()
    expected = scipy_stats.binomtest(wins, n).proportion_ci(0.95, method="wilson")
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_values_without_bounds_get_the_t_interval() -> None:
    values = [3.1, 2.7, -4.4, 5.9, 8.8, 1.0]
    expected = scipy_stats.t.interval(0.95, 5, loc=np.mean(values), scale=scipy_stats.sem(values))
    interval = moments(values).interval()
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx(expected)


def test_an_interval_may_reach_beyond_the_values_that_were_seen() -> None:
    interval = moments([4.0] * 5 + [5.0]).interval()
    assert interval is not None
    assert interval.low < 4


def test_values_an_ulp_apart_do_not_divide_by_zero() -> None:
    interval = moments([1.0, sum([0.1] * 10)]).interval()
    assert interval is not None
    assert interval.high == 1.0
    assert interval.low < 0.5


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e160, 1e307])
def test_numbers_whose_squares_overflow_or_vanish_have_their_spread(scale: float) -> None:
    found, expected = moments([scale, 2 * scale, 4 * scale]), moments([1.0, 2.0, 4.0])
    assert expected.std is not None
    assert expected.stderr is not None
    assert found.std == pytest.approx(scale * expected.std)
    assert found.stderr == pytest.approx(scale * expected.stderr)


def test_a_spread_or_interval_larger_than_any_number_is_none() -> None:
    found = moments([1.7e308, -1.7e308])
    assert (found.mean, found.std, found.interval(bounded=False)) == (0.0, None, None)


def test_equal_values_without_bounds_say_nothing_about_their_spread() -> None:
    assert moments([3.0, 3.0, 3.0]).interval() is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_the_interval_of_values_from_0_to_1_stays_there_and_holds_the_mean(
    values: list[float],
) -> None:
    found = moments(values)
    interval = found.interval()
    assert interval is not None
    assert found.mean is not None
    assert 0 <= interval.low <= found.mean + 1e-9
    assert found.mean - 1e-9 <= interval.high <= 1
    assert interval.low < interval.high


def test_t_quantile_refuses_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="degrees"):
        t_quantile(0.975, 0)


# --- Order and rounding -------------------------------------------------------------------------


@given(st.lists(st.floats(-1e300, 1e300), min_size=2, max_size=30), st.randoms())
def test_no_number_depends_on_the_order_of_values(values: list[float], random: Random) -> None:
    clusters = [place // 3 for place in range(len(values))]
    expected = moments(values, clusters)
    assert expected.mean == pytest.approx(float(sum(map(Fraction, values)) / len(values)))
    order = list(range(len(values)))
    random.shuffle(order)
    assert moments([values[i] for i in order], [clusters[i] for i in order]) == expected


@given(st.integers(1, 10_000))
def test_one_success_in_n_is_1_over_n(n: int) -> None:
    assert moments([1.0] + [0.0] * (n - 1)).mean == 1 / n


@given(st.floats(1e-3, 1e3), st.integers(2, 60), st.integers(1, 3))
def test_values_that_are_all_alike_are_their_mean_and_have_no_spread(
    value: float, n: int, repeats: int
) -> None:
    found = moments([value] * n * repeats, [i // repeats for i in range(n * repeats)])
    assert (found.mean, found.std, found.stderr) == (value, 0.0, 0.0)


@given(st.lists(st.lists(finite, min_size=1, max_size=4), min_size=1, max_size=12))
def test_groups_have_the_moments_that_each_has_alone(groups: list[list[float]]) -> None:
    values = np.array([value for group in groups for value in group])
    numbers = np.array([i for i, group in enumerate(groups) for _ in group])
    clusters = np.arange(len(values)) // 2
    found = moments_by_group(values, clusters, numbers, len(groups) + 1)
    expected = [
        Moments.of(values[numbers == i], clusters[numbers == i]) for i in range(len(groups))
    ]
    assert found == [*expected, Moments()]


@pytest.mark.parametrize("repeats", [1, 2])
def test_what_rounding_leaves_is_no_certainty(repeats: int) -> None:
    clusters = np.arange(6).repeat(repeats)
    nearly = np.array([0.0] * 5 + [1 - (0.7 + 0.2 + 0.1)]).repeat(repeats)
    exactly = Moments.of(np.zeros(6 * repeats), clusters).interval()
    found = Moments.of(nearly, clusters).interval()
    assert exactly is not None
    assert found is not None
    assert found.high == pytest.approx(exactly.high, abs=1e-6)
    assert found.high > 0.3


def test_one_float32_above_1_does_not_let_an_interval_out_of_its_bounds() -> None:
    values = np.array([1.0] * 8 + [float(np.float32(1.0000001)), 0.0])
    found = Moments.of(values, np.arange(10)).interval()
    assert found is not None
    assert 0.5 < found.low < 0.9 < found.high < 1.0
