"""Which environment plays which episode, and its progress: bookkeeping as a reducer.

    slots = begin(num_envs=8, requested=100)
    slots, ended = advance(slots, reward, terminated, truncated)

Slot `s` of `n` plays the episodes s, s + n, s + 2n …, whatever ends first: a slot that is done
waits for the others. So exactly the requested episodes are played, all of them to their end, none
is counted because it happened to be short, and no environment plays more of them because it is
fast (docs/semantics.md, clause 11). Pure: arrays in, new arrays out, no environment and no I/O.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heldout.errors import InvalidInput
from heldout.stats.intervals import Floats, Ints

Bools = NDArray[np.bool_]

IDLE = -1


class Slots(NamedTuple):  # made anew at every step, so it has to be made quickly
    """The state, one entry per environment."""

    episode: Ints
    """Index of the episode it plays; IDLE where there is none left for it."""
    ret: Floats
    steps: Ints
    playing: Bools | None
    """Environments whose next step counts; None if all do."""
    requested: int

    @property
    def finished(self) -> bool:
        """Whether all episodes were played."""
        return not (self.episode >= 0).any()


class EndedEpisodes(NamedTuple):
    """Episodes that a step ended, one entry each."""

    slots: Ints
    episode: Ints
    ret: Floats
    steps: Ints
    terminated: Bools
    truncated: Bools
    following: Ints
    """The episode that the slot plays next; IDLE if none."""


def check_whole(name: str, value: Any, *, least: int, note: str = "") -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, int | np.integer) or value < least:
        raise InvalidInput(
            f"{name} must be a whole number of at least {least}{note}, got {value!r}"
        )


def begin(num_envs: int, requested: int) -> Slots:
    """Return the initial state: the first episode of each slot."""
    episode = _assign(np.arange(num_envs), requested)
    playing = None if num_envs <= requested else episode >= 0
    zeros = np.zeros(num_envs)
    return Slots(episode, zeros, zeros.astype(np.int64), playing, requested)


def _assign(episode: Ints, requested: int) -> Ints:
    return np.where(episode < requested, episode, IDLE)


def advance(
    slots: Slots,
    reward: NDArray[Any],
    terminated: Bools,
    truncated: Bools,
    *,
    max_steps: int | None = None,
    rests: bool = False,
) -> tuple[Slots, EndedEpisodes | None]:
    """Record one step of all environments.

    `max_steps` is the length at which an episode is truncated. `rests` is for environments whose
    step after an end only resets them: that step belongs to no episode and is not counted.
    """
    playing = slots.playing
    ret = slots.ret + reward
    steps = slots.steps + 1
    over = terminated | truncated
    if max_steps is not None:
        over = over | (steps >= max_steps)
    if playing is not None:
        ret = np.where(playing, ret, slots.ret)
        steps = np.where(playing, steps, slots.steps)
        over = over & playing
        # Whoever rested has now been reset.
        playing = slots.episode >= 0
        if playing.all():
            playing = None
    if not np.count_nonzero(over):  # a tenth of what any() takes
        return Slots(slots.episode, ret, steps, playing, slots.requested), None

    ends = np.flatnonzero(over)
    following = _assign(slots.episode[ends] + len(slots.episode), slots.requested)
    ended = EndedEpisodes(
        ends,
        slots.episode[ends],
        ret[ends],
        steps[ends],
        terminated[ends],
        truncated[ends] | ~(terminated[ends] | truncated[ends]),
        following,
    )
    episode = slots.episode.copy()
    episode[ends] = following
    ret[ends] = 0.0
    steps[ends] = 0
    playing = episode >= 0
    if rests:
        playing[ends] = False
    everybody = None if playing.all() else playing
    return Slots(episode, ret, steps, everybody, slots.requested), ended


def episode_seed(seed: int, index: int) -> int:
    """Return the seed of one episode, a function of (seed, index) alone."""
    # In words of fixed width: (2**32 + 7, 0) must not be (7, 1).
    words = [seed & 0xFFFFFFFF, seed >> 32, index & 0xFFFFFFFF, index >> 32]
    return int(np.random.SeedSequence(words).generate_state(1)[0])
