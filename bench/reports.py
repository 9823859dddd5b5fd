"""A saved report of a million results: how long to derive, to open, to slice and to compare it."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import child, emit, options, say, scratch
from heldout import (
    EvalConfig,
    EvalReport,
    EvalResult,
    Message,
    Metric,
    Sample,
    Score,
    Timing,
    Trajectory,
    Usage,
)
from heldout._core.config import config_to_dict
from heldout.store.journal import JournalWriter
from heldout.store.report import finish
from heldout.store.resume import encode_sample
from heldout.store.run_dir import RunDir, RunInfo

REPEATED = 5
"""Opening is milliseconds, so one try says little."""


def result(i: int, other: bool) -> EvalResult:
    question, truth = f"What is {i} + 25?", str(i + 25)
    metadata = {"kind": f"kind {i % 5}", "subject": f"subject {i % 200}", "page": i % 20_000}
    sample = Sample(f"sample-{i}", {"question": question}, truth, metadata)
    messages = Message("user", question), Message("assistant", truth)
    trajectory = Trajectory(messages, usage=Usage(8, 1), timing=Timing(0.2, 1))
    right = i % 4 != 3 if not other else i % 7 != 3
    metrics = Metric("correct", float(right), 1.0), Metric("length", float(i % 97))
    return EvalResult(sample.id, sample, trajectory, Score(metrics))


def write(folder: Path, count: int) -> dict[str, Any]:
    """Write the journal of a run as `evaluate` would, and derive its report."""
    run = RunDir(folder)
    run.make()
    config = EvalConfig(endpoint=print, experiment_name=folder.name)
    info = RunInfo.new(config_to_dict(config, {"kind": "function"}), {})
    other = folder.name == "other"
    start = time.perf_counter()
    journal = JournalWriter(run.journal)
    for i in range(count):
        item = result(i, other)
        journal.append(i, item, encode_sample(item.sample))
    journal.close()
    written = time.perf_counter()
    cpu, before = time.process_time(), peak()
    finish(run, info, journal.written)
    return {
        "journal_s": written - start,
        "finish_s": time.perf_counter() - written,
        "finish_cpu_s": time.process_time() - cpu,
        "finish_mb": peak() - before,
        "journal_mb": run.journal.stat().st_size / 1e6,
    }


def peak() -> float:
    """Most memory ever in use, in MB (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def load(folder: Path, count: int) -> dict[str, Any]:
    """Open the report, in a process that has heldout imported and nothing read yet."""
    seconds = []
    for _ in range(REPEATED):
        start = time.perf_counter()
        summary = EvalReport.load(folder).summary
        seconds.append(time.perf_counter() - start)
        if summary["n"] != count or not summary.get("complete", True):
            sys.exit(f"wrong summary: {summary}")
    return {"first_s": seconds[0], "best_s": min(seconds)}


def compare(folder: Path, count: int) -> dict[str, Any]:
    """Two runs, from their directories to the verdict, in a process that has heldout imported."""
    from heldout.analysis import compare

    seconds = {}
    for by in ((), ("kind",)):
        rounds = []
        for _ in range(3):
            start = time.perf_counter()
            found = compare(folder / "run", folder / "other", by=by)
            rounds.append(time.perf_counter() - start)
            if found.verdict != "b_better" or found.overall.wins != sum(
                i % 4 == 3 and i % 7 != 3 for i in range(count)
            ):
                sys.exit(f"wrong comparison: {found.overall}")
        seconds["by_s" if by else "whole_s"] = min(rounds)
    return seconds


def run_command(*arguments: str) -> tuple[float, list[dict[str, Any]]]:
    """Wall time of a whole command, from start to exit; and the lines that it prints."""
    command = [sys.executable, "-m", "heldout", *arguments, "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - start
    return seconds, [json.loads(line) for line in done.stdout.splitlines()]


def slice_by(key: str, values: int, folder: Path, count: int) -> float:
    seconds, slices = run_command("show", str(folder), "--by", key)
    if [line["n"] for line in slices] != [count // values] * values:
        sys.exit(f"wrong slices by {key}: {len(slices)}")
    return seconds


def query_by_subject(folder: Path, count: int) -> float:
    sql = "select metadata.subject, count(*) as n, avg(reward) from results group by 1"
    seconds, rows = run_command("sql", str(folder), sql)
    if [row["n"] for row in rows] != [count // 200] * 200:
        sys.exit(f"wrong rows: {rows[:3]}")
    return seconds


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--step", choices=("write", "load", "compare"), help="measure one alone")
    parser.add_argument("--folder", type=Path, help="the run directory it works on")
    args = parser.parse_args()
    count = 20_000 if args.quick else 1_000_000
    if args.step:
        step = {"write": write, "load": load, "compare": compare}[args.step]
        print(json.dumps(step(args.folder, count)))
        return
    folder = scratch("reports")
    run, other = folder / "run", folder / "other"
    this = [sys.executable, __file__]
    if args.quick:
        this.append("--quick")
    try:
        say(f"reports, writing {count:,} results")
        made = child(*this, "--folder", str(run), "--step", "write")
        say("reports, opening and slicing")
        opened = child(*this, "--folder", str(run), "--step", "load")
        sliced = {
            values: min(slice_by(key, values, run, count) for _ in range(3))
            for key, values in (("kind", 5), ("subject", 200), ("page", 20_000))
        }
        queried = min(query_by_subject(run, count) for _ in range(3))
        say("reports, comparing with another run")
        child(*this, "--folder", str(other), "--step", "write")
        compared = child(*this, "--folder", str(folder), "--step", "compare")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    emit(f"`EvalReport.load(…).summary`, {count:,} results", opened["first_s"], "s", target=0.1)
    for values, seconds in sliced.items():
        what = f"`heldout show --by KEY`, {values:,} values, the whole command, best of 3"
        emit(what, seconds, "s", target=2.0 if values <= 200 else None)
    emit("`heldout sql`, means of 200 groups, the whole command, best of 3", queried, "s")
    what = f"`compare`, two runs of {count:,} results, from disk"
    emit(f"{what}, best of 3", compared["whole_s"], "s", target=1.0)
    emit("the same, with slices by a key of five values", compared["by_s"], "s")
    emit(
        f"`finish`: columns and summary from {made['journal_mb']:,.0f} MB of journal",
        made["finish_s"],
        "s",
    )
    emit("the same, CPU", made["finish_cpu_s"], "s", target=20.0)
    emit(
        "the same, memory beyond what writing the journal took", made["finish_mb"], "MB", target=150
    )
    emit("writing that journal", made["journal_s"], "s")


if __name__ == "__main__":
    main()
