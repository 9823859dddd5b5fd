"""A result as every logger sees it: finite numbers, short texts, and names without `eval_`.

Of a skip there are no numbers but those that nobody can take for a score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from heldout.errors import InvalidInput
from heldout.training.loggers import Fields

LONGEST_TEXT = 2000
"""Characters of a text that are sent."""
_OF_A_SKIP = ("skipped", "seconds", "lag_steps")
_EXACT = 2**53
# Joiners are part of words and emoji, and do nothing else.
_HARMLESS = "\u200c\u200d"


@dataclass(frozen=True, slots=True)
class Row:
    """One result or skip, cleaned."""

    name: str
    step: int
    numbers: dict[str, float | int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, step: int, fields: Fields) -> Row:
        """`skipped` is 1 where there is no result, and `partial` where it is of fewer items; the
        words go to `reason` and `partial_reason`. What is no finite number and no text is not
        sent, and `left_out` says so. None says nothing, and is left out."""
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= _EXACT:
            raise InvalidInput(f"step is a whole number from 0 to 2**53, got {step!r:.100}")
        numbers: dict[str, float | int] = {}
        texts: dict[str, str] = {}
        left_out: list[str] = []
        for key, value in _renamed(fields).items():
            if value is None or key == "step":
                continue
            if isinstance(value, str):
                texts[key] = _text(value)
                continue
            number = _number(value)
            if number is None:
                left_out.append(f"{key}={value!r:.40}")
            else:
                numbers[key] = number
        if "partial" in texts:
            texts["partial_reason"] = texts.pop("partial")
            numbers["partial"] = 1
        if not numbers.get("skipped", 1):
            del numbers["skipped"]
        if left_out:
            texts["left_out"] = _text(", ".join(left_out))
        if "skipped" in numbers:
            numbers["skipped"] = 1
            numbers = {key: numbers[key] for key in _OF_A_SKIP if key in numbers}
        return cls(_text(name), step, numbers, texts)

    @property
    def skipped(self) -> bool:
        return "skipped" in self.numbers

    @property
    def values(self) -> dict[str, float | int | str]:
        return {**self.numbers, **self.texts}

    def keyed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Under `<name>/<field>`, as trackers have it."""
        return {f"{self.name}/{key}": value for key, value in values.items()}


def one_line(text: str) -> str:
    """The text with line ends, and all that a terminal would obey, spelled out: what it quotes may
    be a model's words."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in _HARMLESS else c.encode("unicode_escape").decode()
        for c in text
    )


def _renamed(fields: Fields) -> dict[str, Any]:
    """Without `eval_`, unless that name is taken: two fields never become one."""
    short = {key: key.removeprefix("eval_") for key in fields}
    return {
        _text(key if short[key] != key and short[key] in fields else short[key]): value
        for key, value in fields.items()
    }


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, Real):
        return None
    if isinstance(value, int) and abs(value) <= _EXACT:
        return value
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(text: str) -> str:
    """With what UTF-8 has no bytes for spelled out, and no longer than anybody reads."""
    if len(text) > LONGEST_TEXT:
        text = text[: LONGEST_TEXT - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode()
