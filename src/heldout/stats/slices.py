"""Many slices at once: looking often finds differences by luck, and is paid for here."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from heldout.errors import InvalidInput
from heldout.stats.given import (
    Ids,
    check_confidence,
    checked_values,
    cluster_codes,
    factorise,
    is_bounded,
)
from heldout.stats.paired import PairedDifference, paired_difference
from heldout.stats.summaries import CONFIDENCE, Interval
from heldout.stats.unpaired import UnpairedDifference


@dataclass(frozen=True, slots=True)
class SliceDifference:
    label: Hashable
    difference: PairedDifference | UnpairedDifference
    """Of this slice, as if it were the only one looked at."""
    adjusted_p_value: float | None
    """Holm's, over all slices; None where the slice has no p-value."""
    simultaneous_interval: Interval | None
    """Bonferroni's: all slices' intervals hold at once, with the confidence asked for."""


def slice_differences(
    found: Mapping[Any, PairedDifference | UnpairedDifference],
    *,
    confidence: float = CONFIDENCE,
    looked_at: int | None = None,
) -> tuple[SliceDifference, ...]:
    """Each slice's difference, corrected for looking at all of them; in the order given.

    `looked_at` is how many slices there are, where some of them have nothing to compare.

    Adjusted p-values are Holm's: the chance of calling any slice different that is not is at most
    1 - confidence, however the slices depend on each other. The intervals are Bonferroni's, each at
    1 - (1 - confidence) / slices: Holm's have no counterpart that is as short, so a slice can be
    different by its p-value while its interval has 0 in it, never the other way round.
    """
    check_confidence(confidence)
    # A slice that cannot be tested was looked at all the same.
    count = max(len(found), looked_at or 0)
    p_values = [1.0 if one.p_value is None else one.p_value for one in found.values()]
    adjusted = holm([*p_values, *[1.0] * (count - len(found))])[: len(found)]
    return tuple(
        SliceDifference(
            label=label,
            difference=one,
            adjusted_p_value=None if one.p_value is None else p_value,
            simultaneous_interval=one.interval_at(1 - (1 - confidence) / count),
        )
        for (label, one), p_value in zip(found.items(), adjusted, strict=True)
    )


def paired_slices(
    a: ArrayLike,
    b: ArrayLike,
    *,
    labels: Ids,
    clusters: Ids | None = None,
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
    bounded: bool | None = None,
) -> tuple[SliceDifference, ...]:
    """`paired_difference` of every label's pairs, corrected; in the order labels first come."""
    values_a, values_b = checked_values(a, "a"), checked_values(b, "b")
    if len(values_a) != len(values_b):
        raise InvalidInput(
            f"a has {len(values_a)} values and b has {len(values_b)}; paired values are aligned"
        )
    names, slices = factorise(labels, len(values_a), "labels")
    members = None if clusters is None else cluster_codes(clusters, len(values_a))
    # Decided for all: a slice of equal values would say less about what they can be.
    inside = is_bounded(values_a, values_b, bounded=bounded)
    order = np.argsort(slices, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(slices))[:-1])
    found = {
        name: paired_difference(
            values_a[part],
            values_b[part],
            clusters=None if members is None else members[part],
            pass_threshold=pass_threshold,
            confidence=confidence,
            bounded=inside,
        )
        for name, part in zip(names, parts, strict=True)
    }
    return slice_differences(found, confidence=confidence)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Adjusted p-values, in the order given: p <= alpha rejects, at a family-wise level of alpha.

    The k-th smallest of m is multiplied by m - k + 1, and none is below one before it (S. Holm
    1979, Scandinavian Journal of Statistics 6, 65-70). Assumes nothing about how they depend.
    """
    given = np.array(p_values, dtype=np.float64)
    wrong = np.flatnonzero(~((given >= 0) & (given <= 1)))
    if len(wrong):
        raise InvalidInput(
            f"p-value {p_values[wrong[0]]!r} at position {wrong[0]} is not between 0 and 1"
        )
    order = np.argsort(given, kind="stable")
    factors = np.arange(len(given), 0, -1)
    adjusted = np.empty_like(given)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * factors))
    return tuple(adjusted.tolist())
