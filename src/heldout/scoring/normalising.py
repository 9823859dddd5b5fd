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
from functools import lru_cache
from itertools import filterfalse

from heldout.scoring.magnitudes import VULGAR
from heldout.scoring.numerals import parse_number

_MARKS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\x7f' + "".join(map(chr, range(32)))
_PUNCTUATION = str.maketrans(dict.fromkeys(_MARKS, " ") | {"'": ""})
_ASCII = bytes(c if c > 127 or chr(c).isalnum() else 32 for c in range(256))
_MAY_BE_MARKS = (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))
_SPECIAL = b"0123456789+#<=>^/\x1a"  # what numbers and signs have, and most words have not
_INITIAL = re.compile(r"\.(?<=[a-z]\.)[a-z]")
ARTICLES = frozenset(("a", "an", "the"))
_AROUND = "\"'()[]{}<>*_`!?;:,“”‘’"  # never part of a number or a word
_QUIET = "\"'()[]{}_`?;:,.“”‘’"  # of these, what is no sign either
_FRACTION = re.compile(rf"(\d{{0,9}})([{''.join(VULGAR)}])")
_RAISED = re.compile(r"(?<=[\w)])[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_VULGAR_OR_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹" + "".join(VULGAR)
_COMMON_MARKS = "’“”‘–—…«»。、，！？：；（）「」।"  # that most texts have no others than
INVISIBLE = "\u200b\u2060\ufeff\u00ad\ufe0f\u200e\u200f"
# Scripts without spaces: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_UNSPACED_RUN = re.compile(UNSPACED.pattern + "+")


def normalised(text: str) -> str:
    """A text with case, Unicode form, punctuation, articles and spaces folded."""
    return " ".join(tokens(text))


def tokens(text: str) -> list[str]:
    """The words of a normalised text; numbers are one token each, `1,000.0` the same as `1000`."""
    plain = text.isascii()
    if "-" in text:
        text = _CHARGED.sub(f" {_CHARGE} ", text)
    whole = folded = folded_case(text if plain else compatible(text))
    if "</" in folded:
        folded = _TAGS.sub(" ", folded)
    if not plain and (alone := _letters_alone(folded)):
        words = alone
    elif not _has_special(folded, plain):
        words = words_of(folded, plain)
    else:
        words = _with_special(folded, plain)
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
    if len(folded.encode().translate(None, _SPECIAL)) < len(folded):
        return True
    if "'" in folded and _CONTRACTED.search(folded):
        return True
    if _INITIAL.search(folded):
        return True
    return ("*" in folded or "|" in folded or "&" in folded or "~" in folded or "!" in folded) and (
        _RARE.search(folded) is not None
    )


_TAGS = re.compile(r"</?[a-z_]{1,20}>")
_CONTRACTED = re.compile(r"['’](?:ll|re)\b")
_RARE = re.compile(r"\w\*\w|\w \* \w|\|\||\w\|\w|&&|(?<!~)~\w|(?<![^\s(])!\w")
_CHARGED = re.compile(  # behind A, Cl, Ca2
    r"[-−](?:(?<=(?<!\w)[A-Z].)|(?<=(?<!\w)[A-Z][a-zA-Z\d].)|(?<=(?<!\w)[A-Z][a-zA-Z\d]\d.))"
    r"(?=[\s.,;)]|\Z)"
)
_CHARGE = "\x1a"  # stands for the minus of Cl-, which is no hyphen


def _letters_alone(folded: str) -> list[str] | None:
    """The words of a text of letters and common punctuation, as most are; None: it is not one."""
    if _has_special_marks(folded):
        return None
    pieces = _without_common_marks(folded.replace("’", "")).split()
    return pieces if "".join(pieces).isalpha() and not UNSPACED.search(folded) else None


def _has_special_marks(folded: str) -> bool:
    if "'" in folded or "’" in folded:
        folded = folded.replace("’", "'")
    return _has_special(folded.encode("ascii", "replace").decode().replace("?", "."), True)


def _without_common_marks(text: str) -> str:
    """Spaces for punctuation in ASCII, and for that which is common in other texts."""
    text = (
        text.encode("utf-8", "surrogatepass")
        .translate(_ASCII, b"'")
        .decode("utf-8", "surrogatepass")
    )
    for mark in _COMMON_MARKS:
        if mark in text:
            text = text.replace(mark, " ")
    return text


def words_of(text: str, plain: bool) -> list[str]:
    if plain:
        return text.translate(_PUNCTUATION).split()
    return split_words(text.replace("'", "").replace("’", ""))


def split_words(text: str) -> list[str]:
    """The runs of letters, digits and the marks that belong to them (`के` is not `की`)."""
    pieces = _without_common_marks(text.replace("'", " ")).split()
    if "".join(pieces).isalnum():
        return pieces
    return _not_in_words().sub(" ", text.replace("_", " ")).split()


@lru_cache(maxsize=1)
def _not_in_words() -> re.Pattern[str]:
    marks = [c for c in map(chr, _MAY_BE_MARKS) if unicodedata.category(c)[0] == "M"]
    return re.compile(rf"[^\w\s{''.join(marks)}]+")


@lru_cache(maxsize=4096)
def _is_symbol(character: str) -> bool:
    """Whether it is a symbol, and no decoration, no bullet and no line of a table."""
    if character < "\x80" or character in "©®™°" or "\u2500" <= character < "\u2600":
        return False
    return unicodedata.category(character) in ("Sm", "So")


# --- Numbers and signs --------------------------------------------------------------------------

_SIGNS = re.compile(
    r"(<=|>=|!=|->|=>|&&|\|\||={1,2}|[<>+^/]|(?<=[\w)])[*|](?=[\w(])|(?<!~)~(?=\w)"
    r"|(?<![^(])!(?=\w)|\A[-](?=[a-z]\Z))"
)
_HAS_SIGNS = re.compile(r"[<>=+^/*|&~!]|\A-[a-z]\Z")
_KEPT_ALONE = frozenset(
    ("<", ">", "=", "==", "<=", ">=", "!=", "+", "^", "/", "&&", "||", "->", "=>")
)
_RULES = re.compile(r"={3,}|-{3,}|~{2,}")  # lines below headings, and what is struck out
_PERCENT = re.compile(r" (?<=\d )(?:percent\b|%)")
_FIRST_MINUS = re.compile(r"\s*[-−]\s+(?=\d)")
_LANGUAGE = re.compile(r"[a-z]{1,20}(?:\+{1,2}|#)")
_INITIALS = re.compile(r"(?:[a-z]\.){1,9}[a-z]")
_LETTER = re.compile(r"[^\W\d_]|:")
_CLOCK = re.compile(r"\d{1,9}(?::\d{1,9}){1,5}")
_SCIENTIFIC = re.compile(r"[-+]?\d{1,30}(?:\.\d{1,30})?e[-+]?\d{1,3}")
_PLAIN_WORD = re.compile(r"[a-z0-9]+")


def _with_special(folded: str, plain: bool) -> list[str]:
    """The words of a folded text, some of which are numbers, or signs, or `c++`, or `u.s.`"""
    if "==" in folded or "~~" in folded or "---" in folded:
        folded = _RULES.sub(" ", folded)
    if "percent" in folded or " %" in folded:
        folded = _PERCENT.sub("%", folded)
    if folded[:1] in "-− ":
        folded = _FIRST_MINUS.sub("-", folded, count=1)
    if not plain:
        folded = folded.replace("−", "-").replace("’", "'")
        folded = _UNSPACED_RUN.sub(r" \g<0> ", folded)
        if symbols := set(filter(_is_symbol, set(folded))):
            folded = folded.translate({ord(symbol): f" {symbol} " for symbol in symbols})
    pieces = folded.split()
    words: list[str] = []
    for place, whole in enumerate(pieces):
        piece = whole
        if piece.isalpha() or (piece := piece.strip(_QUIET)).isalpha():
            words.append(piece)
        elif not piece:
            continue
        elif len(piece) <= 2 and not piece.isalnum() and (not plain or _is_sign(piece)):
            words += _alone(piece, place, pieces)
        else:
            words += _of_piece(whole, plain)
    return words


def _is_sign(piece: str) -> bool:
    return piece in _KEPT_ALONE or piece in ("*", _CHARGE)


def _alone(piece: str, place: int, pieces: list[str]) -> list[str]:
    """What a sign between spaces is: a word, a bullet or a quote."""
    if piece == "*":
        near = pieces[place - 1 : place] + pieces[place + 1 : place + 2]
        sides = [side.strip("()") for side in near]
        return ["*"] if len(sides) == 2 and all(len(s) == 1 or s.isdecimal() for s in sides) else []
    if piece == _CHARGE:
        return ["-"]
    if piece in _KEPT_ALONE:
        return [piece] if place else []  # at the very beginning, it quotes
    if len(piece) == 1 and _is_symbol(piece):
        return [piece]
    return _of_piece(piece, plain=piece.isascii())


def _of_piece(piece: str, plain: bool) -> list[str]:
    """The words of what stands between two spaces."""
    core = piece.strip(_AROUND).rstrip(".")
    if not _HAS_SIGNS.search(piece):
        if core.isalpha() or (plain and core.isdecimal() and core[0] != "0"):
            return [core]
        token = _special(core)
        return [token] if token is not None else _plain_words(piece, plain)
    if (token := _special(core)) is not None and not piece.startswith(("<", ">", "!")):
        return [token]
    words: list[str] = []
    for place, part in enumerate(_SIGNS.split(piece)):
        if place % 2:
            words.append(part)
        elif part:
            after = bool(words) and words[-1] in _KEPT_ALONE
            if after and part[0] == "-" and part[1:2].isalpha():
                words.append("-")
            inner = part.strip(_AROUND).rstrip(".")
            token = inner if inner.isalpha() else _special(inner)
            words += [token] if token else _plain_words(part, plain)
    return words


def _plain_words(piece: str, plain: bool) -> list[str]:
    if _CONTRACTED.search(piece):
        return [piece.strip(_AROUND + ".")]
    return _PLAIN_WORD.findall(piece.replace("'", "")) if plain else words_of(piece, plain)


def _special(core: str) -> str | None:
    """What punctuation matters to: a number, as its value, or `c++`, or `u.s.`, or `3:30`"""
    if _LETTER.search(core):
        if core[-1] in "+#" and _LANGUAGE.fullmatch(core):
            return core
        if _CLOCK.fullmatch(core):
            return core
        if "e" in core and _SCIENTIFIC.fullmatch(core):
            return _number_token(core)
        return core.replace(".", "") if "." in core and _INITIALS.fullmatch(core) else None
    return _number_token(core) if core and len(core) <= 64 else None


@lru_cache(maxsize=4096)
def _number_token(core: str) -> str | None:
    if core[0] == "0" and len(core) > 1 and core.isdecimal():
        return core  # 007
    number = parse_number(core, latex=True)
    if number is None or number.text != core:
        return None
    return f"{number.value}{'%' if number.percent else ''}"
