from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import anyio
import numpy as np
import pytest

from heldout import (
    EvalConfig,
    EvalDefinition,
    EvalReport,
    Message,
    Metric,
    Sample,
    Sampling,
    Score,
    Trajectory,
)
from heldout._core.config import LOCAL_MAX_TOKENS
from heldout.analysis.passes import summarize_report
from heldout.environment import Reply
from heldout.errors import (
    DuplicateSampleId,
    EvalFailed,
    InvalidInput,
    ResumeMismatch,
    RunBusy,
    RunExists,
)
from heldout.scoring import Rubric, grade_exact, part
from heldout.store.run_dir import RunDir
from heldout.training import (
    AsyncEvalDispatcher,
    CurveMonitor,
    PeriodicEval,
    Runner,
    current_points,
    from_functions,
    live_model,
    measuring,
    read_points,
    set_version,
)
from heldout.training.curve.points import CurveWriter, point_fields, request_stop
from heldout.training.curve.verdicts import Judgement
from heldout.training.settings import TrainerSettings
from tests._live.decoding.models import Spelling
from tests.training.curves import CLIMB, curve
from tests.training.toys import (
    Clock,
    Heartbeats,
    Model,
    builder,
    periodic,
    questions,
    score,
    weighted,
)


def echo(requests: Any, keep_going: Any) -> Any:
    return [r.messages[-1].text for r in requests]


def answering(answer: Any = echo, score_fn: Any = score, **settings: Any) -> Any:
    """A builder of a runner that repeats what it is asked, unless it is given another function."""
    return lambda model: Runner(answer, score_fn, **{"max_error_rate": 1, **settings})


def taking(clock: Clock, seconds: float) -> Any:
    """Answer like `echo`, and have the clock move by so much for each batch."""

    def answer(requests: Any, keep_going: Any) -> Any:
        clock.now += seconds
        return echo(requests, keep_going)

    return answer


def limits_into(seen: list[int], score_fn: Any = score, **settings: Any) -> Any:
    """A builder whose generate notes what length it is given."""

    def generate(model: Any, prompts: list[str], max_new: int) -> list[str]:
        seen.append(max_new)
        return ["?"] * len(prompts)

    return from_functions(lambda messages: messages[-1].text, generate, score_fn, **settings)


def steps(evals: PeriodicEval) -> list[int]:
    return [point.step for point in read_points(evals.run_dir / "curve.jsonl")]


# --- Cadence ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_start", "due"), [(False, [10, 20, 30]), (True, [0, 10, 20, 30])])
def test_evals_are_due_at_multiples(tmp_path: Path, at_start: bool, due: list[int]) -> None:
    evals = periodic(tmp_path, at_start=at_start)
    assert [s for s in range(31) if evals.should_run(s)] == due


def test_every_steps_0_is_off(tmp_path: Path) -> None:
    evals = periodic(tmp_path, every_steps=0, at_start=True)
    assert not any(evals.should_run(s) for s in range(50))
    assert [evals.maybe_run(s) for s in range(3)] == [None] * 3
    assert evals.run_final(3) is None
    assert not evals.run_dir.exists()


def test_a_counter_that_jumps_is_due_where_it_passes_a_multiple(tmp_path: Path) -> None:
    evals = periodic(tmp_path)
    for step in range(0, 60, 8):
        evals.maybe_run(step)
    assert steps(evals) == [16, 24, 32, 40, 56]


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("HELDOUT_EVAL_NUM", "0", "HELDOUT_EVAL_NUM is 0"),
        ("HELDOUT_EVAL_EVERY_STEPS", "5", "there are no held-out samples"),
    ],
)
def test_a_launch_whose_variables_leave_nothing_to_evaluate_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    value: str,
    why: str,
) -> None:
    settings: dict[str, Any] = {"samples": [], "every_steps": None}
    with pytest.raises(InvalidInput, match="there are no samples to evaluate"):
        periodic(tmp_path, **settings)  # the code's doing
    monkeypatch.setenv(variable, value)
    evals = periodic(tmp_path, **settings)
    assert [evals.maybe_run(5), evals.run_eval(6), evals.run_final(7)] == [None] * 3
    assert not evals.run_dir.exists()
    assert [r.message for r in caplog.records] == [f"rl_eval: no eval is ever due: {why}"]


def test_a_step_of_several_micro_batches_is_evaluated_once(tmp_path: Path) -> None:
    clock = Clock()
    evals = periodic(tmp_path, at_start=True, max_overhead=0.1, clock=clock)
    for step in range(31):
        due = [evals.should_run(step) and evals.maybe_run(step) is not None for _ in range(4)]
        assert due == [step % 10 == 0, False, False, False]
    assert steps(evals) == [0, 10, 20, 30]
    evals.maybe_run(10)  # training went back
    assert steps(evals) == [0, 10, 20, 30, 10]


def test_maybe_run_writes_a_line_an_eval(tmp_path: Path) -> None:
    evals = periodic(tmp_path, Model(knows=4))
    for step in range(1, 25):
        evals.maybe_run(step)
    points = read_points(evals.run_dir / "curve.jsonl")
    assert [p.step for p in points] == [10, 20]
    assert points == evals.history
    assert points[0].reward == 0.5
    assert points[0].n == 8
    assert points[0].ci is not None
    assert {o.id: o.reward for o in points[0].outcomes} == {f"q{i}": float(i < 4) for i in range(8)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"repeats": 0}, "repeats must be a whole number >= 1, got 0"),
        ({"repeats": "4"}, "repeats must be a whole number >= 1, got '4'"),
        ({"rows": None}, "rows must be a whole number >= 1, got None"),
        ({"max_turns": 0}, "max_turns must be a whole number >= 1"),
        ({"max_new": 0}, "max_new must be a whole number >= 1, got 0"),
        ({"max_error_rate": 2}, "max_error_rate must be a finite number from 0 to 1, got 2"),
        ({"sampling": {"temperature": 1.0}}, "sampling must be a heldout.Sampling, got {"),
        ({"sampling": 0}, "sampling must be a heldout.Sampling, got 0"),
        ({"repeat": 4}, "there is no setting 'repeat'; did you mean repeats?"),
        ({"stop": "\n"}, "there is no setting 'stop'; did you mean sampling=Sampling(stop=…)?"),
        ({"max_new_tokens": 4}, "there is no setting 'max_new_tokens'; did you mean max_new?"),
        ({"zzz": 4}, "there is no setting 'zzz'; there are prepare_messages, "),
        ({"score_fn": None}, "score_fn must be a function"),
    ],
)
def test_a_wrong_setting_of_a_runner_is_refused_before_training(
    wrong: dict[str, Any], message: str
) -> None:
    given = {"score_fn": score, **wrong}
    with pytest.raises(InvalidInput, match=re.escape(message)):
        from_functions(lambda messages: "", lambda model, prompts, limit: [], **given)
    with pytest.raises(InvalidInput, match=re.escape(message)):
        live_model(Spelling([]), **given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"examples": []}, "PeriodicEval: there is no setting 'examples'; did you mean samples?"),
        ({"samples": [], "engine_getter": None}, "did you mean model_getter?"),
        ({"samples": [], "every_step": 2}, "did you mean every_steps?"),
        ({"samples": [], "zzz": 2}, "there is no setting 'zzz'; there are samples, runner_b"),
    ],
)
def test_what_is_no_setting_of_a_periodic_eval_names_the_one_that_is_meant(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        PeriodicEval(**settings)


def test_samples_that_nothing_can_be_asked_of_are_refused_before_training(tmp_path: Path) -> None:
    samples = [Sample("a", {"question": "1"}), Sample("b", {"solution": "2"})]
    message = "sample 'b': input has no question"
    definition = EvalDefinition(samples, score)
    plain = from_functions(lambda messages: "", lambda model, prompts, limit: [], score)
    whole = from_functions(lambda messages: "", lambda model, prompts, limit: [], definition)
    for given, makes_runner in ((samples, plain), (definition, whole)):
        with pytest.raises(InvalidInput, match=message):
            PeriodicEval(given, makes_runner, every_steps=1, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # A builder that does not say how it asks is not known before there is a model.
    evals = PeriodicEval(samples, lambda model: plain(model), every_steps=1, run_dir=tmp_path)
    assert message in (evals.run_eval(1, object()).skipped or "")
    asks = from_functions(
        lambda messages: "",
        lambda model, prompts, limit: ["1"] * len(prompts),
        score,
        prepare_messages=lambda sample: [Message("user", "say 1")],
    )
    evals = PeriodicEval(samples, asks, every_steps=1, run_dir=tmp_path / "prepared")
    assert evals.run_eval(1, object()).n == 2


def test_a_builder_made_of_a_definition_carries_its_threshold(tmp_path: Path) -> None:
    from heldout.integrations.trl.rollout_phase import in_rollout_phase

    samples = questions(2)
    definition = EvalDefinition(samples, score, pass_threshold=0.9)
    made = (
        from_functions(lambda messages: "", lambda model, prompts, limit: [], definition),
        live_model(Spelling([]), definition),
        in_rollout_phase(definition),
    )
    for number, build in enumerate(made):
        for given, expected in ((None, 0.9), (0.4, 0.4)):
            evals = PeriodicEval(
                definition.samples,
                build,
                every_steps=1,
                run_dir=tmp_path / f"{number}-{given}",
                pass_threshold=given,
            )
            assert evals._settings.pass_threshold == expected
    plain = live_model(Spelling([]), score)
    evals = PeriodicEval(samples, plain, every_steps=1, run_dir=tmp_path / "plain")
    assert evals._settings.pass_threshold == 0.5


def test_what_is_no_tokenizer_is_refused_before_training() -> None:
    with pytest.raises(
        InvalidInput, match="tokenizer must be a tokenizer of transformers, got <func"
    ):
        live_model(score, score)


def test_an_eval_with_repeats_has_pass_at_k_over_its_samples(tmp_path: Path) -> None:
    asked: Counter[str] = Counter()

    def answer(requests: Any, keep_going: Any) -> Any:
        """Answer question i right at its first i attempts; one attempt at question 3 errors."""
        answers: list[Any] = []
        for request in requests:
            question = request.messages[-1].text
            asked[question] += 1
            right = asked[question] <= int(question)
            answers.append(question if right else "?")
            if (question, asked[question]) == ("3", 4):
                answers[-1] = ValueError("no")
        return answers

    evals = periodic(tmp_path, runner_builder=answering(answer, repeats=4))
    point = evals.maybe_run(10)
    assert (point.n, point.number("n_errors")) == (32, 1)
    rate, interval = point.value_and_interval("pass@4")
    assert rate == 7 / 8  # all but question 0
    assert interval is not None
    assert interval[0] < rate < interval[1]
    assert point.value_and_interval("pass^4")[0] == 4 / 8  # questions 4 to 7
    assert point.number("pass_at_4_n") == 8
    assert point.metrics() == ["length", "right", "pass@4", "pass^4"]
    shown = summarize_report(EvalReport.load(evals.run_dir / point.run))
    passes = {key: value for key, value in shown.items() if key.startswith(("pass_at", "pass_hat"))}
    assert len(passes) == 10
    assert passes.items() <= point.summary.items()
    assert passes.items() <= point_fields(point).items()


def test_a_score_that_is_a_number_has_the_name_of_its_function(tmp_path: Path) -> None:
    def is_right(trajectory: Trajectory, sample: Sample) -> float:
        return float(trajectory.answer == sample.ground_truth)

    evals = periodic(tmp_path, runner_builder=answering(score_fn=is_right))
    assert evals.maybe_run(10).metrics() == ["is_right"]


def test_the_last_step_is_evaluated_off_cadence_and_not_twice(tmp_path: Path) -> None:
    evals = periodic(tmp_path, weighted())
    evals.maybe_run(10)
    assert evals.run_final(10) is evals.history[-1]
    assert evals.run_final(13) is not None
    assert evals.run_final(13) is evals.history[-1]
    assert steps(evals) == [10, 13]
    assert [p.final for p in evals.history] == [False, True]


def test_a_last_step_whose_eval_was_cut_short_is_not_doubled(tmp_path: Path) -> None:
    clock = Clock()

    def answer(requests: Any, keep_going: Any) -> Any:
        clock.now += 2.0
        return [r.messages[-1].text if keep_going() else None for r in requests]

    build = answering(answer, rows=4)
    evals = periodic(tmp_path, weighted(), runner_builder=build, max_seconds=3.0, clock=clock)
    assert evals.maybe_run(10).n == 4
    assert evals.run_final(10) is evals.history[-1]
    assert steps(evals) == [10]


def test_a_last_step_that_was_skipped_is_tried_again(tmp_path: Path) -> None:
    models: list[Any] = [None]
    evals = periodic(tmp_path, model_getter=lambda: models[0])
    evals.maybe_run(10)
    models[0] = Model()
    assert evals.run_final(10).reward == 0.5


# --- What goes wrong ----------------------------------------------------------------------------


def test_a_model_that_comes_late_skips_one_cadence_only(tmp_path: Path) -> None:
    evals = PeriodicEval(questions(), builder(), every_steps=10, run_dir=tmp_path / "run")
    skipped = evals.maybe_run(10)
    assert skipped.skipped == "there is no model: pass it to maybe_run, or a model_getter"
    assert skipped.summary is None
    evals.model_getter = Model
    assert evals.maybe_run(20).reward == 0.5


def boom(*_: Any) -> Any:
    raise ValueError("boom")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def unspeakable(*_: Any) -> Any:
    raise Unspeakable


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_getter": boom}, "model: ValueError: boom"),
        ({"runner_builder": unspeakable}, "runner_builder: Unspeakable: (its message cannot"),
        ({"runner_builder": lambda m: Runner(unspeakable, score)}, "all 8 items errored"),
        ({"runner_builder": boom}, "runner_builder: ValueError: boom"),
        ({"runner_builder": lambda model: 3}, "runner_builder returns a heldout.training.Runner"),
        ({"runner_builder": lambda m: Runner(boom, score)}, "all 8 items errored"),
        (
            {"runner_builder": lambda m: Runner(lambda r, k: ["1"] * len(r), boom)},
            "all 8 items errored, so there is no mean: 8 × score_fn: ValueError: boom",
        ),
        ({"runner_builder": lambda m: Runner(lambda r, k: ["1"], score)}, "8 requests got"),
    ],
)
def test_what_throws_is_a_skip_with_its_reason(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    beats = Heartbeats()
    evals = periodic(tmp_path, heartbeat_fn=beats, **settings)
    point = evals.maybe_run(10)
    assert point.summary is None
    assert point.skipped is not None
    assert said in point.skipped
    assert read_points(evals.run_dir / "curve.jsonl") == [point]
    [(name, fields)] = beats
    assert name == "rl_eval"
    assert fields["eval_skipped"] is True
    assert fields["eval_reason"] == point.skipped
    assert "eval_reward" not in fields


def test_what_asks_the_process_to_leave_gets_out_and_everything_is_put_back(tmp_path: Path) -> None:
    """SIGTERM, that is, whose handler raises SystemExit wherever the trainer happens to be."""

    def answer(requests: Any, keep_going: Any) -> Any:
        random.random()
        sys.exit(143)

    before = random.getstate()
    with pytest.raises(SystemExit):
        periodic(tmp_path, runner_builder=answering(answer)).maybe_run(10)
    assert random.getstate() == before


def test_ctrl_c_while_an_eval_is_answered_reaches_training_and_makes_no_point(
    tmp_path: Path,
) -> None:
    def answer(requests: Any, keep_going: Any) -> Any:
        random.random()
        signal.default_int_handler(signal.SIGINT, None)

    before = random.getstate()
    evals = periodic(tmp_path, runner_builder=answering(answer))
    with pytest.raises(KeyboardInterrupt):
        evals.maybe_run(10)
    assert random.getstate() == before
    assert [point.has_result for point in evals.points] in ([], [False])


class Odd(BaseException):
    pass


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Odd])
def test_what_a_score_function_raises_never_passes_for_the_trainers_own(
    tmp_path: Path, kind: type[BaseException]
) -> None:
    def odd(trajectory: Trajectory, sample: Sample) -> Score:
        raise kind("odd")

    point = periodic(tmp_path, runner_builder=answering(score_fn=odd)).maybe_run(10)
    assert kind.__name__ in point.skipped


class Guess:
    """Says higher or lower until the number is found; three turns, at most."""

    tools = ()

    def __init__(self, sample: Sample) -> None:
        self.turns = 0
        self.goal = int(sample.ground_truth)

    def opening(self) -> list[Message]:
        return [Message("user", "0")]

    def reply(self, messages: Sequence[Message]) -> Reply:
        self.turns += 1
        said = int(messages[-1].text)
        if said == self.goal or self.turns == 3:
            return Reply(done=True)
        return Reply((Message("user", str(said + 1)),))

    def close(self) -> None:
        pass


class Hanging(Guess):
    """An environment whose tool never returns, for one of the samples."""

    async def reply(self, messages: Sequence[Message]) -> Reply:
        if self.goal == 3:
            await anyio.sleep_forever()
        return super().reply(messages)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (builder(), "ValueError: no 3"),
        (
            answering(lambda r, k: [None if t == "3" else t for t in echo(r, k)]),
            "no answer",
        ),
        (
            answering(prepare_messages=lambda s: [], environment_factory=Hanging, timeout=0.4),
            "timeout",
        ),
    ],
    ids=["a rollout that raises", "no answer in time", "a tool that hangs"],
)
def test_one_bad_rollout_is_an_error_of_that_item(tmp_path: Path, build: Any, error: str) -> None:
    point = periodic(tmp_path, Model(knows=8, fails=["3"]), runner_builder=build).maybe_run(10)
    assert point.summary["n_errors"] == 1
    assert point.summary["n_scored"] == 7
    assert point.summary["mean"] == pytest.approx(point.summary["mean_scored"] * 7 / 8)
    [bad] = [o for o in point.outcomes if o.error]
    assert (bad.id, bad.reward) == ("q3", None)
    assert error in bad.error


def test_a_thread_that_never_returns_does_not_hold_up_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    async def hang(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "q0":
            await asyncio.to_thread(released.wait)
        return score(trajectory, sample)

    monkeypatch.setattr(measuring, "GRACE_SECONDS", 0.1)
    build = answering(score_fn=hang, timeout=0.2)
    point = periodic(tmp_path, runner_builder=build).maybe_run(10)
    released.set()
    assert point.summary["n_errors"] == 1


@pytest.mark.parametrize(("n", "skipped"), [(9, True), (10, False)])
def test_by_default_more_than_a_tenth_of_errors_is_a_skip_that_names_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, n: int, skipped: bool
) -> None:
    evals = periodic(
        tmp_path,
        Model(knows=99, fails=["3"]),
        samples=questions(n),
        runner_builder=builder(max_error_rate=EvalConfig().max_error_rate),
    )
    point = evals.maybe_run(10)
    assert "the first item that errored: sample 'q3': endpoint: ValueError: no 3" in caplog.text
    assert (point.summary is None) == skipped
    if skipped:
        assert point.skipped == (
            "1 of 9 items errored, above max_error_rate=0.1, so there is no mean: "
            "1 × endpoint: ValueError: no 3"
        )
        saved = EvalReport.load(evals.run_dir / "steps" / "00000010")
        assert (saved.status, saved.summary["mean"]) == ("failed", None)


def test_a_heartbeat_and_a_monitor_that_throw_do_not_reach_training(tmp_path: Path) -> None:
    evals = periodic(tmp_path, heartbeat_fn=boom, monitor=boom)
    assert evals.maybe_run(10).reward == 0.5
    assert steps(evals) == [10]


def test_a_curve_that_cannot_be_written_does_not_reach_training(tmp_path: Path) -> None:
    evals = periodic(tmp_path)
    (evals.run_dir / "curve.jsonl").unlink()
    (evals.run_dir / "curve.jsonl").mkdir()
    assert evals.maybe_run(10) is not None


def test_a_curve_that_was_removed_is_begun_again(tmp_path: Path) -> None:
    evals = periodic(tmp_path)
    evals.maybe_run(10)
    (evals.run_dir / "curve.jsonl").unlink()
    evals.maybe_run(20)
    assert steps(evals) == [20]


def test_two_trainings_do_not_write_one_curve(tmp_path: Path) -> None:
    evals = periodic(tmp_path)
    with pytest.raises(RunBusy):
        CurveWriter(evals.run_dir / "curve.jsonl")  # as another process would
    evals.maybe_run(10)
    evals.run_final(10)
    CurveWriter(evals.run_dir / "curve.jsonl").close()


@pytest.mark.parametrize(
    "settings",
    [
        {"every_steps": -1},
        {"every_steps": 2.5},
        {"samples": []},
        {"samples": ["no sample"]},
        {"num": 0},
        {"max_overhead": 0.0},
        {"pass_threshold": "0.4"},
        {"on_error": "stop"},
        {"max_seconds": -1},
        {"runner_builder": "no"},
        {"label": "../x"},
        {"across": "some"},
        {"min_samples": 0},
        {"progress_seconds": None},
        {"resume": "yes"},
        {"at_start": "no"},
    ],
)
def test_bad_arguments_are_refused_before_training(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        periodic(tmp_path, **settings)


def test_a_runner_that_leaves_out_a_part_of_the_definition_is_refused(tmp_path: Path) -> None:
    definition = EvalDefinition(questions(), score, lambda sample: [Message("user", "1")])
    with pytest.raises(InvalidInput, match=r"has not the prepare_messages.*definition\.samples"):
        periodic(tmp_path, samples=definition)
    whole = periodic(tmp_path, samples=replace(definition, prepare_messages=None))
    assert len(whole.samples) == len(questions())


def test_equal_ids_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DuplicateSampleId):
        periodic(tmp_path, samples=[*questions(2), *questions(1)])


# --- Results ------------------------------------------------------------------------------------


def test_heartbeats_carry_the_promised_fields(tmp_path: Path) -> None:
    beats = Heartbeats()
    periodic(tmp_path, Model(knows=2), heartbeat_fn=beats).maybe_run(10)
    [fields] = beats.named("rl_eval")
    assert fields["step"] == 10
    assert fields["eval_n"] == 8
    assert fields["eval_reward"] == fields["eval_pass_rate"] == 0.25
    assert (fields["eval_reward_min"], fields["eval_reward_max"]) == (0.0, 1.0)
    assert fields["eval_metric_length"] == 1.0
    assert fields["eval_metric_right"] == 0.25
    assert fields["eval_n_errors"] == 0
    assert fields["eval_reward_ci_low"] < 0.25 < fields["eval_reward_ci_high"]
    assert fields["eval_seconds"] > 0


def test_the_conversations_of_a_point_are_an_ordinary_run(tmp_path: Path) -> None:
    evals = periodic(tmp_path, Model(knows=4))
    point = evals.maybe_run(10)
    assert point.run == "steps/00000010"
    report = EvalReport.load(evals.run_dir / point.run)
    assert report.summary == point.summary
    assert report.status == "complete"


def test_sampling_without_a_seed_takes_that_of_the_eval_and_each_turn_its_own(
    tmp_path: Path,
) -> None:
    seeds: list[list[int | None]] = []

    def answer(requests: Any, keep_going: Any) -> Any:
        seeds.append([r.sampling.seed for r in requests])
        return ["9" for r in requests]

    build = answering(
        answer,
        prepare_messages=lambda sample: [],
        environment_factory=Guess,
        sampling=Sampling(temperature=1.0),
    )
    evals = periodic(tmp_path, samples=questions(4), runner_builder=build)
    evals.run_eval(1)
    first, seeds[:] = list(seeds), []
    evals.run_eval(2)
    assert first == seeds
    assert len({seed for turn in first for seed in turn}) == 12


def test_max_new_holds_with_sampling_of_ones_own(tmp_path: Path) -> None:
    limits: list[int] = []
    build = limits_into(limits, max_new=5, sampling=Sampling(temperature=1.0))
    periodic(tmp_path, runner_builder=build).maybe_run(10)
    assert limits == [5]


def test_what_a_prompt_opened_is_reasoning_until_it_is_closed(tmp_path: Path) -> None:
    replies = iter(["0", "hm</think>0"])
    build = from_functions(
        lambda messages: f"{messages[-1].text}\nassistant <think>\n",
        lambda model, prompts, max_new: [next(replies)],
        score,
    )
    evals = periodic(tmp_path, runner_builder=build, samples=questions(1))
    assert [evals.run_eval(step).reward for step in (1, 2)] == [0.0, 1.0]


@pytest.mark.parametrize(("closed", "reward"), [("</think>", 1.0), ("", 0.0)])
def test_reasoning_is_no_answer_but_kept_in_the_run_and_shown_to_a_rubric(
    tmp_path: Path, closed: str, reward: float
) -> None:
    def answer(requests: Any, keep_going: Any) -> Any:
        return [f"<think>hm 7{closed}{text}" for text in echo(requests, keep_going)]

    thinks = part(lambda text: text.startswith("<think>"), name="thinks", weight=0)
    rubric = Rubric(part(grade_exact, name="correct"), thinks)
    evals = periodic(tmp_path, runner_builder=answering(answer, rubric))
    point = evals.maybe_run(10)
    assert (point.reward, point.summary["metric_thinks"]) == (reward, 1.0)
    kept = EvalReport.load(evals.run_dir / "steps/00000010").results[0].trajectory
    assert kept.messages[-1].text.startswith("<think>hm")
    stored = RunDir(evals.run_dir / "steps/00000010").read_info().functions["score_fn"]
    assert [p["name"] for p in stored["parts"]] == ["correct", "thinks"]


def test_a_score_function_sees_the_answer_without_its_reasoning(tmp_path: Path) -> None:
    def answer(requests: Any, keep_going: Any) -> Any:
        return [f"<think>hm 7</think>{text}" for text in echo(requests, keep_going)]

    def last_message(trajectory: Trajectory, sample: Sample) -> bool:
        return trajectory.messages[-1].text == sample.ground_truth

    evals = periodic(tmp_path, runner_builder=answering(answer, last_message))
    assert evals.maybe_run(10).reward == 1.0


@pytest.mark.parametrize(("given", "reward"), [(str.upper, 0.0), (None, 0.0), (..., 1.0)])
def test_an_answer_filter_says_what_of_the_last_turn_is_scored(
    tmp_path: Path, given: Any, reward: float
) -> None:
    """Of its own, none at all, and by default that which removes reasoning."""

    def answer(requests: Any, keep_going: Any) -> Any:
        return [f"<think>hm</think>{text}" for text in echo(requests, keep_going)]

    seen: list[str] = []

    def last_message(trajectory: Trajectory, sample: Sample) -> bool:
        seen.append(trajectory.messages[-1].text)
        return seen[-1] == sample.ground_truth

    settings = {} if given is ... else {"answer_filter": given}
    evals = periodic(tmp_path, runner_builder=answering(answer, last_message, **settings))
    point = evals.maybe_run(10)
    assert point.reward == reward
    filtered = {str.upper: "<THINK>HM</THINK>{}", None: "<think>hm</think>{}", ...: "{}"}[given]
    assert sorted(seen) == [filtered.format(i) for i in range(8)]
    # What is kept is what was said.
    kept = EvalReport.load(evals.run_dir / point.run).results[0].trajectory
    assert kept.messages[-1].text.startswith("<think>hm</think>")


def test_a_turn_that_ends_at_a_stop_text_is_whole_and_without_it(tmp_path: Path) -> None:
    from tests.tiny_model import tiny_model

    model, tokenizer = tiny_model()
    samples = [Sample("a", {"question": "w1 w2"})]
    said: list[str] = []

    def keep(trajectory: Trajectory, sample: Sample) -> float:
        said.append(trajectory.answer)
        return 1.0

    def evaluated(name: str, **settings: Any) -> Any:
        build = live_model(tokenizer, keep, max_new=6, **settings)
        evals = periodic(tmp_path / name, model, samples=samples, runner_builder=build)
        return evals.maybe_run(10)

    assert evaluated("plain").summary["n_truncated"] == 1
    words = said.pop().split()
    assert len(set(words)) > 2
    stop = next(word for word in words[1:] if word != words[0])
    point = evaluated("stopped", sampling=Sampling(stop=[f" {stop}", stop]))
    assert point.summary["n_truncated"] == 0
    assert said == [" ".join(words[: words.index(stop)])]


def test_several_turns_are_scored_with_their_metrics(tmp_path: Path) -> None:
    batches: list[int] = []

    def answer(requests: Any, keep_going: Any) -> Any:
        batches.append(len(requests))
        return echo(requests, keep_going)

    build = answering(answer, prepare_messages=lambda s: [], environment_factory=Guess, rows=4)
    point = periodic(tmp_path, samples=questions(6), runner_builder=build).maybe_run(10)
    assert point.summary["mean"] == 0.5  # 0, 1 and 2 are found within three turns
    assert point.summary["metric_length_n"] == 6
    assert max(batches) == 4
    assert sum(batches) == 1 + 2 + 3 * 4


def test_batches_are_those_of_the_fixed_order_whatever_takes_its_time(tmp_path: Path) -> None:
    class Slow(Guess):
        async def reply(self, messages: Sequence[Message]) -> Reply:
            await anyio.sleep(random.SystemRandom().random() * 0.01)
            return super().reply(messages)

    def run(name: str) -> list[list[str]]:
        seen: list[list[str]] = []

        def answer(requests: Any, keep_going: Any) -> Any:
            seen.append([" ".join(m.text for m in r.messages) for r in requests])
            return echo(requests, keep_going)

        build = answering(answer, prepare_messages=lambda s: [], environment_factory=Slow, rows=3)
        periodic(tmp_path / name, samples=questions(9), runner_builder=build).run_eval(1)
        return seen

    assert run("a") == run("b")


# --- Order, subsets and budget ------------------------------------------------------------------


def test_subsets_are_nested_and_do_not_depend_on_the_order_given(tmp_path: Path) -> None:
    some = periodic(tmp_path / "a", samples=questions(20), num=5).samples
    more = periodic(tmp_path / "b", samples=questions(20)[::-1], num=9).samples
    other = periodic(tmp_path / "c", samples=questions(20), num=5, seed=1).samples
    assert more[:5] == some
    assert some != questions(20)[:5]
    assert other != some


def test_the_budget_takes_a_nested_part_and_then_a_longer_cadence(tmp_path: Path) -> None:
    clock = Clock()

    def answer(requests: Any, keep_going: Any) -> Any:
        clock.now += 1.0 * len(requests)  # a second an item
        return echo(requests, keep_going)

    evals = periodic(
        tmp_path,
        samples=questions(32),
        runner_builder=answering(answer),
        max_overhead=0.1,
        min_samples=4,
        clock=clock,
    )
    for step in range(1, 201):
        clock.now += 1.0 if step <= 100 else 32.0
        evals.maybe_run(step)
    assert [p.step for p in evals.history] == list(range(10, 201, 10))
    assert evals.history[1].skipped == (
        "max_overhead=0.1: so far evals took 4 s and training 19 s; 4 samples take 4 s"
    )
    taken = [(p.step, len(p.outcomes)) for p in evals.history if p.has_result]
    # The first four take 4 s; training buys 0.1 s a second, so the next four come at 80 s.
    assert taken[:3] == [(10, 4), (90, 4), (110, 32)]
    assert taken[3][0] > 110
    trained = 100 + 100 * 32.0
    assert sum(p.seconds for p in evals.history) <= 0.1 * trained
    first, second = (p for p in evals.history if p.step in (10, 110))
    assert second.budget["samples"] == second.budget["of"] == 32
    assert second.budget["steps_since_last"] == 20
    assert second.budget["overhead"] <= 0.1
    assert {o.id for o in first.outcomes} <= {o.id for o in second.outcomes}
    assert first.asked == 4
    assert first.of == 32


def test_skips_are_not_charged_to_the_budget_and_do_not_even_look_at_the_model(
    tmp_path: Path,
) -> None:
    clock, asked = Clock(), []

    def slow(name: str, fields: dict[str, Any]) -> None:
        clock.now += 1.0 if "eval_skipped" in fields else 0.0

    evals = periodic(
        tmp_path,
        every_steps=1,
        max_overhead=0.1,
        heartbeat_fn=slow,
        clock=clock,
        model_getter=lambda: asked.append(1) or Model(),
        runner_builder=answering(taking(clock, 5.0)),
    )
    for step in range(1, 241):
        clock.now += 1.0
        evals.maybe_run(step)
    # 5 s for each 50 of training.
    assert [p.step for p in evals.history if p.has_result] == [1, 101, 151, 201]
    assert (len(asked), len(evals.history)) == (4, 240)


def test_a_final_eval_is_whole_whatever_the_budget_and_what_an_earlier_start_has(
    tmp_path: Path,
) -> None:
    first = periodic(tmp_path, samples=questions(32), max_overhead=0.5)
    assert first.maybe_run(10).n == 8
    again = periodic(tmp_path, samples=questions(32), max_overhead=0.5)
    assert again.run_final(10).n == 32


def test_time_that_is_up_leaves_a_complete_beginning(tmp_path: Path) -> None:
    clock = Clock()

    def answer(requests: Any, keep_going: Any) -> Any:
        given: list[Any] = []
        for request in requests:
            clock.now += 1.0
            given.append(request.messages[-1].text if keep_going() else None)
        return given

    build = answering(answer, rows=4)
    evals = periodic(
        tmp_path, samples=questions(16), runner_builder=build, max_seconds=9.5, clock=clock
    )
    point = evals.maybe_run(10)
    assert "max_seconds=9.5" in point.partial
    assert point.asked == 16
    assert [o.id for o in point.outcomes] == [s.id for s in evals.samples][: point.n]
    assert 8 <= point.n < 12
    assert point.reward == 1.0


def test_time_that_is_up_before_anything_is_complete_is_a_skip(tmp_path: Path) -> None:
    clock = Clock()

    def answer(requests: Any, keep_going: Any) -> Any:
        clock.now += 60
        assert not keep_going()
        # The first of the order is not among those that were quick.
        return [None, *["1"] * (len(requests) - 1)]

    evals = periodic(tmp_path, runner_builder=answering(answer), max_seconds=5.0, clock=clock)
    point = evals.maybe_run(10)
    assert point.summary is None
    assert "time was up" in point.skipped


def test_what_was_answered_when_time_was_up_is_still_scored(tmp_path: Path) -> None:
    clock = Clock()

    async def slow(trajectory: Trajectory, sample: Sample) -> Score:
        await anyio.sleep(0.05)
        return score(trajectory, sample)

    build = answering(taking(clock, 60.0), slow)
    point = periodic(tmp_path, runner_builder=build, max_seconds=5.0, clock=clock).maybe_run(10)
    assert (point.partial, point.reward) == (None, 1.0)


def test_what_blocks_is_left_behind_and_what_was_complete_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    last = periodic(tmp_path / "order").samples[-1].id

    def blocks(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == last:
            released.wait()
        return score(trajectory, sample)

    monkeypatch.setattr(measuring, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(measuring, "SETTLE_SECONDS", 0.1)
    build = answering(score_fn=blocks, rows=1)
    point = periodic(tmp_path, runner_builder=build, max_seconds=1.0).maybe_run(10)
    released.set()
    assert "left running" in point.partial
    assert point.n == 7


def test_a_slow_score_function_is_stopped_between_two_items(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, scored = Clock(), []

    def slow(trajectory: Trajectory, sample: Sample) -> Score:
        scored.append(sample.id)
        clock.now += 1.0
        time.sleep(0.02)
        return score(trajectory, sample)

    monkeypatch.setattr(measuring, "SETTLE_SECONDS", 0.05)
    evals = periodic(
        tmp_path,
        samples=questions(64),
        runner_builder=answering(score_fn=slow, rows=64),
        max_seconds=3.0,
        clock=clock,
    )
    point = evals.maybe_run(10)
    assert point.partial is not None
    assert 3 <= point.n < 64
    count = len(scored)
    time.sleep(0.1)
    assert len(scored) == count < 64


def test_a_tool_that_hangs_is_ended_by_the_time_limit(tmp_path: Path) -> None:
    async def hang(trajectory: Trajectory, sample: Sample) -> Score:
        await anyio.sleep_forever()

    build = answering(score_fn=hang, timeout=None)
    assert periodic(tmp_path, runner_builder=build, max_seconds=0.3).maybe_run(10).skipped


def test_signs_of_life_come_while_an_eval_runs(tmp_path: Path) -> None:
    clock, beats = Clock(), Heartbeats()

    def answer(requests: Any, keep_going: Any) -> Any:
        for _ in range(25):
            clock.now += 1.0
            assert keep_going()
        return echo(requests, keep_going)

    build = answering(answer, rows=4)
    periodic(tmp_path, runner_builder=build, clock=clock, heartbeat_fn=beats).maybe_run(10)
    progress = beats.named("rl_eval_progress")
    assert [f["eval_done"] for f in progress] == [0, 0, 4, 4, 4]
    assert {(f["step"], f["eval_total"]) for f in progress} == {(10, 8)}
    assert beats[-1][0] == "rl_eval"


def test_what_earlier_starts_have_spent_is_spent(tmp_path: Path) -> None:
    clock = Clock()
    settings: dict[str, Any] = {"max_overhead": 0.1, "clock": clock, "every_steps": 1}
    settings["runner_builder"] = answering(taking(clock, 10.0))
    evals = [periodic(tmp_path, **settings)]
    for step in range(1, 101):
        if step == 21:
            evals.append(periodic(tmp_path, **settings))
        clock.now += 2.0
        evals[-1].maybe_run(step)
    # 10 s are spent at the first step; the next 10 s take 200 s of training.
    assert [[p.step for p in each.history if p.has_result] for each in evals] == [[1], []]


def test_the_time_that_watching_takes_is_not_training(tmp_path: Path) -> None:
    clock = Clock()

    def slow(name: str, fields: dict[str, Any]) -> None:
        clock.now += 100.0

    evals = periodic(
        tmp_path, every_steps=1, max_overhead=0.5, heartbeat_fn=slow, clock=clock, num=8
    )
    for step in range(1, 51):
        clock.now += 1.0
        evals.maybe_run(step)
    assert [point.step for point in evals.history if point.has_result] == [1]


# --- Restarts -----------------------------------------------------------------------------------


def test_a_restart_goes_on_with_the_curve_and_repeats_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = periodic(tmp_path, weighted())
    for step in range(1, 21):
        first.maybe_run(step)
    again = periodic(tmp_path, weighted())
    for step in range(11, 31):  # from the checkpoint at step 10
        again.maybe_run(step)
    assert steps(again) == [10, 20, 30]
    assert [p.step for p in again.points] == [10, 20, 30]
    assert "points from step 20 on are on the curve" in caplog.text


def test_a_restart_that_went_another_way_takes_the_place_of_what_was(tmp_path: Path) -> None:
    first = periodic(tmp_path)
    for step in (10, 20, 30):
        first.maybe_run(step, weighted(step))
    again = periodic(tmp_path)
    again.maybe_run(10, weighted(10))
    again.maybe_run(20, weighted(99))
    assert steps(again) == [10, 20, 30, 20]
    session = again.history[0].session
    assert [(p.step, p.session == session) for p in again.points] == [(10, False), (20, True)]


@pytest.mark.parametrize(
    ("began_at", "asked", "kept"),
    [
        # Step 30 is skipped: the result there is of weights that this attempt does not go on from.
        (21, [(30, None), (40, 4)], [(10, 1), (20, 2), (30, None), (40, 4)]),
        # It may still come to the same weights: so they were the same at step 30.
        (21, [(30, None), (40, 9), (50, 5)], [(10, 1), (20, 2), (30, 3), (40, 9), (50, 5)]),
        # As long as it has no result, those of the attempt before are the curve.
        (21, [(30, None)], [(10, 1), (20, 2), (30, 3), (40, 9)]),
        # What a trainer resumed from is of both attempts.
        (20, [(20, None), (40, 4)], [(10, 1), (20, 2), (40, 4)]),
    ],
)
def test_a_resumed_training_supersedes_all_beyond_the_step_it_resumed_from(
    tmp_path: Path, began_at: int, asked: list[Any], kept: list[Any]
) -> None:
    first = periodic(tmp_path, samples=questions(10))
    for step, knows in ((10, 1), (20, 2), (30, 3), (40, 9)):
        first.maybe_run(step, weighted(knows))
    again = periodic(tmp_path, samples=questions(10), model_getter=lambda: None)
    if began_at == 20:
        again.begin(20, resume=True)
    again.maybe_run(began_at)
    for step, knows in asked:
        again.maybe_run(step, None if knows is None else weighted(knows))
    for points in (again.points, current_points(read_points(again.run_dir / "curve.jsonl"))):
        found = [(p.step, p.reward and round(10 * p.reward)) for p in points]
        assert found == kept


def test_of_two_evals_on_one_run_directory_the_first_is_a_skip_that_says_so(tmp_path: Path) -> None:
    first = periodic(tmp_path)
    first.maybe_run(10)
    second = periodic(tmp_path, Model(knows=8))  # a notebook that was run again
    assert second.maybe_run(10).reward == 1.0
    assert "another PeriodicEval was set up on" in first.maybe_run(20).skipped
    second.maybe_run(20)
    assert [(p.step, p.reward) for p in second.points] == [(10, 1.0), (20, 1.0)]


def test_a_counter_that_goes_back_is_another_start(tmp_path: Path) -> None:
    evals = periodic(tmp_path)
    for step in (10, 20, 30):
        evals.maybe_run(step, Model())
    evals.maybe_run(5)
    assert [p.step for p in evals.points] == [10, 20, 30]
    assert evals.history == []


def test_a_point_that_could_not_be_written_is_written_with_the_next(tmp_path: Path) -> None:
    evals = periodic(tmp_path)
    evals.maybe_run(10)
    curve = evals.run_dir / "curve.jsonl"
    kept = curve.read_bytes()
    curve.unlink()
    curve.mkdir()
    evals.maybe_run(20)
    curve.rmdir()
    curve.write_bytes(kept)
    evals.maybe_run(30)
    assert steps(evals) == [10, 20, 30]


def test_a_skip_is_tried_again_by_a_restart(tmp_path: Path) -> None:
    periodic(tmp_path, model_getter=lambda: None).maybe_run(10)
    assert periodic(tmp_path).maybe_run(10).reward == 0.5


def test_other_samples_another_threshold_or_label_are_refused_on_the_same_curve(
    tmp_path: Path,
) -> None:
    periodic(tmp_path).maybe_run(10)
    with pytest.raises(ResumeMismatch, match="n was 8, is now 9"):
        periodic(tmp_path, samples=questions(9))
    for settings in ({"pass_threshold": 0.9}, {"label": "other"}):
        with pytest.raises(ResumeMismatch, match=next(iter(settings))):
            periodic(tmp_path, **settings)


def other_score(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("right", 1.0, 1.0),))


def other_prompt(sample: Sample) -> list[Message]:
    return [Message("user", sample.ground_truth)]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"score_fn": other_score}, "another score_fn"),
        ({"prepare_messages": other_prompt}, "another prepare_messages"),
        ({"render": lambda messages: "7"}, "another render"),
        ({"max_new": 7}, r"another max_tokens \(was 512, is now 7\)"),
        ({"repeats": 3}, r"another repeats \(was 1, is now 3\)"),
        ({"sampling": Sampling(temperature=1.0)}, r"another temperature"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_curve_is_not_continued_by_another_eval(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    """Equal weights are not enough: in a repeatable training they are equal at every step."""

    def evals(**changed: Any) -> PeriodicEval:
        given = {"render": lambda messages: messages[-1].text, "score_fn": score, "max_new": 512}
        given |= changed
        render, score_fn = given.pop("render"), given.pop("score_fn")
        return periodic(
            tmp_path, weighted(), runner_builder=from_functions(render, answers, score_fn, **given)
        )

    def answers(model: Any, prompts: list[str], max_new: int) -> list[Any]:
        return model.answer(prompts)

    evals().maybe_run(10)
    assert evals().maybe_run(10) is not None
    with pytest.raises(ResumeMismatch, match=said):
        evals(**settings)


def test_a_curve_is_not_continued_with_another_chat_template(tmp_path: Path) -> None:
    from heldout.training import live_model
    from tests.tiny_model import tiny_model

    model, tokenizer = tiny_model()

    def evals() -> PeriodicEval:
        return periodic(tmp_path, model, runner_builder=live_model(tokenizer, score, max_new=2))

    evals().maybe_run(10)
    assert evals().maybe_run(10) is not None
    tokenizer.chat_template += " "
    with pytest.raises(ResumeMismatch, match="another chat_template"):
        evals()


def test_a_builder_of_ones_own_is_known_by_its_code(tmp_path: Path) -> None:
    periodic(tmp_path, runner_builder=answering()).maybe_run(10)
    periodic(tmp_path, runner_builder=answering()).maybe_run(20)
    with pytest.raises(ResumeMismatch, match="another runner_builder"):
        periodic(tmp_path, runner_builder=lambda model: Runner(boom, score))


def test_a_function_with_a_version_may_change_between_launches(tmp_path: Path) -> None:
    """A port, a path: its code is another one, and what it answers is not."""

    def launched(port: int, version: int | None) -> PeriodicEval:
        def generate(model: Any, prompts: list[str], max_new: int) -> list[Any]:
            assert port
            return model.answer(prompts)

        if version is not None:
            set_version(generate, version)
        build = from_functions(lambda messages: messages[-1].text, generate, score)
        return periodic(tmp_path, weighted(), runner_builder=build)

    launched(8000, 1).maybe_run(10)
    assert launched(8001, 1).maybe_run(20).reward == 0.5
    for version in (2, None):
        with pytest.raises(ResumeMismatch, match="another generate"):
            launched(8001, version)


def test_what_only_a_built_runner_tells_is_a_skip_and_no_old_point_is_shown(tmp_path: Path) -> None:
    scorers = [score]

    def build(model: Any) -> Runner:
        return answering(score_fn=scorers[0])(model)

    periodic(tmp_path, weighted(), runner_builder=build).maybe_run(10)
    scorers[0] = other_score
    point = periodic(tmp_path, weighted(), runner_builder=build).maybe_run(10)
    assert "another score_fn" in point.skipped


def test_a_curve_without_results_may_be_begun_with_another_eval(tmp_path: Path) -> None:
    periodic(tmp_path, runner_builder=lambda model: Runner(boom, score)).maybe_run(10)
    assert periodic(tmp_path).maybe_run(10).reward == 0.5


# --- Weights that nobody knows ------------------------------------------------------------------


def test_a_policy_without_a_hash_is_measured_again_by_a_second_training(tmp_path: Path) -> None:
    assert periodic(tmp_path, Model(knows=2)).maybe_run(10).reward == 0.25
    again = periodic(tmp_path, Model(knows=8))
    assert again.maybe_run(10).reward == 1.0
    assert [p.reward for p in again.points] == [1.0]


def test_the_last_point_is_of_the_last_weights_whether_they_have_a_hash_or_not(
    tmp_path: Path,
) -> None:
    model = Model(knows=2)
    evals = periodic(tmp_path / "no hash", model)
    evals.maybe_run(10)
    model.knows = 8
    assert evals.run_final(10).reward == 1.0

    evals = periodic(tmp_path / "hash")
    evals.run_eval(10, weighted(2))
    assert evals.run_final(10, weighted(8)).reward == 1.0
    assert evals.run_final(10, weighted(2)).reward == 0.25  # they came back
    assert [p.reward for p in evals.points] == [0.25]


def test_a_forked_child_does_not_keep_the_curve_locked(tmp_path: Path) -> None:
    code = (
        "import os, time; from pathlib import Path; from tests.training.toys import periodic; "
        f"evals = periodic(Path({str(tmp_path)!r})); "
        "child = os.fork(); "
        "(os.close(1), time.sleep(60)) if child == 0 else (print(child, flush=True), os._exit(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    try:
        assert periodic(tmp_path).maybe_run(10) is not None
    finally:
        os.kill(int(done.stdout), signal.SIGKILL)


def test_samples_that_could_not_be_stored_as_they_are_are_refused_before_training(
    tmp_path: Path,
) -> None:
    for value, said in ((object(), "holds a value that JSON cannot"), ((1, 2), "is a tuple")):
        with pytest.raises(InvalidInput, match=said):
            periodic(tmp_path, samples=[Sample("a", {"question": "1"}, value)])


# --- Monitor and neutrality ---------------------------------------------------------------------


def test_a_monitor_can_ask_training_to_stop(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def monitor(points: Any) -> str | None:
        seen.append([p.step for p in points])
        return "no better for two evals" if len(points) == 2 else None

    evals = periodic(tmp_path, monitor=monitor)
    evals.maybe_run(10)
    assert evals.stop_requested is None
    evals.maybe_run(20)
    assert evals.stop_requested == "no better for two evals"
    assert seen == [[10], [10, 20]]
    assert read_points(evals.run_dir / "curve.jsonl")[1].stop == "no better for two evals"


def test_every_point_says_what_the_curve_allows_one_to_say(tmp_path: Path) -> None:
    beats, model = Heartbeats(), Model(knows=0)
    evals = periodic(tmp_path, model, samples=questions(100), heartbeat_fn=beats)
    for step in range(10, 110, 10):
        model.knows = step
        evals.maybe_run(step)
    stored = [p.verdict for p in read_points(evals.run_dir / "curve.jsonl")]
    assert stored == [p.verdict for p in evals.points]
    first, last = stored[0], stored[-1]
    assert (first["kind"], first["since"], first["gain"]) == ("inconclusive", None, None)
    assert (last["kind"], last["since"], last["n"], last["effect"]) == ("improving", 10, 100, 0.05)
    assert last["ci_low"] <= last["gain"] <= last["ci_high"]
    assert last["best_step"] == 100
    told = beats.named("rl_eval")[-1]
    assert told["eval_verdict"] == "improving"
    assert told["eval_gain"] == last["gain"]
    assert told["eval_gain_ci_low"] == last["ci_low"] > 0
    assert told["eval_gain_ci_high"] == last["ci_high"]
    assert told["eval_best_step"] == 100
    assert told["eval_verdict_text"] == last["text"]
    assert told["eval_verdict_text"].startswith("improving: +0.")
    assert (told["eval_verdict_since"], told["eval_verdict_n"]) == (10, 100)
    assert told["eval_minimum_detectable"] == last["minimum_detectable"] > 0
    assert told["eval_effect"] == 0.05
    assert evals.stop_requested is None


def test_a_restart_goes_on_with_the_verdicts(tmp_path: Path) -> None:
    model = Model()

    def verdicts_of(folder: Path, *starts: range) -> list[Any]:
        for steps in starts:
            evals = periodic(folder, model, samples=questions(20))
            for step in steps:
                model.knows = step // 4
                evals.maybe_run(step)
        return [point.verdict for point in evals.points]

    whole = verdicts_of(tmp_path / "one", range(10, 70, 10))
    assert verdicts_of(tmp_path / "two", range(10, 40, 10), range(40, 70, 10)) == whole


def test_a_skip_has_no_verdict(tmp_path: Path) -> None:
    beats = Heartbeats()
    evals = periodic(tmp_path, model_getter=lambda: None, heartbeat_fn=beats)
    assert evals.maybe_run(10).verdict is None
    assert "eval_verdict" not in beats.named("rl_eval")[0]


def test_a_function_that_watches_can_read_the_verdict_and_give_its_own(tmp_path: Path) -> None:
    def by_verdict(points: Any) -> str | None:
        return f"told: {points[-1].verdict['kind']}"

    point = periodic(tmp_path / "a", monitor=by_verdict).maybe_run(10)
    assert point.stop == "told: inconclusive"

    own = CurveMonitor(effect=0.3)
    point = periodic(
        tmp_path / "b", monitor=lambda points: replace(own(points), stop="mine")
    ).maybe_run(10)
    assert (point.stop, point.verdict["effect"]) == ("mine", 0.3)


def test_what_a_monitor_says_of_another_step_is_not_put_down_to_this_one(tmp_path: Path) -> None:
    other = CurveMonitor(effect=0.3)(curve(CLIMB))
    point = periodic(tmp_path, monitor=lambda points: other).maybe_run(10)
    assert (point.verdict["kind"], point.verdict["effect"]) == ("inconclusive", 0.05)


def test_a_monitor_that_throws_is_explained_once_and_takes_no_verdict_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evals = periodic(tmp_path, monitor=boom)
    for step in (10, 20, 30):
        point = evals.maybe_run(step)
        assert (point.verdict is not None, point.stop) == (True, None)
    said = [record for record in caplog.records if "the monitor failed" in record.message]
    assert [record.exc_info is not None for record in said] == [True, False, False]
    assert said[2].message.endswith("at step 30: ValueError: boom")


@pytest.mark.parametrize("wrong", [CurveMonitor, "stop", 3])
def test_what_is_no_monitor_is_refused_before_training(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="monitor (must be|is) a"):
        periodic(tmp_path, monitor=wrong)


def says(judgement: Any) -> Any:
    return lambda points: judgement


@pytest.mark.parametrize(
    ("monitor", "stop"),
    [
        (says("\ud800 no"), "? no"),
        (says(Judgement(stop=5)), "5"),
        (says(Judgement(verdict="up")), None),
        (says(np.zeros(3)), None),
        (says(True), "True"),
    ],
)
def test_whatever_a_monitor_says_the_point_is_kept(tmp_path: Path, monitor: Any, stop: Any) -> None:
    evals = periodic(tmp_path, monitor=monitor)
    evals.maybe_run(10)
    [point] = read_points(evals.run_dir / "curve.jsonl")
    assert (point.reward, point.stop) == (0.5, stop)
    assert evals.stop_requested == stop


def test_a_monitor_that_is_interrupted_loses_no_point(tmp_path: Path) -> None:
    def interrupted(points: Any) -> None:
        raise KeyboardInterrupt

    evals = periodic(tmp_path, monitor=interrupted)
    with pytest.raises(KeyboardInterrupt):
        evals.maybe_run(10)
    assert steps(evals) == [10]
    assert [p.step for p in evals.points] == [10]


def test_a_point_of_an_earlier_start_that_asked_to_stop_asks_again(tmp_path: Path) -> None:
    periodic(tmp_path, weighted(), monitor=lambda points: "it got worse").maybe_run(10)
    again = periodic(tmp_path, weighted())
    assert again.stop_requested is None
    again.maybe_run(10)
    assert again.stop_requested == "it got worse"


def test_rewards_that_cannot_be_judged_do_not_reach_training(tmp_path: Path) -> None:
    def huge(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("huge", 1e200, 1.0),))

    point = periodic(tmp_path, runner_builder=answering(score_fn=huge)).maybe_run(10)
    assert (point.reward, point.verdict) == (1e200, None)


def test_a_stop_file_asks_training_to_stop(tmp_path: Path) -> None:
    evals = periodic(tmp_path)
    assert evals.stop_requested is None
    request_stop(evals.run_dir, "enough")
    assert evals.stop_requested == "enough"
    assert periodic(tmp_path).stop_requested is None  # that was said to the one before


def test_it_runs_where_an_event_loop_is_running_already(tmp_path: Path) -> None:
    async def training() -> float | None:
        point = periodic(tmp_path).maybe_run(10)
        return None if point is None else point.reward

    assert anyio.run(training) == 0.5


def test_what_an_operator_sets_wins_over_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("EVERY_STEPS", 7), ("NUM", 3), ("MAX_NEW", 5), ("PASS_THRESHOLD", 0)):
        monkeypatch.setenv(f"HELDOUT_EVAL_{name}", str(value))
    limits: list[int] = []
    build = limits_into(limits, max_new=99)
    settings: dict[str, Any] = {"every_steps": 10, "num": 8, "pass_threshold": 0.9}
    point = periodic(tmp_path, runner_builder=build, **settings).maybe_run(7)
    assert (point.n, point.summary["pass_rate"], limits) == (3, 1.0, [5])


def test_evals_turned_on_by_the_environment_take_32_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(periodic(tmp_path / "code", samples=questions(40)).samples) == 40
    monkeypatch.setenv("HELDOUT_EVAL_EVERY_STEPS", "7")
    evals = PeriodicEval(questions(40), builder(), run_dir=tmp_path / "environment")
    assert len(evals.samples) == 32


def test_a_turn_is_as_long_as_the_trainings_where_nothing_else_is_said(tmp_path: Path) -> None:
    limits: list[int] = []

    def evals(name: str, **settings: Any) -> PeriodicEval:
        return periodic(tmp_path / name, runner_builder=limits_into(limits, **settings))

    evals("alone").maybe_run(10)
    told = evals("told")
    told.use_trainer(TrainerSettings(40))
    told.maybe_run(10)
    set_here = evals("set", max_new=7)
    set_here.use_trainer(TrainerSettings(40))
    set_here.maybe_run(10)
    assert limits == [LOCAL_MAX_TOKENS, 40, 7] == [512, 40, 7]
    with pytest.raises(ResumeMismatch, match=r"another max_tokens \(was 40, is now 50\)"):
        evals("told").use_trainer(TrainerSettings(50))


# --- Heartbeats ---------------------------------------------------------------------------------


def by_keyword(heard: list[Any]) -> list[Any]:
    """Return heartbeats that take their fields by keyword."""

    class Watchdog:
        def beat(self, stage: str, step: int | None = None, **fields: Any) -> None:
            heard.append((stage, {"step": step, **fields}))

    def required(stage: str, step: int, **fields: Any) -> None:
        heard.append((stage, {"step": step, **fields}))

    def decorated(*args: Any, **kwargs: Any) -> None:
        heard.append((*args, kwargs))

    def some(name: str, *, eval_reward: float | None = None, **others: Any) -> None:
        heard.append((name, {"eval_reward": eval_reward, **others}))

    return [Watchdog().beat, required, decorated, some, partial(required)]


def as_one_dict(heard: list[Any]) -> list[Any]:
    """Return heartbeats that take their fields as one dict."""

    def beat(name: str, fields: dict[str, Any]) -> None:
        heard.append((name, fields))

    def with_more(name: str, fields: dict[str, Any], **more: Any) -> None:
        heard.append((name, fields))
        assert not more

    return [beat, with_more, lambda *args: heard.append(args)]


@pytest.mark.parametrize("heartbeats", [by_keyword, as_one_dict])
def test_a_heartbeat_gets_its_fields_as_its_signature_takes_them(
    tmp_path: Path, heartbeats: Callable[[list[Any]], list[Any]]
) -> None:
    heard: list[Any] = []
    for number, beat in enumerate(heartbeats(heard)):
        heard.clear()
        periodic(tmp_path / str(number), heartbeat_fn=beat).maybe_run(10)
        [(name, fields)] = heard
        assert (name, fields["step"], fields["eval_reward"]) == ("rl_eval", 10, 0.5), beat


def test_a_mock_gets_the_fields_of_a_heartbeat_by_keyword(tmp_path: Path) -> None:
    watchdog = Mock()
    periodic(tmp_path, heartbeat_fn=watchdog.beat).maybe_run(10)
    [call] = watchdog.beat.call_args_list
    assert call.args == ("rl_eval",)
    assert (call.kwargs["step"], call.kwargs["eval_reward"]) == (10, 0.5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda fields: None, "does not take"),
        (lambda a, b, c: None, "does not take"),
        (lambda name, step=None: None, "does not take"),  # would take the dict for the step
        (lambda name, eval_reward=None: None, "does not take"),
        (lambda name, *, step, eval_reward: None, "does not take"),
        (lambda step, **fields: None, "does not take"),
        (3, "heartbeat_fn must be a function"),
        (iter, "the signature of <built-in function iter> is unknown"),
    ],
)
def test_a_heartbeat_that_cannot_take_its_fields_is_refused_before_training(
    tmp_path: Path, wrong: Any, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        periodic(tmp_path, heartbeat_fn=wrong)


# --- Debugging ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_getter": boom}, "rl_eval at step 10: model: ValueError: boom"),
        ({"model_getter": lambda: Model(8, fails=["3"])}, "sample 'q3': .*no 3"),
    ],
    ids=["skip", "item"],
)
def test_errors_are_raised_where_that_is_asked_for_and_their_line_is_written(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    evals = periodic(tmp_path, on_error="raise", **settings)
    with pytest.raises(EvalFailed, match=said):
        evals.maybe_run(10)
    assert steps(evals) == [10]


class ThreadRanks:
    """Ranks that are threads, which fail instead of waiting for ever."""

    patience = None

    def __init__(self, rank: int, table: list[bytes], barrier: threading.Barrier) -> None:
        self.rank, self.world = rank, len(table)
        self._table, self._barrier = table, barrier

    def all_gather(self, mine: bytes) -> list[bytes]:
        self._table[self.rank] = mine
        self._barrier.wait(20)
        given = list(self._table)
        self._barrier.wait(20)
        return given

    def broadcast(self, mine: bytes) -> bytes:
        return self.all_gather(mine)[0]


def on_two_ranks(train: Callable[[ThreadRanks], list[Any]]) -> list[list[Any]]:
    table, barrier = [b"", b""], threading.Barrier(2)
    with ThreadPoolExecutor(2) as threads:
        ranks = [ThreadRanks(rank, table, barrier) for rank in range(2)]
        return list(threads.map(train, ranks))


def test_all_ranks_leave_a_final_eval_that_is_there_already(tmp_path: Path) -> None:
    model = weighted()

    def train(ranks: ThreadRanks) -> list[Any]:
        evals = periodic(tmp_path, model, across="all", ranks=ranks)
        return [evals.maybe_run(10), evals.run_final(10), evals.run_final(13)]

    points, others = on_two_ranks(train)
    assert others == [None, None, None]
    assert [p.step for p in points] == [10, 10, 13]
    assert points[1] is points[0]
    assert {o.id for o in points[0].outcomes} == {f"q{i}" for i in range(8)}


def test_all_ranks_know_why_to_stop_and_know_it_at_the_same_step(tmp_path: Path) -> None:
    """One that leaves its loop alone leaves the others waiting for it."""

    def monitor(points: Any) -> str | None:
        return "enough" if len(points) > 1 else None

    def train(ranks: ThreadRanks) -> list[Any]:
        evals = periodic(tmp_path, Model(), across="all", ranks=ranks, monitor=monitor)
        found = []
        for step in range(10, 40, 5):
            evals.maybe_run(step)
            if step == 10 and ranks.rank == 0:
                request_stop(evals.run_dir, "from outside")
            found.append(evals.stop_requested)
        return found

    assert on_two_ranks(train) == [[None, None, *["enough"] * 4]] * 2


# --- One training run, one curve ----------------------------------------------------------------


def unsaid(folder: Path, model: Any = None, **settings: Any) -> PeriodicEval:
    """An eval that does not say whether it continues what it finds."""
    return periodic(folder, model, **{"resume": None, **settings})


def test_a_curve_is_not_continued_unless_that_is_said(tmp_path: Path) -> None:
    unsaid(tmp_path).maybe_run(10)
    with pytest.raises(RunExists, match="resume=True"):
        unsaid(tmp_path, resume=False)
    again = unsaid(tmp_path)
    with pytest.raises(RunExists, match="another run_dir"):
        again.maybe_run(1)
    continued = unsaid(tmp_path, resume=True)
    continued.maybe_run(20)
    assert [p.step for p in continued.points] == [10, 20]


def test_training_that_resumes_behind_its_last_eval_is_complete_too(tmp_path: Path) -> None:
    for _ in range(2):  # the first may have been killed before it could say so
        evals = periodic(tmp_path, weighted(), resume=True)
        evals.maybe_run(10)
        evals.run_final(10)
        assert RunDir(evals.run_dir).read_info().status == "complete"
    assert steps(evals) == [10]


def test_training_runs_without_a_directory_get_one_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)

    def evals(**settings: Any) -> PeriodicEval:
        return PeriodicEval(questions(), builder(), every_steps=10, **settings)

    evals().maybe_run(10, Model())
    continued = evals(resume=True)
    assert (continued.run_dir.name, [p.step for p in continued.points]) == ("rl_eval", [10])
    continued.run_final(10, Model())
    runs = [evals(), evals()]  # both before either has begun
    for run in runs:
        run.maybe_run(20, Model())
    assert [run.run_dir for run in runs] == [
        tmp_path / "outputs/evals" / name for name in ("rl_eval-2", "rl_eval-3")
    ]
    assert [[p.step for p in run.points] for run in runs] == [[20], [20]]
    assert "rl_eval-2" in caplog.text
    with pytest.raises(InvalidInput, match="say which one with run_dir="):
        evals(resume=True)
    other = evals(label="rl_eval-2")
    other.begin()
    assert other.run_dir.name == "rl_eval-2-2"  # the name is taken, the label is another one


def test_a_curve_without_results_is_begun_anew_and_its_skips_are_put_aside(tmp_path: Path) -> None:
    unsaid(tmp_path, model_getter=lambda: None).maybe_run(10)
    again = unsaid(tmp_path)
    again.maybe_run(20)
    assert [(p.step, p.has_result) for p in again.points] == [(20, True)]
    assert steps(again) == [20]
    assert [p.step for p in read_points(again.run_dir / "curve.failed.jsonl")] == [10]


def test_a_process_that_is_not_the_first_evaluates_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    evals = unsaid(tmp_path)
    assert evals.maybe_run(10) is None
    assert evals.run_final(10) is None
    assert not (tmp_path / "run").exists()
    [said] = [r.getMessage() for r in caplog.records if "evaluates nothing" in r.getMessage()]
    assert "RANK=1 and WORLD_SIZE=2, so this process is not the first" in said


@pytest.mark.parametrize("world", [None, "1"])
def test_a_job_of_an_array_has_a_rank_and_trains_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world: str | None
) -> None:
    monkeypatch.setenv("RANK", "1")
    if world is not None:
        monkeypatch.setenv("WORLD_SIZE", world)
    evals = unsaid(tmp_path)
    assert evals.maybe_run(10) is not None
    assert len(read_points(evals.run_dir / "curve.jsonl")) == 1
    assert AsyncEvalDispatcher().is_first


def test_a_point_that_no_line_can_hold_is_a_skip(tmp_path: Path) -> None:
    evals = periodic(tmp_path, runner_builder=builder(describe=lambda: {"way": object()}))
    point = evals.maybe_run(10)
    assert "holds a value that JSON cannot" in (point.skipped or "")
    assert read_points(evals.run_dir / "curve.jsonl") == [point]


@pytest.mark.parametrize("step", [1.5, "ten", None, 2**60])
def test_a_step_is_a_whole_number(tmp_path: Path, step: Any) -> None:
    with pytest.raises(InvalidInput, match="step must be a whole number"):
        periodic(tmp_path).maybe_run(step)
