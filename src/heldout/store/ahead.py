"""ahead.jsonl: results of a run with `until` that lie beyond the samples of its next look.

A look is at the first n samples, once all of them are done. Items of later samples are run
meanwhile, so that nothing stands still, and their results must survive a kill like any other. Kept
in the journal, they would be part of every number that a reader makes of it: which of them are
there depends on which answers were quick. So they wait here, line for line as the journal would
have them, until a look lets them in. What is here when a look stops the run stays: it was paid for,
it is no part of the number, and finishing the set takes it up.
"""

from __future__ import annotations

from pathlib import Path

from heldout.store.journal import JOURNAL, JournalWriter, RecordKey, lines, records
from heldout.store.jsonl import LineWriter, replace_file
from heldout.types import EvalResult

ItemKey = tuple[int, int]
"""The sample's index, and which repeat of it."""


def ahead_path(journal: Path) -> Path:
    """Return the path of the results beyond a run's next look."""
    return journal.with_name("ahead.jsonl")


class AheadJournal:
    """Lets results into the journal up to a sample, and keeps the others beside it."""

    def __init__(self, journal: JournalWriter, limit: int) -> None:
        """Go on where a killed process stopped.

        Args:
            journal: The run's journal, whose lock holds for both files.
            limit: Samples that are let in.
        """
        self._journal, self._limit = journal, limit
        self._path = ahead_path(journal.path)
        self._held: dict[ItemKey, bytes] = {}
        self._writer: LineWriter | None = None
        self._has_changed = False
        """Whether the file may have lines that are not held any more."""
        there = {(key.index, key.repeat) for key in records(journal.path, RecordKey)}
        self._past_end = max((index for index, _ in there), default=-1) + 1
        """Samples of the journal are below this one."""
        if self._path.exists():
            for number, _, line in lines(self._path):
                key = JOURNAL.decode(self._path, number, line, RecordKey)
                if (key.index, key.repeat) not in there:  # killed as it was let in
                    self._held[key.index, key.repeat] = line + b"\n"

    def append(self, index: int, result: EvalResult, sample: bytes) -> None:
        """Write a result into the journal or, beyond the limit, beside it; raises as that does."""
        line = self._journal.encode(index, result, sample)
        if index < self._limit:
            self._let_in(index, line)
        else:
            self._hold((index, result.repeat), line)

    def _let_in(self, index: int, line: bytes) -> None:
        self._journal.append_line(line)
        self._past_end = max(self._past_end, index + 1)

    def _hold(self, key: ItemKey, line: bytes) -> None:
        self._has_changed = True
        if self._writer is None:
            self._writer = LineWriter(self._path, JOURNAL)
        self._writer.append_line(line)
        self._held[key] = line

    def let_in(self, limit: int) -> None:
        """Move what is held of the samples below a limit into the journal.

        A process that is killed in between leaves a result in both files; the journal's counts.
        """
        self._limit = limit
        for key in [key for key in self._held if key[0] < limit]:
            self._has_changed = True
            self._let_in(key[0], self._held.pop(key))

    def end_at(self, limit: int) -> None:
        """Take samples from a limit on out of the journal, where they had been let in.

        A look that errors kept open may decide once a resumed run has resolved them; the answers
        that were looked at in between are then beyond the stop.
        """
        self._limit = limit
        if self._past_end <= limit:
            return
        kept = []
        for number, _, line in lines(self._journal.path):
            key = JOURNAL.decode(self._journal.path, number, line, RecordKey)
            if key.index < limit:
                kept.append(line + b"\n")
            else:
                self._hold((key.index, key.repeat), line + b"\n")
        self.sync()
        self._journal.rewrite(kept)
        self._past_end = limit

    def sync(self) -> None:
        """Sync what was written to disk."""
        if self._writer is not None:
            self._writer.sync()

    def clear(self) -> None:
        """Forget what is held, and remove the file."""
        self._held.clear()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; lines that the journal has are removed, and so is a file without any."""
        self._finish_writing()
        if not self._has_changed:
            return
        if self._held:
            replace_file(self._path, b"".join([JOURNAL.header, *self._held.values()]))
        else:
            self._path.unlink(missing_ok=True)

    def _finish_writing(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
