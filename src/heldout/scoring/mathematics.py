r"""Is an answer mathematically equal to the target? math-verify decides, in a killable process.

    await grade_math(r"… so \boxed{\frac{1}{2}}", "0.5")              # asyncio or trio; value 1.0
    grade_math_sync("The answer is 3/6.", "0.5")                      # in a thread

The last statement counts, be it a box or `Answer: …` (boxes that are joined by a comma or "and" are
one answer); in a text without any, math-verify looks for a final answer near the end. The target
is compared first: math-verify is not symmetric (`x \ge 3` accepts `[3,\infty)`, not the other way
round). It drops units, and reads `50\%` as 50 or as 0.5. What cannot be decided, as it takes too
long or crashes, raises WorkerError; a target that is not understood raises InvalidInput. Neither is
ever a 0. How expressions are read is in `expressions.py`.
"""

from __future__ import annotations

import threading
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from heldout.errors import InvalidInput
from heldout.scoring.answers import answer_text
from heldout.scoring.expressions import LONGEST, LONGEST_SHOWN, Stated, check_gold, stated
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.workers import Pool

VERSION = 1
"""Goes up with every change of what is extracted or held equal."""
PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy")
"""They decide as well: scores of other versions of them may differ."""

_DECIDE = "heldout.scoring.expressions:decide"
_PREPARE = "heldout.scoring.expressions:prepare"
_pool: Pool | None = None
_creating = threading.Lock()


def math_identity() -> str:
    """Our version and those of the packages that decide."""
    _require()
    return ", ".join([str(VERSION), *(f"{name} {version(name)}" for name in PACKAGES)])


@grader(version=math_identity)
async def grade_math(
    answer: str | None,
    target: str | int | float,
    *,
    seconds: float = 5.0,
    decimals: int = 6,
    strict: bool = True,
    pool: Pool | None = None,
) -> Grade:
    """1 where the answer equals the target, an expression in LaTeX or a number.

    `seconds` bound the work itself, not the time in a queue. Numbers agree to `decimals` places.
    Where not `strict`, names of variables do not matter, and a tuple may equal a set. Does not
    block the event loop; the work is done by `pool`, or by one that all calls share.
    """
    gold, said = _checked(target), _said(answer)
    if said is None:
        return NO_ANSWER
    arguments = (gold, *said, decimals, strict)
    return _grade(await (pool or math_pool()).run(_DECIDE, *arguments, seconds=seconds))


@grader(version=math_identity)
def grade_math_sync(
    answer: str | None,
    target: str | int | float,
    *,
    seconds: float = 5.0,
    decimals: int = 6,
    strict: bool = True,
    pool: Pool | None = None,
) -> Grade:
    """`grade_math` for a thread, which it blocks."""
    gold, said = _checked(target), _said(answer)
    if said is None:
        return NO_ANSWER
    arguments = (gold, *said, decimals, strict)
    return _grade((pool or math_pool()).run_sync(_DECIDE, *arguments, seconds=seconds))


def math_pool() -> Pool:
    """The workers that all calls share: at most one a core, started as they are needed. To have
    them import sympy before the first answer comes: `math_pool().start()`."""
    global _pool
    with _creating:
        if _pool is None:
            _require()
            _pool = Pool(prepare=_PREPARE)
        return _pool


def _require() -> None:
    if find_spec("math_verify") is None:
        raise InvalidInput("math equivalence needs math-verify: pip install 'heldout[math]'")


def _said(answer: str | None) -> Stated | None:
    text = answer_text(answer)
    if text is None:
        return None
    inside, tail, note = stated(text)
    return Stated(None if inside is None else _sendable(inside), _sendable(tail), note)


def _checked(gold: str | int | float) -> str:
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise InvalidInput(f"a math target is an expression or a number, not {gold!r}")
    text = gold if isinstance(gold, str) else repr(gold)
    if not text.strip() or len(text) > LONGEST:
        raise InvalidInput(
            f"the math target is empty or over {LONGEST} characters: {text[:80]!r}; it has to be "
            "an expression"
        )
    return check_gold(_sendable(text))


def _sendable(text: str) -> str:
    """Half a surrogate pair cannot be sent, and is no mathematics."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _grade(said: dict[str, Any]) -> Grade:
    if said["gold_problem"]:
        raise InvalidInput(said["gold_problem"])
    extracted = said["extracted"]
    return Grade(said["value"], extracted and extracted[:LONGEST_SHOWN], said["note"])
