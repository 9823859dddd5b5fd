from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.stats.intervals import wilson
from heldout.stats.pass_rates import (
    pass_at_k,
    pass_at_k_by_question,
    pass_hat_k,
    pass_hat_k_by_question,
)


@st.composite
def questions(draw: st.DrawFn, most: int = 9) -> tuple[int, int, int]:
    n = draw(st.integers(1, most))
    return n, draw(st.integers(0, n)), draw(st.integers(1, n))


@given(questions())
@settings(max_examples=60, deadline=None)
def test_both_are_the_share_of_all_ways_to_pick_k_attempts(question: tuple[int, int, int]) -> None:
    n, c, k = question
    picks = list(combinations([1] * c + [0] * (n - c), k))
    at = pass_at_k_by_question([n], [c], k=k)[0]
    hat = pass_hat_k_by_question([n], [c], k=k)[0]
    assert at == pytest.approx(sum(map(any, picks)) / len(picks), abs=1e-14)
    assert hat == pytest.approx(sum(map(all, picks)) / len(picks), abs=1e-14)


@given(questions(3000))
@settings(max_examples=100, deadline=None)
def test_large_numbers_of_attempts_agree_with_exact_fractions(
    question: tuple[int, int, int],
) -> None:
    n, c, k = question
    at = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    hat = Fraction(math.comb(c, k), math.comb(n, k))
    assert pass_at_k_by_question([n], [c], k=k)[0] == pytest.approx(float(at), rel=1e-12)
    assert pass_hat_k_by_question([n], [c], k=k)[0] == pytest.approx(
        float(hat), rel=1e-10, abs=1e-300
    )


def test_a_single_success_in_a_million_attempts_keeps_its_digits() -> None:
    for by_question in (pass_at_k_by_question, pass_hat_k_by_question):
        assert by_question([10**6], [1], k=1)[0] == pytest.approx(1e-6, rel=1e-14, abs=0)
    assert pass_at_k_by_question([10**6], [1], k=500_000)[0] == pytest.approx(0.5, rel=1e-13)
    assert pass_hat_k_by_question([10**6], [10**6 - 1], k=500_000)[0] == pytest.approx(
        0.5, rel=1e-13
    )


@given(questions(60))
@settings(max_examples=60, deadline=None)
def test_more_attempts_allowed_never_lower_pass_at_k_nor_raise_pass_hat_k(
    question: tuple[int, int, int],
) -> None:
    n, c, k = question
    if k == n:
        k -= 1
    if k == 0:
        return
    slack = 1e-13
    assert pass_at_k_by_question([n], [c], k=k) <= (
        pass_at_k_by_question([n], [c], k=k + 1) + slack
    )
    assert pass_hat_k_by_question([n], [c], k=k) >= (
        pass_hat_k_by_question([n], [c], k=k + 1) - slack
    )


def test_the_estimates_are_unbiased_where_the_plain_power_is_not() -> None:
    n, p, k = 6, 0.3, 3
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    counts = list(range(n + 1))
    at = pass_at_k_by_question([n] * (n + 1), counts, k=k)
    hat = pass_hat_k_by_question([n] * (n + 1), counts, k=k)
    assert np.dot(chances, at) == pytest.approx(1 - (1 - p) ** k, abs=1e-14)
    assert np.dot(chances, hat) == pytest.approx(p**k, abs=1e-14)


def test_questions_with_different_numbers_of_attempts_count_the_same() -> None:
    rate = pass_at_k([2, 4, 100], [1, 1, 0], k=2)
    assert rate.value == pytest.approx((1 + 0.5 + 0) / 3)
    assert (rate.questions, rate.clusters) == (3, 3)


def test_the_error_is_the_spread_between_questions() -> None:
    attempts, successes = [4, 4, 8, 8], [1, 3, 2, 6]
    values = pass_hat_k_by_question(attempts, successes, k=2)
    rate = pass_hat_k(attempts, successes, k=2)
    assert rate.stderr == pytest.approx(values.std(ddof=1) / 2)
    assert rate.interval is not None
    assert 0 <= rate.interval.low < rate.value < rate.interval.high <= 1


def test_questions_of_one_cluster_count_as_one_wherever_they_stand() -> None:
    attempts, successes = [4] * 6, [0, 4, 2, 0, 4, 2]
    rate = pass_at_k(attempts, successes, k=1, clusters=["a", "b", "c", "a", "b", "c"])
    values = np.array([0, 1, 0.5])
    assert rate.clusters == 3
    # Both questions of a cluster are alike, so the cluster's value is theirs.
    assert rate.stderr == pytest.approx(values.std(ddof=1) / math.sqrt(3))
    alone = pass_at_k(attempts, successes, k=1)
    assert alone.stderr is not None
    assert rate.stderr is not None
    assert rate.stderr > alone.stderr


def test_one_attempt_a_question_gives_wilsons_interval() -> None:
    rate = pass_at_k([1] * 10, [1] * 3 + [0] * 7, k=1)
    expected = wilson(0.3, 10)
    assert rate.interval is not None
    assert rate.interval.low == pytest.approx(expected.low, abs=1e-14)
    assert rate.interval.high == pytest.approx(expected.high, abs=1e-14)


def test_no_success_is_zero_without_a_sign() -> None:
    assert str(pass_at_k_by_question([3], [0], k=2).tolist()) == "[0.0]"


def test_an_interval_keeps_its_width_where_all_questions_pass() -> None:
    rate = pass_hat_k([4] * 20, [4] * 20, k=3)
    assert rate.value == 1
    assert rate.interval is not None
    assert 0.7 < rate.interval.low < 0.9


def test_too_few_attempts_are_an_error_that_names_the_questions() -> None:
    with pytest.raises(InvalidInput, match=r"k is 3.*samples 'b', 'd' \(1 at the least\)"):
        pass_at_k([3, 2, 4, 1], [0, 0, 0, 0], k=3, names=["a", "b", "c", "d"])
    with pytest.raises(InvalidInput, match="sample #1 "):
        pass_hat_k([3, 2], [0, 0], k=3)
    with pytest.raises(InvalidInput, match="#0, #1, #2, #3, #4 and 15 more"):
        pass_at_k([1] * 20, [0] * 20, k=2)


@pytest.mark.parametrize(
    ("attempts", "successes", "k", "message"),
    [
        ([], [], 1, "no samples"),
        ([2, 2], [1], 1, r"shape \(2,\) and int64 of shape \(1,\)"),
        ([2], [3], 1, "not between 0 and the attempts for sample #0: 3 of 2"),
        ([2], [-1], 1, "not between"),
        ([2], [1], 0, "k is 0"),
        ([2.0], [1], 1, "whole numbers"),
        ([2], [math.nan], 1, "whole numbers"),
        ([[2]], [[1]], 1, "shape"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    attempts: list[int], successes: list[int], k: int, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        pass_at_k(attempts, successes, k=k)


def test_lists_beside_the_questions_have_their_length() -> None:
    with pytest.raises(InvalidInput, match="clusters has 1 ids for 2 values"):
        pass_at_k([1, 1], [0, 1], k=1, clusters=["a"])
    with pytest.raises(InvalidInput, match="confidence"):
        pass_at_k([1, 1], [0, 1], k=1, confidence=95)
