"""Datasets into samples: JSONL, CSV, Parquet, and Hugging Face datasets.

Every loader turns rows into `Sample`s the same way. `id` names the column that is the id (without
one, samples are numbered), `ground_truth` the column with the truth, `input` and `metadata` the
columns that go there; what is not named goes to the input. A row that is already a sample
({"id", "input", …}) is taken as it is. A bad row is an error with its file and line.

    load_jsonl("math.jsonl", ground_truth="answer", metadata=["difficulty"])
"""

from __future__ import annotations

import csv
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import InvalidInput
from heldout.types import Sample

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""(where, row): where is a file and line, for messages."""


def load_jsonl(path: str | Path, **columns: Any) -> list[Sample]:
    """One JSON object a line; `.gz` and `.zst` are read as they are."""
    return list(iter_jsonl(path, **columns))


def iter_jsonl(path: str | Path, **columns: Any) -> Iterator[Sample]:
    """The same, a sample at a time: for files that need not fit in memory."""
    return _samples(_jsonl_rows(Path(path)), **columns)


def load_csv(path: str | Path, **columns: Any) -> list[Sample]:
    """A CSV file with a header line. Values are texts."""
    return list(_samples(_csv_rows(Path(path)), **columns))


def load_parquet(path: str | Path, **columns: Any) -> list[Sample]:
    return list(_samples(_parquet_rows(Path(path)), **columns))


def load_hf(dataset: Any, *, split: str | None = None, **columns: Any) -> list[Sample]:
    """A Hugging Face `Dataset` (or any iterable of dicts), or a folder that `save_to_disk` made.

    A dict of splits needs `split`, unless it holds only one.
    """
    name = str(dataset) if isinstance(dataset, str | Path) else type(dataset).__name__
    if isinstance(dataset, str | Path):
        folder = Path(dataset)
        if not folder.exists():
            raise InvalidInput(f"there is no dataset folder at {folder}")
        try:
            import datasets
        except ImportError:
            raise InvalidInput(
                "a dataset folder needs the package datasets: pip install 'heldout[datasets]'"
            ) from None
        try:
            dataset = datasets.load_from_disk(str(folder))
        except FileNotFoundError as problem:
            raise InvalidInput(
                f"{folder} is not a folder that save_to_disk made: {problem}"
            ) from None
    if isinstance(dataset, Mapping):
        if split is None and len(dataset) == 1:
            split = next(iter(dataset))
        if split not in dataset:
            raise InvalidInput(f"{name} has the splits {sorted(dataset)}; name one: split=…")
        dataset = dataset[split]
    rows = ((f"{name}, row {i}", row) for i, row in enumerate(dataset))
    return list(_samples(rows, **columns))


# --- Rows to samples ----------------------------------------------------------------------------


def _samples(
    rows: Rows,
    *,
    id: str | None = None,
    ground_truth: str | None = None,
    input: Sequence[str] | None = None,
    metadata: Sequence[str] = (),
) -> Iterator[Sample]:
    for name, columns in (("input", input), ("metadata", metadata)):
        if isinstance(columns, str):
            raise InvalidInput(f"{name} is a list of columns, got {columns!r}; write [{columns!r}]")
    named = any((id, ground_truth, input, metadata))
    for number, (where, row) in enumerate(rows):
        try:
            if not isinstance(row, Mapping):
                raise InvalidInput(f"a row is an object with columns, got {type(row).__name__}")
            if not named and isinstance(row.get("input"), dict):
                yield _ready_made(row, number)
            else:
                yield _from_columns(row, number, id, ground_truth, input, metadata)
        except InvalidInput as problem:
            raise InvalidInput(f"{where}: {problem}") from None


def _ready_made(row: Mapping[str, Any], number: int) -> Sample:
    unknown = set(row) - {"id", "input", "ground_truth", "metadata"}
    if unknown:
        raise InvalidInput(
            f"a sample has id, input, ground_truth and metadata; this one also has "
            f"{sorted(unknown)}. Name the columns, or move them into input or metadata"
        )
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise InvalidInput(f"metadata is an object, got {type(metadata).__name__}")
    return Sample(_id(row.get("id", number)), dict(row["input"]), row.get("ground_truth"), metadata)


def _from_columns(
    row: Mapping[str, Any],
    number: int,
    id: str | None,
    ground_truth: str | None,
    input: Sequence[str] | None,
    metadata: Sequence[str],
) -> Sample:
    if id is None and "id" in row:
        id = "id"
    if ground_truth is None and "ground_truth" in row:
        ground_truth = "ground_truth"
    special = {id, ground_truth, *metadata}
    taken = [key for key in row if key not in special] if input is None else input
    return Sample(
        _id(number if id is None else _column(row, id)),
        {key: _column(row, key) for key in taken},
        None if ground_truth is None else _column(row, ground_truth),
        {key: _column(row, key) for key in metadata},
    )


def _column(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise InvalidInput(f"there is no column {name!r}; there are {sorted(map(str, row))}")
    return row[name]


def _id(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


# --- Files to rows ------------------------------------------------------------------------------


def _jsonl_rows(path: Path) -> Rows:
    decode = msgspec.json.Decoder().decode
    with closing(_open(path)) as file:
        number = 0
        try:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    row = decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
                    raise InvalidInput(f"{path}, line {number}: not JSON: {problem}") from None
                yield f"{path}, line {number}", row
        except (EOFError, zlib.error, OSError) as problem:
            raise InvalidInput(f"{path}: cannot be read after line {number}: {problem}") from None


def _open(path: Path) -> io.BufferedIOBase | io.BufferedReader:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    if path.suffix == ".gz":
        import gzip

        return gzip.open(path, "rb")
    if path.suffix in (".zst", ".zstd"):
        try:
            import zstandard
        except ImportError:
            raise InvalidInput(
                f"{path} needs the package zstandard: pip install 'heldout[zstd]'"
            ) from None
        return io.BufferedReader(_ZstdErrors(zstandard.open(path, "rb"), zstandard.ZstdError))
    return path.open("rb")


class _ZstdErrors(io.RawIOBase):
    """A zstd stream whose damage is an OSError, as it is for every other file."""

    def __init__(self, stream: Any, error: type[Exception]) -> None:
        self._stream, self._error = stream, error

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            chunk = self._stream.read(len(buffer))
        except self._error as problem:
            raise OSError(str(problem)) from None
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _csv_rows(path: Path) -> Rows:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                where = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    expected = len(reader.fieldnames or ())
                    raise InvalidInput(f"{where}: not {expected} fields, as the header has")
                yield where, row
        except (csv.Error, UnicodeDecodeError) as problem:
            raise InvalidInput(f"{path}, line {reader.line_num}: {problem}") from None


def _parquet_rows(path: Path) -> Rows:
    if not path.is_file():
        raise InvalidInput(f"there is no file {path}")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidInput(
            f"{path} needs the package pyarrow: pip install 'heldout[parquet]'"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    yield f"{path}, row {number}", row
                    number += 1
    except pyarrow.ArrowException as problem:
        raise InvalidInput(f"{path} is not a readable Parquet file: {problem}") from None
