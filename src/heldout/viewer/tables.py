"""A run that is looked at: its columns, read one by one, and the lines of its journal by offset.

Filters and orders are computed over NumPy columns of results.parquet; of a run that has none, such
a file is written to a temporary folder. Conversations are read from the journal, those in view
alone. Nothing is ever written into a run directory.
"""

from __future__ import annotations

import difflib
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cache, cached_property, lru_cache
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import RLock
from typing import Any, NamedTuple

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
    as_text,
    column_name,
    current_parquet,
    label,
    parts_of,
    table_of,
    write_parquet,
)
from heldout.store.journal import JOURNAL, RecordKey, decode_result, id_hash, in_order, lines
from heldout.store.jsonl import open_to_read, read_line
from heldout.store.parquet import ParquetFile
from heldout.store.report import EvalReport, repeats_of
from heldout.store.run_dir import RunDir
from heldout.types import EvalResult
from heldout.viewer.search import (
    THREADS,
    Abandoned,
    abandoned,
    contains_text,
    find_lines,
    find_text,
)
from heldout.viewer.where import (
    CONTAINED,
    OUTCOMES,
    BadFilter,
    FilterColumn,
    Mask,
    Term,
    evaluate,
    parse,
)

ItemNumbers = NDArray[np.int64]
"""Numbers of items, in dataset order from 0."""
PIECE = 1 << 22
"""Bytes of a journal that are looked at at once."""
PROBE, MOST_PROBES = 1 << 18, 8
"""Bytes that are looked at for one line, and how often."""
COMPUTED = ("id", "reward", *OUTCOMES)
"""Fields of a filter that are no column of the file, or another one than it has."""
GRADED = ("ground_truth", "extracted")
"""Fields of a filter that only the journal has; a metadata key of that name comes first."""
INPUTS = ("id", "sample_id", "repeat", "index", "ground_truth")
"""Columns that are known before the eval, beside the metadata of samples."""
MOST_TRIED, MOST_TRIED_BYTES = 2_000, 8 << 20
"""Lines that are decoded to find the first rows with a text, and their bytes."""
LINE_START, DIGITS = b'{"index":', 10
"""How lines of a journal begin, and the digits that a number after that may have."""


def stamp(path: Path) -> str:
    """Say which state of a run directory is there: sizes and times of its files."""
    parts = []
    for name in ("results.jsonl", "run.json", "results.parquet", "curve.jsonl", "stop"):
        try:
            stat = (path / name).stat()
            parts.append(f"{stat.st_size:x}.{stat.st_mtime_ns:x}")
        except OSError:
            parts.append("")
    return "-".join(parts)


class GradedSample(msgspec.Struct, gc=False):
    """What is right."""

    ground_truth: Any = None


class GradedMetric(msgspec.Struct, gc=False):
    """What a grader noted."""

    metadata: dict[str, Any] = {}


class GradedScore(msgspec.Struct, gc=False):
    """What all graders noted."""

    metrics: tuple[GradedMetric, ...] = ()


class GradedLine(msgspec.Struct, gc=False):
    """What a grader compared, of a line of a journal."""

    sample: GradedSample
    score: GradedScore = msgspec.field(default_factory=GradedScore)

    def text(self, field: str) -> str | None:
        """Return one of GRADED as text."""
        if field == "ground_truth":
            return as_text(self.sample.ground_truth)
        noted = (m.metadata["extracted"] for m in self.score.metrics if "extracted" in m.metadata)
        first = next(noted, None)
        return None if first is None else str(first)


class RunChanged(RunDirectoryError):
    """A run was written to while it was read: the next try finds its new state."""


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
        self._search_answers = lru_cache(8)(self._find_answers)
        self._probe = lru_cache(256)(self._read_probe)
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
        fields = {
            field: field if field in COMPUTED else self._column_name(field)
            for field in dict.fromkeys(written)
        }
        return {**dict(zip(GRADED, GRADED, strict=True)), **fields}

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
        ended_by, error, ground_truth, extracted, metadata keys, and metrics.
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
        if self.fields.get(field) in GRADED:
            return self._load_graded(field)
        try:
            name = self._column_name(field)
        except RunDirectoryError as problem:
            near = difflib.get_close_matches(field, self.fields, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RunDirectoryError(f"{problem}{hint}") from None
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
        held = evaluate(terms, len(self), self.column, self._search_term)
        if not sort:
            return np.flatnonzero(held)
        order = self._order(sort)
        return order[held[order]]

    def select_first(self, where: str, count: int) -> ItemNumbers | None:
        """Pick the first items that a filter by texts holds for, without a search of the journal.

        Returns:
            None where there is no text to search for, or where the first lines have fewer items:
            then a search is faster.
        """
        terms = parse(where)
        texts = [term for term in terms if self._is_searched(term)]
        if not texts or terms[-1].group:
            return None
        columns = [term for term in terms if term not in texts]
        held = evaluate(columns, len(self), self.column, lambda _: None)
        first = np.flatnonzero(held)[:MOST_TRIED]
        found: list[int] = []
        read = 0
        with open_to_read(self.run.journal) as file:
            for item in first.tolist():
                line = self._read_line(file, item)
                read += len(line)
                result = decode_result(self.run.journal, item + 2, line)
                if all(_holds(term, result) != term.negated for term in texts):
                    found.append(item)
                if len(found) == count:
                    return np.array(found, dtype=np.int64)
                if read > MOST_TRIED_BYTES:
                    break
        return None

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
        found = find_item_lines(self.run.journal) if self.repeats == 1 else None
        if found is None:
            found = _decode_lines(self.run.journal, self.repeats)
        # While the run is written, the journal has more items by now than the columns.
        items = self._indexes * self.repeats + self.item_repeats
        places = np.minimum(np.searchsorted(found.items, items), len(found.items) - 1)
        if not np.array_equal(found.items[places], items):
            raise RunChanged(f"{self.run.path} was changed while it was read; try again")
        return found.offsets[places]

    @cached_property
    def _indexes(self) -> ItemNumbers:
        return self._read("index", 0)

    def _read_probe(self, number: int) -> dict[int, int]:
        """Find where the lines begin that a small piece of the journal has, by index."""
        with open_to_read(self.run.journal) as file:
            starts, indexes = _read_heads(file.fileno(), number * PROBE, PROBE)
        found = zip(indexes.tolist(), starts.tolist(), strict=True)
        return {index: start for index, start in found if index >= 0}

    def _guess_offset(self, item: int) -> int | None:
        """Find the line of an item where it is if items ended in order and lines are alike.

        To find all lines of a million takes half a second, and a page needs a hundred.
        """
        if self.repeats > 1:
            return None
        index, size = int(self._indexes[item]), self.run.journal.stat().st_size
        number = size * index // (int(self._indexes[-1]) + 1) // PROBE
        for _ in range(MOST_PROBES):
            found = self._probe(number) if 0 <= number <= size // PROBE else {}
            if index in found or not found:
                return found.get(index)
            number += (index - next(iter(found))) // len(found) or 1
        return None

    def _read_line(self, file: BufferedReader, item: int) -> bytes:
        if "offsets" not in vars(self) and (guessed := self._guess_offset(item)) is not None:
            file.seek(guessed)
            line = read_line(file)
            is_whole = line.endswith(b"\n")
            if is_whole and JOURNAL.decode(self.run.journal, 0, line, RecordKey).error is None:
                return line
            # An item that errored may have been run again, further down.
        file.seek(int(self.offsets[item]))
        return read_line(file)

    def read(self, items: Iterable[int]) -> Iterator[EvalResult]:
        """Read some results whole."""
        with open_to_read(self.run.journal) as file:
            for item in items:
                yield decode_result(self.run.journal, item + 2, self._read_line(file, item))

    def _search_journal(self, text: str) -> Mask:
        """Find the items whose question, conversation, target or error contains a text."""
        return self._items_at(find_text(self.run.journal, text))

    def _is_searched(self, term: Term) -> bool:
        """Say whether a term is about texts of conversations."""
        if term.field == "text":
            return True
        if term.field != "answer" or "answer" in self.fields:
            return False
        if term.op not in (":", "="):
            raise BadFilter("answers are searched with : or =", term.start)
        return True

    def _search_term(self, term: Term) -> Mask | None:
        """Evaluate a term that is about texts of conversations; None for any other."""
        if not self._is_searched(term):
            return None
        if term.field == "text":
            return self._search(term.value)
        return self._search_answers(term.value, is_whole=term.op == "=")

    def _find_answers(self, text: str, *, is_whole: bool) -> Mask:
        """Find the items whose answer contains a text, or is it."""
        journal = self.run.journal

        def holds(line: bytes) -> bool:
            return _has_answer(decode_result(journal, 0, line), text, is_whole=is_whole)

        return self._items_at(find_lines(journal, text, holds))

    def _load_graded(self, field: str) -> FilterColumn:
        """Read the target of each item, or what the first grader that extracts anything did."""
        journal, stop = self.run.journal, abandoned.get()
        found: list[str | None] = [None] * len(self)
        items = dict(zip(self.offsets.tolist(), range(len(self)), strict=True))
        for number, offset, line in lines(journal):
            if stop is not None and stop.is_set():
                raise Abandoned
            if (item := items.get(offset)) is not None:
                found[item] = JOURNAL.decode(journal, number, line, GradedLine).text(field)
        codes, values = label(found)
        return FilterColumn(codes=codes.astype(np.int32), values=values, lowered=_lower(values))

    @cached_property
    def _items_by_offset(self) -> ItemNumbers:
        return np.argsort(self.offsets)

    def _items_at(self, starts: ItemNumbers) -> Mask:
        """Say which items have their line at one of these offsets; older lines are no items."""
        held = np.zeros(len(self), dtype=np.bool_)
        order = self._items_by_offset
        places = np.searchsorted(self.offsets, starts, sorter=order)
        items = order[np.minimum(places, len(order) - 1)]
        held[items[self.offsets[items] == starts]] = True
        return held


def _has_answer(result: EvalResult, text: str, *, is_whole: bool) -> bool:
    answer = result.trajectory.answer
    return answer == text if is_whole else text.lower() in answer.lower()


def _holds(term: Term, result: EvalResult) -> bool:
    """Say whether a result has the text of a term, which may be negated."""
    if term.field == "text":
        return contains_text(result, term.value)
    return _has_answer(result, term.value, is_whole=term.op == "=")


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


class ItemLines(NamedTuple):
    """Where each item's last line begins, in dataset order."""

    items: ItemNumbers
    """Which item it is: index * repeats + repeat."""
    offsets: ItemNumbers


def find_item_lines(journal: Path) -> ItemLines | None:
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


def _decode_lines(journal: Path, repeats: int) -> ItemLines:
    numbers = array("q")  # eight bytes each
    for number, offset, line in lines(journal):
        key = JOURNAL.decode(journal, number, line, RecordKey)
        numbers.extend((key.index * repeats + key.repeat, offset))
    items, offsets = np.array(numbers, dtype=np.int64).reshape(-1, 2).T
    return _last_lines(items, offsets)


def _last_lines(items: ItemNumbers, offsets: ItemNumbers) -> ItemLines:
    order = np.argsort(items, kind="stable")  # of equal ones, the later line comes later
    order = order[np.append(np.diff(items[order]) != 0, np.ones(min(1, len(items)), dtype=bool))]
    return ItemLines(items[order], offsets[order])
