"""What changed between two points of a curve, sample by sample.

A mean that did not move can hide as many samples gained as lost. Only samples scored at both
points are compared; the others are counted, so that the numbers add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heldout.stats import Interval, paired_difference
from heldout.training.curve.points import CurvePoint, sample_rewards


@dataclass(frozen=True, slots=True)
class SampleFlip:
    """A sample that passes at one point and fails at the other.

    Without a threshold: whose reward differs. Rewards are means over repeats.
    """

    id: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class Flips:
    """What changed between two points, over the samples that both have."""

    gained: tuple[SampleFlip, ...]
    """Failed before and passes after; without a threshold: has a higher reward."""
    lost: tuple[SampleFlip, ...]
    stayed_passing: int
    both_fail: tuple[str, ...]
    """Ids of samples that fail at both; none without a threshold."""
    unchanged: int
    """Same reward in both; counted only without a threshold."""
    not_in_both: int
    """Samples that only one of the two points has."""
    errored: int
    """Samples of both points that errored at one of them."""
    difference: float | None
    """Mean of after - before over the samples compared; None if there are none."""
    stderr: float | None
    """Standard error of that paired difference."""
    interval: Interval | None
    """95% interval. Rewards between 0 and 1 always have one; others have none if all differences
    are equal, or if there is one sample."""
    p_value: float | None
    """Two-sided p-value, for these two points alone. It does not cover picking them by looking at
    the curve (`heldout.training.curve.verdicts`)."""

    @property
    def stayed_failing(self) -> int:
        """Samples that fail at both."""
        return len(self.both_fail)

    @property
    def compared(self) -> int:
        """Samples scored in both."""
        stayed = self.stayed_passing + self.stayed_failing + self.unchanged
        return len(self.gained) + len(self.lost) + stayed


def flips(before: CurvePoint, after: CurvePoint, pass_threshold: float | None) -> Flips:
    """Compare two points sample by sample.

    Args:
        before: The earlier point.
        after: The later point.
        pass_threshold: Reward (mean over repeats) from which a sample passes. None if there is
            none, as with returns: samples are then gained if they rose, and lost if they fell.

    Returns:
        What changed, with every sample counted once.
    """
    rewards_before, rewards_after = sample_rewards(before), sample_rewards(after)
    shared = [id for id in rewards_before if id in rewards_after]
    compared = [
        SampleFlip(id, was, now)
        for id in shared
        if (was := rewards_before[id]) is not None and (now := rewards_after[id]) is not None
    ]
    paired = None
    if compared:
        originals = {outcome.id: outcome.copy_of or outcome.id for outcome in after.outcomes}
        clusters = [originals[change.id] for change in compared]
        has_copies = len(set(clusters)) < len(clusters)
        rewards = [change.before for change in compared], [change.after for change in compared]
        paired = paired_difference(*rewards, clusters=clusters if has_copies else None)
    changes = _split(compared, pass_threshold)
    return Flips(
        *changes,
        not_in_both=len(rewards_before) + len(rewards_after) - 2 * len(shared),
        errored=len(shared) - len(compared),
        difference=paired.difference if paired else None,
        stderr=paired.stderr if paired else None,
        interval=paired.interval if paired else None,
        p_value=paired.p_value if paired else None,
    )


def _split(
    compared: Sequence[SampleFlip], pass_threshold: float | None
) -> tuple[tuple[SampleFlip, ...], tuple[SampleFlip, ...], int, tuple[str, ...], int]:
    """Split samples into gained, lost, still passing, still failing and unchanged."""
    if pass_threshold is None:
        gained = tuple(c for c in compared if c.after > c.before)
        lost = tuple(c for c in compared if c.after < c.before)
        return gained, lost, 0, (), len(compared) - len(gained) - len(lost)
    return (
        tuple(c for c in compared if c.before < pass_threshold <= c.after),
        tuple(c for c in compared if c.after < pass_threshold <= c.before),
        sum(min(c.before, c.after) >= pass_threshold for c in compared),
        tuple(c.id for c in compared if max(c.before, c.after) < pass_threshold),
        0,
    )
