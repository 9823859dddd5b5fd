"""JsonlLogger: a file of results, a line each, in the order in which they came."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Annotated

import msgspec

from heldout.errors import DamagedJournal, HeldoutError
from heldout.store.lines import LineFormat, LineWriter, lines
from heldout.store.rundir import now, sync_directory
from heldout.training.loggers import Fields
from heldout.training.loggers.rows import Row


class DamagedLog(DamagedJournal):
    """`heldout show --repair` is for run directories; this file is nobody's but the user's."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        self.path, self.line = path, line
        HeldoutError.__init__(
            self,
            f"{path}, line {line}: {why}; take that line out, and the others can be read (results "
            "are in curve.jsonl of the run directory, too)",
        )


class _LogFormat(LineFormat):
    def damaged(self, path: Path, number: int, why: str) -> DamagedJournal:
        return DamagedLog(path, number, why)


LOGGED = _LogFormat(
    "heldout.logged",
    1,
    noun="log of results",
    line="result",
    if_busy="give each training a file of its own",
)


class Logged(msgspec.Struct, frozen=True):
    """A line."""

    name: str
    step: Annotated[int, msgspec.Meta(ge=0)]
    time: str
    """When it was written, UTC."""
    fields: dict[str, int | float | str]


class JsonlLogger:
    """Each line is on the disk when `log` returns. The file is appended to across restarts; a line
    that a killed process left torn is cut off then."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = LineWriter(path, LOGGED)
        self._lines.sync()
        sync_directory(path.parent)
        _living.add(self)

    def log(self, name: str, step: int, fields: Fields) -> None:
        row = Row.of(name, step, fields)
        line = Logged(row.name, row.step, now(), row.values)
        self._lines.append_line(msgspec.json.encode(line) + b"\n")
        self._lines.sync()

    def close(self) -> None:
        self._lines.close()

    def _let_go(self) -> None:
        self._lines.let_go()


_living: weakref.WeakSet[JsonlLogger] = weakref.WeakSet()


def _let_go_of_all() -> None:
    """In a forked child: it would keep the lock of a training that has died."""
    for logger in list(_living):
        logger._let_go()


os.register_at_fork(after_in_child=_let_go_of_all)

_decoder = msgspec.json.Decoder(Logged)


def read_logged(path: str | Path) -> list[Logged]:
    """What a JsonlLogger wrote, in the order written. A torn last line is not there."""
    path = Path(path)
    return [
        LOGGED.decoded(_decoder.decode, path, number, line)
        for number, _, line in lines(path, LOGGED)
    ]
