"""A calculator: one tool, bounded arithmetic."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

import simpleeval

from heldout.environments.tools import ToolEnvironment

Number = int | float

MAX_LENGTH = 1000
"""Characters of an expression."""
MAX_DIGITS = 1000
"""Digits of every whole number in a calculation."""

_MAX = 10**MAX_DIGITS
_NOT_ARITHMETIC = re.compile(r"[^0-9A-Za-z_.+\-*/%(), ]")
_NUMBER = r"(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?"
# Python would read `2(3)` as a call, and warn about `1if`.
_MISSING_OPERATOR = re.compile(rf"(?<![\w.])(?>{_NUMBER}) ?(?=[\w.(])|\) ?(?=[\w.(])")
_HINTS = {
    "^": "powers are written **",
    "×": "write *",
    "·": "write *",
    "÷": "write /",
    "−": "write -",
    "=": "give an expression, not an equation",
    "√": "write sqrt(…)",
    "!": "there is no factorial",
    "$": "give plain numbers",
    "[": "use parentheses",
    "{": "use parentheses",
}


class Calculator(ToolEnvironment):
    """One tool, `calculate`. A turn that does not call it ends the rollout."""

    def __init__(self) -> None:
        super().__init__([calculate], in_threads=False)  # it cannot block

    def snapshot(self) -> dict[str, Any]:
        """Return nothing: a calculator has no state."""
        return {}


class CalculationError(ValueError):
    """An expression that has no value; the message is for the model."""


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses; sqrt, abs, min, max and round
            may be called. For example "(3 + 4) * sqrt(16)".
    """
    return str(evaluate_expression(expression))


def evaluate_expression(expression: str) -> Number:
    """Evaluate an arithmetic expression as Python would.

    Length, nesting and the size of every intermediate number are bounded, so that no expression
    takes long.

    Args:
        expression: What a model wrote; anything.

    Returns:
        The value.

    Raises:
        CalculationError: If there is none, or it is out of bounds.
    """
    if len(expression) > MAX_LENGTH:
        raise CalculationError(
            f"the expression has {len(expression)} characters, more than {MAX_LENGTH}; "
            "calculate it in parts"
        )
    text = " ".join(expression.split())
    _check_characters(text)
    try:
        return _check_number(_EVALUATOR.eval(text, ast.parse(text, mode="eval").body))
    except CalculationError:
        raise
    except simpleeval.NameNotDefined as problem:
        raise CalculationError(
            f"{problem.name!r} is not a number; there are no variables"
        ) from None
    except simpleeval.FunctionNotDefined as problem:
        raise CalculationError(
            f"there is no function {problem.func_name!r}; there are {', '.join(_FUNCTIONS)}"
        ) from None
    except simpleeval.InvalidExpression:
        raise CalculationError(_ONLY_ARITHMETIC) from None
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except OverflowError:
        raise CalculationError("a number in the calculation is too large") from None
    except (RecursionError, MemoryError):
        raise CalculationError(
            "the expression is nested too deeply; calculate it in parts"
        ) from None
    except SyntaxError as problem:
        raise CalculationError(f"{text!r} is not an arithmetic expression: {problem.msg}") from None
    except (TypeError, ValueError) as problem:  # a wrong number of arguments
        raise CalculationError(str(problem).lstrip("_")) from None


def _check_characters(text: str) -> None:
    if not text:
        raise CalculationError("the expression is empty")
    if match := _NOT_ARITHMETIC.search(text):
        hint = _HINTS.get(match[0], "an expression has numbers, + - * / // % ** and parentheses")
        raise CalculationError(f"{match[0]!r} at position {match.start() + 1}: {hint}")
    if match := _MISSING_OPERATOR.search(text):
        raise CalculationError(
            f"{text[match.end()]!r} at position {match.end() + 1}: an operator is missing before it"
        )


def _check_number(value: Any) -> Number:
    if isinstance(value, complex):
        raise CalculationError("the result is not a real number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalculationError(_ONLY_ARITHMETIC)
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("a number in the calculation is too large")
    if isinstance(value, int) and not -_MAX < value < _MAX:
        raise CalculationError(f"a number in the calculation has more than {MAX_DIGITS} digits")
    return value


def _checked(function: Callable[..., Any]) -> Callable[..., Number]:
    def apply(*values: Any) -> Number:
        return _check_number(function(*map(_check_number, values)))

    return apply


def _power(base: Number, exponent: Number) -> Any:
    # Estimated before it is calculated, which could take for ever.
    is_whole = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    if is_whole and (int(base).bit_length() - 1) * exponent >= _MAX.bit_length():
        raise CalculationError(f"the power has more than {MAX_DIGITS} digits")
    return base**exponent


def _sqrt(value: Number) -> float:
    if value < 0:
        raise CalculationError("sqrt of a negative number is not a real number")
    return math.sqrt(value)


def _round(value: Number, digits: Any = None) -> Number:
    if digits is not None and (not isinstance(digits, int) or abs(digits) > MAX_DIGITS):
        raise CalculationError(f"round takes a whole number of digits, at most {MAX_DIGITS}")
    return round(value, digits)


_OPERATORS: dict[type[ast.AST], Callable[..., Number]] = {
    ast.Add: _checked(operator.add),
    ast.Sub: _checked(operator.sub),
    ast.Mult: _checked(operator.mul),
    ast.Div: _checked(operator.truediv),
    ast.FloorDiv: _checked(operator.floordiv),
    ast.Mod: _checked(operator.mod),
    ast.Pow: _checked(_power),
    ast.USub: _checked(operator.neg),
    ast.UAdd: _checked(operator.pos),
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "sqrt": _checked(_sqrt),
    "abs": _checked(abs),
    "min": _checked(lambda *values: min(values)),
    "max": _checked(lambda *values: max(values)),
    "round": _checked(_round),
}
_ONLY_ARITHMETIC = (
    f"only numbers, + - * / // % **, parentheses and {', '.join(_FUNCTIONS)} can be calculated; "
    "write numbers without commas"
)


def _make_evaluator() -> Any:
    """Make an evaluator of arithmetic alone: no texts, attributes, indices or comparisons."""
    evaluator = simpleeval.SimpleEval(_OPERATORS, _FUNCTIONS, names={})
    kinds = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name)
    evaluator.nodes = {kind: evaluator.nodes[kind] for kind in kinds}
    evaluator.nodes[ast.Constant] = lambda node: _check_number(node.value)
    return evaluator


_EVALUATOR = _make_evaluator()
