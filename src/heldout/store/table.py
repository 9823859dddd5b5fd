"""Every item of a run as columns: what comparisons and clustered errors are made of.

From results.parquet where it is current (a million rows in about a second), else from the journal,
else from results in memory; the same Table each way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats import Floats, Ints
from heldout.store.columns import (
    HASHES,
    METRIC,
    Schema,
    batched,
    coded,
    column_lists,
    column_name,
    current_columns,
    refuse_nulls,
    schema_in,
    schema_of,
)
from heldout.store.journal import (
    AskedHead,
    MetricHead,
    Row,
    ScoreHead,
    Shape,
    StopHead,
    TrajectoryHead,
    content_of,
    id_hash,
    in_order,
    metadata_of,
    records,
)
from heldout.store.parquet import Column, Kind, ParquetError, ParquetFile
from heldout.store.run_dir import RunDir
from heldout.types import EvalResult

if TYPE_CHECKING:
    from heldout.store.report import EvalReport

Hashes = NDArray[np.uint64]
COLUMNS: dict[str, Kind] = {
    "index": "int",
    "repeat": "int",
    "reward": "double",
    "truncated": "bool",
    "weighted": "bool",
}
"""What every table is made of, whatever is measured. Runs of old have no HASHES beside these."""


class SampleIds(Sequence[str]):
    """The ids of samples, read when one of them is asked for: most often none is."""

    def __init__(self, count: int, read: Callable[[], list[str]]) -> None:
        self._count, self._read = count, read

    @cached_property
    def _all(self) -> list[str]:
        found = self._read()
        _refuse_other_count(len(found), self._count)
        return found

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        return self._all[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

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


@dataclass(frozen=True, eq=False)
class Table:
    """Every item of a run as columns: dataset order, the repeats of a sample side by side."""

    sample_ids: SampleIds
    """One for each sample, in dataset order."""
    read_hashes: Callable[[], dict[str, Hashes]]
    """By the names in HASHES; called once, when one of them is asked for."""
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

    @property
    def id_hash(self) -> Hashes:
        """Of each sample's id: two runs of the same samples are told by it at once."""
        return self._hashes["id_hash"]

    @property
    def content(self) -> Hashes:
        """Of each sample: a hash of its input and ground truth, not of its metadata."""
        return self._hashes["content"]

    @cached_property
    def _hashes(self) -> dict[str, Hashes]:
        found = self.read_hashes()
        for hashes in found.values():
            _refuse_other_count(len(hashes), len(self.sample_ids))
        return found


def _refuse_other_count(found: int, expected: int) -> None:
    if found != expected:
        raise RunDirectoryError(
            f"there are {found} samples where there were {expected}: the run was changed while it "
            "was read"
        )


def table_of(
    report: EvalReport, keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> Table:
    """All items of a report, finished or not, with the values of these metadata keys.

    `keys` belong to samples: all repeats of a sample have the same value, or InvalidInput is
    raised. `item_keys` belong to items.
    """
    from heldout.store.report import Results, repeats_of

    if report.path is None or not isinstance(report.results, Results):
        return table_of_results(report.results, keys, item_keys=item_keys)
    run = RunDir(report.path)
    file = current_columns(run)
    # A file that is short of rows would be believed by whatever counts them.
    if file is not None and file.num_rows == report.summary.get("n"):
        try:
            return _from_columns(run, file, keys, item_keys, repeats_of(report.config))
        except ParquetError:
            pass  # damaged inside; derived data, so the journal says the same, slower
    return _from_journal(run, keys, item_keys, repeats_of(report.config))


def table_of_results(
    results: Iterable[EvalResult], keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> Table:
    """The same of results in memory; samples are in the order in which they first come."""
    numbers: dict[str, int] = {}
    contents: list[int] = []
    rows: list[Row] = []
    for result in results:
        index = numbers.setdefault(result.sample_id, len(numbers))
        if index == len(contents):
            contents.append(content_of(result.sample))
        rows.append(_row(index, result, contents[index]))
    rows.sort(key=lambda row: (row.index, row.repeat))
    building = _Building(schema_of(rows), keys, item_keys, "this report")
    for some in batched(rows):
        building.add_rows(some)
    return building.table(lambda: list(numbers))


# --- Where rows come from -----------------------------------------------------------------------


def _from_columns(
    run: RunDir, file: ParquetFile, keys: Sequence[str], item_keys: Sequence[str], repeats: int
) -> Table:
    if any(file.schema.get(name) != kind for name, kind in COLUMNS.items()):
        raise ParquetError(f"{run.columns} lacks columns, or has them of another kind")
    if "heldout.plain" not in file.metadata:
        raise ParquetError(f"{run.columns} does not say which metrics are rates")
    building = _Building(schema_in(file), keys, item_keys, run.path)
    for group in file.groups(list(building.wanted)):
        building.add(group)

    def ids() -> list[str]:
        with suppress(ParquetError, OSError):  # damaged, or gone since
            return _ids_from_columns(file)
        return _ids_from_journal(run, repeats)

    if building.hashes != HASHES:
        return building.table(ids, lambda: _hashes_from_journal(run, repeats))
    table = building.table(ids)
    in_order_of_hash = np.sort(table.id_hash)
    if (in_order_of_hash[1:] == in_order_of_hash[:-1]).any():
        raise ParquetError(f"{run.columns} has a sample twice")
    return table


def _ids_from_columns(file: ParquetFile) -> list[str]:
    ids: list[str] = []
    last = None
    for group in file.groups(["index", "sample_id"]):
        index, column = group["index"].values, group["sample_id"]
        if column.dictionary is None or not column.valid.all():
            raise ParquetError("rows lack an id")
        new = np.diff(index, prepend=index[0] - 1 if last is None else last) != 0
        last = index[-1]
        dictionary, codes = column.dictionary, column.values[new]
        if np.array_equal(codes, np.arange(len(dictionary))):  # each id once: nothing to look up
            ids += dictionary
        else:
            ids += [dictionary[code] for code in codes.tolist()]
    return ids


def _ids_from_journal(run: RunDir, repeats: int) -> list[str]:
    ids = _Ids(run.journal)
    for row in in_order(run.journal, repeats):
        ids.see(row)
    return list(ids.indices)


def _hashes_from_journal(run: RunDir, repeats: int) -> dict[str, Hashes]:
    """Of a run whose columns are from before there were any."""
    ids = _Ids(run.journal)
    contents = {}
    for row in in_order(run.journal, repeats):
        ids.see(row)
        contents[row.index] = row.sample.content
    hashes = {"id_hash": map(id_hash, ids.indices), "content": contents.values()}
    return {name: np.array([*hashes[name]], np.int64).view(np.uint64) for name in HASHES}


def _from_journal(
    run: RunDir, keys: Sequence[str], item_keys: Sequence[str], repeats: int
) -> Table:
    building = _Building(schema_of(records(run.journal, Shape)), keys, item_keys, run.path)
    ids = _Ids(run.journal)  # now: a live run has more of them later
    try:
        for rows in batched(in_order(run.journal, repeats)):
            for row in rows:
                ids.see(row)
            building.add_rows(rows)
    except ParquetError as problem:  # there is nothing left to fall back to
        raise RunDirectoryError(f"{run.journal}: {problem}; was it changed from outside?") from None
    return building.table(lambda: list(ids.indices))


class _Ids:
    """The ids in a journal: one for each place in the dataset, and each at one place."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.indices: dict[str, int] = {}
        self._last: tuple[int, str] | None = None

    def see(self, row: Row) -> None:
        """Rows come in dataset order."""
        index, id = row.index, row.sample.id
        if self._last == (index, id):
            return  # a repeat
        if id in self.indices:
            raise RunDirectoryError(
                f"{self._journal}: sample {id!r} is there twice, as number {self.indices[id]} and "
                f"as number {index} of the dataset; was it changed from outside?"
            )
        if self._last is not None and self._last[0] == index:
            raise RunDirectoryError(
                f"{self._journal}: number {index} of the dataset is sample {self._last[1]!r} and "
                f"sample {id!r}; was it changed from outside?"
            )
        self.indices[id], self._last = index, (index, id)


def _row(index: int, result: EvalResult, content: int) -> Row:
    """A result as the journal would give it back."""
    stop = result.trajectory.stop
    of_sample, own = metadata_of(result)
    return Row(
        index=index,
        repeat=result.repeat,
        error=result.error,
        sample=AskedHead(result.sample_id, of_sample, content=content),
        score=ScoreHead(
            [MetricHead(m.name, m.value, m.weight, m.rate) for m in result.score.metrics]
        ),
        metadata=own,
        trajectory=TrajectoryHead(
            StopHead(stop.ended_by, stop.limit, stop.truncated),
            result.trajectory.usage,
            result.trajectory.timing,
        ),
    )


def _column(values: list[Any], kind: Kind) -> Column:
    valid = np.array([value is not None for value in values], dtype=np.bool_)
    if kind == "string":
        numbers = {v: i for i, v in enumerate(dict.fromkeys(v for v in values if v is not None))}
        codes = np.array([numbers.get(value, -1) for value in values], dtype=np.int64)
        return Column(codes, valid, list(numbers))
    if kind == "double":
        return Column(np.array(values, dtype=np.float64), valid)  # None becomes NaN
    filled = [value if value is not None else 0 for value in values]
    return Column(np.array(filled, dtype=np.int64 if kind == "int" else np.bool_), valid)


# --- Columns to a table -------------------------------------------------------------------------


class _Building:
    """Takes batches of rows in dataset order."""

    def __init__(
        self,
        schema: Schema,
        keys: Sequence[str],
        item_keys: Sequence[str],
        where: object,
    ) -> None:
        self.keys, self.item_keys = keys, item_keys
        self.names = {key: column_name(key, schema, where) for key in (*keys, *item_keys)}
        self.metrics = [name for name in schema if name.startswith(METRIC)]
        self.hashes = tuple(name for name in HASHES if schema.get(name) == "int")
        self._numbers = (*COLUMNS, *self.metrics)
        columns = (*self.hashes, *self._numbers, *self.names.values())
        self.wanted: dict[str, Kind] = {name: schema[name] for name in columns}
        self._mixed, self._plain = schema.mixed, schema.plain
        self._parts: dict[str, list[NDArray[Any]]] = {
            name: [] for name in (*self._numbers, "new", *self.hashes, *map(_key_part, self.names))
        }
        self._values: dict[str, dict[Any, int]] = {key: {} for key in self.names}
        self._last: int | None = None

    def add_rows(self, rows: list[Row]) -> None:
        lists = column_lists(rows, self.wanted, self._mixed)
        self.add({name: _column(values, self.wanted[name]) for name, values in lists.items()})

    def add(self, group: Mapping[str, Column]) -> None:
        refuse_nulls(group)
        index = group["index"].values
        if (index[1:] < index[:-1]).any() or (self._last is not None and index[0] < self._last):
            raise ParquetError("rows are not in dataset order")
        new = np.empty(len(index), dtype=np.bool_)
        new[0] = self._last is None or self._last != index[0]
        new[1:] = index[1:] != index[:-1]
        self._last = int(index[-1])
        self._parts["new"].append(new)
        for name in self.hashes:
            self._parts[name].append(group[name].values[new])
        for name in self._numbers:
            self._parts[name].append(group[name].values)
        for key, name in self.names.items():
            self._parts[_key_part(key)].append(self._numbered(key, group[name]))

    def _numbered(self, key: str, column: Column) -> Ints:
        """A column as numbers that mean the same in every batch; -1 where it has no value."""
        codes, values = coded(column)
        known = self._values[key]
        numbers = [-1 if v is None else known.setdefault(v, len(known)) for v in values]
        return np.asarray(np.array(numbers, dtype=np.int64)[codes])

    def table(
        self,
        read_ids: Callable[[], list[str]],
        read_hashes: Callable[[], dict[str, Hashes]] | None = None,
    ) -> Table:
        """`read_hashes` where the rows that were added have none."""
        sample = np.cumsum(self._whole("new", np.bool_), dtype=np.int64) - 1
        ids = SampleIds(int(sample[-1]) + 1 if len(sample) else 0, read_ids)
        own = {name: self._whole(name, np.int64).view(np.uint64) for name in self.hashes}
        return Table(
            ids,
            read_hashes or (lambda: own),
            sample,
            self._whole("repeat", np.int64),
            self._whole("reward", np.float64),
            self._whole("truncated", np.bool_),
            self._whole("weighted", np.bool_),
            {m.removeprefix(METRIC): self._whole(m, np.float64) for m in self.metrics},
            {key: self._of_samples(key, sample, ids) for key in self.keys},
            {key: self._of_items(key) for key in self.item_keys},
            self._plain,
        )

    def _whole(self, name: str, kind: type[np.generic]) -> NDArray[Any]:
        parts = self._parts[name]
        return np.concatenate(parts).astype(kind, copy=False) if parts else np.empty(0, dtype=kind)

    def _of_samples(self, key: str, sample: Ints, ids: SampleIds) -> Labels:
        codes = self._whole(_key_part(key), np.int64)
        first = codes[np.searchsorted(sample, np.arange(len(ids)))]
        values = [*self._values[key], None]
        other = np.flatnonzero(codes != first[sample])
        if len(other):
            item = int(other[0])
            raise InvalidInput(
                f"{key!r} is not the same in all repeats of sample "
                f"{ids[sample[item]]!r}: {values[first[sample[item]]]!r:.80} and "
                f"{values[codes[item]]!r:.80}; choose a key that belongs to the sample"
            )
        return Labels(first, list(self._values[key]))

    def _of_items(self, key: str) -> Labels:
        return Labels(self._whole(_key_part(key), np.int64), list(self._values[key]))


def _key_part(key: str) -> str:
    return f"key {key}"
