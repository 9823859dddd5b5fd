"""A calculator for models to call: one tool, bounded arithmetic. It needs simpleeval."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import simpleeval

from heldout.environment import make_snapshot
from heldout.environments import ToolEnvironment

MAX_LENGTH = 1000
"""Characters of an expression."""
MAX_DIGITS = 1000
"""Digits of every whole number in a calculation."""

_MAX = 10**MAX_DIGITS
_ALLOWED = (
    "an expression has numbers without commas, + - * / // % **, parentheses, and calls of sqrt, "
    "abs, min, max and round"
)


class Calculator(ToolEnvironment):
    """One tool, `calculate`. A turn that does not call it ends the rollout."""

    env_kind = "calculator"
    version = "1.0"

    def __init__(self) -> None:
        super().__init__([calculate], in_threads=False)  # it cannot block

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot of nothing: a calculator has no state."""
        return make_snapshot(self, {})


class CalculationError(ValueError):
    """An expression that has no value; the message is for the model."""


def calculate(expression: str) -> str:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / // % ** and parentheses; sqrt, abs, min, max and round
            may be called. For example "(3 + 4) * sqrt(16)".
    """
    return str(evaluate_expression(expression))


def evaluate_expression(expression: str) -> int | float:
    """Evaluate an arithmetic expression as Python would.

    Length, nesting and the size of every intermediate number are bounded, so that no expression
    takes long.

    Raises:
        CalculationError: If there is no value, or it is out of bounds.
    """
    if len(expression) > MAX_LENGTH:
        raise CalculationError(
            f"the expression has {len(expression)} characters, more than {MAX_LENGTH}; "
            "calculate it in parts"
        )
    text = " ".join(expression.split())
    try:
        return _check_number(_EVALUATOR.eval(text, ast.parse(text, mode="eval").body))
    except CalculationError:
        raise
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except OverflowError:
        raise CalculationError("a number in the calculation is too large") from None
    except (RecursionError, MemoryError):
        raise CalculationError(
            "the expression is nested too deeply; calculate it in parts"
        ) from None
    except (simpleeval.InvalidExpression, SyntaxError, TypeError, ValueError) as problem:
        reason = problem.msg if isinstance(problem, SyntaxError) else problem
        raise CalculationError(f"{text!r} cannot be calculated ({reason}); {_ALLOWED}") from None


def _check_number(value: Any) -> int | float:
    if isinstance(value, complex):
        raise CalculationError("the result is not a real number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CalculationError(f"{value!r:.40} is not a number; {_ALLOWED}")
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("a number in the calculation is too large")
    if isinstance(value, int) and not -_MAX < value < _MAX:
        raise CalculationError(f"a number in the calculation has more than {MAX_DIGITS} digits")
    return value


def _checked(function: Callable[..., Any]) -> Callable[..., int | float]:
    return lambda *values: _check_number(function(*map(_check_number, values)))


def _power(base: int | float, exponent: int | float) -> Any:
    # Estimated before it is calculated, which could take for ever.
    is_whole = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    if is_whole and (int(base).bit_length() - 1) * exponent >= _MAX.bit_length():
        raise CalculationError(f"the power has more than {MAX_DIGITS} digits")
    return base**exponent


def _round(value: int | float, digits: int | None = None) -> int | float:
    if digits is not None and abs(digits) > MAX_DIGITS:
        raise CalculationError(f"round takes at most {MAX_DIGITS} digits")
    return round(value, digits)


def _make_evaluator() -> Any:
    """Make an evaluator of arithmetic alone: no texts, attributes, indices or comparisons."""
    kinds = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd)
    operators = {kind: simpleeval.DEFAULT_OPERATORS[kind] for kind in kinds} | {ast.Pow: _power}
    functions: dict[str, Callable[..., Any]] = {
        "sqrt": math.sqrt,
        "abs": abs,
        "min": lambda *values: min(values),
        "max": lambda *values: max(values),
        "round": _round,
    }
    evaluator = simpleeval.SimpleEval(
        {kind: _checked(function) for kind, function in operators.items()},
        {name: _checked(function) for name, function in functions.items()},
        names={},
    )
    nodes = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name)
    evaluator.nodes = {kind: evaluator.nodes[kind] for kind in nodes}
    evaluator.nodes[ast.Constant] = lambda node: _check_number(node.value)
    return evaluator


_EVALUATOR = _make_evaluator()
