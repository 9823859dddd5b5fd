"""Tinker without a network: the clients that the loops of tinker-cookbook use, and a policy.

The weights are the number of updates they have had. Asked `n=7`, they answer `7` from the fourth
on, and before that `no`: over the questions 0 to 9 a curve rises by 0.2 an update.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from types import SimpleNamespace
from typing import Any

import chz
import tinker
import torch
from tinker_cookbook import renderers
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
from tinker_cookbook.tokenizer_utils import register_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

MODEL = "fake/tiny"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


@cache
def tokenizer() -> Any:
    """A token a character."""
    characters = [chr(code) for code in (10, *range(32, 127))]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *characters])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[:2]})
    fast.name_or_path = MODEL
    return fast


register_tokenizer(MODEL, tokenizer)


def renderer(name: str = "role_colon") -> Any:
    return renderers.get_renderer(name, tokenizer(), model_name=MODEL)


# --- The service --------------------------------------------------------------------------------

Policy = Callable[[str, int], str]
"""(prompt as text, updates) -> the turn as text."""


def knows(prompt: str, updates: int) -> str:
    asked = int(re.findall(r"n=(\d+)", prompt)[-1])
    return str(asked) if asked % 10 < 2 * updates else "no"


@dataclass
class FakeService:
    """Whatever a test wants to see or to hold up."""

    policy: Policy = knows
    end: str = "\n\nUser:"
    """What a turn ends with: the renderer's stop."""
    asked: list[tuple[int, Any]] = field(default_factory=list)
    """(updates, sampling parameters) of every greedy request: those of evals."""
    gate: asyncio.Event | None = None
    """Held until it is set: every greedy request."""
    hold_sampled: Callable[[str], bool] = lambda prompt: False
    """Which of the others are held as well, by their prompt."""
    fails: Callable[[int], Exception | None] = lambda updates: None
    """Of a greedy request on weights with so many updates."""
    on_update: Callable[[int], object] = lambda updates: None
    before_update: Callable[[int], Awaitable[object]] | None = None
    """Waited for before an update, by its number."""
    saved: dict[str, int] = field(default_factory=dict)
    updates: int = 0
    numbers: Any = field(default_factory=count)
    runs: int = 0

    def __call__(self, **_: Any) -> FakeService:
        """`tinker.ServiceClient(…)`."""
        return self

    async def create_lora_training_client_async(self, *_: Any, **__: Any) -> FakeTraining:
        return FakeTraining(self)

    async def create_training_client_from_state_with_optimizer_async(
        self, path: str, **_: Any
    ) -> FakeTraining:
        self.updates = self.saved[path]
        return FakeTraining(self)

    def create_sampling_client(self, *, base_model: str) -> FakeSampling:
        return FakeSampling(self, 0)

    async def create_sampling_client_async(self, *, model_path: str) -> FakeSampling:
        return FakeSampling(self, self.saved[model_path])


class Future:
    def __init__(self, value: Any) -> None:
        self._value = value

    async def result_async(self) -> Any:
        # The service takes its time: whoever else is ready comes first.
        for _ in range(20):
            await asyncio.sleep(0)
        return self._value


class FakeTraining:
    def __init__(self, service: FakeService) -> None:
        self._service = service
        service.runs += 1

    async def forward_backward_async(self, data: Sequence[Any], **_: Any) -> Future:
        outputs = []
        for datum in data:
            length = len(datum.loss_fn_inputs["target_tokens"].data)
            logprobs = tinker.TensorData.from_torch(torch.zeros(length))
            outputs.append({"logprobs": logprobs})
        return Future(SimpleNamespace(loss_fn_outputs=outputs, metrics={}))

    async def optim_step_async(self, _: Any) -> Future:
        if self._service.before_update is not None:
            await self._service.before_update(self._service.updates + 1)
        self._service.updates += 1
        self._service.on_update(self._service.updates)
        return Future(SimpleNamespace(metrics={}))

    async def save_state_async(self, name: str, **_: Any) -> Future:
        return self._save("weights", name)

    async def save_weights_for_sampler_async(self, name: str, **_: Any) -> Future:
        return self._save("sampler_weights", name)

    def _save(self, kind: str, name: str) -> Future:
        path = f"tinker://run{self._service.runs}/{kind}/{name}"
        self._service.saved[path] = self._service.updates
        return Future(SimpleNamespace(path=path))

    async def save_weights_and_get_sampling_client_async(self) -> FakeSampling:
        return FakeSampling(self._service, self._service.updates)

    def create_sampling_client(self, path: str) -> FakeSampling:
        return FakeSampling(self._service, self._service.saved[path])

    def get_tokenizer(self) -> Any:
        return tokenizer()


class FakeSampling:
    """Bound to the weights that it was made of, whatever the training does after that."""

    def __init__(self, service: FakeService, updates: int) -> None:
        self.service, self.updates = service, updates
        self._sampling_session_id = f"session-{next(service.numbers)}"

    async def sample_async(
        self, prompt: Any, num_samples: int, sampling_params: Any, **_: Any
    ) -> tinker.SampleResponse:
        service = self.service
        if sampling_params.temperature == 0:
            service.asked.append((self.updates, sampling_params))
            if service.gate is not None:
                await service.gate.wait()
            problem = service.fails(self.updates)
            if problem is not None:
                raise problem
        await asyncio.sleep(0)
        asked = tokenizer().decode(prompt.to_ints())
        if service.gate is not None and service.hold_sampled(asked):
            await service.gate.wait()
        text = service.policy(asked, self.updates)
        tokens = tokenizer().encode(f" {text}{service.end}", add_special_tokens=False)
        cut = tokens[: sampling_params.max_tokens]
        sequence = tinker.types.SampledSequence(
            stop_reason="stop" if len(cut) == len(tokens) else "length",
            sequence_id=f"sequence-{next(service.numbers)}",
            _tokens_list=cut,
            _logprobs_list=[0.0] * len(cut),
        )
        return tinker.SampleResponse(sequences=[sequence] * num_samples)


# --- What is trained on -------------------------------------------------------------------------


class Counting(ProblemEnv):
    def __init__(self, number: int) -> None:
        super().__init__(renderer())
        self._number = number

    def get_question(self) -> str:
        return f"n={self._number}"

    def check_answer(self, sample_str: str) -> bool:
        return sample_str == str(self._number)

    def check_format(self, sample_str: str) -> bool:
        return bool(sample_str)

    def get_reference_answer(self) -> str:
        return str(self._number)


class Problems(RLDataset):
    def __init__(self, batches: int, first: int = 100) -> None:
        self._batches, self._first = batches, first

    def get_batch(self, index: int) -> list[Any]:
        return [
            ProblemGroupBuilder(env_thunk=lambda n=n: Counting(n), num_envs=2)
            for n in (self._first + index, self._first + 100 + index)
        ]

    def __len__(self) -> int:
        return self._batches


@chz.chz
class ProblemsBuilder(RLDatasetBuilder):
    batches: int
    tests: int = 0

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        return Problems(self.batches), Problems(self.tests, 300) if self.tests else None


class Texts(SupervisedDataset):
    def __init__(self, batches: int) -> None:
        self._batches = batches

    def get_batch(self, index: int) -> list[Any]:
        tokens = tokenizer().encode(f"n={index} is {index}", add_special_tokens=False)
        inputs = {
            "target_tokens": tinker.TensorData.from_torch(torch.tensor(tokens[1:])),
            "weights": tinker.TensorData.from_torch(torch.ones(len(tokens) - 1)),
        }
        prompt = tinker.ModelInput.from_ints(tokens[:-1])
        return [tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)]

    def __len__(self) -> int:
        return self._batches

    def set_epoch(self, seed: int = 0) -> None:
        pass


@chz.chz
class TextsBuilder(SupervisedDatasetBuilder):
    batches: int

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        return Texts(self.batches), None
