"""Which samples were seen, and which items are finished already: exact, in bounded memory.

A private temporary SQLite database: it stays in a few megabytes of cache and spills to a
temporary file that vanishes with the process. A million ids in a Python set would take a
hundred megabytes.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import DuplicateSampleId, InvalidInput, ResumeMismatch
from heldout.store.journal import UNENCODABLE, Place, content_hash, plain_value, records
from heldout.types import Sample, Score, refuse_nonfinite

_encoder = msgspec.json.Encoder(enc_hook=plain_value, order="deterministic")
_sample_decoder = msgspec.json.Decoder(Sample)


class Finished(msgspec.Struct):
    """What a resumed run needs of a record."""

    index: Place
    sample: Sample
    repeat: Place = 0
    score: Score = msgspec.field(default_factory=Score)
    error: str | None = None


def fingerprint(sample: Sample) -> bytes:
    """Of all a sample holds; the same before and after a journey through the journal."""
    return _fingerprint(_encoded(sample))


def _fingerprint(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _encoded(sample: Sample) -> bytes:
    try:
        content = _encoder.encode(sample)
    except UNENCODABLE as problem:
        raise InvalidInput(
            f"sample {sample.id!r} holds a value that JSON cannot, so it cannot be stored: "
            f"{problem}"
        ) from None
    if b"null" in content:  # what JSON makes of a NaN, too
        for part in ("input", "ground_truth", "metadata"):
            refuse_nonfinite(getattr(sample, part), f"sample {sample.id!r}: {part}")
    return content


def as_stored(sample: Sample) -> Sample:
    """Give the sample as it is read back from a report.

    Args:
        sample: One that was made by the user.

    Returns:
        An equal sample of plain JSON values.

    Raises:
        InvalidInput: It would be another one: a tuple comes back as a list, bytes as text, and a
            score function that compares with them would score it differently.
    """
    return _stored(sample, _encoded(sample))


def _stored(sample: Sample, content: bytes) -> Sample:
    stored = _sample_decoder.decode(content)
    try:
        same = bool(stored == sample)
    except ValueError:  # an array is neither equal nor unequal to a list
        same = False
    if not same:
        for part in ("input", "ground_truth", "metadata"):
            given, found = getattr(sample, part), getattr(stored, part)
            _refuse_changed(given, found, f"sample {sample.id!r}: {part}")
    return stored


def _refuse_changed(given: Any, stored: Any, where: str) -> None:
    if isinstance(given, dict):
        for key, value in given.items():
            _refuse_changed(value, stored[key], f"{where}[{key!r}]")
    elif isinstance(given, list):
        for place, value in enumerate(given):
            _refuse_changed(value, stored[place], f"{where}[{place}]")
    elif callable(getattr(given, "tolist", None)):
        return  # an array, which is a list from here on: what needs the array fails aloud
    elif (hasattr(given, "__len__") and not isinstance(given, str)) or given != stored:
        raise InvalidInput(
            f"{where} is a {type(given).__name__}, which a report stores as {stored!r:.60}; give "
            "it as that, so that it is scored as it is stored"
        )


class Ledger:
    """Which samples an eval has been given, and which of its items were finished before."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.executescript(
            """
            PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -4096;
            CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID;
            CREATE TABLE asked (content INTEGER PRIMARY KEY);
            CREATE TABLE kept (id TEXT PRIMARY KEY, place INTEGER, print BLOB) WITHOUT ROWID;
            CREATE INDEX place ON kept (place);
            CREATE TABLE done (id TEXT, repeat INTEGER, PRIMARY KEY (id, repeat)) WITHOUT ROWID;
            BEGIN;
            """
        )
        self._cursor = self._db.cursor()
        self.finished = 0
        """Items that the journal already has."""
        self.copies = 0
        """Samples admitted whose input and ground truth another one has, too."""
        self._kept_samples = 0
        self._kept_seen = 0

    def close(self) -> None:
        """Forget all of it."""
        self._db.close()

    def read_journal(self, path: Path) -> Iterator[tuple[int, float]]:
        """Take over what a stopped run finished: (index, reward) of each item."""
        for record in records(path, Finished):
            sample = record.sample
            new = self._db.execute(
                "INSERT OR IGNORE INTO kept VALUES (?, ?, ?)",
                (sample.id, record.index, fingerprint(sample)),
            )
            self._kept_samples += new.rowcount
            if record.error is None:
                self._db.execute(
                    "INSERT OR IGNORE INTO done VALUES (?, ?)", (sample.id, record.repeat)
                )
                self.finished += 1
                yield record.index, record.score.reward

    def admit(self, index: int, sample: Sample) -> Sample:
        """Refuse a second sample of one id, and one that is not what it was before resuming.

        Args:
            index: Its number in the dataset, from 0.
            sample: One that was made by the user.

        Returns:
            The sample as it is read back from a report.

        Raises:
            DuplicateSampleId: Another sample has its id.
            InvalidInput: JSON cannot hold it.
            ResumeMismatch: The run to be resumed holds another one in its place.
        """
        if not isinstance(sample, Sample):
            raise InvalidInput(
                f"samples are heldout.Sample, got {type(sample).__name__} at position {index}"
            )
        content = _encoded(sample)
        stored = _stored(sample, content)
        self._cursor.execute("INSERT OR IGNORE INTO seen VALUES (?)", (sample.id,))
        if self._cursor.rowcount == 0:
            raise DuplicateSampleId(sample.id, index)
        asked = content_hash(stored.id, stored.input, stored.ground_truth)
        self._cursor.execute("INSERT OR IGNORE INTO asked VALUES (?)", (asked,))
        self.copies += self._cursor.rowcount == 0
        if self._kept_samples > 0:
            self._check_unchanged(index, sample, _fingerprint(content))
        return stored

    def _check_unchanged(self, index: int, sample: Sample, found: bytes) -> None:
        row = self._db.execute("SELECT place, print FROM kept WHERE id = ?", (sample.id,))
        was = row.fetchone()
        if was is None:
            other = self._db.execute("SELECT id FROM kept WHERE place = ?", (index,)).fetchone()
            if other is not None:
                raise ResumeMismatch(
                    f"sample number {index + 1} of the dataset was {other[0]!r} when this run "
                    f"began and is {sample.id!r} now. Restore it, or choose another experiment_name"
                )
            return
        self._kept_seen += 1
        if was[1] != found:
            raise ResumeMismatch(
                f"sample {sample.id!r} is not what it was when this run began: its input, ground "
                "truth or metadata changed. Restore it, or choose another experiment_name"
            )
        if was[0] != index:
            raise ResumeMismatch(
                f"sample {sample.id!r} was number {was[0] + 1} of the dataset when this run began "
                f"and is number {index + 1} now. Restore the order, or choose another "
                "experiment_name"
            )

    def is_finished(self, sample_id: str, repeat: int) -> bool:
        """Tell whether the journal has a result of this item."""
        if self.finished == 0:
            return False
        row = self._db.execute(
            "SELECT 1 FROM done WHERE id = ? AND repeat = ?", (sample_id, repeat)
        )
        return row.fetchone() is not None

    def check_all_seen(self) -> None:
        """After the last sample: everything the journal has must have come by again."""
        if self._kept_seen == self._kept_samples:
            return
        gone = self._db.execute("SELECT id FROM kept WHERE id NOT IN (SELECT id FROM seen)")
        raise ResumeMismatch(
            f"the run holds results of {self._kept_samples - self._kept_seen} samples that are "
            f"not in the dataset any more, {gone.fetchone()[0]!r} among them. Restore them, or "
            "choose another experiment_name"
        )
