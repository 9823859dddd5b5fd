"""Gymnasium's vector environments, in each of their autoreset modes.

Gymnasium's own Sync and Async ones can be reset one by one with a seed, and then every episode is
as exact as in a list of plain environments. Others are left to reset themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heldout.episodes import Bools
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.vector.driver import (
    STATISTICS,
    UNINSPECTED,
    UNSEEDED,
    Step,
    as_numpy,
    as_step,
    info_row,
    is_tensor,
    kept_statistics,
    leaves,
    name_of,
    statistics_of_workers,
    wrappers,
)

COUNTS = ("episode_returns", "episode_lengths", "episode_start_times", "prev_dones")
"""What Gymnasium's RecordEpisodeStatistics keeps of episodes under way."""


class GymVector:
    def __init__(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)
        self.name = _name(env)
        self.action_space = env.single_action_space
        self._mode = autoreset_mode(env)
        own = _is_gymnasiums(env)
        obstacle = _in_the_way(env) if own else None
        own = own and obstacle is None
        self.restarts = self._mode == "disabled" or own
        self._waits = own and _resets_once_more(env, self._mode)
        self.rests = self._mode == "next_step" and (not self.restarts or self._waits)
        self.cuts = self.restarts and not self._waits
        self.notes = []
        if not self.restarts:
            self.notes.append(
                UNSEEDED if obstacle is None else f"{UNSEEDED} ({obstacle} stands in the way)"
            )
        self.notes += kept_statistics(env)
        self.notes += _statistics_inside(env)
        self._mask_works = own
        self._counters = [layer for layer in wrappers(env) if _counts_episodes(layer)]
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
        self._over[:] = False

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> Step:
        if self._mode == "disabled" and self._over.any():
            # Nobody plays there any more, but it is stepped with the rest: not past its end.
            self._reset_masked({int(slot): None for slot in np.flatnonzero(self._over)})
        if is_tensor(actions) and not any(map(is_tensor, leaves(self._observations))):
            actions = as_numpy(actions)
        self._observations, reward, terminated, truncated, self._infos = self._env.step(actions)
        step = as_step(
            self._env,
            self.num_envs,
            reward,
            terminated,
            truncated,
            names=("reward", "terminated", "truncated"),
        )
        self._over = step.terminated | step.truncated
        if self._waiting:
            infos, waiting = self._infos, self._waiting
            self._waiting = {}
            self._reset_masked(waiting)
            self._infos = infos  # they are of the step
        return step

    def info(self, slot: int) -> Mapping[str, Any]:
        infos = self._infos
        # A list where DictInfoToList wraps it.
        row = (
            info_row(infos, slot, self.num_envs)
            if isinstance(infos, Mapping)
            else infos[slot] or {}
        )
        final = row.get("final_info") if self._over[slot] else None
        if not isinstance(final, Mapping):
            return row
        # The rest of the row is of the episode that has begun; but a wrapper that counts episodes
        # sees only the step, and puts there what it says of the one that ended.
        return {**{key: row[key] for key in ("episode",) if key in row}, **final}

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        by_slot = dict(zip(slots, seeds, strict=True))
        if self._waits:
            self._waiting = by_slot
        else:
            self._reset_masked(by_slot)

    def _reset_masked(self, seeds: Mapping[int, int | None]) -> None:
        before: list[NDArray[Any]] = []
        if not self._mask_works:
            # Copies: an environment that writes into the same arrays changes what was there.
            before = [np.array(as_numpy(leaf)) for leaf in leaves(self._observations)]
        counted = [
            {name: getattr(layer, name).copy() for name in COUNTS} for layer in self._counters
        ]
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[list(seeds)] = True
        # A dict of our own: Gymnasium takes the mask out of it.
        self._observations, self._infos = self._env.reset(
            seed=[seeds.get(slot) for slot in range(self.num_envs)],
            options={"reset_mask": mask.copy()},
        )
        for layer, counts in zip(self._counters, counted, strict=True):
            # By the time it looks for the mask, the environment has taken that out of the options.
            for name, was in counts.items():
                getattr(layer, name)[~mask] = was[~mask]
        self._over = self._over & ~mask
        if not self._mask_works and not mask.all():
            self._check_others(before, mask)

    def _check_others(self, before: list[NDArray[Any]], mask: Bools) -> None:
        """The mask is a convention: an environment that ignores it has restarted everybody."""
        self._mask_works = True
        for was, leaf in zip(before, leaves(self._observations), strict=True):
            was, now = was[~mask], as_numpy(leaf)[~mask]
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


def _in_the_way(env: Any) -> str | None:
    """The outermost wrapper that may not take one environment's restart as just that.

    A wrapper with a state for each environment has to look at the mask, and a stranger's may not.
    Gymnasium's own do, or have no such state, but for those that normalise.
    """
    for layer in wrappers(env):
        if layer is env.unwrapped:
            break
        kind = type(layer)
        if not kind.__module__.startswith("gymnasium.") or kind.__name__ in STATISTICS:
            return kind.__name__
    return None


def _counts_episodes(layer: Any) -> bool:
    named = any(kind.__name__ == "RecordEpisodeStatistics" for kind in type(layer).__mro__)
    return named and all(hasattr(layer, name) for name in COUNTS)


def _statistics_inside(env: Any) -> list[str]:
    """Notes on wrappers of the environments that this one is made of."""
    base = env.unwrapped
    if hasattr(base, "envs"):
        return kept_statistics(next(iter(base.envs), None))
    if not any(kind.__name__ == "AsyncVectorEnv" for kind in type(base).__mro__):
        return []
    if base.worker is not None:
        return [UNINSPECTED]
    return statistics_of_workers(
        lambda: base.call("__str__"), lambda: base.get_attr("update_running_mean")
    )


def _resets_once_more(env: Any, mode: str) -> bool:
    """Async workers without shared memory forget, in a masked reset, that they were to reset.

    They do it again in the step after. So the seeded reset comes after that step, not before.
    """
    base = env.unwrapped
    return mode == "next_step" and not getattr(base, "shared_memory", True)
