"""What tests of the pool have its workers do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def prepare() -> None:
    os.environ["PREPARED"] = "yes"


def ill() -> None:
    raise ImportError("sympy is not here")


def deaf() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.raise_signal(signal.SIGSTOP)


def unsendable() -> object:
    return object()


def surrogate() -> None:
    raise ValueError("\ud800" + "x" * 10**6)


def environment() -> dict[str, str]:
    return dict(os.environ)


def hold(path: str, release: str | None = None) -> int:
    """Say that it has begun, and go on when it is let."""
    Path(path).touch(exist_ok=False)
    while release and not Path(release).exists():
        os.sched_yield()
    return os.getpid()


def wait_twice(path: str) -> bool:
    """Say that it has begun, and take a second, most of it for the first wait."""
    Path(path).touch()
    time.sleep(0.6)
    time.sleep(0.4)
    return True
