"""Values of Inspect scores as numbers, strictly: what has no number is an error, never 0.

Inspect's own `value_to_float` makes 0.0 of whatever it cannot read, with a warning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from heldout.errors import ScoringFailed

LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Correct, incorrect, partial, and no answer."""
WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
MODEL_REASONS = frozenset({"refusal", "no_response", "invalid_response_format"})
"""Why a score has no value where the model is to blame: it counts as no answer. For every other
reason it is an error."""


class ScoreNumber(NamedTuple):
    """A value of a score as a number."""

    value: float
    is_rate: bool
    """Whether it is 0, 1 or between by nature."""
    no_answer: bool = False
    """Whether the model gave no answer."""


def to_number(value: Any, reason: str | None = None) -> ScoreNumber:
    """Convert the value of a score.

    Args:
        value: One value: a letter (C, I, P, N), a number, a bool, or a text such as "yes" or "0.5".
        reason: Why the score is abnormal, where it says so.

    Raises:
        ScoringFailed: It has no number.
    """
    if isinstance(value, bool):
        return ScoreNumber(float(value), True)
    if isinstance(value, str):
        if value in LETTERS:
            return ScoreNumber(LETTERS[value], True, value == "N")
        if value.lower() in WORDS:
            return ScoreNumber(WORDS[value.lower()], True)
        if value.isascii() and value.strip() == value and "_" not in value:
            try:
                value = float(value)
            except ValueError:
                pass
    if isinstance(value, int | float):
        if math.isfinite(value):
            return ScoreNumber(float(value), False)
        if math.isnan(value):
            if reason in MODEL_REASONS:
                return ScoreNumber(0.0, True, True)
            raise ScoringFailed(f"unscored: {reason or 'the scorer gives no reason'}")
    raise ScoringFailed(f"the score is {value!r:.100}, which is no number")


def split_values(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a score's values by name: NAME, or NAME.KEY for each value of a dict or list."""
    if isinstance(value, Mapping):
        parts: Any = value.items()
    elif isinstance(value, Sequence) and not isinstance(value, str):
        parts = enumerate(value)
    else:
        yield name, value
        return
    for key, part in parts:
        if part is not None:
            yield f"{name}.{key}", part
