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
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import filterfalse
from typing import Any, Literal

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, last_statement, shown, tidied
from heldout.scoring.grades import Grade, grader
from heldout.scoring.numerals import VULGAR, has_digit, parse_number

TOKEN_LIMIT = 10_000

Read = Literal["stated", "whole"]
"""What is graded: the last stated answer, or the whole text where none is stated; or always
the whole text."""

Targets = str | int | Sequence[str | int]

# --- Normalising --------------------------------------------------------------------------------

_MARKS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\x7f' + "".join(map(chr, range(32)))
_PUNCTUATION = str.maketrans(dict.fromkeys(_MARKS, " ") | {"'": ""})
_NOT_WORD = re.compile(r"(?:[^\w\s]|_)+")
_INITIAL = re.compile(r"\.(?<=[a-z]\.)[a-z]")
_ARTICLES = frozenset(("a", "an", "the"))
_AROUND = "\"'()[]{}<>*_`!?;:,“”‘’"  # never part of a number or a word
_NOT_IN_WORDS = str.maketrans(
    dict.fromkeys((c for c in map(chr, range(128)) if not re.match(r"\w", c)), " ")
)
_FRACTION = re.compile(rf"(\d{{0,9}})([{''.join(VULGAR)}])")
_RAISED = re.compile(r"(?<=\d)[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
# Scripts without spaces: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


def normalised(text: str) -> str:
    """A text with case, Unicode form, punctuation, articles and spaces folded."""
    return " ".join(tokens(text))


def tokens(text: str) -> list[str]:
    """The words of a normalised text; numbers are one token each, `1,000.0` the same as `1000`."""
    plain = text.isascii()
    folded = (text if plain else _compatible(text)).casefold()
    if not _has_special(folded):
        words = _words(folded, plain)
    else:
        words = []
        for piece in folded.split():
            if piece.isalpha():
                words.append(piece)
                continue
            core = piece.strip(_AROUND).rstrip(".")
            if core.isalpha() or (plain and core.isdecimal() and core[0] != "0"):
                words.append(core)
            else:
                words += _special(piece, core, plain)
    kept = list(filterfalse(_ARTICLES.__contains__, words))
    # Where nothing is left, what was there is the text: "+" is not "-", and "A" not "the".
    return kept or words or folded.split()


def _has_special(folded: str) -> bool:
    """Whether there may be a number, or `c++`, or `u.s.`, found by what is rare in them."""
    if "+" in folded or "#" in folded:
        return True
    return has_digit(folded) or _INITIAL.search(folded) is not None


@lru_cache(maxsize=1024)
def _target_tokens(target: str) -> list[str]:
    """The same of a target, which is asked for once an answer; nobody changes the list."""
    return tokens(target)


def _compatible(text: str) -> str:
    """In compatibility form, which alone would make 21/2 of 2½ and 102 of 10²."""
    if _FRACTION.search(text):
        text = _FRACTION.sub(_written_out, text)
    text = _RAISED.sub(lambda found: "^" + found[0], text)
    return unicodedata.normalize("NFKC", text)


def _written_out(found: re.Match[str]) -> str:
    above, below = VULGAR[found[2]]
    return f"{int(found[1] or 0) * below + above}/{below}"


def _words(text: str, plain: bool) -> list[str]:
    if plain:
        return text.translate(_PUNCTUATION).split()
    return _NOT_WORD.sub(_space, text.replace("'", "").replace("’", "")).split()


def _space(found: re.Match[str]) -> str:
    """Marks that belong to the letter before them (`के` is not `की`); a space for any other."""
    run = found[0]
    if run.isascii() or not any(map(_belongs, set(run))):
        return " "
    return "".join(c if _belongs(c) else " " for c in run)


@lru_cache(maxsize=4096)
def _belongs(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"


def _special(piece: str, core: str, plain: bool) -> list[str]:
    """A piece whose punctuation may matter: a number, as its value, or `c++`, or `u.s.`"""
    if _LETTER.search(core):
        if _LANGUAGE.fullmatch(core):
            return [core]
        if _INITIALS.fullmatch(core):
            return [core.replace(".", "")]
        return _words(piece, plain)
    token = _number_token(core) if len(core) <= 64 else None
    return _words(piece, plain) if token is None else [token]


@lru_cache(maxsize=4096)
def _number_token(core: str) -> str | None:
    number = parse_number(core)
    if number is None or number.text != core:
        return None
    return f"{number.value}{'%' if number.percent else ''}"


_LANGUAGE = re.compile(r"[a-z]{1,20}(?:\+{1,2}|#)")
_INITIALS = re.compile(r"(?:[a-z]\.){1,9}[a-z]")
_LETTER = re.compile(r"[^\W\d_]|:")


# --- Whole texts --------------------------------------------------------------------------------


@grader(version=1)
def grade_exact(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """1.0 where the answer is the target, character for character, spaces around it aside.

    What is stated (`Answer: **Paris.**`) is compared without the markup and full stop around it.
    """
    return _best(answer, target, read, _is)


def _is(text: str, target: str, stated: bool) -> float:
    return float(text == target.strip() or (stated and text == tidied(target)))


@grader(version=1)
def grade_match(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """1.0 where the answer is the target once both are normalised."""
    return _best(answer, target, read, lambda text, wanted, _: _matches(text, wanted))


_LONGEST_PADDING = 20 * TOKEN_LIMIT  # characters that might still all be punctuation


def _is_word(token: str) -> bool:
    return token.isalnum() or any(map(str.isalnum, token))


def _matches(text: str, target: str) -> float:
    if text == target:
        return 1.0
    wanted = _target_tokens(target)
    reach = 2 * len(target) + 60
    if len(text) > reach:  # most long answers differ before they end
        cut = tokens(text[:reach])[:-1]  # the last one may not be whole
        start = [word for word in cut if word not in _ARTICLES and _is_word(word)]
        if len(start) > len(wanted) or start != wanted[: len(start)]:
            return 0.0
        if len(text) - reach > _LONGEST_PADDING:
            return 0.0
    return float(tokens(text) == wanted)


@grader(version=1)
def grade_includes(answer: str | None, target: Targets, *, read: Read = "whole") -> Grade:
    """1.0 where the normalised target stands in the answer, as whole words.

    In scripts that write no spaces, as any part of it.
    """
    once = lru_cache(maxsize=1)(tokens) if isinstance(target, list | tuple) else tokens
    return _best(answer, target, read, lambda text, wanted, _: _includes(text, wanted, once))


def _includes(text: str, target: str, read: Callable[[str], list[str]] = tokens) -> float:
    wanted = _target_tokens(target)
    plain = text if text.isascii() else _compatible(text)
    if all(word in _ARTICLES for word in wanted):
        return float(_within(wanted, _words(plain.casefold(), plain=plain.isascii())))
    if not any(c.isalnum() for word in wanted for c in word):
        marks = _compatible(target).casefold().split()
        return float(" ".join(marks) in " ".join(plain.casefold().split()))
    if _UNSPACED.search(target):
        return float(" ".join(wanted) in " ".join(read(plain)))
    words = [word for word in wanted if word.isalpha() and word.isascii()]
    if words:  # the rarest word is likely the longest: without it, or around it, all is said
        anchor = max(words, key=len)
        folded = plain.casefold()
        if "'" not in folded and "’" not in folded and anchor not in folded:
            return 0.0
        at = folded.find(anchor)
        near = folded[max(0, at - 20 - 2 * len(target)) : at + 20 + 2 * len(target)]
        near = near.partition(" ")[2].rpartition(" ")[0]
        if at >= 0 and _within(wanted, tokens(near)):
            return 1.0
    return float(_within(wanted, read(plain)))


def _within(wanted: list[str], found: list[str]) -> bool:
    return f" {' '.join(wanted)} " in f" {' '.join(found)} "


@grader(version=1)
def grade_f1(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """The F1 of the answer's normalised words against the target's."""
    return _with_tokens(answer, target, read, token_f1, tokens)


@grader(version=1)
def grade_rouge_l(answer: str | None, target: Targets, *, read: Read = "whole") -> Grade:
    """ROUGE-L: the F1 of the longest common subsequence of words (case folded, no stemming)."""
    return _with_tokens(answer, target, read, rouge_l, _rouge_tokens)


def _best(
    answer: str | None, target: Targets, read: Read, value: Callable[[str, str, bool], float]
) -> Grade:
    wanted = _targets(target)
    text, stated = _read(answer, read)
    if text is None:
        return Grade(0.0, None, "no answer")
    return Grade(max(value(text, one, stated) for one in wanted), shown(text))


def _with_tokens(
    answer: str | None,
    target: Targets,
    read: Read,
    value: Callable[[list[str], list[str]], float],
    split: Callable[[str], list[str]],
) -> Grade:
    wanted = _targets(target)
    text, _ = _read(answer, read)
    if text is None:
        return Grade(0.0, None, "no answer")
    note = ""
    considered = text
    if len(text) > 20 * TOKEN_LIMIT:
        considered = text[: 20 * TOKEN_LIMIT]
    found = split(_apart(considered))
    if considered is not text or len(found) > TOKEN_LIMIT:
        found, note = found[:TOKEN_LIMIT], f"only the first {TOKEN_LIMIT} words are graded"
    best = max(value(found, split(_apart(one))[:TOKEN_LIMIT]) for one in wanted)
    return Grade(best, shown(text), note)


def _apart(text: str) -> str:
    """Spaces around every character of scripts that have none between words."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


def _targets(target: Any) -> list[str]:
    given = target if isinstance(target, list | tuple) else [target]
    wanted: list[str] = []
    for one in given:
        if isinstance(one, int) and not isinstance(one, bool):
            wanted.append(str(one))
        elif isinstance(one, str) and one.strip():
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
        raise InvalidInput(f"read is 'stated' or 'whole', got {read!r:.100}")
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
    return _NOT_WORD.sub(_space, unicodedata.normalize("NFKC", text).casefold()).split()


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
