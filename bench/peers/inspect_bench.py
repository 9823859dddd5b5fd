"""Time inspect-ai on N single-turn samples answered by a function (no network).

Run with the Python of an environment made from requirements-inspect.txt:

    python inspect_bench.py --samples 5000 --latency 0.2 --concurrency 500

Prints one JSON line on stdout; whatever the package prints goes to stderr. Wall and CPU
time cover the `eval` call alone, with its log of samples written to a temporary folder. By
default the package also keeps a database for watching the eval live; `--no-realtime` does without.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time

FOLDER = tempfile.TemporaryDirectory()
os.environ["XDG_DATA_HOME"] = FOLDER.name  # the package keeps a sample buffer there

with contextlib.redirect_stdout(sys.stderr):
    start = time.perf_counter()
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.log import read_eval_log
    from inspect_ai.model import ModelAPI, ModelOutput, ModelUsage, get_model, modelapi
    from inspect_ai.scorer import Score, mean, scorer
    from inspect_ai.solver import generate

    IMPORT_S = time.perf_counter() - start


def reply(question: str) -> str:
    """Answer "What is A + B?", wrongly where A leaves 3 on division by 4."""
    a, b = (int(part) for part in question.removeprefix("What is ")[:-1].split(" + "))
    return "unknown" if a % 4 == 3 else str(a + b)


@modelapi(name="function")
class FunctionModel(ModelAPI):
    """A model whose replies come from `reply`, after `latency` seconds."""

    def __init__(self, model_name, base_url=None, api_key=None, config=None, latency=0.0):
        super().__init__(model_name, base_url, api_key)
        self.latency, self.in_flight, self.peak = latency, 0, 0

    async def generate(self, input, tools, tool_choice, config):
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.latency)
        self.in_flight -= 1
        output = ModelOutput.from_content("function", reply(input[-1].text))
        output.usage = ModelUsage(input_tokens=8, output_tokens=1, total_tokens=9)
        return output


@scorer(metrics=[mean()])
def exact_match():
    async def score(state, target):
        return Score(value=float(state.output.completion == target.text))

    return score


def measure(samples: int, latency: float, concurrency: int, realtime: bool) -> tuple[float, float]:
    rows = [Sample(input=f"What is {i} + 25?", target=str(i + 25)) for i in range(samples)]
    task = inspect_ai.Task(dataset=rows, solver=generate(), scorer=exact_match())
    model = get_model("function/sum", latency=latency)
    options = {"max_connections": concurrency, "max_samples": concurrency, "display": "none"}
    options |= {"log_dir": FOLDER.name, "log_samples": True, "log_header_only": True}
    options |= {"log_realtime": realtime}
    wall, cpu = time.perf_counter(), time.process_time()
    [log] = inspect_ai.eval(task, model=model, **options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    scores = [sample.scores["exact_match"].value for sample in read_eval_log(log.location).samples]
    expected = sum(i % 4 != 3 for i in range(samples)) / samples
    found = log.results.scores[0].metrics["mean"].value, sum(scores) / samples
    if len(scores) != samples or any(abs(score - expected) > 1e-9 for score in found):
        sys.exit(f"wrong result: {len(scores)} saved, mean scores {found}, expected {expected}")
    print(f"most model calls at once: {model.api.peak}", file=sys.stderr)
    return wall, cpu


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds per model call")
    parser.add_argument("--concurrency", type=int, default=500)
    parser.add_argument("--no-realtime", dest="realtime", action="store_false")
    args = parser.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        wall_s, cpu_s = measure(args.samples, args.latency, args.concurrency, args.realtime)
    line = {"package": "inspect-ai", "version": inspect_ai.__version__, "samples": args.samples}
    line |= {"latency_s": args.latency, "concurrency": args.concurrency, "realtime": args.realtime}
    line |= {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}
    line |= {"cpu_ms_per_sample": round(1000 * cpu_s / args.samples, 4)}
    print(json.dumps(line | {"import_s": round(IMPORT_S, 3)}))
