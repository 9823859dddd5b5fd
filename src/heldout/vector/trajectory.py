"""What happened, step by step, as JSON lines.

For one environment `{t, action, reward, done, trunc, dist}`, `t` from 0 in every episode; for
several `{episode, env, t, …}`. `done` is terminated; `dist` is null where the environment does
not say how far it is from its goal. What has no such form is refused before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from heldout.episodes import Slots
from heldout.errors import InvalidInput
from heldout.vector.drivers import Step, as_numpy

DISTANCES = ("dist", "distance", "dist_to_goal", "distance_to_goal")
"""Under which names environments put it in their infos."""

FLAT = ("Box", "Discrete", "MultiDiscrete", "MultiBinary")
"""Action spaces whose actions are a number or an array."""


def distance(info: Mapping[str, Any]) -> float | None:
    """A finite number under one of the usual names, or None."""
    for name in DISTANCES:
        value = info.get(name)
        if value is None:
            continue
        array = as_numpy(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            how_far = float(array.reshape(()))
            return how_far if math.isfinite(how_far) else None
    return None


class TrajectoryFile:
    """Lines for every step that counts. An existing file is never overwritten."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._several = False
        self._lines = 0
        if self._path.suffix != ".jsonl":
            raise InvalidInput(
                f"a trajectory is written as JSON lines: name the file ….jsonl, not {self._path}"
            )
        if self._path.exists():
            raise InvalidInput(f"{self._path} is already there; remove it, or name another file")
        if not self._path.parent.is_dir():
            raise InvalidInput(f"there is no directory {self._path.parent} to write {path} in")
        self._encode = msgspec.json.Encoder().encode

    def prepare(self, action_space: Any, *, several: bool) -> None:
        """Refuse actions that have no form here."""
        self._several = several
        kind = type(action_space).__name__
        known = action_space is not None and hasattr(action_space, "sample")
        if known and not any(c.__name__ in FLAT for c in type(action_space).__mro__):
            raise InvalidInput(
                f"a trajectory holds actions that are a number or an array; those of a {kind} "
                "space have no form in it. Leave trajectory out"
            )

    def check(self, actions: Any) -> None:
        """Where no action space says it, the first actions do."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """The step that is about to be taken into `slots`."""
        actions = as_numpy(actions)
        for slot in range(len(slots.episode)):
            if slots.playing is not None and not slots.playing[slot]:
                continue
            line: dict[str, Any] = {}
            if self._several:
                line |= {"episode": int(slots.episode[slot]), "env": slot}
            t, done = int(slots.steps[slot]), bool(step.terminated[slot])
            cut = max_steps is not None and t + 1 >= max_steps and not done
            line |= {
                "t": t,
                "action": actions[slot].tolist(),
                "reward": float(step.reward[slot]),
                "done": done,
                "trunc": bool(step.truncated[slot]) or cut,
                "dist": distance(info(slot)),
            }
            self._file.write(self._encode(line) + b"\n")
            self._lines += 1
