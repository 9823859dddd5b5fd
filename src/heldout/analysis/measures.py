"""What is compared: the reward, whether it passed, pass@k, pass^k, or a metric of one's own.

A measure has a value for each sample, the mean over its repeats. Items that errored have none; in
a second reading they count as `errors_as`, so that what they count as cannot decide unnoticed
(docs/semantics.md, clause 22).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.stats import Floats, Ints
from heldout.stats.given import LARGEST
from heldout.stats.passk import pass_at_k_by_question, pass_hat_k_by_question
from heldout.stats.summaries import ROUNDING
from heldout.stats.summary import has_passed
from heldout.store.table import Table

REWARD, PASSED = "reward", "passed"
OWN = "metric."
"""Before the name of a metric of one's own that is called as a measure is."""


@dataclass(frozen=True, slots=True)
class Measure:
    name: str
    pass_threshold: float

    @property
    def is_judged(self) -> bool:
        """Whether more is better; of a metric of one's own nobody knows."""
        return self.name in (REWARD, PASSED) or self.k is not None

    @property
    def k(self) -> int | None:
        """Of pass@k and pass^k."""
        found = re.fullmatch(r"pass[@^]([1-9][0-9]{0,8})", self.name)
        return int(found[1]) if found else None

    @property
    def metric(self) -> str | None:
        """The name of a metric of one's own; None where it is of the reward."""
        return None if self.is_judged else self.name.removeprefix(OWN)

    def items(self, table: Table, run: str) -> Floats:
        """Of each item; NaN where it errored, or did not report the metric."""
        if self.name == REWARD:
            values = table.reward
        elif self.name == PASSED or self.k is not None:
            passed = has_passed(table.reward, self.pass_threshold).astype(np.float64)
            values = np.asarray(np.where(np.isnan(table.reward), np.nan, passed))
        elif self.name.removeprefix(OWN) in table.metrics:
            values = table.metrics[self.name.removeprefix(OWN)]
        else:
            known = ", ".join([REWARD, PASSED, "pass@K", "pass^K", *table.metrics])
            raise InvalidInput(f"{run} has no metric {self.name!r}; it has {known}")
        too_large = np.flatnonzero(np.abs(values) > LARGEST)
        if len(too_large):
            item = int(too_large[0])
            raise InvalidInput(
                f"sample {table.sample_ids[int(table.sample[item])]!r} of {run} has a {self.name} "
                f"of {float(values[item]):g}: too large to reckon with"
            )
        return values

    def samples(self, table: Table, run: str, *, errors_as: float | None = None) -> Floats:
        """Of each sample; NaN where it has none."""
        values = self.items(table, run)
        if errors_as is not None:
            values = np.asarray(np.where(np.isnan(table.reward), errors_as, values))
        if self.k is None:
            return sample_means(table, values)
        counted = ~np.isnan(values)
        attempts = _counts(table, counted)
        successes = _counts(table, values == 1)
        self._check_attempts(table, run)
        found = np.full(len(attempts), np.nan)
        enough = attempts >= self.k
        by_sample = pass_at_k_by_question if self.name[4] == "@" else pass_hat_k_by_question
        if enough.any():
            found[enough] = by_sample(attempts[enough], successes[enough], k=self.k)
        return found

    def _check_attempts(self, table: Table, run: str) -> None:
        made = _counts(table, np.ones(len(table), dtype=np.bool_))
        short = np.flatnonzero(made < (self.k or 0))
        if len(short):
            raise InvalidInput(
                f"{self.name} needs {self.k} attempts at each sample; {run} has {made[short[0]]} "
                f"at {table.sample_ids[int(short[0])]!r} ({len(short)} samples have too few)"
            )


def sample_means(table: Table, values: Floats) -> Floats:
    """Of each sample, over the items that have a value; NaN where none has."""
    if len(values) == len(table.sample_ids):
        return values  # an item each
    present = ~np.isnan(values)
    return means_of(table.sample[present], values[present], len(table.sample_ids))


def means_of(samples: Ints, values: Floats, count: int) -> Floats:
    """Of each of so many samples, where `samples` says whose each value is; NaN of none."""
    counts = np.bincount(samples, minlength=count)
    sums = np.bincount(samples, weights=values, minlength=count)
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), np.nan))


def within_unit(*values: Floats) -> bool:
    """Whether all that there is lies between 0 and 1."""
    return all(bool(((v >= -ROUNDING) & (v <= 1 + ROUNDING))[~np.isnan(v)].all()) for v in values)


def is_binary(*values: Floats) -> bool:
    """Whether all that there is is 0 or 1."""
    return all(bool(((v == 0) | (v == 1))[~np.isnan(v)].all()) for v in values)


def least_or_zero(*values: Floats) -> float:
    """What an errored item counts as in the second reading: 0, or the least value that there is.

    Where values can be negative, 0 is no pessimistic guess.
    """
    return min(0.0, *(float(np.nanmin(v)) for v in values if not np.isnan(v).all()))


def _counts(table: Table, which: NDArray[np.bool_]) -> Ints:
    return np.bincount(table.sample[which], minlength=len(table.sample_ids)).astype(np.int64)
