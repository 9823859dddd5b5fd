"""Boundaries and stakes of packages that mean the same, kept as numbers with the code behind them.

Neither package is installed here: gsdesign 0.1.5 has the recursion of R's gsDesign and no
boundaries of its own, and confseq 0.0.11 wants a C++ compiler and an older numpy. What each test's
docstring says of them gives the numbers again.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from heldout.stats.stopping import Plan, expect_normal
from heldout.stats.stopping.betting import log_stakes
from heldout.stats.stopping.gaussian import critical_values
from heldout.stats.stopping.plans import Spending

LINEAR = (
    3.02334, 2.96958, 2.91185, 2.85956, 2.81277, 2.77062, 2.73227, 2.69706, 2.66449, 2.63415,
    2.60572, 2.57895, 2.55364, 2.52961, 2.50672, 2.48485, 2.46391, 2.4438, 2.42446, 2.40581,
)  # fmt: skip
KEEP_POWER = (
    math.inf, 6.19796, 5.06072, 4.38562, 3.93185, 3.60349, 3.35317, 3.15491, 2.99327, 2.85851,
    2.74411, 2.64557, 2.55966, 2.48399, 2.41675, 2.35656, 2.30232, 2.25315, 2.20836, 2.16736,
)  # fmt: skip


@pytest.mark.parametrize(("spending", "theirs"), [("linear", LINEAR), ("keep_power", KEEP_POWER)])
def test_twenty_looks_have_the_boundaries_of_gsdesign(
    spending: Spending, theirs: tuple[float, ...]
) -> None:
    """gsdesign 0.1.5, r=80: at each look bisect c until `hupdate(…, a=c, b=inf)` sums to the share.

    The grid goes on with `h1` and `hupdate(…, a=-c, b=c)`; times are 1/20 … 1, theta 0.
    """
    plan = Plan(1000, spending)
    times = tuple(n / 1000 for n in plan.sizes)
    found = critical_values(times, tuple(plan.spent(n) for n in plan.sizes))
    assert found == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize(
    ("spending", "drift", "theirs"),
    [
        ("linear", 1.4, 0.232392),
        ("linear", 2.8015852, 0.723316),
        ("linear", 5.6, 0.999539),
        ("keep_power", 1.4, 0.269970),
        ("keep_power", 2.8015852, 0.775210),
        ("keep_power", 5.6, 0.999782),
    ],
)
def test_the_power_of_twenty_looks_is_that_of_gsdesign(
    spending: Spending, drift: float, theirs: float
) -> None:
    """gsdesign 0.1.5, r=80: the sums above its boundaries, with theta the drift at time 1.

    2.80 is the drift that one look of the full set shows in 80%.
    """
    found = expect_normal(Plan(1000, spending), 0.0, drift / math.sqrt(1000), std=1.0)
    assert found.above == pytest.approx(theirs, abs=2e-6)


GRADES = np.random.default_rng(0).beta(0.3, 0.7, 400)


@pytest.mark.parametrize(
    ("bound", "theirs"),
    [
        (0.05, (0.1234859414, 9.250188149, 38.02019804)),
        (0.2, (0.09074743207, 4.072959271, 17.40139281)),
        (0.3, (0.06831072731, 0.4632328112, 3.031577745)),
        (0.6, (-0.002187815065, -11.2407858, -43.51959455)),
    ],
)
def test_stakes_tuned_to_a_set_are_those_of_confseq(
    bound: float, theirs: tuple[float, ...]
) -> None:
    """confseq 0.0.11: the logarithm of `betting_mart(GRADES, bound, theta=1, trunc_scale=0.75, …)`.

    With `lambdas_fn_positive=lambda x, m: lambda_predmix_eb(x, alpha=0.025, fixed_n=500)`; after 1,
    100 and 400 values. Waudby-Smith and Ramdas (2024) wrote it.
    """
    found = log_stakes(GRADES, bound, side=0.025, tuned_to=500)
    assert found[[0, 99, 399]] == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    ("bound", "theirs"),
    [
        (0.2, (0.09074743207, 4.612240081, math.inf)),
        (0.3, (0.06831072731, 0.6074343334, 8.073914306)),
        (0.4, (0.04535904022, -3.568253292, -22.12903315)),
    ],
)
def test_stakes_without_replacement_are_those_of_confseq(
    bound: float, theirs: tuple[float, ...]
) -> None:
    """Likewise, with `N=500`; inf is a bound that the values left can no longer reach."""
    found = log_stakes(GRADES, bound, side=0.025, tuned_to=500, size=500)
    assert found[[0, 99, 399]] == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    ("bound", "theirs"),
    [
        (0.3, (0.4054051143, 0.05418102808, -27.39681491)),
        (0.6, (-0.01130815173, -4.106632572, -61.30325194)),
    ],
)
def test_the_largest_stakes_are_those_of_confseq(bound: float, theirs: tuple[float, ...]) -> None:
    """The first again, with `fixed_n=10`: stakes that `trunc_scale` holds; after 1, 10 and 100."""
    found = log_stakes(GRADES, bound, side=0.025, tuned_to=10)
    assert found[[0, 9, 99]] == pytest.approx(theirs, rel=1e-9)
