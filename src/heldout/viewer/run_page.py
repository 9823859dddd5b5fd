"""One run: its summary, its slices, and the rows of its samples."""

from __future__ import annotations

import csv
import difflib
import io
import shlex
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from heldout._core.format import number
from heldout.reporting.blocks import Line, Table, plain_blocks
from heldout.reporting.summaries import build_report, build_slices, in_order
from heldout.store.columns import METADATA, METRIC, as_text
from heldout.store.fingerprint import PARTS
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunInfo
from heldout.store.runs import describe_model
from heldout.viewer.filter import OUTCOMES, SEARCHED, Term, parse, picked_by, quote
from heldout.viewer.item_lines import ItemNumbers
from heldout.viewer.values import (
    Plain,
    cut_text,
    extracted,
    filter_text,
    numbers,
    question_text,
    reward_values,
)
from heldout.viewer.viewed_run import ViewedRun

ROW_QUESTION = 120
"""Characters of a question in the table of samples, which shows both of its ends."""
BINS = 20
MOST_KEYS, MOST_COMPLETED, LONGEST_COMPLETED = 50, 20, 80
"""Metadata keys whose values a filter is completed with, values of each, and characters of one."""
MOST_CELLS = 5_000_000
"""Values of all keys that are read to complete a filter."""
MOST_VALUES = 5_000
"""Values of a key among which a similar one is looked for."""
MOST_SAVED = 100_000
"""Rows of a file of rows."""
MOST_TIMED = 10_000
"""Attempts whose stages are added up for the page: each is read from the journal."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula."""


def describe_run(run: ViewedRun) -> Plain:
    """Describe a run as `heldout show` does, and its columns."""
    from heldout.analysis.passes import summarize_report

    report, info = run.report, run.info
    summary = summarize_report(report)
    blocks = build_report(report, summary, info=info).blocks
    config = report.config
    parent = config.get("parent")
    # The title is the page's own; what is not wrapped is a path or a command.
    lines = [b for b in blocks[1:] if isinstance(b, Line) and b.wrap]
    answer: Plain = {
        "status": report.status,
        "model": describe_model(config),
        "parent": parent.get("run") if isinstance(parent, dict) else None,
        "unfinished": summary.get("complete") is False,
        "asked": info.asked,
        "resume": _resume_command(info) if report.status == "interrupted" else None,
        "summary": summary,
        "numbers": numbers(summary),
        "table": plain_blocks([b for b in blocks if isinstance(b, Table)])[0],
        "notes": plain_blocks(line for line in lines if line.style != "dim"),
        "about": plain_blocks([*(line for line in lines if line.style == "dim"), *_hints(report)]),
        "pass_threshold": report.pass_threshold,
        "started": info.started,
        "finished": info.finished,
        "path": str(report.path),
        "config": config,
        "functions": {k: v for k, v in info.functions.items() if k != PARTS},
        "versions": info.versions,
    }
    if summary["n"]:
        answer |= _describe_columns(run)
    return answer


def _hints(report: EvalReport) -> list[Line]:
    """Say how a run is steered that runs, and where the time went of one that has ended.

    Of a large run, `heldout show --time` says it.
    """
    if report.status == "running":
        steer = f"heldout ctl {shlex.quote(str(report.path))}"
        return [Line(f"Steer it: {steer} --pause, --go-on, --max-concurrent N", style="dim")]
    if report.status != "complete" or report.summary["n"] > MOST_TIMED:
        return []
    from heldout.analysis.time_use import time_use
    from heldout.reporting.time_report import conclude_time

    use = time_use(report, slowest=0)
    return [Line(f"Time: {conclude_time(use)}", style="dim")] if use.timed else []


def _describe_columns(run: ViewedRun) -> Plain:
    rewards = run.fields.rewards[~np.isnan(run.fields.rewards)]
    histogram = None
    if len(rewards) and len(np.unique(rewards[:10_000])) > 2:
        low, high = float(rewards.min()), float(rewards.max())
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        counts, edges = np.histogram(rewards, BINS, (low, high))
        histogram = {"counts": counts.tolist(), "edges": edges.tolist()}
    return {
        "outcomes": run.fields.count_outcomes(np.arange(len(run.rows))),
        "histogram": histogram,
        "keys": run.fields.metadata_keys,
        "samples": len(run.rows) if run.repeats == 1 else run.table.samples,
        "repeats": run.repeats,
        "tokens": _quantiles(run.fields.column("completion_tokens").numbers),
        "seconds": _quantiles(run.fields.column("seconds").numbers),
    }


def _quantiles(values: Any) -> Plain | None:
    if np.isnan(values).all():
        return None
    return {"median": float(np.nanmedian(values)), "p95": float(np.nanpercentile(values, 95))}


def _resume_command(info: RunInfo) -> str | None:
    """Return the command that continues a run, where `heldout run` began it."""
    arguments = info.run_arguments
    if arguments is None:
        return None
    again = [argument for argument in arguments if argument != "--resume"]
    return f"heldout run {shlex.join([*again, '--resume'])}"


def describe_slices(run: ViewedRun, by: str) -> Plain:
    """Give a summary for each value of a metadata key."""
    slices, total = run.report.slices_and_total(by)
    ordered = {values: slices[values] for values in in_order(slices)}
    blocks = build_slices([by], ordered, total, run.report).blocks
    rows = [
        {"value": None if value is None else filter_text(value), **numbers(summary)}
        for (value,), summary in ordered.items()
    ]
    notes = plain_blocks([block for block in blocks if isinstance(block, Line)])
    return {
        "by": by,
        "total": len(rows),
        "rows": rows[:500],
        "all": numbers(total),
        "notes": notes,
    }


def describe_rows(
    run: ViewedRun,
    where: str,
    sort: str,
    cols: Sequence[str],
    offset: int,
    limit: int,
    *,
    quick: bool = False,
) -> Plain:
    """Give some of the samples that a filter holds for.

    If `quick`, and these are the first ones and found without a search of the whole run, how many
    there are is left open: `total` and `counts` are None.
    """
    first = run.rows.select_first(where, limit) if quick and not sort and not offset else None
    items = run.rows.select(where, sort) if first is None else first
    shown: list[int] = items[offset : offset + limit].tolist()
    fields = [*run.fields.metadata_keys, *(f"metric.{name}" for name in run.fields.metrics)]
    extra = [field for field in cols if field in fields] if cols else run.fields.metadata_keys[:3]
    values = [[*map(_format_cell, _cell_values(run, f, shown))] for f in extra]
    tokens = _cell_values(run, "completion_tokens", shown)
    seconds = _cell_values(run, "seconds", shown)
    rows = []
    for i, (item, result) in enumerate(zip(shown, run.read(shown), strict=True)):
        rows.append(
            {
                "id": result.sample_id,
                "repeat": result.repeat,
                "outcome": run.fields.outcome(item),
                "truncated": result.trajectory.stop.truncated,
                **reward_values(result),
                "question": question_text(result, ROW_QUESTION),
                "target": cut_text(as_text(result.sample.ground_truth)),
                **extracted(result),
                "answer": cut_text(result.trajectory.answer),
                "error": cut_text(result.error),
                "extra": [column[i] for column in values],
                "tokens": tokens[i],
                "seconds": seconds[i],
            }
        )
    answer = {"total": len(items), "of": len(run.rows), "generation": run.stamp, "rows": rows}
    if offset:
        return answer
    answer |= {"extra": extra, "fields": fields[:100], **_describe_head(run, where, items)}
    return answer if first is None else answer | {"total": None, "counts": None}


def describe_position(run: ViewedRun, where: str, sort: str, id: str, repeat: int) -> Plain:
    """Say where in the filtered list of samples one is, and which are beside it."""
    items = run.rows.select(where, sort)
    item = run.attempts_at(id).get(repeat)
    repeats = run.table.repeat
    found = [] if item is None else np.flatnonzero(items == item).tolist()
    at = found[0] if found else None

    def name_row(row: int) -> Plain | None:
        if not 0 <= row < len(items):
            return None
        return {"at": row, "id": run.fields.ids[items[row]], "repeat": int(repeats[items[row]])}

    # What is not in the list has its first row next to it.
    beside = (-1, 0) if at is None else (at - 1, at + 1)
    previous, following = map(name_row, beside)
    return {"at": at, "total": len(items), "previous": previous, "next": following}


def _describe_head(run: ViewedRun, where: str, items: ItemNumbers) -> Plain:
    """Give what stands above the rows: counts, and a mean where rows have one."""
    terms = parse(where)
    picked = picked_by(terms, run.fields.is_input)
    summary = None
    if picked == "all":
        summary = run.report.summary
    elif picked == "metadata" and len(items):
        summary = run.summarize(items)
    return {
        "picked": picked,
        "counts": run.fields.count_outcomes(items),
        "mean": None if summary is None else numbers(summary),
        "repeats": run.repeats,
        "running": run.report.status == "running",
        "completions": _completions(run),
        "near": [] if len(items) else _find_near(run, terms),
    }


def _find_near(run: ViewedRun, terms: Sequence[Term]) -> list[str]:
    """Name the terms that were meant, perhaps, where no row has the value of one."""
    near = []
    for term in terms:
        column = None if term.field in SEARCHED else run.fields.column(term.field)
        if column is None or column.codes is None or term.negated or column.lowered:
            continue
        if term.op in (":", "=") and term.value not in column.values:
            values = [value for value in column.values if value.lower() == term.value.lower()]
            values = values or difflib.get_close_matches(term.value, column.values[:MOST_VALUES])
            near += [f"{quote(term.field)}:{quote(value)}" for value in values[:1]]
    return near


@lru_cache(4)
def _completions(run: ViewedRun) -> list[Plain]:
    """Terms that a filter can be completed with: fields, and values with how many rows have each.

    Of outcomes and of metadata, the commonest values.
    """
    outcomes = run.fields.count_outcomes(np.arange(len(run.rows)))
    terms: list[Plain] = [{"term": f"{name}:yes", "rows": outcomes[name]} for name in OUTCOMES]
    fields = ["reward<", "tokens>", "seconds>", "text:", "answer:", "ground_truth:", "extracted:"]
    fields += [
        "id:",
        "ended_by:",
        "error:",
        *(f"{quote(metric)}<" for metric in run.fields.metrics),
    ]
    terms += [{"term": field, "rows": None} for field in fields]
    # Each key is a column to read.
    for key in run.fields.metadata_keys[: min(MOST_KEYS, max(3, MOST_CELLS // len(run.rows)))]:
        column = run.fields.column(key)
        terms.append({"term": f"{quote(key)}:", "rows": None})
        if column.codes is None:
            continue
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.values))
        for code in np.argsort(-counts, kind="stable")[:MOST_COMPLETED].tolist():
            term = f"{quote(key)}:{quote(column.values[code])}"
            if len(term) <= LONGEST_COMPLETED:
                terms.append({"term": term, "rows": int(counts[code])})
    return terms


# --- Files of rows ------------------------------------------------------------------------------


def rows_as_text(run: ViewedRun, where: str, sort: str, format: str) -> Plain:
    """Write the rows that a filter holds for as CSV or JSONL, one per item."""
    items = run.rows.select(where, sort)
    shown: list[int] = items[:MOST_SAVED].tolist()
    fields = ["id", "repeat", "reward", "error", "ground_truth", "extracted"]
    fields += [f"{METRIC}{name}" for name in run.fields.metrics]
    fields += [f"{METADATA}{key}" for key in run.fields.metadata_keys]
    fields += ["prompt_tokens", "completion_tokens", "seconds", "truncated", "ended_by"]
    columns: dict[str, list[Any]] = {"outcome": [run.fields.outcome(item) for item in shown]}
    columns |= {field: _whole_values(run, field, shown) for field in fields}
    rows = zip(*columns.values(), strict=True)
    if format == "csv":
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow(columns)
        writer.writerows([_csv_cell(value) for value in row] for row in rows)
        text = out.getvalue()
    else:
        names = [*columns]
        lines = (msgspec.json.encode(dict(zip(names, row, strict=True))) for row in rows)
        text = b"".join(line + b"\n" for line in lines).decode()
    return {"text": text, "rows": len(shown), "total": len(items)}


def _csv_cell(value: Any) -> Any:
    """Keep a spreadsheet from taking a text for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _whole_values(run: ViewedRun, field: str, items: Sequence[int]) -> list[Any]:
    column = run.fields.column(field)
    if column.numbers is not None:
        numbers = column.numbers[items].tolist()
        return [None if n != n else int(n) if n == int(n) else n for n in numbers]
    assert column.codes is not None
    codes = column.codes[items].tolist()
    return [None if code < 0 else column.values[code] for code in codes]


def _cell_values(run: ViewedRun, field: str, items: Sequence[int]) -> list[Any]:
    values = _whole_values(run, field, items)
    return [cut_text(value) if isinstance(value, str) else value for value in values]


def _format_cell(value: Any) -> str | None:
    return number(value) if isinstance(value, float) else None if value is None else str(value)
