"""Numbers of the runs of one name: NAME@3 stays what it is, whatever becomes of the others.

A run gets its number with its first answer, so a try that came to nothing takes none. It is drawn
from a counter in the folder of the name and stored in run.json. Runs of earlier versions have none
there: they count from 1 in the order of their starts, and drawn numbers come after theirs.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from heldout.errors import UNREADABLE, RunDirectoryError
from heldout.store.jsonl import MAX_DOCUMENT_BYTES, read_whole, storage_error

TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d)(?:-(\d+))?")
"""How directories of numbered runs are named."""
COUNTER = ".numbers"
"""The file in the folder of a name that holds the last number that was drawn."""


class _Numbered(msgspec.Struct):
    """What run.json says of the number."""

    number: int | None = None


def stored_number(run: Path) -> int | None:
    """Return the number in run.json; 0 is none yet, None a run of an earlier version."""
    with suppress(OSError, RunDirectoryError, *UNREADABLE):
        content = read_whole(run / "run.json", MAX_DOCUMENT_BYTES)
        return msgspec.json.decode(content, type=_Numbered).number
    return None


def number_runs(history: Sequence[Path]) -> dict[Path, int]:
    """Number the runs of one name.

    Args:
        history: Their directories, the first one first.

    Returns:
        The number of each run that has one.
    """
    numbers: dict[Path, int] = {}
    unstored = 0
    for run in history:
        number = stored_number(run)
        if number is None or not TIMESTAMP.fullmatch(run.name):
            unstored += 1
            number = unstored
        if number:
            numbers[run] = number
    return numbers


def draw_number(run: Path, others: Iterable[Path]) -> int:
    """Draw the number of a run, which no other run of its name has had.

    Args:
        run: Its directory.
        others: The runs of its name, some of which may have been copied here.

    Raises:
        RunDirectoryError: The counter cannot be written.
    """
    counter = run.parent / COUNTER
    try:
        fd = os.open(counter, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            text = os.pread(fd, 32, 0).strip()
            last = int(text) if re.fullmatch(rb"\d{1,18}", text) else 0
            known = number_runs([path for path in others if path != run]).values()
            number = max(last, *known, 0) + 1
            os.pwrite(fd, b"%d\n" % number, 0)
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as problem:
        raise storage_error(counter, problem) from problem
    return number
