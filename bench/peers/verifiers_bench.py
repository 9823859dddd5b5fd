"""Time verifiers on N single-turn samples answered by a function (no network).

Run with the Python of an environment made from requirements-verifiers.txt:

    python verifiers_bench.py --samples 5000 --latency 0.2 --concurrency 500

Prints one JSON line on stdout; whatever the package prints goes to stderr. Wall and CPU
time cover the `evaluate` call alone, progress bar off. Results are saved to a temporary folder,
which the package then does after every sample; `--no-save` leaves that out, as `evaluate` does
unless it is asked. This is the package's classic API (`verifiers.legacy`), not `verifiers.v1`.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

with contextlib.redirect_stdout(sys.stderr):
    start = time.perf_counter()
    import verifiers as vf
    from datasets import Dataset
    from verifiers.types import Response, ResponseMessage, Usage

    ENV_CLASS, CLIENT_CLASS = vf.SingleTurnEnv, vf.Client  # the package loads these on first use
    IMPORT_S = time.perf_counter() - start


def reply(question: str) -> str:
    """Answer "What is A + B?", wrongly where A leaves 3 on division by 4."""
    a, b = (int(part) for part in question.removeprefix("What is ")[:-1].split(" + "))
    return "unknown" if a % 4 == 3 else str(a + b)


class FunctionClient(CLIENT_CLASS):
    """A client whose replies come from `reply`, after `latency` seconds."""

    def __init__(self, latency: float):
        super().__init__(None)
        self.latency, self.in_flight, self.peak = latency, 0, 0

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.latency)
        self.in_flight -= 1
        content = reply(prompt[-1].content)
        message = ResponseMessage(content=content, finish_reason="stop", is_truncated=False)
        usage = Usage(prompt_tokens=8, reasoning_tokens=0, completion_tokens=1, total_tokens=9)
        return Response(id="reply", created=0, model=model, usage=usage, message=message)

    async def unchanged(self, value=None):
        return value

    setup_client = to_native_tool = from_native_response = unchanged
    raise_from_native_response = close = unchanged


async def exact_match(completion, answer) -> float:
    return float(completion[-1]["content"] == answer)


def measure(samples: int, latency: float, concurrency: int, save: bool) -> tuple[float, float]:
    rows = [{"question": f"What is {i} + 25?", "answer": str(i + 25)} for i in range(samples)]
    env = ENV_CLASS(eval_dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[exact_match]))
    client = FunctionClient(latency)
    with tempfile.TemporaryDirectory() as folder:
        options = {"results_path": Path(folder) / "results", "save_results": save}
        options |= {"max_concurrent": concurrency, "on_start": lambda *_: None}
        wall, cpu = time.perf_counter(), time.process_time()
        outputs = asyncio.run(env.evaluate(client, "function", **options))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        results = outputs["outputs"]
        if save:
            saved = (Path(folder) / "results" / "results.jsonl").read_text().splitlines()
            results = [json.loads(line) for line in saved]
    scores = [result["reward"] for result in results]
    expected = sum(i % 4 != 3 for i in range(samples)) / samples
    found = outputs["metadata"]["avg_reward"], sum(scores) / samples
    if len(scores) != samples or any(abs(score - expected) > 1e-9 for score in found):
        sys.exit(f"wrong result: {len(scores)} saved, mean scores {found}, expected {expected}")
    print(f"most model calls at once: {client.peak}", file=sys.stderr)
    return wall, cpu


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds per model call")
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--no-save", dest="save", action="store_false", help="keep no results")
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        wall_s, cpu_s = measure(args.samples, args.latency, args.concurrency, args.save)
    line = {"package": "verifiers", "version": vf.__version__, "samples": args.samples}
    line |= {"latency_s": args.latency, "concurrency": args.concurrency, "save": args.save}
    line |= {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}
    line |= {"cpu_ms_per_sample": round(1000 * cpu_s / args.samples, 4)}
    print(json.dumps(line | {"import_s": round(IMPORT_S, 3)}))
