from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import anyio
import pytest

from tests.faulty_server import KEY, FaultyServer, nothing_from_outside

both_loops = pytest.mark.parametrize("run", ["asyncio", "trio"], indirect=True)
"""Runs a test under trio as well: for what waits, is cancelled or crosses threads."""


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs an async function to its end."""
    return partial(anyio.run, backend=getattr(request, "param", "asyncio"))


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with FaultyServer() as server:
        yield server


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    """Nothing from outside: a key that is none, no proxy, no other address."""
    nothing_from_outside(monkeypatch)
    return KEY
