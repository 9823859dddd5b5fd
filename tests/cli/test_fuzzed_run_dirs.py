"""Run directories whose files are not what they should be: every command says so in a line."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
from torture.run_dirs import fuzz

from heldout import EvalReport
from heldout.store.parquet import hash_of_file
from heldout.store.run_dir import RunDir
from heldout.viewer.pages import Pages
from tests.cli.conftest import RUN, START, Heldout
from tests.cli.runs import Outcome

READ = ["show six", "compare six other", "gate six --baseline other --no-worse-than 0.9"]


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": lambda path: path.mkdir(),
    "not UTF-8": lambda path: path.write_bytes(b'{"format": "\xff"}'),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "a hole of 10 GB": lambda path: (path.touch(), os.truncate(path, 10 * 2**30)),
}


@contextmanager
def spoiled(kind: str, name: str) -> Iterator[None]:
    """What stands in the place of a file, and the file again."""
    path = RUN / name
    path.rename("kept")
    SPECIAL[kind](path)
    yield
    path.rmdir() if path.is_dir() else path.unlink()
    Path("kept").rename(path)


@pytest.fixture
def six(finished: Outcome) -> None:
    """… and a copy of it, to compare it with."""
    shutil.copytree(RUN, RUN.parent.with_name("other"))


def test_spoiled_runs_raise_nothing_hang_nowhere_and_print_no_escape(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dozen of them; `make torture` makes thousands."""
    for name in ("TERM", "COLUMNS", "LINES"):  # which it sets
        monkeypatch.setenv(name, "")
    assert list(fuzz(12, 0, tmp_path_factory.mktemp("fuzz"))) == []


def test_what_stands_in_place_of_run_json_is_said_in_one_line(six: None, heldout: Heldout) -> None:
    for kind, command in itertools.product(SPECIAL, READ):
        with spoiled(kind, "run.json"):
            outcome = heldout(*command.split())
        assert outcome.code == 2, (kind, command)
        assert outcome.err.startswith("Error: "), (kind, command)
        assert f"{RUN}/run.json" in outcome.err, (kind, command)
        assert outcome.err.count("\n") == 1, (kind, command)


@pytest.mark.parametrize("name", ["results.parquet", "summary.json"])
def test_what_stands_in_place_of_a_derived_file_is_passed_over(
    six: None, heldout: Heldout, name: str
) -> None:
    before = [heldout(*command.split()) for command in READ]
    assert [outcome.code for outcome in before] == [0] * 3
    for kind in ("pipe", "folder", "not UTF-8", "a hole of 10 GB"):
        with spoiled(kind, name):
            assert [heldout(*command.split()) for command in READ] == before, kind


@pytest.mark.parametrize("planted", ["results.repaired", ".run.json.PID.tmp"])
def test_a_planted_link_is_not_written_through_when_a_journal_is_repaired(
    finished: Outcome, heldout: Heldout, planted: str
) -> None:
    theirs = Path("theirs")
    theirs.write_text("theirs")
    (RUN / planted.replace("PID", str(os.getpid()))).symlink_to(theirs.absolute())
    with (RUN / "results.jsonl").open("ab") as journal:
        journal.write(b"damaged\n")
    assert heldout("repair", "six").code == 0
    assert theirs.read_text() == "theirs"
    assert not (RUN / "run.json").is_symlink()


def test_a_run_whose_repair_was_killed_before_its_lines_were_moved_is_not_complete(
    finished: Outcome, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (RUN / "results.jsonl").open("ab") as journal:
        journal.write(b"damaged\n")
    before = (RUN / "results.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        move = Path.replace

        def killed(self: Path, target: Path) -> Path:
            if self.suffix == ".repaired":
                raise KeyboardInterrupt
            return move(self, target)

        patch.setattr(Path, "replace", killed)
        heldout("repair", "six")
    assert (RUN / "results.jsonl").read_bytes() == before
    assert RunDir(RUN).read_info().status == "interrupted"
    assert heldout("repair", "six").code == 0
    assert RunDir(RUN).read_info().status == "interrupted"


@pytest.mark.parametrize("name", ["run.json", "results.jsonl"])
def test_a_link_out_of_the_run_directory_is_not_read(
    six: None, heldout: Heldout, name: str
) -> None:
    elsewhere = Path(name).absolute()
    (RUN / name).rename(elsewhere)
    (RUN / name).symlink_to(elsewhere)
    (RUN / "summary.json").unlink()
    for command in READ:
        outcome = heldout(*command.split())
        assert outcome.code == 2, command
        assert outcome.err == f"Error: {RUN / name} is a symbolic link; it is not followed\n"


@pytest.mark.parametrize("name", ["results.parquet", "summary.json"])
def test_a_derived_file_that_is_a_link_is_passed_over_and_not_copied(
    six: None, heldout: Heldout, name: str
) -> None:
    before = [heldout(*command.split()) for command in READ]
    elsewhere = Path(name).absolute()
    (RUN / name).rename(elsewhere)
    (RUN / name).symlink_to(elsewhere)
    assert [heldout(*command.split()) for command in READ] == before
    EvalReport.load("six").save("copy")
    assert not Path("copy", name).exists()


def test_a_run_directory_may_be_a_link(six: None, heldout: Heldout) -> None:
    RUN.rename("moved")
    RUN.symlink_to(Path("moved").absolute())
    assert [heldout(*command.split()).code for command in READ] == [0] * 3


def test_a_run_that_is_too_large_to_read_keeps_no_other_out_of_the_list(
    six: None, heldout: Heldout
) -> None:
    (RUN / "run.json").unlink()
    SPECIAL["a hole of 10 GB"](RUN / "run.json")
    Path("outputs/evals/loop").symlink_to("loop")
    listed = [json.loads(line) for line in heldout("list", "--json").out.splitlines()]
    assert sorted(run["status"] for run in listed) == ["damaged", "finished"]
    reasons = [run["reason"] for run in listed if run["status"] == "damaged"]
    assert reasons == [f"{RUN}/run.json has 10,737 MB; of such a file 67 MB are read at most"]


def test_a_hole_in_the_journal_is_a_damaged_line_and_can_be_repaired(
    six: None, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.store.jsonl.MAX_LINE_BYTES", 2**20)
    journal = RUN / "results.jsonl"
    *_, last = whole = journal.read_bytes().splitlines(keepends=True)
    with journal.open("wb") as file:
        file.write(b"".join(whole[:-1]))
        file.seek(2**26, os.SEEK_CUR)
        file.write(b"\n" + last)
    for command in READ:
        outcome = heldout(*command.split())
        assert outcome.code == 2, command
        assert f"{journal}, line {len(whole)}: longer than 1 MB" in outcome.err, command
    assert heldout("repair", "six").code == 0
    assert journal.read_bytes() == b"".join(whole)
    assert (RUN / "results.damaged").stat().st_size < 2**21
    assert heldout("show", "six").code == 0


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["torn", "whole"])
def test_a_hole_is_passed_over_without_reading_it(
    six: None, heldout: Heldout, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr("heldout.store.jsonl.MAX_LINE_BYTES", 2**20)
    journal = RUN / "results.jsonl"
    before = journal.read_bytes()
    with journal.open("ab") as file:
        file.truncate(2**42)  # 4 TB of zeros
        file.write(end)
    assert Pages([RUN.parent]).events([f"six/{START}"], "")[0][0][1]["lines"] == 6 + len(end)
    assert heldout("repair", "six").code == 0
    assert heldout("run", "eval.py", "--resume").code == 0
    assert journal.read_bytes() == before


NO_PARQUET: dict[str, Callable[[Path], object]] = {
    "no Parquet": lambda path: path.write_bytes(b"no Parquet"),
    "a Parquet of something else": lambda path: duckdb.execute(
        f"COPY (SELECT 1 AS x) TO '{path}' (FORMAT parquet)"
    ),
    "a Parquet without the columns it names": lambda path: duckdb.execute(
        f"COPY (SELECT 1 AS x) TO '{path}' (FORMAT parquet, KV_METADATA {{heldout: "
        f"'{footer_of(path)}'}})"
    ),
}


def footer_of(path: Path) -> str:
    (footer,) = duckdb.execute(
        f"SELECT value FROM parquet_kv_metadata('{path}') WHERE key = 'heldout'"
    ).fetchall()
    return footer[0].decode()


@pytest.mark.parametrize("kind", NO_PARQUET)
def test_a_parquet_that_is_none_is_passed_over_though_its_hash_is_right(
    six: None, heldout: Heldout, kind: str
) -> None:
    commands = [
        ["show", "six", "--by", "difficulty"],
        ["sql", "six", "select avg(reward) from results"],
        ["compare", "six", "other"],
    ]

    def all_outcomes() -> list[Any]:
        viewed = Pages([RUN.parent]).slices(f"six/{START}", "difficulty")
        return [*(heldout(*command) for command in commands), viewed]

    before = all_outcomes()
    NO_PARQUET[kind](RUN / "results.parquet")
    run = RunDir(RUN)
    info = run.read_info()
    info.columns_hash = hash_of_file(run.columns)
    run.write_info(info)
    assert all_outcomes() == before
    assert [outcome.code for outcome in before[:-1]] == [0] * 3


@pytest.mark.parametrize("name", ["run.json", "results.jsonl"])
def test_a_disk_that_cannot_be_read_is_said_of_its_file(
    six: None, heldout: Heldout, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (RUN / "summary.json").unlink()
    open_file = os.open

    def open_broken(path: Any, *more: Any, **options: Any) -> int:
        is_broken = Path(path) == RUN / name
        # Whose first page is never there, so that reading it is EIO.
        return open_file("/proc/self/mem" if is_broken else path, *more, **options)

    monkeypatch.setattr(os, "open", open_broken)
    outcome = heldout("show", "six", "--json")
    message = f"cannot read {RUN / name}: Input/output error"
    assert (outcome.code, outcome.err) == (2, f"Error: {message}\n")
    assert json.loads(outcome.out)["error"]["message"] == message


def test_an_error_that_is_not_of_the_output_is_printed_as_json(
    six: None, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(EvalReport, "load", load)
    outcome = heldout("show", "six", "--json")
    assert outcome.code == 4
    assert outcome.err == "Error: [Errno 5] Input/output error\n"
    assert json.loads(outcome.out)["error"]["kind"] == "os_error"


def test_json_holds_what_a_terminal_would_obey_as_escapes(
    finished: Outcome, heldout: Heldout
) -> None:
    name = "a\x1b[2J\x7f\x9b31m\u202e\u2028é😀\U000e0001"
    run = json.loads((RUN / "run.json").read_text())
    run["config"]["experiment_name"] = name
    (RUN / "run.json").write_text(json.dumps(run))
    out = heldout("show", "six", "--json").out
    assert json.loads(out)["config"]["experiment_name"] == name
    assert r'"a\u001b[2J\u007f\u009b31m\u202e\u2028é😀\udb40\udc01"' in out
