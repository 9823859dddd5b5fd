"""Messages and tools in the form of chat APIs, chat datasets and chat templates: plain dicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from heldout.errors import InvalidInput
from heldout.types import Message, ToolCall, ToolSpec

OPENING_KEYS = ("messages", "prompt", "question")
"""Fields of a sample's input that hold what is asked; the first one counts."""


def messages_of(input: Mapping[str, Any], where: str = "input") -> list[Message]:
    """Read the opening messages from a sample's input.

    It has `messages`, or a `prompt` or `question`: a text from the user, or itself a list of
    messages, as chat datasets have it. Without these, its only text is the question, whatever the
    field is called. `where` names the input in error messages.
    """
    for key in OPENING_KEYS:
        value = input.get(key)
        if isinstance(value, str):
            return [Message("user", value)]
        if value and isinstance(value, Sequence):
            return [message_of(m, f"{where}[{key!r}]") for m in value]
        if value is not None and not isinstance(value, Sequence):
            raise InvalidInput(
                f"{where}[{key!r}] is a text or a list of messages, got {type(value).__name__}"
            )
    texts = [key for key, value in input.items() if isinstance(value, str)]
    if len(texts) == 1 and all(input.get(key) is None for key in OPENING_KEYS):
        return [Message("user", input[texts[0]])]
    found = f"its keys are {sorted(map(str, input))}. Add one"
    if len(texts) > 1:
        found = (
            f"{', '.join(map(repr, texts))} are all texts. Pass the one that is the question, as "
            f"in input={{'question': row[{texts[0]!r}]}}"
        )
    raise InvalidInput(
        f"{where} has no 'prompt', 'question' or 'messages' to ask; {found}, or pass "
        "prepare_messages"
    )


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
    raise InvalidInput(f"{where}: a message is a dict with role and content, got {value!r}")


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
