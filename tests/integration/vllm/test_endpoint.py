"""`vllm:PATH`: vLLM's async engine beside this process, compared with `hf:PATH` in float32."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout
from heldout import EvalConfig, Message, Sample, Sampling, ToolSpec
from heldout.errors import ContextFull, FatalEndpointError, InvalidInput, SystemicFailure
from heldout.models import open_endpoint
from heldout.models.http import HTTPEndpoint
from heldout.models.local import LocalEndpoint
from heldout.models.vllm import VLLMEndpoint
from heldout.store.run_dir import package_versions
from heldout.types import Continuation
from tests.integration.vllm.conftest import SETTINGS
from tests.tiny_model import WORDS
from tests.tolerances import near

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def endpoint(folder: str) -> Iterator[VLLMEndpoint]:
    endpoint = VLLMEndpoint(folder, **SETTINGS)
    yield endpoint
    anyio.run(endpoint.close)
    assert not engines()


@pytest.fixture(scope="module")
def peer(folder: str) -> Iterator[LocalEndpoint]:
    endpoint = LocalEndpoint.load(folder)
    yield endpoint
    anyio.run(endpoint.close)


def engines() -> list[Any]:
    return [c for c in multiprocessing.active_children() if c.name.startswith("EngineCore")]


def ask(
    endpoint: Any, text: str, sampling: Sampling, tools: Any = (), backend: str = "asyncio"
) -> Any:
    async def main() -> Any:
        with anyio.fail_after(900):
            return await endpoint.complete([Message("user", text)], sampling, tools)

    return anyio.run(main, backend=backend)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(max_tokens=16), Sampling(max_tokens=30, stop=("w3", "w55")), Sampling()],
    ids=["greedy", "stop", "default"],
)
def test_turns_are_those_of_hf(
    endpoint: VLLMEndpoint, peer: LocalEndpoint, sampling: Sampling
) -> None:
    """Text, finish reason and usage; under trio, too."""
    tool = ToolSpec("w9", "w8")
    for place, tools in [(0, ()), (7, ()), (20, (tool,))]:
        text = " ".join(WORDS[place : place + 5])
        expected = ask(peer, text, sampling, tools)
        assert ask(endpoint, text, sampling, tools, "trio") == expected
        assert expected.usage.completion_tokens > 0


def test_a_seed_makes_a_sampled_turn_repeatable(endpoint: VLLMEndpoint) -> None:
    def sampled(seed: int | None) -> str:
        return str(ask(endpoint, "w1 w2", Sampling(1.0, max_tokens=16, seed=seed)).message.text)

    assert sampled(5) == sampled(5)
    assert len({sampled(5), sampled(6), sampled(None), sampled(None)}) == 4


def test_likelihoods_are_those_of_hf(endpoint: VLLMEndpoint, peer: LocalEndpoint) -> None:
    async def rate(rater: Any, prompt: Any, texts: list[str]) -> Any:
        return await rater.loglikelihood(prompt, texts)

    conversation = [Message("user", "w1 w2 w3")]
    for prompt in ("w1 w2 w3", "w4 ", "", conversation):
        texts = [" w4", " w5 w6", " w7 w8 w9 w1"]
        mine, theirs = (anyio.run(rate, each, prompt, texts) for each in (endpoint, peer))
        for one, other in zip(mine, theirs, strict=True):
            assert one.logprob == near(other.logprob)
            assert (one.greedy, one.tokens, one.bytes) == (other.greedy, other.tokens, other.bytes)
    greedy = ask(peer, "w1 w2 w3", Sampling(max_tokens=2)).message.text
    [likely] = anyio.run(rate, endpoint, conversation, [f" {greedy}"])
    assert likely.greedy
    with pytest.raises(ContextFull, match="rates up to 255"):
        anyio.run(rate, endpoint, " ".join(["w1"] * 253), [" w2 w3 w4"])


def settings(endpoint: Any, tmp_path: Path, **changes: Any) -> EvalConfig:
    return EvalConfig(
        endpoint,
        experiment_name="run",
        output_dir=str(tmp_path),
        progress=False,
        sampling=Sampling(max_tokens=8),
        **changes,
    )


def evaluate(samples: list[Sample], score_fn: Any, config: EvalConfig) -> Any:
    return anyio.run(heldout.evaluate, samples, config, score_fn)


def scored(trajectory: Any, sample: Sample) -> float:
    return 1.0


def test_an_answer_that_does_not_say_its_weights_is_an_error_where_they_were_sent(
    endpoint: VLLMEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.output_processor import RequestState

    engine, sampling = endpoint._engine, Sampling(max_tokens=4)
    pair = Continuation("w1 w2", " w3")
    expected = ask(endpoint, "w1 w2", sampling)
    engine.call(lambda: engine._engine.update_weight_version("abc")).result()
    monkeypatch.setattr(engine, "version", "abc")
    assert ask(endpoint, "w1 w2", sampling) == expected
    monkeypatch.setattr(RequestState, "track_weight_version", lambda self, version: None)
    with pytest.raises(FatalEndpointError, match="did not say which weights"):
        ask(endpoint, "w1 w2", sampling)
    with pytest.raises(FatalEndpointError, match="did not say which weights"):
        anyio.run(endpoint.rate, [pair])
    monkeypatch.setattr(engine, "version", None)  # of a folder, none is demanded
    assert ask(endpoint, "w1 w2", sampling) == expected


def test_a_request_that_fails_is_the_error_of_its_item(
    endpoint: VLLMEndpoint, peer: LocalEndpoint, tmp_path: Path
) -> None:
    texts = ["w1 w2", " ".join(["w1"] * 260), "forbidden", "w3"]
    answers = [ask(peer, text, Sampling(max_tokens=8)).message.text for text in ("w1 w2", "w3")]
    samples = [Sample(f"s{i}", {"question": text}) for i, text in enumerate(texts)]
    report = evaluate(samples, scored, settings(endpoint, tmp_path, max_error_rate=1))
    assert (report.summary["n"], report.summary["n_errors"]) == (4, 2)
    right = [result for result in report.results if result.ok]
    assert [r.trajectory.last_turn.text for r in right] == answers
    assert report.config["endpoint"]["kind"] == "vllm"
    assert report.config["endpoint"]["version"]
    assert "vllm" in package_versions()


def test_when_the_engine_dies_its_items_are_errors_and_another_can_be_started(
    folder: str, endpoint: VLLMEndpoint, tmp_path: Path
) -> None:
    ask(endpoint, "w1", Sampling(max_tokens=2))
    before = dict(os.environ)
    [engine] = engines()
    samples = [Sample(f"s{i}", {"question": WORDS[i]}, "w1") for i in range(4)]

    def killing(trajectory: Any, sample: Sample) -> float:
        engine.kill()
        engine.join()
        return 1.0

    config = settings(endpoint, tmp_path, max_concurrent=1)
    with pytest.raises(SystemicFailure, match="has ended in the middle of its work"):
        evaluate(samples, killing, config)
    report = heldout.EvalReport.load(tmp_path / "run")
    assert [result.ok for result in report.results] == [True, False]
    assert report.summary["mean"] is None  # half of them errored
    with pytest.raises(FatalEndpointError):
        ask(endpoint, "w1", Sampling(max_tokens=2))
    anyio.run(endpoint.close)
    assert not engines()
    # Another engine in the same process.
    report = evaluate(samples, scored, replace(config, experiment_name="next"))
    assert (report.summary["n"], report.summary["n_errors"]) == (4, 0)
    assert dict(os.environ) == before


def test_a_name_without_a_folder_is_a_model_of_the_server(folder: str, tmp_path: Path) -> None:
    assert isinstance(open_endpoint("vllm:llama", max_concurrent=1), HTTPEndpoint)
    assert isinstance(open_endpoint(f"vllm:{folder}@http://h/v1", max_concurrent=1), HTTPEndpoint)
    opened = open_endpoint(f"vllm:{folder}?max_model_len=32&dtype=float32", max_concurrent=1)
    assert opened.describe()["settings"] == {"max_model_len": 32, "dtype": "float32"}
    for name, problem in {
        f"vllm:{folder}?max_len=32": "'max_len' is no setting of vLLM's engine",
        f"vllm:{folder}?32": "NAME=VALUE",
        f"vllm:{tmp_path}/nothing": "there is no folder",
    }.items():
        with pytest.raises(InvalidInput, match=problem):
            open_endpoint(name, max_concurrent=1)
    with pytest.raises(InvalidInput, match="for servers"):
        EvalConfig(endpoint=f"vllm:{folder}", sampling=Sampling(stream=True))


EVAL = """
from heldout import EvalConfig, Sample, Sampling
def load_dataset():
    return [Sample(f"s{i}", {"question": f"w{i % 50}"}, "w1") for i in range(400)]
config = EvalConfig(sampling=Sampling(max_tokens=200), max_concurrent=2)
def score_fn(trajectory, sample):
    return 1.0
"""


def test_ctrl_c_ends_the_engine_and_records_no_error(folder: str, tmp_path: Path) -> None:
    (tmp_path / "quiz.py").write_text(EVAL)
    model = f"vllm:{folder}?enforce_eager=true&dtype=float32&max_num_seqs=4"
    command = [sys.executable, "-m", "heldout", "run", "quiz.py", "--model", model]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    journals: list[Path] = []
    try:
        deadline = time.monotonic() + 240
        while not any(path.read_bytes().count(b"\n") > 3 for path in journals):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
            journals = list(tmp_path.rglob("results.jsonl"))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(60) == 130
        lines = journals[0].read_text().splitlines()[1:]
        assert lines
        assert not [line for line in lines if '"error":"' in line]
        wait_until_gone(process.pid)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def wait_until_gone(group: int) -> None:
    """Until no process is left of a group; children of an ended process end a moment later."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("processes are left")
