"""Numbers as people and models write them, read without guessing and compared exactly.

Signs (`-5`, `−5`, `minus 5`), thousands (`1,234`, `1.234.567`, `1 234`, `1'234`, `12,34,567`),
decimal commas where they can be nothing else (`0,5`, `1.234,56`), currencies, percent, units,
fractions (`3/4`, `1 1/2`, `½`, `\\frac{3}{4}`) and powers of ten (`1.2e3`, `1.2 × 10^3`).

A number is a `Fraction`, so `29.00` is 29 and big numbers keep their last digit. `1,234` and
`1.234` are read the English way unless `decimal=","` says otherwise. What may mean two things
(`5 or 7`, `3:30`, `1.2.3`, several numbers and no statement) is no number.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, last_statement, shown
from heldout.scoring.grades import Grade


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    percent: bool
    """Whether a percent sign follows; `value` is the number before it."""
    text: str
    """As it was written."""
    start: int
    end: int


_VULGAR = dict(zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒", (
    *((1, 2), (1, 3), (2, 3), (1, 4), (3, 4), (1, 5), (2, 5), (3, 5), (4, 5), (1, 6), (5, 6)),
    *((1, 7), (1, 8), (3, 8), (5, 8), (7, 8), (1, 9), (1, 10)),
), strict=True))  # fmt: skip
_V = "".join(_VULGAR)
_MINUS = "-−–—﹣－‐‑"
_MONEY = r"(?:\\?\$|€|£|¥|￥|₹|₽|₩|₺|₫|₪|₱|฿)"
_GAP = "\u00a0\u202f\u2009"  # spaces that join the groups of one number
_DIGITS = rf"\d(?:\d|[.,٫٬'’_{_GAP}](?=\d)|\{{,\}}(?=\d)|\\[,!](?=\d)|:(?=\d))*"
_POWER = (
    r"(?:[eE](?P<e>[-+−]?\d{1,4})(?![\d\w])"
    r"|\s?(?:[×x*·]|\\times|\\cdot)\s?10\s?(?:(?:\^|\*\*)\s?\{?\s?(?P<ten>[-+−]?\s?\d{1,4})\s?\}?"
    r"|(?P<super>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4})))"
)
_NUMBER = re.compile(
    rf"(?P<sign>[{_MINUS}+±]\s?)?(?P<money>{_MONEY}\s?)?(?P<sign2>[{_MINUS}+])?"
    r"(?:\\[dt]?frac\{\s?(?P<n>[-−]?\d{1,400})\s?\}\{\s?(?P<d>\d{1,400})\s?\}"
    rf"|(?P<whole>{_DIGITS}|\.\d+)"
    rf"(?:{_POWER}|\^\{{?(?P<raised>\d{{1,3}})\}}?(?!\d)"
    r"|\s?/\s?(?P<over>\d{1,400})(?![\d/])"
    rf"|\s?(?P<v>[{_V}])"
    r"|(?:\s|\s?-\s?|\s?and\s)(?P<n2>\d{1,9})\s?[/⁄]\s?(?P<d2>\d{1,9})(?![\d/])"
    r"|\s?\\[dt]?frac\{\s?(?P<n3>\d{1,9})\s?\}\{\s?(?P<d3>\d{1,9})\s?\})?"
    rf"|(?P<v2>[{_V}]))"
    r"(?P<percent>\s?(?:\\?%|％|٪|percent\b|per cent\b|pct\b|Prozent\b))?"
)
_SPACED = re.compile(r"(?<![\d.,])(\d{1,3})((?: \d{3})+)(?![\d])")
_ANY_DIGIT, _PLAIN_DIGIT = re.compile(rf"[\d{_V}]"), re.compile(r"[0-9]")
_SCALE = re.compile(
    r"(?:\s|-)?(?:(thousand|hundred|million|billion|trillion|lakh|crore)s?\b|([kKMB]|bn|mn)\b)"
)
_SCALES = {"hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9}
_SCALES |= {"trillion": 12, "k": 3, "m": 6, "mn": 6, "b": 9, "bn": 9}
_NEGATIVE_WORD = re.compile(r"\b(?:minus|negative)\s\Z", re.IGNORECASE)
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_LATEX_GROUPS = re.compile(r"\{,\}|\\[,!]")
_WINDOWS = (48, 500)  # how far before its last digit the last number is looked for
_DIGIT_LIMIT = 400

Decimal = Literal[".", ","]


# --- Reading ------------------------------------------------------------------------------------


def parse_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """The number that a short text is: signs, currency and unit around it, and nothing twice."""
    if decimal == "." and (simple := _SIMPLE.fullmatch(text)):
        sign, whole, part, percent, unit = simple.groups()
        digits = int(sign + whole.replace(",", "") + part)
        value = Fraction(digits, 10 ** len(part)) if part else Fraction(digits)
        end = simple.start(5) if unit else len(text)
        return Number(value, bool(percent), text[:end].rstrip(), 0, end)
    text = text[:1000]
    if "=" in text:
        text = text[text.rfind("=") + 1 :]
    if " " in text:
        text = _SPACED.sub(_joined, text)
    found = _matches(text)
    first = _read(text, found[0], decimal) if found else None
    if first is None:
        return None
    head = _HEAD.match(text)
    # A number at the head is the answer; whatever follows it explains it, unless it is another.
    if head and head.end() >= first.start and not _ANOTHER.match(text, first.end):
        return first
    return first if len(found) == 1 else None


_SIMPLE = re.compile(
    r"([-+]?)\$?(\d{1,15}|\d{1,3}(?:,\d{3}){1,5})(?:\.(?=\d))?((?<=\.)\d{1,15}|)(\\?%)?"
    # A word behind it is a unit, unless it changes the number.
    r"(?: (?!thous|hund|mill|bill|trill|lakh|crore|per|pct|Proz|bn|mn)([A-Za-z]{2,20}))?"
)
_HEAD = re.compile(
    r"[\s*_(\[{$~≈\"'“≃]{0,8}(?:(?:about|approximately|approx\.?|around|roughly|exactly|only"
    r"|minus|negative|US|USD|EUR|GBP|CHF|Rs\.?|INR)[\s:]{0,2}){0,2}[*_($\\]{0,4}",
    re.IGNORECASE,
)
_ANOTHER = re.compile(
    rf"[^\n\d{_V}(]{{0,12}}?\s?(?:[,/+×*·÷^]|[{_MINUS}]|\\(?:times|cdot|div|pm)|\b(?:or|to|oder|ou"
    rf"|o|and|bis)\b)\s?{_MONEY}?[{_MINUS}]?[\d{_V}]"
    r"|\s?[^\W\d_]{1,12}\.?\s\d"  # 5 feet 7
)


_LONE = re.compile(
    r"(?<=[a-z:=] )-?\$?[0-9]{1,15}(?:\.[0-9]{1,9})?"
    r"(?=\.?\s*\Z|\.?\s(?!thous|hund|mill|bill|trill|lakh|crore|per|pct|bn|mn)[a-z]{2,20}\b)"
)


def last_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """The last number of a text, whatever is said about it."""
    backwards = (_PLAIN_DIGIT if text.isascii() else _ANY_DIGIT).search(text[::-1])
    if not backwards:
        return None
    last = len(text) - backwards.start()
    start = text.rfind(" ", 0, last) + 1
    lone = _LONE.match(text, start) if decimal == "." else None
    if lone and not text.endswith(("inus ", "egative "), 0, start):
        return parse_number(lone[0])  # as most are, and much faster
    for window in _WINDOWS:
        start = max(0, last - window)
        near = text[start : last + 40]
        found = _matches(near)
        # At the window's edge there may be half a number.
        if found and (not start or found[-1].start() > 1):
            return _read(near, found[-1], decimal)
        if not start:
            break
    return None


def _only_number(text: str, decimal: Decimal) -> Number | None:
    """The number of a text that has one only."""
    last = last_number(text, decimal=decimal)
    if last is None:
        return None
    first = (_PLAIN_DIGIT if text.isascii() else _ANY_DIGIT).search(text)
    digits = _ANY_DIGIT.search(last.text)
    if not first or not digits:
        return None
    tail = text.rfind(last.text)
    return last if tail >= 0 and first.start() == tail + digits.start() else None


def _joined(found: re.Match[str]) -> str:
    return found[1] + found[2].replace(" ", "\u00a0")


def _matches(text: str) -> list[re.Match[str]]:
    """What looks like a number, in order."""
    found: list[re.Match[str]] = []
    at = 0
    begin = _PLAIN_BEGINS if text.isascii() else _BEGINS
    while begins := begin.search(text, at):
        at = begins.start()
        if match := _NUMBER.match(text, at):
            start, before = at, text[at - 1 : at]
            at = match.end()
            attached = not match["sign"] and before and before.isascii()
            if attached and (before.isalpha() or before == "_"):
                continue  # x2, H2O
            if not _is_numbering(text, match, start):
                found.append(match)
        else:
            at += 1
    return found


def _read(text: str, match: re.Match[str], decimal: Decimal) -> Number | None:
    """A match as a number; None where it is only part of something, or makes no sense."""
    start, end = match.span()
    before = text[start - 1] if start else " "
    sign = match["sign"]
    if before in "√^" or text[max(0, start - 6) : start].endswith(("\\sqrt{", "sqrt(")):
        return None  # of an expression that would have to be calculated, as below
    if (sign and sign[0] == "±") or _PART.match(text, end):
        return None
    if before in "([" and "," in match[0] and text[end : end + 1] in (")", "]"):
        return None  # a pair
    return _number(text, match, decimal, before)


_PLAIN_BEGINS = re.compile(r"[-+.$\\0-9]")  # the same of plain text, and faster
_BEGINS = re.compile(rf"[{_MINUS}+±\d{_V}.$€£¥￥₹₽₩₺₫₪₱฿\\]")
_PART = re.compile(r"\s?(?:[π√]|\\(?:pi|sqrt|log|ln|sin|cos|i\b))|[xyzni]\b|[eE][-+−]?\d|\s?\^|²|³")
_NUMBERING = re.compile(r"[.)]\s+[^\W\d]")


def _is_numbering(text: str, match: re.Match[str], start: int) -> bool:
    """Whether it numbers the item of a list, as in `2. Then we add`."""
    end = match.end()
    if end - start > 2 or "\n" not in text or not _NUMBERING.match(text, end):
        return False
    return not text[text.rfind("\n", 0, start) + 1 : start].strip(" *_#\t")


def _number(text: str, match: re.Match[str], decimal: Decimal, before: str) -> Number | None:
    start, end = match.span()
    value = _magnitude(match, decimal)
    if value is None:
        return None
    first = match["sign"] or ""
    sign = first + (match["sign2"] or "")
    if first:
        spaced = first[-1].isspace()
        if before.isalnum() or before in ")]}%" or (spaced and text[:start].strip("*_([{$\\ ")):
            # An operator or a range, as in 10-5 or 5 - 3.
            start += len(first)
            sign = sign[len(first) :]
    word = _NEGATIVE_WORD.search(text, max(0, start - 12), start) if before.isspace() else None
    if word:
        start = word.start()
    if word or any(c in _MINUS for c in sign):
        value = -value
    percent = bool(match["percent"])
    scale = None if percent else _SCALE.match(text, end)
    if scale and (scale[1] or match["money"] or scale[0] == "k"):
        value *= 10 ** _SCALES[(scale[1] or scale[2]).lower()]
        end = scale.end()
    return Number(value, percent, text[start:end].strip(), start, end)


def _magnitude(match: re.Match[str], decimal: Decimal) -> Fraction | None:
    if vulgar := match["v2"]:
        return Fraction(*_VULGAR[vulgar])
    if match["n"]:
        return _ratio(match["n"], match["d"])
    digits = match["whole"] or ""
    whole = _decimal(digits, decimal)
    if whole is None or match.lastgroup == "whole":
        return whole
    if over := match["over"]:
        return whole / int(over) if int(over) else None
    if part := match["v"]:
        return whole + Fraction(*_VULGAR[part])
    if match["n2"] or match["n3"]:
        ratio = _ratio(match["n2"] or match["n3"], match["d2"] or match["d3"])
        return None if ratio is None else whole + ratio
    if raised := match["raised"]:
        fits = len(digits) * int(raised) <= _DIGIT_LIMIT
        return Fraction(whole ** int(raised)) if fits else None
    if power := match["e"] or match["ten"] or match["super"]:
        exponent = int(power.translate(_SUPER).replace("−", "-").replace(" ", ""))
        if abs(exponent) > _DIGIT_LIMIT:
            return None
        return whole * Fraction(10) ** exponent
    return whole


def _ratio(above: str | None, below: str | None) -> Fraction | None:
    under = int(below or 0)
    return Fraction(int((above or "0").replace("−", "-")), under) if under else None


def _decimal(digits: str, decimal: Decimal) -> Fraction | None:
    """Digits with separators as a number; None where the separators make no sense."""
    if len(digits) > _DIGIT_LIMIT:
        return None
    if digits.isdecimal():
        return Fraction(int(digits))
    if not digits.isascii() or "\\" in digits or "{" in digits:
        digits = _LATEX_GROUPS.sub(lambda m: "," if m[0] == "{,}" else "'", digits)
        digits = digits.replace("٫", "." if decimal == "." else ",")
        digits = digits.replace("٬", "'").replace("’", "'")
        for gap in _GAP:
            digits = digits.replace(gap, "'")
    if ":" in digits:
        return None
    for joint in "_'":
        if joint in digits:
            if not _grouped(digits.replace(".", ",").split(",")[0], joint):
                return None
            digits = digits.replace(joint, "")
    dots, commas = digits.count("."), digits.count(",")
    if dots and commas:
        point = "." if digits.rfind(".") > digits.rfind(",") else ","
        other = "," if point == "." else "."
        if digits.count(point) > 1 or not _grouped(digits.split(point)[0], other):
            return None
        return _plain(digits.replace(other, ""), point)
    mark = "." if dots else ","
    if dots + commas > 1:
        return _plain(digits.replace(mark, ""), ".") if _grouped(digits, mark) else None
    if dots + commas == 1 and mark != decimal and _grouped(digits, mark):
        return _plain(digits.replace(mark, ""), ".")
    return _plain(digits, mark)


def _grouped(digits: str, mark: str) -> bool:
    """Whether a mark stands where thousands are separated: 1,234,567 or 12,34,567."""
    first, *groups = digits.split(mark)
    if not groups:
        return True
    if not 1 <= len(first) <= 3 or first[0] == "0" or len(groups[-1]) != 3:
        return False
    sizes = {len(group) for group in groups[:-1]}
    return sizes <= {3} or (sizes == {2} and mark == "," and len(first) <= 2)


def _plain(digits: str, point: str) -> Fraction | None:
    whole, _, part = digits.partition(point)
    if not (whole + part).isdecimal():
        return None
    return Fraction(int(whole + part), 10 ** len(part)) if part else Fraction(int(whole))


# --- Grading ------------------------------------------------------------------------------------


def grade_number(
    answer: str | None,
    target: float | str | Fraction,
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
    last: bool = False,
    decimal: Decimal = ".",
) -> Grade:
    """1.0 where the stated number is the target, within a tolerance.

    The last stated number counts; where nothing is stated, a text's only number does, and with
    `last` its last one. `50%` is 50 and also 0.5. A target that is a float with decimals carries
    rounding, so it is met to nine digits.
    """
    wanted = _target(target, decimal)
    text = answer_text(answer)
    if text is None:
        return Grade(0.0, None, "no answer")
    statement = last_statement(text)
    if statement:
        found = parse_number(statement.value, decimal=decimal) if statement.value else None
        if found is None:
            return Grade(0.0, None, f"no single number in what is stated: {statement.value!r:.200}")
    else:
        found = last_number(text, decimal=decimal) if last else _only_number(text, decimal)
        if found is None:
            return Grade(0.0, None, "no number, or several and none stated as the answer")
    if isinstance(target, float) and not target.is_integer():
        relative = max(relative, 1e-9)
    value = same_number(found, wanted, absolute=absolute, relative=relative)
    return Grade(float(value), shown(found.text))


def same_number(
    found: Number, wanted: Number, *, absolute: float = 0.0, relative: float = 0.0
) -> bool:
    """Whether two numbers are the same within `absolute`, or `relative` to the wanted one."""
    if _close(found.value, wanted.value, absolute, relative):
        return True
    if found.percent and not wanted.percent:
        return _close(found.value / 100, wanted.value, absolute, relative)
    if wanted.percent and not found.percent:
        return _close(found.value, wanted.value / 100, absolute, relative)
    return False


def _close(one: Fraction, other: Fraction, absolute: float, relative: float) -> bool:
    if one == other:
        return True
    if not absolute and not relative:
        return False
    allowed = max(Fraction(repr(absolute)), Fraction(repr(relative)) * abs(other))
    return abs(one - other) <= allowed


@lru_cache(maxsize=1024)
def _target(target: float | str | Fraction, decimal: Decimal) -> Number:
    if isinstance(target, str):
        stated = last_statement(target)
        found = parse_number(stated.value if stated and stated.value else target, decimal=decimal)
        if found is None:
            raise InvalidInput(f"the target {target!r:.200} is not a number; give the number alone")
        return found
    if isinstance(target, float) and not math.isfinite(target):
        raise InvalidInput(f"the target is {target}; no answer equals that")
    exact = Fraction(repr(target)) if isinstance(target, float) else Fraction(target)
    return Number(exact, False, str(target), 0, 0)
