r"""Mathematical equality of an answer and a target, decided by math-verify in a killable process.

    await grade_math(r"… so \boxed{\frac{1}{2}}", "0.5")              # asyncio or trio; value 1.0
    grade_math_sync("The answer is 3/6.", "0.5")                      # in a thread

The first half of this file runs in the process of the caller: it finds what the answer states and
hands it to a worker. The second half runs in the worker, since sympy may take forever: it takes the
expression out of each statement, the last one first, and compares the first that can be read.
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
from itertools import islice
from typing import Any, NamedTuple

import anyio.lowlevel

from heldout.errors import InvalidInput, TaskTimeout, WorkerDied, WorkerError
from heldout.scoring.answers import answer_text, clean, statements
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.process_pool import Pool

VERSION = 5
"""Goes up with every change of what is extracted or held equal."""
PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy")
"""They decide as well: scores of other versions of them may differ."""
MAX_LENGTH = 4000
"""Characters of a target, of a statement, or of the end of a text that is searched with `last`:
math-verify's patterns take cubic time on some texts."""
MAX_ALONE = 500
"""Characters of a text that may be nothing but an expression."""
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
    r"""Grade 1 where the answer equals the target, an expression in LaTeX or a number.

    The last stated answer counts: a box, a tag, a key, `####`, `Answer: …` or a sentence; boxes
    joined by a comma, "and" or "or" are one answer. Without a statement, a text that is nothing but
    an expression is read, and with `last` the last expression of any text. What is written like the
    target is equal, whatever it is. Else the expression that a statement begins with, or its last
    one, is compared by math-verify, and a statement without a readable one is passed over for the
    one before. `x = 5` equals 5, equations agree up to a factor, 50% equals 0.5 and 50, and units
    and degrees are not compared. An equation that is not solved is no value, and neither is a task
    that is not carried out (`\sum_{k=1}^{9} k`), unless the target has it.

    Args:
        answer: The reply; its reasoning is not read.
        target: The correct answer.
        last: Read the last expression where nothing is stated, for models that do not box.
        seconds: Time limit of the comparison. An answer that takes longer is a 0 with a note.
        decimals: Decimal places to which numbers agree.
        strict: Whether names of variables matter, and a tuple differs from a set.
        pool: Worker processes; by default those that all calls share.

    Returns:
        The grade, with the expression that was read.

    Raises:
        InvalidInput: The target is empty, a sentence, or its braces do not close.
        WorkerError: The target cannot be compared in time, or no worker process can be had.
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
    decide_in_worker: Callable[[str, list[str]], Awaitable[list[Any]]],
) -> Grade:
    gold, text = _target_text(target), answer_text(answer)
    if text is None:
        return NO_ANSWER
    stated = stated_expressions(_encodable(text), last=last)
    if not stated:
        note = "no answer is stated (last=True looks for the last expression)"
        return Grade(0.0, None, "no answer is stated" if last else note)
    extracted = stated[0][:MAX_SHOWN]
    if _is_written_alike(stated[0], gold):
        return Grade(1.0, extracted)
    try:
        try:
            return Grade(*await decide_in_worker(gold, stated))
        except WorkerDied:  # perhaps of something else: memory that others took
            return Grade(*await decide_in_worker(gold, stated))
    except WorkerError as problem:
        # The answer is to blame where a harmless one can be compared with the target.
        await decide_in_worker(gold, ["1"])
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
        raise InvalidInput("math equivalence needs math-verify: pip install 'heldout[math]'")


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
    text = _encodable(target).strip()
    shown = text[:MAX_SHOWN]
    if not text or len(text) > MAX_LENGTH:
        raise InvalidInput(
            f"the math target is empty or over {MAX_LENGTH} characters: {shown[:80]!r}; it has to "
            "be an expression"
        )
    statement = next(statements(text), None)
    if statement is not None and statement.kind != "words":
        stated = stated_expressions(text, last=False)
        text = stated[0] if stated else ""
    elif "$" not in text and len(_WORDS.findall(_TEXT.sub("", text))) > 2:
        raise InvalidInput(
            f"the math target {shown!r} reads as a sentence; give the expression alone, and words "
            "as \\text{…}"
        )
    if not text or text.replace("\\{", "").count("{") != text.replace("\\}", "").count("}"):
        raise InvalidInput(f"the math target {shown!r} has braces that do not close")
    return text


# --- What an answer states ------------------------------------------------------------------------

_BEGINS = re.compile(r"[^A-Za-z]|[A-Za-z](?![A-Za-z])|[A-Z]{2,4}\s?=")
"""An expression. A sentence that begins otherwise (`the answer is divisible by 7`) is a remark
where something else is stated."""
_IN_PARTS = re.compile(
    r"\A(?:[*#>-]|\d{1,2}[.)]) |[?？]\Z|\n(?![\s\S]{0,999}\\end)|\$[^$]+\$[^$]+\$"
)


def stated_expressions(text: str, *, last: bool) -> list[str]:
    """Find what may be the answer in a reply without reasoning, the last statement first.

    There is none where nothing is stated, unless `last` asks for the end of the text, or where the
    last statement is a box that never closes.
    """
    stated: list[str] = []
    remarks: list[str] = []
    for statement in islice(statements(text), MAX_STATEMENTS):
        value = statement.value
        if value is None or len(value) > MAX_LENGTH:
            break
        is_remark = statement.is_sentence and not _BEGINS.match(value)
        (remarks if is_remark else stated).append(value)
    stated += remarks
    if stated or next(statements(text), None) is not None:
        return stated
    if len(text) <= MAX_ALONE and not _IN_PARTS.search(text):
        bare = clean(text.replace("\\$", ""))
        is_word = bare.replace(" ", "").isalpha() and bare.count(" ") < 3
        if bare and (is_word or not _has_words(_TEXT.sub("", bare))):
            return [bare]
    return [_TAIL + text[-MAX_LENGTH:].strip()] if last else []


_TAIL = "\0"
"""Begins a text in which the worker is to look for the last expression."""


def _is_written_alike(text: str, target: str) -> bool:
    return bool(text.strip()) and _spelling(text) == _spelling(target)


_MARKS = re.compile(r"\\(?:left|right|big|Big|displaystyle)(?![a-z])|\\[,;!: ]|[\s$]|\.\Z")


def _spelling(text: str) -> str:
    text = _MARKS.sub("", _TEXT.sub(r"\1", text)).replace("\\dfrac", "\\frac")
    return text.casefold() if _WORDS.search(text) else text  # x is not X


_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|log|ln|exp"
_ALPHABET = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PRODUCTS = "|".join(_ALPHABET[i : i + n] for n in (4, 3) for i in range(27 - n))
_MATH_WORDS = re.compile(
    rf"(?<![A-Za-z])(?:{_FUNCTIONS}|sqrt|gcd|lcm|min|max|mod|det|lim|inf|and|or|{_PRODUCTS})"
    r"(?![A-Za-z])"
)
"""Letters that are no words: names of functions, and products such as xyz."""


# --- In the worker: from a statement to an expression ---------------------------------------------


def prepare() -> None:
    """Import what takes long, and go the common ways once."""
    for answer, target in (("1/2", "0.5"), ("x+1", "y"), (r"\{1,2\}", "1,2"), ("2x=4", "x=2")):
        decide(target, [answer], _Options())


def decide(
    target: str, stated: list[str], options: _Options | list[Any]
) -> tuple[float, str | None, str]:
    """Compare the first readable statement with the target: the task of a worker.

    Returns:
        The value, the expression that was read, and a note, as a Grade has them.
    """
    options = _Options(*options)
    gold = _expression(target) or target
    for text in stated:
        if text.startswith(_TAIL):
            text = _last_expression(text[1:]) or ""
        if _is_written_alike(text, target):
            return 1.0, text[:MAX_SHOWN], ""
        if (expression := _expression(text)) is None:
            continue
        try:
            equal = _compare(expression, gold, options)
        except _Different as reason:
            return 0.0, expression[:MAX_SHOWN], str(reason)
        if equal is not None:
            return float(equal), expression[:MAX_SHOWN], ""
    if stated[0].startswith(_TAIL):
        return 0.0, None, "no expression"
    return 0.0, stated[0][:MAX_SHOWN], "could not be read as mathematics"


_SPANS = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_SHORT_WORDS = "of|to|in|is|as|at|on|by|if|we|it|so|cm|mm|km|kg|ft|ml|hr|no|do|be"
_WORD = re.compile(rf"(?<![\\A-Za-z{{])(?:[A-Za-z]{{3,}}|(?:{_SHORT_WORDS})(?![A-Za-z]))")
_LEADING_WORDS = re.compile(
    rf"(?:(?:an?|[A-Za-z]{{3,}}|{_SHORT_WORDS}|[A-Za-z]+['’]t)[\s,:*]+(?![=+*/^<>]))+"
)
_LAST_NUMBER = re.compile(r"\b(?:is|are|be|equals)\s(-?\d[\d.,/]{0,50}(?<![.,/]))\W{0,3}\Z")
_DENIED = re.compile(r"(?:\b(?:not|if|wrong|incorrect)|n['’]t)\W*\Z", re.IGNORECASE)
_AND = re.compile(r"(?:[\s,;]*(?:(?<![\\A-Za-z])(?:and|or)(?![A-Za-z])|\\q?quad))+[\s,;]*")
_SCALES = {
    **{"thousand": r"\cdot 10^{3}", "million": r"\cdot 10^{6}", "billion": r"\cdot 10^{9}"},
    **{"trillion": r"\cdot 10^{12}", "dozen": r"\cdot 12", "percent": r"\%", "per cent": r"\%"},
}
_SCALED = re.compile(rf"(?<=[\d}}$)]) ?({'|'.join(_SCALES)})(?![A-Za-z])", re.IGNORECASE)


def _expression(statement: str) -> str | None:
    """Take the expression out of a statement: that which it begins with, or else its last one."""
    text = _plain(statement)
    if "\\begin" in text:
        return text.replace("$", "").strip()
    text = _TEXT.sub(lambda words: words[1] if len(words[1]) == 1 else f" {words[1]} ", text)
    text = " ".join(text.split())
    text = _SCALED.sub(lambda word: _SCALES[word[1].lower()], text)
    bare = text.replace("$", "").replace("\\(", "").replace("\\)", "")
    bare = _AND.sub(", ", bare).strip(" ,;")
    name, equals, value = bare.partition("=")
    if not _has_words(bare) or (equals and _NAME.fullmatch(name.strip()) and not _has_words(value)):
        return bare or None
    spans: list[str] = [span[span.lastindex or 0].strip() for span in _SPANS.finditer(text)]
    if spans and _SPANS.match(text.lstrip()):
        return spans[0]
    if spans:
        before, _, behind = text.rpartition(spans[-1])
        if number := _LAST_NUMBER.search(behind):
            return str(number[1])
        return None if _DENIED.search(before.rstrip("$\\([ ")) else spans[-1]
    leading = _LEADING_WORDS.match(bare)
    if leading and _DENIED.search(leading[0]):
        return None
    rest = bare[leading.end() :] if leading else bare
    word = _WORD.search(_blank_functions(rest))
    rest = (rest[: word.start()] if word else rest).strip(" ,;:(*")
    return rest if re.search(r"[\d\\]|\A[A-Za-z]\b", rest) else None


def _has_words(text: str) -> bool:
    return _WORD.search(_blank_functions(text)) is not None


def _blank_functions(text: str) -> str:
    return _MATH_WORDS.sub(lambda word: "0" * len(word[0]), text)


_CHARACTERS = str.maketrans({"−": "-", "－": "-", "﹣": "-", "°": "", "∘": "", "×": "*", "·": "*"})
_REWRITES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)(?:,?\\[,;!: ] ?|\{,\}|~)(?=\d{3})", ""),  # 1\,234
        (r"\\[!,;:]|\\(?:left|right|displaystyle)(?![a-z])|\\\$", ""),
        (r"(?<!\\)\\ |~", " "),
        # A unit of one letter, which would be read as a variable.
        (r"(?<=[\d)}])\s?\\(?:text|mathrm)\{\s?(?![ei])[A-Za-z]\s?\}(?:\^\{?[23]\}?)?\Z", ""),
        (r"\\varnothing(?![a-z])|∅", r"\\emptyset"),
        (
            r"(?<![\w.\\,])(\d{1,30}(?:\.\d{1,30})?)[eE]([+-]?\d{1,2})(?![\w.^]\w)",
            r"\1\\cdot 10^{\2}",
        ),
        (
            r"(?:√|(?<![\\A-Za-z])sqrt)\s?(?:\(([^()]{1,200})\)|(?<=√)(\d{1,30}|[a-z]))",
            r"\\sqrt{\1\2}",
        ),
        (rf"(?<![\\A-Za-z])({_FUNCTIONS})(?=[\s(]\s?[\w(\\])", r"\\\1"),
        (r"(?<=[\w)])\*\*(\d{1,30}|[A-Za-z])", r"^{\1}"),
        (r"(?<![\d.,/^_{}])(\d{1,9}) (\d{1,9})/(\d{1,9})(?![\d/.,])", r"\1\\frac{\2}{\3}"),
    )
)
"""What math-verify misreads, and how it is written instead."""


_REPEATING = re.compile(r"(\d{1,30})\.(\d{0,30})\\overline\s?\{(\d{1,30})\}")


def _plain(text: str) -> str:
    text = text.translate(_CHARACTERS).strip()
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _REPEATING.sub(_fraction, text)


def _fraction(decimal: re.Match[str]) -> str:
    r"""Write 0.1\overline{6} as 15/90."""
    integer, start, repeated = decimal.groups()
    numerator = int(integer + start + repeated) - int(integer + start)
    return f"\\frac{{{numerator}}}{{{10 ** len(start) * (10 ** len(repeated) - 1)}}}"


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

_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|mathbf|mathit|mathcal|hat|bar|measuredangle)\s?"
    r"|m(?=\\angle))*\{?\s?"
    r"(?:[A-Za-z]|[A-Z]{2,4}|[A-Za-z]{4,20}(?: [A-Za-z]{2,20}){0,3}|[\u0370-\u03ff]"
    rf"|\\(?!sqrt|frac|pi\b|infty|{_FUNCTIONS})[A-Za-z]{{2,10}}"
    r"|\([A-Za-z](?:, ?[A-Za-z])+\))\s?\}?"
    r"(?:_(?:\w|\{[^{}]{1,10}\}))?'{0,2}"
    r"(?:\^\{?(?:-1|\\prime)\}?)?(?:\s?\([^()=]{1,20}\))?"
)
_TASK = re.compile(
    r"\\(?:sum|i{0,3}nt|oint|prod|lim|det|gcd|lcm|max|min|sup|inf|b?mod|pmod|lfloor|lceil|cap)"
    r"(?![A-Za-z])|\\begin\{[vV]matrix\}|[∑∫∏⌊⌈∩]"
    r"|\\frac\s?\{?\s?(?:d|\\partial)(?:\^\{?\d\}?)?\s?(?:[a-zA-Z]\s?)?\}?\s?\{?\s?(?:d|\\partial)\s?[a-zA-Z]"
    r"|(?<![\\A-Za-z])(?:gcd|lcm|det|max|min|floor|ceil|lim|sum|mod)(?=\s?[({_\\]|\s\d)"
)
_TASK_NAME = re.compile(r"[\\\\{}()\s_]")
_BASE = re.compile(r"\d\)?_\s?\{?\s?(\d{1,2}|two|three|five|six|eight|ten)\s?\}?\Z")
_MORE_DIGITS = re.compile(r"\\[lcd]?dots(?![A-Za-z])|\.\.\.|…")


class _Different(Exception):
    """The answer is not equal, for a reason that a person should see."""


def _compare(answer: str, gold: str, options: _Options) -> bool | None:
    """Tell whether two expressions are equal; None where the answer cannot be read."""
    if _MORE_DIGITS.search(answer) and not _MORE_DIGITS.search(gold):
        raise _Different("digits are left out")
    base, gold_base = _BASE.search(answer), _BASE.search(gold)
    if base and base[1] != (gold_base[1] if gold_base else "10"):
        raise _Different("in another base")
    is_equation, is_gold_equation = len(_split(answer, "=")) > 1, len(_split(gold, "=")) > 1
    if is_gold_equation and not (is_equation and re.search("[A-Za-z]", gold)):
        is_gold_equation = (value := _solved(gold, options)) is None
        gold = value or gold
    if is_equation and not is_gold_equation:
        value = _solved(answer, options)
        if value is None and not re.search("[A-Za-z]", gold):
            raise _Different("an equation, and not a value")
        if value and _is_tuple(gold) and len(_split(value, ",;")) > 1:
            raise _Different("several answers, where the target is one")
        answer = value or answer
    for task in _TASK.findall(answer):
        if _TASK_NAME.sub("", task) not in _TASK_NAME.sub("", gold):
            raise _Different(f"not carried out: {task}")
    if options.strict and gold.startswith("\\{") and _is_tuple(answer):
        raise _Different("in order, where the target is a set")
    return _any_equal(answer, gold, options)


def _solved(text: str, options: _Options) -> str | None:
    """Take the values out of x = 5, 5 = x, x = 48/2 = 24, x = 7, 8 or x = 1, y = 2."""
    names: list[str] = []
    values: list[str] = []
    for part in _split(text, ",;"):
        sides = _split(part, "=")
        if _NAME.fullmatch(sides[-1]) and not _NAME.fullmatch(sides[0]):
            sides.reverse()
        if len(sides) > 1 and (_NAME.fullmatch(sides[0]) or _TASK.search(sides[0])):
            names.append(sides.pop(0))
        elif len(sides) == 1 and names:
            names.append(names[-1])
        if any(not _any_equal(side, sides[-1], options) for side in sides[:-1]):
            return None
        values.append(sides[-1])
    if names and len(names) < len(values):  # 5, x = 1
        return None
    if len({*names}) < 2:
        return ", ".join(values)
    if "".join(sorted(names)) in _ALPHABET:  # x and y, a, b and c: components of one
        values = [value for _, value in sorted(zip(names, values, strict=True))]
    return f"({', '.join(values)})"


def _split(text: str, separators: str) -> list[str]:
    """Split at separators that are in no brackets; the `=` of `<=` and `!=` is none."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        is_outside = character in separators and depth <= 0
        if is_outside and text[i - 1 : i] not in tuple("<>!:\\"):
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def _is_tuple(text: str) -> bool:
    """Tell (1,2) and [1,2] from (1,2),(3,4) and (1+2)."""
    inside = text.strip()
    if inside[:1] not in ("(", "[") or inside[-1:] not in (")", "]"):
        return False
    return len(_split(inside, ",;")) == 1 < len(_split(inside[1:-1], ",;"))


def _any_equal(answer: str, gold: str, options: _Options) -> bool | None:
    """Compare with and without percent signs, where one side has them and the other has not."""
    answers, golds = [answer], [gold]
    if "%" in answer + gold:
        answers, golds = _without_percent(answer), _without_percent(gold)
        if "%" in answer and "%" in gold:
            answers, golds = answers[:1], golds[:1]
    values = [_read(text) for text in answers]
    gold_values = [_read(text) for text in golds]
    if values[0] is None:
        return None
    if gold_values[0] is None:
        raise _Different("the target cannot be read: only what is written alike equals it")
    return any(_is_equal(gold, value, options) for gold in gold_values for value in values)


def _without_percent(text: str) -> list[str]:
    bare = text.replace("\\%", "").replace("%", "").strip()
    return [bare, f"\\frac{{{bare}}}{{100}}"] if "%" in text else [bare]


# --- math-verify ----------------------------------------------------------------------------------


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
            float_rounding=options.decimals + _leading_zeros(gold),
            strict=options.strict,
            # x >= 3 for [3, oo), too; but 1 < x < 2 is not the set of 1 and 2.
            allow_set_relation_comp=type(gold).__name__ != "FiniteSet",
            timeout_seconds=None,
            raise_on_error=True,
        )
    )


def _leading_zeros(gold: Any) -> int:
    """Count those of a number below 0.001: to six places, any tiny number would equal 1e-7."""
    if not getattr(gold, "is_number", False):
        return 0
    try:
        size = abs(complex(gold.evalf(6)))
    except (ArithmeticError, TypeError, ValueError):  # 1/0, say
        return 0
    return max(-math.floor(math.log10(size)) - 1, 0) if 0 < size < 1e-3 else 0


def _math_verify() -> Any:
    return import_module("math_verify")  # which has no types
