"""A thread with an event loop of its own, for a package that must always see the same one.

    loops = LoopThread("heldout-inspect")
    loops.get()                # a loop that runs, in a thread of its own

Whatever loops and threads a program has, the package sees one. The thread is checked each time that
it is asked for: one that has ended, or that a fork left behind, is started again.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from contextlib import suppress

from heldout.errors import printable_error

log = logging.getLogger("heldout")

END_SECONDS = 10.0
"""How long its tasks, and then the thread, may take to end."""


class LoopThread:
    """An event loop in a thread of its own, started when it is first asked for.

    Args:
        name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.stop)

    def _forget(self) -> None:
        # The thread is the parent's; the lock may have been held by it.
        self._starting, self._loop, self._thread = threading.Lock(), None, None

    def get(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which runs."""
        with self._starting:
            if self._loop is None or not self._is_running():
                loop = self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._keep_running, args=(loop,), name=self._name, daemon=True
                )
                self._thread.start()
            return self._loop

    def is_current(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this is the loop, and runs."""
        return loop is self._loop and self._is_running()

    def _is_running(self) -> bool:
        thread, loop = self._thread, self._loop
        return (
            thread is not None and thread.is_alive() and loop is not None and not loop.is_closed()
        )

    def _keep_running(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until it is stopped.

        asyncio ends a loop with a SystemExit or KeyboardInterrupt that any of its tasks raises.
        Nothing else runs the package, so whoever waits for it would wait for ever.
        """
        while True:
            try:
                loop.run_forever()
            except BaseException as problem:  # noqa: BLE001 - whoever waits for that task gets it
                log.error(
                    "code ended the event loop of %s, which goes on: %s: %s",
                    *(self._name, type(problem).__name__, printable_error(problem)),
                )
            else:
                return

    def stop(self) -> None:
        """Cancel what runs, and end the loop and its thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or not self._is_running():
            return
        ended = asyncio.run_coroutine_threadsafe(_cancel_all(), loop)
        with suppress(TimeoutError):
            ended.result(END_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_SECONDS)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["LoopThread"]
