"""check_environment(): every rule for environments, one after another; all violations listed."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import anyio

from heldout._aio import settle
from heldout.environment import (
    Environment,
    HasSnapshots,
    Reply,
    check_environment_shape,
    check_messages,
)
from heldout.errors import InvalidInput
from heldout.types import Message, ToolCall, ToolSpec

EnvironmentMaker = Callable[[], Environment | Awaitable[Environment]]


class ContractViolation(AssertionError):
    """An environment does not do what the turn loop relies on.

    Attributes:
        violations: What is wrong, one line each.
    """

    def __init__(self, violations: Iterable[str]) -> None:
        self.violations = tuple(violations)
        lines = "".join(f"\n- {violation}" for violation in self.violations)
        super().__init__(f"{len(self.violations)} violation(s) of the environment contract:{lines}")


def check_environment(
    factory: EnvironmentMaker, *, turns: Sequence[str | Message] = ()
) -> list[str]:
    """Check an environment against the protocol in `heldout.environment`.

    Environments must do the same when they are made again: seed everything that is random. This
    runs an event loop of its own, so it is called from plain code.

    Args:
        factory: Makes a new environment.
        turns: Model turns for an episode, as texts or messages; by default one call of every tool.
            Plain text, and right and wrong calls of every tool, are tried in any case: tools are
            really called.

    Returns:
        What was checked, one line each.

    Raises:
        ContractViolation: With everything that is wrong.
        InvalidInput: If `turns` are no model turns.
    """
    check = _Check(factory, [_as_turn(turn) for turn in turns])
    anyio.run(check.run)
    if check.violations:
        raise ContractViolation(check.violations)
    return check.checked


def _as_turn(value: str | Message) -> Message:
    turn = Message("assistant", value) if isinstance(value, str) else value
    if not isinstance(turn, Message) or turn.role != "assistant":
        raise InvalidInput(f"turns are texts or assistant messages, got {value!r:.200}")
    return turn


class _Failed(Exception):
    """A check cannot go on; a violation says why."""


class _Check:
    """One run of all checks."""

    def __init__(self, factory: EnvironmentMaker, turns: list[Message]) -> None:
        self.factory, self.turns = factory, turns
        self.violations: dict[str, None] = {}
        """In order, each once."""
        self.checked: list[str] = []

    def fail(self, violation: str) -> None:
        self.violations[violation] = None

    async def attempt(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the environment; what it raises is a violation."""
        try:
            return await settle(function(*arguments))
        except Exception as problem:
            self.fail(f"{what} raised {type(problem).__name__}: {problem}"[:300])
            raise _Failed from problem

    async def attempt_json(self, what: str, where: str, function: Callable[[], Any]) -> Any:
        """Call a function that returns a dict of plain JSON values, and copy the dict."""
        value = await self.attempt(f"{what}, {where},", function)
        problem = _not_json(value)
        if not isinstance(value, dict):
            problem = f"is a dict, got {value!r:.200}"
        if problem:
            self.fail(f"{what}: {problem}")
            raise _Failed
        return copy.deepcopy(value)

    @asynccontextmanager
    async def make(self, closed_after: str) -> AsyncIterator[_Episode]:
        """Make an environment, and close it at the end."""
        environment = await self.attempt("factory", self.factory)
        await self.attempt("factory", check_environment_shape, environment)
        try:
            yield _Episode(self, environment)
        finally:
            with suppress(_Failed):
                await self.attempt(f"close {closed_after}", environment.close)

    async def run(self) -> None:
        with suppress(_Failed):
            tools = await self._check_factory()
            if not self.turns:
                calls = (_calling((tool.name, _plausible_json(tool))) for tool in tools)
                self.turns = [*calls, Message("assistant", "Done.")]
            await self._check_mistakes(tools)
            with suppress(_Failed):
                await self._check_episodes(tools)
            await self._check_snapshots()

    async def _check_factory(self) -> list[ToolSpec]:
        new = "right after it was made"
        async with self.make(new) as first, self.make(new) as second:
            if first.environment is second.environment:
                self.fail(
                    "factory: returned the same object twice; each rollout closes its own, so make "
                    "a new one every time"
                )
                raise _Failed
            tools = first.tools("tools")
            if tools != second.tools("tools"):
                self.fail("tools: differ between two new environments")
        with suppress(_Failed):
            async with self.make("after opening only") as episode:
                await episode.open()
        self.checked += [
            "factory: a new environment every time",
            f"tools: {len(tools)}, with unique names and JSON schemas of objects",
            "close: right after it was made, after opening, after an episode",
        ]
        return tools

    async def _check_mistakes(self, tools: list[ToolSpec]) -> None:
        """Check that mistakes of a model are answered instead of raised."""
        mistakes = list(_mistakes(tools))
        for what, turn in mistakes:
            with suppress(_Failed):
                async with self.make(f"after {what}") as episode:
                    await episode.open()
                    await episode.take(turn, what)
                    await episode.outcome(f"after {what}")
        self.checked.append(f"reply: to {len(mistakes)} turns that a model may get wrong")

    async def _check_episodes(self, tools: list[ToolSpec]) -> None:
        """Check that an environment answers, and does not change when others are used."""
        records: list[_Record] = []
        async with self.make("though nothing was done to it") as unused:
            before = await unused.outcome("before anything happened")
            for _ in range(2):
                async with self.make("after an episode") as episode:
                    records.append(await episode.run(self.turns))
                    if episode.tools("tools, after an episode") != tools:
                        self.fail("tools: changed during an episode; a policy gets them once")
            if await unused.outcome("before anything happened") != before:
                self.fail("instances share state: one changed while another was used")
        if records[0] != records[1]:
            self.fail(
                "instances share state, or act by chance: a new environment answered the same "
                "turns differently than the one before it"
            )
        self.checked.append(f"reply: to the {len(records[0].replies)} turns of an episode")
        if records[0].outcome is not None:
            self.checked.append("outcome: a dict of plain JSON values")
        self.checked.append("instances: do not share state")

    # --- Snapshots ---

    async def _check_snapshots(self) -> None:
        async with self.make("after opening only") as episode:
            environment = episode.environment
            if not isinstance(environment, HasSnapshots):
                for method, other in (("snapshot", "restore"), ("restore", "snapshot")):
                    if callable(getattr(environment, method, None)):
                        self.fail(f"snapshots: there is {method}(), but no {other}()")
                self.checked.append("snapshots: none, since there is no snapshot()")
                return
            await episode.open()
            try:
                await settle(environment.snapshot())
            except NotImplementedError as problem:
                self.checked.append(f"snapshots: none: {problem}")
                return
            except Exception:  # noqa: BLE001 - raised again, and reported, below
                pass
        points = 0
        while points <= len(self.turns) and await self._check_restoring(points):
            points += 1
        self.checked.append(f"snapshots: JSON, and an episode goes on from {points} point(s) of it")

    async def _check_restoring(self, turns_done: int) -> bool:
        """Continue an episode from a snapshot; False if it is over before so many turns."""
        where = f"after {turns_done} turn(s)"
        async with (
            self.make("after an episode") as original,
            self.make("after an episode that was restored") as restored,
        ):
            await original.open()
            for turn in self.turns[:turns_done]:
                await original.take(turn)
            if original.is_over and turns_done:
                return False
            snapshot = await original.snapshot(where)
            what = f"restore of a snapshot taken {where}"
            await self.attempt(what, restored.environment.restore, copy.deepcopy(snapshot))
            restored.conversation = list(original.conversation)
            if await restored.snapshot(f"of what was restored {where}") != snapshot:
                self.fail(
                    f"snapshots: restored {where}, it has another snapshot than the one it was "
                    "restored from"
                )
            original.replies.clear()
            for turn in self.turns[turns_done:]:
                await original.take(turn)
                await restored.take(turn)
            expected, record = await original.end(), await restored.end()
            if expected.replies != record.replies:
                self.fail(f"snapshots: restored {where}, it replies otherwise than the original")
            elif expected.outcome != record.outcome:
                self.fail(
                    f"snapshots: restored {where}, it comes to another outcome than the original"
                )
        return True


class _Record(NamedTuple):
    """Everything that an environment said in an episode."""

    opening: list[Message]
    replies: list[Reply]
    outcome: Any


class _Episode:
    """An environment and the conversation with it; every step is checked."""

    def __init__(self, check: _Check, environment: Any) -> None:
        self.check, self.environment = check, environment
        self.conversation = [Message("user", "Begin.")]
        self.opening: list[Message] = []
        self.replies: list[Reply] = []
        self.is_over = False

    async def run(self, turns: Iterable[Message]) -> _Record:
        await self.open()
        for turn in turns:
            await self.take(turn)
        return await self.end()

    async def open(self) -> None:
        opening = await self.check.attempt("opening", self.environment.opening)
        try:
            check_messages(opening, "opening: is a list of Message")
        except InvalidInput as problem:
            self.check.fail(str(problem))
            raise _Failed from problem
        self.opening = list(opening)
        self.conversation += self.opening

    async def take(self, turn: Message, what: str | None = None) -> None:
        """Take one model turn, unless the episode is over."""
        if self.is_over:
            return
        self.conversation.append(turn)
        calls = ", ".join(f"{call.name}({call.arguments})" for call in turn.tool_calls)
        reply = await self._reply(f"reply to {what or f'the turn {calls or turn.text!r:.200}'}")
        self.replies.append(reply)
        self.conversation += reply.messages
        self.is_over = reply.done or not reply.messages

    async def _reply(self, what: str) -> Reply:
        messages = tuple(self.conversation)
        before = copy.deepcopy(messages)
        reply = await self.check.attempt(what, self.environment.reply, messages)
        if messages != before:
            self.check.fail(f"{what}: changed the messages that it got")
            self.conversation = list(before)
        if not isinstance(reply, Reply):
            self.check.fail(f"{what}: is a Reply, got {reply!r:.200}")
            raise _Failed
        expected = [call.id for call in before[-1].tool_calls]
        answered = [m.tool_call_id for m in reply.messages if m.role == "tool"]
        first = [m.tool_call_id for m in reply.messages[: len(expected)] if m.role == "tool"]
        if not reply.done and (first != expected or answered != expected):
            self.check.fail(
                f"{what}: calls {expected} were answered for {answered}; every call is answered "
                "by a tool message with its id, in order, before anything else"
            )
        elif not set(answered) <= set(expected):
            self.check.fail(f"{what}: answers calls {answered}, of which only {expected} exist")
        return reply

    async def end(self) -> _Record:
        return _Record(self.opening, self.replies, await self.outcome("after an episode"))

    async def outcome(self, where: str) -> Any:
        if not callable(getattr(self.environment, "outcome", None)):
            return None
        return await self.check.attempt_json("outcome", where, self.environment.outcome)

    async def snapshot(self, where: str) -> Any:
        return await self.check.attempt_json("snapshot", where, self.environment.snapshot)

    def tools(self, what: str) -> list[ToolSpec]:
        """Check the environment's tools, and copy them, so that a later change shows."""
        tools: list[ToolSpec] = []
        for tool in self.environment.tools:
            if not isinstance(tool, ToolSpec):
                self.check.fail(f"{what}: are ToolSpecs, with {tool!r:.200} among them")
                continue
            if not tool.name or tool.name in [other.name for other in tools]:
                self.check.fail(
                    f"{what}: each has a name of its own, got {tool.name!r} again or empty"
                )
            schema, about = tool.parameters, f"{what}: the parameters of {tool.name!r}"
            if schema.get("type") != "object":
                self.check.fail(f"{about} are a JSON schema of type object, got {schema!r:.200}")
            elif problem := _not_json(schema):
                self.check.fail(f"{about}: {problem}")
            else:
                tools.append(copy.deepcopy(tool))
        return tools


def _not_json(value: Any) -> str | None:
    """Say what is wrong with a value that should be plain JSON, if anything is."""
    try:
        copied = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as problem:
        return f"JSON cannot hold it: {problem}"
    if copied == value:
        return None
    return f"JSON changes it (a tuple, or keys that are no text): {value!r:.200}"


# --- Model turns to try -------------------------------------------------------------------------

_BAD_ARGUMENTS = {
    "arguments that are not JSON": '{"a": ',
    "no arguments text at all": "",
    "deeply nested arguments": "[" * 10_000,
    "arguments that are a list": "[1, 2]",
    "arguments that are null": "null",
    "no arguments": "{}",
    "an unknown argument": '{"no_such_argument": 1}',
}
_VALUES: dict[str, Any] = {
    "string": "text",
    "integer": -7,
    "number": 1.5,
    "boolean": True,
    "null": None,
    "array": [1, "two"],
    "object": {"a": 1},
}


def _calling(*calls: tuple[str, str]) -> Message:
    tool_calls = (ToolCall(f"call_{i}", name, text) for i, (name, text) in enumerate(calls))
    return Message("assistant", "", tuple(tool_calls))


def _mistakes(tools: list[ToolSpec]) -> Iterator[tuple[str, Message]]:
    """Make up turns that a model may get wrong, each with a name."""
    yield "plain text", Message("assistant", "I do not know.")
    yield "an empty turn", Message("assistant", "")
    yield "text in parts", Message("assistant", [{"type": "text", "text": "Hm."}])
    yield "an unknown tool", _calling(("no_such_tool", "{}"))
    yield "two unknown tools", _calling(("no_such_tool", "{}"), ("nor_this", "{}"))
    for tool in tools:
        for what, text in _BAD_ARGUMENTS.items():
            yield f"a call of {tool.name} with {what}", _calling((tool.name, text))
        right = _plausible_json(tool)
        for argument, schema in tool.parameters.get("properties", {}).items():
            for kind, value in _VALUES.items():
                if schema.get("type") == kind:
                    continue
                text = json.dumps({**json.loads(right), argument: value})
                what = f"a call of {tool.name} with {argument}={json.dumps(value)}"
                yield what, _calling((tool.name, text))
        yield (
            f"three calls, of {tool.name} and of an unknown tool between",
            _calling((tool.name, right), ("no_such_tool", "{}"), (tool.name, '{"a": ')),
        )


def _plausible_json(tool: ToolSpec) -> str:
    return json.dumps(_plausible(tool.parameters, tool.parameters))


def _plausible(schema: Any, root: Any) -> Any:
    """Make up a value that a schema may well allow."""
    match schema:
        case {"$ref": str(name)}:
            return _plausible(root["$defs"][name.rpartition("/")[2]], root)
        case {"const": value} | {"enum": [value, *_]}:
            return value
        case {"anyOf": [inner, *_]} | {"oneOf": [inner, *_]} | {"allOf": [inner, *_]}:
            return _plausible(inner, root)
        case {"type": "object", "properties": dict(properties), "required": list(required)}:
            return {name: _plausible(properties.get(name), root) for name in required}
        case {"type": str(kind)}:
            return {**_VALUES, "integer": 1, "array": [], "object": {}}.get(kind, "text")
    return "text"
