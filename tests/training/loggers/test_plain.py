"""Loggers that need no package: a function, a file, standard output."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heldout.errors import DamagedJournal, InvalidInput, RunBusy, UnknownFormat
from heldout.training.loggers import CallableLogger, JsonlLogger, StdoutLogger, read_logged
from tests.training.loggers.scenario import fields_of, play, send, shuffled, skip_of


def test_a_function_gets_each_result_at_its_step() -> None:
    got: list[tuple[str, int, dict[str, Any]]] = []
    play(lambda step: None, CallableLogger(lambda *result: got.append(result)))
    assert [step for _, step, _ in got] == [30, 10, 20, 53]
    assert got[0] == ("rl_eval", 30, {"reward": 0.3, "n": 24, "seconds": 1.5, "lag_steps": 7})
    assert got[2][2] == {"skipped": 1, "seconds": 0.5, "reason": "no model"}


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="fn is a function"):
        CallableLogger(3)  # type: ignore[arg-type]


# --- A file ---


def test_each_line_is_a_result_at_its_step(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "deep" / "evals.jsonl")
    play(lambda step: None, logger)
    logger.close()
    logged = read_logged(tmp_path / "deep" / "evals.jsonl")
    assert [line.step for line in logged] == [30, 10, 20, 53]
    assert logged[0].fields["reward"] == 0.3
    assert "reward" not in logged[2].fields
    assert logged[2].fields["reason"] == "no model"


def test_a_line_is_there_when_log_returns(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "evals.jsonl")
    logger.log("e", 1, fields_of(1))
    assert [line.step for line in read_logged(tmp_path / "evals.jsonl")] == [1]
    logger.close()


def test_a_torn_last_line_is_cut_off_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "evals.jsonl"
    logger = JsonlLogger(path)
    logger.log("e", 1, fields_of(1))
    logger.close()
    with path.open("ab") as file:
        file.write(b'{"name":"e","st')
    assert [line.step for line in read_logged(path)] == [1]
    logger = JsonlLogger(path)
    logger.log("e", 2, fields_of(2))
    logger.close()
    assert [line.step for line in read_logged(path)] == [1, 2]


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    logger = JsonlLogger(tmp_path / "evals.jsonl")
    with pytest.raises(RunBusy, match="a file of its own"):
        JsonlLogger(tmp_path / "evals.jsonl")
    logger.close()


def test_a_forked_child_does_not_keep_the_file_from_the_next_training(tmp_path: Path) -> None:
    """Workers of a data loader, say, that outlive the trainer."""
    path, code = (
        tmp_path / "evals.jsonl",
        """
import os, sys, time
from heldout.training.loggers import JsonlLogger
logger = JsonlLogger(sys.argv[1])
logger.log("e", 1, {"eval_reward": 1.0})
if os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()  # until the test is done
else:
    os._exit(0)  # killed
""",
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"forked\n"
        process.wait(60)
        logger = JsonlLogger(path)
        logger.log("e", 2, {})
        logger.close()
        process.stdin.close()
    assert [line.step for line in read_logged(path)] == [1, 2]


def test_a_damaged_line_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "evals.jsonl"
    logger = JsonlLogger(path)
    logger.log("e", 1, fields_of(1))
    logger.close()
    with path.open("ab") as file:
        file.write(b"gar bage\n")
    with pytest.raises(DamagedJournal, match="line 3: .*take that line out") as problem:
        read_logged(path)
    assert "--repair" not in str(problem.value)
    path.write_bytes(b"garbage\n")
    with pytest.raises(DamagedJournal, match="line 1: not a heldout log of results header"):
        JsonlLogger(path)


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    path.write_bytes(b'{"format":"heldout.curve","version":1}\n')
    with pytest.raises(UnknownFormat, match="heldout.curve"):
        JsonlLogger(path)
    assert path.read_bytes() == b'{"format":"heldout.curve","version":1}\n'


def test_a_thousand_results_in_random_order(tmp_path: Path) -> None:
    got: dict[int, float] = {}
    stream = io.StringIO()
    report = send(
        1000,
        CallableLogger(lambda name, step, fields: got.update({step: fields["reward"]})),  # type: ignore[arg-type, dict-item]
        JsonlLogger(tmp_path / "evals.jsonl"),
        StdoutLogger(stream),
    )
    assert report.complete, str(report)
    assert [each.got for each in report] == [1000, 1000, 1000]
    expected = {step: step / 100 for step in range(1000)}
    assert got == expected
    logged = read_logged(tmp_path / "evals.jsonl")
    assert {line.step: line.fields["reward"] for line in logged} == expected
    assert [line.step for line in logged] == shuffled(1000)
    assert len(stream.getvalue().splitlines()) == 1000


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


def test_a_stream_that_lacks_a_character_gets_it_spelled_out() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    StdoutLogger(stream).log("e", 1, skip_of(1, "é"))
    assert b"reason: \\xe9\n" in raw.getvalue()


def test_standard_output_is_looked_up_when_there_is_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    StdoutLogger().log("e", 1, {"eval_reward": 1.0})
    assert capsys.readouterr().out == "e step 1: reward 1\n"


def test_the_package_itself_loads_no_tracker() -> None:
    code = (
        "import sys, heldout.training.loggers as s; s.Loggers, s.JsonlLogger, s.WandbLogger, "
        "s.MlflowLogger, s.TensorboardLogger, s.TrackioLogger; "
        "print({'wandb','mlflow','trackio','tensorboard','numpy'} & sys.modules.keys())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"
