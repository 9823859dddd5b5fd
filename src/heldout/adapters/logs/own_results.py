"""The numbers that a log gives of itself, compared with those of the run that is made of it.

An import takes the samples, and computes everything from them. What the package had computed is
another statement about the same eval: where the two differ, either the package counts otherwise
(errors, epochs, values), or the log contradicts itself. Both are said, with the cause where the
samples show it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from heldout.stats.summary import Summary
from heldout.types import EvalResult

REDUCERS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "max": max,
    "min": min,
    "median": statistics.median,
    "mode": statistics.mode,
}
"""Ways to make one number of a sample's attempts, by Inspect's names."""


@dataclass(frozen=True, slots=True)
class OwnResult:
    """A number in a log's own results, which should be the mean of a metric.

    Attributes:
        name: What the log calls it.
        value: The number.
        metrics: Names under which its attempts may have the metric; none for the reward.
        reducer: How a sample's attempts become one number; None where each counts.
        unlike: Why it need not be the mean of the values in the log; None where it must.
    """

    name: str
    value: float
    metrics: tuple[str, ...] = ()
    reducer: str | None = None
    unlike: str | None = None


@dataclass(slots=True)
class _Values:
    """The values of a metric, by sample."""

    by_sample: dict[int, list[float]] = field(default_factory=dict)
    unanswered: int = 0
    """How many of them are 0 as the policy gave no answer."""

    @property
    def count(self) -> int:
        return sum(map(len, self.by_sample.values()))

    @property
    def total(self) -> float:
        return math.fsum(value for values in self.by_sample.values() for value in values)


class OwnResults:
    """Collects the values that a log's own results are of, and compares."""

    def __init__(self, results: Sequence[OwnResult]) -> None:
        """Make room for the values of each result."""
        self._results = [(own, _Values()) for own in results]

    def add(self, index: int, result: EvalResult) -> None:
        """Take the values of an attempt; one that errored has none."""
        if not result.ok:
            return
        metrics = {metric.name: metric for metric in result.score.metrics}
        for own, values in self._results:
            if own.metrics:
                metric = next((metrics[name] for name in own.metrics if name in metrics), None)
            else:
                metric = next((m for m in result.score.metrics if m.weight), None)
            if metric is not None:
                value = float(metric.value) if own.metrics else result.score.reward
                values.by_sample.setdefault(index, []).append(value)
                values.unanswered += value == 0 and "reason" in metric.metadata

    def compare(self, summary: Summary) -> dict[str, Any]:
        """Return how many results were compared, and those that are other numbers here.

        Args:
            summary: Of the run, which has a mean.
        """
        differ, compared = [], 0
        for own, values in self._results:
            if not values.by_sample:  # it is of a metric that no attempt has
                continue
            compared += 1
            # A metric is over the items that have it, the reward over all.
            n = values.count if own.metrics else summary["n"]
            here = values.total / n
            if not _equal(own.value, here):
                why = _explain(own, values, n, summary["n"])
                differ.append({"name": own.name, "log": own.value, "run": here, "why": why})
        return {"compared": compared, "differ": differ}


def _equal(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def _explain(own: OwnResult, values: _Values, n: int, asked: int) -> str:
    """Say why a log's number is another one than the mean over `n` of the attempts.

    A way of counting is called the cause only where it gives the log's number.
    """
    without = asked - values.count
    missing = f"of {asked} attempts, {without} errored or gave no value"
    if values.unanswered:
        missing += f", and {values.unanswered} count as 0 for want of an answer"
    over = round(values.total / own.value) if own.value else 0
    # Of 3 right answers 0.6 is a mean, too, over 5 attempts that are nowhere: only numbers of
    # attempts that leaving out or counting in can give are an explanation.
    plausible = values.count - values.unanswered <= over <= asked
    if plausible and over and _equal(own.value, values.total / over):
        return f"there it is over {over} attempts, here over {n}: {missing}"
    reduce = REDUCERS.get(own.reducer or "")
    if reduce is not None and values.by_sample:
        reduced = statistics.fmean(map(reduce, values.by_sample.values()))
        if _equal(own.value, reduced):
            return f"the log takes the {own.reducer} of a sample's attempts; here each one counts"
    reasons = [] if own.unlike is None else [own.unlike]
    if own.reducer not in (None, "mean"):
        reasons.append(f"the log reduces a sample's attempts by {own.reducer!r}")
    if not reasons and (without or values.unanswered):
        reasons.append(f"{missing}, which the log may count otherwise")
    if not reasons:
        reasons.append("its samples do not give this number: one of the two was changed later")
    return "; ".join(reasons)
