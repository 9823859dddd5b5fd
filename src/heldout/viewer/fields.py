"""The fields that rows of a run can be filtered and ordered by, and the column of each.

Columns are read from results.parquet one by one, when a filter or a page names them: a run may have
a million rows, and hundreds of keys. What graders compared is in the journal alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache, cached_property
from threading import RLock
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from heldout.errors import RunDirectoryError
from heldout.stats.summary import has_passed
from heldout.store.columns import HASHES, METADATA, METRIC, as_text, column_name, label
from heldout.store.journal import JOURNAL, lines
from heldout.store.parquet import ParquetFile
from heldout.store.run_dir import RunDir
from heldout.viewer.filter import CONTAINED, OUTCOMES, FilterColumn
from heldout.viewer.item_lines import ItemLines, ItemNumbers
from heldout.viewer.search import Abandoned, abandoned
from heldout.viewer.values import filter_text

COMPUTED = ("id", "reward", *OUTCOMES)
"""Fields of a filter that are no column of the file, or another one than it has."""
GRADED = ("ground_truth", "extracted")
"""Fields of a filter that only the journal has; a metadata key of that name comes first."""
INPUTS = ("id", "sample_id", "repeat", "index", "ground_truth")
"""Columns that are known before the eval, beside the metadata of samples."""


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


class RunFields:
    """The fields of a run's rows.

    Args:
        run_dir: The run directory.
        file: Its columns.
        lock: Held while the file is read, which takes one reader at a time.
        repeats: Attempts at each sample.
        pass_threshold: The reward that passes; None where nothing says so.
    """

    def __init__(
        self,
        run_dir: RunDir,
        file: ParquetFile,
        lock: RLock,
        repeats: int,
        pass_threshold: float | None,
    ) -> None:
        self._run_dir, self._file, self._lock = run_dir, file, lock
        self._repeats, self._pass_threshold = repeats, pass_threshold
        self._kinds = {name: kind for name, (_, kind) in file.columns.items()}
        self.metadata_keys = [
            n.removeprefix(METADATA) for n in self._kinds if n.startswith(METADATA)
        ]
        """Metadata keys, in order."""
        self.metrics = [n.removeprefix(METRIC) for n in self._kinds if n.startswith(METRIC)]
        """Names of metrics, in order."""
        self.column = cache(self._load_column)
        self._flags = cache(self._find_flags)

    @cached_property
    def names(self) -> dict[str, str]:
        """The fields of a filter, and the column that each one means."""
        columns = [name for name in self._kinds if name not in HASHES]
        written = [*COMPUTED, "tokens", *self.metadata_keys, *self.metrics, *columns]
        names = {
            field: field if field in COMPUTED else self._column_name(field)
            for field in dict.fromkeys(written)
        }
        return {**dict(zip(GRADED, GRADED, strict=True)), **names}

    def is_input(self, field: str) -> bool:
        """Say whether a field was known before the eval: an id, or metadata of the samples."""
        name = self.names.get(field, "")
        if name.startswith(METADATA):
            return name.removeprefix(METADATA) not in self._file.own
        return name in INPUTS

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """Of each item; NaN where it errored."""
        return self._read("reward", np.nan)

    @cached_property
    def ids(self) -> list[str]:
        """Of each item, its sample's id."""
        return self._read("sample_id", "").tolist()  # type: ignore[no-any-return]

    @cached_property
    def lines(self) -> ItemLines:
        """The line of each item in the journal."""
        index, repeat = self._read("index", 0), self._read("repeat", 0)
        return ItemLines(self._run_dir, self._repeats, index, repeat)

    def outcome(self, item: int) -> str:
        """Say in a word what became of an item."""
        if np.isnan(self.rewards[item]):
            return "errored"
        if self._pass_threshold is None:
            return "scored"
        if self.rewards[item] >= self._pass_threshold:
            return "passed"
        return "truncated" if self._flags("truncated")[item] else "failed"

    def count_outcomes(self, items: ItemNumbers) -> dict[str, int]:
        """Count what became of some items."""
        return {outcome: int(self._flags(outcome)[items].sum()) for outcome in OUTCOMES}

    def _find_flags(self, outcome: str) -> NDArray[np.bool_]:
        """Say of each item whether it has an outcome; one that errored neither passed nor failed.

        Returns, which have no threshold, do neither.
        """
        if outcome == "truncated":
            return self._read("truncated", False)
        errored = np.isnan(self.rewards)
        if outcome == "errored":
            return errored
        if self._pass_threshold is None:
            return np.zeros(len(self.rewards), dtype=np.bool_)
        passed = has_passed(self.rewards, self._pass_threshold)
        return passed if outcome == "passed" else ~errored & ~passed

    # --- Columns ---

    def _read(self, name: str, fill: Any, dtype: type | None = None) -> NDArray[Any]:
        with self._lock:
            array = self._file.read([name])[name]
        return np.ma.filled(array if dtype is None else array.astype(dtype), fill)

    def _load_column(self, field: str) -> FilterColumn:
        """Load the column of a filter's field; HeldoutError where there is none.

        Fields are id, reward, passed, failed, errored, truncated, tokens, seconds, repeat,
        ended_by, error, ground_truth, extracted, metadata keys, and metrics.
        """
        if field == "id":
            numbers = np.arange(len(self.ids), dtype=np.int32)
            return FilterColumn(codes=numbers, values=self.ids, lowered=_lower(self.ids))
        if field == "reward":
            return FilterColumn(numbers=self.rewards)
        if field in OUTCOMES:
            return FilterColumn(numbers=self._flags(field).astype(np.float64))
        if self.names.get(field) in GRADED:
            return self._load_graded(field)
        try:
            name = self._column_name(field)
        except RunDirectoryError as problem:
            near = difflib.get_close_matches(field, self.names, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RunDirectoryError(f"{problem}{hint}") from None
        if self._kinds[name] == "string":
            with self._lock:
                codes, found = self._file.read_codes(name)
            values = [filter_text(value) for value in found]
            lowered = _lower(values) if field in CONTAINED else ()
            return FilterColumn(codes=codes.astype(np.int32), values=values, lowered=lowered)
        if self._kinds[name] == "bool":
            return FilterColumn(codes=self._read(name, -1, np.int32), values=["false", "true"])
        return FilterColumn(numbers=self._read(name, np.nan, np.float64))

    def _column_name(self, field: str) -> str:
        alias = {"tokens": "completion_tokens"}.get(field, field)
        if METADATA + field not in self._kinds and METRIC + alias in self._kinds:
            return METRIC + alias
        if alias.startswith((METRIC, METADATA)) and alias in self._kinds:
            return alias
        return column_name(alias, self._kinds, self._run_dir.path.name)

    def _load_graded(self, field: str) -> FilterColumn:
        """Read the target of each item, or what the first grader that extracts anything did."""
        journal, stop = self._run_dir.journal, abandoned.get()
        offsets = self.lines.offsets.tolist()
        found: list[str | None] = [None] * len(offsets)
        items = dict(zip(offsets, range(len(offsets)), strict=True))
        for number, offset, line in lines(journal):
            if stop is not None and stop.is_set():
                raise Abandoned
            if (item := items.get(offset)) is not None:
                found[item] = JOURNAL.decode(journal, number, line, GradedLine).text(field)
        codes, values = label(found)
        return FilterColumn(codes=codes.astype(np.int32), values=values, lowered=_lower(values))


def _lower(values: Sequence[str]) -> list[str]:
    return [value.lower() for value in values]
