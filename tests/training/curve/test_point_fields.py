"""A point has the same names wherever it is reported."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from heldout.store.columns import summarize_results
from heldout.training.curve.points import (
    CurvePoint,
    heartbeat_fields,
    log_fields,
    number_fields,
    point_fields,
)
from heldout.types import EvalResult, Metric, Sample, Score, Trajectory

VERDICT = {
    "kind": "regressing",
    "text": "regressing: -0.25 …",
    "since": 20,
    "n": 3,
    "gain": -0.25,
    "ci_low": -0.4,
    "ci_high": -0.1,
    "minimum_detectable": 0.2,
    "effect": 0.05,
    "since_start": "improved",
    "since_start_gain": 0.4,
    "since_start_ci_low": 0.1,
    "since_start_ci_high": 0.7,
    "since_start_text": "improved since its start: +0.4 …",
    "best_step": 20,
    "best_estimate": 0.6,
    "best_ci_low": 0.4,
    "best_ci_high": 0.8,
    "best_text": "best so far: step 20 …",
}


def result(id: str, reward: float | None) -> EvalResult:
    score = Score() if reward is None else Score((Metric("right", reward, weight=1.0),))
    error = "endpoint: no" if reward is None else None
    return EvalResult(id, Sample(id, {"question": id}), Trajectory(()), score, error=error)


def point(*rewards: float | None, **changed: Any) -> CurvePoint:
    results = [result(f"s{number}", reward) for number, reward in enumerate(rewards)]
    whole = CurvePoint(
        label="rl_eval",
        step=30,
        session="a",
        time="2026-01-01T00:00:00Z",
        seconds=1.5,
        summary=summarize_results(results),
        asked=len(rewards),
        of=len(rewards),
    )
    return msgspec.structs.replace(whole, **changed)


SKIP = point(summary=None, skipped="no model")
REPORTED = point(
    *(1.0, 0.5, 0.5),
    final=True,
    partial="max_seconds=1",
    of=8,
    lag_steps=5,
    verdict=VERDICT,
    stop="regressing",
)


@pytest.mark.parametrize("reported", [REPORTED, SKIP], ids=["result", "skip"])
def test_heartbeats_and_logs_add_a_prefix_and_nothing_else(reported: CurvePoint) -> None:
    fields, numbers = point_fields(reported), number_fields(reported)
    prefixed = {f"eval_{key}": value for key, value in fields.items() if key != "lag_steps"}
    lag = {key: value for key, value in fields.items() if key == "lag_steps"}
    assert heartbeat_fields(reported) == {"step": 30, **lag, **prefixed}
    assert log_fields(reported, "held_out") == {
        f"eval_held_out_{key}": value for key, value in {"step": 30, **numbers}.items()
    }
    assert numbers.keys() <= fields.keys()


def test_numbers_are_those_of_the_fields() -> None:
    fields, numbers = point_fields(REPORTED), number_fields(REPORTED)
    assert fields.keys() - numbers.keys() == {
        *("verdict_text", "since_start", "since_start_text", "best_text", "stop"),
    }
    marks = {"final": 1.0, "partial": 1.0, "verdict": -1.0}
    assert numbers == {**{key: fields[key] for key in numbers}, **marks}


def test_every_mean_is_reported_with_its_count_and_interval() -> None:
    numbers = number_fields(point(1.0, 0.0, 0.5, None))
    assert (numbers["reward"], numbers["n"], numbers["n_errors"]) == (0.375, 4, 1)
    assert (numbers["reward_scored"], numbers["n_scored"]) == (0.5, 3)
    assert (numbers["metric_right"], numbers["metric_right_n"]) == (0.5, 3)
    for mean in ("reward", "pass_rate", "metric_right"):
        assert numbers[f"{mean}_ci_low"] < numbers[mean] < numbers[f"{mean}_ci_high"]


def test_an_errored_item_counts_as_zero_in_the_least_reward_too() -> None:
    numbers = number_fields(point(1.0, 0.5, None))
    assert (numbers["reward_min"], numbers["reward_max"]) == (0.0, 1.0)
    numbers = number_fields(point(1.0, 0.5))
    assert (numbers["reward_min"], numbers["reward_max"]) == (0.5, 1.0)


def test_a_skip_has_nothing_that_could_be_taken_for_a_score() -> None:
    assert point_fields(SKIP) == {"seconds": 1.5, "skipped": True, "reason": "no model"}
    assert number_fields(SKIP, "e/") == {"e/seconds": 1.5, "e/skipped": 1.0}


def test_a_number_that_is_not_known_is_left_out() -> None:
    lonely = point(1.0)  # one sample has no error bar
    assert point_fields(lonely)["reward_stderr"] is None
    assert "reward_stderr" not in number_fields(lonely)
