"""Anything that takes and returns batches: simulators that run thousands of copies at once.

`reset() -> obs | (obs, info)`, `step(actions) -> (obs, reward, done, trunc, info)`. Arrays may be
torch tensors on any device: the policy gets the observations as they are, and the books are kept
in numpy. Such environments reset in the step that ends an episode; one that does it in the next
step says so with `autoreset_mode = "next_step"`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from heldout.episodes import Bools
from heldout.errors import InvalidInput
from heldout.vector.driver import UNSEEDED, Step, as_numpy, name_of
from heldout.vector.gym_vector import autoreset_mode


class BatchEnv:
    restarts = cuts = False

    def __init__(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)
        self.name = name_of(env)
        space = getattr(env, "single_action_space", None)
        self.action_space = getattr(env, "action_space", None) if space is None else space
        stated = getattr(env, "autoreset_mode", None)
        if stated is None:
            stated = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        mode = "same_step"
        if stated is not None:
            mode = autoreset_mode(_Says({"autoreset_mode": stated}))
        if mode == "disabled":
            raise InvalidInput(
                f"{type(env).__name__} does not reset by itself and is no Gymnasium vector "
                "environment; make_env may return a single one of it instead"
            )
        self.rests = mode == "next_step"
        self.notes = [UNSEEDED]
        if stated is None:
            self.notes.append("taken to reset in the step that ends an episode, as it says nothing")
        self._seeded = _takes_seed(env.reset)
        if not self._seeded:
            self.notes.append("it cannot be seeded at all")
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        self._observations: Any = None
        self._infos: Any = {}

    def reset(self, seeds: Sequence[int]) -> None:
        given = self._env.reset(seed=int(seeds[0])) if self._seeded else self._env.reset()
        self._observations = given[0] if isinstance(given, tuple) else given

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> Step:
        self._observations, reward, done, cut, self._infos = self._env.step(actions)
        step = Step(
            as_numpy(reward).astype(np.float64),
            as_numpy(done).astype(np.bool_),
            as_numpy(cut).astype(np.bool_),
        )
        for name, values in zip(("reward", "done", "trunc"), step, strict=True):
            if values.shape != (self.num_envs,):
                raise InvalidInput(
                    f"{type(self._env).__name__}.step() returned {name} of shape {values.shape}; "
                    f"it has one number for each of {self.num_envs} environments"
                )
        self._over = step.terminated | step.truncated
        return step

    def info(self, slot: int) -> Mapping[str, Any]:
        row = self._row(self._infos, slot)
        if self._over[slot] and isinstance(self._infos, Mapping):
            final = self._infos.get("final_info")
            if final is not None:
                return self._row(final, slot)
        return row

    def _row(self, infos: Any, slot: int) -> Mapping[str, Any]:
        """A dict of arrays or a list of dicts: both are about."""
        if not isinstance(infos, Mapping):
            row: Mapping[str, Any] = (infos[slot] if infos is not None else None) or {}
            return row
        found = {}
        for key, value in infos.items():
            shape = getattr(value, "shape", None)
            if shape is None and isinstance(value, list | tuple):
                shape = (len(value),)
            if shape and shape[0] == self.num_envs:
                found[key] = value[slot]
        return found

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        raise AssertionError("it restarts by itself")

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None:
            close()


class _Says(NamedTuple):
    metadata: dict[str, Any]


def _takes_seed(reset: Any) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):  # compiled
        return False
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
