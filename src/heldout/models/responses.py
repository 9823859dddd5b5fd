"""OpenAI's Responses API.

    openai-responses:MODEL                  OPENAI_BASE_URL, or OpenAI itself; OPENAI_API_KEY
    openai-responses:MODEL@http://host/v1   any other server of this API

Messages, calls and results become input items. Items of a turn with calls are sent back as they
came, with its reasoning (`Message.api_turn`). OpenAI stores responses unless `extra_body` has
{"store": false}; then reasoning is sent back only if it came encrypted ("include":
["reasoning.encrypted_content"]). The API has no seed and no stop texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from heldout._core.chat.tool_calls import call_id
from heldout._core.config import Sampling
from heldout._core.providers import OPENAI
from heldout.errors import FatalEndpointError
from heldout.models.http import (
    Response,
    ServerEndpoint,
    TokenCount,
    api_turn_of,
    arguments_text,
    with_api_turn,
)
from heldout.types import Completion, Message, ToolCall, ToolSpec, Usage

ENDED = ("response.completed", "response.incomplete", "response.failed")
"""Events that end a stream; each holds the whole response."""


class _ResponsesUsage(msgspec.Struct):
    input_tokens: TokenCount
    output_tokens: TokenCount

    def total(self) -> Usage:
        return Usage(self.input_tokens, self.output_tokens)


class _ResponsesReply(msgspec.Struct):
    output: list[dict[str, Any]]
    status: str = "completed"
    incomplete_details: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    usage: _ResponsesUsage | None = None


class ResponsesEndpoint(ServerEndpoint):
    """A model behind the Responses API."""

    kind = "openai-responses"
    path = "/responses"
    provider = OPENAI
    reply_type = _ResponsesReply

    def _fields(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> dict[str, Any]:
        if sampling.stop:
            raise FatalEndpointError(
                "the Responses API has no stop texts: leave out sampling.stop, or use openai:MODEL"
            )
        is_stored = (sampling.extra_body or {}).get("store") is not False
        return {
            "model": self.model,
            "input": [item for m in messages for item in self._items(m, is_stored)],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_output_tokens": sampling.max_tokens,
            "stream": sampling.stream,
            "tools": [
                {
                    "type": "function",
                    "name": t.name,
                    "description": t.description,
                    "parameters": t.parameters,
                    # Strict schemas, the default here, would not be those of the environment.
                    "strict": False,
                }
                for t in tools
            ]
            or None,
        }

    def _items(self, message: Message, is_stored: bool) -> list[dict[str, Any]]:
        if message.role == "tool":
            output = {"type": "function_call_output", "call_id": message.tool_call_id}
            return [{**output, "output": _content(message)}]
        turn = api_turn_of(message, self.kind, _to_message)
        if turn is not None:
            return turn if is_stored else _without_references(turn)
        items: list[dict[str, Any]] = []
        if message.content or not message.tool_calls:
            items.append({"role": message.role, "content": _content(message)})
        for call in message.tool_calls:
            head = {"type": "function_call", "call_id": call.id, "name": call.name}
            items.append({**head, "arguments": call.arguments})
        return items

    def _to_completion(
        self, reply: _ResponsesReply, response: Response, next_call: int
    ) -> Completion:
        if reply.status not in ("completed", "incomplete"):
            no_reason = {"message": f"the response has the status {reply.status!r}"}
            raise self._error_of(reply.error or no_reason, response, default=400)
        for number, item in enumerate(i for i in reply.output if i.get("type") == "function_call"):
            item["call_id"] = item.get("call_id") or call_id(next_call + number)
        message = with_api_turn(_to_message(reply.output), self.kind, reply.output)
        finish_reason = "tool_calls" if message.tool_calls else "stop"
        if any(part.get("type") == "refusal" for part in _message_parts(reply.output)):
            finish_reason = "refusal"
        if reply.status == "incomplete":
            finish_reason = (reply.incomplete_details or {}).get("reason") or "incomplete"
        return Completion(message, finish_reason, reply.usage.total() if reply.usage else None)

    def _join_events(self, events: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        return next((event["response"] for event in events if event.get("type") in ENDED), None)


def _to_message(output: Sequence[dict[str, Any]]) -> Message:
    texts = [part.get("text") or part.get("refusal") or "" for part in _message_parts(output)]
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for item in output:
        match item:
            case {"type": "reasoning"}:
                summary = item.get("content") or item.get("summary")
                thoughts += [str(part.get("text", "")) for part in _dicts_in(summary)]
            case {"type": "function_call", "call_id": str(id), "name": str(name)}:
                calls.append(ToolCall(id, name, arguments_text(item.get("arguments") or None)))
    reasoning = "\n\n".join(filter(None, thoughts)) or None
    return Message("assistant", "".join(map(str, texts)), tuple(calls), reasoning=reasoning)


def _message_parts(output: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    messages = (item for item in output if item.get("type") == "message")
    return [part for item in messages for part in _dicts_in(item.get("content"))]


def _dicts_in(parts: Any) -> list[dict[str, Any]]:
    return [p for p in parts if isinstance(p, dict)] if isinstance(parts, list) else []


def _without_references(turn: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Leave out what refers to items that the server has not stored."""
    return [
        {k: v for k, v in item.items() if k != "id" or item.get("type") == "reasoning"}
        for item in turn
        if item.get("type") != "reasoning" or item.get("encrypted_content")
    ]


def _content(message: Message) -> str | list[dict[str, Any]]:
    if isinstance(message.content, str):
        return message.content
    return [_part(part, message.role) for part in message.content]


def _part(part: dict[str, Any], role: str) -> dict[str, Any]:
    match part:
        case {"type": "text", "text": str(text)}:
            return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)} as image}:
            detail = {"detail": image["detail"]} if "detail" in image else {}
            return {"type": "input_image", "image_url": url, **detail}
    return part  # in the API's own form
