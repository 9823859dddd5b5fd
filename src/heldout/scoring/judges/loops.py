"""One endpoint for each event loop that asks, closed when the loop ends.

A judge is part of a score function, which may be used in one event loop after the other, or in two
at once (an eval beside a training), and which nobody closes. Connections belong to the loop they
were made in; a model in this process is held once for all.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from heldout._aio import current_loop
from heldout.models import Endpoint, open_endpoint

_HELD_ONCE = ("hf", "smollm2")


@dataclass(eq=False, slots=True)
class Here:
    """What belongs to one event loop."""

    endpoint: Endpoint
    places: anyio.Semaphore
    """Requests under way at once."""
    ending: AsyncGenerator[None, None] | None = None


class EndpointByLoop:
    def __init__(
        self, given: Any, max_concurrent: int, *, at_the_end: Callable[[], object]
    ) -> None:
        """`at_the_end` is called when an event loop ends that has asked."""
        self._given, self._max_concurrent = given, max_concurrent
        self._at_the_end = at_the_end
        self._loops: dict[Any, Here] = {}
        self._shared: Endpoint | None = None
        self._opening = threading.Lock()

    def describe(self) -> dict[str, Any]:
        return self._open().describe()

    async def here(self) -> Here:
        loop = current_loop()
        known = self._loops.get(loop)
        if known is None:
            known = Here(self._open(), anyio.Semaphore(self._max_concurrent))
            self._loops[loop] = known
            # A loop that ends closes the generators that were begun in it: here is our chance.
            known.ending = self._until_the_end(loop, known.endpoint)
            await known.ending.asend(None)
        return known

    async def close(self) -> None:
        """What was opened for this event loop, and what all share. It is opened again if asked."""
        here = self._loops.get(current_loop())
        if here is not None and here.ending is not None:
            await here.ending.aclose()
        with self._opening:
            shared, self._shared = self._shared, None
        if shared is not None and shared is not self._given:
            with anyio.CancelScope(shield=True):
                await shared.close()

    def _open(self) -> Endpoint:
        with self._opening:
            if self._shared is not None:
                return self._shared
            opened = open_endpoint(self._given, max_concurrent=self._max_concurrent)
            kind = self._given.partition(":")[0] if isinstance(self._given, str) else ""
            if kind in _HELD_ONCE or opened is self._given:
                self._shared = opened
            return opened

    async def _until_the_end(self, loop: Any, endpoint: Endpoint) -> AsyncGenerator[None, None]:
        is_shared = endpoint is self._shared
        try:
            yield
        finally:
            self._loops.pop(loop, None)
            self._at_the_end()
            if not is_shared:
                with anyio.CancelScope(shield=True):
                    await endpoint.close()
