"""SnapshotPool of a model in training: how long they hold it up, and whether they are what it was.

    python bench/gpu/snapshot.py                      both shapes, on the GPU
    python bench/gpu/snapshot.py --device cpu --tiny  the same code, to show that it works

Prints a line of JSON a measurement, and exits with 1 if a snapshot was not what the model had been.
bfloat16 on a GPU, random weights (no download). Needs torch and transformers.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from heldout._live.snapshots import SnapshotPool, WeightSnapshot
from heldout._live.weights import fingerprint
from midrun import SHAPES, TINY


class Bench:
    def __init__(self, device: str, *, tiny: bool, repeats: int) -> None:
        self.device, self.tiny, self.repeats = torch.device(device), tiny, repeats
        self.on_cuda = self.device.type == "cuda"
        self.wrong = 0

    def model(self, shape: str) -> Any:
        config, kind, settings = SHAPES[shape]
        torch.manual_seed(0)
        settings = {**settings, **(TINY if self.tiny else {})}
        with self.device:
            made = kind(config(**settings))
        return made.to(torch.bfloat16 if self.on_cuda else torch.float32).train()

    def wait(self) -> None:
        if self.on_cuda:
            torch.cuda.synchronize()

    def tell(self, shape: str, what: str, **numbers: Any) -> None:
        self.wrong += sum(numbers.get(name, 0) for name in ("wrong_hashes", "wrong_outputs"))
        print(json.dumps({"shape": shape, "what": what, **numbers}), flush=True)


def ms(seconds: list[float]) -> dict[str, float]:
    return {
        "ms_median": round(1e3 * median(seconds), 3),
        "ms_min": round(1e3 * min(seconds), 3),
        "ms_max": round(1e3 * max(seconds), 3),
    }


def taken(pool: SnapshotPool, model: Any, step: int) -> WeightSnapshot:
    snapshot = pool.try_snapshot(model, step=step)
    assert snapshot is not None
    return snapshot


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start it in another thread; the function that is returned waits for what it returns."""
    found: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as problem:  # noqa: BLE001 - raised in the caller's thread
            raised.append(problem)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join()
        if raised:
            raise raised[0]
        return found[0]

    return result


def step(model: Any, seed: int) -> None:
    """What an optimizer does, as far as memory is concerned: every weight is written in place."""
    with torch.no_grad():
        weights = list(model.parameters())
        torch._foreach_mul_(weights, 1.0 - 0.02 * (seed % 7 + 1))
        torch._foreach_add_(weights, 0.001)


def held_up(bench: Bench, shape: str, model: Any, where: Any) -> None:
    """How long the caller of try_snapshot waits, with the GPU idle and with work queued before it,
    and how long the copy takes there."""
    pool = SnapshotPool(device=where)
    named = "as the model" if where is None else str(where)
    bench.wait()
    began = time.perf_counter()
    snapshot = taken(pool, model, 0)
    making = time.perf_counter() - began
    snapshot.release()
    tensors = sum(1 for _ in model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    bench.tell(shape, "make", copy=named, ms=1e3 * making, tensors=tensors, bytes=size)
    for load in ("idle", "busy") if bench.on_cuda else ("idle",):
        host, device = [], []
        for number in range(bench.repeats):
            bench.wait()
            if load == "busy":
                torch.cuda._sleep(40_000_000)  # cycles: some 20 ms that the host must not wait for
            before, after = (
                (torch.cuda.Event(enable_timing=True) for _ in "12") if bench.on_cuda else (0, 0)
            )
            if bench.on_cuda:
                before.record()
            began = time.perf_counter()
            snapshot = taken(pool, model, number)
            host.append(time.perf_counter() - began)
            if bench.on_cuda:
                after.record()
                torch.cuda.synchronize()
                device.append(before.elapsed_time(after) / 1e3)
            snapshot.release()
        bench.tell(shape, f"try_snapshot, host, {load}", copy=named, **ms(host))
        if device:
            # Where the queue is empty this is the host's time: kernels wait for their launch.
            bench.tell(shape, f"copy, device, {load}", copy=named, **ms(device))


def race(bench: Bench, shape: str, model: Any, where: Any) -> None:
    """Weights are written right after the snapshot, with work queued before it; the hash is taken
    in another thread at once, and compared to that of a clone of the same moment."""
    pool, wrong, same = SnapshotPool(device=where), 0, 0
    for number in range(bench.repeats):
        bench.wait()
        clone = {name: p.detach().clone() for name, p in model.state_dict().items()}
        bench.wait()
        if bench.on_cuda:
            torch.cuda._sleep(10_000_000)
        snapshot = taken(pool, model, number)
        weights = beside(partial(getattr, snapshot, "weights"))  # hashed there, at first use
        for _ in range(3):
            step(model, number)
        found = weights()
        wrong += found is None or found != fingerprint(clone)
        same += found == fingerprint(model)
        snapshot.release()
    named = "as the model" if where is None else str(where)
    bench.tell(
        shape, "race", copy=named, rounds=bench.repeats, wrong_hashes=wrong, not_moved_on=same
    )


def outputs(bench: Bench, shape: str, model: Any) -> None:
    """What a snapshot says, computed during steps of the optimizer, is what the model had said.

    Attention is written out, since kernels that torch chooses need not repeat themselves. Where the
    model says another thing when it is asked again, nothing is known of that round.
    """
    pool, wrong, unknown = SnapshotPool(), 0, 0
    model.set_attn_implementation("eager")
    ids = torch.arange(256, device=bench.device).view(4, 64) % 500
    rounds = max(1, bench.repeats // 5)

    def said(net: Any) -> Any:
        with torch.no_grad():
            return net(input_ids=ids).logits

    for number in range(rounds):
        model.eval()
        expected = said(model)
        repeats = all(torch.equal(said(model), expected) for _ in range(4))
        model.train()
        snapshot = taken(pool, model, number)

        def work(snapshot: WeightSnapshot = snapshot) -> Any:
            with snapshot.in_use():
                return [said(snapshot.model) for _ in range(4)]

        found = beside(work)
        for _ in range(8):
            step(model, number)
        same = all(torch.equal(each, expected) for each in found())
        wrong += repeats and not same
        unknown += not repeats
        snapshot.release()
    bench.tell(shape, "outputs", rounds=rounds, wrong_outputs=wrong, not_repeatable=unknown)


def on_a_large_base(bench: Bench) -> None:
    """Few weights are trained, on many that are frozen: they are shared, and watched."""
    width, layers = (8192, 104) if bench.on_cuda and not bench.tiny else (64, 4)
    with bench.device:
        kind = torch.bfloat16 if bench.on_cuda else torch.float32
        base = [torch.nn.Linear(width, width, bias=False, dtype=kind) for _ in range(layers)]
        model = torch.nn.Sequential(*base, torch.nn.Linear(width, 64, dtype=kind))
    for layer in base:
        layer.requires_grad_(False)
    held_up(bench, "frozen", model, None)
    pool, seconds = SnapshotPool(), []
    for number in range(5):
        snapshot = taken(pool, model, number)

        def check(snapshot: WeightSnapshot = snapshot) -> Any:
            with snapshot.in_use():
                began = time.perf_counter()
                changed = snapshot.why_changed()
                return time.perf_counter() - began, changed

        took, changed = beside(check)()
        bench.wrong += changed is not None
        seconds.append(took)
        snapshot.release()
    bench.tell("frozen", "why_changed", **ms(seconds))
    snapshot = taken(pool, model, 9)
    base[-1].weight.data[-1, -1] += 1
    bench.wrong += snapshot.why_changed() is None
    snapshot.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few layers, for a look at the script")
    parser.add_argument("--shape", action="append", choices=tuple(SHAPES))
    parser.add_argument("--repeats", type=int, default=50)
    args = parser.parse_args()
    bench = Bench(args.device, tiny=args.tiny, repeats=args.repeats)
    where = torch.cuda.get_device_name() if bench.on_cuda else "cpu"
    print(json.dumps({"where": where, "torch": torch.__version__, "tiny": args.tiny}), flush=True)
    for shape in args.shape or tuple(SHAPES):
        model = bench.model(shape)
        for place in (None, torch.device("cpu")) if bench.on_cuda else (None,):
            held_up(bench, shape, model, place)
            race(bench, shape, bench.model(shape), place)
        outputs(bench, shape, bench.model(shape))
        del model
    on_a_large_base(bench)
    print(json.dumps({"wrong": bench.wrong}), flush=True)
    sys.exit(1 if bench.wrong else 0)


if __name__ == "__main__":
    main()
