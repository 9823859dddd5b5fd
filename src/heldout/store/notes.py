"""notes.jsonl: what a reviewer says of single answers, in a file of its own beside the run's.

Lines are only appended, one per note, each synced to disk; the last line of an attempt holds, and
one without a label and a remark takes the note away. A note has a hash of the answer that it was
written about: once the item was run again and answered otherwise, it is kept, said to be about an
earlier answer, and no longer taken for a label. Scoring again makes another run directory, without
notes. The journal, the summary and the report are the same with and without notes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from heldout.errors import DamagedJournal, InvalidInput, RunDirectoryError
from heldout.store.jsonl import LineFormat, LineWriter, lines, repair, sync_directory
from heldout.store.run_dir import RunDir, now
from heldout.types import EvalResult

NOTES = LineFormat("heldout.notes", 1, noun="notes", line="note", if_busy="try again")
LONGEST_LABEL, LONGEST_REMARK = 64, 4_000
LARGEST = 2**25
"""Bytes of the file; more is refused."""
LABELS = ("correct", "incorrect", "not_attempted")
"""Labels that a judge can be compared with (`heldout check judge`). Any other text is allowed."""


class NoteChanged(RunDirectoryError):
    """A note is no longer the one that was to be replaced."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a reviewer says of one attempt at a sample."""

    id: str
    """Of the sample."""
    repeat: Annotated[int, msgspec.Meta(ge=0)] = 0
    label: Annotated[str, msgspec.Meta(max_length=LONGEST_LABEL)] = ""
    remark: Annotated[str, msgspec.Meta(max_length=LONGEST_REMARK)] = ""
    answer: str
    """Hash of the answer that it is about."""
    time: str
    """When it was written, UTC."""

    def is_about(self, result: EvalResult) -> bool:
        """Return whether it was written about this answer."""
        return self.answer == hash_answer(result)

    @property
    def text(self) -> str:
        """Label and remark in a line."""
        return ": ".join(part for part in (self.label, self.remark) if part)


Notes = dict[tuple[str, int], Note]
"""Notes by the id of the sample and the attempt."""


def hash_answer(result: EvalResult) -> str:
    """Return a hash of what was answered, or of the error."""
    text = f"{result.trajectory.answer}\0{result.error or ''}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def write_note(
    run: RunDir,
    result: EvalResult,
    label: str,
    remark: str,
    *,
    was: tuple[str, str] | None = None,
) -> Note:
    """Write a note on an answer; without label and remark it takes the earlier one away.

    Args:
        run: The run directory, which is not changed otherwise.
        result: The answer.
        label: One of LABELS, or another word.
        remark: Any text.
        was: Label and remark of the note that it replaces, "" where there is none: with another
            note there by now, nothing is written. None: it replaces whatever there is.

    Raises:
        InvalidInput: One of them is too long, or the label is no plain text.
        NoteChanged: There is another note than `was`.
        RunDirectoryError: The file cannot be written, or is full.
    """
    label, remark = label.strip(), remark.strip()
    if len(label) > LONGEST_LABEL or not label.isprintable():
        raise InvalidInput(f"a label is up to {LONGEST_LABEL} printable characters")
    if len(remark) > LONGEST_REMARK:
        raise InvalidInput(
            f"a remark must be up to {LONGEST_REMARK:,} characters, got {len(remark):,}"
        )
    note = Note(
        id=result.sample_id,
        repeat=result.repeat,
        label=label,
        remark=remark.encode("utf-8", "replace").decode(),
        answer=hash_answer(result),
        time=now(),
    )
    line = msgspec.json.encode(note) + b"\n"
    is_new = not run.notes.exists()
    if not is_new and run.notes.stat().st_size + len(line) > LARGEST:
        raise RunDirectoryError(
            f"{run.notes} has {LARGEST // 2**20} MB, which is the most: keep a copy of it, and "
            "remove lines"
        )
    writer = LineWriter(run.notes, NOTES)  # nobody else writes until it is closed
    try:
        if was is not None:
            _refuse_changed(run, note, was)
        writer.append_line(line)
    finally:
        writer.close()
    if is_new:
        sync_directory(run.path)
    return note


def _refuse_changed(run: RunDir, note: Note, was: tuple[str, str]) -> None:
    """Refuse to replace a note that is neither `was` nor what is to be written."""
    with suppress(DamagedJournal):  # a note that cannot be read is replaced by none
        found = read_notes(run).get((note.id, note.repeat))
        now = (found.label, found.remark) if found else ("", "")
        if now not in (was, (note.label, note.remark)):
            raise NoteChanged("somebody else has changed it meanwhile")


def read_notes(run: RunDir) -> Notes:
    """Read the notes of a run; the last one of each attempt.

    Raises:
        RunDirectoryError: The file cannot be read.
    """
    try:
        stat = run.notes.stat()
    except OSError:
        return {}
    return _read(run.notes, stat.st_size, stat.st_mtime_ns)


@lru_cache(8)
def _read(path: Path, size: int, _time: int) -> Notes:
    if size > LARGEST:
        raise RunDirectoryError(f"{path} has more than {LARGEST // 2**20} MB, and is not read")
    notes: Notes = {}
    for number, _, line in lines(path, NOTES):
        note = NOTES.decode(path, number, line, Note)
        notes.pop((note.id, note.repeat), None)
        if note.label or note.remark:
            notes[note.id, note.repeat] = note
    return notes


def repair_notes(path: Path) -> list[int]:
    """Move damaged lines to `notes.damaged`, and return their numbers."""
    return repair(path, NOTES, Note)


def count_labels(notes: Iterable[Note]) -> dict[str, int]:
    """Count notes by label, the most frequent first; those with a remark alone as ""."""
    counts: dict[str, int] = {}
    for note in notes:
        counts[note.label] = counts.get(note.label, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
