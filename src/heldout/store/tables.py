"""A run as a table: its items grouped by samples, with the values of metadata keys.

Slices and comparisons are computed from it, and summaries with other clusters than clause 7 has.

    table_of(results, keys)   every item as columns, and what samples share
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput, RunDirectoryError
from heldout.stats.intervals import Ints
from heldout.stats.summary import Batch, Summary, summarize_groups
from heldout.store.columns import (
    ITEM,
    SUMMARIZED,
    ColumnSource,
    MemoryColumns,
    column_name,
    current_parquet,
    first_of_sample,
    metrics_in,
    number_clusters,
    open_columns,
    read_filled,
    refuse_twice,
)
from heldout.store.journal import row_of
from heldout.store.parquet import ParquetFile
from heldout.store.results import Results, Selection
from heldout.types import EvalResult

Hashes = NDArray[np.uint64]
TABLE = (*SUMMARIZED, *ITEM, "content")
"""Columns that every table is made of, beside the metrics."""


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
    """Every item of a run as columns: dataset order, the repeats of a sample side by side.

    It is made of `MemoryColumns` or a `ParquetFile`, which have the same values by name. Here no
    item is there twice, none lacks a value, and samples and clusters are numbered.
    """

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
        return self.cluster[first_of_sample(self.sample)]

    def clusters_by(self, key: str | None) -> Ints:
        """Number the cluster of each sample.

        Samples that share a value of `key` are one cluster; without a key, and of samples that lack
        it, those that clause 7 takes for one.
        """
        labels = None if key is None else self.keys[key]
        if labels is not None and (labels.codes >= 0).all():
            return labels.codes
        by_content = np.unique(self.sample_cluster, return_inverse=True)[1].astype(np.int64)
        if labels is None:
            return by_content
        return np.where(labels.codes < 0, len(labels.values) + by_content, labels.codes)

    @cached_property
    def sample_ids(self) -> list[str]:
        """The id of each sample, which most often nothing asks for; `sample` is a place in it."""
        return self.read_ids()


def table_of(
    results: Iterable[EvalResult], keys: Sequence[str] = (), *, item_keys: Sequence[str] = ()
) -> ResultTable:
    """Return all items of results, of a run finished or not, with the values of metadata keys.

    Samples of results in memory are in order of first occurrence. Repeats of a sample have the same
    value of each of `keys`, or are refused (InvalidInput); they may differ in `item_keys`.
    RunDirectoryError says that there is no such key, and which are.
    """
    of_run = results if isinstance(results, Results) else None
    where = "this report" if of_run is None else of_run.run.path

    def read_ids_again() -> NDArray[Any]:
        assert of_run is not None
        with current_parquet(of_run.run, of_run.info) as file:
            if file is None:
                of_run.run.refuse_replaced(of_run.info)
                raise RunDirectoryError(f"{where} was changed while it was read")
            return file.read_ids()

    with open_columns(results, (*TABLE, "sample_id"), [*keys, *item_keys]) as source:
        read_ids = source.read_ids if isinstance(source, MemoryColumns) else read_ids_again
        selection = None if of_run is None else of_run.selection
        return _make_table(source, keys, item_keys, where, read_ids, selection)


def table_of_file(file: ParquetFile, where: object) -> ResultTable:
    """Return all items of a file of results; `where` names the run in messages."""
    return _make_table(file, (), (), where, file.read_ids)


def _make_table(
    source: ColumnSource,
    keys: Sequence[str],
    item_keys: Sequence[str],
    where: object,
    read_ids: Callable[[], NDArray[Any]],
    selection: Selection | None = None,
) -> ResultTable:
    names = {key: column_name(key, source.columns, where) for key in (*keys, *item_keys)}
    columns = read_filled(source, TABLE)
    labels = {key: Labels(*source.read_codes(name)) for key, name in names.items()}
    if selection is not None:
        columns = {name: selection.pick(array) for name, array in columns.items()}
        labels = {key: values.rows(selection.items) for key, values in labels.items()}
    index, repeat, hashes = columns["index"], columns["repeat"], columns["id_hash"]
    refuse_twice(index, repeat, hashes, where)
    first = first_of_sample(index)
    sample = np.cumsum(first, dtype=np.int64) - 1

    def read_sample_ids() -> list[str]:
        ids = read_ids()
        return (ids if selection is None else selection.pick(ids))[first].tolist()  # type: ignore[no-any-return]

    content = columns["content"][first].view(np.uint64)
    table = ResultTable(
        sample=sample,
        cluster=number_clusters(sample, columns["cluster_hash"]),
        reward=columns["reward"],
        truncated=columns["truncated"],
        weighted=columns["weighted"],
        cached=columns["cached"],
        cached_turns=columns["cached_turns"],
        metrics=metrics_in(columns),
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


# --- Summaries ------------------------------------------------------------------------------------


def summarize_table(
    table: ResultTable, pass_threshold: float | None, cluster: str | None = None
) -> Summary:
    """Summarize all items; error bars are clustered by one of the table's keys, if it is given.

    The summary then has `clustered_by`, `n_clusters`, and `n_without_cluster`, the number of
    samples that lack the key.
    """
    (summary,) = _summarize_groups(
        table, np.zeros(len(table), np.int64), 1, pass_threshold, cluster
    )
    return summary


def _summarize_groups(
    table: ResultTable, groups: Ints, count: int, pass_threshold: float | None, cluster: str | None
) -> list[Summary]:
    if cluster is None:
        return summarize_groups(table, groups, count, pass_threshold)
    clusters = table.clusters_by(cluster)
    batch = replace(table, cluster=clusters[table.sample])
    summaries = summarize_groups(batch, groups, count, pass_threshold)
    lacks_key = table.keys[cluster].codes < 0
    for group, items in places_by_code(groups):
        samples = np.unique(table.sample[items])
        summaries[group] |= {
            "clustered_by": cluster,
            "n_clusters": len(np.unique(clusters[samples])),
            "n_without_cluster": int(lacks_key[samples].sum()),
        }
    return summaries


def group_results(
    results: Iterable[EvalResult], by: str | Callable[[EvalResult], Any]
) -> dict[Any, list[EvalResult]]:
    """Group results by the value of a key, None where one has none, or of a function of them."""
    results = list(results)
    if callable(by):
        values = [by(result) for result in results]
    else:
        columns = MemoryColumns.of((row_of(i, r) for i, r in enumerate(results)), keys=[by])
        name = column_name(by, columns.columns, "this report")
        values = [*Labels(*columns.read_codes(name))]
    groups: dict[Any, list[EvalResult]] = {}
    for value, result in zip(values, results, strict=True):
        groups.setdefault(value, []).append(result)
    return {value: groups[value] for value in sorted(groups, key=sort_key)}


def slice_summaries(
    results: Iterable[EvalResult],
    by: Sequence[str],
    pass_threshold: float | None,
    cluster: str | None = None,
) -> tuple[dict[tuple[Any, ...], Summary], Summary]:
    """Summarize results by the values of keys, None where an item has none; and all of them."""
    table = table_of(results, [] if cluster is None else [cluster], item_keys=by)
    labels = [table.item_keys[key] for key in by]
    groups, first = number_groups(labels)
    summaries = _summarize_groups(table, groups, len(first), pass_threshold, cluster)
    values = [tuple(key[item] for key in labels) for item in first.tolist()]
    slices = dict(zip(values, summaries, strict=True))
    ordered = sorted(slices, key=lambda values: [sort_key(value) for value in values])
    return {key: slices[key] for key in ordered}, summarize_table(table, pass_threshold, cluster)


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
