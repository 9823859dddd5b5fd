"""Two runs compared, their samples one by one, and several runs compared with one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout._core.format import number, p_value
from heldout.analysis import Comparison, compare
from heldout.analysis.comparison import Difference
from heldout.errors import InvalidInput
from heldout.reporting.blocks import plain_blocks
from heldout.reporting.comparisons import (
    build_comparison,
    interval_text,
    remark_lines,
    slice_blocks,
    sort_slices,
    verdict_text,
)
from heldout.stats import Interval, PairedDifference, SliceDifference, slice_differences
from heldout.store.report import EvalReport
from heldout.store.runs import describe_model
from heldout.viewer.filter import SEARCHED, FilterColumn, Term, evaluate, parse, quote
from heldout.viewer.item_lines import ItemNumbers
from heldout.viewer.rows import order_by
from heldout.viewer.values import (
    LONGEST_CELL,
    Plain,
    filter_text,
    numbers,
    question_text,
    text_or_none,
)
from heldout.viewer.viewed_run import ViewedRun

YES_NO = ("no", "yes")
MOST_RUNS = 12
"""Runs in one table."""


@lru_cache(8)
def compare_runs(
    a: ViewedRun,
    b: ViewedRun,
    names: tuple[str, str],
    by: str,
    metric: str,
    allow: tuple[str, ...],
) -> Comparison:
    """Compare run B with run A; they are called by these names."""
    reports = [
        replace(run.report, config={**run.report.config, "experiment_name": name})
        for run, name in zip((a, b), names, strict=True)
    ]
    return compare(*reports, by=[by] if by else [], metric=metric or "reward", allow=allow)


def describe_comparison(comparison: Comparison, a: ViewedRun, b: ViewedRun) -> Plain:
    """Describe a comparison: the verdict, both readings, slices and settings that differ."""
    by = comparison.by[0] if comparison.by else ""
    report = build_comparison(replace(comparison, by=()))
    overall = comparison.overall
    counted = comparison.with_errors
    return {
        "a": _describe_side(comparison.a.report),
        "b": _describe_side(comparison.b.report),
        "sentence": verdict_text(comparison, with_names=True),
        "verdict": comparison.verdict,
        "metric": comparison.metric,
        "pass_threshold": comparison.pass_threshold,
        "metrics": sorted({*a.fields.metrics} & {*b.fields.metrics}),
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
        "keys": [key for key in a.fields.metadata_keys if key in b.fields.metadata_keys],
        "config": _config_differences(comparison),
    }


class PairTable:
    """The samples that two runs share, as rows to filter and sort.

    Args:
        comparison: The comparison, of paired samples.
        runs: Both runs.
    """

    def __init__(self, comparison: Comparison, runs: tuple[ViewedRun, ViewedRun]) -> None:
        if comparison.samples is None:
            raise InvalidInput(
                "the samples of these runs are not paired: there is no table of both"
            )
        self.samples, self.runs = comparison.samples, runs
        places = (self.samples.in_a, self.samples.in_b)
        self.items = [
            np.unique(run.table.sample, return_index=True)[1][place]
            for run, place in zip(runs, places, strict=True)
        ]
        """Of each row, the first attempt in either run."""

    def __len__(self) -> int:
        return len(self.samples.a)

    @cached_property
    def changes(self) -> dict[str, NDArray[np.bool_]]:
        """What a filter can ask with yes and no, of each row."""
        samples = self.samples
        difference = samples.b - samples.a
        with np.errstate(invalid="ignore"):
            return {
                "lost": samples.lost,
                "gained": samples.gained,
                "lower": difference < 0,
                "higher": difference > 0,
                "equal": difference == 0,
                "compared": ~np.isnan(difference),
            }

    @property
    def fields(self) -> list[str]:
        """The fields of a filter."""
        return ["id", "a", "b", "difference", *self.changes, *self.runs[0].fields.metadata_keys]

    def column(self, field: str) -> FilterColumn:
        """Get the column of a filter's field; HeldoutError where there is none."""
        samples = self.samples
        numbers = {"a": samples.a, "b": samples.b, "difference": samples.b - samples.a}
        if field in numbers:
            return FilterColumn(numbers=numbers[field])
        if field in self.changes:
            return FilterColumn(codes=self.changes[field].astype(np.int32), values=YES_NO)
        if field != "id" and field not in self.runs[0].fields.metadata_keys:
            known = ", ".join(self.fields)
            raise InvalidInput(f"samples of two runs have no {field!r:.100}; there is {known}")
        column = self.runs[0].fields.column(field)
        if column.numbers is not None:
            return FilterColumn(numbers=column.numbers[self.items[0]])
        assert column.codes is not None
        return replace(column, codes=column.codes[self.items[0]])

    def select(self, where: str, sort: str) -> ItemNumbers:
        """Pick the rows that a filter holds for, in an order; "" is that of A."""
        held = evaluate(parse(where), len(self), self.column, self._search)
        if not sort:
            return np.flatnonzero(held)
        order = order_by(self.column(sort.removeprefix("-")), descending=sort.startswith("-"))
        return order[held[order]]

    def _search(self, term: Term) -> NDArray[np.bool_] | None:
        """Find the rows whose conversation, or answer, in either run contains a text."""
        if term.field not in SEARCHED:
            return None
        held = np.zeros(len(self), dtype=np.bool_)
        for run, places in zip(self.runs, (self.samples.in_a, self.samples.in_b), strict=True):
            found = run.table.sample[run.rows.select(f"{term.field}:{quote(term.value)}", "")]
            held |= np.isin(places, found)
        return held

    def row(self, row: int) -> Plain:
        """Describe a row: its sample, both values, and how they differ."""
        values = {"a": float(self.samples.a[row]), "b": float(self.samples.b[row])}
        values["difference"] = values["b"] - values["a"]
        changes = (name for name, held in self.changes.items() if held[row])
        return {
            "id": self.runs[0].fields.ids[int(self.items[0][row])],
            "change": next(changes, "not compared"),
            "text": {
                name: number(None if np.isnan(value) else value, sign=name == "difference")
                for name, value in values.items()
            },
        }


def describe_pairs(pairs: PairTable, where: str, sort: str, offset: int, limit: int) -> Plain:
    """Give some of the samples that a filter holds for, with both values."""
    rows = pairs.select(where, sort)
    shown: list[int] = rows[offset : offset + limit].tolist()
    results = pairs.runs[0].read(pairs.items[0][shown].tolist())
    return {
        "total": len(rows),
        "of": len(pairs),
        "fields": pairs.fields,
        "counts": {name: int(held.sum()) for name, held in pairs.changes.items()},
        "rows": [
            {**pairs.row(row), "question": question_text(result, LONGEST_CELL)}
            for row, result in zip(shown, results, strict=True)
        ],
    }


# --- Several runs -------------------------------------------------------------------------------


def describe_several(comparisons: Sequence[Comparison], names: Sequence[str]) -> Plain:
    """Describe runs that were each compared with the first, corrected for their number.

    Args:
        comparisons: The comparison of each other run with the first.
        names: All runs, the first one included.
    """
    rows: list[Plain] = [{"name": names[0], **_describe_side(comparisons[0].a.report)}]
    corrected = slice_differences(
        dict(zip(names[1:], (c.overall for c in comparisons), strict=True))
    )
    counted = slice_differences(
        {
            name: comparison.with_errors or comparison.overall
            for name, comparison in zip(names[1:], comparisons, strict=True)
        }
    )
    for comparison, *readings in zip(comparisons, corrected, counted, strict=True):
        signs = {_sign(reading.simultaneous_interval) for reading in readings}
        name = str(readings[0].label)
        rows.append(
            {
                "name": name,
                **_describe_side(comparison.b.report),
                "readings": [_describe_corrected(reading) for reading in readings],
                "has_errors": comparison.with_errors is not None,
                "verdict": {1: "higher", -1: "lower"}.get(signs.pop(), "inconclusive")
                if len(signs) == 1
                else "inconclusive",
                "blocks": plain_blocks(remark_lines(comparison)),
            }
        )
    return {"metric": comparisons[0].metric, "rows": rows, "compared": len(comparisons)}


def _describe_corrected(part: SliceDifference) -> Plain:
    around = part.simultaneous_interval
    difference = part.difference
    return _difference(difference, around) | {
        "text": {
            "difference": number(difference.difference, sign=True),
            "interval": interval_text(around),
            "p": p_value(part.adjusted_p_value),
        },
        "n": difference.n
        if isinstance(difference, PairedDifference)
        else f"{difference.n_a}, {difference.n_b}",
    }


def _sign(around: Interval | None) -> int:
    return 0 if around is None else int(around.low > 0) - int(around.high < 0)


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
