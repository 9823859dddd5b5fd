from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from tests.faulty_server import FaultyServer, nothing_from_outside


@pytest.fixture
def run(backend: str) -> Callable[..., Any]:
    """Runs an async function to its end."""

    def run(function: Callable[..., Any], *args: Any) -> Any:
        return anyio.run(function, *args, backend=backend)

    return run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """Nothing from outside: a key that is none, no proxy, no other address."""
    nothing_from_outside(monkeypatch)
    with FaultyServer() as server:
        yield server
