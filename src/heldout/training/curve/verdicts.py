"""Verdicts on a held-out curve: improving, regressing, plateau or inconclusive, as of now.

    for verdict in judge_points(current_points(read_points(path)), effect=0.05):
        print(verdict.step, verdict.sentence())

A curve answers three questions, in this order: is it still improving (the verdict), has it
improved since its start (`SinceStart`), and which step is best (`BestPoint`). All three are made of
one table of rewards, points x samples, and stored on a point as one dict; `stored_verdicts.py`
reads it.

The statistics are in `heldout.stats` (`sequential`, `winner`). Here points become tables of
rewards, and verdicts become steps and sentences.

Errored items are handled in two ways (clause 22): left out, and as a reward of 0. "improving" and
"plateau" need both. "regressing" needs only the second, if the first does not say improving: a
training run that collapses into errors has no rewards left that could fall.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np

from heldout._core.format import interval as interval_text
from heldout._core.format import list_some, number, samples
from heldout.errors import InvalidInput
from heldout.stats import Interval, Verdict, best_of
from heldout.stats.intervals import Floats
from heldout.stats.sequential import (
    ALPHA,
    REFERENCES,
    WINDOW,
    Analysis,
    Gain,
    ReferenceComparison,
    VerdictKind,
    advise,
    analyze_next,
    check_settings,
    critical_value,
    gain_interval,
    spending_share,
)
from heldout.stats.summary import value_of_errors
from heldout.training.curve.points import CurvePoint

EFFECT = 0.05
Bounds = tuple[float, float]
Steps = tuple[int, int, int, int]
"""First and last step of the older points, and of the newer ones."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of verdicts: arguments of `CurveMonitor`."""

    effect: float = EFFECT
    alpha: float = ALPHA
    window: int = WINDOW
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        # Plain numbers, also where numpy's were given: they are stored as JSON.
        try:
            object.__setattr__(self, "effect", float(self.effect))
            object.__setattr__(self, "alpha", float(self.alpha))
            object.__setattr__(self, "window", operator.index(self.window))
            if self.bounds is not None:
                low, high = map(float, self.bounds)
                if not low < high or math.isinf(high - low):
                    raise ValueError
                object.__setattr__(self, "bounds", (low, high))
        except (TypeError, ValueError, OverflowError):
            raise InvalidInput(
                "effect and alpha are numbers, window is a number of evals, and bounds are the "
                f"minimum and maximum possible reward, such as (0, 1); got {self!r:.200}"
            ) from None
        check_settings(self.effect, self.alpha, self.window)


# --- Rewards as a table ---------------------------------------------------------------------------

LARGEST = 1e100
"""Largest reward: squares of larger ones overflow."""

PointKey = tuple[str, int, str, float, int]


def key_of(point: CurvePoint) -> PointKey:
    """Return a key that differs if a step is measured again."""
    return point.session, point.step, point.time, point.seconds, point.asked


class _PointRow(NamedTuple):
    rewards: Floats
    """Of each sample; NaN where it has no score."""
    errored: Floats
    """Share of its items that errored; NaN if it was not run."""
    errors: int
    low: float
    high: float
    """Minimum and maximum reward; inf and -inf without any."""


class Rewards:
    """Rewards of points, as rows over samples in the order in which samples were first seen.

    A row is made once, however often its point is judged.
    """

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rows: dict[PointKey, _PointRow] = {}

    def _row(self, point: CurvePoint) -> _PointRow:
        """Return the rewards of a point; InvalidInput if one is too large to be judged."""
        if (known := self._rows.get(key_of(point))) is not None:
            return known
        scores = np.array([outcome.reward for outcome in point.outcomes], dtype=np.float64)
        low = float(np.fmin.reduce(scores, initial=math.inf))
        high = float(np.fmax.reduce(scores, initial=-math.inf))
        if max(-low, high) > LARGEST:
            raise InvalidInput(
                f"a reward at step {point.step} is {max(-low, high):.3g}: too large to judge"
            )
        ids = (outcome.copy_of or outcome.id for outcome in point.outcomes)
        columns = np.array([self._columns.setdefault(id, len(self._columns)) for id in ids])
        size, is_error = len(self._columns), np.isnan(scores)
        items = np.bincount(columns, minlength=size)
        errors = np.bincount(columns[is_error], minlength=size)
        sums = np.bincount(columns[~is_error], weights=scores[~is_error], minlength=size)
        with np.errstate(invalid="ignore"):  # 0 / 0 is NaN
            rewards, errored = sums / (items - errors), errors / items
        row = _PointRow(rewards, errored, int(is_error.sum()), low, high)
        self._rows[key_of(point)] = row
        return row

    def table(self, points: Sequence[CurvePoint], bounds: Bounds | None = None) -> RewardTable:
        """Return the table of these points; `bounds` are the possible rewards, if known."""
        rows = [self._row(point) for point in points]
        scored, errored = np.full((2, len(rows), len(self._columns)), np.nan)
        for i, row in enumerate(rows):
            scored[i, : len(row.rewards)] = row.rewards
            errored[i, : len(row.errored)] = row.errored
        return RewardTable(
            points,
            scored,
            errored,
            [row.errors for row in rows],
            np.minimum.accumulate(np.array([row.low for row in rows])),
            np.maximum.accumulate(np.array([row.high for row in rows])),
            bounds,
        )


def judged_points(points: Iterable[CurvePoint]) -> list[CurvePoint]:
    """Return the points that have rewards, which must have one label."""
    results = [point for point in points if point.has_result and point.outcomes]
    labels = sorted({point.label for point in results})
    if len(labels) > 1:
        raise InvalidInput(
            f"the points have several labels: {', '.join(labels)}; pass one curve at a time"
        )
    return results


@dataclass(frozen=True, slots=True)
class RewardTable:
    """Rewards, points x samples. Methods with an index use only rows up to it."""

    points: Sequence[CurvePoint]
    scored: Floats
    """Mean reward of each sample; NaN if it errored."""
    errored: Floats
    """Share of a sample's items that errored; NaN if it was not run."""
    error_counts: list[int]
    """Errored items at each row."""
    lows: Floats
    highs: Floats
    given_bounds: Bounds | None

    def counted(self, index: int) -> Floats:
        """Return the rewards up to a row, with errored items as `errored_as`."""
        scored, errored = np.nan_to_num(self.scored[: index + 1]), self.errored[: index + 1]
        return np.asarray(scored * (1 - errored) + self.errored_as(index) * errored)

    def errors(self, first: int, last: int) -> int:
        """Return the number of errored items at these rows."""
        return sum(self.error_counts[first : last + 1])

    def errored_as(self, index: int) -> float:
        """Return the reward that an errored item counts as; no reward is lower."""
        worth = value_of_errors(np.array([self.lows[index], self.highs[index]]))
        return worth if self.given_bounds is None else max(worth, self.given_bounds[0])

    def bounds(self, index: int) -> Bounds | None:
        """Return the bounds given; else (0, 1) if all rewards seen lie there; else None."""
        if self.given_bounds is not None:
            return self.given_bounds
        return (0.0, 1.0) if self.lows[index] >= 0 and self.highs[index] <= 1 else None

    def steps_of(self, comparison: ReferenceComparison | None) -> Steps | None:
        """Return the steps of a comparison."""
        if comparison is None:
            return None
        (first, last), (newer, newest) = comparison.old, comparison.new
        steps = [point.step for point in self.points]
        return steps[first], steps[last], steps[newer], steps[newest]


# --- The best eval --------------------------------------------------------------------------------

MOST_CANDIDATES = 100
"""Evals up to which the best one is corrected at every point: the cost grows with their cube, and
more so where BLAS threads find no free core."""
SEED = 0
"""Seed of the draws behind its interval: the same curve gives the same numbers."""


@dataclass(frozen=True, slots=True)
class BestPoint:
    """The eval with the highest mean reward, corrected for having been picked.

    Whether its checkpoint was saved is not known here.
    """

    step: int
    raw: float
    """Its mean as measured, with errored items; biased upwards, unless it is the only candidate."""
    estimate: float | None
    """The corrected mean; None, like the interval, if it was not computed, or if all rewards are
    equal and their bounds unknown. Of the only candidate, mean and interval of its point."""
    interval: Interval | None
    candidates: int
    """Evals that it was picked from: those with all samples compared."""
    left_out: tuple[int, ...]
    """Steps of the evals that lack some of those samples, and are not compared."""
    n: int
    """Samples compared."""
    errored: int = 0
    """Samples with an errored item at this eval."""
    errored_as: float = 0.0
    """The reward that such an item counts as."""

    def sentence(self) -> str:
        """Return the best eval as a sentence."""
        around = interval_text(self.interval.low, self.interval.high) if self.interval else None
        text = f"best so far: step {self.step}{' (before training)' * (self.step == 0)}, "
        if self.candidates == 1:
            text += f"{number(self.raw)}{f' ({around})' if around else ' as measured'}"
            text += ", the only one to pick from"
        elif self.estimate is None or around is None:
            text += f"{number(self.raw)} as measured, not corrected for picking the best of "
            text += str(self.candidates)
        else:
            text += f"{number(self.estimate)} ({around}, corrected for picking the best of "
            text += f"{self.candidates}; {number(self.raw)} as measured)"
        text += f", on {samples(self.n)}"
        if self.errored:
            with_errors = f", {self.errored} of them with errored items, counted as"
            text += f"{with_errors} {self.errored_as:g}"
        if self.left_out:
            steps = list_some([str(step) for step in self.left_out], 5, ", ")
            noun = "step" if len(self.left_out) == 1 else "steps"
            text += f"; left out, with fewer samples: {noun} {steps}"
        return text


def best_as_dict(best: BestPoint | None) -> dict[str, Any]:
    """Return the best eval so far as it is stored on a point."""
    interval = best.interval if best else None
    return {
        "best_step": best.step if best else None,
        "best_estimate": best.estimate if best else None,
        "best_ci_low": interval.low if interval else None,
        "best_ci_high": interval.high if interval else None,
        "best_text": best.sentence() if best else None,
    }


def best_checkpoint(
    points: Sequence[CurvePoint], *, bounds: Bounds | None = None, most: int | None = None
) -> BestPoint | None:
    """Find the best eval of one curve.

    Evals are compared on the samples that at least half of them have run; evals that lack some of
    those are left out and counted. Errored items count as 0, or as the minimum reward seen if that
    is lower: otherwise an eval of three good answers and 97 errors would be the best one.

    Args:
        points: One curve, from `current_points`, of one label.
        bounds: Minimum and maximum possible reward (see `CurveMonitor`).
        most: Candidates up to which the mean is corrected: the cost grows with their cube.

    Returns:
        The best eval; None if no samples can be compared.

    Raises:
        InvalidInput: The points have several labels.
    """
    return pick_best(Rewards().table(judged_points(points), bounds), most=most)


def pick_best(table: RewardTable, *, most: int | None = None) -> BestPoint | None:
    """Find the best eval of a table, as `best_checkpoint` does for points."""
    points = table.points
    last = len(points) - 1
    was_run = ~np.isnan(table.errored)
    compared = 2 * was_run.sum(axis=0) >= len(points)
    candidates = np.flatnonzero(was_run[:, compared].all(axis=1))
    count = int(compared.sum())
    if not len(candidates) or count == 0 or not math.isfinite(table.lows[last]):
        return None
    rewards, bounds = table.counted(last)[:, compared][candidates], table.bounds(last)
    means = rewards.mean(axis=1)
    place, estimate, interval = int(means.argmax()), None, None
    if len(candidates) == 1:  # nothing was picked, so nothing is corrected
        return _only_candidate(table, int(candidates[0]))
    is_few = most is None or len(candidates) <= most
    if is_few and count > 1 and (bounds or rewards.max() > rewards.min()):
        won = best_of(rewards, seed=SEED, bounds=bounds)
        place, estimate, interval = won.index, won.estimate, won.interval
    index = int(candidates[place])
    return BestPoint(
        step=points[index].step,
        raw=float(means[place]),
        estimate=estimate,
        interval=interval,
        candidates=len(candidates),
        left_out=_other_steps(points, candidates.tolist()),
        n=count,
        errored=int((table.errored[index, compared] > 0).sum()),
        errored_as=table.errored_as(last),
    )


def _only_candidate(table: RewardTable, index: int) -> BestPoint | None:
    """Return the one eval that could be picked, with mean and interval of its own point."""
    point = table.points[index]
    if point.reward is None:
        return None
    was_run = ~np.isnan(table.errored[index])
    return BestPoint(
        step=point.step,
        raw=point.reward,
        estimate=point.reward,
        interval=None if point.ci is None else Interval(*point.ci),
        candidates=1,
        left_out=_other_steps(table.points, [index]),
        n=int(was_run.sum()),
        errored=int((table.errored[index, was_run] > 0).sum()),
    )


def _other_steps(points: Sequence[CurvePoint], chosen: Sequence[int]) -> tuple[int, ...]:
    return tuple(point.step for i, point in enumerate(points) if i not in chosen)


# --- Verdicts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinceStart:
    """Whether the latest evals are better than the first ones of the curve.

    It has an alpha of its own: the probability that it is ever false, over the whole curve.
    """

    kind: Literal["improved", "declined", "unclear"]
    comparison: ReferenceComparison
    between: Steps
    errored_as: float | None
    """The reward that errored items count as; None: they are left out."""

    def sentence(self) -> str:
        """Return the answer as a sentence, with its numbers."""
        gain = self.comparison.gain
        if gain is None:
            return "since its start: too few rewards to compare, or all alike"
        words = {
            "improved": "improved since its start",
            "declined": "worse than at its start",
            "unclear": "not seen to have changed since its start",
        }
        if self.kind == "unclear" and gain.sign != 0:
            return "since its start: what errored items count as decides whether it has improved"
        text = f"{words[self.kind]}: {_gain_text(gain, self.between, self.comparison.n)}"
        if self.errored_as is not None:
            text += f", with errored items as {self.errored_as:g}"
        return text if self.kind != "unclear" else f"{text}; {_detectable_text(gain)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as it is stored on a point."""
        gain = self.comparison.gain
        return {
            "since_start": self.kind,
            "since_start_gain": gain.estimate if gain else None,
            "since_start_ci_low": gain.interval.low if gain else None,
            "since_start_ci_high": gain.interval.high if gain else None,
            "since_start_text": self.sentence(),
        }


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The verdict on a curve up to a step."""

    step: int
    since: int | None
    """First of the steps compared; None if nothing is claimed."""
    verdict: Verdict
    """The numbers; indices are those of the curve's results."""
    terms: Terms
    bounds: Bounds | None
    """Minimum and maximum possible reward; None: unknown."""
    between: Steps | None
    """The steps compared."""
    against: Steps | None
    """The steps between which a rise is contradicted (see `Verdict.against`)."""
    readings: tuple[VerdictKind, VerdictKind]
    """The verdicts without errored items, and with them as 0."""
    errored: int
    """Errored items at the evals compared."""
    errored_as: float | None
    """The reward that errored items count as; None: they are left out."""
    since_start: SinceStart | None
    """None at the first eval."""

    @property
    def kind(self) -> VerdictKind:
        """The verdict in one word."""
        return self.verdict.kind

    def sentence(self) -> str:
        """Return the verdict as a sentence, with its numbers."""
        verdict, decided = self.verdict, self.verdict.decided
        if verdict.kind == "inconclusive" or decided is None or decided.gain is None:
            return f"inconclusive{self._reason()}"
        assert self.between is not None
        basis = _gain_text(decided.gain, self.between, decided.n)
        if self.errored_as is not None:
            basis += f", with {self._errors()}"
        if verdict.kind == "plateau":
            return f"plateau since step {self.since}: {basis}; no gain as large as " + number(
                verdict.effect
            )
        return f"{verdict.kind}: {basis}"

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as it is stored on a point."""
        decided, gain = self.verdict.decided, self.verdict.gain
        steps = self.between or (None,) * 4
        return {
            "kind": self.kind,
            "text": self.sentence(),
            "since": self.since,
            "reference": decided.reference if decided else None,
            "gain": gain.estimate if gain else None,
            "ci_low": gain.interval.low if gain else None,
            "ci_high": gain.interval.high if gain else None,
            **dict(zip(("from_first", "from_last", "to_first", "to_last"), steps, strict=True)),
            "minimum_detectable": gain.minimum_detectable if gain else None,
            "n": decided.n if decided else None,
            **(self.since_start.as_dict() if self.since_start else _NO_START),
            "errored": self.errored,
            "errored_as": self.errored_as,
            "effect": self.terms.effect,
            "alpha": self.terms.alpha,
            "window": self.terms.window,
            "bounds": None if self.bounds is None else list(self.bounds),
        }

    def _errors(self) -> str:
        items = "1 errored item" if self.errored == 1 else f"{self.errored} errored items"
        return f"{items} as {self.errored_as or 0:g}"

    def _reason(self) -> str:
        verdict, decided = self.verdict, self.verdict.decided
        scored, counted = self.readings
        if scored != counted:
            if scored == "inconclusive":
                return f" without the errored items; {counted} with {self._errors()}"
            if counted == "inconclusive":
                return f" with {self._errors()}; {scored} without them"
            return f": {scored} without the errored items, {counted} with {self._errors()}"
        if decided is None:
            return ": there is one eval"
        if decided.gain is None:
            return ": too few rewards to compare, or all alike"
        if verdict.against is not None and verdict.against.gain is not None:
            gains = (decided.gain, verdict.against.gain)
            rise, fall = (number(gain.estimate, sign=True) for gain in gains)
            return f": {rise} {_steps_text(self.between)}, but {fall} {_steps_text(self.against)}"
        assert self.between is not None
        found = _gain_text(decided.gain, self.between, decided.n)
        return f": {found}; {_detectable_text(decided.gain)}"


_NO_START = {f"since_start{field}": None for field in ("", "_gain", "_ci_low", "_ci_high", "_text")}


def _gain_text(gain: Gain, steps: Steps, n: int) -> str:
    around = interval_text(gain.interval.low, gain.interval.high)
    change = number(gain.estimate, sign=True)
    return f"{change} ({around}) {_steps_text(steps)}, paired on {samples(n)}"


def _detectable_text(gain: Gain) -> str:
    """Say what the comparison could have shown, with 80% power and its share of alpha."""
    size = gain.minimum_detectable
    if size is None:
        return "no gain could have been seen"
    return f"a gain of {number(size)} would have been seen"


def _steps_text(steps: Steps | None) -> str:
    assert steps is not None
    first, last, newer, newest = steps
    if first == last and newer == newest:
        return f"from step {first} to step {newest}"
    return f"from steps {first}–{last} to {newer}–{newest}"


def judge_points(
    points: Sequence[CurvePoint],
    *,
    effect: float = EFFECT,
    alpha: float = ALPHA,
    window: int = WINDOW,
    bounds: Bounds | None = None,
) -> list[StepVerdict]:
    """Judge one curve at every result, in order of steps.

    Verdicts given during training may differ if results came late, in another order.

    Args:
        points: One curve, from `current_points`, of one label.
        effect: As for `CurveMonitor`.
        alpha: As for `CurveMonitor`.
        window: As for `CurveMonitor`.
        bounds: As for `CurveMonitor`.

    Returns:
        One verdict for each point that has rewards.

    Raises:
        InvalidInput: The points have several labels, or a reward lies outside the bounds.
    """
    terms = Terms(effect, alpha, window, bounds)
    table = Rewards().table(judged_points(points), terms.bounds)
    made: list[StepVerdict] = []
    before: Readings | None = None
    for index in range(len(table.points)):
        before, verdict = judge(table, index, before, terms)
        made.append(verdict)
    return made


Readings = tuple[Analysis, Analysis]
"""An interim analysis without errored items, and with them as 0; equal if nothing errored."""


def judge(
    table: RewardTable, index: int, before: Readings | None, terms: Terms
) -> tuple[Readings, StepVerdict]:
    """Judge one row of the table, given the analysis before it."""
    bounds, worth = table.bounds(index), table.errored_as(index)
    analyze = partial(
        analyze_next, effect=terms.effect, alpha=terms.alpha, window=terms.window, bounds=bounds
    )
    scored_before, counted_before = before or (None, None)
    low, high = float(table.lows[index]), float(table.highs[index])
    scored = counted = analyze(table.scored[: index + 1], scored_before, seen=(low, high))
    if table.errors(0, index):
        seen = min(low, worth), max(high, worth)
        counted = analyze(table.counted(index), counted_before, seen=seen)
    kinds = scored.verdict.kind, counted.verdict.kind
    verdict, with_errors = _combine(scored.verdict, counted.verdict)
    decided, differ = verdict.decided, kinds[0] != kinds[1]
    errored = table.errors(*decided.old) + table.errors(*decided.new) if decided else 0
    return (scored, counted), StepVerdict(
        step=table.points[index].step,
        since=None if verdict.since is None else table.points[verdict.since].step,
        verdict=verdict,
        terms=terms,
        bounds=bounds,
        between=table.steps_of(decided),
        against=table.steps_of(verdict.against),
        readings=kinds,
        # Where the readings differ by earlier verdicts, all that ever errored is why.
        errored=errored or (table.errors(0, index) if differ else 0),
        errored_as=worth if with_errors or differ else None,
        since_start=_since_start(table, scored.verdict.start, counted.verdict.start, worth),
    )


def _since_start(
    table: RewardTable,
    scored: ReferenceComparison | None,
    counted: ReferenceComparison | None,
    worth: float,
) -> SinceStart | None:
    """Combine both readings as `_combine` does: to have improved takes both."""
    if scored is None or counted is None:
        return None
    signs = [0 if one.gain is None else one.gain.sign for one in (scored, counted)]
    shown, errored_as = scored, None
    kind: Literal["improved", "declined", "unclear"] = "unclear"
    if signs == [1, 1]:
        kind = "improved"
    elif signs[1] < 0 and signs[0] <= 0:
        kind = "declined"
    if (kind == "declined" and signs[0] == 0) or (kind == "unclear" and signs[0] != 0):
        shown, errored_as = counted, worth  # what it rests on; a 0 where it is unclear
    between = table.steps_of(shown)
    assert between is not None
    return SinceStart(kind, shown, between, errored_as)


def _combine(scored: Verdict, counted: Verdict) -> tuple[Verdict, bool]:
    """Combine both readings into a verdict, and whether its numbers count errored items."""
    if scored.kind == counted.kind:
        return scored, False
    if counted.kind == "regressing" and scored.kind != "improving":
        return counted, True
    if scored.kind == "inconclusive":
        return scored, False
    if counted.kind == "inconclusive":
        return counted, True
    return replace(scored, kind="inconclusive"), False


# --- A curve as it grows ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judgement:
    """The result of a monitor."""

    verdict: StepVerdict | None = None
    """None: there is nothing new to judge."""
    best: BestPoint | None = None
    """The best eval so far, whatever the verdict."""
    stop: str | None = None
    """Why training should stop."""

    def as_dict(self) -> dict[str, Any] | None:
        """Return the judgement as it is stored on a point; None without a verdict."""
        if self.verdict is None:
            return None
        return {**self.verdict.as_dict(), **best_as_dict(self.best)}


def _least_plateau(n: int, terms: Terms) -> float:
    """Return the smallest gain that a plateau can rule out: where no sample changes at all."""
    low, high = terms.bounds or (0.0, 1.0)
    looks = max(1, 2 * (terms.window // 2) - 1)  # comparisons up to the first whole window
    critical = critical_value(terms.alpha / len(REFERENCES) * spending_share(looks))
    alpha = math.erfc(critical / math.sqrt(2))
    gain = gain_interval(np.zeros(n), alpha=alpha, scale=high - low)
    return math.inf if gain is None else gain.interval.high


class CurveMonitor:
    """Judges a curve at every point, paired by sample: for `PeriodicEval(monitor=…)`.

    Every `PeriodicEval` has one, which by default never asks to stop. A late result (of a step
    before one that was judged already) gets no verdict, since alpha is spent in order; the next
    verdict includes it.

    Args:
        effect: Gain from the older to the newer half of the window that matters; a plateau is a
            smaller gain.
        alpha: Probability of any false "improving" or "regressing" over the whole curve.
        window: Number of evals whose newer half is compared with the older half.
        bounds: Minimum and maximum possible reward. None: 0 and 1 if all rewards seen lie there,
            otherwise unknown, and no plateau is claimed.
        stop_on_regression: Ask to stop after this many "regressing" steps in a row.
        stop_on_plateau: Ask to stop after this many "plateau" steps in a row. Where the samples are
            too few to show one, a `PeriodicEval` says so when it is made.

    Raises:
        InvalidInput: A setting is invalid.
    """

    def __init__(
        self,
        effect: float = EFFECT,
        *,
        alpha: float = ALPHA,
        window: int = WINDOW,
        bounds: Bounds | None = None,
        stop_on_regression: int | None = None,
        stop_on_plateau: int | None = None,
    ) -> None:
        self.terms = Terms(effect, alpha, window, bounds)
        self._stop_on = {"regressing": stop_on_regression, "plateau": stop_on_plateau}
        for count in self._stop_on.values():
            if count is not None and (not isinstance(count, Integral) or count < 1):
                raise InvalidInput(
                    "stop_on_regression and stop_on_plateau must be whole numbers >= "
                    "1, or None, got "
                    f"{count!r:.100}"
                )
        self._rewards = Rewards()
        self._made: list[tuple[PointKey, StepVerdict]] = []
        """The last verdict of each step, with its point's key."""
        self._before: Readings | None = None

    def why_no_plateau(self, n: int, *, is_bounded: bool = True) -> str | None:
        """Return why `stop_on_plateau` will not ask to stop; None if it may, or is not set.

        Args:
            n: Samples of the held-out set.
            is_bounded: Whether rewards lie between 0 and 1 where no `bounds` are given.
        """
        count = self._stop_on["plateau"]
        if count is None or n == 0:
            return None
        text = f"stop_on_plateau={count} can never ask to stop"
        if self.terms.bounds is None and not is_bounded:
            return (
                f"{text}: no plateau is claimed of returns whose bounds are unknown; pass bounds="
            )
        least = _least_plateau(n, self.terms)
        if least < self.terms.effect:
            return None

        def shows_one(count: int) -> bool:
            return _least_plateau(count, self.terms) < self.terms.effect

        enough = n
        while not shows_one(enough):
            enough *= 2
        enough = bisect_left(range(enough + 1), True, lo=enough // 2, key=shows_one)
        return (
            f"{text} with {samples(n)}: even if none of them ever changes, gains up to "
            f"{number(least)} remain possible, and effect is {number(self.terms.effect)}. Use "
            f"{samples(enough)} at least, or a larger effect"
        )

    @property
    def latest(self) -> StepVerdict | None:
        """The last verdict."""
        return self._made[-1][1] if self._made else None

    def __call__(self, points: Sequence[CurvePoint]) -> Judgement:
        """Judge the curve so far. Each call with a new last result is an interim analysis.

        Args:
            points: The curve so far, by step.

        Returns:
            The verdict, the best eval so far and the reason to stop; empty if nothing is new.
        """
        judged = judged_points(points)
        present = {(point.session, point.step) for point in judged}
        if any(key[:2] not in present for key, _ in self._made):
            self._made, self._before = [], None  # training went back: another curve from there on
        last = self._made[-1][0] if self._made else None
        # Not those that are late; the last step may have been measured again, on more items.
        new = [
            i
            for i, point in enumerate(judged)
            if last is None or (point.step >= last[1] and key_of(point) != last)
        ]
        if not new:
            return Judgement()
        table = self._rewards.table(judged, self.terms.bounds)
        for i in new:
            self._before, verdict = judge(table, i, self._before, self.terms)
            if self.latest is not None and self.latest.step == verdict.step:
                self._made.pop()  # measured again: one verdict a step
            self._made.append((key_of(judged[i]), verdict))
        best = pick_best(table, most=MOST_CANDIDATES)
        return Judgement(self.latest, best, self._reason_to_stop())

    def _reason_to_stop(self) -> str | None:
        advice = advise([verdict.verdict for _, verdict in self._made], **self._stop_on)
        if not advice.stop:
            return None
        reason = self._made[-1][1].sentence()
        return reason if advice.in_a_row == 1 else f"{reason}, at {advice.in_a_row} evals in a row"
