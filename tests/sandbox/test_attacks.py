"""Programs that attack: the host is unchanged, the outcome has its reason, the next program runs.

A program prints ESCAPED where it got through. Bombs are bounded: limits are small, and the one on
processes is verified with a program that could not fill the machine even if it did not hold.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout.sandbox import ProgramOutcome, Sandbox, SandboxLimits, open_sandbox
from tests.sandbox.conftest import Use

pytestmark = pytest.mark.integration

KEY = "sk-heldout-test-0123456789abcdef"
HELPERS = """
import ctypes, errno, mmap, os, platform, signal, socket, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
column = ("x86_64", "aarch64").index(platform.machine())
def expect_error(what, call, *numbers):
    try:
        result = call()
    except OSError as problem:
        print(what, "refused", problem.errno)
        return
    except Exception as problem:
        print(what, "refused", repr(problem))
        return
    print("ESCAPED", what, repr(result)[:200])
def raw(name, x86_64, aarch64, *arguments):
    number = (x86_64, aarch64)[column]
    def call():
        result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), name)
        return result
    expect_error(name, call)
"""


class Host:
    """What a program must not reach: a file, a variable, a process, two servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = folder / "secret.txt"
        self.secret.write_text(KEY)
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.abstract = f"heldout-test-{os.getpid()}"
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(f"\0{self.abstract}")
        self.unix.listen()
        for each in (self.server, self.unix):
            each.setblocking(False)

    def check(self) -> None:
        assert self.secret.read_text() == KEY
        assert [path.name for path in self.folder.iterdir()] == ["secret.txt"]
        assert self.process.poll() is None
        for server in (self.server, self.unix):
            with pytest.raises(BlockingIOError):  # nobody has connected
                server.accept()

    def close(self) -> None:
        self.server.close()
        self.unix.close()
        self.process.communicate()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    os.environ["HELDOUT_TEST_API_KEY"] = KEY
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.close()
    del os.environ["HELDOUT_TEST_API_KEY"]


def attack(use: Use, host: Host, code: str, **limits: Any) -> ProgramOutcome:
    """Run a program, check that the host is unchanged and that the next program runs."""
    values = {
        "SECRET": str(host.secret),
        "ABSTRACT": host.abstract,
        "PORT": host.port,
        "PARENT": os.getpid(),
        "PROCESS": host.process.pid,
        "KEY": KEY[:10],
    }
    lines = [HELPERS, *(f"{name} = {value!r}" for name, value in values.items())]

    async def run(sandbox: Sandbox) -> ProgramOutcome:
        program = {"attack.py": "\n".join([*lines, textwrap.dedent(code)])}
        outcome = await sandbox.run([sandbox.python, "-I", "attack.py"], files=program, **limits)
        following = await sandbox.run([sandbox.python, "-I", "-c", "print('next')"])
        assert (following.exit, following.stdout, following.reason) == (0, b"next\n", None)
        return outcome

    outcome = use(run)
    host.check()
    assert b"ESCAPED" not in outcome.stdout + outcome.stderr, outcome.stdout.decode()
    assert KEY.encode() not in outcome.stdout + outcome.stderr
    return outcome


# --- Bombs --------------------------------------------------------------------------------------


def test_a_program_has_no_more_processes_than_allowed(use: Use, host: Host) -> None:
    outcome = attack(
        use,
        host,
        """
        import threading
        count = 0
        for _ in range(40):
            try:
                if os.fork() == 0:
                    time.sleep(30)
            except BlockingIOError:
                break
            count += 1
        print(count)
        """,
    )
    assert (outcome.exit, outcome.stdout) == (0, b"15\n")  # and the program itself


BOMBS = {
    "processes that fork": (
        """
        while True:
            try:
                os.fork()
            except OSError:
                pass
        """,
        {"timeout": 1.0},
        {"timeout"},
    ),
    "processes that hide": (
        """
        while True:
            try:
                if os.fork() == 0:
                    os.setsid()
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    for descriptor in range(3):
                        os.close(descriptor)
            except OSError:
                pass
        """,
        {"timeout": 1.0},
        {"timeout"},
    ),
    "memory of one process": (
        "kept = []\nwhile True: kept.append(bytearray(1 << 20))",
        {"memory": 64 << 20},
        {"memory"},
    ),
    "memory of many processes": (
        """
        for _ in range(8):
            if os.fork() == 0:
                kept = bytearray(os.urandom(1 << 20) * 20)
                time.sleep(30)
        time.sleep(30)
        """,
        {"memory": 64 << 20},
        {"memory"},
    ),
    "memory of sockets": (
        """
        kept = []
        for _ in range(8):
            if os.fork() == 0:
                break
        while len(kept) < 100:
            kept.append(socket.socketpair())
            kept[-1][0].setblocking(False)
            kept[-1][0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
            try:
                while True: kept[-1][0].send(bytes(1 << 16))
            except BlockingIOError:
                pass
        time.sleep(30)
        """,
        {"memory": 100 << 20},
        {"memory"},
    ),
    "memory of connections that nobody accepts": (
        """
        for number in range(20):
            server = socket.socket(socket.AF_UNIX)
            server.bind(f"\\0{number}")
            server.listen(4096)
            os.dup(server.fileno())
            for _ in range(400):
                client = socket.socket(socket.AF_UNIX)
                client.setblocking(False)
                client.connect(f"\\0{number}")
                try:
                    while True: client.send(bytes(1 << 16))
                except BlockingIOError:
                    client.close()
        time.sleep(30)
        """,
        {"memory": 64 << 20},
        {"memory"},
    ),
    "memory of connections over loopback": (
        """
        server = socket.create_server(("127.0.0.1", 0))
        kept = []
        while len(kept) < 100:
            client = socket.create_connection(server.getsockname())
            kept.append((client, server.accept()))
            client.setblocking(False)
            try:
                while True: client.send(bytes(1 << 16))
            except BlockingIOError:
                pass
        time.sleep(30)
        """,
        {"memory": 64 << 20},
        {"memory"},
    ),
    "shared memory": (
        """
        kept = []
        while True:
            kept.append(mmap.mmap(-1, 1 << 22))
            kept[-1].write(b"x" * (1 << 22))
        """,
        {"memory": 64 << 20},
        {"memory"},
    ),
    "output": (
        "for _ in range(1024): sys.stdout.buffer.write(b'x' * (1 << 20))",
        {"output_limit": 1000},
        {"output"},
    ),
    "errors": (
        "while True: os.write(2, b'x' * 65536)",
        {"output_limit": 1000},
        {"output"},
    ),
    "CPU time of many processes": (
        "for _ in range(3): os.fork()\nwhile True: pass",
        {"cpu": 0.5},
        {"cpu"},
    ),
    "a parent that waits in the kernel": (  # for a child that never becomes another program
        """
        VFORK = 0x4000
        number = (56, 220)[column]
        libc.syscall(ctypes.c_long(number), ctypes.c_long(VFORK | signal.SIGCHLD), 0, 0, 0, 0)
        time.sleep(60)
        """,
        {"timeout": 1.0},
        {"timeout"},
    ),
    "a tree that is stopped": (
        "os.fork()\nos.kill(0, signal.SIGSTOP)\ntime.sleep(60)",
        {"timeout": 1.0},
        {"timeout"},
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_stopped_with_its_reason(name: str, use: Use, host: Host) -> None:
    code, limits, reasons = BOMBS[name]
    outcome = attack(use, host, code, **limits)
    assert outcome.reason in reasons
    assert outcome.exit is None
    assert len(outcome.stdout) <= 1000
    assert len(outcome.stderr) <= 1000


REFUSED = {
    "a large allocation": "expect_error('memory', lambda: bytearray(1 << 36))",
    "a disk that is filled": """
        written = 0
        for folder in ("/work", "/tmp", "/dev/shm"):
            try:
                with open(f"{folder}/fill", "wb", buffering=0) as file:
                    for _ in range(64):
                        written += file.write(bytes(1 << 20))
            except OSError as problem:
                print(folder, problem.errno)
        print("ESCAPED" if written > 8 << 20 else "filled", written)
        for folder in ("/work", "/tmp", "/dev/shm"):
            if os.path.exists(f"{folder}/fill"): os.unlink(f"{folder}/fill")
        """,
    "too many files": """
        def fill():
            for number in range(2000):
                open(f"/tmp/{number}", "w").close()
        expect_error("files", fill)
        """,
    "too many descriptors": "expect_error('descriptors', lambda: [os.pipe() for _ in range(2000)])",
    "limits that are raised": """
        import resource
        for name in ("NPROC", "DATA", "FSIZE", "NOFILE", "CORE"):
            which = getattr(resource, f"RLIMIT_{name}")
            hard = resource.getrlimit(which)[1]
            expect_error(name, lambda: resource.setrlimit(which, (hard + 1, hard + 1)))
        """,
    "memory without an owner": """
        raw("memfd_create", 319, 279, 0, 0)
        raw("shmget", 29, 194, 0, 1 << 20, 0o1600)
        raw("msgget", 68, 186, 0, 0o1600)
        raw("semget", 64, 190, 0, 1, 0o1600)
        """,
    "the host's files": """
        for path in (SECRET, "/etc/shadow", "/root/.ssh", "/home", "/var", "/run", "/sys", "/boot",
                     "/mnt", "/srv", "/work/main", "/usr/local/bin", "/etc/ssh", "/etc/machine-id"):
            look = open if os.path.isfile(path) else os.listdir
            expect_error(path, lambda: look(path))
        print(sorted(os.listdir("/")))
        for path, folders, files in os.walk("/root"):
            if any(name.startswith(".") and name != ".pyenv" for name in folders + files):
                print("ESCAPED", path, folders, files)
        """,
    "the environment": """
        for name in ["self", *filter(str.isdigit, os.listdir("/proc"))]:
            try:
                text = open(f"/proc/{name}/environ", "rb").read()
            except OSError as problem:
                continue
            if KEY.encode() in text or b"HELDOUT" in text: print("ESCAPED", name)
        print(dict(os.environ))
        if any("HELDOUT" in name or KEY in value for name, value in os.environ.items()):
            print("ESCAPED", os.environ)
        """,
    "signals": """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.kill(1, signal.SIGKILL)  # the first process of a namespace cannot be killed from inside
        for pid in (PARENT, PROCESS):
            expect_error(pid, lambda: os.kill(pid, signal.SIGKILL))
        expect_error("group", lambda: os.kill(-PARENT, signal.SIGKILL))
        try:
            os.kill(-1, signal.SIGTERM)
        except ProcessLookupError:
            pass
        print("here")
        """,
    "/proc": """
        others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) > 50]
        if others: print("ESCAPED", others)
        for path in ("sysrq-trigger", "sys/kernel/core_pattern", "sys/kernel/hostname",
                     "sys/vm/overcommit_memory", "1/mem", "self/uid_map", "1/oom_score_adj"):
            expect_error(path, lambda: open(f"/proc/{path}", "r+b", buffering=0).write(b"0"))
        for path in ("kcore", "kmsg", "1/mem", "kallsyms"):
            expect_error(path, lambda: open(f"/proc/{path}", "rb").read(16).strip(b"0") or 1 / 0)
        for path in ("1/root/etc/shadow", "1/root/var", "self/root/home", "1/cwd/var", "1/fd/3"):
            expect_error(path, lambda: os.stat(f"/proc/{path}"))
        """,
    "devices": """
        for name in ("mem", "kmsg", "sda", "vda", "kvm", "fuse", "net/tun", "vsock", "loop0"):
            expect_error(name, lambda: open(f"/dev/{name}", "rb"))
        expect_error("device", lambda: os.mknod("/work/disk", 0o60600, os.makedev(254, 0)))
        """,
    "writing outside": """
        for path in ("/file", "/etc/file", "/usr/file", "/usr/bin/python3", "/dev/file", "/bin/sh",
                     "/proc/file", "/etc/passwd", sys.executable, "/lib/file", "/root/file"):
            expect_error(path, lambda: open(path, "ab"))
        """,
    "the network": """
        for address in (("127.0.0.1", PORT), ("10.0.0.1", 80), ("169.254.169.254", 80)):
            expect_error(address, lambda: socket.create_connection(address, timeout=2))
        expect_error("name", lambda: socket.getaddrinfo("example.com", 80))
        unix = socket.socket(socket.AF_UNIX)
        expect_error("abstract", lambda: unix.connect("\\0" + ABSTRACT))
        for domain in (16, 17, 38, 40, 31):  # netlink, packets, crypto, vsock, bluetooth
            expect_error(domain, lambda: socket.socket(domain, socket.SOCK_STREAM))
        expect_error("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
        server = socket.create_server(("127.0.0.1", 0))  # its own loopback works
        socket.create_connection(server.getsockname(), timeout=5).close()
        """,
    "the kernel": """
        raw("ptrace", 101, 117, 16, 1, 0, 0)
        raw("ptrace itself", 101, 117, 0, 0, 0, 0)
        raw("process_vm_readv", 310, 270, 1, 0, 0, 0, 0, 0)
        raw("unshare", 272, 97, 0x10000000)
        raw("clone", 56, 220, 0x10000000 | 17, 0, 0, 0, 0)
        raw("clone3", 435, 435, 0, 0)
        raw("setns", 308, 268, 0, 0)
        raw("mount", 165, 40, 0, 0, 0, 0, 0)
        raw("chroot", 161, 51, 0)
        raw("keyctl", 250, 219, 0, 0)
        raw("bpf", 321, 280, 0, 0, 0)
        raw("perf_event_open", 298, 241, 0, 0, -1, -1, 0)
        raw("userfaultfd", 323, 282, 0)
        raw("io_uring_setup", 425, 425, 8, 0)
        raw("open_by_handle_at", 304, 265, -100, 0, 0)
        raw("pidfd_getfd", 438, 438, 0, 0, 0)
        expect_error("root", lambda: os.setuid(0))
        if os.getuid() == 0: print("ESCAPED as root")
        status = open("/proc/self/status").read()
        for line in ("CapEff:\\t0000000000000000", "CapBnd:\\t0000000000000000", "NoNewPrivs:\\t1"):
            if line not in status: print("ESCAPED", line, status)
        """,
    "descriptors": """
        mine = sorted(map(int, os.listdir("/proc/self/fd")))
        if mine[:3] != [0, 1, 2] or len(mine) > 4: print("ESCAPED", mine)  # and the listing's own
        for number in range(3):
            target = os.readlink(f"/proc/self/fd/{number}")
            if not target.startswith("pipe:"): print("ESCAPED", target)
            expect_error(number, lambda: os.stat(f"/proc/self/fd/{number}/.."))
            expect_error(number, lambda: os.listdir(f"/proc/1/fd"))
        """,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_does_not_get_through(name: str, use: Use, host: Host) -> None:
    outcome = attack(use, host, REFUSED[name])
    assert (outcome.exit, outcome.reason) == (0, None), outcome.stderr.decode()
    if name == "signals":
        assert outcome.stdout.endswith(b"here\n")


# --- Files that lead out ------------------------------------------------------------------------


def test_links_lead_neither_reads_nor_writes_nor_trees_out(use: Use, host: Host) -> None:
    async def plant(sandbox: Sandbox) -> None:
        script = """
            ln -s /etc/hostname file; ln -s /etc folder; ln -s ../../../../../etc up
            ln -s / root; ln -s loop loop; ln -s /proc/self/root proc; mkfifo pipe
            ln -s /work/good.txt good; echo good > good.txt; mkdir -p deep; ln -s ../good.txt deep/x
        """
        assert (await sandbox.run(["bash", "-c", script])).exit == 0
        outside = ("file", "folder/hostname", "up/passwd", "root/etc/passwd", "loop", "pipe", "/")
        outside += ("proc/etc/passwd", "/work/../etc/passwd", "/proc/1/environ", "/work", "deep")
        for path in outside:
            with pytest.raises((ValueError, OSError)):
                await sandbox.read(path)
            with pytest.raises((ValueError, OSError)):
                await sandbox.write(path, "ESCAPED")
        assert await sandbox.read("good") == await sandbox.read("/work/deep/x") == b"good\n"
        tree = await sandbox.tree()
        assert [*tree.contents.values()] == [b"good\n"]
        await sandbox.restore(tree)  # with the links, and nothing through them
        assert await sandbox.tree() == tree

    use(plant)
    host.check()


def test_folders_of_any_depth_are_restored_from(bubblewrap: None) -> None:
    async def dig(sandbox: Sandbox) -> None:
        tree = await sandbox.tree()
        deep = "import os\ntry:\n  while 1: os.mkdir('d'); os.chdir('d')\nexcept OSError: pass"
        assert (await sandbox.run(["python", "-c", deep])).exit == 0
        await sandbox.restore(tree)
        assert await sandbox.tree() == tree

    async def main() -> None:
        async with open_sandbox(limits=SandboxLimits(files=3000)) as sandbox:
            await dig(sandbox)

    anyio.run(main)


def test_what_a_program_left_behind_is_gone_with_it(use: Use, host: Host) -> None:
    async def leave(sandbox: Sandbox) -> None:
        outcome = await sandbox.run(["bash", "-c", "(setsid sleep 1000 >&- 2>&- &) ; echo done"])
        assert (outcome.exit, outcome.stdout) == (0, b"done\n")
        count = "ls -d /proc/[0-9]* | wc -l"
        assert int((await sandbox.run(["bash", "-c", count])).stdout) <= 4

    use(leave)
