"""The examples do what they say."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from heldout import Message, Sample, Trajectory
from heldout.cli.main import run_cli
from heldout.examples import capitals

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)  # as for a script
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


def test_the_capitals_are_what_the_readme_says() -> None:
    samples = capitals.load_dataset()
    assert len({s.id for s in samples}) == len(samples) == 100
    levels = Counter(s.metadata["difficulty"] for s in samples)
    assert levels == {"easy": 40, "medium": 35, "hard": 25}
    for sample in samples:
        assert capitals.fold(sample.ground_truth) not in capitals.fold(sample.input["question"])


@pytest.mark.parametrize(
    ("capital", "answer", "right"),
    [
        ("Paris", "It is Paris.", True),
        ("Bogotá", "The capital of Colombia is Bogota.", True),
        ("N'Djamena", "N\N{RIGHT SINGLE QUOTATION MARK}Djamena", True),
        ("Canberra", "Sydney", False),
        ("Canberra", "", False),
    ],
)
def test_an_answer_is_right_that_names_the_capital(capital: str, answer: str, right: bool) -> None:
    trajectory = Trajectory((Message("assistant", answer),))
    assert capitals.score_fn(trajectory, Sample("q", {"question": "?"}, capital)) is right


def test_an_eval_is_run_by_the_name_of_its_module(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/evals.py").write_text(
        "from heldout.examples.capitals import load_dataset, score_fn\n"
        "from heldout import EvalConfig\n"
        "config = EvalConfig(endpoint=lambda messages: 'Paris', progress=False)\n"
    )
    assert run_cli(["run", "mine.evals"]) == 0
    assert "0.010" in capsys.readouterr().out
    assert (tmp_path / "outputs/evals/evals").is_dir()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "capitals",
            "capitals does not exist; name a file, or a module: heldout.examples.capitals",
        ),
        ("no.such", "there is no file no.such, nor a module of that name"),
    ],
)
def test_a_name_that_is_neither_file_nor_module_says_so(
    name: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_cli(["run", name]) != 0
    assert capsys.readouterr().err == f"Error: {message}\n"


@pytest.mark.heavy
@pytest.mark.filterwarnings("default")  # trl's and torch's own
def test_training_with_a_tool_in_the_loop_raises_the_held_out_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    evals = load("train_calculator_trl.py")["main"](["--steps", "14", "--every", "7", "--out", out])
    first, _, last = evals.points
    assert (first.n, last.n) == (100, 100)
    assert first.ci[1] < last.ci[0]
    assert last.verdict["kind"] == "improving"
    assert "[<|im_start|> tool" in capsys.readouterr().out


def test_grpo_is_watched_on_questions_that_are_not_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny_model import save_tiny_model

    example = load("grpo_reasoning_gym.py")
    train, held_out = example["make_sets"](8, 4)
    assert not {s.id for s in train.samples} & {s.id for s in held_out.samples}
    model, out = save_tiny_model(tmp_path / "model"), str(tmp_path / "run")
    sizes = ("--steps=1", "--every=1", "--samples=4", "--train-samples=8", "--batch=8")
    evals = example["main"]([*sizes, "--layers=1", "--model", model, "--out", out])
    assert [(point.step, point.n) for point in evals.points] == [(0, 4), (1, 4)]
    assert {"metric_score", "metric_exact"} <= evals.points[0].summary.keys()
    printed = capsys.readouterr().out
    assert "reward in training" in printed
    assert "inconclusive" in printed  # four samples of an untrained model
    assert "would score" in printed
