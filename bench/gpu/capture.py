"""Does an eval in a thread break a CUDA graph that the training captures at that moment?

    PYTHONPATH=src python bench/gpu/capture.py          about a minute

While a thread captures a graph in torch's default mode ("global"), CUDA refuses all other threads
some calls, and the refusal breaks the capture. `calls` tries single calls in a second thread, in
each of the modes that such a thread can be in: thread-local is what threads of evals are in.
Waiting for the whole device, and so a capture by `torch.cuda.graph`, breaks it in every mode; evals
do neither in a thread. `evals` trains a model, captures a graph after every step while heldout
evaluates a snapshot of it in a thread, and counts captures that broke, evals that failed, and
replays of the captured graph that were wrong. Every case has a process of its own.

Prints a table and writes $OUT/capture.json, if OUT is set. Exits with 1 where an eval broke a
capture, or a capture an eval. Without a GPU it runs the same code and captures nothing, to show
that it works.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import torch

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
MODES = {"global": 0, "thread_local": 1, "relaxed": 2}
HOLD_SECONDS = 0.15
"""How long a capture stays open for an eval, at most."""


class Captures:
    """Graphs captured in this thread, and what became of them."""

    def __init__(self) -> None:
        self.tried = self.broken = self.wrong = 0
        self.messages: set[str] = set()
        self._weight = torch.eye(64, device=DEVICE)
        self._rows = torch.ones(8, 64, device=DEVICE)
        self._rows @ self._weight  # cuBLAS has its workspace before the first capture
        self._stream = torch.cuda.Stream() if ON_GPU else None

    def capture(self, meanwhile: Callable[[], object]) -> None:
        """Capture a graph in torch's default mode, with `meanwhile` called in the middle."""
        self.tried += 1
        usual = torch.cuda.current_stream() if ON_GPU else None
        graph = torch.cuda.CUDAGraph() if ON_GPU else None
        try:
            with torch.cuda.graph(graph, stream=self._stream) if ON_GPU else nullcontext():
                half = self._rows @ self._weight
                meanwhile()
                result = half @ self._weight
        except RuntimeError as problem:
            self.broken += 1
            self.messages.add(str(problem).splitlines()[0])
            torch.cuda.set_stream(usual)  # a capture that fails leaves its own behind
            return
        if graph is not None:
            graph.replay()
        self.wrong += not torch.equal(result.cpu(), torch.ones(8, 64))


# --- Single calls -------------------------------------------------------------------------------


def prepare_calls(stream: Any) -> dict[str, Callable[[], Callable[[], object]]]:
    """By name: a function that prepares a call, and returns it."""
    kept: list[Any] = []
    sizes = iter(range(20, 10_000))
    small = torch.ones(4, device=DEVICE)
    replayed = torch.cuda.CUDAGraph()
    with torch.cuda.graph(replayed, capture_error_mode="thread_local"):
        small * 2

    def event() -> Any:
        recorded = torch.cuda.Event()
        recorded.record(stream)
        return recorded

    def allocate(**how: Any) -> Callable[[], object]:
        size = next(sizes) * 2**20  # larger than what the allocator has left of earlier ones
        return lambda: kept.append(torch.empty(size, dtype=torch.uint8, **how))

    def free() -> Callable[[], object]:
        torch.empty(next(sizes) * 2**20, dtype=torch.uint8, device="cuda")
        return torch.cuda.empty_cache

    def capture() -> None:
        own = torch.cuda.CUDAGraph()
        with torch.cuda.graph(own, stream=stream, capture_error_mode="thread_local"):
            small * 2
        kept.append(own)

    return {
        "event.synchronize()": lambda: event().synchronize,
        "event.query()": lambda: event().query,
        "stream.synchronize()": lambda: stream.synchronize,
        "tensor.item()": lambda: small.sum().item,
        "memory from the device": lambda: allocate(device="cuda"),
        "pinned memory": lambda: allocate(pin_memory=True),
        "empty_cache()": free,
        "graph.replay()": lambda: replayed.replay,
        "torch.cuda.synchronize()": lambda: torch.cuda.synchronize,
        "a capture of its own": lambda: capture,
    }


CALLS = (
    "event.synchronize()",
    "event.query()",
    "stream.synchronize()",
    "tensor.item()",
    "memory from the device",
    "pinned memory",
    "empty_cache()",
    "graph.replay()",
    "torch.cuda.synchronize()",
    "a capture of its own",
)


def try_call(name: str, mode: str, tries: int) -> dict[str, Any]:
    from heldout._live.isolation import _exchange_capture_mode

    captures, stream = Captures(), torch.cuda.Stream()
    prepare = prepare_calls(stream)[name]
    refused: list[str] = []

    def work(call: Callable[[], object]) -> None:
        _exchange_capture_mode(MODES[mode])
        try:
            with torch.cuda.stream(stream):
                call()
        except RuntimeError as problem:
            refused.append(str(problem).splitlines()[0])

    for _ in range(tries):
        with torch.cuda.stream(stream):
            call = prepare()
        torch.cuda.synchronize()
        thread = threading.Thread(target=work, args=(call,))

        def meanwhile(thread: threading.Thread = thread) -> None:
            thread.start()
            thread.join()

        captures.capture(meanwhile)
        torch.cuda.synchronize()
    return {"refused": len(refused), "why": sorted(set(refused)), **report(captures)}


def report(captures: Captures) -> dict[str, Any]:
    return {
        "captures": captures.tried,
        "broken": captures.broken,
        "wrong": captures.wrong,
        "messages": sorted(captures.messages),
    }


# --- Evals --------------------------------------------------------------------------------------


@contextmanager
def training() -> Any:
    """A small model on the device, and a function that changes its weights."""
    from neutral import make_model

    model = make_model(small=True).train()

    def step() -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.999)

    yield model, step


def eval_snapshots(tries: int) -> dict[str, Any]:
    """A thread uses a snapshot: hash, forward passes, and are its frozen weights the same?"""
    from heldout._live.snapshots import SnapshotPool

    captures, failed = Captures(), []
    with training() as (model, step):
        model.model.embed_tokens.weight.requires_grad_(False)
        pool, ids = SnapshotPool(), torch.arange(64, device=DEVICE).view(4, 16)

        def evaluate(snapshot: Any) -> None:
            try:
                with snapshot.in_use():
                    _ = snapshot.weights
                    snapshot.model(input_ids=ids).logits.argmax(-1).tolist()
                    snapshot.why_changed()
            except RuntimeError as problem:
                failed.append(str(problem).splitlines()[0])
            finally:
                snapshot.release()

        for number in range(tries):
            step()
            snapshot = pool.try_snapshot(model, step=number)
            thread = threading.Thread(target=evaluate, args=(snapshot,))

            def meanwhile(thread: threading.Thread = thread) -> None:
                thread.start()
                thread.join()

            captures.capture(meanwhile)
    return {"evals": tries, "failed": len(failed), "why": sorted(set(failed)), **report(captures)}


def eval_periodically(tries: int, *, new_shapes: bool) -> dict[str, Any]:
    """An asynchronous PeriodicEval of a live model, decoded with captured steps.

    With `new_shapes` every other eval has prompts of another length, whose steps are captured
    first: by the trainer's thread, when it comes by.
    """
    from neutral import TOKENIZER, WORDS, score

    from heldout import Sample
    from heldout.training import AsyncEvalDispatcher, PeriodicEval, live_model

    rows, scored = 8, threading.Semaphore(0)

    def score_and_count(trajectory: Any, sample: Any) -> Any:
        scored.release()
        return score(trajectory, sample)

    def samples(width: int) -> list[Sample]:
        return [Sample(f"{i}", {"question": " ".join(WORDS[i : i + width])}) for i in range(rows)]

    captures, points, overlapped = Captures(), [], 0
    with training() as (model, step), tempfile.TemporaryDirectory() as folder:
        widths = range(20, 20 + 64 * 5, 64) if new_shapes else (20,)
        evals = [
            PeriodicEval(
                samples(width),
                live_model(TOKENIZER, score_and_count, max_new=24, rows=rows),
                every_steps=1,
                run_dir=Path(folder, str(width)),
            )
            for width in widths
        ]
        with AsyncEvalDispatcher(when_full="wait") as dispatcher:
            if not new_shapes:
                evals[0].maybe_run(0, model)
                dispatcher.drain()  # its steps are captured now
            for number in range(1, tries + 1):
                step()
                while scored.acquire(blocking=False):
                    pass
                evals[number * len(evals) // (tries + 1)].maybe_run(number, model)

                def meanwhile() -> None:
                    nonlocal overlapped
                    until = time.monotonic() + HOLD_SECONDS
                    answered = 0
                    while answered < rows and (left := until - time.monotonic()) > 0:
                        answered += scored.acquire(timeout=left)
                    overlapped += answered == rows
                    time.sleep(0.005)  # until it has looked whether frozen weights changed

                captures.capture(meanwhile)
            dispatcher.drain()
        points = [point for each in evals for point in each.history]
    failed = [point for point in points if point.n < rows]
    why = sorted({str(point.skipped or point.partial or point.summary) for point in failed})
    ways = sorted({str((point.decoding or {}).get("way")) for point in points})
    return {
        "evals": len(points),
        "failed": len(failed),
        "why": why,
        "answered while a capture was open": overlapped,
        "decoding": ways,
        **report(captures),
    }


EVALS: dict[str, Callable[[int], dict[str, Any]]] = {
    "snapshots": eval_snapshots,
    "PeriodicEval": lambda tries: eval_periodically(tries, new_shapes=False),
    "PeriodicEval, new shapes": lambda tries: eval_periodically(tries, new_shapes=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=("calls", "evals"), help="one of the two parts")
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case is not None:
        name, mode = arguments.case
        tries = arguments.tries
        found = EVALS[name](tries) if name in EVALS else try_call(name, mode, tries)
        print(json.dumps(found))
        return
    cases: list[tuple[str, str]] = []
    if arguments.only != "calls":
        cases += [(name, "heldout's") for name in EVALS]
    if arguments.only != "evals" and ON_GPU:
        cases += [(name, mode) for name in CALLS for mode in MODES]
    with ThreadPoolExecutor(8) as executor:
        results = list(executor.map(lambda case: run_case(case, arguments.tries), cases))
    print("| in the second thread | its mode | captures broken | refused, or evals failed |")
    print("|---|---|---:|---:|")
    for (name, mode), found in zip(cases, results, strict=True):
        broken = f"{found.get('broken', '?')} of {found.get('captures', '?')}"
        print(f"| {name} | {mode} | {broken} | {found.get('refused', found.get('failed', '?'))} |")
    for (name, mode), found in zip(cases, results, strict=True):
        print(json.dumps({"case": name, "mode": mode, **found}))
    if "OUT" in os.environ:
        together = [{"case": n, "mode": m, **f} for (n, m), f in zip(cases, results, strict=True)]
        Path(os.environ["OUT"], "capture.json").write_text(json.dumps(together, indent=1))
    evals = [found for (name, _), found in zip(cases, results, strict=True) if name in EVALS]
    bad = [e for e in evals if "error" in e or e["broken"] or e["failed"] or e["wrong"]]
    print(f"evals in a thread: {len(evals) - len(bad)} of {len(evals)} cases without any harm")
    sys.exit(1 if bad else 0)


def run_case(case: Sequence[str], tries: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--tries", str(tries), "--case", *case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "not finished after 150 s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": done.stderr[-2000:]}
    return json.loads(lines[-1])  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
