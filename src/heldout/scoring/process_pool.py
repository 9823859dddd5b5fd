"""Worker processes for tasks that must be killable: sympy may hang, crash or fill the memory.

    pool = Pool(prepare="package.module:import_heavy_modules")
    pool.run_sync("package.module:function", "argument", seconds=5.0)      # from any thread
    await pool.run("package.module:function", "argument", seconds=5.0)     # asyncio or trio

A worker is a fresh interpreter. A thread of this process sends it one task at a time and kills it
when the task's time is up; another worker replaces it. It is not a fork of a process that may hold
threads or a GPU, and it does not import the caller's script, as workers of `multiprocessing` (and
of pebble) do. Messages are msgpack of plain values: nothing is unpickled.

Workers do not see environment variables that look like secrets (_KEY, _TOKEN, _SECRET, _PASSWORD at
the end, CREDENTIAL anywhere). They are no sandbox: same user, same files, same network. The kernel
kills them with this process. Outside Linux `memory` limits nothing, and a worker whose parent was
killed goes on until its task ends or its time is up.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import anyio
import msgspec

from heldout._aio import waker
from heldout.errors import (
    InvalidInput,
    TaskFailed,
    TaskTimeout,
    WorkerDied,
    WorkerError,
    printable_error,
)

MAX_SECONDS = 86_400.0
START_SECONDS = 120.0
"""Time for a worker to start and prepare."""


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class _Task(NamedTuple):
    future: Future[Any]
    request: bytes
    seconds: float


class Pool:
    """Workers that start on demand, shared by threads and event loops; a forked child has its own.

    A task without a result raises a WorkerError: TaskTimeout, TaskFailed or WorkerDied.
    """

    def __init__(self, size: int | None = None, *, prepare: str = "", memory: int = 2**30) -> None:
        """Make a pool. No process is started yet.

        Args:
            size: The maximum number of workers; one per core by default.
            prepare: "module:function", called in every worker before its first task.
            memory: Bytes that a worker may allocate beyond what it has then (Linux only).
        """
        self._size, self._prepare, self._memory = size or available_cores(), prepare, memory
        self._forget_workers()
        os.register_at_fork(after_in_child=self._forget_workers)
        atexit.register(self.close)

    def _forget_workers(self) -> None:
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closed = False

    async def run(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Run a task without blocking the event loop (asyncio or trio).

        Args:
            function: "module:function" to call in a worker.
            *arguments: Its arguments: None, booleans, numbers, strings, lists and dicts.
            seconds: Time limit of the task; time in the queue does not count.

        Returns:
            What the function returned.

        Raises:
            InvalidInput: `seconds` is out of range.
            WorkerError: The task has no result.
        """
        done, wake = anyio.Event(), waker()
        future = self.submit(function, *arguments, seconds=seconds)
        future.add_done_callback(lambda _: wake(done.set))
        try:
            await done.wait()
        finally:
            future.cancel()  # one that has started ends within its limit
        return future.result()

    def run_sync(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Run a task and block this thread until it is done; see `run`."""
        return self.submit(function, *arguments, seconds=seconds).result()

    def submit(self, function: str, *arguments: Any, seconds: float) -> Future[Any]:
        """Queue a task; its future can be cancelled until the task starts. See `run`."""
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidInput(
                f"seconds must be a positive number of at most {MAX_SECONDS:g}, not {seconds!r}"
            )
        request = msgspec.msgpack.encode((function, arguments, seconds))
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise WorkerDied("the pool is closed")
            self._unfinished += 1
            self._tasks.put(_Task(future, request, seconds))
            if len(self._threads) < min(self._unfinished, self._size):
                thread = threading.Thread(target=self._serve_queue, daemon=True)
                thread.start()
                self._threads.append(thread)
        future.add_done_callback(self._count_finished)
        return future

    def _count_finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1

    def pids(self) -> list[int]:
        """List the process ids of the workers that run."""
        with self._lock:
            return [process.pid for process in self._processes if process.poll() is None]

    def close(self) -> None:
        """Kill all workers; tasks without a result raise WorkerDied. Done at exit anyway."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(2.0)

    def _serve_queue(self) -> None:
        """Keep one worker, and send it one task at a time: a thread."""
        worker: _Worker | None = None
        while True:
            with suppress(WorkerError):  # before a task is taken: another worker may be ready
                worker = worker or self._start_worker()
            task = self._tasks.get()
            if task is None:
                break
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                if worker is None or worker.process.poll() is not None:
                    worker = self._start_worker()  # the last one was killed between two tasks
                task.future.set_result(worker.run(task.request, task.seconds))
            except WorkerError as problem:
                closed = WorkerDied("the pool was closed before the task was done")
                task.future.set_exception(closed if self._closed else problem)
            if worker is not None and not worker.is_usable:
                worker.end()
                worker = None
            del task  # its exception and this frame would keep each other alive
        if worker is not None:
            worker.end()

    def _start_worker(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise WorkerDied("the pool is closed")
            worker = _Worker(self._prepare, self._memory)
            self._processes = [process for process in self._processes if process.poll() is None]
            self._processes.append(worker.process)
        try:
            worker.receive(START_SECONDS)
        except WorkerError as problem:
            worker.end()
            raise WorkerDied(f"the worker could not be prepared: {problem}") from None
        return worker


# --- A worker as this process sees it -------------------------------------------------------------


class _Worker:
    def __init__(self, prepare: str, memory: int) -> None:
        self.is_usable = False
        """Whether it can take another task."""
        self._connection, theirs = Pipe()
        code = "from heldout.scoring.process_pool import serve; serve()"
        settings = [theirs.fileno(), os.getpid(), memory, prepare]
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code, *map(str, settings)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=_worker_environment(),
                    start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
                )
            except OSError as problem:
                raise WorkerDied(
                    f"no worker process could be started with {sys.executable!r} (sys.executable): "
                    f"{problem}"
                ) from None

    def run(self, request: bytes, seconds: float) -> Any:
        with suppress(OSError):  # the worker is gone: `receive` says why
            self._connection.send_bytes(request)
        return self.receive(seconds)

    def receive(self, seconds: float) -> Any:
        self.is_usable = False
        try:
            if not self._connection.poll(seconds):
                raise TaskTimeout(f"not done after {seconds:g} s, and its process was killed")
            result, failure, self.is_usable = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            code = self.process.wait()
            cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise WorkerDied(f"the worker process ended {cause}") from None
        if failure is not None:
            raise TaskFailed(*failure)
        return result

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._connection.close()


def _worker_environment() -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if not _is_secret(name.upper())
    }
    # The search path of this process; the working directory only where that is part of it.
    environment["PYTHONPATH"] = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    # sympy's results depend on the order of sets of symbols: the same in every run.
    environment["PYTHONHASHSEED"] = "0"
    # One thread each, as there is a worker per core.
    return environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _is_secret(name: str) -> bool:
    endings = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
    return f"_{name}".endswith(endings) or "CREDENTIAL" in name


# --- The worker process ---------------------------------------------------------------------------


def serve() -> None:
    """Run tasks until the parent is gone: the main function of a worker."""
    descriptor, parent, memory, prepare = sys.argv[1:]
    _end_with_parent(int(parent))
    with Connection(int(descriptor)) as connection, suppress(EOFError, OSError):
        reply = _run_task(prepare or "builtins:list", (), math.inf)
        # What the imports made is never garbage. sympy makes many objects: collect less often.
        gc.freeze()
        gc.set_threshold(10_000)
        retire_at = _limit_memory(int(memory))
        while True:
            connection.send_bytes(reply)
            name, arguments, seconds = msgspec.msgpack.decode(connection.recv_bytes())
            signal.alarm(int(seconds) + 10)  # where the parent was killed, it kills no worker
            reply = _run_task(name, arguments, retire_at)
            signal.alarm(0)


def _run_task(name: str, arguments: Sequence[Any], retire_at: float) -> bytes:
    """Call a function; the reply has its result, or the kind and message of what it raised."""
    module, _, attribute = name.partition(":")
    try:
        result = getattr(importlib.import_module(module), attribute)(*arguments)
        return msgspec.msgpack.encode((result, None, _memory() < retire_at))
    except Exception as problem:  # noqa: BLE001 - raised in the parent
        failure = (type(problem).__name__, printable_error(problem)[:2000])
        return msgspec.msgpack.encode((None, failure, _memory() < retire_at))


def _limit_memory(limit: int) -> float:
    """Limit what this process may allocate; return from where on another should take over."""
    if sys.platform != "linux":
        return math.inf
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    maximum = _memory() + limit
    if hard != resource.RLIM_INFINITY:
        maximum = min(maximum, hard)
    resource.setrlimit(resource.RLIMIT_AS, (maximum, hard))
    return maximum - limit / 2


def _memory() -> int:
    """Return the virtual size of this process in bytes, which the limit is on."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process with the thread that started it, even during a task."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
