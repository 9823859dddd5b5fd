"""Puzzles in a file tree: bring it into the state that a goal describes.

    evaluate(samples, config, FileSystem.score, environment_factory=FileSystem.for_sample)

where `sample.input` is `{"prompt": …, "files": {path: text}, "goal": {path: text or None}}`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from heldout.environments.tools import Tool, ToolEnvironment
from heldout.errors import InvalidInput
from heldout.types import Metric, Sample, Score, Trajectory

MAX_ENTRIES = 1_000
"""Files and directories of a tree."""
MAX_CHARACTERS = 200_000
"""Characters of all files and paths together."""
MAX_PATH = 1_000
"""Characters of a path."""
MAX_OUTPUT = 20_000
"""Characters that one call returns."""

Nodes = dict[str, str | None]
"""Absolute paths to texts; None is a directory. The root is always there."""


class FileSystem(ToolEnvironment):
    """A file tree in memory with five tools: list, read, write, move and remove.

    No real file is ever touched. Paths are absolute, with or without the `/` in front. A turn that
    calls no tool ends the rollout.
    """

    def __init__(self, files: Mapping[str, str], goal: Mapping[str, str | None]) -> None:
        """Make the tree of one rollout.

        Args:
            files: Path to text of the files at the start. Their directories come with them; an
                empty directory is a path that ends in `/` with the text "".
            goal: What must hold at the end: the exact text of a file, or None for a path that must
                not exist. A path that ends in `/` is a directory that must exist ("") or must not
                (None). Paths that are not named are free.

        Raises:
            InvalidInput: If the files are no tree or too large, or if no tree satisfies the goal.
        """
        tools: list[Tool] = [self.list_files, self.read_file, self.write_file]
        tools += [self.move_file, self.remove_file]
        super().__init__(tools, in_threads=False)  # none of them can block
        puzzle = _parse_puzzle({"files": files, "goal": goal})
        self._nodes = _make_tree(puzzle.files)
        self._goal = _check_goal(puzzle.goal)
        self._calls = 0

    @classmethod
    def for_sample(cls, sample: Sample) -> Self:
        """Make the tree of a sample from the `files` and the `goal` in its input.

        Args:
            sample: The puzzle.

        Returns:
            Its environment.

        Raises:
            InvalidInput: If the puzzle is malformed.
        """
        try:
            puzzle = _parse_puzzle(sample.input)
            return cls(puzzle.files, puzzle.goal)
        except InvalidInput as problem:
            raise InvalidInput(f"sample {sample.id!r}: {problem}") from None

    # --- Tools: the docstrings are for the model ---

    def list_files(self, path: str = "/") -> str:
        """List all files and directories below a directory, one path per line.

        Directories end in /.

        Args:
            path: The directory.
        """
        self._calls += 1
        path = _normalise(path)
        if _existing(self._nodes, path) is not None:
            raise NotADirectoryError(f"{path!r} is a file")
        below = [
            node if text is not None else f"{node}/"
            for node, text in self._nodes.items()
            if node != path and _is_within(node, path)
        ]
        return _truncate("\n".join(sorted(below))) or f"{path!r} is empty"

    def read_file(self, path: str, start: int = 0) -> str:
        """Return the text of a file.

        Args:
            path: The file.
            start: How many characters to skip, for a file too long to be returned at once.
        """
        self._calls += 1
        path = _normalise(path)
        text = _existing(self._nodes, path)
        if text is None:
            raise IsADirectoryError(f"{path!r} is a directory")
        return _truncate(text[max(0, start) :])

    def write_file(self, path: str, text: str) -> str:
        """Create a file, or replace the whole text of one.

        Missing directories are created.

        Args:
            path: The file. A path that ends in / creates an empty directory.
            text: The text, exactly as it shall be in the file; "" for a directory.
        """
        self._calls += 1
        nodes = dict(self._nodes)
        _put(nodes, path, text)
        self._nodes = _check_size(nodes)
        return f"wrote {_normalise(path)}"

    def move_file(self, path: str, new_path: str) -> str:
        """Move or rename a file, or a directory with all that is in it.

        Missing directories are created.

        Args:
            path: The file or directory.
            new_path: Its whole new path, where nothing may exist yet.
        """
        self._calls += 1
        path, new_path = _normalise(path), _normalise(new_path)
        _existing(self._nodes, path)
        if _is_within(new_path, path):
            raise ValueError(f"{path!r} cannot be moved to {new_path!r}, into itself")
        if new_path in self._nodes:
            raise FileExistsError(f"{new_path!r} exists; give the whole new path, or remove it")
        nodes = {node: text for node, text in self._nodes.items() if not _is_within(node, path)}
        _put_parents(nodes, new_path)
        for node in self._nodes.keys() - nodes.keys():
            nodes[new_path + node.removeprefix(path)] = self._nodes[node]
        self._nodes = _check_size(nodes)
        return f"moved {path} to {new_path}"

    def remove_file(self, path: str) -> str:
        """Remove a file, or a directory with all that is in it.

        Args:
            path: The file or directory.
        """
        self._calls += 1
        path = _normalise(path)
        _existing(self._nodes, path)
        if path == "/":
            raise PermissionError("the root cannot be removed")
        self._nodes = {n: text for n, text in self._nodes.items() if not _is_within(n, path)}
        return f"removed {path}"

    # --- Score ---

    def outcome(self) -> dict[str, Any]:
        """Return the final tree, the number of tool calls, and the goal."""
        nodes = sorted(self._nodes.items())
        return {
            "files": {path: text for path, text in nodes if text is not None},
            "directories": [path for path, text in nodes if text is None],
            "calls": self._calls,
            "goal": dict(self._goal),
        }

    @staticmethod
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        """Score the final tree.

        Args:
            trajectory: A rollout of a `FileSystem`.
            sample: Its puzzle.

        Returns:
            `solved`, the reward: 1 if the whole goal is met. With weight 0: `goals_met`, the
            fraction of the goal's paths, and `calls`, the number of tool calls.

        Raises:
            InvalidInput: If the rollout had another environment, or none.
        """
        try:
            outcome = msgspec.convert(trajectory.outcome, _Outcome)
        except msgspec.ValidationError:
            raise InvalidInput(
                f"sample {sample.id!r}: there is no final tree to score; run it with "
                "environment_factory=FileSystem.for_sample"
            ) from None
        met = [outcome.meets(path, text) for path, text in outcome.goal.items()]
        return Score(
            (
                Metric("solved", all(met), weight=1.0),
                Metric("goals_met", sum(met) / len(met)),
                Metric("calls", outcome.calls),
            )
        )

    # --- Snapshots ---

    def snapshot(self) -> dict[str, Any]:
        """Return the tree and the number of tool calls so far."""
        return {"nodes": dict(self._nodes), "calls": self._calls}

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Take up the tree of a snapshot.

        Args:
            snapshot: What `snapshot` returned.
        """
        self._nodes, self._calls = dict(snapshot["nodes"]), snapshot["calls"]


class _Puzzle(msgspec.Struct):
    files: dict[str, str]
    goal: dict[str, str | None]


class _Outcome(msgspec.Struct):
    files: dict[str, str]
    directories: list[str]
    calls: int
    goal: dict[str, str | None]

    def meets(self, path: str, text: str | None) -> bool:
        """Tell whether one path of the goal is as it should be."""
        name = path.rstrip("/")
        if path.endswith("/"):
            return (name in self.directories) == (text is not None)
        if text is None:
            return name not in self.files and name not in self.directories
        return self.files.get(name) == text


def _parse_puzzle(value: Any) -> _Puzzle:
    try:
        return msgspec.convert(value, _Puzzle)
    except msgspec.ValidationError as problem:
        raise InvalidInput(
            "a file puzzle has files, a dict of path to text, and goal, a dict of path to text or "
            f"None: {problem}"
        ) from None


def _make_tree(files: Mapping[str, str]) -> Nodes:
    nodes: Nodes = {"/": None}
    for path, text in files.items():
        try:
            if nodes.get(_normalise(path)) is not None:
                raise FileExistsError("a file of that path is there already")
            _put(nodes, path, text)
        except (OSError, ValueError) as problem:
            raise InvalidInput(f"files[{path[:100]!r}]: {problem}") from None
    try:
        return _check_size(nodes)
    except OSError as problem:
        raise InvalidInput(f"files: {problem}") from None


def _check_goal(goal: Mapping[str, str | None]) -> dict[str, str | None]:
    if not goal:
        raise InvalidInput("the goal is empty, so every tree would satisfy it")
    checked: dict[str, str | None] = {}
    for path, text in goal.items():
        try:
            path = _normalise(path) + "/" * path.endswith("/")
        except ValueError as problem:
            raise InvalidInput(f"goal[{path[:100]!r}]: {problem}") from None
        if path == "//":
            raise InvalidInput("the goal cannot name the root, which always exists")
        if path.endswith("/") and text:
            raise InvalidInput(f"goal[{path!r}] is a directory, since it ends in /, and has text")
        if path in checked:
            raise InvalidInput(f"the goal has {path!r} twice")
        checked[path] = text
    for path, text in checked.items():
        for parent in _parents(path.rstrip("/")) if text is not None else ():
            if parent in checked or checked.get(f"{parent}/", "") is None:
                raise InvalidInput(
                    f"no tree satisfies the goal: {path!r} needs a directory {parent!r}, which the "
                    "goal rules out"
                )
    return checked


def _put(nodes: Nodes, path: str, text: str) -> None:
    """Write a file, or make a directory if the path ends in `/`, with all directories above."""
    is_directory, path = path.endswith("/"), _normalise(path)
    if is_directory and text:
        raise IsADirectoryError(f"{path!r} is a directory, since it ends in /, and has no text")
    _put_parents(nodes, path)
    if path in nodes and (nodes[path] is None) != is_directory:
        raise FileExistsError(f"{path!r} is a {'file' if is_directory else 'directory'}")
    nodes[path] = None if is_directory else text


def _put_parents(nodes: Nodes, path: str) -> None:
    for parent in _parents(path):
        if nodes.setdefault(parent, None) is not None:
            raise NotADirectoryError(f"{parent!r} is a file, so nothing can be in it")


def _check_size(nodes: Nodes) -> Nodes:
    size = sum(len(path) + len(text or "") for path, text in nodes.items())
    if len(nodes) > MAX_ENTRIES or size > MAX_CHARACTERS or max(map(len, nodes)) > MAX_PATH:
        raise OSError(
            f"too large: a tree has at most {MAX_ENTRIES} files and directories, {MAX_CHARACTERS} "
            f"characters in all, and {MAX_PATH} in a path"
        )
    return nodes


def _existing(nodes: Nodes, path: str) -> str | None:
    if path not in nodes:
        raise FileNotFoundError(f"there is no file or directory {path!r}")
    return nodes[path]


def _normalise(path: str) -> str:
    """Make a path absolute, without `.`, `..` and a `/` at the end."""
    if not path or len(path) > MAX_PATH or "\0" in path:
        raise ValueError(f"a path is a text of 1 to {MAX_PATH} characters, got {path[:100]!r}")
    return posixpath.normpath("/" + path.lstrip("/"))


def _parents(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: i + 1]) for i in range(len(parts))]


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _truncate(text: str) -> str:
    if len(text) <= MAX_OUTPUT:
        return text
    return f"{text[:MAX_OUTPUT]}\n[truncated: {len(text) - MAX_OUTPUT} more characters]"
