"""Links of a tree that a model has made, before anybody reads through them.

What is scored must be what the model wrote. A link into /proc, or to the files of a check, would
have a check read something else. So of a tree that is scored every link has become a copy of what
it leads to in /work, or leads to the read-only system, or is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, TypedDict

from heldout.sandbox import SandboxTree, TreeEntry

MAX_LINKS = 40
"""Links on the way to a file, as for the kernel."""
MAX_DEPTH = 100
"""Folders in one another, of a copy."""
FORBIDDEN = ("proc", "dev", "sys", "tmp")
"""Folders of a sandbox that hold neither what the model has made nor the system."""


class LinkRecord(TypedDict):
    """What became of a link."""

    target: str
    became: Literal["copy", "link", "dropped"]
    why: str


class _Dropped(Exception):
    """A link is left out; the message says why."""


class _TooLarge(_Dropped):
    """A link is left out, with everything that it is a part of."""


class _System(Exception):
    """A path that leads to the read-only system: where."""


class LinkResolver:
    """Follows the links of a tree in /work."""

    def __init__(self, tree: SandboxTree, max_files: int, max_bytes: int) -> None:
        """Prepare.

        Args:
            tree: All that is in /work.
            max_files: How many files and folders may be copied.
            max_bytes: How many bytes may be copied.
        """
        self._tree = tree
        self._by_path = {entry.path: entry for entry in tree.entries}
        self._below: dict[str, list[TreeEntry]] = {}
        for entry in tree.entries:
            self._below.setdefault(entry.path.rpartition("/")[0], []).append(entry)
        self._files, self._bytes = max_files, max_bytes
        self.records: dict[str, LinkRecord] = {}

    def resolve(self) -> SandboxTree:
        """Return the tree without links, but for those to the system."""
        entries: list[TreeEntry] = []
        for entry in self._tree.entries:
            if entry.kind != "link":
                entries.append(entry)
                continue
            added: list[TreeEntry] = []
            try:
                self._copy(entry, entry.path, added, ())
            except _Dropped as dropped:
                self._record(entry, "dropped", str(dropped))
                continue
            entries += added
            self._record(entry, "link" if added[0].kind == "link" else "copy")
        return SandboxTree(tuple(entries), self._tree.contents)

    def _record(
        self, entry: TreeEntry, became: Literal["copy", "link", "dropped"], why: str = ""
    ) -> None:
        path, target = (_printable(text) for text in (entry.path, entry.value))
        self.records[path] = LinkRecord(target=target, became=became, why=why)

    def drop(self, entry: TreeEntry, why: str) -> None:
        """Take note that a link to the system is left out after all."""
        known = self.records.get(_printable(entry.path))
        self._record(entry, "dropped", why)
        if known is not None:  # what the model wrote, and not where it leads
            self.records[_printable(entry.path)]["target"] = known["target"]

    def _copy(
        self, entry: TreeEntry, path: str, added: list[TreeEntry], inside: tuple[str, ...]
    ) -> None:
        """Add an entry under a path, with what is in it; of a link, what it leads to.

        Args:
            entry: The entry.
            path: The path that it is to have.
            added: Gets the entries.
            inside: The folders that are being copied.
        """
        if entry.kind == "link":
            try:
                entry = self._follow(entry)
            except _System as system:
                added.append(replace(entry, path=path, value=str(system)))
                return
        if entry.kind == "folder" and any(_is_in(folder, entry.path) for folder in (path, *inside)):
            raise _Dropped("it leads to a folder that it is in")
        self._files -= 1
        self._bytes -= len(self._tree.contents[entry.value]) if entry.kind == "file" else 0
        if self._files < 0 or self._bytes < 0 or len(inside) > MAX_DEPTH:
            raise _TooLarge("its copy would be too large")
        added.append(replace(entry, path=path))
        if entry.kind != "folder":
            return
        for inner in self._below.get(entry.path, ()):
            inner_path = f"{path}/{inner.path.rpartition('/')[2]}"
            try:
                self._copy(inner, inner_path, added, (*inside, entry.path))
            except _TooLarge:
                raise
            except _Dropped as dropped:  # a link: nothing of it was added
                self._record(replace(inner, path=inner_path), "dropped", str(dropped))

    def _follow(self, link: TreeEntry) -> TreeEntry:
        """Return the file or folder that a link leads to.

        Raises:
            _System: It leads to the read-only system.
            _Dropped: It leads nowhere, or where nothing is to be read from.
        """
        links = 0
        at = ["work", *link.path.split("/")[:-1]]
        rest = _split(link.value)
        if link.value.startswith("/"):
            at = []
        while rest:
            part = rest.pop(0)
            if part == "..":
                at = at[:-1]
                continue
            at.append(part)
            if at[0] in FORBIDDEN:
                raise _Dropped(f"it leads into /{at[0]}")
            if at[0] != "work" or len(at) == 1:
                continue
            entry = self._by_path.get("/".join(at[1:]))
            if entry is None or (entry.kind == "file" and rest):
                raise _Dropped("there is nothing where it leads")
            if entry.kind == "link":
                links += 1
                if links > MAX_LINKS:
                    raise _Dropped("it leads through too many links")
                at = [] if entry.value.startswith("/") else at[:-1]
                rest = _split(entry.value) + rest
        if not at:
            raise _Dropped("it leads to /")
        if at[0] != "work":
            raise _System("/" + "/".join(at))
        if len(at) == 1:
            raise _Dropped("it leads to a folder that it is in")
        return self._by_path["/".join(at[1:])]


def _split(target: str) -> list[str]:
    return [part for part in target.split("/") if part not in ("", ".")]


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
