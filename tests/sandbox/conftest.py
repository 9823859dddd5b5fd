"""Sandboxes for tests: real ones. They run wherever bubblewrap works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import anyio
import pytest

from heldout.sandbox import Sandbox, SandboxLimits, SandboxPool
from tests.system import require

T = TypeVar("T")
Use = Callable[[Callable[[Sandbox], Awaitable[Any]]], Any]

SMALL = SandboxLimits(timeout=20, memory=128 << 20, disk=8 << 20, files=500, processes=16)


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """Require that a sandbox can be opened here."""
    require("bubblewrap")


@pytest.fixture(scope="module")
def pool(bubblewrap: None) -> Iterator[SandboxPool]:
    """Two sandboxes with small limits, each fresh when it is taken."""
    pool = SandboxPool(2, limits=SMALL)
    yield pool
    anyio.run(pool.close)


@pytest.fixture
def use(pool: SandboxPool) -> Use:
    """Call an async function with a fresh sandbox."""

    def call(function: Callable[[Sandbox], Awaitable[Any]], *, backend: str = "asyncio") -> Any:
        async def main() -> Any:
            async with pool.sandbox() as sandbox:
                return await function(sandbox)

        return anyio.run(main, backend=backend)

    return call
