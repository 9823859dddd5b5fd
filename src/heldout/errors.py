"""Everything heldout raises on purpose; a message says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec


class HeldoutError(Exception):
    """Base class: `except HeldoutError` catches whatever heldout raises on purpose."""

    about: Mapping[str, Any] = MappingProxyType({})
    """Details for scripts: with --json these are fields of the error."""
    hint: str | None = None
    """What to do, where there is one thing to do; the last words of the message."""

    def __init__(self, message: str = "", *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        if not self.hint:
            return message
        return f"{message}{'; ' if self.hint[0].islower() else '. '}{self.hint}"


class InvalidInput(HeldoutError, ValueError):
    """A sample, metric, config or argument is not valid.

    `parameters` are the arguments at fault, where a command may call them by options: they stand in
    the message where it has `%s`.
    """

    def __init__(
        self, message: str = "", *, hint: str | None = None, parameters: Sequence[str] = ()
    ) -> None:
        self.parameters = tuple(parameters)
        super().__init__(message, hint=hint)

    @property
    def parameter(self) -> str | None:
        """The first of them; None where none is named."""
        return self.parameters[0] if self.parameters else None

    def __str__(self) -> str:
        message = super().__str__()
        for parameter in self.parameters:
            message = message.replace("%s", parameter, 1)
        return message


class InvalidQuery(InvalidInput):
    """SQL over the results of a run is refused; the message is DuckDB's."""


class DuplicateSampleId(InvalidInput):
    """Two samples have one id."""

    def __init__(self, sample_id: str, position: int) -> None:
        self.sample_id = sample_id
        super().__init__(
            f"sample id {sample_id!r} at position {position} was already used by an earlier "
            "sample; ids name results, so each must be unique in an eval"
        )


class NotComparable(InvalidInput):
    """Two reports do not answer the same question; the message says what differs.

    `kinds` are the values of `allow` that would permit the comparison.
    """

    def __init__(self, message: str, kinds: tuple[str, ...]) -> None:
        self.kinds = kinds
        super().__init__(message)


class SnapshotMismatch(InvalidInput):
    """A snapshot is of another environment, or of another version; the message names both."""


class EvalFileError(InvalidInput):
    """An eval file does not define what an eval needs."""


class RunDirectoryError(HeldoutError):
    """The run directory cannot be used as asked."""


class RunExists(RunDirectoryError):
    """The directory holds a run already, and resume was not asked for."""


class RunReplaced(RunDirectoryError):
    """The directory no longer holds the run that was loaded."""


class RunBusy(RunDirectoryError):
    """Another process is writing the run."""


class ResumeMismatch(RunDirectoryError):
    """The run belongs to other samples, another config or other functions.

    `remedy` is what would make it resumable, "" if nothing would. With one, `hint` says how to
    begin a new run, too.
    """

    def __init__(self, message: str, remedy: str | None = None) -> None:
        self.remedy = remedy
        super().__init__(message)
        self.offer("choose another experiment_name")

    def offer(self, way: str) -> None:
        """Say how to begin a new run: in Python, or by the options of a command."""
        if self.remedy is not None:
            self.hint = f"{self.remedy}, or {way}" if self.remedy else way[0].upper() + way[1:]


class DamagedJournal(RunDirectoryError):
    """A line in the middle of a journal cannot be read; `path` and `line` say which."""

    def __init__(self, path: Path, line: int, why: str, afterwards: str = "") -> None:
        self.path, self.line = path, line
        super().__init__(
            f"{path}, line {line}: {why}; `heldout repair {path.parent}` moves damaged lines "
            f"aside{afterwards}"
        )


class UnknownFormat(RunDirectoryError):
    """The file is of another format, or (`is_newer`) of a later version of it."""

    def __init__(self, message: str, *, is_newer: bool = False, hint: str | None = None) -> None:
        self.is_newer = is_newer
        super().__init__(message, hint=hint)


class StorageFull(RunDirectoryError):
    """The disk refused a write; what was written is readable."""


class EvalFailed(HeldoutError):
    """The eval could not run. `run_dir` holds what was done, and can be resumed."""

    def __init__(self, message: str, *, run_dir: Path | None = None) -> None:
        self.run_dir = run_dir
        super().__init__(message)


class SystemicFailure(EvalFailed):
    """Every item errored, or more than `max_error_rate`."""


class ItemFailed(EvalFailed):
    """An item errored under `on_error="raise"`; `stage` is what was called."""

    def __init__(self, message: str, *, stage: str | None = None) -> None:
        self.stage = stage
        super().__init__(message)


class EnvironmentFailed(HeldoutError):
    """An environment cannot go on: an error of that item.

    A tool raises it where the model is not to blame.
    """


class RenderMismatch(HeldoutError):
    """Tokens that were sampled, or seen, do not come back when the conversation is rendered."""


class ScoringFailed(HeldoutError):
    """A trajectory could not be scored, which is not a score of 0."""


class NoVerdict(ScoringFailed):
    """A judge gave no verdict; `usage` is the `Usage` of its replies, if known."""

    def __init__(self, message: str, *, usage: Any = None) -> None:
        self.usage = usage
        super().__init__(message)


class WorkerError(HeldoutError):
    """A task that was given to another process has no result."""


class TaskTimeout(WorkerError):
    """The task exceeded its time limit, and its process was killed."""


class WorkerDied(WorkerError):
    """The process ended: a crash, no memory, or the pool was closed."""


class TaskFailed(WorkerError):
    """The function raised in its process; `kind` is the exception's name."""

    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {message}")


class SandboxError(HeldoutError):
    """A sandbox failed, and not the program in it: an error of that item, never a score of 0."""


class EndpointError(HeldoutError):
    """One request could not be answered: an error of that item."""


class TransientError(EndpointError):
    """Trying again may help (429, 5xx, dropped connection).

    `retry_after` is the wait in seconds that the server asked for.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class Unreachable(TransientError):
    """The server never answered, or only with failures."""


class ContextFull(EndpointError):
    """The conversation is longer than the policy can read."""


class FatalEndpointError(EndpointError):
    """No other request will be answered either (401, unknown model)."""


class ModelRefused(FatalEndpointError):
    """The first request was refused, so the model is taken to be at fault (404, unknown model).

    Of a model that has answered anything before, it is this one request that was refused.
    """


# RecursionError: the author of a text or value decides how deeply it is nested.
UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeError)
"""What decoding raises for text that is not the JSON it should be."""
UNENCODABLE = (TypeError, NotImplementedError, UnicodeEncodeError, RecursionError, OverflowError)
"""What encoding raises for values that JSON cannot hold."""


def printable_error(problem: BaseException) -> str:
    """Return an error's message, with what UTF-8 has no bytes for (lone surrogates) escaped."""
    try:
        message = str(problem)
    except Exception:  # noqa: BLE001 - a user's own class; the error matters more than its words
        message = "(its message cannot be had)"
    return message.encode("utf-8", "backslashreplace").decode()


__all__ = [
    "ContextFull",
    "DamagedJournal",
    "DuplicateSampleId",
    "EndpointError",
    "EnvironmentFailed",
    "EvalFailed",
    "EvalFileError",
    "FatalEndpointError",
    "HeldoutError",
    "InvalidInput",
    "InvalidQuery",
    "ItemFailed",
    "ModelRefused",
    "NoVerdict",
    "NotComparable",
    "RenderMismatch",
    "ResumeMismatch",
    "RunBusy",
    "RunDirectoryError",
    "RunExists",
    "RunReplaced",
    "SandboxError",
    "ScoringFailed",
    "SnapshotMismatch",
    "StorageFull",
    "SystemicFailure",
    "TaskFailed",
    "TaskTimeout",
    "TransientError",
    "UnknownFormat",
    "Unreachable",
    "WorkerDied",
    "WorkerError",
]
