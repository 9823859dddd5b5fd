"""heldout env: one line of JSON about exactly the episodes that were asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from heldout.cli.main import run_cli

POLICY = """
import numpy as np

def push(observations):
    return (observations @ np.array([0.0, 0.2, 1.0, 0.1]) > 0).astype(int)

def held_long(info, terminated, truncated, ret, steps):
    return steps >= 12

def broken(observations):
    raise ValueError("no idea")

NOT_A_FUNCTION = 3
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policy.py").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = run_cli(["env", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out.startswith("{") else {}, err


CARTPOLE = ("CartPole-v1", "--policy", "my_policy:push", "--episodes", "20")


def test_it_prints_one_line_of_json_with_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["env", *CARTPOLE]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert list(found)[:6] == [
        "env", "policy", "episodes", "successes", "success_rate", "success_rate_ci_low",
    ]  # fmt: skip
    assert (found["env"], found["episodes"], found["seeded"]) == ("CartPole-v1", 20, True)


def test_the_number_of_environments_changes_nothing_but_its_own_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, one, _ = run(capsys, *CARTPOLE, "--seed", "3")
    _, many, _ = run(capsys, *CARTPOLE, "--seed", "3", "--num-envs", "8")
    assert {**one, "num_envs": 8} == many
    _, other, _ = run(capsys, *CARTPOLE, "--seed", "4")
    assert other["mean_return"] != one["mean_return"]


def test_what_success_is_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, by_end, _ = run(capsys, *CARTPOLE)
    _, by_length, _ = run(capsys, *CARTPOLE, "--success", "my_policy:held_long")
    assert (by_end["success_rate"], by_end["success_is"]) == (1.0, "terminated")
    assert 0 < by_length["success_rate"] < 1
    assert by_length["success_is"] == "success function"


def test_a_saved_run_is_shown_and_sliced_like_any_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, found, _ = run(
        capsys, *CARTPOLE, "--success", "my_policy:held_long", "--save", "runs/cartpole"
    )
    assert code == 0
    assert run_cli(["show", "runs/cartpole", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["summary"]["mean"] == found["success_rate"]
    assert shown["summary"]["metric_return"] == found["mean_return"]
    assert run_cli(["slice", "runs/cartpole", "--by", "success"]) == 0
    assert "True" in capsys.readouterr().out
    code, _, said = run(capsys, *CARTPOLE, "--save", "runs/cartpole")
    assert code == 1
    assert "already holds a run" in said


def test_every_step_can_be_written_down(capsys: pytest.CaptureFixture[str]) -> None:
    code, found, _ = run(capsys, *CARTPOLE, "--num-envs", "4", "--dump-trajectory", "t.jsonl")
    assert code == 0
    lines = [json.loads(line) for line in Path("t.jsonl").read_text().splitlines()]
    assert len(lines) == found["steps"]
    assert list(lines[0]) == ["episode", "env", "t", "action", "reward", "done", "trunc", "dist"]
    assert sum(line["done"] for line in lines) == 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("NoSuch-v9", "--policy", "my_policy:push"), "there is no environment 'NoSuch-v9'"),
        (("CartPole-v1", "--policy", "nowhere:push"), "there is no module 'nowhere'"),
        (("CartPole-v1", "--policy", "my_policy"), "--policy is module:function"),
        (("CartPole-v1", "--policy", "my_policy:pull"), "has no function 'pull'"),
        (("CartPole-v1", "--policy", "my_policy:NOT_A_FUNCTION"), "has no function"),
        ((*CARTPOLE, "--episodes", "0"), "episodes is a whole number of at least 1"),
        ((*CARTPOLE, "--num-envs", "0"), "num_envs is a whole number of at least 1"),
        ((*CARTPOLE, "--vec-normalize", "x.pkl"), "--vec-normalize is for policies of"),
        ((*CARTPOLE, "--dump-trajectory", "t.csv"), ".jsonl"),
        (("CartPole-v1", "--policy", "sb3:nothing.zip"), "nothing.zip"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 1
    assert said in err


def test_a_missing_package_is_code_2_or_a_skip_where_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    code, found, err = run(capsys, *CARTPOLE)
    assert (code, found) == (2, {})
    assert "pip install 'heldout[gymnasium]'" in err
    code, found, _ = run(capsys, *CARTPOLE, "--skip-missing")
    assert code == 0
    assert list(found) == ["skipped"]
    assert "gymnasium" in found["skipped"]


def test_a_missing_device_is_code_2_or_a_skip(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    assert not torch.cuda.is_available(), "this test is for machines without CUDA"
    model = ("CartPole-v1", "--policy", "sb3:m.zip", "--device", "cuda")
    code, _, err = run(capsys, *model)
    assert code == 2
    assert "there is no CUDA device here" in err
    code, found, _ = run(capsys, *model, "--skip-missing")
    assert (code, list(found)) == (0, ["skipped"])


def test_a_saved_model_of_stable_baselines3_is_a_policy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    import gymnasium
    from stable_baselines3 import A2C, DQN, PPO

    for kind in (PPO, A2C, DQN):
        model = kind("MlpPolicy", gymnasium.make("CartPole-v1"), seed=0, device="cpu")
        model.save(f"{kind.__name__}.zip")
        policy = f"sb3:{kind.__name__}.zip"
        code, one, err = run(capsys, "CartPole-v1", "--policy", policy, "--episodes", "6")
        assert code == 0, err
        named = f"sb3:{kind.__name__.lower()}:{kind.__name__}.zip"
        _, same, _ = run(
            capsys, "CartPole-v1", "--policy", named, "--episodes", "6", "--num-envs", "3"
        )
        assert {**one, "num_envs": 3, "policy": named} == same


def test_a_policy_that_fails_is_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    code, found, err = run(capsys, "CartPole-v1", "--policy", "my_policy:broken")
    assert (code, found) == (2, {})
    assert "ValueError: no idea (my_policy.py, line 11)" in err
