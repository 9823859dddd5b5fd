"""None of several loggers holds up training or another, and nothing is lost without a word."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heldout.errors import InvalidInput
from heldout.training.loggers import Loggers, StdoutLogger, base
from heldout.training.loggers.base import MAX_TEXT, checked_loggers, split_fields, with_prefix
from tests.training.loggers.scenario import fields_of, skip_of


class Keeps:
    """Has all that it got."""

    def __init__(self) -> None:
        self.got: list[tuple[str, int, dict[str, Any]]] = []
        self.closed = 0

    def log(self, name: str, step: int, fields: Any) -> None:
        self.got.append((name, step, fields))

    def close(self) -> None:
        self.closed += 1


class Fails(Keeps):
    def __init__(self, *problems: BaseException) -> None:
        super().__init__()
        self.problems = problems

    def log(self, name: str, step: int, fields: Any) -> None:
        raise self.problems[step % len(self.problems)]


class Hangs(Keeps):
    """Until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.released, self.ended = (threading.Event() for _ in range(3))

    def log(self, name: str, step: int, fields: Any) -> None:
        self.entered.set()
        assert self.released.wait(60)
        super().log(name, step, fields)

    def close(self) -> None:
        super().close()
        self.ended.set()


def test_every_logger_gets_every_result_in_the_order_given() -> None:
    first, second = Keeps(), Keeps()
    with Loggers(first, second) as loggers:
        for step in (30, 10, 20):
            loggers.log("e", step, fields_of(step))
    assert first.got == second.got == [("e", step, fields_of(step)) for step in (30, 10, 20)]
    assert (first.closed, second.closed) == (1, 1)


def test_the_report_counts_what_each_got_and_nothing_is_said_where_nothing_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    loggers = Loggers(Keeps(), Keeps())
    loggers.log("e", 1, {})
    report = loggers.close()
    assert report.complete
    assert str(report) == "Keeps: got 1, lost 0\nKeeps: got 1, lost 0"
    assert caplog.records == []


def test_a_later_change_of_the_fields_does_not_reach_a_logger() -> None:
    slow = Hangs()
    loggers = Loggers(slow)
    fields = {"eval_reward": 0.5}
    loggers.log("e", 1, fields)
    fields["eval_reward"] = 0.9
    slow.released.set()
    loggers.close()
    assert slow.got[0][2] == {"eval_reward": 0.5}


def test_a_logger_that_changes_the_fields_changes_them_for_nobody_else() -> None:
    class Changes(Keeps):
        def log(self, name: str, step: int, fields: Any) -> None:
            fields.clear()

    keeps = Keeps()
    with Loggers(Changes(), keeps) as loggers:
        for step in range(50):
            loggers.log("e", step, {"eval_n": 1})
    assert [fields for _, _, fields in keeps.got] == [{"eval_n": 1}] * 50


# --- Failing ---


def test_a_logger_that_fails_loses_its_own_results_only(caplog: pytest.LogCaptureFixture) -> None:
    keeps, fails = Keeps(), Fails(OSError("disk full"), ValueError("odd"))
    loggers = Loggers(fails, keeps)
    for step in range(10):
        loggers.log("e", step, {})
    report = loggers.close()
    failed, kept = report
    assert (kept.got, kept.lost) == (10, {})
    assert (failed.got, failed.lost) == (0, {"OSError: disk full": 5, "ValueError: odd": 5})
    assert not report.complete
    said = [r for r in caplog.records if "Fails failed to store" in r.getMessage()]
    assert len(said) == 2  # once a kind
    assert all(r.exc_info for r in said)
    assert "lost 10" in caplog.records[-1].getMessage()


def test_even_what_would_end_a_thread_is_counted() -> None:
    loggers = Loggers(Fails(SystemExit(1), KeyboardInterrupt(), GeneratorExit()))
    for step in range(3):
        loggers.log("e", step, {})
    (report,) = loggers.close()
    assert report.n_lost == 3


def test_a_reason_in_a_report_cannot_write_lines_or_obeyed_codes_of_its_own() -> None:
    loggers = Loggers(Fails(OSError("bad\nLoggers: got 9\x1b[2J\u202e")))
    loggers.log("e", 1, {})
    assert str(loggers.close()) == (
        r"Fails: got 0, lost 1 (1 × OSError: bad Loggers: got 9\x1b[2J\u202e)"
    )


def test_a_log_handler_that_hangs_does_not_hold_up_the_next_result() -> None:
    entered, released = threading.Event(), threading.Event()
    in_time: list[bool] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            in_time.append(released.wait(30))

    handler = Handler(level=logging.WARNING)
    loggers, logger = Loggers(Fails(OSError("no"))), logging.getLogger("heldout")
    logger.addHandler(handler)
    try:
        loggers.log("e", 1, {})
        assert entered.wait(60)
        loggers.log("e", 2, {})
        released.set()
        loggers.close()
    finally:
        logger.removeHandler(handler)
    assert all(in_time)


def test_a_logger_that_cannot_be_closed_says_so() -> None:
    class Stuck(Keeps):
        def close(self) -> None:
            raise OSError("no room")

    loggers = Loggers(Stuck())
    loggers.log("e", 1, {})
    (report,) = loggers.close()
    assert (report.got, report.n_lost) == (1, 0)
    assert report.problem == "closing it failed (OSError: no room)"
    assert not report.complete


# --- Hanging ---


def test_a_logger_that_hangs_is_a_warning_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, keeps = Hangs(), Keeps()
    loggers = Loggers(hangs, keeps)
    loggers.log("e", 1, {})
    assert hangs.entered.wait(60)
    loggers.log("e", 2, {})
    assert caplog.records == []  # it may take its time
    monkeypatch.setattr(base, "SLOW_SECONDS", -1.0)
    loggers.log("e", 3, {})
    loggers.log("e", 4, {})
    slow = [r.getMessage() for r in caplog.records if "Hangs has not returned" in r.getMessage()]
    assert len(slow) == 1
    hangs.released.set()
    assert loggers.close().complete  # it came back, and what waited for it was not lost
    assert [step for _, step, _ in hangs.got] == [step for _, step, _ in keeps.got] == [1, 2, 3, 4]


def test_a_logger_that_hangs_takes_none_of_the_time_of_the_others_at_the_end() -> None:
    hangs, keeps = Hangs(), Keeps()
    loggers = Loggers(hangs, keeps)
    loggers.log("e", 1, {})
    assert hangs.entered.wait(60)
    hung, kept = loggers.close(timeout=2)
    assert (hung.got, hung.n_lost) == (0, 1)
    assert (kept.got, kept.n_lost, kept.problem) == (1, 0, None)
    hangs.released.set()
    assert hangs.ended.wait(60)  # it came back, and was closed
    assert [(logger.got, logger.n_lost) for logger in loggers.close()] == [(0, 1), (1, 0)]


def test_close_does_not_wait_longer_than_it_may() -> None:
    hangs = Hangs()
    loggers = Loggers(hangs)
    for step in range(3):
        loggers.log("e", step, {})
    assert hangs.entered.wait(60)
    (report,) = loggers.close(timeout=0.05)
    assert report.lost == {"not stored 0.05 s after close (the first may have arrived)": 3}
    hangs.released.set()


def test_a_close_that_hangs_is_said() -> None:
    class HangsInClose(Keeps):
        released = threading.Event()

        def close(self) -> None:
            assert self.released.wait(60)

    logger = HangsInClose()
    loggers = Loggers(logger)
    loggers.log("e", 1, {})
    (report,) = loggers.close(timeout=0.1)
    assert (report.got, report.n_lost) == (1, 0)
    assert report.problem is not None
    assert "close did not return in 0.1 s" in report.problem
    logger.released.set()


def test_no_more_wait_than_may(caplog: pytest.LogCaptureFixture) -> None:
    hangs = Hangs()
    loggers = Loggers(hangs, capacity=3)
    loggers.log("e", 0, {})
    assert hangs.entered.wait(60)
    for step in range(1, 9):
        loggers.log("e", step, {})
    hangs.released.set()
    (report,) = loggers.close()
    assert [step for _, step, _ in hangs.got] == [0, 1, 2, 3]
    assert report.lost == {"3 others were waiting already": 5}
    assert sum("others were waiting" in r.getMessage() for r in caplog.records) == 2


# --- Closing ---


def test_what_comes_after_close_is_counted() -> None:
    keeps = Keeps()
    loggers = Loggers(keeps)
    loggers.close()
    loggers.log("e", 1, {})
    (report,) = loggers.close()
    assert report.lost == {"came after close": 1}
    assert keeps.closed == 1


def test_no_thread_is_left_after_close() -> None:
    loggers = Loggers(Keeps(), Keeps())
    loggers.close()
    for thread in threading.enumerate():
        if thread.name.startswith("heldout Keeps"):
            thread.join(60)
            assert not thread.is_alive()


def test_a_training_that_ends_without_close_loses_nothing(tmp_path: Path) -> None:
    code = f"""
import time
from heldout.training.loggers import CallableLogger, Loggers
from pathlib import Path
def slow(name, step, fields):
    time.sleep(0.05)
    with Path({str(tmp_path / "got")!r}).open("a") as file:
        file.write(f"{{step}} ")
loggers = Loggers(CallableLogger(slow))
for step in range(5):
    loggers.log("e", step, {{}})
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "got").read_text() == "0 1 2 3 4 "


FORKED = """
import os, sys, threading
from heldout.training.loggers import CallableLogger, Loggers

taking, held, go_on = threading.Event(), threading.Event(), threading.Event()
def slow(name, step, fields):
    taking.set()
    go_on.wait()
loggers = Loggers(CallableLogger(slow))
loggers.log("e", 1, {})
taking.wait()
def hold():
    with loggers._threads[0]._lock:
        held.set()
        go_on.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()  # with a lock that nobody in the child will release
if child == 0:
    loggers.log("e", 2, {})
    print("child:", loggers.close(), flush=True)
    sys.exit(7)  # with everything that is registered to be done at the end
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go_on.set()
print("parent:", status, loggers.close())
"""


def test_a_forked_child_neither_logs_nor_waits() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines() == [
        "child: CallableLogger: got 0, lost 0",
        "parent: 7 CallableLogger: got 1, lost 0",
    ]
    assert re.search(r"e of step 2 is not logged: this is a child of process \d+", ran.stderr)


class HasNoClose:
    def log(self, name: str, step: int, fields: Any) -> None: ...


def test_what_is_not_a_list_of_loggers_is_refused_with_what_to_write() -> None:
    for loggers, message in (
        (Keeps(), r"loggers must be a list: \[logger\], got .*Keeps"),
        (Loggers, r"loggers must be a list: \[logger\], got <class"),
        (None, r"loggers must be a list: \[logger\], got None"),
        ([Keeps], r"It is a class: make one, Keeps\(…\)"),
        ([Keeps(), print], r"CallableLogger\(fn\) makes one of a function"),
        ("wandb", r"loggers must be a list: \[logger\], got 'wandb'"),
        (["wandbb"], "there is no logger 'wandbb'; there are mlflow, stdout"),
    ):
        with pytest.raises(InvalidInput, match=message):
            checked_loggers(loggers)
    one, two = Keeps(), Keeps()
    assert checked_loggers(logger for logger in (one, two)) == (one, two)
    (named,) = checked_loggers(["stdout"])
    assert isinstance(named, StdoutLogger)
    for wrong in (None, Keeps, HasNoClose()):
        with pytest.raises(InvalidInput, match="a logger has log"):
            Loggers(wrong)
    with pytest.raises(InvalidInput, match="capacity must be a whole number >= 1, got 0"):
        Loggers(Keeps(), capacity=0)


class TrainersOwn:
    """Of the form that trainers' own loggers have."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, float], int | None]] = []
        self.closed = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.got.append((metrics, step))

    def close(self) -> None:
        self.closed += 1


def test_a_trainers_own_logger_gets_the_numbers_and_stays_open() -> None:
    own, both = TrainersOwn(), Keeps()
    both.log_metrics = print  # type: ignore[attr-defined]  # a logger of ours comes first
    loggers = Loggers(own, both)
    loggers.log("rl_eval", 30, {"eval_reward": 0.5, "eval_n": 4, "eval_model": "m", "step": 30})
    loggers.log("rl_eval", 20, skip_of(20))
    report = loggers.close()
    assert own.got[0] == ({"rl_eval/reward": 0.5, "rl_eval/n": 4}, 30)
    assert own.got[1] == ({"rl_eval/skipped": 1, "rl_eval/seconds": 0.5}, 20)
    assert own.closed == 0
    assert [r.logger for r in report] == ["TrainersOwn", "Keeps"]
    assert (len(both.got), both.closed) == (2, 1)


# --- Fields ---


def test_a_field_loses_its_prefix_and_its_step() -> None:
    numbers, texts = split_fields(fields_of(30))
    assert numbers == {"reward": 0.3, "n": 24, "seconds": 1.5, "lag_steps": 7}
    assert with_prefix("rl_eval", numbers)["rl_eval/reward"] == 0.3
    assert texts == {}


def test_a_skip_has_no_number_that_could_be_a_score() -> None:
    numbers, texts = split_fields(
        {**skip_of(3), "eval_reward": 0.0, "eval_pass_rate": 0.0, "lag_steps": 2}
    )
    assert numbers == {"skipped": 1, "seconds": 0.5, "lag_steps": 2}
    assert texts == {"reason": "no model"}


def test_a_partial_is_a_number_and_a_text() -> None:
    fields = {"eval_skipped": False, "eval_reward": 0.5, "eval_partial": "max_seconds=1"}
    numbers, texts = split_fields(fields)
    assert numbers == {"reward": 0.5, "partial": 1}
    assert texts == {"partial_reason": "max_seconds=1"}


def test_what_is_no_finite_number_is_left_out_and_said() -> None:
    for value in (math.nan, math.inf, -math.inf, [1], np.float32("nan")):
        numbers, texts = split_fields({"eval_reward": value, "eval_n": 2})
        assert numbers == {"n": 2}
        assert texts["left_out"].startswith("reward=")


def test_numbers_of_numpy_are_numbers() -> None:
    numbers, _ = split_fields({"a": np.float32(0.5), "b": np.int64(3), "c": True})
    assert numbers == {"a": 0.5, "b": 3, "c": 1}


def test_text_is_short_and_can_be_encoded() -> None:
    _, texts = split_fields(skip_of(3, "\ud800" + "x" * 5000))
    assert texts["reason"].startswith("\\ud800x")
    assert texts["reason"].encode().decode() == texts["reason"]
    assert len(texts["reason"]) < MAX_TEXT + 10


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.just([1])
)


@given(st.dictionaries(st.text(max_size=12), values, max_size=8))
def test_whatever_comes_only_finite_numbers_and_texts_go(fields: dict[str, Any]) -> None:
    numbers, texts = split_fields(fields)
    assert all(math.isfinite(number) for number in numbers.values())
    assert all(isinstance(text, str) and text.encode() is not None for text in texts.values())
    if "skipped" in numbers:
        assert numbers.keys() <= {"skipped", "seconds", "lag_steps"}
