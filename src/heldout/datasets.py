"""Datasets into rows, and rows into samples: JSONL, CSV, Parquet, Hugging Face datasets.

A reader gives a list of dicts, which a line of Python can filter or change, and `to_samples` makes
samples of them:

    to_samples(read_jsonl("math.jsonl"), ground_truth="answer", metadata=["difficulty"])

A bad row is an error with its file and line.
"""

from __future__ import annotations

import ast
import builtins
import codecs
import csv
import gzip
import hashlib
import io
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.extras import missing_extra
from heldout.errors import UNREADABLE, DuplicateSampleId, InvalidInput
from heldout.types import Sample


class Row(dict[str, Any]):
    """A row of a dataset: a dict that knows where it stands, for messages."""

    __slots__ = ("where",)

    def __init__(self, columns: Mapping[str, Any], where: str) -> None:
        super().__init__(columns)
        self.where = where


# --- Rows to samples ----------------------------------------------------------------------------


def to_samples(
    rows: Iterable[Mapping[str, Any]],
    *,
    id: str | None = None,
    input: Sequence[str] | None = None,
    ground_truth: str | None = None,
    metadata: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> list[Sample]:
    """Make a sample of each row.

    Args:
        rows: What a reader gives, or any dicts.
        id: The column with the id. Without it a column `id` is taken, or the row's number.
        input: The columns of the input; without it, all columns you do not name.
        ground_truth: The column with the target. Without it a column `ground_truth` is taken.
        metadata: The columns of the metadata.
        optional: Columns that a row may lack, but not all rows: it then has None there. Any other
            column that is named, or taken for id or target, has to be in every row.

    Returns:
        The samples.

    Raises:
        InvalidInput: A row lacks a column, or makes no sample; the message says which row.
    """
    for name, given in (("input", input), ("metadata", metadata), ("optional", optional)):
        if isinstance(given, str):
            raise InvalidInput(
                f"{name} must be a list of columns, got {given!r}", hint=f"write [{given!r}]"
            )
    if (id or "id") in optional:
        raise InvalidInput(
            f"optional: {id or 'id'!r} is the id, and a sample without one has no name",
            hint="give the rows that lack it an id, or name another column: id=…",
        )
    listed = [_check_row(row, f"row {number}") for number, row in enumerate(rows)]
    for name in optional:
        if listed and not any(name in row for row in listed):
            raise InvalidInput(
                f"optional: no row has {name!r}; there are "
                f"{sorted({str(key) for row in listed for key in row})}"
            )
    if id is None and any("id" in row for row in listed):
        id = "id"
    if ground_truth is None and any("ground_truth" in row for row in listed):
        ground_truth = "ground_truth"
    special = {id, ground_truth, *metadata}
    samples = []
    for number, row in enumerate(listed):

        def column(name: str, row: Row = row) -> Any:
            if name in row or name in optional:
                return row.get(name)
            raise InvalidInput(
                f"{row.where}: there is no column {name!r}; there are {sorted(map(str, row))}",
                hint=f"A column that rows may lack is named: optional=[{name!r}]",
            )

        chosen = [key for key in row if key not in special] if input is None else input
        parts = (
            {key: column(key) for key in chosen},
            None if ground_truth is None else column(ground_truth),
            {key: column(key) for key in metadata},
        )
        sample_id = str(number) if id is None else column(id)
        try:
            samples.append(Sample(_id(sample_id), *parts))
        except InvalidInput as problem:
            raise InvalidInput(f"{row.where}: {problem}") from None
    return samples


def _check_row(row: Any, where: str) -> Row:
    """Return a row that knows where it stands; refuse what has no columns."""
    if isinstance(row, Row):
        return row
    if not isinstance(row, Mapping):
        raise InvalidInput(
            f"{where}: a row must be an object with columns, got {type(row).__name__}"
        )
    return Row(row, where)


def _id(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, Mapping | Sequence):
        raise InvalidInput(f"an id must be a text or a number, got {value!r}")
    return str(value)


# --- Rows of programming tasks to samples -------------------------------------------------------


def human_eval_samples(rows: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Make a sample of each row of HumanEval; `grade_python` with `tests=human_eval_tests` grades.

    The question is the prompt, which the model completes. Like those of the other three datasets,
    samples have what the tests need as metadata, and no solution anywhere.

    Raises:
        InvalidInput: A row lacks a column; the message says which row.
    """
    columns = ("prompt", "test", "entry_point")
    return _program_samples(rows, ("task_id",), columns, (), lambda row: str(row["prompt"]))


def mbpp_samples(rows: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Make a sample of each row of MBPP, full or sanitized; for `tests=mbpp_tests`.

    The question has the tests behind the text, as in the paper: they alone say what to define.

    Raises:
        InvalidInput: A row lacks a column; the message says which row.
    """

    def ask(row: Row) -> str:
        text = row["prompt"] if row.get("text") is None else row["text"]
        tests = "\n".join(row["test_list"])
        return f"{text}\nYour code should pass these tests:\n\n{tests}\n"

    named = [
        Row({**row, "entry_point": list(mbpp_entry_points(row))}, row.where)
        if "test_list" in row
        else row
        for row in (_check_row(row, f"row {number}") for number, row in enumerate(rows))
    ]
    optional = ("test_setup_code", "test_imports", "challenge_test_list", "entry_point")
    asked = ("prompt",) if any("prompt" in row for row in named) else ("text",)
    return _program_samples(named, ("task_id",), ("test_list",), optional, ask, asked)


def apps_samples(rows: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Make a sample of each row of APPS; for `tests=apps_tests`.

    The question ends with the starter code, and with how input is read, as in the paper.

    Raises:
        InvalidInput: A row lacks a column; the message says which row.
    """

    def ask(row: Row) -> str:
        starter = row.get("starter_code") or ""
        how = "Use Call-Based format" if starter else "Use Standard Input format"
        return "\n".join([row["question"], *([starter] if starter else []), how])

    ids, optional = ("problem_id", "id"), ("difficulty",)
    return _program_samples(rows, ids, ("input_output",), optional, ask, ("question",))


def live_code_bench_samples(rows: Iterable[Mapping[str, Any]]) -> list[Sample]:
    """Make a sample of each row of LiveCodeBench's code generation.

    They are for `tests=live_code_bench_tests`. The question ends with the starter code, or with how
    input is read, as in the benchmark's own prompts.

    Raises:
        InvalidInput: A row lacks a column; the message says which row.
    """

    def ask(row: Row) -> str:
        starter = row.get("starter_code") or ""
        how = (
            "You will use the following starter code to write the solution to the problem and "
            "enclose your code within delimiters."
            if starter
            else "Read the inputs from stdin solve the problem and write the answer to stdout (do "
            "not directly test on the sample inputs). Enclose your code within delimiters as "
            "follows."
        )
        code = starter or "# YOUR CODE HERE"
        return f"{row['question_content']}\n\n{how}\n\n```python\n{code}\n```\n"

    columns = ("public_test_cases",)
    optional = ("private_test_cases", "metadata", "platform", "difficulty", "contest_date")
    return _program_samples(rows, ("question_id",), columns, optional, ask, ("question_content",))


def _program_samples(
    rows: Iterable[Mapping[str, Any]],
    ids: Sequence[str],
    columns: Sequence[str],
    optional: Sequence[str],
    ask: Callable[[Row], str],
    asked: Sequence[str] = (),
) -> list[Sample]:
    """Make samples of these columns and of no others.

    Args:
        rows: The rows.
        ids: The names that the column of the id may have.
        columns: Those of the metadata.
        optional: More of them, which rows may lack.
        ask: Makes the question.
        asked: The columns that it takes.
    """
    samples = []
    for number, given in enumerate(rows):
        row = _check_row(given, f"row {number}")
        id = next((name for name in ids if row.get(name) is not None), ids[0])
        if missing := [name for name in (id, *columns, *asked) if row.get(name) is None]:
            raise InvalidInput(
                f"{row.where}: there is no column {missing[0]!r}; there are {sorted(map(str, row))}"
            )
        metadata = {
            name: row[name].isoformat() if isinstance(row[name], date) else row[name]
            for name in (*columns, *optional)
            if row.get(name) is not None
        }
        samples.append(Sample(_id(row[id]), {"question": ask(row)}, metadata=metadata))
    return samples


def mbpp_entry_points(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names that the tests of a row of MBPP take from the program.

    They are those that `code`, the solution, defines. Without it they are those that nothing else
    defines; where there are none, the function is named like a builtin, and is called first.
    """
    setup = [*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]
    tests = _parse("\n".join(row["test_list"]))
    nodes = [*ast.walk(tests), *ast.walk(_parse("\n".join(setup)))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = dict.fromkeys(name.id for name in names if isinstance(name.ctx, ast.Load))
    solution = _parse(row.get("code") or "")
    defined = {node.name for node in solution.body if isinstance(node, _DEFINITIONS)}
    if found := [name for name in used if name in defined]:
        return tuple(found)
    bound = {name.id for name in names if not isinstance(name.ctx, ast.Load)}
    bound |= {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
    known = {*bound, *dir(builtins), *sys.stdlib_module_names}
    if found := [name for name in used if name not in known]:
        return tuple(found)
    calls = (node.func for node in nodes if isinstance(node, ast.Call))
    return tuple([name.id for name in calls if isinstance(name, ast.Name)][:1])


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _parse(source: str) -> ast.Module:
    """Parse code; nothing where it is none."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])


# --- Datasets to rows ---------------------------------------------------------------------------


def read_jsonl(path: str | Path) -> list[Row]:
    """Read one JSON object per line; `.gz` and `.zst` are read as they are.

    Raises:
        InvalidInput: The file or a line of it cannot be used; the message says where.
    """
    return [_check_row(row, where) for where, row in jsonl_rows(path)]


def read_csv(path: str | Path) -> list[Row]:
    """Read a CSV file in UTF-8 with a header line, `.gz` and `.zst` too. Values are texts.

    Raises:
        InvalidInput: The file or a record of it cannot be used; the message says where.
    """
    return list(_csv_rows(_check_file(path)))


def read_parquet(path: str | Path) -> list[Row]:
    """Read a Parquet file.

    Raises:
        InvalidInput: The file cannot be used; the message says why.
    """
    return list(_parquet_rows(_check_file(path)))


def read_hf(dataset: Any, *, split: str | None = None) -> list[Row]:
    """Read a Hugging Face dataset.

    Args:
        dataset: A `Dataset`, any iterable of dicts, a dict of splits, or a folder that
            `save_to_disk` made.
        split: Which split, where there are several.

    Returns:
        The rows.

    Raises:
        InvalidInput: There is no such split or folder, or a row has no columns.
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
    return [_check_row(row, f"{name}, row {i}") for i, row in enumerate(dataset)]


def _saved_dataset(folder: Path) -> Any:
    if not folder.exists():
        raise InvalidInput(
            f"there is no dataset folder at {folder}; one from the hub is loaded first: "
            "read_hf(datasets.load_dataset(…))"
        )
    try:
        import datasets

        return datasets.load_from_disk(str(folder))
    except ImportError:
        raise missing_extra("a dataset folder needs the package datasets", "datasets") from None
    except (OSError, ValueError) as problem:
        raise InvalidInput(f"{folder} is not a folder that save_to_disk made: {problem}") from None


# --- Files to rows ------------------------------------------------------------------------------


def _check_file(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder, not a file")
    if not path.exists():
        raise InvalidInput(f"there is no file {path}")
    return path


def _lines(path: Path) -> Generator[bytes, None, None]:
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


def jsonl_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Read the values of a JSONL file, each with "FILE, line 3"; blank lines are left out."""
    decode = msgspec.json.Decoder().decode
    for number, line in enumerate(_lines(_check_file(path)), start=1):
        if line.strip():
            try:
                row = decode(line)
            except UNREADABLE as problem:
                raise InvalidInput(f"{path}, line {number}: not JSON: {problem}") from None
            yield f"{path}, line {number}", row


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # by default 128 KiB, too little for a long prompt
    with closing(_lines(path)) as lines:  # the traceback of a refusal would hold it open
        yield from _parse_csv(path, lines)


def _parse_csv(path: Path, lines: Iterator[bytes]) -> Iterator[Row]:
    reader = csv.reader(map(bytes.decode, lines), strict=True)
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
                yield Row(dict(zip(header, row, strict=True)), where)
            where = f"{path}, line {reader.line_num + 1}"
    except (csv.Error, UnicodeDecodeError) as problem:
        raise InvalidInput(f"{where}: {problem}") from None


def _parquet_rows(path: Path) -> Iterator[Row]:
    import duckdb

    from heldout.store.parquet import quote_path

    # Only what is in the file: a folder called `split=test` is no column.
    source = f"read_parquet({quote_path(path)}, hive_partitioning = false)"
    try:
        with duckdb.connect() as connection:
            result = connection.execute(f"FROM {source}")
            names = [column[0] for column in result.description]
            for number, row in enumerate(iter(result.fetchone, None)):
                yield Row(dict(zip(names, row, strict=True)), f"{path}, row {number}")
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


__all__ = [
    "apps_samples",
    "human_eval_samples",
    "live_code_bench_samples",
    "mbpp_samples",
    "read_csv",
    "read_hf",
    "read_jsonl",
    "read_parquet",
    "to_samples",
]
