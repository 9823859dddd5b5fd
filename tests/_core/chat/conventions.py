"""How each family of models writes a tool call, and what calls and babble are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import strategies as st

Arguments = Mapping[str, Any]


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
