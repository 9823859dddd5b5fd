"""Parse tool calls out of a reply, in the formats that open models write.

    Hermes, Qwen    <tool_call>{"name": …, "arguments": {…}}</tool_call>
    Qwen3-Coder     <tool_call><function=NAME><parameter=x>…</parameter></function></tool_call>
    GLM-4           <tool_call>NAME<arg_key>x</arg_key><arg_value>…</arg_value></tool_call>
    Llama 3         {"name": …, "parameters": {…}} as the whole reply, or after <|python_tag|>
    Llama 3.1       <function=NAME>{…}</function>
    Mistral         [TOOL_CALLS][{…}] or [TOOL_CALLS]NAME[ARGS]{…}
    DeepSeek        <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME```json{…}```<｜tool▁call▁end｜>
    Kimi            <|tool_call_begin|>NAME<|tool_call_argument_begin|>{…}<|tool_call_end|>
    gpt-oss         to=functions.NAME<|channel|>commentary json<|message|>{…}<|call|>
    Phi-4, Granite  <|tool_call|>[{…}]<|/tool_call|>
    by prompt       ```tool_call {…} ```

One scan from left to right reads all formats. Nothing is read twice, so the time is linear in the
text whatever a model writes, and markers inside a call's own strings are part of the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from heldout.types import Message, ToolCall, ToolSpec


def parse_tool_calls(
    text: str, first: int = 0, *, tools: Sequence[ToolSpec] = ()
) -> tuple[str, tuple[ToolCall, ...]]:
    """Split a reply into its content and its tool calls.

    A call that cannot be parsed is still a call, so that the environment can answer with what was
    wrong: its `arguments` are the text as written, its name is "" unless it can be read. Calls in
    reasoning do not count. `first` numbers the calls' ids (see `next_call_number`); the schemas of
    `tools` tell text from numbers where a format does not.
    """
    parser = _Parser(text, {tool.name: tool.parameters for tool in tools})
    parser.parse()
    if not parser.calls:
        return text, ()
    calls = tuple(
        ToolCall(call_id(first + i), call.name, call.arguments)
        for i, call in enumerate(parser.calls)
    )
    return "".join(parser.content).strip(), calls


def call_id(number: int) -> str:
    """Make the id of a call: nine letters and digits, as Mistral's templates demand."""
    return f"call{number:05d}"[-9:]


def next_call_number(messages: Sequence[Message]) -> int:
    """Find the first number such that no later id occurs in the conversation yet."""
    ids = [call.id for message in messages for call in message.tool_calls]
    return 1 + max((int(i[4:]) for i in ids if re.fullmatch(r"call[0-9]{5}", i)), default=-1)


# --- Formats ------------------------------------------------------------------------------------

_THINK = r"(?i:think|thinking|reasoning)"
# Counts are bounded: a text of many half headers must not be read to its end for each.
_HARMONY_HEADER = (
    r"([\w.-]{1,200})[^{<\n]{0,40}(?:<\|(?:channel|constrain)\|>[^{<\n]{0,40}){0,3}<\|message\|>"
)
_OPENER = re.compile(
    rf"(?P<reasoning><{_THINK}>)"
    rf"|(?P<end_of_reasoning></{_THINK}>)"
    r"|(?P<analysis><\|channel\|>analysis<\|message\|>)"
    r"|(?P<hermes><tool_call>)"
    r"|(?P<function><function=)"
    r"|(?P<bar><\|tool_call\|>)"
    r"|(?P<fence>(?m:^)```tool_calls?[ \t]*\n)"
    r"|(?P<mistral>\[TOOL_CALLS\])"
    r"|(?P<python><\|python_tag\|>)"
    r"|(?P<deepseek><｜tool▁call▁begin｜>)"
    r"|(?P<kimi><\|tool_call_begin\|>)"
    r"|(?P<harmony>(?:<\|start\|>assistant)?\s?(?:<\|channel\|>\w{1,20})?\s?"
    rf"to=functions\.(?={_HARMONY_HEADER}))"
    # Markers around all calls of a reply.
    r"|(?P<wrapper><｜tool▁calls▁(?:begin|end)｜>|<\|tool_calls_section_(?:begin|end)\|>)"
)


class _MarkedFormat(NamedTuple):
    """A format whose calls are JSON behind an opening marker."""

    ends: re.Pattern[str]
    """Where a call's text ends: at its closing marker, or at what cannot be part of it."""
    header: re.Pattern[str] | None = None
    """The name before the arguments; None if it is in the JSON."""
    closes: bool = True
    """False if nothing closes a call: it ends with its JSON."""


def _format(
    close: str, *interruptions: str, header: str | None = None, closes: bool = True
) -> _MarkedFormat:
    # The end of reasoning ends a call, too: it was a draft in it, and does not count.
    ends = re.compile("|".join([f"(?P<close>{close})", rf"</{_THINK}>", *interruptions]))
    return _MarkedFormat(ends, re.compile(header) if header else None, closes)


_FORMATS = {
    "hermes": _format("</tool_call>", "<tool_call>"),
    "function": _format(
        r"</function>(?:\s*</tool_call>)?|</tool_call>",
        "<tool_call>",
        "<function=",
        header=r"([^<>\n]*)>",
    ),
    "bar": _format(r"<\|/tool_call\|>", r"<\|tool_call\|>"),
    "fence": _format("```"),
    "mistral": _format(
        r"(?!)",
        r"\[TOOL_CALLS\]",
        header=r"\s*([\w.:/-]{1,200})(?:\[CALL_ID\][^\[\]{]{0,200})?(?:\[ARGS\])?\s*(?={)",
        closes=False,
    ),
    "python": _format(r"<\|eo[mt]_id\|>", r"<\|python_tag\|>"),
    "deepseek": _format(
        r"(?:```\s*)?<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁calls▁end｜>",
        header=r"(?:function)?<｜tool▁sep｜>([^\s<`{]+)\s*```(?:json)?|([^\s<]+)<｜tool▁sep｜>",
    ),
    "kimi": _format(
        r"<\|tool_call_end\|>",
        r"<\|tool_call_begin\|>",
        r"<\|tool_calls_section_end\|>",
        header=r"\s*(?:functions\.)?([\w./-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>",
    ),
    "harmony": _format(r"<\|(?:call|end|return)\|>", r"<\|start\|>", header=_HARMONY_HEADER),
}


class _Tags(NamedTuple):
    """How arguments are written in tags instead of JSON."""

    open: re.Pattern[str]
    close: re.Pattern[str]
    """The end of a value; or the start of the next, which shows that the end is missing."""
    strip_newlines: bool


_FUNCTION_TAGS = _Tags(
    re.compile(r"\s*<parameter=([^<>\n]*)>"),
    re.compile(r"(?P<close></parameter>)|<parameter=|<function="),
    strip_newlines=True,
)
_GLM_TAGS = _Tags(
    re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>"),
    re.compile(r"(?P<close></arg_value>)|<arg_key>|<tool_call>"),
    strip_newlines=False,
)
_GLM = re.compile(r"([\w.-]+)\s*(?=<arg_key>|</tool_call>)")
_LLAMA = re.compile(r'\s*\{\s*"name"\s*:\s*"[^"\\]*"\s*,\s*"(?:parameters|arguments)"\s*:')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_SPACE, _BRACE, _SEPARATORS = re.compile(r"\s*"), re.compile(r"\s*{"), re.compile(r"[\s;,]*")

# --- The parser ---------------------------------------------------------------------------------


class _ParsedCall(NamedTuple):
    name: str
    arguments: str


class _Parser:
    """The scan over one reply. `position` only ever grows."""

    def __init__(self, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.text, self.position = text, 0
        self.content: list[str] = []
        self.calls: list[_ParsedCall] = []
        self._reasoning: list[str] = []
        self._schemas = schemas

    def parse(self) -> None:
        if self._parse_unmarked(self.text):
            return
        outside: list[str] = []
        reasoning_end = 0
        while (opener := _OPENER.search(self.text, self.position)) is not None:
            before = self.text[self.position : opener.start()]
            self.content.append(before)
            outside.append(before)
            self.position = opener.end()
            kind = str(opener.lastgroup)
            if kind == "end_of_reasoning":
                # The chat template opened it in the prompt, so all text before is reasoning.
                for parts in (self.calls, outside, self.content, self._reasoning):
                    parts.clear()
                reasoning_end = self.position
            elif kind in ("reasoning", "analysis"):
                self._skip_to(f"</{opener[0][1:]}" if kind == "reasoning" else "<|end|>")
                self.content.append(self.text[opener.start() : self.position])
                self._reasoning.append(self.content[-1])
            elif kind != "wrapper":
                self.calls += self._parse_calls(kind, opener.start())
        tail = self.text[self.position :]
        self.content = [self.text[:reasoning_end], *self.content, tail]
        if not self.calls:
            self._reasoning.insert(0, self.text[:reasoning_end])
            self._parse_unmarked("".join([*outside, tail]))

    def _parse_calls(self, kind: str, start: int) -> list[_ParsedCall]:
        """Parse the calls behind an opening marker, and move `position` behind them."""
        if kind == "hermes":
            start = self.position = _skip(_SPACE, self.text, self.position)
            if glm := _GLM.match(self.text, start):
                self.position = glm.end()
                return [self._parse_tags(glm[1], start, _GLM_TAGS, _FORMATS[kind])]
            if self.text.startswith("<function=", start):
                kind, self.position = "function", start + len("<function=")
        form = _FORMATS[kind]
        header = form.header.match(self.text, self.position) if form.header else None
        if header is None:
            values, raw = self._read_json(form, start if kind == "function" else self.position)
            calls = [call for value in values for call in _calls_in(value, raw)]
            return calls or [_ParsedCall(_name_in(raw), raw)]
        name, self.position = header[header.lastindex or 1].strip(), header.end()
        if kind == "function" and not _BRACE.match(self.text, self.position):
            return [self._parse_tags(name, start, _FUNCTION_TAGS, form)]
        values, raw = self._read_json(form, self.position)
        return [_call(name, values[0] if len(values) == 1 else INVALID, raw)]

    def _parse_tags(self, name: str, start: int, tags: _Tags, form: _MarkedFormat) -> _ParsedCall:
        """Parse arguments in tags. A call that is cut off inside a value is broken."""
        arguments: dict[str, Any] = {}
        while argument := tags.open.match(self.text, self.position):
            self.position = argument.end()
            close = tags.close.search(self.text, self.position)
            if close is None or close.lastgroup != "close":
                return _ParsedCall(name, self.text[start : self._find_end(form)].strip())
            value = self.text[self.position : close.start()]
            if tags.strip_newlines:
                value = value.removeprefix("\n").removesuffix("\n")
            key = argument[1].strip()
            arguments[key] = self._typed(name, key, value)
            self.position = close.end()
        # At the end of the text the closing tag may be missing: no argument is.
        arguments_end = _skip(_SPACE, self.text, self.position)
        stop = self._find_end(form)
        if stop > arguments_end:
            return _ParsedCall(name, self.text[start:stop].strip())
        return _ParsedCall(name, _dump_json(arguments))

    def _parse_unmarked(self, reply: str) -> bool:
        """Parse Llama 3's format, which has no markers: the whole reply is calls, or none is."""
        values, end = _json_values(reply, 0)
        if end == len(reply) and values and all(map(_looks_like_call, values)):
            self.calls = [call for value in values for call in _calls_in(value, reply)]
        elif not values and _LLAMA.match(reply):
            self.calls = [_ParsedCall(_name_in(reply), reply.strip())]
        else:
            return False
        self.content = self._reasoning
        return True

    def _read_json(self, form: _MarkedFormat, start: int) -> tuple[list[Any], str]:
        """Read the JSON at `position`: its values, none if malformed, and its text."""
        values, json_end = _json_values(self.text, self.position)
        self.position = json_end
        if values and not form.closes:
            return values, self.text[start:json_end].strip()
        stop = self._find_end(form)
        # The end of a code fence may stand between the JSON and the marker.
        if self.text[json_end:stop].strip(" \t\r\n`"):
            values = []
        return values, self.text[start:stop].strip()

    def _find_end(self, form: _MarkedFormat) -> int:
        """Find where a call's text ends, and move `position` behind its closing marker."""
        end = form.ends.search(self.text, self.position)
        stop = end.start() if end else len(self.text)
        self.position = end.end() if end and end.lastgroup == "close" else stop
        return stop

    def _skip_to(self, close: str) -> None:
        end = re.compile(re.escape(close), re.IGNORECASE).search(self.text, self.position)
        self.position = end.end() if end else len(self.text)

    def _typed(self, name: str, key: str, text: str) -> Any:
        """Convert a value between tags by the tool's schema: the tags do not say its type."""
        properties = self._schemas.get(name, {}).get("properties")
        types = _types(properties.get(key)) if isinstance(properties, Mapping) else set()
        if "string" in types:
            return None if "null" in types and text in ("null", "None") else text
        value = parse_json(text)
        if value is INVALID:
            return {"True": True, "False": False, "None": None}.get(text.strip(), text)
        return text if isinstance(value, str) else value


def _calls_in(value: Any, raw: str) -> list[_ParsedCall]:
    """Read a JSON value as one call, or as a list of calls."""
    if isinstance(value, list) and value:
        return [_call_in(item, _dump_json(item)) for item in value]
    return [_call_in(value, raw)]


def _call_in(value: Any, raw: str) -> _ParsedCall:
    body = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return _ParsedCall(_name_in(raw), raw)
    for key in ("arguments", "parameters"):
        if key in body:
            return _call(body["name"], body[key], raw)
    has_only_a_name = set(body) <= {"name", "id", "type", "index"}
    return _call(body["name"], {} if has_only_a_name else INVALID, raw)


def _call(name: str, arguments: Any, raw: str) -> _ParsedCall:
    if arguments is INVALID:
        text = raw
    elif isinstance(arguments, str):  # JSON in a string, as chat APIs have it
        text = _replace_surrogates(arguments)
    else:
        text = "{}" if arguments is None else _dump_json(arguments)
    return _ParsedCall(_replace_surrogates(name), text)


def _name_in(raw: str) -> str:
    name = _NAME.search(raw)
    return _replace_surrogates(name[1]) if name else ""


def _looks_like_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("parameters", value.get("arguments")), dict)
        and set(value) <= {"name", "parameters", "arguments", "id", "type"}
    )


def _types(schema: Any) -> set[str]:
    """Collect the types that a JSON schema allows at its top level."""
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type")
    types = {t for t in [declared, *_items(declared)] if isinstance(t, str)}
    for choice in [*_items(schema.get("anyOf")), *_items(schema.get("oneOf"))]:
        types |= _types(choice)
    return types


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- JSON ---------------------------------------------------------------------------------------

INVALID = object()
"""The result of `parse_json` for a text that is not JSON."""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse_constant)


def parse_json(text: str) -> Any:
    """Parse a text as strict JSON, without NaN and the like; `INVALID` if it is not JSON."""
    value, end = _decode(text, _skip(_SPACE, text, 0))
    return INVALID if text[end:].strip() else value


def _decode(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON at an index: its value and end, or INVALID and where it breaks."""
    try:
        return _decoder.raw_decode(text, start)
    except (ValueError, RecursionError) as problem:  # a model may nest without end
        return INVALID, getattr(problem, "pos", start)


def _json_values(text: str, start: int) -> tuple[list[Any], int]:
    """Read objects and lists with separators between them, and find where they end.

    If the first is broken, that is where it breaks.
    """
    values: list[Any] = []
    position = _skip(_SEPARATORS, text, start)
    while text.startswith(("{", "["), position):
        value, end = _decode(text, position)
        if value is INVALID:
            return values, position if values else end
        values.append(value)
        position = _skip(_SEPARATORS, text, end)
    return values, position


def _skip(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _dump_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Half an emoji ("\ud83d") can be written in JSON, but not stored as text.
    return text if _replace_surrogates(text) == text else json.dumps(value)


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
