"""What a held-out curve allows one to say: improving, regressing, plateau, or cannot tell.

    for said in verdicts(current_points(read_points(path)), effect=0.05):
        print(said.step, said.sentence())

The numbers are those of `heldout.stats.sequential`; here points become looks
(`looks.py`), looks become steps, and numbers become sentences. Looks are paired by sample.

Errors have two readings (clause 22): left out, and as a reward of 0. "improving" and "plateau" are
said where both say so, "regressing" where the second does and the first does not say improving: a
training that collapses into errors has no rewards left that could fall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

from heldout.errors import InvalidInput
from heldout.stats import Verdict
from heldout.stats.sequential import ALPHA, WINDOW, Comparison, Kind, Look, next_look
from heldout.stats.summaries import Floats
from heldout.training.curve import CurvePoint
from heldout.training.looks import Bounds, RewardRows, Tables
from heldout.words import interval, number, samples

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
