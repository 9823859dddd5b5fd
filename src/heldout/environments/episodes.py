"""One episode of somebody's environment: what it returns, read strictly, and its own random state.

Environments draw from the global `random` and from numpy, and some seed them at every reset. So an
episode has random states of its own, which are the global ones only while its code runs: episodes
do not disturb one another, at any concurrency, nor anybody else in this thread.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import random
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from heldout.errors import EnvironmentFailed
from heldout.types import Sample

T = TypeVar("T")
_swapping = threading.Lock()


class ActionRefused(Exception):
    """An action is no valid one, which is the model's mistake: it is told so, and may go on.

    An environment in this process may raise it in `step`, whose state must be as before.
    """


class EpisodeStep(NamedTuple):
    """What an environment returned: to its reset, or to an action."""

    observation: Any
    """A text, messages as chat APIs have them, or whatever else it is."""
    reward: float | None = None
    """None where it says nothing, which is not 0."""
    done: bool = False
    truncated: bool = False
    """Whether the environment's own limit ended the episode."""
    numbers: Mapping[str, float] = {}
    """The numbers in its info."""


class RandomStates:
    """The states of `random` and numpy that belong to one episode."""

    def __init__(self, name: str) -> None:
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        self._python = random.Random(seed).getstate()
        self._numpy = np.random.RandomState(seed).get_state()

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Make these the global states while the block runs; it must not await anything."""
        with _swapping:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)

    async def run(self, returned: Awaitable[T]) -> T:
        """Await what an environment returned, with these states while its code runs.

        The body of a coroutine runs when it is awaited, not when it is made. It is stepped here, so
        that each part between two awaits has these states: held across an await, they would be
        those of every other episode that runs meanwhile.
        """

        async def awaited() -> T:  # an awaitable need have neither `send` nor `throw`
            return await returned

        return await self._drive(awaited())

    @types.coroutine
    def _drive(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        step: Callable[[], Any] = partial(coroutine.send, None)
        while True:
            try:
                with self.swapped_in():
                    waits_for = step()
            except StopIteration as ended:
                return cast("T", ended.value)  # what the coroutine returned
            try:
                step = partial(coroutine.send, (yield waits_for))
            except GeneratorExit:
                with self.swapped_in():
                    coroutine.close()
                raise
            except BaseException as problem:  # noqa: BLE001 - a cancellation, which is the coroutine's
                step = partial(coroutine.throw, problem)


class StepEpisode:
    """An episode of an environment with reset(seed) or init(prompt), and step(action).

    Args:
        make_env: Makes the environment of a sample.
        sample: The sample. `seed` in its input goes to reset, and so do other fields where
            `passes_input` is set.
        prompt: The sample's messages, for environments with init(prompt).
        passes_input: Whether reset gets the whole input.
    """

    def __init__(
        self,
        make_env: Callable[[Sample], Any],
        sample: Sample,
        prompt: list[dict[str, Any]],
        *,
        passes_input: bool = False,
    ) -> None:
        self._states = RandomStates(f"{sample.id} {json.dumps(sample.input, default=str)}")
        self._make_env, self._sample, self._prompt = make_env, sample, prompt
        self._passes_input = passes_input
        self._env: Any = None

    def begin(self) -> EpisodeStep | Awaitable[EpisodeStep]:
        """Make the environment and reset it."""
        return self._call(self._begin, _read_reset)

    def step(self, action: Any) -> EpisodeStep | Awaitable[EpisodeStep]:
        """Take an action."""
        return self._call(lambda: self._env.step(action), _read_step)

    def close(self) -> Awaitable[None] | None:
        """Close the environment, where it can be."""
        close = getattr(self._env, "close", None)
        if close is None:
            return None
        with self._states.swapped_in():
            closed = close()
        return self._states.run(closed) if inspect.isawaitable(closed) else None

    def _begin(self) -> Any:
        env = self._env = self._make_env(self._sample)
        if callable(getattr(env, "init", None)):  # SkyRL-gym
            return env.init(self._prompt)
        if self._passes_input:
            return env.reset(**self._sample.input)
        if "seed" in self._sample.input:
            return env.reset(seed=self._sample.input["seed"])
        return env.reset()

    def _call(
        self, function: Callable[[], Any], read: Callable[[Any], EpisodeStep]
    ) -> EpisodeStep | Awaitable[EpisodeStep]:
        with self._states.swapped_in():
            returned = function()
        if not inspect.isawaitable(returned):
            return read(returned)

        async def wait() -> EpisodeStep:
            return read(await self._states.run(returned))

        return wait()


# --- What environments return ---------------------------------------------------------------------


def _read_reset(returned: Any) -> EpisodeStep:
    if isinstance(returned, tuple):
        if len(returned) != 2:
            raise EnvironmentFailed(
                f"reset returns (observation, info), got a tuple of {len(returned)}"
            )
        return EpisodeStep(returned[0], numbers=_numbers(returned[1]))
    if hasattr(returned, "observation"):  # OpenEnv
        return _read_result(returned)
    return EpisodeStep(returned)


def _read_step(returned: Any) -> EpisodeStep:
    if isinstance(returned, tuple) and len(returned) == 5:  # Gymnasium, GEM
        observation, reward, terminated, truncated, info = returned
        done = _flag(terminated) or _flag(truncated)
        return EpisodeStep(observation, _reward(reward), done, _flag(truncated), _numbers(info))
    if isinstance(returned, Mapping) and {"observations", "reward", "done"} <= returned.keys():
        return EpisodeStep(  # SkyRL-gym
            returned["observations"],
            _reward(returned["reward"]),
            _flag(returned["done"]),
            numbers=_numbers(returned.get("metadata")),
        )
    if hasattr(returned, "observation") and hasattr(returned, "done"):  # OpenEnv
        return _read_result(returned)
    raise EnvironmentFailed(
        "step returns (observation, reward, terminated, truncated, info), a dict with "
        "observations, reward and done, or an object with observation, reward and done; got "
        f"{returned!r:.200}"
    )


def _read_result(result: Any) -> EpisodeStep:
    info = getattr(result, "metadata", None)
    reward = _reward(getattr(result, "reward", None))
    return EpisodeStep(result.observation, reward, _flag(result.done), numbers=_numbers(info))


def _reward(value: Any) -> float | None:
    if value is None:
        return None
    try:
        reward = float(value)
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise EnvironmentFailed(f"a reward must be a finite number or None, got {value!r:.100}")
    return reward


def _flag(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise EnvironmentFailed(
        f"whether an episode has ended must be True or False, got {value!r:.100}"
    )


def _numbers(info: Any) -> dict[str, float]:
    """Return the finite numbers of an info, by name."""
    if not isinstance(info, Mapping):
        return {}
    return {
        str(name): float(value)
        for name, value in info.items()
        if isinstance(value, bool | int | float | np.number) and math.isfinite(value)
    }
