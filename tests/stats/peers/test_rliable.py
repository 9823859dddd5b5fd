"""The numbers of rliable: points exactly, intervals within what two sets of resamples leave.

rliable is what R. Agarwal et al. (2021) published their statistics with. These tests run where it
is installed (`.venv-trackers` of the Makefile), so none of them asks whether it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rliable import library, metrics

from heldout.stats import (
    BootstrapEstimate,
    Statistic,
    bootstrap,
    bootstrap_improvement,
)
from heldout.stats.intervals import Floats
from heldout.stats.resampling import improvement_probability

SHAPES = [(10, 26), (100, 5)]
AGGREGATES: dict[Statistic, Callable[[Floats], float]] = {
    "interquartile_mean": metrics.aggregate_iqm,
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
    "optimality_gap": metrics.aggregate_optimality_gap,
}
OURS, THEIRS = 20_000, 1_000
"""Resamples: rliable builds each of its own."""

pytestmark = pytest.mark.integration


def scores(runs: int, tasks: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng([runs, tasks])
    scale = rng.gamma(2.0, size=tasks)
    x, y = rng.lognormal(-0.5, 0.5, size=(2, runs, tasks))
    return x * scale, 0.9 * y * scale


def theirs(given: Any, statistic: Callable[..., float], repetitions: int) -> tuple[float, Floats]:
    # rliable ignores its random_state and draws from numpy's global one.
    np.random.seed(1)
    points, intervals = library.get_interval_estimates(
        {"x": given}, lambda *matrices: np.array([statistic(*matrices)]), reps=repetitions
    )
    return float(points["x"][0]), np.asarray(intervals["x"]).ravel()


def near(found: BootstrapEstimate, ends: Floats, repetitions: int) -> None:
    """Ends of intervals are percentiles, whose errors are known: sqrt(q (1 - q) / B) / density.

    The density at the 2.5th percentile of a normal distribution is 0.0584, in its own deviations.
    """
    assert found.interval is not None
    deviation = (found.interval.high - found.interval.low) / 3.92
    error = math.sqrt(0.025 * 0.975 * (1 / OURS + 1 / repetitions)) / 0.0584 * deviation
    assert abs(found.interval.low - ends[0]) < 4 * error
    assert abs(found.interval.high - ends[1]) < 4 * error


@pytest.mark.parametrize("statistic", AGGREGATES)
@pytest.mark.parametrize("shape", SHAPES)
def test_aggregates_and_their_intervals_are_rliables(
    shape: tuple[int, int], statistic: Statistic
) -> None:
    x, _ = scores(*shape)
    found = bootstrap(x, statistic, repetitions=OURS)
    point, ends = theirs(x, AGGREGATES[statistic], THEIRS)
    assert found.value == pytest.approx(point, rel=1e-12)
    near(found, ends, THEIRS)


@pytest.mark.parametrize(("shape", "repetitions"), [((10, 26), 60), ((100, 5), 60)])
def test_the_probability_of_improvement_and_its_interval_are_rliables(
    shape: tuple[int, int], repetitions: int
) -> None:
    """With few resamples, of which rliable draws fifty a second."""
    x, y = scores(*shape)
    found = bootstrap_improvement(x, y, repetitions=OURS)
    point, ends = theirs([x, y], metrics.probability_of_improvement, repetitions)
    assert found.value == pytest.approx(point, rel=1e-12)
    near(found, ends, repetitions)


def test_ties_count_half_in_both() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.integers(0, 3, size=(2, 8, 6)).astype(float)
    expected = metrics.probability_of_improvement(x, y)
    assert improvement_probability(x, y) == pytest.approx(expected, rel=1e-12)


def test_another_optimum_gives_rliables_gap() -> None:
    x, _ = scores(10, 26)
    found = bootstrap(x, "optimality_gap", optimum=2.5, repetitions=100)
    assert found.value == pytest.approx(metrics.aggregate_optimality_gap(x, 2.5), rel=1e-12)
