"""Numbers as they are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring import part
from heldout.scoring.number import grade_number, last_number, parse_number
from tests.scoring.examples import Example, wrong_rows
from tests.scoring.examples.number import LAST_NUMBERS, NUMBERS


def value(text: str, decimal: str = ".") -> Fraction | None:
    number = parse_number(text, decimal="," if decimal == "," else ".")
    return number.value if number else None


@pytest.mark.parametrize("table", [NUMBERS, LAST_NUMBERS], ids=["numbers", "last numbers"])
def test_numbers_are_graded_as_their_table_says(table: Sequence[Example]) -> None:
    assert wrong_rows(table, grade_number) == []


def test_separators_are_read_by_the_locale_where_one_is_given() -> None:
    assert value("1.234") == Fraction("1.234")
    assert value("1.234", ",") == 1234
    assert value("1,234") == 1234
    assert value("1,234", ",") == Fraction("1.234")
    assert value("1 234 567") == 1234567
    assert grade_number("1\u202f234\u202f567", 1234567).value == 1.0
    assert value(r"1{,}234") == value(r"1\,234") == 1234


NO_NUMBERS = {
    "separators in senseless places": (
        *("1,23,4", "1.2.3", "192.168.0.1", "1,234.5.6", "1.23,456,7", "3:30", "2024-05-01"),
    ),
    "would have to be calculated": (
        *("3 + 4", "5x", r"3\pi", "5 pi", "√2", "±3", "1/2/3", "5/0", "(1,5)", "5 feet 7", "2x3"),
        *("π/4", r"\frac{a}{2}", r"0.\overline{3}", "0.(3)", "1011_2", "-(5)", "--5", "5 squared"),
        *("2-2/3", "0x1F", "5 ± 2", "2 x 3"),
    ),
    "an expression": (
        *("x+2", "x - 2", r"\ln 2", r"\ln(2)", r"\sin 30", r"\log_2 8", "e^{2}", "a_{2}"),
        *("3a", "3(x+1)", "3/x", r"3\cdot x", "3·x", "x*3", r"5 \bmod 2", "5 mod 2", "f(3)"),
        *(r"\pi 3", "0.333...", r"2\sqrt{3}", "x ≠ 7", "x != 7"),
    ),
    "may mean two things": (
        *("x = 4 or x = -4", "5; 6", "5 6", "5 (or 6)", "3 out of 5", "3 : 5", "(555) 123-4567"),
        *("between 3 and 5", "1 May 2024", "2 hours 30 minutes", "5 for Tom and 7 for Ann"),
        *("18 | 19", "18 maybe 19", "18 (19)", "18 → 20", r"18 \text{ or } 19"),
        *(r"18 \lor 19", "18 ~ 20", "18 < 19", "18\n19", r"18 \quad 19", "18 but possibly 19"),
        *("5 if odd, 7 if even", "the value at x = 2 is 5", "+1 555 123 4567", r"\{1,2\}"),
        *("x = 4, y = 7", "x = 4 and y = 7", "7 = 2x - 1 + 3", "five or six"),
    ),
    "a scale that is not clear": ("$3M", "200k", "300万", "3百万", "five apples", "a dozen"),
    "would fill the memory": ("1e999999999", "9^999", "10^99999", "1 × 10^9999", "9" * 500),
}


@pytest.mark.parametrize("why", NO_NUMBERS)
def test_what_is_no_number_is_not_read_as_one(why: str) -> None:
    assert [text for text in NO_NUMBERS[why] if value(text) is not None] == []


def test_a_sign_that_makes_it_a_bound_leaves_no_number() -> None:
    for text in ("> 5", "x > 5", "x >= 5", "x ≤ 5"):
        assert value(text) is None, text
        assert grade_number(f"So it must be {text}", 5).extracted is None, text
    assert value("which adds up to 5") == 5


def test_a_denial_is_no_number() -> None:
    for text in ("It can't be 5.", "I don't think it is 5"):
        assert value(text) is None, text
        assert last_number(text) is None, text
    assert value("12, not 20") == 12


def test_an_equation_is_what_stands_behind_its_last_sign() -> None:
    for text in (
        *("x = 7", "the total = $7", "f(2) = 7", "a_3 = 7", r"\theta = 7^\circ", "3 + 4 = 7"),
        *("x = 3 + 4 = 7", "14/2 = 7", "(10 - 3) × 1 = 7", "70% of 10 = 7"),
        *("$3.50 per day x 2 days = $7", r"2 \cdot 3 + 1 = 7", "A = πr² = 7", "2x + 3 = 7"),
    ):
        assert value(text) == 7, text
    assert value("100/3 = 33.33") == Fraction("33.33")
    assert value("3/12 = 25%") == 25


def test_a_number_in_words_is_one_where_it_is_all_there_is() -> None:
    assert (value("five"), value("Twelve"), value("minus eight")) == (5, 12, -8)
    assert (value("7 (seven)"), value("seven (7)")) == (7, 7)
    assert grade_number("Eight.", 8).value == 1.0


def test_a_comma_that_separates_no_thousands_makes_no_number_unless_told_otherwise() -> None:
    assert grade_number(r"\boxed{3,5}", 3.5).value == 0.0
    assert grade_number(r"\boxed{3,5}", 3.5, decimal=",").value == 1.0
    assert grade_number(r"\boxed{100,200}", 100200).value == 1.0
    assert grade_number("Answer: 3,5", 3.5).extracted is None


def test_a_tolerance_holds_for_both_readings_of_a_percentage() -> None:
    assert grade_number("Answer: 30%", 0.31, relative=0.1).value == 1.0
    assert grade_number("Answer: 30%", 31, absolute=1).value == 1.0
    assert grade_number("Answer: 0.31", "30%", absolute=1).value == 1.0
    assert grade_number("Answer: 30%", 0.5, relative=0.1).value == 0.0


def test_powers_fractions_and_scales_are_read_in_all_their_spellings() -> None:
    for text in ("3.0 × 10^8 m/s", r"3.0 \times 10^{8}", "3×10⁸", "3e8", "3.0·10^8", "3*10**8"):
        assert value(text) == 300_000_000, text
    for text in ("1.6 × 10⁻³ C", "1.6 × 10^(-3)", "1.6*10^-3", r"1.6 \cdot 10^{-3}", "1.6E-3"):
        assert value(text) == Fraction("0.0016"), text
    assert (value("10^-3"), value("10⁶")) == (Fraction(1, 1000), 1_000_000)
    for text in (r"\frac{3}{4}", r"\frac34", "¾", "3/4", "3⁄4", "0.75", r"\dfrac{3}{4}"):
        assert value(text) == Fraction(3, 4), text
    for text in (r"3\frac{1}{2}", "3 1/2", "3½", "3 and 1/2"):
        assert value(text) == Fraction(7, 2), text
    for text in (*("3 Million", "3 MILLION", "3 millions", r"3\text{ million}", "0.003 billion"),):
        assert value(text) == 3_000_000, text
    assert (value("200 thousand"), value("50 Percent")) == (200_000, 50)


def test_units_do_not_change_the_number_before_them() -> None:
    for text in (r"3\text{ m}", r"3\,\mathrm{m/s}", r"3~\text{cm}^2", r"\text{3 apples}", r"x = 3"):
        assert value(text) == 3, text
    for unit in ("m^2", "m/s^2", "m²", r"\text{ cm}^2", r"^\circ", "km/h", "H2O", "mol^-1", "°C"):
        assert value(f"10 {unit}") == 10, unit


def test_an_explanation_is_not_the_number() -> None:
    for text in (
        *("12, because there are 3 boxes", "12 since 3 × 4 = 12", "12 (where 1 box = 4)"),
        *("12 when x = 2", "12, not 20", "12 (3 × 4 = 12)", "3 × 4 = 12"),
    ):
        assert value(text) == 12, text


def test_tolerances_are_absolute_or_relative_to_the_target() -> None:
    assert grade_number("Answer: 0.333", 1 / 3).value == 0.0
    assert grade_number("Answer: 0.333", 1 / 3, relative=0.01).value == 1.0
    assert grade_number("Answer: 1/3", 1 / 3).value == 1.0
    assert grade_number("Answer: 99", 100, absolute=1).value == 1.0
    assert grade_number("Answer: 98.99", 100, absolute=1).value == 0.0
    assert grade_number("Answer: 0.3", 0.1 + 0.2).value == 1.0


def test_a_target_that_is_no_number_is_refused() -> None:
    for target in ("many", "5 or 7", math.nan, math.inf, None, True, [5], {"answer": 5}):
        with pytest.raises(InvalidInput, match="target"):
            grade_number("Answer: 5", target)  # type: ignore[arg-type]


def test_senseless_options_are_refused() -> None:
    for options in ({"absolute": -1}, {"relative": math.nan}, {"decimal": ";"}):
        with pytest.raises(InvalidInput):
            grade_number("Answer: 5", 5, **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput):
            part(grade_number, **options)


def test_only_what_is_stated_counts_where_that_is_asked_for() -> None:
    assert grade_number("7 + 4 = 11", 11).value == 1.0
    grade = grade_number("7 + 4 = 11", 11, last=False)
    assert (grade.value, grade.note) == (0.0, "no number is stated; last=True takes the last")
    assert grade_number("The answer is 11.", 11, last=False).value == 1.0


def test_what_is_stated_and_holds_a_number_is_not_passed_over() -> None:
    for answer in (
        "Answer: 5. Answer: 6 or 7",
        r"Answer: 5, so \boxed{x+2}",
        r"\boxed{5} \boxed{5",
    ):
        assert grade_number(answer, 5).value == 0.0, answer
    for answer in ("Answer: 5. Answer: even", "#### 5\nThe answer is less than 7."):
        assert grade_number(answer, 5).value == 1.0, answer


def test_an_arrow_is_no_bound() -> None:
    assert grade_number("2 * 6 => 12", 12).value == 1.0
    assert grade_number("The answer is equal to 12.\n\nConfidence: 95%", 12).value == 1.0


def test_no_answer_is_graded_as_none() -> None:
    for answer in (None, "", "  ", "<think>5"):
        assert grade_number(answer, 5).note == "no answer"


def test_a_target_may_be_a_worked_solution() -> None:
    assert grade_number("Answer: 7", "3 + 4 = 7\n#### 7").value == 1.0


@given(st.integers(), st.sampled_from(["{}", "{:,}", "${:,}.00", "{} km", "about {}"]))
def test_a_whole_number_is_read_back_however_it_is_written(number: int, form: str) -> None:
    if abs(number) < 10**100:
        assert value(form.format(number)) == number
        assert value(form.format(number).replace("-", "−")) == number


@given(st.decimals(min_value=-(10**9), max_value=10**9, places=3))
def test_a_decimal_number_is_read_back_in_either_locale(number: object) -> None:
    english = f"{number:,}"
    assert value(english) == Fraction(str(number))
    german = english.translate(str.maketrans(",.", ".,"))
    assert value(german, ",") == Fraction(str(number))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_equals_its_own_text(number: float) -> None:
    assert grade_number(f"Answer: {number!r}", number).value == 1.0


@given(st.text(max_size=40), st.integers(0, 10**6))
def test_the_last_number_is_the_last_one(before: str, number: int) -> None:
    found = last_number(f"{before} and then: {number} apples")
    assert found is not None
    assert found.value == number


@given(st.text(alphabet="0123456789.,-/ %$e^½×\\{}frac:+'x\n", max_size=40))
def test_no_text_breaks_the_reading(text: str) -> None:
    parse_number(text)
    last_number(text)
    grade_number(text, 1)
    grade_number(text, 1, last=True)
