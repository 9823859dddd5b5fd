"""What a held-out curve allows one to say (improving, regressing, plateau, or cannot tell), and
which checkpoint is best.

    for said in verdicts(current_points(read_points(path)), effect=0.05):
        print(said.step, said.sentence())
    print(best_checkpoint(points).sentence())

The numbers are those of `heldout.stats` (`sequential`, `winner`); here points become looks, looks
become steps, and numbers become sentences. A look is a point with rewards: a skip is none. Looks
are paired by sample; a sample that errored at a look, or that an eval of fewer items left out, has
no reward there, and none is made up for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.midrun.curve import CurvePoint, sample_rewards
from heldout.stats import CONFIDENCE, Interval, Verdict, best_of
from heldout.stats.sequential import ALPHA, WINDOW, Comparison, Kind, Look, next_look
from heldout.stats.summaries import Floats
from heldout.stats.winner import DRAWS

EFFECT = 0.05
"""The gain over the window that is worth having, where nobody says another."""
SEED = 0
"""Of the draws behind the best checkpoint's interval: the same curve gives the same numbers."""
LEAST_ALPHA = 1e-9
"""Below it, shares of alpha are too small for the normal distribution at hand."""
LARGEST = 1e100
"""Beyond it, squares overflow."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What verdicts are about: the stated effect, alpha for the whole curve, evals in a window."""

    effect: float = EFFECT
    alpha: float = ALPHA
    window: int = WINDOW

    def __post_init__(self) -> None:
        numbers = (self.effect, self.alpha, self.window)
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
            raise InvalidInput(f"effect, alpha and window are numbers, got {numbers!r:.100}")
        if not isinstance(self.window, int):
            raise InvalidInput(f"window is a number of evals, got {self.window!r}")
        if not math.isfinite(self.effect) or 0 < self.alpha < LEAST_ALPHA:
            raise InvalidInput(
                f"effect is finite, and alpha at least {LEAST_ALPHA:g}, got {self.effect:g} and "
                f"{self.alpha:g}"
            )
        next_look([[0.0]], None, effect=self.effect, alpha=self.alpha, window=self.window)


# --- Points as looks ----------------------------------------------------------------------------

Key = tuple[str, int, str, float, int]


def key_of(point: CurvePoint) -> Key:
    """What tells a point from one that was measured again at its step."""
    return point.session, point.step, point.time, point.seconds, point.asked


@dataclass(frozen=True, slots=True)
class _Row:
    rewards: Floats
    asked: NDArray[np.bool_]


class RewardRows:
    """The rewards of points as rows over samples, in the order in which samples were first seen.

    Outcomes are needed once: a point that is known may come without them.
    """

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rows: dict[Key, _Row] = {}

    def add(self, point: CurvePoint) -> None:
        if not point.has_result or key_of(point) in self._rows:
            return
        rewards = sample_rewards(point)
        if all(reward is None for reward in rewards.values()):
            return
        largest = max(abs(reward) for reward in rewards.values() if reward is not None)
        if largest > LARGEST:
            raise InvalidInput(
                f"a reward at step {point.step} is {largest:.3g}: too large to judge"
            )
        for id in rewards:
            self._columns.setdefault(id, len(self._columns))
        places = [self._columns[id] for id in rewards]
        row, asked = np.full(len(self._columns), np.nan), np.zeros(len(self._columns), np.bool_)
        row[places] = [np.nan if reward is None else reward for reward in rewards.values()]
        asked[places] = True
        self._rows[key_of(point)] = _Row(row, asked)

    def add_all(self, points: Iterable[CurvePoint]) -> list[int]:
        """How many samples were known after each."""
        known = []
        for point in points:
            self.add(point)
            known.append(len(self._columns))
        return known

    def looks(self, points: Iterable[CurvePoint]) -> list[CurvePoint]:
        """Those of them that have rewards, which must be of one eval."""
        found = []
        for point in points:
            if key_of(point) in self._rows or (
                point.has_result and any(o.reward is not None for o in point.outcomes)
            ):
                found.append(point)
        labels = sorted({point.label for point in found})
        if len(labels) > 1:
            raise InvalidInput(
                f"the points are of several evals: {', '.join(labels)}; each has a curve of its own"
            )
        return found

    def table(self, looks: Sequence[CurvePoint]) -> Floats:
        """Looks x samples; NaN where there is no reward."""
        table = np.full((len(looks), len(self._columns)), np.nan)
        for i, point in enumerate(looks):
            row = self._rows[key_of(point)].rewards
            table[i, : len(row)] = row
        return table

    def asked(self, looks: Sequence[CurvePoint]) -> NDArray[np.bool_]:
        """Looks x samples: whether the sample was run at all, errored or not."""
        table = np.zeros((len(looks), len(self._columns)), np.bool_)
        for i, point in enumerate(looks):
            row = self._rows[key_of(point)].asked
            table[i, : len(row)] = row
        return table


def bounds_of(table: Floats) -> tuple[float, float] | None:
    """(0, 1) where all rewards lie there; None takes those seen."""
    return (0.0, 1.0) if np.nanmin(table) >= 0 and np.nanmax(table) <= 1 else None


# --- Verdicts -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """What the curve up to a step allows one to say."""

    step: int
    since: int | None
    """First step of the window that the claim is about; None where there is no claim."""
    verdict: Verdict
    """The numbers; its looks count the curve's results from 0."""
    terms: Terms
    largest: float
    """The largest gain that rewards as these could have."""

    @property
    def kind(self) -> Kind:
        return self.verdict.kind

    @property
    def comparison(self) -> Comparison | None:
        """The one that decided, or came nearest to it."""
        named = (c for c in self.verdict.comparisons if c.reference == self.verdict.reference)
        return next(named, None)

    def sentence(self) -> str:
        verdict, decided = self.verdict, self.comparison
        paired = f"paired on {_samples(decided.n)}" if decided else ""
        if verdict.kind == "plateau":
            effect, window = _number(verdict.effect), self.terms.window
            return (
                f"plateau since step {self.since}: no gain as large as {effect} "
                f"over {window} evals, {paired}"
            )
        if verdict.kind != "cannot tell" and verdict.estimate is not None:
            around = f" ({_interval(verdict.interval)})" if verdict.interval else ""
            gain = _number(verdict.estimate, sign=True)
            return f"{verdict.kind} since step {self.since}: {gain}{around}, {paired}"
        if verdict.reason == "first look":
            return "cannot tell: there is one eval"
        size = verdict.minimum_detectable
        if size is None or decided is None:
            return "cannot tell: too few rewards to compare, or all alike"
        if size > self.largest:
            return f"cannot tell: no gain could be seen on {_samples(decided.n)}"
        return (
            f"cannot tell: on {_samples(decided.n)} a gain of {_number(size)} "
            "would be seen four times in five"
        )

    def as_dict(self) -> dict[str, Any]:
        verdict, decided = self.verdict, self.comparison
        return {
            "kind": verdict.kind,
            "since": self.since,
            "gain": verdict.estimate,
            "ci_low": verdict.interval.low if verdict.interval else None,
            "ci_high": verdict.interval.high if verdict.interval else None,
            "minimum_detectable": verdict.minimum_detectable,
            "n": decided.n if decided else None,
            "effect": self.terms.effect,
            "alpha": self.terms.alpha,
            "window": self.terms.window,
        }


def verdicts(
    points: Sequence[CurvePoint],
    *,
    effect: float = EFFECT,
    alpha: float = ALPHA,
    window: int = WINDOW,
) -> list[StepVerdict]:
    """The verdict at every look of one curve (`current_points`, of one label), in order."""
    rows, terms = RewardRows(), Terms(effect, alpha, window)
    looks = rows.looks(points)
    known = rows.add_all(looks)
    table, steps = rows.table(looks), [point.step for point in looks]
    made: list[StepVerdict] = []
    before: Look | None = None
    for i, samples in enumerate(known):
        before, said = look_at(table[: i + 1, :samples], steps[: i + 1], before, terms)
        made.append(said)
    return made


def look_at(
    table: Floats, steps: Sequence[int], before: Look | None, terms: Terms
) -> tuple[Look, StepVerdict]:
    """The verdict at the last row (looks x samples), given the look that was made before it."""
    bounds = bounds_of(table)
    look = next_look(
        table, before, effect=terms.effect, alpha=terms.alpha, window=terms.window, bounds=bounds
    )
    since = look.verdict.since
    largest = 1.0 if bounds else float(np.nanmax(table) - np.nanmin(table))
    return look, StepVerdict(
        step=steps[-1],
        since=None if since is None else steps[since],
        verdict=look.verdict,
        terms=terms,
        largest=largest,
    )


def terms_of(points: Iterable[CurvePoint]) -> Terms:
    """Those of the last verdict that is on the curve. A curve may come from anywhere: what cannot
    be meant is not taken."""
    for point in reversed(list(points)):
        said = point.verdict or {}
        try:
            return Terms(said["effect"], said["alpha"], said["window"])
        except (KeyError, InvalidInput, OverflowError):
            continue
    return Terms()


# --- The best checkpoint ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Best:
    """The checkpoint with the highest mean reward, and what it is worth once it has been picked."""

    step: int
    weights: str | None
    run: str | None
    """The directory, below the run's, that has its conversations. Never followed: only shown."""
    raw: float
    """Its mean as measured, over the samples that have a reward: it overstates."""
    estimate: float | None
    """Less the luck that picking the maximum brings; None: it was not computed, or nothing says
    how much rewards could differ, as is so for the interval."""
    interval: Interval | None
    candidates: int
    """Evals it was picked from: those of all samples that are compared."""
    left_out: int
    """Evals that lack some of those samples: a mean of others would be another mean."""
    n: int
    """Samples that it has a reward for, of those compared."""
    confidence: float

    def sentence(self) -> str:
        words = f"best: step {self.step}, "
        if self.estimate is None or self.interval is None:
            words += f"{_number(self.raw)} as measured, not corrected for picking it"
        elif self.candidates == 1:
            words += f"{_number(self.raw)} ({_interval(self.interval)}), the only one to pick from"
        else:
            words += (
                f"{_number(self.estimate)} ({_interval(self.interval)}, corrected for picking the "
                f"best of {self.candidates}; {_number(self.raw)} as measured)"
            )
        words += f", on {_samples(self.n)}"
        if self.left_out:
            evals = "1 eval" if self.left_out == 1 else f"{self.left_out} evals"
            words += f"; {evals} of fewer samples left out"
        return words

    def as_dict(self) -> dict[str, Any]:
        return {
            "best_step": self.step,
            "best_estimate": self.estimate,
            "best_ci_low": self.interval.low if self.interval else None,
            "best_ci_high": self.interval.high if self.interval else None,
        }


def best_checkpoint(points: Sequence[CurvePoint], confidence: float = CONFIDENCE) -> Best | None:
    """The best checkpoint of one curve; None where no two samples can be compared.

    Checkpoints are compared on the samples that at least half of the evals have run; one that
    lacks some of those is no candidate, and is counted. A budget or a time limit takes a beginning
    of one fixed order, so these samples are a beginning of it, too.
    """
    rows = RewardRows()
    looks = rows.looks(points)
    rows.add_all(looks)
    return pick(rows, looks, confidence=confidence)


def pick(
    rows: RewardRows,
    looks: Sequence[CurvePoint],
    *,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
    most: int | None = None,
) -> Best | None:
    """`best_checkpoint`, of rows; uncorrected where there are more than `most` candidates."""
    if not looks:
        return None
    table, asked = rows.table(looks), rows.asked(looks)
    compared = 2 * asked.sum(axis=0) >= len(looks)
    rewards = table[:, compared]
    counts = (~np.isnan(rewards)).sum(axis=1)
    places = np.flatnonzero(asked[:, compared].all(axis=1) & (counts >= 2))
    if not len(places):
        return None
    rewards, bounds = rewards[places], bounds_of(table)
    estimate, interval = None, None
    if (most is None or len(places) <= most) and (bounds or np.nanmax(table) > np.nanmin(table)):
        won = best_of(rewards, seed=SEED, confidence=confidence, draws=draws, bounds=bounds)
        index, raw, estimate, interval = won.index, won.raw, won.estimate, won.interval
    else:
        means = np.nanmean(rewards, axis=1)
        index, raw = int(np.argmax(means)), float(means.max())
    point = looks[places[index]]
    return Best(
        step=point.step,
        weights=point.weights,
        run=point.run,
        raw=raw,
        estimate=estimate,
        interval=interval,
        candidates=len(places),
        left_out=len(looks) - len(places),
        n=int(counts[places[index]]),
        confidence=confidence,
    )


# --- Words --------------------------------------------------------------------------------------


def _number(value: float, *, sign: bool = False) -> str:
    plus = "+" if sign else ""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:{plus}.3f}"
    return f"{value:{plus}.3g}"


def _interval(interval: Interval) -> str:
    return f"{_number(interval.low)} … {_number(interval.high)}"


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"
