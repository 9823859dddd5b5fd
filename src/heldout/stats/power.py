"""How many samples and repeats detect a difference.

Questions differ in how hard they are (the variance *between* questions), and one question answered
again can score otherwise (the variance *within* a question). More repeats average out the second
and never the first; more questions average out both (E. Miller, "Adding Error Bars to Evals", arXiv
2411.00640).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats._input import (
    Ids,
    check_fraction,
    check_values,
    cluster_codes,
    factorize,
    is_bounded,
)
from heldout.stats.differences import PairedDifference, UnpairedDifference
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


class ChangedShares(NamedTuple):
    """How values between 0 and 1 differ between two runs on the same samples.

    Attributes:
        won: Share of samples that rose.
        lost: Share of samples that fell.
        step: Mean size of such a change; 1 where nothing changed: it is unknown then.
        mean: Mean of all differences.
    """

    won: float
    lost: float
    step: float
    mean: float

    @classmethod
    def of(cls, differences: Floats) -> ChangedShares:
        """Return the shares of differences, one for each sample."""
        changed = differences != 0
        step = float(np.abs(differences[changed]).mean()) if changed.any() else 1.0
        won, lost = float((differences > 0).mean()), float((differences < 0).mean())
        return cls(won, lost, step, float(differences.mean()))

    def differing(self, effect: float) -> float:
        """Return the share of samples that differ where the true difference is `effect`.

        A difference takes samples that differ, however few of them the data have (R. S. Connor
        1987, Biometrics 43, 207-211); samples that differ both ways stay.
        """
        both_ways = 2 * min(self.won, self.lost)
        return min(1.0, both_ways + max(abs(self.won - self.lost), effect / self.step))

    def growth(self, effect: float) -> float:
        """Return how many times as many samples differ under an effect as do in the data.

        Where nothing differs, it is the share of samples itself.
        """
        differ = self.won + self.lost
        return self.differing(effect) / differ if differ else self.differing(effect)

    def variances(self, variance: float, effect: float) -> tuple[float, float]:
        """Return the mean square of a question's difference under an effect, and its variance.

        Args:
            variance: As measured; where nothing differs, that of pairs that all do.
            effect: The true difference.
        """
        square = (variance + self.mean**2) * self.growth(effect)
        least = variance if self.won or self.lost else 0.0  # samples that all rise vary no less
        return max(square, least), max(square - effect**2, least)


@dataclass(frozen=True, slots=True)
class DifferenceVariance:
    """The variance of a question's difference between two runs: between + within / repeats.

    Attributes:
        splits: The possible pairs (between, within): one where repeats told them apart, else the
            extremes. What follows is linear in the split, so nothing lies beyond them.
        shares: Of values between 0 and 1, how they differ: the variance grows with the effect.
            Where nothing differs, splits are those of pairs that all do. None: it does not grow.
        degrees: Degrees of freedom of the test; None: one less than samples.
        exact: Whether single answers are 0/1 and stand alone, so that the exact test compares them.
    """

    splits: tuple[tuple[float, float], ...]
    shares: ChangedShares | None = None
    degrees: float | None = None
    exact: bool = False

    def times(self, factor: float) -> DifferenceVariance:
        """Return the variance multiplied by a factor."""
        return replace(self, splits=tuple((b * factor, w * factor) for b, w in self.splits))

    def at_least(self, single: float) -> DifferenceVariance:
        """Return the variance, with a lower bound on that of two single answers' difference."""
        splits = tuple((b, max(w, single - max(0.0, b))) for b, w in self.splits)
        return replace(self, splits=splits)

    def at(self, repeats: float) -> tuple[float, float]:
        """Return its minimum and maximum, given the number of answers per question."""
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
            raise InvalidInput(
                f"each sample must be answered at least once, got repeats of {repeats!r}"
            )
        if not 0 < detect < math.inf:
            raise InvalidInput(f"the difference to detect must be a number above 0, got {detect!r}")
        _check_test(power, alpha)
        find = self._samples_for_exact if self.exact and repeats == 1 else self._samples_for
        least, most = (find(variance, detect, power, alpha) for variance in self.at(repeats))
        return RequiredSamples(repeats, most, least, most * repeats)

    def repeats_for(
        self, samples: int, *, detect: float, power: float = POWER, alpha: float = ALPHA
    ) -> int | None:
        """Return the repeats that a number of samples needs, at least 2.

        Repeats average out the variance within questions. None where that between them alone is
        too much for these samples, in one split or another: no number helps then.
        """

        def is_small(variance: float) -> bool:
            return self._needed(variance, samples, detect, power, alpha) <= samples

        if not is_small(0.0):
            return None
        most = 1.0
        while is_small(most):
            most *= 2
        allowed = bisect(0.0, most, is_small)[0]
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

    def detectable(
        self, samples: int, *, repeats: float = 1, power: float = POWER, alpha: float = ALPHA
    ) -> float | None:
        """Return the minimum detectable effect: the least whose required samples these are.

        Args:
            samples: Questions.
            repeats: Answers to each question.
            power: The probability of detecting the effect.
            alpha: Detected is p below this.

        Returns:
            The effect; None where nothing varies, or even the largest is not detected.
        """
        _check_test(power, alpha)
        if self.shares is None and not (self.exact and repeats == 1):
            needed = self._needed(self.at(repeats)[1], samples, 1.0, power, alpha)
            return math.sqrt(needed / samples) or None
        return least_effect(
            lambda effect: self.is_detected(
                effect, samples, repeats=repeats, power=power, alpha=alpha
            )
        )

    def is_detected(
        self,
        effect: float,
        samples: int,
        *,
        repeats: float = 1,
        power: float = POWER,
        alpha: float = ALPHA,
    ) -> bool:
        """Return whether so many samples detect an effect.

        Args:
            effect: The true difference.
            samples: Questions.
            repeats: Answers to each question.
            power: The probability of detecting the effect.
            alpha: Detected is p below this.
        """
        variance = self.at(repeats)[1]
        if self.exact and repeats == 1:
            return exact_power(samples, self._differing(variance, effect), effect, alpha) >= power
        return self._needed(variance, samples, effect, power, alpha) <= samples

    def _differing(self, variance: float, effect: float) -> float:
        """Return the share of single 0/1 answers that differ under an effect."""
        if self.shares is not None:
            return self.shares.differing(effect)
        return min(1.0, max(variance + effect**2, effect))

    def _samples_for_exact(self, variance: float, detect: float, power: float, alpha: float) -> int:
        """Return the questions with which the exact test of single answers has the power."""
        _check_usable(variance, detect)
        if detect > 1:
            raise InvalidInput(f"a difference of 0/1 answers must be at most 1, got {detect!r}")
        differ, most = self._differing(variance, detect), 2
        while exact_power(most, differ, detect, alpha) < power:
            most *= 2
        least = most // 2
        while most - least > 1:
            middle = (least + most) // 2
            if exact_power(middle, differ, detect, alpha) < power:
                least = middle
            else:
                most = middle
        return most

    def _samples_for(self, variance: float, detect: float, power: float, alpha: float) -> int:
        """Return the required number of questions, at least 2."""
        _check_usable(variance, detect)
        samples = max(2, math.ceil(self._needed(variance, USABLE_SAMPLES, detect, power, alpha)))
        if samples >= NORMAL_SAMPLES:
            return samples
        # t asks for a few more, and with those for a little less.
        while self._needed(variance, samples, detect, power, alpha) > samples:
            samples += 1
        return samples

    def _needed(
        self, variance: float, samples: float, effect: float, power: float, alpha: float
    ) -> float:
        """Return n = (t_{a/2} sqrt(v0) + t_b sqrt(v))^2 / d^2 at the t of so many samples.

        v is the variance of a question's difference under the effect, and v0 that which the test
        assumes of no difference: the same for Student's t (Miller 2024), v + d^2 for McNemar's
        score test (Connor 1987).
        """
        null = effect_variance = variance
        if self.shares is not None:
            null, effect_variance = self.shares.variances(variance, effect)
        degrees = samples - 1 if self.degrees is None else self.degrees
        z_alpha, z_beta = t_quantile(1 - alpha / 2, degrees), t_quantile(power, degrees)
        distance = z_alpha * math.sqrt(null) + z_beta * math.sqrt(effect_variance)
        return (distance / effect) ** 2 * (1 - 1e-12)


EXACT_PAIRS = 400
"""Expected pairs that differ up to which power is summed up. Beyond, the normal distribution with a
continuity correction is right to a part in a hundred of the effect."""


def exact_power(samples: int, differ: float, effect: float, alpha: float) -> float:
    """Return the power of McNemar's exact test.

    Args:
        samples: Pairs.
        differ: Share of pairs that differ, in truth.
        effect: True difference of the two rates; at most `differ`.
        alpha: The test rejects below this.
    """
    expected = samples * differ
    if expected > EXACT_PAIRS:
        critical = NormalDist().inv_cdf(1 - alpha / 2) * math.sqrt(expected)
        spread = math.sqrt(max(samples * (differ - effect**2), 1e-300))
        return NormalDist().cdf((samples * effect - 1 - critical) / spread)
    reach = 6 * math.sqrt(expected) + 16  # beyond, less than a millionth is left
    low, high = max(0, int(expected - reach)), min(samples, math.ceil(expected + reach))
    differing = np.arange(low, high + 1)
    # log n (n - 1) … (n - k + 1): factorials of large n would lose the digits that matter.
    falling = np.concatenate([[0.0], np.cumsum(np.log(samples - np.arange(high)))])[low:]
    chances = _binomial(samples, differing, differ, falling - _LOG_FACTORIALS[differing])
    # Of each number of pairs that differ: from the critical wins on, or where wins begin to be
    # likely at all, up to where they no longer are.
    pairs, chance = differing[:, None], min(1.0, (differ + effect) / (2 * differ))
    width = 6 * math.sqrt(high * chance * (1 - chance)) + 8
    critical_wins = _critical_wins(alpha, len(_LOG_FACTORIALS))[low : high + 1, None]
    first = np.maximum(critical_wins, (pairs * chance - width).astype(np.int64))
    wins = first + np.arange(int(2 * width) + 2)
    kept = np.minimum(wins, pairs)
    ways = _LOG_FACTORIALS[pairs] - _LOG_FACTORIALS[kept] - _LOG_FACTORIALS[pairs - kept]
    likely = np.where(wins <= pairs, _binomial(pairs, kept, chance, ways), 0.0)
    return float((chances * likely.sum(axis=1)).sum())


def _binomial(trials: int | Ints, successes: Ints, chance: float, log_ways: Floats) -> Floats:
    """Return the probability of each number of successes, given the logarithm of its ways."""
    failures = trials - successes
    # The logarithm of 0 is -inf where something is asked of it, and else nothing: 0 * -inf is NaN.
    logs = log_ways + np.where(successes > 0, successes * math.log(max(chance, 1e-300)), 0.0)
    other = math.log1p(-chance) if chance < 1 else -1e9
    return np.asarray(np.exp(logs + failures * other))


_LOG_FACTORIALS = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, 2 * EXACT_PAIRS)))])
"""log n! of all numbers of pairs that are summed up."""


@lru_cache(maxsize=16)
def _critical_wins(alpha: float, most: int) -> Ints:
    """Return the wins from which McNemar's exact test rejects, for 0 to `most` pairs that differ.

    Where no number does, it is one more than the pairs.
    """
    log_half = math.log(0.5)
    wins, tail, critical = 1, 0.0, [1]

    def at(pairs: int, count: int) -> float:
        ways = math.lgamma(pairs + 1) - math.lgamma(count + 1) - math.lgamma(pairs - count + 1)
        return math.exp(ways + pairs * log_half)

    for pairs in range(1, most + 1):
        tail += at(pairs - 1, wins - 1) / 2  # a pair more: one win short of it became enough
        if 2 * tail >= alpha:
            tail -= at(pairs, wins)
            wins += 1
        critical.append(wins)
    return np.array(critical, dtype=np.int64)


def _check_usable(variance: float, detect: float) -> None:
    if not variance / detect / detect < USABLE_SAMPLES:
        raise InvalidInput(
            f"it takes more than {USABLE_SAMPLES:g} samples: ask for a larger difference to detect"
        )


def least_effect(is_detected: Callable[[float], bool]) -> float | None:
    """Return the least effect, up to 1, that is detected; None where 1 is not."""
    return bisect(1.0, 0.0, is_detected, steps=40)[0] if is_detected(1.0) else None


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
        raise InvalidInput(f"correlation must be between -1 and 1, got {correlation!r}")
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

    Of values between 0 and 1 it has their shares, too. Where either has no repeats, only the
    variance of the differences of means is known, which is between + within / K for the numbers of
    repeats that were run.

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
    differences = of_b.means - of_a.means
    total = _variance(differences)
    repeats = [len(values) / len(names_a) for values in (values_a, values_b)]
    shares, exact = None, False
    if is_bounded(values_a, values_b, bounded=None):
        shares = ChangedShares.of(differences)
        exact = max(repeats) == 1 and {*values_a, *values_b} <= {0.0, 1.0}
    # McNemar's test of single answers needs no estimate of the variance.
    degrees = math.inf if exact else None
    splits: tuple[tuple[float, float], ...]
    if shares is not None and shares.won == shares.lost == 0:
        splits = ((1.0, 0.0), (0.0, min(repeats)), (0.0, max(repeats)))
    elif of_a.within is not None and of_b.within is not None:
        splits = ((total - of_a.noise - of_b.noise, of_a.within + of_b.within),)
    else:
        splits = ((total, 0.0), (0.0, total * min(repeats)), (0.0, total * max(repeats)))
    return DifferenceVariance(splits, shares, degrees, exact)


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
    degrees = clusters - 1
    return (t_quantile(1 - alpha / 2, degrees) + t_quantile(power, degrees)) * stderr


def detectable_difference(
    difference: PairedDifference | UnpairedDifference, *, power: float = POWER
) -> float | None:
    """Return the minimum detectable effect of a comparison, at the alpha of its own interval.

    Args:
        difference: The comparison.
        power: The probability of detecting the effect.

    Returns:
        The effect; None where values that are not between 0 and 1 show no spread, or even a
        difference of 1 would not be detected.

    Raises:
        InvalidInput: Power is out of range.
    """
    alpha = 1 - difference.confidence
    if isinstance(difference, UnpairedDifference):
        degrees = difference.degrees_of_freedom
        if degrees is None:
            return None
        return minimum_detectable(difference.stderr, degrees + 1, power=power, alpha=alpha)
    degrees, pairs, won, lost = difference.evidence
    if won is None:
        return minimum_detectable(difference.stderr, degrees + 1, power=power, alpha=alpha)
    n, changed = difference.n, difference.wins + difference.losses
    amount, mean = (won + lost) / pairs, (won - lost) / pairs
    step = amount * n / changed if changed else 1.0
    shares = ChangedShares(difference.wins / n, difference.losses / n, step, mean)
    # Samples for each independent pair, times the variance of such a pair.
    variance = n / pairs * (amount - mean**2 if changed else 1.0)
    exact = difference.test == "exact"
    return DifferenceVariance(((variance, 0.0),), shares, degrees, exact).detectable(
        n, power=power, alpha=alpha
    )


def _check_test(power: float, alpha: float) -> None:
    check_fraction(alpha, "alpha")
    check_fraction(power, "power", above=0.5)
