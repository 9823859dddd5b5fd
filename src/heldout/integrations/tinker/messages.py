"""Messages of their renderers and of ours."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from heldout.errors import EndpointError, FatalEndpointError
from heldout.integrations.tinker.package import cookbook
from heldout.toolcalls import call_id, next_call_number
from heldout.types import ContentPart, Message, ToolCall, ToolSpec


def theirs(
    messages: Sequence[Message], tools: Sequence[ToolSpec], renderer: Any
) -> list[dict[str, Any]]:
    """The conversation as the renderer takes it, with the tools told of the way it does that."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    given = [_their_message(message, names) for message in messages]
    if not tools:
        return given
    system = ""
    if messages and messages[0].role == "system":
        system, given = messages[0].text, given[1:]
    specs = [
        {"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools
    ]
    try:
        told = renderer.create_conversation_prefix_with_tools(specs, system)
    except NotImplementedError:
        raise FatalEndpointError(
            f"{type(renderer).__name__} has no way to tell a model of tools, and the environment "
            "has some; take a renderer that does"
        ) from None
    return [*told, *given]


def _their_message(message: Message, names: dict[str, str]) -> dict[str, Any]:
    calls = [call for call in message.tool_calls if _is_readable(call)]
    # Renderers write only calls that are JSON. The others go back the way the model wrote them.
    unread = [call.arguments for call in message.tool_calls if not _is_readable(call)]
    text = message.text
    content: Any = message.content
    if not isinstance(content, str):
        content = [_their_part(part) for part in content]
    more = [{"type": "text", "text": written} for written in unread if written not in text]
    if message.reasoning or more:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        thought = [{"type": "thinking", "thinking": message.reasoning}] if message.reasoning else []
        content = [*thought, *parts, *more]
    body: dict[str, Any] = {"role": message.role, "content": content}
    if calls:
        call_type = cookbook("renderers").ToolCall
        body["tool_calls"] = [
            call_type(
                id=call.id,
                function=call_type.FunctionBody(name=call.name, arguments=call.arguments),
            )
            for call in calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
        if names.get(message.tool_call_id):
            body["name"] = names[message.tool_call_id]
    return body


def _is_readable(call: ToolCall) -> bool:
    try:
        json.loads(call.arguments)
    except (ValueError, RecursionError):
        return False
    return bool(call.name)


def _their_part(part: ContentPart) -> dict[str, Any]:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") == "image_url":
        image = part["image_url"]
        return {"type": "image", "image": image["url"] if isinstance(image, dict) else image}
    raise EndpointError(f"renderers take parts of text and images, got {part.get('type')!r}")


def ours(parsed: Any, before: Sequence[Message]) -> Message:
    """What a renderer has read out of the sampled tokens."""
    content = parsed["content"]
    reasoning = None
    if not isinstance(content, str):
        thoughts = [p["thinking"] for p in content if p.get("type") == "thinking"]
        reasoning = "".join(thoughts) if thoughts else None
        content = "".join(p["text"] for p in content if p.get("type") == "text")
    first = next_call_number(before)
    written = [(c.function.name, c.function.arguments) for c in parsed.get("tool_calls") or ()]
    # A call that cannot be read is a call all the same: whoever runs it says what was wrong.
    written += [("", c.raw_text) for c in parsed.get("unparsed_tool_calls") or ()]
    # Ids of our own: renderers leave them out, or begin anew with every turn.
    calls = tuple(ToolCall(call_id(first + i), *call) for i, call in enumerate(written))
    return Message("assistant", content, tool_calls=calls, reasoning=reasoning)
