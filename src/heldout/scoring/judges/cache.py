"""Verdicts of judges in memory, or in an SQLite file that threads and processes share.

A row holds a judge's reply under a hash of the whole request and of who was asked. Questions and
judged answers are not stored. The file is opened for each access and closed again, in a thread:
so nothing is remembered of a file that was removed or replaced, a forked process shares no
connection, and SQLite's locks make any number of writers safe.

Whether the file can be written is checked before anything is paid for. If it cannot be later on,
verdicts are used and kept in memory, and one warning says so. A reply is parsed anew whenever it is
used: a file that was edited by hand can cost a request, and spoil no verdict.
"""

from __future__ import annotations

import sqlite3
import threading
import warnings
from collections import OrderedDict
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import anyio.to_thread

from heldout.errors import RunDirectoryError
from heldout.types import Usage

MAX_IN_MEMORY = 16_384
"""Verdicts that are kept in memory, those that were used last."""
LOCK_SECONDS = 10.0
"""Time to wait for another process that writes."""
APPLICATION_ID = 0x68656C64
"""Marks an SQLite file as a verdict cache ("held")."""
_JSONL_HEADER = b'{"format":"heldout.verdicts"'
_TABLE = """
create table if not exists verdicts (
    key text primary key, prompt text not null, judge text not null, reply text not null,
    attempts integer not null, prompt_tokens integer, completion_tokens integer
) without rowid
"""


class CachedReply(NamedTuple):
    """A reply that was a verdict."""

    key: str
    prompt: str
    judge: str
    reply: str
    attempts: int
    usage: Usage | None = None


class VerdictCache:
    """Replies by key."""

    def __init__(self, path: Path | None = None) -> None:
        """Open a cache.

        Args:
            path: The SQLite file, which is made where it is missing; None for memory alone.

        Raises:
            RunDirectoryError: The file cannot be written, or is something else.
        """
        self.path = path
        self._memory: OrderedDict[str, CachedReply] = OrderedDict()
        self._lock = threading.Lock()
        self._has_warned = False
        if path is not None:
            _check_file(path)

    async def get(self, key: str) -> CachedReply | None:
        """Look up a reply; None where there is none, or the file cannot be read now."""
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
                return self._memory[key]
        if self.path is None:
            return None
        return await anyio.to_thread.run_sync(self._read, self.path, key)

    async def put(self, reply: CachedReply) -> None:
        """Keep a reply."""
        if self.path is None or not await anyio.to_thread.run_sync(self._write, self.path, reply):
            with self._lock:
                self._memory[reply.key] = reply
                while len(self._memory) > MAX_IN_MEMORY:
                    self._memory.popitem(last=False)

    def _read(self, path: Path, key: str) -> CachedReply | None:
        query = "select * from verdicts where key = ?"
        try:
            with closing(_connect(path)) as connection:
                row = connection.execute(query, [key]).fetchone()
        except sqlite3.Error as problem:
            self._warn(problem)
            return None
        if row is None:
            return None
        key, prompt, judge, reply, attempts, *tokens = row
        usage = None if tokens[0] is None else Usage(*tokens)
        return CachedReply(key, prompt, judge, reply, attempts, usage)

    def _write(self, path: Path, reply: CachedReply) -> bool:
        usage = reply.usage
        tokens = (None, None) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
        try:
            with closing(_connect(path)) as connection, connection:
                connection.execute(
                    "insert or replace into verdicts values (?, ?, ?, ?, ?, ?, ?)",
                    (*reply[:5], *tokens),
                )
        except sqlite3.Error as problem:
            self._warn(problem)
            return False
        return True

    def _warn(self, problem: sqlite3.Error) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"verdicts of a judge cannot be kept in {self.path}: {problem}. They are used, and "
                "remembered as long as this process lives",
                RuntimeWarning,
                stacklevel=2,
            )


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_SECONDS)
    try:
        # After a power cut a verdict may be missing, which costs a request and no more.
        connection.execute("pragma synchronous = normal")
        connection.execute(_TABLE)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            with path.open("rb") as file:
                is_json_lines = file.read(len(_JSONL_HEADER)) == _JSONL_HEADER
            if is_json_lines:
                raise RunDirectoryError(
                    f"{path} is a verdict cache of an older heldout, in JSON lines, which is not "
                    "read any more. It is left as it is; name another file, such as verdicts.db"
                )
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as connection:
            (application,) = connection.execute("pragma application_id").fetchone()
            tables = connection.execute("select name from sqlite_schema").fetchall()
            if tables and application != APPLICATION_ID:
                raise sqlite3.DatabaseError("it holds other tables")
            connection.execute(f"pragma application_id = {APPLICATION_ID}")
            connection.execute(_TABLE)
            connection.execute("begin immediate")  # fails where it cannot be written
    except sqlite3.OperationalError as problem:
        raise RunDirectoryError(f"cannot write {path}: {problem}") from None
    except sqlite3.DatabaseError as problem:
        raise RunDirectoryError(
            f"{path} is no cache of verdicts, and is left as it is ({problem}); name another file"
        ) from None
    except OSError as problem:
        raise RunDirectoryError(f"cannot write {path}: {problem.strerror}") from None
