"""Conversations for a local model: messages and tools to a prompt, a generation to a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from heldout.chat import message_of, tool_to_chat_api
from heldout.config import Sampling
from heldout.decoding.decoder import Decoder
from heldout.decoding.model import transformers_model, unwrap
from heldout.decoding.turn import Generation, Prompt, end_tokens
from heldout.errors import ContextFull, EndpointError, FatalEndpointError
from heldout.reasoning import opened_reasoning
from heldout.rendering.chat_templates import ChatRenderer
from heldout.rendering.segments import TAG_TOKENS, before_stop
from heldout.toolcalls import call_id, next_call_number
from heldout.types import Completion, Message, ToolSpec, Usage

DEFAULT_MAX_TOKENS = 512


class Asked(Protocol):
    """A turn that somebody waits for."""

    @property
    def messages(self) -> Sequence[Message]: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def tools(self) -> Sequence[ToolSpec]: ...


def answer_all(
    chat: ChatModel,
    decoder: Decoder,
    asked: Sequence[Asked],
    answered: Callable[[int, Completion | Exception], object],
    *,
    keep_going: Callable[[], bool],
    wanted: Callable[[int], bool] = lambda place: True,
) -> None:
    """Decode what is asked for, together; `answered(place, …)` gets each turn as soon as it is
    done, or why there is none. Nothing, where it was told not to go on."""
    places: list[int] = []
    prompts: list[Prompt] = []
    for place, one in enumerate(asked):
        if wanted(place):
            try:
                prompts.append(chat.prompt(one.messages, one.sampling, one.tools))
                places.append(place)
            except Exception as problem:  # noqa: BLE001 - chat templates raise what they like
                answered(place, problem)

    def done(index: int, generation: Generation) -> None:
        one = asked[places[index]]
        given: Completion | Exception
        try:
            given = chat.completion(
                prompts[index], generation, one.messages, one.tools, one.sampling.stop
            )
        except Exception as problem:  # noqa: BLE001 - the error of this item
            given = problem
        answered(places[index], given)

    results = decoder.decode(
        prompts, keep_going=keep_going, on_done=done, wanted=lambda index: wanted(places[index])
    )
    for place, result in zip(places, results, strict=True):
        if isinstance(result, Exception):
            answered(place, result)


class ChatModel:
    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self._model, self._tokenizer, self._name = model, tokenizer, name

    def prompt(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Prompt:
        """What the model goes on from, and how far. ContextFull if there is no room for a turn."""
        ids = self._ids(messages, tools)
        if not ids:
            raise EndpointError(f"the prompt has no tokens, so {self._name} has nothing to go on")
        config = transformers_model(unwrap(self._model)).config
        longest = getattr(config, "max_position_embeddings", None) or 1 << 30
        limit = min(sampling.max_tokens or DEFAULT_MAX_TOKENS, longest - len(ids))
        if limit < 1:
            raise ContextFull(f"the prompt has {len(ids)} tokens, {self._name} takes {longest}")
        return Prompt(
            tuple(ids),
            limit,
            tuple(sampling.stop),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
        )

    def completion(
        self,
        prompt: Prompt,
        generation: Generation,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        stops: Sequence[str],
    ) -> Completion:
        """The turn as a message: without the stop text that ended it, with its tool calls."""
        text = before_stop(generation.text, stops)
        opened = opened_reasoning(self._tokenizer.decode(list(prompt.ids[-TAG_TOKENS:])))
        if opened and self._has_template:
            # With special tokens: what closes the reasoning may be one.
            whole = before_stop(self._chat.decode(generation.ids), stops)
            text = self._chat.parse(whole, tools=()).text
        message = Message("assistant", opened + text)
        if tools:
            message = self._with_calls(prompt, generation, message, messages, tools, stops, opened)
        usage = Usage(len(prompt.ids), len(generation.ids))
        return Completion(message, generation.finish, usage)

    def _ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        if self._has_template:
            return self._chat.prompt(messages, tools)
        if len(messages) == 1 and isinstance(messages[0].content, str) and not tools:
            return list(self._tokenizer(messages[0].content)["input_ids"])
        raise FatalEndpointError(
            f"{self._name} has no chat template, so it can continue one message of text but not "
            "a conversation, nor be told of tools"
        )

    @property
    def _has_template(self) -> bool:
        return bool(getattr(self._tokenizer, "chat_template", None))

    @cached_property
    def _chat(self) -> ChatRenderer:
        return ChatRenderer(self._tokenizer)

    def _with_calls(
        self,
        prompt: Prompt,
        generation: Generation,
        message: Message,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        stops: Sequence[str],
        opened: str,
    ) -> Message:
        """The turn with its tool calls, if there are any."""
        ids, tokenizer = list(generation.ids), self._tokenizer
        ends = end_tokens(unwrap(self._model), tokenizer)
        spoken = ids[:-1] if ids[-1] in ends else ids
        # Special tokens are kept until here: in many families they are what marks a call.
        text = before_stop(tokenizer.decode(spoken), stops)
        first = next_call_number(messages)
        meant = self._chat.parse(opened + text, first, tools=tools)
        if meant.tool_calls:
            return replace(meant, content=meant.text.strip())
        if getattr(tokenizer, "response_template", None) is None:
            return message
        # A convention of its own, which the tokenizer can read.
        try:
            given = [tool_to_chat_api(tool) for tool in tools]
            whole = before_stop(tokenizer.decode(ids), stops)
            parsed = tokenizer.parse_response(whole, prefix=list(prompt.ids), tools=given)
            read = message_of(parsed, self._name)
        except Exception:  # noqa: BLE001 - it raises what it likes; then there is no call to be read
            return message
        calls = tuple(replace(c, id=call_id(first + i)) for i, c in enumerate(read.tool_calls))
        return replace(read, tool_calls=calls) if calls else message
