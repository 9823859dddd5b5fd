"""The RL loop in examples/ learns, and neither evals nor a kill change the weights it ends in."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heldout import Sample, Score, Trajectory
from heldout.training import PeriodicEval, current_points, read_points
from heldout.training.background.dispatcher import pending_evals
from heldout.training.curve.points import request_stop

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

EXAMPLE = Path(__file__).parent.parent / "examples" / "rl_loop.py"


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


# --- In processes of their own: what other tests left behind in this one would be in the bits -----

SHORT = ["--steps", "9", "--every", "3", "--save-every", "3"]


def started(code: list[str], out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", *code, "--out", str(out), *SHORT, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def killed_at(line: str, code: list[str], out: Path, *more: str) -> None:
    """When it prints this, which is just before the checkpoint of that step."""
    with started(code, out, *more) as process:
        assert process.stdout is not None
        for said in process.stdout:
            if said.startswith(line):
                process.kill()
                break
    assert process.returncode == -9


def ended(out: Path, *more: str) -> tuple[str, list[Any]]:
    """The weights that it ends in, and the curve as it then stands."""
    said, _ = (process := started([str(EXAMPLE)], out, *more)).communicate()
    assert process.returncode == 0
    points = current_points(read_points(out / "curve.jsonl"))
    return said.split()[-1], [(p.step, p.weights, p.summary, p.outcomes) for p in points]


HANGING = """
import runpy, sys, threading, torch

torch.Tensor.argmax = lambda *of: threading.Event().wait()  # evals alone are greedy
sys.argv[0] = {example!r}
runpy.run_path({example!r}, run_name="__main__")
"""


@pytest.mark.heavy
def test_a_run_that_was_killed_twice_goes_on_to_the_same_weights_and_the_same_curve(
    tmp_path: Path,
) -> None:
    """Once beside an eval, which is then finished on the weights that it was to measure."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    hanging = ["-c", HANGING.format(example=str(EXAMPLE))]
    killed_at("step    2", hanging, killed, "--async", "--save-every", "1")
    assert (killed / "checkpoint-000001").exists()  # so that step 0 is not where it goes on
    left = pending_evals(killed)[0]
    assert (left.step, left.saved_at) == (0, str(killed / "checkpoint-000000" / "training.pt"))
    killed_at("step    6", [str(EXAMPLE)], killed, "--resume")
    assert pending_evals(killed) == []
    weights, curve = ended(killed, "--async", "--resume")
    assert (weights, curve) == ended(whole)
    assert [step for step, *_ in curve] == [0, 3, 6, 9]


def test_a_run_that_is_asked_to_stop_saves_where_it_stands_and_evaluates_it(
    tmp_path: Path,
) -> None:
    out = tmp_path / "stopped"
    loop = runpy.run_path(str(EXAMPLE))["main"]
    score_fn, asked = loop.__globals__["score_fn"], []

    def asking(trajectory: Trajectory, sample: Sample) -> Score:
        asked.append(sample)
        if len(asked) == 128 + 128 + 1:  # the held-out set, a step, and into the second
            request_stop(out, "enough")
        score: Score = score_fn(trajectory, sample)
        return score

    loop.__globals__["score_fn"] = asking
    loop(["--out", str(out), *SHORT])
    assert [path.name for path in sorted(out.glob("checkpoint-*"))] == [
        "checkpoint-000000",
        "checkpoint-000002",
    ]
    assert [point.step for point in current_points(read_points(out / "curve.jsonl"))] == [0, 2]


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
