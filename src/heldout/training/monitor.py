"""CurveMonitor: judges a curve as it grows, and advises to stop only where it is told to.

    PeriodicEval(…, monitor=CurveMonitor(effect=0.03, stop_on_regression=2, stop_on_plateau=5))

Every `PeriodicEval` has one; by default it only says what it sees. A result that comes late (of a
step before one that was judged already) has no verdict of its own: looks have an order, and alpha
is spent by looks that were made. The next verdict takes it into account.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from heldout.errors import InvalidInput
from heldout.stats.sequential import ALPHA, WINDOW, advise
from heldout.training.curve import CurvePoint
from heldout.training.verdicts import (
    EFFECT,
    NO_BEST,
    Best,
    Bounds,
    Key,
    Readings,
    RewardRows,
    StepVerdict,
    Tables,
    Terms,
    key_of,
    look_at,
    pick,
)

MOST_CANDIDATES = 100
"""Evals up to which the best one is corrected at every point: the cost grows with their
cube, and more so where BLAS threads find no free core."""
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a monitor says of a curve."""

    verdict: StepVerdict | None = None
    """None: the newest point changed nothing that could be judged."""
    best: Best | None = None
    stop: str | None = None
    """Why training should stop."""

    def as_dict(self) -> dict[str, Any] | None:
        """As a point of the curve has it."""
        if self.verdict is None:
            return None
        return {**self.verdict.as_dict(), **(self.best.as_dict() if self.best else NO_BEST)}


@dataclass(frozen=True, slots=True)
class _Made:
    """What was said at a step."""

    key: Key
    said: StepVerdict


class CurveMonitor:
    """For `PeriodicEval(monitor=…)`: a verdict at every point, paired by sample.

    `effect` is the gain over `window` evals that is worth having, and what a plateau is without.
    Over all looks together a false "improving" or "regressing" is said with a probability of at
    most `alpha`. `bounds` are the least and the largest reward there can be; without them, 0 and 1
    as long as all rewards seen lie there, and where some do not, no plateau is claimed. With
    `stop_on_regression` or `stop_on_plateau` it asks to stop after so many such verdicts in a row,
    one a step, never because one mean is below another.
    """

    def __init__(
        self,
        effect: float = EFFECT,
        alpha: float = ALPHA,
        window: int = WINDOW,
        *,
        bounds: Bounds | None = None,
        stop_on_regression: int | None = None,
        stop_on_plateau: int | None = None,
    ) -> None:
        self.terms = Terms(effect, alpha, window, bounds)
        for name, count in (
            ("stop_on_regression", stop_on_regression),
            ("stop_on_plateau", stop_on_plateau),
        ):
            if count is not None and (
                isinstance(count, bool) or not isinstance(count, Integral) or count < 1
            ):
                raise InvalidInput(
                    f"{name} is a number of verdicts in a row, from 1 on, or None, "
                    f"got {count!r:.100}"
                )
        self._stop_on_regression, self._stop_on_plateau = stop_on_regression, stop_on_plateau
        self._rows = RewardRows()
        self._made: list[_Made] = []
        """The last verdict of each step."""
        self._before: Readings | None = None
        """The last look."""

    def under(self, terms: Terms) -> CurveMonitor:
        """One that has made no look yet, over the rewards that this one knows."""
        other = CurveMonitor(terms.effect, terms.alpha, terms.window, bounds=terms.bounds)
        other._rows = self._rows
        return other

    @property
    def latest(self) -> StepVerdict | None:
        """The last verdict."""
        return self._made[-1].said if self._made else None

    def note(self, point: CurvePoint) -> None:
        """Keep its rewards: it may be asked about without its outcomes later."""
        self._rows.add(point)

    def __call__(self, points: Sequence[CurvePoint]) -> Judgement:
        """The curve as it stands, by step. Each call is a look, if there is a new last result."""
        looks, tables = self._look(points)
        if tables is None:
            return Judgement()
        best = pick(looks, tables, draws=DRAWS, most=MOST_CANDIDATES)
        return Judgement(self._made[-1].said, best, self._advice())

    def catch_up(self, points: Sequence[CurvePoint]) -> StepVerdict | None:
        """The last verdict, once what is new has been judged; no word on the best."""
        self._look(points)
        return self.latest

    def _look(self, points: Sequence[CurvePoint]) -> tuple[list[CurvePoint], Tables | None]:
        """Judge what is new; None where nothing is."""
        looks = self._rows.looks(points)
        there = {(point.session, point.step) for point in looks}
        if any(made.key[:2] not in there for made in self._made):
            self._made, self._before = [], None  # training went back: another curve from there on
        last = self._made[-1].key if self._made else None
        fresh = [i for i, point in enumerate(looks) if last is None or _is_after(point, last)]
        if not fresh:
            return looks, None
        tables = self._rows.tables(looks, self.terms.bounds)
        for i in fresh:
            self._before, said = look_at(tables, i, self._before, self.terms)
            if self._made and self._made[-1].said.step == said.step:
                self._made.pop()  # measured again: one verdict a step
            self._made.append(_Made(key_of(looks[i]), said))
        return looks, tables

    def _advice(self) -> str | None:
        advice = advise(
            [made.said.verdict for made in self._made],
            regressing=self._stop_on_regression,
            plateau=self._stop_on_plateau,
        )
        if not advice.stop:
            return None
        reason = self._made[-1].said.sentence()
        return reason if advice.in_a_row == 1 else f"{reason}, at {advice.in_a_row} evals in a row"


def _is_after(point: CurvePoint, last: Key) -> bool:
    """Whether it is new and not late; the last step may have been measured again, on more items."""
    return point.step > last[1] or (point.step == last[1] and key_of(point) != last)
