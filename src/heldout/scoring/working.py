"""In the worker: one task at a time, until whoever started it is gone.

Started by `workers.py`, which it shares only the messages with. A task may be sent while the one
before it is still worked on; it is taken up by claiming its token, a byte in a pipe that the pool
can read as well: exactly one of them has it, so a task that was taken back is never begun. Its time
runs from there. Each task has a number, which is in the frame of its reply as well. The kernel ends
a worker in the middle of a task by an alarm without a handler, and on Linux with its parent. A
worker goes of its own account where memory has become short, and says so in its last reply.
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from heldout.errors import InvalidInput, printable_error

MOST_BYTES = 2**26
LONGEST_MESSAGE = 2000
SIZE_BYTES, NUMBER_BYTES = 4, 8
HEADER = SIZE_BYTES + NUMBER_BYTES
STARTING = bytes(NUMBER_BYTES)
"""The number of what a worker says before it has a task: that it runs, and that it is prepared."""
SLOW_SECONDS = 0.05
"""A task that is done sooner has not filled much memory, and is not asked."""
YOUNG = 10_000
"""Objects made before Python looks for garbage: ten times the usual, as sympy makes many."""


# --- Messages ------------------------------------------------------------------------------------


class Request(msgspec.Struct, array_like=True, frozen=True):
    function: str
    arguments: list[Any]
    seconds: float


class Reply(msgspec.Struct, array_like=True, frozen=True):
    result: Any = None
    failed: tuple[str, str] | None = None
    """The name of the exception and its message."""
    last: bool = False
    """The worker ends after this one."""
    skipped: bool = False
    """The task had been taken back, and was not begun."""


class Frame(NamedTuple):
    number: bytes
    body: bytes


def framed(number: bytes, message: Request | Reply) -> bytes:
    try:
        body = msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        raise InvalidInput(
            f"only plain values go to a worker process and back: {printable_error(problem)}"
        ) from None
    if len(body) > MOST_BYTES:
        raise InvalidInput(f"a message of {len(body)} bytes; at most {MOST_BYTES} go to a worker")
    return len(body).to_bytes(SIZE_BYTES) + number + body


class Closed(Exception):
    """The other side closed its end, or what it says is no message."""


class Messages:
    """Whole messages out of a stream of bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data = connection, bytearray()

    def receive(self, until: float | None = None) -> Frame:
        """The next one; TimeoutError where it is not whole at a time of the monotonic clock."""
        while (size := self._size()) > len(self._data):
            if until is not None:
                self._connection.settimeout(max(until - time.monotonic(), 0.001))
            part = self._connection.recv(min(max(size - len(self._data), 2**16), 2**20))
            if not part:
                raise Closed
            self._data += part
        number = bytes(memoryview(self._data)[SIZE_BYTES:HEADER])
        body = bytes(memoryview(self._data)[HEADER:size])
        del self._data[:size]
        return Frame(number, body)

    def has_more(self) -> bool:
        """Whether the other side has said something that was not received yet. Does not wait."""
        if self._data:
            return True
        self._connection.setblocking(False)
        try:
            return bool(self._connection.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def _size(self) -> int:
        """Of the next message and its header, as far as one can tell."""
        if len(self._data) < HEADER:
            return HEADER
        size = int.from_bytes(self._data[:SIZE_BYTES])
        if size > MOST_BYTES:
            raise Closed
        return HEADER + size


# --- Tasks ---------------------------------------------------------------------------------------


def serve() -> None:
    descriptor, tokens, parent, memory, prepare = sys.argv[-5:]
    _end_with(int(parent))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    with socket.socket(fileno=int(descriptor)) as connection, suppress(ConnectionError, Closed):
        connection.sendall(framed(STARTING, Reply()))
        try:
            if prepare:
                _find(prepare)()
        except Exception as problem:  # noqa: BLE001 - told to whoever waits for this worker
            connection.sendall(framed(STARTING, _failure(problem, last=True)))
            return
        # What imports have made is never garbage, and need not be looked at again and again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG)
        allowance = _Allowance(int(memory))
        connection.sendall(framed(STARTING, Reply()))
        messages = Messages(connection)
        while True:
            number, body = messages.receive()
            reply = _answer(body, allowance) if _claim(int(tokens)) else Reply(skipped=True)
            try:
                frame = framed(number, reply)
            except InvalidInput as problem:
                frame = framed(number, _failure(problem))
            connection.sendall(frame)
            if reply.last:
                return


def _claim(tokens: int) -> bool:
    try:
        token = os.read(tokens, 1)
    except BlockingIOError:
        return False
    if not token:
        raise Closed
    return True


def _find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def _answer(body: bytes, allowance: _Allowance) -> Reply:
    try:
        request = msgspec.msgpack.decode(body, type=Request)
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
    return Reply(result, last=allowance.is_short())


def _failure(problem: Exception, *, last: bool = False) -> Reply:
    message = printable_error(problem)[:LONGEST_MESSAGE]
    return Reply(failed=(type(problem).__name__, message), last=last)


# --- Memory, and the parent ----------------------------------------------------------------------


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

    def refused(self) -> Reply:
        said = f"the task needed about {self._limit} bytes, which is all that a worker may take"
        return Reply(failed=("MemoryError", said), last=True)

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
