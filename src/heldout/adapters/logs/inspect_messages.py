"""Messages of Inspect's logs to heldout's, and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from heldout._core.chat.messages import to_chat_api
from heldout.errors import UNREADABLE
from heldout.types import Message, ToolCall

EXPORTED = "heldout"


class LoggedCall(msgspec.Struct):
    """A tool call."""

    id: str = ""
    function: str = ""
    arguments: Any = None
    parse_error: str | None = None


class LoggedMessage(msgspec.Struct):
    """A chat message."""

    role: str
    content: str | list[dict[str, Any]] = ""
    source: str | None = None
    tool_calls: list[LoggedCall] | None = None
    tool_call_id: str | list[str] | None = None
    error: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


def to_message(logged: LoggedMessage) -> Message:
    """Convert a message of a log."""
    exported = (logged.metadata or {}).get(EXPORTED)
    exported = exported if isinstance(exported, dict) else {}
    content, reasoning = _split_reasoning(logged.content)
    if exported.get("parts") is not True:
        content = _join_texts(content)
    if logged.error:
        content = f"Error: {logged.error.get('message')}"  # as Inspect's providers send it
    calls = logged.tool_calls or []
    raw = exported.get("arguments")
    arguments = raw if isinstance(raw, list) and len(raw) == len(calls) else [None] * len(calls)
    return Message(
        logged.role,  # type: ignore[arg-type]  # checked there
        content,
        tuple(_to_call(call, text) for call, text in zip(calls, arguments, strict=True)),
        logged.tool_call_id if isinstance(logged.tool_call_id, str) else None,
        reasoning,
    )


def _join_texts(content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Make one text of content that is nothing but text."""
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
    is_text = all(part.get("type") == "text" for part in content)
    return "\n".join(texts) if is_text and len(texts) == len(content) else content


def _to_call(logged: LoggedCall, raw: Any) -> ToolCall:
    if isinstance(raw, str):
        return ToolCall(logged.id, logged.function, raw)
    arguments = logged.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(logged.id, logged.function, text)


def _split_reasoning(
    content: str | list[dict[str, Any]],
) -> tuple[str | list[dict[str, Any]], str | None]:
    """Return content parts as chat APIs have them, and the reasoning among them."""
    if isinstance(content, str):
        return content, None
    parts: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for part in content:
        kind = part.get("type")
        if kind == "reasoning":
            hidden = part.get("redacted") is True
            text = part.get("summary") if hidden else part.get("reasoning")
            reasoning.append(text if isinstance(text, str) else "")
        elif kind == "text":
            parts.append({"type": "text", "text": part.get("text")})
        elif kind == "image":
            image = {"url": part.get("image"), "detail": part.get("detail")}
            image = {key: value for key, value in image.items() if value is not None}
            parts.append({"type": "image_url", "image_url": image})
        elif kind == "data" and isinstance(inner := (part.get("data") or {}).get(EXPORTED), dict):
            parts.append(inner)
        else:
            parts.append({key: value for key, value in part.items() if value is not None})
    return parts, "\n".join(reasoning) if reasoning else None


def to_plain_dict(logged: LoggedMessage) -> dict[str, Any]:
    """Convert a message of an input to what a sample holds: without its id, which is random."""
    return to_chat_api(to_message(logged))


# --- Export -------------------------------------------------------------------------------------


def to_logged(message: Message, *, generated: bool, model: str) -> dict[str, Any]:
    """Convert a message to one of a log.

    Args:
        message: The message.
        generated: Whether the policy wrote it.
        model: The policy.
    """
    kept: dict[str, Any] = {}
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if isinstance(message.content, list):
        body["content"] = [_to_part(part) for part in message.content]
        kept["parts"] = True
    if message.reasoning is not None:
        text = message.content
        parts = body["content"] if isinstance(text, list) else [{"type": "text", "text": text}]
        body["content"] = [{"type": "reasoning", "reasoning": message.reasoning}, *parts]
    if message.tool_calls:
        body["tool_calls"] = [_to_logged_call(call) for call in message.tool_calls]
        kept["arguments"] = [call.arguments for call in message.tool_calls]
    if message.tool_call_id is not None and message.role == "tool":
        body["tool_call_id"] = message.tool_call_id
    if message.role == "assistant" and generated:
        body |= {"source": "generate", "model": model}
    if kept:
        body["metadata"] = {EXPORTED: kept}
    return body


def _to_logged_call(call: ToolCall) -> dict[str, Any]:
    logged = {"id": call.id, "function": call.name, "type": "function"}
    try:
        arguments = msgspec.json.decode(call.arguments)
    except UNREADABLE as problem:
        return {**logged, "arguments": {}, "parse_error": f"not JSON: {problem}"}
    if not isinstance(arguments, dict):
        return {**logged, "arguments": {}, "parse_error": "not a JSON object"}
    return {**logged, "arguments": arguments}


def _to_part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    image = part.get("image_url")
    if isinstance(image, dict) and part == {"type": "image_url", "image_url": image}:
        details = ("auto", "low", "high")
        if set(image) == {"url", "detail"} and image["detail"] in details:
            return {"type": "image", "image": image["url"], "detail": image["detail"]}
    return {"type": "data", "data": {EXPORTED: part}}
