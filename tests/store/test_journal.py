"""The journal: a result that was appended is read back equal, and what cannot be is refused."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout import (
    EvalResult,
    Message,
    Metric,
    Sample,
    Score,
    Stop,
    Timing,
    ToolCall,
    Trajectory,
    Usage,
)
from heldout.errors import InvalidInput
from heldout.store.journal import JournalWriter, Record, records
from heldout.types import TokenTrace

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(0, 2**40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXT | st.lists(OBJECT, max_size=2),
    CALLS,
    st.none() | TEXT,
    st.none() | TEXT,
)
STOPS = st.builds(
    Stop,
    st.sampled_from(["environment", "no_reply", "error"]),
    truncated=st.booleans(),
    finish_reason=st.none() | TEXT,
) | st.builds(Stop, st.just("limit"), TEXT, st.booleans())
NAMES = TEXT.filter(lambda name: name and "_" not in name)
METRICS = st.builds(Metric, NAMES, st.floats(-1e6, 1e6), st.floats(0, 10), OBJECT, st.just(False))
SCORES = st.lists(METRICS, max_size=3, unique_by=lambda metric: metric.name).map(Score)


@st.composite
def traces(draw: st.DrawFn) -> TokenTrace:
    completion = draw(st.lists(WHOLE, max_size=4))
    size = st.lists(NUMBER, min_size=len(completion), max_size=len(completion))
    return TokenTrace(
        draw(st.lists(WHOLE, max_size=3)), completion, draw(st.none() | size), [1] * len(completion)
    )


TRAJECTORIES = st.builds(
    Trajectory,
    st.lists(MESSAGES, max_size=3),
    STOPS,
    st.none() | st.builds(Usage, WHOLE, WHOLE),
    st.none() | traces(),
    st.none() | st.builds(Timing, NUMBER, WHOLE),
    st.none() | OBJECT,
)
SAMPLES = st.builds(Sample, TEXT.filter(bool), OBJECT, JSON, OBJECT)


@st.composite
def results(draw: st.DrawFn) -> EvalResult:
    sample = draw(SAMPLES)
    error = draw(st.none() | TEXT)
    score = Score() if error is not None else draw(SCORES)
    return EvalResult(
        sample.id, sample, draw(TRAJECTORIES), score, draw(OBJECT), draw(WHOLE), error
    )


def append(result: EvalResult, folder: Path) -> list[EvalResult]:
    path = folder / "results.jsonl"
    journal = JournalWriter(path)
    try:
        journal.append(0, result)
    finally:
        journal.close()
    return [record.result() for record in records(path, Record)]


@given(result=results())
@settings(max_examples=50, deadline=None)
def test_every_result_that_is_appended_is_read_back_equal(result: EvalResult) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert append(result, Path(folder)) == [result]


PLAIN = EvalResult("a", Sample("a", {"question": "?"}), Trajectory((Message("user", "?"),)))


def with_trajectory(**changes: Any) -> EvalResult:
    return replace(PLAIN, trajectory=replace(PLAIN.trajectory, **changes))


def with_message(**changes: Any) -> EvalResult:
    return with_trajectory(messages=(replace(PLAIN.trajectory.messages[0], **changes),))


NAN = float("nan")
REFUSED = {
    "a text that is no Unicode": with_message(content="\ud800"),
    "an object": replace(PLAIN, metadata={"x": object()}),
    "a key that is no text": replace(PLAIN, metadata={"x": {1: 2}}),
    "a set of mixed types": replace(PLAIN, metadata={"x": {1, "two"}}),
    "a message that is none": with_trajectory(messages=({"role": 5},)),
    "an unknown end": with_trajectory(stop=Stop("fate")),
    "a limit that is no text": with_trajectory(stop=Stop("limit", 3)),
    "a flag that is none": with_trajectory(stop=Stop(truncated="yes")),
    "a token id that must be a text": with_trajectory(tokens=TokenTrace(("x",), (), (), ())),
    "a NaN log-probability": with_trajectory(tokens=TokenTrace((1,), (2,), (NAN,), (1,))),
    "an infinite log-probability": with_trajectory(
        tokens=TokenTrace((1,), (2,), (-float("inf"),), (1,))
    ),
    "a time that is NaN": with_trajectory(timing=Timing(NAN)),
    "an outcome that is no dict": with_trajectory(outcome=[1]),
    "an error that is no text": replace(PLAIN, error=3),
}


def test_a_result_that_could_not_be_read_back_is_refused_by_its_sample(tmp_path: Path) -> None:
    for result in REFUSED.values():
        with pytest.raises(InvalidInput, match="the result of sample 'a'"):
            append(result, tmp_path)
    assert [*records(tmp_path / "results.jsonl", Record)] == []


def test_a_numpy_number_is_written_as_the_number_it_is(tmp_path: Path) -> None:
    usage = Usage(np.int64(3), np.int32(4))
    (read,) = append(with_trajectory(usage=usage), tmp_path)
    assert read.trajectory.usage == Usage(3, 4)
