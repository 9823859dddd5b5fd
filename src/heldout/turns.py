"""THE turn loop: policy turn -> environment reply -> … until something ends it.

Written once, used wherever a policy meets an environment: in an eval, during training, and as
the training rollout itself. It knows messages only. A policy that works in tokens keeps its own
account of them (tokens.py) and is called like any other. Without an environment it is a single
model turn. What ended it is recorded in the trajectory's `Stop`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from heldout.concurrency import settle
from heldout.environment import Environment, HasOutcome, Reply, SeesCompletions
from heldout.errors import ContextFull, InvalidInput
from heldout.types import Completion, Message, Stop, ToolSpec, Trajectory, Usage

Policy = Callable[[Sequence[Message], Sequence[ToolSpec]], Awaitable[Completion]]
"""One model turn: the conversation and the tools in, the turn out.

It raises `ContextFull` where the conversation has become longer than it can read.
"""

CLOSE_GRACE_SECONDS = 10.0


async def rollout(
    policy: Policy,
    opening: Sequence[Message],
    environment: Environment | None = None,
    *,
    max_turns: int = 1,
    token_budget: int | None = None,
    turns_done: int = 0,
    record: list[Message] | None = None,
) -> Trajectory:
    """Run one conversation to its end, and close the environment whatever happens.

    `token_budget` bounds the conversation's length in tokens, of the prompt, the model and the
    environment together, as the policy's usage reports it: no further turn starts once it is
    spent. `turns_done` goes on with a conversation of which so many model turns were made
    already, with an environment restored from a snapshot: it is not asked to open again.
    `record`, where given, holds the conversation as it grows, so that a rollout that fails or is
    cancelled leaves behind what was said.
    """
    messages = record if record is not None else []
    if environment is None:
        messages.extend(opening)
        completion = await policy(messages, ())
        messages.append(completion.message)
        stop = Stop("no_reply", truncated=completion.finish_reason == "length")
        return Trajectory(tuple(messages), stop, completion.usage)
    try:
        messages.extend(opening)
        if not turns_done:
            messages.extend(await settle(environment.opening()))
        stop, usage = await _turns(
            policy, messages, environment, range(turns_done, max_turns), token_budget
        )
        outcome = None
        if isinstance(environment, HasOutcome):
            outcome = await settle(environment.outcome())
        return Trajectory(tuple(messages), stop, usage, outcome=outcome)
    finally:
        # A cancelled rollout must still get to close; but not for ever.
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_GRACE_SECONDS):
            await settle(environment.close())


async def _turns(
    policy: Policy,
    messages: list[Message],
    environment: Environment,
    turns: range,
    token_budget: int | None,
) -> tuple[Stop, Usage | None]:
    tools = tuple(environment.tools)
    usage: Usage | None = None
    truncated = False
    watching = environment if isinstance(environment, SeesCompletions) else None
    for turn in turns:
        try:
            completion = await policy(messages, tools)
        except ContextFull:
            if turn == 0:
                raise  # nothing was said yet, so there is nothing to score
            return Stop("limit", "context", truncated), usage
        messages.append(completion.message)
        truncated = completion.finish_reason == "length"
        if completion.usage is not None:
            usage = completion.usage if usage is None else usage + completion.usage
        if watching is not None:
            await settle(watching.see_completion(completion))
        # The last turn reaches the environment too: scores on its state must not be stale.
        reply = await settle(environment.reply(tuple(messages)))
        if not isinstance(reply, Reply):
            raise TypeError(f"an environment's reply is a Reply, got {reply!r:.200}")
        messages.extend(reply.messages)
        if reply.done:
            return Stop("environment", truncated=truncated), usage
        if not reply.messages:
            return Stop("no_reply", truncated=truncated), usage
        if token_budget is not None and _length(completion) >= token_budget:
            return Stop("limit", "token_budget", truncated), usage
    return Stop("limit", "max_turns", truncated), usage


def _length(completion: Completion) -> int:
    """How many tokens the conversation has, as of this turn."""
    if completion.usage is None:
        raise InvalidInput(
            "token_budget is set, but the endpoint does not say how many tokens it used; "
            "use max_turns instead"
        )
    return completion.usage.prompt_tokens + completion.usage.completion_tokens
