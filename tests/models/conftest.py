from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from tests.faulty_server import KEY, FaultyServer, nothing_from_outside


@pytest.fixture
def run(backend: str) -> Callable[..., Any]:
    """Runs an async function to its end."""
    return partial(anyio.run, backend=backend)


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Nothing from outside: a key that is none, no proxy, no other address."""
    nothing_from_outside(monkeypatch)
    return KEY
