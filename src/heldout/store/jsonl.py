"""Append-only files of JSON lines, whose first line identifies the format.

A line is one `write`, so a killed process leaves at most one torn line at the end, which readers
ignore and the next writer cuts off. A line that cannot be read anywhere else is damage, and is
named. `journal.py` keeps results this way, `heldout.training.curve.points` the points of a curve.

A file that is complete may be packed: NAME.gz in place of NAME, which `open_to_read` reads as NAME.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import secrets
import stat
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from heldout.errors import (
    UNENCODABLE,
    UNREADABLE,
    DamagedJournal,
    InvalidInput,
    RunBusy,
    RunDirectoryError,
    StorageFull,
    UnknownFormat,
)

T = TypeVar("T")

MAX_HEADER_BYTES = 4096
"""Bytes of a first line."""


# --- JSON ---------------------------------------------------------------------------------------


def plain_value(value: Any) -> Any:
    """Convert values that JSON lacks but that have a plain equivalent: NumPy's and torch's."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise NotImplementedError(f"a value of type {type(value).__name__}")


# Sorted, so that a set is stored in the same order whichever process stores it.
encoder = msgspec.json.Encoder(enc_hook=plain_value, order="deterministic")
_decoder_of = cache(msgspec.json.Decoder)


def encode(value: Any, noun: str, name: str) -> bytes:
    """Encode a value as JSON; otherwise raise InvalidInput, naming it by noun and name."""
    try:
        return encoder.encode(value)
    except UNENCODABLE as problem:
        raise InvalidInput(f"{noun} {name!r} holds a value that JSON cannot: {problem}") from None


def decode(text: bytes | str, kind: type[T]) -> T:
    """Decode JSON strictly as a type; InvalidInput if it does not match."""
    try:
        value: T = _decoder_of(kind).decode(text)  # type: ignore[arg-type]
    except UNREADABLE as problem:
        raise InvalidInput(str(problem)) from None
    return value


# --- Formats ------------------------------------------------------------------------------------


class Header(msgspec.Struct):
    """The first line of a file."""

    format: str
    version: int


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The first line of such files, and the words for them in messages."""

    name: str
    version: int
    noun: str
    line: str
    """What one line is: "result"."""
    if_busy: str
    """What to do where somebody else is writing."""
    after_repair: str = ""
    """What to do once damaged lines are moved aside."""

    @property
    def header(self) -> bytes:
        """The first line, as it is written."""
        return msgspec.json.encode(Header(self.name, self.version)) + b"\n"

    def check_header(self, path: Path, line: bytes) -> None:
        """Refuse a first line of another format, or of a version that is not known."""
        if not refuse_unknown(path, line, self.name, self.version):
            raise self.damaged(path, 1, f"not a heldout {self.noun} header")

    def decode(self, path: Path, number: int, line: bytes, kind: type[T]) -> T:
        """Decode a line; one that cannot be is DamagedJournal, with its number."""
        self.refuse_long(path, number, line)
        try:
            return decode(line, kind)
        except InvalidInput as problem:
            raise self.damaged(path, number, f"not a readable {self.line} ({problem})") from None

    def refuse_long(self, path: Path, number: int, line: bytes) -> None:
        """Raise DamagedJournal where a line is too long to be one."""
        if len(line) > MAX_LINE_BYTES:
            raise self.damaged(path, number, f"longer than {MAX_LINE_BYTES / 1e6:.0f} MB")

    def damaged(self, path: Path, number: int, why: str) -> DamagedJournal:
        """Make the error of a line that cannot be read."""
        return DamagedJournal(path, number, why, self.after_repair)


# --- Writing ------------------------------------------------------------------------------------


class LineWriter:
    """Appends lines to one file. Holds a lock: two writers would make one damaged file."""

    def __init__(self, path: Path, format: LineFormat, *, new: bool = False) -> None:
        """`new`: the file must not be there yet (FileExistsError)."""
        self.path = path
        self.written = 0
        self._synced = True
        self._format = format
        self._fd = open_locked(path, format, new=new)
        try:
            head = os.pread(self._fd, MAX_HEADER_BYTES, 0)
            if b"\n" in head:
                format.check_header(path, head.partition(b"\n")[0])
            elif not format.header.startswith(head):
                raise format.damaged(path, 1, f"not a heldout {format.noun} header")
            self._size = _end_of_last_line(self._fd)
            os.ftruncate(self._fd, self._size)
            if self._size == 0:
                self._append(format.header)
        except BaseException:
            os.close(self._fd)
            raise

    def clear(self) -> None:
        """Remove all lines but the header."""
        os.ftruncate(self._fd, 0)
        self._size = 0
        self._append(self._format.header)

    def append_line(self, line: bytes) -> None:
        """Write a whole line, or nothing of it."""
        self._append(line)
        self.written += 1

    def _append(self, line: bytes) -> None:
        try:
            done = 0
            while done < len(line):
                done += os.write(self._fd, line[done:])
        except OSError as problem:
            # Half a line may be there; cut it off, so that what was written stays readable.
            os.ftruncate(self._fd, self._size)
            raise storage_error(
                self.path,
                problem,
                f"; the {self.written} {self._format.line}s written before are readable, and a "
                "resumed run keeps them",
            ) from problem
        self._size += len(line)
        self._synced = False

    def rewrite(self, lines: Iterable[bytes]) -> None:
        """Replace all lines: the file has the old ones or the new ones, whenever it is read.

        The new file is locked before it takes the old one's name, so nobody comes in between.
        """
        temporary = temporary_name(self.path)
        other = LineWriter(temporary, self._format, new=True)
        try:
            for line in lines:
                other.append_line(line)
            other.sync()
            temporary.replace(self.path)
        except BaseException:
            other.close()
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._fd)
        self._fd, self._size = other._fd, other._size

    @property
    def is_current(self) -> bool:
        """Whether it is open, and still the file of that name: somebody may have removed it."""
        if self._fd < 0:
            return False
        try:
            current, opened = self.path.stat(), os.fstat(self._fd)
        except FileNotFoundError:
            return False
        return (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)

    def sync(self) -> None:
        """Sync what was written to disk."""
        if self._synced:
            return
        self._synced = True
        try:
            os.fsync(self._fd)
        except OSError as problem:
            raise storage_error(self.path, problem) from problem

    def close_in_child(self) -> None:
        """Close without syncing, in a forked child: the file belongs to the parent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Sync to disk, close the file, and release the lock."""
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)  # which also gives the lock back
            self._fd = -1


def storage_error(path: Path, problem: OSError, consequence: str = "") -> RunDirectoryError:
    """Make the error of a failed write; a full disk has its own class, since space can be freed."""
    full = problem.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    kind = StorageFull if full else RunDirectoryError
    return kind(f"cannot write {path}: {problem.strerror}{consequence}")


def link_error(path: Path) -> RunDirectoryError:
    """Make the error for a link in place of a file or folder of a run directory."""
    return RunDirectoryError(f"{path} is a symbolic link; it is not followed")


def temporary_name(path: Path) -> Path:
    """Name a file to be written first and then renamed: nobody can have put a link there."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def replace_file(path: Path, content: bytes) -> None:
    """Write the whole file or leave the old one: never half."""
    temporary = temporary_name(path)
    is_made = False
    try:
        with temporary.open("xb") as file:  # which follows no link
            is_made = True
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as problem:
        if is_made:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise storage_error(path, problem) from problem


def sync_directory(path: Path) -> None:
    """Sync a directory: a new name survives a crash only once its directory is on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_to_append(path: Path) -> BufferedWriter:
    """Open a file of a run directory, or make it; OSError where it is a link or a pipe."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.fdopen(os.open(path, flags, 0o644), "ab")


def open_locked(path: Path, format: LineFormat, *, new: bool = False) -> int:
    """Open a regular file (not a link), locked so that nobody else writes to it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | (os.O_EXCL if new else 0), 0o644)
    except OSError as problem:
        if new and problem.errno == errno.EEXIST:
            raise
        if problem.errno == errno.ELOOP:
            raise link_error(path) from None
        raise storage_error(path, problem) from problem
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RunDirectoryError(f"{path} is not an ordinary file")
    # For a moment: a reader that looks whether there is a writer holds the lock that long.
    for _ in range(10):
        if _try_lock(fd, fcntl.LOCK_EX):
            return fd
        time.sleep(0.01)
    os.close(fd)
    raise RunBusy(f"{path.parent} is being written by another process; {format.if_busy}")


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as problem:
        if problem.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            raise
        return True  # a file system without locks: go on without
    return True


def has_writer(path: Path) -> bool:
    """Whether a living process has this file open for writing."""
    if not path.exists():
        return False
    with open_to_read(path) as file:
        return not _try_lock(file.fileno(), fcntl.LOCK_SH)


def _end_of_last_line(fd: int) -> int:
    """Size of the file up to and with its last newline."""
    for first, end in reversed([*data_ranges(fd)]):
        while end > first:
            start = max(first, end - 65_536)
            newline = os.pread(fd, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


# --- Reading ------------------------------------------------------------------------------------


BLOCK = 2**16
"""Bytes that are read at a time, and then to the end of the line."""
MAX_LINE_BYTES = 2**28
"""Bytes of a line; a longer one is damage, since a hole in a file may be of any size."""
MAX_DOCUMENT_BYTES = 2**26
"""Bytes of a file that is read as one JSON text."""


def data_ranges(fd: int, start: int = 0) -> Iterator[tuple[int, int]]:
    """Find the parts of a file that are no holes, which read as zeros and may be of any size."""
    size = os.fstat(fd).st_size
    while start < size:
        here = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            start = os.lseek(fd, start, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as problem:
            if problem.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            end = size  # a file system that does not say
        finally:
            os.lseek(fd, here, os.SEEK_SET)
        yield start, end
        start = end


class RunFile(FileIO):
    """A file of a run directory; where the disk cannot read it, RunDirectoryError names it."""

    def __init__(self, fd: int, path: Path) -> None:
        super().__init__(fd)
        self._path = path

    def readinto(self, buffer: Any, /) -> int | None:
        """Read into a buffer."""
        try:
            return super().readinto(buffer)
        except OSError as problem:
            raise RunDirectoryError(f"cannot read {self._path}: {problem.strerror}") from None

    def readall(self) -> bytes:
        """Read to the end."""
        try:
            return super().readall()
        except OSError as problem:
            raise RunDirectoryError(f"cannot read {self._path}: {problem.strerror}") from None


def open_to_read(path: Path) -> BufferedReader:
    """Open an ordinary file, and nothing else: a pipe that nobody writes would block for ever.

    Every file of a run directory is opened here. Raises FileNotFoundError where there is none, and
    RunDirectoryError where it is something else, a link included, or cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        if path.suffix != ".jsonl" or not packed_path(path).exists():
            raise
        return _open_packed(path)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise link_error(path) from None
        raise RunDirectoryError(f"cannot read {path}: {problem.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise RunDirectoryError(f"{path} is not an ordinary file")
    return BufferedReader(RunFile(fd, path), BLOCK)


# --- Packed files -------------------------------------------------------------------------------

MAX_PACKED_BYTES = 2**26
"""Bytes of a file before it was packed. It is unpacked whole to be read, and may be anybody's."""


def packed_path(path: Path) -> Path:
    """Return where the packed content of a file is."""
    return path.with_name(f"{path.name}.gz")


def pack(path: Path) -> None:
    """Compress a file that nobody writes to any more; a very large one is left as it is."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_PACKED_BYTES:
            return
        content = file.read()
    replace_file(packed_path(path), gzip.compress(content, compresslevel=6, mtime=0))
    path.unlink()  # afterwards: who does not find the one finds the other


def unpack(path: Path) -> None:
    """Make an ordinary file of a packed one, so that it can be written to; else do nothing."""
    if not path.exists() and packed_path(path).exists():
        with open_to_read(path) as file:
            replace_file(path, file.read())
        packed_path(path).unlink()


def _open_packed(path: Path) -> BufferedReader:
    """Open the content of a packed file, as a file without a name that can be read anywhere."""
    packed = packed_path(path)
    try:
        with open_to_read(packed) as file:
            content = gzip.GzipFile(fileobj=file).read(MAX_PACKED_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise RunDirectoryError(f"{packed} cannot be unpacked: {problem}") from None
    if len(content) > MAX_PACKED_BYTES:
        raise RunDirectoryError(
            f"{packed} has more than {MAX_PACKED_BYTES / 1e6:,.0f} MB when it is unpacked"
        )
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        fd = os.dup(file.fileno())
    os.lseek(fd, 0, os.SEEK_SET)
    return BufferedReader(RunFile(fd, path), BLOCK)


def read_whole(path: Path, most: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Read an ordinary file up to a size limit; raises as `open_to_read` does."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise RunDirectoryError(
                f"{path} has {size / 1e6:,.0f} MB; of such a file {most / 1e6:,.0f} MB are read at "
                "most"
            )
        return file.read(most)


def read_document(
    path: Path, kind: type[T], format: str, version: int, most: int = MAX_DOCUMENT_BYTES
) -> T:
    """Read a JSON file of this format, in a version up to this one; raises as `read_whole` does."""
    raw = read_whole(path, most)
    refuse_unknown(path, raw, format, version)
    try:
        return decode(raw, kind)
    except InvalidInput as problem:
        raise RunDirectoryError(f"{path} cannot be read: {problem}") from None


def lines(path: Path, format: LineFormat) -> Iterator[tuple[int, int, bytes]]:
    """Read (number, byte offset, text) of every whole line after the header.

    Raises FileNotFoundError where there is none, and RunDirectoryError where it is not an ordinary
    file, or has another header.
    """
    with open_to_read(path) as file:
        header = file.readline(MAX_HEADER_BYTES)
        if header.endswith(b"\n") or len(header) == MAX_HEADER_BYTES:
            format.check_header(path, header)
            yield from _whole_lines(file, 2, len(header))


def _whole_lines(
    file: BufferedReader, number: int = 1, offset: int = 0
) -> Iterator[tuple[int, int, bytes]]:
    """Read on, up to a line that is torn: its writer was killed, or is writing it now.

    A line that is too long is cut, to one byte more than a line may have: decoding refuses it.
    """
    while block := file.read(BLOCK) + read_line(file):
        *complete, rest = block.split(b"\n")
        for line in complete:
            yield number, offset, line
            number += 1
            offset += len(line) + 1
        if len(rest) > MAX_LINE_BYTES:
            if not _skip_line(file):
                return
            yield number, offset, rest[: MAX_LINE_BYTES + 1]
            number, offset = number + 1, file.tell()


def _skip_line(file: BufferedReader) -> bool:
    """Move on behind the end of a line; False where it has none."""
    for start, end in data_ranges(file.fileno(), file.tell()):
        file.seek(start)
        while file.tell() < end:
            if file.readline(BLOCK).endswith(b"\n"):
                return True
    return False


def count_lines(file: BufferedReader) -> int:
    """Count the lines of a file; what is behind the last one does not count."""
    count = 0
    for start, end in data_ranges(file.fileno()):
        file.seek(start)
        while piece := file.read(min(2**20, end - file.tell())):
            count += piece.count(b"\n")
    return count


def read_line(file: BufferedReader) -> bytes:
    """Read to the end of a line, or one byte more than a line may have."""
    return file.readline(MAX_LINE_BYTES + 1)


def refuse_unknown(path: Path, raw: bytes, expected: str, newest: int) -> bool:
    """Refuse a newer version before the rest is decoded, which may not be possible.

    Returns False where there is no version at all.
    """
    try:
        header = decode(raw, Header)
    except InvalidInput:
        return False
    if header.format == expected and 1 <= header.version <= newest:
        return True
    message = (
        f"{path} is {header.format!r} version {header.version}; this heldout reads {expected!r} "
        f"up to version {newest}"
    )
    if header.format != expected:
        raise UnknownFormat(message, hint="That is another kind of file: is it the right path?")
    is_newer = header.version > newest
    hint = "It was written by a newer heldout: upgrade to read it" if is_newer else None
    raise UnknownFormat(message, is_newer=is_newer, hint=hint)


# --- Repair -------------------------------------------------------------------------------------


def repair(
    path: Path,
    format: LineFormat,
    kind: type[Any],
    announce: Callable[[list[int]], None] = lambda damaged: None,
) -> list[int]:
    """Move lines that cannot be read to a file `.damaged` beside; returns their numbers.

    Of a line that is too long to be one, only the beginning is kept. `announce` is called with the
    numbers while the lines are still there: what it writes is not lost if this process is killed.
    """
    lock = open_locked(path, format)  # nobody else may write meanwhile
    repaired = path.with_suffix(".repaired")
    damaged: list[int] = []
    try:
        repaired.unlink(missing_ok=True)
        with ExitStack() as opened:
            file = opened.enter_context(open_to_read(path))
            good = opened.enter_context(repaired.open("xb"))
            good.write(format.header)
            for number, _, line in _whole_lines(file):
                if number == 1 and refuse_unknown(path, line, format.name, format.version):
                    continue
                try:
                    format.decode(path, number, line, kind)
                    good.write(line + b"\n")
                except DamagedJournal:
                    if not damaged:
                        bad = opened.enter_context(open_to_append(path.with_suffix(".damaged")))
                    damaged.append(number)
                    bad.write(line + b"\n")
            good.flush()
            os.fsync(good.fileno())
        if damaged:
            announce(damaged)
            repaired.replace(path)
    finally:
        repaired.unlink(missing_ok=True)
        os.close(lock)
    return damaged
