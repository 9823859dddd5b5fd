"""Error bars, comparisons and verdicts: pure functions over numbers, numpy only.

intervals    intervals of rates, means and medians; Student's t
moments      means with clustered standard errors
summary      results to a summary: every denominator is decided there
differences  a difference on the same items, on other items, in many slices
pass_rates   pass@k and pass^k
power        how many samples and repeats detect a difference
resampling   interquartile mean and others over runs x tasks, by stratified bootstrap
sequential   verdicts on a curve of evals, at every evaluation point
stopping     an eval that stops when its claim is settled; races between models; ranks
winner       the best of several checkpoints, corrected for having been picked
agreement    verdicts against labels: Cohen's kappa, balanced F1

Arrays of numbers go in; estimates, intervals and verdicts come out. Nothing here knows what a run,
a step or a file is: callers turn those into arrays, and the sentences are written in `reporting/`.
"""

from __future__ import annotations

from heldout.stats.agreement import Agreement, Estimate, agreement_of, rate_of
from heldout.stats.differences import (
    PairedDifference,
    SliceDifference,
    UnpairedDifference,
    paired_difference,
    paired_slices,
    slice_differences,
    unpaired_difference,
)
from heldout.stats.intervals import (
    CONFIDENCE,
    Interval,
    Rate,
    independent_rate,
    median_interval,
    t_quantile,
    wilson,
)
from heldout.stats.moments import Moments
from heldout.stats.pass_rates import PassRate, pass_at_k, pass_hat_k
from heldout.stats.power import (
    DifferenceVariance,
    RequiredSamples,
    VarianceComponents,
    detectable_difference,
    expected_difference,
    measured_difference,
    minimum_detectable,
    variance_components,
)
from heldout.stats.resampling import (
    BootstrapEstimate,
    Statistic,
    bootstrap,
    bootstrap_difference,
    bootstrap_improvement,
)
from heldout.stats.sequential import Verdict, advise, monitor
from heldout.stats.winner import best_of

__all__ = [
    "CONFIDENCE",
    "Agreement",
    "BootstrapEstimate",
    "DifferenceVariance",
    "Estimate",
    "Interval",
    "Moments",
    "PairedDifference",
    "PassRate",
    "Rate",
    "RequiredSamples",
    "SliceDifference",
    "Statistic",
    "UnpairedDifference",
    "VarianceComponents",
    "Verdict",
    "advise",
    "agreement_of",
    "best_of",
    "bootstrap",
    "bootstrap_difference",
    "bootstrap_improvement",
    "detectable_difference",
    "expected_difference",
    "independent_rate",
    "measured_difference",
    "median_interval",
    "minimum_detectable",
    "monitor",
    "paired_difference",
    "paired_slices",
    "pass_at_k",
    "pass_hat_k",
    "rate_of",
    "slice_differences",
    "t_quantile",
    "unpaired_difference",
    "variance_components",
    "wilson",
]
