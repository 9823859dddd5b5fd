"""Take hold of a checkpoint: trainers remove checkpoints, and write over them.

A hold is a folder with the same files: clones where the file system has them (btrfs, XFS), else
hard links, else copies. It outlives its checkpoint. Clones and copies outlive a write to it, too,
but a hard link is the same file: a hold says whether anything may have been written to one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from heldout.training.checkpoints.finding import Checkpoint, FolderState, read_state
from heldout.training.checkpoints.formats import Weights

_CLONE = 0x40049409
"""FICLONE of Linux: one file gets the blocks of another, until either is written to."""
_SMALL = (".json", ".txt", ".model", ".jinja", ".py")
"""Files beside the weights that a model is loaded from."""


@dataclass(slots=True)
class Hold:
    """A checkpoint that stays as it was.

    Attributes:
        checkpoint: The checkpoint, where the trainer saved it.
        path: The folder that has its files.
        state: What the files looked like from outside.
        overwritten: Whether something else was found in it later.
    """

    checkpoint: Checkpoint
    path: Path
    state: FolderState
    overwritten: bool = False
    _linked: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    """Size and times of files that the checkpoint shares."""
    _small: str = ""

    def relocate(self, weights: Weights) -> Weights:
        """Return the same weights in the hold; what lies beside the checkpoint is still found."""
        inside = weights.path.relative_to(self.checkpoint.path)
        return replace(weights, path=self.path / inside, beside=weights.path)

    def is_unchanged(self, rehash: Callable[[], bool]) -> bool:
        """Whether its files are what they were when it was taken.

        Args:
            rehash: Says whether the weights still have the hash that they had. It is asked only
                where something has happened to a file, if only that it was removed elsewhere.
        """
        if (now := {path: _stat(path) for path in self._linked}) != self._linked:
            same = self._small == self._digest_small() and rehash()
            self.overwritten = self.overwritten or not same
            self._linked = now
        return not self.overwritten

    def release(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path.parent, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.parent.rmdir()  # the last one

    def _digest_small(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(path for path in self._linked if path.suffix in _SMALL):
            digest.update(path.name.encode("utf-8", "replace") + b"\0" + path.read_bytes())
        return digest.hexdigest()


def take_hold(checkpoint: Checkpoint, state: FolderState, places: Sequence[Path]) -> Hold | None:
    """Take hold of a checkpoint as it is.

    Args:
        checkpoint: The checkpoint.
        state: What it looked like when it was found whole.
        places: Where holds may be, best first: one on its file system is taken, else the first.

    Returns:
        The hold; None if the checkpoint was removed or written to meanwhile.

    Raises:
        OSError: There is no room, or no permission.
    """
    near = [place for place in places if _device(place) == checkpoint.path.stat().st_dev]
    root = (near or list(places))[0] / str(checkpoint.step)
    shutil.rmtree(root, ignore_errors=True)
    hold = Hold(checkpoint, root / checkpoint.name, state)
    try:
        hold.path.mkdir(parents=True)
        _make_folders(checkpoint.path, hold.path)
        for name in state.files:
            source, target = checkpoint.path / name, hold.path / name
            if source.is_symlink() and not source.exists():
                continue  # a link to nothing
            if _duplicate(source, target) == "link":
                hold._linked[target] = _stat(target)
        now = read_state(checkpoint.path)
        if now is None or not state.is_overwritten(now):
            hold._small = hold._digest_small()
            return hold
    except FileNotFoundError:
        pass
    except BaseException:
        hold.release()
        raise
    hold.release()
    return None


def _device(folder: Path) -> int:
    """Return the file system of a folder, or that it would be in."""
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev


def _make_folders(source: Path, target: Path) -> None:
    for folder, names, _ in os.walk(source):
        for name in names:
            given = Path(folder) / name
            made = target / given.relative_to(source)
            if given.is_symlink():
                made.symlink_to(given.resolve(), target_is_directory=True)
            else:
                made.mkdir()


def _duplicate(source: Path, target: Path) -> str:
    """Give a file another name in the cheapest way that there is; return which."""
    real = source.resolve(strict=True)
    if _clone(real, target):
        shutil.copystat(real, target)
        return "clone"
    try:
        os.link(real, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(real, target)
        return "copy"
    return "link"


def _clone(source: Path, target: Path) -> bool:
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        with source.open("rb") as given, target.open("xb") as made:
            fcntl.ioctl(made.fileno(), _CLONE, given.fileno())
    except FileNotFoundError:
        raise
    except OSError:
        target.unlink(missing_ok=True)
        return False
    return True


def _stat(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
