"""Processes for work that must be killable: a grader that may hang, crash or eat all memory.

    pool = Pool(prepare="package.module:import_the_heavy_things")
    pool.run_sync("package.module:function", "argument", seconds=5.0)      # from any thread
    await pool.run("package.module:function", "argument", seconds=5.0)     # from any event loop

A worker (`working.py`) is a fresh interpreter, never a fork of a process that may hold threads or a
GPU, and it does not import the caller's script. What travels is msgpack of plain values: nothing is
unpickled. Time runs from where a worker takes up the task. The kernel ends a worker that is over
it, even in the middle of a bignum and without anybody watching; that is the task's error, a new
worker takes its place, and the other tasks go on. A task without a result raises a WorkerError:
TaskTimeout, TaskFailed or WorkerDied.

So that no core waits for this process, a worker has its next task before it is done with the one
before. Until it takes that up, the task can be taken back: it is where its caller cancels it, where
another worker has nothing to do, and where the worker dies of the one before.

A worker has the environment of this process less what looks like a secret: variables whose names
end in _KEY, _TOKEN, _SECRET or _PASSWORD or contain CREDENTIAL, in upper or lower case. It is no
sandbox: a worker is the same user, with the same files and network.

Without /proc (macOS) `memory` bounds nothing, and where this process is killed, a worker in the
middle of a task goes on until that is done or its time is over; on Linux it ends at once.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from typing import Any

import anyio

from heldout._aio import waker
from heldout.errors import InvalidInput, TaskFailed, WorkerDied, WorkerError, printable_error
from heldout.scoring.processes import GRACE_SECONDS, Task, Worker, Workers
from heldout.scoring.working import NUMBER_BYTES, Request, framed

MOST_AHEAD = 2**15
"""Bytes of a task that is sent ahead: they are in the kernel's buffer, and the sender not held."""
MOST_TRIES = 3
"""Workers that may die with a task that they have not taken up."""
MOST_SECONDS = 86_400.0
"""More is a mistake, and far more is beyond what the clocks of the system can hold."""


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class Pool:
    """Worker processes, started as tasks ask for them. All threads and event loops may share one.

    `prepare` names a function that every worker calls before its first task, on nobody's time.
    `memory` is how many bytes a worker may take beyond what it has then (on Linux alone).
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
        if not 0 < seconds <= MOST_SECONDS:
            raise InvalidInput(
                f"seconds must be a positive number of at most {MOST_SECONDS:g} (a day), "
                f"not {seconds!r}"
            )
        number = secrets.token_bytes(NUMBER_BYTES)
        request = framed(number, Request(function, list(arguments), seconds))
        shared = self._here()
        task = Task(shared.withdraw, number=number, request=request, seconds=seconds)
        shared.submit(task)
        return task

    def start(self, workers: int | None = None) -> None:
        """Have workers started and prepared in the background, before there is work for them."""
        self._here().grow(workers or self._size)

    def pids(self) -> list[int]:
        shared = self._here()
        with shared.lock:
            return [worker.process.pid for worker in shared.running]

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


class _Shared(Workers):
    """What the pool and its threads share; the threads do not keep the pool itself alive."""

    def __init__(self, size: int, prepare: str | None, memory: int) -> None:
        super().__init__(prepare, memory)
        self.size, self.starter = size, os.getpid()
        self.changed = threading.Condition(self.lock)
        self.tasks: deque[Task] = deque()
        self.unfinished = self.idle = 0
        self.threads: list[threading.Thread] = []

    def submit(self, task: Task) -> None:
        with self.lock:
            if self.closed:
                raise WorkerDied("the pool is closed")
            self.grow(self.unfinished + 1)  # first: where it fails, the task is not left here
            self.unfinished += 1
            self.tasks.append(task)
            self.changed.notify()

    def grow(self, wanted: int) -> None:
        with self.lock:
            while not self.closed and len(self.threads) < min(wanted, self.size):
                name = f"heldout-worker-{len(self.threads)}"
                thread = threading.Thread(target=_attend, args=(self,), name=name, daemon=True)
                try:
                    thread.start()
                except (RuntimeError, MemoryError) as problem:
                    raise WorkerDied(f"no thread for a worker: {_described(problem)}") from None
                self.threads.append(thread)

    def take(self) -> Task | None:
        """The next task, be it one that waits behind another's; None where the pool is closed."""
        with self.lock:
            while not self.closed:
                task = self._next()
                if task is None:
                    taken = (worker.take_back() for worker in self.running)
                    task = next((task for task in taken if task is not None), None)
                if task is not None:
                    task.begun = True
                    return task
                self.idle += 1
                self.changed.wait()
                self.idle -= 1
        return None

    def take_ahead(self, worker: Worker) -> Task | None:
        """The next task for a worker that is busy, unless another one has nothing to do."""
        with self.lock:
            if self.idle or self.closed or not worker.has_room():
                return None
            task = self._next(MOST_AHEAD)
            if task is not None:
                task.ahead_at = worker
                worker.assign(task)
            return task

    def _next(self, most_bytes: float = float("inf")) -> Task | None:
        while self.tasks and len(self.tasks[0].request) <= most_bytes:
            task = self.tasks.popleft()
            if not task.withdrawn:
                return task
        return None

    def withdraw(self, task: Task) -> bool:
        with self.lock:
            if task.begun or (task.ahead_at is not None and task.ahead_at.take_back() is None):
                return False
            if not task.withdrawn:
                task.withdrawn = True
                self.unfinished -= 1
            return True

    def put_back(self, task: Task) -> bool:
        """For another worker, as one is gone that had not taken it up."""
        with self.lock:
            task.tries += 1
            if self.closed or task.tries == MOST_TRIES:
                task.begun = True  # nobody may take it back from here on
                return False
            task.begun, task.ahead_at = False, None
            self.tasks.appendleft(task)
            self.changed.notify()
            return True

    def finish(self, task: Task, outcome: Any) -> None:
        with self.lock:
            self.unfinished -= 1
        if task.done():
            return  # whoever holds it has settled it by hand
        task.set_running_or_notify_cancel()
        if isinstance(outcome, WorkerError):
            task.set_exception(outcome)
        else:
            task.set_result(outcome)


def _attend(shared: _Shared) -> None:
    """Keep one worker: it is ready before a task is taken, and replaced when it is gone. Whatever
    goes wrong is the tasks' error and not the end of this thread: somebody waits for them."""
    worker: Worker | None = None
    while not shared.closed:
        unusable: WorkerError | None = None
        if worker is None:
            try:
                worker = Worker(shared)
            except Exception as problem:  # noqa: BLE001 - raised where the next task is waited for
                said = _described(problem)
                unusable = WorkerDied(f"no worker process could be started: {said}")
        task = shared.take()
        if task is None:
            break
        if worker is None:
            shared.finish(task, unusable)
        elif not _work_off(shared, worker, task):
            worker = None
        del task, unusable  # an exception and this frame would hold each other
    if worker is not None:
        worker.end()


def _work_off(shared: _Shared, worker: Worker, task: Task) -> bool:
    """A task, and those that are sent ahead meanwhile; False where the worker is gone then."""
    gone: WorkerError | None = None
    try:
        with shared.lock:
            worker.assign(task)
        worker.expect_silence()
        worker.send(task)
        while worker.is_busy():
            if following := shared.take_ahead(worker):
                worker.send(following)
            reply = worker.receive()
            if reply.skipped:
                continue
            outcome = reply.result if reply.failed is None else TaskFailed(*reply.failed)
            shared.finish(worker.advance(), outcome)
            if reply.last:
                gone = WorkerDied("the worker process had no memory left")
                break
    except WorkerError as problem:
        gone = problem
    except Exception as problem:  # noqa: BLE001 - raised where the task is waited for
        gone = WorkerDied(f"the worker process was given up: {_described(problem)}")
    if gone is None:
        return True
    worker.kill()
    with shared.lock:  # in one go: a task that is with nobody could not be taken back
        begun, waiting = worker.end()
        failed = begun + [each for each in reversed(waiting) if not shared.put_back(each)]
    for each in failed:
        shared.finish(each, gone)
    return False


def _described(problem: Exception) -> str:
    said = printable_error(problem)
    return said if isinstance(problem, WorkerError) else f"{type(problem).__name__}: {said}"


def _close(shared: _Shared) -> None:
    if shared.starter != os.getpid():
        return  # a forked child: the workers are its parent's
    with shared.lock:
        shared.closed = True
        threads, workers = list(shared.threads), list(shared.running)
        shared.changed.notify_all()
    for worker in workers:
        worker.process.kill()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(GRACE_SECONDS)
    with shared.lock:
        tasks = [task for task in shared.tasks if not task.withdrawn]
        shared.tasks.clear()
        for task in tasks:
            task.begun = True
    for task in tasks:
        shared.finish(task, WorkerDied("the pool was closed before the task was started"))
