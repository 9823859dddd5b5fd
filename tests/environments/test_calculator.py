"""The calculator: Python's arithmetic, bounded."""

from __future__ import annotations

import operator
import time
from typing import Any

import pytest
from examples.calculator import CalculationError, Calculator, evaluate_expression
from hypothesis import given
from hypothesis import strategies as st

from heldout import Environment, Message
from heldout.testing import check_environment
from tests.environments.conftest import calling, told


def test_the_calculator_keeps_the_contract() -> None:
    turns: list[str | Message] = [calling(("calculate", '{"expression": "1 + 1"}')), "It is 2."]
    check_environment(Calculator, turns=turns)


def test_a_model_reads_the_value_or_what_is_wrong() -> None:
    assert told(Calculator(), "calculate", '{"expression": "(3 + 4) * sqrt(16)"}') == "28.0"
    said = told(Calculator(), "calculate", '{"expression": "2^3"}')
    assert said.startswith("Error: CalculationError: '2^3' cannot be calculated")
    assert "an expression has numbers without commas, + - * / // % **, parentheses" in said


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-2 ** 2", -4),
        ("2 ** 3 ** 2", 512),
        ("7 // -2", -4),
        ("7 % -3", -2),
        ("10 / 4", 2.5),
        ("1_000 + .5", 1000.5),
        ("1e3", 1000.0),
        ("+-+3", -3),
        ("\n 1\n + 1 ", 2),
        ("min(3, 1, 2) + max(1)", 2),
        ("round(2.567, 2)", 2.57),
        ("round(2.5)", 2),
        ("abs(-3)", 3),
        ("2 ** -1", 0.5),
        ("3 ** -5000", 0.0),
        ("10 ** 999", 10**999),
        (" + ".join(["1"] * 250), 250),
        ("(" * 60 + "1" + ")" * 60, 1),
        ("-" * 100 + "1", 1),
        ("abs(" * 60 + "-1" + ")" * 60, 1),
    ],
)
def test_values_are_those_of_python(expression: str, value: float) -> None:
    assert evaluate_expression(expression) == value


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "cannot be calculated"),
        ("2 × 3", "cannot be calculated"),
        ("x = 3", "cannot be calculated"),
        ("2(3)", "cannot be calculated"),
        ("2x", "cannot be calculated"),
        ("1,000 + 1", "without commas"),
        ("x + 1", "'x' is not defined"),
        ("log(3)", "Function 'log' not defined.*calls of sqrt"),
        ("sqrt(-1)", "cannot be calculated"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt()", "takes exactly one argument"),
        ("round(1, 2, 3)", "takes from 1 to 2"),
        ("round(1, 0.5)", "cannot be calculated"),
        ("round(5, -10000)", "at most 1000 digits"),
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("1 % 0", "division by zero"),
        ("1e400", "too large"),
        ("10.0 ** 400", "too large"),
        ("10 ** 400 / 3", "too large"),
        ("1e300 * 1e300", "too large"),
        ("10 ** 1000", "more than 1000 digits"),
        ("9 ** 9 ** 9", "more than 1000 digits"),
        ("10 ** 999 * 10", "more than 1000 digits"),
        ("1" * 1001, "has 1001 characters"),
        ("(" * 400, "cannot be calculated"),
        ("1 +", "cannot be calculated"),
        ("-" * 999 + "1", "nested too deeply"),
        ("+".join("1" * 500), "nested too deeply"),
        ("sqrt", "is not a number"),
        ("sqrt + 1", "is not a number"),
        ("min()", "empty"),
        ("True", "True is not a number"),
        ("not 1", "cannot be calculated"),
        ("__import__('os')", "cannot be calculated"),
        ("().__class__", "cannot be calculated"),
        ("'a' * 3", "'a' is not a number"),
        ("min(*1)", "cannot be calculated"),
        ("1 < 2", "cannot be calculated"),
        ("1j", "not a real number"),
        ("1__0", "cannot be calculated"),
    ],
)
def test_what_has_no_value_is_explained(expression: str, said: str) -> None:
    with pytest.raises(CalculationError, match=said):
        evaluate_expression(expression)


OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow,
}  # fmt: skip
NUMBERS = st.one_of(
    st.integers(0, 50), st.floats(0, 50, allow_nan=False).map(lambda x: round(x, 3))
)
Tree = Any
TREES: st.SearchStrategy[Tree] = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(sorted(OPERATORS)), inner, inner),
        st.tuples(st.just("neg"), inner),
    ),
    max_leaves=8,
)


def written(tree: Tree) -> str:
    match tree:
        case ("neg", inner):
            return f"(-{written(inner)})"
        case (sign, left, right):
            return f"({written(left)} {sign} {written(right)})"
    return repr(tree)


def worked_out(tree: Tree) -> Any:
    match tree:
        case ("neg", inner):
            return -worked_out(inner)
        case ("**", left, right):
            base, exponent = worked_out(left), worked_out(right)
            if abs(exponent) > 200 or abs(base) > 1e6:
                raise OverflowError
            return base**exponent
        case (sign, left, right):
            return OPERATORS[sign](worked_out(left), worked_out(right))
    return tree


@given(TREES)
def test_it_agrees_with_python_wherever_both_have_a_value(tree: Tree) -> None:
    try:
        expected = worked_out(tree)
    except ArithmeticError:
        return
    try:
        value = evaluate_expression(written(tree))
    except CalculationError as problem:
        # Beyond the bounds, or not real: never just wrong.
        said = str(problem)
        assert any(w in said for w in ("too large", "digits", "real", "nested", "characters"))
        return
    assert value == expected
    assert type(value) is type(expected)


@given(
    st.text(alphabet="0123456789.+-*/%()e, sqrtminaxbound_jJxXoO'\"\\[]{}:=<>!~^&|@", max_size=80)
)
def test_whatever_is_written_has_a_value_or_an_explanation(expression: str) -> None:
    try:
        value = evaluate_expression(expression)
    except CalculationError:
        return
    assert isinstance(value, int | float)
    assert len(str(value)) < 1100


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9**9**9",
        "(9**900)**(9**900)",
        "2**" * 300 + "2",
        "*".join(["9**300"] * 100),
        "round(1, 10**900)",
        "10**900 % (10**450 + 1) ** 2",
        "(" * 499 + "1" + ")" * 499,
    ],
)
def test_nothing_takes_long(expression: str) -> None:
    started = time.process_time()
    try:
        evaluate_expression(expression)
    except CalculationError:
        pass
    assert time.process_time() - started < 1.0


def test_an_environment_is_known_by_isinstance() -> None:
    assert isinstance(Calculator(), Environment)
    assert not isinstance(Message("user", ""), Environment)
