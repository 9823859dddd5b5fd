"""Fenced code in markdown: where it begins and ends. One scan over the text, block by block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_MARKS = ("```", "~~~")
_FENCES = 5000  # how many fences are looked at


class Fenced(NamedTuple):
    language: str
    """In lower case; "" where none is named."""
    start: int
    """Of the line that opens it."""
    inner: int
    """Of the code."""
    inner_end: int
    end: int
    """Behind the line that closes it."""
    closed: bool
    """False where the fence never closes: the code may be cut off."""


def fenced(text: str, start: int = 0) -> Iterator[Fenced]:
    """Fenced blocks, in order; the last one may be cut off.

    A block ends at a fence of the same character that is at least as long and has nothing behind
    it, so that a block of four backticks may show one of three. Fences may be indented, as they
    are below a list item.
    """
    fence, language, began, inner = "", "", 0, 0
    for line in _lines(text, start):
        marks, words = line.marks, line.words
        if not fence:
            if marks[0] == "`" and "`" in words:
                continue  # ```code``` in one line
            fence, began = marks, line.start
            language = words.split(None, 1)[0].lower() if words else ""
            inner = min(line.end + 1, len(text))
        elif marks[0] == fence[0] and len(marks) >= len(fence) and not words:
            # The line end before the closing fence belongs to the fence.
            inner_end = max(inner, line.start - 1)
            if inner_end > inner and text[inner_end - 1] == "\r":
                inner_end -= 1
            yield Fenced(language, began, inner, inner_end, line.end, closed=True)
            fence = ""
    if fence:
        yield Fenced(language, began, inner, len(text), len(text), closed=False)


class _Line(NamedTuple):
    marks: str
    words: str
    start: int
    end: int


def _lines(text: str, start: int) -> Iterator[_Line]:
    """Lines that are a fence. What a fence is made of is rare, and found at once."""
    ticks, tildes = (text.find(marks, start) for marks in _MARKS)
    for _ in range(_FENCES):
        if ticks < 0 and tildes < 0:
            return
        at = ticks if tildes < 0 or 0 <= ticks < tildes else tildes
        began = text.rfind("\n", start, at) + 1
        end = text.find("\n", at)
        stop = end if end >= 0 else len(text)
        if line := _FENCE.match(text, began or start, stop):
            words = text[line.end() : stop].removesuffix("\r")
            if "\r" not in words:
                yield _Line(line[1], words.strip(), line.start(), stop)
        if end < 0:
            return
        if 0 <= ticks < end:
            ticks = text.find("```", end)
        if 0 <= tildes < end:
            tildes = text.find("~~~", end)
