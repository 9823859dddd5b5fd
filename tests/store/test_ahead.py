"""Results beyond the next look: they wait beside the journal, and survive like it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from heldout import EvalResult, Sample, Score, Stop, Trajectory
from heldout.store.ahead import AheadJournal, ahead_path
from heldout.store.journal import JournalWriter, RecordKey, records
from heldout.store.resume import encode_sample


def result(index: int, error: str | None = None) -> EvalResult:
    sample = Sample(f"s{index}", {"question": "?"}, "1")
    stop = Stop("error" if error else "no_reply")
    return EvalResult(sample.id, sample, Trajectory((), stop), Score(), error=error)


def append(ahead: AheadJournal, index: int, error: str | None = None) -> None:
    made = result(index, error)
    ahead.append(index, made, encode_sample(made.sample))


def indices(path: Path) -> list[int]:
    return [key.index for key in records(path, RecordKey)] if path.exists() else []


def test_what_is_beyond_the_look_waits_until_it_is_let_in(tmp_path: Path) -> None:
    journal = tmp_path / "results.jsonl"
    with closing(JournalWriter(journal)) as writer, closing(AheadJournal(writer, 2)) as ahead:
        for index in (3, 0, 2, 1):
            append(ahead, index)
        assert indices(journal) == [0, 1]
        assert indices(ahead_path(journal)) == [3, 2], "on disk before anything else happens"
        ahead.let_in(3)
        assert indices(journal) == [0, 1, 2]
    assert indices(ahead_path(journal)) == [3], "what was let in is gone, and the rest is kept"


def test_once_all_are_let_in_there_is_no_second_file(tmp_path: Path) -> None:
    journal = tmp_path / "results.jsonl"
    with closing(JournalWriter(journal)) as writer, closing(AheadJournal(writer, 1)) as ahead:
        append(ahead, 1)
        append(ahead, 0)
        ahead.let_in(2)
    assert indices(journal) == [0, 1]
    assert not ahead_path(journal).exists()


def test_killed_between_the_two_files_a_result_is_in_the_journal_once(tmp_path: Path) -> None:
    journal = tmp_path / "results.jsonl"
    writer = JournalWriter(journal)
    ahead = AheadJournal(writer, 1)
    for index in (0, 1, 2):
        append(ahead, index)
    writer.append_line(writer.encode(1, result(1)))  # as let_in does, and here it is killed
    ahead.sync()
    writer.close()
    with closing(JournalWriter(journal)) as writer, closing(AheadJournal(writer, 3)) as ahead:
        ahead.let_in(3)
    assert indices(journal) == [0, 1, 2]
    assert not ahead_path(journal).exists()


def test_the_last_result_of_an_item_counts(tmp_path: Path) -> None:
    journal = tmp_path / "results.jsonl"
    with closing(JournalWriter(journal)) as writer, closing(AheadJournal(writer, 1)) as ahead:
        append(ahead, 1, error="it broke")
        append(ahead, 1)
        ahead.let_in(2)
    assert [record.error for record in records(journal, RecordKey)] == [None]


def test_what_was_let_in_beyond_the_stop_is_taken_out_again(tmp_path: Path) -> None:
    journal = tmp_path / "results.jsonl"
    with closing(JournalWriter(journal)) as writer:
        with closing(AheadJournal(writer, 4)) as ahead:
            for index in (0, 1, 3, 2, 4):
                append(ahead, index)
            ahead.end_at(2)
        assert writer.is_current, "the lock is that of the new file"
        writer.append_line(writer.encode(0, result(0)))
    assert indices(journal) == [0, 1, 0]
    assert indices(ahead_path(journal)) == [4, 3, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ahead.jsonl", "results.jsonl"]
