"""What the evaluation asks of environments, whatever their convention.

A driver steps all its environments at once and says, as plain numpy arrays, what came of it. What
a convention cannot do (seed each episode, cut one off) it says, and `notes` puts it in words for
the report; it is never approximated in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from heldout.episodes import Bools
from heldout.errors import InvalidInput

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
