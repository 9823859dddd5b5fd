"""Crossing probabilities of a normal mean, against published boundaries and scipy's integrals."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from scipy import stats as scipy_stats

from heldout.stats.stopping import Plan
from heldout.stats.stopping.gaussian import (
    critical_values,
    crossing_probability,
    normal_score,
    solve_probability,
    student_critical,
    tail,
)


def test_one_look_is_the_ordinary_test() -> None:
    assert critical_values((1.0,), (0.025,)) == pytest.approx((1.959964,), abs=1e-6)


def test_boundaries_are_those_that_lan_and_demets_published() -> None:
    """Five looks, 5% two-sided, their O'Brien-Fleming-like function 2 - 2Φ(2.2414 / √t) a side."""
    normal, times = NormalDist(), (0.2, 0.4, 0.6, 0.8, 1.0)
    spent = tuple(2 - 2 * normal.cdf(normal.inv_cdf(1 - 0.0125) / math.sqrt(t)) for t in times)
    found = critical_values(times, spent)
    assert found == pytest.approx((4.8769, 3.3569, 2.6803, 2.2898, 2.0310), abs=2e-4)


def test_two_looks_spend_what_scipy_integrates() -> None:
    spent = (0.0125, 0.025)
    first, second = critical_values((0.5, 1.0), spent)
    assert tail(first) == pytest.approx(0.0125, abs=1e-9)
    correlated = scipy_stats.multivariate_normal(cov=[[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])
    inside = correlated.cdf([first, second], lower_limit=[-first, second - 20])
    whole = correlated.cdf([first, 30], lower_limit=[-first, -30])
    assert whole - inside == pytest.approx(0.0125, abs=1e-5)


@pytest.mark.parametrize("spending", ["linear", "keep_power"])
def test_all_looks_together_spend_the_level(spending: str) -> None:
    plan = Plan(1000, "linear" if spending == "linear" else "keep_power")
    times = tuple(float(n) for n in plan.sizes)
    critical = critical_values(times, tuple(plan.spent(n) for n in plan.sizes))
    high = [z * math.sqrt(n) for z, n in zip(critical, times, strict=True)]
    low = [-x for x in high]
    assert crossing_probability(times, low[:-1], high[:-1], high[-1]) == pytest.approx(
        0.025, abs=1e-8
    )


def test_nothing_to_spend_is_no_boundary() -> None:
    assert critical_values((1.0, 2.0), (0.0, 0.025))[0] == math.inf


def test_few_degrees_of_freedom_need_a_larger_t_of_the_same_error() -> None:
    assert student_critical(1.959964, 9) == pytest.approx(scipy_stats.t.ppf(0.975, 9), abs=1e-5)
    assert normal_score(student_critical(2.5, 7), 7) == pytest.approx(2.5, abs=1e-9)
    assert student_critical(math.inf, 9) == math.inf


@pytest.mark.parametrize("target", [1e-6, 0.025, 0.5, 0.975])
def test_a_probability_is_met_where_it_is_reached_and_at_an_end_where_it_is_not(
    target: float,
) -> None:
    normal = NormalDist(3, 2)
    found = solve_probability(normal.cdf, target, -50, 50)
    assert found == pytest.approx(normal.inv_cdf(target), abs=1e-6)
    assert solve_probability(normal.cdf, target, 40, 50) == 40
    assert solve_probability(normal.cdf, target, -50, -40) == -40
