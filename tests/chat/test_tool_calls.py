"""Tool calls as models write them, read back."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heldout.chat.tool_calls import call_id, next_call_number, parse_tool_calls
from heldout.types import Message, ToolCall, ToolSpec

Arguments = Mapping[str, Any]


# --- How each family writes a call --------------------------------------------------------------


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def shown(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def hermes(name: str, arguments: Arguments) -> str:
    return f"<tool_call>\n{dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def qwen_coder(name: str, arguments: Arguments) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{shown(value)}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def glm(name: str, arguments: Arguments) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{shown(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


def llama(name: str, arguments: Arguments) -> str:
    return dumps({"name": name, "parameters": arguments})


def llama_python_tag(name: str, arguments: Arguments) -> str:
    return f"<|python_tag|>{llama(name, arguments)}"


def llama_function(name: str, arguments: Arguments) -> str:
    return f"<function={name}>{dumps(arguments)}</function>"


def mistral(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS] {dumps([{'name': name, 'arguments': arguments, 'id': 'abcdefghi'}])}"


def mistral_arguments(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS]{name}[CALL_ID]abcdefghi[ARGS]{dumps(arguments)}"


def mistral_bare(name: str, arguments: Arguments) -> str:
    return f"[TOOL_CALLS]{name}{dumps(arguments)}"


def deepseek(name: str, arguments: Arguments) -> str:
    return (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        f"{name}\n```json\n{dumps(arguments)}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def deepseek_3_1(name: str, arguments: Arguments) -> str:
    return (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(arguments)}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def kimi(name: str, arguments: Arguments) -> str:
    return (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0"
        f"<|tool_call_argument_begin|>{dumps(arguments)}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    )


def harmony(name: str, arguments: Arguments) -> str:
    head = f"<|start|>assistant to=functions.{name}<|channel|>commentary json<|message|>"
    return f"{head}{dumps(arguments)}<|call|>"


def harmony_constrained(name: str, arguments: Arguments) -> str:
    head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{head}{dumps(arguments)}<|call|>"


def phi(name: str, arguments: Arguments) -> str:
    return f"<|tool_call|>{dumps([{'name': name, 'arguments': arguments}])}<|/tool_call|>"


def fenced(name: str, arguments: Arguments) -> str:
    return f"```tool_call\n{dumps({'name': name, 'arguments': arguments})}\n```"


IN_JSON: dict[str, Callable[[str, Arguments], str]] = {
    f.__name__: f
    for f in (
        hermes, llama, llama_python_tag, llama_function, mistral, mistral_arguments, mistral_bare,
        deepseek, deepseek_3_1, kimi, harmony, harmony_constrained, phi, fenced,
    )
}  # fmt: skip
IN_TAGS = {f.__name__: f for f in (qwen_coder, glm)}
EVERY = {**IN_JSON, **IN_TAGS}
WITH_TEXT_BEFORE = [name for name in EVERY if name != "llama"]

names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,20}", fullmatch=True)
MARKERS = [
    "<tool_call>", "</tool_call>", "<function=", "<function=f>", "</function>", "<parameter=x>",
    "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|python_tag|>",
    "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|call|>",
    "to=functions.f", "<|message|>", "<|channel|>analysis", "<|end|>", "<|tool_call|>",
    "<|/tool_call|>", "```", "```tool_call\n", "<think>", "</think>", "<THINKING>", "</thinking>",
    '{"name": "f", "parameters": {', '{"name": "f"', '"arguments":', "{", "}", "[", "]", '"',
    "\\", "\\ud800", ":", ",", ";", "\n", "name", "1e999", "NaN", "null",
]  # fmt: skip
babble = st.lists(st.one_of(st.sampled_from(MARKERS), st.text(max_size=8)), max_size=30).map(
    "".join
)
# Any text as a value, markers above all: in JSON they are data.
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text() | babble,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


# --- Round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize("convention", IN_JSON)
@settings(max_examples=40)
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


@pytest.mark.parametrize("convention", WITH_TEXT_BEFORE)
def test_text_before_a_call_and_calls_after_it_are_told_apart(convention: str) -> None:
    write = EVERY[convention]
    text = f"Let me see.\n{write('add', {'x': 1})}\n{write('now', {})}"
    content, calls = parse_tool_calls(text, 7)
    assert content == "Let me see."
    assert calls == (
        ToolCall("call00007", "add", '{"x": 1}'),
        ToolCall("call00008", "now", "{}"),
    )


@pytest.mark.parametrize("convention", EVERY)
def test_a_last_call_may_end_with_the_text(convention: str) -> None:
    whole = EVERY[convention]("add", {"x": 1})
    cut = re.sub(
        r"\s*(</function>\s*</tool_call>|</tool_call>|</function>|<\|/tool_call\|>|<\|call\|>|"
        r"(\n```)?<｜tool▁call▁end｜>.*|<\|tool_call_end\|>.*|```)\Z",
        "",
        whole,
        flags=re.DOTALL,
    )
    [call] = parse_tool_calls(cut)[1]
    assert (call.name, json.loads(call.arguments)) == ("add", {"x": 1})


@pytest.mark.parametrize("convention", EVERY)
def test_a_call_that_is_cut_off_in_a_value_is_broken_and_not_run_with_half_of_it(
    convention: str,
) -> None:
    whole = EVERY[convention]("send", {"text": "all of it"})
    cut = whole[: whole.index("of it")]
    content, [call] = parse_tool_calls(cut)
    assert call.name == "send"
    with pytest.raises(ValueError):
        json.loads(call.arguments)
    assert "all" in call.arguments
    assert content == ""


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
        '{"name": "Ada"}',
        'Call it with {"name": "f", "parameters": {}} if you like.',
        '{"name": "f", "parameters": {}} is how a call looks.',
        'The result:\n```json\n{"name": "f", "arguments": {}}\n```',
        "if x < 3 and y[TOOL] > 2: send(to=functions.f)",
        "to=functions.f {}",
        "[{}]",
        "<tool_response>4</tool_response>",
        "<tool_calls>",
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
        (f"<think>{CALL}", None),
        (f"<Thinking>{CALL}</thinking> ok", None),
        (f"{CALL} so I thought</think>done", None),
        ("<think>tags like <tool_call> are</think>fine", None),
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
        ('{"name": "f", "arguments": {"x": 1}', "f", None),
        ('{"name": "f", "arguments": {x: 1}}', "f", None),
        ('{"name": "f", "arguments": {"x": NaN}}', "f", None),
        ('{"name": "f", "arguments": {"x": ' + "1" * 5000 + "}}", "f", None),
        ('{"name": "f", "x": 1}', "f", None),
        ('{"tool": "f"}', "", None),
        ('{"name": 4}', "", None),
        ("f(x=1)", "", None),
        ("[]", "", None),
        ("", "", None),
        ("[[1]]", "", "[1]"),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', "f", '{"x": 1}'),
        ('{"name": "f", "arguments": "x is 1"}', "f", "x is 1"),
        ('{"name": "f", "arguments": null}', "f", "{}"),
        ('{"name": "f", "arguments": [1]}', "f", "[1]"),
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


UNITS = [
    "<tool_call>",
    "<tool_call>a ",
    '<tool_call>{"name": "',
    '<tool_call>{"a":[',
    '<tool_call>{":":"x","',
    "<tool_call>f<arg_key>x</arg_key><arg_value>",
    "<function=",
    "<function=f>",
    "<function=f><parameter=x>",
    "[TOOL_CALLS]",
    "[TOOL_CALLS]f[ARGS]{",
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{",
    "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{",
    "to=functions.f",
    "to=functions.f<|channel|>x",
    "to=functions.f<|message|>{",
    "<|python_tag|>{",
    "<|tool_call|>[",
    "```tool_call\n",
    "<think>",
    "</think>",
    '{"name": "f", "parameters": {',
    "x",
    " ",
]


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_for_a_long_reply_is_bounded(unit: str) -> None:
    started = time.process_time()
    parse_tool_calls(unit * (100_000 // len(unit)))
    assert time.process_time() - started < 5


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
