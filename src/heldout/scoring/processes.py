"""A worker process as the pool has it: the tasks that were sent to it, and what became of them.

A worker has one task, or one more ahead. Each is sent with a token, a byte in a pipe that both
sides can read: whoever reads it has the task. So what can be taken back is never begun,
and of the tasks of a worker that has died it is known which one it died of.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import TaskFailed, TaskTimeout, WorkerDied, WorkerError
from heldout.scoring.working import Closed, Messages, Reply

START_SECONDS = 120.0
GRACE_SECONDS = 2.0
"""After which a worker that its own alarm did not end (it is stopped, say) is killed from here."""


class Task(Future[Any]):
    def __init__(self, withdraw: Callable[[Task], bool], request: bytes, seconds: float) -> None:
        super().__init__()
        self._withdraw, self.request, self.seconds = withdraw, request, seconds
        self.tries = 0
        self.begun = self.withdrawn = False
        self.ahead_at: Worker | None = None

    def cancel(self) -> bool:
        """Whether it is never begun."""
        return self._withdraw(self) and super().cancel()


class Workers:
    """What all of a pool have in common."""

    def __init__(self, prepare: str | None, memory: int) -> None:
        self.prepare, self.memory = prepare, memory
        self.lock = threading.RLock()  # a pool may be collected, and closed, anywhere
        self.running: set[Worker] = set()
        self.closed = False


class Worker:
    """A worker process, the socket to it, and the tasks that it has: one, or one more ahead."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._tasks: deque[Task] = deque()
        self._taken_back = False
        """It has a task without a token, which it is going to skip."""
        self._socket, theirs = socket.socketpair()
        self._tokens, self._hand_out = os.pipe()
        os.set_blocking(self._tokens, False)
        self._messages = Messages(self._socket)
        # In the search path of this process, and not in the working directory unless that is in it.
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        # The order of sets of symbols is part of what sympy does: the same in every run. One thread
        # each, as there is a worker for each core.
        environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        environment |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = "from heldout.scoring.working import serve; serve()"
        inherited = (theirs.fileno(), self._tokens)
        settings = [*inherited, os.getpid(), workers.memory, workers.prepare or ""]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", command, *map(str, settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=inherited,
                env=environment,
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
        with workers.lock:
            workers.running.add(self)
        try:
            if workers.closed:
                raise WorkerDied("the pool was closed")
            ready = self._receive(START_SECONDS)
            if ready.failed is not None:
                raise TaskFailed(*ready.failed)
        except BaseException:
            self.end()
            raise

    # Called with the lock held.

    def has_room(self) -> bool:
        return len(self._tasks) == 1 and not self._taken_back

    def assign(self, task: Task) -> None:
        """The token first: a task without one is skipped."""
        os.write(self._hand_out, b"t")
        self._tasks.append(task)

    def take_back(self) -> Task | None:
        """The task that it has ahead, where it has one and has not taken it up."""
        if len(self._tasks) < 2 or not self._unclaimed(1):
            return None
        task = self._tasks.pop()
        task.ahead_at = None
        self._taken_back = True
        return task

    def _unclaimed(self, most: int) -> int:
        """How many tokens are left in the pipe, which are now ours."""
        try:
            return len(os.read(self._tokens, most))
        except BlockingIOError:
            return 0

    # Called by its thread.

    def is_busy(self) -> bool:
        with self._workers.lock:
            return bool(self._tasks) or self._taken_back

    def advance(self) -> Task:
        """The task that is done; the next one is taken up."""
        with self._workers.lock:
            done = self._tasks.popleft()
            if self._tasks:
                self._tasks[0].begun, self._tasks[0].ahead_at = True, None
            return done

    def send(self, task: Task) -> None:
        try:
            self._socket.settimeout(task.seconds + GRACE_SECONDS)
            self._socket.sendall(task.request)
        except OSError:
            raise self._why_gone(task.seconds) from None

    def receive(self) -> Reply:
        with self._workers.lock:
            seconds = self._tasks[0].seconds if self._tasks else 0.0
        reply = self._receive(seconds)
        if reply.skipped:
            with self._workers.lock:
                self._taken_back = False
        return reply

    def _receive(self, seconds: float) -> Reply:
        try:
            body = self._messages.receive(time.monotonic() + seconds + GRACE_SECONDS)
            return msgspec.msgpack.decode(body, type=Reply)
        except TimeoutError:
            self.process.kill()
            raise TaskTimeout(_too_long(seconds)) from None
        except (Closed, OSError, msgspec.MsgspecError):
            raise self._why_gone(seconds) from None

    def _why_gone(self, seconds: float) -> WorkerError:
        if self._workers.closed:
            return WorkerDied("the pool was closed before the task was done")
        try:
            code = self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerDied("the worker process closed its connection")
        if code == -signal.SIGALRM:
            return TaskTimeout(_too_long(seconds))
        how = f"by {_signal_name(-code)}" if code < 0 else f"with exit code {code}"
        return WorkerDied(f"the worker process ended {how}")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def end(self) -> tuple[list[Task], list[Task]]:
        """Tasks that it had begun, and those that it had not."""
        self.kill()
        with self._workers.lock:
            self._workers.running.discard(self)
            tasks = [*self._tasks]
            self._tasks.clear()
            begun = len(tasks) - self._unclaimed(len(tasks) + 1)
            self._close()
        return tasks[:begun], tasks[begun:]

    def _close(self) -> None:
        self._socket.close()
        os.close(self._tokens)
        os.close(self._hand_out)


def _too_long(seconds: float) -> str:
    return f"the task was not done after {seconds:g} s, and its process was ended"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
