"""Tool calls as text, in the ways that open models write them.

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

One scan from left to right reads all of them. Nothing is read twice, so the time is linear in
the text whatever a model babbles, and markers inside a call's own strings are part of it.
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
    """A reply as (content, calls): the text without its calls, and the calls.

    A call that cannot be read is a call all the same, with what was written as its `arguments`
    and the name where that can be read, so that whoever runs it can say what was wrong. Calls in
    reasoning do not count. `first` numbers the calls (`next_call_number`); `tools` tell text
    from numbers where a convention does not.
    """
    reply = _Reply(text, {tool.name: tool.parameters for tool in tools})
    reply.read()
    if not reply.found:
        return text, ()
    calls = tuple(
        ToolCall(call_id(first + i), name, arguments)
        for i, (name, arguments) in enumerate(reply.found)
    )
    return "".join(reply.content).strip(), calls


def call_id(number: int) -> str:
    """Nine letters and digits, which is what Mistral's templates insist on."""
    return f"call{number:05d}"[-9:]


def next_call_number(messages: Sequence[Message]) -> int:
    """The first number whose id, and all after it, are not in the conversation yet."""
    ids = [call.id for message in messages for call in message.tool_calls]
    if not ids:  # as in most turns
        return 0
    return 1 + max((int(i[4:]) for i in ids if re.fullmatch(r"call[0-9]{5}", i)), default=-1)


# --- Reading calls ------------------------------------------------------------------------------


class _Found(NamedTuple):
    name: str
    arguments: str


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
    # Counts are bounded, or a text of many half headers would be read to its end for each.
    r"|(?P<harmony>(?:<\|start\|>assistant)?\s?(?:<\|channel\|>\w{1,20})?\s?"
    r"to=functions\.[\w.-]{1,200}[^{<\n]{0,40}(?:<\|(?:channel|constrain)\|>[^{<\n]{0,40}){0,3}"
    r"<\|message\|>)"
    # What stands around all calls of a reply.
    r"|(?P<around><｜tool▁calls▁(?:begin|end)｜>|<\|tool_calls_section_(?:begin|end)\|>)"
)


def _ends(close: str, *others: str) -> re.Pattern[str]:
    """Where a call's text ends: at its closing marker, or at what cannot be part of it.

    Reasoning that ends is such a thing: then the call was a draft, and does not count.
    """
    return re.compile("|".join([f"(?P<close>{close})", rf"</{_THINK}>", *others]))


_HERMES_ENDS = _ends("</tool_call>", "<tool_call>")
_FUNCTION_ENDS = _ends(r"</function>(?:\s*</tool_call>)?|</tool_call>", "<tool_call>", "<function=")
_BAR_ENDS = _ends(r"<\|/tool_call\|>", r"<\|tool_call\|>")
_FENCE_ENDS = _ends("```")
_MISTRAL_ENDS = _ends(r"(?!)", r"\[TOOL_CALLS\]")
_PYTHON_ENDS = _ends(r"<\|eo[mt]_id\|>", r"<\|python_tag\|>")
_DEEPSEEK_ENDS = _ends(
    r"(?:```\s*)?<｜tool▁call▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>"
)
_KIMI_ENDS = _ends(
    r"<\|tool_call_end\|>", r"<\|tool_call_begin\|>", r"<\|tool_calls_section_end\|>"
)
_HARMONY_ENDS = _ends(r"<\|(?:call|end|return)\|>", r"<\|start\|>")

_SPACE, _SEPARATORS = re.compile(r"\s*"), re.compile(r"[\s;,]*")
_FUNCTION = re.compile(r"<function=([^<>\n]*)>")
_GLM = re.compile(r"([\w.-]+)\s*(?=<arg_key>|</tool_call>)")
_MISTRAL = re.compile(r"\s*([\w.:/-]{1,200})(?:\[CALL_ID\][^\[\]{]{0,200})?(?:\[ARGS\])?\s*(?={)")
_DEEPSEEK = re.compile(
    r"(?:function)?<｜tool▁sep｜>([^\s<`{]+)\s*```(?:json)?|([^\s<]+)<｜tool▁sep｜>"
)
_KIMI = re.compile(r"\s*(?:functions\.)?([\w./-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>")
_HARMONY = re.compile(r"to=functions\.([\w.-]+)")
_READ_NAME = re.compile(r'"name"\s*:\s*"([^"\\]*)"')
_LLAMA = re.compile(r'\s*\{\s*"name"\s*:\s*"[^"\\]*"\s*,\s*"(?:parameters|arguments)"\s*:')

BROKEN = object()
"""What `loaded` gives for what is no JSON."""


class _Tags(NamedTuple):
    """How a convention that is not JSON writes arguments."""

    open: re.Pattern[str]
    close: re.Pattern[str]
    """A value's end; or another value's beginning, which shows that the end is missing."""
    end: re.Pattern[str]
    ends: re.Pattern[str]
    lines: bool
    """Whether a value stands on lines of its own."""


_FUNCTION_TAGS = _Tags(
    re.compile(r"\s*<parameter=([^<>\n]*)>"),
    re.compile(r"(?P<close></parameter>)|<parameter=|<function="),
    re.compile(r"\s*</function>(?:\s*</tool_call>)?"),
    _FUNCTION_ENDS,
    lines=True,
)
_GLM_TAGS = _Tags(
    re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>"),
    re.compile(r"(?P<close></arg_value>)|<arg_key>|<tool_call>"),
    re.compile(r"\s*</tool_call>"),
    _HERMES_ENDS,
    lines=False,
)


class _Reply:
    """One reply while it is read. `place` only ever grows."""

    def __init__(self, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        self.text, self.place = text, 0
        self.content: list[str] = []
        self.found: list[_Found] = []
        self._reasoning: list[str] = []
        self._schemas = schemas

    def read(self) -> None:
        if self._unmarked(self.text):
            return
        spoken: list[str] = []
        reasoned = 0
        while (opener := _OPENER.search(self.text, self.place)) is not None:
            said = self.text[self.place : opener.start()]
            self.content.append(said)
            spoken.append(said)
            self.place = opener.end()
            kind = str(opener.lastgroup)
            if kind == "end_of_reasoning":
                # Nothing opened it: the template did, so all until here was reasoning.
                self.found.clear()
                spoken.clear()
                self.content.clear()
                self._reasoning.clear()
                reasoned = self.place
            elif kind in ("reasoning", "analysis"):
                close = f"</{opener[0][1:]}" if kind == "reasoning" else "<|end|>"
                self._skip_to(close)
                self.content.append(self.text[opener.start() : self.place])
                self._reasoning.append(self.content[-1])
            elif kind != "around":
                self.found += getattr(self, f"_{kind}")(opener)
        said = self.text[self.place :]
        self.content = [self.text[:reasoned], *self.content, said]
        if not self.found:
            self._reasoning.insert(0, self.text[:reasoned])
            self._unmarked("".join([*spoken, said]))

    # --- One method a convention: `place` is behind the opener, and ends behind the call ---

    def _hermes(self, opener: re.Match[str]) -> list[_Found]:
        inner = self._after_space()
        if self.text.startswith("<function=", inner):
            self.place = inner + len("<function=")
            return self._function(opener)
        if header := _GLM.match(self.text, inner):
            self.place = header.end()
            return [self._tagged(header[1], inner, _GLM_TAGS)]
        return _calls_in(*self._json(_HERMES_ENDS))

    def _function(self, opener: re.Match[str]) -> list[_Found]:
        start = self.place - len("<function=")
        header = _FUNCTION.match(self.text, start)
        if header is None:
            return [_broken("", self._raw(start, _FUNCTION_ENDS))]
        name, self.place = header[1].strip(), header.end()
        if self.text.startswith("{", self._after_space()):
            return [_call(name, *self._json(_FUNCTION_ENDS))]
        return [self._tagged(name, start, _FUNCTION_TAGS)]

    def _tagged(self, name: str, start: int, tags: _Tags) -> _Found:
        """A call whose arguments are in tags. One that is cut off in a value is broken."""
        arguments: dict[str, Any] = {}
        while argument := tags.open.match(self.text, self.place):
            self.place = argument.end()
            close = tags.close.search(self.text, self.place)
            if close is None or close.lastgroup != "close":
                return _broken(name, self._raw(start, tags.ends))
            written = self.text[self.place : close.start()]
            if tags.lines:
                written = written.removeprefix("\n").removesuffix("\n")
            key = argument[1].strip()
            arguments[key] = self._typed(name, key, written)
            self.place = close.end()
        if end := tags.end.match(self.text, self.place):
            self.place = end.end()
        elif self._after_space() < len(self.text):
            return _broken(name, self._raw(start, tags.ends))
        else:  # the text ends before the call does, but nothing of it is missing
            self.place = len(self.text)
        return _call(name, arguments, self.text[start : self.place])

    def _bar(self, opener: re.Match[str]) -> list[_Found]:
        return _calls_in(*self._json(_BAR_ENDS))

    def _fence(self, opener: re.Match[str]) -> list[_Found]:
        return _calls_in(*self._json(_FENCE_ENDS))

    def _mistral(self, opener: re.Match[str]) -> list[_Found]:
        if header := _MISTRAL.match(self.text, self.place):
            self.place = header.end()
            return [_call(header[1], *self._json(_MISTRAL_ENDS, closes=False))]
        return _calls_in(*self._json(_MISTRAL_ENDS, closes=False))

    def _python(self, opener: re.Match[str]) -> list[_Found]:
        start = self.place
        values, behind = _several(self.text, start)
        self.place = behind
        stop = self._end(_PYTHON_ENDS)
        raw = self.text[start:stop].strip()
        if not values or stop > behind:
            return [_broken(_name_in(raw), raw)]
        return [call for value in values for call in _calls_in(value, raw)]

    def _deepseek(self, opener: re.Match[str]) -> list[_Found]:
        return self._after_header(_DEEPSEEK, _DEEPSEEK_ENDS)

    def _kimi(self, opener: re.Match[str]) -> list[_Found]:
        return self._after_header(_KIMI, _KIMI_ENDS)

    def _harmony(self, opener: re.Match[str]) -> list[_Found]:
        name = _HARMONY.findall(opener[0])[-1]
        return [_call(name, *self._json(_HARMONY_ENDS))]

    def _after_header(self, header: re.Pattern[str], ends: re.Pattern[str]) -> list[_Found]:
        """A convention that puts the name first and only the arguments in JSON."""
        if named := header.match(self.text, self.place):
            self.place = named.end()
            return [_call(str(named[named.lastindex or 1]), *self._json(ends))]
        raw = self._raw(self.place, ends)
        return [_broken(_name_in(raw), raw)]

    def _unmarked(self, spoken: str) -> bool:
        """Llama 3 has no markers: the whole reply is the call, or there is none."""
        values, behind = _several(spoken, 0)
        if behind == len(spoken) and values and all(map(_looks_like_a_call, values)):
            self.found = [call for value in values for call in _calls_in(value, spoken)]
        elif not values and _LLAMA.match(spoken):
            self.found = [_broken(_name_in(spoken), spoken.strip())]
        else:
            return False
        self.content = self._reasoning
        return True

    # --- Pieces of it ---

    def _json(self, ends: re.Pattern[str], *, closes: bool = True) -> tuple[Any, str]:
        """The JSON at `place`, and its text; BROKEN where it, or what follows it, is not right."""
        start = self.place
        value, behind = _json_at(self.text, self._after_space())
        self.place = behind
        if value is not BROKEN and not closes:
            return value, self.text[start:behind].strip()
        stop = self._end(ends)
        # The end of a code fence may stand between the JSON and the marker.
        if value is not BROKEN and self.text[behind:stop].strip(" \t\r\n`"):
            value = BROKEN
        return value, self.text[start:stop].strip()

    def _raw(self, start: int, ends: re.Pattern[str]) -> str:
        return self.text[start : self._end(ends)].strip()

    def _end(self, ends: re.Pattern[str]) -> int:
        """Where the call's text ends, from `place` on; `place` goes behind what closes it."""
        end = ends.search(self.text, self.place)
        stop = end.start() if end else len(self.text)
        self.place = end.end() if end and end.lastgroup == "close" else stop
        return stop

    def _after_space(self) -> int:
        return _skip(_SPACE, self.text, self.place)

    def _skip_to(self, close: str) -> None:
        end = re.compile(re.escape(close), re.IGNORECASE).search(self.text, self.place)
        self.place = end.end() if end else len(self.text)

    def _typed(self, name: str, key: str, written: str) -> Any:
        """A value from between tags, which do not say whether it is text: the schema does."""
        properties = self._schemas.get(name, {}).get("properties")
        types = _types(properties.get(key)) if isinstance(properties, Mapping) else set()
        if "string" in types:
            return None if "null" in types and written in ("null", "None") else written
        value = loaded(written)
        if value is BROKEN:
            return {"True": True, "False": False, "None": None}.get(written.strip(), written)
        return written if isinstance(value, str) else value


def _calls_in(value: Any, raw: str) -> list[_Found]:
    """The calls in a JSON value: one, or a list of them."""
    if isinstance(value, list) and value:
        return [_call_in(item, _dumped(item, raw)) for item in value]
    return [_call_in(value, raw)]


def _call_in(value: Any, raw: str) -> _Found:
    body = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return _broken(_name_in(raw), raw)
    for key in ("arguments", "parameters"):
        if key in body:
            return _call(body["name"], body[key], raw)
    if set(body) <= {"name", "id", "type", "index"}:
        return _call(body["name"], {}, raw)
    return _broken(body["name"], raw)  # with its arguments beside the name


def _call(name: str, arguments: Any, raw: str) -> _Found:
    if arguments is BROKEN:
        return _broken(name, raw)
    if isinstance(arguments, str):  # JSON in a string, as chat APIs have it
        return _Found(_sound(name), _sound(arguments))
    return _Found(_sound(name), "{}" if arguments is None else _dumped(arguments, raw))


def _broken(name: str, raw: str) -> _Found:
    return _Found(_sound(name), raw)


def _name_in(raw: str) -> str:
    named = _READ_NAME.search(raw)
    return named[1] if named else ""


def _looks_like_a_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and isinstance(value.get("parameters", value.get("arguments")), dict)
        and set(value) <= {"name", "parameters", "arguments", "id", "type"}
    )


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    declared = schema.get("type")
    types = {declared} if isinstance(declared, str) else set()
    types.update(t for t in _list(declared) if isinstance(t, str))
    for choice in [*_list(schema.get("anyOf")), *_list(schema.get("oneOf"))]:
        types |= _types(choice)
    return types


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# --- JSON ---------------------------------------------------------------------------------------


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_no_constant)


def _json_at(text: str, start: int) -> tuple[Any, int]:
    """The object or list that begins there and where it ends, or BROKEN and where it breaks."""
    if not text.startswith(("{", "["), start):
        return BROKEN, start
    # In growing pieces: an error of the decoder costs the length of all it was given, since it
    # counts the lines before it.
    size = 2048
    while True:
        piece = text[start : start + size]
        try:
            value, length = _decoder.raw_decode(piece)
            return value, start + length
        except json.JSONDecodeError as problem:
            cut = problem.pos > len(piece) - 16 or problem.msg.startswith("Unterminated")
            if not cut or start + size >= len(text):
                return BROKEN, start + problem.pos
        except ValueError:  # a number of thousands of digits, or none at all
            return BROKEN, start
        except RecursionError:
            return BROKEN, len(text)
        size *= 2


def _several(text: str, start: int) -> tuple[list[Any], int]:
    """JSON values one after another with separators between, and where they end."""
    values: list[Any] = []
    place = _skip(_SEPARATORS, text, start)
    while text.startswith(("{", "["), place):
        value, end = _json_at(text, place)
        if value is BROKEN:
            break
        values.append(value)
        place = _skip(_SEPARATORS, text, end)
    return values, place


def _skip(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def loaded(text: str) -> Any:
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError):
        return BROKEN


def _dumped(value: Any, raw: str) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return raw
    # Half an emoji ("\ud83d") can be written in JSON, but not stored as text.
    return text if _sound(text) == text else json.dumps(value)


def _sound(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
