"""Messages and model turns between heldout and classic verifiers environments."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from heldout._core.chat.messages import message_of, to_chat_api
from heldout._finish_reasons import LENGTH, STOP, TOOL_CALLS
from heldout.types import Completion, Message


def normalize(messages: Any) -> list[Any]:
    """Turn what an environment returned, raw dicts included, into verifiers' message objects."""
    utils: Any = import_module("verifiers.utils.message_utils")
    return list(utils.normalize_messages(messages))


def to_heldout_messages(messages: Iterable[Any]) -> tuple[Message, ...]:
    """Convert verifiers' messages to heldout's."""
    return tuple(_to_heldout_message(message) for message in messages)


def _to_heldout_message(message: Any) -> Message:
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


def to_verifiers_messages(messages: Sequence[Message]) -> list[Any]:
    """Convert heldout's messages to verifiers'."""
    bodies = [to_chat_api(message) for message in messages]
    for body, message in zip(bodies, messages, strict=True):
        if message.reasoning:
            body["reasoning_content"] = message.reasoning
    return normalize(bodies)


def to_response(
    vf: Any, message: Message, completion: Completion | None, model: str, id: str
) -> Any:
    """Make a model turn what a verifiers client returns.

    Args:
        vf: The package.
        message: The turn.
        completion: What is known of it besides, where the policy says.
        model: The model's name.
        id: The response's.
    """
    finish = completion.finish_reason if completion else None
    usage = completion.usage if completion else None
    calls = [
        vf.ToolCall(id=call.id, name=call.name, arguments=call.arguments)
        for call in message.tool_calls
    ]
    return vf.Response(
        id=id,
        created=int(time.time()),
        model=model,
        usage=usage
        and vf.Usage(
            prompt_tokens=usage.prompt_tokens,
            reasoning_tokens=0,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        ),
        message=vf.ResponseMessage(
            # As verifiers' clients have it: a turn of nothing but calls has no content.
            content=None if calls and not message.content else message.content,
            reasoning_content=message.reasoning,
            tool_calls=calls or None,
            finish_reason=finish if finish in (STOP, LENGTH, TOOL_CALLS) else None,
            is_truncated=None if finish is None else finish == LENGTH,
        ),
    )
