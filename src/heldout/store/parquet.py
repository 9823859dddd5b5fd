"""A small Parquet codec: a streaming writer, and a reader for the files that writer made.

The subset is what flat result tables need: nullable string, double, int and bool columns, one
data page (v1) per column and row group, GZIP. Any Parquet reader can read the files; the reader
here accepts only what the writer emits and refuses the rest with `ParquetError`. Strings that
repeat go through a dictionary whose indices are bit-packed at a width of whole bytes: little is
lost, as gzip squeezes it, and one numpy view decodes them. Files are untrusted: a length is
checked against the bytes that are there, or a fixed limit, before anything is allocated for
it. The writer keeps to the same limits, and the same input gives the same bytes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from heldout.errors import RunDirectoryError
from heldout.store.jsonl import open_to_read

Kind = Literal["string", "double", "int", "bool"]

_MAGIC = b"PAR1"
_LENGTH = struct.Struct("<I").unpack_from  # of a string, before it
_MAX_BYTES = 1 << 30  # in a footer, a column chunk or an uncompressed page
_MAX_ROWS = 1 << 22  # in a row group, as a page of zeros compresses to almost nothing
_MAX_DEPTH = 16  # of nested thrift values, twice what a footer needs

# Numbers from the Parquet and thrift specifications.
_OPTIONAL, _UTF8, _GZIP = 1, 0, 2
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

# The Parquet type of a kind, the Python types of its values, and what a null decodes to.
_KINDS: dict[Kind, tuple[int, tuple[type, ...], Any]] = {
    "string": (6, (str,), np.int32(-1)),
    "double": (5, (float, int, np.floating, np.integer), np.float64("nan")),
    "int": (2, (int, np.integer), np.int64(0)),
    "bool": (0, (bool, np.bool_), np.False_),
}
_Struct = dict[int, Any]  # a thrift struct: field id to int, bytes, list or struct


class ParquetError(ValueError):
    """The file is not one this module wrote, or it was damaged since."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One column of one row group. Where not `valid`, `values` has NaN, 0, False or code -1."""

    values: NDArray[Any]
    valid: NDArray[np.bool_]
    dictionary: list[str] | None = None


# --- Thrift compact protocol --------------------------------------------------------------------


class _Long(int):
    """An int that thrift has as an i64; a plain int is an i32."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _encode(value: object) -> tuple[int, bytes]:
    """The thrift type and the bytes of a value, which has no negative ints."""
    if isinstance(value, int):
        return (_I64 if isinstance(value, _Long) else _I32), _varint(value << 1)
    if isinstance(value, bytes):
        return _BINARY, _varint(len(value)) + value
    if isinstance(value, list):
        items = [_encode(item) for item in value]
        kind, size = items[0][0] if items else _STRUCT, len(items)
        head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _varint(size)
        return _LIST, head + b"".join(raw for _, raw in items)
    assert isinstance(value, dict)
    out, last = bytearray(), 0
    for field in sorted(value):
        kind, raw = _encode(value[field])
        out += bytes([(field - last) << 4 | kind]) + raw
        last = field
    return _STRUCT, bytes(out) + b"\0"


class _Cursor:
    """Reads untrusted bytes, never past their end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.pos = data, 0

    def take(self, size: int) -> bytes:
        start, left = self.pos, len(self.data) - self.pos
        if not 0 <= size <= left:
            raise ParquetError(f"{size} bytes expected where {left} are left")
        self.pos += size
        return self.data[start : self.pos]

    def array(self, dtype: str, count: int) -> NDArray[Any]:
        return np.frombuffer(self.take(count * np.dtype(dtype).itemsize), dtype)

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.pos)

    def varint(self) -> int:
        number = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ParquetError("a number does not end")

    def thrift(self, kind: int, depth: int) -> Any:
        """A value of one of the types that `_encode` writes."""
        if kind in (_I32, _I64):
            number = self.varint()
            return (number >> 1) ^ -(number & 1)
        if kind == _BINARY:
            return self.take(self.varint())
        if kind not in (_LIST, _STRUCT) or depth > _MAX_DEPTH:
            raise ParquetError(f"thrift type {kind} at depth {depth} is not one this module writes")
        if kind == _LIST:
            head = self.take(1)[0]
            size = head >> 4 if head < 0xF0 else self.varint()
            # Every element takes at least a byte, so a false size soon runs out of them.
            return [self.thrift(head & 0x0F, depth + 1) for _ in range(size)]
        return self.struct(depth + 1)

    def struct(self, depth: int = 0) -> _Struct:
        fields: _Struct = {}
        field = 0
        while head := self.take(1)[0]:
            field += head >> 4
            fields[field] = self.thrift(head & 0x0F, depth)
        return fields


def _check(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise ParquetError(f"{what} is {found!r:.200}, expected {expected!r:.200}")


def _int(what: str, found: object, low: int, high: int) -> int:
    if not isinstance(found, int) or not low <= found <= high:
        raise ParquetError(f"{what} is {found!r:.200}, expected {low} to {high}")
    return found


def _structs(what: str, found: object) -> list[_Struct]:
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ParquetError(f"{what} is not a list of structs")
    return found


def _text(what: str, found: object) -> str:
    try:
        if isinstance(found, bytes):
            return found.decode()
    except UnicodeDecodeError:
        pass
    raise ParquetError(f"{what} is {found!r:.200}, expected UTF-8")


def _texts(strings: Sequence[bytes]) -> list[str]:
    try:
        return [raw.decode() for raw in strings]
    except UnicodeDecodeError:
        return [_text("a string", raw) for raw in strings]  # names the one


# --- Pages and column chunks --------------------------------------------------------------------


def _page(header: _Struct, body: bytes) -> tuple[bytes, int]:
    """A page, and the size it would have if it were not compressed."""
    packer = zlib.compressobj(level=1, wbits=31)  # gzip, with a time stamp of zero
    packed = packer.compress(body) + packer.flush()
    _, head = _encode({**header, 2: len(body), 3: len(packed)})
    return head + packed, len(head) + len(body)


def _read_page(cursor: _Cursor) -> tuple[_Struct, _Cursor]:
    header = cursor.struct()
    size = _int("the size of a page", header.pop(2, None), 0, _MAX_BYTES)
    packed = cursor.take(_int("the compressed size of a page", header.pop(3, None), 0, _MAX_BYTES))
    unpacker = zlib.decompressobj(wbits=31)
    try:
        # The byte beyond the stated size lets zlib go on to the checksum, or shows an excess.
        body = unpacker.decompress(packed, size + 1)
    except zlib.error as error:
        raise ParquetError(f"a page does not decompress: {error}") from error
    if len(body) != size or not unpacker.eof:
        raise ParquetError(f"a page does not decompress to the {size} bytes it states")
    return header, _Cursor(body)


def _run(count: int) -> bytes:
    """The head of a bit-packed run of the RLE encoding, whose unit is eight values."""
    return _varint((count + 7) // 8 << 1 | 1)


def _levels(rows: int) -> bytes:
    """What comes before the definition levels of a page, which are a bit each."""
    return (len(_run(rows)) + (rows + 7) // 8).to_bytes(4, "little") + _run(rows)


def _indices(count: int, size: int) -> tuple[bytes, str]:
    """What comes before indices into a dictionary of `size`, and the dtype of the indices."""
    width = 1 if size <= 1 << 8 else 2 if size <= 1 << 16 else 4
    return bytes([width * 8]) + _run(count), f"<u{width}"


def _bits(flags: Sequence[bool]) -> bytes:
    return np.packbits(np.fromiter(flags, np.bool_, len(flags)), bitorder="little").tobytes()


def _read_bits(cursor: _Cursor, count: int) -> NDArray[np.bool_]:
    raw = cursor.array("u1", (count + 7) // 8)
    return np.unpackbits(raw, count=count, bitorder="little").view(np.bool_)


def _join(strings: Iterable[bytes]) -> bytes:
    return b"".join([part for raw in strings for part in (len(raw).to_bytes(4, "little"), raw)])


def _split(data: bytes, most: int) -> list[bytes]:
    strings: list[bytes] = []
    pos, last = 0, len(data) - 4
    for _ in range(most):
        if pos > last:
            break
        start = pos + 4
        pos = start + _LENGTH(data, pos)[0]
        strings.append(data[start:pos])
    _check("the end of the strings", pos, len(data))
    return strings


def _number(strings: Sequence[bytes]) -> tuple[NDArray[Any], list[bytes]]:
    """Strings as codes into the distinct ones, which are in order of first appearance."""
    distinct = dict.fromkeys(strings)
    if len(distinct) == len(strings):
        return np.arange(len(strings), dtype=np.int32), list(distinct)
    codes = {raw: code for code, raw in enumerate(distinct)}
    return np.fromiter(map(codes.__getitem__, strings), np.int32, len(strings)), list(codes)


def _chunk(name: str, kind: Kind, values: Sequence[Any], offset: int) -> tuple[bytes, _Struct]:
    """A column chunk to be written at `offset`, and its ColumnMetaData."""
    number, types, _ = _KINDS[kind]
    rows, present = len(values), [value for value in values if value is not None]
    for seen in set(map(type, present)):
        if not issubclass(seen, types) or (seen is bool and kind != "bool"):
            raise ValueError(f"a {seen.__name__} is not a {kind}")
    pages, size, encoding, offsets = b"", 0, _PLAIN, {9: _Long(offset)}
    if kind == "string":
        strings = [value.encode() for value in present]
        codes, distinct = _number(strings)
        if 0 < len(distinct) <= max(256, rows // 2):
            encoding = _RLE_DICTIONARY
            header = {1: _DICTIONARY_PAGE, 7: {1: len(distinct), 2: _PLAIN}}
            pages, size = _page(header, _join(distinct))
            offsets = {9: _Long(offset + len(pages)), 11: _Long(offset)}
            head, dtype = _indices(len(codes), len(distinct))
            body = head + np.pad(codes, (0, -len(codes) % 8)).astype(dtype).tobytes()
        else:
            body = _join(strings)
    elif kind == "bool":
        body = _bits(present)
    else:
        dtype = "<i8" if kind == "int" else "<f8"
        body = np.fromiter(present, dtype, len(present)).tobytes()
    body = _levels(rows) + _bits([value is not None for value in values]) + body
    header = {1: _DATA_PAGE, 5: {1: rows, 2: encoding, 3: _RLE, 4: _RLE}}
    page, page_size = _page(header, body)
    pages, size = pages + page, size + page_size
    if rows > _MAX_ROWS or max(size, len(pages)) > _MAX_BYTES:
        raise ValueError(f"{rows} rows of {size} bytes are too much for one row group")
    encodings, nulls = sorted({_PLAIN, _RLE, encoding}), {3: _Long(rows - len(present))}
    sizes = {5: _Long(rows), 6: _Long(size), 7: _Long(len(pages)), **offsets, 12: nulls}
    return pages, {1: number, 2: encodings, 3: [name.encode()], 4: _GZIP, **sizes}


def _read_chunk(pages: _Cursor, kind: Kind, rows: int, has_dictionary: bool) -> Column:
    distinct: list[bytes] = []
    if has_dictionary:
        header, page = _read_page(pages)
        distinct = _split(page.rest(), rows)
        expected = {1: _DICTIONARY_PAGE, 7: {1: len(distinct), 2: _PLAIN}}
        _check("the header of the dictionary page", header, expected)
    header, page = _read_page(pages)
    encoding = _RLE_DICTIONARY if has_dictionary else _PLAIN
    expected = {1: _DATA_PAGE, 5: {1: rows, 2: encoding, 3: _RLE, 4: _RLE}}
    _check("the header of the data page", header, expected)
    _check("the head of the definition levels", page.take(len(_levels(rows))), _levels(rows))
    valid = _read_bits(page, rows)
    count = int(np.count_nonzero(valid))
    packed: NDArray[Any]
    if has_dictionary:
        head, dtype = _indices(count, len(distinct))
        _check("the head of the dictionary indices", page.take(len(head)), head)
        packed = page.array(dtype, (count + 7) // 8 * 8)[:count]
        _int("a dictionary index", int(packed.max(initial=0)), 0, len(distinct) - 1)
    elif kind == "string":
        packed, distinct = _number(_split(page.rest(), count))
        _check("the number of strings", len(packed), count)
    elif kind == "bool":
        packed = _read_bits(page, count)
    else:
        packed = page.array("<i8" if kind == "int" else "<f8", count)
    _check("what follows the values", page.rest() + pages.rest(), b"")
    values = np.full(rows, _KINDS[kind][2])
    values[valid] = packed
    return Column(values, valid, _texts(distinct) if kind == "string" else None)


# --- Files --------------------------------------------------------------------------------------


def _element(name: str, kind: Kind) -> _Struct:
    """The SchemaElement of a column."""
    text = {6: _UTF8, 10: {1: {}}} if kind == "string" else {}
    return {1: _KINDS[kind][0], 3: _OPTIONAL, 4: name.encode(), **text}


def _read_element(element: _Struct) -> tuple[str, Kind]:
    name = _text("a column name", element.get(4))
    for kind in _KINDS:
        if element == _element(name, kind):
            return name, kind
    raise ParquetError(f"column {name!r:.200} has an unknown type: {element!r:.200}")


class ParquetWriter:
    """Writes row groups to a new file, which is a Parquet file once `close` was called."""

    def __init__(
        self,
        file: BinaryIO,
        schema: Mapping[str, Kind],
        *,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        if not schema:
            raise ValueError("a Parquet file needs at least one column")
        if unknown := [name for name, kind in schema.items() if kind not in _KINDS]:
            raise ValueError(f"columns of an unknown kind: {unknown}")
        root = {4: b"schema", 5: len(schema)}
        elements = [_element(name, kind) for name, kind in schema.items()]
        pairs = [{1: key.encode(), 2: text.encode()} for key, text in (metadata or {}).items()]
        self._footer: _Struct = {1: 2, 2: [root, *elements], 4: [], 6: b"heldout version 1"}
        self._footer |= {5: pairs} if pairs else {}
        self._file, self._schema = file, dict(schema)
        self._rows, self._end, self._closed = 0, len(_MAGIC), False
        file.write(_MAGIC)

    def write_group(self, columns: Mapping[str, Sequence[object | None]]) -> None:
        """Write one row group, or nothing if it raises ValueError. No rows make no group."""
        if self._closed:
            raise ValueError("the Parquet writer is closed")
        if odd := sorted(columns.keys() ^ self._schema.keys()):
            raise ValueError(f"columns missing, or not in the schema: {odd}")
        rows = len(columns[next(iter(self._schema))])
        chunks: list[bytes] = []
        metas: list[_Struct] = []
        end = self._end
        for name, kind in self._schema.items():
            try:
                if len(columns[name]) != rows:
                    raise ValueError(f"{len(columns[name])} rows, the first column has {rows}")
                chunk, meta = _chunk(name, kind, columns[name], end)
            except (ValueError, OverflowError) as error:
                raise ValueError(f"column {name!r}: {error}") from error
            chunks.append(chunk)
            metas.append(meta)
            end += len(chunk)
        if rows:
            self._file.writelines(chunks)
            sizes = {2: _Long(sum(meta[6] for meta in metas)), 6: _Long(end - self._end)}
            members = [{2: _Long(0), 3: meta} for meta in metas]
            self._footer[4].append({1: members, 3: _Long(rows), 5: _Long(self._end), **sizes})
            self._rows, self._end = self._rows + rows, end

    def close(self) -> None:
        """Write the footer. The file underneath stays open."""
        if not self._closed:
            self._closed = True
            _, footer = _encode({**self._footer, 3: _Long(self._rows)})
            self._file.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Whatever is wrong with the file, its name included, is one kind of error."""
    try:
        with open_to_read(path) as file:
            yield file
    except (OSError, RunDirectoryError) as problem:
        raise ParquetError(str(problem)) from None


class ParquetFile:
    """The schema, metadata and number of rows of a file, and its row groups on demand."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            footer = self._read_footer()
            elements = _structs("the schema", footer.get(2))[1:]
            self.schema = dict(map(_read_element, elements))
            pairs = _structs("the metadata", footer.get(5, []))
            self.metadata = {_text("a key", p.get(1)): _text("a value", p.get(2)) for p in pairs}
            groups = _structs("the row groups", footer.get(4))
            self._groups = [self._read_group(group) for group in groups]
            self.num_rows = sum(rows for rows, _ in self._groups)
            _check("the number of rows", footer.get(3), self.num_rows)
        except ParquetError as error:
            raise ParquetError(f"{path}: {error}") from error

    def _read_footer(self) -> _Struct:
        with _open(self._path) as file:
            head, end = file.read(4), file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 8))
            tail = file.read(8)
            _check("the beginning and end of the file", (head, tail[4:]), (_MAGIC, _MAGIC))
            size, most = int.from_bytes(tail[:4], "little"), min(end - 12, _MAX_BYTES)
            self._data_end = file.seek(end - 8 - _int("the size of the footer", size, 0, most))
            return _Cursor(file.read(size)).struct()

    def _read_group(self, group: _Struct) -> tuple[int, dict[str, tuple[int, int, bool]]]:
        """The number of rows; by column its start and size, and whether it has a dictionary."""
        rows = _int("the number of rows in a group", group.get(3), 1, _MAX_ROWS)
        members = _structs("the columns of a group", group.get(1))
        metas = _structs("the column metadata", [member.get(3) for member in members])
        paths = [[name.encode()] for name in self.schema]
        _check("the list of columns of a group", [meta.get(3) for meta in metas], paths)
        chunks = {}
        for (name, kind), meta in zip(self.schema.items(), metas, strict=True):
            _check(f"the type of column {name!r}", meta.get(1), _KINDS[kind][0])
            _check(f"the codec of column {name!r}", meta.get(4), _GZIP)
            has_dictionary = kind == "string" and 11 in meta
            first = meta.get(11 if has_dictionary else 9)
            start = _int(f"the offset of column {name!r}", first, 4, self._data_end)
            most = min(self._data_end - start, _MAX_BYTES)
            size = _int(f"the size of column {name!r}", meta.get(7), 0, most)
            chunks[name] = start, size, has_dictionary
        return rows, chunks

    def groups(self, columns: Sequence[str]) -> Iterator[dict[str, Column]]:
        """Decode these columns, one row group at a time."""
        if unknown := sorted(set(columns) - self.schema.keys()):
            raise ParquetError(f"{self._path}: no such columns: {unknown}")
        with _open(self._path) as file:
            for rows, chunks in self._groups:
                group = {}
                for name in columns:
                    start, size, has_dictionary = chunks[name]
                    file.seek(start)
                    pages = _Cursor(file.read(size))
                    try:
                        group[name] = _read_chunk(pages, self.schema[name], rows, has_dictionary)
                    except ParquetError as error:
                        raise ParquetError(f"{self._path}: column {name!r}: {error}") from error
                yield group
