"""check_environment(): every rule for environments, one after another; all violations listed."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import anyio

from heldout._core.aio import settle
from heldout.environment import (
    Environment,
    Reply,
    check_environment_shape,
    check_messages,
    major_version,
    missing_for_snapshots,
    read_snapshot,
    restore_snapshot,
    snapshot_methods,
    take_snapshot,
)
from heldout.errors import InvalidInput, SnapshotMismatch
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


def check_environment(factory: EnvironmentMaker, *, turns: Sequence[str | Message] = ()) -> None:
    """Check an environment against the protocol in `heldout.environment`.

    Environments must do the same when they are made again: seed everything that is random. This
    runs an event loop of its own, so it is called from plain code.

    Args:
        factory: Makes a new environment.
        turns: Model turns for an episode, as texts or messages; by default one call of every tool.
            Plain text, and right and wrong calls of every tool, are tried in any case: tools are
            really called.

    Raises:
        ContractViolation: With everything that is wrong.
        InvalidInput: If `turns` are no model turns.
    """
    check = _ContractCheck(factory, [_as_turn(turn) for turn in turns])
    anyio.run(check.run)
    if check.violations:
        raise ContractViolation(check.violations)


def _as_turn(value: str | Message) -> Message:
    turn = Message("assistant", value) if isinstance(value, str) else value
    if not isinstance(turn, Message) or turn.role != "assistant":
        raise InvalidInput(f"turns must be texts or assistant messages, got {value!r:.200}")
    return turn


class _Violation(Exception):
    """Ends the check that found it; the message goes to the list."""


async def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return await settle(function(*arguments))
    except Exception as problem:
        message = f"{name} raised {type(problem).__name__}: {problem}"
        raise _Violation(message[:300]) from problem


async def _call_for_json(name: str, where: str, function: Callable[[], Any]) -> Any:
    value = await _call(f"{name}, {where},", function)
    if not isinstance(value, dict):
        raise _Violation(f"{name}: must be a dict, got {value!r:.200}")
    return _copy_json(name, value)


def _copy_json(name: str, value: Any) -> Any:
    try:
        copied = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as problem:
        raise _Violation(f"{name}: JSON cannot hold it: {problem}") from None
    if copied != value:
        raise _Violation(
            f"{name}: JSON changes it (a tuple, or keys that are no text): {value!r:.200}"
        )
    return copied


class _ContractCheck:
    """One run of all checks."""

    def __init__(self, factory: EnvironmentMaker, turns: list[Message]) -> None:
        self._factory, self._turns = factory, turns
        self.violations: dict[str, None] = {}
        """In order, each once."""

    @contextmanager
    def _list_violation(self) -> Iterator[None]:
        try:
            yield
        except _Violation as violation:
            self.violations[str(violation)] = None

    @asynccontextmanager
    async def _make(self, closed: str) -> AsyncIterator[_CheckedEpisode]:
        """Make an environment, and close it at the end; `closed` says when that is."""
        environment = await _call("factory", self._factory)
        await _call("factory", check_environment_shape, environment)
        episode = _CheckedEpisode(environment)
        try:
            yield episode
        finally:
            with self._list_violation():
                await _call(f"close {closed}", episode.environment.close)

    async def run(self) -> None:
        with self._list_violation():
            tools = await self._check_factory()
            turns = self._turns
            if not turns:
                turns += [_calling((tool.name, _plausible_json(tool))) for tool in tools]
                turns.append(Message("assistant", "Done."))
            with self._list_violation():
                async with self._make("after opening only") as episode:
                    await episode.open()
            for name, turn in _mistakes(tools):
                with self._list_violation():
                    async with self._make(f"after {name}") as episode:
                        await episode.open()
                        await episode.play_turn(turn, name)
                        await episode.outcome(f"after {name}")
            with self._list_violation():
                await self._check_episodes(tools)
            await self._check_snapshots()

    async def _check_factory(self) -> list[ToolSpec]:
        new = "right after it was made"
        async with self._make(new) as first, self._make(new) as second:
            if first.environment is second.environment:
                raise _Violation(
                    "factory: returned the same object twice; each rollout closes its own, so make "
                    "a new one every time"
                )
            tools = first.tools()
            if tools != second.tools():
                raise _Violation("tools: differ between two new environments")
        return tools

    async def _check_episodes(self, tools: list[ToolSpec]) -> None:
        """Check that an environment does the same again."""
        records = []
        for _ in range(2):
            async with self._make("after an episode") as episode:
                await episode.open()
                for turn in self._turns:
                    await episode.play_turn(turn)
                records.append((episode.conversation, await episode.outcome("after an episode")))
                if episode.tools() != tools:
                    raise _Violation("tools: changed during an episode; a policy gets them once")
        if records[0] != records[1]:
            raise _Violation(
                "instances share state, or act by chance: a new environment answered the same "
                "turns differently than the one before it"
            )

    async def _check_snapshots(self) -> None:
        async with self._make("right after it was made") as episode:
            environment = episode.environment
        missing = missing_for_snapshots(environment)
        if missing:
            take, restore = snapshot_methods(environment)
            if {take, restore} - {*missing}:
                raise _Violation(
                    f"snapshots: have env_kind, version, {take}() and {restore}(); there is no "
                    + " and no ".join(missing)
                )
            return
        try:
            await self._check_refusals()
            for count in range(len(self._turns) + 1):
                if not await self._check_restoring(count):
                    break
        except _Violation as violation:
            if not isinstance(violation.__cause__, NotImplementedError):
                raise

    async def _check_refusals(self) -> None:
        """Check that only snapshots of its kind and major version are restored."""
        async with self._make("after opening only") as episode:
            await episode.open()
            snapshot = await episode.snapshot("after 0 turn(s)")
        major = major_version(snapshot["version"])
        for name, change in (
            ("another kind", {"env_kind": f"not {snapshot['env_kind']}"}),
            ("another major version", {"version": f"1{snapshot['version']}"}),
        ):
            async with self._make(f"after a snapshot of {name}") as episode:
                try:
                    await episode.restore_unchecked(copy.deepcopy(snapshot | change))
                except SnapshotMismatch:
                    continue
                except Exception as problem:
                    raise _Violation(
                        f"restore of a snapshot of {name} raised {type(problem).__name__}, not "
                        "SnapshotMismatch (heldout.environment.read_snapshot does)"
                    ) from problem
                raise _Violation(
                    f"snapshots: one of {name} is restored; read_snapshot in heldout.environment "
                    "refuses it"
                )
        async with self._make("after an episode that was restored") as episode:
            newer = snapshot | {"version": f"{major}.987654321"}
            await episode.restore("a snapshot of another minor version", newer)

    async def _check_restoring(self, turns_done: int) -> bool:
        """Continue an episode from a snapshot; False if it ends before that many turns."""
        where = f"after {turns_done} turn(s)"
        async with (
            self._make("after an episode") as original,
            self._make("after an episode that was restored") as restored,
        ):
            await original.open()
            for turn in self._turns[:turns_done]:
                await original.play_turn(turn)
            if original.is_over and turns_done:
                return False
            snapshot = await original.snapshot(where)
            await restored.restore(f"a snapshot taken {where}", snapshot)
            if await restored.snapshot(f"of what was restored {where}") != snapshot:
                raise _Violation(
                    f"snapshots: restored {where}, it has another snapshot than the one it was "
                    "restored from"
                )
            restored.conversation = list(original.conversation)
            for turn in self._turns[turns_done:]:
                await original.play_turn(turn)
                await restored.play_turn(turn)
            end = "after an episode"
            if original.conversation != restored.conversation:
                raise _Violation(
                    f"snapshots: restored {where}, it replies otherwise than the original"
                )
            if await original.outcome(end) != await restored.outcome(end):
                raise _Violation(
                    f"snapshots: restored {where}, it comes to another outcome than the original"
                )
        return True


class _CheckedEpisode:
    """An environment and the conversation with it; every step is checked."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.conversation = [Message("user", "Begin.")]
        self.is_over = False

    async def open(self) -> None:
        opening = await _call("opening", self.environment.opening)
        try:
            check_messages(opening, "opening: must be a list of Message")
        except InvalidInput as problem:
            raise _Violation(str(problem)) from problem
        self.conversation += opening

    async def play_turn(self, turn: Message, name: str | None = None) -> None:
        """Take one model turn, unless the episode is over."""
        if self.is_over:
            return
        self.conversation.append(turn)
        calls = ", ".join(f"{call.name}({call.arguments})" for call in turn.tool_calls)
        reply = await self._reply(f"reply to {name or f'the turn {calls or turn.text!r:.200}'}")
        self.conversation += reply.messages
        self.is_over = reply.done or not reply.messages

    async def _reply(self, name: str) -> Reply:
        messages = tuple(self.conversation)
        before = copy.deepcopy(messages)
        reply = await _call(name, self.environment.reply, messages)
        if messages != before:
            raise _Violation(f"{name}: changed the messages that it got")
        if not isinstance(reply, Reply):
            raise _Violation(f"{name}: must be a Reply, got {reply!r:.200}")
        expected = [call.id for call in before[-1].tool_calls]
        answer_ids = [m.tool_call_id for m in reply.messages if m.role == "tool"]
        first = [m.tool_call_id for m in reply.messages[: len(expected)] if m.role == "tool"]
        if not reply.done and (first != expected or answer_ids != expected):
            raise _Violation(
                f"{name}: calls {expected} were answered for {answer_ids}; every call is answered "
                "by a tool message with its id, in order, before anything else"
            )
        if not set(answer_ids) <= set(expected):
            raise _Violation(f"{name}: answers calls {answer_ids}, of which only {expected} exist")
        return reply

    async def outcome(self, where: str) -> Any:
        if not callable(getattr(self.environment, "outcome", None)):
            return None
        return await _call_for_json("outcome", where, self.environment.outcome)

    async def snapshot(self, where: str) -> Any:
        name, _ = snapshot_methods(self.environment)
        snapshot = await _call_for_json(name, where, partial(take_snapshot, self.environment))
        try:
            read_snapshot(self.environment, snapshot)
        except InvalidInput as problem:
            raise _Violation(f"{name}: {problem}") from problem
        return snapshot

    async def restore(self, name: str, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot, and close the environment that another one takes the place of."""
        _, method = snapshot_methods(self.environment)
        arguments = self.environment, copy.deepcopy(snapshot)
        restored = await _call(f"{method} of {name}", restore_snapshot, *arguments)
        if restored is not self.environment:
            replaced, self.environment = self.environment, restored
            await _call("close of an environment that another takes the place of", replaced.close)

    async def restore_unchecked(self, snapshot: dict[str, Any]) -> None:
        """Restore a snapshot of another kind or version, which `restore` itself must refuse.

        What `deserialize` would make of it is nobody's: `restore_snapshot` refuses it before.
        """
        _, method = snapshot_methods(self.environment)
        if method == "restore":
            await settle(self.environment.restore(snapshot))
        else:
            await restore_snapshot(self.environment, snapshot)

    def tools(self) -> list[ToolSpec]:
        """Check the environment's tools, and copy them, so that a later change shows."""
        names: list[str] = []
        for tool in self.environment.tools:
            if not isinstance(tool, ToolSpec):
                raise _Violation(f"tools: are ToolSpecs, with {tool!r:.200} among them")
            if not tool.name or tool.name in names:
                raise _Violation(
                    f"tools: each has a name of its own, got {tool.name!r} again or empty"
                )
            names.append(tool.name)
            name = f"tools: the parameters of {tool.name!r}"
            if tool.parameters.get("type") != "object":
                raise _Violation(
                    f"{name} must be a JSON schema of type object, got {tool.parameters!r:.200}"
                )
            _copy_json(name, tool.parameters)
        return copy.deepcopy(list(self.environment.tools))


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
        for name, text in _BAD_ARGUMENTS.items():
            yield f"a call of {tool.name} with {name}", _calling((tool.name, text))
        right = _plausible_json(tool)
        for argument, schema in tool.parameters.get("properties", {}).items():
            for kind, value in _VALUES.items():
                if schema.get("type") == kind:
                    continue
                text = json.dumps({**json.loads(right), argument: value})
                name = f"a call of {tool.name} with {argument}={json.dumps(value)}"
                yield name, _calling((tool.name, text))
        yield (
            f"three calls, of {tool.name} and of an unknown tool between",
            _calling((tool.name, right), ("no_such_tool", "{}"), (tool.name, '{"a": ')),
        )


def _plausible_json(tool: ToolSpec) -> str:
    return json.dumps(_plausible(tool.parameters, tool.parameters))


def _plausible(schema: Any, root: Any) -> Any:
    """Make up a value that a schema is likely to allow."""
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
