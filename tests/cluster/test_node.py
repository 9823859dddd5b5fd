"""An EvalWorker on another node: the same points as one on this machine, and what it is told."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from heldout import EvalReport, Sample
from heldout.cluster import RayNode
from heldout.cluster.node import Relay
from heldout.errors import InvalidInput
from heldout.training import EvalWorker
from heldout.training.run_eval import Measured, Task
from tests.training.worker_policy import Network

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
POLICY = f"{ROOT / 'tests' / 'training' / 'worker_policy.py'}:policy"


def make_task(run_dir: Path, *questions: str, step: int = 3) -> Task:
    samples = [Sample(f"s{i}", {"question": text}, text) for i, text in enumerate(questions)]
    return Task(
        step=step,
        samples=samples,
        size=len(samples),
        runner_builder=None,
        run_dir=run_dir,
        pass_threshold=0.5,
        seed=0,
        keep_going=lambda done, total: True,
    )


def measure(worker: EvalWorker, model: Any, task: Task) -> Measured:
    snapshot = worker.try_snapshot(model, step=task.step)
    assert snapshot is not None
    try:
        measured = worker.measure(task, snapshot)
    finally:
        snapshot.release()
    assert isinstance(measured, Measured)
    return measured


@pytest.fixture
def worker(cluster: Any) -> Iterator[EvalWorker]:
    # The tests' own modules are not installed: the whole project travels.
    with EvalWorker(POLICY, on=RayNode(working_dir=ROOT)) as made:
        yield made


def test_a_worker_on_a_node_measures_what_one_on_this_machine_does(
    worker: EvalWorker, tmp_path: Path
) -> None:
    model = Network(3.0)
    questions = [str(i) for i in range(6)]
    state = random.getstate(), torch.random.get_rng_state().tolist(), np.random.get_state()[2]
    there = measure(worker, model, make_task(tmp_path / "there", *questions))
    assert (random.getstate(), torch.random.get_rng_state().tolist(), np.random.get_state()[2]) == (
        state
    )
    with EvalWorker(POLICY) as local:
        here = measure(local, model, make_task(tmp_path / "here", *questions))
    assert there.skipped is None
    assert there.summary == here.summary
    assert there.weights == here.weights
    assert there.run == "steps/00000003"
    report = EvalReport.load(tmp_path / "there" / "steps" / "00000003")
    assert [result.sample_id for result in report.results] == [f"s{i}" for i in range(6)]
    # The next weights, at a step that has conversations already.
    with torch.no_grad():
        model.knows.fill_(5.0)
    again = measure(worker, model, make_task(tmp_path / "there", *questions))
    assert again.run == "steps/00000003-2"
    assert again.summary is not None
    assert here.summary is not None
    assert again.summary["mean"] > here.summary["mean"]
    assert again.weights != here.weights


def test_a_worker_that_dies_is_a_skip_and_the_next_eval_has_another_one(
    worker: EvalWorker, tmp_path: Path
) -> None:
    died = measure(worker, Network(3.0), make_task(tmp_path, "1", "exit 7"))
    assert died.skipped is not None
    assert "ended by itself, with exit code 7" in died.skipped
    assert "about to leave" in died.skipped
    assert "about to leave" in (tmp_path / "worker.log").read_text()
    assert measure(worker, Network(3.0), make_task(tmp_path, "1", "2")).skipped is None


def test_a_relay_that_dies_is_a_skip_and_takes_its_worker_along(
    worker: EvalWorker, tmp_path: Path
) -> None:
    assert measure(worker, Network(3.0), make_task(tmp_path, "1")).skipped is None
    pid = worker.pid
    assert pid is not None
    relay = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(relay, signal.SIGKILL)
    gone = measure(worker, Network(3.0), make_task(tmp_path, "1"))
    assert gone.skipped is not None
    assert "the eval worker on the cluster is gone" in gone.skipped
    assert measure(worker, Network(3.0), make_task(tmp_path, "1")).skipped is None


def test_a_connection_that_is_lost_is_a_skip_and_the_next_eval_has_another_one(
    worker: EvalWorker, cluster: Any, tmp_path: Path
) -> None:
    import ray

    assert measure(worker, Network(3.0), make_task(tmp_path, "1")).skipped is None
    ray.shutdown()
    try:
        gone = measure(worker, Network(3.0), make_task(tmp_path, "1"))
        assert not ray.is_initialized()  # no cluster was started here
    finally:
        ray.init(cluster.address, logging_level=logging.WARNING, log_to_driver=False)
    assert gone.skipped == (
        "the eval worker on the cluster is gone: Ray was shut down in this process"
    )
    assert measure(worker, Network(3.0), make_task(tmp_path, "1")).skipped is None


def test_weights_that_arrive_changed_are_refused() -> None:
    with pytest.raises(ValueError, match="another hash"):
        Relay().load(0, np.zeros(8, dtype=np.uint8), "0" * 64)


def test_a_node_that_is_not_there_is_a_skip_that_says_what_is(cluster: Any, tmp_path: Path) -> None:
    with EvalWorker(POLICY, on=RayNode(node="nowhere", working_dir=ROOT)) as worker:
        measured = measure(worker, Network(1.0), make_task(tmp_path, "1"))
    assert measured.skipped is not None
    assert "there is no node 'nowhere'" in measured.skipped
    with EvalWorker(POLICY, on=RayNode(num_gpus=1)) as worker:
        measured = measure(worker, Network(1.0), make_task(tmp_path, "1"))
    assert measured.skipped is not None
    assert "room for 0 workers of 1 CPU, 1 GPU" in measured.skipped


def test_a_file_outside_of_the_folder_that_travels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is outside of"):
        RayNode(working_dir=tmp_path).start(POLICY, {}, [], tmp_path / "worker.log")
    with pytest.raises(InvalidInput, match="num_gpus is a finite number from 0"):
        RayNode(num_gpus=-1)
