"""Results as columns: what summaries, slices and comparisons are computed from.

The journal holds results in the order in which they finished. One pass puts them into the order of
the dataset and turns them into columns: NumPy arrays for the summary, and, where a run is large
enough for that to pay, `results.parquet`, which DuckDB writes and reads. Both are the same bytes
for the same results, so a run that was killed and resumed ends in the files of one that was not.

    derive(run, …)           the summary, and results.parquet
    table_of(report, keys)   every item of a report as columns: from Parquet, journal or memory
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import UNREADABLE, InvalidInput, RunDirectoryError
from heldout.stats import Floats, Ints
from heldout.stats.summary import (
    BATCH,
    Batch,
    Summary,
    Tally,
    summarize_batch,
    summarize_groups,
)
from heldout.store.journal import (
    Row,
    id_hash,
    in_order,
    row_of,
)
from heldout.store.parquet import ColumnType, Kind, ParquetFile, ParquetWriter, hash_of_file
from heldout.store.run_dir import RunDir, RunInfo
from heldout.types import EvalResult, weighted_mean

if TYPE_CHECKING:
    from heldout.store.report import EvalReport

Hashes = NDArray[np.uint64]

FIXED: dict[str, Kind] = {
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
    "content": "int",
    "id_hash": "int",
}
HASHES = ("content", "id_hash")
"""Columns for programs, not offered as keys."""
OFFERED = ("ended_by", "ok", "truncated", "repeat", "sample_id")
"""Fixed columns that a message about an unknown key offers, beside the metadata."""
MAX_NAMED_KEYS = 20
"""Metadata keys that such a message names; the rest is a number."""
METRIC, METADATA = "metric.", "metadata."

PARQUET_FROM = 10_000
"""`parquet_from` of the points of a training run: training should not wait for DuckDB at every
eval, and fewer results are read from the journal quickly."""
MAX_COLUMNS = 512
"""Columns of a Parquet file: metadata with a key of its own for every sample makes none."""


# --- Some results as columns ----------------------------------------------------------------------

# Sorted: a dataclass is encoded in the order of its fields, and when loaded again as a dict.
_encoder = msgspec.json.Encoder(order="deterministic")


class Part:
    """Some results as columns, in dataset order."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._values: dict[str, list[Any]] = {}
        self.plain: set[str] = set()
        """Metrics that some item has neither as a rate nor with a weight: they may be counts."""
        metrics: dict[str, list[float]] = {}
        nothing, weighted = [np.nan] * len(rows), [False] * len(rows)
        for place, row in enumerate(rows):
            for metric in row.score.metrics:
                values = metrics.get(metric.name)
                if values is None:
                    values = metrics[metric.name] = nothing.copy()
                values[place] = metric.value
                if metric.weight:
                    weighted[place] = True
                elif not metric.rate:
                    self.plain.add(metric.name)
        self.metrics = {name: np.array(values) for name, values in metrics.items()}
        self.weighted = np.array(weighted)
        self.reward = np.array(
            [np.nan if row.error is not None else weighted_mean(row.score.metrics) for row in rows]
        )
        self.index = np.array([row.index for row in rows], dtype=np.int64)
        self.content = np.array([row.sample.content for row in rows], dtype=np.int64)
        self.truncated = np.array([row.trajectory.stop.truncated for row in rows])

    def batch(self) -> Batch:
        """Give the columns that a summary is made of."""
        return Batch(
            self.index,
            self.content,
            self.reward,
            self.truncated,
            self.weighted,
            self.metrics,
            frozenset(self.plain),
        )

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        """The metadata of each result: its sample's, and its own before that."""
        return [
            {**row.sample.metadata, **row.metadata} if row.metadata else row.sample.metadata
            for row in self.rows
        ]

    @cached_property
    def keys(self) -> set[str]:
        """The metadata keys of these results."""
        return set().union(*self.metadata)

    def values(self, key: str) -> list[Any]:
        """Give the values of a metadata key; None where a result has none."""
        if key not in self._values:
            self._values[key] = [metadata.get(key) for metadata in self.metadata]
        return self._values[key]

    def types(self) -> dict[str, set[type]]:
        """Give the types of the values of each metadata key."""
        types: dict[str, set[type]] = {key: set() for key in self.keys}
        if len(types) > MAX_COLUMNS:  # a key of its own for every sample, say
            for metadata in self.metadata:
                for key, value in metadata.items():
                    types[key].add(_type(value))
        else:
            for key, known in types.items():
                known.update(map(type, self.values(key)))
                if int in known and not all(map(_fits, self.values(key))):
                    types[key] = {*map(_type, self.values(key))}
        for row in self.rows:
            if row.metadata:
                for key in row.metadata.keys() & row.sample.metadata.keys():
                    types[key].add(_type(row.sample.metadata[key]))  # what it took the place of
        return {key: known - {type(None)} for key, known in types.items()}

    def fixed(self, name: str) -> NDArray[Any]:
        """Give one of the columns that every result has, as DuckDB takes it."""
        rows = self.rows
        match name:
            case "reward" | "index" | "content" | "truncated" | "weighted":
                return np.asarray(getattr(self, name))
            case "repeat":
                return np.array([row.repeat for row in rows], dtype=np.int64)
            case "ok":
                return np.array([row.error is None for row in rows])
            case "id_hash":
                return np.array([id_hash(row.sample.id) for row in rows], dtype=np.int64)
            case "sample_id":
                return np.array([row.sample.id for row in rows], dtype=object)
            case "error":
                return np.array([row.error for row in rows], dtype=object)
            case "ended_by":
                stops = [row.trajectory.stop for row in rows]
                return np.array([stop.limit or stop.ended_by for stop in stops], dtype=object)
            case "prompt_tokens" | "completion_tokens":
                read = attrgetter(name)
                usages = [row.trajectory.usage for row in rows]
                return as_array([use and read(use) for use in usages], "int")
            case "seconds":
                timings = [row.trajectory.timing for row in rows]
                return as_array([timing and timing.seconds for timing in timings], "double")
        raise KeyError(name)


def as_array(values: list[Any], kind: Kind, mixed: bool = False) -> NDArray[Any]:
    """Make an array that DuckDB takes for a column of this kind.

    Args:
        values: None where there is no value.
        kind: What all of them can be stored as.
        mixed: Whether the column has texts beside values of other kinds.

    Returns:
        An array; masked, or with NaN or None, where there is no value.
    """
    if kind == "string":
        if mixed or not {*map(type, values)} <= {str, type(None)}:
            values = [as_text(value, mixed=mixed) for value in values]
        return np.array(values, dtype=object)
    if kind == "double":
        return np.array(values, dtype=np.float64)  # None becomes NaN
    dtype = np.int64 if kind == "int" else np.bool_
    if None not in values:
        return np.array(values, dtype=dtype)
    missing = [value is None for value in values]
    filled = [0 if value is None else value for value in values]
    return np.ma.masked_array(np.array(filled, dtype=dtype), missing)


def as_text(value: Any, *, mixed: bool) -> str | None:
    """Give a value of a text column: a text as it is, everything else as JSON.

    A text of a mixed column keeps its quotes if it would read as another value without them: "true"
    is not True and "1" is not 1, and the "easy" of a mixed column is that of any other.
    """
    if value is None:
        return None
    if isinstance(value, str) and not (mixed and _reads_as_json(value)):
        return value
    return _encoder.encode(value).decode()


def _reads_as_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except UNREADABLE:
        return False
    return True


class Layout:
    """Which columns results need, as far as they have been read."""

    def __init__(self) -> None:
        self.metrics: set[str] = set()
        self.plain: set[str] = set()
        self.own: set[str] = set()
        """Metadata keys that results add to those of their samples: what came out."""
        self.types: dict[str, set[type]] = {}
        """By metadata key: the types of its values."""

    def add(self, part: Part) -> None:
        """Take note of the columns of a part."""
        self.metrics |= part.metrics.keys()
        self.plain |= part.plain
        self.own.update(*(row.metadata for row in part.rows if row.metadata))
        for key, types in part.types().items():
            if types:
                self.types.setdefault(key, set()).update(types)

    @property
    def columns(self) -> dict[str, ColumnType]:
        """The type of each column, by name."""
        columns = {name: ColumnType(kind) for name, kind in FIXED.items()}
        columns |= {METRIC + name: ColumnType("double") for name in sorted(self.metrics)}
        columns |= {METADATA + key: _column_type(self.types[key]) for key in sorted(self.types)}
        return columns


def _column_type(types: set[type]) -> ColumnType:
    if types == {bool}:
        return ColumnType("bool")
    if types == {int}:
        return ColumnType("int")
    if types <= {int, float}:
        return ColumnType("double")
    return ColumnType("string", mixed=str in types and len(types) > 1)


def _fits(value: Any) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _type(value: Any) -> type:
    if _fits(value):
        return type(value)
    return float if abs(value) <= sys.float_info.max else object


def parts(rows: Iterable[Row]) -> Iterator[Part]:
    """Cut rows into parts of `BATCH`."""
    rows = iter(rows)
    while some := list(islice(rows, BATCH)):
        yield Part(some)


# --- The journal to a summary and a Parquet file --------------------------------------------------


class RunUsage(msgspec.Struct, frozen=True):
    """What the model turns of a run took.

    Attributes:
        n: Attempts that reported their tokens, which are those of these attempts alone.
        prompt_tokens: Tokens that the model read.
        completion_tokens: Tokens that it wrote.
        cost: What these tokens cost, those of cached turns included; None where the model has no
            price.
    """

    n: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None


class UsageCounter:
    """Counts what attempts took while their rows pass."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.usage = RunUsage()

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Pass rows on; after the last, `usage` is that of these.

        Args:
            rows: The rows.

        Yields:
            The rows.
        """
        n = prompt = completion = 0
        for row in rows:
            if (usage := row.trajectory.usage) is not None:
                n += 1
                prompt += usage.prompt_tokens
                completion += usage.completion_tokens
            yield row
        self.usage = RunUsage(n, prompt, completion)


def count_usage(rows: Iterable[Row]) -> RunUsage:
    """Count what attempts took.

    Args:
        rows: The rows of the attempts.

    Returns:
        The sums, without a cost.
    """
    counter = UsageCounter()
    deque(counter.watch(rows), maxlen=0)
    return counter.usage


def derive(
    run: RunDir, *, parquet: bool, repeats: int, pass_threshold: float
) -> tuple[Summary, RunUsage, str]:
    """Summarize the journal of a complete run, and write its results.parquet.

    Args:
        run: The run directory.
        parquet: Whether to write results.parquet; False removes one that is there.
        repeats: How often each sample was run.
        pass_threshold: The reward from which an item counts as passed.

    Returns:
        The summary; the usage; and a hash of the Parquet file, "" where there is none.

    Raises:
        RunDirectoryError: The journal cannot be read, or the file cannot be written.
    """
    counter = UsageCounter()
    if not parquet:
        with suppress(FileNotFoundError):
            run.columns.unlink()
        summary = summarize_journal(run, repeats, pass_threshold, counter)
        return summary, counter.usage, ""
    tally = Tally(pass_threshold)
    written = write_parquet(
        lambda: counter.watch(in_order(run.journal, repeats)), run.columns, tally=tally
    )
    if tally.scattered:
        summary = summarize_journal(run, repeats, pass_threshold)
        return summary, counter.usage, written
    return tally.summary(), counter.usage, written


def summarize_journal(
    run: RunDir, repeats: int, pass_threshold: float, counter: UsageCounter | None = None
) -> Summary:
    """Summarize what the journal holds now, complete or not.

    Args:
        run: Whose journal.
        repeats: Attempts per sample.
        pass_threshold: The reward from which an item counts as passed.
        counter: Counts the usage on the way.

    Returns:
        The summary.
    """
    tally = Tally(pass_threshold)
    rows = in_order(run.journal, repeats)
    for part in parts(rows if counter is None else counter.watch(rows)):
        tally.add(part.batch())
    if not tally.scattered:
        return tally.summary()
    table = _table_from_rows(in_order(run.journal, repeats), (), (), run.path)
    return summarize_batch(make_table_batch(table), pass_threshold)


def summarize_results(results: Iterable[EvalResult], pass_threshold: float = 0.5) -> Summary:
    """Summarize results that are in memory.

    Args:
        results: In any order; repeats of one sample are one cluster, and so are samples of equal
            content.
        pass_threshold: The reward from which an item counts as passed.

    Returns:
        The summary, as summary.json has it.
    """
    return summarize_batch(make_table_batch(table_of_results(results)), pass_threshold)


def write_parquet(
    read_rows: Callable[[], Iterable[Row]], path: Path, *, tally: Tally | None = None
) -> str:
    """Write results as a Parquet file.

    Args:
        read_rows: Reads them in dataset order; once more, where a key turns out to have values of
            several kinds.
        path: The file to write, replaced where it is there.
        tally: Takes the results on the way, so that they are read once.

    Returns:
        A hash of the file's bytes; "" where there are no results, or too many columns, and so no
        file.

    Raises:
        RunDirectoryError: The journal cannot be read, or the file cannot be written.
    """
    layout = Layout()
    for first in (True, False):
        with ParquetWriter() as writer:
            fits = True
            for part in parts(read_rows()):
                if first and tally is not None:
                    tally.add(part.batch())
                # Where a key turns out to have values of several kinds, or there are too many
                # columns, the rest is read for the layout alone.
                layout.add(part)
                columns = layout.columns
                fits = fits and len(columns) <= MAX_COLUMNS and writer.can_hold(columns)
                if fits:
                    writer.add(columns, _arrays(part, columns))
            if fits and len(writer):
                return writer.write(path, layout.columns, layout.plain, layout.own)
        if fits or len(layout.columns) > MAX_COLUMNS:
            break
    with suppress(FileNotFoundError):
        path.unlink()
    return ""


def _arrays(part: Part, columns: Mapping[str, ColumnType]) -> dict[str, NDArray[Any]]:
    """Give the columns of a part; a metric that no result has is left out."""
    arrays = {name: part.fixed(name) for name in FIXED}
    arrays |= {METRIC + name: values for name, values in part.metrics.items()}
    for name, column in columns.items():
        if name.startswith(METADATA):
            arrays[name] = as_array(part.values(name.removeprefix(METADATA)), *column)
    return arrays


@contextmanager
def current_parquet(run: RunDir, info: RunInfo | None = None) -> Iterator[ParquetFile | None]:
    """Open results.parquet, if it is the file that was made of the journal as it is now.

    Args:
        run: The run directory.
        info: Its run.json, where it was read already.

    Yields:
        The file; None where there is none, or it is of another journal.
    """
    if not _has_current_parquet(run, info or run.read_info()):
        yield None
        return
    with closing(ParquetFile(run.columns)) as file:
        yield file


def _has_current_parquet(run: RunDir, info: RunInfo) -> bool:
    if not info.columns_hash or not run.derived_are_current(info):
        return False
    try:
        # The size first: what else stands there may be without end.
        size = f"{run.columns.stat().st_size}:"
        return info.columns_hash.startswith(size) and hash_of_file(run.columns) == info.columns_hash
    except (OSError, RunDirectoryError):
        return False


# --- Every item as columns ------------------------------------------------------------------------


class SampleIds(Sequence[str]):
    """The ids of samples, read when one of them is asked for: most often none is."""

    def __init__(self, count: int, read: Callable[[], list[str]]) -> None:
        self._count, self._read = count, read

    @cached_property
    def _all(self) -> list[str]:
        return self._read()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._all[place]

    def __eq__(self, other: object) -> bool:
        return self._all == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Labels(Sequence[Any]):
    """The values of a metadata key, as numbers into those that there are."""

    codes: Ints
    """-1 where there is no value."""
    values: list[Any]

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice) -> Labels: ...
    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return Labels(self.codes[place], self.values)
        code = self.codes[place]
        return None if code < 0 else self.values[code]

    def __iter__(self) -> Iterator[Any]:
        values = [*self.values, None]
        return (values[code] for code in self.codes.tolist())


def label(values: list[Any]) -> Labels:
    """Number values, None where there is none, by the order in which they first come."""
    numbers: dict[Any, int] = {}
    codes = [-1 if v is None else numbers.setdefault(v, len(numbers)) for v in values]
    return Labels(np.array(codes, dtype=np.int64), list(numbers))


@dataclass(frozen=True, eq=False)
class Table:
    """Every item of a run as columns: dataset order, the repeats of a sample side by side."""

    sample_ids: Sequence[str]
    """One for each sample, in dataset order."""
    content: Hashes
    """Of each sample: a hash of its input and ground truth, not of its metadata."""
    id_hash: Hashes
    """Of each sample's id: two runs of the same samples are told by it at once."""
    sample: Ints
    """Of each item: which sample, as a place in `sample_ids`."""
    repeat: Ints
    reward: Floats
    """NaN where the item errored: it has no score (clause 2)."""
    truncated: NDArray[np.bool_]
    weighted: NDArray[np.bool_]
    """False where no metric has a weight: the reward is then 0 by definition."""
    metrics: Mapping[str, Floats]
    """By name; NaN where the item did not report that metric (clause 4)."""
    keys: Mapping[str, Labels]
    """Of each sample: the value of a metadata key that was asked for; None where it has none."""
    item_keys: Mapping[str, Labels] = field(default_factory=dict)
    """The same of each item, for keys that repeats of a sample need not agree on."""
    plain: frozenset[str] = frozenset()
    """Metrics that may be counts: nothing says that they are rates."""

    def __len__(self) -> int:
        return len(self.sample)


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """Which items of a report a condition holds for."""

    condition: str
    """In SQL."""
    items: NDArray[np.bool_]
    """Of each item of the whole report."""
    by_outcome: bool
    """Whether it looks at what came out: then an interval around what was picked says nothing."""

    @property
    def of(self) -> int:
        """How many items there are to pick from."""
        return len(self.items)


def pick_items(table: Table, items: NDArray[np.bool_]) -> Table:
    """Take some items of a table.

    Args:
        table: All items.
        items: True for those to keep.

    Returns:
        A table of these, with the samples that they are of.

    Raises:
        RunDirectoryError: The table is not the one that the items were picked from.
    """
    if len(items) != len(table):
        raise RunDirectoryError("the run was changed while it was read")
    samples, sample = np.unique(table.sample[items], return_inverse=True)
    return Table(
        SampleIds(len(samples), lambda: [table.sample_ids[i] for i in samples.tolist()]),
        table.content[samples],
        table.id_hash[samples],
        sample.astype(np.int64),
        table.repeat[items],
        table.reward[items],
        table.truncated[items],
        table.weighted[items],
        {name: values[items] for name, values in table.metrics.items()},
        {key: Labels(labels.codes[samples], labels.values) for key, labels in table.keys.items()},
        {
            key: Labels(labels.codes[items], labels.values)
            for key, labels in table.item_keys.items()
        },
        table.plain,
    )


def table_of(
    report: EvalReport, keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> Table:
    """Give all items of a report, finished or not, with the values of metadata keys.

    Args:
        report: From disk or from memory.
        keys: Keys of samples: all repeats of a sample have the same value.
        item_keys: Keys of items.

    Returns:
        The items in dataset order.

    Raises:
        InvalidInput: Repeats of a sample differ in one of `keys`.
        RunDirectoryError: The run has no such key, or its journal cannot be read.
    """
    from heldout.store.report import Results, repeats_of

    if report.path is None or not isinstance(report.results, Results):
        return table_of_results(report.results, keys, item_keys=item_keys)
    run, repeats = RunDir(report.path), repeats_of(report.config)
    table = _table_of_run(run, report.info, keys, item_keys, repeats)
    return table if report.selection is None else pick_items(table, report.selection.items)


def _table_of_run(
    run: RunDir,
    info: RunInfo | None,
    keys: Sequence[str],
    item_keys: Sequence[str],
    repeats: int,
) -> Table:
    with current_parquet(run, info) as file:
        if file is not None:
            table = _table_from_parquet(run, file, keys, item_keys, repeats)
            if not has_duplicates(table.id_hash):
                return table
    return _table_from_journal(run, keys, item_keys, repeats)  # which names an id that is twice


def rows_of(report: EvalReport) -> Iterator[Row]:
    """Read the results of a report as rows, in dataset order."""
    from heldout.store.report import Results, repeats_of

    if report.path is None or not isinstance(report.results, Results):
        yield from _rows_of_results(report.results)
        return
    rows = in_order(RunDir(report.path).journal, repeats_of(report.config))
    yield from rows if report.selection is None else compress(rows, report.selection.items)


def table_of_results(
    results: Iterable[EvalResult], keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> Table:
    """Give results in memory as a table.

    Args:
        results: In any order; samples are in the order in which they first come.
        keys: As for `table_of`.
        item_keys: As for `table_of`.

    Returns:
        The items, those of a sample side by side.

    Raises:
        InvalidInput: Repeats of a sample differ in one of `keys`, or JSON cannot hold a sample.
    """
    return _table_from_rows(_rows_of_results(results), keys, item_keys, "this report")


def _rows_of_results(results: Iterable[EvalResult]) -> list[Row]:
    numbers: dict[str, int] = {}
    rows = [row_of(numbers.setdefault(r.sample_id, len(numbers)), r) for r in results]
    return sorted(rows, key=lambda row: (row.index, row.repeat))


def _table_from_journal(
    run: RunDir, keys: Sequence[str], item_keys: Sequence[str], repeats: int
) -> Table:
    rows = _check_ids(run.journal, in_order(run.journal, repeats))
    return _table_from_rows(rows, keys, item_keys, run.path)


def _check_ids(journal: Path, rows: Iterable[Row]) -> Iterator[Row]:
    """Refuse a journal in which an id has two places, a place two ids, or an item two results."""
    places: dict[str, int] = {}
    last_id, last = "", (-1, -1)
    for row in rows:
        id, item = row.sample.id, (row.index, row.repeat)
        problem = None
        if last[0] == row.index and last_id != id:
            problem = f"number {row.index} of the dataset is sample {last_id!r} and sample {id!r}"
        elif places.setdefault(id, row.index) != row.index:
            problem = (
                f"sample {id!r} is there twice, as number {places[id]} and as number {row.index} "
                "of the dataset"
            )
        elif item <= last:
            problem = f"repeat {row.repeat} of sample {id!r} is there twice"
        if problem is not None:
            raise RunDirectoryError(f"{journal}: {problem}; was it changed from outside?")
        last_id, last = id, item
        yield row


def _table_from_rows(
    rows: Iterable[Row], keys: Sequence[str], item_keys: Sequence[str], where: object
) -> Table:
    layout = Layout()
    arrays: dict[str, list[NDArray[Any]]] = {name: [] for name in _TABLE}
    metrics: list[tuple[int, dict[str, Floats]]] = []
    candidates = [name for key in (*keys, *item_keys) for name in (METADATA + key, key)]
    values: dict[str, list[Any]] = {name: [] for name in candidates}
    ids: list[str] = []
    last: int | None = None
    for part in parts(rows):
        layout.add(part)
        metrics.append((len(part.rows), part.metrics))
        for name, chunks in arrays.items():
            chunks.append(part.fixed(name))
        for name, column in values.items():
            if name in FIXED:
                column += part.fixed(name).tolist()
            else:
                column += part.values(name.removeprefix(METADATA))
        for row in part.rows:
            if row.index != last:
                ids.append(row.sample.id)
                last = row.index
    types = layout.columns
    labels = {}
    for key in (*keys, *item_keys):
        name = column_name(key, types, where)
        labels[key] = label([_as_label(value, types[name]) for value in values[name]])
    whole = {
        name: np.concatenate([np.empty(0, dtype), *arrays[name]]) for name, dtype in _TABLE.items()
    }
    for metric in sorted(layout.metrics):
        chunks = [some.get(metric, np.full(size, np.nan)) for size, some in metrics]
        whole[METRIC + metric] = np.concatenate(chunks)
    hashes = np.array([id_hash(id) for id in ids], dtype=np.int64)
    return _make_table(whole, hashes, ids, labels, keys, item_keys, layout.plain)


_TABLE: dict[str, type[np.generic]] = {
    "index": np.int64,
    "content": np.int64,
    "repeat": np.int64,
    "reward": np.float64,
    "truncated": np.bool_,
    "weighted": np.bool_,
}
"""Columns that every table is made of."""


def _as_label(value: Any, column: ColumnType) -> Any:
    if value is None:
        return None
    if column.kind == "string":
        return as_text(value, mixed=column.mixed)
    return float(value) if column.kind == "double" else value


def _table_from_parquet(
    run: RunDir, file: ParquetFile, keys: Sequence[str], item_keys: Sequence[str], repeats: int
) -> Table:
    metrics = [name for name in file.columns if name.startswith(METRIC)]
    names = {key: column_name(key, file.columns, run.path) for key in (*keys, *item_keys)}
    arrays = file.read([*_TABLE, "id_hash", *metrics])
    whole = {name: np.ma.filled(array, np.nan) for name, array in arrays.items()}
    hashes = whole["id_hash"][_first_of_sample(whole["index"])]
    labels = {key: Labels(*file.read_codes(name)) for key, name in names.items()}

    def read_ids() -> list[str]:
        with current_parquet(run) as again:
            if again is None:  # gone since
                return list(_table_from_journal(run, (), (), repeats).sample_ids)
            columns = again.read(["index", "sample_id"])
        ids: list[str] = columns["sample_id"][_first_of_sample(columns["index"])].tolist()
        return ids

    ids = SampleIds(len(hashes), read_ids)
    return _make_table(whole, hashes, ids, labels, keys, item_keys, file.plain)


def _first_of_sample(index: Ints) -> NDArray[np.bool_]:
    return np.asarray(np.diff(index, prepend=-1) != 0)


def _make_table(
    whole: Mapping[str, NDArray[Any]],
    id_hashes: Ints,
    ids: Sequence[str],
    labels: Mapping[str, Labels],
    keys: Sequence[str],
    item_keys: Sequence[str],
    plain: Iterable[str],
) -> Table:
    first = _first_of_sample(whole["index"])
    sample = np.cumsum(first, dtype=np.int64) - 1
    return Table(
        ids,
        whole["content"][first].view(np.uint64),
        id_hashes.view(np.uint64),
        sample,
        whole["repeat"],
        whole["reward"],
        whole["truncated"],
        whole["weighted"],
        {n.removeprefix(METRIC): values for n, values in whole.items() if n.startswith(METRIC)},
        {key: _labels_of_samples(key, labels[key], first, sample, ids) for key in keys},
        {key: labels[key] for key in item_keys},
        frozenset(plain),
    )


def _labels_of_samples(
    key: str, labels: Labels, first: NDArray[np.bool_], sample: Ints, ids: Sequence[str]
) -> Labels:
    of_samples = Labels(labels.codes[first], labels.values)
    different = np.flatnonzero(labels.codes != of_samples.codes[sample])
    if len(different):
        item = int(different[0])
        raise InvalidInput(
            f"{key!r} is not the same in all repeats of sample {ids[sample[item]]!r}: "
            f"{of_samples[sample[item]]!r:.80} and {labels[item]!r:.80}; choose a key that belongs "
            "to the sample"
        )
    return of_samples


def column_name(key: str, columns: Iterable[str], where: object) -> str:
    """Find the column of a metadata key, or of one of the fixed columns.

    Args:
        key: As a user writes it.
        columns: The names of the columns that there are.
        where: What has them, for the message.

    Returns:
        The column's name.

    Raises:
        RunDirectoryError: There is none; the message names those that there are.
    """
    for name in (METADATA + key, key):
        if name in columns and name not in HASHES:
            return name
    keys = [name.removeprefix(METADATA) for name in columns if name.startswith(METADATA)]
    named = [name if name.isprintable() else repr(name) for name in keys[:MAX_NAMED_KEYS]]
    if more := len(keys) - len(named):
        named.append(f"{more} more")
    known = ", ".join(named) or "no metadata"
    raise RunDirectoryError(
        f"{where} has no key {key!r}; its samples have {known} (or {', '.join(OFFERED)})"
    )


# --- Slices ---------------------------------------------------------------------------------------


def slice_summaries(
    report: EvalReport, by: Sequence[str], pass_threshold: float
) -> tuple[dict[tuple[Any, ...], Summary], Summary]:
    """Summarize the items of a report for each combination of values of some keys.

    Args:
        report: A report on disk.
        by: Metadata keys, or names of fixed columns.
        pass_threshold: The reward from which an item counts as passed.

    Returns:
        A summary by the values of the keys, None where an item lacks one, in sorted order; and
        that of all items.
    """
    table = table_of(report, item_keys=by)
    batch = make_table_batch(table)
    labels = [table.item_keys[key] for key in by]
    groups, first = number_groups(labels)
    summaries = summarize_groups(batch, groups, len(first), pass_threshold)
    values = [tuple(each[place] for each in labels) for place in first.tolist()]
    slices = dict(zip(values, summaries, strict=True))
    ordered = sorted(slices, key=lambda values: [sort_key(value) for value in values])
    return {key: slices[key] for key in ordered}, summarize_batch(batch, pass_threshold)


def make_table_batch(table: Table, clusters: Ints | None = None) -> Batch:
    """Give the columns that a summary of a table is made of.

    Args:
        table: The items.
        clusters: The cluster of each sample; without it, samples of equal content are one.

    Returns:
        The columns.
    """
    if clusters is None and has_duplicates(table.content):
        clusters = table.content.view(np.int64)
    return Batch(
        table.sample,
        table.sample if clusters is None else clusters[table.sample],
        table.reward,
        table.truncated,
        table.weighted,
        table.metrics,
        table.plain,
    )


def has_duplicates(numbers: NDArray[Any]) -> bool:
    """Tell whether a number occurs twice; many times as fast as `np.unique` where none does."""
    ordered = np.sort(numbers)
    return bool((ordered[1:] == ordered[:-1]).any())


def number_groups(labels: Sequence[Labels]) -> tuple[Ints, Ints]:
    """Number the combinations of values that occur.

    Args:
        labels: The values of each key, of all items.

    Returns:
        The number of each item's combination, from 0; and where each of them first occurs.
    """
    codes, first = np.zeros(len(labels[0]), dtype=np.int64), np.empty(0, dtype=np.int64)
    for each in labels:
        codes = codes * (len(each.values) + 1) + each.codes + 1
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    return codes, first


def places_by_code(codes: Ints) -> Iterator[tuple[int, Ints]]:
    """Give each code that occurs, and where it does, in order; one sort however many there are."""
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    return zip(distinct.tolist(), np.split(order, starts)[1:], strict=True)


def sort_key(value: Any) -> tuple[int, Any]:
    """Missing values last; numbers and texts each among themselves."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))
