"""A Python function as a tool: the schema that a model sees, and the arguments that it may pass.

One struct is built from the signature. The JSON schema and the decoder of the model's arguments
both come from it, so the two cannot disagree.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import docstring_parser
import msgspec

from heldout._aio import is_async
from heldout.errors import UNENCODABLE, UNREADABLE, InvalidInput
from heldout.types import ToolSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # names of tools that OpenAI-compatible servers accept
_MAX_SHOWN = 200


class BadArguments(Exception):
    """Arguments that do not fit a tool; the message is for the model."""


@dataclass(frozen=True, slots=True)
class _Argument:
    field: str
    """The name of the struct's field."""
    annotation: Any
    required: bool


class Function:
    """A plain or async function with the schema and the decoder of its arguments.

    Attributes:
        function: The function itself.
        name: Its name as a tool.
        is_async: Whether it must be awaited.
        injected: The parameters that the model does not set, with their types.
        spec: The tool as the model sees it.
    """

    def __init__(self, function: Callable[..., Any], injected: Collection[str] = ()) -> None:
        """Read a function's signature and docstring.

        Args:
            function: The function.
            injected: Names of parameters that the environment sets instead of the model.

        Raises:
            InvalidInput: If the function cannot be a tool.
        """
        self.function = function
        self.name = _tool_name(function)
        self.is_async = is_async(function)
        parameters = _read_parameters(self.name, function)
        self.injected = {
            name: _resolve_annotation(self.name, function, parameter, is_injected=True)
            for name, parameter in parameters.items()
            if name in injected
        }
        self._arguments: dict[str, _Argument] = {}
        fields: list[tuple[str, Any, Any]] = []
        for name, parameter in parameters.items():
            if name in injected:
                continue
            annotation = _resolve_annotation(self.name, function, parameter)
            required = parameter.default is parameter.empty
            # Numbered, since a parameter may have a name that structs use themselves. A missing
            # argument stays unset: its default is the function's to fill in.
            field = f"argument_{len(fields)}"
            self._arguments[name] = _Argument(field, annotation, required)
            default: Any = {} if required else {"default_factory": lambda: msgspec.UNSET}
            fields.append((field, annotation, msgspec.field(name=name, **default)))
        struct = msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(struct)
        self.spec = self._make_spec(struct, parameters)

    def _make_spec(self, struct: type, parameters: dict[str, inspect.Parameter]) -> ToolSpec:
        (top,), definitions = msgspec.json.schema_components(
            [struct], ref_template="#/$defs/{name}"
        )
        schema: dict[str, Any] = definitions.pop(top["$ref"].rpartition("/")[2])
        schema.pop("title", None)
        if definitions:
            schema["$defs"] = definitions
        summary, descriptions = _read_docstring(inspect.getdoc(self.function) or "")
        for name, property_schema in schema["properties"].items():
            if name in descriptions:
                property_schema.setdefault("description", descriptions[name])
            try:
                property_schema["default"] = json_value(parameters[name].default)
            except ValueError:
                pass  # there is no default, or none that JSON can show
        return ToolSpec(self.name, summary, schema)

    def arguments(self, text: str) -> dict[str, Any]:
        """Decode a model's arguments.

        Args:
            text: The JSON that the model wrote. An empty text is a call without arguments, as some
                servers write it.

        Returns:
            Keyword arguments for the function.

        Raises:
            BadArguments: If they do not fit, with everything that is wrong.
        """
        text = text if text.strip() else "{}"
        try:
            decoded = self._decoder.decode(text)
        except msgspec.ValidationError:
            raise BadArguments(self._explain(text)) from None
        except UNREADABLE as problem:
            raise BadArguments(self._explain_json(text, problem)) from None
        values = {name: getattr(decoded, a.field) for name, a in self._arguments.items()}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}

    def _explain(self, text: str) -> str:
        """List everything that is wrong with arguments that are JSON."""
        try:
            values = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except msgspec.ValidationError as problem:
            kind = _first_line(problem).rpartition("got ")[2].strip("`")
            return f"the arguments of {self.name} are a JSON object, got {kind}. {self._usage()}"
        except UNREADABLE as problem:  # invalid behind the first value that does not fit
            return self._explain_json(text, problem)
        unknown = values.keys() - self._arguments.keys()
        problems = [f"there is no argument {name!r:.{_MAX_SHOWN}}" for name in unknown]
        for name, argument in self._arguments.items():
            if name not in values:
                problems += [f"{name!r} is missing"] if argument.required else []
                continue
            try:
                msgspec.json.decode(values[name], type=argument.annotation)
            except UNREADABLE as problem:
                problems.append(
                    f"{name!r}: {_first_line(problem).replace(' - at `$', f' - at `{name}')}"
                )
        return f"{self.name}: {'; '.join(sorted(problems))}. {self._usage()}"

    def _explain_json(self, text: str, problem: Exception) -> str:
        return (
            f"the arguments of {self.name} are not JSON ({_first_line(problem)}): "
            f"{text!r:.{_MAX_SHOWN}}. {self._usage()}"
        )

    def _usage(self) -> str:
        if not self._arguments:
            return f"{self.name} takes no arguments: give {{}}"
        names = (n if a.required else f"{n} (optional)" for n, a in self._arguments.items())
        return f"{self.name} takes: {', '.join(names)}"


def json_value(value: Any) -> Any:
    """Convert a value to plain JSON types, as a copy.

    Args:
        value: Anything; numbers and arrays of NumPy and torch are understood.

    Returns:
        Dicts, lists, texts, numbers, booleans and None.

    Raises:
        ValueError: If JSON cannot hold it.
    """
    try:
        # Deterministic, so that a set is the same list in every process.
        plain = msgspec.to_builtins(
            value, str_keys=True, order="deterministic", enc_hook=_array_to_list
        )
        return json.loads(json.dumps(plain, allow_nan=False))
    except (*UNENCODABLE, ValueError) as problem:
        raise ValueError(str(problem)) from None


def _array_to_list(value: Any) -> Any:
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__qualname__}")


def _first_line(problem: Exception) -> str:
    return str(problem).strip().splitlines()[0][:_MAX_SHOWN] if str(problem) else repr(problem)


def _tool_name(function: Any) -> str:
    if not callable(function) or isinstance(function, type):
        raise InvalidInput(f"a tool is a function, got {function!r:.{_MAX_SHOWN}}")
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{function!r:.{_MAX_SHOWN}} has no name that a model could call it by (letters, "
            "digits and _, at most 64); write it as a function with def"
        )
    return name


def _read_parameters(name: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"tool {name!r} has no signature to read; wrap it in a function of its own with def"
        ) from None
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            shown = str(parameter).partition(":")[0]
            raise InvalidInput(
                f"tool {name!r}: a schema cannot describe {shown}; write out the parameters one by "
                "one, or take one list or dict"
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise InvalidInput(
                f"tool {name!r}: parameter {parameter.name!r} is positional-only, and a model "
                "passes arguments by name; remove the /"
            )
    return parameters


def _resolve_annotation(
    tool: str,
    function: Callable[..., Any],
    parameter: inspect.Parameter,
    *,
    is_injected: bool = False,
) -> Any:
    """Find the type that msgspec decodes a parameter with; any, for an injected one it cannot."""
    annotation = parameter.annotation
    if annotation in (parameter.empty, object, "object", Any, "Any"):
        return Any
    inner = inspect.unwrap(function)
    module = getattr(getattr(inner, "__func__", inner), "__globals__", {})
    # One at a time: another parameter may have a type that is imported for type checkers only.
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        annotation = typing.get_type_hints(holder, module, include_extras=True)["it"]
        if parameter.default is None:
            annotation = annotation | None
        msgspec.json.schema(annotation)
        msgspec.json.Decoder(annotation)
    except (TypeError, ValueError, NameError, AttributeError, SyntaxError) as problem:
        if is_injected:
            return Any
        shown = parameter.annotation
        shown = shown if isinstance(shown, str) else inspect.formatannotation(shown)
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[-1]
        raise InvalidInput(
            f"tool {tool!r}: parameter {parameter.name!r} is annotated {shown}, which has no JSON "
            f"schema ({reason}); use str, int, float, bool, list, dict, Literal, an Enum, a "
            "TypedDict or a dataclass of these, or inject it"
        ) from problem
    return annotation


def _read_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Read the first paragraph of a docstring, and its descriptions of arguments."""
    try:
        parsed = docstring_parser.parse(docstring)
    except docstring_parser.ParseError:
        return _join_lines(docstring.split("\n\n")[0]), {}
    summary = parsed.short_description or ""
    if parsed.long_description and not parsed.blank_after_short_description:
        summary += "\n" + parsed.long_description.split("\n\n")[0]
    descriptions = {
        name.strip(" *"): _join_lines(parameter.description)
        for parameter in parsed.params
        if parameter.description
        for name in parameter.arg_name.split(",")  # NumPy's `x, y : int`
    }
    return _join_lines(summary), descriptions


def _join_lines(text: str) -> str:
    return " ".join(text.split())
