"""Two runs compared, and the samples that flipped between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from heldout._format import number
from heldout.analysis import Comparison, compare
from heldout.analysis.comparison import Difference
from heldout.reporting.blocks import plain_blocks
from heldout.reporting.comparisons import build_comparison, slice_blocks, sort_slices
from heldout.stats import Interval, SliceDifference
from heldout.store.columns import as_text
from heldout.store.report import EvalReport
from heldout.store.runs import describe_model
from heldout.types import EvalResult
from heldout.viewer.tables import RunTable
from heldout.viewer.values import (
    LONGEST_CELL,
    Plain,
    cut_text,
    extracted,
    filter_text,
    numbers,
    question_text,
    text_or_none,
)

LONGEST_ANSWER = 2_000
"""Characters of an answer in a list of flips or steps."""
FLIPS = 50


@lru_cache(8)
def compare_tables(
    a: RunTable,
    b: RunTable,
    names: tuple[str, str],
    by: str,
    metric: str,
    allow: tuple[str, ...],
) -> Comparison:
    """Compare run B with run A; they are called by these names."""
    reports = [
        replace(table.report, config={**table.report.config, "experiment_name": name})
        for table, name in zip((a, b), names, strict=True)
    ]
    return compare(*reports, by=[by] if by else [], metric=metric or "reward", allow=allow)


def describe_comparison(comparison: Comparison, a: RunTable, b: RunTable) -> Plain:
    """Describe a comparison: the verdict, both readings, slices and settings that differ."""
    by = comparison.by[0] if comparison.by else ""
    report = build_comparison(replace(comparison, by=()))
    overall = comparison.overall
    counted = comparison.with_errors
    return {
        "a": _describe_side(comparison.a.report),
        "b": _describe_side(comparison.b.report),
        "sentence": report.conclusion,
        "verdict": comparison.verdict,
        "metric": comparison.metric,
        "pass_threshold": comparison.pass_threshold,
        "metrics": sorted({*a.metrics} & {*b.metrics}),
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
        "slice_blocks": plain_blocks(slice_blocks(comparison)) if by else [],
        "slices": [_slice(part) for part in sort_slices(comparison.slices)[:200]],
        "keys": [key for key in a.metadata_keys if key in b.metadata_keys],
        "config": _config_differences(comparison),
    }


def describe_flips(
    comparison: Comparison, tables: tuple[RunTable, RunTable], kind: str, offset: int
) -> Plain:
    """Describe samples that pass in one of two runs alone, with both answers."""
    changes = comparison.gained if kind == "gained" else comparison.lost
    shown = changes[offset : offset + FLIPS]
    rows = []
    for change in shown:
        results = [_first_attempt(table, change.id) for table in tables]
        rows.append(
            {
                "id": change.id,
                "question": question_text(results[0], LONGEST_CELL),
                "target": cut_text(as_text(results[0].sample.ground_truth)),
                "attempts": max(table.repeats for table in tables),
                "a": _flip_side(change.a, results[0]),
                "b": _flip_side(change.b, results[1]),
            }
        )
    return {"total": len(changes), "rows": rows}


def _describe_side(report: EvalReport) -> Plain:
    return {"model": describe_model(report.config), **numbers(report.summary)}


def _difference(difference: Difference, interval: Interval | None) -> Plain:
    return {
        "difference": difference.difference,
        "low": interval and interval.low,
        "high": interval and interval.high,
    }


def _slice(part: SliceDifference) -> Plain:
    label: Any = part.label
    return {
        "value": None if label[0] is None else filter_text(label[0]),
        **_difference(part.difference, part.simultaneous_interval),
    }


def _config_differences(comparison: Comparison) -> list[Plain]:
    """Settings that differ, the policy's own included."""
    flat = [_flatten(side.report.config) for side in (comparison.a, comparison.b)]
    ignored = ("experiment_name", "output_dir", "resume", "progress", "max_concurrent")
    keys = [key for key in dict.fromkeys([*flat[0], *flat[1]]) if not key.startswith(ignored)]
    return [
        {"key": key, "a": text_or_none(flat[0].get(key)), "b": text_or_none(flat[1].get(key))}
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


def _flip_side(reward: float, result: EvalResult) -> Plain:
    return {
        "reward": reward,
        "text": {"reward": number(reward)},
        "error": cut_text(result.error),
        "answer": result.trajectory.answer[:LONGEST_ANSWER],
        **extracted(result),
    }
