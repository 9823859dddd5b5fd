"""How each kind of environment is stepped: one driver per convention, behind one interface.

_PlainEnvs     a list of Gymnasium environments, each episode reset with a seed of its own
_BatchEnv      anything that takes and returns batches, torch tensors included
_GymVector     a Gymnasium vector environment, in each of its autoreset modes
_SB3Vector     a stable-baselines3 VecEnv

A driver steps all its environments at once and returns numpy arrays. What a convention cannot do
(seed each episode, truncate one) is stated in `notes`, which the report repeats; it is never
approximated in silence.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heldout._live.isolation import reachable_objects
from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.vector.episodes import Bools

UNSEEDED = (
    "episodes after the first of each slot start from the environment's own random state: they "
    "cannot be seeded one by one, so numbers depend on num_envs"
)
UNINSPECTED = "wrappers in the worker processes could not be inspected for statistics they keep"


class VectorStep(NamedTuple):
    """What one step of all environments returned, one entry per environment."""

    reward: NDArray[Any]
    terminated: Bools
    truncated: Bools


class Driver(ABC):
    """Environments of one convention, stepped together."""

    num_envs: int
    name: str
    """Name of the environment in the report."""

    notes: list[str]
    """What a reader of the report should know about these environments."""
    restarts = False
    """Whether `restart` can begin an episode in one environment alone, with a seed of its own.

    It may do so in the middle of an episode, as max_steps needs it.
    """
    rests = False
    """Whether the step after an episode's end only resets."""

    normalizes = False
    """Whether observations come out of a VecNormalize."""

    failed: int | None = None
    """The environment that raised, where that is known."""

    @abstractmethod
    def reset(self, seeds: Sequence[int]) -> None:
        """Begin an episode in every environment, with one seed per environment."""

    @abstractmethod
    def observe(self) -> Any:
        """Return the batch of observations that the policy acts on."""

    @abstractmethod
    def step(self, actions: Any, playing: Bools | None) -> VectorStep:
        """Step all environments; those that play no episode may be left alone."""

    @abstractmethod
    def info(self, slot: int) -> Mapping[str, Any]:
        """Return the last step's info of one environment; at an end, that of the ended episode."""

    @abstractmethod
    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in these environments alone."""

    @abstractmethod
    def close(self) -> None:
        """Close all environments."""


def make_driver(make_env: Callable[[], Any], num_envs: int, episodes: int) -> Driver:
    """Make environments, `num_envs` of them where they are plain, and the driver that fits them.

    There are never more plain environments than `episodes`. Whatever cannot be used is closed,
    unless it existed before: then it is not the evaluation's.
    """
    with ExitStack() as stack:  # closes what was made, should anything below fail
        make_new = _refuse_existing(make_env, stack)
        first = make_new()
        if hasattr(first, "num_envs"):
            driver = _make_vector_driver(first, num_envs)
        else:
            envs = [_check_env(first)]
            while len(envs) < min(num_envs, episodes):
                envs.append(_check_env(make_new()))
            driver = _PlainEnvs(envs)
        stack.pop_all()
    return driver


def check_make_env(make_env: Callable[[], Any]) -> None:
    """Make two environments and close them, to see that each is new.

    Raises:
        InvalidInput: One existed before, such as training's, or both are one. Nothing is closed.
    """
    with ExitStack() as stack:
        make_new = _refuse_existing(make_env, stack)
        make_new(), make_new()


def _refuse_existing(make_env: Callable[[], Any], stack: ExitStack) -> Callable[[], Any]:
    """Return a `make_env` that refuses what existed before; what is new is closed by the stack."""
    known = list(reachable_objects(make_env))  # kept: no new object can have the id of one of these

    def make_new() -> Any:
        env = make_env()
        parts = [part for part in layers(env) if hasattr(part, "step")]
        if not {id(part) for part in parts}.isdisjoint(map(id, known)):
            stack.pop_all()  # what was made earlier may be this one, or a wrapper around it
            raise InvalidInput(
                "make_env() returned an environment that was there before, such as one that "
                "training uses; it must make a new environment at every call: "
                "make_env=lambda: gymnasium.make(…)"
            )
        known.extend(parts)
        if hasattr(env, "close"):
            stack.callback(env.close)
        return env

    return make_new


def _make_vector_driver(env: Any, num_envs: int) -> Driver:
    gymnasium = sys.modules.get("gymnasium")  # imported already where the environment is its own
    driver: Driver
    if gymnasium is not None and isinstance(env, gymnasium.vector.VectorEnv):
        driver = _GymVector(env)
    elif hasattr(env, "step_async") and hasattr(env, "step_wait") and hasattr(env, "env_method"):
        driver = _SB3Vector(env)
    else:
        driver = _BatchEnv(env)
    if num_envs not in (1, driver.num_envs):
        raise InvalidInput(
            f"make_env() made a vectorised environment of {driver.num_envs}, and num_envs is "
            f"{num_envs}; leave num_envs out, or make one of that size"
        )
    return driver


def _check_env(env: Any) -> Any:
    for name in ("reset", "step", "close"):
        if not callable(getattr(env, name, None)):
            raise InvalidInput(
                f"make_env() returns an environment with reset, step and close, got {env!r:.200}"
            )
    return env


# --- Values -------------------------------------------------------------------------------------


def is_tensor(values: Any) -> bool:
    """Return whether this is a torch tensor, without importing torch."""
    return hasattr(values, "detach")


def as_numpy(values: Any) -> NDArray[Any]:
    """Return an array of numbers, a list, or a tensor on any device."""
    if type(values) is np.ndarray:
        return values  # the usual case, at every step
    if is_tensor(values):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def map_leaves(function: Callable[[Any], Any], values: Any) -> Any:
    """Apply a function to every array of a nested dict or tuple of arrays."""
    if type(values) is np.ndarray:
        return function(values)  # the usual case, at every step
    if isinstance(values, Mapping):
        return {key: map_leaves(function, part) for key, part in values.items()}
    if isinstance(values, tuple):
        return tuple(map_leaves(function, part) for part in values)
    return function(values)


def _leaves(values: Any) -> list[Any]:
    leaves: list[Any] = []
    map_leaves(leaves.append, values)
    return leaves


def _as_step(env: Any, num_envs: int, *values: Any) -> VectorStep:
    """Convert what a step returned to numbers and booleans of one shape.

    Masks of integers would select by index, and columns would be broadcast over all episodes.
    """
    reward, terminated, truncated = map(as_numpy, values)
    step = VectorStep(
        reward.astype(np.float64, copy=False),
        terminated.astype(np.bool_, copy=False),
        truncated.astype(np.bool_, copy=False),
    )
    for name, array in zip(VectorStep._fields, step, strict=True):
        if array.shape != (num_envs,):
            raise InvalidInput(
                f"{type(env).__name__}.step() returned {name} of shape {array.shape}; "
                f"it has one number for each of {num_envs} environments"
            )
    return step


def _wrong_step(env: Any, result: Sequence[Any]) -> InvalidInput:
    return InvalidInput(
        f"{type(env).__name__}.step() returned {len(result)} values; it returns 5, as Gymnasium's: "
        "observation, reward, terminated, truncated, info. An environment of the old gym, with 4, "
        "has to be wrapped (shimmy does so)"
    )


def _info_row(infos: Mapping[str, Any], slot: int, num_envs: int) -> dict[str, Any]:
    """Return one environment's part of a dict of arrays.

    Gymnasium says with `_key` for which environments `key` is set. Without such a mask, a value
    with one entry per environment is taken to be set for all of them.
    """
    row = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue  # a mask itself
        mask = infos.get(f"_{key}")
        if mask is not None and not bool(as_numpy(mask)[slot]):
            continue
        if isinstance(value, Mapping):
            inner = _info_row(value, slot, num_envs)
            if inner or mask is not None:
                row[key] = inner
        elif mask is not None or _length(value) == num_envs:
            row[key] = value[slot]
    return row


def _length(values: Any) -> int | None:
    """Return how many rows an array, tensor, list or tuple has; None for anything else."""
    shape = getattr(values, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(values) if isinstance(values, list | tuple) else None


def check_actions(actions: Any, num_envs: int) -> None:
    """Refuse a batch without one action per environment; dicts and tuples are checked later."""
    if not isinstance(actions, dict | tuple) and _length(actions) != num_envs:
        shape = getattr(actions, "shape", None)
        value = f"{actions!r:.80}" if shape is None else f"of shape {tuple(shape)}"
        raise InvalidInput(
            f"policy_fn was given {num_envs} observations and returned {type(actions).__name__} "
            f"{value}; it returns one action for each: an array or list of {num_envs}"
        )


# --- Wrappers -----------------------------------------------------------------------------------


def wrappers(env: Any, attribute: str = "env") -> Iterator[Any]:
    """Yield an environment and all that it wraps, outermost first.

    `attribute` is where wrappers keep what they wrap: "env", or "venv" in stable-baselines3.
    """
    while env is not None:
        yield env
        # Not getattr: VecEnvWrapper forwards what it does not have itself.
        env = getattr(env, "__dict__", {}).get(attribute)


def layers(env: Any) -> Iterator[Any]:
    """Yield an environment, all that it wraps, and the environments that it consists of."""
    yield env
    attributes = getattr(env, "__dict__", {})
    envs = attributes.get("envs")
    inside = [attributes.get("venv"), attributes.get("env")]
    inside += envs if isinstance(envs, list | tuple) else ()
    for inner in inside:
        if inner is not None:
            yield from layers(inner)


def _has_class(env: Any, name: str) -> bool:
    return any(kind.__name__ == name for kind in type(env).__mro__)


def _name_of(env: Any) -> str:
    spec_id = getattr(getattr(env, "spec", None), "id", None)
    return str(spec_id or type(getattr(env, "unwrapped", env)).__name__)


STATISTICS = ("NormalizeObservation", "NormalizeReward")
"""Gymnasium's wrappers that carry something over from one episode to the next."""


def _note_statistics(
    env: Any,
    call: Callable[[str], Any] | None = None,
    get_attr: Callable[[str], Sequence[Any]] | None = None,
) -> list[str]:
    """Return notes on normalising wrappers around an environment, and around those inside it.

    `call` and `get_attr` reach the environments inside a vectorised one, wherever they are.
    """
    learns = {
        type(layer).__name__: bool(getattr(layer, "update_running_mean", True))
        for layer in wrappers(env)
    }
    if call is not None and get_attr is not None:
        try:
            text = str(call("__str__"))  # it names every wrapper
            inside = [kind for kind in STATISTICS if f"<{kind}" in text]
            # Of two, only the outer one's flag can be asked for.
            flags = get_attr("update_running_mean") if len(inside) == 1 else [True]
        except (AttributeError, NotImplementedError):
            return [UNINSPECTED]
        learns |= dict.fromkeys(inside, any(flags))
    notes = []
    if "NormalizeReward" in learns:
        notes.append("rewards are those of NormalizeReward, not the environment's own")
    for kind in STATISTICS:
        if learns.get(kind):
            notes.append(
                f"{kind} goes on learning its statistics: episodes depend on those played before "
                "them, and numbers on num_envs. Set update_running_mean = False on it"
            )
    return notes


# --- Plain environments -------------------------------------------------------------------------


class _PlainEnvs(Driver):
    """A list of plain environments. One that plays no episode is not stepped."""

    restarts = True

    def __init__(self, envs: list[Any]) -> None:
        self.num_envs = len(envs)
        self.name = _name_of(envs[0])
        self.notes = _note_statistics(envs[0])
        self._envs = envs
        self._takes_tuples = type(getattr(envs[0], "action_space", None)).__name__ == "Tuple"
        self._steps = [(slot, env.step) for slot, env in enumerate(envs)]
        self._space = getattr(envs[0], "observation_space", None)
        self._observations: list[Any] = [None] * len(envs)
        self._infos: list[Mapping[str, Any]] = [{}] * len(envs)
        self._reward = np.zeros(len(envs))
        self._none = np.zeros(len(envs), dtype=np.bool_)

    def reset(self, seeds: Sequence[int]) -> None:
        self.restart(range(self.num_envs), seeds)

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        for slot, seed in zip(slots, seeds, strict=True):
            self.failed = slot
            self._observations[slot], self._infos[slot] = self._envs[slot].reset(seed=seed)
        self.failed = None

    def observe(self) -> Any:
        return _stack(self._observations, self._space)

    def step(self, actions: Any, playing: Bools | None) -> VectorStep:
        # The one loop over environments: whatever it does besides stepping them adds up.
        observations, reward, infos = self._observations, self._reward, self._infos
        rows = actions if type(actions) is np.ndarray else self._split_actions(actions)
        steps = self._steps
        if playing is not None:
            steps = [steps[slot] for slot in np.flatnonzero(playing).tolist()]
        ends = slot = None
        try:
            for slot, step in steps:
                result = step(rows[slot])
                if len(result) != 5:
                    raise _wrong_step(self._envs[slot], result)
                observations[slot], reward[slot], terminated, truncated, infos[slot] = result
                if terminated or truncated:
                    if ends is None:
                        ends = self._none.copy(), self._none.copy()
                    ends[0][slot], ends[1][slot] = terminated, truncated
        except BaseException:
            self.failed = slot
            raise
        return VectorStep(reward, *(ends or (self._none, self._none)))

    def _split_actions(self, actions: Any) -> Any:
        if isinstance(actions, Mapping) or (isinstance(actions, tuple) and self._takes_tuples):
            return _unstack(actions, self.num_envs)
        return as_numpy(actions) if is_tensor(actions) else actions

    def info(self, slot: int) -> Mapping[str, Any]:
        return self._infos[slot]

    def close(self) -> None:
        with ExitStack() as stack:  # every one, also where another one fails
            for env in self._envs:
                stack.callback(env.close)


RAGGED = ("Sequence", "Graph", "Text", "OneOf")
"""Gymnasium's spaces whose values differ in shape: a batch of them is a list."""


def _stack(observations: list[Any], space: Any) -> Any:
    """Make one batch of observations: arrays, dicts and tuples of batches, lists of the rest.

    Arrays have the type that the space states, as Gymnasium's own batches have.
    """
    first = observations[0]
    if type(space).__name__ in RAGGED or isinstance(first, str | bytes):
        return list(observations)
    if isinstance(first, dict | tuple):
        spaces = getattr(space, "spaces", None)
        parts = {
            key: _stack([row[key] for row in observations], spaces[key] if spaces else None)
            for key in (first if isinstance(first, dict) else range(len(first)))
        }
        return parts if isinstance(first, dict) else tuple(parts.values())
    if type(first) is not np.ndarray and is_tensor(first):
        observations = [as_numpy(row) for row in observations]
    try:
        batch = np.array(observations, dtype=getattr(space, "dtype", None))
    except ValueError as problem:
        raise EnvironmentFailed(f"observations have different shapes: {problem}") from None
    return list(observations) if batch.dtype.hasobject else batch


def _unstack(actions: Any, size: int) -> list[Any]:
    """Split a batch of dict or tuple actions, as Gymnasium has them, into one per environment."""
    if isinstance(actions, Mapping):
        columns = {key: _unstack(part, size) for key, part in actions.items()}
        return [{key: rows[i] for key, rows in columns.items()} for i in range(size)]
    if isinstance(actions, tuple):
        return list(zip(*(_unstack(part, size) for part in actions), strict=True))
    check_actions(actions, size)
    return list(as_numpy(actions))


# --- Batches ------------------------------------------------------------------------------------


class _BatchEnv(Driver):
    """Anything that takes and returns batches: simulators that run thousands of copies at once.

    `reset() -> obs | (obs, info)`, `step(actions) -> (obs, reward, done, trunc, info)`. Arrays may
    be torch tensors on any device: the policy gets the observations as they are, and results are
    kept in numpy. Such environments reset in the step that ends an episode; one that does so in
    the next step says `autoreset_mode = "next_step"`.
    """

    def __init__(self, env: Any) -> None:
        self._set_env(env)
        self.name = _name_of(env)

        stated = getattr(env, "autoreset_mode", None) or _stated_mode(env)
        mode = "same_step" if stated is None else _parse_autoreset_mode(env, stated)
        if mode == "disabled":
            raise InvalidInput(
                f"{type(env).__name__} does not reset by itself and is no Gymnasium vector "
                "environment; make_env may return a single one of it instead"
            )
        self.rests = mode == "next_step"
        self.notes = [UNSEEDED]
        if stated is None:
            self.notes.append("the environment sets no `autoreset_mode`; same-step reset assumed")
        self._seeded = _takes_seed(env.reset)
        if not self._seeded:
            self.notes.append("it cannot be seeded at all")

    def _set_env(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)
        self._over = np.zeros(self.num_envs, dtype=np.bool_)
        """Environments whose episode has ended and that were not restarted since."""
        self._observations: Any = None
        self._infos: Any = {}
        self._infos_on_host = True

    def reset(self, seeds: Sequence[int]) -> None:
        result = self._env.reset(seed=int(seeds[0])) if self._seeded else self._env.reset()
        self._observations = result[0] if isinstance(result, tuple) else result

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> VectorStep:
        result = self._env.step(actions)
        if len(result) != 5:
            raise _wrong_step(self._env, result)
        self._observations, *values, self._infos = result
        self._infos_on_host = False
        step = _as_step(self._env, self.num_envs, *values)
        self._over = step.terminated | step.truncated
        return step

    def info(self, slot: int) -> Mapping[str, Any]:
        if not self._infos_on_host:
            # All at once: read entry by entry, a GPU would be waited for each time.
            self._infos = map_leaves(lambda v: as_numpy(v) if is_tensor(v) else v, self._infos)
            self._infos_on_host = True
        infos = self._infos
        if isinstance(infos, Mapping):
            row: Mapping[str, Any] = _info_row(infos, slot, self.num_envs)
        else:  # a list of dicts
            row = (infos[slot] if infos is not None else None) or {}
        final = row.get("final_info") if self._over[slot] else None
        if not isinstance(final, Mapping):
            return row
        # The rest of the row belongs to the episode that has begun; but a wrapper that counts
        # episodes sees only the step, and puts there what it says of the one that ended.
        return {**{key: row[key] for key in ("episode",) if key in row}, **final}

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        raise NotImplementedError("it restarts by itself")

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()


def _stated_mode(env: Any) -> Any:
    return (getattr(env, "metadata", None) or {}).get("autoreset_mode")


def _parse_autoreset_mode(env: Any, stated: Any) -> str:
    mode = str(getattr(stated, "name", stated)).lower()
    if mode not in ("next_step", "same_step", "disabled"):
        raise InvalidInput(f"{type(env).__name__} has an unknown autoreset_mode: {stated!r}")
    return mode


def _takes_seed(reset: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(reset).parameters.values()
    except (TypeError, ValueError):  # compiled
        return False
    return any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters)


# --- Gymnasium's vector environments ------------------------------------------------------------

COUNTS = ("episode_returns", "episode_lengths", "episode_start_times", "prev_dones")
"""What Gymnasium's RecordEpisodeStatistics keeps of episodes in flight."""


class _GymVector(_BatchEnv):
    """A Gymnasium vector environment.

    Gymnasium's own Sync and Async ones can be reset one by one with a seed, and then every episode
    is as exact as in a list of plain environments. Others are left to reset themselves, unless
    they are DISABLED, where `reset_mask` is Gymnasium's convention and is checked.
    """

    def __init__(self, env: Any) -> None:
        self._set_env(env)
        base = env.unwrapped
        first = next(iter(getattr(base, "envs", ())), env)
        self.name = _name_of(env if getattr(env, "spec", None) else first)

        stated = _stated_mode(env)
        if stated is None:
            raise InvalidInput(
                f"{type(env).__name__} does not say how it resets: its metadata has no "
                "'autoreset_mode'. Set it to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP "
                "or DISABLED, whichever is true"
            )
        self._mode = _parse_autoreset_mode(env, stated)
        standard = _is_gymnasiums(base)
        obstacle = _find_restart_obstacle(env, self._mode) if standard else None
        self._mask_works = standard and obstacle is None
        self.restarts = self._mode == "disabled" or self._mask_works
        self.rests = self._mode == "next_step" and not self.restarts
        self.notes = [] if self.restarts else [_unseeded_by(obstacle)]
        if standard:
            self.notes += _note_statistics(env, base.call, base.get_attr)
        else:
            self.notes += _note_statistics(env)
            if _has_class(base, "AsyncVectorEnv"):
                self.notes.append(UNINSPECTED)  # a user's own worker function may not answer
        self._counters = [
            layer
            for layer in wrappers(env)
            if _has_class(layer, "RecordEpisodeStatistics")
            and all(hasattr(layer, name) for name in COUNTS)
        ]

    def reset(self, seeds: Sequence[int]) -> None:
        # One that restarts by itself is seeded as a whole, as Gymnasium's contract has it.
        seed: Any = list(seeds) if self.restarts else int(seeds[0])
        self._observations, self._infos = self._env.reset(seed=seed)
        self._over[:] = False

    def step(self, actions: Any, playing: Bools | None) -> VectorStep:
        if self._mode == "disabled" and self._over.any():
            # No episode is left for these, but they are stepped with the rest: not past their end.
            self._reset_masked({int(slot): None for slot in np.flatnonzero(self._over)})
        if is_tensor(actions) and not any(map(is_tensor, _leaves(self._observations))):
            actions = as_numpy(actions)
        return super().step(actions, playing)

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        self._reset_masked(dict(zip(slots, seeds, strict=True)))

    def _reset_masked(self, seeds: Mapping[int, int | None]) -> None:
        # Copies: an environment may write into the same arrays again.
        before: list[NDArray[Any]] = []
        if not self._mask_works:
            before = [np.array(as_numpy(part)) for part in _leaves(self._observations)]
        counts = [
            {name: getattr(layer, name).copy() for name in COUNTS} for layer in self._counters
        ]
        mask = np.zeros(self.num_envs, dtype=np.bool_)
        mask[list(seeds)] = True
        # A copy of the mask in a dict of its own: Gymnasium takes it out of there.
        self._observations, self._infos = self._env.reset(
            seed=[seeds.get(slot) for slot in range(self.num_envs)],
            options={"reset_mask": mask.copy()},
        )
        for layer, saved in zip(self._counters, counts, strict=True):
            # By the time it looks for the mask, the environment has taken that out of the options.
            for name, values in saved.items():
                getattr(layer, name)[~mask] = values[~mask]
        self._over = self._over & ~mask
        if not self._mask_works and not mask.all():
            self._check_others_unchanged(before, mask)

    def _check_others_unchanged(self, before: list[NDArray[Any]], mask: Bools) -> None:
        """The mask is a convention: an environment that ignores it has restarted all episodes."""
        self._mask_works = True
        for earlier, part in zip(before, _leaves(self._observations), strict=True):
            old, new = earlier[~mask], as_numpy(part)[~mask]
            if not np.array_equal(old, new, equal_nan=old.dtype.kind == "f"):
                raise EnvironmentFailed(
                    f"{type(self._env).__name__} ignores options['reset_mask']: asked to restart "
                    f"{np.flatnonzero(mask).tolist()}, it changed others in the middle of their "
                    "episodes. Evaluate plain environments (make_env returning a single one)"
                )


def _unseeded_by(obstacle: str | None) -> str:
    return UNSEEDED if obstacle is None else f"{UNSEEDED} ({obstacle} stands in the way)"


def _is_gymnasiums(base: Any) -> bool:
    """Whether this is one of Gymnasium's own, whose masked resets are known to work."""
    if not type(base).__module__.startswith("gymnasium.vector."):
        return False
    kind = type(base).__name__
    return kind == "SyncVectorEnv" or (kind == "AsyncVectorEnv" and base.worker is None)


def _find_restart_obstacle(env: Any, mode: str) -> str | None:
    """Find what may not handle the restart of a single environment.

    A wrapper with a state for each environment has to look at the mask, and a user's may not.
    Gymnasium's own do, or have no such state, apart from those that normalise. Async workers
    without shared memory forget in a masked reset that they were to reset in the next step.
    """
    *outer, base = wrappers(env)
    for kind in map(type, outer):
        if not kind.__module__.startswith("gymnasium.") or kind.__name__ in STATISTICS:
            return kind.__name__
    if mode == "next_step" and not getattr(base, "shared_memory", True):
        return "AsyncVectorEnv without shared memory"
    return None


# --- stable-baselines3's VecEnv -----------------------------------------------------------------

SB3_BASES = ("DummyVecEnv", "SubprocVecEnv")
SB3_NEUTRAL = ("VecMonitor", "VecCheckNan")
"""Wrappers that leave observations as they are."""

NORMALISED_TWICE = (
    "observations would be normalised twice: make_env returns them out of a VecNormalize, and the "
    "policy normalises them too. Give vec_normalize=False to policy_of or HeldoutEvalCallback, or "
    "let make_env return the environment without VecNormalize"
)


class _SB3Vector(Driver):
    """A stable-baselines3 VecEnv, which resets in the step that ends an episode.

    It seeds episodes only when all of them start. But `env_method` reaches the environment behind
    a slot, so an episode that the VecEnv has just begun is begun again, with the seed of its
    index. Where a wrapper stands in between whose state that would bypass (a stack of frames),
    episodes are left as they come, and the report says so.
    """

    def __init__(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)

        *outer, base = wrappers(env, "venv")
        self.name = _name_of(next(iter(getattr(base, "envs", ())), base))
        for layer in (*outer, base):
            if getattr(layer, "norm_reward", False) or getattr(layer, "training", False):
                raise InvalidInput(
                    f"{type(layer).__name__} would learn from the evaluation, or report "
                    "normalised rewards: set training = False and norm_reward = False on it first"
                )
        self.normalizes = normalizes(env)
        self._monitors = [layer for layer in outer if type(layer).__name__ == "VecMonitor"]
        self._transforms: list[Callable[[Any], Any]] = []
        """What an observation goes through on its way out of the wrappers."""
        obstacle = self._find_obstacle(outer, base)
        self.restarts = obstacle is None
        self.notes = ["rewards are float32, as stable-baselines3 keeps them"]
        if obstacle is not None:
            self.notes.insert(0, _unseeded_by(obstacle))
        self.notes += _note_statistics(env, base.env_method, base.get_attr)
        self._observations: Any = None
        self._infos: Sequence[Mapping[str, Any]] = []

    def _find_obstacle(self, outer: list[Any], base: Any) -> str | None:
        """Find a layer that does not let a single environment restart; collect transforms."""
        for layer in (base, *reversed(outer)):
            kind = type(layer).__name__
            if not type(layer).__module__.startswith("stable_baselines3."):
                return kind
            if kind == "VecNormalize":
                self._transforms.append(layer.normalize_obs)
            elif kind == "VecTransposeImage":
                self._transforms.append(layer.transpose_observations)
            elif kind not in (SB3_BASES if layer is base else SB3_NEUTRAL):
                return kind
        return None

    def reset(self, seeds: Sequence[int]) -> None:
        # VecEnv gives seed + i to its i-th environment, at the next reset only.
        self._env.seed(int(seeds[0]) % 2**31)
        self._observations = self._env.reset()
        if self.restarts:
            self.restart(range(self.num_envs), seeds)

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> VectorStep:
        if is_tensor(actions):
            actions = as_numpy(actions)
        self._observations, reward, done, self._infos = self._env.step(actions)
        cut = [bool(info.get("TimeLimit.truncated", False)) for info in self._infos]
        step = _as_step(self._env, self.num_envs, reward, done, cut)
        over, truncated = step.terminated, step.truncated
        return step._replace(terminated=over & ~truncated, truncated=over & truncated)

    def info(self, slot: int) -> Mapping[str, Any]:
        return self._infos[slot]

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        for slot, seed in zip(slots, seeds, strict=True):
            ((observation, _),) = self._env.env_method("reset", indices=slot, seed=seed)
            observation = map_leaves(lambda part: np.asarray(part)[None], observation)
            for transform in self._transforms:
                observation = transform(observation)
            _write_row(self._observations, slot, observation)
            for monitor in self._monitors:
                # It has not seen this reset, and would go on with the episode that was truncated.
                monitor.episode_returns[slot] = monitor.episode_lengths[slot] = 0

    def close(self) -> None:
        self._env.close()


def _write_row(batch: Any, slot: int, observation: Any) -> None:
    """Write a batch of one observation into a row of another batch."""
    if isinstance(batch, dict | tuple):
        for key in batch if isinstance(batch, dict) else range(len(batch)):
            _write_row(batch[key], slot, observation[key])
    else:
        batch[slot] = observation[0]


def normalizes(env: Any) -> bool:
    """Return whether observations come out of a VecNormalize."""
    return any(
        _has_class(layer, "VecNormalize") and layer.norm_obs for layer in wrappers(env, "venv")
    )
