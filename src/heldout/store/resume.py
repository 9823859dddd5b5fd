"""Which samples were seen, and which items are finished already: exact, in bounded memory.

A private temporary SQLite database: it stays in a few megabytes of cache and spills to a
temporary file that vanishes with the process. A million ids in a Python set would take a
hundred megabytes.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import DuplicateSampleId, InvalidInput, ResumeMismatch
from heldout.store.journal import Place, cluster_hash, content_hash, records
from heldout.store.jsonl import encode
from heldout.types import Sample, Score, refuse_nonfinite


class FinishedRecord(msgspec.Struct):
    """What a resumed run needs of a record."""

    index: Place
    sample: Sample
    repeat: Place = 0
    score: Score = msgspec.field(default_factory=Score)
    error: str | None = None


def encode_sample(sample: Sample) -> bytes:
    """Encode a sample as a journal has it; InvalidInput where JSON cannot hold it."""
    return encode(sample, "sample", sample.id)


decode_sample = msgspec.json.Decoder(Sample).decode
"""Decode a sample that was encoded here: a copy of its own, as it is read back from a report."""


def as_stored(sample: Sample) -> Sample:
    """Copy a sample by a JSON round trip; InvalidInput if that would change it."""
    content = encode_sample(sample)
    check_stored(sample, content)
    return decode_sample(content)


def check_stored(sample: Sample, content: bytes) -> None:
    """Refuse a sample that storing as `content` would change, and say where.

    A tuple comes back as a list and bytes as text, and a score function that compares with them
    would score the sample differently.
    """
    if _are_plain(sample.input, sample.ground_truth, sample.metadata):
        return
    stored = decode_sample(content)
    for part in ("input", "ground_truth", "metadata"):
        value, where = getattr(sample, part), f"sample {sample.id!r}: {part}"
        refuse_nonfinite(value, where)
        _refuse_changed(value, getattr(stored, part), where)


def _are_plain(*values: Any) -> bool:
    """Return whether JSON gives values back as they are, their types included."""
    for value in values:
        kind = type(value)
        if kind is str or kind is bool or value is None:
            continue
        if kind is dict:
            is_plain = all(type(key) is str for key in value) and _are_plain(*value.values())
        elif kind is list:
            is_plain = _are_plain(*value)
        elif kind is int:
            is_plain = -(2**63) <= value < 2**63
        else:
            is_plain = kind is float and isfinite(value)
        if not is_plain:
            return False
    return True


def _refuse_changed(value: Any, stored: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in stored:
                raise InvalidInput(f"{where} has the key {key!r}, which JSON stores as a text")
            _refuse_changed(part, stored[key], f"{where}[{key!r}]")
    elif isinstance(value, list):
        for position, part in enumerate(value):
            _refuse_changed(part, stored[position], f"{where}[{position}]")
    elif callable(getattr(value, "tolist", None)):
        return  # an array, which is a list from here on: what needs the array fails aloud
    elif (hasattr(value, "__len__") and not isinstance(value, str)) or value != stored:
        raise InvalidInput(
            f"{where} is a {type(value).__name__}, which a report stores as {stored!r:.60}; give "
            "it as that, so that it is scored as it is stored"
        )


def fingerprint(content: bytes) -> bytes:
    """Hash a sample's JSON text."""
    return hashlib.blake2b(content, digest_size=16).digest()


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
        self._kept_samples = 0
        self._kept_seen = 0

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def read_journal(self, path: Path) -> Iterator[tuple[int, float]]:
        """Read what a stopped run finished: (index, reward) of each item."""
        for record in records(path, FinishedRecord):
            sample = record.sample
            new = self._db.execute(
                "INSERT OR IGNORE INTO kept VALUES (?, ?, ?)",
                (sample.id, record.index, fingerprint(encode_sample(sample))),
            )
            self._kept_samples += new.rowcount
            if record.error is None:
                new = self._db.execute(
                    "INSERT OR IGNORE INTO done VALUES (?, ?)", (sample.id, record.repeat)
                )
                if new.rowcount:  # a killed process may have left it in two files
                    self.finished += 1
                    yield record.index, record.score.reward

    def admit(self, index: int, sample: Sample) -> bytes:
        """Refuse a second sample of one id, and one that is not what it was before resuming.

        Returns the sample as JSON, and raises InvalidInput where JSON cannot hold it.
        """
        if not isinstance(sample, Sample):
            kind = type(sample).__name__
            raise InvalidInput(
                f"samples must be heldout.Sample, got {kind} at position {index}",
                hint="heldout.datasets.to_samples makes them" if isinstance(sample, dict) else None,
            )
        content = encode_sample(sample)
        check_stored(sample, content)
        self._cursor.execute("INSERT OR IGNORE INTO seen VALUES (?)", (sample.id,))
        if self._cursor.rowcount == 0:
            raise DuplicateSampleId(sample.id, index)
        if self._kept_samples > 0:
            self._check_unchanged(index, sample, fingerprint(content))
        return content

    def is_copy(self, sample: Sample, *, whole: bool = False) -> bool:
        """Return whether a sample before is of the same cluster; `whole` as for `cluster_hash`."""
        content = content_hash(sample.id, sample.input, sample.ground_truth)
        cluster = cluster_hash(content, sample.metadata, whole=whole)
        self._cursor.execute("INSERT OR IGNORE INTO asked VALUES (?)", (cluster,))
        return self._cursor.rowcount == 0

    def _check_unchanged(self, index: int, sample: Sample, now: bytes) -> None:
        row = self._db.execute("SELECT place, print FROM kept WHERE id = ?", (sample.id,))
        was = row.fetchone()
        if was is None:
            before = self._db.execute("SELECT id FROM kept WHERE place = ?", (index,)).fetchone()
            if before is not None:
                raise ResumeMismatch(
                    f"sample number {index + 1} of the dataset was {before[0]!r} when this run "
                    f"began and is {sample.id!r} now",
                    "Restore it",
                )
            return
        self._kept_seen += 1
        if was[1] != now:
            raise ResumeMismatch(
                f"sample {sample.id!r} is not what it was when this run began: its input, ground "
                "truth or metadata changed",
                "Restore it",
            )
        if was[0] != index:
            raise ResumeMismatch(
                f"sample {sample.id!r} was number {was[0] + 1} of the dataset when this run began "
                f"and is number {index + 1} now",
                "Restore the order",
            )

    def is_finished(self, sample_id: str, repeat: int) -> bool:
        """Return whether the journal has a result of this item."""
        if self.finished == 0:
            return False
        row = self._db.execute(
            "SELECT 1 FROM done WHERE id = ? AND repeat = ?", (sample_id, repeat)
        )
        return row.fetchone() is not None

    @property
    def has_all_seen(self) -> bool:
        """Whether every sample of the journal was seen again."""
        return self._kept_seen == self._kept_samples

    def check_all_seen(self) -> None:
        """After the last sample, check that every sample of the journal was seen again."""
        if self.has_all_seen:
            return
        missing = self._db.execute("SELECT id FROM kept WHERE id NOT IN (SELECT id FROM seen)")
        raise ResumeMismatch(
            f"the run holds results of {self._kept_samples - self._kept_seen} samples that are "
            f"not in the dataset any more, {missing.fetchone()[0]!r} among them",
            "Restore them",
        )
