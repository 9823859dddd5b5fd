"""What a curve of evals on the same held-out samples allows one to say, at every look.

A curve is a matrix of rewards, looks x samples. Each look is asked whether it is improving,
regressing, on a plateau, or whether nobody can tell. Looking often is how people fool themselves:
over 20 looks at a flat curve, comparing with the previous point finds a "better" 64 times in 100.
Three things keep the answers honest here.

Windows, not points. A comparison takes a window of looks, and is the mean over its newest third
    less the mean over its oldest third, sample by sample. Which looks those are never depends on
    the rewards. A greedy eval flips some samples at random each time; thirds average that out,
    so a real trend shows sooner than between two points.
Alpha is spent. Every interval of every look has its own share of alpha, and all shares ever sum
    to alpha: with probability 1 - alpha all intervals of the whole curve hold, however long it
    gets and whenever one stops looking. What a look shares with the one before is paid once
    (`critical_value`); beyond that nothing is assumed about how looks depend on each other.
Plateau is a claim of its own: the upper end of the gain's interval lies below a stated effect.
    Not having found a gain is "cannot tell".

Assumed: samples (or clusters of them) are independent draws of what the curve is about. An item
that errored is NaN, and not a reward of 0: see `Missing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.errors import InvalidInput
from heldout.stats.alpha import HALF_SPENT, critical_value, least_correlation, spending_share
from heldout.stats.gains import gain_interval
from heldout.stats.given import Ids, cluster_codes
from heldout.stats.summaries import Floats, Interval, Ints

Kind = Literal["improving", "regressing", "plateau", "cannot tell"]

Reference = Literal["first", "window", "best"]
"""What the newest looks are compared with.

first: the oldest third of the whole curve.
window: the oldest third of the last `window` evals; a plateau is claimed from this one alone.
best: the best block of looks so far. It is picked by its mean, so its interval pays for every
      block that could have been picked (Bonferroni); it can only say "regressing".
"""

Missing = Literal["pairwise", "complete"]
"""Which samples count where some items errored (NaN).

pairwise: those with a reward on both sides of the comparison; a side is the mean over the looks
          of its block that have one. Assumes that whether an item errored has nothing to do with
          how its reward changed.
complete: those that never errored up to this look.
"""

Reason = Literal[
    "first look",
    "too little data",
    "gain below zero",
    "gain above zero",
    "gain below effect",
    "interval too wide",
]

ALPHA = 0.05
WINDOW = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """The newest looks against a reference, paired by sample."""

    reference: Reference
    old: tuple[int, int]
    """First and last look of the reference's block."""
    new: tuple[int, int]
    """First and last look of the newest block."""
    n: int
    """Samples compared."""
    clusters: int
    dropped: int
    """Samples left out because they errored."""
    estimate: float | None
    """Mean gain; None with fewer than two clusters, or where all rewards ever seen are alike and
    `bounds` are not given: nothing says then how much they could differ."""
    interval: Interval | None
    stderr: float | None
    """Of the gain, with the floor that few samples need (see `gain_interval`)."""
    alpha: float
    """What this interval alone may miss with, both ends together."""
    alpha_share: float
    """Its share of the curve's alpha: what it may miss with where the look before did not."""
    minimum_detectable: float | None
    """The gain that this interval would have told from zero with a probability of 80%."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What can be said at a look. Numbers for others to word."""

    kind: Kind
    reason: Reason
    look: int
    since: int | None
    """First look of the window that the claim is about; None where there is no claim."""
    reference: Reference | None
    """The comparison that decided, or the one that came nearest to it."""
    estimate: float | None
    interval: Interval | None
    alpha_spent: float
    """Over all comparisons of all looks up to this one."""
    minimum_detectable: float | None
    effect: float
    """The stated effect: a plateau means no gain as large over the window."""
    comparisons: tuple[Comparison, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """A verdict, and what the next look needs to know of those before it."""

    verdict: Verdict
    made: Mapping[Reference, _Made] = field(repr=False)
    turns: Mapping[Reference, int]
    """How many comparisons with each reference have been made."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether to stop training, from verdicts alone."""

    stop: bool
    because: Kind
    """The latest verdict's kind."""
    since: int
    """The look since which that has been the verdict."""
    in_a_row: int
    needed: int | None
    """Verdicts in a row that would mean stop; None for a kind that never does."""


# --- Verdicts -----------------------------------------------------------------------------------


def monitor(
    rewards: ArrayLike,
    clusters: Ids | None = None,
    *,
    effect: float,
    alpha: float = ALPHA,
    window: int = WINDOW,
    references: Sequence[Reference] = ("first", "window"),
    half_spent: int = HALF_SPENT,
    missing: Missing = "pairwise",
    bounds: tuple[float, float] | None = None,
) -> tuple[Verdict, ...]:
    """The verdict at every row of `rewards` (looks x samples, NaN or None where errored).

    None of them depends on later rows, so that alpha holds over all the times one looks, whenever
    that is. `effect` is the gain over `window` evals that is worth having. `bounds` are the least
    and the largest reward there can be; without them those seen so far stand for them, and no
    plateau is claimed. More references, less alpha each.

    The newest evidence has the first word: the window's sign, then a fall from the best, then a
    fall from the start, then a plateau, then a rise since the start, unless the window's estimate
    is a fall.
    """
    table = _table(rewards)
    looks: list[Look] = []
    for look in range(len(table)):
        looks.append(
            next_look(
                table[: look + 1],
                looks[-1] if looks else None,
                clusters,
                effect=effect,
                alpha=alpha,
                window=window,
                references=references,
                half_spent=half_spent,
                missing=missing,
                bounds=bounds,
            )
        )
    return tuple(look.verdict for look in looks)


def next_look(
    rewards: ArrayLike,
    before: Look | None,
    clusters: Ids | None = None,
    *,
    effect: float,
    alpha: float = ALPHA,
    window: int = WINDOW,
    references: Sequence[Reference] = ("first", "window"),
    half_spent: int = HALF_SPENT,
    missing: Missing = "pairwise",
    bounds: tuple[float, float] | None = None,
    seen: tuple[float, float] | None = None,
) -> Look:
    """The verdict at the last row, given the look before it (None: this is the first).

    What `monitor` gives there, without judging the earlier rows again. Between two looks rows may
    have come in before the last one (evals that ended late), and samples at the end of all rows:
    alpha is spent by looks that were made, and what this one shares with the one before is taken
    from what that one compared. `seen` are the least and the largest of all rewards, for whoever
    keeps them: a long curve need not be searched for them at every look.
    """
    table = _table(rewards, checked=seen is not None)
    groups = None if clusters is None else cluster_codes(clusters, table.shape[1])
    _check(effect, alpha, window, references, missing, half_spent)
    share = alpha / len(references)
    look, scale = len(table) - 1, _scale(seen or _span(table), bounds)
    turns = dict(before.turns) if before else {}
    made: dict[Reference, _Made] = {}
    for reference in references:
        if look < _first_turn(reference, window):
            continue
        turns[reference] = turn = turns.get(reference, 0) + 1
        here = share * spending_share(turn, half_spent=half_spent)
        earlier = _widened(before.made.get(reference) if before else None, table.shape[1])
        made[reference] = _make(table, groups, reference, window, here, scale, missing, earlier)
    spent = sum(share * turn / (turn + half_spent) for turn in turns.values())
    comparisons = {reference: one.comparison for reference, one in made.items()}
    said = _decide(comparisons, look, effect, spent, bounded=bounds is not None)
    return Look(said, made, turns)


def advise(
    verdicts: Sequence[Verdict], *, regressing: int | None = 1, plateau: int | None = 3
) -> Advice:
    """Whether to stop, given the verdicts so far: never a function of two bare means.

    Stop after this many verdicts of a kind in a row; None never stops for it. "improving" and
    "cannot tell" go on: not to have found a gain is no reason to stop.
    """
    if not verdicts:
        raise InvalidInput("advice needs at least one verdict: run an eval first")
    latest = verdicts[-1]
    in_a_row = 0
    for verdict in reversed(verdicts):
        if verdict.kind != latest.kind:
            break
        in_a_row += 1
    limits: dict[Kind, int | None] = {"regressing": regressing, "plateau": plateau}
    needed = limits.get(latest.kind)
    return Advice(
        stop=needed is not None and in_a_row >= needed,
        because=latest.kind,
        since=verdicts[-in_a_row].look,
        in_a_row=in_a_row,
        needed=needed,
    )


# --- How a look is judged -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Made:
    """A comparison, and what the next look's needs of it."""

    comparison: Comparison
    critical: float
    differences: Floats


def _widened(made: _Made | None, samples: int) -> _Made | None:
    """With samples that came later: it has no difference for those."""
    if made is None or len(made.differences) == samples:
        return made
    if len(made.differences) > samples:
        raise InvalidInput(
            f"the look before has {len(made.differences)} samples and this one {samples}: samples "
            "may be added at the end, and none left out"
        )
    absent = np.full(samples - len(made.differences), np.nan)
    return replace(made, differences=np.concatenate([made.differences, absent]))


def _make(
    table: Floats,
    groups: Ints | None,
    reference: Reference,
    window: int,
    share: float,
    scale: float,
    missing: Missing,
    before: _Made | None,
) -> _Made:
    look = len(table) - 1
    if reference == "best":
        block = _block(window + 1)
        ends = range(block - 1, look - block + 1)
        end = _best_end(table, ends, block)
        old, alpha = (end - block + 1, end), share / len(ends)
    else:
        start = 0 if reference == "first" else look - window
        block = _block(look - start + 1)
        old, alpha = (start, start + block - 1), share
    new = (look - block + 1, look)
    differences = _means(table[new[0] : new[1] + 1]) - _means(table[old[0] : old[1] + 1])
    if missing == "complete":
        differences = np.where(np.isnan(table).any(axis=0), np.nan, differences)
    critical = math.inf
    if reference != "best":
        # A reference picked by its rewards has no neighbour to share with.
        correlation = (
            0.0 if before is None else least_correlation(differences, before.differences, groups)
        )
        critical = critical_value(
            alpha,
            correlation=correlation,
            previous=math.inf if before is None else before.critical,
        )
        alpha = math.erfc(critical / math.sqrt(2))
    comparison = _compare(differences, groups, reference, old, new, alpha, share, scale)
    return _Made(comparison, critical, differences)


def _decide(
    comparisons: dict[Reference, Comparison],
    look: int,
    effect: float,
    spent: float,
    *,
    bounded: bool,
) -> Verdict:
    made = tuple(comparisons.values())

    def verdict(kind: Kind, reason: Reason, by: Comparison | None) -> Verdict:
        return Verdict(
            kind=kind,
            reason=reason,
            look=look,
            since=None if by is None or kind == "cannot tell" else by.old[0],
            reference=None if by is None else by.reference,
            estimate=None if by is None else by.estimate,
            interval=None if by is None else by.interval,
            alpha_spent=spent,
            minimum_detectable=None if by is None else by.minimum_detectable,
            effect=effect,
            comparisons=made,
        )

    first, recent = comparisons.get("first"), comparisons.get("window")
    best = comparisons.get("best")
    for fallen in (recent, best, first):
        if fallen is recent and recent is not None and _sign(recent) > 0:
            return verdict("improving", "gain above zero", recent)
        if fallen is not None and _sign(fallen) < 0:
            return verdict("regressing", "gain below zero", fallen)
    # Where nobody knows how large a reward can be, none of few samples need have had its rise yet.
    if bounded and recent is not None and recent.interval is not None:
        # A steady climb by `effect` over the window shows as this much between its thirds.
        between = effect * (recent.new[0] - recent.old[0]) / (recent.new[1] - recent.old[0])
        if recent.interval.high < between:
            return verdict("plateau", "gain below effect", recent)
    if first is not None and _sign(first) > 0:
        # Up since the start, but down of late, if only by chance: that is not improving.
        if recent is not None and recent.estimate is not None and recent.estimate < 0:
            return verdict("cannot tell", "interval too wide", recent)
        return verdict("improving", "gain above zero", first)
    if look == 0:
        return verdict("cannot tell", "first look", None)
    measured = [c for c in made if c.minimum_detectable is not None]
    if not measured:
        return verdict("cannot tell", "too little data", made[0] if made else None)
    nearest = max(measured, key=lambda c: abs(c.estimate or 0.0) / (c.minimum_detectable or 1.0))
    return verdict("cannot tell", "interval too wide", nearest)


def _sign(comparison: Comparison) -> int:
    interval = comparison.interval
    return 0 if interval is None else int(interval.low > 0) - int(interval.high < 0)


def _block(looks: int) -> int:
    """Looks in the oldest and in the newest block of a window: a third, at least one.

    Of linear contrasts with equal weights in two blocks, thirds lose least against the slope of
    least squares: 8/9 of its efficiency for a steady trend (Bartlett 1949, Biometrics 5).
    """
    return max(1, looks // 3)


def _first_turn(reference: Reference, window: int) -> int:
    """The first look at which there is something to compare with."""
    if reference == "first":
        return 1
    return window if reference == "window" else 2 * _block(window + 1) - 1


def _best_end(table: Floats, ends: range, block: int) -> int:
    """The last look of the block with the highest mean; the latest of equals."""
    means = [_nanmean(table[end - block + 1 : end + 1].ravel()) for end in ends]
    return max(zip(ends, means, strict=True), key=lambda pair: (pair[1], pair[0]))[0]


def _nanmean(values: Floats) -> float:
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else -math.inf


def _compare(
    differences: Floats,
    groups: Ints | None,
    reference: Reference,
    old: tuple[int, int],
    new: tuple[int, int],
    alpha: float,
    share: float,
    scale: float,
) -> Comparison:
    samples = len(differences)
    present = ~np.isnan(differences)
    differences = differences[present]
    members = None if groups is None else groups[present]
    gain = gain_interval(differences, members, alpha=alpha, scale=scale)
    return Comparison(
        reference=reference,
        old=old,
        new=new,
        n=len(differences),
        clusters=len(differences) if members is None else len(np.unique(members)),
        dropped=samples - len(differences),
        estimate=None if gain is None else gain.estimate,
        interval=None if gain is None else gain.interval,
        stderr=None if gain is None else gain.stderr,
        alpha=alpha,
        alpha_share=share,
        minimum_detectable=None if gain is None else gain.minimum_detectable,
    )


def _means(block: Floats) -> Floats:
    """Each sample's mean over the looks where it has a reward; NaN where it has none."""
    absent = np.isnan(block)
    if not absent.any():
        return np.asarray(block.mean(axis=0))
    counts = (~absent).sum(axis=0)
    sums = np.where(absent, 0.0, block).sum(axis=0)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def _span(table: Floats) -> tuple[float, float]:
    """The least and the largest reward; inf and -inf where there is none."""
    least = np.fmin.reduce(table, axis=None, initial=math.inf)
    return float(least), float(np.fmax.reduce(table, axis=None, initial=-math.inf))


def _scale(seen: tuple[float, float], bounds: tuple[float, float] | None) -> float:
    if bounds is None:
        return max(0.0, seen[1] - seen[0])
    low, high = bounds
    if seen[0] < low or (seen[1] > high):
        raise InvalidInput(
            f"rewards from {seen[0]:g} to {seen[1]:g} lie outside the bounds "
            f"{low:g} to {high:g}: widen the bounds, or leave them out"
        )
    return float(high - low)


# --- What comes in ------------------------------------------------------------------------------


def _table(rewards: ArrayLike, *, checked: bool = False) -> Floats:
    table: NDArray[np.float64] = np.asarray(rewards, dtype=np.float64)
    if table.ndim != 2 or len(table) == 0:
        raise InvalidInput(f"rewards are looks x samples, got the shape {table.shape}")
    if not checked and np.isinf(table).any():
        raise InvalidInput("a reward is infinite: leave it out (NaN) or give it a finite value")
    return table


def _check(
    effect: float,
    alpha: float,
    window: int,
    references: Sequence[Reference],
    missing: Missing,
    half_spent: int,
) -> None:
    if not effect > 0:
        raise InvalidInput(f"effect must be more than 0, got {effect}: a gain worth having")
    if not 0 < alpha < 1:
        raise InvalidInput(f"alpha must lie between 0 and 1, got {alpha}")
    if window < 2:
        raise InvalidInput(f"window must be at least 2 evals, got {window}")
    if half_spent < 1:
        raise InvalidInput(f"half_spent must be at least 1 look, got {half_spent}")
    known = ("first", "window", "best")
    if not references or len(set(references)) != len(references) or set(references) - set(known):
        raise InvalidInput(f"references are some of {known}, once each, got {tuple(references)}")
    if missing not in ("pairwise", "complete"):
        raise InvalidInput(f"missing is 'pairwise' or 'complete', got {missing!r}")
