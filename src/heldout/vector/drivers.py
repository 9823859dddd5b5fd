"""How each kind of environment is stepped: one driver per convention, all with one interface.

PlainEnvs     a list of Gymnasium environments: each episode is reset with a seed of its own
GymVector     a Gymnasium vector environment, in each of its autoreset modes
SB3Vector     a stable-baselines3 VecEnv
BatchEnv      anything else that takes and returns batches, torch tensors included

A driver steps all its environments at once and returns plain numpy arrays. What a convention cannot
do (seed each episode, cut one off) it says, and `notes` puts it in words for the report; it is
never approximated in silence.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from heldout.episodes import Bools
from heldout.errors import EnvironmentFailed, InvalidInput

UNSEEDED = (
    "episodes after the first of each slot start from the environment's own random state: they "
    "cannot be seeded one by one, so numbers depend on num_envs"
)
UNINSPECTED = "wrappers in the worker processes could not be inspected for statistics they keep"


class Step(NamedTuple):
    reward: NDArray[Any]
    terminated: Bools
    truncated: Bools


class Driver(Protocol):
    num_envs: int
    name: str
    """What the environment is called, for the report."""
    action_space: Any
    """Of one environment; None where there is none to be had."""
    restarts: bool
    """Whether `restart` can begin an episode in one environment alone, with a seed of its own."""
    rests: bool
    """Whether the step after an episode's end only resets."""
    cuts: bool
    """Whether `restart` may come in the middle of an episode, as max_steps needs it."""
    notes: list[str]
    """What a reader of the report should know about these environments."""

    def reset(self, seeds: Sequence[int]) -> None:
        """Begin an episode everywhere; one seed an environment."""
        ...

    def observe(self) -> Any:
        """The batch of observations that the policy acts on."""
        ...

    def step(self, actions: Any, playing: Bools | None) -> Step:
        """Step all environments; those that do not play may be left alone."""
        ...

    def info(self, slot: int) -> Mapping[str, Any]:
        """What the last step said of this environment, at an episode's end of that episode."""
        ...

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None: ...

    def close(self) -> None: ...


# --- Values of whatever kind --------------------------------------------------------------------


def is_tensor(values: Any) -> bool:
    return hasattr(values, "detach")


def as_numpy(values: Any) -> NDArray[Any]:
    """An array of whatever has been given: numpy, a list, a tensor on any device."""
    if is_tensor(values):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def leaves(values: Any) -> list[Any]:
    """The arrays that a dict or tuple of arrays is made of."""
    if isinstance(values, Mapping):
        return [leaf for part in values.values() for leaf in leaves(part)]
    if isinstance(values, tuple):
        return [leaf for part in values for leaf in leaves(part)]
    return [values]


def as_step(
    env: Any, num_envs: int, reward: Any, terminated: Any, truncated: Any, names: Sequence[str]
) -> Step:
    """What a step gave, as numbers and booleans of one shape, whatever kind they came as.

    Masks of integers would select by index, and columns would be spread over everybody's books.
    """
    step = Step(
        as_numpy(reward).astype(np.float64),
        as_numpy(terminated).astype(np.bool_, copy=False),
        as_numpy(truncated).astype(np.bool_, copy=False),
    )
    for name, values in zip(names, step, strict=True):
        if values.shape != (num_envs,):
            raise InvalidInput(
                f"{type(env).__name__}.step() returned {name} of shape {values.shape}; "
                f"it has one number for each of {num_envs} environments"
            )
    return step


def info_row(infos: Mapping[str, Any], slot: int, num_envs: int) -> dict[str, Any]:
    """One environment's part of a dict of arrays.

    Gymnasium says with `_key` whose `key` is set. Without one, what has an entry for each
    environment is everybody's.
    """
    row = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue  # a mask itself
        mask = infos.get(f"_{key}")
        if mask is not None and not bool(as_numpy(mask)[slot]):
            continue
        if isinstance(value, Mapping):
            inner = info_row(value, slot, num_envs)
            if inner or mask is not None:
                row[key] = inner
        elif mask is not None or _length(value) == num_envs:
            row[key] = value[slot]
    return row


def _length(values: Any) -> int | None:
    shape = getattr(values, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    return len(values) if isinstance(values, list | tuple) else None


def check_actions(actions: Any, num_envs: int) -> None:
    """One action an environment. Dicts and tuples are checked by whoever takes them apart."""
    if type(actions) is np.ndarray and actions.ndim and len(actions) == num_envs:
        return  # as nearly always
    shape = getattr(actions, "shape", None)
    if shape is not None:
        count = shape[0] if len(shape) else None
    elif isinstance(actions, dict | tuple):
        return
    else:
        count = len(actions) if hasattr(actions, "__len__") else None
    if count != num_envs:
        what = f"of shape {tuple(shape)}" if shape is not None else f"{actions!r:.80}"
        raise InvalidInput(
            f"policy_fn was given {num_envs} observations and returned {type(actions).__name__} "
            f"{what}; it returns one action for each: an array or list of {num_envs}"
        )


def wrappers(env: Any) -> Iterator[Any]:
    """An environment and all it wraps, outermost first."""
    while env is not None:
        yield env
        env = getattr(env, "env", None)


def layers(env: Any) -> list[Any]:
    """An environment, all that it wraps, and all that those are made of."""
    found = []
    while env is not None:
        found.append(env)
        held = getattr(env, "__dict__", {})
        if isinstance(held.get("envs"), list | tuple):
            return found + [inner for part in held["envs"] for inner in layers(part)]
        env = held.get("venv") or held.get("env")
    return found


def name_of(env: Any) -> str:
    spec_id = getattr(getattr(env, "spec", None), "id", None)
    return str(spec_id or type(getattr(env, "unwrapped", env)).__name__)


STATISTICS = ("NormalizeObservation", "NormalizeReward")
"""Gymnasium's wrappers that carry something over from one episode to the next."""


def kept_statistics(env: Any) -> list[str]:
    """Notes on those of an environment."""
    notes = []
    for layer in wrappers(env):
        kind = type(layer).__name__
        if kind in STATISTICS:
            notes += _on_statistics(kind, bool(getattr(layer, "update_running_mean", True)))
    return notes


def statistics_of_workers(
    describe: Callable[[], Any], learning: Callable[[], Sequence[Any]]
) -> list[str]:
    """Notes on those of environments in other processes.

    `describe` asks for their str(), which names every wrapper; `learning` for update_running_mean.
    """
    try:
        text = str(describe())
        kinds = [kind for kind in STATISTICS if f"<{kind}" in text]
        # Of two, only the outer one's flag can be asked for.
        learns = len(kinds) > 1 or (bool(kinds) and any(learning()))
    except Exception:  # noqa: BLE001 - what they run is anybody's, and the note says so
        return [UNINSPECTED]
    return [note for kind in kinds for note in _on_statistics(kind, learns)]


def _on_statistics(kind: str, learns: bool) -> list[str]:
    notes = []
    if kind == "NormalizeReward":
        notes.append("rewards are those of NormalizeReward, not the environment's own")
    if learns:
        notes.append(
            f"{kind} goes on learning its statistics: episodes depend on those played before "
            "them, and numbers on num_envs. Set update_running_mean = False on it"
        )
    return notes


# --- Plain environments ---------------------------------------------------------------------------


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


# --- Gymnasium's vector environments --------------------------------------------------------------


COUNTS = ("episode_returns", "episode_lengths", "episode_start_times", "prev_dones")
"""What Gymnasium's RecordEpisodeStatistics keeps of episodes under way."""


class GymVector:
    def __init__(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)
        self.name = _vector_name(env)
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
        self.notes += _gym_statistics(env)
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


def _vector_name(env: Any) -> str:
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


def _gym_statistics(env: Any) -> list[str]:
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


# --- stable-baselines3's VecEnv -------------------------------------------------------------------


BASES = ("DummyVecEnv", "SubprocVecEnv")
PASSED_THROUGH = ("VecMonitor", "VecCheckNan")
"""Wrappers that leave observations as they are."""


class SB3Vector:
    rests = False

    def __init__(self, env: Any) -> None:
        self._env, self.num_envs = env, int(env.num_envs)
        self.action_space = env.action_space
        layers = _venv_layers(env)
        self.name = name_of(next(iter(getattr(layers[-1], "envs", ())), layers[-1]))
        for layer in layers:
            if getattr(layer, "norm_reward", False) or getattr(layer, "training", False):
                raise InvalidInput(
                    f"{type(layer).__name__} would learn from the evaluation, or report "
                    "normalised rewards: set training = False and norm_reward = False on it first"
                )
        self.normalizes = normalizes(env)
        self._monitors = [layer for layer in layers if type(layer).__name__ == "VecMonitor"]
        self._transforms, obstacle = _transforms(layers)
        self.restarts = self.cuts = obstacle is None
        self.notes = ["rewards are float32, as stable-baselines3 keeps them"]
        if obstacle is not None:
            self.notes.insert(0, f"{UNSEEDED} ({obstacle} stands in the way)")
        self.notes += _sb3_statistics(layers[-1])
        self._observations: Any = None
        self._infos: Sequence[Mapping[str, Any]] = []

    def reset(self, seeds: Sequence[int]) -> None:
        # VecEnv gives seed + i to its i-th environment, at the next reset only.
        self._env.seed(int(seeds[0]) % 2**31)
        self._observations = self._env.reset()
        if self.restarts:
            self.restart(range(self.num_envs), seeds)

    def observe(self) -> Any:
        return self._observations

    def step(self, actions: Any, playing: Bools | None) -> Step:
        if is_tensor(actions):
            actions = as_numpy(actions)
        self._observations, reward, done, self._infos = self._env.step(actions)
        cut = np.fromiter(
            (bool(info.get("TimeLimit.truncated", False)) for info in self._infos),
            dtype=np.bool_,
            count=self.num_envs,
        )
        step = as_step(self._env, self.num_envs, reward, done, cut, names=("reward", "done", "cut"))
        over = step.terminated
        return step._replace(terminated=over & ~cut, truncated=over & cut)

    def info(self, slot: int) -> Mapping[str, Any]:
        return self._infos[slot]

    def restart(self, slots: Sequence[int], seeds: Sequence[int]) -> None:
        for slot, seed in zip(slots, seeds, strict=True):
            ((observation, _),) = self._env.env_method("reset", indices=slot, seed=seed)
            observation = _map(lambda part: np.asarray(part)[None], observation)
            for transform in self._transforms:
                observation = transform(observation)
            _put(self._observations, slot, observation)
            for monitor in self._monitors:
                # It has not seen this reset, and would go on with the episode that was cut off.
                monitor.episode_returns[slot] = monitor.episode_lengths[slot] = 0

    def close(self) -> None:
        self._env.close()


def _venv_layers(env: Any) -> list[Any]:
    layers = [env]
    while hasattr(layers[-1], "venv"):
        layers.append(layers[-1].venv)
    return layers


def normalizes(env: Any) -> bool:
    """Whether observations come out of a VecNormalize."""
    return any(
        any(kind.__name__ == "VecNormalize" for kind in type(layer).__mro__) and layer.norm_obs
        for layer in _venv_layers(env)
    )


NORMALISED_TWICE = (
    "observations would be normalised twice: make_env returns them out of a VecNormalize, and the "
    "policy normalises them too. Give vec_normalize=False to policy_of or HeldoutEvalCallback, or "
    "let make_env return the environment without VecNormalize"
)


def check_normalised_once(driver: Any, policy_fn: Any) -> None:
    """Refuse a policy that normalises what its environments have normalised already."""
    if getattr(driver, "normalizes", False) and getattr(policy_fn, "normalizes", False):
        raise InvalidInput(NORMALISED_TWICE)


def _sb3_statistics(base: Any) -> list[str]:
    """Notes on wrappers of the environments that a VecEnv is made of."""
    if hasattr(base, "envs"):
        return kept_statistics(next(iter(base.envs), None))
    return statistics_of_workers(
        lambda: base.env_method("__str__"), lambda: base.get_attr("update_running_mean")
    )


def _transforms(layers: list[Any]) -> tuple[list[Callable[[Any], Any]], str | None]:
    """What an observation goes through on its way out, and what makes that unknown, if anything."""
    *outer, base = layers
    transforms: list[Callable[[Any], Any]] = []
    for layer in (base, *reversed(outer)):
        kind = type(layer).__name__
        if not type(layer).__module__.startswith("stable_baselines3."):
            return [], kind
        if kind == "VecNormalize":
            transforms.append(layer.normalize_obs)
        elif kind == "VecTransposeImage":
            transforms.append(layer.transpose_observations)
        elif kind not in (BASES if layer is base else PASSED_THROUGH):
            return [], kind
    return transforms, None


def _map(function: Callable[[Any], Any], observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: function(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(function, observation))
    return function(observation)


def _put(batch: Any, slot: int, observation: Any) -> None:
    """The only row of `observation` into that row of `batch`."""
    if isinstance(batch, Mapping):
        for key, part in batch.items():
            part[slot] = observation[key][0]
    elif isinstance(batch, tuple):
        for part, given in zip(batch, observation, strict=True):
            part[slot] = given[0]
    else:
        batch[slot] = observation[0]


# --- Batches --------------------------------------------------------------------------------------


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


# --- Which driver takes what ----------------------------------------------------------------------


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
