"""Results to summary: every denominator heldout reports is decided here, once.

`evaluate`, slices and `heldout.analysis.summarize` all go through `summarize_groups`. The clauses
named here are those of docs/semantics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.stats._input import UNIT_ROUNDING
from heldout.stats.intervals import Floats, Ints, bounds_as_dict
from heldout.stats.moments import Moments, find_changes, is_near_binary, moments_by_group
from heldout.types import METRIC_SUFFIXES

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
    cached: NDArray[np.bool_]
    """True where every model turn came from the response cache: nothing was measured."""
    cached_turns: Ints
    """Model turns from the response cache."""
    metrics: Mapping[str, Floats]
    """By name; NaN where the item did not report that metric (clause 4)."""
    possible_counts: frozenset[str] = frozenset()
    """Metrics that some item has neither as a rate nor with a weight."""

    def may_be_count(self, name: str) -> bool:
        """Return whether a metric may be a count, for which 1 is no bound.

        A mean of zeros and ones is a share of items, whatever they count. Values that are all
        alike, or not all 0 or 1, show no such thing.
        """
        if name not in self.possible_counts:
            return False
        values = self.metrics[name][~np.isnan(self.metrics[name])]
        return not (values.size and is_near_binary(values).all() and np.ptp(values) > 0.5)

    def __len__(self) -> int:
        return len(self.sample)

    def rows(self, which: NDArray[Any]) -> Batch:
        """Return some rows."""
        return Batch(
            self.sample[which],
            self.cluster[which],
            self.reward[which],
            self.truncated[which],
            self.weighted[which],
            self.cached[which],
            self.cached_turns[which],
            {name: values[which] for name, values in self.metrics.items()},
            self.possible_counts,
        )


def has_passed(reward: Floats, pass_threshold: float) -> NDArray[np.bool_]:
    """Clause 6: an errored item, whose reward is NaN, has not."""
    return np.asarray(reward >= pass_threshold)


def value_of_errors(*values: Floats, lower_is_better: bool = False) -> float:
    """Return what an errored item counts as, where errored items are counted (clause 2).

    It counts against the policy. Where higher is better that is 0, as in `mean`, or the lowest
    value where some are negative. Where lower is better it is 1 if no value lies outside 0 and 1,
    otherwise the highest value, but not less than 0.

    Args:
        values: Those of all runs that are compared; NaN and infinity (of no value) are ignored.
        lower_is_better: Whether a higher value is worse.
    """
    present = np.concatenate([each[np.isfinite(each)] for each in values])
    low, high = (float(present.min()), float(present.max())) if len(present) else (0.0, 0.0)
    if not lower_is_better:
        return min(0.0, low)
    if low >= -UNIT_ROUNDING and high <= 1 + UNIT_ROUNDING:
        return 1.0
    return max(0.0, high)


def summarize_batch(batch: Batch, pass_threshold: float | None = 0.5) -> Summary:
    """Summarize rows in any order; rewards from the threshold on count as passed.

    Where there is no threshold, as for returns, there is no pass rate.
    """
    (summary,) = summarize_groups(batch, np.zeros(len(batch), np.int64), 1, pass_threshold)
    return summary


def summarize_groups(
    batch: Batch, groups: Ints, count: int, pass_threshold: float | None = 0.5
) -> list[Summary]:
    """Summarize each group of rows, in time that does not grow with the number of groups.

    `groups` has the number of each row's group, from 0 to `count`; rows come in any order.
    """
    if (groups[1:] < groups[:-1]).any() or (batch.cluster[1:] < batch.cluster[:-1]).any():
        order = np.lexsort((batch.cluster, groups))
        batch, groups = batch.rows(order), groups[order]
    ok = ~np.isnan(batch.reward)

    def moments_of(values: Floats) -> list[Moments]:
        rows = ~np.isnan(values)
        if rows.all():
            return moments_by_group(values, batch.cluster, groups, count)
        return moments_by_group(values[rows], batch.cluster[rows], groups[rows], count)

    of_all = moments_of(np.where(ok, batch.reward, 0.0))
    of_scored = of_all if ok.all() else moments_of(batch.reward)
    of_passed = [Moments()] * count
    if pass_threshold is not None:
        of_passed = moments_of(has_passed(batch.reward, pass_threshold).astype(np.float64))
    of_metrics = {name: moments_of(values) for name, values in sorted(batch.metrics.items())}
    is_first = find_changes(groups) | find_changes(batch.sample)
    counts = {
        "truncated": np.bincount(groups[batch.truncated], minlength=count),
        "unweighted": np.bincount(groups[ok & ~batch.weighted], minlength=count),
        "samples": np.bincount(groups[is_first], minlength=count),
        "cached": np.bincount(groups[batch.cached], minlength=count),
        "cached_turns": np.bincount(groups, weights=batch.cached_turns, minlength=count),
    }
    maybe_counts = frozenset(name for name in batch.metrics if batch.may_be_count(name))
    return [
        _make_summary(
            {name: int(numbers[group]) for name, numbers in counts.items()},
            of_all[group],
            of_scored[group],
            of_passed[group],
            {name: moments[group] for name, moments in of_metrics.items() if moments[group].n},
            maybe_counts,
        )
        for group in range(count)
    ]


def _make_summary(
    counts: Mapping[str, int],
    of_all: Moments,
    of_scored: Moments,
    of_passed: Moments,
    of_metrics: Mapping[str, Moments],
    maybe_counts: frozenset[str],
) -> Summary:
    """Clauses 1-7. Where nothing was scored there is no mean, so every number is None."""
    nothing = of_scored.n == 0
    mean = Moments() if nothing else of_all
    passed = Moments() if nothing else of_passed
    summary: Summary = {
        "n": of_all.n,
        "n_scored": of_scored.n,
        "n_errors": of_all.n - of_scored.n,
        "n_truncated": counts["truncated"],
        "mean": mean.mean,
        "mean_scored": of_scored.mean,
        "stderr": mean.stderr,
        **bounds_as_dict(mean.interval()),
        "std": mean.std,
        "min": None if nothing else of_scored.min,
        "max": None if nothing else of_scored.max,
        "pass_rate": passed.mean,
        **bounds_as_dict(passed.interval(), "pass_rate_ci"),
        "stderr_scored": of_scored.stderr,
        **bounds_as_dict(of_scored.interval(), "ci_scored"),
    }
    if of_all.clusters < counts["samples"]:
        summary["n_clusters"] = of_all.clusters
    if counts["unweighted"]:
        summary["n_unweighted"] = counts["unweighted"]
    if counts["cached_turns"]:
        summary["n_cached"] = counts["cached"]
        summary["cached_turns"] = counts["cached_turns"]
    for name, moments in of_metrics.items():
        key = f"metric_{name}"
        ends = [end for end in METRIC_SUFFIXES if name.endswith(end)]
        if any(name.removesuffix(end) in of_metrics for end in ends):
            key = f"metric.{name}"  # as its column is called: the other key is another metric's
        summary[key] = moments.mean
        summary[f"{key}_n"] = moments.n
        summary[f"{key}_stderr"] = moments.stderr
        summary |= bounds_as_dict(moments.interval(maybe_count=name in maybe_counts), f"{key}_ci")
    return summary


def has_mean(n: int, n_errors: int, max_error_rate: float | None) -> bool:
    """Clause 3: not if everything errored, nor above that share; None is no limit."""
    return n_errors < n and (max_error_rate is None or n_errors / n <= max_error_rate)


def without_means(summary: Summary) -> Summary:
    """Replace means and all that belongs to them by None; counts stay (clause 3)."""
    return {key: None if isinstance(value, float) else value for key, value in summary.items()}


UNCERTAINTY = (
    *("stderr", "ci_low", "ci_high", "pass_rate_ci_low", "pass_rate_ci_high"),
    *("stderr_scored", "ci_scored_low", "ci_scored_high"),
)
"""Keys of every summary that say how sure its means are; metrics have theirs beside."""


def without_intervals(summary: Summary) -> Summary:
    """Replace errors and intervals by None: they say nothing of rows picked by what came out."""
    prefixes = ("metric", "pass_at_", "pass_hat_")
    rates = [key for key in summary if key.startswith(prefixes) and f"{key}_n" in summary]
    uncertain = {key + suffix for key in rates for suffix in ("_stderr", "_ci_low", "_ci_high")}
    uncertain.update(UNCERTAINTY)
    return {key: None if key in uncertain else value for key, value in summary.items()}


# --- No results ---------------------------------------------------------------------------------

_NO_NUMBERS, _NO_FLAGS = np.empty(0, np.int64), np.empty(0, np.bool_)
EMPTY_SUMMARY = summarize_batch(
    Batch(
        sample=_NO_NUMBERS,
        cluster=_NO_NUMBERS,
        reward=np.empty(0),
        truncated=_NO_FLAGS,
        weighted=_NO_FLAGS,
        cached=_NO_FLAGS,
        cached_turns=_NO_NUMBERS,
        metrics={},
    )
)
"""What every summary has, whatever it is of."""
