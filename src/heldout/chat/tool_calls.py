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


# --- Markers ------------------------------------------------------------------------------------

_THINK = r"(?i:think|thinking|reasoning)"
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
    # Counts are bounded: a text of many half headers must not be read to its end for each.
    r"|(?P<harmony>(?:<\|start\|>assistant)?\s?(?:<\|channel\|>\w{1,20})?\s?"
    r"to=functions\.[\w.-]{1,200}[^{<\n]{0,40}(?:<\|(?:channel|constrain)\|>[^{<\n]{0,40}){0,3}"
    r"<\|message\|>)"
    # Markers around all calls of a reply.
    r"|(?P<wrapper><｜tool▁calls▁(?:begin|end)｜>|<\|tool_calls_section_(?:begin|end)\|>)"
)


def _ends(close: str, *others: str) -> re.Pattern[str]:
    """Compile where a call's text ends: at its closing marker, or at what cannot be part of it.

    The end of reasoning is such a thing: the call was a draft in it, and does not count.
    """
    return re.compile("|".join([f"(?P<close>{close})", rf"</{_THINK}>", *others]))


_HERMES_ENDS = _ends("</tool_call>", "<tool_call>")
_FUNCTION_ENDS = _ends(r"</function>(?:\s*</tool_call>)?|</tool_call>", "<tool_call>", "<function=")
_MISTRAL_ENDS = _ends(r"(?!)", r"\[TOOL_CALLS\]")
_PYTHON_ENDS = _ends(r"<\|eo[mt]_id\|>", r"<\|python_tag\|>")

_FUNCTION = re.compile(r"<function=([^<>\n]*)>")
_GLM = re.compile(r"([\w.-]+)\s*(?=<arg_key>|</tool_call>)")
_MISTRAL = re.compile(r"\s*([\w.:/-]{1,200})(?:\[CALL_ID\][^\[\]{]{0,200})?(?:\[ARGS\])?\s*(?={)")
_HARMONY = re.compile(r"to=functions\.([\w.-]+)")
_LLAMA = re.compile(r'\s*\{\s*"name"\s*:\s*"[^"\\]*"\s*,\s*"(?:parameters|arguments)"\s*:')
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_SPACE, _SEPARATORS = re.compile(r"\s*"), re.compile(r"[\s;,]*")


class _JsonFormat(NamedTuple):
    """A format whose calls are JSON between markers."""

    ends: re.Pattern[str]
    header: re.Pattern[str] | None = None
    """The name before the arguments; None if it is in the JSON."""


_JSON_FORMATS = {
    "bar": _JsonFormat(_ends(r"<\|/tool_call\|>", r"<\|tool_call\|>")),
    "fence": _JsonFormat(_ends("```")),
    "deepseek": _JsonFormat(
        _ends(r"(?:```\s*)?<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"),
        re.compile(
            r"(?:function)?<｜tool▁sep｜>([^\s<`{]+)\s*```(?:json)?|([^\s<]+)<｜tool▁sep｜>"
        ),
    ),
    "kimi": _JsonFormat(
        _ends(r"<\|tool_call_end\|>", r"<\|tool_call_begin\|>", r"<\|tool_calls_section_end\|>"),
        re.compile(r"\s*(?:functions\.)?([\w./-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>"),
    ),
    "harmony": _JsonFormat(_ends(r"<\|(?:call|end|return)\|>", r"<\|start\|>")),
}


class _TagFormat(NamedTuple):
    """A format whose arguments are in tags instead of JSON."""

    open: re.Pattern[str]
    close: re.Pattern[str]
    """The end of a value; or the start of the next, which shows that the end is missing."""
    end: re.Pattern[str]
    ends: re.Pattern[str]
    strip_newlines: bool


_FUNCTION_TAGS = _TagFormat(
    re.compile(r"\s*<parameter=([^<>\n]*)>"),
    re.compile(r"(?P<close></parameter>)|<parameter=|<function="),
    re.compile(r"\s*</function>(?:\s*</tool_call>)?"),
    _FUNCTION_ENDS,
    strip_newlines=True,
)
_GLM_TAGS = _TagFormat(
    re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>"),
    re.compile(r"(?P<close></arg_value>)|<arg_key>|<tool_call>"),
    re.compile(r"\s*</tool_call>"),
    _HERMES_ENDS,
    strip_newlines=False,
)

# --- The parser ---------------------------------------------------------------------------------


class _Call(NamedTuple):
    name: str
    arguments: str


class _Parser:
    """The scan over one reply. `position` only ever grows."""

    def __init__(self, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.text, self.position = text, 0
        self.content: list[str] = []
        self.calls: list[_Call] = []
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
                self.calls += self._parse_calls(kind, opener)
        rest = self.text[self.position :]
        self.content = [self.text[:reasoning_end], *self.content, rest]
        if not self.calls:
            self._reasoning.insert(0, self.text[:reasoning_end])
            self._parse_unmarked("".join([*outside, rest]))

    def _parse_calls(self, kind: str, opener: re.Match[str]) -> list[_Call]:
        """Parse the calls behind an opening marker, and move `position` behind them."""
        if kind == "hermes":
            return self._parse_hermes()
        if kind == "function":
            return [self._parse_function(opener.start())]
        if kind == "mistral":
            if header := _MISTRAL.match(self.text, self.position):
                self.position = header.end()
                return [_call(header[1], *self._json(_MISTRAL_ENDS, closes=False))]
            return _calls_in(*self._json(_MISTRAL_ENDS, closes=False))
        if kind == "python":
            return self._parse_python_tag()
        ends, pattern = _JSON_FORMATS[kind]
        if kind == "harmony":
            return [_call(_HARMONY.findall(opener[0])[-1], *self._json(ends))]
        if pattern is None:
            return _calls_in(*self._json(ends))
        if header := pattern.match(self.text, self.position):
            self.position = header.end()
            return [_call(str(header[header.lastindex or 1]), *self._json(ends))]
        raw = self._raw(self.position, ends)
        return [_Call(_name_in(raw), raw)]

    def _parse_hermes(self) -> list[_Call]:
        start = self._after_space()
        if self.text.startswith("<function=", start):
            return [self._parse_function(start)]
        if header := _GLM.match(self.text, start):
            self.position = header.end()
            return [self._parse_tags(header[1], start, _GLM_TAGS)]
        return _calls_in(*self._json(_HERMES_ENDS))

    def _parse_function(self, start: int) -> _Call:
        self.position = start + len("<function=")
        header = _FUNCTION.match(self.text, start)
        if header is None:
            return _Call("", self._raw(start, _FUNCTION_ENDS))
        name, self.position = header[1].strip(), header.end()
        if self.text.startswith("{", self._after_space()):
            return _call(name, *self._json(_FUNCTION_ENDS))
        return self._parse_tags(name, start, _FUNCTION_TAGS)

    def _parse_tags(self, name: str, start: int, tags: _TagFormat) -> _Call:
        """Parse arguments in tags. A call that is cut off inside a value is broken."""
        arguments: dict[str, Any] = {}
        while argument := tags.open.match(self.text, self.position):
            self.position = argument.end()
            close = tags.close.search(self.text, self.position)
            if close is None or close.lastgroup != "close":
                return _call(name, INVALID, self._raw(start, tags.ends))
            value = self.text[self.position : close.start()]
            if tags.strip_newlines:
                value = value.removeprefix("\n").removesuffix("\n")
            key = argument[1].strip()
            arguments[key] = self._typed(name, key, value)
            self.position = close.end()
        if end := tags.end.match(self.text, self.position):
            self.position = end.end()
        elif self._after_space() < len(self.text):
            return _call(name, INVALID, self._raw(start, tags.ends))
        else:  # the closing tag is missing at the end of the text, but no argument is
            self.position = len(self.text)
        return _call(name, arguments, self.text[start : self.position])

    def _parse_python_tag(self) -> list[_Call]:
        start = self.position
        values, values_end = _json_values(self.text, start)
        self.position = values_end
        stop = self._end(_PYTHON_ENDS)
        raw = self.text[start:stop].strip()
        if not values or stop > values_end:
            return [_Call(_name_in(raw), raw)]
        return [call for value in values for call in _calls_in(value, raw)]

    def _parse_unmarked(self, reply: str) -> bool:
        """Parse Llama 3's format, which has no markers: the whole reply is calls, or none is."""
        values, end = _json_values(reply, 0)
        if end == len(reply) and values and all(map(_looks_like_call, values)):
            self.calls = [call for value in values for call in _calls_in(value, reply)]
        elif not values and _LLAMA.match(reply):
            self.calls = [_Call(_name_in(reply), reply.strip())]
        else:
            return False
        self.content = self._reasoning
        return True

    def _json(self, ends: re.Pattern[str], *, closes: bool = True) -> tuple[Any, str]:
        """Read the JSON at `position`, and its text; INVALID if it or what follows is wrong."""
        start = self.position
        value, json_end = _json_at(self.text, self._after_space())
        self.position = json_end
        if value is not INVALID and not closes:
            return value, self.text[start:json_end].strip()
        stop = self._end(ends)
        # The end of a code fence may stand between the JSON and the marker.
        if value is not INVALID and self.text[json_end:stop].strip(" \t\r\n`"):
            value = INVALID
        return value, self.text[start:stop].strip()

    def _raw(self, start: int, ends: re.Pattern[str]) -> str:
        return self.text[start : self._end(ends)].strip()

    def _end(self, ends: re.Pattern[str]) -> int:
        """Find where the call's text ends, and move `position` behind its closing marker."""
        end = ends.search(self.text, self.position)
        stop = end.start() if end else len(self.text)
        self.position = end.end() if end and end.lastgroup == "close" else stop
        return stop

    def _after_space(self) -> int:
        return _skip(_SPACE, self.text, self.position)

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


def _calls_in(value: Any, raw: str) -> list[_Call]:
    """Read a JSON value as one call, or as a list of calls."""
    if isinstance(value, list) and value:
        return [_call_in(item, _dump_json(item)) for item in value]
    return [_call_in(value, raw)]


def _call_in(value: Any, raw: str) -> _Call:
    body = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return _Call(_name_in(raw), raw)
    for key in ("arguments", "parameters"):
        if key in body:
            return _call(body["name"], body[key], raw)
    has_only_a_name = set(body) <= {"name", "id", "type", "index"}
    return _call(body["name"], {} if has_only_a_name else INVALID, raw)


def _call(name: str, arguments: Any, raw: str) -> _Call:
    if arguments is INVALID:
        text = raw
    elif isinstance(arguments, str):  # JSON in a string, as chat APIs have it
        text = _replace_surrogates(arguments)
    else:
        text = "{}" if arguments is None else _dump_json(arguments)
    return _Call(_replace_surrogates(name), text)


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
    """Parse a text as strict JSON, without NaN and the like; `INVALID` if it is none."""
    value, end = _decode(text, _skip(_SPACE, text, 0))
    return INVALID if text[end:].strip() else value


def _decode(text: str, start: int) -> tuple[Any, int]:
    """Read the JSON at an index: its value and end, or INVALID and where it breaks."""
    try:
        return _decoder.raw_decode(text, start)
    except (ValueError, RecursionError) as problem:  # a model may nest without end
        return INVALID, getattr(problem, "pos", start)


def _json_at(text: str, start: int) -> tuple[Any, int]:
    """Read the object or list at an index."""
    return _decode(text, start) if text.startswith(("{", "["), start) else (INVALID, start)


def _json_values(text: str, start: int) -> tuple[list[Any], int]:
    """Read JSON values with separators between them, and find where they end."""
    values: list[Any] = []
    position = _skip(_SEPARATORS, text, start)
    while True:
        value, end = _json_at(text, position)
        if value is INVALID:
            return values, position
        values.append(value)
        position = _skip(_SEPARATORS, text, end)


def _skip(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _dump_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Half an emoji ("\ud83d") can be written in JSON, but not stored as text.
    return text if _replace_surrogates(text) == text else json.dumps(value)


def _replace_surrogates(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
