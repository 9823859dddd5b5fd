"""A pool of worker processes for tasks that must be killable: sympy may hang, crash or fill memory.

    pool = Pool(prepare="package.module:import_heavy_modules")
    pool.run_sync("package.module:function", "argument", seconds=5.0)      # from any thread
    await pool.run("package.module:function", "argument", seconds=5.0)     # asyncio or trio

Each worker is a fresh interpreter, started by a thread of its own that sends it one task at a time.
It is never a fork of a process that may hold threads or a GPU, and it does not import the caller's
script, as the workers of `multiprocessing` and of the pools built on it do. Messages are msgpack of
plain values: nothing is unpickled. A task's time runs from the moment that its worker takes it up.
The kernel ends a worker that overruns, even in the middle of a bignum and without help from this
process; that is the error of one task, and a new worker replaces it. A task without a result raises
a WorkerError: TaskTimeout, TaskFailed or WorkerDied.

A worker has the environment of this process less what looks like a secret: variables whose names
end in _KEY, _TOKEN, _SECRET or _PASSWORD or contain CREDENTIAL, in upper or lower case. It is not a
sandbox: a worker is the same user, with the same files and network.

Workers end when this process is killed. Without /proc (macOS) `memory` limits nothing, and a worker
whose parent is killed first finishes its task or runs out of time.
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
from queue import Empty, SimpleQueue
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
"""After this much more, a worker that its own alarm did not end is killed from here."""
SLOW_SECONDS = 0.05
"""A faster task has not filled much memory, and its peak is not checked."""

_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


def available_cores() -> int:
    """Count the cores that this process may use.

    Returns:
        The number of cores, at least 1.
    """
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Pool:
    """Worker processes, started on demand and shared by any number of threads and event loops.

    A forked child that uses the pool gets workers of its own.
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

        Raises:
            InvalidInput: `size` is below 1.
        """
        if size is not None and size < 1:
            raise InvalidInput(f"a pool needs at least one worker, not {size}")
        self._size, self._prepare, self._memory = size or available_cores(), prepare, memory
        self._open()
        atexit.register(self.close)

    def _open(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._unfinished = 0
        self._threads: list[threading.Thread] = []
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def _open_after_fork(self) -> None:
        """Forget the workers, threads and locks of the parent."""
        if self._owner != os.getpid():
            self._open()

    async def run(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Run a task without blocking the event loop (asyncio or trio); arguments as in `submit`.

        When cancelled, a task that has not started never does; one that has ends within its limit.
        """
        done, wake = anyio.Event(), waker()
        future = self.submit(function, *arguments, seconds=seconds)
        future.add_done_callback(lambda _: wake(done.set))
        try:
            await done.wait()
        finally:
            future.cancel()
        return future.result()

    def run_sync(self, function: str, *arguments: Any, seconds: float) -> Any:
        """Run a task and block this thread until it is done; arguments as in `submit`."""
        future = self.submit(function, *arguments, seconds=seconds)
        try:
            return future.result()
        finally:
            future.cancel()

    def submit(self, function: str, *arguments: Any, seconds: float) -> Future[Any]:
        """Queue a task.

        Args:
            function: "module:function" to call in a worker.
            *arguments: Its arguments: None, booleans, numbers, strings, lists and dicts.
            seconds: Time limit of the task; time in the queue does not count.

        Returns:
            The future of what the function returns. It can be cancelled until the task starts, and
            raises a WorkerError where the task has no result.

        Raises:
            InvalidInput: The arguments are not plain values, or `seconds` is out of range.
            WorkerDied: The pool is closed.
        """
        if not 0 < seconds <= MAX_SECONDS:
            raise InvalidInput(
                f"seconds must be a positive number of at most {MAX_SECONDS:g} (a day), "
                f"not {seconds!r}"
            )
        request = _encode(_Request(function, list(arguments), seconds))
        future: Future[Any] = Future()
        self._open_after_fork()
        with self._lock:
            if self._closed:
                raise WorkerDied("the pool is closed")
            self._grow(self._unfinished + 1)
            self._unfinished += 1
            self._tasks.put(_Task(future, request, seconds))
        future.add_done_callback(self._count_finished)
        return future

    def start(self) -> None:
        """Start and prepare all workers in the background, before there are tasks for them."""
        self._open_after_fork()
        with self._lock:
            self._grow(self._size)

    def pids(self) -> list[int]:
        """List the process ids of the workers that run."""
        self._open_after_fork()
        with self._lock:
            return [process.pid for process in self._processes]

    def close(self) -> None:
        """Kill all workers; tasks without a result get WorkerDied. Done at exit anyway."""
        if self._owner != os.getpid():
            return
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(GRACE_SECONDS)
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None and task.future.set_running_or_notify_cancel():
                    task.future.set_exception(WorkerDied("the pool was closed before the task"))

    def _count_finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1

    def _grow(self, wanted: int) -> None:
        while len(self._threads) < min(wanted, self._size):
            name = f"heldout-worker-{len(self._threads)}"
            thread = threading.Thread(target=self._serve_queue, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve_queue(self) -> None:
        """Keep one worker and send it tasks: a thread. It is prepared before a task is taken."""
        worker: _Worker | None = None
        while not self._closed:
            failure: Exception | None = None
            try:
                worker = worker or self._start_worker()
            except Exception as problem:  # noqa: BLE001 - raised where the next task is awaited
                failure = problem
            task = self._tasks.get()
            if task is None:
                break
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                if worker is not None and worker.process.poll() is not None:
                    self._end_worker(worker)  # it was killed between two tasks
                    worker = self._start_worker()
                if worker is None:
                    raise failure or WorkerDied("no worker process")
                reply = worker.run(task)
            except Exception as problem:  # noqa: BLE001 - raised where the task is awaited
                reply = _Reply(is_last=True)
                closed = WorkerDied("the pool was closed before the task was done")
                task.future.set_exception(closed if self._closed else problem)
            else:
                if reply.failure is None:
                    task.future.set_result(reply.result)
                else:
                    task.future.set_exception(TaskFailed(*reply.failure))
            if worker is not None and reply.is_last:
                self._end_worker(worker)
                worker = None
            del task, failure  # an exception and this frame would keep each other alive
        if worker is not None:
            self._end_worker(worker)

    def _start_worker(self) -> _Worker:
        with self._lock:
            if self._closed:
                raise WorkerDied("the pool is closed")
            worker = _Worker(self._prepare or "", self._memory)
            self._processes.add(worker.process)
        try:
            ready = worker.receive(START_SECONDS)
            if ready.failure is not None:
                raise WorkerDied(f"the worker could not be prepared: {': '.join(ready.failure)}")
        except WorkerError:
            self._end_worker(worker)
            raise
        return worker

    def _end_worker(self, worker: _Worker) -> None:
        worker.end()
        with self._lock:
            self._processes.discard(worker.process)


# --- Workers as this process sees them ------------------------------------------------------------


class _Request(msgspec.Struct, array_like=True, frozen=True):
    function: str
    arguments: list[Any]
    seconds: float


class _Reply(msgspec.Struct, array_like=True, frozen=True):
    result: Any = None
    failure: tuple[str, str] | None = None
    """The name of the exception and its message."""
    is_last: bool = False
    """The worker ends after this reply."""


class _Task(NamedTuple):
    future: Future[Any]
    request: bytes
    seconds: float


class _Worker:
    """A worker process and the connection to it."""

    def __init__(self, prepare: str, memory: int) -> None:
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
            except (OSError, TypeError) as problem:
                raise WorkerDied(
                    f"no worker process could be started with {sys.executable!r} (sys.executable): "
                    f"{problem}"
                ) from None

    def run(self, task: _Task) -> _Reply:
        with suppress(OSError):  # the worker is gone: `receive` says why
            self._connection.send_bytes(task.request)
        return self.receive(task.seconds)

    def receive(self, seconds: float) -> _Reply:
        overrun = TaskTimeout(f"not done after {seconds:g} s, and its process was killed")
        try:
            if not self._connection.poll(seconds + GRACE_SECONDS):
                raise overrun
            return msgspec.msgpack.decode(self._connection.recv_bytes(), type=_Reply)
        except (EOFError, OSError):
            code = self.process.wait()
        if code == -signal.SIGALRM:
            raise overrun
        cause = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise WorkerDied(f"the worker process ended {cause}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._connection.close()


def _worker_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not _is_secret(name)}
    # The search path of this process; the working directory only where that is part of it.
    kept["PYTHONPATH"] = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    # sympy's results depend on the order of sets of symbols: the same in every run.
    kept["PYTHONHASHSEED"] = "0"
    # One thread each, as there is a worker per core.
    return kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _is_secret(name: str) -> bool:
    name = name.upper()
    return f"_{name}".endswith(_SECRET_ENDINGS) or "CREDENTIAL" in name


def _encode(message: _Request | _Reply) -> bytes:
    try:
        return msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidInput(
            f"only plain values go to a worker process and back: {printable_error(problem)}"
        ) from None


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
            connection.send_bytes(_encode(_describe_failure(problem)))
            return
        # What the imports made is never garbage. sympy makes many objects: collect less often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000)
        limit = _MemoryLimit(int(memory))
        connection.send_bytes(_encode(_Reply()))
        while True:
            reply = _run_task(connection.recv_bytes(), limit)
            try:
                message = _encode(reply)
            except InvalidInput as problem:
                message = _encode(_describe_failure(problem))
            connection.send_bytes(message)
            if reply.is_last:
                return


def _find_function(name: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return function


def _run_task(message: bytes, limit: _MemoryLimit) -> _Reply:
    request = msgspec.msgpack.decode(message, type=_Request)
    memory_before, started = limit.resident(), time.monotonic()
    try:
        function = _find_function(request.function)
        signal.setitimer(signal.ITIMER_REAL, request.seconds)
        try:
            result = function(*request.arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except MemoryError:
        return limit.refuse()
    except Exception as problem:  # noqa: BLE001 - raised in the parent
        return _describe_failure(problem)
    if time.monotonic() - started > SLOW_SECONDS and limit.was_reached(memory_before):
        return limit.refuse()
    return _Reply(result, is_last=limit.is_near())


def _describe_failure(problem: Exception) -> _Reply:
    return _Reply(failure=(type(problem).__name__, printable_error(problem)[:2000]))


class _MemoryLimit:
    """The memory that tasks may allocate beyond what there was at the start; 0 is no limit."""

    def __init__(self, limit: int) -> None:
        self._start = self.resident()
        self._limit = limit if self._start else 0
        if self._limit:
            soft, hard = _kernel_figure("VmSize") + limit, resource.getrlimit(resource.RLIMIT_AS)[1]
            if hard != resource.RLIM_INFINITY:
                soft = min(soft, hard)
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def resident(self) -> int:
        """Bytes in use; 0 where there is no /proc."""
        try:
            pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        except (OSError, MemoryError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def was_reached(self, before: int) -> bool:
        """Guess whether memory was refused in a task that may have caught the MemoryError.

        math-verify catches it with everything else and then says "not equal". A number that grows
        by doubling is refused with a third of the limit in use. ru_maxrss would include the
        parent's peak; VmHWM does not.
        """
        return bool(self._limit) and _kernel_figure("VmHWM") - before > self._limit // 3

    def is_near(self) -> bool:
        """Whether caches have grown so far over many tasks that a new worker should take over."""
        return bool(self._limit) and self.resident() - self._start > self._limit // 3

    def refuse(self) -> _Reply:
        message = f"the task needed about {self._limit} bytes, all that a worker may allocate"
        return _Reply(failure=("MemoryError", message), is_last=True)


def _kernel_figure(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def _end_with_parent(parent: int) -> None:
    """Have the kernel kill this process with its parent, even in the middle of a task."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
