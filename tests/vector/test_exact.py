"""Exact: an episode is the same whoever plays beside it, and nobody's length gets it counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.vec_env import DummyVecEnv

from heldout.errors import EnvironmentFailed, InvalidInput
from heldout.vector import evaluate_env
from tests.vector.worlds import Walk, alone, good_policy, played


@settings(max_examples=15)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 2**40), st.integers(1, 30))
def test_whatever_the_lengths_the_number_of_environments_changes_nothing(
    episodes: int, num_envs: int, seed: int, longest: int
) -> None:
    for most in (None, 5):
        report = evaluate_env(
            lambda: Walk(longest),
            good_policy,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=most,
        )
        assert played(report) == alone(episodes, seed, longest=longest, max_steps=most)
        assert (report.summary["seeded"], report.notes) == (True, ())


def test_a_real_environment_gives_the_same_episodes_for_any_number_of_them() -> None:
    def make_env() -> Any:
        return gymnasium.make("CartPole-v1", max_episode_steps=45)

    def policy(observations: Any) -> Any:
        return (observations[:, 2] > 0).astype(np.int64)

    report = evaluate_env(make_env, policy, 20, num_envs=16, seed=3)
    assert report.config["env"] == "CartPole-v1"
    assert played(report) == played(evaluate_env(make_env, policy, 20, seed=3))
    assert len({e.steps for e in report.episodes}) > 1, "a test that all would pass"


def test_another_seed_gives_other_episodes() -> None:
    first, second = (evaluate_env(Walk, good_policy, 9, seed=seed) for seed in (1, 2))
    assert played(first) != played(second)


def test_more_environments_than_episodes_are_not_made() -> None:
    made: list[Walk] = []

    def make_env() -> Walk:
        made.append(Walk())
        return made[-1]

    evaluate_env(make_env, good_policy, 3, num_envs=10)
    assert len(made) == 3
    assert all(env.closed for env in made)


# --- Observations and actions of every shape ----------------------------------------------------


class Shows(gymnasium.Env[Any, Any]):
    """Shows given observations one after the other, and keeps the actions it got."""

    def __init__(self, observations: list[Any], space: Any = None) -> None:
        self.observations, self.t = observations, 0
        if space is not None:
            self.observation_space = space
        self.got: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return self.observations[0], {}

    def step(self, action: Any) -> Any:
        self.got.append(action)
        self.t += 1
        last = self.t == len(self.observations) - 1
        return self.observations[self.t], 0.0, last, False, {}


def seen(make_env: Callable[[], Any], act: Callable[[Any], Any] | None = None) -> list[Any]:
    batches: list[Any] = []

    def policy(batch: Any) -> Any:
        batches.append(batch)
        return [0, 0] if act is None else act(batch)

    evaluate_env(make_env, policy, 2, num_envs=2)
    return batches


def test_a_first_observation_of_integers_does_not_cut_later_ones_down() -> None:
    batches = seen(lambda: Shows([[0, 0], [0.5, 1], [0, 0]]))
    np.testing.assert_array_equal(batches[1], [[0.5, 1], [0.5, 1]])


def test_observations_have_the_type_that_their_space_states() -> None:
    space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    batches = seen(lambda: Shows([np.array([0.1])] * 2, space))
    assert batches[0].dtype == np.float32


def test_dicts_and_tuples_are_batched_part_by_part_and_texts_are_listed() -> None:
    def shows(i: int) -> Any:
        return {"where": np.array([i, i]), "both": (i, "text")}

    first, second = seen(lambda: Shows([shows(0), shows(1), shows(2)]))
    np.testing.assert_array_equal(second["where"], [[1, 1], [1, 1]])
    np.testing.assert_array_equal(second["both"][0], [1, 1])
    assert second["both"][1] == ["text", "text"]
    np.testing.assert_array_equal(first["where"], [[0, 0], [0, 0]])


def test_sequences_of_any_length_come_as_a_list() -> None:
    space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(9))
    batches = seen(lambda: Shows([(), (1, 2), (3,)], space))
    assert batches == [[(), ()], [(1, 2), (1, 2)]]


def test_an_observation_of_another_shape_is_refused_not_broadcast() -> None:
    rows = iter([np.zeros(1), np.zeros(3)])
    with pytest.raises(EnvironmentFailed, match="different shapes"):
        seen(lambda: Shows([np.zeros(3), next(rows), np.zeros(3)]))


def test_batches_of_dict_and_tuple_actions_are_taken_apart() -> None:
    envs: list[Shows] = []

    def make_env() -> Shows:
        envs.append(Shows([0, 1]))
        envs[-1].action_space = gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(9)] * 2)
        return envs[-1]

    seen(make_env, lambda batch: {"a": np.array([1, 2]), "b": {"c": [3, 4]}})
    assert [env.got[:1] for env in envs] == [[{"a": 1, "b": {"c": 3}}], [{"a": 2, "b": {"c": 4}}]]
    envs.clear()
    seen(make_env, lambda batch: (np.array([1, 2]), np.array([3, 4])))
    assert [env.got[:1] for env in envs] == [[(1, 3)], [(2, 4)]]


def test_a_policy_may_change_the_batch_it_was_given() -> None:
    def greedy(batch: Any) -> Any:
        actions = good_policy(batch)
        batch[:] = np.nan
        return actions

    assert played(evaluate_env(Walk, greedy, 9, num_envs=4)) == alone(9)


@pytest.mark.parametrize("actions", [0, np.int64(1), [0], np.zeros(3, int), None])
def test_a_wrong_number_of_actions_is_refused(actions: Any) -> None:
    with pytest.raises(InvalidInput, match="one action for each"):
        evaluate_env(Walk, lambda batch: actions, 4, num_envs=2)


# --- What could not be meant --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"episodes": 0}, "episodes must be a whole number"),
        ({"num_envs": 0}, "num_envs must be a whole number"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"max_steps": 0}, "max_steps must be a whole number"),
        ({"make_env": Walk()}, "make_env must be a function"),
    ],
)
def test_arguments_that_could_not_be_meant_are_refused(settings: Any, says: str) -> None:
    given = {"make_env": Walk, "policy_fn": good_policy, "episodes": 1, **settings}
    with pytest.raises(InvalidInput, match=says):
        evaluate_env(**given)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_environment_that_was_there_before_is_refused_and_left_as_it_is(num_envs: int) -> None:
    env = Walk()
    hidden = cache(Walk)  # the same one at every call
    for make_env in (lambda: env, lambda: DummyVecEnv([lambda: env]), hidden):
        hidden()
        with pytest.raises(InvalidInput, match="a new environment at every call"):
            evaluate_env(make_env, good_policy, 4, num_envs=num_envs)
    assert not env.closed
    assert not hidden().closed
    assert env.length == 0, "it was not reset"


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(InvalidInput, match="reset, step and close"):
        evaluate_env(object, good_policy, 1)


def test_a_reward_that_is_no_number_ends_the_evaluation_instead_of_entering_a_mean() -> None:
    class Broken(Walk):
        def step(self, action: Any) -> Any:
            observation, _, *rest = super().step(action)
            return observation, np.nan, *rest

    with pytest.raises(EnvironmentFailed, match="episode 0 has the return nan"):
        evaluate_env(Broken, good_policy, 3)


def test_a_failure_says_which_episodes_were_in_flight_and_closes_all() -> None:
    envs: list[Walk] = []

    class Fails(Walk):
        def step(self, action: Any) -> Any:
            raise RuntimeError("out of fuel")

    def make_env() -> Walk:
        envs.append(Fails())
        return envs[-1]

    with pytest.raises(RuntimeError, match="out of fuel") as caught:
        evaluate_env(make_env, good_policy, 5, num_envs=2)
    assert "episodes [0, 1] were in flight" in caught.value.__notes__[0]
    assert len(envs) == 2
    assert all(env.closed for env in envs)


def test_a_failure_is_not_hidden_by_environments_that_cannot_be_closed_then() -> None:
    class Stuck(Walk):
        def step(self, action: Any) -> Any:
            raise RuntimeError("out of fuel")

        def close(self) -> None:
            raise OSError("stuck")

    with pytest.raises(RuntimeError, match="out of fuel") as caught:
        evaluate_env(Stuck, good_policy, 5)
    assert "closing the environments failed: OSError" in caught.value.__notes__[1]


def test_the_vector_path_imports_without_gymnasium_and_torch() -> None:
    code = (
        "import sys, heldout.vector, heldout.vector.training; "
        "sys.exit(any(m in sys.modules for m in ('gymnasium', 'torch', 'stable_baselines3')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
