"""Settings of evals from the HELDOUT_EVAL_* environment variables.

A variable overrides the argument in code, so evals can be changed at launch. Negative counts are
read as 0, token limits as at least 1. A value that is not a number is an error that names the
variable.
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


DEFAULT_NUM = 32
"""Held-out samples, if HELDOUT_EVAL_EVERY_STEPS turns evals on and `num` is not set."""
DEFAULT_MAX_NEW = 256
"""Tokens of a model turn, if neither the code nor the trainer has a limit."""
DEFAULT_PASS_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the variables; None if not set."""

    every_steps: int | None = None
    """Optimizer steps between evals; 0: off."""
    num: int | None = None
    """Held-out samples per eval, at most; 0: off."""
    max_new: int | None = None
    """Longest model turn, in tokens."""
    pass_threshold: float | None = None
    """Reward from which an item counts as passed."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables.

        Args:
            environ: The variables; by default the environment of this process.

        Raises:
            InvalidInput: A variable is not a number.
        """
        environ = os.environ if environ is None else environ
        return cls(
            every_steps=_read(environ, EVERY_STEPS, int, least=0),
            num=_read(environ, NUM, int, least=0),
            max_new=_read(environ, MAX_NEW, int, least=1),
            pass_threshold=_read(environ, PASS_THRESHOLD, float),
        )


def _read(
    environ: Mapping[str, str], name: str, kind: Callable[[str], T], *, least: T | None = None
) -> T | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not math.isfinite(value):
        wanted = "a whole number" if kind is int else "a finite number"
        raise InvalidInput(f"the environment variable {name} is {wanted}, got {text!r:.60}")
    return value if least is None else max(least, value)


def first_set(*choices: Any) -> Any:
    """Return the first value that is not None."""
    return next((choice for choice in choices if choice is not None), None)


def check_threshold(value: Any) -> None:
    """Check that a pass threshold is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidInput(f"pass_threshold is a finite number, got {value!r}")


LEAST = {"every_steps": 0, "num": 1, "min_samples": 1, "seed": 0}


def check_counts(**counts: Any) -> None:
    """Check counts among the settings of a `PeriodicEval`; `num` may be None."""
    for name, value in counts.items():
        if name == "num" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < LEAST[name]:
            raise InvalidInput(f"{name} is a whole number >= {LEAST[name]}, got {value!r}")


def check_seconds(**amounts: Any) -> None:
    """Check durations and shares; all but `progress_seconds` may be None."""
    for name, value in amounts.items():
        if (value is not None or name == "progress_seconds") and (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
            or value <= 0
        ):
            raise InvalidInput(f"{name} is a number above 0, or None, got {value!r}")
