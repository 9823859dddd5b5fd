"""What changed between two points of a curve, sample by sample.

A mean that did not move can hide as many samples gained as lost. Only samples that both points
have, and scored, are compared; every other one is counted, so that the numbers add up.
"""

from __future__ import annotations

from dataclasses import dataclass

from heldout.stats import Interval, paired_difference
from heldout.training.curve import CurvePoint, sample_rewards


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
    """95%. Rewards between 0 and 1 always have one; others have none where the differences are
    all alike, or of one sample."""
    p_value: float | None
    """Of no difference, two-sided, for these two points alone: whoever picked them by looking at
    the curve has looked more often (`heldout.training.verdicts`)."""

    @property
    def compared(self) -> int:
        """Samples scored in both."""
        return len(self.gained) + len(self.lost) + self.stayed_passing + self.stayed_failing


def flips(before: CurvePoint, after: CurvePoint, pass_threshold: float) -> Flips:
    """Compare two points. With repeats, a sample passes if the mean of its scores does."""
    rewards_before, rewards_after = sample_rewards(before), sample_rewards(after)
    shared = [id for id in rewards_before if id in rewards_after]
    gained, lost, passing, failing = [], [], 0, 0
    pairs: list[tuple[float, float]] = []
    clusters: list[str] = []
    originals = {outcome.id: outcome.copy_of or outcome.id for outcome in after.outcomes}
    for id in shared:
        was, is_now = rewards_before[id], rewards_after[id]
        if was is None or is_now is None:
            continue
        pairs.append((was, is_now))
        clusters.append(originals[id])
        passed, passes = was >= pass_threshold, is_now >= pass_threshold
        if passes and not passed:
            gained.append(Change(id, was, is_now))
        elif passed and not passes:
            lost.append(Change(id, was, is_now))
        elif passes:
            passing += 1
        else:
            failing += 1
    copies = clusters if len(set(clusters)) < len(clusters) else None
    found = paired_difference(*zip(*pairs, strict=True), clusters=copies) if pairs else None
    return Flips(
        gained=tuple(gained),
        lost=tuple(lost),
        stayed_passing=passing,
        stayed_failing=failing,
        not_in_both=len(rewards_before) + len(rewards_after) - 2 * len(shared),
        errored=len(shared) - len(pairs),
        difference=found.difference if found else None,
        stderr=found.stderr if found else None,
        interval=found.interval if found else None,
        p_value=found.p_value if found else None,
    )
