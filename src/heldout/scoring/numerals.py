r"""Numbers as people and models write them, read without guessing.

Signs (`-5`, `−5`, `minus 5`, `5 degrees below zero`), thousands (`1,234`, `1.234.567`, `1 234`,
`1'234`, `12,34,567`, `1{,}234`), decimal commas where they can be nothing else (`0,5`,
`1.234,56`), currencies, percent, units, fractions (`3/4`, `1 1/2`, `½`, `\frac{3}{4}`, `2 and a
half`), powers (`1.2e3`, `1.2 × 10^3`, `10⁶`) and scales (`3 million`).

A number is a `Fraction`, so `29.00` is 29 and big numbers keep their last digit. `1,234` and
`1.234` are read the English way unless `decimal=","` says otherwise. What may mean two things
(`5 or 7`, `5 ± 2`, `3:30`, `1.2.3`, `x = 4, y = 5`), a bound (`more than 5`) and what would have to
be calculated (`3 + 4`, `2√3`) is no number.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal, NamedTuple

Decimal = Literal[".", ","]


class Number(NamedTuple):
    value: Fraction
    percent: bool
    """Whether a percent sign follows; `value` is the number before it."""
    text: str
    """As it was written."""


# --- What numbers look like ---------------------------------------------------------------------

VULGAR = dict(zip("½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒", (
    *((1, 2), (1, 3), (2, 3), (1, 4), (3, 4), (1, 5), (2, 5), (3, 5), (4, 5), (1, 6), (5, 6)),
    *((1, 7), (1, 8), (3, 8), (5, 8), (7, 8), (1, 9), (1, 10)),
), strict=True))  # fmt: skip
_V = "".join(VULGAR)
_MINUS = "-−–—﹣－‐‑"
_MONEY = r"(?:\\?\$|€|£|¥|￥|₹|₽|₩|₺|₫|₪|₱|฿)"
_GAP = "\u00a0\u202f\u2009"  # spaces that join the groups of one number
_DIGITS = rf"\d(?:\d|[.,٫٬，．'’_{_GAP}](?=\d)|(?:\{{,\}}|,?\\[,!;]|\\!,|\{{\\,\}})(?=\d)|:(?=\d))*"
_EXPONENT = r"\s?[{(]?\s?(?P<%s>[-+−]?\s?\d{1,4})\s?[})]?(?!\d)"
_RAISED = r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4}"
_POWER = (
    r"(?:[eE](?P<e>[-+−]?\d{1,4})(?![\d\w])"
    rf"|\s?(?:[×x*·⋅]|\\times|\\cdot)\s?10\s?(?:(?:\^|\*\*){_EXPONENT % 'ten'}"
    rf"|(?P<super>{_RAISED})))"
)
_NUMBER = re.compile(
    rf"(?P<sign>[{_MINUS}+±]\s?)?(?P<money>{_MONEY}\s?)?(?P<sign2>[{_MINUS}+])?"
    r"(?:\\[dtc]?frac\s?(?:\{\s?(?P<n>[-−]?\d{1,400})\s?\}\s?\{\s?(?P<d>[-−]?\d{1,400})\s?\}"
    r"|(?P<n1>\d)(?P<d1>\d))"
    rf"|(?P<whole>{_DIGITS}|\.\d+)"
    rf"(?:{_POWER}|(?:\^|\*\*){_EXPONENT % 'raised'}|(?P<raised2>{_RAISED})"
    r"|\s?[/⁄∕]\s?(?P<over>\d{1,400})(?![\d/])"
    rf"|\s?(?P<v>[{_V}])"
    r"|(?:\s|\s?and\s)(?P<n2>\d{1,9})\s?[/⁄∕]\s?(?P<d2>\d{1,9})(?![\d/])"
    r"|\s?\\[dtc]?frac\s?\{\s?(?P<n3>\d{1,9})\s?\}\s?\{\s?(?P<d3>\d{1,9})\s?\}"
    r"|\s(?:and\s)?(?:a|one)[\s-](?P<part>half|quarter|third)\b)?"
    rf"|(?P<v2>[{_V}]))"
    r"(?P<percent>\s?(?:\\?%|％|٪|percent\b|per cent\b|pct\b|Prozent\b))?"
)
_PLAIN_BEGINS = re.compile(r"[-+.$\\0-9]")  # the same of plain text, and faster
_BEGINS = re.compile(rf"[{_MINUS}+±\d{_V}.$€£¥￥₹₽₩₺₫₪₱฿\\]")
_ANY_DIGIT, _PLAIN_DIGIT = re.compile(rf"[\d{_V}]"), re.compile(r"[0-9]")
_SPACED = re.compile(r"(\d(?<![\d.,]\d)\d{0,2})((?: \d{3})+)(?!\d)")

# Behind a number: what makes it part of something that would have to be calculated.
_PART = re.compile(
    r"\s?(?:[π√±]|\\(?:pi|sqrt|log|ln|sin|cos|pm|i\b)|(?:pi|sqrt|squared|cubed|factorial)\b"
    r"|(?:third|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth)s?\b"
    r"|[eE][-+−]?\d|\^|[xX]\s?\d)"
    r"|[xyznie]\b|[hb]\d|\.?\\(?:overline|bar|dot)|\.?\(\d|_\{?\d"
)
_INSIDE = ("\\sqrt{", "sqrt(", "frac{", "}{", "-(", "−(")  # the same before it
_SCALE = re.compile(
    r"(?:\s|-)?(?:(thousand|hundred|million|billion|trillion|lakh|crore)s?\b|([kKMB]|bn|mn)\b)"
)
_SCALES = {"hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9}
_SCALES |= {"trillion": 12, "k": 3, "m": 6, "mn": 6, "b": 9, "bn": 9}
_NEGATIVE_WORD = re.compile(r"\b(?:minus|negative)\s\Z", re.IGNORECASE)
_BELOW_ZERO = re.compile(r"[^\n\d.,]{0,24}\bbelow zero\b")
_NUMBERING = re.compile(r"[.)]\s+[^\W\d]")
_PARTS = {"half": Fraction(1, 2), "quarter": Fraction(1, 4), "third": Fraction(1, 3)}
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺−", "0123456789-+-", " ")
_SEPARATORS = str.maketrans("，．٬’" + _GAP, ",.''" + "'" * len(_GAP))
_LATEX_GROUPS = re.compile(r"\{,\}|\{\\,\}|,?\\[,!;],?")
_DIGIT_LIMIT = 400

# --- The number that a text is ------------------------------------------------------------------

_LONGEST = 1000  # characters of a text that are looked at for the number it is
# A word that is no unit, since it changes the number before it.
_CHANGES = (
    r"(?!thous|hund|mill|bill|trill|lakh|crore|per|pct|Proz|bn|mn|an?d?\b|one\b|pi\b|sqrt|squ|cub"
    r"|fact|deg|below|third|fift|sixt|sev|eigh|nint|tent|or\b|to\b)"
)
_SIMPLE = re.compile(
    r"([-+]?)\$?(\d{1,15}|\d{1,3}(?:,\d{3}){1,5})(?:\.(?=\d))?((?<=\.)\d{1,15}|)(\\?%)?"
    rf"(?: {_CHANGES}([A-Za-z]{{2,20}}))?"
)
_HEAD = re.compile(
    r"[\s*_(\[{$~≈\"'“≃]{0,8}(?:(?:about|approximately|approx\.?|around|roughly|exactly|only"
    r"|minus|negative|US|USD|EUR|GBP|CHF|Rs\.?|INR|\\approx)[\s:]{0,2}){0,2}[*_($\\]{0,4}",
    re.IGNORECASE,
)
_PARTED = (
    "feet|foot|ft|yards?|yd|inch|inches|miles?|mi|km|meters?|metres?|m|cm|hours?|hrs?|h|minutes?"
    "|mins?|days?|weeks?|months?|years?|pounds?|lbs?|stone|kg|g|degrees?|dollars?|euros?|quarts?"
    "|gallons?|jan|january|feb|february|mar|march|apr|april|may|june?|july?|aug|august|sep|sept"
    "|september|oct|october|nov|november|dec|december|of|in|out of|vs|versus|and|or"
)
_BETWEEN = (
    "or|to|oder|ou|o|and|und|bis|y|et|is|are|equals|through|until|plus|minus|times|divided by|by"
    "|per|as well as"
)
_ANOTHER = re.compile(  # behind a number: another one, that it may be or belongs to
    rf"[)\]*_$]{{0,3}}(?:\s\([^()\n]{{0,40}}\))?(?:[^\n\d{_V}(]{{0,40}}?(?:\s?(?:[,;:/+×*·÷^]|(?<![^\W\d_])[{_MINUS}]"
    rf"|\\(?:times|cdot|div|pm)\b)|\b(?:{_BETWEEN})\b)\s?(?:[a-z]{{1,3}}(?=\\?\$))?{_MONEY}?\s?[{_MINUS}]?"
    rf"[\d{_V}]|\s\d|\s?(?:{_PARTED})\.?\s\d|\s\((?:or|and)\s\d)",
    re.IGNORECASE,
)
_BOUNDS = (
    *("<", "≤", "≥", "≠", "!=", ">=", "<=", r"\le", r"\leq", r"\ge", r"\geq", r"\ne", r"\neq"),
    *(r"\lt", r"\gt", " than", "not", "n't", "over", "under", "above", "below"),
)
_GREATER = re.compile(r"(?:^|[\s$])\w?\s?>\Z")  # not the end of a tag
_BECAUSE = re.compile(r"\s(?:since|because|where|given|(?<=[,;]\s)as)\b")
_BESIDE = re.compile(r"\s\((?!or\b|and\b)|\s(?:when|if|for|with|at)\s[^\s=]{1,12}\s?=[^=]*\Z")
_EQUATIONS = re.compile(
    r"=[^=]*(?:[,;]|\b(?:and|or|und|oder|et|ou|y|o)\b)[\s$\\(]{0,4}[^\W\d_]\w{0,8}[\s)]{0,2}="
)
_UNIT_POWERS = re.compile(
    r"((?<![^\W\d_])(?:[cmkdμµn]?m|s|h|ft|in|yd|mi|kg|units?|inch(?:es)?|feet|foot|meters?|metres?"
    r"|seconds?|secs?|mol)|\\(?:text|mathrm|mbox|rm)\s?\{[^{}]{0,40}\})\^\s?\{?\s?[-−]?\d\s?\}?"
)
_LETTER_POWER = re.compile(r"\^(?<=[^\W\d_]\^|\}\^)")
_DEGREES = re.compile(r"\s?\^\s?\{?\s?\\circ\s?\}?")


def parse_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """The number that a short text is: signs, currency and unit around it, and nothing twice."""
    if decimal == "." and (simple := _SIMPLE.fullmatch(text)):
        sign, whole, part, percent, unit = simple.groups()
        digits = int(sign + whole.replace(",", "") + part)
        value = Fraction(digits, 10 ** len(part)) if part else Fraction(digits)
        return Number(value, bool(percent), text[: simple.start(5)].rstrip() if unit else text)
    text = text[:_LONGEST]
    if "^" in text:
        text = _without_unit_powers(text)
    if len(text) > 8:
        text = _before(text, _BECAUSE)
    if "=" in text:
        return _right_side(_before(text, _BESIDE), decimal)
    if (found := _single(text, decimal)) is None:
        # 2√3 ≈ 3.46: rounded, but a number, where the other side would have to be calculated.
        for sign in ("≈", "\\approx"):
            if sign in text:
                return _single(text.rpartition(sign)[2], decimal)
    return found


def _before(text: str, explains: re.Pattern[str]) -> str:
    """The text before an explanation, where a number stands before it."""
    found = explains.search(text)
    return text[: found.start()] if found and _ANY_DIGIT.search(text, 0, found.start()) else text


def _right_side(text: str, decimal: Decimal) -> Number | None:
    """Of `3 + 4 = 7` what is on the right."""
    left, equals, right = text.rpartition("=")
    if equals and (_EQUATIONS.search(text) or left.endswith(("<", ">", "!"))):
        return None
    found = _single(right, decimal)
    if found is None and _SIMPLE.fullmatch(left.strip()):
        return _single(left, decimal)  # 7 = 3 + 4
    return found


def _single(text: str, decimal: Decimal) -> Number | None:
    if " " in text:
        text = _SPACED.sub(_joined, text)
    found = _matches(text)
    first = _read(text, found[0], decimal) if found else None
    if first is None:
        return None
    number, start, end = first
    if _is_bound(text, start):
        return None
    if not _ANY_DIGIT.search(text, end):
        return number
    head = _HEAD.match(text)
    # A number at the head is the answer; whatever follows it explains it, unless it is another.
    if head and head.end() >= start and not _ANOTHER.match(text, end):
        return number
    return number if len(found) == 1 else None


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
_LONE = re.compile(
    r"(?<=[a-z:=] )-?\$?[0-9]{1,15}(?:\.[0-9]{1,9})?"
    rf"(?=\.?\s*\Z|\.?\s{_CHANGES}[a-z]{{2,20}}\b)"
)


def last_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """The last number of a text, whatever is said about it."""
    found = _last(text, decimal)
    return found[0] if found else None


def only_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """The number of a text that has one only, and no bound on one."""
    last = _last(text, decimal)
    if last is None:
        return None
    number, start = last
    return None if has_digit(text[:start]) or _is_bound(text, start) else number


def has_digit(text: str) -> bool:
    """Whether there is any digit or fraction in a text."""
    if not text.isascii():
        return _ANY_DIGIT.search(text) is not None
    # Deleting bytes is several times faster than looking for them.
    return len(text.encode().translate(None, b"0123456789")) < len(text)


def _last(text: str, decimal: Decimal) -> tuple[Number, int] | None:
    """The last number and where it begins."""
    backwards = (_PLAIN_DIGIT if text.isascii() else _ANY_DIGIT).search(text[::-1])
    if not backwards:
        return None
    last = len(text) - backwards.start()
    start = text.rfind(" ", 0, last) + 1
    lone = _LONE.match(text, start) if decimal == "." else None
    if lone and lone.end() == last and not text.endswith(("inus ", "egative "), 0, start):
        simple = parse_number(lone[0])  # as most are, and much faster
        return (simple, start) if simple else None
    for window in _WINDOWS:
        start = max(0, last - window)
        near = text[start : last + 40]
        if "^" in near:
            near = _without_unit_powers(near)
        if " " in near:
            near = _SPACED.sub(_joined, near)
        found = _matches(near)
        # At the window's edge there may be half a number.
        if found and (not start or found[-1].start() > 1):
            read = _read(near, found[-1], decimal)
            return (read[0], start + read[1]) if read else None
        if not start:
            break
    return None


# --- Reading ------------------------------------------------------------------------------------


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
            attached = before and before.isascii() and not (match["sign"] or match["money"])
            if attached and (before.isalpha() or before == "_"):
                continue  # x2, H2O
            if not _is_numbering(text, match, start):
                found.append(match)
        else:
            at += 1
    return found


def _is_numbering(text: str, match: re.Match[str], start: int) -> bool:
    """Whether it numbers the item of a list, as in `2. Then we add`."""
    end = match.end()
    if end - start > 2 or "\n" not in text or not _NUMBERING.match(text, end):
        return False
    return not text[text.rfind("\n", 0, start) + 1 : start].strip(" *_#\t")


def _read(text: str, match: re.Match[str], decimal: Decimal) -> tuple[Number, int, int] | None:
    """A match as a number with its place; None where it is part of something or makes no sense."""
    start, end = match.span()
    before = text[start - 1] if start else " "
    sign = match["sign"]
    if before in "√^/⁄∕" or text.endswith(_INSIDE, max(0, start - 6), start):
        return None  # of an expression that would have to be calculated, as below
    if sign and (sign[0] == "±" or (match["sign2"] and not match["money"])):
        return None
    if _PART.match(text, end):
        return None
    if before in "([{" and "," in match[0] and text[end : end + 1] in (")", "]", "}", "\\"):
        return None  # a pair
    value = _magnitude(match, decimal)
    return None if value is None else _number(text, match, value, before)


def _number(
    text: str, match: re.Match[str], value: Fraction, before: str
) -> tuple[Number, int, int]:
    start, end = match.span()
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
    elif "below zero" in text and (below := _BELOW_ZERO.match(text, end)):
        return Number(-value, False, text[start : below.end()].strip()), start, below.end()
    percent = bool(match["percent"])
    scale = None if percent else _SCALE.match(text, end)
    if scale and (scale[1] or match["money"] or scale[0] == "k"):
        value *= 10 ** _SCALES[(scale[1] or scale[2]).lower()]
        end = scale.end()
        if (more := _SCALE.match(text, end)) and more[1]:  # 2 hundred thousand
            value *= 10 ** _SCALES[more[1]]
            end = more.end()
    return Number(value, percent, text[start:end].strip()), start, end


def _magnitude(match: re.Match[str], decimal: Decimal) -> Fraction | None:
    if vulgar := match["v2"]:
        return Fraction(*VULGAR[vulgar])
    if above := match["n"] or match["n1"]:
        return _ratio(above, match["d"] or match["d1"])
    digits = match["whole"] or ""
    whole = _decimal(digits, decimal)
    if whole is None or match.lastgroup == "whole":
        return whole
    if over := match["over"]:
        return whole / int(over) if int(over) else None
    if part := match["v"]:
        return whole + Fraction(*VULGAR[part])
    if above := match["n2"] or match["n3"]:
        ratio = _ratio(above, match["d2"] or match["d3"])
        return None if ratio is None or ratio >= 1 else whole + ratio
    if part := match["part"]:
        return whole + _PARTS[part]
    if raised := match["raised"] or match["raised2"]:
        exponent = int(raised.translate(_SUPER))
        fits = len(digits) * abs(exponent) <= _DIGIT_LIMIT and (whole or exponent >= 0)
        return Fraction(whole**exponent) if fits else None
    if power := match["e"] or match["ten"] or match["super"]:
        exponent = int(power.translate(_SUPER))
        return whole * Fraction(10) ** exponent if abs(exponent) <= _DIGIT_LIMIT else None
    return whole


def _ratio(above: str, below: str) -> Fraction | None:
    under = int(below.replace("−", "-"))
    return Fraction(int(above.replace("−", "-")), under) if under else None


def _decimal(digits: str, decimal: Decimal) -> Fraction | None:
    """Digits with separators as a number; None where the separators make no sense."""
    if len(digits) > _DIGIT_LIMIT:
        return None
    whole, point, part = digits.partition(".")
    if whole.isdecimal() and (part.isdecimal() if point and decimal == "." else not point):
        return _plain(digits, ".")
    if not digits.isascii() or "\\" in digits or "{" in digits:
        digits = _LATEX_GROUPS.sub(lambda m: "," if "," in m[0].replace("\\,", "") else "'", digits)
        digits = digits.replace("٫", decimal).translate(_SEPARATORS)
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
