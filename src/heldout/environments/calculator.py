"""A calculator: one tool, arithmetic only, and nothing a model writes can hang it.

The expression is parsed with `ast` and never evaluated as Python. Length, nesting and the size of
every number on the way are bounded.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any, Self

from heldout.environments.tools import ToolEnvironment

Number = int | float

MAX_LENGTH = 1000
"""Characters of an expression."""
MAX_NESTING = 50
MAX_DIGITS = 1000
"""Of any whole number on the way to the result."""

_MAX = 10**MAX_DIGITS
_TOKEN = re.compile(
    r"(?P<number>(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\*\*|//|[-+*/%(),]"
)
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

    env_kind = "calculator"
    version = "1.0"

    def __init__(self) -> None:
        # It cannot take long, so a thread would only cost time.
        super().__init__([calculate], in_threads=False)

    def state(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        return cls()


class CalculationError(ValueError):
    """What is wrong with an expression, for the model to read."""


def calculate(expression: str) -> str:
    """Work out an arithmetic expression and return its value.

    Args:
        expression: Numbers with + - * / // % ** and parentheses; sqrt, abs, min, max and round
            may be called. For example "(3 + 4) * sqrt(16)".
    """
    return str(value_of(expression))


def value_of(expression: str) -> Number:
    """The value of an expression, as Python has it; `CalculationError` where it has none."""
    if len(expression) > MAX_LENGTH:
        raise CalculationError(
            f"the expression is {len(expression)} characters long; at most {MAX_LENGTH} are "
            "taken, so work it out in parts"
        )
    text = " ".join(expression.split())
    _check_tokens(text)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as problem:
        said = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        raise CalculationError(f"{text!r} is not an arithmetic expression: {said}") from None
    try:
        return _evaluate(tree.body, 0)
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except OverflowError:
        raise CalculationError("a number on the way is too large") from None


def _check_tokens(text: str) -> None:
    """Refuse what is no arithmetic before Python's parser gets to see it."""
    if not text:
        raise CalculationError("the expression is empty")
    position, before = 0, ""
    while position < len(text):
        if text[position] == " ":
            position += 1
            continue
        match = _TOKEN.match(text, position)
        if match is None:
            odd = text[position]
            hint = _HINTS.get(odd, "an expression has numbers, + - * / // % ** and parentheses")
            raise CalculationError(f"{odd!r} at position {position + 1}: {hint}")
        # `1if` and the like make Python warn, and `2(3)` is a call to it.
        follows = match.lastgroup or match[0]
        if before in ("number", ")") and follows in ("number", "name", "("):
            raise CalculationError(
                f"{match[0]!r} at position {position + 1}: an operator is missing before it"
            )
        position, before = match.end(), follows


def _evaluate(node: ast.expr, nesting: int) -> Number:
    if nesting > MAX_NESTING:
        raise CalculationError(f"more than {MAX_NESTING} levels of nesting; work it out in parts")
    # A long sum is a deep tree to the left, though nobody would call it nested.
    chain: list[ast.BinOp] = []
    while isinstance(node, ast.BinOp):
        chain.append(node)
        node = node.left
    value = _operand(node, nesting)
    for step in reversed(chain):
        operation = _OPERATORS.get(type(step.op))
        if operation is None:
            raise CalculationError("only + - * / // % ** are known")
        value = _bounded(operation(value, _evaluate(step.right, nesting + 1)))
    return value


def _operand(node: ast.expr, nesting: int) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _evaluate(operand, nesting + 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            if name not in _FUNCTIONS:
                raise CalculationError(
                    f"there is no function {name!r}; there are {', '.join(_FUNCTIONS)}"
                )
            values = [_evaluate(argument, nesting + 1) for argument in args]
            return _bounded(_FUNCTIONS[name](values))
        case ast.Name(id=name):
            raise CalculationError(f"{name!r} is not a number; there are no variables")
        case ast.Tuple():
            raise CalculationError("write numbers without commas: 1000, not 1,000")
    raise CalculationError(
        f"only numbers, + - * / // % **, parentheses and {', '.join(_FUNCTIONS)} can be worked out"
    )


def _bounded(value: Any) -> Number:
    if isinstance(value, complex):
        raise CalculationError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise CalculationError("a number on the way is too large")
    if isinstance(value, int) and not -_MAX < value < _MAX:
        raise CalculationError(f"a number on the way has more than {MAX_DIGITS} digits")
    return value  # type: ignore[no-any-return]


def _power(base: Number, exponent: Number) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    # Known before it is worked out, which could take for ever.
    if whole and (int(base).bit_length() - 1) * exponent >= _MAX.bit_length():
        raise CalculationError(f"the power has more than {MAX_DIGITS} digits")
    return base**exponent


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}


def _sqrt(values: list[Number]) -> Number:
    _count("sqrt", values, 1, 1)
    if values[0] < 0:
        raise CalculationError("sqrt of a negative number is not a real number")
    return math.sqrt(values[0])


def _abs(values: list[Number]) -> Number:
    _count("abs", values, 1, 1)
    return abs(values[0])


def _min(values: list[Number]) -> Number:
    _count("min", values, 1, MAX_LENGTH)
    return min(values)


def _max(values: list[Number]) -> Number:
    _count("max", values, 1, MAX_LENGTH)
    return max(values)


def _round(values: list[Number]) -> Number:
    _count("round", values, 1, 2)
    if len(values) == 1:
        return round(values[0])
    digits = values[1]
    if not isinstance(digits, int) or abs(digits) > MAX_DIGITS:
        raise CalculationError(
            f"the second argument of round is a whole number of digits, at most {MAX_DIGITS}"
        )
    return round(values[0], digits)


def _count(name: str, values: list[Number], low: int, high: int) -> None:
    if not low <= len(values) <= high:
        wanted = f"{low}" if low == high else f"{low} or more" if high > 2 else f"{low} or {high}"
        raise CalculationError(f"{name} takes {wanted} arguments, got {len(values)}")


_FUNCTIONS: dict[str, Callable[[list[Number]], Number]] = {
    "sqrt": _sqrt,
    "abs": _abs,
    "min": _min,
    "max": _max,
    "round": _round,
}
