"""The engine: samples in, one journal line an item, a report out."""

from __future__ import annotations

import asyncio
import functools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import heldout._evals.engine
import heldout.analysis
from heldout import (
    EvalConfig,
    EvalDefinition,
    EvalReport,
    Message,
    Metric,
    Reply,
    Sample,
    Sampling,
    Score,
    Trajectory,
    evaluate,
)
from heldout.errors import (
    DuplicateSampleId,
    FatalEndpointError,
    InvalidInput,
    ItemFailed,
    NotComparable,
    ResumeMismatch,
    RunBusy,
    RunDirectoryError,
    RunExists,
    SystemicFailure,
    TransientError,
)
from heldout.stats.summary import Summary
from heldout.store.journal import JournalWriter
from heldout.store.report import finish
from heldout.store.run_dir import RunDir, RunInfo
from heldout.training.curve.points import outcomes_of
from tests.conftest import RunEval, both_loops, echo_number, exact, make_samples
from tests.counting import Counting, Recorded, Saved


@both_loops
def test_no_more_items_than_max_concurrent_run_at_once(run_eval: RunEval) -> None:
    now, most = 0, 0

    async def answer(messages: list[Message]) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(3):
            await anyio.sleep(0)
        now -= 1
        return "?"

    run_eval(make_samples(30), endpoint=answer, max_concurrent=7)
    assert most == 7


@both_loops
def test_a_policy_that_never_waits_does_not_starve_the_event_loop(run_eval: RunEval) -> None:
    """Otherwise neither Ctrl-C nor the timer that syncs the journal would get a turn."""

    async def answer(messages: list[Message]) -> str:
        return "?"

    def watched(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "s0":
            import sniffio

            if sniffio.current_async_library() == "asyncio":
                asyncio.get_running_loop().call_soon(lambda: order.append("loop"))
            else:
                import trio

                trio.lowlevel.current_trio_token().run_sync_soon(lambda: order.append("loop"))
        order.append(sample.id)
        return Score()

    order: list[str] = []
    run_eval(make_samples(2000), watched, endpoint=answer, max_concurrent=1)
    assert order.index("loop") < 1000


@both_loops
def test_a_stream_is_pulled_only_as_fast_as_it_is_worked_off(run_eval: RunEval) -> None:
    pulled, done, worst = 0, 0, 0

    def stream() -> Iterator[Sample]:
        nonlocal pulled, worst
        for sample in make_samples(200):
            pulled += 1
            worst = max(worst, pulled - done)
            yield sample

    async def answer(messages: list[Message]) -> str:
        nonlocal done
        await anyio.sleep(0)
        done += 1
        return "?"

    report = run_eval(stream(), endpoint=answer, max_concurrent=8)
    assert report.summary["n"] == 200
    assert worst <= 9


def test_max_samples_takes_the_first_and_leaves_the_rest_unread(run_eval: RunEval) -> None:
    def endless() -> Iterator[Sample]:
        i = 0
        while True:
            yield Sample(f"s{i}", {"question": f"what is {i}?"}, str(i))
            i += 1

    report = run_eval(endless(), max_samples=5)
    assert [r.sample_id for r in report.results] == ["s0", "s1", "s2", "s3", "s4"]


def test_every_sample_is_run_and_scored_as_often_as_asked(
    run_eval: RunEval, tmp_path: Path
) -> None:
    report = run_eval(make_samples(3), repeats=4)
    assert (report.summary["n"], report.summary["mean"]) == (12, 1.0)
    assert [(r.sample_id, r.repeat) for r in report.results[:5]] == [
        ("s0", 0), ("s0", 1), ("s0", 2), ("s0", 3), ("s1", 0),
    ]  # fmt: skip
    assert report.results[4].trajectory.answer == "1"
    assert (report.path, report.config["experiment_name"]) == (tmp_path / "run", "run")


@pytest.mark.parametrize(
    ("own", "passed", "turns"), [(None, None, 16), (3, None, 3), (40, None, 40), (3, 5, 5)]
)
def test_the_turn_limit_is_the_one_passed_else_the_evals_own_and_is_recorded(
    run_eval: RunEval, tmp_path: Path, own: int | None, passed: int | None, turns: int
) -> None:
    definition = EvalDefinition(
        make_samples(1), exact, None, lambda s: Counting(99, []), max_turns=own
    )
    report = run_eval(definition, None, max_turns=passed)
    assert report.results[0].trajectory.stop.limit == "max_turns"
    assert len(report.results[0].trajectory.messages) == 2 + 2 * turns
    assert report.config["max_turns"] == turns
    plain = heldout.run(
        definition, endpoint=echo_number, output_dir=str(tmp_path), max_turns=passed
    )
    assert plain.config["max_turns"] == turns
    with pytest.raises(ResumeMismatch, match=f"max_turns was {turns}, is now 7"):
        run_eval(definition, None, max_turns=7, resume=True)


# --- Errors of items ---


@both_loops
def test_an_answer_that_never_comes_is_a_timeout_of_that_item(run_eval: RunEval) -> None:
    async def answer(messages: list[Message]) -> str:
        if "is 1?" in messages[-1].text:
            await anyio.sleep_forever()
        if "is 2?" in messages[-1].text:
            raise RuntimeError("no")
        return await echo_number(messages)

    report = run_eval(make_samples(3), endpoint=answer, timeout=0.2)
    late = report.results[1]
    assert late.error == "timeout: not done after 0.2 s (in endpoint)"
    assert late.trajectory.messages == (Message("user", "what is 1?"),)
    assert report.summary["n_errors"] == 2
    stops = [r.trajectory.stop for r in report.results]
    assert [(s.ended_by, s.limit) for s in stops] == [
        ("no_reply", None), ("limit", "timeout"), ("error", None),
    ]  # fmt: skip


def test_a_score_function_that_returns_no_score_is_an_error_of_the_item(run_eval: RunEval) -> None:
    with pytest.raises(
        SystemicFailure, match="score_fn returns a Score, a number or a bool, got '1'"
    ):
        run_eval(make_samples(1), lambda trajectory, sample: "1")


def test_a_number_from_a_score_function_is_one_metric_named_after_it(run_eval: RunEval) -> None:
    def brief(trajectory: Trajectory, sample: Sample) -> bool:
        return len(trajectory.answer) < 10

    async def length(trajectory: Trajectory, sample: Sample) -> float:
        return float(len(trajectory.answer))

    for score_fn, value in ((brief, 1.0), (length, 1.0)):
        [result] = run_eval(make_samples(1), score_fn, experiment_name=score_fn.__name__).results
        assert result.score.metrics == (Metric(score_fn.__name__, value, 1.0),)
        assert result.score.reward == value


def test_transient_failures_are_tried_again_as_often_as_allowed(
    run_eval: RunEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heldout.models.retries._FIRST_WAIT", 0.001)
    tries: dict[str, int] = {}

    async def answer(messages: list[Message]) -> str:
        text = messages[-1].text
        tries[text] = tries.get(text, 0) + 1
        if tries[text] <= 3:
            raise TransientError("busy")
        return await echo_number(messages)

    report = run_eval(make_samples(2), endpoint=answer, retries=3)
    assert report.summary["mean"] == 1.0
    timing = report.results[0].trajectory.timing
    assert timing.requests == 4

    tries.clear()
    with pytest.raises(SystemicFailure, match="busy"):
        run_eval(make_samples(2), endpoint=answer, retries=2, experiment_name="fewer")
    assert set(tries.values()) == {3}


def test_an_endpoint_that_refuses_everybody_stops_the_run_at_once(run_eval: RunEval) -> None:
    calls = 0

    async def answer(messages: list[Message]) -> str:
        nonlocal calls
        calls += 1
        raise FatalEndpointError("401: wrong key")

    with pytest.raises(SystemicFailure, match="wrong key") as raised:
        run_eval(make_samples(100), endpoint=answer, max_concurrent=2)
    assert calls <= 2
    assert raised.value.run_dir is not None
    kept = EvalReport.load(raised.value.run_dir)
    assert kept.status == "failed"
    assert len(kept.results) >= 1


def test_on_error_raise_stops_at_the_first(run_eval: RunEval) -> None:
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "s3":
            raise KeyError("difficulty")
        return exact(trajectory, sample)

    with pytest.raises(ItemFailed, match="'s3'.*KeyError") as failed:
        run_eval(make_samples(100), score, on_error="raise", max_concurrent=1)
    assert failed.value.stage == "score_fn"


def test_a_cancellation_out_of_the_users_code_is_an_error_of_the_item(tmp_path: Path) -> None:
    """Otherwise it ends a worker in silence, and the run is called complete without the rest."""

    async def score(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "s3":
            gone = asyncio.ensure_future(asyncio.sleep(10))
            gone.cancel()
            await gone
        return exact(trajectory, sample)

    config = EvalConfig(endpoint=echo_number, output_dir=str(tmp_path), max_concurrent=1)
    report = asyncio.run(evaluate(make_samples(10), config, score))
    assert report.summary["n"] == 10
    assert report.summary["n_errors"] == 1
    assert "CancelledError" in (report.results[3].error or "")


def test_a_value_that_json_cannot_hold_is_an_error_of_the_item(run_eval: RunEval) -> None:
    async def answer(messages: list[Message]) -> str:
        number = await echo_number(messages)
        if number == "1":
            return "\ud800 lone"
        if number == "2":
            raise ValueError("about \ud800")
        return number

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        odd = {"why": object()} if sample.id == "s3" else {}
        return Score((Metric("m", 1.0, 1.0, odd),))

    report = run_eval(make_samples(5), score, endpoint=answer)
    errors = [r.error or "" for r in report.results]
    assert [bool(e) for e in errors] == [False, True, True, True, False]
    assert "store: " in errors[1]
    assert "about \\ud800" in errors[2]
    assert "a value of type object" in errors[3]
    again = run_eval(make_samples(5), score, endpoint=answer, resume=True)
    assert again.summary == report.summary


@pytest.mark.parametrize("where", ["score_fn", "prepare_messages", "endpoint", "environment"])
def test_an_exit_in_user_code_is_an_error_of_its_item(run_eval: RunEval, where: str) -> None:
    def hit(here: str, sample_text: str) -> None:
        if here == where and "1" in sample_text:
            raise SystemExit(0)

    async def grade(trajectory: Trajectory, sample: Sample) -> Score:
        async with anyio.create_task_group() as group:  # in a task of its own
            group.start_soon(anyio.sleep, 0)
            group.start_soon(in_task, "score_fn", sample.id)
        return exact(trajectory, sample)

    async def in_task(here: str, text: str) -> None:
        await anyio.sleep(0)
        hit(here, text)

    def prepare(sample: Sample) -> list[Message]:
        hit("prepare_messages", sample.id)
        return [Message("user", sample.input["question"])]

    async def answer(messages: list[Message]) -> str:
        hit("endpoint", messages[0].text)
        return await echo_number(messages)

    class Silent:
        tools = ()

        def opening(self) -> tuple[Message, ...]:
            return ()

        def reply(self, messages: Any) -> Reply:
            hit("environment", messages[0].text)
            return Reply(done=True)

        def close(self) -> None:
            pass

    report = run_eval(make_samples(3), grade, prepare, lambda sample: Silent(), endpoint=answer)
    assert [r.ok for r in report.results] == [True, False, True]
    assert report.results[1].error.startswith(f"{where}: SystemExit: 0 ")
    assert "(test_engine.py, line" in report.results[1].error


def test_an_exit_in_a_gathered_task_is_an_error_of_its_item(tmp_path: Path) -> None:
    """asyncio raises it again out of the event loop, past everybody who awaits the task."""

    async def leave(sample: Sample) -> None:
        await asyncio.sleep(0)
        if sample.id == "s1":
            raise SystemExit(0)

    async def score(trajectory: Trajectory, sample: Sample) -> Score:
        await asyncio.gather(leave(sample))
        return exact(trajectory, sample)

    async def both() -> list[EvalReport]:
        configs = [
            EvalConfig(endpoint=echo_number, output_dir=str(tmp_path), experiment_name=name)
            for name in ("a", "b")
        ]
        return await asyncio.gather(*(evaluate(make_samples(10), c, score) for c in configs))

    for report in asyncio.run(both()):
        assert [r.sample_id for r in report.results if not r.ok] == ["s1"]


# --- Bad input ---


def test_duplicate_ids_are_refused_before_anything_runs_or_stop_a_stream(
    run_eval: RunEval, tmp_path: Path
) -> None:
    samples = [*make_samples(3), Sample("s1", {"question": "again"})]
    with pytest.raises(DuplicateSampleId, match="'s1' at position 3"):
        run_eval(samples)
    assert not (tmp_path / "run").exists()
    with pytest.raises(DuplicateSampleId):
        run_eval(iter(samples), max_concurrent=1)
    assert len(EvalReport.load(tmp_path / "run").results) == 3


def test_a_disk_that_fails_to_sync_stops_the_run(
    run_eval: RunEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    async def answer(messages: list[Message]) -> str:
        if "is 3?" in messages[-1].text:
            monkeypatch.setattr("os.fsync", broken)
            await anyio.sleep_forever()
        return await echo_number(messages)

    monkeypatch.setattr("heldout._evals.engine.SYNC_SECONDS", 0.02)
    with pytest.raises(RunDirectoryError, match="Input/output error"):
        run_eval(make_samples(10), endpoint=answer, max_concurrent=2)
    monkeypatch.undo()


def test_no_samples_is_an_error(run_eval: RunEval, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no samples"):
        run_eval([])
    with pytest.raises(InvalidInput, match="no samples"):
        run_eval(iter([]))
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_sample_is_refused(run_eval: RunEval, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="iterable of Sample, got None"):
        run_eval(None)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInput, match="dict at position 0"):
        run_eval([{"question": "?"}])


# --- The run directory ---


def refuse(messages: list[Message]) -> str:
    raise OSError("down")


def test_a_run_in_which_nothing_was_answered_is_replaced_by_the_next_one_of_its_name(
    run_eval: RunEval, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SystemicFailure):
        run_eval(make_samples(3), endpoint=refuse)
    failed = EvalReport.load(tmp_path / "run")
    report = run_eval(make_samples(2))  # of other samples and another model
    assert report.summary["mean"] == 1.0
    assert report.info.id != failed.info.id
    assert "replaced" in caplog.text


def test_a_failed_run_with_a_score_an_answer_or_a_writer_is_never_replaced(
    run_eval: RunEval, tmp_path: Path
) -> None:
    def one_down(messages: list[Message]) -> str:
        return "0" if "0" in messages[-1].text else refuse(messages)

    with pytest.raises(SystemicFailure):
        run_eval(make_samples(3), endpoint=one_down, max_error_rate=0)
    ways = r"EvalConfig\(resume=True\).*another experiment_name.*heldout rm .*run"
    with pytest.raises(RunExists, match=ways):
        run_eval(make_samples(3))

    def broken(trajectory: Trajectory, sample: Sample) -> Score:
        raise TypeError("broken")

    with pytest.raises(SystemicFailure, match="rescore"):
        run_eval(make_samples(3), broken, experiment_name="answered")
    with pytest.raises(RunExists):
        run_eval(make_samples(3), experiment_name="answered")
    with pytest.raises(SystemicFailure):
        run_eval(make_samples(3), endpoint=refuse, experiment_name="busy")
    held = JournalWriter(tmp_path / "busy" / "results.jsonl")
    with pytest.raises(RunExists):
        run_eval(make_samples(3), experiment_name="busy")
    held.close()


def test_the_first_item_that_errors_is_logged_once(
    run_eval: RunEval, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(trajectory: Trajectory, sample: Sample) -> Score:
        raise TypeError(f"no {sample.id}\nand \x1b[31mred")

    with pytest.raises(SystemicFailure):
        run_eval(make_samples(4), broken, max_concurrent=1)
    (record,) = [r for r in caplog.records if r.name == "heldout"]
    assert record.levelname == "WARNING"
    assert "sample 's0': score_fn: TypeError: no s0\\nand \\x1b[31mred" in record.getMessage()


def test_a_run_that_another_process_began_meanwhile_is_left_alone(run_eval: RunEval) -> None:
    """Between the look at the directory and the first line may lie seconds of looking ahead."""
    refused = []

    class Slow(list[Sample]):
        def __iter__(self) -> Iterator[Sample]:
            # Their questions are looked at before there is a directory.
            if not refused and Path(path).exists():
                refused.append(True)
                with pytest.raises((RunBusy, RunExists)):
                    JournalWriter(Path(path) / "results.jsonl")
            return super().__iter__()

    path = ""
    report = run_eval(make_samples(1), experiment_name="other")
    path = str(report.path.parent / "run")
    assert run_eval(Slow(make_samples(5))).summary["n"] == 5
    assert refused


def test_an_output_dir_that_cannot_be_used_is_an_error_in_words(
    run_eval: RunEval, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"cannot write .*file"):
        run_eval(make_samples(1), output_dir=str(tmp_path / "file"))


class Half:
    tools = ()

    def reply(self, messages: Any) -> Any: ...


@pytest.mark.parametrize(
    ("prepare", "environment", "said"),
    [
        (lambda s: None, lambda s: Counting(1, []), "prepare_messages gives Messages, got None"),
        (None, lambda s: None, "environment_factory returned None"),
        (None, lambda s: Half(), "this Half has no opening and no close"),
    ],
)
def test_hooks_that_return_what_is_none_are_told_so(
    run_eval: RunEval, prepare: Any, environment: Any, said: str
) -> None:
    with pytest.raises(SystemicFailure, match=said):
        run_eval(make_samples(1), exact, prepare, environment)


@both_loops
def test_an_item_that_blocked_the_loop_past_its_timeout_has_timed_out(run_eval: RunEval) -> None:
    import time

    def slow(trajectory: Trajectory, sample: Sample) -> Score:
        if sample.id == "s1":
            time.sleep(0.3)
        return exact(trajectory, sample)

    report = run_eval(make_samples(2), slow, timeout=0.2, max_concurrent=1)
    assert report.results[0].ok
    assert report.results[1].error == "timeout: not done after 0.2 s (in score_fn)"


# --- Resume ---


def broken_for(ids: set[str], calls: list[str]) -> Any:
    async def answer(messages: list[Message]) -> str:
        number = await echo_number(messages)
        calls.append(number)
        if f"s{number}" in ids:
            raise RuntimeError("broken")
        return number

    answer.__qualname__ = "answer"
    return answer


def test_resuming_where_there_is_nothing_starts_afresh(run_eval: RunEval) -> None:
    assert run_eval(make_samples(3), resume=True).summary["n"] == 3


def test_a_resumed_run_keeps_finished_items_and_runs_errored_ones_again(run_eval: RunEval) -> None:
    broken, calls = {"s1", "s4"}, list[str]()
    first = run_eval(make_samples(6), endpoint=broken_for(broken, calls))
    assert first.summary["n_errors"] == 2
    broken.clear()
    calls.clear()
    second = run_eval(make_samples(6), endpoint=broken_for(broken, calls), resume=True)
    assert sorted(calls) == ["1", "4"]
    assert second.summary["n_errors"] == 0
    assert second.summary["n"] == 6
    assert [r.sample_id for r in second.results] == [f"s{i}" for i in range(6)]
    assert all(r.ok for r in second.results)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"repeats": 2}, "repeats was 1, is now 2"),
        ({"max_samples": 2}, "max_samples was None, is now 2"),
        ({"sampling": Sampling(temperature=0.7)}, r"sampling.temperature was 0.0, is now 0.7"),
        ({"endpoint": "openai:gpt@http://127.0.0.1:9/v1"}, "endpoint.kind was 'function'"),
        ({"score_fn": lambda t, s: 0.5}, "score_fn was 'exact', is now "),
        ({"resume": False}, "already holds a run.*resume"),
    ],
)
def test_resuming_with_another_config_is_refused_by_name(
    run_eval: RunEval, change: dict[str, Any], named: str
) -> None:
    run_eval(make_samples(3))
    with pytest.raises((ResumeMismatch, RunExists), match=named):
        run_eval(make_samples(3), **{"resume": True, **change})


def test_a_longer_selection_of_the_same_order_goes_on(run_eval: RunEval) -> None:
    asked: list[str] = []

    async def answer(messages: list[Message]) -> str:
        asked.append(messages[-1].text)
        return "1"

    def run(max_samples: int | None, **settings: Any) -> EvalReport:
        samples = make_samples(8)
        return run_eval(samples, endpoint=answer, max_samples=max_samples, **settings)

    assert run(2).summary["n"] == 2
    assert run(5, resume=True).summary["n"] == 5
    report = run(None, resume=True)
    assert len(asked) == report.summary["n"] == 8
    with pytest.raises(ResumeMismatch, match="max_samples was None, is now 3"):
        run(3, resume=True)
    with pytest.raises(ResumeMismatch, match="sample 's1' was number 2 of the dataset"):
        run_eval(make_samples(9)[1:], endpoint=answer, resume=True)


THRESHOLD = 0.5


def helped(text: str) -> bool:
    return len(text) > THRESHOLD


def with_help(trajectory: Trajectory, sample: Sample) -> float:
    return float(helped(trajectory.answer))


def test_what_has_changed_of_a_function_is_named(
    run_eval: RunEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run_eval(make_samples(3), with_help)
    monkeypatch.setattr(sys.modules[__name__], "THRESHOLD", 0.7)
    with pytest.raises(
        ResumeMismatch,
        match=r"with_help \(score_fn\), or of something it uses, has changed: THRESHOLD "
        r"\(test_engine.py\)\. ",
    ):
        run_eval(make_samples(3), with_help, resume=True)
    after = run_eval(make_samples(3), with_help, experiment_name="after")
    with pytest.raises(
        NotComparable, match=r"something it uses, differs: THRESHOLD \(test_engine.py\)"
    ):
        heldout.analysis.compare(before, after)


def test_one_cause_is_one_error_though_its_message_names_the_sample(run_eval: RunEval) -> None:
    def score(trajectory: Trajectory, sample: Sample) -> float:
        if sample.id == "s7":
            raise KeyError("another")
        raise ValueError(f"no image for {sample.id}")

    with pytest.raises(SystemicFailure, match="11 × score_fn: ValueError: no image for ID"):
        run_eval(make_samples(12), score)


def multiplied(function: Any, factor: int) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args) * factor

    return wrapper


def test_another_wrapper_of_the_same_function_is_noticed_by_resume_and_compare(
    run_eval: RunEval,
) -> None:
    def score(trajectory: Trajectory, sample: Sample) -> float:
        return 0.5

    def answer(messages: list[Message]) -> str:
        return "1"

    one = run_eval(make_samples(3), multiplied(score, 1), endpoint=multiplied(answer, 1))
    with pytest.raises(ResumeMismatch, match=r"the code of .*score"):
        run_eval(make_samples(3), multiplied(score, 2), endpoint=multiplied(answer, 1), resume=True)
    with pytest.raises(ResumeMismatch, match="the model function"):
        run_eval(make_samples(3), multiplied(score, 1), endpoint=multiplied(answer, 2), resume=True)
    two = run_eval(
        make_samples(3), multiplied(score, 2), endpoint=multiplied(answer, 1), experiment_name="two"
    )
    with pytest.raises(NotComparable, match=r"the code of .*score"):
        heldout.analysis.compare(one, two)


def test_resuming_a_complete_run_mends_what_is_derived_and_changes_nothing_else(
    run_eval: RunEval,
) -> None:
    report = run_eval(make_samples(6))
    before = {file.name: file.read_bytes() for file in report.path.iterdir()}
    run_eval(make_samples(6), resume=True)
    assert {file.name: file.read_bytes() for file in report.path.iterdir()} == before
    (report.path / "results.parquet").write_bytes(b"garbage")
    (report.path / "summary.json").write_text('{"mean": 0.123}')
    run_eval(make_samples(6), resume=True)
    assert {file.name: file.read_bytes() for file in report.path.iterdir()} == before


def test_a_resumed_journal_of_the_same_size_is_the_one_the_run_was_finished_with(
    run_eval: RunEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run_eval(make_samples(3))
    journal = report.path / "results.jsonl"
    size = journal.stat().st_size
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))

    def finish_with_the_same_size(run: RunDir, info: RunInfo, *rest: int) -> Summary:
        summary = finish(run, info, *rest)
        info.journal_bytes = size  # the times in it may have more or fewer digits
        return summary

    monkeypatch.setattr("heldout._evals.engine.finish", finish_with_the_same_size)
    run_eval(make_samples(3), resume=True)
    assert EvalReport.load(report.path).summary == report.summary


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("samples", "named"),
    [
        (lambda: [*make_samples(2), Sample("s2", {"question": "what is 2?"}, "9")], "'s2'"),
        (lambda: [*make_samples(3)[::-1]], "'s[02]' was number [13]"),
        (
            lambda: [*make_samples(2), Sample("x2", {"question": "?"})],
            "number 3 of the dataset was 's2' when this run began and is 'x2' now",
        ),
        (lambda: make_samples(2), "'s2' among them"),
    ],
)
def test_resuming_with_other_samples_is_refused_by_name(
    run_eval: RunEval, stream: bool, samples: Any, named: str
) -> None:
    before = run_eval(make_samples(3))
    changed = samples()
    with pytest.raises(ResumeMismatch, match=named):
        run_eval(iter(changed) if stream else changed, resume=True)
    # And the run is what it was.
    assert before.path is not None
    after = EvalReport.load(before.path)
    assert after.status == "complete"
    assert after.summary == before.summary


def test_a_run_of_nothing_but_errors_may_be_resumed_with_another_config(run_eval: RunEval) -> None:
    async def broken(messages: list[Message]) -> str:
        raise RuntimeError("wrong address")

    with pytest.raises(SystemicFailure):
        run_eval(make_samples(3), endpoint=broken)
    report = run_eval(make_samples(2), resume=True)
    assert report.summary["n"] == 2
    assert report.summary["mean"] == 1.0


def test_saved_turns_are_gone_on_from_with_the_same_settings_alone(
    run_eval: RunEval, tmp_path: Path
) -> None:
    second_waits = anyio.Event()

    async def stop_at_third_turn(messages: list[Message]) -> str:
        if len(messages) < 6:
            return "1"
        if messages[0].text == "what is 0?":
            await second_waits.wait()
            raise FatalEndpointError("the server is gone for good")
        second_waits.set()
        await anyio.sleep_forever()
        raise AssertionError

    async def answer(messages: list[Message]) -> str:
        return "1"

    def resume(function: Any, **settings: Any) -> EvalReport:
        hooks = exact, None, lambda sample: Saved(4, [])
        settings = {"endpoint": Recorded(function), "resume": True, "save_turns": True, **settings}
        return run_eval(make_samples(2), *hooks, **settings)

    with pytest.raises(SystemicFailure):
        resume(stop_at_third_turn)
    turns = tmp_path / "run" / "turns"
    assert [path.name for path in turns.iterdir()] == ["1-0.json"], "an errored item begins anew"
    with pytest.raises(ResumeMismatch, match="max_turns was 16, is now 3"):
        resume(answer, max_turns=3)
    report = resume(answer)
    restored = [r.trajectory.timing.restored_turns for r in report.results if r.trajectory.timing]
    assert restored == [0, 2]
    assert {len(r.trajectory.messages) for r in report.results} == {9}
    assert not turns.exists()


# --- Neutrality and resources ---


def test_an_eval_leaves_the_random_state_alone(run_eval: RunEval) -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    run_eval(make_samples(10), sampling=Sampling(temperature=1.0, seed=3))
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]


DISK_SCRIPT = """
import resource, sys, asyncio
from heldout import EvalConfig, evaluate
from heldout.errors import StorageFull
from tests.conftest import make_samples, echo_number, exact
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
config = EvalConfig(endpoint=echo_number, output_dir=sys.argv[1], experiment_name="run")
try:
    asyncio.run(evaluate(make_samples(500), config, exact))
except StorageFull as problem:
    print(problem)
    sys.exit(7)
"""


def test_a_full_disk_says_so_and_what_was_written_stays_readable(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DISK_SCRIPT, str(tmp_path)],
        capture_output=True, text=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert "File too large" in done.stdout
    kept = EvalReport.load(tmp_path / "run")
    assert 10 < len(kept.results) < 500
    assert f"the {len(kept.results)} results written before are readable" in done.stdout
    config = EvalConfig(
        endpoint=echo_number, output_dir=str(tmp_path), experiment_name="run", resume=True
    )
    report = asyncio.run(evaluate(make_samples(500), config, exact))
    assert report.summary["n"] == 500
    assert report.summary["mean"] == 1.0


CTRL_C_SCRIPT = """
import sys, trio
from heldout import EvalConfig, evaluate
from tests.conftest import make_samples, echo_number, exact
async def answer(messages):
    if "is 30?" in messages[-1].text:
        print("ready", flush=True)
        await trio.sleep_forever()
    return await echo_number(messages)
config = EvalConfig(endpoint=answer, output_dir=sys.argv[1], experiment_name="run",
                    max_concurrent=1)
trio.run(evaluate, make_samples(50), config, exact)
"""


def test_ctrl_c_leaves_a_resumable_run_under_trio(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CTRL_C_SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode != 0
    assert stderr.rstrip().endswith("KeyboardInterrupt"), stderr
    kept = EvalReport.load(tmp_path / "run")
    assert kept.status == "interrupted"
    assert len(kept.results) == 30


CTRL_C_LATE_SCRIPT = """
import signal, sys, {library}
import heldout._evals.engine
from heldout import EvalConfig, evaluate
from tests.conftest import make_samples, echo_number, exact
derive = heldout._evals.engine.finish
def finish(*args):
    print("deriving", flush=True)
    sys.stdin.readline()
    derive(*args)
    print("derived", flush=True)
heldout._evals.engine.finish = finish
config = EvalConfig(endpoint=echo_number, output_dir=sys.argv[1], experiment_name="run")
def run():
    {start}
try:
    run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("library", "start"),
    [
        ("asyncio", "asyncio.run(evaluate(make_samples(5), config, exact))"),
        ("trio", "trio.run(evaluate, make_samples(5), config, exact)"),
    ],
)
def test_ctrl_c_while_it_derives_the_report_waits_for_it(
    tmp_path: Path, library: str, start: str
) -> None:
    script = CTRL_C_LATE_SCRIPT.format(library=library, start=start)
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert process.stdout.readline() == "deriving\n"
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate("go on\n", timeout=30)
    assert stdout.split() == ["derived", "interrupted"], stderr
    kept = EvalReport.load(tmp_path / "run")
    assert kept.status == "interrupted"
    assert len(kept.results) == 5


def test_what_a_scorer_writes_into_its_sample_stays_with_its_item(run_eval: RunEval) -> None:
    """It used to be stored, so that no dataset fitted the run that was to be resumed."""
    seen: list[dict[str, Any]] = []

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        seen.append({**sample.metadata})
        sample.metadata["note"] = "graded"
        sample.input["question"] = "another"
        if len(seen) == 2:
            raise ValueError("once")
        return exact(trajectory, sample)

    samples = [Sample(f"s{i}", {"question": f"what is {i}?"}, str(i)) for i in range(3)]
    report = run_eval(samples, score, repeats=2, max_concurrent=1)
    assert report.summary["n_errors"] == 1
    again = run_eval(
        [Sample(f"s{i}", {"question": f"what is {i}?"}, str(i)) for i in range(3)],
        score,
        repeats=2,
        resume=True,
    )
    assert again.summary["n_errors"] == 0
    assert not any(seen)
    assert not any(result.metadata for result in again.results)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ((1, (2, 3)), r"ground_truth is a tuple, which a report stores as \[1, \[2, 3\]\]"),
        ([{"x": {"y"}}], r"ground_truth\[0\]\['x'\] is a set"),
        (b"3", "ground_truth is a bytes"),
        (Decimal("3"), "ground_truth is a Decimal, which a report stores as '3'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_sample_that_would_be_stored_as_another_one_is_refused_by_name(
    run_eval: RunEval, value: Any, said: str
) -> None:
    """A score function that compares with it would score it differently when it is read back."""
    fine = make_samples(20)
    asked: list[str] = []

    def answer(messages: list[Any]) -> str:
        asked.append(messages[-1].text)
        return "1"

    with pytest.raises(InvalidInput, match=f"sample 'a': {said}"):
        run_eval([*fine, Sample("a", {"question": "what is 1?"}, value)], endpoint=answer)
    assert asked == []  # before anything was paid for


@pytest.mark.parametrize(
    ("place", "number"),
    [("input", float("inf")), ("ground_truth", float("nan")), ("metadata", np.float32("nan"))],
)
def test_a_number_that_json_cannot_hold_is_refused_by_name(
    run_eval: RunEval, place: str, number: Any
) -> None:
    odd = {"question": "?", "limits": [None, (1.0, number)]}
    parts: dict[str, Any] = {"input": {"question": "?"}, place: odd}
    named = rf"sample 'a': {place}\['limits'\]\[1\]\[1\] is (inf|nan)"
    with pytest.raises(InvalidInput, match=named):
        run_eval([Sample("b", {"question": "?"}), Sample("a", **parts)])


def test_few_shot_answers_and_an_environments_own_turns_are_not_the_models(
    run_eval: RunEval,
) -> None:
    class Closing:
        tools = ()

        def opening(self) -> tuple[Message, ...]:
            return (Message("assistant", "How can I help?"),)

        def reply(self, messages: Any) -> Reply:
            return Reply((Message("assistant", "Goodbye!"),), done=True)

        def close(self) -> None:
            pass

    async def answer(messages: list[Message]) -> str:
        return await echo_number(messages[:1])

    report = run_eval(make_samples(2), exact, None, lambda sample: Closing(), endpoint=answer)
    assert report.summary["mean"] == 1.0
    assert [r.trajectory.answer for r in report.results] == ["0", "1"]
    assert report.results[0].trajectory.messages[-1].text == "Goodbye!"


def test_a_metric_named_as_anothers_count_overwrites_nothing(run_eval: RunEval) -> None:
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("acc", 1.0) if sample.id == "s0" else Metric("acc_n", 7.0),))

    summary = run_eval(make_samples(3), score).summary
    assert (summary["metric_acc"], summary["metric_acc_n"]) == (1.0, 1)
    assert (summary["metric.acc_n"], summary["metric.acc_n_n"]) == (7.0, 2)


# --- Samples of equal content ---


def copies(of: int, each: int) -> list[Sample]:
    """Lines of a dataset, each of them several times and not next to each other."""
    return [
        Sample(f"{copy}-{i}", {"question": f"what is {i}?"}, str(i % 2), {"half": i % 2})
        for copy in range(each)
        for i in range(of)
    ]


@pytest.mark.parametrize("repeats", [1, 2])
def test_samples_of_equal_content_are_one_cluster(run_eval: RunEval, repeats: int) -> None:
    once = run_eval(copies(20, 1), repeats=repeats, experiment_name="once")
    ten = run_eval(copies(20, 10), repeats=repeats, experiment_name="ten")
    assert "n_clusters" not in once.summary
    assert (ten.summary["n"], ten.summary["n_clusters"]) == (200 * repeats, 20)
    for key in ("mean", "stderr", "stderr_scored"):
        assert ten.summary[key] == pytest.approx(once.summary[key])
    assert ten.summary["ci_high"] - ten.summary["ci_low"] > 0.2
    # The same from results in memory, from columns, and from a journal alone.
    assert heldout.analysis.summarize(ten.results) == ten.summary
    slices, total = ten.slices_and_total("half")
    assert total == ten.summary
    assert slices[(1,)]["n_clusters"] == 10
    (ten.path / "summary.json").unlink()
    loaded = EvalReport.load(ten.path)
    assert loaded.summary == ten.summary
    assert loaded.slices_and_total("half") == (slices, total)


def test_copies_do_not_make_a_comparison_or_a_gate_more_certain(run_eval: RunEval) -> None:
    def other(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("exact", sample.id.endswith(("3", "5", "7")), weight=1.0),))

    found = {}
    for each in (1, 10):
        a = run_eval(copies(20, each), experiment_name=f"a{each}")
        b = run_eval(copies(20, each), other, experiment_name=f"b{each}")
        found[each] = heldout.analysis.compare(a, b, allow=["scorer"])
        gate = heldout.analysis.gate(a, min_mean=0.01)
        assert gate.checks[0].n == 20
    assert found[10].overall.stderr == pytest.approx(found[1].overall.stderr)
    assert found[10].duplicates
    assert not found[1].duplicates


def test_tasks_that_differ_in_metadata_alone_are_one_cluster_only_without_an_environment(
    run_eval: RunEval,
) -> None:
    tasks = [
        Sample(f"{i}", {"question": "do it"}, "1", {"files": {"a": i % 10, "b": 0}})
        for i in range(20)
    ]
    words = run_eval(tasks, experiment_name="words")
    assert words.summary["n_clusters"] == 1
    report = run_eval(tasks, exact, None, lambda sample: Counting(1, []), experiment_name="tasks")
    assert (report.summary["n"], report.summary["n_clusters"]) == (20, 10)
    # Everything that clusters agrees: results in memory, columns, the curve, a comparison.
    assert heldout.analysis.summarize(report.results) == report.summary
    assert report.slices_and_total("ok")[1] == report.summary
    copies = [outcome.copy_of for outcome in outcomes_of(report.results)]
    assert copies == [None] * 10 + [f"{i}" for i in range(10)]
    gate = heldout.analysis.gate(report, min_mean=0.01)
    assert gate.checks[0].n == 10
    again = heldout.analysis.summarize(report.results, cluster="sample_id")
    assert (again["n_clusters"], again["n_without_cluster"]) == (20, 0)


def test_a_count_that_is_1_everywhere_gets_no_interval_of_a_rate(
    run_eval: RunEval, tmp_path: Path
) -> None:
    def score(trajectory: Trajectory, sample: Sample) -> Score:
        return Score(
            (
                Metric("right", True, weight=1.0),
                Metric("num_turns", 1),
                Metric("tool_calls", sample.id in ("s0", "s1")),
                Metric("used", np.bool_(sample.id == "s0")),
                Metric("declared", 1.0, rate=True),
            )
        )

    report = run_eval(make_samples(9), score)
    whole = report.summary
    assert (whole["metric_num_turns"], whole["metric_num_turns_ci_low"]) == (1.0, None)
    for name in ("right", "used", "declared"):
        assert 0 < whole[f"metric_{name}_ci_high"] - whole[f"metric_{name}_ci_low"] < 0.5
    assert whole["ci_low"] == pytest.approx(0.7008, abs=1e-3)
    # From columns, from results, clustered by a key, and from the journal alone: the same.
    _, total = report.slices_and_total("ok")
    assert total == whole == heldout.analysis.summarize(report.results)
    (tmp_path / "run" / "summary.json").unlink()
    assert EvalReport.load(tmp_path / "run").summary == whole
    gate = heldout.analysis.gate(report, metric="num_turns", min_mean=0.5)
    assert gate.outcome == "inconclusive"


def test_a_tracked_metric_of_zeros_and_ones_has_an_interval_within_them_in_every_slice(
    run_eval: RunEval,
) -> None:
    samples = [
        replace(sample, metadata={"part": "few" if i < 3 else "many"})
        for i, sample in enumerate(make_samples(12))
    ]

    def score(trajectory: Trajectory, sample: Sample) -> Score:
        number = int(sample.id[1:])
        return Score(
            (
                Metric("right", True, weight=1.0),
                Metric("polite", float(number != 7)),
                Metric("tool_calls", float(number % 2 + (number == 11))),
            )
        )

    report = run_eval(samples, score)
    parts = report.summarize(by="part")
    for summary in (report.summary, *parts.values()):
        low, high = summary["metric_polite_ci_low"], summary["metric_polite_ci_high"]
        assert 0 <= low <= summary["metric_polite"] <= high <= 1
        assert high - low > 0.1
    # A count is one everywhere: also where it happens to be 0 and 1 alone.
    assert parts["few"]["metric_tool_calls_ci_high"] > 1
    gate = heldout.analysis.gate(report, metric="polite", min_mean=0.5)
    assert gate.checks[0].interval is not None
    assert gate.checks[0].interval.high <= 1
