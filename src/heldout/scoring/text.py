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
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, clean, last_statement, shown
from heldout.scoring.grades import NO_ANSWER, Grade, grader

Read = Literal["stated", "whole"]
"""What is graded: the stated answer, or the whole text where none is stated; or always the whole
text."""

Location = Literal["end", "begin", "any", "exact"]

Targets = str | int | Sequence[str | int]

# --- Normalised words ---------------------------------------------------------------------------

_ARTICLES = frozenset(("a", "an", "the"))
_INVISIBLE = "\u200b\u2060\ufeff\u00ad\ufe0f\u200e\u200f"
_FRACTIONS = {"½": ".5", "¼": ".25", "¾": ".75", "⅛": ".125", "⅜": ".375", "⅝": ".625", "⅞": ".875"}
_RAISED = re.compile(r"(?<=[\w)])[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_CHARGE = re.compile(r"(?<![A-Za-z])([A-Z][a-zA-Z]?\d?)[-−](?=[\s.,;)]|\Z)")  # A-, Cl-, Ca2-
_HTML = re.compile(r"</?[A-Za-z_]{1,20}>")
_RULES = re.compile(r"={3,}|-{3,}|~{2,}")  # below headings, and around what is struck out
_PERCENT = re.compile(r"(?<=\d) ?(?:percent\b|%)")
_FIRST = re.compile(r"\s*(?:(-)\s+(?=\d)|[>*•+-]\s)")  # the sign of `- 5`, a quote or a bullet
# Scripts without spaces: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_TOKEN = (
    r"<L>(?:\.<L>)+(?!\w)"  # initials
    r"|<L><W>*(?:'(?:ll|re)(?!\w))?"
    r"|(?:(?<![\w)])[-+])?[$€£¥]?(?:\d+(?:[.,:]\d+)*|\.\d+)(?:e[-+]?\d{1,3}(?!\w))?%?(?![^\W\d_])|<W>+"
    r"|<=|>=|!=|->|=>|&&|\|\||={1,2}|[<>+^/\x1a]|(?<=[\w)])[*|](?=[\w(])"
    r"|(?<![^(])[!~](?=\w)|(?<=[^\W\d_])#(?!\w)|(?<=[=<>+^/(])-(?=[^\W\d_])|\A-(?=[a-z]\Z)"
)
_ASCII_TOKEN = re.compile(_TOKEN.replace("<L>", "[a-z]").replace("<W>", "[a-z0-9]"))
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|[1-9]\d*|0)?(?:\.\d+)?(?:e[-+]?\d{1,3})?")
_QUIET = "\"'()[]{}_`?;:,.“”‘’"  # around a word, never part of it
_MAX_NUMBER = 400  # characters
_PIECE = 1000  # characters that are normalised at a time, since a run of marks takes its square


def tokens(text: str) -> list[str]:
    """Split a text into normalised words.

    Args:
        text: Any text.

    Returns:
        The words without articles, each number as its value. A text of nothing but articles or
        punctuation is its own pieces, so that `+` is not the same nothing as `-`.
    """
    plain = text.isascii()
    if not plain:
        text = _folded_form(text)
    if "-" in text:
        text = _CHARGE.sub("\\1 \x1a ", text)
        if "---" in text:
            text = _RULES.sub(" ", text)
    if "</" in text:
        text = _HTML.sub(" ", text)
    if "==" in text or "~~" in text:
        text = _RULES.sub(" ", text)
    if first := _FIRST.match(text):
        text = (first[1] or "") + text[first.end() :]
    folded = text.casefold()
    if "%" in folded or "percent" in folded:
        folded = _PERCENT.sub("%", folded)
    if "'" in folded:
        folded = re.sub(r"'(?!(?:ll|re)(?!\w))", "", folded)
    pattern = _ASCII_TOKEN if plain else _unicode_token()
    words: list[str] = []
    for piece in folded.split():
        bare = piece.strip(_QUIET)
        if bare.isalpha():  # as most are, and much faster
            words.append(bare)
        elif piece == "*":
            words += ["*"] if words and words[-1].isdigit() else []
        else:
            words += map(_canonical, pattern.findall(piece))
    kept = [word for word in words if word not in _ARTICLES]
    return kept or words or folded.split()


@lru_cache(maxsize=4096)
def _canonical(word: str) -> str:
    """Write a number by its value, initials without points, and a charge as a minus."""
    if word.isalpha():
        return word
    if word == "\x1a":
        return "-"
    number = re.sub(r"[$€£¥%]", "", word)
    if number[-1:].isdigit() and number.isascii():
        if len(number) <= _MAX_NUMBER and _NUMBER.fullmatch(number):
            number = str(Fraction(number.replace(",", "")))
        return number + "%" * word.endswith("%")
    return word.replace(".", "").strip()


@lru_cache(maxsize=1)
def _unicode_token() -> re.Pattern[str]:
    """Build the pattern for other scripts, whose vowel signs and symbols `re` knows nothing of."""
    by_kind: dict[str, list[str]] = {}
    for character in map(chr, (*range(0x80, 0x20000), *range(0xE0100, 0xE01F0))):
        by_kind.setdefault(unicodedata.category(character), []).append(character)
    marks = "".join(character for kind in ("Mn", "Mc", "Me") for character in by_kind[kind])
    symbols = (c for kind in ("Sm", "So") for c in by_kind[kind])
    # Neither decoration, nor bullets, nor lines of tables.
    shown_symbols = (c for c in symbols if c not in "©®™°" and not "\u2500" <= c < "\u2600")
    token = _TOKEN.replace("<L>", r"[^\W\d_]").replace("<W>", rf"(?:[^\W_]|[{marks}])")
    return re.compile(f"{token}|[{re.escape(''.join(shown_symbols))}]")


def _folded_form(text: str) -> str:
    """Fold Unicode forms, without making 21/2 of 2½ or 102 of 10²."""
    for character in _INVISIBLE:
        text = text.replace(character, "")
    if any(character in text for character in _FRACTIONS):
        for character, written in _FRACTIONS.items():
            text = text.replace(character, written)
    if _RAISED.search(text):
        text = _RAISED.sub(lambda power: "^" + power[0], text)
    text = nfkc(text).replace("’", "'").replace("−", "-").replace("İ", "i")
    return _UNSPACED.sub(r" \g<0> ", text) if _UNSPACED.search(text) else text


def nfkc(text: str) -> str:
    """Bring a text into Unicode's NFKC form in time that is linear in it."""
    if len(text) <= _PIECE:
        return unicodedata.normalize("NFKC", text)
    pieces: list[str] = []
    at = 0
    while at < len(text):
        end = at + _PIECE
        if end < len(text):
            end = text.rfind(" ", at + 1, end) + 1 or end
            while end > at + _PIECE // 2 and unicodedata.combining(text[end]):
                end -= 1
        pieces.append(unicodedata.normalize("NFKC", text[at:end]))
        at = end
    return "".join(pieces)


_target_tokens = lru_cache(maxsize=1024)(tokens)

# --- Exact, match, includes ---------------------------------------------------------------------

_NOTHING = _INVISIBLE + string.whitespace + "\u00a0\u3000"


def _check(
    *, read: Any = "stated", at_most: Any = None, location: Any = "end", **_: object
) -> None:
    if read not in ("stated", "whole"):
        raise InvalidInput(f"read is 'stated' or 'whole', got {read!r:.100}")
    if location not in ("end", "begin", "any", "exact"):
        raise InvalidInput(f"location is 'end', 'begin', 'any' or 'exact', got {location!r:.100}")
    is_count = isinstance(at_most, int) and not isinstance(at_most, bool)
    if at_most is not None and not (is_count and at_most > 0):
        raise InvalidInput(f"at_most is a number of words from 1 on, or None, got {at_most!r:.100}")


@grader(version=3, check=_check)
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


@grader(version=3, check=_check)
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
    elif location == "exact" and len(text) > 50 * reach:
        return 0.0
    prediction = tokens(text)
    if location == "exact":
        return float(prediction == reference)
    part = prediction[: len(reference)] if location == "begin" else prediction[-len(reference) :]
    return float(part == reference)


@grader(version=3, check=_check)
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
            return Grade(0.0, shown(text), f"{words} words, at most {at_most} are looked at")
    return _best(answer, target, read, _includes)


_MAX_NEAR = 20


def _includes(text: str, target: str) -> float:
    reference = _target_tokens(target)
    if not any(character.isalnum() for word in reference for character in word):
        marks = nfkc(target).casefold().split()
        return float(" ".join(marks) in " ".join(nfkc(text).casefold().split()))
    if all(word in _ARTICLES for word in reference):
        return float(_within(reference, re.findall(r"\w+", text.casefold())))
    anchor = max(
        (word for word in reference if word.isalpha() and word.isascii()), key=len, default=""
    )
    if anchor and text.isascii() and "'" not in text:
        # Most texts do not have the longest word at all; else only what is around it is read.
        low, reach = text.lower(), 2 * len(target) + 24
        at = low.find(anchor)
        for _ in range(_MAX_NEAR):
            if at < 0:
                return 0.0
            start, end = max(0, at - reach), at + reach
            near = text[start:end]
            near = near if start == 0 else near.partition(" ")[2]
            near = near if end >= len(text) else near.rpartition(" ")[0]
            if _within(reference, tokens(near)):
                return 1.0
            if "." in near or "  " in near or "\n" in near:
                break  # initials, or words far apart: all of it has to be read
            at = low.find(anchor, at + 1)
    return float(_within(reference, tokens(text)))


def _within(reference: list[str], prediction: list[str]) -> bool:
    return f" {' '.join(reference)} " in f" {' '.join(prediction)} "


# --- F1 and ROUGE-L -----------------------------------------------------------------------------

_PUNCTUATION = string.punctuation.encode()
_SQUAD_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_SQUAD = bytes(
    32 if chr(c).isspace() else c + 32 if 65 <= c < 91 else c * (32 < c < 127) for c in range(256)
)
_ROUGE = bytes(c if c < 128 and chr(c).isalnum() else 32 for c in range(256))
_LETTERS_ALIKE = bytes(32 if c == 32 else 97 for c in range(256))
_FEW = 16  # words of a target that are counted one by one


def squad_tokens(text: str) -> list[str]:
    """Split a text as SQuAD's script does: lower case, no ASCII punctuation, no articles."""
    low = text.lower().encode("utf-8", "surrogatepass").translate(None, _PUNCTUATION)
    return _SQUAD_ARTICLES.sub(" ", low.decode("utf-8", "surrogatepass")).split()


def rouge_tokens(text: str) -> list[str]:
    """Split a text as rouge-score does: the runs of a to z and 0 to 9, in lower case."""
    return text.lower().encode("ascii", "replace").translate(_ROUGE).decode().split()


# No list of words is made, which is what takes the time in a long text: each word is counted with
# the spaces around it.


def _count_words(flat: bytes) -> int:
    return flat.translate(_LETTERS_ALIKE).count(b" a")


def _count_word(flat: bytes, word: bytes) -> int:
    count = flat.count(word)
    if count and word + word[1:] in flat:  # `the the` has one space for both
        return flat.replace(b" ", b"  ").count(word)
    return count


@grader(version=3, check=_check)
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
    references = _targets(target)
    text = _read(answer, read)
    if text is None:
        return NO_ANSWER
    return Grade(max([_squad_f1(text, reference) for reference in references]), shown(text))


@lru_cache(maxsize=1024)
def _squad_target(target: str) -> tuple[list[str], list[tuple[bytes, int]]]:
    """Return the words of a target, and how often each occurs."""
    reference = squad_tokens(target)
    return reference, [(b" %b " % word.encode(), n) for word, n in Counter(reference).items()]


def _squad_f1(text: str, target: str) -> float:
    reference, times = _squad_target(target)
    flat = text.encode().translate(_SQUAD, _PUNCTUATION) if text.isascii() else b"\0"
    if b"\0" in flat or not reference or len(times) > _FEW:
        return token_f1(squad_tokens(text), reference)
    flat = b" %b " % flat
    articles = sum([_count_word(flat, word) for word in (b" a ", b" an ", b" the ")])
    common = sum([min(_count_word(flat, word), n) for word, n in times])
    return _f1(common, _count_words(flat) - articles, len(reference))


def token_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F1 of two bags of words."""
    if not prediction or not reference:
        return float(not prediction and not reference)
    common = sum((Counter(prediction) & Counter(reference)).values())
    return _f1(common, len(prediction), len(reference))


def _f1(common: int, prediction: int, reference: int) -> float:
    if not common:
        return 0.0
    precision, recall = common / prediction, common / reference
    return 2 * precision * recall / (precision + recall)


@grader(version=3, check=_check)
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
    graded = [_rouge_f1(text, _rouge_target(reference)) for reference in references]
    has_words = any(map(_rouge_target, references)) and (any(graded) or rouge_tokens(text))
    note = "" if has_words else "ROUGE reads only words of a-z and 0-9"
    return Grade(max(graded), shown(text), note)


_rouge_target = lru_cache(maxsize=1024)(rouge_tokens)


def _rouge_f1(text: str, reference: list[str]) -> float:
    if len(reference) > _FEW:
        return rouge_l(rouge_tokens(text), reference)
    flat = b" %b " % text.lower().encode("ascii", "replace").translate(_ROUGE)
    places: list[tuple[int, str]] = []
    for word in set(reference):
        needle = b" %b " % word.encode()
        at = flat.find(needle)
        while at >= 0:
            places.append((at, word))
            at = flat.find(needle, at + len(needle) - 1)
    shared = [word for _, word in sorted(places)]
    return _f1(_common_length(reference, shared), _count_words(flat), len(reference))


def rouge_l(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return the F1 of the longest common subsequence of two lists of words."""
    if not prediction or not reference:
        return 0.0
    return _f1(_common_length(reference, prediction), len(prediction), len(reference))


def _common_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Find the length of the longest common subsequence, a whole row of its table at a time.

    A bit of `row` is 0 where the table rises, so that a row costs a few operations on one
    integer instead of a loop.
    """
    places: dict[str, int] = {}
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
    return Grade(max([compare(text, reference) for reference in references]), shown(text))


def _targets(target: Any) -> list[str]:
    if target.__class__ is str and target.strip(_NOTHING):
        return [target]
    several = target if isinstance(target, list | tuple) else [target]
    references: list[str] = []
    for item in several:
        if isinstance(item, int) and not isinstance(item, bool):
            references.append(str(item))
        elif isinstance(item, str) and item.strip(_NOTHING):
            references.append(item)
    if not references or len(references) != len(several):
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
