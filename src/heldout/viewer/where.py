"""The filter of a table of samples: `reward<0.5 kind:"kind 2" -truncated:yes text:"refund"`.

Terms are joined by AND; a minus negates one. `parse` turns the text into terms, `evaluate` terms into
a mask over columns. Nothing here knows files or HTTP.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput

LONGEST = 2000
MOST_TERMS = 50
OUTCOMES = ("passed", "failed", "errored", "truncated")
"""Fields with the values yes and no."""
OUTCOME_FIELDS = {*OUTCOMES, "reward", "tokens", "seconds", "text", "answer", "ended_by"}
"""Rows that are picked by one of these, or by a metric, were picked by their result."""

_TERM = re.compile(
    r"""(?P<minus>-)?(?:(?P<field>[^\s:=<>!"]+)(?P<op>:|<=|>=|!=|=|<|>))?(?P<value>"(?:[^"\\]|\\.)*"|[^\s"]+)"""
)
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


@dataclass(frozen=True, slots=True)
class Column:
    """One value per row: numbers, or texts as codes into a list of distinct values."""

    numbers: NDArray[np.float64] | None = None
    """NaN where a row has none."""
    codes: NDArray[np.int32] | None = None
    """-1 where a row has none."""
    values: Sequence[str] = ()


class BadFilter(InvalidInput):
    """A filter that cannot be parsed; `at` is where."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def parse(text: str) -> list[Term]:
    """Parse a filter.

    Args:
        text: The filter.

    Returns:
        Its terms.

    Raises:
        BadFilter: It is too long, or a quote is not closed.
    """
    if len(text) > LONGEST:
        raise BadFilter(f"a filter has at most {LONGEST} characters", LONGEST)
    terms: list[Term] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        match = _TERM.match(text, at)
        if match is None or (match.end() < len(text) and not text[match.end()].isspace()):
            raise BadFilter(f"cannot read {text[at : at + 40]!r}: close the quotes", at)
        value = match["value"]
        if value.startswith('"'):
            value = re.sub(r"\\(.)", r"\1", value[1:-1])
        field, op = match["field"] or "text", match["op"] or ":"
        terms.append(Term(field, op, value, match["minus"] is not None, at))
        at = match.end()
    if len(terms) > MOST_TERMS:
        raise BadFilter(f"a filter has at most {MOST_TERMS} terms", terms[MOST_TERMS].start)
    return terms


def picked_by(terms: Sequence[Term]) -> str:
    """Say what rows were picked by: "all", "metadata", or "outcome", whose means mislead."""
    if not terms:
        return "all"
    outcome = any(t.field in OUTCOME_FIELDS or t.field.startswith("metric.") for t in terms)
    return "outcome" if outcome else "metadata"


def evaluate(
    terms: Sequence[Term],
    rows: int,
    get_column: Callable[[str], Column],
    search: Callable[[str], Mask],
) -> Mask:
    """Evaluate a filter.

    Args:
        terms: The terms.
        rows: How many rows there are.
        get_column: Gets a column by name; InvalidInput where there is none.
        search: Finds the rows whose conversation contains a text.

    Returns:
        Which rows satisfy all terms.

    Raises:
        BadFilter: A column does not exist, or is compared with the wrong kind of value.
    """
    mask = np.ones(rows, dtype=np.bool_)
    for term in terms:
        if term.field == "text":
            found = search(term.value)
        else:
            try:
                column = get_column(term.field)
            except InvalidInput as problem:
                raise BadFilter(str(problem), term.start) from None
            found = _evaluate_term(term, column)
        mask &= ~found if term.negated else found
    return mask


def _evaluate_term(term: Term, column: Column) -> Mask:
    if column.numbers is not None:
        with np.errstate(invalid="ignore"):
            found: Mask = _COMPARE[term.op](column.numbers, _number(term))
        # A row without a value satisfies no condition, "unequal" included.
        return found & ~np.isnan(column.numbers)
    if term.op not in (":", "=", "!="):
        raise BadFilter(f"{term.field} has texts; compare them with : or !=", term.start)
    if term.field == "id" and term.op == ":":
        wanted = [term.value.lower() in value.lower() for value in column.values]
    else:
        wanted = [value == term.value for value in column.values]
    assert column.codes is not None
    has_value = column.codes >= 0
    found = np.array([*wanted, False], dtype=np.bool_)[column.codes]
    return (~found & has_value) if term.op == "!=" else found


def _number(term: Term) -> float:
    if term.field in OUTCOMES and term.value in ("yes", "no"):
        return float(term.value == "yes")
    try:
        return float(term.value)
    except ValueError:
        wanted = "yes or no" if term.field in OUTCOMES else "a number"
        raise BadFilter(
            f"{term.field} is compared with {wanted}, got {term.value!r}", term.start
        ) from None
