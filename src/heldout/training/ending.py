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


def handle_sigterm(seconds: float) -> None:
    """Nothing to do where our handler is the one that is set."""
    before: Any = signal.getsignal(signal.SIGTERM)
    if getattr(before, "is_heldouts", False):
        return
    if before is None:
        log.warning("handle_sigterm: there is a handler that is not Python's; it is left alone")
        return
    entered = False

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        """Where somebody else has a handler, the end will be an orderly one, if it is to be the
        end: that handler decides. Only the default, which is to die at once, is put off."""
        nonlocal entered
        if entered:  # by one that was set after ours, and calls it, and is called by it
            return
        entered = True
        try:
            end(number, frame)
        finally:
            entered = False

    def end(number: int, frame: FrameType | None) -> None:
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            # In another thread, because this one may have been interrupted while it held a lock;
            # then this gives up, and pending.json still has what the next start needs.
            closing = threading.Thread(target=_end_all, daemon=True)
            closing.start()
            closing.join(seconds)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    on_sigterm.is_heldouts = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGTERM, on_sigterm)


def _end_all() -> None:
    for each in list(living):
        each.end_with_process()
