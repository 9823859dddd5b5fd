"""Where the time of a training goes: so many seconds of training, so many of waiting for evals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from heldout.errors import InvalidInput
from heldout.training.budget import Budget
from heldout.training.curve import CurvePoint
from heldout.training.run_eval import Measured


class Spending:
    """`budget` is None where evals may take as long as they take."""

    def __init__(self, budget: Budget | None, total: int, clock: Callable[[], float]) -> None:
        self._budget, self._total, self._clock = budget, total, clock
        self._began: float | None = None
        self._evaluating = self._trained_before = 0.0
        self._last = 0

    def begin(self) -> None:
        if self._began is None:
            self._began = self._clock()

    @property
    def trained(self) -> float:
        """Seconds of training so far, without those of evaluation."""
        if self._began is None:
            return self._trained_before
        return self._trained_before + self._clock() - self._began - self._evaluating

    @property
    def affordable(self) -> int:
        """How many samples may be evaluated now."""
        return self._total if self._budget is None else self._budget.plan(self.trained)

    def afford(self) -> int:
        """How many samples may be evaluated now; InvalidInput says why none may."""
        if (samples := self.affordable) == 0:
            raise InvalidInput(self.why_not)
        return samples

    @property
    def why_not(self) -> str:
        """Why nothing is affordable now."""
        assert self._budget is not None
        budget, trained = self._budget, self.trained
        expected = budget.seconds(budget.sizes()[-1])
        cost = "" if expected is None else f"; {budget.sizes()[-1]} samples take {expected:.3g} s"
        return (
            f"max_overhead={budget.max_overhead:g}: evals have taken {budget.spent:.3g} s beside "
            f"{trained:.3g} s of training{cost}"
        )

    def evaluated(self, seconds: float) -> None:
        """Training waited for so long; what it cost is said with the point."""
        self._evaluating += seconds

    def waited(self, seconds: float) -> None:
        """Training waited for so long, for what belongs to no point."""
        self._evaluating += seconds
        if self._budget is not None:
            self._budget = replace(self._budget, spent=self._budget.spent + seconds)

    def spend(
        self, step: int, measured: Measured, seconds: float, every_steps: int
    ) -> dict[str, Any] | None:
        """What a point says of it; None without a budget."""
        since, self._last = step - self._last, step
        if self._budget is None:
            return None
        once = (measured.decoding or {}).get("prepared_seconds") or 0.0
        done = len({r.sample_id for r in measured.results if r.ok})
        together = max(1, measured.rows // measured.repeats)
        spent = replace(self._budget, step=together).spend(done, seconds, once=once)
        self._budget = spent
        return {
            "max_overhead": spent.max_overhead,
            "overhead": spent.overhead(self.trained),
            "spent": spent.spent,
            "trained": self.trained,
            "cost": spent.cost,
            "samples": measured.asked // measured.repeats,
            "of": self._total,
            "every_steps": every_steps,
            "steps_since_last": since,
        }

    def take_over(self, points: Iterable[CurvePoint]) -> None:
        """What earlier starts have spent is spent. The file is not taken at its word."""
        known = [point.budget for point in points if point.budget is not None]
        if self._budget is None or not known:
            return
        spent, trained, cost = (_time(known[-1].get(k)) for k in ("spent", "trained", "cost"))
        if spent is not None and trained is not None:
            self._budget = replace(self._budget, spent=spent, cost=cost)
            self._trained_before = trained


def _time(value: Any) -> float | None:
    known = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    return float(value) if known else None
