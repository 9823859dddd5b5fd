"""Trials, the journal of those that were made, and the table that is made of it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

STATE = Path(".torture").absolute()
PAGE = Path(__file__).parent.parent / "docs" / "torture.md"
BEGIN, END = "<!-- table: written by python -m torture -->", "<!-- end of table -->"
FAULTS = ("lost", "doubled", "traceback", "hang", "other")
"""What may come out of a trial, and must not: the columns of the table."""
BLOCK = 25
"""Trials that one process makes after one another."""


class Fault(NamedTuple):
    """Something that must not happen."""

    kind: str
    """One of `FAULTS`."""
    detail: str


@dataclass(slots=True)
class Finding:
    """What came out of a trial."""

    faults: list[Fault] = field(default_factory=list)
    count: int = 1
    """How many of what the table counts: samples, where one trial is of many."""
    figures: dict[str, float] = field(default_factory=dict)
    """Numbers whose largest the table shows, such as the peak memory."""
    marks: list[str] = field(default_factory=list)
    """Things that happened, which the table counts, such as "while it ran"."""

    def add(self, kind: str, detail: str) -> None:
        self.faults.append(Fault(kind, detail))


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing to try."""

    part: str
    case: str
    """A row of the table."""
    number: int
    run: Callable[[], Finding]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.part, self.case, self.number


class Journal:
    """A line per trial; the last line of a trial is the one that counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: dict[tuple[str, str, int], dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:  # the torture run itself was killed
                    continue
                self.lines[entry["part"], entry["case"], entry["number"]] = entry

    def append(self, trial: Trial, finding: Finding, seconds: float) -> None:
        entry = {
            "part": trial.part,
            "case": trial.case,
            "number": trial.number,
            "faults": [list(fault) for fault in finding.faults],
            "count": finding.count,
            "figures": finding.figures,
            "marks": finding.marks,
            "seconds": round(seconds, 3),
            "date": time.strftime("%Y-%m-%d"),
            "version": version("heldout"),
        }
        self.lines[trial.key] = entry
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def forget(self, parts: Iterable[str]) -> None:
        """Remove the lines of some parts."""
        gone = {*parts}
        self.lines = {key: line for key, line in self.lines.items() if key[0] not in gone}
        if self._path.exists():
            text = "".join(json.dumps(line) + "\n" for line in self.lines.values())
            self._path.write_text(text)


def run_trials(
    trials: Iterator[Trial],
    journal: Journal,
    *,
    retry: bool,
    share: int = 0,
    of: int = 1,
    case: str = "",
) -> None:
    """Make the trials that the journal does not have, and print the faults.

    Args:
        trials: All trials; what they need is made when the first of them runs.
        journal: What was tried.
        retry: Whether trials with faults are made again.
        share: Which share of the trials to make, where several processes have one each.
        of: How many shares there are. A block of `BLOCK` trials is in one share.
        case: What the name of a case must begin with, for its trials to be made.
    """
    made = 0
    for trial in trials:
        known = journal.lines.get(trial.key)
        if known is not None and not (retry and known["faults"]):
            continue
        if trial.number // BLOCK % of != share or not trial.case.startswith(case):
            continue
        started = time.monotonic()
        try:
            finding = trial.run()
        except Exception:  # noqa: BLE001 - a mistake of the torture run is a fault to look at
            finding = Finding([Fault("other", f"the trial broke: {traceback.format_exc()}")])
        journal.append(trial, finding, time.monotonic() - started)
        made += 1
        name = f"{trial.part}, {trial.case}, {trial.number}"
        for kind, detail in finding.faults:
            print(f"{name}: {kind}: {detail}\n", flush=True)
        if made % 50 == 0:
            print(f"… {name}", file=sys.stderr, flush=True)


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """An empty folder, which is removed afterwards."""
    folder = STATE / "work" / f"{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# --- The table ----------------------------------------------------------------------------------


def table(journal: Journal, order: Iterable[str]) -> str:
    """What was tried, how often, and what came out, in Markdown."""
    heads = ["", "tried", "times", "lost", "doubled", "tracebacks", "hangs", "other faults", ""]
    rows = [heads, ["---", "---", *["---:"] * 6, "---"]]
    for part in order:
        cases = dict.fromkeys(case for name, case, _ in journal.lines if name == part)
        for i, case in enumerate(cases):
            lines = [line for key, line in journal.lines.items() if key[:2] == (part, case)]
            counts = [
                sum(kind == fault for line in lines for fault, _ in line["faults"])
                for kind in FAULTS
            ]
            times = f"{sum(line['count'] for line in lines):,}"
            rows.append([part if i == 0 else "", case, times, *map(str, counts), _notes(lines)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _notes(lines: list[dict[str, Any]]) -> str:
    most: dict[str, float] = {}
    for line in lines:
        for name, value in line["figures"].items():
            most[name] = max(value, most.get(name, value))
    marks = [mark for line in lines for mark in line["marks"]]
    counted = [f"{marks.count(mark):,} {mark}" for mark in sorted(set(marks))]
    return ", ".join([*counted, *(f"{name} {value:,.0f}" for name, value in most.items())])


def origin(journal: Journal, command: str) -> str:
    """When, with which version and by which command."""
    dates = sorted({line["date"] for line in journal.lines.values()})
    versions = sorted({line["version"] for line in journal.lines.values()})
    hours = sum(line["seconds"] for line in journal.lines.values()) / 3600
    when = " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "never"
    return (
        f"Measured {when} with heldout {', '.join(versions)}, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, by `{command}`; "
        f"{hours:.1f} hours in all."
    )


def write_page(text: str, page: Path = PAGE) -> None:
    """Put the table between its markers; the text around them is written by hand."""
    before, found, rest = page.read_text().partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        sys.exit(f"{page.name} has no place for the table: {BEGIN} … {END}")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
