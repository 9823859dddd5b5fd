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
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from heldout.cli._curves import (
    compute_verdicts,
    describe_point,
    describe_status,
    format_n,
    group_by_label,
    read_curve,
)
from heldout.cli._load import find_step
from heldout.cli._tables import Block, Line, Span
from heldout.cli._tables import Table as TextTable
from heldout.cli.show import build_report, build_slices
from heldout.cli.show import in_order as order_slices
from heldout.errors import HeldoutError, InvalidInput, NotComparable, RunDirectoryError
from heldout.store.columns import METADATA, as_text
from heldout.store.journal import has_writer
from heldout.store.report import EvalReport, threshold_of
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.runs import describe_model, holds_run, list_history, read_entry
from heldout.training.curve import (
    CurvePoint,
    Outcome,
    is_fewer,
    most_asked,
    sample_rewards,
    stop_requested,
)
from heldout.types import EvalResult, Message, Trajectory
from heldout.viewer.tables import Items, Recent, RunTable, stamp
from heldout.viewer.where import OUTCOMES, parse, picked_by, quote

if TYPE_CHECKING:  # the others are imported by the first request that needs them
    from heldout.analysis import Comparison

__all__ = ["NotComparable", "Pages", "UnknownRun", "scan_runs"]

DEPTH = 3
"""Folders below a root in which runs are looked for."""
LONGEST_TEXT = 65_536
"""Characters of one text of a conversation that are sent at once."""
LONGEST_CELL = 300
LONGEST_ANSWER = 2_000
"""Characters of an answer in a list of flips or steps."""
TURNS = 200
"""Turns of a conversation that are sent at once, where it has more than twice as many."""
ANSWER_BUDGET = 140_000
"""Characters of one conversation that are sent at once."""
FLIPS = 50
VALUES = 50
"""Values of a metadata key that a filter is completed with."""
STRIP = 500
"""Samples of a curve that are drawn step by step."""
BINS = 20

Plain = dict[str, Any]


class UnknownRun(HeldoutError):
    """There is no run, or no sample, of this name."""


# --- Runs ---------------------------------------------------------------------------------------


def scan_runs(roots: Sequence[Path]) -> dict[str, Path]:
    """Find run directories.

    Args:
        roots: Folders to look in, three levels deep; or run directories. Links are not followed.

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
        self._lock = RLock()
        self._known: dict[str, Path] = {}
        self._rows: Recent[Plain] = Recent(2_000)
        self._tables: Recent[RunTable] = Recent(4)
        self._comparisons: Recent[Comparison] = Recent(8)
        self._curves: Recent[Plain] = Recent(8)

    def runs(self) -> Plain:
        """List all runs, the newest first."""
        state = self.state([])
        known = self._scan()
        rows = []
        for name, path in known.items():
            key = (path, stamp(path), _is_live(path))
            rows.append(self._rows.get(key, partial(_row, name, path)))
        rows.sort(key=lambda row: (row["started"] or "", row["name"]), reverse=True)
        return {"runs": rows, "roots": [str(root) for root in self.roots], "state": state}

    def _scan(self) -> dict[str, Path]:
        known = scan_runs(self.roots)
        with self._lock:
            self._known = known
        return known

    def path(self, name: str) -> Path:
        """Find a run directory by the name that a request has.

        Args:
            name: NAME, NAME@STEP or NAME@LABEL:STEP.

        Returns:
            Its path.

        Raises:
            UnknownRun: There is none.
        """
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
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UnknownRun(f"there is no run {name!r:.200}{hint}")

    def table(self, name: str) -> RunTable:
        """Open a run as it is now."""
        path = self.path(name)
        if RunDir(path).curve.exists():
            raise InvalidInput(f"{name} is a curve of many evals; name one, {name}@STEP")
        return self._tables.get((path, stamp(path)), lambda: RunTable(path))

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
            "kind": "episodes" if config.get("kind") == "episodes" else "run",
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
            "scorer": _describe_function(info.functions.get("score_fn")),
            "sampling": _describe_sampling(config.get("sampling")),
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
                    "question": _cut(question_of(result)),
                    "target": _cut(as_text(result.sample.ground_truth)),
                    **_extracted(result),
                    "answer": _cut(result.trajectory.answer),
                    "error": None if result.error is None else _cut(result.error),
                    "extra": [column[i] for column in values],
                    "tokens": tokens[i],
                    "seconds": seconds[i],
                }
            )
        answer = {"total": len(items), "of": len(table), "generation": table.stamp, "rows": rows}
        if offset:
            return answer
        return {**answer, "extra": extra, "fields": fields[:100], **self._head(table, where, items)}

    def _head(self, table: RunTable, where: str, items: Items) -> Plain:
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
            "excluded": None if len(items) else table.find_narrowest(where),
            "repeats": table.repeats,
            "running": table.report.status == "running",
            "completions": _completions(table),
        }

    # --- One sample ---

    def sample(self, name: str, id: str, repeat: int, first: int) -> Plain:
        """Give one attempt at a sample: the conversation, and what the grader extracted."""
        table = self.table(name)
        items = table.items_of(id)
        repeats = {int(table.item_repeats[item]): item for item in items}
        if not items:
            near = difflib.get_close_matches(id, dict.fromkeys(table.ids[:20_000]), n=3)
            hint = f"; near it are {', '.join(near)}" if near else ""
            raise UnknownRun(f"{name} has no sample {id!r:.200}{hint}")
        if repeat not in repeats:
            raise UnknownRun(f"sample {id!r:.200} has no attempt {repeat + 1}")
        (result,) = table.read([repeats[repeat]])
        answer = describe_result(result, table.outcome(repeats[repeat]), first)
        answer["repeats"] = [
            {"repeat": number, "outcome": table.outcome(item)}
            for number, item in sorted(repeats.items())
        ]
        return {"name": name, **answer}

    def text(self, name: str, id: str, repeat: int, part: str, offset: int) -> Plain:
        """Give more of a text that was too long to send whole; "record" is the result as JSON."""
        result = self._result(name, id, repeat)
        if part == "record":
            text = msgspec.json.format(msgspec.json.encode(result)).decode()
        else:
            position, _, field = part.partition(".")
            messages = result.trajectory.messages
            if not position.isdecimal() or int(position) >= len(messages):
                raise UnknownRun(f"there is no message {position!r:.40}")
            message = messages[int(position)]
            text = (message.reasoning or "") if field == "reasoning" else content_text(message)
        more = text[offset : offset + 2 * LONGEST_TEXT]
        return {"text": more, "left": max(0, len(text) - offset - len(more))}

    def _result(self, name: str, id: str, repeat: int) -> EvalResult:
        table = self.table(name)
        for item in table.items_of(id):
            if table.item_repeats[item] == repeat:
                (result,) = table.read([item])
                return result
        raise UnknownRun(f"{name} has no attempt {repeat + 1} at sample {id!r:.200}")

    def pair(self, a: str, b: str, id: str) -> Plain:
        """Give the first attempt of two runs at one sample."""
        return {"a": self.sample(a, id, 0, 0), "b": self.sample(b, id, 0, 0)}

    # --- Two runs ---

    def compare(self, a: str, b: str, by: str, metric: str, allow: Sequence[str]) -> Plain:
        """Compare run B with run A."""
        from heldout.cli import compare as compare_text

        comparison = self._compare(a, b, by, metric, allow)
        report = compare_text.build_comparison(replace(comparison, by=()))
        overall = comparison.overall
        around = overall.interval
        side_a, side_b = self.table(a), self.table(b)
        return {
            "a": {"name": a, **_describe_side(comparison.a.report)},
            "b": {"name": b, **_describe_side(comparison.b.report)},
            "sentence": report.conclusion,
            "verdict": comparison.verdict,
            "metric": comparison.metric,
            "metrics": sorted({*side_a.metrics} & {*side_b.metrics}),
            "confidence": comparison.confidence,
            "difference": overall.difference,
            "low": around and around.low,
            "high": around and around.high,
            "with_errors": _difference(comparison.with_errors),
            "errors_as": comparison.errors_as,
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
            "state": self.state([a, b]),
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
                    "question": _cut(question_of(results[0])),
                    "target": _cut(as_text(results[0].sample.ground_truth)),
                    "attempts": max(table.repeats for table in tables),
                    "a": {"reward": change.a, **_flip_side(results[0])},
                    "b": {"reward": change.b, **_flip_side(results[1])},
                }
            )
        return {"total": len(changes), "rows": rows}

    def _compare(self, a: str, b: str, by: str, metric: str, allow: Sequence[str]) -> Comparison:
        from heldout.analysis import compare

        tables = self.table(a), self.table(b)
        key = (a, b, by, metric, tuple(allow), *(table.stamp for table in tables))
        named = [_named(table.report, name) for table, name in zip(tables, (a, b), strict=True)]
        return self._comparisons.get(
            key,
            lambda: compare(
                *named, by=[by] if by else [], metric=metric or "reward", allow=list(allow)
            ),
        )

    # --- Curves ---

    def curve(self, name: str, label: str, metric: str) -> Plain:
        """Give a curve with its verdict; each point has its numbers, and no outcomes."""
        state = self.state([name])
        path = self.path(name)
        key = (path, stamp(path), label, metric)
        answer = self._curves.get(key, lambda: _describe_curve(path, label, metric or "reward"))
        # Words like "40 s ago", and whether a process writes it, change without the file.
        status = plain_blocks([describe_status(read_curve(path))])[0]
        return {"name": name, **answer, "status": status, "live": _is_live(path), "state": state}

    def curve_flips(self, name: str, label: str, from_step: int, to_step: int) -> Plain:
        """Say what changed between two points of a curve."""
        from heldout.cli.curve import describe_flips, has_passes, point_at
        from heldout.training.flips import flips

        run = read_curve(self.path(name))
        _, points = _points_of(run.points, label)
        results = [point for point in points if point.has_result]
        before = point_at(results, from_step, default=0)
        after = point_at(results, to_step, default=-1)
        threshold = run.pass_threshold if has_passes(before, after) else None
        changes = flips(before, after, threshold)
        notes = describe_flips(before, after, changes, threshold)
        listed = {
            kind: {
                "total": len(changed),
                "rows": [
                    {"id": change.id, "before": change.before, "after": change.after}
                    for change in changed[:200]
                ],
            }
            for kind, changed in (("gained", changes.gained), ("lost", changes.lost))
        }
        return {"notes": plain_blocks(notes), **listed}

    def strip(self, name: str, label: str, where: str) -> Plain:
        """Give what became of each sample at each step, those that flipped last first."""
        run = read_curve(self.path(name))
        _, points = _points_of(run.points, label)
        points = [point for point in points if point.has_result and point.outcomes][-200:]
        threshold = run.pass_threshold
        words: dict[str, list[str]] = {}
        for place, point in enumerate(points):
            for id, reward in sample_rewards(point).items():
                if where.lower() in id.lower():
                    cells = words.setdefault(id, ["-"] * len(points))
                    cells[place] = "e" if reward is None else "pf"[reward < threshold]
        rows = [{"id": id, "cells": "".join(cells)} for id, cells in words.items()]
        rows.sort(key=lambda row: -_last_flip(row["cells"]))
        return {
            "steps": [point.step for point in points],
            "total": len(rows),
            "rows": rows[:STRIP],
        }

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
            step = _describe_outcomes(outcomes, run.pass_threshold) | {"step": point.step}
            with suppress(HeldoutError):
                result = _find_in_journal(_saved_step(path, point), id)
                answer = result.trajectory.answer
                step |= {
                    "run": f"{name}@{label}:{point.step}" if several else f"{name}@{point.step}",
                    "answer": answer[:LONGEST_ANSWER],
                    "changed": not steps or steps[-1].get("answer") != answer[:LONGEST_ANSWER],
                }
                target = as_text(result.sample.ground_truth)
                question = question_of(result)
            steps.append(step)
        if not steps:
            raise UnknownRun(f"no eval of {name} has a sample {id!r:.200}")
        _shorten_answers(steps)
        return {
            "name": name,
            "id": id,
            "label": label,
            "target": target if target is None else target[:LONGEST_ANSWER],
            "question": None if question is None else question[:LONGEST_ANSWER],
            "steps": steps,
        }

    # --- Events ---

    def state(self, names: Sequence[str]) -> str:
        """Say which state some runs are in, or, of no names, the list of runs.

        Args:
            names: Names of runs.

        Returns:
            Another text after every change.
        """
        if names:
            parts = []
            for name in names:
                with suppress(HeldoutError):
                    path = self.path(name)
                    parts.append(f"{stamp(path)}:{'w' * _is_live(path)}")
            return "|".join(parts)
        known = self._scan()
        whole = "|".join(
            f"{name}:{_slow_stamp(path)}:{_is_live(path)}" for name, path in known.items()
        )
        return f"{hash(whole) & 0xFFFFFFFFFFFFFFFF:x}"

    def events(self, names: Sequence[str], seen: str) -> tuple[list[tuple[str, Plain]], str]:
        """Say what has changed since a state.

        Args:
            names: Names of runs; none for the list of runs.
            seen: What `state` said before.

        Returns:
            Events as (name, data), and the state now.
        """
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


def _slow_stamp(path: Path) -> str:
    """The state of a run for the list: a journal that grows changes it once a megabyte."""
    run = RunDir(path)
    parts = []
    for file, grain in ((run.run, 1), (run.curve, 1), (run.journal, 1 << 20)):
        with suppress(OSError):
            stat = file.stat()
            parts.append(f"{stat.st_size // grain}.{stat.st_mtime_ns if grain == 1 else 0}")
    return "-".join(parts)


def _count_lines(path: Path) -> int:
    """Count the results of a run whose journal is not too long."""
    try:
        with RunDir(path).journal.open("rb") as file:
            return max(
                0, sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b"")) - 1
            )
    except OSError:
        return 0


def _named(report: EvalReport, name: str) -> EvalReport:
    return replace(report, config={**report.config, "experiment_name": name})


# --- The list of runs ---------------------------------------------------------------------------


def _row(name: str, path: Path) -> Plain:
    entry = read_entry(path, name)
    row: Plain = {
        "name": name,
        "kind": entry.kind,
        "status": entry.status,
        "model": entry.model,
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
        repair = f"heldout repair {path}" if "repair" in str(problem) else None
        return row | {"problem": str(problem), "repair": repair}


def _curve_row(path: Path) -> Plain:
    from heldout.training.verdicts import stored_kind

    results = [point for point in read_curve(path).points if point.has_result]
    first = [point for point in results if point.label == results[0].label]
    kinds = [kind for point in first if (kind := stored_kind(point))]
    spark = [
        (point.step, point.reward, *(point.ci or (None, None)))
        for point in first
        if point.reward is not None
    ]
    return {
        "step": first[-1].step if first else None,
        "verdict": kinds[-1] if kinds else None,
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
        "scored": "n_scored",
        "mean_scored": "mean_scored",
        "low_scored": "ci_scored_low",
        "high_scored": "ci_scored_high",
        "truncated": "n_truncated",
        "pass_rate": "pass_rate",
        "min": "min",
        "max": "max",
    }
    return {name: summary.get(key) for name, key in keys.items()}


# --- Blocks of the command line as plain values -------------------------------------------------


def plain_blocks(blocks: Iterable[Block]) -> list[Plain]:
    """Turn lines and tables of the command line into plain values.

    Args:
        blocks: Blocks of a `heldout.cli._tables.Report`.

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
    everything = np.arange(len(table))
    histogram = None
    if len(rewards) and len(np.unique(rewards[:10_000])) > 2:
        low, high = float(rewards.min()), float(rewards.max())
        if low >= 0 and high <= 1:
            low, high = 0.0, 1.0
        counts, edges = np.histogram(rewards, BINS, (low, high))
        histogram = {"counts": counts.tolist(), "edges": edges.tolist()}
    prompt, completion, seconds = (
        table.column(name).numbers for name in ("prompt_tokens", "completion_tokens", "seconds")
    )
    assert prompt is not None
    assert completion is not None
    assert seconds is not None
    answer: Plain = {
        "outcomes": table.count_outcomes(everything),
        "histogram": histogram,
        "keys": table.metadata_keys,
        "samples": len(table) if table.repeats == 1 else len(np.unique(table.id_hashes)),
        "repeats": table.repeats,
    }
    if not np.isnan(completion).all():
        answer["tokens"] = {
            "prompt": int(np.nansum(prompt)),
            "completion": int(np.nansum(completion)),
            "median": float(np.nanmedian(completion)),
            "p95": float(np.nanpercentile(completion, 95)),
        }
    if not np.isnan(seconds).all():
        answer["seconds"] = {
            "sum": float(np.nansum(seconds)),
            "median": float(np.nanmedian(seconds)),
            "p95": float(np.nanpercentile(seconds, 95)),
        }
    return answer


def _resume_command(info: RunInfo) -> str | None:
    """Give the command that goes on with a run, where `heldout run` began it."""
    command = info.command or []
    if "run" not in command or not command[command.index("run") - 1].endswith("heldout"):
        return None
    again = [part for part in command[command.index("run") :] if part != "--resume"]
    return f"heldout {shlex.join([*again, '--resume'])}"


def _describe_function(function: Any) -> str | None:
    if not isinstance(function, Mapping):
        return None
    parts = function.get("parts")
    if not isinstance(parts, list):
        return str(function.get("name") or "") or None
    names = [
        str(part.get("function") or part.get("name")) for part in parts if isinstance(part, dict)
    ]
    return f"{function.get('name')} of {', '.join(names)}"


def _describe_sampling(sampling: Any) -> str | None:
    if not isinstance(sampling, Mapping):
        return None
    values = [f"{key} {value}" for key, value in sampling.items() if value not in (None, [])]
    return ", ".join(values) or None


def _completions(table: RunTable) -> list[str]:
    """Terms that a filter can be completed with: each field, and the values of metadata keys."""
    terms = [f"{outcome}:yes" for outcome in OUTCOMES]
    terms += ["reward<", "tokens>", "seconds>", "text:", "id:", "ended_by:", "error:"]
    terms += [f"{metric}<" for metric in table.metrics]
    if len(table) <= 100_000:
        for key in table.metadata_keys[:12]:
            column = table.column(METADATA + key)
            texts = column.values if column.numbers is None else ()
            terms += [f"{quote(key)}:{quote(text)}" for text in sorted(texts[:VALUES])]
    else:
        terms += [f"{quote(key)}:" for key in table.metadata_keys[:12]]
    return [term for term in terms if len(term) < 100][:400]


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


def question_of(result: EvalResult) -> str:
    """Give what a sample asks: the message before the model's first turn, or its input."""
    for message in result.trajectory.messages:
        if message.role == "user":
            return content_text(message)
    return as_text(result.sample.input) or ""


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


def _extracted(result: EvalResult) -> Plain:
    for metric in result.score.metrics:
        if "extracted" in metric.metadata:
            extracted = metric.metadata["extracted"]
            return {"extracted": None if extracted is None else _cut(str(extracted))}
    return {}


def describe_result(result: EvalResult, outcome: str, first: int = 0) -> Plain:
    """Describe a result for its page.

    Args:
        result: The result.
        outcome: What became of it, in a word.
        first: The first turn to give, where there are very many.

    Returns:
        Plain values: the conversation as turns, tool calls with their results, and the score.
    """
    trajectory = result.trajectory
    turns = list(_turns(trajectory))
    total = len(turns)
    if total > 2 * TURNS:
        turns = turns[first : first + TURNS]
    _fit_budget(turns)
    _mark_extracted(turns, result)
    usage, timing, stop = trajectory.usage, trajectory.timing, trajectory.stop
    return {
        "id": result.sample_id,
        "repeat": result.repeat,
        "outcome": outcome,
        "error": None if result.error is None else result.error[:LONGEST_TEXT],
        "reward": result.score.reward if result.ok else None,
        "turns": turns,
        "turns_total": total,
        "turns_first": first if total > 2 * TURNS else 0,
        "question": _cut(question_of(result)),
        "target": _limit(as_text(result.sample.ground_truth)),
        "answer": _limit(trajectory.answer),
        "metrics": [
            {
                "name": metric.name,
                "value": metric.value,
                "weight": metric.weight,
                "has_extracted": "extracted" in metric.metadata,
                "extracted": _limit(_text_or_none(metric.metadata.get("extracted"))),
                "note": _limit(_text_or_none(metric.metadata.get("note"))),
                "reply": _limit(_text_or_none(metric.metadata.get("reply"))),
            }
            for metric in result.score.metrics[:100]
        ],
        "stop": {
            "ended_by": stop.ended_by,
            "limit": stop.limit,
            "truncated": stop.truncated,
            "finish_reason": stop.finish_reason,
        },
        "outcome_state": _limit(_text_or_none(trajectory.outcome)),
        "tokens": usage and {"prompt": usage.prompt_tokens, "completion": usage.completion_tokens},
        "trace": _describe_trace(trajectory),
        "seconds": timing and timing.seconds,
        "requests": timing and timing.requests,
        "input": _short_values(result.sample.input),
        "metadata": _short_values(result.metadata),
    }


def _turns(trajectory: Trajectory) -> Iterator[Plain]:
    """Messages, each tool call with the result that answers it."""
    results = {m.tool_call_id: i for i, m in enumerate(trajectory.messages) if m.role == "tool"}
    paired = {c.id for m in trajectory.messages for c in m.tool_calls if c.id in results}
    for place, message in enumerate(trajectory.messages):
        if message.role == "tool" and message.tool_call_id in paired:
            continue
        calls = []
        for call in message.tool_calls:
            answer = results.get(call.id)
            calls.append(
                {
                    "name": call.name,
                    "arguments": call.arguments,
                    "problem": _json_problem(call.arguments),
                    "place": answer,
                    "result": None if answer is None else content_text(trajectory.messages[answer]),
                }
            )
        yield {
            "place": place,
            "role": message.role,
            "text": content_text(message),
            "reasoning": message.reasoning,
            "calls": calls,
        }


def _json_problem(arguments: str) -> str | None:
    try:
        json.loads(arguments)
    except (ValueError, RecursionError) as problem:
        return f"not JSON: {problem}"[:200]
    return None


def _fit_budget(turns: Sequence[Plain]) -> None:
    """Shorten the texts of a conversation until all of it can be sent at once."""
    texts = [(turn, key) for turn in turns for key in ("text", "reasoning")]
    texts += [
        (call, key) for turn in turns for call in turn["calls"] for key in ("arguments", "result")
    ]
    lengths = [len(part[key] or "") for part, key in texts]
    longest = LONGEST_TEXT
    while longest > 200 and sum(min(length, longest) for length in lengths) > ANSWER_BUDGET:
        longest //= 2
    for part, key in texts:
        text = part[key]
        if text is not None and len(text) > longest:
            part[key], part[f"{key}_left"] = text[:longest], len(text) - longest


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
    return {key: _limit(_text_or_none(value), 1_000) for key, value in [*values.items()][:100]}


def _limit(text: str | None, longest: int = 8_000) -> str | None:
    if text is None or len(text) <= longest:
        return text
    return f"{text[:longest]}… ({len(text) - longest:,} more characters)"


# --- Two runs -----------------------------------------------------------------------------------


def _describe_side(report: EvalReport) -> Plain:
    return {"model": describe_model(report.config), **_numbers(report.summary)}


def _difference(difference: Any) -> Plain | None:
    if difference is None:
        return None
    around = difference.interval
    return {
        "difference": difference.difference,
        "low": around and around.low,
        "high": around and around.high,
        "n": getattr(difference, "n", None),
    }


def _slice(part: Any) -> Plain:
    around = part.simultaneous_interval
    (value,) = part.label
    return {
        "value": None if value is None else _filter_text(value),
        "difference": part.difference.difference,
        "low": around and around.low,
        "high": around and around.high,
        "p": part.adjusted_p_value,
        "n": getattr(part.difference, "n", None),
    }


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
        "error": None if result.error is None else _cut(result.error),
        "answer": result.trajectory.answer[:LONGEST_ANSWER],
        **_extracted(result),
    }


# --- Curves -------------------------------------------------------------------------------------


def _points_of(points: Sequence[CurvePoint], label: str) -> tuple[str, list[CurvePoint]]:
    groups = group_by_label(points)
    if not groups:
        return label, []
    if label and label not in groups:
        raise UnknownRun(f"the curve has no eval {label!r:.100}; it has {', '.join(groups)}")
    label = label or next(iter(groups))
    return label, groups[label]


def _describe_curve(path: Path, label: str, metric: str) -> Plain:
    from heldout.training.verdicts import terms_of

    run = read_curve(path)
    label, points = _points_of(run.points, label)
    config = run.info.config if run.info else {}
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
        "stop": stop_requested(path),
        "superseded": run.superseded,
        "last_skip": run.last_skip,
        "seconds": sum(point.seconds for point in points),
        "pass_threshold": threshold_of(config),
        "path": str(path),
        "started": run.info.started if run.info else None,
        "conversations": any(point.run for point in results),
    }
    terms = terms_of(points)
    try:
        judged, best = compute_verdicts(points, terms)
    except InvalidInput as problem:  # rewards that no verdict can be made of
        return answer | {"verdict": None, "best": None, "no_verdict": str(problem)}
    if judged:
        last = judged[-1]
        between = last.between
        answer["verdict"] = {
            "kind": last.kind,
            "sentence": last.sentence(),
            "step": last.step,
            "windows": [between[:2], between[2:]] if between else [],
            "terms": {"effect": terms.effect, "alpha": terms.alpha, "window": terms.window},
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
        "pass_rate": point.number("pass_rate"),
        "fewer": point.has_result and is_fewer(point, most),
        "kind": stored_kind(point),
        "pending": point.pending,
        "result": point.has_result,
        "note": describe_point(point),
        "seconds": point.seconds,
        "late": point.lag_steps,
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


def _describe_outcomes(outcomes: Sequence[Outcome], threshold: float) -> Plain:
    """Put the repeats of a sample at one step together, as `sample_rewards` does."""
    scored = [o.reward for o in outcomes if o.reward is not None and o.error is None]
    reward = sum(scored) / len(scored) if scored else None
    outcome = "errored" if reward is None else "passed" if reward >= threshold else "failed"
    if outcome == "failed" and any(o.truncated for o in outcomes):
        outcome = "truncated"
    error = next((o.error for o in outcomes if o.error), None)
    return {"outcome": outcome, "reward": reward, "error": error, "attempts": len(outcomes)}


def _saved_step(path: Path, point: CurvePoint) -> Path:
    """Find where the eval of a point is saved; the name in the curve is only compared."""
    name = re.fullmatch("steps/([0-9]+(?:-[0-9]+)?)", point.run or "")
    if name is None or not RunDir(path / "steps" / name[1]).exists():
        raise RunDirectoryError(f"the conversations of step {point.step} were not saved")
    return path / "steps" / name[1]


def _find_in_journal(path: Path, id: str) -> EvalResult:
    """Read the last result of a sample's first attempt from a small journal."""
    from heldout.store.journal import decode_result, lines

    needle = b'"id":' + msgspec.json.encode(id)
    journal = RunDir(path).journal
    match: EvalResult | None = None
    for number, _, line in lines(journal):
        if needle in line:
            result = decode_result(journal, number, line)
            if result.sample_id == id and result.repeat == 0:
                match = result
    if match is None:
        raise RunDirectoryError(f"{path} has no sample {id!r:.200}")
    return match


def _shorten_answers(steps: Sequence[Plain]) -> None:
    longest = min(LONGEST_ANSWER, ANSWER_BUDGET // len(steps))
    for step in steps:
        if "answer" in step:
            step["answer"] = step["answer"][:longest]
