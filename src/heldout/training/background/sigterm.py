"""SIGTERM, as schedulers of clusters send it: evals in flight are recorded as skips first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Protocol


class EndsWithProcess(Protocol):
    """A dispatcher, as far as the end of its process goes."""

    def end_with_process(self) -> None:
        """Record evals in flight as skips, and close."""


open_dispatchers: set[EndsWithProcess] = set()
"""Those to be closed."""


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
        for dispatcher in list(open_dispatchers):
            dispatcher.end_with_process()

    thread = threading.Thread(target=close_all, daemon=True)
    thread.start()
    thread.join(seconds)
