"""Verdicts on a held-out curve: improving, regressing, plateau or inconclusive, as of now.

    for verdict in verdicts(current_points(read_points(path)), effect=0.05):
        print(verdict.step, verdict.sentence())

The statistics are in `heldout.stats.sequential`. Here points become tables of rewards
(`RewardTable`), and verdicts become steps and sentences. The best eval so far (`best_checkpoint`)
is corrected for having been picked (`heldout.stats.winner`).

Errored items are handled in two ways (clause 22): left out, and as a reward of 0. "improving" and
"plateau" need both. "regressing" needs only the second, if the first does not say improving: a
training run that collapses into errors has no rewards left that could fall.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, NamedTuple, get_args

import numpy as np

from heldout._format import interval as interval_text
from heldout._format import number, samples
from heldout.errors import InvalidInput
from heldout.stats import Floats, Interval, Verdict, best_of
from heldout.stats.sequential import (
    ALPHA,
    WINDOW,
    Analysis,
    ReferenceComparison,
    VerdictKind,
    advise,
    analyze_next,
    check_settings,
)
from heldout.training.curve import CurvePoint

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


def terms_of(points: Iterable[CurvePoint], config: Mapping[str, Any] | None = None) -> Terms:
    """Return the settings that a curve was judged by.

    Args:
        points: The curve, of one label.
        config: That of its run.json, if there is one.

    Returns:
        The settings of its last stored verdict; else those that its `PeriodicEval` began with; else
        the defaults.
    """
    known = list(points)
    stored: list[Any] = [point.verdict for point in reversed(known)]
    if config is not None and any(point.label == config.get("label") for point in known):
        stored.append(config.get("monitor"))
    for terms in stored:
        try:
            # (0, 1) is what rewards between them get anyway, as long as all lie there.
            bounds = None if terms.get("bounds") == [0, 1] else terms.get("bounds")
            return Terms(terms["effect"], terms["alpha"], terms["window"], bounds)
        except (AttributeError, KeyError, InvalidInput):
            continue
    return Terms()


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

    @property
    def kind(self) -> VerdictKind:
        """The verdict in one word."""
        return self.verdict.kind

    def sentence(self) -> str:
        """Return the verdict as a sentence, with its numbers."""
        verdict, decided = self.verdict, self.verdict.decided
        if verdict.kind == "inconclusive" or decided is None or decided.gain is None:
            return f"inconclusive{self._reason()}"
        basis = f"{_steps_text(self.between)}, paired on {samples(decided.n)}"
        if self.errored_as is not None:
            basis += f", with {self._errors()}"
        if verdict.kind == "plateau":
            effect = number(verdict.effect)
            return f"plateau since step {self.since}: no gain as large as {effect} {basis}"
        around = interval_text(decided.gain.interval.low, decided.gain.interval.high)
        return f"{verdict.kind}: {number(decided.gain.estimate, sign=True)} ({around}) {basis}"

    def short(self) -> str:
        """Return the kind, and the gain if one is claimed, for narrow columns."""
        gain = self.verdict.gain
        if gain is None or self.kind not in ("improving", "regressing"):
            return self.kind
        return f"{self.kind} {number(gain.estimate, sign=True)}"

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
        size = decided.gain.minimum_detectable
        if size is None:
            return f": no gain could be detected on {samples(decided.n)}"
        # Not that of `heldout compare`: this point has a share of the curve's alpha.
        test = f"80% power and p < {decided.alpha:.2g}"
        return f": minimum detectable effect {number(size)} at {test}, on {samples(decided.n)}"


def _steps_text(steps: Steps | None) -> str:
    assert steps is not None
    first, last, newer, newest = steps
    if first == last and newer == newest:
        return f"from step {first} to step {newest}"
    return f"from steps {first}–{last} to {newer}–{newest}"


def stored_kind(point: CurvePoint) -> VerdictKind | None:
    """Return the kind of the verdict stored on a point, or None."""
    kind = (point.verdict or {}).get("kind")
    if kind == "cannot tell":  # the word of earlier versions
        return "inconclusive"
    return kind if kind in get_args(VerdictKind) else None


def verdicts(
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
    rewards = Rewards()
    table = rewards.table(rewards.judged(points), terms.bounds)
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
    )


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


# --- Rewards of points as a table, points x samples ---------------------------------------------

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

    Outcomes are needed once: a known point may be passed again without them.
    """

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rows: dict[PointKey, _PointRow] = {}

    def add(self, point: CurvePoint) -> None:
        """Add the rewards of a point; InvalidInput if one is too large to be judged."""
        if not point.has_result or not point.outcomes or key_of(point) in self._rows:
            return
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
        self._rows[key_of(point)] = _PointRow(rewards, errored, int(is_error.sum()), low, high)

    def judged(self, points: Iterable[CurvePoint]) -> list[CurvePoint]:
        """Return the points that have rewards, which must have one label."""
        results = [
            point
            for point in points
            if point.has_result and (point.outcomes or key_of(point) in self._rows)
        ]
        labels = sorted({point.label for point in results})
        if len(labels) > 1:
            raise InvalidInput(
                f"the points have several labels: {', '.join(labels)}; pass one curve at a time"
            )
        return results

    def table(self, points: Sequence[CurvePoint], bounds: Bounds | None = None) -> RewardTable:
        """Return the table of these points; `bounds` are the possible rewards, if known."""
        for point in points:
            self.add(point)
        rows = [self._rows[key_of(point)] for point in points]
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
        worth = float(min(0.0, self.lows[index]))
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


# --- The best eval so far -----------------------------------------------------------------------

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
    left_out: int
    """Evals that lack some of those samples, and are not compared."""
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
            evals = "1 eval" if self.left_out == 1 else f"{self.left_out} evals"
            text += f"; {evals} of fewer samples left out"
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
        The best eval; None if no two samples can be compared.

    Raises:
        InvalidInput: The points have several labels.
    """
    rewards = Rewards()
    return pick_best(rewards.table(rewards.judged(points), bounds), most=most)


def pick_best(table: RewardTable, *, most: int | None = None) -> BestPoint | None:
    """Find the best eval of a table, as `best_checkpoint` does for points."""
    points = table.points
    last = len(points) - 1
    was_run = ~np.isnan(table.errored)
    compared = 2 * was_run.sum(axis=0) >= len(points)
    candidates = np.flatnonzero(was_run[:, compared].all(axis=1))
    count = int(compared.sum())
    if not len(candidates) or count < 2 or not math.isfinite(table.lows[last]):
        return None
    rewards, bounds = table.counted(last)[:, compared][candidates], table.bounds(last)
    means = rewards.mean(axis=1)
    place, estimate, interval = int(means.argmax()), None, None
    if len(candidates) == 1:  # nothing was picked, so nothing is corrected
        return _only_candidate(table, int(candidates[0]))
    if (most is None or len(candidates) <= most) and (bounds or rewards.max() > rewards.min()):
        won = best_of(rewards, seed=SEED, bounds=bounds)
        place, estimate, interval = won.index, won.estimate, won.interval
    index = int(candidates[place])
    return BestPoint(
        step=points[index].step,
        raw=float(means[place]),
        estimate=estimate,
        interval=interval,
        candidates=len(candidates),
        left_out=len(points) - len(candidates),
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
        left_out=len(table.points) - 1,
        n=int(was_run.sum()),
        errored=int((table.errored[index, was_run] > 0).sum()),
    )


# --- A curve as it grows ------------------------------------------------------------------------

MOST_CANDIDATES = 100
"""Evals up to which the best one is corrected at every point: the cost grows with their cube, and
more so where BLAS threads find no free core."""


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
        stop_on_plateau: Ask to stop after this many "plateau" steps in a row.

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
                    "stop_on_regression and stop_on_plateau are whole numbers >= 1, or None, got "
                    f"{count!r:.100}"
                )
        self._rewards = Rewards()
        self._made: list[tuple[PointKey, StepVerdict]] = []
        """The last verdict of each step, with its point's key."""
        self._before: Readings | None = None

    def with_terms(self, terms: Terms) -> CurveMonitor:
        """Return a new monitor with other settings, which shares the rewards of this one."""
        other = CurveMonitor(
            terms.effect, alpha=terms.alpha, window=terms.window, bounds=terms.bounds
        )
        other._rewards = self._rewards
        return other

    @property
    def latest(self) -> StepVerdict | None:
        """The last verdict."""
        return self._made[-1][1] if self._made else None

    def add(self, point: CurvePoint) -> None:
        """Add the rewards of a point, which may be passed without its outcomes later."""
        self._rewards.add(point)

    def __call__(self, points: Sequence[CurvePoint]) -> Judgement:
        """Judge the curve so far. Each call with a new last result is an interim analysis.

        Args:
            points: The curve so far, by step.

        Returns:
            The verdict, the best eval so far and the reason to stop; empty if nothing is new.
        """
        table = self._judge_new(points)
        if table is None:
            return Judgement()
        best = pick_best(table, most=MOST_CANDIDATES)
        return Judgement(self.latest, best, self._reason_to_stop())

    def update(self, points: Sequence[CurvePoint]) -> StepVerdict | None:
        """Judge what is new, and return the last verdict, without the best eval."""
        self._judge_new(points)
        return self.latest

    def _judge_new(self, points: Sequence[CurvePoint]) -> RewardTable | None:
        """Judge what is new, and return the table of the curve; None if nothing is new."""
        judged = self._rewards.judged(points)
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
            return None
        table = self._rewards.table(judged, self.terms.bounds)
        for i in new:
            self._before, verdict = judge(table, i, self._before, self.terms)
            if self.latest is not None and self.latest.step == verdict.step:
                self._made.pop()  # measured again: one verdict a step
            self._made.append((key_of(judged[i]), verdict))
        return table

    def _reason_to_stop(self) -> str | None:
        advice = advise([verdict.verdict for _, verdict in self._made], **self._stop_on)
        if not advice.stop:
            return None
        reason = self._made[-1][1].sentence()
        return reason if advice.in_a_row == 1 else f"{reason}, at {advice.in_a_row} evals in a row"
