"""Verdicts on a held-out curve: improving, regressing, plateau or inconclusive, as of now.

    for verdict in verdicts(current_points(read_points(path)), effect=0.05):
        print(verdict.step, verdict.sentence())

The statistics are those of `heldout.stats.sequential`. Here points become tables of rewards
(`RewardTable`), and verdicts become steps and sentences. The best eval so far (`best_checkpoint`)
is a statement of its own, corrected for having been picked (`heldout.stats.winner`).

Errors are read in two ways (clause 22): left out, and as a reward of 0. "improving" and "plateau"
need both, "regressing" the second, unless the first says improving: a training that collapses into
errors has no rewards left that could fall.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
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
    Comparison,
    Kind,
    advise,
    analyze_next,
    check_settings,
)
from heldout.stats.winner import DRAWS
from heldout.training.curve import CurvePoint

EFFECT = 0.05

Bounds = tuple[float, float]
Steps = tuple[int, int, int, int]
"""First and last step of the older points, and of the newer ones."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of verdicts, as `CurveMonitor` takes them."""

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
                f"least and the largest reward there can be, (0, 1) say; got {self!r:.200}"
            ) from None
        check_settings(self.effect, self.alpha, self.window)


def terms_of(points: Iterable[CurvePoint]) -> Terms:
    """The settings of the last verdict stored on a curve that make sense, else the defaults."""
    for point in reversed(list(points)):
        stored = point.verdict or {}
        bounds = stored.get("bounds")
        try:
            # (0, 1) is what rewards between them get anyway, as long as all lie there.
            bounds = None if bounds == [0, 1] else bounds
            return Terms(stored["effect"], stored["alpha"], stored["window"], bounds)
        except (KeyError, InvalidInput):
            continue
    return Terms()


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The verdict on a curve up to a step."""

    step: int
    since: int | None
    """First step of what the claim is about; None where there is no claim."""
    verdict: Verdict
    """The numbers; they count the curve's results from 0."""
    terms: Terms
    bounds: Bounds | None
    """The least and the largest reward taken to be possible; None: unknown."""
    between: Steps | None
    """The steps compared."""
    against: Steps | None
    """The steps between which a rise is contradicted (see `Verdict.against`)."""
    readings: tuple[Kind, Kind]
    """The verdict without the items that errored, and with them as 0."""
    errored: int
    """Items that errored at the evals compared."""
    errored_as: float | None
    """The reward they count as in these numbers; None: they are left out."""

    @property
    def kind(self) -> Kind:
        """The verdict in a word."""
        return self.verdict.kind

    def sentence(self) -> str:
        """The verdict in words, with what it rests on."""
        verdict, decided = self.verdict, self.verdict.decided
        if verdict.kind == "inconclusive" or decided is None:
            return f"inconclusive{self._reason()}"
        basis = f"{_steps_text(self.between)}, paired on {samples(decided.n)}"
        if self.errored_as is not None:
            basis += f", with {self._errors()}"
        if verdict.kind == "plateau":
            effect = number(verdict.effect)
            return f"plateau since step {self.since}: no gain as large as {effect} {basis}"
        around = decided.interval
        gain = number(decided.estimate, sign=True)
        if around is not None:
            gain += f" ({interval_text(around.low, around.high)})"
        return f"{verdict.kind}: {gain} {basis}"

    def short(self) -> str:
        """The kind, and the gain where one is claimed: for where there is little room."""
        gain = self.verdict.estimate
        if gain is None or self.kind not in ("improving", "regressing"):
            return self.kind
        return f"{self.kind} {number(gain, sign=True)}"

    def as_dict(self) -> dict[str, Any]:
        """The verdict as a point of the curve stores it."""
        verdict, decided = self.verdict, self.verdict.decided
        steps = self.between or (None,) * 4
        return {
            "kind": verdict.kind,
            "text": self.sentence(),
            "since": self.since,
            "reference": verdict.reference,
            "gain": verdict.estimate,
            "ci_low": verdict.interval.low if verdict.interval else None,
            "ci_high": verdict.interval.high if verdict.interval else None,
            **dict(zip(("from_first", "from_last", "to_first", "to_last"), steps, strict=True)),
            "minimum_detectable": verdict.minimum_detectable,
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
        if verdict.against is not None:
            rise, fall = (number(c.estimate, sign=True) for c in (decided, verdict.against))
            return f": {rise} {_steps_text(self.between)}, but {fall} {_steps_text(self.against)}"
        size = decided.minimum_detectable
        if size is None:
            return ": too few rewards to compare, or all alike"
        if self.bounds is not None and size > self.bounds[1] - self.bounds[0]:
            return f": no gain could be detected on {samples(decided.n)}"
        return f": minimum detectable effect {number(size)} at 80% power, on {samples(decided.n)}"


def _steps_text(steps: Steps | None) -> str:
    assert steps is not None
    first, last, newer, newest = steps
    if first == last and newer == newest:
        return f"from step {first} to step {newest}"
    return f"from steps {first}–{last} to {newer}–{newest}"


def stored_kind(point: CurvePoint) -> Kind | None:
    """The kind of the verdict stored on a point; None where there is none that is known."""
    kind = (point.verdict or {}).get("kind")
    if kind == "cannot tell":  # the word of earlier versions
        return "inconclusive"
    return kind if kind in get_args(Kind) else None


def verdicts(
    points: Sequence[CurvePoint],
    *,
    effect: float = EFFECT,
    alpha: float = ALPHA,
    window: int = WINDOW,
    bounds: Bounds | None = None,
) -> list[StepVerdict]:
    """Judge one curve at every result, in order of steps.

    Where results came late, they were judged in another order while the policy trained.

    Args:
        points: One curve, as `current_points` gives it, of one label.
        effect: As of `heldout.training.CurveMonitor`.
        alpha: As there.
        window: As there.
        bounds: As there.

    Returns:
        One verdict for each point that has rewards.

    Raises:
        InvalidInput: The points are of several evals, or a reward lies outside the bounds.
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
"""An interim analysis in both readings; one and the same where nothing has errored."""


def judge(
    table: RewardTable, index: int, before: Readings | None, terms: Terms
) -> tuple[Readings, StepVerdict]:
    """Judge one row of the table, given the analysis that was made before it."""
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
    """The verdict that two readings allow, and whether its numbers count what errored."""
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
"""Beyond it, squares overflow."""

Key = tuple[str, int, str, float, int]


def key_of(point: CurvePoint) -> Key:
    """What tells a point from one that was measured again at its step."""
    return point.session, point.step, point.time, point.seconds, point.asked


class _Row(NamedTuple):
    rewards: Floats
    """Of each sample; NaN where it has no score."""
    errored: Floats
    """The share of its items that errored; NaN where it was not run."""
    errors: int
    low: float
    high: float
    """Of the rewards; inf and -inf where there are none."""


class Rewards:
    """The rewards of points, as rows over samples in the order in which samples were first seen.

    Outcomes are needed once: a point that is known may come without them.
    """

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rows: dict[Key, _Row] = {}

    def add(self, point: CurvePoint) -> None:
        """Keep the rewards of a point; InvalidInput where one is too large to be judged."""
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
        self._rows[key_of(point)] = _Row(rewards, errored, int(is_error.sum()), low, high)

    def judged(self, points: Iterable[CurvePoint]) -> list[CurvePoint]:
        """Those of the points that have rewards, which must be of one eval."""
        results = [
            point
            for point in points
            if point.has_result and (point.outcomes or key_of(point) in self._rows)
        ]
        labels = sorted({point.label for point in results})
        if len(labels) > 1:
            raise InvalidInput(
                f"the points are of several evals: {', '.join(labels)}; each has a curve of its own"
            )
        return results

    def table(self, points: Sequence[CurvePoint], bounds: Bounds | None = None) -> RewardTable:
        """The table of these points; `bounds` are the possible rewards, where they are known."""
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
    """Rewards of points x samples; what is asked "at" a row is as of that point."""

    points: Sequence[CurvePoint]
    scored: Floats
    """Without what errored: NaN."""
    errored: Floats
    """The share of a sample's items that errored; NaN where it was not run."""
    error_counts: list[int]
    """Items that errored at each row."""
    lows: Floats
    highs: Floats
    given_bounds: Bounds | None

    def counted(self, index: int) -> Floats:
        """The rewards up to a row, with what errored as `errored_as`."""
        scored, errored = np.nan_to_num(self.scored[: index + 1]), self.errored[: index + 1]
        return np.asarray(scored * (1 - errored) + self.errored_as(index) * errored)

    def errors(self, first: int, last: int) -> int:
        """Items that errored at these rows."""
        return sum(self.error_counts[first : last + 1])

    def errored_as(self, index: int) -> float:
        """The reward that an errored item counts as: no reward is lower."""
        worth = float(min(0.0, self.lows[index]))
        return worth if self.given_bounds is None else max(worth, self.given_bounds[0])

    def bounds(self, index: int) -> Bounds | None:
        """As given; else (0, 1) where all rewards seen lie there; else unknown."""
        if self.given_bounds is not None:
            return self.given_bounds
        return (0.0, 1.0) if self.lows[index] >= 0 and self.highs[index] <= 1 else None

    def steps_of(self, comparison: Comparison | None) -> Steps | None:
        """The steps that a comparison is of."""
        if comparison is None:
            return None
        (first, last), (newer, newest) = comparison.old, comparison.new
        steps = [point.step for point in self.points]
        return steps[first], steps[last], steps[newer], steps[newest]


# --- The best eval so far -----------------------------------------------------------------------

SEED = 0
"""Of the draws behind its interval: the same curve gives the same numbers."""


@dataclass(frozen=True, slots=True)
class Best:
    """The eval with the highest mean reward, corrected for having been picked.

    Whether its weights were saved is not known here.
    """

    step: int
    raw: float
    """Its mean as measured, what errored counted: it overstates."""
    estimate: float | None
    """Less the luck of the maximum; None, as for the interval, where it was not computed, or
    nothing says how much rewards could differ."""
    interval: Interval | None
    candidates: int
    """Evals it was picked from: those of all samples that are compared."""
    left_out: int
    """Evals that lack some of those samples: a mean of others would be another mean."""
    n: int
    """Samples compared."""
    errored: int = 0
    """Samples with an item that errored at this eval."""
    errored_as: float = 0.0
    """The reward that such an item counts as."""

    def sentence(self) -> str:
        """The best eval in words."""
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
            text += f", {self.errored} of them errored, counted as {self.errored_as:g}"
        if self.left_out:
            evals = "1 eval" if self.left_out == 1 else f"{self.left_out} evals"
            text += f"; {evals} of fewer samples left out"
        return text


def best_as_dict(best: Best | None) -> dict[str, Any]:
    """The best eval so far as a point of the curve stores it, apart from the verdict's word."""
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
) -> Best | None:
    """Find the best eval of one curve.

    Evals are compared on the samples that at least half of them have run; one that lacks some of
    those is no candidate, and is counted. A budget or a time limit takes a beginning of one fixed
    order, so these samples are a beginning of it, too. What errored counts as 0, or as the least
    reward seen: else an eval of three good answers and 97 errors would be the best one.

    Args:
        points: One curve, as `current_points` gives it, of one label.
        bounds: The least and the largest possible reward (see `CurveMonitor`).
        most: Candidates up to which the mean is corrected: the cost grows with their cube.

    Returns:
        The best eval; None where no two samples can be compared.

    Raises:
        InvalidInput: The points are of several evals.
    """
    rewards = Rewards()
    return pick_best(rewards.table(rewards.judged(points), bounds), most=most)


def pick_best(table: RewardTable, *, draws: int = DRAWS, most: int | None = None) -> Best | None:
    """`best_checkpoint`, of points whose table is there already."""
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
    if (most is None or len(candidates) <= most) and (bounds or rewards.max() > rewards.min()):
        won = best_of(rewards, seed=SEED, draws=draws, bounds=bounds)
        place, estimate, interval = won.index, won.estimate, won.interval
    index = int(candidates[place])
    return Best(
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


# --- A curve as it grows ------------------------------------------------------------------------

MOST_CANDIDATES = 100
"""Evals up to which the best one is corrected at every point: the cost grows with their cube, and
more so where BLAS threads find no free core."""
MONITOR_DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a monitor says of a curve."""

    verdict: StepVerdict | None = None
    """None: the newest point changed nothing that could be judged."""
    best: Best | None = None
    """The best eval so far, whatever the verdict."""
    stop: str | None = None
    """Why training should stop."""

    def as_dict(self) -> dict[str, Any] | None:
        """The judgement as a point of the curve stores it; None without a verdict."""
        if self.verdict is None:
            return None
        return {**self.verdict.as_dict(), **best_as_dict(self.best)}


class CurveMonitor:
    """Judge a curve at every point, paired by sample: for `PeriodicEval(monitor=…)`.

    Every `PeriodicEval` has one; by default it only says what it sees. A result that comes late (of
    a step before one that was judged already) has no verdict of its own: interim analyses have an
    order, and alpha is spent by those that were made. The next verdict takes it into account.

    Args:
        effect: The gain from the older to the newer half of the window that is worth having; a
            plateau is without it.
        alpha: Probability of any false "improving" or "regressing" over the whole curve.
        window: Evals of which the newer half is compared with the older half.
        bounds: The least and the largest possible reward; None: 0 and 1 as long as all rewards seen
            lie there, and no plateau is claimed where some do not.
        stop_on_regression: Ask to stop after so many "regressing" in a row, one a step.
        stop_on_plateau: Ask to stop after so many "plateau" in a row, one a step.

    Raises:
        InvalidInput: A setting makes no sense.
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
                    "stop_on_regression and stop_on_plateau are numbers of verdicts in a row, from "
                    f"1 on, or None, got {count!r:.100}"
                )
        self._rewards = Rewards()
        self._made: list[tuple[Key, StepVerdict]] = []
        """The last verdict of each step, and of which point."""
        self._before: Readings | None = None

    def with_terms(self, terms: Terms) -> CurveMonitor:
        """A monitor that has judged nothing yet, over the rewards that this one knows."""
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
        """Keep the rewards of a point: it may come without its outcomes later."""
        self._rewards.add(point)

    def __call__(self, points: Sequence[CurvePoint]) -> Judgement:
        """Judge the curve as it stands. Each call with a new last result is an interim analysis.

        Args:
            points: The curve so far, by step.

        Returns:
            The verdict, the best eval so far and the advice to stop; empty where nothing is new.
        """
        table = self._judge_new(points)
        if table is None:
            return Judgement()
        best = pick_best(table, draws=MONITOR_DRAWS, most=MOST_CANDIDATES)
        return Judgement(self.latest, best, self._reason_to_stop())

    def update(self, points: Sequence[CurvePoint]) -> StepVerdict | None:
        """Judge what is new, and return the last verdict; no word on the best."""
        self._judge_new(points)
        return self.latest

    def _judge_new(self, points: Sequence[CurvePoint]) -> RewardTable | None:
        """Judge what is new, and return the table of the curve; None where nothing is."""
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
