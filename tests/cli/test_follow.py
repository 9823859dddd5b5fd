"""`heldout curve follow`: what is typed, what is printed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Heldout
from tests.training.checkpoints import saved

EVAL = """
from heldout import EvalConfig, Sampling
from tests.training.checkpoints.saved import SAMPLES, score_fn

config = EvalConfig(sampling=Sampling(max_tokens=3))

def load_dataset():
    return SAMPLES
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("quiz.py").write_text(EVAL)
    saved.save(Path("run/checkpoint-10"), 1)
    saved.save(Path("run/checkpoint-20"), 2)
    return Path("run")


def test_follow_prints_a_line_for_each_point_and_continues(
    folder: Path, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.training.checkpoints.following.OLD_SECONDS", -1.0)
    command = ("curve", "follow", "run", "--eval", "quiz.py", "--once")
    outcome = heldout(*command, "-n", "4")
    assert outcome.code == 0, outcome.err
    first, second, status = outcome.out.splitlines()
    assert first.startswith("step 10  reward ")
    assert second.startswith("step 20  reward ")
    assert "n 4" in second
    assert status.startswith("Finished")
    assert outcome.err == (
        "Following run, 2 checkpoints there now. The curve is in outputs/evals/quiz-run.\n"
    )
    saved.save(folder / "checkpoint-30", 3)
    [line] = heldout(*command, "-n", "4", "--json").out.splitlines()
    assert json.loads(line)["step"] == 30
    refused = heldout(*command)
    assert (refused.code, "n was 4, is now 6" in refused.err) == (2, True)
    shown = heldout("show", "quiz-run@30")
    assert "model: checkpoint-30" in shown.out


def test_follow_that_could_evaluate_no_new_checkpoint_says_so_in_its_exit_code(
    folder: Path, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.training.checkpoints.following.OLD_SECONDS", -1.0)
    command = ("curve", "follow", "run", "--eval", "quiz.py", "--once")
    for step in (10, 20):
        (folder / f"checkpoint-{step}/config.json").write_text('{"model_type": "unheard-of"}')
    outcome = heldout(*command)
    assert outcome.code == 4
    assert "none of 2 new checkpoints could be evaluated: " in outcome.err
    assert "unheard-of" in outcome.err
    assert outcome.out.startswith("step 10  seconds ")
    saved.save(folder / "checkpoint-30", 3)
    assert heldout(*command).code == 0


def test_follow_once_of_checkpoints_that_are_not_whole_is_no_success(
    folder: Path, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.training.checkpoints.following.OLD_SECONDS", -1.0)
    for step in (10, 20):
        (folder / f"checkpoint-{step}/model.safetensors").unlink()
    outcome = heldout("curve", "follow", "run", "--eval", "quiz.py", "--once")
    assert (outcome.code, outcome.out) == (4, "No checkpoint was evaluated.\n")
    assert "none of 2 checkpoints could be evaluated; see above" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--once"], "there is no folder nowhere, and --once does not wait for it"),
        (["quiz.py"], "is not a folder"),
        (["run", "--model", "hf:run"], "would be the same at each step"),
        (["run", "--pattern", "ckpt"], "a pattern has {step}"),
        (["run", "--workers", "2"], "go with --on"),
        (["run", "--serve", "x {path} {port}", "--on", "local"], "serve goes without executor"),
    ],
)
def test_follow_refuses(arguments: list[str], message: str, heldout: Heldout) -> None:
    outcome = heldout("curve", "follow", *arguments, "--eval", "quiz.py")
    assert outcome.code == 2
    assert message in outcome.err
    assert not Path("outputs").exists()


def test_follow_names_what_is_there_where_no_name_matches(heldout: Heldout) -> None:
    Path("odd/epoch-1").mkdir(parents=True)
    outcome = heldout("curve", "follow", "odd", "--eval", "quiz.py", "--once")
    assert (outcome.code, outcome.out) == (0, "No checkpoint was evaluated.\n")
    assert "there is epoch-1; --pattern" in outcome.err
