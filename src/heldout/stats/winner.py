"""The best of several checkpoints, with an interval corrected for the selection.

The highest of m noisy means is high partly by luck. The noise that all checkpoints share (they
answered the same samples) is drawn again from its estimated covariance, and what picking the
maximum does to such draws corrects estimate and interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats._input import Ids, check_matrix, cluster_codes
from heldout.stats.intervals import CONFIDENCE, Floats, Interval, t_quantile
from heldout.stats.moments import degrees_of_freedom, leave_out_weights

DRAWS = 10_000
SELECTION_SHARE = 0.1
"""The part of the error rate that goes into picking the contenders."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The checkpoint with the highest mean.

    Attributes:
        index: Its row; the first of equals.
        raw: Its mean as measured, which overstates it.
        estimate: The mean less the bias of picking the maximum.
        interval: The 95% interval of the true mean of the checkpoint that was picked.
        contenders: Checkpoints that the interval allows for, the winner included.
        n: Samples that the winner has a reward for.
    """

    index: int
    raw: float
    estimate: float
    interval: Interval
    contenders: int
    n: int


def best_of(
    rewards: ArrayLike,
    clusters: Ids | None = None,
    *,
    seed: int,
    draws: int = DRAWS,
    bounds: tuple[float, float] | None = None,
) -> Winner:
    """Pick the checkpoint with the highest mean, and correct its mean for having been picked.

    A checkpoint's mean is over the samples it has a reward for: errors are taken to be independent
    of the reward.

    Args:
        rewards: Checkpoints x samples, NaN where an item errored.
        clusters: The cluster of each sample; None: samples are independent.
        seed: The same seed gives the same numbers.
        draws: Draws of the noise.
        bounds: The least and the largest possible reward; None takes those seen.

    Raises:
        InvalidInput: The rewards are no finite table, or too few for an error.
    """
    table = check_matrix(rewards, "rewards", "checkpoint", "sample", gaps=True)
    if draws < 100:
        raise InvalidInput(f"draws is {draws}; an interval needs at least 100")
    counts = (~np.isnan(table)).sum(axis=1)
    if counts.min() < 2:
        raise InvalidInput(
            f"checkpoint {int(counts.argmin())} has {int(counts.min())} rewards: two at least are "
            "needed to know its error"
        )
    means: Floats = np.nansum(table, axis=1) / counts
    plain, noise = _draw_noise(table, means, clusters, seed, draws, bounds)

    below, above, contenders = _winner_errors(means, noise, 1 - CONFIDENCE)
    low, high = bounds if bounds else (-math.inf, math.inf)
    index = int(np.argmax(means))
    raw = float(means[index])
    estimate = min(high, max(low, raw - _picking_bias(means, plain)))
    return Winner(
        index=index,
        raw=raw,
        estimate=estimate,
        interval=Interval(max(low, raw - below), min(high, raw + above)),
        contenders=contenders,
        n=int(counts[index]),
    )


def _winner_errors(means: Floats, noise: Floats, miss: float) -> tuple[float, float, int]:
    """Return how far the winner's interval reaches down and up, and the number of contenders.

    The interval is locally simultaneous (Zrnic and Fithian 2022, arXiv 2212.09009). A tenth of the
    error goes to q, which no difference between two checkpoints' errors exceeds: the winner is one
    of those truly within q of the best, and each of those is seen within 2 q of the winner. The
    lower end allows for an error upwards of any of these contenders. The upper end pays for none:
    the winner came out above the truly best one, so its error is at least that one's.
    """
    apart = _quantile(np.ptp(noise, axis=1), 1 - miss * SELECTION_SHARE)
    contending = noise[:, means >= means.max() - 2 * apart]
    below = _quantile(contending.max(axis=1), 1 - miss * (0.5 - SELECTION_SHARE))
    # The truly best is one of the contenders too.
    above = np.quantile(-contending, 1 - miss / 2, axis=0, method="higher")
    return below, float(above.max()), contending.shape[1]


def _draw_noise(
    table: Floats,
    means: Floats,
    clusters: Ids | None,
    seed: int,
    draws: int,
    bounds: tuple[float, float] | None,
) -> tuple[Floats, Floats]:
    """Draw the errors of all means together, draws x checkpoints: as estimated, and widened.

    Normal, with the clustered covariance of the means, as a Gaussian multiplier bootstrap over
    clusters gives (Chernozhukov, Chetverikov and Kato 2013, Annals of Statistics 41). For intervals
    they are widened by t over normal quantiles, and by the spread of two more samples, one at each
    end of the scale (Agresti and Coull 1998, The American Statistician 52).
    """
    present = ~np.isnan(table)
    counts = present.sum(axis=1)
    residuals = np.where(present, table - means[:, None], 0.0) / counts[:, None]
    sizes = np.ones(table.shape[1])
    if clusters is not None:
        members = cluster_codes(clusters, table.shape[1])
        summed = np.zeros((len(table), int(members.max()) + 1))
        np.add.at(summed.T, members, residuals.T)
        residuals, sizes = summed, np.bincount(members).astype(np.float64)
    if len(sizes) < 2:
        raise InvalidInput("all samples are in one cluster: two at least are needed")
    tail = (1 + CONFIDENCE) / 2
    scale = (bounds[1] - bounds[0]) if bounds else float(np.nanmax(table) - np.nanmin(table))
    floor = 2 * (scale / 2 * float(sizes.max()) / counts) ** 2
    residuals = residuals * leave_out_weights(sizes)
    covariance = residuals @ residuals.T
    degrees = float(degrees_of_freedom(sizes, np.zeros(1, np.int64))[0])
    widen = t_quantile(tail, degrees) / NormalDist().inv_cdf(tail)
    normal = np.random.default_rng(seed).standard_normal((draws, len(table)))
    return _transform(normal, covariance), widen * _transform(normal, covariance + np.diag(floor))


def _transform(normal: Floats, covariance: Floats) -> Floats:
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(normal @ (vectors * np.sqrt(np.maximum(values, 0.0))).T)


def _quantile(values: Floats, probability: float) -> float:
    return float(np.quantile(values, probability, method="higher"))


def _picking_bias(means: Floats, noise: Floats) -> float:
    """Return how much picking the maximum overstates: the mean error of the winner of a draw.

    A parametric bootstrap (Efron and Tibshirani 1993, ch. 10) around means that are first drawn
    together as far as noise explains their spread (James and Stein 1961), but none by more than
    half a standard error (limited translation: Efron and Morris 1972, JASA 67).
    """
    if len(means) < 2:
        return 0.0
    spread = float(means.var(ddof=1))
    expected = float(noise.var(axis=1, ddof=1).mean())
    kept = max(0.0, 1 - expected / spread) if spread > 0 else 0.0
    shift = (1 - kept) * (means.mean() - means)
    limit = math.sqrt(expected) / 2
    winners = np.argmax(means + np.clip(shift, -limit, limit) + noise, axis=1)
    return max(0.0, float(noise[np.arange(len(noise)), winners].mean()))
