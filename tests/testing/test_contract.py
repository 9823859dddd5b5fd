"""check_environment passes what keeps the contract, and names every way of breaking it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio.lowlevel
import pytest
from examples.calculator import Calculator
from examples.file_system import FileSystem

from heldout import Message, Reply, ToolCall, ToolSpec
from heldout.environment import make_snapshot, read_snapshot
from heldout.environments import SimulatedUser, ToolEnvironment
from heldout.errors import InvalidInput, SnapshotMismatch
from heldout.testing import ContractViolation, check_environment

UP = ToolSpec(
    "up",
    "Count up.",
    {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
)


def up(by: int = 1) -> Message:
    return Message("assistant", "", (ToolCall("a", "up", f'{{"by": {by}}}'),))


TURNS: list[str | Message] = [up(1), up(2), "three"]


class Counter:
    """Keeps the whole contract, written without our base class. Broken below in every way."""

    env_kind = "counter"
    version = "1.3"

    def __init__(self) -> None:
        self.count = 0

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return [UP]

    def opening(self) -> Any:
        return [Message("user", "Count.")]

    def reply(self, messages: Sequence[Message]) -> Any:
        return Reply(tuple(self.answer(call) for call in messages[-1].tool_calls))

    def answer(self, call: ToolCall) -> Message:
        try:
            assert call.name == "up"
            self.count += int(json.loads(call.arguments)["by"])
            text = str(self.count)
        except (AssertionError, ValueError, KeyError, TypeError, RecursionError) as problem:
            text = f"Error: {problem!r:.100}"
        return Message("tool", text, tool_call_id=call.id)

    def outcome(self) -> Any:
        return {"count": self.count}

    def close(self) -> Any:
        pass

    def snapshot(self) -> Any:
        return make_snapshot(self, {"count": self.count})

    def restore(self, snapshot: Any) -> Any:
        self.count = read_snapshot(self, snapshot)["count"]


class AsyncCounter(Counter):
    env_kind = "async_counter"

    async def opening(self) -> Any:
        await anyio.lowlevel.checkpoint()
        return super().opening()

    async def reply(self, messages: Sequence[Message]) -> Any:
        await anyio.lowlevel.checkpoint()
        return super().reply(messages)

    async def outcome(self) -> Any:
        return super().outcome()

    async def close(self) -> Any:
        await anyio.lowlevel.checkpoint()

    async def snapshot(self) -> Any:
        return super().snapshot()

    async def restore(self, snapshot: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        super().restore(snapshot)


class Serialized:
    """The same in another form: a new environment is made of flat data, in no check of its own."""

    ENV_KIND = "counter"
    VERSION = "1.0.0"
    tools = (UP,)
    opening, reply, answer = Counter.opening, Counter.reply, Counter.answer
    outcome, close = Counter.outcome, Counter.close

    def __init__(self, count: int = 0) -> None:
        self.count = count

    async def serialize(self) -> dict[str, Any]:
        return {"env_kind": self.ENV_KIND, "version": self.VERSION, "count": self.count}

    @staticmethod
    async def deserialize(data: dict[str, Any]) -> Serialized:
        return Serialized(data["count"])


class Flat(Counter):
    """Its snapshots are flat, too."""

    env_kind = "flat"
    version = "2"

    def snapshot(self) -> Any:
        return {"env_kind": "flat", "version": "2", "count": self.count}


class Bare:
    """The least an environment can be."""

    tools: tuple[ToolSpec, ...] = ()

    def opening(self) -> list[Message]:
        return []

    def reply(self, messages: Sequence[Message]) -> Reply:
        return Reply(done=True)

    def close(self) -> None:
        pass


def violations(factory: Any, **options: Any) -> str:
    with pytest.raises(ContractViolation) as caught:
        check_environment(factory, **options)
    listed = "".join(f"\n- {line}" for line in caught.value.violations)
    assert str(caught.value).endswith(f"of the environment contract:{listed}")
    return "\n".join(caught.value.violations)


def user(messages: list[Message]) -> str:
    return "more" if len(messages) < 5 else "[DONE]"


async def factory_of_a_coroutine() -> Counter:
    return Counter()


# --- What keeps the contract --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (Counter, {}),
        (Counter, {"turns": TURNS}),
        (AsyncCounter, {"turns": TURNS}),
        (Serialized, {"turns": TURNS}),
        (Flat, {"turns": TURNS}),
        (factory_of_a_coroutine, {"turns": TURNS}),
        (Bare, {}),
        (Bare, {"turns": ["hello"]}),
        (Calculator, {}),
        (lambda: FileSystem({"/a": "x"}, {"/a": None, "/A": ""}), {}),
        (lambda: ToolEnvironment([]), {}),
        (lambda: SimulatedUser(user, tools=Calculator()), {"turns": ["a", "b", "c"]}),
        (lambda: SimulatedUser(user, tools=Bare()), {"turns": ["a", "b", "c"]}),
    ],
)
def test_environments_that_keep_the_contract_pass(
    factory: Callable[[], Any], options: dict[str, Any]
) -> None:
    check_environment(factory, **options)


# --- Every way of breaking it -------------------------------------------------------------------


def counter(**members: Any) -> type[Counter]:
    """The class above with some of its members replaced."""
    return type("Changed", (Counter,), members)


def fails(why: str) -> Any:
    def method(*_: Any) -> Any:
        raise RuntimeError(why)

    return method


class Mutable(Counter):
    """Its tools are its own to change."""

    def __init__(self) -> None:
        super().__init__()
        self.specs: Any = [UP]

    @property
    def tools(self) -> Any:
        return self.specs


def with_tools(*specs: Any) -> Callable[[], Any]:
    def make() -> Mutable:
        environment = Mutable()
        environment.specs = list(specs)
        return environment

    return make


_serial = itertools.count()


class NewToolEachTime(Mutable):
    def __init__(self) -> None:
        super().__init__()
        self.specs = [replace(UP, description=str(next(_serial)))]


class GrowingTools(Mutable):
    def reply(self, messages: Sequence[Message]) -> Any:
        self.specs = [UP, ToolSpec(f"new{len(self.specs)}")]
        return super().reply(messages)


def replying(change: Callable[[Counter, Sequence[Message], Reply], Any]) -> type[Counter]:
    class Changed(Counter):
        def reply(self, messages: Sequence[Message]) -> Any:
            return change(self, messages, super().reply(messages))

    return Changed


def strict(check: Callable[[ToolCall], Any]) -> type[Counter]:
    """Raises what the check of a call raises."""

    def reply(self: Counter, messages: Sequence[Message]) -> Any:
        for call in messages[-1].tool_calls:
            check(call)
        return Counter.reply(self, messages)

    return counter(reply=reply)


def refuse_text(call: ToolCall) -> None:
    if '"by": "text"' in call.arguments:
        raise TypeError("by is a number")


def scribble(env: Counter, messages: Sequence[Message], reply: Reply) -> Reply:
    if isinstance(messages[-1].content, list):
        messages[-1].content.append({"type": "text", "text": "!"})
    return reply


def outcome_of(value: Any) -> type[Counter]:
    return counter(outcome=lambda self: value)


def opening_of(value: Any) -> type[Counter]:
    return counter(opening=lambda self: value)


class ClosesOnlyWhenOpen(Counter):
    def opening(self) -> Any:
        self.connection = object()
        return super().opening()

    def close(self) -> Any:
        del self.connection


class ClosesOnlyAfterATurn(Counter):
    done: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.opened = False

    def opening(self) -> Any:
        self.opened = True
        return super().opening()

    def reply(self, messages: Sequence[Message]) -> Any:
        self.done = True
        return super().reply(messages)

    async def close(self) -> Any:
        if self.opened and not self.done:
            raise RuntimeError("nothing was done")


class ClosesOnlyBeforeATurn(ClosesOnlyAfterATurn):
    async def close(self) -> Any:
        if self.done:
            raise RuntimeError("too late")


class SharedCount(Counter):
    shared = {"count": 0}  # noqa: RUF012 - the mistake

    @property
    def count(self) -> int:
        return self.shared["count"]

    @count.setter
    def count(self, value: int) -> None:
        self.shared["count"] = max(value, self.shared["count"])


class SharedSecret(Counter):
    """Shares state that shows in its replies only."""

    turns: list[int] = []  # noqa: RUF012 - the mistake

    def reply(self, messages: Sequence[Message]) -> Any:
        self.turns.append(1)
        answers = super().reply(messages).messages
        return Reply((*answers, Message("user", f"turn {len(self.turns)}")))


def variant(base: type[Any], **changes: Any) -> type[Any]:
    return type("Variant", (base,), changes)


def with_snapshot(change: Callable[[Counter], Any]) -> type[Counter]:
    return counter(env_kind="changed", snapshot=change)


class UnnamedState(Counter):
    def snapshot(self) -> Any:
        return super().snapshot()


class TakesAnything(Counter):
    def restore(self, snapshot: Any) -> Any:
        self.count = snapshot["state"]["count"]


class TakesItsKind(Counter):
    def restore(self, snapshot: Any) -> Any:
        super().restore(snapshot | {"version": self.version})


class RefusesOddly(Counter):
    def restore(self, snapshot: Any) -> Any:
        assert snapshot["env_kind"] == self.env_kind
        super().restore(snapshot)


class Strict(Counter):
    def restore(self, snapshot: Any) -> Any:
        super().restore(snapshot)
        if snapshot["version"] != self.version:
            raise SnapshotMismatch("not mine")


class ForgetsTheState(Counter):
    def restore(self, snapshot: Any) -> Any:
        read_snapshot(self, snapshot)


class FailsLater(Counter):
    def restore(self, snapshot: Any) -> Any:
        if snapshot["state"]["count"] > 1:
            raise KeyError("three")
        super().restore(snapshot)


class RestoredRepliesOtherwise(Counter):
    """Remembers the last step, and not across a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def answer(self, call: ToolCall) -> Message:
        self.steps += 1
        answer = super().answer(call)
        return replace(answer, content=f"{answer.content} in step {self.steps}")


class RestoredEndsOtherwise(RestoredRepliesOtherwise):
    def answer(self, call: ToolCall) -> Message:
        super().answer(call)
        return Message("tool", "ok", tool_call_id=call.id)

    def outcome(self) -> Any:
        return {"steps": self.steps}


THE_ONE = Counter()
NEVER_ASKED = Message("tool", "?", tool_call_id="never asked")
BROKEN: dict[str, tuple[Any, str]] = {
    "factory fails": (lambda: 1 / 0, "factory raised ZeroDivisionError: division by zero"),
    "factory gives no environment": (object, "this object has no tools and no opening"),
    "factory gives one object": (lambda: THE_ONE, "factory: returned the same object twice"),
    "tools fail": (
        counter(tools=property(fails("no tools today"))),
        "factory raised RuntimeError: no tools today",
    ),
    "tools are no specs": (with_tools({"name": "up"}), "tools: are ToolSpecs, with {'name': 'up'}"),
    "tools share a name": (with_tools(UP, UP), "tools: each has a name of its own, got 'up'"),
    "a tool has no name": (with_tools(replace(UP, name="")), "has a name of its own, got ''"),
    "schema of a list": (
        with_tools(replace(UP, parameters={"type": "array"})),
        "the parameters of 'up' must be a JSON schema of type object, got {'type': 'array'}",
    ),
    "schema not JSON": (
        with_tools(replace(UP, parameters={"type": "object", "properties": {"by": int}})),
        "tools: the parameters of 'up': JSON cannot hold it",
    ),
    "tools differ": (NewToolEachTime, "tools: differ between two new environments"),
    "tools change": (GrowingTools, "tools: changed during an episode"),
    "opening fails": (
        counter(opening=fails("closed today")),
        "opening raised RuntimeError: closed today",
    ),
    "opening is nothing": (opening_of(None), "opening: must be a list of Message, got None"),
    "opening of texts": (opening_of(("hello",)), "opening: must be a list of Message, got 'hello'"),
    "opening of one": (
        opening_of(Message("user", "hello")),
        "opening: must be a list of Message, got Message(",
    ),
    "reply of nothing": (replying(lambda e, m, r: None), "must be a Reply, got None"),
    "reply of messages": (
        replying(lambda e, m, r: [Message("user", "?")]),
        "reply to plain text: must be a Reply, got [Message(",
    ),
    "reply of texts": (
        replying(lambda e, m, r: Reply(("hm",))),
        "reply to plain text raised InvalidInput: Reply takes Messages",
    ),
    "reply changes its input": (
        replying(scribble),
        "reply to text in parts: changed the messages that it got",
    ),
    "reply in the wrong order": (
        replying(lambda e, m, r: Reply(tuple(reversed(r.messages)))),
        "calls ['call_0', 'call_1'] were answered for ['call_1', 'call_0']",
    ),
    "reply leaves calls out": (
        replying(lambda e, m, r: Reply(r.messages[:1])),
        "calls ['call_0', 'call_1'] were answered for ['call_0']",
    ),
    "reply talks before it answers": (
        replying(lambda e, m, r: Reply((Message("user", "hm"), *r.messages))),
        "in order, before anything else",
    ),
    "reply answers what was not asked": (
        replying(lambda e, m, r: Reply((*r.messages, NEVER_ASKED), done=True)),
        "answers calls ['never asked'], of which only [] exist",
    ),
    "unknown tools are raised": (
        strict(lambda call: {"up": 1}[call.name]),
        "reply to an unknown tool raised KeyError: 'no_such_tool'",
    ),
    "broken JSON is raised": (
        strict(lambda call: json.loads(call.arguments)),
        "reply to a call of up with arguments that are not JSON raised JSONDecodeError",
    ),
    "wrong types are raised": (
        strict(refuse_text),
        'reply to a call of up with by="text" raised TypeError: by is a number',
    ),
    "outcome fails": (
        counter(outcome=fails("lost")),
        "outcome, after plain text, raised RuntimeError: lost",
    ),
    "outcome no dict": (outcome_of(4), "outcome: must be a dict, got 4"),
    "outcome not JSON": (outcome_of({"it": object()}), "outcome: JSON cannot hold it"),
    "outcome of NaN": (outcome_of({"it": float("nan")}), "outcome: JSON cannot hold it"),
    "outcome changes in JSON": (
        outcome_of({1: (2, 3)}),
        "outcome: JSON changes it",
    ),
    "close right after it was made": (
        ClosesOnlyWhenOpen,
        "close right after it was made raised AttributeError",
    ),
    "close after opening": (
        ClosesOnlyAfterATurn,
        "close after opening only raised RuntimeError: nothing was done",
    ),
    "close after an episode": (
        ClosesOnlyBeforeATurn,
        "close after an episode raised RuntimeError: too late",
    ),
    "state is shared": (SharedCount, "instances share state, or act by chance"),
    "secrets are shared": (SharedSecret, "instances share state, or act by chance"),
    "snapshot fails": (
        with_snapshot(fails("not now")),
        "snapshot, after 0 turn(s), raised RuntimeError: not now",
    ),
    "snapshot not JSON": (
        with_snapshot(lambda e: make_snapshot(e, {"state": {1, 2}})),
        "snapshot: JSON cannot hold it",
    ),
    "snapshot changes in JSON": (
        with_snapshot(lambda e: make_snapshot(e, {1: e.count})),
        "snapshot: JSON changes it",
    ),
    "snapshot is no dict": (with_snapshot(lambda e: e.count), "snapshot: must be a dict, got 0"),
    "nothing restores": (counter(restore=None), "snapshot() and restore(); there is no restore"),
    "nothing to restore": (
        counter(snapshot=None),
        "snapshot() and restore(); there is no snapshot",
    ),
    "no version": (counter(version=None), "snapshot() and restore(); there is no version"),
    "a version of another form": (
        counter(version="v2"),
        "version of Changed must be a text that begins with the major version, such as '1.0', "
        "got 'v2'",
    ),
    "a snapshot that does not say of what": (
        with_snapshot(lambda e: {"count": e.count}),
        "snapshot: a snapshot has env_kind and version beside its state; this one has no env_kind "
        "and no version: {'count': 0}",
    ),
    "a snapshot of somebody else": (
        with_snapshot(lambda e: Counter().snapshot()),
        "snapshot: this is a snapshot of 'counter', which 'changed' cannot restore",
    ),
    "another state under an inherited name": (
        UnnamedState,
        "UnnamedState defines snapshot(), but has env_kind 'counter' from another class",
    ),
    "another kind is restored": (TakesAnything, "snapshots: one of another kind is restored"),
    "another major version is restored": (
        TakesItsKind,
        "snapshots: one of another major version is restored",
    ),
    "another kind is refused with a bare error": (
        RefusesOddly,
        "restore of a snapshot of another kind raised AssertionError, not SnapshotMismatch",
    ),
    "a minor version is refused": (
        Strict,
        "restore of a snapshot of another minor version raised SnapshotMismatch: not mine",
    ),
    "state is lost": (
        ForgetsTheState,
        "restored after 1 turn(s), it has another snapshot than the one it was restored from",
    ),
    "restoring fails later": (
        FailsLater,
        "restore of a snapshot taken after 2 turn(s) raised KeyError: 'three'",
    ),
    "nothing deserializes": (
        variant(Serialized, deserialize=None),
        "snapshots: have env_kind, version, serialize() and deserialize(); there is no deserialize",
    ),
    "serialized data that do not say of what": (
        variant(Serialized, ENV_KIND="bare", serialize=lambda self: {"count": self.count}),
        "serialize: a snapshot has env_kind and version beside its state",
    ),
    "deserialized to nothing": (
        variant(Serialized, deserialize=staticmethod(lambda data: None)),
        "deserialize() of Variant returns an environment, got None",
    ),
    "deserialized without the state": (
        variant(Serialized, deserialize=staticmethod(lambda data: Serialized())),
        "restored after 1 turn(s), it has another snapshot than the one it was restored from",
    ),
    "another state under an inherited name, serialized": (
        variant(Serialized, serialize=Serialized.serialize),
        "Variant defines serialize(), but has env_kind 'counter' from another class",
    ),
    "restored replies otherwise": (
        RestoredRepliesOtherwise,
        "restored after 1 turn(s), it replies otherwise than the original",
    ),
    "restored ends otherwise": (
        RestoredEndsOtherwise,
        "restored after 1 turn(s), it comes to another outcome than the original",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_each_way_of_breaking_the_contract_is_named(how: str) -> None:
    factory, said = BROKEN[how]
    assert said in violations(factory, turns=TURNS)


def test_every_violation_is_listed_and_each_once() -> None:
    class Wrong(Counter):
        def outcome(self) -> Any:
            return 4

        def close(self) -> Any:
            raise RuntimeError("stuck")

    found = violations(Wrong).splitlines()
    assert len(found) == len(set(found))
    for said in ("outcome: must be a dict", "close right after it was made raised"):
        assert any(said in line for line in found)


def test_shared_state_is_found_with_turns_made_up_from_the_tools() -> None:
    SharedCount.shared = {"count": 0}
    assert "instances share state" in violations(SharedCount)


def test_turns_are_model_turns() -> None:
    for wrong in (Message("user", "hello"), 3):
        with pytest.raises(InvalidInput, match="turns must be texts or assistant messages"):
            check_environment(Counter, turns=[wrong])


def test_it_leaves_no_event_loop_behind() -> None:
    check_environment(Counter)
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
