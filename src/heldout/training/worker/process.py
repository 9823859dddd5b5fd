"""A worker that was started: its two pipes, its output, and how it ends.

It has a session and a process group of its own, so that a Ctrl-C in the terminal reaches the
training alone. It ends when the pipe to it closes, and so with the training, however that ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from heldout.errors import HeldoutError, InvalidInput
from heldout.training.worker.protocol import (
    ENDS_ITSELF,
    Answer,
    Lines,
    Message,
    answers,
    encoded,
)

LAST_LINES = 8
LAST_BYTES = 4096
LEAVE_SECONDS = 5.0
TERM_SECONDS = 3.0
STEP_SECONDS = 0.2


class WorkerGone(HeldoutError):
    """The worker has ended, or says what cannot be understood. Its message is a reason to skip."""


@dataclass(slots=True)
class _Held:
    """What a started worker takes up here."""

    process: subprocess.Popen[bytes]
    requests: int
    answers: int
    output: IO[bytes]
    starter: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a pipe is used: a pipe that another thread closes might be another file next."""
    closed: bool = False


class WorkerProcess:
    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], log: Path | None
    ) -> None:
        self._log = log
        with ExitStack() as ours, ExitStack() as childs:
            output = ours.enter_context(_output(log))
            self._output_start = os.fstat(output.fileno()).st_size
            child_reads, requests = os.pipe()
            childs.callback(os.close, child_reads)
            ours.callback(os.close, requests)
            answers, child_writes = os.pipe()
            childs.callback(os.close, child_writes)
            ours.callback(os.close, answers)
            process = subprocess.Popen(
                [*command, str(child_reads), str(child_writes)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(environment),
                pass_fds=(child_reads, child_writes),
                start_new_session=True,
            )
            ours.pop_all()
        os.set_blocking(requests, False)
        self._held = _Held(process, requests, answers, output)
        self._lines, self._waiting = Lines(), deque[Answer]()
        self._finalize = weakref.finalize(self, _end, self._held, LEAVE_SECONDS)
        _started.add(self)

    @property
    def pid(self) -> int:
        return self._held.process.pid

    def send(self, message: Message, *, seconds: float) -> None:
        """A worker that is alive takes what it is sent, whatever it is doing."""
        rest = memoryview(encoded(message))
        until = time.monotonic() + seconds
        while rest:
            if time.monotonic() > until:
                raise WorkerGone(f"the eval worker took no request for {seconds:g} s")
            with self._held.lock:
                pipe = self._open(self._held.requests)
                if not select.select([], [pipe], [], STEP_SECONDS)[1]:
                    continue
                try:
                    rest = rest[os.write(pipe, rest) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    raise WorkerGone(self._why_gone()) from None

    def receive(self, *, seconds: float) -> Answer | None:
        """The next answer; None where there is none within these seconds."""
        until = time.monotonic() + seconds
        while not self._waiting:
            left = until - time.monotonic()
            if left < 0:
                return None
            with self._held.lock:
                pipe = self._open(self._held.answers)
                if not select.select([pipe], [], [], min(left, STEP_SECONDS))[0]:
                    if _has_exited(self._held.process):  # what it started may hold the pipe open
                        raise WorkerGone(self._why_gone())
                    continue
                data = os.read(pipe, 2**20)
                if not data:
                    raise WorkerGone(self._why_gone())
            try:
                self._waiting += [answers.decode(line) for line in self._lines.add(data)]
            except (msgspec.MsgspecError, InvalidInput, UnicodeDecodeError) as problem:
                raise WorkerGone(f"the eval worker's answer cannot be read: {problem}") from None
        return self._waiting.popleft()

    def end(self) -> None:
        """Lets it finish what is quick to finish."""
        self._finalize()

    def kill(self) -> None:
        _end(self._held, 0.0)
        self._finalize.detach()

    def last_lines(self) -> str:
        """What it said last, to put behind a reason."""
        try:
            output = self._held.output.fileno()
            start = max(self._output_start, os.fstat(output).st_size - LAST_BYTES)
            said = os.pread(output, LAST_BYTES, start)
        except (OSError, ValueError):
            return ""
        lines = [line.rstrip() for line in said.decode("utf-8", "replace").splitlines()]
        last = "\n".join([line for line in lines if line.strip()][-LAST_LINES:])
        return f"; the last it said:\n{last}" if last else ""

    def _open(self, pipe: int) -> int:
        if self._held.closed:
            raise WorkerGone("the eval worker was closed")
        return pipe

    def _why_gone(self) -> str:
        until = time.monotonic() + TERM_SECONDS
        # Its pipes close a moment before it is dead.
        while not _has_exited(self._held.process) and time.monotonic() < until:
            time.sleep(0.01)
        _kill_group(self._held.process)
        last = self.last_lines()
        ended = _ended(self._held.process.poll(), itself=ENDS_ITSELF in last)
        return f"the eval worker {ended}{self.see_log()}{last}"

    def see_log(self) -> str:
        """Where to look, to put behind a reason."""
        return "" if self._log is None else f"; see {self._log}"


_started: weakref.WeakSet[WorkerProcess] = weakref.WeakSet()


def _output(log: Path | None) -> IO[bytes]:
    """Where a worker prints to: a file, since nobody may be there to read from a pipe."""
    if log is None:
        return tempfile.TemporaryFile(prefix="heldout-worker-")
    log.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(log, flags, 0o600), "r+b", buffering=0)


def _ended(code: int | None, *, itself: bool) -> str:
    if code is None:
        return "no longer answers"
    if code < 0 and itself:
        return "ended itself"
    if code >= 0:
        return f"ended by itself, with exit code {code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
        hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"
    return f"was ended by signal {-code}"


# --- The end of it ------------------------------------------------------------------------------


def _end(held: _Held, patience: float) -> None:
    """No process is left, not even as a zombie, nor any that it has started."""
    if held.closed or os.getpid() != held.starter:
        return
    held.closed = True
    # A thread that waits for an answer lets go within a moment, and finds it closed.
    got = held.lock.acquire(timeout=10 * STEP_SECONDS)
    try:
        if got:
            os.close(held.requests)
        if not got or not _exits(held.process, patience):
            _signal_group(held.process, signal.SIGTERM)
            _exits(held.process, TERM_SECONDS if patience else 0.2)
        _kill_group(held.process)
        with suppress(subprocess.TimeoutExpired):  # the system may not be done with it
            held.process.wait(TERM_SECONDS)
        if got:
            os.close(held.answers)
            held.output.close()
    finally:
        if got:
            held.lock.release()


def _exits(process: subprocess.Popen[bytes], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not _has_exited(process):
        if time.monotonic() >= until:
            return False
        time.sleep(0.01)
    return True


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """It is left as a zombie, which keeps its number: the group may be asked to end by it."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, process.pid, options) is not None
    except ChildProcessError:  # SIGCHLD is ignored here, or somebody waits for all children
        return process.poll() is not None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], which: signal.Signals) -> None:
    if process.returncode is None:  # afterwards its number may be somebody else's
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, which)


def _forget() -> None:
    """In a forked child: the worker is the parent's. An open copy of the pipe would keep it from
    ending with the parent."""
    for worker in list(_started):
        held = worker._held
        if not held.closed:
            held.closed = True
            for pipe in (held.requests, held.answers):
                with suppress(OSError):
                    os.close(pipe)
            held.process.returncode = 0


os.register_at_fork(after_in_child=_forget)
