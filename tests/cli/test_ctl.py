"""`heldout ctl RUN`: what is asked of a run that is running."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heldout.store.control import RunControl, read_control
from tests.cli.conftest import Heldout
from tests.cli.runs import Outcome
from tests.cli.test_schema import check

SLOW = """
import time
from pathlib import Path

from heldout import EvalConfig, Sample

def answer(messages):
    while not Path("enough").exists():
        time.sleep(0.01)
    return "x"

config = EvalConfig(endpoint=answer, experiment_name="slow", max_concurrent=2)

def load_dataset():
    return [Sample(f"q{n}", {"question": f"{n}?"}, "x") for n in range(4)]

def score_fn(trajectory, sample):
    return trajectory.answer == sample.ground_truth
"""


@pytest.fixture
def running(heldout: Heldout) -> Iterator[Path]:
    Path("slow.py").write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "heldout", "run", "slow.py"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        found: list[Path] = []
        while not found and time.monotonic() < deadline:
            time.sleep(0.02)
            found = [path.parent for path in Path("outputs/evals/slow").glob("*/run.json")]
        yield found[0]
    finally:
        Path("enough").touch()
        process.wait(120)


def test_a_run_is_paused_slowed_down_and_let_go_on(running: Path, heldout: Heldout) -> None:
    outcome = heldout("ctl", "slow", "--pause", "--max-concurrent", "1", "--json")
    assert outcome.code == 0
    check("ctl", outcome.out)
    assert json.loads(outcome.out)["decision"] == "paused"
    assert read_control(running) == RunControl(paused=True, max_concurrent=1)
    assert "Paused" in heldout("ctl", "slow").out
    heldout("ctl", "slow", "--go-on", "--retry-errors")
    assert read_control(running) == RunControl(max_concurrent=1, retries=1)
    outcome = heldout("ctl", "slow", "--max-concurrent", "3")
    assert outcome.code == 2
    assert "was begun with 2" in outcome.err


def test_a_run_that_has_ended_is_not_steered(finished: Outcome, heldout: Heldout) -> None:
    outcome = heldout("ctl", "six", "--pause")
    assert outcome.code == 2
    assert "does not run, it is complete" in outcome.err
    assert heldout("ctl", "six", "--pause", "--go-on").code == 2
