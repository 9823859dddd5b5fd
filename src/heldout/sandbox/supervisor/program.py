"""A program and the tree of processes below it, from its start until all of it is gone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import selectors
import signal
import sys
import time

from .processes import ProcessEntry, count_oom_kills, descend, measure_memory
from .stalls import MAX_STALLED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from .loop import RequestHandler, Supervisor

CHUNK = 1 << 16
OWN_PROCESSES = 1
"""Processes that count against the limit and are no program's: the first of a namespace."""
OWN_IN_TREE = 2
"""Those of bubblewrap."""
KILL_SECONDS = 10.0
"""A tree that is still there this long after SIGKILL hangs in the kernel."""
SLACK = 64 << 20
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""Exit codes of a file below /work that cannot be run: as shells have them."""


class Program:
    """A program that a request asked for; its reply is the outcome."""

    def __init__(self, loop: Supervisor, caller: RequestHandler, request: dict[str, Any]) -> None:
        self.loop, self.caller, self.request = loop, caller, request
        self.pid = -1
        self.reason: str | None = None
        self.is_dead = False
        self._status = 0
        self._problem = b""
        self._is_captured = False
        self._peak, self._cpu = 0, 0.0
        self._said = bytearray()  # by bubblewrap: the exit code, if the program could be started
        self._stdout, self._stderr = bytearray(), bytearray()
        self._unread: set[int] = set()
        self._stdin, self._block, self._input = -1, -1, memoryview(b"")
        self._oom_kills = count_oom_kills()
        self.began, self._ended = time.monotonic(), 0.0
        self._killed_at: float | None = None
        self._stalled = 0.0
        # What another one has left in sockets, which the kernel frees a moment after its end.
        self._in_others_sockets = 0 if loop.sockets is None else loop.sockets.measure(now=True)
        timeout = request["timeout"]
        self.deadline = None if timeout is None else self.began + timeout

    # --- Start ---

    def start(self, stdin: bytes, streams: list[int]) -> None:
        """Start it.

        Args:
            stdin: What to feed it with.
            streams: Its standard input and output, and standard error if that is not its output;
                without them, pipes to this process.
        """
        mine: list[int] = []
        theirs = streams
        if not streams:
            read, write = os.pipe()
            out, out_write = os.pipe()
            error, error_write = os.pipe()
            theirs, mine = [read, out_write, error_write], [write, out, error]
        try:
            if self.loop.stage.has_namespaces:
                self._spawn(theirs)
            else:
                self._fork(theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.loop.programs[self.pid] = self
        self._is_captured = bool(mine)
        if mine:
            self._stdin, self._input = mine[0], memoryview(stdin)
            os.set_blocking(self._stdin, False)
            self.loop.watch(self._stdin, selectors.EVENT_WRITE, self._feed)
            limit = self.request["output_limit"]
            self._collect(mine[1], lambda data: self._keep(data, self._stdout, limit))
            self._collect(mine[2], lambda data: self._keep(data, self._stderr, limit))
            self._feed()

    def _spawn(self, streams: list[int]) -> None:
        """Start it in bubblewrap, which waits until it has its limits (`_hear`).

        Not by a fork, a copy of this process: that would cost more than all the rest.
        """
        status, status_write = os.pipe()
        block, self._block = os.pipe()
        given = {"filter": self.loop.open_filter(), "status": status_write, "block": block}
        command = self.loop.stage.make_command(self.request, **given)
        actions = [(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)]
        if len(streams) == 2:
            actions.append((os.POSIX_SPAWN_DUP2, 1, 2))
        try:
            for descriptor in given.values():
                os.set_inheritable(descriptor, True)
            signals = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            self.pid = os.posix_spawn(
                command[0], command, {}, file_actions=actions, setsigdef=signals
            )
        except OSError:
            os.close(status)
            os.close(self._block)
            raise
        finally:
            for descriptor in given.values():
                os.close(descriptor)
        self._collect(status, self._hear)

    def _hear(self, data: bytes) -> None:
        """Take what bubblewrap says: the process that will be the program, later its exit code."""
        self._said += data
        pid = self._read_status("child-pid")
        if self._block >= 0 and pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it was killed
                for which, value in self._limits().items():
                    resource.prlimit(pid, which, (value, value))
            with contextlib.suppress(BrokenPipeError):
                os.write(self._block, b".")
            self._close_block()

    def _close_block(self) -> None:
        if self._block >= 0:
            os.close(self._block)
            self._block = -1

    def _fork(self, streams: list[int]) -> None:
        """Start it without isolation."""
        failed, failed_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._become_program(streams, failed_write)
        os.close(failed_write)
        with open(failed, "rb") as report:
            self._problem = report.read()  # nothing, once it has become another program

    def _become_program(self, streams: list[int], failed: int) -> NoReturn:
        try:
            os.setsid()
            # Copies above the first three, so that none overwrites another.
            copies = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 3) for stream in streams]
            for number, copy in enumerate(copies):
                os.dup2(copy, number)
            if len(copies) == 2:
                os.dup2(1, 2)
            for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for which, value in self._limits().items():
                resource.setrlimit(which, (value, value))
            os.chdir(f"{self.loop.stage.box}/work")
            argv = self.request["argv"]
            os.execvpe(argv[0], argv, self.request["environment"])
        except BaseException as problem:  # noqa: BLE001 - told to the parent, which is the same code
            os.write(failed, str(problem).encode(errors="replace") or b"it could not be started")
        finally:
            os._exit(NOT_FOUND)

    def _limits(self) -> dict[int, int]:
        """Return its limits on resources, none above those of this process."""
        request, memory = self.request, self.request["memory"]
        limits = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: self.loop.settings["disk"],
            resource.RLIMIT_NOFILE: request["descriptors"],
            # The tree is watched; this keeps one process from outrunning that.
            resource.RLIMIT_DATA: memory + max(memory // 2, SLACK),
        }
        if self.loop.stage.has_namespaces:  # without, it would count all processes of this user
            limits[resource.RLIMIT_NPROC] = request["processes"] + OWN_PROCESSES
            limits[resource.RLIMIT_MSGQUEUE] = 0
        if request["cpu"] is not None:
            limits[resource.RLIMIT_CPU] = int(request["cpu"]) + 1
        for which in limits:
            _, most = resource.getrlimit(which)
            if most != resource.RLIM_INFINITY:
                limits[which] = min(limits[which], most)
        return limits

    # --- Streams ---

    def _collect(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        os.set_blocking(descriptor, False)
        self._unread.add(descriptor)

        def receive() -> None:
            try:
                data = os.read(descriptor, CHUNK)
            except BlockingIOError:
                return
            if data:
                take(data)
                return
            self._unread.remove(descriptor)
            self._close(descriptor)
            self.finish()

        self.loop.watch(descriptor, selectors.EVENT_READ, receive)

    def _keep(self, data: bytes, kept: bytearray, limit: int) -> None:
        room = limit - len(kept)
        kept += data[:room]
        if len(data) > room:
            self.stop("output")

    def _feed(self) -> None:
        try:
            while self._input:
                self._input = self._input[os.write(self._stdin, self._input[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read its input, or is gone
            pass
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            self._close(self._stdin)
            self._stdin = -1

    def _close(self, descriptor: int) -> None:
        self.loop.forget(descriptor)
        os.close(descriptor)

    # --- Limits ---

    def is_stopped(self, table: dict[int, ProcessEntry]) -> bool:
        """Return whether somebody outside the sandbox has stopped it.

        A program may stop itself, and is then too slow; bubblewrap's process is out of its reach.
        """
        entry = table.get(self.pid)
        return self.loop.stage.has_namespaces and entry is not None and entry.is_stopped

    def extend(self, start: float, end: float) -> None:
        """Give it as much more time as it lost when nothing ran."""
        seconds = max(0.0, end - max(start, self.began))
        self._stalled += seconds
        if self.deadline is not None and self._stalled <= MAX_STALLED:
            self.deadline += seconds
        if self._killed_at is not None:
            self._killed_at += seconds

    def check_time(self, now: float) -> None:
        """Stop it if its time is up, and give up on it if it does not end."""
        if self._killed_at is not None and now > self._killed_at + KILL_SECONDS:
            self.end()
            self.loop.is_broken = True
            text = f"a process was still there {KILL_SECONDS:g} s after SIGKILL"
            self.caller.reply({"error": text, "kind": "sandbox"})
        elif self.deadline is not None and now >= self.deadline:
            self.deadline = None
            self.stop("timeout")

    def check_usage(self, table: dict[int, ProcessEntry], in_sockets: int) -> None:
        """Stop it if it uses more than it may, of memory in sockets more than was there before."""
        if self.is_dead:
            return
        self._in_others_sockets = min(self._in_others_sockets, in_sockets)
        in_sockets -= self._in_others_sockets
        tree = [*descend([self.pid], table)]
        limit, cpu = self.request["memory"], self.request["cpu"]
        memory = measure_memory(tree, table, limit - in_sockets) + in_sockets
        self._peak = max(self._peak, memory)
        self._cpu = max(self._cpu, sum(table[pid].cpu for pid in tree))
        if memory > limit:
            self.stop("memory")
        elif len(tree) - OWN_IN_TREE > self.request["processes"]:
            self.stop("processes")
        elif cpu is not None and self._cpu > cpu:
            self.stop("cpu")

    def stop(self, reason: str) -> None:
        """Kill the whole tree, for a reason; the first one counts."""
        if self.reason is None and not self.is_dead:
            self.reason = reason
        self._kill()

    def _kill(self) -> None:
        if self._killed_at is None:
            self._killed_at = time.monotonic()
        self.loop.kill(self)

    # --- End ---

    def take_end(self, status: int, usage: Any) -> None:
        """Take note that its first process has ended, and kill what it left behind."""
        self.is_dead, self._status, self._ended = True, status, time.monotonic()
        scale = 1024 if sys.platform == "linux" else 1
        peak = usage.ru_maxrss * scale
        # A process begins with the peak of the one that started it.
        if peak > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale:
            self._peak = max(self._peak, peak)
        self._kill()
        self.finish()

    def finish(self) -> None:
        """Reply, once all of it is dead and all it wrote is read."""
        if not self.is_dead or self._unread or self.pid not in self.loop.programs:
            return
        first = self._read_status("child-pid")
        if first is not None and os.path.exists(f"/proc/{first}"):
            return  # process 1 of its namespace, which ends after all others
        self.end()
        exit = self._read_exit()
        if exit is None and self.reason is None:
            text = self._problem.decode(errors="replace") or self._stderr.decode(errors="replace")
            exit = self._read_failed_start(text)
            if exit is None:
                error = text.strip()[-500:] or "bubblewrap ended without a word"
                self.caller.reply({"error": error, "kind": "start"})
                return
        if exit == 128 + signal.SIGKILL and count_oom_kills() > self._oom_kills:
            text = "the host is out of memory, and the kernel killed the program"
            self.caller.reply({"error": text, "kind": "sandbox"})
            return
        if exit == 128 + signal.SIGXCPU and self.request["cpu"] is not None:
            self.reason = "cpu"
        self.caller.reply(
            {
                "exit": None if self.reason else exit,
                "reason": self.reason,
                "seconds": self._ended - self.began,
                "stalled": self._stalled,
                "peak_memory": self._peak or None,
                "stdout": len(self._stdout),
            },
            bytes(self._stdout + self._stderr),
        )

    def _read_exit(self) -> int | None:
        """Return its exit code; None if it was never started."""
        if not self.loop.stage.has_namespaces:
            code = os.waitstatus_to_exitcode(self._status)
            return None if self._problem else code if code >= 0 else 128 - code
        return self._read_status("exit-code")

    def _read_status(self, name: str) -> int | None:
        """Return what bubblewrap has said."""
        for line in self._said.split(b"\n")[:-1]:  # it comes in pieces
            value = json.loads(line).get(name)
            if value is not None:
                return int(value)
        return None

    def _read_failed_start(self, text: str) -> int | None:
        """Return the exit code of a file of the sandbox that cannot be run; None for others.

        What models wrote is theirs, even if it is no program. A missing interpreter is not.
        """
        name = self.request["argv"][0]
        path = os.path.normpath(f"/work/{name}" if "/" in name and name[0] != "/" else name)
        if not path.startswith(("/work/", "/tmp/")):
            return None
        if self._is_captured and not self._problem and f"execvp {name}: " not in text:
            return None
        return NOT_EXECUTABLE if os.path.lexists(f"{self.loop.stage.box}{path}") else NOT_FOUND

    def end(self) -> None:
        """Close what it has open, and forget it."""
        self._close_stdin()
        self._close_block()
        for descriptor in self._unread:
            self._close(descriptor)
        self._unread.clear()
        self.loop.programs.pop(self.pid, None)
