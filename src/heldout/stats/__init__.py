"""Error bars, comparisons and verdicts: pure functions over numbers, numpy only.

summaries    means with clustered errors and intervals, from a stream
"""

from __future__ import annotations

from heldout.stats.summaries import (
    CONFIDENCE,
    Floats,
    Interval,
    Ints,
    Moments,
    median_interval,
    t_quantile,
    wilson,
)

__all__ = [
    "CONFIDENCE",
    "Floats",
    "Interval",
    "Ints",
    "Moments",
    "median_interval",
    "t_quantile",
    "wilson",
]
