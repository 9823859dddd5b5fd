"""A sampling client of Tinker, and a renderer, as an endpoint.

Greedy where the eval does not say otherwise: the package's own test-set evaluator samples at
temperature 1. What goes wrong is sorted as for any endpoint: worth another try, this item's, its
length, or everybody's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from heldout.config import Sampling
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    TransientError,
    Unreachable,
    printable_error,
)
from heldout.integrations.tinker.messages import ours, theirs
from heldout.integrations.tinker.package import sdk
from heldout.types import Completion, Message, ToolSpec, Usage

tinker = sdk()

KEY_VARIABLE = "TINKER_API_KEY"
_EVERYBODYS = (401, 402, 404)
"""The key, the account, the weights: no other request would be answered either."""
_TRANSIENT = (408, 409, 425, 429)
_TOO_LONG = ("context window", "context length", "too long", "max_tokens exceeds")


class TinkerEndpoint:
    """`client` answers, and is bound to its weights. `max_tokens` is the longest turn where the
    sampling says nothing; `context_window` shortens turns to what still fits. `about` is stored
    with the report: which weights these are."""

    def __init__(
        self,
        client: Any,
        renderer: Any,
        *,
        max_tokens: int,
        context_window: int | None = None,
        about: dict[str, Any] | None = None,
    ) -> None:
        self._client, self._renderer = client, renderer
        self._max_tokens, self._context_window = max_tokens, context_window
        self._about = about or {}
        self._answered = False

    def describe(self) -> dict[str, Any]:
        return {"kind": "tinker", "renderer": renderer_name(self._renderer), **self._about}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        try:
            prompt = self._renderer.build_generation_prompt(theirs(messages, tools, self._renderer))
            length = prompt.length
        except EndpointError:
            raise
        except Exception as problem:
            raise EndpointError(f"rendering: {_said(problem)}") from problem
        parameters = tinker.SamplingParams(
            max_tokens=self._room(length, sampling),
            temperature=sampling.temperature,
            stop=stop_sequences(self._renderer, sampling),
            **({} if sampling.top_p is None else {"top_p": sampling.top_p}),
            **({} if sampling.seed is None else {"seed": sampling.seed}),
        )
        sequence = await self._sample(prompt, parameters)
        try:
            parsed, _ = self._renderer.parse_response(list(sequence.tokens))
            message = ours(parsed, messages)
        except Exception as problem:
            raise EndpointError(f"reading the turn: {_said(problem)}") from problem
        finish = str(sequence.stop_reason)
        if message.tool_calls and finish == "stop":
            finish = "tool_calls"
        return Completion(message, finish, Usage(length, len(sequence.tokens)))

    async def close(self) -> None:
        """The client is the training loop's."""

    def _room(self, length: int, sampling: Sampling) -> int:
        limit = sampling.max_tokens or self._max_tokens
        if self._context_window is None:
            return limit
        room = self._context_window - length
        if room < 1:
            raise ContextFull(
                f"the prompt has {length} tokens, the context window is {self._context_window}"
            )
        return min(limit, room)

    async def _sample(self, prompt: Any, parameters: Any) -> Any:
        try:
            response = await self._client.sample_async(
                prompt=prompt, num_samples=1, sampling_params=parameters
            )
        except Exception as problem:  # noqa: BLE001 - sorted, and raised as what it is
            # Not from it: what it says, key and all, would be in the log with every traceback.
            raise self._problem(problem) from None
        self._answered = True
        if not response.sequences:
            raise EndpointError("the sampling client returned no sequence")
        return response.sequences[0]

    def _problem(self, problem: Exception) -> EndpointError:
        said = _said(problem)
        if isinstance(problem, EndpointError):
            return problem
        if isinstance(problem, tinker.APIConnectionError):
            return TransientError(said) if self._answered else Unreachable(said)
        if isinstance(problem, tinker.RequestFailedError):
            refused = str(problem.category).lower() == "user"
            return EndpointError(said) if refused else TransientError(said)
        status = getattr(problem, "status_code", None)
        if not isinstance(status, int):
            return EndpointError(said)
        if status in (400, 413, 422) and any(words in said.lower() for words in _TOO_LONG):
            return ContextFull(said)
        # A 403 is about the key until something was allowed; after that, about this one request.
        if status in _EVERYBODYS or (status == 403 and not self._answered):
            return FatalEndpointError(said)
        if status in _TRANSIENT or status >= 500:
            return TransientError(said)
        return EndpointError(said)


def stop_sequences(renderer: Any, sampling: Sampling) -> list[Any] | None:
    """The renderer's, and those of the sampling. None keeps the stop at the end of text, which an
    empty list would take away."""
    stops = list(renderer.get_stop_sequences())
    if sampling.stop:
        if any(not isinstance(stop, str) for stop in stops):
            raise InvalidInput(
                f"sampling.stop has texts, and {type(renderer).__name__} stops at token ids; the "
                "service takes one kind or the other. Leave sampling.stop out"
            )
        stops += sampling.stop
    return stops or None


def renderer_name(renderer: Any) -> str:
    name = getattr(renderer, "_renderer_name", None)
    return name if isinstance(name, str) else type(renderer).__name__


def _said(problem: BaseException) -> str:
    return without_key(f"{type(problem).__name__}: {printable_error(problem)}")


def without_key(text: str) -> str:
    key = os.environ.get(KEY_VARIABLE)
    return text.replace(key, f"({KEY_VARIABLE})") if key else text
