"""The contract between the turn loop and whatever replies to the policy.

An environment belongs to one rollout. The loop asks it for its tools and opening messages, gives
it the conversation after every model turn, and closes it on every way out, failure and
cancellation included. Methods may be plain or async.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from heldout.types import Message, ToolSpec


@dataclass(frozen=True, slots=True)
class Reply:
    """An environment's answer to a model turn: messages to go on with, or the end, or both.

    No messages and not `done` means that there is nothing to reply: the rollout is over too,
    and its trajectory says `no_reply` instead of `environment`.
    """

    messages: tuple[Message, ...] = ()
    done: bool = False

    def __post_init__(self) -> None:
        if type(self.messages) is not tuple:
            object.__setattr__(self, "messages", tuple(self.messages))


class Environment(Protocol):
    @property
    def tools(self) -> Sequence[ToolSpec]:
        """What the policy may call."""
        ...

    def opening(self) -> Sequence[Message] | Awaitable[Sequence[Message]]:
        """Messages that follow the sample's own before the first model turn; may be empty."""
        ...

    def reply(self, messages: Sequence[Message]) -> Reply | Awaitable[Reply]:
        """Answer the model turn that ends `messages`. Called for every turn, the last included."""
        ...

    def close(self) -> Awaitable[None] | None:
        """Free what the rollout held. Called exactly once, whatever happened."""
        ...
