"""THE turn loop: policy turn -> environment reply -> … until something ends it.

Written once, used wherever a policy meets an environment: in an eval, during training, and as
the training rollout itself. It knows messages only. A policy that works in tokens keeps its own
account of them (tokens.py) and is called like any other. Without an environment it is a single
model turn. What ended it is recorded in the trajectory's `Stop`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypedDict

import anyio

from heldout._aio import settle
from heldout.environment import (
    Environment,
    HasOutcome,
    Reply,
    SeesCompletions,
    check_environment_shape,
    check_messages,
)
from heldout.errors import ContextFull, EnvironmentFailed, InvalidInput
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
        messages.append(_turn(completion))
        stop = Stop("no_reply", **_end(completion.finish_reason))
        own = _own(messages, [len(messages) - 1])
        return Trajectory(tuple(messages), stop, completion.usage, model_turns=own)
    check_environment_shape(environment)
    problem: BaseException | None = None
    try:
        messages.extend(opening)
        said = [i for i, message in enumerate(messages) if message.role == "assistant"]
        said = said[-turns_done:] if turns_done else []
        if not turns_done:
            opened = await settle(environment.opening())
            check_messages(opened, "an environment's opening() gives Messages")
            messages.extend(opened)
        stop, usage = await _turns(
            policy, messages, environment, range(turns_done, max_turns), token_budget, said
        )
        outcome = None
        if isinstance(environment, HasOutcome):
            outcome = _stored(await settle(environment.outcome()), environment)
        own = _own(messages, said)
        return Trajectory(tuple(messages), stop, usage, outcome=outcome, model_turns=own)
    except BaseException as raised:
        problem = raised
        raise
    finally:
        try:
            # A cancelled rollout must still get to close; but not for ever.
            with (
                anyio.CancelScope(shield=True),
                anyio.move_on_after(CLOSE_GRACE_SECONDS) as grace,
            ):
                await settle(environment.close())
            if grace.cancelled_caught:
                raise EnvironmentFailed(f"close() was not done after {CLOSE_GRACE_SECONDS:g} s")
        except Exception as second:
            # What failed first is what matters; an environment that broke often cannot close.
            if problem is None:
                raise
            problem.add_note(f"close() failed, too: {type(second).__name__}: {second}")


def _own(messages: Sequence[Message], said: Sequence[int]) -> tuple[int, ...] | None:
    """Which messages are the model's; None where roles say it."""
    spoken = [i for i, message in enumerate(messages) if message.role == "assistant"]
    return None if spoken == said else tuple(said)


def _stored(outcome: Any, environment: Environment) -> dict[str, Any]:
    """The outcome as it will be read back, so that it is scored as it is stored."""
    kind = type(environment).__name__
    if not isinstance(outcome, dict):
        raise EnvironmentFailed(f"outcome() of {kind} returns a dict, got {outcome!r:.200}")
    try:
        # Strictly: a NaN would come back as nothing, a set as a list in any order.
        stored: dict[str, Any] = json.loads(json.dumps(outcome, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as problem:
        raise EnvironmentFailed(
            f"outcome() of {kind} returned what JSON cannot hold: {problem}"
        ) from None
    return stored


async def _turns(
    policy: Policy,
    messages: list[Message],
    environment: Environment,
    turns: range,
    token_budget: int | None,
    said: list[int],
) -> tuple[Stop, Usage | None]:
    tools = tuple(environment.tools)
    usage: Usage | None = None
    reason: str | None = None
    watching = environment if isinstance(environment, SeesCompletions) else None
    for turn in turns:
        try:
            completion = await policy(messages, tools)
        except ContextFull:
            if turn == 0:
                raise  # nothing was said yet, so there is nothing to score
            return Stop("limit", "context", **_end(reason)), usage
        said.append(len(messages))
        messages.append(_turn(completion))
        reason = completion.finish_reason
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
            return Stop("environment", **_end(reason)), usage
        if not reply.messages:
            return Stop("no_reply", **_end(reason)), usage
        if token_budget is not None and _length(completion) >= token_budget:
            return Stop("limit", "token_budget", **_end(reason)), usage
    return Stop("limit", "max_turns", **_end(reason)), usage


class _End(TypedDict):
    truncated: bool
    finish_reason: str | None


def _end(reason: str | None) -> _End:
    """What a Stop says of how the last model turn ended."""
    return {"truncated": reason == "length", "finish_reason": reason}


def _turn(completion: Completion) -> Message:
    message = completion.message
    if not isinstance(message, Message) or message.role != "assistant":
        raise InvalidInput(f"a policy's turn is an assistant's Message, got {message!r:.200}")
    return message


def _length(completion: Completion) -> int:
    """How many tokens the conversation has, as of this turn."""
    if completion.usage is None:
        raise InvalidInput(
            "token_budget is set, but the endpoint does not say how many tokens it used; "
            "use max_turns instead"
        )
    return completion.usage.prompt_tokens + completion.usage.completion_tokens
