"""What a grader says: a value, what it read the answer to be, and by which rules it did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from heldout._fingerprint import set_version
from heldout._format import cut
from heldout.types import Metric

LONGEST_KEPT = 2000
"""Characters of what was extracted that a metric keeps: the trajectory has the rest."""

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
        read = None if self.extracted is None else cut(self.extracted, LONGEST_KEPT)
        seen = {"extracted": read} | ({"note": self.note} if self.note else {})
        return Metric(name, self.value, weight, seen, rate=0 <= self.value <= 1)


NO_ANSWER = Grade(0.0, None, "no answer")
"""What every grader says where there is nothing to grade."""


_CHECK = "__heldout_check__"


def grader(
    version: int | Callable[[], int | str], *, check: Callable[..., object] | None = None
) -> Callable[[F], F]:
    """Marks a ready-made grader. `version` goes up with every change of what it extracts or holds
    equal: reports of two versions are not compared by accident, while a change that changes no
    verdict keeps reports comparable. `check` is given the grader's options, as far as they are
    known, and raises for those that no answer could be graded with."""

    def mark(function: F) -> F:
        set_version(function, version)
        if check is not None:
            setattr(function, _CHECK, check)
        return function

    return mark


def check_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Before anything is paid for: a regex that is none, a package that is missing."""
    check = getattr(function, _CHECK, None)
    if check is not None:
        check(**options)
