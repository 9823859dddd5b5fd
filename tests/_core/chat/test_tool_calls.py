"""Tool calls as models write them, read back."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heldout._core.chat.tool_calls import call_id, next_call_number, parse_tool_calls
from heldout.types import Message, ToolCall, ToolSpec
from tests._core.chat.conventions import (
    EVERY,
    IN_JSON,
    IN_TAGS,
    WITH_TEXT_BEFORE,
    babble,
    glm,
    llama,
    names,
    qwen_coder,
    values,
)

# Any text as a value, markers above all: in JSON they are data.
# --- Round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", IN_JSON)
@settings(max_examples=25)
@given(name=names, arguments=st.dictionaries(st.text() | babble, values, max_size=4))
def test_a_call_in_json_is_read_as_it_was_meant(
    convention: str, name: str, arguments: dict[str, Any]
) -> None:
    content, calls = parse_tool_calls(IN_JSON[convention](name, arguments))
    assert [(call.id, call.name) for call in calls] == [("call00000", name)]
    assert json.loads(calls[0].arguments) == arguments
    assert content == ""


TAGS = re.compile(r"</?(?:parameter|function|arg_|tool_call|think|reasoning)", re.IGNORECASE)
TYPES = {str: "string", int: "integer", bool: "boolean", type(None): "null", list: "array"}


@pytest.mark.parametrize("convention", IN_TAGS)
@given(
    name=names,
    arguments=st.dictionaries(
        names,
        st.text().filter(lambda text: not TAGS.search(text))
        | st.sampled_from(["5", "true", "null", "[1]", "\n\nx\n", ""])
        | st.integers()
        | st.booleans()
        | st.none()
        | st.lists(st.integers()),
        max_size=4,
    ),
)
def test_a_call_in_tags_is_read_by_the_types_of_its_tool(
    convention: str, name: str, arguments: dict[str, Any]
) -> None:
    properties = {key: {"type": TYPES[type(value)]} for key, value in arguments.items()}
    tools = [ToolSpec(name, "", {"type": "object", "properties": properties})]
    content, calls = parse_tool_calls(IN_TAGS[convention](name, arguments), tools=tools)
    assert [call.name for call in calls] == [name]
    assert json.loads(calls[0].arguments) == arguments
    assert content == ""


def test_text_before_a_call_and_calls_after_it_are_told_apart() -> None:
    for convention in WITH_TEXT_BEFORE:
        write = EVERY[convention]
        text = f"Let me see.\n{write('add', {'x': 1})}\n{write('now', {})}"
        content, calls = parse_tool_calls(text, 7)
        assert content == "Let me see.", convention
        assert calls == (
            ToolCall("call00007", "add", '{"x": 1}'),
            ToolCall("call00008", "now", "{}"),
        ), convention


@pytest.mark.parametrize("convention", EVERY)
def test_a_last_call_may_end_with_the_text_but_is_not_run_with_half_of_a_value(
    convention: str,
) -> None:
    whole = EVERY[convention]("send", {"text": "all of it"})
    unclosed = re.sub(
        r"\s*(</function>\s*</tool_call>|</tool_call>|</function>|<\|/tool_call\|>|<\|call\|>|"
        r"(\n```)?<｜tool▁call▁end｜>.*|<\|tool_call_end\|>.*|```)\Z",
        "",
        whole,
        flags=re.DOTALL,
    )
    [call] = parse_tool_calls(unclosed)[1]
    assert (call.name, json.loads(call.arguments)) == ("send", {"text": "all of it"})
    content, [call] = parse_tool_calls(whole[: whole.index("of it")])
    assert (content, call.name) == ("", "send")
    with pytest.raises(ValueError):
        json.loads(call.arguments)
    assert "all" in call.arguments


# --- What is a call and what is not -------------------------------------------------------------


def parsed(text: str) -> tuple[str, list[tuple[str, str]]]:
    content, calls = parse_tool_calls(text)
    return content, [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize(
    "text",
    [
        "Paris.",
        "",
        '{"answer": 4}',
        '{"name": "Ada", "born": 1815}',
        'Call it with {"name": "f", "parameters": {}} if you like.',
        '{"name": "f", "parameters": {}} is how a call looks.',
        'The result:\n```json\n{"name": "f", "arguments": {}}\n```',
        "if x < 3 and y[TOOL] > 2: send(to=functions.f)",
        "to=functions.f {}",
        "<tool_response>4</tool_response>",
        "a ```tool_call``` b",
    ],
)
def test_ordinary_text_is_no_call(text: str) -> None:
    assert parse_tool_calls(text) == (text, ())


CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"<think>{CALL}</think>done", None),
        (f"<Thinking>{CALL}</thinking> ok", None),
        (f"{CALL} so I thought</think>done", None),
        ("I could use <tool_call> here</think>fine", None),
        (f"<|channel|>analysis<|message|>{CALL}<|end|>", None),
        (f"<think>draft {CALL}</think>{CALL}", f"<think>draft {CALL}</think>"),
        (f"draft {CALL}</think>{CALL}", f"draft {CALL}</think>"),
        (
            f"<think>a</think>b{CALL}c<think>{CALL}</think>",
            f"<think>a</think>bc<think>{CALL}</think>",
        ),
    ],
)
def test_calls_in_reasoning_do_not_count(text: str, content: str | None) -> None:
    if content is None:
        assert parse_tool_calls(text) == (text, ())
    else:
        assert parsed(text) == (content, [("f", "{}")])


def test_reasoning_before_a_reply_that_is_a_call_stays_in_the_content() -> None:
    text = '<think>hm {</think>\n\n{"name": "f", "parameters": {"x": 1}}'
    assert parsed(text) == ("<think>hm {</think>", [("f", '{"x": 1}')])


@pytest.mark.parametrize(
    ("written", "name", "arguments"),
    [
        ('{"name": "f", "arguments": {"x": 1}}}', "f", None),  # one bracket too many
        ('{"name": "f", "arguments": {x: 1}}', "f", None),
        ('{"name": "f", "arguments": {"x": NaN}}', "f", None),
        ('{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}", "f", None),
        ('{"name": "f", "x": 1}', "f", None),
        ('{"tool": "f"}', "", None),
        ("", "", None),
        ("[[1]]", "", "[1]"),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', "f", '{"x": 1}'),
        ('{"name": "f", "arguments": "x is 1"}', "f", "x is 1"),
        ('{"name": "f", "arguments": null}', "f", "{}"),
        ('{"name": "f", "parameters": {"x": 1}}', "f", '{"x": 1}'),
        ('{"type": "function", "function": {"name": "f", "arguments": {}}}', "f", "{}"),
        ('{"name": "f", "arguments": {"x": "\\ud83d"}}', "f", '{"x": "\\ud83d"}'),
        ('{"name": "\\ud83d", "arguments": {}}', "?", "{}"),
    ],
)
def test_what_is_between_the_markers_is_a_call_whatever_it_is(
    written: str, name: str, arguments: str | None
) -> None:
    content, calls = parse_tool_calls(f"So: <tool_call>{written}</tool_call>{CALL}.")
    assert content == "So: ."
    assert calls[0] == ToolCall("call00000", name, written if arguments is None else arguments)
    assert calls[1] == ToolCall("call00001", "f", "{}")
    msgspec.json.encode(calls)  # can be stored


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<|python_tag|>print(4)", [("", "print(4)")]),
        ("<|python_tag|>", [("", "")]),
        (f"<|python_tag|>{llama('f', {})}; {llama('g', {})}", [("f", "{}"), ("g", "{}")]),
        (f"{llama('f', {})}; {llama('g', {})}", [("f", "{}"), ("g", "{}")]),
        ('{"name": "f", "parameters": {"x": }}', [("f", '{"name": "f", "parameters": {"x": }}')]),
        ("[TOOL_CALLS]f[ARGS]{x}", [("f", "{x}")]),
        ("[TOOL_CALLS]f", [("", "f")]),
        ("<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜>", [("", "f{}")]),
        ("<function=f><parameter=x>1</function>", [("f", "<function=f><parameter=x>1")]),
        ("<function=f", [("", "<function=f")]),
        (
            "<function=f><parameter=x>1</function><function=g><parameter=y>2</parameter></function>",
            [("f", "<function=f><parameter=x>1"), ("g", '{"y": 2}')],
        ),
        ("<tool_call>f<arg_key>x</arg_key></tool_call>", [("f", "f<arg_key>x</arg_key>")]),
        ("<tool_call>f</tool_call>", [("f", "{}")]),
        ("<tool_call>f", [("", "f")]),
    ],
)
def test_other_conventions_keep_what_is_broken_too(text: str, calls: list[Any]) -> None:
    assert parsed(text) == ("", calls)


def test_without_a_schema_a_value_in_tags_is_json_if_it_can_be() -> None:
    arguments = {"a": 5, "b": [1], "c": "five", "d": '"quoted"', "e": None}
    written = {**arguments, "f": "True", "g": "None"}
    [call] = parse_tool_calls(qwen_coder("f", written))[1]
    assert json.loads(call.arguments) == {**arguments, "f": True, "g": None}


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"type": "number"}, "much", "much"),
        ({"type": 4, "anyOf": 4}, "5", 5),
        (True, "5", 5),
    ],
)
def test_the_schema_says_what_is_text(schema: Any, written: str, value: Any) -> None:
    tools = [ToolSpec("f", "", {"type": "object", "properties": {"x": schema}})]
    [call] = parse_tool_calls(glm("f", {"x": written}), tools=tools)[1]
    assert json.loads(call.arguments) == {"x": value}


# --- Whatever a model babbles -------------------------------------------------------------------


@given(text=babble | st.text())
@example(text="<tool_call>" + "[" * 100_000)
@example(text='<tool_call>{"name": "f", "arguments": ' + "[" * 100_000)
@example(text='{"name": "f", "parameters": ' + '{"a":' * 5000)
def test_no_text_is_too_much_and_no_call_is_empty_of_an_id(text: str) -> None:
    content, calls = parse_tool_calls(text, 3)
    assert [call.id for call in calls] == [f"call{3 + i:05d}" for i in range(len(calls))]
    if not calls:
        assert content == text


@given(text=babble)
def test_a_call_behind_any_babble_is_not_lost(text: str) -> None:
    """It is read, or it is part of what could not be read, or of reasoning, and so still there."""
    content, calls = parse_tool_calls(f'{text}\n<tool_call>{{"name": "needle"}}</tool_call>')
    everything = content + "".join(f"{call.name} {call.arguments}" for call in calls)
    assert "needle" in everything


UNITS = (
    *("<tool_call>", "<tool_call>a ", '<tool_call>{"name": "', '<tool_call>{"a":['),
    *('<tool_call>{":":"x","', "<tool_call>f<arg_key>x</arg_key><arg_value>", "<function="),
    *("<function=f>", "<function=f><parameter=x>", "[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{"),
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{",
    "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{",
    *("to=functions.f", "to=functions.f<|channel|>x", "to=functions.f<|message|>{"),
    *("<|python_tag|>{", "<|tool_call|>[", "```tool_call\n", "<think>", "</think>"),
    *('{"name": "f", "parameters": {', "x", " "),
)


def test_the_time_for_a_long_reply_is_bounded() -> None:
    for unit in UNITS:
        started = time.process_time()
        parse_tool_calls(unit * (100_000 // len(unit)))
        assert time.process_time() - started < 5, unit


# --- Ids ----------------------------------------------------------------------------------------


def test_ids_are_nine_letters_and_digits_and_differ() -> None:
    numbers = [0, 1, 99_999, 100_000, 123_456, 999_999]
    ids = [call_id(number) for number in numbers]
    assert all(re.fullmatch(r"[a-zA-Z0-9]{9}", i) for i in ids)
    assert len(set(ids)) == len(numbers)


def test_numbering_goes_on_behind_the_ids_that_are_there() -> None:
    def turn(*ids: str) -> Message:
        return Message("assistant", "", tool_calls=tuple(ToolCall(i, "f") for i in ids))

    assert next_call_number([]) == 0
    assert next_call_number([turn("toolu_1", "call_7")]) == 0
    assert next_call_number([turn("call00004"), turn("call00002", "x")]) == 5
