"""Rewards of a curve's points as a table, points x samples, and the best eval by it.

The best one is corrected for having been picked (`heldout.stats.winner`). Verdicts are made of the
same table, in `verdicts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from heldout._core.format import interval as interval_text
from heldout._core.format import list_some, number, samples
from heldout.errors import InvalidInput
from heldout.stats import Interval, best_of
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


# --- The best eval --------------------------------------------------------------------------------

MOST_CANDIDATES = 100
"""Evals up to which the best one is corrected at every point: the cost grows with their cube, and
more so where BLAS threads find no free core."""
SEED = 0
"""Seed of the draws behind its interval: the same curve gives the same numbers."""


@dataclass(frozen=True, slots=True)
class BestPoint:
    """The eval with the highest mean reward, corrected for having been picked.

    Whether its checkpoint was saved is not known here.
    """

    step: int
    raw: float
    """Its mean as measured, with errored items; biased upwards, unless it is the only candidate."""
    estimate: float | None
    """The corrected mean; None, like the interval, if it was not computed, or if all rewards are
    equal and their bounds unknown. Of the only candidate, mean and interval of its point."""
    interval: Interval | None
    candidates: int
    """Evals that it was picked from: those with all samples compared."""
    left_out: tuple[int, ...]
    """Steps of the evals that lack some of those samples, and are not compared."""
    n: int
    """Samples compared."""
    errored: int = 0
    """Samples with an errored item at this eval."""
    errored_as: float = 0.0
    """The reward that such an item counts as."""

    def sentence(self) -> str:
        """Return the best eval as a sentence."""
        around = interval_text(self.interval.low, self.interval.high) if self.interval else None
        text = f"best so far: step {self.step}{' (before training)' * (self.step == 0)}, "
        if self.candidates == 1:
            text += f"{number(self.raw)}{f' ({around})' if around else ' as measured'}"
            text += ", the only one to pick from"
        elif self.estimate is None or around is None:
            text += f"{number(self.raw)} as measured, not corrected for picking the best of "
            text += str(self.candidates)
        else:
            text += f"{number(self.estimate)} ({around}, corrected for picking the best of "
            text += f"{self.candidates}; {number(self.raw)} as measured)"
        text += f", on {samples(self.n)}"
        if self.errored:
            with_errors = f", {self.errored} of them with errored items, counted as"
            text += f"{with_errors} {self.errored_as:g}"
        if self.left_out:
            steps = list_some([str(step) for step in self.left_out], 5, ", ")
            noun = "step" if len(self.left_out) == 1 else "steps"
            text += f"; left out, with fewer samples: {noun} {steps}"
        return text


def best_as_dict(best: BestPoint | None) -> dict[str, Any]:
    """Return the best eval so far as it is stored on a point."""
    interval = best.interval if best else None
    return {
        "best_step": best.step if best else None,
        "best_estimate": best.estimate if best else None,
        "best_ci_low": interval.low if interval else None,
        "best_ci_high": interval.high if interval else None,
        "best_text": best.sentence() if best else None,
    }


def best_checkpoint(
    points: Sequence[CurvePoint], *, bounds: Bounds | None = None, most: int | None = None
) -> BestPoint | None:
    """Find the best eval of one curve.

    Evals are compared on the samples that at least half of them have run; evals that lack some of
    those are left out and counted. Errored items count as 0, or as the minimum reward seen if that
    is lower: otherwise an eval of three good answers and 97 errors would be the best one.

    Args:
        points: One curve, from `current_points`, of one label.
        bounds: Minimum and maximum possible reward (see `CurveMonitor`).
        most: Candidates up to which the mean is corrected: the cost grows with their cube.

    Returns:
        The best eval; None if no samples can be compared.

    Raises:
        InvalidInput: The points have several labels.
    """
    rewards = Rewards()
    return pick_best(rewards.table(rewards.judged(points), bounds), most=most)


def pick_best(table: RewardTable, *, most: int | None = None) -> BestPoint | None:
    """Find the best eval of a table, as `best_checkpoint` does for points."""
    points = table.points
    last = len(points) - 1
    was_run = ~np.isnan(table.errored)
    compared = 2 * was_run.sum(axis=0) >= len(points)
    candidates = np.flatnonzero(was_run[:, compared].all(axis=1))
    count = int(compared.sum())
    if not len(candidates) or count == 0 or not math.isfinite(table.lows[last]):
        return None
    rewards, bounds = table.counted(last)[:, compared][candidates], table.bounds(last)
    means = rewards.mean(axis=1)
    place, estimate, interval = int(means.argmax()), None, None
    if len(candidates) == 1:  # nothing was picked, so nothing is corrected
        return _only_candidate(table, int(candidates[0]))
    is_few = most is None or len(candidates) <= most
    if is_few and count > 1 and (bounds or rewards.max() > rewards.min()):
        won = best_of(rewards, seed=SEED, bounds=bounds)
        place, estimate, interval = won.index, won.estimate, won.interval
    index = int(candidates[place])
    return BestPoint(
        step=points[index].step,
        raw=float(means[place]),
        estimate=estimate,
        interval=interval,
        candidates=len(candidates),
        left_out=_other_steps(points, candidates.tolist()),
        n=count,
        errored=int((table.errored[index, compared] > 0).sum()),
        errored_as=table.errored_as(last),
    )


def _only_candidate(table: RewardTable, index: int) -> BestPoint | None:
    """Return the one eval that could be picked, with mean and interval of its own point."""
    point = table.points[index]
    if point.reward is None:
        return None
    was_run = ~np.isnan(table.errored[index])
    return BestPoint(
        step=point.step,
        raw=point.reward,
        estimate=point.reward,
        interval=None if point.ci is None else Interval(*point.ci),
        candidates=1,
        left_out=_other_steps(table.points, [index]),
        n=int(was_run.sum()),
        errored=int((table.errored[index, was_run] > 0).sum()),
    )


def _other_steps(points: Sequence[CurvePoint], chosen: Sequence[int]) -> tuple[int, ...]:
    return tuple(point.step for i, point in enumerate(points) if i not in chosen)
