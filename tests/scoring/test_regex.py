import re
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.scoring import regex
from heldout.scoring.regex import grade_captured, grade_pattern
from tests.scoring.examples import wrong_rows
from tests.scoring.examples.regex import CAPTURES, EXAMPLES

MEGABYTE = "a" * 1_000_000 + "!"


def test_the_examples_hold():
    assert wrong_rows(EXAMPLES, lambda answer, regex: grade_pattern(answer, pattern=regex)) == []


def test_the_examples_of_captures_hold():
    def grade(answer, target):
        return grade_captured(answer, target[1], pattern=target[0])

    assert wrong_rows(CAPTURES, grade) == []


def test_a_catastrophic_pattern_is_done_with_a_megabyte_in_no_time():
    for pattern in (
        *(r"(a+)+$", r"(a|aa)+$", r"(a|a)*b", r"(.*)*x", r"a*a*a*a*a*b", r".*.*=.*", r"a*b"),
        *(r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(a|b)*a(a|b){12}c", r"(?:a?){15}a{15}b"),
    ):
        started = time.perf_counter()
        assert grade_pattern(MEGABYTE, pattern=pattern).value == 0.0
        assert time.perf_counter() - started < 60  # milliseconds; days where it is not linear


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(?=a)b", "look-around"),
        (r"(?<!a)b", "look-around"),
        (r"(a)\1", "back-references"),
        (r"a\Z", r"\\z"),
        (r"(", "missing"),
        (r"((a{100}){100}){100}", "repetition"),
        (r"(\pL{1,300}){2}x", "large|repetition"),
    ],
)
def test_a_pattern_that_cannot_be_bounded_is_refused_with_the_reason(pattern, why):
    with pytest.raises(InvalidInput, match=why):
        grade_pattern("a", pattern=pattern)


def test_a_large_pattern_on_a_large_text_is_refused_before_it_runs():
    with pytest.raises(InvalidInput, match="steps at worst"):
        grade_pattern(MEGABYTE, pattern=r"(a?){500}a{500}b")
    assert grade_pattern("a" * 600 + "b", pattern=r"(a?){500}a{500}b").value == 1.0


def test_a_pattern_that_reads_to_the_end_for_every_match_is_stopped(monkeypatch):
    monkeypatch.setattr(regex, "MAX_SECONDS", 0.0)
    with pytest.raises(InvalidInput, match="was not found within"):
        grade_pattern("a" * 10_000, pattern=r"a.*b|a")


def test_the_last_of_very_many_matches_is_found():
    many = "12 " * 100_000
    assert grade_pattern(many + "345", pattern=r"\d+").extracted == "345"
    assert grade_pattern(many + "x" * 300_000, pattern=r"\d+").extracted == "12"
    assert grade_pattern("é" * 40_000, pattern=r"\p{L}").extracted == "é"


@given(st.text("ab1 \n", max_size=40))
def test_the_last_match_is_the_last_that_python_finds(text):
    found = regex._last(regex._compiled(r"[ab]1?", False), text.encode())
    plain = [m.span() for m in re.finditer(r"[ab]1?", text)]
    assert (found.span() if found else None) == (plain[-1] if plain else None)


def test_whole_means_all_of_the_answer():
    assert grade_pattern(" 42\n", pattern=r"\d+", whole=True).value == 1.0
    assert grade_pattern("42 or so", pattern=r"\d+", whole=True).value == 0.0


def test_a_group_that_took_no_part_extracts_nothing():
    grade = grade_pattern("b", pattern=r"(a)|b")
    assert (grade.value, grade.extracted) == (1.0, None)


def test_a_group_that_took_no_part_meets_no_target():
    grade = grade_captured("b", "b", pattern=r"(a)|b")
    assert (grade.value, grade.extracted) == (0.0, None)
    assert "took no part" in grade.note


@pytest.mark.parametrize("target", ["", " ", True, None, ["x"]])
def test_a_target_that_nothing_would_meet_is_refused(target):
    with pytest.raises(InvalidInput, match="ground_truth"):
        grade_captured("x", target, pattern=r"(\d*)")


def test_ignoring_case_holds_for_the_comparison_too():
    folded = grade_captured("ANSWER: Yes", "YES", pattern=r"answer: (\w+)", ignore_case=True)
    assert folded.value == 1.0
    assert grade_captured("Answer: Yes", "YES", pattern=r"Answer: (\w+)").value == 0.0


@settings(deadline=None)
@given(st.text(st.characters()), st.text(st.characters(), max_size=20))
def test_any_text_gets_a_grade_and_any_pattern_a_grade_or_a_reason(answer, pattern):
    try:
        grade = grade_pattern(answer, pattern=pattern)
    except InvalidInput:
        return
    assert grade.value in (0.0, 1.0)
    if grade.extracted is not None:
        grade.extracted.encode()


def test_half_a_surrogate_pair_is_matched_as_a_replacement():
    assert grade_pattern("\ud800 Answer: é\udfff", pattern="Answer: (.+)").extracted == "é\ufffd"


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    regex._compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(InvalidInput, match="pip install 'google-re2>="):
        grade_pattern("a", pattern="a")
