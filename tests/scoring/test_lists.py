"""Lists against lists."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring import lists
from heldout.scoring.grades import Grade
from tests.scoring.examples import Example
from tests.scoring.examples import lists as examples

TABLES: tuple[tuple[Callable[..., Grade], tuple[Example, ...]], ...] = (
    (lists.grade_list, examples.LISTS),
    (lists.grade_set, examples.SETS),
    (lists.grade_spans, examples.SPANS),
    (partial(lists.grade_spans, exact=True), examples.EXACT_SPANS),
)
CASES = [(grader, example) for grader, table in TABLES for example in table]
ITEMS = st.lists(st.sampled_from(["p q", "q r", "r", "s 5", "s 6"]), min_size=1, max_size=4)


@pytest.mark.parametrize(("grader", "example"), CASES, ids=[e.answer for _, e in CASES])
def test_lists_are_graded_as_their_table_says(
    grader: Callable[..., Grade], example: Example
) -> None:
    grade = grader(example.answer, example.target)
    assert grade.extracted == example.extracted
    assert grade.value == pytest.approx(example.value)


def test_a_list_may_be_right_in_part() -> None:
    assert lists.grade_list("x, q, y", ["x", "y"], partial=True).value == pytest.approx(0.8)
    assert lists.grade_set("y, x, q", ["x", "y"], partial=True).value == pytest.approx(0.8)


def test_no_items_are_the_empty_list() -> None:
    for grader in (lists.grade_list, lists.grade_set):
        for partly in (False, True):
            assert grader("[]", [], partial=partly).value == 1.0
            assert grader("x", [], partial=partly).value == 0.0


def test_lists_are_read_in_the_ways_people_write_them() -> None:
    for text in (
        *("x, y and z", "x, y, and z", "- x\n- y\n- z", "1. x\n2. y\n3. z", "x; y; z", "x,y,z"),
        *("[x, y, z]", "{x, y, z}", "['x', 'y', 'z']", '["x", "y", "z"]', "(1) x\n(2) y\n(3) z"),
        *(
            "* x\n\n* y\n\n* z",
            "x\ny\nz",
            "**x**, **y**, **z**",
            "x, y & z",
            "List:\n- x\n- y\n- z",
        ),
    ):
        assert lists.split_list(text) == ("x", "y", "z"), text
    assert lists.split_list("1,000, 2,000") == ("1,000", "2,000")
    assert lists.split_list("$1,000 and 3") == ("$1,000", "3")
    assert lists.split_list("{1, 2}") == ("1", "2")
    assert lists.split_list("-1,2,3.5") == ("-1", "2", "3.5")
    assert lists.split_list("x and y", conjunctions=False) == ("x and y",)
    assert lists.split_list("") == ()


def test_a_target_that_is_no_list_is_refused() -> None:
    wrong = ("x", None, 5, {"x": 1}, {"x"}, [None], [""], [["x"]], [True], [float("nan")])
    for grader in (lists.grade_list, lists.grade_set):
        for target in wrong:
            with pytest.raises(InvalidInput, match="ground_truth"):
                grader("x", target)  # type: ignore[arg-type]
    for target in ("x", None, 5, {"x": 1}, [], [[]], [["x"], "y"], [None], [["x"], [""]]):
        with pytest.raises(InvalidInput, match="ground_truth"):
            lists.grade_spans("x", target)  # type: ignore[arg-type]


def test_no_answer_is_graded_as_none() -> None:
    for grader, _ in TABLES:
        for answer in (None, "", "<think>x"):
            assert grader(answer, ["x"]) == Grade(0.0, None, "no answer")


@given(ITEMS, ITEMS)
def test_spans_are_graded_as_drop_defines_it(found: list[str], wanted: list[str]) -> None:
    def value(one: str, other: str) -> float:
        left, right = one.split(), other.split()
        numbers = {word for word in right if word.isdigit()}
        common = len(set(left) & set(right))  # no word is twice in a span here
        return 2 * common / (len(left) + len(right)) if not numbers or numbers & set(left) else 0.0

    long, short = (found, wanted) if len(found) >= len(wanted) else (wanted, found)
    best = max(
        sum(
            value(one, other) if long is found else value(other, one)
            for one, other in zip(order, short, strict=True)
        )
        for order in itertools.permutations(long, len(short))
    )
    answer = "; ".join(found)
    assert lists.grade_spans(answer, wanted).value == pytest.approx(best / len(long))
    exact = lists.grade_spans(answer, wanted, exact=True).value
    assert exact == float(len(found) == len(wanted) and set(found) == set(wanted))


@given(st.integers(1, 5), st.integers(1, 5), st.randoms(use_true_random=False))
def test_no_alignment_is_better_than_the_one_taken(
    height: int, width: int, chance: random.Random
) -> None:
    table = [[chance.choice((0.0, 0.5, 0.8, 1.0)) for _ in range(width)] for _ in range(height)]
    wide = table if height <= width else [list(row) for row in zip(*table, strict=True)]
    columns = range(len(wide[0]))
    best = max(
        sum(row[j] for row, j in zip(wide, order, strict=True))
        for order in itertools.permutations(columns, len(wide))
    )
    assert lists._aligned(table) == pytest.approx(best)
    assert lists._greedy(table) <= best + 1e-9


def test_more_spans_than_are_aligned_are_noted() -> None:
    assert "greedily" in lists.grade_spans(", ".join("x" * 40), ["x"]).note


def test_marks_are_no_items_and_no_empty_list() -> None:
    for answer in (".", "...", ",", "'\"'", "; ;"):
        grade = lists.grade_set(answer, [])
        assert (grade.value, grade.note) == (0.0, "no items; an empty list is []"), answer
    for answer in ("[]", "[ ]", "{}", "()", r"\boxed{\emptyset}", "Answer: []"):
        assert lists.grade_set(answer, []).value == 1.0, answer


def test_a_list_ends_where_the_next_one_begins() -> None:
    answer = "Answer:\n- red\n  (a colour)\n\n- green\n\nNotes:\n- it was easy"
    assert lists.grade_set(answer, ["red", "green"]).extracted == "red; green"


def test_nothing_is_hidden_behind_blank_space_or_a_limit() -> None:
    assert lists.grade_list("bad," + " " * 200_000 + "x", ["x"]).value == 0.0
    many = [f"w{place}" for place in range(10_000)]
    assert lists.grade_set(", ".join([*many, "extra"]), many).value == 0.0
    assert "at most" in lists.grade_set("x, " * 100_000, ["x"]).note
