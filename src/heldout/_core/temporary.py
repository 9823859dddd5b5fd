"""Temporary folders that no killed process leaves for good.

A folder is locked as long as the process that made it, or a child of it, lives. SIGTERM and SIGKILL
leave folders behind, so the next process that makes one first removes those that nobody locks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

SUFFIX = ".locked"
"""How names of such folders end. Others of heldout's may be in use without a lock."""


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A `TemporaryDirectory` that a later process removes if this one is killed.

    Args:
        kind: What it is for, as part of its name.
    """

    def __init__(self, kind: str) -> None:
        remove_abandoned()
        self._lock = -1
        while True:
            super().__init__(prefix=f"heldout-{kind}-", suffix=SUFFIX)
            # Between the two another process may have found it without a lock, and removed it.
            with suppress(FileNotFoundError):
                self._lock = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY)
                with suppress(OSError):  # a file system without locks, where nothing is removed
                    fcntl.flock(self._lock, fcntl.LOCK_SH)
                if Path(self.name).exists():
                    return
            self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder, and give its lock back."""
        super().cleanup()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@cache
def remove_abandoned() -> None:
    """Remove the folders of processes that were killed; once a process."""
    with suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"heldout-*{SUFFIX}"):
            with _locked_alone(path) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked_alone(path: Path) -> Iterator[bool]:
    """Lock a folder of this user, if nobody has; yields whether that was so."""
    try:
        # No link: it could lead to any folder of this user.
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # somebody else's, or removed meanwhile
        yield False
        return
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            yield False
            return
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use, or a file system without locks
            yield False
            return
        yield True
    finally:
        os.close(folder)
