"""Numbers against numbers: the stated one is compared exactly, or within a tolerance.

How numbers are read, and what is no number, is in `numerals.py`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, last_statement, shown
from heldout.scoring.grades import Grade, grader
from heldout.scoring.numerals import Decimal, Number, last_number, only_number, parse_number


@grader(version=1)
def grade_number(
    answer: str | None,
    target: float | str | Fraction,
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
    last: bool = False,
    decimal: Decimal = ".",
) -> Grade:
    """1.0 where the stated number is the target, within a tolerance.

    The last stated number counts; where nothing is stated, a text's only number does, and with
    `last` its last one. `50%` is 50 and also 0.5. A target is a number, or a text that is one or
    states one (`… #### 7`); one that is a float with decimals carries rounding, so it is met to
    nine digits. `decimal` says how `1,234` and `1.234` are meant, in answer and target.
    """
    wanted = _wanted(target, absolute, relative, decimal)
    text = answer_text(answer)
    if text is None:
        return Grade(0.0, None, "no answer")
    statement = last_statement(text)
    if statement:
        found = parse_number(statement.value, decimal=decimal) if statement.value else None
        if found is None:
            return Grade(0.0, None, f"no single number in what is stated: {statement.value!r:.200}")
    else:
        found = (last_number if last else only_number)(text, decimal=decimal)
        if found is None:
            return Grade(0.0, None, "no number, or several and none stated as the answer")
    if isinstance(target, float) and not target.is_integer():
        relative = max(relative, 1e-9)
    value = same_number(found, wanted, absolute=absolute, relative=relative)
    return Grade(float(value), shown(found.text))


def same_number(
    found: Number, wanted: Number, *, absolute: float = 0.0, relative: float = 0.0
) -> bool:
    """Whether two numbers are the same within `absolute`, or `relative` to the wanted one."""
    if _close(found.value, wanted.value, absolute, relative):
        return True
    if found.percent and not wanted.percent:
        return _close(found.value / 100, wanted.value, absolute, relative)
    if wanted.percent and not found.percent:
        return _close(found.value, wanted.value / 100, absolute, relative)
    return False


def _close(one: Fraction, other: Fraction, absolute: float, relative: float) -> bool:
    if one == other:
        return True
    if not absolute and not relative:
        return False
    allowed = max(Fraction(repr(absolute)), Fraction(repr(relative)) * abs(other))
    return abs(one - other) <= allowed


def _wanted(target: Any, absolute: float, relative: float, decimal: Decimal) -> Number:
    """The target as a number, once everything that was given is known to make sense."""
    if not (0 <= absolute < math.inf and 0 <= relative < math.inf):
        raise InvalidInput(
            f"a tolerance is a number from 0 on, got absolute={absolute!r}, relative={relative!r}"
        )
    if decimal not in (".", ","):
        raise InvalidInput(f"decimal is '.' or ',', got {decimal!r:.100}")
    if isinstance(target, bool) or not isinstance(target, int | float | str | Fraction):
        raise InvalidInput(
            f"the target (ground_truth) is a number, or a text that is one, got {target!r:.100}"
        )
    return _target(target, decimal)


@lru_cache(maxsize=1024)
def _target(target: float | str | Fraction, decimal: Decimal) -> Number:
    if isinstance(target, str):
        stated = last_statement(target)
        found = parse_number(stated.value if stated and stated.value else target, decimal=decimal)
        if found is None:
            raise InvalidInput(f"the target {target!r:.200} is not a number; give the number alone")
        return found
    if isinstance(target, float) and not math.isfinite(target):
        raise InvalidInput(f"the target is {target}; no answer equals that")
    exact = Fraction(repr(target)) if isinstance(target, float) else Fraction(target)
    return Number(exact, False, str(target))
