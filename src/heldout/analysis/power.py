"""How many samples and repeats it takes to see a difference, from a run's own variance.

    plan("outputs/evals/before", detect=0.02)

A plan is for two runs on the same samples, compared pair by pair. One run tells how much its
scores vary; how alike another run's would be it cannot tell, so without a second run (`against`)
the cautious answer is given, or one for the `correlation` that is stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from heldout.analysis.comparable import mismatches, refuse, shared_samples
from heldout.analysis.opened import REWARD, Comparable, Opened, item_values, opened
from heldout.errors import InvalidInput
from heldout.stats import (
    DifferenceVariance,
    Floats,
    Ints,
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
    repeats: Sequence[int] = REPEATS,
    correlation: float = 0.0,
) -> Plan:
    """`detect` is the true difference to be seen with probability `power`, as p < `alpha`.

    `against` is another run on the same samples: the variance of their differences is then known,
    not guessed. `correlation` is that of the samples' expected scores in this run and the next; it
    is not used where there is a second run.
    """
    if not repeats:
        raise InvalidInput("repeats names at least one number of repeats to plan for")
    one = _measured(opened(baseline, name="the baseline"), metric)
    other = None
    if against is not None:
        other = _measured(opened(against, name="the other"), metric)
        one, other = _on_shared_samples(one, other)
    components = variance_components(one.values, samples=one.samples)
    if other is None:
        variance = expected_difference(components, correlation=correlation)
    else:
        variance = measured_difference(
            one.values, other.values, samples_a=one.samples, samples_b=other.samples
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
        correlation=None if other else correlation,
        detectable=minimum_detectable(math.sqrt(spread / n), n, power=power, alpha=alpha),
        rows=tuple(Row(r.repeats, r.samples, r.at_least, r.samples * r.repeats) for r in needed),
        repeats_for_these=variance.repeats_for(n, **settings),
        notes=tuple(_notes(one, other, variance)),
    )


# --- What varies --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Measured:
    side: Opened
    values: Floats
    samples: Ints
    left_out: int


def _measured(side: Opened, metric: str) -> _Measured:
    values = item_values(side.table, metric, side.report.pass_threshold, side.name)
    present = ~np.isnan(values)
    samples = side.table.sample[present]
    left_out = len(side.table.sample_ids) - len(np.unique(samples))
    return _Measured(side, values[present], samples, left_out)


def _on_shared_samples(one: _Measured, other: _Measured) -> tuple[_Measured, _Measured]:
    """Only samples with a value on both sides, numbered alike."""
    shared = shared_samples(one.side, other.side)
    found = mismatches(one.side, other.side, shared, keys=(), threshold_given=True)
    refuse(found, (), f"{one.side.name} and {other.side.name} are no pair to plan by")
    to_a = np.full(len(other.side.table.sample_ids), -1, dtype=np.int64)
    to_a[shared.in_b] = shared.in_a
    samples = to_a[other.samples]
    both = np.intersect1d(one.samples, samples)
    total = len(one.side.table.sample_ids)
    parts = []
    for side, numbers in ((one, one.samples), (other, samples)):
        kept = np.isin(numbers, both)
        parts.append(
            _Measured(side.side, side.values[kept], numbers[kept], left_out=total - len(both))
        )
    return parts[0], parts[1]


def _notes(one: _Measured, other: _Measured | None, variance: DifferenceVariance) -> list[str]:
    notes = []
    if len(variance.splits) > 1:
        notes.append(
            "without repeats nobody knows how much of the variance more repeats would average out, "
            "hence a range; run a few samples a few times each"
        )
    if other is None:
        notes.append(
            "how alike the other run will be is not known; a second run on these samples "
            "(against) replaces that guess, and usually asks for fewer samples"
        )
    if not one.side.complete:
        notes.append(f"{one.side.name} is not finished: what ends first may vary less")
    return notes
