"""Worker processes for tasks that must be killable: sympy may hang, crash or fill the memory.

    pool = Pool(prepare="package.module:import_heavy_modules")
    pool.run_sync("package.module:function", "argument", seconds=5.0)      # from any thread
    await pool.run("package.module:function", "argument", seconds=5.0)     # asyncio or trio

A worker is a fresh interpreter with one thread here that sends it one task at a time. It is not a
fork of a process that may hold threads or a GPU, and it does not import the caller's script, as
workers of `multiprocessing` (and of pebble) do. Messages are msgpack of plain values: nothing is
unpickled. A task's time starts when its worker takes it. The worker's own alarm kills it, even in
the middle of a bignum; that is the error of one task, and another worker replaces it.

Workers do not see environment variables that look like secrets (_KEY, _TOKEN, _SECRET, _PASSWORD at
the end, CREDENTIAL anywhere). They are no sandbox: same user, same files, same network. The kernel
kills them with this process. Without /proc (macOS) `memory` limits nothing, and a worker whose
parent was killed goes on until its task ends or its time is up.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
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
GRACE_SECONDS = 2.0
"""How much later a worker that ignores its alarm is killed from here."""
SLOW_SECONDS = 0.05
"""A faster task cannot have filled much memory, and its peak is not checked."""


def available_cores() -> int:
    """Count the cores that this process may use.

    Returns:
        The number of cores, at least 1.
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class _Task(NamedTuple):
    future: Future[Any]
    request: bytes
    seconds: float


class Pool:
    """Workers that start on demand, shared by threads and event loops; a forked child has its own.

    A task without a result raises a WorkerError: TaskTimeout, TaskFailed or WorkerDied.
    """

    def __init__(
        self, size: int | None = None, *, prepare: str | None = None, memory: int = 2**30
    ) -> None:
        """Make a pool. No process is started yet.

        Args:
            size: The maximum number of workers; one per core by default.
            prepare: "module:function", called in every worker before its first task.
            memory: Bytes that a worker may allocate beyond what it has then (Linux only); 0 for
                no limit.
        """
        self._size, self._prepare, self._memory = size or available_cores(), prepare or "", memory
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
            *arguments: Its arguments, as for `submit`.
            seconds: Time limit of the task.

        Returns:
            What the function returned.

        Raises:
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
        """Queue a task.

        Args:
            function: "module:function" to call in a worker.
            *arguments: Its arguments: None, booleans, numbers, strings, lists and dicts.
            seconds: Time limit of the task; time in the queue does not count.

        Returns:
            The future of what the function returns. It can be cancelled until the task starts.

        Raises:
            InvalidInput: The arguments are not plain values, or `seconds` is out of range.
            WorkerDied: The pool is closed.
        """
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidInput(
                f"seconds must be a positive number of at most {MAX_SECONDS:g}, not {seconds!r}"
            )
        try:
            request = msgspec.msgpack.encode((function, arguments, seconds))
        except (TypeError, ValueError, OverflowError) as problem:
            raise InvalidInput(
                f"only plain values go to a worker process: {printable_error(problem)}"
            ) from None
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise WorkerDied("the pool is closed")
            self._unfinished += 1
            self._start_threads(self._unfinished)
            self._tasks.put(_Task(future, request, seconds))
        future.add_done_callback(self._count_finished)
        return future

    def _count_finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1

    def start(self) -> None:
        """Start and prepare all workers in the background, before there are tasks for them."""
        with self._lock:
            self._start_threads(self._size)

    def _start_threads(self, wanted: int) -> None:
        while len(self._threads) < min(wanted, self._size):
            name = f"heldout-worker-{len(self._threads)}"
            thread = threading.Thread(target=self._serve_queue, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

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
            thread.join(GRACE_SECONDS)

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
                    [str(sys.executable), "-P", "-c", code, *map(str, settings)],
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
        overrun = TaskTimeout(f"not done after {seconds:g} s, and its process was killed")
        try:
            if not self._connection.poll(seconds + GRACE_SECONDS):
                raise overrun
            result, failure, self.is_usable = msgspec.msgpack.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            code = self.process.wait()
            if code == -signal.SIGALRM:
                raise overrun from None
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
    kept = {name: value for name, value in os.environ.items() if not _is_secret(name.upper())}
    # The search path of this process; the working directory only where that is part of it.
    kept["PYTHONPATH"] = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    # sympy's results depend on the order of sets of symbols: the same in every run.
    kept["PYTHONHASHSEED"] = "0"
    # One thread each, as there is a worker per core.
    return kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _is_secret(name: str) -> bool:
    endings = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
    return f"_{name}".endswith(endings) or "CREDENTIAL" in name


# --- The worker process ---------------------------------------------------------------------------


def serve() -> None:
    """Run tasks until the parent is gone or memory is short: the main function of a worker."""
    descriptor, parent, memory, prepare = sys.argv[1:]
    _end_with_parent(int(parent))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    with Connection(int(descriptor)) as connection, suppress(EOFError, OSError):
        try:
            if prepare:
                _find_function(prepare)()
        except Exception as problem:  # noqa: BLE001 - raised in the parent
            connection.send_bytes(_encode_failure(problem))
            return
        # What the imports made is never garbage. sympy makes many objects: collect less often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)
        limit = _MemoryLimit(int(memory))
        connection.send_bytes(msgspec.msgpack.encode((None, None, True)))
        while True:
            connection.send_bytes(_run_task(connection.recv_bytes(), limit))


def _find_function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


def _run_task(request: bytes, limit: _MemoryLimit) -> bytes:
    name, arguments, seconds = msgspec.msgpack.decode(request)
    started = time.monotonic()
    try:
        function = _find_function(name)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            result = function(*arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if time.monotonic() - started > SLOW_SECONDS and limit.was_reached():
            raise MemoryError
        return msgspec.msgpack.encode((result, None, not limit.is_near()))
    except MemoryError:
        needed = f"the task needed about {limit.bytes} bytes, all that a worker may allocate"
        return _encode_failure(MemoryError(needed))
    except Exception as problem:  # noqa: BLE001 - raised in the parent
        return _encode_failure(problem, is_usable=True)


def _encode_failure(problem: Exception, *, is_usable: bool = False) -> bytes:
    failure = (type(problem).__name__, printable_error(problem)[:2000])
    return msgspec.msgpack.encode((None, failure, is_usable))


class _MemoryLimit:
    """The memory that tasks may allocate beyond what there was at the start; 0 is no limit."""

    def __init__(self, limit: int) -> None:
        self.bytes = limit if Path("/proc/self/statm").exists() else 0
        if self.bytes:
            self._start = self._before = _resident_bytes()
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            soft = _kernel_figure("VmSize") + limit
            if hard != resource.RLIM_INFINITY:
                soft = min(soft, hard)
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def was_reached(self) -> bool:
        """Guess whether memory was refused in a task that may have caught the MemoryError.

        math-verify catches it with everything else and then says "not equal". A number that grows
        by doubling is refused with a third of the limit in use. ru_maxrss would include the
        parent's peak; VmHWM does not.
        """
        return bool(self.bytes) and _kernel_figure("VmHWM") - self._before > self.bytes // 3

    def is_near(self) -> bool:
        """Tell whether caches have grown so far that a new worker should take over."""
        if not self.bytes:
            return False
        self._before = _resident_bytes()
        return self._before - self._start > self.bytes // 3


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _kernel_figure(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process with the thread that started it, even during a task."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
