"""The process between heldout and the programs of one sandbox; a script with nothing but stdlib.

    python -I -S supervisor.py DESCRIPTOR

It gives itself user, mount, pid and network namespaces of its own, with a tmpfs of limited size that
becomes the /work and /tmp of the sandbox. It starts every program in a bubblewrap of its own, feeds
and reads it, watches memory, processes and time of its whole tree, and kills that tree. So files never
touch the host's disk, whatever happens to the host's process there are no leftovers (the namespaces
end with this process, and this process with its parent), and one process serves many sandboxes, one
after the other: a fresh tmpfs is a fresh root.

With the backend "unsafe" there are no namespaces: programs are plain children, in a folder on disk.

DESCRIPTOR is a socket. Each message on it is one byte and descriptors: a channel, and the standard
streams of a program that is to stay. A request and its reply go over the channel, as a length, JSON and
raw bytes. A channel that is closed early has its program killed.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

STAGES = ("/mnt", "/srv", "/media", "/tmp")  # noqa: S108 - hidden below a tmpfs, in this namespace
"""A folder that every system has, and that programs do not need."""
TICK = 0.02
"""Seconds between two looks at the memory, processes and CPU time of what runs."""
KILL_SECONDS = 10.0
"""A tree that still runs this long after SIGKILL hangs in the kernel."""
UID = 1000
"""The user that programs run as, seen from inside."""
NOBODY = 65534
"""What root becomes before it makes a namespace: the limit on processes does not hold for root."""
CHUNK = 1 << 16
MAX_LINKS = 40
PAGE = resource.getpagesize()
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
HEADER = struct.Struct("!II")

NEW_NS, NEW_USER, NEW_PID, NEW_NET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
NEW_IPC, NEW_UTS = 0x08000000, 0x04000000
MS_BIND, MS_REC, MS_PRIVATE, MNT_DETACH = 4096, 16384, 1 << 18, 2
MS_NOSUID, MS_NODEV = 2, 4
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SUBREAPER = 1, 4, 36


class Refused(Exception):
    """A request that cannot be done; `kind` says whether the sandbox, or a path, is to blame."""

    def __init__(self, message: str, kind: str = "sandbox") -> None:
        super().__init__(message)
        self.kind = kind


# --- Namespaces ---------------------------------------------------------------------------------

_libc: Any = ctypes.CDLL(None, use_errno=True)


def _call(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise Refused(f"{what}: {os.strerror(number)}")


def _unshare(flags: int) -> None:
    _call("no new namespaces", _libc.unshare(flags))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _call(f"mounting {kind or source} on {target}", result)


def _unmount(target: str) -> None:
    _call(f"unmounting {target}", _libc.umount2(os.fsencode(target), MNT_DETACH))


class Stage:
    """The folder that the sandbox's own mounts are on, in a mount namespace of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.binds: list[tuple[str, str]] = [tuple(bind) for bind in settings["binds"]]
        needed = [source for source, _ in self.binds]
        self.path = next(
            folder
            for folder in STAGES
            if os.path.isdir(folder) and not any(_is_in(path, folder) for path in needed)
        )
        self.box = f"{self.path}/box"

    def enter(self) -> None:
        """Move this process into namespaces of its own; it comes back as process 1 of them."""
        parent = os.getppid()
        watched = os.pidfd_open(parent)
        if os.getppid() != parent:
            sys.exit(1)
        uid, gid = os.getuid(), os.getgid()
        if uid == 0:
            # What root alone may read is mounted while this is root.
            _unshare(NEW_NS)
            self._prepare(binds=True)
            uid = gid = NOBODY
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            _libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)  # else its files in /proc stay root's
        network = 0 if self.settings["network"] else NEW_NET
        _unshare(NEW_USER | NEW_NS | NEW_PID | NEW_IPC | NEW_UTS | network)
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"{UID} {uid} 1"),
            ("gid_map", f"{UID} {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
        if network:
            _bring_loopback_up()
        child = os.fork()
        if child:
            _wait_for_child(child)
        _libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        self.parent = watched
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        if not os.path.isdir(self.box):
            self._prepare(binds=False)
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
        self.renew(fresh=True)

    def _prepare(self, *, binds: bool) -> None:
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        _mount("heldout", self.path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
        for folder in ("box", "etc", "empty", "binds"):
            os.mkdir(f"{self.path}/{folder}")
        for name, text in self.settings["etc"].items():
            with open(f"{self.path}/etc/{name}", "w") as file:
                file.write(text)
        for path in self.settings["etc_binds"]:
            target = f"{self.path}/etc/{os.path.basename(path)}"
            self._make_target(path, target)
        if binds:
            for index, (source, target) in enumerate(self.binds):
                staged = f"{self.path}/binds/{index}"
                self._make_target(source, staged)
                _mount(source, staged, None, MS_BIND | MS_REC)
                self.binds[index] = (staged, target)

    @staticmethod
    def _make_target(source: str, target: str) -> None:
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            with open(target, "w"):
                pass

    def renew(self, *, fresh: bool = False) -> None:
        """Give the sandbox an empty file system."""
        if not fresh:
            _unmount(self.box)
        size, files = self.settings["disk"], self.settings["files"]
        options = f"size={size},nr_inodes={files},mode=755"
        _mount("heldout", self.box, "tmpfs", MS_NOSUID | MS_NODEV, options)
        for folder, mode in (("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777)):
            os.mkdir(f"{self.box}/{folder}")
            os.chmod(f"{self.box}/{folder}", mode)

    def command(
        self, argv: list[str], environment: dict[str, str], filter: int, status: int
    ) -> Any:
        """Return the bubblewrap command that runs a program."""
        settings = self.settings
        words = [settings["bubblewrap"], "--unshare-user", "--disable-userns", "--unshare-pid"]
        words += ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "sandbox"]
        words += ["--uid", str(UID), "--gid", str(UID), "--cap-drop", "ALL"]
        words += ["--die-with-parent", "--new-session", "--clearenv"]
        for name, value in environment.items():
            words += ["--setenv", name, value]
        for source, target in settings["system"]:
            words += ["--ro-bind", source, target]
        for target in settings["hidden"]:
            words += ["--ro-bind", f"{self.path}/empty", target]
        for source, target in self.binds:
            words += ["--ro-bind", source, target]
        for target in settings["hidden_in_binds"]:
            words += ["--ro-bind", f"{self.path}/empty", target]
        for source, target in settings["links"]:
            words += ["--symlink", source, target]
        words += ["--ro-bind", f"{self.path}/etc", "/etc"]
        for path in settings["etc_binds"]:
            words += ["--ro-bind", path, f"/etc/{os.path.basename(path)}"]
        words += ["--proc", "/proc", "--dev", "/dev", "--bind", f"{self.box}/shm", "/dev/shm"]
        words += ["--remount-ro", "/dev", "--bind", f"{self.box}/work", "/work"]
        words += ["--bind", f"{self.box}/tmp", "/tmp", "--remount-ro", "/", "--chdir", "/work"]
        words += ["--seccomp", str(filter), "--json-status-fd", str(status), "--", *argv]
        return words


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _wait_for_child(child: int) -> NoReturn:
    """Wait for the process that does the work: a pid namespace begins with a child."""
    os.closerange(3, 256)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    os._exit(0)


def _bring_loopback_up() -> None:
    get_flags, set_flags, is_up = 0x8913, 0x8914, 0x1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(control, get_flags, request))[1]
        fcntl.ioctl(control, set_flags, struct.pack("16sH14s", b"lo", flags | is_up, b""))


class Folder:
    """A folder on disk, for the backend without isolation."""

    binds: tuple[()] = ()

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.parent = os.pidfd_open(os.getppid()) if hasattr(os, "pidfd_open") else -1
        self.path = tempfile.mkdtemp(prefix="heldout-unsafe-")
        self.box = f"{self.path}/box"

    def enter(self) -> None:
        """Adopt what programs leave behind, so that it can be found and killed."""
        if sys.platform == "linux":
            _libc.prctl(SET_SUBREAPER, 1, 0, 0, 0)
        self.renew(fresh=True)

    def renew(self, *, fresh: bool = False) -> None:
        """Empty the folder."""
        if not fresh:
            shutil.rmtree(self.box)
        os.makedirs(f"{self.box}/work")
        os.makedirs(f"{self.box}/tmp")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


# --- Programs -----------------------------------------------------------------------------------


class Channel:
    """One request and its reply."""

    def __init__(self, loop: Supervisor, connection: socket.socket, streams: list[int]) -> None:
        self.loop, self.connection, self.streams = loop, connection, streams
        self.program: Program | None = None
        self.incoming, self.outgoing = bytearray(), memoryview(b"")
        connection.setblocking(False)
        loop.watch(connection, selectors.EVENT_READ, self._receive)

    def _receive(self) -> None:
        try:
            data = self.connection.recv(CHUNK * 4)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            if self.program is not None:
                self.program.stop("killed")
            self.close()
            return
        self.incoming += data
        while len(self.incoming) >= HEADER.size:
            length, extra = HEADER.unpack_from(self.incoming)
            end = HEADER.size + length + extra
            if len(self.incoming) < end:
                return
            request = json.loads(self.incoming[HEADER.size : HEADER.size + length])
            blob = bytes(self.incoming[HEADER.size + length : end])
            del self.incoming[:end]
            self.loop.handle(self, request, blob)

    def reply(self, value: dict[str, Any], blob: bytes = b"") -> None:
        """Send what there is to say, as fast as it is taken."""
        text = json.dumps(value).encode()
        self.outgoing = memoryview(HEADER.pack(len(text), len(blob)) + text + blob)
        self._send()

    def _send(self) -> None:
        if self.connection.fileno() < 0:
            return
        try:
            while self.outgoing:
                self.outgoing = self.outgoing[self.connection.send(self.outgoing) :]
        except BlockingIOError:
            self.loop.watch(self.connection, selectors.EVENT_WRITE, self._send)
        except OSError:
            self.close()
        else:
            self.loop.watch(self.connection, selectors.EVENT_READ, self._receive)

    def close(self) -> None:
        """Close the connection, and the streams that no program took."""
        self.loop.forget(self.connection)
        self.connection.close()
        for descriptor in self.streams:
            os.close(descriptor)
        self.streams.clear()


class Program:
    """A program and the tree below it, from its start until all of it is gone."""

    def __init__(self, loop: Supervisor, channel: Channel, request: dict[str, Any]) -> None:
        self.loop, self.channel, self.request = loop, channel, request
        self.reason: str | None = None
        self.error: str | None = None
        self.status: int | None = None
        self.peak = self.rusage_peak = 0
        self.cpu = 0.0
        self.said = bytearray()  # by bubblewrap: the exit code, if the program was started
        self.output = {1: bytearray(), 2: bytearray()}
        self.open: set[int] = set()
        self.input = memoryview(b"")
        self.began = time.monotonic()
        self.ended = 0.0
        self.stop_at: float | None = None
        timeout = request.get("timeout")
        self.deadline = None if timeout is None else self.began + timeout
        self.pid = -1

    def start(self, stdin: bytes) -> None:
        """Start it; its streams are pipes to this process, or those that came with the request."""
        theirs: list[int] = self.channel.streams[:]
        self.channel.streams.clear()
        mine: list[int] = []
        if not theirs:
            read, write = os.pipe()
            out, out_write = os.pipe()
            error, error_write = os.pipe()
            theirs, mine = [read, out_write, error_write], [write, out, error]
        failed, failed_write = os.pipe()
        status, status_write = os.pipe()
        argv, environment = self.request["argv"], self.request["environment"]
        inherited: list[int] = []
        if isinstance(self.loop.stage, Stage):
            filter = os.memfd_create("seccomp", 0)
            os.write(filter, self.loop.filter)
            os.lseek(filter, 0, os.SEEK_SET)
            command = self.loop.stage.command(argv, environment, filter, status_write)
            inherited, environment = [filter, status_write], {}
        else:
            command = argv
        try:
            self.pid = self._fork(command, environment, theirs, inherited, failed_write)
        finally:
            for descriptor in (*theirs, *inherited, failed_write, status_write):
                with contextlib.suppress(OSError):  # the status pipe is among both
                    os.close(descriptor)
        with open(failed, "rb") as report:
            problem = report.read()  # nothing, once it has become another program
        if problem:
            self.error = problem.decode(errors="replace")
        self.loop.programs[self.pid] = self
        self._watch(status, self.said, None)
        if mine:
            self.input = memoryview(stdin)
            os.set_blocking(mine[0], False)
            self.stdin = mine[0]
            self.loop.watch(mine[0], selectors.EVENT_WRITE, self._feed)
            self.open.add(mine[0])
            limit = self.request["output_limit"]
            self._watch(mine[1], self.output[1], limit)
            self._watch(mine[2], self.output[2], limit)
            self._feed()

    def _fork(
        self,
        command: list[str],
        environment: dict[str, str],
        streams: list[int],
        inherited: list[int],
        failed: int,
    ) -> int:
        child = os.fork()
        if child:
            return child
        try:
            os.setsid()
            # Above those that it gets, so that none is overwritten.
            spare = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 100) for stream in streams]
            for number, stream in enumerate(spare):
                os.dup2(stream, number)
            if len(spare) == 2:
                os.dup2(1, 2)
            for descriptor in inherited:
                os.set_inheritable(descriptor, True)
            for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            self._limit()
            if not isinstance(self.loop.stage, Stage):
                os.chdir(f"{self.loop.stage.box}/work")
            os.execvpe(command[0], command, environment)
        except BaseException as problem:  # noqa: BLE001 - whatever it is, this is the forked child
            number = problem.errno if isinstance(problem, OSError) else None
            os.write(failed, f"{os.strerror(number) if number else problem!r}".encode())
        finally:
            os._exit(127)

    def _limit(self) -> None:
        request = self.request
        memory = request["memory"]
        limits = {
            "CORE": 0,
            "FSIZE": self.loop.settings["disk"],
            "NOFILE": request["descriptors"],
            # The whole tree is watched; this keeps one process from outrunning that.
            "DATA": memory + max(memory // 2, 64 << 20),
            "NPROC": request["processes"] + 8,  # its own: two of bubblewrap, and this one
            "MSGQUEUE": 0,
        }
        if request["cpu"] is not None:
            limits["CPU"] = int(request["cpu"]) + 1
        for name, value in limits.items():
            which = getattr(resource, f"RLIMIT_{name}", None)
            if which is None or (name == "NPROC" and not isinstance(self.loop.stage, Stage)):
                continue  # without a namespace it counts all processes of the user
            _, hard = resource.getrlimit(which)
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.setrlimit(which, (value, value))

    def _watch(self, descriptor: int, into: bytearray, limit: int | None) -> None:
        os.set_blocking(descriptor, False)
        self.open.add(descriptor)

        def receive() -> None:
            try:
                data = os.read(descriptor, CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._close(descriptor)
                self.finish()
                return
            room = len(data) if limit is None else limit - len(into)
            into.extend(data[:room])
            if len(data) > room:
                self.stop("output")

        self.loop.watch(descriptor, selectors.EVENT_READ, receive)

    def _feed(self) -> None:
        try:
            while self.input:
                self.input = self.input[os.write(self.stdin, self.input[:CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read its input, or is gone
            pass
        self._close(self.stdin)

    def _close(self, descriptor: int) -> None:
        if descriptor in self.open:
            self.open.remove(descriptor)
            self.loop.forget(descriptor)
            os.close(descriptor)

    def stop(self, reason: str) -> None:
        """Kill the whole tree, for a reason; the first one counts."""
        if self.reason is None and self.status is None:
            self.reason = reason
        if self.stop_at is None:
            self.stop_at = time.monotonic()
        self.loop.kill(self)

    def reap(self, status: int, usage: Any) -> None:
        """Take note that its first process has ended."""
        self.status, self.ended = status, time.monotonic()
        scale = 1024 if sys.platform == "linux" else 1
        self.rusage_peak = usage.ru_maxrss * scale
        self.cpu = max(self.cpu, usage.ru_utime + usage.ru_stime)
        if self.stop_at is None:
            self.stop_at = self.ended
        # What it has left behind goes with it, and with that the other ends of its pipes.
        self.loop.kill(self)
        self.finish()

    def finish(self) -> None:
        """Reply, once it is dead and all it wrote is read."""
        if self.status is None or self.pid not in self.loop.programs:
            return
        outputs = self.open - {getattr(self, "stdin", -1)}
        if outputs:
            return
        self._end()
        exit = self._read_exit()
        if exit is None and self.reason is None:
            text = (self.error or self.output[2].decode(errors="replace")).strip()[-500:]
            self.channel.reply({"error": text or "it ended without a word", "kind": "start"})
            return
        if self.request["cpu"] is not None and exit == 128 + signal.SIGXCPU:
            self.reason = self.reason or "cpu"
        out, error = bytes(self.output[1]), bytes(self.output[2])
        self.channel.reply(
            {
                "exit": None if self.reason else exit,
                "reason": self.reason,
                "seconds": self.ended - self.began,
                "cpu": self.cpu,
                "peak_memory": max(self.peak, self.rusage_peak) or None,
                "stdout": len(out),
            },
            out + error,
        )

    def _read_exit(self) -> int | None:
        if not isinstance(self.loop.stage, Stage):
            if self.error is not None:
                return None
            code = os.waitstatus_to_exitcode(self.status or 0)
            return code if code >= 0 else 128 - code
        for line in self.said.splitlines():
            code = json.loads(line).get("exit-code")
            if code is not None:
                return int(code)
        return None

    def give_up(self) -> None:
        """Reply that it cannot be killed."""
        self._end()
        seconds = f"{KILL_SECONDS:g} s"
        self.loop.broken = True
        self.channel.reply(
            {"error": f"a process was still there {seconds} after SIGKILL", "kind": "sandbox"}
        )

    def _end(self) -> None:
        for descriptor in [*self.open]:
            self._close(descriptor)
        self.loop.programs.pop(self.pid, None)


# --- Requests -----------------------------------------------------------------------------------


class Supervisor:
    """The loop: requests come in, programs run and are watched."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], stage: Any) -> None:
        self.control, self.settings, self.stage = control, settings, stage
        self.filter = bytes.fromhex(settings["filter"])
        self.selector = selectors.DefaultSelector()
        self.programs: dict[int, Program] = {}
        self.broken = False
        self.running = True
        self.callbacks: dict[int, Callable[[], None]] = {}
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the parent decides
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.watch(reader, selectors.EVENT_READ, lambda: self._drain(reader))
        self.watch(control, selectors.EVENT_READ, self._accept)
        if stage.parent >= 0:
            self.watch(stage.parent, selectors.EVENT_READ, self._leave)

    @staticmethod
    def _drain(reader: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 4096)

    def watch(self, file: Any, events: int, callback: Callable[[], None]) -> None:
        """Call a function whenever a file is ready."""
        descriptor = file if isinstance(file, int) else file.fileno()
        if descriptor in self.callbacks:
            self.selector.modify(descriptor, events)
        else:
            self.selector.register(descriptor, events)
        self.callbacks[descriptor] = callback

    def forget(self, file: Any) -> None:
        """Watch a file no more."""
        descriptor = file if isinstance(file, int) else file.fileno()
        if descriptor >= 0 and self.callbacks.pop(descriptor, None):
            self.selector.unregister(descriptor)

    def _leave(self) -> None:
        self.running = False

    def serve(self) -> None:
        """Run until the parent is gone, or closes the socket."""
        looked = 0.0
        while self.running:
            for key, _ in self.selector.select(self._next_event()):
                callback = self.callbacks.get(key.fd)
                if callback is not None:
                    callback()
            self._reap()
            now = time.monotonic()
            for program in [*self.programs.values()]:
                if program.stop_at is not None and now > program.stop_at + KILL_SECONDS:
                    program.give_up()
                elif program.deadline is not None and now >= program.deadline:
                    program.deadline = None
                    program.stop("timeout")
            if self.programs and now - looked >= TICK:
                looked = now
                self._look()

    def _next_event(self) -> float | None:
        if not self.programs:
            return None
        now = time.monotonic()
        deadlines = [p.deadline for p in self.programs.values() if p.deadline is not None]
        return max(0.0, min([TICK, *(deadline - now for deadline in deadlines)]))

    def _accept(self) -> None:
        size = array.array("i").itemsize
        try:
            data, ancillary, _, _ = self.control.recvmsg(1, socket.CMSG_SPACE(4 * size))
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._leave()
            return
        received = array.array("i")
        for _, _, content in ancillary:
            received.frombytes(content[: len(content) - len(content) % size])
        for descriptor in received:
            os.set_inheritable(descriptor, False)
        channel, *streams = received
        Channel(self, socket.socket(fileno=channel), streams)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.programs:
                self.programs[pid].reap(status, usage)

    # --- What runs ---

    def _look(self) -> None:
        """Compare what every tree uses with its limits."""
        table = _read_processes()
        for program in [*self.programs.values()]:
            if program.status is not None:
                continue
            tree = [*_descend(program.pid, table)]
            memory = sum(table[pid].memory for pid in tree)
            limit = program.request["memory"]
            if memory > limit and len(tree) > 1:
                memory = sum(_proportional(pid, table[pid].memory) for pid in tree)
            program.peak = max(program.peak, memory)
            program.cpu = max(program.cpu, sum(table[pid].cpu for pid in tree))
            cpu = program.request["cpu"]
            if memory > limit:
                program.stop("memory")
            elif len(tree) > program.request["processes"] + 4:
                program.stop("processes")
            elif cpu is not None and program.cpu > cpu:
                program.stop("cpu")

    def kill(self, program: Program) -> None:
        """Kill a program with everything below it, and what it left behind."""
        with contextlib.suppress(ProcessLookupError):
            if program.status is None and program.pid > 0:
                os.kill(program.pid, signal.SIGKILL)
        if isinstance(self.stage, Stage) and len(self.programs) <= 1:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)  # all but this process, which is 1
            return
        table = _read_processes()
        # Orphans of a program without namespace belong to this process, and name their session.
        roots = [program.pid] + [
            pid for pid, process in table.items() if process.session == program.pid
        ]
        for root in roots:
            for pid in _descend(root, table):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    # --- What is asked ---

    def handle(self, channel: Channel, request: dict[str, Any], blob: bytes) -> None:
        """Do what a request asks for, and reply."""
        try:
            operation = request["operation"]
            if operation == "run":
                self._run(channel, request, blob)
            elif operation == "kill":
                if channel.program is not None:
                    channel.program.stop("killed")
            else:
                channel.reply(*getattr(self, f"do_{operation}")(request, blob))
        except Refused as problem:
            channel.reply({"error": str(problem), "kind": problem.kind})
        except OSError as problem:
            kind = {errno.ENOENT: "missing", errno.ENOSPC: "full"}.get(problem.errno or 0, "path")
            channel.reply({"error": problem.strerror or str(problem), "kind": kind})

    def _run(self, channel: Channel, request: dict[str, Any], blob: bytes) -> None:
        if self.broken:
            raise Refused("an earlier program could not be killed")
        program = channel.program = Program(self, channel, request)
        try:
            program.start(blob)
        except OSError as problem:
            raise Refused(f"a program could not be started: {problem}") from None

    def do_hello(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        return {"pid": os.getpid()}, b""

    def do_renew(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Make a fresh root; nothing of what was before is left."""
        for program in [*self.programs.values()]:
            program.stop("killed")
        until = time.monotonic() + KILL_SECONDS
        while self.programs and not self.broken:
            if time.monotonic() > until:
                raise Refused("a process could not be killed")
            self.selector.select(0.001)
            self._reap()
            for program in [*self.programs.values()]:
                program.finish()
                if program.status is not None:
                    program._end()
        if self.broken:
            raise Refused("an earlier program could not be killed")
        self.stage.renew()
        return {}, b""

    def do_write(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Write a file, and the folders above it."""
        with self._folder(request["path"], make=True) as (folder, name):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(name, flags | os.O_CLOEXEC, request["mode"], dir_fd=folder)
            with open(descriptor, "wb") as file:
                _require_file(descriptor, request["path"])
                os.fchmod(descriptor, request["mode"])
                file.write(blob)
        return {}, b""

    def do_read(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Read a file, up to a limit."""
        path, limit = request["path"], request["limit"]
        with self._folder(path) as (folder, name):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=folder)
            with open(descriptor, "rb") as file:
                size = _require_file(descriptor, path)
                if size > limit:
                    raise Refused(f"{path} has {size:,} bytes, and the limit is {limit:,}", "path")
                return {}, file.read(limit)

    @contextlib.contextmanager
    def _folder(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder of a path, one name at a time, so that no link leads out of the tree.

        Yields the folder, and the name in it, which is no link.
        """
        parts = self._split(path)
        stack = [self._open_box()]
        try:
            links = 0
            while True:
                part = parts.pop(0)
                if part == "..":
                    if len(stack) > 1:
                        os.close(stack.pop())
                    if not parts:
                        raise Refused(f"{path} is a folder", "path")
                    continue
                target = _read_link(part, stack[-1])
                if target is not None:
                    links += 1
                    if links > MAX_LINKS:
                        raise Refused(f"{path} has too many links", "path")
                    if target.startswith("/"):
                        while len(stack) > 1:
                            os.close(stack.pop())
                        parts = self._split(target, path) + parts
                    else:
                        parts = [p for p in target.split("/") if p not in ("", ".")] + parts
                    if not parts:
                        raise Refused(f"{path} is a folder", "path")
                    continue
                if not parts:
                    if len(stack) == 1:
                        raise Refused(f"{path} is outside of /work and /tmp", "path")
                    yield stack[-1], part
                    return
                if make and len(stack) > 1:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=stack[-1])
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                stack.append(os.open(part, flags, dir_fd=stack[-1]))
        finally:
            for descriptor in stack:
                os.close(descriptor)

    def _open_box(self) -> int:
        return os.open(self.stage.box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @staticmethod
    def _split(path: str, link: str | None = None) -> list[str]:
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if not path.startswith("/"):
            parts.insert(0, "work")
        if not parts or parts[0] not in ("work", "tmp"):
            what = f"{link} leads to {path}, which" if link else path
            raise Refused(f"{what} is outside of /work and /tmp", "path")
        return parts

    # --- Trees ---

    def do_tree(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Return every folder, file and link of /work; contents once, by their hash."""
        walk = _TreeReader(request["max_files"], request["max_bytes"])
        box = self._open_box()
        try:
            root = os.open("work", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=box)
        finally:
            os.close(box)
        walk.read(root, "", 0)
        sizes = {name: len(content) for name, content in walk.contents.items()}
        return {"entries": walk.entries, "contents": sizes}, b"".join(walk.contents.values())

    def do_restore(self, request: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Make /work what a tree says."""
        contents, position = {}, 0
        for name, size in request["contents"].items():
            contents[name] = blob[position : position + size]
            position += size
        root = f"{self.stage.box}/work"
        for entry in os.scandir(root):
            if entry.is_dir(follow_symlinks=False):
                _remove_folder(entry.path)
            else:
                os.unlink(entry.path)
        folders = []
        for path, kind, mode, value in request["entries"]:
            if kind == "folder":
                # Open to this process until all that is in it is there.
                os.mkdir(f"{root}/{path}", 0o700)
                folders.append((f"{root}/{path}", mode))
                continue
            if kind == "link":
                os.symlink(value, f"{root}/{path}")
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(f"{root}/{path}", flags, 0o600), "wb") as file:
                file.write(contents[value])
                os.fchmod(file.fileno(), mode)
        for path, mode in reversed(folders):
            os.chmod(path, mode)
        return {}, b""


class _TreeReader:
    """Reads a folder of programs that may still write to it, within limits."""

    DEPTH = 100

    def __init__(self, max_files: int, max_bytes: int) -> None:
        self.max_files, self.room = max_files, max_bytes
        self.max_bytes = max_bytes
        self.entries: list[tuple[str, str, int, str]] = []
        self.contents: dict[str, bytes] = {}

    def read(self, folder: int, path: str, depth: int) -> None:
        """Read what is in an open folder, and close it."""
        if depth > self.DEPTH:
            raise Refused(f"/work has folders more than {self.DEPTH} deep", "path")
        try:
            for name in sorted(os.listdir(folder)):
                self._read_entry(folder, name, f"{path}{name}", depth)
        finally:
            os.close(folder)

    def _read_entry(self, folder: int, name: str, path: str, depth: int) -> None:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        mode = stat.S_IMODE(found.st_mode) & 0o777
        if len(self.entries) >= self.max_files:
            raise Refused(f"/work has more than {self.max_files:,} files", "path")
        if stat.S_ISLNK(found.st_mode):
            self.entries.append((path, "link", mode, os.readlink(name, dir_fd=folder)))
        elif stat.S_ISDIR(found.st_mode):
            self.entries.append((path, "folder", mode, ""))
            self._unlock(folder, name, mode, 0o500)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(name, flags, dir_fd=folder)
            os.fchmod(inner, mode)
            self.read(inner, f"{path}/", depth + 1)
        elif stat.S_ISREG(found.st_mode):
            self._unlock(folder, name, mode, 0o400)
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=folder), "rb") as file:
                os.fchmod(file.fileno(), mode)
                content = file.read(self.room + 1)
            digest = hashlib.sha256(content).hexdigest()
            if digest not in self.contents:
                self.room -= len(content)
                if self.room < 0:
                    raise Refused(f"/work has more than {self.max_bytes:,} bytes", "path")
                self.contents[digest] = content
            self.entries.append((path, "file", mode, digest))
        # Pipes and sockets belong to processes, which no tree holds.

    @staticmethod
    def _unlock(folder: int, name: str, mode: int, needed: int) -> None:
        """Let its owner read it, where its mode does not: capabilities may not be there to."""
        if mode & needed != needed:
            os.chmod(name, mode | needed, dir_fd=folder)


def _remove_folder(path: str) -> None:
    """Remove a folder, whatever its mode, and the modes in it."""
    os.chmod(path, 0o700)
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            _remove_folder(entry.path)
        else:
            os.unlink(entry.path)
    os.rmdir(path)


def _read_link(name: str, folder: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:  # no link, or not there: opening it says so
        return None


def _require_file(descriptor: int, path: str) -> int:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{path} is no file", "path")
    return found.st_size


# --- /proc --------------------------------------------------------------------------------------


class _Process:
    __slots__ = ("cpu", "memory", "parent", "session")

    def __init__(self, parent: int, session: int, memory: int, cpu: float) -> None:
        self.parent, self.session, self.memory, self.cpu = parent, session, memory, cpu


def _read_processes() -> dict[int, _Process]:
    """Read all processes: in a pid namespace, those of this sandbox."""
    table = {}
    try:
        names = os.listdir("/proc")
    except OSError:  # not Linux
        return {}
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                line = file.read()
        except OSError:  # it is gone
            continue
        fields = line[line.rindex(b")") + 2 :].split()
        ticks = sum(map(int, fields[11:15]))  # with its children that have been waited for
        table[int(name)] = _Process(
            int(fields[1]), int(fields[3]), int(fields[21]) * PAGE, ticks / TICKS_PER_SECOND
        )
    return table


def _descend(root: int, table: dict[int, _Process]) -> Iterator[int]:
    """Yield a process and all below it."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        if pid in table:
            yield pid


def _proportional(pid: int, otherwise: int) -> int:
    """Return the memory of a process, with what it shares divided by those that share it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return otherwise


def main() -> None:
    """Read the settings from the first message, and serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    settings = json.loads(control.recv(1 << 20))
    stage: Any = None
    try:
        stage = Folder(settings) if settings["backend"] == "unsafe" else Stage(settings)
        stage.enter()
        supervisor = Supervisor(control, settings, stage)
        control.send(json.dumps({"box": stage.box}).encode())
    except (Refused, OSError) as problem:
        control.send(json.dumps({"error": str(problem)}).encode())
        return
    try:
        supervisor.serve()
    finally:
        if isinstance(stage, Folder):
            for program in [*supervisor.programs.values()]:
                supervisor.kill(program)
            stage.remove()


if __name__ == "__main__":
    main()
