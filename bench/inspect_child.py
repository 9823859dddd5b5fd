"""Time a sample of an Inspect task whose code runs in a child process, beside one in a thread.

    .venv-evals/bin/python bench/inspect_child.py

What docs/design/running.md says of a process for Inspect is from here. The child makes the task
anew, and runs its solvers and scorers; each question of theirs goes to the parent over a pipe, and
the policy's turn comes back. CPU time is that of both processes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from heldout import Completion, EvalConfig, Message, Sample, Score, Trajectory, evaluate
from heldout.adapters import AdaptedEval, Row
from heldout.adapters.inspect import from_inspect
from heldout.adapters.inspect.values import score_outcome
from inspect_tasks import IN_FLIGHT, ROUNDS, SAMPLES, make_task

encode, decode = msgspec.json.encode, msgspec.json.decode


class Asked(msgspec.Struct):
    """What a process tells the other about an item."""

    item: int
    sample: str = ""
    messages: list[Message] = []
    completion: Completion | None = None
    outcome: dict[str, Any] | None = None
    cpu: float = 0.0


# --- The child ----------------------------------------------------------------------------------


def serve(pipe: Connection, samples: int) -> None:
    """Run items of the task until the parent closes the pipe."""
    asyncio.run(_serve(pipe, samples))


async def _serve(pipe: Connection, samples: int) -> None:
    definition = from_inspect(make_task(samples))
    by_id = {sample.id: sample for sample in definition.samples}
    loop, turns, items = asyncio.get_running_loop(), {}, set()

    async def run(item: int, sample: Sample) -> None:
        environment: Any = definition.environment_factory(sample)  # type: ignore[misc]
        messages = list(await environment.opening())
        while True:
            pipe.send_bytes(encode(Asked(item, messages=messages)))
            completion = await turns[item].get()
            environment.see_completion(completion)
            messages.append(completion.message)
            reply = await environment.reply(tuple(messages))
            if reply.done:
                break
            messages += reply.messages
        outcome = await environment.outcome()
        await environment.close()
        pipe.send_bytes(encode(Asked(item, outcome=outcome, cpu=time.process_time())))

    def begin(told: Asked) -> None:
        if told.completion is not None:
            turns[told.item].put_nowait(told.completion)
            return
        turns[told.item] = asyncio.Queue()
        items.add(asyncio.ensure_future(run(told.item, by_id[told.sample])))

    def read() -> None:
        try:
            while True:
                loop.call_soon_threadsafe(begin, decode(pipe.recv_bytes(), type=Asked))
        except EOFError:
            loop.call_soon_threadsafe(ended.set)

    ended = asyncio.Event()
    threading.Thread(target=read, daemon=True).start()
    pipe.send_bytes(encode(Asked(-1)))
    await ended.wait()


# --- The parent ---------------------------------------------------------------------------------


class InChild(AdaptedEval):
    """The task, with its code in a child process."""

    name = "inspect:in-child"

    def __init__(self, samples: int) -> None:
        self._count = samples
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(theirs, samples), daemon=True)
        self._process.start()
        theirs.close()
        self._news: dict[int, asyncio.Queue[Asked]] = {}
        self._pipe.recv_bytes()
        self.cpu = 0.0

    def rows(self) -> list[Row]:
        """Return the task's samples."""
        rows = make_task(self._count).dataset
        return [Row({"question": row.input}, row.target, {}, str(row.id)) for row in rows]

    def listen(self) -> None:
        """Pass on what the child says, to the event loop that runs."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            while True:
                try:
                    told = decode(self._pipe.recv_bytes(), type=Asked)
                except (EOFError, OSError):
                    return
                self.cpu = max(self.cpu, told.cpu)
                loop.call_soon_threadsafe(self._news[told.item].put_nowait, told)

        threading.Thread(target=read, daemon=True).start()

    async def converse(self, sample: Sample, conversation: Any) -> Mapping[str, Any]:
        """Have the child run a row, and ask the policy what it asks."""
        item = len(self._news)
        news = self._news[item] = asyncio.Queue()
        self._pipe.send_bytes(encode(Asked(item, sample.id)))
        while (told := await news.get()).outcome is None:
            completion = await conversation.ask(told.messages)
            self._pipe.send_bytes(encode(Asked(item, completion=completion)))
        return told.outcome

    def score(self, trajectory: Trajectory, sample: Sample) -> Score:
        """Score a row by what the task's own scorers said."""
        return score_outcome(trajectory, reward="match")

    def close(self) -> None:
        """End the child."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()


async def answer(messages: Any, **_: Any) -> str:
    return "7"


async def run(definition: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        config = EvalConfig(endpoint=answer, output_dir=folder, max_concurrent=IN_FLIGHT)
        report = await evaluate(definition, config)
        assert report.summary["n_scored"] == len(report.results) > 0
        return float(report.summary["mean"])


async def main() -> None:
    begun = time.perf_counter()
    child = InChild(SAMPLES)
    print(f"a child that has its task: {time.perf_counter() - begun:.1f} s")
    child.listen()
    own, in_child = from_inspect(make_task()), child.definition()
    for definition in (own, in_child):  # both have run before they are timed
        await run(definition)
    times: dict[str, list[tuple[float, float]]] = {"in a thread": [], "in a child": []}
    for _ in range(ROUNDS):
        means = []
        for name, definition in (("in a thread", own), ("in a child", in_child)):
            cpu, theirs, wall = time.process_time(), child.cpu, time.perf_counter()
            means.append(await run(definition))
            spent = time.process_time() - cpu + child.cpu - theirs
            times[name].append((spent, time.perf_counter() - wall))
        assert means[0] == means[1]
    for name, spent_times in times.items():
        cpu, wall = (
            statistics.median(each) / SAMPLES * 1e3 for each in zip(*spent_times, strict=True)
        )
        print(f"{name}: {cpu:.2f} ms of CPU per sample, {wall:.2f} ms wall")
    child.close()


if __name__ == "__main__":
    asyncio.run(main())
