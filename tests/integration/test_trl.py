"""Rollouts, rewards and masks in TRL's own trainer, on a model that was taught to call a tool.

Trainer, loss and `generate` are the real ones. vLLM is not here: its engine is a small model
behind vLLM's call shape, and what stands between it and the trainer is TRL's own class.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

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
    evaluate,
)
from heldout._core import versions
from heldout._evals.rollout import define_rollouts
from heldout.adapters.verifiers import from_verifiers
from heldout.environments import ToolEnvironment
from heldout.errors import DuplicateSampleId, InvalidInput, ResumeMismatch, SystemicFailure
from heldout.integrations.transformers import HeldoutCallback
from heldout.integrations.trl import (
    build_rollout_func,
    engines,
    in_rollout_phase,
    reward_from_rollout,
    to_dataset,
    where_scored,
)
from heldout.integrations.trl import rollout_func as ours
from heldout.models.local import LocalEndpoint
from heldout.rollouts.generating import Rollout
from heldout.training import PeriodicEval, live_model
from tests.integration.trl_fake import (
    COLOCATED,
    CONTEXT,
    SAMPLES,
    TEMPLATE,
    WORDS,
    FakeLLM,
    MakeTrainer,
    add,
    adder,
    make_model,
    make_tokenizer,
    score,
)

pytestmark = pytest.mark.integration


@dataclasses.dataclass
class Spy:
    """A rollout function that remembers what it returned and what it did to the random state."""

    inner: Callable[[list[Any], Any], dict[str, Any]]
    modes: list[str] = dataclasses.field(default_factory=list)
    prompts: list[list[Any]] = dataclasses.field(default_factory=list)
    outputs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    drew: list[bool] = dataclasses.field(default_factory=list)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        before = random_state()
        output = self.inner(prompts, trainer)
        self.drew.append(random_state() != before)
        self.modes.append("train" if trainer.model.training else "eval")
        self.prompts.append(prompts)
        self.outputs.append(output)
        return output


def random_state() -> tuple[Any, ...]:
    numpy_state = np.random.get_state()
    return (
        random.getstate(),
        tuple(map(str, numpy_state)),
        numpy_state[1].tobytes(),
        torch.random.get_rng_state().numpy().tobytes(),
    )


def rollouts(samples: list[Sample] = SAMPLES, score_fn: Any = score, **settings: Any) -> Spy:
    defaults: dict[str, Any] = {"environment_factory": adder, "max_turns": 3}
    return Spy(build_rollout_func(samples, score_fn, **{**defaults, **settings}))


def environment_tokens(tokenizer: Any, ids: list[int]) -> list[bool]:
    """Which tokens are the environment's, from the text alone: the tool's message, in its dress."""
    words = tokenizer.convert_ids_to_tokens(ids)
    found, inside = [], False
    for word in words:
        inside = inside or word == "<|im_start|>"
        found.append(inside)
        inside = inside and word != "assistant"
    return found


def prompts_of(dataset: Any) -> list[Any]:
    return [row["prompt"] for row in dataset]


def steps(trainer: Any) -> list[dict[str, Any]]:
    """The rows that the trainer logged of its steps."""
    return [row for row in trainer.state.log_history if "reward" in row]


# --- Training -----------------------------------------------------------------------------------


def test_the_environments_tokens_get_no_gradient_and_the_models_do(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = rollouts()
    trainer = make_trainer(spy, temperature=1.0)
    seen: list[tuple[Any, Any]] = []
    original = trainer._get_per_token_logps_and_entropies

    def watched(model: Any, input_ids: Any, attention_mask: Any, keep: int, **rest: Any) -> Any:
        logprobs, entropies, extra = original(model, input_ids, attention_mask, keep, **rest)
        if logprobs.requires_grad:
            logprobs.retain_grad()
            seen.append((input_ids[:, -keep:], logprobs))
        return logprobs, entropies, extra

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", watched)
    trainer.train()
    [(ids, logprobs)] = seen
    tokenizer = trainer._tokenizer
    masked = trained = 0
    for row, gradient in zip(ids.tolist(), logprobs.grad, strict=True):
        while row[-1] == tokenizer.pad_token_id:
            row.pop()
        environments = torch.tensor(environment_tokens(tokenizer, row))
        gradient = gradient[: len(row)]
        assert not gradient[environments].any()
        if gradient.any():  # an advantage of exactly 0 moves nothing
            assert gradient[~environments].all()
            trained += 1
            masked += int(environments.sum())
    assert trained >= 4
    assert masked >= 8


def test_training_moves_the_weights_and_logs_reward_and_metrics_by_name(
    make_trainer: MakeTrainer, taught: dict[str, Any]
) -> None:
    spy = rollouts()
    trainer = make_trainer(spy, max_steps=3, eval_strategy="steps", eval_steps=3)
    trainer.train()
    now = trainer.model.state_dict()
    assert any(not torch.equal(now[name], value) for name, value in taught.items())
    training = steps(trainer)
    assert len(training) == 3
    for row, output in zip(training, spy.outputs, strict=False):
        metrics = output["heldout_metrics"]
        assert row["reward"] == pytest.approx(np.mean(output["heldout_reward"]))
        assert row["rewards/reward_from_rollout/mean"] == pytest.approx(row["reward"])
        assert row["metric_close/batch_mean"] == pytest.approx(row["reward"])
        assert row["metric_turns/batch_mean"] == pytest.approx(
            np.mean([m["turns"] for m in metrics])
        )
        # Reported by some of the rollouts only: the mean is over those.
        assert row.get("metric_reward/batch_mean", 100.0) == 100.0
        assert row["rollouts/n_errors"] == 0
        assert row["rollouts/truncated"] == np.mean(output["heldout_truncated"])
    assert any("metric_reward/batch_mean" in row for row in training)
    assert max(m["turns"] for o in spy.outputs for m in o["heldout_metrics"]) >= 2
    [held_out] = [row for row in trainer.state.log_history if "eval_reward" in row]
    assert 0 <= held_out["eval_metric_close/batch_mean"] <= 1
    assert spy.modes[:3] == ["train"] * 3
    assert set(spy.modes[3:]) == {"eval"}


def test_rows_keep_their_order_through_arrow_shuffle_and_repetition(
    make_trainer: MakeTrainer,
) -> None:
    seen: list[tuple[str, float]] = []

    def check(heldout_metrics: Any, sample_id: Any, completion_ids: Any, **columns: Any) -> Any:
        seen.extend(zip(sample_id, (m["which"] for m in heldout_metrics), strict=True))
        return columns["heldout_reward"]

    spy = rollouts()
    trainer = make_trainer(spy, rewards=check, max_steps=2)
    trainer.train()
    assert [SAMPLES[int(which)].id for _, which in seen] == [id for id, _ in seen]
    for group in range(0, 16, 4):
        assert len({id for id, _ in seen[group : group + 4]}) == 1
    assert len({id for id, _ in seen}) == 4
    tokenizer = trainer._tokenizer
    for prompts, output in zip(spy.prompts, spy.outputs, strict=True):
        for prompt, ids in zip(prompts, output["prompt_ids"], strict=True):
            assert prompt[0]["content"] in tokenizer.decode(ids)
        assert len(set(map(tuple, output["completion_ids"]))) > 1


def test_one_rollout_is_made_for_each_prompt_passed_in_however_often_it_is_there(
    make_trainer: MakeTrainer,
) -> None:
    spy = rollouts()
    one, other, *_ = prompts_of(to_dataset(SAMPLES))
    output = spy([one, one, other, one], make_trainer(spy, num_generations=8))
    assert [metrics["which"] for metrics in output["heldout_metrics"]] == [0, 0, 1, 0]
    assert {len(output[name]) for name in ("prompt_ids", "completion_ids", "env_mask")} == {4}


def test_the_settings_of_trl_that_the_page_compares_are_settings_of_trl() -> None:
    from trl import GRPOConfig

    page = (Path(__file__).parents[2] / "docs/trl.md").read_text()
    table = page.partition("| `GRPOConfig` |")[2].partition("\n\n")[0]
    named = re.findall("`(.*?)`", "".join(row.split("|")[1] for row in table.splitlines() if row))
    assert len(named) > 10
    assert set(named) <= {field.name for field in dataclasses.fields(GRPOConfig)}


def test_evaluation_is_greedy_and_draws_no_random_number(make_trainer: MakeTrainer) -> None:
    spy = rollouts()
    trainer = make_trainer(spy, samples=SAMPLES[:8])
    first, second = trainer.evaluate(), trainer.evaluate()
    assert spy.drew == [False, False]
    once, again = spy.outputs
    assert once["completion_ids"] == again["completion_ids"]
    assert first["eval_reward"] == second["eval_reward"]
    assert max(m["turns"] for m in once["heldout_metrics"]) == 2
    trainer.train()
    assert spy.modes[2] == "train"
    assert spy.drew[2]


def test_a_sampled_turn_is_what_trl_itself_would_have_drawn(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(rollouts(environment_factory=None), top_k=12, temperature=0.9)
    samples = [Sample("short", {"question": "?"}), *SAMPLES[:3]]
    prompts = [row["prompt"] for row in to_dataset(samples)]
    trainer.model.train()
    render = ours._make_renderer(trainer)
    ids = [list(render([Message("user", s.input["question"])], True)) for s in samples]
    torch.manual_seed(5)
    theirs, _ = trainer._generate_single_turn(ids, None, {}, 1)
    torch.manual_seed(5)
    output = build_rollout_func(samples, lambda t, s: Score())(prompts, trainer)
    assert output["completion_ids"] == theirs
    assert output["prompt_ids"] == ids
    assert output["logprobs"] is None
    assert output["env_mask"] == [[1] * len(row) for row in theirs]


@pytest.mark.parametrize("training", [True, False])
def test_generation_leaves_the_model_as_it_was(make_trainer: MakeTrainer, training: bool) -> None:
    spy = rollouts(environment_factory=None, per_turn_max_tokens=5)
    trainer = make_trainer(spy)
    trainer.model.train(training)
    trainer.model.gradient_checkpointing_enable()
    settings = trainer.generation_config.to_dict()
    output = spy([[{"role": "user", "content": "what is 1 plus 2 ?"}]] * 4, trainer)
    assert max(map(len, output["completion_ids"])) == 5
    assert trainer.model.training == training
    assert trainer.model.is_gradient_checkpointing
    assert trainer.generation_config.to_dict() == settings
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_rows_of_one_batch_have_limits_of_their_own(make_trainer: MakeTrainer) -> None:
    """Also one so near the end of the context that it cannot go on as long as the others."""
    trainer = make_trainer()
    trainer.model.eval()
    ids = ours._make_renderer(trainer)([Message("user", "what is 1 plus 2 ?")], True)
    almost_full = [ids[0]] * (CONTEXT - 3 - len(ids)) + ids
    prompts, limits = [ids, almost_full, ids, ids[2:]], [16, 3, 2, 16]
    positions: list[int] = []

    def note(module: Any, args: Any, kwargs: Any) -> None:
        given = kwargs["position_ids"]  # None where logits are compared with a plain pass
        positions.append(kwargs["input_ids"].shape[1] - 1 if given is None else int(given.max()))

    trainer.model.model.register_forward_pre_hook(note, with_kwargs=True)
    generate = engines.make_generate(trainer, greedy=True)
    together = generate(prompts, limits)
    alone = [generate([p], [n])[0] for p, n in zip(prompts, limits, strict=True)]
    assert together == alone
    assert max(positions) < CONTEXT
    assert [row.finish_reason for row in together] == ["stop", "length", "length", "stop"]
    assert [len(row.ids) for row in together][1:3] == [3, 2]
    assert all(row.ids[-1] == trainer._tokenizer.eos_token_id for row in together[::3])


# --- Failures -----------------------------------------------------------------------------------


def test_a_failed_rollout_has_no_reward_and_trains_no_token(make_trainer: MakeTrainer) -> None:
    def environment(sample: Sample) -> ToolEnvironment:
        if sample.ground_truth % 2:
            raise RuntimeError("no such room")
        return adder(sample)

    def fussy(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.ground_truth == 2:
            raise RuntimeError("cannot score this")
        return score(trajectory, sample)

    samples = [SAMPLES[0], SAMPLES[1], SAMPLES[2]]  # sums of 0, 1 and 2
    spy = rollouts(samples, score_fn=fussy, environment_factory=environment)
    trainer = make_trainer(
        spy, samples, num_generations=2, per_device_train_batch_size=6, max_steps=1
    )
    trainer.train()
    [output] = spy.outputs
    tokenizer = trainer._tokenizer
    sums = [SAMPLES.index(s) for s in samples for _ in range(2)]
    order = [int(p[0]["content"].split()[4]) for p in spy.prompts[0]]
    assert sorted(order) == sums
    for place, sum_ in enumerate(order):
        ids, mask = output["completion_ids"][place], output["env_mask"][place]
        assert len(ids) == len(mask) > 0
        if sum_ == 0:
            assert output["heldout_error"][place] is None
            assert output["heldout_reward"][place] is not None
            assert 1 in mask
        else:
            assert output["heldout_reward"][place] is None
            assert output["heldout_metrics"][place] == {}
            assert 1 not in mask
        if sum_ == 1:  # it had not said anything yet
            assert "no such room" in output["heldout_error"][place]
            assert ids == output["prompt_ids"][place] == [tokenizer.eos_token_id]
        else:
            assert f"what is 0 plus {sum_} ?" in tokenizer.decode(output["prompt_ids"][place])
        if sum_ == 2:
            assert "cannot score this" in output["heldout_error"][place]
            assert len(ids) > 1
    row = trainer.state.log_history[0]
    assert row["rollouts/n_errors"] == 4
    scored = [reward for reward in output["heldout_reward"] if reward is not None]
    assert row["reward"] == pytest.approx(np.mean(scored))


def test_a_prompt_that_is_too_long_fails_alone(
    make_trainer: MakeTrainer,
) -> None:
    long = Sample("long", {"question": "what " * 200}, 0)
    trainer = make_trainer()
    trainer.model.eval()
    samples = [long, SAMPLES[0]]
    output = rollouts(samples)([row["prompt"] for row in to_dataset(samples)], trainer)
    assert "takes 96" in output["heldout_error"][0]
    assert output["heldout_error"][1] is None
    assert output["prompt_ids"][0] == output["completion_ids"][0] == [2]
    assert output["env_mask"][0] == [0]


def test_if_all_rollouts_fail_training_stops_and_says_why(make_trainer: MakeTrainer) -> None:
    def broken(trajectory: Trajectory, sample: Sample) -> Score:
        raise RuntimeError("the judge is away")

    trainer = make_trainer(rollouts(score_fn=broken))
    with pytest.raises(SystemicFailure, match="all 8 rollouts .* the judge is away"):
        trainer.train()


# --- Samples and prompts ------------------------------------------------------------------------


CALL = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "what is 1 plus 1 ?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
]
THOUGHT = {"role": "assistant", "content": "2", "reasoning_content": "hm"}
VARIED = [
    Sample("text", {"question": "what is 1 plus 1 ?"}),
    Sample("history", {"messages": HISTORY}),
    Sample("thought", {"messages": [THOUGHT]}),
    Sample("parts", {"messages": [{"role": "user", "content": [{"type": "text", "text": "é"}]}]}),
    Sample(
        "picture",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "what ?"}, PICTURE]}]},
    ),
]


def test_prompts_are_found_again_after_arrow_has_given_all_rows_all_fields() -> None:
    dataset = to_dataset(VARIED)
    assert dataset["sample_id"][:] == [sample.id for sample in VARIED]
    found = ours._index_by_prompt(ours._prepare_items(define_rollouts(VARIED)), "refuse")
    assert "tool_calls" in prompts_of(dataset)[0][0]  # None, added by Arrow
    for prompt, sample in zip(prompts_of(dataset), VARIED, strict=True):
        assert ours._find_item(prompt, found).sample is sample


def test_prompts_are_found_in_a_dataset_that_somebody_else_made() -> None:
    found = ours._index_by_prompt(ours._prepare_items(define_rollouts(VARIED)), "refuse")
    text, history = VARIED[0], VARIED[1]
    assert ours._find_item("what is 1 plus 1 ?", found).sample is text
    named = ({"content": "what is 1 plus 1 ?", "role": "user", "name": None, "weight": 3},)
    assert ours._find_item(named, found).sample is text
    function = {"name": "add", "arguments": '{"b":1, "a":1}'}
    call = {"type": "function", "id": "c1", "function": function}
    assistant = {"role": "assistant", "content": "", "tool_calls": [call]}
    as_json = [*HISTORY[:2], assistant, HISTORY[3]]
    assert ours._find_item(as_json, found).sample is history


def test_prepare_messages_makes_the_prompts_and_is_asked_once_a_sample(
    make_trainer: MakeTrainer,
) -> None:
    asked: list[str] = []

    def prepare(sample: Sample) -> list[Message]:
        asked.append(sample.id)
        return [Message("system", "add"), Message("user", sample.input["question"])]

    samples = SAMPLES[:4]
    trainer = make_trainer()
    trainer.model.eval()
    dataset = to_dataset(samples, prepare)
    run = rollouts(samples, prepare_messages=prepare)
    asked.clear()
    output = run(prompts_of(dataset), trainer)
    assert asked == []
    assert "system add" in trainer._tokenizer.decode(output["prompt_ids"][0])
    with pytest.raises(InvalidInput, match="no sample has the prompt .*same prepare_messages"):
        run(prompts_of(to_dataset(samples)), trainer)


@pytest.mark.filterwarnings("ignore:coroutine")
def test_an_async_prepare_messages_is_refused() -> None:
    async def prepare(sample: Sample) -> list[Message]:
        return [Message("user", "?")]

    with pytest.raises(InvalidInput, match="cannot be async"):
        to_dataset(SAMPLES, prepare)  # type: ignore[arg-type]


TWINS = [
    Sample("a", {"question": "what ?"}, 1),
    Sample("b", {"prompt": [{"role": "user", "content": "what ?"}]}, 2),
    Sample("c", {"question": "who ?"}, 3),
    Sample("d", {"question": "who ?"}, 4),
    Sample("e", {"question": "who ?"}, 5),
    Sample("f", {"question": "why ?"}, 6),
]


def test_samples_that_share_a_prompt_are_refused_unless_one_of_them_is_chosen() -> None:
    items, asked = ours._prepare_items(define_rollouts(TWINS)), []

    def last(samples: list[Sample]) -> Sample:
        asked.append([sample.id for sample in samples])
        return samples[-1]

    with pytest.raises(InvalidInput, match="2 prompts are shared by 5 samples .'a', 'b', 'c'"):
        build_rollout_func(TWINS, score)
    with pytest.warns(UserWarning, match="2 prompts are shared by 5 samples .* 3 never are"):
        found = ours._index_by_prompt(items, "first")
    assert [item.sample.id for item in found.values()] == ["a", "c", "f"]
    found = ours._index_by_prompt(items, last)
    assert [item.sample.id for item in found.values()] == ["b", "e", "f"]
    assert asked == [["a", "b"], ["c", "d", "e"]]
    with pytest.raises(InvalidInput, match="returns one of the samples"):
        build_rollout_func(TWINS, score, duplicates=lambda samples: SAMPLES[0])
    with pytest.raises(InvalidInput, match="duplicates must be"):
        build_rollout_func(TWINS, score, duplicates="last")  # type: ignore[arg-type]


def test_what_is_no_set_of_samples_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no samples"):
        build_rollout_func([], score)
    with pytest.raises(InvalidInput, match="starts from a Sample"):
        build_rollout_func(["a"], score)  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="'picture' .*'image_url'.* text only"):
        build_rollout_func(VARIED, score)
    with pytest.raises(DuplicateSampleId):
        build_rollout_func([SAMPLES[0], SAMPLES[0]], score)


# --- The reward function ------------------------------------------------------------------------


def test_the_reward_function_logs_each_value_of_each_metric() -> None:
    logged: list[tuple[str, float]] = []
    rewards = reward_from_rollout(
        prompts=[],
        completions=[],
        completion_ids=[],
        heldout_reward=[1.0, None, 0.5],
        heldout_metrics=[{"a": 1.0, "b": 3.0}, {}, {"a": 0.0}],
        heldout_error=[None, "render: broken", None],
        heldout_mismatched=[False, True, False],
        heldout_truncated=[True, True, False],
        log_metric=lambda name, value: logged.append((name, value)),
        log_extra=None,
        trainer_state=None,
    )
    assert rewards == [1.0, None, 0.5]
    assert logged == [
        ("metric_a/batch_mean", 1.0),
        ("metric_b/batch_mean", 3.0),
        ("metric_a/batch_mean", 0.0),
        ("rollouts/n_errors", 1.0),
        ("rollouts/mismatched", 0.0),
        ("rollouts/mismatched", 1.0),
        ("rollouts/mismatched", 0.0),
        ("rollouts/truncated", 1.0),
        ("rollouts/truncated", 0.0),
    ]


def test_the_reward_function_alone_says_what_it_needs(make_trainer: MakeTrainer) -> None:
    with pytest.raises(InvalidInput, match="rollout_func=build_rollout_func"):
        make_trainer(None).train()


# --- What is refused ----------------------------------------------------------------------------


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda name: "1.15.9")
    said = r"trl 1.15.9 .*>=1.16,<2.*pip install 'trl>=1.16,<2'"
    with pytest.raises(InvalidInput, match=said):
        build_rollout_func(SAMPLES, score)


@pytest.mark.parametrize("its_own", [{"tools": [add]}, {"environment_factories": {None: adder}}])
def test_a_trainer_with_tools_of_its_own_is_refused(its_own: dict[str, Any]) -> None:
    trainer = SimpleNamespace(**{"tools": [], "environment_factories": None, **its_own})
    with pytest.raises(InvalidInput, match="ignores the env_mask"):
        build_rollout_func(SAMPLES, score)([], trainer)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"use_vllm": True, "mode": "server", "tensor_parallel_size": 2}, None),
        ({"use_vllm": True, "tensor_parallel_size": 2}, "tensor_parallel_size=2.*for ever"),
        ({"zero_stage": 3}, "sharded over several processes"),
        ({"fsdp_version": 2}, "sharded over several processes"),
        ({"fsdp_version": 2, "num_processes": 1}, None),
        ({"zero_stage": 2}, None),
        ({"use_vllm": True, "zero_stage": 3}, None),
    ],
)
def test_engines_that_ranks_would_have_to_share_are_refused(
    changed: dict[str, Any], said: str | None
) -> None:
    from trl.distributed import DistributedBackend

    settings = {"use_vllm": False, "mode": "colocate", "tensor_parallel_size": 1, "zero_stage": 0}
    settings |= {"fsdp_version": None, "num_processes": 2} | changed
    at = SimpleNamespace(**settings)
    backend = DistributedBackend.__new__(DistributedBackend)
    backend.zero_stage, backend.fsdp_version = at.zero_stage, at.fsdp_version
    trainer = SimpleNamespace(
        tools=[],
        environment_factories=None,
        use_vllm=at.use_vllm,
        vllm_generation=at,
        accelerator=at,
        _dist=backend,
    )
    if said is None:
        ours._check_trainer(trainer)
    else:
        with pytest.raises(InvalidInput, match=said):
            ours._check_trainer(trainer)


# --- vLLM ---------------------------------------------------------------------------------------


def test_with_vllm_the_sampled_tokens_logprobs_reach_the_loss_in_their_places(
    make_trainer: MakeTrainer, vllm: FakeLLM
) -> None:
    spy = rollouts()
    trainer = make_trainer(
        spy,
        **COLOCATED,
        temperature=0.8,
        max_steps=2,
        learning_rate=1e-3,
        num_generations=2,
        per_device_train_batch_size=4,
    )
    trainer.train()
    for output in spy.outputs:
        for ids, mask, logprobs in zip(
            output["completion_ids"], output["env_mask"], output["logprobs"], strict=True
        ):
            environments = environment_tokens(trainer._tokenizer, ids)
            assert mask == [int(not e) for e in environments]
            assert len(logprobs) == len(ids)
            assert [p == 0.0 for p in logprobs] == environments
        assert any(0 in mask for mask in output["env_mask"])
    # TRL compares them, place by place, with what its own forward pass makes of the tokens.
    assert len(steps(trainer)) == 2
    for row in steps(trainer):
        assert row["sampling/sampling_logp_difference/max"] < 1e-4
        assert row["sampling/importance_sampling_ratio/mean"] == pytest.approx(1, abs=1e-3)
    assert {params.logprobs for params in vllm.asked} == {0}
    assert {params.temperature for params in vllm.asked} == {0.8}


def test_with_vllm_turns_have_limits_of_their_own_and_evaluation_is_greedy(
    make_trainer: MakeTrainer, vllm: FakeLLM
) -> None:
    spy = rollouts(engine_max_len=36, stop="never this")
    trainer = make_trainer(
        spy,
        samples=SAMPLES[:3],
        **COLOCATED,
        top_p=0.9,
        generation_kwargs={"seed": 1, "stop": "nor this"},
        vllm_structured_outputs_regex=".*",
    )
    trainer.evaluate()
    trainer.evaluate()
    assert spy.outputs[0]["completion_ids"] == spy.outputs[1]["completion_ids"]
    assert not any(spy.drew)
    assert {(p.temperature, p.top_p, p.seed) for p in vllm.asked} == {(0.0, 1.0, 1)}
    assert {p.structured_outputs.regex for p in vllm.asked} == {".*"}
    assert {(*p.stop,) for p in vllm.asked} == {("nor this", "never this")}
    assert len({p.max_tokens for p in vllm.asked}) > 1


def test_a_sleeping_engine_is_woken_once_for_all_turns_and_put_back_to_sleep(
    make_trainer: MakeTrainer, vllm: FakeLLM
) -> None:
    spy = rollouts()
    trainer = make_trainer(
        spy,
        samples=SAMPLES[:3],
        **COLOCATED,
        vllm_enable_sleep_mode=True,
    )
    assert vllm.events == ["sleep"]
    trainer.evaluate()
    turns = ["generate"] * vllm.events.count("generate")
    assert len(turns) >= 2
    first = ["wake weights", "synced", "wake kv_cache", *turns, "sleep"]
    assert vllm.events == ["sleep", *first]
    # No step since, so TRL does not sync again; the weights are gone all the same.
    trainer.evaluate()
    assert vllm.events == ["sleep", *first, *first]
    assert spy.outputs[0]["completion_ids"] == spy.outputs[1]["completion_ids"]


def test_a_sleeping_engine_sleeps_again_after_a_failure(
    make_trainer: MakeTrainer, vllm: FakeLLM
) -> None:
    def broken(prompts: Any, sampling_params: Any, use_tqdm: bool) -> Any:
        raise RuntimeError("out of memory")

    vllm.generate = broken  # type: ignore[method-assign]
    trainer = make_trainer(rollouts(), **COLOCATED, vllm_enable_sleep_mode=True)
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.train()
    assert vllm.events[-1] == "sleep"
    assert trainer.vllm_generation._llm_weights_sleeping


def spoil_first(vllm: FakeLLM, spoil: Callable[[Any], None]) -> None:
    """Spoil what vLLM returns first for a batch of four."""
    whole = vllm.generate

    def generate(prompts: Any, sampling_params: Any, use_tqdm: bool) -> Any:
        answers = whole(prompts, sampling_params, use_tqdm)
        if len(answers) == 4:
            spoil(answers[0].outputs)
        return answers

    vllm.generate = generate  # type: ignore[method-assign]


def test_a_turn_that_vllm_gave_up_fails_its_rollout_only(
    make_trainer: MakeTrainer, vllm: FakeLLM
) -> None:
    def spoil(outputs: Any) -> None:
        outputs[0] = SimpleNamespace(token_ids=[], logprobs=[], finish_reason="abort")

    spoil_first(vllm, spoil)
    spy = rollouts()
    make_trainer(spy, **COLOCATED, num_generations=2, per_device_train_batch_size=4).train()
    [output] = spy.outputs
    assert "abort" in output["heldout_error"][0]
    assert output["heldout_error"][1:] == [None] * 3
    assert output["logprobs"][0] == [0.0]
    assert output["env_mask"][0] == [0]


def test_a_turn_whose_logprobs_are_no_numbers_fails_its_rollout_only(
    make_trainer: MakeTrainer, vllm: FakeLLM
) -> None:
    """Of an engine that has diverged, or overflows in half precision."""

    def spoil(outputs: Any) -> None:
        for by_token in outputs[0].logprobs:
            for found in by_token.values():
                found.logprob = float("nan")

    spoil_first(vllm, spoil)
    spy = rollouts()
    make_trainer(spy, **COLOCATED, num_generations=2, per_device_train_batch_size=4).train()
    [output] = spy.outputs
    assert "logprobs that are not finite" in output["heldout_error"][0]
    assert output["heldout_error"][1:] == [None] * 3
    assert output["env_mask"][0] == [0]


# --- Training on the wrong thing ----------------------------------------------------------------


def always_five(prompts: Any, completions: Any, **columns: Any) -> list[float]:
    return [5.0] * len(completions)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_failed_rollout_gets_no_reward_from_a_function_beside_ours(
    make_trainer: MakeTrainer,
) -> None:
    def half_fail(trajectory: Any, sample: Sample) -> Score:
        if sample.id == SAMPLES[0].id:
            raise RuntimeError("cannot score this")
        return Score((Metric("r", 1.0, weight=1.0),))

    with pytest.raises(InvalidInput, match=r"pass where_scored\(always_five\)"):
        make_trainer(rollouts(), rewards=[reward_from_rollout, always_five]).train()
    spy = rollouts(score_fn=half_fail)
    both = [reward_from_rollout, where_scored(always_five)]
    trainer = make_trainer(spy, SAMPLES[:2], rewards=both)
    trainer.train()
    [output] = spy.outputs
    assert sum(error is not None for error in output["heldout_error"]) == 4
    [row] = steps(trainer)
    assert row["reward"] == pytest.approx(6.0)


def test_a_score_without_a_weight_is_refused(make_trainer: MakeTrainer) -> None:
    unweighted = rollouts(score_fn=lambda t, s: Score((Metric("length", 3.0),)))
    with pytest.raises(InvalidInput, match=r"no metric of the score \(length\) has a weight"):
        make_trainer(unweighted).train()


def test_held_out_prompts_that_nobody_knows_are_found_before_the_first_step(
    make_trainer: MakeTrainer,
) -> None:
    trainer = make_trainer(
        rollouts(SAMPLES[:4]), samples=SAMPLES[:4], eval_strategy="steps", eval_steps=1
    )
    trainer.eval_dataset = to_dataset(SAMPLES)
    with pytest.raises(InvalidInput, match="no sample has the prompt"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ("boundary", "use 'suffix', and see `heldout check template`"),
        ("suffix", r"\d of 8 rollouts of this batch were dropped"),
    ],
)
def test_a_mode_that_the_template_breaks_stops_training(
    make_trainer: MakeTrainer, segments: str, said: str
) -> None:
    if segments == "boundary":
        trainer = make_trainer(rollouts(segments=segments, render=melting(make_tokenizer())))
    else:
        trainer = forgetting(make_trainer(rollouts(segments=segments)))
    with pytest.raises(SystemicFailure, match=said):
        trainer.train()
    assert trainer.state.global_step == 0


def forgetting(trainer: Any) -> Any:
    """With a template that leaves calls out of earlier turns where they are written as text."""
    said = "{{ m.content }}"
    assert said in TEMPLATE
    forgets = "{{ '' if '<tool_call>' in m.content else m.content }}"
    trainer._tokenizer.chat_template = TEMPLATE.replace(said, forgets)
    trainer.chat_template = None
    return trainer


@pytest.mark.parametrize("forgets", [True, False], ids=["rewrites turns", "has no boundaries"])
def test_by_default_no_template_loses_a_rollout(make_trainer: MakeTrainer, forgets: bool) -> None:
    spy = rollouts(**({} if forgets else {"render": melting(make_tokenizer())}))
    trainer = make_trainer(spy)
    (forgetting(trainer) if forgets else trainer).train()
    [output] = spy.outputs
    assert output["heldout_error"] == [None] * 8
    assert any(0 in mask for mask in output["env_mask"]), "nobody used the tool"
    assert steps(trainer)[0]["rollouts/mismatched"] == 0.0


def test_one_rollout_that_is_dropped_now_and_then_stops_nothing_and_many_do() -> None:
    def batch(lost: int, of: int) -> list[Rollout]:
        kept = Rollout(SAMPLES[0], Trajectory(()))
        dropped = dataclasses.replace(kept, error="render: it differs", error_stage="render")
        return [dropped] * lost + [kept] * (of - lost)

    seldom = ours._MismatchCounter()
    for _ in range(3):
        seldom.add(batch(1, 40))
    often = ours._MismatchCounter()
    often.add(batch(1, 8))
    with pytest.raises(SystemicFailure, match="2 of 16 rollouts of all so far"):
        often.add(batch(1, 8))


def melting(tokenizer: Any) -> Any:
    """The template, with a text behind a turn that melts into some last tokens of it."""
    from heldout._live.rendering.chat_templates import ChatRenderer

    chat = ChatRenderer(tokenizer)

    def render(messages: Any, add_generation_prompt: bool, tools: Any = ()) -> list[int]:
        words = tokenizer.convert_ids_to_tokens(chat(messages, add_generation_prompt, tools))
        text = " ".join(words)
        for melts in (". <|im_end|>", '"."}} </tool_call>'):
            text = text.replace(melts, "#")
        return list(tokenizer.convert_tokens_to_ids(text.split()))

    render.decode, render.parse, render.ends = chat.decode, chat.parse, chat.ends  # type: ignore[attr-defined]
    return render


# --- Stops --------------------------------------------------------------------------------------


def test_a_turn_ends_with_a_stop_text_which_is_no_part_of_it(make_trainer: MakeTrainer) -> None:
    said: list[str] = []

    def noting(trajectory: Trajectory, sample: Sample) -> Score:
        said.append(trajectory.messages[1].text)
        return Score((Metric("any", 1.0, weight=1.0),))

    spy = rollouts(score_fn=noting, max_turns=1, stop='"arguments":')
    make_trainer(spy).train()
    [output] = spy.outputs
    stop = WORDS.index('"arguments":')
    stopped = [ids for ids in output["completion_ids"] if stop in ids]
    assert len(stopped) >= 4
    assert all(ids.index(stop) == len(ids) - 1 for ids in stopped)
    assert not any(output["heldout_truncated"])
    assert not any("arguments" in text for text in said)


def test_a_training_without_a_stop_may_say_so_and_a_wrong_one_is_refused_before_it(
    make_trainer: MakeTrainer,
) -> None:
    spy = rollouts(max_turns=1, stop=None)
    make_trainer(spy).train()
    assert spy.outputs[0]["completion_ids"]
    with pytest.raises(InvalidInput, match="each of stop must be text, got ''"):
        rollouts(stop=["x", ""])


# --- An environment of verifiers ----------------------------------------------------------------


@pytest.fixture
def vf_env() -> Iterator[Any]:
    """A ToolEnv of verifiers, two of whose rows have the same prompt and other answers."""
    import signal

    import verifiers as vf
    from datasets import Dataset

    def near(completion: Any, answer: str) -> float:
        said = completion[-1].content or ""
        return 1 - abs(int(said) - int(answer)) / 10 if said.isdecimal() else 0.0

    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    rows = [{"question": f"what is {n} plus 1 ?", "answer": str(n + 1)} for n in range(3)]
    rows.append({"question": "what is 2 plus 1 ?", "answer": "9"})
    yield vf.ToolEnv(
        tools=[add],
        max_turns=3,
        dataset=Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[near]),
    )
    for number, handler in kept.items():  # which each environment of theirs takes over
        signal.signal(number, handler)


def test_an_environment_of_verifiers_trains_in_one_call(
    make_trainer: MakeTrainer, taught: dict[str, Any], vf_env: Any
) -> None:
    definition = from_verifiers(vf_env, split="train")
    spy = Spy(build_rollout_func(definition))
    trainer = make_trainer(spy, dataset=to_dataset(definition), max_steps=3)
    trainer.train()
    now = trainer.model.state_dict()
    assert any(not torch.equal(now[name], value) for name, value in taught.items())
    assert not any(error for output in spy.outputs for error in output["heldout_error"])
    assert any(0 in mask for output in spy.outputs for mask in output["env_mask"]), "no tool spoke"
    # Of the rows with the same prompt each was scored against its own answer.
    rewards: dict[str, set[float]] = {}
    for prompts, output in zip(spy.prompts, spy.outputs, strict=True):
        for prompt, reward in zip(prompts, output["heldout_reward"], strict=True):
            assert prompt[0]["content"].startswith("what is")
            rewards.setdefault(prompt[0]["sample_id"], set()).add(reward)
    assert max(rewards["2"]) == 1.0
    assert max(rewards["3"]) < 1.0


def test_its_held_out_rows_are_evaluated_while_it_trains_and_by_themselves(
    make_trainer: MakeTrainer, taught: dict[str, Any], vf_env: Any, tmp_path: Path
) -> None:
    held_out, settings = from_verifiers(vf_env), {"every_steps": 1, "heartbeat_fn": None}
    inside = PeriodicEval(
        held_out, in_rollout_phase(held_out), run_dir=tmp_path / "inside", **settings
    )
    live = PeriodicEval(
        held_out,
        live_model(make_tokenizer(), held_out, max_new=16),
        label="live",
        run_dir=tmp_path / "live",
        **settings,
    )
    definition = from_verifiers(vf_env, split="train")
    func = build_rollout_func(definition, evals=[inside], allow_overlap=True)
    trainer = make_trainer(func, dataset=to_dataset(definition), max_steps=2)
    HeldoutCallback(inside, live, allow_overlap=True).attach(trainer)
    trainer.train()
    for evals in (inside, live):
        summaries = [point.summary for point in evals.points]
        assert [summary and summary["n_scored"] for summary in summaries] == [4, 4]
    model = make_model(trainer.model.state_dict()).eval()
    endpoint = LocalEndpoint(model, make_tokenizer())
    config = EvalConfig(
        endpoint=endpoint,
        output_dir=str(tmp_path),
        experiment_name="whole",
        sampling=Sampling(max_tokens=16),
    )
    report = asyncio.run(evaluate(held_out, config))
    asyncio.run(endpoint.close())
    last = live.points[-1].summary
    assert last is not None
    assert report.summary["mean"] == last["mean"]


def test_a_definition_goes_alone() -> None:
    definition = EvalDefinition(SAMPLES, score)
    with pytest.raises(InvalidInput, match="has its own score_fn"):
        build_rollout_func(definition, score)
    with pytest.raises(InvalidInput, match="has its own environment_factory"):
        live_model(make_tokenizer(), definition, environment_factory=adder)


# --- The prompt evaluated is the prompt trained ---------------------------------------------------

THINKING = TEMPLATE.replace(
    "assistant{% endif %}",
    "assistant{% if enable_thinking is defined and not enable_thinking %} . #{% endif %}"
    "{% endif %}",
)


def plain_reward(completions: list[Any], **columns: Any) -> list[float]:
    return [0.0] * len(completions)


def thinking_trainer(make_trainer: MakeTrainer, **settings: Any) -> tuple[Any, list[str]]:
    """A trainer whose template knows thinking, and every prompt that its training shows."""
    from datasets import Dataset

    prompts = [[{"role": "user", "content": sample.input["question"]}] for sample in SAMPLES[:8]]
    trainer = make_trainer(
        dataset=settings.pop("dataset", None)
        or Dataset.from_list([{"prompt": p} for p in prompts]),
        rewards=plain_reward,
        **settings,
    )
    trainer.processing_class.chat_template = THINKING
    shown: list[str] = []
    original = trainer._tokenize_prompts

    def watched(prompts: list[Any]) -> Any:
        tokenized = original(prompts)
        shown.extend(trainer.processing_class.decode(ids) for ids in tokenized[0])
        return tokenized

    trainer._tokenize_prompts = watched
    return trainer, shown


def held_out_evals(folder: Path, **settings: Any) -> PeriodicEval:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = settings.pop("own_template", THINKING)
    builder = live_model(tokenizer, score, **settings)
    return PeriodicEval(SAMPLES[8:12], builder, every_steps=1, run_dir=folder / "evals")


WITHOUT_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize("own_template", [THINKING, TEMPLATE], ids=["same", "another"])
def test_an_eval_shows_the_model_the_prompt_that_training_shows_it(
    make_trainer: MakeTrainer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    own_template: str,
) -> None:
    trainer, shown = thinking_trainer(make_trainer, max_steps=2, **WITHOUT_THINKING)
    evals = held_out_evals(tmp_path, own_template=own_template)
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    assert shown
    assert all(prompt.endswith("<|im_start|> assistant . #") for prompt in shown)
    question = evals.samples[0].input["question"]
    first, second = evals.points
    assert first.prompt == f"<|im_start|> user {question} <|im_end|> <|im_start|> assistant . #"
    assert second.prompt is None, "it is that of the point before"
    run = EvalReport.load(evals.run_dir / first.run)
    assert run.config["sampling"]["max_tokens"] == trainer.max_completion_length
    assert "does not show the model" not in caplog.text


def test_an_eval_whose_prompt_is_another_says_so_before_training(
    make_trainer: MakeTrainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, _ = thinking_trainer(make_trainer, **WITHOUT_THINKING)
    evals = held_out_evals(tmp_path, chat_template_kwargs={"enable_thinking": True})
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    [said] = [r.getMessage() for r in caplog.records if "does not show the model" in r.msg]
    assert "assistant . #'; the eval" in said
    assert not (evals.points[0].prompt or "").endswith("#")


@pytest.mark.parametrize("is_templated", [True, False])
def test_training_on_texts_is_compared_by_what_stands_behind_the_question(
    make_trainer: MakeTrainer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_templated: bool,
) -> None:
    from datasets import Dataset

    text = "<|im_start|> user {} <|im_end|> <|im_start|> assistant" if is_templated else "{}"
    rows = [{"prompt": text.format(sample.input["question"])} for sample in SAMPLES[:8]]
    trainer, _ = thinking_trainer(make_trainer, dataset=Dataset.from_list(rows))
    HeldoutCallback(held_out_evals(tmp_path)).attach(trainer)
    trainer.train()
    assert ("does not show the model" in caplog.text) is not is_templated


def test_a_curve_is_not_continued_with_other_words_for_the_template(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    def train(resume: bool, **settings: Any) -> PeriodicEval:
        trainer, _ = thinking_trainer(make_trainer, **settings)
        tokenizer = make_tokenizer()
        tokenizer.chat_template = THINKING
        builder = live_model(tokenizer, score)
        folder = tmp_path / "evals"
        evals = PeriodicEval(SAMPLES[8:12], builder, every_steps=1, run_dir=folder, resume=resume)
        HeldoutCallback(evals).attach(trainer)
        trainer.train()
        return evals

    train(False, **WITHOUT_THINKING)
    assert len(train(True, **WITHOUT_THINKING).points) == 1
    with pytest.raises(ResumeMismatch, match="chat_template_of_trainer"):
        train(True)


def test_a_word_that_the_template_does_not_read_is_refused_before_training() -> None:
    with pytest.raises(InvalidInput, match="does not read 'enable_thinkin'"):
        live_model(make_tokenizer(), score, chat_template_kwargs={"enable_thinkin": False})
    with pytest.raises(InvalidInput, match="chat_template_kwargs must be a dict"):
        live_model(make_tokenizer(), score, chat_template_kwargs="enable_thinking")
