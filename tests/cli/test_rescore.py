"""`heldout rescore RUN --scorer module:score_fn`."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from heldout.store.run_dir import RunDir
from heldout.store.runs import find_run
from tests.cli.conftest import START, Heldout, calls
from tests.cli.runs import Outcome, command_of, lines_of_journal, wait_for

GRADERS = """
from pathlib import Path

import anyio

from heldout import Metric, Score
from heldout.scoring import Grade, Rubric, grade_exact, part

lenient = Rubric(part(lambda answer: answer.startswith("word"), name="correct"))

strict = Rubric(
    part(grade_exact, name="correct"),
    part(lambda: Grade(0.0, None, "none\\x1b[31m"), name="other", weight=0),
)

async def waiting(trajectory, sample):
    while sample.id in ("q3", "q4", "q5") and not Path("go").exists():
        await anyio.sleep(0.005)
    return Score((Metric("correct", 1.0, weight=1.0),))

def broken(trajectory, sample):
    raise ValueError("no")
"""


@pytest.fixture
def graders(finished: Outcome) -> Path:
    Path("graders.py").write_text(GRADERS)
    return Path("graders.py")


@pytest.mark.usefixtures("graders")
@pytest.mark.parametrize("named", ["graders:lenient", "./graders.py:lenient"])
def test_saved_answers_are_scored_again_without_asking(heldout: Heldout, named: str) -> None:
    asked = calls()
    found = heldout("rescore", "six", "--scorer", named)
    assert found.code == 0, found.err
    assert calls() == asked
    assert "six-rescored" in found.out.splitlines()[0]
    assert f"trajectories of six/{START}, scored again" in found.out
    assert "saved to outputs/evals/six-rescored" in found.out
    shown = heldout("show", "six-rescored")
    assert f"trajectories of six/{START}, scored again" in shown.out
    compared = heldout("compare", "six", "six-rescored")
    assert compared.code == 0, compared.err
    assert "gained 2, lost 0" in compared.out
    assert "a difference is the scorer's (score_fn is 'score_fn' and 'Rubric')" in compared.out
    assert "B is higher" in compared.out or "Inconclusive" in compared.out


@pytest.mark.usefixtures("graders")
def test_failures_say_what_was_read_so_that_a_person_sees_why(heldout: Heldout) -> None:
    assert heldout("rescore", "six", "--scorer", "graders:strict").code == 0
    shown = heldout("show", "six-rescored", "--failures", "1").out
    assert "extracted  correct: 'word4'\n" in shown
    assert "extracted  other: nothing (none\\x1b[31m)\n" in shown


@pytest.mark.usefixtures("graders")
def test_what_passed_is_shown_too_since_a_grader_may_be_wrong_that_way(heldout: Heldout) -> None:
    assert heldout("rescore", "six", "--scorer", "graders:strict").code == 0
    shown = heldout("show", "six-rescored", "--passes", "2").out
    assert [line for line in shown.splitlines() if line.startswith("──")] == ["── q0", "── q1"]
    assert "extracted  correct: 'word0'\n" in shown
    shown = heldout("show", "six-rescored", "--sample", "q5", "--sample", "q2").out
    assert [line for line in shown.splitlines() if line.startswith("──")] == ["── q5", "── q2"]
    for arguments, said in {
        ("--sample", "q9"): "has no sample 'q9'; there is q0, q1, q2",
        ("--sample", "q5", "--passes", "1"): "--passes and --sample do not go together",
        ("--passes", "1", "--cluster", "topic"): "--passes and --cluster do not go together",
    }.items():
        found = heldout("show", "six-rescored", *arguments)
        assert found.code == 2
        assert said in found.err


@pytest.mark.usefixtures("graders")
def test_its_summary_is_one_line_of_json_on_request(heldout: Heldout) -> None:
    found = heldout("rescore", "six", "--scorer", "graders:lenient", "--name", "mine", "--json")
    assert json.loads(found.out)["mean"] == 1.0
    parent = RunDir(find_run("mine")).read_info().config["parent"]
    assert parent["run"] == f"six/{START}"


@pytest.mark.usefixtures("graders")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["six"], 2, "Missing option '--scorer'"),
        (["six", "--scorer", "graders"], 2, "--scorer must be module:function or file.py:function"),
        (["six", "--scorer", "graders:nothing"], 2, "graders has no function 'nothing'"),
        (["six", "--scorer", "gradrs:lenient"], 2, "there is no module 'gradrs' here"),
        (["six", "--scorer", "gradrs.py:lenient"], 2, "gradrs.py does not exist"),
        (["six", "--scorer", "graders:broken"], 4, "`heldout rescore` score the saved answers"),
        (["six", "--scorer", "heldout.scoring:grade_number"], 2, "Rubric(grade_number) makes it"),
        (["six", "--scorer", "graders:lenient", "--name", "../x"], 2, "becomes a directory"),
    ],
)
def test_what_is_wrong_is_said(
    heldout: Heldout, arguments: list[str], code: int, said: str
) -> None:
    found = heldout("rescore", *arguments)
    assert found.code == code
    assert said in found.err


@pytest.mark.integration
@pytest.mark.usefixtures("graders")
def test_one_that_was_stopped_goes_on(heldout: Heldout) -> None:
    command = command_of("rescore", "six", "--scorer", "graders:waiting", "--max-concurrent", "1")
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    wait_for(lambda: lines_of_journal("six-rescored") == 4, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"continue with --resume" in err
    Path("go").touch()
    done = heldout("rescore", "six", "--scorer", "graders:waiting", "--resume")
    assert done.code == 0, done.err
    assert "6 items: 6 scored" in done.out
