"""Rewards of a curve's points as a table, points x samples, which verdicts are made of."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from heldout.errors import InvalidInput
from heldout.stats.intervals import Floats
from heldout.stats.sequential import ReferenceComparison
from heldout.stats.summary import value_of_errors
from heldout.training.curve.points import CurvePoint

Bounds = tuple[float, float]
Steps = tuple[int, int, int, int]
"""First and last step of the older points, and of the newer ones."""

LARGEST = 1e100
"""Largest reward: squares of larger ones overflow."""

PointKey = tuple[str, int, str, float, int]


def key_of(point: CurvePoint) -> PointKey:
    """Return a key that differs if a step is measured again."""
    return point.session, point.step, point.time, point.seconds, point.asked


class _PointRow(NamedTuple):
    rewards: Floats
    """Of each sample; NaN where it has no score."""
    errored: Floats
    """Share of its items that errored; NaN if it was not run."""
    errors: int
    low: float
    high: float
    """Minimum and maximum reward; inf and -inf without any."""


class Rewards:
    """Rewards of points, as rows over samples in the order in which samples were first seen.

    Outcomes are needed once: a known point may be passed again without them.
    """

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rows: dict[PointKey, _PointRow] = {}

    def add(self, point: CurvePoint) -> None:
        """Add the rewards of a point; InvalidInput if one is too large to be judged."""
        if not point.has_result or not point.outcomes or key_of(point) in self._rows:
            return
        scores = np.array([outcome.reward for outcome in point.outcomes], dtype=np.float64)
        low = float(np.fmin.reduce(scores, initial=math.inf))
        high = float(np.fmax.reduce(scores, initial=-math.inf))
        if max(-low, high) > LARGEST:
            raise InvalidInput(
                f"a reward at step {point.step} is {max(-low, high):.3g}: too large to judge"
            )
        ids = (outcome.copy_of or outcome.id for outcome in point.outcomes)
        columns = np.array([self._columns.setdefault(id, len(self._columns)) for id in ids])
        size, is_error = len(self._columns), np.isnan(scores)
        items = np.bincount(columns, minlength=size)
        errors = np.bincount(columns[is_error], minlength=size)
        sums = np.bincount(columns[~is_error], weights=scores[~is_error], minlength=size)
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
            rewards, errored = sums / (items - errors), errors / items
        self._rows[key_of(point)] = _PointRow(rewards, errored, int(is_error.sum()), low, high)

    def judged(self, points: Iterable[CurvePoint]) -> list[CurvePoint]:
        """Return the points that have rewards, which must have one label."""
        results = [
            point
            for point in points
            if point.has_result and (point.outcomes or key_of(point) in self._rows)
        ]
        labels = sorted({point.label for point in results})
        if len(labels) > 1:
            raise InvalidInput(
                f"the points have several labels: {', '.join(labels)}; pass one curve at a time"
            )
        return results

    def table(self, points: Sequence[CurvePoint], bounds: Bounds | None = None) -> RewardTable:
        """Return the table of these points; `bounds` are the possible rewards, if known."""
        for point in points:
            self.add(point)
        rows = [self._rows[key_of(point)] for point in points]
        scored, errored = np.full((2, len(rows), len(self._columns)), np.nan)
        for i, row in enumerate(rows):
            scored[i, : len(row.rewards)] = row.rewards
            errored[i, : len(row.errored)] = row.errored
        return RewardTable(
            points,
            scored,
            errored,
            [row.errors for row in rows],
            np.minimum.accumulate(np.array([row.low for row in rows])),
            np.maximum.accumulate(np.array([row.high for row in rows])),
            bounds,
        )


@dataclass(frozen=True, slots=True)
class RewardTable:
    """Rewards, points x samples. Methods with an index use only rows up to it."""

    points: Sequence[CurvePoint]
    scored: Floats
    """Mean reward of each sample; NaN if it errored."""
    errored: Floats
    """Share of a sample's items that errored; NaN if it was not run."""
    error_counts: list[int]
    """Errored items at each row."""
    lows: Floats
    highs: Floats
    given_bounds: Bounds | None

    def counted(self, index: int) -> Floats:
        """Return the rewards up to a row, with errored items as `errored_as`."""
        scored, errored = np.nan_to_num(self.scored[: index + 1]), self.errored[: index + 1]
        return np.asarray(scored * (1 - errored) + self.errored_as(index) * errored)

    def errors(self, first: int, last: int) -> int:
        """Return the number of errored items at these rows."""
        return sum(self.error_counts[first : last + 1])

    def errored_as(self, index: int) -> float:
        """Return the reward that an errored item counts as; no reward is lower."""
        worth = value_of_errors(np.array([self.lows[index], self.highs[index]]))
        return worth if self.given_bounds is None else max(worth, self.given_bounds[0])

    def bounds(self, index: int) -> Bounds | None:
        """Return the bounds given; else (0, 1) if all rewards seen lie there; else None."""
        if self.given_bounds is not None:
            return self.given_bounds
        return (0.0, 1.0) if self.lows[index] >= 0 and self.highs[index] <= 1 else None

    def steps_of(self, comparison: ReferenceComparison | None) -> Steps | None:
        """Return the steps of a comparison."""
        if comparison is None:
            return None
        (first, last), (newer, newest) = comparison.old, comparison.new
        steps = [point.step for point in self.points]
        return steps[first], steps[last], steps[newer], steps[newest]
