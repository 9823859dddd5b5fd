r"""Numbers: the number that an answer states, compared exactly or within a tolerance.

Numbers are read with their sign (`-5`, `−5`, `minus 5`), currency, percent, thousands (`1,234`,
`1 234`, `1{,}234`), fractions (`3/4`, `1 1/2`, `½`, `\frac{3}{4}`), powers of ten (`1.2e3`, `1.2 ×
10^3`, `10⁶`), scales (`3 million`) and units, and in words from `zero` to `twelve`. A number is a
`Fraction`, so `29.00` is 29 and big numbers keep their last digit.
"""

from __future__ import annotations

import math
import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

from heldout.errors import InvalidInput
from heldout.scoring.answers import (
    ASKED,
    Agreed,
    Statement,
    Strength,
    agree,
    is_denied,
    kept,
    statements,
    visible,
    visible_answer,
)
from heldout.scoring.grades import NO_ANSWER, Grade, grader

Decimal = Literal[".", ","]
_Target = float | int | str | Fraction


class Number(NamedTuple):
    """A number as it was read; of a percentage, the value before the sign."""

    value: Fraction
    percent: bool
    text: str


# --- What numbers look like ---------------------------------------------------------------------

_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_NAMES = "zero one two three four five six seven eight nine ten eleven twelve"
_WORDS = {word: n for n, word in enumerate(_NAMES.split())}
_NUMBER = re.compile(
    r"""
    (?=[-+$€£¥₹.\d]) (?<![\w.,^]) (?<!nearest\ )(?<!nearest\ [$€£¥₹])
    (?! ^\d{1,3}[.)]\s                                                # the number of a list's item
      | (?:(?<=\bto\ )|(?<=\bwith\ ))\d{1,2}\s(?:dec|d\.?p\b|s\.?f\b|sig) )  # 3.14 to 2 decimals
    (?P<sign>[-+])? (?:[$€£¥₹]\s?(?P<sign2>-)?)?
    (?P<digits> \d{1,3}(?:\ \d{3})+(?:\.\d+)?(?!\d) | \d++(?:[.,]\d++)*+ | \.\d++ )
    (?!(?:st|nd|rd|th)\b)
    (?:
        [eE](?P<e>[-+]?\d{1,4})(?!\w)                                         # 1e3
      | (?P<ten>\s?[*xX]\s?10)?(?:\^|\*\*)\s?[{(]?(?P<power>[-+]?\d{1,4})[})]?  # 2 x 10^3
      | \s?/\s?(?P<over>\d+)(?![\d/])                                       # 1/2
      | \s(?:and\s)?(?P<above>\d+)\s?/\s?(?P<below>\d+)(?![\d/])            # 3 1/2
    )?
    (?P<percent>\s?(?:%|(?i:per\s?cent)\b))?
    (?:\s{1,2}(?P<scale>(?i:thousand|million|billion|trillion))s?\b)?
    """,
    re.MULTILINE | re.VERBOSE,
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{2,3})*,\d{3}")
_MAX_DIGITS = 400

VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
_PLAIN = str.maketrans(
    {
        **{"−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "⁄": "/", "％": "%", "≈": "="},
        **{vulgar: unicodedata.normalize("NFKC", vulgar).replace("⁄", "/") for vulgar in VULGAR},
    }
)
_MIXED = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")  # 2½ is 2 1/2
_RAISED = re.compile("[⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_LOWERED = str.maketrans("⁻⁺⁰¹²³⁴⁵⁶⁷⁸⁹", "-+0123456789")
_MINUS = re.compile(r"\b(?:minus|negative) (?=[$.\d])", re.IGNORECASE)
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
        text = _MIXED.sub(" ", text)
        text = _RAISED.sub(lambda power: "^" + power[0].translate(_LOWERED), text.translate(_PLAIN))
    if "inus " in text or "egative " in text:
        text = _MINUS.sub("-", text)
    if "*" in text or "<<" in text:
        text = _MARKUP.sub("", text)
    if "\\" in text or "{" in text:
        for pattern, plain in _LATEX:
            text = pattern.sub(plain, text)
    return _UNIT_POWER.sub("", text) if "^" in text else text


def _read(match: re.Match[str], decimal: Decimal) -> Number | None:
    """Work out the value of a match; None for what only looks like a number (1.2.3, 2^10)."""
    sign, sign2, digits, e, ten, power, over, above, below, percent, scale = match.groups()
    value = _decimal(digits, decimal)
    if value is None:
        return None
    if exponent := e or power:
        is_power = bool(power and not ten)
        if abs(int(exponent)) > _MAX_DIGITS or (is_power and value != 10):
            return None  # 2^10 would have to be calculated
        value = Fraction(10) ** int(exponent) * (1 if is_power else value)
    if divisor := over or below:
        if len(divisor) > _MAX_DIGITS or not int(divisor):
            return None
        value = value / int(over) if over else value + Fraction(int(above), int(below))
    if scale:
        value *= _SCALES[scale.lower()]
    if (sign == "-") != bool(sign2):
        value = -value
    return Number(value, bool(percent), match[0].strip())


def _decimal(written: str, decimal: Decimal) -> Fraction | None:
    """Read digits with separators; None where they stand in places that make no sense."""
    if len(written) > _MAX_DIGITS:
        return None
    if written.isdecimal():
        return Fraction(int(written))
    if decimal == ",":
        written = written.translate(str.maketrans(".,", ",."))
    whole, _, part = written.replace(" ", "").partition(".")
    if "," in whole and not _THOUSANDS.fullmatch(whole):
        return None
    if part and not part.isdecimal():
        return None
    return Fraction(int(whole.replace(",", "") + part or "0"), 10 ** len(part))


# --- The number that a value is -----------------------------------------------------------------

_SIMPLE = re.compile(r"-?\$?(?:[0-9]{1,15}|[0-9]{1,3}(?:,[0-9]{3}){1,5})(?:\.[0-9]{1,15})?%?")
_DIGIT = re.compile(r"[\d¼-¾⅐-⅞]")
_EQUATIONS = re.compile(r"=[^=]*(?:[,;]|\band\b|\bor\b)[\s$\\(]{0,4}[^\W\d_]\w{0,8}\s?=")
_ELSE = r"(?:or|maybe|perhaps|possibly)\b"
_EXPLAINS = re.compile(  # what is behind it is about the number, and no second one
    rf"""
    [,;]\s (?! {_ELSE}(?:\s\w+)?\s[\d.]+\s*\Z | [\d$-] )      # 7, which is; not 7, or 8
  | \s\( (?! \d+\) | {_ELSE} )                               # 7 (3 + 4)
  | \.\s (?! \d+(?:[.,;]|\Z) )                               # 7. That is
  | \s (?:because|since|where|when|as|so|using)\b
    """,
    re.VERBOSE,
)
_BAD_BEFORE = re.compile(
    r"""
    (?: [√^_±{≤≥≠] | \+/- | (?<![=-])[<>!]=?              # a bound
      | (?:[\d)\]}%π]|\b[a-z])\ ?[-+*/] | [\d)]\ ?[xX]    # an expression
      | [a-z]\ [-+*/x](?=\ ) | \\[a-z]{1,12}(?:_\w)?[{(]? )\s?\Z
  | [\d)%]\s(?:[^\W\d_]{1,9}\s)?(?:times|plus|minus|over|mod|(?:out\ )?of|(?:\w{7,10}\ )?by)\s\Z
  | \d%?[ \t]{1,9}\Z                                     # one of several, 1 2 3
  | (?: \d: | \w\( | -\(? )\Z                            # a time
    """,
    re.VERBOSE,
)
_SUSPECT = frozenset("√^_±{≤≥≠<>=!+-*/:(%xXsryfd0123456789")  # ends what makes a number unfit
_BAD_BEHIND = re.compile(
    r"""
    \s? (?: [π√±^_{*+] | \\[a-z]                             # an expression goes on
          | [-/]\s?(?:[\d(\\]|[a-z]\b)                       # a range, a quotient
          | (?:pi|squared|cubed|mod|and\ a\ half)\b )
  | [(!](?=\w) | [:.,]\d | \.\. | …                          # a call, a time, 3...
  | [xyznieabckMB](?![^\W\d_]) | \s[xyz]\b | [万亿百千]       # 3x, 5k, 3 万
    """,
    re.VERBOSE,
)


@lru_cache(maxsize=4096)
def parse_number(text: str, *, decimal: Decimal = ".", at_head: bool = False) -> Number | None:
    """Read the one number that a value is, as `$1,234.50`, `about 7 km` or `x = 3 + 4 = 7`.

    Two numbers, or an expression, are none. At the head, at most one word stands before the number.
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
    side = re.split("(?<![<>!])=", text)[-1]
    matches = list(_NUMBER.finditer(side))
    if not matches or (at_head and len(side[: matches[0].start()].split()) > 1):
        return None
    numbers = [_fit(side, match, decimal) for match in matches]
    is_one = len({number and number.value for number in numbers}) == 1
    return numbers[0] if is_one else None


def _fit(text: str, match: re.Match[str], decimal: Decimal) -> Number | None:
    """Read a match, unless it is part of an expression, a time or a bound, or is denied."""
    before = text[max(0, match.start() - 40) : match.start()]
    is_suspect = before.rstrip(" ")[-1:] in _SUSPECT or "\\" in before
    if is_suspect and _BAD_BEFORE.search(before[-30:]):
        return None
    if _BAD_BEHIND.match(text, match.end()) or is_denied(before):
        return None
    return _read(match, decimal)


def _word_number(text: str) -> Number | None:
    word = text.strip(" .*_\n")
    bare = word[:40].lower().removeprefix("minus ").removeprefix("negative ")
    if bare not in _WORDS:
        return None
    return Number(Fraction(_WORDS[bare] * (1 if len(bare) == len(word) else -1)), False, word)


# --- The last number of a text ------------------------------------------------------------------

_MAX_TEXT = 2000  # characters at the end that are looked at
_MAX_SKIPPED = 50
_OR = r"(?:\b(?:or|and|maybe|perhaps|possibly)\b)"
_UNIT = r"(?:\s[^\W\d_][^\s(),;]{0,20})"
_LISTED = re.compile(
    rf"""
    \d%?\s*(?:[,;/|]|{_OR})[\s,;/|$*]*(?:{_OR}\s+)*(?:[^\W\d_]\w{{0,8}}\s?=\s?)?\Z  # 5, 6, or 7
  | \d{_UNIT}{{0,2}}\s\(?{_ELSE}\s(?:{_OR}\s)?(?:[^\W\d_]\w{{0,8}}\s?=\s?)?\Z     # 5 km or 6 km
  | (?:(?<![\d.,])\d[\d.,]*+[^\w=:>→⇒\n]++){{2}}\Z                       # 5 - 6 - 7
  | ^\W*(?:\d{{1,2}}[.)]\s+)?[\d.,]+%?[ \t]*\n\W*(?:\d{{1,2}}[.)]\s+)?\Z    # one below the other
    """,
    re.MULTILINE | re.VERBOSE,
)
# In brackets behind a number and its unit: 15 dollars (3 x 5).
_ASIDE = re.compile(rf"\d[^\s()]{{0,20}}{_UNIT}{{0,3}}\s\((?!{_ELSE}|±|\+/)[^()\n]*\Z")


def last_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """Find the last number of a text, unless it is one of several, part of something, or denied.

    Numbers in a question, or in brackets behind another number, are passed over.
    """
    near = _plain(text[-_MAX_TEXT:])
    matches = list(_NUMBER.finditer(near))
    restated: Number | None = None  # 3/4 (75%)
    for match in matches[: -_MAX_SKIPPED - 1 : -1]:
        start = match.start()
        before = near[max(0, start - 120) : start]
        if is_aside := "(" in before and _ASIDE.search(before) is not None:
            is_alone = before.endswith("(") and near.startswith(")", match.end())
            restated = _read(match, decimal) if is_alone else restated
        if is_aside or ASKED.match(near, match.end()):
            continue
        is_half = not start and len(text) > _MAX_TEXT
        number = None if is_half or _LISTED.search(before) else _fit(near, match, decimal)
        is_other = number and restated and not _is_same(number, restated, 0.0, 0.0)
        return None if is_other else number
    return None if matches else _word_number(text)


# --- Grading ------------------------------------------------------------------------------------


def _check(
    *, absolute: float = 0.0, relative: float = 0.0, decimal: str = ".", **_: object
) -> None:
    for name, value in (("absolute", absolute), ("relative", relative)):
        if not 0 <= value < math.inf:
            raise InvalidInput(f"a tolerance must be a number from 0 on, got {name}={value!r:.100}")
    if decimal not in (".", ","):
        raise InvalidInput(f"decimal must be '.' or ',', got {decimal!r:.100}")


@grader(version=7, check=_check)
def grade_number(
    answer: str | None,
    target: float | str | Fraction,
    *,
    absolute: float = 0.0,
    relative: float = 0.0,
    last: bool = True,
    decimal: Decimal = ".",
) -> Grade:
    """Grade 1 if the number that the answer states is the target.

    Reads stated answers (box, tag, key, `#### 7`, `Answer: 7`, `the answer is 7`) that consist of a
    number, with a unit or a remark; in a sentence, at most one word may precede it. Statements
    without a number are ignored. Different numbers are ambiguous and graded 0, unless a later one
    corrects the earlier ones; what is taken back (`Actually, no`) does not count. In an equation,
    the right-hand side of the last `=` counts. If there is no box, tag, key, `####` or label, the
    last number of the text counts, unless it is one of several (`5, 6 or 7`); those in a question,
    or in brackets behind another one (`15 dollars (3 x 5)`), are passed over. Graded 0: two
    different numbers in one statement, an expression (`2x`, `3 + 4`, `4 x 6`), a time, a date, or a
    number after `not`, `if`, `wrong` or `<`.

    `50%` equals 50 and also 0.5; tolerances apply to both. A float target with decimals is compared
    to nine digits, as floats are rounded.

    Args:
        answer: The reply.
        target: A number, or a text that is one or states one (`… #### 7`).
        absolute: Absolute tolerance.
        relative: Relative tolerance, as a share of the target.
        last: Whether the last number counts if none is stated.
        decimal: Decimal separator of answer and target: with `,`, `3,5` is three and a half and
            `1.234` is more than a thousand.

    Returns:
        The grade; `extracted` is the number in ASCII.

    Raises:
        InvalidInput: The target is not a number, or an option is invalid.
    """
    if absolute or relative or decimal != ".":
        _check(absolute=absolute, relative=relative, decimal=decimal)
    if isinstance(target, bool) or not isinstance(target, _Target):
        raise InvalidInput(
            f"the target (ground_truth) must be a number, or a text that is one, got "
            f"{target!r:.100}"
        )
    reference = _read_target(target, decimal)
    text = visible_answer(answer)
    if text is None:
        return NO_ANSWER

    def read(statement: Statement) -> Number | str | None:
        """Return the number, or the text of a statement that has more than that."""
        value, is_sentence = statement.value or "", statement.strength == Strength.SENTENCE
        if number := parse_number(value, decimal=decimal, at_head=is_sentence):
            return number
        digit = _DIGIT.search(value)
        is_remark = is_sentence and digit and len(value[: digit.start()].split()) > 1
        return value if digit and not is_remark else None

    def same(one: Number | str, other: Number | str) -> bool:
        if isinstance(one, str) or isinstance(other, str):
            return one == other
        return _is_same(one, other, 0.0, 0.0)

    text = kept(text)
    stated = statements(text)
    agreed: Agreed[Number | str] = agree(text, stated, read, same)
    number, problem = agreed
    if isinstance(number, str):
        return Grade(0.0, None, f"no single number in what is stated: {number!r:.200}")
    if problem:
        return Grade(0.0, None, problem)
    last = last and all(each.strength == Strength.SENTENCE for each in stated)
    if number is None and last:
        number = last_number(text, decimal=decimal)
    if number is None:
        hint = "" if last else "; last=True takes the last"
        return Grade(0.0, None, f"no number is stated{hint}")
    if isinstance(target, float) and not target.is_integer():
        relative = max(relative, 1e-9)
    return Grade(float(_is_same(number, reference, absolute, relative)), number.text)


def _is_same(number: Number, reference: Number, absolute: float, relative: float) -> bool:
    """Compare two numbers; where only one is a percentage, as written or as hundredths."""
    values = [number.value]
    if number.percent != reference.percent:
        values.append(number.value / 100 if number.percent else number.value * 100)
    is_equal = reference.value in values
    if is_equal or not (absolute or relative):
        return is_equal
    allowed = max(Fraction(repr(absolute)), Fraction(repr(relative)) * abs(reference.value))
    return any(abs(value - reference.value) <= allowed for value in values)


@lru_cache(maxsize=1024, typed=True)
def _read_target(target: float | str | Fraction, decimal: Decimal) -> Number:
    if isinstance(target, str):
        target = visible(target)
        stated = statements(target)
        number = parse_number(stated[-1].value or "" if stated else target, decimal=decimal)
        if number is None:
            raise InvalidInput(f"the target {target!r:.200} is not a number; give the number alone")
        return number
    if isinstance(target, float) and not math.isfinite(target):
        raise InvalidInput(f"the target is {target}; no answer equals that")
    exact = Fraction(repr(target)) if isinstance(target, float) else Fraction(target)
    return Number(exact, False, str(target))
