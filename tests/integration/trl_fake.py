"""A model that was taught to call a tool, TRL's trainer of it, and an engine in vLLM's shape."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from heldout import Metric, Sample, Score, Trajectory
from heldout.environments import ToolEnvironment
from heldout.integrations.trl import reward_from_rollout, to_dataset

# --- A model that calls a tool ------------------------------------------------------------------

NUMBERS = range(5)

CONTEXT = 96

TEMPLATE = (
    "{% if tools %}<|im_start|> system tools : add <|im_end|> {% endif %}"
    "{% for m in messages %}<|im_start|> {{ m.role }} {{ m.content }}"
    '{% for c in m.tool_calls or [] %} <tool_call> {"name": "add", "arguments": '
    "{{ c.function.arguments | tojson }}} </tool_call>{% endfor %}"
    " <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant{% endif %}"
)

WORDS = [
    *("<pad>", "<|im_start|>", "<|im_end|>", "<unk>", "system", "user", "assistant", "tool"),
    *("tools", ":", "add", "what", "is", "plus", "?", "x", ".", "#", "<tool_call>", "</tool_call>"),
    *('{"name":', '"add",', '"arguments":', '{"a":', '"b":', '"1"}}', '"x"}}', '"."}}'),
    *map(str, range(10)),
    *(f"{n}," for n in NUMBERS),
    *(f"{n}}}}}" for n in NUMBERS),
]


def make_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        eos_token="<|im_end|>",
        pad_token="<pad>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
    )


def make_model(weights: dict[str, Any] | None = None, **settings: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        **settings,
    )
    model = LlamaForCausalLM(config)
    if weights is not None:
        model.load_state_dict(weights)
    return model


def teach() -> dict[str, Any]:
    """Weights that mostly call the tool, often with the wrong numbers, and repeat its answer."""
    tokenizer = make_tokenizer()
    rows = []
    for a in NUMBERS:
        for b in NUMBERS:
            call = (
                f'<tool_call> {{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}} </tool_call>'
            )
            said = [("user", f"what is {a} plus {b} ?"), ("assistant", call)]
            said += [("tool", str(a + b)), ("assistant", str(a + b))]
            messages = [{"role": role, "content": text} for role, text in said]
            rows.append(
                tokenizer.apply_chat_template(messages, tools=[{"name": "add"}], return_dict=False)
            )
    ids = torch.tensor(rows)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make_model()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(50):
            optimizer.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


# --- What it is trained on ----------------------------------------------------------------------

SAMPLES = [
    Sample(f"{a}+{b}", {"question": f"what is {a} plus {b} ?"}, a + b)
    for a in NUMBERS
    for b in NUMBERS
]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


def adder(sample: Sample) -> ToolEnvironment:
    return ToolEnvironment([add], in_threads=False)


def score(trajectory: Trajectory, sample: Sample) -> Score:
    answer = trajectory.answer
    off = abs(int(answer) - sample.ground_truth) if answer.isdecimal() else 10
    turns = sum(message.role == "assistant" for message in trajectory.messages)
    metrics = [
        Metric("close", 1 - off / 10, weight=1.0),
        Metric("turns", turns),
        Metric("which", SAMPLES.index(sample) if sample in SAMPLES else -1),
    ]
    if answer.isdecimal():
        metrics.append(Metric("reward", 100.0))  # a name that the trainer has too
    return Score(tuple(metrics))


MakeTrainer = Callable[..., Any]


def trainer_maker(weights: dict[str, Any], folder: Path) -> MakeTrainer:
    """GRPOTrainer on the taught model, two questions and four answers to each a step."""

    def make(
        rollout_func: Any = None,
        samples: list[Sample] = SAMPLES,
        *,
        dataset: Any = None,
        rewards: Any = reward_from_rollout,
        tools: Any = None,
        model: Any = None,
        **settings: Any,
    ) -> Any:
        from trl import GRPOConfig, GRPOTrainer

        defaults: dict[str, Any] = {
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "num_generations_eval": 1,
            "max_completion_length": 16,
            "max_steps": 1,
            "learning_rate": 1e-4,
            "logging_steps": 1,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "bf16": False,
        }
        dataset = to_dataset(samples) if dataset is None else dataset
        return GRPOTrainer(
            make_model(weights) if model is None else model,
            reward_funcs=rewards,
            args=GRPOConfig(**{**defaults, **settings}),
            train_dataset=dataset,
            eval_dataset=dataset,
            processing_class=make_tokenizer(),
            rollout_func=rollout_func,
            tools=tools,
        )

    return make


# --- vLLM ---------------------------------------------------------------------------------------

COLOCATED = {"use_vllm": True, "vllm_mode": "colocate"}


@dataclasses.dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class SamplingParams:
    def __init__(
        self,
        n: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        max_tokens: int | None = 16,
        logprobs: int | None = None,
        structured_outputs: Any = None,
        seed: int | None = None,
        stop: Any = (),
    ) -> None:
        vars(self).update(locals())
        assert n == 1


class FakeLLM:
    """vLLM's engine as TRL runs it: weights of its own, which it has only while it is awake."""

    def __init__(self, *, sleeping: bool = False) -> None:
        self.model = make_model().eval()
        self.awake = set() if sleeping else {"weights", "kv_cache"}
        self.events: list[str] = []
        self.asked: list[SamplingParams] = []
        runner = SimpleNamespace(model=self)
        worker = SimpleNamespace(model_runner=runner)
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=worker),
            model_config=SimpleNamespace(max_model_len=CONTEXT),
        )

    def load_weights(self, weights: list[tuple[str, Any]]) -> None:
        assert "weights" in self.awake
        state = self.model.state_dict()
        for name, value in weights:
            state[name].copy_(value)

    def reset_prefix_cache(self) -> None:
        self.events.append("synced")

    def wake_up(self, tags: list[str]) -> None:
        self.awake.update(tags)
        self.events.append(f"wake {tags[0]}")

    def sleep(self, level: int) -> None:
        assert level == 2
        self.awake.clear()
        self.events.append("sleep")
        for value in self.model.state_dict().values():
            value.zero_()

    def generate(self, prompts: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        assert self.awake == {"weights", "kv_cache"}
        assert not use_tqdm
        assert len(prompts) == len(sampling_params)
        self.events.append("generate")
        self.asked += sampling_params
        return [self._one(p, s) for p, s in zip(prompts, sampling_params, strict=True)]

    def _one(self, prompt: dict[str, Any], sampling: Any) -> Any:
        ids: list[int] = list(prompt["prompt_token_ids"])
        out: list[int] = []
        logprobs: list[dict[int, Logprob]] = []
        with torch.no_grad():
            while not out or (out[-1] != 2 and len(out) < sampling.max_tokens):
                logits = self.model(input_ids=torch.tensor([ids + out])).logits[0, -1]
                said = torch.log_softmax(logits / (sampling.temperature or 1.0), dim=-1)
                token = int(said.argmax())
                if sampling.temperature:
                    token = int(torch.multinomial(said.exp(), 1))
                out.append(token)
                logprobs.append({token: Logprob(float(said[token]), rank=1)})
        finish = "stop" if out[-1] == 2 else "length"
        done = SimpleNamespace(token_ids=out, logprobs=logprobs, finish_reason=finish)
        if sampling.logprobs is None:
            done.logprobs = None
        return SimpleNamespace(prompt_token_ids=ids, outputs=[done])


def install_vllm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    """The package, and TRL's own VLLMGeneration with the fake engine in it."""
    from trl.generation.vllm_generation import VLLMGeneration

    package = types.ModuleType("vllm")
    package.SamplingParams = SamplingParams  # type: ignore[attr-defined]
    parameters = types.ModuleType("vllm.sampling_params")
    parameters.StructuredOutputsParams = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", parameters)
    llm = FakeLLM()

    def start(self: Any) -> None:
        self.llm, self._llm_weights_sleeping = llm, self.enable_sleep_mode
        if self.enable_sleep_mode:
            llm.sleep(level=2)

    monkeypatch.setattr(VLLMGeneration, "_init_vllm", start)
    return llm
