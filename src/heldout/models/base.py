"""The endpoint contract, retries, and the simplest endpoint: a function."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import anyio

from heldout._aio import Threads, is_async, settle
from heldout._fingerprint import describe_callable
from heldout.config import Sampling
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


class KnowsItems(Protocol):
    """An endpoint that wants to know who takes part, and when nobody more will ask."""

    def item(self, index: int, repeat: int) -> AbstractContextManager[Endpoint]:
        """For as long as the item runs, what answers it."""
        ...


def taking_part(endpoint: Endpoint, index: int, repeat: int) -> AbstractContextManager[Endpoint]:
    known: Callable[[int, int], AbstractContextManager[Endpoint]] | None
    known = getattr(endpoint, "item", None)
    return known(index, repeat) if known is not None else nullcontext(endpoint)


AnswerFn = Callable[..., str | Message | Awaitable[str | Message]]
"""(messages) or (messages, tools) -> answer"""


class FunctionEndpoint:
    """`(messages) -> str | Message`, or `(messages, tools)`, plain or async.

    A plain function runs in a thread, since it may well block; as many at once as items do.
    """

    def __init__(self, function: AnswerFn) -> None:
        self._function = function
        self._tools = _where_tools_go(function)
        self._is_async = is_async(function)
        self._threads = Threads()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        call: Callable[..., Any] = self._function
        if self._tools == "second":
            call = functools.partial(call, list(messages), list(tools))
        elif self._tools == "named":
            call = functools.partial(call, list(messages), tools=list(tools))
        else:
            call = functools.partial(call, list(messages))
        if self._is_async:
            answer = await call()
        else:
            # A plain function may hand back a coroutine.
            answer = await settle(await self._threads.run(call))
        return Completion.of(answer)

    def describe(self) -> dict[str, Any]:
        return {"kind": "function", **(describe_callable(self._function, weights=True) or {})}

    async def close(self) -> None:
        self._threads.close()


def _where_tools_go(function: AnswerFn) -> Literal["second", "named", "nowhere"]:
    """How a function takes the tools, from its signature; one that cannot be called is refused.

    A second parameter with a default is left alone unless it is called `tools`: in
    `lambda messages, i=i: …` it is the author's own.
    """
    try:
        # Of what a decorator wraps, only if it hands on whatever it is given.
        signature = inspect.signature(function, follow_wrapped=False)
        if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "nowhere"  # built in, and does not say
    placed = [
        p
        for p in signature.parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    named = signature.parameters.get("tools")
    where: Literal["second", "named", "nowhere"] = "nowhere"
    try:
        if named is not None and named.kind in _BY_NAME and named not in placed[:1]:
            where = "named"
            signature.bind(None, tools=None)
        elif any(p.default is p.empty or p.name == "tools" for p in placed[1:2]):
            where = "second"
            signature.bind(None, None)
        else:
            signature.bind(None)
    except TypeError as problem:
        raise InvalidInput(
            f"a function that answers takes (messages) or (messages, tools); "
            f"{getattr(function, '__qualname__', repr(function))}{signature} cannot be called "
            f"so: {problem}"
        ) from None
    return where


_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


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
