"""Accuracy, accuracy given attempted and F1 over answers that may decline."""

from __future__ import annotations

import numpy as np
import pytest

from heldout import EvalResult, Metric, Sample, Score, Stop, Trajectory
from heldout.analysis import count_three_way
from heldout.analysis.three_way import three_way_names
from heldout.errors import InvalidInput
from heldout.stats import wilson
from heldout.store.columns import summarize_results
from tests.analysis.runs import C, I, N, results_of


def one_each(*verdicts: str | None) -> list[EvalResult]:
    return results_of({f"q{i}": [verdict] for i, verdict in enumerate(verdicts)})


def test_the_three_rates_are_those_that_simpleqa_defines() -> None:
    found = count_three_way(one_each(*[C] * 40, *[I] * 30, *[N] * 30))
    assert (found.n, found.correct, found.incorrect, found.not_attempted) == (100, 40, 30, 30)
    assert found.accuracy.value == pytest.approx(0.4)
    assert (found.accuracy.count, found.accuracy.n) == (40, 100)
    given = found.accuracy_given_attempted
    assert (given.count, given.n) == (40, 70)
    harmonic = 2 / (1 / 0.4 + 70 / 40)
    assert found.f1.value == pytest.approx(harmonic) == pytest.approx(80 / 170)
    assert (found.f1.count, found.f1.n) == (80, 170)
    assert found.accuracy.interval == wilson(0.4, 100)


def test_an_errored_item_is_no_attempt_and_no_refusal_and_is_counted() -> None:
    found = count_three_way(one_each(C, I, N, None, None))
    assert (found.n, found.errored) == (3, 2)
    assert found.f1 == count_three_way(one_each(C, I, N)).f1
    assert found.accuracy.n == 3


def test_where_nothing_was_attempted_there_is_no_accuracy_given_attempted() -> None:
    found = count_three_way(one_each(N, N, N))
    assert found.accuracy_given_attempted.value is None
    assert found.accuracy_given_attempted.interval is None
    assert (found.accuracy.value, found.f1.value) == (0.0, 0.0)
    assert found.f1.interval.high > 0.3  # three items say little


def test_repeats_of_a_sample_do_not_make_it_more_certain() -> None:
    once = count_three_way(results_of({f"q{i}": [(C, I, N)[i % 3]] for i in range(60)}))
    often = count_three_way(results_of({f"q{i}": [(C, I, N)[i % 3]] * 5 for i in range(60)}))
    assert (often.n, often.samples) == (300, 60)
    assert often.f1.value == pytest.approx(once.f1.value)
    assert often.f1.stderr == pytest.approx(once.f1.stderr)


def test_the_error_of_f1_is_that_of_the_jackknife_over_samples() -> None:
    rng = np.random.default_rng(3)
    drawn = {f"q{i}": [str(rng.choice([C, I, N])) for _ in range(3)] for i in range(40)}
    found = count_three_way(results_of(drawn))
    without = []
    for left_out in drawn:
        f1 = count_three_way(results_of({k: v for k, v in drawn.items() if k != left_out})).f1.value
        assert f1 is not None
        without.append(f1)
    spread = np.array(without) - np.mean(without)
    assert found.f1.stderr == pytest.approx(np.sqrt(39 / 40 * (spread**2).sum()), rel=0.02)


def test_samples_that_share_a_key_can_be_clustered() -> None:
    results = results_of({f"{'abcdef'[i % 6]}{i}": [(C, N)[i % 6 < 3]] for i in range(60)})
    assert count_three_way(results, cluster="passage").f1.value == count_three_way(results).f1.value
    clustered, alone = count_three_way(results, cluster="passage").f1, count_three_way(results).f1
    assert (clustered.stderr or 0) > 2 * (alone.stderr or 0)


def test_a_judge_of_another_name_is_asked_for_by_it() -> None:
    results = results_of({"a": [C], "b": [N]}, name="fact")
    assert count_three_way(results, "fact").n == 2
    with pytest.raises(InvalidInput, match="no metric 'correct'.*fact_not_attempted"):
        count_three_way(results)
    assert three_way_names(summarize_results(results)) == ["fact"]
    assert three_way_names({"metric_x_not_attempted": 1.0}) == []


def test_items_without_such_metrics_are_counted_apart() -> None:
    other = Score((Metric("length", 3.0),))
    plain = EvalResult("z", Sample("z", {}), Trajectory((), Stop("environment")), other)
    half = EvalResult("y", Sample("y", {}), plain.trajectory, Score((Metric("correct", 1.0),)))
    found = count_three_way([*one_each(C, I), plain, half])
    assert (found.n, found.without, found.errored) == (2, 2, 0)


def test_metrics_that_are_no_three_way_verdict_are_refused_by_sample() -> None:
    names = {"correct": 1.0, "correct_incorrect": 1.0, "correct_not_attempted": 0.0}
    two = Score(tuple(Metric(name, value) for name, value in names.items()))
    odd = EvalResult("odd", Sample("odd", {}), Trajectory((), Stop("environment")), two)
    with pytest.raises(InvalidInput, match=r"sample 'odd': .* \[1.0, 1.0, 0.0\]; .* exactly one"):
        count_three_way([*one_each(C), odd])


def test_it_can_be_written_as_json() -> None:
    plain = count_three_way(one_each(C, C, I, N)).as_dict()
    assert plain["f1"]["value"] == pytest.approx(4 / 7)
    assert plain["accuracy"]["n"] == 4
