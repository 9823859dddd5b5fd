"""Results as columns: what summaries, slices and comparisons are computed from.

The journal holds results in the order in which they finished. One pass puts them into the order of
the dataset and turns them into columns: NumPy arrays for the summary, and, where a run is large
enough for that to pay, `results.parquet`, which DuckDB writes and reads. Both are the same bytes
for the same results, so a run that was killed and resumed ends in the files of one that was not.

    derive(run, …)           the summary, and results.parquet
    table_of(report, keys)   every item of a report as columns: from Parquet, journal or memory
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import UNREADABLE, InvalidInput, RunDirectoryError
from heldout.stats import Ints
from heldout.stats.summary import Batch, Summary, summarize_batch, summarize_groups
from heldout.store.error_counts import ErrorCount, count_errors
from heldout.store.journal import RecordRow, hash_ids, in_order, row_of
from heldout.store.parquet import FORMAT, ColumnType, ParquetFile, ParquetWriter, hash_of_file
from heldout.store.run_dir import ModelUsage, RunDir, RunInfo, RunUsage
from heldout.types import MOST_TOKENS, EvalResult, OtherUsage

if TYPE_CHECKING:
    from heldout.store.report import EvalReport

Hashes = NDArray[np.uint64]
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
TOKENS = ("prompt_tokens", "completion_tokens", "other_usage")
SUMMARIZED = ("index", "cluster_hash", "reward", "truncated", "weighted", "cached", "cached_turns")
"""Columns that a summary needs, beside the metrics."""
TABLE = (*SUMMARIZED, "content", "repeat", "id_hash")
"""Columns that every table is made of, beside the metrics."""
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


class ColumnChunk:
    """Some results in dataset order, as columns."""

    def __init__(self, rows: list[RecordRow]) -> None:
        self._metadata = [
            {**row.sample.metadata, **row.metadata} if row.metadata else row.sample.metadata
            for row in rows
        ]
        self.keys = set[str]().union(*self._metadata)
        """The metadata keys of these results."""
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
        self.columns = {name: as_array(values, FIXED[name]) for name, values in fixed.items()}
        self.columns["id_hash"] = np.frombuffer(hash_ids(ids), "<i8")
        self.columns["ok"] = ~np.isnan(self.columns["reward"])
        self.metrics = {METRIC + name: np.array(values) for name, values in metrics.items()}

    def values(self, key: str) -> list[Any]:
        """Return the values of a metadata key; None where a result has none."""
        return [metadata.get(key) for metadata in self._metadata]


def parts_of(rows: Iterable[RecordRow]) -> Iterator[ColumnChunk]:
    """Turn rows into columns, `BATCH` of them at a time."""
    rows = iter(rows)
    while batch := list(islice(rows, BATCH)):
        yield ColumnChunk(batch)


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


class MemoryColumns:
    """The columns of results in memory, read as those of a `ParquetFile` are."""

    def __init__(self, *names: str, keys: Sequence[str] = ()) -> None:
        """Hold the columns of a table, the given ones, the metrics, and metadata keys."""
        self._names = [*dict.fromkeys((*TABLE, *names, *(key for key in keys if key in FIXED)))]
        self._arrays: list[Arrays] = [{name: as_array([], FIXED[name]) for name in self._names}]
        self._values: dict[str, list[Any]] = {METADATA + key: [] for key in keys}
        self.columns = dict[str, Any](FIXED)
        self.possible_counts: set[str] = set()
        self.usage = TokenCounts()

    def add(self, part: ColumnChunk) -> None:
        """Append results."""
        self.usage.add(part.columns)
        self._arrays.append({name: part.columns[name] for name in self._names} | part.metrics)
        self.columns |= part.metrics | dict.fromkeys(METADATA + key for key in sorted(part.keys))
        self.possible_counts |= part.possible_counts
        for name, values in self._values.items():
            values += part.values(name.removeprefix(METADATA))

    def read(self, names: Iterable[str]) -> Arrays:
        """Read whole columns, as `ParquetFile.read` does."""
        if len(self._arrays) > 1:  # column by column, so that few are there twice
            sizes = [len(part["index"]) for part in self._arrays]
            joined: Arrays = {}
            for name in {name: None for part in self._arrays for name in part}:
                parts = zip(self._arrays, sizes, strict=True)
                chunks = [p.pop(name) if name in p else np.full(n, np.nan) for p, n in parts]
                joined[name] = np.ma.concatenate(chunks)  # type: ignore[no-untyped-call]
            self._arrays = [joined]
        return {name: self._arrays[0][name] for name in names}

    def read_ids(self) -> NDArray[Any]:
        """Read the sample id of each result."""
        return self.read(["sample_id"])["sample_id"]

    def read_codes(self, name: str) -> tuple[Ints, list[Any]]:
        """Number the values of a column, as `ParquetFile.read_codes` does."""
        values = self._values.get(name)
        return label(self.read([name])[name].tolist() if values is None else values)


ColumnSource = ParquetFile | MemoryColumns


def label(values: Sequence[Any]) -> tuple[Ints, list[Any]]:
    """Number values in order of first occurrence; -1 where there is none."""
    if (kind := kind_of(values)) in ("json", "double"):
        convert: Callable[[Any], Any] = _as_json if kind == "json" else float
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
        file = write_parquet(lambda: parts_of(in_order(run.journal, repeats)), run.columns)
    if file is None:
        source = MemoryColumns("sample_id")
        for part in parts_of(in_order(run.journal, repeats)):
            source.add(part)
        table = _make_table(source, (), (), run.path, source.read_ids)
        return summarize_batch(table, pass_threshold), source.usage.total(), ""
    with closing(file):
        usage = TokenCounts().add(file.read(TOKENS)).total()
        # Within little memory: a million results take 8 MB a column.
        file.db.execute("SET memory_limit = '64MB'")
        _refuse_twice(**file.read(("index", "repeat", "id_hash")), where=run.path)
        columns = _read_filled(file, SUMMARIZED)
    summary = summarize_columns(columns, file.possible_counts, pass_threshold)
    return summary, usage, hash_of_file(run.columns)


def summarize_columns(
    columns: Arrays, possible_counts: frozenset[str], pass_threshold: float | None
) -> Summary:
    """Summarize items in dataset order: SUMMARIZED and the metrics of each."""
    index = columns["index"]
    batch = Batch(
        index,
        _number_clusters(index, columns["cluster_hash"]),
        columns["reward"],
        columns["truncated"],
        columns["weighted"],
        columns["cached"],
        columns["cached_turns"],
        _metrics_in(columns),
        possible_counts,
    )
    return summarize_batch(batch, pass_threshold)


def write_parquet(
    read_parts: Callable[[], Iterable[ColumnChunk]], path: Path
) -> ParquetFile | None:
    """Write results, which are read in dataset order, as a Parquet file; returns it, open.

    They are read once more where a key turns out to have values of several kinds. Without results,
    or with too many columns, there is no file.
    """
    kinds: dict[str, ColumnType | None] = dict(FIXED)
    """None where no result has had a value."""
    possible_counts, own = set[str](), set[str]()
    is_settled = False
    while not is_settled:
        is_settled = True
        with ParquetWriter() as writer:
            for part in read_parts():
                if len({*kinds, *(METADATA + key for key in part.keys)}) > MAX_COLUMNS:
                    path.unlink(missing_ok=True)
                    return None
                possible_counts, own = possible_counts | part.possible_counts, own | part.own
                kinds |= dict.fromkeys(part.metrics, "double")
                metadata = {METADATA + key: part.values(key) for key in part.keys}
                for name, values in metadata.items():
                    before = kinds.get(name)
                    kinds[name] = merge_kinds(before, kind_of(values))
                    is_settled = is_settled and before in (None, kinds[name])
                if is_settled:
                    arrays = part.columns | part.metrics
                    if arrays["ok"].all():
                        del arrays["error"]  # a column without values
                    if not arrays["other_usage"].any():
                        del arrays["other_usage"]
                    for name, values in metadata.items():
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


# --- Every item as columns ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """The values of a metadata key, as numbers into those that there are."""

    codes: Ints
    """-1 where there is no value."""
    values: list[Any]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, item: int) -> Any:
        code = self.codes[item]
        return None if code < 0 else self.values[code]

    def __iter__(self) -> Iterator[Any]:
        values = [*self.values, None]
        return (values[code] for code in self.codes.tolist())

    def rows(self, which: NDArray[Any]) -> Labels:
        """Return some of them."""
        return Labels(self.codes[which], self.values)


@dataclass(frozen=True, kw_only=True, eq=False)
class ResultTable(Batch):
    """Every item of a run as columns: dataset order, the repeats of a sample side by side."""

    content: Hashes
    """Of each sample: a hash of its input and ground truth, not of its metadata."""
    id_hash: Hashes
    """Of each sample's id, to recognise two runs of the same samples quickly."""
    repeat: Ints
    keys: Mapping[str, Labels]
    """Of each sample: the value of a metadata key that was asked for; None where it has none."""
    item_keys: Mapping[str, Labels]
    """The same of each item, for keys that repeats of a sample need not agree on."""
    read_ids: Callable[[], list[str]]

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return len(self.id_hash)

    @property
    def sample_cluster(self) -> Ints:
        """The cluster of each sample."""
        return self.cluster[_first_of_sample(self.sample)]

    @cached_property
    def sample_ids(self) -> list[str]:
        """The id of each sample, which most often nothing asks for; `sample` is a place in it."""
        return self.read_ids()


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

    def pick(self, values: NDArray[Any]) -> NDArray[Any]:
        """Select the values of the items that it holds for."""
        if len(values) != len(self.items):
            raise RunDirectoryError("the run was changed while it was read")
        return values[self.items]


def table_of(
    report: EvalReport, keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> ResultTable:
    """Return all items of a report, finished or not, with the values of metadata keys.

    Repeats of a sample have the same value of each of `keys`, or are refused (InvalidInput); they
    may differ in `item_keys`. RunDirectoryError says that there is no such key, and which are.
    """
    run, selection = report.run_dir, report.selection
    if run is None:
        return table_of_results(report.results, keys, item_keys=item_keys)

    def read_ids_again() -> NDArray[Any]:
        with current_parquet(run, report.info) as file:
            if file is None:
                run.refuse_replaced(report.info)
                raise RunDirectoryError(f"{run.path} was changed while it was read")
            return file.read_ids()

    with current_parquet(run, report.info) as file:
        if file is not None:
            table = _make_table(file, keys, item_keys, run.path, read_ids_again, selection)
            run.refuse_replaced(report.info)
            return table
    columns = MemoryColumns("sample_id", keys=[*keys, *item_keys])
    for part in parts_of(in_order(run.journal, report.repeats)):
        columns.add(part)
    run.refuse_replaced(report.info)
    return _make_table(columns, keys, item_keys, run.path, columns.read_ids, selection)


def usage_of(report: EvalReport) -> RunUsage:
    """Count the tokens that the attempts of a report took, as far as they say so."""
    if report.run_dir is not None:
        with current_parquet(report.run_dir, report.info) as file:
            if file is not None:
                tokens = file.read(TOKENS)
                report.run_dir.refuse_replaced(report.info)
                if (selection := report.selection) is not None:
                    tokens = {name: selection.pick(counts) for name, counts in tokens.items()}
                return TokenCounts().add(tokens).total()
    counts = TokenCounts()
    for part in parts_of(rows_of(report)):
        counts.add(part.columns)
    return counts.total()


def errors_of(report: EvalReport) -> list[ErrorCount]:
    """Count the errors of a report's items, the commonest first."""
    if report.run_dir is not None:
        with current_parquet(report.run_dir, report.info) as file:
            if file is not None:
                errors = file.read(["error"])["error"]
                if report.selection is not None:
                    errors = report.selection.pick(errors)
                return count_errors(errors.tolist())  # masked, so None, where there is none
    return count_errors(row.error for row in rows_of(report))


def count_finish_reasons(report: EvalReport) -> dict[str, int]:
    """Count how the last model turns ended, the most frequent first, equals by name."""
    counts: Counter[str] = Counter()
    run, selection = report.run_dir, report.selection
    with nullcontext() if run is None else current_parquet(run, report.info) as file:
        if file is not None:
            codes, values = file.read_codes("finish_reason")
            codes = codes if selection is None else selection.pick(codes)
            found = np.bincount(codes[codes >= 0], minlength=len(values)).tolist()
            counts.update(dict(zip(values, found, strict=True)))
        else:
            counts.update(row.trajectory.stop.finish_reason or "" for row in rows_of(report))
    named = {reason: n for reason, n in counts.items() if reason and n}
    return dict(sorted(named.items(), key=lambda item: (-item[1], item[0])))


class TokenCounts:
    """Sums of tokens: of the policy, and of each judge and simulated user."""

    def __init__(self) -> None:
        self._policy = ModelUsage("policy")
        self._others: dict[tuple[str, str], ModelUsage] = {}

    def add(self, columns: Arrays) -> Self:
        """Add attempts; counts of the policy's that are masked, or cannot be any, are unknown."""
        # In floats, which are exact up to 2^53: a sum of integers could turn negative.
        names = ("prompt_tokens", "completion_tokens")
        counts = np.ma.stack([columns[name] for name in names]).astype(np.float64)
        known = np.ma.filled((counts >= 0) & (counts <= MOST_TOKENS), False).all(axis=0)
        prompt, completion = np.ma.filled(counts, 0)[:, known].sum(axis=1)
        self._policy = _add_usage(self._policy, int(known.sum()), int(prompt), int(completion))
        texts = columns["other_usage"]
        for text in texts.tolist() if len(texts) and np.ma.count(texts) else ():
            for part in _decode_others(text) if text is not None else ():
                key = part.role, part.model
                before = self._others.get(key) or ModelUsage(part.role, part.model)
                if part.usage is None:
                    after = msgspec.structs.replace(before, unknown=before.unknown + 1)
                else:
                    tokens = part.usage.prompt_tokens, part.usage.completion_tokens
                    after = _add_usage(before, 1, *tokens)
                self._others[key] = after
        return self

    def total(self) -> RunUsage:
        """Return what all models took, and the share of each."""
        return RunUsage.of([self._policy, *(self._others[key] for key in sorted(self._others))])


def _decode_others(text: str) -> tuple[OtherUsage, ...]:
    try:
        return _others_decoder.decode(text)
    except UNREADABLE:
        raise RunDirectoryError(
            "results.parquet has tokens that are none; without it the journal is read"
        ) from None


_others_decoder = msgspec.json.Decoder(tuple[OtherUsage, ...])


def _add_usage(usage: ModelUsage, n: int, prompt: int, completion: int) -> ModelUsage:
    return msgspec.structs.replace(
        usage,
        n=usage.n + n,
        prompt_tokens=usage.prompt_tokens + prompt,
        completion_tokens=usage.completion_tokens + completion,
    )


def rows_of(report: EvalReport) -> Iterator[RecordRow]:
    """Read the results of a report as rows, in dataset order."""
    run = report.run_dir
    if run is None:
        yield from _rows_of_results(report.results)
        return
    rows = in_order(run.journal, report.repeats)
    yield from rows if report.selection is None else compress(rows, report.selection.items)
    run.refuse_replaced(report.info)


def table_of_results(
    results: Iterable[EvalResult], keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> ResultTable:
    """Return results in memory as a table; samples are in order of first occurrence."""
    columns = MemoryColumns("sample_id", keys=[*keys, *item_keys])
    for part in parts_of(_rows_of_results(results)):
        columns.add(part)
    return _make_table(columns, keys, item_keys, "this report", columns.read_ids)


def _rows_of_results(results: Iterable[EvalResult]) -> list[RecordRow]:
    numbers: dict[str, int] = {}
    rows = [row_of(numbers.setdefault(r.sample_id, len(numbers)), r) for r in results]
    return sorted(rows, key=lambda row: (row.index, row.repeat))


def _make_table(
    source: ColumnSource,
    keys: Sequence[str],
    item_keys: Sequence[str],
    where: object,
    read_ids: Callable[[], NDArray[Any]],
    selection: Selection | None = None,
) -> ResultTable:
    names = {key: column_name(key, source.columns, where) for key in (*keys, *item_keys)}
    columns = _read_filled(source, TABLE)
    labels = {key: Labels(*source.read_codes(name)) for key, name in names.items()}
    if selection is not None:
        columns = {name: selection.pick(array) for name, array in columns.items()}
        labels = {key: values.rows(selection.items) for key, values in labels.items()}
    index, repeat, hashes = columns["index"], columns["repeat"], columns["id_hash"]
    _refuse_twice(index, repeat, hashes, where)
    first = _first_of_sample(index)
    sample = np.cumsum(first, dtype=np.int64) - 1

    def read_sample_ids() -> list[str]:
        ids = read_ids()
        return (ids if selection is None else selection.pick(ids))[first].tolist()  # type: ignore[no-any-return]

    content = columns["content"][first].view(np.uint64)
    table = ResultTable(
        sample=sample,
        cluster=_number_clusters(sample, columns["cluster_hash"]),
        reward=columns["reward"],
        truncated=columns["truncated"],
        weighted=columns["weighted"],
        cached=columns["cached"],
        cached_turns=columns["cached_turns"],
        metrics=_metrics_in(columns),
        possible_counts=frozenset(source.possible_counts),
        content=content,
        id_hash=hashes[first].view(np.uint64),
        repeat=repeat,
        keys={key: labels[key].rows(first) for key in keys},
        item_keys={key: labels[key] for key in item_keys},
        read_ids=read_sample_ids,
    )
    for key in keys:
        _check_same_in_repeats(key, labels[key], table)
    return table


def _read_filled(source: ColumnSource, names: Iterable[str]) -> Arrays:
    """Read columns, and those of the metrics, with NaN where there is no value."""
    metrics = sorted(name for name in source.columns if name.startswith(METRIC))
    stored = {name: name for name in (*names, *metrics)}
    if "cluster_hash" not in source.columns:  # a file of an earlier version clusters by content
        stored["cluster_hash"] = "content"
    arrays = source.read(stored.values())
    if any(a.dtype.kind in "biu" and np.ma.is_masked(a) for a in arrays.values()):
        raise RunDirectoryError("results.parquet lacks values; without it the journal is read")
    return {name: np.ma.filled(arrays[column], np.nan) for name, column in stored.items()}


def _metrics_in(columns: Arrays) -> dict[str, NDArray[Any]]:
    metrics = [name for name in columns if name.startswith(METRIC)]
    return {name.removeprefix(METRIC): columns[name] for name in metrics}


def _number_clusters(sample: Ints, hashes: Ints) -> Ints:
    """Number the cluster of each row: its sample, or what samples share (clause 7).

    All attempts at a sample have the hash of the first: one that broke may lack what others have.
    """
    first = _first_of_sample(sample)
    of_samples = hashes[first]
    return of_samples[np.cumsum(first) - 1] if has_duplicates(of_samples) else sample


def _first_of_sample(index: Ints) -> NDArray[np.bool_]:
    return np.append(np.ones(min(1, len(index)), np.bool_), index[1:] != index[:-1])


def _refuse_twice(index: Ints, repeat: Ints, id_hash: Ints, where: object) -> None:
    """Refuse results in which a sample, or an attempt at one, is there twice."""
    first = _first_of_sample(index)
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


def _check_same_in_repeats(key: str, labels: Labels, table: ResultTable) -> None:
    different = np.flatnonzero(labels.codes != table.keys[key].codes[table.sample])
    if len(different):
        item = int(different[0])
        sample = int(table.sample[item])
        raise InvalidInput(
            f"{key!r} is not the same in all repeats of sample {table.sample_ids[sample]!r}: "
            f"{table.keys[key][sample]!r:.80} and {labels[item]!r:.80}; choose a key that belongs "
            "to the sample"
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


# --- Summaries ------------------------------------------------------------------------------------


def summarize_results(results: Iterable[EvalResult], pass_threshold: float | None = 0.5) -> Summary:
    """Summarize results in memory, in any order, as summary.json has it.

    Repeats of one sample are one cluster, and so are samples of equal content.
    """
    return summarize_batch(table_of_results(results), pass_threshold)


def group_results(
    results: Iterable[EvalResult], by: str | Callable[[EvalResult], Any]
) -> dict[Any, list[EvalResult]]:
    """Group results by the value of a key, None where one has none, or of a function of them."""
    results = list(results)
    if callable(by):
        values = [by(result) for result in results]
    else:
        columns = MemoryColumns(keys=[by])
        for part in parts_of(row_of(i, result) for i, result in enumerate(results)):
            columns.add(part)
        name = column_name(by, columns.columns, "this report")
        values = [*Labels(*columns.read_codes(name))]
    groups: dict[Any, list[EvalResult]] = {}
    for value, result in zip(values, results, strict=True):
        groups.setdefault(value, []).append(result)
    return {value: groups[value] for value in sorted(groups, key=sort_key)}


def slice_summaries(
    report: EvalReport, by: Sequence[str], pass_threshold: float | None
) -> tuple[dict[tuple[Any, ...], Summary], Summary]:
    """Summarize a report by the values of keys, None where an item has none; and all of it."""
    table = table_of(report, item_keys=by)
    labels = [table.item_keys[key] for key in by]
    groups, first = number_groups(labels)
    summaries = summarize_groups(table, groups, len(first), pass_threshold)
    values = [tuple(key[item] for key in labels) for item in first.tolist()]
    slices = dict(zip(values, summaries, strict=True))
    ordered = sorted(slices, key=lambda values: [sort_key(value) for value in values])
    return {key: slices[key] for key in ordered}, summarize_batch(table, pass_threshold)


def make_table_batch(table: ResultTable, clusters: Ints | None = None) -> Batch:
    """Return what a summary of a table needs; `clusters`, if given, has one entry per sample."""
    return table if clusters is None else replace(table, cluster=clusters[table.sample])


def has_duplicates(numbers: NDArray[Any]) -> bool:
    """Return whether any number occurs twice; much faster than `np.unique` if none does."""
    ordered = np.sort(numbers)
    return bool((ordered[1:] == ordered[:-1]).any())


def number_groups(labels: Sequence[Labels]) -> tuple[Ints, Ints]:
    """Number the combinations of values that occur, from 0; and find where each first occurs."""
    codes, first = np.zeros(len(labels[0]), dtype=np.int64), np.empty(0, dtype=np.int64)
    for key in labels:
        codes = codes * (len(key.values) + 1) + key.codes + 1
        _, first, codes = np.unique(codes, return_index=True, return_inverse=True)
    return codes, first


def places_by_code(codes: Ints) -> Iterator[tuple[int, Ints]]:
    """Return each code that occurs with its indices, in order, from a single sort."""
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    return zip(distinct.tolist(), np.split(order, starts)[1:], strict=True)


def sort_key(value: Any) -> tuple[int, Any]:
    """Sort missing values last; numbers and texts each among themselves."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))
