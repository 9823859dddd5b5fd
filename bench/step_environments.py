"""What a step of an environment costs in an eval, beside the plain loop over the same environment.

Run it where TextArena is installed. One's own environment is a counter that draws a number in each
step, in this process; a game of TextArena plays in a worker process. heldout's time includes its
whole eval: turn loop, score, journal, report. Rounds alternate, the best of each count.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from typing import Any

import anyio

from common import emit, options
from heldout import EvalConfig, EvalDefinition, Message, evaluate
from heldout.adapters.step_environments import from_step_env, seeds
from heldout.adapters.step_environments.textarena import from_textarena

STEPS = 20


class Counter:
    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        self.steps = 0
        return "Count.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return f"{random.random():.3f}", 0.1, self.steps == STEPS, False, {}


async def move(messages: list[Message]) -> str:
    return "[1 2 3 4]"  # a wrong code, but a valid one


def with_heldout(definition: EvalDefinition) -> float:
    async def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            config = EvalConfig(endpoint=move, output_dir=folder, max_turns=50, progress=False)
            started = time.perf_counter()
            report = await evaluate(definition, config)
            seconds = time.perf_counter() - started
            steps = sum(result.score["steps"] for result in report.results)
        return seconds / steps

    return anyio.run(run)


def counter_alone(count: int) -> float:
    started = time.perf_counter()
    for seed in range(count):
        env = Counter()
        env.reset(seed)
        while not env.step("[1 2 3 4]")[2]:
            pass
    return (time.perf_counter() - started) / (count * STEPS)


def textarena_alone(count: int) -> float:
    import textarena

    started, steps = time.perf_counter(), 0
    for seed in range(count):
        game = textarena.make("Mastermind-v0")
        game.reset(num_players=1, seed=seed)
        done = False
        while not done:
            game.get_observation()
            done, _ = game.step("[1 2 3 4]")
            steps += 1
    return (time.perf_counter() - started) / steps


def main() -> None:
    chosen = options(__doc__).parse_args()
    count, rounds = (10, 1) if chosen.quick else (100, 5)
    own = from_step_env(lambda sample: Counter(), seeds("counter", range(count)))
    game = from_textarena("Mastermind-v0", size=count)
    cases: dict[str, tuple[EvalDefinition, Callable[[int], float]]] = {
        "an environment in this process": (own, counter_alone),
        "TextArena's Mastermind, in a worker": (game, textarena_alone),
    }
    for name, (definition, alone) in cases.items():
        times: tuple[list[float], list[float]] = [], []
        for _ in range(rounds):
            times[0].append(with_heldout(definition))
            times[1].append(alone(count))
        ours, plain = (1000 * min(seconds) for seconds in times)
        emit(f"per step, {name}", ours, "ms")
        emit(f"the plain loop, {name}", plain, "ms", ratio=plain / ours)


if __name__ == "__main__":
    main()
