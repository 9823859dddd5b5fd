"""How many samples and repeats detect a difference, by a run's own variance.

    plan("outputs/evals/before", detect=0.02)
    plan("outputs/evals/before", detect=0.02, sequential="linear")  # what stopping early saves

A plan is for two runs on the same samples, compared pair by pair. Without a second run (`against`)
it is the cautious one, or one for a stated `correlation`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from heldout.analysis._comparability import (
    match_runs,
    unseeded_runs,
)
from heldout.analysis._runs import (
    PASSED,
    REWARD,
    LoadedRun,
    Measure,
    RunOrPath,
    clusters_if_any,
    group_means,
    is_binary,
    load_run,
    within_unit,
)
from heldout.errors import InvalidInput
from heldout.stats import (
    DifferenceVariance,
    Moments,
    PairedDifference,
    RequiredSamples,
    VarianceComponents,
    detectable_difference,
    expected_difference,
    measured_difference,
    paired_difference,
    stopping,
    variance_components,
)
from heldout.stats.differences import tango_variance
from heldout.stats.intervals import Floats, Ints
from heldout.stats.power import ALPHA, POWER, least_effect

REPEATS = (1, 2, 4, 8)


EFFECTS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
"""The true effects of a sequential plan, in units of the one to detect."""


@dataclass(frozen=True, slots=True)
class ExpectedCalls:
    """What an eval that stops when its claim is settled costs, were this the true difference.

    Attributes:
        effect: The true difference.
        better: The probability of deciding that it is above the bound: better, or not worse by the
            margin.
        worse: The probability of deciding that it is below.
        samples: Expected samples.
        share: The same as a share of the set.
        fixed_better: The probability of "better" where all samples are run and looked at once.
    """

    effect: float
    better: float
    worse: float
    samples: float
    share: float
    fixed_better: float


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """How many samples and repeats detect a difference.

    Attributes:
        name: The baseline.
        against: The run it was compared with; None without one.
        metric: What is measured.
        samples: Samples with a value, in both runs where there are two.
        repeats: Attempts per sample, on average.
        left_out: Samples without a value.
        components: Where the variance of the baseline comes from.
        detect: The true difference to detect.
        power: The probability of detecting it.
        alpha: Detected is p below this.
        correlation: Of the samples' expected scores in this run and the next; None with `against`.
        correlation_assumed: Whether that is the cautious default.
        variance_known: Whether repeats separate the variance within samples from that between them.
        detectable: The minimum detectable effect of these samples; None if nothing varies.
        rows: What each number of repeats needs.
        repeats_for_these: Repeats that make these samples enough; None where no number does.
        clusters: Clusters of these samples; None where each stands alone.
        cluster: The metadata key of clusters; None: samples of equal content.
        design_effect: How many times more samples clusters take.
        unfinished: Runs that did not finish.
        cached: Runs all of whose model turns came from the response cache.
        spending: The rule of a sequential eval on these samples; None where none was asked for.
        margin: The loss that the next run may have, of a sequential eval; 0 asks for "better".
        expected: What such an eval costs, by true difference; empty without one.
    """

    name: str
    against: str | None
    metric: str
    samples: int
    repeats: float
    left_out: int
    components: VarianceComponents
    detect: float
    power: float
    alpha: float
    correlation: float | None
    correlation_assumed: bool
    variance_known: bool
    detectable: float | None
    rows: tuple[RequiredSamples, ...]
    repeats_for_these: int | None
    clusters: int | None
    cluster: str | None
    design_effect: float
    unfinished: tuple[str, ...]
    cached: tuple[str, ...]
    spending: Literal["linear", "keep_power"] | None = None
    margin: float = 0.0
    expected: tuple[ExpectedCalls, ...] = ()


def plan(
    baseline: RunOrPath,
    *,
    detect: float,
    against: RunOrPath | None = None,
    power: float = POWER,
    alpha: float = ALPHA,
    metric: str = REWARD,
    cluster: str | None = None,
    allow: Collection[str] = (),
    repeats: Sequence[int] = REPEATS,
    correlation: float | None = None,
    sequential: Literal["linear", "keep_power"] | None = None,
    margin: float = 0.0,
) -> SamplePlan:
    """Plan how many samples and repeats detect a difference from a run.

    Args:
        baseline: A report, or the path of a run directory, whose variance to plan with.
        detect: The true difference to detect.
        against: Another run on the same samples: the variance of the differences is then measured.
        power: The probability of detecting it.
        alpha: Detected is p below this.
        metric: "reward", "passed", or the name of a metric.
        cluster: A metadata key: samples that share its value are not independent.
        allow: What may differ between the two runs, as for `compare`.
        repeats: Numbers of repeats to plan for.
        correlation: Of the samples' expected scores in this run and the next, where there is no
            second run; None takes 0, which is cautious.
        sequential: How a next run on these samples that stops when its claim is settled spends its
            error; None: it does not stop.
        margin: The loss that such a run may have; 0 asks whether it is better.

    Raises:
        NotComparable: The two runs differ in what is not allowed.
        InvalidInput: Nothing varies, or an argument makes no sense.
    """
    if isinstance(repeats, int) or not repeats:
        raise InvalidInput(f"repeats names numbers of repeats to plan for, got {repeats!r}")
    if against is not None and correlation is not None:
        raise InvalidInput("correlation is a guess at what `against` measures: give one of the two")
    keys = [] if cluster is None else [cluster]
    base = _measure_items(load_run(baseline, keys, name="the baseline"), metric)
    other = None
    if against is not None:
        other = _measure_items(load_run(against, keys, name="the other"), metric)
        base, other = _align(base, other, metric, allow)
    components = variance_components(base.values, samples=base.samples)
    bounded = within_unit(base.values, *([] if other is None else [other.values]))
    if bounded and not 0 < detect < 1:
        raise InvalidInput(
            f"every {metric} lies between 0 and 1, and so does a difference to detect; got "
            f"{detect!r}"
        )
    design_effect, clusters = _design_effect(base, other, cluster)

    def variance_for(effect: float) -> DifferenceVariance:
        if other is None:
            found = _expected_variance(base, components, effect, correlation or 0.0)
        else:
            found = measured_difference(
                base.values, other.values, samples_a=base.samples, samples_b=other.samples
            )
        stands_alone = clusters is None or clusters == components.samples
        return replace(found.times(design_effect), exact=found.exact and stands_alone)

    variance, n = variance_for(detect), components.samples
    if variance.at(1)[1] == 0:
        raise InvalidInput(
            f"the {metric} of {base.run.name} does not vary"
            + (f" from that of {other.run.name}" if other else "")
            + ", so it is unknown how many samples would show a difference: plan with harder ones"
        )
    mean_repeats = len(base.values) / n

    settings: Any = {"power": power, "alpha": alpha}
    rows = tuple(
        variance.required(repeats=count, detect=detect, **settings)
        for count in dict.fromkeys(repeats)
    )
    if other is not None:
        pair = _pair_difference(base, other, cluster, bounded=bounded, confidence=1 - alpha)
        detectable = detectable_difference(pair, power=power)
    elif bounded:  # the variance depends on the effect, and the effect on the variance
        detectable = least_effect(
            lambda d: variance_for(d).is_detected(d, n, repeats=mean_repeats, **settings)
        )
    else:
        detectable = variance.detectable(n, repeats=mean_repeats, **settings)
    expected: tuple[ExpectedCalls, ...] = ()
    if sequential is not None:
        looks = stopping.Plan(n, sequential, level=alpha)
        effects = [-margin, -margin / 2, 0.0, detect] if margin else [e * detect for e in EFFECTS]
        expected = tuple(
            _expect_calls(looks, effect, margin, variance_for(abs(effect)), mean_repeats)
            for effect in effects
            if not bounded or abs(effect) < 1
        )
    elif margin:
        raise InvalidInput("margin is that of a sequential plan: say sequential, too")
    runs = [base.run] if other is None else [base.run, other.run]
    return SamplePlan(
        name=base.run.name,
        against=None if other is None else other.run.name,
        metric=metric,
        samples=n,
        repeats=mean_repeats,
        left_out=base.run.table.samples - n,
        components=components,
        detect=detect,
        power=power,
        alpha=alpha,
        correlation=None if other else correlation or 0.0,
        correlation_assumed=other is None and correlation is None,
        variance_known=len(variance.splits) == 1,
        detectable=detectable,
        rows=rows,
        repeats_for_these=variance.repeats_for(n, detect=detect, **settings),
        clusters=clusters,
        cluster=cluster,
        design_effect=design_effect,
        unfinished=tuple(run.name for run in runs if not run.complete),
        cached=tuple(run.name for run in runs if run.measured_nothing),
        spending=sequential,
        margin=margin,
        expected=expected,
    )


def _expect_calls(
    looks: stopping.Plan,
    effect: float,
    margin: float,
    found: DifferenceVariance,
    repeats: float,
) -> ExpectedCalls:
    """Return what a sequential eval costs under a true difference, a loss being below 0."""
    null = variance = found.at(repeats)[1]
    if found.shares is not None:
        null, variance = found.shares.variances(variance, abs(effect))
    elif found.exact:
        null = variance + effect**2
    if null >= abs(effect) and (found.exact or found.shares is not None):
        # A score test takes the variance that is likeliest under its bound, in pairs of 0 and 1.
        won, lost = (null + effect) / 2, (null - effect) / 2
        null = tango_variance(won, lost, 1.0, -margin)
    expectation = stopping.expect_normal(
        looks, -margin, effect, std=math.sqrt(variance), null_std=math.sqrt(null)
    )
    return ExpectedCalls(
        effect=effect,
        better=expectation.above,
        worse=expectation.below,
        samples=expectation.units,
        share=expectation.share,
        fixed_better=expectation.fixed_above,
    )


@dataclass(frozen=True, slots=True)
class _RunValues:
    """The values of a run's items, and the sample that each belongs to."""

    run: LoadedRun
    values: Floats
    samples: Ints


def _measure_items(run: LoadedRun, metric: str) -> _RunValues:
    measure = Measure(metric, run.report.pass_threshold)
    if measure.k is not None:
        raise InvalidInput(f"{metric} is of several answers: plan by passed, with repeats")
    values = measure.item_values(run)
    present = ~np.isnan(values)
    if not present.any():
        raise InvalidInput(f"{run.name} has no {metric} at all to plan by")
    return _RunValues(run, values[present], run.table.sample[present])


def _align(
    base: _RunValues, other: _RunValues, metric: str, allow: Collection[str]
) -> tuple[_RunValues, _RunValues]:
    """Keep the samples that have a value in both runs, and number them alike."""
    shared, _ = match_runs(
        base.run,
        other.run,
        allow,
        f"{base.run.name} and {other.run.name} are no pair to plan by",
        threshold_matters=metric == PASSED,
    )
    if unseeded := unseeded_runs(base.run, other.run):
        raise InvalidInput(
            f"the episodes of {' and '.join(unseeded)} had no seeds: there are no pairs of them to "
            "plan by"
        )
    index_in_base = np.full(other.run.table.samples, -1, dtype=np.int64)
    index_in_base[shared.b] = shared.a
    other = replace(other, samples=index_in_base[other.samples])
    both = np.intersect1d(base.samples, other.samples)
    if len(both) < 2:
        raise InvalidInput(f"{len(both)} samples have a value on both sides: too few to plan by")

    def keep(items: _RunValues) -> _RunValues:
        kept = np.isin(items.samples, both)
        return _RunValues(items.run, items.values[kept], items.samples[kept])

    return keep(base), keep(other)


def _expected_variance(
    base: _RunValues, components: VarianceComponents, effect: float, correlation: float
) -> DifferenceVariance:
    """Return the variance of the difference from a run that does not exist yet.

    Of 0/1 values the mean says how much they vary: a rate that is to rise from 1% to 6% varies more
    than it does now, and a difference of d needs a share of d of samples that differ.
    """
    if not is_binary(base.values):
        return expected_difference(components, correlation=correlation)
    rate = float(base.values.mean())
    nearest = min(1.0, max(0.0, min(max(0.5, rate - effect), rate + effect)))
    then = max(components.total, nearest * (1 - nearest))
    variance = expected_difference(components, correlation=correlation, other=then)
    return replace(variance.at_least(effect - effect**2), exact=True)


def _pair_difference(
    base: _RunValues, other: _RunValues, cluster: str | None, *, bounded: bool, confidence: float
) -> PairedDifference:
    """Return the difference as `compare` has it."""
    table = base.run.table
    a, b = (group_means(items.samples, items.values, table.samples) for items in (base, other))
    present, codes = ~np.isnan(a), clusters_if_any(table, cluster)
    return paired_difference(
        a[present],
        b[present],
        clusters=None if codes is None else codes[present],
        confidence=confidence,
        bounded=bounded,
    )


def _design_effect(
    base: _RunValues, other: _RunValues | None, cluster: str | None
) -> tuple[float, int | None]:
    """Return how many times more samples clusters take (L. Kish 1965), and the clusters, if any.

    It is at least 1: less would be chance in this run.
    """
    table = base.run.table
    codes = clusters_if_any(table, cluster)
    if codes is None:
        return 1.0, None
    values = group_means(base.samples, base.values, table.samples)
    if other is not None:
        values = group_means(other.samples, other.values, table.samples) - values
    present = ~np.isnan(values)
    together, alone = Moments.of(values[present], codes[present]), Moments.of(values[present])
    if not together.stderr or not alone.stderr:
        return 1.0, together.clusters
    return max(1.0, (together.stderr / alone.stderr) ** 2), together.clusters
