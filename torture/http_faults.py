"""A hundred thousand samples over HTTP, from a server with faults: each gets its own answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio

from heldout import EvalConfig, Metric, Sample, Score, Trajectory, evaluate
from torture.answering import completion, http, last_word, serving
from torture.children import run_child
from torture.trials import Finding, Journal, Trial, scratch

PART, CASE = "http", "samples over HTTP, an eighth of the replies with a fault"
COUNT, PER_TRIAL = 100_000, 5_000
IN_FLIGHT = 200
HANG_SECONDS = 3600.0
REFUSED = 500
"""One in so many samples is refused, for good: that is its error."""

FAULTS = ("500", "429", "503", "reset", "closed", "half", "junk", "empty", "slow", "broken off")


class Faulty:
    """Has faults by prompt and by how often that came; none at the fourth time."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    async def __call__(
        self, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        word = last_word(body)
        self._seen[word] += 1
        if int(word) % REFUSED == 7:
            writer.write(http(b'{"error": {"message": "no"}}', "400 Bad Request"))
            return True
        good = http(json.dumps(completion(word)).encode())
        match self._fault(word):
            case None:
                writer.write(good)
            case "slow":
                for start in range(0, len(good), 40):
                    writer.write(good[start : start + 40])
                    await asyncio.sleep(0.005)
            case "reset":
                writer.transport.abort()
                return False
            case "closed":
                return False
            case "half":
                writer.write(good[: len(good) // 2])
                return False
            case "junk":
                writer.write(http(b'{"choices": [{"message'))
            case "empty":
                writer.write(http(b""))
            case "broken off":
                choice = {"message": {"content": word[:1]}, "finish_reason": "error"}
                writer.write(http(json.dumps({"choices": [choice]}).encode()))
            case status:
                error = b'{"error": {"message": "later"}}'
                writer.write(http(error, f"{status} No", "retry-after: 0\r\n"))
        return True

    def _fault(self, word: str) -> str | None:
        if self._seen[word] > 3:
            return None
        digest = hashlib.sha256(f"{word}:{self._seen[word]}".encode()).digest()
        return FAULTS[digest[1] % len(FAULTS)] if digest[0] < 32 else None


def score(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("same", trajectory.answer == sample.ground_truth, weight=1.0),))


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield trials of some thousand samples each."""
    for number in range(max(1, round(COUNT * scale / PER_TRIAL))):
        yield Trial(PART, CASE, number, partial(run_samples, number))


def run_samples(number: int) -> Finding:
    """Run some samples against a server of their own."""
    finding = Finding(count=PER_TRIAL)
    numbers = range(number * PER_TRIAL, (number + 1) * PER_TRIAL)
    with scratch("http") as folder, serving(folder / "server", Faulty()) as url:

        def run() -> None:
            samples = (Sample(f"s{i}", {"question": f"say {i}"}, str(i)) for i in numbers)
            config = EvalConfig(
                f"openai:m@{url}",
                "http",
                max_concurrent=IN_FLIGHT,
                output_dir=str(folder),
                progress=False,
                retries=6,
            )
            anyio.run(partial(evaluate, samples, config, score))

        os.environ.pop("OPENAI_API_KEY", None)
        ended = run_child(run, folder, seconds=HANG_SECONDS)
        if ended.hung:
            finding.add("hang", ended.explain())
        elif ended.code != 0 or "Traceback" in ended.err:
            finding.add("traceback", ended.explain())
        else:
            _check(folder / "http", numbers, finding)
    finding.figures = {"peak MB": ended.peak_mb}
    return finding


def _check(run: Path, numbers: range, finding: Finding) -> None:
    seen: Counter[int] = Counter()
    for line in (run / "results.jsonl").read_bytes().splitlines()[1:]:
        record = json.loads(line)
        i = int(record["sample"]["id"][1:])
        seen[i] += 1
        messages = record["trajectory"]["messages"]
        answer = messages[-1]["content"] if messages[-1]["role"] == "assistant" else None
        error = record.get("error")
        if i % REFUSED == 7:
            if error is None or "400" not in error:
                finding.add("other", f"sample {i} was refused, and its error is {error!r}")
        elif answer != str(i) or error is not None:
            finding.add("other", f"sample {i} has the answer {answer!r:.100}, error {error!r:.300}")
    if lost := [i for i in numbers if not seen[i]]:
        finding.add("lost", f"{len(lost)} samples: {lost[:5]}")
    if doubled := [i for i, times in seen.items() if times > 1]:
        finding.add("doubled", f"{len(doubled)} samples: {doubled[:5]}")
