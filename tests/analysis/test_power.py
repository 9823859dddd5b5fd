"""How many samples it takes, from runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from heldout import EvalReport
from heldout.analysis import compare, plan
from heldout.errors import InvalidInput, NotComparable
from tests.analysis.runs import by_hand


def needed(variance: float, detect: float) -> int:
    """By Student's t, at the number itself."""
    normal = scipy_stats.norm.ppf([0.975, 0.8]).sum()
    n = max(2, math.floor((normal / detect) ** 2 * variance))  # t is larger
    while n < (scipy_stats.t(n - 1).ppf([0.975, 0.8]).sum() / detect) ** 2 * variance:
        n += 1
    return n


def answered(
    samples: int, repeats: int, *, seed: int = 0, gain: float = 0.0, name: str = "base"
) -> EvalReport:
    """Questions of different hardness; the same questions whatever the seed."""
    hard = np.linspace(0.05, 0.9, samples)
    random = np.random.default_rng(seed)
    rewards = (random.random((samples, repeats)) < (hard + gain)[:, None]).astype(float)
    return by_hand({f"s{i}": row.tolist() for i, row in enumerate(rewards)}, name=name)


def test_without_repeats_the_answer_is_a_range_and_says_why() -> None:
    report = by_hand({f"s{i}": i / 100 for i in range(100)}, name="base")
    found = plan(report, detect=0.1, repeats=(1, 4), correlation=0.5)
    variance = float(np.var(np.arange(100) / 100, ddof=1))
    one, four = found.rows
    assert one.samples == needed(2 * variance, 0.1)
    assert one.at_least == needed(variance, 0.1)
    # All of it between samples: repeats are of no use; all of it within: four times fewer.
    assert four.samples == one.at_least
    assert four.at_least == needed(2 * variance / 4, 0.1)
    assert plan(report, detect=0.01).repeats_for_these is None
    assert not found.variance_known


def test_with_repeats_the_answer_is_one_number() -> None:
    found = plan(answered(200, 8), detect=0.05)
    assert all(row.samples == row.at_least for row in found.rows)
    assert [row.repeats for row in found.rows] == [1, 2, 4, 8]
    samples = [row.samples for row in found.rows]
    assert samples == sorted(samples, reverse=True)
    assert [row.answers for row in found.rows] == [r.samples * r.repeats for r in found.rows]
    assert (found.samples, found.repeats, found.left_out) == (200, 8.0, 0)


def test_a_second_run_replaces_the_guess_and_asks_for_fewer() -> None:
    one, other = answered(300, 4), answered(300, 4, seed=1, gain=0.05, name="new")
    alone, together = plan(one, detect=0.05), plan(one, detect=0.05, against=other)
    assert (together.against, together.correlation) == ("new", None)
    for guessed, known in zip(alone.rows, together.rows, strict=True):
        assert known.samples < guessed.samples


def test_what_the_plan_asks_for_is_what_a_comparison_then_sees() -> None:
    detect = 0.08
    one, other = answered(400, 2), answered(400, 2, seed=1, gain=detect, name="new")
    row = plan(one, detect=detect, against=other, repeats=[2]).rows[0]
    seen = 0
    for trial in range(20):
        a = answered(row.samples, 2, seed=100 + trial)
        b = answered(row.samples, 2, seed=500 + trial, gain=detect, name="new")
        p_value = compare(a, b).overall.p_value
        seen += p_value < 0.05
    assert 12 <= seen <= 19  # 16 of 20


@pytest.mark.parametrize(
    ("repeats", "flips", "cluster"), [(1, 0, None), (1, 6, None), (4, 6, None), (1, 6, "passage")]
)
def test_a_plan_by_two_runs_and_their_comparison_have_one_minimum_detectable_effect(
    repeats: int, flips: int, cluster: str | None
) -> None:
    passages = {f"s{i}": {"passage": i // 5} for i in range(50)}
    rewards = {f"s{i}": [float((i + k) % 3 == 0) for k in range(repeats)] for i in range(50)}
    flipped = {f"s{i}": [1 - r for r in rewards[f"s{i}"]] for i in range(flips)}
    one = by_hand(rewards, name="a", metadata=passages)
    other = by_hand({**rewards, **flipped}, name="b", metadata=passages)
    compared = compare(one, other, cluster=cluster).minimum_detectable
    assert compared is not None
    for detect in (0.01, 0.1):
        assert plan(one, against=other, detect=detect, cluster=cluster).detectable == compared


@pytest.mark.parametrize(("repeats", "gain"), [(1, 0.05), (4, 0.0)])
def test_the_minimum_detectable_effect_is_the_one_that_requires_these_samples(
    repeats: int, gain: float
) -> None:
    one, other = answered(200, repeats), answered(200, repeats, seed=1, gain=gain, name="new")
    effect = plan(one, against=other, detect=0.05).detectable
    assert effect is not None
    again = plan(one, against=other, detect=effect, repeats=[repeats]).rows[0]
    assert again.samples == pytest.approx(200, rel=0.03)
    alone = plan(one, detect=0.05).detectable
    assert alone is not None
    assert plan(one, detect=alone, repeats=[repeats]).rows[0].samples == pytest.approx(
        200, rel=0.03
    )


def test_of_two_runs_only_samples_with_a_value_in_both_count_whatever_their_order() -> None:
    one, other = answered(60, 1), answered(60, 1, seed=1, name="new")
    rewards = {r.sample_id: r.score.reward for r in other.results}
    mixed = by_hand(dict(sorted(rewards.items(), reverse=True)), name="new")
    assert plan(one, detect=0.1, against=mixed).rows == plan(one, detect=0.1, against=other).rows
    gaps = by_hand({id: None if id == "s7" else r for id, r in rewards.items()}, name="new")
    found = plan(one, detect=0.1, against=gaps)
    assert (found.samples, found.left_out) == (59, 1)
    assert plan(gaps, detect=0.1).left_out == 1


def test_where_two_runs_were_repeated_differently_the_range_allows_for_both() -> None:
    found = plan(
        answered(60, 1), detect=0.1, against=answered(60, 3, seed=1, name="new"), repeats=[1, 3]
    )
    one, three = found.rows
    assert one.at_least < one.samples
    assert three.at_least < one.at_least == three.samples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"detect": 5}, "between 0 and 1"),
        ({"detect": 0.1, "power": 1.5}, "power must be between"),
        ({"detect": 0.1, "alpha": 0}, "alpha must be between"),
        ({"detect": 0.1, "repeats": [0]}, "at least once"),
        ({"detect": 0.1, "repeats": []}, "repeats names numbers"),
        ({"detect": 0.1, "correlation": 2}, "correlation must be between"),
        ({"detect": 0.1, "metric": "speed"}, "no metric 'speed'"),
        ({"detect": 0.1, "metric": "pass@2"}, "plan by passed"),
        ({"detect": 0.1, "repeats": 3}, "repeats names numbers"),
        ({"run": {"x": [1, 0]}}, "at least 2 of them, got 1"),
        ({"run": dict.fromkeys("xyz", 0.5)}, "does not vary.*plan with harder ones"),
        ({"against": answered(10, 2), "correlation": 0.5}, "give one of the two"),
        ({"against": by_hand({"s0": 1.0, "s1": 0.0})}, "no pair to plan by: samples: 8 samples"),
    ],
)
def test_a_plan_for_nothing_sensible_is_refused(options: dict[str, Any], message: str) -> None:
    run = by_hand(options["run"]) if "run" in options else answered(10, 2)
    settings = {"detect": 0.1, **{k: v for k, v in options.items() if k != "run"}}
    with pytest.raises((InvalidInput, NotComparable), match=message):
        plan(run, **settings)


@pytest.mark.parametrize(("rate", "detect"), [(0.0, 0.05), (0.05, 0.2), (1.0, 0.1), (0.5, 0.1)])
def test_of_rates_near_0_and_1_enough_are_asked_for_that_it_is_seen(
    rate: float, detect: float
) -> None:
    """The run to come varies more than this one, which hardly does."""
    passed = round(100 * rate)
    base = by_hand({f"s{i}": float(i < passed) for i in range(100)}, name="base")
    samples = plan(base, detect=detect, repeats=[1]).rows[0].samples
    random, after = np.random.default_rng(0), rate - detect if rate > 0.5 else rate + detect
    a, b = (random.random((2000, samples)) < r for r in (rate, after))
    wins, losses = (b & ~a).sum(axis=1), (a & ~b).sum(axis=1)
    z = np.abs(wins - losses) / np.sqrt(np.maximum(wins + losses, 1))
    assert (z > 1.96).mean() > 0.76


def test_two_runs_that_agree_in_all_still_need_a_share_of_samples_that_differ() -> None:
    one = by_hand({f"s{i}": float(i % 2) for i in range(30)}, name="a")
    other = by_hand({f"s{i}": float(i % 2) for i in range(30)}, name="b")
    assert plan(one, detect=0.02, against=other).rows[0].samples > 350


def test_samples_in_clusters_take_more_of_them() -> None:
    passages = {f"s{i}": {"passage": i // 10} for i in range(100)}
    report = by_hand({id: float(int(id[1:]) < 60) for id in passages}, metadata=passages)
    alone, together = (
        plan(report, detect=0.1, cluster=key).rows[0].samples for key in (None, "passage")
    )
    assert 8 * alone < together < 13 * alone


def test_what_compare_would_not_pair_is_not_planned_by(tmp_path: Path) -> None:
    config = {"kind": "episodes", "env": "E", "seeded": False}
    one = by_hand({"e0": 1.0, "e1": 0.0}, name="a", config=config)
    with pytest.raises(InvalidInput, match="no pairs of them to plan by"):
        plan(one, detect=0.1, against=by_hand({"e0": 1.0, "e1": 0.0}, name="b", config=config))
    one.save(tmp_path / "run")
    with pytest.raises(InvalidInput, match="compared with itself"):
        plan(tmp_path / "run", detect=0.1, against=tmp_path / "run")
