"""Notes of reviewers: shown beside an answer, listed for a run, and written on request."""

from __future__ import annotations

from heldout.errors import RunDirectoryError
from heldout.store.notes import Note, count_labels, read_notes, write_note
from heldout.types import EvalResult
from heldout.viewer.sample_page import find_attempts
from heldout.viewer.tables import RunTable
from heldout.viewer.values import Plain

MOST_NOTES = 500
"""Notes that are listed."""


def describe_note(table: RunTable, id: str, repeat: int, *, takes_notes: bool) -> Plain:
    """Give the note on an attempt at a sample, and whether one can be written."""
    note, problem = None, None
    try:
        found = read_notes(table.run).get((id, repeat))
        if found is not None:
            note = _plain(found, _read(table, found))
    except RunDirectoryError as damage:
        problem = str(damage)
    return {"note": note, "note_problem": problem, "takes_notes": takes_notes}


def describe_notes(table: RunTable) -> Plain:
    """List the notes of a run, the newest first."""
    notes = read_notes(table.run)
    shown = [*notes.values()][: -MOST_NOTES - 1 : -1]
    return {
        "total": len(notes),
        "counts": count_labels(notes.values()),
        "rows": [_plain(note, _read(table, note)) for note in shown],
    }


def write(name: str, table: RunTable, id: str, repeat: int, label: str, remark: str) -> None:
    """Write a note on an attempt at a sample; UnknownRun where there is none."""
    (result,) = table.read([find_attempts(name, table, id, repeat)[repeat]])
    write_note(table.run, result, label, remark)


def _read(table: RunTable, note: Note) -> EvalResult | None:
    items = [item for item in table.items_of(note.id) if table.item_repeats[item] == note.repeat]
    return next(iter(table.read(items[:1])), None)


def _plain(note: Note, result: EvalResult | None) -> Plain:
    return {
        **{key: getattr(note, key) for key in ("id", "repeat", "label", "remark", "time")},
        "is_current": result is not None and note.is_about(result),
    }
