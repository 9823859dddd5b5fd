"""A gate: may this run replace that one? Yes, no, or that nobody can tell from so few samples.

    gate("outputs/evals/after", baseline="outputs/evals/before", no_worse_than=0.01, by="topic")

A check passes where the whole interval lies on the right side of its bound, and fails where the
whole interval lies on the wrong one. Anything else cannot be told: that two means happen to be
close is no evidence (non-inferiority by a confidence interval; D. J. Schuirmann 1987, Journal of
Pharmacokinetics and Biopharmaceutics 15). Where items errored, both readings of them have to
agree; where they do not, errors decide, and more samples would not help.

Slices: that all of them are no worse is claimed only if each is, which needs no correction (R. L.
Berger 1982, Technometrics 24). That one of them is worse is looked for in all, so there the
interval is the simultaneous one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np

from heldout.analysis.comparable import refuse, unfinished
from heldout.analysis.comparing import compare, side_of
from heldout.analysis.comparison import Comparison, Difference, Side
from heldout.analysis.measures import REWARD, Measure, is_binary, least_or_zero, within_unit
from heldout.analysis.opened import Comparable, Opened, cluster_numbers, opened
from heldout.errors import InvalidInput
from heldout.stats import CONFIDENCE, Floats, Interval, Moments, PairedDifference, SliceDifference

Outcome = Literal["pass", "fail", "errored", "cannot tell"]
"""errored: what errored items count as decides, so there is no verdict."""
EXIT_CODES: dict[Outcome, int] = {"pass": 0, "fail": 1, "errored": 2, "cannot tell": 3}

HOPELESS = 1e7
"""More samples than this are no number that anybody could use."""
POWER = 0.8
"""How often the samples that are said to be needed would tell."""


@dataclass(frozen=True, slots=True)
class Check:
    kind: Literal["overall", "slice", "mean"]
    name: str
    slice: dict[str, Any] | None
    outcome: Outcome
    estimate: float | None
    """The difference, or the mean, without items that errored; None where all did."""
    interval: Interval | None
    """The one that decided, or came nearest to it."""
    corrected: bool
    """Whether it is the interval that is corrected for looking at all slices."""
    bound: float
    """What the interval is held against."""
    n: int
    """Samples."""
    needed: int | None
    """Samples (of this slice) with which it would be told four times in five, if the estimate is
    right; None where it was told, or where no usable number would do."""
    why: str
    other: str | None
    """Where the readings of errored items disagree: the second one in words."""


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
    *,
    baseline: Comparable | None = None,
    no_worse_than: float | None = None,
    min_mean: float | None = None,
    max_mean: float | None = None,
    lower_is_better: bool = False,
    by: str | Sequence[str] = (),
    slice_no_worse_than: float | None = None,
    metric: str = REWARD,
    cluster: str | None = None,
    allow: Collection[str] = (),
    pass_threshold: float | None = None,
    confidence: float = CONFIDENCE,
) -> Gate:
    """Hold a run against a baseline, or a least or largest mean, or several of these.

    `no_worse_than` is the loss that is tolerated, on average over samples, and with `by` in each
    slice (`slice_no_worse_than`, where another one is meant); a loss is a lower value, or a higher
    one with `lower_is_better`. The other arguments are those of `compare`.
    """
    by = (by,) if isinstance(by, str) else tuple(by)
    _check_arguments(baseline, no_worse_than, min_mean, max_mean, by, slice_no_worse_than)
    sign = -1 if lower_is_better else 1
    checks: list[Check] = []
    comparison = None
    keys = (*by, *([cluster] if cluster is not None else []))
    one = opened(run, keys, name="the run" if baseline is None else "B")
    threshold = one.report.pass_threshold if pass_threshold is None else pass_threshold
    measure = Measure(metric, threshold)
    items = measure.items(one.table, one.name)
    _check_scale(items, metric, no_worse_than, slice_no_worse_than, min_mean, max_mean)
    if baseline is not None and no_worse_than is not None:
        comparison = compare(
            baseline,
            one,
            by=by,
            metric=metric,
            cluster=cluster,
            allow=allow,
            pass_threshold=pass_threshold,
            confidence=confidence,
        )
        checks.append(_overall(comparison, no_worse_than, sign))
        tolerated = no_worse_than if slice_no_worse_than is None else slice_no_worse_than
        checks += _slices(comparison, tolerated, sign)
    if min_mean is not None or max_mean is not None:
        refuse(unfinished(one), allow, f"{one.name} cannot be judged")
        readings = _means(one, measure, items, cluster, confidence)
        if min_mean is not None:
            checks.append(_judged("mean", f"mean at least {min_mean:g}", readings, min_mean))
        if max_mean is not None:
            mirrored = [reading.mirrored() for reading in readings]
            name = f"mean at most {max_mean:g}"
            checks.append(_judged("mean", name, mirrored, -max_mean, sign=-1))
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
    max_mean: float | None,
    by: Sequence[str],
    slice_no_worse_than: float | None,
) -> None:
    losses = {"no_worse_than": no_worse_than, "slice_no_worse_than": slice_no_worse_than}
    means = {"min_mean": min_mean, "max_mean": max_mean}
    for name, value in {**losses, **means}.items():
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or value != value
        ):
            raise InvalidInput(f"{name} is a number, got {value!r}")
    if no_worse_than is None and min_mean is None and max_mean is None:
        raise InvalidInput(
            "a gate needs no_worse_than with a baseline, or min_mean, or max_mean, or several"
        )
    if (baseline is None) != (no_worse_than is None):
        raise InvalidInput("no_worse_than and baseline go together: no worse than which run?")
    if (by or slice_no_worse_than is not None) and no_worse_than is None:
        raise InvalidInput("slices are held against those of a baseline: give no_worse_than")
    if slice_no_worse_than is not None and not by:
        raise InvalidInput("slice_no_worse_than needs the key to slice by")
    for name, value in losses.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InvalidInput(f"{name} is the loss that is tolerated, at least 0; got {value!r}")
    for name, value in means.items():
        if value is not None and not math.isfinite(value):
            raise InvalidInput(f"{name} is a number, got {value!r}")


def _check_scale(items: Floats, metric: str, *bounds: float | None) -> None:
    """A bound that no value could be on the other side of is a slip: 2 for 2%, say."""
    *losses, least, largest = bounds
    if not within_unit(items):
        return
    for loss in losses:
        if loss is not None and loss >= 1:
            raise InvalidInput(
                f"every {metric} lies between 0 and 1, so nothing can be worse by {loss:g}; is "
                f"{loss / 100:g} meant?"
            )
    for mean in (least, largest):
        if mean is not None and not 0 <= mean <= 1:
            raise InvalidInput(f"every {metric} lies between 0 and 1, and so does a mean of them")


# --- Checks -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """An estimate with the interval that may pass, and the one that may fail; more is better."""

    estimate: float
    to_pass: Interval | None
    to_fail: Interval | None
    n: int

    def mirrored(self) -> _Reading:
        """Where less is better."""
        return _Reading(-self.estimate, _turned(self.to_pass), _turned(self.to_fail), self.n)

    def outcome(self, bound: float) -> Outcome:
        if self.to_pass is not None and self.to_pass.low >= bound:
            return "pass"
        if self.to_fail is not None and self.to_fail.high < bound:
            return "fail"
        return "cannot tell"


def _turned(interval: Interval | None) -> Interval | None:
    return interval and Interval(-interval.high, -interval.low)


def _overall(comparison: Comparison, tolerated: float, sign: int) -> Check:
    found = [comparison.overall, *_other(comparison.with_errors)]
    readings = [_difference(one, one.interval, sign, comparison.confidence) for one in found]
    name = f"no worse than {comparison.a.name} by {tolerated:g}"
    return _judged("overall", name, readings, -tolerated, sign=sign)


def _slices(comparison: Comparison, tolerated: float, sign: int) -> list[Check]:
    scored = {part.label: part for part in comparison.slices}
    others = {part.label: part for part in comparison.slices_with_errors}
    checks = []
    for label in dict.fromkeys([*scored, *others, *comparison.slices_not_compared]):
        values: Any = label
        named = dict(zip(comparison.by, values, strict=True))
        name = ", ".join(f"{key}={value}" for key, value in named.items())
        both = [part for part in (scored.get(label), others.get(label)) if part is not None]
        readings = [_slice_reading(part, sign, comparison.confidence) for part in both]
        if label in scored:
            checks.append(_judged("slice", name, readings, -tolerated, sign=sign, slice=named))
        else:
            checks.append(_unscored(name, named, readings, -tolerated))
    return checks


def _unscored(
    name: str, named: dict[str, Any], readings: Sequence[_Reading], bound: float
) -> Check:
    return Check(
        kind="slice",
        name=name,
        slice=named,
        outcome="errored",
        estimate=None,
        interval=None,
        corrected=False,
        bound=bound,
        n=0,
        needed=None,
        why="no sample of it has a value on both sides",
        other=_in_words(readings[0], bound) if readings else None,
    )


def _slice_reading(part: SliceDifference, sign: int, confidence: float) -> _Reading:
    found = part.difference
    return _difference(found, part.simultaneous_interval, sign, confidence)


def _difference(
    found: Difference, to_fail: Interval | None, sign: int, confidence: float
) -> _Reading:
    n = found.n if isinstance(found, PairedDifference) else min(found.n_a, found.n_b)
    reading = _Reading(found.difference, found.interval, to_fail, n)
    if sign < 0:
        reading = reading.mirrored()
    if (
        not isinstance(found, PairedDifference)
        or found.test == "t"
        or found.exact_p_value is not None
    ):
        return reading
    return _with_unseen(reading, 1.0, confidence)


def _with_unseen(reading: _Reading, largest: float, confidence: float) -> _Reading:
    """Graded values that hardly vary say nothing of a loss too rare to have been drawn.

    To be passed, a check must bear what none of n having lost all of it allows: the upper end of
    Wilson's interval of 0 of n. (Of plain 0/1 values the score interval knows this by itself.)
    """
    if reading.to_pass is None:
        return reading
    square = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    low = reading.estimate - largest * square / (reading.n + square)
    to_pass = Interval(min(reading.to_pass.low, low), reading.to_pass.high)
    return _Reading(reading.estimate, to_pass, reading.to_fail, reading.n)


def _means(
    one: Opened, measure: Measure, items: Floats, cluster: str | None, confidence: float
) -> list[_Reading]:
    """Of the run alone: of what was scored, and with what errored."""
    table = one.table
    by_sample = measure.k is not None
    numbers = cluster_numbers(table, cluster)
    codes = numbers if by_sample else numbers[table.sample]

    def reading(values: Floats) -> _Reading:
        present = ~np.isnan(values)
        moments = Moments.of(values[present], codes[present])
        if moments.mean is None:
            raise InvalidInput(f"{one.name} has no {measure.name} at all: there is no mean")
        maybe_count = measure.metric in table.plain
        interval = moments.interval(confidence, maybe_count=maybe_count)
        found = _Reading(moments.mean, interval, interval, len(np.unique(codes[present])))
        if within_unit(values) and not is_binary(values):
            return _with_unseen(found, moments.mean, confidence)
        return found

    if by_sample:
        scored = measure.samples(table, one.name)
        with_errors = measure.samples(table, one.name, errors_as=0.0)
    else:
        scored = items
        with_errors = np.where(np.isnan(table.reward), least_or_zero(items), items)
    return [reading(scored), *([reading(with_errors)] if one.errored else [])]


def _judged(
    kind: Literal["overall", "slice", "mean"],
    name: str,
    readings: Sequence[_Reading],
    bound: float,
    *,
    sign: int = 1,
    slice: dict[str, Any] | None = None,
) -> Check:
    """The first reading leaves out what errored; the other, if any, has it as 0 or the least."""
    outcomes = [reading.outcome(bound) for reading in readings]
    first, other = readings[0], None
    failing = first.estimate < bound
    interval = first.to_fail if failing else first.to_pass
    needed = None
    if len(set(outcomes)) > 1:
        outcome: Outcome = "errored" if "fail" in outcomes else "cannot tell"
        shown = readings[1].mirrored() if sign < 0 else readings[1]
        other = _in_words(shown, sign * bound, signed=kind != "mean")
        why = f"without the items that errored: {outcomes[0]}; with them: {outcomes[1]}"
    else:
        outcome, why = outcomes[0], _why(outcomes[0], first, sign * bound)
    if outcome == "cannot tell":
        counts = [_needed(reading, bound) for reading in readings]
        same_side = len({reading.estimate < bound for reading in readings}) == 1
        known = [count for count in counts if count is not None]
        needed = max(known) if same_side and len(known) == len(counts) else None
    return Check(
        kind=kind,
        name=name,
        slice=slice,
        outcome=outcome,
        estimate=sign * first.estimate,
        interval=_turned(interval) if sign < 0 else interval,
        corrected=kind == "slice" and failing,
        bound=sign * bound,
        n=first.n,
        needed=needed,
        why=why,
        other=other,
    )


def _in_words(reading: _Reading, bound: float, *, signed: bool = True) -> str:
    around = reading.to_fail if reading.estimate < bound else reading.to_pass
    between = "" if around is None else f" ({around.low:.3f} … {around.high:.3f})"
    value = f"{reading.estimate:+.3f}" if signed else f"{reading.estimate:.3f}"
    return f"{value}{between}, on {reading.n} samples"


def _why(outcome: Outcome, reading: _Reading, bound: float) -> str:
    if reading.to_pass is None:
        return "the values say nothing about how much they vary"
    return {
        "pass": f"the whole interval is on the right side of {bound:g}",
        "fail": f"the whole interval is on the wrong side of {bound:g}",
        "cannot tell": f"{bound:g} is inside the interval",
    }[outcome]


def _needed(reading: _Reading, bound: float) -> int | None:
    """Intervals shrink with the root of n; so many would bring them clear of the bound, usually."""
    away = reading.estimate - bound
    interval = reading.to_pass if away >= 0 else reading.to_fail
    if interval is None or away == 0:
        return None
    half = reading.estimate - interval.low if away > 0 else interval.high - reading.estimate
    usual = NormalDist()
    margin = 1 + usual.inv_cdf(POWER) / usual.inv_cdf((1 + CONFIDENCE) / 2)
    samples = reading.n * (half / away * margin) ** 2
    return math.ceil(samples) if samples < HOPELESS else None


def _worst(outcomes: Sequence[Outcome]) -> Outcome:
    order: tuple[Outcome, ...] = ("fail", "errored", "cannot tell", "pass")
    return next(outcome for outcome in order if outcome in outcomes)


def _other(found: Any) -> list[Any]:
    return [] if found is None else [found]


def _check_dict(check: Check) -> dict[str, Any]:
    return {
        "kind": check.kind,
        "name": check.name,
        "slice": check.slice,
        "outcome": check.outcome,
        "estimate": check.estimate,
        "ci_low": check.interval and check.interval.low,
        "ci_high": check.interval and check.interval.high,
        "corrected": check.corrected,
        "bound": check.bound,
        "n": check.n,
        "needed": check.needed,
        "why": check.why,
        "other": check.other,
    }
