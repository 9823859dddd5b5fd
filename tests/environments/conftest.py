"""Shared by the tests of environments: event loops, turns that call tools, one-off replies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest

from heldout import Message, Reply, Sample, ToolCall, Trajectory
from heldout._core.aio import settle
from heldout._evals.rollout import Attempt

Run = Callable[..., Any]


@pytest.fixture
def run(backend: str) -> Run:
    """Runs an async function to its end."""

    def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return anyio.run(function, *arguments, backend=backend)

    return run


async def rollout(
    policy: Any, opening: Sequence[Message], environment: Any, *, max_turns: int
) -> Trajectory:
    """The trajectory of one conversation with an environment."""
    return await Attempt(Sample("a", {}), policy, max_turns=max_turns).roll_out(
        opening, environment
    )


def calling(*calls: tuple[str, str]) -> Message:
    """A model turn that calls tools: (name, arguments as JSON text) each."""
    made = (ToolCall(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(calls))
    return Message("assistant", "", tuple(made))


def reply_of(environment: Any, *turns: Message) -> Reply:
    """What an environment replies to the last of these turns, having had the others before."""

    async def main() -> Reply:
        messages = [Message("user", "go")]
        reply = Reply()
        for turn in turns:
            messages.append(turn)
            reply = await settle(environment.reply(tuple(messages)))
            messages.extend(reply.messages)
        await settle(environment.close())
        return reply

    reply: Reply = anyio.run(main)
    return reply


def told(environment: Any, name: str, arguments: str = "{}") -> str:
    """What a model is told after one call."""
    return reply_of(environment, calling((name, arguments))).messages[0].text
