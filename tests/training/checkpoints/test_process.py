"""A real training process, followed by a real `heldout curve follow` that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heldout.training import read_points

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]

EVAL = """
import time
from pathlib import Path
import heldout
from tests.training.checkpoints import saved

config = heldout.EvalConfig(sampling=heldout.Sampling(max_tokens=3), max_concurrent=1)

def load_dataset():
    return saved.SAMPLES

def score_fn(trajectory, sample):
    with open("scored", "a") as file:
        file.write(sample.id + "\\n")
    while not Path("gate").exists() and len(Path("scored").read_text().split()) == 3:
        time.sleep(0.02)
    return saved.score_fn(trajectory, sample)
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        with process:
            pass


@pytest.mark.heavy
def test_a_trainer_is_followed_through_a_kill(
    tmp_path: Path, started: list[subprocess.Popen[str]]
) -> None:
    (tmp_path / "quiz.py").write_text(EVAL)
    folder = tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    def start(*words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    def scored() -> int:
        path = tmp_path / "scored"
        return len(path.read_text().split()) if path.exists() else 0

    follow = ["-m", "heldout", "curve", "follow", "run", "--eval", "quiz.py", "--poll", "0.2"]
    trainer = start(str(Path(__file__).with_name("train.py")), str(folder))
    follower = start(*follow)
    while scored() < 3:
        assert follower.poll() is None, follower.communicate()[0]
        assert trainer.poll() is None, trainer.communicate()[0]
        time.sleep(0.05)
    follower.send_signal(signal.SIGKILL)
    follower.wait()
    curve = tmp_path / "outputs" / "evals" / "quiz-run" / "curve.jsonl"
    assert [(p.step, p.pending) for p in read_points(curve)] == [(1, True)]

    (tmp_path / "gate").touch()
    follower = start(*follow)
    while not read_points(curve)[0].has_result:
        assert follower.poll() is None, follower.communicate()[0]
        time.sleep(0.05)
    assert scored() == 7  # six, and the one that was being scored
    (folder / "go").touch()
    output = follower.communicate(timeout=120)[0]
    assert follower.returncode == 0, output
    assert trainer.wait() == 0

    points = read_points(curve)
    assert {1, 4, 5} <= {point.step for point in points if point.has_result}
    for point in points:  # removed before it could be evaluated
        assert point.has_result or f"checkpoint-{point.step} was removed" in str(point.skipped)
    results = [point for point in points if point.has_result]
    assert len({point.weights for point in results}) == len(results)
    assert scored() == 1 + 6 * len(results)
    assert "step 5" in output
