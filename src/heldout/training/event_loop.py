"""The event loop that async evaluators run in."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc

from heldout.concurrency import in_own_thread, waker

log = logging.getLogger("heldout")
T = TypeVar("T")


class EventLoop(Generic[T]):
    """The event loop of the evals: the trainer's own, or one in a thread.

    `anyio.from_thread.BlockingPortal` waits for the loop at every call; a trainer must not wait for
    an evaluator that blocks it.

    Args:
        run: Runs a job, as a task.
        on_breakdown: Called where the loop has ended and was not closed.
    """

    def __init__(
        self, run: Callable[[T], Coroutine[Any, Any, None]], on_breakdown: Callable[[], object]
    ) -> None:
        self._run, self._on_breakdown = run, on_breakdown
        self._lock = threading.Lock()
        self._post: Callable[[Callable[[], object]], None] | None = None
        self._ident: int | None = None
        self._context = contextvars.Context()
        self._group: anyio.abc.TaskGroup | None = None
        self._stopped: anyio.Event | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        return self._post is not None

    @property
    def is_here(self) -> bool:
        """Whether it runs in this very thread, so that to wait for it would be for ever."""
        return self.is_open and self._ident == threading.get_ident()

    @property
    def has_thread(self) -> bool:
        return self._thread is not None

    def call(self, function: Callable[[], object]) -> None:
        """Have a function called in the loop; nothing where there is none. Any thread may."""
        if (post := self._post) is not None:
            # In a context of the loop: in the caller's, anyio would not know which loop runs.
            post(partial(self._context.copy().run, function))

    def spawn(self, job: T) -> None:
        """Run a job. The task is made in the loop: this may be another thread."""
        self.call(partial(self._spawn, job))

    def _spawn(self, job: T) -> None:
        if self._group is not None and not self._closed:
            self._group.start_soon(self._run, job)

    async def enter(self) -> None:
        """Run in the loop of this task, which must be the one to leave it."""
        if not self.is_open:
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
            self._open()

    def _open(self) -> None:
        self._ident, self._context = threading.get_ident(), contextvars.copy_context()
        self._post = waker()

    async def leave(self) -> None:
        if self._group is not None and self._thread is None:
            self._post = None
            self._group.cancel_scope.cancel()
            # Not told of any exception, which it would wrap in a group.
            await self._group.__aexit__(None, None, None)

    def start_thread(self) -> None:
        """Run in a thread; nothing to do where it runs already, or was closed."""
        with self._lock:
            if self.is_open or self._closed:
                return
            ready = threading.Event()
            try:
                self._thread = in_own_thread(lambda: self._live(ready))
            except RuntimeError as problem:  # the interpreter is on its way out
                log.warning("no thread for evals: %s", problem)
                return
            ready.wait()

    def _live(self, ready: threading.Event) -> None:
        async def main() -> None:
            async with anyio.create_task_group() as self._group:
                self._stopped = anyio.Event()
                self._open()
                ready.set()
                await self._stopped.wait()
                self._group.cancel_scope.cancel()

        try:
            anyio.run(main)
        except BaseException as problem:
            log.error("the event loop of evals broke down", exc_info=problem)
        finally:
            self._post = None
            ready.set()
            if not self._closed:
                self._on_breakdown()

    def close(self, seconds: float) -> None:
        """Start nothing any more. A loop in a thread ends, and its tasks are cancelled."""
        self._closed = True
        if self._thread is not None:
            self.call(lambda: self._stopped.set() if self._stopped else None)
            self._thread.join(seconds)
