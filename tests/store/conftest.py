"""What is stored does not depend on the event loop: one is enough."""

from __future__ import annotations

import pytest


@pytest.fixture
def backend() -> str:
    return "asyncio"
