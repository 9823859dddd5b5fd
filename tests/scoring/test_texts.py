"""Text against text."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring import texts
from heldout.scoring.grades import Grade
from tests.scoring.examples import Example
from tests.scoring.examples import texts as examples

TABLES: tuple[tuple[Callable[..., Grade], tuple[Example, ...]], ...] = (
    (texts.grade_exact, examples.EXACT),
    (texts.grade_match, examples.MATCH),
    (texts.grade_includes, examples.INCLUDES),
    (texts.grade_f1, examples.F1),
    (texts.grade_rouge_l, examples.ROUGE_L),
    (texts.grade_list, examples.LISTS),
    (texts.grade_set, examples.SETS),
    (texts.grade_spans, examples.SPANS),
)
CASES = [(grader, example) for grader, table in TABLES for example in table]
WORDS = st.lists(st.sampled_from("uvwxyz"), max_size=12)


@pytest.mark.parametrize(
    ("grader", "example"), CASES, ids=[f"{g.__name__}: {e.answer}" for g, e in CASES]
)
def test_texts_are_graded_as_their_table_says(
    grader: Callable[..., Grade], example: Example
) -> None:
    grade = grader(example.answer, example.target)
    assert grade.extracted == example.extracted
    assert grade.value == pytest.approx(example.value)


def test_a_list_may_be_right_in_part() -> None:
    assert texts.grade_list("x, q, y", ["x", "y"], partial=True).value == pytest.approx(0.8)
    assert texts.grade_set("y, x, q", ["x", "y"], partial=True).value == pytest.approx(0.8)


def test_spans_may_have_several_right_lists() -> None:
    grade = texts.grade_spans("Smith", [["Jones", "Brown"], ["Smith"]])
    assert (grade.value, grade.note) == (1.0, "exact match")


def test_lists_are_read_in_the_ways_people_write_them() -> None:
    for text in ("x, y and z", "x, y, and z", "- x\n- y\n- z", "1. x\n2. y\n3. z", "x; y; z"):
        assert texts.split_list(text) == ("x", "y", "z"), text
    assert texts.split_list("1,000, 2,000") == ("1,000", "2,000")
    assert texts.split_list("{1, 2}") == ("1", "2")
    assert texts.split_list("") == ()


def test_a_long_answer_that_only_begins_like_the_target_does_not_match() -> None:
    assert texts.grade_match("Paris " * 200, "Paris").value == 0.0
    assert texts.grade_match("Paris" + " " * 500 + "!", "Paris").value == 1.0
    assert texts.grade_match("Paris" + " ." * 500 + " France", "Paris").value == 0.0


def test_words_far_apart_in_spaces_are_still_included() -> None:
    assert texts.grade_includes("x Eiffel" + " " * 900 + "Tower y", "Eiffel Tower").value == 1.0
    assert texts.grade_includes("Eiffel. " * 50 + "Eiffel Tower", "Eiffel Tower").value == 1.0
    assert texts.grade_includes("I don't " * 50, "dont").value == 1.0
    assert texts.grade_includes("Ｅｉｆｆｅｌ", "eiffel").value == 1.0


def test_a_target_of_nothing_but_marks_or_articles_is_looked_for_as_it_is() -> None:
    assert texts.grade_includes("f{x}", "{").value == 1.0
    assert texts.grade_includes("f(x)", "{").value == 0.0
    assert texts.grade_includes("It is the one", "the").value == 1.0
    assert texts.grade_includes("There is one", "the").value == 0.0


def test_a_target_that_is_nothing_is_refused() -> None:
    for target in ("", [], [""], "  "):
        with pytest.raises(InvalidInput):
            texts.grade_match("x", target)
    with pytest.raises(InvalidInput):
        texts.grade_list("x", "x")
    with pytest.raises(InvalidInput):
        texts.grade_spans("x", [])


@given(WORDS, WORDS)
def test_the_common_subsequence_is_as_long_as_the_table_says(
    one: list[str], two: list[str]
) -> None:
    table = [[0] * (len(two) + 1) for _ in range(len(one) + 1)]
    for i, j in itertools.product(range(len(one)), range(len(two))):
        longest = max(table[i][j + 1], table[i + 1][j])
        table[i + 1][j + 1] = table[i][j] + 1 if one[i] == two[j] else longest
    length = len(one) + len(two)
    wanted = 2 * table[-1][-1] / length if one and two else 0.0
    assert texts.rouge_l(one, two) == wanted


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
    assert texts._aligned(table) == pytest.approx(best)
    assert texts._greedy(table) <= best + 1e-9


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_between_0_and_1(one: list[str], two: list[str]) -> None:
    value = texts.token_f1(one, two)
    assert 0 <= value <= 1
    assert value == texts.token_f1(two, one)
    assert (value == 1) == (sorted(one) == sorted(two))


@given(st.text(min_size=1, max_size=60))
def test_every_text_matches_itself(text: str) -> None:
    assert texts.normalised(text) == texts.normalised(f"  {text} ")
    if text.strip() and "<" not in text and "[" not in text:
        assert texts.grade_match(text, text, read="whole").value == 1.0
        assert texts.grade_includes(f"x {text} y", text, read="whole").value == 1.0


@given(st.text(alphabet="ab1.,-+# '\n", max_size=200), st.text(alphabet="ab1.,-+# '", max_size=8))
def test_the_short_ways_give_what_the_long_ones_give(text: str, target: str) -> None:
    wanted = texts.tokens(target)
    found = texts.tokens(text)
    assert texts._matches(text, target) == float(found == wanted)
    if any(word.isalnum() and word != "a" for word in wanted):
        assert texts._includes(text, target) == float(texts._within(wanted, found))


@pytest.mark.parametrize(
    "piece", ["a", "a b ", "1 ", "[", "a,", "1. ", "- a\n", " and ", "é ", "[1,", "\ud800", "c+ "]
)
def test_a_megabyte_of_anything_is_graded_in_bounded_time(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()
    for grader, _ in TABLES[:5]:
        grader(text, "a b c")
    for grader, _ in TABLES[5:]:
        grader(text, ["a b c"] * 32)
    assert time.process_time() - began < 10


def test_more_words_than_are_read_are_noted() -> None:
    assert "only the first 10000 words" in texts.grade_f1("x " * 20_000, "x").note
    assert "greedily" in texts.grade_spans(", ".join("x" * 40), ["x"]).note
