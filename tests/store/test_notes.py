"""Notes of reviewers: a file of their own, of which the last line of an attempt holds."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from heldout import EvalResult, Message, Metric, Sample, Score, Trajectory
from heldout.errors import DamagedJournal, InvalidInput, RunBusy, RunDirectoryError
from heldout.store import notes as notes_file
from heldout.store.jsonl import LineWriter
from heldout.store.notes import (
    NOTES,
    Note,
    NoteChanged,
    count_labels,
    read_notes,
    repair_notes,
    write_note,
)
from heldout.store.run_dir import RunDir


def answer_of(text: str, id: str = "q", repeat: int = 0) -> EvalResult:
    trajectory = Trajectory((Message("user", "?"), Message("assistant", text)))
    score = Score((Metric("m", 1.0, 1.0),))
    return EvalResult(id, Sample(id, {"q": "?"}, "x"), trajectory, score, repeat=repeat)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_the_last_line_of_an_attempt_holds_and_an_empty_one_takes_it_away(run: RunDir) -> None:
    assert read_notes(run) == {}
    first, second = answer_of("a"), answer_of("a", repeat=1)
    write_note(run, first, "correct", "")
    write_note(run, second, "", " \u2028 odd ")
    write_note(run, first, "incorrect", "off by one")
    assert [note.text for note in read_notes(run).values()] == ["odd", "incorrect: off by one"]
    assert count_labels(read_notes(run).values()) == {"": 1, "incorrect": 1}
    write_note(run, second, "", "")
    assert [*read_notes(run)] == [("q", 0)]
    assert run.notes.read_bytes().count(b"\n") == 5  # with the header: nothing is overwritten


def test_a_note_is_not_written_over_another_one_than_was_to_be_replaced(run: RunDir) -> None:
    write_note(run, answer_of("a"), "correct", "", was=("", ""))
    written = run.notes.read_bytes()
    for was in (("", ""), ("correct", "but long")):
        with pytest.raises(NoteChanged):
            write_note(run, answer_of("a"), "incorrect", "", was=was)
        assert run.notes.read_bytes() == written
    write_note(run, answer_of("a"), "correct", "", was=("", ""))  # what is there already
    write_note(run, answer_of("a"), "incorrect", "", was=("correct", ""))
    write_note(run, answer_of("a"), "", "", was=("incorrect", ""))
    write_note(run, answer_of("a", repeat=1), "correct", "", was=("", ""))
    assert [note.repeat for note in read_notes(run).values()] == [1]


def test_a_note_knows_the_answer_that_it_is_about(run: RunDir) -> None:
    note = write_note(run, answer_of("a"), "correct", "")
    assert note.is_about(answer_of("a"))
    assert not note.is_about(answer_of("b"))
    assert not note.is_about(replace(answer_of("a"), error="timeout", score=Score()))


@pytest.mark.parametrize(
    ("label", "remark"), [("x" * 65, ""), ("two\nlines", ""), ("", "x" * 4001)]
)
def test_what_is_too_long_or_no_label_is_refused_and_nothing_written(
    run: RunDir, label: str, remark: str
) -> None:
    with pytest.raises(InvalidInput):
        write_note(run, answer_of("a"), label, remark)
    assert not run.notes.exists()


def test_a_full_file_takes_no_more_and_one_that_is_too_large_is_not_read(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_note(run, answer_of("a"), "correct", "")
    monkeypatch.setattr(notes_file, "LARGEST", 200)
    with pytest.raises(RunDirectoryError, match="which is the most"):
        write_note(run, answer_of("a"), "correct", "x" * 200)
    monkeypatch.setattr(notes_file, "LARGEST", 10)
    notes_file._read.cache_clear()
    with pytest.raises(RunDirectoryError, match="is not read"):
        read_notes(run)


def test_a_writer_that_was_killed_leaves_whole_notes(run: RunDir) -> None:
    write_note(run, answer_of("a"), "correct", "")
    child = os.fork()
    if child == 0:
        LineWriter(run.notes, NOTES).append_line(b'{"id":"q","label":"incor')
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert [note.label for note in read_notes(run).values()] == ["correct"]
    write_note(run, answer_of("b", "r"), "incorrect", "")
    assert [note.label for note in read_notes(run).values()] == ["correct", "incorrect"]


def test_two_writers_do_not_mix_and_a_link_is_not_followed(run: RunDir, tmp_path: Path) -> None:
    writer = LineWriter(run.notes, NOTES)
    with pytest.raises(RunBusy, match="try again"):
        write_note(run, answer_of("a"), "correct", "")
    writer.close()
    run.notes.unlink()
    run.notes.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunDirectoryError, match="symbolic link"):
        write_note(run, answer_of("a"), "correct", "")


def test_a_damaged_line_is_named_and_moved_aside(run: RunDir) -> None:
    write_note(run, answer_of("a"), "correct", "")
    with run.notes.open("ab") as file:
        file.write(b"not json\n")
    write_note(run, answer_of("b", "r"), "incorrect", "")
    with pytest.raises(DamagedJournal, match="line 3"):
        read_notes(run)
    assert repair_notes(run.notes) == [3]
    assert [note.id for note in read_notes(run).values()] == ["q", "r"]
    assert isinstance(next(iter(read_notes(run).values())), Note)
