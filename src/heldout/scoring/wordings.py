"""Statements by words: the last `Answer: X`, `the answer is X` or `"answer": X` of a text.

A word is looked for from the end on, most texts being told by parts of the words that they have
none. What is not plain ASCII is slow to lower: where its end states something that nothing before
it can change, only the end is.
"""

from __future__ import annotations

import re
from functools import lru_cache

from heldout.chat.reasoning import fenced
from heldout.chat.reasoning import lowered as lowered_text
from heldout.scoring.announcements import BEFORE, GUARDS, PLAIN_IS, REMARK, SEPARATOR
from heldout.scoring.assertions import denied, is_asserted, is_supposed
from heldout.scoring.statements import TRIES, Statement, outdoes, settles
from heldout.scoring.values import LONGEST, json_value_at, tidied, value_at

_VALUES = 100  # how many times what follows it is read
_AROUND = 300  # characters before a word that are looked at
_TAIL, _MARGIN = 400, 60  # characters at the end that are looked at first, and what they begin with


def announced_in(text: str, searched: str, words: tuple[str, ...], floor: int) -> Statement | None:
    """The last statement by words that begins at `floor` or behind it."""
    plain = text.isascii()
    guarded = _guarded(words, plain)
    if plain and floor:  # mostly next to nothing is behind a box
        behind = text[floor:].lower()
        for guard, _ in guarded:
            if guard in behind:
                break
        else:
            return None
    far = 0 if plain else len(text) - _TAIL
    if far > 0:  # what is not plain is slow to lower, and its end may do
        lowered = " " * far + lowered_text(searched[far:])
        near = far + _MARGIN
        if floor >= near:
            return _last_of_words(text, lowered, guarded, floor)
        if found := _last_of_words(text, lowered, guarded[:1], near):
            return _last_of_words(text, lowered, guarded[1:], found.start + 1) or found
        if found := _by_end(text, lowered, guarded[1:], far):
            return found
    return _last_of_words(text, lowered_text(searched), guarded, floor)


def _by_end(text: str, lowered: str, guarded: Guarded, far: int) -> Statement | None:
    """What a text's end states, where nothing before it can change that; only the end is lowered.

    No word is read whose surroundings reach back beyond `far`.
    """
    best, near, by = None, far + _AROUND, ""
    floor, end = near, lowered[near:]
    for guard, words in guarded:
        if guard not in end:
            continue
        for word in words:
            at = lowered.rfind(word, floor)
            if at < 0:
                continue
            if lowered.find(word, far, near) >= 0:
                return None
            behind = at + len(word)
            if (
                best
                and by.endswith(word)
                and behind == best.start + len(by)
                and text[behind : behind + 1] in (":", "：")
                and word[0] >= "\u0500"
                and lowered.rfind(word, near, at) < 0
            ):  # the same once more, 答 in 回答
                best, floor = best._replace(start=at), at + 1
                continue
            found, settled = _last_words(text, lowered, word, floor)
            if found:
                if found.start < floor or not settled:
                    return None
                best, floor, by = found, found.start + 1, word
    return best


Guarded = tuple[tuple[str, tuple[str, ...]], ...]


@lru_cache(maxsize=64)
def _guarded(words: tuple[str, ...], plain: bool) -> Guarded:
    """The words that can occur, by a part of them that most texts do not have."""
    groups: dict[str, list[str]] = {}
    for word in words:
        if word.isascii() or not plain:
            guard = next((part for part in GUARDS if part in word), word)
            groups.setdefault(guard, []).append(word)
    return tuple((guard, tuple(group)) for guard, group in groups.items())


def _last_of_words(text: str, lowered: str, guarded: Guarded, floor: int) -> Statement | None:
    best = None
    for guard, words in guarded:
        if guard not in lowered if len(guard) == 1 else lowered.rfind(guard, floor) < 0:
            continue
        for word in words:
            if lowered.rfind(word, floor) < 0:
                continue
            found, settled = _last_words(text, lowered, word, floor)
            if found and best and found.start < best.start:
                best = best if outdoes(best, found) else found
            else:
                best = found or best
            if best and best is found and settled:
                floor = best.start + 1
    return best


def _last_words(text: str, lowered: str, word: str, floor: int) -> tuple[Statement | None, bool]:
    """The last statement by one word, and whether nothing before it could be what is meant.

    A remark behind another statement is none.
    """
    end, values = len(text), 0
    later = None
    for _ in range(TRIES):
        at = lowered.rfind(word, floor, end)
        if at < 0 or values == _VALUES:
            break
        end = at + len(word) - 1
        if said := _said_by(text, lowered, word, at):
            values += 1
            if found := _read(text, lowered, at, said):
                if found.kind != "key":
                    found = _with_sentence(text, lowered, word, found)
                later = later if later and outdoes(later, found) else found
                if settles(found):
                    return later, later is found
    return later, False


def _said_by(text: str, lowered: str, word: str, at: int) -> re.Match[str] | None:
    """What separates a word from its value; None where the word announces none."""
    inside = word[0] < "\u0500" and at > 0 and lowered[at - 1].isalnum()
    if inside and not lowered.endswith(('"final', '"correct'), 0, at):
        return None  # inside another word
    if lowered.startswith((">", "wer"), at + len(word)):
        return None  # a tag, or `ans` in `answer`, as is seen sooner than by the pattern
    behind = at + len(word)
    said = PLAIN_IS.match(text, behind) if text.startswith(" is ", behind) else None
    said = said or SEPARATOR.match(text, behind)
    if not said:
        return None
    kind = said.lastgroup
    if kind == "dash" and not said["markup"]:
        return None  # answer-dependent
    if kind in ("dash", "heading", "bare", "cell") and (word.isascii() or kind != "dash"):
        line = text.rfind("\n", max(0, at - 80), at) + 1
        if not BEFORE.match(text[max(line, at - 80) : at]):
            return None
    line = max(lowered.rfind("\n", max(0, at - 120), at) + 1, at - 120, 0)
    return said if is_asserted(lowered[line:at], is_colon=kind == "colon") else None


_KEY_NAMES = frozenset(("", "final", "correct"))


def _read(text: str, lowered: str, at: int, said: re.Match[str]) -> Statement | None:
    """What is stated behind an announcing word; None for denials, questions and remarks."""
    kind = said.lastgroup
    if kind == "colon" and said["markup"][:1] in ('"', "'"):
        is_key, value = json_value_at(text, said.end())
        if is_key:
            name = lowered[max(0, at - 40) : at].rpartition(said["markup"][0])[2].rstrip(" _-")
            plain = name in _KEY_NAMES and said.start("markup") == said.start()
            return Statement(value, at, "key") if plain else None
    close = text.find("|", said.end(), said.end() + LONGEST) if kind == "cell" else -1
    value = tidied(text[said.end() : close]) if close >= 0 else value_at(text, said.end())
    weak = kind in ("is", "particle", "copula")
    if not value or denied(value, weak=weak):
        return None
    may = kind == "is" and value[0].isalpha() and len(value) > 2
    if may and REMARK.match(value) and not _is_all(text, at, value):
        return None
    supposed = weak and is_supposed(lowered[max(0, at - 120) : at], said[0])
    return Statement(value, at, "words", weak, supposed)


def _with_sentence(text: str, lowered: str, word: str, found: Statement) -> Statement:
    """A statement inside the sentence of another is part of that: `Answer: A or answer: B`."""
    for _ in range(4):
        at = found.start
        line = text.rfind("\n", max(0, at - 300), at) + 1 or max(0, at - 300)
        before = lowered.rfind(word, line, at)
        if before < 0 or not (said := _said_by(text, lowered, word, before)):
            return found
        around = _read(text, lowered, before, said)
        if not around or not around.value or BEFORE.fullmatch(text[said.end() : at]):
            return found
        place = text.find(around.value, said.end())
        if not place <= at < place + len(around.value):
            return found
        found = around
    return found


def _is_all(text: str, at: int, value: str) -> bool:
    """Whether a text is nothing but `The answer is X`, so that X is no remark, whatever it is."""
    end = text.rstrip(' .!*_`"').endswith(value.rstrip(".!"))
    return end and at < 80 and BEFORE.match(text[:at]) is not None


def key_around(text: str, lowered: str, found: Statement) -> Statement | None:
    """The `"answer"` of the JSON object whose other keys a statement was found in, if any."""
    if text[:1] == "{" and text[-1:] == "}":
        start, end = 0, len(text)
    else:
        for block in fenced(text):
            if block.inner <= found.start < block.inner_end:
                start, end = block.inner, block.inner_end
                break
        else:
            return None
    for _ in range(TRIES):
        at = lowered.rfind('answer"', start, end)
        if at < 0:
            return None
        end = at
        said = SEPARATOR.match(text, at + len("answer"))
        key = _read(text, lowered, at, said) if said and said.lastgroup == "colon" else None
        if key and key.kind == "key":
            return key
    return None
