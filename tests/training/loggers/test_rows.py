from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout import EvalResult, Metric, Sample, Score, Trajectory
from heldout.errors import InvalidInput
from heldout.summary import summarize_results
from heldout.training.curve import CurvePoint
from heldout.training.loggers.rows import LONGEST_TEXT, Row
from heldout.training.periodic_eval import heartbeat_fields
from tests.training.loggers.scenario import fields_of, skip_of


def test_a_field_loses_its_prefix_and_its_step() -> None:
    row = Row.of("rl_eval", 30, fields_of(30))
    assert row.numbers == {"reward": 0.3, "n": 24, "seconds": 1.5, "lag_steps": 7}
    assert row.keyed(row.numbers)["rl_eval/reward"] == 0.3
    assert row.texts == {}
    assert not row.skipped


def test_two_fields_never_become_one() -> None:
    row = Row.of("e", 0, {"eval_n": 1, "n": 2})
    assert row.numbers == {"eval_n": 1, "n": 2}


def test_a_skip_has_no_number_that_could_be_a_score() -> None:
    row = Row.of("e", 3, {**skip_of(3), "eval_reward": 0.0, "eval_pass_rate": 0.0, "lag_steps": 2})
    assert row.skipped
    assert row.numbers == {"skipped": 1, "seconds": 0.5, "lag_steps": 2}
    assert row.texts == {"reason": "no model"}


def test_what_was_not_skipped_says_nothing_of_skipping() -> None:
    row = Row.of("e", 3, {"eval_skipped": False, "eval_reward": 1.0})
    assert not row.skipped
    assert row.numbers == {"reward": 1.0}


def test_a_partial_is_a_number_and_a_text() -> None:
    row = Row.of("e", 3, {"eval_reward": 0.5, "eval_partial": "max_seconds=1"})
    assert row.numbers == {"reward": 0.5, "partial": 1}
    assert row.texts == {"partial_reason": "max_seconds=1"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400, [1], np.float32("nan")])
def test_what_is_no_finite_number_is_left_out_and_said(value: Any) -> None:
    row = Row.of("e", 3, {"eval_reward": value, "eval_n": 2})
    assert row.numbers == {"n": 2}
    assert row.texts["left_out"].startswith("reward=")


def test_numbers_of_numpy_are_numbers() -> None:
    row = Row.of("e", 3, {"a": np.float32(0.5), "b": np.int64(3), "c": True})
    assert row.numbers == {"a": 0.5, "b": 3, "c": 1}


def test_text_is_short_and_can_be_encoded() -> None:
    row = Row.of("e", 3, skip_of(3, "\ud800" + "x" * 5000))
    assert row.texts["reason"].startswith("\\ud800x")
    assert row.texts["reason"].encode().decode() == row.texts["reason"]
    assert len(row.texts["reason"]) < LONGEST_TEXT + 10


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", 2**60, None])
def test_a_step_is_a_whole_number(step: Any) -> None:
    with pytest.raises(InvalidInput, match="step is a whole number"):
        Row.of("e", step, {})


def result(name: str, reward: float) -> EvalResult:
    score = Score((Metric("right", reward, weight=1.0),))
    return EvalResult(name, Sample(name, {}), Trajectory(()), score)


def test_a_point_of_a_curve_comes_out_as_it_is() -> None:
    point = CurvePoint(
        label="e",
        step=4,
        session="s",
        time="t",
        seconds=1.0,
        summary=summarize_results([result("a", 1.0), result("b", 0.0)]),
        asked=2,
        of=4,
    )
    row = Row.of("e", 4, heartbeat_fields(point))
    assert (row.numbers["reward"], row.numbers["n"], row.numbers["of"]) == (0.5, 2, 4)
    assert row.texts == {}


def test_a_skipped_point_comes_out_as_a_skip() -> None:
    point = CurvePoint(label="e", step=4, session="s", time="t", seconds=1.0, skipped="no model")
    row = Row.of("e", 4, heartbeat_fields(point))
    assert row.numbers == {"skipped": 1, "seconds": 1.0}
    assert row.texts == {"reason": "no model"}


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([1])
)


@given(st.dictionaries(st.text(max_size=12), values, max_size=8))
def test_whatever_comes_only_finite_numbers_and_texts_go(fields: dict[str, Any]) -> None:
    row = Row.of("e", 1, fields)
    assert all(math.isfinite(number) for number in row.numbers.values())
    assert not row.numbers.keys() & row.texts.keys()
    if row.skipped:
        assert row.numbers.keys() <= {"skipped", "seconds", "lag_steps"}
