"""A summary as metrics for the loop; and, where the training waits for its evals, the curve. With
a dispatcher installed it is that which writes.

All evaluators of one run directory write as one start of the training: else each would take the
points of the others for those of a training that has gone back.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from heldout.store.rundir import RunDir
from heldout.training.curve import CurvePoint, read_points
from heldout.training.curve_file import Home, home_of

Summary = dict[str, int | float | bool | None]
_METRICS = {
    "reward": "mean",
    "reward_ci_low": "ci_low",
    "reward_ci_high": "ci_high",
    "reward_stderr": "stderr",
    "reward_scored": "mean_scored",
    "pass_rate": "pass_rate",
    "pass_rate_ci_low": "pass_rate_ci_low",
    "pass_rate_ci_high": "pass_rate_ci_high",
    "n": "n",
    "n_scored": "n_scored",
    "n_errors": "n_errors",
    "n_truncated": "n_truncated",
}
"""What the loop is told, and what that is called in a summary."""


def metrics_of(summary: Summary | None, prefix: str) -> dict[str, float]:
    """Numbers by name; what is not known is not there, and of a skip (None) there is none."""
    if summary is None:
        return {f"{prefix}/skipped": 1.0}
    found = {ours: summary.get(name) for ours, name in _METRICS.items()}
    found |= {key: value for key, value in summary.items() if key.startswith("metric_")}
    return {
        f"{prefix}/{key}": float(value)
        for key, value in found.items()
        if value is not None and math.isfinite(value)
    }


# --- The curve of a training that waits ---------------------------------------------------------

_latest: WeakKeyDictionary[Home, dict[str, int]] = WeakKeyDictionary()
"""The step that each eval of this start of the training is at."""


def entered(run_dir: Path, owner: Any) -> Home:
    """The directory, held for as long as its owner lives."""
    home = home_of(run_dir, owner)
    home.enter()
    home.write_bare_config()
    return home


def record(home: Home, point: CurvePoint) -> CurvePoint:
    """The point as it was written: of this start of the training, or of a new one where its step
    has gone back."""
    latest = _latest.setdefault(home, {})
    if point.step < latest.get(point.label, 0):
        latest.clear()
        home.begin_session()
    latest[point.label] = point.step
    point = msgspec.structs.replace(point, session=home.session)
    home.record(point)
    return point


def points_at(run_dir: Path, label: str, step: int) -> list[CurvePoint]:
    curve = RunDir(run_dir).curve
    points = read_points(curve) if curve.exists() else []
    return [p for p in points if p.label == label and p.step == step]
