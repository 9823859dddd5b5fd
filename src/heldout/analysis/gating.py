"""May this run replace that one? Yes, no, or inconclusive on so few samples.

    gate("outputs/evals/after", baseline="outputs/evals/before", no_worse_than=0.01, by="topic")

A check passes where the whole interval lies on the right side of its bound, and fails where it lies
on the wrong one; anything else is inconclusive (non-inferiority by a confidence interval; D. J.
Schuirmann 1987, Journal of Pharmacokinetics and Biopharmaceutics 15). Where items errored, both
readings of them have to agree. That all slices are no worse needs no correction (R. L. Berger 1982,
Technometrics 24); that one of them is worse is looked for in all, so there the interval is the
simultaneous one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from heldout._core.until import parse_until
from heldout.analysis._comparability import find_copies, find_unfinished, refuse_mismatches
from heldout.analysis._runs import (
    PASSED,
    REWARD,
    LoadedRun,
    Measure,
    RunOrPath,
    count_items,
    is_binary,
    load_run,
    within_unit,
)
from heldout.analysis.comparison import Comparison, Difference, Side, compare, make_side
from heldout.errors import InvalidInput
from heldout.stats import CONFIDENCE, Interval, Moments, PairedDifference
from heldout.stats.intervals import Floats, bisect
from heldout.stats.power import POWER
from heldout.stats.summary import value_of_errors
from heldout.store.settled import RACE, Settled

GateOutcome = Literal["pass", "fail", "errored", "inconclusive"]
"""errored: what errored items count as decides, so there is no verdict."""
EXIT_CODES: dict[GateOutcome, int] = {"pass": 0, "fail": 1, "errored": 4, "inconclusive": 3}
WORST_FIRST: tuple[GateOutcome, ...] = ("fail", "errored", "inconclusive", "pass")
CheckKind = Literal["overall", "slice", "min_mean", "max_mean", "each_sample"]

USABLE_SAMPLES = 1e7
"""A larger number of samples is no usable advice."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An estimate and what it decides, with errored items left out or counted.

    Attributes:
        outcome: What it decides.
        estimate: The difference, or the mean.
        interval: The interval that decided, or came nearest to it; None without a spread.
        n: Samples.
    """

    outcome: GateOutcome
    estimate: float
    interval: Interval | None
    n: int


@dataclass(frozen=True, slots=True)
class SampleAttempts:
    """The attempts at one sample.

    Attributes:
        sample_id: The sample.
        passed: Attempts that passed.
        errored: Attempts that errored.
        attempts: All of them.
    """

    sample_id: str
    passed: int
    errored: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Check:
    """One of the bounds that a gate checks.

    Attributes:
        kind: The difference of all samples, that of a slice, a bound of the mean, or of the share
            of attempts that pass, in each sample.
        slice: The slice, by metadata key; None for other kinds.
        bound: What the interval is compared with.
        outcome: The outcome in both readings, where they agree. "errored" where one fails and the
            other does not, or nothing was scored.
        scored: The reading without errored items; None where no sample has a score.
        with_errors: The reading with errored items counted; None if nothing errored.
        errors_as: What errored items count as; None if nothing errored.
        corrected: Whether the interval is corrected for multiple comparisons.
        needed: Samples (of this slice) that would decide with 80% power, if the estimate and the
            spread are right; None where it is decided, or no usable number would do.
        needed_if_equal: Samples that would decide with 80% power a paired difference that is 0 in
            truth; None where it is decided, or no usable number would do.
        needed_is_least: Whether nothing varied, so that `needed` and `needed_if_equal` are lower
            bounds: more samples are needed if they vary after all.
        below: Of an `each_sample` check: the samples that do not pass it, or that would not if
            errored attempts counted as failed. The estimate is the lowest share of a sample, and
            there is no interval: the check is about these attempts, not about further ones.
    """

    kind: CheckKind
    slice: Mapping[str, Any] | None
    bound: float
    outcome: GateOutcome
    scored: Reading | None
    with_errors: Reading | None
    errors_as: float | None
    corrected: bool
    needed: int | None = None
    needed_if_equal: int | None = None
    needed_is_least: bool = False
    below: tuple[SampleAttempts, ...] = ()

    @property
    def estimate(self) -> float | None:
        """The difference, or the mean, without errored items; None where no sample has a score."""
        return self.scored.estimate if self.scored else None

    @property
    def interval(self) -> Interval | None:
        """The interval without errored items that decided, or came nearest to it."""
        return self.scored.interval if self.scored else None

    @property
    def n(self) -> int:
        """Samples with a score."""
        return self.scored.n if self.scored else 0

    @property
    def disputed(self) -> bool:
        """Whether counting errored items would change the outcome."""
        if self.scored is None or self.with_errors is None:
            return self.with_errors is not None
        return self.scored.outcome != self.with_errors.outcome


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict on a run.

    Attributes:
        outcome: The worst of the checks.
        checks: The checks: overall, slices, means.
        run: The run.
        comparison: The comparison with the baseline; None without one.
        metric: What was measured.
        confidence: Of the intervals.
        settled: How the run was stopped, where that is the verdict; None of other runs.
    """

    outcome: GateOutcome
    checks: tuple[Check, ...]
    run: Side
    comparison: Comparison | None
    metric: str
    confidence: float
    settled: Settled | None = None

    @property
    def exit_code(self) -> int:
        """0 for pass, 1 for fail, 3 for inconclusive, 4 for no verdict."""
        return EXIT_CODES[self.outcome]


def gate(
    run: RunOrPath,
    *,
    baseline: RunOrPath | None = None,
    no_worse_than: float | None = None,
    min_mean: float | None = None,
    max_mean: float | None = None,
    each_sample: float | None = None,
    lower_is_better: bool = False,
    by: str | Sequence[str] = (),
    slice_no_worse_than: float | None = None,
    metric: str = REWARD,
    cluster: str | None = None,
    allow: Collection[str] = (),
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
) -> Gate:
    """Check a run against a baseline, a bound of its mean, or several of these.

    A run that was stopped early by `until` is judged only by the claim that it settled, with the
    interval that holds after such a stop; any other check of it is refused.

    Args:
        run: A report, or the path of a run directory.
        baseline: The run to compare it with.
        no_worse_than: The loss against the baseline that is tolerated, as a mean over samples.
        min_mean: The least mean.
        max_mean: The largest mean.
        each_sample: The least share of its attempts that must pass, in every sample.
        lower_is_better: Whether a higher value is the loss.
        by: Metadata keys: no slice may lose more, either.
        slice_no_worse_than: The loss that is tolerated in a slice; None: `no_worse_than`.
        metric: As for `compare`, and so are the other arguments.
        cluster: See `compare`.
        allow: See `compare`; "cached" allows a run all of whose model turns came from the response
            cache.
        pass_threshold: See `compare`.
        confidence: See `compare`.

    Returns:
        The outcome and the checks behind it.

    Raises:
        NotComparable: The run and the baseline differ in what is not allowed, or nothing was
            measured.
        InvalidInput: There is no bound to check, or one makes no sense.
    """
    by = (by,) if isinstance(by, str) else tuple(by)
    bounds = {
        "no_worse_than": no_worse_than,
        "min_mean": min_mean,
        "max_mean": max_mean,
        "each_sample": each_sample,
    }
    _check_arguments(baseline, bounds, by, slice_no_worse_than)
    keys = [*by, *([] if cluster is None else [cluster])]
    loaded = load_run(run, keys, name="the run" if baseline is None else "B")
    threshold = loaded.report.pass_threshold if pass_threshold is None else pass_threshold
    measure = Measure(metric, threshold)
    losses = {"no_worse_than": no_worse_than, "slice_no_worse_than": slice_no_worse_than}
    means = {"min_mean": min_mean, "max_mean": max_mean}
    _check_bounds(losses, means, metric, in_unit=within_unit(measure.item_values(loaded)))
    before = None if baseline is None else load_run(baseline, keys, name="A")
    stopped = _judge_stopped(loaded, before, bounds, confidence)
    if stopped is not None and not keys and metric == REWARD:
        return stopped
    refuse_mismatches(find_copies(loaded, before), allow, f"{loaded.name} cannot be judged")
    checks: list[Check] = []
    comparison = None
    if before is not None and no_worse_than is not None:
        comparison = compare(
            before,
            loaded,
            by=by,
            metric=metric,
            lower_is_better=lower_is_better,
            cluster=cluster,
            allow=allow,
            pass_threshold=pass_threshold,
            confidence=confidence,
        )
        in_slices = no_worse_than if slice_no_worse_than is None else slice_no_worse_than
        checks += _check_differences(comparison, no_worse_than, in_slices)
    if min_mean is not None or max_mean is not None or each_sample is not None:
        refuse_mismatches(find_unfinished(loaded), allow, f"{loaded.name} cannot be judged")
        of_mean = (loaded, measure, cluster, confidence)
        if min_mean is not None:
            checks.append(_check_mean("min_mean", min_mean, *of_mean))
        if max_mean is not None:
            checks.append(_check_mean("max_mean", max_mean, *of_mean))
        if each_sample is not None:
            checks.append(_check_each_sample(each_sample, loaded, threshold))
    side = comparison.b if comparison else make_side(loaded, loaded.table.samples)
    outcome = min((check.outcome for check in checks), key=WORST_FIRST.index)
    return Gate(outcome, tuple(checks), side, comparison, metric, confidence)


def _judge_stopped(
    run: LoadedRun,
    baseline: LoadedRun | None,
    bounds: Mapping[str, float | None],
    confidence: float,
) -> Gate | None:
    """Return the verdict on a run that was stopped early, if it was stopped by this very check."""
    settled = run.report.settled
    if settled is None or not settled.is_early or settled.interval is None:
        return None
    until = None if settled.claim.startswith(RACE) else parse_until(settled.claim)
    if until is None or not math.isclose(confidence, 1 - settled.level):
        return None
    kinds: dict[tuple[str, bool], tuple[CheckKind, str]] = {
        ("not_worse", True): ("overall", "no_worse_than"),
        ("mean", True): ("min_mean", "min_mean"),
        ("mean", False): ("max_mean", "max_mean"),
    }
    kind, name = kinds.get((until.kind, until.above), ("overall", ""))
    if {name: bound for name, bound in bounds.items() if bound is not None} != {name: until.bound}:
        return None
    if baseline is not None:
        described = run.config.get("baseline")
        info = baseline.report.info
        own = described.get("id") if isinstance(described, Mapping) else None
        if info is None or info.id is None or info.id != own:
            return None
    outcome: GateOutcome = "pass" if settled.decision == "true" else "fail"
    if settled.decision == "inconclusive":  # scored again: another scorer had stopped it
        return None
    plain = settled.mean if baseline is None else settled.difference
    estimate = plain if settled.estimate is None else settled.estimate
    if estimate is None:
        return None
    reading = Reading(outcome, estimate, Interval(*settled.interval), run.table.samples)
    bound = -until.bound if kind == "overall" else until.bound
    check = Check(kind, None, bound, outcome, reading, None, None, corrected=True)
    side = make_side(run, run.table.samples)
    return Gate(outcome, (check,), side, None, REWARD, confidence, settled)


def _check_arguments(
    baseline: RunOrPath | None,
    bounds: Mapping[str, float | None],
    by: Sequence[str],
    slice_no_worse_than: float | None,
) -> None:
    no_worse_than, each_sample = bounds["no_worse_than"], bounds["each_sample"]
    if all(bound is None for bound in bounds.values()):
        raise InvalidInput(
            "a gate needs %s with a baseline, or %s, or %s, or %s, or several",
            parameters=[*bounds],
        )
    if each_sample is not None and not 0 < each_sample <= 1:
        raise InvalidInput(
            f"%s must be a share of attempts, above 0 and at most 1; got {each_sample!r}",
            parameters=["each_sample"],
        )
    if (baseline is None) != (no_worse_than is None):
        raise InvalidInput(
            "%s and baseline go together: no worse than which run?", parameters=["no_worse_than"]
        )
    if (by or slice_no_worse_than is not None) and no_worse_than is None:
        raise InvalidInput(
            "slices are compared with those of a baseline: give %s", parameters=["no_worse_than"]
        )
    if slice_no_worse_than is not None and not by:
        raise InvalidInput("%s needs the key to slice by", parameters=["slice_no_worse_than"])


def _check_bounds(
    losses: Mapping[str, float | None],
    means: Mapping[str, float | None],
    metric: str,
    *,
    in_unit: bool,
) -> None:
    """Refuse bounds that are not numbers, or that no value in [0, 1] could exceed: 2 for 2%."""
    for name, loss in losses.items():
        if loss is not None and not 0 <= loss < math.inf:
            raise InvalidInput(
                f"%s must be the loss that is tolerated, at least 0; got {loss!r}",
                parameters=[name],
            )
        if loss is not None and in_unit and loss >= 1:
            raise InvalidInput(
                f"every {metric} lies between 0 and 1, so nothing can be worse by {loss:g}; is "
                f"{loss / 100:g} meant?"
            )
    for name, mean in means.items():
        if mean is not None and not math.isfinite(mean):
            raise InvalidInput(f"%s must be a number, got {mean!r}", parameters=[name])
        if mean is not None and in_unit and not 0 <= mean <= 1:
            raise InvalidInput(f"every {metric} lies between 0 and 1, and so does a mean of them")


# --- Estimates ----------------------------------------------------------------------------------


IntervalAt = Callable[[float], Interval | None]
"""The interval of an estimate on a multiple of the samples, if those vary like the ones
measured."""


@dataclass(frozen=True, slots=True)
class _BoundEstimate:
    """An estimate with the interval that may pass, and the one that may fail."""

    # Two intervals, since passing and failing err in different ways. A gate passes if all its
    # checks do: however many there are, a policy that is too bad in one of them passes no more
    # often than that check alone errs, so `to_pass` needs no correction. It fails if any check
    # does, and each is a chance to err: `to_fail` is wider the more are tested. With one interval
    # for both a gate of ten slices would either fail good policies every other time or hardly ever
    # pass one.
    value: float
    stderr: float | None
    to_pass: IntervalAt
    to_fail: IntervalAt
    n: int
    # -1 where less is better.
    sign: int = 1
    # What it would be without a true difference; None where that is no question.
    if_equal: _BoundEstimate | None = None

    def widen(self, largest: float, confidence: float) -> _BoundEstimate:
        """Widen the interval that may pass by rare losses that the samples may have missed.

        Graded values that hardly vary say nothing of one: the upper end of Wilson's interval of 0
        of n. (Of 0/1 values the score interval knows this by itself.)
        """
        square = NormalDist().inv_cdf((1 + confidence) / 2) ** 2

        def widened(size: float) -> Interval | None:
            interval = self.to_pass(size)
            if interval is None:
                return None
            unseen = self.value - self.sign * largest * square / (self.n * size + square)
            return Interval(min(interval.low, unseen), max(interval.high, unseen))

        return replace(self, to_pass=widened)

    def is_worse_than(self, bound: float) -> bool:
        return self.sign * self.value < self.sign * bound

    def read(self, bound: float) -> Reading:
        outcome: GateOutcome = "inconclusive"
        to_pass, to_fail = self.to_pass(1.0), self.to_fail(1.0)
        if to_pass is not None and self._reach(to_pass, -1) >= self.sign * bound:
            outcome = "pass"
        elif to_fail is not None and self._reach(to_fail, 1) < self.sign * bound:
            outcome = "fail"
        interval = to_fail if self.is_worse_than(bound) else to_pass
        return Reading(outcome, self.value, interval, self.n)

    def _reach(self, interval: Interval, direction: int) -> float:
        """Return the worse end of an interval, or the better one, where more is better."""
        return self.sign * (interval.high if direction == self.sign else interval.low)

    def needed_samples(self, bound: float) -> int | None:
        """Return the samples that bring the interval clear of the bound, with 80% power.

        On `touching` times the samples the interval of this very estimate ends at the bound. On
        more, an estimate that is nearer to the bound by a quantile of its own error clears it, too.
        """
        direction = 1 if self.is_worse_than(bound) else -1
        interval_at = self.to_fail if direction == 1 else self.to_pass

        def is_clear(size: float) -> bool:
            interval = interval_at(size)
            if interval is None:
                return False
            return direction * (self.sign * bound - self._reach(interval, direction)) >= 0

        largest = USABLE_SAMPLES / self.n
        if self.value == bound or not is_clear(largest):
            return None
        touching = bisect(largest, 0.01, is_clear, steps=60)[0]
        error = NormalDist().inv_cdf(POWER) * (self.stderr or 0.0) / abs(self.value - bound)
        samples = self.n * (math.sqrt(touching) + error) ** 2 * (1 - 1e-9)
        return math.ceil(samples) if samples < USABLE_SAMPLES else None


def _estimate_difference(
    difference: Difference, sign: int, confidence: float, *, of: int = 1
) -> _BoundEstimate:
    """Estimate a difference; failing is corrected for the number of differences tested."""

    def estimate(difference: Difference, n: int) -> _BoundEstimate:
        return _BoundEstimate(
            value=difference.difference,
            stderr=difference.stderr,
            to_pass=lambda size: difference.bound_interval(confidence, size=size),
            to_fail=lambda size: difference.bound_interval(1 - (1 - confidence) / of, size=size),
            n=n,
            sign=sign,
        )

    if not isinstance(difference, PairedDifference):
        return estimate(difference, min(difference.n_a, difference.n_b))
    measured, equal = (
        estimate(each, each.n) for each in (difference, _without_difference(difference))
    )
    if difference.test == "score":  # graded
        measured, equal = (each.widen(1.0, confidence) for each in (measured, equal))
    return replace(measured, if_equal=equal)


def _without_difference(difference: PairedDifference) -> PairedDifference:
    """Return the comparison of two runs that differ as much, but symmetrically."""
    evidence, stderr = difference.evidence, difference.stderr
    if evidence.won is not None:
        either = (evidence.won + evidence.lost) / 2
        evidence = evidence._replace(won=either, lost=either)
        stderr = math.hypot(stderr or 0.0, difference.difference / math.sqrt(evidence.pairs))
    return replace(difference, difference=0.0, stderr=stderr, evidence=evidence)


def _estimate_means(
    run: LoadedRun, measure: Measure, cluster: str | None, confidence: float, errors_as: float
) -> list[_BoundEstimate]:
    """Estimate the mean without errored items, and, where there are some, with them."""
    table, items = run.table, measure.item_values(run)
    codes = table.clusters_by(cluster)
    maybe_count = measure.metric is not None and table.may_be_count(measure.metric)
    if measure.k is None:
        codes = codes[table.sample]
        counted = np.where(np.isnan(table.reward), errors_as, items)
    else:
        items = measure.sample_values(run)
        counted = measure.sample_values(run, errors_as=errors_as)

    def estimate(values: Floats) -> _BoundEstimate:
        present = ~np.isnan(values)
        moments = Moments.of(values[present], codes[present])
        if moments.mean is None:
            raise InvalidInput(f"{run.name} has no {measure.name} at all: there is no mean")

        def around(size: float) -> Interval | None:
            return moments.interval(confidence, maybe_count=maybe_count, size=size)

        mean = _BoundEstimate(moments.mean, moments.stderr, around, around, moments.clusters)
        is_graded = within_unit(values) and not is_binary(values)
        return mean.widen(moments.mean, confidence) if is_graded else mean

    return [estimate(values) for values in ((items, counted) if run.errored else (items,))]


# --- Checks -------------------------------------------------------------------------------------


def _check_mean(
    kind: Literal["min_mean", "max_mean"],
    bound: float,
    run: LoadedRun,
    measure: Measure,
    cluster: str | None,
    confidence: float,
) -> Check:
    """Check a bound of the mean, with errored items on the wrong side of it."""
    from_above = kind == "max_mean"
    errors_as = value_of_errors(measure.item_values(run), lower_is_better=from_above)
    estimates = _estimate_means(run, measure, cluster, confidence, errors_as)
    if from_above:
        estimates = [replace(estimate, sign=-1) for estimate in estimates]
    return _judge(kind, estimates, bound, errors_as)


def _check_each_sample(bound: float, run: LoadedRun, pass_threshold: float | None) -> Check:
    """Check the share of attempts that pass in each sample, with errored ones left out and failed.

    A sample whose attempts all errored has no share, so nothing is known of it.
    """
    table = run.table
    passed_items = Measure(PASSED, pass_threshold).item_values(run)
    attempts = count_items(table)
    scored = count_items(table, ~np.isnan(passed_items))
    passed = count_items(table, passed_items == 1)
    with np.errstate(invalid="ignore"):
        # 0.8 of 5 attempts is 4, whatever 4 / 5 is in binary.
        shares = [np.round(passed / made, 12) for made in (scored, attempts)]
    readings = [
        Reading(
            "fail" if (share < bound).any() else "pass",
            float(np.nanmin(share)),
            None,
            int((~np.isnan(share)).sum()),
        )
        for share in shares
    ]
    outcome, counted = readings[0].outcome, None
    if run.errored:
        counted = readings[1]
        if outcome != counted.outcome:
            outcome = "errored"
    below = np.flatnonzero(shares[1] < bound)
    return Check(
        kind="each_sample",
        slice=None,
        bound=bound,
        outcome=outcome,
        scored=readings[0],
        with_errors=counted,
        errors_as=0.0 if run.errored else None,
        corrected=False,
        below=tuple(
            SampleAttempts(
                table.sample_ids[place],
                int(passed[place]),
                int(attempts[place] - scored[place]),
                int(attempts[place]),
            )
            for place in below.tolist()
        ),
    )


def _check_differences(comparison: Comparison, tolerated: float, in_slices: float) -> list[Check]:
    confidence, errors_as = comparison.confidence, comparison.errors_as
    sign = -1 if comparison.lower_is_better else 1
    readings = (comparison.overall, comparison.with_errors)
    overall = [_estimate_difference(d, sign, confidence) for d in readings if d is not None]
    checks = [_judge("overall", overall, -sign * tolerated, errors_as)]
    slices = len(comparison.slices) + len(comparison.slices_not_compared)
    scored, counted = (
        {
            part.label: _estimate_difference(part.difference, sign, confidence, of=slices)
            for part in parts
        }
        for parts in (comparison.slices, comparison.slices_with_errors)
    )
    bound = -sign * in_slices
    label: Any
    for label in dict.fromkeys([*scored, *counted, *comparison.slices_not_compared]):
        by_key = dict(zip(comparison.by, label, strict=True))
        estimates = [part[label] for part in (scored, counted) if label in part]
        if label in scored:
            checks.append(_judge("slice", estimates, bound, errors_as, by_key))
        else:
            reading = estimates[0].read(bound) if estimates else None
            checks.append(
                Check("slice", by_key, bound, "errored", None, reading, errors_as, corrected=False)
            )
    return checks


def _judge(
    kind: CheckKind,
    estimates: Sequence[_BoundEstimate],
    bound: float,
    errors_as: float | None,
    slice: dict[str, Any] | None = None,
) -> Check:
    """Decide a check by its estimates without errored items and, if there are some, with them."""
    readings = [estimate.read(bound) for estimate in estimates]
    outcomes = {reading.outcome for reading in readings}
    outcome = readings[0].outcome
    if len(outcomes) > 1:
        outcome = "errored" if "fail" in outcomes else "inconclusive"
    needed = needed_if_equal = None
    if outcome == "inconclusive":
        needed = _most_needed(estimates, bound)
        equal = [estimate.if_equal for estimate in estimates]
        needed_if_equal = _most_needed([e for e in equal if e is not None], bound)
    return Check(
        kind=kind,
        slice=slice,
        bound=bound,
        outcome=outcome,
        scored=readings[0],
        with_errors=readings[1] if len(readings) > 1 else None,
        errors_as=errors_as if len(readings) > 1 else None,
        corrected=kind == "slice" and estimates[0].is_worse_than(bound),
        needed=needed,
        needed_if_equal=needed_if_equal,
        needed_is_least=needed is not None and any(not each.stderr for each in estimates),
    )


def _most_needed(estimates: Sequence[_BoundEstimate], bound: float) -> int | None:
    """Return the samples that decide every estimate; None if no known number does."""
    counts = [estimate.needed_samples(bound) for estimate in estimates]
    known = [count for count in counts if count is not None]
    same_side = len({estimate.is_worse_than(bound) for estimate in estimates}) == 1
    return max(known) if known and same_side and len(known) == len(counts) else None
