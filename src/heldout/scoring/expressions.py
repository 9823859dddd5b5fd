r"""From the text of an answer to an expression, and whether that equals the expected one.

`stated` says what is to be read, in the process that asks; `decide` reads and compares, in a
worker, since sympy may take for ever. Traps that are avoided here: math-verify merges two far apart
boxes into a set, so that "\boxed{4}. Wait: \boxed{5}" is neither; it reads 1e3 as 1 (or e times 3),
`1 1/2`, `−3`, `√2` and `3x+2 for all x` as something else; its timeouts are signals, which threads
cannot have, and which a long multiplication does not notice.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from importlib import import_module
from typing import Any, NamedTuple

from heldout.errors import InvalidInput
from heldout.scoring.answers import last_statement

LONGEST = 4000
"""Characters that are looked at: of a statement, or of the end of a text without one. math-verify's
patterns take cubic time on some texts."""
LONGEST_SHOWN = 500
MOST_BOXES = 16
MOST_STATEMENTS = 8


class Stated(NamedTuple):
    inside: str | None
    """The expression that is stated."""
    tail: str
    """The text to look for one in, where there is none, or it cannot be read."""
    note: str


# --- What the text states ------------------------------------------------------------------------

_JOINED = re.compile(
    r"[\s$]*(?:,|;|\\quad|(?:,\s*)?(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*", re.IGNORECASE
)
_PERCENT = re.compile(r"[\s$]{0,4}\\?%")
_UNBRACED = re.compile(r"\s{0,4}([^\s{}$.,]{1,50})")
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|log|ln|exp"
_IS_MATHEMATICAL = re.compile(
    rf"[\d\\$^=<>|∞π√∅±]|\b(?:sqrt|{_FUNCTIONS})\b|\A(?![\s\S]*[A-Za-z]{{3}})"
)
_NO_WORDS = re.compile(r"\\(?:text[a-z]{0,8}|mathrm|operatorname|mbox|begin|end)\s{0,4}\{[^{}]*\}")
_PROSE = re.compile(
    rf"(?:\s|\A)(?!(?:and|or|sqrt|{_FUNCTIONS}|gcd|lcm|min|max|mod|det)\b)"
    r"(?:[A-Za-z]{3,}|of|to|in|is|at|as|on|by|if|we)(?![A-Za-z])"
)


def stated(answer: str) -> Stated:
    """The last statement of something mathematical, or the end of a text without one."""
    answer = answer.replace("\\fbox{", "\\boxed{").replace("\boxed", "\\boxed")
    text, other = answer, None
    for _ in range(MOST_STATEMENTS):
        statement = last_statement(text)
        if statement is None:
            break
        if statement.kind == "box":
            return _boxes(text, text.rfind("\\boxed", 0, statement.start + len("\\boxed")))
        value = statement.value
        if value is None or len(value) > LONGEST:
            return Stated(None, "", f"the answer breaks off, or has over {LONGEST} characters")
        if statement.kind != "words" or _IS_MATHEMATICAL.search(value):
            return _worded(value)
        other = other or value
        text = text[: statement.start]  # "this answer is plausible" does not take a box back
    if other is not None:
        return Stated(f"\\text{{{other}}}", "", "")
    return Stated(None, answer[-LONGEST:], "")


def _worded(value: str) -> Stated:
    """Of "3/4 of the cake" the 3/4."""
    tail = f"The final answer is {value}."
    if value.count("$") == 1:
        value = value.replace("\\$", "").replace("$", "")  # money
    if "$" in value or "\\(" in value:
        return Stated(None, tail, "")
    prose = _PROSE.search(_NO_WORDS.sub(lambda found: "\\" * len(found[0]), value))
    expression = value[: prose.start()].rstrip(" ,;:(") if prose else value
    return Stated(expression or None, tail, "")


def _boxes(answer: str, start: int) -> Stated:
    """The box that starts here, with those that are joined to it."""
    last = _box(answer, start)
    if last is None:
        return Stated(None, "", f"the last \\boxed is not closed, or has over {LONGEST} characters")
    contents = [last[0]]
    if _PERCENT.match(answer, last[1]) and "%" not in last[0]:
        contents = [last[0] + "\\%"]
    for _ in range(MOST_BOXES):
        before = answer.rfind("\\boxed", 0, start)
        box = _box(answer, before) if before >= 0 else None
        if box is None or not 0 < start - box[1] < 40:
            break
        if not _JOINED.fullmatch(answer, box[1], start):
            break
        start = before
        if box[0] not in contents:
            contents.insert(0, box[0])
    return Stated(", ".join(contents), "", "")


def _box(text: str, start: int) -> tuple[str, int] | None:
    """The content of the box that starts here, and where it ends."""
    opening = start + len("\\boxed")
    while text[opening : opening + 1].isspace() and opening < start + 20:
        opening += 1
    if text[opening : opening + 1] != "{":
        bare = _UNBRACED.match(text, opening)
        return (bare[1], bare.end()) if bare else None
    depth, skip = 0, False
    for place, character in enumerate(text[opening : opening + LONGEST], opening):
        if skip or character == "\\":
            skip = not skip
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[opening + 1 : place].strip(), place + 1
    return None


# --- The gold ------------------------------------------------------------------------------------

_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_MOST_WORDS = 2


def check_gold(gold: str) -> str:
    """What of it is to be read. A bare (1,2) would be the number 1.2 to math-verify."""
    statement = last_statement(gold)
    if statement is not None and statement.kind != "words":
        inside, _, problem = stated(gold)
        if inside is None:
            raise InvalidInput(
                f"the math target {gold[:LONGEST_SHOWN]!r} cannot be read: {problem}"
            )
        return boxed(plain(inside))
    gold = plain(gold)
    if gold.count("$") == 1:
        gold = gold.replace("\\$", "").replace("$", "")  # money
    if "$" in gold or "\\(" in gold or "\\[" in gold:
        return gold
    if len(_WORDS.findall(_NO_WORDS.sub(" ", gold))) > _MOST_WORDS:
        # To math-verify "The answer is 5" is a product of fifteen variables, which nothing equals.
        raise InvalidInput(
            f"the math target {gold[:LONGEST_SHOWN]!r} reads as a sentence; give the expression "
            "alone, and words as \\text{…}"
        )
    return boxed(gold)


_SCIENTIFIC = re.compile(r"(?<![\w.\\,])(\d{1,30}(?:\.\d{1,30})?)[eE]([+-]?\d{1,2})(?![\w.^]\w)")
_MIXED = re.compile(r"(?<![\d.,/^_{}])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\d/.,])")
_MINUS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\ufe63": "-"})


_ROOT = re.compile(r"(?:√|(?<![\\A-Za-z])sqrt)\s?(?:\(([^()]{1,200})\)|(?<=√)(\d{1,30}|[a-z]))")
_BARE = re.compile(rf"(?<![\\A-Za-z])({_FUNCTIONS})(?=[\s(]\s?[\w(\\])")


def plain(text: str) -> str:
    """Without what math-verify misreads: other minus signs, 1e3, √2, sqrt(2), sin x."""
    text = _SCIENTIFIC.sub(_decimal, text.translate(_MINUS))
    text = _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text)
    return _BARE.sub(r"\\\1", text)


def _decimal(match: re.Match[str]) -> str:
    return f"{Decimal(f'{match[1]}e{match[2]}'):f}"


_POWER = re.compile(r"(?<=[\w)])\*\*(\d{1,30}|[A-Za-z])")


def boxed(expression: str) -> str:
    expression = _POWER.sub(r"^{\1}", expression)
    expression = _MIXED.sub(r"\1\\frac{\2}{\3}", expression.strip().rstrip(".").rstrip())
    return f"\\boxed{{{expression}}}"


# --- In the worker: no timeouts of math-verify's own ---------------------------------------------


def prepare() -> None:
    import logging

    logging.disable(logging.CRITICAL)  # it warns, in every process, that its timeouts are off
    # The first use of each part of sympy takes long: on nobody's time here.
    for gold, inside in (
        ("1/2", "x^2"),
        (r"\{1,2\}", "1, 3"),
        (r"\sqrt{2}/2", r"\frac{1}{\sqrt 3}"),
    ):
        decide(boxed(gold), inside, "", "", 6, True)
    decide(boxed("x^2-1"), None, "The answer is 3/6.", "", 6, True)


def decide(
    gold: str, inside: str | None, tail: str, note: str, decimals: int, strict: bool
) -> dict[str, Any]:
    said: dict[str, Any] = {"gold_problem": "", "value": 0.0, "extracted": None, "note": ""}
    wanted, wanted_text = _read(gold, every=False)
    if wanted is None:
        shown = gold.removeprefix("\\boxed{").removesuffix("}")[:LONGEST_SHOWN]
        problem = f"the math target {shown!r} cannot be read as mathematics; give the expression "
        return said | {"gold_problem": problem + "alone, as LaTeX or a number"}
    found, text = (None, None) if inside is None else _read(boxed(plain(inside)), every=False)
    if found is None and tail:
        searched, searched_text = _search(_BOLD.sub("", plain(tail)))
        found, text = searched, searched_text or text
    if text is None:
        return said | {"note": note or "no mathematical expression was found"}
    said["extracted"] = text[:LONGEST_SHOWN]
    if found is None:
        return said | {"note": "could not be read as mathematics"}
    # A comparison that raises has not said that they differ.
    equal = _words(text) == _words(wanted_text or "") or _math_verify().verify(
        wanted,
        found,
        float_rounding=decimals + _leading_zeros(wanted),
        strict=strict,
        timeout_seconds=None,
        raise_on_error=True,
    )
    return said | {"value": float(equal), "note": note}


def _math_verify() -> Any:
    return import_module("math_verify")  # which has no types


_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def _words(text: str) -> str:
    """For what is written alike, and for words, which are no mathematics."""
    whole = _TEXT.fullmatch(text.strip())
    return whole[1].strip().casefold() if whole else text


def _leading_zeros(wanted: Any) -> int:
    """Of a number below 0.001: rounded to six places, anything tiny would equal a gold of 1e-7."""
    if not getattr(wanted, "is_number", False):
        return 0
    try:
        size = abs(complex(wanted.evalf(6)))
    except (ArithmeticError, TypeError, ValueError):  # 1/0, say
        return 0
    return max(-math.floor(math.log10(size)) - 1, 0) if 0 < size < 1e-3 else 0


def _read(text: str, *, every: bool) -> tuple[Any, str | None]:
    """The expression that a text ends with, and how it was written. With `every`, an earlier one
    where the last cannot be read."""
    mode = "any_match" if every else "first_match"
    found = _math_verify().parse(
        text, extraction_mode=mode, parsing_timeout=None, raise_on_error=True
    )
    expressions = [each for each in found if not isinstance(each, str)]
    written = next((each for each in found if isinstance(each, str)), None)
    return (expressions[0] if expressions else None), written


_BOLD = re.compile(r"(?<![\w)\]}])\*\*|\*\*(?![\w(\\-])")
"""Not the power in 2**3."""
_IN_PARTS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}|[$\n]|\\[\[(]|\*\*|\A[*#>-] ")
"""Words, maths signs, lines or markdown: what an expression alone does not have."""


def _search(tail: str) -> tuple[Any, str | None]:
    line = tail.strip()
    if line and len(line) <= 200 and not _IN_PARTS.search(line):
        found, written = _read(boxed(line), every=False)  # nothing but an expression
        if found is not None:
            return found, written
    found, written = _read(tail, every=False)
    if found is not None:
        return found, written
    if written:
        # What it cut out may have markdown or a full stop on it.
        again, text = _read(boxed(written.strip("*_` \n")), every=False)
        if again is not None:
            return again, text
        found, _ = _read(tail, every=True)
        return (None, written) if found is None else (found, str(found))
    return None, None
