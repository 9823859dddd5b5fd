"""Puzzles in a file tree: bring it into the state that a goal describes.

    evaluate(samples, config, FileSystem.score, environment_factory=FileSystem.for_sample)

where `sample.input` is `{"prompt": …, "files": {path: text}, "goal": {path: text or None}}`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Self

import msgspec

from heldout.environment import make_snapshot, read_snapshot
from heldout.environments import Tool, ToolEnvironment
from heldout.errors import InvalidInput
from heldout.types import Metric, Sample, Score, Trajectory


class FileSystem(ToolEnvironment):
    """A file tree in memory with five tools: list, read, write, move and remove.

    No real file is ever touched. Paths are absolute, with or without the `/` in front. A directory
    exists as long as there is a file in it. A turn that calls no tool ends the rollout.
    """

    env_kind = "file_system"
    version = "1.0"

    def __init__(self, files: Mapping[str, str], goal: Mapping[str, str | None]) -> None:
        """Make the tree of one rollout.

        Args:
            files: Path to text of the files at the start.
            goal: What must hold at the end: the exact text of a file, or None for a path that must
                not exist, neither as a file nor as a directory. Paths that are not named are free.

        Raises:
            InvalidInput: If the files are no tree, or if no tree satisfies the goal.
        """
        tools: list[Tool] = [self.list_files, self.read_file, self.write_file]
        tools += [self.move_file, self.remove_file]
        super().__init__(tools, in_threads=False)  # none of them can block
        puzzle = _parse_puzzle({"files": files, "goal": goal})
        self._files = _make_tree(puzzle.files, "files")
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
        """List all files below a directory, one path per line.

        Args:
            path: The directory.
        """
        self._calls += 1
        return "\n".join(sorted(self._find(path))) or "there are no files"

    def read_file(self, path: str) -> str:
        """Return the text of a file.

        Args:
            path: The file.
        """
        self._calls += 1
        path = _normalise(path)
        if path not in self._find(path):
            raise IsADirectoryError(f"{path!r} is a directory")
        return self._files[path]

    def write_file(self, path: str, text: str) -> str:
        """Create a file, or replace the whole text of one.

        Missing directories are created.

        Args:
            path: The file.
            text: The text, exactly as it shall be in the file.
        """
        self._calls += 1
        _write(self._files, path, text)
        return f"wrote {_normalise(path)}"

    def move_file(self, path: str, new_path: str) -> str:
        """Move or rename a file, or a directory with all that is in it.

        Missing directories are created.

        Args:
            path: The file or directory.
            new_path: Its whole new path, where nothing may exist yet.
        """
        self._calls += 1
        moved, path, new_path = self._find(path), _normalise(path), _normalise(new_path)
        if _is_within(new_path, path):
            raise ValueError(f"{path!r} cannot be moved to {new_path!r}, into itself")
        if _exists(self._files, new_path):
            raise FileExistsError(f"{new_path!r} exists; give the whole new path, or remove it")
        files = {name: text for name, text in self._files.items() if name not in moved}
        for name in moved:
            _write(files, new_path + name.removeprefix(path), self._files[name])
        self._files = files
        return f"moved {path} to {new_path}"

    def remove_file(self, path: str) -> str:
        """Remove a file, or a directory with all that is in it.

        Args:
            path: The file or directory.
        """
        self._calls += 1
        for name in self._find(path):
            del self._files[name]
        return f"removed {_normalise(path)}"

    def _find(self, path: str) -> list[str]:
        """List a file, or the files in a directory."""
        path = _normalise(path)
        if path != "/" and not _exists(self._files, path):
            raise FileNotFoundError(f"there is no file or directory {path!r}")
        return [name for name in self._files if _is_within(name, path)]

    # --- Score ---

    def outcome(self) -> dict[str, Any]:
        """Return the final tree, the number of tool calls, and the goal."""
        files = dict(sorted(self._files.items()))
        return {"files": files, "calls": self._calls, "goal": dict(self._goal)}

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
        met = [_meets(outcome.files, path, text) for path, text in outcome.goal.items()]
        return Score(
            (
                Metric("solved", all(met), weight=1.0),
                Metric("goals_met", sum(met) / len(met), rate=True),
                Metric("calls", outcome.calls),
            )
        )

    # --- Snapshots ---

    def snapshot(self) -> dict[str, Any]:
        """Return the tree and the number of tool calls so far."""
        return make_snapshot(self, {"files": dict(self._files), "calls": self._calls})

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Restore the tree of a snapshot.

        Raises:
            SnapshotMismatch: It is of another kind of environment, or of another major version.
        """
        state = read_snapshot(self, snapshot)
        self._files, self._calls = dict(state["files"]), state["calls"]


class _Puzzle(msgspec.Struct):
    files: dict[str, str]
    goal: dict[str, str | None]


class _Outcome(_Puzzle):
    calls: int


def _parse_puzzle(value: Any) -> _Puzzle:
    try:
        return msgspec.convert(value, _Puzzle)
    except msgspec.ValidationError as problem:
        raise InvalidInput(
            "a file puzzle has files, a dict of path to text, and goal, a dict of path to text or "
            f"None: {problem}"
        ) from None


def _make_tree(files: Mapping[str, str], name: str) -> dict[str, str]:
    tree: dict[str, str] = {}
    for path, text in files.items():
        try:
            _write(tree, path, text)
        except (OSError, ValueError) as problem:
            raise InvalidInput(f"{name}[{path!r}]: {problem}") from None
    return tree


def _check_goal(goal: dict[str, str | None]) -> dict[str, str | None]:
    if not goal:
        raise InvalidInput("the goal is empty, so every tree would satisfy it")
    smallest = _make_tree({p: text for p, text in goal.items() if text is not None}, "goal")
    for path, text in goal.items():
        if not _meets(smallest, path, text):
            raise InvalidInput(f"no tree satisfies the goal: {path!r} contradicts another path")
    return goal


def _meets(files: Mapping[str, str], path: str, text: str | None) -> bool:
    path = _normalise(path)
    return not _exists(files, path) if text is None else files.get(path) == text


def _write(files: dict[str, str], path: str, text: str) -> None:
    is_directory, path = path.endswith("/"), _normalise(path)
    if is_directory or (path not in files and _exists(files, path)):
        raise IsADirectoryError(f"{path!r} is a directory")
    parent = path
    while (parent := posixpath.dirname(parent)) != "/":
        if parent in files:
            raise NotADirectoryError(f"{parent!r} is a file, so nothing can be in it")
    files[path] = text


def _normalise(path: str) -> str:
    """Make a path absolute, without `.`, `..` and a `/` at the end."""
    if not path:
        raise ValueError("the path is empty")
    return posixpath.normpath("/" + path.lstrip("/"))


def _exists(files: Mapping[str, str], path: str) -> bool:
    """Whether there is such a file, or a file in such a directory."""
    return any(_is_within(name, path) for name in files)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")
