r"""Is an answer mathematically equal to the target? math-verify decides, in a killable process.

    await grade_math(r"… so \boxed{\frac{1}{2}}", "0.5")              # asyncio or trio; value 1.0
    grade_math_sync("The answer is 3/6.", "0.5")                      # in a thread

The last statement counts, be it a box or `Answer: …` (boxes that are joined by a comma or "and" are
one answer). Without a statement, a text that is nothing but an expression is read; for models that
do neither, `last=True` takes the last expression. What is denied, doubted, asked, or only bounds
the answer is a 0 with a note, and so is a task that is not carried out (`\sum_{k=1}^{100} k`).

An answer that takes too long, too much memory, or crashes its process is a 0 with a note, too,
where the target is readable beside a harmless answer. Where it is not, or no process works,
WorkerError is raised; a target that is not understood raises InvalidInput. Which expression an
answer states is decided in `expressions.py` and `claims.py`, here; whether it is equal, in
`comparing.py`, there.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Generator
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import anyio.lowlevel

from heldout.errors import InvalidInput, TaskTimeout, WorkerDied, WorkerError
from heldout.scoring.answers import answer_text
from heldout.scoring.comparing import Options
from heldout.scoring.expressions import LONGEST, LONGEST_SHOWN, Gold, Stated, check_gold, stated
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.process_pool import Pool

VERSION = 1
"""Goes up with every change of what is extracted or held equal."""
PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy")
"""They decide as well: scores of other versions of them may differ."""

_DECIDE = "heldout.scoring.comparing:decide"
_PREPARE = "heldout.scoring.comparing:prepare"
_HARMLESS = Stated("1", "1", "", "")
"""An answer that is never to blame."""
_pool: Pool | None = None
_creating = threading.Lock()


def math_identity() -> str:
    """Our version and those of the packages that decide."""
    _require()
    return ", ".join([str(VERSION), *(f"{name} {version(name)}" for name in PACKAGES)])


def _check(*, seconds: float = 5.0, decimals: int = 6, **_: object) -> None:
    _require()
    if isinstance(seconds, bool) or not 0 < seconds < math.inf:
        raise InvalidInput(f"seconds must be a positive number, not {seconds!r}")
    if isinstance(decimals, bool) or not isinstance(decimals, int) or not 0 <= decimals <= 100:
        raise InvalidInput(f"decimals must be a whole number of at most 100, not {decimals!r}")


@grader(version=math_identity, check=_check)
async def grade_math(
    answer: str | None,
    target: str | int | float,
    *,
    last: bool = False,
    seconds: float = 5.0,
    decimals: int = 6,
    strict: bool = True,
    unevaluated: bool = False,
    pool: Pool | None = None,
) -> Grade:
    """1 where the answer equals the target, an expression in LaTeX or a number.

    The last box, `Answer: …` or tag is read, or a text that is nothing but an expression. With
    `last`, in a text without any of these, the last expression: for models that do not box, as
    many do not on GSM8K or MATH. `seconds` bound the work itself, not the time in a queue; an
    answer that takes longer is a 0 with a note. Numbers agree to `decimals` places. Where not
    `strict`, names of variables do not matter, and a tuple may equal a set. A sum, an integral, a
    greatest common divisor and the like are tasks and no answers, unless the target has them or
    `unevaluated` is set. Does not block the event loop; the work is done by `pool`, or by one that
    all calls share.
    """
    shared, options = pool or math_pool(), Options(decimals, strict, unevaluated)
    course = _course(answer, target, last=last, seconds=seconds, options=options)
    try:
        task = next(course)
        # Many may be graded at once: let the loop have a turn between reading and handing over.
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                result = await shared.run(_DECIDE, *task, seconds=seconds)
            except WorkerError as problem:
                task = course.throw(problem)
            else:
                task = course.send(result)
    except StopIteration as done:
        return _given(done)


@grader(version=math_identity, check=_check)
def grade_math_sync(
    answer: str | None,
    target: str | int | float,
    *,
    last: bool = False,
    seconds: float = 5.0,
    decimals: int = 6,
    strict: bool = True,
    unevaluated: bool = False,
    pool: Pool | None = None,
) -> Grade:
    """`grade_math` for a thread, which it blocks."""
    shared, options = pool or math_pool(), Options(decimals, strict, unevaluated)
    course = _course(answer, target, last=last, seconds=seconds, options=options)
    try:
        task = next(course)
        while True:
            try:
                result = shared.run_sync(_DECIDE, *task, seconds=seconds)
            except WorkerError as problem:
                task = course.throw(problem)
            else:
                task = course.send(result)
    except StopIteration as done:
        return _given(done)


_Task = tuple[Gold, Stated, Options]


def _course(
    answer: str | None, target: Any, *, last: bool, seconds: float, options: Options
) -> Generator[_Task, dict[str, Any], Grade]:
    """The tasks of one grade: what is yielded goes to a worker, what comes of it comes back."""
    gold, said = _checked(target), _said(answer, last)
    if said is None:
        return NO_ANSWER
    try:
        try:
            return _grade((yield gold, said, options))
        except WorkerDied:  # of something else, perhaps: memory that others took
            return _grade((yield gold, said, options))
    except WorkerError as problem:
        # The answer is to blame where the target is compared with a harmless one in time.
        _grade((yield gold, _HARMLESS, options))
        shown = (said.inside or "")[:LONGEST_SHOWN] or None
        if isinstance(problem, TaskTimeout):
            return Grade(0.0, shown, f"could not be decided within {seconds:g} s")
        return Grade(0.0, shown, f"could not be decided: {problem}"[:LONGEST_SHOWN])


def _given(done: StopIteration) -> Grade:
    grade: Grade = done.value
    return grade


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


def _said(answer: str | None, last: bool) -> Stated | None:
    text = answer_text(answer)
    return None if text is None else stated(_sendable(text), last=last)


def _checked(gold: str | int | float) -> Gold:
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
