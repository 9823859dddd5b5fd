"""A machine that stands still: processes stopped from outside, and continued."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

LIMIT, STALL = 4.0, 5.0
"""Seconds that a program has, and that the machine stands still."""
FIRST = "sleep 60"
"""What a program waits in until the machine has stood still. It is ended from outside: a wait of a
set time might be over before a busy machine has let this process look."""


@contextmanager
def stalled(choose: Callable[[], set[int]]) -> Iterator[list[int]]:
    """Stop processes for a while, as soon as a program of this test does FIRST, and end FIRST.

    Args:
        choose: Names the processes.
    """
    stopped: list[int] = []

    def stop() -> None:
        until = monotonic() + 60
        while not (waiting := [pid for pid in below(os.getpid()) if is_first(pid)]):
            if monotonic() > until:
                return
            sleep(0.01)
        stopped.extend(sorted(choose()))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        sleep(STALL)
        for pid in reversed(stopped):  # a shell must not see that its child was stopped
            os.kill(pid, signal.SIGCONT)
        for pid in waiting:
            os.kill(pid, signal.SIGTERM)

    thread = Thread(target=stop)
    thread.start()
    try:
        yield stopped
    finally:
        thread.join()
    assert stopped


def is_first(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1] == [
            word.encode() for word in FIRST.split()
        ]
    except OSError:
        return False


def below(root: int) -> set[int]:
    """Return all processes that one has started."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        try:
            for task in Path(f"/proc/{waiting.pop()}/task").iterdir():
                children = {*map(int, (task / "children").read_text().split())} - found
                found |= children
                waiting += children
        except OSError:
            continue
    return found


def everything() -> set[int]:
    """Return the supervisors, and all that runs in sandboxes."""
    return below(os.getpid())


def programs() -> set[int]:
    """Return what runs in sandboxes, without the supervisors."""
    return {pid for pid in everything() if not is_supervisor(pid)}


def is_supervisor(pid: int) -> bool:
    return b"supervisor.loop" in Path(f"/proc/{pid}/cmdline").read_bytes()
