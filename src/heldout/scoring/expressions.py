r"""From the text of an answer, or of a target, to the expression that it states.

`stated` says what is to be read, in the process that asks; `comparing.py` reads and compares, in a
worker, since sympy may take for ever. Traps that are avoided here: math-verify merges two far apart
boxes into a set, so that "\boxed{4}. Wait: \boxed{5}" is neither; it reads 1e3 as 1 (or e times 3),
`1 1/2`, `−3`, `√2` and `3x+2 for all x` as something else, and the 7 out of "not 7".
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from heldout.errors import InvalidInput
from heldout.scoring.answers import last_statement, statements
from heldout.scoring.claims import FUNCTIONS, Claim, claimed, count_words, has_words

LONGEST = 4000
"""Characters that are looked at: of a statement, or of the end of a text without one. math-verify's
patterns take cubic time on some texts."""
LONGEST_SHOWN = 500
LONGEST_ALONE = 500
"""Characters of a text that may be nothing but an expression."""
MOST_WORDS_ALONE = 3
MOST_BOXES = 16
MOST_STATEMENTS = 8


class Stated(NamedTuple):
    inside: str | None
    """The expression that is stated."""
    raw: str
    """The statement as it was written."""
    tail: str
    """The text to look for one in, where there is none."""
    note: str
    """Why there is none."""
    unit: str = ""


class Gold(NamedTuple):
    text: str
    """What math-verify is to read."""
    raw: str
    """The expression as it was written."""
    unit: str = ""
    is_text: bool = False
    """It is words and numbers, as 7 hours 30 minutes: only what is written alike equals it."""


# --- What the text states ------------------------------------------------------------------------

_JOINED = re.compile(
    r"[\s$]*(?:,|;|\\quad|(?:,\s*)?(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*", re.IGNORECASE
)
_PERCENT = re.compile(r"[\s$]{0,4}\\?%")
_UNBRACED = re.compile(r"\s{0,4}([^\s{}$.,]{1,50})")
_IS_MATHEMATICAL = re.compile(
    rf"[\d\\$^=<>|∞π√∅±]|\b(?:sqrt|{FUNCTIONS})\b|\A(?![\s\S]*[A-Za-z]{{3}})"
)
_NO_WORDS = re.compile(r"\\(?:text[a-z]{0,8}|mathrm|operatorname|mbox|begin|end)\s{0,4}\{[^{}]*\}")
_DENIED = re.compile(
    r"\b(?:not|never|cannot|wrong|incorrect|unable|sorry|unsure|either|no idea)\b|n['’]t\b"
    r"|[?？]\s*\Z",
    re.IGNORECASE,
)
_SENTENCES = re.compile(r"[^.!?。\n]+(?:\.(?=\S)[^.!?。\n]+)*[!?]?")
_SAYS_NUMBER = re.compile(r"[\d$]")


def stated(answer: str, *, last: bool = False) -> Stated:
    """The last statement of something mathematical. In a text without one: the text, where it is
    nothing but an expression, or, with `last`, its end to look for one in."""
    answer = answer.replace("\\fbox{", "\\boxed{").replace("\boxed", "\\boxed")
    text, words, refused = answer, None, None
    for _ in range(MOST_STATEMENTS):
        statement = next(statements(text), None)
        if statement is None:
            break
        if statement.kind == "box":
            return _boxes(text, text.rfind("\\boxed", 0, statement.end))
        value = statement.value
        if value is None or len(value) > LONGEST:
            return _nothing(f"the answer breaks off, or has over {LONGEST} characters")
        if statement.kind != "words" or _IS_MATHEMATICAL.search(value):
            claim = claimed(value)
            if claim.expression is not None or claim.is_denied or statement.kind != "words":
                return _of_claim(claim, value)
            refused = refused or _of_claim(claim, value)
        else:
            words = words or value
        text = text[: statement.start]  # "this answer is under 50" does not take a box back
    if refused is not None:
        return refused
    if words is not None:
        return Stated(f"\\text{{{words}}}", words, "", "")
    return _unstated(answer, last)


def _of_claim(claim: Claim, value: str) -> Stated:
    return Stated(claim.expression, value, "", claim.problem, claim.unit)


def _nothing(note: str) -> Stated:
    return Stated(None, "", "", note)


_WRAPPED = (
    *(("**", "**"), ("$$", "$$"), ("$", "$"), ("`", "`")),
    *(("\\(", "\\)"), ("\\[", "\\]"), ("**", "**")),
)
_IN_PARTS = re.compile(r"[$`]|\\[\[(]|(?<![\w)])\*\*|\A(?:[*#>-]|\d{1,2}[.)]) |[?？]\Z")


def _unstated(answer: str, last: bool) -> Stated:
    alone = answer.strip()
    if len(alone) <= LONGEST_ALONE:
        bare = alone.replace("\\$", "")
        for opening, closing in _WRAPPED:
            bare = bare.removesuffix(".").rstrip()
            if bare.startswith(opening) and bare.endswith(closing) and len(bare) > 2 * len(opening):
                bare = bare[len(opening) : -len(closing)].strip()
        if _is_expression(bare):
            return _of_claim(claimed(bare), alone)
        if len(bare.split(" ")) <= MOST_WORDS_ALONE and bare.replace(" ", "").isalpha():
            return Stated(f"\\text{{{bare}}}", alone, "", "")
    if not last:
        return _nothing("no answer is stated (last=True looks for the last expression)")
    tail = answer[-LONGEST:].strip()
    sentences = [each for each in _SENTENCES.findall(tail) if _SAYS_NUMBER.search(each)]
    if sentences and _DENIED.search(sentences[-1]):
        return _nothing("the last sentence with an expression denies it, or asks")
    return Stated(None, "", tail, "")


def _is_expression(text: str) -> bool:
    if not text or _IN_PARTS.search(text) or ("\n" in text and "\\begin" not in text):
        return False
    return not has_words(_NO_WORDS.sub(" ", text))


def _boxes(answer: str, start: int) -> Stated:
    """The box that starts here, with those that are joined to it."""
    last = _box(answer, start)
    if last is None:
        return _nothing(f"the last \\boxed is not closed, or has over {LONGEST} characters")
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
    if len(contents) == 1:
        return _of_claim(claimed(contents[0]), contents[0])
    inside = ", ".join(contents)
    return Stated(inside, inside, "", "")


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

_MOST_WORDS = 2


@lru_cache(maxsize=4096)
def check_gold(gold: str) -> Gold:
    """What of it is to be read. A bare (1,2) would be the number 1.2 to math-verify."""
    statement = last_statement(gold)
    if statement is not None and statement.kind != "words":
        inside, raw, _, problem, unit = stated(gold)
        if not raw:
            raise InvalidInput(
                f"the math target {gold[:LONGEST_SHOWN]!r} cannot be read: {problem}"
            )
        return _gold(Claim(inside, unit=unit), raw)
    if count_words(_NO_WORDS.sub(" ", gold)) > _MOST_WORDS and "$" not in gold:
        # To math-verify "The answer is 5" is a product of fifteen variables, which nothing equals.
        raise InvalidInput(
            f"the math target {gold[:LONGEST_SHOWN]!r} reads as a sentence; give the expression "
            "alone, and words as \\text{…}"
        )
    return _gold(claimed(gold), gold)


def _gold(claim: Claim, raw: str) -> Gold:
    if claim.expression is None:
        return Gold(raw, raw, is_text=True)
    return Gold(boxed(plain(claim.expression)), claim.expression, claim.unit)


_SCIENTIFIC = re.compile(r"(?<![\w.\\,])(\d{1,30}(?:\.\d{1,30})?)[eE]([+-]?\d{1,2})(?![\w.^]\w)")
_MIXED = re.compile(r"(?<![\d.,/^_{}])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\d/.,])")
_MINUS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\ufe63": "-"})


_ROOT = re.compile(r"(?:√|(?<![\\A-Za-z])sqrt)\s?(?:\(([^()]{1,200})\)|(?<=√)(\d{1,30}|[a-z]))")
_BARE = re.compile(rf"(?<![\\A-Za-z])({FUNCTIONS})(?=[\s(]\s?[\w(\\])")


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
