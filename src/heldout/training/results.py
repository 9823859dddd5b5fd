"""What an evaluator returns, as a point of the curve."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import InvalidInput
from heldout.store.report import EvalReport
from heldout.store.rundir import now
from heldout.summary import EMPTY_SUMMARY
from heldout.training.curve import CurvePoint, outcomes_of
from heldout.training.pending import PendingEval

log = logging.getLogger("heldout")

Result = CurvePoint | EvalReport | Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Known:
    """No new result: these weights have that point already, or need none."""

    point: CurvePoint | None = None


def skip_of(pending: PendingEval, why: str, seconds: float = 0.0) -> CurvePoint:
    return CurvePoint(
        label=pending.name,
        step=pending.step,
        session=pending.session,
        time=now(),
        seconds=seconds,
        skipped=why,
        weights=pending.weights,
    )


UNKNOWN: dict[str, int | float | bool | None] = dict.fromkeys(EMPTY_SUMMARY)
"""A summary of which nothing is known, not even of how many items it is."""


def point_of(result: Any, pending: PendingEval, seconds: float, run_dir: Path | None) -> CurvePoint:
    """A result as a point of the eval, step, session and weights it was scheduled as.

    A mapping of metrics says neither what it is of nor which of them is the reward: each becomes
    a metric without denominator or error bar, and there is no reward. One that has all the keys of
    a heldout summary is that summary. A report is its summary and outcomes; of one that is not
    complete the items are those that were quick, and their mean is another one: InvalidInput.
    """
    point = skip_of(pending, "", seconds)
    if isinstance(result, CurvePoint):
        return msgspec.structs.replace(
            result,
            label=pending.name,
            step=pending.step,
            session=pending.session,
            weights=result.weights or pending.weights,
            summary=None if result.summary is None else {**UNKNOWN, **result.summary},
        )
    if isinstance(result, EvalReport):
        return _point_of_report(result, point, run_dir)
    if isinstance(result, Mapping):
        return msgspec.structs.replace(point, summary=_summary_of(result), skipped=None)
    raise InvalidInput(
        "an evaluator returns a CurvePoint, an EvalReport or a mapping of metrics to numbers, "
        f"got {result!r:.200}"
    )


def _point_of_report(report: EvalReport, point: CurvePoint, run_dir: Path | None) -> CurvePoint:
    summary, n = report.summary, report.summary["n"]
    if summary.get("complete") is False:
        asked = summary.get("n_asked")
        raise InvalidInput(f"the report is of {n} of {asked} items: those that finished first")
    if not summary["n_scored"]:
        raise InvalidInput(f"all {n} items errored, so there is no mean")
    run = None
    if report.path is not None and run_dir is not None:
        with suppress(ValueError):  # somewhere else
            run = str(report.path.resolve().relative_to(run_dir.resolve()))
    outcomes = outcomes_of(report.results)
    return msgspec.structs.replace(
        point, summary=summary, skipped=None, outcomes=outcomes, asked=n, of=n, run=run
    )


def _summary_of(metrics: Mapping[str, Any]) -> dict[str, int | float | bool | None]:
    if not metrics:
        raise InvalidInput("the evaluator returned a mapping without metrics")
    numbers: dict[str, float | None] = {}
    for name, value in metrics.items():
        try:
            number = None if value is None or isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if not isinstance(name, str) or (number is None and value is not None):
            raise InvalidInput(f"metrics are numbers by name, got {name!r}: {value!r:.100}")
        if number is not None and not math.isfinite(number):
            log.warning("metric %r is %s, and is left unknown", name, number)
            number = None
        numbers[name] = number
    if set(EMPTY_SUMMARY) <= set(metrics):
        return dict(metrics)
    summary = dict(UNKNOWN)
    for name in numbers:
        ends = ("_n", "_stderr", "_ci_low", "_ci_high")
        taken = [f"{name}{end}" for end in ends if f"{name}{end}" in numbers]
        if taken:
            raise InvalidInput(
                f"metric {taken[0]!r} would be taken for what {name!r} is of, or its error bar; "
                "give it another name, or return a report, which has those"
            )
        summary |= dict.fromkeys(f"metric_{name}{end}" for end in ("", *ends))
    return summary | {f"metric_{name}": number for name, number in numbers.items()}
