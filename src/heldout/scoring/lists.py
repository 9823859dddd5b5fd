"""Graders that compare lists: in order, as sets, or as DROP compares spans."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from heldout.errors import InvalidInput
from heldout.scoring.answers import last_code_block, visible, visible_answer
from heldout.scoring.grades import NO_ANSWER, Grade, grader
from heldout.scoring.text import common_length, stated_text, tokens

MAX_SPANS = 100  # an answer of more is a 0: aligning them takes the cube of the time

Spans = Sequence[str | int | float]

# --- Items as they are written ------------------------------------------------------------------

_BULLET = re.compile(r"\s*(?:[-*•‣◦–]|\(?\d{1,3}[.)])\s+")
_AND = re.compile(r"\s(?:and|&)\s", re.IGNORECASE)
_EMPTY = re.compile(r"\[\s*\]|\(\s*\)|\\?\{\s*\\?\}|\\emptyset|\\varnothing|∅")
_THOUSANDS = re.compile(r"[^\w,]{0,3}\d{1,3}(?:,\d{3})+(?![\d,])")
_decode = msgspec.json.Decoder(list[str | int | float]).decode


def split_list(text: str, *, conjunctions: bool = True) -> tuple[str, ...]:
    """Split a list into its items: JSON, lines with bullets or numbers, or commas and `and`."""
    text = text.strip()
    if "```" in text and (block := (last_code_block(text) or "").strip()):
        text = block
    if text[:1] == "[":
        try:
            return tuple(str(item) for item in _decode(text.encode("utf-8", "replace")))
        except msgspec.DecodeError:
            pass
    if text[:1] in "[({" and text[-1:] in "])}":
        text = text[1:-1]
    if "\n" in text:
        lines = text.split("\n")
        marked = [line[bullet.end() :] for line in lines if (bullet := _BULLET.match(line))]
        return tuple(line.strip() for line in marked or lines if line.strip())
    parts = text.split(";") if ";" in text else _split_at_commas(text)
    if conjunctions:
        *first, last = parts
        # In "x, y and z" the last one is the only one that joins two items.
        last = last.strip().removeprefix("and ") if first else last
        parts = [*first, *_AND.split(last, 1 if first else 0)]
    return tuple(item for part in parts if (item := part.strip(" \t\r.\"'`*“”")))


def _split_at_commas(text: str) -> list[str]:
    """Split at commas, except those that separate thousands."""
    parts: list[str] = []
    for part in re.split(r",\s+|,(?=\D)", text):
        parts += [part] if _THOUSANDS.match(part) else part.split(",")
    return parts


def _grade_best(answer: str | None, measure: Callable[[tuple[str, ...]], float]) -> Grade:
    """Grade the items of an answer, read in the way that suits the target best."""
    seen = visible_answer(answer)
    if seen is None:
        return NO_ANSWER
    text, problem = stated_text(seen)
    if text is None:
        return Grade(0.0, None, problem)
    readings = [split_list(text), split_list(text, conjunctions=False)]
    if re.fullmatch(r"\d{3}(?:,\d{3})+", text):
        readings.append(tuple(text.split(",")))
    if _EMPTY.fullmatch(text.strip()):
        readings = [()]
    elif () in readings:
        return Grade(0.0, text, "no items; an empty list is []")
    values = {items: measure(items) for items in dict.fromkeys(readings)}
    best = max(values, key=values.__getitem__)
    return Grade(values[best], "; ".join(best))


def _texts(target: Any) -> list[str]:
    """Return the items of a target as texts; a number is its digits."""
    items = target if isinstance(target, list | tuple) else [None]
    for item in items:
        is_item = isinstance(item, str | int | float) and not isinstance(item, bool)
        if not is_item or not visible(str(item)).strip():
            raise InvalidInput(
                "the target (ground_truth) must be a list of texts, none empty, or numbers, got "
                f"{target!r:.100}"
            )
    return [visible(str(item)) for item in items]


# --- Lists and sets -----------------------------------------------------------------------------


@grader(version=7)
def grade_list(answer: str | None, target: Spans, *, partial: bool = False) -> Grade:
    """Grade 1 if the answer lists the target's items, in the same order.

    Reads the stated answer, or the whole reply if it states none: JSON, lines with bullets or
    numbers, or items separated by commas and `and`. Items are compared as in `grade_match`. If
    `and` could join two items or be part of one, or `100,200` could be one number or two, the
    reading that matches the target counts. `[]` is the empty list.

    Args:
        answer: The reply.
        target: The items.
        partial: Grade by the F1 of the longest common subsequence of items instead.

    Returns:
        1.0 if the lists are equal, else 0.0; `extracted` has the items.

    Raises:
        InvalidInput: The target is not a list of texts or numbers.
    """
    return _grade_items(answer, target, list, common_length if partial else None)


@grader(version=7)
def grade_set(answer: str | None, target: Spans, *, partial: bool = False) -> Grade:
    """Grade 1 if the answer lists the target's items, in any order; repeated items count once.

    Items are read as in `grade_list`.

    Args:
        answer: The reply.
        target: The items.
        partial: Grade by the F1 of the two sets instead.

    Returns:
        1.0 if the sets are equal, else 0.0; `extracted` has the items.

    Raises:
        InvalidInput: The target is not a list of texts or numbers.
    """
    return _grade_items(
        answer, target, set, (lambda ours, theirs: len(ours & theirs)) if partial else None
    )


def _grade_items(
    answer: str | None,
    target: Spans,
    collect: Callable[..., Any],
    count_common: Callable[..., int] | None,
) -> Grade:
    reference = collect(" ".join(tokens(item)) for item in _texts(target))

    def measure(items: tuple[str, ...]) -> float:
        prediction = collect(" ".join(tokens(item)) for item in items)
        if prediction == reference or count_common is None:
            return float(prediction == reference)
        return 2 * count_common(prediction, reference) / (len(prediction) + len(reference))

    return _grade_best(answer, measure)


# --- DROP ---------------------------------------------------------------------------------------

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@grader(version=7)
def grade_spans(
    answer: str | None, target: Spans | Sequence[Spans], *, exact: bool = False
) -> Grade:
    """Grade spans as DROP's evaluation script does: F1 under the best one-to-one alignment.

    Spans are read as `grade_list` reads items, then normalised, aligned and compared as in DROP's
    script, but the F1 is not rounded to two decimals. Spans with different numbers do not match,
    and the sum is divided by the length of the longer list.

    Args:
        answer: The reply.
        target: The correct spans, or several such lists: the best score counts.
        exact: Grade by DROP's exact match instead: 1.0 if both have the same normalised spans, and
            equally many.

    Returns:
        The F1; `extracted` has the spans.

    Raises:
        InvalidInput: The target is not a list of spans, or of such lists.
    """
    is_nested = isinstance(target, list | tuple) and isinstance((*target, "")[0], list | tuple)
    references = [_texts(spans) for spans in (target if is_nested else [target])]
    if not all(references):
        raise InvalidInput("the target (ground_truth) has a list without any span")
    compare = span_match if exact else span_f1
    return _grade_best(answer, lambda spans: max(compare(spans, other) for other in references))


def normalise_span(text: str) -> str:
    """Normalise a span word by word, as DROP's script does."""
    words = (_normalise_word(word) for word in re.split(r"[ -]", text.lower()))
    return " ".join(word for word in words if word)


def _normalise_word(word: str) -> str:
    if _is_number(word):
        return str(float(word))
    bare = word.translate(_PUNCTUATION)
    bare = str(float(bare)) if _is_number(bare) else bare
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def span_match(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return 1.0 where both have the same normalised spans, and as many."""
    same = set(map(normalise_span, prediction)) == set(map(normalise_span, reference))
    return float(same and len(prediction) == len(reference))


def span_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """Return the mean F1 of spans under the best one-to-one alignment, over the longer list."""
    if not prediction or len(prediction) > MAX_SPANS:
        return 0.0
    ours = [set(normalise_span(span).split()) for span in prediction]
    theirs = [set(normalise_span(span).split()) for span in reference]
    table = [[_bag_f1(bag, reference_bag) for reference_bag in theirs] for bag in ours]
    return _aligned(table) / max(len(prediction), len(reference))


def _bag_f1(prediction: set[str], reference: set[str]) -> float:
    numbers = set(filter(_is_number, reference))
    if numbers and not numbers & prediction:
        return 0.0
    common = len(prediction & reference)
    precision = common / len(prediction) if prediction else 1.0
    recall = common / len(reference) if reference else 1.0
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _aligned(table: list[list[float]]) -> float:
    """Find the largest sum of values with no row and no column used twice.

    Rows are added one by one, each along the path of reassignments that gains most.
    """
    if len(table) > len(table[0]):
        table = [list(column) for column in zip(*table, strict=True)]
    row_of: dict[int, int] = {}  # by column
    total = 0.0
    for start, gains in enumerate(map(list, table)):
        came_from: dict[int, int] = {}
        is_better = True
        while is_better:
            is_better = False
            for column, row in row_of.items():
                freed = gains[column] - table[row][column]
                for other, value in enumerate(table[row]):
                    if freed + value > gains[other] + 1e-9:
                        gains[other], came_from[other] = freed + value, column
                        is_better = True
        column = max((j for j in range(len(gains)) if j not in row_of), key=gains.__getitem__)
        total += gains[column]
        while column in came_from:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
        row_of[column] = start
    return total
