"""Evaluations that lie, beside this one, in a world whose truth is known.

An episode is short and succeeds, or long and fails, with even odds, and earns 1 a step: 55 on
average, half of them successes. Whatever prefers short episodes says otherwise.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from heldout.vector import VectorReport, evaluate_env
from tests.vector.worlds import has_terminated

SHORT, LONG, EPISODES, NUM_ENVS = 10, 100, 200, 100
TRUE_RETURN, TRUE_RATE = (SHORT + LONG) / 2, 0.5


class ShortOrLong(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.good, self.t = bool(self.np_random.random() < TRUE_RATE), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        over = self.t == (SHORT if self.good else LONG)
        return np.zeros(1, np.float32), 1.0, over and self.good, over and not self.good, {}


def stay(observations: Any) -> Any:
    return np.zeros(len(observations), dtype=np.int64)


@pytest.fixture(scope="module")
def report() -> VectorReport:
    return evaluate_env(ShortOrLong, stay, EPISODES, num_envs=NUM_ENVS, success=has_terminated)


def inside(report: VectorReport, name: str, value: float) -> bool:
    summary = report.summary
    return bool(summary[f"{name}_ci_low"] <= value <= summary[f"{name}_ci_high"])


def finished(episodes: int) -> list[tuple[float, bool]]:
    """(return, success) in the order in which episodes end: what the liars below count."""
    env = SyncVectorEnv([ShortOrLong] * NUM_ENVS, autoreset_mode=AutoresetMode.SAME_STEP)
    observations, _ = env.reset(seed=0)
    ret = np.zeros(NUM_ENVS)
    found: list[tuple[float, bool]] = []
    while len(found) < episodes:
        observations, reward, terminated, truncated, _ = env.step(stay(observations))
        ret += reward
        for slot in np.flatnonzero(terminated | truncated):
            found.append((float(ret[slot]), bool(terminated[slot])))
            ret[slot] = 0
    env.close()
    return found


def first_to_finish() -> tuple[float, float]:
    """Counter-example: stop when so many episodes have ended, and count those."""
    first = finished(EPISODES)[:EPISODES]
    return float(np.mean([r for r, _ in first])), float(np.mean([s for _, s in first]))


def break_at_first_done() -> tuple[float, float]:
    """Counter-example: stop when anything ends, and count what ended then."""
    ended = finished(1)
    return float(np.mean([r for r, _ in ended])), float(np.mean([s for _, s in ended]))


def test_the_truth_is_within_the_interval(report: VectorReport) -> None:
    assert inside(report, "mean_return", TRUE_RETURN)
    assert inside(report, "success_rate", TRUE_RATE)


@pytest.mark.parametrize("liar", [first_to_finish, break_at_first_done])
def test_what_prefers_short_episodes_is_outside_of_it(report: VectorReport, liar: Any) -> None:
    mean_return, rate = liar()
    assert not inside(report, "mean_return", mean_return)
    assert not inside(report, "success_rate", rate)
    assert rate > TRUE_RATE
    assert mean_return < TRUE_RETURN


def test_the_denominator_is_the_episodes_that_were_asked_for(report: VectorReport) -> None:
    successes = sum(e.success is True for e in report.episodes)
    assert len(report.episodes) == report.summary["episodes"] == EPISODES
    assert report.summary["success_rate"] == successes / EPISODES


def test_the_median_is_over_all_successes_and_no_failure(report: VectorReport) -> None:
    assert report.summary["median_steps_to_goal"] == SHORT
    # Also over those that a time limit ended, where that is what success is.
    patient = evaluate_env(ShortOrLong, stay, 30, success=lambda *last: last[2]).summary
    assert patient["median_steps_to_goal"] == patient["steps_p50_success"] == LONG
    assert patient["median_steps_to_goal_n"] == patient["successes"] == patient["truncated"] > 0
