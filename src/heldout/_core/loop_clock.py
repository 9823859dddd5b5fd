"""Who keeps an event loop from going on, and for how long.

Functions that do not await anything keep their event loop, and with it all other items, waiting.
Each step of a metered coroutine is timed, so it is known whose time that was: the step's own
attempt is charged with it, and the time limits of the others are put off. Code that is not metered
(the caller's own tasks, say) shows as ticks that come late, and is charged to nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Generator
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import sniffio

from heldout._core.aio import current_loop

T = TypeVar("T")

TICK_SECONDS = 0.05
LONG_SECONDS = 0.01
"""A step that takes longer keeps others waiting noticeably, and its function is remembered."""
FOREIGN_SECONDS = 0.5
"""Of code that is not metered, the same: ticks of a busy machine are late by less."""
FOREIGN = "code outside the eval that runs in its event loop"


class Metered(Protocol):
    """Whose steps are timed."""

    own: float
    """Seconds that its own steps took."""

    def called(self) -> str:
        """Name what is being called."""
        ...

    def put_off(self) -> None:
        """Move the time limit by what others took."""
        ...


@dataclass(slots=True)
class Blocking:
    """How long one function has kept an event loop, and in how many steps."""

    seconds: float = 0.0
    steps: int = 0


class LoopClock:
    """The account of one event loop."""

    def __init__(self) -> None:
        self.taken = 0.0
        """Seconds that all steps took, and code outside."""
        self.by_function: dict[str, Blocking] = {}
        """Of what was called in long steps, by its name."""
        self._limited: set[Metered] = set()
        self._steps: list[Metered] = []
        """Whose step is running; several where an eval runs within another one's function."""
        self._since = 0.0
        self._told = 0.0
        self._ticked, self._taken_then = 0.0, 0.0
        self._is_ticking = False

    def split(self) -> None:
        """Charge the running step with the time up to now, under the name of what was called."""
        now = time.perf_counter()
        if self._steps:
            seconds = now - self._since
            for attempt in {*self._steps}:
                attempt.own += seconds
            self.taken += seconds
            if seconds >= LONG_SECONDS:
                self._note(self._steps[-1].called(), seconds)
        self._since = now

    def begin(self, attempt: Metered) -> None:
        """Begin a step."""
        self.split()
        self._steps.append(attempt)

    def end(self) -> None:
        """End it, and put off the time limits of others that waited."""
        self.split()
        self._steps.pop()
        # Not at every step: there may be thousands of others.
        if self.taken - self._told >= LONG_SECONDS + 1e-4 * len(self._limited):
            self._tell()

    def add_limited(self, attempt: Metered) -> None:
        """Keep the time limit of an attempt up to date."""
        self._limited.add(attempt)
        if not self._is_ticking:
            self._is_ticking = True
            self._ticked, self._taken_then = time.perf_counter(), self.taken
            loop = current_loop()
            if isinstance(loop, asyncio.AbstractEventLoop):
                # A callback is in no task, by which anyio would know the loop. Where asyncio.run
                # has started it, this has to say so, or the first late tick would be the last.
                context = copy_context()
                context.run(sniffio.current_async_library_cvar.set, "asyncio")
                loop.call_later(TICK_SECONDS, self._tick_on, loop, context=context)
            else:
                import trio

                # Trio ends what is overdue right after it has waited for events. A task would be
                # told of a late tick only after that.
                trio.lowlevel.add_instrument(self)  # type: ignore[arg-type]

    def remove_limited(self, attempt: Metered) -> None:
        """Stop that."""
        self._limited.discard(attempt)

    def _note(self, name: str, seconds: float) -> None:
        blocking = self.by_function.setdefault(name, Blocking())
        blocking.seconds += seconds
        blocking.steps += 1

    def _tell(self) -> None:
        self._told = self.taken
        for attempt in self._limited:
            attempt.put_off()

    def _tick(self, expected: float) -> None:
        now = time.perf_counter()
        late = now - self._ticked - expected - (self.taken - self._taken_then)
        if late >= LONG_SECONDS:
            self.taken += late
            if late >= FOREIGN_SECONDS:
                self._note(FOREIGN, late)
            self._tell()
        self._ticked, self._taken_then = now, self.taken

    def _tick_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tick(TICK_SECONDS)
        if self._limited:
            loop.call_later(TICK_SECONDS, self._tick_on, loop)
        else:
            self._is_ticking = False

    # --- As an instrument of trio ---

    def before_io_wait(self, timeout: float) -> None:
        """Account for the tasks that ran since the last wait."""
        self._tick(0.0)

    def after_io_wait(self, timeout: float) -> None:
        """Begin another round of tasks."""
        import trio

        self._ticked, self._taken_then = time.perf_counter(), self.taken
        if not self._limited:
            self._is_ticking = False
            trio.lowlevel.remove_instrument(self)  # type: ignore[arg-type]


_clocks: WeakKeyDictionary[Any, LoopClock] = WeakKeyDictionary()


def loop_clock() -> LoopClock:
    """Return the clock of the running event loop."""
    loop = current_loop()
    clock = _clocks.get(loop)
    if clock is None:
        clock = _clocks[loop] = LoopClock()
    return clock


class MeteredAwait(Generic[T]):
    """An awaitable each of whose steps is timed."""

    def __init__(self, awaitable: Awaitable[T], clock: LoopClock, attempt: Metered) -> None:
        self._awaitable, self._clock, self._attempt = awaitable, clock, attempt

    def __await__(self) -> Generator[Any, Any, T]:
        clock, attempt = self._clock, self._attempt
        steps: Any = self._awaitable.__await__()
        step, given = steps.send, None
        while True:
            clock.begin(attempt)
            try:
                wanted = step(given)
            except StopIteration as end:
                value: T = end.value
                return value
            finally:
                clock.end()
            try:
                given, step = (yield wanted), steps.send
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as raised:  # noqa: BLE001 - thrown into the coroutine
                given, step = raised, steps.throw
