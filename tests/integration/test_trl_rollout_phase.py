"""Evals inside the trainer's rollout phase: TRL's own trainer, on a small model.

vLLM is a fake, here one that refuses to be driven outside of a rollout.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heldout import Sample, Score, Trajectory
from heldout._live.rendering.chat_templates import ChatRenderer
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.integrations.transformers import HeldoutCallback
from heldout.integrations.trl import build_rollout_func, in_rollout_phase
from heldout.testing import assert_neutral
from heldout.training import CurvePoint, PeriodicEval, live_model, read_points
from tests.integration import trl_fake as trl
from tests.integration.trl_fake import MakeTrainer

pytestmark = pytest.mark.integration

HELD_OUT = trl.SAMPLES[1::5]
VLLM = {**trl.COLOCATED, "num_generations": 2, "per_device_train_batch_size": 4}
SLEEPING = {**VLLM, "vllm_enable_sleep_mode": True}


def make_eval(tmp_path: Path, name: str = "curve", **settings: Any) -> PeriodicEval:
    builder = settings.pop("builder", None) or in_rollout_phase(
        settings.pop("score_fn", trl.score), environment_factory=trl.adder, max_turns=3, max_new=16
    )
    defaults: dict[str, Any] = {"every_steps": 2, "run_dir": tmp_path / name}
    return PeriodicEval(HELD_OUT, builder, **{**defaults, **settings})


class Callback:
    """Of transformers' kind; calls what it is given, with step and model."""

    def __init__(self, **events: Callable[[int, Any], object]) -> None:
        from transformers import TrainerCallback

        class Inner(TrainerCallback):  # type: ignore[misc]
            pass

        for event, function in events.items():

            def call(
                self: Any,
                args: Any,
                state: Any,
                control: Any,
                function: Any = function,
                **rest: Any,
            ) -> None:
                function(state.global_step, rest["model"])

            setattr(Inner, event, call)
        self.inner = Inner()


class PhaseSpy:
    """A rollout function during which, and only then, vLLM may be used."""

    def __init__(self, inner: Any, llm: trl.FakeLLM | None = None) -> None:
        self.inner, self.llm = inner, llm
        self.outputs: list[Any] = []
        self.steps: list[int] = []
        self.prompts: list[tuple[float, tuple[int, ...]]] = []
        """Temperature and ids of each turn that vLLM was asked for."""
        if llm is None:
            return
        self._open, generate = False, llm.generate

        def watched(prompts: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
            if not self._open:
                raise RuntimeError("called outside of the rollout phase: training hangs")
            for prompt, sampling in zip(prompts, sampling_params, strict=True):
                self.prompts.append((sampling.temperature, tuple(prompt["prompt_token_ids"])))
            return generate(prompts, sampling_params, use_tqdm)

        llm.generate = watched  # type: ignore[method-assign]

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self._open = True
        self.steps.append(trainer.state.global_step)
        try:
            self.outputs.append(self.inner(prompts, trainer))
        finally:
            self._open = False
        output: dict[str, Any] = self.outputs[-1]
        return output


def rollout_func(
    evals: list[PeriodicEval], llm: trl.FakeLLM | None = None, **settings: Any
) -> PhaseSpy:
    defaults: dict[str, Any] = {"environment_factory": trl.adder, "max_turns": 3, "evals": evals}
    defaults["allow_overlap"] = True  # what the model was taught is all that it can answer
    return PhaseSpy(build_rollout_func(trl.SAMPLES, trl.score, **{**defaults, **settings}), llm)


def steps(points: list[CurvePoint]) -> list[int]:
    return [point.step for point in points]


def answers(point: CurvePoint) -> list[tuple[str, float | None]]:
    return [(outcome.id, outcome.reward) for outcome in point.outcomes]


# --- The curve ----------------------------------------------------------------------------------


def test_points_are_of_the_weights_that_the_rollouts_of_their_step_are_made_with(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, at_start=True)
    trainer = make_trainer(rollout_func([evals]), max_steps=5, learning_rate=1e-2)
    weights = {0: fingerprint(trainer.model)}
    callback = Callback(on_step_end=lambda step, model: weights.update({step: fingerprint(model)}))
    trainer.add_callback(callback.inner)
    trainer.train()
    evals.run_final(trainer.state.global_step, trainer.model)
    points = read_points(evals.run_dir / "curve.jsonl")
    assert steps(points) == [0, 2, 4, 5]
    assert [point.weights for point in points] == [weights[step] for step in steps(points)]
    assert len({*weights.values()}) == 6
    assert [point.skipped for point in points] == [None] * 4
    assert all(point.n == len(HELD_OUT) for point in points)
    assert [point.final for point in points] == [False, False, False, True]
    assert {point.decoding["engine"] for point in points if point.decoding} == {"transformers"}
    assert len({point.reward for point in points}) > 1


@pytest.mark.parametrize("settings", [{}, SLEEPING], ids=["transformers", "vllm"])
def test_training_ends_in_the_same_weights_and_logs_the_same_rows(
    settings: dict[str, Any],
    make_trainer: MakeTrainer,
    vllm: trl.FakeLLM,
    tmp_path: Path,
    taught: dict[str, Any],
) -> None:
    curves: list[PeriodicEval] = []
    rollouts: list[Any] = []

    def careless(trajectory: Trajectory, sample: Sample) -> Score:
        random.random()
        torch.rand(1)
        return trl.score(trajectory, sample)

    def train(evaluating: bool) -> Any:
        curves.append(make_eval(tmp_path, f"curve{len(curves)}", every_steps=1, score_fn=careless))
        spy = rollout_func([curves[-1]] if evaluating else [])
        torch.manual_seed(0)
        trainer = make_trainer(
            spy,
            model=trl.make_model(taught, attention_dropout=0.1),
            max_steps=3,
            learning_rate=1e-2,
            temperature=1.0,
            **settings,
        )
        trainer.train()
        rollouts.append([output["completion_ids"] for output in spy.outputs])
        return trainer.model, trainer.state.log_history

    neutral = assert_neutral(train)
    assert neutral.metrics > 30
    assert neutral.weights != fingerprint(taught)
    assert rollouts[0] == rollouts[2]
    assert [steps(each.points) for each in curves] == [[], [], [1, 2]]
    assert all(point.summary for point in curves[2].points)


def test_where_rollouts_serve_several_steps_an_eval_comes_with_the_first_after_it_was_due(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, every_steps=3)
    spy = rollout_func([evals])
    make_trainer(spy, max_steps=8, steps_per_generation=2).train()
    assert spy.steps == [0, 2, 4, 6]
    assert steps(evals.points) == [4, 6]


@pytest.mark.parametrize("after_save", [False, True])
def test_an_eval_comes_after_the_save_of_its_step_and_the_last_one_before_unless_that_is_asked_for(
    make_trainer: MakeTrainer, tmp_path: Path, after_save: bool
) -> None:
    """An eval that ends the process costs no step: that was saved before the next rollouts."""
    done: list[str] = []

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        done.append(f"eval {trainer.state.global_step}")
        return trl.score(trajectory, sample)

    evals = make_eval(tmp_path, score_fn=score)
    trainer = make_trainer(rollout_func([evals]), max_steps=4, save_strategy="steps", save_steps=2)
    HeldoutCallback(evals, allow_overlap=True, after_save=after_save).attach(trainer)
    # Before ours, which evaluates where the save is told.
    trainer.callback_handler.callbacks.insert(
        0, Callback(on_save=lambda step, model: done.append(f"save {step}")).inner
    )
    trainer.train()
    last = ["save 4", "eval 4"] if after_save else ["eval 4", "save 4"]
    assert list(dict.fromkeys(done)) == ["save 2", "eval 2", *last]
    assert steps(evals.points) == [2, 4]


def test_where_a_step_has_several_rollouts_it_is_evaluated_once(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, every_steps=1, at_start=True)
    spy = rollout_func([evals])
    make_trainer(spy, max_steps=2, gradient_accumulation_steps=2, steps_per_generation=1).train()
    assert spy.steps == [0, 0, 1, 1]
    assert steps(evals.history) == [0, 1]


def test_the_trainers_own_evaluation_is_no_rollout_phase(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, every_steps=1, at_start=True)
    make_trainer(rollout_func([evals])).evaluate()
    assert evals.history == []


# --- vLLM ---------------------------------------------------------------------------------------


def test_vllm_is_driven_greedily_inside_of_rollouts_only(
    make_trainer: MakeTrainer, vllm: trl.FakeLLM, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, at_start=True)
    spy = rollout_func([evals], vllm)
    trainer = make_trainer(spy, **VLLM, max_steps=4, temperature=0.7)
    trainer.add_callback(Callback(on_train_end=evals.run_final).inner)
    trainer.train()
    points = evals.points
    assert steps(points) == [0, 2, 4]
    assert [point.skipped for point in points] == [None] * 3
    said = [point.decoding or {} for point in points]
    assert [each["engine"] for each in said] == ["vllm", "vllm", "transformers"]
    assert said[0] == {"engine": "vllm", "rows": 256, "max_new": 16}
    greedy = [ids for temperature, ids in spy.prompts if temperature == 0.0]
    assert len(greedy) >= 2 * len(HELD_OUT)
    assert {temperature for temperature, _ in spy.prompts} == {0.0, 0.7}


def test_the_engine_is_woken_once_for_eval_and_rollouts_and_forgets_the_evals_prompts(
    make_trainer: MakeTrainer, vllm: trl.FakeLLM, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, at_start=True)
    make_trainer(rollout_func([evals], vllm), **SLEEPING, max_steps=1).train()
    assert steps(evals.points) == [0]
    told = [event for i, event in enumerate(vllm.events) if event != vllm.events[i - 1] or not i]
    forgets = ["generate", "synced", "generate"]
    assert told == ["sleep", "wake weights", "synced", "wake kv_cache", *forgets, "sleep"]


def marking(tokenizer: Any) -> Any:
    """A template that shows a call otherwise than the model wrote it."""
    chat = ChatRenderer(tokenizer)

    def render(messages: Any, add_generation_prompt: bool, tools: Any = ()) -> list[int]:
        marked = [
            replace(message, content=f"# {message.content}") if message.tool_calls else message
            for message in messages
        ]
        return chat(marked, add_generation_prompt, tools)

    render.decode, render.parse, render.ends = chat.decode, chat.parse, chat.ends  # type: ignore[attr-defined]
    return render


@pytest.mark.parametrize(
    ("segments", "render"),
    [("suffix", None), ("boundary", None), ("suffix", marking(trl.make_tokenizer()))],
)
def test_held_out_conversations_are_the_tokens_that_training_would_have_made_of_them(
    segments: str, render: Any, make_trainer: MakeTrainer, vllm: trl.FakeLLM, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, at_start=True)
    spy = rollout_func([evals], vllm, segments=segments, render=render)
    trainer = make_trainer(spy, **VLLM, temperature=0.7)
    trainer.eval_dataset = trl.to_dataset(HELD_OUT)
    trainer.evaluate()
    by_trl = sorted(spy.prompts)
    spy.prompts.clear()
    trainer.train()
    own = sorted(each for each in spy.prompts if each[0] == 0.0)
    assert len(own) > len(HELD_OUT)
    assert own == by_trl
    assert [outcome.error for outcome in evals.points[0].outcomes] == [None] * len(HELD_OUT)


def test_with_the_same_weights_both_engines_give_the_same_answers(
    make_trainer: MakeTrainer, vllm: trl.FakeLLM, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, every_steps=1, at_start=True)
    trainer = make_trainer(rollout_func([evals], vllm), **SLEEPING, max_steps=1, learning_rate=0.0)
    trainer.train()
    [by_vllm] = evals.points
    by_transformers = evals.run_final(1)  # the model is known from the rollout phase
    assert by_transformers is not None
    assert by_transformers.skipped is None
    assert answers(by_vllm) == answers(by_transformers)
    assert by_vllm.weights == by_transformers.weights
    assert by_vllm.summary == by_transformers.summary
    assert vllm.events[-1] == "sleep"


def test_an_engine_that_fails_is_a_skip_and_training_goes_on(
    make_trainer: MakeTrainer, vllm: trl.FakeLLM, tmp_path: Path
) -> None:
    generate = vllm.generate

    def broken(prompts: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        if sampling_params[0].temperature == 0.0:
            raise RuntimeError("no more blocks")
        return generate(prompts, sampling_params, use_tqdm)

    vllm.generate = broken  # type: ignore[method-assign]
    evals = make_eval(tmp_path, every_steps=1)
    trainer = make_trainer(rollout_func([evals]), **VLLM, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    [point] = evals.points
    assert "no more blocks" in (point.skipped or "")


# --- Outside ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, VLLM])
def test_between_rollouts_it_is_refused_and_the_curve_says_so(
    settings: dict[str, Any], make_trainer: MakeTrainer, vllm: trl.FakeLLM, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path, every_steps=5)
    trainer = make_trainer(rollout_func([evals], vllm), **settings, max_steps=2)

    def intrude(step: int, model: Any) -> None:
        if step == 1:
            evals.run_eval(step, model)

    trainer.add_callback(Callback(on_step_end=intrude).inner)
    trainer.train()
    [point] = evals.points
    assert point.step == 1
    assert "runs inside the rollout phase, which is over" in (point.skipped or "")


def test_without_a_rollout_phase_the_trainer_and_its_model_it_is_refused(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path)
    trainer = make_trainer(rollout_func([evals]))

    def why_skipped(step: int, model: Any) -> str:
        point = evals.run_eval(step, model)
        assert point is not None
        return point.skipped or ""

    assert "there was none" in why_skipped(0, trainer.model)
    trainer.train()
    model = trl.make_model()
    assert "the model of that trainer only" in why_skipped(1, model)
    del trainer
    gc.collect()
    assert "its trainer is gone" in why_skipped(1, model)


def test_last_weights_that_transformers_cannot_decode_as_vllm_did_are_skipped(
    make_trainer: MakeTrainer, vllm: trl.FakeLLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evals = make_eval(tmp_path, at_start=True)
    regex = {"vllm_structured_outputs_regex": ".*"}
    trainer = make_trainer(rollout_func([evals], vllm), **VLLM, **regex)
    trainer.train()
    assert evals.points[0].skipped is None

    def why_skipped() -> str:
        final = evals.run_final(1, trainer.model)
        assert final is not None
        return final.skipped or ""

    assert "vllm_structured_outputs_regex='.*'" in why_skipped()
    monkeypatch.setattr(trainer.args, "generation_kwargs", {"seed": 1})
    assert "generation_kwargs={'seed': 1}" in why_skipped()
    monkeypatch.setattr(trainer, "repetition_penalty", 1.1)
    assert "repetition_penalty=1.1" in why_skipped()
    monkeypatch.setattr(trainer, "_dist", SimpleNamespace(is_zero3=False, is_fsdp=True))
    assert "sharded" in why_skipped()


def test_settings_that_the_decoder_does_not_know_are_obeyed_by_generate(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    plain, penalised = (
        make_eval(tmp_path, "a", at_start=True),
        make_eval(tmp_path, "b", at_start=True),
    )
    make_trainer(rollout_func([plain])).train()
    make_trainer(rollout_func([penalised]), repetition_penalty=0.05).train()
    [first], [second] = plain.points, penalised.points
    assert (first.decoding or {})["way"] == "eager"
    assert (second.decoding or {})["way"] == "generate"
    assert (second.decoding or {})["why_generate"] == "repetition_penalty=0.05"
    assert first.reward != second.reward  # it says the prompt's words again


# --- Giving evals to a rollout function ---------------------------------------------------------


def test_evals_that_could_not_run_there_are_refused_when_built(tmp_path: Path) -> None:
    evals = make_eval(tmp_path)
    assert not getattr(evals, "in_rollout_phase", False)
    rollout_func([evals])
    assert evals.in_rollout_phase  # type: ignore[attr-defined]  # which callbacks read
    other = make_eval(tmp_path, builder=live_model(trl.make_tokenizer(), trl.score))
    with pytest.raises(InvalidInput, match=r"make its runner_builder with in_rollout_phase"):
        rollout_func([other])
    with pytest.raises(InvalidInput, match="evals must be PeriodicEvals, got 'rl_eval'"):
        rollout_func(["rl_eval"])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="max_new must be at least 1, got 0"):
        in_rollout_phase(trl.score, max_new=0)


def test_a_turn_is_as_long_as_the_variable_says_or_else_as_in_training(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def longest(name: str) -> int:
        evals = make_eval(tmp_path, name, builder=in_rollout_phase(trl.score), at_start=True)
        make_trainer(rollout_func([evals], per_turn_max_tokens=12)).train()
        return int((evals.points[0].decoding or {})["max_new"])

    assert longest("training") == 12
    monkeypatch.setenv("HELDOUT_EVAL_MAX_NEW", "7")
    assert longest("variable") == 7


def test_training_prompts_that_are_held_out_are_an_error_before_the_first_step(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    evals = make_eval(tmp_path)
    func = rollout_func([evals], allow_overlap=False)
    trainer = make_trainer(func, max_steps=1)
    with pytest.raises(InvalidInput, match="the same prompt as a held-out sample: 'what is"):
        trainer.train()
    assert func.outputs == evals.points == []
