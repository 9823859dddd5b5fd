from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from tests.faulty_server import KEY, FaultyServer, nothing_from_outside


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs an async function to its end, under each kind of event loop."""

    def run(function: Callable[..., Any], *args: Any) -> Any:
        return anyio.run(function, *args, backend=request.param)

    return run


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Nothing from outside: a key that is none, no proxy, no other address."""
    nothing_from_outside(monkeypatch)
    return KEY
