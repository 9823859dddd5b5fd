"""Examples of every grader: its tests run them, and the docs show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isclose
from typing import Any

from heldout.scoring import Grade


@dataclass(frozen=True, slots=True)
class Example:
    answer: str
    target: Any
    extracted: str | None
    value: float
    why: str = ""


def wrong_rows(
    table: Iterable[Example], grade: Callable[[str, Any], Grade], *, noted: bool = False
) -> list[tuple[Example, Grade]]:
    """The rows that do not come out as they say; `noted`: or that fail without a note."""
    graded = [(example, grade(example.answer, example.target)) for example in table]
    return [
        (example, found)
        for example, found in graded
        if found.extracted != example.extracted
        or not isclose(found.value, example.value, rel_tol=1e-6, abs_tol=1e-12)
        or (noted and found.value != 1.0 and not found.note)
    ]
