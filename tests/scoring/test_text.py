"""Text against text."""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from heldout.errors import InvalidInput
from heldout.scoring import part
from heldout.scoring import text as texts
from heldout.scoring.answers import visible, visible_answer
from heldout.scoring.grades import Grade
from tests.scoring.examples import Example, wrong_rows
from tests.scoring.examples import text as examples

TABLES: tuple[tuple[Callable[..., Grade], tuple[Example, ...]], ...] = (
    (texts.grade_exact, examples.EXACT),
    (texts.grade_match, examples.MATCH),
    (texts.grade_includes, examples.INCLUDES),
    (texts.grade_f1, examples.F1),
    (texts.grade_rouge_l, examples.ROUGE_L),
)
ROUGE = RougeScorer(["rougeL"], use_stemmer=False)
WORDS = st.lists(st.sampled_from("uvwxyz"), max_size=12)


@pytest.mark.parametrize(("grader", "table"), TABLES)
def test_texts_are_graded_as_their_table_says(
    grader: Callable[..., Grade], table: Sequence[Example]
) -> None:
    assert wrong_rows(table, grader) == []


@pytest.mark.parametrize(
    ("answer", "places"),
    [
        ("Paris", "end begin any exact"),
        ("The Paris!", "end begin any exact"),
        ("It is Paris.", "end any"),
        ("Paris it is.", "begin any"),
        ("Is Paris it?", "any"),
        ("Parisian", ""),
        ("Paris " * 200, "end begin any"),
        ("Paris" + " " * 500 + "!", "end begin any exact"),
        ("Paris" + " ." * 500 + " France", "begin any"),
        ("the " * 100 + ". " * 100 + "Paris", "end begin any exact"),
        ("so " * 100 + ". " * 500 + "Paris", "end any"),
    ],
)
def test_a_match_is_where_it_is_asked_for(answer: str, places: str) -> None:
    found = {
        location
        for location in ("end", "begin", "any", "exact")
        if texts.grade_match(answer, "Paris", location=location).value  # type: ignore[arg-type]
    }
    assert found == set(places.split())


@pytest.mark.parametrize(
    ("answer", "values"),
    [("Answer: Paris", [1, 1, 1]), ("It is the paris!", [0, 1, 1]), ("Paris, I think", [0, 0, 1])],
)
def test_exact_match_and_includes_differ_as_the_docs_say(answer: str, values: list[int]) -> None:
    graders = (texts.grade_exact, texts.grade_match, texts.grade_includes)
    assert [grader(answer, "Paris").value for grader in graders] == values


def test_a_location_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'end', 'begin', 'any' or 'exact'"):
        part(texts.grade_match, location="middle")


def test_words_far_apart_in_spaces_are_still_included() -> None:
    assert texts.grade_includes("x Eiffel" + " " * 900 + "Tower y", "Eiffel Tower").value == 1.0
    assert texts.grade_includes("Eiffel. " * 50 + "Eiffel Tower", "Eiffel Tower").value == 1.0
    assert texts.grade_includes("Ｅｉｆｆｅｌ", "eiffel").value == 1.0
    assert texts.grade_includes("Made in the U.S. of A.", "US").value == 1.0


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


# --- The scripts that are equalled --------------------------------------------------------------

PIECES = (
    *("the", "cat,", "(Paris)", "it's", '"so"', "Dr.", "U.S.", "1889", "A.M.", "e.g.", "don't"),
    *("and", "An", "a-the", "“the”", "THE", "x_y", "3.5", "é", "巴黎", "—", "\n", "\x00a", "-5"),
)
PAIRS = st.one_of(st.lists(st.sampled_from(PIECES), max_size=8).map(" ".join), st.text(max_size=20))


def squad_f1(answer: str, target: str) -> float:
    """The definition of SQuAD 2.0's script: lower case, then punctuation, then articles go."""

    def words(text: str) -> list[str]:
        kept = "".join(c for c in text.lower() if c not in string.punctuation)
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    ours, theirs = words(answer), words(target)
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def is_plain(text: str) -> bool:
    """Whether it is graded as it is: no reasoning, no comment, and no space or marker around it."""
    return visible_answer(text) == text


@given(PAIRS.filter(is_plain), PAIRS.filter(lambda text: visible(text).strip()))
def test_f1_is_that_of_squad(answer: str, target: str) -> None:
    assert texts.grade_f1(answer, target, read="whole").value == squad_f1(answer, target)


@given(PAIRS.filter(is_plain), PAIRS.filter(lambda text: visible(text).strip()))
def test_rouge_l_is_that_of_the_rouge_score_package(answer: str, target: str) -> None:
    wanted = ROUGE.score(target, answer)["rougeL"].fmeasure
    assert texts.grade_rouge_l(answer, target).value == wanted


def test_words_that_are_repeated_at_once_are_all_counted() -> None:
    for answer in ("it's a a", "the the the cat", "cat cat cat dog", "a an the"):
        for target in ("cat cat", "its", "the"):
            assert texts.grade_f1(answer, target, read="whole").value == squad_f1(answer, target)


def test_the_best_of_several_targets_counts() -> None:
    assert texts.grade_f1("the dog", ["a cat", "a dog"]).value == 1.0
    assert texts.grade_rouge_l("the dog", ["a cat", "the dog"]).value == 1.0


def test_texts_in_other_scripts_have_no_words_for_rouge() -> None:
    assert "a-z" in texts.grade_rouge_l("巴黎", "巴黎").note
    assert texts.grade_rouge_l("Paris", "Paris").note == ""


# --- Words --------------------------------------------------------------------------------------


@given(WORDS, WORDS)
def test_the_common_subsequence_is_as_long_as_the_table_says(
    one: list[str], two: list[str]
) -> None:
    table = [[0] * (len(two) + 1) for _ in range(len(one) + 1)]
    for i, j in itertools.product(range(len(one)), range(len(two))):
        longest = max(table[i][j + 1], table[i + 1][j])
        table[i + 1][j + 1] = table[i][j] + 1 if one[i] == two[j] else longest
    assert texts.common_length(one, two) == table[-1][-1]


@given(st.text(min_size=1, max_size=60))
@example("£")
@example("ª")
@example("E0")
def test_every_text_matches_itself(text: str) -> None:
    if visible(text).strip() and not set("<[◁") & set(text):
        assert texts.grade_match(text, text, read="whole").value == 1.0
        assert texts.grade_includes(f"x {text} y", text, read="whole").value == 1.0


@given(st.text(alphabet="abx17.,-+#*/<=>!|&~'%_ \n\x1a", max_size=60))
def test_a_long_text_has_the_words_that_its_end_has_alone(text: str) -> None:
    alone = texts.tokens(f"word {text}")
    assert texts.tokens("word " * 100 + text) == ["word"] * 99 + alone


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
    with pytest.raises(InvalidInput, match="at_most"):
        part(texts.grade_includes, at_most=0)


def test_what_signs_tell_apart_does_not_match() -> None:
    for one, two in (
        *(("x<y", "x>y"), ("a+b", "a-b"), ("2*3", "2+3"), ("a/b", "a*b"), ("A-", "A")),
        *(("O+", "O-"), ("Ca2+", "Ca2-"), ("Fe3+", "Fe3"), ("x^2", "x 2"), ("p && q", "p || q")),
        *(("p ∧ q", "p ∨ q"), ("∀x", "∃x"), ("yes 👍", "yes 👎"), ("C♯", "C"), ("~x", "x")),
        *(("x = -y", "x = y"), ("x != y", "x = y"), ("we're", "were"), ("I'll", "ill")),
        *(("3:30", "330"), ("1,2", "1.2"), ("007", "7"), ("P(A|B)", "P(A B)")),
    ):
        assert texts.grade_match(one, two, location="exact", read="whole").value == 0.0, one
        assert texts.grade_match(two, one, location="exact", read="whole").value == 0.0, two


def test_what_prose_and_markdown_write_in_two_ways_matches() -> None:
    for one, two in (
        *(("**Paris**", "Paris"), ("* Paris", "Paris"), ("- Paris", "Paris")),
        *(("_Paris_!", "paris"), ("Paris – France", "Paris France"), ("10-20", "10–20")),
        ("km / h", "km/h"),
        *(("Simon & Garfunkel",) * 2, ("R&D", "R & D"), ("x=1", "x = 1"), ("Google™",) * 2),
        *(("P\u200baris", "Paris"), ("Par\u00adis", "Paris"), ("İstanbul", "istanbul")),
        *(("5 %", "5%"), ("1e6", "1000000"), ("I don’t", "I don't")),
    ):
        assert texts.grade_match(one, two, location="exact", read="whole").value == 1.0, one


@given(st.text(alphabet="e\u0301\u0316 가각ᄀ½ﬁ", max_size=60))
def test_long_texts_are_normalised_as_short_ones_are(text: str) -> None:
    spaced = f"{text} " * (2500 // (len(text) + 1) + 1)
    assert texts.nfkc(spaced) == unicodedata.normalize("NFKC", spaced)
