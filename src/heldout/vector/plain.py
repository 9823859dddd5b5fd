"""A list of plain environments, one by one. Nothing is stepped that plays no episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from heldout.episodes import Bools
from heldout.errors import EnvironmentFailed
from heldout.vector.driver import (
    Step,
    as_numpy,
    check_actions,
    is_tensor,
    kept_statistics,
    name_of,
)


class PlainEnvs:
    restarts, rests, cuts = True, False, True

    def __init__(self, envs: list[Any]) -> None:
        self.num_envs = len(envs)
        self.name = name_of(envs[0])
        self.action_space = getattr(envs[0], "action_space", None)
        self.notes = kept_statistics(envs[0])
        self._envs = envs
        self._numbered = [(slot, env.step) for slot, env in enumerate(envs)]
        self._reward = np.zeros(len(envs))
        self._nobody = np.zeros(len(envs), dtype=np.bool_)
        self._infos: list[Mapping[str, Any]] = [{} for _ in envs]
        self._batch: _Batch | None = None

    def reset(self, seeds: Sequence[int]) -> None:
        first, self._infos[0] = self._envs[0].reset(seed=seeds[0])
        space = getattr(self._envs[0], "observation_space", None)
        self._batch = batch = _batch(first, self.num_envs, space)
        batch.put(0, first)
        self.restart(range(1, self.num_envs), seeds[1:])

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        assert self._batch is not None
        for slot, seed in zip(slots, seeds, strict=True):
            observation, self._infos[slot] = self._envs[slot].reset(seed=seed)
            self._batch.put(slot, observation)

    def observe(self) -> Any:
        assert self._batch is not None
        return self._batch.copy()

    def step(self, actions: Any, playing: Bools | None) -> Step:
        """The one loop over environments: whatever it does besides stepping them adds up."""
        batch, infos, reward = self._batch, self._infos, self._reward
        assert batch is not None
        put, array, shape = batch.put, batch.array, batch.shape
        rows = actions if type(actions) is np.ndarray else self._rows(actions)
        numbered = self._numbered
        if playing is not None:
            numbered = [numbered[slot] for slot in np.flatnonzero(playing)]
        ended = None
        for slot, step in numbered:
            observation, reward[slot], terminated, truncated, infos[slot] = step(rows[slot])
            if type(observation) is np.ndarray and observation.shape == shape:
                array[slot] = observation
            else:
                put(slot, observation)
                array = batch.array
            if terminated or truncated:
                if ended is None:
                    ended = self._nobody.copy(), self._nobody.copy()
                ended[0][slot], ended[1][slot] = terminated, truncated
        return Step(reward, *(ended or (self._nobody, self._nobody)))

    def _rows(self, actions: Any) -> Any:
        """An action an environment; batches of dicts and tuples come as Gymnasium has them."""
        if isinstance(actions, Mapping) or (
            isinstance(actions, tuple) and type(self.action_space).__name__ == "Tuple"
        ):
            return _unbatch(actions, self.num_envs)
        if is_tensor(actions):
            return as_numpy(actions)
        return actions

    def info(self, slot: int) -> Mapping[str, Any]:
        return self._infos[slot]

    def close(self) -> None:
        close_all(self._envs)


def close_all(envs: Iterable[Any]) -> None:
    """Close every one, also where one of them fails, which is then raised."""
    problems: list[Exception] = []
    for env in envs:
        try:
            env.close()
        except Exception as problem:  # noqa: BLE001 - raised below
            problems.append(problem)
    if problems:
        raise problems[0]


def _unbatch(actions: Any, size: int) -> list[Any]:
    if isinstance(actions, Mapping):
        columns = {key: _unbatch(part, size) for key, part in actions.items()}
        return [{key: rows[i] for key, rows in columns.items()} for i in range(size)]
    if isinstance(actions, tuple):
        return list(zip(*(_unbatch(part, size) for part in actions), strict=True))
    check_actions(actions, size)
    return list(as_numpy(actions))


# --- Observations into a batch ------------------------------------------------------------------

RAGGED = ("Sequence", "Graph", "Text", "OneOf")
"""Gymnasium's spaces whose values differ in shape: they come as a list."""


class _Batch(Protocol):
    array: Any
    shape: tuple[int, ...] | None
    """Observations of this shape are put straight into `array`; None: none are."""

    def put(self, slot: int, observation: Any) -> None: ...
    def copy(self) -> Any: ...


class _Array:
    """Observations that are arrays or numbers, in one array.

    Of the type that the observation space states, as Gymnasium's own batches are. Without one, of
    a type that holds all that were seen: a first observation of [0, 0] is no reason to cut
    [0.5, 1] down to integers.
    """

    def __init__(self, first: Any, size: int, space: Any) -> None:
        first = as_numpy(first)
        dtype = getattr(space, "dtype", None)
        self.shape: tuple[int, ...] | None = first.shape if dtype is not None else None
        self.array: Any = np.zeros((size, *first.shape), dtype or first.dtype)

    def put(self, slot: int, observation: Any) -> None:
        given, array = as_numpy(observation), self.array
        if given.shape != array.shape[1:]:
            raise EnvironmentFailed(
                f"an observation has the shape {given.shape}, the first one had {array.shape[1:]}"
            )
        if given.dtype != array.dtype and self.shape is None:
            self.array = array = array.astype(np.result_type(array.dtype, given.dtype))
        array[slot] = given

    def copy(self) -> Any:
        return self.array.copy()


class _Tree:
    """Observations that are dicts or tuples: a batch of each part."""

    array: Any = None
    shape: tuple[int, ...] | None = None

    def __init__(self, first: Any, size: int, space: Any) -> None:
        self._tuple = isinstance(first, tuple)
        parts = dict(enumerate(first)) if self._tuple else first
        spaces = getattr(space, "spaces", None)
        self._parts = {
            key: _batch(part, size, None if spaces is None else spaces[key])
            for key, part in parts.items()
        }

    def put(self, slot: int, observation: Any) -> None:
        if len(observation) != len(self._parts):
            raise EnvironmentFailed(
                f"an observation has {len(observation)} parts, the first one had {len(self._parts)}"
            )
        for key, part in self._parts.items():
            part.put(slot, observation[key])

    def copy(self) -> Any:
        parts = {key: part.copy() for key, part in self._parts.items()}
        return tuple(parts.values()) if self._tuple else parts


class _Objects:
    """Observations that no array holds, such as texts: a list of them."""

    array: Any = None
    shape: tuple[int, ...] | None = None

    def __init__(self, size: int) -> None:
        self._list: list[Any] = [None] * size

    def put(self, slot: int, observation: Any) -> None:
        self._list[slot] = observation

    def copy(self) -> Any:
        return list(self._list)


def _batch(first: Any, size: int, space: Any) -> _Batch:
    if type(space).__name__ in RAGGED or isinstance(first, str | bytes):
        return _Objects(size)
    if isinstance(first, dict | tuple):
        return _Tree(first, size, space)
    try:
        plain = as_numpy(first).dtype != object
    except ValueError:  # lists of different lengths
        plain = False
    return _Array(first, size, space) if plain else _Objects(size)
