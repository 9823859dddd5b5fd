"""Mid-run evaluation configured from outside, by the HELDOUT_EVAL_* variables.

An argument given in code comes first, then the variable, then the default. A negative count is
read as 0, a token limit as at least 1; what cannot be read is an error that names the variable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from heldout.errors import InvalidInput

EVERY_STEPS = "HELDOUT_EVAL_EVERY_STEPS"
NUM = "HELDOUT_EVAL_NUM"
MAX_NEW = "HELDOUT_EVAL_MAX_NEW"
PASS_THRESHOLD = "HELDOUT_EVAL_PASS_THRESHOLD"

T = TypeVar("T", int, float)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the variables say."""

    every_steps: int = 0
    """Optimizer steps from one eval to the next; 0 is off."""
    num: int = 32
    """Held-out samples an eval takes, at most."""
    max_new: int = 256
    """Longest model turn, in tokens."""
    pass_threshold: float = 0.5
    """Reward from which an item counts as passed."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        environ, default = os.environ if environ is None else environ, cls()
        return cls(
            every_steps=max(0, _read(environ, EVERY_STEPS, int, default.every_steps)),
            num=max(0, _read(environ, NUM, int, default.num)),
            max_new=max(1, _read(environ, MAX_NEW, int, default.max_new)),
            pass_threshold=_read(environ, PASS_THRESHOLD, float, default.pass_threshold),
        )


def _read(environ: Mapping[str, str], name: str, kind: Callable[[str], T], default: T) -> T:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not math.isfinite(value):
        wanted = "a whole number" if kind is int else "a finite number"
        raise InvalidInput(f"the environment variable {name} is {wanted}, got {text!r:.60}")
    return value


LEAST = {"every_steps": 0, "num": 1, "min_samples": 1, "seed": 0}


def check_counts(**counts: Any) -> None:
    """Settings of a `PeriodicEval` that count; `num` may be None, for all."""
    for name, value in counts.items():
        if name == "num" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < LEAST[name]:
            raise InvalidInput(f"{name} is a whole number >= {LEAST[name]}, got {value!r}")


def check_seconds(**amounts: Any) -> None:
    """Those that measure; all but `progress_seconds` may be None, for no limit."""
    for name, value in amounts.items():
        if (value is not None or name == "progress_seconds") and (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise InvalidInput(f"{name} is a number above 0, or None, got {value!r}")
