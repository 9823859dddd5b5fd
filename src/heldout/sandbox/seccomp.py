"""The system calls that programs are refused, as a filter for the kernel (classic BPF).

No program that an eval runs needs them, and most holes that were found in the kernel in the last
years were in them: tracing, mounting, new user namespaces, keys, BPF, io_uring. Memory that belongs
to no process (System V shared memory, memfd) would count as nobody's. Sockets are those of the
internet and of the file system: AF_VSOCK would reach the host of a virtual machine, whatever
network namespace it is in.
"""

from __future__ import annotations

import errno
import platform
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""What the kernel calls them: AUDIT_ARCH_*."""

# name: (x86_64, aarch64); None where there is none
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "lookup_dcookie": (212, 18),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}
ABSENT: dict[str, tuple[int | None, int | None]] = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Its flags are in memory, where a filter cannot look; libraries fall back to `clone`.
    "clone3": (435, 435),
}
"""Refused as if the kernel were older, since programs then do without."""
CLONE, SOCKET, IOCTL = (56, 220), (41, 198), (16, 29)
NEW_NAMESPACES = 0x7E020000 | 0x80
"""The flags of `clone` that make a namespace."""
DOMAINS = (1, 2, 10)
"""AF_UNIX, AF_INET, AF_INET6. Without AF_NETLINK, libraries take every family to be there."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into a terminal."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def build_filter(machine: str | None = None) -> bytes:
    """Return the filter for a machine, this one by default; empty where its numbers are unknown."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        return b""
    column = [*ARCHITECTURES].index(machine)
    refuse = _step(_RETURN, _ERRNO | errno.EPERM)
    steps = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_EQUAL, ARCHITECTURES[machine], 1, 0),
        _step(_RETURN, _KILL),  # 32-bit calls have other numbers
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":  # the calls of x32
        steps += [_step(_AT_LEAST, 0x40000000, 0, 1), _step(_RETURN, _KILL)]
    for calls, code in ((REFUSED, errno.EPERM), (ABSENT, errno.ENOSYS)):
        for numbers in calls.values():
            number = numbers[column]
            if number is not None:
                steps += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _ERRNO | code)]
    # By their arguments. Only the lower half is loaded (both machines are little-endian).
    steps += [
        _step(_EQUAL, CLONE[column], 0, 4),
        _step(_LOAD, _FIRST),
        _step(_ANY_BIT, NEW_NAMESPACES, 0, 1),
        refuse,
        _step(_RETURN, _ALLOW),
    ]
    steps += [_step(_EQUAL, SOCKET[column], 0, len(DOMAINS) + 3), _step(_LOAD, _FIRST)]
    for index, domain in enumerate(DOMAINS):
        steps.append(_step(_EQUAL, domain, len(DOMAINS) - index, 0))
    steps += [_step(_RETURN, _ERRNO | errno.EAFNOSUPPORT), _step(_RETURN, _ALLOW)]
    steps += [
        _step(_EQUAL, IOCTL[column], 0, 4),
        _step(_LOAD, _SECOND),
        _step(_EQUAL, TERMINAL_INPUT[0], 1, 0),
        _step(_EQUAL, TERMINAL_INPUT[1], 0, 1),
        refuse,
        _step(_RETURN, _ALLOW),
    ]
    return b"".join(steps)
