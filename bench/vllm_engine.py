"""vLLM beside `hf:` and `transformers serve`: the same samples and model, greedy, in one run.

    .venv-vllm/bin/python bench/vllm_engine.py

The model is SmolLM2-135M in float32, or MODEL. Each has answered one request before the clock
starts, so no load of weights counts. Eight requests are in flight at a time.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

import heldout
from heldout import EvalConfig, Message, Sample, Sampling
from heldout.models import open_endpoint
from heldout.models.demo import weights_folder

AT_ONCE = 8


def samples(count: int) -> list[Sample]:
    return [
        Sample(f"s{i}", {"question": f"Tell a story of {i + 2} animals."}) for i in range(count)
    ]


def answered(trajectory: Any, sample: Sample) -> float:
    return float(bool(trajectory.answer))


async def measure(model: str, count: int, new: int) -> dict[str, Any]:
    sampling = Sampling(max_tokens=new)
    endpoint = open_endpoint(model, max_concurrent=AT_ONCE)
    started = time.perf_counter()
    await endpoint.complete([Message("user", "Hello")], sampling, ())
    start = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        config = EvalConfig(
            endpoint=endpoint,
            output_dir=folder,
            experiment_name="run",
            max_concurrent=AT_ONCE,
            sampling=sampling,
            progress=False,
        )
        started = time.perf_counter()
        report = await heldout.evaluate(samples(count), config, answered)
        seconds = time.perf_counter() - started
        results = list(report.results)
    await endpoint.close()
    assert report.summary["n_errors"] == 0
    turns = [r.trajectory.last_turn.text for r in results if r.trajectory.last_turn]
    tokens = sum(r.trajectory.usage.completion_tokens for r in results)
    return {"start": start, "seconds": seconds, "tokens": tokens, "turns": turns}


@contextmanager
def served(command: list[str], port: int) -> Iterator[None]:
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **silent, start_new_session=True)
    try:
        while True:
            assert process.poll() is None, "the server has ended"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.2)
        yield
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--new", type=int, default=64)
    given = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    folder, bin_folder = given.model or weights_folder(), Path(sys.executable).parent
    port = free_port()
    address = f"@http://127.0.0.1:{port}/v1"
    serve = ["--host", "127.0.0.1", "--port", str(port)]
    found = {}
    found["hf:"] = anyio.run(measure, f"hf:{folder}", given.samples, given.new)
    model = f"vllm:{folder}?dtype=float32&max_model_len=1024"
    found["vllm:"] = anyio.run(measure, model, given.samples, given.new)
    server = ["-m", "vllm.entrypoints.openai.api_server"]  # what `vllm serve` runs
    engine = ["--dtype", "float32", "--max-model-len", "1024"]
    with served([sys.executable, *server, "--model", str(folder), *serve, *engine], port):
        name = f"openai:{folder}{address}"
        found["vllm serve"] = anyio.run(measure, name, given.samples, given.new)
    with served([str(bin_folder / "transformers"), "serve", *serve], port):
        name = f"openai:{folder}{address}"
        found["transformers serve"] = anyio.run(measure, name, given.samples, given.new)
    first = found["hf:"]
    print(f"{given.samples} samples, up to {given.new} new tokens, {AT_ONCE} in flight")
    print("| | first answer | eval | tokens/s | against `hf:` | turns equal to `hf:` |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, each in found.items():
        equal = sum(a == b for a, b in zip(each["turns"], first["turns"], strict=True))
        rate = each["tokens"] / each["seconds"]
        ratio = each["seconds"] / first["seconds"]
        print(
            f"| `{name}` | {each['start']:.1f} s | {each['seconds']:.1f} s | {rate:.0f} "
            f"| {ratio:.2f}x | {equal} of {len(first['turns'])} |"
        )


if __name__ == "__main__":
    main()
