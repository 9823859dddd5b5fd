"""Messages and tools in the form of chat APIs, chat datasets and chat templates: plain dicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from heldout.errors import InvalidInput
from heldout.types import Message, ToolCall, ToolSpec


def message_of(value: Any, where: str) -> Message:
    """Read a `Message`, or a dict with a role and content as chat APIs have it."""
    if isinstance(value, Message):
        return value
    if isinstance(value, Mapping) and "role" in value:
        content = value.get("content")
        calls = tuple(_tool_call(c, where) for c in value.get("tool_calls") or ())
        return Message(
            value["role"],
            "" if content is None else content,
            tool_calls=calls,
            tool_call_id=value.get("tool_call_id"),
            reasoning=value.get("reasoning_content"),
        )
    raise InvalidInput(f"{where}: a message must be a dict with role and content, got {value!r}")


def _tool_call(value: Any, where: str) -> ToolCall:
    """Read {"id", "function": {"name", "arguments"}}, or the same fields without "function"."""
    body = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(body.get("name"), str):
        raise InvalidInput(f"{where}: a tool call has a function name, got {value!r}")
    arguments = body.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return ToolCall(str(value.get("id") or ""), body["name"], arguments)


def to_chat_api(message: Message) -> dict[str, Any]:
    """Convert a message to the dict that chat APIs and chat templates take."""
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


def tool_to_chat_api(tool: ToolSpec) -> dict[str, Any]:
    """Convert a tool to the dict that chat APIs and chat templates take."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}
