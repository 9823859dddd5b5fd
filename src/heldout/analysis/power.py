"""How many samples and repeats it takes to see a difference, from a run's own variance.

    plan("outputs/evals/before", detect=0.02)

A plan is for two runs on the same samples, compared pair by pair. One run tells how much its
scores vary; how alike another run's would be it cannot tell, so without a second run (`against`)
the cautious answer is given, or one for the `correlation` that is stated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from heldout.analysis.comparable import (
    mismatches,
    refuse,
    refuse_itself,
    shared_samples,
    unpairable,
)
from heldout.analysis.measures import PASSED, REWARD, Measure, is_binary, means_of, within_unit
from heldout.analysis.opened import Comparable, Opened, cluster_numbers, has_copies, opened
from heldout.analysis.passes import FEW_CLUSTERS
from heldout.errors import InvalidInput
from heldout.stats import (
    DifferenceVariance,
    Floats,
    Ints,
    Moments,
    VarianceComponents,
    expected_difference,
    measured_difference,
    minimum_detectable,
    variance_components,
)

ALPHA, POWER = 0.05, 0.8
REPEATS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Row:
    repeats: int
    samples: int
    """Enough, whatever is not known."""
    at_least: int
    """Fewer are never enough; the same as `samples` where the runs tell all there is to know."""
    answers: int
    """samples x repeats, of one run."""


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    against: str | None
    metric: str
    samples: int
    """With a value, on both sides where there are two."""
    repeats: float
    """Answers a sample, on average."""
    left_out: int
    """Samples without a value."""
    components: VarianceComponents
    detect: float
    power: float
    alpha: float
    correlation: float | None
    """None where a second run made it unnecessary."""
    detectable: float | None
    """What a comparison of two runs like this one would see; None where nothing varies."""
    rows: tuple[Row, ...]
    repeats_for_these: int | None
    """Repeats that make these samples enough, whatever is not known; None where no number does."""
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: plain values, stable keys."""
        return asdict(self)


def plan(
    baseline: Comparable,
    *,
    detect: float,
    against: Comparable | None = None,
    power: float = POWER,
    alpha: float = ALPHA,
    metric: str = REWARD,
    cluster: str | None = None,
    allow: Collection[str] = (),
    repeats: Sequence[int] = REPEATS,
    correlation: float | None = None,
) -> Plan:
    """`detect` is the true difference to be seen with probability `power`, as p < `alpha`.

    `against` is another run on the same samples: the variance of their differences is then known,
    not guessed. `correlation` is that of the samples' expected scores in this run and the next,
    where there is no second run. `cluster` is a key of samples that belong together, of which more
    are needed. `allow` is as for `compare`.
    """
    if isinstance(repeats, int) or not repeats:
        raise InvalidInput(f"repeats names numbers of repeats to plan for, got {repeats!r}")
    if against is not None and correlation is not None:
        raise InvalidInput("correlation is a guess at what `against` tells: give one of the two")
    keys = [] if cluster is None else [cluster]
    one = _measured(opened(baseline, keys, name="the baseline"), metric)
    other = None
    if against is not None:
        other = _measured(opened(against, keys, name="the other"), metric)
        one, other = _on_shared_samples(one, other, allow)
    components = variance_components(one.values, samples=one.samples)
    variance = _variance(one, other, components, detect, correlation or 0.0)
    notes = _notes(one, other, variance, correlation)
    if cluster is not None or has_copies(one.side.table):
        effect, groups = _design_effect(one, other, cluster)
        variance = variance.times(effect)
        by = "content: equal ones are one" if cluster is None else cluster
        notes.append(
            f"{effect:.2f} times as many, since samples come in {groups} clusters by {by}"
            + ("; from so few clusters that is rough" if groups < FEW_CLUSTERS else "")
        )
    settings = {"detect": detect, "power": power, "alpha": alpha}
    needed = [variance.required(repeats=count, **settings) for count in dict.fromkeys(repeats)]
    n, answers = components.samples, len(one.values) / components.samples
    spread = variance.at(answers)[1]
    return Plan(
        name=one.side.name,
        against=None if other is None else other.side.name,
        metric=metric,
        samples=n,
        repeats=answers,
        left_out=one.left_out,
        components=components,
        detect=detect,
        power=power,
        alpha=alpha,
        correlation=None if other else correlation or 0.0,
        detectable=minimum_detectable(math.sqrt(spread / n), n, power=power, alpha=alpha),
        rows=tuple(Row(r.repeats, r.samples, r.at_least, r.samples * r.repeats) for r in needed),
        repeats_for_these=variance.repeats_for(n, **settings),
        notes=tuple(notes),
    )


def _variance(
    one: _Measured,
    other: _Measured | None,
    components: VarianceComponents,
    detect: float,
    correlation: float,
) -> DifferenceVariance:
    """Of the difference that is to be seen, which need not be there yet.

    Of 0/1 values the mean says how much they vary: a rate that is to rise from 1% to 6% varies more
    than it does now, and a difference of d needs a share of d of samples that differ.
    """
    both = [one.values, *([] if other is None else [other.values])]
    if within_unit(*both) and not 0 < detect < 1:
        raise InvalidInput(
            f"every {one.metric} lies between 0 and 1, and so does a difference to detect; got "
            f"{detect!r}"
        )
    binary = is_binary(*both)
    if other is None:
        then = None
        if binary:
            rate = float(one.values.mean())
            nearest = min(max(0.5, rate - detect), rate + detect)
            nearest = min(1.0, max(0.0, nearest))
            then = max(components.total, nearest * (1 - nearest))
        variance = expected_difference(components, correlation=correlation, other=then)
    else:
        variance = measured_difference(
            one.values, other.values, samples_a=one.samples, samples_b=other.samples
        )
    if binary:
        return variance.at_least(detect - detect**2)
    if variance.at(1)[1] == 0:
        raise InvalidInput(
            f"the {one.metric} of {one.side.name} does not vary"
            + (f" from that of {other.side.name}" if other else "")
            + ", so nobody can say how many samples would show a difference: plan with harder ones"
        )
    return variance


def _design_effect(
    one: _Measured, other: _Measured | None, cluster: str | None
) -> tuple[float, int]:
    """How many times more samples it takes because they come in clusters (L. Kish 1965), and how
    many clusters there are. Fewer it never takes: that would be a chance of this run."""
    table = one.side.table
    values = means_of(one.samples, one.values, len(table.sample_ids))
    if other is not None:
        values = means_of(other.samples, other.values, len(table.sample_ids)) - values
    present = ~np.isnan(values)
    codes = cluster_numbers(table, cluster)[present]
    together = Moments.of(values[present], codes).stderr
    alone = Moments.of(values[present], np.arange(int(present.sum()))).stderr
    groups = len(np.unique(codes))
    if not together or not alone:
        return 1.0, groups
    return max(1.0, (together / alone) ** 2), groups


# --- What varies --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measured:
    side: Opened
    metric: str
    values: Floats
    samples: Ints
    left_out: int


def _measured(side: Opened, metric: str) -> _Measured:
    measure = Measure(metric, side.report.pass_threshold)
    if measure.k is not None:
        raise InvalidInput(f"{metric} is of several answers: plan by passed, with repeats")
    values = measure.items(side.table, side.name)
    present = ~np.isnan(values)
    if not present.any():
        raise InvalidInput(f"{side.name} has no {metric} at all to plan by")
    samples = side.table.sample[present]
    left_out = len(side.table.sample_ids) - len(np.unique(samples))
    return _Measured(side, metric, values[present], samples, left_out)


def _on_shared_samples(
    one: _Measured, other: _Measured, allow: Collection[str]
) -> tuple[_Measured, _Measured]:
    """Only samples with a value on both sides, numbered alike."""
    refuse_itself(one.side, other.side)
    if said := unpairable(one.side, other.side):
        raise InvalidInput(f"{said}: there are no pairs of them to plan by")
    shared = shared_samples(one.side, other.side)
    matters = one.metric == PASSED
    found = mismatches(one.side, other.side, shared, keys=(), threshold_matters=matters)
    refuse(found, allow, f"{one.side.name} and {other.side.name} are no pair to plan by")
    to_a = np.full(len(other.side.table.sample_ids), -1, dtype=np.int64)
    to_a[shared.in_b] = shared.in_a
    samples = to_a[other.samples]
    both = np.intersect1d(one.samples, samples)
    if len(both) < 2:
        raise InvalidInput(f"{len(both)} samples have a value on both sides: too few to plan by")
    total = len(one.side.table.sample_ids)
    left = total - len(both)
    parts = []
    for side, numbers in ((one, one.samples), (other, samples)):
        kept = np.isin(numbers, both)
        parts.append(replace(side, values=side.values[kept], samples=numbers[kept], left_out=left))
    return parts[0], parts[1]


def _notes(
    one: _Measured,
    other: _Measured | None,
    variance: DifferenceVariance,
    correlation: float | None,
) -> list[str]:
    notes = []
    if len(variance.splits) > 1:
        notes.append(
            "without repeats nobody knows how much of the variance more repeats would average out, "
            "hence a range; run a few samples a few times each"
        )
    if other is None and correlation is None:
        notes.append(
            "how alike the other run will be is not known, and it is taken to be unlike; a second "
            "run on these samples (--against) replaces that guess, and usually asks for fewer"
        )
    for side in (one, other):
        if side is not None and not side.side.complete:
            notes.append(f"{side.side.name} is not finished: what ends first may vary less")
    return notes
