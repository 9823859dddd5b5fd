"""Where in a journal the line of each item is, found without reading all of it where that can be.

A page shows a hundred results of perhaps a million. The first lines that are asked for are guessed
at from the size of the file; all of them are found by how lines begin, without decoding any.
"""

from __future__ import annotations

import os
from array import array
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heldout.errors import RunDirectoryError
from heldout.store.journal import JOURNAL, RecordKey, lines
from heldout.store.jsonl import open_to_read, read_line
from heldout.store.run_dir import RunDir
from heldout.viewer.filter import Mask
from heldout.viewer.search import THREADS

ItemNumbers = NDArray[np.int64]
"""Numbers of items, in dataset order from 0."""
PIECE = 1 << 22
"""Bytes of a journal that are looked at at once."""
PROBE, MOST_PROBES = 1 << 18, 8
"""Bytes that are looked at for one line, and how often."""
LINE_START, DIGITS = b'{"index":', 10
"""How lines of a journal begin, and the digits that a number after that may have."""


class RunChanged(RunDirectoryError):
    """A run was written to while it was read: the next try finds its new state."""


class ItemLines:
    """The line of each item in the journal of a run.

    Args:
        run: The run directory.
        repeats: Attempts at each sample.
        index: Of each item, the place of its sample in the dataset.
        repeat: Of each item, which attempt at its sample it is.
    """

    def __init__(self, run: RunDir, repeats: int, index: ItemNumbers, repeat: ItemNumbers) -> None:
        self._run, self._repeats, self._index, self._repeat = run, repeats, index, repeat
        self._probe = lru_cache(256)(self._read_probe)

    @cached_property
    def offsets(self) -> ItemNumbers:
        """Where in the journal the line of each item begins."""
        found = find_item_lines(self._run.journal) if self._repeats == 1 else None
        if found is None:
            found = _decode_lines(self._run.journal, self._repeats)
        # While the run is written, the journal has more items by now than the columns.
        items = self._index * self._repeats + self._repeat
        places = np.minimum(np.searchsorted(found.items, items), len(found.items) - 1)
        if not np.array_equal(found.items[places], items):
            raise RunChanged(f"{self._run.path} was changed while it was read; try again")
        return found.offsets[places]

    def _read_probe(self, number: int) -> dict[int, int]:
        """Find where the lines begin that a small piece of the journal has, by index."""
        with open_to_read(self._run.journal) as file:
            starts, indexes = _read_heads(file.fileno(), number * PROBE, PROBE)
        found = zip(indexes.tolist(), starts.tolist(), strict=True)
        return {index: start for index, start in found if index >= 0}

    def _guess_offset(self, item: int) -> int | None:
        """Find the line of an item where it is if items ended in order and lines are alike.

        To find all lines of a million takes half a second, and a page needs a hundred.
        """
        if self._repeats > 1:
            return None
        index, size = int(self._index[item]), self._run.journal_size()
        number = size * index // (int(self._index[-1]) + 1) // PROBE
        for _ in range(MOST_PROBES):
            found = self._probe(number) if 0 <= number <= size // PROBE else {}
            if index in found or not found:
                return found.get(index)
            number += (index - next(iter(found))) // len(found) or 1
        return None

    def read(self, file: BufferedReader, item: int) -> bytes:
        """Read the line of an item from the journal, which is open."""
        if "offsets" not in vars(self) and (guessed := self._guess_offset(item)) is not None:
            file.seek(guessed)
            line = read_line(file)
            is_whole = line.endswith(b"\n")
            if is_whole and JOURNAL.decode(self._run.journal, 0, line, RecordKey).error is None:
                return line
            # An item that errored may have been run again, further down.
        file.seek(int(self.offsets[item]))
        return read_line(file)

    @cached_property
    def _items_by_offset(self) -> ItemNumbers:
        return np.argsort(self.offsets)

    def items_at(self, starts: ItemNumbers) -> Mask:
        """Say which items have their line at one of these offsets; older lines are no items."""
        held = np.zeros(len(self._index), dtype=np.bool_)
        order = self._items_by_offset
        places = np.searchsorted(self.offsets, starts, sorter=order)
        items = order[np.minimum(places, len(order) - 1)]
        held[items[self.offsets[items] == starts]] = True
        return held


class FoundLines(NamedTuple):
    """Where each item's last line begins, in dataset order."""

    items: ItemNumbers
    """Which item it is: index * repeats + repeat."""
    offsets: ItemNumbers


def find_item_lines(journal: Path) -> FoundLines | None:
    """Find the lines of a run without repeats, and decode none of them.

    Decoding a million lines would take 5 s, ten times as long. None where a line does not begin as
    heldout's own do.
    """
    with open_to_read(journal) as file, ThreadPoolExecutor(THREADS) as pool:
        number, size = file.fileno(), os.fstat(file.fileno()).st_size
        parts = [*pool.map(lambda start: _read_heads(number, start, PIECE), range(0, size, PIECE))]
    # Behind the last line end is no whole line.
    starts, indexes = (np.concatenate(part)[:-1] for part in zip(*parts, strict=True))
    return _last_lines(indexes, starts) if len(starts) and (indexes >= 0).all() else None


def _read_heads(file: int, start: int, size: int) -> tuple[ItemNumbers, ItemNumbers]:
    """Find the lines behind the line ends of a piece, and their indexes: -1 where one has none."""
    width = len(LINE_START)
    data = np.zeros(size + width + DIGITS, dtype=np.uint8)
    os.preadv(file, [data.data], start)
    begins = np.flatnonzero(data[:size] == ord("\n")) + 1
    heads = np.lib.stride_tricks.sliding_window_view(data, width + DIGITS)[begins]
    is_ours = (heads[:, :width] == np.frombuffer(LINE_START, dtype=np.uint8)).all(axis=1)
    index = np.zeros(len(begins), dtype=np.int64)
    is_number = np.ones(len(begins), dtype=np.bool_)
    for column in range(width, width + DIGITS):
        digit = heads[:, column].astype(np.int64) - ord("0")
        is_number &= (digit >= 0) & (digit <= 9)
        if not is_number.any():
            break
        index = np.where(is_number, index * 10 + digit, index)
    # Where the digits do not end, the number has more.
    return begins + start, np.where(is_ours & ~is_number, index, -1)


def _decode_lines(journal: Path, repeats: int) -> FoundLines:
    numbers = array("q")  # eight bytes each
    for number, offset, line in lines(journal):
        key = JOURNAL.decode(journal, number, line, RecordKey)
        numbers.extend((key.index * repeats + key.repeat, offset))
    items, offsets = np.array(numbers, dtype=np.int64).reshape(-1, 2).T
    return _last_lines(items, offsets)


def _last_lines(items: ItemNumbers, offsets: ItemNumbers) -> FoundLines:
    order = np.argsort(items, kind="stable")  # of equal ones, the later line comes later
    order = order[np.append(np.diff(items[order]) != 0, np.ones(min(1, len(items)), dtype=bool))]
    return FoundLines(items[order], offsets[order])
