"""The results of a run directory, all of them or a selection, decoded when they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from heldout.errors import RunDirectoryError
from heldout.store.journal import (
    JOURNAL,
    RecordKey,
    RecordRow,
    decode_result,
    in_order,
    lines,
    row_of,
)
from heldout.store.jsonl import open_to_read, read_line
from heldout.store.run_config import repeats_of
from heldout.store.run_dir import RunDir, RunInfo
from heldout.types import EvalResult


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


class Results(Sequence[EvalResult]):
    """The results of a run directory, in dataset order, decoded when asked for.

    Iterating reads the file again each time: nothing but the places of the lines is held.
    """

    def __init__(
        self, run: RunDir, info: RunInfo | None = None, selection: Selection | None = None
    ) -> None:
        """Take all results, or those of a selection; `info` says of which run, if it is known."""
        self.run, self.info, self.selection = run, info, selection
        self._places: tuple[Any, Any] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the run that these are of has all that it was asked for; if unknown, it may."""
        if self.info is None or self.info.status == "complete":
            return True
        return self.selection is None and len(self) == self.info.asked

    def _line_places(self) -> tuple[Any, Any]:
        """(line numbers, byte offsets), one for each item's last record, in dataset order."""
        if self._places is None:
            keys = array("q")  # eight bytes a number: a million results are 24 MB
            for number, offset, line in lines(self.run.journal):
                key = JOURNAL.decode(self.run.journal, number, line, RecordKey)
                keys.extend((key.index, key.repeat, offset))
            index, repeat, offsets = np.array(keys, dtype=np.int64).reshape(-1, 3).T
            order = np.lexsort((offsets, repeat, index))
            changes = np.diff(index[order]).astype(bool) | np.diff(repeat[order]).astype(bool)
            order = order[np.append(changes, np.ones(min(1, len(order)), dtype=bool))]
            self.run.refuse_replaced(self.info)
            if self.selection is not None:
                order = self.selection.pick(order)
            self._places = order + 2, offsets[order]
        return self._places

    def __len__(self) -> int:
        return len(self._line_places()[0])

    @overload
    def __getitem__(self, item: int) -> EvalResult: ...
    @overload
    def __getitem__(self, item: slice) -> list[EvalResult]: ...
    def __getitem__(self, item: int | slice) -> EvalResult | list[EvalResult]:
        numbers, offsets = self._line_places()
        if isinstance(item, slice):
            return list(self._read(numbers[item], offsets[item]))
        if not -len(numbers) <= item < len(numbers):
            raise IndexError(f"result {item} of {len(numbers)}")
        return next(self._read(numbers[[item]], offsets[[item]]))

    def __iter__(self) -> Iterator[EvalResult]:
        return self._read(*self._line_places())

    def _read(self, numbers: Any, offsets: Any) -> Iterator[EvalResult]:
        with open_to_read(self.run.journal) as file:
            self.run.refuse_replaced(self.info)
            for number, offset in zip(numbers.tolist(), offsets.tolist(), strict=True):
                file.seek(offset)
                yield decode_result(self.run.journal, number, read_line(file))

    def all_rows(self) -> Iterator[RecordRow]:
        """Read the results as rows, also those that a selection leaves out."""
        info = self.info or self.run.read_info()
        yield from in_order(self.run.journal, repeats_of(info.config))
        self.run.refuse_replaced(self.info)

    def pick(self, values: NDArray[Any]) -> NDArray[Any]:
        """Select the values of these results from those of all."""
        return values if self.selection is None else self.selection.pick(values)

    def __repr__(self) -> str:
        return f"Results({str(self.run.path)!r})"


def rows_of(results: Iterable[EvalResult]) -> Iterator[RecordRow]:
    """Read results as rows: of a run in dataset order, otherwise by first occurrence of samples."""
    if isinstance(results, Results):
        rows = results.all_rows()
        selection = results.selection
        return rows if selection is None else compress(rows, selection.items)
    numbers: dict[str, int] = {}
    made = [row_of(numbers.setdefault(r.sample_id, len(numbers)), r) for r in results]
    return iter(sorted(made, key=lambda row: (row.index, row.repeat)))
