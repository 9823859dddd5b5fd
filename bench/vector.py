"""Time the evaluation of episodes, beside loops that do less and stable-baselines3's own.

All play CartPole with the same policy in one process, taking turns, and count CPU time a step.
"""

from __future__ import annotations

import json
import resource
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

from common import child, emit, options, say
from heldout.integrations.stable_baselines3 import policy_of
from heldout.vector import evaluate_env
from heldout.vector.episodes import episode_seed

ENVS, MANY = 8, 200
WEIGHTS = np.array([0.1, 0.5, 1.0, 1.0], dtype=np.float32)


def linear(observations: Any) -> Any:
    return (observations @ WEIGHTS > 0).astype(np.int64)


class Linear:
    """The same for `evaluate_policy`."""

    def predict(self, observations: Any, *_: Any, **__: Any) -> tuple[Any, None]:
        return linear(observations), None


def make_env() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


def make_vector() -> VectorEnv[Any, Any, Any]:
    return gym.make_vec("CartPole-v1", MANY, vectorization_mode="vector_entry_point")


# --- What is measured: each plays episodes and returns the steps it took -------------------------


def by_heldout(policy: Callable[[Any], Any], episodes: int) -> int:
    return int(evaluate_env(make_env, policy, episodes, num_envs=ENVS).summary["steps"])


def bare(policy: Callable[[Any], Any], episodes: int) -> int:
    """Episodes by index over a list of environments, with no books but their number."""
    envs = [make_env() for _ in range(ENVS)]
    observations = np.stack([env.reset(seed=episode_seed(0, i))[0] for i, env in enumerate(envs)])
    started, running, steps = ENVS, [True] * ENVS, 0
    while any(running):
        actions = policy(observations.copy())
        for i, env in enumerate(envs):
            if running[i]:
                observations[i], _, terminated, truncated, _ = env.step(actions[i])
                steps += 1
                if terminated or truncated:
                    running[i] = started < episodes
                    if running[i]:
                        observations[i], _ = env.reset(seed=episode_seed(0, started))
                        started += 1
    for env in envs:
        env.close()
    return steps


def by_sb3(model: Any, episodes: int) -> int:
    venv = DummyVecEnv([make_env] * ENVS)
    _, lengths = evaluate_policy(
        model, venv, n_eval_episodes=episodes, return_episode_rewards=True, warn=False
    )
    venv.close()
    return sum(lengths)


def vector_by_heldout(episodes: int) -> int:
    return int(evaluate_env(make_vector, linear, episodes).summary["steps"])


def vector_bare(episodes: int) -> int:
    """Steps a vector environment until so many episodes have ended, whichever they are."""
    env = make_vector()
    observations, _ = env.reset(seed=0)
    ended = steps = 0
    while ended < episodes:
        observations, _, terminated, truncated, _ = env.step(linear(observations))
        ended += int((terminated | truncated).sum())
        steps += MANY
    env.close()
    return steps


# --- Rounds --------------------------------------------------------------------------------------


def speed(rounds: int, episodes: int) -> dict[str, float]:
    """CPU microseconds a step of each: the median of rounds in which all take turns."""
    torch.set_num_threads(1)  # on a busy machine two wait for each other more than they help
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PPO("MlpPolicy", make_env(), seed=0, device="cpu")
        model.learn(4096)
    network = policy_of(model)
    cases: dict[str, Callable[[], int]] = {
        "linear": lambda: by_heldout(linear, episodes),
        "linear, bare": lambda: bare(linear, episodes),
        "linear, sb3": lambda: by_sb3(Linear(), episodes),
        "ppo": lambda: by_heldout(network, episodes),
        "ppo, sb3": lambda: by_sb3(model, episodes),
        "vector": lambda: vector_by_heldout(10 * MANY),
        "vector, bare": lambda: vector_bare(10 * MANY),
    }
    spent: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, play in cases.items():
            start = time.process_time()
            steps = play()
            if turn:  # the first round warms up
                spent[name].append(1e6 * (time.process_time() - start) / steps)
    return {name: median(values) for name, values in spent.items()}


class Brief:
    """An environment of three steps, so that many episodes take little time."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self.left = 3
        return np.zeros(2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(2), 1.0, self.left == 0, False, {}

    def close(self) -> None:
        pass


def memory(episodes: int) -> dict[str, float]:
    report = evaluate_env(Brief, lambda o: np.zeros(len(o)), episodes, num_envs=ENVS)
    if report.summary["episodes"] != episodes or report.summary["mean_return"] != 3.0:
        sys.exit(f"wrong result: {report.summary}")
    return {"mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--memory", type=int, help="measure the memory of so many episodes")
    parser.add_argument("--speed", action="store_true", help="measure the speed alone")
    args = parser.parse_args()
    if args.memory:
        print(json.dumps(memory(args.memory)))
        return
    if args.speed:
        print(json.dumps(speed(1, 8) if args.quick else speed(5, 40)))
        return
    say("vector, speed")
    quick = ["--quick"] if args.quick else []
    found = child(sys.executable, __file__, "--speed", *quick)
    own, ppo, vector = found["linear"], found["ppo"], found["vector"]
    emit(f"CPU a step, {ENVS} plain environments, linear policy", own, "µs")
    emit("over a bare loop by index", own / found["linear, bare"], "x", target=1 / 0.85)
    other = found["linear, sb3"]
    emit("over evaluate_policy of stable-baselines3", own / other, "x", target=1 / 1.4)
    emit("evaluate_policy, CPU a step", other, "µs", ratio=other / own)
    emit(f"CPU a step, {ENVS} plain environments, a PPO policy", ppo, "µs")
    other = found["ppo, sb3"]
    emit("over evaluate_policy, the same policy", ppo / other, "x", target=1 / 2.5)
    emit("evaluate_policy, CPU a step, the same policy", other, "µs", ratio=other / ppo)
    emit(f"CPU a step, a vector entry point of {MANY}", vector, "µs")
    emit("over a bare loop that counts ends", vector / found["vector, bare"], "x", target=1 / 0.8)
    few, many = (1_000, 10_000) if args.quick else (10_000, 100_000)
    say("vector, memory")
    sizes = [child(sys.executable, __file__, "--memory", str(n))["mb"] for n in (few, many)]
    emit(f"peak memory, {few:,} episodes", sizes[0], "MB")
    emit(f"peak memory, {many:,} episodes, over that", sizes[1] / sizes[0], "x", target=1.1)


if __name__ == "__main__":
    main()
