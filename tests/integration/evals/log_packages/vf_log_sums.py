"""A taskset and a harness of verifiers v1: one question, one model call, and graders that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import verifiers.v1 as vf

__all__ = ["AskHarness", "SumsTaskset"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=0.7)
    async def correct(self, trace: vf.Trace) -> float:
        if self.data.id == "broken-grader":
            raise RuntimeError("the grader broke")
        if self.data.id == "slow-grader":
            await asyncio.sleep(60)
        return float(trace.last_reply == self.data.answer)

    @vf.metric
    async def words(self, trace: vf.Trace) -> float:
        return len(trace.last_reply.split())


class SumsTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> Iterator[SumTask]:
        for id in ("right", "wrong", "broken-grader", "slow-grader", "no-model"):
            answer = "0" if id == "right" else "1"
            limit = vf.TaskTimeout(scoring=0.2)
            data = SumData(id=id, prompt=f"{id}: 0 + 0?", answer=answer, timeout=limit)
            yield SumTask(data, self.config.task)


class AskHarness(vf.Harness[vf.HarnessConfig]):
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
    ) -> Any:
        body = {"model": ctx.model, "messages": [{"role": "user", "content": data.prompt}]}
        headers = {"authorization": f"Bearer {secret}"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{endpoint}/chat/completions", json=body, headers=headers) as response,
        ):
            await response.read()  # an error is swallowed, as some harnesses do
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
