"""Whether processes that a test has started, or that were started for it, still run."""

from __future__ import annotations

import time
from pathlib import Path

LONG = 60.0


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it may end while the file is open, too
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until_ended(*pids: int) -> None:
    until = time.monotonic() + LONG
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < until, f"{left} still run"
        time.sleep(0.01)
