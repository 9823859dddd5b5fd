"""SQL over the results of a run: what it reads, what it is refused, and what `where` says of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from heldout import EvalReport, EvalResult, Message, Metric, Sample, Score, Trajectory, Usage
from heldout.errors import InvalidInput, InvalidQuery
from heldout.store import columns
from heldout.store.columns import summarize_results
from heldout.store.journal import JournalWriter
from heldout.store.run_dir import RunDir, RunInfo
from heldout.store.sql import query
from heldout.store.tables import table_of


def result(i: int, repeat: int = 0) -> EvalResult:
    level = "hard" if i % 3 else "easy"
    sample = Sample(f"s{i}", {"question": i}, i, {"level": level, "size": i})
    messages = Message("system", "Be brief."), Message("user", f"What is {i}?")
    said = Trajectory((*messages, Message("assistant", f"It is {i}.")), usage=Usage(i, 1))
    score = Score((Metric("correct", float(i % 4 > 0), 1.0), Metric("length", i)))
    if i == 7:
        return EvalResult(sample.id, sample, said, error="it broke", repeat=repeat)
    return EvalResult(sample.id, sample, said, score, {"turns": i % 2}, repeat)


RESULTS = [result(i, repeat) for i in range(12) for repeat in range(2)]


@pytest.fixture(params=["parquet", "journal", "memory"])
def report(request: pytest.FixtureRequest, tmp_path: Path, in_memory: EvalReport) -> EvalReport:
    if request.param == "memory":
        return in_memory
    in_memory.save(tmp_path / "run")
    run = RunDir(tmp_path / "run")
    if request.param == "journal":
        run.columns.unlink()
    return EvalReport.load(run.path)


@pytest.fixture
def in_memory() -> EvalReport:
    return EvalReport(RESULTS, summarize_results(RESULTS), {"repeats": 2})


def rows(report: EvalReport, sql: str) -> list[tuple[Any, ...]]:
    with query(report, sql) as found:
        return list(found.rows)


def test_results_are_a_table_whatever_they_are_read_from(report: EvalReport) -> None:
    assert rows(report, "select count(*), sum(reward), count(error), sum(passed) from results") == [
        (24, 16.0, 2, 16)
    ]
    assert rows(
        report, "from results select sample_id, repeat, reward, error limit 2 offset 13"
    ) == [
        ("s6", 1, 1.0, None),
        ("s7", 0, None, "it broke"),
    ]
    grouped = "select metadata.level, avg(metrics.length) from results group by all order by 1"
    assert rows(report, grouped) == [("easy", 4.5), ("hard", 41 * 2 / 14)]
    assert rows(
        report, "select prompt_tokens, metadata.turns from results where sample_id = 's3'"
    ) == [
        (3, 1),
        (3, 1),
    ]


def test_means_have_the_denominators_of_the_summary_or_say_theirs(report: EvalReport) -> None:
    n, scored = report.summary["n"], report.summary["n_scored"]
    means = "select avg(reward), avg(reward_or_0), avg(passed::int), count(*) from results"
    keys = ("mean_scored", "mean", "pass_rate", "n")
    expected = tuple(report.summary[key] for key in keys)
    assert rows(report, means) == [pytest.approx(expected)]
    assert rows(report, f"select {', '.join(keys)} from summary") == [expected]
    with query(report, "select avg(Reward), count(*) from results") as found:
        assert f"{n - scored} of {n} items errored" in found.note
        assert f"over the {scored} others, avg(reward_or_0) over all {n}" in found.note
    for sql in ("select avg(reward_or_0) from results", "select count(*) from results"):
        with query(report, sql) as found:
            assert found.note is None


def test_texts_are_there_where_they_are_named(report: EvalReport) -> None:
    texts = "select prompt, answer, ground_truth from results"
    (row,) = rows(report, f"{texts} where sample_id='s5' and repeat=1")
    assert row == ("Be brief.\n\nWhat is 5?", "It is 5.", "5")
    with query(report, "select * from results") as found:
        assert not {"prompt", "answer", "ground_truth"} & {*found.columns}


def test_what_is_not_one_select_is_refused(tmp_path: Path) -> None:
    EvalReport(RESULTS, {}, {}).save(tmp_path / "run")
    report, file = EvalReport.load(tmp_path / "run"), RunDir(tmp_path / "run").columns
    before = file.read_bytes()
    for sql in (
        "drop view results",
        "copy results to 'out.csv'",
        f"copy results to '{file}'",
        "attach 'x.db'",
        "set enable_external_access = true",
        "pragma threads = 4",
        "install httpfs",
        "select 1; select 2",
        "",
    ):
        with pytest.raises(InvalidQuery, match="a query is one SELECT statement"):
            rows(report, sql)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_other_files_are_out_of_reach(tmp_path: Path) -> None:
    EvalReport(RESULTS, {}, {}).save(tmp_path / "run")
    report = EvalReport.load(tmp_path / "run")
    for place in (
        f"read_text('{tmp_path}/run/run.json')",
        f"read_parquet('{tmp_path}/run/*.parquet')",
        f"'{tmp_path}/run/results.jsonl'",
        "glob('/*')",
        "read_csv('https://example.com/x.csv')",
    ):
        with pytest.raises(InvalidQuery) as refused:
            rows(report, f"select * from {place}")
        assert "\n" not in str(refused.value)


def test_a_mistake_is_told_in_duckdbs_words_on_one_line() -> None:
    report = EvalReport(RESULTS, {}, {})
    with pytest.raises(InvalidQuery, match='"rewrd" not found.*reward') as refused:
        rows(report, "select rewrd\nfrom results")
    assert "\n" not in str(refused.value)
    with pytest.raises(InvalidQuery, match="syntax error"):
        rows(report, "selec")
    with pytest.raises(InvalidQuery, match="convert string 's0'"):
        rows(report, "select sample_id::int from results")


def test_names_from_a_run_are_names_and_nothing_else(tmp_path: Path) -> None:
    keys = {"x') as y, 1 --": 1, 'q"uote': 2, "Level": 3, "level": 4, "a\x00b": 5, "'": 6, "": 7}
    sample = Sample("'; drop table results --", {}, metadata=keys)
    score = Score((Metric("m\"'); --", 1.0, 1.0),))
    folder = tmp_path / "ru'n [*] x=1"
    EvalReport([EvalResult(sample.id, sample, Trajectory(()), score)], {}, {}).save(folder)
    shutil.copytree(folder, tmp_path / "ru'n * x=1")  # which a pattern would match
    (row,) = rows(EvalReport.load(folder), "select sample_id, metadata, metrics from results")
    assert row[0] == sample.id
    assert sorted(row[1].values()) == [1, 2, 3, 4, 5, 6, 7]
    assert [*row[2].values()] == [1.0]


def test_a_report_of_any_size_is_written_as_parquet(report: EvalReport, tmp_path: Path) -> None:
    report.where("repeat = 1").to_parquet(tmp_path / "one.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "one.parquet").to_pydict()
    assert table["sample_id"] == [f"s{i}" for i in range(12)]
    assert table["metric.length"] == [None if i == 7 else float(i) for i in range(12)]
    assert table["metadata.level"] == ["hard" if i % 3 else "easy" for i in range(12)]


def test_a_run_without_results_says_so(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.make()
    run.write_info(RunInfo.new({}, {}))
    JournalWriter(run.journal).close()
    with pytest.raises(InvalidInput, match="there are none yet"):
        rows(EvalReport.load(run.path), "select 1")


# --- where --------------------------------------------------------------------------------------


def test_where_is_a_report_of_the_results_that_meet_a_condition(report: EvalReport) -> None:
    hard = report.where("metadata.level = 'hard' -- not easy")
    picked = [each for each in RESULTS if each.metadata["level"] == "hard"]
    assert list(hard.results) == picked
    assert len(hard.results) == 16
    expected = summarize_results(picked)
    assert {key: hard.summary[key] for key in expected} == expected
    assert (hard.summary["where"], hard.summary["n_of"]) == (
        "metadata.level = 'hard' -- not easy",
        24,
    )
    assert hard.summary["ci_low"] is not None
    table = table_of(hard.results, ["size"])
    assert list(table.sample_ids) == [f"s{i}" for i in range(12) if i % 3]
    assert list(table.keys["size"]) == [i for i in range(12) if i % 3]
    assert len(table) == 16
    assert [*report.where("repeat = 1 and sample_id = 's4'").results] == [result(4, 1)]


def test_a_query_of_picked_results_reads_no_others(report: EvalReport) -> None:
    picked = report.where("sample_id = 's4'")
    found = rows(picked, "select sample_id, repeat, ground_truth from results order by repeat")
    assert found == rows(report, "select sample_id, repeat, ground_truth from results "
                                 "where sample_id = 's4' order by repeat")  # fmt: skip
    assert len(found) == 2


@pytest.mark.parametrize("condition", ["error is not null", "sample_id = 's7'"])
def test_where_may_pick_only_items_that_errored(report: EvalReport, condition: str) -> None:
    errored = report.where(condition)
    counts = [errored.summary[key] for key in ("n", "n_errors", "n_of", "mean")]
    assert counts == [2, 2, 24, None]
    assert not [key for key in errored.summary if key.startswith("metric_")]


@pytest.mark.parametrize(
    "condition",
    [
        "reward = 1",
        "error is null",
        "reward_or_0 = 0",
        "metrics.correct > 0",
        "metadata.turns = 1",
        "answer like '%4%'",
        "seconds is null and metadata.level = 'hard'",
        "sample_id in (select sample_id from results where reward = 1)",
        # By the whole row, in which the reward is.
        "to_json(results)->>'reward' = '1.0'",
        "results::varchar like '%''reward'': 1.0%'",
        "(select to_json(r)->'metrics'->>'correct' from results r limit 1) = '0.0'",
        "length(results::varchar) > 0",
        "len(list_filter([results], lambda x: x::varchar like '%''error'': NULL%')) = 1",
        "metadata::varchar like '%''turns'': 1%'",
        "exists (from results o where o.sample_id = results.sample_id "
        "and o::varchar like '%''reward'': 1%')",
    ],
)
def test_what_is_picked_by_outcome_has_counts_and_no_intervals(
    condition: str, in_memory: EvalReport
) -> None:
    picked = in_memory.where(condition)
    assert picked.selection.by_outcome
    assert picked.summary["n"] == int(picked.selection.items.sum())
    for key in ("stderr", "ci_low", "ci_high", "pass_rate_ci_low", "ci_scored_high"):
        assert picked.summary[key] is None
    assert picked.summary["metric_length_ci_low"] is None
    assert picked.summary["metric_length_n"] > 0


@pytest.mark.parametrize(
    "condition",
    [
        "sample_id < 's5'",
        "repeat = 0",
        '"index" < 3',
        "prompt like '%4%'",
        "ground_truth = '4'",
        "true",
        "random() < 0.5",
        "metadata::varchar like '%hard%'",
    ],
)
def test_what_is_picked_by_what_was_asked_keeps_its_intervals(
    condition: str, in_memory: EvalReport
) -> None:
    picked = in_memory.where(condition)
    assert not picked.selection.by_outcome


def test_slices_of_a_selection_say_that_they_are_of_one(tmp_path: Path) -> None:
    EvalReport(RESULTS, {}, {"repeats": 2}).save(tmp_path / "run")
    report = EvalReport.load(tmp_path / "run")
    slices, total = report.where("metadata.size < 6").slices_and_total("level")
    assert {values: summary["n"] for values, summary in slices.items()} == {
        ("easy",): 4,
        ("hard",): 8,
    }
    assert {summary["where"] for summary in (*slices.values(), total)} == {"metadata.size < 6"}
    assert slices[("hard",)]["ci_low"] is not None
    by_outcome = report.where("reward = 0").summarize(by="level")
    assert {summary["ci_low"] for summary in by_outcome.values()} == {None}


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("rewrd = 1", '"rewrd" not found'),
        ("level and and", "syntax error"),
        ("count(*) > 1", "aggregate"),
        ("sample_id = 's99'", "there is no result where sample_id = 's99'"),
        ("sample_id in (select sample_id from 'x.parquet')", "."),
        ("true; drop view results", "syntax error"),
    ],
)
def test_a_condition_that_is_none_is_refused(
    condition: str, message: str, in_memory: EvalReport
) -> None:
    with pytest.raises(InvalidQuery, match=message):
        in_memory.where(condition)


def test_a_selection_is_not_picked_from_again(in_memory: EvalReport) -> None:
    with pytest.raises(InvalidInput, match="join the conditions with AND"):
        in_memory.where("repeat = 0").where("sample_id = 's3'")


def test_too_many_columns_for_a_table_are_refused(
    report: EvalReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    if report.path is not None:
        RunDir(report.path).columns.unlink(missing_ok=True)
    monkeypatch.setattr(columns, "MAX_COLUMNS", 13)
    with pytest.raises(InvalidInput, match="more columns than a table holds"):
        rows(report, "select 1")
