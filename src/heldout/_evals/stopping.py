"""When a run with `until` stops: looks at prefixes of a fixed order.

Samples run in an order that is made of their ids alone, and a look is at the first n of them once
*all* of them are done. Which answers are quick decides nothing: with 64 in flight and wrong answers
twice as slow, the first 50 that end would say .62 where .50 is true. So the same answers lead to
the same stop, whatever the concurrency, and after any number of kills.

The engine asks three things: whether an item may start (`admits`), what a result changes (`add`),
and, at the end, what was settled (`settle`). The statistics are in `stats/stopping/`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from heldout._core.config import EvalConfig
from heldout._core.format import interval, list_some, number
from heldout._core.until import Until
from heldout._evals.baseline import Baseline
from heldout.datasets import ordered_by_id
from heldout.errors import EvalFailed, InvalidInput
from heldout.stats.intervals import Floats, Interval, Ints
from heldout.stats.stopping import (
    Claim,
    Conclusion,
    Look,
    Plan,
    Prefix,
    better_than_baseline,
    check_claim,
    conclude,
    look,
    mean_above,
    mean_below,
    not_worse_than_baseline,
    within,
)
from heldout.store.journal import cluster_hash, content_hash
from heldout.store.jsonl import encode
from heldout.store.settled import Decision, Settled, one_comparison
from heldout.types import Sample

if TYPE_CHECKING:
    from heldout._evals.engine import Item

SAMPLES_NAMED, KEYS_NAMED = 3, 10
FIRST_ROOM = 64
"""Samples of a stream that there is room for at first."""
ORDER_KEY = 0
"""Determines the order together with the samples' ids, as the seed of `PeriodicEval` does."""
TESTS = {
    "binomial": "exact binomial test",
    "paired": "exact test of the pairs that differ",
    "hypergeometric": "exact hypergeometric test",
    "tango": "Tango's score test",
    "t": "Student's t",
    "betting": "betting",
    "without_replacement": "betting without replacement",
    "width": "width of the interval",
}


def order_for_looks(
    samples: Sequence[Any], *, whole: bool, cluster: str | None = None
) -> list[Any]:
    """Put samples into the order in which they run, those of one cluster side by side.

    A cluster takes the place of its first sample.

    Args:
        samples: In any order. What is no sample stays: it is refused where samples are checked.
        whole: Whether samples that differ in metadata alone are different tasks.
        cluster: The metadata key whose value samples of one cluster share; None takes those of
            equal content.

    Raises:
        InvalidInput: Samples lack that key.
    """
    if not all(isinstance(sample, Sample) for sample in samples):
        return list(samples)
    clusters: dict[Hashable, list[Sample]] = {}
    for sample in ordered_by_id(samples, ORDER_KEY):
        clusters.setdefault(_cluster_of(sample, whole, cluster), []).append(sample)
    if None in clusters:
        lacking = [sample.id for sample in clusters[None]]
        there = sorted({key for sample in samples for key in sample.metadata})
        raise InvalidInput(
            f"cluster={cluster!r}: {len(lacking)} of {format_samples(len(samples))} do not have "
            f"that metadata key: {list_some(lacking, SAMPLES_NAMED, ', ')}. "
            f"Keys that samples have: {list_some(there, KEYS_NAMED, ', ') or 'none'}"
        )
    return [sample for members in clusters.values() for sample in members]


def _cluster_of(sample: Sample, whole: bool, key: str | None) -> Hashable:
    """Return what samples of one cluster share; None of a sample that lacks the key."""
    if key == "sample_id":
        return sample.id
    if key is not None:
        value = sample.metadata.get(key)
        return None if value is None else encode(value, "sample", sample.id)
    content = content_hash(sample.id, sample.input, sample.ground_truth)
    return cluster_hash(content, sample.metadata, whole=whole)


def plan_stream(config: EvalConfig) -> Stopping:
    """Plan the looks of a run on a stream, whose number of samples nobody knows.

    Args:
        config: How the run is made; it has a claim that `refuse_on_stream` lets pass.
    """
    until = config.settles
    assert until is not None
    plan = Plan(n=None, spending="betting", level=config.level)
    return Stopping(until, plan, None, config, None)


def refuse_on_stream(config: EvalConfig, baseline: Baseline | None) -> None:
    """Refuse what cannot be settled on samples whose number nobody knows.

    Args:
        config: How the run is made; it has a claim.
        baseline: The run that the claim compares with, if it does.

    Raises:
        InvalidInput: The claim, or how it is to be settled, needs a set of known size.
    """
    if baseline is not None:
        n = baseline.table.samples
        raise InvalidInput(
            f"{baseline.name} has {format_samples(n)}, and load_dataset returns a stream, which "
            f"may have more: to compare with that run, limit this one to as many (--limit {n}, "
            f"max_samples={n}), or return a list"
        )
    needs = {
        "keep_power": "spends error by the share of the set that is done",
        "this_set": "is about the samples that are left",
        "cluster": "runs all samples of a cluster as one step",
    }
    for name, what in needs.items():
        if getattr(config, name):
            raise InvalidInput(
                f"{name} {what}, and a stream has no known end: return a list from load_dataset, "
                f"or give a limit (--limit, max_samples), or leave out {name}"
            )


def plan_stopping(
    samples: Sequence[Sample], config: EvalConfig, baseline: Baseline | None, *, whole: bool
) -> Stopping:
    """Plan the looks of a run.

    Args:
        samples: All samples, as `order_for_looks` has put them.
        config: How the run is made; it has a claim.
        baseline: The run that the claim compares with, if it does.
        whole: Whether samples that differ in metadata alone are different tasks.

    Raises:
        InvalidInput: The set cannot settle the claim, even when it is used up.
        NotComparable: The baseline lacks samples.
    """
    until = config.settles
    assert until is not None
    units = units_of(samples, whole=whole, cluster=config.cluster)
    plan = Plan(
        n=int(units[-1]) + 1,
        spending="keep_power" if config.keep_power else "linear",
        level=config.level,
        this_set=config.this_set,
    )
    clustered = len(samples) * config.repeats > (plan.n or 0)
    check_claim(plan, claim_of(until), clustered=clustered, cluster=config.cluster)
    sizes = np.bincount(units)
    if config.this_set and sizes.min() < sizes.max():
        raise InvalidInput(
            f"this_set needs clusters of one size, and these have {sizes.min()} to {sizes.max()} "
            "samples: leave out this_set"
        )
    of_baseline = None if baseline is None else baseline.values(samples)
    return Stopping(until, plan, units, config, of_baseline)


def prefix_of(low: Floats, high: Floats, units: Ints | None) -> Prefix:
    """Return the values of the first samples as statistics take them."""
    exact = bool((low == high).all())
    return Prefix.of(
        low, None if exact else high, units=None if units is None else units[: len(low)]
    )


def units_of(samples: Sequence[Sample], *, whole: bool, cluster: str | None = None) -> Ints:
    """Number the unit of each sample, in the order of `order_for_looks`: a sample, or a cluster."""
    shared = [_cluster_of(sample, whole, cluster) for sample in samples]
    numbers = {value: place for place, value in enumerate(dict.fromkeys(shared))}
    return np.array([numbers[value] for value in shared], dtype=np.int64)


def claim_of(until: Until) -> Claim:
    """Return the claim that statistics test."""
    match until.kind:
        case "mean":
            return mean_above(until.bound) if until.above else mean_below(until.bound)
        case "precision":
            return within(until.bound)
        case "better":
            return better_than_baseline()
        case "not_worse":
            return not_worse_than_baseline(until.bound)


class Prefixes:
    """Knows which samples of a run are done, and how far beyond a look items may start."""

    def __init__(self, plan: Plan, units: Ints | None, config: EvalConfig) -> None:
        """Begin before the first look.

        Args:
            plan: When to look.
            units: Of each sample, in running order: the unit that it belongs to, from 0. None of a
                stream: each sample is one, and nobody knows how many there are.
            config: How the run is made.
        """
        self._plan, self._units = plan, units
        self._repeats, self._ahead = config.repeats, config.max_concurrent
        self._max_error_rate = config.max_error_rate
        # How many samples the first units have: a look at 10 clusters is one at all their samples.
        self._samples_of = None
        if units is not None:
            self._samples_of = np.searchsorted(units, np.arange(plan.n or 0), side="right")
        self._end = None if units is None else len(units)
        """How many samples there are; None of a stream until it has ended."""
        self._sums = np.zeros(0)
        self._left = np.zeros(0, dtype=np.int64)
        self._errors = np.zeros(0, dtype=np.int64)
        self._make_room(len(units) if units is not None else FIRST_ROOM)
        self._first_open = 0
        """Samples before this one are done."""
        first = plan.next_size(0)
        assert first is not None
        self._next = first
        """Units of the next look; once the run is over, of the last one."""
        self._moved = anyio.Event()
        """Set when there was a look."""
        self.is_over = False
        """Whether there is nothing more to run."""

    def _make_room(self, samples: int) -> None:
        new = samples - len(self._left)
        self._sums = np.append(self._sums, np.zeros(new))
        self._left = np.append(self._left, np.full(new, self._repeats))
        self._errors = np.append(self._errors, np.zeros(new, dtype=np.int64))

    @property
    def samples_of_look(self) -> int:
        """How many samples the next look is at; once the run is over, the last one."""
        return self._samples_in(self._next)

    @property
    def items(self) -> int:
        """How many items that look is at."""
        return self.samples_of_look * self._repeats

    @property
    def errors(self) -> int:
        """How many of these errored."""
        return int(self._errors[: self.samples_of_look].sum())

    @property
    def is_complete(self) -> bool:
        """Whether all samples of the next look are done."""
        return self.has_done(self._next)

    async def admits(self, item: Item) -> bool:
        """Wait until an item may start; False if it must not, as the run is over.

        No more than `max_concurrent` items beyond the next look start before that: they keep
        everything busy while the last of its items end, and are all that a stop may waste.
        """
        place = item.index * self._repeats + item.repeat
        while not self.is_over and place >= self.items + self._ahead:
            await self._moved.wait()
        return not self.is_over

    def has_done(self, units: int) -> bool:
        """Return whether all samples of the first units are done."""
        return self._first_open >= self._samples_in(units)

    def _samples_in(self, units: int) -> int:
        return units if self._samples_of is None else int(self._samples_of[units - 1])

    def add(self, index: int, reward: float | None) -> None:
        """Count the result of an item, and make the looks that it completes.

        Args:
            index: The place of its sample.
            reward: Its reward; None if it errored, so that it may be anything between 0 and 1.

        Raises:
            EvalFailed: The reward is not between 0 and 1.
        """
        self._count(index, reward)
        self.go_on()

    def add_known(self, rewards: Iterable[tuple[int, float]]) -> None:
        """Count what a killed process finished, and make the looks that it had made.

        Args:
            rewards: The place of an item's sample, and its reward.

        Raises:
            EvalFailed: A reward is not between 0 and 1.
        """
        for index, reward in rewards:
            self._count(index, reward)
        self.go_on()

    def _count(self, index: int, reward: float | None) -> None:
        if index >= len(self._left):
            self._make_room(2 * (index + 1))
        if reward is None:
            self._errors[index] += 1
        elif 0 <= reward <= 1:
            self._sums[index] += reward
        else:
            raise EvalFailed(
                "runs that stop are for rewards between 0 and 1, and the sample at position "
                f"{index + 1} of this one has {reward:g}; run it without until, or scale its metric"
            )
        self._left[index] -= 1
        while self._first_open < len(self._left) and self._left[self._first_open] == 0:
            self._first_open += 1

    def use_up(self, samples: int) -> None:
        """Say that the last sample of a stream was read; the last look is at all of them.

        Args:
            samples: How many there were.
        """
        if self._end is not None or self.is_over or samples == 0:
            return
        self._end = samples
        self._next = min(self._next, samples)
        self.go_on()

    def next_look(self) -> int | None:
        """Return the units of the look after the next one; None where there is none."""
        later = self._plan.next_size(self._next)
        if self._plan.n is not None or self._end is None or later is None:
            return later
        return min(later, self._end) if self._next < self._end else None

    def go_on(self) -> None:
        """Make the looks whose samples are done."""
        raise NotImplementedError

    def settle(self, *, spent: int) -> Settled:
        """Say what was settled, once the run is over.

        Args:
            spent: Items that were run.
        """
        raise NotImplementedError

    def describe(self) -> str:
        """Say what the last look found, for the line of a run in flight."""
        raise NotImplementedError

    def move(self, later: int | None) -> None:
        """Go on to a later look, or end the run at this one; wakes those that wait to start.

        Args:
            later: Units of that look; None: there is none.
        """
        if later is None:
            self.is_over = True
        else:
            self._next = later
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    def may_decide(self) -> bool:
        """Return whether a mean over the samples of this look would be one (clause 3)."""
        limit = 1.0 if self._max_error_rate is None else self._max_error_rate
        return self.errors < self.items and self.errors / self.items <= limit

    def bounds(self) -> tuple[Floats, Floats]:
        """Return the lowest and the highest mean that each sample of this look may have."""
        samples = self.samples_of_look
        low = self._sums[:samples] / self._repeats
        return low, low + self._errors[:samples] / self._repeats

    @property
    def mean(self) -> float:
        """The plain mean over the items of this look, errored ones as 0."""
        return float(self._sums[: self.samples_of_look].sum()) / self.items


class Stopping(Prefixes):
    """Decides after each complete prefix whether a run goes on."""

    def __init__(
        self,
        until: Until,
        plan: Plan,
        units: Ints | None,
        config: EvalConfig,
        baseline: tuple[Floats, Floats] | None,
    ) -> None:
        """Begin before the first look.

        Args:
            until: What is to be settled.
            plan: As for `Prefixes`, and so are units and config.
            units: See there.
            config: See there.
            baseline: The lowest and highest value of each sample in the run that is compared with.
        """
        super().__init__(plan, units, config)
        self._until, self._claim, self._baseline = until, claim_of(until), baseline
        self._cluster = config.cluster
        self._found: Look | None = None

    def go_on(self) -> None:
        """Make the looks whose samples are done."""
        while not self.is_over and self.is_complete:
            later = self.next_look()
            may_decide = self.may_decide()
            if may_decide or later is None:
                self._found = self.look()
            is_settled = self._found is not None and self._found.decision is not None
            self.move(None if is_settled and may_decide else later)

    def look(self) -> Look:
        """Look at the samples of the next look, which must be done."""
        return look(self._plan, self._claim, self._prefix())

    def _prefix(self) -> Prefix:
        low, high = self.bounds()
        if self._baseline is not None:
            below, above = (values[: len(low)] for values in self._baseline)
            low, high = low - above, high - below
        return prefix_of(low, high, self._units)

    # --- What was found ---

    def describe(self) -> str:
        """Say what the last look found, for the line of a run in flight."""
        if self._found is None:
            return f"first look at {format_samples(self.samples_of_look)}"
        text = f"look {self._found.number}{self._of_looks}"
        return f"{text}: {format_estimate(self._found.mean, self._found.interval)}"

    def settle(self, *, spent: int) -> Settled:
        """Say what was settled, once the run is over.

        Args:
            spent: Items that were run.
        """
        found = conclude(self._plan, self._claim, self._prefix())
        asked = self._asked(found)
        decision: Decision = "inconclusive"
        if found.decision is not None:
            decision = "true" if found.decision else "false"
        return Settled(
            claim=str(self._until),
            decision=decision,
            sentence=self._sentence(decision, found),
            rule=self._rule(found),
            level=self._plan.level,
            looks_used=found.looks_used,
            looks_planned=found.looks_planned,
            n_decided=self.items,
            n_asked=None if asked is None else asked * self._repeats,
            n_spent=spent,
            estimate=None if found.estimate is None else clean_estimate(found.estimate),
            interval=None if found.interval is None else (found.interval.low, found.interval.high),
            mean=self.mean,
            difference=found.mean if self._baseline is not None else None,
            this_set=self._plan.this_set,
            baseline=self._until.baseline,
            scope=None if self._until.baseline is None else one_comparison(self._until.baseline),
        )

    def _rule(self, found: Conclusion) -> str:
        test = TESTS[found.test]
        if self._cluster is not None:
            test = f"{test} on clusters by {self._cluster}"
        if found.method == "stagewise":
            shape = "keeping power" if self._plan.spending == "keep_power" else "linear"
            return f"{test}, {shape} spending"
        return test

    def _sentence(self, decision: Decision, found: Conclusion) -> str:
        until, samples = self._until, self.samples_of_look
        estimate = clean_estimate(found.mean if found.estimate is None else found.estimate)
        numbers = format_estimate(estimate, found.interval, sign=until.baseline is not None)
        where = " over this set" if self._plan.this_set else ""
        said = f"{_CONCLUSIONS[until.kind, until.above, decision]}{where}: {numbers}".format(
            bound=f"{until.bound:g}", run=until.baseline
        )
        if decision == "inconclusive":
            said += f", with all {format_samples(samples)} used up."
            said += self._too_few(found)
            if until.kind == "better":
                said += (
                    " A true difference of 0 is never settled so; "
                    f'"not worse than {until.baseline} by MARGIN" is.'
                )
            return said
        asked = self._asked(found)
        of = "a stream" if asked is None else format_samples(asked)
        return f"{said}, after {samples:,} of {of}, at look {found.looks_used}{self._of_looks}."

    @property
    def _of_looks(self) -> str:
        """Of how many looks, where they are planned."""
        return "" if self._plan.n is None else f" of {len(self._plan.sizes)}"

    def _asked(self, found: Conclusion) -> int | None:
        """Return how many samples there are; None of a stream that was stopped.

        Whether its end had been read by then depends on what was in flight, so that is not asked.
        """
        if self._units is not None:
            return len(self._units)
        is_stopped = found.decision is not None and self._plan.has_look_at(self._next)
        return None if is_stopped else self._next

    def _too_few(self, found: Conclusion) -> str:
        """Say what the test lacks, where so few values could not have settled anything."""
        if self._found is not None and self._found.needed is not None:
            least = format_samples(self._found.needed)
            return f" This test says nothing of fewer than {least} that are independent."
        if found.test != "paired":
            return ""
        prefix = self._prefix()
        differ = int(np.count_nonzero((prefix.lower != 0) | (prefix.upper != 0)))
        least_pairs = math.ceil(math.log2(2 / self._plan.level))  # all of them on one side
        if differ >= least_pairs:
            return ""
        return f" Only {differ} of them differ; it takes {least_pairs} or more."


_CONCLUSIONS: dict[tuple[str, bool, Decision], str] = {
    ("mean", True, "true"): "The mean is above {bound}",
    ("mean", True, "false"): "The mean is not above {bound}",
    ("mean", True, "inconclusive"): "Whether the mean is above {bound} is open",
    ("mean", False, "true"): "The mean is below {bound}",
    ("mean", False, "false"): "The mean is not below {bound}",
    ("mean", False, "inconclusive"): "Whether the mean is below {bound} is open",
    ("precision", True, "true"): "The mean is known to ±{bound}",
    ("precision", True, "inconclusive"): "The mean is not known to ±{bound}",
    ("better", True, "true"): "Better than {run}",
    ("better", True, "false"): "Worse than {run}",
    ("better", True, "inconclusive"): "No difference from {run} was shown",
    ("not_worse", True, "true"): "Not worse than {run} by {bound}",
    ("not_worse", True, "false"): "Worse than {run} by {bound} or more",
    ("not_worse", True, "inconclusive"): "Whether it is worse than {run} by {bound} is open",
}


def format_samples(n: int) -> str:
    """Write a number of samples: 1 sample, 1,000 samples."""
    return f"{n:,} sample" + "s" * (n != 1)


def format_estimate(value: float, around: Interval | None, *, sign: bool = False) -> str:
    if around is None:
        return number(value, sign=sign)
    return f"{number(value, sign=sign)} ({interval(around.low, around.high)})"


def clean_estimate(value: float) -> float:
    """Return a value found by bisection without what it has missed by."""
    return round(value, 9) + 0.0
