"""The RL loop in examples/ learns, and neither evals nor a kill change the weights it ends in."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout.midrun import PeriodicEval, read_points

EXAMPLE = Path(__file__).parent.parent / "examples" / "rl_loop.py"


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """As the script has it where it is run as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(out: Path, *arguments: object) -> PeriodicEval:
    main = runpy.run_path(str(EXAMPLE))["main"]
    evals: PeriodicEval = main(["--out", str(out), *map(str, arguments)])
    return evals


def weights(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.split()[-1]


def results(evals: PeriodicEval) -> list[tuple[Any, ...]]:
    return [(p.step, p.weights, p.summary, p.outcomes) for p in evals.points]


def test_it_learns_what_it_is_not_trained_on_and_evals_leave_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evals = run(tmp_path / "on", "--steps", 30, "--every", 15)
    watched = weights(capsys)
    first, *_, last = evals.points
    assert [point.step for point in evals.points] == [0, 15, 30]
    assert (first.n, last.n) == (128, 128)
    assert first.ci[1] < last.ci[0]

    run(tmp_path / "off", "--steps", 30, "--every", 0)
    assert weights(capsys) == watched
    assert not (tmp_path / "off" / "curve.jsonl").exists()

    beside = run(tmp_path / "async", "--steps", 30, "--every", 15, "--async")
    assert weights(capsys) == watched
    assert results(beside) == results(evals)
    assert all(point.lag_steps is not None for point in beside.points)  # nothing waited for it
    assert len(read_points(tmp_path / "async" / "curve.jsonl")) == 3


def test_a_run_that_was_killed_goes_on_to_the_same_weights_and_the_same_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--steps", "9", "--every", "3", "--save-every", "3"]
    whole = run(tmp_path / "whole", *arguments)
    expected = weights(capsys)

    command = [sys.executable, "-u", str(EXAMPLE), "--out", str(tmp_path / "killed"), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if line.startswith("step    6"):  # the checkpoint of step 3 is there, this one may be
                killed.kill()
                break
    assert killed.returncode == -9
    resumed = run(tmp_path / "killed", *arguments, "--resume")
    assert weights(capsys) == expected
    assert results(resumed) == results(whole)


def test_a_folder_with_a_run_in_it_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(tmp_path)
    assert "--resume goes on with it" in capsys.readouterr().err


def test_nothing_that_is_held_out_is_trained_on_in_whatever_order() -> None:
    train, held_out = runpy.run_path(str(EXAMPLE))["make_samples"]()
    assert (len(train), len(held_out)) == (587, 128)
    assert not {s.ground_truth for s in train} & {s.ground_truth for s in held_out}
