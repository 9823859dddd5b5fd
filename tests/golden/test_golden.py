"""Runs and curves of earlier versions are read to the same numbers, and go on where they stopped.

What must be read is beside the runs, in expected.json; make.py says how a set comes to be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalReport
from heldout.scoring import grade_includes, grade_number
from tests.golden.make import DATA
from tests.golden.reading import copy_set, differences, observe, read_page, run_command

SETS = sorted(path for path in DATA.iterdir() if path.is_dir())
EXPECTED = {path.name: json.loads((path / "expected.json").read_text()) for path in SETS}
CHECKS = {path.name: tomllib.loads((path / "checks.toml").read_text()) for path in SETS}
LARGEST = 600_000
FIRST = DATA / "2026-11-19"


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of every set, for those who only read."""
    folder = tmp_path_factory.mktemp("golden")
    for path in SETS:
        copy_set(path, folder / path.name)
    return {path.name: folder / path.name for path in SETS}


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no eval file of a copy among the modules of this process."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in {path.stem for folder in SETS for path in folder.glob("*.py")}:
        sys.modules.pop(name, None)


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the first set to write in, as the working directory."""
    copy_set(FIRST, tmp_path)
    monkeypatch.chdir(tmp_path)
    # A run is resumed only with the graders it was begun with, so these are of their versions then.
    for grader in (grade_number, grade_includes):
        monkeypatch.setattr(grader, "__heldout_version__", 6)
    return tmp_path


def path_of(name: str) -> Path:
    """The only run of a name."""
    [path] = Path("outputs/evals", name).glob("2*")
    return path


def read_summary(name: str) -> dict[str, Any]:
    return dict(EvalReport.load(path_of(name)).summary)


def succeed(command: str) -> Any:
    """Run a command that ends with 0; returns the last line of its JSON."""
    outcome = run_command(command)
    assert outcome["code"] == 0, outcome
    return outcome["out"][-1]


@pytest.mark.parametrize(
    ("name", "command"), [(name, c) for name, known in EXPECTED.items() for c in known["commands"]]
)
def test_a_command_finds_what_it_found(
    name: str, command: str, copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copies[name])
    expected = EXPECTED[name]["commands"][command]
    assert not differences(run_command(command), expected)


@pytest.mark.parametrize("name", EXPECTED)
def test_reports_and_curves_have_the_numbers_that_they_had(
    name: str, copies: dict[str, Path]
) -> None:
    expected = EXPECTED[name]["read"]
    assert not differences(observe(copies[name] / "outputs" / "evals"), expected)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_viewer_shows_the_numbers_that_it_showed(
    name: str, copies: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copies[name])
    assert not differences(read_page(CHECKS[name]["page"]), EXPECTED[name]["page"])


# --- What goes on -------------------------------------------------------------------------------


def test_a_killed_run_goes_on_with_its_saved_turns_to_the_report_of_one_never_stopped(
    first: Path,
) -> None:
    before = path_of("killed")
    lines = (before / "results.jsonl").read_bytes().splitlines()
    in_flight = {path.name for path in (before / "turns").glob("*.json")}
    assert in_flight == {"3-0.json", "3-1.json"}
    summary = succeed("run journey.py --name killed --resume --json")
    assert not differences(read_summary("killed"), read_summary("journey"))
    assert summary["mean"] == read_summary("journey")["mean"]
    after = (path_of("killed") / "results.jsonl").read_bytes().splitlines()
    assert after[: len(lines)] == lines
    results = {(r.sample_id, r.repeat): r for r in EvalReport.load(path_of("killed")).results}
    turns = {item: r.trajectory.timing.restored_turns for item, r in results.items()}
    # Errors of the first process were run again, from the beginning; the rest was never asked.
    assert turns == {item: 2 if item[0] == "to-6" else 0 for item in results}
    whole = EvalReport.load(path_of("journey")).results
    assert [(r.trajectory.messages, r.trajectory.outcome, r.score) for r in whole] == [
        (r.trajectory.messages, r.trajectory.outcome, r.score) for r in results.values()
    ]


def test_a_run_that_stops_goes_on_to_its_stop_and_a_stopped_one_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_set(DATA / "2026-11-19-until", tmp_path)
    monkeypatch.chdir(tmp_path)
    whole = succeed("run until.py --name whole --until mean>0.5 --json")
    killed = succeed("run until.py --name killed --resume --json")
    assert killed["decision"] == whole["decision"] == "true"
    assert not differences(read_summary("killed"), read_summary("whole"))
    before = read_summary("stopped")
    succeed("run until.py --name stopped --resume --json")
    assert read_summary("stopped") == before, "there was nothing left to do"
    succeed("run until.py --name stopped --resume --until none --json")
    assert not differences(read_summary("stopped"), read_summary("plain"))


@pytest.mark.parametrize("name", ["shop", "tuned", "judged", "journey", "resumed"])
def test_a_finished_run_is_resumed_and_only_what_errored_is_run_again(
    name: str, first: Path
) -> None:
    before = read_summary(name)
    errored = [r.sample_id for r in EvalReport.load(name).results if not r.ok]
    journal = (path_of(name) / "results.jsonl").read_bytes()
    file = "journey" if name == "resumed" else name
    succeed(f"run {file}.py --name {name} --resume --json")
    assert not differences(read_summary(name), before)
    again = (path_of(name) / "results.jsonl").read_bytes().removeprefix(journal)
    ids = [json.loads(line)["sample"]["id"] for line in again.splitlines()]
    assert sorted(ids) == sorted(errored)


@pytest.mark.parametrize(
    ("file", "name", "old", "new"),
    [
        ("journey.py", "killed", "BEST = (0, 1)", "BEST = (0, 2)"),
        ("journey.py", "killed", '"right": 1', '"right": 2'),
        ("journey.py", "killed", 'return "Here"', 'return "here"'),
        ("journey.py", "killed", "(1, 2, 5, 6)", "(1, 3, 5, 6)"),
        ("journey.py", "killed", "max_turns=12", "max_turns=11"),
        ("journey.py", "killed", 'version = "2.3"', 'version = "3.0"'),
        ("shop.py", "shop", "LONGEST = 6", "LONGEST = 7"),
        ("shop.py", "shop", "weight=0.25", "weight=0.5"),
        ("shop.py", "shop", '"Look prices up', '"Look the prices up'),
    ],
)
def test_an_eval_that_changed_since_is_not_taken_for_the_old_one(
    file: str, name: str, old: str, new: str, first: Path
) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new, 1))
    journal = (path_of(name) / "results.jsonl").read_bytes()
    outcome = run_command(f"run {file} --name {name} --resume --json")
    assert (outcome["code"], outcome["out"][0]["error"]["kind"]) == (2, "resume_mismatch")
    assert (path_of(name) / "results.jsonl").read_bytes() == journal


def test_a_run_is_not_resumed_with_a_newer_version_of_its_grader(
    first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grade_number, "__heldout_version__", 7)
    outcome = run_command("run journey.py --name killed --resume --json")
    assert (outcome["code"], outcome["out"][0]["error"]["kind"]) == (2, "resume_mismatch")


def test_answers_of_an_old_run_are_scored_again(first: Path) -> None:
    strict = read_summary("strict")
    succeed("rescore shop --scorer shop.py:strict --name again --json")
    assert not differences(read_summary("again"), strict)
    kinds = succeed("compare shop again --json")
    assert kinds["verdict"] == succeed("compare shop strict --json")["verdict"]


def test_logs_are_imported_to_the_same_runs(first: Path) -> None:
    known = run_command("import logs --max-error-rate 0.2 --json")
    assert [line["is_new"] for line in known["out"]] == [False] * 3
    shutil.move("outputs", "before")
    assert run_command("import logs --max-error-rate 0.2 --json")["code"] == 0
    for name in ("capitals", "sums", "my-env"):
        [old] = Path("before/evals", name).glob("2*")
        found, expected = EvalReport.load(path_of(name)), EvalReport.load(old)
        assert not differences(dict(found.summary), dict(expected.summary))
        assert list(found.results) == list(expected.results)


def test_curves_are_continued_and_points_of_the_same_weights_are_not_measured_again(
    first: Path,
) -> None:
    before = [Path("outputs/evals", name, "curve.jsonl") for name in ("squares", "cartpole-curve")]
    lines = [path.read_bytes() for path in before]
    process = subprocess.run(
        [sys.executable, "train.py", "continued"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "default"},
        check=True,
    )
    told = json.loads(process.stdout.splitlines()[-1])
    assert told["refused"] == "ResumeMismatch"
    squares, agent = (
        [(step, reused) for name, step, _, reused in told["beats"] if name == label]
        for label in ("squares", "env_eval")
    )
    assert (squares, agent) == ([(110, True), (120, False)], [(10, True), (20, False)])
    assert [path.read_bytes()[: len(old)] for path, old in zip(before, lines, strict=True)] == lines


# --- The data themselves ------------------------------------------------------------------------


def test_all_sets_are_small_and_name_no_folder_of_a_machine() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < LARGEST
    for path in files:
        assert not re.search(rb"/(tmp|home|root|work|Users)/", path.read_bytes()), path


def test_every_check_of_a_set_has_its_numbers() -> None:
    for name, checks in CHECKS.items():
        assert checks["commands"] == [*EXPECTED[name]["commands"]]
