"""A point as flat fields: for heartbeats, and as numbers for the rows of a trainer's log."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

from heldout.errors import InvalidInput
from heldout.training.curve import CurvePoint

Heartbeat = Callable[..., object]
"""`heartbeat(name, fields)` or `heartbeat(name, **fields)`: name is the eval's label, or that with
`_progress` added."""


def checked_heartbeat(heartbeat: Any) -> Callable[[str, dict[str, Any]], object] | None:
    """Check that a heartbeat function can be called, before training does.

    Args:
        heartbeat: A function of `(name, fields)` or `(name, **fields)`, or None.

    Returns:
        A function of `(name, fields)`.

    Raises:
        InvalidInput: It takes neither.
    """
    if heartbeat is None:
        return None
    if not callable(heartbeat):
        raise InvalidInput(f"heartbeat_fn is a function (name, fields), got {heartbeat!r:.100}")
    try:
        signature = inspect.signature(heartbeat)
    except (TypeError, ValueError):  # built in: nothing is known of it
        return cast(Callable[[str, dict[str, Any]], object], heartbeat)
    if _takes(signature, "", {}):
        return cast(Callable[[str, dict[str, Any]], object], heartbeat)
    if _takes(signature, "", step=0, eval_n=0, eval_metric_some_name=0):
        return lambda name, fields: heartbeat(name, **fields)
    raise InvalidInput(
        f"heartbeat_fn is called as heartbeat_fn(name, fields), or (name, **fields), which "
        f"{getattr(heartbeat, '__qualname__', heartbeat)!s:.100}{signature} does not take"
    )


def _takes(signature: inspect.Signature, *args: Any, **fields: Any) -> bool:
    try:
        signature.bind(*args, **fields)
    except TypeError:
        return False
    return True


def heartbeat_fields(point: CurvePoint) -> dict[str, Any]:
    """What whoever watches gets to know of a point."""
    fields: dict[str, Any] = {"step": point.step, "eval_seconds": point.seconds}
    if point.lag_steps is not None:
        fields["lag_steps"] = point.lag_steps
    if point.summary is None:
        return {**fields, "eval_skipped": True, "eval_reason": point.skipped}
    summary = point.summary
    # The mean reads an errored item as 0, and so do these.
    errored = [0.0] if summary["n_errors"] else []
    known = [value for value in (summary["min"], summary["max"]) if value is not None]
    fields |= {
        "eval_n": summary["n"],
        "eval_n_scored": summary["n_scored"],
        "eval_n_errors": summary["n_errors"],
        "eval_n_truncated": summary["n_truncated"],
        "eval_reward": summary["mean"],
        "eval_reward_scored": summary["mean_scored"],
        "eval_reward_ci_low": summary["ci_low"],
        "eval_reward_ci_high": summary["ci_high"],
        "eval_reward_min": min([*known, *errored], default=None),
        "eval_reward_max": max([*known, *errored], default=None),
        "eval_pass_rate": summary["pass_rate"],
        **{f"eval_{key}": value for key, value in summary.items() if key.startswith("metric_")},
    }
    if point.final:
        fields["eval_final"] = True
    if point.partial is not None:
        fields["eval_partial"] = point.partial
    if point.asked < point.of:
        fields["eval_of"] = point.of
    if point.verdict is not None:
        verdict = point.verdict
        fields |= {
            "eval_verdict": verdict.get("kind"),
            "eval_verdict_text": verdict.get("text"),
            "eval_verdict_since": verdict.get("since"),
            "eval_verdict_n": verdict.get("n"),
            "eval_gain": verdict.get("gain"),
            "eval_gain_ci_low": verdict.get("ci_low"),
            "eval_gain_ci_high": verdict.get("ci_high"),
            "eval_minimum_detectable": verdict.get("minimum_detectable"),
            "eval_effect": verdict.get("effect"),
            "eval_best_step": verdict.get("best_step"),
        }
    if point.stop is not None:
        fields["eval_stop"] = point.stop
    return fields


# --- Rows of a trainer's log ----------------------------------------------------------------------

VERDICTS = {"improving": 1.0, "plateau": 0.0, "regressing": -1.0}
"""As numbers; "inconclusive" is none of them, and left out."""
MOST = 1e300
"""Beyond it, and for NaN, a verdict's number says nothing."""


def log_fields(point: CurvePoint, name: str) -> dict[str, float]:
    """A point in numbers under `eval_<name>_…`, as reporters take them. Unknown ones are left
    out, and a skip has none that could be taken for a score."""
    fields: dict[str, float | None] = {"step": point.step, "seconds": point.seconds}
    if point.summary is None:
        fields["skipped"] = 1.0
    else:
        fields |= {
            "reward": point.number("mean"),
            "reward_scored": point.number("mean_scored"),
            "reward_ci_low": point.number("ci_low"),
            "reward_ci_high": point.number("ci_high"),
            "pass_rate": point.number("pass_rate"),
            "n": point.number("n"),
            "n_errors": point.number("n_errors"),
            "n_scored": point.number("n_scored"),
            **{
                f"metric_{m}{end}": point.number(f"metric_{m}{end}")
                for m in point.metrics()
                for end in ("", "_n")
            },
        }
        if point.partial is not None:
            fields["partial"] = 1.0
        verdict = point.verdict or {}
        fields |= {
            "verdict": VERDICTS.get(str(verdict.get("kind"))),
            "gain": _number(verdict.get("gain")),
            "gain_ci_low": _number(verdict.get("ci_low")),
            "gain_ci_high": _number(verdict.get("ci_high")),
            "best_step": _number(verdict.get("best_step")),
        }
    return {f"eval_{name}_{key}": value for key, value in fields.items() if value is not None}


def _number(value: Any) -> float | None:
    """A monitor of the user's own, or a curve from anywhere, may say anything."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and abs(value) <= MOST else None
