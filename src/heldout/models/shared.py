"""A model that many event loops use, one after the other or at once, and that nobody closes.

A judge is part of a score function and a simulated user part of an environment. Both may be used in
several event loops (asynchronous evals of a training run), and have no place to close what they
opened. Connections belong to the loop they were made in, and are closed when it ends; a model in
this process is loaded once for all.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import anyio

from heldout._core.aio import current_loop
from heldout._core.providers import runs_here
from heldout.models import Endpoint, open_endpoint


@dataclass(frozen=True)
class LoopEndpoint:
    """The endpoint of one event loop."""

    endpoint: Endpoint
    slots: anyio.Semaphore
    """For requests in flight."""
    end: AsyncGenerator[None, None]


class LoopEndpoints:
    """One endpoint for each event loop, closed when the loop ends."""

    def __init__(self, model: Any, max_concurrent: int) -> None:
        """Open nothing yet; `model` is what `EvalConfig.endpoint` takes."""
        self._model, self._max_concurrent = model, max_concurrent
        self.is_named = isinstance(model, str)
        """Whether it is a server, or a model on disk that nobody else can reach."""
        self._loops: dict[Any, LoopEndpoint] = {}
        self._shared: Endpoint | None = None
        self._opening = threading.Lock()

    def open(self) -> Endpoint:
        """Open an endpoint, or return the one that all loops share."""
        with self._opening:
            if self._shared is not None:
                return self._shared
            endpoint = open_endpoint(self._model, max_concurrent=self._max_concurrent)
            if (self.is_named and runs_here(self._model)) or endpoint is self._model:
                self._shared = endpoint
            return endpoint

    async def here(self) -> LoopEndpoint:
        """Return that of the running loop."""
        loop = current_loop()
        if loop not in self._loops:
            endpoint = self.open()
            end = self._close_with_loop(loop, None if endpoint is self._shared else endpoint)
            self._loops[loop] = LoopEndpoint(endpoint, anyio.Semaphore(self._max_concurrent), end)
            await anext(end)  # a loop that ends closes the generators that were started in it
        return self._loops[loop]

    async def _close_with_loop(
        self, loop: Any, endpoint: Endpoint | None
    ) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self._loops.pop(loop, None)
            await _close(endpoint)

    async def close(self) -> None:
        """Close what was opened for this event loop, and what all share. It can be used again."""
        if opened := self._loops.get(current_loop()):
            await opened.end.aclose()
        with self._opening:
            shared, self._shared = self._shared, None
        await _close(None if shared is self._model else shared)


async def _close(endpoint: Endpoint | None) -> None:
    if endpoint is not None:
        with anyio.CancelScope(shield=True):
            await endpoint.close()
