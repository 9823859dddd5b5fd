"""The summary of a run while it is written: every line of its journal is decoded once.

The list of runs shows it anew every second. Deriving it from the whole journal would take as long
as the journal is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np

from heldout.stats.summary import EMPTY_SUMMARY, Summary
from heldout.store.columns import SUMMARIZED, MemoryColumns, read_filled, summarize_columns
from heldout.store.journal import JOURNAL, RecordRow
from heldout.store.jsonl import open_to_read, read_line

BLOCK = 1 << 22
"""Bytes that are decoded at once."""
NAMES = (*SUMMARIZED, "repeat")


class GrowingSummary:
    """The summary of what a journal has so far."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file: tuple[int, int] | None = None
        self._end = 0
        self._parts: list[MemoryColumns] = []
        self._lines = 0
        self._lock = Lock()

    def update(self, pass_threshold: float | None) -> Summary:
        """Read the lines that came since the last call, and summarize all of them."""
        with self._lock:
            with suppress(FileNotFoundError):  # it has just begun
                self._read_on()
            if not self._parts:
                return EMPTY_SUMMARY
            if len(self._parts) > 1:
                self._parts = [MemoryColumns.join(self._parts)]
            return _summarize_last(self._parts[0], pass_threshold)

    def _read_on(self) -> None:
        with open_to_read(self._journal) as file:
            stat = os.fstat(file.fileno())
            if self._file != (stat.st_dev, stat.st_ino) or stat.st_size < self._end:
                self._file, self._end, self._lines = (stat.st_dev, stat.st_ino), 0, 0
                self._parts = []
            file.seek(self._end)
            while block := file.read(BLOCK) + read_line(file):
                *lines, torn = block.split(b"\n")
                self._add(lines)
                self._end += len(block) - len(torn)

    def _add(self, lines: list[bytes]) -> None:
        first = self._lines + 1
        self._lines += len(lines)
        numbered = [(n, line) for n, line in enumerate(lines, first) if n > 1]  # no header
        if not numbered:
            return
        rows = [JOURNAL.decode(self._journal, n, line, RecordRow) for n, line in numbered]
        for row in rows:
            row.sample.hash_content()
        self._parts.append(MemoryColumns(rows, NAMES, ()))


def _summarize_last(columns: MemoryColumns, pass_threshold: float | None) -> Summary:
    """Summarize the last line of each item, in dataset order."""
    arrays = read_filled(columns, NAMES)
    index, repeat = arrays["index"], arrays["repeat"]
    order = np.lexsort((repeat, index))  # stable: of equal ones, the later line comes later
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = np.diff(index[order]).astype(bool) | np.diff(repeat[order]).astype(bool)
    kept = {name: array[order[last]] for name, array in arrays.items()}
    return summarize_columns(kept, frozenset(columns.possible_counts), pass_threshold)
