"""Connecting to a Ray cluster, and what it has."""

from __future__ import annotations

import atexit
import logging
import math
import os
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from heldout._core.aio import waker
from heldout._core.checks import check_number, check_text
from heldout._core.extras import missing_extra
from heldout.errors import EvalFailed, InvalidInput

log = logging.getLogger("heldout")

PROBE_SECONDS = 5.0
CONNECT_TRIES = 3
TRY_AGAIN = ("Initialization failure from server", "timed out during startup")
"""What Ray says if the process that serves a client died as it started, or if a new node was not up
within 30 seconds, as on a busy machine."""
SHUTDOWN_SECONDS = 30.0
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What a gRPC client sends first. A gRPC server answers with a SETTINGS frame, whose type is 4."""


def import_ray() -> Any:
    """Import Ray.

    Raises:
        InvalidInput: It is not installed.
    """
    try:
        import ray
    except ImportError as missing:
        raise missing_extra(
            f"running on a cluster needs Ray ({missing.name} is missing)", "ray"
        ) from None
    return ray


def find_token() -> str:
    """Find the token of the user's clusters, where Ray looks for it; empty where there is none."""
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    if not token:
        default = Path.home() / ".ray" / "auth_token"
        with suppress(OSError):
            token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", default)).read_text().strip()
    return token


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect this process to a cluster, unless it is connected.

    Args:
        address: HOST:PORT of the cluster's head, ray://HOST:PORT, "auto" for the cluster on this
            machine or in RAY_ADDRESS, "local" for a new one on this machine that ends with the
            block. None is the cluster that this process is connected to, or else "auto".

    Yields:
        The module `ray`.

    Raises:
        InvalidInput: There is no cluster at the address, or it runs other versions.
    """
    ray = import_ray()
    if ray.is_initialized():
        own = ray.get_runtime_context().gcs_address
        if address is not None and ":" in address and "://" not in address and address != own:
            raise InvalidInput(
                f"this process is connected to the Ray cluster at {own}, not {address}: "
                "ray.shutdown() first, or leave the address out"
            )
        yield ray
        return
    address = address or "auto"
    if address != "local":
        _probe(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    _initialize(ray, address, options)
    try:
        yield ray
    finally:
        _disconnect(ray)


def _disconnect(ray: Any) -> None:
    """Shut Ray down; where its head does not answer, that would never end."""
    shutdown = threading.Thread(target=ray.shutdown, name="heldout-ray", daemon=True)
    shutdown.start()
    shutdown.join(SHUTDOWN_SECONDS)
    if shutdown.is_alive():
        log.warning("Ray has not disconnected from its cluster in %g s", SHUTDOWN_SECONDS)
        atexit.unregister(ray.shutdown)


def _initialize(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    for tries_left in reversed(range(CONNECT_TRIES)):
        try:
            ray.init(address, logging_level=logging.WARNING, **options)
            return
        except Exception as problem:  # noqa: BLE001 - raised bare if its own processes do not start
            reason = " ".join(str(problem).split())
            _end_half_started(problem)
        if not tries_left or not any(text in reason for text in TRY_AGAIN):
            break
        log.warning("Ray did not start, and is started again: %s", reason)
        ray.shutdown()
        time.sleep(1)
    if address == "local":
        raise InvalidInput(f"Ray did not start on this machine: {reason}")
    if os.environ.get("RAY_AUTH_MODE") != "token":
        # Not set here: in a cluster without tokens, no worker would start.
        reason += "; if it asks for a token, set RAY_AUTH_MODE=token before Ray is imported"
    raise InvalidInput(f"cannot connect to a Ray cluster at {address}: {reason}")


def _end_half_started(problem: BaseException) -> None:
    """End the processes of a node that Ray gave up on, since Ray itself leaves them running.

    Nothing refers to that node but the frames of the error.
    """
    for frame, _ in traceback.walk_tb(problem.__traceback__):
        node: Any = frame.f_locals.get("self")
        if hasattr(node, "kill_all_processes") and hasattr(node, "all_processes"):
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def _probe(address: str) -> None:
    """Refuse an address at which no Ray answers: Ray itself would try for minutes."""
    target = address
    if address == "auto":
        target = os.environ.get("RAY_ADDRESS") or _current_cluster()
        if not target:
            raise InvalidInput(
                "there is no Ray cluster on this machine, and RAY_ADDRESS is not set: start one "
                "with `ray start --head`, or name its address (HOST:PORT or ray://HOST:PORT)"
            )
    host, _, port = target.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InvalidInput(
            f"the address of a Ray cluster is HOST:PORT, ray://HOST:PORT, auto or local, "
            f"got {address!r}"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), PROBE_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") not in ("0", ""):
                return
            connection.settimeout(PROBE_SECONDS)
            connection.sendall(HTTP2_PREFACE)
            if connection.recv(9)[3:4] == b"\4":
                return
            reason = "what answers there is no Ray"
    except TimeoutError:
        reason = f"nothing answered within {PROBE_SECONDS:g} s"
    except OSError as problem:
        reason = problem.strerror or str(problem)
    raise InvalidInput(
        f"there is no Ray cluster at {target}: {reason}. `ray start --head` says which address to "
        "give"
    )


def _current_cluster() -> str:
    """Return the address recorded by the last `ray start` on this machine."""
    folder = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray")
    try:
        return (folder / "ray_current_cluster").read_text().strip()
    except OSError:
        return ""


# --- What a cluster has -------------------------------------------------------------------------


def count_fitting(ray: Any, need: Mapping[str, float]) -> int:
    """Count the workers that the nodes of a cluster have room for, whatever else runs on them.

    Args:
        ray: The module, connected.
        need: What one worker takes.
    """
    fits = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits += int(min(has.get(name, 0.0) / amount for name, amount in need.items() if amount))
    return fits


def check_resources(resources: Any) -> None:
    """Refuse custom resources that are not numbers by name.

    Args:
        resources: What one worker takes, besides CPUs and GPUs.

    Raises:
        InvalidInput: They are something else.
    """
    if not isinstance(resources, Mapping):
        raise InvalidInput(f"resources must be numbers by name, got {resources!r:.200}")
    for name, amount in resources.items():
        check_number(f"resource {name!r}", amount, low=0)


def check_working_dir(folder: Any) -> None:
    """Refuse a path that is not a folder; None stands for the eval file's folder."""
    if not isinstance(folder, Path):
        check_text("working_dir", folder, optional=True)


def check_fits(ray: Any, need: Mapping[str, float], workers: int | None) -> None:
    """Refuse workers that the cluster has no room for.

    Args:
        ray: The module, connected.
        need: What one worker takes.
        workers: How many are asked for; None is as many as there is room for.

    Raises:
        InvalidInput: There are not so many CPUs, GPUs or other resources, or a worker takes none.
    """
    if not any(need.values()):
        raise InvalidInput(
            "a worker that takes no CPU, GPU or other resource would fit any number of times: "
            "0 CPUs are for workers that take a GPU or a custom resource"
        )
    room = count_fitting(ray, need)
    if room >= (workers or 1):
        return
    wanted = ", ".join(f"{amount:g} {name}" for name, amount in need.items() if amount)
    raise InvalidInput(
        f"the cluster has room for {room} workers of {wanted} each, and {workers or 1} "
        f"{'were' if (workers or 1) > 1 else 'was'} asked for; it has {describe_cluster(ray)}"
    )


def describe_cluster(ray: Any) -> str:
    """Return what the nodes of a cluster have, for a message."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    parts = []
    for node in nodes[:8]:
        has = {
            name: amount
            for name, amount in node["Resources"].items()
            if not name.startswith(("node:", "object_store_memory", "memory"))
        }
        text = ", ".join(f"{amount:g} {name}" for name, amount in sorted(has.items()))
        parts.append(f"{node['NodeManagerAddress']}: {text or 'nothing'}")
    more = f", and {len(nodes) - 8} more" if len(nodes) > 8 else ""
    return f"{len(nodes)} node{'s' * (len(nodes) != 1)} ({'; '.join(parts)}{more})"


# --- Calls, and the connection they go over -----------------------------------------------------


def call(ray: Any, method: Any, *arguments: Any) -> Any:
    """Call a method of an actor on the current connection.

    Args:
        ray: The module.
        method: The method of the actor's handle.
        *arguments: Its arguments.

    Raises:
        ConnectionError: There is no connection, or not the actor's.
        RayError: Ray refuses the call.
    """
    check_connected(ray)
    try:
        return method.remote(*arguments)
    except ray.exceptions.RayError:
        raise
    except Exception as problem:  # Ray has no class for an actor of another connection
        raise ConnectionError(f"the call could not be made: {problem}") from problem


def check_connected(ray: Any) -> None:
    """Raise ConnectionError without a connection: most calls would start a new cluster here."""
    if not ray.is_initialized():
        raise ConnectionError("Ray was shut down in this process")


def name_session(ray: Any) -> str:
    """Return an id unique to this connection: the cluster's address and the job id."""
    check_connected(ray)
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_node_id()} {context.get_job_id()}"


async def get(ref: Any, seconds: float = math.inf) -> Any:
    """Wait for what a call to an actor returns, under asyncio or trio.

    Args:
        ref: The call's ObjectRef.
        seconds: How long.

    Raises:
        TimeoutError: It has not returned; after `ray.shutdown()` no call does.
        Exception: What it raised, or that its actor has died.
    """
    done, wake = anyio.Event(), waker()
    future = ref.future()
    notify: Callable[[Any], None] = lambda _: wake(done.set)  # noqa: E731
    future.add_done_callback(notify)
    with anyio.move_on_after(seconds):
        await done.wait()
    if not done.is_set():
        raise TimeoutError(f"it has not replied for {seconds:g} s")
    return future.result()


def explain_death(problem: BaseException) -> str:
    """Return on one line why an actor has died, as Ray tells it."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:"))]
    return " ".join(told)[:600] or type(problem).__name__


class ClusterLost(EvalFailed):
    """The connection to the cluster was lost, or it has no worker left. The run can be resumed."""
