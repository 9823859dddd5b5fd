"""What changed between two points of a curve, sample by sample.

A mean that did not move can hide as many samples gained as lost. Only samples that both points
have, and scored, are compared; every other one is counted, so that the numbers add up.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from heldout.midrun.curve import CurvePoint
from heldout.stats import Interval, Moments


@dataclass(frozen=True, slots=True)
class Change:
    """A sample that passes at one point and fails at the other; rewards are means of repeats."""

    id: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Flips:
    gained: tuple[Change, ...]
    """Failed before, passes after."""
    lost: tuple[Change, ...]
    stayed_passing: int
    stayed_failing: int
    not_in_both: int
    """Samples that only one of the two points has."""
    errored: int
    """Samples of both that have no score in one of them: not comparable."""
    difference: float | None
    """Mean of after - before over the samples compared; None where there are none."""
    stderr: float | None
    """Of that paired difference, which is smaller than that of two separate means."""
    interval: Interval | None
    """95%; None where the differences are all alike, or of one sample."""

    @property
    def compared(self) -> int:
        """Samples scored in both."""
        return len(self.gained) + len(self.lost) + self.stayed_passing + self.stayed_failing


def flips(before: CurvePoint, after: CurvePoint, pass_threshold: float) -> Flips:
    """Compare two points. With repeats, a sample passes if the mean of its scores does."""
    rewards_before, rewards_after = _rewards(before), _rewards(after)
    shared = [id for id in rewards_before if id in rewards_after]
    gained, lost, passing, failing = [], [], 0, 0
    differences = []
    for id in shared:
        was, is_now = rewards_before[id], rewards_after[id]
        if was is None or is_now is None:
            continue
        differences.append(is_now - was)
        passed, passes = was >= pass_threshold, is_now >= pass_threshold
        if passes and not passed:
            gained.append(Change(id, was, is_now))
        elif passed and not passes:
            lost.append(Change(id, was, is_now))
        elif passes:
            passing += 1
        else:
            failing += 1
    moments = Moments()
    moments.add(np.array(differences, dtype=np.float64), np.arange(len(differences)))
    return Flips(
        gained=tuple(gained),
        lost=tuple(lost),
        stayed_passing=passing,
        stayed_failing=failing,
        not_in_both=len(rewards_before) + len(rewards_after) - 2 * len(shared),
        errored=len(shared) - len(differences),
        difference=moments.mean,
        stderr=moments.stderr,
        # Differences are not bounded by 0, though those at hand may all be gains.
        interval=moments.interval(bounded=False),
    )


def _rewards(point: CurvePoint) -> dict[str, float | None]:
    """Mean reward of each sample over its scored repeats; None where all of them errored."""
    scores: dict[str, list[float]] = defaultdict(list)
    for outcome in point.outcomes:
        scored = scores[outcome.id]
        if outcome.reward is not None and outcome.error is None:
            scored.append(outcome.reward)
    return {id: sum(s) / len(s) if s else None for id, s in scores.items()}
