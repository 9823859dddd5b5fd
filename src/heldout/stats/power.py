"""How many samples and repeats it takes to see a difference: pure functions, numpy only.

A score varies for two reasons. Questions differ in how hard they are (the variance *between*
questions), and one question answered again can score otherwise (the variance *within* a question).
More repeats average out the second and never the first; more questions average out both.

`variance_components` estimates them from a run's own repeats. `expected_difference` (of one run)
and `measured_difference` (of two) say how much a comparison would vary, and so how many samples and
repeats it needs; `minimum_detectable` says what a comparison that was made could have seen.

Reference: E. Miller, "Adding Error Bars to Evals" (arXiv 2411.00640).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats.given import Ids, checked_values, cluster_codes
from heldout.stats.student import t_quantile
from heldout.stats.summaries import Floats, Ints

ALPHA = 0.05
POWER = 0.8
MOST = 1e12
LARGE = 10_000
"""Samples from which Student's t is the normal distribution, for all that matters here."""


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """Where the variance of one run's scores comes from.

    With one answer a question only the sum is known. For 0/1 scores with mean p it is p (1 - p)
    whatever the questions are like: each always passed or always failed (nothing within), all
    equally hard (nothing between), or anything in the middle. Only repeats tell these apart.
    """

    samples: int
    repeated: int
    """Samples with two answers or more, which `within` is estimated from."""
    total: float
    """Variance of a single answer to a random question: between + within."""
    between: float | None
    """Variance of the questions' expected scores. Unbiased, so it can come out below 0 where the
    truth is near it; None where no question was repeated."""
    within: float | None
    """Mean over questions of the variance of a question's answers; None likewise."""


@dataclass(frozen=True, slots=True)
class PairedComponents:
    """Where the variance of a difference of two runs on the same questions comes from."""

    samples: int
    between: float | None
    """w^2: the variance of the questions' expected differences; None without repeats in both."""
    within_a: float | None
    within_b: float | None
    differences: float
    """Of the questions' mean differences as they were measured, noise included."""


@dataclass(frozen=True, slots=True)
class RequiredSamples:
    samples: int
    """Enough, whatever is not known."""
    at_least: int
    """Fewer are never enough. The same as `samples` where the run's repeats tell its variance
    within questions from that between them."""
    repeats: int
    detect: float
    power: float
    alpha: float


# --- From a run ---------------------------------------------------------------------------------


def variance_components(values: ArrayLike, *, samples: Ids) -> VarianceComponents:
    """Variance between and within questions, from one run's repeats; unbiased.

    `samples` names the question of each value, in any order. Within is the mean of the questions'
    sample variances. The variance of the questions' means holds within / K of noise, which is taken
    off to leave between (one-way analysis of variance; Miller 2024, resampling). Questions may
    have different numbers of repeats, as long as that has nothing to do with how they score.
    """
    numbers = checked_values(values, "values")
    codes = cluster_codes(samples, len(numbers), "samples")
    questions = _questions(numbers, codes)
    n = len(questions.means)
    if n < 2:
        raise InvalidInput(f"variance between questions needs at least 2 of them, got {n}")
    spread = _variance(questions.means)
    within, noise = questions.within, questions.noise
    if within is None or noise is None:
        return VarianceComponents(n, 0, spread, None, None)
    between = spread - noise
    return VarianceComponents(n, questions.repeated, between + within, between, within)


def paired_components(
    a: ArrayLike, b: ArrayLike, *, samples_a: Ids, samples_b: Ids
) -> PairedComponents:
    """The same for a difference: w^2 from two runs with repeats on the same questions; unbiased.

    The variance of the differences of the questions' means, less both runs' noise in them. Runs may
    have different numbers of repeats (Miller 2024). Ids must be the same on both sides.
    """
    values_a, values_b = checked_values(a, "a"), checked_values(b, "b")
    for name, ids, count in (
        ("samples_a", samples_a, len(values_a)),
        ("samples_b", samples_b, len(values_b)),
    ):
        if len(ids) != count:
            raise InvalidInput(f"{name} has {len(ids)} ids for {count} values; each value has one")
    codes = cluster_codes(
        [*_listed(samples_a), *_listed(samples_b)], len(values_a) + len(values_b), "samples"
    )
    codes_a, codes_b = codes[: len(values_a)], codes[len(values_a) :]
    n = int(codes.max()) + 1
    in_a, in_b = (np.bincount(side, minlength=n) > 0 for side in (codes_a, codes_b))
    if not (in_a & in_b).all():
        raise InvalidInput(
            f"{int((in_a & ~in_b).sum())} samples are only in a and {int((in_b & ~in_a).sum())} "
            "only in b; leave out what both do not have"
        )
    if n < 2:
        raise InvalidInput(f"variance between questions needs at least 2 of them, got {n}")
    of_a, of_b = _questions(values_a, codes_a), _questions(values_b, codes_b)
    differences, between = _variance(of_b.means - of_a.means), None
    if of_a.noise is not None and of_b.noise is not None:
        between = differences - of_a.noise - of_b.noise
    return PairedComponents(n, between, of_a.within, of_b.within, differences)


@dataclass(frozen=True, slots=True)
class _Questions:
    means: Floats
    repeated: int
    within: float | None
    noise: float | None
    """Mean over questions of the variance of a question's mean, given the question."""


def _questions(values: Floats, codes: Ints) -> _Questions:
    counts = np.bincount(codes).astype(np.float64)
    means = np.bincount(codes, weights=values) / counts
    repeated = counts > 1
    if not repeated.any():
        return _Questions(means, 0, None, None)
    squares = np.bincount(codes, weights=(values - means[codes]) ** 2)
    variances = np.zeros_like(squares)
    variances[repeated] = squares[repeated] / (counts[repeated] - 1)
    within = float(variances[repeated].mean())
    variances[~repeated] = within  # the best guess there is for a question answered once
    return _Questions(means, int(repeated.sum()), within, float((variances / counts).mean()))


def _variance(values: Floats) -> float:
    return float(np.var(values, ddof=1))


def _listed(ids: Ids) -> list[object]:
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


# --- How many -----------------------------------------------------------------------------------


def samples_for(
    between: float,
    within_a: float,
    *,
    within_b: float,
    detect: float,
    repeats_a: int = 1,
    repeats_b: int = 1,
    power: float = POWER,
    alpha: float = ALPHA,
) -> int:
    """Questions that a paired comparison needs in order to see a difference of `detect`.

    n = (z_{a/2} + z_b)^2 (w^2 + s_A^2 / K_A + s_B^2 / K_B) / d^2 (Miller 2024, power analysis).
    `between` is w^2, the variance of the questions' expected differences, and `within_a` and
    `within_b` the mean variances of one question's answers. Two-sided, with Student's t for z: of
    few questions the comparison's own error is uncertain, too. At least 2.
    """
    _check_repeats(repeats_a, repeats_b)
    _check_variances(between, within_a, within_b)
    variance = max(0.0, between) + within_a / repeats_a + within_b / repeats_b
    ratio = variance / _checked_detect(detect) / detect
    if not ratio < MOST:
        raise InvalidInput(
            f"to detect {detect:g} takes more than {MOST:g} samples: ask for a larger difference"
        )
    samples = max(2, math.ceil(_z(power, alpha) ** 2 * ratio * (1 - 1e-12)))
    if samples >= LARGE:
        return samples
    # t asks for a few more, and with those for a little less.
    while _t_sum(samples - 1, power, alpha) ** 2 * ratio * (1 - 1e-12) > samples:
        samples += 1
    return samples


@dataclass(frozen=True, slots=True)
class DifferenceVariance:
    """The variance of a question's difference between two runs, as far as it is known.

    With K answers it is between + within / K. `splits` are the pairs (between, within) that are
    possible: one where repeats told them apart, else the extremes. What follows from them is
    linear in the split, so nothing lies beyond what the extremes give.
    """

    splits: tuple[tuple[float, float], ...]

    def times(self, factor: float) -> DifferenceVariance:
        return DifferenceVariance(tuple((b * factor, w * factor) for b, w in self.splits))

    def at_least(self, single: float) -> DifferenceVariance:
        """Where the difference of two single answers is known to vary by so much at least."""
        return DifferenceVariance(tuple((b, max(w, single - max(0.0, b))) for b, w in self.splits))

    def at(self, repeats: float) -> tuple[float, float]:
        """The least and the largest that it can be."""
        found = [max(0.0, between) + within / repeats for between, within in self.splits]
        return min(found), max(found)

    def required(
        self, *, detect: float, repeats: int = 1, power: float = POWER, alpha: float = ALPHA
    ) -> RequiredSamples:
        _check_repeats(repeats)
        found = [
            samples_for(
                between,
                within,
                within_b=0.0,
                detect=detect,
                repeats_a=repeats,
                power=power,
                alpha=alpha,
            )
            for between, within in self.splits
        ]
        return RequiredSamples(max(found), min(found), repeats, detect, power, alpha)

    def repeats_for(
        self, samples: int, *, detect: float, power: float = POWER, alpha: float = ALPHA
    ) -> int | None:
        """Repeats that so many samples need; None where none suffice, in one split or another."""
        found = [
            required_repeats(
                between,
                within,
                within_b=0.0,
                detect=detect,
                samples=samples,
                power=power,
                alpha=alpha,
            )
            for between, within in self.splits
        ]
        known = [each for each in found if each is not None]
        return max(known) if len(known) == len(found) else None


def expected_difference(
    run: VarianceComponents, *, correlation: float = 0.0, other: float | None = None
) -> DifferenceVariance:
    """Between this run and one that is not there yet, on the same questions.

    One run does not know the other: it is taken to vary as much, or with a variance of `other` for
    a single answer (a rate that is to rise from 5% varies more), and its questions' expected
    scores to have `correlation` with this run's, so w^2 = 2 between (1 - correlation). 0 is
    cautious; two checkpoints of one training are usually far above it. Without repeats in the run,
    between and within are not known, only their sum.
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
    """Between two runs that are there, on the same questions; no correlation has to be guessed.

    Where either has no repeats, only the variance of the questions' differences is known, which
    is between + within / K for the numbers of repeats that were run.
    """
    found = paired_components(a, b, samples_a=samples_a, samples_b=samples_b)
    if found.between is not None and found.within_a is not None and found.within_b is not None:
        return DifferenceVariance(((found.between, found.within_a + found.within_b),))
    counts = [len(ids) / found.samples for ids in (samples_a, samples_b)]
    total = found.differences
    return DifferenceVariance(
        ((total, 0.0), (0.0, total * min(counts)), (0.0, total * max(counts)))
    )


def required_repeats(
    between: float,
    within_a: float,
    *,
    within_b: float,
    detect: float,
    samples: int,
    power: float = POWER,
    alpha: float = ALPHA,
) -> int | None:
    """Repeats of each question, in both runs, that so many samples need; None where none suffice.

    The formula of `samples_for`, solved for K = K_A = K_B: repeats average out the variance within
    questions, and where w^2 alone is too much for these samples, no number of them helps.
    """
    if samples < 2:
        raise InvalidInput(f"a comparison needs at least 2 samples, got {samples!r}")
    _check_variances(between, within_a, within_b)
    allowed = samples * _checked_detect(detect) ** 2 / _t_sum(samples - 1, power, alpha) ** 2
    left, within = allowed - max(0.0, between), within_a + within_b
    if within == 0:
        return 1 if left >= -1e-12 * allowed else None
    if left <= 0:
        return None
    return max(1, math.ceil(within / left * (1 - 1e-12)))


def minimum_detectable(
    stderr: float | None, clusters: float, *, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """The smallest true difference that a comparison with this standard error would usually see.

    (t_{a/2} + t_b) times the standard error of the difference, the pairs' own, clustered, with
    (clusters - 1) degrees of freedom (Miller 2024, which has z for t; H. S. Bloom 1995,
    Evaluation Review 19). "Usually" is with probability `power`, "see" is p < `alpha`, two-sided.
    None where the pairs say nothing about their spread: fewer than two clusters, or all alike.
    """
    _z(power, alpha)
    if stderr is not None and not (math.isfinite(stderr) and stderr >= 0):
        raise InvalidInput(f"a standard error is a number of at least 0, got {stderr!r}")
    if not stderr or clusters < 2:
        return None
    return _t_sum(clusters - 1, power, alpha) * stderr


def detectable_rate_difference(
    losses: float, discordant: float, pairs: float, *, power: float = POWER, alpha: float = ALPHA
) -> float | None:
    """The smallest true difference of paired rates that McNemar's test would usually see.

    `losses` and `discordant` are the shares of pairs that were lost, and that differ. The power is
    that of R. S. Connor (1987, Biometrics 43, 207-211), where a difference of d needs a share of
    at least d of pairs that differ: few of them in the data do not make small differences visible.
    None where even the largest difference, 1, would not be seen.
    """
    _z(power, alpha)
    normal = NormalDist()
    z_alpha, z_beta = normal.inv_cdf(1 - alpha / 2), normal.inv_cdf(power)

    def seen(difference: float) -> bool:
        share = min(1.0, max(discordant, 2 * losses + difference, difference))
        needed = z_alpha * math.sqrt(share) + z_beta * math.sqrt(share - difference**2)
        return difference * math.sqrt(pairs) >= needed

    if not seen(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def _t_sum(degrees: float, power: float, alpha: float) -> float:
    return t_quantile(1 - alpha / 2, degrees) + t_quantile(power, degrees)


def _z(power: float, alpha: float) -> float:
    """z_{alpha/2} + z_beta."""
    if not 0 < alpha < 1:
        raise InvalidInput(f"alpha is between 0 and 1, such as 0.05; got {alpha!r}")
    if not 0.5 < power < 1:
        raise InvalidInput(f"power is between 0.5 and 1, such as 0.8; got {power!r}")
    normal = NormalDist()
    return normal.inv_cdf(1 - alpha / 2) + normal.inv_cdf(power)


def _checked_detect(detect: float) -> float:
    if not (math.isfinite(detect) and detect > 0):
        raise InvalidInput(f"the difference to detect is a number above 0, got {detect!r}")
    return detect


def _check_repeats(*repeats: int) -> None:
    for each in repeats:
        if each < 1:
            raise InvalidInput(f"each sample is answered at least once, got repeats of {each!r}")


def _check_variances(between: float, *within: float) -> None:
    for each in (between, *within):
        if not math.isfinite(each):
            raise InvalidInput(f"a variance is a finite number, got {each!r}")
    for each in within:
        if each < 0:
            raise InvalidInput(f"a variance within questions is at least 0, got {each!r}")
