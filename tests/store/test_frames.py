"""Results as frames of pandas, polars and pyarrow: the real packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import heldout
from heldout import Completion, EvalReport, Message, Metric, Sample, Score, Trajectory, Usage
from heldout.errors import InvalidInput

COLUMNS = [
    *("sample_id", "repeat", "question", "answer", "ground_truth", "extracted", "reward", "passed"),
    *("metric.correct", "metric.length"),
    *("prompt_tokens", "completion_tokens", "seconds", "truncated", "error"),
    *("metadata.level", "metadata.mixed"),
]


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EvalReport:
    monkeypatch.chdir(tmp_path)

    def answer(messages: list[Message]) -> Completion:
        if "2" in messages[-1].text:
            raise OSError("down")
        return Completion(Message("assistant", "It is 1."), "stop", Usage(10, 4))

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        correct = sample.ground_truth == 1
        return Score(
            (
                Metric("length", len(trajectory.answer)),
                Metric("correct", correct, weight=1.0, metadata={"extracted": "1"}),
            )
        )

    def ask(sample: Sample) -> list[Message]:
        return [Message("system", "Be brief."), Message("user", sample.input["question"])]

    samples = [
        Sample(f"q{i}", {"question": f"What is {i}?"}, i, {"level": "easy", "mixed": mixed})
        for i, mixed in enumerate([1, "one", [1]])
    ]
    return heldout.run(samples, score, endpoint=answer, prepare_messages=ask, max_error_rate=1)


def test_a_pandas_frame_has_a_row_per_attempt(report: EvalReport) -> None:
    frame = report.to_pandas()
    assert [*frame.columns][:8] == COLUMNS[:8]
    assert {*frame.columns} == {*COLUMNS}
    assert frame["question"].tolist() == ["What is 0?", "What is 1?", "What is 2?"]
    assert frame["answer"].tolist()[:2] == ["It is 1.", "It is 1."]
    assert frame["ground_truth"].tolist() == [0, 1, 2]
    assert frame["extracted"].tolist()[:2] == ["1", "1"]
    assert frame["reward"].mean() == 0.5  # of those that have one
    assert frame["prompt_tokens"].sum() == 20
    assert frame["metadata.mixed"].tolist() == ["1", "one", "[1]"]


def test_an_errored_attempt_has_no_reward_and_no_answer(report: EvalReport) -> None:
    row = report.to_pandas().iloc[2]
    assert row["error"].startswith("endpoint: OSError: down")
    for column in ("reward", "passed", "answer", "extracted", "metric.correct", "prompt_tokens"):
        assert row.isna()[column], column
    assert row["question"] == "What is 2?"


def test_polars_and_arrow_have_the_same_columns_and_values(report: EvalReport) -> None:
    rows = report.to_arrow().to_pylist()
    assert report.to_polars().to_dicts() == rows
    assert {*rows[0]} == {*COLUMNS}
    assert rows[1]["reward"] == 1.0
    assert rows[2]["reward"] is None
    assert rows[2]["passed"] is None


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_a_missing_package_is_named(
    report: EvalReport, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    make = {"pandas": report.to_pandas, "polars": report.to_polars, "pyarrow": report.to_arrow}
    with pytest.raises(InvalidInput, match=f"pip install '{package}>=[0-9.]+'$"):
        make[package]()
