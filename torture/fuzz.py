"""Spoiled run directories: each is read by commands and pages (`run_dirs.py` says how)."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torture import run_dirs
from torture.children import Child
from torture.trials import BLOCK, Fault, Finding, Journal, Trial, scratch

PART, CASE = "fuzz", "a spoiled run directory, read by a command and a page"
COUNT, SEED = 10_000, 1
BATCH_SECONDS = 1200.0
MEMORY = 3 * 2**30
"""Bytes that reading may take; above that it is a traceback."""


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield a trial per directory; a batch of them is made when its first one runs."""
    numbers = range(max(1, round(COUNT * scale)))
    for start in range(0, len(numbers), BLOCK):
        batch = numbers[start : start + BLOCK]
        found: dict[int, Finding] = {}
        for number in batch:
            yield Trial(PART, CASE, number, partial(_find, number, batch, found, journal))


def _find(number: int, batch: range, found: dict[int, Finding], journal: Journal) -> Finding:
    if number not in found:
        left = [
            n
            for n in batch
            if n >= number and (n == number or (PART, CASE, n) not in journal.lines)
        ]
        found.update(_read_batch(left))
    return found[number]


def _read_batch(numbers: list[int]) -> dict[int, Finding]:
    """Read directories in a child; where it dies or hangs, the case in flight is to blame."""
    found: dict[int, Finding] = {}
    with scratch("fuzz") as folder:
        log = folder / "problems"
        log.mkdir()

        def read() -> None:
            runs = folder / "runs"
            runs.mkdir()
            run_dirs.prepare(runs)
            os.chdir(runs)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            for number in numbers:
                problems = run_dirs.try_case(number, SEED)
                (log / f"{number}").write_text(json.dumps(problems))

        child = Child(read, folder)
        ended = child.wait(BATCH_SECONDS)
        for number in numbers:
            file = Path(log, f"{number}")
            if not file.exists():
                kind = "hang" if ended.hung or "Timeout (" in ended.err else "traceback"
                found[number] = Finding([Fault(kind, f"case {SEED}:{number}: {ended.explain()}")])
                break
            problems = json.loads(file.read_text())
            found[number] = Finding([Fault(_kind_of(problem), problem) for problem in problems])
    return found


def _kind_of(problem: str) -> str:
    first = problem.partition("\n")[0]
    if "hangs" in first:
        return "hang"
    return "traceback" if "raised" in first or "traceback" in first else "other"
