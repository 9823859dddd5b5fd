"""How many samples and repeats detect a difference.

Questions differ in how hard they are (the variance *between* questions), and one question answered
again can score otherwise (the variance *within* a question). More repeats average out the second
and never the first; more questions average out both (E. Miller, "Adding Error Bars to Evals", arXiv
2411.00640).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats._input import Ids, check_fraction, check_values, cluster_codes, factorize
from heldout.stats.intervals import Floats, Ints, bisect, t_quantile

ALPHA = 0.05
POWER = 0.8
USABLE_SAMPLES = 1e12
"""More are no plan; the arithmetic of smaller numbers is exact."""
NORMAL_SAMPLES = 10_000
"""Samples from which Student's t is the normal distribution, for all that matters here."""


# --- From a run ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """Where the variance of one run's scores comes from.

    Attributes:
        samples: Questions.
        repeated: Questions with two answers or more, which `within` is estimated from.
        total: Variance of a single answer to a random question: between + within.
        between: Variance of the questions' expected scores. Unbiased, so it can come out below 0
            where the truth is near it; None where no question was repeated: only repeats tell it
            from `within`.
        within: Mean over questions of the variance of a question's answers; None likewise.
    """

    samples: int
    repeated: int
    total: float
    between: float | None
    within: float | None


def variance_components(values: ArrayLike, *, samples: Ids) -> VarianceComponents:
    """Estimate the variance between and within questions from one run's repeats; unbiased.

    Within is the mean of the questions' sample variances; what it adds to the variance of the
    questions' means is taken off to leave between (one-way analysis of variance).

    Args:
        values: The scores.
        samples: The question of each score, in any order.

    Returns:
        The components.

    Raises:
        InvalidInput: There are fewer than two questions.
    """
    numbers = check_values(values, "values")
    questions = _measure_questions(numbers, cluster_codes(samples, len(numbers), "samples"))
    n, spread = len(questions.means), _variance(questions.means)
    if questions.within is None:
        return VarianceComponents(n, 0, spread, None, None)
    between = spread - questions.noise
    total = between + questions.within
    return VarianceComponents(n, questions.repeated, total, between, questions.within)


class _Questions(NamedTuple):
    means: Floats
    repeated: int = 0
    within: float | None = None
    # Mean over questions of the variance of a question's mean, given the question.
    noise: float = 0.0


def _measure_questions(values: Floats, codes: Ints) -> _Questions:
    counts = np.bincount(codes).astype(np.float64)
    if len(counts) < 2:
        raise InvalidInput(
            f"variance between questions needs at least 2 of them, got {len(counts)}"
        )
    means = np.bincount(codes, weights=values) / counts
    repeated = counts > 1
    if not repeated.any():
        return _Questions(means)
    squares = np.bincount(codes, weights=(values - means[codes]) ** 2)
    variances = squares / np.maximum(counts - 1, 1)
    within = float(variances[repeated].mean())
    variances[~repeated] = within  # the best guess there is for a question answered once
    return _Questions(means, int(repeated.sum()), within, float((variances / counts).mean()))


def _variance(values: Floats) -> float:
    return float(np.var(values, ddof=1))


# --- How many -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequiredSamples:
    """What a number of repeats needs.

    Attributes:
        repeats: Attempts at each sample.
        samples: Samples that are enough, whatever is not known.
        at_least: Fewer are never enough. The same as `samples` where repeats tell the variance
            within questions from that between them.
        answers: Samples times repeats, of one run.
    """

    repeats: int
    samples: int
    at_least: int
    answers: int


@dataclass(frozen=True, slots=True)
class DifferenceVariance:
    """The variance of a question's difference between two runs: between + within / repeats.

    Attributes:
        splits: The possible pairs (between, within): one where repeats told them apart, else the
            extremes. What follows is linear in the split, so nothing lies beyond them.
    """

    splits: tuple[tuple[float, float], ...]

    def times(self, factor: float) -> DifferenceVariance:
        """Return a variance so many times as large."""
        return DifferenceVariance(tuple((b * factor, w * factor) for b, w in self.splits))

    def at_least(self, single: float) -> DifferenceVariance:
        """Return the variance where a difference of two single answers varies at least so much."""
        return DifferenceVariance(tuple((b, max(w, single - max(0.0, b))) for b, w in self.splits))

    def at(self, repeats: float) -> tuple[float, float]:
        """Return the least and the largest that it can be, with so many answers a question."""
        possible = [max(0.0, between) + within / repeats for between, within in self.splits]
        return min(possible), max(possible)

    def required(
        self, *, detect: float, repeats: int = 1, power: float = POWER, alpha: float = ALPHA
    ) -> RequiredSamples:
        """Return the samples that a comparison needs.

        Args:
            detect: The true difference to detect.
            repeats: Answers to each question.
            power: The probability of detecting it.
            alpha: Detected is p below this.

        Raises:
            InvalidInput: A number is out of range, or takes more samples than there could be.
        """
        if repeats < 1:
            raise InvalidInput(f"each sample is answered at least once, got repeats of {repeats!r}")
        if not 0 < detect < math.inf:
            raise InvalidInput(f"the difference to detect is a number above 0, got {detect!r}")
        _check_test(power, alpha)
        least, most = (
            _samples_for(variance / detect / detect, power, alpha) for variance in self.at(repeats)
        )
        return RequiredSamples(repeats, most, least, most * repeats)

    def repeats_for(
        self, samples: int, *, detect: float, power: float = POWER, alpha: float = ALPHA
    ) -> int | None:
        """Return the repeats that so many samples need, 2 at least.

        Repeats average out the variance within questions. None where that between them alone is
        too much for these samples, in one split or another: no number helps then.
        """
        allowed = samples * detect**2 / _t_sum(samples - 1, power, alpha) ** 2
        needed = []
        for between, within in self.splits:
            left = allowed - max(0.0, between)
            if within == 0 and left >= -1e-12 * allowed:
                needed.append(1)
            elif within == 0 or left <= 0:
                return None
            else:
                needed.append(max(1, math.ceil(within / left * (1 - 1e-12))))
        return max(needed)


def _samples_for(ratio: float, power: float, alpha: float) -> int:
    """Return the questions, at least 2, of n = (t_{a/2} + t_b)^2 ratio (Miller 2024).

    `ratio` is the variance of a question's difference over the square of the one to detect.
    """
    if not ratio < USABLE_SAMPLES:
        raise InvalidInput(
            f"it takes more than {USABLE_SAMPLES:g} samples: ask for a larger difference to detect"
        )
    normal = NormalDist()
    z_sum = normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)
    samples = max(2, math.ceil(z_sum**2 * ratio * (1 - 1e-12)))
    if samples >= NORMAL_SAMPLES:
        return samples
    # t asks for a few more, and with those for a little less.
    while _t_sum(samples - 1, power, alpha) ** 2 * ratio * (1 - 1e-12) > samples:
        samples += 1
    return samples


def expected_difference(
    run: VarianceComponents, *, correlation: float = 0.0, other: float | None = None
) -> DifferenceVariance:
    """Return the variance of the difference between a run and one that does not exist yet.

    Args:
        run: The components of the run.
        correlation: Of the questions' expected scores in both runs. 0 is cautious; two checkpoints
            of one training run are usually far above it.
        other: The variance of a single answer in the other run (a rate that is to rise from 5%
            varies more); None: the same as in this run.

    Returns:
        The variance of a question's difference.

    Raises:
        InvalidInput: The correlation is not between -1 and 1.
    """
    if not -1 <= correlation <= 1:
        raise InvalidInput(f"correlation is between -1 and 1, got {correlation!r}")
    factor = 1.0 if other is None or not run.total > 0 else other / run.total

    def split(between: float, within: float) -> tuple[float, float]:
        between = max(0.0, between)
        apart = between * (1 + factor) - 2 * correlation * between * math.sqrt(factor)
        return max(0.0, apart), within * (1 + factor)

    if run.between is None or run.within is None:
        total = run.total if run.total > 0 else (other or 0.0) / 2
        return DifferenceVariance((split(total, 0.0), split(0.0, total)))
    return DifferenceVariance((split(run.between, run.within),))


def measured_difference(
    a: ArrayLike, b: ArrayLike, *, samples_a: Ids, samples_b: Ids
) -> DifferenceVariance:
    """Return the variance of the difference between two runs on the same questions; unbiased.

    Where either has no repeats, only the variance of the differences of means is known, which is
    between + within / K for the numbers of repeats that were run.

    Args:
        a: The scores of a.
        b: The scores of b.
        samples_a: The question of each score of a, in any order.
        samples_b: The question of each score of b; the same questions.

    Returns:
        The variance of a question's difference.

    Raises:
        InvalidInput: The questions are not the same, or fewer than two.
    """
    values_a, values_b = check_values(a, "a"), check_values(b, "b")
    names_a, codes_a = factorize(samples_a, len(values_a), "samples_a")
    names_b, codes_b = factorize(samples_b, len(values_b), "samples_b")
    only_a, only_b = {*names_a} - {*names_b}, {*names_b} - {*names_a}
    if only_a or only_b:
        raise InvalidInput(
            f"{len(only_a)} samples are only in a and {len(only_b)} only in b; leave out what both "
            "do not have"
        )
    index = {name: i for i, name in enumerate(names_a)}
    codes_b = np.array([index[name] for name in names_b], dtype=np.int64)[codes_b]
    of_a, of_b = _measure_questions(values_a, codes_a), _measure_questions(values_b, codes_b)
    total = _variance(of_b.means - of_a.means)
    if of_a.within is not None and of_b.within is not None:
        between = total - of_a.noise - of_b.noise
        return DifferenceVariance(((between, of_a.within + of_b.within),))
    repeats = [len(values) / len(names_a) for values in (values_a, values_b)]
    return DifferenceVariance(
        ((total, 0.0), (0.0, total * min(repeats)), (0.0, total * max(repeats)))
    )


# --- What a comparison could detect -------------------------------------------------------------


def minimum_detectable(
    stderr: float | None, clusters: float, *, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """Return the minimum detectable effect of a comparison with this standard error.

    (t_{a/2} + t_b) times the standard error (H. S. Bloom 1995, Evaluation Review 19).

    Args:
        stderr: The standard error of the difference, clustered.
        clusters: Clusters of pairs.
        power: The probability of detecting the effect.
        alpha: Detected is p below this, two-sided.

    Returns:
        The effect; None where the pairs show no spread: fewer than two clusters, or all alike.

    Raises:
        InvalidInput: Power or alpha are out of range.
    """
    _check_test(power, alpha)
    if not stderr or clusters < 2:
        return None
    return _t_sum(clusters - 1, power, alpha) * stderr


def detectable_rate_difference(
    losses: float, discordant: float, pairs: float, *, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """Return the minimum detectable difference of paired rates by McNemar's test.

    R. S. Connor 1987, Biometrics 43, 207-211: a difference of d needs a share of at least d of
    pairs that differ, however few of them the data have.

    Args:
        losses: The share of pairs that were lost.
        discordant: The share of pairs that differ.
        pairs: Pairs.
        power: The probability of detecting the difference.
        alpha: Detected is p below this, two-sided.

    Returns:
        The difference; None where even the largest, 1, would not be detected.

    Raises:
        InvalidInput: Power or alpha are out of range.
    """
    _check_test(power, alpha)
    normal = NormalDist()
    z_alpha, z_beta = normal.inv_cdf(1 - alpha / 2), normal.inv_cdf(power)

    def is_detected(difference: float) -> bool:
        share = min(1.0, max(discordant, 2 * losses + difference, difference))
        needed = z_alpha * math.sqrt(share) + z_beta * math.sqrt(share - difference**2)
        return difference * math.sqrt(pairs) >= needed

    if not is_detected(1.0):
        return None
    return bisect(1.0, 0.0, is_detected, steps=60)[0]


def _t_sum(degrees: float, power: float, alpha: float) -> float:
    return t_quantile(1 - alpha / 2, degrees) + t_quantile(power, degrees)


def _check_test(power: float, alpha: float) -> None:
    check_fraction(alpha, "alpha")
    check_fraction(power, "power", above=0.5)
