"""A file of shared memory that one process writes and another one reads.

It lies in memory where there is a place for that (/dev/shm), and is this user's alone. On Linux it
has no name, so nothing of it is left when the last process that has it open ends, however that is:
the other process opens it through its maker's /proc/PID/fd.

Elsewhere it has a name, and goes when its maker closes it or ends. One whose maker was killed goes
too: whoever makes such a file holds a lock on it, so a file that nobody holds is abandoned (forked
children let go of it). No process id is believed, since containers may share the place and count
their processes each from 1.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import stat
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from heldout.errors import InvalidInput

PREFIX = "heldout-weights-"
MEMORY = Path("/dev/shm")
_NAMELESS = getattr(os, "O_TMPFILE", 0)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM)


class SharedFile:
    """Open, locked and mapped: `mapping` is what is written to. `close` removes the file."""

    def __init__(self, size: int, folder: Path | None = None) -> None:
        self.size = size
        self._maker = os.getpid()
        self.path, self._fd = _reserved(size, folder)
        try:
            # Opened again: a mapping keeps its file open, and with it the lock, in children too.
            fd = os.open(self.path, os.O_RDWR | _no_links(self.path) | os.O_CLOEXEC)
            try:
                self.mapping = mmap.mmap(fd, size)
            finally:
                os.close(fd)
        except BaseException:
            self.close()
            raise
        _open.add(self)

    def close(self) -> None:
        """The mapping itself goes with the last tensor on it."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        # A forked child has the file too, but it is not its to remove.
        if os.getpid() == self._maker:
            with suppress(OSError):
                self.path.unlink()
        with suppress(OSError):
            os.close(fd)


_open: weakref.WeakSet[SharedFile] = weakref.WeakSet()


def _let_go() -> None:
    """In a forked child, which may outlive the maker."""
    for file in list(_open):
        fd, file._fd = file._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


os.register_at_fork(after_in_child=_let_go)


def _no_links(path: Path) -> int:
    """A flag to open it with: links are not followed, but for those that the kernel makes."""
    return 0 if path.is_relative_to("/proc") else os.O_NOFOLLOW


def open_shared(path: Path) -> mmap.mmap:
    """A file of this user's, for reading. What is written to the mapping stays in this process."""
    fd = os.open(path, os.O_RDONLY | _no_links(path) | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise InvalidInput(f"{path} is no file of this user's")
        if found.st_size == 0:
            raise InvalidInput(f"{path} is empty")
        return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)


def remove_abandoned(path: Path) -> bool:
    """Whether it is gone now: it was of this user, and no living process holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if found.st_ino == path.lstat().st_ino:
            path.unlink()
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def remove_all_abandoned(folder: Path) -> None:
    for left in folder.glob(f"{PREFIX}*"):
        remove_abandoned(left)


def _reserved(size: int, folder: Path | None) -> tuple[Path, int]:
    places = [folder] if folder is not None else [MEMORY, Path(tempfile.gettempdir())]
    problems = []
    for place in places:
        if not place.is_dir():
            continue
        remove_all_abandoned(place)
        try:
            return _made(place, size)
        except OSError as problem:
            problems.append(f"{place}: {problem.strerror}")
            if problem.errno not in (*_FULL, errno.EACCES, errno.EPERM, errno.EROFS):
                raise
    raise InvalidInput(
        f"there is no room for {size / 2**20:,.0f} MiB of weights ({'; '.join(problems)}); a "
        "container's /dev/shm is as large as --shm-size says"
    )


def _made(place: Path, size: int) -> tuple[Path, int]:
    if _NAMELESS:
        with suppress(OSError):  # not every file system can
            fd = os.open(place, os.O_RDWR | _NAMELESS | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _reserve(fd, size)
            except BaseException:
                os.close(fd)
                raise
            return Path(f"/proc/{os.getpid()}/fd/{fd}"), fd
    while True:
        path = place / f"{PREFIX}{secrets.token_hex(8)}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            if not _held(fd):
                os.close(fd)
                continue
            _reserve(fd, size)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            os.close(fd)
            raise
        return path, fd


def _held(fd: int) -> bool:
    """Whether the file is ours: somebody who looks for abandoned ones may have been faster."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # no locks in this place; then nobody else gets one either
    return os.fstat(fd).st_nlink == 1


def _reserve(fd: int, size: int) -> None:
    """All of it now: where memory runs out later, writing to the mapping would be a SIGBUS, and
    the end of the training."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    zeros = bytes(2**20)
    for start in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - start], start)
