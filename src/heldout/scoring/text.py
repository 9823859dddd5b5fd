r"""Graders that compare texts: exact, match, includes, SQuAD's F1 and ROUGE-L.

`grade_match` and `grade_includes` compare normalised words (`tokens`): case, Unicode forms,
punctuation, articles and spaces are folded, and no more than that. `-5` does not become 5, `3.5`
not 35, `10²` not 102; a number is its value, `U.S.` is `US`, and signs (`=`, `<`, `+`, `∪`, the `-`
of `Cl-`) are words. `grade_f1` and `grade_rouge_l` normalise as the scripts they equal do.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from heldout.errors import InvalidInput
from heldout.scoring.answers import (
    Agreed,
    agree,
    clean,
    is_denied,
    kept,
    statements,
    visible,
    visible_answer,
)
from heldout.scoring.grades import NO_ANSWER, Grade, grader

AnswerScope = Literal["stated", "whole"]
Location = Literal["end", "begin", "any", "exact"]
Targets = str | int | Sequence[str | int]

# --- Normalised words ---------------------------------------------------------------------------

_ARTICLES = frozenset(("a", "an", "the"))
_FOLDED = str.maketrans(
    {
        **{"½": ".5", "¼": ".25", "¾": ".75", "’": "'", "−": "-", "İ": "i"},
        **{raised: f"^{digit}" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
    }
)
# Thai, Lao, Burmese, Khmer, kana and Chinese characters are written without spaces.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0963\u0966-\u0dff"  # of letters
_TOKEN = re.compile(
    r"[^\W\d_](?:\.[^\W\d_])+\.?(?!\w)"  # initials
    r"|(?:(?<![\w)])[-+])?[$€£¥]?(?:\d+(?:[.,:]\d+)*|\.\d+)(?:e[-+]?\d{1,3}(?!\w)|(?![^\W\d_]))%?"
    rf"|(?:[^\W_]+|[{_MARKS}'](?=\w))+[{_MARKS}]*"
    r"|(?<!\w)-(?=[^\W\d_])|(?<=[^\W_])-(?!\w)|!=|(?<=\w)#"
    r"|[^\w\s.,;:!?'\"()\[\]{}`*$€£¥#–—…“”‘•-]"
)
_PERCENT = re.compile(r"(?<=\d) ?(?:percent\b|%)")
_QUIET = '"()[]{}_`?;:,.!*“”‘'  # around a word, never part of it
_NUMBER = re.compile(
    r"[-+]?(?=[\d.])(?:\d{1,3}(?:,\d{3})+|[1-9]\d*|0)?(?:\.\d+)?(?:e[-+]?\d{1,3})?"
)
_MAX_NUMBER = 400  # characters


def tokens(text: str) -> list[str]:
    """Split a text into normalised words, without articles and punctuation.

    A text of nothing but those is its own pieces, so that `+` is not the same nothing as `-`.
    """
    if not text.isascii():
        text = _UNSPACED.sub(r" \g<0> ", nfkc(text.translate(_FOLDED)))
    folded = text.casefold()
    if "%" in folded or "percent" in folded:
        folded = _PERCENT.sub("%", folded)
    words: list[str] = []
    for piece in folded.split():
        bare = piece.strip(_QUIET)
        if bare.isalpha():  # as most are, and much faster
            words.append(bare)
        else:
            words += map(_canonical, _TOKEN.findall(piece))
    return [word for word in words if word not in _ARTICLES] or words or folded.split()


@lru_cache(maxsize=4096)
def _canonical(word: str) -> str:
    """Normalise a number to its value, and initials to letters without full stops."""
    number = re.sub("[$€£¥%]", "", word)
    if number[-1:].isdigit() and number.isascii():
        if len(number) <= _MAX_NUMBER and _NUMBER.fullmatch(number):
            number = str(Fraction(number.replace(",", "")))
        return number + "%" * word.endswith("%")
    return word.replace(".", "") if word[0].isalpha() else word


def nfkc(text: str) -> str:
    """Normalise a text to NFKC, in pieces: long runs of marks take quadratic time."""
    pieces = re.findall(r"\S{1,500}\s*|\s+", text)
    return "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)


_target_tokens = lru_cache(maxsize=1024)(tokens)

# --- Exact, match, includes ---------------------------------------------------------------------


def _check(
    *, read: str = "stated", at_most: int | None = None, location: str = "end", **_: object
) -> None:
    if read not in ("stated", "whole"):
        raise InvalidInput(f"read must be 'stated' or 'whole', got {read!r:.100}")
    if location not in ("end", "begin", "any", "exact"):
        raise InvalidInput(
            f"location must be 'end', 'begin', 'any' or 'exact', got {location!r:.100}"
        )
    if at_most is not None and at_most < 1:
        raise InvalidInput(
            f"at_most must be a number of words from 1 on, or None, got {at_most!r:.100}"
        )


@grader(version=7, check=_check)
def grade_exact(answer: str | None, target: Targets, *, read: AnswerScope = "stated") -> Grade:
    """Grade 1 if the answer equals the target, character for character.

    The stated answer is compared (a box, tag, key or `####`, else a label, else a sentence `the
    answer is …`), without surrounding markup and full stop. If the reply states none, the whole
    reply is compared, without surrounding whitespace. A statement that is cut off is no answer.
    Nor are several that differ, unless a later one corrects the earlier ones.

    Args:
        answer: The reply.
        target: The correct text, or a list of correct texts. An integer is compared as its digits.
        read: `whole` compares the whole reply even if it states an answer.

    Returns:
        1.0 if they are equal, else 0.0; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or not a text.
    """
    return _best(answer, target, read, _is_same)


def _is_same(text: str, target: str) -> float:
    return float(text == target.strip() or text == clean(target))


@grader(version=7, check=_check)
def grade_match(
    answer: str | None, target: Targets, *, location: Location = "end", read: AnswerScope = "stated"
) -> Grade:
    """Grade 1 if the answer ends with the target, compared word by word.

    Reads the stated answer, or the whole reply if it states none. Case, punctuation, articles,
    whitespace and Unicode forms are ignored, and numbers are compared by value. A target that is
    denied (`It is not Paris`) is wrong, and so is the last of several candidates (`Oslo or Paris`).

    Args:
        answer: The reply.
        target: The correct text, or a list of correct texts. An integer is compared as its digits.
        location: Where the target must be: at the `end`, at the `begin`ning, `any`where, or
            `exact`: the answer is the target and nothing else.
        read: `whole` compares the whole reply even if it states an answer.

    Returns:
        1.0 if the target is there, else 0.0; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or not a text, or `location` is unknown.
    """
    _check(location=location)

    def compare(text: str, target: str) -> float:
        found = _includes(text, target) if location == "any" else _matches(text, target, location)
        if found and location in ("end", "any") and not _is_asserted(text, target, location):
            return 0.0
        return found

    return _best(answer, target, read, compare)


# What stands before one of several candidates: `London or `, `London, Oslo, `
_CANDIDATES = re.compile(
    r"(?:\bor|/)\s*(?:an?\s|the\s)?\Z|(?:\A|[.:!?]\s)(?:[^.:!?\n,;]{1,40}[,;]\s){2,}(?:and\s)?\Z"
    r"|(?:^\s*(?:[-*•]|\d{1,2}[.)])\s.{1,60}\n)+\s*(?:[-*•]|\d{1,2}[.)])\s\Z",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"\S+")


def _is_asserted(text: str, target: str, location: str) -> bool:
    """Return whether a target that stands in a text is not denied, and not one of several."""
    reference, reach, at_end = _target_tokens(target), 2 * len(target) + 40, location == "end"
    words = _WORD.finditer(text, max(0, len(text) - reach) if at_end else 0)
    is_found = False
    for word in reversed(list(words)) if at_end else words:
        near = text[word.start() : word.start() + reach]
        if reference[0] not in tokens(word[0]) or tokens(near)[: len(reference)] != reference:
            continue
        before = text[max(0, word.start() - 200) : word.start()]
        is_right = not is_denied(before) and not (at_end and _CANDIDATES.search(before))
        if is_right or at_end:
            return is_right
        is_found = True
    return not is_found


def _matches(text: str, target: str, location: str) -> float:
    reference = _target_tokens(target)
    tail = text[-2 * len(target) - 40 :] if location == "end" else text
    prediction = tokens(tail.partition(" ")[2]) if len(tail) < len(text) else []
    if len(prediction) <= len(reference):  # the end of a long text mostly has all that counts
        prediction = tokens(text)
    if location == "exact":
        return float(prediction == reference)
    part = prediction[: len(reference)] if location == "begin" else prediction[-len(reference) :]
    return float(part == reference)


@grader(version=7, check=_check)
def grade_includes(
    answer: str | None, target: Targets, *, read: AnswerScope = "whole", at_most: int | None = None
) -> Grade:
    """Grade 1 if the target occurs anywhere in the reply, compared word by word.

    Reads the whole reply, and ignores what `grade_match` ignores. In scripts without spaces the
    target may be part of a longer word. Do not train on this without `at_most`: a reply that lists
    every candidate is right, and a model learns that at once.

    Args:
        answer: The reply.
        target: The correct text, or a list of correct texts. An integer is compared as its digits.
        read: `stated` reads only the stated answer.
        at_most: Maximum number of words; a longer reply is graded 0.

    Returns:
        1.0 if the target occurs, else 0.0; `extracted` is what was searched.

    Raises:
        InvalidInput: The target is empty or not a text, or `at_most` is not a count.
    """
    _check(read=read, at_most=at_most)
    if at_most is not None:
        text, _ = _read(answer, read)
        words = len(_UNSPACED.sub(r" \g<0> ", text).split()) if text else 0
        if text and words > at_most:
            return Grade(0.0, text, f"{words} words, at most {at_most} are looked at")
    return _best(answer, target, read, _includes)


def _includes(text: str, target: str) -> float:
    reference = _target_tokens(target)
    longest = max(reference, key=len)
    if not any(map(str.isalnum, longest)):  # nothing but marks, as they are
        return float("".join(nfkc(target).split()) in "".join(nfkc(text).split()))
    if longest in _ARTICLES:
        return float(_within(reference, re.findall(r"\w+", nfkc(text).casefold())))
    return float(_within(reference, tokens(text)))


def _within(reference: list[str], prediction: list[str]) -> bool:
    return f" {' '.join(reference)} " in f" {' '.join(prediction)} "


# --- F1 and ROUGE-L -----------------------------------------------------------------------------

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SQUAD_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def _squad_words(text: str) -> Counter[str]:
    """Count the words as SQuAD's script does: lower case, no ASCII punctuation, no articles."""
    plain = text.lower().translate(_NO_PUNCTUATION)
    words = plain.split()
    if not all(map(str.isalnum, words)):  # few are not; of the others, an article is a whole word
        words = _SQUAD_ARTICLES.sub(" ", plain).split()
    counts = Counter(words)
    for article in _ARTICLES:
        del counts[article]
    return counts


def _rouge_words(text: str) -> list[str]:
    """Split into words as rouge-score does: the runs of a to z and 0 to 9, in lower case."""
    return re.findall("[a-z0-9]+", text.lower())


@grader(version=7, check=_check)
def grade_f1(answer: str | None, target: Targets, *, read: AnswerScope = "stated") -> Grade:
    """Grade word overlap with the target: the F1 of SQuAD's evaluation script.

    Words are lower-cased; ASCII punctuation and the articles a, an and the are removed. If no words
    are left in either text, they are equal. Reads the stated answer, or the whole reply if it
    states none.

    Args:
        answer: The reply.
        target: The reference text, or several: the best score counts. An integer is compared as
            its digits.
        read: `whole` compares the whole reply even if it states an answer.

    Returns:
        The F1; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or not a text.
    """
    return _best(answer, target, read, _squad_f1)


def _squad_f1(text: str, target: str) -> float:
    ours, theirs = _squad_words(text), _squad_words(target)
    if not ours or not theirs:
        return float(ours == theirs)
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def _f1(common: int, prediction: int, reference: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / prediction, common / reference
    return 2 * precision * recall / (precision + recall)


@grader(version=7, check=_check)
def grade_rouge_l(answer: str | None, target: Targets, *, read: AnswerScope = "whole") -> Grade:
    """Grade the longest common subsequence of words: rouge-score's ROUGE-L F-measure.

    Words are runs of a to z and 0 to 9 in lower case, without stemming, as in the rouge-score
    package. Text in other scripts has no words; the note says so. Reads the whole reply.

    Args:
        answer: The reply.
        target: The reference text, or several: the best score counts. An integer is compared as
            its digits.
        read: `stated` reads only the stated answer.

    Returns:
        The F-measure of the longest common subsequence; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or not a text.
    """
    references = _targets(target)
    text, problem = _read(answer, read)
    if text is None:
        return Grade(0.0, None, problem)
    value = max([_rouge_l(text, reference) for reference in references])
    has_words = value or (any(map(_rouge_words, references)) and _rouge_words(text))
    return Grade(value, text, "" if has_words else "ROUGE reads only words of a-z and 0-9")


def _rouge_l(text: str, target: str) -> float:
    ours, theirs = _rouge_words(text), _rouge_words(target)
    return _f1(common_length(theirs, ours), len(ours), len(theirs))


def common_length(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Find the length of the longest common subsequence, a whole row of its table at a time.

    A bit of `row` is 0 where the table rises, so that a row costs a few operations on one
    integer instead of a loop.
    """
    places: dict[Hashable, int] = {}
    for place, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << place
    full = row = (1 << len(first)) - 1
    for place_of in filter(None, map(places.get, second)):
        if same := row & place_of:
            row = (row + same | row - same) & full
    return len(first) - row.bit_count()


# --- What is compared ---------------------------------------------------------------------------


def _best(
    answer: str | None, target: Targets, read: AnswerScope, compare: Callable[[str, str], float]
) -> Grade:
    """Grade against each target, and return the best grade."""
    references = _targets(target)
    text, problem = _read(answer, read)
    if text is None:
        return Grade(0.0, None, problem)
    return Grade(max([compare(text, reference) for reference in references]), text)


def _targets(target: Any) -> list[str]:
    several = target if isinstance(target, list | tuple) else [target]
    texts = (str(item) if item.__class__ is int else item for item in several)
    references = [visible(item).strip() if isinstance(item, str) else "" for item in texts]
    if not references or not all(references):
        raise InvalidInput(
            "the target (ground_truth) is a text or a whole number, or a list of those that are "
            f"all right, none empty, got {target!r:.100}"
        )
    return references


def _read(answer: str | None, read: AnswerScope) -> tuple[str | None, str]:
    """Return the text to grade, or None and the reason."""
    _check(read=read)
    text = visible_answer(answer)
    if text is None:
        return None, NO_ANSWER.note
    return (text, "") if read == "whole" else stated_text(text)


def stated_text(text: str) -> tuple[str | None, str]:
    """Return the stated answer of a visible text, else all of it; None and why it is ambiguous."""
    stated, left = statements(text), kept(text)
    if not stated:
        return text, ""
    if left != text and not (stated := statements(left)):
        return clean(left) or None, "the stated answer is taken back"
    agreed: Agreed[str] = agree(left, stated, lambda statement: statement.value, _is_restated)
    return agreed


def _is_restated(one: str, other: str) -> bool:
    """Return whether one of two texts is in the other: `Paris` and `Paris, France`."""
    ours, theirs = tokens(one), tokens(other)
    return _within(ours, theirs) or _within(theirs, ours)
