"""Python functions as the tools of a policy.

What the model does wrong (an unknown tool, arguments that do not fit, a call the tool refuses) is
told to the model, as precisely as it is known. What the environment does wrong is an error of the
item: a tool raises `EnvironmentFailed` to say so.
"""

from __future__ import annotations

import copy
import difflib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from heldout._aio import Threads, settle
from heldout.environment import Reply
from heldout.environments.functions import BadArguments, Function, json_value
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.types import Message, ToolCall, ToolSpec

Tool = Callable[..., Any]


class ToolEnvironment:
    """An environment of tools: plain or async functions, one rollout's state.

    A turn that calls tools is answered with their results, one after another in order. A turn
    that calls none has no reply, which ends the rollout; `reply_to_text` may say otherwise.

    `inject` gives parameters of those names their values: they are this rollout's state, and the
    model neither sees nor sets them. A successful call of a tool named in `ends` ends the
    episode. Plain functions run in a thread, since they may block; `in_threads=False` runs them
    in the event loop, which is faster for short ones.

    A subclass with tools of its own passes its methods: `super().__init__([self.look])`. It may
    add `outcome()`, and `snapshot()` with `restore()`.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        *,
        inject: Mapping[str, Any] | None = None,
        opening: Iterable[Message] = (),
        ends: Iterable[str] = (),
        in_threads: bool = True,
    ) -> None:
        self._inject = dict(inject or {})
        self._functions: dict[str, Function] = {}
        for tool in _listed(tools, "tools"):
            function = Function(tool, self._inject)
            if function.name in self._functions:
                raise InvalidInput(
                    f"two tools are named {function.name!r}; a model calls them by name, so "
                    "rename one"
                )
            self._functions[function.name] = function
        for name in self._inject:
            if not any(name in function.injected for function in self._functions.values()):
                raise InvalidInput(
                    f"inject has {name!r}, but no tool has a parameter of that name; "
                    f"the tools are {self._known()}"
                )
        self._opening = tuple(_listed(opening, "opening"))
        for message in self._opening:
            if not isinstance(message, Message):
                raise InvalidInput(f"opening is a list of Message, got {message!r:.200}")
        self._ends = tuple(_listed(ends, "ends"))
        for name in self._ends:
            if name not in self._functions:
                raise InvalidInput(
                    f"ends has {name!r}, which is no tool; the tools are {self._known()}"
                )
        self._in_threads = in_threads
        self._threads = Threads()

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return [copy.deepcopy(function.spec) for function in self._functions.values()]

    def opening(self) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        return self._opening

    async def reply(self, messages: Sequence[Message]) -> Reply:
        calls = messages[-1].tool_calls if messages else ()
        if not calls:
            return await settle(self.reply_to_text(messages))
        answers: list[Message] = []
        done = False
        for call in calls:
            if done:
                # Chat APIs want an answer to every call, but the episode is over.
                text = f"Error: not run, since {self._ends_named(calls)} ended the episode"
            else:
                text, worked = await self._answer(call)
                done = worked and call.name in self._ends
            answers.append(Message("tool", text, tool_call_id=call.id))
        return Reply(tuple(answers), done)

    def reply_to_text(self, messages: Sequence[Message]) -> Reply | Awaitable[Reply]:
        """Answer a turn that calls no tool: with nothing, unless a subclass knows better."""
        return Reply()

    async def close(self) -> None:
        self._threads.close()

    # --- One call ---

    async def _answer(self, call: ToolCall) -> tuple[str, bool]:
        """What the model is told, and whether the tool did its work."""
        function = self._functions.get(call.name)
        if function is None:
            near = difflib.get_close_matches(str(call.name), self._functions, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            return f"Error: there is no tool {call.name!r:.100}{hint}. {self._listing()}", False
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
            said = f": {problem}" if str(problem) else ""
            return f"Error: {type(problem).__name__}{said}", False
        return _as_text(function.name, result), True

    async def _call(self, function: Function, arguments: dict[str, Any]) -> Any:
        if function.is_async:
            return await function.function(**arguments)
        if not self._in_threads:
            return await settle(function.function(**arguments))
        # Settled, since a plain function may hand back a coroutine.
        return await settle(await self._threads.run(partial(function.function, **arguments)))

    def _known(self) -> str:
        return ", ".join(self._functions) or "none"

    def _listing(self) -> str:
        return f"The tools are: {self._known()}" if self._functions else "There are no tools"

    def _ends_named(self, calls: Iterable[ToolCall]) -> str:
        return next(call.name for call in calls if call.name in self._ends)

    # --- Snapshots ---

    def snapshot(self) -> dict[str, Any]:
        """Return what was injected, as plain JSON values.

        Returns:
            The state. A subclass with state of its own returns that.

        Raises:
            NotImplementedError: A subclass does not say what its state is.
            InvalidInput: An injected value would not come back from JSON as it is.
        """
        if type(self) is not ToolEnvironment:
            raise NotImplementedError(
                f"{type(self).__name__} may have state of its own; define snapshot() and restore()"
            )
        return {name: self._to_json(name, value) for name, value in self._inject.items()}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take up the state of a snapshot.

        Args:
            snapshot: What `snapshot` returned.

        Raises:
            InvalidInput: It is not a snapshot of what is injected here.
        """
        if snapshot.keys() != self._inject.keys():
            raise InvalidInput(
                f"the snapshot holds {sorted(snapshot)}, and {type(self).__name__} has "
                f"{sorted(self._inject)} injected; a subclass defines both snapshot() and restore()"
            )
        self._inject.update(self._from_json(snapshot))

    def _from_json(self, snapshot: Mapping[str, Any]) -> dict[str, Any]:
        """Convert injected values to the types that the tools' parameters have."""
        types: dict[str, Any] = dict.fromkeys(snapshot, Any)
        for function in self._functions.values():
            for name, annotation in function.injected.items():
                if types.get(name) is Any:
                    types[name] = annotation
        try:
            return {n: msgspec.convert(v, types[n], str_keys=True) for n, v in snapshot.items()}
        except msgspec.ValidationError as problem:
            raise InvalidInput(
                f"what the snapshot holds does not fit the tools' parameters: {problem}"
            ) from None

    def _to_json(self, name: str, value: Any) -> Any:
        """Convert an injected value, if the same value will come back."""
        kind = type(value).__name__
        try:
            plain = json_value(value)
        except ValueError as problem:
            raise InvalidInput(
                f"the injected {name!r}, a {kind}, cannot be put in a snapshot: JSON has no word "
                f"for it ({problem}); keep it in a dict, a list or a dataclass"
            ) from None
        try:
            same = _same(self._from_json({name: copy.deepcopy(plain)})[name], value)
        except InvalidInput:
            same = False
        if not same:
            raise InvalidInput(
                f"the injected {name!r}, a {kind}, would not come back from a snapshot as it is; "
                f"annotate the parameter {name!r} of the tools with its type (a dataclass, "
                "say), or keep it in plain dicts and lists"
            )
        return plain


def _same(restored: Any, value: Any) -> bool:
    """Equal and of the same types throughout: a defaultdict is equal to the dict it becomes."""
    if type(restored) is not type(value):
        return False
    if isinstance(value, dict):
        return len(restored) == len(value) and all(
            key in restored and _same(restored[key], part) for key, part in value.items()
        )
    if isinstance(value, list | tuple):
        both = zip(restored, value, strict=False)
        return len(restored) == len(value) and all(_same(*pair) for pair in both)
    return bool(restored == value)


def _listed(values: Any, what: str) -> list[Any]:
    # A text would come apart into its letters.
    if isinstance(values, str | Message) or not isinstance(values, Iterable):
        raise InvalidInput(f"{what} is a list, got {values!r:.200}")
    return list(values)


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
