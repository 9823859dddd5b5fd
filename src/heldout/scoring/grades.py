"""What a grader says: a value, what it read the answer to be, and by which rules it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from heldout.fingerprints import set_version
from heldout.types import Metric

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Grade:
    value: float
    extracted: str | None
    """What was taken for the answer; None: there was none."""
    note: str = ""
    """Why, where the value alone does not say it."""

    def metric(self, name: str, weight: float = 0.0) -> Metric:
        """As a metric, which carries what was extracted so that a person can see why."""
        seen = {"extracted": self.extracted} | ({"note": self.note} if self.note else {})
        return Metric(name, self.value, weight, seen)


NO_ANSWER = Grade(0.0, None, "no answer")
"""What every grader says where there is nothing to grade."""


def grader(version: int | Callable[[], int | str]) -> Callable[[F], F]:
    """Marks a ready-made grader. `version` goes up with every change of what it extracts or holds
    equal: reports of two versions are not compared by accident, while a change that changes no
    verdict keeps reports comparable."""

    def mark(function: F) -> F:
        set_version(function, version)
        return function

    return mark
