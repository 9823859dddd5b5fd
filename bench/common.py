"""What the benchmarks share: a figure and how it is printed, child processes, the machine.

A benchmark is a script that prints one JSON line a figure on standard output. Whatever is
measured runs in a process of its own, so that one case leaves nothing behind for the next:
no warm caches, no grown heap, no imported packages.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
WORK = HERE.parent / ".bench"
"""Environments and temporary run directories; on the disk of the checkout, as real runs are."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `target` is the most it may be; `ratio` compares it with heldout's."""

    what: str
    value: float
    unit: str
    target: float | None = None
    ratio: float | None = None

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.value <= self.target


def emit(what: str, value: float, unit: str, **rest: float | None) -> None:
    print(json.dumps(asdict(Figure(what, value, unit, **rest))), flush=True)


def say(text: str) -> None:
    """Progress, beside the figures."""
    print(text, file=sys.stderr, flush=True)


def options(description: str | None) -> argparse.ArgumentParser:
    """The options every benchmark takes."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works")
    parser.add_argument(
        "--peers-dir",
        type=Path,
        default=WORK / "venvs",
        help="where the peers' environments are (default: %(default)s)",
    )
    return parser


def child(*command: str | Path) -> dict[str, Any]:
    """Run a program to its end; its last line of output is JSON."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"benchmark failed with exit code {done.returncode}: {command}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return line


def middle(rounds: list[dict[str, Any]], key: str) -> float:
    """The median: other programs on the machine disturb single rounds."""
    return float(median(line[key] for line in rounds))


def peer(peers: Path, name: str, program: str = "python") -> Path:
    """A program of a peer's environment."""
    path = peers / name / "bin" / program
    if not path.exists():
        sys.exit(f"{path} is missing; bench/run.py makes the environments of the peers")
    return path


def scratch(name: str) -> Path:
    """An empty folder that was not there before."""
    folder = WORK / f"{name}-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_cpu_model()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, "
        f"Python {platform.python_version()}"
    )


def _cpu_model() -> str:
    # lscpu knows the names of ARM cores too, which /proc/cpuinfo gives as numbers.
    if shutil.which("lscpu"):
        listing = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
        for line in listing.splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model name":
                return value.strip()
    return platform.processor() or platform.machine()
