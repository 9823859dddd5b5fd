"""How a training with evals under way may end: real processes, none of which may hang."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heldout.training import current_points
from heldout.training.background.dispatcher import AsyncEvalDispatcher, pending_evals
from tests.conftest import both_loops
from tests.training.toys import points_of

pytestmark = pytest.mark.integration

LONG = 60

BEGINNING = """
import os, signal, sys, threading, time
import anyio
from heldout.training.background import dispatcher
from heldout.training.background.dispatcher import *
from heldout.training.loggers import CallableLogger
dispatcher.EXIT_GRACE_SECONDS = 0.2
begun = threading.Event()
# Whoever runs the tests in the background may have it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

async def half():
    return {"accuracy": 0.5}

async def never():
    begun.set()
    await anyio.sleep_forever()

def blocks():
    begun.set()
    threading.Event().wait()

async def blocks_its_loop():
    blocks()

async def soon():
    await anyio.sleep(0.05)
    return {"accuracy": 0.5}

def ready():
    assert begun.wait(60)
    print("ready", flush=True)

evals = AsyncEvalDispatcher(run_dir=sys.argv[1])
"""


def start(folder: Path, script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", BEGINNING + script, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, script: str, after_ready: signal.Signals | None = None) -> tuple[int, str]:
    """Exit code and what it said; sends the signal once the script has said that it is ready."""
    process = start(folder, script)
    try:
        said = ""
        if after_ready is not None:
            assert process.stdout.readline() == "ready\n", process.stderr and process.stderr.read()
            process.send_signal(after_ready)
        out, problems = process.communicate(timeout=LONG)
        said += out + problems
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


# --- Without a drain ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evaluator", "end"), [("never", "1 / 0"), ("blocks", ""), ("blocks_its_loop", "")]
)
def test_a_script_that_ends_without_drain_says_what_it_abandons(
    tmp_path: Path, evaluator: str, end: str
) -> None:
    script = f"""
from heldout.training.loggers import StdoutLogger
AsyncEvalDispatcher(loggers=[StdoutLogger()]).schedule({evaluator}, step=6)
evals.schedule({evaluator}, step=5, name='held-out', saved_at='at-5')
{end}
"""
    code, said = run(tmp_path, script)
    assert code == len(end.split("/")) - 1, said
    assert ("ZeroDivisionError" in said) == bool(end)
    assert "eval 'held-out' of step 5 is abandoned" in said
    assert said.count("the process ended before it was finished") == 3  # of the logger, too
    assert "came after close" not in said
    assert "lost" not in said
    [point] = points_of(tmp_path)
    assert (point.step, point.skipped) == (5, "the process ended before it was finished")
    assert [p.saved_at for p in pending_evals(tmp_path)] == ["at-5"]


def test_what_ends_within_the_grace_is_a_result(tmp_path: Path) -> None:
    script = "dispatcher.EXIT_GRACE_SECONDS = 30; evals.schedule(soon, step=5)"
    code, said = run(tmp_path, script)
    assert (code, said) == (0, "")
    assert [(p.step, p.has_result) for p in points_of(tmp_path)] == [(5, True)]


# --- Signals ------------------------------------------------------------------------------------

SIGTERM = """
AsyncEvalDispatcher(handle_sigterm={handle})
evals.schedule(never, step=5)
ready()
while True:
    time.sleep(0.01)
"""


def test_sigterm_with_a_handler_still_ends_the_process_and_leaves_skips(tmp_path: Path) -> None:
    code, said = run(tmp_path, SIGTERM.format(handle=True), signal.SIGTERM)
    assert code == -signal.SIGTERM, said
    assert [p.skipped for p in points_of(tmp_path)] == ["the process ended before it was finished"]


def test_without_being_asked_to_sigterm_is_left_alone(tmp_path: Path) -> None:
    code, said = run(tmp_path, SIGTERM.format(handle=False), signal.SIGTERM)
    assert code == -signal.SIGTERM, said
    assert points_of(tmp_path) == []
    assert [p.step for p in pending_evals(tmp_path)] == [5]


def test_the_handler_that_was_there_decides(tmp_path: Path) -> None:
    before = """
stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda number, frame: stopped.set())
AsyncEvalDispatcher(handle_sigterm=True)
handle = evals.schedule(half, step=5)
handle.result(60)
evals.schedule(never, step=6)
ready()
while not stopped.is_set():
    time.sleep(0.01)
point = evals.schedule(half, step=7).result(60)  # training goes on, and so do evals
print("checkpoint", point.has_result)
"""
    code, said = run(tmp_path, before, signal.SIGTERM)
    assert code == 0, said
    assert "checkpoint True" in said
    assert [(p.step, p.has_result) for p in points_of(tmp_path)] == [
        (5, True),
        (6, False),
        (7, True),
    ]


@both_loops
def test_ctrl_c_ends_a_coroutine_trainer_and_leaves_skips(tmp_path: Path, backend: str) -> None:
    script = f"""
async def main():
    async with evals:
        evals.schedule(never, step=5)
        evals.schedule(blocks, step=6)
        while not begun.is_set():
            await anyio.sleep(0.01)
        ready()
        await anyio.sleep_forever()

anyio.run(main, backend={backend!r})
"""
    code, said = run(tmp_path, script, signal.SIGINT)
    assert code in (1, 130, -signal.SIGINT), said
    assert "KeyboardInterrupt" in said
    assert sorted((p.step, p.has_result) for p in points_of(tmp_path)) == [(5, False), (6, False)]


def test_ctrl_c_ends_a_wait_for_evals_though_the_signal_wakes_nobody(tmp_path: Path) -> None:
    # It goes to another thread, as one does that comes just before the main thread falls asleep.
    script = """
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
evals.schedule(never, step=5)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
dispatcher.QUIET_SECONDS = 0.1  # then it says what it waits for, and waits on
threading.Timer(1.0, ready).start()
evals.drain()
"""
    code, said = run(tmp_path, script, signal.SIGINT)
    assert code in (1, 130, -signal.SIGINT), said
    assert "KeyboardInterrupt" in said
    assert [(p.step, p.has_result) for p in points_of(tmp_path)] == [(5, False)]


def test_kill_9_loses_only_what_was_not_finished(tmp_path: Path) -> None:
    script = """
evals.schedule(half, step=5).result(60)
evals.schedule(never, step=6, saved_at="at-6")
ready()
threading.Event().wait()
"""
    code, said = run(tmp_path, script, signal.SIGKILL)
    assert code == -signal.SIGKILL, said
    assert [(p.step, p.has_result) for p in points_of(tmp_path)] == [(5, True)]
    [pending] = pending_evals(tmp_path)
    assert (pending.step, pending.saved_at) == (6, "at-6")
    with AsyncEvalDispatcher(run_dir=tmp_path, resume=True) as evals:
        evals.schedule_again(lambda: {"accuracy": 1.0}, pending)
    assert [p.has_result for p in current_points(points_of(tmp_path))] == [True, True]
    assert pending_evals(tmp_path) == []


# --- Forks --------------------------------------------------------------------------------------


def test_a_forked_child_does_not_own_the_dispatcher_of_its_parent(tmp_path: Path) -> None:
    script = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads; it is the point
evals.close()
rows = []
evals = AsyncEvalDispatcher(
    run_dir=sys.argv[1], loggers=[CallableLogger(lambda *row: rows.append(row))]
)
set_async_eval_dispatcher(evals)
go = threading.Event()
def waits():
    begun.set()
    go.wait()
    return {"accuracy": 0.5}
first = evals.schedule(waits, step=5)
assert begun.wait(60)
held, let_go = threading.Event(), threading.Event()
def hold():
    with evals.trainer.lock:  # the worst moment: nobody in the child will ever give it back
        held.set()
        let_go.wait()
threading.Thread(target=hold).start()
assert held.wait(60)
child = os.fork()
let_go.set()
if child == 0:
    assert get_async_eval_dispatcher() is None
    handle = evals.schedule(half, step=6)
    assert handle.done() and handle.result() is None
    assert first.result() is None
    assert evals.drain() == evals.close() == Drained()
    evals.poll(7)
    try:
        with evals:
            raise ValueError("in the child")
    except ValueError:
        print("child ends", flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
go.set()
with evals:
    pass
assert len(rows) == 1
"""
    code, said = run(tmp_path, script)
    assert code == 0, said
    assert "child ends" in said
    assert "does nothing in its forked child" in said
    assert [(p.step, p.has_result) for p in points_of(tmp_path)] == [(5, True)]
