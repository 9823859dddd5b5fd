"""Python functions as the tools of a policy.

A mistake of the model (an unknown tool, arguments that do not fit, an exception in the tool) is
answered with a message that says what is wrong. A failure of the environment is an error of the
item: a tool raises `EnvironmentFailed` for it.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import types
import typing
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import docstring_parser
import msgspec

from heldout._core.aio import Threads, is_async, settle
from heldout.environment import Reply, check_messages, make_snapshot, read_snapshot
from heldout.errors import UNENCODABLE, UNREADABLE, EnvironmentFailed, InvalidInput
from heldout.types import Message, ToolCall, ToolSpec

Tool = Callable[..., Any]
"""A function that a policy may call; its signature and docstring are its description."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # names of tools that OpenAI-compatible servers accept


class ToolEnvironment:
    """An environment of tools: plain or async functions, and the state of one rollout.

    A turn that calls tools is answered with their results, in order. A turn that calls none has no
    reply, which ends the rollout, unless a subclass defines `reply_to_text`.

    A subclass with tools of its own passes its methods: `super().__init__([self.look])`. It may
    add `outcome()`, and `snapshot()` with `restore()`, `env_kind` and `version`.
    """

    env_kind = "tool_environment"
    version = "1.0"

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        inject: Mapping[str, Any] | None = None,
        opening: Iterable[Message] = (),
        ends: Iterable[str] = (),
        in_threads: bool = True,
    ) -> None:
        """Make the environment of one rollout.

        Args:
            tools: The functions. Signatures become schemas, docstrings descriptions.
            inject: Values of parameters that the model neither sees nor sets: this rollout's state.
            opening: Messages that follow the sample's own.
            ends: Names of tools whose successful call ends the episode.
            in_threads: Whether plain functions run in a thread, since they may block. Short ones
                are faster in the event loop.

        Raises:
            InvalidInput: If a function cannot be a tool, or a name fits none.
        """
        self._inject = dict(inject or {})
        self._functions: dict[str, Function] = {}
        self._callables: dict[str, Tool] = {}
        for tool in tools:
            function = read_function(tool, self._inject)
            if function.name in self._functions:
                raise InvalidInput(
                    f"two tools are named {function.name!r}; a model calls them by name, so "
                    "rename one"
                )
            self._functions[function.name], self._callables[function.name] = function, tool
        self._opening, self._ends = tuple(opening), tuple(ends)
        check_messages(self._opening, "opening must be a list of Message")
        parameters = {name for f in self._functions.values() for name in f.injected}
        for name in self._inject.keys() - parameters:
            raise InvalidInput(
                f"inject has {name!r}, but no tool has a parameter of that name; the tools are "
                f"{self._names()}"
            )
        for name in self._ends:
            if name not in self._functions:
                raise InvalidInput(
                    f"ends has {name!r}, which is no tool; the tools are {self._names()}"
                )
        self._in_threads = in_threads
        self._threads = Threads()

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What the policy may call."""
        return [function.spec for function in self._functions.values()]

    def opening(self) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Return the messages before the first model turn."""
        return self._opening

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Execute the calls of the last model turn; without any, `reply_to_text` answers.

        Raises:
            EnvironmentFailed: If a tool raised it, or returned what JSON cannot hold.
        """
        calls = messages[-1].tool_calls
        if not calls:
            return await settle(self.reply_to_text(messages))
        answers: list[Message] = []
        ended_by: str | None = None
        for call in calls:
            # Chat APIs want an answer to every call, even after the end.
            text, succeeded = f"Error: not run, since {ended_by} ended the episode", False
            if ended_by is None:
                text, succeeded = await self._answer(call)
            if succeeded and call.name in self._ends:
                ended_by = call.name
            answers.append(Message("tool", text, tool_call_id=call.id))
        return Reply(tuple(answers), done=ended_by is not None)

    def reply_to_text(self, messages: Sequence[Message]) -> Reply | Awaitable[Reply]:
        """Answer a turn that calls no tool: with nothing, unless a subclass defines it."""
        return Reply()

    async def close(self) -> None:
        """End the threads."""
        self._threads.close()

    async def _answer(self, call: ToolCall) -> tuple[str, bool]:
        """Execute a call: the text for the model, and whether the tool succeeded."""
        function = self._functions.get(call.name)
        if function is None:
            similar = difflib.get_close_matches(call.name, self._functions, n=1)
            hint = f" (did you mean {similar[0]}?)" if similar else ""
            listing = f"The tools are: {self._names()}" if self._functions else "There are no tools"
            return f"Error: there is no tool {call.name!r:.100}{hint}. {listing}", False
        try:
            arguments = function.arguments(call.arguments)
        except BadArguments as problem:
            return f"Error: {problem}", False
        arguments |= {name: self._inject[name] for name in function.injected}
        try:
            result = await self._call(function, arguments)
        except EnvironmentFailed:
            raise
        except (Exception, SystemExit) as problem:  # argparse exits, for one
            if isinstance(problem, ExceptionGroup) and problem.subgroup(EnvironmentFailed):
                raise
            detail = f": {problem}" if str(problem) else ""
            return f"Error: {type(problem).__name__}{detail}", False
        return _as_text(function.name, result), True

    async def _call(self, function: Function, arguments: dict[str, Any]) -> Any:
        call = partial(self._callables[function.name], **arguments)
        if function.is_async or not self._in_threads:
            return await settle(call())
        # A plain function may return a coroutine.
        return await settle(await self._threads.run(call))

    def _names(self) -> str:
        return ", ".join(self._functions) or "none"

    # --- Snapshots ---

    def snapshot(self) -> dict[str, Any]:
        """Return what was injected, as plain JSON values; a subclass returns its own state.

        Raises:
            NotImplementedError: A subclass does not say what its state is.
            InvalidInput: An injected value would not come back from JSON as it is.
        """
        if type(self) is not ToolEnvironment:
            raise NotImplementedError(
                f"{type(self).__name__} may have state of its own; define env_kind, version, "
                "snapshot() and restore()"
            )
        state = {}
        for name, value in self._inject.items():
            try:
                state[name] = json_value(value)
                is_same = bool(msgspec.convert(state[name], type(value)) == value)
            except (ValueError, TypeError, msgspec.ValidationError):
                is_same = False
            if not is_same:
                raise InvalidInput(
                    f"the injected {name!r}, a {type(value).__name__}, would not come back from a "
                    "snapshot as it is, since that is JSON; keep it in plain dicts and lists, or "
                    "in a dataclass of them"
                )
        return make_snapshot(self, state)

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore the state of a snapshot.

        Raises:
            SnapshotMismatch: It is of another kind of environment, or of another major version.
            InvalidInput: It is not a snapshot of what is injected here.
        """
        state = read_snapshot(self, snapshot)
        try:
            restored = {
                name: msgspec.convert(state[name], type(value))
                for name, value in self._inject.items()
            }
        except (KeyError, msgspec.ValidationError) as problem:
            raise InvalidInput(
                f"this is no snapshot of what is injected here, {sorted(self._inject)}: "
                f"{problem!r}; a subclass defines both snapshot() and restore()"
            ) from None
        self._inject.update(restored)


def _as_text(tool: str, result: Any) -> str:
    if isinstance(result, str):
        return str.__str__(result)
    try:
        return json.dumps(json_value(result), ensure_ascii=False)
    except ValueError as problem:
        raise EnvironmentFailed(
            f"tool {tool!r} returned a {type(result).__name__}, which JSON cannot hold "
            f"({problem}); return text, or plain values"
        ) from None


# --- Functions as tools --------------------------------------------------------------------------


class BadArguments(Exception):
    """Arguments that do not fit a tool; the message is for the model."""


class Function:
    """What a plain or async function takes, read from its signature and docstring.

    One struct is built from the signature. The JSON schema and the decoder of the model's arguments
    both come from it, so the two cannot disagree.

    Attributes:
        name: Its name as a tool.
        is_async: Whether it must be awaited.
        injected: The parameters that the model does not set.
        spec: The tool as the model sees it.
    """

    def __init__(self, function: Tool, injected: Collection[str] = ()) -> None:
        self.name = _tool_name(function)
        self.is_async = is_async(function)
        parameters = _read_parameters(self.name, function)
        self.injected = [name for name in parameters if name in injected]
        fields: list[tuple[str, Any, Any]] = []
        for name, parameter in parameters.items():
            if name in injected:
                continue
            annotation = _resolve_annotation(self.name, function, parameter)
            # A missing argument stays unset: its default is the function's to fill in.
            is_required = parameter.default is parameter.empty
            default = msgspec.field() if is_required else msgspec.field(default=msgspec.UNSET)
            fields.append((name, annotation, default))
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
        """Decode a model's arguments; an empty text is a call without, as some servers write it.

        Raises:
            BadArguments: If they do not fit, with what is wrong and what the function takes.
        """
        try:
            decoded = self._decoder.decode(text if text.strip() else "{}")
        except UNREADABLE as problem:
            schema = self.spec.parameters
            names = [
                n if n in schema["required"] else f"{n} (optional)" for n in schema["properties"]
            ]
            takes = f"a JSON object with {', '.join(names)}" if names else "no arguments: give {}"
            raise BadArguments(
                f"the arguments of {self.name} do not fit: {str(problem)[:200] or repr(problem)}; "
                f"{self.name} takes {takes}"
            ) from None
        values = msgspec.structs.asdict(decoded)
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}


_READ: WeakKeyDictionary[Any, dict[tuple[Any, ...], Function]] = WeakKeyDictionary()


def read_function(function: Tool, injected: Collection[str]) -> Function:
    """Read a function once for all environments that use it, which takes some 2 ms."""
    inner = getattr(function, "__func__", function)
    readings = _READ.setdefault(inner, {}) if inspect.isfunction(inner) else {}
    key = (inner is function, *injected)
    if key not in readings:
        readings[key] = Function(function, injected)
    return readings[key]


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
        raise InvalidInput(f"a tool must be a function, got {function!r:.200}")
    name = getattr(function, "__name__", "")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{function!r:.200} has no name that a model could call it by (letters, digits and _, "
            "at most 64); write it as a function with def"
        )
    return str(name)


def _read_parameters(name: str, function: Tool) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"tool {name!r} has no signature to read; wrap it in a function of its own with def"
        ) from None
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            text = str(parameter).partition(":")[0]
            raise InvalidInput(
                f"tool {name!r}: a model passes arguments by name, which {text} does not allow; "
                "write out the parameters one by one, without /, * and **"
            )
    return parameters


def _resolve_annotation(tool: str, function: Tool, parameter: inspect.Parameter) -> Any:
    """Find the type that msgspec decodes a parameter with."""
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
        text = inspect.formatannotation(parameter.annotation).strip("'")
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[-1]
        raise InvalidInput(
            f"tool {tool!r}: parameter {parameter.name!r} is annotated {text}, which has no JSON "
            f"schema ({reason}); use str, int, float, bool, list, dict, Literal, an Enum, a "
            "TypedDict or a dataclass of these, or inject it"
        ) from problem
    return annotation


def _read_docstring(docstring: str) -> tuple[str, dict[str, str]]:
    """Read the first paragraph of a docstring, and its descriptions of arguments."""
    try:
        parsed = docstring_parser.parse(docstring)
    except (docstring_parser.ParseError, IndexError):  # it raises IndexError for ": :"
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
