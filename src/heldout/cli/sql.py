"""`heldout sql RUN QUERY`: a query over the results of a run."""

from __future__ import annotations

from itertools import islice
from typing import Any

import click

from heldout._core.format import number, printable
from heldout.cli._tables import print_json, print_report
from heldout.reporting.blocks import Column, Line, Report, Table
from heldout.reporting.names import load_report

ROWS = 200
"""Rows of a table that are printed; --json prints all."""


@click.command("sql")
@click.argument("run")
@click.argument("query")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per row.")
def command(run: str, query: str, as_json: bool) -> None:
    """Run a SELECT over the results of RUN, in DuckDB's dialect of SQL.

    The table is called results, with one row per item and the columns sample_id, index, repeat,
    reward, reward_or_0, reward_or_worst, passed, error, truncated, ended_by, prompt_tokens,
    completion_tokens, seconds, metrics.NAME, metadata.KEY, and, where the query names them, the
    texts prompt, answer and ground_truth. An errored item has no reward: avg(reward) is over the
    others, avg(reward_or_0) over all; reward_or_worst counts an errored item as the lowest reward
    where some are negative. The table summary has one row, the numbers of `heldout show`.
    """
    from heldout.store.sql import query as run_query

    with run_query(load_report(run), query) as result:
        if result.note is not None:
            click.echo(printable(f"Note: {result.note}."), err=True)
        if as_json:
            for row in result.rows:
                print_json(dict(zip(result.columns, row, strict=True)), "sql")
            return
        rows = [[_format_value(value) for value in row] for row in islice(result.rows, ROWS)]
        table = Table([Column(name, wrap=True) for name in result.columns], rows)
        more = next(result.rows, None) is not None
        note = [Line(f"The first {ROWS} rows; --json prints all.", style="dim")] * more
        print_report(Report([table, *note]))


def _format_value(value: Any) -> str:
    return number(value) if value is None or isinstance(value, float) else str(value)
