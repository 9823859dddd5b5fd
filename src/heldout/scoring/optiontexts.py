"""Options that are named by their own text: by the whole of it, or at the end of a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence

from heldout.scoring.letterpatterns import patterns_of
from heldout.scoring.letters import folded
from heldout.scoring.values import tidied

_IS_OPTION = re.compile(
    r"(?:\b(?:is|are|was|were|be|called|named|equals|ist|est|es|é|è)|['’]s|[:：=→])"
    r"[\s*_]{0,4}(?:(?:the|an?|indeed|therefore|thus|clearly|in fact|option)\s){0,2}"
    r"[\s*_\"'“(\[]{0,5}\Z",
    re.IGNORECASE,
)


def named_by_words(value: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The option whose whole text is what is stated, or is all that its first clause says."""
    if not options or len(value) > 2000:
        return frozenset()
    plain = plain_text(value)
    texts = {letter: plain_text(text) for letter, text in zip(letters, options, strict=False)}
    same = [letter for letter, text in texts.items() if text == plain]
    if same or not plain:
        return frozenset(same) if len(same) == 1 else frozenset()
    first, mark, rest = _clause(plain)
    if not mark:
        return frozenset()
    same = [letter for letter, text in texts.items() if text == first]
    if len(same) != 1 or any(
        text and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", rest)
        for letter, text in texts.items()
        if letter not in same
    ):
        return frozenset()
    mentioned = set(patterns_of(letters).others.findall(value))
    return frozenset(same) if mentioned <= set(same) else frozenset()


def by_own_text(sentence: str, letters: str, options: Sequence[str]) -> frozenset[str]:
    """The option whose text a sentence ends with, or that stands there with its letter."""
    said = " ".join(folded(sentence).casefold().split()).replace("*", "").replace("_", "")
    named: set[str] = set()
    ends: set[str] = set()
    for letter, option in zip(letters, options, strict=False):
        text = plain_text(option)
        if not text:
            continue
        at = said.rfind(text)
        while at > 0 and said[at - 1].isalnum() and said[at].isalnum():
            at = said.rfind(text, 0, at)
        behind = said[at + len(text) :]
        if at < 0 or (behind[:1].isalnum() and text[-1].isalnum()):
            continue
        named.add(letter)
        before = re.sub(
            rf"(?:option\s)?[(\[]?\b{re.escape(letter.casefold())}[).:\]]+\s*\Z", "", said[:at]
        )
        marked = len(before) < at
        if marked or (not behind.strip(" .!\"'”)]") and _IS_OPTION.search(before)):
            ends.add(letter)
    others = set(patterns_of(letters).others.findall(sentence)) - {"A", "I"}
    return frozenset(named) if named == ends and len(ends) == 1 and others <= ends else frozenset()


def _clause(plain: str) -> tuple[str, str, str]:
    for mark in (", ", " because ", " since ", " – ", " — "):
        first, found, rest = plain.partition(mark)
        if found:
            return first.strip(), found, rest
    return plain, "", ""


def plain_text(text: str) -> str:
    return " ".join(folded(tidied(text)).casefold().split())
