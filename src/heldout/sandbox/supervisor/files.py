"""Files of a sandbox, read and written for the host, while programs may do anything to them.

A path is opened one name at a time, and no link is followed by the kernel: those that stay in the
sandbox are resolved here. This file also runs by itself, in containers (`serve_once`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

HEADER = struct.Struct("!II")
"""Before each message: the lengths of its JSON and of the bytes that follow it."""
MAX_LINKS = 40
MAX_DEPTH = 100
MAX_PASSES = 20_000
"""Each removes one level of folders."""
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """A request that cannot be done.

    `kind` is "sandbox" if that failed; otherwise "path", "missing" or "full".
    """

    def __init__(self, message: str, kind: str = "sandbox") -> None:
        super().__init__(message)
        self.kind = kind


def describe_refusal(problem: Refused | OSError | ValueError) -> dict[str, str]:
    """Return the reply to a request that could not be done."""
    if isinstance(problem, Refused):
        return {"error": str(problem), "kind": problem.kind}
    if isinstance(problem, ValueError):  # a NUL, or half of a character
        return {"error": "it is no path", "kind": "path"}
    kinds = {errno.ENOENT: "missing", errno.ENOSPC: "full", errno.ENOMEM: "sandbox"}
    text = os.strerror(problem.errno) if problem.errno else str(problem)
    return {"error": text, "kind": kinds.get(problem.errno or 0, "path")}


def encode(value: dict[str, Any], blob: bytes = b"") -> bytes:
    """Return a message."""
    text = json.dumps(value).encode()
    return HEADER.pack(len(text), len(blob)) + text + blob


class SandboxFiles:
    """The folders `work` and `tmp` of a box, which are /work and /tmp to programs."""

    def __init__(self, box: str) -> None:
        self.box = box

    def handle(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Do what a request asks for.

        Raises:
            Refused: It cannot be done, as does OSError.
        """
        operations = {"read": self._read, "write": self._write}
        operations |= {"tree": self._read_tree, "restore": self._restore_tree}
        return operations[request["operation"]](request, blob)

    def _write(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        path, mode = request["path"], request["mode"]
        with (
            self._open_parent(path, make=True) as (folder, name),
            open(os.open(name, WRITE, mode, dir_fd=folder), "wb") as file,
        ):
            _require_file(file.fileno())
            os.ftruncate(file.fileno(), 0)
            os.fchmod(file.fileno(), mode)
            file.write(blob)
        return {}, b""

    def _read(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        path, limit = request["path"], request["limit"]
        with (
            self._open_parent(path) as (folder, name),
            open(os.open(name, READ, dir_fd=folder), "rb") as file,
        ):
            size = _require_file(file.fileno())
            if size > limit:
                raise Refused(f"it has {size:,} bytes, and the limit is {limit:,}", "path")
            return {}, file.read(limit)

    # --- Paths ---

    @contextlib.contextmanager
    def _open_parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a path; yield it, and the name in it, which is no link.

        Args:
            path: From the root, or from /work.
            make: Whether to make the folders that are not there.
        """
        walk = _PathWalk(self.box, path)
        try:
            while (part := walk.next()) is not None:
                if make and walk.depth > 0:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=walk.folder)
                walk.enter(part)
            yield walk.folder, walk.name
        finally:
            walk.close()

    # --- Trees ---

    def _read_tree(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        reader = _TreeReader(request["max_files"], request["max_bytes"])
        reader.read(os.open(f"{self.box}/work", OPEN_FOLDER), "", 0)
        sizes = {name: len(content) for name, content in reader.contents.items()}
        return {"entries": reader.entries, "contents": sizes}, b"".join(reader.contents.values())

    def _restore_tree(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        contents, position = {}, 0
        for name, size in request["contents"].items():
            contents[name] = blob[position : position + size]
            position += size
        folder = os.open(f"{self.box}/work", OPEN_FOLDER)
        try:
            _empty_folder(folder)
            folders = []
            for path, kind, mode, value in request["entries"]:
                with self._open_parent(f"/work/{path}") as (parent, name):
                    if kind == "folder":
                        os.mkdir(name, 0o700, dir_fd=parent)
                        folders.append((path, mode))
                    elif kind == "link":
                        os.symlink(value, name, dir_fd=parent)
                    else:
                        flags = WRITE | os.O_EXCL
                        with open(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
                            os.fchmod(file.fileno(), mode)
                            file.write(contents[value])
            # Last, and from the inside out: a folder may be one that its owner cannot enter.
            for path, mode in reversed(folders):
                with self._open_parent(f"/work/{path}") as (parent, name):
                    inner = os.open(name, OPEN_FOLDER, dir_fd=parent)
                    os.fchmod(inner, mode)
                    os.close(inner)
        finally:
            os.close(folder)
        return {}, b""


class _PathWalk:
    """A path that is walked from the box, one name at a time."""

    def __init__(self, box: str, path: str) -> None:
        self.path, self.name, self.links = path, "", 0
        self.parts = self._split(path)
        self.stack = [os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]

    @property
    def folder(self) -> int:
        """The folder it has come to."""
        return self.stack[-1]

    @property
    def depth(self) -> int:
        """How far that is below the box."""
        return len(self.stack) - 1

    def next(self) -> str | None:
        """Return the next folder; None once there is only a name left, which is no link."""
        while self.parts:
            part = self.parts.pop(0)
            if part == "..":
                if self.depth:
                    os.close(self.stack.pop())
                continue
            target = _read_link(part, self.folder)
            if target is not None:
                self._follow(target)
            elif self.parts:
                return part
            elif not self.depth:
                break
            else:
                self.name = part
                return None
        raise Refused("it is a folder, or outside of /work and /tmp", "path")

    def enter(self, part: str) -> None:
        """Go on to a folder."""
        self.stack.append(os.open(part, OPEN_FOLDER, dir_fd=self.folder))

    def _follow(self, target: str) -> None:
        self.links += 1
        if self.links > MAX_LINKS:
            raise Refused("it has too many links", "path")
        if target.startswith("/"):
            while self.depth:
                os.close(self.stack.pop())
            self.parts = self._split(target) + self.parts
        else:
            self.parts = [part for part in target.split("/") if part not in ("", ".")] + self.parts
        if len(self.parts) > 4096:
            raise Refused("it is too long", "path")

    def _split(self, path: str) -> list[str]:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/"):
            parts.insert(0, "work")
        if not parts or parts[0] not in ("work", "tmp"):
            link = "" if path == self.path else f"it leads to {path}, which "
            raise Refused(f"{link or 'it '}is outside of /work and /tmp", "path")
        return parts

    def close(self) -> None:
        """Close all folders."""
        for descriptor in self.stack:
            os.close(descriptor)


class _TreeReader:
    """Reads a folder that programs may still write to, within limits."""

    def __init__(self, max_files: int, max_bytes: int) -> None:
        self.max_files, self.max_bytes, self.room = max_files, max_bytes, max_bytes
        self.entries: list[tuple[str, str, int, str]] = []
        self.contents: dict[str, bytes] = {}

    def read(self, folder: int, path: str, depth: int) -> None:
        """Read what is in an open folder, and close it."""
        try:
            if depth > MAX_DEPTH:
                raise Refused(f"there are folders more than {MAX_DEPTH} deep", "path")
            for name in sorted(os.listdir(folder)):
                if len(self.entries) >= self.max_files:
                    raise Refused(f"there are more than {self.max_files:,} files", "path")
                self._read_entry(folder, name, f"{path}{name}", depth)
        finally:
            os.close(folder)

    def _read_entry(self, folder: int, name: str, path: str, depth: int) -> None:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if stat.S_ISLNK(found.st_mode):
            self.entries.append((path, "link", mode, os.readlink(name, dir_fd=folder)))
        elif stat.S_ISDIR(found.st_mode):
            self.entries.append((path, "folder", mode, ""))
            self.read(os.open(name, OPEN_FOLDER, dir_fd=folder), f"{path}/", depth + 1)
        elif stat.S_ISREG(found.st_mode):
            with open(os.open(name, READ, dir_fd=folder), "rb") as file:
                content = file.read(self.room + 1)
            digest = hashlib.sha256(content).hexdigest()
            if digest not in self.contents:
                self.room -= len(content)
                if self.room < 0:
                    raise Refused(f"there are more than {self.max_bytes:,} bytes", "path")
                self.contents[digest] = content
            self.entries.append((path, "file", mode, digest))
        # Pipes and sockets are nothing without the processes that have them open.


def _empty_folder(folder: int) -> None:
    """Remove all that is in an open folder, however deep: inner folders are moved up first."""
    for _ in range(MAX_PASSES):
        names = os.listdir(folder)
        if not names:
            return
        for name in names:
            try:
                inner = os.open(name, OPEN_FOLDER, dir_fd=folder)
            except OSError:  # no folder
                os.unlink(name, dir_fd=folder)
                continue
            try:
                for entry in os.listdir(inner):
                    os.rename(entry, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=folder)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
    raise Refused("programs write to it faster than it can be emptied", "path")


def _read_link(name: str, folder: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:  # no link, or not there: opening it says so
        return None


def _require_file(descriptor: int) -> int:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise Refused("it is no file", "path")
    return found.st_size


def serve_once(box: str) -> None:
    """Do one request, from standard input to standard output."""
    data = sys.stdin.buffer.read()
    length, _ = HEADER.unpack_from(data)
    start = HEADER.size + length
    try:
        reply = SandboxFiles(box).handle(json.loads(data[HEADER.size : start]), data[start:])
    except (Refused, OSError, ValueError) as problem:
        reply = (describe_refusal(problem), b"")
    sys.stdout.buffer.write(encode(*reply))
