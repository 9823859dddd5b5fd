"""Journals of complete evals during training are packed, and read as if they were not."""

from __future__ import annotations

import gzip
from pathlib import Path

import anyio
import pytest

from heldout import (
    EvalConfig,
    EvalDefinition,
    EvalReport,
    Message,
    Sample,
    Trajectory,
    evaluate,
)
from heldout.errors import RunDirectoryError
from heldout.store import jsonl
from heldout.store.jsonl import pack, packed_path, unpack
from heldout.store.run_dir import RunDir
from heldout.viewer.search import find_text
from heldout.viewer.viewed_run import ViewedRun
from tests.training.toys import Model, periodic, questions


def echo(messages: list[Message]) -> str:
    return messages[-1].text


def is_right(trajectory: Trajectory, sample: Sample) -> float:
    return float(trajectory.answer == sample.ground_truth)


@pytest.fixture
def whole(tmp_path: Path) -> RunDir:
    samples = [Sample(f"s{n}", {"question": f"w{n}"}, ground_truth=f"w{n % 7}") for n in range(30)]
    config = EvalConfig(
        endpoint=echo, experiment_name="whole", output_dir=str(tmp_path), progress=False
    )
    anyio.run(evaluate, EvalDefinition(samples, is_right), config)
    return RunDir(tmp_path / "whole")


def seen(run: RunDir) -> object:
    """What readers of a journal see: the report, the rows of the viewer, a search in it."""
    report, viewed = EvalReport.load(run.path), ViewedRun(run.path)
    return (
        list(report.results),
        report.summary,
        run.derived_are_current(run.read_info()),
        run.origin(run.read_info()),
        [result.sample_id for result in viewed.read([3, 17])],
        find_text(run.journal, "w12").tolist(),
    )


def test_a_packed_journal_is_read_as_it_was(whole: RunDir) -> None:
    before, size = seen(whole), whole.journal.stat().st_size
    pack(whole.journal)
    assert not whole.journal.exists()
    assert packed_path(whole.journal).stat().st_size < size / 5
    assert seen(whole) == before
    unpack(whole.journal)
    assert whole.journal.stat().st_size == size
    assert not packed_path(whole.journal).exists()
    assert seen(whole) == before


def test_a_packed_run_is_copied_and_resumed_as_any_other(whole: RunDir, tmp_path: Path) -> None:
    pack(whole.journal)
    EvalReport.load(whole.path).save(tmp_path / "copy")
    assert seen(RunDir(tmp_path / "copy")) == seen(whole)
    info = whole.read_info()
    info.status = "interrupted"
    whole.write_info(info)
    samples = [result.sample for result in EvalReport.load(whole.path).results]
    config = EvalConfig(
        endpoint=echo,
        experiment_name="whole",
        output_dir=str(tmp_path),
        progress=False,
        resume=True,
    )
    report = anyio.run(evaluate, EvalDefinition(samples, is_right), config)
    assert len(report.results) == 30
    assert whole.journal.exists()


def test_what_cannot_be_unpacked_is_an_error_that_names_it(
    whole: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(whole.journal)
    packed = packed_path(whole.journal)
    content = packed.read_bytes()
    for damaged in (content[:-20], b"no gzip", content[:40] + b"\xff" * 40 + content[80:]):
        packed.write_bytes(damaged)
        with pytest.raises(RunDirectoryError, match=r"results\.jsonl\.gz cannot be unpacked"):
            jsonl.read_whole(whole.journal)
    monkeypatch.setattr(jsonl, "MAX_PACKED_BYTES", 1000)
    packed.write_bytes(gzip.compress(b"0" * 1001))
    with pytest.raises(RunDirectoryError, match="when it is unpacked"):
        jsonl.read_whole(whole.journal)
    whole.journal.write_bytes(b"0" * 1001)
    pack(whole.journal)  # too large to be read again
    assert whole.journal.exists()


def test_the_points_of_a_training_run_take_a_tenth_of_the_room(tmp_path: Path) -> None:
    periodic(tmp_path, Model(knows=100), samples=questions(200)).maybe_run(10)
    (step,) = (tmp_path / "run" / "steps").iterdir()
    assert sum(file.stat().st_size for file in step.iterdir()) < 16_000  # 159 kB when not packed
    assert len(EvalReport.load(step).results) == 200
