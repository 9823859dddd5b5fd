"""Results for tests of the store, and whether two tables of them are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heldout import EvalReport, EvalResult, Metric, Sample, Score, Stop, Trajectory
from heldout.store.columns import summarize_results
from heldout.store.run_dir import RunDir
from heldout.store.tables import Labels, ResultTable


def result(
    id: str,
    repeat: int = 0,
    *,
    value: float | None = 1.0,
    input: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    own: dict[str, Any] | None = None,
    extra: tuple[Metric, ...] = (),
) -> EvalResult:
    score = Score() if value is None else Score((Metric("right", value, 1.0), *extra))
    return EvalResult(
        id,
        Sample(id, input or {"question": id}, id.upper(), metadata or {}),
        Trajectory((), Stop("environment", truncated=repeat == 1)),
        score,
        own or {},
        repeat,
        None if value is not None else "it broke",
    )


def results() -> list[EvalResult]:
    return [
        result("b", metadata={"level": 3, "topic": "sea"}),
        result("b", 1, value=0.25, metadata={"level": 3, "topic": "sea"}),
        result("a", value=None, metadata={"level": None}),
        result("a", 1, value=0.0, extra=(Metric("length", 7),)),
        result("c", input={"x": 1, "list": (1, 2)}, metadata={"level": 2.5, "topic": "air"}),
    ]


def saved(path: Path, given: list[EvalResult], repeats: int = 2) -> EvalReport:
    EvalReport(given, summarize_results(given), {"repeats": repeats}).save(path)
    return EvalReport.load(path)


def listed(keys: Mapping[str, Labels]) -> dict[str, list[Any]]:
    return {key: list(labels) for key, labels in keys.items()}


def assert_same(one: ResultTable, other: ResultTable) -> None:
    assert list(one.sample_ids) == list(other.sample_ids)
    assert listed(one.keys) == listed(other.keys)
    assert listed(one.item_keys) == listed(other.item_keys)
    for name in (
        "id_hash",
        "content",
        "sample",
        "cached",
        "cached_turns",
        "repeat",
        "reward",
        "truncated",
        "weighted",
    ):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
    assert list(one.metrics) == list(other.metrics)
    for name in one.metrics:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name], name)


def from_journal(report: EvalReport) -> EvalReport:
    assert report.path is not None
    RunDir(report.path).columns.unlink()
    return EvalReport.load(report.path)
