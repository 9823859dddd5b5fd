"""The table of processes, from /proc: in a pid namespace, those of one sandbox."""

from __future__ import annotations

import os
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = resource.getpagesize()
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProcessEntry:
    """A line of the table."""

    __slots__ = ("cpu", "is_stopped", "memory", "parent", "session")

    def __init__(
        self, parent: int, session: int, memory: int, cpu: float, is_stopped: bool
    ) -> None:
        self.parent, self.session, self.memory, self.cpu = parent, session, memory, cpu
        self.is_stopped = is_stopped


def read_processes() -> dict[int, ProcessEntry]:
    """Read all processes; none where there is no /proc."""
    table = {}
    try:
        names = os.listdir("/proc")
    except OSError:
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
        ticks = sum(map(int, fields[11:15]))  # with those of its children that were waited for
        table[int(name)] = ProcessEntry(
            int(fields[1]),
            int(fields[3]),
            int(fields[21]) * PAGE,
            ticks / TICKS_PER_SECOND,
            fields[0] == b"T",
        )
    return table


def descend(roots: list[int], table: dict[int, ProcessEntry]) -> Iterator[int]:
    """Yield processes and all below them, each once."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    waiting, seen = [*roots], set()
    while waiting:
        pid = waiting.pop()
        if pid in table and pid not in seen:
            seen.add(pid)
            waiting += children.get(pid, ())
            yield pid


def measure_memory(tree: list[int], table: dict[int, ProcessEntry], limit: int) -> int:
    """Return the bytes of memory that processes have, together.

    What they share counts once, but to find out takes long: only where it decides.
    """
    memory = sum(table[pid].memory for pid in tree)
    if memory <= limit or len(tree) == 1:
        return memory
    return sum(_read_proportional(pid, table[pid].memory) for pid in tree)


def _read_proportional(pid: int, otherwise: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:  # it is gone, or the kernel has no such file
        pass
    return otherwise


def count_oom_kills() -> int:
    """Return how many processes the kernel has killed for want of memory."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
