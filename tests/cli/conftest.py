"""Shared by the tests of the command line: an eval file, and how to run commands."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heldout.cli.main import run_cli
from heldout.store.run_dir import RunDir, RunInfo
from heldout.training.curve.points import CurveWriter
from tests.cli.runs import CONFIG, CURVE, CURVE_RUN, POINTS, Outcome, append, command_of, copy_runs

# Six questions; the endpoint repeats their last word, which is the truth for the first four.
EVAL = """
from pathlib import Path

from heldout import EvalConfig, Metric, Sample, Score

def answer(messages):
    word = messages[-1].text.split()[-1]
    with Path("calls.txt").open("a") as calls:
        calls.write(word + "\\n")
    return word

config = EvalConfig(endpoint=answer, experiment_name="six", max_concurrent=1)

def load_dataset():
    return [
        Sample(f"q{i}", {"question": f"say word{i}"}, f"word{i}" if i < 4 else "other",
               {"difficulty": ["medium", "hard", "easy"][i % 3], "topic": f"topic {i % 2}"})
        for i in range(6)
    ]

def score_fn(trajectory, sample):
    correct = trajectory.answer == sample.ground_truth
    return Score((Metric("correct", correct, weight=1.0), Metric("length", len(trajectory.answer))))
"""


START = "2026-11-15T22-08-31"
"""When every run of a test in this process begins."""
RUN = Path(f"outputs/evals/six/{START}")


def calls() -> list[str]:
    """What the endpoint was asked to say, in the order asked."""
    return Path("calls.txt").read_text().split()


def damage_line(number: int) -> bytes:
    journal = RUN / "results.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[number - 1] = lines[number - 1][:30] + b"\xff\x00" + lines[number - 1][32:]
    journal.write_bytes(b"".join(lines))
    return lines[number - 1]


Heldout = Callable[..., Outcome]
Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test has a working folder of its own, and leaves no modules behind."""
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("heldout.store.runs.timestamp", lambda: START)
    before = set(sys.modules)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name not in before and file and Path(file).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs that tests copy: making one takes longer."""
    return tmp_path_factory.mktemp("saved")


@pytest.fixture
def write(folder: Path) -> Write:
    """Write an eval file: the one above, with texts in it replaced, or another altogether."""

    def write_file(name: str = "eval.py", text: str = EVAL, **replaced: str) -> Path:
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        (folder / name).write_text(textwrap.dedent(text))
        return Path(name)

    return write_file


@pytest.fixture
def heldout(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Heldout:
    """The command line, in this process."""

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-m", "heldout", *arguments])
        code = run_cli([*arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def in_process_of_its_own(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command_of(*arguments),
        capture_output=True,
        text=True,
        timeout=30,
        env=os.environ | {"PYTHONWARNINGS": "error"},
    )


@pytest.fixture
def finished(write: Write, heldout: Heldout) -> Outcome:
    """The outcome of running the file above: outputs/evals/six."""
    write()
    outcome = heldout("run", "eval.py")
    assert outcome.code == 0, outcome.err
    return outcome


@pytest.fixture
def runs(folder: Path, saved: Path) -> None:
    """The runs before, after and similar."""
    copy_runs(saved)


@pytest.fixture
def run(folder: Path) -> Path:
    CURVE_RUN.mkdir(parents=True)
    info = RunInfo.new(CONFIG, {})
    info.status = "complete"
    RunDir(CURVE_RUN).write_info(info)
    append(*POINTS)
    return CURVE_RUN


@pytest.fixture
def writer(run: Path) -> Iterator[CurveWriter]:
    """The training, which still holds the curve."""
    held = CurveWriter(CURVE)
    yield held
    held.close()
