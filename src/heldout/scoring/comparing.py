r"""Does an expression equal the expected one? In a worker: math-verify decides, but not alone.

It would take `\sum_{k=1}^{100} k` for 5050, the 14 out of `2x=14`, and 243 in base 5 for 243 in
base 6. So a task that is not carried out is no answer, unless the target has the same; of an
equation the right side counts where the left is a name or the same value; named components are put
in order; bases and units that are written on both sides have to agree. What is not decided says
why, in a note.

math-verify's own timeouts are off: they are signals, which threads cannot have, and which a long
multiplication does not notice. The pool ends what takes too long.
"""

from __future__ import annotations

import math
import re
from importlib import import_module
from typing import Any, NamedTuple

from heldout.scoring.claims import FUNCTIONS
from heldout.scoring.expressions import LONGEST_SHOWN, Gold, Stated, boxed, plain


class Options(NamedTuple):
    decimals: int = 6
    strict: bool = True
    unevaluated: bool = False


def prepare() -> None:
    import logging

    logging.disable(logging.CRITICAL)  # it warns, in every process, that its timeouts are off
    # The first use of each part of sympy takes long: on nobody's time here.
    for gold, inside in (
        ("1/2", "x^2"),
        (r"\{1,2\}", "1, 3"),
        (r"\sqrt{2}/2", r"\frac{1}{\sqrt 3}"),
    ):
        decide(Gold(boxed(gold), gold), Stated(inside, inside, "", ""), Options())
    tail = "The answer is 3/6."
    decide(Gold(boxed("x^2-1"), "x^2-1"), Stated(None, "", tail, ""), Options())


def decide(gold: Gold, said: Stated, options: Options) -> dict[str, Any]:
    """What a `Grade` is made of. The arguments are named tuples, or what msgpack makes of them."""
    gold, said, options = Gold(*gold), Stated(*said), Options(*options)
    grade: dict[str, Any] = {"gold_problem": "", "value": 0.0, "extracted": None, "note": said.note}
    wanted = None if gold.is_text else _read(gold.text).found
    if wanted is None and not gold.is_text:
        problem = f"the math target {gold.raw[:LONGEST_SHOWN]!r} cannot be read as mathematics; "
        return grade | {"gold_problem": problem + "give the expression alone, as LaTeX or a number"}
    if (gold.is_text or said.inside is None) and _alike(said.raw, gold.raw):
        return grade | {"extracted": said.raw[:LONGEST_SHOWN], "value": 1.0, "note": ""}
    if gold.is_text:
        return grade | {"extracted": said.raw[:LONGEST_SHOWN] or None}
    if said.inside is not None:
        written = plain(said.inside)
    elif said.tail:
        written = _search(_BOLD.sub("", plain(said.tail))) or ""
    else:
        return grade
    if not written:
        return grade | {"note": "no mathematical expression was found"}
    value, extracted, note = _compared(written, gold, wanted, options)
    if value and gold.unit and said.unit and gold.unit != said.unit:
        value, note = False, f"in another unit: {said.unit}, not {gold.unit}"
    return grade | {"value": float(value), "extracted": extracted[:LONGEST_SHOWN], "note": note}


class _Verdict(NamedTuple):
    value: bool
    extracted: str
    note: str = ""


def _compared(written: str, gold: Gold, wanted: Any, options: Options) -> _Verdict:
    if _alike(written, gold.raw):
        return _Verdict(True, _shown(written))
    claim = _value(written, gold.raw, options)
    if claim.note:
        return _Verdict(False, _shown(written), claim.note)
    if not options.unevaluated and (task := _task(claim.text, gold.raw)):
        return _Verdict(False, _shown(written), f"not carried out: {task}")
    if mark := _unread(claim.text, gold.raw):
        return _Verdict(False, _shown(written), f"not understood: {mark}")
    if (same := _same_numeral(claim.text, gold.raw)) is not None:
        return _Verdict(same, _shown(written), "" if same else "another number, or another base")
    if options.strict and gold.raw.startswith("\\{") and _is_tuple(_IN.sub("", claim.text)):
        return _Verdict(False, _shown(written), "in order, where the target is a set")
    found, text = _read(boxed(claim.text))
    shown = text or _shown(written)
    if found is None:
        return _Verdict(False, shown, "could not be read as mathematics")
    if claim.wanted is not None:
        wanted = _read(boxed(claim.wanted)).found
    return _Verdict(_equal(wanted, found, options), shown if claim.text == written else written)


_IN = re.compile(r"\A\s?[A-Za-z]\s?(?:\\in(?![A-Za-z])|∈)")


def _shown(written: str) -> str:
    return boxed(written).removeprefix("\\boxed{").removesuffix("}")


_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_IS_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}")


def _alike(written: str, other: str) -> bool:
    """What is written alike; for words, which are no mathematics."""
    return bool(written.strip()) and _words(written) == _words(other)


def _words(text: str) -> str:
    text = " ".join(_TEXT.sub(r" \1 ", text).replace("$", "").split()).removesuffix(".")
    return text.casefold() if _IS_WORD.search(text) else text  # x is not X


# --- Tasks, and what math-verify drops -----------------------------------------------------------

_TASKS = re.compile(
    r"\\(?P<command>sum|i{0,3}nt|oint|prod|coprod|lim|limsup|liminf|det|gcd|lcm|max|min|sup|inf|mod"
    r"|bmod|pmod|lfloor|lceil|cap|bigcap|bigcup|nabla|intop)(?![A-Za-z])"
    r"|\\operatorname\*?\s?\{(?P<operator>lcm|gcd|tr|rank|det|mod|lim|max|min|floor|ceil)\}"
    r"|\\begin\{(?P<matrix>[vV]matrix)\}"
    r"|\\[dt]?frac\s?\{?\s?(?P<derivative>d|\\partial)(?:\^\{?\d\}?)?\s?(?:[a-zA-Z]\s?)?\}?\s?\{?\s?"
    r"(?:d|\\partial)\s?[a-zA-Z]"
    r"|(?P<sign>[∑∫∏⌊⌈∩])"
    r"|(?<![\\A-Za-z])(?P<word>gcd|lcm|det|max|min|floor|ceil|lim|sum|prod|mod)(?=\s?[({_\\]|\s\d)"
)
_SAME_TASK = {
    **{"∑": "sum", "∫": "int", "∏": "prod", "⌊": "lfloor", "floor": "lfloor", "⌈": "lceil"},
    **{"ceil": "lceil", "bmod": "mod", "pmod": "mod", "vmatrix": "det", "Vmatrix": "det"},
    **{"∩": "cap", "d": "d/dx", "\\partial": "d/dx"},
}


def _tasks(text: str) -> dict[str, str]:
    """By its name, how each is written. Binomials, factorials, roots and logarithms are none: they
    stand in final answers."""
    found: dict[str, str] = {}
    for task in _TASKS.finditer(text):
        name = next(group for group in task.groups() if group)
        found.setdefault(_SAME_TASK.get(name, name), task[0])
    return found


def _task(text: str, gold: str) -> str:
    left = _tasks(text)
    for known in _tasks(gold) if left else ():
        left.pop(known, None)
    return next(iter(left.values()), "")


_DROPPED = re.compile(r"\\[lcdv]?dots[a-z]?(?![A-Za-z])|\.\.\.|…|(?<=\d)\s?(?:'|\\prime|′)")


def _unread(text: str, gold: str) -> str:
    mark = _DROPPED.search(text)
    return mark[0] if mark and not _DROPPED.search(gold) else ""


_DIGITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve"),
)
_NUMERAL = re.compile(
    r"\(?(?=[A-Fa-f]{0,40}[0-9])([0-9A-Fa-f]{1,200})\)?(?:_\s?\{?\s?(?:\\text\{)?\s?(\d{1,2}|[a-z]{3,6})\s?\}{0,2})?"
)


def _same_numeral(text: str, gold: str) -> bool | None:
    """None where no base is written on either side."""
    if "_" not in text and "_" not in gold:
        return None
    said, wanted = _NUMERAL.fullmatch(text.strip()), _NUMERAL.fullmatch(gold.strip())
    if said is None or (wanted is None and said[2] is None):
        return None
    if wanted is None:
        return None if _base(said[2]) == "10" else False
    if said[2] is None and wanted[2] is None:
        return None
    same = said[1].lower().lstrip("0") == wanted[1].lower().lstrip("0")
    return same and (said[2] is None or _base(said[2]) == _base(wanted[2] or "10"))


def _base(written: str) -> str:
    return str(_DIGITS.index(written)) if written in _DIGITS else written


# --- Equations and components --------------------------------------------------------------------


class _Value(NamedTuple):
    text: str
    note: str = ""
    wanted: str | None = None
    """What the target is to be read as, where that is not as it is written."""


_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|mathbf|mathrm|mathit|mathcal|hat|bar|text|operatorname"
    r"|measuredangle)\s?|m(?=\\angle))*\{?\s?"
    r"(?:[A-Za-z]|[A-Z]{2,4}|[A-Za-z]{4,20}(?: [A-Za-z]{2,20}){0,3}|[\u0370-\u03ff]"
    rf"|\\(?!sqrt|frac|[dt]frac|pi\b|infty|arc|{FUNCTIONS})[A-Za-z]{{2,10}})\s?\}}?"
    r"(?:_(?:\w|\{[^{}]{1,10}\}))?'{0,2}"
    r"(?:\^\{?(?:-1|\\prime)\}?)?(?:\s?(?:\\left)?\([^()=]{1,20}\))?"
)
_APPROXIMATELY = re.compile(r"\\approx(?![A-Za-z])|≈|\\simeq(?![A-Za-z])")
_ALTERNATIVES = re.compile(r"(?<![\\A-Za-z])or(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z])")
_JOINED = re.compile(
    r",?\s?(?:\\text\{\s?(?:and|or)\s?\}|(?<![\\A-Za-z])(?:and|or)(?![A-Za-z]))|\\quad"
)


def _value(written: str, gold: str, options: Options) -> _Value:
    """Of x = 48/2 = 24 the 24; of y=2, x=1 the pair in order."""
    if gold.startswith(("(", "[")) and _ALTERNATIVES.search(written):
        return _Value("", "several answers, where the target is one")
    if "=" not in written and "=" not in gold and not _APPROXIMATELY.search(written):
        return _Value(written)
    if named := _components(written):
        return _ordered(named, gold, written)
    if expected := _components(gold):
        return _Value(written, wanted=_pair([value for _, value in _sorted(expected)], "("))
    about = _APPROXIMATELY.split(written)
    if len(about) > 1 and _NAME.fullmatch(about[0].strip()):
        written = "=".join(about)  # x is about 3.1
    elif len(about) > 1 and not _is_near(about[0], about[-1]):
        return _Value("", "what is said to be about the same is not")
    sides = _split(written, "=")
    if len(sides) == 1:
        return _Value(written)
    expected_sides = _split(gold, "=")
    if len(sides) == 2 and len(expected_sides) == 2 and re.search(r"[A-Za-z]", expected_sides[1]):
        return _Value(written)  # equations of the same line
    if len(sides) == 2 and _NAME.fullmatch(sides[1]) and not _NAME.fullmatch(sides[0]):
        sides.reverse()
    name = sides.pop(0) if _NAME.fullmatch(sides[0]) else ""
    if not name and len(sides) > 1 and _tasks(sides[0]):
        sides.pop(0)  # of a task that is carried out, what comes out
    last = sides[-1]
    if any(not _same_value(last, side, options) for side in sides[:-1]):
        return _Value("", "an equation, and not a value")
    if name and gold.startswith(("(", "[")) and not _is_tuple(last) and len(_split(last, ",;")) > 1:
        return _Value("", "several answers, where the target is one")
    return _Value(f"{name}={last}" if name and len(expected_sides) > 1 else last)


def _is_near(exact: str, rounded: str) -> bool:
    r"""As \sqrt{2} is to 1.4. What is no number may be."""
    first, second = _number(exact), _number(rounded)
    return first is None or second is None or abs(first - second) <= abs(first) / 10


def _number(written: str) -> complex | None:
    return _as_number(_read(boxed(written)).found)


def _as_number(expression: Any) -> complex | None:
    if not getattr(expression, "is_number", False):
        return None
    try:
        return complex(expression.evalf(6))
    except (ArithmeticError, TypeError, ValueError):  # 1/0, say
        return None


def _same_value(one: str, other: str, options: Options) -> bool:
    first, second = _read(boxed(one)).found, _read(boxed(other)).found
    return first is not None and second is not None and _equal(first, second, options)


def _components(text: str) -> list[tuple[str, str]]:
    """The names and values of x=1, y=2; none where it is anything else."""
    if text.count("=") < 2:
        return []
    named = []
    for part in _split(_JOINED.sub(",", text), ",;"):
        sides = _split(part, "=")
        if len(sides) != 2 or not _NAME.fullmatch(sides[0]):
            return []
        named.append((sides[0], sides[1]))
    return named if len(named) > 1 else []


def _ordered(named: list[tuple[str, str]], gold: str, written: str) -> _Value:
    values = [value for _, value in _sorted(named)]
    if len({name for name, _ in named}) == 1:  # x=1 or x=2
        if gold.startswith(("(", "[")):
            return _Value("", "several answers, where the target is one")
        return _Value(written)
    expected = _components(gold)
    if not expected:
        return _Value(_pair(values, gold))
    if {name for name, _ in expected} != {name for name, _ in named}:
        return _Value("", "other names than the target's")
    wanted = _pair([value for _, value in sorted(expected)], "(")
    return _Value(_pair([value for _, value in sorted(named)], "("), wanted=wanted)


def _pair(values: list[str], gold: str) -> str:
    inside = ", ".join(values)
    return f"({inside})" if gold.startswith(("(", "[", "\\left")) else inside


def _sorted(named: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """By name, where the names follow each other in the alphabet; else as they are written."""
    names = sorted(name for name, _ in named)
    follow = all(len(name) == 1 and ord(name) - ord(names[0]) == n for n, name in enumerate(names))
    return sorted(named) if follow else named


def _split(text: str, separators: str) -> list[str]:
    """At separators that are in no brackets; `<=` is none, nor is `!=`."""
    if not any(separator in text for separator in separators):
        return [text.strip()]
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character in separators and depth <= 0:
            if character == "=" and text[place - 1 : place] in ("<", ">", "!", ":", "\\", "="):
                continue
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _is_tuple(text: str) -> bool:
    """(1,2) or [1,2], and not (1,2),(3,4)."""
    text = text.replace("\\left", "").replace("\\right", "").strip()
    if not text.startswith(("(", "[")) or not text.endswith((")", "]")):
        return False
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if not depth:
            return place == len(text) - 1 and len(_split(text[1:-1], ",;")) > 1
    return False


# --- math-verify ---------------------------------------------------------------------------------


def _equal(wanted: Any, found: Any, options: Options) -> bool:
    """The wanted one is compared first: an equation is not a number, but may have one. A comparison
    that raises has not said that they differ."""
    return bool(
        _math_verify().verify(
            wanted,
            found,
            float_rounding=options.decimals + _leading_zeros(wanted),
            strict=options.strict,
            # x >= 3 for [3, oo), too; but 1 < x < 2 is not the set of 1 and 2
            allow_set_relation_comp=type(wanted).__name__ != "FiniteSet",
            timeout_seconds=None,
            raise_on_error=True,
        )
    )


def _math_verify() -> Any:
    return import_module("math_verify")  # which has no types


def _leading_zeros(wanted: Any) -> int:
    """Of a number below 0.001: rounded to six places, anything tiny would equal a gold of 1e-7."""
    value = _as_number(wanted)
    size = 0.0 if value is None else abs(value)
    return max(-math.floor(math.log10(size)) - 1, 0) if 0 < size < 1e-3 else 0


class _Reading(NamedTuple):
    found: Any
    written: str | None


def _read(text: str) -> _Reading:
    """The expression that a text ends with, and how it was written."""
    found = _math_verify().parse(
        text, extraction_mode="first_match", parsing_timeout=None, raise_on_error=True
    )
    expressions = [each for each in found if not isinstance(each, str)]
    written = next((each for each in found if isinstance(each, str)), None)
    return _Reading(expressions[0] if expressions else None, written)


_BOLD = re.compile(r"(?<![\w)\]}])\*\*|\*\*(?![\w(\\-])")
"""Not the power in 2**3."""


def _search(tail: str) -> str | None:
    """The expression that math-verify finds last, without the markdown on it."""
    written = _read(tail).written
    return written.strip("*_` \n") if written else None
