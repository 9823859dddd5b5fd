from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from tests.faulty_server import FaultyServer

KEY = "sk-test-0123456789abcdefghij"


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs an async function to its end, under each kind of event loop."""

    def run(function: Callable[..., Any], *args: Any) -> Any:
        return anyio.run(function, *args, backend=request.param)

    return run


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """Nothing from outside: a key that is none, no proxy, no other address."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with FaultyServer() as server:
        yield server
