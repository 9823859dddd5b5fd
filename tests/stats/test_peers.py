"""The same numbers as scipy, statsmodels and published tables have, where they have them.

What scipy has in test_differences.py, test_moments.py and test_resampling.py is not repeated here.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import optimize
from scipy import stats as scipy_stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import NormalIndPower, TTestPower
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from heldout.stats import (
    Moments,
    median_interval,
    minimum_detectable,
    paired_difference,
    t_quantile,
    unpaired_difference,
    wilson,
)
from heldout.stats.differences import _score_p_value, holm, tango_interval
from heldout.stats.power import DifferenceVariance

Z = t_quantile(0.975, math.inf)


def outcomes(wins: int, losses: int, passed: int, failed: int) -> tuple[list[int], list[int]]:
    same = [1] * passed + [0] * failed
    return [0] * wins + [1] * losses + same, [1] * wins + [0] * losses + same


# --- Rates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("confidence", [0.5, 0.999])
@pytest.mark.parametrize("n", [1, 97])
def test_wilsons_interval_is_that_of_statsmodels_and_of_scipy(n: int, confidence: float) -> None:
    for count in {0, 1, n // 3, n // 2, n - 1, n}:
        found = wilson(count / n, n, confidence)
        theirs = proportion_confint(count, n, alpha=1 - confidence, method="wilson")
        assert (found.low, found.high) == pytest.approx(theirs, abs=1e-12)
        around = scipy_stats.binomtest(count, n).proportion_ci(confidence, method="wilson")
        assert (found.low, found.high) == pytest.approx((around.low, around.high), abs=1e-12)


@pytest.mark.parametrize(
    ("count", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_is_that_of_newcombes_table(
    count: int, n: int, low: float, high: float
) -> None:
    """R. G. Newcombe (1998), Statistics in Medicine 17, 857-872, Table I, method 3."""
    found = wilson(count / n, n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("passed_b", "n_b", "passed_a", "n_a", "low", "high"),
    [
        (56, 70, 48, 80, 0.0524, 0.3339),
        (9, 10, 3, 10, 0.1705, 0.8090),
        (10, 10, 0, 20, 0.6791, 1.0),
    ],
)
def test_plain_rates_get_newcombes_interval(
    passed_b: int, n_b: int, passed_a: int, n_a: int, low: float, high: float
) -> None:
    """Table II of Newcombe (1998), method 10."""
    found = unpaired_difference(
        [1] * passed_a + [0] * (n_a - passed_a), [1] * passed_b + [0] * (n_b - passed_b)
    )
    assert found.test == "mover"
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize(
    ("a", "n_a", "b", "n_b"), [(48, 80, 56, 70), (3, 10, 9, 10), (0, 20, 0, 9)]
)
def test_the_interval_of_two_rates_is_newcombes_of_statsmodels(
    a: int, n_a: int, b: int, n_b: int, confidence: float
) -> None:
    found = unpaired_difference(
        [1] * a + [0] * (n_a - a), [1] * b + [0] * (n_b - b), confidence=confidence
    ).interval
    theirs = confint_proportions_2indep(
        b, n_b, a, n_a, method="newcomb", compare="diff", alpha=1 - confidence
    )
    assert found is not None
    assert (found.low, found.high) == pytest.approx(theirs, abs=1e-9)


# --- Paired rates -------------------------------------------------------------------------------


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (5, 2), (700, 650)])
def test_mcnemars_tests_are_those_of_statsmodels(wins: int, losses: int) -> None:
    table = [[30, losses], [wins, 20]]
    found = paired_difference(*outcomes(wins, losses, 30, 20))
    assert found.p_value == pytest.approx(mcnemar(table, exact=True).pvalue, rel=1e-9)
    if wins + losses:
        asymptotic = mcnemar(table, exact=False, correction=False).pvalue
        assert _score_p_value(wins, losses, math.inf) == pytest.approx(asymptotic, rel=1e-9)


@pytest.mark.parametrize(
    ("wins", "losses", "n", "low", "high"),
    [(1, 7, 21, -0.517, -0.026), (6, 16, 161, -0.124, -0.005)],
)
def test_tangos_interval_is_that_of_published_examples(
    wins: int, losses: int, n: int, low: float, high: float
) -> None:
    """M. W. Fagerland, S. Lydersen and P. Laake, "Statistical Analysis of Contingency Tables"
    (2017), chapter 8: airway hyper-responsiveness (Bentur 2009), complete response (Cavo 2012)."""
    found = paired_difference(*outcomes(wins, losses, n - wins - losses, 0)).bound_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-4)


@pytest.mark.parametrize(("wins", "losses", "n"), [(14, 4, 44), (1, 0, 44), (40, 20, 160)])
def test_tangos_interval_ends_where_the_score_at_the_likeliest_share_is_its_quantile(
    wins: int, losses: int, n: int
) -> None:
    """By another way: of all shares of losses, the score at the one that is most likely."""

    def score(difference: float) -> float:
        def slope(losing: float) -> float:  # of the log likelihood
            rest = 1 - difference - 2 * losing
            return wins / (losing + difference) + losses / losing - 2 * (n - wins - losses) / rest

        low = max(0.0, -difference) + 1e-13
        high = (1 - difference) / 2 - 1e-13
        losing = low if slope(low) <= 0 else optimize.brentq(slope, low, high, xtol=1e-15)
        variance = n * (2 * losing + difference * (1 - difference))
        return float((wins - losses - n * difference) / math.sqrt(variance))

    found = tango_interval(wins, losses, n, Z)
    assert score(found.low) == pytest.approx(Z, abs=1e-5)
    assert score(found.high) == pytest.approx(-Z, abs=1e-5)


# --- Means --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_clustered_errors_are_those_of_regression_with_cluster_robust_covariance(seed: int) -> None:
    """A mean is a regression on a constant. statsmodels scales by G/(G-1) (n-1)/(n-k), and k is 1:
    for clusters of one size both have the same correction."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(12), 4)
    shuffled = rng.permutation(len(groups))
    a = (rng.normal(size=12)[groups] + rng.normal(size=len(groups)))[shuffled]
    b = (rng.normal(0.5, 1, size=12)[groups] + rng.exponential(size=len(groups)))[shuffled]
    codes = groups[shuffled]

    def fitted(values: np.ndarray, constant: np.ndarray, members: np.ndarray):  # type: ignore[no-untyped-def]
        return sm.OLS(values, constant).fit(
            cov_type="cluster", cov_kwds={"groups": members}, use_t=True
        )

    fit = fitted(a, np.ones(len(a)), codes)
    found = Moments.of(a, codes)
    around = found.interval(bounded=False)
    assert found.mean == pytest.approx(fit.params[0])
    assert found.stderr == pytest.approx(fit.bse[0], rel=1e-9)
    assert around is not None
    assert (around.low, around.high) == pytest.approx(fit.conf_int(0.05)[0], rel=1e-8)

    fit = fitted(b - a, np.ones(len(a)), codes)
    paired = paired_difference(a, b, clusters=codes)
    assert paired.stderr == pytest.approx(fit.bse[0], rel=1e-9)
    assert paired.p_value == pytest.approx(fit.pvalues[0], rel=1e-6)
    assert paired.interval is not None
    assert (paired.interval.low, paired.interval.high) == pytest.approx(
        fit.conf_int(0.05)[0], rel=1e-8
    )


def test_welchs_interval_is_that_of_statsmodels() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(2, 3, size=14), rng.normal(3, 1, size=33)
    compared = CompareMeans(DescrStatsW(b), DescrStatsW(a))
    found = unpaired_difference(a, b, bounded=False)
    _, p_value, degrees = compared.ttest_ind(usevar="unequal")
    assert (found.p_value, found.degrees_of_freedom) == pytest.approx((p_value, degrees), rel=1e-7)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(
        compared.tconfint_diff(usevar="unequal"), rel=1e-7
    )


def test_the_interval_of_a_median_is_that_of_scipys_quantile_test() -> None:
    values = np.random.default_rng(8).exponential(size=41)
    found = median_interval(values)
    around = scipy_stats.quantile_test(values, q=0, p=0.5).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == (around.low, around.high)


# --- Many tests, and power ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_holms_p_values_are_those_of_statsmodels(seed: int) -> None:
    p_values = np.random.default_rng(seed).beta(0.3, 2, size=12).round(2)
    assert holm(p_values.tolist()) == pytest.approx(multipletests(p_values, method="holm")[1])


@pytest.mark.parametrize(("detect", "power"), [(0.02, 0.8), (0.05, 0.9), (0.1, 0.95)])
def test_samples_for_a_difference_are_those_of_statsmodels_for_a_normal_test(
    detect: float, power: float
) -> None:
    """ratio=0 is a single sample: of differences, in units of their standard deviation."""
    needed = NormalIndPower().solve_power(
        detect / math.sqrt(0.11 + 0.34 / 4), alpha=0.05, power=power, ratio=0
    )
    variance = DifferenceVariance(((0.11, 0.34),))
    found = variance.required(detect=detect, repeats=4, power=power).samples
    # Student's t, which the comparison will have, asks for one or two more.
    assert math.ceil(needed) <= found <= math.ceil(needed) + 3


@pytest.mark.parametrize("effect", [0.4, 0.8, 1.2, 2.0])
def test_few_samples_have_the_power_that_was_asked_for(effect: float) -> None:
    found = DifferenceVariance(((1.0, 0.0),)).required(detect=effect).samples
    power = TTestPower().power(effect, found, 0.05)
    assert power >= 0.76
    assert found <= math.ceil(TTestPower().solve_power(effect, alpha=0.05, power=0.8)) + 1


@pytest.mark.parametrize("clusters", [8, 20, 100])
def test_the_minimum_detectable_difference_is_nearly_that_of_the_noncentral_t(
    clusters: int,
) -> None:
    """statsmodels solves for it exactly; Bloom's sum of two quantiles is a shade off at few."""
    found = minimum_detectable(1 / math.sqrt(clusters), clusters)
    exact = TTestPower().solve_power(nobs=clusters, alpha=0.05, power=0.8)
    assert found == pytest.approx(exact, rel=0.015)


# --- pass@k -------------------------------------------------------------------------------------
