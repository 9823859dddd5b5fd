"""Processes for work that must be killable: a grader that may hang, crash or eat all memory.

    pool = Pool(prepare="package.module:import_the_heavy_things")
    pool.run_sync("package.module:function", "argument", seconds=5.0)      # from any thread
    await pool.run("package.module:function", "argument", seconds=5.0)     # from any event loop

A worker is a fresh interpreter, never a fork of a process that may hold threads or a GPU, and it
does not import the caller's script. What travels is msgpack of plain values: nothing is unpickled.
Time runs from where a worker takes up the task. The kernel ends a worker that is over it (an alarm
without a handler: it works in the middle of a bignum, and without anybody watching); that is the
task's error, a new worker takes its place, and the other tasks go on. A task without a result
raises a WorkerError: TaskTimeout, TaskFailed or WorkerDied.
"""

from __future__ import annotations

import importlib
import os
import queue
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from heldout.concurrency import waker
from heldout.errors import (
    InvalidInput,
    TaskFailed,
    TaskTimeout,
    WorkerDied,
    WorkerError,
    printable_error,
)

START_SECONDS = 120.0
GRACE_SECONDS = 2.0
"""After which a worker that its own alarm did not end (it is stopped, say) is killed from here."""
MOST_BYTES = 2**26
LONGEST_MESSAGE = 2000
HEADER = 4
SLOW_SECONDS = 0.05
"""A task that is done sooner has not filled much memory, and is not asked."""

T = TypeVar("T")


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Pool:
    """Worker processes, started as tasks ask for them. All threads and event loops may share one.

    `prepare` names a function that every worker calls before its first task, on nobody's time.
    `memory` is how many bytes a worker may take beyond what it has then.
    A forked child that uses the pool gets workers of its own.
    """

    def __init__(
        self, size: int | None = None, *, prepare: str | None = None, memory: int = 2**30
    ) -> None:
        if size is not None and size < 1:
            raise InvalidInput(f"a pool needs at least one worker, not {size}")
        self._size, self._prepare, self._memory = size or available_cores(), prepare, memory
        self._replacing = threading.Lock()
        self._open()

    def run_sync(self, function: str, *arguments: Any, seconds: float) -> Any:
        """What the function returns, as plain values. Blocks this thread alone."""
        future = self.submit(function, *arguments, seconds=seconds)
        try:
            return future.result()
        finally:
            future.cancel()

    async def run(self, function: str, *arguments: Any, seconds: float) -> Any:
        """The same for asyncio and trio. Where it is cancelled, a task that no worker has taken up
        is never started; one that was ends within its time."""
        done, wake = anyio.Event(), waker()
        future = self.submit(function, *arguments, seconds=seconds)
        future.add_done_callback(lambda _: wake(done.set))
        try:
            await done.wait()
        finally:
            future.cancel()
        return future.result()

    def submit(self, function: str, *arguments: Any, seconds: float) -> Future[Any]:
        if not 0 < seconds < float("inf"):
            raise InvalidInput(f"seconds must be a positive number, not {seconds!r}")
        request = _encoded(_Request(function, list(arguments), seconds))
        task = _Task(request, seconds)
        self._here().submit(task)
        return task.future

    def start(self, workers: int | None = None) -> None:
        """Have workers started and prepared in the background, before there is work for them."""
        self._here().grow(workers or self._size)

    def pids(self) -> list[int]:
        with self._shared.lock:
            return [worker.process.pid for worker in self._shared.workers]

    def close(self) -> None:
        """End all workers. Tasks without a result get WorkerDied. Closed at exit by itself."""
        self._end()

    def _here(self) -> _Shared:
        if self._shared.starter != os.getpid():
            with self._replacing:
                if self._shared.starter != os.getpid():
                    self._end.detach()
                    self._open()
        return self._shared

    def _open(self) -> None:
        self._shared = _Shared(self._size, self._prepare, self._memory)
        self._end = weakref.finalize(self, _close, self._shared)


# --- Behind the pool: a thread for each worker ---------------------------------------------------


@dataclass(slots=True, eq=False)
class _Task:
    request: bytes
    seconds: float
    future: Future[Any] = field(default_factory=Future)


class _Shared:
    """What the pool and its threads share; the threads do not keep the pool itself alive."""

    def __init__(self, size: int, prepare: str | None, memory: int) -> None:
        self.size, self.prepare, self.memory = size, prepare, memory
        self.starter = os.getpid()
        self.lock = threading.RLock()  # a pool may be collected, and closed, anywhere
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self.unfinished = 0
        self.threads: list[threading.Thread] = []
        self.workers: set[_Worker] = set()
        self.closed = False

    def submit(self, task: _Task) -> None:
        with self.lock:
            if self.closed:
                raise WorkerDied("the pool is closed")
            self.unfinished += 1
            self.tasks.put(task)
            wanted = self.unfinished
        self.grow(wanted)

    def grow(self, wanted: int) -> None:
        with self.lock:
            while not self.closed and len(self.threads) < min(wanted, self.size):
                name = f"heldout-worker-{len(self.threads)}"
                thread = threading.Thread(target=_attend, args=(self,), name=name, daemon=True)
                self.threads.append(thread)
                thread.start()

    def finish(self, task: _Task, outcome: Any) -> None:
        with self.lock:
            self.unfinished -= 1
        if isinstance(outcome, WorkerError):
            task.future.set_exception(outcome)
        else:
            task.future.set_result(outcome)


def _attend(shared: _Shared) -> None:
    """Keep one worker: it is ready before a task is taken, and replaced when it is gone."""
    worker: _Worker | None = None
    while not shared.closed:
        unusable: WorkerError | None = None
        if worker is None:
            try:
                worker = _Worker(shared)
            except (WorkerError, OSError) as problem:
                unusable = WorkerDied(f"no worker process could be started: {problem}")
        task = shared.tasks.get()
        if task is None:
            break
        if not task.future.set_running_or_notify_cancel():
            with shared.lock:
                shared.unfinished -= 1
            continue
        outcome: Any = unusable
        if worker is not None:
            try:
                reply = worker.ask(task.request, task.seconds)
            except WorkerError as problem:
                outcome, gone = problem, True
            else:
                outcome = reply.result if reply.failed is None else TaskFailed(*reply.failed)
                gone = reply.last
            if gone:
                worker.end()
                worker = None
        shared.finish(task, outcome)
        del task, outcome, unusable  # an exception and this frame would hold each other
    if worker is not None:
        worker.end()


class _Worker:
    """A worker process and the socket to it."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared
        self._socket, theirs = socket.socketpair()
        # In the search path of this process, and not in the working directory unless that is in it.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        # The order of sets of symbols is part of what sympy does: the same in every run. One thread
        # each, as there is a worker for each core.
        environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = "from heldout.scoring.workers import _serve; _serve()"
        settings = [theirs.fileno(), os.getpid(), shared.memory, shared.prepare or ""]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", command, *map(str, settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        with shared.lock:
            shared.workers.add(self)
        try:
            if shared.closed:
                raise WorkerDied("the pool was closed")
            try:
                ready = self._receive(START_SECONDS)
            except _Gone:
                raise self._why_gone(START_SECONDS) from None
            if ready.failed is not None:
                raise TaskFailed(*ready.failed)
        except BaseException:
            self.end()
            raise

    def ask(self, request: bytes, seconds: float) -> _Reply:
        limit = seconds + GRACE_SECONDS
        try:
            self._socket.settimeout(limit)
            self._socket.sendall(request)
            return self._receive(limit)
        except TimeoutError:
            self.process.kill()
            raise TaskTimeout(_too_long(seconds)) from None
        except (_Gone, OSError):
            raise self._why_gone(seconds) from None

    def _receive(self, seconds: float) -> _Reply:
        until = time.monotonic() + seconds
        data = bytearray()
        while (size := _missing(data)) > 0:
            self._socket.settimeout(max(until - time.monotonic(), 0.001))
            part = self._socket.recv(min(size, 2**20))
            if not part:
                raise _Gone
            data += part
        try:
            return _decoded(data, _Reply)
        except msgspec.MsgspecError:
            raise _Gone from None

    def _why_gone(self, seconds: float) -> WorkerError:
        if self._shared.closed:
            return WorkerDied("the pool was closed before the task was done")
        try:
            code = self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerDied("the worker process closed its connection")
        if code == -signal.SIGALRM:
            return TaskTimeout(_too_long(seconds))
        how = f"by {_signal_name(-code)}" if code < 0 else f"with exit code {code}"
        return WorkerDied(f"the worker process ended {how}")

    def end(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._socket.close()
        with self._shared.lock:
            self._shared.workers.discard(self)


class _Gone(Exception):
    """The worker closed its end."""


def _too_long(seconds: float) -> str:
    return f"the task was not done after {seconds:g} s, and its process was ended"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _close(shared: _Shared) -> None:
    if shared.starter != os.getpid():
        return  # a forked child: the workers are its parent's
    with shared.lock:
        shared.closed = True
        threads, workers = list(shared.threads), list(shared.workers)
    for worker in workers:
        worker.process.kill()
    for _ in threads:
        shared.tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(GRACE_SECONDS)
    with suppress(queue.Empty):
        while True:
            task = shared.tasks.get_nowait()
            if task is not None and task.future.set_running_or_notify_cancel():
                shared.finish(task, WorkerDied("the pool was closed before the task was started"))


# --- Messages ------------------------------------------------------------------------------------


class _Request(msgspec.Struct, array_like=True, frozen=True):
    function: str
    arguments: list[Any]
    seconds: float


class _Reply(msgspec.Struct, array_like=True, frozen=True):
    result: Any = None
    failed: tuple[str, str] | None = None
    """The name of the exception and its message."""
    last: bool = False
    """The worker ends after this one."""


def _encoded(message: _Request | _Reply) -> bytes:
    try:
        body = msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidInput(
            f"only plain values go to a worker process and back: {printable_error(problem)}"
        ) from None
    if len(body) > MOST_BYTES:
        raise InvalidInput(f"a message of {len(body)} bytes; at most {MOST_BYTES} go to a worker")
    return len(body).to_bytes(HEADER) + body


def _missing(data: bytes | bytearray) -> int:
    """How many bytes a frame still lacks, as far as one can tell."""
    if len(data) < HEADER:
        return HEADER - len(data)
    return HEADER + int.from_bytes(data[:HEADER]) - len(data)


def _decoded(data: bytes | bytearray, kind: type[T]) -> T:
    return msgspec.msgpack.decode(memoryview(data)[HEADER:], type=kind)


# --- In the worker -------------------------------------------------------------------------------
#
# One task at a time until the socket closes: a worker ends with its parent. In the middle of a task
# it ends by its alarm, and on Linux with its parent at once. It goes of its own account where
# memory has become short, and says so in its last reply.


def _serve() -> None:
    descriptor, parent, memory, prepare = sys.argv[-4:]
    _end_with(int(parent))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    with socket.socket(fileno=int(descriptor)) as connection, suppress(ConnectionError):
        try:
            if prepare:
                _find(prepare)()
        except Exception as problem:  # noqa: BLE001 - told to whoever waits for this worker
            connection.sendall(_encoded(_failure(problem, last=True)))
            return
        allowance = _Allowance(int(memory))
        connection.sendall(_encoded(_Reply()))
        while (request := _receive(connection)) is not None:
            reply = _answer(request, allowance)
            try:
                frame = _encoded(reply)
            except InvalidInput as problem:
                frame = _encoded(_failure(problem))
            connection.sendall(frame)
            if reply.last:
                return


def _find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _answer(request: _Request, allowance: _Allowance) -> _Reply:
    try:
        function = _find(request.function)
        before, started = allowance.used(), time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, request.seconds)
        try:
            result = function(*request.arguments)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except MemoryError:
        return allowance.refused()
    except Exception as problem:  # noqa: BLE001 - raised in the parent
        return _failure(problem)
    if time.monotonic() - started > SLOW_SECONDS and allowance.was_short(before):
        # Packages catch MemoryError with everything else, and then say "not equal".
        return allowance.refused()
    return _Reply(result, last=allowance.is_short())


def _failure(problem: Exception, *, last: bool = False) -> _Reply:
    message = printable_error(problem)[:LONGEST_MESSAGE]
    return _Reply(failed=(type(problem).__name__, message), last=last)


def _receive(connection: socket.socket) -> _Request | None:
    data = bytearray()
    while (size := _missing(data)) > 0:
        part = connection.recv(min(size, 2**20))
        if not part:
            return None
        data += part
    return _decoded(data, _Request)


class _Allowance:
    """Memory beyond what there was at the start. Refused by the kernel above it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._at_start = limit, self.used()
        if self._at_start and limit:
            total = _status("VmSize") + limit
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            if hard != resource.RLIM_INFINITY:
                total = min(total, hard)
            resource.setrlimit(resource.RLIMIT_AS, (total, hard))

    def refused(self) -> _Reply:
        said = f"the task needed about {self._limit} bytes, which is all that a worker may take"
        return _Reply(failed=("MemoryError", said), last=True)

    def used(self) -> int:
        """0 where the system does not tell."""
        try:
            pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        except (OSError, MemoryError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def was_short(self, before: int) -> bool:
        """A number that grows by doubling is refused with a third of the limit in use. The peak is
        asked of the kernel as of this program: ru_maxrss has the parent's in it."""
        return bool(self._limit and before and _status("VmHWM") - before > self._limit // 3)

    def is_short(self) -> bool:
        """Caches have grown over many tasks."""
        return bool(self._limit and self.used() - self._at_start > self._limit // 3)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _end_with(parent: int) -> None:
    """A socket that closes is not seen in the middle of a task; this is."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
