"""FileSystem: its tools, the final tree, and the score."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from examples.file_system import FileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from heldout import Message, Sample, Trajectory
from heldout.errors import InvalidInput
from heldout.testing import check_environment
from tests.conftest import RunEval
from tests.environments.conftest import calling, reply_of, told

FILES = {"/notes/todo.txt": "buy milk\n", "/old.log": ""}
GOAL = {"/archive/old.log": "", "/old.log": None}
Step = tuple[str, dict[str, Any]]


def call(name: str, arguments: dict[str, Any]) -> Message:
    return calling((name, json.dumps(arguments)))


def read(path: str) -> Step:
    return "read_file", {"path": path}


def write(path: str, text: str = "") -> Step:
    return "write_file", {"path": path, "text": text}


def move(path: str, new_path: str) -> Step:
    return "move_file", {"path": path, "new_path": new_path}


def remove(path: str) -> Step:
    return "remove_file", {"path": path}


def after(environment: FileSystem, *steps: Step) -> FileSystem:
    reply_of(environment, *(call(*step) for step in steps))
    return environment


def answer(step: Step, files: dict[str, str] = FILES) -> str:
    name, arguments = step
    return told(FileSystem(files, GOAL), name, json.dumps(arguments))


def tree(environment: FileSystem) -> dict[str, str]:
    files: dict[str, str] = environment.outcome()["files"]
    return files


def scored(environment: FileSystem) -> dict[str, float]:
    trajectory = Trajectory((), outcome=environment.outcome())
    score = FileSystem.score(trajectory, Sample("s", {}))
    return {metric.name: metric.value for metric in score.metrics} | {"reward": score.reward}


# --- Tools --------------------------------------------------------------------------------------


def test_a_file_system_keeps_the_contract() -> None:
    steps = [move("/old.log", "/archive/old.log"), read("/nothing")]
    turns: list[str | Message] = [*(call(*step) for step in steps), "Done."]
    check_environment(lambda: FileSystem(FILES, GOAL), turns=turns)


def test_the_model_sees_five_typed_tools() -> None:
    tools = {tool.name: list(tool.parameters["properties"]) for tool in FileSystem({}, GOAL).tools}
    assert tools == {
        "list_files": ["path"],
        "read_file": ["path"],
        "write_file": ["path", "text"],
        "move_file": ["path", "new_path"],
        "remove_file": ["path"],
    }


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (("list_files", {}), "/notes/todo.txt\n/old.log"),
        (read("notes//./x/../todo.txt"), "buy milk\n"),
        (write("/a/b.txt", "x"), "wrote /a/b.txt"),
        (move("/old.log", "/new/"), "moved /old.log to /new"),
        (remove("/notes"), "removed /notes"),
    ],
)
def test_tools_answer_in_plain_text(step: Step, text: str) -> None:
    assert answer(step) == text


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (("list_files", {"path": "/x"}), "FileNotFoundError: there is no file or directory '/x'"),
        (read("/notes"), "IsADirectoryError: '/notes' is a directory"),
        (read(""), "ValueError: the path is empty"),
        (write("/notes", "x"), "IsADirectoryError: '/notes' is a directory"),
        (write("/old.log/x", "x"), "NotADirectoryError: '/old.log' is a file"),
        (move("/notes", "/notes/in/it"), "ValueError: '/notes' cannot be moved"),
        (move("/", "/y"), "ValueError: '/' cannot be moved"),
        (move("/old.log", "/notes"), "FileExistsError: '/notes' exists"),
    ],
)
def test_a_mistake_is_explained_and_changes_nothing(step: Step, said: str) -> None:
    assert answer(step).startswith(f"Error: {said}")
    environment = FileSystem(FILES, GOAL)
    before = tree(environment)
    assert tree(after(environment, step)) == before


def test_no_real_file_is_touched(tmp_path: Path) -> None:
    real = tmp_path / "real.txt"
    real.write_text("real")
    assert "there is no file" in answer(read(str(real)))
    after(FileSystem({}, GOAL), write(str(real), "other"), remove(str(tmp_path)))
    assert real.read_text() == "real"


def test_a_directory_moves_with_all_that_is_in_it() -> None:
    environment = FileSystem({"/a/b/c": "x", "/a/e": "", "/ab": ""}, GOAL)
    moved = {"/ab": "", "/new/place/b/c": "x", "/new/place/e": ""}
    assert tree(after(environment, move("/a", "/new/place"))) == moved
    assert tree(after(environment, remove("/"))) == {}
    assert told(environment, "list_files", "{}") == "there are no files"


# --- The score ----------------------------------------------------------------------------------


def test_a_puzzle_is_solved_when_the_whole_goal_is_met() -> None:
    half = after(FileSystem(FILES, GOAL), remove("old.log"), read("/x"))
    files = {"/notes/todo.txt": "buy milk\n"}
    assert half.outcome() == {"files": files, "calls": 2, "goal": GOAL}
    assert scored(half) == {"solved": 0.0, "goals_met": 0.5, "calls": 2.0, "reward": 0.0}
    whole = after(FileSystem(FILES, GOAL), move("old.log", "archive/old.log"))
    assert scored(whole) == {"solved": 1.0, "goals_met": 1.0, "calls": 1.0, "reward": 1.0}


@pytest.mark.parametrize(
    ("goal", "steps", "met"),
    [
        ({"/f": "text\n"}, [write("f", "text\n")], True),
        ({"/f": "text"}, [write("f", "text\n")], False),
        ({"/f": None}, [write("f/g")], False),
        ({"/notes": None}, [remove("notes/todo.txt")], True),
        ({"notes/todo.txt": "buy milk\n"}, [], True),
    ],
)
def test_files_are_judged_by_their_text_and_what_must_not_be_by_being_gone(
    goal: dict[str, str | None], steps: list[Step], met: bool
) -> None:
    assert scored(after(FileSystem(FILES, goal), *steps))["solved"] == met


def test_without_a_final_tree_there_is_no_score() -> None:
    for outcome in (None, {"count": 1}):
        with pytest.raises(InvalidInput, match="environment_factory=FileSystem.for_sample"):
            FileSystem.score(Trajectory((), outcome=outcome), Sample("s", {}))


@pytest.mark.parametrize(
    ("files", "goal", "said"),
    [
        ({"/a": 3}, GOAL, "Expected `str`, got `int`"),
        ({"/a": "x", "/a/b": "y"}, GOAL, "'/a/b'.*'/a' is a file, so nothing can be in it"),
        ({"/a/b": "y", "/a": "x"}, GOAL, "'/a'.*'/a' is a directory"),
        ({}, {}, "the goal is empty"),
        ({}, {"/a": "x", "a": "y"}, "no tree satisfies the goal"),
        ({}, {"/a": "x", "/a/b": "y"}, r"goal\['/a/b'\]: '/a' is a file"),
    ],
)
def test_puzzles_that_cannot_be_are_refused(files: Any, goal: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        FileSystem(files, goal)


def test_a_sample_says_what_its_puzzle_lacks() -> None:
    with pytest.raises(InvalidInput, match="sample 'p': a file puzzle has files.*field `goal`"):
        FileSystem.for_sample(Sample("p", {"files": {}}))
    with pytest.raises(InvalidInput, match="sample 'p': the goal is empty"):
        FileSystem.for_sample(Sample("p", {"files": {}, "goal": {}}))


def test_an_eval_of_puzzles_runs_and_scores_the_final_tree(run_eval: RunEval) -> None:
    samples = [
        Sample(f"s{i}", {"prompt": name, "files": {"/a": ""}, "goal": {"/a": None}})
        for i, name in enumerate("ab")
    ]

    def remove_it(messages: list[Message]) -> Message:
        if len(messages) == 1:
            return call(*remove(messages[0].text))
        return Message("assistant", "Done.")

    report = run_eval(samples, FileSystem.score, None, FileSystem.for_sample, endpoint=remove_it)
    assert [r.score["solved"] for r in report.results] == [1.0, 0.0]
    assert (report.results[0].trajectory.outcome or {})["calls"] == 1
    assert report.results[0].trajectory.stop.ended_by == "no_reply"
    assert report.results[1].trajectory.messages[2].text == (
        "Error: FileNotFoundError: there is no file or directory '/b'"
    )


# --- Snapshots ----------------------------------------------------------------------------------


PATHS = st.sampled_from(["a", "a b", "a/b", "..", "/notes", "/", "q\n", "a/b/c/"])
STEPS = st.one_of(
    st.builds(write, PATHS, st.sampled_from(["", "x"])),
    st.builds(move, PATHS, PATHS),
    st.builds(remove, PATHS),
)


@settings(max_examples=50)
@given(st.lists(STEPS, max_size=8))
def test_any_state_comes_back_from_its_snapshot(steps: list[Step]) -> None:
    environment = FileSystem(FILES, GOAL)
    for name, arguments in steps:
        with suppress(OSError, ValueError):
            getattr(environment, name)(**arguments)
    files = tree(environment)
    assert not any(other.startswith(f"{path}/") for path in files for other in files)
    again = FileSystem(FILES, GOAL)
    again.restore(json.loads(json.dumps(environment.snapshot())))
    assert again.outcome() == environment.outcome()
    assert again.snapshot() == environment.snapshot()
