"""Shared by the tests of other people's evals."""

from __future__ import annotations

from pathlib import Path

import pytest

# `inspect_ai.eval` leaves its event loop open, with its sockets. They are collected at any time
# later, so in any of these tests.
LEFT_OPEN = pytest.mark.filterwarnings(
    *(
        f"ignore:Exception ignored in. <{kind}:pytest.PytestUnraisableExceptionWarning"
        for kind in ("socket.socket", "function BaseEventLoop.__del__")
    )
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(LEFT_OPEN)
