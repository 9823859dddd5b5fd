"""What is asked of the numbers that come in: finite, aligned, and belonging somewhere."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from heldout.errors import InvalidInput
from heldout.stats.summaries import ROUNDING, Floats, Ints

Ids = Sequence[Hashable] | NDArray[Any]

LARGEST = 1e120
"""Squares and sums of anything smaller are finite."""


def checked_values(values: ArrayLike, name: str) -> Floats:
    """A fresh array of finite numbers, or InvalidInput that says which one is not."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise InvalidInput(f"{name} has {array.ndim} dimensions; it is one list of numbers")
    if len(array) == 0:
        raise InvalidInput(f"{name} has no values; there is nothing to compare")
    if array.dtype.kind == "O":
        for position, value in enumerate(array.tolist()):
            if value is None:
                raise InvalidInput(
                    f"{name}[{position}] is None: it has no score; leave that item out of both "
                    "sides, or decide what it counts as"
                )
    if array.dtype.kind not in "biuf":
        raise InvalidInput(f"{name} is not made of numbers (numpy type {array.dtype})")
    numbers = array.astype(np.float64)
    wrong = np.flatnonzero(~(np.abs(numbers) <= LARGEST))
    if len(wrong):
        raise InvalidInput(
            f"{name}[{wrong[0]}] is {float(numbers[wrong[0]])} ({len(wrong)} such in all): values "
            f"are finite and at most {LARGEST:g}; leave such items out of both sides, or decide "
            "what they count as"
        )
    return numbers


def cluster_codes(ids: Ids, n: int, name: str = "clusters") -> Ints:
    """Clusters numbered from 0, without gaps; ids in any order and of any hashable kind."""
    if isinstance(ids, np.ndarray) and ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) == n:
        first = int(ids.min())
        if int(ids.max()) - first <= 4 * n + 1024:  # no need to sort
            from_first = (ids - ids.dtype.type(first)).astype(np.int64)
            present = np.bincount(from_first) > 0
            numbered: Ints = (np.cumsum(present) - 1)[from_first]
            return numbered
        return np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return factorise(ids, n, name)[1]


def factorise(ids: Ids, n: int, name: str) -> tuple[list[Hashable], Ints]:
    """The distinct ids in the order they first come, and which of them each one is."""
    listed = ids.tolist() if isinstance(ids, np.ndarray) else ids
    if len(listed) != n:
        raise InvalidInput(f"{name} has {len(listed)} ids for {n} values; each value has one")
    table: dict[Hashable, int] = {}
    codes = np.fromiter((table.setdefault(each, len(table)) for each in listed), np.int64, n)
    for each, code in table.items():
        if each is None or each != each:  # NaN is not equal to itself
            raise InvalidInput(
                f"{name}[{int(np.argmax(codes == code))}] is {each!r}; every value belongs "
                "somewhere: leave the item out, or name where it belongs"
            )
    return list(table), codes


def is_bounded(a: Floats, b: Floats, *, bounded: bool | None) -> bool:
    if bounded is False:
        return False
    inside = min(a.min(), b.min()) >= -ROUNDING and max(a.max(), b.max()) <= 1 + ROUNDING
    if bounded and not inside:
        raise InvalidInput(
            f"bounded=True, but values lie between {min(a.min(), b.min()):g} and "
            f"{max(a.max(), b.max()):g}, not between 0 and 1"
        )
    return bool(inside)


def is_binary(values: Floats) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise InvalidInput(f"confidence is between 0 and 1, such as 0.95; got {confidence!r}")


def checked_threshold(threshold: float) -> float:
    if (
        isinstance(threshold, bool)
        or not isinstance(threshold, int | float)
        or not math.isfinite(threshold)
    ):
        raise InvalidInput(f"pass_threshold is a number; got {threshold!r}")
    return float(threshold)
