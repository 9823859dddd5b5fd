"""A real language model, with its real weights, from the package index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from heldout import EvalConfig, Metric, Sample, Sampling, Score, Trajectory, evaluate

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.integration,
    # torch and transformers warn about themselves while a GGUF file is read
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def weights_stay_in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELDOUT_CACHE", str(ROOT / ".cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def contains(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("right", sample.ground_truth in trajectory.answer, weight=1.0),))


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_smollm2_knows_the_capital_of_france_and_a_small_sum(tmp_path: Path, backend: str) -> None:
    samples = [
        Sample("france", {"question": "What is the capital of France?"}, "Paris"),
        Sample("sum", {"question": "What is 2 + 3?"}, "5"),
    ]
    config = EvalConfig(
        endpoint="smollm2",
        experiment_name="run",
        output_dir=str(tmp_path),
        sampling=Sampling(max_tokens=10),
    )
    report = anyio.run(evaluate, samples, config, contains, backend=backend)
    answers = [r.trajectory.answer for r in report.results]
    assert answers == ["The capital of France is Paris.", "2 + 3 = 5"]
    assert report.summary["mean"] == 1.0
    usage = report.results[0].trajectory.usage
    assert usage is not None
    assert usage.completion_tokens == 8
    assert report.config["endpoint"]["model"] == "smollm2"


def test_a_turn_is_short_where_no_limit_is_set(tmp_path: Path) -> None:
    samples = [Sample("list", {"question": "Write a long story about a dragon."}, "")]
    config = EvalConfig(endpoint="smollm2", experiment_name="run", output_dir=str(tmp_path))
    report = anyio.run(evaluate, samples, config, contains)
    assert report.usage.completion_tokens == 64
    assert report.results[0].trajectory.stop.truncated
    assert report.config["endpoint"]["default_max_tokens"] == 64


def test_the_demo_runs_from_the_command_line(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "heldout", "run", "heldout.examples.capitals",
        "--limit", "3", "--set", "sampling.max_tokens=4", "--set", f"output_dir={tmp_path}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "3 items: 3 scored, 0 errored" in done.stdout
    assert str(tmp_path) in done.stdout
