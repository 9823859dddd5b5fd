"""An environment with one role, whose engine plays the user: several turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["GuessEnv", "GuessTaskset"]


class GuessData(vf.TaskData):
    number: int


class GuessTask(vf.Task[GuessData]):
    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns


class GuessEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessEnvConfig]):
    async def run(self, task: GuessTask, agents: Any) -> None:
        found = False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                guess = int(segment.last_reply)
                if found := guess == task.data.number:
                    break
                segment = await interaction.turn("more" if guess < task.data.number else "less")
        interaction.trace.record_reward("found", found, 0.3)


class GuessConfig(vf.TasksetConfig):
    numbers: tuple[int, ...] = (3,)


class GuessTaskset(vf.Taskset[GuessTask, GuessConfig]):
    def load(self) -> Iterator[GuessTask]:
        for number in self.config.numbers:
            data = GuessData(name=f"guess-{number}", prompt="Guess!", number=number)
            yield GuessTask(data, self.config.task)
