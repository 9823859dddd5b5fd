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
from typing import Any
from weakref import WeakKeyDictionary

import docstring_parser
import msgspec

from heldout._aio import is_async
from heldout.errors import UNENCODABLE, UNREADABLE, InvalidInput
from heldout.types import ToolSpec

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # names of tools that OpenAI-compatible servers accept


class BadArguments(Exception):
    """Arguments that do not fit a tool; the message is for the model."""


class Function:
    """What a plain or async function takes: the schema and the decoder of its arguments.

    Attributes:
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
        self.name = _tool_name(function)
        self.is_async = is_async(function)
        self.injected: dict[str, Any] = {}
        self._fields: dict[str, str] = {}
        """Parameters to fields of the struct, which may not have all names."""
        parameters = _read_parameters(self.name, function)
        fields: list[tuple[str, Any, Any]] = []
        for name, parameter in parameters.items():
            is_injected = name in injected
            annotation = _resolve_annotation(self.name, function, parameter, is_injected)
            if is_injected:
                self.injected[name] = annotation
                continue
            self._fields[name] = f"argument_{len(fields)}"
            # A missing argument stays unset: its default is the function's to fill in.
            default: dict[str, Any] = {"default_factory": lambda: msgspec.UNSET}
            if parameter.default is parameter.empty:
                default = {}
            fields.append((self._fields[name], annotation, msgspec.field(name=name, **default)))
        struct = msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)
        self._decoder = msgspec.json.Decoder(struct)
        self.spec = self._make_spec(struct, parameters, inspect.getdoc(function) or "")

    def _make_spec(
        self, struct: type, parameters: dict[str, inspect.Parameter], docstring: str
    ) -> ToolSpec:
        (top,), definitions = msgspec.json.schema_components(
            [struct], ref_template="#/$defs/{name}"
        )
        schema: dict[str, Any] = definitions.pop(top["$ref"].rpartition("/")[2])
        schema.pop("title", None)
        if definitions:
            schema["$defs"] = definitions
        summary, descriptions = _read_docstring(docstring)
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
            BadArguments: If they do not fit, with what is wrong and what the function takes.
        """
        try:
            decoded = self._decoder.decode(text if text.strip() else "{}")
        except UNREADABLE as problem:
            required = self.spec.parameters["required"]
            names = [name if name in required else f"{name} (optional)" for name in self._fields]
            takes = f"a JSON object with {', '.join(names)}" if names else "no arguments: give {}"
            raise BadArguments(
                f"the arguments of {self.name} do not fit: {str(problem)[:200] or repr(problem)}; "
                f"{self.name} takes {takes}"
            ) from None
        values = {name: getattr(decoded, field) for name, field in self._fields.items()}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}


_READ: WeakKeyDictionary[Any, dict[tuple[Any, ...], Function]] = WeakKeyDictionary()


def read_function(function: Callable[..., Any], injected: Collection[str]) -> Function:
    """Read a function once for all environments that use it, which takes some 2 ms."""
    inner = getattr(function, "__func__", function)
    known = _READ.setdefault(inner, {}) if inspect.isfunction(inner) else {}
    key = (inner is function, *injected)
    if key not in known:
        known[key] = Function(function, injected)
    return known[key]


def json_value(value: Any) -> Any:
    """Convert a value to plain JSON types, as a copy; numbers and arrays of NumPy and torch too.

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


def _tool_name(function: Any) -> str:
    if not callable(function) or isinstance(function, type):
        raise InvalidInput(f"a tool is a function, got {function!r:.200}")
    name = getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{function!r:.200} has no name that a model could call it by (letters, digits and _, "
            "at most 64); write it as a function with def"
        )
    return str(name)


def _read_parameters(name: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"tool {name!r} has no signature to read; wrap it in a function of its own with def"
        ) from None
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            shown = str(parameter).partition(":")[0]
            raise InvalidInput(
                f"tool {name!r}: a model passes arguments by name, which {shown} does not allow; "
                "write out the parameters one by one, without /, * and **"
            )
    return parameters


def _resolve_annotation(
    tool: str, function: Callable[..., Any], parameter: inspect.Parameter, is_injected: bool
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
        shown = inspect.formatannotation(parameter.annotation).strip("'")
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
