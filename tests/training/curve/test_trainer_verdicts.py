"""What a curve allows one to say, in the rows of a real Trainer, and a stop that it heeds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from heldout.integrations.transformers import HeldoutCallback
from heldout.training import CurveMonitor
from heldout.training.curve.points import log_fields
from tests.integration.line_trainer import Heard, make_evals, make_trainer
from tests.training.curves import CLIMB, curve, point

pytestmark = pytest.mark.integration


def test_a_row_has_the_verdict_as_numbers() -> None:
    stored = CurveMonitor()(curve(CLIMB)).as_dict()
    row = log_fields(point(10, verdict=stored), "heldout")
    assert row["eval_heldout_verdict"] == 1.0
    assert row["eval_heldout_gain"] == stored["gain"]
    assert row["eval_heldout_gain_ci_low"] == stored["ci_low"] > 0
    assert row["eval_heldout_gain_ci_high"] == stored["ci_high"]
    assert row["eval_heldout_best_step"] == stored["best_step"]


@pytest.mark.parametrize(
    ("kind", "number"), [("plateau", 0.0), ("regressing", -1.0), ("inconclusive", None), ([], None)]
)
def test_what_nobody_can_tell_is_no_number(kind: Any, number: float | None) -> None:
    odd = {"kind": kind, "gain": "x", "ci_low": math.nan, "ci_high": math.inf, "best_step": "x"}
    row = log_fields(point(10, verdict=odd), "e")
    assert row.get("eval_e_verdict") == number
    assert not [key for key in row if "gain" in key or "best" in key]


def test_a_stop_that_arises_where_the_trainer_evaluates_is_heeded_at_once(tmp_path: Path) -> None:
    evals = make_evals(tmp_path, every_steps=100, monitor=lambda points: "enough")
    heard = Heard()
    trainer = make_trainer(tmp_path, heard, steps=6, eval_strategy="steps", eval_steps=2)
    HeldoutCallback(evals).attach(trainer)
    trainer.train()
    assert trainer.state.global_step == 2
