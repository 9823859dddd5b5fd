"""The example of a tool-using eval does what it says."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from examples.file_system import FileSystem

from heldout import EvalReport, Sample, Trajectory
from tests.environments.conftest import calling, reply_of

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "file_puzzles.py"


def scored(sample: Sample, *moves: tuple[str, str]) -> float:
    environment = FileSystem.for_sample(sample)
    arguments = [json.dumps({"path": path, "new_path": new_path}) for path, new_path in moves]
    reply_of(environment, *(calling(("move_file", text)) for text in arguments))
    return FileSystem.score(Trajectory((), outcome=environment.outcome()), sample).reward


def test_the_script_solves_nine_puzzles_of_ten(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "heldout", "run", str(EXAMPLE), "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["n"], summary["n_errors"], summary["mean"]) == (10, 0, 0.9)
    report = EvalReport.load(tmp_path / "outputs" / "evals" / "file_puzzles")
    unsolved = [result.sample_id for result in report.results if not result.score.reward]
    assert unsolved == ["swap"]


@pytest.fixture
def puzzles(monkeypatch: pytest.MonkeyPatch) -> list[Sample]:
    monkeypatch.syspath_prepend(EXAMPLE.parent)  # as for a script
    space: dict[str, Any] = runpy.run_path(str(EXAMPLE))
    samples: list[Sample] = space["load_dataset"]()
    return samples


def test_no_puzzle_is_solved_from_the_start_and_the_one_left_over_can_be(
    puzzles: list[Sample],
) -> None:
    assert [scored(sample) for sample in puzzles] == [0.0] * 10
    moves = [("left.txt", "x"), ("right.txt", "left.txt"), ("x", "right.txt")]
    assert scored(puzzles[-1], *moves) == 1.0
