"""Score matrices of runs x tasks, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heldout import EvalReport, Metric, Score
from heldout.analysis import ScoreMatrix, aggregate, score_matrix
from heldout.errors import HeldoutError, InvalidInput
from heldout.stats import bootstrap, bootstrap_improvement
from heldout.summary import summarize_results
from heldout.vector.report import Books, VectorReport
from tests.analysis.runs import by_hand

GAMES = {"pong": 0.9, "chess": 0.5, "go": 0.1}


def one_run(seed: int, *, tasks: dict[str, float] = GAMES, name: str | None = None) -> EvalReport:
    """Two items a task, whose mean is the task's number plus a hundredth a seed."""
    rewards, metadata = {}, {}
    for task, value in tasks.items():
        for i in (0, 1):
            rewards[f"{task}-{i}"] = value + seed / 100 + (0.05 if i else -0.05)
            metadata[f"{task}-{i}"] = {"game": task}
    return by_hand(rewards, name=name or f"seed {seed}", metadata=metadata)


def all_runs(count: int = 4) -> EvalReport:
    """The same in one report, with the seed in each sample's metadata."""
    rewards: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    for seed in range(count):
        for r in one_run(seed).results:
            rewards[f"{seed}-{r.sample_id}"] = r.score.reward
            metadata[f"{seed}-{r.sample_id}"] = {**r.metadata, "seed": seed}
    return by_hand(rewards, metadata=metadata)


EXPECTED = np.array([[v + seed / 100 for v in GAMES.values()] for seed in range(4)])


def episodes(env: str, returns: list[float], name: str) -> EvalReport:
    books = Books(len(returns))
    books.ret[:] = returns
    config = {"kind": "episodes", "env": env, "experiment_name": name}
    return VectorReport({}, books, config).as_eval()


# --- The matrix ---------------------------------------------------------------------------------


def test_several_reports_are_a_run_each() -> None:
    matrix = score_matrix([one_run(seed) for seed in range(4)], tasks="game")
    np.testing.assert_allclose(matrix.scores, EXPECTED)
    assert matrix.runs == ("seed 0", "seed 1", "seed 2", "seed 3")
    assert matrix.tasks == ("pong", "chess", "go")
    assert (matrix.items, matrix.errored) == (24, 0)


def test_one_report_is_divided_by_keys() -> None:
    matrix = score_matrix(all_runs(), runs="seed", tasks="game")
    np.testing.assert_allclose(matrix.scores, EXPECTED)
    assert (matrix.runs, matrix.tasks) == (("0", "1", "2", "3"), ("pong", "chess", "go"))


def test_a_mapping_has_the_reports_of_each_task() -> None:
    by_task = {
        task: [one_run(seed, tasks={task: value}) for seed in range(4)]
        for task, value in GAMES.items()
    }
    matrix = score_matrix(by_task)
    np.testing.assert_allclose(matrix.scores, EXPECTED)
    assert matrix.runs == ("run 1", "run 2", "run 3", "run 4")


def test_run_directories_can_be_given_by_their_path(tmp_path: Path) -> None:
    for seed in range(4):
        one_run(seed).save(tmp_path / f"{seed}")
    matrix = score_matrix([tmp_path / f"{seed}" for seed in range(4)], tasks="game")
    np.testing.assert_allclose(matrix.scores, EXPECTED)


def test_without_a_key_all_samples_are_one_task() -> None:
    matrix = score_matrix([one_run(seed) for seed in range(4)])
    np.testing.assert_allclose(matrix.scores, EXPECTED.mean(axis=1, keepdims=True))


def test_a_metric_takes_the_place_of_the_reward() -> None:
    def with_length(report: EvalReport, length: float) -> EvalReport:
        results = [
            replace(r, score=Score((*r.score.metrics, Metric("length", length))))
            for r in report.results
        ]
        return replace(report, results=results)

    given = [with_length(one_run(seed), 10.0 * seed) for seed in (1, 2)]
    matrix = score_matrix(given, tasks="game", metric="length")
    assert matrix.scores.tolist() == [[10.0] * 3, [20.0] * 3]
    with pytest.raises(InvalidInput, match="'width'; it has reward, length, r"):
        score_matrix(given, metric="width")


def test_runs_of_episodes_in_one_environment_need_no_keys() -> None:
    runs = [episodes("CartPole-v1", [10.0 * i, 20.0], f"ppo {i}") for i in range(3)]
    matrix = score_matrix(runs, metric="return")
    assert matrix.scores.tolist() == [[10.0], [15.0], [20.0]]
    assert (matrix.runs, matrix.tasks) == (("ppo 0", "ppo 1", "ppo 2"), ("CartPole-v1",))


def test_runs_of_episodes_in_several_environments_are_that_many_tasks() -> None:
    given = [episodes(env, [i], f"{env} {i}") for env in ("A-v0", "B-v0") for i in (1.0, 3.0)]
    matrix = score_matrix(given, metric="return")
    assert matrix.tasks == ("A-v0", "B-v0")
    assert matrix.scores.tolist() == [[1.0, 1.0], [3.0, 3.0]]
    with pytest.raises(InvalidInput, match="'B-v0' has 1 runs where another has 2"):
        score_matrix(given[:3], metric="return")


def test_episodes_and_samples_share_no_task() -> None:
    with pytest.raises(InvalidInput, match="seed 0 is of samples"):
        score_matrix([one_run(0), episodes("A-v0", [1.0], "a")])


def test_a_missing_cell_is_named() -> None:
    part = one_run(3, tasks={"pong": 0.9, "go": 0.1})
    with pytest.raises(InvalidInput, match="run 'seed 3' has no items of task 'chess'"):
        score_matrix([one_run(0), part], tasks="game")


def test_a_cell_in_which_everything_errored_is_named() -> None:
    results = [
        replace(r, score=Score(), error="broke") if r.metadata["game"] == "go" else r
        for r in one_run(0).results
    ]
    report = replace(one_run(0), results=results)
    with pytest.raises(InvalidInput, match="'seed 0' has no reward on task 'go'.* 2 items"):
        score_matrix([one_run(1), report], tasks="game")


def test_errored_items_are_counted_and_are_zero_in_the_reward() -> None:
    results = [
        replace(r, score=Score(), error="broke") if r.sample_id == "go-1" else r
        for r in one_run(0).results
    ]
    report = replace(one_run(0), results=results)
    matrix = score_matrix([report, one_run(1)], tasks="game")
    assert matrix.errored == 1
    assert matrix.scores[0, 2] == pytest.approx(0.05 / 2)
    assert "1 of 12 items errored and count as 0" in aggregate(matrix, repetitions=10).notes


def test_a_sample_without_a_task_is_named() -> None:
    metadata = {"a": {"game": "go"}, "b": {}}
    report = by_hand({"a": 1.0, "b": 1.0}, metadata=metadata, name="half")
    with pytest.raises(InvalidInput, match="sample 'b' of half has no 'game'"):
        score_matrix(report, tasks="game")


def test_reports_of_other_samples_are_no_runs_of_one_task() -> None:
    with pytest.raises(InvalidInput, match="not of the same samples"):
        score_matrix([one_run(0), one_run(1, tasks={"pong": 0.5})])


def test_a_run_given_twice_is_refused(tmp_path: Path) -> None:
    one_run(0).save(tmp_path / "run")
    with pytest.raises(InvalidInput, match="given twice"):
        score_matrix([tmp_path / "run", EvalReport.load(tmp_path / "run")])


def test_a_key_for_runs_goes_with_one_report() -> None:
    with pytest.raises(InvalidInput, match="one report that holds several runs; 2 were given"):
        score_matrix([all_runs(), one_run(0)], runs="seed", tasks="game")


def test_keys_do_not_go_with_a_mapping_and_an_unknown_key_is_refused() -> None:
    with pytest.raises(InvalidInput, match="leave out the keys"):
        score_matrix({"go": [one_run(0)]}, tasks="game")
    with pytest.raises(HeldoutError, match="nothing called 'colour'"):
        score_matrix([one_run(0)], tasks="colour")


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no report"):
        score_matrix([])
    with pytest.raises(InvalidInput, match="no results"):
        score_matrix(EvalReport([], summarize_results([]), {}))


def test_two_runs_of_one_name_are_told_apart() -> None:
    matrix = score_matrix([one_run(0, name="ppo"), one_run(1, name="ppo")], tasks="game")
    assert matrix.runs == ("ppo", "ppo (2)")


def test_an_unfinished_run_is_said_to_be_one() -> None:
    report = one_run(0)
    part = replace(report, summary={**report.summary, "complete": False})
    assert score_matrix([part], tasks="game").notes == (
        "seed 0 is not finished: its scores are of 6 items",
    )


# --- Aggregates ---------------------------------------------------------------------------------


def made(scores: Any, tasks: tuple[str, ...]) -> ScoreMatrix:
    array = np.array(scores)
    runs = tuple(f"r{i}" for i in range(len(array)))
    return ScoreMatrix(array, runs, tasks, "reward", array.size, 0)


def test_aggregates_are_those_of_the_bootstrap_with_its_seed() -> None:
    matrix = made(EXPECTED, tuple(GAMES))
    found = aggregate(matrix, optimum=0.8, seed=3, repetitions=500)
    for name, estimate in found.estimates.items():
        assert estimate == bootstrap(matrix.scores, name, seed=3, repetitions=500, optimum=0.8)
    assert found.improvement is None
    assert found.notes == ("intervals from 4 runs are too narrow: have 5 at least",)


def test_improvement_compares_task_by_task_whatever_their_order() -> None:
    ours, theirs = made([[1.0, 5.0], [2.0, 6.0]], ("a", "b")), made([[5.5, 0.0]], ("b", "a"))
    found = aggregate(ours, theirs, repetitions=200)
    assert found.improvement == bootstrap_improvement(
        ours.scores, np.array([[0.0, 5.5]]), repetitions=200
    )
    assert found.improvement is not None
    assert found.improvement.value == (1.0 + 0.5) / 2


@pytest.mark.parametrize(("better", "who"), [(True, "beats"), (False, "loses to")])
def test_a_clean_sweep_is_no_certainty(better: bool, who: str) -> None:
    high, low = made([[3.0], [4.0]], ("a",)), made([[1.0], [2.0]], ("a",))
    found = aggregate(high, low) if better else aggregate(low, high)
    assert found.improvement is not None
    assert (found.improvement.value, found.improvement.interval) == (float(better), None)
    assert any(f"every run {who} every one of those against" in note for note in found.notes)


def test_sides_of_other_tasks_or_metrics_are_refused() -> None:
    ours, theirs = made([[1.0, 5.0]], ("a", "b")), made([[1.0, 5.0]], ("a", "c"))
    with pytest.raises(InvalidInput, match="only one of them has 'b', 'c'"):
        aggregate(ours, theirs)
    with pytest.raises(InvalidInput, match="'reward' here and of 'return' there"):
        aggregate(ours, replace(ours, metric="return"))


@pytest.mark.parametrize(
    ("runs", "expected"), [(1, "one run does not show"), (2, "2 runs are too narrow"), (5, None)]
)
def test_few_runs_are_said_to_be_few(runs: int, expected: str | None) -> None:
    scores = np.random.default_rng(0).random((runs, 3))
    found = aggregate(made(scores, ("a", "b", "c")), repetitions=100)
    assert any(expected in note for note in found.notes) if expected else not found.notes
    intervals = [estimate.interval is None for estimate in found.estimates.values()]
    assert intervals == [runs == 1] * 4


def test_runs_that_all_score_the_same_have_no_interval_and_say_so() -> None:
    found = aggregate(made([[1.0, 2.0]] * 6, ("a", "b")), optimum=5.0, repetitions=100)
    assert found.estimates["mean"].interval is None
    assert found.notes == ("on each task all runs scored the same, so there is no interval",)


def test_a_gap_to_what_every_score_reaches_is_said_to_mean_nothing() -> None:
    found = aggregate(made([[100.0], [120.0]] * 3, ("a",)), repetitions=100)
    assert found.notes == ("no score is below 1, so there is no gap to it to speak of",)


def test_as_json_they_have_stable_keys_and_what_is_not_known_is_null() -> None:
    ours, theirs = made([[1.0, 5.0]], ("a", "b")), made([[1.0, 5.0], [2.0, 2.0]], ("a", "b"))
    found = aggregate(ours, theirs, repetitions=100, seed=4).as_dict()
    assert list(found) == [
        *("metric", "n_runs", "n_tasks", "n", "n_errors", "runs", "tasks", "scores", "against"),
        *(
            name + end
            for name in (
                *("interquartile_mean", "mean", "median", "optimality_gap"),
                "improvement_probability",
            )
            for end in ("", "_ci_low", "_ci_high")
        ),
        *("optimum", "repetitions", "seed", "confidence", "notes"),
    ]
    assert (found["mean"], found["mean_ci_low"]) == (3.0, None)
    assert (found["seed"], found["repetitions"]) == (4, 100)
    assert found["against"]["n_runs"] == 2
