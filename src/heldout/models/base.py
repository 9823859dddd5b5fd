"""The protocol of an endpoint, and the simplest endpoint: a function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

from heldout._core.aio import Threads, is_async, settle
from heldout._core.config import Sampling
from heldout.errors import InvalidInput
from heldout.store.fingerprint import describe_callable
from heldout.types import Completion, Continuation, Likelihood, Message, Rating, ToolSpec


class Endpoint(Protocol):
    """A model that answers chat messages."""

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Take one model turn.

        Args:
            messages: The conversation so far.
            sampling: How to sample; a server that lacks an option ignores it.
            tools: What the model may call.

        Raises:
            EndpointError: If there is none; its type says whether a retry may help.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report: enough to tell it from others, and no secret."""
        ...

    async def close(self) -> None:
        """Free connections, threads and memory."""
        ...


Complete = Callable[[Sequence[Message], Sampling, Sequence[ToolSpec]], Awaitable[Completion]]
"""Takes one model turn, as `Endpoint.complete` does."""


def bind_attempt(endpoint: Endpoint, index: int, repeat: int) -> AbstractContextManager[Complete]:
    """Return the completion function of one attempt, as a context manager that spans the attempt.

    An endpoint that treats attempts separately has a method `item(index, repeat)`.
    """
    item: Callable[[int, int], AbstractContextManager[Complete]] | None
    item = getattr(endpoint, "item", None)
    return nullcontext(endpoint.complete) if item is None else item(index, repeat)


# --- Likelihoods --------------------------------------------------------------------------------

Rate = Callable[[Sequence[Continuation]], Awaitable[Rating]]
"""Rates given continuations, as `RatesContinuations.rate` does."""


class RatesContinuations:
    """An endpoint that can say how likely given texts are: base class of those that can."""

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        """Return the likelihood of each continuation, given its prompt.

        Raises:
            EndpointError: There is none; its type says whether a retry may help.
        """
        raise NotImplementedError

    async def loglikelihood(
        self, prompt: str | Sequence[Message], continuations: Sequence[str]
    ) -> list[Likelihood]:
        """Return how likely each text is as the continuation of one prompt.

        Args:
            prompt: A text, which is continued as it is; or a conversation, whose next turn the
                texts would begin.
            continuations: The texts, with the space that separates them from a prompt of text.

        Raises:
            EndpointError: There is none; its type says whether a retry may help.
        """
        given = prompt if isinstance(prompt, str) else tuple(prompt)
        rating = await self.rate([Continuation(given, text) for text in continuations])
        return list(rating.likelihoods)


def rating_function(endpoint: Endpoint, complete: Complete) -> Rate | None:
    """Return the function that rates continuations in an attempt; None where there is none.

    Args:
        endpoint: The endpoint.
        complete: What `bind_attempt` gave for the attempt.
    """
    return getattr(complete, "rate", None) or getattr(endpoint, "rate", None)


def check_rates(endpoint: Endpoint) -> None:
    """Refuse an endpoint that cannot rate continuations, before an eval that needs it."""
    if not callable(getattr(endpoint, "rate", None)):
        raise InvalidInput(
            "this eval compares the likelihoods of given texts, which a "
            f"{type(endpoint).__name__} does not tell. A model in this process does (hf:PATH), one "
            "in training (live_model), and a server whose completions take echo with logprobs, as "
            "vLLM's do (openai:, vllm:); without the response cache"
        )


# --- Functions ----------------------------------------------------------------------------------

AnswerFn = Callable[..., str | Message | Completion | Awaitable[str | Message | Completion]]
"""(messages) or (messages, tools) -> answer"""


class FunctionEndpoint:
    """A function of (messages) or (messages, tools), plain or async.

    A plain function runs in a thread, since it may block.
    """

    def __init__(self, function: AnswerFn) -> None:
        """Read the function's signature.

        Args:
            function: Returns the answer as a text, a `Message` or a `Completion`.

        Raises:
            InvalidInput: If it cannot be called with the messages.
        """
        self._function = function
        self._tools = _find_tools_parameter(function)
        self._is_async = is_async(function)
        self._threads = Threads()

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Call the function; `sampling` is not passed on."""
        call: Callable[..., Any] = functools.partial(self._function, list(messages))
        if self._tools == "second":
            call = functools.partial(call, list(tools))
        elif self._tools == "keyword":
            call = functools.partial(call, tools=list(tools))
        # A plain function may return a coroutine.
        answer = await (call() if self._is_async else settle(await self._threads.run(call)))
        return Completion.of(answer)

    def describe(self) -> dict[str, Any]:
        """Describe the function: its code, and the weights of the torch models that it uses."""
        return {"kind": "function", **(describe_callable(self._function, weights=True) or {})}

    async def close(self) -> None:
        """End the threads."""
        self._threads.close()


def _find_tools_parameter(function: AnswerFn) -> Literal["second", "keyword"] | None:
    """Find how a function takes the tools, and check that it can be called.

    A second parameter with a default is not for the tools unless it is called `tools`: in
    `lambda messages, i=i: …` it is the author's own.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None  # built in, without a signature
    [first, second, *_] = [*signature.parameters.values(), None, None]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    tools = signature.parameters.get("tools")
    try:
        if tools is not None and tools is not first and tools.kind is not tools.POSITIONAL_ONLY:
            signature.bind(None, tools=None)
            return "keyword"
        if second is not None and second.kind in by_position and second.default is second.empty:
            signature.bind(None, None)
            return "second"
        signature.bind(None)
    except TypeError as problem:
        raise InvalidInput(
            f"a function that answers takes (messages) or (messages, tools); "
            f"{getattr(function, '__qualname__', repr(function))}{signature} cannot be called "
            f"so: {problem}"
        ) from None
    return None
