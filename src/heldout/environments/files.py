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
            InvalidInput: If the files are no tree, or if no tree satisfies the goal.
        """
        tools: list[Tool] = [self.list_files, self.read_file, self.write_file]
        tools += [self.move_file, self.remove_file]
        super().__init__(tools, in_threads=False)  # none of them can block
        puzzle = _parse_puzzle({"files": files, "goal": goal})
        self._nodes = _make_tree(puzzle.files, "files")
        self._goal = _check_goal(puzzle.goal)
        self._calls = 0

    @classmethod
    def for_sample(cls, sample: Sample) -> Self:
        """Make the tree of a sample from the `files` and the `goal` in its input.

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
        path = self._find(path)
        if self._nodes[path] is not None:
            raise NotADirectoryError(f"{path!r} is a file")
        below = [
            node if text is not None else f"{node}/"
            for node, text in self._nodes.items()
            if node != path and _is_within(node, path)
        ]
        return "\n".join(sorted(below)) or f"{path!r} is empty"

    def read_file(self, path: str) -> str:
        """Return the text of a file.

        Args:
            path: The file.
        """
        self._calls += 1
        path = self._find(path)
        text = self._nodes[path]
        if text is None:
            raise IsADirectoryError(f"{path!r} is a directory")
        return text

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
        self._nodes = nodes
        return f"wrote {_normalise(path)}"

    def move_file(self, path: str, new_path: str) -> str:
        """Move or rename a file, or a directory with all that is in it.

        Missing directories are created.

        Args:
            path: The file or directory.
            new_path: Its whole new path, where nothing may exist yet.
        """
        self._calls += 1
        path, new_path = self._find(path), _normalise(new_path)
        if _is_within(new_path, path):
            raise ValueError(f"{path!r} cannot be moved to {new_path!r}, into itself")
        if new_path in self._nodes:
            raise FileExistsError(f"{new_path!r} exists; give the whole new path, or remove it")
        nodes = {node: text for node, text in self._nodes.items() if not _is_within(node, path)}
        _put_parents(nodes, new_path)
        for node in self._nodes.keys() - nodes.keys():
            nodes[new_path + node.removeprefix(path)] = self._nodes[node]
        self._nodes = nodes
        return f"moved {path} to {new_path}"

    def remove_file(self, path: str) -> str:
        """Remove a file, or a directory with all that is in it.

        Args:
            path: The file or directory.
        """
        self._calls += 1
        path = self._find(path)
        if path == "/":
            raise PermissionError("the root cannot be removed")
        self._nodes = {n: text for n, text in self._nodes.items() if not _is_within(n, path)}
        return f"removed {path}"

    def _find(self, path: str) -> str:
        path = _normalise(path)
        if path not in self._nodes:
            raise FileNotFoundError(f"there is no file or directory {path!r}")
        return path

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
        nodes = {**outcome.files, **dict.fromkeys(outcome.directories)}
        met = [_meets(nodes, path, text) for path, text in outcome.goal.items()]
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
        """Take up the tree of a snapshot."""
        self._nodes, self._calls = dict(snapshot["nodes"]), snapshot["calls"]


class _Puzzle(msgspec.Struct):
    files: dict[str, str]
    goal: dict[str, str | None]


class _Outcome(_Puzzle):
    directories: list[str]
    calls: int


def _parse_puzzle(value: Any) -> _Puzzle:
    try:
        return msgspec.convert(value, _Puzzle)
    except msgspec.ValidationError as problem:
        raise InvalidInput(
            "a file puzzle has files, a dict of path to text, and goal, a dict of path to text or "
            f"None: {problem}"
        ) from None


def _make_tree(files: Mapping[str, str], name: str) -> Nodes:
    nodes: Nodes = {"/": None}
    for path, text in files.items():
        try:
            if nodes.get(_normalise(path)) is not None:
                raise FileExistsError("a file of that path is there already")
            _put(nodes, path, text)
        except (OSError, ValueError) as problem:
            raise InvalidInput(f"{name}[{path!r}]: {problem}") from None
    return nodes


def _check_goal(goal: dict[str, str | None]) -> dict[str, str | None]:
    if not goal:
        raise InvalidInput("the goal is empty, so every tree would satisfy it")
    wanted = {path: text for path, text in goal.items() if text is not None}
    smallest = _make_tree(wanted, "goal")
    for path, text in goal.items():
        if not _meets(smallest, path, text):
            raise InvalidInput(
                f"no tree satisfies the goal: {path!r} must not exist, and another path needs it"
            )
    return goal


def _meets(nodes: Mapping[str, str | None], path: str, text: str | None) -> bool:
    """Tell whether one path of a goal is as it should be."""
    is_directory, path = path.endswith("/"), _normalise(path)
    if text is None:
        return nodes.get(path, "") is not None if is_directory else path not in nodes
    return path in nodes and nodes[path] == (None if is_directory else text)


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
    while (path := posixpath.dirname(path)) != "/":
        if nodes.setdefault(path, None) is not None:
            raise NotADirectoryError(f"{path!r} is a file, so nothing can be in it")


def _normalise(path: str) -> str:
    """Make a path absolute, without `.`, `..` and a `/` at the end."""
    if not path:
        raise ValueError("the path is empty")
    return posixpath.normpath("/" + path.lstrip("/"))


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
