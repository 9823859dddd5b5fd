"""Fenced code in an answer: every block, and the last one that closes."""

from __future__ import annotations

from dataclasses import dataclass

from heldout.chat.reasoning import fenced


@dataclass(frozen=True, slots=True)
class CodeBlock:
    language: str
    """In lower case; "" where none is named."""
    code: str
    closed: bool = True
    """False where the fence never closes: the code may be cut off."""


def code_blocks(text: str) -> tuple[CodeBlock, ...]:
    """The fenced code blocks of a text, in order; the last one may be cut off."""
    return tuple(
        CodeBlock(block.language, text[block.inner : block.inner_end], block.closed)
        for block in fenced(text)
    )


def last_code_block(text: str, *languages: str) -> str | None:
    """The code of the last closed block, of one of `languages` where any is named."""
    wanted = {language.lower() for language in languages}
    found = None
    for block in fenced(text):
        if block.closed and (not wanted or block.language in wanted):
            found = block
    return text[found.inner : found.inner_end] if found else None
