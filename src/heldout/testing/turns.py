"""Model turns made up to try an environment with: right calls and wrong ones of every tool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from heldout.types import Message, ToolCall, ToolSpec

_DEEP = "[" * 10_000
_ODD: tuple[tuple[str, Any], ...] = (
    ("string", "text"),
    ("integer", -7),
    ("number", 1.5),
    ("boolean", True),
    ("null", None),
    ("array", [1, "two"]),
    ("object", {"a": 1}),
)


def _calling(*calls: tuple[str, str]) -> Message:
    made = (ToolCall(f"call_{i}", name, text) for i, (name, text) in enumerate(calls))
    return Message("assistant", "", tuple(made))


def mistakes(tools: list[ToolSpec]) -> Iterator[tuple[str, Message]]:
    """What a model may do wrong, each with a name for it."""
    yield "plain text", Message("assistant", "I do not know.")
    yield "an empty turn", Message("assistant", "")
    yield "text in parts", Message("assistant", [{"type": "text", "text": "Hm."}])
    yield "an unknown tool", _calling(("no_such_tool", "{}"))
    yield "two unknown tools", _calling(("no_such_tool", "{}"), ("nor_this", "{}"))
    for tool in tools:
        name = tool.name
        right = json.dumps(_plausible(tool.parameters, tool.parameters))
        for what, text in (
            ("arguments that are not JSON", '{"a": '),
            ("no arguments text at all", ""),
            ("deeply nested arguments", _DEEP),
            ("arguments that are a list", "[1, 2]"),
            ("arguments that are null", "null"),
            ("no arguments", "{}"),
            ("an unknown argument", '{"no_such_argument": 1}'),
        ):
            yield f"a call of {name} with {what}", _calling((name, text))
        for argument, schema in _properties(tool.parameters).items():
            for kind, value in _ODD:
                if isinstance(schema, dict) and schema.get("type") == kind:
                    continue
                given = {**_plausible(tool.parameters, tool.parameters), argument: value}
                yield (
                    f"a call of {name} with {argument}={json.dumps(value)}",
                    _calling((name, json.dumps(given))),
                )
        yield (
            f"three calls, of {name} and of an unknown tool between",
            _calling((name, right), ("no_such_tool", "{}"), (name, '{"a": ')),
        )


def plausible_turns(tools: list[ToolSpec]) -> Iterator[Message]:
    for tool in tools:
        yield _calling((tool.name, json.dumps(_plausible(tool.parameters, tool.parameters))))


def _properties(schema: Any) -> dict[str, Any]:
    found = schema.get("properties") if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def _plausible(schema: Any, root: Any, depth: int = 0) -> Any:
    """A value that the schema might well allow."""
    if not isinstance(schema, dict) or depth > 20:
        return "text"
    if "$ref" in schema:
        found = (root.get("$defs") or {}).get(str(schema["$ref"]).rpartition("/")[2], {})
        return _plausible(found, root, depth + 1)
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            first = schema[key][0]
            return first if key == "enum" else _plausible(first, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "object":
        required = schema.get("required") or []
        inner = _properties(schema)
        return {name: _plausible(inner.get(name), root, depth + 1) for name in required}
    of_type: dict[Any, Any] = {"integer": 1, "number": 1.5, "boolean": True, "null": None}
    of_type["array"] = []
    return of_type.get(schema.get("type"), "text")
