"""Time a training loop whose evals overlap with it, against evals in between and none at all.

Training is a sleep, and so is the eval: 50 ms a step, and 2 s of waiting for a remote sampler.
What is left is what scheduling costs the training.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

import anyio

from common import child, emit, middle, options, say, scratch
from heldout.training import read_points
from heldout.training.background.dispatcher import AsyncEvalDispatcher

STEP, LATENCY, EVERY, STEPS = 0.050, 2.0, 10, 60
PENDING = 8
"""Four are under way at a time; room for some that are late."""


def evaluator(latency: float) -> Any:
    async def sample() -> dict[str, float]:
        await anyio.sleep(latency)
        return {"accuracy": 0.5}

    return sample


def train(case: str, steps: int, latency: float) -> dict[str, Any]:
    """Wall time of the loop itself; what is left to wait for at its end is another number."""
    sample, folder = evaluator(latency), scratch(f"dispatcher-{case.replace(' ', '-')}")
    with AsyncEvalDispatcher(run_dir=folder / "warm") as evals:
        evals.schedule(evaluator(0.0), step=0)  # imports, first threads
    evals = AsyncEvalDispatcher(run_dir=folder / "run", max_pending=PENDING)
    calls: list[float] = []
    begin = time.perf_counter()
    for step in range(1, steps + 1):
        time.sleep(STEP)
        if step % EVERY or case == "no eval":
            continue
        began = time.perf_counter()
        if case == "inline":
            anyio.run(sample)
        else:
            evals.schedule(sample, step=step)
        calls.append(time.perf_counter() - began)
    wall = time.perf_counter() - begin
    drained = evals.close()
    lines = len(read_points(folder / "run" / "curve.jsonl"))
    if drained.abandoned or lines != (len(calls) if case == "overlapped" else 0):
        sys.exit(f"wrong result: {lines} lines for {len(calls)} evals, {drained}")
    shutil.rmtree(folder)
    return {
        "wall_s": wall,
        "drain_s": drained.seconds,
        "schedule_ms": 1e3 * max(calls, default=0.0),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--case", help="measure one alone")
    args = parser.parse_args()
    steps, latency = (20, 0.2) if args.quick else (STEPS, LATENCY)
    if args.case:
        print(json.dumps(train(args.case, steps, latency)))
        return

    rounds: dict[str, list[dict[str, Any]]] = {}
    # The cases take turns: what disturbs the machine for a while disturbs all.
    for turn in range(1 if args.quick else 3):
        once = ["inline"] if turn == 0 else []
        for case in ("no eval", "overlapped", *once):
            say(f"dispatcher, {case}")
            more = ["--quick"] if args.quick else []
            line = child(sys.executable, __file__, "--case", case, *more)
            rounds.setdefault(case, []).append(line)

    bare, inline = middle(rounds["no eval"], "wall_s"), middle(rounds["inline"], "wall_s")
    overlapped = middle(rounds["overlapped"], "wall_s")
    what = f"{steps} steps of {1e3 * STEP:.0f} ms, an eval of {latency:g} s every {EVERY}"
    emit(f"wall lost to evals, {what}", 100 * (overlapped / bare - 1), "%", target=2.0)
    emit("training without evals, wall", bare, "s", ratio=bare / overlapped)
    emit("training with evals beside it, wall", overlapped, "s")
    emit("training with evals in between, wall", inline, "s", ratio=inline / overlapped)
    emit("waiting for the last evals, at the end", middle(rounds["overlapped"], "drain_s"), "s")
    emit("longest call of `schedule`", middle(rounds["overlapped"], "schedule_ms"), "ms")


if __name__ == "__main__":
    main()
