"""Checks of single values where a user's settings come in: InvalidInput says what is expected.

None is refused unless `optional`; True and False do not count as numbers.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from heldout.errors import InvalidInput

LARGEST_COUNT = 2**63 - 1
"""What JSON of a run directory, and `itertools`, can hold."""


def check_count(name: str, value: Any, *, low: int, optional: bool = False) -> None:
    """Refuse anything but a whole number within bounds."""
    if value is None and optional:
        return
    is_count = isinstance(value, int) and not isinstance(value, bool)
    if not is_count or not low <= value <= LARGEST_COUNT:
        raise InvalidInput(f"{name} is a whole number >= {low}, got {_shown(value)}")


def check_number(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    optional: bool = False,
) -> None:
    """Refuse anything but a finite number within bounds."""
    if value is None and optional:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Not `isfinite`, which raises for a large int.
    if not is_number or not abs(value) <= sys.float_info.max or not low <= value <= high:
        bounds = f" from {low:g}" * (low > -math.inf) + f" to {high:g}" * (high < math.inf)
        raise InvalidInput(f"{name} is a finite number{bounds}, got {_shown(value)}")


def check_flag(name: str, value: Any) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is True or False, got {_shown(value)}")


def check_text(name: str, value: Any, *, empty: bool = False, optional: bool = False) -> None:
    """Refuse anything but text that can be saved; `empty` allows ''."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not (value or empty) or not _is_unicode(value):
        raise InvalidInput(f"{name} is text, got {_shown(value)}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST_COUNT:
        return f"a number of {value.bit_length()} bits"  # Python refuses to print very long ones
    return f"{value!r:.200}"
