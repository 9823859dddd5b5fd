"""The examples do what they say."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from heldout import Message, Sample, Trajectory

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def test_training_on_scores_makes_the_policy_better_on_held_out_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = load("train_with_scores.py")["main"](output_dir=str(tmp_path))
    assert before.summary["ci_high"] < after.summary["ci_low"]
    assert after.summary["metric_off_by"] < before.summary["metric_off_by"]
    printed = capsys.readouterr().out
    assert "reward" in printed
    assert "correct" in printed
    assert "off_by" in printed


def test_the_questions_are_what_the_readme_says() -> None:
    samples: list[Sample] = load("first_questions.py")["load_dataset"]()
    assert len(samples) == 100
    assert len({s.id for s in samples}) == 100
    assert Counter(s.metadata["difficulty"] for s in samples) == {
        "easy": 45, "medium": 35, "hard": 20,
    }  # fmt: skip
    assert set(Counter(s.metadata["kind"] for s in samples)) == {
        "text", "number", "choice", "yes_no",
    }  # fmt: skip
    assert len({s.metadata["topic"] for s in samples}) == 7


@pytest.mark.parametrize(
    ("kind", "truth", "answer", "right"),
    [
        ("number", "8", "5 plus 3 is 8.", True),
        ("number", "8", "8 is not 9", False),
        ("number", "-3", "It is -3", True),
        ("number", "1000", "1,000", True),
        ("number", "8", "eight", False),
        ("choice", "C", "A or B? I say C", True),
        ("choice", "C", "c", False),
        ("yes_no", "no", "No, it is not.", True),
        ("yes_no", "no", "I do not know", False),
        ("text", "ice", "It is called Ice.", True),
        ("text", "ice", "Juice", False),
        ("text", "ice", "", False),
    ],
)
def test_the_demo_grades_each_kind_of_answer(
    kind: str, truth: str, answer: str, right: bool
) -> None:
    sample = Sample("q", {"question": "?", "accept": []}, truth, {"kind": kind})
    said = Trajectory((Message("assistant", answer),))
    score = load("first_questions.py")["score_fn"](said, sample)
    assert score["correct"] == right
    assert score.reward == right


@pytest.mark.filterwarnings("default")  # trl's and torch's own
def test_training_with_a_tool_in_the_loop_teaches_the_model_to_use_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = load("train_calculator_trl.py")["main"](output_dir=str(tmp_path))["history"]
    used = [row[key] for row in history if (key := "metric_used_tool/batch_mean") in row]
    assert used[-1] > used[0]
    assert capsys.readouterr().out


def test_grpo_is_watched_on_countries_that_are_not_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny_model import save_tiny_model

    example = load("grpo_smollm2.py")
    train, held_out = example["make_samples"]()
    assert not {s.id for s in train} & {s.id for s in held_out}
    model, out = save_tiny_model(tmp_path / "model"), str(tmp_path / "run")
    arguments = ["--steps", "2", "--every", "1", "--samples", "4", "--batch", "8", "--model"]
    evals = example["main"]([*arguments, model, "--out", out])
    assert [point.step for point in evals.points] == [0, 1, 2]
    assert all(point.n == 4 for point in evals.points)
    assert "held out" in capsys.readouterr().out
