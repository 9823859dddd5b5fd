"""Replies without their reasoning, and fenced code."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout._reasoning import (
    fenced,
    is_reasoning_tag,
    lowered,
    opened_reasoning,
    without_reasoning,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("42", "42"),
        ("<think>6*7</think>\n42", "42"),
        ("<think>a</think>x<think>b</think> 42", "x 42"),
        ("<THINK>6*7</THINK>42", "42"),
        ("the template opened it </think> 42", "42"),
        ("<think>never closed, so 42 is no answer", ""),
        ("7 <reasoning>well", ""),
        ("a < b and b > a", "a < b and b > a"),
        ("<seed:think>hm</seed:think>42", "42"),
        ("<thinking effort=high>hm</thinking>42", "42"),
        ("<think>a <reasoning> b</think>42", "42"),
        ("<reasoning>x <think>y</think> 42", ""),
        ("<think>in <think> tags</think>42", "42"),
        ("<think>a<think>b</think>c</think>42", "42"),
        ("Here is my thought process: 42?", ""),
        ("[THINK]hm[/THINK]42", "42"),
        ("◁think▷hm◁/think▷42", "42"),
        ("<unused94>thought hm<unused95>42", "42"),
        ("<|channel>thought hm<channel|>42", "42"),
        ("<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>42<|END_RESPONSE|>", "42"),
        ("<|channel|>analysis<|message|>hm<|end|><|channel|>final<|message|>42<|return|>", "42"),
        ("<|channel|>analysis<|message|>it is 42", ""),
        ("analysisWell, 6*7.assistantfinal42", "42"),
        ("analysisWell, 6*7 is", ""),
        ("analysis of the data", "analysis of the data"),
        ("Here is my thought process: hm Here is my response: 42", "42"),
        ("42<|im_end|>\n<|im_start|>user\nand 7?", "42"),
    ],
)
def test_reasoning_is_no_answer(text: str, answer: str) -> None:
    assert without_reasoning(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Write `<think>` first, then `</think>`.",) * 2,
        ("Like so: `<think>hm</think>`",) * 2,
        ("So:\n```\n<think>\n```\n42",) * 2,
        ("So:\n~~~\n<think>hm</think>\n~~~\n42",) * 2,
        ("It ends with `</think>`.",) * 2,
        ("<think>I write `</think>` at the end.</think>42", "42"),
        ("<think>I end with `</think>`. Answer: 3", ""),
        ("I end with `</think>`. Now.</think>42", "42"),
        ("`x` <think>hm</think>`42`", "`x` `42`"),
        ("It is `x. <think>Answer: 3", ""),
        ("<think>a</think>```\n<think>\n```\n42", "```\n<think>\n```\n42"),
        ("```\n<think>hm</think>42\n```", "```\n42\n```"),
        ("```\n<think>hm", ""),
        ("So:\n```\n<think>hm", ""),
    ],
)
def test_a_quoted_tag_is_text_and_a_fenced_reply_is_a_reply(text: str, answer: str) -> None:
    assert without_reasoning(text) == answer


@pytest.mark.parametrize(
    ("prompt", "tag"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("[THINK]", "[THINK]"),
        ("<think>\n</think>\n", ""),
        ("user: <think> about it", ""),
    ],
)
def test_a_prompt_may_end_with_the_tag_that_opens_reasoning(prompt: str, tag: str) -> None:
    assert opened_reasoning(prompt) == tag


def test_a_reasoning_tag_is_one_tag_and_nothing_else() -> None:
    assert is_reasoning_tag("<think>")
    assert is_reasoning_tag("◁/think▷")
    assert not is_reasoning_tag("<think> ")
    assert not is_reasoning_tag("<b>")


@pytest.mark.parametrize(
    "unit", ["<think>", "</think>", "<think></think>", "`<think>`", "<", "```\n<think>\n", "<a "]
)
def test_the_time_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    started = time.process_time()
    without_reasoning(unit * (500_000 // len(unit)))
    assert time.process_time() - started < 20  # many minutes where it is not linear


@given(st.text(alphabet="aİK<>/think`\n", max_size=60))
def test_lowering_keeps_every_index(text: str) -> None:
    assert len(lowered(text)) == len(text)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_fenced_block_ends_at_a_fence_at_least_as_long(end: str) -> None:
    text = end.join(["text", " ````Python x", "```", "a", "```", " `````", "~~~", "open"])
    closed, cut_off = fenced(text)
    assert (closed.language, closed.closed) == ("python", True)
    assert text[closed.inner : closed.inner_end] == end.join(["```", "a", "```"])
    assert text[closed.start : closed.end].strip().startswith("````Python x")
    assert (cut_off.language, cut_off.closed) == ("", False)
    assert text[cut_off.inner : cut_off.inner_end] == "open"


def test_a_fence_in_a_docstring_does_not_end_a_block() -> None:
    code = 'def f():\n    """\n    ```\n    f()\n    ```\n    """'
    text = f"1. so\n\n    ```python\n    x = 1\n    ```\n\n```python\n{code}\n```"
    in_list, block = fenced(text)
    assert text[in_list.inner : in_list.inner_end] == "    x = 1"
    assert text[block.inner : block.inner_end] == code
