"""What a chat template can be told of tools, found out by trying, and what is written instead."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from heldout.chat import to_chat_api, tool_to_chat_api
from heldout.toolcalls import BROKEN, call_id, loaded
from heldout.types import Message, ToolCall, ToolSpec


def describe_tools(tools: Sequence[ToolSpec]) -> str:
    """What to tell a model whose chat template is not told of tools: the Hermes convention."""
    described = "\n".join(json.dumps(tool_to_chat_api(t), ensure_ascii=False) for t in tools)
    return (
        "# Tools\n\nThese functions are at your service, one a line, each with the JSON schema of "
        f"its arguments:\n<tools>\n{described}\n</tools>\n\n"
        "To call one, write a JSON object with its name and its arguments between <tool_call> and "
        "</tool_call>, once for every call:\n"
        '<tool_call>\n{"name": "the function", "arguments": {"an argument": "its value"}}\n'
        "</tool_call>\nWhat it returns comes back between <tool_response> and </tool_response>."
    )


def write_tool_call(call: ToolCall) -> str:
    """A call in the convention that `describe_tools` asks for, a broken one as it was written."""
    named = (
        f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {call.arguments}}}'
    )
    broken = loaded(call.arguments) is BROKEN and call.name in call.arguments
    return f"<tool_call>\n{call.arguments if broken else named}\n</tool_call>"


def write_tool_response(text: str) -> str:
    return f"<tool_response>\n{text}\n</tool_response>"


Render = Callable[[list[dict[str, Any]], list[dict[str, Any]] | None], str]
"""A chat template: messages and tools in chat-API form, or None for no tools, in; the text out."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a chat template can be told of tools. `Dialect.of` finds out by trying.

    What it cannot be told is written into the messages instead: the tools into the system
    message, calls into the model's own text, what a tool returned into a user message. Where the
    tools have to be written, so have the others: they are in the convention that was asked for.
    """

    tools: bool
    calls: Literal["mapping", "text", "written"]
    """How it takes the arguments of a call, if it takes calls at all."""
    results: bool
    system: bool

    @classmethod
    def of(cls, render: Render) -> Dialect:
        schema = {"type": "object", "properties": {"probe_x": {"type": "string"}}}
        probe = [tool_to_chat_api(ToolSpec("probe_tool", "A probe.", schema))]
        user = {"role": "user", "content": "probe_question"}
        result = {"role": "tool", "content": "probe_result", "tool_call_id": call_id(0)}

        def rendered(
            messages: list[dict[str, Any]], given: list[dict[str, Any]] | None
        ) -> str | None:
            try:
                return render(messages, given)
            except Exception:  # noqa: BLE001 - templates raise what they like
                return None

        # It need not name the tool: a template may be made for the tools it has.
        with_tools = rendered([user], probe)
        tools = with_tools is not None and with_tools != rendered([user], None)

        def shows(messages: list[dict[str, Any]], *words: str) -> bool:
            text = rendered(messages, probe if tools else None)
            return text is not None and all(word in text for word in words)

        system = shows([{"role": "system", "content": "probe_system"}, user], "probe_system")
        arguments = {"probe_key": "probe_value"}
        # Most templates want a call's arguments as a dict; DeepSeek's put them into a string.
        forms: list[tuple[Literal["mapping", "text"], Any]] = [
            ("mapping", arguments),
            ("text", json.dumps(arguments)),
        ]
        for calls, value in forms:
            function = {"name": "probe_call", "arguments": value}
            call = {"id": call_id(0), "type": "function", "function": function}
            turn = {"role": "assistant", "content": "", "tool_calls": [call]}
            said = ("probe_call", "probe_key", "probe_value")
            if shows([user, turn, result], *said, "probe_result"):
                return cls(tools, calls, True, system)
            if shows([user, turn], *said):
                return cls(tools, calls, False, system)
        turn = {"role": "assistant", "content": "probe_text"}
        # A template that knows neither tools nor calls shows a tool's words only as it would
        # those of any role, and its model has never seen that one.
        results = tools and shows([user, turn, result], "probe_result")
        return cls(tools, "written", results, system)

    def written(self) -> Dialect:
        """The same with nothing but text in the conversation."""
        return replace(self, calls="written", results=False)

    @property
    def as_text(self) -> tuple[str, ...]:
        """What the template is not told, where tools are given: of tools, calls and results."""
        return (
            *([] if self.tools else ["tools"]),
            *(["calls"] if not self.tools or self.calls == "written" else []),
            *([] if self.tools and self.results else ["results"]),
        )

    def given(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        """The tools as the template is given them beside the messages."""
        # Llama's templates explain how to call tools even for an empty list.
        return [tool_to_chat_api(tool) for tool in tools] or None if self.tools else None

    def told(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
        """The conversation as this template can be told it."""
        if tools and not self.tools and self != self.written():
            return self.written().told(messages, tools)
        told: list[dict[str, Any]] = []
        names = {call.id: call.name for message in messages for call in message.tool_calls}
        after_result = False
        for message in messages:
            result = message.role == "tool"
            body = self._body(message, names)
            joins = not self.results and after_result and body["role"] == "user"
            if joins and isinstance(body["content"], str):
                # Many templates insist that user and assistant take turns.
                told[-1] = {**told[-1], "content": f"{told[-1]['content']}\n{body['content']}"}
            else:
                told.append(body)
            after_result = result and not self.results
        if tools and not self.tools:
            _prepend(told, describe_tools(tools), system=self.system)
        return told

    def _body(self, message: Message, names: Mapping[str, str]) -> dict[str, Any]:
        body = to_chat_api(message)
        if message.reasoning is not None:
            # Two names for one thing: Qwen's, GLM's and NVIDIA's, and OpenAI's and Liquid's.
            body["reasoning_content"] = body["thinking"] = message.reasoning
        if message.role == "tool":
            if not self.results:
                return {"role": "user", "content": write_tool_response(message.text)}
            if name := names.get(message.tool_call_id or ""):
                body["name"] = name
        if message.tool_calls and self.calls == "written":
            del body["tool_calls"]
            calls = "\n".join(write_tool_call(call) for call in message.tool_calls)
            body["content"] = f"{message.text}\n{calls}".strip()
        elif message.tool_calls and self.calls == "mapping":
            for call in body["tool_calls"]:
                arguments = loaded(call["function"]["arguments"])
                if isinstance(arguments, dict):
                    call["function"]["arguments"] = arguments
        return body


def _prepend(told: list[dict[str, Any]], text: str, *, system: bool) -> None:
    """Adds text to the system message, or before what the user says first."""
    role = "system" if system else "user"
    place = next((i for i, body in enumerate(told) if body["role"] == role), None)
    if place is None or (system and place != 0):
        told.insert(0, {"role": role, "content": text})
        return
    content = told[place]["content"]
    given = [{"type": "text", "text": content}] if isinstance(content, str) else [*content]
    added = {"type": "text", "text": f"\n\n{text}" if system else f"{text}\n\n"}
    parts = [*given, added] if system else [added, *given]
    if isinstance(content, str):
        told[place] = {**told[place], "content": "".join(part["text"] for part in parts)}
    else:
        told[place] = {**told[place], "content": parts}
