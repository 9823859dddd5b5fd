"""The end of a process that has evals under way: by itself, or by SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any, Protocol

log = logging.getLogger("heldout")


class Ends(Protocol):
    def end_with_process(self) -> None: ...


living: set[Ends] = set()
"""What has to be brought to an end."""
_before: Any = None


def handle_sigterm(seconds: float) -> None:
    """Once: who sets a handler after that may call ours, and must not be called by it in turn."""
    global _before
    if _before is not None:
        return
    _before = signal.getsignal(signal.SIGTERM)
    if _before is None:
        log.warning("handle_sigterm: there is a handler that is not Python's; it is left alone")
        return

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        """Where somebody else has a handler, the end will be an orderly one, if it is to be the
        end: that handler decides. Only the default, which is to die at once, is put off."""
        if callable(_before):
            _before(number, frame)
        elif _before == signal.SIG_DFL:
            # In another thread, because this one may have been interrupted while it held a lock;
            # then this gives up, and pending.json still has what the next start needs.
            closing = threading.Thread(target=_end_all, daemon=True)
            closing.start()
            closing.join(seconds)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, on_sigterm)


def _end_all() -> None:
    for each in list(living):
        each.end_with_process()
