"""A gate: may this run replace that one? Yes, no, or that nobody can tell from so few samples.

    gate("outputs/evals/after", "outputs/evals/before", no_worse_than=0.01, by="difficulty")

A check passes where the whole interval lies on the right side of its bound, and fails where the
whole interval lies on the wrong one. Anything else cannot be told: that two means happen to be
close is no evidence (non-inferiority by a confidence interval; H. Schuirmann 1987, Journal of
Pharmacokinetics and Biopharmaceutics 15).

Slices: that all of them are no worse is claimed only if each is, which needs no correction (R. L.
Berger 1982, Technometrics 24). That one of them is worse is looked for in all, so there the
interval is the simultaneous one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from heldout.analysis.comparable import refuse, unfinished
from heldout.analysis.comparing import compare, side_of
from heldout.analysis.comparison import Comparison, Difference, Side
from heldout.analysis.opened import (
    PASSED,
    REWARD,
    Comparable,
    Opened,
    as_zero,
    cluster_numbers,
    item_values,
    opened,
)
from heldout.errors import InvalidInput
from heldout.stats import CONFIDENCE, Floats, Interval, Moments, PairedDifference, SliceDifference

Outcome = Literal["pass", "fail", "cannot tell"]
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "cannot tell": 3}

HOPELESS = 1e7
"""More samples than this are no number that anybody could use."""


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    outcome: Outcome
    estimate: float | None
    """The difference, or the mean."""
    interval: Interval | None
    bound: float
    """What the interval is held against."""
    n: int
    """Samples."""
    needed: int | None
    """Samples that it would take to tell, roughly, if the estimate is right; None where it was
    told, or where no usable number would do."""
    why: str


@dataclass(frozen=True, slots=True)
class Gate:
    outcome: Outcome
    checks: tuple[Check, ...]
    run: Side
    comparison: Comparison | None
    """None without a baseline."""
    metric: str
    confidence: float

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.outcome]

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it: plain values, stable keys."""
        return {
            "outcome": self.outcome,
            "exit_code": self.exit_code,
            "metric": self.metric,
            "confidence": self.confidence,
            "run": self.run.as_dict(),
            "checks": [_check_dict(check) for check in self.checks],
            "comparison": self.comparison and self.comparison.as_dict(),
        }


def gate(
    run: Comparable,
    baseline: Comparable | None = None,
    *,
    no_worse_than: float | None = None,
    min_mean: float | None = None,
    by: str | Sequence[str] = (),
    slice_no_worse_than: float | None = None,
    metric: str = REWARD,
    cluster: str | None = None,
    allow: Collection[str] = (),
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
) -> Gate:
    """Hold a run against a baseline, or a least mean, or both; at least one of them.

    `no_worse_than` is the loss that is tolerated, on average over samples, and with `by` in each
    slice (`slice_no_worse_than`, where another one is meant). The other arguments are those of
    `compare`. Where items errored, a check passes or fails only if it does so both with their
    rewards as 0 and without them.
    """
    by = (by,) if isinstance(by, str) else tuple(by)
    _check_arguments(baseline, no_worse_than, min_mean, by, slice_no_worse_than)
    checks: list[Check] = []
    comparison = None
    if baseline is not None:
        comparison = compare(
            baseline,
            run,
            by=by,
            metric=metric,
            cluster=cluster,
            allow=allow,
            pass_threshold=pass_threshold,
            confidence=confidence,
        )
    if comparison is not None and no_worse_than is not None:
        checks.append(_overall(comparison, no_worse_than))
        tolerated = no_worse_than if slice_no_worse_than is None else slice_no_worse_than
        checks += _slices(comparison, tolerated)
    one = opened(run, [] if cluster is None else [cluster], name="the run")
    if min_mean is not None:
        refuse(unfinished(one), allow, f"{one.name} cannot be judged")
        threshold = one.report.pass_threshold if pass_threshold is None else pass_threshold
        checks.append(_mean(one, min_mean, metric, threshold, cluster, confidence))
    return Gate(
        outcome=_worst([check.outcome for check in checks]),
        checks=tuple(checks),
        run=comparison.b if comparison else side_of(one, len(one.table.sample_ids)),
        comparison=comparison,
        metric=metric,
        confidence=confidence,
    )


def _check_arguments(
    baseline: Comparable | None,
    no_worse_than: float | None,
    min_mean: float | None,
    by: Sequence[str],
    slice_no_worse_than: float | None,
) -> None:
    if no_worse_than is None and min_mean is None:
        raise InvalidInput("a gate needs no_worse_than with a baseline, or min_mean, or both")
    if (baseline is None) != (no_worse_than is None):
        raise InvalidInput("no_worse_than and baseline go together: no worse than which run?")
    if (by or slice_no_worse_than is not None) and no_worse_than is None:
        raise InvalidInput("slices are held against those of a baseline: give no_worse_than")
    if slice_no_worse_than is not None and not by:
        raise InvalidInput("slice_no_worse_than needs the key to slice by")
    for name, value in (
        ("no_worse_than", no_worse_than),
        ("slice_no_worse_than", slice_no_worse_than),
    ):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"{name} is the loss that is tolerated, at least 0; got {value!r}")
    if min_mean is not None and not math.isfinite(min_mean):
        raise InvalidInput(f"min_mean is a number, got {min_mean!r}")


# --- Checks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """An estimate with the interval that may pass, and the one that may fail."""

    estimate: float
    to_pass: Interval | None
    to_fail: Interval | None
    n: int

    def outcome(self, bound: float) -> Outcome:
        if self.to_pass is not None and self.to_pass.low >= bound:
            return "pass"
        if self.to_fail is not None and self.to_fail.high < bound:
            return "fail"
        return "cannot tell"


def _overall(comparison: Comparison, tolerated: float) -> Check:
    readings = [comparison.overall, *_other(comparison.errors_as_zero)]
    return _judged(
        f"no worse than {comparison.a.name} by {tolerated:g}",
        [_Reading(r.difference, r.interval, r.interval, _samples(r)) for r in readings],
        -tolerated,
    )


def _slices(comparison: Comparison, tolerated: float) -> list[Check]:
    others = {part.label: part for part in comparison.slices_errors_as_zero}
    checks = []
    for part in comparison.slices:
        assert isinstance(part.label, tuple)
        name = ", ".join(f"{k}={v}" for k, v in zip(comparison.by, part.label, strict=True))
        both = [part, *_other(others.get(part.label))]
        checks.append(_judged(name, [_slice_reading(one) for one in both], -tolerated))
    return checks


def _slice_reading(part: SliceDifference) -> _Reading:
    found = part.difference
    return _Reading(found.difference, found.interval, part.simultaneous_interval, _samples(found))


def _mean(
    one: Opened,
    least: float,
    metric: str,
    threshold: float,
    cluster: str | None,
    confidence: float,
) -> Check:
    values = item_values(one.table, metric, threshold, one.name)
    codes = one.table.sample
    if cluster is not None:
        codes = cluster_numbers(one.table, cluster)[codes]

    def reading(of: Floats) -> _Reading:
        present = ~np.isnan(of)
        moments = Moments.of(of[present], codes[present])
        if moments.mean is None:
            raise InvalidInput(f"{one.name} has no {metric} at all: there is no mean")
        interval = moments.interval(confidence)
        samples = len(np.unique(one.table.sample[present]))
        return _Reading(moments.mean, interval, interval, samples)

    readings = [reading(values)]
    if metric in (REWARD, PASSED) and one.errored:
        readings.append(reading(as_zero(values)))
    return _judged(f"mean at least {least:g}", readings, least)


def _judged(name: str, readings: Sequence[_Reading], bound: float) -> Check:
    """The first reading leaves out what errored; the other, if any, has it as 0."""
    outcomes = [reading.outcome(bound) for reading in readings]
    if len(set(outcomes)) > 1:
        outcome: Outcome = "cannot tell"
        why = (
            f"without the items that errored: {outcomes[0]}; with their rewards as 0: {outcomes[1]}"
        )
        shown, needed = readings[1], None
    else:
        outcome, shown = outcomes[0], readings[0]
        needed = _needed(shown, bound) if outcome == "cannot tell" else None
        why = _why(outcome, shown, bound)
    interval = shown.to_fail if outcome == "fail" else shown.to_pass
    return Check(name, outcome, shown.estimate, interval, bound, shown.n, needed, why)


def _why(outcome: Outcome, reading: _Reading, bound: float) -> str:
    if reading.to_pass is None:
        return "the values say nothing about how much they vary"
    return {
        "pass": f"the whole interval is at or above {bound:g}",
        "fail": f"the whole interval is below {bound:g}",
        "cannot tell": f"{bound:g} is inside the interval",
    }[outcome]


def _needed(reading: _Reading, bound: float) -> int | None:
    """Intervals shrink with the root of n: so many would just reach the bound."""
    away = reading.estimate - bound
    interval = reading.to_pass if away >= 0 else reading.to_fail
    if interval is None or away == 0:
        return None
    half = reading.estimate - interval.low if away > 0 else interval.high - reading.estimate
    samples = reading.n * (half / away) ** 2
    return math.ceil(samples) if samples < HOPELESS else None


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    order: tuple[Outcome, ...] = ("fail", "cannot tell", "pass")
    return next(outcome for outcome in order if outcome in outcomes)


def _other(found: Any) -> list[Any]:
    return [] if found is None else [found]


def _samples(difference: Difference) -> int:
    if isinstance(difference, PairedDifference):
        return difference.n
    return min(difference.n_a, difference.n_b)


def _check_dict(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "outcome": check.outcome,
        "estimate": check.estimate,
        "ci_low": check.interval and check.interval.low,
        "ci_high": check.interval and check.interval.high,
        "bound": check.bound,
        "n": check.n,
        "needed": check.needed,
        "why": check.why,
    }
