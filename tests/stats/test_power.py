"""How many samples it takes, against brute force, scipy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from heldout.errors import InvalidInput
from heldout.stats.differences import PairedDifference, paired_difference
from heldout.stats.power import (
    DifferenceVariance,
    RequiredSamples,
    VarianceComponents,
    detectable_difference,
    exact_power,
    expected_difference,
    measured_difference,
    minimum_detectable,
    variance_components,
)
from tests.slow import figure

variances = st.floats(0, 4).map(lambda x: round(x, 3))


def needed_by_t(ratio: float) -> int:
    """The least n with n >= (t_{a/2} + t_b)^2 ratio, at n - 1 degrees of freedom."""
    normal = scipy_stats.norm
    n = max(2, math.floor((normal.ppf(0.975) + normal.ppf(0.8)) ** 2 * ratio))  # t is larger
    while n < (scipy_stats.t(n - 1).ppf(0.975) + scipy_stats.t(n - 1).ppf(0.8)) ** 2 * ratio:
        n += 1
    return n


def samples_for(between: float, within: float, *, detect: float, repeats: int = 1) -> int:
    variance = DifferenceVariance(((between, within),))
    return variance.required(detect=detect, repeats=repeats).samples


def repeats_for(between: float, within: float, *, detect: float, samples: int) -> int | None:
    return DifferenceVariance(((between, within),)).repeats_for(samples, detect=detect)


def required_samples(
    run: VarianceComponents,
    *,
    detect: float,
    repeats: int = 1,
    correlation: float = 0.0,
    power: float = 0.8,
) -> RequiredSamples:
    variance = expected_difference(run, correlation=correlation)
    return variance.required(detect=detect, repeats=repeats, power=power)


# --- Components ---------------------------------------------------------------------------------


def test_components_of_equal_repeats_are_those_of_the_analysis_of_variance() -> None:
    values = np.random.default_rng(1).normal(size=(7, 4))
    found = variance_components(values.ravel(), samples=np.repeat(np.arange(7), 4))
    within = values.var(axis=1, ddof=1).mean()
    assert found.within == pytest.approx(within)
    assert found.between == pytest.approx(values.mean(axis=1).var(ddof=1) - within / 4)
    assert found.total == pytest.approx((found.between or 0) + within)
    ratio = (4 * (found.between or 0) + within) / within
    assert ratio == pytest.approx(scipy_stats.f_oneway(*values).statistic)
    assert (found.samples, found.repeated) == (7, 7)


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [(2, 2, 2, 2, 2, 2), (1, 1, 2, 3, 5, 8)])
def test_components_are_unbiased_whatever_the_numbers_of_repeats(repeats: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    samples = np.repeat(np.arange(len(repeats)), repeats)
    between, within = [], []
    for _ in range(3000):
        chance = rng.beta(1, 1, size=len(repeats))  # variance 1/12, mean variance within 1/6
        found = variance_components(rng.random(len(samples)) < chance[samples], samples=samples)
        assert found.between is not None
        assert found.within is not None
        between.append(found.between)
        within.append(found.within)
    for estimates, truth in ((between, 1 / 12), (within, 1 / 6)):
        error = np.std(estimates) / math.sqrt(len(estimates))
        assert abs(np.mean(estimates) - truth) < 4 * error


@pytest.mark.slow
def test_components_of_a_difference_are_unbiased() -> None:
    rng = np.random.default_rng(9)
    questions = 8
    samples_a, samples_b = np.repeat(np.arange(questions), 2), np.tile(np.arange(questions), 3)
    found = []
    for _ in range(2000):
        hard, gain = rng.normal(size=questions), rng.normal(0.5, 0.7, size=questions)
        a = hard[samples_a] + rng.normal(0, 1.0, size=len(samples_a))
        b = (hard + gain)[samples_b] + rng.normal(0, 0.5, size=len(samples_b))
        found += measured_difference(a, b, samples_a=samples_a, samples_b=samples_b).splits
    for estimates, truth in zip(zip(*found, strict=True), (0.49, 1.0 + 0.25), strict=True):
        assert abs(np.mean(estimates) - truth) < 4 * np.std(estimates) / math.sqrt(len(estimates))


def test_one_answer_a_question_tells_only_the_sum() -> None:
    found = variance_components([1, 0, 0, 1, 1], samples=list("abcde"))
    assert (found.between, found.within, found.repeated) == (None, None, 0)
    assert found.total == pytest.approx(0.6 * 0.4 * 5 / 4)


def test_a_difference_without_repeats_on_one_side_is_not_taken_apart() -> None:
    found = measured_difference(
        [1.0, 2.0, 3.0, 5.0], [2.0, 9.0], samples_a=list("xxyy"), samples_b=list("yx")
    )
    seen = float(np.var([9.0 - 1.5, 2.0 - 4.0], ddof=1))
    assert found.splits == ((seen, 0.0), (0.0, seen), (0.0, 2 * seen))


# --- How many -----------------------------------------------------------------------------------


def test_samples_follow_from_the_formula() -> None:
    found = samples_for(0.1, 0.3, detect=0.03, repeats=2)
    assert found == needed_by_t((0.1 + 0.15) / 0.03**2)


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [1, 4])
def test_that_many_samples_have_the_power_asked_for(repeats: int) -> None:
    between, within, detect = 0.5, 1.0, 0.3
    n = samples_for(between, 2 * within, detect=detect, repeats=repeats)
    rng = np.random.default_rng(13)
    clusters = np.repeat(np.arange(n), repeats)
    seen = 0
    for _ in range(1000):
        gain = rng.normal(detect, math.sqrt(between), size=n)
        a, b = rng.normal(0, math.sqrt(within), size=(2, len(clusters)))
        p_value = paired_difference(a, b + gain[clusters], clusters=clusters).p_value
        seen += p_value is not None and p_value < 0.05
    assert figure(seen / 1000) == pytest.approx(0.8, abs=0.04)  # a standard error is 0.013


@given(variances, variances, st.integers(1, 8), st.floats(0.05, 1))
def test_where_repeats_tell_the_two_apart_there_is_one_answer(
    between: float, within: float, repeats: int, detect: float
) -> None:
    run = VarianceComponents(100, 100, between + within, between, within)
    found = required_samples(run, detect=detect, repeats=repeats, correlation=0.5)
    assert found.samples == found.at_least
    assert found.samples == samples_for(between, 2 * within, detect=detect, repeats=repeats)


@given(st.floats(0, 1), st.integers(1, 8), st.floats(0, 1), st.floats(0.01, 0.3))
def test_without_repeats_the_answer_brackets_every_split_of_the_variance(
    split: float, repeats: int, correlation: float, detect: float
) -> None:
    one = required_samples(
        VarianceComponents(50, 0, 0.24, None, None),
        detect=detect,
        repeats=repeats,
        correlation=correlation,
    )
    known = required_samples(
        VarianceComponents(50, 50, 0.24, 0.24 * split, 0.24 * (1 - split)),
        detect=detect,
        repeats=repeats,
        correlation=correlation,
    )
    assert one.at_least <= known.samples <= one.samples


def test_a_variance_between_that_came_out_negative_counts_as_none() -> None:
    run = VarianceComponents(20, 20, 0.2, -0.05, 0.25)
    assert required_samples(run, detect=0.1) == required_samples(
        VarianceComponents(20, 20, 0.25, 0.0, 0.25), detect=0.1
    )


def two_runs(samples: int, repeats_a: int, repeats_b: int, seed: int = 0) -> dict[str, list[float]]:
    """Questions of different hardness, answered by two policies; as `measured_difference` takes."""
    random = np.random.default_rng(seed)
    hard = random.random(samples)
    a = (random.random((samples, repeats_a)) < hard[:, None]).astype(float)
    b = (random.random((samples, repeats_b)) < hard[:, None] ** 0.8).astype(float)
    ids_a, ids_b = (np.repeat(np.arange(samples), k) for k in (repeats_a, repeats_b))
    return {"a": a.ravel(), "b": b.ravel(), "samples_a": ids_a, "samples_b": ids_b}


def test_two_runs_with_repeats_tell_the_whole_variance_of_their_difference() -> None:
    runs = two_runs(300, 4, 6)
    (split,) = measured_difference(**runs).splits
    a, b = (variance_components(runs[x], samples=runs[f"samples_{x}"]) for x in "ab")
    means = [np.array(runs[x]).reshape(300, -1).mean(axis=1) for x in "ab"]
    within = (a.within or 0) + (b.within or 0)
    noise = (a.within or 0) / 4 + (b.within or 0) / 6
    assert split == pytest.approx((np.var(means[1] - means[0], ddof=1) - noise, within))


def test_two_runs_without_repeats_tell_what_is_needed_for_as_many_answers_again() -> None:
    runs = two_runs(200, 1, 1)
    runs |= {x: 2 * np.array(runs[x]) for x in "ab"}  # any values: those in 0 … 1 have shares, too
    found = measured_difference(**runs).required(detect=0.1)
    seen = np.var(runs["b"] - runs["a"], ddof=1)  # type: ignore[operator]
    assert found.samples == found.at_least == needed_by_t(seen / 0.1**2)


def test_what_two_runs_without_repeats_leave_open_brackets_what_repeats_tell() -> None:
    known = measured_difference(**two_runs(4000, 8, 8))
    open_ = measured_difference(**two_runs(4000, 1, 1))
    for repeats in (1, 2, 8):
        low, high = open_.at(repeats)
        assert low * 0.9 <= known.at(repeats)[0] <= high * 1.1
    assert open_.repeats_for(100, detect=0.05) is None
    assert known.repeats_for(1000, detect=0.05) is not None


@given(variances, variances, st.integers(2, 500), st.floats(0.05, 1))
def test_repeats_are_the_fewest_with_which_the_samples_are_enough(
    between: float, within: float, samples: int, detect: float
) -> None:
    def needed(repeats: int) -> int:
        return samples_for(between, within, detect=detect, repeats=repeats)

    found = repeats_for(between, within, detect=detect, samples=samples)
    if found is None:
        assert needed(10**9) >= samples
    else:
        assert needed(found) <= samples
        assert found == 1 or needed(found - 1) >= samples


def test_no_number_of_repeats_makes_up_for_too_few_questions() -> None:
    assert repeats_for(0.2, 0.2, detect=0.02, samples=200) is None


def test_pairs_without_spread_have_no_minimum_detectable_difference() -> None:
    assert minimum_detectable(0.0, 10) is None
    assert minimum_detectable(None, 1) is None


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"detect": 0}, "above 0"),
        ({"detect": math.nan}, "above 0"),
        ({"repeats": 0}, "at least once"),
        ({"correlation": 2}, "correlation"),
        ({"power": 80}, "power"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, float], message: str) -> None:
    run = VarianceComponents(20, 20, 0.25, 0.1, 0.15)
    with pytest.raises(InvalidInput, match=message):
        required_samples(run, **{"detect": 0.1, **settings})  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="alpha"):
        minimum_detectable(0.1, 10, alpha=5)


def test_runs_that_cannot_tell_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 2 of them, got 1"):
        variance_components([1.0, 2.0], samples=["x", "x"])
    with pytest.raises(InvalidInput, match=r"values\[0\] is nan"):
        variance_components([None, 2.0], samples=["x", "y"])
    with pytest.raises(InvalidInput, match="samples has 1 ids for 2 values"):
        variance_components([1.0, 2.0], samples=["x"])
    with pytest.raises(InvalidInput, match="samples_b has 1 ids for 2 values"):
        measured_difference([1.0], [1.0, 2.0], samples_a=["x"], samples_b=["x"])
    with pytest.raises(InvalidInput, match="1 samples are only in a and 2 only in b"):
        measured_difference([1.0], [1.0, 2.0], samples_a=["x"], samples_b=["y", "z"])


def flipped(wins: int, losses: int, n: int) -> PairedDifference:
    before, after = np.zeros(n), np.zeros(n)
    after[:wins], before[n - losses :] = 1.0, 1.0
    return paired_difference(before, after)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wins", "losses", "n"), [(1, 0, 50), (1, 1, 100), (2, 1, 400), (20, 10, 200), (0, 0, 50)]
)
def test_a_rate_difference_that_is_called_detectable_is_detected_with_80_percent_power(
    wins: int, losses: int, n: int
) -> None:
    found = detectable_difference(flipped(wins, losses, n))
    assert found is not None
    both = min(wins, losses) / n
    random = np.random.default_rng(0)
    draws = random.multinomial(n, [both + found, both, 1 - 2 * both - found], size=4000)
    won, lost = draws[:, 0], draws[:, 1]
    seen = (scipy_stats.binom.cdf(lost, won + lost, 0.5) < 0.025) & (won > lost)
    assert figure(seen.mean()) == pytest.approx(0.8, abs=0.02)  # a standard error is 0.006


@pytest.mark.parametrize(
    ("n", "differ", "effect"),
    [(50, 0.15, 0.15), (400, 0.05, 0.03), (30, 1.0, 0.5), (30, 1.0, 1.0), (900, 0.44, 0.06)],
)
@pytest.mark.parametrize("alpha", [0.05, 0.001])
def test_the_power_of_the_exact_test_is_that_of_its_binomial_tails(
    n: int, differ: float, effect: float, alpha: float
) -> None:
    pairs = np.arange(n + 1)
    # The least count of wins whose upper tail is below alpha / 2.
    critical = scipy_stats.binom.isf(alpha / 2, pairs, 0.5) + 1
    rejected = scipy_stats.binom.sf(critical - 1, pairs, (differ + effect) / (2 * differ))
    expected = (scipy_stats.binom.pmf(pairs, n, differ) * rejected).sum()
    assert exact_power(n, differ, effect, alpha) == pytest.approx(expected, abs=1e-8)


def test_among_many_pairs_the_power_of_the_exact_test_is_nearly_the_normal_one() -> None:
    """Beyond 400 pairs that differ the sum is left: on both sides of it the power is one."""
    summed, normal = (exact_power(800, differ, 0.05, 0.05) for differ in (0.4999, 0.5001))
    assert summed == pytest.approx(normal, abs=2e-3)
    assert exact_power(10**12, 1e-10, 1e-10, 0.05) == pytest.approx(1.0)  # hundred of them, all won


@given(st.integers(2, 60), st.data())
def test_what_is_detectable_does_not_depend_on_which_run_comes_first(
    n: int, data: st.DataObject
) -> None:
    values = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=n, max_size=n)
    a, b = data.draw(values), data.draw(values)
    one, other = (detectable_difference(paired_difference(*pair)) for pair in ((a, b), (b, a)))
    assert one == pytest.approx(other)


@pytest.mark.parametrize(("wins", "losses", "n"), [(0, 0, 50), (3, 1, 60), (20, 10, 200)])
def test_the_samples_that_an_effect_requires_are_those_that_detect_it(
    wins: int, losses: int, n: int
) -> None:
    effect = detectable_difference(flipped(wins, losses, n))
    assert effect is not None
    before, after, ids = np.zeros(n), np.zeros(n), np.arange(n)
    after[:wins], before[n - losses :] = 1.0, 1.0
    measured = measured_difference(before, after, samples_a=ids, samples_b=ids)
    assert measured.detectable(n) == pytest.approx(effect, rel=0.02)
    assert measured.required(detect=effect).samples == pytest.approx(n, abs=2)


@pytest.mark.slow
def test_graded_values_of_which_all_differ_detect_what_their_spread_allows() -> None:
    random = np.random.default_rng(3)
    before = random.uniform(0.3, 0.6, 200)
    found = detectable_difference(paired_difference(before, before + random.normal(0, 0.05, 200)))
    assert found is not None
    seen = 0
    for _ in range(400):
        p = paired_difference(before, before + random.normal(found, 0.05, 200)).p_value
        seen += p is not None and p < 0.05
    assert 0.74 <= figure(seen / 400) <= 0.88


def test_three_pairs_could_not_show_even_the_largest_difference() -> None:
    assert detectable_difference(flipped(0, 0, 3)) is None
