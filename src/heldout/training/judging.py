"""The verdict on a point, added where its line is written.

A `PeriodicEval` has a monitor, and its publisher asks that. A point that was scheduled without one
is judged by a `CurveMonitor` with its default settings, as readers of the curve judge it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from heldout.training.curve import CurvePoint, current_points, encode_point, read_points
from heldout.training.curve_file import CurveFile
from heldout.training.verdicts import CurveMonitor, Judgement

log = logging.getLogger("heldout")

Monitor = Callable[[Sequence[CurvePoint]], str | Judgement | None]
"""A function of the curve so far, by step. Returns why training should stop, or None; or a
`Judgement`."""


def judge_point(monitor: Monitor, point: CurvePoint, curve: Sequence[CurvePoint]) -> CurvePoint:
    """Ask a monitor about a point.

    Args:
        monitor: The monitor, which may raise what it likes.
        point: The point.
        curve: The curve so far, with the point.

    Returns:
        The point with what the monitor says of it.
    """
    judgement = monitor(curve)
    if not isinstance(judgement, Judgement):
        return msgspec.structs.replace(point, stop=_stop_reason(judgement))
    # What is said of a later step, because this result came late, is not about this one.
    verdict = judgement.verdict
    is_about = verdict is not None and verdict.step == point.step
    judged = msgspec.structs.replace(
        point,
        stop=_stop_reason(judgement.stop),
        verdict=judgement.as_dict() if is_about else point.verdict,
    )
    encode_point(msgspec.structs.replace(judged, outcomes=()))  # a line must hold it
    return judged


def judge_by_default(point: CurvePoint, file: CurveFile) -> CurvePoint:
    """Add the verdict of a default `CurveMonitor` to a point that is to be written to a file.

    A point without rewards of its samples, or with a verdict already, is returned as it is; and so
    is one of an earlier attempt, which later points have been judged without.
    """
    is_judged = point.verdict is not None or not point.has_result or not point.outcomes
    if is_judged or point.session != file.session:
        return point
    try:
        known = [p for p in read_points(file.run.curve) if p.label == point.label]
        return judge_point(CurveMonitor(), point, current_points([*known, point]))
    except Exception as problem:
        log.warning("there is no verdict on step %s", point.step, exc_info=problem)
        return point


def _stop_reason(reason: Any) -> str | None:
    """Return a reason as text that JSON can represent."""
    return str(reason).encode("utf-8", "replace").decode() if reason else None
