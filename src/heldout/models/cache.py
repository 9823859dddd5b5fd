"""A cache of model turns, off unless `EvalConfig(cache=…)` asks for it.

Judges store their verdicts in such a file, too (`heldout.scoring.judges`).

A turn is found again by everything that decides it: the endpoint's description, the whole request,
and which attempt asks. Repeats of a sample therefore never share a turn, and where tokens are drawn
without a seed, neither do two samples with the same prompt.

Only servers and models that are loaded from disk are cached. A function, a model in memory or one
in the middle of its training may answer differently tomorrow under the same description. A server's
model is known by its name and address: other weights behind the same name are not noticed.

The file is an SQLite database that several processes may use at once. Turns expire, and the oldest
go when there are too many (HELDOUT_CACHE_MAX_DAYS, HELDOUT_CACHE_MAX_MB). A cache that cannot be
read or written costs a warning, never a result.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import anyio.to_thread
import msgspec

from heldout._core.config import SAMPLING_FIELDS, Sampling
from heldout.errors import InvalidInput
from heldout.models.base import Complete, Endpoint
from heldout.models.demo import cache_folder
from heldout.types import Completion, EvalResult, Message, ToolSpec

log = logging.getLogger("heldout")

APPLICATION_ID = 0x48454C44  # "HELD"
FORMAT = 1
"""Version of the table; files of another one are refused."""
TURN_FORMAT = 2
"""Version of the keys and the content of turns; those of another one are not found."""
MAX_MEGABYTES, MAX_DAYS = 2048.0, 30.0
BUSY_SECONDS = 30.0
"""How long one process waits for another one that writes."""
CHECKSUM_BYTES = 16

CREATE = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS turns (
    key BLOB PRIMARY KEY,
    stored REAL NOT NULL,
    size INTEGER NOT NULL,
    turn BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_age ON turns (stored, size);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
COMMIT;
"""
PRUNE = """
DELETE FROM turns WHERE stored <= :oldest OR key IN (
    SELECT key FROM (
        SELECT key, sum(size) OVER (ORDER BY stored DESC, key) AS newer FROM turns
    ) WHERE newer > :max_bytes
)
"""


class CacheInfo(NamedTuple):
    """What a cache file holds: turns, bytes, and when they were stored in seconds since 1970."""

    entries: int
    bytes: int
    oldest: float | None
    newest: float | None


def default_path() -> Path:
    """Find the cache file that is used where no path is given."""
    return cache_folder() / "responses.sqlite"


class ResponseCache:
    """A file of model turns by their keys, which threads and processes share."""

    def __init__(self, path: Path, *, permanent: bool = False) -> None:
        """Open the file, and make it if needed.

        In a permanent file nothing expires, and it survives a power failure, at some 10 ms per
        turn.
        """
        self.path = path
        self._max_bytes = self._max_age = math.inf
        if not permanent:
            self._max_bytes = _read_limit("HELDOUT_CACHE_MAX_MB", MAX_MEGABYTES) * 1e6
            self._max_age = _read_limit("HELDOUT_CACHE_MAX_DAYS", MAX_DAYS) * 86400
        self._lock = threading.Lock()
        self._has_written = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Prompts and answers are for the user alone.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._db = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(permanent)
            except BaseException:
                self._db.close()
                raise
        except (OSError, sqlite3.Error) as problem:
            raise InvalidInput(f"cannot use {path} as a response cache: {problem}") from None

    def _prepare(self, permanent: bool) -> None:
        if not permanent:
            # Without fsync: 10 ms less per turn. After a power failure the file may be damaged,
            # which SQLite or the checksums notice.
            self._db.execute("PRAGMA synchronous = OFF")
        # First, since another process may be creating the file: all of it appears at once.
        is_new = not self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if is_new:
            self._db.execute("PRAGMA auto_vacuum = FULL")  # so that pruning makes the file smaller
            self._db.executescript(CREATE)
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if (application, version) != (APPLICATION_ID, FORMAT):
            raise sqlite3.DatabaseError(
                "not a response cache of this version of heldout; name another file"
            )

    def get(self, key: bytes) -> bytes | None:
        """Find a turn that has not expired."""
        query = "SELECT turn FROM turns WHERE key = ? AND stored > ?"
        with self._lock:
            row = self._db.execute(query, (key, time.time() - self._max_age)).fetchone()
        if row is None:
            return None
        checksum, turn = row[0][:CHECKSUM_BYTES], row[0][CHECKSUM_BYTES:]
        return turn if checksum == _checksum(key, turn) else None

    def put(self, key: bytes, turn: bytes) -> None:
        """Store a turn."""
        row = (key, time.time(), len(turn), _checksum(key, turn) + turn)
        with self._lock:
            self._db.execute("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?)", row)
            self._has_written = True

    def info(self) -> CacheInfo:
        """Count what the file holds."""
        query = "SELECT count(*), min(stored), max(stored) FROM turns"
        with self._lock:
            entries, oldest, newest = self._db.execute(query).fetchone()
        return CacheInfo(entries, self.path.stat().st_size, oldest, newest)

    def clear(self, *, older_than: float = 0.0) -> int:
        """Remove turns older than a number of seconds, and return how many there were."""
        before = time.time() - older_than
        with self._lock:
            return self._db.execute("DELETE FROM turns WHERE stored <= ?", (before,)).rowcount

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove what has expired or does not fit, and close the file."""
        limits = {"oldest": time.time() - self._max_age, "max_bytes": self._max_bytes}
        with self._lock, closing(self._db):
            if self._has_written and self._max_bytes < math.inf:
                self._db.execute(PRUNE, limits)


def _checksum(key: bytes, turn: bytes) -> bytes:
    return hashlib.blake2b(key + turn, digest_size=CHECKSUM_BYTES).digest()


def _read_limit(variable: str, default: float) -> float:
    text = os.environ.get(variable)
    try:
        limit = float(text) if text else default
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise InvalidInput(f"{variable} must be a number >= 0, got {text!r}")
    return limit


class CachedEndpoint:
    """An endpoint whose turns are taken from a cache where it has them."""

    def __init__(self, endpoint: Endpoint, model: Any, cache: bool | str) -> None:
        """Put the cache before an endpoint, which the config's `endpoint` names or is."""
        from heldout.models.http import ServerEndpoint

        description = endpoint.describe()
        self._server = endpoint if isinstance(endpoint, ServerEndpoint) else None
        is_on_disk = isinstance(model, str) and "version" in description
        if self._server is None and not is_on_disk:
            name = next(filter(None, map(description.get, ("model", "name", "kind"))))
            reason = description.get("unknown") or "its answers may change under the same name"
            raise InvalidInput(
                "the response cache is for servers and for models loaded from disk, not for "
                f"{name}: {reason}. Leave out cache"
            )
        self._endpoint, self._is_owner = endpoint, endpoint is not model
        self._cache = ResponseCache(Path(cache) if isinstance(cache, str) else default_path())
        self._description = {k: v for k, v in description.items() if k != "max_batch"}
        self._has_failed = False

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report."""
        return self._endpoint.describe()

    @contextmanager
    def item(self, index: int, repeat: int) -> Iterator[Complete]:
        """Return the completion function of one attempt; see `bind_attempt`."""
        yield partial(self._take_turn, index, repeat)

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Make one model turn outside any attempt, bypassing the cache."""
        return await self._endpoint.complete(messages, sampling, tools)

    async def close(self) -> None:
        """Close the cache, and the endpoint if it was opened here."""
        await self._try(self._cache.close)
        if self._is_owner:
            await self._endpoint.close()

    async def _take_turn(
        self,
        index: int,
        repeat: int,
        messages: Sequence[Message],
        sampling: Sampling,
        tools: Sequence[ToolSpec],
    ) -> Completion:
        server = self._server
        # Without `given`: what decides is what was asked, whoever had set it.
        settings = {field.name: getattr(sampling, field.name) for field in SAMPLING_FIELDS}
        request: Any = [messages, settings, tools]
        if server is not None:
            request = server.body(messages, sampling, tools)
        is_greedy = sampling.temperature == 0 and "temperature" not in (sampling.extra_body or {})
        # A seed is of the attempt already. Without one, only the sample tells two draws apart.
        draw = None if is_greedy or sampling.seed is not None else index
        parts = [TURN_FORMAT, self._description, request, sampling.seed, repeat, draw]
        key = hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).digest()
        content = await self._try(partial(self._cache.get, key))
        if content is not None:
            with suppress(msgspec.ValidationError):  # an earlier version may have stored it
                return replace(msgspec.json.decode(content, type=Completion), cached=True)
        completion = await self._endpoint.complete(messages, sampling, tools)
        await self._try(partial(self._cache.put, key, msgspec.json.encode(completion)))
        return completion

    async def _try(self, function: Callable[[], Any]) -> Any:
        """Use the cache in a thread, since another process may hold it; None if it fails."""
        try:
            return await anyio.to_thread.run_sync(function)
        except sqlite3.Error as problem:
            if not self._has_failed:
                log.warning("the response cache %s fails: %s", self._cache.path, problem)
            self._has_failed = True
            return None


def count_turns(results: Iterable[EvalResult]) -> tuple[int, int]:
    """Count the model turns of a run that came from the cache, and the requests sent."""
    timings = [t for result in results if (t := result.trajectory.timing) is not None]
    return sum(t.cached_turns for t in timings), sum(t.requests for t in timings)
