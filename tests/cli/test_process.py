"""What only a process of its own can show: signals, pipes, terminals, imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heldout.store.runs import find_run
from tests.cli.conftest import Heldout, Write, calls, in_process_of_its_own
from tests.cli.runs import Outcome, Terminal, command_of, lines_of_journal, wait_for

pytestmark = pytest.mark.integration

# Answers three questions, then waits until the test says go.
WAITING = """    if word in ("word3", "word4", "word5"):
        import time
        while not Path("go").exists():
            time.sleep(0.005)
    return word"""
# As above, but waits for good, in a call that nothing can cancel.
STUCK = """    if word in ("word3", "word4", "word5") and not Path("go").exists():
        import threading
        threading.Event().wait()
    return word"""


# --- Signals ------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_was_done_and_resume_completes_it(write: Write, heldout: Heldout) -> None:
    write(**{"    return word": STUCK, "max_concurrent=1": "max_concurrent=2"})
    process = subprocess.Popen(
        command_of("run", "eval.py"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(lambda: lines_of_journal("six") == 4 and len(calls()) == 5, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)  # though two calls never return
    assert process.returncode == 130
    assert out == b""
    run_dir = find_run("six")
    saved = f"Results so far are saved to {run_dir}; continue with --resume."
    assert err.decode() == f"Interrupted. {saved}\n"
    run = json.loads((run_dir / "run.json").read_text())
    assert (run["status"], run["asked"]) == ("interrupted", 6)
    assert "interrupted after 3 of 6 items" in heldout("show", "six").out

    Path("go").touch()
    Path("calls.txt").unlink()
    resumed = heldout("run", "eval.py", "--resume", "--max-concurrent", "1")
    assert resumed.code == 0
    assert calls() == ["word3", "word4", "word5"]
    assert "6 items: 6 scored" in resumed.out


# --- Pipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--help"], ["show", "six", "--json"]])
def test_a_reader_that_has_gone_is_no_error(finished: Outcome, arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command_of(*arguments), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=20
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_unicode_gets_a_report_all_the_same(finished: Outcome) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        command_of("show", "six"), capture_output=True, env=environment, timeout=20
    )
    assert done.returncode == 0, done.stderr
    assert b"| 0.667 | 0.300 ? 0.903 |" in done.stdout


# --- Terminals ----------------------------------------------------------------------------------


def test_a_terminal_shows_progress_in_one_line_that_stays_with_the_time_it_took(
    write: Write,
) -> None:
    write(**{"    return word": WAITING})
    terminal = Terminal("run", "eval.py")
    terminal.read_until("3/6")
    shown = terminal.written
    assert "mean 1.000 (0.439 … 1.000)" in shown
    assert "error" not in shown
    Path("go").touch()
    assert terminal.read_all() == 0
    run_dir = find_run("six")
    progress, report = terminal.written.split(f"six/{run_dir.name}\x1b", 1)
    last = progress.split("\x1b[2K")[-1]
    assert "6/6" in last
    assert "0:00:0" in last
    assert "mean 0.667 (0.300 … 0.903)" in last
    # Redrawn in place: only the last one is followed by a new line.
    assert progress.count("\n") == 1
    assert f"saved to {run_dir}" in report
    assert terminal.written.count("\x1b[?25l") == terminal.written.count("\x1b[?25h") == 1


def test_what_the_eval_prints_goes_above_the_progress_line(write: Write) -> None:
    write(**{"    return word": "    print('heard', word)\n    assert word != 'word2'\n" + WAITING})
    terminal = Terminal("run", "eval.py", "--max-concurrent", "3")
    terminal.read_until("1 error")
    Path("go").touch()
    assert terminal.read_all() == 4
    for i in range(6):
        assert f"heard word{i}\r\n" in terminal.written


def test_progress_can_be_turned_off(write: Write) -> None:
    write()
    terminal = Terminal("run", "eval.py", "--set", "progress=false")
    assert terminal.read_all() == 0
    assert "6/6" not in terminal.written
    assert "\x1b[2K" not in terminal.written


def test_a_failed_eval_leaves_the_terminal_as_it_was(write: Write) -> None:
    write(**{"    return word": "    raise RuntimeError('down')"})
    terminal = Terminal("run", "eval.py")
    assert terminal.read_all() == 4
    assert "mean –" in terminal.written
    assert "6 errors" in terminal.written
    assert terminal.written.count("\x1b[?25l") == terminal.written.count("\x1b[?25h") == 1
    assert "Eval failed: all 6 items errored" in terminal.written


def test_on_a_terminal_no_line_is_wider_than_it_is(write: Write, heldout: Heldout) -> None:
    columns = 30
    write(**{"return word": "return '\\x1b[2J[red]' + 'long ' * 100"})
    assert heldout("run", "eval.py").code == 0
    terminal = Terminal("show", "six", "--failures", "2", columns=columns)
    assert terminal.read_all() == 0
    assert "\x1b[2J" not in terminal.written
    assert r"\x1b[2J[red]" in terminal.written
    for line in terminal.written.splitlines():
        visible = "".join(part.partition("m")[2] for part in ("m" + line).split("\x1b["))
        assert len(visible) <= columns


# --- Imports ------------------------------------------------------------------------------------

HEAVY = ["torch", "transformers", "aiohttp", "httpx2", "pandas", "polars", "pyarrow", "datasets"]


def loaded_by(code: str, watched: list[str]) -> list[str]:
    report = f"\nimport sys\nprint('loaded', [m for m in {watched} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code + report],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    found = done.stdout.splitlines()[-1].removeprefix("loaded ").replace("'", '"')
    return json.loads(found)


def test_importing_heldout_loads_nothing_heavy() -> None:
    names = "from heldout import EvalConfig, Sample, Score, Metric, EvalReport, evaluate"
    assert loaded_by("import heldout", [*HEAVY, "rich", "click", "numpy", "anyio"]) == []
    assert loaded_by(names, [*HEAVY, "rich", "click"]) == []


def test_help_loads_nothing_heavy() -> None:
    code = "from heldout.cli.main import run_cli"
    for arguments in (["--help"], ["run", "--help"], ["show", "--help"]):
        code += f"\nassert run_cli({arguments}) == 0"
    assert loaded_by(code, [*HEAVY, "numpy", "rich", "anyio", "asyncio"]) == []


def test_running_an_eval_of_a_function_loads_nothing_heavy(write: Write) -> None:
    write()
    code = "from heldout.cli.main import run_cli\nassert run_cli(['run', 'eval.py']) == 0"
    assert loaded_by(code, HEAVY) == []


# --- The command itself -------------------------------------------------------------------------


def test_exit_codes_are_those_of_the_process(write: Write) -> None:
    write(**{"    return word": "    raise RuntimeError('down')"})
    done = in_process_of_its_own("run", "eval.py")
    assert done.returncode == 4
    assert "all 6 items errored" in done.stderr
    assert "Traceback" not in done.stderr
