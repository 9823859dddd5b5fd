"""A Python function as a tool: what a model is told of it, and what it may be called with.

One struct is built from the signature. The JSON schema comes from it and so does the decoder of
the model's arguments, so the two cannot disagree.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from heldout._aio import is_async
from heldout.errors import InvalidInput
from heldout.types import ToolSpec

# What OpenAI-compatible servers accept as the name of a tool.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHOWN = 200


class BadArguments(Exception):
    """What a model gave a tool does not fit; the message is for the model."""


@dataclass(frozen=True, slots=True)
class _Argument:
    """One parameter: under which name the struct holds it, and what may be given."""

    field: str
    annotation: Any
    required: bool


class Function:
    """A plain or async function, checked and described once; `injected` names are not the model's.

    Raises `InvalidInput` where the function cannot be a tool.
    """

    def __init__(self, function: Callable[..., Any], injected: Collection[str] = ()) -> None:
        self.function = function
        self.name = _name_of(function)
        self.is_async = is_async(function)
        parameters = _parameters(self.name, function)
        self.injected = {
            name: _annotation(self.name, function, parameter, must=False)
            for name, parameter in parameters.items()
            if name in injected
        }
        self._arguments: dict[str, _Argument] = {}
        fields: list[tuple[str, Any, Any]] = []
        for name, parameter in parameters.items():
            if name in injected:
                continue
            annotation = _annotation(self.name, function, parameter)
            required = parameter.default is parameter.empty
            # Numbered, since a parameter may have a name that a struct uses itself. A default is
            # the function's own to fill in: here it only has to be seen to be missing.
            field = f"argument_{len(fields)}"
            self._arguments[name] = _Argument(field, annotation, required)
            missing: Any = {} if required else {"default_factory": _unset}
            fields.append((field, annotation, msgspec.field(name=name, **missing)))
        struct = msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(struct)
        self.spec = self._spec(struct, parameters)

    def _spec(self, struct: type, parameters: dict[str, inspect.Parameter]) -> ToolSpec:
        (top,), definitions = msgspec.json.schema_components(
            [struct], ref_template="#/$defs/{name}"
        )
        schema: dict[str, Any] = definitions.pop(top["$ref"].rpartition("/")[2])
        schema.pop("title", None)
        if definitions:
            schema["$defs"] = definitions
        docstring = inspect.getdoc(self.function) or ""
        said = dict(_described_arguments(docstring))
        for name, shown in schema["properties"].items():
            if name in said:
                shown.setdefault("description", said[name])
            try:
                shown["default"] = json_value(parameters[name].default)
            except ValueError:
                pass  # there is none, or none that JSON can show
        return ToolSpec(self.name, _summary(docstring), schema)

    def arguments(self, text: str) -> dict[str, Any]:
        """The model's JSON as keyword arguments, or `BadArguments` with all that is wrong in it."""
        if isinstance(text, str) and not text.strip():
            text = "{}"  # how some servers write a call without arguments
        try:
            given = self._decoder.decode(text)
        except msgspec.ValidationError:
            raise BadArguments(self._explained(text)) from None
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, TypeError) as problem:
            raise BadArguments(self._not_json(text, problem)) from None
        values = {name: getattr(given, a.field) for name, a in self._arguments.items()}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    def _not_json(self, text: Any, problem: Exception) -> str:
        return (
            f"the arguments of {self.name} are not JSON ({_short(problem)}): {text!r:.{_SHOWN}}. "
            f"{self._wanted()}"
        )

    def _explained(self, text: str) -> str:
        try:
            given = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError as problem:
            got = _short(problem).rpartition("got ")[2].strip("`")
            return f"the arguments of {self.name} are a JSON object, got {got}. {self._wanted()}"
        except (msgspec.DecodeError, RecursionError) as problem:  # broken further on
            return self._not_json(text, problem)
        wrong = [f"there is no argument {name!r:.{_SHOWN}}" for name in given.keys() - self._names]
        for name, argument in self._arguments.items():
            if name not in given:
                wrong += [f"{name!r} is missing"] if argument.required else []
                continue
            try:
                msgspec.json.decode(given[name], type=argument.annotation)
            except (msgspec.DecodeError, RecursionError) as problem:
                where = _short(problem).replace(" - at `$", f" - at `{name}")
                wrong.append(f"{name!r}: {where}")
        return f"{self.name}: {'; '.join(sorted(wrong))}. {self._wanted()}"

    @property
    def _names(self) -> set[str]:
        return set(self._arguments)

    def _wanted(self) -> str:
        if not self._arguments:
            return f"{self.name} takes no arguments: give {{}}"
        listed = (f"{n}" if a.required else f"{n} (optional)" for n, a in self._arguments.items())
        return f"{self.name} takes: {', '.join(listed)}"


def json_value(value: Any) -> Any:
    """The value in plain JSON types, copied; ValueError where JSON cannot hold it."""
    try:
        # Deterministic, so that a set reads the same in every process.
        plain = msgspec.to_builtins(
            value, str_keys=True, order="deterministic", enc_hook=_plain_number
        )
        return json.loads(json.dumps(plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError, OverflowError) as problem:
        raise ValueError(str(problem)) from None


def _plain_number(value: Any) -> Any:
    # Numbers and arrays of numpy and torch.
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__qualname__}")


def _unset() -> msgspec.UnsetType:
    return msgspec.UNSET


def _short(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0][:_SHOWN] if str(problem) else repr(problem)


# --- Signatures ---------------------------------------------------------------------------------


def _name_of(function: Any) -> str:
    if not callable(function) or isinstance(function, type):
        raise InvalidInput(f"a tool is a function, got {function!r:.{_SHOWN}}")
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{function!r:.{_SHOWN}} has no name that a model could call it by (letters, digits "
            "and _, at most 64); write it as a function with def"
        )
    return name


def _parameters(name: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        found = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"tool {name!r} does not say what it takes; wrap it in a function of its own with def"
        ) from None
    for parameter in found.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise InvalidInput(
                f"tool {name!r}: a model cannot be told of {stars}{parameter.name}; write "
                "out the parameters one by one, or take one list or dict"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidInput(
                f"tool {name!r}: parameter {parameter.name!r} is positional-only, and a model "
                "gives arguments by name; remove the /"
            )
    return found


def _annotation(
    tool: str, function: Callable[..., Any], parameter: inspect.Parameter, *, must: bool = True
) -> Any:
    """What a parameter accepts, if msgspec can say it; with `must=False` anything where not."""
    annotation = parameter.annotation
    if annotation in (parameter.empty, object, "object", Any, "Any"):
        return Any
    inner = inspect.unwrap(function)
    module = getattr(getattr(inner, "__func__", inner), "__globals__", {})
    # One by one: what is imported for type checkers only may stand beside it.
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        annotation = typing.get_type_hints(holder, module, include_extras=True)["it"]
        if parameter.default is None:
            annotation = annotation | None
        msgspec.json.schema(annotation)
        msgspec.json.Decoder(annotation)
    except Exception as problem:
        if not must:
            return Any
        shown = parameter.annotation
        shown = shown if isinstance(shown, str) else inspect.formatannotation(shown)
        raise InvalidInput(
            f"tool {tool!r}: parameter {parameter.name!r} is annotated {shown}, of which no JSON "
            f"schema can be made ({_last_line(problem)}); use str, int, float, bool, list, dict, "
            "Literal, an Enum, a TypedDict or a dataclass of these, or inject it"
        ) from problem
    return annotation


def _last_line(problem: Exception) -> str:
    return (str(problem).strip().splitlines() or [type(problem).__name__])[-1]


# --- Docstrings ---------------------------------------------------------------------------------

_SECTION = re.compile(r"(args|arguments|parameters|params)\s*:\s*", re.IGNORECASE)
_FIELD = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)")
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")


def _summary(docstring: str) -> str:
    """The first paragraph, in one line."""
    lines = []
    for line in docstring.splitlines():
        if not line.strip() or _SECTION.fullmatch(line) or line.startswith(":"):
            break
        lines.append(line.strip())
    return " ".join(lines)


def _described_arguments(docstring: str) -> Iterator[tuple[str, str]]:
    """What a docstring says of each argument, in Google's, numpy's or Sphinx's way."""
    lines = docstring.splitlines()
    for number, line in enumerate(lines):
        rest = lines[number + 1 :]
        if match := _FIELD.match(line.strip()):
            more = _while(rest, lambda text: text.strip() and not text.lstrip().startswith(":"))
            yield match[1], _joined([match[2], *more])
        elif _SECTION.fullmatch(line.strip()):
            yield from _google(_while(rest, lambda text: not text.strip() or _indent(text) > 0))
        elif line.strip().lower() == "parameters" and rest and re.fullmatch(r"-{3,}\s*", rest[0]):
            yield from _numpy(_until_underlined(rest[1:]))


def _google(section: list[str]) -> Iterator[tuple[str, str]]:
    filled = [line for line in section if line.strip()]
    outer = min(map(_indent, filled), default=0)
    for entry in _entries(filled, outer):
        if match := _GOOGLE.fullmatch(entry[0].strip()):
            yield match[1], _joined([match[2], *entry[1:]])


def _numpy(section: list[str]) -> Iterator[tuple[str, str]]:
    for entry in _entries([line for line in section if line.strip()], 0):
        if match := _NUMPY.fullmatch(entry[0].strip()):
            for name in match[1].split(","):
                yield name.strip(" *"), _joined(entry[1:])


def _entries(lines: Iterable[str], outer: int) -> Iterator[list[str]]:
    """Lines at the outer indentation, each with the deeper ones after it."""
    entry: list[str] = []
    for line in lines:
        if _indent(line) <= outer:
            if entry:
                yield entry
            entry = []
        entry.append(line)
    if entry:
        yield entry


def _while(lines: list[str], holds: Callable[[str], Any]) -> list[str]:
    end = next((i for i, line in enumerate(lines) if not holds(line)), len(lines))
    return lines[:end]


def _until_underlined(lines: list[str]) -> list[str]:
    rulers = (i for i, line in enumerate(lines) if re.fullmatch(r"-{3,}\s*", line))
    return lines[: max(0, next(rulers, len(lines) + 1) - 1)]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())
