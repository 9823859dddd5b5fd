"""A database that has the results of a report, and access to nothing else.

DuckDB reads results.parquet, or, of a run that has none, one that is written to a temporary folder;
queries run in one thread and a limited memory, after access to files, extensions and settings was
taken away. `heldout.store.sql` says which columns `results` has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from heldout._core.temporary import TemporaryFolder
from heldout.errors import InvalidInput, InvalidQuery
from heldout.store.columns import (
    METADATA,
    METRIC,
    as_text,
    open_current_parquet,
    write_parquet,
)
from heldout.store.parquet import (
    ParquetFile,
    insert_arrays,
    quote_name,
    quote_text,
    unique_names,
)
from heldout.store.results import Results, Selection, rows_of
from heldout.types import EvalResult

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TEXTS = ("prompt", "answer", "ground_truth")
OUTCOMES = ("error", "truncated", "ended_by", "prompt_tokens", "completion_tokens", "seconds")
"""Columns that hold what came out, not what was asked, beside the rewards and `passed`."""
Outcomes = Literal["shown", "absent", "forbidden"]
"""Whether `results` has the columns of what came out, or ones that raise when they are read."""
ROWS = 1024


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query gives: the names of its columns, and rows that are read as they are used."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]
    note: str | None = None
    """What the query's means are over, where the run is not finished or items errored."""


def select_items(
    results: Sequence[EvalResult], condition: str, pass_threshold: float | None
) -> Selection:
    """Find the items for which a condition holds, and whether it looks at what came out.

    DuckDB says whether it does, not the text of the condition. It is run where outcomes are no
    columns, so that one by its name is not found; where they raise, so that the row as a whole
    (`to_json(results)`) cannot be read; and on the results. What is picked without outcomes has to
    be what is picked with them: metadata as a whole has what the run wrote into it.
    """
    # On lines of its own, so that a comment in it ends with it.
    picked = f"CASE WHEN (\n{condition}\n) THEN true ELSE false END"
    sql = f'SELECT {picked} FROM results ORDER BY "index", repeat'
    with open_database(results, condition) as (file, texts):

        def pick(outcomes: Outcomes) -> NDArray[np.bool_] | None:
            define_results(file, texts, pass_threshold, outcomes)
            file.db.execute("SELECT setseed(0)").fetchall()  # random() < 0.5 picks the same
            try:
                return np.array(
                    [found for (found,) in run_select(file.db, sql).rows], dtype=np.bool_
                )
            except InvalidQuery as problem:
                if outcomes != "shown":
                    return None
                raise InvalidQuery(f"the condition {condition!r:.200}: {problem}") from None

        without, forbidden, items = pick("absent"), pick("forbidden"), pick("shown")
        assert items is not None, "an error was raised"
        by_outcome = any(
            other is None or not np.array_equal(other, items) for other in (without, forbidden)
        )
    if not items.any():
        raise InvalidQuery(f"there is no result where {condition}")
    return Selection(condition, items, by_outcome)


@contextmanager
def open_database(
    results: Sequence[EvalResult], sql: str
) -> Iterator[tuple[ParquetFile, list[str]]]:
    """Open a database that can read these results, and do nothing else.

    Yields the file of results, and which texts the query names, which are in a table `texts`.
    """
    with (
        TemporaryFolder("sql") as folder,
        closing(_open_parquet(results, Path(folder) / "results.parquet")) as file,
    ):
        texts = [name for name in TEXTS if re.search(rf"\b{name}\b", sql, re.IGNORECASE)]
        if texts:
            _load_texts(file.db, results)
        file.db.execute(f"SET temp_directory = {quote_text(folder)}")
        file.db.execute(f"SET allowed_paths = [{quote_text(str(file.path.absolute()))}]")
        file.db.execute("SET enable_external_access = false")
        file.db.execute("SET lock_configuration = true")
        yield file, texts


def _open_parquet(results: Sequence[EvalResult], copy: Path) -> ParquetFile:
    """Open results.parquet, or one that is written: where there is none, or of a selection."""
    if isinstance(results, Results) and results.selection is None:
        run = results.run
        # Of such a path, DuckDB would allow all that the pattern matches.
        is_pattern = re.search(r"[*?[]", str(run.columns.absolute())) is not None
        info = results.info or run.read_info()
        if file := open_current_parquet(run, info, copy if is_pattern else None):
            return file
    file = write_parquet(lambda: rows_of(results), copy)
    if file is None:
        raise InvalidInput(
            "the results have more columns than a table holds, or there are none yet"
        )
    file.db.execute("SET memory_limit = '1GB'")
    return file


def _load_texts(db: DuckDBPyConnection, results: Sequence[EvalResult]) -> None:
    types = ", ".join(f"{name} VARCHAR" for name in TEXTS)
    db.execute(f"CREATE TABLE texts (place BIGINT, {types})")
    remaining, first = iter(results), 0
    while batch := list(islice(remaining, ROWS)):
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


def define_results(
    file: ParquetFile,
    texts: Sequence[str],
    pass_threshold: float | None,
    outcomes: Outcomes = "shown",
) -> None:
    """Define the table `results`, with the columns of what came out or without."""
    selected = ["sample_id", '"index"', "repeat"]
    if outcomes == "forbidden":
        names = ("reward", "reward_or_0", "reward_or_worst", "passed", *OUTCOMES)
        selected += [f"error('an outcome of ' || sample_id) AS {name}" for name in names]
    if outcomes == "shown":
        passed = f"coalesce(reward >= {pass_threshold!r}, false) AS passed"
        if pass_threshold is None:
            passed = "NULL::BOOLEAN AS passed"
        worst = f"coalesce(reward, least(0, (SELECT min(reward) FROM {file.source})))"
        selected += ["reward", "coalesce(reward, 0) AS reward_or_0", f"{worst} AS reward_or_worst"]
        selected += [passed, *OUTCOMES]
    for struct, prefix in (("metrics", METRIC), ("metadata", METADATA)):
        fields = {
            name.removeprefix(prefix): column
            for name, (column, _) in file.columns.items()
            if name.startswith(prefix)
        }
        if outcomes != "shown":
            hidden = fields if struct == "metrics" else file.own
            fields = {key: column for key, column in fields.items() if key not in hidden}
        if fields:
            columns = zip(unique_names(fields), fields.values(), strict=True)
            packed = ", ".join(f"{quote_name(key)} := {quote_name(name)}" for key, name in columns)
            selected.append(f"struct_pack({packed}) AS {struct}")
    selected += [text for text in texts if outcomes == "shown" or text != "answer"]
    join = " LEFT JOIN texts ON place = file_row_number" if texts else ""
    file.db.execute(
        f"CREATE OR REPLACE VIEW results AS SELECT {', '.join(selected)} FROM {file.source}{join}"
    )


def run_select(db: DuckDBPyConnection, sql: str) -> QueryResult:
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
