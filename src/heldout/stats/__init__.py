"""Error bars, comparisons and verdicts: pure functions over numbers, numpy only.

summaries    means with clustered errors and intervals, from a stream
passk        pass@k and pass^k
resampling   interquartile mean and its kin, over runs x tasks, by stratified bootstrap
paired       a difference on the same items; unpaired: on different ones; slices: many at once
power        how many samples and repeats it takes to see a difference
sequential   verdicts on a curve of evals, at every evaluation point
winner       the best of several, with an interval that knows it was picked
agreement    verdicts against labels: Cohen's kappa, balanced F1

clustered    the error of a mean over clusters of any sizes
given        what is asked of the numbers that come in
student      Student's t distribution
"""

from __future__ import annotations

from heldout.stats.agreement import (
    Agreement,
    ClassAgreement,
    Estimate,
    agreement_of,
    agreement_of_table,
    rate_of,
)
from heldout.stats.paired import PairedDifference, paired_difference
from heldout.stats.passk import PassRate, pass_at_k, pass_hat_k
from heldout.stats.power import (
    DifferenceVariance,
    PairedComponents,
    RequiredSamples,
    VarianceComponents,
    detectable_rate_difference,
    expected_difference,
    measured_difference,
    minimum_detectable,
    paired_components,
    required_repeats,
    samples_for,
    variance_components,
)
from heldout.stats.rates import Rate, independent_rate
from heldout.stats.resampling import (
    BootstrapEstimate,
    Statistic,
    bootstrap,
    bootstrap_improvement,
    improvement_probability,
    interquartile_mean,
    mean_over_tasks,
    median_over_tasks,
    optimality_gap,
)
from heldout.stats.sequential import Advice, Verdict, advise, monitor
from heldout.stats.slices import SliceDifference, holm, paired_slices, slice_differences
from heldout.stats.student import t_quantile
from heldout.stats.summaries import (
    CONFIDENCE,
    Floats,
    Interval,
    Ints,
    Moments,
    median_interval,
    wilson,
)
from heldout.stats.unpaired import UnpairedDifference, unpaired_difference
from heldout.stats.winner import Winner, best_of

__all__ = [
    "CONFIDENCE",
    "Advice",
    "Agreement",
    "BootstrapEstimate",
    "ClassAgreement",
    "DifferenceVariance",
    "Estimate",
    "Floats",
    "Interval",
    "Ints",
    "Moments",
    "PairedComponents",
    "PairedDifference",
    "PassRate",
    "Rate",
    "RequiredSamples",
    "SliceDifference",
    "Statistic",
    "UnpairedDifference",
    "VarianceComponents",
    "Verdict",
    "Winner",
    "advise",
    "agreement_of",
    "agreement_of_table",
    "best_of",
    "bootstrap",
    "bootstrap_improvement",
    "detectable_rate_difference",
    "expected_difference",
    "holm",
    "improvement_probability",
    "independent_rate",
    "interquartile_mean",
    "mean_over_tasks",
    "measured_difference",
    "median_interval",
    "median_over_tasks",
    "minimum_detectable",
    "monitor",
    "optimality_gap",
    "paired_components",
    "paired_difference",
    "paired_slices",
    "pass_at_k",
    "pass_hat_k",
    "rate_of",
    "required_repeats",
    "samples_for",
    "slice_differences",
    "t_quantile",
    "unpaired_difference",
    "variance_components",
    "wilson",
]
