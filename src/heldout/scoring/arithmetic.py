"""What a calculation on digits comes to: `48/2 + 24`, `3 × $6`, `25% of 80`, and nothing else.

It is only ever compared with the number that stands behind its `=`: where the two are not the
same, what was meant is not known.
"""

from __future__ import annotations

import re
from fractions import Fraction

from heldout.scoring.magnitudes import Number

_LONGEST = 200  # characters of a calculation
_TOKEN = re.compile(
    r"\s*(?:(\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?![\w])(\\?%)?|(\\times|\\cdot|\\div|\*\*|[-+−–*/×·⋅÷^()])"
    r"|\\[dtc]?frac\s?\{(\d{1,30})\}\s?\{(\d{1,30})\}|(\\?[$€£]|\\[,;! ]|[{}])|([^\W\d_]+))"
)
_SAME = {"\\times": "*", "\\cdot": "*", "×": "*", "·": "*", "⋅": "*", "\\div": "/", "÷": "/"}
_SAME |= {"−": "-", "–": "-", "**": "^", "of": "*", "x": "*", "times": "*", "plus": "+"}
_SAME |= {"minus": "-", "X": "*"}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}

Token = str | Fraction


def calculated(text: str) -> Fraction | None:
    """The value of a calculation; None where it is none, or has variables in it."""
    tokens = _tokens(text.strip(" *_$(\n")) if text.count("(") != text.count(")") else _tokens(text)
    if not tokens:
        return None
    try:
        value, at = _sum(tokens, 0, 0)
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return value if at == len(tokens) else None


def agrees(value: Fraction, number: Number) -> bool:
    """Whether a number is that value, or that value rounded to the decimals it has."""
    if number.percent and value == number.value / 100:
        return True
    decimals = len(number.text.rstrip("% \\").partition(".")[2])
    allowed = Fraction(1, 2 * 10**decimals) if 0 < decimals < 30 else 0
    return abs(value - number.value) <= allowed


def _tokens(text: str) -> list[Token] | None:
    tokens: list[Token] = []
    at, text = 0, text.strip()
    if len(text) > _LONGEST:
        return None
    while at < len(text):
        found = _TOKEN.match(text, at)
        if not found:
            return None
        at = found.end()
        digits, percent, operator, above, below, _, word = found.groups()
        if digits:
            value = Fraction(digits.replace(",", ""))
            tokens.append(value / 100 if percent else value)
        elif above:
            if not int(below):
                return None
            tokens.append(Fraction(int(above), int(below)))
        elif operator or word in _SAME:
            tokens.append(_SAME.get(operator or word, operator))
        elif word and len(word) == 1:
            return None  # a variable; longer words are units
    return tokens


def _sum(tokens: list[Token], at: int, binding: int) -> tuple[Fraction, int]:
    """What stands at a place, with all behind it that binds stronger than what is before it."""
    value, at = _operand(tokens, at)
    while at < len(tokens):
        operator = tokens[at]
        if not isinstance(operator, str) or _BINDS.get(operator, 0) <= binding:
            break
        right, at = _sum(tokens, at + 1, _BINDS[operator] - (operator == "^"))
        value = _applied(operator, value, right)
    return value, at


def _operand(tokens: list[Token], at: int) -> tuple[Fraction, int]:
    token = tokens[at]
    if isinstance(token, Fraction):
        return token, at + 1
    if token == "-":
        value, at = _sum(tokens, at + 1, 2)
        return -value, at
    if token != "(":
        raise ValueError(token)
    value, at = _sum(tokens, at + 1, 0)
    if tokens[at] != ")":
        raise ValueError(tokens[at])
    return value, at + 1


def _applied(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/":
        return left / right
    if right.denominator != 1 or abs(right) > 64 or max(map(abs, left.as_integer_ratio())) > 10**6:
        raise ValueError(right)
    return Fraction(left**right.numerator)
