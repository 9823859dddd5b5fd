"""Ray: workers, nodes, the head, the driver and the connection are lost in the middle of a run.

Where a worker or a node is gone the run goes on; where the cluster is gone it fails, in words, and
is resumed on another one. Either way it ends in the report of a run on one machine.
"""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

from torture import evals
from torture.children import Child, Ended, run_child
from torture.kills import Attacks, Mode, facts_of_run, heldout, journal_lines
from torture.trials import Finding, Journal, Trial, scratch

PART, COUNT, SEED = "ray", 10, 11
SAMPLES = 200
SECONDS = 300.0
"""A node that is gone is noticed after a while, a cluster that is gone after another one."""
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}
SIZE = ["-T", f"count={SAMPLES}", "-T", "how=slowly", "--set", "repeats=1"]
MODE = Mode(
    "ray",
    lambda: _write_eval(),
    partial(heldout, "run", "eval.py", "--name", "run", *SIZE, "--max-concurrent", "300"),
    lambda: 0,
    partial(facts_of_run, "run"),
)


def _write_eval() -> None:
    Path("eval.py").write_text(Path(evals.__file__).read_text())


# --- A cluster ----------------------------------------------------------------------------------


class Nodes:
    """Three nodes on this machine, in a child that does what files ask for."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self._place = folder, place
        self._child = Child(self._hold, folder)
        self.address = self._wait_for("address").read_text()

    def _wait_for(self, name: str) -> Path:
        path, deadline = self.folder / name, time.monotonic() + SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {name} of the cluster: {self._child.wait(0).explain()}")
            time.sleep(0.05)
        return path

    def _hold(self) -> None:
        from ray.cluster_utils import Cluster

        # Two clusters that start at once may pick the same port.
        with Path(tempfile.gettempdir(), "heldout-tests-ray.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            cluster = Cluster(
                initialize_head=True, head_node_args={**NODE, "include_dashboard": False}
            )
            others = [cluster.add_node(**NODE) for _ in range(2)]
        Path("address.tmp").write_text(cluster.address)
        Path("address.tmp").rename("address")
        while not Path("stop").exists():
            if Path("lose-node").exists():
                Path("lose-node").unlink()
                cluster.remove_node(others.pop(), allow_graceful=False)
            if Path("lose-head").exists():
                Path("lose-head").unlink()
                cluster.remove_node(cluster.head_node, allow_graceful=False)
            time.sleep(0.02)
        cluster.shutdown()

    def ask(self, what: str) -> None:
        (self.folder / what).touch()

    def pids(self, title: str) -> list[int]:
        """Processes of this cluster whose title has this."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                of_ours = str(self._place).encode() in (folder / "environ").read_bytes()
                if of_ours and title.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return sorted(found)

    def close(self) -> None:
        self.ask("stop")
        self._child.wait(60)
        for pid in self.pids(""):
            if pid != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextmanager
def nodes(folder: Path) -> Iterator[Nodes]:
    """A cluster, while it is needed."""
    place = Path(tempfile.mkdtemp(prefix="h-"))  # names of sockets must be short
    before = {name: os.environ.get(name) for name in ("RAY_TMPDIR", *ENVIRONMENT)}
    os.environ.update(ENVIRONMENT, RAY_TMPDIR=str(place))
    folder.mkdir()
    started = None
    try:
        started = Nodes(folder, place)
        yield started
    finally:
        if started is not None:
            started.close()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(place, ignore_errors=True)


# --- What is lost -------------------------------------------------------------------------------


def _drive(address: str, *more: str, lose_connection: Callable[[], bool] | None = None) -> int:
    if lose_connection is not None:

        def lose() -> None:
            import ray

            while not lose_connection():
                time.sleep(0.01)
            ray.shutdown()

        threading.Thread(target=lose, daemon=True).start()
    given = ["--on", address, "--workers", "3", "--max-concurrent", "9", *SIZE]
    return heldout("run", "eval.py", "--name", "run", *given, *more)


def _has_lines(folder: Path, lines: int) -> bool:
    return journal_lines(folder) >= lines


def _await_lines(folder: Path, lines: int) -> bool:
    deadline = time.monotonic() + SECONDS
    while not _has_lines(folder, lines) and time.monotonic() < deadline:
        time.sleep(0.01)
    return _has_lines(folder, lines)


CASES = ("worker killed", "node lost", "head lost", "driver killed", "connection lost")


def make_trials(scale: float, journal: Journal) -> Iterator[Trial]:
    """Yield the trials of all losses."""
    with scratch("ray") as folder:

        @cache
        def start() -> Attacks:
            return Attacks(MODE, folder / "mode", "")

        for case in CASES:
            for number in range(max(1, round(COUNT * scale))):
                yield Trial(PART, case, number, partial(_lose, case, number, start))


def _lose(case: str, number: int, start: Callable[[], Attacks]) -> Finding:
    attacks, finding = start(), Finding()
    rng = random.Random(f"{SEED}:{case}:{number}")
    folder, moment = attacks.fresh("trial"), rng.randrange(10, 60)
    with nodes(folder / "cluster") as cluster:
        enough = partial(_has_lines, folder, moment)
        losing = enough if case == "connection lost" else None
        driver = Child(partial(_drive, cluster.address, lose_connection=losing), folder)
        if not _await_lines(folder, moment):
            finding.add("hang", f"it did not get far: {driver.wait(0).explain()}")
            return finding
        if case == "worker killed":
            for pid in rng.sample(cluster.pids("ray::ItemWorker"), 1):
                os.kill(pid, signal.SIGKILL)
        elif case in ("node lost", "head lost"):
            cluster.ask(f"lose-{case.split()[0]}")
        elif case == "driver killed":
            driver.kill()
        ended = driver.wait(SECONDS)
        _judge(case, ended, finding)
        if ended.code == 0:
            finding.marks.append("went on")
        else:
            finding.marks.append("resumed")
            if case != "head lost":
                again = run_child(
                    partial(_drive, cluster.address, "--resume"), folder, seconds=SECONDS
                )
                attacks.blame(again, "resumed on the same cluster", finding)
    if case == "head lost" and ended.code != 0:
        (folder / "cluster").rename(folder / "lost")
        with nodes(folder / "cluster") as cluster:
            again = run_child(partial(_drive, cluster.address, "--resume"), folder, seconds=SECONDS)
            attacks.blame(again, "resumed on another cluster", finding)
    attacks.compare(folder, finding)
    return finding


def _judge(case: str, ended: Ended, finding: Finding) -> None:
    wanted = {"driver killed": (-signal.SIGKILL,), "head lost": (0, 4), "connection lost": (0, 4)}
    if ended.hung:
        finding.add("hang", ended.explain())
    elif "Traceback" in ended.err:
        finding.add("traceback", ended.explain())
    elif ended.code not in wanted.get(case, (0,)):
        finding.add("other", ended.explain())
