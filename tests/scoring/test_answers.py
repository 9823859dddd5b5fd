"""What a model answered: reasoning stripped, the last statement found, nothing guessed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.scoring.answers import (
    CodeBlock,
    answer_text,
    code_blocks,
    final_answer,
    last_code_block,
    last_statement,
    stated_answer,
    statements,
)
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


def test_statements_come_from_the_last_one_backwards() -> None:
    text = "The answer is red.\n#### 5\nSo \\boxed{7}.\n<answer>blue</answer>\n**Answer:** A"
    assert [statement.value for statement in statements(text)] == ["A", "blue", "7", "5", "red"]


def test_a_sentence_counts_where_nothing_is_marked() -> None:
    assert stated_answer("Answer: Paris\n\nThe answer is well known.") == "Paris"
    assert stated_answer("The answer is Paris. The answer is well known.") == "well known"


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


def test_a_statement_says_how_it_was_made() -> None:
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


@given(st.lists(st.sampled_from([*HOSTILE, "Answer:", "x", "5"]), max_size=30).map("".join))
def test_no_text_breaks_the_reading(text: str) -> None:
    kept = answer_text(text)
    assert kept is None or kept.strip() == kept != ""
    statement = last_statement(text)
    if statement and statement.value is not None:
        assert statement.value


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
def test_a_long_text_of_anything_is_read_in_bounded_time(piece: str) -> None:
    text = "Answer: " + piece * (300_000 // len(piece))
    began = time.process_time()
    answer_text(text)
    last_statement(text)
    assert time.process_time() - began < 60  # under a second; hours where it is not linear


# --- Code blocks --------------------------------------------------------------------------------


def test_code_blocks_are_read_with_their_language() -> None:
    text = "a\n```python\nx = 1\n```\nb\n````md\n```\ninner\n```\n````\n~~~\nz\n~~~"
    blocks = code_blocks(text)
    assert [(block.language, block.code) for block in blocks] == [
        ("python", "x = 1"),
        ("md", "```\ninner\n```"),
        ("", "z"),
    ]
    assert last_code_block(text) == "z"
    assert last_code_block(text, "python") == "x = 1"


def test_a_fence_that_never_closes_is_not_the_last_code_block() -> None:
    text = "```\na\n```\n```\nb"
    assert not code_blocks(text)[-1].closed
    assert last_code_block(text) == "a"


@given(st.lists(st.text("ab \n"), max_size=4))
def test_blocks_are_read_as_they_were_written(codes: list[str]) -> None:
    text = "\n".join(f"```x\n{code}\n```" for code in codes)
    assert [block.code for block in code_blocks(text)] == codes
    assert all(block.closed and block.language == "x" for block in code_blocks(text))


def test_a_block_with_windows_line_ends_is_read() -> None:
    assert code_blocks("```x\r\na\r\nb\r\n```\r\n") == (CodeBlock("x", "a\r\nb"),)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("```\n```", [CodeBlock("", "")]),
        ("```", [CodeBlock("", "", closed=False)]),
        ("```py", [CodeBlock("py", "", closed=False)]),
        ("```Python title=x\n1\n```", [CodeBlock("python", "1")]),
        ("``` x\n1\n```", [CodeBlock("x", "1")]),
        ("```x``` and ```y```", []),
        ("``\n1\n``", []),
        ("```\n1\n~~~\n```", [CodeBlock("", "1\n~~~")]),
        ("```\n1\n```x\n```", [CodeBlock("", "1\n```x")]),
        ("~~~ a`b`\n1\n~~~", [CodeBlock("a`b`", "1")]),
        ("- a\n\t```\n\t1\n\t```", [CodeBlock("", "\t1")]),
        ("```\n1\n`````", [CodeBlock("", "1")]),
    ],
)
def test_fences_are_told_apart(text: str, blocks: list[CodeBlock]) -> None:
    assert list(code_blocks(text)) == blocks


def test_languages_are_compared_in_any_case() -> None:
    assert last_code_block("```SQL\n1\n```\n```x\n2\n```", "Sql", "python") == "1"
    assert last_code_block("```SQL\n1\n```", "python") is None


@pytest.mark.parametrize("unit", ["```\n", "~~~ a\n", "`", "~", "```\n```\n", "\r", " ```x\n"])
def test_a_long_text_of_fences_is_read(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    assert all(block.code in text for block in code_blocks(text)[:3])


@pytest.mark.parametrize("line", ["`" * 100_000, "~" * 100_000, "```" + " " * 100_000])
def test_a_long_fence_is_read_in_bounded_time(line: str) -> None:
    began = time.process_time()
    assert code_blocks(f"{line}a\rb") == ()
    assert time.process_time() - began < 60  # minutes where it is not linear
