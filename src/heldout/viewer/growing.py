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
from heldout.store.columns import SUMMARIZED, Arrays, ColumnChunk, summarize_columns
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
        self._chunks: list[Arrays] = []
        self._possible_counts: set[str] = set()
        self._lines = 0
        self._lock = Lock()

    def update(self, pass_threshold: float | None) -> Summary:
        """Read the lines that came since the last call, and summarize all of them."""
        with self._lock:
            with suppress(FileNotFoundError):  # it has just begun
                self._read_on()
            if not self._chunks:
                return EMPTY_SUMMARY
            counts = frozenset(self._possible_counts)
            return summarize_columns(self._last_of_each(), counts, pass_threshold)

    def _read_on(self) -> None:
        with open_to_read(self._journal) as file:
            stat = os.fstat(file.fileno())
            if self._file != (stat.st_dev, stat.st_ino) or stat.st_size < self._end:
                self._file, self._end, self._lines = (stat.st_dev, stat.st_ino), 0, 0
                self._chunks = []
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
        chunk = ColumnChunk(rows)
        self._possible_counts |= chunk.possible_counts
        columns = {name: np.ma.filled(chunk.columns[name]) for name in NAMES}
        self._chunks.append(columns | chunk.metrics)

    def _last_of_each(self) -> Arrays:
        """Join the columns: the last line of each item, in dataset order."""
        names = dict.fromkeys(name for chunk in self._chunks for name in chunk)
        sizes = [len(chunk["index"]) for chunk in self._chunks]
        joined: Arrays = {}
        for name in names:
            parts = zip(self._chunks, sizes, strict=True)
            columns = [chunk.get(name, np.full(size, np.nan)) for chunk, size in parts]
            joined[name] = np.concatenate(columns)
        self._chunks = [joined]
        index, repeat = joined["index"], joined["repeat"]
        order = np.lexsort((repeat, index))  # stable: of equal ones, the later line comes later
        last = np.ones(len(order), dtype=np.bool_)
        last[:-1] = np.diff(index[order]).astype(bool) | np.diff(repeat[order]).astype(bool)
        return {name: column[order[last]] for name, column in joined.items() if name != "repeat"}
