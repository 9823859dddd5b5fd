"""Logs of other packages as bytes: archives and JSON of any origin, read within bounds.

A log may come from anybody. An archive is refused where it declares more than it may hold, an entry
is never decompressed beyond its bound, and its content has to have the size and the checksum that
the archive says. Nothing is extracted to disk.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from heldout._core.extras import missing_extra
from heldout.errors import UNREADABLE, InvalidInput
from heldout.store.jsonl import decode, open_to_read

T = TypeVar("T")

MAX_ENTRY_BYTES = 2**28
"""Bytes of one entry, decompressed: as many as a result may have in a journal."""
MAX_ARCHIVE_BYTES = 2**38
"""Bytes of all entries together."""
MAX_DIRECTORY_BYTES = 2**27
"""Bytes of an archive's list of entries: of a million with ordinary names."""
MAX_JSON_BYTES = 2**29
"""Bytes of a log that is one JSON text, which has to be held in memory."""
ZSTANDARD = 93
"""The compression of newer logs, which zipfile knows from Python 3.14 on."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")


def decode_json(text: bytes, kind: type[T], where: str) -> T:
    """Decode JSON as a type; NaN and infinities, which are no JSON, become the texts "NaN" etc.

    Raises:
        InvalidInput: It is no JSON, or of another shape; the message begins with `where`.
    """
    try:
        return decode(text, kind)
    except InvalidInput as problem:
        if b"NaN" not in text and b"Infinity" not in text:
            raise InvalidInput(f"{where}: {problem}") from None
    try:
        value = json.loads(text, parse_constant=str)
        return msgspec.convert(value, kind)
    except (ValueError, *UNREADABLE) as problem:
        raise InvalidInput(f"{where}: {problem}") from None


def read_bounded(path: Path, most: int = MAX_JSON_BYTES, hint: str | None = None) -> bytes:
    """Read an ordinary file whole, up to a size."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise InvalidInput(
                f"{path} has {size / 1e6:,.0f} MB; a log that is one text is read up to "
                f"{most / 1e6:,.0f} MB",
                hint=hint,
            )
        return file.read(most)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open_to_read(path) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


class Archive:
    """A zip file of JSON texts; of two entries of one name, the last counts."""

    def __init__(self, path: Path) -> None:
        """Open it; InvalidInput where it is none, or declares too much."""
        self.path = path
        self.replaced: set[str] = set()
        """Names that several entries with different content share."""
        self._file = open_to_read(path)
        try:
            self._refuse_large(measure_directory(self._file), MAX_DIRECTORY_BYTES, "a directory of")
            self._zip = zipfile.ZipFile(self._file)
            self._entries: dict[str, zipfile.ZipInfo] = {}
            for entry in self._zip.infolist():
                before = self._entries.get(entry.filename, entry)
                if (before.CRC, before.file_size) != (entry.CRC, entry.file_size):
                    self.replaced.add(entry.filename)
                self._entries[entry.filename] = entry
            total = sum(entry.file_size for entry in self._entries.values())
            self._refuse_large(total, MAX_ARCHIVE_BYTES, "entries that are decompressed")
        except (zipfile.BadZipFile, OSError, NotImplementedError, struct.error) as problem:
            self.close()
            raise InvalidInput(f"{path} is not a readable zip archive: {problem}") from None
        except BaseException:
            self.close()
            raise

    def _refuse_large(self, size: int, most: int, what: str) -> None:
        if size > most:
            raise InvalidInput(
                f"{self.path} has {what} {size / 1e6:,.0f} MB; {most / 1e6:,.0f} MB are read at "
                "most"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def read(self, name: str) -> bytes:
        """Decompress an entry.

        Raises:
            InvalidInput: It is too large, encrypted, damaged, or compressed in an unknown way.
        """
        entry = self._entries[name]
        where = f"{self.path}, entry {name!r}"
        if entry.file_size > MAX_ENTRY_BYTES:
            raise InvalidInput(
                f"{where}: {entry.file_size / 1e6:,.0f} MB; {MAX_ENTRY_BYTES / 1e6:.0f} MB are "
                "read at most"
            )
        try:
            if entry.compress_type == ZSTANDARD:
                return self._read_zstandard(entry)
            with self._zip.open(entry) as file:
                content = file.read(entry.file_size)
                # zipfile checks the checksum at the end alone, which reading on reaches.
                if file.read(1) or len(content) != entry.file_size:
                    raise zipfile.BadZipFile("it has another size than the archive says")
                return content
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as problem:
            # RuntimeError: an encrypted entry; NotImplementedError is one.
            raise InvalidInput(f"{where} cannot be read: {problem}") from None

    def _read_zstandard(self, entry: zipfile.ZipInfo) -> bytes:
        try:
            import zstandard
        except ImportError:
            raise missing_extra(
                f"{self.path} is compressed with zstandard, which needs that package", "zstd"
            ) from None
        self._file.seek(entry.header_offset)
        header = self._file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            raise zipfile.BadZipFile("the file ends before it")
        magic, name_size, extra_size = _LOCAL_HEADER.unpack(header)
        if magic != b"PK\x03\x04" or entry.flag_bits & 1:
            raise zipfile.BadZipFile("it has no header, or is encrypted")
        self._file.seek(name_size + extra_size, os.SEEK_CUR)
        compressed = self._file.read(min(entry.compress_size, 2 * MAX_ENTRY_BYTES))
        # The window is memory too: without a bound a frame may ask for any.
        decompressor = zstandard.ZstdDecompressor(max_window_size=2**27)
        reader = decompressor.stream_reader(io.BytesIO(compressed), read_across_frames=True)
        try:
            content = reader.read(entry.file_size + 1)
        except (zstandard.ZstdError, MemoryError) as problem:
            raise zipfile.BadZipFile(str(problem)) from None
        if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
            raise zipfile.BadZipFile("its content is not what the archive says")
        return bytes(content)


def measure_directory(file: Any) -> int:
    """Return the bytes of a zip file's list of entries, before anything is made of it.

    `zipfile` makes an object of every entry: a few gigabytes of entries would be all memory.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 65_557))  # the longest end of a zip file: its record, and a comment
    tail = file.read(65_557)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0:
        raise zipfile.BadZipFile("File is not a zip file")
    (directory,) = struct.unpack_from("<12xI", tail, end)
    locator = tail[max(0, end - 20) : end]
    if locator[:4] == b"PK\x06\x07":  # more than 65,535 entries, or 4 GB: zip64
        file.seek(struct.unpack_from("<8xQ", locator)[0])
        record = file.read(56)
        if record[:4] == b"PK\x06\x06":
            (directory,) = struct.unpack_from("<40xQ", record)
    return int(directory)


class JsonLines:
    """A file that has a JSON text in each line.

    A process that is killed while it writes, or a copy that is broken off, leaves half a line at
    the end. What is lost with it is unknown, so such a log is never whole: the lines before it are
    read, and `cut` says what is missing. Any other line that cannot be read refuses the log.

    Attributes:
        path: The file.
        cut: Why the file is not whole; None where its last line is.
    """

    def __init__(self, path: Path) -> None:
        """Look at the end of a file; InvalidInput where its last line is too long."""
        self.path = path
        self.cut: str | None = None
        with open_to_read(path) as file:
            self._end = file.seek(0, os.SEEK_END)
            last = _read_last_line(file, path)
        if not last.strip() or last.endswith(b"\n"):
            return
        try:
            # JSON without a line break after it: a file that was edited by hand ends so.
            decode_json(last, object, str(path))
        except InvalidInput:
            self._end -= len(last)
            self.cut = f"{path.name} is cut off: its last line is half a line, which is left out"

    def read(self, kind: type[T]) -> Iterator[tuple[str, int, T]]:
        """Read where it is, byte offset and value of every whole line; blank ones are left out.

        Raises:
            InvalidInput: A line is too long, no JSON, or of another shape.
        """
        with open_to_read(self.path) as file:
            offset = number = 0
            # A file that has grown since is read up to where it was looked at.
            while offset < self._end and (line := file.readline(MAX_ENTRY_BYTES + 1)):
                number += 1
                where = f"{self.path}, line {number}"
                if len(line) > MAX_ENTRY_BYTES:
                    raise InvalidInput(f"{where}: longer than {MAX_ENTRY_BYTES / 1e6:.0f} MB")
                if line.strip():
                    yield where, offset, decode_json(line, kind, where)
                offset += len(line)

    def refuse_empty(self) -> InvalidInput:
        """Return the error of a file without a whole line."""
        why = f": {self.cut}" if self.cut else ""
        return InvalidInput(f"{self.path} has no samples to import{why}")


def _read_last_line(file: BufferedReader, path: Path) -> bytes:
    """Read the last line of a file from its end, with its line break where it has one."""
    start = file.seek(0, os.SEEK_END)
    last = b""
    while start > 0:
        size = min(start, max(2**16, len(last)))  # doubling: a long line is not read many times
        start = file.seek(start - size)
        last = file.read(size) + last
        line_break = last.rfind(b"\n", 0, len(last) - 1)
        if line_break >= 0:
            return last[line_break + 1 :]
        if len(last) > MAX_ENTRY_BYTES:
            raise InvalidInput(
                f"{path}: its last line is longer than {MAX_ENTRY_BYTES / 1e6:.0f} MB"
            )
    return last
