"""Time the first eval of a process on a GPU: what is compiled, compared and captured before it.

    PYTHONPATH=src python bench/gpu/first.py

The shapes of ragged.py, 64 prompts, greedy, after one training step, as in the middle of a run.
Each line is a process of its own: one that finds no compiled kernels on disk, as on a new machine,
and one that finds them. Prints the seconds of three evals, and of every kernel that was compiled;
writes $OUT/first.json, if OUT is set. It needs a GPU: on a CPU there is nothing to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS = ("nothing compiled", "compiled before")


def measure(name: str) -> dict[str, Any]:
    """Time evals of this process."""
    import torch
    import triton
    from ragged import Numbers, make, make_prompts

    from heldout._live.decoding import Decoder

    compiled: list[tuple[str, float]] = []

    def note(*, src: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        if not cache_hit:
            compiled.append((src.name, times.total / 1e6))

    triton.knobs.compilation.listener = note
    model = make(name)
    prompts = make_prompts(model.config.vocab_size)
    ids = torch.tensor([prompts[0].ids[:100]] * 8, device=model.device)
    model(ids, labels=ids).loss.backward()
    model.zero_grad()
    torch.cuda.synchronize()
    decoder = Decoder(model, Numbers(), rows=len(prompts))
    seconds, prepared = [], []
    for _ in range(3):
        began = time.perf_counter()
        decoder.decode(prompts)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        prepared.append(decoder.describe()["prepared_seconds"])
    return {"seconds": seconds, "prepared": prepared, "compiled": compiled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shape", default="Qwen3-1.7B")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.shape)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as cache:
        for kind in KINDS:
            process = subprocess.run(
                [sys.executable, __file__, "--inside", "--shape", options.shape],
                env={**os.environ, "TRITON_CACHE_DIR": cache},
                check=True,
                capture_output=True,
                text=True,
            )
            found[kind] = numbers = json.loads(process.stdout.splitlines()[-1])
            evals = ", ".join(f"{seconds:.2f} s" for seconds in numbers["seconds"])
            prepared = numbers["prepared"][0]
            print(f"{options.shape}, {kind}: evals {evals}; prepared {prepared:.2f} s")
            for kernel, seconds in numbers["compiled"]:
                print(f"    {kernel} {seconds:.2f} s")
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "first.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
