"""RayNode: an EvalWorker on another node of a cluster.

    worker = EvalWorker("evals.py:policy", on=RayNode("auto", num_gpus=1))

On the node, a relay starts the same worker process that a training run starts on its own machine,
with the same connection and shared memory between the two, so that everything said of workers holds
there. Between the machines weights go through Ray's object store, and their hash is checked before
they are loaded. What the worker prints, and the conversations it saves, come back with its answers.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import logging
import os
import shutil
import socket
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from heldout._core.checks import check_number, check_text
from heldout.cluster._ray import (
    call,
    check_connected,
    check_fits,
    check_resources,
    check_working_dir,
    connected,
    describe_cluster,
    explain_death,
)
from heldout.cluster.packaging import remove_folder, unpack_folder, zip_folder
from heldout.cluster.worker import own_versions
from heldout.errors import InvalidInput
from heldout.store.jsonl import open_to_append
from heldout.training.background.worker.client import (
    LOG,
    LOG_BYTES,
    LOG_LINES,
    POLL_SECONDS,
    LocalProcess,
    WorkerGone,
    WorkerProcess,
    worker_environment,
)
from heldout.training.background.worker.messages import (
    CallFunction,
    EvalDone,
    EvaluateModel,
    LoadWeights,
    WorkerMessage,
    WorkerReply,
    decode_answer,
    decode_request,
    encode,
)
from heldout.training.background.worker.weight_buffer import WeightBuffer, create_memory, fill
from heldout.training.curve.curve_file import reserve_name

log = logging.getLogger("heldout")

STEPS = "steps"
CALL_SECONDS = 600.0
"""How long the node may take to start, to receive weights, and to return conversations."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node of a Ray cluster for an EvalWorker to run on."""

    address: str | None = None
    """HOST:PORT, ray://HOST:PORT or "auto"; None is the cluster that this process is connected to,
    or else "auto"."""
    node: str | None = None
    """Its name, address or id; None leaves it to Ray to find one that has room."""
    num_gpus: float = 0.0
    num_cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    working_dir: str | Path | None = None
    """The folder sent to the node; by default that of the worker's file."""

    def __post_init__(self) -> None:
        check_text("address", self.address, optional=True)
        check_text("node", self.node, optional=True)
        check_working_dir(self.working_dir)
        for name in ("num_gpus", "num_cpus"):
            check_number(name, getattr(self, name), low=0)
        check_resources(self.resources)

    def start(
        self,
        spec: str,
        environment: Mapping[str, str | None],
        buffers: Sequence[WeightBuffer],
        log: Path,
    ) -> WorkerProcess:
        """Start a worker on the node; `EvalWorker` calls it.

        Args:
            spec: "file.py:function" or "module:function".
            environment: Variables added to those of the node; None removes one.
            buffers: Hold the snapshots of weights.
            log: Where what it prints is kept.

        Raises:
            InvalidInput: There is no such cluster or node, or it has no room.
            WorkerGone: It does not start.
        """
        source, _, name = spec.rpartition(":")
        folder = None if self.working_dir is None else Path(self.working_dir).resolve()
        if source.endswith(".py"):
            file = Path(source).resolve()
            folder = folder or file.parent
            if not file.is_relative_to(folder):
                raise InvalidInput(f"{file} is outside of {folder}, which is sent to the node")
            spec = f"{file.relative_to(folder).as_posix()}:{name}"
        return _NodeProcess(self, spec, folder, environment, buffers, log)

    def find_node(self, ray: Any) -> str | None:
        """Find the id of the node.

        Args:
            ray: The module, connected.

        Returns:
            The id; None where any will do.

        Raises:
            InvalidInput: There is no such node.
        """
        if self.node is None:
            return None
        for node in ray.nodes():
            names = (node["NodeID"], node["NodeManagerAddress"], node.get("NodeName"))
            if node["Alive"] and self.node in names:
                return str(node["NodeID"])
        raise InvalidInput(
            f"there is no node {self.node!r} in the cluster: {describe_cluster(ray)}"
        )


class RelayInfo(msgspec.Struct):
    """Description of a relay whose worker process has started."""

    node: str
    pid: int
    versions: dict[str, str]
    folder: str
    run_dir: str
    """Where its evals save conversations, until they are fetched."""


class RelayUpdate(msgspec.Struct):
    """What has happened on the node since the last poll."""

    answer: msgspec.Raw = msgspec.Raw(b"null")
    log: str = ""
    """What was printed."""
    gone: str | None = None
    """Why the worker's process has ended."""


# --- On the node --------------------------------------------------------------------------------


class Relay:
    """Runs a worker's process on this node. Ray makes an actor of it; nothing here knows Ray."""

    def start(self, archive: bytes | None, environment: dict[str, str | None], slots: int) -> bytes:
        """Start the process.

        Args:
            archive: The folder to unpack, as a zip file.
            environment: Variables added to this process's own; None removes one.
            slots: How many snapshots there may be at once.

        Returns:
            A `RelayInfo`.
        """
        folder = Path.cwd() if archive is None else unpack_folder(archive)
        self._run_dir = Path(tempfile.mkdtemp(prefix="heldout-node-"))
        self._memory = [create_memory() for _ in range(slots)]
        log = self._run_dir / LOG
        self._process = LocalProcess(worker_environment(os.environ, environment), self._memory, log)
        self._log_read = 0
        pid = self._process.pid
        info = RelayInfo(socket.gethostname(), pid, own_versions(), str(folder), str(self._run_dir))
        return encode(info)

    def load(self, slot: int, content: Any, sha256: str) -> None:
        """Receive the weights of a snapshot.

        Args:
            slot: Which of the buffers they go into.
            content: An array of bytes.
            sha256: Their hash, as they were sent.

        Raises:
            ValueError: Their hash does not match.
        """
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ValueError("the weights arrived with another hash than they were sent with")
        fill(self._memory[slot], content)

    def send(self, request: bytes) -> None:
        """Pass a request on to the process."""
        with suppress(WorkerGone):  # which `receive` tells
            self._process.send(decode_request(request))

    def receive(self) -> bytes:
        """Wait a moment for an answer.

        Returns:
            `RelayUpdate`.
        """
        update = RelayUpdate()
        try:
            content = self._process.receive_bytes()
            if content is not None:
                update.answer = msgspec.Raw(content)
        except WorkerGone as problem:
            update.gone = str(problem)
        with (self._run_dir / LOG).open("rb") as log:
            log.seek(self._log_read)
            printed = log.read(2**20)
            self._log_read += len(printed)
            update.log = printed.decode("utf-8", "backslashreplace")
        return encode(update)

    def take_run(self, name: str) -> bytes:
        """Return the files of a run saved here, and remove them.

        Args:
            name: The directory's name below steps/.

        Returns:
            An archive of them.
        """
        run, packed = self._run_dir / STEPS / name, io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(run.rglob("*")):
                archive.write(file, file.relative_to(run))
        shutil.rmtree(run, ignore_errors=True)
        return packed.getvalue()

    def end(self, patience: float) -> None:
        """End the process, and remove what is left of it."""
        self._process.end(patience)
        shutil.rmtree(self._run_dir, ignore_errors=True)
        remove_folder()


# --- In the training run ------------------------------------------------------------------------


class _NodeProcess:
    """The training run's handle of a worker on a node."""

    def __init__(
        self,
        node: RayNode,
        spec: str,
        folder: Path | None,
        environment: Mapping[str, str | None],
        buffers: Sequence[WeightBuffer],
        log: Path,
    ) -> None:
        self.ready = False
        self.started_at = time.monotonic()
        self.numbers: Iterator[int] = itertools.count(1)
        self.log = log
        self._spec, self._buffers = spec, buffers
        self._news: Any = None
        """The call to `receive` that is in flight."""
        self._run_dirs: dict[int, tuple[Path, int]] = {}
        """For each request, the local run directory of its results, and the step."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        self._stack = ExitStack()
        try:
            self._ray = self._stack.enter_context(connected(node.address))
            self._actor = self._make_actor(node)
            archive = None if folder is None else zip_folder(folder)
            info = self._call(self._actor.start, archive, dict(environment), len(buffers))
        except BaseException:
            self.end(0.0)
            raise
        self._info = msgspec.json.decode(info, type=RelayInfo)
        self.pid = self._info.pid
        for package, version in own_versions().items():
            if self._info.versions.get(package) != version:
                self._warn_version(package, version)

    def _warn_version(self, package: str, version: str) -> None:
        info = self._info
        other = info.versions.get(package)
        log.warning("%s runs %s %s, the training %s", info.node, package, other, version)

    def _make_actor(self, node: RayNode) -> Any:
        need = {"CPU": node.num_cpus, "GPU": node.num_gpus, **node.resources}
        check_fits(self._ray, need, 1)
        options: dict[str, Any] = {
            "num_cpus": node.num_cpus,
            "num_gpus": node.num_gpus,
            "resources": dict(node.resources),
            "max_concurrency": 4,
            "max_restarts": 0,
        }
        node_id = node.find_node(self._ray)
        if node_id is not None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=False)
        return self._ray.remote(Relay).options(**options).remote()

    def _call(self, method: Any, *arguments: Any) -> Any:
        with self._reporting_loss():
            return self._ray.get(call(self._ray, method, *arguments), timeout=CALL_SECONDS)

    @contextmanager
    def _reporting_loss(self) -> Iterator[None]:
        try:
            yield
        except self._ray.exceptions.GetTimeoutError:
            raise WorkerGone(
                f"the eval worker on the cluster has not replied for {CALL_SECONDS:g} s"
            ) from None
        except (self._ray.exceptions.RayError, ConnectionError) as problem:
            raise WorkerGone(f"the eval worker on the cluster {_why(problem)}") from None

    def send(self, message: WorkerMessage) -> None:
        """Send a request with its paths translated to the node's; weights are sent before it."""
        match message:
            case CallFunction():
                folder = self._info.folder
                spec = self._spec
                if spec.rpartition(":")[0].endswith(".py"):
                    spec = f"{folder}/{spec}"
                message = msgspec.structs.replace(
                    message, spec=spec, path=[folder], log=str(self.log)
                )
            case LoadWeights():
                content = self._buffers[message.buffer].content()
                digest = hashlib.sha256(content).hexdigest()
                with self._reporting_loss():
                    check_connected(self._ray)
                    ref = self._ray.put(content)
                self._call(self._actor.load, message.buffer, ref, digest)
            case EvaluateModel():
                self._run_dirs[message.number] = Path(message.run_dir), message.step
                message = msgspec.structs.replace(message, run_dir=self._info.run_dir)
        self._call(self._actor.send, encode(message))

    def receive(self, number: int) -> WorkerReply | None:
        """The next answer, if one comes soon and is to the request of this number."""
        with self._reporting_loss():
            if self._news is None:
                self._news = call(self._ray, self._actor.receive)
            check_connected(self._ray)
            ready, _ = self._ray.wait([self._news], timeout=2 * POLL_SECONDS)
            if not ready:
                return None
            content, self._news = self._ray.get(self._news), None
        update = msgspec.json.decode(content, type=RelayUpdate)
        if update.log:
            with open_to_append(self.log) as log:
                log.write(update.log.encode())
        if update.gone is not None:
            raise WorkerGone(f"{update.gone} (on node {self._info.node})")
        content = bytes(update.answer)
        if content == b"null":
            return None
        answer = decode_answer(content)
        if answer.number != number:
            return None
        return self._fetch_run(answer) if isinstance(answer, EvalDone) else answer

    def _fetch_run(self, answer: EvalDone) -> EvalDone:
        """Save the conversations of an eval where the training run has its own."""
        run = answer.measured.run
        if run is None or answer.number not in self._run_dirs:
            return answer
        run_dir, step = self._run_dirs.pop(answer.number)
        packed = self._call(self._actor.take_run, PurePosixPath(run).name)
        name = reserve_name(run_dir / STEPS, f"{step:08d}")
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            archive.extractall(run_dir / STEPS / name)
        measured = replace(answer.measured, run=f"{STEPS}/{name}")
        return msgspec.structs.replace(answer, measured=measured)

    def end(self, patience: float) -> None:
        """End it, and the connection to the cluster if it was opened here."""
        actor, self._actor = getattr(self, "_actor", None), None
        if actor is not None:
            with suppress(self._ray.exceptions.RayError, ConnectionError, ValueError):
                end = call(self._ray, actor.end, patience)
                self._ray.wait([end], timeout=patience + 5.0)
                self._ray.kill(actor)
        self._stack.close()

    def last_lines(self) -> str:
        """What it has printed last, to follow a reason."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, log.seek(0, os.SEEK_END) - LOG_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
        last = [line.rstrip() for line in lines if line.strip()][-LOG_LINES:]
        return "; its last output:\n" + "\n".join(last) if last else ""


def _why(problem: BaseException) -> str:
    cause = getattr(problem, "cause", None)
    if isinstance(cause, ValueError):  # of `load`
        return f"refused: {cause}"
    return f"is gone: {explain_death(problem)}"
