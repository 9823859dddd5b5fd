"""What happened, step by step, as JSON lines.

One environment writes `{t, action, reward, done, trunc, dist}`, `t` from 0 in every episode;
several write `{episode, env, t, …}`. `done` is terminated; `dist` is null where the environment
does not say how far it is from its goal. Actions without such a form are refused before a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from heldout.errors import InvalidInput
from heldout.vector.drivers import Step, as_numpy
from heldout.vector.episodes import Slots

DISTANCES = ("dist", "distance", "dist_to_goal", "distance_to_goal")
"""Keys under which environments put it in their infos."""


def distance(info: Mapping[str, Any]) -> float | None:
    """Return the distance to the goal that an info states, if it is a finite number."""
    for name in DISTANCES:
        value = info.get(name)
        if value is None:
            continue
        array = as_numpy(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            number = float(array.reshape(()))
            return number if math.isfinite(number) else None
    return None


class TrajectoryFile:
    """A file with one line for every step of an episode; a context manager.

    Args:
        path: A `.jsonl` file that does not exist yet.

    Raises:
        InvalidInput: It exists, has another suffix, or its directory does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.several = False
        """Whether lines say whose step it is."""
        self._path = Path(path)
        self._lines = 0
        self._encode = msgspec.json.Encoder().encode
        if self._path.suffix != ".jsonl":
            raise InvalidInput(
                f"a trajectory is written as JSON lines: name the file ….jsonl, not {self._path}"
            )
        if self._path.exists():
            raise InvalidInput(f"{self._path} is already there; remove it, or name another file")
        if not self._path.parent.is_dir():
            raise InvalidInput(f"there is no directory {self._path.parent} to write {path} in")

    def check(self, actions: Any) -> None:
        """Refuse actions that are neither numbers nor arrays, before the first step."""
        if self._lines == 0 and (
            isinstance(actions, dict | tuple) or as_numpy(actions).dtype.kind not in "biuf"
        ):
            raise InvalidInput(
                "a trajectory holds actions that are numbers or arrays of numbers; policy_fn "
                f"returned {actions!r:.120}. Leave trajectory out"
            )

    def __enter__(self) -> Self:
        self._file = self._path.open("xb")
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        if self._lines == 0:
            self._path.unlink()

    def write(
        self,
        slots: Slots,
        actions: Any,
        step: Step,
        info: Callable[[int], Mapping[str, Any]],
        max_steps: int | None,
    ) -> None:
        """Write one step of all environments that play an episode.

        `slots` are as they were before the step, `max_steps` is where episodes are truncated.
        """
        actions = as_numpy(actions)
        for slot, episode in enumerate(slots.episode.tolist()):
            if slots.playing is not None and not slots.playing[slot]:
                continue
            t, done = int(slots.steps[slot]), bool(step.terminated[slot])
            cut = max_steps is not None and t + 1 >= max_steps and not done
            line = {
                **({"episode": episode, "env": slot} if self.several else {}),
                "t": t,
                "action": actions[slot].tolist(),
                "reward": float(step.reward[slot]),
                "done": done,
                "trunc": bool(step.truncated[slot]) or cut,
                "dist": distance(info(slot)),
            }
            self._file.write(self._encode(line) + b"\n")
            self._lines += 1
