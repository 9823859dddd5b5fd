"""FileSystem: puzzles, their outcome, and what it is worth."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout import Message, Sample, Trajectory
from heldout.environments import FileSystem
from heldout.errors import InvalidInput, SnapshotMismatch
from heldout.testing import check_environment
from tests.conftest import RunEval
from tests.environments.conftest import calling, reply_of, told

FILES = {"/notes/todo.txt": "buy milk\n", "/old.log": "", "/empty/": ""}
GOAL = {"/archive/old.log": "", "/old.log": None}


def command(text: str) -> Message:
    return calling(("run", json.dumps({"command": text})))


def after(environment: FileSystem, *commands: str) -> FileSystem:
    reply_of(environment, *map(command, commands))
    return environment


def scored(environment: FileSystem) -> dict[str, float]:
    trajectory = Trajectory((), outcome=environment.outcome())
    score = FileSystem.score(trajectory, Sample("s", {}))
    return {metric.name: metric.value for metric in score.metrics} | {"reward": score.reward}


def test_a_file_system_keeps_the_contract() -> None:
    turns: list[str | Message] = [
        command("mkdir archive"),
        command("cd archive"),
        command("mv /old.log ."),
        command("cat nothing"),
        "Done.",
    ]
    assert check_environment(lambda: FileSystem(FILES, GOAL), turns=turns)


def test_a_model_sees_what_a_terminal_would_show() -> None:
    assert told(FileSystem(FILES, GOAL), "run", '{"command": "ls"}') == "empty\nnotes\nold.log\n"
    said = told(FileSystem(FILES, GOAL), "run", '{"command": "cat /a/b"}')
    assert said == "cat: /a/b: No such file or directory\n"


def test_the_outcome_is_the_final_tree() -> None:
    environment = after(FileSystem(FILES, GOAL), "cd notes", "rm todo.txt", "nonsense")
    assert environment.outcome() == {
        "files": {"/old.log": ""},
        "folders": ["/", "/empty", "/notes"],
        "cwd": "/notes",
        "commands": 3,
        "goal": GOAL,
    }


def test_a_puzzle_is_solved_when_the_whole_goal_is_met() -> None:
    half = after(FileSystem(FILES, GOAL), "rm old.log")
    assert scored(half) == {"solved": 0.0, "goals_met": 0.5, "commands": 1.0, "reward": 0.0}
    whole = after(FileSystem(FILES, GOAL), "mkdir archive", "mv old.log archive")
    assert scored(whole) == {"solved": 1.0, "goals_met": 1.0, "commands": 2.0, "reward": 1.0}


@pytest.mark.parametrize(
    ("goal", "commands", "met"),
    [
        ({"/f": "text\n"}, ["echo text > f"], True),
        ({"/f": "text"}, ["echo text > f"], False),
        ({"/f": ""}, ["mkdir f"], False),
        ({"/f": ""}, ["touch f"], True),
        ({"/f": None}, ["mkdir f"], False),
        ({"/f": None}, [], True),
        ({"/d/": ""}, ["mkdir d"], True),
        ({"/d/": ""}, ["touch d"], False),
        ({"/d/": ""}, [], False),
        ({"/empty/": None}, [], False),
        ({"/empty/": None}, ["rm -r empty"], True),
        ({"/notes/": None}, ["rm -r notes", "touch notes"], True),
        ({"/notes": None}, ["rm -r notes", "touch notes"], False),
        ({"notes/todo.txt": "buy milk\n"}, [], True),
    ],
)
def test_files_are_judged_by_their_text_and_directories_by_being_there(
    goal: dict[str, str | None], commands: list[str], met: bool
) -> None:
    assert scored(after(FileSystem(FILES, goal), *commands))["solved"] == met


def test_without_a_final_tree_there_is_no_score() -> None:
    for outcome in (None, {"count": 1}):
        with pytest.raises(InvalidInput, match="environment_factory=FileSystem.for_sample"):
            FileSystem.score(Trajectory((), outcome=outcome), Sample("s", {}))


@pytest.mark.parametrize(
    ("files", "goal", "said"),
    [
        ({"/a": 3}, GOAL, r"files\['/a'\] is its text, got 3"),
        ({"/a": "x", "/a/b": "y"}, GOAL, "'/a' as a file and '/a/b' in it"),
        ({"/a/b": "y", "/a": "x"}, GOAL, "'/a' twice, or as a file and a directory"),
        ({"/a/": "x"}, GOAL, "is a directory, for its / at the end, with text"),
        ({"/a/../b": ""}, GOAL, "written without . and .."),
        ({"": ""}, GOAL, "a path is a non-empty text"),
        ({"/": ""}, GOAL, "is the root"),
        ({"/a": "x" * 300_000}, GOAL, "too many or too large, at '/a'"),
        (["/a"], GOAL, "files is a dict"),
        ({}, {}, "goal is a dict"),
        ({}, {"/a": 3}, "is text or None, got 3"),
        ({}, {"/a": "x", "/a/b": "y"}, "no tree can satisfy the goal"),
        ({}, {"/a": None, "/a/b": "y"}, "no tree can satisfy the goal"),
        ({}, {"/a/": None, "/a/b/c": "y"}, "no tree can satisfy the goal"),
        ({}, {"/a/": "x"}, "is a directory"),
    ],
)
def test_puzzles_that_cannot_be_are_refused(files: Any, goal: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        FileSystem(files, goal)


def test_a_puzzle_may_begin_elsewhere_than_at_the_root() -> None:
    assert told(FileSystem(FILES, GOAL, cwd="/notes"), "run", '{"command": "pwd"}') == "/notes\n"
    with pytest.raises(InvalidInput, match="cwd is a directory of the files, got '/old.log'"):
        FileSystem(FILES, GOAL, cwd="/old.log")


def test_a_sample_says_what_its_puzzle_lacks() -> None:
    with pytest.raises(InvalidInput, match="sample 'p': a file puzzle has 'goal' in its input"):
        FileSystem.for_sample(Sample("p", {"files": {}}))
    with pytest.raises(InvalidInput, match="sample 'p': goal is a dict"):
        FileSystem.for_sample(Sample("p", {"files": {}, "goal": {}}))


def test_an_eval_of_puzzles_runs_and_scores_the_final_tree(run_eval: RunEval) -> None:
    samples = [
        Sample(f"s{i}", {"prompt": f"rm {name}", "files": {"/a": ""}, "goal": {"/a": None}})
        for i, name in enumerate("ab")
    ]

    def do_as_told(messages: list[Message]) -> Message:
        return command(messages[0].text) if len(messages) == 1 else Message("assistant", "Done.")

    report = run_eval(samples, FileSystem.score, None, FileSystem.for_sample, endpoint=do_as_told)
    assert [r.score["solved"] for r in report.results] == [1.0, 0.0]
    assert (report.results[0].trajectory.outcome or {})["commands"] == 1
    assert report.results[0].trajectory.stop.ended_by == "no_reply"
    assert report.results[1].trajectory.messages[2].text == (
        "rm: cannot remove 'b': No such file or directory\n"
    )


def test_a_snapshot_that_is_none_is_refused() -> None:
    taken = FileSystem(FILES, GOAL).serialize()
    with pytest.raises(SnapshotMismatch, match="no state of FileSystem"):
        FileSystem.deserialize({**taken, "state": {"files": {}}})


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["mkdir -p", "touch", "cd", "rm -r", "mv", "cp -r", "echo x >"]),
            st.lists(
                st.sampled_from(["a", "'a b'", "a/b", "..", "/notes", "*", "'q\n'"]), max_size=2
            ),
        ),
        max_size=8,
    )
)
def test_any_state_comes_back_from_its_snapshot(commands: list[tuple[str, list[str]]]) -> None:
    lines = [f"{name} {' '.join(arguments)}" for name, arguments in commands]
    environment = after(FileSystem(FILES, GOAL), *lines)
    again = FileSystem.deserialize(json.loads(json.dumps(environment.serialize())))
    assert again.outcome() == environment.outcome()
    assert again.serialize() == environment.serialize()
