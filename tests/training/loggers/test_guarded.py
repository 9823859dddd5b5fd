"""None of several loggers holds up training or another, and nothing is lost without a word."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from heldout.errors import InvalidInput
from heldout.training.loggers import Loggers
from heldout.training.loggers.guarded import checked_loggers
from tests.training.loggers.scenario import fields_of


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


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_logger_gets_every_result_in_the_order_given() -> None:
    first, second = Keeps(), Keeps()
    with Loggers(first, second) as loggers:
        for step in (30, 10, 20):
            loggers.log("e", step, fields_of(step))
    assert first.got == second.got == [("e", step, fields_of(step)) for step in (30, 10, 20)]
    assert (first.closed, second.closed) == (1, 1)


def test_the_report_counts_what_each_got() -> None:
    loggers = Loggers(Keeps(), Keeps())
    loggers.log("e", 1, {})
    report = loggers.close()
    assert report.complete
    assert str(report) == "Keeps 1: got 1, lost 0\nKeeps 2: got 1, lost 0"


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
    said = [r for r in caplog.records if "Fails failed" in r.getMessage()]
    assert len(said) == 2  # once a kind
    assert all(r.exc_info for r in said)
    assert "lost 10" in caplog.records[-1].getMessage()


@pytest.mark.parametrize("problem", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_even_what_would_end_a_thread_is_counted(problem: BaseException) -> None:
    loggers = Loggers(Fails(problem))
    loggers.log("e", 1, {})
    loggers.log("e", 2, {})
    (report,) = loggers.close()
    assert report.n_lost == 2


def test_kinds_of_errors_without_end_take_no_memory_without_end() -> None:
    kinds = [type(f"Kind{i}", (Exception,), {})() for i in range(50)]
    loggers = Loggers(Fails(*kinds))
    for step in range(50):
        loggers.log("e", step, {})
    (report,) = loggers.close()
    assert report.n_lost == 50
    assert len(report.lost) == 21
    assert report.lost["other errors"] == 30


def test_a_reason_in_a_report_cannot_write_lines_or_obeyed_codes_of_its_own() -> None:
    loggers = Loggers(Fails(OSError("bad\nLoggers: got 9\x1b[2J\u202e")))
    loggers.log("e", 1, {})
    assert str(loggers.close()) == (
        r"Fails: got 0, lost 1 (1 × OSError: bad Loggers: got 9\x1b[2J\u202e)"
    )


def test_what_is_said_in_the_log_is_said_without_a_lock() -> None:
    """A handler that hangs would otherwise hold up whoever has the next result."""
    loggers = Loggers(Fails(OSError("no")))
    taken: list[bool] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            thread = threading.Thread(target=loggers.report)
            thread.start()
            thread.join(30)
            taken.append(not thread.is_alive())

    handler = Handler(level=logging.WARNING)
    logger = logging.getLogger("heldout")
    logger.addHandler(handler)
    try:
        loggers.log("e", 1, {})
        loggers.close()
    finally:
        logger.removeHandler(handler)
    assert taken
    assert all(taken)


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


def test_fields_that_are_none_do_not_stop_a_training() -> None:
    loggers = Loggers(Keeps())
    loggers.log("e", 1, None)  # type: ignore[arg-type]
    (report,) = loggers.close()
    assert report.n_lost == 1


# --- Hanging ---


def test_a_logger_that_hangs_is_given_up_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, hangs, keeps = Clock(), Hangs(), Keeps()
    loggers = Loggers(hangs, keeps, timeout=5, clock=clock)
    loggers.log("e", 1, {})
    loggers.log("e", 2, {})
    assert hangs.entered.wait(60)
    clock.now = 5.0
    assert [each.n_lost for each in loggers.report()] == [0, 0]  # it may take that long
    clock.now = 5.1
    loggers.log("e", 3, {})
    given_up = [r.getMessage() for r in caplog.records if "given up" in r.getMessage()]
    assert len(given_up) == 1
    assert "Hangs is given up, hung: a call did not return in 5 s; 2 results" in given_up[0]
    report = loggers.close()
    hung, kept = report
    assert (kept.got, kept.n_lost) == (3, 0)
    reason = "hung: a call did not return in 5 s"
    assert hung.lost == {f"{reason} (this one may have arrived)": 1, reason: 2}
    assert hung.got == 0
    hangs.released.set()
    assert hangs.ended.wait(60)  # it came back, and was closed
    assert [(each.got, each.n_lost) for each in loggers.close()] == [(0, 3), (3, 0)]


def test_close_does_not_wait_longer_than_it_may() -> None:
    hangs = Hangs()
    loggers = Loggers(hangs)
    for step in range(3):
        loggers.log("e", step, {})
    assert hangs.entered.wait(60)
    (report,) = loggers.close(timeout=0.05)
    reason = "not done when closed, 0.05 s were allowed"
    assert report.lost == {f"{reason} (this one may have arrived)": 1, reason: 2}
    hangs.released.set()


def test_close_does_not_wait_for_a_logger_that_hangs_beyond_its_timeout() -> None:
    hangs = Hangs()
    loggers = Loggers(hangs, timeout=0.05)
    loggers.log("e", 1, {})
    (report,) = loggers.close(timeout=300)
    assert report.lost == {"hung: a call did not return in 0.05 s (this one may have arrived)": 1}
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

taking, go_on = threading.Event(), threading.Event()
def slow(name, step, fields):
    taking.set()
    go_on.wait()
loggers = Loggers(CallableLogger(slow))
loggers.log("e", 1, {})
taking.wait()
lane = loggers._lanes[0]
with lane._changed:  # as another thread might, at the wrong moment
    child = os.fork()
if child == 0:
    lane._changed.acquire = None  # a lock that is never given back
    loggers.log("e", 2, {})
    loggers.log("e", 3, {})
    print("child:", loggers.close(), flush=True)
    sys.exit(7)  # with everything that is registered to be done at the end
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
go_on.set()
print("parent:", status, loggers.close())
"""


def test_a_forked_child_neither_logs_nor_waits() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120, check=True
    )
    child, parent = ran.stdout.splitlines()
    assert re.fullmatch(
        r"child: CallableLogger: got 0, lost 0; these loggers belong to process \d+, and do "
        r"nothing in its forked child \d+; make others here",
        child,
    )
    assert parent == "parent: 7 CallableLogger: got 1, lost 0"
    assert ran.stderr.count("a result is logged nowhere") == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"timeout": 0}, "timeout is a number"),
        ({"timeout": float("nan")}, "timeout is a number"),
        ({"capacity": 0}, "capacity is a whole number"),
        ({"capacity": True}, "capacity is a whole number"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Loggers(Keeps(), **settings)


class HasNoClose:
    def log(self, name: str, step: int, fields: Any) -> None: ...


@pytest.mark.parametrize("logger", [None, "wandb", Keeps, HasNoClose()])
def test_what_is_no_logger_is_refused(logger: Any) -> None:
    with pytest.raises(InvalidInput, match="a logger has log"):
        Loggers(logger)


@pytest.mark.parametrize(
    ("loggers", "message"),
    [
        (Keeps(), r"several, in a list, got .*Keeps.*put it into a list: \[logger\]"),
        (Loggers, "several, in a list, got <class"),
        (None, "several, in a list, got None"),
        ([Keeps], r"It is a class: make one, Keeps\(…\)"),
        (
            [Keeps(), lambda name, step, fields: None],
            r"CallableLogger\(fn\) makes one of a function",
        ),
        ("wandb", "a logger has log.* got 'w'"),
    ],
)
def test_what_is_not_a_list_of_loggers_is_refused_with_what_to_write(
    loggers: Any, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        checked_loggers(loggers)


def test_loggers_may_come_in_any_iterable() -> None:
    one, two = Keeps(), Keeps()
    assert checked_loggers(logger for logger in (one, two)) == (one, two)
    assert checked_loggers([]) == ()


def test_nothing_is_said_where_nothing_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    loggers = Loggers(Keeps())
    loggers.log("e", 1, {})
    loggers.close()
    assert caplog.records == []
