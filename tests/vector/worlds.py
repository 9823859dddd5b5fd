"""Environments for tests, made so that any mistake in who plays what shows in the numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np

from heldout.vector import VectorReport
from heldout.vector.episodes import episode_seed


class Walk(gymnasium.Env[Any, Any]):
    """Length, end and every reward are drawn from its own random state; the action counts.

    Whoever steps it past its end is told, as is whoever acts on another one's observation: the
    reward is for actions that fit.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, longest: int = 12) -> None:
        self.longest = longest
        self.length = self.t = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, self.longest + 1))
        self.good = bool(self.np_random.random() < 0.5)
        self.t = 0
        return self._look(), {}

    def _look(self) -> Any:
        self.x = float(np.float32(self.np_random.normal()))
        return np.array([self.x, self.t], dtype=np.float32)

    def step(self, action: Any) -> Any:
        assert self.t < self.length, "stepped past its end"
        self.t += 1
        reward = abs(self.x) if int(action) == (self.x > 0) else -1.0
        over = self.t == self.length
        info = {"dist": float(self.length - self.t)}
        return self._look(), reward, over and self.good, over and not self.good, info

    def close(self) -> None:
        self.closed = True


def has_terminated(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
    """What success is in Walk."""
    return terminated


def good_policy(observations: Any) -> Any:
    return (observations[:, 0] > 0).astype(np.int64)


class Played(NamedTuple):
    ret: float
    steps: int
    success: bool | None
    terminated: bool
    truncated: bool
    dist: float | None
    seed: int | None


def played(report: VectorReport) -> list[Played]:
    assert [episode.index for episode in report.episodes] == list(range(len(report.episodes)))
    return [
        Played(e.ret, e.steps, e.success, e.terminated, e.truncated, e.dist, e.seed)
        for e in report.episodes
    ]


def alone(
    episodes: int, seed: int = 0, *, longest: int = 12, max_steps: int | None = None
) -> list[Played]:
    """The truth: each episode of Walk by itself, in an environment that has seen no other."""
    found = []
    for index in range(episodes):
        env = Walk(longest)
        start = episode_seed(seed, index)
        observation, _ = env.reset(seed=start)
        ret, steps, terminated, truncated, info = 0.0, 0, False, False, {}
        while not (terminated or truncated):
            observation, reward, terminated, truncated, info = env.step(
                good_policy(observation[None])[0]
            )
            ret, steps = ret + reward, steps + 1
            truncated = truncated or (steps == max_steps and not terminated)
        found.append(Played(ret, steps, None, terminated, truncated, info["dist"], start))
    return found
