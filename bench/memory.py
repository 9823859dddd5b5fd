"""Peak memory of an eval of 10 thousand, 100 thousand and a million samples from a generator.

The samples are made as they are asked for and the results are on disk, so the peak should not
depend on how many there are.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio

from common import child, emit, options, say, scratch
from heldout import EvalConfig, Message, Metric, Sample, Score, Trajectory, evaluate

CONCURRENCY = 100


def resident() -> float:
    """Memory in use now, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def peak() -> float:
    """Most memory ever in use, in MB (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


async def answer(messages: list[Message]) -> str:
    return messages[-1].text


def score(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("same", float(trajectory.answer == sample.ground_truth), 1.0),))


async def measure(count: int) -> dict[str, Any]:
    seen: dict[str, float] = {"imported_mb": resident()}

    def stream() -> Iterator[Sample]:
        for i in range(count):
            text = f"What is {i} + 25?"
            yield Sample(f"sample-{i}", {"question": text}, text, {"kind": f"kind {i % 5}"})
        seen["ran_mb"] = resident()  # the last sample is out, the report not yet derived

    folder = scratch("memory")
    config = EvalConfig(
        endpoint=answer,
        experiment_name="memory",
        max_concurrent=CONCURRENCY,
        output_dir=str(folder),
        progress=False,
    )
    start = time.perf_counter()
    report = await evaluate(stream(), config, score)
    seen["wall_s"] = time.perf_counter() - start
    seen["peak_mb"] = peak()
    shutil.rmtree(folder)
    if report.summary["n"] != count or report.summary["mean"] != 1.0:
        sys.exit(f"wrong result: {report.summary}")
    return seen


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--samples", type=int, help="measure one size in this process")
    args = parser.parse_args()
    if args.samples:
        print(json.dumps(anyio.run(measure, args.samples)))
        return
    sizes = (1000, 10_000, 100_000) if args.quick else (10_000, 100_000, 1_000_000)
    peaks = []
    for count in sizes:
        say(f"memory, {count:,} samples")
        line = child(sys.executable, __file__, "--samples", str(count))
        peaks.append(line["peak_mb"])
        emit(f"peak memory, {count:,} samples", line["peak_mb"], "MB")
        emit("in use when the last sample was handed out", line["ran_mb"], "MB")
        emit("wall", line["wall_s"], "s")
    emit("imported, before the first sample", line["imported_mb"], "MB")
    emit(
        f"peak of {sizes[2]:,} samples over that of {sizes[1]:,}",
        peaks[2] / peaks[1],
        "x",
        target=1.1,
    )


if __name__ == "__main__":
    main()
