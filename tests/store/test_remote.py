"""Run directories at URLs: read by way of a copy, written whole or not at all."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from heldout import EvalConfig, EvalReport, evaluate
from heldout.cli.main import run_cli
from heldout.errors import InvalidInput, RunDirectoryError, RunExists, RunReplaced
from heldout.reporting.summaries import _describe_state
from heldout.store.remote import FILES, check_target, copy_run, fetch_run
from heldout.store.run_dir import RunDir
from tests.conftest import echo_number, exact, make_samples


@pytest.fixture
def memory() -> Iterator[Any]:
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.rm("/", recursive=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = EvalConfig(endpoint=echo_number, output_dir=str(tmp_path), experiment_name="run")
    report = asyncio.run(evaluate(make_samples(5), config, exact))
    assert report.path is not None
    return report.path


def test_a_copied_run_is_read_back_as_it_was(run: Path, memory: Any) -> None:
    copy_run(run, "memory://bucket/a/run")
    copy = fetch_run("memory://bucket/a/run/")
    for name in FILES:
        if (run / name).exists():
            assert (copy / name).read_bytes() == (run / name).read_bytes()
    assert EvalReport.load(copy).summary == EvalReport.load(run).summary
    check_target("memory://bucket/other")
    with pytest.raises(RunExists, match="memory://bucket/a/run already holds a run"):
        check_target("memory://bucket/a/run")


def test_what_is_shown_of_a_copy_is_saved_where_it_came_from(
    run: Path, memory: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_run(run, "memory://bucket/shown")
    assert run_cli(["show", "memory://bucket/shown"]) == 0
    assert "saved to memory://bucket/shown\n" in capsys.readouterr().out
    assert run_cli(["show", "memory://bucket/shown", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["path"] == "memory://bucket/shown"


def test_the_journal_goes_first_and_run_json_last(
    run: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    put = type(memory).put_file

    def put_file(self: Any, source: str, target: str, **options: Any) -> None:
        order.append(Path(target).name)
        if len(order) == 3:
            raise OSError("the connection is gone")
        put(self, source, target, **options)

    monkeypatch.setattr(type(memory), "put_file", put_file)
    with pytest.raises(RunDirectoryError, match="connection is gone; the run itself is complete"):
        copy_run(run, "memory://bucket/half")
    assert order[0] == "results.jsonl"
    assert "run.json" not in order
    monkeypatch.undo()
    order.clear()


def test_a_url_without_a_run_says_so(memory: Any) -> None:
    with pytest.raises(RunDirectoryError, match="there is no run at memory://bucket/none"):
        fetch_run("memory://bucket/none")
    with pytest.raises(InvalidInput, match="nosuch://x cannot be opened: Protocol not known"):
        fetch_run("nosuch://x")


def test_without_fsspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InvalidInput, match="s3://b/x needs fsspec: pip install 'fsspec>="):
        check_target("s3://b/x")


def test_a_run_that_has_not_ended_at_a_url_is_running(run: Path, tmp_path: Path) -> None:
    """Nobody here holds the lock of the original, so nothing says that it was interrupted."""
    info = RunDir(run).read_info()
    info.status, info.asked = "running", 8
    RunDir(run).write_info(info)
    copy = EvalReport.load(fetch_run(f"file://{run}"))
    assert (copy.status, EvalReport.load(run).status) == ("running", "interrupted")
    ((text,),) = [line.parts for line in _describe_state(copy, None)]
    assert str(text).startswith(f"Running as of {copy.run_dir.copied_at}: 5 of 8 items")


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_that_is_replaced_at_its_url_is_copied_whole_or_not_at_all(
    run: Path, tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    url = f"memory://bucket/replaced{times}"
    copy_run(run, url)
    others = []
    for number in range(times):
        EvalReport.load(run).save(tmp_path / f"other{number}")
        info = RunDir(tmp_path / f"other{number}").read_info()
        info.id = f"other{number}"
        RunDir(tmp_path / f"other{number}").write_info(info)
        others.append(tmp_path / f"other{number}")
    get = type(memory).get_file

    def get_file(self: Any, source: str, target: str, **options: Any) -> None:
        if source.endswith("results.jsonl") and others:
            memory.rm(source.rpartition("/")[0], recursive=True)
            copy_run(others.pop(0), url)
        get(self, source, target, **options)

    monkeypatch.setattr(type(memory), "get_file", get_file)
    if times == 1:
        assert RunDir(fetch_run(url)).read_info().id == "other0"
    else:
        with pytest.raises(RunReplaced, match="replaced2 was replaced by another run"):
            fetch_run(url)
