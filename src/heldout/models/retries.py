"""Requests that are repeated after errors that may pass."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from heldout.errors import TransientError

Replied = TypeVar("Replied")

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_jitter = random.Random()  # its own generator: the user's random state must not change


async def with_retries(
    request: Callable[[], Awaitable[Replied]],
    retries: int,
    *,
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
) -> Replied:
    """Make a request, and repeat it after transient errors with growing waits."""
    for attempt in range(retries + 1):
        try:
            return await request()
        except TransientError as problem:
            if attempt == retries:
                raise
            doublings = min(attempt, 10)  # the longest wait is reached; 2**1024 is no float
            wait = min(_LONGEST_WAIT, _FIRST_WAIT * 2**doublings) * _jitter.uniform(0.5, 1.0)
            # A wait that the server asks for is honoured; the attempt's timeout bounds it.
            await sleep(max(wait, problem.retry_after or 0.0))
    raise AssertionError("unreachable")
