"""`heldout view` as a process: how it ends, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.viewer.runs import make_unfinished


def start(runs: Path, temporary: Path) -> tuple[subprocess.Popen[str], str]:
    """Start `heldout view`, and have it read a run that has no table of its own; its address."""
    command = [sys.executable, "-m", "heldout", "view", str(runs), "--no-browser", "--no-token"]
    process = subprocess.Popen(
        [*command, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    address = process.stdout.readline().split()[-1]
    with urllib.request.urlopen(f"{address}api/run?name=shop-killed", timeout=60) as answer:
        assert json.load(answer)["samples"] == 37
    return process, address


def tables_in(folder: Path) -> list[Path]:
    return [*folder.glob("heldout-view-*")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_viewer_that_is_ended_leaves_no_temporary_tables(
    tmp_path: Path, number: signal.Signals
) -> None:
    runs, temporary = tmp_path / "runs", tmp_path / "temporary"
    runs.mkdir()
    temporary.mkdir()
    make_unfinished(runs)
    process, _ = start(runs, temporary)
    assert tables_in(temporary)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert said == ""
    assert process.returncode == (0 if number == signal.SIGINT else 128 + number)
    assert not [*temporary.iterdir()]


def test_a_viewer_removes_the_tables_of_one_that_was_killed(tmp_path: Path) -> None:
    runs, temporary = tmp_path / "runs", tmp_path / "temporary"
    runs.mkdir()
    temporary.mkdir()
    make_unfinished(runs)
    living, _ = start(runs, temporary)
    killed, _ = start(runs, temporary)
    killed.kill()
    killed.communicate(timeout=60)
    assert len(tables_in(temporary)) == 2
    next_one, _ = start(runs, temporary)
    assert len(tables_in(temporary)) == 2  # of the two that live
    for process in (living, next_one):
        process.terminate()
        process.communicate(timeout=60)
    assert not [*temporary.iterdir()]
