"""Score matrices of runs x tasks, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heldout import EvalReport, Metric, Score
from heldout.analysis import ScoreMatrix, aggregate, score_matrix
from heldout.cli.aggregate import make_notes
from heldout.errors import HeldoutError, InvalidInput, NotComparable
from heldout.stats import bootstrap, bootstrap_improvement
from heldout.store.columns import summarize_results
from heldout.vector.report import Episode, VectorReport
from tests.analysis.runs import by_hand, exact, knows, lenient, run

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


def episodes(env: str, returns: list[float], name: str, **settings: Any) -> EvalReport:
    table = [Episode(i, None, 0, ret, False, False, False) for i, ret in enumerate(returns)]
    config = {"kind": "episodes", "env": env, "experiment_name": name, **settings}
    return VectorReport({}, table, config).as_eval()


# --- The matrix ---------------------------------------------------------------------------------


ONE = one_run(0)


@pytest.mark.parametrize(
    ("given", "settings", "said"),
    [
        ([], {}, "no report"),
        (EvalReport([], summarize_results([]), {}), {}, "no results"),
        ([ONE, ONE], {}, "given twice"),
        ({"go": [ONE], "chess": [ONE]}, {}, "seed 0 was given twice"),
        ([ONE, episodes("A-v0", [1.0], "a")], {}, "seed 0 is of samples"),
        ([all_runs(), ONE], {"runs": "seed", "tasks": "game"}, "several runs; 2 were given"),
        ({"go": [ONE]}, {"tasks": "game"}, "leave out the keys"),
        ([ONE], {"tasks": "colour"}, "no key 'colour'"),
        ([ONE], {"allow": ["colour"]}, "'colour'"),
        ([ONE], {"metric": "pass@2"}, "pass@2 is over the repeats of one report"),
        (
            [ONE, one_run(3, tasks={"pong": 0.9, "go": 0.1})],
            {"tasks": "game"},
            "run 'seed 3' has no results on task 'chess'",
        ),
        (
            by_hand({"a": 1.0, "b": 1.0}, metadata={"a": {"game": "go"}, "b": {}}, name="half"),
            {"tasks": "game"},
            "sample 'b' of half has no 'game'",
        ),
        ([ONE, one_run(1, tasks={"pong": 0.5})], {}, "4 samples only in seed 0: 'chess-0'"),
        ({"x": [one_run(0, tasks={"go": 0.1}), one_run(1, tasks={"pong": 0.1})]}, {}, "'pong-0'"),
    ],
)
def test_what_is_no_matrix_is_refused(given: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(HeldoutError, match=said):
        score_matrix(given, **settings)


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
    with pytest.raises(InvalidInput, match="'width'; it has reward, passed, .*length, r"):
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
    with pytest.raises(InvalidInput, match="run 'run 2' has no results on task 'B-v0'"):
        score_matrix(given[:3], metric="return")


def test_a_cell_in_which_everything_errored_is_named() -> None:
    results = [
        replace(r, score=Score(), error="broke") if r.metadata["game"] == "go" else r
        for r in one_run(0).results
    ]
    report = replace(one_run(0), results=results)
    with pytest.raises(InvalidInput, match="'seed 0' has no reward on task 'go'.* 2 results"):
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
    assert "1 of 12 items errored and count as 0" in make_notes(aggregate(matrix, repetitions=10))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a (3)", "a", "a", "a (3)"], ("a (3)", "a", "a (4)", "a (3) (4)")),
        (["a", "a", "a (2)", "b"], ("a", "a (3)", "a (2)", "b")),
    ],
)
def test_names_that_look_like_numbered_ones_overwrite_no_run(
    names: list[str], shown: tuple[str, ...]
) -> None:
    given = [one_run(seed, name=name) for seed, name in enumerate(names)]
    matrix = score_matrix(given, tasks="game")
    np.testing.assert_allclose(matrix.scores, EXPECTED)
    assert matrix.runs == shown


def test_the_share_that_passed_can_be_aggregated() -> None:
    rewards = {"a": 0.4, "b": 0.7, "c": 1.0, "d": None}
    low, high = (by_hand(rewards, config={"pass_threshold": t}, name=f"{t}") for t in (0.3, 0.9))
    assert score_matrix([low], metric="passed").scores.tolist() == [[0.75]]
    assert score_matrix([high], metric="passed").scores.tolist() == [[0.25]]
    notes = make_notes(aggregate(score_matrix([low], metric="passed"), repetitions=10))
    assert "1 of 4 items errored and count as 0" in notes


# --- What is no two runs of one task ------------------------------------------------------------


def refused(kind: str, *given: Any, **settings: Any) -> str:
    """What a refusal says; what was allowed is kept."""
    with pytest.raises(NotComparable) as refusal:
        score_matrix([*given], **settings)
    assert refusal.value.kinds == (kind,)
    allowed = score_matrix([*given], allow=[kind], **settings).allowed
    assert {mismatch.kind for mismatch in allowed} == {kind}
    return str(refusal.value)


def with_input(report: EvalReport, id: str, question: str) -> EvalReport:
    results = [
        replace(r, sample=replace(r.sample, input={"question": question}))
        if r.sample_id == id
        else r
        for r in report.results
    ]
    return replace(report, results=results)


@pytest.mark.parametrize("tasks", [None, "game"])
def test_another_question_under_the_same_id_is_refused(tasks: str | None) -> None:
    said = refused("samples", one_run(0), with_input(one_run(1), "go-0", "new"), tasks=tasks)
    assert "seed 0 and seed 1 cannot be aggregated as runs of one task" in said
    assert "1 sample with another input or ground truth: 'go-0'" in said


def test_a_sample_that_is_of_another_task_in_another_run_is_refused() -> None:
    moved = one_run(1)
    results = [
        replace(r, metadata={"game": "chess"}) if r.sample_id == "go-0" else r
        for r in moved.results
    ]
    said = refused("samples", one_run(0), replace(moved, results=results), tasks="game")
    assert "1 sample with another game: 'go-0' has 'go' and 'chess'" in said


def test_runs_scored_in_another_way_are_refused(tmp_path: Path) -> None:
    one = run(tmp_path, "one", knows(lambda n: n < 20))
    other = run(tmp_path, "other", knows(lambda n: n < 30), score=lenient)
    again = run(tmp_path, "again", knows(lambda n: n < 10), score=exact)
    assert "score_fn is 'exact' and 'lenient'" in refused("scorer", one, other)
    matrix = score_matrix([one, again])
    assert (matrix.scores.ravel().tolist(), matrix.allowed) == ([0.5, 0.25], ())


def test_another_threshold_matters_to_what_passed_and_to_nothing_else() -> None:
    rewards = {"a": 0.4, "b": 0.7}
    given = [by_hand(rewards, config={"pass_threshold": t}, name=f"{t}") for t in (0.3, 0.5)]
    assert "pass_threshold is 0.3 and 0.5" in refused("threshold", *given, metric="passed")
    assert score_matrix(given).allowed == ()


@pytest.mark.parametrize("alone", [True, False])
def test_an_unfinished_run_is_refused(alone: bool) -> None:
    report = one_run(0)
    part = replace(report, summary={**report.summary, "complete": False}, status="interrupted")
    said = refused("incomplete", *([part] if alone else [one_run(1), part]), tasks="game")
    assert "seed 0 is not finished (interrupted): it has 6 items" in said


def test_episodes_of_another_length_or_meaning_are_refused() -> None:
    same = {"max_steps": 10, "success_is": "goal"}
    one = episodes("A-v0", [1.0], "one", **same)
    for name, value, kind in (("max_steps", 20, "environment"), ("success_is", "x", "scorer")):
        other = episodes("A-v0", [2.0], "other", **{**same, name: value})
        assert f"{name} is" in refused(kind, one, other, metric="return")


def test_environments_may_differ_in_all_of_that_from_each_other() -> None:
    given = [
        episodes(env, [float(i)] * steps, f"{env} {i}", max_steps=steps, success_is=env)
        for env, steps in (("A-v0", 2), ("B-v0", 3))
        for i in (1, 2)
    ]
    assert score_matrix(given, metric="return").allowed == ()


def test_runs_in_one_report_need_as_many_samples_of_the_same_content() -> None:
    def divided(questions: dict[str, list[str]]) -> EvalReport:
        ids = {f"{seed}-{i}": (seed, q) for seed, qs in questions.items() for i, q in enumerate(qs)}
        report = by_hand(
            dict.fromkeys(ids, 1.0), metadata={id: {"seed": seed} for id, (seed, _) in ids.items()}
        )
        for id, (_, question) in ids.items():
            report = with_input(report, id, question)
        return report

    same = divided({"0": ["x", "y"], "1": ["y", "x"]})
    assert not score_matrix(same, runs="seed").may_differ
    fewer = divided({"0": ["x", "y"], "1": ["x"]})
    assert "run '0' and run '1' have 2 and 1 samples" in refused("samples", fewer, runs="seed")
    other = divided({"0": ["x", "y"], "1": ["x", "z"]})
    assert "of task 'all' are not the same in both" in refused("samples", other, runs="seed")
    named = divided({"0": ["0: x"], "1": ["1: x"]})
    assert score_matrix(named, runs="seed").may_differ


# --- Two sides ----------------------------------------------------------------------------------


def sides_refused(kind: str, ours: ScoreMatrix, theirs: ScoreMatrix) -> str:
    with pytest.raises(NotComparable) as refusal:
        aggregate(ours, theirs, repetitions=10)
    assert refusal.value.kinds == (kind,)
    allowed = aggregate(ours, theirs, repetitions=10, allow=[kind]).allowed
    assert kind in {mismatch.kind for mismatch in allowed}
    return str(refusal.value)


def test_sides_of_other_samples_are_refused() -> None:
    ours = score_matrix([one_run(0)], tasks="game")
    changed = with_input(one_run(0), "go-0", "new")
    said = sides_refused("samples", ours, score_matrix([changed], tasks="game"))
    assert "seed 0 and seed 0 (against) cannot be compared" in said
    assert "'go-0'" in said
    fewer = by_hand({"pong-0": 1.0}, name="fewer")
    said = sides_refused("samples", score_matrix([one_run(0)]), score_matrix([fewer]))
    assert "5 samples only in seed 0" in said


def test_sides_scored_in_another_way_are_refused_task_by_task(tmp_path: Path) -> None:
    right = knows(lambda n: n < 20)
    one, two, three = (run(tmp_path, name, right) for name in "abc")
    other = run(tmp_path, "d", right, score=lenient)
    said = sides_refused("scorer", score_matrix([one]), score_matrix([other]))
    assert "score_fn is 'exact' and 'lenient'" in said
    ours = score_matrix({"x": [one], "y": [two]})
    theirs = score_matrix({"y": [other], "x": [three]})
    assert "b and d (against)" in sides_refused("scorer", ours, theirs)


def test_sides_of_several_runs_in_one_report_are_told_by_content() -> None:
    def side(first: str) -> ScoreMatrix:
        ids = [f"{first}{i}" for i in range(4)]
        report = by_hand(dict.fromkeys(ids, 1.0), metadata={id: {"seed": id[1]} for id in ids})
        for id in ids:
            report = with_input(report, id, "x" if first == "b" else "y")
        return score_matrix(report, runs="seed")

    assert not aggregate(side("a"), side("c")).may_differ
    assert aggregate(side("a"), side("b")).may_differ


def test_a_run_is_on_one_side_only(tmp_path: Path) -> None:
    one_run(0).save(tmp_path / "run")
    ours, theirs = (score_matrix([tmp_path / "run"]) for _ in range(2))
    with pytest.raises(InvalidInput, match="run is on both sides"):
        aggregate(ours, theirs)
    held = one_run(0)
    with pytest.raises(InvalidInput, match="is on both sides"):
        aggregate(score_matrix([held]), score_matrix([held, one_run(1)]))


def test_what_a_matrix_was_allowed_is_not_asked_again_of_both_sides() -> None:
    report = one_run(0)
    part = replace(report, summary={**report.summary, "complete": False})
    found = aggregate(
        score_matrix([one_run(1)]), score_matrix([part], allow=["incomplete"]), repetitions=10
    )
    assert any("against: allowed to differ: incomplete" in note for note in make_notes(found))


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
    few, of_median = make_notes(found)
    assert few == "intervals from 4 runs are too narrow: have 5 at least"
    assert of_median.startswith("the interval of a median over tasks is far too narrow for few run")


def test_improvement_compares_task_by_task_whatever_their_order() -> None:
    ours, theirs = made([[1.0, 5.0], [2.0, 6.0]], ("a", "b")), made([[5.5, 0.0]], ("b", "a"))
    found = aggregate(ours, theirs, repetitions=200)
    assert found.improvement == bootstrap_improvement(
        ours.scores, np.array([[0.0, 5.5]]), repetitions=200
    )
    assert found.improvement.value == (1.0 + 0.5) / 2


@pytest.mark.parametrize(("better", "who"), [(True, "beat"), (False, "lose to")])
def test_a_clean_sweep_is_no_certainty(better: bool, who: str) -> None:
    high, low = made([[3.0], [4.0]], ("a",)), made([[1.0], [2.0]], ("a",))
    found = aggregate(high, low) if better else aggregate(low, high)
    assert (found.improvement.value, found.improvement.interval) == (float(better), None)
    assert any(f"all of these runs {who} all baseline runs" in note for note in make_notes(found))


@pytest.mark.parametrize(
    ("runs", "expected"), [(1, "one run does not show"), (2, "2 runs are too narrow"), (5, None)]
)
def test_few_runs_are_said_to_be_few(runs: int, expected: str | None) -> None:
    scores = np.random.default_rng(0).random((runs, 2))
    found = aggregate(made(scores, ("a", "b")), repetitions=100)
    notes = [*make_notes(found)]
    assert any(expected in note for note in notes) if expected else not notes
    intervals = [estimate.interval is None for estimate in found.estimates.values()]
    assert intervals == [runs == 1] * 4


@pytest.mark.parametrize(
    ("runs", "tasks", "said"), [(5, 3, True), (49, 3, True), (50, 3, False), (5, 2, False)]
)
def test_the_median_over_tasks_needs_many_runs(runs: int, tasks: int, said: bool) -> None:
    # Over one or two tasks it is the mean, and covers as that does.
    scores = np.random.default_rng(0).random((runs, tasks))
    found = aggregate(made(scores, tuple("abc"[:tasks])), repetitions=100)
    assert any("prefer the interquartile mean" in note for note in make_notes(found)) == said


def test_runs_that_all_score_the_same_have_no_interval_and_say_so() -> None:
    found = aggregate(made([[1.0, 2.0]] * 6, ("a", "b")), optimum=5.0, repetitions=100)
    assert found.estimates["mean"].interval is None
    assert [*make_notes(found)] == [
        "on each task all runs scored the same, so there is no interval"
    ]
    found = aggregate(made([[100.0], [120.0]] * 3, ("a",)), repetitions=100)
    assert [*make_notes(found)] == ["no score is below 1, so the gap to it means nothing"]


@pytest.mark.parametrize(
    ("theirs", "settings", "said"),
    [
        (made([[1.0, 5.0]], ("a", "c")), {}, "only one of them has 'b', 'c'"),
        (replace(made([[1.0, 5.0]], ("a", "b")), metric="return"), {}, "the other of 'return'"),
        (None, {"seed": -1}, "seed must be "),
        (None, {"repetitions": 0}, "repetitions is "),
    ],
)
def test_aggregates_that_make_no_sense_are_refused(
    theirs: ScoreMatrix | None, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        aggregate(made([[1.0, 5.0]], ("a", "b")), theirs, **{"repetitions": 10, **settings})


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
                *(
                    f"{name}_difference"
                    for name in ("interquartile_mean", "mean", "median", "optimality_gap")
                ),
            )
            for end in ("", "_ci_low", "_ci_high")
        ),
        *("optimum", "repetitions", "seed", "confidence"),
    ]
    assert (found["mean"], found["mean_ci_low"]) == (3.0, None)
    assert (found["seed"], found["repetitions"]) == (4, 100)
    assert found["against"]["n_runs"] == 2
