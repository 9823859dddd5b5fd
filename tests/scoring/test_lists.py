"""Lists against lists."""

from __future__ import annotations

import itertools
import random
import re
import string
from collections.abc import Callable, Sequence
from functools import partial

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from heldout.errors import InvalidInput
from heldout.scoring import lists
from heldout.scoring.grades import Grade
from tests.scoring.examples import Example, wrong_rows
from tests.scoring.examples import lists as examples

TABLES: tuple[tuple[Callable[..., Grade], tuple[Example, ...]], ...] = (
    (lists.grade_list, examples.LISTS),
    (lists.grade_set, examples.SETS),
    (lists.grade_spans, examples.SPANS),
    (partial(lists.grade_spans, exact=True), examples.EXACT_SPANS),
)


@pytest.mark.parametrize(("grader", "table"), TABLES)
def test_lists_are_graded_as_their_table_says(
    grader: Callable[..., Grade], table: Sequence[Example]
) -> None:
    assert wrong_rows(table, grader) == []


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
        *("* x\n\n* y\n\n* z", "x\ny\nz", "**x**, **y**, **z**", "x, y & z"),
        "List:\n- x\n- y\n- z",
    ):
        assert lists.split_list(text) == ("x", "y", "z"), text
    assert lists.split_list("1,000, 2,000") == ("1,000", "2,000")
    assert lists.split_list("$1,000 and 3") == ("$1,000", "3")
    assert lists.split_list("{1, 2}") == ("1", "2")
    assert lists.split_list("-1,2,3.5") == ("-1", "2", "3.5")
    assert lists.split_list("x and y", conjunctions=False) == ("x and y",)
    assert lists.split_list("") == ()


def test_a_target_that_is_no_list_is_refused() -> None:
    wrong = ("x", None, 5, {"x": 1}, {"x"}, [None], [""], [["x"]], [True])
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


PIECES = ("p", "q", "the", "an", "5", "5.0", "6", "1,000", "$5", "x-y", "p.", "(q)", "'a'", "St.")
SPANS = st.lists(
    st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map(" ".join), min_size=1, max_size=4
)


def drop_words(span: str) -> list[str]:
    """The definition of DROP's script: word by word, numbers as floats, the rest bare."""
    words = []
    for word in re.split(" |-", span):
        word = word.lower()
        if not is_float(word):
            word = "".join(c for c in word if c not in string.punctuation)
        if is_float(word):
            word = str(float(word))
        words += re.sub(r"\b(a|an|the)\b", " ", word).split()
    return words


def is_float(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def drop_f1(found: list[str], wanted: list[str]) -> float:
    """The same script's F1, before it is rounded: bags are sets, over the longer list."""

    def value(one: str, other: str) -> float:
        ours, theirs = set(drop_words(one)), set(drop_words(other))
        numbers = {word for word in theirs if is_float(word)}
        if numbers and not numbers & ours:
            return 0.0
        common = len(ours & theirs)
        precision = common / len(ours) if ours else 1.0
        recall = common / len(theirs) if theirs else 1.0
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    width = max(len(found), len(wanted))
    scores = numpy.zeros((len(wanted), len(found)))
    for i, other in enumerate(wanted):
        for j, one in enumerate(found):
            scores[i, j] = value(one, other)
    rows, columns = linear_sum_assignment(-scores)
    return float(scores[rows, columns].sum() / width)


@given(SPANS, SPANS)
def test_spans_are_graded_as_drop_defines_it(found: list[str], wanted: list[str]) -> None:
    assert lists.span_f1(found, wanted) == pytest.approx(drop_f1(found, wanted))
    same = {" ".join(drop_words(span)) for span in found} == {
        " ".join(drop_words(span)) for span in wanted
    }
    assert lists.span_match(found, wanted) == float(same and len(found) == len(wanted))


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


def test_more_spans_than_are_aligned_are_no_answer() -> None:
    assert lists.grade_spans(", ".join("x" * 101), ["x"]).value == 0.0


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
    many = [f"w{place}" for place in range(1000)]
    assert lists.grade_set(", ".join([*many, "extra"]), many).value == 0.0
