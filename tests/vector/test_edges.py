"""What is easily got wrong at the edges of an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heldout.errors import InvalidInput
from heldout.vector import evaluate_env


class Drawn:
    """An episode of one to five steps, as its seed has it, that pays ten or nothing."""

    follows, closes = True, True

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.rng = np.random.default_rng(seed if self.follows else None)
        self.left = int(self.rng.integers(1, 6))
        return self.rng.random(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        pays = 10.0 if self.left == 0 and self.rng.random() < 0.1 else 0.0
        return self.rng.random(2), pays, self.left == 0, False, {}

    def close(self) -> None:
        if not self.closes:
            raise OSError("stuck")


def still(observations: Any) -> Any:
    return np.zeros(len(observations))


def test_returns_that_are_all_alike_have_no_interval_even_if_they_look_like_a_rate() -> None:
    summaries = [evaluate_env(Drawn, still, 10, seed=seed).summary for seed in range(20)]
    alike = [s for s in summaries if s["mean_return"] == 0.0]
    assert alike, "none of these saw only zeros: choose other seeds"
    for summary in alike:
        assert summary["mean_return_ci_low"] is None
        assert summary["mean_return_ci_high"] is None


def test_environments_that_cannot_be_closed_do_not_cost_the_report() -> None:
    closed: list[int] = []

    class Stuck(Drawn):
        def close(self) -> None:
            closed.append(1)
            raise OSError("stuck")

    report = evaluate_env(Stuck, still, 6, num_envs=3)
    assert report.summary["episodes"] == 6
    assert len(closed) == 3, "one that fails kept the others from being closed"
    assert "closing the environments failed: OSError: stuck" in report.notes


def test_a_policy_with_a_memory_is_told_where_episodes_begin() -> None:
    class Counts:
        """Acts by how many steps its episode has had."""

        def __init__(self) -> None:
            self.t = np.zeros(8, dtype=int)
            self.seen: list[int] = []

        def begin(self, slots: list[int]) -> None:
            self.t[slots] = 0

        def __call__(self, observations: Any) -> Any:
            acts = self.t[: len(observations)].copy()
            self.t[: len(observations)] += 1
            return acts

    class Checks(Drawn):
        def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
            self.t = 0
            return super().reset(seed=seed)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            right, self.t = action == self.t, self.t + 1
            observation, _, *rest = super().step(action)
            return observation, float(right), *rest

    for num_envs in (1, 4):
        report = evaluate_env(Checks, Counts(), 12, num_envs=num_envs)
        assert all(e.ret == e.steps for e in report.episodes), num_envs


def test_a_success_that_is_not_a_number_says_nothing() -> None:
    class Unsure(Drawn):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            *rest, _ = super().step(action)
            return *rest, {"is_success": float("nan")}

    assert evaluate_env(Unsure, still, 5).summary["success_is"] is None


def test_a_step_of_the_old_gym_is_refused_and_says_what_a_step_returns() -> None:
    class OldGym(Drawn):
        def step(self, action: Any) -> Any:
            observation, reward, over, _, info = super().step(action)
            return observation, reward, over, info

    with pytest.raises(InvalidInput, match=r"OldGym.step\(\) returned 4 values; it returns 5"):
        evaluate_env(OldGym, still, 2, seed=0)
