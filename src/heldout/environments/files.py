"""Puzzles in a file tree: bring it into the state that the goal describes, with a small shell.

    evaluate(samples, config, FileSystem.score, environment_factory=FileSystem.for_sample)

where `sample.input` is `{"prompt": …, "files": {path: text}, "goal": {path: text or None}}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from heldout.environments.commands import COMMANDS
from heldout.environments.shell import Shell, ShellError, Tree, join, parent
from heldout.environments.tools import ToolEnvironment
from heldout.errors import InvalidInput
from heldout.types import Metric, Sample, Score, Trajectory


class FileSystem(ToolEnvironment):
    """A file tree in memory with one tool, `run`, a small shell.

    `files` are the paths there are at first, with their text; directories come with them, and an
    empty one is a path that ends in `/`. `goal` is what must be so in the end: the exact text of
    a file, None for a path that must not be there, and for a path that ends in `/` a directory
    that must be there (or, with None, must not). Paths it does not name are free. A turn that
    runs no command ends the rollout.
    """

    env_kind = "file_system"
    version = "1.0"

    def __init__(
        self, files: Mapping[str, str], goal: Mapping[str, str | None], *, cwd: str = "/"
    ) -> None:
        # It cannot take long, so a thread would only cost time.
        super().__init__([self.run], in_threads=False)
        self._goal = _checked_goal(goal)
        self._shell = Shell(_tree(files), COMMANDS)
        self._shell.cwd = _path(cwd, "cwd").rstrip("/") or "/"
        if not self._shell.tree.is_folder(self._shell.cwd):
            raise InvalidInput(f"cwd is a directory of the files, got {cwd!r}")
        self._commands = 0

    @classmethod
    def for_sample(cls, sample: Sample) -> Self:
        """The puzzle of a sample: its `files` and `goal`, and `cwd` if it has one."""
        try:
            files, goal = sample.input["files"], sample.input["goal"]
        except KeyError as missing:
            raise InvalidInput(
                f"sample {sample.id!r}: a file puzzle has {missing} in its input; its keys are "
                f"{sorted(sample.input)}"
            ) from None
        try:
            return cls(files, goal, cwd=sample.input.get("cwd", "/"))
        except InvalidInput as problem:
            raise InvalidInput(f"sample {sample.id!r}: {problem}") from None

    def run(self, command: str) -> str:
        """Run one shell command on the file tree and return what it prints.

        Args:
            command: One of pwd, cd, ls, cat, echo, mkdir, touch, mv, cp, rm, find, grep and wc
                with its arguments. Wildcards work, and > or >> sends the output to a file. There
                are no pipes, no && and no variables.
        """
        self._commands += 1
        return self._shell.run(command)

    def outcome(self) -> dict[str, Any]:
        nodes = self._shell.tree.nodes
        return {
            "files": {path: nodes[path] for path in sorted(nodes) if nodes[path] is not None},
            "folders": [path for path in sorted(nodes) if nodes[path] is None],
            "cwd": self._shell.cwd,
            "commands": self._commands,
            "goal": dict(self._goal),
        }

    @staticmethod
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        """`solved`, the reward, is 1 where the final tree satisfies the whole goal.

        Tracked beside it: `goals_met`, the share of the goal's paths, and `commands`.
        """
        outcome = trajectory.outcome
        if outcome is None or not {"files", "folders", "goal", "commands"} <= set(outcome):
            raise InvalidInput(
                f"sample {sample.id!r}: there is no final tree to score; run it with "
                "environment_factory=FileSystem.for_sample"
            )
        met = [
            _is_met(path, wanted, outcome["files"], outcome["folders"])
            for path, wanted in outcome["goal"].items()
        ]
        return Score(
            (
                Metric("solved", all(met), weight=1.0),
                Metric("goals_met", sum(met) / len(met)),
                Metric("commands", outcome["commands"]),
            )
        )

    def state(self) -> dict[str, Any]:
        return self.outcome()

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Self:
        empty = {path.rstrip("/") + "/": "" for path in state["folders"] if path != "/"}
        environment = cls({**state["files"], **empty}, state["goal"], cwd=state["cwd"])
        environment._commands = state["commands"]
        return environment


def _is_met(path: str, wanted: str | None, files: Mapping[str, str], folders: list[str]) -> bool:
    place = path.rstrip("/")
    if path.endswith("/"):
        return (place in folders) == (wanted is not None)
    if wanted is None:
        return place not in files and place not in folders
    return files.get(place) == wanted


def _tree(files: Mapping[str, str]) -> Tree:
    if not isinstance(files, Mapping):
        raise InvalidInput(f"files is a dict of path to text, got {files!r:.200}")
    tree = Tree()
    for given, content in files.items():
        path = _path(given, "files")
        if not isinstance(content, str):
            raise InvalidInput(f"files[{given!r}] is its text, got {content!r:.200}")
        if path.endswith("/") and content:
            raise InvalidInput(f"files[{given!r}] is a directory, for its / at the end, with text")
        above = "/"
        try:
            for part in path.rstrip("/").split("/")[1:-1]:
                above = join(above, part)
                if tree.is_file(above):
                    raise InvalidInput(f"files has {above!r} as a file and {given!r} in it")
                if not tree.is_folder(above):
                    tree.put(above, None)
            place = path.rstrip("/") or "/"
            is_folder = path.endswith("/")
            if place in tree.nodes and not (is_folder and tree.is_folder(place)):
                raise InvalidInput(f"files has {place!r} twice, or as a file and a directory")
            if place not in tree.nodes:
                tree.put(place, None if is_folder else content)
        except ShellError as problem:
            raise InvalidInput(
                f"files are too many or too large, at {given!r}: {problem}"
            ) from None
    return tree


def _checked_goal(goal: Mapping[str, str | None]) -> dict[str, str | None]:
    if not isinstance(goal, Mapping) or not goal:
        raise InvalidInput(
            "goal is a dict of path to text, or to None for what must not be there, "
            f"got {goal!r:.200}"
        )
    checked = {_path(given, "goal"): wanted for given, wanted in goal.items()}
    for path, wanted in checked.items():
        if wanted is not None and not isinstance(wanted, str):
            raise InvalidInput(f"goal[{path!r}] is text or None, got {wanted!r:.200}")
        if path.endswith("/") and wanted:
            raise InvalidInput(f"goal[{path!r}] is a directory, for its / at the end, with text")
        above = parent(path.rstrip("/")) if wanted is not None else "/"
        while above != "/":
            if above in checked or checked.get(above + "/", "") is None:
                raise InvalidInput(
                    f"no tree can satisfy the goal: {path!r} needs a directory {above!r}, and the "
                    "goal has something else there"
                )
            above = parent(above)
    return checked


def _path(given: Any, where: str) -> str:
    """An absolute path, a `/` at its end kept: it says that a directory is meant."""
    if not isinstance(given, str) or not given:
        raise InvalidInput(f"{where}: a path is a non-empty text, got {given!r:.200}")
    parts = [part for part in given.split("/") if part]
    if any(part in (".", "..") for part in parts):
        raise InvalidInput(f"{where}: a path is written without . and .., got {given!r}")
    if not parts and where != "cwd":
        raise InvalidInput(f"{where}: {given!r} is the root, which is always there")
    return "/" + "/".join(parts) + ("/" if given.endswith("/") and parts else "")
