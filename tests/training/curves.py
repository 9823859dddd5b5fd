"""Curves made of numbers, for tests of what is read from them and said of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heldout.stats.intervals import Floats
from heldout.training.curve.points import CurvePoint, ItemOutcome

Rewards = Sequence[float | None]


def point(step: int, mean: float | None = 0.5, *, session: str = "a", **changed: Any) -> CurvePoint:
    """A result; or, where `mean` is None, a skip."""
    given: dict[str, Any] = {
        "label": "rl_eval",
        "step": step,
        "session": session,
        "time": "2026-01-01T00:00:00Z",
        "seconds": 1.5,
        "summary": None if mean is None else {"n": 4, "mean": mean, "ci_low": 0.0, "ci_high": 1.0},
        "skipped": "no time left" if mean is None else None,
    }
    return CurvePoint(**{**given, **changed})


def look(step: int, rewards: Rewards, **changed: Any) -> CurvePoint:
    """A point with these rewards of samples s0, s1 …; None errored."""
    outcomes = tuple(
        ItemOutcome(f"s{i}", reward, error="it broke" if reward is None else None)
        for i, reward in enumerate(rewards)
    )
    count = len(rewards)
    return point(step, 0.5, **{"outcomes": outcomes, "asked": count, "of": count} | changed)


def curve(rows: Floats | Sequence[Rewards], every: int = 10) -> list[CurvePoint]:
    return [
        look(every * i, [None if np.isnan(r) else float(r) for r in np.array(row, dtype=float)])
        for i, row in enumerate(rows)
    ]


def rising(levels: Sequence[float], n: int = 200, seed: int = 0) -> Floats:
    """0/1 rewards of samples that keep their difficulty, at these true rates."""
    rng = np.random.default_rng(seed)
    own = rng.random(n)
    noise = rng.normal(0, 0.02, (len(levels), n))
    return (own + noise < np.array(levels)[:, None]).astype(np.float64)


CLIMB = rising(np.linspace(0.2, 0.8, 20).tolist())
FLAT = rising([0.5] * 20)
