"""Whether what a program returned or printed is what a test expects. Pure functions of data."""

from __future__ import annotations

import math
import re
from collections import deque
from decimal import Decimal, InvalidOperation
from typing import Any

from heldout._core.format import cut

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
MAX_DIGITS = 1000  # a longer token is compared as text
SHOWN = 80


def same_value(
    found: Any, expected: Any, tolerance: float, doubts: list[str] | None = None
) -> bool:
    """Return whether a value equals one that was written as JSON.

    As in Python, 2 is 2.0 and True is 1. A tuple is a list, and a key 1 is "1", since JSON has
    neither tuples nor other keys. Where a float is expected, one within the tolerance is equal; NaN
    equals NaN alone.

    Args:
        found: Data of built-in types.
        expected: What JSON can hold.
        tolerance: Relative, or absolute near 0.
        doubts: Gets what is equal only because both are near 0, as 0 and 1e-9.
    """
    doubts = [] if doubts is None else doubts
    pairs = deque([(found, expected)])
    while pairs:
        one, other = pairs.popleft()
        if isinstance(one, list | tuple) and isinstance(other, list | tuple):
            if len(one) != len(other):
                return False
            pairs.extend(zip(one, other, strict=True))
        elif isinstance(one, dict) and isinstance(other, dict):
            try:
                by_text = {str(key): value for key, value in one.items()}
            except ValueError:  # an integer of too many digits
                return False
            if len(by_text) != len(one) or by_text.keys() != other.keys():
                return False
            pairs.extend((by_text[key], other[key]) for key in other)
        elif not _same_scalar(one, other, tolerance, doubts):
            return False
    return True


def _same_scalar(one: Any, other: Any, tolerance: float, doubts: list[str]) -> bool:
    if isinstance(other, float) and isinstance(one, int | float) and not isinstance(one, bool):
        if math.isnan(other):
            return isinstance(one, float) and math.isnan(one)
        try:
            return _is_close(one, other, tolerance, doubts)
        except OverflowError:  # an integer that no float can be
            return False
    try:
        return bool(one == other)
    except InvalidOperation:  # a Decimal that is a signaling NaN
        return False


def _is_close(one: float, other: float, tolerance: float, doubts: list[str]) -> bool:
    if math.isclose(one, other, rel_tol=tolerance):
        return True
    is_close = math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    if is_close and other != 0:
        doubts.append(f"{one} counts for {other}, as both are within {tolerance:g} of 0")
    return is_close


def compare_output(
    printed: str, expected: str, tolerance: float, doubts: list[str] | None = None
) -> str | None:
    """Compare what a program printed with what it should have, line by line and word by word.

    Blank space at the ends of lines and at the end does not count. Words are equal as text, or as
    numbers of the same value; where one with a decimal point or an exponent is expected, a number
    within the tolerance is equal. `doubts` is as for `same_value`.

    Returns:
        None where they are equal, else where they differ.
    """
    doubts = [] if doubts is None else doubts
    ours, theirs = _lines(printed), _lines(expected)
    for number, (line, wanted) in enumerate(zip(ours, theirs, strict=False), start=1):
        words, wanted_words = line.split(), wanted.split()
        if len(words) == len(wanted_words):
            pairs = zip(words, wanted_words, strict=True)
            if all(_same_word(word, other, tolerance, doubts) for word, other in pairs):
                continue
        return f"line {number} is {_show(line)}, not {_show(wanted)}"
    if len(ours) != len(theirs):
        return f"it printed {len(ours)} lines, not {len(theirs)}"
    return None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _show(line: str) -> str:
    return repr(cut(line, SHOWN))


def _same_word(word: str, expected: str, tolerance: float, doubts: list[str]) -> bool:
    if word == expected:
        return True
    if max(len(word), len(expected)) > MAX_DIGITS:
        return False
    if not _NUMBER.fullmatch(word) or not _NUMBER.fullmatch(expected):
        return False
    if set(expected) & set(".eE"):
        return _is_close(float(word), float(expected), tolerance, doubts)
    try:
        return Decimal(word) == Decimal(expected)
    except InvalidOperation:
        return False
