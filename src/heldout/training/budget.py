"""When an eval is due, and what there is time for: its cadence, and a share of training time.

Which steps are due is decided by step numbers alone, so every process finds the same ones.

    budget = Budget(0.05, total=256)
    samples = budget.plan(trained=600.0)   # 0: not enough time yet
    …                                      # evaluate that many, from the start of the fixed order
    budget = budget.spend(samples, seconds=12.0)

Evals first use a smaller part of the held-out set, from a fixed series of nested subsets. If the
smallest still costs too much, they run less often. The cost of an eval is that of the last one; the
first eval uses the smallest subset, to measure it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from heldout.training.curve.points import CurvePoint
from heldout.training.measuring import Measured
from heldout.training.settings import SMALLEST, EvalSettings


class EvalCadence:
    """Finds the steps at which an eval is due, as a training run counts up.

    Args:
        every_steps: Steps between evals; 0: none is due.
        at_start: Whether step 0 is due, too.
    """

    def __init__(self, every_steps: int, *, at_start: bool) -> None:
        self.every_steps = every_steps
        self.last_due: int | None = None
        """The last step that `reach` found due."""
        self._at_start = at_start
        self._reached: int | None = None

    def is_due(self, step: int) -> bool:
        """Whether an eval is due at a step.

        If the counter jumps, an eval is due once it has passed a multiple of `every_steps` since
        the last step that was reached. A step that was found due is not due again.
        """
        if self.every_steps <= 0 or step < 0 or step == self.last_due:
            return False
        if step == 0:
            return self._at_start
        before = step - 1 if self._reached is None or self._reached >= step else self._reached
        return step // self.every_steps > before // self.every_steps

    def reach(self, step: int) -> bool:
        """Note that training has reached a step; return whether an eval is due."""
        is_due = self.is_due(step)
        self._reached = step
        if is_due:
            self.last_due = step
        return is_due

    def begin(self, step: int) -> None:
        """Begin at a step; what was due before it is not."""
        self._reached = step

    def go_back(self, step: int) -> bool:
        """Return whether the counter goes back to this step; then steps may be due again."""
        goes_back = self._reached is not None and step < self._reached
        if goes_back:
            self.last_due = None
        return goes_back


# --- How many samples there is time for ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that evals may take, and have taken."""

    max_overhead: float
    """Seconds of evaluation for each second of training, at most."""
    total: int
    """Samples in the whole set."""
    smallest: int = SMALLEST
    step: int = 1
    """Samples in a batch, which costs the same if it is not full."""
    spent: float = 0.0
    """Seconds evaluated so far."""
    cost: float | None = None
    """Seconds that one `step` of samples took the last time."""

    def sizes(self) -> list[int]:
        """List the nested subsets, largest first: all, a half, a quarter … down to `smallest`."""
        sizes, size = [self.total], self.total
        while (size := (size + 1) // 2) >= max(self.smallest, 1) and size < sizes[-1]:
            sizes.append(size)
        return sizes

    def seconds(self, samples: int) -> float | None:
        """Estimate how long that many samples take; None before the first eval."""
        return None if self.cost is None else self.cost * -(-samples // self.step)

    def overhead(self, trained: float) -> float:
        """Return the share of training time that was spent on evals."""
        return self.spent / trained if trained > 0 else 0.0

    def plan(self, trained: float) -> int:
        """Return how many samples can be afforded now.

        Args:
            trained: Seconds of training so far.

        Returns:
            Samples from the start of the fixed order; 0 if there is no time yet.
        """
        left = self.max_overhead * trained - self.spent
        if self.cost is None:  # the first, or none has come to anything yet
            return self.sizes()[-1] if self.spent == 0 or left > 0 else 0
        for size in self.sizes():
            expected = self.seconds(size)
            assert expected is not None
            if expected <= left:
                return size
        return 0

    def spend(self, samples: int, seconds: float, *, once: float = 0.0) -> Budget:
        """Charge the budget for an eval.

        Args:
            samples: How many it scored.
            seconds: How long it took.
            once: Seconds of that spent on one-time preparation.
        """
        steps = -(-samples // self.step)
        cost = self.cost if samples == 0 else max(0.0, seconds - once) / steps
        return replace(self, spent=self.spent + seconds, cost=cost)


# --- Where the time of a training run goes -------------------------------------------------------


class Spending:
    """The time that a training run spends on training and on waiting for evals.

    Args:
        settings: The settings of the eval, with its budget.
        total: Samples in the whole set.
        clock: The clock.
    """

    def __init__(self, settings: EvalSettings, total: int, clock: Callable[[], float]) -> None:
        share, smallest = settings.max_overhead, settings.min_samples
        self._budget = None if share is None else Budget(share, total, smallest=smallest)
        self._total, self._every_steps, self._clock = total, settings.every_steps, clock
        self._began: float | None = None
        self._evaluating = self._trained_before = 0.0
        self._last = 0

    def begin(self) -> None:
        """Start the clock, the first time."""
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

    @property
    def why_not(self) -> str:
        """Why nothing is affordable now."""
        assert self._budget is not None
        budget, trained = self._budget, self.trained
        expected = budget.seconds(budget.sizes()[-1])
        cost = "" if expected is None else f"; {budget.sizes()[-1]} samples take {expected:.3g} s"
        return (
            f"max_overhead={budget.max_overhead:g}: so far evals took {budget.spent:.3g} s and "
            f"training {trained:.3g} s{cost}"
        )

    def add_eval_time(self, seconds: float, *, charge: bool = False) -> None:
        """Count seconds that training waited for evals.

        Those of a point are charged with it, by `spend`; `charge` is for waiting that belongs to no
        point.
        """
        self._evaluating += seconds
        if charge and self._budget is not None:
            self._budget = replace(self._budget, spent=self._budget.spent + seconds)

    def spend(self, step: int, measured: Measured, seconds: float) -> dict[str, Any] | None:
        """Charge an eval, and describe the budget for its point; None without a budget."""
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
            "every_steps": self._every_steps,
            "steps_since_last": since,
        }

    def take_over(self, points: Iterable[CurvePoint]) -> None:
        """Count what earlier attempts have spent. Damaged entries of the file are ignored."""
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
