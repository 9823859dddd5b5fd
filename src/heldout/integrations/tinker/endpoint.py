"""TinkerEndpoint: a sampling client of Tinker and a renderer of tinker-cookbook as an endpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import tinker
from tinker_cookbook import renderers

from heldout._core.chat.tool_calls import call_id, next_call_number
from heldout._core.config import Sampling
from heldout._core.secrets import remove_secrets
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    InvalidInput,
    ModelRefused,
    TransientError,
    Unreachable,
    printable_error,
)
from heldout.models.http import TRANSIENT
from heldout.types import Completion, ContentPart, Message, ToolCall, ToolSpec, Usage

KEY_VARIABLE = "TINKER_API_KEY"
_FATAL = (401, 402)
"""The key or the account: every other request would fail, too."""
_TOO_LONG = ("context window", "context length", "too long", "max_tokens exceeds")


class TinkerEndpoint:
    """Samples turns from the weights that a sampling client is bound to.

    Args:
        client: The sampling client.
        renderer: A renderer of `tinker_cookbook.renderers`, for the model that is sampled.
        max_tokens: The longest turn, where the sampling sets no limit.
        context_window: Tokens of prompt and turn together; turns are shortened to fit.
        about: Stored with the report: which weights these are.
    """

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
        self._has_answered = False

    def describe(self) -> dict[str, Any]:
        """What run.json says of the endpoint."""
        name = getattr(self._renderer, "_renderer_name", None) or type(self._renderer).__name__
        return {"kind": "tinker", "renderer": name, **self._about}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Sample one turn.

        Args:
            messages: The conversation so far.
            sampling: How to sample; greedy unless it sets a temperature.
            tools: The tools that the turn may call.

        Returns:
            The turn, why it ended, and its tokens.

        Raises:
            EndpointError: The request failed; the subclass says whether another try may help.
        """
        conversation = to_renderer_messages(messages, tools, self._renderer)
        prompt = self._renderer.build_generation_prompt(conversation)
        parameters = tinker.SamplingParams(
            max_tokens=self._tokens_left(prompt.length, sampling),
            temperature=sampling.temperature or 0.0,
            stop=stop_sequences(self._renderer, sampling),
            **({} if sampling.top_p is None else {"top_p": sampling.top_p}),
            **({} if sampling.seed is None else {"seed": sampling.seed}),
        )
        try:
            response = await self._client.sample_async(
                prompt=prompt, num_samples=1, sampling_params=parameters
            )
        except Exception as problem:  # noqa: BLE001 - raised as what it is, without the key
            # Not from it: its text, key and all, would be in the log with every traceback.
            raise self._endpoint_error(problem) from None
        self._has_answered = True
        sequence = response.sequences[0]
        parsed, _ = self._renderer.parse_response(list(sequence.tokens))
        message = from_renderer_message(parsed, messages)
        finish = str(sequence.stop_reason)
        if message.tool_calls and finish == "stop":
            finish = "tool_calls"
        return Completion(message, finish, Usage(prompt.length, len(sequence.tokens)))

    async def close(self) -> None:
        """Nothing to close: the client is the training loop's."""

    def _tokens_left(self, length: int, sampling: Sampling) -> int:
        limit = sampling.max_tokens or self._max_tokens
        if self._context_window is None:
            return limit
        left = self._context_window - length
        if left < 1:
            raise ContextFull(
                f"the prompt has {length} tokens, the context window is {self._context_window}"
            )
        return min(limit, left)

    def _endpoint_error(self, problem: Exception) -> EndpointError:
        text = without_key(f"{type(problem).__name__}: {printable_error(problem)}")
        if isinstance(problem, tinker.APIConnectionError):
            return TransientError(text) if self._has_answered else Unreachable(text)
        if isinstance(problem, tinker.RequestFailedError):
            was_refused = str(problem.category).lower() == "user"
            return EndpointError(text) if was_refused else TransientError(text)
        status = problem.status_code if isinstance(problem, tinker.APIStatusError) else 0
        if status in (400, 413, 422) and any(words in text.lower() for words in _TOO_LONG):
            return ContextFull(text)
        # A 403 is about the key until a request was allowed, and a 404 about the weights; after
        # that they are about this one request.
        if status in _FATAL or (status == 403 and not self._has_answered):
            return FatalEndpointError(text)
        if status == 404 and not self._has_answered:
            return ModelRefused(text)
        if status in TRANSIENT or status >= 500:
            return TransientError(text)
        return EndpointError(text)


def stop_sequences(renderer: Any, sampling: Sampling) -> list[Any] | None:
    """The stops of the renderer and of the sampling: texts or token ids.

    None keeps the stop at the end of text, which an empty list would take away.
    """
    stops = list(renderer.get_stop_sequences())
    if sampling.stop and any(not isinstance(stop, str) for stop in stops):
        raise InvalidInput(
            f"sampling.stop has texts, and {type(renderer).__name__} stops at token ids; the "
            "service takes one kind or the other. Leave sampling.stop out"
        )
    return [*stops, *sampling.stop] or None


def without_key(text: str) -> str:
    """The text with the API key replaced by the name of its variable."""
    key = os.environ.get(KEY_VARIABLE)
    return remove_secrets(text, [key], f"({KEY_VARIABLE})") if key else text


# --- Messages -----------------------------------------------------------------------------------


def to_renderer_messages(
    messages: Sequence[Message], tools: Sequence[ToolSpec], renderer: Any
) -> list[dict[str, Any]]:
    """Convert a conversation, with its tools announced in the renderer's own format."""
    names: dict[str, str] = {}
    converted: list[dict[str, Any]] = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}  # ids may come again
        converted.append(_to_renderer_message(message, names))
    if not tools:
        return converted
    system = ""
    if messages and messages[0].role == "system":
        system, converted = messages[0].text, converted[1:]
    specs = [
        {"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools
    ]
    try:
        prefix = renderer.create_conversation_prefix_with_tools(specs, system)
    except NotImplementedError:
        raise FatalEndpointError(
            f"{type(renderer).__name__} has no format for tools, and the environment has some; use "
            "a renderer that has one"
        ) from None
    return [*prefix, *converted]


def _to_renderer_message(message: Message, names: dict[str, str]) -> dict[str, Any]:
    # Renderers write only calls that are JSON. The others go back as the model wrote them.
    calls = [call for call in message.tool_calls if _is_valid(call)]
    invalid = [call.arguments for call in message.tool_calls if not _is_valid(call)]
    missing = [{"type": "text", "text": text} for text in invalid if text not in message.text]
    content: Any = message.content
    if message.reasoning or missing or not isinstance(content, str):
        plain = [{"type": "text", "text": content}] if isinstance(content, str) else content
        thinking = [{"type": "thinking", "thinking": message.reasoning}]
        content = [
            *(thinking if message.reasoning else ()),
            *(_to_renderer_part(part) for part in plain),
            *missing,
        ]
    converted: dict[str, Any] = {"role": message.role, "content": content}
    if calls:
        converted["tool_calls"] = [
            renderers.ToolCall.model_validate(
                {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            )
            for call in calls
        ]
    if message.tool_call_id is not None:
        converted["tool_call_id"] = message.tool_call_id
        if names.get(message.tool_call_id):
            converted["name"] = names[message.tool_call_id]
    return converted


def _is_valid(call: ToolCall) -> bool:
    try:
        json.loads(call.arguments)
    except (ValueError, RecursionError):  # a model may nest without end
        return False
    return bool(call.name)


def _to_renderer_part(part: ContentPart) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image_url":
        image = part["image_url"]
        return {"type": "image", "image": image["url"] if isinstance(image, dict) else image}
    raise EndpointError(f"renderers take parts of text and images, got {part.get('type')!r}")


def from_renderer_message(parsed: Any, before: Sequence[Message]) -> Message:
    """Convert what a renderer parsed out of sampled tokens into the model's turn.

    A call that could not be parsed has no name: the environment answers what is wrong with it.
    """
    content = parsed["content"]
    reasoning = None
    if not isinstance(content, str):
        thoughts = [p["thinking"] for p in content if p.get("type") == "thinking"]
        reasoning = "".join(thoughts) if thoughts else None
        content = "".join(p["text"] for p in content if p.get("type") == "text")
    written = [(c.function.name, c.function.arguments) for c in parsed.get("tool_calls") or ()]
    written += [("", c.raw_text) for c in parsed.get("unparsed_tool_calls") or ()]
    # Ids of our own: renderers leave them out, or number the calls of every turn from 0.
    first = next_call_number(before)
    calls = tuple(ToolCall(call_id(first + i), *call) for i, call in enumerate(written))
    return Message("assistant", content, tool_calls=calls, reasoning=reasoning)
