"""Verdicts on a held-out curve: improving, regressing, plateau or inconclusive, as of now.

    for verdict in judge_points(current_points(read_points(path)), effect=0.05):
        print(verdict.step, verdict.sentence())

A curve answers three questions, in this order: is it still improving (the verdict), has it
improved since its start (`SinceStart`), and which step is best (`curve/rewards.py`). All three are
stored on a point as one dict. `answers` and `short_verdict` are its words, and `with_verdicts`
says which one a reader gets.

The statistics are in `heldout.stats.sequential`. Here points become tables of rewards
(`RewardTable`), and verdicts become steps and sentences.

Errored items are handled in two ways (clause 22): left out, and as a reward of 0. "improving" and
"plateau" need both. "regressing" needs only the second, if the first does not say improving: a
training run that collapses into errors has no rewards left that could fall.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from heldout._core.format import interval as interval_text
from heldout._core.format import number, samples
from heldout.errors import InvalidInput
from heldout.stats import Verdict
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
from heldout.training.curve.points import CurvePoint
from heldout.training.curve.rewards import (
    MOST_CANDIDATES,
    BestPoint,
    Bounds,
    PointKey,
    Rewards,
    RewardTable,
    Steps,
    best_as_dict,
    best_checkpoint,
    key_of,
    pick_best,
)

EFFECT = 0.05
CORRECTED_EVALS = 500
"""Evals up to which readers get a corrected best: with more it takes minutes."""


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


_NO_START = dict.fromkeys(
    ("since_start", "since_start_gain", "since_start_ci_low", "since_start_ci_high")
) | {"since_start_text": None}


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


# --- Stored verdicts ------------------------------------------------------------------------------


def answers(verdict: Mapping[str, Any]) -> list[str]:
    """Return what a stored verdict says, in sentences, in the order of the questions.

    Args:
        verdict: `verdict` of a point: a dict, as in `curve.jsonl`.

    Returns:
        Whether the curve still improves, whether it has improved since its start, and which step is
        best. What is not known is left out.
    """
    texts = (verdict.get(key) for key in ("text", "since_start_text", "best_text"))
    return [text for text in texts if isinstance(text, str)]


def short_verdict(verdict: Mapping[str, Any]) -> str:
    """Return a stored verdict for narrow columns: its kind, and the gain if one is claimed."""
    kind, gain = verdict.get("kind"), verdict.get("gain")
    if kind not in ("improving", "regressing") or not isinstance(gain, int | float):
        return str(kind)
    return f"{kind} {number(gain, sign=True)}"


def with_verdicts(
    points: Sequence[CurvePoint], terms: Terms | None = None, *, anew: bool = False
) -> list[CurvePoint]:
    """Return the points of one label with the verdicts that every reader of the curve gets.

    A stored verdict is that one. It is computed where none is stored (the process ended before),
    where an earlier version stored it without all answers, and where it is asked for anew.

    Args:
        points: The curve, from `current_points`.
        terms: The settings of what is computed; None: those of `terms_of`.
        anew: Whether stored verdicts are replaced, because the settings are others.

    Raises:
        InvalidInput: The points have several labels, or no verdict can be made of their rewards.
    """
    judged = [point for point in points if point.has_result and point.outcomes]
    if not judged:
        return list(points)
    newest = judged[-1]
    stored = newest.verdict or {}
    has_all = not anew and "since_start_text" in stored
    made: dict[int, dict[str, Any]] = {}
    terms = terms or terms_of(points)
    if not has_all or not all(point.verdict for point in judged):
        made = {
            verdict.step: verdict.as_dict() for verdict in judge_points(points, **asdict(terms))
        }
    last = stored if has_all else made[newest.step]
    if last.get("best_estimate") is None:  # beyond `MOST_CANDIDATES`, it is not stored
        best = best_checkpoint(points, bounds=terms.bounds, most=CORRECTED_EVALS)
        last = {**last, **best_as_dict(best)}
    filled = []
    for point in points:
        verdict = point.verdict
        if point is newest:
            verdict = last
        elif anew or verdict is None:
            # The best is known as of the last step alone.
            verdict = {**made[point.step], **best_as_dict(None)} if point.step in made else None
        filled.append(msgspec.structs.replace(point, verdict=verdict))
    return filled


def stored_kind(point: CurvePoint) -> VerdictKind | None:
    """Return the kind of the verdict stored on a point, or None."""
    kind = (point.verdict or {}).get("kind")
    if kind == "cannot tell":  # the word of earlier versions
        return "inconclusive"
    return kind if kind in get_args(VerdictKind) else None


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
        enough = n
        while _least_plateau(enough, self.terms) >= self.terms.effect:
            enough *= 2
        low = enough // 2
        while enough - low > 1:
            middle = (low + enough) // 2
            reaches = _least_plateau(middle, self.terms) < self.terms.effect
            low, enough = (low, middle) if reaches else (middle, enough)
        return (
            f"{text} with {samples(n)}: even if none of them ever changes, gains up to "
            f"{number(least)} remain possible, and effect is {number(self.terms.effect)}. Use "
            f"{samples(enough)} at least, or a larger effect"
        )

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
