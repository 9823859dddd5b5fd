"""How much memory is left, and how many cores there are: less than the machine's in a container."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

CGROUPS = "/sys/fs/cgroup"
ReadFile = Callable[[str], str | None]


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _read_file(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:  # not there, or not for this process
        return None


def available_memory(read: ReadFile = _read_file) -> int:
    """Return the bytes that can be allocated before the kernel kills a process (Linux).

    `/proc/meminfo` is of the machine. A container, a systemd unit or a Slurm job has a control
    group with a limit of its own, and so may each group around it: the smallest counts.

    Args:
        read: Returns the content of a file, or None.
    """
    content = read("/proc/meminfo")
    if content is None:  # not Linux, which has no such number: half of the machine's
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    meminfo = dict(line.split(":", 1) for line in content.splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) * 1024
    return max(0, min([available, *_group_rooms(read)]))


def _group_rooms(read: ReadFile) -> Iterator[int]:
    """Yield the memory left in each control group of this process."""
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            top, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = f"{CGROUPS}/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be that of the host, and only the top is there.
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            folder = f"{top}/{group}".removesuffix("/.")
            room = _room(read, folder, *names)
            if room is not None:
                yield room


def _room(read: ReadFile, folder: str, limit_file: str, usage_file: str, cache: str) -> int | None:
    limit, usage = ((read(f"{folder}/{name}") or "").strip() for name in (limit_file, usage_file))
    if not limit.isdigit() or not usage.isdigit():  # "max", or no limit at all
        return None
    lines = (read(f"{folder}/memory.stat") or "").splitlines()
    stat = dict(line.split(None, 1) for line in lines if " " in line)
    # Files that were read long ago count as used, and are dropped when memory is needed.
    return int(limit) - int(usage) + int(stat.get(cache, 0))
