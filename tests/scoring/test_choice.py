"""Which option an answer names."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring.choice import grade_choice
from heldout.scoring.choice import read_choice as reading_of
from heldout.scoring.rubric import part
from tests.scoring.examples import wrong_rows
from tests.scoring.examples.choice import CHOICES, OPTIONS


def read_choice(answer: str, letters: str = "ABCD", **options: Any) -> frozenset[str]:
    return reading_of(answer, letters, **options).reading or frozenset()


def test_choices_are_graded_as_their_table_says() -> None:
    assert wrong_rows(CHOICES, partial(grade_choice, options=OPTIONS)) == []


def test_what_was_shown_in_another_order_is_graded_in_the_original_one() -> None:
    originals = {"A": "C", "B": "A", "C": "D", "D": "B"}
    grade = grade_choice("Answer: A", "C", originals=originals)
    assert (grade.value, grade.extracted, grade.note) == (1.0, "C", "shown as A")
    assert grade_choice("Answer: C", "C", originals=originals).value == 0.0


def test_an_answer_in_words_is_found_among_the_options_as_shown() -> None:
    shown, originals = ("Paris", "Rome", "London", "Oslo"), dict(zip("ABCD", "CDAB", strict=True))
    grade = grade_choice("Answer: Paris", "C", options=shown, originals=originals)
    assert (grade.value, grade.extracted) == (1.0, "C")


def test_several_letters_are_all_wanted_where_the_target_is_several() -> None:
    for answer in ("Answer: A, C", "Answer: A and C", "Answer: AC", "C, A"):
        assert grade_choice(answer, {"A", "C"}).value == 1.0, answer
    assert grade_choice("Answer: A", {"A", "C"}).value == 0.0
    assert grade_choice("Answer: A, B and C", {"A", "C"}).value == 0.0


def test_options_in_cyrillic_letters_are_not_taken_for_latin_ones() -> None:
    assert read_choice("Ответ: В", "АБВГ") == {"В"}
    assert read_choice("Answer: B", "АБВГ") == frozenset()  # looks like the third
    assert read_choice("Ответ: В", "ABCD") == frozenset()


def test_words_of_a_three_way_judge_are_not_letters() -> None:
    for word in ("CORRECT", "INCORRECT", "NOT_ATTEMPTED", "A CORRECT answer", "Answer: CORRECT"):
        assert read_choice(word, "ABC") == frozenset(), word


def test_ten_options_leave_the_pronoun_a_pronoun() -> None:
    for answer, letter in (
        *(("The answer is I.", "I"), ("I think it is option J.", "J")),
        *(("Answer: I believe C", "C"), ("As I said, F", "")),
        *(("I am not sure.", ""), ("Answer: I've no idea", "")),
    ):
        assert read_choice(answer, "ABCDEFGHIJ") == frozenset(letter), answer


def test_options_may_be_numbered() -> None:
    for answer, letter in (
        *(("Answer: 3", "3"), ("2) Oslo", "2"), (r"\boxed{4}", "4")),
        *(("Answer: 3.5", ""), ("Answer: 1,000", ""), ("Answer: 12", "")),
    ):
        assert read_choice(answer, "1234") == frozenset(letter), answer


def test_letter_and_words_that_disagree() -> None:
    assert read_choice("Answer: C) London", options=OPTIONS) == {"A", "C"}
    assert read_choice("Answer: London (C)", options=OPTIONS) == {"A", "C"}


def test_what_is_called_correct_is_read_from_the_end() -> None:
    for answer, letters in (
        ("A is correct, says he. But C is correct.", ""),
        ("A is correct, says he. Actually, C is correct.", "C"),
        ("It must be B. No, it must be D.", "D"),
        ("If A is correct, B is wrong.", ""),
        ("A is the best-known one.", ""),
        ("A. London is wrong\nB. Oslo is wrong\n\nThat leaves C.", "C"),
        ("So, in short, Paris is the correct answer.", ""),
    ):
        assert read_choice(answer, options=OPTIONS) == frozenset(letters), answer


def test_an_option_that_is_denied_is_not_chosen() -> None:
    for answer in (
        *("I would not go with C.", "I wouldn't pick C.", "The wrong option is C."),
        *("The answer is not C.", "It's not C.", "If I choose C, I lose."),
    ):
        assert read_choice(answer, options=OPTIONS) == frozenset(), answer


def test_the_text_of_an_option_goes_before_a_letter() -> None:
    for options, answer, letter in (
        (("NK cells", "T cells", "mast cells", "B cells"), "Answer: B cells", "D"),
        (("yeast", "E. coli", "H. pylori", "algae"), "Answer: E. coli", "B"),
        (("Ulysses", "Emma", "Dune", "A Christmas Carol"), "Answer: A Christmas Carol", "D"),
        (("A = 1", "B = 1", "A = 2", "C = 2"), "Answer: C = 2", "D"),
        (("x", "y", "z", "A and B"), "Answer: A and B", "D"),
        (("2%", "3%", "4%", "5%", "-4%"), "(E) -4%", "E"),
        (("2%", "3%", "4%", "5%", "-4%"), "Answer: E - -4%", "E"),
        (("x", "y", "z", "Both A and B"), "Answer: D. Both A and B", "D"),
    ):
        assert read_choice(answer, "ABCDE", options=options) == {letter}, answer


def test_a_letter_of_a_name_or_a_formula_is_no_option() -> None:
    for answer in (
        *("B lymphocytes", "G protein", "F = ma", "B.C.", "C-section"),
        *("A Tale of Two Cities", r"\boxed{A^{-1}B}", "B(x) = 3", "C major", "A = 5", "कि", "คำ"),
    ):
        assert read_choice(f"Answer: {answer}", "ABCDEFGH") == frozenset(), answer


def test_two_letters_are_two_however_they_are_joined() -> None:
    for joined in (
        *("a or b", "a, b", "(a) or (b)", r"\boxed{a,b}", '"A" or "B"', "A | B", "A–B", "A 또는 B"),
        *("A или B", "A and also B", "[A, B]", r"\boxed{A \text{ or } B}"),
        r"\boxed{\text{A}, \text{B}}",
    ):
        assert read_choice(f"Answer: {joined}") == {"A", "B"}, joined
    assert grade_choice("Answer: a, b", ["A", "B"]).value == 1.0


def test_a_letter_that_sums_up_others_is_one() -> None:
    for answer in (
        *("D. A and B", "D) A and B only", "D, both A and B are true", "D – A, B and C"),
        "D (all of the above: A, B, C)",
    ):
        assert read_choice(f"Answer: {answer}") == {"D"}, answer


def test_options_that_are_only_talked_about_are_not_chosen() -> None:
    for answer in (
        *("A: I don't know.", "A - I have no idea", "A: As an AI I can't"),
        *("So A is wrong.", "I think A could be it", "Is it Paris?"),
        *("D. Rome\nC. Paris\nB. Oslo\nA. London", "Let's consider option A."),
        *("We can rule out option A", "A nice question about C and D."),
    ):
        assert len(read_choice(answer, options=OPTIONS)) != 1, answer


def test_a_statement_that_names_no_option_is_passed_over() -> None:
    for answer in (
        r"The answer is (A). So \boxed{98\text{ J}}.",
        "Answer: A\n\nThe answer is unique.",
        "<answer>A</answer>\n#### 98",
    ):
        assert read_choice(answer) == {"A"}, answer
    assert read_choice(r"Answer: A, so \boxed{B") == frozenset()  # it breaks off


def test_the_note_says_where_the_target_was_shown() -> None:
    originals = {"A": "C", "B": "B", "C": "A", "D": "D"}
    grade = grade_choice("Answer: B", "A", originals=originals)
    assert grade.note == "shown as B; the target A was shown as C"
    assert grade_choice("Answer: C", "A", originals=originals).note == "shown as C"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"letters": "ABCA"}, "each once"),
        ({"letters": ""}, "each once"),
        ({"options": "ABCD"}, "a list of the options' texts"),
        ({"options": list("vwxyz")}, "letters='ABCDE'"),
    ],
)
def test_options_that_no_answer_could_be_graded_with_are_refused(options: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        part(grade_choice, **options)


def test_a_target_that_is_an_index_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidInput, match=r"'ABCD'\[index\]"):
        grade_choice("Answer: C", 2)  # type: ignore[arg-type]


def test_a_target_that_is_no_option_is_refused() -> None:
    with pytest.raises(InvalidInput, match="not among the option letters"):
        grade_choice("Answer: E", "E")
    with pytest.raises(InvalidInput, match="says nothing of the shown letters"):
        grade_choice("Answer: B", "A", originals={"A": "A"})


@given(
    st.sampled_from("ABCD"),
    st.sampled_from(["{}", "({})", "**{}**", "[{}]", "{}.", "{})", "$\\text{{{}}}$", "`{}`"]),
    st.sampled_from(["Answer: ", "**Answer:** ", "Final answer - ", "The answer is ", "answer = "]),
)
def test_any_marking_around_a_letter_is_read(letter: str, marking: str, words: str) -> None:
    assert read_choice(words + marking.format(letter)) == {letter}
    assert read_choice(words + marking.format(chr(ord(letter) + 0xFEE0))) == {letter}


@given(st.text(max_size=80))
def test_any_text_names_only_options(text: str) -> None:
    assert read_choice(text) <= set("ABCD")
    assert read_choice(f"{text}\n<think>Answer: A") == frozenset()
