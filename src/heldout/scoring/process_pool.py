"""Worker processes for tasks that must be killable: sympy may hang, crash or fill the memory.

    pool = Pool(prepare="package.module:import_heavy_modules")
    pool.run_sync("package.module:function", "argument", seconds=5.0)      # from any thread
    await pool.run("package.module:function", "argument", seconds=5.0)     # asyncio or trio

A worker is a fresh interpreter. A thread of this process sends it one task at a time and kills it
when the task's time is up. Unlike the workers of `multiprocessing` (and of pebble) it does not
import the caller's script, and the kernel kills it with this process. Messages are msgpack of plain
values: nothing is unpickled. A worker is no sandbox, but of the environment variables it sees only
those that Python and its libraries need, and no secrets. Outside Linux, its memory is not limited.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import msgspec

from heldout._core.aio import wait_for
from heldout._core.memory import available_cores
from heldout._core.secrets import is_secret_name
from heldout.errors import (
    InvalidInput,
    TaskFailed,
    TaskTimeout,
    WorkerDied,
    WorkerError,
    printable_error,
)
from heldout.sandbox.supervisor.stalls import Stalls

MAX_SECONDS = 86_400.0
TICK = 0.1
START_SECONDS = 120.0
"""Time for a worker to start and prepare."""


class Pool:
    """Workers that start on demand, shared by threads and event loops; a forked child has its own.

    A task without a result raises a WorkerError: TaskTimeout, TaskFailed or WorkerDied.
    """

    def __init__(self, size: int | None = None, *, prepare: str = "", memory: int = 2**30) -> None:
        """Make a pool. No process is started yet.

        Args:
            size: The maximum number of workers; one per core by default.
            prepare: "module:function", called in every worker before its first task.
            memory: Bytes that a worker may have (Linux only).
        """
        self._size, self._prepare, self._memory = size or available_cores(), prepare, memory
        self._forget_workers()
        os.register_at_fork(after_in_child=self._forget_workers)
        # What `atexit` calls is called after the threads have ended, which wait for their tasks.
        getattr(threading, "_register_atexit", atexit.register)(self.close)

    def _forget_workers(self) -> None:
        self._threads = ThreadPoolExecutor(self._size, "heldout-pool")
        self._workers: set[_PoolWorker] = set()
        self._idle: list[_PoolWorker] = []
        self._closed = False

    async def run(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Run a task without blocking the event loop (asyncio or trio).

        Args:
            function: "module:function" to call in a worker.
            *arguments: Plain values.
            seconds: Time limit of the task; time in the queue does not count.

        Returns:
            What the function returned.

        Raises:
            WorkerError: The task has no result.
        """
        # If the waiting is cancelled, a task that has started ends within its limit.
        return await wait_for(self.submit(function, *arguments, seconds=seconds))

    def run_sync(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Run a task and block this thread until it is done; see `run`."""
        return self.submit(function, *arguments, seconds=seconds).result()

    def submit(self, function: str, *arguments: Any, seconds: float) -> Future[Any]:
        """Queue a task; its future can be cancelled until the task starts. See `run`."""
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidInput(
                f"seconds must be a positive number of at most {MAX_SECONDS:g}, not {seconds!r}"
            )
        if self._closed:
            raise WorkerDied("the pool was closed")
        request = msgspec.msgpack.encode((function, arguments, seconds))
        return self._threads.submit(self._run_task, request, seconds)

    def pids(self) -> list[int]:
        """List the process ids of the workers that run."""
        processes = [worker.process for worker in [*self._workers]]
        return [process.pid for process in processes if process.poll() is None]

    def close(self) -> None:
        """Kill all workers; tasks without a result raise WorkerDied. Done at exit anyway."""
        self._closed = True
        for worker in [*self._workers]:
            worker.process.kill()
        self._threads.shutdown()

    def _run_task(self, request: bytes, seconds: float) -> Any:
        try:
            worker = self._take_worker()
            try:
                return worker.run(request, seconds)
            finally:
                if worker.is_usable:
                    self._idle.append(worker)
                else:
                    self._end_worker(worker)
        except WorkerError:
            if self._closed:
                raise WorkerDied("the pool was closed") from None
            raise

    def _take_worker(self) -> _PoolWorker:
        while self._idle:
            with suppress(IndexError):  # another thread was faster
                worker = self._idle.pop()
                if worker.process.poll() is None:
                    return worker
                self._end_worker(worker)
        try:
            worker = _PoolWorker(self._prepare, self._memory)
        except OSError as problem:
            raise WorkerDied(f"no worker could be started: {problem}") from None
        self._workers.add(worker)
        if self._closed:  # in the meantime
            worker.process.kill()
        try:
            worker.receive(START_SECONDS)
        except WorkerError as problem:
            self._end_worker(worker)
            raise WorkerDied(f"the worker could not be prepared: {problem}") from None
        return worker

    def _end_worker(self, worker: _PoolWorker) -> None:
        self._workers.remove(worker)
        worker.process.kill()
        worker.process.wait()
        worker.connection.close()


class _PoolWorker:
    """A worker as this process sees it."""

    def __init__(self, prepare: str, memory: int) -> None:
        self.is_usable = False
        self.connection, theirs = Pipe()
        code = "from heldout.scoring.process_pool import serve; serve()"
        settings = [theirs.fileno(), os.getpid(), memory, prepare]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", code, *map(str, settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=_worker_environment(),
                start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
            )

    def run(self, request: bytes, seconds: float) -> Any:
        with suppress(OSError):  # the worker is gone: `receive` says why
            self.connection.send_bytes(request)
        return self.receive(seconds)

    def _poll(self, seconds: float) -> bool:
        """Wait for a reply; time in which the machine stood still does not count."""
        stalls, began = Stalls(), time.monotonic()
        while (left := began + seconds + stalls.since(began) - time.monotonic()) > 0:
            slept = min(left, TICK)
            if self.connection.poll(slept):
                return True
            stalls.wake(slept)
        return self.connection.poll(0)

    def receive(self, seconds: float) -> Any:
        self.is_usable = False
        try:
            if not self._poll(seconds):
                raise TaskTimeout(f"not done after {seconds:g} s, and its process was killed")
            result, failure, self.is_usable = msgspec.msgpack.decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            code = self.process.wait()
            cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise WorkerDied(f"the worker process ended {cause}") from None
        if failure is not None:
            raise TaskFailed(*failure)
        return result


_NEEDED = re.compile(
    r"PATH|HOME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|TEMP|TMP|VIRTUAL_ENV|CONDA_PREFIX|SYSTEMROOT"
    r"|PYTHON\w+|LD_LIBRARY_PATH|LD_PRELOAD|DYLD_\w+|XDG_CACHE_HOME|COVERAGE_\w+|COV_CORE_\w+"
)
"""What an interpreter and its libraries need. No list of secrets would ever be complete."""


def _worker_environment() -> dict[str, str]:
    visible = {
        name: value
        for name, value in os.environ.items()
        if _NEEDED.fullmatch(name) and not is_secret_name(name)
    }
    return visible | {
        # The search path of this process; the working directory only where that is part of it.
        "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
        # sympy's results depend on the order of sets of symbols: the same in every run.
        "PYTHONHASHSEED": "0",
        # There is a worker per core.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }


# --- The worker process ---------------------------------------------------------------------------


def serve() -> None:
    """Run tasks until the parent is gone: the main function of a worker."""
    descriptor, parent, memory, prepare = sys.argv[1:]
    if sys.platform == "linux":
        set_parent_death_signal = 1  # the kernel kills it with its parent, even during a task
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        if hard == resource.RLIM_INFINITY or int(memory) < hard:
            resource.setrlimit(resource.RLIMIT_AS, (int(memory), hard))
    if os.getppid() != int(parent):
        sys.exit(1)
    with Connection(int(descriptor)) as connection, suppress(EOFError, OSError):
        reply = _run_task(prepare or "builtins:list", (), int(memory))
        # What the imports made is never garbage. sympy makes many objects: collect less often.
        gc.freeze()
        gc.set_threshold(10_000)
        while True:
            connection.send_bytes(reply)
            name, arguments, seconds = msgspec.msgpack.decode(connection.recv_bytes())
            signal.alarm(int(seconds) + 10)  # where the parent was killed, it kills no worker
            reply = _run_task(name, arguments, int(memory))
            signal.alarm(0)


def _run_task(name: str, arguments: Sequence[Any], memory: int) -> bytes:
    """Call a function; the reply has its result or what it raised, and whether there is memory."""
    module, _, attribute = name.partition(":")
    try:
        result = getattr(importlib.import_module(module), attribute)(*arguments)
        return msgspec.msgpack.encode((result, None, _has_memory(memory)))
    except Exception as problem:  # noqa: BLE001 - raised in the parent
        failure = (type(problem).__name__, printable_error(problem)[:2000])
        return msgspec.msgpack.encode((None, failure, _has_memory(memory)))


def _has_memory(limit: int) -> bool:
    """Return whether half of it is free; else another worker takes over."""
    if sys.platform != "linux":
        return True
    # Not `ru_maxrss`, which a process takes over from the one that started it.
    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    return pages * resource.getpagesize() < limit / 2
