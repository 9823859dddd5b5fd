"""RayExecutor: the items of an eval on the workers of a Ray cluster.

    report = await evaluate(samples, config, score_fn, executor=RayExecutor("auto", workers=4))

The engine runs here, in the driver, as it does without a cluster: it pulls an item from the samples
when one of `max_concurrent` is done, and it alone writes the journal. Only the attempts themselves
run on workers. So nothing is queued ahead of `max_concurrent`, and resuming, errors, progress and
the report are those of a local run.

A worker that dies takes down what it was running, and which item was to blame cannot be seen. Its
items are run again by others, spread out. An item that was there at two deaths runs alone from then
on: if its worker dies a third time, it is that item's error, and nobody else's.

Ray does not say that a connection is lost: replies to what was called before `ray.shutdown()` never
come. So nothing here waits without end. The cluster is asked for its nodes all the time, and a
worker must say that it has received its items, reply, and finish items within their timeout.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from heldout._core.aio import Threads, unwrap_group
from heldout._core.checks import check_count, check_number, check_text
from heldout._core.config import EvalConfig
from heldout._core.providers import runs_here
from heldout._evals.engine import Evaluation, Item, ItemResult, error_result
from heldout._evals.rollout import EvalDefinition, functions_of
from heldout.cluster._ray import (
    ClusterLost,
    call,
    check_connected,
    check_fits,
    check_resources,
    check_working_dir,
    connected,
    count_fitting,
    explain_death,
    get,
    import_ray,
    name_session,
)
from heldout.cluster.copies import describe_copies, name_difference
from heldout.cluster.packaging import pack_functions, zip_folder
from heldout.cluster.worker import (
    COLLECT_SECONDS,
    STOP_SECONDS,
    FinishedItem,
    ItemRequest,
    ItemWorker,
    WorkerInfo,
    decode_collected,
    encode,
    make_spec,
    own_versions,
)
from heldout.errors import (
    EvalFailed,
    FatalEndpointError,
    InvalidInput,
    ModelRefused,
    ScoringFailed,
    Unreachable,
)
from heldout.store.report import EvalReport

log = logging.getLogger("heldout")

MAX_DEATHS = 3
"""Worker deaths during an item after which the item is blamed."""
MAX_FAILED_STARTS = 3
"""Consecutive workers that die before they are ready, after which no more are started."""
LOOK_SECONDS = 2.0
"""How often the cluster is asked for its nodes."""
CONNECTION_SECONDS = 45.0
"""How long it may take to answer. Ray itself kills a driver that has not reached the head for a
minute."""
ROOM_SECONDS = 600.0
"""How long a cluster that has lost its nodes may have no room for any worker."""
LOST_SECONDS = 120.0
"""How long, on top of the item's timeout, a worker may be silent: a message takes time, and a
runaway regular expression blocks its threads."""
ITEM_SECONDS = 600.0
"""The timeout assumed for an item that has none, when judging whether a worker is alive."""
TOGETHER_SECONDS = 5.0
"""How long the first worker that is ready waits for the others, so that all get their share."""
START_SECONDS = 60.0
"""How long a worker that is not ready yet keeps its share of `max_concurrent` free."""
SUBMIT_ITEMS = 256
"""Items in one message to a worker, at most."""


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Runs the items of an eval on workers of a Ray cluster.

    Each worker loads the eval file and opens the endpoint once. `EvalConfig.max_concurrent` is of
    the run, and shared by its workers.
    """

    address: str | None = None
    """HOST:PORT, ray://HOST:PORT, "auto" or "local"; None is the cluster that this process is
    connected to, or else "auto"."""
    workers: int | None = None
    """How many; None is as many as the cluster has room for, and more when nodes join."""
    gpus_per_worker: float | None = None
    """None is 1 for a model that workers load (hf:, smollm2) where the cluster has GPUs, else 0."""
    cpus_per_worker: float = 1.0
    """0 only where a worker takes a GPU or another resource: else any number would fit."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources of one worker."""
    working_dir: str | Path | None = None
    """The folder sent to the workers; by default that of the eval file."""
    pip: Sequence[str] = ()
    """Packages to install for the workers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the workers. Ray shows them in its dashboard: a key belongs into
    the environment that `ray start` is called in."""

    def __post_init__(self) -> None:
        check_text("address", self.address, optional=True)
        check_count("workers", self.workers, low=1, optional=True)
        check_number("gpus_per_worker", self.gpus_per_worker, low=0, optional=True)
        check_number("cpus_per_worker", self.cpus_per_worker, low=0)
        check_resources(self.resources)
        check_working_dir(self.working_dir)
        if not isinstance(self.pip, list | tuple):
            raise InvalidInput(f"pip must be a list of packages, got {self.pip!r:.200}")
        for package in self.pip:
            check_text("each of pip", package)
        if not isinstance(self.environment, Mapping):
            raise InvalidInput("environment has texts by name")
        for name, value in self.environment.items():
            if not isinstance(name, str) or not isinstance(value, str):
                # Not the value: it may be a key.
                raise InvalidInput(
                    f"environment: {name!r} must be text, got {type(value).__name__}"
                )

    async def evaluate(self, definition: EvalDefinition, config: EvalConfig) -> EvalReport:
        """Run an eval; `heldout.evaluate(…, executor=…)` calls it.

        Args:
            definition: The samples and functions.
            config: How to run them.

        Returns:
            The report, as it is saved.

        Raises:
            InvalidInput: A function cannot be sent to workers, there is no cluster at the address,
                it has no room for the workers, or none of them can run the eval.
            EvalFailed: As for `evaluate`; or the cluster was lost during the run.
        """
        if config.save_turns:
            raise InvalidInput(
                "save_turns is not possible on a cluster: workers have no access to the run "
                "directory"
            )
        import_ray()
        endpoint = None if isinstance(config.endpoint, str) else config.endpoint
        functions = {**functions_of(definition), "endpoint": endpoint}
        folder = None if self.working_dir is None else Path(self.working_dir)
        packed = pack_functions(functions, folder)
        archive = None if packed.folder is None else zip_folder(packed.folder)
        with connected(self.address) as ray:
            need = self._need(ray, config)
            check_fits(ray, need, self.workers)
            wanted = self.workers or count_fitting(ray, need)
            share = math.ceil(config.max_concurrent / wanted)
            spec = make_spec(config, packed.references, share)
            copies = describe_copies(functions, packed.folder)
            pool = WorkerPool(ray, self, config, need, spec, archive, copies)
            async with pool.running(wanted):
                return await _ClusterEvaluation(definition, config, pool).run()

    def _need(self, ray: Any, config: EvalConfig) -> dict[str, float]:
        gpus = self.gpus_per_worker
        if gpus is None:
            is_loaded = isinstance(config.endpoint, str) and runs_here(config.endpoint)
            gpus = float(is_loaded and ray.cluster_resources().get("GPU", 0) >= 1)
        return {"CPU": self.cpus_per_worker, "GPU": gpus, **self.resources}


class _ClusterEvaluation(Evaluation):
    """A run whose items are attempted by a pool of workers."""

    def __init__(self, definition: EvalDefinition, config: EvalConfig, pool: WorkerPool) -> None:
        super().__init__(definition, config, pool)  # type: ignore[arg-type] # for `describe` alone
        self._pool = pool

    async def run_item(self, item: Item) -> ItemResult:
        result, problem = await self._pool.run_item(item)
        self.progress.add_turn(result.trajectory.usage)
        return result, problem


# --- The pool -----------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _PendingItem:
    """An item until it has a result."""

    number: int
    item: Item
    content: bytes
    done: anyio.Event
    deaths: int = 0
    """Of workers, while they were running it."""
    outcome: ItemResult | None = None

    @property
    def is_suspect(self) -> bool:
        return self.deaths >= MAX_DEATHS - 1


@dataclass(slots=True, eq=False)
class _RayWorker:
    """An actor, and what it is running."""

    started_at: float
    actor: Any = None
    info: WorkerInfo | None = None
    """Set once it is ready."""
    jobs: dict[int, _PendingItem] = field(default_factory=dict)
    sent: int = 0
    """Total items sent to it."""
    unconfirmed: deque[tuple[int, float]] = field(default_factory=deque)
    """For each unacknowledged message: the value of `sent` after it, and when it was sent."""
    progressed_at: float = 0.0
    """When it last finished an item, or got its first."""

    @property
    def is_ready(self) -> bool:
        return self.info is not None

    @property
    def runs_suspect(self) -> bool:
        return any(job.is_suspect for job in self.jobs.values())

    @property
    def name(self) -> str:
        return "a worker" if self.info is None else f"worker {self.info.pid} on {self.info.node}"

    def assign(self, job: _PendingItem) -> None:
        """Add an item to those that it runs."""
        if not self.jobs:
            self.progressed_at = time.monotonic()
        self.jobs[job.number] = job

    def note_sent(self, count: int) -> None:
        """Note that a message with items is on its way."""
        self.sent += count
        self.unconfirmed.append((self.sent, time.monotonic()))

    def check_alive(self, received: int, timeout: float | None) -> None:
        """Check that nothing was lost, after a reply.

        Args:
            received: Items that it reports to have received.
            timeout: Of an item.

        Raises:
            TimeoutError: An item or a message was lost.
        """
        now = time.monotonic()
        while self.unconfirmed and self.unconfirmed[0][0] <= received:
            self.unconfirmed.popleft()
        if self.unconfirmed and now - self.unconfirmed[0][1] > LOST_SECONDS:
            raise TimeoutError(
                f"it has not received items that it was sent {LOST_SECONDS:g} s before"
            )
        if self.jobs and timeout is not None and now - self.progressed_at > timeout + LOST_SECONDS:
            raise TimeoutError(
                f"no item has ended for {timeout + LOST_SECONDS:g} s, and each may take {timeout:g}"
            )


class WorkerPool:
    """The workers of one run: gives them items, replaces those that die."""

    def __init__(
        self,
        ray: Any,
        executor: RayExecutor,
        config: EvalConfig,
        need: Mapping[str, float],
        spec: bytes,
        archive: bytes | None,
        copies: Mapping[str, Mapping[str, str]],
    ) -> None:
        """Make a pool without workers.

        Args:
            ray: The module, connected.
            executor: How many workers, and of what kind.
            config: How the eval is run.
            need: What one worker takes.
            spec: What the workers run.
            archive: The folder sent to them.
            copies: This process's functions, which theirs must equal.
        """
        self._copies = copies
        self._ray, self._executor, self._need, self._spec = ray, executor, dict(need), spec
        self._max_concurrent, self._timeout = config.max_concurrent, config.timeout
        self._session = name_session(ray)
        self._is_lost = False
        """Whether the connection was lost."""
        self._threads = Threads()
        """For calls to Ray that block: the connection may be lost meanwhile."""
        self._archive = None if archive is None else ray.put(archive)
        self._workers: list[_RayWorker] = []
        self._wanted = 0
        self._unusable = 0
        """Workers that could not run the eval and were not replaced."""
        self._failed_starts = 0
        self._start_problem = ""
        self._waiting: deque[_PendingItem] = deque()
        self._suspects: deque[_PendingItem] = deque()
        self._numbers = itertools.count()
        self._work = anyio.Event()
        """Set when there may be items to assign."""
        self._first_ready = anyio.Event()
        self._first_info: WorkerInfo | None = None
        """Of the first worker that was ready; the others must have the same model."""
        self._failure: EvalFailed | InvalidInput | None = None
        self._group: TaskGroup

    def describe(self) -> dict[str, Any]:
        """Describe the model as seen by the workers, which call it."""
        assert self._first_info is not None
        return self._first_info.endpoint

    @asynccontextmanager
    async def running(self, wanted: int) -> AsyncIterator[None]:
        """Start workers, and stop them at the end.

        Args:
            wanted: How many.

        Yields:
            Nothing, once one of them is ready.

        Raises:
            InvalidInput: None of them can run the eval.
            ClusterLost: None of them starts.
        """
        self._wanted = wanted
        try:
            async with anyio.create_task_group() as self._group:
                for _ in range(wanted):
                    self._start_worker()
                self._group.start_soon(self._hand_out)
                self._group.start_soon(self._watch_cluster)
                await self._first_ready.wait()
                with anyio.move_on_after(TOGETHER_SECONDS):
                    while not all(worker.is_ready for worker in self._workers):
                        await anyio.sleep(0.05)
                if self._failure is not None:
                    raise self._failure
                yield
                self._group.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            problem = unwrap_group(group)
            raise problem from problem.__cause__
        finally:
            with anyio.CancelScope(shield=True):
                await self._stop_workers()
            self._threads.close()

    async def run_item(self, item: Item) -> ItemResult:
        """Have a worker run an item.

        Args:
            item: What to run.

        Returns:
            Its result, and an exception that stands for the one raised on the worker.

        Raises:
            ClusterLost: There is no worker any more.
        """
        number = next(self._numbers)
        content = encode(ItemRequest(number, item.index, item.repeat, msgspec.Raw(item.content)))
        job = _PendingItem(number, item, content, anyio.Event())
        self._waiting.append(job)
        self._work.set()
        if self._failure is None:
            await job.done.wait()
        if job.outcome is None:
            assert self._failure is not None
            raise self._failure
        return job.outcome

    # --- Handing out ---

    async def _hand_out(self) -> None:
        while True:
            await self._work.wait()
            self._work = anyio.Event()
            for worker, jobs in self._assign().items():
                for batch in _batches(jobs):
                    content = b"[" + b",".join(job.content for job in batch) + b"]"
                    worker.note_sent(len(batch))
                    # What is not sent is noticed as what was lost on the way.
                    with suppress(self._ray.exceptions.RayError, ConnectionError):
                        call(self._ray, worker.actor.submit, content)

    def _assign(self) -> dict[_RayWorker, list[_PendingItem]]:
        """Give waiting items to the workers with the least to do."""
        assigned: dict[_RayWorker, list[_PendingItem]] = {}
        ready = [worker for worker in self._workers if worker.is_ready]
        for worker in ready:
            if self._suspects and not worker.jobs:
                job = self._suspects.popleft()
                worker.assign(job)
                assigned[worker] = [job]
        ready = [worker for worker in ready if not worker.runs_suspect]
        if self._suspects and ready:
            # One of them runs empty, to take the next suspect.
            ready.remove(min(ready, key=lambda worker: len(worker.jobs)))
        share = self._share()
        while self._waiting and ready:
            worker = min(ready, key=lambda worker: len(worker.jobs))
            if len(worker.jobs) >= share:
                break
            job = self._waiting.popleft()
            worker.assign(job)
            assigned.setdefault(worker, []).append(job)
        return assigned

    def _share(self) -> int:
        """Return the maximum number of items per worker, so that all get a share."""
        now = time.monotonic()
        expected = [w for w in self._workers if w.is_ready or now - w.started_at < START_SECONDS]
        return math.ceil(self._max_concurrent / max(1, len(expected)))

    # --- Workers ---

    def _start_worker(self) -> None:
        worker = _RayWorker(time.monotonic())
        self._workers.append(worker)
        self._group.start_soon(self._serve, worker)

    def _make_actor(self) -> Any:
        executor = self._executor
        runtime_env: dict[str, Any] = {}
        if executor.pip:
            runtime_env["pip"] = list(executor.pip)
        if executor.environment:
            runtime_env["env_vars"] = dict(executor.environment)
        custom = {n: amount for n, amount in self._need.items() if n not in ("CPU", "GPU")}
        actor_class = self._ray.remote(ItemWorker).options(
            num_cpus=self._need["CPU"],
            num_gpus=self._need["GPU"],
            resources=custom,
            runtime_env=runtime_env or None,
            max_concurrency=4,
            max_restarts=0,
            max_task_retries=0,
        )
        return call(self._ray, actor_class, self._spec, self._archive)

    async def _serve(self, worker: _RayWorker) -> None:
        """Run a worker from its start to its death."""
        lost = self._ray.exceptions.RayError, ConnectionError, TimeoutError, msgspec.MsgspecError
        try:
            worker.actor = await self._threads.run(self._make_actor)
            # Without end: it may wait for room, and load a large model.
            reply = await get(call(self._ray, worker.actor.start))
            info = msgspec.json.decode(reply, type=WorkerInfo)
            if not self._accept(info):
                self._drop(worker)
                return
            worker.info = info
            self._failed_starts = 0
            self._work.set()
            self._first_ready.set()
            patience = COLLECT_SECONDS + (self._timeout or ITEM_SECONDS) + LOST_SECONDS
            while True:
                reply = await get(call(self._ray, worker.actor.collect), patience)
                collected = decode_collected(reply)
                for finished in collected.finished:
                    job = worker.jobs.pop(finished.number, None)
                    if job is not None:
                        job.outcome = _outcome_of(finished)
                        job.done.set()
                        worker.progressed_at = time.monotonic()
                worker.check_alive(collected.received, self._timeout)
                self._work.set()
        except lost as problem:
            self._replace_dead_worker(worker, problem)

    def _accept(self, info: WorkerInfo) -> bool:
        """Return whether a worker can be used: its functions and its model match."""
        for package, version in own_versions().items():
            if info.versions.get(package) != version:
                log.warning(
                    "worker %s on %s runs %s %s, this process %s",
                    info.pid, info.node, package, info.versions.get(package), version,
                )  # fmt: skip
        problem = info.problem or name_difference(self._copies, info.functions)
        if problem is None and self._first_info is None:
            self._first_info = info
        elif problem is None and self._first_info is not None:
            first = self._first_info
            if info.endpoint != first.endpoint:
                problem = f"its model is not that of {first.node}: {info.endpoint}"
        if problem is not None:
            self._start_problem = f"the worker on {info.node} cannot run the eval: {problem}"
        return problem is None

    def _drop(self, worker: _RayWorker) -> None:
        """Continue without a worker that cannot run the eval: a replacement could not either."""
        self._workers.remove(worker)
        self._unusable += 1
        self._group.start_soon(self._kill, worker)
        if self._workers:
            log.warning("%s; it is not used", self._start_problem)
        else:
            self._fail(InvalidInput(self._start_problem))

    def _replace_dead_worker(self, worker: _RayWorker, problem: BaseException) -> None:
        """Reassign the items of a worker that has died, and start another worker."""
        reason = explain_death(problem)
        if isinstance(problem, ConnectionError) or not self._ray.is_initialized():
            self._lose_connection(reason)
            return
        self._workers.remove(worker)
        self._group.start_soon(self._kill, worker)  # what is no death, but cannot be talked to
        if worker.is_ready:
            log.warning(
                "%s died with %s items in flight: %s", worker.name, len(worker.jobs), reason
            )
        else:
            self._failed_starts += 1
            log.warning("a worker died as it started: %s", reason)
        for job in reversed(worker.jobs.values()):
            job.deaths += 1
            if job.deaths >= MAX_DEATHS:
                why = (
                    f"it died {job.deaths} times while this item ran, the last time with no other: "
                    f"{reason}"
                )
                result = error_result(job.item, "worker", why)
                job.outcome = result, EvalFailed(result.error or why)
                job.done.set()
            elif job.is_suspect:
                self._suspects.append(job)
            else:
                self._waiting.appendleft(job)
        if self._failed_starts < MAX_FAILED_STARTS:
            if len(self._workers) < self._wanted - self._unusable:
                self._start_worker()
        elif not self._workers:
            self._fail(
                ClusterLost(
                    f"{self._failed_starts} workers in a row died as they started: {reason}"
                )
            )
        self._work.set()

    def _fail(self, failure: EvalFailed | InvalidInput) -> None:
        """End the run: nothing can be run any more."""
        self._failure = self._failure or failure
        self._first_ready.set()
        for jobs in (self._waiting, self._suspects, *(w.jobs.values() for w in self._workers)):
            for job in jobs:
                job.done.set()

    def _lose_connection(self, reason: str) -> None:
        self._is_lost = True
        self._fail(
            ClusterLost(
                f"the connection to the cluster was lost: {reason}. What has finished is saved; "
                "connect again and resume the run"
            )
        )

    async def _watch_cluster(self) -> None:
        """Notice when the connection is lost, and when nodes have joined."""
        answered_at = had_room_at = time.monotonic()
        while not self._is_lost:
            await anyio.sleep(LOOK_SECONDS)
            self._work.set()  # a worker that takes long to start gives up its share
            reason = f"the cluster has not answered for {CONNECTION_SECONDS:g} s"
            with anyio.move_on_after(CONNECTION_SECONDS):
                try:
                    room = await self._threads.run(self._count_room)
                except ConnectionError as problem:
                    self._lose_connection(explain_death(problem))
                except self._ray.exceptions.RayError as problem:
                    reason = explain_death(problem)
                else:
                    answered_at = time.monotonic()
                    if room or any(worker.is_ready for worker in self._workers):
                        had_room_at = answered_at
                    self._start_workers_for(room)
            now = time.monotonic()
            if now - answered_at >= CONNECTION_SECONDS:
                self._lose_connection(reason)
            elif now - had_room_at >= ROOM_SECONDS:
                self._fail(
                    ClusterLost(f"the cluster has had no room for a worker for {ROOM_SECONDS:g} s")
                )

    def _count_room(self) -> int:
        if name_session(self._ray) != self._session:
            raise ConnectionError("this process has connected to Ray anew")
        return count_fitting(self._ray, self._need)

    def _start_workers_for(self, room: int) -> None:
        """Start more workers where nodes have joined, unless their number is fixed."""
        if self._executor.workers is None and self._failed_starts < MAX_FAILED_STARTS:
            self._wanted = max(self._wanted, room)
            for _ in range(self._wanted - self._unusable - len(self._workers)):
                self._start_worker()

    async def _stop_workers(self) -> None:
        """End all workers, so that environments close; without a connection Ray ends them."""
        if self._is_lost:
            return
        ends = []
        with suppress(self._ray.exceptions.RayError, ConnectionError):
            for worker in self._workers:
                if worker.is_ready:
                    ends.append(call(self._ray, worker.actor.stop))
        with anyio.move_on_after(STOP_SECONDS + 5):
            for end in ends:
                with suppress(self._ray.exceptions.RayError, ConnectionError):
                    await get(end)
        with anyio.move_on_after(STOP_SECONDS):
            for worker in self._workers:
                await self._kill(worker)

    async def _kill(self, worker: _RayWorker) -> None:
        def kill() -> None:
            check_connected(self._ray)
            self._ray.kill(worker.actor)

        if worker.actor is not None and not self._is_lost:
            with suppress(self._ray.exceptions.RayError, ConnectionError, ValueError):
                await self._threads.run(kill)


def _batches(jobs: Sequence[_PendingItem]) -> list[Sequence[_PendingItem]]:
    return [jobs[start : start + SUBMIT_ITEMS] for start in range(0, len(jobs), SUBMIT_ITEMS)]


def _outcome_of(finished: FinishedItem) -> ItemResult:
    """Return a result with an exception that stands for the one raised on the worker."""
    result = finished.record.result()
    match finished.kind:
        case None:
            return result, None
        case "fatal" | "refused":
            return result, _fatal(finished)
        case "fatal in scoring" | "refused in scoring":
            problem = ScoringFailed(finished.message)
            problem.__cause__ = _fatal(finished)
            return result, problem
        case "unreachable":
            return result, Unreachable(finished.message)
        case _:
            return result, EvalFailed(finished.message)


def _fatal(finished: FinishedItem) -> FatalEndpointError:
    refused = finished.kind in ("refused", "refused in scoring")
    return (ModelRefused if refused else FatalEndpointError)(finished.message)
