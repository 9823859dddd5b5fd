"""What runs items on a worker: the engine's own code for an item, in an event loop of its own.

Ray makes an actor of `ItemWorker`; nothing here knows Ray. Items and results cross as JSON of
msgspec structs. `collect` returns whatever has finished since it was last called, so that one call
carries many results where they come fast, and a slow item holds up none that is done.
"""

from __future__ import annotations

import os
import platform
import queue
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import anyio
import anyio.lowlevel
import msgspec

from heldout._core.aio import contain_exits, waker
from heldout._core.config import EvalConfig
from heldout._core.version import __version__
from heldout._evals.engine import Item, attempt_item, error_result
from heldout._evals.progress import RunProgress
from heldout._evals.rollout import EvalDefinition, root_of
from heldout.cluster.copies import describe_copies
from heldout.cluster.packaging import ImportPath, load_reference, remove_folder, unpack_folder
from heldout.errors import (
    FatalEndpointError,
    HeldoutError,
    InvalidInput,
    ModelRefused,
    Unreachable,
    printable_error,
)
from heldout.models import Endpoint, open_endpoint
from heldout.models.cache import CachedEndpoint
from heldout.store.journal import Record, encode_result, plain_value
from heldout.store.resume import decode_sample

COLLECT_SECONDS = 5.0
"""How long `collect` waits for a first result."""
COLLECT_RESULTS = 1000
STOP_SECONDS = 15.0
"""How long environments may take to close when the run is stopped."""

FailureKind = Literal[
    "fatal", "fatal in scoring", "refused", "refused in scoring", "unreachable", "other"
]


class WorkerSpec(msgspec.Struct):
    """What a worker runs."""

    config: EvalConfig
    """Its endpoint is a string; where the eval has another one, `references` does."""
    references: dict[str, ImportPath]
    max_concurrent: int
    """Of this worker."""


class WorkerInfo(msgspec.Struct):
    """Description of a worker that is ready."""

    node: str
    pid: int
    versions: dict[str, str]
    endpoint: dict[str, Any] = {}
    """The endpoint's description of itself."""
    functions: dict[str, dict[str, str]] = {}
    """Its copies of the functions, part by part."""
    problem: str | None = None
    """Why it cannot run the eval."""


class ItemRequest(msgspec.Struct, array_like=True):
    """One item for a worker."""

    number: int
    index: int
    repeat: int
    sample: msgspec.Raw


class FinishedItem(msgspec.Struct, array_like=True):
    """One item from a worker."""

    number: int
    record: Record
    kind: FailureKind | None = None
    """The kind of failure, as far as it matters to the run."""
    message: str = ""


class Collected(msgspec.Struct, array_like=True):
    """What has happened on a worker since the last call."""

    received: int
    """Items received in total, so that the driver notices lost ones."""
    finished: list[FinishedItem]


encode = msgspec.json.Encoder(enc_hook=plain_value).encode
decode_jobs = msgspec.json.Decoder(list[ItemRequest]).decode
decode_collected = msgspec.json.Decoder(Collected).decode


def own_versions() -> dict[str, str]:
    """Return the versions that a driver compares with those of its workers."""
    return {"heldout": __version__, "Python": platform.python_version()}


class ItemWorker:
    """Runs items of one eval. Its methods are called from several threads at once.

    None of them is async: Ray would run all of them in one event loop, and `collect` waits.
    """

    def __init__(self, spec: bytes, archive: bytes | None) -> None:
        """Store the arguments only: a failure here would merely look like a dead worker.

        Args:
            spec: A `WorkerSpec`.
            archive: The folder of the eval file, if one is sent.
        """
        self._spec, self._archive = spec, archive
        self._loop: _ItemLoop

    def start(self) -> bytes:
        """Load the eval file and open the endpoint.

        Returns:
            A `WorkerInfo`.
        """
        info = WorkerInfo(socket.gethostname(), os.getpid(), own_versions())
        try:
            spec = msgspec.json.decode(self._spec, type=WorkerSpec)
            folder = unpack_folder(self._archive) if self._archive is not None else None
            self._archive = None
            loaded = {role: load_reference(r, folder) for role, r in spec.references.items()}
            info.functions = describe_copies(loaded, folder)
            definition, endpoint = _open(spec, loaded)
            info.endpoint = endpoint.describe()
        except (HeldoutError, msgspec.MsgspecError) as problem:
            info.problem = printable_error(problem)
        else:
            self._loop = _ItemLoop(definition, spec.config, endpoint)
            self._loop.start()
        return encode(info)

    def submit(self, jobs: bytes) -> None:
        """Begin to run items.

        Args:
            jobs: A list of `ItemRequest`.
        """
        self._loop.submit(decode_jobs(jobs))

    def collect(self) -> bytes:
        """Wait for results.

        Returns:
            A `Collected`, with none of them after a few seconds without any.
        """
        finished = b",".join(self._loop.collect())
        return b"[%d,[%b]]" % (self._loop.received, finished)

    def stop(self) -> None:
        """Cancel what is in flight, so that environments close, and close the endpoint."""
        self._loop.stop()
        remove_folder()


def _open(spec: WorkerSpec, loaded: dict[str, Any]) -> tuple[EvalDefinition, Endpoint]:
    model = loaded.pop("endpoint", spec.config.endpoint)
    endpoint = open_endpoint(model, max_concurrent=spec.max_concurrent)
    if spec.config.cache:
        endpoint = CachedEndpoint(endpoint, model, spec.config.cache)
    return EvalDefinition((), **loaded), endpoint


class _ItemLoop:
    """The event loop that items run in, in a thread of its own."""

    def __init__(self, definition: EvalDefinition, config: EvalConfig, endpoint: Endpoint) -> None:
        self._definition, self._config, self._endpoint = definition, config, endpoint
        self._progress = RunProgress(config.repeats)  # the driver shows its own
        self.received = 0
        self._arrived: deque[ItemRequest] = deque()
        self._finished: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._counting = threading.Lock()
        self._stopping = False
        self._is_running = threading.Event()
        self._wake: Callable[[Callable[[], object]], None]
        self._has_news: anyio.Event
        self._thread = threading.Thread(
            target=anyio.run, args=(self._serve,), name="heldout-items", daemon=True
        )

    def start(self) -> None:
        self._thread.start()
        self._is_running.wait()

    def submit(self, jobs: list[ItemRequest]) -> None:
        self._arrived.extend(jobs)
        self._wake(self._notify)
        with self._counting:
            self.received += len(jobs)

    def collect(self) -> list[bytes]:
        batch: list[bytes] = []
        try:
            batch.append(self._finished.get(timeout=COLLECT_SECONDS))
            while len(batch) < COLLECT_RESULTS:
                batch.append(self._finished.get_nowait())
        except queue.Empty:
            pass
        if not batch and not self._thread.is_alive():
            raise RuntimeError("the worker's event loop has ended")
        return batch

    def stop(self) -> None:
        self._stopping = True
        self._wake(self._notify)
        self._thread.join(STOP_SECONDS)

    # --- In the loop ---

    def _notify(self) -> None:
        self._has_news.set()

    async def _serve(self) -> None:
        self._wake, self._has_news = waker(), anyio.Event()
        self._is_running.set()
        try:
            contain_exits()
            async with anyio.create_task_group() as group:
                while not self._stopping:
                    await self._has_news.wait()
                    self._has_news = anyio.Event()
                    while self._arrived:
                        group.start_soon(self._run, self._arrived.popleft())
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._endpoint.close()

    async def _run(self, job: ItemRequest) -> None:
        content = bytes(job.sample)
        item = Item(job.index, decode_sample(content), job.repeat, content)
        result, problem = await attempt_item(
            item, self._definition, self._config, self._endpoint, self._progress
        )
        try:
            line = encode_result(job.index, result, content)
        except InvalidInput as refused:  # as the engine does where a journal refuses it
            problem = refused
            failed = error_result(item, "store", printable_error(refused))
            line = encode_result(job.index, failed, content)
        kind, message = _classify(problem)
        self._finished.put(encode((job.number, msgspec.Raw(line.rstrip()), kind, message)))


def _classify(problem: BaseException | None) -> tuple[FailureKind | None, str]:
    if problem is None:
        return None, ""
    kind: FailureKind = "other"
    root = root_of(problem)
    if isinstance(root, FatalEndpointError):
        refused = isinstance(root, ModelRefused)
        if root is problem:
            kind = "refused" if refused else "fatal"
        else:
            kind = "refused in scoring" if refused else "fatal in scoring"
    elif isinstance(problem, Unreachable):
        kind = "unreachable"
    return kind, printable_error(problem)[:2000]


def make_spec(config: EvalConfig, references: dict[str, ImportPath], max_concurrent: int) -> bytes:
    """Encode what workers run.

    Args:
        config: How to run it.
        references: The functions, and the endpoint if no string names it.
        max_concurrent: Requests in flight at once in one worker.

    Returns:
        A `WorkerSpec`.
    """
    if "endpoint" in references:
        config = replace(config, endpoint=None)  # it has no string form
    return encode(WorkerSpec(config, references, max_concurrent))


__all__ = [
    "Collected",
    "FinishedItem",
    "ItemRequest",
    "ItemWorker",
    "WorkerInfo",
    "WorkerSpec",
    "make_spec",
]
