"""stable-baselines3's VecEnv: resets in the same step, and keeps what was before in the infos.

It starts an episode with a seed only when all of them start. But `env_method` reaches the
environment behind a slot, so an episode that the VecEnv has just begun is begun again, with the
seed of its index. Where a wrapper stands in between whose state that would pass by (a stack of
frames), episodes are left as they come, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heldout.episodes import Bools
from heldout.errors import InvalidInput
from heldout.vector.driver import (
    UNSEEDED,
    Step,
    as_numpy,
    as_step,
    is_tensor,
    kept_statistics,
    name_of,
    statistics_of_workers,
)

BASES = ("DummyVecEnv", "SubprocVecEnv")
PASSED_THROUGH = ("VecMonitor", "VecCheckNan")
"""Wrappers that leave observations as they are."""


class SB3Vector:
    rests = False

    def __init__(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)
        self.action_space = env.action_space
        layers = _layers(env)
        self.name = name_of(next(iter(getattr(layers[-1], "envs", ())), layers[-1]))
        for layer in layers:
            if getattr(layer, "norm_reward", False) or getattr(layer, "training", False):
                raise InvalidInput(
                    f"{type(layer).__name__} would learn from the evaluation, or report "
                    "normalised rewards: set training = False and norm_reward = False on it first"
                )
        self.normalizes = normalizes(env)
        self._monitors = [layer for layer in layers if type(layer).__name__ == "VecMonitor"]
        self._transforms, obstacle = _transforms(layers)
        self.restarts = self.cuts = obstacle is None
        self.notes = ["rewards are float32, as stable-baselines3 keeps them"]
        if obstacle is not None:
            self.notes.insert(0, f"{UNSEEDED} ({obstacle} stands in the way)")
        self.notes += _statistics_inside(layers[-1])
        self._observations: Any = None
        self._infos: Sequence[Mapping[str, Any]] = []

    def reset(self, seeds: Sequence[int]) -> None:
        # VecEnv gives seed + i to its i-th environment, at the next reset only.
        self._env.seed(int(seeds[0]) % 2**31)
        self._observations = self._env.reset()
        if self.restarts:
            self.restart(range(self.num_envs), seeds)

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> Step:
        if is_tensor(actions):
            actions = as_numpy(actions)
        self._observations, reward, done, self._infos = self._env.step(actions)
        cut = np.fromiter(
            (bool(info.get("TimeLimit.truncated", False)) for info in self._infos),
            dtype=np.bool_,
            count=self.num_envs,
        )
        step = as_step(self._env, self.num_envs, reward, done, cut, names=("reward", "done", "cut"))
        over = step.terminated
        return step._replace(terminated=over & ~cut, truncated=over & cut)

    def info(self, slot: int) -> Mapping[str, Any]:
        return self._infos[slot]

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        for slot, seed in zip(slots, seeds, strict=True):
            ((observation, _),) = self._env.env_method("reset", indices=slot, seed=seed)
            observation = _map(lambda part: np.asarray(part)[None], observation)
            for transform in self._transforms:
                observation = transform(observation)
            _put(self._observations, slot, observation)
            for monitor in self._monitors:
                # It has not seen this reset, and would go on with the episode that was cut off.
                monitor.episode_returns[slot] = monitor.episode_lengths[slot] = 0

    def close(self) -> None:
        self._env.close()


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while hasattr(layers[-1], "venv"):
        layers.append(layers[-1].venv)
    return layers


def normalizes(env: Any) -> bool:
    """Whether observations come out of a VecNormalize."""
    return any(
        any(kind.__name__ == "VecNormalize" for kind in type(layer).__mro__) and layer.norm_obs
        for layer in _layers(env)
    )


NORMALISED_TWICE = (
    "observations would be normalised twice: make_env returns them out of a VecNormalize, and the "
    "policy normalises them too. Give vec_normalize=False to policy_of or HeldoutEvalCallback, or "
    "let make_env return the environment without VecNormalize"
)


def check_normalised_once(driver: Any, policy_fn: Any) -> None:
    """Refuse a policy that normalises what its environments have normalised already."""
    if getattr(driver, "normalizes", False) and getattr(policy_fn, "normalizes", False):
        raise InvalidInput(NORMALISED_TWICE)


def _statistics_inside(base: Any) -> list[str]:
    """Notes on wrappers of the environments that a VecEnv is made of."""
    if hasattr(base, "envs"):
        return kept_statistics(next(iter(base.envs), None))
    return statistics_of_workers(
        lambda: base.env_method("__str__"), lambda: base.get_attr("update_running_mean")
    )


def _transforms(layers: list[Any]) -> tuple[list[Callable[[Any], Any]], str | None]:
    """What an observation goes through on its way out, and what makes that unknown, if anything."""
    *outer, base = layers
    transforms: list[Callable[[Any], Any]] = []
    for layer in (base, *reversed(outer)):
        kind = type(layer).__name__
        if not type(layer).__module__.startswith("stable_baselines3."):
            return [], kind
        if kind == "VecNormalize":
            transforms.append(layer.normalize_obs)
        elif kind == "VecTransposeImage":
            transforms.append(layer.transpose_observations)
        elif kind not in (BASES if layer is base else PASSED_THROUGH):
            return [], kind
    return transforms, None


def _map(function: Callable[[Any], Any], observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: function(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(function, observation))
    return function(observation)


def _put(batch: Any, slot: int, observation: Any) -> None:
    """The only row of `observation` into that row of `batch`."""
    if isinstance(batch, Mapping):
        for key, part in batch.items():
            part[slot] = observation[key][0]
    elif isinstance(batch, tuple):
        for part, given in zip(batch, observation, strict=True):
            part[slot] = given[0]
    else:
        batch[slot] = observation[0]
