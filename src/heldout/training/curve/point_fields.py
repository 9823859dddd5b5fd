"""A curve point as flat metric fields, with the same names everywhere.

`point_fields` names the fields. Each consumer adds its own prefix:

    heartbeats              eval_reward               (`step` and `lag_steps` have no prefix)
    a trainer's log         eval_<name>_reward        numbers only, with `eval_<name>_step`
    loggers                 <name>/reward             of `heldout.training.loggers`
    tinker-cookbook's log   heldout/<name>/reward     numbers only
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, cast

from heldout._core.format import pass_rate_keys
from heldout.errors import InvalidInput
from heldout.training.curve.points import CurvePoint

_FROM_SUMMARY = {
    "reward": "mean",
    "reward_ci_low": "ci_low",
    "reward_ci_high": "ci_high",
    "reward_stderr": "stderr",
    "n": "n",
    "n_errors": "n_errors",
    "n_truncated": "n_truncated",
    "reward_scored": "mean_scored",
    "n_scored": "n_scored",
    "pass_rate": "pass_rate",
    "pass_rate_ci_low": "pass_rate_ci_low",
    "pass_rate_ci_high": "pass_rate_ci_high",
}
"""Field of a point: key of its summary."""
_FROM_VERDICT = {
    "verdict": "kind",
    "verdict_text": "text",
    "verdict_since": "since",
    "verdict_n": "n",
    "gain": "gain",
    "gain_ci_low": "ci_low",
    "gain_ci_high": "ci_high",
    "minimum_detectable": "minimum_detectable",
    "effect": "effect",
    "since_start": "since_start",
    "since_start_gain": "since_start_gain",
    "since_start_ci_low": "since_start_ci_low",
    "since_start_ci_high": "since_start_ci_high",
    "since_start_text": "since_start_text",
    "best_step": "best_step",
    "best_estimate": "best_estimate",
    "best_ci_low": "best_ci_low",
    "best_ci_high": "best_ci_high",
    "best_text": "best_text",
}
"""Field of a point: key of its verdict."""
VERDICTS = {"improving": 1.0, "plateau": 0.0, "regressing": -1.0}
"""Verdicts as numbers; inconclusive has none."""


def point_fields(point: CurvePoint) -> dict[str, Any]:
    """Flatten a point into numbers, texts and flags by name, without its step.

    Unknown numbers are None. A skip has `skipped`, `reason` and `seconds`, and no score.
    """
    fields: dict[str, Any] = {"seconds": point.seconds}
    if point.lag_steps is not None:
        fields["lag_steps"] = point.lag_steps
    summary = point.summary
    if summary is None:
        return {**fields, "skipped": True, "reason": point.skipped}
    fields |= {name: summary.get(key) for name, key in _FROM_SUMMARY.items()}
    # The mean counts an errored item as 0, and so do these.
    rewards = [value for value in (summary.get("min"), summary.get("max")) if value is not None]
    if fields["n_errors"]:
        rewards.append(0.0)
    fields |= {"reward_min": min(rewards, default=None), "reward_max": max(rewards, default=None)}
    extra = ("metric_", *pass_rate_keys(summary).values())
    fields |= {key: value for key, value in summary.items() if key.startswith(extra)}
    if point.final:
        fields["final"] = True
    if point.partial is not None:
        fields["partial"] = point.partial
    if point.asked < point.of:
        fields["of"] = point.of
    if point.verdict is not None:
        fields |= {name: point.verdict.get(key) for name, key in _FROM_VERDICT.items()}
    if point.stop is not None:
        fields["stop"] = point.stop
    return fields


def number_fields(point: CurvePoint, prefix: str = "") -> dict[str, float]:
    """Return the finite numbers of `point_fields`, with a prefix, for logs of numbers.

    `skipped`, `final` and `partial` are 1 if they apply, and `verdict` is one of `VERDICTS`.
    """
    fields = point_fields(point)
    if "partial" in fields:
        fields["partial"] = 1.0
    if "verdict" in fields:
        fields["verdict"] = VERDICTS.get(str(fields["verdict"]))
    return {
        f"{prefix}{key}": float(value)
        for key, value in fields.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def heartbeat_fields(point: CurvePoint) -> dict[str, Any]:
    """Return `point_fields` with the prefix `eval_` (not on `lag_steps`), and `step`."""
    fields = {f"eval_{key}": value for key, value in point_fields(point).items()}
    if "eval_lag_steps" in fields:
        fields["lag_steps"] = fields.pop("eval_lag_steps")
    return {"step": point.step, **fields}


def log_fields(point: CurvePoint, name: str) -> dict[str, float]:
    """Return a row of a trainer's log: `number_fields` and `step` with prefix `eval_<name>_`."""
    prefix = f"eval_{name}_"
    return {f"{prefix}step": point.step, **number_fields(point, prefix)}


Heartbeat = Callable[..., object]
"""`heartbeat(name, **fields)` or `heartbeat(name, fields)`. The name is the eval's label, or
`<label>_progress`."""


def checked_heartbeat(heartbeat: Any) -> Callable[[str, dict[str, Any]], object] | None:
    """Return the heartbeat as a function of `(name, fields)`.

    Fields go by keyword where the signature takes any, `step` among them. Otherwise they are one
    dict.

    Raises:
        InvalidInput: The signature takes neither.
    """
    if heartbeat is None:
        return None
    try:
        signature = inspect.signature(heartbeat)
    except TypeError:
        message = f"heartbeat_fn must be a function (name, **fields), got {heartbeat!r:.100}"
        raise InvalidInput(message) from None
    except ValueError:  # a builtin that does not say what it takes
        raise InvalidInput(
            f"heartbeat_fn is a function (name, **fields); the signature of {heartbeat!r:.100} is "
            "unknown",
            hint="lambda name, fields: … says what it takes",
        ) from None
    if _bind(signature, "", step=0, eval_n=0, eval_metric_some_name=0) is not None:
        return lambda name, fields: heartbeat(name, **fields)
    bound = _bind(signature, "", {})
    # `def beat(name, step=None)` would take the dict for the step.
    if bound is not None and not _is_field([*bound.arguments][-1]):
        return cast(Callable[[str, dict[str, Any]], object], heartbeat)
    raise InvalidInput(
        f"heartbeat_fn is called as heartbeat_fn(name, **fields), or (name, fields), which "
        f"{getattr(heartbeat, '__qualname__', heartbeat)!s:.100}{signature} does not take"
    )


def _bind(signature: inspect.Signature, *args: Any, **fields: Any) -> inspect.BoundArguments | None:
    try:
        return signature.bind(*args, **fields)
    except TypeError:
        return None


def _is_field(parameter: str) -> bool:
    return parameter in ("step", "lag_steps") or parameter.startswith("eval_")
