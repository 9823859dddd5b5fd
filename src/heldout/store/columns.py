"""From the journal to columns: results.parquet and the summary, both in dataset order.

The journal holds results as they finished; this puts them in the order of the dataset, so that
a run that was killed and resumed ends in the same bytes as one that was not. Rows are read twice
(once for the types of the metadata, once for the values) and written a group at a time, so memory
does not grow with the run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from heldout.errors import RunDirectoryError
from heldout.stats import Ints
from heldout.stats.summary import (
    BATCH,
    Batch,
    Summary,
    Tally,
    make_batch,
    summarize_batch,
    summarize_batches,
)
from heldout.store.journal import (
    Row,
    Shape,
    Superseded,
    cluster_of,
    id_hash,
    in_order,
    records,
    storage_error,
)
from heldout.store.parquet import Column, Kind, ParquetError, ParquetFile, ParquetWriter
from heldout.store.run_dir import RunDir
from heldout.types import EvalResult

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
"""Columns for programs: nobody slices by them."""
OFFERED = ("ended_by", "ok", "truncated", "repeat", "sample_id")
"""Fixed columns that are named beside metadata to whoever asks for a key that is not there."""
NAMED = 20
"""So many metadata keys are named in a message; the rest is a number."""
NEVER_NULL = {"index", "repeat", "truncated", "weighted", *HASHES}
METRIC, METADATA = "metric.", "metadata."
TOTAL: tuple[Any, ...] = ()
"""The slice of everything: no key, no value."""
MAX_COLUMNS = 512
"""A dataset with a metadata key per sample would make a file nobody can read."""


def derive(run: RunDir, *, repeats: int, pass_threshold: float) -> Summary:
    """Write results.parquet from the journal and return the summary of all its results."""
    again = Superseded()
    schema = schema_of(records(run.journal, Shape), again.see)
    tally = Tally(pass_threshold)
    temporary = run.columns.with_name(".results.parquet.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:
            whole = len(schema) <= MAX_COLUMNS
            schema = Schema(
                islice(schema.items(), MAX_COLUMNS), mixed=schema.mixed, plain=schema.plain
            )
            plain = _encoder.encode(sorted(schema.plain)).decode()
            kept = {"heldout.whole": str(whole), "heldout.plain": plain}
            writer = ParquetWriter(file, schema, metadata=kept)
            for rows in batched(in_order(run.journal, repeats, again.stale)):
                _write(writer, rows, schema)
                tally.add(_batch(rows))
            writer.close()
        temporary.replace(run.columns)
    except OSError as problem:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise storage_error(
            run.columns, problem, "; the journal is whole, so nothing is lost"
        ) from problem
    return _summary(tally, run, repeats)


def _write(writer: ParquetWriter, rows: list[Row], schema: Schema) -> None:
    """One row group, or several where one would be too large to be read again."""
    try:
        writer.write_group(column_lists(rows, schema, schema.mixed))
    except ValueError:
        if len(rows) == 1:
            raise
        _write(writer, rows[: len(rows) // 2], schema)
        _write(writer, rows[len(rows) // 2 :], schema)


def summarize_journal(run: RunDir, *, repeats: int, pass_threshold: float) -> Summary:
    """The summary of what the journal holds now, of a run that is under way or was stopped."""
    tally = Tally(pass_threshold)
    for rows in batched(in_order(run.journal, repeats)):
        tally.add(_batch(rows))
    return _summary(tally, run, repeats)


def _summary(tally: Tally, run: RunDir, repeats: int) -> Summary:
    if not tally.scattered:
        return tally.summary()
    batches = map(_batch, batched(in_order(run.journal, repeats)))
    return summarize_batches(batches, tally.pass_threshold)


def summarize_results(results: Iterable[EvalResult], pass_threshold: float = 0.5) -> Summary:
    """Summarize results that are in memory.

    Args:
        results: In any order; repeats of one sample are one cluster, and so are samples of equal
            content.
        pass_threshold: The reward from which an item counts as passed.

    Returns:
        The summary, as summary.json has it.
    """
    numbers: dict[str, int] = {}
    clusters: list[int] = []
    rows = []
    for result in results:
        number = numbers.setdefault(result.sample_id, len(numbers))
        if number == len(clusters):
            clusters.append(cluster_of(result.sample))
        rows.append((number, result))
    rows.sort(key=lambda row: (row[0], row[1].repeat))
    batch = make_batch(
        [number for number, _ in rows],
        [clusters[number] for number, _ in rows],
        [r.score.reward if r.ok else None for _, r in rows],
        [r.trajectory.stop.truncated for _, r in rows],
        [any(m.weight for m in r.score.metrics) for _, r in rows],
        [{m.name: m.value for m in r.score.metrics} for _, r in rows],
        frozenset(m.name for _, r in rows for m in r.score.metrics if not (m.rate or m.weight)),
    )
    return summarize_batch(batch, pass_threshold)


# --- Slices -------------------------------------------------------------------------------------


def slice_summaries(
    run: RunDir, by: Sequence[str], *, n: int | None, repeats: int, pass_threshold: float
) -> dict[tuple[Any, ...], Summary]:
    """A summary for every combination of values of these keys, in sorted order of the values.

    A key is a metadata key, or one of the fixed columns. Values are None where a result lacks it.
    The summary of all is there too, as TOTAL. `n` is how many results the run is known to have.
    """
    file = current_columns(run)
    if file is not None and file.num_rows == n:
        try:
            return _tallied(lambda: _labelled_by_columns(run, file, by), pass_threshold)
        except ParquetError:
            pass  # damaged inside; derived data, so the journal says the same, slower
    return _tallied(lambda: _labelled_by_journal(run, by, repeats), pass_threshold)


def _tallied(
    labelled: Callable[[], Labelled], pass_threshold: float
) -> dict[tuple[Any, ...], Summary]:
    tallies: dict[tuple[Any, ...], Tally] = {}
    total = Tally(pass_threshold)
    for labels, codes, batch in labelled():
        total.add(batch)
        for code, which in places_by_code(codes):
            tally = tallies.setdefault(labels[code], Tally(pass_threshold))
            tally.add(batch.rows(which))
    ordered = sorted(tallies, key=lambda key: [_sortable(value) for value in key])
    if not total.scattered:
        return {**{key: tallies[key].summary() for key in ordered}, TOTAL: total.summary()}
    parts: dict[tuple[Any, ...], list[Batch]] = {key: [] for key in (*ordered, TOTAL)}
    for labels, codes, batch in labelled():
        parts[TOTAL].append(batch)
        for code, which in places_by_code(codes):
            parts.setdefault(labels[code], []).append(batch.rows(which))
    return {key: summarize_batches(batches, pass_threshold) for key, batches in parts.items()}


def places_by_code(codes: Ints) -> Iterator[tuple[int, Ints]]:
    """Each code that occurs, and where it does, in order; one sort however many there are."""
    order = np.argsort(codes, kind="stable")
    found, starts = np.unique(codes[order], return_index=True)
    return zip(found.tolist(), np.split(order, starts)[1:], strict=True)


def slice_keys(run: RunDir) -> list[str]:
    """What a run can be sliced by."""
    file = current_columns(run)
    schema = file.schema if file else schema_of(records(run.journal, Shape))
    return [n.removeprefix(METADATA) for n in schema if n.startswith(METADATA)]


Labelled = Iterator[tuple[list[tuple[Any, ...]], Any, Batch]]
"""Batches with the labels that occur, and for every row the number of its label."""


def _labelled_by_journal(run: RunDir, by: Sequence[str], repeats: int) -> Labelled:
    schema = schema_of(records(run.journal, Shape))
    names = [column_name(key, schema, run.path) for key in by]
    for rows in batched(in_order(run.journal, repeats)):
        lists = column_lists(rows, {name: schema[name] for name in names}, schema.mixed)
        labels = list(zip(*(lists[name] for name in names), strict=True))
        numbers = {label: i for i, label in enumerate(dict.fromkeys(labels))}
        yield list(numbers), np.array([numbers[label] for label in labels]), _batch(rows)


def _labelled_by_columns(run: RunDir, file: ParquetFile, by: Sequence[str]) -> Labelled:
    names = [column_name(key, file.schema, run.path) for key in by]
    metrics = [name for name in file.schema if name.startswith(METRIC)]
    if "content" not in file.schema or "heldout.plain" not in file.metadata:
        raise ParquetError(f"{run.columns} is from an earlier version, which did not say as much")
    plain = schema_in(file).plain
    wanted = dict.fromkeys(
        [*names, "index", "content", "reward", "truncated", "weighted", *metrics]
    )
    for group in file.groups(list(wanted)):
        refuse_nulls(group)
        batch = Batch(
            group["index"].values,
            group["content"].values,
            group["reward"].values,
            group["truncated"].values,
            group["weighted"].values,
            {m.removeprefix(METRIC): group[m].values for m in metrics},
            plain,
        )
        codes, values = zip(*(coded(group[name]) for name in names), strict=True)
        if len(codes) == 1:  # many times as fast as the general case
            found, numbered = np.unique(codes[0], return_inverse=True)
            found = found[:, None]
        else:
            found, numbered = np.unique(np.stack(codes, 1), axis=0, return_inverse=True)
        labels = [tuple(v[i] for v, i in zip(values, row, strict=True)) for row in found.tolist()]
        yield labels, numbered.ravel(), batch


def coded(column: Column) -> tuple[Any, list[Any]]:
    """A column as numbers into a list of its values."""
    if column.dictionary is not None:
        return np.where(column.valid, column.values, len(column.dictionary)), [
            *column.dictionary,
            None,
        ]
    # Of those that there are: where there is none, a 0 or False stands in.
    distinct, numbers = np.unique(column.values[column.valid], return_inverse=True)
    codes = np.full(len(column.valid), len(distinct))
    codes[column.valid] = numbers
    return codes, [*distinct.tolist(), None]


def column_name(key: str, schema: Mapping[str, Kind], where: object) -> str:
    """The column of a metadata key, or of one of the fixed columns; `where` is for the message."""
    for name in (METADATA + key, key):
        if name in schema and name not in HASHES:
            return name
    keys = [name.removeprefix(METADATA) for name in schema if name.startswith(METADATA)]
    named = [name if name.isprintable() else repr(name) for name in keys[:NAMED]]
    if more := len(keys) - len(named):
        named.append(f"{more} more")
    known = ", ".join(named) or "no metadata"
    raise RunDirectoryError(
        f"{where} has no key {key!r}; its samples have {known} (or {', '.join(OFFERED)})"
    )


def _sortable(value: Any) -> tuple[int, Any]:
    """Missing values last; numbers and texts each among themselves."""
    if value is None:
        return (2, "")
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def current_columns(run: RunDir) -> ParquetFile | None:
    """The Parquet file, if it belongs to the journal as it is now."""
    if not run.derived_are_current(run.read_info()):
        return None
    try:
        file = ParquetFile(run.columns)
    except ParquetError:
        return None  # derived data: the journal says the same, slower
    # Columns that were left out would be missing from every slice.
    return file if file.metadata.get("heldout.whole") == "True" else None


def refuse_nulls(group: Mapping[str, Column]) -> None:
    """Of what every row has: a null would read as 0 or False, and 0 is some other sample."""
    for name in NEVER_NULL & group.keys():
        if not group[name].valid.all():
            raise ParquetError(f"column {name!r} has rows without a value")


# --- Rows to columns ----------------------------------------------------------------------------


def batched(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rows = iter(rows)
    while batch := list(islice(rows, BATCH)):
        yield batch


def _batch(rows: list[Row]) -> Batch:
    return make_batch(
        [row.index for row in rows],
        [row.sample.content for row in rows],
        [row.reward for row in rows],
        [row.trajectory.stop.truncated for row in rows],
        [row.weighted for row in rows],
        [{m.name: m.value for m in row.score.metrics} for row in rows],
        frozenset().union(*map(_plain, rows)),
    )


class Schema(dict[str, Kind]):
    """The kind of each column, by name."""

    def __init__(
        self,
        kinds: Mapping[str, Kind] | Iterable[tuple[str, Kind]],
        *,
        mixed: Collection[str] = (),
        plain: Collection[str] = (),
    ) -> None:
        super().__init__(kinds)
        self.plain = frozenset(plain)
        """Metrics that some item has neither as a rate nor with a weight: they may be counts."""
        self.mixed = frozenset(mixed)
        """Columns in which texts stand beside values of other kinds."""


def schema_of(rows: Iterable[Shape], also: Callable[[Shape], None] = lambda row: None) -> Schema:
    """What columns these rows need; `also` sees each row on the way."""
    metrics: dict[str, None] = {}
    metadata: dict[str, set[type]] = {}
    plain: set[str] = set()
    for row in rows:
        also(row)
        plain |= _plain(row)
        for metric in row.score.metrics:
            metrics[metric.name] = None
        for source in (row.sample.metadata, row.metadata):
            for key, value in source.items():
                if value is not None:
                    metadata.setdefault(key, set()).add(_type(value))
    schema = dict(FIXED)
    schema.update({METRIC + name: "double" for name in sorted(metrics)})
    schema.update({METADATA + key: _kind(types) for key, types in sorted(metadata.items())})
    mixed = [METADATA + key for key, types in metadata.items() if str in types and len(types) > 1]
    return Schema(schema, mixed=mixed, plain=plain)


def _plain(row: Shape) -> set[str]:
    return {metric.name for metric in row.score.metrics if not (metric.rate or metric.weight)}


def schema_in(file: ParquetFile) -> Schema:
    """That of a file; one from before there was `plain` says nothing of it."""
    said = file.metadata.get("heldout.plain", "[]")
    try:
        return Schema(file.schema, plain=msgspec.json.decode(said, type=list[str]))
    except msgspec.MsgspecError:
        raise ParquetError("its metadata cannot be read") from None


def _type(value: Any) -> type:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return float if abs(value) <= sys.float_info.max else object
    return type(value)


def _kind(types: set[type]) -> Kind:
    if types == {bool}:
        return "bool"
    if types == {int}:
        return "int"
    if types <= {int, float}:
        return "double"
    return "string"


# Sorted: a dataclass comes in the order of its fields, and when loaded again as a dict.
_encoder = msgspec.json.Encoder(order="deterministic")


def column_lists(
    rows: list[Row], schema: Mapping[str, Kind], mixed: Collection[str] = ()
) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    metrics = [{m.name: m.value for m in row.score.metrics} for row in rows]
    for name, kind in schema.items():
        if name in FIXED:
            lists[name] = _fixed(rows, name)
        elif name.startswith(METRIC):
            metric = name.removeprefix(METRIC)
            lists[name] = [values.get(metric) for values in metrics]
        else:
            key = name.removeprefix(METADATA)
            values = [row.metadata.get(key, row.sample.metadata.get(key)) for row in rows]
            if name in mixed:
                values = [_apart(value) for value in values]
            lists[name] = [_cell(value, kind) for value in values]
    return lists


def _apart(value: Any) -> Any:
    """A text of a mixed column: with its quotes, if without them it would read as what it is not.

    So "true" is not True and "1" is not 1, and the "easy" of a mixed column is that of any other.
    """
    if not isinstance(value, str):
        return value
    try:
        msgspec.json.decode(value)
    except (msgspec.MsgspecError, RecursionError):
        return value
    return _encoder.encode(value).decode()


def _cell(value: Any, kind: Kind) -> Any:
    if value is None or (kind == "string" and isinstance(value, str)):
        return value
    if kind == "string":
        return _encoder.encode(value).decode()
    return float(value) if kind == "double" else value


def _fixed(rows: list[Row], name: str) -> list[Any]:
    match name:
        case "sample_id":
            return [row.sample.id for row in rows]
        case "repeat":
            return [row.repeat for row in rows]
        case "index":
            return [row.index for row in rows]
        case "ok":
            return [row.error is None for row in rows]
        case "error":
            return [row.error for row in rows]
        case "reward":
            return [row.reward for row in rows]
        case "truncated":
            return [row.trajectory.stop.truncated for row in rows]
        case "weighted":
            return [row.weighted for row in rows]
        case "ended_by":
            return [row.trajectory.stop.limit or row.trajectory.stop.ended_by for row in rows]
        case "prompt_tokens" | "completion_tokens":
            return [row.trajectory.usage and getattr(row.trajectory.usage, name) for row in rows]
        case "content":
            return [row.sample.content for row in rows]
        case "id_hash":
            return [id_hash(row.sample.id) for row in rows]
        case "seconds":
            return [row.trajectory.timing and row.trajectory.timing.seconds for row in rows]
    raise KeyError(name)
