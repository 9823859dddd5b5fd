"""What a verifiers environment made of a rollout, as a heldout score.

An environment leaves its numbers in the trajectory's outcome: `reward`, `metrics`, and the
`weights` of those that the reward is made of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any

from heldout.adapters.seam import AdaptedEval
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.types import METRIC_SUFFIXES, Metric, Sample, Score, Trajectory

REWARD = "reward"
"""The metric that carries the environment's weighted sum."""
FAILED_STAGES = ("setup_timeout", "finalize_timeout", "scoring_timeout")
"""Stop conditions of v1 that are failures, though the package calls such a rollout ok."""


class ScoredByVerifiers(AdaptedEval):
    """An eval whose rollouts leave what verifiers made of them in the trajectory's outcome."""

    package = "verifiers"
    copies = "#"
    source: str
    """A fingerprint of everything that decides what happens and what it scores."""

    def identity(self) -> dict[str, Any]:
        """Return the fingerprint."""
        return {"source": self.source}

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Return the package's reward, bit for bit, and its other numbers with weight 0."""
        outcome = trajectory.outcome
        if outcome is None or not {"reward", "metrics", "weights"} <= set(outcome):
            raise InvalidInput(
                "this trajectory holds no result of a verifiers rubric; run it with "
                "environment_factory=ev.environment_factory"
            )
        tracked = (
            Metric(name, value, metadata={"weight": outcome["weights"][name]})
            for name, value in outcome["metrics"].items()
        )
        return Score((Metric(REWARD, outcome["reward"], weight=1.0), *tracked))


def finite(name: str, value: Any) -> float:
    """Return a number of the environment's; NaN and infinity are no scores."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentFailed(f"its {name!r} is {value!r:.100}, which is no score")
    return number


def number_names(names: Sequence[str]) -> list[str]:
    """Number the names that are taken, or that a summary would misread."""
    taken: list[str] = [REWARD]

    def is_free(name: str) -> bool:
        others = {*taken, *names} - {name}
        misread = any(name.endswith(s) and name.removesuffix(s) in others for s in METRIC_SUFFIXES)
        return name not in taken and not misread

    for name in names:
        numbered = (f"{name}_{n}" for n in count(2))
        taken.append(
            name if is_free(name) else next(n for n in numbered if is_free(n) and n not in names)
        )
    return taken[1:]
