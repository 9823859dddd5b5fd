"""The run directory: what is written, what is read back, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heldout import EvalReport, EvalResult, Message, Metric, Sample, Score, Stop, Trajectory
from heldout._core.prices import Price
from heldout.analysis import compare, summarize
from heldout.errors import (
    DamagedJournal,
    NotComparable,
    RunDirectoryError,
    RunExists,
    StorageFull,
    UnknownFormat,
)
from heldout.store import jsonl, run_dir
from heldout.store.journal import JournalWriter, in_order, lines, repair, superseded
from heldout.store.run_dir import ModelUsage, RunDir, RunInfo, RunUsage
from heldout.store.runs import find_run, read_entry
from heldout.types import Completion, Usage
from tests.conftest import RunEval, echo_number, make_samples


def result(i: int, repeat: int = 0, reward: float = 1.0, error: str | None = None) -> EvalResult:
    sample = Sample(f"s{i}", {"question": str(i)}, metadata={"level": i % 3, "tag": f"t{i % 2}"})
    score = Score() if error else Score((Metric("m", reward, 1.0), Metric("extra", i)))
    said = Trajectory((Message("assistant", str(i)),), Stop(truncated=i % 5 == 0))
    return EvalResult(sample.id, sample, said, score, {}, repeat, error)


def write(path: Path, results: list[tuple[int, EvalResult]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    journal = JournalWriter(path)
    for index, each in results:
        journal.append(index, each)
    journal.close()
    return path


# --- Files ---


def test_a_run_leaves_the_files_that_are_promised(run_eval: RunEval, tmp_path: Path) -> None:
    run_eval(make_samples(4))
    names = sorted(p.name for p in (tmp_path / "run").iterdir())
    assert names == ["results.jsonl", "results.parquet", "run.json", "summary.json"]
    for name in ("run.json", "summary.json"):
        content = json.loads((tmp_path / "run" / name).read_text())
        assert content["version"] == (2 if content["format"] == "heldout.summary" else 1)
    header = (tmp_path / "run" / "results.jsonl").read_text().splitlines()[0]
    assert json.loads(header) == {"format": "heldout.results", "version": 1}


def test_columns_take_the_type_of_their_values(tmp_path: Path) -> None:
    rows = [
        {"whole": 1, "mixed": 1, "flag": True, "text": "a", "nested": {"x": 1}, "either": 1},
        {"whole": 2, "mixed": 0.5, "flag": False, "text": "b", "nested": [1], "either": "one"},
        {"whole": None, "big": 2**70},
    ]
    results = [
        EvalResult(f"s{i}", Sample(f"s{i}", {}, metadata=row), Trajectory(()))
        for i, row in enumerate(rows)
    ]
    EvalReport(results, {}, {}).save(tmp_path / "run")
    table = pyarrow.parquet.read_table(tmp_path / "run" / "results.parquet").to_pydict()
    assert table["metadata.whole"] == [1, 2, None]
    assert table["metadata.mixed"] == [1.0, 0.5, None]
    assert table["metadata.flag"] == [True, False, None]
    assert table["metadata.text"] == ["a", "b", None]
    assert table["metadata.nested"] == ['{"x":1}', "[1]", None]
    assert table["metadata.either"] == ["1", '"one"', None]
    assert table["metadata.big"] == [None, None, str(2**70)]


def test_a_report_is_saved_elsewhere_and_loads_the_same(run_eval: RunEval, tmp_path: Path) -> None:
    report = run_eval(make_samples(5))
    report.save(tmp_path / "run")  # where it is: nothing to do
    report.save(tmp_path / "copies" / "one")
    copy = EvalReport.load(tmp_path / "copies" / "one")
    assert copy.summary == report.summary
    assert list(copy.results) == list(report.results)
    assert copy.summarize(by="difficulty") == report.summarize(by="difficulty")
    assert repr(copy).startswith("EvalReport({'n': 5, 'n_errors': 0, 'mean': 1.0}, status='compl")
    assert (copy.results[-1], copy.results[1:3]) == (report.results[4], [*report.results][1:3])
    with pytest.raises(RunExists):
        report.save(tmp_path / "copies" / "one")


def test_a_report_made_in_memory_is_saved_in_the_same_layout(tmp_path: Path) -> None:
    results = [result(1, repeat=1), result(0), result(1, repeat=0), result(0, repeat=1)]
    EvalReport(results, summarize(results), {"experiment_name": "x"}).save(tmp_path / "x")
    loaded = EvalReport.load(tmp_path / "x")
    assert loaded.summary == summarize(results)
    assert loaded.summary["n"] == 4
    assert loaded.config["experiment_name"] == "x"
    in_memory = EvalReport(results, {}, {})
    assert in_memory.summarize(by="level") == loaded.summarize(by="level")


def test_the_summary_loads_without_the_journal_being_read(
    run_eval: RunEval, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run_eval(make_samples(5)).summary

    def refuse(*args: Any) -> Any:
        raise AssertionError("the journal was read")

    monkeypatch.setattr("heldout.store.journal.lines", refuse)
    assert EvalReport.load(tmp_path / "run").summary == expected


# --- Slices ---


def test_slices_are_the_summaries_of_their_results(run_eval: RunEval) -> None:
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "s4":
            raise ValueError("no")
        return Score((Metric("m", int(sample.id[1:]) / 20, 1.0),))

    report = run_eval(make_samples(20), score, repeats=2)
    slices = report.summarize(by="difficulty")
    assert list(slices) == ["easy", "hard", "medium"]
    for name, summary in slices.items():
        same = [r for r in report.results if r.metadata["difficulty"] == name]
        assert summary == pytest.approx(summarize(same))
    by_function = report.summarize(by=lambda r: r.metadata["difficulty"])
    assert list(by_function) == ["easy", "hard", "medium"]
    assert by_function["easy"] == pytest.approx(slices["easy"])


# --- The journal ---


def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    path = write(tmp_path / "results.jsonl", [(i, result(i)) for i in range(3)])
    whole = path.read_bytes()
    for cut in (1, 10, len(whole.splitlines(keepends=True)[-1]) - 1):
        path.write_bytes(whole[:-cut])
        assert len(list(lines(path))) == 2
        write(path, [(2, result(2))])
        assert len(list(lines(path))) == 3
        assert path.read_bytes() == whole


def test_a_run_whose_writer_is_gone_does_not_count_as_running(
    run_eval: RunEval, tmp_path: Path
) -> None:
    run_eval(make_samples(2))
    run = RunDir(tmp_path / "run")
    info = run.read_info()
    info.status, info.asked = "running", 5
    run.write_info(info)
    assert EvalReport.load(run.path).status == "interrupted"
    writer = JournalWriter(run.journal)
    live = EvalReport.load(run.path)
    writer.close()
    assert live.status == "running"
    assert live.summary["complete"] is False
    assert (live.summary["n"], live.summary["n_asked"]) == (2, 5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
def test_the_order_in_which_items_finish_does_not_matter(
    tmp_path: Path, order: list[int], errored_first: set[int]
) -> None:
    """Whatever overtook whatever, and whatever was run again: same rows, in dataset order."""
    path = tmp_path / "results.jsonl"
    path.unlink(missing_ok=True)
    repeats = 3
    again = [(i // repeats, result(i // repeats, i % repeats)) for i in order]
    early = [
        (i // repeats, result(i // repeats, i % repeats, error="x"))
        for i in order
        if i in errored_first
    ]
    write(path, [*early, *again])
    rows = list(in_order(path, repeats))
    assert [(r.index, r.repeat) for r in rows] == [(i // repeats, i % repeats) for i in range(12)]
    assert all(r.error is None for r in rows)
    assert set(superseded(path)) == {(i // repeats, i % repeats) for i in errored_first}


def test_few_rows_wait_in_memory_however_slow_one_item_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.store.journal.WAITING_ROWS", 3)
    order = [5, 4, 3, 9, 8, 7, 6, 2, 1, 0]
    path = write(tmp_path / "results.jsonl", [(i, result(i)) for i in order])
    assert [r.sample.id for r in in_order(path, 1)] == [f"s{i}" for i in range(10)]


def test_a_damaged_line_in_the_middle_is_named_and_moved_aside_on_request(
    run_eval: RunEval, tmp_path: Path
) -> None:
    run_eval(make_samples(6), max_concurrent=1)
    path = tmp_path / "run" / "results.jsonl"
    content = path.read_bytes().splitlines(keepends=True)
    content[3] = content[3][:40] + b"\x00garbage" + content[3][48:]
    path.write_bytes(b"".join(content))
    with pytest.raises(DamagedJournal, match=r"line 4.*heldout repair") as raised:
        list(EvalReport.load(tmp_path / "run").results)
    assert raised.value.line == 4
    with pytest.raises(DamagedJournal, match="line 4"):
        run_eval(make_samples(6), max_concurrent=1, resume=True)

    announced: list[list[int]] = []
    assert repair(path, announced.append) == [4]
    assert announced == [[4]]
    assert path.with_suffix(".damaged").read_bytes() == content[3]
    assert [r.sample_id for r in EvalReport.load(tmp_path / "run").results] == [
        "s0", "s1", "s3", "s4", "s5",
    ]  # fmt: skip
    report = run_eval(make_samples(6), max_concurrent=1, resume=True)
    assert [r.sample_id for r in report.results] == [f"s{i}" for i in range(6)]
    assert repair(path, announced.append) == []


def test_a_write_that_fails_halfway_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.jsonl"
    journal = JournalWriter(path)
    journal.append(0, result(0))
    write, calls = os.write, 0

    def full(fd: int, data: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return write(fd, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(StorageFull, match=r"No space left.*the 1 results"):
            journal.append(1, result(1))
    journal.append(2, result(2))  # room was made
    journal.close()
    assert [(r.index, r.sample.id) for r in in_order(path, 1)] == [(0, "s0"), (2, "s2")]


# --- What is refused ---


@pytest.mark.parametrize("name", ["run.json", "summary.json", "results.jsonl"])
def test_a_version_from_the_future_is_refused_by_name(
    run_eval: RunEval, tmp_path: Path, name: str
) -> None:
    run_eval(make_samples(2))
    path = tmp_path / "run" / name
    text = path.read_text()
    path.write_text(re.sub(r'"version": ?[0-9]+', '"version": 7', text, count=1))
    with pytest.raises(UnknownFormat, match=f"{name}.*version 7"):
        list(EvalReport.load(tmp_path / "run").results)


def test_a_run_file_that_is_none_is_an_error_in_words(tmp_path: Path) -> None:
    for content in ("", "{", "null", '{"format": 1}', "[" * 100_000):
        (tmp_path / "run.json").write_text(content)
        with pytest.raises(RunDirectoryError, match=r"run\.json"):
            EvalReport.load(tmp_path)
    (tmp_path / "run.json").write_text('{"format": "heldout.run", "version": 9}')
    with pytest.raises(UnknownFormat, match="version 9"):  # whatever its fields are
        EvalReport.load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b'{"format":"heldout.summary","version":2,"summary":{"n":"\\u001b]0;PWNED"}}',
        b'{"format":"heldout.summary","version":2,"summary":{"n":1}}',
        b"{",
    ],
)
def test_a_summary_file_that_is_none_is_passed_over_for_the_journal(
    run_eval: RunEval, tmp_path: Path, content: bytes
) -> None:
    expected = run_eval(make_samples(4)).summary
    (tmp_path / "run" / "summary.json").write_bytes(content)
    assert EvalReport.load(tmp_path / "run").summary == expected


def test_a_link_to_somebody_elses_file_is_not_written_through(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.txt"
    theirs.write_text("no newline")
    (tmp_path / "results.jsonl").symlink_to(theirs)
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        JournalWriter(tmp_path / "results.jsonl")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        repair(tmp_path / "results.jsonl", print)
    assert theirs.read_text() == "no newline"


@pytest.mark.parametrize("tokens", [10**400, 2**53 + 1, -1])
def test_impossible_token_counts_in_a_journal_are_unknown(
    run_eval: RunEval, tmp_path: Path, tokens: int
) -> None:
    async def with_usage(messages: list[Message]) -> Completion:
        return Completion(Message("assistant", await echo_number(messages)), usage=Usage(5, 2))

    run_eval(make_samples(3), endpoint=with_usage)
    run = RunDir(tmp_path / "run")
    written = run.journal.read_bytes()
    assert written.count(b'"prompt_tokens":5') == 3
    spoiled = b'"prompt_tokens":%d' % tokens
    run.journal.write_bytes(written.replace(b'"prompt_tokens":5', spoiled, 1))
    report = EvalReport.load(run.path)
    assert report.summary["n"] == 3
    assert sorted(str(r.trajectory.usage) for r in report.results) == [
        "None",
        "Usage(prompt_tokens=5, completion_tokens=2)",
        "Usage(prompt_tokens=5, completion_tokens=2)",
    ]
    known = RunUsage.of([ModelUsage("policy", n=2, prompt_tokens=10, completion_tokens=4)])
    assert report.usage == known
    assert repair(run.journal, print) == []
    assert run_eval(make_samples(3), endpoint=with_usage, resume=True).usage == known


def test_an_impossible_sum_of_tokens_is_not_taken_from_a_summary(
    run_eval: RunEval, tmp_path: Path
) -> None:
    tokens = 10**400
    report = run_eval(make_samples(2), price=Price(1.0, 1.0))
    run = RunDir(tmp_path / "run")
    content = json.loads(run.summary.read_bytes())
    content["usage"] = {"n": 2, "prompt_tokens": tokens, "completion_tokens": 1}
    run.summary.write_text(json.dumps(content))
    info = run.read_info()
    info.summary_hash = run_dir.hash_ends(run.summary)
    run.write_info(info)
    assert EvalReport.load(run.path).usage == report.usage == RunUsage()
    assert EvalReport.load(run.path).summary == report.summary
    assert read_entry(run.path).prompt_tokens is None


def test_a_new_file_is_made_under_a_name_that_nobody_can_plant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs.txt"
    theirs.write_text("theirs")
    monkeypatch.setattr("secrets.token_hex", lambda size: "00" * size)
    (tmp_path / f".run.json.{'00' * 8}.tmp").symlink_to(theirs)
    with pytest.raises(RunDirectoryError, match="run.json: File exists"):
        jsonl.replace_file(tmp_path / "run.json", b"{}")
    assert theirs.read_text() == "theirs"


def test_a_resumed_run_removes_what_a_killed_process_left_half_written(
    run_eval: RunEval, tmp_path: Path
) -> None:
    run_eval(make_samples(3))
    run, theirs = tmp_path / "run", tmp_path / "theirs.txt"
    theirs.write_text("theirs")
    (run / f".run.json.{'ab' * 8}.tmp").write_text("{")
    (run / f".results.parquet.{'cd' * 8}.tmp").write_text("PAR1")
    kept = [f".run.json.{'ef' * 8}.tmp", ".run.json.mine.tmp", f".notes.{'ab' * 8}.tmp"]
    (run / kept[0]).symlink_to(theirs)
    for name in kept[1:]:
        (run / name).write_text("mine")
    run_eval(make_samples(3), resume=True)
    assert sorted(p.name for p in run.iterdir() if p.suffix == ".tmp") == sorted(kept)
    assert theirs.read_text() == "theirs"


def test_turns_are_not_saved_through_a_link(run_eval: RunEval, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "turns").symlink_to(elsewhere)
    with pytest.raises(RunDirectoryError, match="turns is a symbolic link"):
        run_eval(make_samples(1), save_turns=True)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("content", [b"no newline", b"a line\nand more"])
def test_a_file_that_is_no_journal_is_not_written_to(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(content)
    with pytest.raises(DamagedJournal, match="header"):
        JournalWriter(path)
    assert path.read_bytes() == content


def test_columns_too_many_to_keep_are_not_silently_missing_from_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.store.columns.MAX_COLUMNS", 13)
    EvalReport([result(i) for i in range(6)], {}, {}).save(tmp_path / "run")
    report = EvalReport.load(tmp_path / "run")
    (first, *_) = report.summarize(by="tag").values()
    assert first["metric_m_n"] == 3
    assert first["metric_extra_n"] == 3


def test_slices_by_many_keys_at_once(tmp_path: Path) -> None:
    metadata = [{f"k{k}": f"{i}" for k in range(7)} for i in range(2000)]
    results = [
        EvalResult(f"s{i}", Sample(f"s{i}", {}, metadata=each), Trajectory(()))
        for i, each in enumerate(metadata)
    ]
    EvalReport(results, {}, {}).save(tmp_path / "run")
    slices = EvalReport.load(tmp_path / "run").summarize(by=[f"k{k}" for k in range(7)])
    assert len(slices) == 2000


def test_what_is_no_run_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no run\.json"):
        EvalReport.load(tmp_path)
    with pytest.raises(RunDirectoryError, match="no run at"):
        find_run(tmp_path / "nowhere")
    with pytest.raises(RunDirectoryError, match="not a run directory"):
        find_run(tmp_path)


def test_a_summary_of_an_earlier_version_is_made_anew(run_eval: RunEval, tmp_path: Path) -> None:
    """Its numbers are those of other rules than the slices of the same run."""
    report = run_eval(make_samples(3))
    path = tmp_path / "run" / "summary.json"
    stored = json.loads(path.read_text())
    stored["version"], stored["summary"]["ci_low"] = 1, 0.999
    path.write_text(json.dumps(stored))
    assert EvalReport.load(tmp_path / "run").summary == report.summary


# --- One run, and not two -----------------------------------------------------------------------


def save_run(path: Path, reward: float) -> Path:
    """Save a run of which every file has the size of that with another reward."""
    results = [result(i, reward=reward) for i in range(6)]
    EvalReport(results, summarize(results), {"repeats": 1}).save(path)
    return path


@pytest.mark.parametrize(
    ("taken", "complete"),
    [
        (["summary.json", "results.parquet"], True),
        (["results.jsonl"], False),
        (["run.json", "summary.json", "results.parquet"], False),
    ],
)
def test_files_of_two_runs_are_not_mixed(tmp_path: Path, taken: list[str], complete: bool) -> None:
    """The numbers are those of the journal, whichever files come from another run."""
    run, other = save_run(tmp_path / "run", 0.0), save_run(tmp_path / "other", 1.0)
    assert len({(each / "results.jsonl").stat().st_size for each in (run, other)}) == 1
    for name in taken:
        (run / name).write_bytes((other / name).read_bytes())
    report = EvalReport.load(run)
    mean = float("results.jsonl" in taken)
    assert report.summary["mean"] == mean
    assert report.summarize(by="tag")["t0"]["mean"] == mean
    assert {each.score.reward for each in report.results} == {mean}
    assert (report.summary.get("complete") is not False) == complete
    if not complete:
        with pytest.raises(NotComparable, match="results.jsonl is not the one"):
            compare(report, other)


def test_a_run_of_an_earlier_version_is_bound_by_its_size(tmp_path: Path) -> None:
    run = RunDir(save_run(tmp_path / "run", 1.0))
    info = run.read_info()
    info.journal_hash = info.summary_hash = None
    run.write_info(info)
    stored = json.loads(run.summary.read_text())
    stored["summary"]["mean"] = 0.25
    run.summary.write_text(json.dumps(stored))
    assert EvalReport.load(run.path).summary["mean"] == 0.25


READERS: dict[str, Callable[[EvalReport], object]] = {
    "results": lambda report: list(report.results),
    "slices": lambda report: report.summarize(by="tag"),
    "usage": lambda report: report.usage,
    "frame": lambda report: report.to_pandas(),
    "where": lambda report: report.where("metadata.tag = 't0'"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_run_that_was_replaced_is_not_read_as_the_one_that_was_loaded(
    tmp_path: Path, reader: str
) -> None:
    report = EvalReport.load(save_run(tmp_path / "run", 0.0))
    shutil.rmtree(tmp_path / "run")
    save_run(tmp_path / "run", 1.0)
    with pytest.raises(RunDirectoryError, match="was replaced by another run.*load it again"):
        READERS[reader](report)


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_is_replaced_while_it_is_loaded_is_loaded_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    save_run(tmp_path / "run", 0.0)
    read_summary, rewards = RunDir.read_summary, [1.0, 0.5][:times]

    def replaced_before(run: RunDir, info: RunInfo) -> Any:
        if rewards:
            shutil.rmtree(run.path)
            save_run(run.path, rewards.pop(0))
        return read_summary(run, info)

    monkeypatch.setattr(RunDir, "read_summary", replaced_before)
    if times == 2:
        with pytest.raises(RunDirectoryError, match="was replaced by another run"):
            EvalReport.load(tmp_path / "run")
        return
    report = EvalReport.load(tmp_path / "run")
    assert (report.summary["mean"], report.results[0].score.reward) == (1.0, 1.0)
