"""Code that owns its loop and asks a model, turned inside out into an environment.

    async def agent(conversation):                       # a solver, a harness, anybody's agent
        turn = await conversation.ask([Message("user", "2 + 2?")])
        return {"correct": turn.message.text == "4"}

    environment_factory = lambda sample: Driven.of(agent)

An environment answers a policy; such code asks one. `Driven` starts it, and waits until it asks:
what it says first is the opening, what it says after a model turn is the reply, and what it ends
with is the outcome. So the policy is called by heldout's own loop, with its limits, journal and
batches, and a policy that fails is the item's error whatever the code would have made of it.

The conversation may only grow. Code that rewrites it, or leads two at once, is refused: a
trajectory is one conversation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import sniffio

from heldout._core.aio import as_error
from heldout.environment import Reply, check_messages
from heldout.errors import EnvironmentFailed
from heldout.types import Completion, Message, ToolSpec

MAX_ASKS_AFTER_LIMIT = 100
"""How often code may ask again after it was told that there are no turns left."""


class TurnsUsedUp(Exception):
    """There is no model turn left for this item: what a driven conversation raises by default."""


class DrivenConversation:
    """A conversation between code that asks and whoever makes the policy's turns.

    The code calls `ask`, then `finish` or `fail`. The other side calls `first_question`, `exchange`
    for each turn of the policy, `end` for the outcome, and `close` on every way out.

    Args:
        limit_error: Makes what `ask` raises when the item's limit is reached: the error that the
            code knows as its own limit, so that it ends as with its own runner.
    """

    def __init__(self, limit_error: Callable[[], Exception] = TurnsUsedUp) -> None:
        self._limit_error = limit_error
        self._messages: list[Message] = []
        self._tools: tuple[ToolSpec, ...] | None = None
        self._news = asyncio.Event()
        """Set when the code asks or ends."""
        self._pending: asyncio.Future[Completion] | None = None
        self._asked: tuple[Message, ...] = ()
        self._ended = False
        self._outcome: dict[str, Any] | None = None
        self._problem: BaseException | None = None
        self._over: Exception | None = None
        self._beyond = 0

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> Completion:
        """Ask the policy for its next turn.

        Args:
            messages: The whole conversation so far.
            tools: What the policy may call, the same in each turn.

        Raises:
            EnvironmentFailed: This is not the conversation so far with something added.
            Exception: What `limit_error` makes, where there are no turns left.
        """
        if self._over is not None:
            self._beyond += 1
            if self._beyond > MAX_ASKS_AFTER_LIMIT:
                self.fail(EnvironmentFailed("its code goes on asking, though no turn is left"))
                raise asyncio.CancelledError  # which `except Exception` does not take
            raise self._over
        try:
            added = self._check_grown(messages, tools)
        except EnvironmentFailed as problem:
            # Whatever the code makes of it, the item is an error.
            self.fail(problem)
            raise
        self._messages.extend(added)
        self._asked, self._pending = added, asyncio.get_running_loop().create_future()
        self._news.set()
        return await self._pending

    def finish(self, outcome: Mapping[str, Any]) -> None:
        """Say that the code has ended, and what came of it; plain JSON values."""
        if not self._ended:
            self._ended, self._outcome = True, dict(outcome)
            self._news.set()

    def fail(self, problem: BaseException) -> None:
        """Say that the code has failed; the first failure is the item's error."""
        if not self._ended:
            self._ended, self._problem = True, problem
            self._news.set()

    # --- The side of the policy ---

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the code offers the policy, known from its first question on."""
        return self._tools or ()

    async def first_question(self) -> tuple[Message, ...]:
        """Wait until the code asks for the first time.

        Raises:
            EnvironmentFailed: It ended without asking.
        """
        asked = await self._next_question()
        if asked is None:
            raise EnvironmentFailed("its code ended without asking the model anything")
        return asked

    async def exchange(self, completion: Completion) -> tuple[Message, ...] | None:
        """Give the code the turn it waits for, and wait for its next question.

        Args:
            completion: The policy's turn.

        Returns:
            The messages that the code added; None where it has ended.
        """
        self._messages.append(completion.message)
        waiting = self._take_waiting()
        if waiting is not None:
            waiting.set_result(completion)
        return await self._next_question()

    async def end(self) -> dict[str, Any]:
        """Tell the code that there are no turns left, where it waits for one, and let it end.

        Returns:
            What came of it, as `finish` was told.
        """
        self._over = self._limit_error()
        waiting = self._take_waiting()
        if waiting is not None:
            waiting.set_exception(self._over)
        while not self._ended:
            await self._wait_for_news()
        if self._problem is not None:
            raise self._problem
        assert self._outcome is not None
        return self._outcome

    def close(self) -> None:
        """End the conversation: whoever still waits for a turn is told that the item has ended."""
        self._over = self._over or EnvironmentFailed("the item has ended")
        waiting = self._take_waiting()
        if waiting is not None:
            waiting.set_exception(self._over)
        self.fail(self._over)

    def _take_waiting(self) -> asyncio.Future[Completion] | None:
        """Return what the code waits on, once; None where it does not wait, or was cancelled."""
        pending, self._pending = self._pending, None
        return None if pending is None or pending.done() else pending

    async def _next_question(self) -> tuple[Message, ...] | None:
        while self._pending is None and not self._ended:
            await self._wait_for_news()
        if self._problem is not None:
            raise self._problem
        return None if self._ended else self._asked

    async def _wait_for_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _check_grown(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Message, ...]:
        check_messages(messages, "a driven conversation is made of Messages")
        if self._pending is not None:
            raise EnvironmentFailed(
                "its code asks the policy in a second conversation while one is under way; where "
                "that is a grader or a simulated user, give it a model of its own"
            )
        if self._tools is None:
            self._tools = tuple(tools)
        elif self._tools != tuple(tools):
            raise EnvironmentFailed("its code offers the policy other tools than in the first turn")
        before = self._messages
        for number, (old, new) in enumerate(zip(before, messages, strict=False)):
            # Frameworks hand the model's turns back in words of their own.
            own = old.role == new.role == "assistant"
            if not own and (old.role, old.content) != (new.role, new.content):
                raise EnvironmentFailed(
                    f"its code has rewritten message {number} of the conversation, which may only "
                    f"grow: {old.text!r:.100} became {new.text!r:.100}"
                )
        if len(messages) <= len(before):
            raise EnvironmentFailed(
                f"its code asks again with {len(messages)} messages after a conversation of "
                f"{len(before)}: it branches, or begins another one"
            )
        return tuple(messages[len(before) :])


class Driven:
    """An environment that is somebody's code which asks a model.

    Args:
        start: Starts the code: it gets the conversation, on which it asks, finishes or fails.
        stop: Called at the end on every way out, to end what is still running.
        limit_error: What the code knows as its own limit; see `DrivenConversation`.
    """

    def __init__(
        self,
        start: Callable[[DrivenConversation], Awaitable[None] | None],
        stop: Callable[[], Awaitable[None] | None] = lambda: None,
        limit_error: Callable[[], Exception] = TurnsUsedUp,
    ) -> None:
        if sniffio.current_async_library() != "asyncio":
            raise EnvironmentFailed("code that asks a model by itself runs on asyncio alone")
        self._start, self._stop = start, stop
        self._conversation = DrivenConversation(limit_error)
        self._completion: Completion | None = None

    @classmethod
    def of(
        cls,
        code: Callable[[DrivenConversation], Awaitable[Mapping[str, Any]]],
        limit_error: Callable[[], Exception] = TurnsUsedUp,
    ) -> Driven:
        """Make an environment of a coroutine function, whose result is the outcome."""
        tasks: list[asyncio.Task[None]] = []

        async def run(conversation: DrivenConversation) -> None:
            try:
                conversation.finish(await code(conversation))
            except asyncio.CancelledError:
                conversation.fail(EnvironmentFailed("its code was cancelled"))
                raise
            except BaseException as problem:  # noqa: BLE001 - the item's error, raised in its rollout
                # A `sys.exit()`, too: the rollout would wait for this code for ever.
                conversation.fail(as_error(problem))

        def start(conversation: DrivenConversation) -> None:
            tasks.append(asyncio.create_task(run(conversation)))

        async def stop() -> None:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

        return cls(start, stop, limit_error)

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What its code offers, known from its first question on."""
        return self._conversation.tools

    async def opening(self) -> Sequence[Message]:
        """Start the code, and wait for its first question."""
        started = self._start(self._conversation)
        if started is not None:
            await started
        return await self._conversation.first_question()

    def see_completion(self, completion: Completion) -> None:
        """Take the model turn that the code waits for."""
        self._completion = completion

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Give the code its turn, and wait for its next question or its end."""
        assert self._completion is not None
        asked = await self._conversation.exchange(self._completion)
        return Reply(done=True) if asked is None else Reply(asked)

    async def outcome(self) -> dict[str, Any]:
        """Tell the code that there are no turns left, where it waits for one; what came of it."""
        return await self._conversation.end()

    async def close(self) -> None:
        """End the code."""
        self._conversation.close()
        stopped = self._stop()
        if stopped is not None:
            await stopped


__all__ = ["Driven", "DrivenConversation", "TurnsUsedUp"]
