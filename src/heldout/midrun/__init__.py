"""Evaluation in the middle of training: on a cadence, on the trainer's own weights, neutral.

periodic   PeriodicEval: cadence, budget, curve and heartbeats
measure    one measurement: the model, isolated, through `heldout.evaluate`
runners    how the policy is run and scored: `live_model`, `functions`
budget     how much evaluating the training can bear
curve      curve.jsonl: a line a point
settings   the HELDOUT_EVAL_* variables
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heldout.midrun.curve import CurvePoint, Outcome, current_points, read_points
    from heldout.midrun.periodic import PeriodicEval
    from heldout.midrun.runners import (
        Request,
        Runner,
        functions,
        live_model,
        score_answer,
    )
    from heldout.midrun.settings import Settings

_HOME = {
    "heldout.midrun.curve": ("CurvePoint", "Outcome", "current_points", "read_points"),
    "heldout.midrun.periodic": ("PeriodicEval",),
    "heldout.midrun.runners": ("Request", "Runner", "functions", "live_model", "score_answer"),
    "heldout.midrun.settings": ("Settings",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CurvePoint",
    "Outcome",
    "PeriodicEval",
    "Request",
    "Runner",
    "Settings",
    "current_points",
    "functions",
    "live_model",
    "read_points",
    "score_answer",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'heldout.midrun' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
