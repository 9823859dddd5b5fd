"""The contract between the turn loop and whatever replies to the policy.

An environment belongs to one rollout. The loop asks it for its tools and opening messages, gives
it the conversation after every model turn, asks what came of it, and closes it on every way out,
failure and cancellation included. Methods may be plain or async.

What a model does wrong is answered with a message; what an environment raises is an error of its
item. `heldout.testing.check_environment` checks any environment against all of this.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from heldout._core.aio import settle
from heldout.errors import InvalidInput, SnapshotMismatch
from heldout.types import Completion, Continuation, Message, ToolSpec


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
    """Return whether environments may depend on the metadata of their samples.

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
class HasContinuations(Protocol):
    """An environment that has the policy rate given texts, where others have it write a turn.

    Their likelihoods become `Trajectory.outcome["likelihoods"]`, in their order: stored with the
    result, and there for the score function. Its factory has `rates_continuations = True`.
    """

    def continuations(self) -> Sequence[Continuation]:
        """Return the texts, each with its prompt. Called in place of `reply`, once."""
        ...


def rates_continuations(environment_factory: Callable[..., Any] | None) -> bool:
    """Return whether environments have continuations rated, as their factory says."""
    return bool(getattr(environment_factory, "rates_continuations", False))


@runtime_checkable
class SeesCompletions(Protocol):
    """An environment that wants to know how a turn ended and what it took."""

    def see_completion(self, completion: Completion) -> Awaitable[None] | None:
        """Called with every completion (`finish_reason`, `usage`), before `reply`."""
        ...


@runtime_checkable
class HasSnapshots(Protocol):
    """An environment that can go on in another process, in the middle of an episode.

    The conversation is not its to keep (`reply` is given it), nor are functions, tools or a user:
    they come from the factory again. What is left is the state, and whose state it is: a snapshot
    of another kind or another major version means something else, and is refused.

    An environment with `serialize()` and a static `deserialize(data)` (`HasSerialization`) is as
    good: `take_snapshot` and `restore_snapshot` call whichever there is.
    """

    @property
    def env_kind(self) -> str:
        """What the state is the state of, such as `file_system`; a class attribute."""
        ...

    @property
    def version(self) -> str:
        """The version of the state, `major.minor`: a new major one where its meaning changes.

        Any text that begins with a whole number will do, such as `1.0.0`.
        """
        ...

    def snapshot(self) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return `make_snapshot(self, state)`; called whenever it is the policy's turn."""
        ...

    def restore(self, snapshot: dict[str, Any]) -> Awaitable[None] | None:
        """Restore the state of a snapshot, which `read_snapshot(self, snapshot)` returns.

        Called on an environment that the same factory has made for the same sample, in place of
        `opening`. It continues as the original environment would have.

        Args:
            snapshot: What `snapshot` returned.

        Raises:
            SnapshotMismatch: It is of another kind, or of another major version.
        """
        ...


class HasSerialization(Protocol):
    """An environment whose snapshots make a new environment.

    Kind and version of the state are its `env_kind` and `version`, or `ENV_KIND` and `VERSION`.
    """

    def serialize(self) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Return the state as plain JSON values, beside `env_kind` and `version`."""
        ...

    @staticmethod
    def deserialize(data: dict[str, Any]) -> Environment | Awaitable[Environment]:
        """Return an environment in the state of what `serialize` returned.

        Args:
            data: The whole dict. Kind and major version have been checked.
        """
        ...


# --- Snapshots ----------------------------------------------------------------------------------

_MAJOR = re.compile(r"0*([0-9]+)")
_CONSTANTS = {"env_kind": "ENV_KIND", "version": "VERSION"}
_METHODS = (("snapshot", "restore"), ("serialize", "deserialize"))


async def take_snapshot(environment: Any) -> dict[str, Any]:
    """Return the snapshot of an environment, of its `snapshot()` or `serialize()`.

    Args:
        environment: An environment that `check_has_snapshots` accepts.
    """
    take, _ = snapshot_methods(environment)
    snapshot: dict[str, Any] = await settle(getattr(environment, take)())
    return snapshot


async def restore_snapshot(environment: Any, snapshot: dict[str, Any]) -> Environment:
    """Restore the state of a snapshot. Kind and version are checked, whatever the environment does.

    Args:
        environment: What the factory made; it is the caller's to close.
        snapshot: What `take_snapshot` returned.

    Returns:
        The environment in that state: the same one after `restore`, another after `deserialize`.

    Raises:
        SnapshotMismatch: The snapshot is of another kind or another major version.
        InvalidInput: `deserialize` returned no environment.
    """
    read_snapshot(environment, snapshot)
    _, restore = snapshot_methods(environment)
    restored = await settle(getattr(environment, restore)(snapshot))
    if restore == "restore":
        return environment  # type: ignore[no-any-return]
    if restored is None:
        raise InvalidInput(
            f"deserialize() of {type(environment).__name__} returns an environment, got None"
        )
    check_environment_shape(restored)
    check_has_snapshots(restored)
    return restored  # type: ignore[no-any-return]


def snapshot_methods(environment: Any) -> tuple[str, str]:
    """Name the methods that take and restore snapshots: those that the most derived class has."""
    for owner in type(environment).__mro__:
        for methods in _METHODS:
            if not vars(owner).keys().isdisjoint(methods):
                return methods
    return _METHODS[0]


def make_snapshot(environment: HasSnapshots, state: Mapping[str, Any]) -> dict[str, Any]:
    """Make what `snapshot()` returns.

    Args:
        environment: The environment.
        state: Its state, as plain JSON values.

    Returns:
        A dict of `env_kind`, `version` and `state`.

    Raises:
        InvalidInput: The environment does not say of what kind or version its state is.
    """
    kind, version = _identify(environment)
    return {"env_kind": kind, "version": version, "state": dict(state)}


def read_snapshot(environment: Any, snapshot: Any) -> dict[str, Any]:
    """Return the state in a snapshot, if it is one of this environment.

    Args:
        environment: The environment to restore; another minor version may have made the snapshot.
        snapshot: What `snapshot()` returned: `env_kind`, `version` and `state`, or in place of
            `state` the fields of the state themselves.

    Raises:
        SnapshotMismatch: It is of another kind or another major version, or does not say so.
        InvalidInput: The environment does not say of what kind or version its state is.
    """
    kind, version = _identify(environment)
    given = snapshot if isinstance(snapshot, dict) else {}
    if missing := [name for name in ("env_kind", "version") if name not in given]:
        raise SnapshotMismatch(
            f"a snapshot has env_kind and version beside its state; this one has no "
            f"{' and no '.join(missing)}: {snapshot!r:.200}"
        )
    if snapshot["env_kind"] != kind:
        raise SnapshotMismatch(
            f"this is a snapshot of {snapshot['env_kind']!r:.100}, which {kind!r} cannot restore"
        )
    if major_version(snapshot["version"]) != major_version(version):
        raise SnapshotMismatch(
            f"this snapshot of {kind!r} is of version {snapshot['version']!r:.100}, and the "
            f"environment of version {version!r}; only minor versions may differ"
        )
    fields = {name: value for name, value in given.items() if name not in ("env_kind", "version")}
    state: dict[str, Any] = fields.get("state", fields)
    return state


def check_has_snapshots(environment: Any) -> None:
    """Refuse an environment without snapshots, and name all that it lacks."""
    if missing := missing_for_snapshots(environment):
        take, restore = snapshot_methods(environment)
        raise InvalidInput(
            f"snapshots need an environment with env_kind, version, {take}() and {restore}(); this "
            f"{type(environment).__name__} has no {' and no '.join(missing)}"
        )
    _identify(environment)


def missing_for_snapshots(environment: Any) -> list[str]:
    """List what an environment lacks of `HasSnapshots`, or of `HasSerialization`."""
    missing = [name for name in _CONSTANTS if _constant(environment, name) is None]
    methods = snapshot_methods(environment)
    return missing + [name for name in methods if getattr(environment, name, None) is None]


def _constant(environment: Any, name: str) -> Any:
    """Return `env_kind` or `version`, in whichever spelling the most derived class has."""
    owners = [getattr(environment, "__dict__", {}), *map(vars, type(environment).__mro__)]
    spellings = (name, _CONSTANTS[name])
    spelled = next((s for owner in owners for s in spellings if s in owner), name)
    return getattr(environment, spelled, None)


def _identify(environment: Any) -> tuple[str, str]:
    """Return kind and version of an environment's state."""
    name = type(environment).__name__
    kind, version = _constant(environment, "env_kind"), _constant(environment, "version")
    if not isinstance(kind, str) or not kind:
        raise InvalidInput(
            f"env_kind of {name} must be a text, such as 'file_system', got {kind!r:.100}"
        )
    if major_version(version) is None:
        raise InvalidInput(
            f"version of {name} must be a text that begins with the major version, "
            f"such as '1.0', got "
            f"{version!r:.100}"
        )
    for owner in type(environment).__mro__:
        takes = vars(owner).keys() & {take for take, _ in _METHODS}
        names_kind = vars(owner).keys() & {*_CONSTANTS, *_CONSTANTS.values()}
        if takes and not names_kind:
            # Two subclasses of one class would take each other's snapshots.
            raise InvalidInput(
                f"{owner.__name__} defines {takes.pop()}(), but has env_kind {kind!r} from another "
                "class, whose state is not the same: give it an env_kind and a version of its own"
            )
        if takes or names_kind:
            break
    return kind, version


def major_version(version: Any) -> str | None:
    """Return the whole number that a version begins with, as text; None if it does not."""
    match = _MAJOR.match(version) if isinstance(version, str) else None
    return match[1] if match else None


__all__ = [
    "Environment",
    "HasContinuations",
    "HasOutcome",
    "HasSerialization",
    "HasSnapshots",
    "Reply",
    "SeesCompletions",
    "make_snapshot",
    "read_snapshot",
    "restore_snapshot",
    "take_snapshot",
]
