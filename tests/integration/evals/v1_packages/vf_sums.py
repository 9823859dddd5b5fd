"""A taskset as people install it: one question, one answer."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["SumsTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.7)
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.1)
    async def in_a_box(self, trace: vf.Trace, runtime: vf.Runtime) -> float:
        return float((await runtime.run(["true"], {})).exit_code == 0)

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return len(trace.last_reply.split())


class SumsConfig(vf.TasksetConfig):
    n: int = 2
    """Number of tasks."""


class SumsTaskset(vf.Taskset[SumTask, SumsConfig]):
    def load(self) -> Iterator[SumTask]:
        for i in range(self.config.n):
            prompt = [vf.UserMessage(content=f"{i} + {i}?")] if i % 2 else f"{i} + {i}?"
            data = SumData(prompt=prompt, answer=str(2 * i), system_prompt="Answer with a number.")
            yield SumTask(data, self.config.task)
