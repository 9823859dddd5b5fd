"""Text against text: exact, normalised, contained, by words, by common subsequence.

Normalising folds case, Unicode forms, punctuation, articles and spaces, and no more than that:
`-5` does not become 5, `3.5` not 35, `10²` not 102, `+` not the same nothing as `-`, and vowel
signs stay on their letters. Numbers are compared by value, and `U.S.` is `US`. A target may be
several texts that are all right; the best one counts. A whole number as target is its digits.

Token F1 and ROUGE-L read at most `TOKEN_LIMIT` tokens of either text (the note says so); scripts
that write no spaces are read by character there. All is linear, but ROUGE-L, which is tokens x
tokens / word size.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from heldout.errors import InvalidInput
from heldout.scoring._old_answers import answer_text, last_statement, shown, tidied
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.normalising import (
    ARTICLES,
    INVISIBLE,
    compatible,
    counted,
    folded_case,
    nfkc,
    normalised,
    target_tokens,
    tokens,
)
from heldout.scoring.pieces import UNSPACED, split_words, words_of

__all__ = [
    "TOKEN_LIMIT",
    "Read",
    "Targets",
    "grade_exact",
    "grade_f1",
    "grade_includes",
    "grade_match",
    "grade_rouge_l",
    "normalised",
    "rouge_l",
    "token_f1",
    "tokens",
]

TOKEN_LIMIT = 10_000

Read = Literal["stated", "whole"]
"""What is graded: the last stated answer, or the whole text where none is stated; or always
the whole text."""

Targets = str | int | Sequence[str | int]

_NOT_IN_WORDS = str.maketrans(
    dict.fromkeys((c for c in map(chr, range(128)) if not re.match(r"\w", c)), " ")
)
_NOTHING = INVISIBLE + string.whitespace + "\u00a0\u3000"
_UNSPACED_RUN = re.compile(UNSPACED.pattern + "+")


def _check(*, read: Any = "stated", at_most: Any = None, **_: object) -> None:
    if read not in ("stated", "whole"):
        raise InvalidInput(f"read is 'stated' or 'whole', got {read!r:.100}")
    number = isinstance(at_most, int) and not isinstance(at_most, bool)
    if at_most is not None and not (number and at_most > 0):
        raise InvalidInput(f"at_most is a number of words from 1 on, or None, got {at_most!r:.100}")


# --- Whole texts --------------------------------------------------------------------------------


@grader(version=1, check=_check)
def grade_exact(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """1.0 where the answer is the target, character for character, spaces around it aside.

    What is stated (`Answer: **Paris.**`) is compared without the markup and full stop around it.
    """
    return _best(answer, target, read, _is)


def _is(text: str, target: str, stated: bool) -> float:
    return float(text == target.strip() or (stated and text == tidied(target)))


@grader(version=1, check=_check)
def grade_match(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """1.0 where the answer is the target once both are normalised."""
    return _best(answer, target, read, lambda text, wanted, _: _matches(text, wanted))


_LONGEST_PADDING = 20 * TOKEN_LIMIT  # characters that might still all be punctuation


def _is_word(token: str) -> bool:
    return token.isalnum() or any(map(str.isalnum, token))


def _matches(text: str, target: str) -> float:
    if text == target:
        return 1.0
    wanted = target_tokens(target)
    if _begins_otherwise(text, wanted):
        return 0.0
    reach = 2 * len(target) + 60
    if len(text) > reach:  # most long answers differ before they end
        cut = tokens(text[:reach].rpartition(" ")[0])[:-1]  # the last one may go on
        start = [word for word in cut if word not in ARTICLES and _is_word(word)]
        words = [word for word in wanted if _is_word(word)]
        if len(start) > len(words) or start != words[: len(start)]:
            return 0.0
        if len(text) - reach > _LONGEST_PADDING:
            return 0.0
    return float(tokens(text) == wanted)


def _begins_otherwise(text: str, wanted: list[str]) -> bool:
    """Whether the first word alone, where it is a plain one, says that a text is another."""
    pieces = text[:60].split(maxsplit=1) if text.isascii() else []
    if len(pieces) < 2 or not pieces[0].isalpha():
        return False
    word = pieces[0].lower()
    return word not in ARTICLES and wanted[:1] != [word]


@grader(version=1, check=_check)
def grade_includes(
    answer: str | None, target: Targets, *, read: Read = "whole", at_most: int | None = None
) -> Grade:
    """1.0 where the normalised target stands in the answer, as whole words.

    In scripts that write no spaces, as any part of it. `at_most` bounds the words of the answer:
    one that is longer is a 0. Without a bound, an answer that lists everything is right, which a
    model in training learns at once: this is no reward.
    """
    _check(read=read, at_most=at_most)
    if at_most is not None:
        text, _ = _read(answer, read)
        if text is not None and (words := len(_apart(text).split())) > at_most:
            return Grade(0.0, shown(text), f"{words} words, at most {at_most} are looked at")
    once = lru_cache(maxsize=1)(tokens) if isinstance(target, list | tuple) else tokens
    return _best(answer, target, read, lambda text, wanted, _: _includes(text, wanted, once))


def _includes(text: str, target: str, read: Callable[[str], list[str]] = tokens) -> float:
    wanted, kind, anchor = _sought(target)
    plain = text if text.isascii() else compatible(text)
    if kind == "articles":
        return float(_within(wanted, words_of(folded_case(plain), plain=plain.isascii())))
    if kind == "marks":
        marks = compatible(target).casefold().split()
        return float(" ".join(marks) in " ".join(plain.casefold().split()))
    if kind == "unspaced":
        # Parts of words, but not of numbers: 5歳 is not in 15歳.
        before = "" if UNSPACED.match(wanted[0]) else " "
        behind = "" if UNSPACED.match(wanted[-1][-1]) else " "
        return float(f"{before}{' '.join(wanted)}{behind}" in f" {' '.join(read(plain))} ")
    if anchor:
        folded = folded_case(plain)
        at = folded.find(anchor)
        if at < 0 and "'" not in folded and "’" not in folded:
            return 0.0
        start, end = at - 20 - 2 * len(target), at + 20 + 2 * len(target)
        near = folded[max(0, start) : end]
        near = near if start <= 0 else near.partition(" ")[2]  # words that are not whole
        near = near if end >= len(folded) else near.rpartition(" ")[0]
        if at >= 0 and _within(wanted, tokens(near)):
            return 1.0
    return float(_within(wanted, read(plain)))


@lru_cache(maxsize=1024)
def _sought(target: str) -> tuple[list[str], str, str]:
    """The words of a target, of what kind they are, and the one of them that is likely the rarest,
    the longest: without it, or around it, all is said."""
    wanted = target_tokens(target)
    if all(word in ARTICLES for word in wanted):
        return wanted, "articles", ""
    if not any(c.isalnum() for word in wanted for c in word):
        return wanted, "marks", ""
    if UNSPACED.search(target):
        return wanted, "unspaced", ""
    words = [word for word in wanted if word.isalpha() and word.isascii()]
    return wanted, "words", max(words, key=len, default="")


def _within(wanted: list[str], found: list[str]) -> bool:
    return f" {' '.join(wanted)} " in f" {' '.join(found)} "


@grader(version=1, check=_check)
def grade_f1(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """The F1 of the answer's normalised words against the target's."""
    wanted = _targets(target)
    text, _ = _read(answer, read)
    if text is None:
        return NO_ANSWER
    if len(wanted) == 1 and 200 < len(text) <= _LONGEST_GRADED and len(wanted[0]) <= 60:
        value = _counted_f1(text, target_tokens(_apart(wanted[0])))
        if value is not None:
            return Grade(value, shown(text))
    return _with_tokens(text, [target_tokens(_apart(one)) for one in wanted], token_f1, tokens)


def _counted_f1(text: str, wanted: list[str]) -> float | None:
    """The same as `token_f1`, without a list of the text's words; None where it takes one."""
    words = {word: wanted.count(word) for word in wanted}
    found = counted(text, words)
    if found is None or found[0] > TOKEN_LIMIT:
        return None
    count, times = found
    return 2 * sum(map(min, times, words.values())) / (count + len(wanted))


@grader(version=1, check=_check)
def grade_rouge_l(answer: str | None, target: Targets, *, read: Read = "whole") -> Grade:
    """ROUGE-L: the F1 of the longest common subsequence of words (case folded, no stemming)."""
    wanted = _targets(target)
    text, _ = _read(answer, read)
    if text is None:
        return NO_ANSWER
    return _with_tokens(text, [_rouge_target(one) for one in wanted], rouge_l, _rouge_tokens)


def _best(
    answer: str | None, target: Targets, read: Read, value: Callable[[str, str, bool], float]
) -> Grade:
    wanted = _targets(target)
    text, stated = _read(answer, read)
    if text is None:
        return NO_ANSWER
    return Grade(max([value(text, one, stated) for one in wanted]), shown(text))


def _with_tokens(
    text: str,
    targets: list[list[str]],
    value: Callable[[list[str], list[str]], float],
    split: Callable[[str], list[str]],
) -> Grade:
    note = ""
    found = split(_apart(_beginning(text)))
    if len(found) > TOKEN_LIMIT or len(text) > _LONGEST_GRADED:
        found, note = found[:TOKEN_LIMIT], f"only the first {TOKEN_LIMIT} words are graded"
    best = max(value(found, wanted[:TOKEN_LIMIT]) for wanted in targets)
    return Grade(best, shown(text), note)


_LONGEST_GRADED = 20 * TOKEN_LIMIT


def _beginning(text: str) -> str:
    """As much of a text as has the words that are graded, however much space is between them."""
    if len(text) <= _LONGEST_GRADED:
        return text
    return " ".join(text.split(maxsplit=TOKEN_LIMIT)[:TOKEN_LIMIT])[:_LONGEST_GRADED]


def _apart(text: str) -> str:
    """Spaces around every character of scripts that have none between words."""
    return text if text.isascii() else _UNSPACED_RUN.sub(_spaced, text)


def _spaced(found: re.Match[str]) -> str:
    return f" {'  '.join(found[0])} "


def _targets(target: Any) -> list[str]:
    if target.__class__ is str and target.strip(_NOTHING):
        return [target]
    given = target if isinstance(target, list | tuple) else [target]
    wanted: list[str] = []
    for one in given:
        if isinstance(one, int) and not isinstance(one, bool):
            wanted.append(str(one))
        elif isinstance(one, str) and one.strip(_NOTHING):
            wanted.append(one)
    if not wanted or len(wanted) != len(given):
        raise InvalidInput(
            "the target (ground_truth) is a text or a whole number, or a list of those that are "
            f"all right, none empty, got {target!r:.100}"
        )
    return wanted


def _read(answer: str | None, read: Read) -> tuple[str | None, bool]:
    """What is graded, and whether it was stated."""
    if read not in ("stated", "whole"):
        _check(read=read)
    text = answer_text(answer)
    if text is None or read == "whole":
        return text, False
    statement = last_statement(text)
    return (statement.value, True) if statement else (text, False)


def token_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of two bags of words."""
    if not found or not wanted:
        return float(not found and not wanted)
    if len(found) < len(wanted):
        found, wanted = wanted, found
    left: dict[str, int] = {}
    for word in wanted:
        left[word] = left.get(word, 0) + 1
    common = 0
    for word in filter(left.__contains__, found):  # few of many, found without Python code
        if left[word]:
            left[word] -= 1
            common += 1
    return 2 * common / (len(found) + len(wanted))


def _rouge_tokens(text: str) -> list[str]:
    if text.isascii():
        return text.lower().translate(_NOT_IN_WORDS).split()
    return split_words(nfkc(text).casefold())


@lru_cache(maxsize=1024)
def _rouge_target(target: str) -> list[str]:
    return _rouge_tokens(_apart(target))


def rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of the longest common subsequence of two lists of words."""
    if not found or not wanted:
        return 0.0
    return 2 * _common(found, wanted) / (len(found) + len(wanted))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence, a whole row of the table at a time.

    A bit of `row` is 0 where the table rises, so that a row costs a few operations on one
    integer instead of a loop.
    """
    if len(one) > len(other):
        one, other = other, one
    places: dict[str, int] = {}
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    full = row = (1 << len(one)) - 1
    for place_of in filter(None, map(places.get, other)):
        if same := row & place_of:
            row = (row + same | row - same) & full
    return len(one) - row.bit_count()
