"""Differences of two sets of results, against scipy, brute force, tables and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from heldout.errors import InvalidInput
from heldout.stats import Moments
from heldout.stats.differences import (
    holm,
    mcnemar_exact,
    paired_difference,
    paired_slices,
    tango_interval,
    unpaired_difference,
)
from heldout.stats.intervals import student_p_value, t_quantile
from tests.slow import figure

Z = t_quantile(0.975, math.inf)
score = st.integers(-1000, 1000).map(lambda x: x / 8)
pairs = st.lists(st.tuples(score, score), min_size=2, max_size=30)
binary_pairs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=30)
grouped = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6)), min_size=2, max_size=40
)


def outcomes(wins: int, losses: int, ties: int) -> tuple[list[int], list[int]]:
    """Ties are passed and failed in turn."""
    same = [i % 2 for i in range(ties)]
    return [0] * wins + [1] * losses + same, [1] * wins + [0] * losses + same


# --- Student's t, Holm, McNemar -----------------------------------------------------------------


@pytest.mark.parametrize("degrees", [0.7, 9, 1e4, math.inf])
def test_the_t_distribution_is_scipys_at_any_degrees_of_freedom(degrees: float) -> None:
    law = scipy_stats.norm if degrees == math.inf else scipy_stats.t(degrees)
    for t in (0.0, 0.01, 1.0, -2.5, 8.0):
        assert student_p_value(t, degrees) == pytest.approx(2 * law.sf(abs(t)), rel=1e-7)
    for p in (0.51, 0.8, 0.975, 0.99999):
        assert t_quantile(p, degrees) == pytest.approx(law.ppf(p), rel=1e-7)
    assert student_p_value(1e200, 9) == 0  # too large to square


@pytest.mark.parametrize("n", [1, 2, 41, 300_000])
def test_the_exact_mcnemar_test_is_the_binomial_test(n: int) -> None:
    spread = math.sqrt(n)
    for wins in {0, 1, n // 2, (n + 1) // 2, int(n / 2 - spread / 2), int(n / 2 - 2 * spread), n}:
        if 0 <= wins <= n:
            expected = scipy_stats.binomtest(wins, n, 0.5).pvalue
            assert mcnemar_exact(wins, n - wins) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    assert mcnemar_exact(0, 0) == 1


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.999))
def test_holm_rejects_what_its_step_down_procedure_rejects(ps: list[float], alpha: float) -> None:
    adjusted = holm(ps)
    rejected = set()
    for step, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        if ps[i] * (len(ps) - step) > alpha:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(adjusted) if p <= alpha} == rejected
    assert all(p <= q <= 1 for p, q in zip(ps, adjusted, strict=True))


# --- Paired: t ----------------------------------------------------------------------------------


@given(pairs)
def test_unbounded_values_get_the_paired_t_test(values: list[tuple[float, float]]) -> None:
    a, b = (np.array(side) for side in zip(*values, strict=True))
    found = paired_difference(a, b, bounded=False)
    assert found.difference == pytest.approx((b - a).mean(), abs=1e-9)
    if np.ptp(b - a) == 0:
        assert found.stderr == 0
        assert found.interval is None
        assert found.p_value == (None if (b - a).any() else 1.0)
        return
    expected = scipy_stats.ttest_rel(b, a)
    around = expected.confidence_interval(0.95)
    assert found.test == "t"
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(around.low, rel=1e-7, abs=1e-7)
    assert found.interval.high == pytest.approx(around.high, rel=1e-7, abs=1e-7)


@given(grouped, st.booleans())
def test_clusters_in_any_order_give_the_error_and_degrees_that_moments_gives(
    rows: list[tuple[int, int, int]], bounded: bool
) -> None:
    a, b, clusters = (np.array(column) for column in zip(*rows, strict=True))
    scale = 4 if bounded else 1
    found = paired_difference(a / scale, b / scale, clusters=clusters, bounded=bounded)
    moments = Moments.of((b - a) / scale, clusters)
    assert found.clusters == moments.clusters
    if moments.stderr is None:
        assert found.stderr is None
    else:
        assert found.stderr == pytest.approx(moments.stderr, abs=1e-7)
        if not bounded:
            assert found.evidence.degrees == pytest.approx(moments.degrees)


def test_repeats_of_equal_number_are_as_good_as_their_means() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 12, 4))
    clusters = np.repeat([f"s{i}" for i in range(12)], 4)
    found = paired_difference(a.ravel(), b.ravel(), clusters=clusters)
    expected = scipy_stats.ttest_rel(b.mean(axis=1), a.mean(axis=1))
    assert found.clusters == 12
    assert found.p_value == pytest.approx(expected.pvalue)


def test_cluster_ids_may_be_integers_far_apart() -> None:
    a, b = [0.0, 3.0, 5.0, 1.0], [1.0, 2.0, 9.0, 1.0]
    far = np.array([10**17, -5, 10**17, -5])
    assert paired_difference(a, b, clusters=far) == paired_difference(a, b, clusters=list("xyxy"))


def test_values_that_differ_by_rounding_are_ties() -> None:
    found = paired_difference([0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2])
    assert (found.wins, found.losses, found.ties) == (0, 0, 2)


def test_a_constant_gain_of_unbounded_values_says_nothing_about_spread() -> None:
    a = np.array([0.1, 5.3, 7.7])
    found = paired_difference(a, a + 0.1)
    assert found.stderr == 0
    assert found.interval is None
    assert found.p_value is None


def test_clusters_that_cancel_but_for_rounding_have_no_spread() -> None:
    b = [0.1, 0.2, -0.3, 0.3, -0.1, -0.2]
    found = paired_difference([0.0] * 6, b, clusters=list("xxxyyy"))
    assert found.stderr == 0
    assert found.interval is None
    assert found.p_value is None


def test_very_large_and_very_small_values_neither_overflow_nor_vanish() -> None:
    a, b = np.array([1.0, 2.0, 4.0]), np.array([2.0, 5.0, 5.0])
    expected = scipy_stats.ttest_rel(b, a).pvalue
    for scale in (1e119, 1e-200):
        found = paired_difference(a * scale, b * scale, bounded=False)
        assert found.p_value == pytest.approx(expected)


# --- Paired: score ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 10])
def test_all_ties_leave_an_interval_around_zero(n: int) -> None:
    found = paired_difference([1] * n, [1] * n, pass_threshold=0.5)
    expected = Z**2 / (n + Z**2)  # Tango's bound in closed form, where no pair differs
    assert found.interval is not None
    assert found.interval.high == pytest.approx(expected)
    assert found.interval.low == pytest.approx(-expected)
    assert found.p_value == 1
    assert (found.ties, found.stayed_passing, found.gained) == (n, n, 0)


@pytest.mark.parametrize("n", [2, 5, 6])
def test_all_wins_leave_an_interval_that_ends_at_one(n: int) -> None:
    found = paired_difference([0] * n, [1] * n)
    assert found.interval is not None
    assert found.interval.high == 1
    assert (found.interval.low > 0) == (n >= 6)
    assert found.p_value == pytest.approx(2 * 0.5**n)


def test_clusters_leave_no_exact_test() -> None:
    a, b = outcomes(3, 1, 4)
    assert paired_difference(a, b, clusters=[0, 0, 1, 1, 2, 2, 3, 3]).test == "score"
    assert paired_difference(a, b, clusters=list(range(8))).test == "exact"


def test_of_plain_rates_the_exact_test_decides_and_the_interval_says_the_same() -> None:
    found = paired_difference(*outcomes(12, 4, 84))
    assert found.p_value == pytest.approx(scipy_stats.binomtest(4, 16).pvalue)
    plain = tango_interval(12, 4, 100, Z)
    assert plain.low > 0  # McNemar's score test has p = 0.0455, the exact one 0.0768
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (0.0, plain.high)
    assert found.bound_interval(0.95) == plain
    fallen = paired_difference(*outcomes(4, 12, 84)).interval
    assert fallen is not None
    assert (fallen.low, fallen.high) == (-plain.high, 0.0)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999, 0.9995])
def test_the_interval_leaves_out_0_exactly_where_the_exact_test_rejects(confidence: float) -> None:
    for wins in range(14):
        for losses in range(14):
            found = paired_difference(*outcomes(wins, losses, 20), confidence=confidence)
            assert found.interval is not None
            assert found.p_value is not None
            leaves_out = found.interval.low > 0 or found.interval.high < 0
            assert leaves_out == (found.p_value < 1 - confidence), (wins, losses)
            assert found.interval.low <= found.difference <= found.interval.high


def test_the_repeats_of_one_question_that_all_tie_count_as_one_pair() -> None:
    found = paired_difference([1] * 40, [1] * 40, clusters=np.repeat(np.arange(10), 4))
    t = t_quantile(0.975, 9)
    assert found.interval is not None
    assert found.interval.high == pytest.approx(t**2 / (10 + t**2))


def test_every_pair_given_twice_counts_once() -> None:
    a, b = outcomes(6, 1, 3)
    found = paired_difference(a * 2, b * 2, clusters=list(range(10)) * 2)
    # Ten questions, one of which goes for the mean that their spread is measured from.
    expected = tango_interval(5.4, 0.9, 9, t_quantile(0.975, 9))
    assert found.interval is not None
    assert found.interval.low == pytest.approx(expected.low)
    assert found.interval.high == pytest.approx(expected.high)


@given(grouped, st.booleans())
def test_p_is_below_alpha_exactly_where_the_interval_leaves_out_zero(
    rows: list[tuple[int, int, int]], bounded: bool
) -> None:
    a, b, clusters = (np.array(column) for column in zip(*rows, strict=True))
    found = paired_difference(a / 4, b / 4, clusters=clusters, bounded=bounded)
    if found.interval is not None and found.p_value is not None:
        if abs(found.p_value - 0.05) > 1e-9:
            assert (found.p_value < 0.05) == (not found.interval.low <= 0 <= found.interval.high)
        assert found.interval.low <= found.difference + 1e-9
        assert found.interval.high >= found.difference - 1e-9
    if bounded:
        assert found.interval is not None
        assert -1 <= found.interval.low <= found.interval.high <= 1


@given(grouped)
def test_swapping_the_sides_mirrors_everything(rows: list[tuple[int, int, int]]) -> None:
    a, b, clusters = (np.array(column) for column in zip(*rows, strict=True))
    one = paired_difference(a / 4, b / 4, clusters=clusters, pass_threshold=0.5)
    other = paired_difference(b / 4, a / 4, clusters=clusters, pass_threshold=0.5)
    assert one.interval is not None
    assert other.interval is not None
    assert other.difference == pytest.approx(-one.difference, abs=1e-12)
    assert other.p_value == pytest.approx(one.p_value, rel=1e-6)
    assert other.interval.low == pytest.approx(-one.interval.high, abs=1e-7)
    assert (other.wins, other.losses, other.ties) == (one.losses, one.wins, one.ties)
    assert (other.gained, other.lost) == (one.lost, one.gained)


@given(grouped)
def test_wins_and_flips_are_counted_pair_by_pair(rows: list[tuple[int, int, int]]) -> None:
    a, b = [row[0] / 4 for row in rows], [row[1] / 4 for row in rows]
    found = paired_difference(a, b, pass_threshold=0.5)
    both = list(zip(a, b, strict=True))
    assert found.wins == sum(y > x for x, y in both)
    assert found.losses == sum(y < x for x, y in both)
    assert found.ties == sum(y == x for x, y in both)
    assert found.gained == sum(x < 0.5 <= y for x, y in both)
    assert found.lost == sum(y < 0.5 <= x for x, y in both)
    assert found.stayed_passing == sum(x >= 0.5 and y >= 0.5 for x, y in both)
    assert found.stayed_failing == sum(x < 0.5 and y < 0.5 for x, y in both)


def test_without_a_threshold_nothing_flips() -> None:
    found = paired_difference([0, 1], [1, 1])
    assert (found.gained, found.lost, found.stayed_passing, found.stayed_failing) == (None,) * 4


# --- Coverage -----------------------------------------------------------------------------------


# --- Unpaired -----------------------------------------------------------------------------------


@given(
    st.lists(score, min_size=2, max_size=20, unique=True),
    st.lists(score, min_size=2, max_size=20, unique=True),
)
def test_unbounded_values_get_welchs_test(a: list[float], b: list[float]) -> None:
    found = unpaired_difference(a, b, bounded=False)
    expected = scipy_stats.ttest_ind(b, a, equal_var=False)
    around = expected.confidence_interval(0.95)
    assert found.test == "welch"
    assert found.interval is not None
    assert found.degrees_of_freedom == pytest.approx(expected.df, rel=1e-6)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-5, abs=1e-12)
    assert found.interval.low == pytest.approx(around.low, rel=1e-6, abs=1e-6)
    assert found.interval.high == pytest.approx(around.high, rel=1e-6, abs=1e-6)


def test_welchs_test_of_equal_clusters_is_that_of_their_means() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(9, 3)), rng.normal(1, 2, size=(14, 5))
    shuffled = rng.permutation(a.size)
    found = unpaired_difference(
        a.ravel()[shuffled],
        b.ravel(),
        clusters_a=np.repeat(np.arange(9), 3)[shuffled],
        clusters_b=[f"q{i}" for i in range(14) for _ in range(5)],
    )
    expected = scipy_stats.ttest_ind(b.mean(axis=1), a.mean(axis=1), equal_var=False)
    assert (found.clusters_a, found.clusters_b) == (9, 14)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-6)


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 1), min_size=1, max_size=20),
    st.lists(st.integers(0, 2), min_size=2, max_size=20),
)
def test_the_interval_at_one_less_the_p_value_touches_zero(a: list[int], b: list[int]) -> None:
    halves = np.array(b) / 2
    p_value = unpaired_difference(a, halves).p_value
    assert p_value is not None
    if p_value < 0.999:
        around = unpaired_difference(a, halves, confidence=1 - p_value).interval
        assert around is not None
        assert min(abs(around.low), abs(around.high)) < 1e-3


def test_two_sides_without_any_spread_cannot_be_compared_unless_bounded() -> None:
    unbounded = unpaired_difference([2.0, 2.0], [3.0, 3.0])
    assert (unbounded.interval, unbounded.p_value, unbounded.stderr) == (None, None, 0.0)
    rates = unpaired_difference([0] * 10, [0] * 10)
    assert rates.interval is not None
    assert rates.interval.high > 0.2
    assert (rates.test, rates.p_value) == ("mover", 1)
    one = unpaired_difference([1.0, 5.0], [3.0, 4.0, 9.0], clusters_a=["x", "x"])
    assert (one.stderr, one.interval, one.p_value) == (None, None, None)


# --- Slices -------------------------------------------------------------------------------------


def test_slices_are_compared_each_on_its_own_and_corrected_together() -> None:
    rng = np.random.default_rng(8)
    labels = rng.choice(["easy", "hard", "odd"], size=90)
    clusters = rng.integers(0, 40, size=90)
    a = rng.normal(size=90)
    b = a + rng.normal(0.4, 1, size=90)
    found = paired_slices(a, b, labels=labels, clusters=clusters)
    assert [each.label for each in found] == list(dict.fromkeys(labels.tolist()))
    alone = [
        paired_difference(
            a[labels == each.label],
            b[labels == each.label],
            clusters=clusters[labels == each.label],
        )
        for each in found
    ]
    assert [each.difference for each in found] == alone
    assert [each.adjusted_p_value for each in found] == pytest.approx(
        holm([each.p_value or 0.0 for each in alone])
    )
    each = found[0]
    alone_wider = paired_difference(
        a[labels == each.label],
        b[labels == each.label],
        clusters=clusters[labels == each.label],
        confidence=1 - 0.05 / 3,
    )
    assert each.simultaneous_interval == alone_wider.interval


def test_a_slice_that_cannot_be_tested_counts_among_those_looked_at() -> None:
    a = [2.0, 7.0, 1.0, 2.0, 4.0]
    alike, other = paired_slices(a, [4.0, 9.0, 2.0, 5.0, 5.0], labels=["x", "x", "y", "y", "y"])
    assert alike.difference.p_value is None
    assert alike.adjusted_p_value is None
    assert alike.simultaneous_interval is None
    assert other.difference.p_value is not None
    assert other.adjusted_p_value == pytest.approx(2 * other.difference.p_value)


@pytest.mark.slow
def test_over_many_slices_without_a_difference_one_in_twenty_runs_has_a_false_one() -> None:
    rng = np.random.default_rng(21)
    labels = np.repeat(np.arange(8), 25)
    false, uncovered, uncorrected = 0, 0, 0
    for _ in range(200):
        a, b = rng.normal(size=(2, len(labels)))
        found = paired_slices(a, b, labels=labels)
        false += any(each.adjusted_p_value <= 0.05 for each in found)  # type: ignore[operator]
        uncorrected += any(each.difference.p_value <= 0.05 for each in found)  # type: ignore[operator]
        intervals = [each.simultaneous_interval for each in found]
        uncovered += any(i is None or not i.low <= 0 <= i.high for i in intervals)
    assert figure(false / 200) <= 0.08
    assert figure(uncovered / 200) <= 0.08
    assert figure(uncorrected / 200) >= 0.25


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([], [], "a must be a list of numbers, at least one"),
        ([1.0, None], [1.0, 2.0], r"a\[1\] is nan"),
        ([1.0, 2.0], [1.0, math.nan], r"b\[1\] is .*nan"),
        ([1.0, math.inf], [1.0, 2.0], r"a\[1\] is .*inf"),
        ([1.0, 1e200], [1.0, 2.0], r"a\[1\] is .*1e\+200"),
        (["1.0", "2.0"], [1.0, 2.0], "a must be a list of numbers"),
        ([[1.0, 2.0]], [1.0, 2.0], r"a must be a list .*shape \(1, 2\)"),
        ([1.0], [1.0, 2.0], "a has 1 values and b has 2"),
    ],
)
def test_values_that_are_not_numbers_are_refused(a: object, b: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        paired_difference(a, b)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=message):
        paired_slices(a, b, labels=["x", "y"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("clusters", "message"),
    [
        (["x"], "clusters has 1 ids for 2 values"),
        (np.array([1]), "clusters has 1 ids for 2 values"),
        (["x", None], r"clusters\[1\] is None"),
        ([math.nan, 1.0], r"clusters\[0\] is nan"),
    ],
)
def test_clusters_that_do_not_fit_are_refused(clusters: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        paired_difference([1.0, 2.0], [2.0, 3.0], clusters=clusters)  # type: ignore[arg-type]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="confidence"):
        paired_difference([1.0], [2.0], confidence=95)
    with pytest.raises(InvalidInput, match="pass_threshold"):
        paired_difference([1.0], [2.0], pass_threshold=math.nan)
    with pytest.raises(InvalidInput, match="bounded=True, but values lie between 0 and 2"):
        paired_difference([0.0], [2.0], bounded=True)
    with pytest.raises(InvalidInput, match=r"labels\[0\] is None"):
        paired_slices([1.0], [2.0], labels=[None])


def test_what_was_given_is_not_changed() -> None:
    a, b = np.array([0.1 + 0.2, 1.0]), np.array([0.3, 2.0])
    before = a.copy(), b.copy()
    paired_difference(a, b)
    assert (a == before[0]).all()
    assert (b == before[1]).all()
