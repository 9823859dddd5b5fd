"""pass@k and pass^k: does one of k attempts succeed, do all of k attempts succeed.

Both are estimated from n >= k attempts at a question, c of which succeeded, without bias.

    pass@k = 1 - C(n - c, k) / C(n, k)      M. Chen et al. (2021), arXiv 2107.03374, eq. 1
    pass^k = C(c, k) / C(n, k)              S. Yao et al. (2024), "tau-bench", arXiv 2406.12045
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats._input import Ids, check_fraction
from heldout.stats.intervals import CONFIDENCE, Floats, Interval, Ints
from heldout.stats.moments import Moments

SAMPLES_NAMED = 5
"""Samples that an error names; of others it has the number."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """A mean over questions of pass@k or pass^k.

    Attributes:
        value: The mean.
        stderr: Its standard error; None for fewer than two clusters.
        interval: Its interval.
        questions: Questions.
        clusters: Clusters of questions.
    """

    value: float
    stderr: float | None
    interval: Interval | None
    questions: int
    clusters: int


# --- Averaged over questions --------------------------------------------------------------------


def pass_at_k(
    attempts: ArrayLike,
    successes: ArrayLike,
    *,
    k: int,
    clusters: Ids | None = None,
    names: Sequence[str] | None = None,
    confidence: float = CONFIDENCE,
) -> PassRate:
    """Return the probability that at least one of k attempts succeeds, as a mean over questions.

    Every question counts the same, however many attempts it had (Chen 2021).

    Args:
        attempts: Attempts at each question.
        successes: Successes among them.
        k: Attempts that are drawn.
        clusters: The cluster of each question (a shared passage); None: each is independent.
        names: Names of the questions, for errors.
        confidence: Of the interval.

    Returns:
        The mean with its interval.

    Raises:
        InvalidInput: A question has fewer than k attempts, or counts make no sense.
    """
    values = pass_at_k_by_question(attempts, successes, k=k, names=names)
    return _average(values, clusters, confidence)


def pass_hat_k(
    attempts: ArrayLike,
    successes: ArrayLike,
    *,
    k: int,
    clusters: Ids | None = None,
    names: Sequence[str] | None = None,
    confidence: float = CONFIDENCE,
) -> PassRate:
    """Return pass^k: the probability that all of k attempts succeed, as a mean over questions.

    Every question counts the same, however many attempts it had (Yao 2024).

    Args:
        attempts: Attempts at each question.
        successes: Successes among them.
        k: Attempts that are drawn.
        clusters: The cluster of each question (a shared passage); None: each is independent.
        names: Names of the questions, for errors.
        confidence: Of the interval.

    Returns:
        The mean with its interval.

    Raises:
        InvalidInput: A question has fewer than k attempts, or counts make no sense.
    """
    values = pass_hat_k_by_question(attempts, successes, k=k, names=names)
    return _average(values, clusters, confidence)


def _average(values: Floats, clusters: Ids | None, confidence: float) -> PassRate:
    check_fraction(confidence, "confidence")
    moments = Moments.of(values, clusters)
    return PassRate(
        value=math.fsum(values) / len(values),
        stderr=moments.stderr,
        interval=moments.interval(confidence, bounded=True),
        questions=len(values),
        clusters=moments.clusters,
    )


# --- For each question --------------------------------------------------------------------------


def pass_at_k_by_question(
    attempts: ArrayLike, successes: ArrayLike, *, k: int, names: Sequence[str] | None = None
) -> Floats:
    """Return 1 - C(n - c, k) / C(n, k) for each question (Chen 2021, eq. 1)."""
    n, c = _check_counts(attempts, successes, k, names)
    # By way of the logarithm: 1 minus almost 1 would leave few digits of a small pass@k.
    # (0.0 - x rather than -x, or no success at all would be -0.0.)
    return 0.0 - np.expm1(_log_chance_to_miss(n, c, k))


def pass_hat_k_by_question(
    attempts: ArrayLike, successes: ArrayLike, *, k: int, names: Sequence[str] | None = None
) -> Floats:
    """Return C(c, k) / C(n, k) for each question: k drawn miss all n - c failures (Yao 2024)."""
    n, c = _check_counts(attempts, successes, k, names)
    return np.exp(_log_chance_to_miss(n, n - c, k))


def _log_chance_to_miss(n: Ints, marked: Ints, k: int) -> Floats:
    """Return log of C(n - m, k) / C(n, k): k drawn of n, without replacement, miss all m marked.

    k and m may change places; of the two products of ratios the shorter one is taken.
    """
    pairs, where = np.unique(np.stack([n, marked]), axis=1, return_inverse=True)
    logs = np.empty(pairs.shape[1])
    for i, (total, hit) in enumerate(pairs.T.tolist()):
        if hit > total - k:
            logs[i] = -np.inf
            continue
        left = total - np.arange(min(hit, k), dtype=np.float64)
        share = max(hit, k) / left
        few = share < 0.5
        logs[i] = np.log1p(-share[few]).sum()
        logs[i] += np.log((left[~few] - max(hit, k)) / left[~few]).sum()
    return logs[where.reshape(-1)]


def _check_counts(
    attempts: ArrayLike, successes: ArrayLike, k: int, names: Sequence[str] | None
) -> tuple[Ints, Ints]:
    n, c = np.asarray(attempts), np.asarray(successes)
    if n.size == 0:
        raise InvalidInput("no samples; pass@k and pass^k need at least one")
    if n.ndim != 1 or n.shape != c.shape or {n.dtype.kind, c.dtype.kind} - {*"iu"}:
        raise InvalidInput(
            "attempts and successes must be whole numbers, one of each for every sample; got "
            f"{n.dtype} of shape {n.shape} and {c.dtype} of shape {c.shape}"
        )
    if k < 1:
        raise InvalidInput(f"k is {k!r}; it is a whole number, at least 1")
    wrong = np.flatnonzero((c < 0) | (c > n))
    if len(wrong):
        raise InvalidInput(
            f"successes are not between 0 and the attempts for {_list_samples(wrong, names)}: "
            f"{c[wrong[0]]} of {n[wrong[0]]} at the first"
        )
    short = np.flatnonzero(n < k)
    if len(short):
        raise InvalidInput(
            f"k is {k}, but fewer attempts were made at {_list_samples(short, names)} "
            f"({n[short].min()} at the least): run more repeats, leave these samples out, "
            "or choose a smaller k"
        )
    return n.astype(np.int64), c.astype(np.int64)


def _list_samples(indices: Ints, names: Sequence[str] | None) -> str:
    some = indices[:SAMPLES_NAMED].tolist()
    listed = ", ".join(f"#{i}" if names is None else repr(names[i]) for i in some)
    more = f" and {len(indices) - len(some)} more" if len(indices) > len(some) else ""
    return f"sample{'s' * (len(indices) > 1)} {listed}{more}"
