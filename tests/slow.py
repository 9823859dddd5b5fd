"""Run the simulations of coverage and power, and record what came out in tests/slow.json.

python -m tests.slow             run them
python -m tests.slow --changed   only where the code they cover is not that of the record
"""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tests" / "slow.json"
ROOMS = {
    "tests/stats": ("src/heldout/stats", "tests/stats"),
    "tests/stats/stopping": (
        "src/heldout/stats", "src/heldout/stats/stopping", "tests/stats/stopping"
    ),
}  # fmt: skip
"""The simulations of each folder, and the folders whose modules they cover."""


_figures: list[float] = []


def figure(value: Any) -> float:
    """Keep a number that a simulation found for the record, and return it."""
    _figures.append(round(float(value), 4))
    return float(value)


class Recorder:
    """A pytest plugin that keeps how each test of a folder ended, and its figures."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.outcomes: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            _figures.clear()
        if report.when == "call" or report.failed:
            name = report.nodeid.removeprefix(f"{self.folder}/")
            self.outcomes[name] = [report.outcome, *_figures]


def hash_sources(folders: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (ROOT / folder).glob("*.py")):
        digest.update(f"{path.name}\0{path.read_text()}\0".encode())
    return digest.hexdigest()


def simulate(folder: str) -> dict[str, Any]:
    """Run the simulations of a folder, without those of folders inside, and return the record."""
    sources = hash_sources(ROOMS[folder])
    recorder = Recorder(folder)
    inside = [str(path.parent.relative_to(ROOT)) for path in (ROOT / folder).glob("*/__init__.py")]
    ignored = [f"--ignore={each}" for each in inside]
    code = int(pytest.main(["-q", "-m", "slow", folder, *ignored], plugins=[recorder]))
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": "python -m tests.slow",
        "covers": ROOMS[folder],
        "sources": sources,
        "passed": code == 0,
        "outcomes": dict(sorted(recorder.outcomes.items())),
    }


def main() -> int:
    records = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for folder, covers in ROOMS.items():
        last = records.get(folder, {})
        unchanged = last.get("sources") == hash_sources(covers) and last.get("passed")
        if "--changed" in sys.argv[1:] and unchanged:
            print(f"{folder}: nothing that its simulations cover has changed since {last['date']}")
            continue
        records[folder] = simulate(folder)
        # After each folder: one that is interrupted does not cost the others.
        RECORD.write_text(_format(records))
    return int(not all(records[folder]["passed"] for folder in ROOMS))


def _format(records: dict[str, Any]) -> str:
    """Return JSON with a line for each outcome."""
    lines = json.dumps(records, indent=1).replace(",\n    ", ", ").replace("[\n    ", "[")
    return lines.replace("\n   ]", "]") + "\n"


if __name__ == "__main__":
    # Tests import this module by its name, and would have figures of their own.
    from tests.slow import main

    sys.exit(main())
