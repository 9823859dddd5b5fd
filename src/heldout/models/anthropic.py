"""Anthropic's Messages API.

    anthropic:MODEL                  ANTHROPIC_BASE_URL, or Anthropic itself; ANTHROPIC_API_KEY
    anthropic:MODEL@http://host/v1   any other server of this API

System messages at the start become the `system` field, tool results blocks of a user's message.
Thinking is the turn's `reasoning`. It is signed, and a turn with tool calls must be sent back with
it, so the message has such turns as they came (`Message.api_turn`). The API has no seed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from heldout._core.config import Sampling
from heldout._core.providers import ANTHROPIC
from heldout.models.http import (
    Response,
    ServerEndpoint,
    TokenCount,
    api_turn_of,
    arguments_text,
    parse_arguments,
    with_api_turn,
)
from heldout.types import Completion, Message, ToolCall, ToolSpec, Usage

API_VERSION = "2023-06-01"
"""Later versions refuse `temperature` for all models, this one only for those without it."""
DEFAULT_MAX_TOKENS = 16_384
"""The API demands a limit, which thinking counts towards."""


class _MessagesUsage(msgspec.Struct):
    input_tokens: TokenCount
    output_tokens: TokenCount
    cache_creation_input_tokens: TokenCount | None = None
    cache_read_input_tokens: TokenCount | None = None

    def total(self) -> Usage:
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return Usage(self.input_tokens + cached, self.output_tokens)


class _MessagesReply(msgspec.Struct):
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    usage: _MessagesUsage | None = None


class AnthropicEndpoint(ServerEndpoint):
    """A model of Anthropic."""

    kind = "anthropic"
    path = "/messages"
    provider = ANTHROPIC
    reply_type = _MessagesReply

    @classmethod
    def _default_url(cls) -> str:
        # Anthropic's own packages put the version into the path themselves.
        url = super()._default_url().rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"

    def _key_headers(self) -> dict[str, str]:
        key = {"x-api-key": self._key} if self._key else {}
        return {"anthropic-version": API_VERSION, **key}

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report, with the limit of turns where none is set."""
        return {**super().describe(), "default_max_tokens": DEFAULT_MAX_TOKENS}

    def _fields(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        turns = list(messages)
        system: list[str] = []
        while turns and turns[0].role == "system":
            system.append(turns.pop(0).text)
        return {
            "model": self.model,
            "max_tokens": sampling.max_tokens or DEFAULT_MAX_TOKENS + _thinking_budget(sampling),
            "system": "\n\n".join(system) or None,
            "messages": self._turns_of(turns),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_sequences": list(sampling.stop) or None,
            "stream": sampling.stream,
            "tools": [
                {"name": t.name, "description": t.description, "input_schema": t.parameters}
                for t in tools
            ]
            or None,
        }

    def _turns_of(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Convert messages; those of one role in a row become one, which tool results must be."""
        turns: list[dict[str, Any]] = []
        for message in messages:
            role = "user" if message.role == "tool" else message.role
            blocks = self._blocks(message)
            if turns and turns[-1]["role"] == role:
                turns[-1]["content"] += blocks
            elif blocks:  # an empty turn is refused
                turns.append({"role": role, "content": blocks})
        return turns

    def _blocks(self, message: Message) -> list[dict[str, Any]]:
        content = _content_blocks(message)
        if message.role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.tool_call_id}
            return [{**result, "content": content}]
        if message.role == "assistant" and message.tool_calls:
            turn = api_turn_of(message, self.kind, _to_message)
            if turn is not None:
                return [*turn]
            return [*content, *map(_call_block, message.tool_calls)]
        return content

    def _to_completion(
        self, reply: _MessagesReply, response: Response, next_call: int
    ) -> Completion:
        turn = [_as_sendable(block) for block in reply.content]
        message = with_api_turn(_to_message(reply.content), self.kind, turn)
        usage = reply.usage.total() if reply.usage else None
        return Completion(message, reply.stop_reason, usage)

    def _join_events(self, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        reply: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        # In parts: to add to a text copies it, which takes long for one of megabytes.
        texts: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        for event in events:
            match event:
                case {"type": "message_start", "message": message}:
                    reply = message
                case {"type": "content_block_start", "index": index, "content_block": block}:
                    blocks[index] = block
                case {"type": "content_block_delta", "index": index, "delta": delta}:
                    for name in ("text", "thinking", "signature", "partial_json"):
                        if name in delta:
                            texts[index, name].append(delta[name])
                case {"type": "message_delta"}:
                    reply |= event["delta"]
                    reply["usage"] = {**(reply.get("usage") or {}), **event.get("usage", {})}
                case {"type": "message_stop"}:
                    for (index, name), parts in texts.items():
                        text = "".join(parts)
                        if name != "partial_json":
                            blocks[index][name] = blocks[index].get(name, "") + text
                        elif text:
                            blocks[index]["input"] = _parse_input(text)
                    reply["content"] = [blocks[index] for index in sorted(blocks)]
                    return reply
        return None


def _to_message(content: Sequence[dict[str, Any]]) -> Message:
    texts: list[str] = []
    thinking: list[str] = []
    calls: list[ToolCall] = []
    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                texts.append(text)
            case {"type": "thinking", "thinking": str(text)}:
                thinking.append(text)
            case {"type": "tool_use", "id": str(id), "name": str(name)}:
                calls.append(ToolCall(id, name, arguments_text(block.get("input") or None)))
    reasoning = "\n\n".join(filter(None, thinking)) or None
    return Message("assistant", "".join(texts), tuple(calls), reasoning=reasoning)


def _call_block(call: ToolCall) -> dict[str, Any]:
    head = {"type": "tool_use", "id": call.id, "name": call.name}
    return {**head, "input": parse_arguments(call.arguments)}


def _parse_input(text: str) -> dict[str, Any] | str:
    """Parse a call's input; one that was cut off at the length limit stays the text that it is."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _as_sendable(block: dict[str, Any]) -> dict[str, Any]:
    """Convert a call's input that is no object: the API takes no other back."""
    input = block.get("input")
    return {**block, "input": parse_arguments(input)} if isinstance(input, str) else block


def _content_blocks(message: Message) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        # An empty text is refused.
        return [{"type": "text", "text": message.content}] if message.content else []
    return [_content_block(part) for part in message.content]


def _content_block(part: dict[str, Any]) -> dict[str, Any]:
    match part:
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            if not url.startswith("data:"):
                return {"type": "image", "source": {"type": "url", "url": url}}
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            source = {"type": "base64", "media_type": kind, "data": data}
            return {"type": "image", "source": source}
    return part  # text, or a block in the API's own form


def _thinking_budget(sampling: Sampling) -> int:
    match sampling.extra_body:
        case {"thinking": {"budget_tokens": int(tokens)}}:
            return tokens
    return 0
