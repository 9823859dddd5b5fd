r"""Mathematical equality of an answer and a target, decided by math-verify in a killable process.

    await grade_math(r"… so \boxed{\frac{1}{2}}", "0.5")              # asyncio or trio; value 1.0
    grade_math_sync("The answer is 3/6.", "0.5")                      # in a thread

The first half of this file runs in the process of the caller: it finds what the answer states and
hands it to a worker. The second half runs in the worker, since sympy may take forever: it takes the
expression out of each statement, and compares those of the strongest kind, if they agree.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, NamedTuple
from unicodedata import normalize

import anyio.lowlevel

from heldout._core.extras import missing_extra
from heldout.errors import InvalidInput, TaskTimeout, WorkerDied, WorkerError
from heldout.scoring.answers import (
    Statement,
    Strength,
    clean,
    kept,
    standing,
    statements,
    visible,
    visible_answer,
)
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.number import VULGAR
from heldout.scoring.process_pool import Pool

VERSION = 7  # goes up with every change of what is extracted or held equal
PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy")  # that decide as well
# Characters of a target, of a statement, or of the end of a text that is searched with `last`:
# math-verify's patterns take cubic time on some texts.
MAX_LENGTH = 4000
MAX_ALONE = 500  # characters of a text that may be nothing but an expression
MAX_SHOWN = 500
MAX_STATEMENTS = 8

_DECIDE = "heldout.scoring.math:decide"
_PREPARE = "heldout.scoring.math:prepare"
_pool: Pool | None = None
_creating = threading.Lock()


def math_identity() -> str:
    """Return the versions of this grader and of the packages that decide."""
    _require()
    return ", ".join([str(VERSION), *(f"{name} {version(name)}" for name in PACKAGES)])


def _check(*, seconds: float = 5.0, decimals: int = 6, **_: object) -> None:
    _require()
    if not 0 < seconds < math.inf:
        raise InvalidInput(f"seconds must be a positive number, not {seconds!r}")
    if not isinstance(decimals, int) or not 0 <= decimals <= 100:
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
    pool: Pool | None = None,
) -> Grade:
    r"""Grade 1 if the answer is mathematically equal to the target, a number or LaTeX expression.

    The stated answer counts: a box, a tag, a key, `####`, else `Answer: …`, else a sentence; boxes
    joined by a comma, "and" or "or" are one answer. Statements of one kind that differ are
    ambiguous and graded 0, unless a later one corrects the earlier ones. If the reply states
    nothing, it counts if it is just an expression; with `last`, the last expression of any text
    counts. An answer written exactly like the target is equal. Otherwise math-verify compares the
    expression that a statement begins with, or its last one; statements without a readable
    expression are ignored. `x = 5` equals 5, equations are equal up to a factor, 50% equals 0.5 and
    50, and units and degrees are ignored. An unsolved equation is no value, and neither is an
    unevaluated sum, product, integral, derivative, limit, rounding or maximum (`\sum_{k=1}^{9}
    k`), unless the target has one.

    Args:
        answer: The reply; its reasoning is not read.
        target: The correct answer.
        last: Read the last expression if nothing is stated, for models that do not box answers.
        seconds: Time limit of the comparison. An answer that takes longer is graded 0, with a note.
        decimals: Decimal places to which numbers are compared.
        strict: Whether variable names matter, and a tuple differs from a set.
        pool: Worker processes; by default those that all calls share.

    Returns:
        The grade, with the expression that was read.

    Raises:
        InvalidInput: The target is empty, a sentence, or its braces do not close.
        WorkerError: The target cannot be compared in time, or no worker process can be started.
    """
    workers, options = pool or math_pool(), _Options(decimals, strict)

    async def decide_in_worker(*arguments: Any) -> Any:
        # Many may be graded at once: let the loop have a turn between reading and handing over.
        await anyio.lowlevel.checkpoint()
        return await workers.run(_DECIDE, *arguments, options, seconds=seconds)

    return await _grade(answer, target, last, seconds, decide_in_worker)


@grader(version=math_identity, check=_check)
def grade_math_sync(
    answer: str | None,
    target: str | int | float,
    *,
    last: bool = False,
    seconds: float = 5.0,
    decimals: int = 6,
    strict: bool = True,
    pool: Pool | None = None,
) -> Grade:
    """Grade as `grade_math` does, and block this thread meanwhile."""
    workers, options = pool or math_pool(), _Options(decimals, strict)

    async def decide_in_worker(*arguments: Any) -> Any:
        return workers.run_sync(_DECIDE, *arguments, options, seconds=seconds)

    try:
        _grade(answer, target, last, seconds, decide_in_worker).send(None)
    except StopIteration as done:
        grade: Grade = done.value
        return grade
    raise AssertionError("nothing in it waits for an event loop")


class _Options(NamedTuple):
    decimals: int = 6
    strict: bool = True


async def _grade(
    answer: str | None,
    target: str | int | float,
    last: bool,
    seconds: float,
    decide_in_worker: Callable[[str, list[list[str]]], Awaitable[list[Any]]],
) -> Grade:
    gold, text = _target_text(target), visible_answer(answer)
    if text is None:
        return NO_ANSWER
    stated = stated_expressions(_encodable(text), last=last)
    if not stated:
        if _is_written_alike(text, gold):
            return Grade(1.0, text[:MAX_SHOWN])
        note = "no answer is stated (last=True looks for the last expression)"
        return Grade(0.0, None, "no answer is stated" if last else note)
    extracted = stated[0][0][:MAX_SHOWN]
    if all(_is_written_alike(value, gold) for value in stated[0]):
        return Grade(1.0, extracted)
    try:
        try:
            return Grade(*await decide_in_worker(gold, stated))
        except WorkerDied:  # perhaps of something else: memory that others took
            return Grade(*await decide_in_worker(gold, stated))
    except WorkerError as problem:
        # The answer is to blame where a harmless one can be compared with the target.
        await decide_in_worker(gold, [["1"]])
        reason = f" within {seconds:g} s" if isinstance(problem, TaskTimeout) else f": {problem}"
        return Grade(0.0, extracted, f"could not be decided{reason}"[:MAX_SHOWN])


def math_pool() -> Pool:
    """Return the workers that all calls share, one per core, started on demand."""
    global _pool
    with _creating:
        if _pool is None:
            _require()
            _pool = Pool(prepare=_PREPARE)
        return _pool


def _require() -> None:
    if find_spec("math_verify") is None:
        raise missing_extra("math equivalence needs math-verify", "math")


def _encodable(text: str) -> str:
    """Half a surrogate pair cannot be sent to a worker, and is no mathematics."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_TEXT = re.compile(r"\\(?:text[a-z]{0,8}|mathrm|mbox|operatorname)\s{0,4}\{([^{}]*)\}")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")


def _target_text(target: Any) -> str:
    if isinstance(target, bool) or not isinstance(target, str | int | float):
        raise InvalidInput(f"a math target is an expression or a number, not {target!r}")
    return _target_expression(target if isinstance(target, str) else repr(target))


@lru_cache(maxsize=4096)
def _target_expression(target: str) -> str:
    text = visible(_encodable(target)).strip()
    is_sentence = False
    if any(statement.strength == Strength.MARKED for statement in statements(text)):
        text = next(iter(stated_expressions(text, last=False)), [""])[0]
    else:
        is_sentence = "$" not in text and len(_WORDS.findall(_TEXT.sub("", text))) > 2
    is_closed = text.replace("\\{", "").count("{") == text.replace("\\}", "").count("}")
    if not text or is_sentence or not is_closed or len(text) > MAX_LENGTH:
        raise InvalidInput(
            f"the math target {target.strip()[:MAX_SHOWN]!r} is not one expression: it is empty, a "
            "sentence (write words as \\text{…}), too long, or its braces do not close"
        )
    return text


# --- What an answer states ------------------------------------------------------------------------

_BEGINS = re.compile(r"[^A-Za-z]|[A-Za-z](?![A-Za-z])|[A-Z]{2,4}\s?=")
"""An expression. A sentence that begins otherwise (`the answer is divisible by 7`) is a remark
where something else is stated."""
_IN_PARTS = re.compile(
    r"\A(?:[*#>-]|\d{1,2}[.)]) |[?？]\Z|\n(?![\s\S]{0,999}\\end)|\$[^$]+\$[^$]+\$"
)


def stated_expressions(text: str, *, last: bool) -> list[list[str]]:
    """Find what may be the answer in a visible text: groups of statements, the strongest first.

    In a group, the last statement comes first. There is no group where nothing is stated, unless
    `last` asks for the end of the text, or where the last statement breaks off.
    """
    text = kept(text)
    stated = statements(text)

    def read(statement: Statement) -> int | None:
        """Return the rank of a statement, in which a remark is the last."""
        value = statement.value or ""
        is_remark = statement.strength == Strength.SENTENCE and not _BEGINS.match(value)
        return None if len(value) > MAX_LENGTH else 0 if is_remark else statement.strength

    groups: dict[int, list[str]] = {}
    for statement, rank in (standing(text, stated, read) or [])[:MAX_STATEMENTS]:
        groups.setdefault(rank, []).append(statement.value or "")
    if stated:
        return [groups[rank] for rank in sorted(groups, reverse=True)]
    if len(text) <= MAX_ALONE and not _IN_PARTS.search(text):
        bare = clean(text.replace("\\$", ""))
        is_word = bare.isascii() and bare.replace(" ", "").isalpha() and bare.count(" ") < 3
        expression = _SCALED.sub("", _TEXT.sub("", bare))
        if label := _LABEL.match(expression):
            expression = expression[label.end() :]
        if bare and (is_word or not _has_words(expression)):
            return [[bare]]
    return [[_TAIL + text[-MAX_LENGTH:].strip()]] if last else []


_TAIL = "\0"
"""Begins a text in which the worker is to look for the last expression."""


def _is_written_alike(text: str, target: str) -> bool:
    return bool(text.strip()) and _spelling(text) == _spelling(target)


_MARKS = re.compile(r"\\(?:left|right|big|Big|displaystyle)(?![a-z])|\\[,;!: ]|[\s$]|\.\Z")


def _spelling(text: str) -> str:
    text = _MARKS.sub("", _TEXT.sub(r"\1", text)).replace("\\dfrac", "\\frac")
    return text.casefold() if _WORDS.search(text) else text  # x is not X


_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"
_MATH_WORDS = re.compile(
    rf"(?<![A-Za-z])(?:{_FUNCTIONS}|sqrt|gcd|lcm|min|max|mod|det|lim|and|abcd?|xyz)(?![A-Za-z])"
)
"""Letters that are no words: names of functions, and products."""


# --- In the worker: from a statement to an expression ---------------------------------------------


def prepare() -> None:
    """Import what takes long, and go the common ways once."""
    for answer, target in (("1/2", "0.5"), ("x+1", "y"), (r"\{1,2\}", "1,2"), ("2x=4", "x=2")):
        decide(target, [[answer]], _Options())


def decide(
    target: str, stated: list[list[str]], options: _Options | list[Any]
) -> tuple[float, str | None, str]:
    """Compare the strongest statements that can be read with the target: the task of a worker.

    Returns:
        The value, the expression that was read, and a note, as a Grade has them.
    """
    options = _Options(*options)
    gold = _expression(target) or target
    for group in stated:
        texts = [_last_expression(t[1:]) or "" if t.startswith(_TAIL) else t for t in group]
        readings = [reading for text in texts if (reading := _reading(text, target))]
        for other in readings[1:]:
            if not _is_written_alike(other, readings[0]) and not _agree(other, readings[0]):
                return 0.0, None, f"ambiguous: {other[:200]}, then {readings[0][:200]}"
        if not readings:
            continue
        extracted = readings[0][:MAX_SHOWN]
        if _is_written_alike(readings[0], target):
            return 1.0, extracted, ""
        try:
            return float(_compare(readings[0], gold, options) or 0), extracted, ""
        except _Different as reason:
            return 0.0, extracted, str(reason)
    if stated[0][0].startswith(_TAIL):
        return 0.0, None, "no expression"
    return 0.0, stated[0][0][:MAX_SHOWN], "could not be read as mathematics"


def _reading(text: str, target: str) -> str | None:
    """Return what is written like the target, or else the expression in it, if there is one."""
    if _is_written_alike(text, target):
        return text
    expression = _expression(text)
    return expression if expression and _read(expression) is not None else None


def _agree(one: str, other: str) -> bool:
    try:
        return bool(_compare(one, other, _Options()))
    except _Different:
        return False


_SHORT_WORDS = "of|to|in|is|as|at|on|by|if|we|it|so|cm|mm|km|kg|ft|ml|hr|no|do|be"
_OTHER_SCRIPT = r"[\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0400-\u1fff\u2e80-\ud7ff\uf900-\ufdff]"
_WORD = re.compile(
    rf"(?<![\\A-Za-z{{])(?:[A-Za-z]{{3,}}|(?:{_SHORT_WORDS})(?![A-Za-z]))|{_OTHER_SCRIPT}"
)
_LEADING_WORDS = re.compile(
    rf"(?:(?:an?|[A-Za-z]{{3,}}|{_SHORT_WORDS}|[A-Za-z]+['’]t)[\s,:*]+(?![=+*/^<>]))+"
)
_DENIED = re.compile(r"(?:\b(?:not|if|wrong|incorrect)|n['’]t)\W*\Z", re.IGNORECASE)
_AND = re.compile(r"(?:[\s,;]*(?:(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])|\\q?quad))+[\s,;]*")
_SCALES = {
    **{"thousand": r"\cdot 10^{3}", "million": r"\cdot 10^{6}", "billion": r"\cdot 10^{9}"},
    **{"trillion": r"\cdot 10^{12}", "dozen": r"\cdot 12", "percent": r"\%", "per cent": r"\%"},
}
_SCALED = re.compile(rf"(?<=[\d}}$)]) ?({'|'.join(_SCALES)})(?![A-Za-z])", re.IGNORECASE)
_LABEL = re.compile(
    r"(?!.*\b(?:if|not)\b)(?:m?\\[a-z]+ ?)?(?:[A-Z]{2,4}|[A-Za-z ]{4,60})(?:\([a-z]\))? ?= ?"
)
"""The area = 5, AB = 5, \\angle ABC = 5."""


def _expression(statement: str) -> str | None:
    """Take the expression out of a statement: that which it begins with, or else its last one."""
    text = _plain(statement)
    if "\\begin" in text:
        return text.replace("$", "").strip()
    text = _TEXT.sub(lambda words: words[1] if len(words[1]) == 1 else f" {words[1]} ", text)
    text = " ".join(text.split())
    text = _SCALED.sub(lambda word: _SCALES[word[1].lower()], text)
    bare = text.replace("$", "").replace("\\(", "").replace("\\)", "")
    parts = [part.strip(" ,;") for part in _AND.split(bare)]
    # p = 5, q = 2 or p = 7, q = 2: solutions of several values each.
    are_several = all("=" in part and "," in part for part in parts)
    bare = ("; " if are_several else ", ").join(filter(None, parts))
    if (label := _LABEL.match(bare)) and not _has_words(bare[label.end() :]):
        bare = bare[label.end() :]
    if not _has_words(bare):
        return bare or None
    leading = _LEADING_WORDS.match(bare)
    if leading and _DENIED.search(leading[0]):
        return None
    rest = bare[leading.end() :] if leading else bare
    word = _WORD.search(_blank_functions(rest))
    beginning = rest[: word.start() if word else None].strip(" ,;:(*")
    if re.search(r"[\d\\]" if leading else r"[\d\\]|\A[A-Za-z]\b", beginning):
        return beginning
    return _last_expression(text)


def _has_words(text: str) -> bool:
    return _WORD.search(_blank_functions(text)) is not None


def _blank_functions(text: str) -> str:
    return _MATH_WORDS.sub(lambda word: "0" * len(word[0]), text)


_CHARACTERS = str.maketrans(
    {
        **{"−": "-", "－": "-", "﹣": "-", "°": "", "∘": "", "×": "*", "·": "*"},
        **{
            vulgar: "\\frac{{{}}}{{{}}}".format(*normalize("NFKC", vulgar).split("\u2044"))
            for vulgar in VULGAR
        },
    }
)
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)(?:,?\\[,;!: ] ?|\{,\}|~)(?=\d{3})", ""),  # 1\,234
        (r"\\[!,;:]|\\(?:left|right|displaystyle)(?![a-z])|\\\$", ""),
        (r"(?<!\\)\\ |~", " "),
        # A unit of one letter, which would be read as a variable.
        (r"(?<=[\d)}])\s?\\(?:text|mathrm)\{\s?(?![ei])[A-Za-z]\s?\}(?:\^\{?[23]\}?)?\Z", ""),
        (
            r"(?<![\w.\\,])(\d{1,30}(?:\.\d{1,30})?)[eE]([+-]?\d{1,2})(?![\w.^]\w)",
            r"\1\\cdot 10^{\2}",
        ),
        (r"√\s?(?:\(([^()]{1,200})\)|(\d{1,30}|[a-z]))", r"\\sqrt{\1\2}"),
        (r"(?<=[\w)])\*\*(\d{1,30}|[A-Za-z])", r"^{\1}"),
        (r"(?<![\d.,/^_{}])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\d/.,])", r"\1\\frac{\2}{\3}"),
        (r"(\d\.\d{0,30})\\overline ?\{(\d{1,30})\}", r"\1" + r"\2" * 12),
        (r"(\\frac(?: ?\d ?\d|\{[^{}]{1,99}\}\{[^{}]{1,99}\}))\s?\\?%", r"\1\\cdot\\frac{1}{100}"),
    )
)
"""What math-verify misreads, and how it is written instead."""


def _plain(text: str) -> str:
    text = text.translate(_CHARACTERS).strip()
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text


def _last_expression(tail: str) -> str | None:
    """Find the expression that a text ends with, as math-verify sees it."""
    if tail.endswith(("?", "？")):
        return None
    parsed = _math_verify().parse(tail, parsing_timeout=None, raise_on_error=True)
    texts = (value for value in parsed if isinstance(value, str))
    expression = next(texts, "").strip("*_` \n")
    if not expression or _DENIED.search(tail[: tail.rfind(expression)].rstrip("$*( \\[")):
        return None
    return expression


# --- In the worker: comparison --------------------------------------------------------------------

_TASKS = ("Sum", "Product", "Integral", "Derivative", "Limit", "floor", "ceiling", "Max", "Min")


class _Different(Exception):
    """The answer is not equal, for a reason that a person should see."""


def _compare(answer: str, gold: str, options: _Options) -> bool | None:
    """Return whether two expressions are equal; None where the answer cannot be read."""
    sympy = import_module("sympy")
    value, expected = _read(answer), _read(gold)
    if value is None:
        return None
    if expected is None:
        raise _Different("the target cannot be read: only what is written alike equals it")
    equations = value.atoms(sympy.Eq)
    if equations and not expected.atoms(sympy.Eq):
        if not all(map(_is_solved, equations)):
            raise _Different("an equation, and not a value")
        if isinstance(value, sympy.Eq) and value.rhs.is_Symbol:  # 5 = x
            value = value.reversed
    tasks = [getattr(sympy, name) for name in _TASKS]
    for task in () if equations else value.atoms(*tasks):
        if not expected.has(type(task)):
            raise _Different(f"not carried out: {type(task).__name__.lower()}")
    is_ordered = isinstance(value, sympy.Tuple | sympy.Interval)
    if options.strict and gold.startswith("\\{") and is_ordered:
        raise _Different("in order, where the target is a set")
    return _is_equal(expected, value, options)


def _is_solved(equation: Any) -> bool:
    """Tell x = 5, (x, y) = (1, 2), f(x) = 5 and 2 + 3 = 5 from 2x = 10."""
    sympy = import_module("sympy")
    for side in equation.args:
        names = side.args if isinstance(side, sympy.Tuple) else (side,)
        if side.atoms(sympy.core.function.AppliedUndef) or all(n.is_Symbol for n in names):
            return True
    left, right = equation.args
    return not equation.free_symbols and bool(left.equals(right))


@lru_cache(maxsize=256)
def _read(text: str) -> Any:
    """Parse an expression; None where it is none."""
    parsed = _math_verify().parse(
        f"\\boxed{{{text}}}",
        extraction_mode="first_match",
        parsing_timeout=None,
        raise_on_error=True,
    )
    sympy = import_module("sympy")
    for expression in parsed:
        if not isinstance(expression, str):
            has_value = not expression.has(sympy.zoo, sympy.nan)
            return expression if has_value else None  # 12:00 is no division by zero
    return None


def _is_equal(gold: Any, answer: Any, options: _Options) -> bool:
    """Ask math-verify; the target comes first: an equation is no number, but may have one."""
    sympy = import_module("sympy")
    are_equations = isinstance(gold, sympy.Eq) and isinstance(answer, sympy.Eq)
    if are_equations and all(isinstance(x, sympy.Expr) for x in (*gold.args, *answer.args)):
        factor = sympy.simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
        if factor.is_number and factor.is_nonzero:
            return True
    return bool(
        _math_verify().verify(
            gold,
            answer,
            float_rounding=options.decimals,
            strict=options.strict,
            # x >= 3 for [3, oo), too; but 1 < x < 2 is not the set of 1 and 2.
            allow_set_relation_comp=type(gold).__name__ != "FiniteSet",
            timeout_seconds=None,
            raise_on_error=True,
        )
    )


def _math_verify() -> Any:
    return import_module("math_verify")  # which has no types
