"""Values that could not be meant are refused where they are made."""

from __future__ import annotations

import importlib
import math
from dataclasses import FrozenInstanceError, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout import (
    EvalResult,
    Message,
    Metric,
    Reply,
    Sample,
    Score,
    Stop,
    TokenTrace,
    ToolCall,
    Trajectory,
    Usage,
)
from heldout.errors import InvalidInput

SCORE = Score((Metric("m", 1),))


@pytest.mark.parametrize("value", [True, 1, np.float32(1), np.int64(1), np.bool_(True)])
def test_a_metric_takes_any_kind_of_number(value: object) -> None:
    metric = Metric("accuracy", value)
    assert metric.value == 1.0
    assert type(metric.value) is float


def test_the_reward_is_the_weighted_mean_and_weight_zero_only_tracks() -> None:
    score = Score([Metric("a", 1, 3), Metric("b", 0, 1), Metric("tracked", 100)])
    assert score.reward == 0.75
    assert score["tracked"] == 100
    assert Score().reward == Score((Metric("other_n", 7),)).reward == 0.0


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.001, 1e3)), min_size=1, max_size=6))
def test_the_reward_lies_between_the_least_and_the_greatest_value(
    pairs: list[tuple[float, float]],
) -> None:
    score = Score(tuple(Metric(str(i), v, w) for i, (v, w) in enumerate(pairs)))
    values = [v for v, _ in pairs]
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert min(values) - slack <= score.reward <= max(values) + slack


def test_values_are_frozen_and_can_be_replaced() -> None:
    sample = Sample("a", {"question": "?"})
    with pytest.raises(FrozenInstanceError):
        sample.id = "b"
    assert replace(sample, id="b").id == "b"


def test_a_result_has_its_samples_metadata_and_its_own() -> None:
    sample = Sample("a", {"q": 1}, metadata={"difficulty": "easy", "x": 1})
    result = EvalResult("a", sample, Trajectory(()), metadata={"x": 2})
    assert result.metadata == {"difficulty": "easy", "x": 2}


def test_a_result_survives_json() -> None:
    result = EvalResult(
        "a",
        Sample("a", {"question": "?"}, ["x"], {"d": 1}),
        Trajectory(
            (
                Message("user", "?"),
                Message("assistant", "!", (ToolCall("1", "f", "{}"),), reasoning="hm"),
            ),
            Stop("limit", "max_turns", truncated=True),
        ),
        Score((Metric("m", 0.1, 1.0, {"why": "so"}),)),
    )
    assert msgspec.json.decode(msgspec.json.encode(result), type=EvalResult) == result


# --- Answers ---


def test_the_answer_is_the_last_model_turn() -> None:
    turns = [Message("assistant", "1"), Message("user", "?"), Message("assistant", "2")]
    assert Trajectory(tuple(turns)).answer == "2"
    assert Trajectory((Message("user", "?"),)).answer == ""


def test_text_parts_of_a_message_are_its_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert Message("user", parts).text == "ab"


def test_evaluate_is_the_function_whatever_was_imported_before() -> None:
    import heldout
    import heldout._evals.engine

    assert heldout.evaluate is heldout._evals.engine.evaluate
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        heldout.evalute


@pytest.mark.parametrize("package", ["heldout", "heldout.training", "heldout.scoring"])
def test_the_public_names_are_those_that_type_checkers_see(package: str) -> None:
    module = importlib.import_module(package)
    assert all(getattr(module, name) is not None for name in module.__all__)
    assert module.__all__ == sorted(module.__all__) != []


@pytest.mark.parametrize(
    ("make", "said"),
    [
        *((lambda v=value: Metric("acc", v), "'acc'") for value in (math.nan, math.inf, "high")),
        *(
            (lambda w=w: Metric("acc", 1.0, w), "'acc'.*weight")
            for w in (-0.001, math.nan, math.inf)
        ),
        (lambda: Metric("m", 1.0, metadata={"far": [math.inf]}), r"metadata\['far'\]\[0\] is inf"),
        (lambda: Score((Metric("a", 1), Metric("a", 0))), "'a'"),
        (lambda: Score((Metric("acc", 1), Metric("acc_n", 4))), "'acc_n'.*'acc'"),
        (lambda: Score((Metric("a", 1e308, 10.0),)), "too large"),
        (lambda: Score((0.5,)), "."),
        (lambda: Score(Metric("a", 1)), "."),
        *((lambda id=id: Sample(id, {}), "id") for id in ("", 3, None)),
        (lambda: Sample("a", "question"), "'a'.*input"),
        (lambda: TokenTrace((1,), (2, 3), (0.1,), (1, 1)), "2, 1 and 2"),
        (lambda: EvalResult("a", Sample("a", {}), Trajectory(()), SCORE, error="no"), "error"),
        (lambda: ToolCall("c", "f", {"a": 1}), "arguments must be JSON text, got dict; json.dumps"),
        (lambda: ToolCall(1, "f"), "a tool call's id must be text, got int"),
        (lambda: Message("assistant", "", ({"name": "f"},)), "tool_calls must be ToolCalls, got"),
        (lambda: Message("user", ["text"]), "a list of parts, which are dicts; got"),
        (
            lambda: Message("tool", "", tool_call_id=3),
            "tool_call_id and reasoning must be texts, got 3",
        ),
        (lambda: Message("assistant", "", reasoning=1.5), "reasoning must be texts, got 1.5"),
        (lambda: Message("assistant", "", api_turn=[]), "api_turn must be a dict, got \\[\\]"),
        (lambda: Stop(finish_reason=1), "a finish reason must be a text, got 1"),
        (lambda: Usage("many"), "prompt_tokens must be a whole number, got 'many'"),
        (lambda: Usage(-1), r"prompt_tokens must be from 0 to 2\^53, got -1"),
        (lambda: Usage(1, 2**53 + 1), r"completion_tokens must be from 0 to 2\^53, got 9007199254"),
        (lambda: Usage(1, 0.5), "completion_tokens must be a whole number, got 0.5"),
        (lambda: Metric("m", 1.0, metadata=[]), "metric 'm': metadata must be a dict, got list"),
        (lambda: Sample("a", {}, metadata=[]), "sample 'a': metadata must be a dict, got list"),
        (lambda: Reply("stop"), "Reply takes a list of Message, got 'stop'"),
        (lambda: Reply(("again",)), "Reply takes Messages, got 'again'"),
    ],
)
def test_what_could_not_be_read_back_is_refused_where_it_is_made(make: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make()


SHOT = (Message("user", "1 + 1?"), Message("assistant", "2"))


@pytest.mark.parametrize(
    ("messages", "model_turns", "input", "question"),
    [
        ((), None, {"question": "2 + 2?"}, ""),
        ((Message("system", "Be brief."),), None, {}, ""),
        ((Message("user", "2 + 2?"), Message("assistant", "4")), None, {}, "2 + 2?"),
        ((*SHOT, Message("user", "2 + 2?"), Message("assistant", "4")), (3,), {}, "2 + 2?"),
        ((*SHOT, Message("user", "2 + 2?")), (), {}, "2 + 2?"),
        ((Message("user", "2 + 2?"), Message("tool", "ready")), None, {}, "2 + 2?"),
        ((Message("user", "Q: 1?\nQ: 2?\nA) 2"),), None, {"question": "2?"}, "2?\nA) 2"),
        ((Message("user", "2 + 2?"),), None, {"question": " "}, "2 + 2?"),
        ((Message("user", "Add two and two."),), None, {"question": "2 + 2?"}, "Add two and two."),
    ],
)
def test_a_question_is_the_last_user_message_before_the_models_first_turn(
    messages: tuple[Message, ...],
    model_turns: tuple[int, ...] | None,
    input: dict[str, Any],
    question: str,
) -> None:
    trajectory = Trajectory(messages, model_turns=model_turns)
    assert EvalResult("q", Sample("q", input), trajectory).question == question


def test_a_score_says_which_metrics_it_has() -> None:
    score = Score((Metric("acc", 1.0), Metric("length", 3.0)))
    assert "acc" in score
    assert "other" not in score
    assert 0 not in score
    assert [*score] == ["acc", "length"]


def test_the_names_that_loops_use_are_where_they_are_looked_for() -> None:
    import heldout.analysis
    import heldout.training
    import heldout.training.background.dispatcher
    import heldout.vector

    assert heldout.compare is heldout.analysis.compare
    assert heldout.gate is heldout.analysis.gate
    assert heldout.PeriodicEval is heldout.training.PeriodicEval
    assert heldout.training.pending_evals is heldout.training.background.dispatcher.pending_evals
    assert "untouched_random_state" not in heldout.vector.__all__
    assert not hasattr(heldout.vector, "untouched_random_state")


@pytest.mark.parametrize("package", ["heldout.stats", "heldout.vector", "heldout.analysis"])
def test_types_of_arrays_are_no_names_of_a_package(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ != []
    assert not {"Floats", "Ints", "Bools"} & {*dir(module), *module.__all__}
