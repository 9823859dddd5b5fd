"""Makes a golden set: runs and curves that the code of one day wrote, kept for ever.

    python -m tests.golden.make 2026-11-19            write runs/ and expected.json of a new set
    python -m tests.golden.make 2026-11-19 --record   add what expected.json lacks

A set is a folder in tests/golden/data, named after the day:

    *.py, logs/     eval files, a training script, logs of other packages: written by hand
    checks.toml     how the runs are made, and what is read of them
    runs/           what came of it: the folder outputs/evals, as the code of that day wrote it
    expected.json   what that code read in it

Users have runs like these on their disks, so test_golden.py holds every later version to them: it
must read the same numbers, and must resume what was killed. Whoever changes what a run directory
or a curve contains adds a set of a new day and keeps all that are here. It needs only the runs
whose format is new; its files begin as copies of the last set's.

Nothing in runs/ is ever edited or made again, and the files beside it change in their layout alone.
A value in expected.json changes only where docs/semantics.md now says something else, and the
changelog says so. All sets together stay below 600 KB.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.golden.reading import copy_set, observe, read_page, run_command

DATA = Path(__file__).parent / "data"
NEUTRAL = "/training"
"""Stands in the runs for the folder that they were made in."""
COMMIT = {
    "GIT_AUTHOR_DATE": "2026-11-19T00:00:00Z",
    "GIT_COMMITTER_DATE": "2026-11-19T00:00:00Z",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


def make(folder: Path) -> None:
    """Write the runs of a new set."""
    if (folder / "runs").exists():
        sys.exit(
            f"{folder} has its runs; they are kept as they are. A new set has a name of its own"
        )
    checks = tomllib.loads((folder / "checks.toml").read_text())
    with TemporaryDirectory() as made:
        work = Path(made).resolve()
        for entry in folder.iterdir():
            if entry.is_dir() and entry.name != "__pycache__":
                shutil.copytree(entry, work / entry.name)
            elif entry.suffix == ".py":
                shutil.copy(entry, work)
        begin_repository(work)
        for step in checks["make"]:
            print(step)
            perform(step, work)
        runs = work / "outputs" / "evals"
        remove(runs, checks["removed"])
        for path in runs.rglob("run.json"):
            path.write_text(path.read_text().replace(str(work), NEUTRAL))
        shutil.copytree(runs, folder / "runs")
    refuse_machine_paths(folder / "runs", work)


def begin_repository(work: Path) -> None:
    """Make a repository with one commit, which the runs then name."""
    for command in (
        ("init", "--quiet"),
        ("add", "."),
        ("-c", "user.name=Golden", "-c", "user.email=golden@example.com", "commit", "-qm", "Files"),
    ):
        subprocess.run(("git", *command), cwd=work, env={**os.environ, **COMMIT}, check=True)


def perform(step: dict[str, Any], work: Path) -> None:
    """Run one command of the file: to its end, or until it is killed."""
    program = [sys.executable, *shlex.split(step["run"])]
    code = step.get("code", 0)
    if "note" in step:
        write_notes(step, work)
    elif "kill" in step:
        (work / "hold").touch()
        process = subprocess.Popen(program, cwd=work)
        run = work / "outputs" / "evals"
        wait_until(lambda: len([*run.glob(step["kill"])]) >= step["files"], process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        (work / "hold").unlink()
    else:
        found = subprocess.run(program, cwd=work, check=False).returncode
        if found != code:
            sys.exit(f"{step['run']} ended with {found}, not {code}")


def wait_until(what: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for something that a process does, and a little longer: it is then held up."""
    deadline = time.monotonic() + 60
    while not what():
        if process.poll() is not None or time.monotonic() > deadline:
            sys.exit("what was to be killed had ended before, or never came so far")
        time.sleep(0.05)
    time.sleep(1)


def write_notes(step: dict[str, Any], work: Path) -> None:
    """Write notes as the page of `heldout view --notes` does."""
    program = [sys.executable, *shlex.split(step["run"])]
    process = subprocess.Popen(program, cwd=work, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        address = None
        while address is None:
            address = re.search(r"(http://[\w.]+:\d+)/#token=(\S+)", process.stdout.readline())
        origin, token = address.groups()
        folders = work / "outputs" / "evals"
        for note in step["note"]:
            [run] = (folders / note["name"]).iterdir()
            note["name"] = f"{note['name']}/{run.name}"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            request = urllib.request.Request(
                f"{origin}/api/note", json.dumps(note).encode(), {**headers, "Origin": origin}
            )
            urllib.request.urlopen(request).close()
    finally:
        process.terminate()
        process.wait()


def remove(runs: Path, patterns: list[str]) -> None:
    """Remove parts that a run can be without."""
    for pattern in patterns:
        for path in runs.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def refuse_machine_paths(runs: Path, work: Path) -> None:
    """Refuse runs that name a folder of this machine."""
    words = [str(work), str(Path.home()), str(Path(sys.prefix).resolve()), str(Path.cwd())]
    for path in runs.rglob("*"):
        if path.is_file() and any(word.encode() in path.read_bytes() for word in words):
            sys.exit(f"{path} has a path of this machine")


def record(folder: Path) -> None:
    """Add what the checks read with today's code and expected.json does not have."""
    file = folder / "expected.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    checks = tomllib.loads((folder / "checks.toml").read_text())
    with TemporaryDirectory() as made:
        copy_set(folder, Path(made))
        os.chdir(made)
        for command in checks["commands"]:
            if command not in known.setdefault("commands", {}):
                known["commands"][command] = rounded(run_command(command))
        read = {"read": observe(Path("outputs/evals")), "page": read_page(checks["page"])}
        for part, found in read.items():
            for name, value in found.items():
                known.setdefault(part, {}).setdefault(name, rounded(value))
        os.chdir(folder)
    file.write_text(json.dumps(known, separators=(",", ":"), ensure_ascii=False) + "\n")


def rounded(value: Any) -> Any:
    """Round floats to what a reader has to find again."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.11g}") if isinstance(value, float) else value


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    if not given.record:
        make(DATA / given.name)
    record(DATA / given.name)
