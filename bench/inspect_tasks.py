"""Time a sample of an Inspect task in heldout beside Inspect's own runner, in turns.

    .venv-evals/bin/python bench/inspect_tasks.py

A task of one model call and one scorer; a function answers at once. CPU and wall time cover the
whole call, in a process that has run both before. (A file called inspect.py would take the place of
Python's own module.)
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.util import display_type

from heldout import EvalConfig, evaluate
from heldout.adapters.inspect import from_inspect

SAMPLES, ROUNDS, IN_FLIGHT = 100, 3, 50


def make_task(samples: int = SAMPLES) -> Task:
    rows = [Sample(id=i, input=f"What is {i} + 1?", target=str(i + 1)) for i in range(samples)]
    return Task(rows, scorer=match())


async def run_heldout(samples: int = SAMPLES) -> None:
    async def answer(messages: Any, **_: Any) -> str:
        return "7"

    with tempfile.TemporaryDirectory() as folder:
        config = EvalConfig(endpoint=answer, output_dir=folder, max_concurrent=IN_FLIGHT)
        report = await evaluate(from_inspect(make_task(samples)), config)
        assert report.summary["n"] == samples


async def run_inspect(samples: int = SAMPLES, **settings: Any) -> None:
    def outputs(*_: Any) -> ModelOutput:
        output = ModelOutput.from_content("mockllm/model", "7")
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    model = get_model("mockllm/model", custom_outputs=outputs)
    with tempfile.TemporaryDirectory() as folder:
        (log,) = await eval_async(
            make_task(samples),
            model=model,
            log_dir=folder,
            max_samples=IN_FLIGHT,
            max_connections=IN_FLIGHT,
            ctl_server=False,
            **settings,
        )
        assert log.results is not None
        assert log.results.completed_samples == samples


async def main() -> None:
    display_type()
    runs: dict[str, Callable[..., Awaitable[None]]] = {
        "heldout": run_heldout,
        "inspect-ai": run_inspect,
        "inspect-ai, log_realtime=False": lambda *a: run_inspect(*a, log_realtime=False),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for run in runs.values():
        await run(5)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            await run()
            spent = time.process_time() - cpu, time.perf_counter() - wall
            times[name].append(spent)
    for name, spent_times in times.items():
        cpu, wall = (
            statistics.median(each) / SAMPLES * 1e3 for each in zip(*spent_times, strict=True)
        )
        print(f"{name}: {cpu:.2f} ms of CPU per sample, {wall:.2f} ms wall")


if __name__ == "__main__":
    asyncio.run(main())
