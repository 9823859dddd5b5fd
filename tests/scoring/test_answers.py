"""What a model answered: reasoning stripped, the last statement found, nothing guessed."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.chat.reasoning import fenced
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


def test_statements_are_found_in_order_with_how_plain_they_are() -> None:
    text = "The answer is red.\n#### 5\nSo \\boxed{7}.\n<answer>blue</answer>\n**Answer:** A"
    found = statements(text + '\n{"answer": 4}')
    assert [statement.value for statement in found] == ["red", "5", "7", "blue", "A", "4"]
    plain = [Strength.SENTENCE, *[Strength.MARKED] * 3, Strength.LABEL, Strength.MARKED]
    assert [statement.strength for statement in found] == plain


def test_a_sentence_counts_where_nothing_is_marked() -> None:
    assert stated_answer("Answer: Paris\n\nThe answer is well known.") == "Paris"
    assert stated_answer("The answer is Paris. The answer is well known.") is None


@pytest.mark.parametrize(
    "marker",
    ["<EOS_TOKEN>", "</s>", "<|im_end|>", "<|eot_id|>", "<eos>", "<end_of_turn>", "<pad><pad>"],
)
def test_an_end_marker_is_no_part_of_an_answer(marker: str) -> None:
    assert answer_text(f"Paris{marker}") == "Paris"
    assert answer_text(f"Paris\n{marker} {marker}") == "Paris"


def test_other_tags_at_the_end_stay() -> None:
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


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_long_text_of_anything_is_read_in_bounded_time(piece: str) -> None:
    text = "Answer: " + piece * (300_000 // len(piece))
    began = time.process_time()
    answer_text(text)
    visible(text)
    statements(text)
    assert time.process_time() - began < 60  # under a second; hours where it is not linear


# --- Code blocks --------------------------------------------------------------------------------


def test_code_blocks_are_read_with_their_language() -> None:
    text = "a\n```python\nx = 1\n```\nb\n````md\n```\ninner\n```\n````\n~~~\nz\n~~~"
    assert blocks_of(text) == [
        ("python", "x = 1", True),
        ("md", "```\ninner\n```", True),
        ("", "z", True),
    ]
    assert last_code_block(text) == "z"
    assert last_code_block(text, "python") == "x = 1"


def test_a_fence_that_never_closes_is_not_the_last_code_block() -> None:
    text = "```\na\n```\n```\nb"
    assert blocks_of(text)[-1] == ("", "b", False)
    assert last_code_block(text) == "a"


@given(st.lists(st.text("ab \n"), max_size=4))
def test_blocks_are_read_as_they_were_written(codes: list[str]) -> None:
    text = "\n".join(f"```x\n{code}\n```" for code in codes)
    assert blocks_of(text) == [("x", code, True) for code in codes]


def test_a_block_with_windows_line_ends_is_read() -> None:
    assert blocks_of("```x\r\na\r\nb\r\n```\r\n") == [("x", "a\r\nb", True)]


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


def test_languages_are_compared_in_any_case() -> None:
    assert last_code_block("```SQL\n1\n```\n```x\n2\n```", "Sql", "python") == "1"
    assert last_code_block("```SQL\n1\n```", "python") is None


@pytest.mark.parametrize("unit", ["```\n", "~~~ a\n", "`", "~", "```\n```\n", "\r", " ```x\n"])
def test_a_long_text_of_fences_is_read(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    assert all(code in text for _, code, _ in blocks_of(text)[:3])


@pytest.mark.parametrize("line", ["`" * 100_000, "~" * 100_000, "```" + " " * 100_000])
def test_a_long_fence_is_read_in_bounded_time(line: str) -> None:
    began = time.process_time()
    assert blocks_of(f"{line}a\rb") == []
    assert time.process_time() - began < 60  # minutes where it is not linear
