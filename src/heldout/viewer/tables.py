"""A run that is looked at: its columns, read one by one, and the lines of its journal by offset.

Filters and orders are computed over NumPy columns of results.parquet; of a run that has none, such
a file is written to a temporary folder. Conversations are read from the journal, those in view
alone. Nothing is ever written into a run directory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cache, cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import RunDirectoryError
from heldout.stats.summary import Summary, has_passed, summarize_batch
from heldout.store.columns import (
    HASHES,
    METADATA,
    METRIC,
    ResultTable,
    column_name,
    current_parquet,
    parts_of,
    table_of,
    write_parquet,
)
from heldout.store.journal import decode_result, id_hash, in_order
from heldout.store.jsonl import open_to_read, read_line
from heldout.store.parquet import ParquetFile
from heldout.store.report import EvalReport, Results, repeats_of
from heldout.store.run_dir import RunDir
from heldout.types import EvalResult
from heldout.viewer.where import CONTAINED, OUTCOMES, FilterColumn, Mask, evaluate, parse

ItemNumbers = NDArray[np.int64]
"""Numbers of items, in dataset order from 0."""
PIECE = 4 << 20
"""Bytes of a journal that are looked at at once."""
COMPUTED = ("id", "reward", *OUTCOMES)
"""Fields of a filter that are no column of the file, or another one than it has."""
INPUTS = ("id", "sample_id", "repeat", "index")
"""Columns that are known before the eval, beside the metadata of samples."""
LINE_START, DIGITS = b'{"index":', 10
"""How lines of a journal begin, and the digits that a number after that may have."""


def stamp(path: Path, *, journal_grain: int = 1) -> str:
    """Say which state of a run directory is there: sizes and times of its files.

    Args:
        path: The run directory.
        journal_grain: Bytes that a journal has to grow by to make another state.
    """
    parts = []
    for name in ("results.jsonl", "run.json", "results.parquet", "curve.jsonl", "stop"):
        grain = journal_grain if name == "results.jsonl" else 1
        try:
            stat = (path / name).stat()
            time = stat.st_mtime_ns if grain == 1 else 0
            parts.append(f"{stat.st_size // grain:x}.{time:x}")
        except OSError:
            parts.append("")
    return "-".join(parts)


class RunTable:
    """One state of a run directory.

    Args:
        path: The run directory.
    """

    def __init__(self, path: Path) -> None:
        self.run = RunDir(path)
        self.stamp = stamp(path)
        self.info = self.run.read_info()
        self.repeats = repeats_of(self.info.config)
        self._lock = RLock()
        self.column = cache(self._load_column)
        self.select = lru_cache(8)(self._select)
        self._order = lru_cache(8)(self._compute_order)
        self._search = lru_cache(8)(self._search_journal)
        self._resources = ExitStack()
        weakref.finalize(self, self._resources.close)

    @cached_property
    def report(self) -> EvalReport:
        """The report."""
        return EvalReport.load(self.run.path)

    @cached_property
    def table(self) -> ResultTable:
        """What summaries of some of the items are computed from."""
        return table_of(self.report)

    def __len__(self) -> int:
        """How many items there are."""
        return len(self.rewards)

    # --- Columns ---

    @cached_property
    def _file(self) -> ParquetFile:
        file = self._resources.enter_context(current_parquet(self.run))
        if file is not None:
            return file
        folder = self._resources.enter_context(TemporaryDirectory(prefix="heldout-view-"))
        path = Path(folder) / "results.parquet"
        file = write_parquet(lambda: parts_of(in_order(self.run.journal, self.repeats)), path)
        if file is None:
            raise RunDirectoryError(
                f"{self.run.path} has no results yet, or metadata with more keys than a table has "
                "columns; `heldout show` prints its summary"
            )
        return self._resources.enter_context(closing(file))

    def _read(self, name: str, fill: Any, dtype: type | None = None) -> NDArray[Any]:
        with self._lock:
            array = self._file.read([name])[name]
        return np.ma.filled(array if dtype is None else array.astype(dtype), fill)

    @cached_property
    def columns(self) -> dict[str, str]:
        """The kind of each column, by name."""
        with self._lock:
            return {name: kind for name, (_, kind) in self._file.columns.items()}

    @property
    def metadata_keys(self) -> list[str]:
        """Metadata keys, in order."""
        return [n.removeprefix(METADATA) for n in self.columns if n.startswith(METADATA)]

    @property
    def metrics(self) -> list[str]:
        """Names of metrics, in order."""
        return [n.removeprefix(METRIC) for n in self.columns if n.startswith(METRIC)]

    @cached_property
    def fields(self) -> dict[str, str]:
        """The fields of a filter, and the column that each one means."""
        names = [name for name in self.columns if name not in HASHES]
        written = [*COMPUTED, "tokens", *self.metadata_keys, *self.metrics, *names]
        return {
            field: field if field in COMPUTED else self._column_name(field)
            for field in dict.fromkeys(written)
        }

    def is_input(self, field: str) -> bool:
        """Say whether a field was known before the eval: an id, or metadata of the samples."""
        name = self.fields.get(field, "")
        if name.startswith(METADATA):
            return name.removeprefix(METADATA) not in self._file.own
        return name in INPUTS

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """Of each item; NaN where it errored."""
        return self._read("reward", np.nan)

    @cached_property
    def truncated(self) -> Mask:
        """Of each item, whether the model's last turn was truncated."""
        return self._read("truncated", False)

    @cached_property
    def item_repeats(self) -> ItemNumbers:
        """Of each item, which attempt at its sample it is."""
        return self._read("repeat", 0)

    @cached_property
    def ids(self) -> list[str]:
        """Of each item, its sample's id."""
        return self._read("sample_id", "").tolist()  # type: ignore[no-any-return]

    @cached_property
    def id_hashes(self) -> ItemNumbers:
        """Of each item, a hash of its sample's id."""
        return self._read("id_hash", 0)

    def items_of(self, id: str) -> list[int]:
        """Find the items of a sample."""
        items: list[int] = np.flatnonzero(self.id_hashes == id_hash(id)).tolist()
        return items

    def outcome(self, item: int) -> str:
        """Say in a word what became of an item."""
        reward = float(self.rewards[item])
        if np.isnan(reward):
            return "errored"
        if self.report.pass_threshold is None:
            return "scored"
        if reward >= self.report.pass_threshold:
            return "passed"
        return "truncated" if self.truncated[item] else "failed"

    def _split_scored(self) -> tuple[Mask, Mask]:
        """Say of each item whether it passed, and whether it failed: neither where it errored."""
        threshold = self.report.pass_threshold
        if threshold is None:  # returns, which do neither
            neither = np.zeros(len(self), dtype=np.bool_)
            return neither, neither
        passed = has_passed(self.rewards, threshold)
        return passed, ~np.isnan(self.rewards) & ~passed

    def _load_column(self, field: str) -> FilterColumn:
        """Load the column of a filter's field; HeldoutError where there is none.

        Fields are id, reward, passed, failed, errored, truncated, tokens, seconds, repeat,
        ended_by, error, metadata keys, and metrics.
        """
        rewards = self.rewards
        match field:
            case "id":
                numbers = np.arange(len(self), dtype=np.int32)
                return FilterColumn(codes=numbers, values=self.ids, lowered=_lower(self.ids))
            case "reward":
                return FilterColumn(numbers=rewards)
            case "passed":
                return FilterColumn(numbers=self._split_scored()[0].astype(np.float64))
            case "failed":
                return FilterColumn(numbers=self._split_scored()[1].astype(np.float64))
            case "errored":
                return FilterColumn(numbers=np.isnan(rewards).astype(np.float64))
            case "truncated":
                return FilterColumn(numbers=self.truncated.astype(np.float64))
        name = self._column_name(field)
        if self.columns[name] == "string":
            with self._lock:
                codes, values = self._file.read_codes(name)
            lowered = _lower(values) if field in CONTAINED else ()
            return FilterColumn(codes=codes.astype(np.int32), values=values, lowered=lowered)
        if self.columns[name] == "bool":
            return FilterColumn(codes=self._read(name, -1, np.int32), values=["false", "true"])
        return FilterColumn(numbers=self._read(name, np.nan, np.float64))

    def _column_name(self, field: str) -> str:
        alias = {"tokens": "completion_tokens"}.get(field, field)
        if METADATA + field not in self.columns and METRIC + alias in self.columns:
            return METRIC + alias
        if alias.startswith((METRIC, METADATA)) and alias in self.columns:
            return alias
        return column_name(alias, self.columns, self.run.path.name)

    # --- Filters and orders ---

    def _select(self, where: str, sort: str) -> ItemNumbers:
        """Pick the items that a filter holds for, in an order.

        Args:
            where: The filter.
            sort: A field, with a minus before it for the largest first; "" is dataset order.
        """
        terms = parse(where)
        if not terms and not sort:
            return np.arange(len(self), dtype=np.int64)
        held = evaluate(terms, len(self), self.column, self._search)
        if not sort:
            return np.flatnonzero(held)
        order = self._order(sort)
        return order[held[order]]

    def _compute_order(self, sort: str) -> ItemNumbers:
        """Sort all items, those without a value last, equal ones in dataset order."""
        return order_by(self.column(sort.removeprefix("-")), descending=sort.startswith("-"))

    def summarize(self, items: ItemNumbers) -> Summary:
        """Summarize some items; the caller knows that they were not picked by outcome."""
        held = np.zeros(len(self), dtype=np.bool_)
        held[items] = True
        summary = summarize_batch(self.table.rows(held), self.report.pass_threshold)
        return self.report.mark_selected(summary)

    def count_outcomes(self, items: ItemNumbers) -> dict[str, int]:
        """Count what became of some items."""
        passed, failed = (int(part[items].sum()) for part in self._split_scored())
        return {
            "passed": passed,
            "failed": failed,
            "errored": int(np.isnan(self.rewards[items]).sum()),
            "truncated": int(self.truncated[items].sum()),
        }

    # --- The journal ---

    @cached_property
    def offsets(self) -> ItemNumbers:
        """Where in the journal the line of each item begins."""
        offsets = find_offsets(self.run.journal) if self.repeats == 1 else None
        if offsets is None:
            offsets = Results(self.run)._line_places()[1]
        if len(offsets) != len(self):
            raise RunDirectoryError(f"{self.run.path} was changed while it was read; try again")
        return offsets

    def read(self, items: Iterable[int]) -> Iterator[EvalResult]:
        """Read some results whole."""
        with open_to_read(self.run.journal) as file:
            for item in items:
                file.seek(int(self.offsets[item]))
                yield decode_result(self.run.journal, item + 2, read_line(file))

    def _search_journal(self, text: str) -> Mask:
        """Find the items whose question, conversation, target or error contains a text."""
        # As JSON has it: quotes and line ends are escaped, everything else is raw UTF-8.
        needle = msgspec.json.encode(text)[1:-1].lower()
        candidates = []
        with open_to_read(self.run.journal) as file:
            begin = 0
            while block := file.read(PIECE) + read_line(file):
                if needle in block.lower():
                    sizes = [len(line) + 1 for line in block.split(b"\n")]
                    starts = begin + np.cumsum([0, *sizes[:-1]])
                    candidates.append(np.flatnonzero(np.isin(self.offsets, starts)))
                begin += len(block)
        held = np.zeros(len(self), dtype=np.bool_)
        items = np.concatenate(candidates) if candidates else np.empty(0, dtype=np.int64)
        for item, result in zip(items, self.read(items), strict=True):
            held[item] = any(text.lower() in part.lower() for part in texts_of(result))
        return held


def order_by(column: FilterColumn, *, descending: bool) -> ItemNumbers:
    """Sort rows by a column, those without a value last, equal ones in their order."""
    if column.numbers is not None:
        keys, missing = column.numbers, np.isnan(column.numbers)
    else:
        assert column.codes is not None
        ranks = np.empty(len(column.values) + 1)
        ranks[np.argsort(np.array(column.values, dtype=object), kind="stable")] = np.arange(
            len(column.values)
        )
        keys, missing = ranks[column.codes], column.codes < 0
    keys = np.where(missing, np.inf, -keys if descending else keys)
    return np.argsort(keys, kind="stable")


def _lower(values: Sequence[str]) -> list[str]:
    return [value.lower() for value in values]


def texts_of(result: EvalResult) -> Iterator[str]:
    """Yield what a text search looks at: question, conversation, target and error."""
    yield from _strings(result.sample.input)
    yield from _strings(result.sample.ground_truth)
    for message in result.trajectory.messages:
        yield message.text
        yield message.reasoning or ""
        for call in message.tool_calls:
            yield f"{call.name} {call.arguments}"
    yield result.error or ""


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part)
    elif value is not None:
        yield str(value)


def find_offsets(journal: Path) -> ItemNumbers | None:
    """Find where each item's last line begins, in dataset order, without decoding the lines.

    Decoding a million lines would take 5 s, ten times as long. None where a line does not begin as
    heldout's own do.
    """
    data = np.memmap(journal, dtype=np.uint8, mode="r").view(np.ndarray)
    pieces = range(0, len(data), PIECE)
    ends = [np.flatnonzero(data[start : start + PIECE] == ord("\n")) + start for start in pieces]
    starts: ItemNumbers = np.concatenate(ends)[:-1] + 1  # behind the header
    width = len(LINE_START)
    if not len(starts) or int(starts[-1]) + width + DIGITS > len(data):
        return None
    # The heads of all lines at once: each is in the cache then, and is touched once.
    heads = np.lib.stride_tricks.sliding_window_view(data, width + DIGITS)[starts]
    if (heads[:, :width] != np.frombuffer(LINE_START, dtype=np.uint8)).any():
        return None
    index = np.zeros(len(starts), dtype=np.int64)
    is_number = np.ones(len(starts), dtype=np.bool_)
    for digit in heads[:, width:].T.astype(np.int64) - ord("0"):
        is_number &= (digit >= 0) & (digit <= 9)
        index = np.where(is_number, index * 10 + digit, index)
    if is_number.any():  # a number of more digits
        return None
    order = np.argsort(index, kind="stable")  # of equal ones, the later line comes later
    last = np.append(np.diff(index[order]) != 0, True)
    offsets: ItemNumbers = starts[order[last]]
    return offsets
