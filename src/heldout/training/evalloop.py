"""The event loop that scheduled evals run in: the trainer's own, or one in a thread beside it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
import anyio.abc

from heldout.concurrency import in_own_thread, waker

log = logging.getLogger("heldout")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place:
    thread: int
    wake: Callable[[Callable[[], object]], None]
    beside: bool


class EvalLoop(Generic[T]):
    """Whenever it is woken, it takes what may start (`take`) and runs each in a task (`run`).

    Tasks are made in here, not by whoever schedules them: that may be in another thread, or under
    another kind of event loop. Any thread may call what is not a coroutine.
    """

    def __init__(
        self,
        take: Callable[[], list[T]],
        run: Callable[[T], Coroutine[Any, Any, None]],
        broke_down: Callable[[], object],
    ) -> None:
        """`broke_down` is called where the loop is gone and was not closed."""
        self._take, self._run, self._broke_down = take, run, broke_down
        self._starting = threading.Lock()
        self._place: _Place | None = None
        self._group: anyio.abc.TaskGroup | None = None
        self._thread: threading.Thread | None = None
        self._woken: anyio.Event | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        return self._place is not None

    @property
    def is_here(self) -> bool:
        """Whether it runs in this very thread, so that to wait for it would be for ever."""
        return self._place is not None and self._place.thread == threading.get_ident()

    @property
    def is_beside(self) -> bool:
        """Whether it has a thread of its own."""
        return self._place is not None and self._place.beside

    def wake(self) -> None:
        self.call(lambda: self._woken.set() if self._woken else None)

    def call(self, function: Callable[[], object]) -> None:
        """Have it called in the loop; nothing where there is none."""
        place = self._place
        if place is not None:
            place.wake(function)

    def close(self, wait: float) -> None:
        """Nothing is started any more. A loop beside ends, and its tasks are cancelled."""
        self._closed = True
        self.wake()
        if self._thread is not None:
            self._thread.join(wait)

    # --- The trainer's own ---

    async def enter(self) -> None:
        """Run in the loop of this task, which must be the one to leave. Not where it runs
        already."""
        if self._place is None:
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
            self._place = _Place(threading.get_ident(), waker(), beside=False)
            self._group.start_soon(self._serve, self._group)

    async def leave(self) -> None:
        if self._group is not None:
            self._group.cancel_scope.cancel()
            # Not told of any exception, which it would wrap in a group: that stays what it is.
            await self._group.__aexit__(None, None, None)
            self._place = None

    # --- One beside it ---

    def start_beside(self) -> None:
        """Nothing to do where it runs, in either place, or was closed."""
        with self._starting:
            if self._place is not None or self._closed:
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
            async with anyio.create_task_group() as group:
                self._place = _Place(threading.get_ident(), waker(), beside=True)
                ready.set()
                await self._serve(group)
                group.cancel_scope.cancel()

        try:
            anyio.run(main)
        except BaseException as problem:
            log.error("the event loop of evals broke down", exc_info=problem)
        finally:
            self._place = None
            ready.set()
            if not self._closed:
                self._broke_down()

    async def _serve(self, group: anyio.abc.TaskGroup) -> None:
        while not self._closed:
            self._woken = anyio.Event()  # before taking: what comes after that wakes this one
            for item in self._take():
                group.start_soon(self._run, item)
            await self._woken.wait()
