"""Results to summary: every denominator heldout reports is decided here, once.

A `Tally` takes batches of results as columns and gives the summary dict. `evaluate`, slices,
and `heldout.analysis.summarize` all go through it. The clauses named here are
those of docs/semantics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.stats import Floats, Interval, Ints, Moments
from heldout.stats._input import UNIT_ROUNDING
from heldout.stats.moments import to_integers
from heldout.types import METRIC_SUFFIXES

BATCH = 8_192
"""Results per batch. Fixed, because sums depend on it in their last bits."""

Summary = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Results as columns, those of one sample next to each other."""

    sample: Ints
    """Which sample: results of one sample share a number."""
    cluster: Ints
    """What is independent of the rest: samples of equal content share a number (clause 7)."""
    reward: Floats
    """NaN where the item errored: it has no score (clause 2)."""
    truncated: NDArray[np.bool_]
    weighted: NDArray[np.bool_]
    """False where no metric has a weight: the reward is then 0 by definition."""
    metrics: Mapping[str, Floats]
    """By name; NaN where the item did not report that metric (clause 4)."""
    plain: frozenset[str] = frozenset()
    """Metrics that may be counts: some item has them neither as a rate nor with a weight."""

    def __len__(self) -> int:
        return len(self.cluster)

    def rows(self, which: NDArray[Any]) -> Batch:
        """Take some rows."""
        return Batch(
            self.sample[which],
            self.cluster[which],
            self.reward[which],
            self.truncated[which],
            self.weighted[which],
            {name: values[which] for name, values in self.metrics.items()},
            self.plain,
        )


@dataclass(slots=True)
class Tally:
    """Running totals over batches."""

    pass_threshold: float
    n_truncated: int = 0
    n_unweighted: int = 0
    all: Moments = field(default_factory=Moments)
    scored: Moments = field(default_factory=Moments)
    passed: Moments = field(default_factory=Moments)
    metrics: dict[str, Moments] = field(default_factory=dict)
    plain: set[str] = field(default_factory=set)
    _clusters: list[Ints] = field(default_factory=list)
    """Of each sample, its cluster: eight bytes a sample."""
    _last: int | None = None

    def add(self, batch: Batch) -> None:
        """Add rows that come after those before, clusters side by side."""
        if len(batch) == 0:
            return
        new = np.diff(batch.sample, prepend=batch.sample[0]) != 0
        new[0] = batch.sample[0] != self._last
        self._last = int(batch.sample[-1])
        self._clusters.append(batch.cluster[new])
        ok = ~np.isnan(batch.reward)
        reward = np.where(ok, batch.reward, 0.0)
        self.n_truncated += int(batch.truncated.sum())
        self.n_unweighted += int((ok & ~batch.weighted).sum())
        self.all.add(reward, batch.cluster)
        self.scored.add(batch.reward[ok], batch.cluster[ok])
        passed = has_passed(batch.reward, self.pass_threshold)
        self.passed.add(passed.astype(np.float64), batch.cluster)
        self.plain |= batch.plain
        for name, values in batch.metrics.items():
            reported = ~np.isnan(values)
            if reported.any():
                moments = self.metrics.setdefault(name, Moments())
                moments.add(values[reported], batch.cluster[reported])

    def _counts(self) -> tuple[int, int]:
        """How many samples, and how many clusters they are."""
        if not self._clusters:
            return self.all.n, self.all.n  # each row its own
        clusters = np.sort(np.concatenate(self._clusters))  # a twentieth of np.unique
        return len(clusters), 1 + int((clusters[1:] != clusters[:-1]).sum())

    @property
    def scattered(self) -> bool:
        """Whether samples of one cluster came apart from each other.

        Then no error bar is right, and all have to be added in the order of their clusters.
        """
        return self.all.clusters > self._counts()[1]

    def summary(self) -> Summary:
        """Clauses 1-7. Where nothing was scored there is no mean, so every number is None."""
        nothing = self.scored.n == 0
        mean = Moments() if nothing else self.all
        passed = Moments() if nothing else self.passed
        summary: Summary = {
            "n": self.all.n,
            "n_scored": self.scored.n,
            "n_errors": self.all.n - self.scored.n,
            "n_truncated": self.n_truncated,
            "mean": mean.mean,
            "mean_scored": self.scored.mean,
            "stderr": mean.stderr,
            **_bounds("ci", mean.interval()),
            "std": mean.std,
            "min": None if nothing else self.scored.min,
            "max": None if nothing else self.scored.max,
            "pass_rate": passed.mean,
            **_bounds("pass_rate_ci", passed.interval()),
            "stderr_scored": self.scored.stderr,
            **_bounds("ci_scored", self.scored.interval()),
        }
        samples, clusters = self._counts()
        if clusters < samples:
            summary["n_clusters"] = clusters
        if self.n_unweighted:
            summary["n_unweighted"] = self.n_unweighted
        for name in sorted(self.metrics):
            moments, key = self.metrics[name], f"metric_{name}"
            ends = [end for end in METRIC_SUFFIXES if name.endswith(end)]
            if any(name.removesuffix(end) in self.metrics for end in ends):
                key = f"metric.{name}"  # as its column is called: the other key is another metric's
            summary[key] = moments.mean
            summary[f"{key}_n"] = moments.n
            summary[f"{key}_stderr"] = moments.stderr
            interval = moments.interval(maybe_count=name in self.plain)
            summary.update(_bounds(f"{key}_ci", interval))
        return summary


def has_passed(reward: Floats, pass_threshold: float) -> NDArray[np.bool_]:
    """Clause 6: an errored item, whose reward is NaN, has not."""
    return np.asarray(reward >= pass_threshold)


def _bounds(prefix: str, interval: Interval | None) -> Summary:
    return {
        f"{prefix}_low": interval.low if interval else None,
        f"{prefix}_high": interval.high if interval else None,
    }


UNCERTAINTY = (
    *("stderr", "ci_low", "ci_high", "pass_rate_ci_low", "pass_rate_ci_high"),
    *("stderr_scored", "ci_scored_low", "ci_scored_high"),
)
"""Keys of every summary that say how sure its means are; metrics have theirs beside."""


def without_intervals(summary: Summary) -> Summary:
    """Take standard errors and intervals out of a summary.

    Args:
        summary: Of rows that were picked by what came out, of which they say nothing.

    Returns:
        The summary with None in their place.
    """
    metrics = [key for key in summary if key.startswith("metric") and f"{key}_n" in summary]
    uncertain = {key + suffix for key in metrics for suffix in ("_stderr", "_ci_low", "_ci_high")}
    uncertain.update(UNCERTAINTY)
    return {key: None if key in uncertain else value for key, value in summary.items()}


EMPTY_SUMMARY = Tally(0.0).summary()
"""What every summary has, whatever it is of."""


def summarize_batch(batch: Batch, pass_threshold: float = 0.5) -> Summary:
    """Summarize columns that are all there.

    Args:
        batch: Rows in any order.
        pass_threshold: The reward from which an item counts as passed.

    Returns:
        The summary.
    """
    (summary,) = summarize_groups(batch, np.zeros(len(batch), np.int64), 1, pass_threshold)
    return summary


def summarize_groups(
    batch: Batch, groups: Ints, count: int, pass_threshold: float = 0.5
) -> list[Summary]:
    """Summarize each group of rows, in time that does not grow with the number of groups.

    Args:
        batch: Rows in any order.
        groups: Of each row, the number of its group, from 0.
        count: How many groups there are.
        pass_threshold: The reward from which an item counts as passed.

    Returns:
        A summary for each group, in the order of their numbers.
    """
    order = np.lexsort((batch.cluster, groups))
    batch, groups = batch.rows(order), groups[order]
    if ((np.diff(groups) == 0) & (np.diff(batch.cluster) == 0)).any():
        return _summarize_clustered(batch, groups, count, pass_threshold)
    ok = ~np.isnan(batch.reward)
    reward = np.where(ok, batch.reward, 0.0)
    passed = has_passed(batch.reward, pass_threshold).astype(np.float64)
    unweighted = np.bincount(groups[ok & ~batch.weighted], minlength=count).tolist()
    truncated = np.bincount(groups[batch.truncated], minlength=count).tolist()
    of_all = moments_by_group(reward, groups, count)
    of_scored = moments_by_group(batch.reward[ok], groups[ok], count)
    of_passed = moments_by_group(passed, groups, count)
    of_metrics = {}
    for name, values in batch.metrics.items():
        reported = ~np.isnan(values)
        of_metrics[name] = moments_by_group(values[reported], groups[reported], count)
    summaries = []
    for group in range(count):
        metrics = {name: moments[group] for name, moments in of_metrics.items()}
        tally = Tally(
            pass_threshold,
            truncated[group],
            unweighted[group],
            of_all[group],
            of_scored[group],
            of_passed[group],
            {name: moments for name, moments in metrics.items() if moments.n},
            set(batch.plain),
        )
        summaries.append(tally.summary())
    return summaries


def _summarize_clustered(
    batch: Batch, groups: Ints, count: int, pass_threshold: float
) -> list[Summary]:
    """Summarize groups in which some clusters have several rows; these are sorted by both."""
    summaries = []
    for rows in np.split(np.arange(len(batch)), np.searchsorted(groups, np.arange(1, count))):
        tally = Tally(pass_threshold)
        for start in range(0, len(rows), BATCH):
            tally.add(batch.rows(rows[start : start + BATCH]))
        summaries.append(tally.summary())
    return summaries


def moments_by_group(values: Floats, groups: Ints, count: int) -> list[Moments]:
    """Take the moments of each group of values, of which each is a cluster of its own.

    Args:
        values: Finite numbers, sorted by group.
        groups: Of each value, the number of its group.
        count: How many groups there are.

    Returns:
        The moments of each group: the same, to the last bit, as if its values were added alone.
    """
    moments = [Moments() for _ in range(count)]
    if len(values) == 0:
        return moments
    starts = _starts(groups)
    off = np.minimum(np.abs(values), np.abs(values - 1)) <= UNIT_ROUNDING
    columns = (
        groups[starts],
        np.diff(np.append(starts, len(values))),
        np.minimum.reduceat(values, starts),
        np.maximum.reduceat(values, starts),
        np.logical_and.reduceat(off, starts),
    )
    for group, n, low, high, binary in zip(*(c.tolist() for c in columns), strict=True):
        one = moments[group]
        one.n, one.min, one.max, one._binary = n, low, high, binary
    whole, shifts = to_integers(values)
    for shift in np.unique(shifts[whole != 0]).tolist():
        which = (shifts == shift) & (whole != 0)
        part, starts = whole[which], _starts(groups[which])
        high, low = part >> 27, part & (2**27 - 1)
        sums = (high, low, high * high, high * low, low * low)
        for group, h, lo, hh, hl, ll in zip(
            groups[which][starts].tolist(), *(_int_sums(s, starts) for s in sums), strict=True
        ):
            one = moments[group]
            one._sum += ((h << 27) + lo) << shift
            one._squares += ((hh << 54) + (hl << 28) + ll) << 2 * shift
    for one in moments:
        if one.n:
            one._closed = {1: (one.n, one._sum, one._squares)}
    return moments


def _starts(groups: Ints) -> Ints:
    """Where each group begins."""
    return np.flatnonzero(np.diff(groups, prepend=-1))


def _int_sums(numbers: Ints, starts: Ints) -> list[int]:
    """The sum of each group of 64-bit integers, which may itself need more bits."""
    high = np.add.reduceat(numbers >> 32, starts).tolist()
    low = np.add.reduceat(numbers & (2**32 - 1), starts).tolist()
    return [(upper << 32) + lower for upper, lower in zip(high, low, strict=True)]
