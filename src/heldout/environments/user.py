"""A simulated user: a function or a model that talks to the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from heldout._aio import settle
from heldout.chat.reasoning import without_reasoning
from heldout.config import Sampling
from heldout.environment import (
    Environment,
    HasOutcome,
    HasSnapshots,
    Reply,
    SeesCompletions,
)
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.models.base import AnswerFn, Endpoint, FunctionEndpoint, with_retries
from heldout.types import Completion, Message, ToolSpec

BEGIN = "(The conversation begins. Write your first message.)"


class SimulatedUser:
    """An environment in which someone talks to the policy until they are done.

    `user` is a function of the messages, plain or async, or an endpoint object, which stays its
    owner's to close. It sees the conversation from its own side: `instructions` as its system
    message, the policy's turns as those of a user and its own as the assistant's, without the
    policy's system message, reasoning and tool traffic. What it should say next it has to tell
    from that alone.

    A message with the text `stop` in it ends the episode; what stands before is still said.
    `tools`, an environment, answers the turns that call tools. `first_message` opens the
    conversation; without one the user is asked for it. A user that fails, or says nothing, is an
    error of the item.
    """

    def __init__(
        self,
        user: AnswerFn | Endpoint,
        *,
        first_message: str | None = None,
        instructions: str = "",
        stop: str | None = "[DONE]",
        tools: Environment | None = None,
        sampling: Sampling | None = None,
        retries: int = 4,
    ) -> None:
        if stop == "":
            raise InvalidInput("stop is a text that ends the episode, or None; '' is in every text")
        if first_message is not None and stop is not None and stop in first_message:
            raise InvalidInput(f"first_message has the text that ends the episode, {stop!r}, in it")
        self._own: FunctionEndpoint | None = None
        if callable(getattr(user, "complete", None)):
            self._user: Endpoint = user  # type: ignore[assignment]
        elif callable(user):
            self._user = self._own = FunctionEndpoint(user)
        else:
            raise InvalidInput(
                f"user is a function of the messages or an endpoint object, got {user!r:.200}"
            )
        self._first_message, self._instructions, self._stop = first_message, instructions, stop
        self._tools = tools
        self._sampling, self._retries = sampling or Sampling(), retries
        if isinstance(tools, HasOutcome):
            # Not a method: whether there is an outcome depends on the tools.
            self.outcome = tools.outcome
        if isinstance(tools, SeesCompletions):
            self.see_completion = tools.see_completion

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._tools.tools if self._tools is not None else ()

    async def opening(self) -> Sequence[Message]:
        messages = list(await settle(self._tools.opening())) if self._tools is not None else []
        if self._first_message is not None:
            return [*messages, Message("user", self._first_message)]
        said = await self._ask(messages)
        if self._ended(said):
            raise EnvironmentFailed("the simulated user ended the conversation before it began")
        return [*messages, said]

    async def reply(self, messages: Sequence[Message]) -> Reply:
        calls = messages[-1].tool_calls if messages else ()
        if calls and self._tools is not None:
            return await settle(self._tools.reply(messages))
        if calls:
            return Reply(
                tuple(
                    Message("tool", "Error: there are no tools", tool_call_id=call.id)
                    for call in calls
                )
            )
        said = await self._ask(messages)
        if not self._ended(said):
            return Reply((said,))
        last_words = said.text.partition(str(self._stop))[0].strip()
        return Reply((Message("user", last_words),) if last_words else (), done=True)

    async def close(self) -> None:
        try:
            if self._tools is not None:
                await settle(self._tools.close())
        finally:
            if self._own is not None:
                await self._own.close()

    def _ended(self, said: Message) -> bool:
        return self._stop is not None and self._stop in said.text

    async def _ask(self, messages: Sequence[Message]) -> Message:
        shown = list(self._seen(messages))

        async def request() -> Completion:
            return await self._user.complete(shown, self._sampling, ())

        try:
            answer = (await with_retries(request, self._retries)).message
        except Exception as problem:
            raise EnvironmentFailed(
                f"the simulated user failed: {type(problem).__name__}: {problem}"
            ) from problem
        if isinstance(answer.content, list) and answer.content:
            return Message("user", answer.content)
        said = without_reasoning(answer.text)
        if not said:
            raise EnvironmentFailed(
                "the simulated user said nothing"
                + (f"; to end the episode it says {self._stop!r}" if self._stop else "")
            )
        return Message("user", said)

    def _seen(self, messages: Sequence[Message]) -> Iterator[Message]:
        """The conversation from the user's side."""
        if self._instructions:
            yield Message("system", self._instructions)
        turns = [message for message in messages if message.role in ("user", "assistant")]
        if not turns or turns[0].role == "user":
            # Chat templates want a user's message first, and this one's own are the assistant's.
            yield Message("user", BEGIN)
        for message in turns:
            if message.role == "user":
                yield Message("assistant", message.content)
                continue
            said = without_reasoning(message.text)
            if said or not message.tool_calls:
                yield Message("user", said)

    # --- Snapshots ---

    async def snapshot(self) -> dict[str, Any]:
        """Return the tools' state; a simulated user has none besides the conversation.

        Returns:
            The state.

        Raises:
            NotImplementedError: The tools have no snapshots.
        """
        if self._tools is None:
            return {}
        if not isinstance(self._tools, HasSnapshots):
            raise NotImplementedError(
                f"the tools, a {type(self._tools).__name__}, have no snapshot() and restore()"
            )
        return {"tools": await settle(self._tools.snapshot())}

    async def restore(self, snapshot: dict[str, Any]) -> None:
        """Take up the state of a snapshot.

        Args:
            snapshot: What `snapshot` returned.
        """
        if isinstance(self._tools, HasSnapshots):
            await settle(self._tools.restore(snapshot["tools"]))
