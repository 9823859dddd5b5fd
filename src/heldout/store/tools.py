"""tools.jsonl: what policies could call, one line for each list of tools, beside the journal.

A result names its line by the line's hash, so the tools of an eval are stored once. A line is on
disk before the first result that names it. Samples that all have tools of their own would only move
the journal into this file: from LARGEST on, tools are stored with their results.
"""

from __future__ import annotations

import hashlib
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from heldout.store.jsonl import LineFormat, LineWriter, encode, read_whole
from heldout.types import ToolSpec

TOOLS = LineFormat("heldout.tools", 1, noun="tools file", line="list of tools", if_busy="wait")
LARGEST = 2**23
"""Bytes of the file."""

Tools = tuple[ToolSpec, ...]


def tools_path(journal: Path) -> Path:
    """Return the path of the tools of a journal's results."""
    return journal.with_name("tools.jsonl")


class StoredTools:
    """The tools of a run that is written."""

    def __init__(self, journal: Path) -> None:
        self._path = tools_path(journal)
        self._known = set(_read_lines(journal))

    def add(self, tools: Tools) -> Tools | str:
        """Store tools; returns their line's hash, or the tools if they are not stored here."""
        line = encode(tools, "a list of", "tools")
        hash = _hash(line)
        if hash in self._known:
            return hash
        size = self._path.stat().st_size if self._path.exists() else 0
        if size + len(TOOLS.header) + len(line) >= LARGEST:
            return tools
        with closing(LineWriter(self._path, TOOLS)) as writer:
            writer.append_line(line + b"\n")
        self._known.add(hash)
        return hash


def read_tools(journal: Path, hash: str) -> Tools:
    """Read the tools that a result names; none where they are not there: they are no result.

    Raises:
        RunDirectoryError: The file cannot be read.
    """
    line = _read_lines(journal).get(hash)
    return () if line is None else _decode(tools_path(journal), line)


def _read_lines(journal: Path) -> dict[str, bytes]:
    path = tools_path(journal)
    try:
        stat = path.stat()
    except OSError:
        return {}
    return _read(path, stat.st_size, stat.st_mtime_ns)


# A line that is damaged is one that no result names.
@lru_cache(8)
def _read(path: Path, _size: int, _time: int) -> dict[str, bytes]:
    return {_hash(line): line for line in read_whole(path, LARGEST).split(b"\n")}


@lru_cache(64)  # results share their tools in memory, too
def _decode(path: Path, line: bytes) -> Tools:
    return TOOLS.decode(path, 0, line, Tools)


def _hash(line: bytes) -> str:
    return hashlib.blake2b(line, digest_size=8).hexdigest()
