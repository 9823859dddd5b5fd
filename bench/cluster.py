"""Time an eval over Ray: overhead per sample, latency hidden by workers, a model in two workers.

Beside it, in the same process and on the same cluster, `ray.util.ActorPool.map_unordered` with one
call per sample: what one would write by hand. Starting Ray and the workers is not part of a figure:
the clock runs from the first sample that is pulled to the report.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import anyio

from common import HERE, child, emit, options, say, scratch
from heldout import EvalConfig, Message, Metric, Sample, Sampling, Score, Trajectory, evaluate

LATENCY, IN_FLIGHT = 0.2, 500


def reply(question: str) -> str:
    """Answer "What is A + B?", wrongly where A leaves 3 on division by 4."""
    a, b = (int(part) for part in question.removeprefix("What is ")[:-1].split(" + "))
    return "unknown" if a % 4 == 3 else str(a + b)


async def at_once(messages: list[Message]) -> str:
    return reply(messages[-1].text)


async def after_a_while(messages: list[Message]) -> str:
    await anyio.sleep(LATENCY)
    return reply(messages[-1].text)


def exact_match(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("exact_match", float(trajectory.answer == sample.ground_truth), 1.0),))


class Plain:
    """An actor as one would write it: a sample in, its reward out."""

    def run(self, sample: dict[str, Any]) -> dict[str, Any]:
        answer = reply(sample["question"])
        return {**sample, "answer": answer, "reward": float(answer == sample["truth"])}


def connect(cpus: int) -> Any:
    import ray

    ray.init(
        "local",
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    return ray


def run_pool(ray: Any, count: int) -> dict[str, float]:
    """`ActorPool.map_unordered` over two actors, each result written as a line of JSON."""
    actors = [ray.remote(Plain).remote() for _ in range(2)]
    warm = {"question": "What is 0 + 0?", "truth": "0"}
    ray.get([actor.run.remote(warm) for actor in actors])
    pool = ray.util.ActorPool(actors)
    samples = [
        {"id": str(i), "question": f"What is {i} + 25?", "truth": str(i + 25)} for i in range(count)
    ]
    folder = scratch("pool")
    wall, cpu = time.perf_counter(), time.process_time()
    with (folder / "results.jsonl").open("w") as file:
        for result in pool.map_unordered(lambda actor, sample: actor.run.remote(sample), samples):
            file.write(json.dumps(result) + "\n")
    figures = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    for actor in actors:
        ray.kill(actor)
    shutil.rmtree(folder)
    return figures


def run_heldout(
    endpoint: Any, count: int, workers: int, score: Callable[..., Any] = exact_match
) -> dict[str, float]:
    """`evaluate` over workers, its journal and report written."""
    from heldout.cluster import RayExecutor

    began: list[tuple[float, float]] = []

    def stream() -> Iterator[Sample]:
        began.append((time.perf_counter(), time.process_time()))
        for i in range(count):
            yield Sample(str(i), {"question": f"What is {i} + 25?"}, str(i + 25))

    folder = scratch("cluster")
    config = EvalConfig(
        endpoint=endpoint,
        experiment_name="run",
        max_concurrent=IN_FLIGHT,
        output_dir=str(folder),
        progress=False,
    )
    asked = time.perf_counter()

    async def main() -> float:
        executor = RayExecutor(workers=workers) if workers else None
        report = await evaluate(stream(), config, score, executor=executor)
        return float(report.summary["mean"])

    mean = anyio.run(main)
    wall, cpu = began[0]
    figures = {
        "start": wall - asked,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
    }
    expected = sum(i % 4 != 3 for i in range(count)) / count
    if abs(mean - expected) > 1e-9:
        sys.exit(f"wrong result: a mean of {mean}, expected {expected}")
    shutil.rmtree(folder)
    return figures


def run_model(count: int, workers: int) -> dict[str, float]:
    """SmolLM2 on both cores: in this process (`workers` 0), or one in each worker."""
    from heldout.cluster import RayExecutor

    began: list[float] = []

    def stream() -> Iterator[Sample]:
        for i in range(count):
            if i == 0:
                began.append(time.perf_counter())
            yield Sample(str(i), {"question": f"What is {i} + 25?"}, str(i + 25))

    folder = scratch("model")
    config = EvalConfig(
        endpoint="smollm2",
        experiment_name="run",
        max_concurrent=16,
        output_dir=str(folder),
        sampling=Sampling(max_tokens=32),
        progress=False,
    )

    async def main() -> None:
        executor = RayExecutor(workers=workers) if workers else None
        await evaluate(stream(), config, exact_match, executor=executor)

    anyio.run(main)
    wall = time.perf_counter() - began[0]
    shutil.rmtree(folder)
    return {"wall": wall}


def measure(case: str, count: int) -> dict[str, Any]:
    match case:
        case "overhead":
            ray = connect(2)
            return {"pool": run_pool(ray, count), "heldout": run_heldout(at_once, count, 2)}
        case "latency":
            alone = run_heldout(after_a_while, count, 0)
            connect(4)
            return {"alone": alone, "workers": run_heldout(after_a_while, count, 4)}
        case "model":
            connect(2)
            return run_model(count, 2)
        case _:
            return run_model(count, 0)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", choices=("overhead", "latency", "model", "one"))
    parser.add_argument("--count", type=int)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.case, args.count)))
        return
    runs = 1 if args.quick else 3
    count = 1000 if args.quick else 10_000

    def repeat(case: str, count: int, runs: int) -> list[dict[str, Any]]:
        say(f"{case}: {count:,} samples, {runs} times")
        command = [sys.executable, HERE / "cluster.py", "--case", case, "--count", str(count)]
        return [child(*command) for _ in range(runs)]

    both = repeat("overhead", count, runs)
    ours = median([run["heldout"]["wall"] for run in both])
    ratio = median([run["heldout"]["wall"] / run["pool"]["wall"] for run in both])
    cpu = median([run["heldout"]["cpu"] for run in both])
    emit(f"wall per sample, {count:,} samples of 0 s, 2 workers", 1000 * ours / count, "ms")
    pool = median([run["pool"]["wall"] for run in both])
    emit("`ActorPool.map_unordered`, 2 actors: wall per sample", 1000 * pool / count, "ms")
    emit("the first over the second, side by side", ratio, "x", target=1.5)
    emit("CPU of the driver per sample", 1000 * cpu / count, "ms")
    emit("results a second that the driver takes, of its CPU", count / cpu, "/s")
    emit("starting two workers", median([run["heldout"]["start"] for run in both]), "s")
    count = 1000 if args.quick else 5000
    ideal = count * LATENCY / IN_FLIGHT
    latency = repeat("latency", count, runs)
    wall = median([run["workers"]["wall"] for run in latency]) / ideal
    alone = median([run["alone"]["wall"] for run in latency]) / ideal
    what = f"wall, 0.2 s latency, 500 in flight, 4 workers, over the ideal {ideal:.1f} s"
    emit(what, wall, "x", target=1.25)
    emit("the same without Ray, in one process", alone, "x")
    count = 8 if args.quick else 32
    one = repeat("one", count, 1)[0]["wall"]
    two = repeat("model", count, 1)[0]["wall"]
    emit(f"SmolLM2, {count} answers of 32 tokens, one process", one, "s")
    emit("the same, two workers of one core each", two, "s", ratio=two / one)


if __name__ == "__main__":
    main()
