"""Environments of every convention behind one face: which driver takes what.

PlainEnvs     a list of Gymnasium environments: each episode is reset with a seed of its own
GymVector     a Gymnasium vector environment, in each of its autoreset modes
SB3Vector     a stable-baselines3 VecEnv
BatchEnv      anything else that takes and returns batches, torch tensors included
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from heldout.errors import InvalidInput
from heldout.vector.batches import BatchEnv
from heldout.vector.driver import Driver
from heldout.vector.gym_vector import GymVector
from heldout.vector.plain import PlainEnvs
from heldout.vector.sb3_vector import SB3Vector


def drive(make_env: Callable[[], Any], num_envs: int, episodes: int) -> Driver:
    """The driver for what `make_env` makes."""
    first = make_env()
    if not hasattr(first, "num_envs"):
        _check_env(first)
        envs = [first]
        try:
            # More than there are episodes would have nothing to do.
            while len(envs) < min(num_envs, episodes):
                envs.append(_another(make_env, envs))
        except BaseException:
            for env in envs:
                env.close()
            raise
        return PlainEnvs(envs)
    try:
        driver = _vectorised(first)
        if num_envs not in (1, driver.num_envs):
            raise InvalidInput(
                f"make_env() made a vectorised environment of {driver.num_envs}, and num_envs is "
                f"{num_envs}; leave num_envs out, or make one of that size"
            )
    except BaseException:
        if hasattr(first, "close"):
            first.close()
        raise
    return driver


def _vectorised(env: Any) -> Driver:
    gymnasium = sys.modules.get("gymnasium")  # who made one has imported it
    if gymnasium is not None and isinstance(env, gymnasium.vector.VectorEnv):
        return GymVector(env)
    if hasattr(env, "step_async") and hasattr(env, "step_wait") and hasattr(env, "env_method"):
        return SB3Vector(env)
    return BatchEnv(env)


def _check_env(env: Any) -> None:
    for name in ("reset", "step", "close"):
        if not callable(getattr(env, name, None)):
            raise InvalidInput(
                f"make_env() returns an environment with reset, step and close, got {env!r:.200}"
            )


def _another(make_env: Callable[[], Any], envs: list[Any]) -> Any:
    env = make_env()
    if any(env is other for other in envs):
        raise InvalidInput(
            "make_env() returned the same environment twice; it must make a new one at every "
            "call: make_env=lambda: gymnasium.make(…)"
        )
    _check_env(env)
    return env
