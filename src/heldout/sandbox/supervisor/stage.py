"""Where programs run: in namespaces; or, without isolation, in a folder on disk."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

from .files import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

PLACES = ("/mnt", "/srv", "/media", "/opt", "/tmp")
"""Folders that every system has. One that no program needs is hidden by a tmpfs, for us alone."""
UID = 1000
"""The user that programs run as, seen from inside."""
NOBODY = 65534
"""What root becomes: it is exempt from the limit on processes, and an escape would be root's."""

NEW_NS, NEW_USER, NEW_PID, NEW_NET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
NEW_IPC, NEW_UTS = 0x08000000, 0x04000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SUBREAPER = 1, 4, 36

_libc: Any = ctypes.CDLL(None, use_errno=True)


def _check(what: str, result: int) -> None:
    if result != 0:
        raise Refused(f"{what}: {os.strerror(ctypes.get_errno())}")


def _unshare(flags: int) -> None:
    _check("the kernel gives no new namespaces", _libc.unshare(flags))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() if options else None,
    )
    _check(f"{kind or source} could not be mounted on {target}", result)


class SandboxStage:
    """Namespaces, and in them the mounts that sandboxes are made of."""

    has_namespaces = True

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.path = next(
            folder
            for folder in PLACES
            if os.path.isdir(folder)
            and not any(_is_in(source, folder) for source, _ in settings["binds"])
        )
        self.root, self.box, self.empty = (f"{self.path}/{n}" for n in ("root", "box", "empty"))
        self.hidden = f"{self.path}/hidden"
        self.parent = -1

    def enter(self) -> None:
        """Move this process into namespaces of its own; it comes back as process 1 of them."""
        self.parent = _watch_parent()
        uid, gid = os.getuid(), os.getgid()
        if uid == 0:
            # What root alone may read is mounted while this is root.
            _unshare(NEW_NS)
            self._prepare()
            uid = gid = NOBODY
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            _libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)  # else its files in /proc stay root's
        network = 0 if self.settings["network"] else NEW_NET
        _unshare(NEW_USER | NEW_NS | NEW_PID | NEW_IPC | NEW_UTS | network)
        _write_file("/proc/self/setgroups", "deny")
        _write_file("/proc/self/uid_map", f"{UID} {uid} 1")
        _write_file("/proc/self/gid_map", f"{UID} {gid} 1")
        if network:
            _bring_loopback_up()
        child = os.fork()
        if child:
            _wait_for_child(child)
        _libc.prctl(SET_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        if not os.path.isdir(self.box):
            self._prepare()
        _mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
        self._mount_box()

    def _prepare(self) -> None:
        """Build the root that programs see, out of folders of the host."""
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
        _mount("heldout", self.path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4m,mode=755")
        for folder in (self.root, self.box, self.empty, self.hidden):
            os.mkdir(folder)
        for folder in ("etc", "proc", "dev", "work", "tmp"):
            os.mkdir(f"{self.root}/{folder}")
        for name, text in self.settings["etc"].items():
            _write_file(f"{self.root}/etc/{name}", text)
        mounted: list[tuple[str, bool]] = []
        for number, (source, target) in enumerate(self.settings["binds"]):
            path, hides = f"{self.root}{target}", not source
            if hides:  # an empty folder of its own, in which later ones may be
                source = f"{self.hidden}/{number}"
                os.mkdir(source)
            if not os.path.lexists(path):
                around = [ours for other, ours in mounted if _is_in(target, other)]
                if around and not around[-1]:
                    raise Refused(f"{target} is not there to be hidden or replaced")
                self._make_target(source, path)
            _mount(source, path, None, MS_BIND | MS_REC)
            mounted.append((target, hides))
        for source, target in self.settings["links"]:
            os.makedirs(os.path.dirname(f"{self.root}{target}"), exist_ok=True)
            os.symlink(source, f"{self.root}{target}")

    @staticmethod
    def _make_target(source: str, target: str) -> None:
        os.makedirs(target if os.path.isdir(source) else os.path.dirname(target), exist_ok=True)
        if not os.path.isdir(target):
            _write_file(target, "")

    def _mount_box(self) -> None:
        size, files = self.settings["disk"], self.settings["files"]
        options = f"size={size},nr_inodes={files},mode=755"
        _mount("heldout", self.box, "tmpfs", MS_NOSUID | MS_NODEV, options)
        for folder, mode in (("work", 0o755), ("tmp", 0o1777), ("shm", 0o1777)):
            os.mkdir(f"{self.box}/{folder}")
            os.chmod(f"{self.box}/{folder}", mode)

    def renew(self) -> None:
        """Give the sandbox an empty file system; nothing runs in it."""
        result = _libc.umount2(os.fsencode(self.box), MNT_DETACH)
        _check("the file system could not be unmounted", result)
        self._mount_box()

    def remove(self) -> None:
        """Do nothing: all of it ends with this process."""

    def make_command(
        self, request: dict[str, Any], *, filter: int, status: int, block: int
    ) -> list[str]:
        """Return the bubblewrap command that runs a program.

        Args:
            request: For a program.
            filter: A descriptor from which to read the seccomp filter.
            status: A descriptor to which to write process id and exit code.
            block: A descriptor from which to read, before the program starts.
        """
        words = [self.settings["bubblewrap"], "--unshare-user", "--disable-userns"]
        words += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        words += ["--hostname", "sandbox", "--uid", str(UID), "--gid", str(UID)]
        words += ["--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
        for name, value in request["environment"].items():
            words += ["--setenv", name, value]
        words += ["--ro-bind", self.root, "/", "--dev", "/dev", "--proc", "/proc"]
        # Process 1 is bubblewrap's, reports the exit code and has no filter; through its memory a
        # program could take it over.
        words += ["--ro-bind", self.empty, "/proc/1"]
        for folder, target in (("shm", "/dev/shm"), ("work", "/work"), ("tmp", "/tmp")):
            words += ["--bind", f"{self.box}/{folder}", target]
        words += ["--remount-ro", "/dev", "--chdir", "/work"]  # it is a tmpfs without a limit
        if self.settings["filter"]:
            words += ["--seccomp", str(filter)]
        words += ["--json-status-fd", str(status), "--block-fd", str(block)]
        return [*words, "--", *request["argv"]]


class PlainFolder:
    """A folder on disk, in which programs run without isolation."""

    has_namespaces = False

    def __init__(self, settings: dict[str, Any]) -> None:
        self.parent = -1
        self.path = f"{settings['folder']}/heldout-unsafe-{os.urandom(8).hex()}"
        self.box = f"{self.path}/box"

    def enter(self) -> None:
        """Adopt what programs leave behind, so that it can be found and killed."""
        if sys.platform == "linux":
            self.parent = _watch_parent()
            _libc.prctl(SET_SUBREAPER, 1, 0, 0, 0)
        os.mkdir(self.path, 0o700)
        self._make()

    def _make(self) -> None:
        os.makedirs(f"{self.box}/work")
        os.makedirs(f"{self.box}/tmp")

    def renew(self) -> None:
        """Empty the folder."""
        import shutil

        shutil.rmtree(self.box)
        self._make()

    def remove(self) -> None:
        """Remove the folder."""
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _write_file(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _watch_parent() -> int:
    """Return a descriptor that is ready once the parent has ended.

    Its socket would not tell: processes that it forked have that open, too.
    """
    parent = os.getppid()
    descriptor = os.pidfd_open(parent)
    if os.getppid() != parent:
        sys.exit(1)
    return descriptor


def _wait_for_child(child: int) -> NoReturn:
    """Wait for the process that does the work: a pid namespace begins with a child."""
    os.closerange(3, 256)
    os.waitpid(child, 0)
    os._exit(0)


def _bring_loopback_up() -> None:
    get_flags, set_flags, is_up = 0x8913, 0x8914, 0x1
    layout = struct.Struct("16sH14s")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, get_flags, layout.pack(b"lo", 0, b""))
        flags = layout.unpack(answer)[1]
        fcntl.ioctl(control, set_flags, layout.pack(b"lo", flags | is_up, b""))
