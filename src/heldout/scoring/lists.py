"""Lists against lists: in order, as sets, or aligned span by span as DROP does.

The items of an answer are normalised like any text (`texts.tokens`). They are looked for in what
is stated, else in the whole text, if that has at most 20 x `TOKEN_LIMIT` characters. Where `and`
may join the last two items or belong to one (`Queen, Simon and Garfunkel`), or `100,200` may be one
number or two, the reading that suits the target counts.

The alignment of spans is optimal up to `SPAN_LIMIT` on either side and greedy beyond (the note says
so); all else is linear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from heldout.errors import InvalidInput
from heldout.scoring._old_answers import answer_text, last_statement, shown
from heldout.scoring.answers import last_code_block
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.texts import TOKEN_LIMIT, rouge_l, token_f1, tokens

SPAN_LIMIT = 32

Spans = Sequence[str | int | float]

# --- Items as they are written ------------------------------------------------------------------

_ITEM = re.compile(r"\s*(?:[-*•‣◦–]|\(?\d{1,3}[.)])\s+")
_AND = re.compile(r"\s(?:and|und|et|y|&)\s", re.IGNORECASE)
_LEADING = re.compile(r"(?:and|und|et|&)\s", re.IGNORECASE)
_SPACES = re.compile(r"[^\S\n]{2,}")
_EMPTY = re.compile(r"(?:\[\s*\]|\(\s*\)|\\?\{\s*\\?\}|\\emptyset|\\varnothing|∅)")
_HUNDREDS = re.compile(r"\d{3}(?:,\d{3})+")
_THOUSANDS = re.compile(r"[^\w,]{0,3}\d{1,3}(?:,\d{2,3})*,\d{3}(?![\d,])")
_AROUND = " \t\r.\"'`*“”"
_decode = msgspec.json.Decoder(list[str | int | float]).decode


def split_list(text: str, *, conjunctions: bool = True) -> tuple[str, ...]:
    """The items of a list as written: JSON, lines with bullets or numbers, or commas and `and`.

    Where some lines have bullets or numbers, the others are no items. Without `conjunctions`, an
    `and` is part of its item.
    """
    text = text.strip()
    if "```" in text and (block := (last_code_block(text) or "").strip()):
        text = block
    if text[:1] == "[":
        try:
            return tuple(str(item) for item in _decode(text.encode("utf-8", "replace")))
        except (msgspec.DecodeError, RecursionError):
            pass
    if text[:1] in "[({" and text[-1:] in "])}":
        text = text[1:-1]
    if "\n" in text:
        lines = text.split("\n")
        marked = [line[mark.end() :] for line in lines if (mark := _ITEM.match(line))]
        return tuple(line.strip() for line in marked or lines if line.strip())
    parts = text.split(";") if ";" in text else _at_commas(text)
    if conjunctions:
        last = parts.pop().strip()
        leading = _LEADING.match(last) if parts else None  # "x, y, and z"
        # In "x, y and z" the last one is the only one that joins two items.
        parts += [last[leading.end() :]] if leading else _AND.split(last, 1 if parts else 0)
    return tuple(item for part in parts if (item := part.strip(_AROUND)))


def _at_commas(text: str) -> list[str]:
    """Split at commas, except those that separate thousands."""
    parts: list[str] = []
    for part in re.split(r",\s+|,(?=\D)", text):
        if "," in part and not _THOUSANDS.match(part):
            parts += part.split(",")  # 1,2,3
        else:
            parts.append(part)
    return parts


Readings = tuple[tuple[str, ...], ...]


def _found(answer: str | None) -> Readings | Grade:
    """The items of an answer, in the ways they can be read; or why it has none."""
    text = answer_text(answer)
    if text is None:
        return NO_ANSWER
    if "  " in text or "\t" in text:
        text = _SPACES.sub(" ", text)  # so that blank space can hide nothing
    statement = last_statement(text)
    if statement:
        if statement.value is None:
            return NO_ANSWER
        # A list below `Answer:` goes on to its own end.
        line = text.find("\n", statement.start) if statement.kind == "words" else -1
        head = text[statement.start : line].rstrip("*_ \t") if line >= 0 else ""
        below = text[line:].strip() if head.endswith((":", "：")) else ""
        text = _first_list(below) if _ITEM.match(below) else statement.value
    text = text.strip()
    if len(text) > 20 * TOKEN_LIMIT:
        return Grade(0.0, shown(text), f"a list has at most {20 * TOKEN_LIMIT} characters")
    if _EMPTY.fullmatch(text):
        return ((),)
    items = split_list(text)
    if not items:
        return Grade(0.0, shown(text), "no items; an empty list is []")
    if _HUNDREDS.fullmatch(text):
        return items, tuple(text.split(","))
    if "\n" in text or not _AND.search(text):
        return (items,)
    return items, split_list(text, conjunctions=False)


def _first_list(text: str) -> str:
    """The lines of a list up to the first line at the margin that is no item."""
    lines = text.split("\n")
    for place, line in enumerate(lines):
        if line.strip() and not line[0].isspace() and not _ITEM.match(line):
            return "\n".join(lines[:place])
    return text


# --- Lists and sets -----------------------------------------------------------------------------

Compare = Callable[[Sequence[str], Sequence[str]], float]


@grader(version=1)
def grade_list(answer: str | None, target: Spans, *, partial: bool = False) -> Grade:
    """1.0 where the items are the target's, normalised, in the same order.

    `partial` gives the F1 of the longest common subsequence of items instead.
    """

    def same(found: Sequence[str], wanted: Sequence[str]) -> float:
        return float(list(found) == list(wanted))

    return _graded(answer, target, _both_empty(rouge_l) if partial else same)


@grader(version=1)
def grade_set(answer: str | None, target: Spans, *, partial: bool = False) -> Grade:
    """1.0 where the items are the target's, normalised, in any order and however often.

    `partial` gives the F1 of the two sets instead.
    """

    def same(found: Sequence[str], wanted: Sequence[str]) -> float:
        return float(set(found) == set(wanted))

    def overlap(found: Sequence[str], wanted: Sequence[str]) -> float:
        return token_f1(sorted(set(found)), sorted(set(wanted)))

    return _graded(answer, target, overlap if partial else same)


def _both_empty(compare: Compare) -> Compare:
    """Two lists of nothing are the same list."""
    return lambda found, wanted: compare(found, wanted) if found or wanted else 1.0


def _graded(answer: str | None, target: Any, compare: Compare) -> Grade:
    if not isinstance(target, list | tuple):
        raise InvalidInput(f"the target (ground_truth) is a list of texts, got {target!r:.100}")
    wanted = [_folded(item) for item in _texts(target)]
    readings = _found(answer)
    if isinstance(readings, Grade):
        return readings
    graded = [(compare([_folded(one) for one in items], wanted), items) for items in readings]
    value, items = max(graded, key=lambda pair: pair[0])
    return Grade(value, shown("; ".join(items)))


def _folded(item: str) -> str:
    return " ".join(tokens(item))


def _texts(target: Sequence[Any]) -> list[str]:
    """The items of a target as texts; a number is its digits."""
    items: list[str] = []
    for item in target:
        number = isinstance(item, int | float) and not isinstance(item, bool)
        if number and math.isfinite(item):
            items.append(repr(item))
        elif isinstance(item, str) and item.strip():
            items.append(item)
        else:
            raise InvalidInput(
                f"each item of the target (ground_truth) is a text, not empty, or a number, got "
                f"{item!r:.100}"
            )
    return items


# --- DROP ---------------------------------------------------------------------------------------


@grader(version=1)
def grade_spans(
    answer: str | None, target: Spans | Sequence[Spans], *, exact: bool = False
) -> Grade:
    """DROP's F1: spans aligned one to one so that their token F1 is largest, over the longer list.

    `target` is the list of spans, or several such lists that are all right. Spans with different
    numbers do not match at all. `exact` gives DROP's exact match instead: 1.0 where both have the
    same normalised spans, in any order.
    """
    lists = _span_lists(target)
    readings = _found(answer)
    if isinstance(readings, Grade):
        return readings
    measure = span_match if exact else span_f1
    graded = [(measure(items, wanted), items) for items in readings for wanted in lists]
    value, items = max(graded, key=lambda pair: pair[0])
    aligned_greedily = not exact and len(items) > SPAN_LIMIT
    note = f"more than {SPAN_LIMIT} spans are aligned greedily" if aligned_greedily else ""
    return Grade(value, shown("; ".join(items)), note)


def _span_lists(target: Any) -> list[list[str]]:
    if isinstance(target, list | tuple) and target:
        nested = [one for one in target if isinstance(one, list | tuple)]
        if not nested:
            return [_texts(target)]
        if len(nested) == len(target) and all(nested):
            return [_texts(one) for one in nested]
    raise InvalidInput(
        "the target (ground_truth) is a list of spans, or a list of such lists, none empty, got "
        f"{target!r:.100}"
    )


def span_match(found: Sequence[str], wanted: Sequence[str]) -> float:
    """1.0 where both have the same normalised spans, and as many."""
    same = {_folded(one) for one in found} == {_folded(one) for one in wanted}
    return float(same and len(found) == len(wanted))


def span_f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    """The mean token F1 of spans under the best one-to-one alignment, over the longer list."""
    if not found or not wanted:
        return float(not found and not wanted)
    ours = [tokens(span)[:TOKEN_LIMIT] for span in found[: 8 * SPAN_LIMIT]]
    theirs = [tokens(span)[:TOKEN_LIMIT] for span in wanted[: 8 * SPAN_LIMIT]]
    table = [[_span_value(one, other) for other in theirs] for one in ours]
    total = _aligned(table) if max(len(ours), len(theirs)) <= SPAN_LIMIT else _greedy(table)
    return total / max(len(found), len(wanted))


_A_NUMBER = re.compile(r"-?\d+(?:/\d+)?%?")  # as tokens have it


def _span_value(one: list[str], other: list[str]) -> float:
    numbers = {word for word in other if _A_NUMBER.fullmatch(word)}
    if numbers and not numbers & set(one):
        return 0.0
    return token_f1(one, other)


def _greedy(table: list[list[float]]) -> float:
    pairs = sorted(
        ((value, i, j) for i, row in enumerate(table) for j, value in enumerate(row) if value),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    rows: set[int] = set()
    columns: set[int] = set()
    total = 0.0
    for value, i, j in pairs:
        if i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            total += value
    return total


def _aligned(table: list[list[float]]) -> float:
    """The largest sum of values with no row and no column used twice.

    Rows are assigned one after the other, each along the cheapest path of reassignments, with
    prices on rows and columns that keep all reduced costs at 0 or more.
    """
    if len(table) > len(table[0]):
        table = [list(column) for column in zip(*table, strict=True)]
    height, width = len(table), len(table[0])
    row_price, column_price = [0.0] * (height + 1), [0.0] * (width + 1)
    row_of = [0] * (width + 1)  # rows and columns count from 1; 0 is nobody
    for start in range(1, height + 1):
        row_of[0], column = start, 0
        cheapest, came_from = [float("inf")] * (width + 1), [0] * (width + 1)
        done = [False] * (width + 1)
        while row_of[column]:
            done[column] = True
            row, step, following = row_of[column], float("inf"), 0
            for j in range(1, width + 1):
                if done[j]:
                    continue
                cost = -table[row - 1][j - 1] - row_price[row] - column_price[j]
                if cost < cheapest[j]:
                    cheapest[j], came_from[j] = cost, column
                if cheapest[j] < step:
                    step, following = cheapest[j], j
            for j in range(width + 1):
                if done[j]:
                    row_price[row_of[j]] += step
                    column_price[j] -= step
                else:
                    cheapest[j] -= step
            column = following
        while column:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    return sum(table[row_of[j] - 1][j - 1] for j in range(1, width + 1) if row_of[j])
