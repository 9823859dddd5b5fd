"""heldout agent: one line of JSON about exactly the episodes that were asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.envs import registration

from heldout.cli.main import run_cli
from heldout.cli.outputs import build_schema

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
    # What a test registers is of that test alone.
    monkeypatch.setattr(registration, "registry", {**registration.registry})


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any], str]:
    code = run_cli(["agent", *arguments])
    out, err = capsys.readouterr()
    found = json.loads(out) if out.startswith("{") else {}
    if "mean_return" not in found and "error" in found:
        assert code in (2, 4)
        found = {}
    return code, found, err


CARTPOLE = ("CartPole-v1", "--policy", "my_policy:push", "--episodes", "20")


def test_it_prints_one_line_of_json_with_stable_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["agent", *CARTPOLE]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert list(found)[:8] == [
        "decision", "sentence",
        "env", "policy", "episodes", "successes", "success_rate", "success_rate_ci_low",
    ]  # fmt: skip
    assert (found["env"], found["episodes"], found["seeded"]) == ("CartPole-v1", 20, True)


RANDOM_POLICY = """
import random
import numpy as np

WEIGHTS = np.random.normal(size=4) + random.gauss(0, 1)

def noisy(observations):
    noise = np.random.normal(size=len(observations)) + random.gauss(0, 1)
    return (observations @ WEIGHTS + noise > 0).astype(int)
"""


def test_a_policy_that_draws_from_global_random_state_repeats_exactly(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("random_policy.py").write_text(RANDOM_POLICY)
    noisy = ("CartPole-v1", "--policy", "random_policy:noisy", "--episodes", "20")

    def play(*options: str) -> dict[str, Any]:
        monkeypatch.delitem(sys.modules, "random_policy", raising=False)
        return run(capsys, *noisy, *options)[1]

    first = play()
    assert play() == first
    assert play("--seed", "1")["mean_return"] != first["mean_return"]


def test_a_saved_run_is_shown_and_sliced_like_any_other(capsys: pytest.CaptureFixture[str]) -> None:
    code, found, _ = run(
        capsys, *CARTPOLE, "--success", "my_policy:held_long", "--save", "runs/cartpole"
    )
    assert code == 0
    assert run_cli(["show", "runs/cartpole", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["summary"]["mean"] == found["success_rate"]
    assert shown["summary"]["metric_return"] == found["mean_return"]
    assert run_cli(["show", "runs/cartpole", "--by", "success"]) == 0
    assert "True" in capsys.readouterr().out
    code, _, said = run(capsys, *CARTPOLE, "--save", "runs/cartpole")
    assert code == 2
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
        (("NoSuch-v9", "--policy", "my_policy:push"), "Environment `NoSuch` doesn't exist"),
        (("CartPole-v9", "--policy", "my_policy:push"), "[ `v0`, `v1` ]"),
        (("CartPole-v1", "--policy", "nowhere:push"), "there is no module 'nowhere'"),
        (("CartPole-v1", "--policy", "my_policy"), "--policy must be module:function"),
        (("CartPole-v1", "--policy", "my_policy:pull"), "has no function 'pull'"),
        (("CartPole-v1", "--policy", "my_policy:NOT_A_FUNCTION"), "has no function"),
        ((*CARTPOLE, "--episodes", "0"), "episodes must be a whole number of at least 1"),
        ((*CARTPOLE, "--num-envs", "0"), "num_envs must be a whole number of at least 1"),
        ((*CARTPOLE, "--vec-normalize", "x.pkl"), "--vec-normalize is for policies of"),
        ((*CARTPOLE, "--device", "cpu"), "--device is for policies of"),
        ((*CARTPOLE, "--dump-trajectory", "t.csv"), ".jsonl"),
        (("CartPole-v1", "--policy", "sb3:nothing.zip"), "nothing.zip"),
        (("nowhere:Q-v0", "--policy", "my_policy:push", "--skip-missing"), "no module 'nowhere'"),
        ((*CARTPOLE, "--env-arg", "wind=1"), "gymnasium.make('CartPole-v1', wind=1) has to work"),
        ((*CARTPOLE, "--env-arg", "wind"), "--env-arg takes KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run_cli(["agent", *arguments]) == 2
    out, err = capsys.readouterr()
    assert said in err
    error = json.loads(out)["error"]
    assert (error["env"], error["seed"]) == (arguments[0], 0)
    assert (error["episode"], error["episodes_in_flight"]) == (None, [])


def test_a_missing_package_is_code_2_or_a_skip_where_that_was_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    code, found, err = run(capsys, *CARTPOLE)
    assert (code, found) == (4, {})
    assert "pip install 'gymnasium>=1.1'" in err
    code, found, _ = run(capsys, *CARTPOLE, "--skip-missing")
    assert code == 0
    assert list(found) == ["decision", "sentence", "skipped"]
    assert (found["decision"], found["sentence"]) == ("skipped", found["skipped"])
    assert "gymnasium" in found["skipped"]


@pytest.mark.parametrize("device", ["cuda:1", "mps"])
def test_a_missing_device_is_code_2_or_a_skip(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    model = ("CartPole-v1", "--policy", "sb3:m.zip", "--device", device)
    code, _, err = run(capsys, *model)
    assert code == 4
    assert f"there is no {device[:4].strip(':').upper()} device here" in err
    code, found, _ = run(capsys, *model, "--skip-missing")
    assert (code, list(found)) == (0, ["decision", "sentence", "skipped"])


def test_a_saved_model_of_stable_baselines3_is_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    from stable_baselines3 import A2C

    A2C("MlpPolicy", gymnasium.make("CartPole-v1"), seed=0, device="cpu").save("m.zip")
    episodes = ("--episodes", "6")
    code, one, err = run(capsys, "CartPole-v1", "--policy", "sb3:m.zip", *episodes)
    assert code == 0, err
    named = ("CartPole-v1", "--policy", "sb3:a2c:m.zip", *episodes, "--num-envs", "3")
    assert {**one, "num_envs": 3, "policy": "sb3:a2c:m.zip"} == run(capsys, *named)[1]


def test_a_policy_that_fails_is_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    broken = ("CartPole-v1", "--policy", "my_policy:broken")
    code, found, err = run(capsys, *broken, "--save", "runs/x")
    assert (code, found) == (4, {})
    assert not Path("runs").exists()
    assert "ValueError: no idea (my_policy.py, line 11)" in err


# --- Environments and policies of the user's own ------------------------------------------------

ENVS = """
import gymnasium
import numpy as np

class Quick(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        ...  # here

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, True, False, {}

gymnasium.register("Q-v0", Quick)

def act(observations):
    ...  # there
    return np.zeros(len(observations), int)

def yes(info, terminated, truncated, ret, steps):
    return True
"""
QUICK = ("envs:Q-v0", "--policy", "envs:act", "--episodes", "3")


def write_envs(*, top: str = "", here: str = "...", there: str = "...") -> None:
    text = ENVS.replace("...  # here", here).replace("...  # there", there)
    Path("envs.py").write_text(f"{top}\n{text}")


@pytest.mark.parametrize(
    "arguments",
    [
        ("envs:Q-v0", "--policy", "my_policy:zeros"),
        ("Q-v0", "--policy", "envs:act"),
        ("Q-v0", "--policy", "my_policy:zeros", "--success", "envs:yes"),
    ],
)
def test_an_environment_is_found_in_a_module_or_registered_by_that_of_a_function(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    write_envs()
    with Path("my_policy.py").open("a") as file:
        file.write("def zeros(observations):\n    return np.zeros(len(observations), int)\n")
    code, found, err = run(capsys, *arguments, "--episodes", "3")
    assert (code, found.get("mean_return")) == (0, 1.0), err


MAKERS = """
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envs import Quick

def make_toy(reward=1.0):
    env = Quick()
    env.step = lambda action: (np.zeros(1, np.float32), reward, True, False, {})
    return env

def make_vector(num=2):
    return SyncVectorEnv([Quick] * num, autoreset_mode=AutoresetMode.SAME_STEP)

class Batch:
    num_envs = 4

    def reset(self, seed=None):
        return np.zeros((4, 1)), {}

    def step(self, actions):
        return np.zeros((4, 1)), np.ones(4), np.ones(4, bool), np.zeros(4, bool), {}

SHARED = Quick()
SHARED.close = lambda: open("closed", "w").close()

def make_shared():
    return SHARED

def make_nothing():
    import no_such_package
"""


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("makers", "envs", "plain"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    write_envs()
    Path("makers.py").write_text(MAKERS)
    Path("plain.py").write_text("act = lambda observations: [0] * len(observations)")


@pytest.mark.usefixtures("makers")
@pytest.mark.parametrize(
    ("env", "mean_return", "num_envs"),
    [
        (("makers:make_toy",), 1.0, 1),
        (("makers.py:make_toy", "--env-arg", "reward=3"), 3.0, 1),
        (("makers:make_toy", "--num-envs", "3"), 1.0, 3),
        (("makers:make_vector", "--env-arg", "num=3"), 1.0, 3),
        (("makers:Batch",), 1.0, 4),
        (("envs:Quick",), 1.0, 1),
        (("envs.py:Q-v0",), 1.0, 1),
    ],
)
def test_a_function_that_makes_an_environment_is_evaluated_in(
    capsys: pytest.CaptureFixture[str], env: tuple[str, ...], mean_return: float, num_envs: int
) -> None:
    code, found, err = run(capsys, *env, "--policy", "plain:act", "--episodes", "6")
    assert code == 0, err
    assert (found["env"], found["episodes"], found["num_envs"]) == (env[0], 6, num_envs)
    assert (found["mean_return"], found["success_is"]) == (mean_return, None)


@pytest.mark.usefixtures("makers")
@pytest.mark.parametrize(
    ("env", "code", "said"),
    [
        (("makers:SHARED",), 2, "makers:SHARED is a Quick, and ENV names a function that makes"),
        (("makers:make_shared",), 2, "an environment that was there before"),
        (("makers:make_toi",), 2, "makers has no function 'make_toi', so gymnasium.make("),
        (("makers.py:make_toi",), 2, "makers.py has no function 'make_toi', so gymnasium.make("),
        (("makers:make_toy", "--env-arg", "size=2"), 2, "makers:make_toy(size=2) has to work: "),
        (("makers:make_nothing",), 4, "needs no_such_package, which is missing"),
        (("makers:",), 2, "ENV must be module:function or file.py:function, got 'makers:'"),
        (("nowhere.py:make_toy",), 2, "nowhere.py does not exist"),
    ],
)
def test_a_function_that_makes_no_new_environment_is_refused_and_nothing_is_closed(
    capsys: pytest.CaptureFixture[str], env: tuple[str, ...], code: int, said: str
) -> None:
    found, _, err = run(capsys, *env, "--policy", "plain:act", "--episodes", "6")
    assert found == code
    assert said in err
    assert not Path("closed").exists()


@pytest.mark.usefixtures("makers")
@pytest.mark.parametrize(
    ("success", "rate", "success_is"),
    [("terminated", 1.0, "terminated"), ("is_success", None, None)],
)
def test_success_may_be_a_word(
    capsys: pytest.CaptureFixture[str], success: str, rate: float | None, success_is: str | None
) -> None:
    arguments = ("makers:make_toy", "--policy", "plain:act", "--episodes", "6")
    code, found, err = run(capsys, *arguments, "--success", success)
    assert code == 0, err
    assert (found["success_rate"], found["success_is"]) == (rate, success_is)
    code, _, err = run(capsys, *arguments, "--success", "win")
    assert code == 2
    assert "--success must be terminated, is_success or module:function, got 'win'" in err


BROKEN = "from numpy import nothere"
OTHERWISE = ("--policy", "my_policy:push", "--skip-missing")


@pytest.mark.parametrize(
    ("top", "inside", "arguments"),
    [
        (BROKEN, "...", ("envs:Q-v0", *OTHERWISE)),
        ("", BROKEN, ("envs:Q-v0", *OTHERWISE)),
        (BROKEN, "...", ("CartPole-v1", "--policy", "envs:act", "--skip-missing")),
    ],
)
def test_a_broken_import_is_no_missing_package(
    capsys: pytest.CaptureFixture[str], top: str, inside: str, arguments: tuple[str, ...]
) -> None:
    write_envs(top=top, here=inside)
    code, found, err = run(capsys, *arguments)
    assert (code, found) == (2, {})
    assert "cannot import name 'nothere' from 'numpy'" in err
    assert "(envs.py, line " in err
    assert "missing" not in err


@pytest.mark.parametrize(
    "arguments", [("envs:Q-v0", "--policy", "my_policy:push"), (*CARTPOLE, "--success", "envs:yes")]
)
def test_what_a_module_needs_can_be_missing(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    write_envs(top="import no_such_package")
    code, found, err = run(capsys, *arguments)
    assert (code, found) == (4, {})
    assert "needs no_such_package, which is missing" in err
    code, found, _ = run(capsys, *arguments, "--skip-missing", "--save", "runs/x")
    assert code == 0
    assert "needs no_such_package, which is missing" in found["skipped"]
    assert not Path("runs").exists()


def test_what_policies_and_environments_print_goes_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_envs(top="print('top')", here="print('here')", there="print('there')")
    assert run_cli(["agent", *QUICK]) == 0
    out, err = capsys.readouterr()
    [line] = out.splitlines()
    assert json.loads(line)["episodes"] == 3
    assert {"top", "here", "there"} <= set(err.splitlines())


@pytest.mark.parametrize("place", ["top", "here", "there"])
def test_a_policy_or_environment_that_exits_is_not_a_number(
    capsys: pytest.CaptureFixture[str], place: str
) -> None:
    write_envs(**{place: "import sys; sys.exit(0)"})
    code, found, err = run(capsys, *QUICK, "--skip-missing")
    assert (code, found) == (4, {})
    assert "SystemExit: 0 (envs.py, line " in err


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("raise ValueError('no\\nsize')", "ValueError: no size (envs.py, line 11)"),
        ("raise gymnasium.error.InvalidBound('no')", "InvalidBound: no (envs.py, line 11)"),
    ],
)
def test_an_environment_that_cannot_be_made_is_said_on_one_line(
    capsys: pytest.CaptureFixture[str], raised: str, said: str
) -> None:
    write_envs(here=raised)
    code, found, err = run(capsys, *QUICK)
    assert (code, found) == (2, {})
    [line] = err.splitlines()
    assert line.startswith("Error: gymnasium.make('envs:Q-v0') has to work (--env-arg KEY")
    assert said in line
    assert "(envs.py, line 11)" in line


# --- Saving -------------------------------------------------------------------------------------

PLAYED = "open('played', 'w').close()"


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_played(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_envs(there=PLAYED)
    Path("file").touch()
    for place in ("file", "file/run"):
        code, found, err = run(capsys, *QUICK, "--save", place)
        assert (code, found) == (2, {})
        assert "cannot write" in err
        assert "--save to another path" in err

    def refused(dir: Path) -> None:
        raise PermissionError(13, "Permission denied", str(dir))

    # Root, whom tests may run as, is refused nowhere.
    monkeypatch.setattr("heldout.cli.agent.TemporaryFile", refused)
    code, found, err = run(capsys, *QUICK, "--save", "runs/x")
    assert (code, found) == (2, {})
    assert "Permission denied" in err
    assert not Path("runs").exists()
    assert not Path("played").exists()


def test_numbers_that_cannot_be_saved_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    taken = "os.makedirs('runs/x', exist_ok=True); open('runs/x/run.json', 'w').close()"
    write_envs(there=f"import os; {taken}")
    code, found, err = run(capsys, *QUICK, "--save", "runs/x")
    assert (code, found.get("mean_return")) == (4, 1.0)
    assert "already holds a run" in err
    assert "the numbers are printed, but not saved" in err


def test_a_policy_that_goes_elsewhere_is_saved_where_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = Path.cwd()
    Path("elsewhere").mkdir()
    write_envs(there=f"import os; os.chdir({str(home / 'elsewhere')!r})")
    code, _, err = run(capsys, *QUICK, "--save", "runs/x")
    assert code == 0, err
    assert (home / "runs/x/run.json").exists()


def test_a_reader_that_is_gone_does_not_keep_a_run_from_being_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(value: object, output: str) -> None:
        raise BrokenPipeError

    # Taken by run_cli for standard output closed, which it then points elsewhere.
    monkeypatch.setattr("heldout.cli.agent.print_json", gone)
    monkeypatch.setattr("heldout.cli.main.os.dup2", lambda *_: None)
    write_envs()
    assert run_cli(["agent", *QUICK, "--save", "runs/x"]) == 0
    assert Path("runs/x/run.json").exists()


# --- Arguments and devices ----------------------------------------------------------------------


def test_arguments_of_the_environment_come_from_the_command_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("--env-arg", "sutton_barto_reward=true", "--env-arg", "render_mode=null")
    code, found, err = run(capsys, *CARTPOLE, *arguments)
    assert code == 0, err
    assert found["env_args"] == {"sutton_barto_reward": True, "render_mode": None}
    assert found["mean_return"] == -1.0


# --- Errors as JSON -----------------------------------------------------------------------------

FAILS_AT = """
import gymnasium
import numpy as np

class Fails(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    resets = steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Fails.resets += 1
        assert "reset" not in WHERE or Fails.resets < 3
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Fails.steps += 1
        assert "step" not in WHERE or Fails.steps < 6
        return np.zeros(1, np.float32), 1.0, Fails.steps % 2 == 0, False, {}

gymnasium.register("F-v0", Fails)
acted = judged = 0

def act(observations):
    global acted
    acted += 1
    assert "policy" not in WHERE or acted < 6
    if "exit" in WHERE and acted == 6:
        raise SystemExit(0)
    return np.zeros(len(observations), int)

def judge(info, terminated, truncated, ret, steps):
    global judged
    judged += 1
    assert "success" not in WHERE or judged < 3
    return True
"""


@pytest.mark.parametrize("where", ["reset", "step", "policy", "success", "exit"])
def test_an_error_in_the_third_episode_says_where_it_was(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.delitem(sys.modules, "fails", raising=False)
    Path("fails.py").write_text(f"WHERE = {where!r}\n{FAILS_AT}")
    given = ("fails:F-v0", "--policy", "fails:act", "--success", "fails:judge")
    assert run_cli(["agent", *given, "--episodes", "9", "--seed", "7", "--json"]) == 4
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error.keys() == build_schema("agent-error")["$defs"]["PlaceOutput"]["properties"].keys()
    about = {key: error[key] for key in ("env", "policy", "seed", "episode")}
    assert about == {"env": "fails:F-v0", "policy": "fails:act", "seed": 7, "episode": 2}
    assert "in episode 2" in err


def test_the_error_of_a_failed_command_has_all_settings_that_run_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fails", raising=False)
    Path("fails.py").write_text(f"WHERE = 'policy'\n{FAILS_AT}".replace("% 2 == 0", "in (3, 4)"))
    options = {
        **{"env-arg": "disable_env_checker=true", "episodes": "9", "num-envs": "2", "seed": "7"},
        **{"max-steps": "50", "success": "terminated", "policy": "fails:act"},
    }
    command = ["agent", "fails:F-v0", *(f"--{k}={v}" for k, v in options.items())]
    assert run_cli(command) == 4
    error = json.loads(capsys.readouterr().out)["error"]
    assert {key: error[key] for key in error if key not in ("kind", "message", "hint")} == {
        **{"env": "fails:F-v0", "policy": "fails:act", "seed": 7, "success": "terminated"},
        **{"env_args": {"disable_env_checker": True}, "episodes": 9, "num_envs": 2},
        **{"max_steps": 50, "vec_normalize": None, "device": "auto"},
        **{"episode": None, "episodes_in_flight": [2, 3]},
    }


@pytest.mark.parametrize(("where", "episode"), [("policy", None), ("step", 1)])
def test_an_error_of_a_whole_batch_is_of_no_single_episode(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    episode: int | None,
) -> None:
    monkeypatch.delitem(sys.modules, "fails", raising=False)
    Path("fails.py").write_text(f"WHERE = {where!r}\n{FAILS_AT}".replace("% 2 == 0", "< 0"))
    given = ("fails:F-v0", "--policy", "fails:act", "--num-envs", "4")
    assert run_cli(["agent", *given]) == 4
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["episode"], error["episodes_in_flight"]) == (episode, [0, 1, 2, 3])
