r"""Numbers: the number that an answer states, compared exactly or within a tolerance.

Numbers are read with their sign (`-5`, `−5`, `minus 5`), currency, percent, thousands (`1,234`,
`1.234.567`, `1 234`, `1'234`, `12,34,567`, `1{,}234`), decimal commas where they can be nothing
else (`0,5`, `1.234,56`), fractions (`3/4`, `1 1/2`, `½`, `\frac{3}{4}`), powers of ten (`1.2e3`,
`1.2 × 10^3`, `10⁶`), scales (`3 million`, `5 dozen`, `3k`) and units, and in words from `zero` to
`twelve`. A number is a `Fraction`, so `29.00` is 29 and big numbers keep their last digit.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from heldout.errors import InvalidInput
from heldout.scoring.answers import DENIED_BEHIND, answer_text, is_denied, statements
from heldout.scoring.grades import NO_ANSWER, Grade, grader

Decimal = Literal[".", ","]


class Number(NamedTuple):
    """A number as it was read; of a percentage, the value before the sign."""

    value: Fraction
    percent: bool
    text: str
    start: int = 0
    end: int = 0


# --- What numbers look like ---------------------------------------------------------------------

_SCALES = {
    **{"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9},
    **{"trillion": 10**12, "万": 10**4, "k": 10**3, "m": 10**6, "b": 10**9},
}
_NAMES = "zero one two three four five six seven eight nine ten eleven twelve"
_WORDS = {word: n for n, word in enumerate(_NAMES.split())}
_NUMBER = re.compile(
    r"(?=[-+$€£¥₹.\dmn])(?<![\w.,^])(?P<sign>[-+]|(?:minus|negative)\s)?(?:[$€£¥₹]\s?(?P<sign2>-)?)?"
    r"(?P<digits>\d{1,3}(?:[ ']\d{3})+(?:\.\d+)?(?!\d)|\d++(?:[.,]\d++)*+|\.\d++)"
    r"(?!(?:st|nd|rd|th)\b)"
    r"(?:e(?P<e>[-+]?\d{1,4})(?!\w)"
    r"|(?P<ten>\s?[*x]\s?10)?(?:\^|\*\*)\s?[{(]?(?P<power>[-+]?\d{1,4})[})]?"
    r"|\s?/\s?(?P<over>\d+)(?![\d/])|\s(?:and\s)?(?P<n>\d+)\s?/\s?(?P<d>\d+)(?![\d/]))?"
    r"(?P<percent>\s?(?:%|per\s?cent\b))?"
    r"(?:[\s-]{0,2}(?P<scale>dozen|hundred|thousand|million|billion|trillion)s?\b|(?P<short>[kmb]\b|万))?",
    re.IGNORECASE,
)
_ENGLISH = re.compile(r"(\d{1,3}(?:,\d{2,3})*,\d{3}|\d*)(?:\.(\d+))?")
_GERMAN = re.compile(r"(\d{1,3}(?:\.\d{3})+|\d+)(?:,(\d+))?")
_MAX_DIGITS = 400

_PLAIN = str.maketrans(
    {
        **{"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "⁄": "/", "％": "%", "’": "'"},
        **{"½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3"},
        **dict.fromkeys("\u00a0\u202f\u2009", " "),
    }
)
_RAISED = re.compile("[⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LOWERED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
_MARKUP = re.compile(r"(?<!\w)\*\*|\*\*(?!\w)|<<[^<>\n]{0,80}>>")  # GSM8K's <<2*3=6>>
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\^\{?-?\d\}?")
_LATEX = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"(?<=\d)\s?(?=\\[dtc]?frac)", " "),
        (r"\\[dtc]?frac\s?(?:\{\s?(-?\d+)\s?\}\s?\{\s?(\d+)\s?\}|(\d)(\d))", r"\1\3/\2\4"),
        (r"\\(?:text[a-z]{0,4}|math[a-z]{2}|mbox|rm)\s?\{([^{}]*)\}", r" \1 "),
        (r"\{,\}|,?\\[,!]", ","),
        (r"\\times|\\cdot", "*"),
        (r"\\approx", "="),
        (r"\\q?quad|\\[;: ]|~", " "),
        (r"\s?\^\s?\{?\s?\\circ\s?\}?|\\degree", ""),
        (r"\\([$%])", r"\1"),
    )
]


def _plain(text: str) -> str:
    """Write a number's signs, powers and LaTeX in plain characters."""
    if not text.isascii():
        text = _RAISED.sub(lambda power: "^" + power[0].translate(_LOWERED), text.translate(_PLAIN))
    if "*" in text or "<<" in text:
        text = _MARKUP.sub("", text)
    if "\\" in text or "{" in text:
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    return _UNIT_POWER.sub("", text) if "^" in text else text


def _read(match: re.Match[str], decimal: Decimal, in_box: bool) -> Number | None:
    """Work out the value of a match; None for what only looks like a number (1.2.3, 2^10)."""
    part = match.groupdict(default="")
    value = _decimal(part["digits"], decimal, in_box)
    if value is None:
        return None
    if exponent := part["e"] or part["power"]:
        is_power = bool(part["power"] and not part["ten"])
        if abs(int(exponent)) > _MAX_DIGITS or (is_power and value != 10):
            return None  # 2^10 would have to be calculated
        value = Fraction(10) ** int(exponent) * (1 if is_power else value)
    if below := part["over"] or part["d"]:
        if len(below) > _MAX_DIGITS or not int(below):
            return None
        value = value / int(below) if part["over"] else value + Fraction(int(part["n"]), int(below))
    if scale := part["scale"] or part["short"]:
        value *= _SCALES[scale.lower()]
    if (part["sign"] not in ("", "+")) != bool(part["sign2"]):
        value = -value
    return Number(value, bool(part["percent"]), match[0].strip(), match.start(), match.end())


def _decimal(written: str, decimal: Decimal, in_box: bool) -> Fraction | None:
    """Read digits with separators, the English way first unless told otherwise."""
    digits = written.replace(" ", "").replace("'", "")
    ways = (_GERMAN,) if decimal == "," else (_ENGLISH,) if in_box else (_ENGLISH, _GERMAN)
    for way in ways:
        if len(digits) <= _MAX_DIGITS and (match := way.fullmatch(digits)):
            whole, part = match[1].replace(",", "").replace(".", ""), match[2] or ""
            return Fraction(int(whole + part), 10 ** len(part)) if part else Fraction(int(whole))
    return None


# --- The number that a value is -----------------------------------------------------------------

_SIMPLE = re.compile(r"-?\$?(?:[0-9]{1,15}|[0-9]{1,3}(?:,[0-9]{3}){1,5})(?:\.[0-9]{1,15})?%?")
_DIGIT = re.compile(r"[\d½¼¾⅓⅔]")
_EQUATIONS = re.compile(r"=[^=]*(?:[,;]|\band\b|\bor\b)[\s$\\(]{0,4}[^\W\d_]\w{0,8}\s?=")
_EXPLAINS = re.compile(
    r"[,;]\s(?![\d$-])|\s\((?!\d+\)|or\b)|\.\s|\s(?:because|since|where|when|as|so|using)\b"
)
_BAD_BEFORE = re.compile(  # in an expression, a time or a bound
    r"(?:[√^_±{≤≥≠]|(?<![=-])[<>!]=?|(?:[\d)\]}%π]|\b[a-z]) ?[-+*/]"
    r"|\\[a-z]{1,12}(?:_\w)?[{(]?)\s?\Z|(?:\d:|\w\(|-\(?)\Z"
)
_BAD_BEHIND = re.compile(
    r"\s?(?:[π√±^_{*]|\+|\\[a-z]|[-/]\s?(?:[\d(\\]|[a-z]\b)|(?:pi|squared|cubed|mod|and a half)\b)"
    r"|[(!](?=\w)|[:.,]\d|\.\.|…|[xyznieabc](?![^\W\d_])|百|千"
)
_IN_BOX = re.compile(r"!|\s?[A-Za-z](?![A-Za-z])")


@lru_cache(maxsize=4096)
def parse_number(
    text: str, *, decimal: Decimal = ".", in_box: bool = False, at_head: bool = False
) -> Number | None:
    """Read the one number that a value is, as `$1,234.50`, `about 7 km` or `x = 3 + 4 = 7`.

    In a box, letters are variables and `3,5` is a pair. At the head, at most one word stands before
    the number. Two numbers, or an expression, are none.
    """
    if decimal == "." and _SIMPLE.fullmatch(text):  # as most are
        whole, _, part = text.replace("$", "").replace(",", "").rstrip("%").partition(".")
        return Number(Fraction(int(whole + part), 10 ** len(part)), text[-1] == "%", text)
    text = _plain(text[:1000])
    first = _DIGIT.search(text)
    if first is None:
        return _word_number(text)
    if _EQUATIONS.search(text):
        return None
    if explained := _EXPLAINS.search(text, first.end()):
        text = text[: explained.start()]
    sides = re.split("[=≈]", text)
    if any(side.rstrip().endswith(("<", ">", "!")) for side in sides[:-1]):
        return None
    sides = [side for side in sides if _DIGIT.search(side)]
    number = _only(sides[-1], decimal, in_box)
    if number and at_head and len(sides[-1][: number.start].split()) > 1:
        return None
    if number is None and len(sides) == 2 and _SIMPLE.fullmatch(sides[0].strip()):
        return _only(sides[0], decimal, in_box)  # 7 = 3 + 4
    return number


def _only(text: str, decimal: Decimal, in_box: bool) -> Number | None:
    """Read the one number of a text; None where it has several, or is an expression."""
    numbers: list[Number] = []
    for match in _NUMBER.finditer(text):
        is_pair = in_box or text[match.start() - 1 : match.start()] in ("(", "[")
        number = _read(match, decimal, is_pair)
        if number is None:
            return None
        numbers.append(number)
    if len({number.value for number in numbers}) != 1:
        return None
    number = numbers[0]
    if in_box and _IN_BOX.match(text, number.end):
        return None
    return None if _is_unfit(text, number) else number


def _is_unfit(text: str, number: Number) -> bool:
    """Tell whether a number is part of an expression, a time or a pair, or is denied."""
    before = text[max(0, number.start - 40) : number.start]
    half = before[-1:] in ("(", "[") and not re.match(r"[^,;()\[\]]{0,40}[)\]]", text[number.end :])
    return bool(
        half
        or _BAD_BEFORE.search(before[-16 if "\\" in before else -4 :])
        or is_denied(before)
        or _BAD_BEHIND.match(text, number.end)
        or DENIED_BEHIND.match(text, number.end)
    )


def _word_number(text: str) -> Number | None:
    word = text.strip(" .*_\n")
    bare = word[:40].lower().removeprefix("minus ").removeprefix("negative ")
    if bare not in _WORDS:
        return None
    return Number(Fraction(_WORDS[bare] * (1 if len(bare) == len(word) else -1)), False, word)


# --- The last number of a text ------------------------------------------------------------------

_WINDOW = 50  # characters before the last digit in which its number begins
_MAX_SKIPPED = 20
_DIGITS_ALIKE = bytes(48 if 48 <= c < 58 else 32 for c in range(256))
_NUMBERING = re.compile(r"^[ \t>*_#]{0,6}\d{1,3}[.)](?=\s)", re.MULTILINE)


def last_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """Find the last number of a text, unless it is part of something else, or denied."""
    end = len(text)
    for _ in range(_MAX_SKIPPED):
        end = _last_digit(text, end)
        if end < 0:
            return None
        start = max(0, end - _WINDOW)
        near = _plain(_NUMBERING.sub(" ", text[start : end + 25]))
        matches = list(_NUMBER.finditer(near))
        if matches:
            break
    else:
        return None
    number = _read(matches[-1], decimal, in_box=False)
    if number is None or (start and not number.start) or _is_unfit(near, number):
        return None  # perhaps half a number
    return number


def _last_digit(text: str, end: int) -> int:
    if text.isascii():  # much faster
        return text.encode().translate(_DIGITS_ALIKE).rfind(b"0", 0, end)
    digit = _DIGIT.search(text[:end][::-1])
    return end - 1 - digit.start() if digit else -1


# --- Grading ------------------------------------------------------------------------------------


def _check(*, absolute: Any = 0.0, relative: Any = 0.0, decimal: Any = ".", **_: object) -> None:
    for name, value in (("absolute", absolute), ("relative", relative)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and 0 <= value < math.inf):
            raise InvalidInput(f"a tolerance is a number from 0 on, got {name}={value!r:.100}")
    if decimal not in (".", ","):
        raise InvalidInput(f"decimal is '.' or ',', got {decimal!r:.100}")


@grader(version=4, check=_check)
def grade_number(
    answer: str | None,
    target: float | str | Fraction,
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
    last: bool = True,
    decimal: Decimal = ".",
) -> Grade:
    """Grade the number that an answer states: 1.0 where it is the target, else 0.0.

    It goes through the stated answers (box, tag, key, `#### 7`, `Answer: 7`, `the answer is 7`)
    from the last one backwards and takes the first that is a number, with a unit or a remark; in a
    sentence at most one word stands before it. One without any number is passed over. Of an
    equation, what stands behind the last `=` counts. Where no box, tag, key, hashes or label is
    found, the last number of the text counts. Two different numbers in one statement are two
    answers: a 0. So is an expression (`2x`, `3 + 4`), a time, a date, or a number behind `not`,
    `if`, `wrong` or `<`.

    `50%` is 50 and also 0.5; a tolerance holds for both. A float with decimals as the target
    carries rounding and is met to nine digits.

    Args:
        answer: The reply.
        target: A number, or a text that is one or states one (`… #### 7`).
        absolute: How far the number may be from the target.
        relative: The same, as a share of the target.
        last: Whether the last number counts where none is stated.
        decimal: The decimal mark of answer and target, which decides what `1,234` and `1.234` are;
            `3,5` is 3.5 either way, but for a box, where it is a pair by default.

    Returns:
        The grade; `extracted` is the number in plain characters.

    Raises:
        InvalidInput: The target is not a number, or an option makes no sense.
    """
    if absolute or relative or decimal != ".":
        _check(absolute=absolute, relative=relative, decimal=decimal)
    if isinstance(target, bool) or not isinstance(target, int | float | str | Fraction):
        raise InvalidInput(
            f"the target (ground_truth) is a number, or a text that is one, got {target!r:.100}"
        )
    reference = _target(target, decimal)
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    number = None
    for statement in statements(text):
        value, sentence = statement.value or "", statement.is_sentence
        is_box = statement.kind == "box"
        number = parse_number(value, decimal=decimal, in_box=is_box, at_head=sentence)
        if number:
            break
        digit = _DIGIT.search(value)
        is_remark = sentence and digit and len(value[: digit.start()].split()) > 1
        if not value or (digit and not is_remark):
            return Grade(0.0, None, f"no single number in what is stated: {value!r:.200}")
        last = last and sentence
    if number is None and last:
        number = last_number(text, decimal=decimal) or _word_number(text)
    if number is None:
        return Grade(
            0.0, None, "no number is stated" + ("" if last else "; last=True takes the last")
        )
    if isinstance(target, float) and not target.is_integer():
        relative = max(relative, 1e-9)
    return Grade(float(_is_same(number, reference, absolute, relative)), number.text)


def _is_same(number: Number, reference: Number, absolute: float, relative: float) -> bool:
    """Compare two numbers; where only one is a percentage, as written or as hundredths."""
    values = [number.value]
    if number.percent != reference.percent:
        values.append(number.value / 100 if number.percent else number.value * 100)
    if reference.value in values or not (absolute or relative):
        return reference.value in values
    allowed = max(Fraction(repr(absolute)), Fraction(repr(relative)) * abs(reference.value))
    return any(abs(value - reference.value) <= allowed for value in values)


@lru_cache(maxsize=1024)
def _target(target: float | str | Fraction, decimal: Decimal) -> Number:
    if isinstance(target, str):
        statement = next(statements(target), None)
        number = parse_number(
            statement.value if statement and statement.value else target, decimal=decimal
        )
        if number is None:
            raise InvalidInput(f"the target {target!r:.200} is not a number; give the number alone")
        return number
    if isinstance(target, float) and not math.isfinite(target):
        raise InvalidInput(f"the target is {target}; no answer equals that")
    exact = Fraction(repr(target)) if isinstance(target, float) else Fraction(target)
    return Number(exact, False, str(target))
