"""A Ray cluster of three nodes on this machine, for all tests of this folder."""

from __future__ import annotations

import fcntl
import logging
import socket
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # as `heldout run` does for an eval file's folder

NODE: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="session", autouse=True)
def _quiet_ray() -> Iterator[None]:
    """Keep Ray's files out of the places it shares with others, and its processes quiet."""
    # Not below pytest's: names of sockets must be short.
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="h-", ignore_cleanup_errors=True) as folder,
    ):
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DEDUP_LOGS", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        # A node that is gone is noticed in about two seconds, instead of half a minute.
        patch.setenv("RAY_health_check_initial_delay_ms", "1000")
        patch.setenv("RAY_health_check_period_ms", "500")
        patch.setenv("RAY_health_check_failure_threshold", "4")
        yield


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def starting_ray() -> Iterator[None]:
    """Hold off other test processes: two clusters that start at once may pick the same port."""
    with (Path(tempfile.gettempdir()) / "heldout-tests-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def connect(nodes: Any) -> None:
    import ray

    ray.init(nodes.address, logging_level=logging.WARNING, log_to_driver=False)


@pytest.fixture(scope="package")
def cluster(_quiet_ray: None) -> Iterator[Any]:
    """Three nodes of two CPUs; this process is connected to them."""
    import ray
    from ray.cluster_utils import Cluster

    head = {**NODE, "include_dashboard": False, "ray_client_server_port": free_port()}
    with starting_ray(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of files that Ray leaves open
        nodes = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            nodes.add_node(**NODE)
    connect(nodes)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where run directories go."""
    return tmp_path / "runs"
