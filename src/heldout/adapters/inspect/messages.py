"""Messages, tools and model turns: Inspect's as heldout's, and the other way round."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessageAssistant,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.tool import ToolCall as InspectToolCall

from heldout._finish_reasons import LENGTH, TOOL_CALLS
from heldout._reasoning import without_reasoning
from heldout.errors import EnvironmentFailed
from heldout.types import Completion, Message, ToolCall, ToolSpec

_STOP_REASONS = {LENGTH: "max_tokens", TOOL_CALLS: "tool_calls", "content_filter": "content_filter"}


def to_heldout_messages(messages: Iterable[Any]) -> list[Message]:
    """Convert Inspect's chat messages.

    Raises:
        EnvironmentFailed: One has content other than text, images and reasoning.
    """
    return [_to_heldout_message(message) for message in messages]


def _to_heldout_message(message: Any) -> Message:
    content, reasoning = _to_content(message.content)
    if message.role == "tool" and message.error is not None:
        content = f"Error: {message.error.message}"  # as Inspect's own providers send it
    calls = tuple(
        ToolCall(call.id, call.function, json.dumps(call.arguments))
        for call in getattr(message, "tool_calls", None) or ()
    )
    call_id = getattr(message, "tool_call_id", None)
    return Message(message.role, content, calls, call_id, reasoning)


def _to_content(content: Any) -> tuple[str | list[dict[str, Any]], str | None]:
    """Return the content as a chat API has it, and the reasoning in it."""
    if isinstance(content, str):
        return content, None
    parts: list[dict[str, Any]] = []
    reasoning = [part.reasoning for part in content if part.type == "reasoning"]
    for part in content:
        if part.type == "text":
            parts.append({"type": "text", "text": part.text})
        elif part.type == "image":
            image = {"url": part.image, "detail": part.detail}
            parts.append({"type": "image_url", "image_url": image})
        elif part.type != "reasoning":
            raise EnvironmentFailed(
                f"a message has {part.type!r} content; heldout's messages are text and images"
            )
    joined = "\n".join(reasoning) or None
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts), joined
    return parts, joined


def to_tool_specs(tools: Sequence[Any]) -> list[ToolSpec]:
    """Convert Inspect's tool descriptions."""
    return [
        ToolSpec(
            tool.name,
            tool.description,
            tool.parameters.model_dump(mode="json", by_alias=True, exclude_none=True),
        )
        for tool in tools
    ]


def to_model_output(completion: Completion, model: str, text: str) -> Any:
    """Convert a policy's turn to Inspect's model output.

    Args:
        completion: The turn.
        model: The name that the output bears.
        text: Its text, cut where the task asked for it.
    """
    message = completion.message
    answer, reasoning = without_reasoning(text), message.reasoning
    if reasoning is None and answer != text.strip():
        reasoning = text.removesuffix(answer).strip()
    elif answer == text.strip():
        answer = text  # as written, white space included
    content: Any = answer
    if reasoning:
        content = [ContentReasoning(reasoning=reasoning), ContentText(text=answer)]
    turn = ChatMessageAssistant(
        content=content,
        tool_calls=[_to_tool_call(call) for call in message.tool_calls] or None,
        model=model,
        source="generate",
    )
    finish = completion.finish_reason or (TOOL_CALLS if message.tool_calls else "stop")
    usage = completion.usage
    return ModelOutput(
        model=model,
        choices=[ChatCompletionChoice(message=turn, stop_reason=_STOP_REASONS.get(finish, "stop"))],
        usage=usage
        and ModelUsage(
            input_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
        ),
    )


def _to_tool_call(call: ToolCall) -> Any:
    """Convert a tool call; Inspect tells the model what is wrong with arguments it cannot read."""
    try:
        arguments = json.loads(call.arguments)
        problem = None if isinstance(arguments, dict) else "its arguments are not a JSON object"
    except ValueError as error:
        arguments, problem = {}, f"its arguments are not JSON: {error}"
    return InspectToolCall(
        id=call.id,
        function=call.name,
        arguments=arguments if problem is None else {},
        parse_error=problem and f"Error parsing the call of {call.name}: {problem}",
    )
