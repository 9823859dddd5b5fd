"""The words of folded text, piece by piece: what stands between spaces, and what it means.

Most pieces are letters with punctuation around them. Numbers, signs, `c++`, `u.s.` and `3:30` are
looked at one by one, and only they are where a text is long.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from heldout.scoring.numerals import parse_number

_MARKS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\x7f' + "".join(map(chr, range(32)))
_PUNCTUATION = str.maketrans(dict.fromkeys(_MARKS, " ") | {"'": ""})
_ASCII = bytes(c if c > 127 or chr(c).isalnum() else 32 for c in range(256))
_MAY_BE_MARKS = (*range(0x300, 0x1F000), *range(0xE0100, 0xE01F0))
SPECIAL = b"0123456789+#<=>^/\x1a"  # what numbers and signs have, and most words have not
INITIAL = re.compile(r"\.(?<=[a-z]\.)[a-z]")
_AROUND = "\"'()[]{}<>*_`!?;:,“”‘’"  # never part of a number or a word
_QUIET = "\"'()[]{}_`?;:,.“”‘’"  # of these, what is no sign either
_COMMON_MARKS = "’“”‘–—…«»。、，！？：；（）「」।"  # that most texts have no others than
CONTRACTED = re.compile(r"['’](?:ll|re)\b")
CHARGE = "\x1a"  # stands for the minus of Cl-, which is no hyphen
# Scripts without spaces: Thai, Lao, Burmese, Khmer, kana, Chinese characters.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)
_UNSPACED_RUN = re.compile(UNSPACED.pattern + "+")

# --- Words --------------------------------------------------------------------------------------


def without_common_marks(text: str) -> str:
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
    pieces = without_common_marks(text.replace("'", " ")).split()
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
_LONE_MINUS = re.compile(r"-[a-z](?<!\S..)(?!\S)")

_SHORT = 200  # characters, of which all pieces are looked at

_Piece = tuple[int, int, list[str]]
# Plain text with spaces for all space, and zeros for what may matter in words.
_SPACES = bytes(c if not chr(c).isspace() else 32 for c in range(128)) + bytes(range(128, 256))
_ROUGH = bytes(48 if c in SPECIAL or c in b"*|&~!" else _SPACES[c] for c in range(256))
_ROUGHEST = bytes(48 if c in b"'.-" else _ROUGH[c] for c in range(256))


def with_special(folded: str, plain: bool) -> list[str]:
    """The words of a folded text, some of which are numbers, or signs, or `c++`, or `u.s.`"""
    folded = prepared(folded)
    special = special_pieces(folded) if plain and len(folded) > _SHORT else None
    if special is not None:
        return _between(folded, special)
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


def prepared(folded: str) -> str:
    """Without rules, and with the signs that belong to numbers at them."""
    if (
        ("=" in folded and "==" in folded)
        or ("~" in folded and "~~" in folded)
        or ("-" in folded and "---" in folded)
    ):
        folded = _RULES.sub(" ", folded)
    if "percent" in folded or ("%" in folded and " %" in folded):
        folded = _PERCENT.sub("%", folded)
    if folded[:1] in "-− ":
        folded = _FIRST_MINUS.sub("-", folded, count=1)
    return folded


def special_pieces(folded: str) -> list[_Piece] | None:
    """In plain text, what stands between two spaces and is not only letters and punctuation, with
    its words. None: there is so much of it, or such, that all pieces have to be looked at."""
    rougher = (
        ("'" in folded and CONTRACTED.search(folded))
        or ("-" in folded and _LONE_MINUS.search(folded))
        or INITIAL.search(folded)
    )
    rough = folded.encode().translate(_ROUGHEST if rougher else _ROUGH)
    if rough.count(b"0") * 16 > len(rough):
        return None
    first = len(folded) - len(folded.lstrip())
    special: list[_Piece] = []
    at = rough.find(b"0")
    while at >= 0:
        start, end = rough.rfind(b" ", 0, at) + 1, rough.find(b" ", at)
        end = end if end >= 0 else len(rough)
        piece = folded[start:end].strip(_QUIET)
        if piece == "*":
            return None  # it depends on what is around it
        if piece.isalpha():
            special.append((start, end, [piece]))
        elif piece and len(piece) <= 2 and not piece.isalnum() and _is_sign(piece):
            special.append((start, end, _alone(piece, int(start > first), [])))
        else:
            special.append((start, end, _of_piece(folded[start:end], True) if piece else []))
        at = rough.find(b"0", end)
    return special


def _between(folded: str, special: list[_Piece]) -> list[str]:
    """All words of a plain text, some of whose pieces are known."""
    words: list[str] = []
    at = 0
    for start, end, found in special:
        words += words_of(folded[at:start], True)
        words += found
        at = end
    return words + words_of(folded[at:], True)


def _is_sign(piece: str) -> bool:
    return piece in _KEPT_ALONE or piece in ("*", CHARGE)


def _alone(piece: str, place: int, pieces: list[str]) -> list[str]:
    """What a sign between spaces is: a word, a bullet or a quote."""
    if piece == "*":
        near = pieces[place - 1 : place] + pieces[place + 1 : place + 2]
        sides = [side.strip("()") for side in near]
        return ["*"] if len(sides) == 2 and all(len(s) == 1 or s.isdecimal() for s in sides) else []
    if piece == CHARGE:
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
    if CONTRACTED.search(piece):
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
