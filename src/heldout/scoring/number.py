r"""Numbers: the number that an answer states, compared exactly or within a tolerance.

Numbers are read with their sign (`-5`, `−5`, `minus 5`), currency, percent, thousands (`1,234`,
`1.234.567`, `1 234`, `1'234`, `12,34,567`, `1{,}234`), decimal commas where they can be nothing
else (`0,5`, `1.234,56`), fractions (`3/4`, `1 1/2`, `½`, `\frac{3}{4}`), powers of ten (`1.2e3`,
`1.2 × 10^3`, `10⁶`), scales (`3 million`, `5 dozen`, `3万`) and units, and in words from `zero` to
`ninety-nine`. (The package text2num reads more words, but verdicts must not depend on what else is
installed.) A number is a `Fraction`, so `29.00` is 29 and big numbers keep their last digit.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text, shown, statements, visible_text
from heldout.scoring.grades import NO_ANSWER, Grade, grader

Decimal = Literal[".", ","]


class Number(NamedTuple):
    """A number as it was read."""

    value: Fraction
    percent: bool
    """Whether a percent sign follows; `value` is the number before it."""
    text: str
    """As it was written."""
    start: int = 0
    end: int = 0


# --- What numbers look like ---------------------------------------------------------------------

_VULGAR = {
    **{"½": Fraction(1, 2), "⅓": Fraction(1, 3), "⅔": Fraction(2, 3), "¼": Fraction(1, 4)},
    **{"¾": Fraction(3, 4), "⅛": Fraction(1, 8), "⅜": Fraction(3, 8), "⅝": Fraction(5, 8)},
}
_SCALES = {
    **{"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9},
    **{"trillion": 10**12, "万": 10**4, "亿": 10**8, "k": 10**3, "m": 10**6, "b": 10**9},
}
_NAMES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_WORDS = {word: n if n < 20 else 10 * (n - 18) for n, word in enumerate(str.split(_NAMES))}
_WORDS |= {
    f"{ten} {one}": value + unit
    for ten, value in _WORDS.items()
    for one, unit in _WORDS.items()
    if value >= 20 and 0 < unit < 10
}
_MINUS, _RAISED, _VULGARS = "-−–", "⁰¹²³⁴⁵⁶⁷⁸⁹", "".join(_VULGAR)
_SEPARATOR = r"(?:[.,'’\u00a0\u202f\u2009٫٬]|\{,\}|,?\\[,!;])"
_POWER = rf"(?:(?:\^|\*\*)\s?[{{(]?(?P<%s>[-−+]?\d{{1,4}})[}})]?|(?P<%s>[⁻⁺]?[{_RAISED}]{{1,4}}))"
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\]}%])[-+−–])?(?P<money>(?:\\?\$|€|£|¥|₹)\s?(?P<sign2>[-−])?)?"
    r"(?:\\[dtc]?frac\s?(?:\{\s?(?P<n>[-−]?\d{1,400})\s?\}\s?\{\s?(?P<d>[-−]?\d{1,400})\s?\}"
    r"|(?P<n1>\d)(?P<d1>\d))"
    rf"|(?P<digits>\d{{1,3}}(?:\s\d{{3}})+(?![\d])|\d+(?:{_SEPARATOR}\d+)*|\.\d+)"
    rf"(?:[eE](?P<e>[-+−]?\d{{1,4}})(?!\w)"
    rf"|\s?(?:[×x*·⋅]|\\times|\\cdot)\s?10{_POWER % ('ten', 'ten2')}"
    rf"|{_POWER % ('power', 'power2')}"
    rf"|\s?[/⁄]\s?(?P<over>\d{{1,400}})(?![\d/])|\s?(?P<vulgar>[{_VULGARS}])"
    r"|(?P<half>\s(?:and\s)?(?:a|one)[\s-]half)\b"
    r"|\s(?:and\s)?(?P<n2>\d{1,9})\s?[/⁄]\s?(?P<d2>\d{1,9})(?![\d/])"
    r"|\s?\\[dtc]?frac\s?\{\s?(?P<n3>\d{1,9})\s?\}\s?\{\s?(?P<d3>\d{1,9})\s?\})?"
    rf"|(?P<vulgar2>[{_VULGARS}]))"
    r"(?P<percent>\s?(?:\\?%|％|(?i:per\s?cent)\b))?"
    r"(?:(?P<scale>[\s-]{0,2}(?:(?i:dozen|hundred|thousand|million|billion|trillion)s?\b|[万亿]))"
    r"|(?P<short>(?<=\d)[kKMB]\b))?"
)
_BEGINS = re.compile(rf"[-+−–$€£¥₹\\.\d{_VULGARS}]")
_DIGIT = re.compile(rf"[\d{_VULGARS}]")
_PLAIN_DIGITS = str.maketrans(_RAISED + "⁻⁺−", "0123456789-+-")
_JOINTS = re.compile(r"\{,\}|,?\\[,!;]|[\s\u00a0\u202f\u2009’٬]")
_GROUPED_BY_SPACES = re.compile(r"\d{1,3}(?:'\d{3})+")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{2,3})*,\d{3}")
_MAX_DIGITS = 400


def _matches(text: str) -> list[re.Match[str]]:
    """Find what looks like a number, much faster than by the pattern alone."""
    matches: list[re.Match[str]] = []
    at = 0
    while begins := _BEGINS.search(text, at):
        match = _NUMBER.match(text, begins.start())
        at = match.end() if match else begins.end()
        if match:
            matches.append(match)
    return matches


def _read(match: re.Match[str], decimal: Decimal, in_box: bool) -> Number | None:
    """Work out the value of a match; None for what only looks like a number (1.2.3)."""
    value = _value_of(match[0], decimal, in_box)
    if value is None:
        return None
    start, end = match.span()
    before = match.string[max(0, start - 9) : start].lower()
    if before.endswith(("minus ", "negative ")):
        start, value = start - len(before.split()[-1]) - 1, -value
    return Number(value, match["percent"] is not None, match.string[start:end].strip(), start, end)


@lru_cache(maxsize=4096)
def _value_of(written: str, decimal: Decimal, in_box: bool) -> Fraction | None:
    match = _NUMBER.fullmatch(written)
    if match is None:
        return None
    part = match.groupdict(default="")
    if part["digits"]:
        value = _decimal(part["digits"], decimal, in_box)
    elif part["vulgar2"]:
        value = _VULGAR[part["vulgar2"]]
    else:
        value = _ratio(part["n"] or part["n1"], part["d"] or part["d1"])
    exponent, power = part["e"] or part["ten"] or part["ten2"], part["power"] or part["power2"]
    if value is None:
        return None
    if part["over"]:
        fraction = _ratio("1", part["over"])
        value = None if fraction is None else value * fraction
    elif part["vulgar"] or part["half"]:
        value += _VULGAR[part["vulgar"] or "½"]
    elif part["n2"] or part["n3"]:
        fraction = _ratio(part["n2"] or part["n3"], part["d2"] or part["d3"])
        value = value + fraction if fraction is not None and fraction < 1 else None
    elif exponent or power:
        size = int((exponent or power).translate(_PLAIN_DIGITS))
        if abs(size) > _MAX_DIGITS or (power and value != 10):
            return None  # 2^10 would have to be calculated
        value = Fraction(10) ** size * (1 if power else value)
    if value is None or (part["short"] and not (part["money"] or part["short"] == "k")):
        return None
    if scale := (part["short"] or part["scale"]).strip(" -").lower():
        value *= _SCALES.get(scale) or _SCALES[scale.removesuffix("s")]
    is_negative = bool(part["sign"] and part["sign"] in _MINUS) != bool(part["sign2"])
    return -value if is_negative else value


def _ratio(above: str, below: str) -> Fraction | None:
    lower = int(below.translate(_PLAIN_DIGITS))
    return Fraction(int(above.translate(_PLAIN_DIGITS)), lower) if lower else None


def _decimal(written: str, decimal: Decimal, in_box: bool) -> Fraction | None:
    """Read digits with separators."""
    digits = _JOINTS.sub("'", written.replace("٫", "."))
    if len(digits) > _MAX_DIGITS:
        return None
    if decimal == ",":
        digits = digits.translate({44: ".", 46: ","})
    whole, point, part = digits.rpartition(".")
    if point and "," in part and whole.replace(".", "").isdigit():  # 1.234,56
        part, _, decimals = part.partition(",")
        whole, part = f"{whole}.{part}".replace(".", ","), decimals
    elif digits.count(".") > 1:  # 1.234.567
        whole, part = digits.replace(".", ","), ""
    elif not point:
        whole, part = digits, ""
        if "," in digits and not _GROUPED.fullmatch(digits) and decimal == "." and not in_box:
            whole, _, part = digits.rpartition(",")  # 0,5
    if ("," in whole and not _GROUPED.fullmatch(whole)) or (
        "'" in whole and not _GROUPED_BY_SPACES.fullmatch(whole)
    ):
        return None
    whole = whole.replace(",", "").replace("'", "") or "0"
    return Fraction(int(whole + part), 10 ** len(part)) if (whole + part).isdigit() else None


# --- The number that a value is -----------------------------------------------------------------

_SIMPLE = re.compile(r"-?\$?(?:[0-9]{1,15}|[0-9]{1,3}(?:,[0-9]{3}){1,5})(?:\.[0-9]{1,15})?%?")
_LATEX_TEXT = re.compile(r"\\(?:text[a-z]{0,4}|math[a-z]{2}|mbox|rm)\s?\{([^{}]*)\}")
_UNIT_MARKS = re.compile(  # degrees, and the powers of units
    r"\s?\^\s?\{?\s?\\circ\s?\}?|\\degree|°|(?<=[A-Za-z}])\^\s?\{?\s?[-−]?\d\s?\}?"
)
_MARKUP = re.compile(
    r"(?<!\w)\*\*|\*\*(?!\w)|</?[a-z]{1,10}>|<<[^<>\n]{0,80}>>"
)  # GSM8K's <<2*3=6>>
_EQUALS = re.compile(r"=|≈|\\approx")
_EQUATIONS = re.compile(r"=[^=]*(?:[,;]|\band\b|\bor\b)[\s$\\(]{0,4}[^\W\d_]\w{0,8}\s?=")
_EXPLAINS = re.compile(
    r"[,;]\s(?![\d$-])|\s\((?!\d+\)|or\b)|\.\s|\s(?:because|since|where|when|as|so|using)\b"
)
_HEAD = re.compile(
    r"[\s*_(\[{$~\"'“]{0,8}(?:(?:about|approximately|approx\.?|around|roughly|exactly|only|just|US"
    r"|USD|EUR|GBP|Rs\.?)[\s:]{0,2}){0,2}[*_($\\]{0,4}\Z",
    re.IGNORECASE,
)
_BAD_BEFORE = re.compile(  # in an expression, a time or a bound
    r"(?:[√^_±{]|(?:[\d)\]}]|\b[a-z]) ?[*]|[\w)\]}%] ?[+/×÷·−–-]|[<>≤≥≠]=?|!=)\s?[$(]?\Z"
    r"|[-−–]\(?\Z|\w\(\Z|\d:\Z"
)
_COMMAND = re.compile(r"\\(?!text|quad|approx)[a-z]{1,12}\s?[{(]?\s?\Z")  # \ln 2
_BAD_BEHIND = re.compile(
    r"\s?(?:[π√±^×÷·⋅]|[+*](?=\s?[\w(\\])|[-−–]\s?[\d(\\]|/\s?(?:[\d(\\]|[a-z]\b))"
    r"|\s?\\(?!text|quad|[,;!)\]%$ ]|mathrm)[a-z]|[!(](?=\w)|[:/.,]\d|_?\{|_\d"
    r"|[xyznieabc](?![^\W\d_])|\s(?:pi|squared|cubed)\b|\.{2,}|…|百|千"
    r"|\s(?:is|was)(?:n['’]t|\s(?:\w+\s)?(?:not|wrong|incorrect))\b|[\w*_ $]{0,20}\?"
)
_DENYING = frozenset(("not", "if", "wrong"))
_ORDINALS = ("st", "nd", "rd", "th")
_CLOSED = re.compile(r"[^,;()\[\]]{0,40}[)\]]")


def parse_number(
    text: str, *, decimal: Decimal = ".", in_box: bool = False, at_head: bool = False
) -> Number | None:
    """Read the number that a short text is.

    Args:
        text: A stated value, as `$1,234.50`, `about 7 km`, `x = 3 + 4 = 7` or `eight`.
        decimal: The decimal mark, which decides what `1,234` and `1.234` are.
        in_box: Whether it comes from a box, where letters are variables and `3,5` is a pair.
        at_head: Whether only a number at the beginning counts.

    Returns:
        The number; None where there is none, or two, or an expression.
    """
    return _parse(text[:1000], decimal, in_box, at_head)


@lru_cache(maxsize=4096)
def _parse(text: str, decimal: Decimal, in_box: bool, at_head: bool) -> Number | None:
    if decimal == "." and _SIMPLE.fullmatch(text):  # as most are
        whole, _, part = text.replace("$", "").replace(",", "").rstrip("%").partition(".")
        value = Fraction(int(whole + part), 10 ** len(part))
        return Number(value, text[-1] == "%", text)
    text = _LATEX_TEXT.sub(r" \1 ", _UNIT_MARKS.sub("", _MARKUP.sub("", text)))
    first = _DIGIT.search(text)
    if first is None:
        return _word_number(text)
    if _EQUATIONS.search(text):
        return None
    if explained := _EXPLAINS.search(text, first.end()):
        text = text[: explained.start()]
    sides = _EQUALS.split(text)
    if len(sides) == 1:
        return _only(text, decimal, in_box, at_head)
    if any(side.rstrip().endswith(("<", ">", "!")) for side in sides):
        return None
    sides = [side for side in sides if _DIGIT.search(side)]
    number = _only(sides[-1], decimal, in_box, at_head=False)
    if number is None and len(sides) == 2 and _SIMPLE.fullmatch(sides[0].strip()):
        return _only(sides[0].strip(), decimal, in_box, at_head=False)  # 7 = 3 + 4
    return number


def _only(text: str, decimal: Decimal, in_box: bool, at_head: bool) -> Number | None:
    """Read the one number of a text; None where it has several, or is an expression."""
    first: Number | None = None
    for match in _matches(text):
        if _is_attached(text, match):
            continue
        pair = in_box or text[match.start() - 1 : match.start()] in ("(", "[")
        number = _read(match, decimal, pair)
        if number is None or (first and number.value != first.value):
            return None
        first = first or number
    if first is None:
        return None
    before, behind = text[: first.start], text[first.end :]
    if at_head and not _HEAD.match(before):
        return None
    if in_box and re.match(r"!|\s?[A-Za-z](?![A-Za-z])", behind):
        return None
    return None if _is_unfit(before, behind) else first


def _is_attached(text: str, match: re.Match[str]) -> bool:
    """Tell the digits of `H2O`, `m^2` and `3rd` from a number."""
    before = text[match.start() - 1 : match.start()]
    attached = before.isalpha() and before.isascii() and not match["money"]
    return attached or before == "^" or text.startswith(_ORDINALS, match.end())


def _is_unfit(before: str, behind: str) -> bool:
    """Tell whether a number is part of an expression, a time or a pair, or is denied."""
    near = before[-40:].lower()
    if not near.rstrip(" $")[-1:].isalpha() and _BAD_BEFORE.search(near[-6:]):
        return True
    if "\\" in near and _COMMAND.search(near):
        return True
    if "no" in near or "n't" in near or "n’t" in near or "if" in near or "wrong" in near:
        for word in reversed(near[near.rfind("\n") + 1 :].split()[-4:]):
            bare = word.strip("*_$")
            if bare in _DENYING or bare.endswith(("n't", "n’t")):
                return True
            if bare and not bare.isalnum():
                break
    half = before[-1:] in ("(", "[") and not _CLOSED.match(behind)  # of a pair
    return bool(half or (behind and _BAD_BEHIND.match(behind)))


def _word_number(text: str) -> Number | None:
    words = text.strip(" .*_\n").lower().replace("-", " ") if len(text) < 40 else ""
    bare = words.removeprefix("minus ").removeprefix("negative ")
    if bare not in _WORDS:
        return None
    sign = 1 if bare == words else -1
    return Number(Fraction(_WORDS[bare] * sign), False, text.strip(" .*_\n"))


# --- The last number of a text ------------------------------------------------------------------

_WINDOWS = (40, 600)  # characters before its last digit in which the last number begins
_MAX_SKIPPED = 20
_DIGITS_ALIKE = bytes(48 if 48 <= c < 58 else 32 for c in range(256))
_NUMBERING = re.compile(r".*\n[ \t>*_#]{0,6}\Z", re.DOTALL)


def last_number(text: str, *, decimal: Decimal = ".") -> Number | None:
    """Find the last number of a text, as long as nothing next to it denies it.

    Args:
        text: A text that states no answer.
        decimal: The decimal mark.

    Returns:
        The number; None where there is none, or the last one is part of a date, a time or an
        expression, or has `not`, `if`, `wrong` or a sign like `<` before it.
    """
    text = visible_text(text)
    end = len(text)
    for _ in range(_MAX_SKIPPED):
        last = _last_digit(text, end)
        if last < 0:
            return None
        for window in _WINDOWS:
            start = max(0, last - window)
            near = text[start : min(end, last + 30)]
            if "*" in near or "<" in near:
                near = _MARKUP.sub(lambda mark: " " * len(mark[0]), near)
            match = [match for match in _matches(near) if match.start() <= last - start][-1]
            if start == 0 or match.start() > 9:  # else there may be half a number
                break
        before, behind = near[: match.start()], near[match.end() :]
        numbering = behind[:2] in (". ", ") ", ".\n") and _NUMBERING.match(before)
        if not numbering and not _is_attached(near, match):
            return None if _is_unfit(before, behind) else _read(match, decimal, in_box=False)
        end = start + match.start()
    return None


def _last_digit(text: str, end: int) -> int:
    if text.isascii():
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


@grader(version=3, check=_check)
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
    sentence the number comes first. One without any number is passed over. Of an equation, what
    stands behind the last `=` counts. Where no box, tag, key, hashes or label is found, the last
    number of the text counts. Two different numbers in one statement are two answers: a 0. So is an
    expression (`2x`, `3 + 4`), a time, a date, or a number behind `not`, `if`, `wrong` or `<`.

    `50%` is 50 and also 0.5; a tolerance is for the one of these that is nearer to the target. A
    float with decimals as the target carries rounding and is met to nine digits.

    Args:
        answer: The reply.
        target: A number, or a text that is one or states one (`… #### 7`).
        absolute: How far the number may be from the target.
        relative: The same, as a share of the target.
        last: Whether the last number counts where none is stated.
        decimal: The decimal mark of answer and target, which decides what `1,234` and `1.234` are;
            `3,5` is 3.5 either way, but for a box, where it is a pair by default.

    Returns:
        The grade; `extracted` is the number as it was written.

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
        value = statement.value or ""
        box, sentence = statement.kind == "box", statement.is_sentence
        number = parse_number(value, decimal=decimal, in_box=box, at_head=sentence)
        if number:
            break
        digit = _DIGIT.search(value)
        is_remark = sentence and digit and not _HEAD.match(value[: digit.start()])
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
    same = same_number(number, reference, absolute=absolute, relative=relative)
    return Grade(float(same), shown(number.text))


def same_number(
    number: Number, reference: Number, *, absolute: float = 0.0, relative: float = 0.0
) -> bool:
    """Compare two numbers.

    Where only one of them is a percentage, it counts as written or as hundredths; a tolerance is
    for the one of these that is nearer, by the ratio of the two, to what is wanted.

    Args:
        number: The number of the answer.
        reference: The target.
        absolute: How far apart the two may be.
        relative: The same, as a share of the target.

    Returns:
        Whether they are the same.
    """
    if number.percent == reference.percent:
        return _close(number.value, reference.value, absolute, relative)
    ratio = Fraction(1, 100) if number.percent else Fraction(100)
    if reference.value in (number.value, number.value * ratio):
        return True
    share, plain = (number, reference) if number.percent else (reference, number)
    hundredths = abs(plain.value) * 10 < abs(share.value) and plain.value != 0
    value = number.value * ratio if hundredths else number.value
    return _close(value, reference.value, absolute, relative)


def _close(value: Fraction, reference: Fraction, absolute: float, relative: float) -> bool:
    if value == reference or not (absolute or relative):
        return value == reference
    allowed = max(Fraction(repr(absolute)), Fraction(repr(relative)) * abs(reference))
    return abs(value - reference) <= allowed


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
