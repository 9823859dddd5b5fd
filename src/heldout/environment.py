"""The contract between the turn loop and whatever replies to the policy.

An environment belongs to one rollout. The loop asks it for its tools and opening messages, gives
it the conversation after every model turn, asks what came of it, and closes it on every way out,
failure and cancellation included. Methods may be plain or async.

What a model does wrong is answered with a message; what an environment raises is an error of its
item. `heldout.testing.check_environment` checks any environment against all of this.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from heldout.errors import InvalidInput
from heldout.types import Completion, Message, ToolSpec


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
            if isinstance(self.messages, str | Message):
                raise InvalidInput(f"Reply takes a list of Message, got {self.messages!r:.200}")
            object.__setattr__(self, "messages", tuple(self.messages))
        check_messages(self.messages, "Reply takes Messages")


def check_messages(messages: Any, expected: str) -> None:
    """Refuse what user code returned in place of messages; `expected` says what it should be."""
    if not isinstance(messages, Iterable) or isinstance(messages, str):
        raise InvalidInput(f"{expected}, got {messages!r:.200}")
    for message in messages:
        if not isinstance(message, Message):
            raise InvalidInput(f"{expected}, got {message!r:.200}")


def check_environment_shape(environment: Any) -> None:
    """Refuse an object that lacks parts of an environment, and name them all."""
    missing = [
        name for name in ("tools", "opening", "reply", "close") if not hasattr(environment, name)
    ]
    if missing:
        kind = type(environment).__name__
        raise InvalidInput(
            f"an environment has tools, opening(), reply() and close(); this {kind} has no "
            f"{' and no '.join(missing)}. heldout.testing.check_environment checks all of it"
        )


@runtime_checkable
class Environment(Protocol):
    """What replies to the policy in one rollout."""

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


def reads_metadata(environment_factory: Callable[..., Any] | None) -> bool:
    """Tell whether environments may depend on the metadata of their samples.

    A factory with the attribute `reads_metadata = False` says that its environments do not.
    """
    return environment_factory is not None and getattr(environment_factory, "reads_metadata", True)


@runtime_checkable
class HasOutcome(Protocol):
    """An environment whose final state is what gets scored."""

    def outcome(self) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """The state as plain JSON values, asked for after the last reply and before `close`.

        It becomes `Trajectory.outcome`: stored with the result, and there for the score function.
        """
        ...


@runtime_checkable
class SeesCompletions(Protocol):
    """An environment that wants to know how a turn ended and what it took."""

    def see_completion(self, completion: Completion) -> Awaitable[None] | None:
        """Called with every model turn, before `reply` is: `finish_reason`, `usage`."""
        ...


@runtime_checkable
class HasSnapshots(Protocol):
    """An environment that can go on in another process, in the middle of an episode.

    The conversation is not its to keep (`reply` is given it), nor are functions, tools or a user:
    they come from the factory again. What is left is the state.
    """

    def snapshot(self) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return the state as plain JSON values; called whenever it is the policy's turn."""
        ...

    def restore(self, snapshot: dict[str, Any]) -> Awaitable[None] | None:
        """Take up the state of a snapshot.

        Called on an environment that the same factory has made for the same sample, in place of
        `opening`. It goes on as the one that the snapshot was taken of would have.

        Args:
            snapshot: What `snapshot` returned.
        """
        ...
