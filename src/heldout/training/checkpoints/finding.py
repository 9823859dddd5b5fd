"""Find the checkpoints of a training run in a folder, by the names that trainers give them.

A pattern is a path below the folder. `{step}` stands for the digits of the step, `*` for anything
within a name; where there is no `{step}`, the only `*` is the step.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from heldout.errors import InvalidInput
from heldout.training.curve.points import LAST_STEP

PATTERNS = (
    "checkpoint-{step}",
    "global_step_{step}",
    "global_step{step}",
    "step_{step}",
    "step-{step}",
    "iter_{step}",
)
"""Those of transformers' Trainer, verl, DeepSpeed, prime-rl and NeMo-RL, torchtitan, Megatron."""

STEP = "{step}"
LATEST = "latest_checkpointed_iteration.txt"
"""Where verl and Megatron write the step of the last checkpoint that is whole."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of a training run."""

    step: int
    path: Path

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.path.name


def check_pattern(pattern: str) -> str:
    """Check a user's pattern, and return it with `{step}` in it.

    Raises:
        InvalidInput: It leads out of the folder, or does not say where the step is.
    """
    path = PurePosixPath(pattern)
    if not pattern.strip() or path.is_absolute() or ".." in path.parts:
        raise InvalidInput(f"a pattern must be a path below the folder, got {pattern!r}")
    if STEP not in pattern and pattern.count("*") == 1:
        pattern = pattern.replace("*", STEP)
    if pattern.count(STEP) != 1:
        raise InvalidInput(
            f"a pattern has {STEP} where the number of the step is, as in "
            f"'epoch_*/step_{STEP}'; got {pattern!r}"
        )
    return pattern


def patterns_of(pattern: str | None) -> Sequence[str]:
    """Return a user's pattern, checked, or those of known trainers."""
    return PATTERNS if pattern is None else (check_pattern(pattern),)


def find_checkpoints(folder: Path, patterns: Sequence[str] = PATTERNS) -> list[Checkpoint]:
    """List the checkpoints in a folder, by step.

    Args:
        folder: The folder.
        patterns: Names of checkpoints, as `patterns_of` returns them.

    Raises:
        InvalidInput: Two of them have the same step.
    """
    found: dict[int, Checkpoint] = {}
    for pattern in patterns:
        names = re.compile(
            re.escape(pattern).replace(re.escape(STEP), "([0-9]+)").replace(r"\*", "[^/]*")
        )
        for path in folder.glob(pattern.replace(STEP, "*")):
            match = names.fullmatch(path.relative_to(folder).as_posix())
            if match is None or int(match[1]) > LAST_STEP or not path.is_dir():
                continue
            checkpoint = Checkpoint(int(match[1]), path)
            other = found.setdefault(checkpoint.step, checkpoint)
            if other.path != path:
                raise InvalidInput(
                    f"{other.path} and {path} are both of step {checkpoint.step}; say which are "
                    "meant by a pattern, such as 'checkpoint-{step}'"
                )
    return [found[step] for step in sorted(found)]


@dataclass(frozen=True, slots=True)
class FolderState:
    """Names, sizes and times of the files of a checkpoint."""

    signature: str
    """A hash of them."""
    changed: float
    """When the newest was written, by the clock of its file system."""
    files: dict[str, tuple[int, int]]
    """Size and time of each, by its path in the checkpoint."""

    def is_overwritten(self, now: FolderState) -> bool:
        """Whether a file was written to since; that others were removed or added does not count."""
        return any(now.files.get(name, file) != file for name, file in self.files.items())


def read_state(path: Path) -> FolderState | None:
    """Read what a checkpoint's files look like from outside; None if it is gone."""
    files: dict[str, tuple[int, int]] = {}
    try:
        newest = path.stat().st_mtime
        for folder, _, names in os.walk(path):
            for name in names:
                file = Path(folder) / name
                stat = file.stat() if file.exists() else file.lstat()  # a link to nothing
                files[str(file.relative_to(path))] = stat.st_size, stat.st_mtime_ns
                newest = max(newest, stat.st_mtime)
    except FileNotFoundError:  # removed, or renamed, while it was read
        return None
    listed = repr(sorted(files.items())).encode("utf-8", "replace")
    return FolderState(hashlib.blake2b(listed, digest_size=16).hexdigest(), newest, files)


_UNFINISHED = re.compile(r"(^|[/.])(tmp|temp)([._-]|$)|\.(tmp|temp|part|partial|incomplete)$")


def explain_unfinished(checkpoint: Checkpoint, state: FolderState, folder: Path) -> str | None:
    """Say by what names show that a checkpoint is still being written; None if none does."""
    for name in state.files:
        if _UNFINISHED.search(name):
            return f"{name} is a temporary file"
    try:
        latest = int((folder / LATEST).read_text()[:32])
    except (OSError, ValueError):
        return None
    if checkpoint.step > latest:
        return f"{LATEST} names step {latest} as the last that is whole"
    return None
