"""Columns, orders and lines of a run that is looked at."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout import (
    EvalReport,
    EvalResult,
    Message,
    Metric,
    Sample,
    Score,
    ToolCall,
    Trajectory,
)
from heldout.store.journal import JournalWriter
from heldout.store.results import Results
from heldout.store.run_dir import RunDir, RunInfo
from heldout.viewer import item_lines
from heldout.viewer.filter import BadFilter
from heldout.viewer.item_lines import find_item_lines
from heldout.viewer.search import Abandoned, abandoned, texts_of
from heldout.viewer.viewed_run import ViewedRun, stamp
from tests.viewer.runs import make_questions, save_results


def result(i: int, error: str | None = None, text: str = "") -> EvalResult:
    sample = Sample(f"q{i}", {"question": f"{i}?"}, i, {"even": i % 2 == 0, "third": i % 3})
    score = Score() if error else Score((Metric("right", float(i % 2), 1.0),))
    messages = (Message("user", f"{i}?"), Message("assistant", text or f"it is {i}"))
    return EvalResult(sample.id, sample, Trajectory(messages), score, error=error)


def write_journal(path: Path, lines: list[tuple[int, EvalResult]]) -> RunDir:
    run = RunDir(path)
    run.make()
    journal = JournalWriter(run.journal)
    for index, line in lines:
        journal.append(index, line)
    journal.close()
    run.write_info(RunInfo.new({"experiment_name": path.name, "repeats": 1}, {}, asked=len(lines)))
    return run


@pytest.mark.parametrize(
    ("field", "is_input"),
    [
        *((field, True) for field in ("even", "metadata.third", "id", "sample_id", "index")),
        *((field, False) for field in ("ok", "cached", "weighted", "finish_reason", "tokens")),
        *((field, False) for field in ("reward", "failed", "right", "metric.right", "nope")),
    ],
)
def test_a_field_of_the_samples_is_an_input_and_no_other(
    tmp_path: Path, field: str, is_input: bool
) -> None:
    save_results(tmp_path / "run", [result(i) for i in range(4)])
    assert ViewedRun(tmp_path / "run").fields.is_input(field) is is_input


def test_each_items_last_line_is_read_in_dataset_order(tmp_path: Path) -> None:
    order = list(range(150))
    random.Random(0).shuffle(order)
    lines = [(i, result(i, error="no" if i % 10 == 0 else None)) for i in order]
    lines += [(i, result(i, text="again")) for i in order if i % 10 == 0]
    run = write_journal(tmp_path / "run", lines)
    found = find_item_lines(run.journal)
    assert found is not None
    assert found.offsets.tolist() == Results(run)._line_places()[1].tolist()
    viewed = ViewedRun(run.path)
    assert next(viewed.read([20])).trajectory.answer == "again"
    assert [r.sample_id for r in viewed.read(range(150))] == [f"q{i}" for i in range(150)]


def test_a_line_is_found_without_a_look_at_all_of_them_unless_its_item_errored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [(i, result(i, text="long " * (i // 30), error="no" if i == 7 else None))
             for i in range(150)]  # fmt: skip
    run = write_journal(tmp_path / "run", [*lines, (7, result(7, text="again"))])
    monkeypatch.setattr(item_lines, "PROBE", 4_000)
    viewed = ViewedRun(run.path)
    items = [i for i in range(150) if i != 7]
    assert [r.sample_id for r in viewed.read(items)] == [f"q{i}" for i in items]
    assert "offsets" not in vars(viewed.fields.lines)
    assert next(viewed.read([7])).trajectory.answer == "again"
    assert "offsets" in vars(viewed.fields.lines)


def test_the_half_line_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", [(i, result(i)) for i in range(5)])
    with run.journal.open("ab") as file:
        file.write(b'{"index":5,"sample":{"id":"q5"')
    viewed = ViewedRun(run.path)
    assert len(viewed.rows) == 5
    assert [r.sample_id for r in viewed.read(range(5))] == [f"q{i}" for i in range(5)]


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory) -> ViewedRun:
    path = tmp_path_factory.mktemp("viewed") / "run"
    texts = {3: 'He said "Refund"\nand left', 7: "refunds", 11: "REFUND ü", 12: "role"}
    save_results(
        path,
        [result(i, error="boom" if i == 5 else None, text=texts.get(i, "")) for i in range(40)],
    )
    return ViewedRun(path)


def test_orders_are_stable_and_put_missing_values_last(viewed: ViewedRun) -> None:
    ascending = viewed.rows.select("", "reward").tolist()
    assert ascending[-1] == 5
    assert ascending[:20] == list(range(0, 40, 2))
    assert viewed.rows.select("", "-reward").tolist()[-1] == 5
    assert viewed.rows.select("third:1", "-id").tolist()[0] == 7  # q7 > q4 > q37
    with pytest.raises(BadFilter, match="no key 'nope'"):
        viewed.rows.select("nope:1", "")


def test_a_metric_can_be_named_with_or_without_its_prefix(viewed: ViewedRun) -> None:
    assert (
        viewed.rows.select("right:1", "").tolist()
        == viewed.rows.select("metric.right:1", "").tolist()
    )
    assert viewed.rows.select("even:true errored:no", "").tolist() == list(range(0, 40, 2))


def test_texts_are_found_whatever_their_case(viewed: ViewedRun) -> None:
    assert viewed.rows.select("text:refund", "").tolist() == [3, 7, 11]
    assert viewed.rows.select('text:"\\"refund\\"\\nand"', "").tolist() == [3]
    assert viewed.rows.select("text:role", "").tolist() == [12]  # not the keys of the JSON
    assert viewed.rows.select("text:ü", "").tolist() == [11]
    assert viewed.rows.select("-text:it text:refund", "").tolist() == [3, 7, 11]
    assert viewed.rows.select("text:boom", "").tolist() == [5]


@pytest.mark.parametrize(
    ("where", "items"),
    [
        ("third:2 index<9 -id:q5 OR id=q1", [1, 2, 8]),
        ("third:0..1 index<4", [0, 1, 3]),
        ("third!=0..1 index<4", [2]),
        ("index:38..", [38, 39]),
        ("index:..1 OR answer:REFUNDS", [0, 1, 7]),
        ('answer="it is 4"', [4]),
        ("ground_truth:39 OR ground_truth=3", [3, 39]),
        ("extracted:x", []),
    ],
)  # fmt: skip
def test_groups_ranges_and_what_was_graded_can_be_filtered_by(
    viewed: ViewedRun, where: str, items: list[int]
) -> None:
    assert viewed.rows.select(where, "").tolist() == items


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("OR third:1", "OR stands between"),
        ("third:1 OR", "OR stands between"),
        ("third:1 OR OR third:2", "OR stands between"),
        ("third:..", "compared with a number"),
        ("answer!=x", "answers are searched with"),
        ("thrid:1", "did you mean third"),
    ],
)
def test_a_filter_that_cannot_be_meant_says_what_can(
    viewed: ViewedRun, where: str, says: str
) -> None:
    with pytest.raises(BadFilter, match=says):
        viewed.rows.select(where, "")


TEXTS = ["a", "ab", 'a "b"', "b\na", "\\a", "aab b", "", ":a", "É ß", "[x]", "u0041 \x01A"]
NESTED = {"metadata": {"trajectory": {"messages": ["error"]}}, "id": 7, "a:": None, "b": ["c", 8]}
RESULTS = [
    *(result(i, text=text) for i, text in enumerate(TEXTS)),
    result(20, error="endpoint: role"),
    EvalResult(
        "nested",
        Sample("nested", NESTED, {"score": "stop"}, {"kind": "content", "note": "Only here"}),
        Trajectory(
            (
                Message("system", [{"type": "text", "text": "Parts"}, {"type": "image"}]),
                Message(
                    "assistant",
                    'say: "user"\\',
                    (ToolCall("call_9", "look_up", '{"item": "Desk"}'),),
                    reasoning="Think",
                    api_turn={"content": "signed"},
                ),
                Message("tool", "null", tool_call_id="call_9"),
            )
        ),
        Score((Metric("right", 1.0, 1.0, {"error": "graded", "extracted": "desk"}),)),
    ),
]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> ViewedRun:
    path = tmp_path_factory.mktemp("search") / "run"
    return ViewedRun(write_journal(path, list(enumerate(RESULTS))).path)


@given(st.data())
def test_a_search_finds_what_the_texts_contain_and_no_keys(
    searched: ViewedRun, data: st.DataObject
) -> None:
    lines = searched.run_dir.journal.read_text().splitlines()[1:]
    line = data.draw(st.sampled_from([*lines, *TEXTS, 'ab "\\\n', "éÉÀ[{"]))
    start = data.draw(st.integers(0, max(0, len(line) - 1)))
    needle = line[start : start + data.draw(st.integers(1, 8))].swapcase() or "x"
    expected = [any(needle.lower() in t.lower() for t in texts_of(r)) for r in RESULTS]
    assert searched.rows._search_journal(needle).tolist() == expected


@pytest.mark.parametrize(
    ("where", "first"),
    [
        ("text:it", [0, 1, 2]),
        ("text:refund", [3, 7, 11]),
        ("even:true text:it -text:2", [0, 4, 6]),
        ("answer:it", [0, 1, 2]),
        ("text:boom", None),  # fewer than asked for: how many, only a search says
        ("third:1", None),
        ("text:it OR text:boom", None),
    ],
)
def test_the_first_rows_with_a_text_are_those_of_the_search(
    viewed: ViewedRun, where: str, first: list[int] | None
) -> None:
    found = viewed.rows.select_first(where, 3)
    assert (None if found is None else found.tolist()) == first
    if first is not None:
        assert viewed.rows.select(where, "")[:3].tolist() == first


def test_the_first_rows_are_looked_for_in_few_lines(
    viewed: ViewedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.viewer.rows.MOST_TRIED", 7)
    assert viewed.rows.select_first("text:refund", 2) is None
    assert viewed.rows.select_first("text:refund", 1) is not None
    monkeypatch.setattr("heldout.viewer.rows.MOST_TRIED_BYTES", 10)
    assert viewed.rows.select_first("text:refund", 1) is None


def test_a_search_ends_when_nobody_waits_for_it(searched: ViewedRun) -> None:
    stop = Event()
    stop.set()
    token = abandoned.set(stop)
    with pytest.raises(Abandoned):
        searched.rows._search_journal("a")
    abandoned.reset(token)


def test_the_stamp_changes_with_every_result(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", [(0, result(0))])
    before = stamp(run.path)
    journal = JournalWriter(run.journal)
    journal.append(1, result(1))
    journal.close()
    assert stamp(run.path) != before


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_run_that_is_written_while_it_is_read_has_the_rows_it_had(
    tmp_path: Path, repeats: int
) -> None:
    results = [replace(result(i // repeats), repeat=i % repeats) for i in range(9)]
    run = write_journal(tmp_path / "run", [(i // repeats, r) for i, r in enumerate(results[:6])])
    run.write_info(RunInfo.new({"experiment_name": "run", "repeats": repeats}, {}, asked=9))
    viewed = ViewedRun(run.path)
    assert len(viewed.rows) == 6
    journal = JournalWriter(run.journal)
    for i in (8, 7, 6):
        journal.append(i // repeats, results[i])
    journal.close()
    read = [(r.sample_id, r.repeat) for r in viewed.read(range(6))]
    assert read == [(r.sample_id, r.repeat) for r in results[:6]]


def test_the_stamp_changes_with_the_file_of_columns(tmp_path: Path) -> None:
    """DuckDB opens it again for each column, and would wait at a FIFO for ever."""
    run = write_journal(tmp_path / "run", [(0, result(0))])
    run.columns.write_bytes(b"columns")
    before = stamp(run.path)
    run.columns.unlink()
    os.mkfifo(run.columns)
    assert stamp(run.path) != before


def test_nothing_is_written_into_the_run_directory(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", [(i, result(i)) for i in range(20)])
    before = sorted((f.name, f.stat().st_mtime_ns) for f in run.path.iterdir())
    viewed = ViewedRun(run.path)
    assert viewed.rows.select("even:true text:it", "-reward").size == 10
    assert viewed.summarize(np.arange(10))["n"] == EvalReport.load(run.path).summary["n"] - 10
    assert sorted((f.name, f.stat().st_mtime_ns) for f in run.path.iterdir()) == before


def test_rows_of_a_running_eval_and_its_summary_are_of_the_same_items(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "live")
    run.make()
    run.write_info(RunInfo.new({"experiment_name": "live", "repeats": 1}, {}, asked=9))
    journal = JournalWriter(run.journal)
    results = [
        EvalResult(one.id, one, Trajectory(()), Score((Metric("m", float(i > 1), 1.0),)))
        for i, one in enumerate(make_questions(6))
    ]
    for i in (0, 1, 2):
        journal.append(i, results[i])
    before, after = ViewedRun(run.path), ViewedRun(run.path)
    assert before.report.summary["n"] == 3
    assert len(after.rows) == 3
    for i in (3, 4, 5):
        journal.append(i, results[i])
    every = np.arange(3)
    for viewed in (before, after):
        assert len(viewed.rows) == viewed.report.summary["n"] == viewed.summarize(every)["n"] == 3
        assert viewed.report.summary["mean"] == pytest.approx(1 / 3)
        assert viewed.report.summary["complete"] is False
        assert viewed.report.summary["n_asked"] == 9
    assert ViewedRun(run.path).report.summary["n"] == 6
    journal.close()
