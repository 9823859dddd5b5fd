"""The loop of the supervisor: requests come in, programs run and are watched.

For each request the host's process sends one byte and descriptors over the socket that this process
was started with: a channel, and the standard streams of a program that stays. Request and reply go
over the channel. A channel that is closed early has its program killed.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import selectors
import signal
import socket
import time

from .files import HEADER, Refused, SandboxFiles, describe_refusal, encode
from .processes import descend, read_processes
from .program import KILL_SECONDS, Program
from .sockets import SocketMemory
from .stage import PlainFolder, SandboxStage
from .stalls import Stalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TICK = 0.02
"""Seconds between two looks at the memory, processes and CPU time of what runs."""
CHUNK = 1 << 18


class RequestHandler:
    """A channel: one request and its reply."""

    def __init__(self, loop: Supervisor, connection: socket.socket, streams: list[int]) -> None:
        self.loop, self.connection, self.streams = loop, connection, streams
        self.program: Program | None = None
        self._incoming, self._outgoing = bytearray(), memoryview(b"")
        connection.setblocking(False)
        loop.watch(connection.fileno(), selectors.EVENT_READ, self._receive)

    def take_streams(self) -> list[int]:
        """Hand over the descriptors that came with the request."""
        streams, self.streams = self.streams, []
        return streams

    def _receive(self) -> None:
        try:
            data = self.connection.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self.program is not None:
                self.program.stop("killed")
            self._close()
            return
        self._incoming += data
        while len(self._incoming) >= HEADER.size:
            length, extra = HEADER.unpack_from(self._incoming)
            middle = HEADER.size + length
            if len(self._incoming) < middle + extra:
                return
            request = json.loads(self._incoming[HEADER.size : middle])
            blob = bytes(self._incoming[middle : middle + extra])
            del self._incoming[: middle + extra]
            self.loop.handle(self, request, blob)

    def reply(self, value: dict[str, Any], blob: bytes = b"") -> None:
        """Send the reply, as fast as it is taken."""
        self._outgoing = memoryview(encode(value, blob))
        self._send()

    def _send(self) -> None:
        descriptor = self.connection.fileno()
        if descriptor < 0:
            return
        try:
            while self._outgoing:
                self._outgoing = self._outgoing[self.connection.send(self._outgoing) :]
            self.loop.watch(descriptor, selectors.EVENT_READ, self._receive)
        except BlockingIOError:
            self.loop.watch(descriptor, selectors.EVENT_WRITE, self._send)
        except OSError:  # nobody waits for it
            self._close()

    def _close(self) -> None:
        self.loop.forget(self.connection.fileno())
        self.connection.close()
        for descriptor in self.take_streams():
            os.close(descriptor)


class Supervisor:
    """What this process does until its parent ends."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], stage: Any) -> None:
        self.settings, self.stage = settings, stage
        self.programs: dict[int, Program] = {}
        self.is_broken = False
        """Whether a program could not be killed."""
        self._control, self._filter = control, bytes.fromhex(settings["filter"])
        # In a namespace that is not its own, there are the host's sockets, too.
        own = stage.has_namespaces and not settings["network"]
        self.sockets = SocketMemory() if own else None
        self._running = True
        self._stalls, self._looked = Stalls(), 0.0
        self._selector = selectors.DefaultSelector()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._wake_up_for_children()
        self.watch(control.fileno(), selectors.EVENT_READ, self._accept)
        if stage.parent >= 0:
            self.watch(stage.parent, selectors.EVENT_READ, self._leave)

    def _wake_up_for_children(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(reader, CHUNK)

        self.watch(reader, selectors.EVENT_READ, drain)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # the parent decides when it ends

    def watch(self, descriptor: int, events: int, callback: Callable[[], None]) -> None:
        """Call a function whenever a file is ready."""
        if descriptor in self._callbacks:
            self._selector.modify(descriptor, events)
        else:
            self._selector.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def forget(self, descriptor: int) -> None:
        """Watch a file no more."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._selector.unregister(descriptor)

    def open_filter(self) -> int:
        """Return a descriptor from which the seccomp filter can be read."""
        reader, writer = os.pipe()
        os.write(writer, self._filter)  # shorter than what a pipe holds
        os.close(writer)
        return reader

    # --- The loop ---

    def serve(self) -> None:
        """Run until the parent has ended, or closes the socket."""
        while self._running:
            self._turn(self._time_to_next_event())
            now = time.monotonic()
            for program in [*self.programs.values()]:
                program.check_time(now)
            if self.programs and now - self._looked >= TICK:
                table = read_processes()
                in_sockets = 0 if self.sockets is None else self.sockets.measure()
                for program in [*self.programs.values()]:
                    if program.is_stopped(table):
                        self._extend(self._looked, now, program)
                    program.check_usage(table, in_sockets)
                self._looked = now
        for program in [*self.programs.values()]:
            self.kill(program)
        self.stage.remove()

    def _turn(self, timeout: float | None) -> None:
        ready = self._selector.select(timeout)
        stall = self._stalls.wake(timeout, time.process_time())
        if stall is not None:  # before anything is said of a program's time
            self._extend(*stall, *self.programs.values())
            self._looked = stall[1]
        for key, _ in ready:
            callback = self._callbacks.get(key.fd)
            if callback is not None:
                callback()
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    break
                if pid in self.programs:
                    self.programs[pid].take_end(status, usage)
                else:  # an orphan: the last that one of them waits for, perhaps
                    for program in [*self.programs.values()]:
                        program.finish()

    def _extend(self, start: float, end: float, *programs: Program) -> None:
        """Give programs more time for one in which they could not run."""
        for program in programs:
            program.extend(start, end)
        if programs:
            self._stalls.add(max(start, min(program.began for program in programs)), end)

    def _time_to_next_event(self) -> float | None:
        if not self.programs:
            return None
        now = time.monotonic()
        programs = self.programs.values()
        deadlines: list[float] = [p.deadline for p in programs if p.deadline is not None]
        return max(0.0, min([TICK, *(deadline - now for deadline in deadlines)]))

    def _accept(self) -> None:
        received = array.array("i")
        try:
            data, ancillary, _, _ = self._control.recvmsg(1, socket.CMSG_SPACE(16))
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._leave()
            return
        for _, _, content in ancillary:
            received.frombytes(content)
        for descriptor in received:
            os.set_inheritable(descriptor, False)
        channel, *streams = received
        RequestHandler(self, socket.socket(fileno=channel), streams)

    def _leave(self) -> None:
        self._running = False

    # Life and death. A program's first process ends: `take_end` kills what is left of its tree,
    # since a daemon would go on beside the next program. The channel is closed early: the program
    # is killed. The host's process ends, by kill -9 even: the socket that this process was started
    # with is closed, the loop leaves, and as process 1 of its namespace it takes all others with
    # it. A tree that outlives SIGKILL hangs in the kernel: the supervisor says so, and serves no
    # more programs, whose limits it could not enforce.

    def kill(self, program: Program) -> None:
        """Kill a program with everything below it, and what it left behind."""
        others = [pid for pid in self.programs if pid != program.pid]
        if self.stage.has_namespaces and not others:
            with contextlib.suppress(ProcessLookupError):  # there is nothing
                os.kill(-1, signal.SIGKILL)  # all of the namespace but this process, which is 1
            return
        table = read_processes()
        roots = [program.pid]
        if not self.stage.has_namespaces:
            own = os.getpid()
            roots += [p for p, entry in table.items() if entry.session == program.pid]
            if not others:  # what has left its session, too
                roots += [p for p, entry in table.items() if entry.parent == own]
        for pid in descend(roots, table):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    # --- Requests ---

    def handle(self, caller: RequestHandler, request: dict[str, Any], blob: bytes) -> None:
        """Do what a request asks for, and reply."""
        operation = request["operation"]
        try:
            if operation == "kill":
                if caller.program is not None:
                    caller.program.stop("killed")
            elif self.is_broken:
                raise Refused("an earlier program could not be killed")
            elif operation == "run":
                self._run(caller, request, blob)
            elif operation == "renew":
                self._renew()
                caller.reply({})
            elif operation == "stalls":
                caller.reply({"seconds": self._stalls.since(request["since"])})
            else:
                caller.reply(*SandboxFiles(self.stage.box).handle(request, blob))
        except (Refused, OSError, ValueError) as problem:
            caller.reply(describe_refusal(problem))

    def _run(self, caller: RequestHandler, request: dict[str, Any], blob: bytes) -> None:
        caller.program = Program(self, caller, request)
        try:
            caller.program.start(blob, caller.take_streams())
        except OSError as problem:
            raise Refused(f"no process could be started: {problem}") from None

    def _renew(self) -> None:
        """Make a fresh root, in which nothing runs."""
        for program in [*self.programs.values()]:
            program.stop("killed")
        until = time.monotonic() + KILL_SECONDS
        while any(not program.is_dead for program in self.programs.values()):
            if time.monotonic() > until:
                raise Refused("a process could not be killed")
            self._turn(TICK)
        for program in [*self.programs.values()]:
            program.end()  # nobody waits for it
        self.stage.renew()


def main(descriptor: int) -> None:
    """Read the settings from the first message, and serve."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)
    settings = json.loads(control.recv(1 << 20))
    try:
        folder = settings["backend"] == "unsafe"
        stage = PlainFolder(settings) if folder else SandboxStage(settings)
        stage.enter()
        supervisor = Supervisor(control, settings, stage)
    except (Refused, OSError) as problem:
        control.send(json.dumps({"error": str(problem)}).encode())
        return
    control.send(json.dumps({"ready": True}).encode())
    try:
        supervisor.serve()
    except Exception as problem:
        control.send(json.dumps({"died": f"{type(problem).__name__}: {problem}"}).encode())
        raise
