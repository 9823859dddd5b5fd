"""What a held-out curve allows one to say: improving, regressing, plateau, or cannot tell.

    for said in verdicts(current_points(read_points(path)), effect=0.05):
        print(said.step, said.sentence())

The numbers are those of `heldout.stats.sequential`; here points become looks
(`RewardRows`), looks become steps, and numbers become sentences. Looks are paired by sample. The
best eval (`best_checkpoint`) is reported as one that was picked for being best: the highest of many
points is high partly by luck, and `heldout.stats.winner` takes that off.

Errors have two readings (clause 22): left out, and as a reward of 0. "improving" and "plateau" are
said where both say so, "regressing" where the second does and the first does not say improving: a
training that collapses into errors has no rewards left that could fall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.stats import CONFIDENCE, Interval, Verdict, best_of
from heldout.stats.sequential import ALPHA, WINDOW, Comparison, Kind, Look, next_look
from heldout.stats.summaries import Floats, Ints
from heldout.stats.winner import DRAWS
from heldout.training.curve import CurvePoint
from heldout.words import interval, number, samples
from heldout.words import interval as words_of

EFFECT = 0.05
"""The gain over the window that is worth having, where nobody says another."""
LEAST_ALPHA = 1e-9
"""Below it, shares of alpha are too small for the normal distribution at hand."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What verdicts are about: the stated effect, alpha for the whole curve, evals in a window,
    and the least and the largest reward there can be.

    Without `bounds` rewards are taken to lie between 0 and 1 as long as all that were seen do;
    beyond that nobody knows how large one can be, and no plateau is claimed.
    """

    effect: float = EFFECT
    alpha: float = ALPHA
    window: int = WINDOW
    bounds: Bounds | None = None

    def __post_init__(self) -> None:
        numbers = (self.effect, self.alpha, self.window)
        if not all(_is_number(n) for n in numbers):
            raise InvalidInput(f"effect, alpha and window are numbers, got {numbers!r:.100}")
        if not isinstance(self.window, Integral):
            raise InvalidInput(f"window is a number of evals, got {self.window!r}")
        if not math.isfinite(self.effect) or 0 < self.alpha < LEAST_ALPHA:
            raise InvalidInput(
                f"effect is finite, and alpha at least {LEAST_ALPHA:g}, got {self.effect:g} and "
                f"{self.alpha:g}"
            )
        # Plain ones, whatever numbers were given: they are compared, and stored as JSON.
        object.__setattr__(self, "effect", float(self.effect))
        object.__setattr__(self, "alpha", float(self.alpha))
        object.__setattr__(self, "window", int(self.window))
        object.__setattr__(self, "bounds", _checked_bounds(self.bounds))
        next_look([[0.0]], None, effect=self.effect, alpha=self.alpha, window=self.window)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _checked_bounds(given: Any) -> Bounds | None:
    if given is None:
        return None
    pair = tuple(given) if isinstance(given, list | tuple) else ()
    if len(pair) == 2 and all(_is_number(end) for end in pair):
        low, high = float(pair[0]), float(pair[1])
        if math.isfinite(high - low) and low < high:
            return low, high
    raise InvalidInput(
        f"bounds are the least and the largest reward there can be, (0, 1) say, got {given!r:.100}"
    )


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
    bounds: Bounds | None
    """The least and the largest reward that were taken to be possible; None: nobody knows."""
    largest: float
    """The largest gain that rewards as these could have."""
    between: tuple[int, int, int, int] | None
    """Steps: the first and the last of those compared with, and of the newest ones."""
    readings: tuple[Kind, Kind]
    """What is said without the items that errored, and with them as 0."""
    errored: int
    """Items that errored at the evals compared."""
    errored_as: float | None
    """The reward that they count as in these numbers; None: they are left out."""

    @property
    def kind(self) -> Kind:
        return self.verdict.kind

    @property
    def comparison(self) -> Comparison | None:
        """The one that decided, or came nearest to it."""
        return _named(self.verdict)

    def sentence(self) -> str:
        verdict, decided = self.verdict, self.comparison
        paired = f"paired on {samples(decided.n)}" if decided else ""
        if self.errored_as is not None:
            paired += f", with {self._errors()}"
        if verdict.kind == "plateau":
            effect, window = number(verdict.effect), self.terms.window
            return (
                f"plateau since step {self.since}: no steady gain as large as {effect} "
                f"over {window} evals, {paired}"
            )
        if verdict.kind != "cannot tell" and verdict.estimate is not None:
            around = (
                f" ({interval(verdict.interval.low, verdict.interval.high)})"
                if verdict.interval
                else ""
            )
            gain = number(verdict.estimate, sign=True)
            return f"{verdict.kind}: {gain}{around} {self._steps()}, {paired}"
        return self._why_not()

    def short(self) -> str:
        """For where there is little room: the kind, and the gain where one is claimed."""
        gain = self.verdict.estimate
        if gain is None or self.kind not in ("improving", "regressing"):
            return self.kind
        return f"{self.kind} {number(gain, sign=True)}"

    def _steps(self) -> str:
        assert self.between is not None
        first, last, newer, newest = self.between
        if first == last and newer == newest:
            return f"from step {first} to step {newest}"
        return f"from steps {first}–{last} to {newer}–{newest}"

    def _errors(self) -> str:
        items = "1 errored item" if self.errored == 1 else f"{self.errored} errored items"
        worth = self.errored_as or 0.0
        return f"{items} as {number(worth) if worth else 0}"

    def _why_not(self) -> str:
        verdict, decided = self.verdict, self.comparison
        scored, counted = self.readings
        if scored != counted:
            if scored == "cannot tell":
                return f"cannot tell without the errored items; {counted} with {self._errors()}"
            if counted == "cannot tell":
                return f"cannot tell with {self._errors()}; {scored} without them"
            with_them = f"{counted} with {self._errors()}"
            return f"cannot tell: {scored} without the errored items, {with_them}"
        if verdict.reason == "first look":
            return "cannot tell: there is one eval"
        if _turned(verdict):
            return (
                "cannot tell: up since the start, but down over the last "
                f"{self.terms.window} evals, which cannot be told from chance"
            )
        size = verdict.minimum_detectable
        if size is None or decided is None:
            return "cannot tell: too few rewards to compare, or all alike"
        if size > self.largest:
            return f"cannot tell: no gain could be seen on {samples(decided.n)}"
        return (
            f"cannot tell: on {samples(decided.n)} a gain of {number(size)} "
            "would be seen four times in five"
        )

    def as_dict(self) -> dict[str, Any]:
        verdict, decided = self.verdict, self.comparison
        steps = self.between or (None,) * 4
        return {
            "kind": verdict.kind,
            "text": self.sentence(),
            "since": self.since,
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


def verdicts(
    points: Sequence[CurvePoint],
    *,
    effect: float = EFFECT,
    alpha: float = ALPHA,
    window: int = WINDOW,
    bounds: Bounds | None = None,
) -> list[StepVerdict]:
    """The verdict at every look of one curve (`current_points`, of one label), in order of steps.

    Where results came late, they were judged in another order while the policy trained.
    """
    rows, terms = RewardRows(), Terms(effect, alpha, window, bounds)
    looks = rows.looks(points)
    if not looks:
        return []
    tables = rows.tables(looks, terms.bounds)
    made: list[StepVerdict] = []
    before: Readings | None = None
    for look in range(len(tables)):
        before, said = look_at(tables, look, before, terms)
        made.append(said)
    return made


@dataclass(frozen=True, slots=True)
class Readings:
    """A look in both readings; one and the same where nothing has errored."""

    scored: Look
    counted: Look


def look_at(
    tables: Tables, look: int, before: Readings | None, terms: Terms
) -> tuple[Readings, StepVerdict]:
    """The verdict at a look, given the one that was made before it."""
    bounds = tables.bounds(look)

    def read(table: Floats, seen: Bounds, earlier: Look | None) -> Look:
        return next_look(
            table,
            earlier,
            effect=terms.effect,
            alpha=terms.alpha,
            window=terms.window,
            bounds=bounds,
            seen=seen,
        )

    seen = tables.seen(look)
    scored = counted = read(tables.scored(look), seen, before.scored if before else None)
    if tables.has_errors(look):
        worth = tables.counted_as(look)
        seen = min(seen[0], worth), max(seen[1], worth)
        counted = read(tables.counted(look), seen, before.counted if before else None)
    kinds = scored.verdict.kind, counted.verdict.kind
    verdict, with_errors = _both(scored.verdict, counted.verdict)
    steps, decided = tables.steps, _named(verdict)
    between, errored = None, 0
    if decided is not None:
        ends = (*decided.old, *decided.new)
        between = (steps[ends[0]], steps[ends[1]], steps[ends[2]], steps[ends[3]])
        errored = tables.errors(*decided.old) + tables.errors(*decided.new)
    differ = kinds[0] != kinds[1]
    return Readings(scored, counted), StepVerdict(
        step=steps[look],
        since=None if verdict.since is None else steps[verdict.since],
        verdict=verdict,
        terms=terms,
        bounds=bounds,
        largest=tables.range(look),
        between=between,
        readings=kinds,
        # Where they differ by what was said at earlier looks, all that ever errored is why.
        errored=errored or (tables.errors(0, look) if differ else 0),
        errored_as=tables.counted_as(look) if with_errors or differ else None,
    )


def _both(scored: Verdict, counted: Verdict) -> tuple[Verdict, bool]:
    """What two readings allow one to say together, and whether its numbers count what errored."""
    if scored.kind == counted.kind:
        return scored, False
    if counted.kind == "regressing" and scored.kind != "improving":
        return counted, True
    if scored.kind == "cannot tell":
        return scored, False
    if counted.kind == "cannot tell":
        return counted, True
    return replace(scored, kind="cannot tell", since=None), False


def _named(verdict: Verdict) -> Comparison | None:
    named = (c for c in verdict.comparisons if c.reference == verdict.reference)
    return next(named, None)


def _turned(verdict: Verdict) -> bool:
    """Whether it rose over the whole curve, and has come down since, as far as can be seen."""
    by = {comparison.reference: comparison for comparison in verdict.comparisons}
    first, recent = by.get("first"), by.get("window")
    if first is None or recent is None or first.interval is None or recent.estimate is None:
        return False
    return first.interval.low > 0 > recent.estimate


def terms_of(points: Iterable[CurvePoint]) -> Terms:
    """Those of the last verdict that is on the curve. A curve may come from anywhere: what cannot
    be meant is not taken."""
    for point in reversed(list(points)):
        said = point.verdict or {}
        try:
            # 0 and 1 are what rewards between them get anyway, as long as all lie there.
            bounds = said.get("bounds")
            bounds = None if bounds == [0, 1] else bounds
            return Terms(said["effect"], said["alpha"], said["window"], bounds)
        except (KeyError, InvalidInput, OverflowError):
            continue
    return Terms()


# --- The points of a curve as tables, looks x samples, in the two readings that error -------------

LARGEST = 1e100
"""Beyond it, squares overflow."""

Bounds = tuple[float, float]
Key = tuple[str, int, str, float, int]


def key_of(point: CurvePoint) -> Key:
    """What tells a point from one that was measured again at its step."""
    return point.session, point.step, point.time, point.seconds, point.asked


@dataclass(frozen=True, slots=True)
class _Row:
    rewards: Floats
    """Of each sample; NaN where it has no score."""
    errored: Floats
    """Which share of its items errored; NaN where it was not run."""
    items: int
    """Items that errored."""
    low: float
    high: float
    """Of the rewards; inf and -inf where there are none."""


class RewardRows:
    """The rewards of points as rows over samples, in the order in which samples were first seen.

    Outcomes are needed once: a point that is known may come without them.
    """

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rows: dict[Key, _Row] = {}
        self._places: tuple[list[str], NDArray[np.intp]] = ([], np.zeros(0, np.intp))
        """Of the ids of the last point: the next one mostly has the same."""

    def add(self, point: CurvePoint) -> None:
        if not point.has_result or not point.outcomes or key_of(point) in self._rows:
            return
        nan = math.nan
        scores = np.array(
            [nan if o.reward is None or o.error is not None else o.reward for o in point.outcomes]
        )
        wrong = np.isnan(scores)
        low = float(np.fmin.reduce(scores, initial=math.inf))
        high = float(np.fmax.reduce(scores, initial=-math.inf))
        largest = max(-low, high)
        if largest > LARGEST:
            raise InvalidInput(
                f"a reward at step {point.step} is {largest:.3g}: too large to judge"
            )
        places = self._places_of(point)
        samples = len(self._columns)
        items = np.bincount(places, minlength=samples)
        errors = np.bincount(places[wrong], minlength=samples)
        sums = np.bincount(places[~wrong], weights=scores[~wrong], minlength=samples)
        scored = items - errors
        row = np.where(scored > 0, sums / np.maximum(scored, 1), nan)
        errored = np.where(items > 0, errors / np.maximum(items, 1), nan)
        self._rows[key_of(point)] = _Row(row, errored, int(wrong.sum()), low, high)

    def _places_of(self, point: CurvePoint) -> NDArray[np.intp]:
        ids = [outcome.copy_of or outcome.id for outcome in point.outcomes]
        if ids != self._places[0]:
            columns = self._columns
            found = [columns.setdefault(id, len(columns)) for id in ids]
            self._places = ids, np.array(found, np.intp)
        return self._places[1]

    def looks(self, points: Iterable[CurvePoint]) -> list[CurvePoint]:
        """Those of them that are looks, which must be of one eval."""
        found = [
            point
            for point in points
            if point.has_result and (point.outcomes or key_of(point) in self._rows)
        ]
        labels = sorted({point.label for point in found})
        if len(labels) > 1:
            raise InvalidInput(
                f"the points are of several evals: {', '.join(labels)}; each has a curve of its own"
            )
        return found

    def tables(self, looks: Sequence[CurvePoint], bounds: Bounds | None = None) -> Tables:
        """`bounds` are the least and the largest reward there can be, where somebody knows."""
        known = []
        for point in looks:
            self.add(point)
            known.append(len(self._columns))
        rows = [self._rows[key_of(point)] for point in looks]
        return Tables(
            [point.step for point in looks],
            _stacked([row.rewards for row in rows], len(self._columns)),
            [row.errored for row in rows],
            np.array([row.items for row in rows], np.int64),
            np.minimum.accumulate(np.array([row.low for row in rows])),
            np.maximum.accumulate(np.array([row.high for row in rows])),
            known,
            bounds,
        )


class Tables:
    """Looks x samples, as they were at each look: with the samples known by then.

    What is seen is carried along from look to look: a long curve is not searched at each of them.
    """

    def __init__(
        self,
        steps: list[int],
        scored: Floats,
        errored: list[Floats],
        items: Ints,
        lows: Floats,
        highs: Floats,
        known: list[int],
        bounds: Bounds | None,
    ) -> None:
        self.steps = steps
        self._scored, self._shares, self._items = scored, errored, items
        self._lows, self._highs = lows, highs
        self._known, self._given = known, bounds
        self._ever = np.cumsum(items)
        self._counted: tuple[float, Floats] | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def scored(self, look: int) -> Floats:
        return self._scored[: look + 1, : self._known[look]]

    def counted(self, look: int) -> Floats:
        """With what errored as `counted_as`; the scored one where nothing errored up to here."""
        if not self._ever[look]:
            return self.scored(look)
        worth = self.counted_as(look)
        if self._counted is None or self._counted[0] != worth:
            scored = np.where(np.isnan(self._scored), 0.0, self._scored)
            whole = scored * (1 - self._errored) + worth * self._errored
            self._counted = worth, whole
        return self._counted[1][: look + 1, : self._known[look]]

    @cached_property
    def _errored(self) -> Floats:
        return _stacked(self._shares, self._scored.shape[1])

    @property
    def errored(self) -> Floats:
        """Which share of a sample's items errored; NaN where it was not run."""
        return self._errored

    def errors(self, first: int, last: int) -> int:
        """Items that errored at these looks."""
        return int(self._items[first : last + 1].sum())

    def has_errors(self, look: int) -> bool:
        return bool(self._ever[look])

    def has_rewards(self, look: int) -> bool:
        return math.isfinite(self._lows[look])

    def seen(self, look: int) -> Bounds:
        """The least and the largest reward so far; inf and -inf where there are none."""
        return float(self._lows[look]), float(self._highs[look])

    def counted_as(self, look: int) -> float:
        """What an errored item is worth: no reward is lower."""
        worth = float(min(0.0, self._lows[look]))
        return worth if self._given is None else max(worth, self._given[0])

    def bounds(self, look: int) -> Bounds | None:
        """As given; else (0, 1) where all rewards seen lie there; else nobody knows."""
        if self._given is not None:
            return self._given
        return (0.0, 1.0) if self._lows[look] >= 0 and self._highs[look] <= 1 else None

    def range(self, look: int) -> float:
        """How far apart two rewards can be, as far as is known."""
        bounds = self.bounds(look)
        low, high = bounds or (float(self._lows[look]), float(self._highs[look]))
        return high - (min(low, self.counted_as(look)) if self.has_errors(look) else low)


def _stacked(rows: Sequence[Floats], samples: int) -> Floats:
    table = np.full((len(rows), samples), np.nan)
    for i, row in enumerate(rows):
        table[i, : len(row)] = row
    return table


# --- The best eval of a held-out curve, as one that was picked for being best ---------------------

SEED = 0
"""Of the draws behind its interval: the same curve gives the same numbers."""


@dataclass(frozen=True, slots=True)
class Best:
    """The eval with the highest mean reward, and what it is worth once it has been picked. Whether
    its weights were saved nobody knows here."""

    step: int
    weights: str | None
    run: str | None
    """The directory, below the run's, that has its conversations. Never followed: only shown."""
    raw: float
    """Its mean as measured, what errored counted: it overstates."""
    estimate: float | None
    """Less the luck that picking the maximum brings; None: it was not computed, or nothing says
    how much rewards could differ, as is so for the interval."""
    interval: Interval | None
    candidates: int
    """Evals it was picked from: those of all samples that are compared."""
    left_out: int
    """Evals that lack some of those samples: a mean of others would be another mean."""
    n: int
    """Samples compared."""
    confidence: float
    errored: int = 0
    """Samples of those with an item that errored at this eval."""
    errored_as: float = 0.0
    """The reward that such an item counts as."""

    def sentence(self) -> str:
        words = f"best eval: step {self.step}{' (before training)' * (self.step == 0)}, "
        around = words_of(self.interval.low, self.interval.high) if self.interval else None
        if self.candidates == 1:
            how = f" ({around})" if around else " as measured"
            words += f"{number(self.raw)}{how}, the only one to pick from"
        elif self.estimate is None or around is None:
            words += (
                f"{number(self.raw)} as measured, not corrected for picking the best of "
                f"{self.candidates}"
            )
        else:
            words += (
                f"{number(self.estimate)} ({around}, corrected for picking the best of "
                f"{self.candidates}; {number(self.raw)} as measured)"
            )
        words += f", on {samples(self.n)}"
        if self.errored:
            worth = number(self.errored_as) if self.errored_as else "0"
            words += f", {self.errored} of them errored, counted as {worth}"
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


NO_BEST: dict[str, Any] = dict.fromkeys(
    ("best_step", "best_estimate", "best_ci_low", "best_ci_high")
)
"""`Best.as_dict` where there is none."""


def best_checkpoint(
    points: Sequence[CurvePoint],
    confidence: float = CONFIDENCE,
    *,
    bounds: Bounds | None = None,
    most: int | None = None,
) -> Best | None:
    """The best eval of one curve; None where no two samples can be compared.

    Evals are compared on the samples that at least half of them have run; one that lacks some of
    those is no candidate, and is counted. A budget or a time limit takes a beginning of one fixed
    order, so these samples are a beginning of it, too. What errored counts as 0, or as the least
    reward seen: else an eval of three good answers and 97 errors would be the best one.
    Uncorrected where there are more than `most` candidates: the cost grows with their cube.
    """
    rows = RewardRows()
    looks = rows.looks(points)
    if not looks:
        return None
    return pick(looks, rows.tables(looks, bounds), confidence=confidence, most=most)


def pick(
    looks: Sequence[CurvePoint],
    tables: Tables,
    *,
    confidence: float = CONFIDENCE,
    draws: int = DRAWS,
    most: int | None = None,
) -> Best | None:
    """`best_checkpoint`, of tables."""
    last = len(looks) - 1
    asked = ~np.isnan(tables.errored)
    compared = 2 * asked.sum(axis=0) >= len(looks)
    places = np.flatnonzero(asked[:, compared].all(axis=1))
    count = int(compared.sum())
    if not len(places) or count < 2 or not tables.has_rewards(last):
        return None
    rewards, bounds = tables.counted(last)[:, compared][places], tables.bounds(last)
    estimate, interval = None, None
    if (most is None or len(places) <= most) and (bounds or rewards.max() > rewards.min()):
        won = best_of(rewards, seed=SEED, confidence=confidence, draws=draws, bounds=bounds)
        index, raw, estimate, interval = won.index, won.raw, won.estimate, won.interval
    else:
        means = rewards.mean(axis=1)
        index, raw = int(np.argmax(means)), float(means.max())
    place = int(places[index])
    point = looks[place]
    return Best(
        step=point.step,
        weights=point.weights,
        run=point.run,
        raw=raw,
        estimate=estimate,
        interval=interval,
        candidates=len(places),
        left_out=len(looks) - len(places),
        n=count,
        confidence=confidence,
        errored=int((tables.errored[place, compared] > 0).sum()),
        errored_as=tables.counted_as(last),
    )
