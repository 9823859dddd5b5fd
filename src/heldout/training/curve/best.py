"""The best eval of a curve so far, corrected for having been picked (`heldout.stats.winner`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldout._core.format import interval as interval_text
from heldout._core.format import list_some, number, samples
from heldout.stats import Interval, best_of
from heldout.training.curve.points import CurvePoint
from heldout.training.curve.reward_table import Bounds, Rewards, RewardTable

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
