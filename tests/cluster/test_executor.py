"""Evals on a cluster: what a local run gives, whatever happens to workers, nodes and driver."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import EvalConfig, EvalReport, Sample, evaluate
from heldout.cluster import RayExecutor, executor
from heldout.cluster._ray import ClusterLost
from heldout.cluster.worker import ItemWorker
from heldout.errors import InvalidInput, SystemicFailure
from tests.cluster import evals
from tests.cluster.conftest import NODE

pytestmark = pytest.mark.integration

EVALS = Path(evals.__file__)


def run(
    samples: Any, out: Path, *, backend: str = "asyncio", executor: Any = None, **settings: Any
) -> EvalReport:
    hooks = {
        name: settings.pop(name)
        for name in ("score_fn", "prepare_messages", "environment_factory")
        if name in settings
    }
    defaults = {"endpoint": evals.answer, "experiment_name": "run", "output_dir": str(out)}
    call = partial(
        evaluate,
        samples,
        EvalConfig(**{**defaults, "max_error_rate": 1, **settings}),
        **{"score_fn": evals.exact, **hooks},
        executor=executor or RayExecutor(workers=3),
    )
    return anyio.run(call, backend=backend)


def keys_of(journal: Path) -> Counter[tuple[str, int]]:
    """Count the lines of each item, those without an error."""
    records = map(json.loads, journal.read_text().splitlines()[1:])
    return Counter(
        (record["sample"]["id"], record.get("repeat", 0))
        for record in records
        if record.get("error") is None
    )


# --- As a local run -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.usefixtures("cluster")
def test_the_report_is_that_of_a_local_run_byte_for_byte(out: Path, backend: str) -> None:
    samples = evals.make_samples(40)
    settings: dict[str, Any] = {"score_fn": evals.mixed, "repeats": 2}
    here = anyio.run(
        partial(
            evaluate,
            samples,
            EvalConfig(endpoint=evals.answer, output_dir=str(out), experiment_name="h", repeats=2),
            evals.mixed,
        )
    )
    there = run(samples, out, backend=backend, **settings)
    assert here.path is not None
    assert there.path is not None
    assert (there.path / "summary.json").read_bytes() == (here.path / "summary.json").read_bytes()
    assert there.summary["n_errors"] == 8
    errors = [result.error for result in there.results]
    assert errors == [result.error for result in here.results]
    assert "(evals.py, line" in next(error for error in errors if error)
    assert there.config["endpoint"] == here.config["endpoint"]


@pytest.mark.usefixtures("cluster")
def test_a_run_on_a_cluster_is_resumed_on_one_machine_and_the_other_way_round(out: Path) -> None:
    samples = evals.make_samples(30)
    run(samples[:10], out)
    config = EvalConfig(
        endpoint=evals.answer, output_dir=str(out), experiment_name="run", resume=True
    )
    anyio.run(partial(evaluate, samples[:20], config, evals.exact))
    report = run(samples, out, resume=True)
    assert report.summary["n"] == 30
    assert set(keys_of(out / "run" / "results.jsonl").values()) == {1}


@pytest.mark.usefixtures("cluster")
def test_samples_are_pulled_as_they_are_needed_and_no_more_than_max_concurrent_run(
    out: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    pulled = 0

    def stream() -> Iterator[Sample]:
        nonlocal pulled
        for sample in evals.make_samples(60, log=str(log)):
            closed = log.read_text().count("close") if log.exists() else 0
            assert pulled - closed <= 7 + 1
            pulled += 1
            yield sample

    run(
        stream(),
        out,
        endpoint=evals.slow_answer,
        environment_factory=evals.met,
        max_concurrent=7,
    )
    open_items = most = 0
    pids = set()
    for line in log.read_text().splitlines():
        event, _, pid = line.split()
        open_items += 1 if event == "open" else -1
        most = max(most, open_items)
        pids.add(pid)
    assert 3 <= most <= 7
    assert len(pids) == 3


@pytest.mark.usefixtures("cluster")
def test_an_endpoint_that_refuses_every_request_ends_the_run(out: Path) -> None:
    with pytest.raises(SystemicFailure, match="cannot answer any request.*401: no such key"):
        run(evals.make_samples(500), out, endpoint=evals.refusing_answer)


@pytest.mark.usefixtures("cluster")
def test_items_that_time_out_or_cannot_be_stored_are_errors_as_in_a_local_run(out: Path) -> None:
    report = run(
        evals.make_samples(6),
        out,
        endpoint=evals.late_answer,
        score_fn=evals.unstorable,
        timeout=1.0,
        max_error_rate=1.0,
        executor=RayExecutor(workers=1),
    )
    errors = {result.sample_id: str(result.error) for result in report.results if result.error}
    assert errors.keys() == {"s1", "s2"}
    assert errors["s1"] == "timeout: not done after 1 s (in endpoint)"
    assert errors["s2"].startswith("store: the result of sample 's2' holds a value")


@pytest.mark.usefixtures("cluster")
def test_a_run_that_is_cancelled_closes_the_environments_of_its_workers(
    out: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    samples = evals.make_samples(6, log=str(log))

    async def main() -> None:
        config = EvalConfig(
            endpoint=evals.endless_answer, experiment_name="run", output_dir=str(out)
        )
        async with anyio.create_task_group() as group:
            group.start_soon(
                partial(
                    evaluate,
                    samples,
                    config,
                    evals.exact,
                    environment_factory=evals.logged,
                    executor=RayExecutor(workers=2),
                )
            )
            await anyio.to_thread.run_sync(evals.wait_for, log, 6)
            group.cancel_scope.cancel()

    anyio.run(main)
    assert Counter(line.split()[0] for line in log.read_text().splitlines()) == {
        "open": 6,
        "close": 6,
    }
    assert EvalReport.load(out / "run").status == "interrupted"


# --- Faults -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
def test_an_item_that_kills_its_worker_three_times_errors_and_the_others_are_scored(
    out: Path,
) -> None:
    report = run(evals.make_samples(40), out, endpoint=evals.deadly_answer, max_concurrent=12)
    errors = {result.sample_id: result.error for result in report.results if result.error}
    assert errors.keys() == {"s0", "s25"}
    assert all("worker: it died 3 times" in str(error) for error in errors.values())
    assert report.summary["n_scored"] == 38
    assert report.summary["metric_correct"] == 1.0


def test_random_deaths_of_workers_and_nodes_lose_no_item_and_repeat_none(
    cluster: Any, out: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    samples = evals.make_samples(250, log=str(log))
    chance = random.Random(5)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(
            run,
            samples,
            out,
            endpoint=evals.slow_answer,
            environment_factory=evals.logged,
            max_concurrent=10,
            executor=RayExecutor(),
        )
        # In the main thread, since Ray starts nodes in no other.
        for trouble in range(6):
            lines = evals.wait_for(log, 50 * (trouble + 1))
            if trouble == 1:
                cluster.remove_node(chance.choice(cluster.list_all_nodes()[1:]))
            elif trouble == 3:
                cluster.add_node(**NODE)
            else:
                pids = sorted({line.split()[2] for line in lines[-30:]})
                with suppress(ProcessLookupError):  # it was of the node that is gone
                    os.kill(int(chance.choice(pids)), signal.SIGKILL)
        report = running.result()
    assert report.summary["n"] == 250
    lines = (out / "run" / "results.jsonl").read_text().splitlines()[1:]
    written = Counter(json.loads(line)["sample"]["id"] for line in lines)
    assert written == Counter(sample.id for sample in samples)
    errors = [result.error for result in report.results if result.error]
    assert all("worker: it died" in error for error in errors)


SCRIPT = """
import logging, sys, anyio
from functools import partial
from pathlib import Path
sys.path[:0] = [{root!r}, {folder!r}]
logging.basicConfig()
from heldout import EvalConfig, evaluate
from heldout.cluster import RayExecutor
from tests.cluster import evals

config = EvalConfig(
    endpoint=evals.slow_answer, experiment_name="run", output_dir={out!r}, max_concurrent=4,
    resume=Path({out!r}, "run").exists(),
)
samples = evals.make_samples(100)
executor = RayExecutor(sys.argv[1], workers=2)
anyio.run(partial(evaluate, samples, config, evals.exact, executor=executor))
"""


def test_a_driver_that_is_killed_is_resumed_without_repeating_an_item(
    cluster: Any, out: Path, tmp_path: Path
) -> None:
    script = tmp_path / "driver.py"
    places = {"root": str(EVALS.parents[2]), "folder": str(EVALS.parent), "out": str(out)}
    script.write_text(SCRIPT.format(**places))
    journal = out / "run" / "results.jsonl"
    with subprocess.Popen([sys.executable, script, cluster.address]) as first:
        before = evals.wait_for(journal, 30)
        first.kill()
    host = cluster.address.rpartition(":")[0]
    client = f"ray://{host}:{cluster.head_node._ray_params.ray_client_server_port}"
    resumed = subprocess.run(
        [sys.executable, script, client], capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr
    report = EvalReport.load(out / "run")
    assert report.summary["n"] == 100
    assert journal.read_text().splitlines()[: len(before)] == before
    assert keys_of(journal) == Counter((f"s{i}", 0) for i in range(100))


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_connection_that_is_lost_ends_the_run_which_is_resumed_to_the_same_report(
    cluster: Any, out: Path, reconnects: bool
) -> None:
    import ray

    samples = evals.make_samples(300)
    settings: dict[str, Any] = {"endpoint": evals.slow_answer, "max_concurrent": 6}
    journal = out / "run" / "results.jsonl"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run, samples, out, **settings)
        evals.wait_for(journal, 30)
        ray.shutdown()
        try:
            if reconnects:
                ray.init(cluster.address, logging_level=logging.WARNING, log_to_driver=False)
            with pytest.raises(ClusterLost, match="connection to the cluster was lost"):
                running.result(timeout=120)
            assert ray.is_initialized() == reconnects  # no new cluster was started here
        finally:
            if not ray.is_initialized():
                ray.init(cluster.address, logging_level=logging.WARNING, log_to_driver=False)
    stopped = json.loads((out / "run" / "run.json").read_text())
    assert stopped["status"] == "failed"
    assert stopped["reason"].startswith("ClusterLost: the connection to the cluster was lost")
    before = journal.read_text().splitlines()
    resumed = run(samples, out, resume=True, **settings)
    assert journal.read_text().splitlines()[: len(before)] == before
    assert keys_of(journal) == Counter((f"s{i}", 0) for i in range(300))
    whole = run(samples, out, experiment_name="whole", **settings)
    assert resumed.path is not None
    assert whole.path is not None
    summaries = [(path / "summary.json").read_bytes() for path in (resumed.path, whole.path)]
    assert summaries[0] == summaries[1]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("submit is forgotten", "has not received items that it was sent"),
        ("submit never returns", "has not received items that it was sent"),
        ("collect never returns", "has not replied"),
        ("items never end", "no item has ended"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_loses_a_call_is_replaced_and_its_items_are_run_again(
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    reason: str,
) -> None:
    once = tmp_path / "once"

    class FaultyWorker(ItemWorker):
        """Has the fault once: in the first of all workers that comes to it."""

        def _is_faulty(self, kind: str) -> bool:
            if not fault.startswith(kind):
                return False
            try:
                once.touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        def submit(self, jobs: bytes) -> None:
            if self._is_faulty("items"):
                self._loop._wake = lambda function: None
            elif self._is_faulty("submit"):
                if fault == "submit never returns":
                    threading.Event().wait()
                return
            super().submit(jobs)

        def collect(self) -> bytes:
            if self._is_faulty("collect"):
                threading.Event().wait()
            return super().collect()

    monkeypatch.setattr(executor, "ItemWorker", FaultyWorker)
    monkeypatch.setattr(executor, "LOST_SECONDS", 5.0)
    report = run(evals.make_samples(40), out, max_concurrent=6, timeout=5.0)
    assert reason in caplog.text
    assert report.summary["n_scored"] == 40
    assert keys_of(out / "run" / "results.jsonl") == Counter((f"s{i}", 0) for i in range(40))


def test_a_worker_that_gets_more_items_at_once_than_a_message_holds_is_not_taken_for_hung() -> None:
    worker = executor._RayWorker(0.0)
    for number, sample in enumerate(evals.make_samples(executor.SUBMIT_ITEMS + 1)):
        item = executor.Item(number, sample, 0, b"")
        worker.assign(executor._PendingItem(number, item, b"", anyio.Event()))
    worker.note_sent(executor.SUBMIT_ITEMS)
    worker.note_sent(1)
    worker.check_alive(executor.SUBMIT_ITEMS + 1, timeout=60.0)


def test_a_worker_whose_model_is_another_one_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    pool = executor.WorkerPool.__new__(executor.WorkerPool)
    pool._first_info, pool._copies = None, {}
    info = executor.WorkerInfo("a", 1, executor.own_versions(), {"version": "1"})
    assert pool._accept(info)
    assert pool._accept(executor.WorkerInfo("b", 2, executor.own_versions(), {"version": "1"}))
    assert not pool._accept(executor.WorkerInfo("c", 3, executor.own_versions(), {"version": "2"}))
    assert "on c cannot run the eval: its model is not that of a" in pool._start_problem


@pytest.mark.usefixtures("cluster")
def test_a_score_function_that_is_another_one_on_the_workers_is_refused(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(evals.rewards, "s0", 1.0)  # as a script does after its import
    with pytest.raises(InvalidInput, match="its score_fn is not that .*: the dict rewards differs"):
        run(evals.make_samples(2), out, score_fn=evals.look_up)
    assert not out.exists()


# --- Bad input ----------------------------------------------------------------------------------


def test_an_address_without_a_cluster_is_refused_at_once(
    out: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.sendall(b"220 mail ready")

        other = threading.Thread(target=answer)
        other.start()
        with pytest.raises(InvalidInput, match=f"no Ray cluster at 127.0.0.1:{port}: .*is no Ray"):
            run(evals.make_samples(2), out, executor=RayExecutor(f"127.0.0.1:{port}"))
        other.join()
    with pytest.raises(InvalidInput, match="no Ray cluster at .*Connection refused"):
        run(evals.make_samples(2), out, executor=RayExecutor(f"ray://127.0.0.1:{port}"))
    with pytest.raises(InvalidInput, match="no Ray cluster on this machine.*ray start --head"):
        run(evals.make_samples(2), out, executor=RayExecutor("auto"))
    with pytest.raises(InvalidInput, match="is HOST:PORT, ray://HOST:PORT, auto or local"):
        run(evals.make_samples(2), out, executor=RayExecutor("somewhere"))
    assert time.monotonic() - began < 10


def test_without_ray_the_extra_is_named(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"needs Ray.*pip install 'heldout\[ray\]'"):
        run(evals.make_samples(2), out)


def test_another_cluster_than_this_process_is_connected_to_is_refused(
    cluster: Any, out: Path
) -> None:
    with pytest.raises(InvalidInput, match=f"connected to the Ray cluster at {cluster.address}"):
        run(evals.make_samples(2), out, executor=RayExecutor("127.0.0.1:1"))


@pytest.mark.usefixtures("cluster")
def test_a_worker_with_another_version_is_named(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "own_versions", lambda: {"heldout": "9.9"})
    run(evals.make_samples(2), out, executor=RayExecutor(workers=1))
    assert "runs heldout 0.1.0, this process 9.9" in caplog.text


@pytest.mark.usefixtures("cluster")
def test_an_eval_that_no_worker_can_run_is_refused_with_the_reason(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-driver")
    with pytest.raises(InvalidInput, match="cannot run the eval: .*OPENAI_API_KEY"):
        run(evals.make_samples(2), out, endpoint="openai:gpt-5-mini")
    assert not out.exists()


@pytest.mark.usefixtures("cluster")
def test_more_than_the_cluster_has_is_refused_with_what_it_has(out: Path) -> None:
    with pytest.raises(InvalidInput, match=r"room for 0 workers of 1 CPU, 1 GPU.*nodes \(.*2 CPU"):
        run(evals.make_samples(2), out, executor=RayExecutor(gpus_per_worker=1))
    with pytest.raises(InvalidInput, match="1000 were asked for"):
        run(evals.make_samples(2), out, executor=RayExecutor(workers=1000))
    with pytest.raises(InvalidInput, match="takes no CPU, GPU or other resource"):
        run(evals.make_samples(2), out, executor=RayExecutor(cpus_per_worker=0))


def test_a_function_that_cannot_travel_is_refused_before_anything_starts(out: Path) -> None:
    with pytest.raises(InvalidInput, match=r"score_fn .* cannot travel"):
        run(evals.make_samples(2), out, score_fn=lambda trajectory, sample: 1.0)
    with pytest.raises(InvalidInput, match="save_turns"):
        run(evals.make_samples(2), out, save_turns=True)
    assert not out.exists()
