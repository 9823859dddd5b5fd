"""What a grader says: a value, and what it read the answer to be."""

from __future__ import annotations

from dataclasses import dataclass

from heldout.types import Metric


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
