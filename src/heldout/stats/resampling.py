"""Aggregates of a score matrix, runs x tasks, with stratified bootstrap intervals.

    bootstrap(scores, "interquartile_mean")     one algorithm over its tasks
    bootstrap_difference(x, y, "mean")          what x has over y
    bootstrap_improvement(x, y)                 the chance that a run of x beats one of y

The statistics are those of R. Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of
the Statistical Precipice" (arXiv 2108.13264): runs are drawn with replacement within each task, and
the interval is between percentiles (B. Efron (1979), Annals of Statistics 7).

A resample is not built. How often each run was drawn says everything about it, and those counts
are rows of small integers, which one operation handles for thousands of resamples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.errors import InvalidInput
from heldout.stats._input import check_fraction, check_matrix
from heldout.stats.intervals import CONFIDENCE, Floats, Interval

Statistic = Literal["interquartile_mean", "mean", "median", "optimality_gap"]
"""How the scores of several tasks become one number."""
Counts = NDArray[np.unsignedinteger[Any]]

REPETITIONS = 50_000
TRIMMED = 0.25
"""The share of all scores that an interquartile mean leaves out on each side."""

CHUNK_WIDTH = 4096
"""Resamples at a time: their counts should stay in the cache."""
CACHE_BYTES = 2**21
BLOCK = 64
"""Rows of counts that are summed before it is known whether they matter."""


@dataclass(frozen=True, slots=True)
class BootstrapEstimate:
    """A statistic of scores, with the interval from resampling them.

    Attributes:
        value: The statistic of the scores as they are.
        interval: None where no task has two different scores to draw from, as with one run: all
            resamples are the same then, and say nothing about the next run.
        confidence: Of the interval.
        repetitions: Resamples.
        seed: Of the draws.
    """

    value: float
    interval: Interval | None
    confidence: float
    repetitions: int
    seed: int


# --- Statistics and their intervals -------------------------------------------------------------


def compute_statistic(scores: ArrayLike, statistic: Statistic, *, optimum: float = 1.0) -> float:
    """Return a statistic of scores, runs x tasks (Agarwal 2021, 4.3)."""
    matrix = check_matrix(scores, "scores", "run", "task")
    if statistic == "interquartile_mean":
        ordered = np.sort(matrix, axis=None)
        cut = int(TRIMMED * len(ordered))
        return float(ordered[cut : len(ordered) - cut].mean())
    if statistic == "mean":
        return float(matrix.mean(axis=0).mean())
    if statistic == "median":
        is_single = matrix.shape[1] == 1
        return float(np.median(matrix if is_single else matrix.mean(axis=0)))
    if statistic == "optimality_gap":
        return float(optimum - np.minimum(matrix, optimum).mean())
    raise InvalidInput(f"no statistic {statistic!r}; there are {', '.join(get_args(Statistic))}")


def improvement_probability(x: ArrayLike, y: ArrayLike) -> float:
    """Return the probability that a run of x beats one of y on the same task, mean over tasks.

    The statistic of Mann and Whitney (1947, Annals of Mathematical Statistics 18) over the number
    of pairs: a tie is half a win.
    """
    ours, theirs = _check_sides(x, y)
    wins = 0
    for task in range(ours.shape[1]):
        column = np.sort(theirs[:, task])
        wins += int(np.searchsorted(column, ours[:, task], side="left").sum())
        wins += int(np.searchsorted(column, ours[:, task], side="right").sum())
    return wins / (2 * len(ours) * theirs.size)


def bootstrap(
    scores: ArrayLike,
    statistic: Statistic = "interquartile_mean",
    *,
    repetitions: int = REPETITIONS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    optimum: float = 1.0,
) -> BootstrapEstimate:
    """Return a statistic of scores with its percentile interval (Agarwal 2021, 4.2).

    Args:
        scores: Runs x tasks.
        statistic: "interquartile_mean" is the mean of the middle half of all scores, a quarter,
            rounded down, left out on each side; "mean" and "median" are over tasks of the mean
            over runs, but of a single task the median is that of the runs; "optimality_gap" is
            how much scores miss an optimum on average.
        repetitions: Resamples.
        confidence: Of the interval.
        seed: The same seed draws the same runs for every statistic.
        optimum: Of the optimality gap: higher scores count as this.

    Raises:
        InvalidInput: The scores are no finite matrix, or the statistic is unknown.
    """
    matrix = check_matrix(scores, "scores", "run", "task")
    value = compute_statistic(matrix, statistic, optimum=optimum)
    values = resample(matrix, statistic, repetitions=repetitions, seed=seed, optimum=optimum)
    interval = _percentiles(values, confidence) if _varies(matrix) else None
    return BootstrapEstimate(value, interval, confidence, repetitions, seed)


def bootstrap_difference(
    x: ArrayLike,
    y: ArrayLike,
    statistic: Statistic = "interquartile_mean",
    *,
    repetitions: int = REPETITIONS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    optimum: float = 1.0,
) -> BootstrapEstimate:
    """Return what a statistic of x has over that of y, with its percentile interval.

    The runs of both sides are drawn independently.

    Args:
        x: Runs x tasks.
        y: Runs x tasks, the same tasks in the same order.
        statistic: As for `bootstrap`.
        repetitions: Resamples.
        confidence: Of the interval.
        seed: Of the draws.
        optimum: Of the optimality gap.

    Raises:
        InvalidInput: The scores are no finite matrices, or of other tasks.
    """
    ours, theirs = _check_sides(x, y)
    settings: Any = {"repetitions": repetitions, "optimum": optimum}
    value = compute_statistic(ours, statistic, optimum=optimum)
    value -= compute_statistic(theirs, statistic, optimum=optimum)
    values = resample(ours, statistic, seed=(seed, 0), **settings)
    values = values - resample(theirs, statistic, seed=(seed, 1), **settings)
    interval = _percentiles(values, confidence) if _varies(ours) and _varies(theirs) else None
    return BootstrapEstimate(value, interval, confidence, repetitions, seed)


def count_resamples(runs: int, tasks: int) -> int:
    """Return how many different resamples there are: of three runs of one task ten."""
    ways: int = math.comb(2 * runs - 1, runs) ** tasks
    return ways


def bootstrap_improvement(
    x: ArrayLike,
    y: ArrayLike,
    *,
    repetitions: int = REPETITIONS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> BootstrapEstimate:
    """Return the probability of improvement of x over y with its percentile interval.

    Where every x beats every y, so does it in every resample: the interval is then a point, and too
    good to be true for few runs.

    Args:
        x: Runs x tasks.
        y: Runs x tasks, the same tasks in the same order.
        repetitions: Resamples.
        confidence: Of the interval.
        seed: Of the draws.

    Raises:
        InvalidInput: The scores are no finite matrices, or of other tasks.
    """
    ours, theirs = _check_sides(x, y)
    value = improvement_probability(ours, theirs)
    values = _improvements(ours, theirs, repetitions, seed)
    interval = _percentiles(values, confidence) if _varies(ours) or _varies(theirs) else None
    return BootstrapEstimate(value, interval, confidence, repetitions, seed)


def _check_sides(x: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats]:
    ours, theirs = check_matrix(x, "x", "run", "task"), check_matrix(y, "y", "run", "task")
    if ours.shape[1] != theirs.shape[1]:
        raise InvalidInput(
            f"x has {ours.shape[1]} tasks and y {theirs.shape[1]}; column by column they are "
            "compared, so both need the same tasks in the same order"
        )
    return ours, theirs


def _percentiles(values: Floats, confidence: float) -> Interval:
    check_fraction(confidence, "confidence")
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


def _varies(matrix: Floats) -> bool:
    return bool((matrix != matrix[0]).any())


# --- Resampling ---------------------------------------------------------------------------------


Seed = int | tuple[int, ...]


def resample(
    matrix: Floats, statistic: Statistic, *, repetitions: int, seed: Seed = 0, optimum: float = 1.0
) -> Floats:
    """Return the statistic of each resample of a finite matrix."""
    if statistic == "median" and matrix.shape[1] == 1:
        return _medians(matrix[:, 0], repetitions, seed)
    if statistic == "interquartile_mean":
        return _interquartile_means(matrix, repetitions, seed)
    if statistic == "optimality_gap":
        means = _task_means(np.minimum(matrix, optimum), repetitions, seed)
        return np.asarray(optimum - means.mean(axis=0))
    means = _task_means(matrix, repetitions, seed)
    return np.asarray(np.median(means, axis=0) if statistic == "median" else means.mean(axis=0))


def _medians(scores: Floats, repetitions: int, seed: Seed) -> Floats:
    """Return the median of each resample of the runs of one task."""
    runs, order = len(scores), np.argsort(scores, kind="stable")
    ordered = scores[order]
    width, chunks = _cut_into_chunks(repetitions, 8 * runs)
    rng = np.random.default_rng(seed)
    medians = np.empty(chunks[-1].stop)
    for chunk in chunks:
        drawn = np.cumsum(_draw_counts(rng, runs, width)[order], axis=0, dtype=np.int64)
        # The middle one, or the two of an even number.
        places = [(drawn > middle).argmax(axis=0) for middle in ((runs - 1) // 2, runs // 2)]
        medians[chunk] = (ordered[places[0]] + ordered[places[1]]) / 2
    return medians[:repetitions]


def _interquartile_means(matrix: Floats, repetitions: int, seed: Seed) -> Floats:
    """Return each resample's interquartile mean, from the counts of the pooled, sorted scores."""
    runs, tasks = matrix.shape
    pooled = matrix.T.ravel()
    order = np.argsort(pooled, kind="stable")
    place = np.empty(matrix.size, dtype=np.intp)
    place[order] = np.arange(matrix.size)
    rows = place.reshape(tasks, runs)
    ordered = pooled[order]
    gaps = np.diff(ordered, append=ordered[-1])
    cut = int(TRIMMED * matrix.size)
    width, chunks = _cut_into_chunks(repetitions, matrix.size)
    rng = np.random.default_rng(seed)
    counts = np.empty((matrix.size, width), dtype=np.uint8 if runs < 2**8 else np.uint32)
    sums = np.empty(chunks[-1].stop)
    for chunk in chunks:
        for task in range(tasks):
            counts[rows[task]] = _draw_counts(rng, runs, width)
        sums[chunk] = _trimmed_sums(counts, gaps, cut)
    return float(ordered[matrix.size // 2]) + sums[:repetitions] / (matrix.size - 2 * cut)


def _trimmed_sums(counts: Counts, gaps: Floats, cut: int) -> Floats:
    """Sum what trimming keeps, each score less the middle one, for each column of counts.

    With C(i) the number drawn of the i + 1 lowest scores, clip(C(i), cut, size - cut) - cut of
    those are kept. Summed by parts over the gaps between neighbours, a score far out that is
    trimmed adds exactly nothing, and rows that are trimmed in all columns can be left out.
    """
    size, width = counts.shape
    middle = size // 2
    small = np.int16 if size < 2**15 and counts.dtype == np.uint8 else np.int64
    buffer = np.empty((BLOCK, width), dtype=small)
    below = np.zeros(width, dtype=small)
    sums = np.zeros(width)
    starts = [*range(0, middle, BLOCK), *range(middle, size, BLOCK)]
    for first, last in zip(starts, [*starts[1:], size], strict=True):
        block, cumulative = counts[first:last], buffer[: last - first]
        before, below = below, below + block.sum(axis=0, dtype=small)
        if first < middle:
            seen_from_middle, trimmed = cut, below.max() <= cut
        else:
            seen_from_middle, trimmed = size - cut, before.min() >= size - cut
        if trimmed or not gaps[first:last].any():
            continue
        _accumulate(before, block, cumulative)
        np.clip(cumulative, cut, size - cut, out=cumulative)
        cumulative -= small(seen_from_middle)
        sums -= np.einsum("i,ij->j", gaps[first:last], cumulative)
    return sums


def _accumulate(start: NDArray[Any], counts: Counts, out: NDArray[Any]) -> None:
    """Sum down the rows. `np.cumsum` goes column by column, many times slower."""
    for above, row, target in zip([start, *out[:-1]], counts, out, strict=True):
        np.add(above, row, out=target, dtype=out.dtype)


def _task_means(matrix: Floats, repetitions: int, seed: Seed) -> Floats:
    """Return the mean of each task (a row) in each resample (a column)."""
    runs, tasks = matrix.shape
    center = matrix.mean(axis=0)
    distance = matrix - center
    width, chunks = _cut_into_chunks(repetitions, matrix.size)
    rng = np.random.default_rng(seed)
    means = np.empty((tasks, chunks[-1].stop))
    for chunk in chunks:
        for task in range(tasks):
            counts = _draw_counts(rng, runs, width)
            means[task, chunk] = np.einsum("i,ij->j", distance[:, task], counts)
    return np.asarray(means[:, :repetitions] / runs + center[:, None])


def _improvements(ours: Floats, theirs: Floats, repetitions: int, seed: int) -> Floats:
    """Return the probability of improvement in each resample.

    With the runs of y in order, the number drawn of those below a score is a cumulative count; a
    score between `left` and `right` of them ties with the rest, and a tie is half a win.
    """
    tasks = ours.shape[1]
    pairs = len(ours) * len(theirs)
    small = np.int32 if pairs < 2**30 else np.int64
    theirs = np.sort(theirs, axis=0)
    width, chunks = _cut_into_chunks(repetitions, 8 * max(len(ours), len(theirs)))
    rng = np.random.default_rng(seed)
    beaten = np.zeros((len(theirs) + 1, width), dtype=small)
    doubled, tied = (np.empty((len(ours), width), dtype=small) for _ in range(2))
    wins = np.zeros(chunks[-1].stop, dtype=np.int64)
    for chunk in chunks:
        for task in range(tasks):
            _accumulate(beaten[0], _draw_counts(rng, len(theirs), width), beaten[1:])
            left = np.searchsorted(theirs[:, task], ours[:, task], side="left")
            right = np.searchsorted(theirs[:, task], ours[:, task], side="right")
            # "clip" is never needed, and without it numpy would copy what it has taken.
            np.take(beaten, left, axis=0, out=doubled, mode="clip")
            np.take(beaten, right, axis=0, out=tied, mode="clip")
            doubled += tied
            doubled *= _draw_counts(rng, len(ours), width)
            wins[chunk] += doubled.sum(axis=0)
    return np.asarray(wins[:repetitions] / (2 * pairs * tasks))


# --- Draws --------------------------------------------------------------------------------------


def _cut_into_chunks(repetitions: int, bytes_each: int) -> tuple[int, list[slice]]:
    """Return the width of chunks, and their slices; the last may reach beyond `repetitions`."""
    if repetitions < 1:
        raise InvalidInput(f"repetitions is {repetitions}; an interval needs at least one")
    width = min(CHUNK_WIDTH, max(BLOCK, CACHE_BYTES // bytes_each), repetitions)
    return width, [slice(start, start + width) for start in range(0, repetitions, width)]


def _draw_counts(rng: np.random.Generator, runs: int, width: int) -> Counts:
    """Draw as many runs as there are, with replacement, for `width` resamples of a task.

    Binning draws takes a quarter of the time of `rng.multinomial`.

    Returns:
        How often each run (a row) is in each resample (a column).
    """
    cells = rng.integers(0, runs, size=(runs, width))
    cells *= width
    cells += np.arange(width)
    counts = np.bincount(cells.ravel(), minlength=runs * width).reshape(runs, width)
    return counts.astype(np.uint8 if runs < 2**8 else np.uint32)
