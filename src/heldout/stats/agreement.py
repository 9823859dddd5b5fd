"""Agreement of two sets of verdicts on the same items: a judge's and people's, or a judge's own.

    agreement     the share of items with the same verdict on both sides
    kappa         (agreement - chance) / (1 - chance), with chance the agreement of two sides that
                  give their verdicts as often as these do, but at random
    balanced F1   the mean of F1 over the classes that labels have (macro F1)

J. Cohen (1960), Educational and Psychological Measurement 20, for kappa; J. L. Fleiss, J. Cohen and
B. S. Everitt (1969), Psychological Bulletin 72, and K. Takahashi et al. (2022), Applied
Intelligence 52, for standard errors, by the delta method on the table's proportions. Errors of
items in one cluster (the criteria of one answer) are added up before they are squared.

Intervals are score intervals on the scale from the least possible value to 1: the estimate plus and
minus errors is far too short near 1 (64% instead of 95% for a kappa of 0.96 at 50 items). They
cover 91% to 97% with 50, 100 and 500 items; less with fewer than about five labels of a class
(kappa 83%, balanced F1 73% at worst), and with few clusters whose items mostly stand or fall
together (agreement 77% with 10 clusters, 86% with 30).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.errors import InvalidInput
from heldout.stats._input import Ids, cluster_codes
from heldout.stats.intervals import (
    CONFIDENCE,
    Floats,
    Interval,
    Ints,
    Rate,
    bounds_as_dict,
    score_interval,
    t_quantile,
)
from heldout.stats.moments import Moments

AgreementStatistic = Callable[[Floats, NDArray[np.bool_]], tuple[float, Floats] | None]
"""(proportions, which classes labels have) -> the value and its gradient; None: not defined."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic with its interval.

    Attributes:
        value: None where it is not defined.
        stderr: Its standard error; None also for fewer than two clusters.
        interval: Its interval; None likewise.
    """

    value: float | None = None
    stderr: float | None = None
    interval: Interval | None = None

    def as_dict(self) -> dict[str, float | None]:
        """Return the estimate as JSON has it."""
        return {"value": self.value, "stderr": self.stderr, **bounds_as_dict(self.interval)}


@dataclass(frozen=True, slots=True)
class ClassAgreement:
    """The agreement on one class.

    Attributes:
        name: The class.
        precision: Verdicts of this class that are right.
        recall: Labels of this class that were found.
        f1: Their F1; None where no label is of this class.
    """

    name: Hashable
    precision: Rate
    recall: Rate
    f1: float | None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far labels and verdicts agree.

    Attributes:
        categories: The classes that either side has, in the order of rows and columns.
        table: The confusion table: rows are labels, columns are verdicts.
        n: Items.
        clusters: Clusters of items.
        agreement: The share of items with the same verdict on both sides.
        kappa: Cohen's kappa.
        balanced_f1: The mean of the classes' F1.
        classes: The agreement on each class.
        confidence: Of the intervals.
    """

    categories: tuple[Hashable, ...]
    table: tuple[tuple[int, ...], ...]
    n: int
    clusters: int
    agreement: Rate
    kappa: Estimate
    balanced_f1: Estimate
    classes: tuple[ClassAgreement, ...]
    confidence: float = CONFIDENCE


def agreement_of(
    labels: Sequence[Hashable],
    verdicts: Sequence[Hashable],
    *,
    categories: Sequence[Hashable] | None = None,
    clusters: Ids | None = None,
) -> Agreement:
    """Measure the agreement of labels and verdicts.

    Args:
        labels: The label of each item.
        verdicts: The verdict on each item.
        categories: The order of rows, and what may occur; None: classes come in the order of their
            first occurrence.
        clusters: The cluster of each item; None: each is independent.

    Returns:
        The agreement, with 95% intervals.

    Raises:
        InvalidInput: There are no items, or labels and verdicts are not aligned, or of no category.
    """
    n = len(labels)
    if len(verdicts) != n or n == 0:
        raise InvalidInput(
            f"{n} labels and {len(verdicts)} verdicts; each item has one of each, and there is at "
            "least one item"
        )
    sides = {"labels": labels, "verdicts": verdicts}
    known = dict.fromkeys([*labels, *verdicts] if categories is None else categories)
    for name, side in sides.items():
        for i, value in enumerate(side):
            if value not in known:
                raise InvalidInput(
                    f"{name}[{i}] is {value!r:.80}, which is none of {[*known]!r:.200}"
                )
    used = {*labels, *verdicts}
    index = {name: i for i, name in enumerate(name for name in known if name in used)}
    rows, columns = (np.array([index[value] for value in side]) for side in sides.values())
    groups = np.arange(n) if clusters is None else cluster_codes(clusters, n)
    size, same = len(index), rows == columns
    table = np.bincount(rows * size + columns, minlength=size * size).reshape(size, size)
    totals, labelled = table.sum(axis=0) + table.sum(axis=1), table.sum(axis=1) > 0

    def rate(which: NDArray[np.bool_]) -> Rate:
        return rate_of(same[which], clusters=groups[which])

    return Agreement(
        categories=tuple(index),
        table=tuple(tuple(line) for line in table.tolist()),
        n=n,
        clusters=len(np.unique(groups)),
        agreement=rate_of(same, clusters=groups),
        kappa=_estimate(_kappa, -1.0, table, rows, columns, groups),
        balanced_f1=_estimate(_balanced_f1, 0.0, table, rows, columns, groups),
        classes=tuple(
            ClassAgreement(
                name,
                precision=rate(columns == i),
                recall=rate(rows == i),
                f1=float(2 * table[i, i] / totals[i]) if labelled[i] else None,
            )
            for i, name in enumerate(index)
        ),
    )


def rate_of(hits: ArrayLike, *, clusters: Ids | None = None) -> Rate:
    """Return the share of hits, with the 95% interval of a mean.

    Args:
        hits: Whether each item is a hit.
        clusters: The cluster of each item; None: each is independent.
    """
    values = np.asarray(hits, dtype=np.float64)
    moments = Moments.of(values, clusters)
    return Rate(int(values.sum()), moments.n, moments.interval(bounded=True))


# --- Values and gradients -----------------------------------------------------------------------


def _kappa(p: Floats, labelled: NDArray[np.bool_]) -> tuple[float, Floats] | None:
    """Return kappa and its gradient; None where both sides know one class only."""
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


def _estimate(
    statistic: AgreementStatistic, least: float, table: Ints, row: Ints, column: Ints, groups: Ints
) -> Estimate:
    n, size, labelled = len(row), len(table), table.sum(axis=1) > 0
    clusters = len(np.unique(groups))
    measured = statistic(table / n, labelled)
    if measured is None:
        return Estimate()
    value, gradient = measured
    if clusters < 2 or size < 2:
        return Estimate(value)
    # The variance of the estimate: what each cluster adds to it, squared.
    influence = gradient[row, column]
    sums = np.bincount(groups, weights=influence - influence.mean())
    variance = float(sums @ sums) / n**2 * clusters / (clusters - 1)
    # With an item more, spread over all cells: no cell is impossible because it was not seen.
    p = (table + 1 / size**2) / (n + 1)
    smoothed = statistic(p, labelled)
    assert smoothed is not None, "no cell of it is 0"
    near, slope = smoothed
    plain = _multinomial(p, slope) / n
    # How much more uncertain clusters make it than independent items. Where all clusters are alike
    # that does not show, and each counts as one item.
    alone = _multinomial(table / n, gradient) / (n - 1)
    clustered = n / clusters
    if variance > 1e-12 * alone > 0:
        clustered = max(1.0, variance / alone)
    width = 1 - least
    rate = (near - least) / width
    effective = rate * (1 - rate) * width**2 / (plain * clustered)
    scaled = min(1.0, max(0.0, (value - least) / width))
    around = score_interval(scaled, effective, t_quantile((1 + CONFIDENCE) / 2, clusters - 1))
    interval = Interval(least + width * around.low, least + width * around.high)
    return Estimate(value, math.sqrt(variance), interval)


def _multinomial(p: Floats, gradient: Floats) -> float:
    mean = float((p * gradient).sum())
    return max(0.0, float((p * gradient**2).sum()) - mean * mean)
