"""CurveMonitor: judges a curve as it grows, and asks to stop only where it is told to.

    PeriodicEval(…, monitor=CurveMonitor(effect=0.03, stop_on_regression=2, stop_on_plateau=5))

Every `PeriodicEval` has one; by default it only says what it sees. A result that comes late (of a
step before one that was judged already) has no verdict of its own: interim analyses have an order,
and alpha is spent by those that were made. The next verdict takes it into account.
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
    Best,
    Bounds,
    Key,
    Readings,
    Rewards,
    RewardTable,
    StepVerdict,
    Terms,
    best_as_dict,
    judge,
    key_of,
    pick_best,
)

MOST_CANDIDATES = 100
"""Evals up to which the best one is corrected at every point: the cost grows with their cube, and
more so where BLAS threads find no free core."""
DRAWS = 1000


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
        best = pick_best(table, draws=DRAWS, most=MOST_CANDIDATES)
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
