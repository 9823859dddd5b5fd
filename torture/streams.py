"""A stream of a million samples through the engine: none lost, none twice, memory bounded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio

from heldout import EvalConfig, Message, Metric, Sample, Score, Trajectory, evaluate
from torture.children import run_child
from torture.trials import STATE, Finding, Journal, Trial

PART, CASE, COUNT = "streams", "samples from a generator, a function answers", 1_000_000
PEAK_MB = 500.0
"""What one process may have in memory, the imports of the torture run (torch …) included."""
HANG_SECONDS = 4 * 3600.0


async def answer(messages: list[Message]) -> str:
    return messages[-1].text.split()[-1]


def score(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("same", trajectory.answer == sample.ground_truth, weight=1.0),))


def stream(count: int) -> Iterator[Sample]:
    for i in range(count):
        yield Sample(f"s{i}", {"question": f"say {i}"}, str(i), {"kind": i % 5})


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield one trial; a stopped one is resumed, as any run is."""
    count = max(1, round(COUNT * scale))
    yield Trial(PART, CASE, count, partial(run_stream, count))


def run_stream(count: int) -> Finding:
    """Run them all, and count what is in the journal."""
    finding = Finding(count=count)
    folder = STATE / "work" / f"stream-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    config = partial(
        EvalConfig, answer, "stream", max_concurrent=100, output_dir=str(folder), progress=False
    )

    def run() -> None:
        resume = (folder / "stream").exists()
        report = anyio.run(partial(evaluate, stream(count), config(resume=resume), score))
        (folder / "summary").write_text(json.dumps(report.summary))

    ended = run_child(run, folder, seconds=HANG_SECONDS)
    if ended.hung:
        finding.add("hang", ended.explain())
    elif ended.code != 0:
        finding.add("traceback", ended.explain())
    else:
        summary = json.loads((folder / "summary").read_text())
        if (summary["n"], summary["n_scored"], summary["mean"]) != (count, count, 1.0):
            finding.add("other", f"the summary is {summary}")
        _count(folder / "stream" / "results.jsonl", count, finding)
        if ended.peak_mb > PEAK_MB:
            finding.add("other", f"{ended.peak_mb:.0f} MB of memory")
    finding.figures = {"peak MB": ended.peak_mb, "seconds": ended.seconds}
    return finding


def _count(journal: Path, count: int, finding: Finding) -> None:
    """Look at each line: which sample it is of, and whether the answer is its own."""
    seen = bytearray(count)
    with journal.open("rb") as lines:
        next(lines)
        for line in lines:
            record = json.loads(line)
            number = int(record["sample"]["id"][1:])
            seen[number] = min(255, seen[number] + 1)
            answered = record["trajectory"]["messages"][-1]["content"]
            if answered != str(number):
                finding.add("other", f"sample {number} has the answer {answered!r:.100}")
    if lost := seen.count(0):
        finding.add("lost", f"{lost} samples")
    if doubled := count - lost - seen.count(1):
        finding.add("doubled", f"{doubled} samples")
