"""The host's side of a supervisor: starts it, sends requests, and never blocks the event loop."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from heldout.errors import InvalidInput, SandboxError
from heldout.sandbox.supervisor.files import HEADER, encode

CHUNK = 1 << 18
START_SECONDS = 60.0
END_SECONDS = 15.0
"""Time for a supervisor to end, once its socket is closed."""
CODE = "import sys; sys.path.append({!r}); from supervisor.loop import main; main({})"
"""A supervisor is imported from its folder: without heldout, and compiled before."""


class RunningSupervisor:
    """A running supervisor; one sandbox at a time is its."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process, self._control = process, control
        self._owner = os.getpid()
        # A sandbox that nobody closed ends with the object, or with the process.
        self._finalize = weakref.finalize(self, _end, process, control, self._owner)

    @classmethod
    async def start(cls, settings: dict[str, Any]) -> RunningSupervisor:
        """Start one and wait until it is ready.

        Raises:
            SandboxError: It could not be started, or not make its namespaces.
        """
        supervisor = await run_sync(cls._launch, settings)
        try:
            with anyio.fail_after(START_SECONDS):
                await anyio.wait_readable(supervisor._control)
            answer = supervisor._control.recv(1 << 20)
        except TimeoutError:
            await supervisor.close()
            raise SandboxError(f"the sandbox was not ready after {START_SECONDS:g} s") from None
        except BaseException:
            await supervisor.close()
            raise
        ready = json.loads(answer or b"{}")
        if "ready" not in ready:
            await supervisor.close()
            raise SandboxError(
                f"the sandbox could not be made: {ready.get('error', 'its process ended')}",
                hint="`heldout check sandbox` says what is missing",
            )
        return supervisor

    @classmethod
    def _launch(cls, settings: dict[str, Any]) -> RunningSupervisor:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            mine.setblocking(False)
            with theirs:
                code = CODE.format(str(Path(__file__).parent), theirs.fileno())
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={"PATH": os.defpath},
                    cwd="/",
                    start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
                )
            supervisor = cls(process, mine)
            mine.send(json.dumps(settings).encode())
        except OSError as problem:
            mine.close()
            raise SandboxError(f"the sandbox could not be started: {problem}") from None
        return supervisor

    def connect(self, *streams: int) -> RequestChannel:
        """Open a channel for one request; `streams` are for its program."""
        if os.getpid() != self._owner:
            raise SandboxError("a sandbox cannot be used in a forked process; open one there")
        mine, theirs = socket.socketpair()
        with theirs:
            mine.setblocking(False)
            descriptors = array.array("i", [theirs.fileno(), *streams])
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
            try:
                self._control.sendmsg([b"r"], [rights])
            except OSError as problem:
                mine.close()
                raise SandboxError(f"the sandbox is gone: {problem}") from None
        return RequestChannel(mine, self._read_last_words)

    def _read_last_words(self) -> str:
        """Return why it ended, as far as that is known."""
        with suppress(OSError, ValueError):
            return str(json.loads(self._control.recv(1 << 20))["died"])
        return "it was killed, or the host is out of memory"

    async def ask(self, request: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for the reply; if the wait is cancelled, so is the request."""
        channel = self.connect()
        try:
            await channel.send(request, blob)
            return await channel.receive()
        finally:
            channel.close()

    def end(self) -> None:
        """End it, and with it everything in it; do not wait."""
        threading.Thread(target=self._finalize, name="heldout-sandbox-end", daemon=True).start()

    async def close(self) -> None:
        """End it, and with it everything in it."""
        with anyio.CancelScope(shield=True):
            await run_sync(self._finalize)


def _end(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    if os.getpid() != owner:
        control.close()
        return
    _shut_down(control)
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class RequestChannel:
    """One request and its reply."""

    def __init__(self, connection: socket.socket, last_words: Callable[[], str]) -> None:
        self._connection, self._last_words = connection, last_words

    async def send(self, request: dict[str, Any], blob: bytes = b"") -> None:
        """Send a request."""
        if len(blob) >= 1 << 32:
            raise InvalidInput("a sandbox takes less than 4 GiB at a time")
        message = memoryview(encode(request, blob))
        while message:
            try:
                message = message[self._connection.send(message) :]
            except BlockingIOError:
                await anyio.wait_writable(self._connection)
            except OSError as problem:
                raise SandboxError(f"the sandbox is gone: {problem}") from None

    def post(self, request: dict[str, Any]) -> None:
        """Send a short request at once: nothing else is on its way."""
        try:
            self._connection.send(encode(request))
        except OSError as problem:
            raise SandboxError(f"the sandbox is gone: {problem}") from None

    async def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for the reply.

        Raises:
            SandboxError: The supervisor is gone, or says that the sandbox failed.
        """
        data = bytearray()
        end = HEADER.size
        while len(data) < end:
            try:
                chunk = self._connection.recv(CHUNK)
            except BlockingIOError:
                await anyio.wait_readable(self._connection)
                continue
            except OSError:
                chunk = b""
            if not chunk:
                raise SandboxError(f"the sandbox's process ended: {self._last_words()}")
            data += chunk
            if end == HEADER.size and len(data) >= end:
                end += sum(HEADER.unpack_from(data))
        return decode(bytes(data))

    def close(self) -> None:
        """Close it; a program that still runs is killed."""
        _shut_down(self._connection)

    def __del__(self) -> None:
        self._connection.close()  # of a pool that nobody closed


def decode(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the JSON of a message, and the bytes that follow it."""
    length, _ = HEADER.unpack_from(message)
    return json.loads(message[HEADER.size : HEADER.size + length]), message[HEADER.size + length :]


def _shut_down(connection: socket.socket) -> None:
    """End a connection, even if a forked process has it open, too."""
    with suppress(OSError):  # the other side is gone
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


async def write_pipe(descriptor: int, data: bytes) -> None:
    """Write all of it to a pipe that does not block."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            await _wait(anyio.wait_writable, descriptor)


async def read_pipe(descriptor: int, size: int) -> bytes:
    """Read what there is in a pipe that does not block; nothing at its end."""
    while True:
        try:
            return os.read(descriptor, size)
        except BlockingIOError:
            await _wait(anyio.wait_readable, descriptor)


async def _wait(ready: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    try:
        await ready(descriptor)
    except anyio.ClosedResourceError:
        raise SandboxError("the sandbox was closed") from None


def close_pipe(descriptor: int) -> None:
    """Close a pipe, and wake whoever waits for it."""
    with suppress(RuntimeError):  # no event loop runs
        anyio.notify_closing(descriptor)
    with suppress(OSError):
        os.close(descriptor)
