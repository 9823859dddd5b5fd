"""A run as columns: the same from Parquet, from the journal and from memory."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heldout import EvalReport, EvalResult, Metric, Sample, Score, Stop, Trajectory
from heldout.errors import HeldoutError, InvalidInput
from heldout.store import columns
from heldout.store.journal import JournalWriter, content_of
from heldout.store.parquet import ParquetFile
from heldout.store.rundir import RunDir
from heldout.store.table import Labels, Table, table_of, table_of_results
from heldout.summary import summarize_results


@dataclass(frozen=True)
class Point:
    y: int
    x: int


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


def assert_same(one: Table, other: Table) -> None:
    assert list(one.sample_ids) == list(other.sample_ids)
    assert listed(one.keys) == listed(other.keys)
    assert listed(one.item_keys) == listed(other.item_keys)
    for name in ("id_hash", "content", "sample", "repeat", "reward", "truncated", "weighted"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
    assert list(one.metrics) == list(other.metrics)
    for name in one.metrics:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name], name)


def from_journal(report: EvalReport) -> EvalReport:
    assert report.path is not None
    RunDir(report.path).columns.unlink()
    return EvalReport.load(report.path)


def test_a_table_has_the_items_in_dataset_order_and_errored_ones_without_a_reward() -> None:
    table = table_of_results(results()[::-1], ["level"])
    assert table.sample_ids == ["c", "a", "b"]
    assert table.sample.tolist() == [0, 1, 1, 2, 2]
    assert table.repeat.tolist() == [0, 0, 1, 0, 1]
    assert np.isnan(table.reward).tolist() == [False, True, False, False, False]
    assert table.truncated.tolist() == [False, False, True, False, True]
    assert table.weighted.tolist() == [True, False, True, True, True]
    assert table.metrics["length"][2] == 7
    assert np.isnan(table.metrics["length"][[0, 1, 3, 4]]).all()
    assert listed(table.keys) == {"level": [2.5, None, 3.0]}
    assert len(table) == 5


def test_columns_journal_and_memory_give_the_same_table(tmp_path: Path) -> None:
    keys, items = ["level", "topic"], ["repeat", "topic"]
    in_memory = table_of_results(results(), keys, item_keys=items)
    report = saved(tmp_path / "run", results())
    assert_same(table_of(report, keys, item_keys=items), in_memory)
    assert_same(table_of(from_journal(report), keys, item_keys=items), in_memory)


def test_a_journal_in_the_order_things_finished_gives_the_order_of_the_dataset(
    tmp_path: Path,
) -> None:
    report = saved(tmp_path / "run", results())
    expected = table_of(report)
    journal = RunDir(tmp_path / "run").journal
    head, *lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(head + b"".join(reversed(lines)))
    assert_same(table_of(from_journal(report)), expected)


def test_batches_of_a_run_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [
        result(f"s{i}", k, value=i / 7, metadata={"topic": f"t{i % 3}" if i % 5 else None})
        for i in range(7)
        for k in range(3)
    ]
    expected = table_of_results(many, ["topic"])
    monkeypatch.setattr(columns, "BATCH", 4)  # a sample's repeats are in two of them
    report = saved(tmp_path / "run", many, repeats=3)
    assert ParquetFile(RunDir(tmp_path / "run").columns)._groups[0][0] == 4
    assert_same(table_of(report, ["topic"]), expected)
    assert_same(table_of(from_journal(report), ["topic"]), expected)


def test_rows_that_are_too_much_for_one_group_keep_their_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = table_of_results(results())
    monkeypatch.setattr("heldout.store.parquet._MAX_ROWS", 2)
    report = saved(tmp_path / "run", results())
    assert len(ParquetFile(RunDir(tmp_path / "run").columns)._groups) == 3
    assert_same(table_of(report), expected)


def test_an_unfinished_run_is_what_it_has(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    run = RunDir(tmp_path / "run")
    info = run.read_info()
    info.status, info.asked = "interrupted", 6
    run.write_info(info)
    journal = JournalWriter(run.journal)
    journal.append(3, result("d", value=0.5))
    journal.close()
    table = table_of(EvalReport.load(report.path or ""))
    assert table.sample_ids == ["b", "a", "c", "d"]
    assert table.reward[-1] == 0.5


def test_a_run_without_results_is_an_empty_table() -> None:
    table = table_of_results([])
    assert (len(table), table.sample_ids, table.content.dtype) == (0, [], np.uint64)


# --- Keys ---------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_what_there_is(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    for given in (report, from_journal(report), replace(report, results=results(), path=None)):
        with pytest.raises(HeldoutError, match=r"nothing called 'colour'.*'level', 'topic'\]"):
            table_of(given, ["colour"])


def test_a_key_that_differs_between_repeats_is_refused_by_sample_and_key(tmp_path: Path) -> None:
    given = [result("a"), result("b", own={"mood": "calm"}), result("b", 1, own={"mood": "wild"})]
    report = saved(tmp_path / "run", given)
    for one in (report, from_journal(report)):
        with pytest.raises(InvalidInput, match="'mood' .* sample 'b': 'calm' and 'wild'"):
            table_of(one, ["mood"])
        found = table_of(one, item_keys=["mood"]).item_keys
        assert listed(found) == {"mood": [None, "calm", "wild"]}


def test_the_content_column_is_no_key(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    with pytest.raises(HeldoutError, match="nothing called 'content'") as refused:
        table_of(report, ["content"])
    assert "'content'," not in str(refused.value)


# --- Content ------------------------------------------------------------------------------------


def hash_of(**sample: Any) -> int:
    return content_of(Sample(**{"id": "s", "input": {"q": "?"}, **sample}))


def test_content_is_of_input_and_ground_truth_and_of_nothing_else() -> None:
    plain = hash_of()
    assert hash_of(id="other", metadata={"level": 1}) == plain
    assert hash_of(input={"q": "!"}) != plain
    assert hash_of(ground_truth=1) != plain
    assert hash_of(input={"q": "?", "a": None}) != plain


def test_content_does_not_depend_on_the_order_of_keys() -> None:
    one = hash_of(input={"a": {"x": 1, "y": 2}, "b": 3}, ground_truth={"p": 1, "q": 2})
    assert hash_of(input={"b": 3, "a": {"y": 2, "x": 1}}, ground_truth={"q": 2, "p": 1}) == one


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2),
        {"z": Point(1, 2), "a": (1, (2, 3))},
        {"b", "a"},
        np.float32(0.1),
        np.arange(3),
        float("nan"),
        1e300,
        -0.0,
        b"bytes",
        "ü\u2028",
    ],
    ids=lambda value: type(value).__name__,
)
def test_content_is_the_same_before_and_after_the_journal(value: Any, tmp_path: Path) -> None:
    sample = Sample("s", {"value": value}, value)
    given = [replace(result("s"), sample=sample)]
    report = saved(tmp_path / "run", given, repeats=1)
    expected = table_of_results(given).content
    assert table_of(report).content == expected
    assert table_of_results(list(report.results)).content == expected


def test_a_value_that_json_cannot_hold_is_refused_by_the_sample_that_has_it() -> None:
    given = replace(result("s"), sample=Sample("s", {"value": object()}))
    with pytest.raises(InvalidInput, match="sample 's' holds a value that JSON cannot"):
        table_of_results([given])


def test_a_parquet_file_from_before_there_was_content_takes_it_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = table_of(saved(tmp_path / "new", results()), ["level"])
    with monkeypatch.context() as before:
        before.delitem(columns.FIXED, "content")
        old = saved(tmp_path / "old", results())
    assert "content" not in ParquetFile(RunDir(tmp_path / "old").columns).schema
    assert_same(table_of(old, ["level"]), expected)


def test_a_parquet_file_of_other_columns_is_passed_over(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    expected = table_of(report)
    run = RunDir(tmp_path / "run")
    with run.columns.open("wb") as file:
        writer = columns.ParquetWriter(
            file, {"sample_id": "int", "index": "string"}, metadata={"heldout.whole": "True"}
        )
        writer.write_group({"sample_id": [1], "index": ["x"]})
        writer.close()
    assert_same(table_of(EvalReport.load(run.path)), expected)


def test_a_damaged_parquet_file_is_passed_over(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    expected = table_of(report)
    run = RunDir(tmp_path / "run")
    whole = run.columns.read_bytes()
    run.columns.write_bytes(whole[:40] + bytes(20) + whole[60:])
    assert_same(table_of(EvalReport.load(run.path)), expected)


def test_a_killed_and_resumed_run_has_the_same_columns_byte_for_byte(tmp_path: Path) -> None:
    saved(tmp_path / "one", results())
    journal = RunDir(tmp_path / "one").journal
    head, *lines = journal.read_bytes().splitlines(keepends=True)
    other = RunDir(tmp_path / "other")
    shutil.copytree(tmp_path / "one", other.path)
    other.journal.write_bytes(head + b"".join(reversed(lines)))
    columns.derive(other, repeats=2, pass_threshold=0.5)
    assert other.columns.read_bytes() == RunDir(tmp_path / "one").columns.read_bytes()
