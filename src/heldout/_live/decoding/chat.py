"""Conversations for a local model: messages and tools to a prompt, a generation to a message."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from heldout._core.chat.messages import message_of, tool_to_chat_api
from heldout._core.chat.tool_calls import call_id, next_call_number
from heldout._core.config import LOCAL_MAX_TOKENS, TEMPLATE_KWARGS, Sampling
from heldout._live.decoding.decoder import Decoder
from heldout._live.decoding.model import HoldsModel, transformers_model, unwrap
from heldout._live.decoding.turn import Generation, Prompt, end_tokens
from heldout._live.rendering.chat_templates import ChatFormat, ChatRenderer
from heldout._live.rendering.segments import TAG_TOKENS, before_stop
from heldout._reasoning import opened_reasoning
from heldout.errors import ContextFull, EndpointError, FatalEndpointError, InvalidInput
from heldout.types import Completion, Message, ToolSpec, Usage


class ChatRequest(Protocol):
    """A conversation whose next turn is asked for."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of this request."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """Tools that the model may call."""


def answer_all(
    chat: ChatModel,
    decoder: Decoder,
    requests: Sequence[ChatRequest],
    on_answer: Callable[[int, Completion | Exception], object],
    *,
    keep_going: Callable[[], bool],
    wanted: Callable[[int], bool] = lambda index: True,
    same_weights: bool = False,
) -> None:
    """Decode the next turns of several conversations together.

    `on_answer` is called with a request's index and its turn as soon as it is complete, or with the
    reason why there is none; not for what was dropped (`wanted`) or stopped (`keep_going`).
    `same_weights` says that the weights are those of the call before, as in `Decoder.decode`.
    """
    indices: list[int] = []
    prompts: list[Prompt] = []
    for index, request in enumerate(requests):
        if wanted(index):
            try:
                prompts.append(chat.prompt(request))
                indices.append(index)
            except Exception as error:  # noqa: BLE001 - Jinja templates raise anything
                on_answer(index, error)

    def done(place: int, generation: Generation) -> None:
        answer: Completion | Exception
        try:
            answer = chat.completion(requests[indices[place]], prompts[place], generation)
        except Exception as error:  # noqa: BLE001 - the error of this sample, not of the batch
            answer = error
        on_answer(indices[place], answer)

    results = decoder.decode(
        prompts,
        keep_going=keep_going,
        on_done=done,
        wanted=lambda place: wanted(indices[place]),
        same_weights=same_weights,
    )
    for index, result in zip(indices, results, strict=True):
        if isinstance(result, Exception):
            on_answer(index, result)


class ChatModel(HoldsModel):
    """A model and its tokenizer, answering conversations; errors call it `name`."""

    def __init__(
        self, model: Any, tokenizer: Any, name: str, chat: ChatFormat | None = None
    ) -> None:
        super().__init__(model)
        self._tokenizer, self._name = tokenizer, name
        self._chat = chat or ChatFormat()
        self._renderers: dict[str, ChatRenderer] = {}
        """By the keywords of the template, which a request may have of its own."""

    def use_format(self, chat: ChatFormat) -> None:
        """Render conversations in this way from now on."""
        if chat != self._chat:
            self._chat = chat
            self._renderers.clear()

    def show(self, request: ChatRequest) -> str | None:
        """Return the prompt of a request as text, special tokens included; None if it has none."""
        try:
            ids = self._render(request.messages, request.tools, self._format_of(request))
        except Exception:  # noqa: BLE001 - it is that item's error, and is reported there
            return None
        return str(self._tokenizer.decode(ids))

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens that ask for the next turn of a conversation."""
        return self._render(messages, (), self._chat)

    def prompt(self, request: ChatRequest) -> Prompt:
        """Render a conversation as the prompt of its next turn.

        Raises:
            ContextFull: There is no room for another turn.
            EndpointError: The prompt is empty.
            FatalEndpointError: The model has no chat template, and this is not one message of text;
                or `extra_body` has what only a server could take.
        """
        ids = self._render(request.messages, request.tools, self._format_of(request))
        if not ids:
            raise EndpointError(f"the prompt has no tokens, so {self._name} has nothing to go on")
        sampling = request.sampling
        config = transformers_model(unwrap(self._model)).config
        context = getattr(config, "max_position_embeddings", None) or 1 << 30
        limit = min(sampling.max_tokens or LOCAL_MAX_TOKENS, context - len(ids))
        if limit < 1:
            raise ContextFull(f"the prompt has {len(ids)} tokens, {self._name} takes {context}")
        return Prompt(
            tuple(ids),
            limit,
            tuple(sampling.stop),
            temperature=sampling.temperature or 0.0,
            top_p=sampling.top_p,
            seed=sampling.seed,
            continued=any(message.role == "assistant" for message in request.messages),
        )

    def completion(
        self, request: ChatRequest, prompt: Prompt, generation: Generation
    ) -> Completion:
        """Read a turn as a message: without the stop text that ended it, with its tool calls."""
        stops = request.sampling.stop
        text = before_stop(generation.text, stops)
        opened = opened_reasoning(self._tokenizer.decode(list(prompt.ids[-TAG_TOKENS:])))
        if opened and self._has_template:
            # With special tokens: the end of the reasoning may be one.
            raw = before_stop(self._renderer.decode(generation.ids), stops)
            text = self._renderer.parse(raw, tools=()).text
        message = Message("assistant", opened + text)
        if request.tools:
            message = self._parse_calls(request, prompt, generation, opened) or message
        usage = Usage(len(prompt.ids), len(generation.ids))
        return Completion(message, generation.finish, usage)

    def _format_of(self, request: ChatRequest) -> ChatFormat:
        """Return how a request is rendered: it may have `chat_template_kwargs`, as for a server."""
        fields = request.sampling.extra_body or {}
        if not fields:
            return self._chat
        kwargs = fields.get(TEMPLATE_KWARGS)
        if {*fields} != {TEMPLATE_KWARGS} or not isinstance(kwargs, dict):
            raise FatalEndpointError(
                f"of sampling.extra_body {self._name}, a model in this process, takes only "
                f"{TEMPLATE_KWARGS}, a dict; got {', '.join(sorted(fields))}"
            )
        return ChatFormat(self._chat.template, {**self._chat.kwargs, **kwargs})

    def _render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], chat: ChatFormat
    ) -> list[int]:
        if self._has_template:
            try:
                renderer = self._renderer_of(chat)
            except InvalidInput as problem:
                if chat == self._chat:
                    raise
                # The template does not read the request's keyword, for any item.
                raise FatalEndpointError(f"{self._name}: {problem}") from None
            return renderer.prompt(messages, tools)
        if len(messages) == 1 and isinstance(messages[0].content, str) and not tools:
            return list(self._tokenizer(messages[0].content)["input_ids"])
        raise FatalEndpointError(
            f"{self._name} has no chat template, so it can continue one message of text but not "
            "a conversation, nor be told of tools"
        )

    @property
    def _has_template(self) -> bool:
        return self._chat.has_template(self._tokenizer)

    @property
    def _renderer(self) -> ChatRenderer:
        return self._renderer_of(self._chat)

    def _renderer_of(self, chat: ChatFormat) -> ChatRenderer:
        key = json.dumps(chat.kwargs, sort_keys=True, default=repr)
        if key not in self._renderers:
            self._renderers[key] = chat.renderer(self._tokenizer)
        return self._renderers[key]

    def _parse_calls(
        self, request: ChatRequest, prompt: Prompt, generation: Generation, opened: str
    ) -> Message | None:
        """Read the turn with its tool calls; None if it has none."""
        ids, tokenizer, stops = list(generation.ids), self._tokenizer, request.sampling.stop
        ends = end_tokens(unwrap(self._model), tokenizer)
        # Special tokens are kept until here: in many families they mark a call.
        text = before_stop(tokenizer.decode(ids[:-1] if ids[-1] in ends else ids), stops)
        first = next_call_number(request.messages)
        parsed = self._renderer.parse(opened + text, first, tools=request.tools)
        if parsed.tool_calls:
            return replace(parsed, content=parsed.text.strip())
        if getattr(tokenizer, "response_template", None) is None:
            return None
        # A convention of its own, which the tokenizer can parse.
        try:
            tools = [tool_to_chat_api(tool) for tool in request.tools]
            raw = before_stop(tokenizer.decode(ids), stops)
            response = tokenizer.parse_response(raw, prefix=list(prompt.ids), tools=tools)
            message = message_of(response, self._name)
        except Exception:  # noqa: BLE001 - the tokenizer's own code raises anything on bad output
            return None
        calls = tuple(replace(c, id=call_id(first + i)) for i, c in enumerate(message.tool_calls))
        return replace(message, tool_calls=calls) if calls else None
