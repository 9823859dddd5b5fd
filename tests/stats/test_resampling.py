from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from heldout.errors import InvalidInput
from heldout.stats import resampling as module
from heldout.stats.resampling import (
    Statistic,
    bootstrap,
    bootstrap_difference,
    bootstrap_improvement,
    compute_statistic,
    count_resamples,
    improvement_probability,
    resample,
)

SCORE = st.one_of(st.integers(-3, 3).map(float), st.floats(-1e6, 1e6))


@st.composite
def matrices(draw: st.DrawFn, tasks: int | None = None) -> Any:
    runs, columns = draw(st.integers(1, 9)), tasks or draw(st.integers(1, 9))
    flat = draw(st.lists(SCORE, min_size=runs * columns, max_size=runs * columns))
    return np.array(flat).reshape(runs, columns)


def direct(scores: Any, statistic: Statistic, repetitions: int, seed: int) -> Any:
    """The statistic of resamples that are built one by one."""
    rng = np.random.default_rng(seed)
    runs, tasks = scores.shape
    found: Any = {
        "interquartile_mean": lambda drawn: stats.trim_mean(drawn, 0.25, axis=None),
        "mean": np.mean,
        "median": lambda drawn: np.median(drawn if drawn.shape[1] == 1 else drawn.mean(axis=0)),
        "optimality_gap": lambda drawn: 1 - np.minimum(drawn, 1).mean(),
    }[statistic]
    return np.array(
        [
            found(scores[rng.integers(0, runs, (runs, tasks)), np.arange(tasks)])
            for _ in range(repetitions)
        ]
    )


# --- Statistics ---------------------------------------------------------------------------------


@given(matrices())
@settings(max_examples=80, deadline=None)
def test_the_interquartile_mean_is_scipys_trimmed_mean_of_all_scores(scores: Any) -> None:
    expected = stats.trim_mean(scores, 0.25, axis=None)
    assert compute_statistic(scores, "interquartile_mean") == pytest.approx(
        expected, rel=1e-12, abs=1e-9
    )


def test_the_other_statistics_are_those_of_the_paper() -> None:
    scores = [[0.0, 1.0, 10.0], [1.0, 2.0, 20.0]]
    assert compute_statistic(scores, "mean") == pytest.approx(34 / 6)
    assert compute_statistic(scores, "median") == 1.5
    assert compute_statistic(scores, "optimality_gap") == pytest.approx(1 / 6)
    gap = compute_statistic(scores, "optimality_gap", optimum=2.0)
    assert gap == pytest.approx((2 + 1 + 1) / 6)


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_the_probability_of_improvement_is_mann_and_whitneys_statistic(data: Any) -> None:
    x = data.draw(matrices())
    y = data.draw(matrices(x.shape[1]))
    each = [
        stats.mannwhitneyu(x[:, t], y[:, t], method="asymptotic").statistic
        for t in range(x.shape[1])
    ]
    expected = np.mean(each) / (len(x) * len(y))
    assert improvement_probability(x, y) == pytest.approx(expected, abs=1e-12)
    assert improvement_probability(y, x) == pytest.approx(1 - expected, abs=1e-12)


# --- Resamples ----------------------------------------------------------------------------------


@given(matrices(), st.integers(0, 1000))
@settings(max_examples=80, deadline=None)
def test_counts_give_what_building_the_resamples_gives(scores: Any, seed: int) -> None:
    """Resamples built from the same counts, one by one."""
    runs, tasks = scores.shape
    width = 7
    rng = np.random.default_rng(seed)
    # task, run, resample
    counts = np.stack([module._draw_counts(rng, runs, width) for _ in range(tasks)])
    built = [
        np.stack([np.repeat(scores[:, t], counts[t, :, i]) for t in range(tasks)], axis=1)
        for i in range(width)
    ]
    near: dict[str, Any] = {"rel": 1e-9, "abs": 1e-9 * max(1.0, float(np.abs(scores).max()))}

    for statistic in get_args(Statistic):
        expected = [compute_statistic(drawn, statistic) for drawn in built]
        assert resample(scores, statistic, repetitions=width, seed=seed) == pytest.approx(
            expected, **near
        )


@given(st.data(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_improvement_by_counts_is_that_of_the_resamples_built(data: Any, seed: int) -> None:
    x = data.draw(matrices())
    y = data.draw(matrices(x.shape[1]))
    width, tasks = 5, x.shape[1]
    rng = np.random.default_rng(seed)
    drawn = [[module._draw_counts(rng, len(side), width) for side in (y, x)] for _ in range(tasks)]
    of_y, of_x = zip(*drawn, strict=True)
    ordered = np.sort(y, axis=0)
    expected = [
        improvement_probability(
            np.stack([np.repeat(x[:, t], of_x[t][:, i]) for t in range(tasks)], axis=1),
            np.stack([np.repeat(ordered[:, t], of_y[t][:, i]) for t in range(tasks)], axis=1),
        )
        for i in range(width)
    ]
    assert module._improvements(x, y, width, seed) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("statistic", get_args(Statistic))
def test_the_distribution_is_that_of_direct_resampling(statistic: Statistic) -> None:
    scores = np.random.default_rng(3).gamma(1.0, size=(5, 7))
    ours = resample(scores, statistic, repetitions=20_000, seed=1)
    theirs = direct(scores, statistic, 4_000, seed=2)
    assert stats.ks_2samp(ours, theirs).pvalue > 0.01


@pytest.mark.parametrize("runs", [1, 2, 255, 5000])
def test_every_resample_has_as_many_draws_as_runs_and_favours_none(runs: int) -> None:
    width = max(16, 200_000 // runs)
    counts = module._draw_counts(np.random.default_rng(4), runs, width).astype(np.int64)
    assert (counts.sum(axis=0) == runs).all()
    if runs > 1:
        assert stats.chisquare(counts.sum(axis=1)).pvalue > 0.001


def test_chunks_do_not_show_in_the_result() -> None:
    scores = np.random.default_rng(0).normal(size=(300, 40))  # 174 resamples at a time
    for repetitions in (1, 63, 175, 349):
        values = resample(scores, "interquartile_mean", repetitions=repetitions)
        assert values.shape == (repetitions,)
        assert len(np.unique(values)) == repetitions
        assert np.abs(values).max() < 0.1


@pytest.mark.parametrize("shape", [(200, 170), (300, 20)])
def test_many_scores_do_not_overflow_small_integers(shape: tuple[int, int]) -> None:
    scores = np.random.default_rng(6).normal(size=shape)
    rng, (runs, tasks) = np.random.default_rng(9), shape
    # run, task, resample
    counts = np.stack([module._draw_counts(rng, runs, 2) for _ in range(tasks)], axis=1)
    expected = [
        stats.trim_mean(np.repeat(scores.ravel(), counts[:, :, i].ravel()), 0.25) for i in range(2)
    ]
    found = resample(scores, "interquartile_mean", repetitions=2, seed=9)
    assert found == pytest.approx(expected, abs=1e-12)


# --- Intervals ----------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_interval_and_another_seed_another() -> None:
    scores = np.random.default_rng(0).normal(size=(6, 5))
    first = bootstrap(scores, repetitions=500, seed=7)
    assert bootstrap(scores, repetitions=500, seed=7) == first
    assert bootstrap(scores, repetitions=500, seed=8).interval != first.interval
    better = bootstrap_improvement(scores, scores + 0.1, repetitions=500, seed=7)
    assert bootstrap_improvement(scores, scores + 0.1, repetitions=500, seed=7) == better


def test_the_global_random_state_is_left_alone() -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].copy()  # type: ignore[index]
    bootstrap([[0.0], [1.0]], repetitions=100)
    assert (before == np.random.get_state()[1]).all()  # type: ignore[index]


def test_an_interval_encloses_the_percentiles_of_its_distribution() -> None:
    scores = np.random.default_rng(0).normal(size=(6, 5))
    estimate = bootstrap(scores, "median", repetitions=2000, confidence=0.8, seed=3)
    values = resample(scores, "median", repetitions=2000, seed=3)
    assert estimate.interval is not None
    expected = np.percentile(values, [10, 90])
    assert [estimate.interval.low, estimate.interval.high] == pytest.approx(expected)
    assert estimate.value == compute_statistic(scores, "median")


def test_one_run_has_no_interval() -> None:
    for statistic in get_args(Statistic):
        estimate = bootstrap([[0.5, 0.25, 1.0]], statistic, repetitions=100)
        assert estimate.interval is None
    assert bootstrap([[0.5, 0.25, 1.0]], "mean", repetitions=9).value == pytest.approx(1.75 / 3)
    assert bootstrap_improvement([[1.0]], [[0.0]], repetitions=100).interval is None
    assert bootstrap_improvement([[1.0]], [[0.0], [2.0]], repetitions=100).interval is not None


def test_one_task_is_the_ordinary_bootstrap() -> None:
    column = np.random.default_rng(2).normal(size=(40, 1))
    estimate = bootstrap(column, "mean", repetitions=20_000)
    theirs = stats.bootstrap(
        (column[:, 0],), np.mean, n_resamples=20_000, method="percentile", random_state=1
    ).confidence_interval
    assert estimate.interval is not None
    assert estimate.interval.low == pytest.approx(theirs.low, abs=0.02)
    assert estimate.interval.high == pytest.approx(theirs.high, abs=0.02)


def test_scores_that_are_all_alike_stay_what_they_are() -> None:
    scores = np.full((5, 4), 0.1)
    assert bootstrap(scores, repetitions=50).interval is None
    assert set(resample(scores, "interquartile_mean", repetitions=50).tolist()) == {0.1}
    assert bootstrap_improvement(scores, scores, repetitions=50).value == 0.5


def test_ties_are_half_a_win_in_every_resample() -> None:
    x = np.array([[0.0], [1.0]])
    values = module._improvements(x, np.full((3, 1), 1.0), 2000, 0)
    assert set(values.tolist()) == {0.0, 0.25, 0.5}


def test_a_score_far_out_that_is_trimmed_costs_no_digits() -> None:
    scores = np.array([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 1e15]] * 2)
    values = resample(scores, "interquartile_mean", repetitions=50)
    assert values == pytest.approx([0.45] * 50, abs=1e-14)


def test_the_probability_of_improvement_over_itself_is_a_half() -> None:
    scores = np.random.default_rng(0).normal(size=(10, 6))
    estimate = bootstrap_improvement(scores, scores, repetitions=4000)
    assert estimate.value == 0.5
    assert estimate.interval is not None
    assert estimate.interval.low < 0.5 < estimate.interval.high
    assert estimate.interval.low + estimate.interval.high == pytest.approx(1, abs=0.02)


# --- What was given -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_refused_with_its_place(bad: float) -> None:
    scores = np.zeros((3, 4))
    scores[1, 2] = bad
    with pytest.raises(InvalidInput, match=rf"scores\[1, 2\] is {bad}"):
        bootstrap(scores)
    with pytest.raises(InvalidInput, match=rf"y\[1, 2\] is {bad}"):
        bootstrap_improvement(np.zeros((2, 4)), scores)


@pytest.mark.parametrize("scores", [[], [[]], [1.0, 2.0], 3.0, [[[1.0]]]])
def test_what_is_no_matrix_is_refused(scores: Any) -> None:
    with pytest.raises(InvalidInput, match="a row for each run"):
        compute_statistic(scores, "interquartile_mean")


def test_other_wrong_arguments_are_refused() -> None:
    scores = [[0.0, 1.0], [1.0, 0.5]]
    with pytest.raises(InvalidInput, match="x has 2 tasks and y 1"):
        bootstrap_improvement(scores, [[0.0]])
    with pytest.raises(InvalidInput, match="repetitions is 0"):
        bootstrap(scores, repetitions=0)
    with pytest.raises(InvalidInput, match="confidence must be between 0 and 1.*got 95"):
        bootstrap(scores, repetitions=10, confidence=95)
    with pytest.raises(InvalidInput, match="no statistic 'iqm'.*interquartile_mean"):
        bootstrap(scores, "iqm", repetitions=10)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="at most 1e"):
        bootstrap([[1e308], [-1e308]])


# --- Few runs -----------------------------------------------------------------------------------


def test_the_median_of_three_runs_is_a_median() -> None:
    scores = np.array([[0.2], [0.9], [0.3]])
    assert compute_statistic(scores, "median") == 0.3
    values = resample(scores, "median", repetitions=4000, seed=2)
    assert {*values.tolist()} == {0.2, 0.3, 0.9}
    # Two or three of three draws are the lowest: 7 of 27.
    assert (values == 0.2).mean() == pytest.approx(7 / 27, abs=0.03)
    even = resample(np.array([[0.0], [1.0]]), "median", repetitions=400)
    assert {*even.tolist()} == {0.0, 0.5, 1.0}


def test_few_runs_have_few_resamples_so_two_seeds_may_end_at_the_same_two_of_them() -> None:
    """Three runs of one task: ten resamples, and 1 of 27 draws the lowest run three times."""
    assert [count_resamples(3, tasks) for tasks in (1, 2)] == [10, 100]
    scores = np.array([[0.2], [0.9], [0.3]])
    drawn = [resample(scores, "mean", repetitions=300, seed=seed) for seed in (0, 1)]
    assert not np.array_equal(*drawn)  # the seed is used
    assert len(np.unique(np.round(drawn[0], 9))) == 10
    found = [bootstrap(scores, "mean", repetitions=300, seed=seed).interval for seed in range(20)]
    assert len({*found}) <= 6  # with twenty seeds


def test_a_difference_is_of_sides_that_are_drawn_independently() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(0.6, 0.1, (8, 3)), rng.normal(0.5, 0.1, (6, 3))
    found = bootstrap_difference(x, y, "mean", repetitions=4000)
    assert found.value == pytest.approx(x.mean() - y.mean())
    assert found.interval is not None
    error = math.hypot(*(np.sqrt((s.var(axis=0) / len(s)).sum()) / 3 for s in (x, y)))
    assert found.interval.high - found.interval.low == pytest.approx(2 * 1.96 * error, rel=0.06)
    same = bootstrap_difference(x, x, "mean", repetitions=4000).interval
    assert same is not None  # drawn alike, equal sides would never differ
    assert same.low < -0.02
    assert same.high > 0.02
    assert bootstrap_difference(x, y[:1], "mean", repetitions=10).interval is None
