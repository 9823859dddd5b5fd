"""Code that asks a model, as an environment: the real engine calls the policy."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from heldout import (
    EvalConfig,
    EvalDefinition,
    EvalReport,
    Message,
    Metric,
    Sample,
    Score,
    ToolSpec,
    evaluate,
)
from heldout.environments.driven import Driven, DrivenConversation
from heldout.errors import EvalFailed

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class TheirLimit(Exception):
    pass


async def run(
    code: Callable[[DrivenConversation], Any], tmp_path: Path, answer: Any = "4", **config: Any
) -> EvalReport:
    async def endpoint(messages: list[Message], **_: Any) -> str:
        if isinstance(answer, Exception):
            raise answer
        return f"{answer} ({len(messages)})"

    definition = EvalDefinition(
        [Sample("a", {"question": "?"})],
        lambda trajectory, sample: Score([Metric("got", trajectory.outcome["got"], 1.0)]),
        lambda sample: [],
        lambda sample: Driven.of(code, TheirLimit),
    )
    settings = EvalConfig(
        endpoint=endpoint,
        experiment_name="eval",
        output_dir=str(tmp_path),
        max_error_rate=1,
        **config,
    )
    try:
        return await evaluate(definition, settings)
    except EvalFailed:  # its only item errored
        return EvalReport.load(tmp_path / "eval")


async def two_questions(conversation: DrivenConversation) -> dict[str, Any]:
    said = [Message("system", "Be brief."), Message("user", "2 + 2?")]
    tools = [ToolSpec("add")]
    first = await conversation.ask(said, tools)
    said += [Message("assistant", "in words of its own"), Message("user", "Sure?")]
    second = await conversation.ask(said, tools)
    return {"got": 1.0, "turns": [first.message.text, second.message.text]}


async def test_what_it_says_is_the_conversation_and_what_it_returns_the_outcome(
    tmp_path: Path,
) -> None:
    (result,) = (await run(two_questions, tmp_path)).results
    assert [m.role for m in result.trajectory.messages] == [
        *("system", "user", "assistant", "user", "assistant")
    ]
    assert result.trajectory.messages[2].text == "4 (2)"
    assert result.trajectory.outcome == {"got": 1.0, "turns": ["4 (2)", "4 (4)"]}
    assert result.trajectory.stop.ended_by == "environment"
    assert result.score.reward == 1.0


async def test_a_policy_that_fails_is_an_error_though_its_code_takes_everything(
    tmp_path: Path,
) -> None:
    async def careless(conversation: DrivenConversation) -> dict[str, Any]:
        try:
            await conversation.ask([Message("user", "?")])
        except Exception:
            return {"got": 0.0}
        raise AssertionError

    (result,) = (await run(careless, tmp_path, RuntimeError("no GPU"))).results
    assert (result.error_stage, "no GPU" in str(result.error)) == ("endpoint", True)


async def test_our_limit_is_its_own_limit_and_its_scorer_still_runs(tmp_path: Path) -> None:
    async def endless(conversation: DrivenConversation) -> dict[str, Any]:
        said = [Message("user", "?")]
        try:
            while True:
                said.append((await conversation.ask(said)).message)
                said.append(Message("user", "and?"))
        except TheirLimit:
            return {"got": len(said) / 10}

    (result,) = (await run(endless, tmp_path, max_turns=2)).results
    assert (result.trajectory.stop.limit, result.score.reward) == ("max_turns", 0.5)


async def rewritten(conversation: DrivenConversation) -> dict[str, Any]:
    turn = await conversation.ask([Message("user", "a")])
    await conversation.ask([Message("user", "b"), turn.message, Message("user", "c")])
    return {"got": 1.0}


async def branched(conversation: DrivenConversation) -> dict[str, Any]:
    await conversation.ask([Message("user", "a")])
    await conversation.ask([Message("user", "a")])
    return {"got": 1.0}


async def at_once(conversation: DrivenConversation) -> dict[str, Any]:
    asked = conversation.ask([Message("user", "a")]), conversation.ask([Message("user", "b")])
    await asyncio.gather(*asked, return_exceptions=True)
    return {"got": 0.0}


async def other_tools(conversation: DrivenConversation) -> dict[str, Any]:
    turn = await conversation.ask([Message("user", "a")])
    said = [Message("user", "a"), turn.message, Message("user", "b")]
    await conversation.ask(said, [ToolSpec("add")])
    return {"got": 0.0}


async def silent(conversation: DrivenConversation) -> dict[str, Any]:
    return {"got": 1.0}


async def broken(conversation: DrivenConversation) -> dict[str, Any]:
    await conversation.ask([Message("user", "a")])
    raise KeyError("scorer")


async def never_satisfied(conversation: DrivenConversation) -> dict[str, Any]:
    said = [Message("user", "a")]
    while True:
        try:
            said += [(await conversation.ask(said)).message, Message("user", "b")]
        except TheirLimit:
            continue


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (rewritten, "rewritten message 0"),
        (branched, "it branches"),
        (at_once, "second conversation"),
        (other_tools, "other tools"),
        (silent, "without asking"),
        (broken, "KeyError: 'scorer'"),
        (never_satisfied, "goes on asking"),
    ],
)
async def test_what_is_no_single_conversation_is_an_error_with_its_reason(
    code: Callable[[DrivenConversation], Any], reason: str, tmp_path: Path
) -> None:
    (result,) = (await run(code, tmp_path, max_turns=3)).results
    assert reason in str(result.error)
    assert result.error_stage == "environment"


async def test_code_is_ended_with_its_item(tmp_path: Path) -> None:
    ended = []

    async def waits(conversation: DrivenConversation) -> dict[str, Any]:
        try:
            await conversation.ask([Message("user", "a")])
            await asyncio.sleep(3600)
        finally:
            ended.append("waits")
        raise AssertionError

    (result,) = (await run(waits, tmp_path, timeout=0.2)).results
    assert "timeout" in str(result.error)
    assert ended == ["waits"]


@pytest.mark.parametrize("fails", [False, True])
async def test_the_factory_is_told_that_the_run_has_ended(fails: bool, tmp_path: Path) -> None:
    ends = []

    class Factory:
        def __call__(self, sample: Sample) -> Driven:
            return Driven.of(broken if fails else two_questions)

        async def end_run(self) -> None:
            ends.append(len(ends))

    async def endpoint(messages: list[Message], **_: Any) -> str:
        return "4"

    definition = EvalDefinition([Sample("a", {})], lambda t, s: 1.0, lambda s: [], Factory())
    config = EvalConfig(endpoint=endpoint, output_dir=str(tmp_path))
    with pytest.raises(EvalFailed) if fails else nullcontext():
        await evaluate(definition, config)
    assert ends == [0]


def exits() -> None:
    sys.exit("no license")


async def exits_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(exits))


class Strange(BaseException):
    pass


async def strange() -> None:
    raise Strange("told so")


@pytest.mark.parametrize(
    ("end", "error"),
    [(exits, "SystemExit: no license"), (exits_in_a_group, "no license"), (strange, "Strange: to")],
)
@pytest.mark.parametrize("asked", [False, True])
async def test_code_that_exits_is_its_items_error_at_once(
    end: Callable[[], Any], error: str, asked: bool, tmp_path: Path
) -> None:
    async def code(conversation: DrivenConversation) -> dict[str, Any]:
        if asked:
            await conversation.ask([Message("user", "2 + 2?")])
        if (waiting := end()) is not None:
            await waiting
        return {"got": 1.0}

    begun = time.monotonic()
    (result,) = (await run(code, tmp_path, timeout=25.0)).results
    assert error in str(result.error)
    assert time.monotonic() - begun < 20
