"""The books of episodes: whatever ends when, exactly the requested ones, each counted once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout.vector.episodes import IDLE, EndedEpisodes, Slots, advance, begin, episode_seed

LENGTHS = st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=25)
"""Of each episode: its length, and whether it terminates or is truncated."""


class World:
    """Environments as scripts: episode i lasts lengths[i][0] steps, and a step earns i + t/8."""

    def __init__(self, plan: list[tuple[int, bool]], num_envs: int, rests: bool) -> None:
        self.plan, self.rests = plan, rests
        self.t = np.zeros(num_envs, dtype=int)
        self.resting = np.zeros(num_envs, dtype=bool)
        self.steps_taken = 0

    def step(self, slots: Slots) -> tuple[Any, Any, Any]:
        n = len(slots.episode)
        reward, terminated, truncated = np.full(n, 1e9), np.ones(n, bool), np.ones(n, bool)
        # What is nobody's is filled with what would do the most harm if it were counted.
        for slot, episode in enumerate(slots.episode):
            if self.resting[slot]:
                self.resting[slot] = False
                continue
            if episode == IDLE:
                continue
            self.steps_taken += 1
            self.t[slot] += 1
            length, ends_well = self.plan[episode]
            over = self.t[slot] == length
            reward[slot] = episode + self.t[slot] / 8
            terminated[slot], truncated[slot] = over and ends_well, over and not ends_well
            if over:
                self.t[slot] = 0
                self.resting[slot] = self.rests
        return reward, terminated, truncated


def play(
    plan: list[tuple[int, bool]], num_envs: int, rests: bool = False
) -> tuple[dict[int, tuple[float, int, bool, bool]], World]:
    world = World(plan, num_envs, rests)
    slots = begin(num_envs, len(plan))
    found: dict[int, tuple[float, int, bool, bool]] = {}
    for _ in range(10_000):
        if slots.finished:
            break
        slots, ended = advance(slots, *world.step(slots), rests=rests)
        for e in rows(ended):
            assert e[0] not in found, "an episode was counted twice"
            found[e[0]] = e[1:]
    return found, world


def rows(ended: EndedEpisodes | None) -> list[tuple[Any, ...]]:
    if ended is None:
        return []
    columns = ended.episode, ended.ret, ended.steps, ended.terminated, ended.truncated
    return list(zip(*(column.tolist() for column in columns), strict=True))


def truth(plan: list[tuple[int, bool]]) -> dict[int, tuple[float, int, bool, bool]]:
    found = {}
    for i, (length, ends_well) in enumerate(plan):
        ret = 0.0
        for t in range(1, length + 1):
            ret += i + t / 8
        found[i] = (ret, length, ends_well, not ends_well)
    return found


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 9), st.booleans())
def test_exactly_the_requested_episodes_are_counted_each_once_and_right(
    plan: list[tuple[int, bool]], num_envs: int, rests: bool
) -> None:
    found, world = play(plan, num_envs, rests)
    assert found == truth(plan)
    # And no step was played that belongs to none of them.
    assert world.steps_taken == sum(length for length, _ in plan)


@given(LENGTHS, st.integers(1, 5))
def test_max_steps_truncates_and_says_so(plan: list[tuple[int, bool]], most: int) -> None:
    slots = begin(3, len(plan))
    world = World([(length, True) for length, _ in plan], 3, rests=False)
    found = {}
    while not slots.finished:
        slots, ended = advance(slots, *world.step(slots), max_steps=most)
        for e in rows(ended):
            found[e[0]] = e[1:]
        for slot in [] if ended is None else ended.slots.tolist():
            world.t[slot] = 0  # as the shell restarts what was cut off
    for i, (length, _) in enumerate(plan):
        _, steps, terminated, truncated = found[i]
        assert steps == min(length, most)
        assert (terminated, truncated) == (length <= most, length > most)


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 9))
def test_which_slot_plays_an_episode_is_known_before_anything_is_played(
    plan: list[tuple[int, bool]], num_envs: int
) -> None:
    slots = begin(num_envs, len(plan))
    world = World(plan, num_envs, rests=False)
    assert set(slots.episode.tolist()) - {IDLE} == set(range(min(num_envs, len(plan))))
    while not slots.finished:
        for slot, episode in enumerate(slots.episode.tolist()):
            assert episode == IDLE or episode % num_envs == slot
        slots, ended = advance(slots, *world.step(slots))
        given = [] if ended is None else [f for f in ended.following.tolist() if f != IDLE]
        assert all(slots.steps[slots.episode == f] == 0 for f in given)


def test_what_is_given_in_is_left_as_it_was() -> None:
    slots = begin(3, 5)
    reward = np.array([1.0, 2.0, 3.0])
    ends = np.array([False, True, False])
    never = np.zeros(3, bool)
    later, ended = advance(slots, reward, ends, never)
    assert slots.ret.tolist() == [0, 0, 0]
    assert slots.episode.tolist() == [0, 1, 2]
    assert reward.tolist() == [1.0, 2.0, 3.0]
    assert later.episode.tolist() == [0, 4, 2]
    reward[:] = 100  # buffers are used again by whoever steps
    ends[:] = True
    assert later.ret.tolist() == [1.0, 0.0, 3.0]
    assert (ended.ret.tolist(), ended.terminated.tolist()) == ([2.0], [True])


def test_one_that_terminates_and_is_truncated_at_once_says_both() -> None:
    yes = np.ones(1, bool)
    _, ended = advance(begin(1, 1), np.ones(1), yes, yes)
    assert rows(ended) == [(0, 1.0, 1, True, True)]


def test_rewards_of_any_type_are_added_up_in_double_precision() -> None:
    slots, never = begin(1, 1), np.zeros(1, bool)
    for _ in range(1000):
        slots, _ = advance(slots, np.array([0.1], dtype=np.float32), never, never)
    assert slots.ret[0] == pytest.approx(1000 * float(np.float32(0.1)), abs=1e-9)


def test_an_episodes_seed_depends_on_the_seed_and_its_index_alone() -> None:
    seeds = {(s, i): episode_seed(s, i) for s in range(5) for i in range(200)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= seed < 2**32 for seed in seeds.values())
    # The same in every release: old reports stay comparable.
    assert episode_seed(3, 7) == seeds[3, 7] == 3908964647
    assert episode_seed(2**32 + 7, 0) != episode_seed(7, 1)
