"""The points of a curve as tables, looks x samples, in the two readings that errors have.

A look is a point with outcomes: a skip is none. Scored: a sample has the mean of its scores, and
none where all that was asked of it errored. Counted: what errored is a score of 0, or the least
reward seen where that is lower. Neither has a reward for a sample that was not run. Samples of
equal content are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.stats.summaries import Floats, Ints
from heldout.training.curve import CurvePoint

LARGEST = 1e100
"""Beyond it, squares overflow."""

Bounds = tuple[float, float]
Key = tuple[str, int, str, float, int]


def key_of(point: CurvePoint) -> Key:
    """What tells a point from one that was measured again at its step."""
    return point.session, point.step, point.time, point.seconds, point.asked


@dataclass(frozen=True, slots=True)
class _Row:
    rewards: Floats
    """Of each sample; NaN where it has no score."""
    errored: Floats
    """Which share of its items errored; NaN where it was not run."""
    items: int
    """Items that errored."""
    low: float
    high: float
    """Of the rewards; inf and -inf where there are none."""


class RewardRows:
    """The rewards of points as rows over samples, in the order in which samples were first seen.

    Outcomes are needed once: a point that is known may come without them.
    """

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rows: dict[Key, _Row] = {}
        self._places: tuple[list[str], NDArray[np.intp]] = ([], np.zeros(0, np.intp))
        """Of the ids of the last point: the next one mostly has the same."""

    def add(self, point: CurvePoint) -> None:
        if not point.has_result or not point.outcomes or key_of(point) in self._rows:
            return
        nan = math.nan
        scores = np.array(
            [nan if o.reward is None or o.error is not None else o.reward for o in point.outcomes]
        )
        wrong = np.isnan(scores)
        low = float(np.fmin.reduce(scores, initial=math.inf))
        high = float(np.fmax.reduce(scores, initial=-math.inf))
        largest = max(-low, high)
        if largest > LARGEST:
            raise InvalidInput(
                f"a reward at step {point.step} is {largest:.3g}: too large to judge"
            )
        places = self._places_of(point)
        samples = len(self._columns)
        items = np.bincount(places, minlength=samples)
        errors = np.bincount(places[wrong], minlength=samples)
        sums = np.bincount(places[~wrong], weights=scores[~wrong], minlength=samples)
        scored = items - errors
        row = np.where(scored > 0, sums / np.maximum(scored, 1), nan)
        errored = np.where(items > 0, errors / np.maximum(items, 1), nan)
        self._rows[key_of(point)] = _Row(row, errored, int(wrong.sum()), low, high)

    def _places_of(self, point: CurvePoint) -> NDArray[np.intp]:
        ids = [outcome.copy_of or outcome.id for outcome in point.outcomes]
        if ids != self._places[0]:
            columns = self._columns
            found = [columns.setdefault(id, len(columns)) for id in ids]
            self._places = ids, np.array(found, np.intp)
        return self._places[1]

    def looks(self, points: Iterable[CurvePoint]) -> list[CurvePoint]:
        """Those of them that are looks, which must be of one eval."""
        found = [
            point
            for point in points
            if point.has_result and (point.outcomes or key_of(point) in self._rows)
        ]
        labels = sorted({point.label for point in found})
        if len(labels) > 1:
            raise InvalidInput(
                f"the points are of several evals: {', '.join(labels)}; each has a curve of its own"
            )
        return found

    def tables(self, looks: Sequence[CurvePoint], bounds: Bounds | None = None) -> Tables:
        """`bounds` are the least and the largest reward there can be, where somebody knows."""
        known = []
        for point in looks:
            self.add(point)
            known.append(len(self._columns))
        rows = [self._rows[key_of(point)] for point in looks]
        return Tables(
            [point.step for point in looks],
            _stacked([row.rewards for row in rows], len(self._columns)),
            [row.errored for row in rows],
            np.array([row.items for row in rows], np.int64),
            np.minimum.accumulate(np.array([row.low for row in rows])),
            np.maximum.accumulate(np.array([row.high for row in rows])),
            known,
            bounds,
        )


class Tables:
    """Looks x samples, as they were at each look: with the samples known by then.

    What is seen is carried along from look to look: a long curve is not searched at each of them.
    """

    def __init__(
        self,
        steps: list[int],
        scored: Floats,
        errored: list[Floats],
        items: Ints,
        lows: Floats,
        highs: Floats,
        known: list[int],
        bounds: Bounds | None,
    ) -> None:
        self.steps = steps
        self._scored, self._shares, self._items = scored, errored, items
        self._lows, self._highs = lows, highs
        self._known, self._given = known, bounds
        self._ever = np.cumsum(items)
        self._counted: tuple[float, Floats] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def scored(self, look: int) -> Floats:
        return self._scored[: look + 1, : self._known[look]]

    def counted(self, look: int) -> Floats:
        """With what errored as `counted_as`; the scored one where nothing errored up to here."""
        if not self._ever[look]:
            return self.scored(look)
        worth = self.counted_as(look)
        if self._counted is None or self._counted[0] != worth:
            scored = np.where(np.isnan(self._scored), 0.0, self._scored)
            whole = scored * (1 - self._errored) + worth * self._errored
            self._counted = worth, whole
        return self._counted[1][: look + 1, : self._known[look]]

    @cached_property
    def _errored(self) -> Floats:
        return _stacked(self._shares, self._scored.shape[1])

    @property
    def errored(self) -> Floats:
        """Which share of a sample's items errored; NaN where it was not run."""
        return self._errored

    def errors(self, first: int, last: int) -> int:
        """Items that errored at these looks."""
        return int(self._items[first : last + 1].sum())

    def has_errors(self, look: int) -> bool:
        return bool(self._ever[look])

    def has_rewards(self, look: int) -> bool:
        return math.isfinite(self._lows[look])

    def seen(self, look: int) -> Bounds:
        """The least and the largest reward so far; inf and -inf where there are none."""
        return float(self._lows[look]), float(self._highs[look])

    def counted_as(self, look: int) -> float:
        """What an errored item is worth: no reward is lower."""
        worth = float(min(0.0, self._lows[look]))
        return worth if self._given is None else max(worth, self._given[0])

    def bounds(self, look: int) -> Bounds | None:
        """As given; else (0, 1) where all rewards seen lie there; else nobody knows."""
        if self._given is not None:
            return self._given
        return (0.0, 1.0) if self._lows[look] >= 0 and self._highs[look] <= 1 else None

    def range(self, look: int) -> float:
        """How far apart two rewards can be, as far as is known."""
        bounds = self.bounds(look)
        low, high = bounds or (float(self._lows[look]), float(self._highs[look]))
        return high - (min(low, self.counted_as(look)) if self.has_errors(look) else low)


def _stacked(rows: Sequence[Floats], samples: int) -> Floats:
    table = np.full((len(rows), samples), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table
