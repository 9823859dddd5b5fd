"""SQL over the results of a run, read-only, with access to nothing else.

    query(report, "select metadata.level, avg(reward) from results group by all")

Columns of `results` are `sample_id`, `index`, `repeat`, `reward`, `reward_or_0`, `reward_or_worst`,
`passed`, `error`, `truncated`, `ended_by`, `prompt_tokens`, `completion_tokens`, `seconds`,
`metrics` and `metadata` (a field for each metric and key: `metrics.correct`, `metadata."the
level"`), and, where a query names them, the texts `prompt`, `answer` and `ground_truth`. An errored
item has no `reward`, so `avg(reward)` is the mean over scored items, and `avg(reward_or_0)` that
over all; `reward_or_worst` counts an errored item as the lowest reward where some are negative
(clause 2). `summary` is the report's summary, of one row. DuckDB reads results.parquet, or, of a
run that has none, one that is written to a temporary folder; queries run in one thread and a
limited memory, after access to files, extensions and settings was taken away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from heldout.stats.summary import Summary
from heldout.store.database import QueryResult, define_results, open_database, run_select
from heldout.store.parquet import quote_name, unique_names
from heldout.store.report import EvalReport

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


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
    with open_database(report.results, sql) as (file, texts):
        define_results(file, texts, report.pass_threshold)
        _define_summary(file.db, report.summary)
        notes = [_describe_unfinished(report), _describe_missing(report.summary, sql)]
        yield replace(run_select(file.db, sql), note=". ".join(filter(None, notes)) or None)


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


def _describe_unfinished(report: EvalReport) -> str | None:
    """Say that a run is not finished: no number over it is one of the whole."""
    summary, settled = report.summary, report.settled
    if settled is not None and settled.is_early:
        return (
            f"The run was stopped by {settled.stopped_by}: results has the {settled.part} that it "
            "stopped at, for what they showed. "
            f"{settled.sentence.removesuffix('.')}"
        )
    if report.is_finished:
        return None
    of = "" if summary.get("n_asked") is None else f" of {summary['n_asked']}"
    return (
        f"The run is not finished: results has {summary.get('n')}{of} items, and those that end "
        "first are not like the others"
    )


def _describe_missing(summary: Summary, sql: str) -> str | None:
    """Say which items have no reward or metric, where a query names these and some errored."""
    n, errors = summary.get("n"), summary.get("n_errors")
    if not n or not errors:
        return None
    lowest = summary.get("min") or 0

    def names(column: str) -> bool:
        return re.search(rf"\b{column}\b", sql, re.IGNORECASE) is not None

    said = []
    if names("reward"):
        said.append(
            f"have no reward: avg(reward) is over the {n - errors} others, avg(reward_or_0) over "
            f"all {n}"
        )
    if names("metrics"):
        said.append(
            "have no metrics: a mean leaves them out. Where lower is better, the worst case is "
            "coalesce(metrics.NAME, 1), or the highest value of a metric beyond 1"
        )
    if lowest < 0 and (names("reward") or names("reward_or_0")):
        said.append(
            f"would count as more than the lowest reward, {lowest:g}, as 0: avg(reward_or_worst) "
            "counts them as that"
        )
    return f"{errors} of {n} items errored and {'; they '.join(said)}" if said else None
