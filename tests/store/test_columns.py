"""Columns of a run: the same from Parquet, from the journal and from memory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalReport, EvalResult, Trajectory
from heldout.errors import RunDirectoryError
from heldout.store import columns
from heldout.store.journal import JournalWriter
from heldout.store.parquet import ParquetFile
from heldout.store.report import finish
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.tables import ResultTable, table_of
from heldout.types import Timing
from tests.store.runs import assert_same, from_journal, result, results, saved


def read_table(report: EvalReport) -> ResultTable:
    """The table, with the ids that are read when they are asked for."""
    table = table_of(report.results)
    assert len(list(table.sample_ids)) == len(table.content)
    return table


def test_columns_of_an_earlier_version_cluster_by_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = saved(tmp_path / "run", results())
    open_file = ParquetFile.__init__

    def open_earlier(self: ParquetFile, *arguments: Any) -> None:
        open_file(self, *arguments)
        self.columns.pop("cluster_hash")

    monkeypatch.setattr(ParquetFile, "__init__", open_earlier)
    assert_same(table_of(report.results), table_of(results()))


def test_batches_of_a_run_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [
        result(f"s{i}", k, value=i / 7, metadata={"topic": f"t{i % 3}" if i % 5 else None})
        for i in range(7)
        for k in range(3)
    ]
    expected = table_of(many, ["topic"])
    monkeypatch.setattr(columns, "BATCH", 4)  # a sample's repeats are in two of them
    report = saved(tmp_path / "run", many, repeats=3)
    assert_same(table_of(report.results, ["topic"]), expected)
    assert_same(table_of(from_journal(report).results, ["topic"]), expected)


@pytest.mark.parametrize(
    "values",
    [[1, 2, 0.5, 3], [True, True, "true", False], ["1", "2", 3, None]],
    ids=["numbers", "flags and texts", "texts and numbers"],
)
def test_a_key_whose_values_become_others_later_has_one_kind_throughout(
    values: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [result(f"s{i}", metadata={"level": value}) for i, value in enumerate(values)]
    expected = table_of(given, ["level"])
    monkeypatch.setattr(columns, "BATCH", 2)
    report = saved(tmp_path / "run", given, repeats=1)
    assert RunDir(tmp_path / "run").columns.exists()
    assert_same(table_of(report.results, ["level"]), expected)
    assert_same(table_of(from_journal(report).results, ["level"]), expected)


def test_a_run_has_a_parquet_file_from_so_many_results_on(tmp_path: Path) -> None:
    report = saved(tmp_path / "run", results())
    run = RunDir(tmp_path / "run")
    assert run.columns.exists()
    finish(run, run.read_info(), 5, parquet_from=5)
    assert run.columns.exists()
    finish(run, run.read_info(), 5, parquet_from=6)
    assert not run.columns.exists()
    assert_same(table_of(EvalReport.load(run.path).results), table_of(results()))
    assert report.summary == EvalReport.load(run.path).summary


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
    assert_same(table_of(again.results), expected)
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
    assert table_of(report.results).cached.tolist() == [True, False]
    assert table_of(report.results).cached_turns.tolist() == [2, 0]
