"""Fenced code: each block as it was written, and the last one that closes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.scoring.codeblocks import CodeBlock, code_blocks, last_code_block


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
