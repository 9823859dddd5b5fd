"""Seconds and peak memory to import an Inspect log of 10,000 samples, beside Inspect's own reader.

    .venv-evals/bin/python bench/logs.py

The log is Inspect's: one sample of a real eval with tools, under 10,000 ids.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from common import child, emit, options, say, scratch

TURNS = 6


def write_log(path: Path, count: int) -> None:
    """Write a log of so many samples; each has a few tool calls, and the events of these."""
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import tool

    @tool
    def add() -> Any:
        async def execute(x: int, y: int) -> str:
            """Add.

            Args:
                x: One number.
                y: The other.
            """
            return f"{x + y}. " + "The sum of two numbers. " * 20

        return execute

    def answer(messages: list[Any], *_: Any) -> ModelOutput:
        turn = sum(message.role == "assistant" for message in messages)
        output = ModelOutput.from_content("mockllm/model", "It is 3. " * 50)
        if turn < TURNS:
            output = ModelOutput.for_tool_call("mockllm/model", "add", {"x": 1, "y": turn})
        output.usage = ModelUsage(input_tokens=100, output_tokens=20, total_tokens=120)
        return output

    (log,) = inspect_ai.eval(
        inspect_ai.Task(
            dataset=[Sample(id="0", input="What is 1 + 2? " * 20, target="3")],
            solver=[use_tools(add()), generate()],
            scorer=includes(),
        ),
        model=get_model("mockllm/model", custom_outputs=answer, memoize=False),
        log_dir=str(path.parent / "logs"),
        display="none",
        ctl_server=False,
    )
    _multiply(Path(log.location), path, count)


def _multiply(one: Path, path: Path, count: int) -> None:
    """Copy a log of one sample to a log of many; compressed as Inspect does it."""
    import zipfile

    from inspect_ai._util.zipfile import zipfile_compress_kwargs

    ids = [str(i) for i in range(count)]
    with (
        zipfile.ZipFile(one) as source,
        zipfile.ZipFile(path, "w", **zipfile_compress_kwargs) as target,
    ):
        sample = source.read("samples/0_epoch_1.json")
        assert sample.startswith(b'{"id":"0"')
        for id in ids:
            target.writestr(
                f"samples/{id}_epoch_1.json", sample.replace(b'"0"', f'"{id}"'.encode(), 1)
            )
        header = json.loads(source.read("header.json"))
        header["eval"]["dataset"] |= {"samples": count, "sample_ids": ids}
        summary = json.loads(source.read("summaries.json"))[0]
        target.writestr("summaries.json", json.dumps([{**summary, "id": id} for id in ids]))
        target.writestr("header.json", json.dumps(header))


def measure(how: str, path: Path) -> dict[str, float]:
    """Read a log, in this process."""
    if how == "heldout":
        from heldout.adapters.logs import import_log

        start = time.perf_counter(), time.process_time()
        report = import_log(path, output_dir=path.parent / "runs")
        end = time.perf_counter(), time.process_time()
        count, mean = report.summary["n"], report.summary["mean"]
        shutil.rmtree(path.parent / "runs")
    else:
        from inspect_ai.log import read_eval_log

        start = time.perf_counter(), time.process_time()
        log = read_eval_log(str(path))
        end = time.perf_counter(), time.process_time()
        assert log.samples is not None
        count, mean = len(log.samples), float(log.samples[0].scores["includes"].value == "C")  # type: ignore[index]
    if mean != 1.0:
        sys.exit(f"wrong result: {mean}")
    # Not ru_maxrss, in which a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text()
    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    wall, cpu = (after - before for before, after in zip(start, end, strict=True))
    return {"wall_s": wall, "cpu_s": cpu, "peak_mb": peak, "n": float(count)}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--measure", choices=["heldout", "inspect"])
    parser.add_argument("--log", type=Path)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure, args.log)))
        return
    folder = scratch("logs")
    path = folder / "log.eval"
    count = 200 if args.quick else 10_000
    write_log(path, count)
    say(f"{count} samples, {path.stat().st_size / 1e6:.0f} MB")
    for how in ("heldout", "inspect"):
        figures = child(sys.executable, __file__, "--measure", how, "--log", path)
        assert figures["n"] == count
        name = "import_log" if how == "heldout" else "inspect_ai.log.read_eval_log"
        emit(f"{name}, {count} samples", figures["wall_s"], "s")
        emit(f"{name}, {count} samples, CPU", figures["cpu_s"], "s")
        emit(f"{name}, {count} samples, peak", figures["peak_mb"], "MB")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
