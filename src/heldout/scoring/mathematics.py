r"""Is an answer mathematically equal to the gold one? math-verify decides, in a killable process.

    math_equal(r"… so \boxed{\frac{1}{2}}", "0.5").value             # 1.0
    await math_equal_async(answer, gold)                             # asyncio or trio

The last `\boxed{}` is the answer (several that are joined by a comma or "and" are one); without one
math-verify looks for a final answer in the end of the text. The gold is compared first: math-verify
is not symmetric (`x \ge 3` accepts `[3,\infty)`, not the other way round). It drops units, and
reads `50\%` as 50 or as 0.5. What cannot be decided, as it takes too long or crashes, raises
WorkerError; a gold that is not understood raises InvalidInput. Neither is ever a 0.

Traps: math-verify merges two far apart boxes into a set, so that "\boxed{4}. Wait: \boxed{5}" is
neither; it reads 1e3 as 1 (or e times 3), `1 1/2` and `−3` as something else; its timeouts are
signals, which threads cannot have, and which a long multiplication does not notice.
"""

from __future__ import annotations

import math
import re
import threading
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from heldout.errors import InvalidInput
from heldout.scoring.grades import Grade
from heldout.scoring.workers import Pool

VERSION = 1
"""Goes up with every change of what is extracted or held equal."""
LONGEST = 4000
"""Characters that are looked at: of a box, or of the end of a text without one. math-verify's
patterns take cubic time on some texts."""
LONGEST_SHOWN = 500
MOST_BOXES = 16

_pool: Pool | None = None
_creating = threading.Lock()


def math_equal(
    answer: str,
    gold: str | int | float,
    *,
    seconds: float = 5.0,
    decimals: int = 6,
    strict: bool = True,
    pool: Pool | None = None,
) -> Grade:
    """1 where the answer equals the gold expression. Blocks this thread; see `math_equal_async`.

    `seconds` bound the work itself, not the time in a queue. Numbers agree to `decimals` places.
    Where not `strict`, names of variables do not matter, and a tuple may equal a set.
    """
    arguments = _arguments(answer, gold, decimals, strict)
    return _grade((pool or math_pool()).run_sync(_DECIDE, *arguments, seconds=seconds))


async def math_equal_async(
    answer: str,
    gold: str | int | float,
    *,
    seconds: float = 5.0,
    decimals: int = 6,
    strict: bool = True,
    pool: Pool | None = None,
) -> Grade:
    """`math_equal` for event loops, which it does not block."""
    arguments = _arguments(answer, gold, decimals, strict)
    return _grade(await (pool or math_pool()).run(_DECIDE, *arguments, seconds=seconds))


def math_pool() -> Pool:
    """The workers that all calls share: at most one a core, started as they are needed. To have
    them import sympy before the first answer comes: `math_pool().start()`."""
    global _pool
    with _creating:
        if _pool is None:
            _require()
            _pool = Pool(prepare=f"{__name__}:_prepare")
        return _pool


def math_identity() -> dict[str, str]:
    """Versions of all that decides: scores of other versions may differ."""
    _require()
    packages = ("math-verify", "latex2sympy2_extended", "sympy")
    return {"math_equal": str(VERSION)} | {name: version(name) for name in packages}


def _require() -> None:
    if find_spec("math_verify") is None:
        raise InvalidInput("math equivalence needs math-verify: pip install math-verify")


# --- What the text states ------------------------------------------------------------------------

_JOINED = re.compile(
    r"[\s$]*(?:,|;|\\quad|(?:,\s*)?(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*", re.IGNORECASE
)
_PERCENT = re.compile(r"[\s$]{0,4}\\?%")
_UNBRACED = re.compile(r"\s{0,4}([^\s{}$.,]{1,50})")
_SCIENTIFIC = re.compile(r"(?<![\w.\\,])(\d{1,30}(?:\.\d{1,30})?)[eE]([+-]?\d{1,2})(?![\w.^]\w)")
_MIXED = re.compile(r"(?<![\d.,/^_{}])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\d/.,])")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}")
_NO_WORDS = re.compile(r"\\(?:text[a-z]{0,8}|mathrm|operatorname|mbox|begin|end)\s{0,4}\{[^{}]*\}")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_PROSE = 3
_BOLD = re.compile(r"(?<![\w)\]}])\*\*|\*\*(?![\w(\\-])")
"""Not the power in 2**3."""
_MINUS = str.maketrans({"\u2212": "-", "\uff0d": "-", "\ufe63": "-"})


def stated(answer: str) -> tuple[str | None, str, str]:
    """What is in the last box (None: there is none), the text to search instead, and a note."""
    answer = answer.replace("\\fbox{", "\\boxed{")
    start = answer.rfind("\\boxed")
    if start < 0:
        return None, answer[-LONGEST:], ""
    last = _box(answer, start)
    if last is None:
        return None, "", f"the last \\boxed is not closed, or has over {LONGEST} characters"
    contents, end = [last[0]], last[1]
    if percent := _PERCENT.match(answer, end):
        contents = [last[0] + "\\%"] if percent and "%" not in last[0] else contents
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
    return ", ".join(contents), "", ""


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


def _plain(text: str) -> str:
    """Without what math-verify misreads: other minus signs and 1e3."""
    return _SCIENTIFIC.sub(_decimal, text.translate(_MINUS))


def _decimal(match: re.Match[str]) -> str:
    return f"{Decimal(f'{match[1]}e{match[2]}'):f}"


def _boxed(expression: str) -> str:
    expression = _MIXED.sub(r"\1\\frac{\2}{\3}", expression.strip().rstrip(".").rstrip())
    return f"\\boxed{{{expression}}}"


def _wrapped(gold: str) -> str:
    """As math-verify reads it best. A bare (1,2) would be the number 1.2 to it."""
    inside, _, problem = stated(gold)
    if inside is not None:
        return _boxed(inside)
    if problem:
        raise InvalidInput(f"the gold answer {gold[:LONGEST_SHOWN]!r} cannot be read: {problem}")
    if gold.count("$") == 1:
        gold = gold.replace("$", "").rstrip("\\")  # money
    if "$" in gold or "\\(" in gold or "\\[" in gold:
        return gold
    if len(_WORDS.findall(_NO_WORDS.sub(" ", gold))) >= _PROSE:
        # To math-verify "The answer is 5" is a product of fifteen variables, which nothing equals.
        raise InvalidInput(
            f"the gold answer {gold[:LONGEST_SHOWN]!r} reads as a sentence; give the expression "
            "alone, and words as \\text{…}"
        )
    return _boxed(gold)


def _arguments(
    answer: str, gold: str | int | float, decimals: int, strict: bool
) -> tuple[str, str | None, str, str, int, bool]:
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise InvalidInput(f"a gold answer is an expression or a number, not {gold!r}")
    text = gold if isinstance(gold, str) else repr(gold)
    if not text.strip() or len(text) > LONGEST:
        raise InvalidInput(
            f"the gold answer is empty or over {LONGEST} characters: {text[:80]!r}; it has to be "
            "an expression"
        )
    inside, tail, note = stated(answer)
    sendable = None if inside is None else _sendable(inside)
    return _sendable(text), sendable, _sendable(tail), note, decimals, strict


def _sendable(text: str) -> str:
    """Half a surrogate pair cannot be sent, and is no mathematics."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _grade(said: dict[str, Any]) -> Grade:
    if said["gold_problem"]:
        raise InvalidInput(said["gold_problem"])
    return Grade(said["value"], said["extracted"], said["note"])


# --- In the worker: no timeouts of math-verify's own ---------------------------------------------

_DECIDE = f"{__name__}:_decide"


def _prepare() -> None:
    import logging

    logging.disable(logging.CRITICAL)  # it warns, in every process, that its timeouts are off
    # The first use of each part of sympy takes long: on nobody's time here.
    for gold, inside in (
        ("1/2", "x^2"),
        (r"\{1,2\}", "1, 3"),
        (r"\sqrt{2}/2", r"\frac{1}{\sqrt 3}"),
    ):
        _decide(gold, inside, "", "", 6, True)
    _decide("x^2-1", None, "The answer is 3/6.", "", 6, True)


def _math_verify() -> Any:
    return import_module("math_verify")  # which has no types


def _decide(
    gold: str, inside: str | None, tail: str, note: str, decimals: int, strict: bool
) -> dict[str, Any]:
    said: dict[str, Any] = {"gold_problem": "", "value": 0.0, "extracted": None, "note": ""}
    try:
        wanted, wanted_text = _gold(gold)
    except InvalidInput as problem:
        return said | {"gold_problem": str(problem)}
    if inside is None:
        found, text = _search(_BOLD.sub("", _plain(tail)))
    else:
        found, text = _read(_boxed(_plain(inside)), every=False)
    if text is None:
        return said | {"note": note or "no mathematical expression was found"}
    said["extracted"] = text[:LONGEST_SHOWN]
    if found is None:
        return said | {"note": "could not be read as mathematics"}
    # A comparison that raises has not said that they differ.
    equal = text == wanted_text or _math_verify().verify(
        wanted,
        found,
        float_rounding=decimals + _leading_zeros(wanted),
        strict=strict,
        timeout_seconds=None,
        raise_on_error=True,
    )
    return said | {"value": float(equal), "note": note}


def _gold(gold: str) -> tuple[Any, str | None]:
    wanted, text = _read(_wrapped(_plain(gold)), every=False)
    if wanted is None:
        raise InvalidInput(
            f"the gold answer {gold[:LONGEST_SHOWN]!r} cannot be read as mathematics; give the "
            "expression alone, as LaTeX or a number"
        )
    return wanted, text


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


def _search(tail: str) -> tuple[Any, str | None]:
    found, written = _read(tail, every=False)
    if found is not None:
        return found, written
    if written:
        # What it cut out may have markdown or a full stop on it.
        again, text = _read(_boxed(written.strip("*_` \n")), every=False)
        if again is not None:
            return again, text
        found, _ = _read(tail, every=True)
        return (None, written) if found is None else (found, str(found))
    line = tail.strip()
    if line and len(line) <= 200 and "\n" not in line and not _WORD.search(line):
        return _read(_boxed(line), every=False)
    return None, None
