"""An eval worker that hosts vLLM: every point is of the weights that were sent for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from heldout import Sample
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.training import EvalWorker
from heldout.training.measuring import Measured, Task, measure
from heldout.training.ranks import Alone
from tests.integration.vllm import worker_policy
from tests.integration.vllm.conftest import MODEL
from tests.tiny_model import WORDS, tiny_model

pytestmark = pytest.mark.integration

SAMPLES = [Sample(f"s{i}", {"question": " ".join(WORDS[i : i + 3])}) for i in range(6)]


@pytest.fixture(scope="module")
def worker(folder: str) -> Iterator[EvalWorker]:
    environment = {"HELDOUT_TEST_FOLDER": folder, "PYTHONWARNINGS": None}
    spec = f"{worker_policy.__file__}:policy"
    with EvalWorker(spec, engine="vllm", environment=environment) as worker:
        yield worker


def task(home: Path, samples: list[Sample] = SAMPLES, step: int = 1) -> Task:
    return Task(
        step=step,
        samples=samples,
        size=len(samples),
        runner_builder=None,
        run_dir=home,
        pass_threshold=0.5,
        seed=3,
        keep_going=lambda done, total: True,
    )


def evaluated(worker: EvalWorker, model: Any, task: Task) -> Any:
    snapshot = worker.try_snapshot(model, step=task.step)
    assert snapshot is not None
    try:
        return worker.measure(task, snapshot)
    finally:
        snapshot.release()


def turns(measured: Measured) -> list[str]:
    assert measured.skipped is None
    return [r.trajectory.last_turn.text for r in measured.results if r.trajectory.last_turn]


def test_each_point_is_of_the_weights_that_were_sent(worker: EvalWorker, tmp_path: Path) -> None:
    """The turns are those of the model in training, before, after, and back again."""
    model, tokenizer = tiny_model(**MODEL)
    build = worker_policy.builder(tokenizer)
    seen = []
    for step, factor in enumerate([1.0, -1.0, -1.0]):
        with torch.no_grad():
            for parameter in model.model.layers.parameters():
                parameter.mul_(factor)
        here = replace(task(tmp_path / "here", step=step), runner_builder=build)
        inline = measure(here, model, Alone())
        measured = evaluated(worker, model, task(tmp_path / "worker", step=step))
        assert isinstance(inline, Measured)
        assert turns(measured) == turns(inline)
        assert measured.weights == inline.weights == fingerprint(model)
        assert measured.decoding is not None
        assert (measured.decoding["engine"], measured.decoding["dtype"]) == ("vllm", "float32")
        seen.append((measured.weights, turns(measured)))
    assert seen[0] == seen[2] != seen[1]
    assert seen[0][1] != seen[1][1]


def test_weights_that_do_not_fit_are_a_skip_and_never_the_last_ones(
    worker: EvalWorker, tmp_path: Path
) -> None:
    smaller, _ = tiny_model(**MODEL)
    del smaller.model.layers[1]
    measured = evaluated(worker, smaller, task(tmp_path))
    assert "no weights for" in (measured.skipped or "")
    assert measured.summary is None
    assert measured.weights is None


def test_an_engine_that_dies_is_a_skip_and_the_next_eval_has_another(
    worker: EvalWorker, tmp_path: Path
) -> None:
    model, _ = tiny_model(**MODEL)
    assert turns(evaluated(worker, model, task(tmp_path, SAMPLES[:1])))
    listed = subprocess.run(["ps", "-o", "pid=,args=", "-g", str(worker.pid)], capture_output=True)
    [engine] = [line for line in listed.stdout.decode().splitlines() if "EngineCore" in line]
    os.kill(int(engine.split()[0]), signal.SIGKILL)
    measured = evaluated(worker, model, task(tmp_path))
    assert "engine" in (measured.skipped or "")
    assert measured.summary is None


def test_what_it_cannot_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="engine must be 'transformers' or 'vllm'"):
        EvalWorker(f"{worker_policy.__file__}:policy", engine="sglang")  # type: ignore[arg-type]
