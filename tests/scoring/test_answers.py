"""What a model answered: reasoning stripped, the last statement found, nothing guessed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.scoring.answers import (
    answer_text,
    final_answer,
    last_statement,
    stated_answer,
)
from heldout.scoring.values import shown
from heldout.types import Message, Stop, Trajectory
from tests.scoring.examples import Example
from tests.scoring.examples.answers import STATED

HOSTILE = (
    *("answer ", "answer to ", "answer: ", "\\boxed{", "{", "}", "<think>", "</think>", "<answer>"),
    *("`<think>`", "`</think>`", "~~~\n<think></think>\n", '"answer": "', "answer is, in ", "| "),
    *(
        'answer": {',
        "- x\n",
        "~~",
        "<b>",
        "ans",
        "答",
        "```py\nanswer: 1\n```\n",
        "```\n",
        "*",
        "_",
        "####",
        "\n",
        ". ",
        "\\text{",
        "#### 1",
        "İ",
        "\ud800",
        "$",
        "(",
        " ",
    ),
)


@pytest.mark.parametrize("example", STATED, ids=lambda example: example.why)
def test_the_last_statement_is_read_as_its_table_says(example: Example) -> None:
    text = answer_text(example.answer)
    assert (stated_answer(text) if text else None) == example.extracted


def test_a_cut_off_generation_has_no_answer() -> None:
    said = (Message("user", "?"), Message("assistant", "Answer: 4"))
    assert final_answer(Trajectory(said)) == "Answer: 4"
    assert final_answer(Trajectory(said, stop=Stop(truncated=True))) is None


def test_reasoning_in_a_field_of_its_own_is_never_the_answer() -> None:
    assert final_answer(Trajectory((Message("assistant", "", reasoning="Answer: 4"),))) is None
    assert final_answer(Trajectory((Message("assistant", "5", reasoning="Answer: 4"),))) == "5"
    parts = [{"type": "thinking", "thinking": "4"}, {"type": "text", "text": "5"}]
    assert final_answer(Trajectory((Message("assistant", parts),))) == "5"


def test_a_trajectory_without_a_model_turn_has_no_answer() -> None:
    assert final_answer(Trajectory((Message("user", "Answer: 4"),))) is None


def test_a_block_inside_a_block_that_never_closes_ends_nothing() -> None:
    assert answer_text("<reasoning>x <think>y</think> Answer: 4") is None


def test_reasoning_that_mentions_its_own_tag_ends_where_it_ends() -> None:
    assert answer_text("<think>in <think> tags</think>4") == "4"
    assert answer_text("<think>a<think>b</think>c</think>4") == "4"


def test_other_conventions_of_reasoning_are_known() -> None:
    assert answer_text("analysisAnswer: A. assistantfinalAnswer: B") == "Answer: B"
    said = "Here is my thought process: 3? Here is my response: 4"
    assert answer_text(said) == "4"
    assert answer_text("Here is my thought process: 3?") is None
    assert answer_text("4<|im_end|>") == "4"


def test_a_long_text_is_kept_in_part() -> None:
    assert shown("x" * 10) == "x" * 10
    assert len(shown("x" * 1000)) == 500


@pytest.mark.parametrize(
    "text",
    [
        "The tag `<think>` opens it.",
        "Write `<think>` first, then `</think>`.",
        "Like so: `<think>hm</think>`",
        "Like so:\n```xml\n<think>\n```\nand on.",
        "Like so:\n~~~\n<think>hm</think>\n~~~\nand on.",
        "It ends with `</think>`.",
    ],
)
def test_a_tag_that_is_only_spoken_of_is_text(text: str) -> None:
    assert answer_text(text) == text


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>I end with `</think>`. Answer: 3", None),
        ("<think>I end with `</think>`. Now.</think>4", "4"),
        ("I end with `</think>`. Now.</think>4", "4"),
        ("<think>`x`</think>`4`", "`4`"),
        ("`x` <think>hm</think>4", "`x` 4"),
        ("It is `x. <think>Answer: 3", None),
        ("Like so:\n```\n<think>Answer: 3", None),
        ("```\n<think>hm</think>\n4\n```", "```\n\n4\n```"),
    ],
)
def test_a_tag_that_is_meant_is_none_of_the_answer_whatever_code_is_around(
    text: str, answer: str | None
) -> None:
    assert answer_text(text) == answer


def test_only_the_words_that_are_asked_for_announce_an_answer() -> None:
    assert stated_answer("Result: 4", ("result",)) == "4"
    assert stated_answer("Answer: 3\nResult: 4") == "3"


def test_a_statement_says_where_and_how_it_was_made() -> None:
    kinds = {
        "So, answer: 4": "words",
        r"So \boxed{4}": "box",
        "So <answer>4</answer>": "tag",
        "So\n#### 4": "hashes",
        'So {"answer": 4}': "key",
    }
    for text, kind in kinds.items():
        statement = last_statement(text)
        assert statement is not None
        assert (statement.kind, statement.value) == (kind, "4")
        assert 0 < statement.start < len(text)


@given(st.lists(st.sampled_from([*HOSTILE, "Answer:", "x", "5"]), max_size=30).map("".join))
def test_no_text_breaks_the_reading(text: str) -> None:
    kept = answer_text(text)
    assert kept is None or kept.strip() == kept != ""
    statement = last_statement(text)
    if statement and statement.value is not None:
        assert statement.value
        assert 0 <= statement.start < len(text)


@given(st.text(max_size=60), st.sampled_from("ABCDE"))
def test_whatever_stands_before_it_the_last_stated_answer_is_read(before: str, letter: str) -> None:
    text = before.replace("`", "").replace("~", "") + f"\n\n**Answer:** {letter}"
    assert stated_answer(text) == letter


@given(st.text(alphabet=st.characters(exclude_characters="<"), max_size=60))
def test_reasoning_leaves_no_trace(thought: str) -> None:
    assert answer_text(f"<think>{thought}</think>4") == "4"
    assert answer_text(f"{thought}</think>4") == "4"
    assert answer_text(f"<think>{thought}") is None
    assert answer_text(f"4 <think>{thought}") is None


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("before", ["", "Answer: ", "\\boxed{"])
def test_a_long_text_of_anything_is_read_in_bounded_time(piece: str, before: str) -> None:
    text = before + piece * (300_000 // len(piece))
    began = time.process_time()
    answer_text(text)
    last_statement(text)
    assert time.process_time() - began < 60  # under a second; hours where it is not linear
