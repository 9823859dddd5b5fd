"""What the hooks of all trainers share, on a loop of one's own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from heldout.errors import InvalidInput
from heldout.integrations.loops import LoopEvals
from heldout.training import PeriodicEval

from .toys import Model, builder, periodic, questions, weighted

Rows = list[tuple[int, Mapping[str, float]]]


def trained(folder: Path, steps: range, *, begin: int = 0, resume: bool | None = None) -> Rows:
    rows: Rows = []
    model = weighted(4)
    evals = periodic(folder, model, every_steps=2, resume=resume, label="rl_eval")
    loop = LoopEvals((evals,), lambda: model, lambda row, step: rows.append((step, row)))
    loop.begin(begin)
    for step in steps:
        loop.step(step)
    return rows


def test_a_trainer_that_resumes_gets_rows_of_points_that_exist_but_not_of_its_own_step(
    tmp_path: Path,
) -> None:
    first = trained(tmp_path, range(1, 7))
    assert [step for step, _ in first] == [2, 4, 6]
    again = trained(tmp_path, range(3, 7), begin=2)
    # The row of step 2 is in what the trainer has loaded; 4 and 6 were trained again, and a
    # checkpoint may be chosen by them, though the weights are the same and are not measured.
    assert [step for step, _ in again] == [4, 6]
    assert [row["eval_heldout_reward"] for _, row in again] == [0.5, 0.5]


def test_rows_go_on_where_the_step_counter_goes_back(tmp_path: Path) -> None:
    rows: Rows = []
    model = weighted(4)
    evals = periodic(tmp_path, model, every_steps=2)
    loop = LoopEvals((evals,), lambda: model, lambda row, step: rows.append((step, row)))
    loop.begin()
    for step in (1, 2, 3, 4, 1, 2):
        if step == 1:
            with_other = weighted(6)
            evals.model_getter = lambda with_other=with_other: with_other
        loop.step(step)
    assert [step for step, _ in rows] == [2, 4, 2]


def test_a_loop_is_told_to_stop_at_every_step_and_why_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = weighted(4)
    evals = periodic(tmp_path, model, every_steps=2, monitor=lambda points: "it got worse")
    loop = LoopEvals((evals,), lambda: model, lambda row, step: None)
    loop.begin()
    with caplog.at_level(logging.WARNING):
        assert [loop.step(step) for step in (1, 2, 3)] == [False, True, True]
    said = [r.getMessage() for r in caplog.records if "training stops" in r.getMessage()]
    assert said == ["heldout: training stops at step 2: rl_eval: it got worse"]


def test_two_evals_of_one_trainer_have_names_of_their_own(tmp_path: Path) -> None:
    def make(label: str, run_dir: Path) -> PeriodicEval:
        return PeriodicEval(
            questions(), builder(), every_steps=2, label=label, run_dir=run_dir, resume=True
        )

    def loop(*evals: PeriodicEval) -> LoopEvals:
        return LoopEvals(evals, Model, lambda row, step: None)

    loop(make("a", tmp_path / "a"), make("b", tmp_path / "b"))
    with pytest.raises(InvalidInput, match="two evals would log as eval_a_"):
        loop(make("a", tmp_path / "c"), make("a", tmp_path / "d"))
