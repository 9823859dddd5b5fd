"""Text against text."""

from __future__ import annotations

import itertools
import string
import unicodedata
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring import normalising, part, texts
from heldout.scoring.grades import Grade
from tests.scoring.examples import Example
from tests.scoring.examples import texts as examples

TABLES: tuple[tuple[Callable[..., Grade], tuple[Example, ...]], ...] = (
    (texts.grade_exact, examples.EXACT),
    (texts.grade_match, examples.MATCH),
    (texts.grade_includes, examples.INCLUDES),
    (texts.grade_f1, examples.F1),
    (texts.grade_rouge_l, examples.ROUGE_L),
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


def test_a_long_answer_that_only_begins_like_the_target_does_not_match() -> None:
    assert texts.grade_match("Paris " * 200, "Paris").value == 0.0
    assert texts.grade_match("Paris" + " " * 500 + "!", "Paris").value == 1.0
    assert texts.grade_match("Paris" + " ." * 500 + " France", "Paris").value == 0.0
    assert texts.grade_match("the " * 100 + ". " * 100 + "Paris", "Paris").value == 1.0


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
    for target in ("", [], [""], "  ", None, True, 1.5, {"x": 1}, ["x", None], {"x"}):
        for grader, _ in TABLES:
            with pytest.raises(InvalidInput, match="ground_truth"):
                grader("x", target)


def test_a_reading_that_does_not_exist_is_refused() -> None:
    for grader, _ in TABLES:
        with pytest.raises(InvalidInput, match="'stated' or 'whole'"):
            grader("x", "x", read="first")


def test_no_answer_is_graded_as_none() -> None:
    for answer in (None, "", "  ", "<think>x"):
        for grader, _ in TABLES:
            assert grader(answer, "x") == Grade(0.0, None, "no answer")


PIECES = (
    *("the", "cat,", "(Paris)", "it's", '"so"', "Dr.", "U.S.", "1889", "A.M.", "e.g.", "don't"),
    *("and", "An"),
)


@given(*[st.lists(st.sampled_from(PIECES), min_size=1).map(" ".join)] * 2)
def test_ordinary_texts_are_compared_as_squad_compares_them(one: str, two: str) -> None:
    ours, theirs = squad_words(one), squad_words(two)
    if not ours or not theirs:
        return  # SQuAD takes "the" and "a" for the same nothing
    assert texts.grade_match(one, two, read="whole").value == float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    wanted = 2 * common / (len(ours) + len(theirs))
    assert texts.grade_f1(one, two, read="whole").value == pytest.approx(wanted)


def squad_words(text: str) -> list[str]:
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    return [word for word in kept.split() if word not in ("a", "an", "the")]


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


@given(WORDS, WORDS)
def test_f1_is_symmetric_and_between_0_and_1(one: list[str], two: list[str]) -> None:
    value = texts.token_f1(one, two)
    assert 0 <= value <= 1
    assert value == texts.token_f1(two, one)
    assert (value == 1) == (sorted(one) == sorted(two))


@given(st.text(min_size=1, max_size=60))
def test_every_text_matches_itself(text: str) -> None:
    assert texts.normalised(text) == texts.normalised(f"  {text} ")
    if text.strip(texts._NOTHING).strip() and "<" not in text and "[" not in text:
        assert texts.grade_match(text, text, read="whole").value == 1.0
        assert texts.grade_includes(f"x {text} y", text, read="whole").value == 1.0


@given(st.text(alphabet="ab1.,-+# '\n", max_size=200), st.text(alphabet="ab1.,-+# '", max_size=8))
def test_the_short_ways_give_what_the_long_ones_give(text: str, target: str) -> None:
    wanted = texts.tokens(target)
    found = texts.tokens(text)
    assert texts._matches(text, target) == float(found == wanted)
    if any(word.isalnum() and word != "a" for word in wanted):  # else marks are looked for
        assert texts._includes(text, target) == float(texts._within(wanted, found))
    assert texts._counted_f1(text, wanted) in (None, texts.token_f1(found, wanted))


def test_words_that_are_repeated_at_once_are_all_counted() -> None:
    text = "The the a a an an cat cat cat dog. " * 10
    assert texts._counted_f1(text, ["cat"] * 30 + ["dog"] * 10) == 1.0


@given(st.text(alphabet="abx17.,-+#*/<=>!|&~'%_ \n\x1a", max_size=60))
def test_a_long_text_has_the_words_that_its_end_has_alone(text: str) -> None:
    alone = texts.tokens(f"word {text}")
    assert texts.tokens("word " * 100 + text) == ["word"] * 99 + alone


def test_more_words_than_are_read_are_noted() -> None:
    assert "only the first 10000 words" in texts.grade_f1("x " * 20_000, "x").note


def test_words_are_graded_however_much_space_is_between_them() -> None:
    far = "cat" + " " * 200_001 + "dog dog dog"
    assert texts.grade_f1(far, "cat").value == pytest.approx(0.4)
    assert texts.grade_rouge_l(far, "cat").value == pytest.approx(0.4)


def test_an_answer_that_lists_everything_can_be_bounded() -> None:
    everything = " ".join(map(str, range(1000)))
    assert texts.grade_includes(everything, 204).value == 1.0
    bounded = texts.grade_includes(everything, 204, at_most=50)
    assert (bounded.value, bounded.note) == (0.0, "1000 words, at most 50 are looked at")
    assert texts.grade_includes("It is 204.", 204, at_most=50).value == 1.0
    assert texts.grade_includes("巴" * 60, "巴", at_most=50).value == 0.0
    for at_most in (0, True, "5"):
        with pytest.raises(InvalidInput, match="at_most"):
            part(texts.grade_includes, at_most=at_most)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        *[
            ("x<y", "x>y"),
            ("a+b", "a-b"),
            ("2*3", "2+3"),
            ("2 * 3", "2 3"),
            ("a/b", "a*b"),
            ("A-", "A"),
        ],
        *[("O+", "O-"), ("Ca2+", "Ca2-"), ("Fe3+", "Fe3"), ("x^2", "x 2"), ("p && q", "p || q")],
        *[
            ("p ∧ q", "p ∨ q"),
            ("∀x", "∃x"),
            ("yes 👍", "yes 👎"),
            ("C♯", "C"),
            ("!x", "x"),
            ("~x", "x"),
        ],
        *[
            ("x = -y", "x = y"),
            ("x != y", "x = y"),
            ("- 5", "5"),
            ("we're", "were"),
            ("I'll", "ill"),
        ],
        *[("3:30", "330"), ("1,2", "1.2"), ("007", "7"), ("P(A|B)", "P(A B)")],
    ],
)
def test_what_signs_tell_apart_does_not_match(one: str, two: str) -> None:
    assert texts.grade_match(one, two, read="whole").value == 0.0
    assert texts.grade_match(two, one, read="whole").value == 0.0


@pytest.mark.parametrize(
    ("one", "two"),
    [
        *[
            ("<b>Paris</b>", "Paris"),
            ("**Paris**", "Paris"),
            ("* Paris", "Paris"),
            ("- Paris", "Paris"),
            ("> Paris", "Paris"),
        ],
        *[("Paris – France", "Paris France"), ("pre- and post-war", "pre and post war")],
        *[
            ("_Paris_!", "paris"),
            ("10-20", "10–20"),
            ("km / h", "km/h"),
            ("Simon & Garfunkel",) * 2,
        ],
        *[("R&D", "R & D"), ("x=1", "x = 1"), ("Google™", "Google™"), ("● Paris", "Paris")],
        *[
            ("P\u200baris", "Paris"),
            ("Par\u00adis", "Paris"),
            ("İstanbul", "istanbul"),
            ("5 %", "5%"),
        ],
        *[("1e6", "1000000"), ("- 5", "-5"), ("I don't", "I dont"), ("Title\n=====\nx", "title x")],
    ],
)
def test_what_prose_and_markdown_write_in_two_ways_matches(one: str, two: str) -> None:
    assert texts.grade_match(one, two, read="whole").value == 1.0


@given(st.text(alphabet="e\u0301\u0316 가각ᄀ½ﬁ", max_size=60))
def test_long_texts_are_normalised_as_short_ones_are(text: str) -> None:
    spaced = f"{text} " * (2500 // (len(text) + 1) + 1)
    assert normalising.nfkc(spaced) == unicodedata.normalize("NFKC", spaced)
