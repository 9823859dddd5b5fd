"""check_environment(): the whole contract, one check after another, every violation listed."""

from __future__ import annotations

import copy
import json
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio

from heldout._aio import settle
from heldout.environment import Environment, HasSnapshots, Reply
from heldout.errors import InvalidInput
from heldout.testing.turns import mistakes, plausible_turns
from heldout.types import Message, ToolSpec

EnvironmentMaker = Callable[[], Environment | Awaitable[Environment]]


SHOWN = 30
"""Violations that a message lists: one cause can have fifty."""


class ContractViolation(AssertionError):
    """An environment is not what the turn loop expects; `violations` says how, a line each."""

    def __init__(self, violations: Iterable[str]) -> None:
        self.violations = tuple(violations)
        listed = "".join(f"\n- {violation}" for violation in self.violations[:SHOWN])
        more = len(self.violations) - SHOWN
        rest = f"\n… and {more} more, in .violations" if more > 0 else ""
        super().__init__(
            f"{len(self.violations)} violation(s) of the environment contract:{listed}{rest}"
        )


def check_environment(
    factory: EnvironmentMaker,
    *,
    turns: Sequence[str | Message] = (),
) -> list[str]:
    """Check what `factory()` makes, and return what was checked; raise `ContractViolation` if not.

    `turns` are model turns to drive it with, beside those made up here: plain text, and right and
    wrong calls of every tool, which are really made.

    Environments are expected to do the same again when they are made again; seed what is random.
    It runs an event loop of its own, so it is called from plain code.
    """
    check = _Check(factory, [_turn(turn) for turn in turns])
    anyio.run(check.run)
    if check.violations:
        raise ContractViolation(check.violations)
    return check.checked


def _turn(given: str | Message) -> Message:
    turn = Message("assistant", given) if isinstance(given, str) else given
    if not isinstance(turn, Message) or turn.role != "assistant":
        raise InvalidInput(f"turns are texts or assistant messages, got {given!r:.200}")
    return turn


@dataclass
class _Episode:
    """What came of driving an environment."""

    opening: list[Message]
    replies: list[Any]
    outcome: Any = None


class _CannotGoOn(Exception):
    """There is nothing left to check; why is among the violations."""


_FAILED = object()
_MEMBERS = ("tools", "opening", "reply", "close")
_BEGIN = Message("user", "Begin.")


class _Check:
    def __init__(self, factory: EnvironmentMaker, turns: list[Message]) -> None:
        self.factory = factory
        self.given = turns
        self.turns = turns
        self._found: dict[str, None] = {}
        self.checked: list[str] = []
        self._has_outcome = False

    @property
    def violations(self) -> list[str]:
        return list(self._found)

    def wrong(self, line: str) -> None:
        self._found[line] = None

    async def run(self) -> None:
        try:
            tools = await self.check_made()
            self.turns = self.given or [*plausible_turns(tools), Message("assistant", "Done.")]
            await self.check_closing()
            await self.check_mistakes(tools)
            await self.check_episode(tools)
            await self.check_apart()
            await self.check_snapshots()
        except _CannotGoOn:
            pass

    # --- Parts ---

    async def check_made(self) -> list[ToolSpec]:
        new = "right after it was made"
        async with self.made(new) as first, self.made(new) as second:
            if first is second:
                self.wrong(
                    "factory: gave the same object twice; each rollout closes its own, so make "
                    "a new one every time"
                )
                raise _CannotGoOn
            self._has_outcome = callable(getattr(first, "outcome", None))
            specs = self.specs(first, "tools")
            if specs != self.specs(second, "tools"):
                self.wrong("tools: differ between two new environments")
        self.checked.append("factory: a new environment every time")
        self.checked.append(f"tools: {len(specs)}, with unique names and JSON schemas of objects")
        return specs

    async def check_closing(self) -> None:
        async with self.made("after opening only") as environment:
            await self.open(environment)
        self.checked.append("close: right after it was made, after opening, after an episode")

    async def check_mistakes(self, tools: list[ToolSpec]) -> None:
        """What a model may do wrong is answered, never raised."""
        made_up = list(mistakes(tools))
        for what, turn in made_up:
            async with self.made(f"after {what}") as environment:
                conversation = [_BEGIN, *await self.open(environment), turn]
                await self.reply(environment, conversation, what)
                await self.outcome(environment, f"after {what}")
        self.checked.append(f"reply: to {len(made_up)} turns that a model may get wrong")

    async def check_episode(self, tools: list[ToolSpec]) -> None:
        async with self.made("after an episode") as environment:
            episode = await self.drive(environment)
            if self.specs(environment, "tools, after an episode") != tools:
                self.wrong("tools: changed during an episode; a policy is told of them once")
        self.checked.append(f"reply: to the {len(episode.replies)} turns of an episode")
        if self._has_outcome:
            self.checked.append("outcome: a dict of plain JSON values")

    async def check_apart(self) -> None:
        """Instances do not share state: nobody notices what is done to another one."""
        async with self.made("after an episode") as alone:
            expected = await self.drive(alone)
        async with (
            self.made("after an episode") as first,
            self.made("after an episode") as second,
            self.made("though nothing was done to it") as bystander,
        ):
            before = await self.visible(bystander)
            driven = [_Driven(self, environment) for environment in (first, second)]
            for one in driven:
                await one.open()
            for turn in self.turns:
                for one in driven:
                    await one.take(turn)
            episodes = [await one.end() for one in driven]
            if await self.visible(bystander) != before:
                self.wrong("instances share state: one changed while another was used")
        for episode in episodes:
            if episode != expected:
                self.wrong(
                    "instances share state, or act by chance: a new environment answered the "
                    "same turns differently than the one before it"
                )
        self.checked.append("instances: do not share state")

    async def check_snapshots(self) -> None:
        async with self.made("after opening only") as environment:
            if not isinstance(environment, HasSnapshots):
                for method, other in (("snapshot", "restore"), ("restore", "snapshot")):
                    if callable(getattr(environment, method, None)):
                        self.wrong(f"snapshots: there is {method}(), but no {other}()")
                self.checked.append("snapshots: none, since there is no snapshot()")
                return
            await self.open(environment)
            try:
                await settle(environment.snapshot())
            except NotImplementedError as problem:
                self.checked.append(f"snapshots: none: {problem}")
                return
            except Exception:  # noqa: BLE001 - raised again, and reported, below
                pass
        points = 0
        for done in range(len(self.turns) + 1):
            if not await self.check_going_on(done):
                break
            points += 1
        self.checked.append(f"snapshots: JSON, and an episode goes on from {points} point(s) of it")

    async def check_going_on(self, done: int) -> bool:
        """Tell whether there is such a point: an episode of which so many turns were made."""
        where = f"after {done} turn(s)"
        async with (
            self.made("after an episode") as original,
            self.made("after an episode that was restored") as restored,
        ):
            first = _Driven(self, original)
            await first.open()
            for turn in self.turns[:done]:
                await first.take(turn)
            if first.over and done:
                return False
            taken = await self.snapshot(original, where)
            if taken is _FAILED:
                return False
            kept = json.dumps(taken)
            given = json.loads(kept)
            what = f"restore of a snapshot taken {where}"
            if await self.attempt(what, restored.restore, given) is _FAILED:
                return False
            second = _Driven(self, restored, first.conversation)
            again = await self.snapshot(restored, f"of what was restored {where}")
            if again is not _FAILED and again != taken:
                self.wrong(
                    f"snapshots: restored {where}, it has another snapshot than the one it was "
                    "restored from"
                )
            first.replies.clear()
            for turn in self.turns[done:]:
                await first.take(turn)
                await second.take(turn)
            if json.dumps(taken) != kept:
                self.wrong(
                    f"snapshot: one taken {where} changed when the episode went on; copy what it "
                    "holds"
                )
            if json.dumps(given) != kept:
                self.wrong(
                    f"restore: a snapshot taken {where} changed when what was restored went on; "
                    "copy what it holds, since others may be restored from it"
                )
            expected, got = await first.end(), await second.end()
            if expected.replies != got.replies:
                self.wrong(f"snapshots: restored {where}, it replies otherwise than the original")
            elif expected.outcome != got.outcome:
                self.wrong(
                    f"snapshots: restored {where}, it comes to another outcome than the original"
                )
        return True

    async def snapshot(self, environment: Any, where: str) -> Any:
        taken = await self.attempt(f"snapshot, {where},", environment.snapshot)
        if taken is _FAILED:
            return _FAILED
        problem = _not_json(taken)
        if problem is None and not isinstance(taken, dict):
            problem = f"is a dict, got {_short(taken)}"
        if problem:
            self.wrong(f"snapshot: {problem}")
            return _FAILED
        return taken

    # --- Steps that are looked at ---

    @asynccontextmanager
    async def made(self, closed_after: str) -> AsyncIterator[Any]:
        environment = await self.attempt("factory", self.factory)
        if environment is _FAILED:
            raise _CannotGoOn
        missing = [name for name in _MEMBERS if not _has(environment, name)]
        if missing:
            self.wrong(
                f"factory: gave a {type(environment).__name__}, which has no {', '.join(missing)}"
            )
            raise _CannotGoOn
        try:
            yield environment
        finally:
            await self.attempt(f"close {closed_after}", environment.close)

    async def attempt(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await settle(function(*arguments))
        except Exception as problem:  # noqa: BLE001 - reported
            self.wrong(f"{what} raised {_raised(problem)}")
            return _FAILED

    async def open(self, environment: Any) -> list[Message]:
        opening = await self.attempt("opening", environment.opening)
        if opening is _FAILED:
            return []
        if isinstance(opening, str | Message) or not isinstance(opening, Sequence):
            self.wrong(f"opening: is a list of Message, got {_short(opening)}")
            return []
        for message in opening:
            if not isinstance(message, Message):
                self.wrong(f"opening: is a list of Message, with {_short(message)} in it")
        return [message for message in opening if isinstance(message, Message)]

    async def reply(self, environment: Any, conversation: list[Message], what: str) -> Any:
        shown = tuple(conversation)
        before = copy.deepcopy(shown)
        reply = await self.attempt(f"reply to {what}", environment.reply, shown)
        if shown != before:
            self.wrong(f"reply to {what}: changed the messages it was given")
            conversation[:] = before
        if reply is _FAILED:
            return Reply(done=True)
        if not isinstance(reply, Reply):
            self.wrong(f"reply to {what}: is a Reply, got {_short(reply)}")
            return Reply(done=True)
        if not all(isinstance(message, Message) for message in reply.messages):
            self.wrong(f"reply to {what}: has messages that are no Message")
            return Reply(done=True)
        self.check_answers(conversation[-1], reply, what)
        return reply

    def check_answers(self, turn: Message, reply: Reply, what: str) -> None:
        expected = [call.id for call in turn.tool_calls]
        answered = [m.tool_call_id for m in reply.messages if m.role == "tool"]
        first = [m.tool_call_id for m in reply.messages[: len(expected)] if m.role == "tool"]
        if not reply.done and expected and (first != expected or answered != expected):
            self.wrong(
                f"reply to {what}: calls {expected} were answered for {answered}; every call is "
                "answered by a tool message with its id, in order, before anything else"
            )
        elif any(answer not in expected for answer in answered):
            self.wrong(f"reply to {what}: answers calls {answered}, of which only {expected} exist")

    async def outcome(self, environment: Any, where: str) -> Any:
        if not self._has_outcome:
            return None
        outcome = await self.attempt(f"outcome, {where},", environment.outcome)
        if outcome is _FAILED:
            return None
        if not isinstance(outcome, dict):
            self.wrong(f"outcome: is a dict, got {_short(outcome)}")
            return None
        if problem := _not_json(outcome):
            self.wrong(f"outcome: {problem}")
            return None
        return copy.deepcopy(outcome)  # as it is now, whatever becomes of it

    async def drive(self, environment: Any) -> _Episode:
        driven = _Driven(self, environment)
        await driven.open()
        for turn in self.turns:
            await driven.take(turn)
        return await driven.end()

    async def visible(self, environment: Any) -> Any:
        """What can be seen of an environment from outside."""
        seen: list[Any] = [await self.outcome(environment, "before anything happened")]
        if isinstance(environment, HasSnapshots):
            with suppress(Exception):  # reported by check_snapshots
                seen.append(await settle(environment.snapshot()))
        return copy.deepcopy([None if each is _FAILED else each for each in seen])

    def specs(self, environment: Any, what: str) -> list[ToolSpec]:
        try:
            specs = list(environment.tools)
        except Exception as problem:  # noqa: BLE001 - reported
            self.wrong(f"{what}: raised {_raised(problem)}")
            return []
        names: set[str] = set()
        for spec in specs:
            if not isinstance(spec, ToolSpec):
                self.wrong(f"{what}: are ToolSpecs, with {_short(spec)} among them")
                continue
            if not isinstance(spec.name, str) or not spec.name or spec.name in names:
                self.wrong(f"{what}: each has a name of its own, got {spec.name!r} again or empty")
            names.add(spec.name)
            schema = spec.parameters
            if not isinstance(schema, dict) or schema.get("type") != "object":
                self.wrong(
                    f"{what}: the parameters of {spec.name!r} are a JSON schema of type object, "
                    f"got {_short(schema)}"
                )
            elif problem_with := _not_json(schema):
                self.wrong(f"{what}: the parameters of {spec.name!r}: {problem_with}")
        # Copied, so that it shows if they change later.
        return copy.deepcopy([spec for spec in specs if isinstance(spec, ToolSpec)])


class _Driven:
    """An environment, and the conversation had with it so far."""

    def __init__(
        self, check: _Check, environment: Any, conversation: Sequence[Message] | None = None
    ) -> None:
        self.check, self.environment = check, environment
        self.conversation = list(conversation or [_BEGIN])
        self.opening: list[Message] = []
        self.replies: list[Any] = []
        self.over = False

    async def open(self) -> None:
        self.opening = await self.check.open(self.environment)
        self.conversation += self.opening

    async def take(self, turn: Message) -> None:
        if self.over:
            return
        self.conversation.append(turn)
        what = f"the turn {_shown(turn)}"
        reply = await self.check.reply(self.environment, self.conversation, what)
        self.replies.append(reply)
        self.conversation += reply.messages
        self.over = reply.done or not reply.messages

    async def end(self) -> _Episode:
        outcome = await self.check.outcome(self.environment, "after an episode")
        return _Episode(self.opening, self.replies, outcome)


# --- Values -------------------------------------------------------------------------------------


def _not_json(value: Any) -> str | None:
    """What is wrong with a value that should be plain JSON, if anything is."""
    try:
        back = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as problem:
        return f"JSON cannot hold it: {problem}"
    if back != value:
        return (
            "it is another value after a trip through JSON (a tuple, or keys that are no text): "
            f"{_short(value)}"
        )
    return None


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 200 else f"{shown[:200]}…"


def _shown(turn: Message) -> str:
    calls = ", ".join(f"{call.name}({call.arguments})" for call in turn.tool_calls)
    return _short(calls or turn.text)


def _has(environment: Any, name: str) -> bool:
    try:
        return hasattr(environment, name)
    except Exception:  # noqa: BLE001 - it is there, and fails; which shows when it is used
        return True


def _raised(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"[:300]
