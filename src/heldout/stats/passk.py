"""pass@k and pass^k: does one of k attempts succeed, do all of k attempts succeed.

Both are estimated from n >= k attempts at a question, c of which succeeded, by counting the ways
to pick k of the n. That is unbiased, which 1 - (1 - c/n)^k and (c/n)^k are not.

    pass@k = 1 - C(n - c, k) / C(n, k)      M. Chen et al. (2021), arXiv 2107.03374, eq. 1
    pass^k = C(c, k) / C(n, k)              S. Yao et al. (2024), "tau-bench", arXiv 2406.12045

A mean over questions has its error from the spread between questions (E. Miller (2024),
arXiv 2411.00640): the estimates of different questions are independent, the attempts at one
question are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats.given import Ids, check_confidence, cluster_codes
from heldout.stats.summaries import CONFIDENCE, Floats, Interval, Ints, Moments

NAMED = 5
"""So many questions are named in a message; the rest is a number."""


@dataclass(frozen=True, slots=True)
class PassRate:
    """A mean over questions. `stderr` and `interval` are None where the values cannot tell."""

    k: int
    value: float
    stderr: float | None
    interval: Interval | None
    confidence: float
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
    """The chance that at least one of k attempts succeeds (Chen 2021), mean over questions.

    `attempts` and `successes` have a number for each question; every question counts the same,
    however many attempts it had. `clusters` says which questions belong together (a shared
    passage); without it each question is a cluster of its own. `names` are for messages.
    """
    return _averaged(pass_at_k_by_question, attempts, successes, k, clusters, names, confidence)


def pass_hat_k(
    attempts: ArrayLike,
    successes: ArrayLike,
    *,
    k: int,
    clusters: Ids | None = None,
    names: Sequence[str] | None = None,
    confidence: float = CONFIDENCE,
) -> PassRate:
    """pass^k, the chance that all of k attempts succeed (Yao 2024), mean over questions.

    Its arguments are those of `pass_at_k`.
    """
    return _averaged(pass_hat_k_by_question, attempts, successes, k, clusters, names, confidence)


def _averaged(
    by_question: Callable[..., Floats],
    attempts: ArrayLike,
    successes: ArrayLike,
    k: int,
    clusters: Ids | None,
    names: Sequence[str] | None,
    confidence: float,
) -> PassRate:
    check_confidence(confidence)
    values = by_question(attempts, successes, k=k, names=names)
    codes = np.arange(len(values), dtype=np.int64)
    if clusters is not None:
        codes = cluster_codes(clusters, len(values))
    moments = Moments.of(values, codes)
    return PassRate(
        k=k,
        value=float(values.mean()),
        stderr=moments.stderr,
        interval=moments.interval(confidence, bounded=True),
        confidence=confidence,
        questions=len(values),
        clusters=moments.clusters,
    )


# --- For each question --------------------------------------------------------------------------


def pass_at_k_by_question(
    attempts: ArrayLike, successes: ArrayLike, *, k: int, names: Sequence[str] | None = None
) -> Floats:
    """1 - C(n - c, k) / C(n, k) for each question (Chen 2021, eq. 1)."""
    n, c = _checked(attempts, successes, k, names)
    # By way of the logarithm: 1 minus almost 1 would leave few digits of a small pass@k.
    # (0.0 - x rather than -x, or no success at all would be -0.0.)
    return 0.0 - np.expm1(_log_chance_to_miss(n, c, k))


def pass_hat_k_by_question(
    attempts: ArrayLike, successes: ArrayLike, *, k: int, names: Sequence[str] | None = None
) -> Floats:
    """C(c, k) / C(n, k) for each question (Yao 2024): the k picked miss all n - c failures."""
    n, c = _checked(attempts, successes, k, names)
    return np.exp(_log_chance_to_miss(n, n - c, k))


def _log_chance_to_miss(n: Ints, marked: Ints, k: int) -> Floats:
    """log of C(n - m, k) / C(n, k): k picked of n, without replacement, are none of the m marked.

    A product of ratios, of which k and m may change places, so the shorter one is taken. No
    factorial is formed: nothing overflows, and nothing cancels as differences of lgamma would.
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


def _checked(
    attempts: ArrayLike, successes: ArrayLike, k: int, names: Sequence[str] | None
) -> tuple[Ints, Ints]:
    n, c = _whole_numbers(attempts, "attempts"), _whole_numbers(successes, "successes")
    if len(n) != len(c):
        raise InvalidInput(f"attempts at {len(n)} samples, but successes of {len(c)}")
    if names is not None and len(names) != len(n):
        raise InvalidInput(f"{len(names)} names for {len(n)} samples")
    if len(n) == 0:
        raise InvalidInput("no samples; pass@k and pass^k need at least one")
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InvalidInput(f"k is {k!r}; it is a whole number, at least 1")
    wrong = np.flatnonzero((c < 0) | (c > n))
    if len(wrong):
        raise InvalidInput(
            f"successes are not between 0 and the attempts for {_named(wrong, names)}: "
            f"{c[wrong[0]]} of {n[wrong[0]]} at the first"
        )
    short = np.flatnonzero(n < k)
    if len(short):
        raise InvalidInput(
            f"k is {k}, but fewer attempts were made at {_named(short, names)} "
            f"({n[short].min()} at the least): run more repeats, leave these samples out, "
            "or choose a smaller k"
        )
    return n, c


def _whole_numbers(values: ArrayLike, what: str) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidInput(
            f"{what} has shape {array.shape}; it is a list with a number for each sample"
        )
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise InvalidInput(f"{what} are of type {array.dtype}; they are counts: whole numbers")
    return array.astype(np.int64)


def _named(positions: Ints, names: Sequence[str] | None) -> str:
    some = [
        f"#{position}" if names is None else repr(names[position])
        for position in positions[:NAMED].tolist()
    ]
    more = len(positions) - len(some)
    return f"sample{'s' if len(positions) > 1 else ''} {', '.join(some)}" + (
        f" and {more} more" if more else ""
    )
