"""`heldout check eval FILE`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Heldout
from tests.cli.test_schema import check

QUIZ = """
from heldout import Sample

def load_dataset(upto=2):
    return [Sample(f"q{n}", {"question": f"{n} + 1?"}, str(n + 1)) for n in range(upto)]

def score_fn(trajectory, sample):
    return trajectory.answer == sample.ground_truth
"""


def test_an_eval_whose_references_pass_is_fit(heldout: Heldout) -> None:
    Path("quiz.py").write_text(QUIZ)
    outcome = heldout("check", "eval", "quiz.py", "-T", "upto=3", "--json")
    assert outcome.code == 0
    check("check eval", outcome.out)
    said = json.loads(outcome.out)
    assert (said["decision"], said["n_passed"]) == ("fit", 3)


def test_a_reference_that_fails_exits_with_1_and_is_listed(heldout: Heldout) -> None:
    Path("quiz.py").write_text(QUIZ + "\ndef reference(sample):\n    return 'seven'\n")
    outcome = heldout("check", "eval", "quiz.py")
    assert outcome.code == 1
    assert "q1" in outcome.out
    assert "'seven' gets 0" in outcome.out
    assert "0 of 2 references pass" in outcome.out


def test_warnings_exit_with_1_only_if_asked(heldout: Heldout) -> None:
    Path("quiz.py").write_text(QUIZ)
    Path("train.jsonl").write_text('{"prompt": "1 + 1?"}\n')
    asked = ("check", "eval", "quiz.py", "--train", "train.jsonl")
    outcome = heldout(*asked)
    assert outcome.code == 0
    assert "the prompt is in the training file" in outcome.out
    assert heldout(*asked, "--strict").code == 1
