"""SQL over the results of a run: one table `results`, read-only, with access to nothing else.

    query(report, "select metadata.level, avg(reward) from results group by all")
    select_items(report, "metadata.level = 'hard'")

Columns are `id`, `index`, `repeat`, `reward`, `passed`, `error`, `truncated`, `ended_by`,
`prompt_tokens`, `completion_tokens`, `seconds`, `metrics` and `metadata` (a field for each metric
and key: `metrics.correct`, `metadata."the level"`), and, where a query names them, the texts
`prompt`, `answer` and `target`. DuckDB reads results.parquet, or, of a run that has none, one that
is written to a temporary folder; queries run in one thread and a limited memory, after access to
files, extensions and settings was taken away.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heldout.errors import InvalidInput, InvalidQuery
from heldout.store.columns import (
    METADATA,
    METRIC,
    Selection,
    as_text,
    has_current_parquet,
    parts_of,
    rows_of,
    write_parquet,
)
from heldout.store.frames import question_of
from heldout.store.parquet import (
    ParquetFile,
    insert_arrays,
    quote_name,
    quote_text,
    unique_names,
)
from heldout.store.run_dir import RunDir

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from heldout.store.report import EvalReport

TEXTS = ("prompt", "answer", "target")
OUTCOMES = (
    *("reward", "passed", "error", "truncated", "ended_by"),
    *("prompt_tokens", "completion_tokens", "seconds"),
)
"""Columns that hold what came out, not what was asked."""
TEXT_ROWS = 1024


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query gives: the names of its columns, and rows that are read as they are used."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def query(report: EvalReport, sql: str) -> Iterator[QueryResult]:
    """Run a query over the table `results`.

    Args:
        report: A report on disk or in memory, finished or not.
        sql: One SELECT statement, in DuckDB's dialect.

    Yields:
        The result, to be read while the context is open.

    Raises:
        InvalidQuery: It is not one SELECT statement, or DuckDB refuses it.
        RunDirectoryError: The run cannot be read.
    """
    with _open(report, sql) as results:
        results.show(outcomes=True)
        yield results.run(sql)


def select_items(report: EvalReport, condition: str) -> Selection:
    """Find the items for which a condition holds, and whether it looks at what came out."""
    # On lines of its own, so that a comment in it ends with it.
    picked = f"CASE WHEN (\n{condition}\n) THEN true ELSE false END"
    sql = f'SELECT {picked} FROM results ORDER BY "index", repeat'
    with _open(report, condition) as results:
        results.show(outcomes=False)
        by_outcome = not results.accepts(sql)
        results.show(outcomes=True)
        items = np.array([held for (held,) in results.run(sql).rows], dtype=np.bool_)
    if not items.any():
        raise InvalidQuery(f"there is no result where {condition}")
    return Selection(condition, items, by_outcome)


@contextmanager
def _open(report: EvalReport, sql: str) -> Iterator[_Results]:
    """Open a database that can read the results of a report, and do nothing else."""
    with (
        tempfile.TemporaryDirectory(prefix="heldout-") as folder,
        closing(_open_parquet(report, Path(folder) / "results.parquet")) as file,
    ):
        texts = [name for name in TEXTS if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
        if texts:
            _load_texts(file.db, report)
        file.db.execute(f"SET temp_directory = {quote_text(folder)}")
        file.db.execute(f"SET allowed_paths = [{quote_text(str(file.path.absolute()))}]")
        file.db.execute("SET enable_external_access = false")
        file.db.execute("SET lock_configuration = true")
        yield _Results(file, texts, report.pass_threshold)


def _open_parquet(report: EvalReport, copy: Path) -> ParquetFile:
    """Open results.parquet, or one that is written where there is none."""
    if report.path is not None:
        run = RunDir(report.path)
        if has_current_parquet(run, report.info or run.read_info()):
            if not re.search(r"[*?[]", str(run.columns.absolute())):
                return ParquetFile(run.columns)
            shutil.copyfile(run.columns, copy)  # DuckDB would allow all that the pattern matches
            return ParquetFile(copy)
    file = write_parquet(lambda: parts_of(rows_of(report)), copy)
    if file is None:
        raise InvalidInput(
            "the results have more columns than a table holds, or there are none yet"
        )
    file.db.execute("SET memory_limit = '1GB'")
    return file


def _load_texts(db: DuckDBPyConnection, report: EvalReport) -> None:
    db.execute("CREATE TABLE texts (place BIGINT, prompt VARCHAR, answer VARCHAR, target VARCHAR)")
    results, place = iter(report.results), 0
    while some := list(islice(results, TEXT_ROWS)):
        columns = {
            "place": np.arange(place, place + len(some)),
            "prompt": np.array(
                [question_of(r.trajectory, system=True) for r in some], dtype=object
            ),
            "answer": np.array([r.trajectory.answer for r in some], dtype=object),
            "target": np.array([as_text(r.sample.ground_truth) for r in some], dtype=object),
        }
        insert_arrays(db, "texts", columns)
        place += len(some)


class _Results:
    """The table `results` of an open database."""

    def __init__(self, file: ParquetFile, texts: Sequence[str], pass_threshold: float) -> None:
        self._db, self._file, self._texts = file.db, file, texts
        self._computed = {
            "id": "sample_id",
            "passed": f"coalesce(reward >= {pass_threshold!r}, false)",
        }

    def show(self, *, outcomes: bool) -> None:
        """Define the table, with or without the columns of what came out."""
        columns = ["id", "index", "repeat", *(OUTCOMES if outcomes else ())]
        selected = [f"{self._computed.get(c, quote_name(c))} AS {quote_name(c)}" for c in columns]
        if outcomes:
            selected += self._struct("metrics", METRIC, ())
        selected += self._struct("metadata", METADATA, () if outcomes else self._file.own)
        selected += [text for text in self._texts if outcomes or text != "answer"]
        join = " LEFT JOIN texts ON place = file_row_number" if self._texts else ""
        self._db.execute(
            f"CREATE OR REPLACE VIEW results AS SELECT {', '.join(selected)} "
            f"FROM {self._file.source}{join}"
        )

    def _struct(self, name: str, prefix: str, without: Iterable[str]) -> list[str]:
        """Give a column with a field for each metric or key; none where there are none."""
        fields = {
            key: self._file.columns[column][0]
            for column in self._file.columns
            if column.startswith(prefix) and (key := column.removeprefix(prefix)) not in without
        }
        if not fields:
            return []
        named = zip(unique_names(fields), fields.values(), strict=True)
        packed = ", ".join(f"{quote_name(key)} := {quote_name(column)}" for key, column in named)
        return [f"struct_pack({packed}) AS {name}"]

    def accepts(self, sql: str) -> bool:
        """Tell whether a query names only columns that the table has."""
        import duckdb

        try:
            self._db.execute(f"EXPLAIN {sql}")
        except duckdb.Error:
            return False
        return True

    def run(self, sql: str) -> QueryResult:
        """Run one SELECT statement."""
        import duckdb

        try:
            statements = self._db.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise InvalidQuery("a query is one SELECT statement")
            self._db.execute(statements[0])
        except duckdb.Error as problem:
            raise InvalidQuery(_on_one_line(problem)) from None
        names = [column[0] for column in self._db.description or ()]
        return QueryResult(names, self._rows())

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        import duckdb

        try:
            while rows := self._db.fetchmany(TEXT_ROWS):
                yield from rows
        except duckdb.Error as problem:
            raise InvalidQuery(_on_one_line(problem)) from None


def _on_one_line(problem: Exception) -> str:
    """Give DuckDB's message without the excerpt of the query that it points into."""
    message, _, _ = str(problem).partition("\nLINE ")
    return " ".join(message.split())
