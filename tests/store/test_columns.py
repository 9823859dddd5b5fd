"""A run as columns: the same from Parquet, from the journal and from memory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heldout import EvalReport, EvalResult, Metric, Sample, Score, Stop, Trajectory
from heldout.errors import HeldoutError, InvalidInput, RunDirectoryError
from heldout.stats import Moments
from heldout.store import columns
from heldout.store.columns import Labels, ResultTable, summarize_results, table_of, table_of_results
from heldout.store.journal import JournalWriter, content_of
from heldout.store.parquet import ParquetFile
from heldout.store.report import finish
from heldout.store.run_dir import RunDir, RunInfo
from heldout.types import Timing


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


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


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


def read_table(report: EvalReport) -> ResultTable:
    """The table, with the ids that are read when they are asked for."""
    table = table_of(report)
    assert len(list(table.sample_ids)) == len(table.content)
    return table


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


def test_columns_of_an_earlier_version_cluster_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = saved(tmp_path / "run", results())
    open_file = ParquetFile.__init__

    def open_earlier(self: ParquetFile, *arguments: Any) -> None:
        open_file(self, *arguments)
        self.columns.pop("cluster_hash")

    monkeypatch.setattr(ParquetFile, "__init__", open_earlier)
    assert_same(table_of(report), table_of_results(results()))


def test_batches_of_a_run_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [
        result(f"s{i}", k, value=i / 7, metadata={"topic": f"t{i % 3}" if i % 5 else None})
        for i in range(7)
        for k in range(3)
    ]
    expected = table_of_results(many, ["topic"])
    monkeypatch.setattr(columns, "BATCH", 4)  # a sample's repeats are in two of them
    report = saved(tmp_path / "run", many, repeats=3)
    assert_same(table_of(report, ["topic"]), expected)
    assert_same(table_of(from_journal(report), ["topic"]), expected)


@pytest.mark.parametrize(
    "values",
    [[1, 2, 0.5, 3], [True, True, "true", False], ["1", "2", 3, None]],
    ids=["numbers", "flags and texts", "texts and numbers"],
)
def test_a_key_whose_values_become_others_later_has_one_kind_throughout(
    values: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [result(f"s{i}", metadata={"level": value}) for i, value in enumerate(values)]
    expected = table_of_results(given, ["level"])
    monkeypatch.setattr(columns, "BATCH", 2)
    report = saved(tmp_path / "run", given, repeats=1)
    assert RunDir(tmp_path / "run").columns.exists()
    assert_same(table_of(report, ["level"]), expected)
    assert_same(table_of(from_journal(report), ["level"]), expected)


def test_keys_that_differ_in_case_alone_or_are_not_printable_are_columns_of_their_own(
    tmp_path: Path,
) -> None:
    keys = {"kind": "a", "Kind": "b", "KIND": "c", "kind_2": "d", "": "e", "a\"\x00\n'": "f"}
    given = [result("s", metadata=keys), result("t")]
    report = saved(tmp_path / "run", given, repeats=1)
    in_memory = table_of_results(given, [*keys])
    for one in (report, from_journal(report)):
        assert listed(table_of(one, [*keys]).keys) == listed(in_memory.keys)
    assert listed(in_memory.keys) == {key: [value, None] for key, value in keys.items()}


def test_a_run_has_a_parquet_file_from_so_many_results_on(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    run = RunDir(tmp_path / "run")
    assert run.columns.exists()
    finish(run, run.read_info(), 5, parquet_from=5)
    assert run.columns.exists()
    finish(run, run.read_info(), 5, parquet_from=6)
    assert not run.columns.exists()
    assert_same(table_of(EvalReport.load(run.path)), table_of_results(results()))
    assert report.summary == EvalReport.load(run.path).summary


def test_a_slice_is_to_the_last_bit_the_summary_of_its_results_alone(tmp_path: Path) -> None:
    numbers = np.random.default_rng(3)
    values = [0.1, 1 / 3, 1e-300, 5e-324, -7.25, 1e15 + 0.5, 0.0, 1.0]
    given = [
        result(
            f"s{i}",
            value=float(numbers.choice(values)),
            metadata={"key": int(numbers.integers(40))},
            extra=(Metric("other", numbers.normal()),) if i % 3 else (),
        )
        for i in range(400)
    ]
    slices = saved(tmp_path / "run", given, repeats=1).summarize(by="key")
    for key, summary in slices.items():
        own = [each for each in given if each.metadata["key"] == key]
        assert summary == summarize_results(own)
        rewards = Moments.of(np.array([each.score.reward for each in own]))
        assert (summary["mean"], summary["stderr"]) == (rewards.mean, rewards.stderr)
        assert (summary["std"], summary["max"]) == (rewards.std, rewards.max)


# --- Keys ---------------------------------------------------------------------------------------


def test_what_came_out_is_not_offered_as_a_key_but_can_be_one(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    with pytest.raises(HeldoutError) as refused:
        table_of(report, ["colour"])
    _, _, offered = str(refused.value).partition("samples have")
    assert offered.startswith(" level, topic ")
    for outcome in ("reward", "error", "seconds", "tokens", "content", "id_hash", "right"):
        assert outcome not in offered
    assert list(table_of(report, item_keys=["error"]).item_keys["error"])[2] == "it broke"


def test_of_many_keys_some_are_named_and_one_that_is_not_printable_is_quoted() -> None:
    many = {f"key {i:02}": i for i in range(30)} | {"a\x1b[31m": 1}
    with pytest.raises(HeldoutError, match="key 18, 11 more [(]or") as refused:
        table_of_results([result("a", metadata=many)], ["colour"])
    assert r"have 'a\x1b[31m', key 00" in str(refused.value)
    with pytest.raises(HeldoutError, match="its samples have no metadata [(]or ended_by"):
        table_of_results([result("a")], ["colour"])


def test_a_key_that_differs_between_repeats_is_refused_by_sample_and_key(tmp_path: Path) -> None:
    given = [result("a"), result("b", own={"mood": "calm"}), result("b", 1, own={"mood": "wild"})]
    report = saved(tmp_path / "run", given)
    for one in (report, from_journal(report)):
        with pytest.raises(InvalidInput, match="'mood' .* sample 'b': 'calm' and 'wild'"):
            table_of(one, ["mood"])
        found = table_of(one, item_keys=["mood"]).item_keys
        assert listed(found) == {"mood": [None, "calm", "wild"]}


@pytest.mark.parametrize("value", ["true", "null", '"quoted"'])
def test_a_text_is_not_the_value_that_it_reads_as(value: str, tmp_path: Path) -> None:
    given = [
        result(f"s{i}", metadata={"level": level})
        for i, level in enumerate([True, value, 1, "easy", [1], value])
    ]
    report = saved(tmp_path / "run", given, repeats=1)
    expected = ["true", json.dumps(value), "1", '"easy"', "[1]", json.dumps(value)]
    slices = set(expected)
    assert listed(table_of_results(given, ["level"]).keys) == {"level": expected}
    for one in (report, from_journal(report)):
        assert listed(table_of(one, ["level"]).keys) == {"level": expected}
        assert set(one.summarize(by="level")) == slices


def test_a_whole_number_beyond_every_float_is_kept_as_text(tmp_path: Path) -> None:
    given = [result("a", metadata={"level": 10**400}), result("b", metadata={"level": 1.5})]
    report = saved(tmp_path / "run", given, repeats=1)
    assert listed(table_of(report, ["level"]).keys) == {"level": [str(10**400), "1.5"]}


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
        {"z": Point(1, 2), "a": (1, (2, 3))},
        {"b", "a"},
        np.float32(0.1),
        np.arange(3),
        float("nan"),
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


@pytest.mark.parametrize(
    "value",
    [object(), {1: "one", "two": 2}, {1, "two"}, nested(100_000)],
    ids=["object", "mixed keys", "mixed set", "deep"],
)
def test_metadata_that_json_cannot_hold_is_refused_as_the_journal_does(
    value: Any, tmp_path: Path
) -> None:
    given = [result("s", own={"odd": value})]
    with pytest.raises(InvalidInput, match="sample 's' holds a value that JSON cannot"):
        table_of_results(given, ["odd"])
    with pytest.raises(InvalidInput, match="sample 's' holds a value that JSON cannot"):
        saved(tmp_path / "run", given)


@pytest.mark.parametrize(
    "value",
    [float("nan"), {"b", "a"}, np.float32(0.5), np.arange(2), Point(1, 2), (1, 2)],
    ids=lambda value: type(value).__name__,
)
def test_metadata_in_memory_is_what_the_journal_gives_back(value: Any, tmp_path: Path) -> None:
    given = [
        result("s", metadata={"level": 1, "odd": 1}, own={"odd": value}),
        result("t", metadata={"odd": value}),
    ]
    report = saved(tmp_path / "run", given, repeats=1)
    in_memory = table_of_results(given, ["level", "odd"])
    assert in_memory.keys["level"].values == [1]
    assert_same(in_memory, table_of(report, ["level", "odd"]))
    assert_same(in_memory, table_of_results(report.results, ["level", "odd"]))


# --- Files that say something else ---------------------------------------------------------------


@pytest.mark.parametrize("spoil", ["other bytes", "another file", "gone"])
def test_a_parquet_file_that_is_not_the_one_that_was_written_is_passed_over(
    spoil: str, tmp_path: Path
) -> None:
    report = saved(tmp_path / "run", results())
    expected, slices = read_table(report), report.slices_and_total("topic")
    run = RunDir(tmp_path / "run")
    whole = run.columns.read_bytes()
    saved(tmp_path / "other", results()[:2])
    run.columns.write_bytes(
        {
            "other bytes": whole[:40] + bytes(20) + whole[60:],
            "another file": RunDir(tmp_path / "other").columns.read_bytes(),
            "gone": b"",
        }[spoil]
    )
    if spoil == "gone":
        run.columns.unlink()
    again = EvalReport.load(run.path)
    assert_same(table_of(again), expected)
    assert again.slices_and_total("topic") == slices


@pytest.mark.parametrize(
    "items",
    [
        [(0, result("a")), (1, result("b")), (2, result("a"))],
        [(0, result("a")), (0, result("b", 1))],
        [(0, result("a")), (0, result("a", 1)), (1, result("b")), (0, result("a"))],
    ],
    ids=["an id at two places", "two ids at one place", "an attempt twice"],
)
def test_a_journal_in_which_something_is_there_twice_is_refused(
    items: list[tuple[int, EvalResult]], tmp_path: Path
) -> None:
    run = RunDir(tmp_path / "run")
    run.make()
    run.write_info(RunInfo.new({"repeats": 2}, {}))
    journal = JournalWriter(run.journal)
    for index, each in items:
        journal.append(index, each)
    journal.close()
    with pytest.raises(RunDirectoryError, match="run: a sample, .* is there twice"):
        EvalReport.load(run.path)
    with pytest.raises(RunDirectoryError, match="run: a sample, .* is there twice"):
        finish(run, run.read_info(), len(items))


def test_a_killed_and_resumed_run_has_the_same_columns_byte_for_byte(tmp_path: Path) -> None:
    saved(tmp_path / "one", results())
    journal = RunDir(tmp_path / "one").journal
    head, *lines = journal.read_bytes().splitlines(keepends=True)
    other = RunDir(tmp_path / "other")
    shutil.copytree(tmp_path / "one", other.path)
    other.journal.write_bytes(head + b"".join(reversed(lines)))
    columns.derive(other, 2, 0.5, parquet=True)
    assert other.columns.read_bytes() == RunDir(tmp_path / "one").columns.read_bytes()


def test_a_parquet_file_of_other_columns_is_not_read_but_the_journal(tmp_path: Path) -> None:
    cached = replace(result("a"), trajectory=Trajectory((), timing=Timing(1.0, 0, 0, 2)))
    run = saved(tmp_path / "run", [cached, result("b")], repeats=1).run_dir
    info = run.read_info()
    with columns.current_parquet(run, info) as file:
        assert file is not None
    info.columns_hash = info.columns_hash.partition(":")[2]  # as without a version
    run.write_info(info)
    report = EvalReport.load(run.path)
    with columns.current_parquet(run, info) as file:
        assert file is None
    assert table_of(report).cached.tolist() == [True, False]
    assert table_of(report).cached_turns.tolist() == [2, 0]
