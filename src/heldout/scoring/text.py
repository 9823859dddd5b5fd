r"""Text against text: exact, match, includes, SQuAD's F1 and ROUGE-L.

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
from heldout.scoring.answers import answer_text, clean, last_statement
from heldout.scoring.grades import NO_ANSWER, Grade, grader

Read = Literal["stated", "whole"]
Location = Literal["end", "begin", "any", "exact"]
Targets = str | int | Sequence[str | int]

# --- Normalised words ---------------------------------------------------------------------------

_ARTICLES = frozenset(("a", "an", "the"))
_INVISIBLE = "\u200b\u2060\ufeff\u00ad\ufe0f\u200e\u200f"
_FOLDED = str.maketrans(
    {
        **{"½": ".5", "¼": ".25", "¾": ".75", "’": "'", "−": "-", "İ": "i"},
        **{raised: f"^{digit}" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")},
        **dict.fromkeys(_INVISIBLE),
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
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|[1-9]\d*|0)?(?:\.\d+)?(?:e[-+]?\d{1,3})?")
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
    """Write a number by its value, and initials without points."""
    number = re.sub("[$€£¥%]", "", word)
    if number[-1:].isdigit() and number.isascii():
        if len(number) <= _MAX_NUMBER and _NUMBER.fullmatch(number):
            number = str(Fraction(number.replace(",", "")))
        return number + "%" * word.endswith("%")
    return word.replace(".", "") if word[0].isalpha() else word


def nfkc(text: str) -> str:
    """Bring a text into Unicode's NFKC form, in pieces: a run of marks takes its square."""
    pieces = re.findall(r"\S{1,500}\s*|\s+", text)
    return "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)


_target_tokens = lru_cache(maxsize=1024)(tokens)

# --- Exact, match, includes ---------------------------------------------------------------------

_NOTHING = _INVISIBLE + string.whitespace + "\u00a0\u3000"


def _check(
    *, read: str = "stated", at_most: int | None = None, location: str = "end", **_: object
) -> None:
    if read not in ("stated", "whole"):
        raise InvalidInput(f"read is 'stated' or 'whole', got {read!r:.100}")
    if location not in ("end", "begin", "any", "exact"):
        raise InvalidInput(f"location is 'end', 'begin', 'any' or 'exact', got {location!r:.100}")
    if at_most is not None and at_most < 1:
        raise InvalidInput(f"at_most is a number of words from 1 on, or None, got {at_most!r:.100}")


@grader(version=5, check=_check)
def grade_exact(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """Grade an answer that has to be the target, character for character.

    The stated answer counts (the last box, tag, key, `####` or label, else the last sentence `the
    answer is …`), without the markup and full stop around it; where none is stated, the whole text
    without the space around it. A statement that breaks off is no answer.

    Args:
        answer: The reply.
        target: The text, or several that are all right. A whole number is its digits.
        read: `whole` grades the whole text even where an answer is stated.

    Returns:
        1.0 where they are the same, else 0.0; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or no text.
    """
    return _best(answer, target, read, _is_same)


def _is_same(text: str, target: str) -> float:
    return float(text == target.strip() or text == clean(target))


@grader(version=5, check=_check)
def grade_match(
    answer: str | None, target: Targets, *, location: Location = "end", read: Read = "stated"
) -> Grade:
    """Grade an answer that has to end with the target, as whole normalised words.

    It reads the stated answer, or the whole text where none is stated. Case, punctuation, articles,
    spaces and Unicode forms are folded and numbers compared by value before the words are compared.

    Args:
        answer: The reply.
        target: The text, or several that are all right. A whole number is its digits.
        location: Where the target has to stand: at the `end` or `begin`ning, `any`where, or
            `exact` for an answer that is the target and nothing else.
        read: `whole` grades the whole text even where an answer is stated.

    Returns:
        1.0 where the target stands there, else 0.0; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or no text, or `location` is unknown.
    """
    if location not in ("end", "begin", "exact"):
        _check(location=location)
        return _best(answer, target, read, _includes)
    return _best(answer, target, read, lambda text, target: _matches(text, target, location))


def _matches(text: str, target: str, location: str) -> float:
    if text == target:
        return 1.0
    reference = _target_tokens(target)
    reach = 2 * len(target) + 40
    if location == "end" and len(text) > reach:  # the end of a long text has all words that count
        prediction = tokens(text[-reach:].partition(" ")[2])
        if len(prediction) > len(reference):
            return float(prediction[-len(reference) :] == reference)
    prediction = tokens(text)
    if location == "exact":
        return float(prediction == reference)
    part = prediction[: len(reference)] if location == "begin" else prediction[-len(reference) :]
    return float(part == reference)


@grader(version=5, check=_check)
def grade_includes(
    answer: str | None, target: Targets, *, read: Read = "whole", at_most: int | None = None
) -> Grade:
    """Grade an answer in which the target has to stand somewhere, as whole normalised words.

    It reads the whole text. In scripts that write no spaces, any part of it counts. Without a bound
    an answer that lists everything is right, which a model in training learns at once: this is no
    reward.

    Args:
        answer: The reply.
        target: The text, or several that are all right. A whole number is its digits.
        read: `stated` reads the stated answer only.
        at_most: The most words that an answer may have; a longer one is a 0.

    Returns:
        1.0 where the target stands in it, else 0.0; `extracted` is what was searched.

    Raises:
        InvalidInput: The target is empty or no text, or `at_most` is no count.
    """
    _check(read=read, at_most=at_most)
    if at_most is not None:
        text = _read(answer, read)
        words = len(_UNSPACED.sub(r" \g<0> ", text).split()) if text else 0
        if text and words > at_most:
            return Grade(0.0, text, f"{words} words, at most {at_most} are looked at")
    return _best(answer, target, read, _includes)


def _includes(text: str, target: str) -> float:
    reference = _target_tokens(target)
    longest = max(reference, key=len)
    if not longest.strip(string.punctuation):  # nothing but marks, as they are
        return float("".join(nfkc(target).split()) in "".join(nfkc(text).split()))
    if longest in _ARTICLES:
        return float(_within(reference, re.findall(r"\w+", text.casefold())))
    if longest.isalpha() and text.isascii():
        # Most texts do not have the longest word at all, and those that have it, near the others.
        low, reach = text.lower(), len(target) + 8
        at = low.rfind(longest)
        if at < 0 and (len(longest) > 5 or "." not in text):  # else it may be initials
            return 0.0
        for _ in range(20):
            near = f" {low} "[max(0, at - reach) : max(0, at + reach)]
            if _within(reference, tokens(near.partition(" ")[2].rpartition(" ")[0])):
                return 1.0
            at = low.rfind(longest, 0, max(0, at))
            if at < 0:
                break
    return float(_within(reference, tokens(text)))


def _within(reference: list[str], prediction: list[str]) -> bool:
    return f" {' '.join(reference)} " in f" {' '.join(prediction)} "


# --- F1 and ROUGE-L -----------------------------------------------------------------------------

_PUNCTUATION = string.punctuation.encode()
_SQUAD_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SQUAD = bytes(
    32 if chr(c).isspace() else c + 32 if 65 <= c < 91 else c * (32 < c < 127) for c in range(256)
)
_ROUGE = bytes(ord(chr(c).lower()) if c < 128 and chr(c).isalnum() else 32 for c in range(256))
_FEW = 16  # words of a target that are looked for one by one, without a list of all words


def _flat(words: bytes) -> bytes:
    """Put one space between words and around them, so that each is found as `b" word "`."""
    flat = b" %b " % words
    while flat.rfind(b"  ") >= 0:
        flat = flat.replace(b"  ", b" ")
    return flat


def _squad_words(text: str) -> bytes:
    """Normalise as SQuAD's script does: lower case, no ASCII punctuation; articles may be left."""
    if text.isascii():
        flat = text.encode().translate(_SQUAD, _PUNCTUATION)
        if b"\0" not in flat:  # any other control character
            return _flat(flat)
    low = text.lower().encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION)
    words = _SQUAD_ARTICLES.sub(" ", low.decode("utf-8", "surrogatepass")).split()
    return _flat(" ".join(words).encode("utf-8", "surrogatepass"))


def _rouge_words(text: str) -> bytes:
    """Normalise as rouge-score does: the runs of a to z and 0 to 9, in lower case."""
    low = text if text.isascii() else text.lower()  # the table has lower case, but of ASCII only
    return _flat(low.encode("ascii", "replace").translate(_ROUGE))


_SPACED_ARTICLES = (b" a ", b" an ", b" the ")


@lru_cache(maxsize=1024)
def _squad_target(target: str) -> tuple[Counter[bytes], int]:
    counts = _counted(_squad_words(target))
    for article in _SPACED_ARTICLES:
        counts.pop(article, None)
    return counts, counts.total()


_rouge_target = lru_cache(maxsize=1024)(lambda target: _rouge_words(target).split())


@grader(version=5, check=_check)
def grade_f1(answer: str | None, target: Targets, *, read: Read = "stated") -> Grade:
    """Grade the words that answer and target share: the F1 of SQuAD's script, on every pair.

    Words are lower-cased, without ASCII punctuation and the articles a, an and the. Two texts
    without any word left are the same. It reads the stated answer, or the whole text where none is
    stated.

    Args:
        answer: The reply.
        target: The text, or several, of which the best counts. A whole number is its digits.
        read: `whole` grades the whole text even where an answer is stated.

    Returns:
        The F1; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or no text.
    """
    return _best(answer, target, read, _squad_f1)


def _squad_f1(text: str, target: str) -> float:
    reference, total = _squad_target(target)
    words = _squad_words(text)
    length = words.count(b" ") - 1
    for article in _SPACED_ARTICLES:
        if words.rfind(article) >= 0:  # faster than `in`
            length -= _count(words, article)
    if not length or not total:
        return float(not length and not total)
    if len(reference) > _FEW:
        return _f1((_counted(words) & reference).total(), length, total)
    common = 0
    for word, count in reference.items():
        if words.rfind(word) >= 0:
            common += 1 if count == 1 else min(count, _count(words, word))
    return _f1(common, length, total)


def _counted(words: bytes) -> Counter[bytes]:
    return Counter(b" %b " % word for word in words.split())


def _count(words: bytes, word: bytes) -> int:
    is_repeated = words.rfind(word + word[1:]) >= 0  # with one space between them, not two
    return _counted(words)[word] if is_repeated else words.count(word)


def _f1(common: int, prediction: int, reference: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / prediction, common / reference
    return 2 * precision * recall / (precision + recall)


@grader(version=5, check=_check)
def grade_rouge_l(answer: str | None, target: Targets, *, read: Read = "whole") -> Grade:
    """Grade the words that answer and target share in order: rouge-score's ROUGE-L F-measure.

    Words are runs of a to z and 0 to 9 in lower case, without stemming, as in the rouge-score
    package: other scripts have none, which the note says. It reads the whole text.

    Args:
        answer: The reply.
        target: The text, or several, of which the best counts. A whole number is its digits.
        read: `stated` reads the stated answer only.

    Returns:
        The F-measure of the longest common subsequence; `extracted` is what was compared.

    Raises:
        InvalidInput: The target is empty or no text.
    """
    references = _targets(target)
    text = _read(answer, read)
    if text is None:
        return NO_ANSWER
    value = max([_rouge_l(text, reference) for reference in references])
    has_words = value or (any(map(_rouge_target, references)) and _rouge_words(text).strip())
    return Grade(value, text, "" if has_words else "ROUGE reads only words of a-z and 0-9")


def _rouge_l(text: str, target: str) -> float:
    reference = _rouge_target(target)
    words = _rouge_words(text)
    if len(reference) > _FEW:
        shared = words.split()
    else:
        places: list[tuple[int, bytes]] = []
        for word in set(reference):
            at = words.rfind(b" %b " % word)
            while at >= 0:
                places.append((at, word))
                at = words.rfind(b" %b " % word, 0, at + 1)
        shared = [word for _, word in sorted(places)]
    return _f1(common_length(reference, shared), words.count(b" ") - 1, len(reference))


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
    answer: str | None, target: Targets, read: Read, compare: Callable[[str, str], float]
) -> Grade:
    """Grade with the target that suits best."""
    references = _targets(target)
    text = _read(answer, read)
    if text is None:
        return NO_ANSWER
    return Grade(max([compare(text, reference) for reference in references]), text)


def _targets(target: Any) -> list[str]:
    if target.__class__ is str and target.strip(_NOTHING):
        return [target]
    several = target if isinstance(target, list | tuple) else [target]
    references = [str(item) if item.__class__ is int else item for item in several]
    if not references or not all(isinstance(x, str) and x.strip(_NOTHING) for x in references):
        raise InvalidInput(
            "the target (ground_truth) is a text or a whole number, or a list of those that are "
            f"all right, none empty, got {target!r:.100}"
        )
    return references


def _read(answer: str | None, read: Read) -> str | None:
    """Return what is graded."""
    if read not in ("stated", "whole"):
        _check(read=read)
    text = answer_text(answer)
    if text is None or read == "whole":
        return text
    statement = last_statement(text)
    return statement.value if statement else text
