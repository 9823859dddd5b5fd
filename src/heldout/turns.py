"""THE turn loop: policy turn -> environment reply -> … until something ends it.

Written once, used wherever a policy meets an environment. Without an environment it is a single
model turn. What ended it is recorded in the trajectory's `Stop`.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeVar

import anyio

from heldout.environment import Environment
from heldout.types import Completion, Message, Stop, ToolSpec, Trajectory, Usage

T = TypeVar("T")

Policy = Callable[[Sequence[Message], Sequence[ToolSpec]], Awaitable[Completion]]
"""One model turn: the conversation and the tools in, the turn out."""

_CLOSE_GRACE_SECONDS = 10.0


async def settle(value: T | Awaitable[T]) -> T:
    """Await what a plain-or-async function returned, if it needs awaiting."""
    if inspect.isawaitable(value):
        return await value
    return value


async def rollout(
    policy: Policy,
    opening: Sequence[Message],
    environment: Environment | None = None,
    *,
    max_turns: int = 1,
    record: list[Message] | None = None,
) -> Trajectory:
    """Run one conversation to its end.

    `record`, where given, holds the conversation as it grows, so that a rollout that fails or is
    cancelled leaves behind what was said.
    """
    messages = record if record is not None else []
    if environment is None:
        messages.extend(opening)
        completion = await policy(messages, ())
        messages.append(completion.message)
        return _trajectory(messages, completion, completion.usage, "no_reply")
    try:
        messages.extend(opening)
        return await _with_environment(policy, messages, environment, max_turns)
    finally:
        # A cancelled rollout must still get to close; but not for ever.
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_GRACE_SECONDS):
            await settle(environment.close())


async def _with_environment(
    policy: Policy, messages: list[Message], environment: Environment, max_turns: int
) -> Trajectory:
    messages.extend(await settle(environment.opening()))
    tools = tuple(environment.tools)
    usage: Usage | None = None
    for turn in range(1, max_turns + 1):
        completion = await policy(messages, tools)
        messages.append(completion.message)
        if completion.usage is not None:
            usage = completion.usage if usage is None else usage + completion.usage
        # The last turn reaches the environment too: scores on its state must not be stale.
        reply = await settle(environment.reply(tuple(messages)))
        messages.extend(reply.messages)
        if reply.done:
            return _trajectory(messages, completion, usage, "environment")
        if not reply.messages:
            return _trajectory(messages, completion, usage, "no_reply")
        if turn == max_turns:
            break
    return _trajectory(messages, completion, usage, "limit", "max_turns")


def _trajectory(
    messages: list[Message],
    completion: Completion,
    usage: Usage | None,
    ended_by: Literal["environment", "limit", "no_reply"],
    limit: str | None = None,
) -> Trajectory:
    stop = Stop(ended_by, limit, truncated=completion.finish_reason == "length")
    return Trajectory(tuple(messages), stop=stop, usage=usage)
