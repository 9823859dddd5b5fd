"""A worker process as the pool has it: the tasks that were sent to it, and what became of them.

A worker has one task, or one more ahead. Each is sent with a token, a byte in a pipe that both
sides can read: whoever reads it has the task. So what can be taken back is never begun,
and of the tasks of a worker that has died it is known which one it died of. A reply counts only
with the number of its task, which nobody can guess: what a worker says beside that is nobody's
result, and is the end of it.
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
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from heldout.errors import TaskFailed, TaskTimeout, WorkerDied, WorkerError
from heldout.scoring.working import STARTING, Closed, Messages, Reply

HELLO_SECONDS = 30.0
"""Until a worker says that it runs: what is no Python does not."""
START_SECONDS = 120.0
"""From there until it is prepared."""
GRACE_SECONDS = 2.0
"""After which a worker that its own alarm did not end (it is stopped, say) is killed from here."""

_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


class Task(Future[Any]):
    def __init__(
        self, withdraw: Callable[[Task], bool], *, number: bytes, request: bytes, seconds: float
    ) -> None:
        super().__init__()
        self._withdraw, self.number = withdraw, number
        self.request, self.seconds = request, seconds
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
        self._taken_back: bytes | None = None
        """The number of a task that it has without a token, and is going to skip."""
        python, environment = _this_python(), worker_environment(os.environ, sys.path)
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._tokens, self._hand_out = os.pipe()
            except OSError:
                self._socket.close()
                raise
            os.set_blocking(self._tokens, False)
            self._messages = Messages(self._socket)
            command = "from heldout.scoring.working import serve; serve()"
            inherited = (theirs.fileno(), self._tokens)
            settings = [*inherited, os.getpid(), workers.memory, workers.prepare or ""]
            try:
                self.process = subprocess.Popen(
                    [python, "-P", "-c", command, *map(str, settings)],
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
        with workers.lock:
            workers.running.add(self)
        try:
            if workers.closed:
                raise WorkerDied("the pool was closed")
            self._await_start(python)
        except BaseException:
            self.end()
            raise

    def _await_start(self, python: str) -> None:
        try:
            self._receive(HELLO_SECONDS, STARTING, late="it had not said a word")
        except WorkerError as problem:
            raise WorkerDied(
                f"{python} (sys.executable) does not run as a Python that has heldout: {problem}"
            ) from None
        ready = self._receive(START_SECONDS, STARTING, late="the worker was not prepared")
        if ready.failed is not None:
            raise TaskFailed(*ready.failed)

    # Called with the lock held.

    def has_room(self) -> bool:
        return len(self._tasks) == 1 and self._taken_back is None

    def assign(self, task: Task) -> None:
        """Before it is sent: a task without a token is skipped."""
        self._tasks.append(task)  # first, so that it is known whose it is, whatever happens
        os.write(self._hand_out, b"t")

    def take_back(self) -> Task | None:
        """The task that it has ahead, where it has one and has not taken it up."""
        if len(self._tasks) < 2 or not self._unclaimed(1):
            return None
        task = self._tasks.pop()
        task.ahead_at = None
        self._taken_back = task.number
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
            return bool(self._tasks) or self._taken_back is not None

    def advance(self) -> Task:
        """The task that is done; the next one is taken up."""
        with self._workers.lock:
            done = self._tasks.popleft()
            if self._tasks:
                self._tasks[0].begun, self._tasks[0].ahead_at = True, None
            return done

    def expect_silence(self) -> None:
        """Before a task is sent to one that has none: what it has said since is no reply."""
        if self._messages.has_more():
            raise WorkerDied(_UNASKED)

    def send(self, task: Task) -> None:
        try:
            self._socket.settimeout(task.seconds + GRACE_SECONDS)
            self._socket.sendall(task.request)
        except OSError:
            raise self._why_gone(task.seconds) from None

    def receive(self) -> Reply:
        with self._workers.lock:
            task = self._tasks[0] if self._tasks else None
            # In the order in which they were sent: one that was taken back is the last of them.
            number = self._taken_back if task is None else task.number
        reply = self._receive(0.0 if task is None else task.seconds, number)
        if reply.skipped != (task is None):
            raise WorkerDied(_UNASKED)
        if reply.skipped:
            with self._workers.lock:
                self._taken_back = None
        return reply

    def _receive(
        self, seconds: float, number: bytes | None, *, late: str = "the task was not done"
    ) -> Reply:
        try:
            frame = self._messages.receive(time.monotonic() + seconds + GRACE_SECONDS)
            if frame.number != number:
                raise WorkerDied(_UNASKED)
            return msgspec.msgpack.decode(frame.body, type=Reply)
        except TimeoutError:
            self.process.kill()
            raise TaskTimeout(_too_long(seconds, late)) from None
        except msgspec.MsgspecError:
            raise WorkerDied("the worker process sent what is no reply") from None
        except (Closed, OSError):
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


_UNASKED = "the worker process said something that it was not asked"


def worker_environment(environment: Mapping[str, str], search_path: list[str]) -> dict[str, str]:
    """Of this process, without what looks like a secret: a grader needs none, and what it reads was
    written by a model."""
    kept = {name: value for name, value in environment.items() if not _is_secret(name)}
    # In the search path of this process, and not in the working directory unless that is in it.
    entries = [entry or str(Path.cwd()) for entry in search_path if isinstance(entry, str)]
    # The order of sets of symbols is part of what sympy does: the same in every run. One thread
    # each, as there is a worker for each core.
    kept |= {"PYTHONPATH": os.pathsep.join(entries), "PYTHONHASHSEED": "0"}
    return kept | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _is_secret(name: str) -> bool:
    name = name.upper()
    return f"_{name}".endswith(_SECRET_ENDINGS) or "CREDENTIAL" in name


def _this_python() -> str:
    if not sys.executable:
        raise WorkerDied(
            f"sys.executable is {sys.executable!r}, so there is no Python to run a worker with; "
            "set it to the path of one that has heldout"
        )
    return sys.executable


def _too_long(seconds: float, what: str = "the task was not done") -> str:
    return f"{what} after {seconds:g} s, and its process was ended"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
