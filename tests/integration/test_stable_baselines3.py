"""stable-baselines3's own environments, models and training, beside which nothing may change."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
import torch
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecMonitor,
    VecNormalize,
)

from heldout._live.weights import fingerprint
from heldout.cli.main import run_cli
from heldout.errors import InvalidInput, ResumeMismatch, RunExists
from heldout.integrations.stable_baselines3 import (
    ROWS,
    HeldoutEvalCallback,
    load_policy,
    policy_of,
)
from heldout.store.run_dir import RunDir
from heldout.training.curve.points import current_points, read_points
from heldout.vector import evaluate_env
from heldout.vector.drivers import UNINSPECTED, UNSEEDED
from tests.tolerances import assert_close
from tests.vector.worlds import Walk, alone, good_policy, has_terminated, played

pytestmark = [
    pytest.mark.integration,
    # Python 3.12 warns of fork() in a process with threads, which torch and pytest have.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FLOAT32 = "rewards are float32, as stable-baselines3 keeps them"


class Scored(Walk):
    """Rewards that float32 holds exactly, so that nothing is lost on the way."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, float(np.float32(reward)), *rest


def cartpole() -> Any:
    return gymnasium.make("CartPole-v1", max_episode_steps=50)


def pendulum() -> Any:
    return gymnasium.make("Pendulum-v1", max_episode_steps=20)


# --- VecEnv -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make_env",
    [
        lambda: DummyVecEnv([Scored] * 3),
        lambda: DummyVecEnv([lambda: Monitor(Scored())] * 3),
        lambda: VecMonitor(DummyVecEnv([Scored] * 3)),
        lambda: SubprocVecEnv([Scored] * 2, start_method="fork"),
        lambda: DummyVecEnv([Scored] * 16),
    ],
)
def test_every_episode_in_a_vecenv_is_as_exact_as_alone(make_env: Callable[[], Any]) -> None:
    report = evaluate_env(make_env, good_policy, 20, seed=3)
    expected = played(evaluate_env(Scored, good_policy, 20, seed=3))
    assert played(report) == expected
    assert report.notes == (FLOAT32,)


def test_max_steps_and_time_limits_are_truncations_in_a_vecenv() -> None:
    report = evaluate_env(lambda: DummyVecEnv([Walk] * 3), good_policy, 20, max_steps=4)
    assert report.config["env"] == "Walk"
    truth = alone(20, max_steps=4)
    assert [(e.steps, e.terminated, e.truncated, e.dist) for e in report.episodes] == [
        (p.steps, p.terminated, p.truncated, p.dist) for p in truth
    ]
    assert {e.truncated for e in report.episodes} == {True, False}


def test_a_wrapper_whose_state_a_restart_would_pass_by_is_said_to_be_in_the_way() -> None:
    def make_env() -> Any:
        return VecFrameStack(DummyVecEnv([Walk] * 3), 2)

    report = evaluate_env(make_env, good_policy, 20)
    assert report.notes == (f"{UNSEEDED} (VecFrameStack stands in the way)", FLOAT32)
    assert not report.summary["seeded"]
    assert all(e.steps >= 1 for e in report.episodes)
    with pytest.raises(InvalidInput, match="max_steps"):
        evaluate_env(make_env, good_policy, 20, max_steps=3)


def test_observations_are_dicts_where_the_environment_has_dicts() -> None:
    class InDict(Scored):
        observation_space = gymnasium.spaces.Dict(  # type: ignore[assignment]
            {"x": gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)}
        )

        def _look(self) -> Any:
            return {"x": super()._look()}

    def policy(observations: Any) -> Any:
        return good_policy(observations["x"])

    report = evaluate_env(lambda: DummyVecEnv([InDict] * 3), policy, 12)
    assert played(report) == played(evaluate_env(Scored, good_policy, 12))


def test_frozen_normalisation_is_applied_to_restarted_episodes_too() -> None:
    def make_env() -> VecNormalize:
        statistics = VecNormalize(DummyVecEnv([Scored] * 2), norm_reward=False)
        statistics.obs_rms.mean[:] = [0.0, 3.0]
        statistics.obs_rms.var[:] = [4.0, 2.0]
        statistics.training = False
        return statistics

    seen: list[Any] = []

    def policy(observations: Any) -> Any:
        seen.append(observations[:, 1])
        return good_policy(observations)

    report = evaluate_env(make_env, policy, 12)
    assert played(report) == played(evaluate_env(Scored, good_policy, 12))
    # Walk shows the time: 0 at the first step of every episode, before it is normalised.
    first = (0.0 - 3.0) / np.sqrt(2.0 + make_env().epsilon)
    assert np.isclose(np.concatenate(seen), first).sum() >= 12
    assert np.concatenate(seen).min() == pytest.approx(first)


@pytest.mark.parametrize("settings", [{"norm_reward": True, "training": False}, {"training": True}])
def test_statistics_that_would_learn_or_rewards_that_are_none_are_refused(settings: Any) -> None:
    with pytest.raises(InvalidInput, match="VecNormalize would learn"):
        evaluate_env(lambda: VecNormalize(DummyVecEnv([Walk]), **settings), good_policy, 2)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_dones_that_are_numbers_are_read_as_booleans(kind: Any) -> None:
    class Numbers(DummyVecEnv):
        shape: tuple[int, ...] = (3,)

        def step_wait(self) -> Any:
            observations, rewards, dones, infos = super().step_wait()
            return observations, rewards, dones.reshape(self.shape).astype(kind), infos

    class Column(Numbers):
        shape = (3, 1)

    def ends(env: Any) -> Any:
        # One of one's own is not restarted: slots of one length, for the same episodes.
        report = evaluate_env(lambda: env([ten_steps] * 3), lambda o: np.zeros(3, int), 6)
        return [(e.ret, e.steps, e.terminated, e.truncated) for e in report.episodes]

    assert ends(Numbers) == ends(DummyVecEnv) == [(10.0, 10, False, True)] * 6
    with pytest.raises(InvalidInput, match="terminated of shape \\(3, 1\\)"):
        ends(Column)


@pytest.mark.parametrize("max_steps", [None, 4])
def test_what_a_monitor_counts_of_an_episode_is_what_was_played(max_steps: int | None) -> None:
    counted = []

    def success(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
        if "episode" in info:
            counted.append(steps)
            assert info["episode"]["l"] == steps
            assert info["episode"]["r"] == pytest.approx(ret, abs=1e-4)
        return True

    def make_env() -> Any:
        return VecMonitor(DummyVecEnv([Scored] * 3))

    evaluate_env(make_env, good_policy, 30, success=success, max_steps=max_steps)
    assert len(counted) == 30 if max_steps is None else len(counted) >= 5


@pytest.mark.parametrize(
    "kind", [DummyVecEnv, partial(SubprocVecEnv, start_method="fork")], ids=["dummy", "subproc"]
)
def test_statistics_that_go_on_learning_inside_a_vecenv_are_said(kind: Any) -> None:
    def make_env() -> Any:
        return gymnasium.wrappers.NormalizeObservation(Walk())

    notes = evaluate_env(lambda: kind([make_env] * 2), good_policy, 2).notes
    assert notes[0] == FLOAT32
    assert "NormalizeObservation goes on learning" in notes[1]


def test_environments_that_cannot_be_asked_for_their_wrappers_are_said_to() -> None:
    class Silent(SubprocVecEnv):
        def env_method(self, method_name: str, *args: Any, **settings: Any) -> Any:
            raise NotImplementedError

    notes = evaluate_env(lambda: Silent([Walk] * 2, start_method="fork"), good_policy, 2).notes
    assert UNINSPECTED in notes


# --- Models as policies -------------------------------------------------------------------------

MODELS: dict[str, Callable[[], Any]] = {
    "PPO discrete": partial(PPO, "MlpPolicy", cartpole, n_steps=8, batch_size=8),
    "PPO box": partial(PPO, "MlpPolicy", pendulum, n_steps=8, batch_size=8),
    "PPO sde": partial(PPO, "MlpPolicy", pendulum, n_steps=8, batch_size=8, use_sde=True),
    "A2C": partial(A2C, "MlpPolicy", cartpole),
    "DQN": partial(DQN, "MlpPolicy", cartpole, buffer_size=50),
    "SAC": partial(SAC, "MlpPolicy", pendulum, buffer_size=50),
    "TD3": partial(TD3, "MlpPolicy", pendulum, buffer_size=50),
}


def make(which: str, **settings: Any) -> Any:
    maker: Any = MODELS[which]
    kind, (policy, make_env) = maker.func, maker.args
    return kind(policy, make_env(), seed=5, device="cpu", **{**maker.keywords, **settings})


def observations(model: Any, n: int) -> Any:
    shape = (n, *model.observation_space.shape)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("which", [which for which in MODELS if which != "A2C"])
def test_the_network_called_directly_says_what_predict_says(which: str) -> None:
    model = make(which)
    if which.startswith("PPO"):
        # So that actions leave the space, and have to be brought back into it.
        torch.nn.init.normal_(model.policy.action_net.weight, std=9.0)
    batch = observations(model, ROWS) * 5
    actions = policy_of(model)(batch)
    expected, _ = model.predict(batch, deterministic=True)
    np.testing.assert_array_equal(actions, expected)
    assert actions.dtype == expected.dtype
    assert len(np.unique(actions)) > 1


@pytest.mark.parametrize("which", ["PPO discrete", "PPO box", "DQN", "SAC"])
def test_an_action_does_not_depend_on_who_is_in_the_batch(which: str) -> None:
    model = make(which, policy_kwargs={"net_arch": [100, 64]})
    policy, batch = policy_of(model), observations(model, 50)
    alone = np.concatenate([policy(row[None]) for row in batch])
    for n in (2, 4, 16, 17, 33, 50):
        np.testing.assert_array_equal(policy(batch[:n]), alone[:n])


def test_episodes_of_a_network_are_bit_identical_for_any_number_of_environments() -> None:
    policy = policy_of(make("PPO box"))
    alone = played(evaluate_env(pendulum, policy, 20))
    assert played(evaluate_env(pendulum, policy, 20, num_envs=16)) == alone


class Menu(gymnasium.Env[Any, Any]):
    """Any spaces, ten steps."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 1.0, False, self.t == 10, {}


SPACES = gymnasium.spaces


def ten_steps() -> Any:
    return Menu(SPACES.Box(-1, 1, (2,)), SPACES.Discrete(2))


@pytest.mark.parametrize(
    ("policy", "seen", "done"),
    [
        ("MlpPolicy", SPACES.Discrete(5), SPACES.MultiDiscrete([2, 3])),
        ("MlpPolicy", SPACES.MultiDiscrete([3, 4]), SPACES.MultiBinary(3)),
        ("MultiInputPolicy", SPACES.Dict({"a": SPACES.Box(-1, 1, (2,))}), SPACES.Discrete(3)),
        ("CnnPolicy", SPACES.Box(0, 255, (36, 36, 3), np.uint8), SPACES.Box(-2, 5, (2,))),
    ],
)
def test_spaces_of_every_kind_are_played(policy: str, seen: Any, done: Any) -> None:
    model = PPO(policy, Menu(seen, done), n_steps=8, batch_size=8, seed=0, device="cpu")
    batches: list[Any] = []
    act = policy_of(model)

    def both(batch: Any) -> Any:
        actions = act(batch)
        batches.append((batch, actions))
        return actions

    report = evaluate_env(lambda: Menu(seen, done), both, 4, num_envs=3)
    assert report.summary["steps"] == 40
    # predict() on as many rows, for it is their number that changes the last bits.
    batch, actions = batches[0]
    padded = (
        {k: np.repeat(v, 16, 0) for k, v in batch.items()}
        if isinstance(batch, dict)
        else (np.repeat(batch, 16, 0))
    )
    expected, _ = model.predict(padded, deterministic=True)
    assert_close(actions, expected[::16])


def test_train_flags_are_ignored_while_acting_and_put_back() -> None:
    model = make("PPO discrete")
    model.policy.mlp_extractor.policy_net.append(torch.nn.Dropout(0.9))
    model.policy.set_training_mode(True)
    model.policy.value_net.training = False
    flags = [module.training for module in model.policy.modules()]
    policy, batch = policy_of(model), observations(model, 9)
    np.testing.assert_array_equal(policy(batch), policy(batch))
    assert [module.training for module in model.policy.modules()] == flags
    assert flags[0]


def test_a_predict_of_ones_own_is_used_and_one_with_a_state_is_refused() -> None:
    class Stubborn(PPO):
        def predict(self, observation: Any, *args: Any, **settings: Any) -> Any:
            actions, state = super().predict(observation, *args, **settings)
            return np.ones_like(actions), state

    model = Stubborn("MlpPolicy", cartpole(), seed=0, device="cpu")
    assert policy_of(model)(observations(model, 20)).tolist() == [1] * 20

    class Remembers(Stubborn):
        def predict(self, observation: Any, *args: Any, **settings: Any) -> Any:
            return super().predict(observation, *args, **settings)[0], ("memory",)

    model = Remembers("MlpPolicy", cartpole(), seed=0, device="cpu")
    with pytest.raises(InvalidInput, match="carries a state"):
        policy_of(model)(observations(model, 2))
    with pytest.raises(InvalidInput, match="model or policy"):
        policy_of(object())


def test_exploring_is_left_to_predict() -> None:
    model = make("DQN")
    model.exploration_rate = 1.0
    batch = np.repeat(observations(model, 1), 48, axis=0)
    assert len(set(policy_of(model)(batch).tolist())) == 1
    assert len(set(policy_of(model, deterministic=False)(batch).tolist())) == 2


def test_observations_are_normalised_as_in_training_and_statistics_stay() -> None:
    env = VecNormalize(DummyVecEnv([cartpole] * 2))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    model.learn(64)
    before = statistics_of(env)
    batch = observations(model, 16) * 3
    expected, _ = model.predict(env.normalize_obs(batch), deterministic=True)
    bare, _ = model.predict(batch, deterministic=True)
    assert (expected != bare).any(), "a test that all would pass"
    np.testing.assert_array_equal(policy_of(model)(batch), expected)
    np.testing.assert_array_equal(policy_of(model.policy, vec_normalize=env)(batch), expected)
    np.testing.assert_array_equal(policy_of(model, vec_normalize=False)(batch), bare)
    assert statistics_of(env) == before


def normalised_world(**settings: Any) -> Any:
    return VecNormalize(DummyVecEnv([Walk] * 2), training=False, norm_reward=False, **settings)


def test_observations_are_not_normalised_twice() -> None:
    env = VecNormalize(DummyVecEnv([Walk] * 2))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    for make_env in (normalised_world, lambda: VecMonitor(normalised_world())):
        with pytest.raises(InvalidInput, match="normalised twice.*vec_normalize=False"):
            evaluate_env(make_env, policy_of(model), 2)
    # Each of these normalises once.
    evaluate_env(normalised_world, policy_of(model, vec_normalize=False), 2)
    evaluate_env(normalised_world, good_policy, 2)
    evaluate_env(Walk, policy_of(model), 2)
    evaluate_env(lambda: normalised_world(norm_obs=False), policy_of(model), 2)


def test_a_callback_does_not_normalise_twice_either() -> None:
    twice = HeldoutEvalCallback(normalised_world, 1000, episodes=2)
    with pytest.raises(InvalidInput, match="normalised twice"):
        train("PPO", twice, steps=64, normalize=True)
    once = HeldoutEvalCallback(normalised_world, 1000, episodes=2, vec_normalize=False)
    train("PPO", once, steps=64, normalize=True)
    assert [point.skipped for point in once.history] == [None]


@pytest.mark.parametrize("which", ["PPO box", "A2C", "DQN", "SAC", "TD3"])
def test_a_saved_model_is_loaded_without_being_told_what_it_is(which: str, tmp_path: Path) -> None:
    model = make(which)
    model.save(tmp_path / "model.zip")
    batch = observations(model, 20)
    expected = policy_of(model)(batch)
    for name in ("model.zip", "model"):
        loaded = load_policy(tmp_path / name, device="cpu")
        np.testing.assert_array_equal(loaded(batch), expected)
    named = f"{type(model).__name__.lower()}:{tmp_path}/model.zip"
    np.testing.assert_array_equal(load_policy(named, device="cpu")(batch), expected)


def test_a_model_is_loaded_with_the_statistics_it_was_trained_with(tmp_path: Path) -> None:
    env = VecNormalize(DummyVecEnv([cartpole] * 2))
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=8, seed=0, device="cpu")
    model.learn(64)
    model.save(tmp_path / "model.zip")
    env.save(str(tmp_path / "statistics.pkl"))
    batch = observations(model, 20) * 3
    loaded = load_policy(
        tmp_path / "model.zip", device="cpu", vec_normalize=tmp_path / "statistics.pkl"
    )
    np.testing.assert_array_equal(loaded(batch), policy_of(model)(batch))
    bare = load_policy(tmp_path / "model.zip", device="cpu")
    assert (bare(batch) != loaded(batch)).any()


def test_what_is_no_model_or_no_statistics_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("hello")
    (tmp_path / "list.pkl").write_bytes(pickle.dumps([1]))
    model = make("A2C")
    model.save(tmp_path / "model.zip")
    for saved, statistics, says in (
        ("nothing.zip", None, "no model at"),
        ("text.zip", None, "could not be loaded as a model"),
        ("model.zip", "nothing.pkl", "no VecNormalize at"),
        ("model.zip", "text.zip", "could not be loaded"),
        ("model.zip", "list.pkl", "holds no VecNormalize, but list"),
    ):
        with pytest.raises(InvalidInput, match=says):
            load_policy(
                tmp_path / saved,
                device="cpu",
                vec_normalize=None if statistics is None else tmp_path / statistics,
            )


# --- Training -----------------------------------------------------------------------------------


def statistics_of(env: Any) -> Any:
    if not isinstance(env, VecNormalize):
        return None
    rms = env.obs_rms, env.ret_rms
    return [(r.mean.tolist(), r.var.tolist(), r.count) for r in rms], env.returns.tolist()


def everything(model: Any) -> Any:
    """All that training leaves behind: weights, optimiser, environments, random state."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {str(key): plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list | tuple) else value

    env = model.get_env()
    return {
        "weights": plain(model.policy.state_dict()),
        "optimiser": plain(model.policy.optimizer.state_dict())
        if hasattr(model.policy, "optimizer")
        else None,
        "observations": model._last_obs.tolist(),
        "statistics": statistics_of(env),
        "environments": [e.unwrapped.np_random.bit_generator.state for e in env.envs],
        "python": random.getstate(),
        "numpy": [str(part) for part in np.random.get_state()],
        "torch": torch.get_rng_state().tolist(),
        "flags": [module.training for module in model.policy.modules()],
        "timesteps": model.num_timesteps,
        "episodes": [(e["r"], e["l"]) for e in model.ep_info_buffer],
    }


class Greedy(Walk):
    """An evaluation environment that uses up everybody's random state."""

    def step(self, action: Any) -> Any:
        random.random(), np.random.random(), torch.rand(3)
        return super().step(action)


def train(which: str, callback: Any, *, steps: int = 200, normalize: bool = False) -> Any:
    kinds: dict[str, Any] = {
        "PPO": partial(PPO, n_steps=32, batch_size=16, n_epochs=2),
        "A2C": A2C,
        "DQN": partial(DQN, buffer_size=200, learning_starts=20, batch_size=8),
        "SAC": partial(SAC, buffer_size=200, learning_starts=20, batch_size=8),
    }
    make_env = (lambda: Monitor(pendulum())) if which == "SAC" else (lambda: Monitor(Walk()))
    env: Any = DummyVecEnv([make_env] * (1 if which in ("DQN", "SAC") else 2))
    if normalize:
        env = VecNormalize(env)
    small = {"net_arch": [16]}
    model = kinds[which]("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=small)
    model.learn(steps, callback=callback)
    return model


@pytest.mark.parametrize(
    ("which", "normalize"),
    [("PPO", True), ("A2C", False), ("DQN", False), ("SAC", False)],
)
def test_training_ends_in_the_same_weights_with_the_evaluation_and_without(
    which: str, normalize: bool, tmp_path: Path
) -> None:
    callback = HeldoutEvalCallback(
        pendulum if which == "SAC" else Greedy,
        50,
        episodes=3,
        num_envs=2,
        at_start=True,
        deterministic=which != "A2C",
        keep_best=tmp_path,
    )
    plain = everything(train(which, None, normalize=normalize))
    watched = everything(train(which, callback, normalize=normalize))
    assert len(callback.history) >= 5
    assert all(point.report is not None for point in callback.history)
    for part, value in plain.items():
        assert watched[part] == value, part


def test_an_evaluation_that_explores_leaves_the_training_as_it_was() -> None:
    class Drawn(HeldoutEvalCallback):
        drawn = 0

        def _policy(self, observations: Any) -> Any:
            before = self.model.action_space.np_random.bit_generator.state
            actions = super()._policy(observations)
            self.drawn += before != self.model.action_space.np_random.bit_generator.state
            return actions

    callback = Drawn(Walk, 50, episodes=30, num_envs=2, deterministic=False)
    plain, watched = everything(train("DQN", None)), everything(train("DQN", callback))
    assert callback.drawn, "a test that all would pass"
    for part, value in plain.items():
        assert watched[part] == value, part


def test_every_steps_counts_steps_of_the_environments_however_many_they_are() -> None:
    callback = HeldoutEvalCallback(Walk, 50, episodes=2)
    train("PPO", callback, steps=128)
    assert [point.step for point in callback.history] == [50, 100, 128]


def test_the_last_update_is_evaluated_though_its_step_has_been() -> None:
    callback = HeldoutEvalCallback(Walk, 64, episodes=2)
    train("PPO", callback, steps=64)
    # Once, with the weights that training ends in: the step before the update would have another
    # answer under the same number.
    assert [point.step for point in callback.history] == [64]
    assert callback.points[0].weights == fingerprint(callback._weights())
    assert callback.points[0].final
    callback = HeldoutEvalCallback(Walk, 64, episodes=2, at_end=False, at_start=True)
    train("PPO", callback, steps=64)
    assert [point.step for point in callback.history] == [0, 64]


@pytest.mark.parametrize(("which", "unit"), [("DQN", (4, "step")), ("DQN", (1, "episode"))])
def test_the_last_step_of_an_off_policy_model_has_one_point_too(which: str, unit: Any) -> None:
    callback = HeldoutEvalCallback(Walk, 16, episodes=2)
    model = DQN(
        "MlpPolicy", Walk(), learning_starts=0, batch_size=4, train_freq=unit, device="cpu", seed=0
    )
    model.learn(64, callback=callback)
    steps = [point.step for point in callback.history]
    assert len(steps) == len(set(steps)) == len(callback.points)
    assert callback.points[-1].weights == fingerprint(callback._weights())


def test_a_point_that_is_hidden_is_neither_the_best_nor_the_saved_model(tmp_path: Path) -> None:
    callback = HeldoutEvalCallback(Walk, 32, episodes=4, keep_best=tmp_path, run_dir=tmp_path / "r")
    train("PPO", callback, steps=64)
    best = callback.best
    assert best is not None
    assert best.path == tmp_path / "best_model.zip"
    # A later result of that step, of other weights, hides the one whose model was saved.
    [hidden] = [point for point in callback.points if point.step == best.step]
    outcomes = tuple(msgspec.structs.replace(one, reward=-100.0) for one in hidden.outcomes)
    summary = {"n": 4, "mean": -100.0}
    later = msgspec.structs.replace(hidden, outcomes=outcomes, summary=summary, weights="others")
    callback._evals._evals.curve.add(later)
    now = callback.best
    assert now is not None
    assert now.step != best.step
    assert now.path is None


def test_the_report_is_of_the_weights_and_statistics_at_that_time() -> None:
    callback = HeldoutEvalCallback(Walk, 1000, episodes=10, seed=3)
    model = train("PPO", callback, normalize=True)
    (point,) = callback.history
    assert point.report is not None
    expected = evaluate_env(Walk, policy_of(model), 10, seed=3)
    assert played(point.report) == played(expected)


class Recorder(BaseCallback):
    """What the trainer has recorded and not yet written, at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[list[str]] = []

    def _on_step(self) -> bool:
        self.pending.append(sorted(self.logger.name_to_value))
        return True


def logged(tmp_path: Path, callbacks: list[BaseCallback]) -> list[dict[str, Any]]:
    logger: Logger = configure(str(tmp_path), ["json"])
    model = PPO("MlpPolicy", DummyVecEnv([Walk] * 2), n_steps=32, batch_size=16, seed=0,
                device="cpu")  # fmt: skip
    model.set_logger(logger)
    model.learn(192, callback=callbacks)
    logger.close()
    return [json.loads(line) for line in (tmp_path / "progress.json").read_text().splitlines()]


def test_numbers_are_logged_at_their_own_step_past_what_the_trainer_has_pending(
    tmp_path: Path,
) -> None:
    callback = HeldoutEvalCallback(Walk, 50, episodes=4, success=has_terminated)
    watched, plain = Recorder(), Recorder()
    rows = logged(tmp_path / "with", [callback, watched])
    evals = [row for row in rows if "eval/episodes" in row]
    assert [row["time/total_timesteps"] for row in evals] == [50, 100, 150, 192]
    for row, point in zip(evals, callback.history, strict=True):
        assert point.report is not None
        assert row["eval/success_rate"] == point.report.summary["success_rate"]
        assert row["eval/mean_return_ci_low"] == point.report.summary["mean_return_ci_low"]
        assert not any(key.startswith("train/") for key in row)
    others = [set(row) for row in rows if "eval/episodes" not in row]
    assert others == [set(row) for row in logged(tmp_path / "without", [plain])]
    assert watched.pending == plain.pending


def test_an_evaluation_that_fails_is_logged_as_a_skip_and_training_goes_on(
    tmp_path: Path,
) -> None:
    class Broken(Walk):
        def step(self, action: Any) -> Any:
            raise RuntimeError("no simulator")

    callback = HeldoutEvalCallback(Broken, 100, episodes=4, keep_best=tmp_path / "best")
    rows = [row for row in logged(tmp_path, [callback]) if "eval/skipped" in row]
    assert [row["eval/reason"] for row in rows] == ["RuntimeError: no simulator"] * 2
    assert not any("eval/success_rate" in row for row in rows)
    assert [point.skipped for point in callback.history] == ["RuntimeError: no simulator"] * 2
    assert callback.best is None
    assert not (tmp_path / "best").exists()


def test_an_environment_of_the_training_is_refused_and_left_open() -> None:
    env = Walk()
    venv = DummyVecEnv([lambda: env])
    for taken in (env, venv, VecMonitor(venv)):
        model = PPO("MlpPolicy", venv, n_steps=16, batch_size=16, seed=0, device="cpu")
        callback = HeldoutEvalCallback(lambda taken=taken: taken, 16, episodes=2)  # type: ignore[misc]
        before = model.num_timesteps
        with pytest.raises(InvalidInput, match="that training uses"):
            model.learn(16, callback=callback)
        assert model.num_timesteps == before, "refused before the first step"
        assert not env.closed


@pytest.mark.parametrize("by", ["success_rate", "mean_return"])
def test_the_best_model_is_kept_with_what_made_it_so(by: Any, tmp_path: Path) -> None:
    callback = HeldoutEvalCallback(
        Walk, 50, episodes=20, keep_best=tmp_path / "best", best_by=by, success=has_terminated
    )
    train("PPO", callback, steps=256, normalize=True)
    reports = [(p.step, p.report.summary) for p in callback.history if p.report is not None]
    step, summary = max(reports, key=lambda found: found[1][by])
    best = callback.best
    assert best is not None
    assert (best.step, best.by, best.value) == (step, by, pytest.approx(summary[by]))
    # One answer: that of the curve, whoever reads it.
    stored = callback.points[-1].verdict
    assert stored is not None
    assert (best.step, best.estimate) == (stored["best_step"], stored["best_estimate"])
    assert (best.ci_low, best.ci_high) == (stored["best_ci_low"], stored["best_ci_high"])
    assert best.among == len(reports) == len(callback.points)
    # What was kept is what was evaluated.
    assert best.path is not None
    statistics = VecNormalize.load(str(tmp_path / "best/vecnormalize.pkl"), DummyVecEnv([Walk]))
    kept = policy_of(PPO.load(best.path, device="cpu"), vec_normalize=statistics)
    again = evaluate_env(Walk, kept, 20, success=has_terminated).summary
    assert again[by] == pytest.approx(best.value)


def test_no_model_is_the_best_by_a_success_that_nothing_defines(tmp_path: Path) -> None:
    callback = HeldoutEvalCallback(
        Walk, 64, episodes=2, best_by="success_rate", keep_best=tmp_path / "best"
    )
    train("PPO", callback, steps=64)
    reasons = [str(point.skipped) for point in callback.history]
    assert reasons
    assert all("nothing says which episodes succeeded" in reason for reason in reasons)
    assert callback.best is None
    assert not (tmp_path / "best").exists()


def test_a_best_model_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    callback = HeldoutEvalCallback(Walk, 50, episodes=2, keep_best=tmp_path / "file")
    assert train("PPO", callback, steps=64).num_timesteps == 64
    assert all(point.report is not None for point in callback.history)


def test_what_could_not_be_meant_is_refused_before_training() -> None:
    for settings in ({"best_by": "luck"}, {"episodes": 0}, {"make_env": Walk()}):
        with pytest.raises(InvalidInput):
            HeldoutEvalCallback(**{"make_env": Walk, "every_steps": 5, **settings})  # type: ignore[arg-type]


def test_learning_again_is_counted_from_where_it_starts() -> None:
    callback = HeldoutEvalCallback(Walk, 50, episodes=2, at_end=False)
    model = train("PPO", callback, steps=64)
    model.learn(64, callback=callback, reset_num_timesteps=False)
    assert [point.step for point in callback.history] == [50, 100]
    model.learn(64, callback=callback)
    assert [point.step for point in callback.history] == [50, 100, 50]


# --- The curve ----------------------------------------------------------------------------------


def test_training_writes_the_curve_with_the_returns_that_were_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = HeldoutEvalCallback(Walk, 50, episodes=20, at_start=True, run_dir=tmp_path / "run")
    train("PPO", callback, steps=128)
    points = current_points(read_points(tmp_path / "run/curve.jsonl"))
    assert points == callback.points
    assert [point.step for point in points] == [0, 50, 100, 128]
    for point, measured in zip(points, callback.history, strict=True):
        assert measured.report is not None
        assert point.reward == pytest.approx(measured.report.summary["mean_return"])
        assert point.number("pass_rate") is None
        assert point.n == 20
    assert all(point.verdict is not None for point in points)
    assert points[-1].final
    for command in (["show"], ["flips"], ["watch", "--once"], ["plot", "-o", "curve.svg"]):
        assert run_cli(["curve", command[0], str(tmp_path / "run"), *command[1:]]) == 0, command
    assert "Finished" in capsys.readouterr().out


@pytest.mark.parametrize("at_end", [True, False])
def test_a_request_to_stop_ends_the_training(
    at_end: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def at_the_second(points: Any) -> str | None:
        return "two will do" if len(points) == 2 else None

    callback = HeldoutEvalCallback(Walk, 50, episodes=2, monitor=at_the_second, at_end=at_end)
    assert train("PPO", callback, steps=10_000).num_timesteps == 100
    assert callback.stop_requested == "two will do"
    assert "training stops at step 100: two will do" in caplog.text
    assert RunDir(callback.run_dir).read_info().status == "complete"

    class Asks(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps != 60 or run_cli(["curve", "stop", str(second.run_dir)]) == 0

    second = HeldoutEvalCallback(Walk, 50, episodes=2)
    # Between two evaluations, at the start of the next rollout of 64 steps.
    assert train("PPO", [Asks(), second], steps=10_000).num_timesteps == 66
    # Asked of that training, not of the next one.
    model = train("PPO", second, steps=64)
    assert model.num_timesteps == 64
    assert second.run_dir.name == "env_eval-3"


def test_a_model_that_goes_on_training_continues_its_curve_and_its_best(tmp_path: Path) -> None:
    def make_callback() -> HeldoutEvalCallback:
        return HeldoutEvalCallback(
            Walk, 50, episodes=20, keep_best=tmp_path / "best", run_dir=tmp_path / "run"
        )

    callback = make_callback()
    model = train("PPO", callback, steps=64)
    model.save(tmp_path / "checkpoint.zip")
    saved = (tmp_path / "best/best_model.zip").read_bytes()
    assert callback.best is not None

    loaded = PPO.load(tmp_path / "checkpoint.zip", env=model.get_env(), device="cpu")
    torch.nn.init.zeros_(loaded.policy.action_net.weight)  # it plays badly from here on
    loaded.lr_schedule = lambda _: 0.0
    later = make_callback()
    loaded.learn(64, callback=later, reset_num_timesteps=False)
    assert [point.step for point in later.points] == [50, 64, 100, 128]
    assert [point.step for point in later.history] == [100, 128]
    assert later.best is not None
    assert later.best.value == pytest.approx(callback.best.value)
    assert (later.best.step, later.best.among) == (callback.best.step, 4)
    assert later.best.path == tmp_path / "best/best_model.zip"
    assert (tmp_path / "best/best_model.zip").read_bytes() == saved
    with pytest.raises(RunExists):
        train("PPO", make_callback(), steps=64)
    again = HeldoutEvalCallback(
        Walk, 50, episodes=20, at_start=True, at_end=False, run_dir=tmp_path / "run"
    )
    loaded.learn(2, callback=again, reset_num_timesteps=False)
    assert [(point.step, point.reused) for point in again.history] == [(128, True), (150, False)]
    assert again.best is not None
    assert again.best.among == len(again.points) == 5
    sampling = HeldoutEvalCallback(
        Walk, 50, episodes=20, deterministic=False, run_dir=tmp_path / "run"
    )
    with pytest.raises(ResumeMismatch, match="policy"):
        loaded.learn(64, callback=sampling, reset_num_timesteps=False)


def test_another_training_gets_a_curve_of_its_own() -> None:
    callback = HeldoutEvalCallback(Walk, 50, episodes=2)
    model = train("PPO", callback, steps=64)
    assert callback.run_dir.name == "env_eval"
    model.learn(64, callback=callback, reset_num_timesteps=False)
    assert callback.run_dir.name == "env_eval"
    assert [point.step for point in callback.points] == [50, 64, 100, 128]
    model.learn(64, callback=callback)
    assert callback.run_dir.name == "env_eval-2"
    assert [point.step for point in callback.points] == [50, 64]
    other = HeldoutEvalCallback(Walk, 50, episodes=2)
    train("PPO", other, steps=64)
    assert other.run_dir.name == "env_eval-3"


def test_weights_are_the_policy_with_the_statistics_that_normalise_for_it() -> None:
    callback = HeldoutEvalCallback(Walk, 50, episodes=2)
    model = train("PPO", callback, steps=64, normalize=True)
    weights = [point.weights for point in callback.points]
    assert None not in weights
    assert fingerprint(model.policy) not in weights
    known = fingerprint(callback._weights())
    assert weights[-1] == known
    model.get_env().obs_rms.mean[0] += 1.0
    assert fingerprint(callback._weights()) != known


def test_the_best_and_the_curve_go_by_the_mean_return_unless_success_is_defined() -> None:
    def short(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
        return steps < 6

    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "mean_return"),
        ({"success": short}, "success_rate"),
        ({"success": short, "best_by": "mean_return"}, "mean_return"),
    ]
    for settings, by in cases:
        callback = HeldoutEvalCallback(Walk, 1000, episodes=9, **settings)
        train("PPO", callback, steps=64)
        (point,) = callback.history
        assert point.report is not None
        assert callback.best is not None
        assert callback.best.by == by
        assert callback.points[0].reward == pytest.approx(point.report.summary[by])
