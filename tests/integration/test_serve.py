"""Against `transformers serve`, a real OpenAI-compatible server, with a tiny random model."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout
from heldout import EvalConfig, EvalReport, Metric, Sample, Sampling, Score
from heldout.errors import SystemicFailure
from heldout.types import Trajectory, Usage
from tests.tiny_model import WORDS, save_tiny_model

pytestmark = pytest.mark.integration

COMMAND = Path(sys.executable).parent / "transformers"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Served:
    url: str
    model: str
    log: Path

    def posts(self) -> int:
        """Requests for a completion so far."""
        return self.log.read_text().count('"POST /v1/chat/completions')


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("serve") / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [str(COMMAND), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        model = request.getfixturevalue("model")  # made while the server starts
        _wait_until_up(process, port, log)
        yield Served(f"http://127.0.0.1:{port}/v1", model, log)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _wait_until_up(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Nothing tells when it listens, so it is asked until it answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            pytest.fail(f"transformers serve ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return
        except urllib.error.URLError:
            time.sleep(0.1)
    pytest.fail(f"transformers serve did not come up:\n{log.read_text()}")


@pytest.fixture(autouse=True)
def _without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


SAMPLES = [Sample(f"s{i}", {"prompt": " ".join(WORDS[i : i + 1 + i % 5])}) for i in range(12)]


def evaluated(endpoint: str, folder: Path, **settings: Any) -> EvalReport:
    config = EvalConfig(
        endpoint=endpoint,
        experiment_name="run",
        output_dir=str(folder),
        progress=False,
        **{"sampling": Sampling(max_tokens=8), "max_concurrent": 4, "timeout": 60.0, **settings},
    )

    def length(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("length", len(trajectory.answer.split()), 1.0),))

    async def main() -> EvalReport:
        with anyio.fail_after(120):
            return await heldout.evaluate(SAMPLES, config, length)

    return anyio.run(main)


def test_a_served_model_answers_as_the_same_model_in_this_process(
    served: Served, tmp_path: Path
) -> None:
    theirs = evaluated(f"openai:{served.model}@{served.url}", tmp_path / "served")
    ours = evaluated(f"hf:{served.model}", tmp_path / "local")
    assert theirs.summary["n_scored"] == ours.summary["n_scored"] == len(SAMPLES)
    assert [r.trajectory.answer for r in theirs.results] == [
        r.trajectory.answer for r in ours.results
    ]
    assert len({r.trajectory.answer for r in theirs.results}) > 6
    assert theirs.summary["mean"] == ours.summary["mean"] > 0
    for result in theirs.results:
        assert isinstance(result.trajectory.usage, Usage)
        assert result.trajectory.usage.completion_tokens > 0
        assert result.trajectory.timing is not None
        assert result.trajectory.timing.requests == 1
    assert [r.trajectory.stop.truncated for r in theirs.results] == [
        r.trajectory.stop.truncated for r in ours.results
    ]
    described = {"kind": "openai", "model": served.model, "base_url": served.url}
    assert theirs.config["endpoint"] == described


@pytest.mark.parametrize(
    ("api", "stream"), [("openai", True), ("openai-responses", False), ("openai-responses", True)]
)
def test_another_api_and_a_stream_give_the_same_answers(
    served: Served, tmp_path: Path, api: str, stream: bool
) -> None:
    sampling = Sampling(max_tokens=8, stream=stream)
    plain = evaluated(f"openai:{served.model}@{served.url}", tmp_path / "plain")
    endpoint = f"{api}:{served.model}@{served.url}"
    other = evaluated(endpoint, tmp_path / "other", sampling=sampling)
    assert other.summary["n_scored"] == len(SAMPLES)
    for theirs, ours in zip(other.results, plain.results, strict=True):
        assert theirs.trajectory.answer == ours.trajectory.answer
        assert theirs.trajectory.usage == ours.trajectory.usage


def test_a_model_that_is_not_served_ends_the_run_early(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This server says no more of it than of anything else, and hangs up."""
    monkeypatch.setattr("heldout.models.retries._FIRST_WAIT", 0.01)
    before, name = served.posts(), "nobody/no-such-model"
    with pytest.raises(SystemicFailure, match=f"is '{name}' served"):
        evaluated(f"openai:{name}@{served.url}", tmp_path, retries=2, repeats=100)
    journal = (tmp_path / "run" / "results.jsonl").read_text()
    assert "answered 500: Internal Server Error" in journal
    assert 0 < served.posts() - before <= (10 + 4) * 3  # and not 1200 items, three times each
