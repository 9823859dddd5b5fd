"""What a model answered: reasoning stripped, the last statement found, nothing guessed."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout._reasoning import fenced
from heldout.scoring.answers import (
    Strength,
    answer_text,
    final_answer,
    last_code_block,
    statements,
    visible,
    visible_answer,
)
from heldout.scoring.text import grade_exact
from heldout.types import Message, Stop, Trajectory
from tests.scoring.examples.answers import STATED

HOSTILE = (
    *("answer ", "answer to ", "answer: ", "\\boxed{", "{", "}", "<think>", "</think>", "<answer>"),
    *("`<think>`", "`</think>`", "~~~\n<think></think>\n", '"answer": "', "answer is, in ", "| "),
    *('answer": {', "- x\n", "~~", "<b>", "ans", "答", "```py\nanswer: 1\n```\n", "```\n", "*"),
    *("_", "####", "\n", ". ", "\\text{", "#### 1", "İ", "\ud800", "$", "(", " "),
)


def test_the_last_statement_is_read_as_its_table_says() -> None:
    read = [(example, stated_answer(example.answer)) for example in STATED]
    assert [(example, found) for example, found in read if found != example.extracted] == []


def stated_answer(reply: str) -> str | None:
    """What a grader of any text reads of a reply that states something."""
    text = visible_answer(reply)
    return grade_exact(reply, "x").extracted if text and statements(text) else None


def blocks_of(text: str) -> list[tuple[str, str, bool]]:
    return [
        (each.language, text[each.inner : each.inner_end], each.closed) for each in fenced(text)
    ]


def test_a_cut_off_generation_has_no_answer() -> None:
    said = (Message("user", "?"), Message("assistant", "Answer: 4"))
    assert final_answer(Trajectory(said)) == "Answer: 4"
    assert final_answer(Trajectory(said, stop=Stop(truncated=True))) is None
    assert final_answer(Trajectory(said[:1])) is None


def test_reasoning_in_a_field_of_its_own_is_never_the_answer() -> None:
    assert final_answer(Trajectory((Message("assistant", "", reasoning="Answer: 4"),))) is None
    assert final_answer(Trajectory((Message("assistant", "5", reasoning="Answer: 4"),))) == "5"
    parts = [{"type": "thinking", "thinking": "4"}, {"type": "text", "text": "5"}]
    assert final_answer(Trajectory((Message("assistant", parts),))) == "5"


def test_statements_are_found_in_order_with_how_plain_they_are() -> None:
    text = "The answer is red.\n#### 5\nSo \\boxed{7}.\n<answer>blue</answer>\n**Answer:** A"
    found = statements(text + '\n{"answer": 4}')
    assert [statement.value for statement in found] == ["red", "5", "7", "blue", "A", "4"]
    plain = [Strength.SENTENCE, *[Strength.MARKED] * 3, Strength.LABEL, Strength.MARKED]
    assert [statement.strength for statement in found] == plain


def test_a_sentence_counts_where_nothing_is_marked() -> None:
    assert stated_answer("Answer: Paris\n\nThe answer is well known.") == "Paris"
    assert stated_answer("The answer is Paris. The answer is well known.") is None


def test_an_end_marker_is_no_part_of_an_answer_and_other_tags_are() -> None:
    for marker in ("<EOS_TOKEN>", "</s>", "<|im_end|>", "<eos>", "<end_of_turn>", "<pad><pad>"):
        assert answer_text(f"Paris{marker}") == "Paris", marker
        assert answer_text(f"Paris\n{marker} {marker}") == "Paris", marker
    for text in ("<answer>4</answer>", "a < b>", "<b>Paris</b>", "List<int>"):
        assert answer_text(text) == text


@given(st.lists(st.sampled_from([*HOSTILE, "Answer:", "x", "5"]), max_size=30).map("".join))
def test_no_text_breaks_the_reading(text: str) -> None:
    kept = answer_text(text)
    assert kept is None or kept.strip() == kept != ""
    assert "" not in [statement.value for statement in statements(text)]


@given(st.text(max_size=60), st.sampled_from("ABCDE"))
def test_whatever_stands_before_it_the_last_stated_answer_is_read(before: str, letter: str) -> None:
    plain = visible(re.sub("[`~<◁[]", "", before))  # nothing that opens code or reasoning
    assert stated_answer(f"{plain}\n\nCorrection.\n**Final answer:** {letter}") == letter


@given(st.text(alphabet=st.characters(exclude_characters="<"), max_size=60))
def test_reasoning_leaves_no_trace(thought: str) -> None:
    assert answer_text(f"<think>{thought}</think>4") == "4"
    assert answer_text(f"{thought}</think>4") == "4"
    assert answer_text(f"<think>{thought}") is None
    assert answer_text(f"4 <think>{thought}") is None


def test_a_long_text_of_anything_is_read_in_bounded_time() -> None:
    for piece in HOSTILE:
        text = "Answer: " + piece * (100_000 // len(piece))
        began = time.process_time()
        answer_text(text)
        visible(text)
        statements(text)
        assert time.process_time() - began < 20, piece  # under a second; hours if not linear


# --- Code blocks --------------------------------------------------------------------------------


def test_code_blocks_are_read_with_their_language() -> None:
    text = "a\n```Python\nx = 1\n```\nb\n````md\n```\ninner\n```\n````\n~~~\nz\n~~~\n```\nopen"
    assert blocks_of(text) == [
        ("python", "x = 1", True),
        ("md", "```\ninner\n```", True),
        ("", "z", True),
        ("", "open", False),
    ]
    assert last_code_block(text) == "z"
    assert last_code_block(text, "pYthon", "sql") == "x = 1"
    assert last_code_block(text, "sql") is None


@given(st.lists(st.text("ab \n"), max_size=4))
def test_blocks_are_read_as_they_were_written(codes: list[str]) -> None:
    text = "\n".join(f"```x\n{code}\n```" for code in codes)
    assert blocks_of(text) == [("x", code, True) for code in codes]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```\n```", [("", "", True)]),
        ("```", [("", "", False)]),
        ("```py", [("py", "", False)]),
        ("```Python title=x\n1\n```", [("python", "1", True)]),
        ("``` x\n1\n```", [("x", "1", True)]),
        ("```x``` and ```y```", []),
        ("``\n1\n``", []),
        ("```\n1\n~~~\n```", [("", "1\n~~~", True)]),
        ("```\n1\n```x\n```", [("", "1\n```x", True)]),
        ("~~~ a`b`\n1\n~~~", [("a`b`", "1", True)]),
        ("- a\n\t```\n\t1\n\t```", [("", "\t1", True)]),
        ("```\n1\n`````", [("", "1", True)]),
    ],
)
def test_fences_are_told_apart(text: str, blocks: list[tuple[str, str, bool]]) -> None:
    assert blocks_of(text) == blocks


def test_a_long_text_of_fences_is_read_in_bounded_time() -> None:
    began = time.process_time()
    for unit in ("```\n", "~~~ a\n", "`", "~", "```\n```\n", "\r", " ```x\n"):
        text = unit * (300_000 // len(unit))
        assert all(code in text for _, code, _ in blocks_of(text)[:3])
    for line in ("`" * 100_000, "~" * 100_000, "```" + " " * 100_000):
        assert blocks_of(f"{line}a\rb") == []
    assert time.process_time() - began < 60  # minutes where it is not linear
