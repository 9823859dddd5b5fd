"""vLLM in this process: `vllm:PATH`, a folder that vLLM loads, and `VLLMEndpoint` with settings.

    vllm:PATH                                      vLLM's own settings
    vllm:PATH?max_model_len=4096&dtype=bfloat16    with some of `vllm.AsyncEngineArgs`

Prompts are rendered and replies parsed as for `hf:PATH`; vLLM gets and gives tokens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread

from heldout._core.aio import wait_for
from heldout._core.config import Sampling
from heldout._core.providers import split_settings
from heldout._live.decoding.chat import ChatModel
from heldout._live.decoding.likelihood import LikelihoodModel, make_rating
from heldout.errors import ContextFull, EndpointError, FatalEndpointError, InvalidInput
from heldout.models.base import RatesContinuations
from heldout.models.batch import Request
from heldout.models.local import version_on_disk
from heldout.models.vllm_engine import VLLMEngine, check_settings
from heldout.types import Completion, Continuation, Message, Rating, ToolSpec

T = TypeVar("T")


class VLLMEndpoint(RatesContinuations):
    """A model in vLLM's async engine, which batches the requests that are in flight.

    Args:
        path: A folder, or a name on the hub. Its weights are read with the first request.
        settings: Arguments of `vllm.AsyncEngineArgs`, such as `max_model_len`, `dtype` or
            `tensor_parallel_size`.

    Raises:
        InvalidInput: vLLM is not installed, or has no such setting.
    """

    def __init__(self, path: str, **settings: Any) -> None:
        check_settings(settings)
        self._path, self._settings = path, settings
        self._version: str | None = None
        self.read_version: Callable[[], str | None] = partial(version_on_disk, path)
        """Returns the version of the files in the model's folder, as they are now."""
        self._engine = VLLMEngine(path, settings)
        self._engine.loaded = self._check_version

    @classmethod
    def parse(cls, text: str) -> Self:
        """Make the endpoint of PATH or PATH?NAME=VALUE&….; values are JSON, or texts."""
        path, query = split_settings(text)
        path = str(Path(path).expanduser())
        if not Path(path).is_dir():
            raise InvalidInput(
                f"vllm:{text}: there is no folder {path}",
                hint=f"a server's model of that name is vllm:{path}@http://localhost:8000/v1",
            )
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        except ValueError:
            raise InvalidInput(f"vllm:{text}: settings are NAME=VALUE&NAME=VALUE") from None
        return cls(path, **{name: _parse_value(value) for name, value in pairs})

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report; its `version` is a hash of its files."""
        self._version = self._version or self.read_version()
        described: dict[str, Any] = {"kind": "vllm", "model": self._path}
        if self._version is None:
            described["unknown"] = f"the weights of {self._path} cannot be read"
        else:
            described["version"] = self._version
        return {**described, "settings": self._settings} if self._settings else described

    def _check_version(self) -> None:
        version = self.read_version()
        if self._version not in (None, version):
            raise FatalEndpointError(
                f"the model in {self._path} was replaced after this run had recorded its version"
            )
        self._version = version

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Take one model turn; see `Endpoint`."""
        request = Request(tuple(messages), sampling, tuple(tools))

        async def answer() -> Completion:
            prompt = self._chat.prompt(request)
            return self._chat.completion(request, prompt, await self._engine.generate(prompt))

        return await self._wait(self._engine.call(answer))

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        """Return the likelihoods of given continuations; see `RatesContinuations`."""

        async def answer() -> Rating:
            known: dict[Any, Any] = {}
            pairs = [self._likelihoods.encode(each, known) for each in continuations]
            context = self._engine.config.max_position_embeddings
            for pair in pairs:
                if (length := len(pair.prompt) + len(pair.continuation)) >= context:
                    raise ContextFull(
                        f"prompt and continuation have {length} tokens, and vLLM rates up to "
                        f"{context - 1} (max_model_len)"
                    )
            rated = await asyncio.gather(*map(self._engine.rate, pairs))
            rating = make_rating(continuations, pairs, rated)
            if isinstance(rating, Exception):
                raise rating
            return rating

        return await self._wait(self._engine.call(answer))

    async def _wait(self, answer: Future[T]) -> T:
        try:
            return await wait_for(answer)
        except CancelledError:
            raise EndpointError(f"{self._path} was closed before it had answered") from None

    async def close(self) -> None:
        """End the engine and its processes; the next request starts another."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._engine.close)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._path)

    @cached_property
    def _chat(self) -> ChatModel:
        return ChatModel(self._engine, self._tokenizer, self._path)

    @cached_property
    def _likelihoods(self) -> LikelihoodModel:
        return LikelihoodModel(self._engine, self._tokenizer, self._path)


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
