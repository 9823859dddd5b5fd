"""An EvalWorker on another node: the same points as one on this machine, and what it is told."""

from __future__ import annotations

import os
import random
import re
import shutil
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
from heldout.training.measuring import Measured, Task
from tests.cluster.conftest import connect
from tests.training.worker_policy import Network

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[1]
POLICY = f"{TESTS / 'training' / 'worker_policy.py'}:policy"


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


def measure(worker: EvalWorker, task: Task, model: Any = None) -> Measured:
    snapshot = worker.try_snapshot(model or Network(3.0), step=task.step)
    try:
        return worker.measure(task, snapshot)
    finally:
        snapshot.release()


@pytest.fixture(scope="module")
def worker(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvalWorker]:
    # The tests' own modules are not installed: they are sent along.
    folder = tmp_path_factory.mktemp("project")
    for name in ("tiny_model.py", "training/worker_policy.py"):
        (folder / "tests" / name).parent.mkdir(exist_ok=True)
        shutil.copy(TESTS / name, folder / "tests" / name)
    policy = f"{folder / 'tests' / 'training' / 'worker_policy.py'}:policy"
    with EvalWorker(policy, on=RayNode(working_dir=folder)) as made:
        yield made


def random_state() -> Any:
    return random.getstate(), torch.random.get_rng_state().tolist(), np.random.get_state()[2]


@pytest.mark.heavy
def test_a_worker_on_a_node_measures_what_one_on_this_machine_does(
    worker: EvalWorker, tmp_path: Path
) -> None:
    model = Network(3.0)
    questions = [str(i) for i in range(6)]
    state = random_state()
    there = measure(worker, make_task(tmp_path / "there", *questions), model)
    assert random_state() == state
    with EvalWorker(POLICY) as local:
        here = measure(local, make_task(tmp_path / "here", *questions), model)
    assert there.skipped is None
    assert (there.summary, there.weights) == (here.summary, here.weights)
    assert there.run == "steps/00000003"
    report = EvalReport.load(tmp_path / "there" / "steps" / "00000003")
    assert [result.sample_id for result in report.results] == [f"s{i}" for i in range(6)]
    # The next weights, at a step that has conversations already.
    with torch.no_grad():
        model.knows.fill_(5.0)
    again = measure(worker, make_task(tmp_path / "there", *questions), model)
    assert again.run == "steps/00000003-2"
    assert again.summary["mean"] > here.summary["mean"]
    assert again.weights != here.weights


def leave(worker: EvalWorker) -> None:
    pass  # the question has it leave


def kill_relay(worker: EvalWorker) -> None:
    relay = int(Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(relay, signal.SIGKILL)


def shut_down(worker: EvalWorker) -> None:
    import ray

    ray.shutdown()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("trouble", "question", "said"),
    [
        (leave, "exit 7", r"ended by itself, with exit code 7.*about to leave"),
        (kill_relay, "1", "the eval worker on the cluster is gone"),
        (shut_down, "1", "cluster is gone: Ray was shut down in this process$"),
    ],
)
def test_a_worker_that_is_gone_is_a_skip_and_the_next_eval_has_another_one(
    worker: EvalWorker, cluster: Any, tmp_path: Path, trouble: Any, question: str, said: str
) -> None:
    import ray

    assert measure(worker, make_task(tmp_path, "1")).skipped is None
    trouble(worker)
    gone = measure(worker, make_task(tmp_path, "1", question))
    assert re.search(said, gone.skipped, re.DOTALL)
    if trouble is shut_down:
        assert not ray.is_initialized()  # no cluster was started here
        connect(cluster)
    assert measure(worker, make_task(tmp_path, "1")).skipped is None


def test_weights_that_arrive_changed_are_refused() -> None:
    with pytest.raises(ValueError, match="another hash"):
        Relay().load(0, np.zeros(8, dtype=np.uint8), "0" * 64)


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_a_node_that_is_not_there_is_a_skip_that_says_what_is(tmp_path: Path) -> None:
    for node, said in (
        (RayNode(node="nowhere"), "there is no node 'nowhere'"),
        (RayNode(num_gpus=1), "room for 0 workers of 1 CPU, 1 GPU"),
    ):
        with EvalWorker(POLICY, on=node) as worker:
            assert said in str(measure(worker, make_task(tmp_path, "1")).skipped)


def test_a_file_outside_of_the_folder_that_is_sent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is outside of"):
        RayNode(working_dir=tmp_path).start(POLICY, {}, [], tmp_path / "worker.log")
    with pytest.raises(InvalidInput, match="num_gpus must be a finite number from 0"):
        RayNode(num_gpus=-1)
