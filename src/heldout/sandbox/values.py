"""What a sandbox is given and gives back: limits, the outcome of a program, a tree of files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal

from heldout.errors import InvalidInput

StopReason = Literal["timeout", "cpu", "memory", "processes", "output", "killed"]
"""Why a program was stopped."""
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """What programs of a sandbox may use; most can be given for a single program, too."""

    timeout: float = 10.0
    """Seconds until a program, with all it has started, is killed."""
    memory: int = 512 * MIB
    """Bytes of memory of a program and all it has started."""
    cpu: float | None = None
    """Seconds of CPU time of a program and all it has started; None is no limit."""
    output: int = MIB
    """Bytes of standard output, and of standard error."""
    disk: int = 256 * MIB
    """Bytes of files in /work, /tmp and /dev/shm together. They are held in memory."""
    files: int = 20_000
    """Files and folders there."""
    processes: int = 64
    """Processes and threads at a time."""
    descriptors: int = 256
    """Open files of a process."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "cpu":
                continue
            is_time = field.name in ("timeout", "cpu")
            number = isinstance(value, (int, float) if is_time else int)
            if not number or isinstance(value, bool) or not 0 < value < math.inf:
                kind = "number of seconds" if is_time else "whole number"
                raise InvalidInput(
                    f"{field.name} of a sandbox must be a positive {kind}, not {value!r}"
                )


@dataclass(frozen=True)
class ProgramOutcome:
    """What became of a program."""

    exit: int | None
    """Its exit code, 128 + N after signal N; None if it was stopped (`reason`)."""
    stdout: bytes
    """What it wrote, up to the limit."""
    stderr: bytes
    reason: StopReason | None
    """Why it was stopped, with all it had started; None if it ended by itself."""
    seconds: float
    """From its start to its end, by the clock."""
    peak_memory: int | None
    """Bytes of all its processes, as seen every 20 ms, or of the largest if that is more.

    None if it ended before it was seen, and was small.
    """
    stalled: float = 0.0
    """Seconds, of these, in which the machine stood still; `timeout` was extended by them."""


@dataclass(frozen=True)
class TreeEntry:
    """A folder, file or link below /work."""

    path: str
    kind: Literal["folder", "file", "link"]
    mode: int
    value: str
    """Of a file, the SHA-256 of its content; of a link, its target."""


@dataclass(frozen=True)
class SandboxTree:
    """All that was in /work at a moment; pipes and sockets are left out."""

    entries: tuple[TreeEntry, ...]
    contents: Mapping[str, bytes]
    """What files hold, by SHA-256."""

    @property
    def paths(self) -> list[str]:
        """The paths of files and links."""
        return [entry.path for entry in self.entries if entry.kind != "folder"]

    def read(self, path: str) -> bytes | None:
        """Return what a file holds; None if there is no such file."""
        for entry in self.entries:
            if entry.path == path and entry.kind == "file":
                return self.contents[entry.value]
        return None
