"""Messages of theirs and of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from heldout.chat import message_of, to_chat_api
from heldout.types import (
    Message,
)


def normalized(messages: Any) -> list[Any]:
    """What an environment returned, raw dicts included, as verifiers' message objects."""
    normalize: Callable[[Any], list[Any]] = import_module(
        "verifiers.utils.message_utils"
    ).normalize_messages
    return normalize(messages)


def ours(messages: Iterable[Any]) -> tuple[Message, ...]:
    return tuple(_message(message) for message in messages)


def _message(message: Any) -> Message:
    content = message.content
    if isinstance(content, list):
        content = [p if isinstance(p, dict) else p.model_dump(exclude_none=True) for p in content]
    calls = message.get("tool_calls") or ()
    body = {
        # A prompt that is a plain text has a role of its own there.
        "role": "user" if message.role == "text" else message.role,
        "content": content,
        "tool_calls": [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in calls],
        "tool_call_id": message.get("tool_call_id"),
        "reasoning_content": message.get("reasoning_content"),
    }
    return message_of(body, "a message of the verifiers environment")


def theirs(messages: Iterable[Message]) -> list[Any]:
    return normalized(
        [
            {**to_chat_api(m), "reasoning_content": m.reasoning} if m.reasoning else to_chat_api(m)
            for m in messages
        ]
    )
