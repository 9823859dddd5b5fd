"""Loggers that need no package: a function, standard output."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest

from heldout.errors import InvalidInput
from heldout.training.loggers import CallableLogger, StdoutLogger
from tests.training.loggers.scenario import play, skip_of


def test_a_function_gets_each_result_at_its_step() -> None:
    got: list[tuple[str, int, dict[str, Any]]] = []
    play(lambda step: None, CallableLogger(lambda *result: got.append(result)))
    assert [step for _, step, _ in got] == [30, 10, 20, 53]
    assert got[0] == ("rl_eval", 30, {"reward": 0.3, "n": 24, "seconds": 1.5, "lag_steps": 7})
    assert got[2][2] == {"skipped": 1, "seconds": 0.5, "reason": "no model"}


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="fn must be a function"):
        CallableLogger(3)


# --- Standard output ---


def test_a_line_says_the_numbers_that_matter_first() -> None:
    stream = io.StringIO()
    StdoutLogger(stream).log(
        "rl_eval", 30, {"eval_seconds": 1.5, "eval_reward": 0.75, "eval_n": 24}
    )
    assert stream.getvalue() == "rl_eval step 30: reward 0.75, n 24, seconds 1.5\n"


def test_a_skip_is_one_line_with_its_reason() -> None:
    stream = io.StringIO()
    StdoutLogger(stream).log("rl_eval", 30, skip_of(30))
    assert stream.getvalue() == "rl_eval step 30: SKIPPED, seconds 0.5, reason: no model\n"


def test_a_reason_cannot_write_lines_or_obeyed_codes_of_its_own() -> None:
    stream = io.StringIO()
    reason = "bad\nrl_eval step 31: reward 1\x1b[2J\u202egpj\u2028é"
    StdoutLogger(stream).log("rl_eval", 30, skip_of(30, reason))
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert r"bad\nrl_eval step 31: reward 1\x1b[2J\u202egpj\u2028é" in text


def test_standard_output_is_looked_up_when_there_is_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    StdoutLogger().log("e", 1, {"eval_reward": 1.0})
    assert capsys.readouterr().out == "e step 1: reward 1\n"


def test_the_package_itself_loads_no_tracker() -> None:
    code = (
        "import sys, heldout.training.loggers as s; s.Loggers, s.StdoutLogger, s.WandbLogger, "
        "s.MlflowLogger, s.TensorboardLogger, s.TrackioLogger; "
        "print({'wandb','mlflow','trackio','tensorboard','numpy'} & sys.modules.keys())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
