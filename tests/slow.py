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
COVERS = ("src/heldout/stats", "tests/stats")


_figures: list[float] = []


def figure(value: Any) -> float:
    """Keep a number that a simulation found for the record, and return it."""
    _figures.append(round(float(value), 4))
    return float(value)


class Recorder:
    """A pytest plugin that keeps how each test ended, and its figures."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            _figures.clear()
        if report.when == "call" or report.failed:
            name = report.nodeid.removeprefix("tests/stats/")
            self.outcomes[name] = [report.outcome, *_figures]


def hash_sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for folder in COVERS for path in (ROOT / folder).glob("*.py")):
        digest.update(f"{path.name}\0{path.read_text()}\0".encode())
    return digest.hexdigest()


def main() -> int:
    sources = hash_sources()
    last = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if "--changed" in sys.argv[1:] and last.get("sources") == sources and last.get("passed"):
        print(f"simulations: nothing that they cover has changed since {last['date']}")
        return 0
    recorder = Recorder()
    command = ["-q", "-m", "slow", "tests/stats", "--ignore=tests/stats/peers"]
    code = int(pytest.main(command, plugins=[recorder]))
    record = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "command": "python -m tests.slow",
        "covers": COVERS,
        "sources": sources,
        "passed": code == 0,
        "outcomes": dict(sorted(recorder.outcomes.items())),
    }
    lines = json.dumps(record, indent=1).replace(",\n   ", ", ").replace("[\n   ", "[")
    RECORD.write_text(lines.replace("\n  ]", "]") + "\n")
    return code


if __name__ == "__main__":
    # Tests import this module by its name, and would have figures of their own.
    from tests.slow import main

    sys.exit(main())
