"""Checks of arguments of the public functions: finite, aligned, and in range."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.errors import InvalidInput
from heldout.stats.intervals import Floats, Ints

Ids = Sequence[Hashable] | NDArray[Any]

LARGEST = 1e120
"""Squares and sums of anything smaller are finite."""
UNIT_ROUNDING = 1e-6
"""What float32 or a sum of weights leaves of 0 and 1: no spread, and not out of bounds."""


def check_values(values: ArrayLike, name: str) -> Floats:
    """Return a fresh array of finite numbers."""
    array = np.asarray(values)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "biufO":
        raise InvalidInput(
            f"{name} must be a list of numbers, at least one; got {array.dtype} of "
            f"shape {array.shape}"
        )
    return _check_finite(array.astype(np.float64), name)


def check_pairs(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    """Return two aligned arrays of finite numbers."""
    values_a, values_b = check_values(a, "a"), check_values(b, "b")
    if len(values_a) != len(values_b):
        raise InvalidInput(
            f"a has {len(values_a)} values and b has {len(values_b)}; paired values are aligned, "
            "one of each per item: use unpaired_difference where the items differ"
        )
    return values_a, values_b


def check_matrix(
    values: ArrayLike, name: str, row: str, column: str, *, gaps: bool = False
) -> Floats:
    """Return a matrix of finite numbers, or of NaN where `gaps` allows it."""
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise InvalidInput(
            f"{name} has shape {matrix.shape}; it is a matrix with a row for each {row} and a "
            f"column for each {column}, at least one of each"
        )
    return _check_finite(matrix, name, gaps=gaps)


def _check_finite(numbers: Floats, name: str, *, gaps: bool = False) -> Floats:
    usable = np.abs(numbers) <= LARGEST
    if gaps:
        usable |= np.isnan(numbers)
    if not usable.all():
        wrong = np.argwhere(~usable)
        raise InvalidInput(
            f"{name}{wrong[0].tolist()} is {numbers[tuple(wrong[0])]} ({len(wrong)} such in all): "
            f"values are finite and at most {LARGEST:g}; leave such items out, or decide what they "
            "count as"
        )
    return numbers


def check_fraction(value: float, name: str, above: float = 0) -> None:
    """Refuse 95 for 0.95."""
    if not above < value < 1:
        raise InvalidInput(f"{name} must be between {above:g} and 1; got {value!r}")


def check_threshold(threshold: float) -> float:
    """Return a pass threshold; NaN would pass nothing."""
    if not math.isfinite(threshold):
        raise InvalidInput(f"%s must be a number; got {threshold!r}", parameters=["pass_threshold"])
    return float(threshold)


def cluster_codes(ids: Ids, n: int, name: str = "clusters") -> Ints:
    """Number clusters from 0, without gaps; ids come in any order and are of any hashable kind."""
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "iu" and ids.shape == (n,) and n:
        first = int(ids.min())
        if int(ids.max()) - first <= 4 * n + 1024:  # no need to sort
            from_first = (ids - ids.dtype.type(first)).astype(np.int64)
            present = np.bincount(from_first) > 0
            numbered: Ints = (np.cumsum(present) - 1)[from_first]
            return numbered
        return np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return factorize(ids, n, name)[1]


def clusters_or_none(ids: Ids | None, n: int, name: str = "clusters") -> Ints | None:
    """Number clusters; None where every value is independent."""
    return None if ids is None else cluster_codes(ids, n, name)


def factorize(ids: Ids, n: int, name: str) -> tuple[list[Hashable], Ints]:
    """Return the distinct ids in the order of their first occurrence, and the code of each id."""
    listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if len(listed) != n:
        raise InvalidInput(f"{name} has {len(listed)} ids for {n} values; each value has one")
    table: dict[Hashable, int] = {}
    codes = np.fromiter((table.setdefault(id, len(table)) for id in listed), np.int64, n)
    for id, code in table.items():
        if id is None or id != id:  # NaN is not equal to itself
            raise InvalidInput(
                f"{name}[{int(np.argmax(codes == code))}] is {id!r}; every value belongs "
                "somewhere: leave the item out, or name where it belongs"
            )
    return list(table), codes


def is_bounded(a: Floats, b: Floats, *, bounded: bool | None) -> bool:
    """Return whether all values lie between 0 and 1, or `bounded` says that they need not."""
    if bounded is False:
        return False
    low, high = min(a.min(), b.min()), max(a.max(), b.max())
    inside = low >= -UNIT_ROUNDING and high <= 1 + UNIT_ROUNDING
    if bounded and not inside:
        raise InvalidInput(
            f"bounded=True, but values lie between {low:g} and {high:g}, not between 0 and 1"
        )
    return bool(inside)
