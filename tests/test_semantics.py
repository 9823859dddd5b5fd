"""One test, or a few, for each clause of docs/semantics.md, named after it."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import msgspec
import numpy as np
import pytest

from heldout import (
    Completion,
    EvalConfig,
    EvalReport,
    EvalResult,
    Message,
    Metric,
    Reply,
    Sample,
    Sampling,
    Score,
    Stop,
    ToolCall,
    ToolSpec,
    Trajectory,
    rescore,
)
from heldout._evals.racing import run_race
from heldout._evals.rollout import EvalDefinition
from heldout.adapters.logs import import_log
from heldout.analysis import (
    aggregate,
    compare,
    gate,
    pass_at_k,
    pass_hat_k,
    score_matrix,
    summarize,
)
from heldout.analysis.judge_check import labels_of_notes
from heldout.datasets import ordered_by_id
from heldout.errors import (
    DamagedJournal,
    InvalidInput,
    NotComparable,
    ResumeMismatch,
    RunDirectoryError,
    SystemicFailure,
)
from heldout.sandbox import ProgramOutcome, open_sandbox
from heldout.scoring import (
    Judge,
    Rubric,
    compare_calls,
    grade_choice,
    grade_match,
    grade_number,
    part,
    read_calls,
    schema_accuracy,
)
from heldout.stats import PairedDifference
from heldout.store.fingerprint import describe_callable
from heldout.store.notes import write_note
from heldout.store.run_dir import RunDir
from heldout.store.sql import query
from heldout.training.curve.verdicts import best_checkpoint, judge_points
from heldout.vector import evaluate_env
from tests.analysis.runs import by_hand
from tests.conftest import RunEval, exact, make_samples
from tests.counting import Recorded, Saved
from tests.faulty_server import FaultyServer, Request, nothing_from_outside, status
from tests.sandbox.stall import FIRST, LIMIT, everything, stalled
from tests.scoring.judges.scripted import said, three_way_question
from tests.training.curves import curve


def scored(i: int, *metrics: Metric, repeat: int = 0, truncated: bool = False) -> EvalResult:
    sample = Sample(f"s{i}", {"question": f"{i}?"})
    said = Trajectory((Message("assistant", ""),), Stop(truncated=truncated))
    return EvalResult(sample.id, sample, said, Score(metrics), {}, repeat)


def errored(i: int, repeat: int = 0) -> EvalResult:
    sample = Sample(f"s{i}", {"question": f"{i}?"})
    return EvalResult(sample.id, sample, Trajectory(()), repeat=repeat, error="endpoint: 500")


def settled(rubric: Rubric, trajectory: Trajectory, sample: Sample) -> Score:
    given = rubric(trajectory, sample)
    assert isinstance(given, Score)
    return given


def reward(value: float) -> Metric:
    return Metric("r", value, weight=1.0)


def score_by_number(trajectory: Trajectory, sample: Sample) -> Score:
    """s0 errors, the others score a tenth of their number."""
    number = int(sample.id[1:])
    if number == 0:
        raise RuntimeError("cannot score this")
    return Score((Metric("tenth", number / 10, weight=1.0),))


def test_clause_01_n_is_what_was_asked_for_and_stands_beside_every_number(
    run_eval: RunEval,
) -> None:
    summary = run_eval(make_samples(5), score_by_number, repeats=2).summary
    assert summary["n"] == 10
    assert summary["n_scored"] == 8
    assert summary["n_errors"] == 2
    assert summary["n_truncated"] == 0
    assert list(summary) == [
        "n", "n_scored", "n_errors", "n_truncated", "mean", "mean_scored", "stderr", "ci_low",
        "ci_high", "std", "min", "max", "pass_rate", "pass_rate_ci_low", "pass_rate_ci_high",
        "stderr_scored", "ci_scored_low", "ci_scored_high", "metric_tenth", "metric_tenth_n",
        "metric_tenth_stderr", "metric_tenth_ci_low", "metric_tenth_ci_high",
    ]  # fmt: skip


def test_clause_01_an_unfinished_run_says_that_it_is_and_what_was_asked(
    run_eval: RunEval, tmp_path: Path
) -> None:
    def stream() -> Any:
        yield from make_samples(3)
        raise ValueError("the rest is gone")

    with pytest.raises(ValueError, match="gone"):
        run_eval(stream(), max_concurrent=1, max_samples=10)
    summary = EvalReport.load(tmp_path / "run").summary
    assert summary["complete"] is False
    assert summary["n"] == 3
    assert summary["n_asked"] == 10


def test_clause_01_every_number_over_an_unfinished_run_says_so_or_is_refused(
    tmp_path: Path, run_eval: RunEval
) -> None:
    def stream() -> Any:
        yield from (replace(s, metadata={"level": i % 2}) for i, s in enumerate(make_samples(6)))
        raise ValueError("the rest is gone")

    with pytest.raises(ValueError, match="gone"):
        run_eval(stream(), max_concurrent=1, max_samples=10, experiment_name="part")
    report = EvalReport.load(tmp_path / "part")
    asked = (report.summary["complete"], report.summary["n_asked"])
    assert asked == (False, 10)
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(NotComparable, match=r"part is not finished .* 6 of 10 items"):
            estimate(report, 1)
        assert estimate(report, 1, allow=["incomplete"]).questions == 6
    with query(report, "select ci_low from summary") as found:
        assert found.note == (
            "The run is not finished: results has 6 of 10 items, and those that end first are not "
            "like the others"
        )
    for summary in (*report.summarize(by="level").values(), summarize(report.results)):
        assert summary["complete"] is False
    rows = {"run": "part", "n": 6, "complete": False, "n_asked": 10}
    assert report.to_pandas().attrs == {"heldout": rows}
    assert json.loads(report.to_arrow().schema.metadata[b"heldout"]) == rows
    assert report.where("metadata.level = 0").to_pandas().attrs["heldout"]["complete"] is False


def test_clause_02_an_error_is_missing_data_not_a_zero_score() -> None:
    summary = summarize([scored(0, reward(0.8)), scored(1, reward(0.6)), errored(2), errored(3)])
    assert summary["mean"] == pytest.approx(0.35)
    assert summary["mean_scored"] == pytest.approx(0.7)
    assert summary["n_errors"] == 2
    values = [0.8, 0.6, 0.0, 0.0]
    assert summary["std"] == pytest.approx(np.std(values, ddof=1))
    assert summary["stderr"] == pytest.approx(np.std(values, ddof=1) / 2)
    # The least score is that of a scored item: nobody scored 0 here.
    assert (summary["min"], summary["max"]) == (0.6, 0.8)


def test_clause_03_when_every_item_errored_there_is_no_mean(run_eval: RunEval) -> None:
    def broken(trajectory: Trajectory, sample: Sample) -> Score:
        raise RuntimeError(f"grader is down for {sample.id}")

    with pytest.raises(
        SystemicFailure, match="all 4 items errored.*4 × .*grader is down for ID"
    ) as raised:
        run_eval(make_samples(4), broken, max_concurrent=1)
    assert raised.value.run_dir is not None
    summary = EvalReport.load(raised.value.run_dir).summary
    assert summary["n_errors"] == 4
    numbers = [k for k in summary if k not in ("complete",) and not k.startswith("n")]
    assert {summary[k] for k in numbers} == {None}


def test_clause_03_above_max_error_rate_there_is_no_mean_either(run_eval: RunEval) -> None:
    assert run_eval(make_samples(4), score_by_number, max_error_rate=0.25).summary["n_errors"] == 1
    with pytest.raises(SystemicFailure, match="1 of 4.*max_error_rate=0.2"):
        run_eval(make_samples(4), score_by_number, max_error_rate=0.2, experiment_name="strict")


@pytest.mark.parametrize(("n", "has_mean"), [(5, False), (9, False), (10, True)])
def test_clause_03_by_default_a_tenth_of_the_items_may_error(
    run_eval: RunEval, n: int, has_mean: bool
) -> None:
    """One error of ten is 10%, which is not above it; in a smaller run one is too many."""

    def breaks_once(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "s3":
            raise TypeError("int is not str")
        return Score((reward(0.5),))

    run = partial(
        run_eval, make_samples(n), breaks_once, max_error_rate=EvalConfig().max_error_rate
    )
    if has_mean:
        assert run().summary["mean"] == pytest.approx(0.45)
        return
    with pytest.raises(SystemicFailure, match="no mean: 1 × score_fn: TypeError: int") as raised:
        run()
    assert raised.value.run_dir is not None
    report = EvalReport.load(raised.value.run_dir)
    assert report.status == "failed"
    counts = ("n", "n_scored", "n_errors", "n_truncated", "n_asked", "metric_r_n")
    assert {key: report.summary[key] for key in counts} == {
        "n": n, "n_scored": n - 1, "n_errors": 1, "n_truncated": 0, "n_asked": n,
        "metric_r_n": n - 1,
    }  # fmt: skip
    numbers = {v for k, v in report.summary.items() if k not in (*counts, "complete")}
    assert numbers == {None}
    by_level = report.summarize(by="difficulty")
    assert {part["mean"] for part in by_level.values()} == {None}
    assert run(resume=True, max_error_rate=1).summary["mean"] == pytest.approx(0.5 * (n - 1) / n)


def test_clause_04_a_metric_is_averaged_over_the_items_that_reported_it() -> None:
    summary = summarize(
        [
            scored(0, reward(1), Metric("judge", 0.5)),
            scored(1, reward(1)),
            scored(2, reward(0), Metric("judge", 1.0)),
            errored(3),
        ]
    )
    assert summary["metric_judge"] == 0.75
    assert summary["metric_judge_n"] == 2
    assert summary["metric_judge_stderr"] == pytest.approx(0.25)
    assert summary["metric_r_n"] == 3


def test_clause_04_a_metric_has_the_interval_that_a_reward_of_the_same_values_has() -> None:
    summary = summarize([scored(i, reward(1.0)) for i in range(4)])
    assert summary["metric_r_ci_low"] == summary["ci_low"] == summary["ci_scored_low"]
    assert summary["ci_low"] < 0.6
    assert summary["metric_r_ci_high"] == summary["ci_high"] == 1.0


def test_clause_04_a_tracked_metric_of_zeros_and_ones_is_a_rate_but_not_a_constant_one() -> None:
    metrics = [(Metric("polite", float(i != 3)), Metric("turns", 1.0)) for i in range(9)]
    summary = summarize([scored(i, reward(1.0), *both) for i, both in enumerate(metrics)])
    assert summary["metric_polite_ci_high"] < 1
    assert summary["metric_turns_ci_high"] is None


def test_clause_02_a_reward_that_no_metric_has_weight_for_is_named_as_such() -> None:
    summary = summarize([scored(0, Metric("tracked", 1.0)), scored(1, reward(1.0)), errored(2)])
    assert summary["n_unweighted"] == 1
    assert "n_unweighted" not in summarize([scored(1, reward(1.0))])


def test_clause_05_a_score_function_that_raises_is_an_error_never_a_zero(run_eval: RunEval) -> None:
    report = run_eval(make_samples(3), score_by_number)
    first = report.results[0]
    assert not first.ok
    assert "score_fn: RuntimeError: cannot score this" in first.error
    assert first.score == Score()
    assert first.score.reward == 0.0  # reads as 0, but is not counted as scored
    assert report.summary["n_scored"] == 2


def test_clause_05_an_agent_that_exits_is_an_error_too(run_eval: RunEval) -> None:
    from heldout.environments.driven import Driven, DrivenConversation

    async def agent(conversation: DrivenConversation, sample: Sample) -> dict[str, Any]:
        said = (await conversation.ask([Message("user", "?")])).message.text
        if sample.id == "s0":
            sys.exit("no license")
        return {"said": said}

    definition = EvalDefinition(
        make_samples(3),
        lambda trajectory, sample: 1.0,
        lambda sample: [],
        lambda sample: Driven.of(partial(agent, sample=sample)),
    )
    report = run_eval(definition, None, timeout=60.0)
    assert "SystemExit: no license" in report.results[0].error
    assert report.summary["n_scored"] == 2


def test_clause_06_the_pass_rate_is_over_n() -> None:
    results = [scored(0, reward(0.5)), scored(1, reward(0.49)), errored(2), scored(3, reward(1))]
    summary = summarize(results)
    assert summary["pass_rate"] == 0.5
    assert summary["pass_rate_ci_low"] < 0.5 < summary["pass_rate_ci_high"]
    assert summarize(results, pass_threshold=0.9)["pass_rate"] == 0.25


def test_clause_06_an_eval_carries_its_threshold_to_whatever_runs_it(
    tmp_path: Path, run_eval: RunEval
) -> None:
    from heldout.training import PeriodicEval
    from tests.training.toys import weighted

    def half(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((reward(0.5),))

    definition = EvalDefinition(make_samples(2), half, pass_threshold=1.0)
    for experiment, set_by_user, passed in (("own", None, 0.0), ("set", 0.4, 1.0)):
        report = run_eval(definition, None, experiment_name=experiment, pass_threshold=set_by_user)
        assert (report.pass_threshold, report.summary["pass_rate"]) == (set_by_user or 1.0, passed)
        evals = PeriodicEval(
            definition,
            weighted(),
            every_steps=1,
            run_dir=tmp_path / f"c{passed}",
            pass_threshold=set_by_user,
        )
        assert evals._settings.pass_threshold == (set_by_user or 1.0)
    plain = run_eval(make_samples(2), half, experiment_name="plain")
    assert (plain.pass_threshold, plain.summary["pass_rate"]) == (0.5, 1.0)
    with pytest.raises(InvalidInput, match="pass_threshold"):
        run_eval(replace(definition, pass_threshold=math.nan), None, experiment_name="odd")


def test_clause_06_an_error_does_not_pass_whatever_the_threshold() -> None:
    results = [scored(0, reward(-1)), errored(1)]
    assert summarize(results, pass_threshold=-5)["pass_rate"] == 0.5


def test_clause_07_with_repeats_error_bars_are_clustered_by_sample() -> None:
    once = [scored(i, reward(i % 2)) for i in range(20)]
    copied = [scored(i, reward(i % 2), repeat=r) for r in range(5) for i in range(20)]
    assert summarize(copied)["stderr"] == pytest.approx(summarize(once)["stderr"])
    naive = summarize(copied)["std"] / math.sqrt(100)
    assert summarize(copied)["stderr"] > 2 * naive


def test_clause_07_samples_that_share_a_passage_are_one_cluster() -> None:
    results = [
        EvalResult(
            f"s{i}",
            Sample(f"s{i}", {}, metadata={"passage": i // 5}),
            Trajectory(()),
            Score((reward(float(i < 10)),)),
        )
        for i in range(20)
    ]
    alone, together = summarize(results), summarize(results, cluster="passage")
    assert together["mean"] == alone["mean"]
    assert together["n_clusters"] == 4
    assert together["stderr"] > 2 * alone["stderr"]


def test_clause_07_tasks_of_an_environment_are_one_cluster_only_with_equal_metadata() -> None:
    def attempts(reads_metadata: bool) -> list[EvalResult]:
        return [
            EvalResult(
                f"s{i}",
                Sample(f"s{i}", {"question": "do it"}, metadata={"files": {"a": i // 2}}),
                Trajectory((), reads_metadata=reads_metadata),
                Score((reward(float(i < 10)),)),
            )
            for i in range(20)
        ]

    assert summarize(attempts(False))["n_clusters"] == 1
    assert summarize(attempts(True))["n_clusters"] == 10
    assert summarize(attempts(True), cluster="sample_id")["n_clusters"] == 20


def test_clause_07_an_errored_attempt_is_one_that_did_not_pass() -> None:
    attempts = [scored(0, reward(1)), errored(0, 1), scored(1, reward(1)), scored(1, reward(1))]
    attempts[3] = scored(1, reward(1), repeat=1)
    assert pass_at_k(attempts, 1).value == 0.75


def test_clause_07_equal_requests_are_not_sold_as_attempts(
    run_eval: RunEval, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heldout.environments import ToolEnvironment  # any environment may have chance

    def asked(name: str, *hooks: Any, **settings: Any) -> tuple[bool, bool]:
        caplog.clear()
        given = {"endpoint": f"openai:any@{server.url}", "repeats": 8, **settings}
        report = run_eval(make_samples(1), exact, *hooks, experiment_name=name, **given)
        said = "8 attempts at each sample are the same request"
        return said in caplog.text, said in report._repr_html_()

    nothing_from_outside(monkeypatch)
    with FaultyServer() as server:
        assert asked("greedy") == (True, True)
        assert asked("sampled", sampling=Sampling(temperature=0.7)) == (False, False)
        assert asked("seeded", sampling=Sampling(seed=1)) == (False, False)
        assert asked("function", endpoint=lambda messages: "0") == (False, False)
        factory = lambda sample: ToolEnvironment([])  # noqa: E731
        assert asked("environment", None, factory) == (False, False)


def test_clause_08_a_cut_off_answer_is_counted_as_such_whatever_the_api_calls_it(
    run_eval: RunEval,
) -> None:
    reasons = ["model_length", "MAX_TOKENS", "who_knows"]

    def answer(messages: Any) -> Completion:
        number = int(messages[-1].text.rstrip("?").split()[-1])
        return Completion(Message("assistant", "4"), reasons[number])

    report = run_eval(make_samples(3), endpoint=answer)
    assert report.summary["n_truncated"] == 2
    assert [r.trajectory.stop.truncated for r in report.results] == [True, True, False]
    assert report.results[1].ok
    assert report.finish_reasons == {"length": 2, "who_knows": 1}


def test_clause_08_a_reasoning_block_that_never_closed_is_not_an_answer() -> None:
    said = Trajectory((Message("assistant", "<think>it is 42, or is it"),), Stop(truncated=True))
    assert said.answer == ""
    assert Trajectory((Message("assistant", "42 <think>or is it"),)).answer == ""


def test_clause_08_a_ready_made_grader_sees_no_answer_where_the_turn_was_cut_off() -> None:
    cut = Trajectory((Message("assistant", "Answer: 42"),), Stop(truncated=True))
    [metric] = settled(Rubric(grade_number), cut, Sample("s", {}, 42)).metrics
    assert (metric.value, metric.metadata) == (0.0, {"extracted": None, "note": "no answer"})


# --- Vectorised environments --------------------------------------------------------------------


class Walk:
    """An episode as its seed has it: so many steps, and then the goal or not."""

    made: list[Walk] = []  # noqa: RUF012 - of the one test that looks at it

    def __init__(self) -> None:
        self.closed = False
        Walk.made.append(self)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None, "an episode was started without a seed"
        self.rng = np.random.default_rng(seed)
        self.goal = bool(self.rng.random() < 0.5)
        self.left = int(self.rng.integers(2, 6)) if self.goal else 20
        return np.zeros(1), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        over = self.left == 0
        noise = float(self.rng.normal())
        return np.zeros(1), noise, over and self.goal, over and not self.goal, {"said": over}

    def close(self) -> None:
        self.closed = True


def still(observations: Any) -> Any:
    return np.zeros(len(observations))


def test_clause_09_success_is_the_callers_word_then_the_environments_and_else_unknown() -> None:
    report = evaluate_env(Walk, still, 40)
    assert (report.summary["success_is"], report.summary["success_rate"]) == (None, None)
    assert all(e.success is None for e in report.episodes)
    assert report.as_eval().summary["mean"] == report.summary["mean_return"]
    assert report.as_eval().summary["pass_rate"] is None

    class Says(Walk):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, "is_success": self.left % 2 == 0}

    assert evaluate_env(Says, still, 10).summary["success_is"] == "info['is_success']"
    assert evaluate_env(Says, still, 10).summary["success_rate"] == 1.0
    report = evaluate_env(Says, still, 10, success=lambda info, term, trunc, ret, steps: trunc)
    assert report.summary["success_is"] == "success function"
    assert all(e.success == e.truncated for e in report.episodes)
    report = evaluate_env(Says, still, 10, success="terminated")
    assert report.summary["success_is"] == "terminated"
    assert all(e.success == e.terminated for e in report.episodes)


def test_clause_10_every_denominator_is_the_episodes_asked_for() -> None:
    report = evaluate_env(Walk, still, 41, num_envs=4, success=lambda *last: last[1])
    summary, episodes = report.summary, report.episodes
    wins = sorted(e.steps for e in episodes if e.success)
    assert 0 < len(wins) < 41
    assert (summary["episodes"], summary["successes"]) == (41, len(wins))
    assert summary["success_rate"] == len(wins) / 41
    assert summary["mean_return"] == pytest.approx(sum(e.ret for e in episodes) / 41)
    middle = (wins[(len(wins) - 1) // 2] + wins[len(wins) // 2]) / 2
    assert summary["median_steps_to_goal"] == middle < 20
    never = evaluate_env(Walk, still, 5, success=lambda *_: False).summary
    assert never["success_rate"] == 0.0
    assert never["median_steps_to_goal"] is None
    cut = evaluate_env(Walk, still, 50, success=lambda *last: last[2]).summary
    assert cut["successes"] == cut["median_steps_to_goal_n"] == cut["truncated"] > 0
    assert cut["median_steps_to_goal"] is not None, "a success may be one that a time limit ended"


def test_clause_11_numbers_do_not_depend_on_how_many_play_side_by_side() -> None:
    alone = evaluate_env(Walk, still, 60, seed=5)
    for num_envs in (4, 16):
        together = evaluate_env(Walk, still, 60, num_envs=num_envs, seed=5)
        assert list(together.episodes) == list(alone.episodes)
    assert [e.index for e in alone.episodes] == list(range(60))
    assert len({e.seed for e in alone.episodes}) == 60


class FastAndSlow:
    """A batch that resets itself: slot 0 succeeds in 2 steps, slot 1 fails in 20."""

    num_envs = 2
    lengths = np.array([2, 20])

    def reset(self) -> Any:
        self.t = np.zeros(2, int)
        return np.zeros((2, 1))

    def step(self, actions: Any) -> Any:
        self.t += 1
        over = self.t == self.lengths
        self.t[over] = 0
        fast = np.array([True, False])
        return np.zeros((2, 1)), over * 1.0, over & fast, over & ~fast, {"is_success": fast}


def test_clause_11_a_fast_slot_plays_no_episode_of_a_slow_one() -> None:
    for episodes, rate in ((20, 10 / 20), (21, 11 / 21), (1, 1.0)):
        assert evaluate_env(FastAndSlow, still, episodes).summary["success_rate"] == rate


def test_clause_12_an_evaluation_makes_its_environments_and_closes_them() -> None:
    Walk.made.clear()
    evaluate_env(Walk, still, 10, num_envs=3)
    assert [env.closed for env in Walk.made] == [True] * 3

    def fails(observations: Any) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        evaluate_env(Walk, fails, 10, num_envs=3)
    assert [env.closed for env in Walk.made] == [True] * 6


def test_clause_12_an_environment_of_trainings_is_refused_and_left_as_it_is() -> None:
    from heldout.vector import EvalEvery

    train_env = Walk()
    with pytest.raises(InvalidInput, match=r"lambda: gymnasium\.make"):
        evaluate_env(lambda: train_env, still, 1)
    with pytest.raises(InvalidInput, match=r"lambda: gymnasium\.make"):
        EvalEvery(10, lambda: train_env, still, 1).maybe_run(1)
    assert not train_env.closed


# --- Mid-run ------------------------------------------------------------------------------------


def midrun(folder: Path, **settings: Any) -> Any:
    from tests.training.toys import Model, periodic

    return periodic(folder, Model(knows=6, fails=settings.pop("fails", ())), **settings)


def test_clause_13_random_state_is_as_it_was(tmp_path: Path) -> None:
    def state() -> str:
        return repr((random.getstate(), np.random.get_state()[1].tolist()))

    before = state()

    def disturb(*_: Any) -> Any:
        random.random()
        np.random.rand()

    midrun(tmp_path, model_getter=disturb).maybe_run(10)
    assert state() == before
    midrun(tmp_path, heartbeat_fn=disturb, monitor=disturb).maybe_run(20)
    assert state() == before


def test_clause_13_settings_and_attributes_are_as_they_were(tmp_path: Path) -> None:
    import torch

    from tests.training.toys import periodic

    model = torch.nn.Dropout(0.5)

    def build(model: Any) -> Any:
        torch.backends.cudnn.enabled, model.p = False, 0.1
        raise RuntimeError("whatever happens")

    periodic(tmp_path, model, runner_builder=build).maybe_run(10)
    assert (torch.backends.cudnn.enabled, model.p) == (True, 0.5)


def test_clause_14_an_eval_ends_in_a_result_or_a_skip_and_both_are_on_the_curve(
    tmp_path: Path,
) -> None:
    from heldout.training import read_points

    evals = midrun(tmp_path, fails=[str(n) for n in range(8)])
    point = evals.maybe_run(10)
    assert point.summary is None
    assert "all 8 items errored" in point.skipped
    fine = midrun(tmp_path)
    fine.maybe_run(20)
    assert [p.summary is None for p in read_points(fine.run_dir / "curve.jsonl")] == [True, False]


def test_clause_14_a_number_that_is_not_finite_is_no_result(tmp_path: Path) -> None:
    from heldout.training import AsyncEvalDispatcher

    with AsyncEvalDispatcher(run_dir=tmp_path) as evals:
        point = evals.schedule(lambda: {"accuracy": 0.5, "loss": float("inf")}, step=1).result(60)
    assert point.summary is None
    assert "loss = inf" in point.skipped


def test_clause_14_training_waits_for_a_slot_while_the_first_eval_starts(tmp_path: Path) -> None:
    import threading

    import torch

    from heldout.training import AsyncEvalDispatcher, from_functions
    from tests.training.toys import periodic, score

    begun, gate = threading.Event(), threading.Event()

    def generate(model: Any, prompts: list[str], max_new: int) -> list[str]:
        begun.set()
        assert gate.wait(60)
        return prompts

    model = torch.nn.Linear(1, 1)
    builder = from_functions(lambda messages: messages[-1].text, generate, score)
    evals = periodic(tmp_path, model, runner_builder=builder, snapshots=1)
    with AsyncEvalDispatcher() as dispatcher:
        evals.maybe_run(10)
        assert begun.wait(60)
        threading.Timer(0.1, gate.set).start()
        evals.maybe_run(20)  # waits
        dispatcher.wait_for(evals._background.scheduled, 60)
        gate.clear()
        evals.maybe_run(30)
        evals.maybe_run(40)  # does not: the first eval has ended
        gate.set()
        evals.run_final(50)
    skips = {point.step: point.skipped for point in evals.points}
    assert [step for step, why in skips.items() if why is None] == [10, 20, 30, 50]
    assert "snapshots=2" in str(skips[40])


def test_clause_15_a_point_names_its_step_and_its_weights(tmp_path: Path) -> None:
    import torch

    class Policy(torch.nn.Linear):
        def answer(self, prompts: list[str]) -> list[str]:
            return prompts

    evals, model = midrun(tmp_path), Policy(2, 2)
    first = evals.maybe_run(10, model)
    with torch.no_grad():
        model.weight += 1
    second, third = evals.maybe_run(20, model), evals.maybe_run(30, model)
    assert [p.step for p in (first, second, third)] == [10, 20, 30]
    assert first.weights != second.weights == third.weights is not None


def test_clause_15_a_resumed_attempt_supersedes_all_beyond_the_step_it_resumed_from(
    tmp_path: Path,
) -> None:
    first = midrun(tmp_path)
    for step in (10, 20, 30):
        first.maybe_run(step)
    resumed = midrun(tmp_path)
    resumed.begin(20, resume=True)
    resumed.model_getter = None
    resumed.maybe_run(30)  # a skip
    resumed.model_getter = first.model_getter
    resumed.maybe_run(40)
    found = [(point.step, point.has_result) for point in resumed.points]
    assert found == [(10, True), (20, True), (30, False), (40, True)]


def test_clause_15_a_sample_is_shown_as_its_trainer_would_show_it(tmp_path: Path) -> None:
    from heldout._live.rendering.chat_templates import ChatFormat
    from heldout.training import live_model
    from heldout.training.settings import TrainerSettings
    from tests.tiny_model import tiny_model
    from tests.training.toys import periodic

    model, tokenizer = tiny_model()
    tokenizer.chat_template += "{% if mood %} {{ mood }}{% endif %}"
    trainer = TrainerSettings(3, ChatFormat(kwargs={"mood": "w9"}))

    def point(name: str, **settings: Any) -> tuple[str, int]:
        builder = live_model(tokenizer, lambda trajectory, sample: 1.0, **settings)
        evals = periodic(tmp_path / name, model, runner_builder=builder)
        evals.use_trainer(trainer)
        point = evals.maybe_run(10)
        config = EvalReport.load(evals.run_dir / point.run).config
        return point.prompt.split(" assistant")[1], config["sampling"]["max_tokens"]

    assert point("as trained") == (" w9", 3)
    assert point("as its code says", chat_template_kwargs={"mood": "w8"}, max_new=2) == (" w8", 2)


def test_clause_16_the_same_weights_give_the_same_summary_byte_for_byte(tmp_path: Path) -> None:
    evals = midrun(tmp_path)
    first, second = evals.run_eval(1), evals.run_eval(2)
    assert msgspec.json.encode(first.summary) == msgspec.json.encode(second.summary)
    assert first.outcomes == second.outcomes


def test_clause_16_answers_are_those_of_the_models_own_forward_pass(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from heldout import run
    from heldout._live.decoding import Prompt
    from heldout.models.local import LocalEndpoint
    from tests._live.decoding.models import tokenizer
    from tests._live.decoding.test_checking import continue_plainly, state_space_model

    model, words = state_space_model("Mamba"), tokenizer()
    chat = [{"role": "user", "content": "w1 w2"}]
    ids = words.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    answer = words.decode(continue_plainly(model, Prompt(tuple(ids), 4)), skip_special_tokens=True)
    endpoint = LocalEndpoint(model, words)

    def ask() -> Any:
        return run(
            [Sample("a", {"question": "w1 w2"})],
            lambda trajectory, sample: trajectory.answer == answer,
            endpoint=endpoint,
            max_tokens=4,
            output_dir=tmp_path,
        )

    assert ask().summary["mean"] == 1.0
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(SystemicFailure, match="not finite"):
        ask()


def test_clause_17_the_last_step_is_evaluated_once_and_step_0_where_asked(tmp_path: Path) -> None:
    evals = midrun(tmp_path, at_start=True)
    for step in range(14):
        evals.maybe_run(step)
    evals.run_final(13)
    evals.run_final(13)
    assert [p.step for p in evals.points] == [0, 10, 13]


# --- Storage ------------------------------------------------------------------------------------

KILLED = """
import hashlib, os, sys
import anyio
from heldout import EvalConfig, Metric, Sample, Score, evaluate
calls = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
samples = [Sample(f"s{i}", {"question": f"{i}"}, metadata={"k": i % 3}) for i in range(100)]

# So many may be scored; then it waits to be killed, however late that comes.
allowed = [int(sys.argv[3])]

async def answer(messages):
    if allowed[0] <= 0:
        await anyio.sleep_forever()
    await anyio.sleep(0.001 * (int(messages[-1].text) * 7919 % 5))
    return messages[-1].text

def score_fn(trajectory, sample):
    allowed[0] -= 1
    os.write(calls, (sample.id + "\\n").encode())
    digest = hashlib.sha256(sample.id.encode()).digest()
    return Score((Metric("r", digest[0] / 255, 2.0), Metric("s", digest[1] / 7, 1.0),
                  Metric("t", digest[2] / 3)))

config = EvalConfig(endpoint=answer, output_dir=sys.argv[1], experiment_name="run", repeats=2,
                    max_concurrent=7, resume=True)
anyio.run(evaluate, samples, config, score_fn)
"""


def journal_items(path: Path) -> list[tuple[str, int]]:
    """(sample id, repeat) of every whole line."""
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines()[1:]
    records = [msgspec.json.decode(line) for line in whole]
    return [(r["sample"]["id"], r.get("repeat", 0)) for r in records]


def start(script: Path, out: Path, calls: Path, allowed: int = 10_000) -> subprocess.Popen[bytes]:
    root = Path(__file__).parent.parent
    command = [sys.executable, str(script), str(out), str(calls), str(allowed)]
    return subprocess.Popen(command, cwd=root)


@pytest.mark.integration
def test_clause_18_killed_at_any_moment_it_ends_in_the_report_of_an_uninterrupted_run(
    tmp_path: Path,
) -> None:
    script = tmp_path / "eval.py"
    script.write_text(KILLED)
    assert start(script, tmp_path / "whole", tmp_path / "whole.calls").wait(60) == 0

    rng = random.Random(18)
    journal = tmp_path / "killed" / "run" / "results.jsonl"
    calls = tmp_path / "killed.calls"
    killed = 0
    for target in sorted(rng.sample(range(0, 180), 6)):
        allowed = target - len(journal_items(journal)) + rng.randrange(1, 20)
        process = start(script, tmp_path / "killed", calls, allowed)
        # Kill it once the journal has grown to a random size, at a random moment after.
        while process.poll() is None and len(journal_items(journal)) < target:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.01)
        os.kill(process.pid, signal.SIGKILL)
        killed += process.wait(30) == -signal.SIGKILL
    assert killed == 6
    assert start(script, tmp_path / "killed", calls).wait(60) == 0

    whole, resumed = (tmp_path / name / "run" / "summary.json" for name in ("whole", "killed"))
    assert resumed.read_bytes() == whole.read_bytes()
    items = journal_items(journal)
    assert len(items) == 200
    assert len(set(items)) == 200, "an item that was finished was run again"
    # Only what was under way at a kill may have been scored twice: at most 7 a kill.
    assert 200 <= len(calls.read_text().split()) <= 200 + 6 * 7


LONG_EPISODES = """
import os, sys
import anyio
from heldout import Completion, EvalConfig, Message, Metric, Reply, Sample, Score, evaluate
from heldout.environment import make_snapshot, read_snapshot
from heldout.types import Usage
calls = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
allowed = [int(sys.argv[3])]  # so many model turns; then it waits to be killed

async def answer(messages):
    if allowed[0] <= 0:
        await anyio.sleep_forever()
    allowed[0] -= 1
    turn = sum(m.role == "assistant" for m in messages)
    os.write(calls, f"{messages[0].text}:{turn}\\n".encode())
    return Completion(Message("assistant", str(turn * 3 + int(messages[0].text))), "stop",
                      Usage(len(messages), 1))

class Adder:
    tools = ()
    def __init__(self, name): self.name, self.total, self.turns = name, 0, 0
    def opening(self):
        os.write(calls, f"opened {self.name}\\n".encode())
        return [Message("user", "add")]
    def reply(self, messages):
        self.total, self.turns = self.total + int(messages[-1].text), self.turns + 1
        return Reply((Message("user", f"total {self.total}"),), done=self.turns == 8)
    def outcome(self): return {"total": self.total}
    env_kind, version = "adder", "1.0"
    def snapshot(self): return make_snapshot(self, {"total": self.total, "turns": self.turns})
    def restore(self, snapshot):
        state = read_snapshot(self, snapshot)
        self.total, self.turns = state["total"], state["turns"]
    def close(self): pass

def score_fn(trajectory, sample):
    return Score((Metric("total", trajectory.outcome["total"], 1.0),))

samples = [Sample(f"s{i}", {"question": f"{i}"}) for i in range(5)]
config = EvalConfig(endpoint=answer, output_dir=sys.argv[1], experiment_name="run",
                    max_concurrent=3, resume=True, save_turns=True)
anyio.run(evaluate, samples, config, score_fn, None, lambda sample: Adder(sample.input["question"]))
"""


@pytest.mark.integration
def test_clause_18_killed_between_turns_an_episode_goes_on_where_it_was(tmp_path: Path) -> None:
    script = tmp_path / "eval.py"
    script.write_text(LONG_EPISODES)
    assert start(script, tmp_path / "whole", tmp_path / "whole.calls").wait(60) == 0
    calls, turns = tmp_path / "killed.calls", tmp_path / "killed" / "run" / "turns"
    for allowed in (7, 12):
        made = len(turn_calls(calls))
        process = start(script, tmp_path / "killed", calls, allowed)
        # All that may be made were made, and each episode in flight has saved its last one.
        while len(turn_calls(calls)) < made + allowed or not all_saved(calls, turns):
            assert process.poll() is None
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
    assert start(script, tmp_path / "killed", calls).wait(60) == 0

    assert sorted(turn_calls(calls)) == sorted(turn_calls(tmp_path / "whole.calls"))
    assert len(turn_calls(calls)) == 5 * 8, "a model turn was made twice"
    lines = calls.read_text().splitlines()
    for name in range(5):
        after = lines[lines.index(f"{name}:0") :]
        assert f"opened {name}" not in after, "a restored environment was opened again"
    whole, killed = (EvalReport.load(tmp_path / name / "run") for name in ("whole", "killed"))
    summaries = [(tmp_path / n / "run" / "summary.json").read_bytes() for n in ("whole", "killed")]
    assert summaries[0] == summaries[1]
    for one, other in zip(whole.results, killed.results, strict=True):
        assert replace(one.trajectory, timing=None) == replace(other.trajectory, timing=None)
        assert one.score == other.score
        assert one.trajectory.timing.requests == other.trajectory.timing.requests == 8
        assert one.trajectory.timing.restored_turns == 0
    restored = [r.trajectory.timing.restored_turns for r in killed.results if r.trajectory.timing]
    assert sum(count > 0 for count in restored) >= 2, "the results do not say what was restored"
    assert not turns.exists()


def test_clause_18_a_model_gets_back_what_it_said_in_that_conversation_and_no_other(
    run_eval: RunEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_from_outside(monkeypatch)

    def behave(request: Request) -> Any:
        """Calls a tool for the city that is asked for, and then says for which it has called."""
        asked, *turns = request.body["input"]
        if turns:
            city = json.loads(turns[0]["arguments"])["city"]
            return status(200, {"output": [{"type": "message", "content": [{"text": city}]}]})
        call = {"name": "weather", "arguments": json.dumps({"city": asked["content"]})}
        return status(200, {"output": [{"type": "function_call", "call_id": "weather:0", **call}]})

    class Weather:
        """No conversation goes on before each has made its call."""

        tools = (ToolSpec("weather"),)
        called: ClassVar[list[anyio.Event]] = []

        def opening(self) -> list[Message]:
            return []

        async def reply(self, messages: Any) -> Reply:
            if not messages[-1].tool_calls:
                return Reply((), done=True)
            self.called.append(event := anyio.Event())
            if len(self.called) == 3:
                for waiting in self.called:
                    waiting.set()
            await event.wait()
            return Reply([Message("tool", "Sunny.", tool_call_id="weather:0")])

        def close(self) -> None: ...

    def says_its_own_city(trajectory: Trajectory, sample: Sample) -> float:
        return float(trajectory.answer == sample.input["question"])

    with FaultyServer() as server:
        server.behave = behave
        samples = [Sample(city, {"question": city}) for city in ("Rome", "Oslo", "Lima")]
        hooks = says_its_own_city, None, lambda sample: Weather()
        report = run_eval(samples, *hooks, endpoint=f"openai-responses:gpt@{server.url}")
    assert report.summary["mean"] == 1.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": "2.0"}, "is of version '2.0', and the environment of version '1.0'"),
        ({"env_kind": "other"}, "of 'other', which 'counting' cannot restore"),
        (None, "has no env_kind and no version: "),
        ({"version": "1.9"}, None),
    ],
)
def test_clause_18_an_episode_does_not_go_on_in_another_meaning_of_its_state(
    run_eval: RunEval, tmp_path: Path, change: dict[str, Any] | None, said: str | None
) -> None:
    async def killed_at_third_turn(messages: list[Message]) -> str:
        if len(messages) >= 6:
            raise KeyboardInterrupt
        return "1"

    async def answer(messages: list[Message]) -> str:
        return "1"

    def run(function: Any) -> EvalReport:
        hooks = exact, None, lambda sample: Saved(4, [])
        return run_eval(
            make_samples(1), *hooks, endpoint=Recorded(function), resume=True, save_turns=True
        )

    with pytest.raises(KeyboardInterrupt):
        run(killed_at_third_turn)
    file = tmp_path / "run" / "turns" / "0-0.json"
    saved = json.loads(file.read_text())
    state = saved["environment"]
    saved["environment"] = state["state"] if change is None else state | change
    file.write_text(json.dumps(saved))  # as another release of the environment had saved it
    if said is None:
        [result] = run(answer).results
        assert result.trajectory.timing.restored_turns == 2
        return
    for _ in range(2):  # trying again does not go on either
        with pytest.raises(ResumeMismatch, match=said):
            run(answer)
        assert file.exists(), "what was saved is lost for the environment that saved it"
    file.unlink()
    assert run(answer).summary["n"] == 1


def turn_calls(path: Path) -> list[str]:
    """`question:turn` of every model turn that was made."""
    return [line for line in path.read_text().split() if ":" in line] if path.exists() else []


def all_saved(calls: Path, turns: Path) -> bool:
    """Whether every episode that has begun and not ended has all its turns in a file."""
    made = Counter(line.partition(":")[0] for line in turn_calls(calls))
    for question, count in made.items():
        file = turns / f"{question}-0.json"
        saved = len(json.loads(file.read_text())["model_turns"]) if file.exists() else 0
        if count < 8 and saved < count:
            return False
    return True


def test_clause_18_what_was_reported_as_done_is_in_the_file_before_anything_else_happens(
    run_eval: RunEval, tmp_path: Path
) -> None:
    """Not in a buffer of this process, where kill -9 would lose it."""
    on_disk: list[int] = []

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        on_disk.append(len(journal_items(tmp_path / "run" / "results.jsonl")))
        return Score((reward(1),))

    run_eval(make_samples(4), score, max_concurrent=1)
    assert on_disk == [0, 1, 2, 3]


def test_clause_19_loading_runs_no_code_and_follows_no_path(
    run_eval: RunEval, tmp_path: Path
) -> None:
    list(run_eval(make_samples(2)).results)  # msgspec compiles the annotations of its types once
    run = tmp_path / "run"
    secret = tmp_path / "secret.txt"
    secret.write_text("do not read")
    info = msgspec.json.decode((run / "run.json").read_bytes())
    info["config"].update(output_dir=str(secret), experiment_name="../../secret")
    info["journal"] = info["path"] = str(secret)
    info["config"]["__class__"] = {"__reduce__": ["os.system", "touch pwned"]}
    (run / "run.json").write_bytes(msgspec.json.encode(info))
    opened: list[str] = []

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and watching and not isinstance(args[0], int):  # that is open already
            opened.append(str(args[0]))
        assert not (watching and event in ("os.system", "subprocess.Popen", "exec", "compile"))

    watching = False
    sys.addaudithook(watch)
    watching = True
    try:
        report = EvalReport.load(run)
        assert len(list(report.results)) == 2
        report.summarize(by="difficulty")
    finally:
        watching = False
    assert opened
    assert all(Path(p).is_relative_to(run) for p in opened), opened


def test_clause_19_a_hostile_line_is_damage_not_a_crash(run_eval: RunEval, tmp_path: Path) -> None:
    nesting = 100_000
    run_eval(make_samples(2))
    with (tmp_path / "run" / "results.jsonl").open("ab") as file:
        file.write(b'{"index":' + b"[" * nesting + b"]" * nesting + b"}\n")
    with pytest.raises(DamagedJournal, match="line 4"):
        EvalReport.load(tmp_path / "run")


def test_clause_19_a_link_out_of_the_run_directory_is_damage(
    run_eval: RunEval, tmp_path: Path
) -> None:
    run_eval(make_samples(2))
    journal = tmp_path / "run" / "results.jsonl"
    journal.rename(tmp_path / "elsewhere")
    journal.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match=r"results\.jsonl is a symbolic link"):
        EvalReport.load(tmp_path / "run")


def test_clause_19_a_report_has_no_parts_of_two_runs(tmp_path: Path) -> None:
    reports = {name: by_hand({"x": reward}) for name, reward in (("one", 0.0), ("other", 1.0))}
    for name, report in reports.items():
        report.save(tmp_path / name)
    derived = tmp_path / "one" / "summary.json"
    derived.write_bytes((tmp_path / "other" / "summary.json").read_bytes())
    assert EvalReport.load(tmp_path / "one").summary["mean"] == 0.0


# --- Comparisons and verdicts -------------------------------------------------------------------


def test_clause_20_a_comparison_is_paired_by_sample_and_a_sample_counts_once() -> None:
    one = by_hand({"x": [1.0, 0.0], "y": 1.0, "z": 0.0}, name="a")
    other = by_hand({"z": 1.0, "y": [1.0, 1.0, 0.0, 0.0], "x": 1.0}, name="b")
    found = compare(one, other).overall
    assert isinstance(found, PairedDifference)
    assert found.n == 3
    assert found.difference == pytest.approx((0.5 - 0.5 + 1.0) / 3)


def test_clause_21_what_is_not_comparable_is_refused_and_what_was_allowed_is_said() -> None:
    one, other = by_hand({"x": 1.0, "y": 0.0}, name="a"), by_hand({"x": 1.0, "z": 0.0}, name="b")
    with pytest.raises(NotComparable, match="1 sample only in a: 'y'"):
        compare(one, other)
    assert [m.kind for m in compare(one, other, allow=["samples"]).mismatches] == ["samples"] * 2


def test_clause_21_results_selected_by_outcome_are_not_compared() -> None:
    whole = by_hand({f"s{i}": float(i % 2) for i in range(8)})
    picked = whole.where("passed")
    assert (picked.summary["mean"], picked.summary["ci_low"]) == (1.0, None)
    assert whole.where("to_json(results)->>'reward' = '1.0'").summary["ci_low"] is None
    for read in (lambda: compare(whole, picked), lambda: pass_at_k(picked, 1)):
        with pytest.raises(InvalidInput, match="picked by what came out"):
            read()


def test_clause_21_a_gate_on_copies_of_old_answers_is_refused() -> None:
    rewards = {f"s{i}": float(i % 4 > 0) for i in range(40)}
    base, copies = by_hand(rewards, name="a"), by_hand(rewards, name="b", cached=[*rewards])
    assert (copies.summary["n_cached"], copies.summary["cached_turns"]) == (40, 40)
    assert "n_cached" not in base.summary
    assert compare(base, copies).b.measured_nothing
    with pytest.raises(NotComparable, match="b measured nothing new"):
        gate(copies, baseline=base, no_worse_than=0.5)
    assert gate(copies, baseline=base, no_worse_than=0.5, allow=["cached"]).run.measured_nothing


def test_clause_22_errored_items_decide_nothing() -> None:
    ids = [f"s{i}" for i in range(60)]
    base = by_hand({id: 0.5 + i % 3 / 10 for i, id in enumerate(ids)}, name="base")
    better = {id: 0.8 + i % 3 / 10 for i, id in enumerate(ids)}
    assert compare(base, by_hand(better, name="new")).verdict == "b_better"
    broken = by_hand({**better, **dict.fromkeys(ids[:30])}, name="new")
    assert compare(base, broken).overall.difference == pytest.approx(0.3)
    assert compare(base, broken).verdict == "inconclusive"
    assert gate(broken, baseline=base, no_worse_than=0.01).outcome == "errored"


def test_clause_22_errors_count_against_the_policy_where_lower_is_better() -> None:
    ids = [f"s{i}" for i in range(400)]
    harmful = {id: float(i < 20) for i, id in enumerate(ids)}
    silent = by_hand({**harmful, **dict.fromkeys(ids[-40:])}, name="new")  # 40 refuse to answer
    found = gate(silent, max_mean=0.1)
    assert (found.outcome, found.exit_code) == ("errored", 4)
    [check] = found.checks
    assert (check.errors_as, check.with_errors.estimate) == (1.0, pytest.approx(0.15))
    # What is harmful in the baseline errors in the run: that is no improvement.
    base = by_hand({id: float(i < 80) for i, id in enumerate(ids)}, name="base")
    coward = by_hand(
        {id: None if i < 40 else float(i < 80) for i, id in enumerate(ids)}, name="new"
    )
    same = compare(base, coward, lower_is_better=True)
    assert (same.errors_as, same.with_errors.difference, same.verdict) == (1.0, 0.0, "inconclusive")
    against = gate(coward, baseline=base, no_worse_than=0.01, lower_is_better=True)
    assert against.checks[0].with_errors.estimate == 0.0


def test_clause_22_beyond_0_and_1_an_error_is_the_worst_value_on_either_side() -> None:
    lengths = {f"s{i}": 100.0 + 10 * i for i in range(6)}
    base, new = by_hand(lengths, name="a"), by_hand({**lengths, "s0": None}, name="b")
    assert compare(base, new, lower_is_better=True).errors_as == 150.0
    assert compare(base, new).errors_as == 0.0
    losses = {id: -value for id, value in lengths.items()}
    base, new = by_hand(losses, name="a"), by_hand({**losses, "s5": None}, name="b")
    assert compare(base, new).errors_as == -150.0
    assert gate(new, min_mean=-500).checks[0].errors_as == -140.0  # of the run alone


def test_clause_22_of_negative_returns_an_error_is_no_gain_in_an_aggregate_or_a_query() -> None:
    def trained(seed: int, *, errors: int = 0) -> EvalReport:
        returns = {f"s{i}": -100.0 - i - seed for i in range(10)}
        return by_hand(returns | dict.fromkeys(list(returns)[:errors]), name=f"{seed} {errors}")

    old = score_matrix([trained(seed) for seed in range(3)])
    new = score_matrix([trained(seed, errors=1) for seed in range(3)])
    assert new.errors_as == (-111.0,)
    found = aggregate(new, old, repetitions=100)
    assert found.matrix.errors_as == found.against.errors_as == (-111.0,)
    assert found.estimates["mean"].value < float(old.scores.mean())
    with query(
        trained(0, errors=1), "select avg(reward_or_0), avg(reward_or_worst) from results"
    ) as rows:
        assert [*rows.rows] == [(pytest.approx(-94.5), pytest.approx(-105.4))]
        assert "lowest reward, -109" in rows.note


def test_clause_23_a_verdict_needs_a_whole_interval() -> None:
    base = by_hand({f"s{i}": float(i < 20) for i in range(40)}, name="base")
    new = by_hand({f"s{i}": float(2 <= i < 23) for i in range(40)}, name="new")
    found = compare(base, new)
    assert found.overall.difference > 0
    assert found.verdict == "inconclusive"
    assert gate(new, baseline=base, no_worse_than=0.01).outcome == "inconclusive"


def test_clause_23_the_p_value_and_the_interval_of_a_difference_say_the_same() -> None:
    ids = [f"s{i}" for i in range(100)]
    base = by_hand({id: float(i < 4) for i, id in enumerate(ids)}, name="base")
    new = by_hand({id: float(4 <= i < 16) for i, id in enumerate(ids)}, name="new")
    found = compare(base, new)  # 12 gained, 4 lost
    assert (found.overall.wins, found.overall.losses, found.overall.test) == (12, 4, "exact")
    assert found.overall.p_value == pytest.approx(0.0768, abs=5e-5)
    assert found.overall.interval.low == 0.0
    assert found.verdict == "inconclusive"
    # A margin is held against the interval as it is, whose near end is above 0.
    [check] = gate(new, baseline=base, no_worse_than=0.0).checks
    assert (check.outcome, check.interval.low > 0) == ("pass", True)


def test_clause_24_a_flat_curve_seldom_moves_however_often_one_looks() -> None:
    random = np.random.default_rng(0)
    alarms = 0
    for _ in range(12):
        rewards = (random.random((30, 60)) < 0.5).astype(float)
        said = judge_points(curve(rewards))
        alarms += any(one.kind in ("improving", "regressing") for one in said)
    assert alarms <= 2  # 5% of 12 is less than one; by luck 3 or more would come once in fifty


def test_clause_24_a_curve_that_has_stopped_is_not_improving_and_has_improved() -> None:
    random = np.random.default_rng(1)
    rewards = random.random(64)[None] < np.array([0.2, 0.5, *[0.9] * 9])[:, None]
    last = judge_points(curve(rewards.astype(float)))[-1]
    assert (last.kind, last.since_start.kind) == ("inconclusive", "improved")
    assert "a gain of 0." in last.sentence()
    assert "would have been seen" in last.sentence()


def test_clause_24_there_is_one_verdict_for_every_reader(tmp_path: Path) -> None:
    from heldout.reporting.curves import judge_curve, latest_verdicts, read_curve
    from heldout.training.curve.points import heartbeat_fields
    from heldout.training.curve.stored_verdicts import answers

    evals = midrun(tmp_path)
    for step in (10, 20, 30):
        evals.maybe_run(step)
    stored, read = evals.points[-1].verdict, read_curve(evals.run_dir)
    assert read.points[-1].verdict == stored
    assert latest_verdicts(read) == {evals.label: stored}
    filled, lines = judge_curve(read.points, {}, read.config)
    assert filled == read.points
    assert ["".join(map(str, line.parts)) for line in lines] == answers(stored)
    assert heartbeat_fields(read.points[-1])["eval_best_text"] == stored["best_text"]


def test_clause_24_a_background_point_has_the_verdict_of_its_monitor_on_the_curve(
    tmp_path: Path,
) -> None:
    from heldout.training import AsyncEvalDispatcher, CurveMonitor, read_points
    from tests.training.toys import periodic, weighted

    evals = periodic(tmp_path, weighted(), monitor=CurveMonitor(effect=0.3))
    with AsyncEvalDispatcher():
        assert evals.maybe_run(10) is None
    [point] = read_points(evals.run_dir / "curve.jsonl")
    assert point == evals.points[0]
    assert point.verdict["effect"] == 0.3


def test_clause_25_the_best_checkpoint_is_reported_as_one_that_was_picked() -> None:
    random = np.random.default_rng(1)
    rewards = (random.random((20, 100)) < 0.5).astype(float)
    best = best_checkpoint(curve(rewards))
    assert best.raw == rewards.mean(axis=1).max() > best.estimate
    assert best.interval.low < 0.5 < best.interval.high


# --- Scoring ------------------------------------------------------------------------------------


def test_clause_26_the_stated_answer_counts_and_nothing_is_guessed() -> None:
    grade = grade_number("Answer: 7. No, wait.\n**Answer:** -$29.00", -29)
    assert (grade.value, grade.extracted) == (1.0, "-$29.00")
    for several in ("Answer: 7\nAnswer: 29", r"\boxed{7} \boxed{29}"):
        grade = grade_number(several, 29)
        assert (grade.value, grade.extracted) == (0.0, None)
        assert grade.note.startswith("ambiguous")
    assert grade_number("I can't tell. <!-- Answer: 29 -->", 29).value == 0.0
    assert grade_match("It is not Paris.", "Paris").value == 0.0
    for undecided in ("It is 28, or 29, or 30.", "Answer: 29 or 30", r"\boxed{29} so \boxed{29"):
        assert grade_number(undecided, 29).value == 0.0
    assert grade_choice("Answer: B or C", "C").value == 0.0
    assert grade_choice("A nice question about C and D.", "C").extracted is None


def test_clause_27_a_rubric_is_known_by_its_parts_and_one_that_raises_is_the_items_error(
    run_eval: RunEval,
) -> None:
    def picky(answer: str) -> float:
        if answer == "1":
            raise ValueError("not one")
        return 1.0

    known = describe_callable(Rubric(part(grade_number, name="correct", weight=2), picky))
    assert [(p["name"], p.get("weight"), p.get("version")) for p in known["parts"]] == [
        ("correct", 2, 7),
        ("picky", None, None),
    ]
    length = part(lambda answer: len(answer), name="n", weight=0)
    report = run_eval(make_samples(3), Rubric(picky, length))
    assert report.summary["n_errors"] == 1
    assert report.summary["metric_n_n"] == 2


def test_clause_28_a_judge_gives_a_verdict_or_the_item_has_none(run_eval: RunEval) -> None:
    replies = {
        "0": '{"reasoning": "the same", "verdict": "correct"}',
        "1": "CORRECT: A. Well, the answer seems correct.",
        "2": '{"reasoning": "it declines", "verdict": "not_attempted"}',
    }

    def model(messages: list[Message]) -> str:
        return next(reply for n, reply in replies.items() if f"what is {n}?" in messages[1].text)

    report = run_eval(make_samples(3), Rubric(Judge(model, attempts=2).three_way()))
    assert [r.ok for r in report.results] == [True, False, True]
    assert "gave no verdict in 2 attempts" in (report.results[1].error or "")
    assert report.summary["metric_correct_given_attempted"] == 1.0
    assert report.summary["metric_correct_given_attempted_n"] == 1


def test_clause_28_a_judge_that_trains_gives_no_verdicts_of_its_old_weights() -> None:
    import torch

    model = torch.nn.Linear(1, 1)
    question = three_way_question("2+2?", "four", "4")

    def judging(messages: list[Message]) -> str:
        assert model is not None
        return said("correct")

    judge = Judge(judging)
    first, again = anyio.run(judge.ask, question), anyio.run(judge.ask, question)
    torch.nn.init.ones_(model.weight)
    assert (first.cached, again.cached, anyio.run(judge.ask, question).cached) == (
        False,
        True,
        False,
    )


def test_clause_29_tool_calls_count_where_the_finish_reason_says_so() -> None:
    tools = [ToolSpec("f", parameters={"type": "object", "required": ["x"]})]

    def said(reason: str, *arguments: str) -> Any:
        calls = tuple(ToolCall(f"c{i}", "f", text) for i, text in enumerate(arguments))
        return read_calls(Completion(Message("assistant", "", tool_calls=calls), reason), tools)

    ours = {
        "a": said("tool_calls", '{"x": 1}'),
        "b": said("tool_calls", "{}"),
        "c": said("stop", '{"x": 1}'),
        "d": said("tool_calls"),
    }
    theirs = {"a": said("tool_calls", '{"x": 1}'), "b": said("stop"), "c": said("tool_calls")}
    accuracy, trigger = schema_accuracy(ours.values()), compare_calls(ours, theirs)
    assert (accuracy.count, accuracy.n) == (1, 3)
    assert (trigger.both, trigger.only_ours, trigger.only_theirs) == (1, 1, 1)
    assert trigger.f1.value == 0.5


def test_clause_30_scoring_again_asks_nobody_and_names_its_parent(run_eval: RunEval) -> None:
    asked = []

    async def policy(messages: list[Message]) -> str:
        asked.append(messages[-1].text)
        return "Answer: 1"

    before = run_eval(make_samples(4), endpoint=policy)
    again = anyio.run(rescore, before, Rubric(part(grade_number, name="correct")))
    assert len(asked) == 4
    assert again.config["parent"]["run"] == "run"
    assert compare(before, again).overall.difference == 0.25


def test_clause_31_a_note_is_about_one_answer_and_changes_no_number(run_eval: RunEval) -> None:
    report = run_eval(make_samples(2), endpoint=lambda messages: "Answer: 1")
    assert report.path is not None
    run, result = RunDir(report.path), report.results[0]
    before = {path.name: path.read_bytes() for path in run.path.iterdir()}
    write_note(run, result, "correct", "")
    assert len(labels_of_notes(report, "equality")[0]) == 1
    other = replace(result, trajectory=Trajectory((Message("assistant", "Answer: 2"),)))
    write_note(run, other, "correct", "")
    with pytest.raises(InvalidInput, match="no note that labels an answer"):
        labels_of_notes(report, "equality")
    assert {p.name: p.read_bytes() for p in run.path.iterdir() if p != run.notes} == before
    assert EvalReport.load(run.path).summary == report.summary


def test_clause_32_an_imported_number_is_the_logs_own_or_the_run_says_so(tmp_path: Path) -> None:
    rows = [{"example_id": i, "prompt": "?", "completion": "!", "reward": i % 2} for i in range(4)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    logs = {"same": (lines, 0.5), "other": (lines, 0.75), "cut": (lines[:-9], 0.5)}
    for name, (content, there) in logs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text(content)
        (tmp_path / name / "metadata.json").write_text(json.dumps({"avg_reward": there}))
    same, other, cut = (
        import_log(tmp_path / name, output_dir=tmp_path / "runs", name=name) for name in logs
    )
    assert same.config["imported"]["own_results"] == {"compared": 1, "differ": []}
    (differ,) = other.config["imported"]["own_results"]["differ"]
    assert (differ["name"], differ["log"], differ["run"]) == ("avg_reward", 0.75, 0.5)
    assert "one of the two was changed later" in differ["why"]
    assert (cut.status, cut.summary["n"]) == ("interrupted", 3)


@pytest.mark.integration
@pytest.mark.needs("bubblewrap")
def test_clause_33_a_time_limit_counts_time_in_which_the_program_could_run() -> None:
    async def main(rest: str) -> ProgramOutcome:
        async with open_sandbox() as sandbox:
            with stalled(everything):
                return await sandbox.run(["bash", "-c", f"{FIRST}; {rest}"], timeout=LIMIT)

    outcome = anyio.run(main, "true")
    assert outcome.exit == 0
    assert outcome.stalled > LIMIT
    assert anyio.run(main, "sleep 100").reason == "timeout"


# --- Runs that stop -----------------------------------------------------------------------------


def is_known(number: str, rate: float) -> bool:
    digest = hashlib.blake2b(number.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < rate


def stopping_eval(run_eval: RunEval, rate: float, **settings: Any) -> EvalReport:
    """Run an eval of 200 questions on a model that knows this share, and is slow where it fails."""

    async def answer(messages: list[Message]) -> str:
        number = messages[-1].text.split()[-1].rstrip("?")
        for _ in range(3 if is_known(number, rate) else 9):
            await anyio.sleep(0)
        return number if is_known(number, rate) else "no"

    return run_eval(make_samples(200), endpoint=answer, **settings)


def test_clause_01_of_a_stopped_run_n_is_the_prefix_and_n_asked_the_set(run_eval: RunEval) -> None:
    report = stopping_eval(run_eval, 0.95, until="mean>0.7")
    summary = report.summary
    assert summary["stopped"] is True
    assert summary["n"] == len(report.results) < summary["n_asked"] == 200
    assert "complete" not in summary


def test_clause_18_a_run_that_stops_is_resumed_with_its_claim_alone(run_eval: RunEval) -> None:
    report = stopping_eval(run_eval, 0.95, until="mean>0.7")
    with pytest.raises(ResumeMismatch, match="until was"):
        stopping_eval(run_eval, 0.95, until="mean>0.8", resume=True)
    again = stopping_eval(run_eval, 0.95, until="mean>0.7", resume=True)
    assert (again.summary, again.settled) == (report.summary, report.settled)
    finished = stopping_eval(run_eval, 0.95, until="none", resume=True)
    plain = stopping_eval(run_eval, 0.95, experiment_name="plain")
    assert finished.summary == plain.summary


def test_clause_34_the_same_answers_lead_to_the_same_stop_whatever_the_concurrency(
    run_eval: RunEval, tmp_path: Path
) -> None:
    for concurrent in (1, 8, 64):
        name = f"at-{concurrent}"
        report = stopping_eval(
            run_eval, 0.9, until="mean>0.7", max_concurrent=concurrent, experiment_name=name
        )
        assert report.settled is not None
        assert report.settled.n_decided <= report.settled.n_spent
        assert report.settled.n_spent <= report.settled.n_decided + concurrent
    summaries = {(tmp_path / f"at-{n}" / "summary.json").read_bytes() for n in (1, 8, 64)}
    assert len(summaries) == 1


def test_clause_34_a_look_decides_where_both_readings_of_errors_decide_alike(
    run_eval: RunEval,
) -> None:
    numbers = [sample.ground_truth for sample in ordered_by_id(make_samples(200), 0)]

    def decided(errored: int) -> int:
        async def answer(messages: list[Message]) -> str:
            number = messages[-1].text.split()[-1].rstrip("?")
            if number in numbers[:errored]:
                raise ValueError("broken")
            return number

        name = f"errored-{errored}"
        report = run_eval(
            make_samples(200), endpoint=answer, until="mean>0.7", experiment_name=name
        )
        assert report.settled is not None
        return report.settled.n_decided

    assert decided(0) < decided(2)


def test_clause_34_a_stream_has_its_own_order_and_no_number_of_items_asked_for(
    run_eval: RunEval,
) -> None:
    samples = make_samples(200)
    report = run_eval(iter(samples), until="mean>0.7")
    assert report.settled is not None
    assert (report.settled.decision, report.settled.n_asked) == ("true", None)
    n = report.summary["n"]
    assert [result.sample_id for result in report.results] == [s.id for s in samples[:n]]
    assert report.summary["n_asked"] is None
    copies = iter([samples[0], replace(samples[0], id="copy")])
    with pytest.raises(InvalidInput, match="has the content of an earlier one"):
        run_eval(copies, until="mean>0.7", experiment_name="copies")


def test_clause_35_what_a_stopped_run_says_holds_although_it_was_stopped(
    run_eval: RunEval,
) -> None:
    report = stopping_eval(run_eval, 0.95, until="mean>0.7")
    settled = report.settled
    assert settled is not None
    assert settled.interval is not None
    assert settled.decision == "true"
    assert settled.interval[0] > 0.7
    assert report.summary["ci_low"] is None
    assert all(part["ci_low"] is None for part in report.summarize(by="difficulty").values())
    for judge in (
        partial(gate, report, min_mean=0.6),
        partial(pass_at_k, report, 1),
        partial(score_matrix, [report]),
    ):
        with pytest.raises(NotComparable, match="was stopped by until"):
            judge()
    assert gate(report, min_mean=0.7).outcome == "pass"


def test_clause_35_in_a_race_a_model_is_dropped_with_intervals_that_hold_together(
    tmp_path: Path,
) -> None:
    def config(name: str, rate: float) -> EvalConfig:
        def answer(messages: list[Message]) -> str:
            number = messages[-1].text.split()[-1].rstrip("?")
            return number if is_known(f"{name}:{number}", rate) else "no"

        return EvalConfig(answer, experiment_name=name, output_dir=str(tmp_path))

    entrants = {name: config(name, rate) for name, rate in (("good", 0.9), ("bad", 0.3))}
    found = anyio.run(run_race, EvalDefinition(make_samples(200), exact), entrants)
    winner, loser = found.placed
    assert (found.decision, winner.name, loser.beaten_by) == ("best_known", "good", "good")
    assert loser.difference_interval is not None
    assert loser.difference_interval.high < 0
    assert winner.interval is not None
    assert winner.interval.low <= winner.mean <= winner.interval.high
    run = EvalReport.load(tmp_path / "bad")
    assert run.summary["n"] == loser.n_decided < 200
    with pytest.raises(NotComparable, match="was stopped by a race"):
        compare(EvalReport.load(tmp_path / "good"), run, allow=["samples"])
