"""Memory that the kernel holds for the sockets of a sandbox: what was sent and is not read yet.

It belongs to no process, so neither limits nor the table of processes have it, and a few processes
fill gigabytes with it. A network namespace tells how much there is: over netlink (sock_diag) for
sockets within the machine, in /proc/net for those of the internet, which are of its loopback.

Not seen is what a datagram socket holds of senders that have closed theirs.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time

SOCK_DIAG, DUMP_REQUEST, DONE = 4, 0x301, 3
DIAG_BY_FAMILY, SHOW_QUEUE, SHOW_MEMORY = 20, 0x10, 0x20
QUEUE, MEMORY = 4, 5
"""Attributes of a socket: bytes to be read, and its memory."""
LISTENING = 10
HEADER, ENTRY, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBxI8x"), struct.Struct("=HH")
SEND_BUFFER = 212_992
"""What a connection that nobody has accepted may hold."""
SHARE = 5
"""Measuring takes at most so small a part of the time."""


class SocketMemory:
    """The memory of all sockets of a network namespace that is the sandbox's own."""

    def __init__(self) -> None:
        self._last, self._again = 0, 0.0
        self._netlink: socket.socket | None = None  # a kernel without it: only /proc counts
        with contextlib.suppress(OSError):
            self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG)
            self._netlink.settimeout(1.0)

    def measure(self, *, now: bool = False) -> int:
        """Return the bytes, as they were a moment ago, or as they are now."""
        began = time.monotonic()
        if now or began >= self._again:
            self._last = self._measure_unix() + _measure_internet()
            ended = time.monotonic()
            self._again = ended + SHARE * (ended - began)
        return self._last

    def _measure_unix(self) -> int:
        if self._netlink is None:
            return 0
        request = struct.pack("=BBHIIIII", 1, 0, 0, 2**32 - 1, 0, SHOW_QUEUE | SHOW_MEMORY, 0, 0)
        head = HEADER.pack(HEADER.size + len(request), DIAG_BY_FAMILY, DUMP_REQUEST, 1, 0)
        sent = unread = 0
        try:
            self._netlink.send(head + request)
            while True:
                data = self._netlink.recv(1 << 20)
                place = 0
                while place < len(data):
                    length, kind, _, _, _ = HEADER.unpack_from(data, place)
                    if kind != DIAG_BY_FAMILY:  # the end, or an error
                        return max(sent, unread)
                    mine, theirs = _read_entry(data, place + HEADER.size, place + length)
                    sent, unread = sent + mine, unread + theirs
                    place += (length + 3) & ~3
        except OSError:
            self._netlink = None  # a kernel without it
            return 0


def _read_entry(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return what a socket has sent that is not read, and what it has not read."""
    sent = unread = 0
    state = ENTRY.unpack_from(data, place)[2]
    place += ENTRY.size
    while place + ATTRIBUTE.size <= end:
        length, kind = ATTRIBUTE.unpack_from(data, place)
        if kind == MEMORY:
            sent = struct.unpack_from("=I", data, place + 12)[0]
        elif kind == QUEUE:
            unread = struct.unpack_from("=I", data, place + 4)[0]
        place += max((length + 3) & ~3, 4)
    return sent, unread * SEND_BUFFER if state == LISTENING else unread


def _measure_internet() -> int:
    total = 0
    for name in ("tcp", "tcp6", "udp", "udp6"):
        try:
            with open(f"/proc/net/{name}", "rb") as file:
                lines = file.readlines()[1:]
        except OSError:  # no such protocol here
            continue
        for line in lines:
            out, _, into = line.split()[4].partition(b":")
            total += int(out, 16) + int(into, 16)
    return total
