"""A run that is looked at: its report, its columns, and its conversations by item.

Of a run that has no results.parquet, one is written to a temporary folder. Conversations are read
from the journal, those in view alone. Nothing is ever written into a run directory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import RLock

import numpy as np

from heldout._core.temporary import TemporaryFolder
from heldout.errors import RunDirectoryError
from heldout.stats.summary import Summary, summarize_batch
from heldout.store.columns import current_parquet, write_parquet
from heldout.store.journal import decode_result, id_hash, in_order
from heldout.store.jsonl import open_to_read
from heldout.store.parquet import ParquetFile
from heldout.store.report import EvalReport
from heldout.store.run_config import repeats_of, threshold_of
from heldout.store.run_dir import RunDir
from heldout.store.tables import ResultTable, table_of_file
from heldout.types import EvalResult
from heldout.viewer.fields import RunFields
from heldout.viewer.item_lines import ItemNumbers
from heldout.viewer.rows import Rows


def stamp(path: Path) -> str:
    """Say which state of a run directory is there: sizes and times of its files."""
    parts = []
    for name in (
        "results.jsonl",
        "results.jsonl.gz",
        "run.json",
        "results.parquet",
        "curve.jsonl",
        "stop",
    ):
        try:
            stat = (path / name).stat()
            parts.append(f"{stat.st_size:x}.{stat.st_mtime_ns:x}")
        except OSError:
            parts.append("")
    return "-".join(parts)


class ViewedRun:
    """One state of a run directory that is looked at.

    `fields` has its columns, each read when it is named; `table` has those that summaries and
    comparisons are computed from, read at once; `rows` picks rows by a filter.

    Args:
        path: The run directory.
    """

    def __init__(self, path: Path) -> None:
        self.run_dir = RunDir(path)
        self.stamp = stamp(path)
        self.info = self.run_dir.read_info()
        self.repeats = repeats_of(self.info.config)
        self._lock = RLock()
        self._opened: ParquetFile | None = None
        self._resources = ExitStack()
        weakref.finalize(self, self._resources.close)

    @cached_property
    def report(self) -> EvalReport:
        """The report; of a run that has not ended, of the items that this state has.

        A running eval writes on: read at two moments, its mean would be of other items than the
        rows beside it.
        """
        report = EvalReport.load(self.run_dir.path)
        if report.summary.get("complete") is not False or not report.summary["n"]:
            return report
        kept = {key: report.summary[key] for key in ("complete", "n_asked")}
        summary = summarize_batch(self.table, report.pass_threshold)
        return replace(report, summary=report.mark_selected({**summary, **kept}))

    @cached_property
    def table(self) -> ResultTable:
        """What summaries of some of the items are computed from."""
        with self._lock:
            return table_of_file(self._file, self.run_dir.path)

    @cached_property
    def fields(self) -> RunFields:
        """The columns that rows can be filtered and ordered by."""
        threshold = threshold_of(self.info.config)
        return RunFields(self.run_dir, self._file, self._lock, self.repeats, threshold)

    @cached_property
    def rows(self) -> Rows:
        """The rows, to pick from: one per item."""
        return Rows(self.run_dir.journal, self.fields)

    @property
    def _file(self) -> ParquetFile:
        with self._lock:  # two requests at a time must not read two states of a run
            if self._opened is None:
                self._opened = self._open_file()
            return self._opened

    def _open_file(self) -> ParquetFile:
        file = self._resources.enter_context(current_parquet(self.run_dir))
        if file is not None:
            return file
        folder = self._resources.enter_context(TemporaryFolder("view"))
        path = Path(folder) / "results.parquet"
        file = write_parquet(lambda: in_order(self.run_dir.journal, self.repeats), path)
        if file is None:
            raise RunDirectoryError(
                f"{self.run_dir.path} has no results yet, or metadata with more keys than a table "
                "has columns; `heldout show` prints its summary"
            )
        return self._resources.enter_context(closing(file))

    def attempts_at(self, id: str) -> dict[int, int]:
        """Find the items of a sample, by the number of the attempt."""
        table = self.table
        (found,) = np.nonzero(table.id_hash.view(np.int64) == id_hash(id))
        items: list[int] = np.flatnonzero(np.isin(table.sample, found)).tolist()
        return {int(table.repeat[item]): item for item in items}

    def summarize(self, items: ItemNumbers) -> Summary:
        """Summarize some items; the caller knows that they were not picked by outcome."""
        held = np.zeros(len(self.rows), dtype=np.bool_)
        held[items] = True
        summary = summarize_batch(self.table.rows(held), self.report.pass_threshold)
        return self.report.mark_selected(summary)

    def read(self, items: Iterable[int]) -> Iterator[EvalResult]:
        """Read some results whole."""
        journal = self.run_dir.journal
        with open_to_read(journal) as file:
            for item in items:
                yield decode_result(journal, item + 2, self.fields.lines.read(file, item))
