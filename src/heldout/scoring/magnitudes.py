"""What looks like a number in a text, and what it is worth, as `numerals.py` describes it."""

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
VULGAR_SIGNS = "".join(VULGAR)
MINUS = "-−–—﹣－‐‑"
_MINUS_SIGNS = frozenset(MINUS)
MONEY = r"(?:\\?\$|€|£|¥|￥|₹|₽|₩|₺|₫|₪|₱|฿)"
_GAP = "\u00a0\u202f\u2009"  # spaces that join the groups of one number
_DIGITS = rf"\d(?:\d|[.,٫٬，．'’_{_GAP}](?=\d)|(?:\{{,\}}|,?\\[,!;]|\\!,|\{{\\,\}})(?=\d)|:(?=\d))*"
_EXPONENT = r"\s?[{(]?\s?(?P<%s>[-+−]?\s?\d{1,4})\s?[})]?(?!\d)"
_RAISED = r"[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,4}"
_POWER = (
    r"(?:[eE](?P<e>[-+−]?\d{1,4})(?![\d\w])"
    rf"|\s?(?:[×x*·⋅]|\\times|\\cdot)\s?10\s?(?:(?:\^|\*\*){_EXPONENT % 'ten'}"
    rf"|(?P<super>{_RAISED})))"
)
_PERCENT = (
    r"per\s?cent[oe]?|pct|prozent|procent[oi]?|por\s?cien?to|por\s?cento|pour\s?cent|процент\w{0,3}"
)
_NUMBER = re.compile(
    rf"(?P<sign>[{MINUS}+±]\s?)?(?P<money>{MONEY}\s?)?(?P<sign2>[{MINUS}+])?"
    r"(?:\\[dtc]?frac\s?(?:\{\s?(?P<n>[-−]?\d{1,400})\s?\}\s?\{\s?(?P<d>[-−]?\d{1,400})\s?\}"
    r"|(?P<n1>\d)(?P<d1>\d))"
    rf"|(?P<whole>{_DIGITS}|\.\d+)"
    rf"(?:{_POWER}|(?:\^|\*\*){_EXPONENT % 'raised'}|(?P<raised2>{_RAISED})"
    r"|\s?[/⁄∕]\s?(?P<over>\d{1,400})(?![\d/])"
    rf"|\s?(?P<v>[{VULGAR_SIGNS}])"
    r"|(?:\s|\s?and\s)(?P<n2>\d{1,9})\s?[/⁄∕]\s?(?P<d2>\d{1,9})(?![\d/])"
    r"|\s?\\[dtc]?frac\s?\{\s?(?P<n3>\d{1,9})\s?\}\s?\{\s?(?P<d3>\d{1,9})\s?\}"
    r"|\s(?:and\s)?(?:a|one)[\s-](?P<part>half|quarter|third)\b)?"
    rf"|(?P<v2>[{VULGAR_SIGNS}]))"
    rf"(?P<percent>\s?(?:\\?%|％|٪|(?i:{_PERCENT})\b))?"
)
_PLAIN_BEGINS = re.compile(r"[-+.$\\0-9]")  # the same of plain text, and faster
_BEGINS = re.compile(rf"[{MINUS}+±\d{VULGAR_SIGNS}.$€£¥￥₹₽₩₺₫₪₱฿\\]")
ANY_DIGIT = re.compile(rf"[\d{VULGAR_SIGNS}]")
SPACED = re.compile(r"(\d(?<![\d.,]\d)\d{0,2})((?: \d{3})+)(?!\d)")

# Behind a number: what makes it part of something that would have to be calculated.
_PART = re.compile(
    r"\s?(?:[π√±]|\\(?:pi|sqrt|log|ln|sin|cos|pm|i\b)|(?:pi|sqrt|squared|cubed|factorial)\b"
    r"|(?:third|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth)s?\b"
    r"|[eE][-+−]?\d|\^|[xX]\s?\d)"
    r"|[xyznie]\b|[hb]\d|\.?\\(?:overline|bar|dot)|\.?\(\d|_\{?\d"
)
_INSIDE = ("\\sqrt{", "sqrt(", "frac{", "}{", "-(", "−(")  # the same before it
SCALES = {
    **dict.fromkeys(("dozen", "dozens"), 12),
    **dict.fromkeys(("hundred", "hundreds", "hundert", "百"), 10**2),
    **dict.fromkeys(("thousand", "thousands", "tausend", "тысяч", "тысячи", "тыс", "千"), 10**3),
    **dict.fromkeys(("천", "nghìn", "ngàn", "ribu", "हज़ार", "हजार"), 10**3),
    **dict.fromkeys(("万", "萬", "만"), 10**4),
    **dict.fromkeys(("lakh", "lakhs"), 10**5),
    **dict.fromkeys(("million", "millions", "millionen", "millón", "millones", "milhão"), 10**6),
    **dict.fromkeys(("milhões", "milione", "milioni", "miljoen", "milyon", "миллион"), 10**6),
    **dict.fromkeys(("миллиона", "миллионов", "млн", "mln", "mio", "mn", "triệu", "juta"), 10**6),
    **dict.fromkeys(("百万", "百萬", "백만"), 10**6),
    **dict.fromkeys(("crore", "crores", "千万", "千萬", "천만"), 10**7),
    **dict.fromkeys(("亿", "億", "억"), 10**8),
    **dict.fromkeys(("billion", "billions", "bn", "milliarde", "milliarden", "milliard"), 10**9),
    **dict.fromkeys(("milliards", "miliardo", "miliardi", "miljard", "bilhão", "bilhões"), 10**9),
    **dict.fromkeys(("миллиард", "миллиарда", "миллиардов", "млрд", "mrd", "tỷ", "milyar"), 10**9),
    **dict.fromkeys(("trillion", "trillions", "billionen", "billón", "billones"), 10**12),
    **dict.fromkeys(("triliun", "万亿", "萬億", "兆", "조"), 10**12),
}
_LETTER_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_PER_MILLE = re.compile(r"\s?(?:‰|(?:per|pro)\s?mill?e?\b)", re.IGNORECASE)
_SCALE = re.compile(
    rf"(?:\\(?:text|mathrm)\s?\{{)?[\s-]?({'|'.join(sorted(SCALES, key=len, reverse=True))})"
    r"(?![a-zà-ž])",
    re.IGNORECASE,
)
_LETTER_SCALE = re.compile(r"\s?([kKMBT])\b")
# A word that looks like a scale, and is none that is known: what it makes of a number is not known.
LIKE_A_SCALE = re.compile(
    r"[\s-]?(?:\w{0,6}ill(?:ion|iard|ón|ones)|\w{0,4}il(?:hão|hões|ion|jo|yon|iard)|mil\b|mille\b"
    r"|score\b|gross\b|[百千万萬亿億兆十])",
    re.IGNORECASE,
)
_NEGATIVE_WORD = re.compile(r"\b(?:minus|negative)\s\Z", re.IGNORECASE)
_BELOW_ZERO = re.compile(r"[^\n\d.,]{0,24}\bbelow zero\b")
_NUMBERING = re.compile(r"[.)]\s+[^\W\d]")
_PARTS = {"half": Fraction(1, 2), "quarter": Fraction(1, 4), "third": Fraction(1, 3)}
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺−", "0123456789-+-", " ")
_SEPARATORS = str.maketrans("，．٬’" + _GAP, ",.''" + "'" * len(_GAP))
_LATEX_GROUPS = re.compile(r"\{,\}|\{\\,\}|,?\\[,!;],?")
_NO_LATEX = str.maketrans("", "", "\\!;{}")
_DIGIT_LIMIT = 400

# --- Reading ------------------------------------------------------------------------------------


def matches(text: str) -> list[re.Match[str]]:
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


def read(
    text: str, match: re.Match[str], decimal: Decimal, latex: bool = False
) -> tuple[Number, int, int] | None:
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
    if latex and "," in match[0] and decimal == "." and not _is_grouped(match):
        return None  # in LaTeX, 3,5 are two
    if before in "([{" and "," in match[0] and text[end : end + 1] in (")", "]", "}", "\\"):
        return None  # a pair
    value = _magnitude(match, decimal)
    return None if value is None else _number(text, match, value, before)


def _is_grouped(match: re.Match[str]) -> bool:
    """Whether its commas separate thousands, or are in braces: `1,234`, `3{,}5`."""
    bare = match["whole"].replace("{,}", "") if match["whole"] else ""
    return "," not in bare or _grouped(bare.partition(".")[0].translate(_NO_LATEX), ",")


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
    if word or (sign and not _MINUS_SIGNS.isdisjoint(sign)):
        value = -value
    elif "below zero" in text and (below := _BELOW_ZERO.match(text, end)):
        return Number(-value, False, text[start : below.end()].strip()), start, below.end()
    percent = bool(match["percent"])
    if not percent and end < len(text):
        value, end = _scaled(text, end, value, bool(match["money"]))
    return Number(value, percent, text[start:end].strip()), start, end


def _scaled(text: str, end: int, value: Fraction, money: bool) -> tuple[Fraction, int]:
    """The value with the scale that follows it, and where that ends."""
    for _ in range(3):  # 2 hundred thousand, 1百万
        scale = _SCALE.match(text, end)
        if not scale:
            break
        value *= SCALES[scale[1].lower()]
        end = scale.end()
    else:
        return value, end
    if scale := _LETTER_SCALE.match(text, end):
        if money or scale[0] == "k":
            return value * _LETTER_SCALES[scale[1]], scale.end()
    elif mille := _PER_MILLE.match(text, end):
        return value / 1000, mille.end()
    return value, end


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
        below = int(over)
        return Fraction(whole.numerator, whole.denominator * below) if below else None
    if part := match["v"]:
        return whole + Fraction(*VULGAR[part])
    if above := match["n2"] or match["n3"]:
        part_of, below = int(above), int(match["d2"] or match["d3"])
        if part_of >= below:
            return None
        # In one step, since sums and powers of fractions are slow; as below.
        return Fraction(
            whole.numerator * below + part_of * whole.denominator, whole.denominator * below
        )
    if part := match["part"]:
        return whole + _PARTS[part]
    if raised := match["raised"] or match["raised2"]:
        exponent = int(raised.translate(_SUPER))
        fits = len(digits) * abs(exponent) <= _DIGIT_LIMIT and (whole or exponent >= 0)
        return Fraction(whole**exponent) if fits else None
    if power := match["e"] or match["ten"] or match["super"]:
        exponent = int(power.translate(_SUPER))
        if abs(exponent) > _DIGIT_LIMIT:
            return None
        if exponent < 0:
            return Fraction(whole.numerator, whole.denominator * 10**-exponent)
        return Fraction(whole.numerator * 10**exponent, whole.denominator)
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
