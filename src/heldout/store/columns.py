"""Results as columns by name: in memory, or as `results.parquet`.

The journal holds results in the order in which they finished. One pass puts them into the order of
the dataset and turns them into columns: NumPy arrays for the summary, and, where a run is large
enough for that to pay, `results.parquet`, which DuckDB writes and reads. Both are the same bytes
for the same results, so a run that was killed and resumed ends in the files of one that was not.

    derive(run, …)           the summary, and results.parquet
    open_columns(results)    the columns, from Parquet, journal or memory

`tables` groups them by samples.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import RunDirectoryError
from heldout.stats.intervals import Ints
from heldout.stats.summary import Batch, Summary, summarize_batch
from heldout.store.journal import RecordRow, hash_ids, in_order
from heldout.store.parquet import (
    FORMAT,
    ColumnType,
    ParquetFile,
    ParquetWriter,
    hash_of_file,
    typed,
)
from heldout.store.results import Results, rows_of
from heldout.store.run_dir import RunDir, RunInfo, RunUsage
from heldout.store.token_counts import TOKENS, count_tokens
from heldout.types import EvalResult

Arrays = dict[str, NDArray[Any]]
"""Columns by name."""

FIXED: dict[str, ColumnType] = {
    "sample_id": "string",
    "repeat": "int",
    "index": "int",
    "ok": "bool",
    "error": "string",
    "reward": "double",
    "truncated": "bool",
    "weighted": "bool",
    "ended_by": "string",
    "prompt_tokens": "int",
    "completion_tokens": "int",
    "seconds": "double",
    "finish_reason": "string",
    "cached": "bool",
    "cached_turns": "int",
    "content": "int",
    "cluster_hash": "int",
    "id_hash": "int",
    "other_usage": "json",
}
HASHES = ("content", "cluster_hash", "id_hash", "other_usage")
"""Columns for programs, not offered as keys."""
OFFERED = ("ended_by", "ok", "truncated", "repeat", "sample_id")
"""Fixed columns that a message about an unknown key offers, beside the metadata."""
SUMMARIZED = ("index", "cluster_hash", "reward", "truncated", "weighted", "cached", "cached_turns")
"""Columns that a summary needs, beside the metrics."""
ITEM = ("index", "repeat", "id_hash")
"""Columns that tell items from each other."""
METRIC, METADATA = "metric.", "metadata."

BATCH = 8_192
"""Results that are turned into columns at a time."""
PARQUET_FROM = 10_000
"""`parquet_from` of the points of a training run: training should not wait for DuckDB at every
eval, and fewer results are read from the journal quickly."""
MAX_COLUMNS = 512
"""Columns of a Parquet file: metadata with a key of its own for every sample makes none."""


# --- Some results as columns ----------------------------------------------------------------------

# Sorted: a dataclass is encoded in the order of its fields, and when loaded again as a dict.
_encoder = msgspec.json.Encoder(order="deterministic")


class MemoryColumns:
    """Results as columns in memory, read by name as those of a `ParquetFile` are.

    It holds one value per result and knows nothing of samples: `tables.ResultTable` groups them.
    """

    def __init__(
        self,
        rows: Sequence[RecordRow] = (),
        names: Iterable[str] = FIXED,
        keys: Iterable[str] | None = None,
    ) -> None:
        """Turn rows into columns: some of FIXED, the metrics, and metadata by key (None is all)."""
        metadata = [
            {**row.sample.metadata, **row.metadata} if row.metadata else row.sample.metadata
            for row in rows
        ]
        self.keys = set[str]().union(*metadata)
        """The metadata keys of these results, also those that are not held."""
        self.own = set[str]().union(*(row.metadata for row in rows if row.metadata))
        """Keys that results add to those of their samples."""
        self.possible_counts: set[str] = set()
        """Metrics that some item has neither as a rate nor with a weight: they may be counts."""
        metrics: dict[str, list[float]] = {}
        rewards, weighted = [], []
        for i, row in enumerate(rows):
            total = weight = 0.0  # as `Score.reward` adds them up
            for metric in row.score.metrics:
                values = metrics.get(metric.name)
                if values is None:
                    values = metrics[metric.name] = [np.nan] * len(rows)
                values[i] = metric.value
                if metric.weight:
                    total += metric.value * metric.weight
                    weight += metric.weight
                elif not metric.rate:
                    self.possible_counts.add(metric.name)
            weighted.append(weight > 0)
            rewards.append(np.nan if row.error is not None else total / weight if weight else 0.0)
        stops = [row.trajectory.stop for row in rows]
        usages = [u if u and u.is_possible() else None for u in (r.trajectory.usage for r in rows)]
        timings = [row.trajectory.timing for row in rows]
        ids = [row.sample.id for row in rows]
        fixed: dict[str, list[Any]] = {
            "sample_id": ids,
            "repeat": [row.repeat for row in rows],
            "index": [row.index for row in rows],
            "error": [row.error for row in rows],
            "reward": rewards,
            "truncated": [stop.truncated for stop in stops],
            "weighted": weighted,
            "ended_by": [stop.limit or stop.ended_by for stop in stops],
            "prompt_tokens": [usage and usage.prompt_tokens for usage in usages],
            "completion_tokens": [usage and usage.completion_tokens for usage in usages],
            "seconds": [timing and timing.seconds for timing in timings],
            "finish_reason": [stop.finish_reason for stop in stops],
            "cached": [t is not None and t.cached_turns > 0 and t.requests == 0 for t in timings],
            "cached_turns": [0 if t is None else t.cached_turns for t in timings],
            "content": [row.sample.content for row in rows],
            "cluster_hash": [row.cluster_hash() for row in rows],
            "other_usage": [row.other_usage or None for row in rows],
        }
        arrays = {name: as_array(values, FIXED[name]) for name, values in fixed.items()}
        arrays["id_hash"] = np.frombuffer(hash_ids(ids), "<i8")
        arrays["ok"] = ~np.isnan(arrays["reward"])
        self.arrays: Arrays = {name: arrays[name] for name in names}
        """The columns that are held, the metrics included."""
        self.arrays |= {METRIC + name: np.array(values) for name, values in metrics.items()}
        if keys is None:
            # No table has more columns. Where each sample has a key of its own, all of them would
            # be as many values as the square of the samples.
            keys = sorted(self.keys) if len(self.keys) <= MAX_COLUMNS else ()
        self.metadata = {METADATA + key: [each.get(key) for each in metadata] for key in keys}
        """The values of metadata, by column; None where a result has none."""
        self._size = len(rows)

    @classmethod
    def of(
        cls, rows: Iterable[RecordRow], names: Iterable[str] = (), keys: Sequence[str] = ()
    ) -> MemoryColumns:
        """Turn any number of rows into columns, `BATCH` at a time: rows take much more memory.

        Args:
            rows: The rows.
            names: Columns of FIXED to hold.
            keys: Metadata keys, and columns of FIXED, to hold for `read_codes`.
        """
        names = [*dict.fromkeys((*names, *(key for key in keys if key in FIXED)))]
        parts = (cls(batch, names, keys) for batch in batches_of(rows))
        return cls.join([cls((), names, keys), *parts])

    @classmethod
    def join(cls, parts: Sequence[MemoryColumns]) -> MemoryColumns:
        """Append columns to each other, those of the later parts at the end; uses up the parts."""
        joined = cls((), ())
        for part in parts:
            joined.keys |= part.keys
            joined.own |= part.own
            joined.possible_counts |= part.possible_counts
            joined._size += len(part)
        # Column by column, so that few are there twice.
        for name in {name: None for part in parts for name in part.arrays}:
            chunks = [
                part.arrays.pop(name) if name in part.arrays else np.full(len(part), np.nan)
                for part in parts
            ]
            joined.arrays[name] = np.ma.concatenate(chunks)  # type: ignore[no-untyped-call]
        for name in {name: None for part in parts for name in part.metadata}:
            values = (part.metadata.pop(name, [None] * len(part)) for part in parts)
            joined.metadata[name] = [value for chunk in values for value in chunk]
        return joined

    def __len__(self) -> int:
        """How many results there are."""
        return self._size

    @property
    def columns(self) -> set[str]:
        """The columns that these results have, also those that are not held."""
        return {*FIXED, *self.arrays, *(METADATA + key for key in self.keys)}

    def read(self, names: Iterable[str]) -> Arrays:
        """Read whole columns, as `ParquetFile.read` does."""
        return {name: self.arrays[name] for name in names}

    def read_ids(self) -> NDArray[Any]:
        """Read the sample id of each result."""
        return self.arrays["sample_id"]

    def read_codes(self, name: str) -> tuple[Ints, list[Any]]:
        """Number the values of a column, as `ParquetFile.read_codes` does."""
        values = self.metadata.get(name)
        return label(self.arrays[name].tolist() if values is None else values)


ColumnSource = ParquetFile | MemoryColumns


def batches_of(rows: Iterable[RecordRow]) -> Iterator[list[RecordRow]]:
    """Split rows into batches of at most `BATCH`."""
    rows = iter(rows)
    while batch := list(islice(rows, BATCH)):
        yield batch


def kind_of(values: Iterable[Any]) -> ColumnType | None:
    """Find the column type that fits all of these values; None if all of them are None."""
    types = {*map(type, values)} - {type(None)}
    if not types:
        return None
    if types == {str}:
        return "string"
    if types == {bool}:
        return "bool"
    if types <= {int, float}:
        integers = [value for value in values if type(value) is int]
        if not integers or (min(integers) >= -(2**63) and max(integers) < 2**63):
            return "int" if types == {int} else "double"
    return "json"


def merge_kinds(a: ColumnType | None, b: ColumnType | None) -> ColumnType | None:
    """Find the column type that fits values of two types."""
    if a == b or a is None or b is None:
        return a or b
    return "double" if {a, b} == {"int", "double"} else "json"


def as_array(values: list[Any], kind: ColumnType) -> NDArray[Any]:
    """Make an array that DuckDB takes for a column of this kind; None where there is no value."""
    if kind == "json":
        values = [None if value is None else _as_json(value) for value in values]
    if kind in ("json", "string"):
        return np.array(values, dtype=object)
    if kind == "double":
        return np.array(values, dtype=np.float64)  # None becomes NaN
    dtype = np.int64 if kind == "int" else np.bool_
    if None not in values:
        return np.array(values, dtype=dtype)
    missing = [value is None for value in values]
    filled = [0 if value is None else value for value in values]
    return np.ma.masked_array(np.array(filled, dtype=dtype), missing)


def as_text(value: Any) -> str | None:
    """Return a text as it is, and everything else as JSON; None where there is no value."""
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_json(value: Any) -> str:
    return _encoder.encode(value).decode()


def _as_typed(value: Any) -> Any:
    return typed(_as_json(value))


def label(values: Sequence[Any]) -> tuple[Ints, list[Any]]:
    """Number values in order of first occurrence; -1 where there is none."""
    if (kind := kind_of(values)) in ("json", "double"):
        convert: Callable[[Any], Any] = _as_typed if kind == "json" else float
        values = [v if v is None or v != v else convert(v) for v in values]
    numbers: dict[Any, int] = {}
    codes = [-1 if v is None or v != v else numbers.setdefault(v, len(numbers)) for v in values]
    return np.array(codes, dtype=np.int64), list(numbers)


# --- The journal to a summary and a Parquet file --------------------------------------------------


def derive(
    run: RunDir, repeats: int, pass_threshold: float | None, *, parquet: bool
) -> tuple[Summary, RunUsage, str]:
    """Summarize what the journal holds now, complete or not; it is read once.

    Returns the summary, the usage, and a hash of results.parquet: "" where there is none.
    """
    file = None
    if parquet:
        file = write_parquet(lambda: in_order(run.journal, repeats), run.columns)
    if file is None:
        columns = MemoryColumns.of(in_order(run.journal, repeats), (*SUMMARIZED, *ITEM, *TOKENS))
        usage = count_tokens(columns.read(TOKENS))
        return _summarize(columns, pass_threshold, run.path), usage, ""
    with closing(file):
        usage = count_tokens(file.read(TOKENS))
        # Within little memory: a million results take 8 MB a column.
        file.db.execute("SET memory_limit = '64MB'")
        return _summarize(file, pass_threshold, run.path), usage, hash_of_file(run.columns)


def summarize_results(results: Iterable[EvalResult], pass_threshold: float | None = 0.5) -> Summary:
    """Summarize results in memory, in any order, as summary.json has it.

    Repeats of one sample are one cluster, and so are samples of equal content.
    """
    columns = MemoryColumns.of(rows_of(results), (*SUMMARIZED, *ITEM))
    return _summarize(columns, pass_threshold, "this report")


def _summarize(source: ColumnSource, pass_threshold: float | None, where: object) -> Summary:
    refuse_twice(**source.read(ITEM), where=where)
    columns = read_filled(source, SUMMARIZED)
    return summarize_columns(columns, frozenset(source.possible_counts), pass_threshold)


def summarize_columns(
    columns: Arrays, possible_counts: frozenset[str], pass_threshold: float | None
) -> Summary:
    """Summarize items in dataset order: SUMMARIZED and the metrics of each."""
    index = columns["index"]
    batch = Batch(
        index,
        number_clusters(index, columns["cluster_hash"]),
        columns["reward"],
        columns["truncated"],
        columns["weighted"],
        columns["cached"],
        columns["cached_turns"],
        metrics_in(columns),
        possible_counts,
    )
    return summarize_batch(batch, pass_threshold)


def write_parquet(read_rows: Callable[[], Iterable[RecordRow]], path: Path) -> ParquetFile | None:
    """Write results, which are read in dataset order, as a Parquet file; returns it, open.

    They are read once more where a key turns out to have values of several kinds. Without results,
    or with too many columns, there is no file.
    """
    kinds: dict[str, ColumnType | None] = dict(FIXED)
    """None where no result has had a value."""
    possible_counts, own = set[str](), set[str]()
    is_settled = False
    # The kind of a metadata column is known only after the last row (ids may be numbers for a
    # million rows and a text in the next), and a Parquet file cannot change a column that it has
    # begun. So once a part disagrees, the rest of this pass only finds out kinds, and the next pass
    # writes with these. Kinds only ever widen, towards text, so the loop ends: nearly always after
    # the first pass, in the worst case after as many as there are kinds.
    while not is_settled:
        is_settled = True
        with ParquetWriter() as writer:
            for part in map(MemoryColumns, batches_of(read_rows())):
                if len({*kinds, *(METADATA + key for key in part.keys)}) > MAX_COLUMNS:
                    path.unlink(missing_ok=True)
                    return None
                possible_counts, own = possible_counts | part.possible_counts, own | part.own
                kinds |= {name: "double" for name in part.arrays if name not in FIXED}
                for name, values in part.metadata.items():
                    before = kinds.get(name)
                    kinds[name] = merge_kinds(before, kind_of(values))
                    is_settled = is_settled and before in (None, kinds[name])
                if is_settled:
                    arrays = part.arrays
                    if arrays["ok"].all():
                        del arrays["error"]  # a column without values
                    if not arrays["other_usage"].any():
                        del arrays["other_usage"]
                    for name, values in part.metadata.items():
                        if (kind := kinds[name]) is not None:
                            arrays[name] = as_array(values, kind)
                    writer.add(kinds, arrays)
            if is_settled and len(writer):
                names = sorted([*kinds][len(FIXED) :], key=lambda n: (not n.startswith(METRIC), n))
                ordered = {name: kinds[name] or "string" for name in (*FIXED, *names)}
                return writer.write(path, ordered, possible_counts, own)
    path.unlink(missing_ok=True)
    return None


@contextmanager
def current_parquet(run: RunDir, info: RunInfo | None = None) -> Iterator[ParquetFile | None]:
    """Open results.parquet; None unless it was made from the current journal."""
    file = open_current_parquet(run, info or run.read_info())
    with nullcontext() if file is None else closing(file):
        yield file


def open_current_parquet(
    run: RunDir, info: RunInfo, copy: Path | None = None
) -> ParquetFile | None:
    """Open results.parquet, or a copy of it made there, as `current_parquet` does."""
    if not info.columns_hash or not run.derived_are_current(info):
        return None
    try:
        # Its size first: a file of any other one need not be read to its end.
        if not info.columns_hash.startswith(f"{FORMAT}:{run.columns.lstat().st_size}:"):
            return None
        if hash_of_file(run.columns) != info.columns_hash:
            return None
        if copy is not None:
            shutil.copyfile(run.columns, copy)
        file = ParquetFile(copy or run.columns)
    except (OSError, RunDirectoryError):
        return None
    if not {*FIXED} - {"cluster_hash"} <= {*file.columns}:
        file.close()
        return None
    return file


# --- Reading results ------------------------------------------------------------------------------


@contextmanager
def open_columns(
    results: Iterable[EvalResult], names: Iterable[str], keys: Sequence[str] = ()
) -> Iterator[ColumnSource]:
    """Open the columns of results: of a run those of all, also where these are a selection.

    Args:
        results: The results.
        names: Columns of FIXED that are read.
        keys: Metadata keys, and columns of FIXED, of which codes are read.
    """
    if not isinstance(results, Results):
        yield MemoryColumns.of(rows_of(results), names, keys)
        return
    with current_parquet(results.run, results.info) as file:
        if file is not None:
            yield file
            results.run.refuse_replaced(results.info)
            return
    yield MemoryColumns.of(results.all_rows(), names, keys)


def read_columns(results: Iterable[EvalResult], names: Sequence[str]) -> Arrays:
    """Read columns of results, of a selection those of its items."""
    with open_columns(results, names) as source:
        columns = source.read(names)
    if isinstance(results, Results):
        return {name: results.pick(array) for name, array in columns.items()}
    return columns


def read_filled(source: ColumnSource, names: Iterable[str]) -> Arrays:
    """Read columns, and those of the metrics, with NaN where there is no value."""
    metrics = sorted(name for name in source.columns if name.startswith(METRIC))
    stored = {name: name for name in (*names, *metrics)}
    if "cluster_hash" not in source.columns:  # a file of an earlier version clusters by content
        stored["cluster_hash"] = "content"
    arrays = source.read(stored.values())
    if any(a.dtype.kind in "biu" and np.ma.is_masked(a) for a in arrays.values()):
        raise RunDirectoryError("results.parquet lacks values; without it the journal is read")
    return {name: np.ma.filled(arrays[column], np.nan) for name, column in stored.items()}


def metrics_in(columns: Arrays) -> dict[str, NDArray[Any]]:
    """Return the columns of the metrics, by the metric's own name."""
    metrics = [name for name in columns if name.startswith(METRIC)]
    return {name.removeprefix(METRIC): columns[name] for name in metrics}


def number_clusters(sample: Ints, hashes: Ints) -> Ints:
    """Number the cluster of each row: its sample, or what samples share (clause 7).

    All attempts at a sample have the hash of the first: one that broke may lack what others have.
    """
    first = first_of_sample(sample)
    of_samples = hashes[first]
    return of_samples[np.cumsum(first) - 1] if has_duplicates(of_samples) else sample


def first_of_sample(index: Ints) -> NDArray[np.bool_]:
    """Say of each item whether it is the first of its sample."""
    return np.append(np.ones(min(1, len(index)), np.bool_), index[1:] != index[:-1])


def refuse_twice(index: Ints, repeat: Ints, id_hash: Ints, where: object) -> None:
    """Refuse results in which a sample, or an attempt at one, is there twice."""
    first = first_of_sample(index)
    has_twice = has_duplicates(id_hash[first])
    if not first.all():
        of_sample = id_hash[first][np.cumsum(first) - 1]
        later = repeat[1:] > repeat[:-1]
        has_twice |= bool((id_hash != of_sample).any() or not (first[1:] | later).all())
    if has_twice:
        raise RunDirectoryError(
            f"{where}: a sample, or an attempt at one, is there twice; was results.jsonl changed "
            "from outside?"
        )


def column_name(key: str, columns: Iterable[str], where: object) -> str:
    """Find the column of a metadata key, or of one of the fixed columns, as a user writes it."""
    for name in (METADATA + key, key):
        if name in columns and name not in HASHES:
            return name
    keys = [name.removeprefix(METADATA) for name in columns if name.startswith(METADATA)]
    listed = [name if name.isprintable() else repr(name) for name in sorted(keys)[:20]]
    if more := len(keys) - len(listed):
        listed.append(f"{more} more")
    names = ", ".join(listed) or "no metadata"
    raise RunDirectoryError(
        f"{where} has no key {key!r}; its samples have {names} (or {', '.join(OFFERED)})"
    )


def has_duplicates(numbers: NDArray[Any]) -> bool:
    """Return whether any number occurs twice; much faster than `np.unique` if none does."""
    ordered = np.sort(numbers)
    return bool((ordered[1:] == ordered[:-1]).any())
