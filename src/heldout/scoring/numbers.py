"""Numbers against numbers: the stated one is compared exactly, or within a tolerance.

How numbers are read, and what is no number, is in `numerals.py`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

from heldout.errors import InvalidInput
from heldout.scoring._old_answers import answer_text, last_statement, shown
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.magnitudes import Decimal, Number
from heldout.scoring.numerals import last_number, only_number, parse_number

_EXACT = 0.0
_NOT_STATED = "no number, or several and none stated as the answer; last=True takes the last number"


def _check(*, absolute: Any = 0.0, relative: Any = 0.0, decimal: Any = ".", **_: object) -> None:
    for name, value in (("absolute", absolute), ("relative", relative)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and 0 <= value < math.inf):
            raise InvalidInput(f"a tolerance is a number from 0 on, got {name}={value!r:.100}")
    if decimal not in (".", ","):
        raise InvalidInput(f"decimal is '.' or ',', got {decimal!r:.100}")


@grader(version=1, check=_check)
def grade_number(
    answer: str | None,
    target: float | str | Fraction,
    *,
    absolute: float = _EXACT,
    relative: float = _EXACT,
    last: bool = False,
    decimal: Decimal = ".",
) -> Grade:
    """1.0 where the stated number is the target, within a tolerance.

    The last stated number counts; where nothing is stated, a text's only number does, and with
    `last` its last one, whatever the text says about it. What is stated has to be a number, with a
    unit or a remark: an expression, a bound, a choice of two or a denial is none. `50%` is 50 and
    also 0.5; a tolerance is for the one of these that is nearer to the target by ratio. A target is
    a number, or a text that is one or states one (`… #### 7`); one that is a float with decimals
    carries rounding, so it is met to nine digits. `decimal` says how `1,234` and `1.234` are meant,
    in answer and target; `3,5` is 3.5 either way, but for a box, where it is a pair by default.
    """
    wanted = _wanted(target, absolute, relative, decimal)
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    statement = last_statement(text)
    if statement:
        found = None
        if statement.value:
            found = parse_number(statement.value, decimal=decimal, latex=statement.kind == "box")
        if found is None:
            return Grade(0.0, None, f"no single number in what is stated: {statement.value!r:.200}")
    else:
        found = (last_number if last else only_number)(text, decimal=decimal)
        if found is None:
            return Grade(0.0, None, _NOT_STATED if not last else "no number, or a bound on one")
    if isinstance(target, float) and not target.is_integer():
        relative = max(relative, 1e-9)
    value = same_number(found, wanted, absolute=absolute, relative=relative)
    return Grade(float(value), shown(found.text))


def same_number(
    found: Number, wanted: Number, *, absolute: float = 0.0, relative: float = 0.0
) -> bool:
    """Whether two numbers are the same within `absolute`, or `relative` to the wanted one.

    Where only one of them is a percentage, it is read as written or as hundredths; a tolerance is
    for the one of these readings that is nearer, by the ratio of the two, to what is wanted.
    """
    if found.percent == wanted.percent:
        return _close(found.value, wanted.value, absolute, relative)
    if found.value == wanted.value:
        return True
    ratio = Fraction(1, 100) if found.percent else Fraction(100)
    if found.value * ratio == wanted.value:
        return True
    if not absolute and not relative:
        return False
    if _is_hundredths(found, wanted):
        return _close(found.value * ratio, wanted.value, absolute, relative)
    return _close(found.value, wanted.value, absolute, relative)


def _is_hundredths(found: Number, wanted: Number) -> bool:
    """Whether 0.3 is compared with 30%, rather than 30: what is no percentage is less than ten of
    what it would be as written."""
    share, plain = (found, wanted) if found.percent else (wanted, found)
    return abs(plain.value) * 10 < abs(share.value) and plain.value != 0


def _close(one: Fraction, other: Fraction, absolute: float, relative: float) -> bool:
    if one == other:
        return True
    if not absolute and not relative:
        return False
    allowed = max(Fraction(repr(absolute)), Fraction(repr(relative)) * abs(other))
    return abs(one - other) <= allowed


def _wanted(target: Any, absolute: float, relative: float, decimal: Decimal) -> Number:
    """The target as a number, once everything that was given is known to make sense."""
    if not (absolute is relative is _EXACT) or decimal != ".":
        _check(absolute=absolute, relative=relative, decimal=decimal)
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
