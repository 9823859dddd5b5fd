"""The best eval of a held-out curve, as one that was picked for being best.

    print(best_checkpoint(current_points(read_points(path))).sentence())

The highest of many points is high partly by luck; `heldout.stats.winner` takes that off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heldout.stats import CONFIDENCE, Interval, best_of
from heldout.stats.winner import DRAWS
from heldout.training.curve import CurvePoint
from heldout.training.looks import Bounds, RewardRows, Tables
from heldout.words import interval as words_of
from heldout.words import number, samples

SEED = 0
"""Of the draws behind its interval: the same curve gives the same numbers."""


@dataclass(frozen=True, slots=True)
class Best:
    """The eval with the highest mean reward, and what it is worth once it has been picked. Whether
    its weights were saved nobody knows here."""

    step: int
    weights: str | None
    run: str | None
    """The directory, below the run's, that has its conversations. Never followed: only shown."""
    raw: float
    """Its mean as measured, what errored counted: it overstates."""
    estimate: float | None
    """Less the luck that picking the maximum brings; None: it was not computed, or nothing says
    how much rewards could differ, as is so for the interval."""
    interval: Interval | None
    candidates: int
    """Evals it was picked from: those of all samples that are compared."""
    left_out: int
    """Evals that lack some of those samples: a mean of others would be another mean."""
    n: int
    """Samples compared."""
    confidence: float
    errored: int = 0
    """Samples of those with an item that errored at this eval."""
    errored_as: float = 0.0
    """The reward that such an item counts as."""

    def sentence(self) -> str:
        words = f"best eval: step {self.step}{' (before training)' * (self.step == 0)}, "
        around = words_of(self.interval.low, self.interval.high) if self.interval else None
        if self.candidates == 1:
            how = f" ({around})" if around else " as measured"
            words += f"{number(self.raw)}{how}, the only one to pick from"
        elif self.estimate is None or around is None:
            words += (
                f"{number(self.raw)} as measured, not corrected for picking the best of "
                f"{self.candidates}"
            )
        else:
            words += (
                f"{number(self.estimate)} ({around}, corrected for picking the best of "
                f"{self.candidates}; {number(self.raw)} as measured)"
            )
        words += f", on {samples(self.n)}"
        if self.errored:
            worth = number(self.errored_as) if self.errored_as else "0"
            words += f", {self.errored} of them errored, counted as {worth}"
        if self.left_out:
            evals = "1 eval" if self.left_out == 1 else f"{self.left_out} evals"
            words += f"; {evals} of fewer samples left out"
        return words

    def as_dict(self) -> dict[str, Any]:
        return {
            "best_step": self.step,
            "best_estimate": self.estimate,
            "best_ci_low": self.interval.low if self.interval else None,
            "best_ci_high": self.interval.high if self.interval else None,
        }


NO_BEST: dict[str, Any] = dict.fromkeys(
    ("best_step", "best_estimate", "best_ci_low", "best_ci_high")
)
"""`Best.as_dict` where there is none."""


def best_checkpoint(
    points: Sequence[CurvePoint],
    confidence: float = CONFIDENCE,
    *,
    bounds: Bounds | None = None,
    most: int | None = None,
) -> Best | None:
    """The best eval of one curve; None where no two samples can be compared.

    Evals are compared on the samples that at least half of them have run; one that lacks some of
    those is no candidate, and is counted. A budget or a time limit takes a beginning of one fixed
    order, so these samples are a beginning of it, too. What errored counts as 0, or as the least
    reward seen: else an eval of three good answers and 97 errors would be the best one.
    Uncorrected where there are more than `most` candidates: the cost grows with their cube.
    """
    rows = RewardRows()
    looks = rows.looks(points)
    if not looks:
        return None
    return pick(looks, rows.tables(looks, bounds), confidence=confidence, most=most)


def pick(
    looks: Sequence[CurvePoint],
    tables: Tables,
    *,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
    most: int | None = None,
) -> Best | None:
    """`best_checkpoint`, of tables."""
    last = len(looks) - 1
    asked = ~np.isnan(tables.errored)
    compared = 2 * asked.sum(axis=0) >= len(looks)
    places = np.flatnonzero(asked[:, compared].all(axis=1))
    count = int(compared.sum())
    if not len(places) or count < 2 or not tables.has_rewards(last):
        return None
    rewards, bounds = tables.counted(last)[:, compared][places], tables.bounds(last)
    estimate, interval = None, None
    if (most is None or len(places) <= most) and (bounds or rewards.max() > rewards.min()):
        won = best_of(rewards, seed=SEED, confidence=confidence, draws=draws, bounds=bounds)
        index, raw, estimate, interval = won.index, won.raw, won.estimate, won.interval
    else:
        means = rewards.mean(axis=1)
        index, raw = int(np.argmax(means)), float(means.max())
    place = int(places[index])
    point = looks[place]
    return Best(
        step=point.step,
        weights=point.weights,
        run=point.run,
        raw=raw,
        estimate=estimate,
        interval=interval,
        candidates=len(places),
        left_out=len(looks) - len(places),
        n=count,
        confidence=confidence,
        errored=int((tables.errored[place, compared] > 0).sum()),
        errored_as=tables.counted_as(last),
    )
