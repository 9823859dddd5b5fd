"""The endpoint contract, retries, and the simplest endpoint: a function."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

import anyio
import sniffio

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
        # An object with an async __call__ is as async as a function. What a decorator wraps does
        # not count: the wrapper is what is called.
        called = function if inspect.isroutine(function) else type(function).__call__
        self._is_async = inspect.iscoroutinefunction(called)
        self._threads = _Threads()

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
            answer = await self._threads.run(self._function, list(messages))
            if inspect.isawaitable(answer):  # a plain function may hand back a coroutine
                answer = await answer
        return Completion.of(answer)

    def describe(self) -> dict[str, Any]:
        return {"kind": "function", **(describe_callable(self._function) or {})}

    async def close(self) -> None:
        self._threads.close()


class _Threads:
    """Threads for functions that block.

    They are daemons, which those of `anyio.to_thread` are not under asyncio: a function that
    never returns costs its item a timeout, but must not keep the process from ending. A call
    that was given up on holds its thread and nobody else's, so there is no limit to starve under.
    """

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._closed = False

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        self._closed = False
        done, wake = anyio.Event(), waker()
        context = contextvars.copy_context()
        outcome: list[Any] = []
        problem: list[BaseException] = []

        def job() -> None:
            try:
                outcome.append(context.run(function, *args))
            except BaseException as raised:  # noqa: BLE001 - raised where it is awaited
                problem.append(raised)
            self._idle.append(jobs)
            if self._closed:  # given up on, and done after all
                self.close()
            wake(done.set)

        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = queue.SimpleQueue()
            threading.Thread(
                target=_work, args=(jobs,), name="heldout-function", daemon=True
            ).start()
        jobs.put(job)
        await done.wait()
        try:
            if problem:
                raise problem[0]
            return outcome[0]
        finally:
            problem.clear()  # else it and its traceback hold each other

    def close(self) -> None:
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # and with it the messages and the answer


# --- Event loops --------------------------------------------------------------------------------


def current_loop() -> Any:
    """The event loop that runs: an asyncio loop or a trio token."""
    if sniffio.current_async_library() == "trio":
        import trio

        return trio.lowlevel.current_trio_token()
    return asyncio.get_running_loop()


def waker() -> Callable[[Callable[[], object]], None]:
    """How another thread gets a function called in this event loop. It does not wait for that."""
    loop = current_loop()
    is_asyncio = isinstance(loop, asyncio.AbstractEventLoop)
    soon = loop.call_soon_threadsafe if is_asyncio else loop.run_sync_soon

    def wake(function: Callable[[], object]) -> None:
        try:
            soon(function)
        except RuntimeError:
            pass  # the loop is gone, and with it whoever waited

    return wake


def to_chat_api(message: Message) -> dict[str, Any]:
    """A message as chat APIs and chat templates have it."""
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    return body


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
