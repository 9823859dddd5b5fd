"""Datasets into rows or samples: JSONL, CSV, Parquet, and Hugging Face datasets.

Every loader gives the rows as dicts where no column is named, and `Sample`s where some are. `id`
names the column that is the id (without one, samples are numbered), `ground_truth` the column with
the target, `input` and `metadata` the columns that go there; what is not named goes to the input. A
row without a column of `metadata` has none of it; one that no row has is refused. A bad row is an
error with its file and line.

    load_jsonl("math.jsonl", ground_truth="answer", metadata=["difficulty"])
    [Sample(str(row["n"]), {"prompt": row["problem"]}) for row in load_jsonl("math.jsonl")]
"""

from __future__ import annotations

import codecs
import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import msgspec

from heldout._extras import missing_extra
from heldout.errors import UNREADABLE, DuplicateSampleId, InvalidInput
from heldout.types import Sample

Rows = Iterator[tuple[str, Mapping[str, Any]]]
"""(where, row): where is a file and line, for messages."""
Row = dict[str, Any]


class Columns(TypedDict, total=False):
    """Which column is what."""

    id: str | None
    ground_truth: str | None
    input: Sequence[str] | None
    metadata: Sequence[str]


@overload
def load_jsonl(path: str | Path) -> list[Row]: ...
@overload
def load_jsonl(path: str | Path, **columns: Unpack[Columns]) -> list[Sample]: ...
def load_jsonl(path: str | Path, **columns: Unpack[Columns]) -> list[Row] | list[Sample]:
    """Load one JSON object per line; `.gz` and `.zst` are read as they are.

    Args:
        path: The file.
        **columns: Which column is what; see above.

    Returns:
        The samples; the rows, where no column is named.

    Raises:
        InvalidInput: The file or a row of it cannot be used; the message says where.
    """
    return _convert(jsonl_rows(path), columns)


@overload
def load_csv(path: str | Path) -> list[Row]: ...
@overload
def load_csv(path: str | Path, **columns: Unpack[Columns]) -> list[Sample]: ...
def load_csv(path: str | Path, **columns: Unpack[Columns]) -> list[Row] | list[Sample]:
    """Load a CSV file in UTF-8 with a header line, `.gz` and `.zst` too. Values are texts.

    Args:
        path: The file.
        **columns: Which column is what; see above.

    Returns:
        The samples; the rows, where no column is named.

    Raises:
        InvalidInput: The file or a row of it cannot be used; the message says where.
    """
    return _convert(_csv_rows(_check_file(path)), columns)


@overload
def load_parquet(path: str | Path) -> list[Row]: ...
@overload
def load_parquet(path: str | Path, **columns: Unpack[Columns]) -> list[Sample]: ...
def load_parquet(path: str | Path, **columns: Unpack[Columns]) -> list[Row] | list[Sample]:
    """Load a Parquet file.

    Args:
        path: The file.
        **columns: Which column is what; see above.

    Returns:
        The samples; the rows, where no column is named.

    Raises:
        InvalidInput: The file or a row of it cannot be used; the message says where.
    """
    return _convert(_parquet_rows(_check_file(path)), columns)


@overload
def load_hf(dataset: Any, *, split: str | None = None) -> list[Row]: ...
@overload
def load_hf(
    dataset: Any, *, split: str | None = None, **columns: Unpack[Columns]
) -> list[Sample]: ...
def load_hf(
    dataset: Any, *, split: str | None = None, **columns: Unpack[Columns]
) -> list[Row] | list[Sample]:
    """Load a Hugging Face dataset.

    Args:
        dataset: A `Dataset`, any iterable of dicts, a dict of splits, or a folder that
            `save_to_disk` made.
        split: Which split, where there are several.
        **columns: Which column is what; see above.

    Returns:
        The samples; the rows, where no column is named.

    Raises:
        InvalidInput: There is no such split or folder, or a row cannot be used.
    """
    name = type(dataset).__name__
    if isinstance(dataset, str | Path):
        name = str(dataset)
        dataset = _saved_dataset(Path(dataset))
    if isinstance(dataset, Mapping):
        if split is None and len(dataset) == 1:
            split = next(iter(dataset))
        if split not in dataset:
            missing = "" if split is None else f", not {split!r}"
            raise InvalidInput(
                f"{name} has the splits {sorted(dataset)}{missing}; name one: split=…"
            )
        name, dataset = f"{name}[{split!r}]", dataset[split]
    elif split is not None:
        raise InvalidInput(f"{name} has no splits, so there is no {split!r}; leave split out")
    rows = ((f"{name}, row {i}", row) for i, row in enumerate(dataset))
    return _convert(rows, columns)


def _saved_dataset(folder: Path) -> Any:
    if not folder.exists():
        raise InvalidInput(
            f"there is no dataset folder at {folder}; one from the hub is loaded first: "
            "load_hf(datasets.load_dataset(…))"
        )
    try:
        import datasets

        return datasets.load_from_disk(str(folder))
    except ImportError:
        raise missing_extra("a dataset folder needs the package datasets", "datasets") from None
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{folder} is not a folder that save_to_disk made: {problem}") from None


# --- Rows to samples ----------------------------------------------------------------------------


def _convert(rows: Rows, columns: Columns) -> list[Any]:
    """Make rows into samples where columns are named."""
    for name in ("input", "metadata"):
        if isinstance(column := columns.get(name), str):
            raise InvalidInput(
                f"{name} is a list of columns, got {column!r}", hint=f"write [{column!r}]"
            )
    converted: list[Any] = []
    unseen = dict.fromkeys(columns.get("metadata", ()))
    seen: dict[str, None] = {}
    for number, (where, row) in enumerate(rows):
        try:
            if not isinstance(row, Mapping):
                raise InvalidInput(f"a row is an object with columns, got {type(row).__name__}")
            converted.append(_make_sample(row, number, **columns) if columns else dict(row))
        except InvalidInput as problem:
            raise InvalidInput(f"{where}: {problem}") from None
        if unseen:
            seen |= dict.fromkeys(map(str, row))
            unseen = {key: None for key in unseen if key not in row}
    if unseen and converted:
        names = ", ".join(map(repr, unseen))
        raise InvalidInput(f"metadata: no row has {names}; there are {sorted(seen)}")
    return converted


def _make_sample(
    row: Mapping[str, Any],
    number: int,
    *,
    id: str | None = None,
    ground_truth: str | None = None,
    input: Sequence[str] | None = None,
    metadata: Sequence[str] = (),
) -> Sample:
    if id is None and "id" in row:
        id = "id"
    if ground_truth is None and "ground_truth" in row:
        ground_truth = "ground_truth"
    special = {id, ground_truth, *metadata}
    chosen = [key for key in row if key not in special] if input is None else input
    return Sample(
        _id(number if id is None else _column(row, id)),
        {key: _column(row, key) for key in chosen},
        None if ground_truth is None else _column(row, ground_truth),
        {key: row[key] for key in metadata if key in row},
    )


def _column(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise InvalidInput(f"there is no column {name!r}; there are {sorted(map(str, row))}")
    return row[name]


def _id(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Mapping | Sequence):
        raise InvalidInput(f"an id is a text or a number, got {value!r}")
    return str(value)


# --- Files to rows ------------------------------------------------------------------------------


def _check_file(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder, not a file")
    if not path.exists():
        raise InvalidInput(f"there is no file {path}")
    return path


def _lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except (EOFError, zlib.error, OSError) as problem:  # cut short, or damaged
        raise InvalidInput(f"{path}: cannot be read after line {number}: {problem}") from None


def _open(path: Path) -> AbstractContextManager[Iterable[bytes]]:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix in (".zst", ".zstd"):
        return io.BytesIO(_decompress_zstd(path))
    return path.open("rb")


def _decompress_zstd(path: Path) -> bytes:
    """Decompress a zstd file of any number of frames.

    The package's own reader takes a file that was cut short for one that ended.
    """
    try:
        import zstandard
    except ImportError:
        raise missing_extra(f"{path} needs the package zstandard", "zstd") from None
    parts: list[bytes] = []
    content = path.read_bytes()
    while content:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            parts.append(frame.decompress(content))
        except zstandard.ZstdError as problem:
            raise OSError(str(problem)) from None
        if not frame.eof:
            raise EOFError("the compressed file ends in the middle")
        content = frame.unused_data
    return b"".join(parts)


def jsonl_rows(path: str | Path) -> Rows:
    """Read the values of a JSONL file, each with "FILE, line 3"; blank lines are left out."""
    decode = msgspec.json.Decoder().decode
    for number, line in enumerate(_lines(_check_file(path)), start=1):
        if line.strip():
            try:
                row = decode(line)
            except UNREADABLE as problem:
                raise InvalidInput(f"{path}, line {number}: not JSON: {problem}") from None
            yield f"{path}, line {number}", row


def _csv_rows(path: Path) -> Rows:
    csv.field_size_limit(2**31 - 1)  # by default 128 KiB, too little for a long prompt
    reader = csv.reader(map(bytes.decode, _lines(path)), strict=True)
    header: list[str] = []
    # The line a record begins on: with line breaks in quotes it may end much later.
    where = f"{path}, line 1"
    try:
        for row in reader:
            if row and not header:
                header = row
                if twice := {name for name in header if header.count(name) > 1}:
                    raise InvalidInput(f"{where}: the header has {sorted(twice)} more than once")
            elif row:
                if len(row) != len(header):
                    raise InvalidInput(
                        f"{where}: {len(row)} fields, where the header has {len(header)}: {header}"
                    )
                yield where, dict(zip(header, row, strict=True))
            where = f"{path}, line {reader.line_num + 1}"
    except (csv.Error, UnicodeDecodeError) as problem:
        raise InvalidInput(f"{where}: {problem}") from None


def _parquet_rows(path: Path) -> Rows:
    import duckdb

    from heldout.store.parquet import quote_path

    # Only what is in the file: a folder called `split=test` is no column.
    source = f"read_parquet({quote_path(path)}, hive_partitioning = false)"
    try:
        with duckdb.connect() as connection:
            result = connection.execute(f"FROM {source}")
            names = [column[0] for column in result.description]
            for number, row in enumerate(iter(result.fetchone, None)):
                yield f"{path}, row {number}", dict(zip(names, row, strict=True))
    except duckdb.Error as problem:
        raise InvalidInput(f"{path} is not a readable Parquet file: {problem}") from None


# --- Samples ------------------------------------------------------------------------------------


def distinct(samples: Iterable[Sample], *, wanted: str) -> Iterator[Sample]:
    """Pass samples on one by one; refuse two of one id, and (`wanted`) what is no sample."""
    ids: set[str] = set()
    for position, sample in enumerate(samples):
        if not isinstance(sample, Sample):
            raise InvalidInput(f"{wanted}, got {sample!r:.200}")
        if sample.id in ids:
            raise DuplicateSampleId(sample.id, position)
        ids.add(sample.id)
        yield sample


def ordered_by_id(samples: Sequence[Sample], key: object) -> list[Sample]:
    """Shuffle samples by nothing but a key and their ids: in every process the same.

    Without some of the samples the others are in the same order as before.
    """

    def sort_key(sample: Sample) -> bytes:
        text = f"{key}:{sample.id}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, digest_size=16).digest()

    return sorted(samples, key=sort_key)


def copy_sample(sample: Sample) -> Sample:
    """Copy a sample with its dicts and lists, which user code may write into.

    What else they hold (images, say) is shared.
    """
    return Sample(
        sample.id,
        _copy_containers(sample.input),
        _copy_containers(sample.ground_truth),
        _copy_containers(sample.metadata),
    )


def _copy_containers(value: Any) -> Any:
    if type(value) is dict:
        return {key: _copy_containers(part) for key, part in value.items()}
    return [_copy_containers(part) for part in value] if type(value) is list else value
