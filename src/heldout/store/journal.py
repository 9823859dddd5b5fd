"""results.jsonl: append one line a result, read them back, survive kill -9.

A record is one `write` of a whole line, so a killed process leaves at most one torn line at the
end, which readers ignore and the next writer cuts off. `fsync` runs on a timer beside the writes:
what was reported as done survives the death of the process at once, and that of the machine
within a second. A line that cannot be read anywhere else is damage, and is named.
"""

from __future__ import annotations

import errno
import fcntl
import heapq
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from heldout.errors import (
    DamagedJournal,
    InvalidInput,
    RunBusy,
    RunDirectoryError,
    StorageFull,
    UnknownFormat,
)
from heldout.types import EvalResult, Sample, Score, Timing, Trajectory, Usage, weighted_mean

FORMAT = "heldout.results"
VERSION = 1


class Record(msgspec.Struct, omit_defaults=True):
    """One line: a result, and where its sample stands in the dataset."""

    index: int
    sample: Sample
    trajectory: Trajectory
    repeat: int = 0
    score: Score = msgspec.field(default_factory=Score)
    metadata: dict[str, Any] = {}
    """What the result adds to its sample's metadata, which the sample already holds."""
    error: str | None = None

    @classmethod
    def of(cls, index: int, result: EvalResult) -> Record:
        known = result.sample.metadata
        own = {k: v for k, v in result.metadata.items() if k not in known or known[k] is not v}
        return cls(
            index, result.sample, result.trajectory, result.repeat, result.score, own, result.error
        )

    def result(self) -> EvalResult:
        return EvalResult(
            self.sample.id,
            self.sample,
            self.trajectory,
            self.score,
            self.metadata,
            self.repeat,
            self.error,
        )


# Summaries and columns need no conversation, and what was checked when it was written need not be
# checked again: these decode in a third of the time a Record takes.


class Key(msgspec.Struct, kw_only=True):
    """What orders a record."""

    index: int
    repeat: int = 0
    error: str | None = None


class SampleHead(msgspec.Struct):
    id: str
    metadata: dict[str, Any] = {}


class MetricHead(msgspec.Struct):
    name: str
    value: float
    weight: float = 0.0


class ScoreHead(msgspec.Struct):
    metrics: list[MetricHead] = []


class Shape(Key, kw_only=True):
    """… and what columns it needs."""

    sample: SampleHead
    score: ScoreHead = msgspec.field(default_factory=ScoreHead)
    metadata: dict[str, Any] = {}


class StopHead(msgspec.Struct):
    ended_by: str
    limit: str | None = None
    truncated: bool = False


class TrajectoryHead(msgspec.Struct):
    stop: StopHead
    usage: Usage | None = None
    timing: Timing | None = None


class Row(Shape, kw_only=True):
    """… and all that goes into them."""

    trajectory: TrajectoryHead

    @property
    def reward(self) -> float | None:
        """None where the item errored: it has no score (clause 2)."""
        return weighted_mean(self.score.metrics) if self.error is None else None

    @property
    def weighted(self) -> bool:
        return any(m.weight for m in self.score.metrics)


class Header(msgspec.Struct):
    format: str
    version: int


def plain_value(value: Any) -> Any:
    """What JSON has no word for but means something plain: numpy and torch numbers and arrays."""
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise NotImplementedError(f"a value of type {type(value).__name__}")


UNENCODABLE = (TypeError, NotImplementedError, UnicodeEncodeError, RecursionError, OverflowError)
"""What encoding raises for values that JSON has no words for."""

# Sorted, so that a set is stored in the same order whichever process stores it.
_encoder = msgspec.json.Encoder(enc_hook=plain_value, order="deterministic")
_record_decoder = msgspec.json.Decoder(Record)
_key_decoder = msgspec.json.Decoder(Key)
_header = msgspec.json.encode(Header(FORMAT, VERSION)) + b"\n"

WAITING_ROWS = 16_384
"""Rows held in memory while results are put in order; of more, only the place in the file."""

R = TypeVar("R", bound=msgspec.Struct)


# --- Writing ------------------------------------------------------------------------------------


class JournalWriter:
    """Appends results to one journal. Holds a lock: two writers would make one damaged file."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        """`new`: the journal must not be there yet (FileExistsError)."""
        self.path = path
        self.written = 0
        self._synced = True
        self._fd = _open_locked(path, new=new)
        try:
            self._size = _end_of_last_line(self._fd)
            head = os.pread(self._fd, 4096, 0)
            if self._size:
                _check_header(path, head.partition(b"\n")[0])
            elif not _header.startswith(head):
                raise DamagedJournal(path, 1, "not a heldout journal header")
            os.ftruncate(self._fd, self._size)
            if self._size == 0:
                self._append(_header)
        except BaseException:
            os.close(self._fd)
            raise

    def clear(self) -> None:
        os.ftruncate(self._fd, 0)
        self._size = 0
        self._append(_header)

    def append(self, index: int, result: EvalResult) -> None:
        try:
            line = _encoder.encode(Record.of(index, result)) + b"\n"
        except UNENCODABLE as problem:
            raise InvalidInput(
                f"the result of sample {result.sample_id!r} holds a value that JSON cannot: "
                f"{problem}"
            ) from None
        try:
            # One line that cannot be read would make the whole journal damaged.
            _record_decoder.decode(line)
        except (msgspec.MsgspecError, InvalidInput) as problem:
            raise InvalidInput(
                f"the result of sample {result.sample_id!r} could not be read back: {problem}"
            ) from None
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
                f"; the {self.written} results written before are readable, and a resumed run "
                "keeps them",
            ) from problem
        self._size += len(line)
        self._synced = False

    def sync(self) -> None:
        if self._synced:
            return
        self._synced = True
        try:
            os.fsync(self._fd)
        except OSError as problem:
            raise storage_error(self.path, problem) from problem

    def close(self) -> None:
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)  # which also gives the lock back
            self._fd = -1


def storage_error(path: Path, problem: OSError, consequence: str = "") -> RunDirectoryError:
    """A failed write, in words; a full disk has a class of its own, because room can be made."""
    full = problem.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    kind = StorageFull if full else RunDirectoryError
    return kind(f"cannot write {path}: {problem.strerror}{consequence}")


def _open_locked(path: Path, *, new: bool = False) -> int:
    """A file of our own (no link to somebody else's), which nobody else writes."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | (os.O_EXCL if new else 0), 0o644)
    except OSError as problem:
        if new and problem.errno == errno.EEXIST:
            raise
        if problem.errno == errno.ELOOP:
            raise RunDirectoryError(f"{path} is a symbolic link; it is not followed") from None
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
    raise RunBusy(
        f"{path.parent} is being written by another process; wait for it, or use another "
        "experiment_name"
    )


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
    """Whether a living process has this journal open for writing."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        return not _try_lock(file.fileno(), fcntl.LOCK_SH)


def _end_of_last_line(fd: int) -> int:
    """Size of the file up to and with its last newline."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - 65_536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


# --- Reading ------------------------------------------------------------------------------------


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(line number, byte offset, line) of every whole line after the header."""
    with path.open("rb") as file:
        header = file.readline()
        if not header.endswith(b"\n"):
            return
        _check_header(path, header)
        offset = len(header)
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                return  # torn: its writer was killed, or is in the middle of it
            yield number, offset, line
            offset += len(line)


def records(path: Path, kind: type[R]) -> Iterator[R]:
    """Every record in the order written; `kind` says how much of each to decode."""
    decode = msgspec.json.Decoder(kind).decode
    for number, _, line in lines(path):
        yield _decoded(decode, path, number, line)


def _decoded(decode: Callable[[bytes], R], path: Path, number: int, line: bytes) -> R:
    try:
        return decode(line)
    except (msgspec.MsgspecError, InvalidInput, RecursionError, UnicodeDecodeError) as problem:
        raise DamagedJournal(path, number, f"not a readable result ({problem})") from None


def _check_header(path: Path, line: bytes) -> None:
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError:
        raise DamagedJournal(path, 1, "not a heldout journal header") from None
    _check_version(path, header.format, header.version, FORMAT, VERSION)


def refuse_unknown(path: Path, raw: bytes, expected: str, newest: int) -> None:
    """A newer version may not decode at all: so ask for the version before the rest."""
    try:
        head = msgspec.json.decode(raw, type=Header)
    except (msgspec.MsgspecError, RecursionError):
        return  # then it is no version of anything, and decoding it says so
    _check_version(path, head.format, head.version, expected, newest)


def _check_version(path: Path, found: str, version: int, expected: str, newest: int) -> None:
    if found != expected or not 1 <= version <= newest:
        raise UnknownFormat(
            f"{path} is {found!r} version {version}; this heldout reads {expected!r} up to "
            f"version {newest}. A newer heldout may read it"
        )


class Superseded:
    """Finds items that were run again after an error, as the journal is read."""

    def __init__(self) -> None:
        self._errors: dict[tuple[int, int], int] = {}
        self.stale: dict[tuple[int, int], int] = {}
        """For each such item, how many of its records came too early."""

    def see(self, record: Key) -> None:
        item = (record.index, record.repeat)
        errors = self._errors.get(item)
        if errors is not None:
            self.stale[item] = errors
        if record.error is not None:
            self._errors[item] = (errors or 0) + 1


def superseded(path: Path) -> dict[tuple[int, int], int]:
    found = Superseded()
    for key in records(path, Key):
        found.see(key)
    return found.stale


def in_order(
    path: Path, repeats: int, stale: dict[tuple[int, int], int] | None = None
) -> Iterator[Row]:
    """Every item once, its last record, in dataset order.

    Items finish nearly in order, so only those that overtook a slower one wait in memory.
    `stale` is what `superseded` found, for a caller that has read the journal already.
    """
    stale = superseded(path) if stale is None else dict(stale)
    waiting: list[tuple[int, int, int, int, Row | None]] = []
    expected = (0, 0)
    decode = msgspec.json.Decoder(Row).decode
    with path.open("rb") as file:

        def read_again(offset: int, number: int) -> Row:
            file.seek(offset)
            return _decoded(decode, path, number, file.readline())

        for number, offset, line in lines(path):
            row = _decoded(decode, path, number, line)
            item = (row.index, row.repeat)
            if stale.get(item):
                stale[item] -= 1
                continue
            # Behind one slow item there may be a million: then only where they stand is kept.
            held = row if len(waiting) < WAITING_ROWS else None
            heapq.heappush(waiting, (*item, offset, number, held))
            while waiting and waiting[0][:2] <= expected:
                index, repeat, *place, ready = heapq.heappop(waiting)
                expected = (index, repeat + 1) if repeat + 1 < repeats else (index + 1, 0)
                yield ready or read_again(*place)
        while waiting:
            _, _, *place, ready = heapq.heappop(waiting)
            yield ready or read_again(*place)


def decode_result(path: Path, number: int, line: bytes) -> EvalResult:
    return _decoded(_record_decoder.decode, path, number, line).result()


def decode_key(path: Path, number: int, line: bytes) -> Key:
    return _decoded(_key_decoder.decode, path, number, line)


# --- Repair -------------------------------------------------------------------------------------


def repair(path: Path) -> list[int]:
    """Move lines that cannot be read to `results.damaged`; returns their numbers."""
    damaged: list[int] = []
    kept = path.with_suffix(".repaired")
    lock = _open_locked(path)  # nobody else may write meanwhile
    aside = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    try:
        with (
            kept.open("wb") as good,
            os.fdopen(os.open(path.with_suffix(".damaged"), aside, 0o644), "wb") as bad,
        ):
            good.write(_header)
            with path.open("rb") as file:
                for number, line in enumerate(file, start=1):
                    if number == 1 and _is_header(path, line):
                        continue
                    if not line.endswith(b"\n"):
                        break  # torn: not damage, only unfinished
                    try:
                        _decoded(_record_decoder.decode, path, number, line)
                        good.write(line)
                    except DamagedJournal:
                        damaged.append(number)
                        bad.write(line)
            good.flush()
            os.fsync(good.fileno())
        if damaged:
            kept.replace(path)
    finally:
        os.close(lock)
        kept.unlink(missing_ok=True)
        if not damaged and path.with_suffix(".damaged").stat().st_size == 0:
            path.with_suffix(".damaged").unlink()
    return damaged


def _is_header(path: Path, line: bytes) -> bool:
    try:
        _check_header(path, line)
    except DamagedJournal:
        return False
    return True
