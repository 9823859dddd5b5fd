"""Shared by the tests of other people's evals."""

from __future__ import annotations

import warnings

import pytest

# Inspect leaves its event loop, sockets and streams open. They are collected at any time later: in
# any of these tests, or after the last one.
LEFT_OPEN = [
    f"Exception ignored in. <{kind}"
    for kind in ("socket.socket", "function BaseEventLoop.__del__", "function MemoryObject")
]


def pytest_configure(config: pytest.Config) -> None:
    for message in LEFT_OPEN:
        line = f"ignore:{message}:pytest.PytestUnraisableExceptionWarning"
        config.addinivalue_line("filterwarnings", line)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    for message in LEFT_OPEN:
        warnings.filterwarnings("ignore", message, pytest.PytestUnraisableExceptionWarning)
