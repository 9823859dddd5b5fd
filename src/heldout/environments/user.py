"""A simulated user: a function or a model that talks to the policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from heldout._core.aio import settle
from heldout._core.config import Sampling, check_endpoint
from heldout._core.current_attempt import add_other_usage
from heldout._core.providers import model_name
from heldout._reasoning import without_reasoning
from heldout.environment import (
    Environment,
    HasOutcome,
    Reply,
    SeesCompletions,
    check_has_snapshots,
    make_snapshot,
    missing_for_snapshots,
    read_snapshot,
    restore_snapshot,
    take_snapshot,
)
from heldout.environments.tools import ToolEnvironment
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.models import AnswerFn, Endpoint, open_endpoint
from heldout.models.retries import with_retries
from heldout.models.shared import LoopEndpoints
from heldout.types import Completion, Message, ToolSpec

MAX_CONNECTIONS = 64
"""To the server of a user that is named; items wait for a free one."""
BEGIN = "(The conversation begins. Write your first message.)"


class SimulatedUser:
    """An environment in which a user talks to the policy until the user is done.

    The user sees the conversation from its own side: its instructions as the system message, the
    policy's turns as those of a user and its own as the assistant's, without the policy's system
    message, reasoning and tool calls. A user that fails, or says nothing, is an error of the
    item.
    """

    env_kind = "simulated_user"
    version = "1.0"

    def __init__(
        self,
        user: str | AnswerFn | Endpoint,
        *,
        first_message: str | None = None,
        instructions: str = "",
        stop: str | None = "[DONE]",
        tools: Environment | None = None,
        sampling: Sampling | None = None,
        retries: int = 4,
    ) -> None:
        """Make the user of one rollout.

        Args:
            user: A model's name, as `EvalConfig.endpoint` takes it; a function of the messages,
                plain or async; or an endpoint object, which its owner closes. Users of one name
                share a model and its connections, which are closed when the event loop ends.
            first_message: The first message; without one the user is asked for it.
            instructions: The user's system message.
            stop: A text that ends the episode when the user writes it; the text before it is still
                said. None for a user that never ends it.
            tools: An environment that answers the turns that call tools.
            sampling: How a model as the user samples.
            retries: How often a request to the user is repeated after transient errors.

        Raises:
            InvalidInput: If `user` cannot be one, or `stop` would end every episode.
        """
        if stop == "":
            raise InvalidInput("stop is a text that ends the episode, or None; '' is in every text")
        check_endpoint(user)
        if isinstance(user, str):
            self._endpoints, self._is_owner = _share_endpoints(user), False
        else:
            endpoint = open_endpoint(user, max_concurrent=1)
            self._endpoints, self._is_owner = LoopEndpoints(endpoint, 1), endpoint is not user
        self._name = _name_user(user)
        self._first_message, self._instructions, self._stop = first_message, instructions, stop
        self._sampling, self._retries = sampling or Sampling(), retries
        self._tools: Environment
        self._set_tools(ToolEnvironment([]) if tools is None else tools)

    def _set_tools(self, tools: Environment) -> None:
        self._tools = tools
        if isinstance(tools, HasOutcome):
            # Not a method: whether there is an outcome depends on the tools.
            self.outcome = tools.outcome
        if isinstance(tools, SeesCompletions):
            self.see_completion = tools.see_completion

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What the policy may call."""
        return self._tools.tools

    async def opening(self) -> Sequence[Message]:
        """Return the opening of the tools, and the user's first message."""
        messages = list(await settle(self._tools.opening()))
        if self._first_message is not None:
            return [*messages, Message("user", self._first_message)]
        message = await self._ask(messages)
        if self._has_stop(message):
            raise EnvironmentFailed("the simulated user ended the conversation before it began")
        return [*messages, message]

    async def reply(self, messages: Sequence[Message]) -> Reply:
        """Answer the last model turn: by the tools if it calls any, by the user otherwise.

        Raises:
            EnvironmentFailed: If the user failed.
        """
        if messages[-1].tool_calls:
            return await settle(self._tools.reply(messages))
        message = await self._ask(messages)
        if not self._has_stop(message):
            return Reply((message,))
        text = message.text.partition(str(self._stop))[0].strip()
        return Reply((Message("user", text),) if text else (), done=True)

    async def close(self) -> None:
        """Close the tools, and the threads of a function."""
        try:
            await settle(self._tools.close())
        finally:
            if self._is_owner:
                await self._endpoints.open().close()

    def _has_stop(self, message: Message) -> bool:
        return self._stop is not None and self._stop in message.text

    async def _ask(self, messages: Sequence[Message]) -> Message:
        own_view = list(self._view(messages))

        async def request() -> Completion:
            endpoint = (await self._endpoints.here()).endpoint
            return await endpoint.complete(own_view, self._sampling, ())

        try:
            completion = await with_retries(request, self._retries)
        except Exception as problem:
            raise EnvironmentFailed(
                f"the simulated user failed: {type(problem).__name__}: {problem}"
            ) from problem
        answer = completion.message
        if self._name is not None or completion.usage is not None:
            add_other_usage("user", self._name or "function", completion.usage)
        if isinstance(answer.content, list) and answer.content:
            return Message("user", answer.content)
        text = without_reasoning(answer.text)
        if not text:
            raise EnvironmentFailed(
                "the simulated user said nothing"
                + (f"; to end the episode it says {self._stop!r}" if self._stop else "")
            )
        return Message("user", text)

    def _view(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Convert the conversation to the user's point of view."""
        if self._instructions:
            yield Message("system", self._instructions)
        turns = [message for message in messages if message.role in ("user", "assistant")]
        if not turns or turns[0].role == "user":
            # Chat templates want a user message first, and this user's own are the assistant's.
            yield Message("user", BEGIN)
        for message in turns:
            if message.role == "user":
                yield Message("assistant", message.content)
                continue
            text = without_reasoning(message.text)
            if text or not message.tool_calls:
                yield Message("user", text)

    # --- Snapshots ---

    async def snapshot(self) -> dict[str, Any]:
        """Return the tools' state; a simulated user has none besides the conversation.

        Raises:
            NotImplementedError: The tools have no snapshots.
        """
        if missing := missing_for_snapshots(self._tools):
            raise NotImplementedError(
                f"the tools, a {type(self._tools).__name__}, have no {' and no '.join(missing)}"
            )
        return make_snapshot(self, {"tools": await take_snapshot(self._tools)})

    async def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore the state of a snapshot.

        Raises:
            SnapshotMismatch: It, or that of the tools, is of another kind of environment or of
                another major version.
        """
        check_has_snapshots(self._tools)
        restored = await restore_snapshot(self._tools, read_snapshot(self, snapshot)["tools"])
        if restored is not self._tools:
            replaced = self._tools
            self._set_tools(restored)
            await settle(replaced.close())


@cache
def _share_endpoints(name: str) -> LoopEndpoints:
    """Return what all users of a model share: each item has a user of its own."""
    return LoopEndpoints(name, MAX_CONNECTIONS)


def _name_user(user: str | AnswerFn | Endpoint) -> str | None:
    """Name the model that the user is; None for a function, which may be none."""
    if isinstance(user, str):
        return user
    if not callable(getattr(user, "complete", None)):
        return None
    # Not by describe(), which hashes the weights of a model in this process.
    known = {key: getattr(user, key, None) for key in ("kind", "model", "base_url")}
    return model_name(known) or type(user).__name__
