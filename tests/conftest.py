"""Shared by all tests: how to run an eval, under either event loop."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import hypothesis
import pytest

from heldout import EvalConfig, EvalReport, Metric, Sample, Score, Trajectory, evaluate
from tests import system

RunEval = Callable[..., EvalReport]

# The same examples every time: a suite that fails by chance is not believed when it is right.
hypothesis.settings.register_profile(
    "heldout",
    derandomize=True,
    deadline=None,
    # How fast examples are made depends on the machine.
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("heldout")

# A parent such as `nohup make test &` has processes ignore SIGINT, and what they start inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup's: a handler keeps it here, and processes that tests start have the default again.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

if os.environ.get("HELDOUT_TESTS_WITHOUT_TORCH") == "1":
    sys.meta_path.insert(0, system.WithoutTorch())

# Ray reads its token once in a process, and without one it would write one at home.
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        system.require(*marker.args)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say last, below pytest's own summary, what the machine lacked."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput"):
        return
    # A skip's longrepr is (path, line, reason).
    reasons = [report.longrepr[2] for report in terminal.stats.get("skipped", [])]
    if line := system.say_what_was_lacking(reasons):
        print(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with real packages and processes first: a slow one at the end would run alone."""
    slow = {item.path for item in items if item.get_closest_marker("integration")}
    items.sort(key=lambda item: item.path not in slow)


def make_samples(n: int) -> list[Sample]:
    levels = ("easy", "medium", "hard")
    return [
        Sample(f"s{i}", {"question": f"what is {i}?"}, str(i), {"difficulty": levels[i % 3]})
        for i in range(n)
    ]


async def echo_number(messages: list[Any]) -> str:
    """Answers `what is 7?` with 7."""
    return str(messages[-1].text.split()[-1].rstrip("?"))


def exact(trajectory: Trajectory, sample: Sample) -> Score:
    right = trajectory.answer == sample.ground_truth
    return Score((Metric("correct", right, weight=1.0), Metric("length", len(trajectory.answer))))


both_loops = pytest.mark.parametrize("backend", ["asyncio", "trio"])
"""Runs a test under trio as well: for what waits, is cancelled or crosses threads.

Of every part of heldout that awaits, one ordinary test is run so, too.
"""


@pytest.fixture
def backend() -> str:
    """The event loop; `both_loops` has a test run under trio as well."""
    return "asyncio"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Matrices as small as those of tests are slower in two, and may differ in their last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run_eval(backend: str, tmp_path: Path) -> RunEval:
    """evaluate() as a plain function, into tmp_path.

    Any share of items may error: few samples are enough for most tests.
    """

    def run(
        samples: Iterable[Sample], score_fn: Any = exact, *hooks: Any, **settings: Any
    ) -> EvalReport:
        defaults = {"endpoint": echo_number, "experiment_name": "run", "output_dir": str(tmp_path)}
        config = EvalConfig(**{**defaults, "max_error_rate": 1, **settings})
        call = partial(evaluate, samples, config, score_fn, *hooks)
        return anyio.run(call, backend=backend)

    return run
