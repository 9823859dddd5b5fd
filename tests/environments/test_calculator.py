"""The calculator of the examples: Python's arithmetic, bounded."""

from __future__ import annotations

import time
from contextlib import suppress

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
    assert isinstance(Calculator(), Environment)
    assert not isinstance(Message("user", ""), Environment)


def test_a_model_reads_the_value_or_what_is_wrong() -> None:
    assert told(Calculator(), "calculate", '{"expression": "(3 + 4) * sqrt(16)"}') == "28.0"
    said = told(Calculator(), "calculate", '{"expression": "2^3"}')
    assert said.startswith("Error: CalculationError: '2^3' cannot be calculated")
    assert "an expression has numbers without commas, + - * / // % **, parentheses" in said


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-2 ** 2 + 7 // -2 * (7 % -3)", 4),
        ("2 ** 3 ** 2", 512),
        ("\n 1_000\n + 10 / 4 ", 1002.5),
        ("min(3, 1, 2) + max(1) + abs(-3) + round(2.567, 2)", 7.57),
        ("3 ** -5000", 0.0),
        ("10 ** 999", 10**999),
        (" + ".join(["1"] * 250), 250),
        ("(" * 60 + "1" + ")" * 60, 1),
    ],
)
def test_values_are_those_of_python(expression: str, value: float) -> None:
    assert evaluate_expression(expression) == value


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("", "cannot be calculated"),
        ("2 × 3", "cannot be calculated"),
        ("1,000 + 1", "without commas"),
        ("x + 1", "'x' is not defined"),
        ("log(3)", "Function 'log' not defined.*calls of sqrt"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt()", "takes exactly one argument"),
        ("round(5, -10000)", "at most 1000 digits"),
        ("0 ** -1", "division by zero"),
        ("10 ** 400 / 3", "too large"),
        ("9 ** 9 ** 9", "more than 1000 digits"),
        ("10 ** 999 * 10", "more than 1000 digits"),
        ("1" * 1001, "has 1001 characters"),
        ("-" * 999 + "1", "nested too deeply"),
        ("sqrt + 1", "is not a number"),
        ("True", "True is not a number"),
        ("'a' * 3", "'a' is not a number"),
        ("__import__('os')", "cannot be calculated"),
        ("().__class__", "cannot be calculated"),
    ],
)
def test_what_has_no_value_is_explained(expression: str, said: str) -> None:
    with pytest.raises(CalculationError, match=said):
        evaluate_expression(expression)


@given(
    st.text(alphabet="0123456789.+-*/%()e, sqrtminaxbound_jJxXoO'\"\\[]{}:=<>!~^&|@", max_size=80)
)
def test_whatever_is_written_has_a_value_or_an_explanation(expression: str) -> None:
    with suppress(CalculationError):
        value = evaluate_expression(expression)
        assert isinstance(value, int | float)
        assert len(str(value)) < 1100


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9**9**9",
        "(9**900)**(9**900)",
        "*".join(["9**300"] * 100),
        "round(1, 10**900)",
        "(" * 499 + "1" + ")" * 499,
    ],
)
def test_nothing_takes_long(expression: str) -> None:
    started = time.process_time()
    with suppress(CalculationError):
        evaluate_expression(expression)
    assert time.process_time() - started < 1.0
