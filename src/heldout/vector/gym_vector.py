"""Gymnasium's vector environments, in each of their autoreset modes.

Gymnasium's own Sync and Async ones can be reset one by one with a seed, and then every episode is
as exact as in a list of plain environments. Others are left to reset themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from heldout.episodes import Bools
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.vector.driver import (
    UNSEEDED,
    Step,
    as_numpy,
    is_tensor,
    kept_statistics,
    leaves,
    name_of,
)


class GymVector:
    def __init__(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)
        self.name = _name(env)
        self.action_space = env.single_action_space
        self._mode = autoreset_mode(env)
        own = _is_gymnasiums(env)
        self.restarts = self._mode == "disabled" or own
        self._waits = own and _resets_once_more(env, self._mode)
        self.rests = self._mode == "next_step" and (not self.restarts or self._waits)
        self.cuts = self.restarts and not self._waits
        self.notes = [] if self.restarts else [UNSEEDED]
        self.notes += kept_statistics(env)
        self.notes += kept_statistics(next(iter(getattr(env.unwrapped, "envs", ())), None))
        self._mask_works = own
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        """Who has ended and not been restarted."""
        self._waiting: dict[int, int] = {}
        """Seeds, by slot, of restarts that are put off until its next step has reset it."""
        self._observations: Any = None
        self._infos: Any = {}

    def reset(self, seeds: Sequence[int]) -> None:
        # One that restarts by itself is seeded as a whole, as Gymnasium's contract has it.
        seed: Any = list(seeds) if self.restarts else int(seeds[0])
        self._observations, self._infos = self._env.reset(seed=seed)

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> Step:
        if self._mode == "disabled" and self._over.any():
            # Nobody plays there any more, but it is stepped with the rest: not past its end.
            self._reset_masked({int(slot): None for slot in np.flatnonzero(self._over)})
        if is_tensor(actions) and not any(map(is_tensor, leaves(self._observations))):
            actions = as_numpy(actions)
        self._observations, reward, terminated, truncated, self._infos = self._env.step(actions)
        terminated, truncated = as_numpy(terminated), as_numpy(truncated)
        self._over = terminated | truncated
        if self._waiting:
            infos, waiting = self._infos, self._waiting
            self._waiting = {}
            self._reset_masked(waiting)
            self._infos = infos  # they are of the step
        return Step(as_numpy(reward).astype(np.float64), terminated, truncated)

    def info(self, slot: int) -> Mapping[str, Any]:
        infos = self._infos
        # A list where DictInfoToList wraps it.
        row = _row(infos, slot) if isinstance(infos, Mapping) else infos[slot]
        final = row.get("final_info") if self._over[slot] else None
        return final if isinstance(final, Mapping) else row

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        by_slot = dict(zip(slots, seeds, strict=True))
        if self._waits:
            self._waiting = by_slot
        else:
            self._reset_masked(by_slot)

    def _reset_masked(self, seeds: Mapping[int, int | None]) -> None:
        before = self._observations
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[list(seeds)] = True
        # A dict of our own: Gymnasium takes the mask out of it.
        self._observations, self._infos = self._env.reset(
            seed=[seeds.get(slot) for slot in range(self.num_envs)],
            options={"reset_mask": mask.copy()},
        )
        self._over = self._over & ~mask
        if not self._mask_works and not mask.all():
            self._check_others(before, mask)

    def _check_others(self, before: Any, mask: Bools) -> None:
        """The mask is a convention: an environment that ignores it has restarted everybody."""
        self._mask_works = True
        for was, now in zip(leaves(before), leaves(self._observations), strict=True):
            was, now = as_numpy(was)[~mask], as_numpy(now)[~mask]
            if not np.array_equal(was, now, equal_nan=was.dtype.kind == "f"):
                raise EnvironmentFailed(
                    f"{type(self._env).__name__} ignores options['reset_mask']: asked to restart "
                    f"{np.flatnonzero(mask).tolist()}, it changed others in the middle of their "
                    "episodes. Evaluate plain environments (make_env returning a single one)"
                )

    def close(self) -> None:
        self._env.close()


def autoreset_mode(env: Any) -> str:
    """next_step, same_step or disabled, from the environment's own metadata."""
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None:
        raise InvalidInput(
            f"{type(env).__name__} does not say how it resets: its metadata has no "
            "'autoreset_mode'. Set it to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or "
            "DISABLED, whichever is true"
        )
    name = str(getattr(mode, "name", mode)).lower().replace("-", "_")
    for known in ("next_step", "same_step", "disabled"):
        if name.replace("_", "") == known.replace("_", ""):
            return known
    raise InvalidInput(f"{type(env).__name__} has an unknown autoreset_mode: {mode!r}")


def _name(env: Any) -> str:
    inside = next(iter(getattr(env.unwrapped, "envs", ())), None)
    return name_of(env if inside is None or getattr(env, "spec", None) is not None else inside)


def _is_gymnasiums(env: Any) -> bool:
    """Whether this is one of Gymnasium's own, whose masked resets are known to work."""
    base = env.unwrapped
    if not type(base).__module__.startswith("gymnasium.vector."):
        return False
    if type(base).__name__ == "AsyncVectorEnv":
        return base.worker is None
    return type(base).__name__ == "SyncVectorEnv"


def _resets_once_more(env: Any, mode: str) -> bool:
    """Async workers without shared memory forget, in a masked reset, that they were to reset.

    They do it again in the step after. So the seeded reset comes after that step, not before.
    """
    base = env.unwrapped
    return mode == "next_step" and not getattr(base, "shared_memory", True)


def _row(infos: Mapping[str, Any], slot: int) -> dict[str, Any]:
    """One environment's part of Gymnasium's dict of arrays; `_key` says whose `key` is set."""
    row = {}
    for key, value in infos.items():
        mask = infos.get(f"_{key}")
        if mask is None or not bool(as_numpy(mask)[slot]):
            continue
        row[key] = _row(value, slot) if isinstance(value, Mapping) else value[slot]
    return row
