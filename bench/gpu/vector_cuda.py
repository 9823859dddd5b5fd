"""Evaluate an agent whose environments and policy live on a GPU, and check it against the CPU.

    python bench/gpu/vector_cuda.py

Thousands of copies of a small environment in torch tensors, which resets itself in the step that
ends an episode, as GPU simulators do. Prints JSON lines: whether every episode is the same on the
GPU as on the CPU, whether the random state of both is untouched, and how many steps a second
heldout's evaluation makes beside a bare loop that only counts ends.
"""

from __future__ import annotations

import json
import time
from statistics import median
from typing import Any

import torch

from heldout.vector import evaluate_env

ENVS, EPISODES = 4096, 16384


class Walks:
    """Walkers on a line that want to get to 10, with integer arithmetic only: exact everywhere."""

    def __init__(self, device: str, num_envs: int = ENVS) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)

    def reset(self, *, seed: int) -> Any:
        self.state = torch.arange(self.num_envs, device=self.device, dtype=torch.int64) + seed
        self.place = torch.zeros_like(self.state)
        self.t = torch.zeros_like(self.state)
        return self.place.float()

    def step(self, actions: Any) -> Any:
        # A linear congruential generator a walker: random, and the same on every device.
        self.state = (self.state * 1103515245 + 12345) % 2147483648
        self.place += actions + (self.state >> 16) % 3 - 1
        self.t += 1
        done, cut = self.place >= 10, self.t >= 40
        over = done | cut
        distance = (10 - self.place).clamp(min=0)
        self.place = torch.where(over, torch.zeros_like(self.place), self.place)
        self.t = torch.where(over, torch.zeros_like(self.t), self.t)
        reward = -torch.ones_like(self.place).float()
        return self.place.float(), reward, done, cut & ~done, {"dist": distance}

    def close(self) -> None:
        pass


def forward(places: Any) -> Any:
    return (places < 8).long()


def bare(device: str) -> int:
    env = Walks(device)
    observations = env.reset(seed=0)
    ended = steps = 0
    while ended < EPISODES:
        observations, _, done, cut, _ = env.step(forward(observations))
        ended += int((done | cut).sum())
        steps += env.num_envs
    return steps


def evaluated(device: str) -> Any:
    return evaluate_env(lambda: Walks(device), forward, EPISODES)


def main() -> None:
    cpu, gpu = evaluated("cpu"), evaluated("cuda")
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    same = list(cpu.episodes) == list(gpu.episodes) and cpu.summary == gpu.summary
    after = torch.cuda.get_rng_state(), torch.get_rng_state()
    untouched = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    print(json.dumps({"same on both": same, "random state untouched": untouched}))
    rates: dict[str, list[float]] = {"heldout": [], "bare": []}
    for turn in range(6):
        for name, play in (
            ("heldout", lambda: int(evaluated("cuda").summary["steps"])),
            ("bare", lambda: bare("cuda")),
        ):
            torch.cuda.synchronize()
            start = time.perf_counter()
            steps = play()
            torch.cuda.synchronize()
            if turn:  # the first round warms up
                rates[name].append(steps / (time.perf_counter() - start))
    found = {name: median(values) for name, values in rates.items()}
    print(json.dumps({"steps a second": found, "ratio": found["heldout"] / found["bare"]}))
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    print(json.dumps({"success_rate": gpu.summary["success_rate"], "notes": list(gpu.notes)}))


if __name__ == "__main__":
    main()
