"""What evals cost a training run on a GPU: inline, in a thread, or in a worker process.

    PYTHONPATH=src python bench/gpu/overlap.py          both shapes: about 4 minutes

A model is trained for 40 steps without evals, with one every 10 steps inline (the training waits),
with the same in the background on a snapshot of the weights in a thread, and in a worker process.
The ways take turns, three times, and medians are printed. Every training run must end in the same
weights, bit for bit, or this stops. The first eval, which prepares graphs in the trainer's thread,
lies before the measured steps. Prints a table and a line of JSON for each; $OUT/overlap.json has
them, if OUT is set.
"""

from __future__ import annotations

import os

# Before torch: cuBLAS reads it when it starts. Training itself has to be repeatable.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # also in the worker
import torch
from neutral import TOKENIZER, WORDS, score

from heldout import Sample
from heldout._live.weights import fingerprint
from heldout.training import AsyncEvalDispatcher, EvalWorker, PeriodicEval, live_model
from midrun import DEVICE, SHAPES, make

STEPS, EVERY, TURNS = 40, 10, 3
ROWS, WIDTH, NEW = (32, 120, 128) if DEVICE == "cuda" else (4, 20, 8)
BATCH, LENGTH = (16, 512) if DEVICE == "cuda" else (2, 32)
WAYS = ("without", "inline", "in a thread", "in a process")
HELD_OUT = [
    Sample(f"{i}", {"question": " ".join(WORDS[(i + k) % len(WORDS)] for k in range(WIDTH))})
    for i in range(ROWS)
]


def policy() -> Any:
    """In the worker: a model of the shape, and how it is run."""
    return make(os.environ["OVERLAP_SHAPE"], seed=5), runner()


def runner() -> Any:
    return live_model(TOKENIZER, score, max_new=NEW, rows=ROWS)


def train(shape: str, way: str, folder: Path) -> dict[str, Any]:
    model = make(shape).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=DEVICE == "cuda")
    numbers = torch.Generator().manual_seed(3)
    inside = min(500, model.config.vocab_size)
    with ExitStack() as stack:
        worker = None
        if way == "in a process":
            worker = EvalWorker(f"{__file__}:policy", environment={"OVERLAP_SHAPE": shape})
            stack.callback(worker.close)
        evals = PeriodicEval(
            HELD_OUT,
            runner() if worker is None else None,
            worker=worker,
            every_steps=0 if way == "without" else EVERY,
            run_dir=folder / way.replace(" ", "-"),
            model_getter=lambda: model,
            at_start=True,
        )
        dispatcher = None
        if way in ("in a thread", "in a process"):
            dispatcher = stack.enter_context(AsyncEvalDispatcher(when_full="wait"))
        evals.maybe_run(0)
        if dispatcher is not None:
            dispatcher.drain()
        held: list[float] = []
        steps: list[float] = []
        torch.manual_seed(1)
        wait()
        began = time.perf_counter()
        for step in range(1, STEPS + 1):
            begin = time.perf_counter()
            ids = torch.randint(6, inside, (BATCH, LENGTH), generator=numbers).to(DEVICE)
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()  # as training loops do, for their log
            steps.append(time.perf_counter() - begin)
            asked = time.perf_counter()
            evals.maybe_run(step)
            held.append(time.perf_counter() - asked)
        wait()
        wall = time.perf_counter() - began
        drained = dispatcher.drain().seconds if dispatcher is not None else 0.0
    points = [point for point in evals.history if point.step > 0]
    expected = 0 if way == "without" else STEPS // EVERY
    if len(points) != expected or not all(point.has_result for point in points):
        sys.exit(f"{way}: {[(p.step, p.skipped) for p in points]}")
    due = [seconds for step, seconds in enumerate(held, start=1) if step % EVERY == 0]
    return {
        "wall_s": wall,
        "drain_s": drained,
        "step_ms": 1e3 * median(steps),
        "held_up_ms": 1e3 * median(due) if expected else 0.0,
        "eval_s": median(point.seconds for point in points) if points else None,
        "lag_steps": [point.lag_steps for point in points],
        "ways": sorted({str((point.decoding or {}).get("way")) for point in points}),
        "weights": fingerprint(model),
        "measured": [point.weights for point in sorted(points, key=lambda p: p.step)],
        "rewards": [point.reward for point in sorted(points, key=lambda p: p.step)],
        "memory_mb": torch.cuda.max_memory_allocated() / 2**20 if DEVICE == "cuda" else None,
    }


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", action="append", choices=tuple(SHAPES))
    parser.add_argument("--way", action="append", choices=WAYS)
    args = parser.parse_args()
    # Training itself has to be repeatable, or nothing could be said of its weights.
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_cudnn_sdp(False)
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu, tiny shapes"
    print(f"{where}, torch {torch.__version__}", flush=True)
    found: dict[str, Any] = {"where": where}
    for shape in args.shape or tuple(SHAPES):
        found[shape] = compare(shape, args.way or WAYS)
    if folder := os.environ.get("OUT"):
        Path(folder, "overlap.json").write_text(json.dumps(found, indent=1))


def compare(shape: str, ways: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        train(shape, "without", Path(folder, "first"))  # libraries load, memory is had
        for turn in range(TURNS):
            for way in ways:
                if DEVICE == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                runs[way].append(train(shape, way, Path(folder, str(turn))))
                print(json.dumps({"shape": shape, "way": way, **runs[way][-1]}), flush=True)
    every = [run for each in runs.values() for run in each]
    if len({run["weights"] for run in every}) > 1:
        sys.exit(f"{shape}: trainings ended in different weights")
    measured = {(tuple(run["measured"]), tuple(run["rewards"])) for run in every if run["measured"]}
    if len(measured) > 1:
        sys.exit(f"{shape}: evals of the same steps found different things: {measured}")

    def middle(way: str, key: str) -> float:
        return median(run[key] for run in runs[way])

    bare = middle(ways[0], "wall_s")
    print(f"\n| {shape}, {STEPS} steps, an eval every {EVERY} | wall | lost | held up | eval |")
    print("|---|---:|---:|---:|---:|")
    for way in ways:
        lost = 100 * (middle(way, "wall_s") / bare - 1)
        took = f"{middle(way, 'eval_s'):.2f} s" if runs[way][0]["measured"] else ""
        print(
            f"| {way} | {middle(way, 'wall_s'):.2f} s | {lost:.1f}% | "
            f"{middle(way, 'held_up_ms'):.1f} ms | {took} |"
        )
    print(flush=True)
    return runs


if __name__ == "__main__":
    main()
