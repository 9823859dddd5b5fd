"""What the pages of the viewer show: plain values of runs, comparisons and curves.

Every method of `Pages` answers one request of the page, and knows nothing of HTTP: the server sends
the answers, an export embeds them. Sentences and tables are those that the command line prints
(`heldout.cli`), so that page and terminal never disagree. A run is named by its key in a scan of
the roots, and one eval of a curve by NAME@STEP or NAME@LABEL:STEP; no name is joined to a path.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from heldout._format import cut_middle
from heldout.cli._curves import (
    CurveRun,
    compute_verdicts,
    describe_point,
    describe_status,
    format_n,
    group_by_label,
    latest_verdicts,
    read_curve,
)
from heldout.cli._load import find_step, saved_eval, select_label
from heldout.cli._tables import Block, Line, Span
from heldout.cli._tables import Table as TextTable
from heldout.cli.show import build_report, build_slices
from heldout.cli.show import in_order as order_slices
from heldout.errors import (
    DamagedJournal,
    HeldoutError,
    InvalidInput,
    NotComparable,
    RunDirectoryError,
)
from heldout.store.columns import as_text
from heldout.store.journal import decode_result, has_writer, lines
from heldout.store.jsonl import open_to_read
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.runs import describe_model, holds_run, list_history, read_entry
from heldout.training.curve import (
    CurvePoint,
    ItemOutcome,
    is_fewer,
    most_asked,
    sample_rewards,
)
from heldout.types import EvalResult, Message, Trajectory
from heldout.viewer.tables import ItemNumbers, RunTable, stamp
from heldout.viewer.where import OUTCOMES, parse, picked_by, quote

if TYPE_CHECKING:  # the others are imported by the first request that needs them
    from heldout.analysis.comparison import Comparison, Difference
    from heldout.stats import Interval
    from heldout.stats.differences import SliceDifference

__all__ = ["NotComparable", "Pages", "UnknownRun", "scan_runs"]

DEPTH = 3
"""Folders below a root in which runs are looked for."""
LONGEST_CELL = 300
ROW_QUESTION = 120
"""Characters of a question in the table of samples, which shows both of its ends."""
LONGEST_ANSWER = 2_000
"""Characters of an answer in a list of flips or steps."""
FLIPS = 50
STRIP = 500
"""Samples of a curve that are drawn step by step."""
BINS = 20
JOURNAL_GRAIN = 1 << 20
"""Bytes that a journal grows by until the list of runs shows it anew."""

Plain = dict[str, Any]


class UnknownRun(HeldoutError):
    """There is no run, or no sample, of this name."""


# --- Runs ---------------------------------------------------------------------------------------


def scan_runs(roots: Sequence[Path]) -> dict[str, Path]:
    """Find run directories in some folders, three levels deep; links are not followed.

    Returns:
        Their paths by name: the path below the root, with the root's own before it where two roots
        have a run of the same name.
    """
    runs: dict[str, Path] = {}
    for root in roots:
        for path in _walk(root, DEPTH):
            name = path.relative_to(root).as_posix() if path != root else root.absolute().name
            if name in runs:
                name = path.as_posix()
            runs[name.encode("utf-8", "replace").decode()] = path
    return runs


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if holds_run(folder):
        yield folder
        yield from (run for run in list_history(folder) if run != folder and not run.is_symlink())
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if depth and entry.is_dir(follow_symlinks=False):
                yield from _walk(folder / entry.name, depth - 1)


class Pages:
    """Answers the requests of the page.

    Args:
        roots: Folders that hold runs, and run directories.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = list(roots)
        self._known: dict[str, Path] = {}

    def runs(self) -> Plain:
        """List all runs, the newest first."""
        state = self.state([])
        rows = [
            _row(name, path, stamp(path), _is_live(path)) for name, path in self._scan().items()
        ]
        rows.sort(key=lambda row: (row["started"] or "", row["name"]), reverse=True)
        return {"runs": rows, "roots": [str(root) for root in self.roots], "state": state}

    def _scan(self) -> dict[str, Path]:
        self._known = scan_runs(self.roots)
        return self._known

    def path(self, name: str) -> Path:
        """Find the run directory of NAME, NAME@STEP or NAME@LABEL:STEP."""
        curve, _, selector = name.rpartition("@")
        label, colon, step = selector.rpartition(":")
        known = self._known
        if not {name, curve} & known.keys():
            known = self._scan()
        if name in known:
            return known[name]
        if curve in known and RunDir(known[curve]).curve.exists() and step.isdecimal():
            return find_step(known[curve], int(step[:16]), label=label if colon else None)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else None
        raise UnknownRun(f"there is no run {name!r:.200}", hint=hint)

    def table(self, name: str) -> RunTable:
        """Open a run as it is now."""
        path = self.path(name)
        if RunDir(path).curve.exists():
            raise InvalidInput(f"{name} is a curve of many evals; name one, {name}@STEP")
        return _open_table(path, stamp(path))

    # --- One run ---

    def run(self, name: str) -> Plain:
        """Give the summary of a run."""
        from heldout.analysis.passes import summarize_report

        state, table = self.state([name]), self.table(name)
        report, info = table.report, table.info
        summary = summarize_report(report)
        blocks = build_report(report, summary, info=info).blocks
        config = report.config
        # The title is the page's own; what is not wrapped is a path or a command.
        lines = [b for b in blocks[1:] if isinstance(b, Line) and b.wrap]
        answer: Plain = {
            "name": name,
            "status": report.status,
            "model": describe_model(config),
            "parent": (config.get("parent") or {}).get("run"),
            "unfinished": summary.get("complete") is False,
            "asked": info.asked,
            "resume": _resume_command(info) if report.status == "interrupted" else None,
            "summary": summary,
            "table": plain_blocks([b for b in blocks if isinstance(b, TextTable)])[0],
            "notes": plain_blocks(line for line in lines if line.style != "dim"),
            "about": plain_blocks(line for line in lines if line.style == "dim"),
            "pass_threshold": report.pass_threshold,
            "started": info.started,
            "finished": info.finished,
            "path": str(report.path),
            "config": config,
            "functions": info.functions,
            "versions": info.versions,
            "state": state,
        }
        if summary["n"]:
            answer |= _describe_columns(table)
        return answer

    def slices(self, name: str, by: str) -> Plain:
        """Give a summary for each value of a metadata key."""
        table = self.table(name)
        slices, total = table.report.slices_and_total(by)
        ordered = {values: slices[values] for values in order_slices(slices)}
        blocks = build_slices([by], ordered, total, table.report).blocks
        rows = [
            {"value": None if value is None else _filter_text(value), **_numbers(summary)}
            for (value,), summary in ordered.items()
        ]
        notes = plain_blocks([block for block in blocks if isinstance(block, Line)])
        return {
            "by": by,
            "total": len(rows),
            "rows": rows[:500],
            "all": _numbers(total),
            "notes": notes,
        }

    def rows(
        self, name: str, where: str, sort: str, cols: Sequence[str], offset: int, limit: int
    ) -> Plain:
        """Give some of the samples that a filter holds for."""
        table = self.table(name)
        items = table.select(where, sort)
        shown: list[int] = items[offset : offset + limit].tolist()
        fields = [*table.metadata_keys, *(f"metric.{name}" for name in table.metrics)]
        extra = [field for field in cols if field in fields] if cols else table.metadata_keys[:3]
        values = [_cell_values(table, field, shown) for field in extra]
        tokens = _cell_values(table, "completion_tokens", shown)
        seconds = _cell_values(table, "seconds", shown)
        rows = []
        for i, (item, result) in enumerate(zip(shown, table.read(shown), strict=True)):
            rows.append(
                {
                    "id": result.sample_id,
                    "repeat": result.repeat,
                    "outcome": table.outcome(item),
                    "truncated": result.trajectory.stop.truncated,
                    "reward": result.score.reward if result.ok else None,
                    "question": _question(result, ROW_QUESTION),
                    "target": _cut(as_text(result.sample.ground_truth)),
                    **_extracted(result),
                    "answer": _cut(result.trajectory.answer),
                    "error": _cut(result.error),
                    "extra": [column[i] for column in values],
                    "tokens": tokens[i],
                    "seconds": seconds[i],
                }
            )
        answer = {"total": len(items), "of": len(table), "generation": table.stamp, "rows": rows}
        if offset:
            return answer
        return {**answer, "extra": extra, "fields": fields[:100], **self._head(table, where, items)}

    def _head(self, table: RunTable, where: str, items: ItemNumbers) -> Plain:
        terms = parse(where)
        picked = picked_by(terms, table.outcome_fields)
        summary = None
        if picked == "all":
            summary = table.report.summary
        elif picked == "metadata" and len(items):
            summary = table.summarize(items)
        return {
            "picked": picked,
            "counts": table.count_outcomes(items),
            "mean": None if summary is None else _numbers(summary),
            "repeats": table.repeats,
            "running": table.report.status == "running",
            "completions": _completions(table),
        }

    # --- One sample ---

    def sample(self, name: str, id: str, repeat: int) -> Plain:
        """Give one attempt at a sample: the conversation, and what the grader extracted."""
        table, repeats = self._attempts(name, id, repeat)
        (result,) = table.read([repeats[repeat]])
        return {
            "name": name,
            **describe_result(result, table.outcome(repeats[repeat])),
            "repeats": [
                {"repeat": number, "outcome": table.outcome(item)}
                for number, item in sorted(repeats.items())
            ],
        }

    def record(self, name: str, id: str, repeat: int) -> Plain:
        """Give one attempt at a sample as JSON."""
        table, repeats = self._attempts(name, id, repeat)
        (result,) = table.read([repeats[repeat]])
        return {"text": msgspec.json.format(msgspec.json.encode(result)).decode()}

    def _attempts(self, name: str, id: str, repeat: int) -> tuple[RunTable, dict[int, int]]:
        """Find the items of a sample by attempt, of which `repeat` has to be one."""
        table = self.table(name)
        repeats = {int(table.item_repeats[item]): item for item in table.items_of(id)}
        if not repeats:
            near = difflib.get_close_matches(id, dict.fromkeys(table.ids[:20_000]), n=3)
            hint = f"; near it are {', '.join(near)}" if near else ""
            raise UnknownRun(f"{name} has no sample {id!r:.200}{hint}")
        if repeat not in repeats:
            raise UnknownRun(f"sample {id!r:.200} has no attempt {repeat + 1}")
        return table, repeats

    def pair(self, a: str, b: str, id: str) -> Plain:
        """Give the first attempt of two runs at one sample."""
        return {"a": self.sample(a, id, 0), "b": self.sample(b, id, 0)}

    # --- Two runs ---

    def compare(self, a: str, b: str, by: str, metric: str, allow: Sequence[str]) -> Plain:
        """Compare run B with run A."""
        from heldout.cli import compare as compare_text

        comparison = self._compare(a, b, by, metric, allow)
        report = compare_text.build_comparison(replace(comparison, by=()))
        overall = comparison.overall
        counted = comparison.with_errors
        side_a, side_b = self.table(a), self.table(b)
        return {
            "a": {"name": a, **_describe_side(comparison.a.report)},
            "b": {"name": b, **_describe_side(comparison.b.report)},
            "sentence": report.conclusion,
            "verdict": comparison.verdict,
            "metric": comparison.metric,
            "pass_threshold": comparison.pass_threshold,
            "metrics": sorted({*side_a.metrics} & {*side_b.metrics}),
            **_difference(overall, overall.interval),
            "with_errors": counted and _difference(counted, counted.interval),
            "errors_as": comparison.errors_as,
            "scored_samples": comparison.scored_samples,
            "minimum_detectable": comparison.minimum_detectable,
            "paired": comparison.paired,
            "wins": getattr(overall, "wins", None),
            "losses": getattr(overall, "losses", None),
            "ties": getattr(overall, "ties", None),
            "gained": len(comparison.gained),
            "lost": len(comparison.lost),
            "blocks": plain_blocks(report.blocks),
            "by": by,
            "slice_blocks": plain_blocks(compare_text.slice_blocks(comparison)) if by else [],
            "slices": [_slice(part) for part in compare_text.sort_slices(comparison.slices)[:200]],
            "keys": [key for key in side_a.metadata_keys if key in side_b.metadata_keys],
            "config": _config_differences(comparison),
        }

    def flips(
        self, a: str, b: str, kind: str, metric: str, allow: Sequence[str], offset: int
    ) -> Plain:
        """Give samples that pass in one of two runs alone, with both answers."""
        comparison = self._compare(a, b, "", metric, allow)
        changes = comparison.gained if kind == "gained" else comparison.lost
        shown = changes[offset : offset + FLIPS]
        tables = self.table(a), self.table(b)
        rows = []
        for change in shown:
            results = [_first_attempt(table, change.id) for table in tables]
            rows.append(
                {
                    "id": change.id,
                    "question": _question(results[0], LONGEST_CELL),
                    "target": _cut(as_text(results[0].sample.ground_truth)),
                    "attempts": max(table.repeats for table in tables),
                    "a": {"reward": change.a, **_flip_side(results[0])},
                    "b": {"reward": change.b, **_flip_side(results[1])},
                }
            )
        return {"total": len(changes), "rows": rows}

    def _compare(self, a: str, b: str, by: str, metric: str, allow: Sequence[str]) -> Comparison:
        return _compare_tables(self.table(a), self.table(b), (a, b), by, metric, tuple(allow))

    # --- Curves ---

    def curve(self, name: str, label: str, metric: str) -> Plain:
        """Give a curve with its verdict; each point has its numbers, and no outcomes."""
        state = self.state([name])
        path = self.path(name)
        answer = _describe_curve(path, stamp(path), label, metric or "reward")
        # Words like "40 s ago", and whether a process writes it, change without the file.
        status = plain_blocks([describe_status(read_curve(path))])[0]
        return {"name": name, **answer, "status": status, "live": _is_live(path), "state": state}

    def curve_flips(self, name: str, label: str, from_step: int, to_step: int) -> Plain:
        """Say what changed between two points of a curve."""
        from heldout.cli.curve import compare_steps, describe_flips

        run = read_curve(self.path(name))
        _, points = _points_of(run.points, label)
        results = [point for point in points if point.has_result]
        change = compare_steps(results, from_step, to_step, run.pass_threshold)
        listed = {
            kind: {
                "total": len(changed),
                "rows": [
                    {"id": flip.id, "before": flip.before, "after": flip.after}
                    for flip in changed[:200]
                ],
            }
            for kind, changed in (("gained", change.flips.gained), ("lost", change.flips.lost))
        }
        return {"notes": plain_blocks(describe_flips(change)), **listed}

    def strip(self, name: str, label: str) -> Plain:
        """Give what became of each sample at each step, those that flipped last first."""
        run = read_curve(self.path(name))
        _, points = _points_of(run.points, label)
        points = [point for point in points if point.has_result and point.outcomes][-200:]
        words: dict[str, list[str]] = {}
        for i, point in enumerate(points):
            threshold = _threshold_of(run, point)
            for id, reward in sample_rewards(point).items():
                cells = words.setdefault(id, ["-"] * len(points))
                cells[i] = _name_outcome(reward, threshold)[0]
        rows = [{"id": id, "cells": "".join(cells)} for id, cells in words.items()]
        rows.sort(key=lambda row: -_last_flip(row["cells"]))
        steps = [point.step for point in points]
        return {"steps": steps, "total": len(rows), "rows": rows[:STRIP]}

    def history(self, name: str, label: str, id: str) -> Plain:
        """Give one sample at every step of a curve, with its answers where they are saved."""
        path = self.path(name)
        run = read_curve(path)
        label, points = _points_of(run.points, label)
        several = len({point.label for point in run.points}) > 1
        steps: list[Plain] = []
        target = question = None
        for point in points:
            outcomes = [outcome for outcome in point.outcomes if outcome.id == id]
            if not outcomes:
                continue
            threshold = _threshold_of(run, point)
            step = _describe_outcomes(outcomes, threshold) | {"step": point.step}
            result = _find_result(path, point, id)
            if result is not None:
                answer = result.trajectory.answer
                step |= {
                    "run": f"{name}@{label}:{point.step}" if several else f"{name}@{point.step}",
                    "answer": answer,
                    "changed": not steps or steps[-1].get("answer") != answer,
                }
                target = as_text(result.sample.ground_truth)
                question = result.question
            steps.append(step)
        if not steps:
            raise UnknownRun(f"no eval of {name} has a sample {id!r:.200}")
        return {"name": name, "id": id, "target": target, "question": question, "steps": steps}

    # --- Events ---

    def state(self, names: Sequence[str]) -> str:
        """Say which state some runs are in, or, of no names, the list of runs."""
        if names:
            parts = []
            for name in names:
                with suppress(HeldoutError):
                    path = self.path(name)
                    parts.append(f"{stamp(path)}:{'w' * _is_live(path)}")
            return "|".join(parts)
        states = [
            (name, stamp(path, journal_grain=JOURNAL_GRAIN), _is_live(path))
            for name, path in self._scan().items()
        ]
        return f"{hash(tuple(states)) & 0xFFFFFFFFFFFFFFFF:x}"

    def events(self, names: Sequence[str], seen: str) -> tuple[list[tuple[str, Plain]], str]:
        """Give what has changed since a state, as (event, data), and the state now."""
        now = self.state(names)
        if now == seen:
            return [], now
        if not names:
            return [("runs", {})], now
        changes = []
        for name in names:
            with suppress(HeldoutError):
                path = self.path(name)
                changes.append(("changed", {"name": name, "lines": _count_lines(path)}))
        return changes, now


def _is_live(path: Path) -> bool:
    run = RunDir(path)
    try:
        return has_writer(run.curve if run.curve.exists() else run.journal)
    except OSError:
        return False


def _count_lines(path: Path) -> int:
    """Count the lines of a run's journal, without its header."""
    try:
        with open_to_read(RunDir(path).journal) as file:
            pieces = iter(lambda: file.read(1 << 20), b"")
            return max(0, sum(piece.count(b"\n") for piece in pieces) - 1)
    except (OSError, RunDirectoryError):
        return 0


@lru_cache(4)
def _open_table(path: Path, _stamp: str) -> RunTable:
    return RunTable(path)


# --- The list of runs ---------------------------------------------------------------------------


@lru_cache(2_000)
def _row(name: str, path: Path, _stamp: str, _live: bool) -> Plain:
    entry = read_entry(path, name)
    row: Plain = {
        "name": name,
        "kind": entry.kind,
        "status": entry.status,
        "model": entry.endpoint,
        "asked": entry.asked,
        "started": entry.when,
        "tags": list(entry.tags),
        "note": entry.note,
    }
    try:
        if entry.status == "damaged":
            raise RunDirectoryError(entry.reason or "it cannot be read")
        if entry.kind == "curve":
            return row | _curve_row(path)
        summary = EvalReport.load(path).summary
        return row | _numbers(summary) | {"unfinished": summary.get("complete") is False}
    except HeldoutError as problem:
        repair = f"heldout repair {path}" if isinstance(problem, DamagedJournal) else None
        return row | {"problem": str(problem), "repair": repair}


def _curve_row(path: Path) -> Plain:
    from heldout.training.verdicts import stored_kind

    run = read_curve(path)
    results = [point for point in run.points if point.has_result]
    first = [point for point in results if point.label == results[0].label]
    kind = stored_kind(first[-1]) if first else None
    if first and kind is None:  # judging takes time
        verdict = latest_verdicts(replace(run, points=first)).get(first[0].label)
        kind = verdict.kind if verdict else None
    spark = [
        (point.step, point.reward, *(point.ci or (None, None)))
        for point in first
        if point.reward is not None
    ]
    return {
        "step": first[-1].step if first else None,
        "verdict": kind,
        "spark": spark[:: max(1, len(spark) // 120)],
        **(_numbers(first[-1].summary or {}) if first else {}),
    }


def _numbers(summary: Mapping[str, Any]) -> Plain:
    """Give a mean with all that belongs to it: both readings, intervals and counts."""
    keys = {
        "n": "n",
        "mean": "mean",
        "low": "ci_low",
        "high": "ci_high",
        "errors": "n_errors",
        "mean_scored": "mean_scored",
        "low_scored": "ci_scored_low",
        "high_scored": "ci_scored_high",
        "pass_rate": "pass_rate",
        "min": "min",
        "max": "max",
    }
    return {name: summary.get(key) for name, key in keys.items()}


# --- Blocks of the command line as plain values -------------------------------------------------


def plain_blocks(blocks: Iterable[Block]) -> list[Plain]:
    """Turn blocks of a report of the command line into plain values.

    Returns:
        {"line": text, "style": word} or {"columns": …, "rows": …, "totals": …}, in order.
    """
    plain: list[Plain] = []
    for block in blocks:
        if isinstance(block, Line):
            only = block.parts[0] if len(block.parts) == 1 else ""
            style = block.style or (only.style if isinstance(only, Span) else "")
            plain.append({"line": "".join(map(_cell_text, block.parts)), "style": style})
        elif isinstance(block, TextTable):
            columns = [
                {
                    "title": _cell_text(column.heading),
                    "numeric": column.align == "right",
                    "wrap": column.wrap,
                }
                for column in block.columns
            ]
            plain.append(
                {
                    "columns": columns,
                    "rows": [[_cell_text(cell) for cell in row] for row in block.rows[:500]],
                    "totals": [[_cell_text(cell) for cell in row] for row in block.totals],
                }
            )
        else:
            plain += plain_blocks(block.blocks)
    return plain


def _cell_text(cell: str | Span) -> str:
    return cell.text if isinstance(cell, Span) else cell


# --- One run ------------------------------------------------------------------------------------


def _describe_columns(table: RunTable) -> Plain:
    rewards = table.rewards[~np.isnan(table.rewards)]
    histogram = None
    if len(rewards) and len(np.unique(rewards[:10_000])) > 2:
        low, high = float(rewards.min()), float(rewards.max())
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        counts, edges = np.histogram(rewards, BINS, (low, high))
        histogram = {"counts": counts.tolist(), "edges": edges.tolist()}
    return {
        "outcomes": table.count_outcomes(np.arange(len(table))),
        "histogram": histogram,
        "keys": table.metadata_keys,
        "samples": len(table) if table.repeats == 1 else len(np.unique(table.id_hashes)),
        "repeats": table.repeats,
        "tokens": _quantiles(table.column("completion_tokens").numbers),
        "seconds": _quantiles(table.column("seconds").numbers),
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


def _completions(table: RunTable) -> list[str]:
    """Terms that a filter can be completed with: each field."""
    terms = [f"{outcome}:yes" for outcome in OUTCOMES]
    terms += ["reward<", "tokens>", "seconds>", "text:", "id:", "ended_by:", "error:"]
    terms += [f"{metric}<" for metric in table.metrics]
    return [*terms, *(f"{quote(key)}:" for key in table.metadata_keys)]


def _filter_text(value: Any) -> str:
    """A slice's value as a filter has to have it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _cell_values(table: RunTable, field: str, items: Sequence[int]) -> list[Any]:
    column = table.column(field)
    if column.numbers is not None:
        numbers = column.numbers[items].tolist()
        return [None if n != n else int(n) if n == int(n) else n for n in numbers]
    assert column.codes is not None
    return [
        None if code < 0 else _cut(column.values[code]) for code in column.codes[items].tolist()
    ]


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "…"


# --- One sample ---------------------------------------------------------------------------------


def content_text(message: Message) -> str:
    """Give a message's content as text; parts that are none are named."""
    if isinstance(message.content, str):
        return message.content
    parts = [
        str(part["text"]) if part.get("type") == "text" and "text" in part
        else f"[{part.get('type') or 'part'}]"
        for part in message.content
    ]  # fmt: skip
    return "\n".join(parts)


def _question(result: EvalResult, longest: int) -> str | None:
    """Return what a sample asks; its input, where there is no conversation."""
    text = result.question or as_text(result.sample.input)
    return text and cut_middle(" ".join(text.split()), longest)


def _extracted(result: EvalResult) -> Plain:
    for metric in result.score.metrics:
        if "extracted" in metric.metadata:
            extracted = metric.metadata["extracted"]
            return {"extracted": None if extracted is None else _cut(str(extracted))}
    return {}


def describe_result(result: EvalResult, outcome: str) -> Plain:
    """Describe a result for its page: the conversation as turns, and the score."""
    trajectory = result.trajectory
    turns = list(_turns(trajectory))
    _mark_extracted(turns, result)
    usage, timing = trajectory.usage, trajectory.timing
    return {
        "id": result.sample_id,
        "repeat": result.repeat,
        "outcome": outcome,
        "error": result.error,
        "reward": result.score.reward if result.ok else None,
        "turns": turns,
        "question": _question(result, LONGEST_CELL),
        "target": as_text(result.sample.ground_truth),
        "answer": trajectory.answer,
        "metrics": [
            {
                "name": metric.name,
                "value": metric.value,
                "weight": metric.weight,
                "has_extracted": "extracted" in metric.metadata,
                "extracted": _text_or_none(metric.metadata.get("extracted")),
                "note": _text_or_none(metric.metadata.get("note")),
                "reply": _text_or_none(metric.metadata.get("reply")),
            }
            for metric in result.score.metrics
        ],
        "stop": msgspec.to_builtins(trajectory.stop),
        "outcome_state": _text_or_none(trajectory.outcome),
        "tokens": usage and {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens},
        "trace": _describe_trace(trajectory),
        "seconds": timing and timing.seconds,
        "requests": timing and timing.requests,
        "input": _short_values(result.sample.input),
        "metadata": _short_values(result.metadata),
    }


def _turns(trajectory: Trajectory) -> Iterator[Plain]:
    """Yield messages, each tool call with the result that answers it."""
    messages = trajectory.messages
    results = _find_results(messages)
    shown = set(results.values())
    for place, message in enumerate(messages):
        if place in shown:
            continue
        calls = [
            {
                "name": call.name,
                "arguments": call.arguments,
                "problem": _json_problem(call.arguments),
                "result": content_text(messages[result]) if result is not None else None,
            }
            for number, call in enumerate(message.tool_calls)
            for result in (results.get((place, number)),)
        ]
        yield {
            "place": place,
            "role": message.role,
            "text": content_text(message),
            "reasoning": message.reasoning,
            "calls": calls,
        }


def _find_results(messages: Sequence[Message]) -> dict[tuple[int, int], int]:
    """Find the message that answers each call, by the places of the call's message and the call.

    It is the next one of that id: many servers use the same ids in every turn.
    """
    results: dict[tuple[int, int], int] = {}
    later: dict[str | None, list[int]] = {}
    for place, message in reversed([*enumerate(messages)]):
        if message.role == "tool":
            later.setdefault(message.tool_call_id, []).append(place)
        for number, call in enumerate(message.tool_calls):
            if later.get(call.id):
                results[place, number] = later[call.id].pop()
    return results


def _json_problem(arguments: str) -> str | None:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError) as problem:
        return f"not JSON: {problem}"[:200]
    return None


def _mark_extracted(turns: Sequence[Plain], result: EvalResult) -> None:
    """Mark where the last thing extracted stands in the last turn of the model."""
    last = next((turn for turn in reversed(turns) if turn["role"] == "assistant"), None)
    if last is None:
        return
    for metric in result.score.metrics:
        extracted = metric.metadata.get("extracted")
        if extracted is None or not str(extracted):
            continue
        start = last["text"].rfind(str(extracted))
        if start >= 0:
            # The page counts in units of UTF-16.
            before = len(last["text"][:start].encode("utf-16-le")) // 2
            length = len(str(extracted).encode("utf-16-le")) // 2
            last["mark"] = [before, before + length]
            return


def _describe_trace(trajectory: Trajectory) -> list[tuple[int, int]] | None:
    """The completion as stretches of (1 for the model's tokens, 0 for others, how many)."""
    if trajectory.tokens is None:
        return None
    mask = np.array(trajectory.tokens.env_mask)
    if not len(mask):
        return []
    starts = np.flatnonzero(np.diff(mask, prepend=1 - mask[0]))
    sizes = np.diff(np.append(starts, len(mask)))
    return [(int(mask[at]), int(n)) for at, n in zip(starts, sizes, strict=True)][:2_000]


def _text_or_none(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _short_values(values: Mapping[str, Any]) -> dict[str, str | None]:
    return {key: _text_or_none(value) for key, value in values.items()}


# --- Two runs -----------------------------------------------------------------------------------


def _describe_side(report: EvalReport) -> Plain:
    return {"model": describe_model(report.config), **_numbers(report.summary)}


def _difference(difference: Difference, interval: Interval | None) -> Plain:
    return {
        "difference": difference.difference,
        "low": interval and interval.low,
        "high": interval and interval.high,
    }


def _slice(part: SliceDifference) -> Plain:
    label: Any = part.label
    return {
        "value": None if label[0] is None else _filter_text(label[0]),
        **_difference(part.difference, part.simultaneous_interval),
    }


@lru_cache(8)
def _compare_tables(
    a: RunTable,
    b: RunTable,
    names: tuple[str, str],
    by: str,
    metric: str,
    allow: tuple[str, ...],
) -> Comparison:
    from heldout.analysis import compare

    reports = [
        replace(table.report, config={**table.report.config, "experiment_name": name})
        for table, name in zip((a, b), names, strict=True)
    ]
    return compare(*reports, by=[by] if by else [], metric=metric or "reward", allow=allow)


def _config_differences(comparison: Comparison) -> list[Plain]:
    """Settings that differ, the policy's own included."""
    flat = [_flatten(side.report.config) for side in (comparison.a, comparison.b)]
    ignored = ("experiment_name", "output_dir", "resume", "progress", "max_concurrent")
    keys = [key for key in dict.fromkeys([*flat[0], *flat[1]]) if not key.startswith(ignored)]
    return [
        {"key": key, "a": _text_or_none(flat[0].get(key)), "b": _text_or_none(flat[1].get(key))}
        for key in keys
        if flat[0].get(key) != flat[1].get(key)
    ][:100]


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Plain:
    flat: Plain = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _first_attempt(table: RunTable, id: str) -> EvalResult:
    (result,) = table.read(table.items_of(id)[:1])
    return result


def _flip_side(result: EvalResult) -> Plain:
    return {
        "error": _cut(result.error),
        "answer": result.trajectory.answer[:LONGEST_ANSWER],
        **_extracted(result),
    }


# --- Curves -------------------------------------------------------------------------------------


def _points_of(points: Sequence[CurvePoint], label: str) -> tuple[str, list[CurvePoint]]:
    """Pick the points of a label, or of the first one."""
    label = label or next(iter(group_by_label(points)), "")
    return label, select_label(points, label or None)


@lru_cache(8)
def _describe_curve(path: Path, _stamp: str, label: str, metric: str) -> Plain:
    from heldout.training.verdicts import terms_of

    run = read_curve(path)
    label, points = _points_of(run.points, label)
    config = run.config
    results = [point for point in points if point.has_result]
    most = most_asked(points)
    answer: Plain = {
        "label": label,
        "labels": list(group_by_label(run.points)),
        "metric": metric,
        "metrics": list(dict.fromkeys(name for point in results for name in point.metrics())),
        "points": [_describe_point(point, metric, most) for point in points],
        "every": config.get("every_steps") if isinstance(config.get("every_steps"), int) else None,
        "model": describe_model(config),
        "superseded": run.superseded,
        "last_skip": run.last_skip,
        "seconds": sum(point.seconds for point in points),
        "path": str(path),
    }
    try:
        judged, best = compute_verdicts(points, terms_of(points, config))
    except InvalidInput as problem:  # rewards that no verdict can be made of
        return answer | {"verdict": None, "best": None, "no_verdict": str(problem)}
    kinds = {verdict.step: verdict.kind for verdict in judged}
    for point in answer["points"]:
        if point["result"] and point["kind"] is None:
            point["kind"] = kinds.get(point["step"])
    if judged:
        last = judged[-1]
        between = last.between
        answer["verdict"] = {
            "kind": last.kind,
            "sentence": last.sentence(),
            "windows": [between[:2], between[2:]] if between else [],
        }
    if best:
        answer["best"] = {"step": best.step, "sentence": best.sentence()}
    return answer


def _describe_point(point: CurvePoint, metric: str, most: int) -> Plain:
    from heldout.training.verdicts import stored_kind

    value, bounds = point.value_and_interval(metric)
    errors = point.number("n_errors")
    return {
        "step": point.step,
        "session": point.session,
        "mean": value,
        "low": bounds and bounds[0],
        "high": bounds and bounds[1],
        "n": format_n(point),
        "errors": None if errors is None else int(errors),
        "mean_scored": point.number("mean_scored") if metric == "reward" and errors else None,
        "fewer": point.has_result and is_fewer(point, most),
        "kind": stored_kind(point),
        "pending": point.pending,
        "result": point.has_result,
        "note": describe_point(point),
        "seconds": point.seconds,
        "time": point.time,
        "saved": point.run is not None,
    }


def _last_flip(cells: str) -> int:
    """The place of the last change between passed and failed; -1 where there is none."""
    last, before = -1, ""
    for place, cell in enumerate(cells):
        if cell in "pf":
            if before and cell != before:
                last = place
            before = cell
    return last


def _threshold_of(run: CurveRun, point: CurvePoint) -> float | None:
    """Return the reward that passes; None at a point of returns, which has no pass rate."""
    return None if point.number("pass_rate") is None else run.pass_threshold


def _name_outcome(reward: float | None, threshold: float | None) -> str:
    """Say in a word what became of a sample; its first letter is the cell of a strip."""
    if reward is None:
        return "errored"
    if threshold is None:
        return "scored"
    return "passed" if reward >= threshold else "failed"


def _describe_outcomes(outcomes: Sequence[ItemOutcome], threshold: float | None) -> Plain:
    """Put the repeats of a sample at one step together, as `sample_rewards` does."""
    scored = [o.reward for o in outcomes if o.reward is not None and o.error is None]
    reward = sum(scored) / len(scored) if scored else None
    outcome = _name_outcome(reward, threshold)
    if outcome == "failed" and any(o.truncated for o in outcomes):
        outcome = "truncated"
    error = next((o.error for o in outcomes if o.error), None)
    return {"outcome": outcome, "reward": reward, "error": error, "attempts": len(outcomes)}


def _find_result(path: Path, point: CurvePoint, id: str) -> EvalResult | None:
    """Read the last result of a sample's first attempt at a point; None where none is saved."""
    directory = saved_eval(path, point)
    if directory is None:
        return None
    journal = RunDir(directory).journal
    needle = b'"id":' + msgspec.json.encode(id)
    match = None
    for number, _, line in lines(journal):
        if needle in line:
            result = decode_result(journal, number, line)
            if result.sample_id == id and result.repeat == 0:
                match = result
    return match
