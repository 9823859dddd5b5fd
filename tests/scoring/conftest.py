from __future__ import annotations

import pytest


@pytest.fixture
def backend() -> str:
    """The event loop; `pytest.mark.parametrize` it where it plays a part."""
    return "asyncio"
