"""How far two sets of verdicts on the same items agree: a judge's and people's, or a judge's own.

    agreement     the share of items with the same verdict on both sides
    kappa         (agreement - chance) / (1 - chance), with chance the agreement of two sides that
                  give their verdicts as often as these do, but at random. 1 is perfect, 0 is what
                  a judge reaches that always says the same; it can be negative
    balanced F1   the mean of the classes' F1, each class counting the same (macro F1), over the
                  classes that labels have. F1 is 2 both / (labels + verdicts) of that class

With nine right answers in ten, a judge that only ever says "right" agrees in 90%, has a kappa of 0
and a balanced F1 of 0.47.

J. Cohen (1960), Educational and Psychological Measurement 20, for kappa; J. L. Fleiss, J. Cohen and
B. S. Everitt (1969), Psychological Bulletin 72, for its standard error, which is the delta method
on the table's proportions; balanced F1's is had the same way (K. Takahashi, K. Yamamoto, A. Kuchiba
and T. Koyama 2022, Applied Intelligence 52). Items that belong together (the criteria of one
answer) are clusters, and their errors are added up before they are squared.

The interval is not the estimate plus and minus errors: near 1 that is far too short (64% instead of
95% for a kappa of 0.96 at 50 items, 39% for one of 0.98). It is a score interval at the number of
yes/no trials that would be as uncertain, as for other means (`summaries.py`), on the scale from the
least possible value to 1. How uncertain that is, is asked of the table with one further item spread
evenly over its cells, so that a table without a single disagreement has an interval, too.

What the intervals cover, by enumeration (30 and 50 items) and simulation: 91% to 97% with 50, 100
and 500 items and classes of a half and of a tenth, more for a judge that nearly always says the
same. Less with fewer than about five labels of a class: kappa 83%, balanced F1 73% at worst (a
class of a twentieth, 30 items). And less where the items of a cluster mostly stand or fall
together and clusters are few: agreement 77% with 10 clusters, 86% with 30.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.errors import InvalidInput
from heldout.stats.given import Ids, check_confidence, cluster_codes
from heldout.stats.rates import Rate
from heldout.stats.student import t_quantile
from heldout.stats.summaries import CONFIDENCE, Floats, Interval, Ints, Moments, score_interval

Statistic = Callable[[Floats, NDArray[np.bool_]], tuple[float, Floats] | None]
"""(proportions, which classes labels have) -> the value and its gradient; None: not defined."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """None where it is not defined; `stderr` and `interval` also where one cluster is all."""

    value: float | None = None
    stderr: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """One class: how many verdicts of it were right, and how many of its labels were found."""

    name: Hashable
    precision: Rate
    recall: Rate
    f1: float | None
    """None where no label is of this class: there was nothing to find."""


@dataclass(frozen=True, slots=True)
class Agreement:
    categories: tuple[Hashable, ...]
    """Those that either side has, in the order of rows and columns."""
    table: tuple[tuple[int, ...], ...]
    """Rows are labels, columns are verdicts."""
    n: int
    clusters: int
    agreement: Rate
    kappa: Estimate
    balanced_f1: Estimate
    classes: tuple[ClassAgreement, ...]
    confidence: float


def agreement_of(
    labels: Sequence[Hashable],
    verdicts: Sequence[Hashable],
    *,
    categories: Sequence[Hashable] | None = None,
    clusters: Ids | None = None,
    confidence: float = CONFIDENCE,
) -> Agreement:
    """Of labels and verdicts, one of each for every item.

    `categories` gives the order of rows, and what may occur; without it, classes come in the order
    in which they are first seen. `clusters` says which items belong together.
    """
    check_confidence(confidence)
    n = len(labels)
    if len(verdicts) != n:
        raise InvalidInput(f"{n} labels, but {len(verdicts)} verdicts; each item has one of each")
    if n == 0:
        raise InvalidInput("no items; agreement needs at least one")
    known = list(dict.fromkeys([*labels, *verdicts] if categories is None else categories))
    places = {name: place for place, name in enumerate(known)}
    for name, given in (("labels", labels), ("verdicts", verdicts)):
        for position, value in enumerate(given):
            if value not in places:
                raise InvalidInput(
                    f"{name}[{position}] is {value!r:.80}, which is none of {known!r:.200}"
                )
    codes = [
        np.array([places[value] for value in side], dtype=np.int64) for side in (labels, verdicts)
    ]
    groups = np.arange(n) if clusters is None else cluster_codes(clusters, n)
    return _agreement(codes[0], codes[1], known, groups, confidence)


def agreement_of_table(
    table: ArrayLike,
    *,
    categories: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Agreement:
    """The same of a confusion table: rows are labels, columns verdicts, each item on its own."""
    check_confidence(confidence)
    counts: NDArray[Any] = np.asarray(table)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise InvalidInput(
            f"a confusion table has as many rows as columns; this one has the shape {counts.shape}"
        )
    if counts.dtype.kind not in "iu" or (counts.size and counts.min() < 0):
        raise InvalidInput("a confusion table is made of counts: whole numbers, at least 0")
    known = list(range(len(counts)) if categories is None else categories)
    if len(known) != len(counts):
        raise InvalidInput(f"{len(known)} categories for a table of {len(counts)} rows")
    if counts.sum() == 0:
        raise InvalidInput("the table has no items; agreement needs at least one")
    cells = np.repeat(np.arange(counts.size), counts.reshape(-1).astype(np.int64))
    row, column = cells // len(counts), cells % len(counts)
    return _agreement(row, column, known, np.arange(len(cells)), confidence)


def rate_of(
    hits: ArrayLike, *, clusters: Ids | None = None, confidence: float = CONFIDENCE
) -> Rate:
    """How many of these are true, with the interval of a mean."""
    values: NDArray[np.bool_] = np.asarray(hits, dtype=np.bool_)
    n = len(values)
    groups = np.arange(n) if clusters is None or not n else cluster_codes(clusters, n)
    found = Moments.of(values.astype(np.float64), groups).interval(confidence, bounded=True)
    return Rate(int(values.sum()), n, found)


def _agreement(
    row: Ints, column: Ints, known: list[Hashable], groups: Ints, confidence: float
) -> Agreement:
    used = np.union1d(row, column)
    row, column = np.searchsorted(used, row), np.searchsorted(used, column)
    names, size = [known[place] for place in used.tolist()], len(used)
    table = np.bincount(row * size + column, minlength=size * size).reshape(size, size)
    same = row == column

    def rate(which: NDArray[np.bool_]) -> Rate:
        return rate_of(same[which], clusters=groups[which], confidence=confidence)

    places = _Places(row, column, groups, table)
    totals, labelled = table.sum(axis=0) + table.sum(axis=1), places.labelled
    return Agreement(
        categories=tuple(names),
        table=tuple(tuple(line) for line in table.tolist()),
        n=len(row),
        clusters=places.clusters,
        agreement=rate(np.ones(len(row), dtype=np.bool_)),
        kappa=_estimate(_kappa, places, -1.0, confidence),
        balanced_f1=_estimate(_balanced_f1, places, 0.0, confidence),
        classes=tuple(
            ClassAgreement(
                name,
                precision=rate(column == place),
                recall=rate(row == place),
                f1=float(2 * table[place, place] / totals[place]) if labelled[place] else None,
            )
            for place, name in enumerate(names)
        ),
        confidence=confidence,
    )


# --- Values and gradients -----------------------------------------------------------------------


def _kappa(p: Floats, labelled: NDArray[np.bool_]) -> tuple[float, Floats] | None:
    """None where both sides know one class only: there is nothing that chance could miss."""
    rows, columns = p.sum(axis=1), p.sum(axis=0)
    seen, chance = float(np.trace(p)), float(rows @ columns)
    room = 1 - chance
    if room < 1e-12:
        return None
    by_chance = columns[:, None] + rows[None, :]
    gradient = np.eye(len(p)) / room - by_chance * (1 - seen) / room**2
    return (seen - chance) / room, gradient


def _balanced_f1(p: Floats, labelled: NDArray[np.bool_]) -> tuple[float, Floats] | None:
    both, total = np.diag(p), p.sum(axis=1) + p.sum(axis=0)
    gradient = np.zeros_like(p)
    for c in np.flatnonzero(labelled).tolist():
        slope = 2 * both[c] / total[c] ** 2
        gradient[c, c] += 2 / total[c]
        gradient[c, :] -= slope
        gradient[:, c] -= slope
    count = int(labelled.sum())
    return float((2 * both[labelled] / total[labelled]).mean()), gradient / count


# --- Errors and intervals -----------------------------------------------------------------------


class _Places:
    """Where each item stands in the table, and to which cluster it belongs."""

    def __init__(self, row: Ints, column: Ints, groups: Ints, table: Ints) -> None:
        self.row, self.column, self.groups, self.table = row, column, groups, table
        self.n, self.clusters = len(row), len(np.unique(groups))
        self.labelled: NDArray[np.bool_] = table.sum(axis=1) > 0

    def variance(self, gradient: Floats) -> float:
        """Of the estimate: what each cluster adds to it, squared."""
        own = gradient[self.row, self.column]
        sums = np.bincount(self.groups, weights=own - own.mean())
        return float(sums @ sums) / self.n**2 * self.clusters / (self.clusters - 1)


def _estimate(statistic: Statistic, places: _Places, least: float, confidence: float) -> Estimate:
    n, size = places.n, len(places.table)
    found = statistic(places.table / n, places.labelled)
    if found is None:
        return Estimate()
    value, gradient = found
    if places.clusters < 2 or size < 2:
        return Estimate(value)
    variance = places.variance(gradient)
    # With an item more, spread over all cells: no cell is impossible because it was not seen.
    p = (places.table + 1 / size**2) / (n + 1)
    smoothed = statistic(p, places.labelled)
    assert smoothed is not None, "no cell of it is 0"
    near, slope = smoothed
    plain = _multinomial(p, slope) / n
    # How much more uncertain clusters make it than as many items of their own would be. Where all
    # clusters are alike that is not to be seen, and each counts as one item.
    alone = _multinomial(places.table / n, gradient) / (n - 1)
    clustered = n / places.clusters
    if variance > 1e-12 * alone > 0:
        clustered = max(1.0, variance / alone)
    width = 1 - least
    rate = (near - least) / width
    effective = rate * (1 - rate) * width**2 / (plain * clustered)
    quantile = t_quantile((1 + confidence) / 2, places.clusters - 1)
    scaled = min(1.0, max(0.0, (value - least) / width))
    around = score_interval(scaled, effective, quantile)
    interval = Interval(least + width * around.low, least + width * around.high)
    return Estimate(value, math.sqrt(variance), interval)


def _multinomial(p: Floats, gradient: Floats) -> float:
    mean = float((p * gradient).sum())
    return max(0.0, float((p * gradient**2).sum()) - mean * mean)
