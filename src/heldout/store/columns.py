"""Results as columns: what summaries, slices and comparisons are computed from.

The journal holds results in the order in which they finished. One pass puts them into the order of
the dataset and turns them into columns: NumPy arrays for the summary, and, where a run is large
enough for that to pay, `results.parquet`, which DuckDB writes and reads. Both are the same bytes
for the same results, so a run that was killed and resumed ends in the files of one that was not.

    derive(run, …)           the summary, and results.parquet
    table_of(report, keys)   every item of a report as columns: from Parquet, journal or memory
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats import Floats, Ints
from heldout.stats.summary import Batch, Summary, summarize_batch, summarize_groups
from heldout.store.journal import Row, id_hash, in_order, row_of
from heldout.store.parquet import Kind, ParquetFile, ParquetWriter, hash_of_file
from heldout.store.run_dir import RunDir, RunInfo, RunUsage
from heldout.types import EvalResult, weighted_mean

if TYPE_CHECKING:
    from heldout.store.report import EvalReport

Hashes = NDArray[np.uint64]
Arrays = dict[str, NDArray[Any]]
"""Columns by name."""

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
TOKENS = ("prompt_tokens", "completion_tokens")
SUMMARIZED = ("index", "content", "reward", "truncated", "weighted")
"""Columns that a summary needs, beside the metrics."""
TABLE = (*SUMMARIZED, "repeat", "id_hash")
"""Columns that every table is made of, beside metrics and tokens."""
MAX_NAMED_KEYS = 20
"""Metadata keys that such a message names; the rest is a number."""
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


class Part:
    """Some results in dataset order, as columns."""

    def __init__(self, rows: list[Row]) -> None:
        self.metadata = [
            {**row.sample.metadata, **row.metadata} if row.metadata else row.sample.metadata
            for row in rows
        ]
        self.own = set[str]().union(*(row.metadata for row in rows if row.metadata))
        """Metadata keys that results add to those of their samples: what came out."""
        self.plain: set[str] = set()
        """Metrics that some item has neither as a rate nor with a weight: they may be counts."""
        metrics: dict[str, list[float]] = {}
        nothing, weighted = [np.nan] * len(rows), [False] * len(rows)
        for i, row in enumerate(rows):
            for metric in row.score.metrics:
                values = metrics.get(metric.name)
                if values is None:
                    values = metrics[metric.name] = nothing.copy()
                values[i] = metric.value
                if metric.weight:
                    weighted[i] = True
                elif not metric.rate:
                    self.plain.add(metric.name)
        rewards = [
            np.nan if row.error is not None else weighted_mean(row.score.metrics) for row in rows
        ]
        stops = [row.trajectory.stop for row in rows]
        usages = [row.trajectory.usage for row in rows]
        timings = [row.trajectory.timing for row in rows]
        fixed: dict[str, list[Any]] = {
            "sample_id": [row.sample.id for row in rows],
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
            "content": [row.sample.content for row in rows],
            "id_hash": [id_hash(row.sample.id) for row in rows],
        }
        self.columns = {name: as_array(values, FIXED[name]) for name, values in fixed.items()}
        self.columns["ok"] = ~np.isnan(self.columns["reward"])
        self.columns |= {METRIC + name: np.array(values) for name, values in metrics.items()}
        self._values: dict[str, list[Any]] = {}

    @cached_property
    def keys(self) -> set[str]:
        """The metadata keys of these results."""
        return set[str]().union(*self.metadata)

    def values(self, key: str) -> list[Any]:
        """Give the values of a metadata key; None where a result has none."""
        if key not in self._values:
            self._values[key] = [metadata.get(key) for metadata in self.metadata]
        return self._values[key]

    def select(self, names: Iterable[str]) -> Arrays:
        """Take these columns, and those of the metrics."""
        metrics = [name for name in self.columns if name.startswith(METRIC)]
        return {name: self.columns[name] for name in (*names, *metrics)}


def parts_of(rows: Iterable[Row]) -> Iterator[Part]:
    """Turn rows into columns, `BATCH` of them at a time."""
    rows = iter(rows)
    while some := list(islice(rows, BATCH)):
        yield Part(some)


def kind_of(values: Iterable[Any]) -> Kind | None:
    """Find what all of these values can be stored as; None where there is none but None."""
    types = {*map(type, values)} - {type(None)}
    if not types:
        return None
    if types == {str}:
        return "string"
    if types == {bool}:
        return "bool"
    if types <= {int, float} and _fit([value for value in values if type(value) is int]):
        return "int" if types == {int} else "double"
    return "json"


def _fit(integers: list[int]) -> bool:
    return not integers or (min(integers) >= -(2**63) and max(integers) < 2**63)


def merge_kinds(one: Kind | None, other: Kind | None) -> Kind | None:
    """Find what values of two kinds can be stored as."""
    if one == other or one is None or other is None:
        return one or other
    return "double" if {one, other} == {"int", "double"} else "json"


def as_array(values: list[Any], kind: Kind) -> NDArray[Any]:
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
    """Give a text as it is, and everything else as JSON; None where there is no value."""
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_json(value: Any) -> str:
    return _encoder.encode(value).decode()


# --- The journal to a summary and a Parquet file --------------------------------------------------


def derive(
    run: RunDir, repeats: int, pass_threshold: float, *, parquet: bool
) -> tuple[Summary, RunUsage, str]:
    """Summarize what the journal holds now, complete or not; it is read once.

    Returns the summary, the usage, and a hash of results.parquet: "" where there is none.
    """
    written = ""
    if parquet:
        written = write_parquet(lambda: parts_of(in_order(run.journal, repeats)), run.columns)
    if not written:
        table = _table_from_rows(in_order(run.journal, repeats), (), (), run.path)
        return summarize_batch(table, pass_threshold), table.usage, written
    with closing(ParquetFile(run.columns)) as file:
        usage = _count_usage(**file.read(TOKENS))
        columns = _read_columns(file, SUMMARIZED)
    index, content = columns["index"], columns["content"]
    has_copies = has_duplicates(content[_first_of_sample(index)])
    batch = Batch(
        index,
        content if has_copies else index,
        columns["reward"],
        columns["truncated"],
        columns["weighted"],
        _metrics_in(columns),
        file.plain,
    )
    return summarize_batch(batch, pass_threshold), usage, written


def _read_columns(file: ParquetFile, names: Iterable[str]) -> Arrays:
    """Read columns, and those of the metrics, with NaN where there is no value."""
    metrics = [name for name in file.columns if name.startswith(METRIC)]
    return {n: np.ma.filled(array, np.nan) for n, array in file.read([*names, *metrics]).items()}


def _count_usage(prompt_tokens: Ints, completion_tokens: Ints) -> RunUsage:
    """Add tokens up, which are masked where they were not counted."""
    sums = (int(np.ma.filled(tokens, 0).sum()) for tokens in (prompt_tokens, completion_tokens))
    return RunUsage(int(np.ma.count(prompt_tokens)), *sums)


def join_arrays(arrays: list[Arrays]) -> Arrays:
    """Join the columns of a table from parts; a metric that a part lacks is NaN there."""
    metrics = {name for part in arrays for name in part if name.startswith(METRIC)}
    joined: Arrays = {}
    for name in (*TABLE, *TOKENS, *sorted(metrics)):
        chunks = [part.get(name, np.full(len(part["index"]), np.nan)) for part in arrays]
        join: Callable[..., Any] = np.ma.concatenate if name in TOKENS else np.concatenate
        joined[name] = join(chunks) if chunks else as_array([], FIXED[name])
    return joined


def _metrics_in(columns: Arrays) -> dict[str, Floats]:
    return {
        name.removeprefix(METRIC): values
        for name, values in columns.items()
        if name.startswith(METRIC)
    }


class Schema:
    """Which columns results need, as far as they have been read."""

    def __init__(self) -> None:
        self.metadata: dict[str, Kind | None] = {}
        """None where no result has had a value."""
        self.metrics: set[str] = set()
        self.plain: set[str] = set()
        self.own: set[str] = set()

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each column, by name, in their order."""
        kinds = dict(FIXED)
        for name in sorted(self.metrics):
            kinds[METRIC + name] = "double"
        for key in sorted(self.metadata):
            kinds[METADATA + key] = self.metadata[key] or "string"
        return kinds

    @property
    def too_large(self) -> bool:
        """Whether there are too many columns for a table."""
        return len(FIXED) + len(self.metrics) + len(self.metadata) > MAX_COLUMNS

    def add(self, part: Part) -> bool:
        """Take note of the columns of a part; False where one has become another kind."""
        self.plain |= part.plain
        self.own |= part.own
        self.metrics |= _metrics_in(part.columns).keys()
        before = dict(self.metadata)
        for key in part.keys:
            # Too many keys make no file, whatever their kinds.
            kind = None if len(part.keys) > MAX_COLUMNS else kind_of(part.values(key))
            self.metadata[key] = merge_kinds(before.get(key), kind)
        return all(kind in (None, self.metadata[key]) for key, kind in before.items())

    def metadata_arrays(self, part: Part) -> Arrays:
        """Give the metadata of a part as columns."""
        return {
            METADATA + key: as_array(part.values(key), kind)
            for key, kind in self.metadata.items()
            if kind is not None
        }


def write_parquet(read_parts: Callable[[], Iterable[Part]], path: Path) -> str:
    """Write results, which are read in dataset order, as a Parquet file; returns a hash of it.

    They are read once more where a key turns out to have values of several kinds. Without results,
    or with too many columns, there is no file, and the hash is "".
    """
    schema = Schema()
    is_settled = False
    while not is_settled:
        is_settled = True
        with ParquetWriter() as writer:
            for part in read_parts():
                is_settled = schema.add(part) and is_settled
                if is_settled and not schema.too_large:
                    writer.add(schema.kinds, part.columns | schema.metadata_arrays(part))
            if schema.too_large:
                break
            if is_settled and len(writer):
                return writer.write(path, schema.kinds, schema.plain, schema.own)
    path.unlink(missing_ok=True)
    return ""


@contextmanager
def current_parquet(run: RunDir, info: RunInfo | None = None) -> Iterator[ParquetFile | None]:
    """Open results.parquet; None where there is none that was made of the journal as it is now."""
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
        """Take some of them."""
        return Labels(self.codes[which], self.values)


def label(values: Sequence[Any]) -> Labels:
    """Number values, None where there is none, by the order in which they first come."""
    if (kind := kind_of(values)) in ("json", "double"):
        convert: Callable[[Any], Any] = _as_json if kind == "json" else float
        values = [v if v is None or v != v else convert(v) for v in values]
    numbers: dict[Any, int] = {}
    codes = [-1 if v is None or v != v else numbers.setdefault(v, len(numbers)) for v in values]
    return Labels(np.array(codes, dtype=np.int64), list(numbers))


class SampleIds(Sequence[str]):
    """The ids of samples, read when one of them is asked for: most often none is."""

    def __init__(self, count: int, read: Callable[[], list[str]]) -> None:
        self._count, self._read = count, read

    @cached_property
    def _ids(self) -> list[str]:
        return self._read()

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._ids[place]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Table(Batch):
    """Every item of a run as columns: dataset order, the repeats of a sample side by side."""

    sample_ids: Sequence[str]
    """One for each sample, in dataset order; `sample` is a place in it."""
    content: Hashes
    """Of each sample: a hash of its input and ground truth, not of its metadata."""
    id_hash: Hashes
    """Of each sample's id: two runs of the same samples are told by it at once."""
    repeat: Ints
    read_tokens: Callable[[], Arrays]
    """Reads prompt and completion tokens of each item, masked where they were not counted."""
    keys: Mapping[str, Labels]
    """Of each sample: the value of a metadata key that was asked for; None where it has none."""
    item_keys: Mapping[str, Labels]
    """The same of each item, for keys that repeats of a sample need not agree on."""

    @property
    def usage(self) -> RunUsage:
        """What the attempts took, as far as they say so."""
        return _count_usage(**self.read_tokens())


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
    """Take the items of a table for which `items` is true, with the samples that they are of."""
    if len(items) != len(table):
        raise RunDirectoryError("the run was changed while it was read")
    samples, numbers = np.unique(table.sample[items], return_inverse=True)
    content, sample = table.content[samples], numbers.astype(np.int64)
    return Table(
        sample=sample,
        cluster=_clusters(content, sample),
        reward=table.reward[items],
        truncated=table.truncated[items],
        weighted=table.weighted[items],
        metrics={name: values[items] for name, values in table.metrics.items()},
        plain=table.plain,
        sample_ids=SampleIds(len(samples), lambda: [table.sample_ids[i] for i in samples.tolist()]),
        content=content,
        id_hash=table.id_hash[samples],
        repeat=table.repeat[items],
        read_tokens=lambda: {name: n[items] for name, n in table.read_tokens().items()},
        keys={key: labels.rows(samples) for key, labels in table.keys.items()},
        item_keys={key: labels.rows(items) for key, labels in table.item_keys.items()},
    )


def _clusters(content: Hashes, sample: Ints) -> Ints:
    """Number the cluster of each item: samples of equal content are one."""
    return content.view(np.int64)[sample] if has_duplicates(content) else sample


def table_of(
    report: EvalReport, keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> Table:
    """Give all items of a report, finished or not, with the values of metadata keys.

    Repeats of a sample have the same value of each of `keys`, or are refused (InvalidInput); they
    may differ in `item_keys`. RunDirectoryError says that there is no such key, and which are.
    """
    run = report.run_dir
    if run is None:
        return table_of_results(report.results, keys, item_keys=item_keys)
    with current_parquet(run, report.info) as file:
        if file is not None:
            table = _table_from_parquet(run, file, keys, item_keys)
        else:
            rows = in_order(run.journal, report.repeats)
            table = _table_from_rows(rows, keys, item_keys, run.path)
    return table if report.selection is None else pick_items(table, report.selection.items)


def rows_of(report: EvalReport) -> Iterator[Row]:
    """Read the results of a report as rows, in dataset order."""
    run = report.run_dir
    if run is None:
        return iter(_rows_of_results(report.results))
    rows = in_order(run.journal, report.repeats)
    return rows if report.selection is None else compress(rows, report.selection.items)


def table_of_results(
    results: Iterable[EvalResult], keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> Table:
    """Give results in memory as a table; samples are in the order in which they first come."""
    return _table_from_rows(_rows_of_results(results), keys, item_keys, "this report")


def _rows_of_results(results: Iterable[EvalResult]) -> list[Row]:
    numbers: dict[str, int] = {}
    rows = [row_of(numbers.setdefault(r.sample_id, len(numbers)), r) for r in results]
    return sorted(rows, key=lambda row: (row.index, row.repeat))


def _table_from_rows(
    rows: Iterable[Row], keys: Sequence[str], item_keys: Sequence[str], where: object
) -> Table:
    arrays: list[Arrays] = []
    names = [name for key in (*keys, *item_keys) for name in (METADATA + key, key)]
    values: dict[str, list[Any]] = {name: [] for name in names}
    known, plain, ids = set[str](), set[str](), list[str]()
    for part in parts_of(rows):
        arrays.append(part.select((*TABLE, *TOKENS)))
        ids += part.columns["sample_id"].tolist()
        known |= part.keys
        plain |= part.plain
        for name, column in values.items():
            if name in FIXED:
                column += part.columns[name].tolist()
            else:
                column += part.values(name.removeprefix(METADATA))
    columns = join_arrays(arrays)
    first = _first_of_sample(columns["index"])
    labels = {}
    for key in (*keys, *item_keys):
        name = column_name(key, [*FIXED, *(METADATA + k for k in sorted(known))], where)
        labels[key] = label(values[name])
    tokens = {name: columns[name] for name in TOKENS}
    own_ids = list(compress(ids, first))
    return _make_table(columns, own_ids, lambda: tokens, labels, keys, item_keys, plain, where)


def _table_from_parquet(
    run: RunDir, file: ParquetFile, keys: Sequence[str], item_keys: Sequence[str]
) -> Table:
    names = {key: column_name(key, file.columns, run.path) for key in (*keys, *item_keys)}
    columns = _read_columns(file, TABLE)
    first = _first_of_sample(columns["index"])

    def read_again(*names: str) -> Arrays:
        with current_parquet(run) as again:
            if again is None:
                raise RunDirectoryError(f"{run.path} was changed while it was read")
            return again.read(names)

    def read_ids() -> list[str]:
        ids: list[str] = read_again("sample_id")["sample_id"][first].tolist()
        return ids

    labels = {key: Labels(*file.read_codes(name)) for key, name in names.items()}
    ids = SampleIds(int(first.sum()), read_ids)
    return _make_table(
        columns, ids, lambda: read_again(*TOKENS), labels, keys, item_keys, file.plain, run.path
    )


def _first_of_sample(index: Ints) -> NDArray[np.bool_]:
    return np.append(np.ones(min(1, len(index)), np.bool_), index[1:] != index[:-1])


def _make_table(
    columns: Arrays,
    ids: Sequence[str],
    read_tokens: Callable[[], Arrays],
    labels: Mapping[str, Labels],
    keys: Sequence[str],
    item_keys: Sequence[str],
    plain: Iterable[str],
    where: object,
) -> Table:
    first = _first_of_sample(columns["index"])
    sample = np.cumsum(first, dtype=np.int64) - 1
    hashes, repeat = columns["id_hash"], columns["repeat"]
    again = has_duplicates(hashes[first])
    if not first.all():
        later = repeat[1:] > repeat[:-1]
        again |= bool((hashes != hashes[first][sample]).any() or not (first[1:] | later).all())
    if again:
        raise RunDirectoryError(
            f"{where}: a sample, or an attempt at one, is there twice; was results.jsonl changed "
            "from outside?"
        )
    content = columns["content"][first].view(np.uint64)
    return Table(
        sample=sample,
        cluster=_clusters(content, sample),
        reward=columns["reward"],
        truncated=columns["truncated"],
        weighted=columns["weighted"],
        metrics=_metrics_in(columns),
        plain=frozenset(plain),
        sample_ids=ids,
        content=content,
        id_hash=hashes[first].view(np.uint64),
        repeat=repeat,
        read_tokens=read_tokens,
        keys={key: _labels_of_samples(key, labels[key], first, sample, ids) for key in keys},
        item_keys={key: labels[key] for key in item_keys},
    )


def _labels_of_samples(
    key: str, labels: Labels, first: NDArray[np.bool_], sample: Ints, ids: Sequence[str]
) -> Labels:
    of_samples = labels.rows(first)
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
    """Find the column of a metadata key, or of one of the fixed columns, as a user writes it."""
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


# --- Summaries ------------------------------------------------------------------------------------


def summarize_results(results: Iterable[EvalResult], pass_threshold: float = 0.5) -> Summary:
    """Summarize results in memory, in any order, as summary.json has it.

    Repeats of one sample are one cluster, and so are samples of equal content.
    """
    return summarize_batch(table_of_results(results), pass_threshold)


def slice_summaries(
    report: EvalReport, by: Sequence[str], pass_threshold: float
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


def make_table_batch(table: Table, clusters: Ints | None = None) -> Batch:
    """Give what a summary of a table needs, with other clusters, one for each sample, if given."""
    return table if clusters is None else replace(table, cluster=clusters[table.sample])


def has_duplicates(numbers: NDArray[Any]) -> bool:
    """Tell whether a number occurs twice; many times as fast as `np.unique` where none does."""
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
    """Give each code that occurs, and where it does, in order; one sort however many there are."""
    order = np.argsort(codes, kind="stable")
    distinct, starts = np.unique(codes[order], return_index=True)
    return zip(distinct.tolist(), np.split(order, starts)[1:], strict=True)


def sort_key(value: Any) -> tuple[int, Any]:
    """Sort missing values last; numbers and texts each among themselves."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))
