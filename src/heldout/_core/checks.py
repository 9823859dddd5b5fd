"""Checks of single values where a user's settings come in: InvalidInput says what is expected.

None is refused unless `optional`; True and False do not count as numbers.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from heldout.errors import InvalidInput

LARGEST_COUNT = 2**63 - 1
"""What JSON of a run directory, and `itertools`, can hold."""


def check_count(name: str, value: Any, *, low: int, optional: bool = False) -> None:
    """Refuse anything but a whole number within bounds."""
    if value is None and optional:
        return
    is_count = isinstance(value, int) and not isinstance(value, bool)
    if not is_count or not low <= value <= LARGEST_COUNT:
        raise InvalidInput(f"{name} must be a whole number >= {low}, got {_shown(value)}")


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
        raise InvalidInput(f"{name} must be a finite number{bounds}, got {_shown(value)}")


def check_flag(name: str, value: Any) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} must be True or False, got {_shown(value)}")


def check_text(name: str, value: Any, *, empty: bool = False, optional: bool = False) -> None:
    """Refuse anything but text that can be saved; `empty` allows ''."""
    if value is None and optional:
        return
    if not isinstance(value, str) or not (value or empty) or not _is_unicode(value):
        raise InvalidInput(f"{name} must be text, got {_shown(value)}")


def refuse_unknown(
    name: str, known: Iterable[str], *, function: str, other_names: Mapping[str, str]
) -> NoReturn:
    """Refuse a setting that does not exist, and name the one that is meant.

    Args:
        name: The setting as it was given.
        known: The settings there are.
        function: What it was passed to.
        other_names: What is meant by names that other tools have.

    Raises:
        InvalidInput: Always.
    """
    known = [*known]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    meant = other_names.get(name) or (near[0] if near else None)
    if meant:
        hint = f"did you mean {meant}?"
        raise InvalidInput(f"{function}: there is no setting {name!r}", hint=hint)
    raise InvalidInput(f"{function}: there is no setting {name!r}; there are {', '.join(known)}")


def check_texts(name: str, value: Any) -> tuple[str, ...]:
    """Return texts as a tuple: None is no text, one text a tuple of one; refuse anything else."""
    if value is None:
        return ()
    if not isinstance(value, str | list | tuple | set | frozenset):
        raise InvalidInput(f"{name} must be a list of texts, got {_shown(value)}")
    texts = (value,) if isinstance(value, str) else tuple(value)
    for text in texts:
        check_text(f"each of {name}", text)
    return texts


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
