"""SIGTERM, as schedulers of clusters send it: evals in flight are recorded as skips first."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

open_dispatchers: set[Callable[[], object]] = set()
"""What closes each of those that are open, with evals in flight as skips."""


def close_at_sigterm(seconds: float) -> None:
    """Close dispatchers at SIGTERM, and end the process.

    Another handler, if set, decides whether and how the process ends.
    """

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        _close_all(seconds)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, on_sigterm)


def _close_all(seconds: float) -> None:
    """Close all dispatchers in another thread.

    This one may have been interrupted while it held a lock. Then this gives up, and the write-ahead
    lines still say what is missing.
    """

    def close_all() -> None:
        for close in list(open_dispatchers):
            close()

    thread = threading.Thread(target=close_all, daemon=True)
    thread.start()
    thread.join(seconds)
