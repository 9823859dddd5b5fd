"""What chat templates are told of tools."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from heldout._core.chat.messages import tool_to_chat_api
from heldout._core.chat.tool_calls import parse_tool_calls
from heldout._live.rendering.chat_templates import Dialect, describe_tools, write_tool_call
from heldout._live.rendering.segments import refusal
from heldout.types import Message, ToolCall, ToolSpec
from tests._core.chat.conventions import dumps, names, values

# --- Telling a model ----------------------------------------------------------------------------

ADD = ToolSpec("add", "Adds, é.", {"type": "object", "properties": {"x": {"type": "integer"}}})


def test_the_description_holds_every_tool_and_asks_for_what_is_read() -> None:
    text = describe_tools([ADD, ToolSpec("now")])
    [listed] = re.findall(r"<tools>\n(.*)\n</tools>", text, re.DOTALL)
    described = [json.loads(line)["function"] for line in listed.splitlines()]
    assert [tool["name"] for tool in described] == ["add", "now"]
    assert described[0]["description"] == "Adds, é."
    assert described[0]["parameters"] == ADD.parameters
    assert '<tool_call>\n{"name": ' in text


@given(name=names, arguments=st.dictionaries(st.text(), values, max_size=3))
def test_a_call_that_is_written_is_read_again(name: str, arguments: dict[str, Any]) -> None:
    call = ToolCall("call00000", name, dumps(arguments))
    [read] = parse_tool_calls(write_tool_call(call))[1]
    assert (read.name, json.loads(read.arguments)) == (name, arguments)


def test_a_broken_call_is_written_as_the_model_had_it() -> None:
    broken = '{"name": "add", "arguments": {"x": }}'
    assert write_tool_call(ToolCall("a", "add", broken)) == f"<tool_call>\n{broken}\n</tool_call>"
    written = write_tool_call(ToolCall("a", "add", "x is 1"))
    assert written == '<tool_call>\n{"name": "add", "arguments": x is 1}\n</tool_call>'


# --- Templates ----------------------------------------------------------------------------------

CONVERSATION = [
    Message("system", "Be brief."),
    Message("user", "1 + 1?"),
    Message("assistant", "Well.", tool_calls=(ToolCall("call00000", "add", '{"x": 1}'),)),
    Message("tool", "two", tool_call_id="call00000"),
    Message("tool", "2", tool_call_id="call00001"),
    Message("user", "And?"),
]


def detect(template: Any) -> Dialect:
    def apply(messages: list[dict[str, Any]], tools: Any) -> str:
        try:
            return str(template(messages, tools))
        except (ValueError, TypeError) as error:
            raise refusal(error) from error

    return Dialect.detect(apply)


def plain(messages: list[dict[str, Any]], tools: Any) -> str:
    """A template that knows three roles and text."""
    for message in messages:
        if message["role"] not in ("system", "user", "assistant"):
            raise ValueError("no such role")
    return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def alternating(messages: list[dict[str, Any]], tools: Any) -> str:
    """Gemma's way: no system role, and user and assistant take turns."""
    for i, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[i % 2]:
            raise ValueError("roles must alternate")
    return plain(messages, tools)


def native(messages: list[dict[str, Any]], tools: Any) -> str:
    """Takes all of it, and calls with their arguments as mappings."""
    text = json.dumps(tools)
    for message in messages:
        text += f"<{message['role']}>{message['content']}"
        for call in message.get("tool_calls", ()):
            pairs = call["function"]["arguments"].items()
            text += call["function"]["name"] + "".join(f"{k}={v}" for k, v in pairs)
    return text


def native_text(messages: list[dict[str, Any]], tools: Any) -> str:
    """DeepSeek's way: arguments are joined to other text."""
    text = json.dumps(tools)
    for message in messages:
        text += "<" + message["role"] + ">" + message["content"]
        for call in message.get("tool_calls", ()):
            text += call["function"]["name"] + call["function"]["arguments"]
    return text


def forgetful(messages: list[dict[str, Any]], tools: Any) -> str:
    """Lists the tools and drops what tools return, as some templates do."""
    return native([m for m in messages if m["role"] != "tool"], tools)


def any_role(messages: list[dict[str, Any]], tools: Any) -> str:
    """ChatML's way: a role is a word like any other. Tools are none of its business."""
    if tools:
        raise ValueError("no tools")
    return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def tailored(messages: list[dict[str, Any]], tools: Any) -> str:
    """Made for one tool, which it does not have to be told of."""
    return ("<tools>add" if tools else "") + any_role(messages, None)


def unlisted(messages: list[dict[str, Any]], tools: Any) -> str:
    """Knows calls and results, but does not list the tools."""
    return native_text(messages, None)


def test_what_a_template_takes_is_found_by_trying() -> None:
    assert detect(plain) == Dialect(False, "written", False, True)
    assert detect(alternating) == Dialect(False, "written", False, False)
    assert detect(native) == Dialect(True, "mapping", True, True)
    assert detect(native_text) == Dialect(True, "text", True, True)
    assert detect(forgetful) == Dialect(True, "mapping", False, True)
    assert detect(any_role) == Dialect(False, "written", False, True)
    assert detect(unlisted) == Dialect(False, "text", True, True)
    assert detect(tailored) == Dialect(True, "written", True, True)


def test_it_says_what_is_written_as_text() -> None:
    assert detect(native).as_text == ()
    assert detect(forgetful).as_text == ("results",)
    assert detect(plain).as_text == ("tools", "calls", "results")
    assert detect(unlisted).as_text == ("tools", "calls", "results")
    assert Dialect(True, "written", True, True).as_text == ("calls",)


def test_where_tools_are_described_calls_and_results_are_as_was_asked_for() -> None:
    dialect = detect(unlisted)
    assert dialect.convert(CONVERSATION, [ADD]) == detect(plain).convert(CONVERSATION, [ADD])
    # If others have described them, they may have asked for what the template does.
    told = dialect.convert(CONVERSATION, ())
    assert told[2]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert told[3]["role"] == "tool"


def test_tools_are_given_where_the_template_lists_them_and_there_are_any() -> None:
    assert detect(native).convert_tools([ADD]) == [tool_to_chat_api(ADD)]
    assert detect(native).convert_tools([]) is None
    assert detect(plain).convert_tools([ADD]) is None


def test_a_native_conversation_is_told_natively() -> None:
    told = detect(native).convert(CONVERSATION, [ADD])
    assert [body["role"] for body in told] == [m.role for m in CONVERSATION]
    assert told[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"x": 1}}
    assert (told[3]["content"], told[3]["name"]) == ("two", "add")
    assert "name" not in told[4]
    assert detect(native_text).convert(CONVERSATION, [ADD])[2]["tool_calls"][0]["function"] == {
        "name": "add",
        "arguments": '{"x": 1}',
    }


def test_arguments_that_are_no_object_stay_as_they_were_written() -> None:
    for written in ("{x}", "[1]", "4", ""):
        turn = Message("assistant", "", tool_calls=(ToolCall("a", "f", written),))
        [body] = detect(native).convert([turn], ())
        assert body["tool_calls"][0]["function"]["arguments"] == written


def test_reasoning_is_told_under_the_names_templates_know() -> None:
    [body] = detect(native).convert([Message("assistant", "4", reasoning="2 + 2")], ())
    assert body["reasoning_content"] == body["thinking"] == "2 + 2"


def test_what_a_template_does_not_take_is_written_into_the_messages() -> None:
    told = detect(plain).convert(CONVERSATION, [ADD])
    assert told == [
        {"role": "system", "content": f"Be brief.\n\n{describe_tools([ADD])}"},
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": 'Well.\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\ntwo\n</tool_response>\n"
            "<tool_response>\n2\n</tool_response>\nAnd?",
        },
    ]
    plain(told, None)


def test_without_a_system_role_the_tools_stand_before_the_question() -> None:
    dialect = detect(alternating)
    told = dialect.convert(CONVERSATION[1:], [ADD])
    assert told[0]["content"] == f"{describe_tools([ADD])}\n\n1 + 1?"
    alternating(told, None)
    [only] = dialect.convert([Message("assistant", "x")], [ADD])[:1]
    assert only == {"role": "user", "content": describe_tools([ADD])}


def test_a_system_message_is_made_where_there_is_none_and_parts_stay_parts() -> None:
    dialect = detect(plain)
    assert dialect.convert([Message("user", "x")], [ADD])[0] == {
        "role": "system",
        "content": describe_tools([ADD]),
    }
    parts = [{"type": "text", "text": "Be brief."}]
    [system] = dialect.convert([Message("system", parts)], [ADD])
    assert [part["text"] for part in system["content"]] == [
        "Be brief.",
        f"\n\n{describe_tools([ADD])}",
    ]
    assert parts == [{"type": "text", "text": "Be brief."}]


def test_without_tools_nothing_is_described() -> None:
    assert detect(plain).convert([Message("user", "x")], ()) == [{"role": "user", "content": "x"}]
