"""Saved trajectories, scored again: the same answers, another grader, nobody asked."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import (
    EvalConfig,
    EvalReport,
    Metric,
    Sample,
    Score,
    Trajectory,
    base_config,
    evaluate,
    rescore,
)
from heldout.analysis import compare
from heldout.errors import (
    InvalidInput,
    NotComparable,
    ResumeMismatch,
    RunDirectoryError,
    RunExists,
    SystemicFailure,
)
from heldout.scoring import Rubric, grade_number, part
from heldout.store.journal import JournalWriter, find_stage
from heldout.store.run_dir import RunDir
from tests.conftest import echo_number, exact, make_samples

Rescore = Callable[..., EvalReport]


@pytest.fixture
def again(tmp_path: Path) -> Rescore:
    def run(parent: Any, score_fn: Any, **settings: Any) -> EvalReport:
        config = replace(base_config, output_dir=str(tmp_path), **settings) if settings else None
        return anyio.run(rescore, parent, score_fn, config)

    return run


def finished(path: Path, score_fn: Any = exact, n: int = 12, **settings: Any) -> EvalReport:
    defaults = {
        "endpoint": echo_number,
        "experiment_name": "run",
        "output_dir": str(path),
        "max_error_rate": 1,
    }
    config = EvalConfig(**{**defaults, **settings})
    return anyio.run(evaluate, make_samples(n), config, score_fn)


def even(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("even", int(trajectory.answer) % 2 == 0, weight=1.0),))


async def even_later(trajectory: Trajectory, sample: Sample) -> Score:
    await anyio.lowlevel.checkpoint()
    return even(trajectory, sample)


@pytest.mark.parametrize("score_fn", [even, even_later])
def test_every_saved_answer_is_scored_again_into_a_new_run(
    again: Rescore, tmp_path: Path, score_fn: Any
) -> None:
    before = finished(tmp_path, repeats=3)
    found = again(before, score_fn)
    assert found.path == tmp_path / "run-rescored"
    assert found.summary["n"] == 36
    assert found.summary["metric_even"] == 0.5
    assert found.config["endpoint"] == before.config["endpoint"]
    assert found.config["repeats"] == 3
    assert [(r.sample_id, r.repeat) for r in found.results] == [
        (r.sample_id, r.repeat) for r in before.results
    ]
    assert [r.trajectory for r in found.results] == [r.trajectory for r in before.results]
    assert found.results[0].metadata == before.results[0].metadata


def test_a_rescored_run_is_what_scoring_so_in_the_first_place_would_have_given(
    again: Rescore, tmp_path: Path
) -> None:
    before = finished(tmp_path, repeats=2)
    directly = finished(tmp_path, even, repeats=2, experiment_name="directly")
    found = again(before, even)
    summary = (found.path / "summary.json").read_bytes()
    assert summary == (directly.path / "summary.json").read_bytes()


def test_it_names_its_parent_and_the_parent_is_as_it_was(again: Rescore, tmp_path: Path) -> None:
    before = finished(tmp_path)
    files = {file: file.read_bytes() for file in before.path.iterdir()}
    found = again(before.path, even)
    assert {file: file.read_bytes() for file in before.path.iterdir()} == files
    with pytest.raises(RunExists):
        again(before, even)
    info = RunDir(before.path).read_info()
    assert found.config["parent"] == {
        "run": "run",
        "score_fn": info.functions["score_fn"],
        "id": info.id,
        "journal_bytes": info.journal_bytes,
    }


def test_errors_of_the_policy_stay_and_those_of_the_scorer_are_scored(
    again: Rescore, tmp_path: Path
) -> None:
    async def moody(messages: Any) -> str:
        answer = await echo_number(messages)
        if answer == "1":
            raise OSError("no answer")
        return answer

    def picky(trajectory: Trajectory, sample: Sample) -> Score:
        if trajectory.answer == "2":
            raise ValueError("not two")
        return exact(trajectory, sample)

    before = finished(tmp_path, picky, endpoint=moody)
    assert before.summary["n_errors"] == 2
    with pytest.raises(SystemicFailure):
        again(before, lambda trajectory, sample: 1 / 0, experiment_name="broken")
    assert again(tmp_path / "broken", exact).summary["n_scored"] == 11
    found = again(before, exact)
    assert [r.sample_id for r in found.results if not r.ok] == ["s1"]
    assert found.results[1].error == before.results[1].error
    assert found.results[2].score["correct"] == 1.0


def test_a_scorer_that_took_too_long_is_scored_again(again: Rescore, tmp_path: Path) -> None:
    async def endless(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "s3":
            await anyio.sleep_forever()
        return exact(trajectory, sample)

    before = finished(tmp_path, endless, timeout=0.2)
    assert before.summary["n_errors"] == 1
    assert again(before, exact).summary["n_errors"] == 0


def test_a_killed_rescoring_goes_on_to_the_same_summary(
    again: Rescore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finished(tmp_path, repeats=2)
    whole = again(before, even, experiment_name="whole")
    written = 0
    append = JournalWriter.append

    def stop(self: JournalWriter, *args: Any) -> None:
        nonlocal written
        written += 1
        if written == 7:
            raise KeyboardInterrupt
        append(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "append", stop)
        with pytest.raises(KeyboardInterrupt):
            again(before, even, experiment_name="again")
    with pytest.raises(ResumeMismatch, match="score_fn"):
        again(before, exact, experiment_name="again", resume=True)
    resumed = again(before, even, experiment_name="again", resume=True)
    assert (resumed.path / "summary.json").read_bytes() == (
        whole.path / "summary.json"
    ).read_bytes()


def test_an_unfinished_run_is_refused(
    again: Rescore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stopping(messages: Any) -> str:
        answer = await echo_number(messages)
        if answer == "5":
            signal.raise_signal(signal.SIGINT)
            await anyio.sleep_forever()
        return answer

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
    with pytest.raises(KeyboardInterrupt):
        finished(tmp_path, endpoint=stopping, max_concurrent=1)
    with pytest.raises(RunDirectoryError, match="interrupted.*it has 5 of 12 items"):
        again(tmp_path / "run", even)


def test_what_has_no_trajectories_is_refused(again: Rescore, tmp_path: Path) -> None:
    report = finished(tmp_path)
    with pytest.raises(InvalidInput, match="lives in memory"):
        again(replace(report, path=None), even)
    with pytest.raises(InvalidInput, match="score_fn must be a function"):
        again(report, 3)


def test_a_server_cannot_make_half_a_conversation_pass_for_a_whole_one() -> None:
    late = "timeout: not done after 5 s (in endpoint); the last answer was: 503 (in score_fn)"
    assert find_stage(late, None) is None  # as an earlier version stored it
    assert find_stage(late, "endpoint") == "endpoint"
    assert find_stage("timeout: not done after 0.5 s (in score_fn)", None) == "score_fn"
    assert find_stage("score_fn: ValueError: no", None) == "score_fn"


# --- What the grader changed --------------------------------------------------------------------


def test_a_run_and_its_rescoring_are_compared_although_their_scorers_differ(
    again: Rescore, tmp_path: Path
) -> None:
    before = finished(tmp_path, Rubric(part(grade_number, name="correct")))
    found = again(before, Rubric(part(grade_number, name="correct", absolute=1)))
    result = compare(before, found)
    assert result.overall.difference == 0.0
    assert result.same_answers
    assert result.scorer_change is not None
    assert not result.changed_settings
    # A third scoring of the same answers, and one of a rescoring.
    third = again(before, even, experiment_name="third")
    grandchild = again(third, exact, experiment_name="grandchild")
    assert compare(found, third).overall.difference == pytest.approx(-0.5)
    assert compare(found, third).verdict == "a_higher", "nobody is worse"
    assert compare(before, grandchild).overall.difference == 0.0


def test_runs_that_look_alike_are_not_the_same(again: Rescore, tmp_path: Path) -> None:
    one = finished(tmp_path)
    other = finished(tmp_path, experiment_name="oth", endpoint=echo_number)
    for report in (one, other):
        assert report.path is not None
        info = RunDir(report.path).read_info()
        info.started = "2026-01-01T00:00:00Z"
        RunDir(report.path).write_info(info)
    with pytest.raises(NotComparable, match="scorer"):
        compare(again(one, even), other)


def test_a_parent_that_went_on_since_is_not_taken_for_the_same(
    again: Rescore, tmp_path: Path
) -> None:
    calls = []

    async def moody(messages: Any) -> str:
        answer = await echo_number(messages)
        if answer == "1" and not calls:
            calls.append(1)
            raise OSError("no answer")
        return answer

    before = finished(tmp_path, endpoint=moody)
    found = again(before, even)
    after = finished(tmp_path, endpoint=moody, resume=True)
    assert after.summary["n_errors"] == 0
    with pytest.raises(NotComparable, match="scorer"):
        compare(after, found)
