"""The endpoint contract, retries, and the simplest endpoint: a function."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import anyio

from heldout.concurrency import Threads, is_async, settle
from heldout.config import Sampling, describe_callable
from heldout.errors import InvalidInput, TransientError
from heldout.types import Completion, Message, ToolSpec


class Endpoint(Protocol):
    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """One model turn. Raises an EndpointError that says whether trying again may help."""
        ...

    def describe(self) -> dict[str, Any]:
        """What is stored with a report: enough to know who answered, and no secret."""
        ...

    async def close(self) -> None: ...


AnswerFn = Callable[[list[Message]], str | Message | Awaitable[str | Message]]


class FunctionEndpoint:
    """`(messages) -> str | Message`, plain or async.

    A plain function runs in a thread, since it may well block; as many at once as items do.
    """

    def __init__(self, function: AnswerFn) -> None:
        self._function = function
        self._is_async = is_async(function)
        self._threads = Threads()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        if tools:
            raise InvalidInput(
                "an environment with tools needs an endpoint that is told of them; a function "
                "of the messages is not. Give an object with complete(messages, sampling, tools)"
            )
        if self._is_async:
            answer: Any = await self._function(list(messages))  # type: ignore[misc]
        else:
            # A plain function may hand back a coroutine.
            answer = await settle(await self._threads.run(self._function, list(messages)))
        return Completion.of(answer)

    def describe(self) -> dict[str, Any]:
        return {"kind": "function", **(describe_callable(self._function) or {})}

    async def close(self) -> None:
        self._threads.close()


# --- Retries ------------------------------------------------------------------------------------

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# Own generator: the user's random state is not ours to draw from.
_jitter = random.Random()


async def with_retries(
    request: Callable[[], Awaitable[Completion]],
    retries: int,
    *,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> Completion:
    """What the request gives, tried again after transient failures, with growing waits."""
    for attempt in range(retries + 1):
        try:
            return await request()
        except TransientError as problem:
            if attempt == retries:
                raise
            wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt) * _jitter.uniform(0.5, 1.0)
            # What the server asks for is honoured; the item's timeout is what bounds it.
            await sleep(max(wait, problem.retry_after or 0.0))
    raise AssertionError("unreachable")
