r"""Numbers as people and models write them, read without guessing.

Signs (`-5`, `−5`, `minus 5`, `5 degrees below zero`), thousands (`1,234`, `1.234.567`, `1 234`,
`1'234`, `12,34,567`, `1{,}234`), decimal commas where they can be nothing else (`0,5`,
`1.234,56`), currencies, percent, units, fractions (`3/4`, `1 1/2`, `½`, `\frac{3}{4}`, `2 and a
half`), powers (`1.2e3`, `1.2 × 10^3`, `10⁶`), scales (`3 million`, `3 Millionen`, `3万`, `5
dozen`), and the words from `zero` to `ninety-nine` where they are all there is.

A number is a `Fraction`, so `29.00` is 29 and big numbers keep their last digit. `1,234` and
`1.234` are read the English way unless `decimal=","` says otherwise, and in a box `3,5` is a pair
unless it does. An equation is the number on its right where a lone name is on its left (`x = 4`),
or a calculation that comes to it (`3 + 4 = 7`). What may mean two things (`5 or 7`, `5 ± 2`,
`3:30`, `1.2.3`, `x = 4, y = 5`) and what `surroundings.py` does not leave alone is no number.
"""

from __future__ import annotations

import re
from fractions import Fraction

from heldout.scoring.arithmetic import agrees, calculated
from heldout.scoring.magnitudes import ANY_DIGIT, SPACED, Decimal, Number, matches, read
from heldout.scoring.surroundings import (
    NUMBER_WORDS,
    head_allows,
    is_name,
    is_unit_word,
    tail_allows,
)

# --- The number that a text is ------------------------------------------------------------------

_LONGEST = 1000  # characters of a text that are looked at for the number it is
_SIMPLE = re.compile(
    r"([-+]?)\$?(\d{1,15}|\d{1,3}(?:,\d{3}){1,5})(?:\.(?=\d))?((?<=\.)\d{1,15}|)(\\?%)?"
    r"(?: ([A-Za-z]{2,20}))?"
)
_POWER_OF_TEN = re.compile(r"(-?\d{1,15})(?:\.(\d{1,15}))?[eE]([-+]?\d{1,2})", re.ASCII)
_MIXED = re.compile(r"(\d{1,9}) (\d{1,2})/(\d{1,9})(?: (?!pro)([a-z]{2,20}))?", re.ASCII)
_HEAD = re.compile(
    r"[\s*_(\[{$~≈\"'“≃]{0,8}(?:(?:about|approximately|approx\.?|around|roughly|exactly|only"
    r"|minus|negative|US|USD|EUR|GBP|CHF|Rs\.?|INR|\\approx)[\s:]{0,2}){0,2}[*_($\\]{0,4}",
    re.IGNORECASE,
)
_HEDGE = r"or|and|maybe|perhaps|possibly|alternatively|actually|but|also|if"
_EXPLAINS = re.compile(  # behind a number and its unit: why it is that, with other numbers
    rf"[^\n\d(,;:=]{{0,30}}?(?:\s\((?!{_HEDGE})(?:[^()\d]{{0,40}}\d[\d.,/]{{0,12}}[^()\d]{{1,20}}\d[^()]{{0,80}}"
    r"|(?:where|since|because|given|as|i\.e\.|rounded|base|when|for|at|using|with|in)\b[^()]{0,80}"
    r"|[^()\s]{1,12} of [^()]{0,60})\)[^\d]{0,40}\Z"
    r"|,\s(?:not|found|using|rounded|which|calculated|obtained|computed|derived)\b)",
    re.IGNORECASE,
)
_HEDGED = re.compile(rf"\b(?:{_HEDGE.replace('|and', '')})\s", re.IGNORECASE)
_BOUNDS = (
    *("<", "≤", "≥", "≠", "!=", ">=", "<=", r"\le", r"\leq", r"\ge", r"\geq", r"\ne", r"\neq"),
    *(r"\lt", r"\gt", " than", "not", "n't", "over", "under", "above", "below"),
)
_GREATER = re.compile(r"(?:^|[\s$])\w?\s?>\Z")  # not the end of a tag
_BECAUSE = re.compile(r"\s(?:since|because|where|given|(?<=[,;]\s)as)\b")
_BESIDE = re.compile(
    rf"\s\((?!(?:{_HEDGE})\b)|\s(?:when|if|for|with|at)\s[^\s=]{{1,12}}\s?=[^=]*\Z"
)
_EQUATIONS = re.compile(
    r"=[^=]*(?:[,;]|\b(?:and|or|und|oder|et|ou|y|o)\b)[\s$\\(]{0,4}[^\W\d_]\w{0,8}[\s)]{0,2}="
)
_UNIT_POWERS = re.compile(
    r"((?<![^\W\d_])(?:[cmkdμµn]?m|s|h|ft|in|yd|mi|kg|units?|inch(?:es)?|feet|foot|meters?|metres?"
    r"|seconds?|secs?|mol)|\\(?:text|mathrm|mbox|rm)\s?\{[^{}]{0,40}\})\^\s?\{?\s?[-−]?\d\s?\}?"
)
_LETTER_POWER = re.compile(r"\^(?<=[^\W\d_]\^|\}\^)")
_DEGREES = re.compile(r"\s?\^\s?\{?\s?\\circ\s?\}?")


def parse_number(text: str, *, decimal: Decimal = ".", latex: bool = False) -> Number | None:
    """The number that a short text is: signs, currency and unit around it, and nothing twice.

    `latex` says that the text is in a box: letters are variables there, and `3,5` is a pair.
    """
    if decimal == "." and (simple := _SIMPLE.fullmatch(text)):
        sign, whole, part, percent, unit = simple.groups()
        if not unit or is_unit_word(unit, True, latex):
            digits = int(sign + whole.replace(",", "") + part)
            value = Fraction(digits, 10 ** len(part)) if part else Fraction(digits)
            return Number(value, bool(percent), text[: simple.start(5)].rstrip() if unit else text)
    elif decimal == "." and len(text) < 60 and (number := _common(text, latex)):
        return number
    text = text[:_LONGEST]
    if "^" in text:
        text = _without_unit_powers(text)
    if len(text) > 8:
        text = _before(text, _BECAUSE)
    if "=" in text:
        text = _before(text, _BESIDE)
        if "=" in text:
            return _right_side(text, decimal, latex)
    return _value(text, decimal, latex)


def _common(text: str, latex: bool) -> Number | None:
    """The same as what follows would find for `-1.5e-3` and `3 1/2 km`, and faster."""
    if power := _POWER_OF_TEN.fullmatch(text):
        whole, part, exponent = power[1], power[2] or "", int(power[3])
        above, below = int(whole + part), 10 ** len(part)
        if exponent < 0:
            return Number(Fraction(above, below * 10**-exponent), False, text)
        return Number(Fraction(above * 10**exponent, below), False, text)
    if mixed := _MIXED.fullmatch(text):
        whole, over, under, unit = mixed.groups()
        below = int(under)
        if int(over) < below and (not unit or is_unit_word(unit, True, latex)):
            return Number(
                Fraction(int(whole) * below + int(over), below), False, text[: mixed.end(3)]
            )
    return None


def _before(text: str, explains: re.Pattern[str]) -> str:
    """The text before an explanation, where a number stands before it."""
    found = explains.search(text)
    return text[: found.start()] if found and ANY_DIGIT.search(text, 0, found.start()) else text


def _right_side(text: str, decimal: Decimal, latex: bool) -> Number | None:
    """Of `x = 3 + 4 = 7` what is on the right, and of `7 = 3 + 4` what is on the left."""
    first, *middle, last = text.split("=")
    if _EQUATIONS.search(text) or any(side.endswith(("<", ">", "!")) for side in (first, *middle)):
        return None
    found = _value(last, decimal, latex)
    if found is None:
        found = _single(first, decimal, latex) if _SIMPLE.fullmatch(first.strip()) else None
        return found if found and not middle and calculated(last) == found.value else None
    named = is_name(first)
    for side in middle if named else (first, *middle):
        value = calculated(side)
        if not (named if value is None else agrees(value, found)):
            return None
    return found


def _value(text: str, decimal: Decimal, latex: bool) -> Number | None:
    found = _single(text, decimal, latex)
    if found is None:
        # 2√3 ≈ 3.46: rounded, but a number, where the other side would have to be calculated.
        for sign in ("≈", "\\approx"):
            left, said, right = text.rpartition(sign)
            if said and (is_name(left) or not _VARIABLE.search(left)):
                return _single(right, decimal, latex)
    return found


_VARIABLE = re.compile(r"(?<![^\W\d_\\])[^\W\d_](?![^\W\d_])")


def _single(text: str, decimal: Decimal, latex: bool) -> Number | None:
    if " " in text:
        text = SPACED.sub(_joined, text)
    found = matches(text)
    if not found:
        return word_number(text)
    first = read(text, found[0], decimal, latex)
    if first is None:
        return None
    number, start, end = first
    tail = text[end:]
    if len(found) > 1 and not _is_same(text, found[1:], number, decimal):
        # A number at the head is the answer; what explains it may have numbers, too.
        opens = _HEAD.match(text)
        explains = _EXPLAINS.match(tail) if opens and opens.end() >= start else None
        if not explains or _HEDGED.search(tail):
            return None
        tail = tail[: ANY_DIGIT.search(tail).start()].rpartition("(")[0]  # type: ignore[union-attr]
    head = text[:start]
    if "(" in text and (again := _IN_WORDS.search(text)) and _says(again, number):
        head = head.replace(again[0], "(")
        tail = tail.replace(again[0], " ")
    if _is_bound(text, start) or not head_allows(head):
        return None
    return number if tail_allows(tail, latex) else None


_IN_WORDS = re.compile(
    r"\A([a-z]{3,9}(?:[ -][a-z]{3,5})?)\s\(|\s\(([a-z]{3,9}(?:[ -][a-z]{3,5})?)\)", re.IGNORECASE
)


def _says(again: re.Match[str], number: Number) -> bool:
    """Whether words in brackets, or before them, are the number again: 7 (seven)."""
    said = NUMBER_WORDS.get((again[1] or again[2]).lower())
    return said is not None and said == number.value


def _is_same(text: str, others: list[re.Match[str]], number: Number, decimal: Decimal) -> bool:
    """Whether all other numbers are the same one again."""
    for other in others:
        again = read(text, other, decimal)
        if again is None or again[0].value != number.value:
            return False
    return True


def word_number(text: str) -> Number | None:
    """A text that is a number in words, from `zero` to `ninety-nine`."""
    if len(text) > 30:
        return None
    said = text.strip(" .*_\n").lower()
    word = said.removeprefix("minus ").removeprefix("negative ")
    value = NUMBER_WORDS.get(word)
    if value is None:
        return None
    return Number(Fraction(value if word == said else -value), False, text.strip(" .*_\n"))


def _is_bound(text: str, start: int) -> bool:
    """Whether what stands before a number makes it a bound, or what the answer is not."""
    near = text[max(0, start - 24) : start].rstrip(" $€£\\(*_").lower()
    return near.endswith(_BOUNDS) or (near.endswith(">") and bool(_GREATER.search(near)))


def _without_unit_powers(text: str) -> str:
    """`5 m^2` as `5 m`, and `45^\\circ` as `45°`, everything else at its place."""
    if "\\circ" in text:
        text = _DEGREES.sub(lambda found: "°".ljust(len(found[0])), text)
    if _LETTER_POWER.search(text):
        text = _UNIT_POWERS.sub(lambda found: found[1].ljust(len(found[0])), text)
    return text


def _joined(found: re.Match[str]) -> str:
    return found[1] + found[2].replace(" ", "\u00a0")


# --- The last number of a text ------------------------------------------------------------------

_WINDOWS = (48, 500)  # how far before its last digit the last number is looked for
_DIGITS_ALIKE = bytes(48 if 48 <= c < 58 else 32 for c in range(256))
_LONE = re.compile(
    r"(?<=[a-z:=] )-?\$?[0-9]{1,15}(?:\.[0-9]{1,9})?(?=\.?\s*\Z|\.\s|\s([a-z]{2,20})\b)"
)
_SENTENCE = re.compile(r"[.!。](?=\s|\Z)|\n")
_STOPS = (". ", "! ", "? ", "\n", "。")
_CLAUSE = 300  # characters around a number that are looked at for what is said about it


def last_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """The last number of a text, whatever is said about it, unless that is a bound or a `not`."""
    found = _last(text, decimal)
    return found[0] if found and not _is_bound(text, found[1]) else None


def only_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """The number of a text that has one only, where its sentence says that it is one."""
    last = _last(text, decimal)
    if last is None:
        return None if has_digit(text[:_LONGEST]) else word_number(text)
    number, start, end = last
    if has_digit(text[:start]) or _is_bound(text, start):
        return None
    head, tail = text[max(0, start - _CLAUSE) : start], text[end : end + _CLAUSE]
    if stop := _SENTENCE.search(tail):
        tail = tail[: stop.start()]
    head = head[max(map(head.rfind, _STOPS)) + 1 :]
    return number if head_allows(head) and tail_allows(tail, False) else None


def has_digit(text: str) -> bool:
    """Whether there is any digit or fraction in a text."""
    if not text.isascii():
        return ANY_DIGIT.search(text) is not None
    # Deleting bytes is several times faster than looking for them.
    return len(text.encode().translate(None, b"0123456789")) < len(text)


def _last(text: str, decimal: Decimal) -> tuple[Number, int, int] | None:
    """The last number, where it begins and where it ends."""
    if text.isascii():
        last = text.encode().translate(_DIGITS_ALIKE).rfind(b"0") + 1
    else:
        backwards = ANY_DIGIT.search(text[::-1])
        last = len(text) - backwards.start() if backwards else 0
    if not last:
        return None
    start = text.rfind(" ", 0, last) + 1
    lone = _LONE.match(text, start) if decimal == "." else None
    if lone and (lone.end() != last or text.endswith(("inus ", "egative "), 0, start)):
        lone = None
    if lone and (not lone[1] or is_unit_word(lone[1])) and (simple := parse_number(lone[0])):
        return simple, start, last  # as most are, and much faster
    for window in _WINDOWS:
        start = max(0, last - window)
        near = text[start : last + 40]
        if "^" in near:
            near = _without_unit_powers(near)
        if " " in near:
            near = SPACED.sub(_joined, near)
        found = matches(near)
        # At the window's edge there may be half a number.
        if found and (not start or found[-1].start() > 1):
            number = read(near, found[-1], decimal)
            return (number[0], start + number[1], start + number[2]) if number else None
        if not start:
            break
    return None
