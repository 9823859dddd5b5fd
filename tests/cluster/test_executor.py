"""Evals on a cluster: what a local run gives, whatever happens to workers, nodes and driver."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
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
from tests.cluster.conftest import NODE, connect

pytestmark = pytest.mark.integration

EVALS = Path(evals.__file__)
ONE = RayExecutor(workers=1)


def run(
    samples: Any,
    out: Path,
    *,
    backend: str = "asyncio",
    executor: Any = RayExecutor(workers=2),  # noqa: B008
    score_fn: Any = evals.exact,
    environment_factory: Any = None,
    **settings: Any,
) -> EvalReport:
    defaults = {"endpoint": evals.answer, "experiment_name": "run", "output_dir": str(out)}
    call = partial(
        evaluate,
        samples,
        EvalConfig(**{**defaults, "max_error_rate": 1, **settings}),
        score_fn,
        environment_factory=environment_factory,
        executor=executor,
    )
    return anyio.run(call, backend=backend)


run_here = partial(run, executor=None)


def keys_of(journal: Path) -> Counter[tuple[str, int]]:
    """Count the lines of each item, those without an error."""
    records = map(json.loads, journal.read_text().splitlines()[1:])
    return Counter(
        (record["sample"]["id"], record.get("repeat", 0))
        for record in records
        if record.get("error") is None
    )


# --- As a local run -----------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_the_report_is_that_of_a_local_run_byte_for_byte(out: Path) -> None:
    samples = evals.make_samples(40)
    here = run_here(samples, out, score_fn=evals.mixed, experiment_name="here", repeats=2)
    there = run(samples, out, score_fn=evals.mixed, repeats=2)
    assert (out / "run/summary.json").read_bytes() == (out / "here/summary.json").read_bytes()
    assert there.summary["n_errors"] == 8
    errors = [result.error for result in there.results]
    assert errors == [result.error for result in here.results]
    assert "(evals.py, line" in next(error for error in errors if error)
    assert there.config["endpoint"] == here.config["endpoint"]


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_a_run_that_stops_stops_there_as_it_does_here(out: Path) -> None:
    samples = evals.make_samples(60)
    settings = {"until": "mean>0.3", "max_concurrent": 6}
    here = run_here(samples, out, experiment_name="here", **settings)
    there = run(samples, out, **settings)
    assert here.settled is not None
    assert here.settled.is_early
    assert (out / "run/summary.json").read_bytes() == (out / "here/summary.json").read_bytes()
    assert there.settled is not None
    assert there.settled.sentence == here.settled.sentence


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_a_run_on_a_cluster_is_resumed_on_one_machine_and_the_other_way_round(out: Path) -> None:
    samples = evals.make_samples(30)
    run(samples[:10], out, backend="trio")
    run_here(samples[:20], out, resume=True)
    report = run(samples, out, backend="trio", resume=True)
    assert report.summary["n"] == 30
    assert set(keys_of(out / "run" / "results.jsonl").values()) == {1}


@pytest.mark.heavy
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
        executor=RayExecutor(workers=3),
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


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_an_endpoint_that_refuses_every_request_ends_the_run(out: Path) -> None:
    with pytest.raises(SystemicFailure, match="401: no such key"):
        run(evals.make_samples(500), out, endpoint=evals.refusing_answer, executor=ONE)


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_items_that_time_out_or_cannot_be_stored_are_errors_as_in_a_local_run(out: Path) -> None:
    report = run(
        evals.make_samples(6),
        out,
        endpoint=evals.late_answer,
        score_fn=evals.unstorable,
        timeout=0.5,
        executor=ONE,
    )
    errors = {result.sample_id: str(result.error) for result in report.results if result.error}
    assert errors.keys() == {"s1", "s2"}
    assert errors["s1"] == "timeout: not done after 0.5 s (in endpoint)"
    assert errors["s2"].startswith("store: the result of sample 's2' holds a value")


@pytest.mark.heavy
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
                    executor=ONE,
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


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_an_item_that_kills_its_worker_three_times_errors_and_the_others_are_scored(
    out: Path,
) -> None:
    report = run(evals.make_samples(20), out, endpoint=evals.deadly_answer, max_concurrent=8)
    errors = {result.sample_id: result.error for result in report.results if result.error}
    assert errors.keys() == {"s3"}
    assert "worker: it died 3 times" in str(errors["s3"])
    assert report.summary["n_scored"] == 19
    assert report.summary["metric_correct"] == 1.0


@pytest.mark.heavy
def test_random_deaths_of_workers_and_nodes_lose_no_item_and_repeat_none(
    cluster: Any, out: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    samples = evals.make_samples(160, log=str(log))
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
        for number, trouble in enumerate(("kill", "leave", "kill", "join"), start=1):
            lines = evals.wait_for(log, 50 * number)
            if trouble == "leave":
                cluster.remove_node(chance.choice(cluster.list_all_nodes()[1:]))
            elif trouble == "join":
                cluster.add_node(**NODE)
            else:
                pids = sorted({line.split()[2] for line in lines[-30:]})
                with suppress(ProcessLookupError):  # it was of the node that is gone
                    os.kill(int(chance.choice(pids)), signal.SIGKILL)
        report = running.result()
    assert report.summary["n"] == 160
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
executor = RayExecutor(sys.argv[1], workers=1)
anyio.run(partial(evaluate, samples, config, evals.exact, executor=executor))
"""


@pytest.mark.heavy
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


@pytest.mark.heavy
@pytest.mark.parametrize("reconnects", [False, True])
def test_a_connection_that_is_lost_ends_the_run_which_is_resumed_to_the_same_report(
    cluster: Any, out: Path, reconnects: bool
) -> None:
    import ray

    samples = evals.make_samples(300)
    settings: dict[str, Any] = {"endpoint": evals.slow_answer, "max_concurrent": 6}
    journal = out / "run" / "results.jsonl"
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(run, samples, out, executor=ONE, **settings)
        evals.wait_for(journal, 30)
        ray.shutdown()
        try:
            if reconnects:
                connect(cluster)
            with pytest.raises(ClusterLost, match="connection to the cluster was lost"):
                running.result(timeout=120)
            assert ray.is_initialized() == reconnects  # no new cluster was started here
        finally:
            if not ray.is_initialized():
                connect(cluster)
    stopped = json.loads((out / "run" / "run.json").read_text())
    assert (stopped["status"], stopped["reason"][:11]) == ("failed", "ClusterLost")
    if reconnects:
        return
    before = journal.read_text().splitlines()
    run(samples, out, resume=True, executor=ONE, **settings)
    assert journal.read_text().splitlines()[: len(before)] == before
    assert keys_of(journal) == Counter((f"s{i}", 0) for i in range(300))
    run_here(samples, out, experiment_name="here", **settings)
    assert (out / "run/summary.json").read_bytes() == (out / "here/summary.json").read_bytes()


FAULTS = {
    "submit is forgotten": "has not received items that it was sent",
    "submit never returns": "has not received items that it was sent",
    "collect never returns": "has not replied",
    "items never end": "no item has ended",
}


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_loses_a_call_is_replaced_and_its_items_are_run_again(
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for fault in FAULTS:
        (tmp_path / fault).touch()

    class FaultyWorker(ItemWorker):
        """Has one of the faults, if there is one left that no worker has had."""

        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.fault = ""
            for fault in FAULTS:
                if not self.fault:
                    with suppress(FileNotFoundError):
                        (tmp_path / fault).unlink()
                        self.fault = fault

        def submit(self, jobs: bytes) -> None:
            if self.fault == "items never end":
                self._loop._wake = lambda function: None
            elif self.fault == "submit never returns":
                threading.Event().wait()
            if self.fault != "submit is forgotten":
                super().submit(jobs)

        def collect(self) -> bytes:
            if self.fault == "collect never returns":
                threading.Event().wait()
            return super().collect()

    monkeypatch.setattr(executor, "ItemWorker", FaultyWorker)
    monkeypatch.setattr(executor, "LOST_SECONDS", 4.0)
    workers = RayExecutor(workers=len(FAULTS))
    report = run(evals.make_samples(40), out, max_concurrent=8, timeout=1.0, executor=workers)
    assert {reason for reason in FAULTS.values() if reason in caplog.text} == {*FAULTS.values()}
    assert caplog.text.count(FAULTS["submit is forgotten"]) == 2
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


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_a_score_function_that_is_another_one_on_the_workers_is_refused(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(evals.rewards, "s0", 1.0)  # as a script does after its import
    with pytest.raises(InvalidInput, match="its score_fn is not that .*: the dict rewards differs"):
        run(evals.make_samples(2), out, score_fn=evals.look_up, executor=ONE)
    assert not out.exists()


@pytest.mark.heavy
def test_a_cluster_of_its_own_that_is_not_up_in_time_is_started_again(tmp_path: Path) -> None:
    code = """
        import time
        from types import SimpleNamespace

        import psutil
        import ray._private.node as node

        from heldout.cluster._ray import connected

        # Ray waits 30 seconds for a node. On this clock they pass at once.
        clock = iter(range(0, 10**6, 31))
        node.time = SimpleNamespace(**vars(time) | {"monotonic": lambda: next(clock)})
        get_node, asked = node.ray._private.services.get_node, []

        def late(*arguments):
            asked.append(None)
            if len(asked) == 1:
                raise RuntimeError("not yet")
            node.time = time
            return get_node(*arguments)

        node.ray._private.services.get_node = late
        with connected("local") as ray:
            assert len(asked) >= 2
            raylets = [p for p in psutil.Process().children(recursive=True) if p.name() == "raylet"]
            assert len(raylets) == 1, raylets
            print(ray.get(ray.remote(lambda: 7).remote()))
    """
    script = tmp_path / "start.py"
    script.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("7")
    assert "Ray did not start, and is started again" in done.stderr


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
    with pytest.raises(InvalidInput, match=r"needs Ray.*pip install 'ray\[default\]>="):
        run(evals.make_samples(2), out)


@pytest.mark.heavy
def test_another_cluster_than_this_process_is_connected_to_is_refused(
    cluster: Any, out: Path
) -> None:
    with pytest.raises(InvalidInput, match=f"connected to the Ray cluster at {cluster.address}"):
        run(evals.make_samples(2), out, executor=RayExecutor("127.0.0.1:1"))


def test_a_worker_with_another_model_or_version_is_named(caplog: pytest.LogCaptureFixture) -> None:
    pool = executor.WorkerPool.__new__(executor.WorkerPool)
    pool._first_info, pool._copies = None, {}
    own = executor.own_versions()
    for node, versions, model in (("a", own, "1"), ("b", {**own, "heldout": "9.9"}, "1")):
        assert pool._accept(executor.WorkerInfo(node, 1, versions, {"version": model}))
    assert not pool._accept(executor.WorkerInfo("c", 3, own, {"version": "2"}))
    assert "on c cannot run the eval: its model is not that of a" in pool._start_problem
    assert f"on b runs heldout 9.9, this process {own['heldout']}" in caplog.text


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_an_eval_that_no_worker_can_run_is_refused_with_the_reason(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-driver")
    with pytest.raises(InvalidInput, match="cannot run the eval: .*OPENAI_API_KEY"):
        run(evals.make_samples(2), out, endpoint="openai:gpt-5-mini", executor=ONE)
    assert not out.exists()


@pytest.mark.heavy
@pytest.mark.usefixtures("cluster")
def test_more_than_the_cluster_has_is_refused_with_what_it_has(out: Path) -> None:
    with pytest.raises(InvalidInput, match=r"room for 0 workers of 1 CPU, 1 GPU.*nodes \(.*2 CPU"):
        run(evals.make_samples(2), out, executor=RayExecutor(gpus_per_worker=1))
    with pytest.raises(InvalidInput, match="1000 were asked for"):
        run(evals.make_samples(2), out, executor=RayExecutor(workers=1000))
    with pytest.raises(InvalidInput, match="takes no CPU, GPU or other resource"):
        run(evals.make_samples(2), out, executor=RayExecutor(cpus_per_worker=0))


def test_a_function_that_cannot_be_sent_is_refused_before_anything_starts(out: Path) -> None:
    with pytest.raises(InvalidInput, match=r"score_fn .* cannot be sent"):
        run(evals.make_samples(2), out, score_fn=lambda trajectory, sample: 1.0)
    with pytest.raises(InvalidInput, match="save_turns"):
        run(evals.make_samples(2), out, save_turns=True)
    assert not out.exists()
