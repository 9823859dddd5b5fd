"""The filter of a table of samples: `reward<0.5 kind:"kind 2" -truncated:yes text:"refund"`.

Terms are joined by AND, groups of terms by OR; a minus negates a term. `parse` turns the text into
terms, `evaluate` terms into a mask over columns. Nothing here knows files or HTTP.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import HeldoutError, InvalidInput

OUTCOMES = ("passed", "failed", "errored", "truncated")
"""Fields with the values yes and no."""
CONTAINED = {"id", "error", "ground_truth", "extracted"}
"""Fields in which `:` looks for a part, whatever its case."""

SEARCHED = {"text", "answer"}
"""Fields that are searched for in conversations, and are no columns."""

_TERM = re.compile(
    r"""(?P<minus>-)?(?:(?P<field>"(?:[^"\\]|\\.)*"|[^\s:=<>!"]+)(?P<op>:|<=|>=|!=|=|<|>))?"""
    r"""(?P<value>"(?:[^"\\]|\\.)*"|[^\s"]+)"""
)
_OPEN = re.compile(r"-?[^\s:=<>!]+(?::|<=|>=|!=|=|<|>)")
"""A field whose value is still to be typed."""
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    ":": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Term:
    """One condition of a filter."""

    field: str
    op: str
    value: str
    negated: bool
    start: int
    """Where it stands in the filter."""
    group: int = 0
    """Which of the groups that OR joins it belongs to."""


@dataclass(frozen=True, slots=True)
class FilterColumn:
    """One value per row: numbers, or texts as codes into a list of distinct values."""

    numbers: NDArray[np.float64] | None = None
    """NaN where a row has none."""
    codes: NDArray[np.int32] | None = None
    """-1 where a row has none."""
    values: Sequence[str] = ()
    lowered: Sequence[str] = ()
    """The values in lower case, of a column in which parts are looked for."""


class BadFilter(InvalidInput):
    """A filter that cannot be parsed; `at` is where."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def parse(text: str) -> list[Term]:
    """Parse a filter; BadFilter if a quote is not closed, or a value or a term is missing."""
    terms: list[Term] = []
    at = group = 0
    or_at = None
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _TERM.match(text, at)
        if match is None or (match.end() < len(text) and not text[match.end()].isspace()):
            raise BadFilter(f"cannot read {text[at : at + 40]!r}: close the quotes", at)
        if match[0] == "OR":
            if or_at is not None or not terms:
                raise BadFilter("OR stands between two terms", at)
            or_at, group, at = at, group + 1, match.end()
            continue
        if _OPEN.fullmatch(match[0]):
            raise BadFilter(f"{match[0]} has no value", at)
        field, op = match["field"] or "text", match["op"] or ":"
        negated = match["minus"] is not None
        terms.append(Term(_unquote(field), op, _unquote(match["value"]), negated, at, group))
        or_at, at = None, match.end()
    if or_at is not None:
        raise BadFilter("OR stands between two terms", or_at)
    return terms


def _unquote(text: str) -> str:
    """Read a quoted text as JSON does; where it is none, a backslash only protects what follows."""
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return re.sub(r"\\(.)", r"\1", text[1:-1])


def quote(text: str) -> str:
    """Write a field or a value so that `parse` reads it back."""
    if text != "OR" and re.fullmatch(r'[^\s"\\:=<>!-][^\s"\\:=<>!]*', text):
        return text
    return json.dumps(text, ensure_ascii=False)


def picked_by(terms: Sequence[Term], is_input: Callable[[str], bool]) -> str:
    """Say what rows were picked by: "all", "metadata", or "outcome", whose means mislead.

    Args:
        terms: The terms of a filter.
        is_input: Says whether a field was known before the eval; any other holds what came out.
    """
    if not terms:
        return "all"
    return "metadata" if all(is_input(term.field) for term in terms) else "outcome"


def evaluate(
    terms: Sequence[Term],
    rows: int,
    get_column: Callable[[str], FilterColumn],
    search: Callable[[Term], Mask | None],
) -> Mask:
    """Evaluate a filter.

    Args:
        terms: The terms.
        rows: How many rows there are.
        get_column: Gets a column by name; HeldoutError where there is none.
        search: Finds the rows of a term that is about texts, which no column has; None for others.

    Raises:
        BadFilter: A column does not exist, or is compared with the wrong kind of value.
    """
    masks: dict[int, Mask] = {}
    # Texts last: a column that does not exist is found out before they are searched.
    for term in sorted(terms, key=lambda term: term.field in SEARCHED):
        held = search(term)
        if held is None:
            try:
                column = get_column(term.field)
            except HeldoutError as problem:
                raise BadFilter(str(problem), term.start) from None
            held = _evaluate_term(term, column)
        held = ~held if term.negated else held
        masks[term.group] = masks[term.group] & held if term.group in masks else held
    return np.logical_or.reduce([*masks.values()]) if masks else np.ones(rows, dtype=np.bool_)


def _evaluate_term(term: Term, column: FilterColumn) -> Mask:
    if column.numbers is not None:
        with np.errstate(invalid="ignore"):
            held = _compare_numbers(term, column.numbers)
        # A row without a value satisfies no condition, "unequal" included.
        return held & ~np.isnan(column.numbers)
    if term.op not in (":", "=", "!="):
        raise BadFilter(f"{term.field} has texts; compare them with : or !=", term.start)
    if column.lowered and term.op == ":":
        part = term.value.lower()
        wanted = [part in value for value in column.lowered]
    else:
        wanted = [value == term.value for value in column.values]
    assert column.codes is not None
    has_value = column.codes >= 0
    held = np.array([*wanted, False], dtype=np.bool_)[column.codes]
    return (~held & has_value) if term.op == "!=" else held


def _compare_numbers(term: Term, numbers: NDArray[np.float64]) -> Mask:
    low, dots, high = term.value.partition("..")
    if not dots or term.op not in (":", "=", "!="):
        return np.asarray(_COMPARE[term.op](numbers, _number(term, term.value)))
    held = np.ones(len(numbers), dtype=np.bool_)
    if low or not high:
        held &= numbers >= _number(term, low)
    if high:
        held &= numbers <= _number(term, high)
    return ~held if term.op == "!=" else held


def _number(term: Term, text: str) -> float:
    if term.field in OUTCOMES and text in ("yes", "no"):
        return float(text == "yes")
    try:
        number = float(text)
        if not math.isnan(number):
            return number
        raise ValueError
    except ValueError:
        wanted = "yes or no" if term.field in OUTCOMES else "a number"
        raise BadFilter(
            f"{term.field} is compared with {wanted}, got {term.value!r}", term.start
        ) from None
