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
from heldout.vector.driver import (
    UNSEEDED,
    Step,
    as_numpy,
    as_step,
    info_row,
    is_tensor,
    name_of,
)
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
        self._on_host = True

    def reset(self, seeds: Sequence[int]) -> None:
        given = self._env.reset(seed=int(seeds[0])) if self._seeded else self._env.reset()
        self._observations = given[0] if isinstance(given, tuple) else given

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> Step:
        self._observations, reward, done, cut, self._infos = self._env.step(actions)
        self._on_host = False
        step = as_step(
            self._env, self.num_envs, reward, done, cut, names=("reward", "done", "trunc")
        )
        self._over = step.terminated | step.truncated
        return step

    def info(self, slot: int) -> Mapping[str, Any]:
        if not self._on_host:
            # All of it at once: asked for entry by entry, a GPU would be waited for each time.
            self._infos, self._on_host = _to_host(self._infos), True
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
        return info_row(infos, slot, self.num_envs)

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        raise AssertionError("it restarts by itself")

    def close(self) -> None:
        close = getattr(self._env, "close", None)
        if close is not None:
            close()


def _to_host(infos: Any) -> Any:
    if isinstance(infos, Mapping):
        return {key: _to_host(value) for key, value in infos.items()}
    return as_numpy(infos) if is_tensor(infos) else infos


class _Says(NamedTuple):
    metadata: dict[str, Any]


def _takes_seed(reset: Any) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):  # compiled
        return False
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)
