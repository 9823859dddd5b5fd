"""Verdicts on a curve of evals over the same held-out samples, at every evaluation point.

A curve is a matrix of rewards, evaluation points x samples; an item that errored is NaN. At each
point it is improving, regressing, on a plateau, or the data are inconclusive; whether it is higher
than at its start is a question of its own, with an alpha of its own (`Verdict.start`).

Each comparison is a mean over some points less a mean over others, sample by sample (`Reference`),
which averages out the samples that flip at random. Every interval of every point has its own share
of alpha, and all shares ever sum to alpha, so that all intervals of the whole curve hold at once
(`spending_share`, `critical_value`). A plateau is a claim of its own: the gain's interval ends
below a stated effect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import takewhile
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats._input import (
    Ids,
    check_fraction,
    check_matrix,
    cluster_codes,
    clusters_or_none,
)
from heldout.stats.intervals import Floats, Interval, Ints, t_quantile
from heldout.stats.moments import Moments
from heldout.stats.power import POWER, ChangedShares, least_effect

VerdictKind = Literal["improving", "regressing", "plateau", "inconclusive"]

Reference = Literal["previous", "trend", "peak", "recent", "start"]
"""What the latest points are compared with; the window is the last `window` points.

previous: the newer half of the window with its older half. The only one that can say "plateau".
trend: the newest third of the last `TREND_WINDOWS` windows with their oldest third. It finds slow
       changes, and decides only where "previous" points the same way.
peak: the newest quarter of the window with the best block of that size in it. That block is picked
      by its mean, so the interval pays for every block that could have been picked (Bonferroni).
      It can only say "regressing".
recent: the newest quarter of the window with the quarter before. It only withholds "improving"
        from a curve that has stopped: "previous" and "trend" see its rise for many evals more.
start: the newest half of the window with as many of the first points of the curve. It is not about
       now, and has no part in the verdict.
"""
REFERENCES: tuple[Reference, ...] = ("previous", "trend", "peak")

ALPHA = 0.05
WINDOW = 10
TREND_WINDOWS = 3
HALF_SPENT = 20
"""Interim analyses after which half of alpha is spent."""
NOMINAL = 0.025
"""Uncorrected one-sided level at which a fall withholds "improving" and "plateau". To withhold a
claim costs no alpha."""
STOPPED = 0.1
"""Uncorrected one-sided level at which the newest points are too low for a rise to be going on. So
one in ten claims of a steady rise is withheld, and a ceiling is seen within half a window."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A mean difference with its interval.

    Attributes:
        estimate: The mean gain.
        interval: Its interval.
        stderr: Its standard error, with the floor that few samples need (see `gain_interval`).
        minimum_detectable: The gain that this interval detects with 80% power, as small as it is
            (`alpha`) and with the floor; None where it detects none.
    """

    estimate: float
    interval: Interval
    stderr: float
    minimum_detectable: float | None

    @property
    def sign(self) -> int:
        """1 or -1 where the whole interval lies above or below 0, else 0."""
        return int(self.interval.low > 0) - int(self.interval.high < 0)

    @property
    def standardized(self) -> float:
        """The estimate in standard errors."""
        return self.estimate / self.stderr


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """A comparison of the latest points with a reference, paired by sample.

    Attributes:
        reference: What they are compared with.
        old: First and last point of the reference.
        new: First and last of the latest points.
        n: Samples compared.
        gain: What the latest points gained; None for fewer than two clusters, or where all rewards
            are alike and there are no `bounds`: nothing shows then how much they could differ.
        alpha: The error rate of this interval alone, both ends together.
        alpha_share: Its share of the curve's alpha: its error rate where the point before did not
            err.
    """

    reference: Reference
    old: tuple[int, int]
    new: tuple[int, int]
    n: int
    gain: Gain | None
    alpha: float
    alpha_share: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict at an evaluation point.

    Attributes:
        kind: The verdict.
        index: The point, from 0.
        effect: A plateau means no gain as large from the older to the newer half of the window.
        alpha_spent: Alpha spent by all comparisons of all points up to this one.
        comparisons: The comparisons of this point.
        decided: The comparison behind the verdict; where it is inconclusive, the one with the
            window's older half, the rise that `against` contradicts, or the latest points that
            rose no further.
        against: The fall that contradicts a rise; None where nothing does.
        start: The comparison with the first points of the curve; None for a single point.
    """

    kind: VerdictKind
    index: int
    effect: float
    alpha_spent: float
    comparisons: tuple[ReferenceComparison, ...] = ()
    decided: ReferenceComparison | None = None
    against: ReferenceComparison | None = None
    start: ReferenceComparison | None = None

    @property
    def since(self) -> int | None:
        """First point of what the claim is about; None where there is no claim."""
        return None if self.decided is None or self.kind == "inconclusive" else self.decided.old[0]

    @property
    def gain(self) -> Gain | None:
        """What the deciding comparison found; None where nothing was compared."""
        return self.decided.gain if self.decided else None


@dataclass(frozen=True, slots=True)
class Analysis:
    """An interim analysis: its verdict, and what the next one needs."""

    verdict: Verdict
    # The critical value and the differences of the comparison with each reference.
    errors: Mapping[Reference, tuple[float, Floats]] = field(repr=False)
    # Comparisons made so far.
    counts: Mapping[Reference, int]


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether to stop training, from verdicts alone.

    Attributes:
        stop: Whether to stop.
        because: The latest verdict.
        in_a_row: How many verdicts in a row were that one.
    """

    stop: bool
    because: VerdictKind
    in_a_row: int


# --- Verdicts -----------------------------------------------------------------------------------


def monitor(
    rewards: ArrayLike,
    clusters: Ids | None = None,
    *,
    effect: float,
    alpha: float = ALPHA,
    window: int = WINDOW,
    bounds: tuple[float, float] | None = None,
) -> tuple[Verdict, ...]:
    """Judge a curve at every evaluation point.

    No verdict depends on later points, so alpha holds over all interim analyses.

    Args:
        rewards: Evaluation points x samples, NaN or None where an item errored.
        clusters: The cluster of each sample; None: samples are independent.
        effect: The gain from the older to the newer half of the window that is worth having.
        alpha: Probability of any false "improving" or "regressing" over the whole curve.
        window: Points of which the newer half is compared with the older half.
        bounds: The least and the largest possible reward. Without them those seen so far stand for
            them, and no plateau is claimed.

    Returns:
        One verdict per point.

    Raises:
        InvalidInput: The rewards are no finite table, or a setting makes no sense.
    """
    check_settings(effect, alpha, window)
    table = check_matrix(rewards, "rewards", "point", "sample", gaps=True)
    groups = clusters_or_none(clusters, table.shape[1])
    analysis, verdicts = None, []
    for count in range(1, len(table) + 1):
        analysis = analyze_next(
            table[:count],
            analysis,
            groups,
            effect=effect,
            alpha=alpha,
            window=window,
            bounds=bounds,
        )
        verdicts.append(analysis.verdict)
    return tuple(verdicts)


def analyze_next(
    table: Floats,
    before: Analysis | None,
    groups: Ints | None = None,
    *,
    effect: float,
    alpha: float = ALPHA,
    window: int = WINDOW,
    bounds: tuple[float, float] | None = None,
    seen: tuple[float, float] | None = None,
) -> Analysis:
    """Judge the last row of a table of rewards, without judging the earlier rows again.

    Since the analysis before, rows may have come in before the last one (evals that ended late),
    and samples at the end of all rows. `seen` are the least and the largest reward, where the
    caller keeps track of them.
    """
    scale = _scale(seen or _span(table), bounds)
    counts = dict(before.counts) if before else {}
    errors: dict[Reference, tuple[float, Floats]] = {}
    comparisons: dict[Reference, ReferenceComparison] = {}
    for reference, (old, new, candidates) in _blocks(table, window).items():
        counts[reference] = counts.get(reference, 0) + 1
        share = alpha * spending_share(counts[reference])
        if reference in REFERENCES:
            share /= len(REFERENCES)
        differences = _differences(table, old, new)
        critical = math.inf
        interval_alpha = share / candidates
        if candidates == 1:  # a block picked by its rewards shares nothing with the point before
            previous, correlation = math.inf, 0.0
            if before is not None and reference in before.errors:
                previous, earlier = before.errors[reference]
                correlation = least_correlation(differences, earlier, groups)
            critical = critical_value(share, correlation=correlation, previous=previous)
            interval_alpha = math.erfc(critical / math.sqrt(2))
        errors[reference] = critical, differences
        comparisons[reference] = _compare(
            differences, groups, reference, old, new, interval_alpha, share, scale
        )
    start = comparisons.pop("start", None)
    drop = recent = None
    if len(table) > 1:
        old, new = _peak(table[-2 * (window // 2) :], len(table), size=1)
        differences = _differences(table, old, new)
        drop = _compare(differences, groups, "peak", old, new, 2 * NOMINAL, 0.0, scale)
        old, new = _recent(len(table), window)
        differences = _differences(table, old, new)
        interval_alpha = comparisons["previous"].alpha
        recent = _compare(differences, groups, "recent", old, new, interval_alpha, 0.0, scale)
    claims = alpha / len(REFERENCES)
    spent = sum(claims * counts[r] / (counts[r] + HALF_SPENT) for r in REFERENCES if r in counts)
    can_plateau = bounds is not None and len(table) >= 2 * (window // 2)
    decision = _decide(comparisons, drop, recent, effect if can_plateau else -math.inf)
    compared = tuple(comparisons.values())
    verdict = Verdict(decision[0], len(table) - 1, effect, spent, compared, *decision[1:], start)
    return Analysis(verdict, errors, counts)


def advise(
    verdicts: Sequence[Verdict], *, regressing: int | None = 1, plateau: int | None = 3
) -> Advice:
    """Say whether to stop training; "improving" and "inconclusive" go on.

    Args:
        verdicts: All so far.
        regressing: Stop after so many "regressing" in a row; None: never.
        plateau: Stop after so many "plateau" in a row; None: never.

    Returns:
        The advice, and what it rests on.

    Raises:
        InvalidInput: There is no verdict yet.
    """
    if not verdicts:
        raise InvalidInput("advice needs at least one verdict: run an eval first")
    latest = verdicts[-1].kind
    in_a_row = sum(1 for _ in takewhile(lambda verdict: verdict.kind == latest, reversed(verdicts)))
    needed = {"regressing": regressing, "plateau": plateau}.get(latest)
    return Advice(needed is not None and in_a_row >= needed, latest, in_a_row)


def _decide(
    comparisons: Mapping[Reference, ReferenceComparison],
    drop: ReferenceComparison | None,
    recent: ReferenceComparison | None,
    plateau_below: float,
) -> tuple[VerdictKind, ReferenceComparison | None, ReferenceComparison | None]:
    """Return the verdict, the comparison behind it, and the fall that contradicts a rise."""
    previous, trend, peak = (comparisons.get(reference) for reference in REFERENCES)
    if previous is None or previous.gain is None:
        return "inconclusive", previous, None
    # A fall has the first word: from the older half of the window, from its peak, over the trend.
    sign, direction = previous.gain.sign, previous.gain.standardized
    trend_sign = trend.gain.sign if trend and trend.gain else 0
    if sign < 0:
        return "regressing", previous, None
    if peak is not None and peak.gain is not None and peak.gain.sign < 0:
        return "regressing", peak, None
    if trend_sign < 0 and direction < -1:
        return "regressing", trend, None
    limit = NormalDist().inv_cdf(NOMINAL)
    drops = (c for c in (peak, drop, previous) if c and c.gain and c.gain.standardized < limit)
    fallen = next(drops, None)
    if sign > 0 and fallen is not None:
        return "inconclusive", previous, fallen
    if sign > 0 and not _has_stopped(previous, recent):
        return "improving", previous, None
    if fallen is None and previous.gain.interval.high < plateau_below:
        return "plateau", previous, None
    if sign > 0:
        return "inconclusive", recent, None
    if trend_sign > 0:
        if fallen is not None or direction < 0:
            return "inconclusive", trend, fallen or previous
        if direction > 1 and trend is not None:
            if _has_stopped(trend, recent):
                return "inconclusive", recent, None
            return "improving", trend, None
    return "inconclusive", previous, None


def _has_stopped(rise: ReferenceComparison, recent: ReferenceComparison | None) -> bool:
    """Return whether the newest points fall short of the pace of a rise, by more than chance."""
    if recent is None or recent.gain is None or rise.gain is None:
        return False
    pace = rise.gain.estimate / (rise.new[0] - rise.old[0])
    expected = pace * (recent.new[0] - recent.old[0])
    return recent.gain.estimate < expected + NormalDist().inv_cdf(STOPPED) * recent.gain.stderr


# --- What is compared ---------------------------------------------------------------------------

_PointRange = tuple[int, int]


def _blocks(table: Floats, window: int) -> dict[Reference, tuple[_PointRange, _PointRange, int]]:
    """Return the older and newer points of each comparison, and the candidates for the older.

    Blocks are shorter while the curve is shorter than its windows.
    """
    points = len(table)
    last, half = points - 1, min(window, points) // 2
    blocks: dict[Reference, tuple[_PointRange, _PointRange, int]] = {}
    if half:
        blocks["previous"] = (points - 2 * half, last - half), (points - half, last), 1
    start = max(0, points - TREND_WINDOWS * window)
    # Of contrasts of two equal blocks, thirds lose least against the slope of least squares: 8/9 of
    # its efficiency for a steady trend (Bartlett 1949, Biometrics 5).
    third = (points - start) // 3
    if third:
        blocks["trend"] = (start, start + third - 1), (points - third, last), 1
    if half > 1:
        size = half // 2
        blocks["peak"] = *_peak(table[-2 * half :], points, size), 2 * (half - size) + 1
    if half:
        blocks["start"] = (0, half - 1), (points - half, last), 1
    return blocks


def _recent(points: int, window: int) -> tuple[_PointRange, _PointRange]:
    """Return the quarter of the window before the newest one, and the newest one."""
    size = max(1, min(window, points) // 4)
    return (points - 2 * size, points - size - 1), (points - size, points - 1)


def _peak(recent: Floats, points: int, size: int) -> tuple[_PointRange, _PointRange]:
    """Return the best block among the recent points, and the latest; the later one on ties."""
    present = ~np.isnan(recent)
    ones = np.ones(size)
    sums = np.convolve(np.where(present, recent, 0.0).sum(axis=1), ones, "valid")[:-size]
    counts = np.convolve(present.sum(axis=1), ones, "valid")[:-size]
    means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    start = points - len(recent) + len(means) - 1 - int(np.argmax(means[::-1]))
    return (start, start + size - 1), (points - size, points - 1)


def _compare(
    differences: Floats,
    groups: Ints | None,
    reference: Reference,
    old: _PointRange,
    new: _PointRange,
    alpha: float,
    share: float,
    scale: float,
) -> ReferenceComparison:
    present = ~np.isnan(differences)
    members = None if groups is None else groups[present]
    gain = gain_interval(differences[present], members, alpha=alpha, scale=scale)
    return ReferenceComparison(reference, old, new, int(present.sum()), gain, alpha, share)


def gain_interval(
    differences: Floats, clusters: Ints | None = None, *, alpha: float, scale: float
) -> Gain | None:
    """Return the mean of paired differences with a t interval that few samples do not break.

    To the square of the clustered error is added 2 (scale * largest cluster / n)^2: the spread of
    two more samples, one that rose all the way and one that fell (after Agresti and Min 2005,
    Statistics in Medicine 24), or samples that did not change would pass for certainty. `scale` is
    the largest possible difference. None for fewer than two clusters, or a scale of zero.
    """
    n = len(differences)
    if n < 2 or scale <= 0:
        return None
    codes = None if clusters is None else cluster_codes(clusters, n)
    moments = Moments.of(differences, codes)
    mean, error = moments.mean, moments.stderr
    if mean is None or error is None:
        return None
    largest = 1 if codes is None else int(np.bincount(codes).max())
    stderr = math.sqrt(error**2 + 2 * (scale * largest / n) ** 2)
    quantile = t_quantile(1 - alpha / 2, moments.degrees)
    margin = quantile * stderr
    detectable = _detectable_gain(
        differences / scale, error / scale, moments.clusters, largest, quantile
    )
    # A mean of differences cannot be larger than the largest of them can be.
    low, high = max(-scale, mean - margin), min(scale, mean + margin)
    interval = Interval(min(low, mean), max(high, mean))
    return Gain(mean, interval, stderr, None if detectable is None else scale * detectable)


def _detectable_gain(
    differences: Floats, error: float, groups: int, largest: int, quantile: float
) -> float | None:
    """Return the gain that the interval detects with 80% power, as a part of the scale.

    A gain takes samples that differ, as in any comparison (`ChangedShares`); the floor, and a
    quantile for a share of alpha, make it larger here.
    """
    n, shares = len(differences), ChangedShares.of(differences)
    variance = n * error**2 if shares.won or shares.lost else n / groups
    floor, z = 2 * (largest / n) ** 2, NormalDist().inv_cdf(POWER)

    def is_detected(gain: float) -> bool:
        square = shares.variances(variance, gain)[1] / n
        return gain >= quantile * math.sqrt(square + floor) + z * math.sqrt(square)

    return least_effect(is_detected)


def _differences(table: Floats, old: _PointRange, new: _PointRange) -> Floats:
    return _means(table[new[0] : new[1] + 1]) - _means(table[old[0] : old[1] + 1])


def _means(block: Floats) -> Floats:
    """Each sample's mean over the points where it has a reward; NaN where it has none."""
    absent = np.isnan(block)
    if not absent.any():
        return np.asarray(block.mean(axis=0))
    counts = (~absent).sum(axis=0)
    sums = np.where(absent, 0.0, block).sum(axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


# --- Alpha spending -----------------------------------------------------------------------------


def spending_share(analysis: int) -> float:
    """Return the part of alpha that an interim analysis (from 1) may use; the parts sum to 1.

    h / ((t + h - 1) (t + h)) with h = `HALF_SPENT`: after t analyses t / (t + h) is spent (Lan and
    DeMets 1983, Biometrika 70).
    """
    return HALF_SPENT / ((analysis + HALF_SPENT - 1) * (analysis + HALF_SPENT))


@lru_cache(maxsize=65536)
def critical_value(alpha: float, *, correlation: float = 0.0, previous: float = math.inf) -> float:
    """Return the c with P(|Z| > c and |Y| <= previous) = alpha, rounded up to hundredths.

    Z is this analysis' standardized error and Y that of the one before, normal with a correlation
    of at least `correlation`. The chance that any analysis errs is at most the sum over all of the
    chance that one errs where the one before did not (Worsley 1982, Biometrika 69).
    """
    alone = -NormalDist().inv_cdf(alpha / 2)
    if correlation == 0 or math.isinf(previous):
        return math.ceil(alone * 100) / 100
    points, weights = _LEGENDRE
    y = previous * points
    density = previous * weights * np.exp(-y * y / 2) / math.sqrt(2 * math.pi)
    spread = math.sqrt(2 * (1 - correlation**2))

    # Y and -Y miss alike: half of the points, twice.
    half = len(y) // 2
    means, halves = (correlation * y[half:] / spread).tolist(), density[half:]

    def beyond(c: float) -> float:
        at = c / spread
        return float(np.dot(halves, [math.erfc(at - m) + math.erfc(at + m) for m in means]))

    # In hundredths: c at `low` misses too often, at `high` it does not. A bracket around the one
    # before is tried first.
    low, high = 0, math.ceil(alone * 100)
    near = round(previous * 100)
    for c in (near + 2, near - 3):
        if low < c < high:
            low, high = (low, c) if beyond(c / 100) <= alpha else (c, high)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if beyond(middle / 100) <= alpha else (middle, high)
    return high / 100


_LEGENDRE = np.polynomial.legendre.leggauss(64)


def least_correlation(now: Floats, before: Floats, groups: Ints | None) -> float:
    """Return a lower 95% bound of how the errors of two comparisons correlate (Fisher 1921).

    Over the samples that both have, `before` perhaps fewer; by cluster, where there are some.
    """
    now = now[: len(before)]
    both = ~np.isnan(now) & ~np.isnan(before)
    if both.sum() < 5:
        return 0.0
    x, y = now[both] - now[both].mean(), before[both] - before[both].mean()
    if groups is not None:
        members = groups[: len(before)][both]
        present = np.bincount(members) > 0
        x, y = (np.bincount(members, weights=values)[present] for values in (x, y))
    norm = math.sqrt(float(np.dot(x, x)) * float(np.dot(y, y)))
    if norm <= 0 or len(x) < 5:
        return 0.0
    r = min(0.999, abs(float(np.dot(x, y)) / norm))
    return max(0.0, math.floor(math.tanh(math.atanh(r) - 1.645 / math.sqrt(len(x) - 3)) * 50) / 50)


# --- Input --------------------------------------------------------------------------------------


def check_settings(effect: float, alpha: float, window: int) -> None:
    """Refuse settings that make no sense."""
    if not effect > 0:
        raise InvalidInput(f"effect must be more than 0, got {effect}: a gain worth having")
    check_fraction(alpha, "alpha")
    if window < 2:
        raise InvalidInput(f"window must be at least 2 evals, got {window}")


def _span(table: Floats) -> tuple[float, float]:
    """The least and the largest reward; inf and -inf where there is none."""
    least = np.fmin.reduce(table, axis=None, initial=math.inf)
    return float(least), float(np.fmax.reduce(table, axis=None, initial=-math.inf))


def _scale(seen: tuple[float, float], bounds: tuple[float, float] | None) -> float:
    if bounds is None:
        return max(0.0, seen[1] - seen[0])
    low, high = bounds
    if seen[0] < low or seen[1] > high:
        raise InvalidInput(
            f"rewards from {seen[0]:g} to {seen[1]:g} lie outside the bounds "
            f"{low:g} to {high:g}: widen the bounds, or leave them out"
        )
    return float(high - low)
