"""Verdicts in a file that several processes may share, a line each.

A line holds what a judge replied, under a hash of who was asked what; the questions themselves and
the answers that were judged are not in it. Every line is written under a lock that is held for that
moment only, so any number of processes add to one file, and each finds what the others have added.
Nobody waits for the lock: what cannot be written now is written with the next, or at the end. A
line that a killed process left half written is cut off by the next.

Whether a file can be written is seen before anything is paid for. If it cannot later on, verdicts
are used and remembered all the same, and one warning says so.

Only places of lines are kept in memory. A reply is read again by the rules of its question whenever
it is used: a file that somebody edited can spoil no verdict, only cost one.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from heldout.errors import DamagedJournal, HeldoutError, RunBusy, RunDirectoryError
from heldout.scoring.judges.replies import LONGEST_REPLY
from heldout.store.jsonl import LineFormat, LineWriter, has_writer, open_to_read
from heldout.types import Usage

VERDICTS = LineFormat(
    "heldout.verdicts",
    1,
    noun="verdict cache",
    line="verdict",
    if_busy="wait for it, or name another cache",
)
MOST_IN_MEMORY = 16_384
"""Verdicts, of a judge without a file."""
_LONGEST_LINE = 8 * LONGEST_REPLY


class Kept(msgspec.Struct, frozen=True):
    """What a judge said, once."""

    key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    prompt: str
    judge: str
    reply: Annotated[str, msgspec.Meta(max_length=LONGEST_REPLY)]
    attempts: Annotated[int, msgspec.Meta(ge=1)]
    usage: Usage | None = None


class Verdicts(Protocol):
    def get(self, key: str) -> Kept | None: ...
    def put(self, kept: Kept) -> None: ...
    def close(self) -> None: ...


class MemoryVerdicts:
    """The last so many that were used."""

    def __init__(self, most: int = MOST_IN_MEMORY) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._most, self._lock = most, threading.Lock()

    def get(self, key: str) -> Kept | None:
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
            return kept

    def put(self, kept: Kept) -> None:
        with self._lock:
            self._kept[kept.key] = kept
            self._kept.move_to_end(kept.key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)

    def close(self) -> None: ...


class FileVerdicts:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._places: dict[bytes, int] = {}
        self._read_to = 0
        self._line = 0
        """Lines that were read, the header among them."""
        self._last = b""
        """The last of them."""
        self._file_is: tuple[int, int] | None = None
        self._waiting: dict[str, Kept] = {}
        """Those that could not be written, as somebody else held the lock, or the disk was full."""
        self._warned = False
        with self._lock:
            self._catch_up()
            self._check_writable()

    def get(self, key: str) -> Kept | None:
        with self._lock:
            if (kept := self._waiting.get(key)) is not None:
                return kept
            place = self._places.get(bytes.fromhex(key))
            if place is None:
                self._catch_up()  # another process may have asked the same by now
                place = self._places.get(bytes.fromhex(key))
            if place is None:
                return None
            try:
                with open_to_read(self.path) as file:
                    file.seek(place)
                    found = _decoder.decode(file.readline(_LONGEST_LINE))
            except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
                return None  # removed, or another file by now: then it is asked again
            return found if found.key == key else None

    def put(self, kept: Kept) -> None:
        with self._lock:
            self._waiting[kept.key] = kept
            while len(self._waiting) > MOST_IN_MEMORY:
                del self._waiting[next(iter(self._waiting))]
            self._try_to_write(patiently=False)

    def close(self) -> None:
        with self._lock:
            self._try_to_write(patiently=True)

    def _try_to_write(self, *, patiently: bool) -> None:
        try:
            self._write(patiently)
        except (HeldoutError, OSError) as problem:
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"verdicts of a judge cannot be kept in {self.path}: {problem}. They are used, "
                    "and remembered as long as this process lives",
                    RuntimeWarning,
                    stacklevel=2,
                )

    def _write(self, patiently: bool) -> None:
        if not self._waiting or not (patiently or self._is_free()):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            writer = LineWriter(self.path, VERDICTS)
        except RunBusy:
            return  # with the next one
        try:
            while self._waiting:
                key = next(iter(self._waiting))
                writer.append_line(_line(self._waiting[key]))
                del self._waiting[key]
        finally:
            # Not synced: a verdict that is lost with the machine costs a question, no more.
            writer.let_go()
        self._catch_up()

    def _is_free(self) -> bool:
        """Whether nobody writes: to wait for somebody would hold up a whole event loop."""
        return not os.path.lexists(self.path) or self.path.is_symlink() or not has_writer(self.path)

    def _check_writable(self) -> None:
        if os.path.lexists(self.path):
            try:
                LineWriter(self.path, VERDICTS).let_go()
            except RunBusy:
                pass  # it is, by somebody else
            except DamagedJournal:
                raise self._something_else() from None
            return
        folder = self.path.absolute().parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise RunDirectoryError(
                f"cannot write {self.path}: {folder} is no folder that can be written to"
            )

    def _catch_up(self) -> None:
        """Takes note of lines that were added since, by whomever."""
        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            return
        except OSError as problem:
            raise RunDirectoryError(f"cannot read {self.path}: {problem.strerror}") from None
        with file:
            status = os.fstat(file.fileno())
            this = (status.st_dev, status.st_ino)
            file.seek(self._read_to - len(self._last))
            # A removed file's inode is given to the next one, so the last line decides, too.
            if file.read(len(self._last)) != self._last or this != self._file_is:
                self._file_is, self._read_to, self._line, self._last = this, 0, 0, b""
                self._places.clear()
                file.seek(0)
            while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
                if self._line == 0:
                    self._check_header(line)
                else:
                    self._places[self._key(line)] = self._read_to
                self._read_to += len(line)
                self._line += 1
                self._last = line
            if len(line) == _LONGEST_LINE:
                raise self._damaged("it is too long")

    def _check_header(self, line: bytes) -> None:
        try:
            VERDICTS.check_header(self.path, line)
        except DamagedJournal:
            raise self._something_else() from None

    def _something_else(self) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.path} is no cache of verdicts, and is left as it is; name another file"
        )

    def _key(self, line: bytes) -> bytes:
        try:
            return bytes.fromhex(_decoder.decode(line).key)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            raise self._damaged(str(problem)) from None

    def _damaged(self, why: str) -> RunDirectoryError:
        return RunDirectoryError(
            f"{self.path}, line {self._line + 1}: not a readable verdict ({why}); remove the line "
            "or the file: what is not in it is asked again"
        )


_decoder = msgspec.json.Decoder(Kept)


def _line(kept: Kept) -> bytes:
    return msgspec.json.encode(kept) + b"\n"
