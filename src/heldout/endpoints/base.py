"""The endpoint contract, retries, and the simplest endpoint: a function."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import anyio
import anyio.to_thread

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

    def __init__(self, function: AnswerFn, *, max_threads: int) -> None:
        self._function = function
        # An object with an async __call__ is as async as a function.
        called = function if inspect.isroutine(function) else type(function).__call__
        self._is_async = inspect.iscoroutinefunction(inspect.unwrap(called))
        self._limiter: anyio.CapacityLimiter | None = None
        self._max_threads = max_threads

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
            if self._limiter is None:
                self._limiter = anyio.CapacityLimiter(self._max_threads)
            answer = await anyio.to_thread.run_sync(
                self._function, list(messages), limiter=self._limiter, abandon_on_cancel=True
            )
            if inspect.isawaitable(answer):  # a plain function may hand back a coroutine
                answer = await answer
        return Completion.of(answer)

    def describe(self) -> dict[str, Any]:
        return {"kind": "function", **(describe_callable(self._function) or {})}

    async def close(self) -> None:
        return None


# --- Retries ------------------------------------------------------------------------------------

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
# Own generator: the user's random state is not ours to draw from.
_jitter = random.Random()


async def with_retries(
    request: Callable[[], Awaitable[Completion]],
    retries: int,
    *,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> tuple[Completion, int]:
    """The completion, and how many requests it took."""
    for attempt in range(retries + 1):
        try:
            return await request(), attempt + 1
        except TransientError as problem:
            if attempt == retries:
                raise
            wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2**attempt) * _jitter.uniform(0.5, 1.0)
            # What the server asks for is honoured, up to a bound: the item's timeout still holds.
            await sleep(max(wait, problem.retry_after or 0.0))
    raise AssertionError("unreachable")
