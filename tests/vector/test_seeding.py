"""What `seeded` claims is checked, and what a policy draws is seeded too."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from heldout.vector import evaluate_env
from tests.vector.worlds import Walk, played

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


class Deaf(Walk):
    """Ignores its seed, which its first observation shows."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=int(np.random.default_rng().integers(2**31)))


class Bandit(gymnasium.Env[Any, Any]):
    """Ignores its seed, which only its rewards show."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        reward = float(np.random.default_rng().normal())
        return np.zeros(1, np.float32), reward, self.t == 5, False, {}


def still(observations: Any) -> Any:
    first = observations[0] if isinstance(observations, tuple) else observations
    return np.zeros(len(first), dtype=np.int64)


KINDS: dict[str, Any] = {
    "plain": lambda env: env,
    "next step": lambda env: lambda: SyncVectorEnv([env] * 3),
    "same step": lambda env: (
        lambda: SyncVectorEnv([env] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    ),
    "disabled": lambda env: lambda: SyncVectorEnv([env] * 3, autoreset_mode=AutoresetMode.DISABLED),
    "async": lambda env: lambda: AsyncVectorEnv([env] * 2, context="fork"),
    "sb3": lambda env: lambda: DummyVecEnv([env] * 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("env", [Deaf, Bandit])
def test_an_environment_that_ignores_its_seed_is_not_called_seeded(kind: str, env: Any) -> None:
    report = evaluate_env(KINDS[kind](env), still, 6)
    assert report.summary["seeded"] is report.config["seeded"] is False
    assert {episode.seed for episode in report.episodes} == {None}
    assert any("does not follow its seed" in note for note in report.notes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_an_environment_that_follows_its_seed_is(kind: str, name: str) -> None:
    if (kind, name) == ("sb3", "Blackjack-v1"):
        name = "Taxi-v4"  # stable-baselines3 has no tuples
    report = evaluate_env(KINDS[kind](lambda: gymnasium.make(name)), still, 6, max_steps=20)
    assert report.summary["seeded"] is True
    assert not any("seed" in note for note in report.notes)


def test_where_seeding_cannot_be_checked_the_report_is_kept_and_says_so() -> None:
    report = evaluate_env(lambda: Monitor(Once()), still, 1)
    assert report.summary["mean_return"] == 5.0
    assert report.summary["seeded"] is False
    assert any("could not be replayed: RuntimeError: no more" in note for note in report.notes)


class Once(Bandit):
    """Refuses to be reset again."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        if self.resets > 1:
            raise RuntimeError("no more")
        return super().reset()

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, 1.0, *rest


# --- What a policy draws ------------------------------------------------------------------------

OWN, SPACE = np.random.default_rng(), gymnasium.spaces.Discrete(2)
PYTHONS, TORCHS = random.Random(), torch.Generator()
POLICIES: dict[str, Any] = {
    "python": lambda o: [random.randrange(2) for _ in o],
    "numpy": lambda o: np.random.randint(2, size=len(o)),
    "torch": lambda o: torch.randint(2, (len(o),)),
    "a generator of its own": lambda o: OWN.integers(2, size=len(o)),
    "an instance of Random": lambda o: [PYTHONS.randrange(2) for _ in o],
    "a torch generator": lambda o: torch.randint(2, (len(o),), generator=TORCHS),
    "a space": lambda o: [SPACE.sample() for _ in o],
}


def state() -> str:
    numpys = np.random.get_state()[1].tolist()
    everybodys = random.getstate(), numpys, torch.get_rng_state().tolist()
    own = OWN.bit_generator.state, PYTHONS.getstate(), TORCHS.get_state().tolist()
    return repr((everybodys, own, SPACE.np_random.bit_generator.state))


@pytest.mark.parametrize("which", POLICIES)
def test_a_random_policy_repeats_exactly_and_what_it_draws_from_is_put_back(which: str) -> None:
    def following() -> Any:
        """What it would draw next."""
        return [int(a) for a in POLICIES[which](range(40))]

    def evaluated(seed: int) -> Any:
        return played(evaluate_env(Walk, POLICIES[which], 20, num_envs=2, seed=seed))

    first = evaluated(2**70)
    following()
    assert evaluated(2**70) == first
    assert evaluated(1) != first
    before = state()
    evaluated(3)
    assert state() == before


def test_generators_of_spaces_inside_spaces_are_put_back() -> None:
    spaces = gymnasium.spaces
    inner = spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))])
    space = spaces.Dict({"a": inner, "b": spaces.Discrete(2)})

    def policy(observations: Any) -> Any:
        return [space.sample()["a"][0] for _ in observations]

    def generators() -> list[Any]:
        every = [space, inner, space["b"], *inner.spaces]
        return [each._np_random and each._np_random.bit_generator.state for each in every]

    evaluate_env(Walk, policy, 20)
    # One that has drawn nothing yet has no generator to put back.
    assert generators() == [None] * 5
    space.seed(3)
    before = generators()
    again = [played(evaluate_env(Walk, policy, 20)) for _ in range(2)]
    assert generators() == before
    assert again[0] == again[1]
