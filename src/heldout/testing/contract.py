"""check_environment(): every rule for environments, one after another; all violations listed."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import anyio

from heldout._aio import settle
from heldout.environment import Environment, HasSnapshots, Reply
from heldout.errors import InvalidInput
from heldout.types import Message, ToolCall, ToolSpec

EnvironmentMaker = Callable[[], Environment | Awaitable[Environment]]

MAX_LISTED = 30
"""Violations in a message: one cause can have fifty."""


class ContractViolation(AssertionError):
    """An environment does not do what the turn loop relies on.

    Attributes:
        violations: What is wrong, one line each.
    """

    def __init__(self, violations: Iterable[str]) -> None:
        self.violations = tuple(violations)
        lines = "".join(f"\n- {violation}" for violation in self.violations[:MAX_LISTED])
        more = len(self.violations) - MAX_LISTED
        rest = f"\n… and {more} more, in .violations" if more > 0 else ""
        super().__init__(
            f"{len(self.violations)} violation(s) of the environment contract:{lines}{rest}"
        )


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


class _CannotContinue(Exception):
    """Nothing further can be checked; a violation says why."""


_FAILED = object()
_MEMBERS = ("tools", "opening", "reply", "close")


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
        except Exception as problem:  # noqa: BLE001 - reported
            self.fail(f"{what} raised {_describe(problem)}")
            return _FAILED

    @asynccontextmanager
    async def make(self, closed_after: str) -> AsyncIterator[_Episode]:
        """Make an environment, and close it at the end."""
        environment = await self.attempt("factory", self.factory)
        if environment is _FAILED:
            raise _CannotContinue
        if missing := [name for name in _MEMBERS if not _has(environment, name)]:
            kind = type(environment).__name__
            self.fail(f"factory: returned a {kind}, which has no {', '.join(missing)}")
            raise _CannotContinue
        try:
            yield _Episode(self, environment)
        finally:
            await self.attempt(f"close {closed_after}", environment.close)

    async def run(self) -> None:
        with suppress(_CannotContinue):
            tools = await self._check_factory()
            if not self.turns:
                calls = (_calling((tool.name, _plausible_json(tool))) for tool in tools)
                self.turns = [*calls, Message("assistant", "Done.")]
            await self._check_mistakes(tools)
            await self._check_episode(tools)
            await self._check_independence()
            await self._check_snapshots()

    async def _check_factory(self) -> list[ToolSpec]:
        new = "right after it was made"
        async with self.make(new) as first, self.make(new) as second:
            if first.environment is second.environment:
                self.fail(
                    "factory: returned the same object twice; each rollout closes its own, so make "
                    "a new one every time"
                )
                raise _CannotContinue
            tools = first.tools("tools")
            if tools != second.tools("tools"):
                self.fail("tools: differ between two new environments")
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
            async with self.make(f"after {what}") as episode:
                await episode.open()
                await episode.take(turn, what)
                await episode.outcome(f"after {what}")
        self.checked.append(f"reply: to {len(mistakes)} turns that a model may get wrong")

    async def _check_episode(self, tools: list[ToolSpec]) -> None:
        async with self.make("after an episode") as episode:
            record = await episode.run(self.turns)
            if episode.tools("tools, after an episode") != tools:
                self.fail("tools: changed during an episode; a policy gets them once")
        self.checked.append(f"reply: to the {len(record.replies)} turns of an episode")
        if episode.has_outcome:
            self.checked.append("outcome: a dict of plain JSON values")

    async def _check_independence(self) -> None:
        """Check that an environment does not change when others are used."""
        async with self.make("after an episode") as alone:
            expected = await alone.run(self.turns)
        async with (
            self.make("after an episode") as first,
            self.make("after an episode") as second,
            self.make("though nothing was done to it") as unused,
        ):
            before = await unused.visible_state()
            for episode in (first, second):
                await episode.open()
            for turn in self.turns:
                for episode in (first, second):
                    await episode.take(turn)
            records = [await episode.end() for episode in (first, second)]
            if await unused.visible_state() != before:
                self.fail("instances share state: one changed while another was used")
        if any(record != expected for record in records):
            self.fail(
                "instances share state, or act by chance: a new environment answered the same "
                "turns differently than the one before it"
            )
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
        """Continue an episode from a snapshot, beside the original.

        Returns:
            False if the episode is over before so many turns, or there is no snapshot.
        """
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
            if snapshot is _FAILED:
                return False
            text = json.dumps(snapshot)
            passed = json.loads(text)
            what = f"restore of a snapshot taken {where}"
            if await self.attempt(what, restored.environment.restore, passed) is _FAILED:
                return False
            restored.conversation = list(original.conversation)
            second = await restored.snapshot(f"of what was restored {where}")
            if second is not _FAILED and second != snapshot:
                self.fail(
                    f"snapshots: restored {where}, it has another snapshot than the one it was "
                    "restored from"
                )
            original.replies.clear()
            for turn in self.turns[turns_done:]:
                await original.take(turn)
                await restored.take(turn)
            if json.dumps(snapshot) != text:
                self.fail(
                    f"snapshot: one taken {where} changed when the episode went on; return a copy"
                )
            if json.dumps(passed) != text:
                self.fail(
                    f"restore: a snapshot taken {where} changed when what was restored went on; "
                    "copy it, since others may be restored from it"
                )
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

    @property
    def has_outcome(self) -> bool:
        return callable(getattr(self.environment, "outcome", None))

    async def run(self, turns: Iterable[Message]) -> _Record:
        await self.open()
        for turn in turns:
            await self.take(turn)
        return await self.end()

    async def open(self) -> None:
        opening = await self.check.attempt("opening", self.environment.opening)
        if opening is _FAILED:
            return
        if isinstance(opening, str | Message) or not isinstance(opening, Sequence):
            self.check.fail(f"opening: is a list of Message, got {_short(opening)}")
            return
        for message in opening:
            if isinstance(message, Message):
                self.opening.append(message)
            else:
                self.check.fail(f"opening: is a list of Message, with {_short(message)} in it")
        self.conversation += self.opening

    async def take(self, turn: Message, what: str | None = None) -> None:
        """Take one model turn, unless the episode is over."""
        if self.is_over:
            return
        self.conversation.append(turn)
        calls = ", ".join(f"{call.name}({call.arguments})" for call in turn.tool_calls)
        reply = await self._reply(what or f"the turn {_short(calls or turn.text)}")
        self.replies.append(reply)
        self.conversation += reply.messages
        self.is_over = reply.done or not reply.messages

    async def _reply(self, what: str) -> Reply:
        messages = tuple(self.conversation)
        before = copy.deepcopy(messages)
        reply = await self.check.attempt(f"reply to {what}", self.environment.reply, messages)
        if messages != before:
            self.check.fail(f"reply to {what}: changed the messages that it got")
            self.conversation = list(before)
        if reply is _FAILED:
            return Reply(done=True)
        if not isinstance(reply, Reply):
            self.check.fail(f"reply to {what}: is a Reply, got {_short(reply)}")
            return Reply(done=True)
        self._check_answers(before[-1], reply, what)
        return reply

    def _check_answers(self, turn: Message, reply: Reply, what: str) -> None:
        expected = [call.id for call in turn.tool_calls]
        answered = [m.tool_call_id for m in reply.messages if m.role == "tool"]
        first = [m.tool_call_id for m in reply.messages[: len(expected)] if m.role == "tool"]
        if not reply.done and expected and (first != expected or answered != expected):
            self.check.fail(
                f"reply to {what}: calls {expected} were answered for {answered}; every call is "
                "answered by a tool message with its id, in order, before anything else"
            )
        elif any(answer not in expected for answer in answered):
            self.check.fail(
                f"reply to {what}: answers calls {answered}, of which only {expected} exist"
            )

    async def end(self) -> _Record:
        return _Record(self.opening, self.replies, await self.outcome("after an episode"))

    async def outcome(self, where: str) -> Any:
        if not self.has_outcome:
            return None
        outcome = await self.check.attempt(f"outcome, {where},", self.environment.outcome)
        return None if self._is_no_json_dict("outcome", outcome) else copy.deepcopy(outcome)

    async def snapshot(self, where: str) -> Any:
        snapshot = await self.check.attempt(f"snapshot, {where},", self.environment.snapshot)
        return _FAILED if self._is_no_json_dict("snapshot", snapshot) else snapshot

    def _is_no_json_dict(self, what: str, value: Any) -> bool:
        if value is _FAILED:
            return True
        problem = _not_json(value)
        if not isinstance(value, dict):
            problem = f"is a dict, got {_short(value)}"
        if problem:
            self.check.fail(f"{what}: {problem}")
        return problem is not None

    async def visible_state(self) -> list[Any]:
        state = [await self.outcome("before anything happened")]
        if isinstance(self.environment, HasSnapshots):
            with suppress(Exception):  # reported when snapshots are checked
                state.append(copy.deepcopy(await settle(self.environment.snapshot())))
        return state

    def tools(self, what: str) -> list[ToolSpec]:
        """Check the environment's tools, and copy them, so that a later change shows."""
        try:
            tools = list(self.environment.tools)
        except Exception as problem:  # noqa: BLE001 - reported
            self.check.fail(f"{what}: raised {_describe(problem)}")
            return []
        names: set[str] = set()
        for tool in tools:
            if not isinstance(tool, ToolSpec):
                self.check.fail(f"{what}: are ToolSpecs, with {_short(tool)} among them")
                continue
            if not tool.name or tool.name in names:
                self.check.fail(
                    f"{what}: each has a name of its own, got {tool.name!r} again or empty"
                )
            names.add(tool.name)
            schema, about = tool.parameters, f"{what}: the parameters of {tool.name!r}"
            if not isinstance(schema, dict) or schema.get("type") != "object":
                self.check.fail(f"{about} are a JSON schema of type object, got {_short(schema)}")
            elif problem_with := _not_json(schema):
                self.check.fail(f"{about}: {problem_with}")
        return copy.deepcopy([tool for tool in tools if isinstance(tool, ToolSpec)])


def _not_json(value: Any) -> str | None:
    """Say what is wrong with a value that should be plain JSON, if anything is."""
    try:
        copied = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as problem:
        return f"JSON cannot hold it: {problem}"
    if copied == value:
        return None
    return f"JSON changes it (a tuple, or keys that are no text): {_short(value)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _has(environment: Any, name: str) -> bool:
    try:
        return hasattr(environment, name)
    except Exception:  # noqa: BLE001 - a property that fails, as its use will show
        return True


def _describe(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]


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
        for argument, schema in _properties(tool.parameters).items():
            for kind, value in _VALUES.items():
                if isinstance(schema, dict) and schema.get("type") == kind:
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


def _plausible(schema: Any, root: Any, depth: int = 0) -> Any:
    """Make up a value that a schema may well allow."""
    if not isinstance(schema, dict) or depth > 20:
        return "text"
    if "$ref" in schema:
        definition = (root.get("$defs") or {}).get(str(schema["$ref"]).rpartition("/")[2], {})
        return _plausible(definition, root, depth + 1)
    for key in ("enum", "anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            first = schema[key][0]
            return first if key == "enum" else _plausible(first, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("type") == "object":
        inner, required = _properties(schema), schema.get("required") or []
        return {name: _plausible(inner.get(name), root, depth + 1) for name in required}
    values: dict[str, Any] = {
        "integer": 1,
        "number": 1.5,
        "boolean": True,
        "null": None,
        "array": [],
    }
    return values.get(schema.get("type", ""), "text")


def _properties(schema: Any) -> dict[str, Any]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return properties if isinstance(properties, dict) else {}
