"""Runs under an output directory: found by name, made, listed; and where a run came from."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from heldout.cli.list import remove_run
from heldout.cli.main import cli
from heldout.errors import InvalidInput, RunDirectoryError, SystemicFailure
from heldout.store import run_dir
from heldout.store.journal import JournalWriter
from heldout.store.numbers import COUNTER
from heldout.store.report import EvalReport
from heldout.store.run_dir import RunDir, RunInfo, package_versions, redact_command
from heldout.store.runs import find_run, list_history, list_runs, new_run_dir, run_directory
from heldout.types import EvalResult, Metric, Sample, Score, Trajectory
from tests.conftest import RunEval, make_samples

FIRST, SECOND, THIRD = "2026-11-14T09-00-00", "2026-11-15T22-08-31", "2026-11-15T22-08-31-2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(
    name: str, reward: float = 1.0, started: str = "2026-11-15T22:08:31Z", **config: object
) -> Path:
    path = Path("outputs/evals") / name
    result = EvalResult("a", Sample("a", {}), Trajectory(()), Score((Metric("m", reward, 1.0),)))
    EvalReport([result], {}, dict(config)).save(path)
    run = RunDir(path)
    info = run.read_info()
    info.started, info.number = started, None  # as an earlier version wrote it
    run.write_info(info)
    return path


# --- Names ---


def test_a_name_is_the_latest_run_of_that_name() -> None:
    paths = [save(f"capitals/{time}") for time in (SECOND, FIRST, THIRD)]
    assert find_run("capitals") == paths[2]
    assert find_run("outputs/evals/capitals") == paths[2]
    assert find_run(paths[0]) == paths[0]
    assert find_run(f"capitals/{FIRST}") == paths[1]


def test_a_number_counts_from_the_first_run_and_a_time_needs_only_its_beginning() -> None:
    for start in (SECOND, FIRST, THIRD):
        save(f"capitals/{start}")
    assert find_run("capitals@1").name == FIRST
    assert find_run("capitals@3").name == THIRD
    assert find_run("capitals@2026-11-14").name == FIRST
    assert find_run("capitals@2026-11-15").name == THIRD
    assert find_run("capitals@latest").name == THIRD


def test_the_tenth_run_of_one_second_is_later_than_the_second() -> None:
    for number in (2, 10, 9):
        save(f"capitals/{FIRST}-{number}")
    assert [path.name[-3:] for path in list_history(Path("outputs/evals/capitals"))] == [
        "0-2",
        "0-9",
        "-10",
    ]


def answered(name: str) -> Path:
    """A run of that name with an answer, as `heldout run` makes it."""
    path = new_run_dir(name, Path("outputs/evals"))
    result = EvalResult("a", Sample("a", {}), Trajectory(()), Score((Metric("m", 1.0, 1.0),)))
    EvalReport([result], {}, {}).save(path)
    return path


def number_of(path: Path) -> int | None:
    return RunDir(path).read_info().number


def test_a_number_stays_with_its_run_whatever_becomes_of_the_others() -> None:
    paths = [answered("quiz") for _ in range(3)]
    remove_run(paths[0])
    remove_run(paths[2])
    assert find_run("quiz@2") == paths[1]
    with pytest.raises(RunDirectoryError, match=r"there is no quiz@1; there is @2$"):
        find_run("quiz@1")
    assert number_of(answered("quiz")) == 4
    for path in list_history(Path("outputs/evals/quiz")):
        remove_run(path)
    assert number_of(answered("quiz")) == 5


def test_a_try_without_an_answer_takes_no_number(
    run_eval: RunEval, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(messages: object) -> str:
        raise ValueError("no")

    def run(**settings: object) -> Path:
        path = new_run_dir("quiz", folder)
        with suppress(SystemicFailure):
            run_eval(
                make_samples(3), output_dir=str(folder / "quiz"), experiment_name=path.name,
                **settings,
            )  # fmt: skip
        return path

    assert [number_of(run(endpoint=refuses)), number_of(run())] == [0, 1]
    assert [number_of(run(endpoint=refuses)), number_of(run())] == [0, 2]
    tried, first, again, second = sorted((folder / "quiz").glob("2*"))
    assert find_run(folder / "quiz@1") == first
    assert find_run(folder / "quiz") == second
    assert {number_of(tried), number_of(again)} == {0}


def test_runs_without_a_stored_number_keep_their_order_and_new_ones_come_after() -> None:
    for start in (SECOND, FIRST):
        save(f"quiz/{start}")
    path = answered("quiz")
    assert number_of(path) == 3
    assert [find_run(f"quiz@{n}").name for n in (1, 2, 3)] == [FIRST, SECOND, path.name]


def test_a_copied_folder_goes_on_with_its_numbers() -> None:
    first = answered("quiz")
    remove_run(answered("quiz"))
    shutil.copytree("outputs/evals/quiz", "outputs/evals/copy")
    assert number_of(answered("copy")) == 3
    (Path("outputs/evals/copy") / COUNTER).unlink()  # of its runs alone
    assert number_of(answered("copy")) == 4
    shutil.copytree(first, f"outputs/evals/copy/{FIRST}")
    with pytest.raises(RunDirectoryError, match="2 runs of copy have the number 1"):
        find_run("copy@1")


def test_a_number_may_have_any_length_and_a_date_has_a_dash() -> None:
    path = answered("quiz")
    info = RunDir(path).read_info()
    info.number = 2026
    RunDir(path).write_info(info)
    assert number_of(answered("quiz")) == 2027
    save(f"quiz/{FIRST}")
    assert find_run("quiz@2026") == path
    assert find_run("quiz@2026-11-14").name == FIRST


def draw(_: int) -> int | None:
    return number_of(answered("quiz"))


def test_runs_that_start_at_once_get_different_numbers() -> None:
    with ProcessPoolExecutor(4) as pool:
        assert sorted(pool.map(draw, range(12))) == list(range(1, 13))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("capitals@4", "there is no capitals@4; there are @1 to @2"),
        ("capitals@0", "there is no capitals@0"),
        ("capitals@2025-", f"no run of capitals began at 2025-…; there are {FIRST}, {SECOND}"),
        ("capital", "there is no run at capital, nor at outputs/evals/capital; did you mean capit"),
        ("capital@1", "there is no run at capital, nor at outputs/evals/capital; did you mean cap"),
        ("plain@2", "outputs/evals/plain is a single run, so there is no @2 of it"),
        ("outputs", "outputs is not a run itself; name one in it: outputs/evals/plain"),
        ("sweep", "there is no run at sweep"),
        ("outputs/evals/sweep", "is not a run itself; name one in it: outputs/evals/sweep/seed0, "),
    ],
)
def test_a_run_that_is_not_there_is_an_error_that_names_those_that_are(
    name: str, message: str
) -> None:
    save(f"capitals/{FIRST}")
    save(f"capitals/{SECOND}")
    save("plain")
    save("sweep/seed0")
    save("sweep/seed1")
    with pytest.raises(RunDirectoryError) as refused:
        find_run(name)
    assert message in str(refused.value)


def test_what_follows_the_at_is_a_number_or_a_time() -> None:
    save(f"capitals/{FIRST}")
    with pytest.raises(InvalidInput, match="comes a number, a time such as 2026-11-14T09-00-00"):
        find_run("capitals@best")


def test_a_run_directory_of_that_very_name_is_a_run_among_the_others() -> None:
    own = save("capitals", started="2026-11-15T00:00:00Z")
    assert find_run("capitals") == own
    later = save(f"capitals/{SECOND}")
    earlier = save(f"capitals/{FIRST}")
    assert find_run("capitals") == later
    assert [find_run(f"capitals@{i}") for i in (1, 2, 3)] == [earlier, own, later]


def test_a_path_is_that_directory_whatever_was_run_under_its_name_since() -> None:
    own = save("math_500_a", reward=1.0, started="2026-11-14T00:00:00Z")
    later = save(f"math_500_a/{SECOND}", reward=0.0)
    for path in (own, str(own), own.absolute(), f"{own}/", f"./{own}"):
        assert find_run(path) == Path(path)
        assert EvalReport.load(path).summary["mean"] == 1.0
    assert EvalReport.load("math_500_a").summary["mean"] == 0.0
    assert find_run(f"{own}@2") == find_run("math_500_a@2") == later
    # A directory that holds no run itself is the latest in it.
    other = save(f"math_500_b/{FIRST}", reward=0.5)
    assert find_run(other.parent) == find_run("math_500_b") == other
    found = sorted(Path("outputs/evals").glob("math_500_*"))
    assert [EvalReport.load(path).summary["mean"] for path in found] == [1.0, 0.5]
    assert {*Path("outputs/evals").glob("math_500_*/20*")} == {later, other}


def test_every_command_takes_a_path_for_that_directory(folder: Path) -> None:
    own = save("quiz", reward=1.0, started="2026-11-14T00:00:00Z")
    later = save(f"quiz/{SECOND}", reward=0.0)

    def shown(*arguments: str) -> str:
        result = CliRunner().invoke(cli, [*arguments])
        assert result.exit_code == 0, result.output
        return result.output

    for path, mean in ((str(own), 1.0), (f"./{own}", 1.0), ("quiz", 0.0), ("quiz@1", 1.0)):
        assert json.loads(shown("show", path, "--json"))["summary"]["mean"] == mean, path
        rows = shown("sql", path, "select reward from results", "--json")
        assert f"{mean}" in rows, path
    shown("rm", str(own), "--yes")
    assert not RunDir(own).exists()
    assert RunDir(later).exists()


def test_resuming_a_name_goes_on_with_its_latest_run() -> None:
    save("quiz", started="2026-11-14T00:00:00Z")
    later = save(f"quiz/{SECOND}")
    with run_directory("outputs/evals", "quiz", resume=True) as path:
        assert path == later


def test_a_directory_may_have_an_at_in_its_name() -> None:
    path = save("a@1")
    assert find_run("a@1") == path


def _make(root: str) -> str:
    return str(new_run_dir("capitals", root))


def test_no_two_runs_get_one_directory() -> None:
    with ProcessPoolExecutor(2) as pool:
        made = [*pool.map(_make, ["runs"] * 20)]
    assert len({*made}) == 20
    assert all(Path(path).is_dir() for path in made)


# --- Lists ---


def test_a_list_has_every_run_the_earliest_first() -> None:
    save(f"capitals/{SECOND}", 0.25, tags=["a", "b"], note="hi", endpoint={"model": "m"})
    save("plain", started="2026-11-14T00:00:00Z")
    save("deep/er/run", started="2026-11-16T00:00:00Z", kind="episodes", env="CartPole-v1")
    first, second, third = list_runs()
    assert (first.name, first.kind, first.status) == ("plain", "run", "finished")
    assert (second.name, second.mean, second.n) == (f"capitals/{SECOND}", 0.25, 1)
    assert (second.tags, second.note, second.endpoint) == (("a", "b"), "hi", "m")
    assert second.errors == 0
    assert (third.name, third.kind, third.environment) == ("deep/er/run", "episodes", "CartPole-v1")
    assert third.endpoint is None


def test_a_run_that_cannot_be_read_is_listed_as_damaged() -> None:
    (save("broken") / "run.json").write_text("{")
    (entry,) = list_runs()
    assert entry.status == "damaged"
    assert entry.mean is None
    assert "run.json" in (entry.reason or "")


def test_a_run_of_a_newer_version_is_listed_as_such() -> None:
    info = json.loads((save("later") / "run.json").read_text())
    Path("outputs/evals/later/run.json").write_text(json.dumps(info | {"version": 99}))
    (entry,) = list_runs()
    assert entry.status == "newer"
    assert (entry.reason or "").endswith("It was written by a newer heldout: upgrade to read it")


def test_a_run_that_has_stopped_has_its_counts(run_eval: RunEval, tmp_path: Path) -> None:
    def fail_first(trajectory: Trajectory, sample: Sample) -> float:
        return 1 / (sample.id != make_samples(1)[0].id)

    with pytest.raises(SystemicFailure):
        run_eval(make_samples(4), fail_first, experiment_name="run", max_error_rate=0.1)
    (entry,) = list_runs(tmp_path)
    assert (entry.status, entry.n, entry.errors, entry.mean) == ("failed", 4, 1, None)


def test_a_run_is_running_while_its_process_writes_it_and_interrupted_afterwards() -> None:
    run = RunDir(Path("outputs/evals/live"))
    run.make()
    run.write_info(RunInfo.new({}, {}, 7))
    journal = JournalWriter(run.journal)
    (entry,) = list_runs()
    assert (entry.status, entry.n, entry.asked) == ("running", None, 7)
    journal.close()
    (entry,) = list_runs()
    assert entry.status == "interrupted"


def test_a_curve_is_listed_with_its_last_result(tmp_path: Path) -> None:
    run = RunDir(Path("outputs/evals/rl"))
    run.make()
    run.write_info(RunInfo.new({"kind": "midrun"}, {}))
    summary = {"mean": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 10, "n_errors": 1}
    points = [{"step": 0}, {"step": 50, "summary": summary}, {"step": 100, "skipped": "budget"}]
    lines = [json.dumps(line) for line in ({"format": "heldout.curve"}, *points)]
    run.curve.write_text("\n".join(lines) + '\n{"step": 150, "summ')
    (entry,) = list_runs()
    assert (entry.kind, entry.step, entry.mean, entry.n) == ("curve", 50, 0.5, 10)


# --- Where a run came from ---


def test_a_run_keeps_the_commit_it_was_made_at(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(
            ["git", *identity, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    assert RunInfo.new({}, {}).git is None
    Path("eval.py").write_text("1")
    git("add", "eval.py")
    git("commit", "-qm", "first")
    run_dir._git_state_of.cache_clear()
    state = RunInfo.new({}, {}).git
    assert (state.commit, state.dirty) == (git("rev-parse", "HEAD"), False)
    Path("eval.py").write_text("2")
    run_dir._git_state_of.cache_clear()
    assert RunInfo.new({}, {}).git == run_dir.GitState(state.commit, True)
    save("here")
    assert list_runs()[0].commit == state.commit


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        (["run", "--set", "sampling.max_tokens=32"], ["run", "--set", "sampling.max_tokens=32"]),
        (["--api-key", "abc"], ["--api-key", "[redacted]"]),
        (
            ["--set", "sampling.extra_body.api_key=abc"],
            ["--set", "sampling.extra_body.api_key=[redacted]"],
        ),
        (["-T", "key=level"], ["-T", "key=level"]),
        (["openai:m@http://me:pass@host/v1"], ["openai:m@http://[redacted]@host/v1"]),
        (["sk-proj-0123456789abcdefghij"], ["[redacted]"]),
        (["x=hf_0123456789abcdefghij!"], ["x=[redacted]!"]),
        (["a", "valueOfAKey"], ["a", "[redacted]"]),
        (
            ["-T", "OPENAI_APIKEY=abc", "PGPASSWORD=abc"],
            ["-T", "OPENAI_APIKEY=[redacted]", "PGPASSWORD=[redacted]"],
        ),
        (["/srv/project/eval.py"], ["/srv/project/eval.py"]),
        (["hf:/models/skills-and-tasks-of-the-year"], ["hf:/models/skills-and-tasks-of-the-year"]),
    ],
)
def test_no_key_of_a_command_line_is_kept(
    argument: list[str], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MYAPIKEY", "valueOfAKey")
    monkeypatch.setenv("PWD", "/srv/project")  # a working directory, no password
    assert redact_command(argument) == kept


def test_versions_are_those_of_what_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gymnasium", raising=False)
    assert "gymnasium" not in package_versions()
    import gymnasium  # noqa: F401

    assert "gymnasium" in package_versions()


def test_a_resumed_run_keeps_where_it_came_from(run_eval: RunEval, tmp_path: Path) -> None:
    run_eval(make_samples(2), experiment_name="run")
    run = RunDir(tmp_path / "run")
    info = run.read_info()
    info.status, info.command = "interrupted", ["first"]
    info.git = run_dir.GitState("0" * 40, True)
    lines = run.journal.read_bytes().splitlines(keepends=True)
    run.journal.write_bytes(b"".join(lines[:-1]))
    run.write_info(info)
    run_eval(make_samples(2), experiment_name="run", resume=True)
    resumed = run.read_info()
    assert (resumed.git, resumed.command, resumed.started) == (info.git, ["first"], info.started)
    assert resumed.status == "complete"
