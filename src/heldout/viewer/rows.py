"""Which rows of a run a filter holds for, in an order.

Filters and orders are computed over columns; texts of conversations are searched in the journal.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from heldout.store.journal import decode_result
from heldout.store.jsonl import open_to_read
from heldout.types import EvalResult
from heldout.viewer.fields import RunFields
from heldout.viewer.filter import BadFilter, FilterColumn, Mask, Term, evaluate, parse
from heldout.viewer.item_lines import ItemNumbers
from heldout.viewer.search import contains_text, find_lines, find_text

MOST_TRIED, MOST_TRIED_BYTES = 2_000, 8 << 20
"""Lines that are decoded to find the first rows with a text, and their bytes."""


class Rows:
    """The rows of a run, to pick from.

    Args:
        journal: The run's results.
        fields: The fields of its rows.
    """

    def __init__(self, journal: Path, fields: RunFields) -> None:
        self._journal, self._fields = journal, fields
        self.select = lru_cache(8)(self._select)
        self._order = lru_cache(8)(self._compute_order)
        self._search = lru_cache(8)(self._search_journal)
        self._search_answers = lru_cache(8)(self._find_answers)

    def __len__(self) -> int:
        """How many rows there are: one per item."""
        return len(self._fields.rewards)

    def _select(self, where: str, sort: str) -> ItemNumbers:
        """Pick the items that a filter holds for, in an order.

        Args:
            where: The filter.
            sort: A field, with a minus before it for the largest first; "" is dataset order.
        """
        terms = parse(where)
        if not terms and not sort:
            return np.arange(len(self), dtype=np.int64)
        held = evaluate(terms, len(self), self._fields.column, self._search_term)
        if not sort:
            return np.flatnonzero(held)
        order = self._order(sort)
        return order[held[order]]

    def select_first(self, where: str, count: int) -> ItemNumbers | None:
        """Pick the first items that a filter by texts holds for, without a search of the journal.

        Returns:
            None where there is no text to search for, or where the first lines have fewer items:
            then a search is faster.
        """
        terms = parse(where)
        texts = [term for term in terms if self._is_searched(term)]
        if not texts or terms[-1].group:
            return None
        columns = [term for term in terms if term not in texts]
        held = evaluate(columns, len(self), self._fields.column, lambda _: None)
        first = np.flatnonzero(held)[:MOST_TRIED]
        found: list[int] = []
        read = 0
        with open_to_read(self._journal) as file:
            for item in first.tolist():
                line = self._fields.lines.read(file, item)
                read += len(line)
                result = decode_result(self._journal, item + 2, line)
                if all(_holds(term, result) != term.negated for term in texts):
                    found.append(item)
                if len(found) == count:
                    return np.array(found, dtype=np.int64)
                if read > MOST_TRIED_BYTES:
                    break
        return None

    def _compute_order(self, sort: str) -> ItemNumbers:
        """Sort all items, those without a value last, equal ones in dataset order."""
        column = self._fields.column(sort.removeprefix("-"))
        return order_by(column, descending=sort.startswith("-"))

    def _is_searched(self, term: Term) -> bool:
        """Say whether a term is about texts of conversations."""
        if term.field == "text":
            return True
        if term.field != "answer" or "answer" in self._fields.names:
            return False
        if term.op not in (":", "="):
            raise BadFilter("answers are searched with : or =", term.start)
        return True

    def _search_term(self, term: Term) -> Mask | None:
        """Evaluate a term that is about texts of conversations; None for any other."""
        if not self._is_searched(term):
            return None
        if term.field == "text":
            return self._search(term.value)
        return self._search_answers(term.value, is_whole=term.op == "=")

    def _search_journal(self, text: str) -> Mask:
        """Find the items whose question, conversation, target or error contains a text."""
        return self._fields.lines.items_at(find_text(self._journal, text))

    def _find_answers(self, text: str, *, is_whole: bool) -> Mask:
        """Find the items whose answer contains a text, or is it."""

        def holds(line: bytes) -> bool:
            return _has_answer(decode_result(self._journal, 0, line), text, is_whole=is_whole)

        return self._fields.lines.items_at(find_lines(self._journal, text, holds))


def _has_answer(result: EvalResult, text: str, *, is_whole: bool) -> bool:
    answer = result.trajectory.answer
    return answer == text if is_whole else text.lower() in answer.lower()


def _holds(term: Term, result: EvalResult) -> bool:
    """Say whether a result has the text of a term, which may be negated."""
    if term.field == "text":
        return contains_text(result, term.value)
    return _has_answer(result, term.value, is_whole=term.op == "=")


def order_by(column: FilterColumn, *, descending: bool) -> ItemNumbers:
    """Sort rows by a column, those without a value last, equal ones in their order."""
    if column.numbers is not None:
        keys, missing = column.numbers, np.isnan(column.numbers)
    else:
        assert column.codes is not None
        ranks = np.empty(len(column.values) + 1)
        ranks[np.argsort(np.array(column.values, dtype=object), kind="stable")] = np.arange(
            len(column.values)
        )
        keys, missing = ranks[column.codes], column.codes < 0
    keys = np.where(missing, np.inf, -keys if descending else keys)
    return np.argsort(keys, kind="stable")
