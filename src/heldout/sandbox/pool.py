"""Sandboxes that are started ahead: as many as there are cores, whatever the number of samples.

A sandbox goes back empty: the supervisor kills what runs and mounts a fresh file system, while the
caller goes on. So to take one costs no start of a process, and nothing is left of the one before.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync

from heldout._core.aio import wait_for
from heldout._core.memory import available_cores
from heldout.errors import InvalidInput, SandboxError
from heldout.sandbox.bubblewrap import check_readable
from heldout.sandbox.client import RequestChannel, RunningSupervisor
from heldout.sandbox.containers import ContainerSandbox
from heldout.sandbox.sandbox import (
    Readable,
    Sandbox,
    SandboxSettings,
    choose_backend,
    is_container,
)
from heldout.sandbox.values import SandboxLimits


class SandboxPool:
    """A bounded number of sandboxes, shared by threads and event loops.

    A forked or pickled copy has sandboxes of its own.
    """

    def __init__(
        self,
        size: int | None = None,
        *,
        backend: str | None = None,
        network: bool = False,
        limits: SandboxLimits | None = None,
        readable: Readable = (),
    ) -> None:
        """Make a pool. Nothing is started yet.

        Args:
            size: The maximum number of sandboxes; one per core by default.
            backend: As of `open_sandbox`, like the others.
            network: Whether programs may use the network of the host.
            limits: What they may use.
            readable: Files and folders of the host that they may read.
        """
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise InvalidInput(f"the size of a sandbox pool is a positive number, not {size!r}")
        self.size = size or available_cores()
        self.settings = SandboxSettings(
            backend, network, limits or SandboxLimits(), check_readable(readable)
        )
        self._backend: str | None = None
        self._forget()

    def _forget(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[_Slot] = []
        self._slots = 0
        self._waiting: deque[Future[_Slot | None]] = deque()
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (self.size, self.settings)

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        """Take a sandbox with a fresh root, once one is free; it goes back at the end.

        Raises:
            SandboxError: None could be started.
        """
        slot = await self._take()
        try:
            if self._backend is None:
                self._backend = await run_sync(choose_backend, self.settings.backend)
            sandbox = await slot.open(self.settings, self._backend)
        except BaseException:
            self._drop(slot)
            raise
        try:
            yield sandbox
        finally:
            if isinstance(sandbox, ContainerSandbox):
                await sandbox.close()
            sandbox._release()
            if slot.renew():
                self._give(slot)
            else:
                self._drop(slot)

    async def _take(self) -> _Slot:
        if self._owner != os.getpid():
            self._forget()
        with self._lock:
            if self._closed:
                raise SandboxError("the pool of sandboxes was closed")
            if self._idle:
                return self._idle.pop()
            if self._slots < self.size:
                self._slots += 1
                return _Slot()
            future: Future[_Slot | None] = Future()
            self._waiting.append(future)
        try:
            slot = await wait_for(future)
        except BaseException:
            if future.done() and not future.cancelled():
                given = future.result()
                self._give(given or _Slot())
            raise
        return slot or _Slot()

    def _give(self, slot: _Slot) -> None:
        """Hand a slot to who waits longest, or keep it."""
        with self._lock:
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(slot)
                    return
            if not self._closed:
                self._idle.append(slot)
                return
        slot.end()

    def _drop(self, slot: _Slot) -> None:
        """Have another sandbox take the place of one that failed."""
        slot.end()
        with self._lock:
            while self._waiting:
                future = self._waiting.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
                    return
            self._slots -= 1

    async def close(self) -> None:
        """End the sandboxes that are free now, and the others when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for slot in idle:
            await slot.close()


def _remake(size: int, settings: SandboxSettings) -> SandboxPool:
    return SandboxPool(
        size,
        backend=settings.backend,
        network=settings.network,
        limits=settings.limits,
        readable={target: source for source, target in settings.readable},
    )


class _Slot:
    """A supervisor, if it has been started, and the renewal that it was asked for."""

    def __init__(self) -> None:
        self._supervisor: RunningSupervisor | None = None
        self._renewal: RequestChannel | None = None

    async def open(self, settings: SandboxSettings, backend: str) -> Sandbox:
        """Return a sandbox with a fresh root; a supervisor that cannot make one is replaced."""
        if is_container(backend):
            return await ContainerSandbox.open(settings, backend)
        return Sandbox(await self._ready(settings, backend), backend, settings.limits)

    async def _ready(self, settings: SandboxSettings, backend: str) -> RunningSupervisor:
        if self._renewal is not None and self._supervisor is not None:
            renewal, self._renewal = self._renewal, None
            try:
                reply, _ = await renewal.receive()
            except SandboxError:
                reply = {"error": "gone"}
            finally:
                renewal.close()
            if "error" not in reply:
                return self._supervisor
            await self._supervisor.close()
        started = settings.make_supervisor_settings(backend)
        self._supervisor = await RunningSupervisor.start(started)
        return self._supervisor

    def renew(self) -> bool:
        """Ask for a fresh root; return whether there is somebody to ask."""
        if self._supervisor is None:
            return False
        try:
            self._renewal = self._supervisor.connect()
            self._renewal.post({"operation": "renew"})
        except SandboxError:
            return False
        return True

    def end(self) -> None:
        """End its supervisor, and do not wait."""
        if self._supervisor is not None:
            self._supervisor.end()

    async def close(self) -> None:
        """End its supervisor."""
        if self._renewal is not None:
            self._renewal.close()
        if self._supervisor is not None:
            await self._supervisor.close()
