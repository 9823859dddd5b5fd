"""Settings of a `PeriodicEval`, and the HELDOUT_EVAL_* environment variables that change them.

A variable overrides the argument in code, so evals can be changed at launch. Negative counts are
read as 0, token limits as at least 1. A value that is not a number is an error that names the
variable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from heldout._core.checks import check_count, check_flag
from heldout._core.config import DEFAULT_PASS_THRESHOLD
from heldout._live.rendering.chat_templates import ChatFormat
from heldout.errors import InvalidInput

EVERY_STEPS = "HELDOUT_EVAL_EVERY_STEPS"
NUM = "HELDOUT_EVAL_NUM"
MAX_NEW = "HELDOUT_EVAL_MAX_NEW"
PASS_THRESHOLD = "HELDOUT_EVAL_PASS_THRESHOLD"

T = TypeVar("T", int, float)


DEFAULT_NUM = 32
"""Held-out samples, if HELDOUT_EVAL_EVERY_STEPS turns evals on and `num` is not set."""
SMALLEST = 8
"""Smallest subset: a mean over fewer samples is not worth its time."""


class TrainerSettings(msgspec.Struct, frozen=True):
    """How a trainer has its model answer, which an eval does too where its code says nothing."""

    max_new: int | None = None
    """Longest completion, in tokens."""
    chat: ChatFormat = ChatFormat()
    """How it renders prompts."""


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
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
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> EnvironmentSettings:
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
        raise InvalidInput(f"the environment variable {name} must be {wanted}, got {text!r:.60}")
    return value if least is None else max(least, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSettings:
    """How a `PeriodicEval` evaluates: its arguments of the same names, checked.

    Raises:
        InvalidInput: A value is invalid.
    """

    label: str = "rl_eval"
    every_steps: int = 0
    num: int | None = None
    seed: int = 0
    pass_threshold: float = DEFAULT_PASS_THRESHOLD
    at_start: bool = False
    max_overhead: float | None = None
    min_samples: int = SMALLEST
    max_seconds: float | None = 3600.0
    progress_seconds: float = 10.0
    across: Literal["first", "all"] = "first"
    on_error: Literal["skip", "raise"] = "skip"
    is_off_at_launch: bool = False
    """Whether HELDOUT_EVAL_NUM is 0."""
    is_set_at_launch: bool = False
    """Whether variables, and not the code, turn it on or off. A launch must not fail then."""

    @classmethod
    def with_environment(
        cls,
        *,
        every_steps: int | None,
        num: int | None,
        pass_threshold: float | None,
        own_threshold: float = DEFAULT_PASS_THRESHOLD,
        **others: Any,
    ) -> EvalSettings:
        """Make the settings of these arguments and of the environment variables.

        Args:
            every_steps: The argument in code, as the following; None where it was left out.
            num: How many samples to use, at most.
            pass_threshold: Reward from which an item passes.
            own_threshold: That of the eval itself, where neither says another.
            **others: Fields that no variable sets.
        """
        outside = EnvironmentSettings.from_environment()
        is_off = outside.num == 0
        is_set_outside = is_off or (bool(outside.every_steps) and every_steps is None)
        if outside.every_steps is not None and every_steps is None and num is None:
            num = DEFAULT_NUM
        return cls(
            every_steps=first_set(outside.every_steps, every_steps, 0),
            num=None if is_off else first_set(outside.num, num),
            pass_threshold=first_set(outside.pass_threshold, pass_threshold, own_threshold),
            is_off_at_launch=is_off,
            is_set_at_launch=is_set_outside,
            **others,
        )

    def __post_init__(self) -> None:
        check_count("every_steps", self.every_steps, low=0)
        check_count("min_samples", self.min_samples, low=1)
        check_count("num", self.num, low=1, optional=True)
        check_count("seed", self.seed, low=0)
        check_flag("at_start", self.at_start)
        if not _is_number(self.pass_threshold):
            raise InvalidInput(
                f"pass_threshold must be a finite number, got {self.pass_threshold!r}"
            )
        _check_positive("max_overhead", self.max_overhead, may_be_none=True)
        _check_positive("max_seconds", self.max_seconds, may_be_none=True)
        _check_positive("progress_seconds", self.progress_seconds)
        if self.across not in ("first", "all"):
            raise InvalidInput(f"across must be 'first' or 'all', got {self.across!r}")
        if self.on_error not in ("skip", "raise"):
            raise InvalidInput(f"on_error must be 'skip' or 'raise', got {self.on_error!r}")
        label = self.label
        if not isinstance(label, str) or not label.replace("_", "").replace("-", "").isalnum():
            raise InvalidInput(f"label must be letters, digits, _ and -, got {label!r}")


def first_set(*choices: Any) -> Any:
    """Return the first value that is not None."""
    return next((choice for choice in choices if choice is not None), None)


def _check_positive(name: str, value: Any, *, may_be_none: bool = False) -> None:
    if may_be_none and value is None:
        return
    if not _is_number(value) or value <= 0:
        raise InvalidInput(f"{name} must be a number above 0, or None, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
