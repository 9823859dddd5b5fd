"""SQL over the results of a run, read-only, with access to nothing else.

    query(report, "select metadata.level, avg(reward) from results group by all")
    select_items(report, "metadata.level = 'hard'")

Columns of `results` are `id`, `index`, `repeat`, `reward`, `reward_or_0`, `passed`, `error`,
`truncated`, `ended_by`, `prompt_tokens`, `completion_tokens`, `seconds`, `metrics` and `metadata`
(a field for each metric and key: `metrics.correct`, `metadata."the level"`), and, where a query
names them, the texts `prompt`, `answer` and `ground_truth`. An errored item has no `reward`, so
`avg(reward)` is the mean over scored items, and `avg(reward_or_0)` that over all. `summary` is the
report's summary, of one row. DuckDB reads results.parquet, or, of a run that has none, one that
is written to a temporary folder; queries run in one thread and a limited memory, after access to
files, extensions and settings was taken away.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heldout.errors import InvalidInput, InvalidQuery
from heldout.stats.summary import Summary
from heldout.store.columns import (
    METADATA,
    METRIC,
    Selection,
    as_text,
    open_current_parquet,
    parts_of,
    rows_of,
    write_parquet,
)
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

TEXTS = ("prompt", "answer", "ground_truth")
OUTCOMES = ("error", "truncated", "ended_by", "prompt_tokens", "completion_tokens", "seconds")
"""Columns that hold what came out, not what was asked, beside the rewards and `passed`."""
ROWS = 1024


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query gives: the names of its columns, and rows that are read as they are used."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]
    note: str | None = None
    """How many items the query's means leave out, where some errored."""


@contextmanager
def query(report: EvalReport, sql: str) -> Iterator[QueryResult]:
    """Run a query over `results`, one row per item, and `summary`.

    Args:
        report: A report on disk or in memory, finished or not.
        sql: One SELECT statement, in DuckDB's dialect.

    Yields:
        The result, to be read while the context is open.

    Raises:
        InvalidQuery: It is not one SELECT statement, or DuckDB refuses it.
        RunDirectoryError: The run cannot be read.
    """
    with _open(report, sql) as (file, texts):
        _define_results(file, texts, report.pass_threshold)
        _define_summary(file.db, report.summary)
        yield replace(_run(file.db, sql), note=_describe_missing(report.summary, sql))


def select_items(report: EvalReport, condition: str) -> Selection:
    """Find the items for which a condition holds, and whether it looks at what came out."""
    import duckdb

    # On lines of its own, so that a comment in it ends with it.
    picked = f"CASE WHEN (\n{condition}\n) THEN true ELSE false END"
    sql = f'SELECT {picked} FROM results ORDER BY "index", repeat'
    with _open(report, condition) as (file, texts):
        _define_results(file, texts, report.pass_threshold, outcomes=False)
        by_outcome = False
        try:
            file.db.execute(f"EXPLAIN {sql}")
        except duckdb.Error:  # it names a column that is not there
            by_outcome = True
        _define_results(file, texts, report.pass_threshold)
        try:
            rows = _run(file.db, sql).rows
        except InvalidQuery as problem:
            raise InvalidQuery(f"the condition {condition!r:.200}: {problem}") from None
        items = np.array([is_picked for (is_picked,) in rows], dtype=np.bool_)
    if not items.any():
        raise InvalidQuery(f"there is no result where {condition}")
    return Selection(condition, items, by_outcome)


@contextmanager
def _open(report: EvalReport, sql: str) -> Iterator[tuple[ParquetFile, list[str]]]:
    """Open a database that can read the results of a report, and do nothing else.

    Yields the file of results, and which texts the query names, which are in a table `texts`.
    """
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
        yield file, texts


def _open_parquet(report: EvalReport, copy: Path) -> ParquetFile:
    """Open results.parquet, or one that is written where there is none."""
    if report.path is not None:
        run = RunDir(report.path)
        # Of such a path, DuckDB would allow all that the pattern matches.
        is_pattern = re.search(r"[*?[]", str(run.columns.absolute())) is not None
        info = report.info or run.read_info()
        if file := open_current_parquet(run, info, copy if is_pattern else None):
            return file
    file = write_parquet(lambda: parts_of(rows_of(report)), copy)
    if file is None:
        raise InvalidInput(
            "the results have more columns than a table holds, or there are none yet"
        )
    file.db.execute("SET memory_limit = '1GB'")
    return file


def _load_texts(db: DuckDBPyConnection, report: EvalReport) -> None:
    types = ", ".join(f"{name} VARCHAR" for name in TEXTS)
    db.execute(f"CREATE TABLE texts (place BIGINT, {types})")
    results, first = iter(report.results), 0
    while batch := list(islice(results, ROWS)):
        columns = {
            "place": np.arange(first, first + len(batch)),
            "prompt": np.array(
                ["\n\n".join(m.text for m in r.trajectory.opening) for r in batch], dtype=object
            ),
            "answer": np.array([r.trajectory.answer for r in batch], dtype=object),
            "ground_truth": np.array([as_text(r.sample.ground_truth) for r in batch], dtype=object),
        }
        insert_arrays(db, "texts", columns)
        first += len(batch)


def _define_results(
    file: ParquetFile, texts: Sequence[str], pass_threshold: float | None, *, outcomes: bool = True
) -> None:
    """Define the table `results`, with or without the columns of what came out."""
    selected = ["sample_id AS id", '"index"', "repeat"]
    if outcomes:
        passed = f"coalesce(reward >= {pass_threshold!r}, false) AS passed"
        if pass_threshold is None:
            passed = "NULL::BOOLEAN AS passed"
        selected += ["reward", "coalesce(reward, 0) AS reward_or_0", passed, *OUTCOMES]
    for struct, prefix in (("metrics", METRIC), ("metadata", METADATA)):
        fields = {
            name.removeprefix(prefix): column
            for name, (column, _) in file.columns.items()
            if name.startswith(prefix)
        }
        if not outcomes:
            hidden = fields if struct == "metrics" else file.own
            fields = {key: column for key, column in fields.items() if key not in hidden}
        if fields:
            columns = zip(unique_names(fields), fields.values(), strict=True)
            packed = ", ".join(f"{quote_name(key)} := {quote_name(name)}" for key, name in columns)
            selected.append(f"struct_pack({packed}) AS {struct}")
    selected += [text for text in texts if outcomes or text != "answer"]
    join = " LEFT JOIN texts ON place = file_row_number" if texts else ""
    file.db.execute(
        f"CREATE OR REPLACE VIEW results AS SELECT {', '.join(selected)} FROM {file.source}{join}"
    )


def _define_summary(db: DuckDBPyConnection, summary: Summary) -> None:
    """Define `summary`, with the numbers of a report's summary as its columns."""
    numbers = {key: v for key, v in summary.items() if isinstance(v, int | float | None)}
    if not numbers:
        return
    names = zip(unique_names(numbers), numbers.values(), strict=True)
    selected = ", ".join(f"{_as_literal(value)} AS {quote_name(name)}" for name, value in names)
    db.execute(f"CREATE VIEW summary AS SELECT {selected}")


def _as_literal(value: float | None) -> str:
    if value is None:
        return "NULL::DOUBLE"
    return f"{value!r}::DOUBLE" if isinstance(value, float) else str(value)


def _describe_missing(summary: Summary, sql: str) -> str | None:
    """Say which items have no reward or metric, where a query names these and some errored."""
    n, errors = summary.get("n"), summary.get("n_errors")
    if not n or not errors or not re.search(r"\b(reward|metrics)\b", sql, re.IGNORECASE):
        return None
    return (
        f"{errors} of {n} items errored and have no reward: avg(reward) is over the {n - errors} "
        f"others, avg(reward_or_0) over all {n}"
    )


def _run(db: DuckDBPyConnection, sql: str) -> QueryResult:
    """Run one SELECT statement."""
    import duckdb

    def fetch() -> Iterator[tuple[Any, ...]]:
        try:
            while rows := db.fetchmany(ROWS):
                yield from rows
        except duckdb.Error as problem:
            raise InvalidQuery(_on_one_line(problem)) from None

    try:
        statements = db.extract_statements(sql)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise InvalidQuery("a query is one SELECT statement")
        db.execute(statements[0])
    except duckdb.Error as problem:
        raise InvalidQuery(_on_one_line(problem)) from None
    return QueryResult([column[0] for column in db.description or ()], fetch())


def _on_one_line(problem: Exception) -> str:
    """Return DuckDB's message without the excerpt of the query that it points into."""
    message, _, _ = str(problem).partition("\nLINE ")
    return " ".join(message.split())
