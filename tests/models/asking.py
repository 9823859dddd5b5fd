"""One question to an endpoint, or an eval of it, as a function to run under an event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

import heldout
from heldout import EvalConfig, EvalReport, Message, Sample, Sampling, ToolSpec, Trajectory
from heldout.environment import Reply
from heldout.types import Completion

QUESTION = [Message("user", "2 + 2?")]


def completing(
    endpoint: Any,
    messages: Sequence[Message] = QUESTION,
    sampling: Sampling | None = None,
    tools: Sequence[ToolSpec] = (),
) -> Callable[[], Any]:
    """Ask once, and close the endpoint."""

    async def main() -> Completion:
        try:
            with anyio.fail_after(30):
                return await endpoint.complete(messages, sampling or Sampling(), tools)
        finally:
            await endpoint.close()

    return main


def right(trajectory: Trajectory, sample: Sample) -> float:
    return float(trajectory.answer == sample.ground_truth)


def evaluating(
    samples: Sequence[Sample], endpoint: Any, folder: Any, *hooks: Any, **settings: Any
) -> Callable[[], Any]:
    """Evaluate into `folder`/run, by `right` unless a score function is among the hooks."""
    defaults = {"experiment_name": "run", "output_dir": str(folder), "progress": False}
    config = EvalConfig(endpoint, **{**defaults, "max_error_rate": 1, **settings})

    async def main() -> EvalReport:
        with anyio.fail_after(60):
            return await heldout.evaluate(samples, config, *(hooks or (right,)))

    return main


class Tool:
    """An environment that answers every call with a text, and ends where there is none."""

    def __init__(self, result: str = "0") -> None:
        self.result = result
        self.tools = (ToolSpec("add", "Adds."),)

    def opening(self) -> list[Message]:
        return []

    def reply(self, messages: Sequence[Message]) -> Reply:
        calls = messages[-1].tool_calls
        results = [Message("tool", self.result, tool_call_id=call.id) for call in calls]
        return Reply(results, done=not calls)

    def close(self) -> None: ...
