"""Time limits that this process keeps; time in which the machine stood still does not count."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from heldout.errors import SandboxError
from heldout.sandbox.sandbox import Sandbox, require_short_stall
from heldout.sandbox.supervisor.stalls import Stalls

TICK = 0.05
T = TypeVar("T")


class TimeUp(Exception):
    """What ran in sandboxes was not done in time."""


async def call_in_time(
    function: Callable[[], Awaitable[T]], seconds: float, sandboxes: Sequence[Sandbox]
) -> T:
    """Call a function that waits for programs, under a time limit.

    Args:
        function: Is cancelled when time is up.
        seconds: The limit; time in which this process or a sandbox stood still does not count.
        sandboxes: Where the programs run.

    Raises:
        TimeUp: It was not done in time.
        SandboxError: The machine stood still too long for anything to be said.
    """
    results: list[T] = []
    problems: list[Exception] = []

    async def watch(scope: anyio.CancelScope) -> None:
        try:
            await _wait(seconds, sandboxes)
        except SandboxError as problem:
            problems.append(problem)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch, group.cancel_scope)
        try:
            results.append(await function())
        except Exception as problem:  # noqa: BLE001 - raised below: a task group would wrap it
            problems.append(problem)
        group.cancel_scope.cancel()
    if problems:
        raise problems[0]
    if not results:
        raise TimeUp
    return results[0]


async def _wait(seconds: float, sandboxes: Sequence[Sandbox]) -> None:
    """Return when time is up."""
    began = time.monotonic()
    stalls, stalled = Stalls(), 0.0
    while (left := began + seconds + stalled - time.monotonic()) > 0:
        slept = min(left, TICK)
        await anyio.sleep(slept)
        stalls.wake(slept)
        if began + seconds + stalled <= time.monotonic():
            # Asked only now, since it costs a message. They mostly stood still at the same time.
            found = [await sandbox.stalled_since(began) for sandbox in sandboxes]
            stalled = max(stalls.since(began), *found)
            require_short_stall(stalled, seconds)
            stalls.wake(None)
