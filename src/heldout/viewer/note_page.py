"""Notes of reviewers: shown beside an answer, listed for a run, and written on request."""

from __future__ import annotations

from contextlib import suppress

from heldout.errors import HeldoutError, RunDirectoryError
from heldout.store.notes import Note, NoteChanged, count_labels, read_notes, write_note
from heldout.types import EvalResult
from heldout.viewer.sample_page import find_attempts
from heldout.viewer.values import Plain
from heldout.viewer.viewed_run import ViewedRun

MOST_NOTES = 500
"""Notes that are listed."""


def describe_note(run: ViewedRun, id: str, repeat: int, *, takes_notes: bool) -> Plain:
    """Give the note on an attempt at a sample, and whether one can be written.

    `notes_bytes` is the size of the file, which only grows: of two answers, the one with the larger
    is the newer.
    """
    note, problem = None, None
    size = 0
    with suppress(OSError):  # there are none; what is written after this is in a later answer
        size = run.run_dir.notes.stat().st_size
    try:
        found = read_notes(run.run_dir).get((id, repeat))
        if found is not None:
            note = _plain(found, _read(run, found))
    except RunDirectoryError as damage:
        problem = str(damage)
    return {
        "note": note,
        "note_problem": problem,
        "notes_bytes": size,
        "takes_notes": takes_notes,
    }


def describe_notes(run: ViewedRun) -> Plain:
    """List the notes of a run, the newest first."""
    notes = read_notes(run.run_dir)
    shown = [*notes.values()][: -MOST_NOTES - 1 : -1]
    return {
        "total": len(notes),
        "counts": count_labels(notes.values()),
        "rows": [_plain(note, _read(run, note)) for note in shown],
    }


class NoteConflict(HeldoutError):
    """The note is no longer what the page showed; `answer` is what `describe_note` gives."""

    def __init__(self, message: str, answer: Plain) -> None:
        super().__init__(message)
        self.answer = answer


def write(
    name: str,
    run: ViewedRun,
    id: str,
    repeat: int,
    label: str,
    remark: str,
    was: tuple[str, str],
) -> Plain:
    """Write a note on an attempt at a sample, and give it as `describe_note` does.

    Raises:
        UnknownRun: There is no such attempt.
        NoteConflict: The note is no longer what the page showed, which is `was`.
    """
    (result,) = run.read([find_attempts(name, run, id, repeat)[repeat]])
    try:
        write_note(run.run_dir, result, label, remark, was=was)
    except NoteChanged as problem:
        answer = describe_note(run, id, repeat, takes_notes=True)
        raise NoteConflict(str(problem), answer) from None
    return describe_note(run, id, repeat, takes_notes=True)


def _read(run: ViewedRun, note: Note) -> EvalResult | None:
    item = run.attempts_at(note.id).get(note.repeat)
    return None if item is None else next(run.read([item]))


def _plain(note: Note, result: EvalResult | None) -> Plain:
    return {
        **{key: getattr(note, key) for key in ("id", "repeat", "label", "remark", "time")},
        "is_current": result is not None and note.is_about(result),
    }
