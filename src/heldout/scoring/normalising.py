"""Texts as normalised words: case, Unicode forms, punctuation, articles and spaces folded.

No more is folded than that: `-5` does not become 5, `3.5` not 35, `10²` not 102, and vowel signs
stay on their letters. A number is its value, and `U.S.` is `US`. Signs that are no punctuation are
words of their own: `<`, `=`, `+`, `^`, `/`, a `*` between two things, the `-` of `A-` and `Cl-`,
and of Unicode all mathematical and other symbols, so that `x = -1` is not `x = 1`, nor is `A ∪ B`
the same as `A ∩ B`. Markdown, hyphens and dashes are punctuation.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from functools import lru_cache
from itertools import filterfalse

from heldout.scoring.magnitudes import VULGAR
from heldout.scoring.pieces import (
    CHARGE,
    CONTRACTED,
    INITIAL,
    SPECIAL,
    UNSPACED,
    prepared,
    special_pieces,
    with_special,
    without_common_marks,
    words_of,
)

ARTICLES = frozenset(("a", "an", "the"))
_FRACTION = re.compile(rf"(\d{{0,9}})([{''.join(VULGAR)}])")
_RAISED = re.compile(r"(?<=[\w)])[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_VULGAR_OR_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹" + "".join(VULGAR)
INVISIBLE = "\u200b\u2060\ufeff\u00ad\ufe0f\u200e\u200f"


def normalised(text: str) -> str:
    """A text with case, Unicode form, punctuation, articles and spaces folded."""
    return " ".join(tokens(text))


def tokens(text: str) -> list[str]:
    """The words of a normalised text; numbers are one token each, `1,000.0` the same as `1000`."""
    plain = text.isascii()
    if "-" in text:
        text = _CHARGED.sub(f" {CHARGE} ", text)
    whole = folded = folded_case(text if plain else compatible(text))
    if "</" in folded:
        folded = _TAGS.sub(" ", folded)
    if not plain and (alone := _letters_alone(folded)):
        words = alone
    elif not _has_special(folded, plain):
        words = words_of(folded, plain)
    else:
        words = with_special(folded, plain)
    kept = list(filterfalse(ARTICLES.__contains__, words))
    # Where nothing is left, what was there is the text: "+" is not "-", and "A" not "the".
    return kept or words or whole.split()


def folded_case(text: str) -> str:
    folded = text.casefold()
    return folded if text.isascii() else folded.replace("i\u0307", "i")


@lru_cache(maxsize=1024)
def target_tokens(target: str) -> list[str]:
    """The same of a target, which is asked for once an answer; nobody changes the list."""
    return tokens(target)


_COUNTED = bytes(c if chr(c).isalnum() and c < 128 else 32 for c in range(256))
_LETTERS_ALIKE = bytes(c if c == 32 else 97 for c in range(256))


def counted(text: str, words: Collection[str]) -> tuple[int, list[int]] | None:
    """How many tokens a text has and how often these are among them, which is faster than to make
    them; None: they have to be made."""
    if not text.isascii():
        return None
    if "-" in text:
        text = _CHARGED.sub(f" {CHARGE} ", text)
    folded = text.casefold()
    if "</" in folded:
        folded = _TAGS.sub(" ", folded)
    others: list[str] = []
    if _has_special(folded, True):
        folded = prepared(folded)
        special = special_pieces(folded)
        if special is None:
            return None
        at, plain = 0, []
        for start, end, found in special:
            plain.append(folded[at:start])
            others += found
            at = end
        folded = " ".join([*plain, folded[at:]])
        others = list(filterfalse(ARTICLES.__contains__, others))
    flat = b" %b " % folded.encode().translate(_COUNTED, b"'")
    count = flat.translate(_LETTERS_ALIKE).count(b" a") + len(others)
    count -= sum([_times(flat, word) for word in (b"a", b"an", b"the")])
    if not count:
        return None
    times = []
    for word in words:
        here = _times(flat, word.encode()) if word.isascii() and word.isalpha() else 0
        times.append(0 if word in ARTICLES else here + others.count(word))
    return count, times


def _times(flat: bytes, word: bytes) -> int:
    """How often a word stands between spaces."""
    times = flat.count(b" %b " % word)
    if times > 0 and b" %b %b " % (word, word) in flat:
        return flat.replace(b" ", b"  ").count(b" %b " % word)  # a space is for one word only
    return times


# --- Unicode ------------------------------------------------------------------------------------

_PIECE = 1000  # characters that are normalised at a time, since a run of marks takes its square


def compatible(text: str) -> str:
    """In compatibility form, which alone would make 21/2 of 2½ and 102 of 10², and without what is
    not seen."""
    for character in INVISIBLE:
        if character in text:
            text = text.replace(character, "")
    form = nfkc(text)
    if form == text or not any(character in text for character in _VULGAR_OR_RAISED):
        return form
    text = _FRACTION.sub(_written_out, text)
    text = _RAISED.sub(lambda found: "^" + found[0], text)
    return nfkc(text)


def nfkc(text: str) -> str:
    """The text in compatibility form, in time that is linear in it, whatever is in it."""
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


def _written_out(found: re.Match[str]) -> str:
    above, below = VULGAR[found[2]]
    return f"{int(found[1] or 0) * below + above}/{below}"


# --- Words --------------------------------------------------------------------------------------


def _has_special(folded: str, plain: bool) -> bool:
    """Whether there may be a number, a sign, `c++`, or `u.s.`, found by what is rare in them."""
    if not plain:
        return True
    if len(folded.encode().translate(None, SPECIAL)) < len(folded):
        return True
    if "'" in folded and CONTRACTED.search(folded):
        return True
    if INITIAL.search(folded):
        return True
    return ("*" in folded or "|" in folded or "&" in folded or "~" in folded or "!" in folded) and (
        _RARE.search(folded) is not None
    )


_TAGS = re.compile(r"</?[a-z_]{1,20}>")
_RARE = re.compile(r"\w\*\w|\w \* \w|\|\||\w\|\w|&&|(?<!~)~\w|(?<![^\s(])!\w")
_CHARGED = re.compile(  # behind A, Cl, Ca2
    r"[-−](?:(?<=(?<!\w)[A-Z].)|(?<=(?<!\w)[A-Z][a-zA-Z\d].)|(?<=(?<!\w)[A-Z][a-zA-Z\d]\d.))"
    r"(?=[\s.,;)]|\Z)"
)


def _letters_alone(folded: str) -> list[str] | None:
    """The words of a text of letters and common punctuation, as most are; None: it is not one."""
    if _has_special_marks(folded):
        return None
    pieces = without_common_marks(folded.replace("’", "")).split()
    return pieces if "".join(pieces).isalpha() and not UNSPACED.search(folded) else None


def _has_special_marks(folded: str) -> bool:
    if "'" in folded or "’" in folded:
        folded = folded.replace("’", "'")
    return _has_special(folded.encode("ascii", "replace").decode().replace("?", "."), True)
