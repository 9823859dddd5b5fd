r"""Which expression a short value claims to be the answer: of "3/4 of the cake" the 3/4.

    claimed("3/4 of the cake")          3/4
    claimed(r"7\text{ million}")        7\cdot 10^{6}
    claimed("at least 7")               none, since it is a bound

A value is an expression, or words around exactly one. What the words do to it matters: they may
deny it, doubt it, make a bound or another number of it, or name a second one. Then nothing is
claimed, and `problem` says why. Before an expression only a few neutral words may stand, or a
sentence that ends in "is"; behind it stands a unit, or an explanation.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST_SPLIT = 1000
"""Characters of a value in which words are told from mathematics."""
FUNCTIONS = "sin|cos|tan|cot|sec|csc|log|ln|exp"


class Claim(NamedTuple):
    expression: str | None
    """To be read as mathematics; words alone are in a `\\text`."""
    problem: str = ""
    """Why nothing is claimed."""
    unit: str = ""
    """The word behind the expression, by the name it has here."""
    is_denied: bool = False
    """Something is said not to be the answer, or to be in doubt; an earlier one does not count."""


# --- Words ---------------------------------------------------------------------------------------

_MATHEMATICAL = frozenset(
    (
        *FUNCTIONS.split("|"),
        *("arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sqrt", "gcd", "lcm", "min", "max"),
        *("mod", "det", "lim", "sum", "floor", "ceil", "and", "or", "inf", "infinity"),
    )
)
_SHORT = frozenset(
    (
        *("of", "to", "in", "is", "at", "as", "on", "by", "if", "we", "it", "be", "so", "no"),
        *("do", "an", "up", "my", "us", "he"),
    )
)
_DENIED = frozenset(
    (
        *("not", "never", "none", "neither", "nor", "cannot", "wrong", "incorrect", "false"),
        *("except", "without", "unsolvable", "no"),
    )
)
_DOUBTED = frozenset(
    (
        *("maybe", "perhaps", "possibly", "might", "could", "if", "unless", "assuming", "suppose"),
        *("guess", "unsure", "sure", "whether", "unknown"),
    )
)
_BOUND = frozenset(
    (
        *("least", "most", "less", "more", "fewer", "greater", "larger", "smaller", "bigger"),
        *("than", "between", "over", "under", "above", "below", "up", "minimum", "maximum"),
        "range",
    )
)
_OTHERWISE = frozenset(
    (
        *("squared", "cubed", "factorial", "half", "halves", "third", "thirds", "quarter"),
        *("quarters", "fourths", "fifths", "sixths", "tenths", "remainder", "modulo", "lakh"),
        *("crore", "mil", "percentile", "choose", "times", "plus", "minus", "divided"),
    )
)
_COPULAS = frozenset(("is", "are", "was", "be", "equals", "equal", "becomes", "yields", "gives"))
_NEUTRAL = frozenset(
    (
        *("a", "an", "the", "about", "approximately", "approx", "roughly", "around", "exactly"),
        *("precisely", "simply", "just", "only", "probably", "likely", "either", "number"),
        *("value", "fraction", "set", "interval", "point", "pair", "ordered", "matrix", "vector"),
        *("expression", "function", "polynomial", "equation", "total", "to", "all", "both"),
        *("values", "numbers", "solutions"),
    )
)
_EXPLAINED = frozenset(
    (
        *("because", "since", "as", "where", "for", "when", "so", "which", "given", "after", "by"),
        *("using", "hence", "that", "therefore", "via"),
    )
)
_KNOWN = _DENIED | _DOUBTED | _BOUND | _OTHERWISE | _COPULAS | _NEUTRAL | _EXPLAINED | _SHORT
_SCALES = {
    **{"hundred": r"\cdot 10^{2}", "thousand": r"\cdot 10^{3}", "million": r"\cdot 10^{6}"},
    **{"billion": r"\cdot 10^{9}", "trillion": r"\cdot 10^{12}", "dozen": r"\cdot 12"},
    **{"percent": r"\%", "pct": r"\%"},
}
_SCALED = re.compile(
    r"(?:hundred|thousand|milli(?:on|ar|ón|õ)|millones|billi|trilli|dozen)|[千万萬亿億兆]"
)
_UNITS = {
    name: unit
    for unit, names in {
        **{"mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre"},
        **{"km": "kilometer kilometre", "inch": "inches", "ft": "foot feet", "yd": "yard"},
        **{"mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram", "lb": "lbs pound"},
        **{"s": "sec second", "min": "mins minute", "h": "hr hrs hour", "day": "day"},
        **{"week": "week", "month": "month", "yr": "year", "L": "l liter litre", "ml": "mL"},
        **{"dollar": "usd", "cent": "cent", "degree": "deg", "radian": "rad"},
    }.items()
    for each in (unit, *names.split())
    for name in (each, each + "s", each + "es")
}


# --- The value in parts --------------------------------------------------------------------------

_SPANS = re.compile(r"\$\$?([^$]*)\$\$?")
_SIGNS = (("\\(", "\\)"), ("\\[", "\\]"))
_PARTS = re.compile(
    r"\\(?:text[a-z]{0,8}|mathrm|mbox)\s{0,4}\{(?P<text>[^{}]*)\}|(?P<command>\\(?:[A-Za-z]+|.))"
    r"|(?P<word>[^\W\d_]+(?:['’][^\W\d_]{1,3})?)",
    re.DOTALL,
)
_LETTERS = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]{1,3})?")
_SAYS = re.compile(r"[^\W_]|\\[A-Za-z]|∞|∅|√")
_UNIT_POWER = re.compile(r"\s*(?:\^\{?\d\}?|[²³])[\s./)]*\Z")
_IN_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3}|\\(?:text|mathrm|mbox)")
_GREEK = re.compile(r"[\u0370-\u03ff]+")
_NOT_THAT = re.compile(
    r"\s{0,3}[,;(–—-]?\s{0,3}\b(?:and |but )?(?:not|rather than|instead of)\b", re.IGNORECASE
)
_ARTICLE = re.compile(r" [A-Za-z]{2}")
_REMARK = re.compile(r"\s\((?!base )(?=[^()]*[A-Za-z]{3})")


class _Part(NamedTuple):
    text: str
    words: tuple[str, ...]
    """In lower case; none: it is mathematics."""


_END = _Part("", ("",))


def claimed(value: str) -> Claim:
    """What a statement's value or a box claims, be it words in maths signs or in a `\\text`."""
    value = value.replace("\\$", "").strip()  # money
    if value.endswith(("?", "？")) and _SAYS.search(value) and not value.startswith("?"):
        return Claim(None, "a question", is_denied=True)
    if "\\begin" in value:
        return Claim(_without_signs(value))  # cases have words in them
    if len(value) > LONGEST_SPLIT:
        if _IN_WORDS.search(value):
            return Claim(None, f"words in over {LONGEST_SPLIT} characters")
        return Claim(_without_signs(value))
    parts = _split(value)
    if not any(part.words for part in parts):
        return Claim("".join(part.text for part in parts).strip())
    pieces = [part for part in parts if not part.words and _SAYS.search(part.text)]
    if not pieces:
        said = _without_signs(value)
        return Claim(said if "\\" in said else f"\\text{{{said}}}")
    if remark := _REMARK.search(value):
        return claimed(value[: remark.start()])
    if all(_is_balanced(part.text) for part in parts):
        return _around(value, parts)
    return _objection(parts, 0) or Claim(_without_signs(value))  # words inside of something


def _around(value: str, parts: list[_Part]) -> Claim:
    """Words around one expression, or several."""
    denied = _NOT_THAT.search(value)
    before = value[: denied.start()] if denied else ""
    if _is_balanced(before) and _SAYS.search(before) and not has_words(before):
        return claimed(before)  # 5, not 7
    explained = (n for n, part in enumerate(parts) if _EXPLAINED & {*part.words[:1]})
    head = parts[: next(explained, len(parts))]
    copula = max((n for n, part in enumerate(head) if _COPULAS & {*part.words}), default=-1)
    if objection := _objection(head, copula):
        return objection
    places = [n for n, part in enumerate(head) if not part.words and _SAYS.search(part.text)]
    if behind := [n for n in places if n > copula]:
        places = behind
    else:
        copula = -1  # 7 is the answer
    # In cm^2, the exponent is the unit's.
    places = places[:1] + [n for n in places[1:] if not _UNIT_POWER.match(head[n].text)]
    if len(places) != 1:
        return Claim(None, "several expressions" if places else "no expression alone")
    words = [word for part in head[copula + 1 : places[0]] for word in part.words]
    if not _NEUTRAL.issuperset(words):
        return Claim(None, f"not understood: {words[-1][:40]!r} before an expression")
    expression = head[places[0]].text.strip(" ,;:")
    after = next((part.words[0] for part in head[places[0] + 1 :] if part.words), "")
    return Claim(expression + _SCALES.get(after, ""), unit=_UNITS.get(after, ""))


def has_words(value: str) -> bool:
    """Whether there is more in it than mathematics."""
    return count_words(value) > 0


def count_words(value: str) -> int:
    return sum(len(part.words) for part in _split(value))


def _objection(parts: list[_Part], subject: int) -> Claim | None:
    """What words make of an expression other than an answer. Up to the subject's end, words may
    speak of a maximum, say."""
    for place, part in enumerate(parts):
        for word in part.words:
            if word in _DENIED or word.endswith(("n't", "n’t")):
                return Claim(None, f"denied: {word}", is_denied=True)
            if word in _DOUBTED:
                return Claim(None, f"in doubt: {word}", is_denied=True)
            if place > subject and word in _BOUND:
                return Claim(None, f"a bound: {word}")
            if place > subject and (word in _OTHERWISE or _is_unknown_scale(word)):
                return Claim(None, f"not understood: {word[:40]!r} beside an expression")
    return None


def _is_unknown_scale(word: str) -> bool:
    return _SCALED.search(word) is not None and word not in _SCALES


def _split(value: str) -> list[_Part]:
    """Mathematics and words by turns. What is in maths signs is mathematics."""
    if value.count("$") == 1:
        value = value.replace("$", "")  # money
    for opening, closing in _SIGNS:
        if opening in value:
            value = value.replace(opening, "$").replace(closing, "$")
    parts: list[_Part] = []
    at = 0
    for span in _SPANS.finditer(value):
        parts += _outside(value[at : span.start()])
        parts += _outside(span[1]) if "\\text" in span[1] else [_Part(span[1], ())]
        at = span.end()
    parts += _outside(value[at:])
    joined: list[_Part] = []
    run: list[str] = []
    for part in [*parts, _END]:
        if not part.words:
            run.append(part.text)
            continue
        if (text := "".join(run)).strip():
            joined.append(_Part(text, ()))
        run.clear()
        joined.append(part)
    return joined[:-1]


def _outside(text: str) -> list[_Part]:
    parts: list[_Part] = []
    at = 0
    for found in _PARTS.finditer(text):
        words: tuple[str, ...] = ()
        replaced = found[0]
        if found["text"] is not None:
            inner = [word.lower() for word in _LETTERS.findall(found["text"])]
            if not inner or {*inner} <= {"and", "or"}:
                continue
            if len(inner) == 1 and len(inner[0]) == 1:
                if inner[0] in _UNITS and _is_number_before(text, found.start()):
                    words = (inner[0],)
                elif found["text"].strip() == inner[0]:
                    replaced = inner[0]  # \text{x} is x
            elif any(len(word) > 1 for word in inner):
                words = tuple(inner)
        elif found["word"] and _is_prose(found[0], text, found):
            words = (found[0].lower(),)
        if words or replaced != found[0]:
            parts += (_Part(text[at : found.start()], ()), _Part(replaced, words))
            at = found.end()
    return [*parts, _Part(text[at:], ())]


def _is_prose(word: str, text: str, found: re.Match[str]) -> bool:
    lower = word.lower()
    if lower in _MATHEMATICAL or _GREEK.fullmatch(word):
        return False
    if not word.isascii():
        return True
    if len(word) == 1:
        alone = not text[max(0, found.start() - 1) : found.start()].isalnum()
        return word in "aAI" and alone and _ARTICLE.match(text, found.end()) is not None
    if word.isupper() and len(word) <= 4 and lower not in _DENIED:
        return False  # the triangle ABC
    if len(word) == 2:
        return lower in _SHORT or (lower in _UNITS and _is_number_before(text, found.start()))
    is_product = len(word) <= 4 and sorted(word) == [*word]  # xyz
    return not is_product or lower in _KNOWN or lower in _UNITS


def _is_number_before(text: str, place: int) -> bool:
    before = text[max(0, place - 4) : place].rstrip()[-1:]
    return before.isdigit() or before in (")", "}")


def _is_balanced(text: str) -> bool:
    opened = text.count("{") + text.count("(") + text.count("[")
    return opened == text.count("}") + text.count(")") + text.count("]")


def _without_signs(value: str) -> str:
    return value.replace("$", "").replace("\\(", "").replace("\\)", "").strip()
