"""What changed between two points: exact on small cases, and nothing goes uncounted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from heldout.stats import paired_difference
from heldout.training.curve.flips import SampleFlip, flips
from heldout.training.curve.points import CurvePoint, ItemOutcome
from tests.training.curves import point


def scored(**rewards: float | list[float | None] | None) -> CurvePoint:
    """A point with these rewards, by sample; None is an error, a list is of repeats."""
    outcomes = [
        ItemOutcome(id, reward, repeat, error="it broke" if reward is None else None)
        for id, given in rewards.items()
        for repeat, reward in enumerate(given if isinstance(given, list) else [given])
    ]
    return point(1, outcomes=tuple(outcomes))


def test_samples_are_gained_lost_or_stay() -> None:
    found = flips(
        scored(a=0.0, b=1.0, c=1.0, d=0.2, e=0.4),
        scored(a=1.0, b=0.0, c=0.5, d=0.3, e=0.5),
        0.5,
    )
    assert found.gained == (SampleFlip("a", 0.0, 1.0), SampleFlip("e", 0.4, 0.5))
    assert found.lost == (SampleFlip("b", 1.0, 0.0),)
    assert (found.stayed_passing, found.stayed_failing) == (1, 1)
    assert (found.compared, found.not_in_both, found.errored) == (5, 0, 0)


def test_copies_of_a_sample_make_the_interval_no_narrower() -> None:
    def copied(times: int, **rewards: float) -> CurvePoint:
        outcomes = [
            ItemOutcome(f"{id}{number}", reward, copy_of=f"{id}0" if number else None)
            for id, reward in rewards.items()
            for number in range(times)
        ]
        return point(1, outcomes=tuple(outcomes))

    before, after = {"a": 0.0, "b": 0.2, "c": 0.4}, {"a": 1.0, "b": 0.3, "c": 0.4}
    once = flips(copied(1, **before), copied(1, **after), 0.5).interval
    many = flips(copied(50, **before), copied(50, **after), 0.5).interval
    assert many.high - many.low > 0.9 * (once.high - once.low)


def test_the_difference_is_paired() -> None:
    before, after = [1.0, 5.0, 9.0, 3.0], [3.0, 6.0, 10.0, 5.0]
    found = flips(
        scored(**dict(zip("abcd", before, strict=True))),
        scored(**dict(zip("dcba", reversed(after), strict=True))),
        0.5,
    )
    expected = stats.ttest_rel(after, before)
    around = expected.confidence_interval(0.95)
    assert found.difference == pytest.approx(1.5)
    assert found.stderr == pytest.approx(np.std([2, 1, 1, 2], ddof=1) / 2)
    assert found.interval.low == pytest.approx(around.low)
    assert found.interval.high == pytest.approx(around.high)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_rewards_between_0_and_1_have_the_score_interval_of_a_comparison() -> None:
    """So that a few samples, or none that changed, say something honest."""
    before, after = [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]
    found = flips(
        scored(**dict(zip("abcd", before, strict=True))),
        scored(**dict(zip("abcd", after, strict=True))),
        0.5,
    )
    expected = paired_difference(before, after)
    assert (found.interval, found.p_value) == (expected.interval, expected.p_value)
    same = flips(scored(a=1.0, b=0.0), scored(a=1.0, b=0.0), 0.5)
    assert same.interval.low < same.difference == 0 < same.interval.high
    assert same.p_value == 1


def test_gains_alone_may_still_be_no_gain() -> None:
    found = flips(scored(a=0.0, b=0.0, c=0.0), scored(a=1.0, b=0.0, c=0.0), 0.5)
    assert found.interval.low < 0


def test_repeats_count_as_one_sample_by_the_mean_of_their_scores() -> None:
    found = flips(scored(a=[1.0, 0.0, 0.0], b=[1.0, None]), scored(a=[1.0, 1.0], b=0.0), 0.5)
    assert found.gained == (SampleFlip("a", pytest.approx(1 / 3), 1.0),)
    assert found.lost == (SampleFlip("b", 1.0, 0.0),)


def test_samples_that_cannot_be_compared_are_counted_and_left_out() -> None:
    found = flips(
        scored(a=None, b=1.0, c=1.0, d=None, gone=1.0),
        scored(a=1.0, b=None, c=1.0, d=None, new=0.0, newer=0.0),
        0.5,
    )
    assert (found.errored, found.not_in_both, found.compared) == (3, 3, 1)
    assert (found.difference, found.stderr) == (0.0, None)


def test_points_that_share_nothing_have_no_difference() -> None:
    found = flips(scored(a=1.0), scored(b=1.0), 0.5)
    assert (found.compared, found.not_in_both, found.difference) == (0, 2, None)
    assert (found.stderr, found.interval, found.p_value) == (None, None, None)


rewards = st.dictionaries(
    st.sampled_from("abcdef"),
    st.none() | st.floats(-2, 2) | st.lists(st.none() | st.floats(-2, 2), min_size=1, max_size=3),
)


@given(rewards, rewards, st.floats(-1, 1))
def test_every_sample_is_counted_once_and_going_back_undoes_it(
    before: dict[str, float | None], after: dict[str, float | None], threshold: float
) -> None:
    there = flips(scored(**before), scored(**after), threshold)
    back = flips(scored(**after), scored(**before), threshold)
    assert there.compared + there.errored + there.not_in_both == len({*before, *after})
    assert {c.id for c in there.gained} == {c.id for c in back.lost}
    assert {c.id for c in there.lost} == {c.id for c in back.gained}
    assert (there.difference is None) == (there.compared == 0)
    if there.difference is not None and back.difference is not None:
        assert math.isclose(there.difference, -back.difference, abs_tol=1e-12)
