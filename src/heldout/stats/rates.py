"""So many of so many, with an interval: what a share is reported as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heldout.stats.summaries import CONFIDENCE, Interval, wilson


@dataclass(frozen=True, slots=True)
class Rate:
    """`count` of `n`; no value where n is 0."""

    count: int
    n: int
    interval: Interval | None
    """None where there is no value, or nothing to tell how sure it is."""
    stderr: float | None = None

    @property
    def value(self) -> float | None:
        return self.count / self.n if self.n else None

    def as_dict(self) -> dict[str, Any]:
        around = self.interval
        return {
            "value": self.value,
            "count": self.count,
            "n": self.n,
            "ci_low": None if around is None else around.low,
            "ci_high": None if around is None else around.high,
        }


def independent_rate(count: int, n: int, confidence: float = CONFIDENCE) -> Rate:
    """Of trials that are independent: Wilson's interval."""
    return Rate(count, n, wilson(count / n, n, confidence) if n else None)
