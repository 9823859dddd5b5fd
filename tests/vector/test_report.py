"""What is reported: every number by hand, what success is, and the run directory."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout import EvalReport
from heldout.analysis import compare
from heldout.cli.main import run_cli
from heldout.errors import InvalidInput, NotComparable, RunDirectoryError, RunExists
from heldout.stats import median_interval, wilson
from heldout.vector import EvalEvery, VectorReport, evaluate_env
from heldout.vector.episodes import episode_seed
from tests.vector.worlds import Walk, good_policy, has_terminated, played


class Plan(gymnasium.Env[Any, Any]):
    """Plays episodes from a plan, by their seeds: (steps, terminated, truncated, last info)."""

    def __init__(self, plan: list[tuple[int, bool, bool, dict[str, Any]]]) -> None:
        self.plan = plan
        self.seeds = [episode_seed(0, index) for index in range(len(plan))]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.at = self.seeds.index(seed or 0)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        steps, terminated, truncated, info = self.plan[self.at]
        if self.t < steps:
            return np.zeros(1), 1.0, False, False, {}
        return np.zeros(1), 1.0, terminated, truncated, info


def play(plan: list[tuple[int, bool, bool, dict[str, Any]]], **settings: Any) -> VectorReport:
    return evaluate_env(lambda: Plan(plan), lambda o: [0], len(plan), **settings)


PLAN: list[tuple[int, bool, bool, dict[str, Any]]] = [
    (4, True, False, {"dist": 0.0}),
    (9, False, True, {"dist": 5.0}),
    (6, True, False, {"dist": np.float32(1.0)}),
    (9, False, True, {"dist": np.nan}),
    (11, True, False, {}),
    (1, True, False, {"dist": np.array([3.0])}),
]


def test_every_number_of_the_summary() -> None:
    summary = play(PLAN, success=has_terminated).summary
    rate, middle = wilson(4 / 6, 6), median_interval(np.array([4, 6, 11, 1]))
    returns = [4, 9, 6, 9, 11, 1]
    error = statistics.stdev(returns) / 6**0.5
    expected = {
        "episodes": 6,
        "successes": 4,
        "success_rate": 4 / 6,
        "success_rate_ci_low": rate.low,
        "success_rate_ci_high": rate.high,
        "median_steps_to_goal": 5.0,
        "median_steps_to_goal_ci_low": middle and middle.low,
        "median_steps_to_goal_ci_high": middle and middle.high,
        "median_steps_to_goal_n": 4,
        "mean_return": pytest.approx(40 / 6),
        "mean_return_stderr": pytest.approx(error),
        "mean_return_ci_low": pytest.approx(40 / 6 - 2.5705818 * error),
        "mean_return_ci_high": pytest.approx(40 / 6 + 2.5705818 * error),
        "steps": 40,
        "terminated": 4,
        "truncated": 2,
        "return_mean_success": 5.5,
        "return_mean_fail": 9.0,
        "steps_p50_success": 5.0,
        "dist_at_end_p50": 2.0,
        "dist_n": 4,
        "num_envs": 1,
        "seed": 0,
        "seeded": True,
        "success_is": "success function",
        "notes": [],
    }
    assert summary == expected
    assert list(summary) == list(expected)
    unknown = dict.fromkeys(key for key in expected if "success" in key or "to_goal" in key)
    assert play(PLAN).summary == {**expected, **unknown, "return_mean_fail": None}


def test_without_successes_there_is_no_median_and_with_only_those_no_failing_return() -> None:
    failed = play([(3, False, True, {})] * 3, success=has_terminated).summary
    assert failed["success_rate"] == 0.0
    assert failed["median_steps_to_goal"] is None
    assert failed["steps_p50_success"] is None
    assert failed["return_mean_success"] is None
    assert (failed["dist_at_end_p50"], failed["dist_n"]) == (None, 0)
    won = play([(3, True, False, {})] * 3, success=has_terminated).summary
    assert won["return_mean_fail"] is None
    assert won["success_rate_ci_low"] > 0.4


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=30))
def test_rates_and_medians_are_over_what_they_say(plan: list[tuple[int, bool]]) -> None:
    episodes: list[Any] = [(steps, good, not good, {}) for steps, good in plan]
    summary = play(episodes, success=has_terminated).summary
    to_goal = [steps for steps, good in plan if good]
    assert summary["success_rate"] == len(to_goal) / len(plan)
    median = statistics.median(to_goal) if to_goal else None
    assert summary["median_steps_to_goal"] == median
    assert summary["mean_return"] == pytest.approx(statistics.mean(s for s, _ in plan))
    assert summary["steps"] == sum(steps for steps, _ in plan)


# --- What success is ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["is_success", "success"])
def test_the_environments_word_on_success_goes_before_the_way_it_ended(name: str) -> None:
    report = play([(2, True, False, {name: False}), (2, False, True, {name: np.bool_(True)})])
    assert [e.success for e in report.episodes] == [False, True]
    assert report.summary["success_is"] == f"info['{name}']"


def test_silence_beside_others_that_speak_of_success_is_a_failure_and_said() -> None:
    report = play([(2, True, False, {}), (2, True, False, {"is_success": True})])
    assert [e.success for e in report.episodes] == [False, True]
    assert report.notes == (
        "1 of 2 episodes said nothing of success where others did: they count as failures, so the "
        "success rate is a lower bound",
    )


def test_where_nothing_says_what_success_is_it_is_unknown_however_episodes_end() -> None:
    report = play([(2, True, True, {}), (3, True, False, {}), (4, False, True, {})])
    assert {e.success for e in report.episodes} == {None}
    assert report.notes == ()
    with pytest.raises(InvalidInput, match="nothing says which episodes succeeded"):
        report.as_eval("success")


def test_the_callers_predicate_goes_before_everything() -> None:
    seen = []

    def success(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
        seen.append((info, terminated, truncated, ret, steps))
        return steps > 2

    plan: list[Any] = [(2, True, False, {"is_success": True}), (3, False, True, {"a": 1})]
    report = play(plan, success=success)
    assert [e.success for e in report.episodes] == [False, True]
    assert report.summary["success_is"] == "success function"
    assert seen == [({"is_success": True}, True, False, 2.0, 2), ({"a": 1}, False, True, 3.0, 3)]


def test_a_termination_is_a_success_where_the_caller_says_so_in_a_word() -> None:
    plan: list[Any] = [(2, True, False, {"is_success": False}), (3, False, True, {})]
    report = play(plan, success="terminated")
    assert [e.success for e in report.episodes] == [True, False]
    assert (report.summary["success_is"], report.notes) == ("terminated", ())


def test_the_environments_is_success_alone_decides_where_the_caller_says_so_in_a_word() -> None:
    plan: list[Any] = [
        (2, True, False, {"is_success": True, "success": False}),
        (2, True, False, {"success": True}),
    ]
    report = play(plan, success="is_success")
    assert [e.success for e in report.episodes] == [True, False]
    assert report.summary["success_is"] == "info['is_success']"
    assert "1 of 2 episodes said nothing of success" in report.notes[0]
    report = play([(2, True, False, {"success": True})], success="is_success")
    assert (report.summary["success_is"], report.summary["success_rate"]) == (None, None)
    assert "success is 'is_success', which no episode's last info has" in report.notes[0]


@pytest.mark.parametrize("success", ["terminated", "is_success"])
def test_a_saved_report_keeps_the_word_that_said_what_success_is(
    tmp_path: Path, success: Any
) -> None:
    plan: list[Any] = [(2, True, False, {"is_success": True}), (3, False, True, {})]
    report = play(plan, success=success)
    for name in ("a", "b"):
        report.save(tmp_path / name)
    assert VectorReport.load(tmp_path / "a") == report
    assert compare(tmp_path / "a", tmp_path / "b").overall.difference == 0.0


class NeverMade(gymnasium.Env[Any, Any]):
    def __init__(self) -> None:
        raise AssertionError("made before the arguments were checked")


async def succeeds_later(info: Any, terminated: Any, truncated: Any, ret: Any, steps: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("success", "said"),
    [
        ("win", "'terminated' or 'is_success'; got 'win'"),
        (True, "got True"),
        (lambda info: True, r"too many positional arguments\): .*<lambda>\(info\)"),
        (succeeds_later, "this one is async"),
    ],
)
def test_a_success_that_cannot_decide_is_refused_before_an_environment_is_made(
    success: Any, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        evaluate_env(NeverMade, good_policy, 3, success=success)
    with pytest.raises(InvalidInput, match=said):
        EvalEvery(1, NeverMade, good_policy, 3, success=success)


def test_a_predicate_that_forgets_to_return_is_refused() -> None:
    with pytest.raises(InvalidInput, match="returned None"):
        play(PLAN, success=lambda *_: None)


# --- The run directory --------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> tuple[VectorReport, Path]:
    report = evaluate_env(Walk, good_policy, 20, num_envs=4, success=has_terminated)
    report.save(tmp_path / "walk")
    return report, tmp_path / "walk"


def test_a_saved_report_is_read_like_any_other(saved: tuple[VectorReport, Path]) -> None:
    report, path = saved
    loaded = EvalReport.load(path)
    assert loaded.status == "complete"
    assert loaded.config["env"] == "Walk"
    assert loaded.summary["mean"] == report.summary["success_rate"]
    assert loaded.summary["metric_return"] == pytest.approx(report.summary["mean_return"])
    assert loaded.summary["metric_steps_n"] == 20
    (terminated,) = (s for how, s in loaded.summarize(by="ended").items() if how == "terminated")
    assert terminated["n"] == report.summary["terminated"]
    assert loaded.summary["n_truncated"] == report.summary["truncated"]
    assert loaded.results[3].sample.input["seed"] == report.episodes[3].seed
    assert "env='Walk'" in repr(report)


def test_the_reward_of_an_episode_may_be_its_return() -> None:
    report = play(PLAN)
    converted = report.as_eval(reward="return")
    assert [r.score.reward for r in converted.results] == [e.ret for e in report.episodes]
    assert [r.sample_id for r in converted.results] == [f"episode-{i}" for i in range(len(PLAN))]
    assert converted.summary["mean"] == report.summary["mean_return"]
    assert "metric_success" not in converted.summary, "nothing said what success is"
    said = play(PLAN, success=lambda *last: last[1])
    summary = said.as_eval(reward="return").summary
    assert summary["metric_success"] == said.summary["success_rate"]


def test_an_episode_is_the_same_sample_whatever_became_of_it() -> None:
    reports = [evaluate_env(Walk, good_policy, 9, max_steps=most) for most in (None, 3)]
    assert reports[0].summary["terminated"] > reports[1].summary["terminated"]
    samples = [[result.sample for result in report.as_eval().results] for report in reports]
    assert samples[0] == samples[1]


def test_episodes_without_a_seed_are_samples_of_their_own() -> None:
    class Wilful(Walk):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=None)

    report = evaluate_env(Wilful, good_policy, 9)
    assert {episode.seed for episode in report.episodes} == {None}
    assert "n_clusters" not in report.as_eval().summary


def test_loading_it_again_gives_the_same_report(saved: tuple[VectorReport, Path]) -> None:
    report, path = saved
    again = VectorReport.load(path)
    assert again.summary == report.summary
    assert played(again) == played(report)
    assert again.notes == report.notes
    assert again.config == report.config


def test_an_end_that_was_both_comes_back_as_both(tmp_path: Path) -> None:
    report = play([(2, True, True, {"dist": 1.0}), (2, True, False, {})], success=has_terminated)
    report.save(tmp_path / "both")
    assert played(VectorReport.load(tmp_path / "both")) == played(report)


def test_a_run_is_not_overwritten_and_another_kind_is_not_loaded(
    saved: tuple[VectorReport, Path], tmp_path: Path
) -> None:
    report, path = saved
    with pytest.raises(RunExists):
        report.save(path)
    EvalReport([], {}, {"experiment_name": "other"}).save(tmp_path / "other")
    with pytest.raises(InvalidInput, match="results of samples"):
        VectorReport.load(tmp_path / "other")
    about = json.loads((path / "run.json").read_text())
    del about["config"]["seeded"]
    (path / "run.json").write_text(json.dumps(about))
    with pytest.raises(RunDirectoryError, match="no run of episodes"):
        VectorReport.load(path)


# --- Runs whose success is unknown --------------------------------------------------------------


def fall_at_once(observations: Any) -> Any:
    return np.zeros(len(observations), np.int64)


def balance(observations: Any) -> Any:
    return (observations[:, 2] + 0.4 * observations[:, 3] > 0).astype(np.int64)


@pytest.fixture
def cartpoles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[VectorReport, VectorReport]:
    """Two policies in CartPole, saved: all poles of `bad` fall, and most of `good` stand."""
    monkeypatch.chdir(tmp_path)

    def make_env() -> Any:
        return gymnasium.make("CartPole-v1", max_episode_steps=60)

    bad = evaluate_env(make_env, fall_at_once, 20, num_envs=4)
    good = evaluate_env(make_env, balance, 20, num_envs=4)
    for name, report in (("bad", bad), ("good", good)):
        report.save(name)
    return bad, good


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert run_cli([*arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_runs_of_unknown_success_are_compared_and_gated_by_their_returns(
    cartpoles: tuple[VectorReport, VectorReport], capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good = (report.summary["mean_return"] for report in cartpoles)
    found = run_json(capsys, "compare", "bad", "good")
    assert (found["verdict"], found["pass_threshold"]) == ("b_better", None)
    assert found["overall"]["difference"] == pytest.approx(good - bad)
    gate = ("gate", "--no-worse-than", "1", "--baseline")
    assert run_json(capsys, *gate, "bad", "good")["outcome"] == "pass"
    assert run_json(capsys, *gate, "good", "bad", code=1)["outcome"] == "fail"
    assert run_cli(["compare", "bad", "good", "--flips", "1"]) == 0
    shown = capsys.readouterr().out
    assert "B wins 20 samples" in shown
    assert "Flips (by" not in shown
    error = run_json(capsys, "compare", "bad", "good", "--metric", "passed", code=2)["error"]
    assert "nothing says which rewards of bad pass" in error["message"]


def test_returns_neither_pass_nor_fail_wherever_they_are_shown(
    cartpoles: tuple[VectorReport, VectorReport], capsys: pytest.CaptureFixture[str]
) -> None:
    from heldout.viewer.pages import Pages

    _, good = cartpoles
    assert VectorReport.load("good").summary == good.summary
    summary = run_json(capsys, "show", "good")["summary"]
    assert summary["mean"] == good.summary["mean_return"]
    assert (summary["pass_rate"], summary["pass_rate_ci_low"]) == (None, None)
    assert "metric_success" not in summary
    for arguments in (["show", "good"], ["show", "good", "--by", "ended"]):
        assert run_cli(arguments) == 0
        assert "passed (≥" not in capsys.readouterr().out
    error = run_json(capsys, "show", "good", "--failures", "1", code=2)["error"]
    assert "their reward is the return" in error["message"]
    assert run_cli(["sql", "good", "select distinct passed from results", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"passed": None}
    assert EvalReport.load("good").to_pandas()["passed"].isna().all()
    pages = Pages([Path.cwd()])
    run = pages.run("good")
    assert (run["pass_threshold"], run["outcomes"]["passed"], run["outcomes"]["failed"]) == (
        None, 0, 0,
    )  # fmt: skip
    assert pages.sample("good", "episode-0", 0)["outcome"] == "scored"


def test_a_run_saved_when_ending_was_success_is_read_as_unknown_and_not_compared(
    cartpoles: tuple[VectorReport, VectorReport],
) -> None:
    for name in ("bad", "good"):
        about = json.loads(Path(name, "run.json").read_text())
        about["config"] |= {"success_is": "terminated"}
        Path(name, "run.json").write_text(json.dumps(about))
    assert VectorReport.load("good").summary == cartpoles[1].summary
    with pytest.raises(NotComparable, match="an episode that terminated counted as a success"):
        compare("bad", "good")
