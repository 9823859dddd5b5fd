"""A run as a table: its keys, its slices, and what samples share."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heldout import EvalReport, Metric, Sample
from heldout.cli._tables import render_markdown
from heldout.errors import HeldoutError, InvalidInput
from heldout.reporting.summaries import build_slices
from heldout.stats import Moments
from heldout.store.columns import summarize_results
from heldout.store.journal import content_of
from heldout.store.tables import group_results, table_of
from tests.store.runs import assert_same, from_journal, listed, result, results, saved


@dataclass(frozen=True)
class Point:
    y: int
    x: int


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_table_has_the_items_in_dataset_order_and_errored_ones_without_a_reward() -> None:
    table = table_of(results()[::-1], ["level"])
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
    in_memory = table_of(results(), keys, item_keys=items)
    report = saved(tmp_path / "run", results())
    assert_same(table_of(report.results, keys, item_keys=items), in_memory)
    assert_same(table_of(from_journal(report).results, keys, item_keys=items), in_memory)


def test_keys_that_differ_in_case_alone_or_are_not_printable_are_columns_of_their_own(
    tmp_path: Path,
) -> None:
    keys = {"kind": "a", "Kind": "b", "KIND": "c", "kind_2": "d", "": "e", "a\"\x00\n'": "f"}
    given = [result("s", metadata=keys), result("t")]
    report = saved(tmp_path / "run", given, repeats=1)
    in_memory = table_of(given, [*keys])
    for one in (report, from_journal(report)):
        assert listed(table_of(one.results, [*keys]).keys) == listed(in_memory.keys)
    assert listed(in_memory.keys) == {key: [value, None] for key, value in keys.items()}


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
        table_of(report.results, ["colour"])
    _, _, offered = str(refused.value).partition("samples have")
    assert offered.startswith(" level, topic ")
    for outcome in ("reward", "error", "seconds", "tokens", "content", "id_hash", "right"):
        assert outcome not in offered
    assert list(table_of(report.results, item_keys=["error"]).item_keys["error"])[2] == "it broke"


def test_of_many_keys_some_are_named_and_one_that_is_not_printable_is_quoted() -> None:
    many = {f"key {i:02}": i for i in range(30)} | {"a\x1b[31m": 1}
    with pytest.raises(HeldoutError, match="key 18, 11 more [(]or") as refused:
        table_of([result("a", metadata=many)], ["colour"])
    assert r"have 'a\x1b[31m', key 00" in str(refused.value)
    with pytest.raises(HeldoutError, match="its samples have no metadata [(]or ended_by"):
        table_of([result("a")], ["colour"])


def test_a_key_that_differs_between_repeats_is_refused_by_sample_and_key(tmp_path: Path) -> None:
    given = [result("a"), result("b", own={"mood": "calm"}), result("b", 1, own={"mood": "wild"})]
    report = saved(tmp_path / "run", given)
    for one in (report, from_journal(report)):
        with pytest.raises(InvalidInput, match="'mood' .* sample 'b': 'calm' and 'wild'"):
            table_of(one.results, ["mood"])
        found = table_of(one.results, item_keys=["mood"]).item_keys
        assert listed(found) == {"mood": [None, "calm", "wild"]}


@pytest.mark.parametrize("value", ["true", "null", '"quoted"'])
def test_a_text_is_not_the_value_that_it_reads_as(value: str, tmp_path: Path) -> None:
    given = [
        result(f"s{i}", metadata={"level": level})
        for i, level in enumerate([True, value, 1, "easy", [1], value])
    ]
    report = saved(tmp_path / "run", given, repeats=1)
    expected = ["true", json.dumps(value), 1, "easy", "[1]", json.dumps(value)]
    slices = set(expected)
    assert listed(table_of(given, ["level"]).keys) == {"level": expected}
    for one in (report, from_journal(report)):
        assert listed(table_of(one.results, ["level"]).keys) == {"level": expected}
        assert set(one.summarize(by="level")) == slices


def test_a_whole_number_beyond_every_float_is_kept_as_text(tmp_path: Path) -> None:
    given = [result("a", metadata={"level": 10**400}), result("b", metadata={"level": 1.5})]
    report = saved(tmp_path / "run", given, repeats=1)
    assert listed(table_of(report.results, ["level"]).keys) == {"level": [str(10**400), 1.5]}


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
    expected = table_of(given).content
    assert table_of(report.results).content == expected
    assert table_of(list(report.results)).content == expected


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
        table_of(given, ["odd"])
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
    in_memory = table_of(given, ["level", "odd"])
    assert in_memory.keys["level"].values == [1]
    assert_same(in_memory, table_of(report.results, ["level", "odd"]))
    assert_same(in_memory, table_of(list(report.results), ["level", "odd"]))


@pytest.mark.parametrize("parquet", [True, False])
def test_slices_of_numbers_and_texts_are_typed_and_sorted_numbers_first(
    parquet: bool, tmp_path: Path
) -> None:
    levels = [10, "easy", 2, 2.0, "10", True, "true", [1], None, 2.5]
    given = [result(f"s{i}", metadata={"level": level}) for i, level in enumerate(levels)]
    report = saved(tmp_path / "run", given, repeats=1)
    assert report.path is not None
    assert (report.path / "results.parquet").exists()
    if not parquet:
        (report.path / "results.parquet").unlink()
        report = EvalReport.load(report.path)
    slices = report.summarize(by="level")
    assert [*slices] == [2, 2.5, 10, '"true"', "10", "[1]", "easy", "true", None]
    assert [summary["n"] for summary in slices.values()] == [2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert [*group_results(given, "level")] == [*slices]
    labelled = {(value,): summary for value, summary in slices.items()}
    shown = render_markdown(build_slices(["level"], labelled, report.summary, report))
    rows = [line.split("|")[1].strip() for line in shown.splitlines() if line.startswith("|")][2:]
    assert rows == ["2", "2.5", "10", r'"true"', r'"10"', "&#91;1&#93;", "easy", "true", "–", "all"]
