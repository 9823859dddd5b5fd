"""Slicing loaded reports: `group_by` and `summarize` over any results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from heldout.summary import Summary, summarize_results
from heldout.types import EvalResult

K = TypeVar("K")


def group_by(
    results: Iterable[EvalResult], key: Callable[[EvalResult], K]
) -> dict[K, list[EvalResult]]:
    """Results by the value of `key`, groups in the order of their first result."""
    groups: dict[K, list[EvalResult]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def summarize(results: Iterable[EvalResult], *, pass_threshold: float = 0.5) -> Summary:
    """The same summary a report has, of any results (docs/semantics.md, clauses 1-7)."""
    return summarize_results(results, pass_threshold)
