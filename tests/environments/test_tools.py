"""ToolEnvironment: what a model is told, what is an error of the item, and snapshots."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from examples.calculator import Calculator
from examples.file_system import FileSystem
from hypothesis import given
from hypothesis import strategies as st

from heldout import Message, Reply
from heldout.environment import make_snapshot, read_snapshot
from heldout.environments import ToolEnvironment
from heldout.errors import EnvironmentFailed, InvalidInput, SnapshotMismatch
from heldout.testing import check_environment
from tests.conftest import both_loops
from tests.environments.conftest import Run, calling, reply_of, told


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def add_later(a: int, b: int = 1) -> int:
    """Add two numbers, in a while."""
    await anyio.lowlevel.checkpoint()
    return a + b


def submit(answer: str) -> str:
    """Hand in an answer."""
    if not answer:
        raise ValueError("the answer is empty")
    return "thank you"


def remember(word: str, notes: list[str]) -> str:
    """Note a word down."""
    notes.append(word)
    return f"{len(notes)} noted"


@dataclass
class Found:
    name: str
    score: Any


# --- Calls --------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_threads", [True, False])
@pytest.mark.parametrize("function", [add, add_later])
def test_plain_and_async_functions_are_called_with_what_the_model_gave(
    run: Run, function: Any, in_threads: bool
) -> None:
    async def main() -> Reply:
        environment = ToolEnvironment([function], in_threads=in_threads)
        reply = await environment.reply((calling((function.__name__, '{"a": 2}')),))
        await environment.close()
        return reply

    assert run(main) == Reply((Message("tool", "3", tool_call_id="c0"),))


def test_every_call_of_a_turn_is_answered_in_order_with_its_id() -> None:
    turn = calling(
        ("add", '{"a": 1}'), ("nothing", "{}"), ("add", '{"a": "x"}'), ("add", '{"a":5}')
    )
    reply = reply_of(ToolEnvironment([add]), turn)
    assert [m.tool_call_id for m in reply.messages] == ["c0", "c1", "c2", "c3"]
    assert [m.role for m in reply.messages] == ["tool"] * 4
    assert [m.text.startswith("Error: ") for m in reply.messages] == [False, True, True, False]
    assert not reply.done


def test_calls_of_one_turn_run_one_after_another() -> None:
    notes: list[str] = []
    environment = ToolEnvironment([remember], inject={"notes": notes})
    turn = calling(*(("remember", json.dumps({"word": str(i)})) for i in range(20)))
    reply = reply_of(environment, turn)
    assert notes == [str(i) for i in range(20)]
    assert reply.messages[-1].text == "20 noted"


@pytest.mark.parametrize("in_threads", [True, False])
def test_plain_functions_run_in_a_thread_that_ends_unless_told_otherwise(in_threads: bool) -> None:
    threads: list[threading.Thread] = []

    def where() -> str:
        threads.append(threading.current_thread())
        return ""

    told(ToolEnvironment([where], in_threads=in_threads), "where")
    assert (threads[0] is not threading.main_thread()) == in_threads
    if in_threads:
        threads[0].join(10)
        assert not threads[0].is_alive()


def test_a_plain_function_may_hand_back_a_coroutine() -> None:
    def soon(a: int) -> Awaitable[int]:
        return add_later(a)

    assert told(ToolEnvironment([soon]), "soon", '{"a": 1}') == "2"
    assert told(ToolEnvironment([soon], in_threads=False), "soon", '{"a": 1}') == "2"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("as it is\n", "as it is\n"),
        (None, "null"),
        ([1, "ä", True, 1.5], '[1, "ä", true, 1.5]'),
        ({"a": (1, 2)}, '{"a": [1, 2]}'),
        ({"b", "a"}, '["a", "b"]'),
        (10**30, str(10**30)),
        ([Found("x", np.float64(0.5)), np.arange(2)], '[{"name": "x", "score": 0.5}, [0, 1]]'),
    ],
)
def test_results_are_text_as_it_is_and_json_otherwise(result: Any, text: str) -> None:
    def tool():  # type: ignore[no-untyped-def]
        return result

    assert told(ToolEnvironment([tool]), "tool") == text


@pytest.mark.parametrize("result", [object(), [math.inf], {(1, 2): 3}])
def test_a_result_that_json_cannot_hold_is_the_environments_own_fault(result: Any) -> None:
    def tool():  # type: ignore[no-untyped-def]
        return result

    kind = type(result).__name__
    with pytest.raises(EnvironmentFailed, match=f"tool 'tool' returned a {kind}, which JSON"):
        told(ToolEnvironment([tool]), "tool")


# --- What goes wrong ----------------------------------------------------------------------------


def test_an_unknown_tool_is_named_with_those_there_are() -> None:
    environment = ToolEnvironment([add, submit])
    said = told(environment, "sumbit")
    assert said == (
        "Error: there is no tool 'sumbit' (did you mean submit?). The tools are: add, submit"
    )
    assert told(ToolEnvironment([]), "x") == "Error: there is no tool 'x'. There are no tools"


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (ValueError("too small"), "Error: ValueError: too small"),
        (ValueError(), "Error: ValueError"),
        (StopIteration(), "Error: RuntimeError: coroutine raised StopIteration"),
        (RecursionError("deep"), "Error: RecursionError: deep"),
    ],
)
def test_what_a_tool_raises_is_told_to_the_model(raised: Exception, said: str) -> None:
    def tool() -> str:
        raise raised

    for in_threads in (True, False):
        assert told(ToolEnvironment([tool], in_threads=in_threads), "tool") == said


def test_environment_failed_is_not_the_models_to_read() -> None:
    def tool() -> str:
        raise EnvironmentFailed("the database is gone")

    async def tools() -> str:
        raise ExceptionGroup("tasks", [EnvironmentFailed("the database is gone")])

    for function in (tool, tools):
        environment = ToolEnvironment([function])
        with pytest.raises((EnvironmentFailed, ExceptionGroup)):
            told(environment, function.__name__)


@both_loops
def test_a_cancelled_call_is_cancelled_and_not_told(run: Run) -> None:
    async def main() -> list[Any]:
        async def stuck() -> str:
            scope.cancel()
            await anyio.sleep_forever()
            return ""

        environment = ToolEnvironment([stuck])
        replies = []
        with anyio.CancelScope() as scope:
            replies.append(await environment.reply((calling(("stuck", "{}")),)))
        await environment.close()
        return replies

    assert run(main) == []


@both_loops
def test_a_plain_call_that_blocks_can_be_given_up_on(run: Run) -> None:
    release, begun = threading.Event(), threading.Event()

    def stuck() -> str:
        begun.set()
        release.wait()
        return ""

    async def main() -> bool:
        environment = ToolEnvironment([stuck])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(environment.reply, (calling(("stuck", "{}")),))
            await anyio.to_thread.run_sync(begun.wait)
            tasks.cancel_scope.cancel()
        await environment.close()
        return True

    try:
        assert run(main)
    finally:
        release.set()


@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(["add", "submit", "remember"]), st.text(max_size=8)),
            st.one_of(
                st.text(max_size=30),
                st.dictionaries(
                    st.sampled_from(["a", "b", "answer", "word", "notes"]),
                    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.floats()),
                ).map(json.dumps),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_a_model_calls_every_call_is_answered(calls: list[tuple[str, str]]) -> None:
    environment = ToolEnvironment(
        [add, submit, remember], inject={"notes": []}, ends=["submit"], in_threads=False
    )
    reply = reply_of(environment, calling(*calls))
    assert [m.tool_call_id for m in reply.messages] == [f"c{i}" for i in range(len(calls))]


# --- Ending, opening, text ----------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ['{"answer": ""}', "{}", "not JSON"])
def test_a_call_that_fails_ends_nothing(arguments: str) -> None:
    environment = ToolEnvironment([submit], ends=["submit"])
    assert not reply_of(environment, calling(("submit", arguments))).done


def test_a_successful_call_of_an_ending_tool_ends_the_episode_and_what_follows_is_not_run() -> None:
    notes: list[str] = []
    environment = ToolEnvironment([submit, remember], inject={"notes": notes}, ends=["submit"])
    turn = calling(("submit", '{"answer": "4"}'), ("remember", '{"word": "late"}'))
    reply = reply_of(environment, turn)
    assert reply.done
    assert [message.text for message in reply.messages] == [
        "thank you",
        "Error: not run, since submit ended the episode",
    ]
    assert notes == []


def test_a_turn_without_calls_has_no_reply_unless_a_subclass_knows_one() -> None:
    class Nagging(ToolEnvironment):
        def reply_to_text(self, messages: Sequence[Message]) -> Reply:
            return Reply((Message("user", f"use a tool, not {messages[-1].text!r}"),))

    text = Message("assistant", "4")
    assert reply_of(ToolEnvironment([add]), text) == Reply()
    assert reply_of(Nagging([add]), text).messages[0].text == "use a tool, not '4'"


def test_it_opens_with_what_it_was_given() -> None:
    opening = [Message("system", "Be brief."), Message("user", "2 + 2?")]
    assert list(ToolEnvironment([add], opening=opening).opening()) == opening  # type: ignore[arg-type]


def test_injected_values_are_neither_shown_to_the_model_nor_set_by_it() -> None:
    notes: list[str] = []
    environment = ToolEnvironment([remember], inject={"notes": notes})
    assert list(environment.tools[0].parameters["properties"]) == ["word"]
    said = told(environment, "remember", '{"word": "x", "notes": []}')
    assert "unknown field `notes`" in said
    assert notes == []
    assert told(environment, "remember", '{"word": "x"}') == "1 noted"
    assert notes == ["x"]


@pytest.mark.parametrize(
    ("tools", "options", "said"),
    [
        ([add, add], {}, "two tools are named 'add'"),
        ([add], {"inject": {"state": 1}}, "inject has 'state', but no tool has.*tools are add"),
        ([add], {"ends": ["submit"]}, "ends has 'submit', which is no tool; the tools are add"),
        ([add], {"ends": "add"}, "ends has 'a', which is no tool"),
        ([add], {"opening": ["hello"]}, "opening must be a list of Message, got 'hello'"),
        ([3], {}, "a tool must be a function, got 3"),
    ],
)
def test_what_cannot_be_meant_is_refused_when_it_is_made(
    tools: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        ToolEnvironment(tools, **options)


# --- Snapshots ----------------------------------------------------------------------------------


@dataclass
class Basket:
    items: dict[str, int] = field(default_factory=dict)
    paid: tuple[int, ...] = ()


def put(item: str, basket: Basket) -> int:
    """Put an item into the basket."""
    basket.items[item] = basket.items.get(item, 0) + 1
    return sum(basket.items.values())


def pay(amount: int, basket: Basket) -> str:
    """Pay."""
    basket.paid = (*basket.paid, amount)
    return f"paid {basket.paid}"


def shop() -> ToolEnvironment:
    return ToolEnvironment(
        [put, pay],
        inject={"basket": Basket()},
        opening=[Message("user", "buy")],
        ends=["pay"],
        in_threads=False,
    )


SHOPPING = [
    calling(("put", '{"item": "tea"}')),
    calling(("put", '{"item": "tea"}'), ("put", '{"item": 4}')),
    calling(("pay", '{"amount": 3}')),
]


def test_a_tool_environment_keeps_the_contract() -> None:
    check_environment(shop, turns=SHOPPING)
    check_environment(lambda: ToolEnvironment([add, add_later]))


def test_injected_state_comes_back_with_the_type_it_had() -> None:
    environment, again = shop(), shop()
    reply_of(environment, *SHOPPING[:2])
    again.restore(json.loads(json.dumps(environment.snapshot())))
    assert reply_of(again, calling(("put", '{"item": "milk"}'))).messages[0].text == "3"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (threading.Lock(), "'state', a lock, would not come back"),
        ({"a": math.nan}, "'state', a dict, would not come back"),
        ({1: "a"}, "'state', a dict, would not come back"),
    ],
)
def test_state_that_would_not_come_back_is_refused_when_a_snapshot_is_taken(
    value: Any, said: str
) -> None:
    def tool(state) -> str:  # type: ignore[no-untyped-def]
        return ""

    environment = ToolEnvironment([tool], inject={"state": value})
    with pytest.raises(InvalidInput, match=said):
        environment.snapshot()


def test_one_snapshot_can_be_restored_again_and_again() -> None:
    taken = ToolEnvironment([remember], inject={"notes": ["a"]}).snapshot()
    for _ in range(2):
        environment = ToolEnvironment([remember], inject={"notes": []})
        environment.restore(taken)
        assert told(environment, "remember", '{"word": "b"}') == "2 noted"


@pytest.mark.parametrize(
    ("snapshot", "said"),
    [
        ({"basket": {"items": "none"}}, r"no snapshot of what is injected here, \['basket'\]"),
        ({"count": 4}, r"no snapshot of what is injected here, \['basket'\]: KeyError"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused(snapshot: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        shop().restore(make_snapshot(shop(), snapshot))


TREE = FileSystem({"/a": "x"}, {"/a": None})


@pytest.mark.parametrize(
    ("environment", "snapshot", "said"),
    [
        (Calculator(), TREE.snapshot(), "of 'file_system', which 'calculator' cannot restore"),
        (TREE, Calculator().snapshot(), "of 'calculator', which 'file_system' cannot restore"),
        (TREE, {**TREE.snapshot(), "version": "2.0"}, "is of version '2.0', .* of version '1.0'"),
        (TREE, {**TREE.snapshot(), "version": None}, "is of version None, .* of version '1.0'"),
        (TREE, {"state": {"files": {}, "calls": 0}}, "has no env_kind and no version"),
        (TREE, {"files": {}, "calls": 0}, "has no env_kind and no version"),
    ],
)
def test_a_snapshot_of_another_kind_or_major_version_is_refused_by_name(
    environment: Any, snapshot: Any, said: str
) -> None:
    with pytest.raises(SnapshotMismatch, match=said):
        environment.restore(snapshot)


def test_a_snapshot_of_another_minor_version_is_restored() -> None:
    tree = FileSystem({}, {"/a": None})
    tree.restore({**TREE.snapshot(), "version": "1.7"})
    assert tree.outcome()["files"] == {"/a": "x"}


class Counter(ToolEnvironment):
    """A subclass with tools and state of its own."""

    def __init__(self) -> None:
        super().__init__([self.up], in_threads=False)
        self.count = 0

    def up(self, by: int = 1) -> int:
        """Count up."""
        self.count += by
        return self.count

    def outcome(self) -> dict[str, Any]:
        return {"count": self.count}

    env_kind = "counter"

    def snapshot(self) -> dict[str, Any]:
        return make_snapshot(self, {"count": self.count})

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.count = read_snapshot(self, snapshot)["count"]


def test_a_subclass_says_what_its_state_is() -> None:
    turns: list[str | Message] = [calling(("up", "{}")), calling(("up", '{"by": 5}')), "six"]
    check_environment(Counter, turns=turns)


def test_a_subclass_that_does_not_has_no_snapshots() -> None:
    class Forgetful(ToolEnvironment):
        pass

    with pytest.raises(NotImplementedError, match="Forgetful may have state of its own"):
        Forgetful([add]).snapshot()
    check_environment(lambda: Forgetful([add]))


def test_a_subclass_may_change_its_replies() -> None:
    class UpToThree(Counter):
        async def reply(self, messages: Sequence[Message]) -> Reply:
            reply = await super().reply(messages)
            return replace(reply, done=self.count >= 3)

    up = calling(("up", "{}"))
    assert not reply_of(UpToThree(), up, up).done
    assert reply_of(UpToThree(), up, up, up).done
