"""`heldout run a.py b.py`: several evals, one table, one exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Heldout
from tests.cli.test_schema import check

EVAL = """
from pathlib import Path

from heldout import EvalConfig, Sample

def answer(messages):
    with Path("calls.txt").open("a") as calls:
        calls.write("{name}\\n")
    {answer}

config = EvalConfig(endpoint=answer, max_concurrent=1)

def load_dataset():
    return [Sample(f"q{{n}}", {{"question": f"{{n}}?"}}, "x") for n in range(3)]

def score_fn(trajectory, sample):
    return trajectory.answer == sample.ground_truth
"""


def write(name: str, answer: str = "return 'x'") -> str:
    Path(f"{name}.py").write_text(EVAL.format(name=name, answer=answer))
    return f"{name}.py"


def calls() -> list[str]:
    path = Path("calls.txt")
    return path.read_text().split() if path.exists() else []


def test_each_runs_in_a_directory_of_its_own_and_there_is_one_table(heldout: Heldout) -> None:
    outcome = heldout("run", write("first"), write("second", "return 'y'"))
    assert outcome.code == 0
    assert calls() == ["first"] * 3 + ["second"] * 3
    lines = outcome.out.splitlines()
    assert any("first.py" in line and "1.000" in line for line in lines)
    assert any("second.py" in line and "0.000" in line for line in lines)
    assert "All of 2 evals have run." in outcome.out
    for name in ("first", "second"):
        assert heldout("show", name).code == 0


def test_one_that_fails_does_not_keep_the_next_from_running(heldout: Heldout) -> None:
    outcome = heldout("run", write("broken", "raise RuntimeError('no')"), write("fine"), "--json")
    assert outcome.code == 4
    check("run-several", outcome.out)
    said = json.loads(outcome.out)
    assert [run["mean"] for run in said["runs"]] == [1.0]
    assert [failure["file"] for failure in said["failures"]] == ["broken.py"]
    assert said["decision"] == "failed"


def test_resumed_what_is_complete_is_not_run_again(heldout: Heldout) -> None:
    files = write("fine"), write("broken", "raise RuntimeError('no')")
    assert heldout("run", *files).code == 4
    write("broken")  # mended
    before = calls().count("fine")
    assert heldout("run", *files, "--resume").code == 0
    assert calls().count("fine") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.py"], "missing.py"),
        (["folder/fine.py"], "are both called fine"),
        (["other.py", "--name", "x"], "--name are for one eval"),
        (["other.py", "--sample-id", "q1"], "--sample-id are for one eval"),
    ],
)
def test_what_cannot_be_run_together_is_refused_before_anything_runs(
    arguments: list[str], message: str, heldout: Heldout
) -> None:
    Path("folder").mkdir()
    write("folder/fine")
    write("other")
    outcome = heldout("run", write("fine"), *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert calls() == []
